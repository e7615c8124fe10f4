"""A synthetic table beside real records: the truth of a simulation, one party's own block, or several parties' data.

The first needs a simulation. The second is exact, so its figures are as sensitive as the block: they stay where the
block may be seen, and nothing is sent or spent. The third is a release with a cost, which has to be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.column import Columns
from colonnade.data.simulated.example import Example, design_matrix
from colonnade.errors import BadArguments, SchemaError, UnknownColumn
from colonnade.evaluation import fidelity
from colonnade.evaluation.efficacy import train_and_test
from colonnade.statistics.tables import Tables, TablesResult

# --- the truth of a simulation --------------------------------------------------------------------------------


def compare_with_truth(
    table: pd.DataFrame, example: Example, response: str, *, owners: Mapping[str, str]
) -> dict[str, Any]:
    """For comparison.json: coefficients in truth, fitted to `table` and to the complete table; distances.

    `owners` says which party holds a column: correlations within a party and across parties differ in their noise.
    """
    complete, columns = example.truth.complete, example.truth.columns
    others = [name for name in example.responses if name != response]
    equation = example.truth.equations[response]
    fitted = fidelity.least_squares(table, columns, response, leave_out=others)
    best = fidelity.least_squares(complete, columns, response, leave_out=others)
    scale = design_matrix(complete, columns).std(ddof=0)
    coefficients = [
        {
            "name": name,
            "truth": float(equation.coefficients.get(name, 0.0)),
            "synthetic": float(fitted.loc[name, "coef"]),
            "synthetic_error": float(fitted.loc[name, "std err"]),
            "complete": float(best.loc[name, "coef"]),
            "complete_error": float(best.loc[name, "std err"]),
            "scale": float(scale[name]),
        }
        for name in fitted.index
        if name != "const"
    ]
    effects = np.array([[row["truth"] * row["scale"], row["synthetic"] * row["scale"]] for row in coefficients])
    common = columns.select([name for name in columns if name in table.columns])
    real, synthetic = fidelity.cut(complete, common), fidelity.cut(table, common)
    pairs = fidelity.correlation_differences(complete, table, common)
    first, second = (pairs[place].str.split("[").str[0].map(owners) for place in ("one", "two"))
    errors = pairs["difference"]
    return {
        "response": response,
        "coefficients": coefficients,
        "agreement": float(np.corrcoef(effects.T)[0, 1]),
        "marginal": float(np.mean(list(fidelity.marginal_distances(real, synthetic).values()))),
        "pairwise": fidelity.average_distance(real, synthetic, ways=2, tables=300, seed=0),
        "rank_correlation": float(errors.mean()),
        "rank_correlation_within": float(errors[first == second].mean()),
        "rank_correlation_across": float(errors[first != second].mean()),
    }


# --- one party's own block ------------------------------------------------------------------------------------

WAYS = (1, 2, 3)
MOST_TABLES = 200
FEWEST_RECORDS = 100


def compare_locally(block: pd.DataFrame, synthetic: pd.DataFrame, columns: Columns) -> dict[str, Any]:
    """Distances, correlations, coverage and efficacy of the columns that both tables have, as plain values.

    comparison = compare_locally(credit, table.sample(10_000), columns)
    comparison["average"]["2"]      # mean total variation distance of pairs
    """
    names = [name for name in columns if name in block.columns and name in synthetic.columns]
    if not names:
        raise SchemaError("the block and the synthetic table have no declared column in common; check the two files.")
    if len(block) < 2 or len(synthetic) < 2:
        raise BadArguments("a comparison needs at least two rows in both tables.")
    common = columns.select(names)
    real, drawn = (fidelity.cut(table, common) for table in (block, synthetic))
    marginals, coverage = fidelity.marginal_distances(real, drawn), fidelity.coverage(real, drawn)
    empty = block[names].isna().mean()
    return {
        "records": len(block),
        "rows": len(synthetic),
        "columns": [
            {"name": name, "distance": marginals[name], "coverage": coverage[name], "empty": float(empty[name])}
            for name in names
        ],
        "average": {
            str(ways): fidelity.average_distance(real, drawn, ways=ways, tables=MOST_TABLES, seed=0)
            for ways in WAYS
            if ways <= len(names)
        },
        "correlations": _correlations(block[names], synthetic[names], common),
        "efficacy": _efficacies(block[names], synthetic[names], common),
    }


def _correlations(block: pd.DataFrame, synthetic: pd.DataFrame, columns: Columns) -> list[dict[str, Any]]:
    """The largest differences of rank correlations first; those that one of the tables has not are left out."""
    if len(block.dropna()) < 3:
        return []
    pairs = fidelity.correlation_differences(block, synthetic, columns).dropna()
    return [
        {"columns": [first, second], "block": float(a), "synthetic": float(b), "difference": float(gap)}
        for first, second, a, b, gap in pairs.sort_values("difference", ascending=False).itertuples(index=False)
    ]


def _efficacies(block: pd.DataFrame, synthetic: pd.DataFrame, columns: Columns) -> list[dict[str, Any]]:
    """Each column but categorical ones from the others: three quarters of the block train, a quarter tests."""
    complete = block.dropna()
    if len(complete) < FEWEST_RECORDS or len(columns) < 2:
        return []
    order = np.random.default_rng(0).permutation(len(complete))
    quarter = len(complete) - 3 * len(complete) // 4
    train, test = complete.iloc[order[:-quarter]], complete.iloc[order[-quarter:]]
    rows = []
    for name in columns:
        if columns[name].kind == "categorical":
            continue
        try:
            efficacy = train_and_test(synthetic, train, test, columns, name)
        except BadArguments:  # a column that does not vary here has nothing to predict
            continue
        rows.append({"response": name, "score": efficacy.score, "synthetic": efficacy.synthetic, "real": efficacy.real})
    return rows


# --- several parties' data: a release -------------------------------------------------------------------------
#
# The parties count contingency tables together, with noise, on secret shares. The distance to the synthetic table is
# then computed from what was released. Nothing in a report does this by itself.

JOINT_BINS = 5


def joint_release(tables: Sequence[Sequence[str]], *, epsilon: float, delta: float = 1e-6) -> Tables:
    """The release behind a joint comparison; `federation.plan` of it says what it costs."""
    return Tables(tables=tuple(map(tuple, tables)), bins=JOINT_BINS, epsilon=epsilon, delta=delta)


def joint_distances(released: TablesResult, synthetic: pd.DataFrame, columns: Columns) -> list[dict[str, Any]]:
    """How far the synthetic table is from each table that `joint_release` gave; sums below one record have no distance
    (None).

    `distance` is the total variation distance to the noisy counts; `noise` is what noise alone would show on average
    if the two agreed. A distance near `noise` says that no difference can be seen at this cost.
    """
    absent = sorted({name for names in released.counts for name in names} - set(synthetic.columns))
    if absent:
        raise UnknownColumn(f"the synthetic table has no column {', '.join(absent)}; compare columns that it has.")
    rows = []
    for names, counts in released.counts.items():
        cells = fidelity.cut(synthetic[list(names)].dropna(), columns.select(names), bins=JOINT_BINS)
        # In the released order and cells: an empty cell is no cell of a contingency table.
        sizes = [cells.sizes[cells.names.index(name)] for name in names]
        within = tuple(slice(length) for length in counts.shape)
        drawn = cells.counts(names).reshape(sizes)[within].astype(np.float64)
        total, sd = float(counts.sum()), released.noise_sd[names]
        estimable = total >= 1 and drawn.sum() > 0
        gap = 0.5 * np.abs(counts / total - drawn / drawn.sum()).sum() if estimable else math.nan
        noise = 0.5 * counts.size * sd * math.sqrt(2 / math.pi) / total if estimable else math.nan
        rows.append(
            {
                "columns": list(names),
                "distance": float(min(gap, 1.0)) if estimable else None,
                "noise": float(min(noise, 1.0)) if estimable else None,
                "records": total,
            }
        )
    return rows
