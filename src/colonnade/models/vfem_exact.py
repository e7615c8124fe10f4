"""`VFEM(cross_party="independent", step="exact")`: the paper's model from pattern moments, without rounds.

One secure computation gives the coordinator counts, sums and products per pattern; the closed form of the paper's
equation (6) needs nothing else, and neither do the starting values, Newton's method and the standard errors. Tens of
steps reach the optimum that the first-order steps reach in hundreds of rounds, and none of them asks a party.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from colonnade.data.column import Column
from colonnade.errors import NotEstimable
from colonnade.models.vfem_independent import (
    Block,
    BlockModel,
    Terms,
    Units,
    about,
    as_regression,
    covariance,
    log_likelihood,
    score_and_information,
)
from colonnade.models.vfem_result import VFEMResult, in_own_units
from colonnade.statistics.features import Feature
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, PatternStatistics, Vector

Init = Literal["complete-case", "mean"]
EM_STEPS = 20
"""Steps of equation (6) before each attempt at Newton's method."""
MAXIMUM_ROUNDS = 100
NEAR = 1e-6
"""Newton decrement from which plain Newton steps finish: the remaining gain drowns in the likelihood's rounding."""


def estimate_independent(
    data: PatternStatistics,
    *,
    features: tuple[Feature, ...],
    response: str,
    init: Init,
    columns: Mapping[str, Column],
    parties: tuple[str, ...],
    patterns: tuple[tuple[tuple[bool, ...], int], ...],
    cohort: int,
    dropped: tuple[str, ...],
    simulated: bool,
) -> VFEMResult:
    """The regression under independence across parties, from exact pattern moments."""
    centre, variance = data.available()
    scale = np.sqrt(variance)
    target = data.names.index(response)
    moments = block_moments(data.standardised(centre, scale), [f.party for f in features], target, parties)
    fit = climb(moments, starting_model(moments, init))
    cov = covariance(fit.model, moments.terms(fit.model))
    others = np.delete(np.arange(len(scale)), target)
    units = Units(centre[others], scale[others], (float(centre[target]), float(scale[target])))
    names = [data.names[at] for at in others]
    mu, sigma, found = as_regression(fit.model, cov, units, n=data.n, names=names, target=target)
    # Changing units moves every log-likelihood by the same constant.
    constant = -sum(one.count * float(np.log(scale[one.observed]).sum()) for one in data.patterns)
    trace = tuple(value + constant for value in fit.trace)
    return in_own_units(
        GaussianFit(mu, sigma, trace[-1], trace, fit.em_steps, fit.newton_steps),
        found,
        features=features,
        response=target,
        columns=columns,
        parties=parties,
        patterns=patterns,
        cohort=cohort,
        dropped=dropped,
        simulated=simulated,
    )


def block_moments(data: PatternStatistics, owners: Sequence[str], target: int, parties: Sequence[str]) -> BlockMoments:
    """Pattern moments over (1, x, y); every pattern shows the response."""
    others = np.delete(np.arange(len(data.names)), target)
    place = np.full(len(data.names), -1, dtype=np.intp)
    place[others] = np.arange(len(others))
    masks, seen, grams = [], [], []
    for one in data.patterns:
        has = {owners[int(at)] for at in one.observed}
        order = np.argsort(np.where(one.observed == target, len(data.names), one.observed))  # the response last
        whole = np.block([[np.array([[one.count]]), one.sums[None, :]], [one.sums[:, None], one.gram]])
        at = np.concatenate([[0], 1 + order])
        masks.append(tuple(party in has for party in parties))
        seen.append(place[one.observed[order[:-1]]])
        grams.append(whole[np.ix_(at, at)])
    widths = tuple(sum(owners[int(at)] == party for at in others) for party in parties)
    return BlockMoments(widths, tuple(masks), tuple(seen), tuple(grams))


