"""`VFEM`: the paper's regression, in which columns of different parties are uncorrelated, in rounds or in closed form.

`solver="rounds"` is the paper's Algorithm 1. The E step and the M step need, of the other parties, each record's
**sum** of linear predictors and one number a block (beta'Sigma beta); everything else is per pattern. So one iteration
is: predictors to the response holder, residuals back. Coefficients move by the gradient (7) with
eta = 2 / (lambda_max + lambda_min), the largest and smallest eigenvalue of the parties' correlation matrices; means,
covariances and s2 by equation (6). The likelihood must not fall: where the covariates of different parties are
correlated, which the paper's eta does not foresee, eta is halved. `solver="exact"` climbs by equation (6) on pattern
moments (`papers/vfem/model.py`). The claim is in `method.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np

from colonnade.errors import BadArguments, NotEstimable, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, method_class
from colonnade.federation.options import Option
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, Stage, audience_of, counted, flag, integer, number, one_of, stage
from colonnade.federation.step import Step
from colonnade.models.linear.estimate import MomentFit, regression_columns
from colonnade.models.linear.regress import Covariates, MomentGamma, RegressionResponse
from colonnade.models.linear.result import Regression, Sample
from colonnade.models.matrix import columns_of
from colonnade.papers.vfem.block import Design
from colonnade.papers.vfem.information import Information, SecureGram, SketchedGram, WeightedGram
from colonnade.papers.vfem.model import (
    BlockModel,
    BlockParameters,
    Terms,
    Units,
    as_regression,
    estimate_independent,
    own_moments,
)
from colonnade.papers.vfem.steps import (
    Masking,
    Mode,
    announce,
    predictors,
    prepare,
    residuals,
    response_terms,
    terms,
)
from colonnade.statistics.verified import NOT_VERIFIED

STARTING = 40
"""At most so many iterations on complete or mean-imputed records; they only choose where EM begins."""
STARTED = 1e-3
"""A relative gain of the starting regression below this ends it."""
ROUNDING = 1e-11
"""Relative to the log-likelihood: a smaller fall is rounding, at the top."""
LARGEST_ETA = 2.0 + 1e-6
"""2 / (largest + smallest eigenvalue): the mean eigenvalue of a correlation matrix is 1, so the largest is no less."""
LATER = {
    "round_number": counted("the number of the round: a pad serves once"),
    "eta": number("2 / (largest + smallest eigenvalue of the correlation matrices), or shorter", 1e-30, LARGEST_ETA),
    "retreat": flag("whether the likelihood fell, so that the last step is taken again, shorter"),
    "mode": one_of("the regression that chooses where EM begins, and then EM", get_args(Mode)),
}
"""What of a round depends on the answers before it, with the rule that bounds it. Pads are bound to it too: a sum can
be read only if all of its parties were asked the same."""
ROUNDS = {"solver": ("rounds",)}
SKETCH = {"information": ("sketch",)}


@method_class
class VFEM(Method[Regression]):
    """Explain one column by the others from incomplete records, taking columns of different parties as uncorrelated.

    Where they are correlated, its estimates are biased and its intervals cover too little; `Regress` is right. Nothing
    is differentially private. Every party must allow by name what the plan lists: in rounds the response holder sees
    sums of linear predictors (with `masking="plain"` each of them) and the others its residuals.

    Returns
    -------
    `fit(federation)` gives a `Regression` as in statsmodels: `params`, `bse`, `pvalues`, `conf_int()`, `summary()`.

    Example
    -------
    >>> from colonnade.papers import VFEM
    >>> columns = ("capital", "investors", "changes", "profit_growth")
    >>> fit = VFEM(response="profit_growth", columns=columns, solver="exact").fit(federation)
    >>> bool(fit.params["investors"] > 0)
    True
    """

    name: ClassVar[str] = "vfem"

    response: RegressionResponse
    columns: Covariates = None
    solver: Annotated[
        Literal["rounds", "exact"], Option("The paper's rounds, or its equation (6) on exact pattern moments.")
    ] = "rounds"
    masking: Annotated[
        Masking,
        Option(
            "masked: the response holder sees sums of predictors over groups of parties, and blocks that would stand"
            " alone are left out. plain, the paper's: it sees each of them.",
            only=ROUNDS,
        ),
    ] = "masked"
    information: Annotated[
        Information,
        Option(
            "For standard errors: secure computes products across parties on secret shares; sketch shows random"
            " combinations of records to the coordinator.",
            only=ROUNDS,
        ),
    ] = "secure"
    sketch_size: Annotated[
        int, Option("Rows of the sketch; at most an eighth of the records.", least=1, most=1_000_000, only=SKETCH)
    ] = 1024
    coordinator: Annotated[
        str | None,
        Option("The organisation that runs the coordinator, which must be none of the parties.", only=SKETCH),
    ] = None
    init: Annotated[Literal["complete-case", "mean"], Option("Start from complete cases or from mean imputation.")] = (
        "complete-case"
    )
    rounds: Annotated[int, Option("Rounds at most.", least=10, most=1_000_000, only=ROUNDS)] = 2000
    tolerance: Annotated[
        float,
        Option(
            "Until the log-likelihood has less than this to gain; with 1e-5 estimates are within 0.005 standard errors"
            " of the maximum.",
            above=0,
            only=ROUNDS,
        ),
    ] = 1e-5
    gamma: MomentGamma = 2**20
    minimum_joint: Annotated[
        int, Option("Records with the response that each party must have, for each of its features.", least=2)
    ] = 10

    @classmethod
    def as_printed(cls, **changes: Any) -> Self:
        """Algorithm 1 with each party's predictor shown, started from complete cases (its CC-VFEM), and Algorithm 2.

        Name the `response`, and the `coordinator` that runs the sketch. The paper leaves open the number of iterations,
        the convergence value and the sketch's size (it has m = K log n as an example): these are our defaults. Its
        sketch draws a matrix for each party, whose products across parties have mean zero; here one serves all.
        """
        printed = {"solver": "rounds", "masking": "plain", "information": "sketch", "init": "complete-case"}
        return cls(**{**printed, **changes})

    def missing_data(self) -> str:
        if self.solver == "rounds" and self.masking == "masked":
            return (
                "Every record with the response is used, by EM, but a block only where all parties of its group have"
                " the record: right if records are missing completely at random, or as the response holder's columns"
                " say, and columns of different parties are uncorrelated."
            )
        return (
            "Every record with the response is used, with the blocks that it has, by EM: right if records are missing"
            " at random and columns of different parties are uncorrelated."
        )

    def procedure(self, facts: PublicFacts, roster: Roster) -> Procedure[Regression]:
        names = regression_columns(facts, self.response, self.columns)
        if self.solver == "rounds":
            return Rounds(self, Design.of(facts, names), roster)
        return MomentFit(facts, roster, names=names, gamma=self.gamma, estimator=self._exact)

    def _exact(self, *moments: Any, **stated: Any) -> Regression:
        result = estimate_independent(*moments, **stated, minimum_joint=self.minimum_joint, init=self.init)
        return self.described(result)

    def described(self, result: Regression) -> Regression:
        """With the model's name, and what it assumes."""
        remark = (
            "The model takes columns of different parties as uncorrelated. Where they are not, the estimates are biased"
            " and the intervals cover too little: compare with Regress."
        )
        return replace(
            result,
            model="VFEM, independent blocks",
            method=f"EM, solver={self.solver}",
            remarks=(remark, *result.remarks),
        )


