"""Newton's method for the score equations of a generalized linear model, and its robust covariance, from sums alone.

With the weights v of `weights.py`, r_i = v_i (y_i - mu_i) and W_i = v_i mu'(eta_i), a round needs

    score s = sum r_i x_i          and          bread B = sum W_i x_i x_i',

and the covariance needs M = sum r_i^2 x_i x_i' and C = sum r_i x_i g_i', g the orthonormal scores of presence:

    V = B^-1 (M - C C') B^-1.

M has each r_i inflated for what the fit takes of it (`CompleteWeights.inflation`): without weights and C, V is HC1 of
the maximum likelihood fit. Both links are canonical, so B is the information.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import NotEstimable
from colonnade.statistics.features import Feature
from colonnade.statistics.gaussian_em import NEARLY_SINGULAR, Matrix, Vector, redundant

Family = Literal["binomial", "poisson"]
MOST_ROUNDS = 40
"""Points at which scores are asked for; 5 to 8 are usual."""
SINGULAR = 1e-10
"""Smallest eigenvalue of the information in units of its diagonal; below it columns determine one another."""
SATURATED = 1e-6
"""The sum of the weights, as a share of that at zero: below it the response is told by the covariates."""
VANISHED = 1e-3
"""Records by which a category's fitted variance counts; a maximum gives it the variance of the responses it has."""
DETERMINED = 0.95
"""A correlation with the response at which a column alone leaves nothing to explain."""
SETTLED = 1e-8
"""s'B^-1 s before the last step: squared standard errors of distance. A further step would be about its square."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """At one point; the intercept comes first."""

    score: Vector
    bread: Matrix
    top: float
    """No record's predictor is larger."""

    def only(self, places: NDArray[np.intp]) -> Evaluation:
        return Evaluation(self.score[places], self.bread[np.ix_(places, places)], self.top)


Evaluate = Callable[[Vector, float], Evaluation | None]
"""(Coefficients, a limit for predictors) -> sums over records, or None if predictors there exceed the limit, or leave
the range in which they are computed."""
STRIDE = 3.0
"""How much a step may raise the largest log mean: where exp runs away, Newton's method has no way back."""


@dataclass(frozen=True, eq=False)
class Solution:
    params: Vector
    bread: Matrix
    """Before the last step, less than a ten-thousandth of a standard error away."""
    null: Evaluation
    """At coefficients of zero: v-weighted moments of the columns, in units of the family's mu'(0)."""
    steps: int
    absent: tuple[int, ...] = ()
    """Of all coefficients, those of categories without a record: they are not in the model."""

    def used(self, features: Sequence[Feature]) -> tuple[Feature, ...]:
        """Those with a coefficient; the intercept comes before all of them."""
        return tuple(feature for place, feature in enumerate(features, 1) if place not in self.absent)

    def everywhere(self) -> Vector:
        """The coefficients with a zero for each that is absent."""
        out = np.zeros(len(self.params) + len(self.absent))
        out[np.delete(np.arange(len(out)), self.absent)] = self.params
        return out


def solve(
    family: Family,
    evaluate: Evaluate,
    width: int,
    *,
    columns: Sequence[str] = (),
    indicators: Sequence[bool] = (),
    unvaried: str = "",
) -> Solution:
    """From the model without covariates. A step that leaves the range is halved.

    `columns` are those of the coefficients after the intercept, and `unvaried` is the sentence about a response that
    does not vary, for refusals. A category that no record has leaves the model, if it is among the `indicators`.
    """
    columns = ("", *(columns or map(str, range(1, width))))
    null = evaluate(np.zeros(width), math.inf)
    if null is None:
        raise NotEstimable("the offset leaves the range of predictors; subtract a number from it, its mean say.")
    empty = np.diag(null.bread) <= 0
    absent = tuple(place for place, indicator in enumerate(indicators, 1) if indicator and empty[place])
    if absent:
        places = np.delete(np.arange(width), absent)
        evaluate, null = _among(evaluate, places, width), null.only(places)
        columns, indicators = [columns[place] for place in places], [indicators[place - 1] for place in places[1:]]
    point = np.zeros(len(columns))
    point[0] = _intercept(family, null, unvaried)
    known = evaluate(point, math.inf)
    used = 2
    while known is not None and known.bread[0, 0] > SATURATED * null.bread[0, 0]:
        _check_columns(known.bread, columns, indicators)
        step = _solved(known.bread, known.score)
        distance = float(known.score @ step)
        if distance < SETTLED:
            return Solution(point + step, known.bread, null, used, absent)
        limit = known.top + STRIDE if family == "poisson" else math.inf
        known = None
        while known is None and used < MOST_ROUNDS and np.abs(step).max() > 1e-9:
            known = evaluate(point + step, limit)
            used += 1
            if known is None:
                step = step / 2
        point = point + step
    listed = ", ".join(map(repr, _separating(family, null, point, columns)))
    raise NotEstimable(
        "the likelihood has no maximum within reach: some covariates separate the response, or predict it so well that"
        f" coefficients grow without end; leave out {listed} with columns=."
    )


