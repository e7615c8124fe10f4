"""`SparseGLM`: which columns of all parties explain a response (the copula paper's VFL-GLM-VS, section 4).

Minimises the mean loss of a gaussian, binomial or poisson model plus a lasso, SCAD or MCP penalty on standardised
columns, along a path of lambdas, and chooses one by BIC or cross-validation. Three ways lead to the same optimum:

- `via="moments"` (gaussian; the default there): one secure computation of moments, then no party is asked again;
- `via="newton"` (the default otherwise): a quasi-Newton method with one masked total predictor a round;
- `via="admm"`: the paper's Algorithm 4, in which coefficients stay with their party until a solution is reached.

The claims, and what each way discloses, are in `sparse_glm.claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.models.penalties import Penalty, check_penalty
from colonnade.models.sparse_glm_admm import Admm, Damping
from colonnade.models.sparse_glm_clipping import Clipped
from colonnade.models.sparse_glm_fit import Fitted, assemble, best, scores_by_bic, scores_by_folds, withheld_note
from colonnade.models.sparse_glm_layout import Exchange, SparseLayout, check_response
from colonnade.models.sparse_glm_moments import standard_moments
from colonnade.models.sparse_glm_plan import round_phases
from colonnade.models.sparse_glm_private import ScaledMoments
from colonnade.models.sparse_glm_result import Criterion, SparseGLMResult, Via
from colonnade.models.sparse_glm_rounds import Rounds, quasi_newton
from colonnade.models.sparse_glm_steps import agree_records, block_units, show_presence
from colonnade.models.sparse_glm_surrogate import log_odds
from colonnade.models.sparse_path import (
    Family,
    Traced,
    WeightedLasso,
    check_family,
    lambda_sequence,
    moment_solver,
    trace_path,
)
from colonnade.privacy.cost import Relation
from colonnade.statistics.features import features
from colonnade.statistics.joint import View, check_budget
from colonnade.statistics.moment_layout import Layout, Presence
from colonnade.statistics.moments import Moments, PatternMoments, compute_moments, moment_notes, moment_phases

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

__all__ = ["SparseGLM", "SparseGLMResult"]

MIDDLE = 0.1
"""Masked rounds start the path at this share of the largest lambda: enough columns to mix, see `trace_path`."""


@dataclass(frozen=True, kw_only=True)
class SparseGLM:
    """A sparse generalized linear model over a federation.

    Parameters
    ----------
    family : "gaussian", "binomial" (a binary response; its second category is the event) or "poisson" (a count).
    penalty : "lasso", "scad" (a = 3.7) or "mcp" (gamma = 3). The last two by local linear approximation from the lasso
        solution at the same lambda, at most `lla_steps` steps. The intercept is not penalised.
    response, columns : the column to explain, and the covariates (all others by default).
    via : see the module. "moments" with family="binomial" takes the log-likelihood to second order, as `SQMLogistic`,
        and scales the coefficients to log-odds (`sparse_glm_surrogate.py`).
    criterion : "bic" (-2 loglik, or n log RSS, plus df log n) or "cv" (mean loss over `folds` held-out folds).
    lambdas : values to use, in units of the response per standard deviation of a column; by default `n_lambdas` from
        the smallest one that selects nothing down to `ratio` of it (0.001, or 0.05 if features outnumber records).
    tolerance : optimality violation, as a share of the largest lambda; with "admm" both tolerances of the paper's rule.
    rounds : the most rounds that the plan reserves; they cost nothing if they are not needed.
    exchange : "masked": the response holder sees totals that mix two other parties' predictors, and solutions that
        would need another are withheld (`sparse_glm_cover.py`); or "plain" (the paper's: it sees each predictor).
    damping : of "admm": "sharing", which converges, or "paper", as printed.
    gamma, presence : of the moments; see `PatternMoments`.
    epsilon, delta, view, relation : a person's total; see `sparse_glm_private.py`. A binomial response goes through the
        surrogate too; a poisson one is refused.
    clip : {party: norm of its part of a row, if each column has deviation 0.4}, with `epsilon`; see `ScaledMoments`.

    Returns
    -------
    `fit(federation)` gives a result with `params`, `support` (the chosen features), the path, and `summary()`.

    Example
    -------
    >>> columns = ("capital", "investors", "changes", "profit_growth")
    >>> fit = co.SparseGLM(response="profit_growth", columns=columns).fit(federation)
    >>> "investors" in fit.support
    True
    """

    name: ClassVar[str] = "sparse-glm"

    family: Family = "gaussian"
    penalty: Penalty = "scad"
    response: str | None = None
    columns: tuple[str, ...] | None = None
    via: Via | None = None
    criterion: Criterion = "bic"
    folds: int = 5
    lambdas: tuple[float, ...] | None = None
    n_lambdas: int = 50
    ratio: float | None = None
    lla_steps: int = 10
    tolerance: float = 1e-6
    rounds: int | None = None
    exchange: Exchange = "masked"
    damping: Damping = "sharing"
    epsilon: float | None = None
    delta: float = 1e-6
    gamma: int | None = None
    clip: Mapping[str, float] | None = None
    presence: Presence | None = None
    view: View = "client"
    relation: Relation = "zero-out"

    def __post_init__(self) -> None:
        check_family(self.family)
        check_penalty(self.penalty)
        for name in ("columns", "lambdas"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise BadArguments(f"{name} is a list; write {name}=({value!r},).")
            if value is not None:
                object.__setattr__(self, name, tuple(value))
        for name, low in (("folds", 2), ("n_lambdas", 1), ("lla_steps", 1), ("rounds", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
                raise BadArguments(f"{name} must be a whole number of at least {low}, not {value!r}.")
        if self.lambdas is not None and (
            not self.lambdas or not all(a > b for a, b in itertools.pairwise((math.inf, *self.lambdas, 0.0)))
        ):
            raise BadArguments("lambdas must be positive and fall: a path starts where nothing is selected.")
        if not 0 < self.tolerance <= 0.1 or (self.ratio is not None and not 0 < self.ratio < 1):
            raise BadArguments("tolerance must lie in (0, 0.1], and ratio between 0 and 1.")
        if self.criterion not in get_args(Criterion) or self.damping not in get_args(Damping):
            raise BadArguments("criterion must be 'bic' or 'cv', and damping 'sharing' or 'paper'.")
        if self.via not in (None, *get_args(Via)):
            raise BadArguments(f"via must be 'moments', 'newton' or 'admm', not {self.via!r}.")
        check_budget(self.epsilon, self.delta)
        if self.epsilon is not None and self.family == "poisson":
            raise BadArguments(
                "no private route is known for family='poisson'; synthesize a table with CopulaSQM(epsilon=...)"
                " and fit it without epsilon."
            )
        if self.route == "moments" and (self.criterion == "cv" or self.family == "poisson"):
            raise BadArguments(
                "moments have no held-out records and no poisson likelihood; use criterion='bic' with family='gaussian'"
                " or 'binomial', or via='newton' without epsilon."
            )
        if self.route != "moments" and self.epsilon is not None:
            raise BadArguments(f"via={self.via!r} shows predictors and cannot be private; leave via out with epsilon.")

    @property
    def route(self) -> Via:
        """The way that is taken: moments where they suffice, since they are faster and show no record."""
        if self.via is not None:
            return self.via
        return (
            "moments" if self.epsilon is not None or (self.family, self.criterion) == ("gaussian", "bic") else "newton"
        )

    # --- what it will do ------------------------------------------------------------------------------------------

    def fit(self, federation: Federation, *, response: str | None = None) -> SparseGLMResult:
        """Run it; the run folder is in `federation.runs`."""
        method = self if response is None else replace(self, response=response)
        return federation.run(method)[0]  # type: ignore[no-any-return]

    def covariates(self, facts: PublicFacts) -> tuple[str, ...]:
        """The columns that may be chosen: all but the response by default."""
        if self.response is None:
            raise BadArguments("name the column to explain: SparseGLM(response=...), or fit(federation, response=...).")
        check_response(facts.column(self.response), self.family)
        wanted = [name for held in facts.columns.values() for name in held] if self.columns is None else self.columns
        found = tuple(dict.fromkeys(name for name in wanted if name != self.response))
        if not found or not features(facts, found):
            raise BadArguments("there is no covariate; name at least one column other than the response in columns=.")
        return found

    def layout(self, facts: PublicFacts, roster: Roster) -> SparseLayout:
        """The public shape of the job."""
        made = SparseLayout(
            facts=facts,
            roster=roster,
            family=self.family,
            response=str(self.response),
            columns=self.covariates(facts),
            folds=self.folds if self.criterion == "cv" else 0,
            exchange=self.exchange,
        )
        made.check()
        return made

    def moment_layout(self, facts: PublicFacts, roster: Roster) -> Layout:
        """The one computation of `via="moments"` without noise: per pattern, of the records with the response."""
        names = (*self.covariates(facts), str(self.response))
        presence = self.presence or "known"
        patterns = None
        if presence == "known":
            parties = list(dict.fromkeys(one.party for one in features(facts, names)))
            holder = parties.index(facts.owner(str(self.response)))
            patterns = tuple(one for one in itertools.product((False, True), repeat=len(parties)) if one[holder])
        return PatternMoments(
            epsilon=None, columns=names, presence=presence, gamma=self._gamma, patterns=patterns
        ).layout(facts, roster)

    def scaled_moments(self, facts: PublicFacts, roster: Roster) -> ScaledMoments:
        """The three releases of `epsilon`."""
        assert self.epsilon is not None
        return ScaledMoments(
            facts=facts,
            roster=roster,
            names=(*self.covariates(facts), str(self.response)),
            epsilon=self.epsilon,
            delta=self.delta,
            gamma=self._gamma,
            presence=self.presence or "secret",
            clip=self.clip or {},
            view=self.view,
            relation=self.relation,
        )

    @property
    def _gamma(self) -> int:
        return self.gamma or (2**22 if self.epsilon is None else 2**12)

    @property
    def _paths(self) -> int:
        return 1 + (self.folds if self.criterion == "cv" else 0)

    @property
    def _solves(self) -> int:
        count = self.n_lambdas if self.lambdas is None else len(self.lambdas)
        return self._paths * count * (1 if self.penalty == "lasso" else 1 + self.lla_steps)

    @property
    def _counts(self) -> dict[str, int]:
        return {"rounds": self._rounds, "paths": self._paths, "solves": self._solves}

    @property
    def _rounds(self) -> int:
        """Measured: 5 to 8 quasi-Newton rounds a lambda, and hundreds of ADMM; reserved with room to spare."""
        return self.rounds or self._solves * (40 if self.route == "newton" else 1000)

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        if self.route == "moments":
            if self.epsilon is None:
                known = self.moment_layout(facts, roster)
                phases, notes = tuple(moment_phases(known, self.view)), moment_notes(known, self.view)
            else:
                scaled = self.scaled_moments(facts, roster)
                phases, notes = tuple(scaled.phases()), scaled.notes()
            notes = (*notes, "The whole path follows from these moments; no party is asked again.")
        else:
            phases, notes = round_phases(
                self.layout(facts, roster), penalty=self.penalty, damping=self.damping, via=self.route, **self._counts
            )
        return Plan(method=self.name, options=self.options(), stages=phases, notes=notes, delta=self.delta)

    # --- the coordinator's procedure ------------------------------------------------------------------------------

    def execute(self, job: Job) -> SparseGLMResult:
        if self.epsilon is not None:
            fitted = self.from_moments(*self.scaled_moments(job.facts, job.roster).execute(job))
        elif self.route == "moments":
            fitted = self.from_moments(compute_moments(job, self.moment_layout(job.facts, job.roster), self.view))
        else:
            fitted = self._from_rounds(job)
        return assemble(job, fitted, family=self.family, penalty=self.penalty, via=self.route, criterion=self.criterion)

    def _lambdas(self, largest: float, *, n: float, p: int, half: float) -> NDArray[np.float64]:
        if self.lambdas is not None:
            return np.array(self.lambdas) / half
        ratio = self.ratio or (1e-3 if n > p else 0.05)
        return lambda_sequence(largest, count=self.n_lambdas, ratio=ratio)

    def _trace(self, solver: WeightedLasso, lambdas: NDArray[np.float64]) -> Traced:
        first = 0
        if self.route != "moments" and self.exchange == "masked":
            first = min(int(np.searchsorted(-lambdas, -MIDDLE * solver.largest)), len(lambdas) - 1)
        return trace_path(solver, lambdas.tolist(), penalty=self.penalty, lla_steps=self.lla_steps, first=first)

    def from_moments(self, moments: Moments, clipped: Clipped | None = None) -> Fitted:
        """The path from moments that were computed, of rows that were clipped; no party is asked."""
        known = standard_moments(moments, str(self.response), gamma=self._gamma, clipped=clipped)
        covariates = tuple(one for one in moments.features if one.name != self.response)
        (target,) = (one for one in moments.features if one.name == self.response)
        centre, half, weight = target.centre, target.half, 1.0
        notes = known.notes
        if self.family == "binomial":
            # log(1 + e^eta) - y eta = (eta - 2s)^2 / 8 + constant, to second order around 0, with s = 2y - 1.
            known = known.responding(2.0 * (2.0 * centre - 1.0), 4.0 * half)
            centre, half, weight = 0.0, 1.0, 0.25
            notes = (
                *notes,
                "Binomial through moments: the path minimises the log-likelihood to second order around 0, as"
                " SQMLogistic. Its coefficients are scaled to log-odds, which is right if the linear predictor is"
                " Gaussian. Objective and deviance are those of the approximation.",
            )
        solver = moment_solver(
            weight * known.correlation, weight * known.cross, weight * known.variance, tolerance=self.tolerance
        )
        traced = self._trace(solver, self._lambdas(solver.largest, n=known.n, p=len(covariates), half=half))
        points = traced.points
        slopes = np.array([one.coefficients for one in points]) * known.inverse
        levels = np.full(len(points), known.response_mean)
        if self.family == "binomial":
            mean = (known.response_mean / 2.0 + 1.0) / 2.0
            found = [log_odds(math.sqrt(max(0.0, known.spanned(one.coefficients))), mean) for one in points]
            slopes, levels = slopes * np.array([[factor] for factor, _ in found]), np.array([a for _, a in found])
        carried = known.effective(points[-1].coefficients, points[-1].loss / weight)
        if known.noise:
            notes = (
                *notes,
                f"With the noise, {known.n:,.0f} records tell as much as {carried:,.0f} exact ones: BIC uses these.",
            )
        scores = scores_by_bic(self.family, points, n=carried, half=half)
        return Fitted(
            points=points,
            scores=scores,
            chosen=best(scores),
            slopes=slopes,
            intercepts=levels - slopes @ known.mean,
            null_loss=solver.null_loss,
            saturated=solver.saturated,
            largest=solver.largest,
            response=str(self.response),
            scale=(centre, half),
            features=covariates,
            nobs=round(known.n),
            rounds=1,
            notes=(*notes, *filter(None, [traced.ended])),
        )

    def _solver(self, rounds: Rounds, fold: int | None, largest: float | None = None) -> WeightedLasso:
        if self.route == "newton":
            return quasi_newton(rounds, fold=fold, tolerance=self.tolerance, largest=largest)
        return Admm(
            rounds, penalty=self.penalty, fold=fold, tolerance=self.tolerance, damping=self.damping, largest=largest
        )

    def _from_rounds(self, job: Job) -> Fitted:
        layout = self.layout(job.facts, job.roster)
        job.ask(show_presence, layout=layout.to_dict())
        counted: dict[str, int] = job.ask(agree_records, layout=layout.to_dict())
        n, p, half = counted[layout.holder], len(layout.features), layout.scale[1]
        rounds = Rounds(job, layout, limit=self._rounds)
        solver = self._solver(rounds, None)
        traced = self._trace(solver, self._lambdas(solver.largest, n=n, p=p, half=half))
        notes = withheld_note(traced, holder=layout.holder, half=half)
        points = traced.points
        if self.criterion == "bic":
            scores = scores_by_bic(self.family, points, n=n, half=half)
        else:
            lambdas = np.array([one.lam for one in points])
            left_out = [
                self._trace(self._solver(rounds, fold, solver.largest), lambdas).points for fold in range(self.folds)
            ]
            scores = scores_by_folds(left_out, lambdas=lambdas.tolist(), half=half)
        path = np.array([one.coefficients for one in points])
        asked = {
            party: {"layout": layout.to_dict(), "path": path[:, layout.place(party)].tolist()}
            for party in layout.parties
            if layout.width(party)
        }
        slopes, offsets = np.zeros_like(path), np.zeros(len(points))
        for party, one in job.ask_each(block_units, asked).items():
            slopes[:, layout.place(party)] = one["slopes"]
            offsets += one["offsets"]
        if n < job.facts.n:
            notes = (*notes, f"Only the {n:,} records that every party has are used.")
        return Fitted(
            points=points,
            scores=scores,
            chosen=best(scores),
            slopes=slopes,
            intercepts=np.array([one.intercept for one in points]) - offsets,
            null_loss=solver.null_loss,
            saturated=solver.saturated,
            largest=solver.largest,
            response=layout.response,
            scale=layout.scale,
            features=layout.features,
            nobs=n,
            rounds=rounds.used,
            notes=(*notes, *filter(None, [traced.ended])),
        )

    # --- as data --------------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("columns", "lambdas"):
            plain[name] = None if plain[name] is None else list(plain[name])
        return {**plain, "clip": None if self.clip is None else dict(self.clip)}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(**options)
