"""What a sparse model says: which columns it chose, how the path went, and what was shown to whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colonnade.evaluation.charts import line
from colonnade.evaluation.page import Html, folded, join, listing, paragraph, section, table, tag
from colonnade.formatting import number

COEFFICIENT_HEAD = ("feature", "coefficient")
PATH_HEAD = ("lambda", "columns chosen", "explained", "score")
SCORES = {"bic": "BIC", "cv": "cross-validated loss"}


def title(result: Mapping[str, Any]) -> str:
    return f"{len(result['support'])} of {len(result['params']) - 1} features explain {result['response']}"


def coefficient_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The constant, then what was chosen."""
    kept = ["const", *result["support"]]
    return [(name, f"{result['params'][name]:.4g}") for name in kept if name in result["params"]]


def answer(result: Mapping[str, Any]) -> Html:
    return join(
        [
            paragraph(
                f"{result['penalty'].upper() if result['penalty'] != 'lasso' else 'lasso'} penalty, {result['family']}"
                f" response, from {number(result['nobs'])} records; lambda {result['lambda']:.4g} by"
                f" {SCORES[result['criterion']]}.",
                class_="lead",
            ),
            table(COEFFICIENT_HEAD, coefficient_rows(result), label="Chosen coefficients", numeric=(1,)),
            paragraph(
                "Per unit of a column, as it was declared. They are shrunk or chosen from the data, so ordinary"
                " standard errors do not apply.",
                class_="soft",
            ),
        ]
    )


def quality(result: Mapping[str, Any]) -> str:
    at = min(range(len(result["lambdas"])), key=lambda place: abs(result["lambdas"][place] - result["lambda"]))
    return (
        f"The chosen columns explain {100 * result['explained'][at]:.1f} % of the deviance, in the same records that"
        " chose them."
    )


def details(result: Mapping[str, Any]) -> Html:
    scores = result["scores"]
    rows = [
        (f"{lam:.4g}", str(df), f"{100 * part:.1f} %", "-" if score is None else f"{score:.6g}")
        for lam, df, part, score in zip(result["lambdas"], result["df"], result["explained"], scores, strict=True)
    ]
    return section(
        "The path",
        tag(
            "div",
            tag(
                "figure",
                tag("h4", "Columns chosen along the path"),
                line(
                    result["df"],
                    mark=min(range(len(rows)), key=lambda at: abs(result["lambdas"][at] - result["lambda"])),
                    label="Number of columns for each lambda, from the largest to the smallest",
                ),
                tag("figcaption", "From the largest lambda (left) to the smallest; the dashed line is the chosen one."),
            ),
            class_="charts",
        ),
        folded("Every lambda", table(PATH_HEAD, rows, label="Path", numeric=(0, 1, 2, 3))),
        paragraph(
            f"Largest violation of the optimality conditions at the chosen lambda: {result['residual']:.2g} of the"
            " largest lambda."
        ),
        listing(result["notes"]) if result["notes"] else None,
    )
