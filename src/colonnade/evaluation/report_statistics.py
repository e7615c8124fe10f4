"""What the building blocks say for themselves: moments, contingency tables, sums of polynomials, coverage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from colonnade.evaluation.charts import bars
from colonnade.evaluation.page import Html, folded, join, paragraph, section, table, tag
from colonnade.formatting import noise_width, number, share, with_noise

MOST_ROWS = 500
"""A table in the report shows no more rows than this; result.json has all."""

FEATURE_HEAD = ("feature", "party", "records", "mean", "standard deviation")
PATTERN_HEAD = ("parties with the record", "records")
OUTPUT_HEAD = ("sum over records of", "value", "noise")
COVERAGE_HEAD = ("", "blocks", "share of all possible")


def _drowned(count: float, sd: float) -> bool:
    """Is a noisy count within two standard deviations of its own noise?"""
    return count <= 2 * sd


# --- moments ----------------------------------------------------------------------------------------------


def moments_title(result: Mapping[str, Any]) -> str:
    features, patterns = len(result["features"]), len(result["patterns"])
    by = f", by {patterns} patterns of presence" if patterns > 1 else ""
    return f"Counts, sums and products of {features} feature{'' if features == 1 else 's'}{by}"


def feature_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """One row a feature, from the records that have it, in its column's own units.

    The mean S / N of noisy sums is known to sd sqrt(1 + (S / N)^2) / N, to first order.
    """
    rows = []
    for one in result["features"]:
        count, sd = one["count"], result["noise_sd"] * math.sqrt(one["patterns"])
        if count is None:
            rows.append((one["name"], one["party"], "not computed", "-", "-"))
        elif _drowned(count, sd):
            rows.append((one["name"], one["party"], with_noise(count, sd), "too few for this noise", "-"))
        else:
            mean = one["sum"] / count
            spread = math.sqrt(max(one["square"] / count - mean**2, 0.0))
            error = 2 * sd * math.sqrt(1 + mean**2) / count
            shown = f"{one['centre'] + one['half'] * mean:.4g}" + (f" ± {one['half'] * error:.2g}" if sd else "")
            rows.append((one["name"], one["party"], with_noise(count, sd), shown, f"{one['half'] * spread:.4g}"))
    return rows


def pattern_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """One row a pattern; only where presence is known does a pattern have a count of its own."""
    counts = result["counts"] or [None] * len(result["patterns"])
    return [
        (
            ", ".join(party for party, has in zip(result["parties"], held, strict=True) if has) or "nobody",
            "not computed" if count is None else with_noise(count, result["noise_sd"]),
        )
        for held, count in zip(result["patterns"], counts, strict=True)
    ]


def moments_answer(result: Mapping[str, Any]) -> Html:
    zeros = (
        " An absent block counts as the middle of its columns' ranges, because presence was ignored."
        if result["presence"] == "ignore"
        else ""
    )
    patterns = table(PATTERN_HEAD, pattern_rows(result), label="Records of each pattern", numeric=(1,))
    return join(
        [
            table(FEATURE_HEAD, feature_rows(result), label="Means of the features", numeric=(2, 3, 4)),
            paragraph(
                "± is two standard deviations of the noise, without sampling error. Means are in the column's own"
                f" units, and in codes from 0 for columns with categories.{zeros}",
                class_="soft",
            ),
            section("Patterns of presence", patterns) if result["presence"] == "known" else None,
        ]
    )


def moments_quality(result: Mapping[str, Any]) -> str:
    if not result["noise_sd"]:
        return f"Exact sums over {number(result['n'])} records: no noise was added."
    return (
        f"Every entry of a matrix is a sum over at most {number(result['n'])} records and carries noise with standard"
        f" deviation {result['noise_sd']:.3g}; a feature adds at most 1 for each record."
    )


def moments_details(result: Mapping[str, Any]) -> Html:
    entries = result["entries"][-1]
    kept = result["grams"]
    if isinstance(kept, str):
        return section("The matrices", paragraph(f"They have too many entries to show: {kept} has them."))
    whole = result["patterns"][-1]
    named = ", ".join(party for party, has in zip(result["parties"], whole, strict=True) if has)
    rows = [
        (name, *(f"{value:,.1f}" for value in line))
        for name, line in zip(entries[:40], np.asarray(kept[-1])[:40, :40].tolist(), strict=True)
    ]
    shown = table(("", *entries[:40]), rows, label="Gram matrix", numeric=range(1, len(entries) + 1))
    which = f" of the records at {named}" if result["presence"] == "known" else ""
    return section(
        "The matrices",
        paragraph(
            f"Sums over records of the product of two features, each between -1 and 1{which}. result.json has all"
            " patterns and entries."
        ),
        folded("Matrix", shown),
    )


# --- contingency tables -----------------------------------------------------------------------------------


def tables_title(result: Mapping[str, Any]) -> str:
    many = len(result["tables"])
    return f"{many} contingency table{'' if many == 1 else 's'} of {number(result['n'])} records"


def table_name(one: Mapping[str, Any]) -> str:
    return " x ".join(one["columns"])


def cells(result: Mapping[str, Any], one: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Heading and rows of one table: the last of two or more columns lies across."""
    names, counts = one["columns"], np.asarray(one["counts"])
    labels = [result["labels"][name] for name in names]
    if len(names) == 1:
        return [names[0], "records"], [
            (label, number(value)) for label, value in zip(labels[0], counts.tolist(), strict=True)
        ]
    rows = [
        (" / ".join(down), *(number(value) for value in line))
        for down, line in zip(
            itertools.product(*labels[:-1]), counts.reshape(-1, counts.shape[-1]).tolist(), strict=True
        )
    ]
    return [f"{' / '.join(names[:-1])}, by {names[-1]}", *labels[-1]], rows


