"""Newton's method for the score equations of a generalized linear model, and its robust covariance, from sums alone.

With the weights v of `weights.py`, r_i = v_i (y_i - mu_i) and W_i = v_i mu'(eta_i), a round needs

    score s = sum r_i x_i          and          bread B = sum W_i x_i x_i',

and the covariance needs M = sum r_i^2 x_i x_i' and C = sum r_i x_i g_i', g the orthonormal scores of presence:

    V = B^-1 (M - C C') B^-1.

M has each r_i inflated for what the fit takes of it (`CompleteWeights.inflation`): without weights and C, V is HC1 of
the maximum likelihood fit. Both links are canonical, so B is the information.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
FEWEST_WEIGHTS = 0.5
"""The sum of the weights, in records: a maximum leaves residuals of about one record or more on each side."""
VANISHED = 1e-3
"""Records by which a category's fitted variance counts; a maximum gives it the variance of the responses it has."""
DETERMINED = 0.95
"""A correlation with the response at which a column alone leaves nothing to explain."""
NEAR = 1.0
"""s'B^-1 s from which on steps to a maximum shrink as their squares."""
ALIKE, GROWING = 4, 0.7
"""So many steps, each of at least this part of the one before, are those of a coefficient that grows without end."""
OVERSHOT = 1.0
"""The slope of the likelihood beyond a step, downwards, in units of that before it, upwards: more is too far."""
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
EXITS = 2
"""Log-odds whose steps leave the range so often have their maximum beyond it: the largest coefficients take them there,
as features are in [-1, 1]."""
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
    joint: Sequence[str] = (),
    unvaried: str = "",
) -> Solution:
    """From the model without covariates.

    `columns` are those of the coefficients after the intercept, and `unvaried` is the sentence about a response that
    does not vary, for refusals. A category that no record has leaves the model, if it is among the `indicators`. Where
    there is no maximum, the columns in its way are left out and the others tried, as long as there are rounds, so that
    a refusal names all of them. One of the `joint` columns must stay, if there are any.
    """
    columns = ("", *(columns or map(str, range(1, width))))
    indicators = (False, *(indicators or [False] * (width - 1)))
    null = evaluate(np.zeros(width), math.inf)
    start = np.zeros(width)
    if null is not None:
        start[0] = _intercept(family, null, unvaried)
    first = None if null is None else evaluate(start, math.inf)
    if null is None or first is None:
        raise NotEstimable("the offset leaves the range of predictors; subtract a number from it, its mean say.")
    empty = np.diag(null.bread) <= 0
    absent = tuple(place for place, indicator in enumerate(indicators) if indicator and empty[place])
    places, used, out, refusal = np.delete(np.arange(width), absent), 2, dict[str, None](), None
    beginning, known = start, first
    while refusal is None or used < MOST_ROUNDS:
        outcome = _climb(
            family,
            _among(evaluate, places, width),
            null.only(places),
            start[places],
            known.only(places),
            columns=[columns[place] for place in places],
            indicators=[indicators[place] for place in places],
            used=used,
        )
        used = outcome.steps
        if isinstance(outcome, Solution):
            if refusal is None:
                return replace(outcome, absent=absent)
            break
        if refusal is not None and used >= MOST_ROUNDS:
            break  # on its way, perhaps
        refusal = refusal or outcome
        out |= dict.fromkeys(outcome.columns)
        start, known, end = beginning, first, np.zeros(width)
        end[places] = 0.0 if outcome.point is None else outcome.point
        places = np.array([place for place in places.tolist() if columns[place] not in out], dtype=np.intp)
        if not {columns[place] for place in places.tolist()} & set(joint or columns[1:]):
            raise NotEstimable(f"{refusal.cause}, and without such columns none is left; choose another response.")
        if outcome.point is not None:  # what is left out stays at its mean; is that nearer than the beginning?
            leaving = np.array([name in out for name in columns])
            end[0] += float(end[leaving] @ null.bread[0, leaving]) / null.bread[0, 0]
            end[leaving] = 0.0
            nearer, used = evaluate(end, math.inf), used + 1
            if nearer is not None and _distance(nearer.only(places)) < _distance(first.only(places)):
                start, known = end, nearer
    assert refusal is not None
    raise NotEstimable(f"{refusal.cause}; leave out {', '.join(map(repr, out))} with columns={refusal.or_else}.")


@dataclass(frozen=True)
class _Obstacle:
    """Why there is no maximum, the columns in its way, and what could be done besides leaving them out."""

    cause: str
    columns: Sequence[str]
    steps: int
    or_else: str = ""
    point: Vector | None = None
    """Where to go on without these columns."""


