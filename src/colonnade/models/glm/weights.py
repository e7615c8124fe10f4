"""Weights of the records that every party of a model has, so that they stand for all records of the response holder.

The holder knows its own columns w and who has which record. Blocks a = 1, 2, ... are there with probability

    P(all | w) = pi_1(w) pi_2|1(w) pi_3|12(w) ...,

each factor a logit on bounded functions h of w (`models.linear.propensity`), fitted to the records that have the blocks
before it. A complete record gets the weight P(all) / P(all | w), capped. Estimating the logits moves an estimate by
what their scores g = (R_a - pi_a) h, over the records that have the blocks before a, explain of a record's influence:
so they are kept, as orthonormal columns, and what they explain is taken off (Robins, Rotnitzky and Zhao 1994).

Of a binary response the weights are then calibrated. Where few records of a kind are complete, each stands for many,
and what it happens to say moves the estimate far: errors are large, skewed, and seem small where none was drawn.
The holder knows y and its covariates t = (1, z) of all its records, and with the least squares m of y on t also

    h = (y - m) t,

about the part of a record's score that its own columns tell. The weights v are multiplied by exp(b'h), b such that

    sum v h / sum v = mean of h over all records           (raking: Deville and Sarndal 1992),

so that what own columns tell of the score is that of all records, and only what they do not tell is left to complete
ones (Breslow and others 2009). What h explains of a record's influence is taken off as what (v / P(all) - 1) h does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from colonnade.models.linear.propensity import CAP, fitted_logit, logit_probability, own_terms, rare, winsorised
from colonnade.statistics.gaussian_em import Matrix, Vector

PROJECTED = 48
"""Columns of scores that are projected on at most, the first terms of every logit first. Those beyond leave errors too
large, never too small."""


CALIBRATED = PROJECTED // 2
"""Columns h at most, those of the holder's first columns."""
RECORDS_EACH = 20
"""Complete records for each column h."""
TOLERANCE = 1e-4
"""Standard deviations of h by which a sum may miss its target for each unit of b: it keeps b finite where no weights
meet the target."""
NEWTON_STEPS = 50


@dataclass(frozen=True, eq=False)
class CompleteWeights:
    """`weights` are zero for a record that lacks a block and 1 on average for the others; `scores` has orthonormal
    columns; `slopes` are mu' of a record as far as its response tells it."""

    weights: Vector
    scores: Matrix
    slopes: Vector
    capped: int
    """Records with a weight above the cap."""
    unlikely: int
    """Records whose chance to be complete is less than a fifth of the average: hardly any such record is seen."""
    rare: int
    """Own levels that were merged into the reference level."""

    @property
    def complete(self) -> int:
        return int(np.count_nonzero(self.weights))

    @property
    def effective(self) -> float:
        """(sum v)^2 / sum v^2: as many records of equal weight tell as much."""
        return float(self.weights.sum() ** 2 / max(float((self.weights**2).sum()), 1e-300))

    def inflation(self, coefficients: int) -> Vector:
        """By which a record's residual is multiplied in the errors, so that they are not too small.

        A fit with p coefficients takes p v_i / sum v of the variance of record i's residual on average over its
        columns (its leverage), and a projection on scores with leverage l_i explains l_i of it by chance. With equal
        weights and nothing missing the square is n / (n - p), as in HC1; with unequal ones it grows as in HC3. Of a
        count v_i mu_i takes the place of v_i.
        """
        told = self.weights * self.slopes
        share = np.minimum(coefficients * told / max(float(told.sum()), 1e-300), 0.5)
        first = max(1 - coefficients / max(self.complete, 1), 0.5)
        leverage = np.einsum("ij,ij->i", self.scores, self.scores)
        return np.asarray(np.sqrt((1 + leverage) * first) / (1 - share))


def equal_weights(present: NDArray[np.bool_]) -> CompleteWeights:
    """1 for a complete record: right if records are missing completely at random."""
    complete = np.asarray(present.all(axis=1), dtype=np.float64)
    return CompleteWeights(complete, np.zeros((len(present), 0)), np.ones(len(present)), 0, 0, 0)


