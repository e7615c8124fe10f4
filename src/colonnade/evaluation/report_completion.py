"""What a completion says: how many records were filled in, and how near to the truth on records that were hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.evaluation.page import Html, folded, join, listing, paragraph, section, table
from colonnade.evaluation.words import number

PARTY_HEAD = (
    "party",
    "records completed",
    "RMSE",
    "of the mean",
    "of a random record",
    "marginal distance",
    "pairwise distance",
    "",
)
NUMERIC = (1, 2, 3, 4, 5, 6)
DOWNSTREAM_HEAD = ("classifier", "hidden records", "accuracy", "largest class")
COLUMN_HEAD = ("party", "column", "distance of the distributions")


def _figure(value: float | None, digits: int = 4) -> str:
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def title(result: Mapping[str, Any]) -> str:
    many = sum(one["completed"] for one in result["parties"].values())
    return f"{number(many)} records completed at {', '.join(result['parties'])}"


def party_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for party, one in result["parties"].items():
        told = one["quality"]
        rows.append(
            (
                party,
                number(one["completed"]),
                _figure(told["rmse"]),
                _figure(told["rmse of the mean"]),
                _figure(told["rmse of a random record"]),
                _figure(told["marginal distance"], 3),
                _figure(told["pairwise distance"], 3),
                "fails" if party in result["failing"] else "",
            )
        )
    return rows


def downstream_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (name, number(one["records"]), _figure(one["accuracy"], 3), _figure(one["largest class"], 3))
        for name, one in result["downstream"].items()
    ]


def quality(result: Mapping[str, Any]) -> str:
    options = result["options"]
    drawn = options["imputer"] == "copula-draw" or options["n_correlated"]
    if options["imputer"] == "mean" and not drawn:
        return "Every completed entry is its column's mean, as was asked for."
    floor = "a random record of the same party" if drawn else "plain means"
    if result["failing"]:
        parties = ", ".join(result["failing"])
        return f"At {parties} the completion fails: its entries are no nearer to the truth than {floor}. Do not use it."
    return f"On hidden records the completed entries are nearer to the truth than {floor}, by as much as is shown."


def answer(result: Mapping[str, Any]) -> Html:
    options = result["options"]
    drawn = f" {options['n_correlated']} columns drawn first by {options['generator']};" if result["chosen"] else ""
    parts = [
        paragraph(f"Imputer: {options['imputer']};{drawn} hidden vectors under {options['protect']}.", class_="lead"),
        table(PARTY_HEAD, party_rows(result), label="Completed parties", numeric=NUMERIC),
        paragraph(
            "All figures are on records that the party has and that were hidden from every network. RMSE is on scaled"
            " numbers and indicators of categories. Distances compare the completed values with the true ones: 0 is the"
            " same distribution, or the same association within the party.",
            class_="soft",
        ),
        paragraph(
            "The completed tables are in the parties' own folders. A column named '(generated)' beside each column"
            " flags the generated entries; treat them as estimates, not as observations.",
        ),
    ]
    if result["downstream"]:
        parts.append(
            table(
                DOWNSTREAM_HEAD,
                downstream_rows(result),
                label="Classification with and without completed records",
                numeric=(1, 2, 3),
            )
        )
    return join(parts)


def details(result: Mapping[str, Any]) -> Html:
    columns = [
        (party, name, _figure(value, 3))
        for party, one in result["parties"].items()
        for name, value in one["quality"]["marginals"].items()
    ]
    told = [
        f"{label}: {one['rounds']} rounds; {one['stopped']}; least error over hidden records: "
        + (", ".join(f"{party} {_figure(error)}" for party, error in one["best"].items()) or "none was watched")
        + "."
        for label, one in result["histories"].items()
    ]
    told += [f"Drawn first at {party}: {', '.join(names)}." for party, names in result["chosen"].items()]
    told += [
        f"{party}: {one['file']} in its folder, and {one['expected']} with numbers and frequencies before one value was"
        " chosen."
        for party, one in result["parties"].items()
    ]
    return section(
        "How it went",
        listing(told),
        folded("Every column", table(COLUMN_HEAD, columns, label="Marginal distances", numeric=(2,))),
    )