def _climb(
    family: Family,
    evaluate: Evaluate,
    null: Evaluation,
    point: Vector,
    sums: Evaluation,
    *,
    columns: Sequence[str],
    indicators: Sequence[bool],
    used: int,
) -> Solution | _Obstacle:
    """Newton's method from a point with these sums. A step that leaves the range is halved."""
    obstacle = _collinear(null.bread, columns, used)
    if obstacle is not None:
        return obstacle
    known: Evaluation | None = sums
    step, near, steady, exits = np.zeros(len(point)), list[Vector](), np.zeros(len(point), dtype=bool), 0
    level = np.array(indicators)
    while known is not None and known.bread[0, 0] > max(SATURATED * null.bread[0, 0], FEWEST_WEIGHTS):
        vanished = level & (np.diag(known.bread) < VANISHED)
        if vanished.any():
            steady = vanished
        if steady.any() or _smallest(known.bread) < SINGULAR:
            break
        step = _solved(known.bread, known.score)
        slope = float(known.score @ step)
        if slope < SETTLED:
            return Solution(point + step, known.bread, null, used)
        near = [*near, step][-ALIKE:] if slope < NEAR else []
        steady = _steady(near) if len(near) == ALIKE else steady
        if steady.any():
            break
        limit = known.top + STRIDE if family == "poisson" else math.inf
        known, whole = None, step
        while known is None and used < MOST_ROUNDS and exits < EXITS:
            known = evaluate(point + step, limit)
            used += 1
            ahead = math.inf if known is None else float(known.score @ step)
            if known is None:
                exits += family == "binomial" and step is whole
                step = step / 2
            elif ahead < -OVERSHOT * slope:
                # The likelihood is concave: its slope along the step has turned, and the secant says about where.
                known, step = None, step * max(slope / (slope - ahead), 0.1)
        if exits == EXITS:
            reach = np.abs(point + whole)
            reach[0] = 0.0
            steady = reach >= reach.max() / 2
            break
        point = point + step
    growing = _separating(family, null, step, steady)
    listed = list(dict.fromkeys(columns[place] for place in growing.tolist()))
    onwards = point if steady.any() else None
    if level[growing].all():
        cause = f"the response is always the same in some category of {', '.join(map(repr, listed))}, whose coefficient"
        or_else = ", or list fewer categories, so that rare ones are other"
        return _Obstacle(f"{cause} grows without end", listed, used, or_else, onwards)
    return _Obstacle(
        "the likelihood has no maximum within reach: some covariates separate the response, or predict it so well that"
        " coefficients grow without end",
        listed,
        used,
        point=onwards,
    )


def _steady(near: Sequence[Vector]) -> NDArray[np.bool_]:
    """Coefficients whose last steps, `near` the end, are alike. Steps to a maximum shrink as their squares there; where
    records are separated, each makes their weights smaller by e, and is as long as the one before."""
    alike = np.ones(len(near[0]), dtype=bool)
    for before, step in itertools.pairwise(near):
        alike &= (step * before > 0) & (np.abs(step) > GROWING * np.abs(before))
    alike[0] = False
    return alike


def _among(evaluate: Evaluate, places: NDArray[np.intp], width: int) -> Evaluate:
    """Of the coefficients at these places; the others are zero."""

    def evaluated(point: Vector, limit: float) -> Evaluation | None:
        every = np.zeros(width)
        every[places] = point
        sums = evaluate(every, limit)
        return None if sums is None else sums.only(places)

    return evaluated


def _separating(family: Family, null: Evaluation, step: Vector, steady: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The columns that tell nearly all of the response by themselves; if none does, those whose coefficients grow with
    `steady` steps; if none does, those with the longest last steps.

    At zero, score and bread of a binomial model are sum v x (y - 1/2) and sum v x x' / 4.
    """
    total, spread = 4 * null.bread[0, 0], 4 * np.diag(null.bread)
    mean, lean = 4 * null.bread[0] / total, null.score / total
    variance = (spread / total - mean**2) * (0.25 - lean[0] ** 2)
    association = np.abs(lean - mean * lean[0]) / np.sqrt(np.maximum(variance, 1e-300))
    sizes = np.abs(step) * np.sqrt(np.maximum(spread / total - mean**2, 0.0))
    association[0] = sizes[0] = 0.0
    alone = association > DETERMINED if family == "binomial" else np.zeros(len(step), dtype=bool)
    longest = sizes >= sizes.max() / 2
    longest[0] = False
    return np.flatnonzero(next(places for places in (alone, steady, longest) if places.any()))


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


def _collinear(bread: Matrix, columns: Sequence[str], used: int) -> _Obstacle | None:
    """Columns that do not vary, or that determine one another, where no record has a predictor of its own yet."""
    flat = [columns[place] for place in np.flatnonzero(~(np.diag(bread) > 0)).tolist()]
    if flat:
        listed = ", ".join(map(repr, dict.fromkeys(flat)))
        return _Obstacle(f"columns {listed} do not vary in the records used", flat, used)
    if _smallest(bread) >= SINGULAR:
        return None
    scale = np.sqrt(np.diag(bread))
    out = redundant(bread / np.outer(scale, scale), columns, floor=NEARLY_SINGULAR)
    return _Obstacle("covariates determine one another, or the intercept, in the records used", out, used)


def _distance(sums: Evaluation) -> float:
    """s'B^-1 s; infinite where the sums have no step."""
    if not np.diag(sums.bread).min() > 0 or _smallest(sums.bread) < SINGULAR:
        return math.inf
    return float(sums.score @ _solved(sums.bread, sums.score))


def _smallest(bread: Matrix) -> float:
    """Eigenvalue, in units of the diagonal."""
    scale = np.sqrt(np.maximum(np.diag(bread), 1e-300))
    return float(np.linalg.eigvalsh(bread / np.outer(scale, scale))[0])


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
