"""From the releases of a private VFEM to its result: post-processing, which costs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from colonnade.models.gaussian_regression import Regression
from colonnade.models.matrix import columns_of
from colonnade.models.vfem_clipping import DRAWS, Clipping, unclipped
from colonnade.models.vfem_factored import FactoredMoments, regression
from colonnade.models.vfem_private import PrivateMoments
from colonnade.models.vfem_result import VFEMResult, in_own_units
from colonnade.statistics.features import Feature
from colonnade.statistics.gaussian_em import GaussianFit


def private_result(
    made: PrivateMoments,
    data: FactoredMoments,
    clipping: Clipping,
    ranged: Sequence[Feature],
    *,
    simulated: bool = False,
    draws: int = DRAWS,
) -> VFEMResult:
    """The regression in the columns' own units, features in the order of the facts as without noise."""
    law, found, sampling = regression(unclipped(data, clipping, draws=draws), data.names.index(made.response))
    names = [feature.name for feature in made.features]
    places = [data.names.index(name) for name in names]
    target = names.index(made.response)
    fit = GaussianFit(
        mu=law.mu[places],
        sigma=law.sigma[np.ix_(places, places)],
        loglik=math.nan,
        trace=(),
        em_steps=0,
        newton_steps=0,
    )
    noise_share = 1 - np.diag(sampling) / np.diag(found.cov)
    result = in_own_units(
        fit,
        _ordered(found, [name for name in names if name != made.response]),
        features=tuple(ranged[place] for place in places),
        response=target,
        columns=columns_of(made.facts, made.features),
        parties=made.parties,
        patterns=_patterns(made, data),
        cohort=made.facts.n,
        dropped=(),
        simulated=simulated,
    )
    shares = pd.Series(noise_share, index=["const", *found.names])[list(result.params.index)]
    return replace(
        result,
        nobs=min(round(law.count), made.facts.n),
        model="cross_party=full",
        method="noisy moments, factored",
        covariance="delta, with noise",
        basis="delta method, sampling and privacy noise together; valid if whether a block is missing depends on"
        f" nothing but columns of {made.holder!r}, and the columns are jointly Gaussian.",
        remarks=(
            f"Privacy noise makes up {shares.min():.0%} to {shares.max():.0%} of the variances. Counts of records are"
            " noisy, and there is no likelihood.",
        ),
    )


def _ordered(found: Regression, names: Sequence[str]) -> Regression:
    order = np.array([0, *(found.names.index(name) + 1 for name in names)])
    return Regression(tuple(names), found.params[order], found.cov[np.ix_(order, order)], found.sigma2, found.rsquared)


def _patterns(made: PrivateMoments, data: FactoredMoments) -> tuple[tuple[tuple[bool, ...], int], ...]:
    """Noisy counts of the patterns over all parties; those that noise hides are not shown."""
    found = []
    for mask, own in zip(data.masks, data.own, strict=True):
        count = round(float(own[0, 0]))
        if count > max(2 * data.own_sd, 0.5):
            there = dict(zip(made.others, mask, strict=True)) | {made.holder: True}
            found.append((tuple(there[party] for party in made.parties), count))
    return tuple(found)
