"""A synthetic table beside the truth of a simulation: the same regression on both, and distances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.column import Columns
from colonnade.data.simulated.example import Example, design_matrix
from colonnade.evaluation import fidelity


def compare(table: pd.DataFrame, example: Example, response: str, *, owners: Mapping[str, str]) -> dict[str, Any]:
    """For comparison.json: coefficients in truth, fitted to `table` and to the complete table; distances.

    `owners` says which party holds a column: correlations within a party and across parties differ in their noise.
    """
    complete, columns = example.truth.complete, example.truth.columns
    others = [name for name in example.responses if name != response]
    equation = example.truth.equations[response]
    fitted = fidelity.least_squares(table, columns, response, leave_out=others)
    best = fidelity.least_squares(complete, columns, response, leave_out=others)
    spread = design_matrix(complete, columns).std(ddof=0)
    rows = [
        {
            "name": name,
            "truth": float(equation.coefficients.get(name, 0.0)),
            "synthetic": float(fitted.loc[name, "coef"]),
            "synthetic_error": float(fitted.loc[name, "std err"]),
            "complete": float(best.loc[name, "coef"]),
            "complete_error": float(best.loc[name, "std err"]),
            "spread": float(spread[name]),
        }
        for name in fitted.index
        if name != "const"
    ]
    effects = np.array([[one["truth"] * one["spread"], one["synthetic"] * one["spread"]] for one in rows])
    kept = columns.select([name for name in columns if name in table.columns])
    real, synthetic = fidelity.cut(complete, kept), fidelity.cut(table, kept)
    within, across = _rank_errors(table, complete, kept, owners)
    return {
        "response": response,
        "coefficients": rows,
        "agreement": float(np.corrcoef(effects.T)[0, 1]),
        "marginal": float(np.mean(list(fidelity.marginal_distances(real, synthetic).values()))),
        "pairwise": fidelity.average_distance(real, synthetic, ways=2, tables=300, seed=0),
        "rank_correlation": float(np.nanmean([*within, *across])),
        "rank_correlation_within": float(np.nanmean(within)),
        "rank_correlation_across": float(np.nanmean(across)),
    }


def _rank_errors(
    table: pd.DataFrame, complete: pd.DataFrame, columns: Columns, owners: Mapping[str, str]
) -> tuple[list[float], list[float]]:
    """Absolute errors of the rank correlations of pairs of features, within a party and across."""
    mine, true = fidelity.rank_correlation(table, columns), fidelity.rank_correlation(complete, columns)
    error = np.abs(mine.to_numpy() - true.to_numpy())
    names = [str(name) for name in true.columns]
    owner = [owners[name.split("[")[0]] for name in names]
    found: tuple[list[float], list[float]] = ([], [])
    for i in range(len(names)):
        for j in range(i):
            if names[i].split("[")[0] != names[j].split("[")[0]:
                found[owner[i] != owner[j]].append(float(error[i, j]))
    return found