def complete_weights(
    own: Matrix,
    response: int,
    present: NDArray[np.bool_],
    *,
    family: str,
    cap: float = CAP,
    conditional: bool = False,
) -> CompleteWeights:
    """From the holder's columns (record, column), the place of the response, and the mask (record, other party).

    `conditional`: with P(all | covariates of the holder) in place of P(all). Complete records then stand for others
    with the same covariates, which is all that a right model of the response given all covariates needs, and what
    presence owes to the covariates alone makes no weight. The scores of presence are those of the other weights. They
    are not calibrated.
    """
    if present.all() or not present.all(axis=1).any():
        return equal_weights(present)
    complete = present.all(axis=1)
    terms, merged = own_terms(own, response)
    probability, scores = _chances(terms, present)
    average: Vector = np.full(len(own), complete.mean())
    covariates = np.delete(own, response, axis=1)
    varying = np.flatnonzero(np.ptp(covariates, axis=0))
    if conditional and len(varying):
        average = _chances(own_terms(covariates, int(varying[0]))[0], present)[0]
    weights = np.where(complete, average / probability, 0.0)
    unlikely = probability < average / 5
    capped = weights > cap
    weights = np.minimum(weights, cap)
    weights *= complete.sum() / weights.sum()
    if family == "binomial" and not conditional:
        balanced = _told_scores(own, response)[:, : min(CALIBRATED, int(complete.sum()) // RECORDS_EACH)]
        weights = _raked(weights, balanced)
        scores = np.column_stack([(weights / complete.mean() - 1)[:, None] * balanced, scores])
    return CompleteWeights(
        weights,
        _orthonormal(scores),
        _told_slopes(own[:, response]) if family == "poisson" else np.ones(len(own)),
        int(capped.sum()),
        int(unlikely.sum()),
        merged,
    )


def _chances(terms: Matrix, present: NDArray[np.bool_]) -> tuple[Vector, Matrix]:
    """P(all | terms), and the scores of its logits, the same term of each logit together."""
    n = len(terms)
    design = np.column_stack([np.ones(n), terms])
    before = np.ones(n, dtype=bool)
    probability = np.ones(n)
    scores = []
    for mask in present.T:
        among = mask[before]
        if not among.all():
            chance = logit_probability(design, among, fitted_logit(design[before], among, None))
            scores.append(np.where(before, mask - chance, 0.0)[:, None] * design)
            probability = probability * chance
        before = before & mask
    return probability, np.stack(scores, axis=2).reshape(n, -1)


def _told_scores(own: Matrix, response: int) -> Matrix:
    """h, in standard deviations: of the intercept first, then of each covariate that varies enough, bounded."""
    covariates = np.column_stack(
        [np.ones(len(own)), *(winsorised(column) for place, column in enumerate(own.T) if place != response)]
    )
    covariates = covariates[:, [True, *(not rare(column) for column in covariates.T[1:])]]
    left = own[:, response] - covariates @ np.linalg.lstsq(covariates, own[:, response], rcond=None)[0]
    told = left[:, None] * covariates
    return np.asarray((told - told.mean(axis=0)) / np.maximum(told.std(axis=0), 1e-300))


def _raked(weights: Vector, balanced: Matrix) -> Vector:
    """`weights` times exp(b'h), with their sum, so that the weighted means of h are zero: Newton's method for the
    convex log sum v exp(b'h) + TOLERANCE b'b / 2, whose slope they are."""
    used = weights > 0
    columns, start = balanced[used], weights[used] / weights.sum()
    tilt = np.zeros(columns.shape[1])

    def value(trial: Vector) -> float:
        return float(logsumexp(columns @ trial, b=start) + TOLERANCE / 2 * trial @ trial)

    reached = value(tilt)
    for _ in range(NEWTON_STEPS):
        share = start * np.exp(columns @ tilt - logsumexp(columns @ tilt, b=start))
        mean = share @ columns
        slope = mean + TOLERANCE * tilt
        curvature = (columns * share[:, None]).T @ columns - np.outer(mean, mean) + TOLERANCE * np.eye(len(tilt))
        step = -np.linalg.solve(curvature, slope)
        gain = -float(slope @ step)
        if gain < 1e-12:
            break
        while (after := value(tilt + step)) > reached and gain > 1e-14:
            step, gain = step / 2, gain / 2
        tilt, reached = tilt + step, after
    raked = np.zeros(len(weights))
    raked[used] = weights.sum() * start * np.exp(columns @ tilt - logsumexp(columns @ tilt, b=start))
    return raked


def _told_slopes(counts: Vector) -> Vector:
    """Up to a factor: a third of the way from the average of all counts, above the least, to a record's own. Of a
    count mu' is mu, which the holder does not know; records with large means, which lead a fit, have large counts. With
    the average alone intervals covered too little in trials, with half of the way some were a quarter too wide."""
    above = counts - counts.min()
    return np.asarray(above + 2 * above.mean())


def _orthonormal(columns: Matrix) -> Matrix:
    """Of the first columns that are not combinations of those before them, at most `PROJECTED`."""
    gram = columns.T @ columns
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    chosen: list[int] = []
    residual = gram / np.outer(scale, scale)
    for place in range(len(gram)):
        if residual[place, place] > 1e-6 and len(chosen) < PROJECTED:
            chosen.append(place)
            along = residual[place] / np.sqrt(residual[place, place])
            residual = residual - np.outer(along, along)
    part = columns[:, chosen] / scale[chosen]
    lower = np.linalg.cholesky(part.T @ part)
    return np.asarray(np.linalg.solve(lower, part.T).T)
