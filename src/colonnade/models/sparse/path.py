"""The path of sparse solutions, wherever the loss and its gradient are computed.

A point minimises  loss(b) + sum_j w_j |b_j|  over (intercept, coefficients). `ProximalQuasiNewton` sees the loss only
through `evaluate`, one call a round: it minimises a quadratic model plus the penalty by coordinate descent, moves
there (or part of the way, if the objective would not fall), and learns the curvature from how the gradient changed
(BFGS). What it learned serves the whole path, so a point takes few rounds. Where the curvature is known and constant
(least squares from moments) the first model is exact.

**Which stationary point.** For SCAD and MCP the solution at lambda is where the local linear approximation arrives
from the lasso solution at that same lambda, in at most `lla_steps` steps: it does not depend on the other points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from colonnade.errors import NotEstimable
from colonnade.models.sparse.penalties import Penalty, penalty_slope, penalty_value, violations, weighted_lasso

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Family = Literal["gaussian", "binomial", "poisson"]

SATURATED = 0.999
"""The path ends where this share of the null deviance is explained: beyond, the fit is a separation of the data."""
SETTLED = 1e-6
"""LLA stops when no weight moved by more than this share of lambda."""
MAXIMUM_STEPS = 1000
"""Quasi-Newton steps for one weighted lasso; what remains then is in the reported residual."""
FINEST = 1e-12
"""Relative size of objective changes that rounding hides."""


# --- families ---------------------------------------------------------------------------------------------------


def unit_loss(family: Family, eta: Vector, y: Vector) -> Vector:
    """Minus the log-likelihood of each record, up to what eta does not change: psi(eta) - y eta, or half a square."""
    if family == "gaussian":
        return np.asarray(0.5 * (y - eta) ** 2)
    if family == "binomial":
        return np.asarray(np.logaddexp(0.0, eta) - y * eta)
    return np.asarray(np.exp(np.minimum(eta, 700.0)) - y * eta)


def mean_response(family: Family, eta: Vector) -> Vector:
    """psi'(eta)."""
    if family == "gaussian":
        return eta
    return np.asarray(expit(eta) if family == "binomial" else np.exp(np.minimum(eta, 700.0)))


def curvature_of(family: Family, eta: Vector) -> Vector:
    """psi''(eta)."""
    mu = mean_response(family, eta)
    return np.ones_like(mu) if family == "gaussian" else (mu * (1.0 - mu) if family == "binomial" else mu)


def link(family: Family, mean: float) -> float:
    """The intercept of the model without covariates; refused where it is infinite."""
    if family == "gaussian":
        return mean
    if not mean > 0.0 or (family == "binomial" and mean >= 1.0):
        raise NotEstimable(
            "the response is the same in all records used, so nothing can be explained; check its column."
        )
    return math.log(mean / (1.0 - mean)) if family == "binomial" else math.log(mean)


def saturated_loss(family: Family, y: Vector, shares: Vector) -> float:
    """The mean loss, with these shares of the records, of a model with one parameter a record."""
    if family != "poisson":
        return 0.0
    return float(shares @ (y - y * np.log(np.maximum(y, 1.0))))  # counts: y log y = 0 at 0 and 1


# --- the path ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class PathPoint:
    """One solution, in standard units. `residual` is the largest violation of the optimality conditions of the
    penalised loss itself (for SCAD and MCP: of its stationarity), as a share of the largest lambda."""

    lam: float
    intercept: float
    coefficients: Vector
    loss: float
    objective: float
    residual: float
    lla_steps: int
    held_out: float = 0.0
    """Mean loss over the records left out, in cross-validation."""

    @property
    def df(self) -> int:
        return int(np.count_nonzero(self.coefficients))


@dataclass(frozen=True)
class Solved:
    """A solution of a weighted lasso."""

    intercept: float
    coefficients: Vector
    loss: float
    held_out: float = 0.0


class WeightedLasso(Protocol):
    """Minimises loss + weighted l1, warm from its own last solution; may raise `Withheld` and be asked again."""

    null_loss: float
    saturated: float
    largest: float

    def restart(self) -> None:
        """Forget the last solution: the next one starts at the model without covariates."""
        ...

    def lasso(self, lam: float) -> Solved:
        """All weights are lambda."""
        ...

    def approximate(self, penalty: Penalty, lam: float) -> Solved:
        """The next LLA step: weights are the penalty's slopes at the last solution."""
        ...

    def next_move(self, penalty: Penalty, lam: float) -> float:
        """The largest change of a weight that another LLA step would make."""
        ...

    def violation(self, penalty: Penalty, lam: float) -> float:
        """The largest violation of the optimality conditions of the penalised loss at the last solution."""
        ...


def lambda_sequence(largest: float, *, count: int, ratio: float) -> Vector:
    """From the smallest lambda that keeps every coefficient at zero, down to `ratio` of it, evenly on a log scale."""
    if not largest > 0:
        raise NotEstimable("no column is related to the response at all: nothing to select; check the columns.")
    return np.geomspace(largest, largest * ratio, count)


