"""How likely blocks are to be there, given the response holder's own columns, and the weights that undo selection.

The holder knows the presence mask and its own columns w. For each other party a it fits a logit of presence on bounded
functions of w (`own_terms`), and for each pair one of b's presence among the records of a, so that blocks may go
missing together. A record that has both a and b gets the weight

    v_ab = P(a, b) / (pi_a(w) pi_b|a(w)),

stabilised by the pair's share P(a, b), capped, and normalised so that the weights of a pair add up to all records.
Where presence depends on w alone, and the logits are right, a pair's weighted records have the moments of all records.
"""

from __future__ import annotations

import itertools
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
"""A block that is less likely than this for a record, and than a fifth of what it is on average, is hardly ever seen
with such a record: what it lacks is extrapolated."""
WINSORISED = 3.0
"""Standard deviations at which a number's part in the log-odds ends."""
CLASSES = 5
"""Of the response, by its quantiles: the log-odds may depend on the other columns differently in each."""
RIDGE = 1.0
"""The precision of a coefficient's prior, in standard deviations of its term: it keeps separated cells finite."""
NEWTON_STEPS = 50

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class PresenceWeights:
    """`weights` has a column for each pair (a, b) of other parties, a <= b: zero for a record that lacks either."""

    pairs: tuple[Pair, ...]
    weights: Matrix
    capped: int
    """Records with a weight above the cap."""
    unlikely: int
    """Records of which some block is unlikely, see `UNLIKELY`."""
    rare: int
    """Own levels that were merged into the reference level."""


def block_pairs(blocks: int) -> tuple[Pair, ...]:
    return tuple(itertools.combinations_with_replacement(range(blocks), 2))


def presence_weights(own: Matrix, response: int, present: NDArray[np.bool_], *, cap: float = CAP) -> PresenceWeights:
    """From the holder's columns (record, column), the place of the response, and the mask (record, other party)."""
    n, blocks = present.shape
    terms, merged = own_terms(own, response)
    design = np.column_stack([np.ones(n), terms])
    logits = [fitted_logit(design, mask, None) for mask in present.T]
    single = [logit_probability(design, mask, own) for mask, own in zip(present.T, logits, strict=True)]
    pairs = block_pairs(blocks)
    weights = np.zeros((n, len(pairs)))
    capped = np.zeros(n, dtype=bool)
    for column, (a, b) in enumerate(pairs):
        both = present[:, a] & present[:, b]
        if not both.any():
            continue
        probability = single[a]
        if b != a:
            records, joint = present[:, a], present[present[:, a], b]
            probability = probability * logit_probability(
                design, joint, fitted_logit(design[records], joint, logits[b])
            )
        own_weights = np.where(both, both.mean() / probability, 0.0)
        capped |= own_weights > cap
        own_weights = np.minimum(own_weights, cap)
        weights[:, column] = own_weights * (n / own_weights.sum())
    unlikely = np.any(
        [own < min(UNLIKELY, mask.mean() / 5) for own, mask in zip(single, present.T, strict=True)], axis=0
    )
    return PresenceWeights(pairs, weights, int(capped.sum()), int(np.sum(unlikely)), merged)


def own_terms(own: Matrix, response: int) -> tuple[Matrix, int]:
    """Bounded functions of the holder's columns, standardised; and how many rare levels were merged.

    A column of two values enters as it is; one of more as its winsorised value, the square of that and its rank, which
    tells values apart where they are dense. Each enters again times the response, and within classes of the response.
    """
    value = winsorised(own[:, response])
    edges = np.unique(np.quantile(own[:, response], np.arange(1, CLASSES) / CLASSES))
    label = np.searchsorted(edges, own[:, response])
    classes = [(label == number).astype(np.float64) for number in range(1, len(edges) + 1)]
    terms = [value, value**2, _rank(own[:, response]), *classes]
    merged = 0
    for place, column in enumerate(own.T):
        low, high = column.min(), column.max()
        if place == response or low == high:
            continue
        if rare(column):
            merged += 1
            continue
        if np.isin(column, (low, high)).all():
            term = column
        else:
            term = winsorised(column)
            terms += [term**2, _rank(column)]
        terms += [term, term * value, *(term * own_class for own_class in classes)]
    joined = np.column_stack(terms)
    joined = joined[:, joined.std(axis=0) > 1e-9]
    return (joined - joined.mean(axis=0)) / joined.std(axis=0), merged


def rare(column: Vector) -> bool:
    """Whether a column has two values, one of them in too few records, or does not vary."""
    low, high = column.min(), column.max()
    two = np.isin(column, (low, high)).all()
    return bool(two and (low == high or min(np.mean(column == low), np.mean(column == high)) < RARE))


def winsorised(values: Vector) -> Vector:
    return np.asarray(np.clip((values - values.mean()) / max(float(values.std()), 1e-300), -WINSORISED, WINSORISED))


def _rank(values: Vector) -> Vector:
    """Mid-ranks between -1 and 1."""
    return np.asarray((2 * rankdata(values) - len(values) - 1) / len(values))


def logit_probability(design: Matrix, outcome: NDArray[np.bool_], coefficients: Vector) -> Vector:
    """1 where nothing is missing: a logit would only come close to it."""
    return np.ones(len(design)) if outcome.all() else np.asarray(expit(design @ coefficients))


def fitted_logit(design: Matrix, outcome: NDArray[np.bool_], start: Vector | None) -> Vector:
    """Penalised maximum likelihood by Newton's method, halving a step that would lower it; the intercept is free."""
    penalty = np.full(design.shape[1], RIDGE)
    penalty[0] = 1e-6
    coefficients = np.zeros(design.shape[1])
    if outcome.all() or not outcome.any():
        return coefficients
    if start is None:
        mean = float(np.clip(outcome.mean(), 1e-6, 1 - 1e-6))
        coefficients[0] = np.log(mean / (1 - mean))
    else:
        coefficients = start
    sign = np.where(outcome, 1.0, -1.0)

    def value(trial: Vector) -> float:
        return float(-np.logaddexp(0.0, -sign * (design @ trial)).sum() - 0.5 * trial @ (penalty * trial))

    reached = value(coefficients)
    for _ in range(NEWTON_STEPS):
        probability = expit(design @ coefficients)
        score = design.T @ (outcome - probability) - penalty * coefficients
        curvature = (design * (probability * (1 - probability))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, score)
        gain = float(score @ step)
        if gain < 1e-6:
            break
        while (after := value(coefficients + step)) < reached and gain > 1e-9:
            step, gain = step / 2, gain / 2
        coefficients, reached = coefficients + step, after
    return coefficients
