"""The paper's three baselines, from the same pattern moments as `VFEM(missing="em")`.

- `"complete-case"`: only records that every party has;
- `"mean"`: every missing block at the mean of the records that have it, then taken as if observed;
- `"single"`: only the response holder's columns.

Each is ordinary least squares on a table without gaps, whose moments follow from the pattern moments: nothing more is
asked of anybody. They are for comparison. Complete cases are few, and biased unless records are missing completely at
random; mean imputation is biased always; a single party omits what the others know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from colonnade.data.column import Column
from colonnade.errors import NotEstimable
from colonnade.models.gaussian_regression import regression
from colonnade.models.vfem_result import VFEMResult, in_own_units
from colonnade.statistics.features import Feature
from colonnade.statistics.gaussian_em import Pattern, PatternStatistics, Vector, fit_gaussian

Baseline = Literal["complete-case", "mean", "single"]


def without_gaps(
    data: PatternStatistics, kind: Baseline, *, features: tuple[Feature, ...], holder: str
) -> tuple[PatternStatistics, tuple[Feature, ...]]:
    """The moments of the baseline's table, and its features."""
    width = len(data.names)
    if kind == "single":
        kept = np.array([at for at, feature in enumerate(features) if feature.party == holder], dtype=np.intp)
        return _pooled(data.only(kept)), tuple(features[at] for at in kept)
    if kind == "complete-case":
        whole = tuple(one for one in data.patterns if len(one.observed) == width)
        if not whole or whole[0].count <= width:
            count = round(whole[0].count) if whole else 0
            raise NotEstimable(
                f"{count} records are complete, too few for {width} coefficients; leave out the party with the fewest"
                " records, or take missing='em'."
            )
        return PatternStatistics(data.names, whole), features
    mean, _ = data.available()
    return _pooled(data, mean), features


def _pooled(data: PatternStatistics, mean: Vector | None = None) -> PatternStatistics:
    """All records as one pattern; what a record lacks is at the mean."""
    width = len(data.names)
    total = np.zeros((1 + width, 1 + width))
    for one in data.patterns:
        put = np.zeros((1 + width, 1 + len(one.observed)))
        put[0, 0] = 1.0
        if mean is not None:
            put[1:, 0] = mean
            put[1 + one.observed, 0] = 0.0
        put[1 + one.observed, 1 + np.arange(len(one.observed))] = 1.0
        sums = one.sums[None, :]
        total += put @ np.block([[np.array([[one.count]]), sums], [sums.T, one.gram]]) @ put.T
    every = Pattern(np.arange(width), float(total[0, 0]), total[0, 1:], total[1:, 1:])
    return PatternStatistics(data.names, (every,))


def estimate_baseline(
    data: PatternStatistics,
    kind: Baseline,
    *,
    response: str,
    features: tuple[Feature, ...],
    columns: Mapping[str, Column],
    cohort: int,
    dropped: tuple[str, ...],
    simulated: bool,
) -> VFEMResult:
    holder = next(feature.party for feature in features if feature.name == response)
    table, kept = without_gaps(data, kind, features=features, holder=holder)
    if len(kept) < 2:
        raise NotEstimable(f"{holder!r} has no covariate beside the response; missing='single' needs one.")
    parties = tuple(dict.fromkeys(feature.party for feature in kept))
    fit = fit_gaussian(table)
    target = table.names.index(response)
    return in_own_units(
        fit,
        regression(table, fit, target),
        features=kept,
        response=target,
        columns=columns,
        parties=parties,
        patterns=(((True,) * len(parties), round(table.n)),),
        cohort=cohort,
        dropped=tuple(name for name in dropped if kind != "single"),
        simulated=simulated,
    )
