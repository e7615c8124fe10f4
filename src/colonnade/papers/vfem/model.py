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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.linalg import LinAlgError, block_diag, cho_factor, cho_solve

from colonnade.data.column import Column
from colonnade.errors import NotEstimable
from colonnade.models.linear.estimate import Observed, check_joint_records, pooled
from colonnade.models.linear.gaussian import Coefficients
from colonnade.models.linear.result import Regression
from colonnade.models.matrix import consecutive
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, Pattern, PatternStatistics, Vector, derivatives
from colonnade.statistics.gaussian_em import log_likelihood as gaussian_likelihood
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

    def likelihood(self, statistics: PatternStatistics) -> float:
        """Of the party's covariates, from their moments where it has them. A party computes it alone."""
        return gaussian_likelihood(statistics, self.mu, self.sigma) if len(self.beta) else 0.0


def own_moments(count: float, sums: Vector, products: Matrix) -> PatternStatistics:
    """The moments of one party's covariates over the records that it has: all of them have one pattern."""
    return PatternStatistics(("",) * len(sums), (Pattern(np.arange(len(sums)), count, sums, products),))


@dataclass(frozen=True, eq=False)
class BlockModel:
    intercept: float
    sigma2: float
    blocks: tuple[BlockParameters, ...]

    @cached_property
    def places(self) -> list[slice]:
        """Where each block is among all covariates."""
        return consecutive([len(block.beta) for block in self.blocks])

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
        beta, mu, triangles = np.split(theta[1:-1], [p, 2 * p])
        blocks = []
        for place in self.places:
            size = place.stop - place.start
            own, triangles = np.split(triangles, [size * (size + 1) // 2])
            upper = np.zeros((size, size))
            upper[np.triu_indices(size)] = own
            blocks.append(BlockParameters(beta[place], mu[place], upper + np.triu(upper, 1).T))
        return BlockModel(float(theta[0]), float(theta[-1]), tuple(blocks))


@dataclass(frozen=True, eq=False)
class Terms:
    """What the likelihood and its curvature need of the records, at one model.

    `masks`, `counts`, `sums`, `squares`: the patterns, and their numbers of records, sums of r and sums of r^2. With
    d = (1, x), missing blocks of x at their mean: `gram` = sum d d'/tau and `score_sum` = sum r d/tau over all records;
    `first[k]` = sum d/tau over the records that lack block k; `second[k]` = sum r d/tau^2 over those, and in its last
    row over all. `own` are the moments of each party's covariates where it has them.
    """

    masks: tuple[tuple[bool, ...], ...]
    counts: Vector
    sums: Vector
    squares: Vector
    gram: Matrix
    score_sum: Vector
    first: Matrix
    second: Matrix
    own: tuple[PatternStatistics, ...]


def log_likelihood(model: BlockModel, terms: Terms) -> float:
    tau = np.array([model.tau(mask) for mask in terms.masks])
    value = residual_likelihood(tau, terms.counts, terms.squares)
    return value + sum(block.likelihood(statistics) for block, statistics in zip(model.blocks, terms.own, strict=True))


def residual_likelihood(tau: Vector, counts: Vector, squares: Vector) -> float:
    """Of the response given what is seen, from its residuals' squares per pattern."""
    return -0.5 * float(np.sum(counts * np.log(2 * math.pi * tau) + squares / tau))


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
            own_score, own = derivatives(terms.own[k], block.mu, block.sigma)
            slopes = np.concatenate([m, s])
            score[slopes] += own_score
            info[np.ix_(slopes, slopes)] += own
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


# --- back to given units ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Units:
    """value = centre + scale * standardised value, of all covariates and of the response."""

    centre: Vector
    scale: Vector
    response: tuple[float, float]


def as_regression(
    model: BlockModel,
    terms: Terms,
    units: Units,
    *,
    names: Sequence[str],
    target: int,
    trace: Sequence[float],
    steps: tuple[int, int],
) -> tuple[GaussianFit, Coefficients]:
    """The Gaussian of (x, y), y in place `target`, and the regression, in the units given; `steps` of EM and Newton.

    `sigma2` and `cov` carry n / (n - p - 1), as in ordinary least squares.
    """
    p, n = model.width, float(terms.counts.sum())
    if n <= p + 1:
        raise NotEstimable(f"{n:.0f} records cannot determine {p + 1} coefficients; leave columns out.")
    centre, scale = units.response
    explained = sum(block.variance for block in model.blocks)
    others = np.delete(np.arange(1 + p), target)
    mu, sigma = np.zeros(1 + p), np.zeros((1 + p, 1 + p))
    mu[others] = units.centre + units.scale * model.mu
    mu[target] = centre + scale * (model.intercept + float(model.beta @ model.mu))
    sigma[np.ix_(others, others)] = model.sigma * np.outer(units.scale, units.scale)
    sigma[others, target] = sigma[target, others] = model.sigma @ model.beta * units.scale * scale
    sigma[target, target] = (model.sigma2 + explained) * scale**2
    correction = n / (n - p - 1)
    standard = Coefficients(
        names=tuple(names),
        params=np.concatenate([[model.intercept], model.beta]),
        cov=correction * covariance(model, terms),
        sigma2=correction * model.sigma2,
        rsquared=explained / (model.sigma2 + explained),
    )
    # Changing units moves every log-likelihood by the same constant.
    scales = (float(np.log(units.scale[place]).sum()) for place in model.places)
    constant = n * math.log(scale) + sum(
        statistics.n * log_scale for statistics, log_scale in zip(terms.own, scales, strict=True)
    )
    values = tuple(value - constant for value in trace)
    return GaussianFit(mu, sigma, values[-1], values, *steps), standard.in_units(
        units.centre, units.scale, (centre, scale)
    )


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
    model, trace, steps = climb(standard, starting_model(standard, init))
    others = np.delete(np.arange(len(scale)), target)
    units = Units(centre[others], scale[others], (float(centre[target]), float(scale[target])))
    names = [data.names[place] for place in others]
    fit = as_regression(model, standard.terms(model), units, names=names, target=target, trace=trace, steps=steps)
    return observed.regression(*fit)


def block_moments(data: PatternStatistics, owners: Sequence[str], target: int, parties: Sequence[str]) -> BlockMoments:
    """Pattern moments over (x, y); every pattern shows the response."""
    others = np.delete(np.arange(len(data.names)), target)
    owner = np.array(owners)
    masks = tuple(tuple(np.isin(parties, owner[pattern.observed]).tolist()) for pattern in data.patterns)
    widths = tuple(int(np.sum(owner[others] == party)) for party in parties)
    return BlockMoments(widths, masks, data.only(np.append(others, target)))


def starting_model(data: BlockMoments, init: Init) -> BlockModel:
    """The paper's: coefficients from complete cases or mean imputation, available-case moments, s2 = var(y) = 1."""
    p = sum(data.widths)
    chosen = [number for number, mask in enumerate(data.masks) if init == "mean" or all(mask)]
    total = sum((data.filled(number, np.zeros(p)) for number in chosen), np.zeros((2 + p, 2 + p)))
    if init == "complete-case" and total[0, 0] <= p + 1:
        raise NotEstimable(
            f"{total[0, 0]:.0f} records are complete, and {p + 2} are needed to start from them; take init='mean'."
        )
    start = model_of(total, consecutive(data.widths))
    blocks = []
    for block, statistics in zip(start.blocks, data.own, strict=True):
        mean, _ = statistics.available()
        products = statistics.patterns[0].about(mean)[1]
        blocks.append(BlockParameters(block.beta, mean, products / max(statistics.n, 1.0)))
    return BlockModel(start.intercept, 1.0, tuple(blocks))


@dataclass(frozen=True, eq=False)
class BlockMoments:
    """Pattern moments over (x, y), with the party of each covariate: what `solver="exact"` computes from.

    `masks` say who has the records of each pattern of `data`, in which the response is the last coordinate.
    """

    widths: tuple[int, ...]
    masks: tuple[tuple[bool, ...], ...]
    data: PatternStatistics

    @cached_property
    def own(self) -> tuple[PatternStatistics, ...]:
        """The moments of each party's covariates over the records that it has."""
        columns = np.arange(sum(self.widths))
        return tuple(pooled(self.data.only(columns[place])) for place in consecutive(self.widths))

    def filled(self, number: int, mu: Vector) -> Matrix:
        """The Gram matrix of (1, x, y) of one pattern, with missing blocks at their mean."""
        seen = 1 + self.data.patterns[number].observed
        put = np.zeros((2 + len(mu), 1 + len(seen)))
        put[1:-1, 0] = mu
        put[seen, 0] = 0.0
        put[0, 0] = 1.0
        put[seen, 1 + np.arange(len(seen))] = 1.0
        return np.asarray(put @ self._grams[number] @ put.T)

    @cached_property
    def _grams(self) -> list[Matrix]:
        """Of each pattern, over (1, what it shows)."""
        return [
            np.block([[np.full((1, 1), pattern.count), pattern.sums[None]], [pattern.sums[:, None], pattern.gram]])
            for pattern in self.data.patterns
        ]

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
        counts = np.array([pattern.count for pattern in self.data.patterns])
        return Terms(self.masks, counts, sums, squares, gram, score_sum, first, second, self.own)

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


def climb(data: BlockMoments, start: BlockModel) -> tuple[BlockModel, list[float], tuple[int, int]]:
    """Equation (6), then Newton's method on the exact information; only steps that do not lower the likelihood.

    Returns the model, the log-likelihood after each step, and the numbers of EM and Newton steps.
    """
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
                return model, [*trace, max(trace[-1], last)], (em_steps, newton_steps)
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
