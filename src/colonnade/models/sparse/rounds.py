"""A sparse GLM by rounds: its public layout, which totals may be opened, the quasi-Newton rounds, the parties' steps.

Columns are standardised where they are: each party centres its features and divides them by their standard deviation
over the records used, which are those that every party has. A round is

    every member         masks its block's predictor X_k b_k and sends it, sealed, to the response holder
    the response holder  adds them up: the total predictor eta; sends y - psi'(eta), sealed, to the parties
    each party           returns X_k'(psi'(eta) - y) / n to the coordinator

With the conditional weights v of `models/glm/weights.py`, which the response holder makes of its own columns and of who
has which record, losses are weighted means and residuals v (psi'(eta) - y) / sum v: the records used stand for those
that lack a block. The coordinator relays sealed mail and sees gradients, the loss and coefficients; no vector over
records. The folds of a cross-validation go in step: a request of a round has a row for each of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from colonnade.data.column import Column
from colonnade.errors import BadArguments, NotEstimable, PartyLost, SchemaError, SecureError, UnsafeRequest
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.stage import Later, Stage, counted, is_number, numbers, one_of, stage
from colonnade.federation.step import Public, Release, Step, step
from colonnade.models.glm.scores import Weighting, presence_weights
from colonnade.models.sparse.in_step import in_step
from colonnade.models.sparse.moments import inverse_scale
from colonnade.models.sparse.path import (
    Evaluation,
    Family,
    PathPoint,
    ProximalQuasiNewton,
    WeightedLasso,
    Withheld,
    curvature_of,
    link,
    mean_response,
    saturated_loss,
    unit_loss,
)
from colonnade.privacy.cost import Cost, Free, Unbounded, compose
from colonnade.statistics.features import Feature, FilledRecords, constant_response, design, features
from colonnade.statistics.joint import RequestLayout, binding, once
from colonnade.statistics.moments import MOST_FOLDS, fold_of
from colonnade.statistics.secure_sum import SecureSum, masked_release, unmask

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Masking = Literal["masked", "plain"]
LaterArguments = Mapping[str, tuple[Any, Later]]
"""{argument that the plan does not know: (an example, or one for each member, and the rule that bounds it)}"""

LARGEST_PREDICTOR = 2.0**16
"""Largest linear predictor of a party: exp(700) overflows already, and masked sums are exact to 2^-40 within it."""
FOLD_TOLERANCE = 1e-4
"""Violation of the optimality conditions in a fold, at least: it moved mean held-out losses by 5e-6 in trials (a
hundredth of the difference between neighbouring lambdas away from the minimum), with 40 % fewer rounds."""
MOST_TOGETHER = 2**24
"""Bytes of vectors over records in one message. With more records fewer folds go in step: there, what a request costs
by itself does not matter."""
FEWEST = 2
"""Records that a fit needs at the very least."""


# --- the public layout --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RoundLayout(FilledRecords, RequestLayout):
    """What is fitted: `columns` are the covariates. Every member computes the rest alike from public facts."""

    kind: ClassVar[str] = "selection by rounds"

    family: Family
    response: str
    columns: tuple[str, ...]
    folds: int
    masking: Masking = "masked"
    weighting: Weighting = "equal"

    def check(self) -> None:
        check_response(self.facts.column(self.response), self.family)
        if not 0 <= self.folds <= MOST_FOLDS:
            raise BadArguments(f"folds must be from 0 to {MOST_FOLDS}, not {self.folds!r}.")
        if self.response in self.columns or not self.features:
            raise BadArguments("the covariates must be at least one column other than the response.")
        if self.masking == "masked" and len(self.others) < 2:
            raise UnsafeRequest(
                f"only {len(self.others)} party besides {self.response_party!r} holds covariates: the total predictor"
                " shows its own; add a party, or say masking='plain' and allow 'party-predictor'."
            )

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        return tuple(features(self.facts, self.columns))

    @cached_property
    def response_party(self) -> str:
        return self.facts.owner(self.response)

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """The response holder, then every other party with covariates."""
        return (self.response_party, *self.others)

    @cached_property
    def others(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature.party for feature in self.features if feature.party != self.response_party))

    @property
    def covered(self) -> tuple[str, ...]:
        """The parties that have covariates; the response holder may have none."""
        return tuple(party for party in self.parties if self.width(party))

    @property
    def senders(self) -> tuple[str, ...]:
        """Who sends to the response holder in each round: every member, as pads are between all of them; or the
        parties."""
        return self.roster.names if self.masking == "masked" else self.parties

    def width(self, party: str) -> int:
        return sum(feature.party == party for feature in self.features)

    def place(self, party: str) -> NDArray[np.intp]:
        """Where a party's features are among all."""
        return np.flatnonzero([feature.party == party for feature in self.features])

    @property
    def used(self) -> tuple[Feature, ...]:
        return (*self.features, *features(self.facts, (self.response,)))

    @cached_property
    def total(self) -> SecureSum:
        """The masked sum of linear predictors, one entry a record of the cohort."""
        return SecureSum.exact(label="total predictor", size=self.facts.n, bound=LARGEST_PREDICTOR, roster=self.roster)

    @cached_property
    def scale(self) -> tuple[float, float]:
        """(centre, half): a gaussian response is computed with as (y - centre) / half, both public."""
        if self.family != "gaussian":
            return 0.0, 1.0
        (feature,) = features(self.facts, (self.response,))
        return feature.centre, feature.half

    # --- what is asked ------------------------------------------------------------------------------------------

    def stage(
        self,
        name: str,
        step: Step,
        members: Sequence[str],
        *,
        most: int = 1,
        fixed: Mapping[str, Any] | None = None,
        later: LaterArguments | None = None,
        **stated: Any,
    ) -> Stage:
        """At most so many requests of a step at each member, with the same arguments but for those named `later`."""
        rules = later or {}
        same = {"layout": self.to_dict(), **(fixed or {})}

        def arguments(member: str) -> dict[str, Any]:
            examples = (
                (argument, example(member) if callable(example) else example)
                for argument, (example, _) in rules.items()
            )
            return {**same, **dict(examples)}

        return stage(
            name,
            step,
            {member: [arguments(member)] * most for member in members},
            facts=self.facts,
            roster=self.roster,
            later={argument: rule for argument, (_, rule) in rules.items()},
            **stated,
        )

    @property
    def vector_bytes(self) -> int:
        """One vector over records."""
        return 8 * self.facts.n

    @property
    def mail_bytes(self) -> int:
        """A vector over records from the response holder to every other party."""
        return self.vector_bytes * (len(self.parties) - 1)

    @property
    def block_bytes(self) -> int:
        """One number for each column of the widest block."""
        return 8 * max(self.width(party) for party in self.parties)

    @property
    def together(self) -> int:
        """How many folds may go in step."""
        return max(1, min(self.folds, MOST_TOGETHER // self.vector_bytes))

    def predictor_stage(self, step: Step, most: int, later: LaterArguments, *, rows: int = 1) -> Stage:
        """The stage in which predictors are sent to the response holder, at most `rows` in a request."""
        how = "masked linear predictors" if self.masking == "masked" else "linear predictors"
        return self.stage(
            "predictors",
            step,
            self.senders,
            most=most,
            later={
                "number": (0, counted(ROUND)),
                "active": ([[False] * len(self.features)], rows_of(COVERED, rows)),
                **later,
            },
            audience=f"response holder {self.response_party}",
            recipients=(self.response_party,),
            discloses=f"{how}, to the response holder{in_a_request(rows)}",
            reply_bytes=rows * self.vector_bytes,
        )

    def predictor_cost(self, public: Public) -> Cost:
        """What a predictor shows: to the response holder, and in what that one makes of it, the residuals and the
        losses, to the other parties and to the coordinator."""
        audience = f"response holder {self.response_party}, parties with covariates, coordinator"
        if public.party not in self.parties:
            return Free("this member masks zeros, and no data")
        if self.masking == "plain":
            return Unbounded(
                "party-predictor",
                "each party's own linear predictor, record by record, in every round; the sum of all in residuals to"
                " the parties, in mean losses and gradients to the coordinator",
                audience=audience,
            )
        return Unbounded(
            "total-predictor",
            "the sum of all parties' linear predictors, record by record, in every round that mixes two other parties'"
            " (with the coordinator, who knows the coefficients, the response holder can work out the columns);"
            " in residuals to the parties, in mean losses and gradients to the coordinator",
            audience=audience,
            joint=f"{public.job} total predictor",
        )


ROUND = "the rounds are numbered, and each is asked once"
COVERED = Later(
    "which columns take part in the total: those with coefficients, as every party checks of its own; over all rounds"
    " every party's columns come with another's (see `Cover`), which every member checks, and pads cancel only if all"
    " were told the same",
    lambda value, planned: len(value) == len(planned) and all(isinstance(column, bool) for column in value),
)


def rows_of(rule: Later, most: int) -> Later:
    """A list of 1 to `most` rows, each of which keeps the rule; the plan's example has one."""
    return Later(
        rule.rule if most == 1 else f"{rule.rule}; a row for each of at most {most} paths in step",
        lambda value, planned: (
            isinstance(value, list) and 1 <= len(value) <= most and all(rule.allows(row, planned[0]) for row in value)
        ),
    )


def in_a_request(rows: int) -> str:
    """In the words of a plan."""
    return f", for each of up to {rows} folds at once" if rows > 1 else ""


def later_folds(layout: RoundLayout, most: int = 1) -> tuple[list[None], Later]:
    """What is left out in each of at most so many rows."""

    def accepts(value: Any, _: Any) -> bool:
        folds = all(type(fold) is int and 0 <= fold < layout.folds for fold in value)
        return value == [None] or (folds and 1 <= len(value) == len(set(value)) <= most)

    return [None], Later("nothing is left out, or folds of the layout, each in one row", accepts)


def later_fold(layout: RoundLayout) -> tuple[None, Later]:
    return None, one_of("one of the folds of the layout, or none", [None, *range(layout.folds)])


def check_response(column: Column, family: Family) -> None:
    """The response must be of its family."""
    wanted = {
        "gaussian": ("continuous", "count", "date", "ordinal", "binary"),
        "binomial": ("binary",),
        "poisson": ("count",),
    }[family]
    if column.kind not in wanted:
        raise SchemaError(
            f"the response {column.name!r} is {column.kind}; family={family!r} needs {' or '.join(wanted)}."
        )


# --- which totals may be opened -----------------------------------------------------------------------------------
#
# The response holder is told T_t = sum_c b_ct x_c in round t, summed over the columns c of the other parties. It does
# not know b, but sparsity shows it in which rounds a column takes part. Let A_t be the columns with b_ct != 0, and
#
#     meet(d) = the intersection of all A_t with d in A_t :   the columns that always come when d comes.
#
# If meet(d) has a column c of another party, put x_d - e x_c in place of x_d and b_c + e b_d in place of b_c, for any
# number e: every T_t stays as it is, and so does every A_t, but for the few e with b_ct + e b_dt = 0. So the totals of
# all rounds fit infinitely many predictors of d's party. If meet(d) lies within one party, intersecting the spans of
# the rounds finds a combination of that party's columns alone; a round with one party is the plainest case.
#
# So a total is opened only if, with it, every meet keeps columns of two parties. What that costs: solutions in which
# one other party alone has coefficients cannot be had by rounds of masked totals.


class Cover:
    """The columns that took part in the totals opened so far.

    `owners` has each column's party; the response holder knows its own part, so its columns cover nothing. `meets` has
    meet(d) as row d, all columns before d took part at all.
    """

    def __init__(self, owners: Sequence[str], *, response_party: str, meets: NDArray[np.bool_] | None = None) -> None:
        self._owners = np.array([*owners], dtype=object)
        self._of_others = self._owners != response_party
        self._at_party = self._owners[:, None] == np.array(sorted(set(owners)), dtype=object)
        self.meets = np.ones((len(owners), len(owners)), dtype=bool) if meets is None else meets

    def admit(self, selected: NDArray[np.bool_]) -> None:
        """Note a total over these columns, or raise `Withheld` with the party that it would uncover."""
        active = np.asarray(selected, dtype=bool) & self._of_others
        meets = self.meets[active] & active
        uncovered = (meets @ self._at_party).sum(axis=1) < 2
        if uncovered.any():
            raise Withheld(str(self._owners[active][uncovered][0]))
        self.meets[active] = meets


# --- the coordinator's procedure ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reserved:
    """What the plan of a path reserves at most: rounds in all, paths one after another (those in step are one), and
    solutions."""

    rounds: int
    paths: int
    solves: int


class Rounds:
    """Numbers the rounds of a job, over all folds; stops at the number that the plan has reserved, and before a total
    that would show one party's predictor."""

    def __init__(self, job: Job, layout: RoundLayout, reserved: Reserved) -> None:
        self.job, self.layout, self.limit = job, layout, reserved.rounds
        self.used = 0
        self._solves = reserved.solves
        self._cover = Cover([feature.party for feature in layout.features], response_party=layout.response_party)

    def open(self, selected: NDArray[np.bool_]) -> None:
        """Before a total over these columns is sent: may it be seen? The history is that of all paths and folds."""
        if self.layout.masking == "masked":
            self._cover.admit(selected)

    def next(self) -> None:
        """Count a round."""
        if self.used >= self.limit:
            raise NotEstimable(
                f"the {self.limit} rounds of the plan are used up before the path has settled; allow more with rounds=,"
                " fewer lambdas, or a larger tolerance."
            )
        self.used += 1

    def solve(self) -> None:
        """Count a solution that is asked for by itself; those that are withheld later and tried again count twice."""
        self._solves -= 1
        if self._solves < 0:
            raise NotEstimable(
                "the solutions of the plan are used up, since some were withheld and tried again; take other lambdas,"
                " or masking='plain' if the parties allow 'party-predictor'."
            )


Trace = Callable[[WeightedLasso], list[PathPoint]]


class RoundSolver(Protocol):
    """The stages of a path by rounds, and the solver that asks them."""

    @property
    def stages(self) -> tuple[Stage, ...]: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def start(self, rounds: Rounds) -> WeightedLasso:
        """At the model without covariates."""
        ...

    def left_out(self, rounds: Rounds, solver: WeightedLasso, trace: Trace) -> list[list[PathPoint]]:
        """The path without each fold, after the one of all records, which gives the largest lambda."""
        ...


class QuasiNewton:
    """One evaluation of the loss and its gradient a round."""

    def __init__(self, layout: RoundLayout, reserved: Reserved, *, tolerance: float) -> None:
        self.layout, self.tolerance = layout, tolerance
        rounds, evaluations, rows = reserved.rounds, reserved.rounds + reserved.paths, layout.together
        rule = numbers("a party's own coefficients in standard units, one for each column", LARGEST_PREDICTOR)
        coefficients = {"coefficients": (lambda member: [[0.0] * layout.width(member)], rows_of(rule, rows))}
        intercepts = Later(
            "a finite number for each row, or none for the null model",
            lambda value, _: (
                value is None
                or (len(value) <= rows and all(is_number(x, -LARGEST_PREDICTOR, LARGEST_PREDICTOR) for x in value))
            ),
        )
        self.predictors = layout.predictor_stage(predict_block, rounds, coefficients, rows=rows)
        self.residuals = layout.stage(
            "residuals",
            respond,
            [layout.response_party],
            most=evaluations,
            later={"number": (0, counted(ROUND)), "intercepts": (None, intercepts), "folds": later_folds(layout, rows)},
            audience="coordinator, parties with covariates",
            recipients=layout.parties,
            discloses=f"{RESIDUALS}{in_a_request(rows)}",
            reply_bytes=rows * layout.mail_bytes,
        )
        self.gradients = layout.stage(
            "gradients",
            block_gradient,
            layout.covered,
            most=evaluations,
            discloses=f"one sum over records for each column{in_a_request(rows)}",
            reply_bytes=rows * layout.block_bytes,
        )
        self.stages = (self.residuals, self.gradients, self.predictors)
        sums = f"{len(layout.features)} exact sums over records{in_a_request(rows)}"
        self.notes = (
            f"In each round the coordinator sees {sums}. As many rounds as records ({layout.facts.n:,}) could determine"
            " these; VFLGLMVS, of the papers' wing, shows sums at the solutions only, in many times the rounds.",
        )

    def start(self, rounds: Rounds) -> ProximalQuasiNewton:
        (null,) = self._answers(rounds, [None])

        def evaluate(theta: Vector) -> Evaluation:
            rounds.open(theta[1:] != 0)
            return self._evaluations(rounds, {None: theta})[None]

        # Standardised columns have a mean square of 1, so the mean curvature is the size of the diagonal.
        curvature = np.eye(len(null.gradient)) * max(null.curvature, 1e-6)
        return null.solver(evaluate, curvature=curvature, tolerance=self.tolerance)

    def left_out(self, rounds: Rounds, solver: WeightedLasso, trace: Trace) -> list[list[PathPoint]]:
        """Folds in step, each with the curvature that the path of all records has learned."""
        assert isinstance(solver, ProximalQuasiNewton)
        options: dict[str, Any] = {
            "curvature": solver.curvature,
            "tolerance": max(self.tolerance, FOLD_TOLERANCE),
            "largest": solver.largest,
        }
        paths: list[list[PathPoint]] = []
        for first in range(0, self.layout.folds, self.layout.together):
            folds = range(self.layout.folds)[first : first + self.layout.together]

            def path(null: Answered, evaluate: Callable[[Vector], Evaluation]) -> list[PathPoint]:
                return trace(null.solver(evaluate, **options))

            def answer(asked: dict[int, Vector], folds: range = folds) -> dict[int, Evaluation | Exception]:
                replies: dict[int, Evaluation | Exception] = {}
                opened: dict[int | None, Vector] = {}
                for place, theta in asked.items():
                    try:
                        rounds.open(theta[1:] != 0)
                        opened[folds[place]] = theta
                    except Withheld as withheld:
                        replies[place] = withheld
                evaluations = self._evaluations(rounds, opened) if opened else {}
                return replies | {folds.index(fold): reply for fold, reply in evaluations.items() if fold is not None}

            paths += in_step([partial(path, null) for null in self._answers(rounds, folds)], answer)
        return paths

    def _evaluations(self, rounds: Rounds, thetas: Mapping[int | None, Vector]) -> dict[int | None, Evaluation]:
        """One round, {fold: (intercept, coefficients)}; its totals were said to be open."""
        rounds.next()
        rows = np.array([*thetas.values()])
        active = (rows[:, 1:] != 0).tolist()
        evaluations = {
            member: {"active": active, "coefficients": rows[:, 1 + self.layout.place(member)].tolist()}
            for member in self.layout.senders
        }
        rounds.job.ask_each(self.predictors, evaluations)
        answers = self._answers(rounds, [*thetas], rows[:, 0].tolist())
        return {fold: answer.evaluation for fold, answer in zip(thetas, answers, strict=True)}

    def _answers(
        self, rounds: Rounds, folds: Sequence[int | None], intercepts: list[float] | None = None
    ) -> list[Answered]:
        job, layout = rounds.job, self.layout
        scalars = job.ask(self.residuals, intercepts=intercepts, folds=[*folds])[layout.response_party]
        gradient = np.zeros((len(folds), 1 + len(layout.features)))
        gradient[:, 0] = scalars.pop("gradient")
        for party, part in job.ask(self.gradients).items():
            gradient[:, 1 + layout.place(party)] = part
        return [
            Answered(gradient=gradient[row], **{name: float(values[row]) for name, values in scalars.items()})
            for row in range(len(folds))
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Answered:
    """What the parties answer to a row of a round: of means over its records, and over those left out."""

    loss: float
    held_out: float
    gradient: Vector
    curvature: float
    intercept: float
    saturated: float

    @property
    def evaluation(self) -> Evaluation:
        return Evaluation(self.loss, self.gradient, self.held_out)

    def solver(self, evaluate: Callable[[Vector], Evaluation], **options: Any) -> ProximalQuasiNewton:
        """From here, the null model."""
        start = np.zeros_like(self.gradient)
        start[0] = self.intercept
        return ProximalQuasiNewton(
            evaluate, start=start, at_start=self.evaluation, learn=True, saturated=self.saturated, **options
        )


# --- a party's block ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StandardBlock:
    """One party's features over the records used, standardised; a feature that does not vary is a column of zeros."""

    used: NDArray[np.bool_]
    values: Matrix
    centre: Vector
    scale: Vector

    @classmethod
    def of(cls, used: NDArray[np.bool_], raw: Matrix) -> StandardBlock:
        values = raw[used]
        if len(values) < FEWEST:
            raise NotEstimable("no two records are at all parties; leave a party out with columns=.")
        centre = values.mean(axis=0)
        values -= centre
        scale = np.sqrt(np.mean(values**2, axis=0))
        # Centring leaves rounding errors in a constant column, which are no variation.
        scale[scale <= 1e-12 * np.maximum(np.abs(centre), 1e-3)] = 0.0
        values *= inverse_scale(scale)
        return cls(used, values, centre, scale)

    @property
    def n(self) -> int:
        return len(self.values)

    def predictor(self, coefficients: Matrix) -> Matrix:
        """Of each row of coefficients, over the whole cohort, zero for records that are not used."""
        predictor = np.zeros((len(coefficients), len(self.used)))
        predictor[:, self.used] = coefficients @ self.values.T
        return predictor

    def own_units(self, coefficients: Matrix) -> tuple[Matrix, Vector]:
        """Coefficients of the features in [-1, 1], and what they take from the intercept; one row for each lambda."""
        slopes = coefficients * inverse_scale(self.scale)
        return slopes, slopes @ self.centre


_blocks: weakref.WeakKeyDictionary[Party, tuple[str, StandardBlock]] = weakref.WeakKeyDictionary()
"""The block of a party's current job. It follows from the data and what earlier steps kept, so it is only kept in
memory and made again after a restart."""


def standard_block(me: Party, model: RoundLayout) -> StandardBlock:
    tag = f"{me.job} {model.to_dict()}"
    cached = _blocks.get(me)
    if cached is None or cached[0] != tag:
        used = np.unpackbits(me.recall("records used"), count=me.facts.n).astype(bool)
        cached = (tag, StandardBlock.of(used, design(me, model.features)))
        _blocks[me] = cached
    return cached[1]


def layout_of(public: Public | Party, plain: dict[str, Any]) -> RoundLayout:
    return RoundLayout.from_dict(public.facts, public.roster, plain)


# --- which records ------------------------------------------------------------------------------------------------


PRESENCE = Unbounded(
    "presence",
    "which pseudonymous records a party has, to the other parties; how many all of them have, to the coordinator",
    audience="parties, coordinator",
)


@step(cost=PRESENCE)
def show_presence(me: Party, *, layout: dict[str, Any]) -> Release:
    """Tell the other parties of the model which records of the cohort are here."""
    model = layout_of(me, layout)
    for party in model.parties:
        me.send(party, "presence", np.packbits(model.present(me)))
    return Release(None, "nothing to the coordinator: the masks travel sealed")


KEPT_MASKS, KEPT_WEIGHTS = "masks of the other parties", "presence weights of the records used"


def _agree_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    return Unbounded("record-count", "how many records every party has", joint=f"{public.job} record count")


@step(cost=_agree_cost)
def agree_records(me: Party, *, layout: dict[str, Any]) -> Release:
    """The records used: those that every party of the model has. Returns their number."""
    model = layout_of(me, layout)
    received = me.received("presence")
    missing = [party for party in model.parties if party not in received]
    if missing:
        raise PartyLost(f"{', '.join(missing)} did not say which records they have; resume when they are back.")
    together = np.bitwise_and.reduce([np.asarray(received[party], dtype=np.uint8) for party in model.parties])
    me.keep("records used", together)
    if me.name == model.response_party and model.weighting != "equal":
        me.keep(KEPT_MASKS, [np.asarray(received[party], dtype=np.uint8) for party in model.others])
    return Release(int(np.unpackbits(together, count=me.facts.n).sum()), "the number of records that all parties have")


WEIGHED_COST = Unbounded(
    "record-count", "how many records each pattern of parties has, and how unequal the weights of complete ones are"
)


@step(cost=WEIGHED_COST)
def weigh_records(me: Party, *, layout: dict[str, Any]) -> Release:
    """The response holder: fit the others' presence on its own columns, and keep the weights of the records used."""
    model = responding(me, layout)
    records = np.flatnonzero(model.present(me))
    masks = [np.unpackbits(packed, count=me.facts.n)[records] for packed in me.recall(KEPT_MASKS)]
    mine = [feature for feature in model.used if feature.party == me.name]
    rows = design(me, mine, filled=model.filled)[records]
    place = [feature.column for feature in mine].index(model.response)
    present = np.array(masks, dtype=bool).reshape(len(masks), len(records)).T
    fitted, remarks = presence_weights(rows, place, present, model.family, model.weighting)
    used = fitted.weights > 0
    weights, y = fitted.weights[used], rows[used, place]
    me.keep(KEPT_WEIGHTS, weights)
    if len(y):
        # sum v^2 r^2 is the variance of the score, where sum v r^2 is that of records of equal weight: with residuals r
        # of the model without covariates. Without relation of v and r this is (sum v)^2 / sum v^2.
        squares = (y - np.average(y, weights=weights)) ** 2
        remarks["effective"] = float(weights.sum() * (weights @ squares) / max(weights**2 @ squares, 1e-300))
    return Release(remarks, "counts of patterns, and how unequal the weights of complete records are")


# --- a round ------------------------------------------------------------------------------------------------------


def send_predictor(
    me: Party, model: RoundLayout, own: Matrix, selected: NDArray[np.bool_], active: list[list[bool]], number: int
) -> None:
    """Send this member's predictors, one a row, to the response holder: masked, or as they are.

    Masked ones go only into totals that cover them: over the `active` columns, on which all members must agree, and
    which are here those that are `selected`, with coefficients.
    """
    if not np.abs(own).max(initial=0.0) < LARGEST_PREDICTOR:
        raise NotEstimable(
            "a linear predictor left its range: the columns nearly separate the classes, or the fit does not settle;"
            " use Select(solver='moments'), or take larger lambdas (ratio=)."
        )
    sent: NDArray[Any] = own
    if model.masking == "masked":
        columns = np.array(active, dtype=bool)
        if not np.array_equal(columns[:, model.place(me.name)], selected):
            raise UnsafeRequest("the columns said to take part in a total are not those that have coefficients here.")
        _admit(me, model, columns)
        agreed = replace(model.total, size=own.size, label=binding(model.total.label, {"active": active}))
        sent = masked_release(me, own.ravel(), shape=agreed, round_number=number).reshape(own.shape)
    me.send(model.response_party, "predictor", sent, each_round=True)


def _admit(me: Party, model: RoundLayout, active: NDArray[np.bool_]) -> None:
    """Refuse totals, one a row, of which one would uncover a party, over all rounds of this job."""
    width, name = active.shape[1], "meets of the columns in totals"
    admitted = (
        np.unpackbits(me.recall(name), count=width**2).astype(bool).reshape(width, width) if me.kept(name) else None
    )
    owners = [feature.party for feature in model.features]
    cover = Cover(owners, response_party=model.response_party, meets=admitted)
    try:
        for columns in active:
            cover.admit(columns)
    except Withheld as withheld:
        raise UnsafeRequest(
            f"this total would show the predictor of {withheld.party!r} alone, with those of the rounds before."
        ) from withheld
    me.keep(name, np.packbits(cover.meets))


def total_predictor(me: Party, model: RoundLayout, rows: int = 1) -> Matrix:
    """What the response holder adds up, over the records used, in as many rows as were asked for."""
    received = me.received("predictor")
    missing = [member for member in model.senders if member not in received]
    if missing:
        raise PartyLost(f"no predictor came from {', '.join(missing)}; resume when they are back.")
    shapes = {np.shape(received[member]) for member in model.senders}
    if shapes != {(rows, me.facts.n)}:
        raise SecureError("a member sent predictors of another shape than was asked for; check its installation.")
    if model.masking == "masked":
        total = unmask({member: received[member] for member in model.senders}, shape=model.total, roster=me.roster)
    else:
        total = np.sum([np.asarray(received[member], dtype=np.float64) for member in model.senders], axis=0)
    return np.asarray(total[:, standard_block(me, model).used])


def response_of(me: Party, model: RoundLayout) -> Vector:
    """The response over the records used, in the units that are computed with."""
    centre, half = model.scale

    def scaled() -> Vector:
        values = me.column(model.response)[standard_block(me, model).used].astype(np.float64)
        return np.asarray((values - centre) / half)

    return me.remembered(f"response {model.response}", model.vector_bytes, scaled)


def weights_of(me: Party, model: RoundLayout) -> Vector:
    """Of the records used; 1 on average."""
    if model.weighting == "equal":
        return np.ones(standard_block(me, model).n)
    return np.asarray(me.recall(KEPT_WEIGHTS), dtype=np.float64)


def training(model: RoundLayout, size: int, fold: int | None) -> NDArray[np.bool_]:
    if fold is None:
        return np.ones(size, dtype=bool)
    if not 0 <= fold < model.folds:
        raise UnsafeRequest(f"this job has no fold {fold}.")
    return np.asarray(fold_of(size, model.folds) != fold)


def _predict_cost(
    public: Public, *, layout: dict[str, Any], number: int, active: list[list[bool]], coefficients: list[list[float]]
) -> Cost:
    return layout_of(public, layout).predictor_cost(public)


@step(cost=_predict_cost)
def predict_block(
    me: Party, *, layout: dict[str, Any], number: int, active: list[list[bool]], coefficients: list[list[float]]
) -> Release:
    """This block's linear predictor for each row of coefficients (standard units), masked, to the response holder."""
    model = layout_of(me, layout)
    slopes = np.array(coefficients, dtype=np.float64).reshape(len(coefficients), model.width(me.name))
    values = (
        standard_block(me, model).predictor(slopes) if me.name in model.parties else np.zeros((len(slopes), me.facts.n))
    )
    send_predictor(me, model, values, slopes != 0, active, number)
    return Release(None, "nothing to the coordinator: the masked predictor travels sealed")


RESIDUALS = "response less fitted mean by record, to the parties; the loss to the coordinator"
LOSS_COST = Unbounded("loss", "the mean loss over the records, in every round")


def residual_cost(weighting: Weighting = "equal") -> Cost:
    weighed = (
        "; residuals are times the weight of a record, which the parties can work out too and which follows from the"
        " response holder's columns"
    )
    return Unbounded(
        "response-residuals",
        "response less fitted mean, record by record, in every round: the parties with covariates can work out"
        " the response and the total predictor; sums of them with each column, to the coordinator"
        f"{weighed if weighting != 'equal' else ''}",
        audience="parties with covariates, coordinator",
    )


def responding(me: Party, layout: dict[str, Any]) -> RoundLayout:
    """The layout of a request that only the response holder answers."""
    model = layout_of(me, layout)
    if me.name != model.response_party:
        raise UnsafeRequest(f"{me.name!r} does not hold the response.")
    return model


def _respond_cost(
    public: Public, *, layout: dict[str, Any], number: int, intercepts: list[float] | None, folds: list[int | None]
) -> Cost:
    return compose([LOSS_COST, residual_cost(layout_of(public, layout).weighting)])


@step(cost=_respond_cost)
def respond(
    me: Party, *, layout: dict[str, Any], number: int, intercepts: list[float] | None, folds: list[int | None]
) -> Release:
    """The response holder: residuals at the total predictors to every party, scalars to the coordinator; a row for each
    fold that is left out.

    Without intercepts, the model without covariates is fitted first. Held-out records have no residual.
    """
    model = responding(me, layout)
    once(me, f"residuals {number}")
    y, weights = response_of(me, model), weights_of(me, model)
    train = np.array([training(model, len(y), fold) for fold in folds])
    if train.sum(axis=1).min() < FEWEST or any(np.ptp(y[row]) == 0 for row in train):
        raise NotEstimable(constant_response(model.response, [name for name in model.filled if name != model.response]))
    if intercepts is None:
        start = np.array([link(model.family, float(np.average(y[row], weights=weights[row]))) for row in train])
        return send_residuals(me, model, y, np.repeat(start[:, None], len(y), axis=1), train, start)
    start = np.array(intercepts, dtype=np.float64)
    if len(start) != len(folds):
        raise BadArguments("there must be an intercept for each row of a round.")
    return send_residuals(me, model, y, start[:, None] + total_predictor(me, model, len(folds)), train, start)


def send_residuals(
    me: Party,
    model: RoundLayout,
    y: Vector,
    eta: Matrix,
    train: NDArray[np.bool_],
    intercepts: Vector,
    *,
    tag: str = "residuals",
) -> Release:
    """v (psi'(eta) - y) / sum v of each row to every party, and scalars to the coordinator."""
    weights = weights_of(me, model)
    counting, aside = np.where(train, weights, 0.0), np.where(train, 0.0, weights)
    counting /= counting.sum(axis=1, keepdims=True)
    residual = counting * (mean_response(model.family, eta) - y)
    for party in model.parties:
        me.send(party, tag, residual, each_round=True)
    losses = unit_loss(model.family, eta, y)
    value = {
        "loss": np.sum(counting * losses, axis=1),
        "held_out": np.sum(aside * losses, axis=1) / np.where(train.all(axis=1), 1.0, aside.sum(axis=1)),
        "gradient": residual.sum(axis=1),
        "curvature": np.sum(counting * curvature_of(model.family, eta), axis=1),
        "intercept": intercepts,
        "saturated": np.array([saturated_loss(model.family, y, row) for row in counting]),
    }
    return Release(value, "mean loss, mean residual and mean curvature over the records")


def received_residuals(me: Party, model: RoundLayout, *, tag: str = "residuals") -> Matrix:
    """The response holder's residuals of this round, over the records used, one or more rows."""
    received = me.received(tag)
    if model.response_party not in received:
        raise PartyLost(f"the residuals of {model.response_party!r} have not come; resume when it is back.")
    residual = np.asarray(received[model.response_party], dtype=np.float64)
    if residual.ndim != 2 or residual.shape[1] != standard_block(me, model).n:
        raise SecureError("the residuals are of another length than the records used; check the holder's installation.")
    return residual


@step(cost=Unbounded("gradients", "one exact sum over records for each column, in every round"))
def block_gradient(me: Party, *, layout: dict[str, Any]) -> Release:
    """X_k'(psi'(eta) - y) / n, for each row of residuals."""
    model = layout_of(me, layout)
    gradient = received_residuals(me, model) @ standard_block(me, model).values
    return Release(gradient, "the gradient of the mean loss in this block's coefficients")


# --- the end ------------------------------------------------------------------------------------------------------


COEFFICIENTS = Unbounded(
    "coefficients",
    "the fitted coefficients, for every lambda of the path; in the columns' units they show means and deviations",
)


def later_path(layout: RoundLayout, lambdas: int) -> tuple[Any, Later]:
    """A party's own coefficients at each lambda, in standard units."""
    row = numbers("", LARGEST_PREDICTOR)
    rule = replace(
        rows_of(row, lambdas), rule="a party's own coefficients in standard units, at most one row for each lambda"
    )
    return (lambda member: [[0.0] * layout.width(member)]), rule


@step(cost=COEFFICIENTS)
def block_units(me: Party, *, layout: dict[str, Any], path: list[list[float]]) -> Release:
    """Coefficients from standard units to those of the features, and their part of the intercept."""
    block = standard_block(me, layout_of(me, layout))
    slopes, offsets = block.own_units(np.array(path, dtype=np.float64).reshape(len(path), block.values.shape[1]))
    return Release({"slopes": slopes, "offsets": offsets}, "the coefficients in the units of the columns")
