"""The paper's model: blocks of covariates that are independent across parties, and a linear response.

    y = b0 + sum_k x_k'beta_k + e,   e ~ N(0, s2),   x_k ~ N(mu_k, Sigma_k), independent of each other.

For a record that lacks the blocks M write  r = y - b0 - sum_{k seen} x_k'beta_k - sum_{k in M} mu_k'beta_k  and
tau = s2 + sum_{k in M} beta_k'Sigma_k beta_k. Then r ~ N(0, tau), whatever is seen: the observed-data likelihood is

    l = sum_records [ -log(2 pi tau)/2 - r^2/(2 tau) ] + sum_k sum_{records with k} log N(x_k; mu_k, Sigma_k),

and the E step needs per record only r (its conditional mean is x_k = mu_k + Sigma_k beta_k r / tau) and per pattern
only tau. V = I_oc^-1 (I - Gamma)^-1 (Meng and Rubin) is, at the maximum, the inverse of the observed information; with
the latter in closed form no Gamma need be differentiated numerically.

The last part of this file climbs by the closed form of the paper's equation (6) on pattern moments (`solver="exact"`):
one secure computation gives the coordinator counts, sums and products per pattern, and neither the starting values, nor
Newton's method, nor the standard errors need anything else. Tens of steps reach the optimum that the first-order steps
of `papers/vfem/method.py` reach in hundreds of rounds, and none of them asks a party.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, block_diag, cho_factor, cho_solve

from colonnade.data.column import Column
from colonnade.errors import NotEstimable
from colonnade.models.linear.estimate import Observed, check_joint_records
from colonnade.models.linear.gaussian import Coefficients
from colonnade.models.linear.result import Regression
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, Pattern, PatternStatistics, Vector, derivatives
from colonnade.statistics.moments import MomentsResult


@dataclass(frozen=True, eq=False)
class BlockParameters:
    """One party's part of the model: coefficients, mean and covariance of its covariates (there may be none)."""

    beta: Vector
    mu: Vector
    sigma: Matrix

    @property
    def gain(self) -> Vector:
        """Sigma beta: how the block's conditional mean follows the residual."""
        return self.sigma @ self.beta

    @property
    def variance(self) -> float:
        """beta'Sigma beta: what the block explains of the response, and hides where it is missing."""
        return float(self.beta @ self.sigma @ self.beta)