# --- the coordinator's procedure --------------------------------------------------------------------------


class Rounds(Procedure[Regression]):
    """Algorithm 1, then what the information needs."""

    def __init__(self, method: VFEM, design: Design, roster: Roster) -> None:
        self.method, self.design = method, design
        self._check()
        n, others, response_party = design.facts.n, design.others, (design.response_party,)
        vector, masking = 8 * (n + 1), method.masking
        one_round: dict[str, Any] = {"masking": masking, "round_number": 0, "eta": 1.0, "retreat": False}

        def asked(
            name: str,
            step: Step,
            parties: tuple[str, ...],
            size: int,
            *,
            count: int = 1,
            recipients: tuple[str, ...] = (),
            later: Mapping[str, Later] = LATER,
            **arguments: Any,
        ) -> Stage:
            """`count` requests of the same cost; what `later` names depends on the answers, and is an example."""
            arguments["names"] = list(design.names)
            planned = stage(
                f"vfem: {name}",
                step,
                {party: [arguments] * count for party in parties},
                facts=design.facts,
                roster=roster,
                discloses="",
                reply_bytes=size,
                recipients=recipients,
                later={argument: rule for argument, rule in later.items() if argument in arguments},
            )
            cost = planned.costs[parties[0]]
            return replace(planned, audience=audience_of([cost]), discloses=str(cost.leaves()[0]["discloses"]))

        back, most = vector * len(others), method.rounds
        self.announce = asked("presence", announce, design.parties, n // 8 * len(others), recipients=design.parties)
        self.prepare = asked("prepare", prepare, design.parties, 64, masking=masking)
        self.predictors = asked(
            "predictors", predictors, others, vector, count=most + 1, recipients=response_party, **one_round
        )
        self.residuals = asked(
            "residuals", residuals, response_party, back, count=most, recipients=others, mode="em", **one_round
        )
        self.response_terms = asked(
            "holder's terms",
            response_terms,
            response_party,
            back,
            recipients=others,
            later={**LATER, "round_number": integer("the number of rounds that were made; it goes forward", 0, most)},
            masking=masking,
            round_number=0,
            eta=1.0,
        )
        self.terms = asked("terms", terms, others, 4096, eta=1.0)
        self.information: WeightedGram = (
            SketchedGram(design, roster, size=method.sketch_size, coordinator=method.coordinator)
            if method.information == "sketch"
            else SecureGram(design, roster, gamma=method.gamma)
        )
        rounds = (self.announce, self.prepare, self.predictors, self.residuals, self.response_terms, self.terms)
        self.stages = (*rounds, *self.information.stages)
        self.notes = self._notes()

    def _check(self) -> None:
        others = self.design.others
        if not others:
            raise BadArguments(
                "all columns are at one party, so there are no rounds to make; fit a regression there, or name columns"
                " of other parties."
            )
        if self.method.masking == "masked" and len(others) < 2:
            raise UnsafeRequest(
                f"{others[0]!r} has no other party to hide behind: of two parties a sum of linear predictors is one"
                " of them; take solver='exact' or Regress, which show none, or masking='plain', which shows it."
            )

    def _notes(self) -> tuple[str, ...]:
        method, design = self.method, self.design
        notes = [
            f"At most {method.rounds} iterations, each with one number a record that a party has, from"
            f" {len(design.others)} parties, and one back; nothing of it is differentially private.",
        ]
        if method.masking == "plain":
            notes.append(
                f"masking='plain': {design.response_party!r} sees every party's linear predictor in every round, and"
                " from as many rounds as a party has columns it knows the space that these columns span."
            )
        else:
            notes.append(
                f"{design.response_party!r} sees sums over groups of two or more other parties"
                + (f": here all {len(design.others)}" if len(design.others) < 4 else "")
                + ". A group's blocks are used only at the records that all of it has, and count as missing elsewhere:"
                " right if records are missing completely at random, or as the response holder's columns say. Over many"
                " rounds the sums span the columns of a group together. solver='exact' and Regress use all blocks and"
                " show no record."
            )
        notes.append(
            "Every data party sees the residuals of its records, and who has which record; the coordinator sees how"
            " many records a party has, also from the size of its messages. The model takes columns of different"
            " parties as uncorrelated: where they are not, estimates are biased, and Regress is right."
        )
        if method.information == "sketch":
            notes.append(
                f"information='sketch': {method.coordinator!r} sees {method.sketch_size} random combinations of each"
                " party's records. Every data party knows the seed: with it each is a linear equation in the raw"
                " columns."
            )
        else:
            notes.append(NOT_VERIFIED)
        return tuple(notes)

    def run(self, job: Job) -> Regression:
        method, design = self.method, self.design
        job.ask(self.announce)
        prepared = job.ask(self.prepare)
        self._check_counts(prepared)
        high, low = max(reply["high"] for reply in prepared.values()), min(reply["low"] for reply in prepared.values())
        climb = _Climb(job, self, eta=2 / (high + low))
        climb.up(method.init, most=STARTING, tolerance=0.0)
        trace = climb.up("em", most=method.rounds, tolerance=method.tolerance)
        model, units, partial = self._model(climb.terms())
        gram = self.information.run(job, weight=max(1 / model.tau(mask) for mask in partial.masks))
        # From features in [-1, 1] to standard units: both are affine.
        into = np.eye(1 + model.width)
        into[1:, 0] = -units.centre / units.scale
        into[1:, 1:] /= units.scale[:, None]
        terms = replace(partial, gram=into @ gram @ into.T)
        sample = Sample(
            response=design.response,
            features=tuple(design.features),
            columns=columns_of(job.facts, design.features),
            parties=design.parties,
            patterns=tuple((mask, round(count)) for mask, count in zip(terms.masks, terms.counts, strict=True)),
            cohort=job.facts.n,
            simulated=job.simulated,
        )
        names = [feature.name for feature in design.covariates]
        steps = (climb.iterations, 0)
        fit = as_regression(model, terms, units, names=names, target=sample.target, trace=trace, steps=steps)
        result = replace(sample.regression(*fit), remarks=self._left_out(prepared))
        return method.described(result).with_costs(job.plan)

    def _left_out(self, prepared: Mapping[str, Any]) -> tuple[str, ...]:
        """What hiding in groups cost."""
        lost = {party: int(reply["left_out"]) for party, reply in prepared.items() if reply["left_out"]}
        if not lost:
            return ()
        groups = ["{" + ", ".join(group) + "}" for group in prepared[self.design.response_party]["groups"]]
        counts = ", ".join(
            f"{party} {count:,} of {count + prepared[party]['count']:,}" for party, count in lost.items()
        )
        return (
            f"masking='masked' hides {' and '.join(groups)} in sums; blocks of records that not all of a group have"
            f" are left out as if missing ({counts}). Right if records are missing completely at random, or as the"
            " response holder's columns say. solver='exact' and Regress use them all.",
        )

    def _check_counts(self, prepared: Mapping[str, Any]) -> None:
        for party, reply in prepared.items():
            width = self.design.width(party)
            needed = max(self.method.minimum_joint * width, width + 2)
            if reply["count"] < needed:
                left = f" ({reply['left_out']} more have nothing to hide behind)" if reply["left_out"] else ""
                cure = "take solver='exact', which uses all of them" if reply["left_out"] else "lower minimum_joint"
                raise NotEstimable(
                    f"only {reply['count']} records with the response are at {party!r}{left}, and {needed} are needed;"
                    f" leave the party out with columns=, or {cure}."
                )
        complete = prepared[self.design.response_party]["complete"]
        if self.method.init == "complete-case" and complete < 2:
            raise NotEstimable(f"{complete} records are complete, so nothing can start from them; take init='mean'.")

    def _model(self, replies: Mapping[str, Any]) -> tuple[BlockModel, Units, Terms]:
        """The model in standard units, and everything of `Terms` but the Gram matrix."""
        reply = replies[self.design.response_party]
        parts = [replies[party] for party in self.design.parties]
        blocks = tuple(BlockParameters(part["beta"], part["mu"], part["sigma"]) for part in parts)
        model = BlockModel(float(reply["intercept"]), float(reply["sigma2"]), blocks)
        masks = tuple(tuple(bool(has) for has in mask) for mask in reply["masks"])
        tau = np.array([model.tau(mask) for mask in masks])
        lacks = (~np.asarray(reply["masks"], dtype=bool)).astype(float).T
        every = np.vstack([lacks, np.ones(len(tau))])
        counts, sums = reply["counts"], reply["sums"]
        partial = Terms(
            masks=masks,
            counts=counts,
            sums=sums,
            squares=reply["squares"],
            gram=np.zeros((1 + model.width, 1 + model.width)),
            score_sum=np.concatenate([[np.sum(sums / tau)], *(part["score_sum"] for part in parts)]),
            first=np.column_stack([lacks @ (counts / tau), *(part["first"] for part in parts)]),
            second=np.column_stack([every @ (sums / tau**2), *(part["second"] for part in parts)]),
            own=tuple(own_moments(part["count"], np.zeros(len(part["mu"])), part["products"]) for part in parts),
        )
        units = Units(
            np.concatenate([part["centre"] for part in parts]),
            np.concatenate([part["scale"] for part in parts]),
            (float(reply["response"][0]), float(reply["response"][1])),
        )
        return model, units, partial


class _Climb:
    """The rounds as the coordinator sees them: step lengths go out, log-likelihoods come back."""

    def __init__(self, job: Job, rounds: Rounds, eta: float) -> None:
        self._job, self._rounds, self._first = job, rounds, eta
        self.iterations = 0

    def _value(self, mode: Mode, *, retreat: bool) -> float:
        """All parties move, or move less; then the value there."""
        if self.iterations >= self._rounds.method.rounds:
            raise NotEstimable(
                f"the likelihood did not settle in {self.iterations} rounds; raise rounds=, or take"
                " solver='exact', which needs tens."
            )
        asked: dict[str, Any] = {"eta": self._eta, "retreat": retreat}
        self._job.ask(self._rounds.predictors, **asked)
        replies = self._job.ask(self._rounds.residuals, mode=mode, **asked)
        self.iterations += 1
        return float(next(iter(replies.values()))["value"])

    def up(self, mode: Mode, *, most: int, tolerance: float) -> list[float]:
        """Climb until what is left to gain is below `tolerance` (extrapolated from the last two gains).

        It begins with the paper's step length."""
        self._eta = self._first
        trace = [self._value(mode, retreat=False)]
        gains: list[float] = []
        while len(trace) < most:
            value = self._value(mode, retreat=False)
            slack = ROUNDING * max(1.0, abs(trace[-1]))
            shortest = self._eta / 2**20
            while value < trace[-1] - slack and self._eta > shortest:
                self._eta /= 2
                value = self._value(mode, retreat=True)
            gain = value - trace[-1]
            if gain < -slack:
                raise NotEstimable("no step length keeps the likelihood from falling; take solver='exact'.")
            if gain <= 0:
                return trace
            trace.append(value)
            gains.append(gain)
            if mode != "em":
                if gain < STARTED * abs(value):
                    return trace
            elif len(gains) > 2 and max(_left(*gains[-2:]), _left(*gains[-3:-1])) < tolerance:
                return trace
        return trace

    def terms(self) -> dict[str, Any]:
        """All parties' estimates where the climb ended, after one more exchange of the same predictors."""
        self._job.ask(self._rounds.predictors, retreat=True, eta=self._eta)
        reply = self._job.ask(self._rounds.response_terms, round_number=self.iterations, eta=self._eta)
        return reply | self._job.ask(self._rounds.terms, eta=self._eta)


def _left(before: float, gain: float) -> float:
    """What a geometric series of gains still has to come; gains that grow promise much."""
    ratio = gain / before if before > 0 else 1.0
    return gain * ratio / (1 - ratio) if ratio < 1 else math.inf
