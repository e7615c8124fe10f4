"""`Select`: which columns of all parties explain a response (what the copula paper's section 4 is for).

Minimises the mean loss of a gaussian, binomial or poisson model plus a lasso, SCAD or MCP penalty on standardised
columns, along a path of lambdas, and chooses one by BIC or cross-validation. Two solvers reach the same optimum:

- `solver="moments"` (gaussian; the default there): one secure computation of moments, then no party is asked again;
- `solver="newton"` (the default otherwise): a quasi-Newton method with one masked total predictor a round.

A third one, `solver="wald"` (binomial and poisson), fits the model without a penalty as `Regress(family=...)` does,
and puts the penalty on the Wald distance from that fit (Wang and Leng 2007). Where blocks are missing, moments go
through EM, and the other two weigh complete records by presence: `wald` as `Regress` does, `newton` given the
response holder's covariates.

The paper's own ADMM is `colonnade.papers.VFLGLMVS`, which shares the path and the rounds. The claims, and what each
solver discloses, are in `select.claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import ListOf
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, method_class
from colonnade.federation.options import (
    ColumnNames,
    Delta,
    Option,
    OptionalEpsilon,
    Presence,
    RelationOption,
    Response,
    Verify,
    ViewOption,
)
from colonnade.federation.roster import Roster
from colonnade.models.glm.fit import WEIGHED, GeneralizedFit, moments_of, verdict
from colonnade.models.glm.newton import Solution
from colonnade.models.glm.scores import Remarks, Weighting
from colonnade.models.matrix import empty_text, missing_blocks
from colonnade.models.sparse.moments import (
    Clipped,
    StandardMoments,
    held_out_loss,
    joined,
    log_odds,
    observed_law,
    standard_moments,
)
from colonnade.models.sparse.path import (
    Family,
    PathPoint,
    Traced,
    WeightedLasso,
    lambda_sequence,
    moment_solver,
    trace_path,
)
from colonnade.models.sparse.penalties import Penalty
from colonnade.models.sparse.private import ScaledMoments
from colonnade.models.sparse.result import (
    Criterion,
    Fitted,
    Selection,
    Solver,
    best,
    scores_by_bic,
    scores_by_folds,
    withheld_note,
)
from colonnade.models.sparse.rounds import (
    Masking,
    QuasiNewton,
    Reserved,
    RoundLayout,
    Rounds,
    RoundSolver,
    agree_records,
    block_units,
    check_response,
    later_path,
    show_presence,
    weigh_records,
)
from colonnade.statistics import forecast
from colonnade.statistics.features import empty_notes, features
from colonnade.statistics.joint import check_budget
from colonnade.statistics.moments import MOST_FOLDS, MomentComputation, Moments, MomentsLayout, MomentsResult

MIDDLE = 0.1
"""Masked rounds start the path at this share of the largest lambda: enough columns to mix, see `trace_path`."""
RARE = 0.05
"""A share of events for which a plan says what is chosen, since the real one is not known."""
MOST_ROUNDS = 1_000_000
"""Rounds that a plan may reserve."""
COMPLETE_RECORDS = (
    "Only records that every party of the model has are used: right if records are missing completely at random."
)

WEIGHED_GIVEN_COVARIATES = (
    "Records that every party of the model has are used, weighed so that they stand for those that lack a block: right"
    " if whether a record has all blocks depends on the response holder's columns only, and the model's form is right."
)


@dataclass(kw_only=True)
class PathOptions(Method[Selection]):
    """What every solver of a path takes."""

    response: Response
    columns: Annotated[ColumnNames, Option("The covariates; all other columns by default.", reads="named or all")] = (
        None
    )
    family: Annotated[
        Family,
        Option("Of the response: a binary column is binomial (its second category is the event), a count poisson."),
    ] = "gaussian"
    penalty: Annotated[
        Penalty,
        Option(
            "On the size of the coefficients: lasso, or SCAD (a = 3.7) or MCP (gamma = 3) by local linear approximation"
            " from the lasso solution at the same lambda. The intercept is not penalised."
        ),
    ] = "scad"
    criterion: Annotated[
        Criterion,
        Option("How lambda is chosen: BIC (-2 loglik or n log RSS, plus df log n), or cross-validated mean loss."),
    ] = "bic"
    folds: Annotated[
        int, Option("Folds of the cross-validation.", least=2, most=MOST_FOLDS, only={"criterion": ("cv",)})
    ] = 5
    lambdas: Annotated[
        ListOf[float] | None,
        Option("The lambdas, falling, in units of the response per standard deviation of a column.", above=0),
    ] = None
    n_lambdas: Annotated[
        int,
        Option("How many lambdas, from the smallest that selects nothing down to `ratio` of it.", least=1, most=1_000),
    ] = 50
    ratio: Annotated[
        float | None,
        Option(
            "The last lambda as a share of the first; 0.001 by default, or 0.05 if features outnumber records.",
            above=0,
            below=1,
        ),
    ] = None
    lla_steps: Annotated[int, Option("Steps of the local linear approximation at most.", least=1, most=100)] = 10
    tolerance: Annotated[
        float, Option("Violation of the optimality conditions, as a share of the largest lambda.", above=0, most=0.1)
    ] = 1e-6
    rounds: Annotated[
        int | None,
        Option(
            "Rounds that the plan reserves at most; those that are not needed cost nothing.", least=1, most=MOST_ROUNDS
        ),
    ] = None
    masking: Annotated[
        Masking,
        Option(
            "masked: the response holder sees totals that mix two other parties' predictors, and solutions that would"
            " need another are withheld. plain: it sees each party's predictor."
        ),
    ] = "masked"

    def check(self) -> None:
        if self.lambdas is not None and (
            not self.lambdas or not all(a > b for a, b in itertools.pairwise((*self.lambdas, 0.0)))
        ):
            raise BadArguments("lambdas must be positive and fall: a path starts where nothing is selected.")


@method_class
class Select(PathOptions):
    """Choose the columns that explain a response, and estimate their effects.

    A sparse generalized linear model over a federation. With `epsilon` from noisy moments: a binomial response goes
    through the log-likelihood to second order, as in `Classify`, and a poisson one is refused.

    Returns
    -------
    `fit(federation)` gives a `Selection` with `params`, `support` (the chosen features), the path, and `summary()`.

    Example
    -------
    >>> columns = ("capital", "investors", "changes", "profit_growth")
    >>> fit = co.Select(response="profit_growth", columns=columns).fit(federation)
    >>> "investors" in fit.support
    True
    """

    name: ClassVar[str] = "select"
    rests_on: ClassVar[tuple[str, ...]] = ("moments", "describe")

    missing: Annotated[
        Literal["all", "complete-case"],
        Option(
            "Where blocks are missing. all: every record with the response counts, by EM in moments, and in rounds and"
            " with solver='wald' through weights by which complete records stand for all. complete-case: records that"
            " every party has, each alike.",
            only={"epsilon": (None,)},
        ),
    ] = "all"
    solver: Annotated[
        Literal["moments", "newton", "wald"] | None,
        Option(
            "moments: one secure computation of moments; a binomial likelihood is taken to second order and scaled to"
            " log-odds. newton: masked rounds. wald (binomial, poisson): from the fit of Regress(family=...), which"
            " shows no predictor; it needs more complete records than columns."
            " By default moments with epsilon or for gaussian, else newton."
        ),
    ] = None
    epsilon: OptionalEpsilon = None
    delta: Delta = 1e-6
    gamma: Annotated[
        int | None, Option("The scale of quantisation of the moments; 2^22 by default, 2^12 with epsilon.", least=1)
    ] = None
    clip: Annotated[
        Mapping[str, float] | None,
        Option(
            "With epsilon: the norm of a party's part of a row if each column had deviation 0.4.",
            form="PARTY=NORM",
            above=0,
        ),
    ] = None
    presence: Annotated[
        Presence | None,
        Option(
            "Of the moments: known shows the share holders who has which record, secret shares that like data, ignore"
            " takes an absent block as zeros. By default known, and secret with epsilon."
        ),
    ] = None
    view: ViewOption = "client"
    relation: RelationOption = "zero-out"
    verify: Verify = True

    def check(self) -> None:
        super().check()
        check_budget(self.epsilon, self.delta)
        if self.epsilon is None and self.clip is not None:
            raise BadArguments(
                "clip bounds the rows of noisy moments; it has no meaning without epsilon: leave it out."
            )
        if self.epsilon is not None and self.family == "poisson":
            raise BadArguments(
                "no private route is known for family='poisson'; synthesize a table with Synthesize(epsilon=...) and"
                " fit it without epsilon."
            )
        if self.missing == "complete-case" and self.presence_used != "known":
            raise BadArguments("missing='complete-case' needs presence='known'; leave presence out.")
        if self.solver == "newton" and self.epsilon is not None:
            raise BadArguments("solver='newton' shows predictors and cannot be private; leave solver out with epsilon.")
        if self.solver == "wald" and (self.family == "gaussian" or self.epsilon is not None or self.criterion == "cv"):
            raise BadArguments(
                "solver='wald' is for family='binomial' or 'poisson' without epsilon and with criterion='bic'; leave"
                " solver out."
            )
        if self.solver_used == "moments" and self.family == "poisson":
            raise BadArguments("moments have no poisson likelihood; leave solver out.")
        known = self.epsilon is None and self.presence_used == "known"
        if self.solver_used == "moments" and self.criterion == "cv" and not (self.family == "gaussian" and known):
            raise BadArguments(
                "cross-validation from moments is for family='gaussian' with presence='known' and without epsilon; use"
                " criterion='bic', or solver='newton' without epsilon."
            )

    @property
    def solver_used(self) -> Literal["moments", "newton", "wald"]:
        """Moments where they suffice, since they are faster and show no record."""
        if self.solver is not None:
            return self.solver
        if self.epsilon is not None or self.family == "gaussian":
            return "moments"
        return "newton"

    @property
    def presence_used(self) -> Presence:
        """Of the moments: known where they are exact, since EM needs it, and secret with epsilon."""
        return self.presence or ("known" if self.epsilon is None else "secret")

    def missing_data(self) -> str:
        if self.missing == "complete-case":
            return COMPLETE_RECORDS
        if self.solver_used == "wald":
            return WEIGHED
        if self.solver_used == "newton":
            return WEIGHED_GIVEN_COVARIATES
        if self.presence_used == "known" and self.epsilon is None:
            return (
                "All records that have the response are used, those that lack a block by EM: right if records are"
                " missing at random and the columns are jointly Gaussian."
            )
        return missing_blocks(self.presence_used)

    def procedure(self, facts: PublicFacts, roster: Roster) -> Procedure[Selection]:
        if self.solver_used == "moments":
            return PathFromMoments(self, facts, roster)
        if self.solver_used == "wald":
            return PathFromFit(self, facts, roster)

        def solver(layout: RoundLayout, reserved: Reserved) -> QuasiNewton:
            return QuasiNewton(layout, reserved, tolerance=self.tolerance)

        # Measured: 5 to 8 rounds a lambda; reserved with room to spare.
        weighting: Weighting = "conditional" if self.missing == "all" else "equal"
        return PathByRounds(
            self, facts, roster, solver, name="newton", rounds_each=40, in_step=True, weighting=weighting
        )


# --- what every path has ------------------------------------------------------------------------------------------


def covariates(method: PathOptions, facts: PublicFacts) -> tuple[str, ...]:
    """The columns that may be chosen: all but the response by default."""
    check_response(facts.column(method.response), method.family)
    wanted = [name for held in facts.columns.values() for name in held] if method.columns is None else method.columns
    others = tuple(dict.fromkeys(name for name in wanted if name != method.response))
    if not others or not features(facts, others):
        raise BadArguments("there is no covariate; name at least one column other than the response in columns=.")
    return others


class Path(Procedure[Selection]):
    """Lambdas, the path along them, and the selection that they give."""

    def __init__(self, method: PathOptions, facts: PublicFacts) -> None:
        self.options = method
        self.covariates = covariates(method, facts)

    def lambdas(self, largest: float, *, n: float, p: int, half: float) -> NDArray[np.float64]:
        options = self.options
        if options.lambdas is not None:
            return np.array(options.lambdas) / half
        ratio = options.ratio or (1e-3 if n > p else 0.05)
        return lambda_sequence(largest, count=options.n_lambdas, ratio=ratio)

    def trace(self, solver: WeightedLasso, lambdas: NDArray[np.float64], *, first: int = 0) -> Traced:
        options = self.options
        return trace_path(solver, lambdas.tolist(), penalty=options.penalty, lla_steps=options.lla_steps, first=first)

    def selection(self, job: Job, fitted: Fitted, solver: Solver) -> Selection:
        options = self.options
        return fitted.selection(
            job, family=options.family, penalty=options.penalty, solver=solver, criterion=options.criterion
        )


# --- from moments -------------------------------------------------------------------------------------------------


class PathFromMoments(Path):
    """One computation of moments, exact or scaled and noisy; the whole path follows from them."""

    def __init__(self, method: Select, facts: PublicFacts, roster: Roster) -> None:
        super().__init__(method, facts)
        self.method = method
        self.gamma = method.gamma or (2**22 if method.epsilon is None else 2**12)
        self.folds = method.folds if method.criterion == "cv" else 0
        self.gaps = tuple(name for name in self.covariates if facts.column(name).missing)
        names = (*self.covariates, method.response)
        self.source: MomentComputation | ScaledMoments
        if method.epsilon is None:
            self.source = MomentComputation(self._exact_layout(names, facts, roster), method.view)
        else:
            self.source = ScaledMoments(
                facts,
                roster,
                names=names,
                epsilon=method.epsilon,
                delta=method.delta,
                gamma=self.gamma,
                presence=method.presence_used,
                clip=method.clip or {},
                view=method.view,
                relation=method.relation,
                verify=method.verify,
            )
        self.stages = self.source.stages
        self.notes = (*self.source.notes, "The whole path follows from these moments; no party is asked again.")
        if self.folds:
            self.notes = (*self.notes, f"The coordinator sees the moments of each of {self.folds} folds of the cohort.")
        if isinstance(self.source, ScaledMoments):
            rare = (RARE, self.source.noise_beside_events(RARE)) if method.family == "binomial" else None
            noise = self.source.correlation_noise
            expected = forecast.choice(noise=noise, n=facts.n, epsilon=method.epsilon, rare=rare)
            self.notes = (*self.notes, *expected)

    def _exact_layout(self, names: tuple[str, ...], facts: PublicFacts, roster: Roster) -> MomentsLayout:
        """Per pattern, of the records with the response, where the presence is known."""
        presence, patterns = self.method.presence_used, None
        if presence == "known":
            parties = list(dict.fromkeys(feature.party for feature in features(facts, names)))
            response_party = parties.index(facts.owner(self.method.response))
            every = itertools.product((False, True), repeat=len(parties))
            complete = self.method.missing == "complete-case"
            patterns = tuple(mask for mask in every if (all(mask) if complete else mask[response_party]))
        layout = Moments(
            epsilon=None,
            columns=names,
            presence=presence,
            gamma=self.gamma,
            patterns=patterns,
            view=self.method.view,
            verify=self.method.verify,
        ).layout(facts, roster)
        return replace(layout, folds=self.folds)

    def run(self, job: Job) -> Selection:
        if isinstance(self.source, ScaledMoments):
            fitted = self.fitted(*self.source.run(job))
        else:
            moments = self.source.run(job)
            folds = moments.having(self.method.response).by_fold(self.folds) if self.folds else []
            if folds:
                moments = joined(folds)
            elif moments.presence == "known":
                moments = moments.having(self.method.response)
            fitted = self.fitted(moments, folds=folds)
        return self.selection(job, fitted, "moments")

    def fitted(
        self, moments: MomentsResult, clipped: Clipped | None = None, folds: Sequence[MomentsResult] = ()
    ) -> Fitted:
        """The path from moments that were computed, of rows that were clipped; no party is asked."""
        method = self.method
        standard = standard_moments(moments, method.response, gamma=self.gamma, clipped=clipped, gaps=self.gaps)
        covariates = tuple(feature for feature in moments.features if feature.name != method.response)
        (target,) = (feature for feature in moments.features if feature.name == method.response)
        centre, half, weight = target.centre, target.half, 1.0
        notes = (*standard.notes, *filter(None, [empty_text(moments.empty_cells, moments.noise_sd)]))
        if method.family == "binomial":
            # log(1 + e^eta) - y eta = (eta - 2s)^2 / 8 + constant, to second order around 0, with s = 2y - 1.
            standard = standard.responding(2.0 * (2.0 * centre - 1.0), 4.0 * half)
            centre, half, weight = 0.0, 1.0, 0.25
            notes = (
                *notes,
                "Binomial through moments: the path minimises the log-likelihood to second order around 0, as Classify"
                " does. Its coefficients are scaled to log-odds, which is right if the linear predictor is Gaussian."
                " Objective and deviance are those of the approximation.",
            )
        solver = moment_solver(
            weight * standard.correlation,
            weight * standard.cross,
            weight * standard.variance,
            tolerance=method.tolerance,
        )
        lambdas = self.lambdas(solver.largest, n=standard.n, p=len(covariates), half=half)
        traced = self.trace(solver, lambdas)
        points = traced.points
        slopes = np.array([point.coefficients for point in points]) * standard.inverse
        levels = np.full(len(points), standard.response_mean)
        if method.family == "binomial":
            mean = (standard.response_mean / 2.0 + 1.0) / 2.0
            lengths = [math.sqrt(max(0.0, standard.spanned(point.coefficients))) for point in points]
            factors, centres = zip(*(log_odds(length, mean) for length in lengths), strict=True)
            slopes, levels = slopes * np.array(factors)[:, None], np.array(centres)
        carried = standard.effective(points[-1].coefficients, points[-1].loss / weight)
        if standard.noise:
            notes = (
                *notes,
                f"With the noise, {standard.n:,.0f} records tell as much as {carried:,.0f} exact ones: BIC uses these.",
            )
        # To second order a binomial likelihood is least squares too: without its variance profiled out, chance would
        # lower the deviance by 4 q (1 - q) for each column instead of 1, and of rare events (q) none would be chosen.
        scores = scores_by_bic("gaussian", points, n=carried, half=half)
        if folds:
            along = [point.lam for point in points]
            scores = scores_by_folds(self.left_out(folds, standard, along, solver.largest), lambdas=along, half=half)
        return Fitted(
            points=points,
            scores=scores,
            chosen=best(scores),
            slopes=slopes,
            intercepts=levels - slopes @ standard.mean,
            null_loss=solver.null_loss,
            saturated=solver.saturated,
            largest=solver.largest,
            response=method.response,
            scale=(centre, half),
            features=covariates,
            nobs=round(standard.n),
            count_sd=moments.noise_sd,
            rounds=1,
            notes=(*notes, *filter(None, [traced.ended])),
        )

    def left_out(
        self, folds: Sequence[MomentsResult], standard: StandardMoments, lambdas: Sequence[float], largest: float
    ) -> list[list[PathPoint]]:
        """The path without each fold, in the units of all records, with its loss over that fold."""
        names = [feature.name for feature in folds[0].features]
        target = names.index(self.method.response)
        paths = []
        for number, fold in enumerate(folds):
            law = observed_law(joined([*folds[:number], *folds[number + 1 :]]), self.method.response, self.gamma)
            within = np.delete(np.delete(law.covariance, target, axis=0), target, axis=1)
            solver = moment_solver(
                within * np.outer(standard.inverse, standard.inverse),
                np.delete(law.covariance[:, target], target) * standard.inverse,
                float(law.covariance[target, target]),
                tolerance=self.method.tolerance,
                largest=largest,
            )
            points = []
            for point in self.trace(solver, np.array(lambdas)).points:
                direction = np.insert(-point.coefficients * standard.inverse, target, 1.0)
                loss = held_out_loss(fold, law, direction, float(direction @ law.mean))
                points.append(replace(point, held_out=loss))
            paths.append(points)
        return paths


# --- from a fit without a penalty ---------------------------------------------------------------------------------


class PathFromFit(Path):
    """The weighted fit b_0 of `Regress(family=...)` with its robust covariance V. (b - b_0)'V^-1 (b - b_0) / 2 stands
    for the log-likelihood that b lacks, which it is to second order."""

    def __init__(self, method: Select, facts: PublicFacts, roster: Roster) -> None:
        super().__init__(method, facts)
        assert method.family != "gaussian"
        self.family = method.family
        self.source = GeneralizedFit(
            facts,
            roster,
            family=method.family,
            names=(*self.covariates, method.response),
            offset=None,
            weighting="presence" if method.missing == "all" else "equal",
            gamma=method.gamma or 2**20,
        )
        self.stages = self.source.stages
        self.notes = (*self.source.notes, "The whole path follows from this fit and its covariance.")

    def run(self, job: Job) -> Selection:
        remarks, solution, cov = self.source.estimates(job)
        return self.selection(job, self.fitted(remarks, solution, cov), "wald")

    def fitted(self, remarks: Remarks, solution: Solution, cov: NDArray[np.float64]) -> Fitted:
        layout, records = self.source.layout, remarks.effective
        _, sigma = moments_of(self.family, solution.null)
        deviation = np.sqrt(np.diag(sigma)[:-1])
        full, slopes = solution.params[1:], solution.params[1:] * deviation
        curvature = np.linalg.inv(cov[1:, 1:] * np.outer(deviation, deviation)) / records
        solver = moment_solver(
            curvature,
            curvature @ slopes,
            # A distance has no saturated model: a constant keeps the path from ending where it reaches the fit.
            float(slopes @ curvature @ slopes) + 1.0,
            tolerance=self.options.tolerance,
        )
        lambdas = self.lambdas(solver.largest, n=records, p=len(slopes), half=1.0)
        traced = self.trace(solver, lambdas)
        chosen = np.array([point.coefficients for point in traced.points]) / deviation
        # The intercept that is nearest to the fit's, given the other coefficients.
        precision = np.linalg.inv(cov)
        moved = (chosen - full) @ precision[1:, 0] / precision[0, 0]
        scores = scores_by_bic(self.family, traced.points, n=records, half=1.0)
        return Fitted(
            points=traced.points,
            scores=scores,
            chosen=best(scores),
            slopes=chosen,
            intercepts=solution.params[0] - moved,
            null_loss=solver.null_loss,
            saturated=solver.saturated,
            largest=solver.largest,
            response=layout.response,
            scale=(0.0, 1.0),
            features=solution.used(layout.features),
            nobs=remarks.counts[-1],
            rounds=solution.steps,
            notes=(
                verdict(remarks, len(solution.params), weighed=self.source.weighting == "presence"),
                "The path minimises the Wald distance from the fit without a penalty, plus the penalty. Objective and"
                f" deviance are of that distance; BIC counts {records:,.0f} records, which the weighed ones are worth.",
                *filter(None, [traced.ended]),
            ),
        )


# --- by rounds ----------------------------------------------------------------------------------------------------


class PathByRounds(Path):
    """Agree on the records, trace the path (and one for each fold) by a solver's rounds, return to own units."""

    def __init__(
        self,
        method: PathOptions,
        facts: PublicFacts,
        roster: Roster,
        solver: Callable[[RoundLayout, Reserved], RoundSolver],
        *,
        name: Solver,
        rounds_each: int,
        in_step: bool = False,
        weighting: Weighting = "equal",
    ) -> None:
        """`rounds_each`: of each solution, reserved unless the options say how many rounds there may be in all.
        `in_step`: a round of the solver serves several folds."""
        super().__init__(method, facts)
        folds = method.folds if method.criterion == "cv" else 0
        self.layout = layout = RoundLayout(
            facts=facts,
            roster=roster,
            family=method.family,
            response=method.response,
            columns=self.covariates,
            folds=folds,
            masking=method.masking,
            weighting=weighting,
        )
        layout.check()
        lambdas = method.n_lambdas if method.lambdas is None else len(method.lambdas)
        paths = 1 + math.ceil(folds / (layout.together if in_step else 1))
        solves = paths * lambdas * (1 if method.penalty == "lasso" else 1 + method.lla_steps)
        reserved = method.rounds or rounds_each * solves
        if reserved > MOST_ROUNDS:
            raise BadArguments(
                f"{solves:,} solutions would reserve {reserved:,} rounds, above {MOST_ROUNDS:,}; take fewer folds or"
                " lambdas, or say with rounds= how many to reserve."
            )
        self.reserved = Reserved(reserved, paths, solves)
        self.solver, self.name = solver(layout, self.reserved), name
        self.presence = layout.stage(
            "presence",
            show_presence,
            layout.parties,
            audience="parties",
            recipients=layout.parties,
            discloses="which records a party has, to the other parties",
            reply_bytes=layout.facts.n // 8 * len(layout.parties),
        )
        self.records = layout.stage(
            "records", agree_records, layout.parties, discloses="how many records all have", reply_bytes=9
        )
        self.weights = layout.stage(
            "weights",
            weigh_records,
            [layout.response_party],
            discloses="how many records each pattern of parties has, and how unequal the weights of complete ones are",
            reply_bytes=64 + 9 * 2 ** len(layout.others),
        )
        self.units = layout.stage(
            "coefficients",
            block_units,
            layout.covered,
            later={"path": later_path(layout, lambdas)},
            discloses="the fitted coefficients",
            reply_bytes=layout.block_bytes,
        )
        weighed = (self.weights,) if weighting != "equal" else ()
        self.stages = (self.presence, self.records, *weighed, *self.solver.stages, self.units)
        whose = "the total linear predictor" if layout.masking == "masked" else "each party's linear predictor"
        self.notes = (
            f"At most {self.reserved.rounds:,} rounds are reserved; a path usually needs far fewer.",
            f"In each round {layout.response_party!r} sees {whose} by record, and the parties with covariates see"
            " residuals by record, from which they can work out the response.",
            *self.solver.notes,
            *empty_notes(dict.fromkeys(layout.filled, "drop")),
            f"{layout.response_party!r} weighs the records that every party has, by its own columns and who has which"
            " record; from the residuals the parties with covariates can work these weights out."
            if weighed
            else "Only records that every party has are used: right if records are missing completely at random. With"
            " missing blocks use Select(solver='moments') (gaussian) or Select(solver='wald').",
        )

    def run(self, job: Job) -> Selection:
        options, layout = self.options, self.layout
        job.ask(self.presence)
        counted: dict[str, int] = job.ask(self.records)
        n, p, half = counted[layout.response_party], len(layout.features), layout.scale[1]
        worth, remarks = float(n), None
        if layout.weighting != "equal":
            remarks = Remarks.read(job.ask(self.weights)[layout.response_party])
            worth = remarks.effective
        rounds = Rounds(job, layout, self.reserved)
        solver = self.solver.start(rounds)
        traced = self._trace(solver, self.lambdas(solver.largest, n=n, p=p, half=half))
        notes = withheld_note(traced, response_party=layout.response_party, half=half)
        points = traced.points
        if options.criterion == "bic":
            scores = scores_by_bic(options.family, points, n=worth, half=half)
        else:
            lambdas = np.array([point.lam for point in points])
            left_out = self.solver.left_out(rounds, solver, lambda fold: self._trace(fold, lambdas).points)
            scores = scores_by_folds(left_out, lambdas=lambdas.tolist(), half=half)
        path = np.array([point.coefficients for point in points])
        own = {party: {"path": path[:, layout.place(party)].tolist()} for party in layout.covered}
        slopes, offsets = np.zeros_like(path), np.zeros(len(points))
        for party, part in job.ask_each(self.units, own).items():
            slopes[:, layout.place(party)] = part["slopes"]
            offsets += part["offsets"]
        if remarks is not None and n < sum(remarks.counts):
            notes = (*notes, verdict(remarks, 1 + points[best(scores)].df, weighed=True))
        elif n < job.facts.n:
            notes = (*notes, f"Only the {n:,} records that every party has are used.")
        fitted = Fitted(
            points=points,
            scores=scores,
            chosen=best(scores),
            slopes=slopes,
            intercepts=np.array([point.intercept for point in points]) - offsets,
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
        return self.selection(job, fitted, self.name)

    def _trace(self, solver: WeightedLasso, lambdas: NDArray[np.float64]) -> Traced:
        first = 0
        if self.layout.masking == "masked":
            first = min(int(np.searchsorted(-lambdas, -MIDDLE * solver.largest)), len(lambdas) - 1)
        return self.trace(solver, lambdas, first=first)
