"""Which blocks and cells are missing, and what each method does with a record that lacks a block.

`rates` and `patterns` need the presence mask: a simulation, or parties that know it. Shown to anybody else, pattern
counts need noise (`colonnade align` and `describe` release them so).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.cohort import Cohort


def rates(cohort: Cohort) -> pd.Series[float]:
    """The share of the cohort's records that each party lacks."""
    return pd.Series(1 - cohort.presence.mean(axis=0), index=list(cohort.parties), name="missing")


def patterns(cohort: Cohort) -> pd.DataFrame:
    """One row a pattern, the most frequent first: a boolean for each party, `records` and `share`."""
    found = cohort.patterns()
    order = np.argsort(-found.counts, kind="stable")
    made = pd.DataFrame(found.masks[order], columns=list(cohort.parties))
    made["records"] = found.counts[order]
    made["share"] = found.counts[order] / cohort.n
    return made


def jointly_present(cohort: Cohort) -> pd.DataFrame:
    """The share of records that both parties of a pair have: what a product of their columns can use."""
    held = cohort.presence.astype(np.float64)
    return pd.DataFrame(held.T @ held / cohort.n, index=list(cohort.parties), columns=list(cohort.parties))


def is_monotone(cohort: Cohort) -> bool:
    """Can the parties be ordered so that whoever lacks a record, all later ones lack it too?"""
    order = np.argsort(-cohort.presence.sum(axis=0), kind="stable")
    held = cohort.patterns().masks[:, order]
    return bool(np.all(held[:, 1:] <= held[:, :-1]))


def empty_cells(table: pd.DataFrame) -> pd.Series[float]:
    """The share of empty cells of each column of one party's own block."""
    return table.isna().mean().rename("empty")


def treatment(method: str, options: Mapping[str, Any]) -> str | None:
    """What a method did with records that lack a block, in one sentence; None if it has nothing to say."""
    known = options.get("presence") == "known"
    private = options.get("epsilon") is not None
    if method == "describe":
        return "Each party counts the records that it has; a record that it lacks is in none of its counts."
    if method == "copula-sqm":
        if known:
            return (
                "Records are grouped by which parties have them, and EM fits all groups together: right if records are"
                " missing at random."
            )
        return (
            "A pair of columns is measured on the records that have both: right if records are missing completely at"
            " random."
        )
    if method in ("vcds", "evcds", "ievcds"):
        return "Ranks are compared among the records that have the columns: right if missing completely at random."
    if method == "vertimrf":
        return (
            "A table of columns counts the records that all its parties have: right if records are missing completely"
            " at random."
        )
    if method == "vfem":
        return _vfem(str(options.get("missing", "em")), private)
    if method == "sparse-glm":
        if options.get("family", "gaussian") == "gaussian":
            return "Moments of all records by EM: right if records are missing at random."
        return "Rounds use the records that every party has: right if records are missing completely at random."
    if method == "fedpsg":
        return (
            "The records that a party lacks are filled in from what the other parties know about them, as in the"
            " records that it has: right if records are missing at random given the other parties' columns. One value"
            " is written for each; intervals that take it for real are too short."
        )
    if method == "contingency":
        return "A table counts the records that all its parties have."
    if method == "polynomial":
        return "A block that a record lacks counts as zeros."
    if method == "moments" and known:
        return "Each pattern of presence has a matrix of its own, of the columns that its records have."
    if method in ("pca", "classify", "moments"):
        if options.get("presence", "ignore") == "ignore":
            return "A block that a record lacks counts as zeros."
        return "A product of two columns uses the records that have both."
    return None


def _vfem(missing: str, private: bool) -> str:
    if missing == "complete-case":
        return "Only records that every party has are used: right if records are missing completely at random."
    if missing in ("mean", "single"):
        return f"Missing blocks are filled in once ({missing}): a baseline; intervals are too short."
    if private:
        return "Every record is used: right if what is missing depends on the response holder's columns only."
    return "Every record is used, by EM: right if records are missing at random."