def starting_model(data: BlockMoments, init: Init) -> BlockModel:
    """The paper's: coefficients from complete cases or mean imputation, available-case moments, s2 = var(y) = 1."""
    ends = np.cumsum([0, *data.widths])
    places = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
    p = sum(data.widths)
    if init == "complete-case":
        whole = [gram for mask, gram in zip(data.masks, data.grams, strict=True) if all(mask)]
        count = whole[0][0, 0] if whole else 0.0
        if count <= p + 1:
            raise NotEstimable(
                f"{count:.0f} records are complete, and {p + 2} are needed to start from them; take init='mean'."
            )
        total = whole[0]
    else:
        total = np.sum([data.filled(number, np.zeros(p)) for number in range(len(data.masks))], axis=0)
    start = model_of(total, places)
    blocks = []
    for block, (count, sums, products) in zip(start.blocks, data.own, strict=True):
        mean = sums / max(count, 1.0)
        blocks.append(Block(block.beta, mean, products / max(count, 1.0) - np.outer(mean, mean)))
    return BlockModel(start.intercept, 1.0, tuple(blocks))


# --- from pattern moments ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BlockMoments:
    """Pattern moments over (1, x, y), with the party of each covariate: what `step="exact"` computes from.

    `masks` say who has a pattern's records, `grams` are over (1, its seen covariates, y), `seen` the places of these
    among all covariates.
    """

    widths: tuple[int, ...]
    masks: tuple[tuple[bool, ...], ...]
    seen: tuple[NDArray[np.intp], ...]
    grams: tuple[Matrix, ...]

    @property
    def n(self) -> float:
        return float(sum(gram[0, 0] for gram in self.grams))

    @cached_property
    def own(self) -> tuple[tuple[float, Vector, Matrix], ...]:
        """Count, sums and products of each party's covariates over the records that it has."""
        made, start = [], 0
        for party, width in enumerate(self.widths):
            total = np.zeros((1 + width, 1 + width))
            for mask, seen, gram in zip(self.masks, self.seen, self.grams, strict=True):
                if mask[party]:
                    here = 1 + np.flatnonzero((seen >= start) & (seen < start + width))
                    total += gram[np.ix_([0, *here], [0, *here])]
            made.append((float(total[0, 0]), total[0, 1:], total[1:, 1:]))
            start += width
        return tuple(made)

    def filled(self, number: int, mu: Vector) -> Matrix:
        """The Gram matrix of (1, x, y) of one pattern, with missing blocks at their mean."""
        seen, p = self.seen[number], sum(self.widths)
        put = np.zeros((2 + p, 2 + len(seen)))
        put[1 : 1 + p, 0] = mu
        put[1 + seen, 0] = 0.0
        put[0, 0] = put[-1, -1] = 1.0
        put[1 + seen, 1 + np.arange(len(seen))] = 1.0
        return np.asarray(put @ self.grams[number] @ put.T)

    def terms(self, model: BlockModel) -> Terms:
        p, parties = model.width, len(self.widths)
        q = np.concatenate([[-model.intercept], -model.beta, [1.0]])
        sums, squares = np.zeros(len(self.masks)), np.zeros(len(self.masks))
        gram, pull = np.zeros((1 + p, 1 + p)), np.zeros(1 + p)
        first, second = np.zeros((parties, 1 + p)), np.zeros((parties + 1, 1 + p))
        for number, mask in enumerate(self.masks):
            whole, tau = self.filled(number, model.mu), model.tau(mask)
            moved = whole @ q  # sums of r (1, x, y)
            sums[number], squares[number] = moved[0], q @ moved
            lacking = ~np.array(mask, dtype=bool)
            gram += whole[:-1, :-1] / tau
            pull += moved[:-1] / tau
            first[lacking] += whole[0, :-1] / tau
            second[np.append(lacking, True)] += moved[:-1] / tau**2
        seen = tuple(about(*one, block.mu) for one, block in zip(self.own, model.blocks, strict=True))
        counts = np.array([one[0, 0] for one in self.grams])
        return Terms(self.masks, counts, sums, squares, gram, pull, first, second, seen)

    def em_step(self, model: BlockModel) -> BlockModel:
        """Equation (6): expected moments of complete records, then their regression, means and covariances.

        With g = Sigma beta on the missing blocks, x = filled x + g r/tau in the mean, and the missing blocks have
        conditional covariance Sigma - g g'/tau.
        """
        p = model.width
        q = np.concatenate([[-model.intercept], -model.beta, [1.0]])
        total = np.zeros((2 + p, 2 + p))
        for number, mask in enumerate(self.masks):
            whole, tau = self.filled(number, model.mu), model.tau(mask)
            gain = np.zeros(2 + p)
            for here, block, place in zip(mask, model.blocks, model.places, strict=True):
                if not here:
                    inside = slice(1 + place.start, 1 + place.stop)
                    gain[inside] = block.gain
                    total[inside, inside] += whole[0, 0] * block.sigma
            impute = np.eye(2 + p) + np.outer(gain, q) / tau
            total += impute @ whole @ impute.T - whole[0, 0] / tau * np.outer(gain, gain)
        return model_of(total, model.places)