class Withheld(Exception):
    """A step towards a solution was not taken, since it would have shown one party's part; `party` says whose."""

    def __init__(self, party: str) -> None:
        super().__init__(party)
        self.party = party


@dataclass(frozen=True, kw_only=True, eq=False)
class Traced:
    """Solutions from the largest lambda on; why the path ended early, or nothing; and where one was withheld."""

    points: list[PathPoint]
    ended: str = ""
    withheld: dict[float, str] = field(default_factory=dict)
    """{lambda: the party whose part alone its solution would have shown}."""


APPROACHES = 10
"""How often lambda is halved below the path to find a solution that may be shown, when the path itself has none."""


def trace_path(
    solver: WeightedLasso, lambdas: Sequence[float], *, penalty: Penalty, lla_steps: int, first: int = 0
) -> Traced:
    """Solutions, each warm from the one before: from the lambda numbered `first` down, then from the end up.

    A solver that may withhold solutions is started in the middle: what it has shown of few columns binds it later, so
    the solutions with the fewest columns, which it most likely withholds, come last. It may withhold one because of
    the way to it; so what is missing then is tried again from the null model.
    """
    points: dict[int, PathPoint] = {}
    withheld: dict[int, str] = {}
    saturated: set[int] = set()
    unsettled: list[NotEstimable] = []

    def attempt(index: int) -> None:
        try:
            points[index] = _point(solver, lambdas[index], penalty=penalty, lla_steps=lla_steps)
        except Withheld as reason:
            withheld[index] = reason.party
            return
        except NotEstimable as reason:  # the predictor grows without bound, or the rounds of the plan are used up
            unsettled.append(reason)
            solver.restart()
            return
        if _explained(solver, points[index].loss) > SATURATED:
            saturated.add(index)

    null = [index for index, lam in enumerate(lambdas) if lam >= solver.largest]
    for index in null:
        attempt(index)
    for index in range(max(first, len(null)), len(lambdas)):
        attempt(index)
        if saturated or unsettled:
            break
    missed = [index for index in range(len(lambdas)) if index in withheld or len(null) <= index < first]
    withheld.clear()
    if missed and len(points) == len(null) and not unsettled:
        for halvings in range(1, APPROACHES + 1):
            try:
                solver.lasso(lambdas[-1] / 2**halvings)
                break
            except Withheld:
                continue
    for index in reversed(missed):
        attempt(index)
    if withheld:  # where the response party's own columns come first, the way from the null model shows nothing
        missed = sorted(withheld)
        withheld.clear()
        solver.restart()
        for index in missed:
            attempt(index)
    if unsettled and len(points) == len(null):
        raise unsettled[0]
    shown = [index for index in sorted(points) if index not in saturated] or [min(points)] if points else []
    ended = ""
    if unsettled:
        ended = (
            f"The path has {len(shown)} of {len(lambdas)} lambdas, down to {points[shown[-1]].lam:.4g}: {unsettled[0]}"
        )
    if saturated:
        ended = (
            f"The path ends at lambda = {points[shown[-1]].lam:.4g}: at the next one the columns explain more than"
            f" {SATURATED:.1%} of the deviance (they separate the classes, or there are as many as records), and"
            " coefficients grow without bound."
        )
    return Traced(
        points=[points[index] for index in shown],
        ended=ended,
        withheld={float(lambdas[index]): party for index, party in sorted(withheld.items())},
    )


def _point(solver: WeightedLasso, lam: float, *, penalty: Penalty, lla_steps: int) -> PathPoint:
    solved = solver.lasso(lam)
    steps = 0
    if penalty != "lasso":
        while steps < lla_steps and solver.next_move(penalty, lam) > SETTLED * lam:
            solved = solver.approximate(penalty, lam)
            steps += 1
            if _explained(solver, solved.loss) > SATURATED:
                break
    return PathPoint(
        lam=float(lam),
        intercept=solved.intercept,
        coefficients=solved.coefficients,
        loss=solved.loss,
        objective=solved.loss + penalty_value(penalty, solved.coefficients, lam),
        residual=solver.violation(penalty, lam) / solver.largest,
        lla_steps=steps,
        held_out=solved.held_out,
    )


def _explained(solver: WeightedLasso, loss: float) -> float:
    return (solver.null_loss - loss) / max(solver.null_loss - solver.saturated, 1e-300)


# --- proximal quasi-Newton --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """The loss, and its gradient in (intercept, coefficients)."""

    loss: float
    gradient: Vector
    held_out: float = 0.0