def tables_answer(result: Mapping[str, Any]) -> Html:
    return tag("div", *(_figure(result, one) for one in result["tables"]), class_="charts")


def _figure(result: Mapping[str, Any], one: Mapping[str, Any]) -> Html:
    head, rows = cells(result, one)
    name, sd, counts = table_name(one), one["noise_sd"], np.asarray(one["counts"])
    chart = None
    if counts.ndim == 1:
        told = f"Bar chart of {name}; the numbers are in the table below"
        chart = bars([row[0] for row in rows], counts.tolist(), label=told, noise=sd)
    return tag(
        "figure",
        tag("h4", name),
        chart,
        table(head, rows[:MOST_ROWS], label=f"Counts of {name}", numeric=range(1, len(head))),
        paragraph(f"The other {len(rows) - MOST_ROWS:,} rows are in result.json.") if len(rows) > MOST_ROWS else None,
        tag(
            "figcaption", f"{noise_width(sd)} is two standard deviations of a cell's noise." if sd else "Exact counts."
        ),
    )


def tables_quality(result: Mapping[str, Any]) -> str:
    """Which cells say more than noise."""
    sds = [one["noise_sd"] for one in result["tables"]]
    values = [np.asarray(one["counts"]) for one in result["tables"]]
    clear = sum(int((each > 2 * sd).sum()) for each, sd in zip(values, sds, strict=True))
    every = sum(each.size for each in values)
    if not any(sds):
        return "Exact counts: no noise was added."
    return (
        f"A cell is {noise_width(max(sds))} in 95 of 100 cases. {clear:,} of {every:,} cells are larger than that; the"
        " others may be noise alone."
    )


def tables_details(result: Mapping[str, Any]) -> Html:
    return section(
        "How to read the tables",
        paragraph(
            "A cell counts the records that are in it and that every party of the table has. Each cell has noise of its"
            " own: tables that share columns do not add up to the same totals, and a count may be below zero."
        ),
    )


# --- sums of polynomials ----------------------------------------------------------------------------------


def formula(output: Sequence[Any]) -> str:
    """One polynomial as people write it: 0.5 roa^2 - capital roa."""
    text = ""
    for coefficient, exponents in output:
        size = abs(coefficient)
        powers = [name if power == 1 else f"{name}^{power}" for name, power in exponents.items()]
        factors = " ".join([*([f"{size:g}"] if size != 1 or not powers else []), *powers])
        sign = "-" if coefficient < 0 else "+"
        text += f" {sign} {factors}" if text else f"-{factors}" if coefficient < 0 else factors
    return text or "0"


def output_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    noise = f"± {2 * result['noise_sd']:.4g}" if result["noise_sd"] else "none"
    return [
        (formula(output), f"{value:,.4f}", noise)
        for output, value in zip(result["polynomial"], result["values"], strict=True)
    ]


def polynomial_title(result: Mapping[str, Any]) -> str:
    many = len(result["values"])
    return f"{many} sum{'' if many == 1 else 's'} over {number(result['n'])} records"


def polynomial_answer(result: Mapping[str, Any]) -> Html:
    rows = output_rows(result)
    return join(
        [
            table(OUTPUT_HEAD, rows[:MOST_ROWS], label="Sums over records", numeric=(1, 2)),
            paragraph(f"The other {len(rows) - MOST_ROWS:,} are in result.json.") if len(rows) > MOST_ROWS else None,
        ]
    )


def polynomial_quality(result: Mapping[str, Any]) -> str:
    if not result["noise_sd"]:
        return "Exact sums: no noise was added."
    clear = sum(abs(value) > 2 * result["noise_sd"] for value in result["values"])
    return (
        f"A sum is ± {2 * result['noise_sd']:.3g} in 95 of 100 cases. {clear:,} of {len(result['values']):,} are"
        " larger than that; the others may be noise alone."
    )


def polynomial_details(result: Mapping[str, Any]) -> Html:
    return section(
        "How to read the sums",
        paragraph(
            "Features lie between -1 and 1: a column's declared range is mapped to that, a category is 0 or 1, and a"
            " block that a record lacks is zeros. Values were rounded at random to a fine grid, which has no bias."
        ),
    )


# --- coverage ---------------------------------------------------------------------------------------------


def coverage_title(result: Mapping[str, Any]) -> str:
    whole = result["n"] * result["parties"]
    return f"{share(result['total'], whole)} of all blocks are there"


def coverage_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    whole = result["n"] * result["parties"]
    sd = result["noise_sd"]
    return [
        ("there", with_noise(result["total"], sd), share(result["total"], whole)),
        ("missing", with_noise(whole - result["total"], sd), share(whole - result["total"], whole)),
        ("possible", number(whole), "100.0 %"),
    ]


def coverage_answer(result: Mapping[str, Any]) -> Html:
    return join(
        [
            table(COVERAGE_HEAD, coverage_rows(result), label="Blocks of records", numeric=(1, 2)),
            paragraph(
                f"A block is one party's columns of one record: {number(result['n'])} records times"
                f" {result['parties']} parties. No party's own number was shown.",
                class_="soft",
            ),
        ]
    )


def coverage_quality(result: Mapping[str, Any]) -> str:
    if not result["noise_sd"]:
        return "An exact count: no noise was added."
    wide = 200 * result["noise_sd"] / (result["n"] * result["parties"])
    return f"The share is ± {wide:.2g} percentage points in 95 of 100 cases."


def coverage_details(result: Mapping[str, Any]) -> Html:
    return section(
        "What it is good for",
        paragraph("It says how complete the cohort is, before anybody decides to work on it; not who lacks what."),
    )