def model_of(total: Matrix, places: Sequence[slice]) -> BlockModel:
    """The model of complete records, from the Gram matrix of (1, x, y)."""
    n = total[0, 0]
    try:
        b = cho_solve(cho_factor(total[:-1, :-1]), total[:-1, -1])
    except LinAlgError as error:
        raise NotEstimable("columns determine one another in the records used; leave one out with columns=.") from error
    mean = total[0, 1:-1] / n
    q = np.append(-b, 1.0)
    covariances = total[1:-1, 1:-1] / n - np.outer(mean, mean)
    blocks = tuple(Block(b[1:][place], mean[place], covariances[place, place]) for place in places)
    return BlockModel(float(b[0]), float(q @ total @ q) / n, blocks)


# --- the climb --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BlockFit:
    model: BlockModel
    trace: tuple[float, ...]
    em_steps: int
    newton_steps: int


def climb(data: BlockMoments, start: BlockModel) -> BlockFit:
    """Equation (6), then Newton's method on the exact information; only steps that do not lower the likelihood."""
    model, terms = start, data.terms(start)
    trace, em_steps, newton_steps = [log_likelihood(model, terms)], 0, 0
    for _ in range(MAXIMUM_ROUNDS):
        for _ in range(EM_STEPS):
            onward = data.em_step(model)
            reached = data.terms(onward)
            value = log_likelihood(onward, reached)
            if value < trace[-1]:  # an EM step cannot fall: the top is reached up to rounding
                break
            model, terms = onward, reached
            trace.append(value)
            em_steps += 1
        while True:
            score, info = score_and_information(model, terms)
            try:
                step = cho_solve(cho_factor(info), score)
            except LinAlgError:
                break  # not concave here yet
            newton_steps += 1
            if score @ step <= NEAR:
                for _ in range(3):
                    model = model.moved(step)
                    score, info = score_and_information(model, data.terms(model))
                    step = cho_solve(cho_factor(info), score)
                    if score @ step < NEAR**2:
                        break
                last = log_likelihood(model, data.terms(model))
                return BlockFit(model, (*trace, max(trace[-1], last)), em_steps, newton_steps)
            better = _search(data, model, step, trace[-1])
            if better is None:
                break
            model, value = better
            terms = data.terms(model)
            trace.append(value)
    raise NotEstimable(
        f"the likelihood did not settle in {em_steps:,} steps: too few records show the columns together; leave out the"
        " party with the fewest records."
    )


def _search(data: BlockMoments, model: BlockModel, step: Vector, value: float) -> tuple[BlockModel, float] | None:
    """The longest of 1, 1/2, 1/4, ... of a Newton step that keeps a fifth of every variance and does not fall."""
    for halvings in range(6):
        moved = model.moved(step * 0.5**halvings)
        if moved.sigma2 < 0.2 * model.sigma2:
            continue
        try:
            for old, new in zip(model.blocks, moved.blocks, strict=True):
                if len(old.beta):
                    np.linalg.cholesky(new.sigma - 0.2 * old.sigma)
        except LinAlgError:
            continue
        reached = log_likelihood(moved, data.terms(moved))
        if reached >= value:
            return moved, reached
    return None
