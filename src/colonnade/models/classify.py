"""`SQMLogistic`: a binary response explained by the columns of all parties, with no trusted party (the SQM paper, 5.2).

The sigmoid is replaced by its Taylor polynomial 1/2 + u/4, so a record's gradient x (1/2 + w.x/4 - y) is a
polynomial of the columns. It is affine in w, and so the whole fit is a ridge problem in **one** Gram matrix:

- `solver="moments"` opens the noisy Gram matrix of (1, x, y) once and solves. No rounds.
- `solver="minibatch"` is the paper's procedure: noisy gradients of Poisson batches (`logistic_minibatch`).

The claims are in `claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from colonnade.data.column import Category, Column
from colonnade.errors import BadArguments, SchemaError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.models.matrix import (
    Clip,
    SecondMoments,
    clip_option,
    columns_of,
    feature_matrix,
    moment_views,
    norm_bounds,
    second_moments,
)
from colonnade.papers.sqm.gradient_layout import GradientLayout, gradient_layout
from colonnade.papers.sqm.logistic import descend, gradient_notes, gradient_phases
from colonnade.privacy.cost import Relation
from colonnade.statistics.features import Feature, features
from colonnade.statistics.joint import View
from colonnade.statistics.moments import MomentsLayout, Presence
from colonnade.statistics.moments import Moments, compute_moments, moment_notes, moment_phases

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

Solver = Literal["moments", "minibatch"]


@dataclass(kw_only=True)
class SQMLogistic:
    """Logistic regression with differential privacy and no trusted party.

    Parameters
    ----------
    response : a binary column. Its second category is the event.
    solver : "moments" (one release, the default) or "minibatch" (the paper's rounds).
    epsilon, delta : a person's total; with "moments", `epsilon=None` is exact and must be allowed ("exact-moments").
    gamma : the scale of quantisation.
    columns : the explaining columns; all others by default.
    clip : {party: norm} of its part of a row, the response apart; never more than its columns can reach (the root of
        their number). Or a share of what they can reach, for all parties: rows at the corners of their domains are
        rare, and 0.87 takes a quarter of the noise away. With "moments" the response holder's clip covers the
        response too.
    intercept : whether to fit one.
    presence : for "moments", as in `SQMPCA`; "minibatch" takes an absent block as zeros.
    view, relation : what the noise is calibrated for. In "minibatch" the share holders see every intermediate
        weight and the data parties know the batches; so the client view is always debited, without
        amplification, and with `view="server"` it is larger than `epsilon`. The plan prints both.
    ridge : the penalty per record; by default half the noise level (see `noise_ridge`).
    sampling, rounds, learning_rate, radius : of "minibatch": the probability of a record to be in a batch, the
        number of batches, the step, and the norm that the weights are clipped to (rows are scaled to norm 1).
    block : the width of the tiles in which a matrix is computed.

    Attributes
    ----------
    coef_ (1 x features), intercept_ (1), classes_, feature_names_, noise_sd_, n_iter_, result_.

    Returns
    -------
    `fit(federation)` gives the fitted model itself, as in scikit-learn.

    Example
    -------
    >>> model = co.SQMLogistic(response="failed", epsilon=8.0, columns=("capital", "investors")).fit(federation)
    >>> model.coef_.shape
    (1, 2)
    """

    name: ClassVar[str] = "classify"

    response: str
    solver: Solver = "moments"
    epsilon: float | None = 1.0
    delta: float = 1e-6
    gamma: int = 2**12
    columns: tuple[str, ...] | None = None
    clip: Clip | None = None
    intercept: bool = True
    presence: Presence = "ignore"
    view: View = "client"
    relation: Relation = "zero-out"
    ridge: float | None = None
    sampling: float = 0.01
    rounds: int = 200
    learning_rate: float = 8.0
    radius: float = 1.0
    block: int = 2048

    def __post_init__(self) -> None:
        if self.solver not in ("moments", "minibatch"):
            raise BadArguments(f"solver must be 'moments' or 'minibatch', not {self.solver!r}.")
        if self.ridge is not None and not 0 <= self.ridge < math.inf:
            raise BadArguments(f"ridge must be a finite number of at least 0, not {self.ridge!r}.")
        if self.columns is not None and self.response in self.columns:
            raise BadArguments(f"the response {self.response!r} cannot explain itself; leave it out of columns.")
        if self.solver == "minibatch" and self.presence != "ignore":
            raise BadArguments("solver='minibatch' takes an absent block as zeros; leave presence='ignore'.")
        self._moments((self.response,), {})

    def _moments(self, names: tuple[str, ...], clip: Mapping[str, float]) -> Moments:
        return Moments(
            epsilon=self.epsilon,
            delta=self.delta,
            columns=names,
            presence=self.presence,
            gamma=self.gamma,
            clip=clip,
            view=self.view,
            relation=self.relation,
            tile=self.block,
        )

    def explaining(self, facts: PublicFacts) -> tuple[str, ...]:
        """The names of the explaining columns."""
        declared = facts.column(self.response)
        if declared.kind != "binary":
            raise SchemaError(f"the response {self.response!r} is {declared.kind}; SQMLogistic needs a binary column.")
        if self.columns is not None:
            return tuple(self.columns)
        return tuple(name for columns in facts.columns.values() for name in columns if name != self.response)

    # --- the coordinator's procedure ----------------------------------------------------------------------

    def fit(self, federation: Federation) -> Self:
        """Run it; the run folder is in `federation.runs`."""
        self._take(federation.run(self)[0])
        return self

    def moment_layout(self, facts: PublicFacts, roster: Roster) -> MomentsLayout:
        """The public shape of the Gram matrix of (1, x, y), with its noise."""
        names = (*self.explaining(facts), self.response)
        return self._moments(names, norm_bounds(facts, names, self.clip)).layout(facts, roster)

    def gradient_layout(self, facts: PublicFacts, roster: Roster) -> GradientLayout:
        """The public shape of the minibatch gradients, with their noise."""
        names = self.explaining(facts)
        return gradient_layout(
            facts=facts,
            roster=roster,
            names=names,
            response=self.response,
            clip=norm_bounds(facts, names, self.clip),
            gamma=self.gamma,
            intercept=self.intercept,
            radius=self.radius,
            sampling=self.sampling,
            rounds=self.rounds,
            epsilon=self.epsilon,
            delta=self.delta,
            view=self.view,
            relation=self.relation,
        )

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        if self.solver == "minibatch":
            steps = self.gradient_layout(facts, roster)
            phases = gradient_phases(steps)
            notes = gradient_notes(steps, view=self.view, delta=self.delta)
        else:
            layout = self.moment_layout(facts, roster)
            phases = moment_phases(layout, self.view)
            notes = (
                *moment_notes(layout, self.view),
                *moment_views(layout, view=self.view, delta=self.delta),
            )
        return Plan(
            method=self.name, options=self.options(), stages=tuple(phases), notes=tuple(notes), delta=self.delta
        )

    def execute(self, job: Job) -> LogisticFit:
        wanted = tuple(features(job.facts, self.explaining(job.facts)))
        if self.solver == "minibatch":
            steps = self.gradient_layout(job.facts, job.roster)
            intercept, weights = descend(job, steps, learning_rate=self.learning_rate)
            noise_sd, rounds = steps.noise_sd, steps.rounds
        else:
            moments = compute_moments(job, self.moment_layout(job.facts, job.roster), self.view)
            intercept, weights = solve_moments(
                second_moments(moments),
                names=tuple(feature.name for feature in wanted),
                response=self.response,
                intercept=self.intercept,
                ridge=self.ridge,
            )
            noise_sd, rounds = moments.noise_sd, 1
        negative, positive = job.facts.column(self.response).categories or (0, 1)
        return LogisticFit(
            coef=weights,
            intercept=intercept,
            classes=(negative, positive),
            response=self.response,
            solver=self.solver,
            features=wanted,
            columns=columns_of(job.facts, wanted),
            n=job.facts.n,
            noise_sd=noise_sd,
            rounds=rounds,
            simulated=job.simulated,
        )

    # --- as data ------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _OPTIONS}
        plain["columns"] = None if self.columns is None else list(self.columns)
        plain["clip"] = clip_option(self.clip)
        return plain

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        columns = options["columns"]
        return cls(**{**options, "columns": None if columns is None else tuple(columns)})

    # --- a fitted model -----------------------------------------------------------------------------------

    result_: LogisticFit | None = field(default=None, init=False, repr=False)

    def _take(self, result: LogisticFit) -> None:
        self.result_ = result
        self.coef_ = result.coef[None, :]
        self.intercept_ = np.array([result.intercept])
        self.classes_ = np.array(result.classes)
        self.feature_names_ = result.feature_names
        self.noise_sd_ = result.noise_sd
        self.n_iter_ = result.rounds

    def _fitted(self) -> LogisticFit:
        if self.result_ is None:
            raise BadArguments("this SQMLogistic is not fitted yet; call fit(federation) first.")
        return self.result_

    def predict_proba(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        """Probabilities of both classes for a frame of the fitted columns, or an array of the features."""
        return self._fitted().predict_proba(rows)

    def predict(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
        """The likelier class of each row."""
        return self._fitted().predict(rows)

    def score(self, rows: pd.DataFrame | NDArray[Any], truth: pd.Series[Any] | NDArray[Any]) -> float:
        """The share of rows that are predicted right."""
        return float(np.mean(self.predict(rows) == np.asarray(truth)))


_OPTIONS = tuple(one.name for one in fields(SQMLogistic) if one.init)


# --- solver="moments" ------------------------------------------------------------------------------------------


def noise_ridge(noise_sd: float, width: int) -> float:
    """Half of noise_sd sqrt(width): a quarter of the norm of the noise matrix, whose eigenvalues reach
    2 noise_sd sqrt(width). It depends on public facts only."""
    return 0.5 * noise_sd * math.sqrt(width)


def solve_moments(
    second: SecondMoments, *, names: tuple[str, ...], response: str, intercept: bool, ridge: float | None = None
) -> tuple[float, NDArray[np.float64]]:
    """(intercept, coefficients) that make the Taylor gradient zero.

    With s = 2y - 1 in {-1, 1} the gradient is x (w.x / 4 - s / 2): A w = 2 b with A = E[x x'] and b = E[x s].
    Noise makes A indefinite. Its eigenvalues are raised to at least 0 (the nearest matrix that a Gram matrix can
    be), and the ridge is added; directions that both leave at 0 are not used.
    """
    place = [second.names.index(name) for name in ((("1",) if intercept else ()) + names)]
    matrix = second.matrix[np.ix_(place, place)]
    target = second.matrix[place, second.names.index(response)]
    penalty = noise_ridge(second.noise_sd, len(place)) if ridge is None else ridge
    values, vectors = np.linalg.eigh(matrix)
    raised = np.maximum(values, 0.0) + penalty
    smallest = 1e-10 * max(float(raised.max()), 1e-300)
    inverse = np.where(raised > smallest, 1.0 / np.maximum(raised, smallest), 0.0)
    weights = 2.0 * vectors @ (inverse * (vectors.T @ target))
    return (float(weights[0]), weights[1:]) if intercept else (0.0, weights)


@dataclass(frozen=True, kw_only=True)
class LogisticFit:
    """log-odds of the event = intercept + coef . features."""

    coef: NDArray[np.float64]
    intercept: float
    classes: tuple[Category, Category]
    response: str
    solver: Solver
    features: tuple[Feature, ...]
    columns: Mapping[str, Column]
    n: int
    noise_sd: float
    rounds: int
    simulated: bool

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.features)

    def decision_function(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        return feature_matrix(rows, self.features, self.columns) @ self.coef + self.intercept

    def predict_proba(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        event = expit(self.decision_function(rows))
        return np.column_stack([1 - event, event])

    def predict(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
        """The likelier class of each row."""
        event = (self.decision_function(rows) > 0).astype(int)
        chosen: NDArray[Any] = np.array(self.classes)[event]
        return chosen

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "classifier",
                "n": self.n,
                "response": self.response,
                "classes": list(self.classes),
                "solver": self.solver,
                "feature_names": list(self.feature_names),
                "coef": self.coef.tolist(),
                "intercept": self.intercept,
                "noise_sd": self.noise_sd,
                "rounds": self.rounds,
                "simulated": self.simulated,
            },
        )
