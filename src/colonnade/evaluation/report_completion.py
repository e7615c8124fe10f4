"""What a completion says: how many records were filled in, and how near to the truth on records that were hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.evaluation.page import Html, join, listing, paragraph, section, table
from colonnade.formatting import number

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
FILE_HEAD = ("party", "completed table", "before one value was chosen")
BRIEF = (0, 1, 2, 3, 4, 5, 7)
"""Of a column's figures, those for a terminal."""
COLUMN_HEAD = ("party", "column", "RMSE", "of the mean", "of a random record", "in the table", "distance", "")


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


def _plainly(one: Mapping[str, Any]) -> str:
    """A column's error in its own units, or how many categories are right."""
    if "right" in one:
        if one["right"] is None:
            return "-"
        return f"{one['right']:.0%} right; the most frequent: {one['right if the most frequent']:.0%}"
    return "-" if one["error"] is None else f"off by {one['error']:.3g}"


def column_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for party, told in result["parties"].items():
        weak = result.get("failing columns", {}).get(party, ())
        for name, one in told["quality"].get("columns", {}).items():
            rows.append(
                (
                    party,
                    name,
                    _figure(one["rmse"]),
                    _figure(one["rmse of the mean"]),
                    _figure(one["rmse of a random record"]),
                    _plainly(one),
                    _figure(told["quality"]["marginals"].get(name), 3),
                    "fails" if name in weak else "",
                )
            )
    return rows


def file_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [(party, one["file"], one["expected"]) for party, one in result["parties"].items()]


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
    unknown = [party for party, one in result["parties"].items() if one["quality"]["rmse"] is None]
    failing = [party for party in result["failing"] if party not in unknown]
    told = []
    if unknown:
        told.append(f"At {', '.join(unknown)} there was no record to hide, so nobody knows how good the completion is.")
    if failing:
        told.append(
            f"At {', '.join(failing)} the completion fails: its entries are no nearer to the truth than {floor}."
            " Do not use it."
        )
    good = [party for party in result["parties"] if party not in result["failing"]]
    if good:
        where = f"At {', '.join(good)} the" if unknown or failing else "On hidden records the"
        told.append(f"{where} completed entries are nearer to the truth than {floor}, by as much as is shown.")
    each = result.get("failing columns", {})
    weak = [f"{', '.join(each[party])} at {party}" for party in good if party in each]
    if weak:
        other = " (where they were drawn, than those of a random record)" if options["n_correlated"] else ""
        yardstick = "a random record's" if options["imputer"] == "copula-draw" else "their means"
        told.append(f"Taken alone, these columns are no nearer than {yardstick}{other}: {'; '.join(weak)}.")
    return " ".join(told)


def _from(imputer: str) -> str:
    if imputer not in ("copula-mean", "copula-draw", "mice"):
        return "from every network"
    return (
        "when they were completed, though not from the moments, which rest on all records: with few records the figures"
        " are too good"
    )


def answer(result: Mapping[str, Any]) -> Html:
    options = result["options"]
    drawn = f" {options['n_correlated']} columns drawn first by {options['generator']};" if result["chosen"] else ""
    parts = [
        paragraph(f"Imputer: {options['imputer']};{drawn} hidden vectors under {options['protect']}.", class_="lead"),
        table(PARTY_HEAD, party_rows(result), label="Completed parties", numeric=NUMERIC),
        paragraph(
            f"All figures are on records that the party has and that were hidden {_from(options['imputer'])}. RMSE is"
            " on scaled numbers and indicators of categories. Distances compare the completed values with the true"
            " ones: 0 is the same distribution, or the same association within the party.",
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
        section(
            "Every column",
            table(COLUMN_HEAD, column_rows(result), label="Columns", numeric=(2, 3, 4, 6)),
            paragraph(
                "RMSE is on the scale of the declared range, or of indicators. 'In the table' is the root mean squared"
                " error of the completed numbers in the column's own units (positions, if it is ordinal), or how many"
                " completed categories are right. The distance compares the distributions.",
                class_="soft",
            ),
            level=3,
        ),
    )
