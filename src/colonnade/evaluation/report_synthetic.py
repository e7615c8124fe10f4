"""What a synthetic table says: where it is, what its columns look like, and, in a simulation, how near the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from colonnade.evaluation.charts import bars, histogram, intervals
from colonnade.evaluation.page import Html, folded, join, listing, paragraph, section, table, tag
from colonnade.formatting import number

MOST_CHARTS = 60
COLUMN_HEAD = ("column", "kind", "most common, or the middle half")


def title(result: Mapping[str, Any]) -> str:
    return f"A synthetic table of {number(result['rows'])} rows and {len(result['columns'])} columns"


def answer(result: Mapping[str, Any]) -> Html:
    return join(
        [
            paragraph(
                tag("code", result["file"]),
                f" in this folder has {number(result['rows'])} rows drawn from a model of the"
                f" {number(result['cohort'])} records of the cohort ({result['method']}). No row belongs to a record;"
                " every value lies in its declared domain. Use it like any table; more rows cost nothing.",
                class_="lead",
            ),
            listing(result["notes"]) if result["notes"] else None,
        ]
    )


def quality(result: Mapping[str, Any]) -> str:
    return (
        "Not measured here: across parties that would be one more release. Each party can compare its own columns at"
        " home, with `colonnade compare`. Notes on noise stand below."
    )


def quality_beside_truth(found: Mapping[str, Any]) -> str:
    return (
        f"Effects fitted to it correlate {found['agreement']:.2f} with the true ones. Distributions are off by"
        f" {100 * found['marginal']:.1f} % (one column) and {100 * found['pairwise']:.1f} % (a pair) in total"
        " variation. Only a simulation knows."
    )


def column_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """One row a column, for a terminal."""
    kinds = {column["name"]: str(column["kind"]) for column in result["columns"]}
    return [(name, kinds[name], _typical(one)) for name, one in result["marginals"].items()]


def _typical(one: Mapping[str, Any]) -> str:
    counts = one["counts"]
    whole = sum(counts) or 1
    if one["edges"] is None:
        ordered = sorted(zip(one["labels"], counts, strict=True), key=lambda pair: -pair[1])[:3]
        return ", ".join(f"{label} {100 * count / whole:.0f} %" for label, count in ordered)
    low, high = (_quantile(one["edges"], counts, at) for at in (0.25, 0.75))
    return f"{low:.4g} to {high:.4g}"


def _quantile(edges: Sequence[float], counts: Sequence[float], at: float) -> float:
    """Linear within a cell."""
    left = at * sum(counts)
    for place, count in enumerate(counts):
        if count > 0 and left <= count:
            return edges[place] + (edges[place + 1] - edges[place]) * left / count
        left -= count
    return edges[-1]


def details(result: Mapping[str, Any]) -> Html:
    shown = list(result["marginals"].items())
    return section(
        "The synthetic columns",
        tag("div", *(_chart(name, one) for name, one in shown[:MOST_CHARTS]), class_="charts"),
        paragraph(f"The other {len(shown) - MOST_CHARTS} columns are in the table.")
        if len(shown) > MOST_CHARTS
        else None,
    )


def _chart(name: str, one: Mapping[str, Any]) -> Html:
    label = f"Synthetic counts of {name}"
    if one["edges"] is None:
        drawn = bars(one["labels"], one["counts"], label=label, noise=0.0)
    else:
        drawn = histogram(one["labels"], one["counts"], one["edges"], label=label, noise=0.0)
    return tag("figure", tag("h4", name), drawn)


# --- a simulation knows the truth ---------------------------------------------------------------------------------


def beside_truth(found: Mapping[str, Any]) -> Html:
    """comparison.json of a simulation (`evaluation.comparison`)."""
    rows = found["coefficients"]
    ordered = sorted(rows, key=lambda one: -abs(one["truth"] * one["scale"]))
    scaled = [
        (one["name"], *(value * one["scale"] for value in _ends(one)), one["truth"] * one["scale"]) for one in ordered
    ]
    names, centres, lows, highs, truths = (list(part) for part in zip(*scaled, strict=True))
    head = ("feature", "in truth", "from the synthetic table", "from the complete table, were it known")
    listed = [
        (
            one["name"],
            f"{one['truth']:.4g}",
            f"{one['synthetic']:.4g} ({one['synthetic_error']:.2g})",
            f"{one['complete']:.4g} ({one['complete_error']:.2g})",
        )
        for one in ordered
    ]
    return section(
        "Beside the truth",
        paragraph(
            "These firms are simulated, so the truth is known. In a real federation nobody has it, and this section is"
            " not there."
        ),
        tag(
            "div",
            tag(
                "figure",
                tag("h4", f"Regression of {found['response']}, per standard deviation of each feature"),
                intervals(
                    names,
                    centres,
                    lows,
                    highs,
                    truths=truths,
                    label="Coefficients from the synthetic table, and in truth",
                ),
                tag(
                    "figcaption",
                    "Dots: fitted to the synthetic table, with the intervals that least squares would claim. Rings: the"
                    " truth. The intervals know nothing of the synthesis, so they are too short.",
                ),
            ),
            class_="charts",
        ),
        paragraph(
            f"Correlation of fitted with true effects {found['agreement']:.3f}; mean distance (total variation) of one"
            f" column's distribution {found['marginal']:.3f}, of a pair's {found['pairwise']:.3f}; mean error of a rank"
            f" correlation {found['rank_correlation']:.3f} (within one party {found['rank_correlation_within']:.3f},"
            f" across parties {found['rank_correlation_across']:.3f}).",
        ),
        folded(
            "All coefficients (standard errors of least squares)",
            table(head, listed, label="Coefficients", numeric=(1, 2, 3)),
        ),
    )


def _ends(one: Mapping[str, Any]) -> tuple[float, float, float]:
    reach = 1.96 * one["synthetic_error"]
    return one["synthetic"], one["synthetic"] - reach, one["synthetic"] + reach
