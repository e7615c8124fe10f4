"""What principal components and classifiers say, for their reports and for the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from colonnade.evaluation.page import Html, folded, join, paragraph, section, table
from colonnade.formatting import number

MOST_SHOWN = 15
"""Loadings and coefficients that are shown at once; the others are folded."""

COMPONENT_HEAD = ("component", "variance", "mostly")
COEFFICIENT_HEAD = ("feature", "coefficient")


def _largest(names: Sequence[str], values: Sequence[float], count: int) -> list[tuple[str, float]]:
    return sorted(zip(names, values, strict=True), key=lambda one: -abs(one[1]))[:count]


# --- principal components ---------------------------------------------------------------------------------


def component_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """One row a component: its noisy variance and the features that weigh most."""
    rows = []
    for at, (variance, weights) in enumerate(zip(result["explained_variance"], result["components"], strict=True)):
        top = _largest(result["feature_names"], weights, 4)
        rows.append(
            (
                str(at + 1),
                f"{variance:.4g}",
                ", ".join(f"{name} {weight:+.2f}" for name, weight in top),
            )
        )
    return rows


def pca_title(result: Mapping[str, Any]) -> str:
    return f"{len(result['components'])} principal components of {len(result['feature_names'])} features"


def pca_answer(result: Mapping[str, Any]) -> Html:
    return join(
        [
            table(
                COMPONENT_HEAD,
                component_rows(result),
                label="Principal components",
                numeric=(1,),
            ),
            paragraph(
                "The variance is that of the noisy matrix, per record, in units of the features, which lie between -1"
                " and 1. Noise makes it larger than it is. result.json has all weights.",
                class_="soft",
            ),
        ]
    )


def pca_quality(result: Mapping[str, Any]) -> str:
    """The largest eigenvalue of a symmetric noise matrix is near 2 sd sqrt(d) (Wigner)."""
    edge = 2 * result["noise_sd"] * math.sqrt(len(result["feature_names"])) / result["n"]
    above = sum(variance > edge for variance in result["explained_variance"])
    return (
        f"Noise alone would show components of variance up to about {edge:.2g}. {above} of"
        f" {len(result['components'])} lie above."
    )


def pca_details(result: Mapping[str, Any]) -> Html:
    return section("Behind the components", paragraph(_noise(result)))


# --- classifiers ------------------------------------------------------------------------------------------


def coefficient_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The intercept, then the features by the size of their coefficient."""
    ordered = _largest(result["feature_names"], result["coef"], len(result["coef"]))
    return [
        ("(intercept)", f"{result['intercept']:+.4f}"),
        *((name, f"{value:+.4f}") for name, value in ordered),
    ]


def classifier_title(result: Mapping[str, Any]) -> str:
    return f"{result['response']} = {result['classes'][1]}, explained by {len(result['feature_names'])} features"


def classifier_answer(result: Mapping[str, Any]) -> Html:
    rows = coefficient_rows(result)
    return join(
        [
            table(
                COEFFICIENT_HEAD,
                rows[:MOST_SHOWN],
                label="Largest coefficients",
                numeric=(1,),
            ),
            folded(
                "All coefficients",
                table(COEFFICIENT_HEAD, rows, label="Coefficients", numeric=(1,)),
            )
            if len(rows) > MOST_SHOWN
            else None,
            paragraph(
                f"Log-odds of {result['response']} = {result['classes'][1]}: the intercept plus coefficients times"
                " features, which lie between -1 and 1. They have no standard errors.",
                class_="soft",
            ),
        ]
    )


def classifier_quality(result: Mapping[str, Any]) -> str:
    return (
        f"{_noise(result)} Accuracy was not measured: that would be one more release. Try the coefficients on records"
        " that you may see."
    )


def classifier_details(result: Mapping[str, Any]) -> Html:
    how = "one noisy Gram matrix" if result["solver"] == "moments" else f"{result['rounds']} noisy gradients"
    return section("Behind the coefficients", paragraph(f"Fitted from {how}. {_noise(result)}"))


def _noise(result: Mapping[str, Any]) -> str:
    return (
        f"Every sum over the {number(result['n'])} records carries noise with standard deviation"
        f" {result['noise_sd']:.4g}."
    )
