"""Which blocks are missing: rates and patterns. What a method assumes about them, it says itself.

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
