"""What a description says, for its report and for the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from colonnade.evaluation.charts import bar_list, histogram, quantile_box
from colonnade.evaluation.page import Html, folded, join, paragraph, section, table, tag
from colonnade.formatting import noise_width, number, share, with_noise

MOST_ROWS = 500
"""A column's table in the report shows no more cells than this."""

PARTY_HEAD = ("party", "records", "share of cohort", "columns")
COLUMN_HEAD = ("column", "party", "kind", "in short")


def party_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """One row a party: its records with noise, their share of the cohort, its described columns."""
    held = [one["party"] for one in result["marginals"].values()]
    return [
        (party, with_noise(count, result["presence_sd"]), share(count, result["n"]), str(held.count(party)))
        for party, count in result["presence"].items()
    ]


def column_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """One row a column: who has it, its kind, and what is typical of it."""
    return [(name, one["party"], one["kind"], in_short(result, one)) for name, one in result["marginals"].items()]


def in_short(result: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    """The middle of a numeric column, or the most frequent category; silent where the noise drowns both."""
    if _drowned(result, one):
        return "too few records for this noise"
    if "quantiles" in one:
        at = one["quantiles"]
        return f"median {at['0.5']:.4g}; 90 % between {at['0.05']:.4g} and {at['0.95']:.4g}"
    counts = dict(zip(one["labels"], one["counts"], strict=True))
    if len(counts) > 1:
        counts.pop("missing", None)
    top = max(counts, key=counts.__getitem__)
    return f"most often {top} ({share(counts[top], sum(max(count, 0.0) for count in counts.values()))})"


def _drowned(result: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    """Is the number of counted records within two standard deviations of its own noise?"""
    if "counts" in one:
        return bool(sum(one["counts"]) < 2 * one["sd"] * math.sqrt(len(one["counts"])))
    return bool(result["presence"][one["party"]] < 2 * one["sd"])


# --- the report -------------------------------------------------------------------------------------------


def title(result: Mapping[str, Any]) -> str:
    parties = len(result["presence"])
    columns = len(result["marginals"])
    return (
        f"{number(result['n'])} records, described by {parties} part{'y' if parties == 1 else 'ies'}"
        f" in {columns} column{'' if columns == 1 else 's'}"
    )


def answer(result: Mapping[str, Any]) -> Html:
    """Which parties, and how many records each has."""
    presence, sd = result["presence"], result["presence_sd"]
    chart = bar_list(
        list(presence),
        list(presence.values()),
        label="Bar chart: records of each party in the cohort",
        noise=sd,
        whole=result["n"],
    )
    return join(
        [
            table(PARTY_HEAD, party_rows(result), label="Records of each party", numeric=(1, 2, 3)),
            chart,
            paragraph(
                f"The cohort has {number(result['n'])} records, which is public. Each party's count carries noise:"
                f" {noise_width(sd)} is two standard deviations.",
                class_="soft",
            ),
        ]
    )


def quality(result: Mapping[str, Any]) -> str:
    return (
        f"A party's records are {noise_width(result['presence_sd'])} in 95 of 100 cases. Each column's figure says its"
        " own noise."
    )


def details(result: Mapping[str, Any]) -> Html:
    """The marginal of each column, grouped by party."""
    groups = []
    for party in result["presence"]:
        mine = {name: one for name, one in result["marginals"].items() if one["party"] == party}
        if mine:
            figures = [_figure(result, name, one) for name, one in mine.items()]
            groups.append(section(party, tag("div", *figures, class_="charts"), level=3))
    return section(
        "The columns",
        paragraph(
            "Every count carries noise. A bar that does not reach the dashed line (two standard deviations of the"
            " noise) may be noise alone. Counts below zero are drawn as zero; the tables show them as they are."
        ),
        *groups,
    )


def _figure(result: Mapping[str, Any], name: str, one: Mapping[str, Any]) -> Html:
    empty = one["counts"][-1] if len(one.get("counts", ())) == len(one.get("edges", ())) > 0 else one.get("missing")
    cells = "" if empty is None else f"; {number(empty)} cells empty"
    caption = f"{one['kind']}; {in_short(result, one)}{cells}. Noise: standard deviation {one['sd']:,.1f} a count."
    return tag(
        "figure",
        tag("h4", name),
        _chart(name, one),
        tag("figcaption", caption),
        _numbers(name, one),
    )


def _chart(name: str, one: Mapping[str, Any]) -> Html:
    if "counts" not in one:
        return quantile_box(one["quantiles"], label=f"Quantiles of {name}; the numbers are in the table below")
    labels, counts, edges = one["labels"], one["counts"], one.get("edges")
    told = f"Bar chart of {name}; the numbers are in the table below"
    if edges is not None and len(edges) > 8:
        return histogram(labels, counts, edges, label=told, noise=one["sd"])
    empty = labels[-1] == "missing" and len(labels) > 1
    return bar_list(labels, counts, label=told, noise=one["sd"], empty_last=empty)


def _numbers(name: str, one: Mapping[str, Any]) -> Html:
    if "counts" not in one:
        rows = [(f"{100 * float(at):g} %", f"{value:.6g}") for at, value in one["quantiles"].items()]
        if "missing" in one:
            rows.append(("missing", number(one["missing"])))
        return folded("Numbers", table(("quantile", "value"), rows, label=f"Quantiles of {name}", numeric=(1,)))
    cells = list(zip(one["labels"], one["counts"], strict=True))
    rest = len(cells) - MOST_ROWS
    return folded(
        "Numbers",
        table(
            ("cell", f"noisy count {noise_width(one['sd'])}"),
            [(label, number(count)) for label, count in cells[:MOST_ROWS]],
            label=f"Counts of {name}",
            numeric=(1,),
        ),
        paragraph(f"The other {rest:,} cells are in result.json.") if rest > 0 else None,
    )
