"""A synthetic table beside one party's own block, at that party's home.

The figures are exact, so they are as sensitive as the block: they stay with whoever may see it. Nothing is sent and
nothing is spent. A comparison across parties would be a release with a cost; `joint_comparison` is that release.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.column import Columns
from colonnade.errors import BadArguments, SchemaError
from colonnade.evaluation import fidelity
from colonnade.evaluation.efficacy import train_and_test

WAYS = (1, 2, 3)
MOST_TABLES = 200
FEWEST_RECORDS = 100


def compare_at_home(
    block: pd.DataFrame,
    synthetic: pd.DataFrame,
    columns: Columns,
    *,
    bins: int = fidelity.BINS,
    seed: int = 0,
) -> dict[str, Any]:
    """Distances, correlations, coverage and efficacy of the columns that both tables have, as plain values.

    found = compare_at_home(credit, table.sample(10_000), columns)
    found["average"]["2"]      # mean total variation distance of pairs
    """
    names = [name for name in columns if name in block.columns and name in synthetic.columns]
    if not names:
        raise SchemaError("the block and the synthetic table have no declared column in common; check the two files.")
    if len(block) < 2 or len(synthetic) < 2:
        raise BadArguments("a comparison needs at least two rows in both tables.")
    kept = columns.select(names)
    one, other = fidelity.cut(block, kept, bins=bins), fidelity.cut(synthetic, kept, bins=bins)
    marginals, seen = fidelity.marginal_distances(one, other), fidelity.coverage(one, other)
    empty = block[names].isna().mean()
    pairs = _correlations(block[names], synthetic[names], kept)
    return {
        "records": len(block),
        "rows": len(synthetic),
        "columns": [
            {"name": name, "distance": marginals[name], "coverage": seen[name], "empty": float(empty[name])}
            for name in names
        ],
        "average": {
            str(ways): fidelity.average_distance(one, other, ways=ways, tables=MOST_TABLES, seed=seed)
            for ways in WAYS
            if ways <= len(names)
        },
        "correlations": pairs,
        "efficacy": _efficacies(block[names], synthetic[names], kept, seed),
    }


def _correlations(block: pd.DataFrame, synthetic: pd.DataFrame, columns: Columns) -> list[dict[str, Any]]:
    """The largest differences of rank correlations first; those that one of the tables has not are left out."""
    if len(block.dropna()) < 3:
        return []
    found = fidelity.correlation_differences(block, synthetic, columns).dropna()
    ordered = found.sort_values("difference", ascending=False)
    return [
        {"one": one, "two": two, "block": float(a), "synthetic": float(b), "difference": float(gap)}
        for one, two, a, b, gap in ordered.itertuples(index=False)
    ]


def _efficacies(block: pd.DataFrame, synthetic: pd.DataFrame, columns: Columns, seed: int) -> list[dict[str, Any]]:
    """Each column but categorical ones from the others: three quarters of the block train, a quarter tests."""
    whole = block.dropna()
    if len(whole) < FEWEST_RECORDS or len(columns) < 2:
        return []
    order = np.random.default_rng(seed).permutation(len(whole))
    cut = 3 * len(whole) // 4
    train, test = whole.iloc[order[:cut]], whole.iloc[order[cut:]]
    rows = []
    for name in columns:
        if columns[name].kind == "categorical":
            continue
        try:
            found = train_and_test(synthetic, train, test, columns, name)
        except BadArguments:  # a column that does not vary here has nothing to predict
            continue
        rows.append({"response": name, "score": found.score, "synthetic": found.synthetic, "real": found.real})
    return rows
