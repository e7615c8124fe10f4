"""Which blocks and cells are missing: rates, patterns, pairs. What a method assumes about them, it says itself.

`rates` and `patterns` need the presence mask: a simulation, or parties that know it. Shown to anyone else, pattern
counts need noise (`colonnade align` and `describe` release them so).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from colonnade.data.cohort import Cohort


def rates(cohort: Cohort) -> pd.Series[float]:
    """The share of the cohort's records that each party lacks."""
    return pd.Series(1 - cohort.presence.mean(axis=0), index=list(cohort.parties), name="missing")


def patterns(cohort: Cohort) -> pd.DataFrame:
    """One row a pattern, the most frequent first: a boolean for each party, `records` and `share`."""
    patterns = cohort.patterns()
    order = np.argsort(-patterns.counts, kind="stable")
    table = pd.DataFrame(patterns.masks[order], columns=list(cohort.parties))
    table["records"] = patterns.counts[order]
    table["share"] = patterns.counts[order] / cohort.n
    return table


def jointly_present(cohort: Cohort) -> pd.DataFrame:
    """The share of records that both parties of a pair have: what a product of their columns can use."""
    held = cohort.presence.astype(np.float64)
    return pd.DataFrame(held.T @ held / cohort.n, index=list(cohort.parties), columns=list(cohort.parties))


def is_monotone(cohort: Cohort) -> bool:
    """Can the parties be ordered so that if one lacks a record, all later ones lack it too?"""
    order = np.argsort(-cohort.presence.sum(axis=0), kind="stable")
    held = cohort.patterns().masks[:, order]
    return bool(np.all(held[:, 1:] <= held[:, :-1]))


def empty_cells(table: pd.DataFrame) -> pd.Series[float]:
    """The share of empty cells of each column of one party's own block."""
    return table.isna().mean().rename("empty")
