"""What the studies of completion share: the papers' tables split in two, floors and oracles, and one way to score.

Only B lacks records. RMSE is on the layout's scale (numbers by their declared range, indicators of categories), over
the entries of the records that B lacks, and is of expected values where a method has them. The paper's scale is
unknown, so its figures are no bar.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from benchmarks.common import load
from colonnade.completion.layout import Layout
from colonnade.completion.method import Complete, CompletionMethod
from colonnade.completion.quality import marginal_distance, pairwise_distance, rmse
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.papers.fedpsg.method import GANS, FedPSG

ALLOW = (
    "presence",
    "split-training",
    "correlated-columns",
    "completion-quality",
    "linear-predictors",
    "exact-moments",
    "exact-marginals",
    "labels",
)
SPLITS = {
    "bank": ("bank_marketing", "y", 8),
    "credit": ("german_credit", "credit_risk", 9),
    "letter": ("letter", "letter", 8),
    "news": ("online_news_sample", "shares", 29),
}
"""File, label, and columns at A, in column order; B has the rest, and A the label where a study needs it. Of News there
is a fifth of the records; its label is whether an article was shared more often than the median, as the paper's classes
are not to be had."""

Matrix = NDArray[Any]


def declared(frame: pd.DataFrame) -> Columns:
    """Bounds and categories as they occur: these are studies on public data."""
    made = []
    for name in frame.columns:
        values = frame[name]
        if values.dtype.kind in "iuf" and values.nunique() > 2:
            whole = values.dtype.kind in "iu" and values.min() >= 0
            made.append(
                Column(name=name, kind="count" if whole else "continuous", lower=values.min(), upper=values.max())
            )
        else:
            found = tuple(sorted({str(one) for one in values}))
            made.append(Column(name=name, kind="binary" if len(found) == 2 else "categorical", categories=found))
    return Columns(made)


@dataclass(frozen=True)
class Case:
    """One table with records missing at B."""

    name: str
    missing: float
    seed: int = 0

    @cached_property
    def frame(self) -> pd.DataFrame:
        frame = load(SPLITS[self.name][0])
        if self.name == "news":
            frame["shares"] = np.where(frame["shares"] > frame["shares"].median(), "often", "seldom")
        for name in frame.columns:
            if frame[name].dtype.kind not in "iuf" or frame[name].nunique() <= 2:
                frame[name] = frame[name].astype(str)
        return frame

    @cached_property
    def columns(self) -> Columns:
        return declared(self.frame)

    @property
    def label(self) -> str:
        return SPLITS[self.name][1]

    @cached_property
    def sides(self) -> tuple[list[str], list[str]]:
        names = [name for name in self.frame.columns if name != self.label]
        at = SPLITS[self.name][2]
        return names[:at], names[at:]

    @cached_property
    def lacking(self) -> NDArray[np.bool_]:
        n = len(self.frame)
        rank = np.random.default_rng((self.seed, 11)).permutation(n)
        return rank < round(self.missing * n)

    def matrix(self, side: int) -> Matrix:
        columns = self.columns.select(self.sides[side])
        return Layout(columns).encode({name: columns[name].encode(self.frame[name]) for name in columns})

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.columns.select(self.sides[1]))

    @cached_property
    def truth(self) -> Matrix:
        return self.matrix(1)[self.lacking]

    def federation(self, *, label: bool = False, **more: Any) -> Federation:
        """A and B, and a notary as the third share holder."""
        numbered = self.frame.assign(record=np.arange(len(self.frame)))
        a, b = self.sides
        kept = [*a, self.label] if label else a
        held = self.columns.select([*kept, *b])
        blocks = {"A": numbered[["record", *kept]], "B": numbered.loc[~self.lacking, ["record", *b]]}
        options: dict[str, Any] = {"holder": "notary", "allow": ALLOW, "seed": self.seed + 1, **more}
        return Federation.local(blocks, key="record", columns=held, **options)


@dataclass(frozen=True)
class Score:
    """What a method reached on the records that B lacks."""

    rmse: float
    marginal: float
    pairwise: float
    seconds: float


def score(case: Case, found: Matrix, seconds: float = 0.0) -> Score:
    legal = case.layout.legal(found)
    each = marginal_distance(case.layout, legal, case.truth)
    return Score(
        rmse(found, case.truth),
        float(np.mean(list(each.values()))),
        pairwise_distance(case.layout, legal, case.truth),
        seconds,
    )


# --- floors and oracles -------------------------------------------------------------------------------------------


MEAN, DONOR = "mean (floor)", "random donor"
LINEAR, BOOSTED = "pooled least squares", "pooled gradient boosting"


def beside(case: Case) -> dict[str, tuple[Matrix, float]]:
    """What stands beside every table, as {name: (values, CPU seconds)}: the mean, a random record of B in the place of
    each missing one, and pooled least squares and pooled gradient boosting of each entry, on the aligned records."""
    aligned = ~case.lacking
    a, b = case.matrix(0).astype(np.float64), case.matrix(1).astype(np.float64)
    known = b[aligned]
    draw = np.random.default_rng((case.seed, 12))
    found: dict[str, tuple[Matrix, float]] = {
        MEAN: (np.broadcast_to(known.mean(axis=0), case.truth.shape), 0.0),
        DONOR: (known[draw.integers(len(known), size=int(case.lacking.sum()))], 0.0),
    }
    started = time.process_time()
    design = np.column_stack([np.ones(len(a)), a])
    slopes = np.linalg.lstsq(design[aligned], known, rcond=None)[0]
    found[LINEAR] = design[case.lacking] @ slopes, time.process_time() - started
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        boosted = np.column_stack(
            [
                HistGradientBoostingRegressor(random_state=0, early_stopping=True)
                .fit(a[aligned], known[:, j])
                .predict(a[case.lacking])
                for j in range(b.shape[1])
            ]
        )
    found[BOOSTED] = boosted, time.process_time() - started
    return found


def scored_beside(case: Case) -> dict[str, Score]:
    return {name: score(case, values, seconds) for name, (values, seconds) in beside(case).items()}


# --- our methods --------------------------------------------------------------------------------------------------


def completion(imputer: Any = "regression", *, n_correlated: int = 0, **options: Any) -> CompletionMethod:
    """The paper's method for GANs and drawn columns, otherwise `Complete`, to which the paper's options say nothing."""
    if imputer in GANS or n_correlated:
        return FedPSG(imputer=imputer, n_correlated=n_correlated, **options)
    papers = ("generator", "generator_steps", "condition")
    return Complete(imputer=imputer, **{name: value for name, value in options.items() if name not in papers})


def completed(case: Case, method: CompletionMethod) -> Score:
    """Run a method and score its expected values against the truth."""
    started = time.process_time()
    found = expected_values(case, method)
    return score(case, found, time.process_time() - started)


def expected_values(case: Case, method: CompletionMethod) -> Matrix:
    """What a method says about the records that B lacks, in the order of the frame."""
    with tempfile.TemporaryDirectory() as folder:
        with case.federation(label=method.label is not None, home=folder) as opened:
            result = method.fit(opened, sure=True)
            told = result.expected("B").set_index("cohort row")
            rows = _cohort_rows(opened, case)
        return told.loc[rows].to_numpy()


def _cohort_rows(federation: Federation, case: Case) -> NDArray[np.int64]:
    """The cohort rows of the records that B lacks, in the order of the frame: a study may look at A's alignment."""
    party: Any = federation.transport["A"]  # type: ignore[index]
    at = pd.Series(party.rows, index=np.asarray(party.block.keys))
    return at.loc[np.flatnonzero(case.lacking)].to_numpy()