@dataclass(frozen=True, eq=False)
class BlockModel:
    intercept: float
    sigma2: float
    blocks: tuple[BlockParameters, ...]

    @cached_property
    def places(self) -> list[slice]:
        """Where each block is among all covariates."""
        ends = np.cumsum([0, *(len(block.beta) for block in self.blocks)])
        return [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]

    @property
    def width(self) -> int:
        return sum(len(block.beta) for block in self.blocks)

    @property
    def beta(self) -> Vector:
        return np.concatenate([block.beta for block in self.blocks])

    @property
    def mu(self) -> Vector:
        return np.concatenate([block.mu for block in self.blocks])

    @property
    def sigma(self) -> Matrix:
        return np.asarray(block_diag(*(block.sigma for block in self.blocks)))

    def tau(self, mask: Sequence[bool]) -> float:
        return self.sigma2 + sum(b.variance for has, b in zip(mask, self.blocks, strict=True) if not has)

    @property
    def vector(self) -> Vector:
        """(b0, beta, mu, upper triangles of the Sigma_k, s2)."""
        triangles = [block.sigma[np.triu_indices(len(block.beta))] for block in self.blocks]
        return np.concatenate([[self.intercept], self.beta, self.mu, *triangles, [self.sigma2]])

    def moved(self, step: Vector) -> BlockModel:
        theta, p = self.vector + step, self.width
        blocks, start = [], 1 + 2 * p
        for block, place in zip(self.blocks, self.places, strict=True):
            size = len(block.beta)
            upper = np.zeros((size, size))
            upper[np.triu_indices(size)] = theta[start : start + size * (size + 1) // 2]
            start += size * (size + 1) // 2
            shifted = slice(1 + place.start, 1 + place.stop), slice(1 + p + place.start, 1 + p + place.stop)
            blocks.append(BlockParameters(theta[shifted[0]], theta[shifted[1]], upper + np.triu(upper, 1).T))
        return BlockModel(float(theta[0]), float(theta[-1]), tuple(blocks))


@dataclass(frozen=True, eq=False)
class Terms:
    """What the likelihood and its curvature need of the records, at one model.

    `masks`, `counts`, `sums`, `squares`: the patterns, and their numbers of records, sums of r and sums of r^2. With
    d = (1, x), missing blocks of x at their mean: `gram` = sum d d'/tau and `score_sum` = sum r d/tau over all records;
    `first[k]` = sum d/tau over the records that lack block k; `second[k]` = sum r d/tau^2 over those, and in its last
    row over all. `seen` has, for each party, count, sums and products of its covariates about mu_k where it has them.
    """

    masks: tuple[tuple[bool, ...], ...]
    counts: Vector
    sums: Vector
    squares: Vector
    gram: Matrix
    score_sum: Vector
    first: Matrix
    second: Matrix
    seen: tuple[tuple[float, Vector, Matrix], ...]


def log_likelihood(model: BlockModel, terms: Terms) -> float:
    tau = np.array([model.tau(mask) for mask in terms.masks])
    value = residual_likelihood(tau, terms.counts, terms.squares)
    return value + sum(own_likelihood(block, *seen) for block, seen in zip(model.blocks, terms.seen, strict=True))


def residual_likelihood(tau: Vector, counts: Vector, squares: Vector) -> float:
    """Of the response given what is seen, from its residuals' squares per pattern."""
    return -0.5 * float(np.sum(counts * np.log(2 * math.pi * tau) + squares / tau))


def own_likelihood(block: BlockParameters, count: float, sums: Vector, products: Matrix) -> float:
    """Of a party's covariates alone; `products` are about mu_k. A party computes it alone."""
    if not len(block.beta):
        return 0.0
    factor = cho_factor(block.sigma, lower=True)
    determinant = 2 * float(np.log(np.diag(factor[0])).sum())
    distance = float(np.trace(cho_solve(factor, products)))
    return -0.5 * (count * (len(block.beta) * math.log(2 * math.pi) + determinant) + distance)


def score_and_information(model: BlockModel, terms: Terms) -> tuple[Vector, Matrix]:
    """First derivatives of l and minus its second derivatives, in the order of `BlockModel.vector`.

    With g(r, tau) = -log(tau)/2 - r^2/(2 tau):  g_r = -r/tau, g_rr = -1/tau, g_rt = r/tau^2,
    g_t = (r^2/tau - 1)/(2 tau), g_tt = 1/(2 tau^2) - r^2/tau^3. The gradients are -grad r = d + sum_{k missing} E_k,
    E_k = (beta_k in mu_k), and grad tau = T_s2 + sum_{k missing} T_k, T_k = (2 Sigma_k beta_k in beta_k;
    A -> beta_k'A beta_k in Sigma_k). Second derivatives, where k is missing: r has -I in (beta_k, mu_k); tau has
    2 Sigma_k in (beta_k, beta_k) and A -> 2 A beta_k in (beta_k, Sigma_k).
    """
    p, size, parties = model.width, len(model.vector), len(model.blocks)
    tau = np.array([model.tau(mask) for mask in terms.masks])
    lacks = np.column_stack([~np.array(terms.masks, dtype=bool), np.ones(len(tau))]).astype(float)

    def over(values: Vector) -> Matrix:
        """Totals over the records that lack both of two blocks; the last row and column stand for all records."""
        return np.asarray(lacks.T @ (values[:, None] * lacks))

    slope = over((terms.squares / tau - terms.counts) / (2 * tau))[-1]  # sums of g_t
    residual_sum = over(terms.sums / tau)[-1]
    e, t, mixed = np.zeros((parties, size)), np.zeros((parties + 1, size)), np.zeros((size, size))
    t[-1, -1] = 1.0
    score, info = np.zeros(size), np.zeros((size, size))
    start = 1 + 2 * p
    for k, (block, place) in enumerate(zip(model.blocks, model.places, strict=True)):
        b, m = np.arange(1 + place.start, 1 + place.stop), np.arange(1 + p + place.start, 1 + p + place.stop)
        i, j = np.triu_indices(len(b))
        s = start + np.arange(len(i))
        start += len(i)
        twice = np.where(i == j, 1.0, 2.0)
        e[k, m] = block.beta
        t[k, b], t[k, s] = 2 * block.gain, twice * block.beta[i] * block.beta[j]
        mixed[b, m] -= residual_sum[k]
        mixed[i + 1 + place.start, s] -= slope[k] * 2 * block.beta[j]
        off = i != j
        mixed[j[off] + 1 + place.start, s[off]] -= slope[k] * 2 * block.beta[i[off]]
        info[np.ix_(b, b)] -= 2 * slope[k] * block.sigma
        if len(b):
            count, sums, products = terms.seen[k]
            own_moments = PatternStatistics(("",) * len(b), (Pattern(np.arange(len(b)), count, sums, products),))
            own_score, own = derivatives(own_moments, np.zeros(len(b)), block.sigma)
            both = np.concatenate([m, s])
            score[both] += own_score
            info[np.ix_(both, both)] += own
    score[: 1 + p] += terms.score_sum
    score += residual_sum[:-1] @ e + slope @ t
    info[: 1 + p, : 1 + p] += terms.gram
    first, second = np.zeros((parties, size)), np.zeros((parties + 1, size))
    first[:, : 1 + p], second[:, : 1 + p] = terms.first, terms.second
    second += over(terms.sums / tau**2)[:, :-1] @ e
    mixed += first.T @ e + second.T @ t
    info += mixed + mixed.T
    info += e.T @ over(terms.counts / tau)[:-1, :-1] @ e
    info += t.T @ over(terms.squares / tau**3 - terms.counts / (2 * tau**2)) @ t
    return score, info


def covariance(model: BlockModel, terms: Terms) -> Matrix:
    """Of (b0, beta): the inverse observed information."""
    _, info = score_and_information(model, terms)
    scale = 1 / np.sqrt(np.maximum(np.diag(info), np.finfo(float).tiny))
    try:
        factor = cho_factor(info * np.outer(scale, scale))
    except LinAlgError as error:
        raise NotEstimable(
            "the records do not determine the coefficients (the information matrix is singular); leave out the party"
            " with the fewest records, or take a larger sketch."
        ) from error
    b = 1 + model.width
    return np.asarray(cho_solve(factor, np.eye(len(info))[:, :b])[:b] * np.outer(scale[:b], scale[:b]))


def about(count: float, sums: Vector, products: Matrix, mean: Vector) -> tuple[float, Vector, Matrix]:
    """Moments about a mean, from moments about 0."""
    cross = np.outer(sums, mean)
    return count, sums - count * mean, products - cross - cross.T + count * np.outer(mean, mean)


# --- back to given units ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Units:
    """value = centre + scale * standardised value, of all covariates and of the response."""

    centre: Vector
    scale: Vector
    response: tuple[float, float]


def as_regression(
    model: BlockModel, cov: Matrix, units: Units, *, n: float, names: Sequence[str], target: int
) -> tuple[Vector, Matrix, Coefficients]:
    """Mean and covariance of (x, y), y in place `target`, and the regression, in the units given.

    `sigma2` and `cov` carry n / (n - p - 1), as in ordinary least squares.
    """
    p = model.width
    if n <= p + 1:
        raise NotEstimable(f"{n:.0f} records cannot determine {p + 1} coefficients; leave columns out.")
    centre, scale = units.response
    slope = scale / units.scale
    back = np.zeros((1 + p, 1 + p))
    back[0, 0], back[0, 1:], back[1:, 1:] = scale, -slope * units.centre, np.diag(slope)
    params = back @ np.concatenate([[model.intercept], model.beta])
    params[0] += centre
    explained = sum(block.variance for block in model.blocks)
    others = np.delete(np.arange(1 + p), target)
    mu, sigma = np.zeros(1 + p), np.zeros((1 + p, 1 + p))
    mu[others] = units.centre + units.scale * model.mu
    mu[target] = centre + scale * (model.intercept + float(model.beta @ model.mu))
    sigma[np.ix_(others, others)] = model.sigma * np.outer(units.scale, units.scale)
    sigma[others, target] = sigma[target, others] = model.sigma @ model.beta * units.scale * scale
    sigma[target, target] = (model.sigma2 + explained) * scale**2
    correction = n / (n - p - 1)
    coefficients = Coefficients(
        names=tuple(names),
        params=params,
        cov=correction * back @ cov @ back.T,
        sigma2=correction * model.sigma2 * scale**2,
        rsquared=explained / (model.sigma2 + explained),
    )
    return mu, sigma, coefficients


# --- the exact solver: from pattern moments ----------------------------------------------------------------

Init = Literal["complete-case", "mean"]
EM_STEPS = 20
"""Steps of equation (6) before each attempt at Newton's method."""
MAXIMUM_ROUNDS = 100
NEAR = 1e-6
"""Newton decrement from which plain Newton steps finish: the remaining gain drowns in the likelihood's rounding."""


def estimate_independent(
    moments: MomentsResult,
    *,
    response: str,
    columns: Mapping[str, Column],
    gamma: int,
    minimum_joint: int = 10,
    init: Init = "complete-case",
) -> Regression:
    """The regression under independence across parties, from exact pattern moments."""
    check_joint_records(moments, minimum_joint, pairs=False)
    observed = Observed.of(moments, response=response, columns=columns, gamma=gamma)
    data, target = observed.data, observed.target
    centre, variance = data.available()
    scale = np.sqrt(variance)
    owners = [feature.party for feature in observed.features]
    standard = block_moments(data.standardised(centre, scale), owners, target, observed.parties)
    fit = climb(standard, starting_model(standard, init))
    cov = covariance(fit.model, standard.terms(fit.model))
    others = np.delete(np.arange(len(scale)), target)
    units = Units(centre[others], scale[others], (float(centre[target]), float(scale[target])))
    names = [data.names[place] for place in others]
    mu, sigma, coefficients = as_regression(fit.model, cov, units, n=data.n, names=names, target=target)
    # Changing units moves every log-likelihood by the same constant.
    constant = -sum(pattern.count * float(np.log(scale[pattern.observed]).sum()) for pattern in data.patterns)
    trace = tuple(value + constant for value in fit.trace)
    return observed.result(GaussianFit(mu, sigma, trace[-1], trace, fit.em_steps, fit.newton_steps), coefficients)


def block_moments(data: PatternStatistics, owners: Sequence[str], target: int, parties: Sequence[str]) -> BlockMoments:
    """Pattern moments over (1, x, y); every pattern shows the response."""
    others = np.delete(np.arange(len(data.names)), target)
    column = np.full(len(data.names), -1, dtype=np.intp)
    column[others] = np.arange(len(others))
    masks, seen, grams = [], [], []
    for pattern in data.patterns:
        has = {owners[int(place)] for place in pattern.observed}
        order = np.argsort(np.where(pattern.observed == target, len(data.names), pattern.observed))  # the response last
        gram = np.block([[np.array([[pattern.count]]), pattern.sums[None, :]], [pattern.sums[:, None], pattern.gram]])
        entries = np.concatenate([[0], 1 + order])
        masks.append(tuple(party in has for party in parties))
        seen.append(column[pattern.observed[order[:-1]]])
        grams.append(gram[np.ix_(entries, entries)])
    widths = tuple(sum(owners[int(place)] == party for place in others) for party in parties)
    return BlockMoments(widths, tuple(masks), tuple(seen), tuple(grams))


def starting_model(data: BlockMoments, init: Init) -> BlockModel:
    """The paper's: coefficients from complete cases or mean imputation, available-case moments, s2 = var(y) = 1."""
    ends = np.cumsum([0, *data.widths])
    places = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
    p = sum(data.widths)
    if init == "complete-case":
        complete = [gram for mask, gram in zip(data.masks, data.grams, strict=True) if all(mask)]
        count = complete[0][0, 0] if complete else 0.0
        if count <= p + 1:
            raise NotEstimable(
                f"{count:.0f} records are complete, and {p + 2} are needed to start from them; take init='mean'."
            )
        total = complete[0]
    else:
        total = np.sum([data.filled(number, np.zeros(p)) for number in range(len(data.masks))], axis=0)
    start = model_of(total, places)
    blocks = []
    for block, (count, sums, products) in zip(start.blocks, data.own, strict=True):
        mean = sums / max(count, 1.0)
        blocks.append(BlockParameters(block.beta, mean, products / max(count, 1.0) - np.outer(mean, mean)))
    return BlockModel(start.intercept, 1.0, tuple(blocks))


@dataclass(frozen=True, eq=False)
class BlockMoments:
    """Pattern moments over (1, x, y), with the party of each covariate: what `solver="exact"` computes from.

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
        moments, start = [], 0
        for party, width in enumerate(self.widths):
            total = np.zeros((1 + width, 1 + width))
            for mask, seen, gram in zip(self.masks, self.seen, self.grams, strict=True):
                if mask[party]:
                    own = [0, *(1 + np.flatnonzero((seen >= start) & (seen < start + width)))]
                    total += gram[np.ix_(own, own)]
            moments.append((float(total[0, 0]), total[0, 1:], total[1:, 1:]))
            start += width
        return tuple(moments)

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
        gram, score_sum = np.zeros((1 + p, 1 + p)), np.zeros(1 + p)
        first, second = np.zeros((parties, 1 + p)), np.zeros((parties + 1, 1 + p))
        for number, mask in enumerate(self.masks):
            filled, tau = self.filled(number, model.mu), model.tau(mask)
            moved = filled @ q  # sums of r (1, x, y)
            sums[number], squares[number] = moved[0], q @ moved
            lacking = ~np.array(mask, dtype=bool)
            gram += filled[:-1, :-1] / tau
            score_sum += moved[:-1] / tau
            first[lacking] += filled[0, :-1] / tau
            second[np.append(lacking, True)] += moved[:-1] / tau**2
        seen = tuple(about(*own, block.mu) for own, block in zip(self.own, model.blocks, strict=True))
        counts = np.array([total[0, 0] for total in self.grams])
        return Terms(self.masks, counts, sums, squares, gram, score_sum, first, second, seen)

    def em_step(self, model: BlockModel) -> BlockModel:
        """Equation (6): expected moments of complete records, then their regression, means and covariances.

        With g = Sigma beta on the missing blocks, x = filled x + g r/tau in the mean, and the missing blocks have
        conditional covariance Sigma - g g'/tau.
        """
        p = model.width
        q = np.concatenate([[-model.intercept], -model.beta, [1.0]])
        total = np.zeros((2 + p, 2 + p))
        for number, mask in enumerate(self.masks):
            filled, tau = self.filled(number, model.mu), model.tau(mask)
            gain = np.zeros(2 + p)
            for has, block, place in zip(mask, model.blocks, model.places, strict=True):
                if not has:
                    inside = slice(1 + place.start, 1 + place.stop)
                    gain[inside] = block.gain
                    total[inside, inside] += filled[0, 0] * block.sigma
            impute = np.eye(2 + p) + np.outer(gain, q) / tau
            total += impute @ filled @ impute.T - filled[0, 0] / tau * np.outer(gain, gain)
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
    blocks = tuple(BlockParameters(b[1:][place], mean[place], covariances[place, place]) for place in places)
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