class ProximalQuasiNewton:
    """A `WeightedLasso` over `evaluate(theta)`, theta = (intercept, coefficients); see the module."""

    def __init__(
        self,
        evaluate: Callable[[Vector], Evaluation],
        *,
        start: Vector,
        at_start: Evaluation,
        curvature: Matrix,
        learn: bool,
        saturated: float,
        tolerance: float,
        largest: float | None = None,
    ) -> None:
        self._evaluate, self._learn = evaluate, learn
        self._theta, self._state, self._curvature = start, at_start, curvature
        self._weights = np.zeros_like(start)
        self.null_loss, self.saturated = at_start.loss, saturated
        self.largest = float(np.abs(at_start.gradient[1:]).max(initial=0.0)) if largest is None else largest
        self._tolerance = tolerance
        self._start = (start, at_start)
        self._resting: tuple[Vector, Evaluation] | None = None

    @property
    def curvature(self) -> Matrix:
        """As learned so far."""
        return self._curvature

    def restart(self) -> None:
        self._theta, self._state = self._resting = self._start

    def lasso(self, lam: float) -> Solved:
        if self._resting is not None:  # the last lasso solution is nearer than the last SCAD or MCP one
            self._theta, self._state = self._resting
        solved = self._solve(np.full(len(self._theta) - 1, lam))
        self._resting = (self._theta, self._state)
        return solved

    def approximate(self, penalty: Penalty, lam: float) -> Solved:
        return self._solve(penalty_slope(penalty, self._theta[1:], lam))

    def next_move(self, penalty: Penalty, lam: float) -> float:
        slopes = penalty_slope(penalty, self._theta[1:], lam)
        return float(np.abs(slopes - self._weights[1:]).max(initial=0.0))

    def violation(self, penalty: Penalty, lam: float) -> float:
        weights = np.concatenate([[0.0], penalty_slope(penalty, self._theta[1:], lam)])
        return float(violations(self._state.gradient, self._theta, weights).max())

    def _solve(self, weights: Vector) -> Solved:
        self._weights = np.concatenate([[0.0], weights])  # the intercept is not penalised
        enough = self._tolerance * self.largest
        leaving = _explained(self, self._state.loss) > SATURATED  # from a smaller lambda, where it was too much
        for _ in range(MAXIMUM_STEPS):
            if violations(self._state.gradient, self._theta, self._weights).max() <= enough:
                break
            saturated = _explained(self, self._state.loss) > SATURATED
            if saturated and not leaving:
                break
            leaving = saturated
            if not self._step(enough):
                break
        return Solved(float(self._theta[0]), self._theta[1:].copy(), self._state.loss, self._state.held_out)

    def _step(self, enough: float) -> bool:
        """One round, or several if the objective does not fall at once; False if it cannot fall any more."""
        state, theta, weights = self._state, self._theta, self._weights
        goal = weighted_lasso(self._curvature, state.gradient, theta, weights, tolerance=0.01 * enough)
        direction = goal - theta
        penalty = float(weights @ np.abs(theta))
        before = state.loss + penalty
        promised = float(state.gradient @ direction + weights @ np.abs(goal)) - penalty
        share = 1.0
        for _ in range(40):
            reached = goal if share == 1.0 else theta + share * direction
            reply = self._evaluate(reached)
            after = reply.loss + float(weights @ np.abs(reached))
            if after <= before + 1e-4 * share * promised + FINEST * max(abs(before), 1.0):
                break
            share /= 2
        else:
            return False
        if self._learn:
            self._bfgs(reached - theta, reply.gradient - state.gradient)
        stuck = bool(np.array_equal(reached, theta))
        self._theta, self._state = reached, reply
        return not stuck

    def _bfgs(self, step: Vector, change: Vector) -> None:
        """H + y y' / s'y - H s s' H / s'H s: symmetric, positive definite if s'y > 0, and maps s to y."""
        along = float(step @ change)
        if along > 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)) > 0:
            old = self._curvature @ step
            self._curvature = (
                self._curvature + np.outer(change, change) / along - np.outer(old, old) / float(step @ old)
            )


# --- least squares from moments ---------------------------------------------------------------------------------


def moment_solver(
    covariance: Matrix, cross: Vector, variance: float, *, tolerance: float, largest: float | None = None
) -> ProximalQuasiNewton:
    """Least squares on standardised columns: loss = (s_yy - 2 c'b + b'S b) / 2, the intercept being the mean.

    The curvature is S, so every model is exact and no party is asked.
    """
    p = len(cross)
    curvature = np.zeros((p + 1, p + 1))
    curvature[0, 0], curvature[1:, 1:] = 1.0, covariance

    def evaluate(theta: Vector) -> Evaluation:
        b = theta[1:]
        fitted = covariance @ b
        loss = 0.5 * (variance - 2.0 * float(cross @ b) + float(b @ fitted))
        return Evaluation(loss, np.concatenate([[0.0], fitted - cross]))

    start = np.zeros(p + 1)
    return ProximalQuasiNewton(
        evaluate,
        start=start,
        at_start=evaluate(start),
        curvature=curvature,
        learn=False,
        saturated=0.0,
        tolerance=tolerance,
        largest=largest,
    )
