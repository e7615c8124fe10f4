"""What an alignment says to everybody: the size of the cohort, and noisy counts of who shares records with whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.evaluation.page import Html, join, paragraph, section, table
from colonnade.formatting import noise_width, number

PATTERN_HEAD = ("records that exactly these hold", "noisy number")


def title(result: Mapping[str, Any]) -> str:
    return f"A cohort of {number(result['n'])} records at {len(result['parties'])} parties"


def pattern_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(" + ".join(one["parties"]), number(one["count"])) for one in result["patterns"]]


def answer(result: Mapping[str, Any]) -> Html:
    every = "every record that anybody has" if result["include"] == "union" else f"the records of {result['include']}"
    if not result["patterns"]:
        return paragraph(f"The cohort is {every}. Overlap counts were not asked for.")
    return join(
        [
            paragraph(f"The cohort is {every}.", class_="lead"),
            table(PATTERN_HEAD, pattern_rows(result), label="Overlap", numeric=(1,)),
            paragraph(f"Noise: {noise_width(result['noise_sd'])} (two standard deviations).", class_="soft"),
        ]
    )


def quality(result: Mapping[str, Any]) -> str:
    counted = f" Overlap counts are {noise_width(result['noise_sd'])}." if result["patterns"] else ""
    return f"Equal keys are matched exactly; keys that are spelled differently are not.{counted}"


def details(result: Mapping[str, Any]) -> Html:
    return section(
        "Who learned what",
        paragraph(
            f"{result['matcher']} compared blinded tags and knows which parties have each pseudonymous row. Every party"
            " knows the rows of its own records. Nobody learned a key that it does not hold. Exact overlap counts stay"
            " in each party's own folder."
        ),
    )
