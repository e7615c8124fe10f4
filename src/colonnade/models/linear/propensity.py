"""How likely each block is to be there, given the response holder's own columns, and the weights that undo selection.

The holder knows the presence mask and its own columns w. It fits one logit for each other party in turn, on bounded
functions of w (ranks, their squares, asinh, products with the response) and on the presence of the parties before it,
so that blocks may go missing together. With pi_O(w) the product over the parties, a record of pattern O has the weight

    v = P(O) / pi_O(w),

stabilised by the share P(O) of its pattern, capped, and normalised so that the weights of a pattern add up to its
records. Where presence depends on w alone, and the logits are right, a weighted pattern has the moments of all records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import rankdata

from colonnade.statistics.gaussian_em import Matrix, Vector

CAP = 20.0
"""The largest stabilised weight."""
RARE = 0.01
"""A level with a smaller share of the records says too little of presence to have a parameter of its own."""
UNLIKELY = 0.05
"""A record whose block is less likely than this stands for more than twenty that lack it."""
RIDGE = 1.0
"""The precision of a coefficient's prior, in standard deviations of its term: it keeps separated cells finite."""
NEWTON_STEPS = 50


@dataclass(frozen=True, eq=False)
class PresenceWeights:
    """One weight for each record, what they are made of, and what may be said of them.

    `scores` are the derivatives of each record's log-likelihood of presence in the logits' coefficients.
    """

    weights: Vector
    scores: Matrix
    capped: int
    unlikely: int
    """Records of which some block that may be missing has a probability below `UNLIKELY`."""
    rare: int
    """Own levels that were merged into the reference level."""


def own_terms(own: Matrix, response: int) -> tuple[Matrix, int]:
    """Bounded functions of the holder's columns, standardised; and how many rare levels were merged.

    A column of two values enters as it is, one of more as its rank r, r^2 and asinh of its standardised value; each also
    times the response's rank, so that selection may depend on both together.
    """
    first: list[Vector] = []
    more: list[Vector] = []
    merged = 0
    rank_of_response = _rank(own[:, response])
    for place, values in enumerate(own.T):
        if values.min() == values.max():
            continue
        if np.isin(values, (values.min(), values.max())).all():
            if min(np.mean(values == values.min()), np.mean(values == values.max())) < RARE:
                merged += 1
                continue
            term = values
        else:
            term = _rank(values)
            more += [term**2, np.arcsinh((values - values.mean()) / values.std())]
        first.append(term)
        if place != response:
            more.append(term * rank_of_response)
    terms = np.column_stack([*first, *more])
    spread = terms.std(axis=0)
    terms = terms[:, spread > 0]
    return (terms - terms.mean(axis=0)) / terms.std(axis=0), merged


def _rank(values: Vector) -> Vector:
    """Mid-ranks between -1 and 1."""
    return np.asarray((2 * rankdata(values) - len(values) - 1) / len(values))


def presence_weights(own: Matrix, response: int, present: NDArray[np.bool_], *, cap: float = CAP) -> PresenceWeights:
    """From the holder's columns (record, column), the place of the response, and the mask (record, other party)."""
    n = len(own)
    terms, merged = own_terms(own, response)
    patterns, pattern = np.unique(present, axis=0, return_inverse=True)
    pattern = pattern.reshape(-1)
    counts = np.bincount(pattern, minlength=len(patterns)).astype(np.float64)
    log_pi = np.zeros(n)
    unlikely = np.zeros(n, dtype=bool)
    scores: list[Matrix] = []
    before: list[Vector] = []
    for mask in present.T:
        if mask.all() or not mask.any():
            continue
        design = np.column_stack([np.ones(n), terms, *before])
        probability = expit(design @ _logit(design, mask))
        log_pi += np.log(np.where(mask, probability, 1 - probability))
        unlikely |= probability < UNLIKELY
        scores.append(design * (mask - probability)[:, None])
        before.append((mask - mask.mean()) / mask.std())
    weights = np.exp(np.log(counts / n)[pattern] - log_pi)
    capped = int((weights > cap).sum())
    weights = np.minimum(weights, cap)
    weights *= (counts / np.bincount(pattern, weights, minlength=len(counts)))[pattern]
    joined = np.column_stack(scores) if scores else np.zeros((n, 0))
    return PresenceWeights(weights, joined, capped, int(unlikely.sum()), merged)


def _logit(design: Matrix, outcome: NDArray[np.bool_]) -> Vector:
    """Penalised maximum likelihood by Newton's method, halving a step that would lower it; the intercept is free."""
    penalty = np.full(design.shape[1], RIDGE)
    penalty[0] = 0.0
    mean = float(outcome.mean())
    coefficients = np.zeros(design.shape[1])
    coefficients[0] = np.log(mean / (1 - mean))
    sign = np.where(outcome, 1.0, -1.0)

    def value(at: Vector) -> float:
        return float(-np.logaddexp(0.0, -sign * (design @ at)).sum() - 0.5 * at @ (penalty * at))

    reached = value(coefficients)
    for _ in range(NEWTON_STEPS):
        probability = expit(design @ coefficients)
        score = design.T @ (outcome - probability) - penalty * coefficients
        curvature = (design * (probability * (1 - probability))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature + 1e-9 * np.eye(len(penalty)), score)
        if score @ step < 1e-10:
            break
        while value(coefficients + step) < reached and score @ step > 1e-10:
            step = step / 2
        coefficients = coefficients + step
        reached = value(coefficients)
    return coefficients
