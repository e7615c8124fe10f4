"""`Classify`: a binary response explained by the columns of all parties, with no trusted party.

*Rounds* (`glm/private.py`): a few noisy gradients of the logistic likelihood, in units that are released first.

*Moments* (the SQM paper, 5.2): the sigmoid is replaced by its Taylor polynomial 1/2 + u/4, so a record's gradient
x (1/2 + w.x/4 - y) is a polynomial of the columns. It is affine in w, and so the whole fit is a ridge problem in
**one** Gram matrix of (1, x, y), which is opened once, with noise. The claim is in `claim.md`.

The rounds are taken wherever the noise leaves them their units: the noise of the moments grows with the square of a
row's length. The paper's own rounds of noisy gradients are `colonnade.papers.SQMLogistic`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import norm

from colonnade.data.column import Column
from colonnade.errors import BadArguments, SchemaError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, Result, method_class
from colonnade.federation.options import (
    ColumnNames,
    Delta,
    Gamma,
    Option,
    OptionalEpsilon,
    RelationOption,
    Response,
    Tile,
    Verify,
    ViewOption,
)
from colonnade.federation.roster import Roster
from colonnade.formatting import counted
from colonnade.models.glm.private import COARSEST_UNITS, LEAST_EPSILON, MOST_PARTIES, PrivateScores
from colonnade.models.matrix import (
    ClipOption,
    PresenceOption,
    SecondMoments,
    columns_of,
    empty_text,
    feature_matrix,
    missing_blocks,
    moment_views,
    noise_text,
    norm_bounds,
    second_moments,
)
from colonnade.statistics import forecast
from colonnade.statistics.features import EMPTY_AS_ZERO, Feature, empty_notes, empty_rules, features
from colonnade.statistics.joint import EXACT, account_notes, check_budget
from colonnade.statistics.moments import MomentComputation, Moments
from colonnade.view.blocks import Figure, Section, Table, Text, View

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

REPEATS, LARGE = 50, 200
"""How often the noise of the moments is drawn again; fewer times where the matrix is larger than this."""
MOST_SHOWN = 15
"""Coefficients that are shown at once; the others are folded."""

BinaryResponse = Annotated[
    Response, Option("The binary column to explain; its second category is the event.", short="-r", reads="named")
]
Explaining = Annotated[
    ColumnNames, Option('The explaining columns; all others by default. "!name" leaves one out.', reads="named or all")
]
Intercept = Annotated[bool, Option("Whether to fit an intercept.")]


@dataclass(kw_only=True)
class BinaryOptions(Method["Classifier"]):
    """What every fit of a binary response takes."""

    response: BinaryResponse
    columns: Explaining = None
    gamma: Gamma = 2**12
    clip: ClipOption = None
    intercept: Intercept = True

    def check(self) -> None:
        if self.columns is not None and self.response in self.columns:
            raise BadArguments(f"the response {self.response!r} cannot explain itself; leave it out of columns.")

    def explaining(self, facts: PublicFacts) -> tuple[str, ...]:
        """The names of the explaining columns."""
        declared = facts.column(self.response)
        if declared.kind != "binary":
            binary = [
                repr(column.name)
                for columns in facts.columns.values()
                for column in columns.values()
                if column.kind == "binary"
            ]
            raise SchemaError(
                f"the response {self.response!r} is {declared.kind}; a classifier needs a binary column"
                + (f": choose {', '.join(binary)}." if binary else ", and none is declared: make one of two levels.")
            )
        if self.columns is not None:
            return tuple(self.columns)
        return tuple(name for columns in facts.columns.values() for name in columns if name != self.response)


Solver = Literal["moments", "rounds", "minibatch"]
Chosen = Literal["auto", "moments", "rounds"]


@method_class
class Classify(BinaryOptions):
    """Predict a binary column from the columns of all parties.

    Logistic regression in a few rounds of noisy scores; or, where the noise is too large for these, without epsilon,
    and with options that need it (presence, clip, ridge, no intercept), from one matrix of products with the sigmoid to
    first order. The plan says which, and why. `clip` of the response holder covers the response too; rows at the
    corners of their domains are rare, and clip=0.87 takes a quarter of the noise of the matrix away.

    Returns
    -------
    `fit(federation)` gives a `Classifier` with scikit-learn's attributes, `predict`, `predict_proba` and `score`.

    Example
    -------
    >>> classifier = co.Classify(response="failed", epsilon=8.0, columns=("capital", "investors")).fit(federation)
    >>> classifier.coef_.shape
    (1, 2)
    """

    name: ClassVar[str] = "classify"
    rests_on: ClassVar[tuple[str, ...]] = ("moments",)

    epsilon: OptionalEpsilon = 1.0
    delta: Delta = 1e-6
    presence: PresenceOption = "ignore"
    view: ViewOption = "client"
    relation: RelationOption = "zero-out"
    solver: Annotated[
        Chosen,
        Option("rounds of noisy scores, or one release of moments; auto takes rounds where their noise allows it."),
    ] = "auto"
    ridge: Annotated[
        float | None,
        Option(
            "The penalty per record, with moments; by default half the noise level.",
            least=0,
            below=math.inf,
            only={"solver": ("auto", "moments")},
        ),
    ] = None
    tile: Tile = 2048
    verify: Verify = True

    def check(self) -> None:
        super().check()
        check_budget(self.epsilon, self.delta)

        if self.solver == "rounds" and self._needs_moments:
            raise BadArguments(f"solver='rounds' does not go with {self._needs_moments}; leave one of them out.")

    def missing_data(self) -> str:
        return missing_blocks(self.presence)

    @property
    def _needs_moments(self) -> str:
        """The first option that only moments have, or nothing."""
        moments = {
            f"presence={self.presence!r}": self.presence != "ignore",
            "clip": self.clip is not None,
            "ridge": self.ridge is not None,
            "intercept=False": not self.intercept,
        }
        return next((name for name, given in moments.items() if given), "")

    def procedure(self, facts: PublicFacts, roster: Roster) -> Procedure[Classifier]:
        reason = self._against_rounds(facts, roster)
        if self.solver == "moments" or (self.solver == "auto" and reason):
            return ClassifierOfMoments(self, facts, roster, reason if self.solver == "auto" else "")
        if reason:
            raise BadArguments(
                f"solver='rounds' cannot be taken: {reason}; leave solver out, which then takes moments."
            )
        fitted = ClassifierOfScores(self, facts, roster)
        if self.solver == "auto" and fitted.scores.unsure > COARSEST_UNITS:
            coarse = (
                f"the noise of a column's mean would be {fitted.scores.unsure / 2:.2g} of its half range, above"
                f" {COARSEST_UNITS / 2:g}: too much for the units of rounds"
            )
            return ClassifierOfMoments(self, facts, roster, coarse)
        return fitted

    def _against_rounds(self, facts: PublicFacts, roster: Roster) -> str:
        """Why there can be no rounds, from public facts; or nothing."""
        parties = {facts.owner(name) for name in (*self.explaining(facts), self.response)}
        if self._needs_moments:
            return f"{self._needs_moments} is an option of moments"
        if self.epsilon is None and self.solver == "auto":
            return "without epsilon the moments are exact, and cost one release"
        if roster.pair:
            return "parties in pairs multiply once"
        if not 2 <= len(parties) <= MOST_PARTIES:
            return f"rounds are for columns of 2 to {MOST_PARTIES} parties, and these are at {len(parties)}"
        if self.epsilon is not None and self.epsilon < LEAST_EPSILON:
            return f"below epsilon {LEAST_EPSILON:g} the noise of a round has no room"
        return ""

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.models.glm.attacks import score_attacks

        return score_attacks()


class ClassifierOfScores(Procedure["Classifier"]):
    """Units, then rounds of noisy scores."""

    def __init__(self, method: Classify, facts: PublicFacts, roster: Roster) -> None:
        self.method = method
        self.scores = scores = PrivateScores(
            facts,
            roster,
            response=method.response,
            columns=method.explaining(facts),
            epsilon=method.epsilon,
            delta=method.delta,
            view=method.view,
            relation=method.relation,
            verify=method.verify,
        )
        self.stages = scores.stages
        expected: tuple[str, ...] = ()
        if method.epsilon is not None:
            expected = (
                *forecast.classes_by_scores(
                    noise_sd=scores.noise, n=facts.n, features=scores.told_apart, epsilon=method.epsilon
                ),
                f"Solver: rounds of noisy scores. Two standard deviations of the noise of a column's mean are"
                f" {scores.unsure:.2g} of its half range (moments are taken above {COARSEST_UNITS:g}); categories"
                " with a smaller share of the records than that are not told apart.",
            )
        self.notes = (
            *expected,
            *scores.notes,
            *empty_notes(empty_rules(scores.layout.features, facts, "mask", "drop"), EMPTY_AS_ZERO),
            *(
                account_notes(roster, view=method.view, delta=method.delta, releases=scores.releases)
                if scores.layout.mu
                else (EXACT,)
            ),
        )

    def run(self, job: Job) -> Classifier:
        intercept, weights = self.scores.fit(job)
        return classifier(
            self.method,
            job,
            intercept,
            weights,
            noise_sd=self.scores.noise,
            rounds=self.scores.layout.rounds,
            solver="rounds",
        )


class ClassifierOfMoments(Procedure["Classifier"]):
    """One computation of the moments of (1, x, y), then a ridge problem."""

    def __init__(self, method: Classify, facts: PublicFacts, roster: Roster, reason: str = "") -> None:
        self.method = method
        self.explaining = method.explaining(facts)
        names = (*self.explaining, method.response)
        self.layout = Moments(
            epsilon=method.epsilon,
            delta=method.delta,
            columns=names,
            presence=method.presence,
            gamma=method.gamma,
            clip=norm_bounds(facts, names, method.clip),
            view=method.view,
            relation=method.relation,
            tile=method.tile,
            verify=method.verify,
        ).layout(facts, roster)
        self.moments = MomentComputation(self.layout, method.view)
        self.stages = self.moments.stages
        self.notes = (
            *self._forecast(facts.n),
            *((f"Solver: moments; {reason}.",) if reason else ()),
            *self.moments.notes,
            *moment_views(self.layout, view=method.view, delta=method.delta),
        )

    def _forecast(self, n: int) -> tuple[str, ...]:
        width = len(self.layout.features)
        if not self.layout.mu:
            return ()
        return forecast.classes(noise_sd=self.layout.noise_sd, n=n, features=width, epsilon=self.method.epsilon)

    def run(self, job: Job) -> Classifier:
        moments = self.moments.run(job)
        second = second_moments(moments)
        how: dict[str, Any] = {
            "names": tuple(feature.name for feature in features(job.facts, self.explaining)),
            "response": self.method.response,
            "intercept": self.method.intercept,
            "ridge": self.method.ridge,
        }
        intercept, weights = solve_moments(second, **how)
        fitted = classifier(self.method, job, intercept, weights, noise_sd=moments.noise_sd, rounds=1, solver="moments")
        return replace(fitted, empty_cells=moments.empty_cells, separation=separation(second, weights, **how))


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


# --- how well it tells the classes apart --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Separation:
    """The area under the ROC curve of a fit's scores on the records that it is from, as far as the released moments say
    it: `noise` is the standard deviation that their noise gives it."""

    auc: float
    noise: float = 0.0

    def curve(self, auc: float) -> tuple[list[float], list[float]]:
        """(false, true positive rates) of normal scores in both classes: Phi(d + Phi^-1(x)), with AUC = Phi(d /
        sqrt 2)."""
        across = np.linspace(0.0, 1.0, 101)
        up = norm.cdf(math.sqrt(2) * norm.ppf(auc) + norm.ppf(across))
        return across.round(4).tolist(), up.round(4).tolist()

    @property
    def least(self) -> float:
        """Two standard deviations of the noise below."""
        return max(self.auc - 2 * self.noise, 0.5)


def moment_auc(
    second: SecondMoments, weights: NDArray[np.float64], *, names: tuple[str, ...], response: str
) -> float | None:
    """AUC = Phi(d / sqrt 2) for scores u = w.x that are normal in both classes, with one variance; d is the distance
    of their means in standard deviations. None where the noise leaves no class or no variance.

    With s in {-1, 1} and E[s] = b the means are (E[u] +- E[us]) / (1 +- b), and the variance within a class is that of
    u less (1 - b^2) / 4 times the squared distance. A record without a response has s = 0 and is taken to be like the
    others: E[us] and b are divided by E[s^2], the share of those that have one. The matrix of the features is lifted as
    for the fit: where noise makes it small the weights are large, and the variance would be too small.
    """
    place, target = [second.names.index(name) for name in names], second.names.index(response)
    sums = second.matrix[second.names.index("1")]
    answered = second.matrix[target, target]
    if answered <= 0:
        return None
    balance = sums[target] / answered
    mean, cross = weights @ sums[place], weights @ second.matrix[place, target] / answered
    if not -1 < balance < 1:
        return None
    apart = (mean + cross) / (1 + balance) - (mean - cross) / (1 - balance)
    values, vectors = np.linalg.eigh(second.matrix[np.ix_(place, place)])
    lifted = np.maximum(values, 0.0) + noise_ridge(second.noise_sd, len(place) + 1)
    within = float(lifted @ (vectors.T @ weights) ** 2) - mean**2 - (1 - balance**2) / 4 * apart**2
    return None if within <= 0 else float(norm.cdf(apart / math.sqrt(2 * within)))


def separation(
    second: SecondMoments,
    weights: NDArray[np.float64],
    *,
    names: tuple[str, ...],
    response: str,
    intercept: bool,
    ridge: float | None,
) -> Separation | None:
    """The AUC of the moments, less its optimism: the weights are fitted to the noise that they are judged by. The
    moments take the place of the truth, noise is added to them again and the weights are fitted again; what these claim
    beyond what they are worth by the moments is taken off (Efron's optimism)."""
    auc = moment_auc(second, weights, names=names, response=response)
    if auc is None or second.noise_sd == 0:
        return None if auc is None else Separation(auc=max(auc, 0.5))
    rng, size = np.random.default_rng(0), len(second.matrix)  # it reads released numbers only and protects nothing
    claimed = []
    for _ in range(REPEATS if size <= LARGE else REPEATS // 5):
        noise = np.triu(rng.normal(scale=second.noise_sd, size=(size, size)))
        noise = (noise + np.triu(noise, 1).T) * (second.matrix != 0)
        noisy = replace(second, matrix=second.matrix + noise)
        _, fitted = solve_moments(noisy, names=names, response=response, intercept=intercept, ridge=ridge)
        pair = [moment_auc(moments, fitted, names=names, response=response) for moments in (noisy, second)]
        if pair[0] is not None and pair[1] is not None:
            claimed.append(pair[0] - pair[1])
    if len(claimed) < 2:
        return None
    return Separation(auc=min(max(auc - float(np.mean(claimed)), 0.5), 1.0), noise=float(np.std(claimed, ddof=1)))


# --- the result -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Classifier(Result):
    """log-odds of the event = intercept_ + coef_ . features; the shapes are scikit-learn's (1 x features, 1)."""

    kind: ClassVar[str] = "classifier"

    coef_: NDArray[np.float64]
    intercept_: NDArray[np.float64]
    classes_: NDArray[Any]
    response: str
    solver: Solver
    features: tuple[Feature, ...]
    columns: Mapping[str, Column]
    n: int
    noise_sd_: float
    n_iter_: int
    simulated: bool
    empty_cells: Mapping[str, float] = field(default_factory=dict)
    """The noisy number of empty cells of each column with a mask of its own."""
    separation: Separation | None = None
    """How well the scores tell the classes apart, from the released moments."""

    @property
    def feature_names_(self) -> tuple[str, ...]:
        """What the entries of `coef_` belong to."""
        return tuple(feature.name for feature in self.features)

    def decision_function(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        """Log-odds of the event for a frame of the fitted columns, or an array of the features.

        Parameters
        ----------
        rows : a frame of the fitted columns, or an array of the features.

        Returns
        -------
        An array, one number for each row.
        """
        return np.asarray(feature_matrix(rows, self.features, self.columns) @ self.coef_[0] + self.intercept_[0])

    def predict_proba(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        """Probabilities of both classes.

        Parameters
        ----------
        rows : a frame of the fitted columns, or an array of the features.

        Returns
        -------
        An array with a column for each class, in the order of `classes_`.
        """
        event = expit(self.decision_function(rows))
        return np.column_stack([1 - event, event])

    def predict(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[Any]:
        """The likelier class of each row.

        Parameters
        ----------
        rows : a frame of the fitted columns, or an array of the features.

        Returns
        -------
        An array of classes.
        """
        event = (self.decision_function(rows) > 0).astype(int)
        chosen: NDArray[Any] = self.classes_[event]
        return chosen

    def score(self, rows: pd.DataFrame | NDArray[Any], truth: pd.Series[Any] | NDArray[Any]) -> float:
        """The share of rows that are predicted right.

        Parameters
        ----------
        rows : a frame of the fitted columns, or an array of the features.
        truth : the class of each row.

        Returns
        -------
        A share between 0 and 1.
        """
        return float(np.mean(self.predict(rows) == np.asarray(truth)))

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "response": self.response,
            "classes": self.classes_.tolist(),
            "solver": self.solver,
            "feature_names": list(self.feature_names_),
            "coef": self.coef_[0].tolist(),
            "intercept": float(self.intercept_[0]),
            "noise_sd": self.noise_sd_,
            "rounds": self.n_iter_,
            **({"auc": asdict(self.separation)} if self.separation else {}),
            **({"empty cells": dict(self.empty_cells)} if self.empty_cells else {}),
            "simulated": self.simulated,
        }

    def view(self) -> View:
        event = f"{self.response} = {self.classes_[1]}"
        title = f"{event}, explained by {counted(len(self.features), 'feature')}"
        ordered = sorted(zip(self.feature_names_, self.coef_[0], strict=True), key=lambda pair: -abs(pair[1]))
        head = ("feature", "coefficient")
        rows = (
            ("(intercept)", f"{self.intercept_[0]:+.4f}"),
            *((name, f"{value:+.4f}") for name, value in ordered),
        )
        noise, empty = noise_text(self.n, self.noise_sd_), empty_text(self.empty_cells, self.noise_sd_)
        matrix = "one noisy Gram matrix" if self.noise_sd_ else "one exact Gram matrix"
        how = matrix if self.solver == "moments" else f"{self.n_iter_} noisy gradients"
        return View(
            title=title,
            quality=f"{noise} {self._quality()} Try the coefficients on records that you may see.",
            answer=(
                *self._roc(event),
                Figure(
                    name="coefficients",
                    chart="dots",
                    data={
                        "labels": [name for name, _ in ordered],
                        "series": {"coefficient": [float(value) for _, value in ordered]},
                        "signed": True,
                    },
                    label="Coefficients of the features, the largest first; the table has the numbers",
                    title="Coefficients",
                    x=f"change of the log-odds of {event} per half of the feature's range",
                ),
                Table(title="Largest coefficients", head=head, rows=rows, numeric=(1,), shown=MOST_SHOWN),
                Text(
                    text=f"Log-odds of {event}: the intercept plus coefficients times features, which lie between -1"
                    " and 1. They have no standard errors.",
                    style="soft",
                ),
            ),
            sections=(
                Section(
                    title="Behind the coefficients",
                    blocks=(
                        Text(text=f"Fitted from {how}. {noise} {empty}".rstrip()),
                        Text(
                            text=f"{'There is no' if self.separation else 'There is no ROC curve and no'} calibration"
                            " plot: it counts records by score and class, and a score takes columns of several parties,"
                            " so these counts would be one more joint release with a cost of its own. Where you may see"
                            " records, `predict_proba` gives the scores for scikit-learn's `RocCurveDisplay` and"
                            " `CalibrationDisplay`."
                        ),
                    ),
                ),
            ),
            terminal=(Table(title=title, head=head, rows=rows, numeric=(1,), shown=MOST_SHOWN),),
        )

    def _quality(self) -> str:
        if self.separation is None:
            return "Accuracy was not measured: that would be one more release."
        noise = f" ± {2 * self.separation.noise:.2f}" if self.separation.noise else ""
        return f"The area under the ROC curve is about {self.separation.auc:.2f}{noise}, by the released moments."

    def _roc(self, event: str) -> tuple[Figure, ...]:
        if self.separation is None:
            return ()
        auc, least = self.separation.auc, self.separation.least
        lines = {f"area {auc:.2f}": self.separation.curve(auc)}
        if self.separation.noise:
            lines[f"area {least:.2f}, two standard deviations of the noise less"] = self.separation.curve(least)
        return (
            Figure(
                name="roc",
                chart="curves",
                data={"lines": lines, "diagonal": "no better than chance"},
                label=f"ROC curve by the released moments; the area under it is about {auc:.2f}",
                title="ROC curve, from the released numbers alone",
                x=f"false positive rate ({event})",
                y="true positive rate",
                caption="Means and spread of the scores in both classes follow from what was released anyway; the curve"
                " is that of normal scores with these. Records that lack the response are taken to be like the others.",
            ),
        )


def classifier(
    method: BinaryOptions,
    job: Job,
    intercept: float,
    weights: NDArray[np.float64],
    *,
    noise_sd: float,
    rounds: int,
    solver: Solver,
) -> Classifier:
    """The result of a fit, with what is public about its columns."""
    explaining = tuple(features(job.facts, method.explaining(job.facts)))
    return Classifier(
        coef_=weights[None, :],
        intercept_=np.array([intercept]),
        classes_=np.array(job.facts.column(method.response).categories or (0, 1)),
        response=method.response,
        solver=solver,
        features=explaining,
        columns=columns_of(job.facts, explaining),
        n=job.facts.n,
        noise_sd_=noise_sd,
        n_iter_=rounds,
        simulated=job.simulated,
    )