def _among(evaluate: Evaluate, places: NDArray[np.intp], width: int) -> Evaluate:
    """Of the coefficients at these places; the others are zero."""

    def evaluated(point: Vector, limit: float) -> Evaluation | None:
        every = np.zeros(width)
        every[places] = point
        sums = evaluate(every, limit)
        return None if sums is None else sums.only(places)

    return evaluated


def _separating(family: Family, null: Evaluation, point: Vector, columns: Sequence[str]) -> list[str]:
    """The columns that tell nearly all of the response by themselves; those of the largest coefficients, if none does.

    At zero, score and bread of a binomial model are sum v x (y - 1/2) and sum v x x' / 4.
    """
    total, spread = 4 * null.bread[0, 0], 4 * np.diag(null.bread)
    mean, lean = 4 * null.bread[0] / total, null.score / total
    variance = (spread / total - mean**2) * (0.25 - lean[0] ** 2)
    association = np.abs(lean - mean * lean[0]) / np.sqrt(np.maximum(variance, 1e-300))
    sizes = np.abs(point) * np.sqrt(np.maximum(spread / total - mean**2, 0.0))
    association[0] = sizes[0] = 0.0
    alone = association > DETERMINED if family == "binomial" else np.zeros(len(columns), dtype=bool)
    chosen = alone if alone.any() else sizes >= sizes.max() / 2
    return list(dict.fromkeys(columns[place] for place in np.flatnonzero(chosen).tolist()))


def _intercept(family: Family, null: Evaluation, unvaried: str) -> float:
    """Of the model without covariates, from the sums at zero: sum v y = score + sum v mu."""
    weight = float(null.bread[0, 0])
    if family == "poisson":
        total = float(null.score[0]) + weight
        if total <= 0:
            raise NotEstimable("the response is zero in all records used, so a poisson model has no mean to explain.")
        return math.log(total / weight)
    mean = 0.5 + float(null.score[0]) / (4 * weight)
    if not 1e-9 < mean < 1 - 1e-9:
        raise NotEstimable(unvaried or "the response does not vary in the records used.")
    return math.log(mean / (1 - mean))


def _check_columns(bread: Matrix, columns: Sequence[str], indicators: Sequence[bool]) -> None:
    """Refuse categories that separate the response, and columns that do not vary or that determine one another."""
    vanished = [columns[place] for place, own in enumerate(indicators, 1) if own and bread[place, place] < VANISHED]
    if vanished:
        listed = ", ".join(map(repr, dict.fromkeys(vanished)))
        raise NotEstimable(
            f"the response is always the same in some category of {listed}, whose coefficient grows without end; leave"
            f" out {listed} with columns=, or list fewer categories, so that rare ones are other."
        )
    scale = np.sqrt(np.maximum(np.diag(bread), 0.0))
    flat = dict.fromkeys(columns[place] for place in np.flatnonzero(~(scale > 0)).tolist())
    if flat:
        listed = ", ".join(map(repr, flat))
        raise NotEstimable(f"columns {listed} do not vary in the records used; leave them out with columns=.")
    standard = bread / np.outer(scale, scale)
    if np.linalg.eigvalsh(standard)[0] < SINGULAR:
        out = ", ".join(map(repr, redundant(standard, columns, floor=NEARLY_SINGULAR)))
        raise NotEstimable(
            f"covariates determine one another, or the intercept, in the records used; leave out {out} with columns=."
        )


def _solved(bread: Matrix, right: Matrix) -> Matrix:
    """B^-1 right, in units in which B has ones on its diagonal."""
    scale = np.sqrt(np.diag(bread))
    standard = bread / np.outer(scale, scale)
    divided = right / (scale if right.ndim == 1 else scale[:, None])
    solution = np.linalg.solve(standard, divided)
    return np.asarray(solution / (scale if right.ndim == 1 else scale[:, None]))


def robust_covariance(bread: Matrix, meat: Matrix, explained: Matrix) -> Matrix:
    """V of the module's head; `explained` is C (coefficient, column of g)."""
    half = _solved(bread, meat - explained @ explained.T)
    return np.asarray(_solved(bread, half.T))
