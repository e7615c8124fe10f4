"""What a regression says: coefficients with intervals, missingness, and what the estimates rest on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from colonnade.evaluation.charts import intervals
from colonnade.evaluation.page import Html, folded, join, listing, paragraph, section, table, tag
from colonnade.formatting import number, share

COEFFICIENT_HEAD = ("", "coef", "std err", "z", "P>|z|", "95 % from", "to")
MOST_SHOWN = 20
MOST_PATTERNS = 12


def title(result: Mapping[str, Any]) -> str:
    return f"{result['response']}, explained by {len(result['params']) - 1} features"


def coefficient_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, coef in result["params"].items():
        error, (low, high) = result["bse"][name], result["conf_int"][name]
        z = coef / error if error > 0 else math.nan
        numbers = (f"{coef:.4g}", f"{error:.3g}", f"{z:.2f}", f"{result['pvalues'][name]:.3f}", f"{low:.4g}")
        rows.append((name, *numbers, f"{high:.4g}"))
    return rows


def answer(result: Mapping[str, Any]) -> Html:
    rows = coefficient_rows(result)
    return join(
        [
            paragraph(
                f"R-squared {result['rsquared']:.4f} (adjusted {result['rsquared_adj']:.4f}), from"
                f" {number(result['nobs'])} records of {number(result['cohort'])}; {number(complete(result))} of them"
                " are complete.",
                class_="lead",
            ),
            tag("div", _figure(result), class_="charts"),
            table(COEFFICIENT_HEAD, rows[:MOST_SHOWN], label="Coefficients", numeric=range(1, 7)),
            folded("All coefficients", table(COEFFICIENT_HEAD, rows, label="All", numeric=range(1, 7)))
            if len(rows) > MOST_SHOWN
            else None,
            paragraph("Coefficients are per unit of a column, as it was declared.", class_="soft"),
        ]
    )


def quality(result: Mapping[str, Any]) -> str:
    tested = [name for name in result["params"] if name != "const"]
    clear = sum(result["pvalues"][name] < 0.05 for name in tested)
    return (
        f"R-squared {result['rsquared']:.3f}. {clear} of {len(tested)} coefficients differ from zero at 5 %; their"
        " standard errors count the missing blocks and any noise."
    )


def complete(result: Mapping[str, Any]) -> int:
    return sum(int(one["count"]) for one in result["patterns"] if all(one["present"]))


def _figure(result: Mapping[str, Any]) -> Html:
    """Sorted by size. A column's unit is arbitrary, so its coefficient is multiplied by the column's spread."""
    spread = {name: math.sqrt(result["covariance"][place][place]) for place, name in enumerate(result["features"])}
    named = [
        (name, coef * spread[name], *(end * spread[name] for end in result["conf_int"][name]))
        for name, coef in result["params"].items()
        if name in spread
    ]
    named.sort(key=lambda one: -abs(one[1]))
    labels, centres, lows, highs = zip(*named, strict=True)
    return tag(
        "figure",
        tag("h4", "Effect of one standard deviation of each feature"),
        intervals(labels, centres, lows, highs, label="Coefficients with intervals"),
        tag("figcaption", f"In units of {result['response']}, with 95 % intervals; the dashed line is zero."),
    )


def details(result: Mapping[str, Any]) -> Html:
    nobs = result["nobs"]
    present = {
        party: sum(int(one["count"]) for one in result["patterns"] if one["present"][at])
        for at, party in enumerate(result["parties"])
    }
    ordered = sorted(result["patterns"], key=lambda one: -one["count"])
    patterns = [
        (
            " + ".join(party for party, here in zip(result["parties"], one["present"], strict=True) if here),
            number(one["count"]),
            share(one["count"], nobs),
        )
        for one in ordered
    ]
    head = ("records at", "records", "share")
    return section(
        "Missing blocks",
        table(
            ("party", "records used that it has", "missing"),
            [(party, number(count), share(nobs - count, nobs)) for party, count in present.items()],
            label="Missingness by party",
            numeric=(1, 2),
        ),
        table(head, patterns[:MOST_PATTERNS], label="Presence patterns", numeric=(1, 2)),
        folded(f"All {len(patterns)} patterns", table(head, patterns, label="All patterns", numeric=(1, 2)))
        if len(patterns) > MOST_PATTERNS
        else None,
        tag("h3", "What the estimates rest on"),
        listing(result["notes"]),
    )
