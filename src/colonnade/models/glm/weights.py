"""Weights of the records that every party of a model has, so that they stand for all records of the response holder.

The holder knows its own columns w and who has which record. Blocks a = 1, 2, ... are there with probability

    P(all | w) = pi_1(w) pi_2|1(w) pi_3|12(w) ...,

each factor a logit on bounded functions h of w (`models.linear.propensity`), fitted to the records that have the blocks
before it. A complete record gets the weight P(all) / P(all | w), capped. Estimating the logits moves an estimate by
what their scores g = (R_a - pi_a) h, over the records that have the blocks before a, explain of a record's influence:
so they are kept, as orthonormal columns, and what they explain is taken off (Robins, Rotnitzky and Zhao 1994).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colonnade.models.linear.propensity import CAP, fitted_logit, logit_probability, own_terms
from colonnade.statistics.gaussian_em import Matrix, Vector

PROJECTED = 48
"""Columns of scores that are projected on at most, the first terms of every logit first. Those beyond leave errors too
large, never too small."""


@dataclass(frozen=True, eq=False)
class CompleteWeights:
    """`weights` are zero for a record that lacks a block and 1 on average for the others; `scores` has orthonormal
    columns."""

    weights: Vector
    scores: Matrix
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
        weights and nothing missing the square is n / (n - p), as in HC1; with unequal ones it grows as in HC3.
        """
        share = np.minimum(coefficients * self.weights / max(float(self.weights.sum()), 1e-300), 0.5)
        first = max(1 - coefficients / max(self.complete, 1), 0.5)
        leverage = np.einsum("ij,ij->i", self.scores, self.scores)
        return np.asarray(np.sqrt((1 + leverage) * first) / (1 - share))


def equal_weights(present: NDArray[np.bool_]) -> CompleteWeights:
    """1 for a complete record: right if records are missing completely at random."""
    complete = np.asarray(present.all(axis=1), dtype=np.float64)
    return CompleteWeights(complete, np.zeros((len(present), 0)), 0, 0, 0)


def complete_weights(
    own: Matrix, response: int, present: NDArray[np.bool_], *, cap: float = CAP, conditional: bool = False
) -> CompleteWeights:
    """From the holder's columns (record, column), the place of the response, and the mask (record, other party).

    `conditional`: with P(all | covariates of the holder) in place of P(all). Complete records then stand for others
    with the same covariates, which is all that a right model of the response given all covariates needs, and what
    presence owes to the covariates alone makes no weight. The scores of presence are those of the other weights.
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
    return CompleteWeights(
        weights * (complete.sum() / weights.sum()),
        _orthonormal(scores),
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
