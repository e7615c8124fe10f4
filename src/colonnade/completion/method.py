"""`complete`: fill in the records that parties lack, from what the other parties know about them.

1. The parties tell each other which records they have.
2. An imputer says what a party's columns are expected to be for the records that it lacks: a regression network across
   the parties, a copula, chained equations, or means.
3. Each party writes its completed table in its own folder, generated entries flagged, and tells how near to the truth
   it came on records that were hidden to find out.

`claim.md` says who learns what. Nothing here is private towards the party that is completed unless it says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from colonnade.codec import ListOf
from colonnade.completion.layout import COHORT_ROW, DRAW, GENERATED
from colonnade.completion.moment_imputers import MomentImputation, alike
from colonnade.completion.multiple import MultipleImputation
from colonnade.completion.result import Completion
from colonnade.completion.split.exchange import Keys, Masking
from colonnade.completion.split.rounds import Meeting, Planner, RegressionRounds, Rounds
from colonnade.completion.split.session import networks_ready
from colonnade.completion.split.training import GAMMA, Regression, Training, noise_for
from colonnade.completion.steps import complete, count_missing, score_label
from colonnade.data.column import Column, EmptyRule
from colonnade.errors import BadArguments, BadPrivacyParameter, NotEstimable, RosterError, SchemaError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, method_class
from colonnade.federation.options import Delta, FileFormat, Option
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, Requests, Stage
from colonnade.federation.step import Step
from colonnade.privacy.accounting import check_delta, check_epsilon
from colonnade.secure import ckks
from colonnade.statistics import forecast
from colonnade.statistics.features import empty_notes

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

MOMENTS = ("copula-mean", "copula-draw", "mice")
"""Imputers from joint moments."""
SMALL, SMALL_DROPOUT = 5000, 0.5
"""Below so many records in the cohort networks drop half of their hidden units, unless told otherwise: they overfit."""
ONE_VALUE = "One value is written for each entry: intervals that take it for real are too short."
SEVERAL_VALUES = (
    "Each entry is drawn several times, with the equations' own uncertainty: pooled intervals count what is missing, as"
    " far as linear equations describe how the columns go together."
)


@method_class
class CompletionMethod(Method[Completion]):
    """What every way to complete records takes."""

    needs: ClassVar[tuple[str, ...]] = ("jax", "optax")
    trained: ClassVar[tuple[str, ...]] = ("regression",)
    """Imputers whose weights can be trained with noise."""

    imputer: str
    parties: Annotated[
        ListOf[str] | None, Option("The parties to complete; all that lack records by default.", form="PARTIES")
    ] = None
    masking: Annotated[
        Masking,
        Option("How hidden vectors travel: under pairwise pads, or under CKKS encryption, which is slower."),
    ] = "pads"
    label: Annotated[
        str | None,
        Option(
            "A column with categories: the report tells how well it is classified with and without completed records."
        ),
    ] = None
    iterations: Annotated[int, Option("Of a network's training, at most.", least=1, most=1_000_000)] = 10_000
    local: Annotated[
        int,
        Option(
            "Iterations between two exchanges; 1 is plain gradient descent of the network, with `local` times the"
            " messages.",
            least=1,
        ),
    ] = 25
    batch: Annotated[int, Option("Records in one iteration.", least=1, most=16_384)] = 128
    learning_rate: Annotated[float, Option("The networks' learning rate.", above=0, below=1)] = 1e-3
    hidden: Annotated[int, Option("Units of a network's hidden layers.", least=1, most=4_096)] = 256
    cut: Annotated[int, Option("The length of the hidden vectors that travel.", least=1, most=1_024)] = 32
    dropout: Annotated[
        float | None,
        # Dropout is drawn from bytes: beyond 0.99 none of 256 would be left.
        Option("Share of hidden units dropped; by default 0.5 below 5,000 records, else 0.1.", least=0, below=0.99),
    ] = None
    validation: Annotated[
        float, Option("The share of records that is hidden to measure the error.", above=0, below=1)
    ] = 0.1
    patience: Annotated[
        int, Option("Looks at the hidden records without a smaller error after which training stops.", least=1)
    ] = 12
    epsilon: Annotated[
        float | None,
        Option(
            "Total privacy loss (epsilon) per record of all trained weights; trains with noise. Nothing else here is"
            " private."
        ),
    ] = None
    delta: Delta = 1e-6
    epochs: Annotated[int, Option("Of training with noise: passes over the records.", least=1, most=10_000)] = 10
    clip: Annotated[float, Option("Of training with noise: the most that a record may move a sum.", above=0)] = 1.0
    seed: Annotated[
        int, Option("Of batches and hidden records, which are public; another one, other records.", least=0)
    ] = 0
    file_format: FileFormat = "parquet"

    def check(self) -> None:
        if self.parties is not None:
            if not self.parties:
                raise BadArguments("parties names no party; leave it out to complete all that lack records.")
            self.parties = tuple(dict.fromkeys(self.parties))
        if self.label == "":
            raise BadArguments("label names one column; leave it out if there is none.")
        check_delta(self.delta)
        if self.epsilon is None:
            return
        check_epsilon(self.epsilon)
        if self.delta == 0:
            raise BadPrivacyParameter("Skellam noise has no pure bound; choose a delta above 0, below 1/n.")
        self.check_private()

    def check_private(self) -> None:
        """What may be asked for together with `epsilon`."""
        if self.imputer not in self.trained or self.label is not None:
            raise BadArguments(
                "epsilon is for imputer='regression' without a label: no other part of a completion is trained"
                " privately here."
            )

    def reads(self) -> None:
        """All columns: every one is completed, or says something about those that are."""

    def needed(self) -> tuple[str, ...]:
        return (*(self.needs if self.uses_networks else ()), *(("tenseal",) if self.masking == "ckks" else ()))

    @property
    def uses_networks(self) -> bool:
        """Does a party need what trains networks?"""
        return self.imputer in self.trained or self.label is not None

    @property
    def written(self) -> tuple[str, ...]:
        """Columns that a completed table has of its own."""
        return (COHORT_ROW,)

    # --- with the public facts -------------------------------------------------------------------------------------

    def targets(self, facts: PublicFacts) -> tuple[str, ...]:
        """The parties that may be completed."""
        if len(facts.parties) < 2:
            raise BadArguments("completion needs at least two parties with data: one knows what another lacks.")
        for party in self.parties or ():
            if party not in facts.parties:
                raise BadArguments(f"parties names {party!r}; the parties are {', '.join(facts.parties)}.")
        return tuple(party for party in facts.parties if self.parties is None or party in self.parties)

    def check_facts(self, facts: PublicFacts) -> None:
        """What can be refused before any data is touched."""
        if self.masking == "ckks":
            ckks.ready()  # the coordinator adds ciphertexts
        if self.uses_networks:
            networks_ready()
        if self.label is not None and facts.column(self.label).categories is None:
            raise BadArguments(f"label must be a column with categories, and {self.label!r} has none.")
        columns = {name: column for party in facts.columns.values() for name, column in party.items()}
        flags = {f"{name}{GENERATED}" for name in columns}
        taken = [name for name in columns if name in self.written or name in flags]
        if taken:
            raise SchemaError(
                f"a completed table has a column {taken[0]!r} of its own; rename the party's, or leave it out of its"
                " block."
            )
        fixed = [
            party for party, declared in facts.columns.items() if all(_single(column) for column in declared.values())
        ]
        if self.imputer == "mice" and fixed:
            raise SchemaError(
                f"no column of {fixed[0]!r} can vary: each has one category, and imputer='mice' has nothing to solve"
                " for; leave that party out, or choose another imputer."
            )
        most = self.epochs * (facts.n // self.batch)
        if self.epsilon is not None and (facts.n < self.batch or most < self.local):
            raise BadArguments(
                f"{self.epochs} epochs of at most {facts.n} records in batches of {self.batch} are {most} iterations,"
                f" and a round of private training has local={self.local}; choose a smaller batch= or local=, or more"
                " epochs."
            )


@method_class
class Complete(CompletionMethod):
    """Fill in the records that parties lack, from what the other parties know about them.

    Completed tables are written in each party's own folder, with generated entries flagged; the run folder gets how
    near to the truth they are, on records that were hidden to find out.

    Returns
    -------
    `fit(federation)` gives a `Completion`: `table(party)` is a completed table, `quality(party)` its errors.

    Example
    -------
    >>> result = co.Complete(imputer="mean", parties=("market",)).fit(federation)
    >>> "inspections (generated)" in result.table("market").columns
    True
    """

    name: ClassVar[str] = "complete"

    imputer: Annotated[
        Literal["regression", "copula-mean", "copula-draw", "mice", "mean"],
        Option(
            "What fills in the columns: a regression network across the parties; conditional means or draws of a"
            " Gaussian copula, or chained equations, from joint moments that a committee of three computes; or each"
            " column's mean."
        ),
    ] = "regression"
    draws: Annotated[
        int | None,
        Option(
            "Multiple imputation: so many completed tables of every party, drawn from chained equations whose"
            " coefficients are drawn too; `pool` combines what is estimated from each.",
            least=2,
            most=100,
            only={"imputer": ("mice",)},
        ),
    ] = None

    def check(self) -> None:
        super().check()
        if self.draws is not None and (self.parties is not None or self.label is not None):
            raise BadArguments(
                "draws completes every party, so that the k-th tables of all of them are one complete table; leave"
                " parties= and label= out."
            )

    @property
    def written(self) -> tuple[str, ...]:
        return (COHORT_ROW,) if self.draws is None else (COHORT_ROW, DRAW)

    def missing_data(self) -> str:
        return f"{assumed(self.imputer)} {ONE_VALUE if self.draws is None else SEVERAL_VALUES}"

    def procedure(self, facts: PublicFacts, roster: Roster) -> Procedure[Completion]:
        return Completing(self, facts, roster) if self.draws is None else Drawing(self, facts, roster, self.draws)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.completion.attacks import weights_attacks

        return weights_attacks(cls)


def assumed(imputer: str) -> str:
    """What an imputer takes for granted about records that a party lacks."""
    if imputer == "mean":
        return (
            "A record that a party lacks gets the means of the records that the party has, whatever the other parties"
            " know about it: right, on average, if records are missing completely at random."
        )
    if imputer == "regression":
        return (
            "What a party lacks is predicted as in the records that it shares with another party: right if records are"
            " missing at random given the other parties' columns."
        )
    return (
        "What a party lacks is predicted from moments of all records, which EM joins over the patterns of presence:"
        " right if records are missing at random."
    )


FILLED: Mapping[EmptyRule, str] = {
    "mask": "a network is told which they are, moments take means in their place; they are then filled in from the"
    " record's other cells and from what other parties know: right if cells are empty at random, given these"
}
"""What becomes of empty cells, for people."""
DRAWN_CELLS: Mapping[EmptyRule, str] = {
    "mask": "they are drawn given the record's other cells and what other parties know; until their party's turn comes,"
    " their means stand for them: right if cells are empty at random, given these"
}


def _single(column: Column) -> bool:
    return column.kind == "categorical" and len(column.categories or ()) < 2


# --- the coordinator's procedure ----------------------------------------------------------------------------------


class Completing(Procedure[Completion]):
    """Meet, train or compute moments, complete; and classify a label with and without completed records.

    A paper's procedure adds networks of its own: `trainings`, `further_stages` and `further`.
    """

    complete_step: ClassVar[Step] = complete

    def __init__(self, method: CompletionMethod, facts: PublicFacts, roster: Roster) -> None:
        _check(method, facts, roster)
        self.method, self.facts, self.targets = method, facts, method.targets(facts)
        self.planner = planner = Planner(facts, roster)
        self.meeting = Meeting(facts.parties, method.masking, planner, networks=method.uses_networks)
        self.missing = planner(
            "missing", count_missing, {target: [{}] for target in self.targets}, "how many records a party lacks", 9
        )
        self.networks = self.with_noise(self.trainings())
        self.regressions = {
            training.active: RegressionRounds(training, planner)
            for training in self.networks
            if isinstance(training, Regression)
        }
        further = self.further_stages()
        self.moments = None
        if method.imputer in MOMENTS:
            self.moments = MomentImputation(method.imputer, method.masking, self.targets, planner)
        self.complete = planner(
            "complete",
            self.complete_step,
            {target: [self.finishing(target)] for target in self.targets},
            "how near completed entries are to the truth, on hidden records",
            500 + 250 * max(len(facts.columns[target]) for target in self.targets),
            later=self.settled_later(),
        )
        self.classifiers = []
        if method.label is not None and method.epsilon is None:  # their training has no noise
            for which, rows in (("without", "complete"), ("with", "completed")):
                label, owner = f"classifier {which} completed records", facts.owner(method.label)
                self.classifiers.append(Classifier(self.regression(label, owner, (method.label,), rows=rows), planner))
        self.stages: Sequence[Stage] = (
            *self.meeting.stages,
            self.missing,
            *(stage for rounds in self.regressions.values() for stage in rounds.stages),
            *further,
            *(self.moments.stages if self.moments else ()),
            self.complete,
            *(stage for classifier in self.classifiers for stage in classifier.stages),
        )
        self.notes = self._notes()

    # --- the networks, as public descriptions --------------------------------------------------------------------

    def trainings(self) -> list[Training]:
        """Of the imputer, without noise; in the order in which they are made."""
        if self.method.imputer != "regression":
            return []
        return [self.regression(f"regression for {target}", target) for target in self.targets]

    def regression(self, label: str, active: str, outputs: tuple[str, ...] = (), **stated: Any) -> Regression:
        """The network that predicts all columns of a party from the others', or some from all columns but these."""
        columns = self.facts.columns
        predicted = outputs or tuple(columns[active])
        inputs = {party: tuple(name for name in own if name not in predicted) for party, own in columns.items()}
        return Regression(
            label=label,
            active=active,
            parties=(*(party for party in self.facts.parties if party != active), active),
            inputs={party: names for party, names in inputs.items() if outputs or party != active},
            outputs=predicted,
            **self.constants(),
            **stated,
        )

    def constants(self) -> dict[str, Any]:
        """Of every training, from the options."""
        method, n = self.method, self.facts.n
        stated = ("masking", "iterations", "local", "learning_rate", "hidden", "cut", "seed", "validation", "patience")
        small = SMALL_DROPOUT if n < SMALL else 0.1
        return {
            **{name: getattr(method, name) for name in stated},
            "batch": min(method.batch, n),
            "dropout": small if method.dropout is None else method.dropout,
            "every": max(250 // method.local, 1),
        }

    def with_noise(self, trainings: Sequence[Training]) -> list[Training]:
        """If `epsilon` asks for it: one budget for all trainings of all parties that may be completed."""
        method = self.method
        if method.epsilon is None:
            return list(trainings)
        clipped: list[Training] = [
            replace(
                training,
                clip=method.clip,
                gamma=GAMMA,
                epochs=method.epochs,
                dropout=0.0 if isinstance(training, Regression) else training.dropout,
            )
            for training in trainings
        ]
        mu = noise_for(clipped, self.facts, epsilon=method.epsilon, delta=method.delta)
        return [replace(training, mu=mu) for training in clipped]

    def finishing(self, target: str) -> dict[str, Any]:
        """The arguments of the last step at a target."""
        trained = self.method.imputer == "regression"
        return {
            "imputer": self.method.imputer,
            "training": self.regressions[target].training.to_dict() if trained else None,
            "linear": self.moments.for_target(target) if self.moments else {},
            "validation": self.method.validation,
            "seed": self.method.seed,
            "file_format": self.method.file_format,
        }

    def settled_later(self) -> dict[str, Later]:
        """The arguments of the last step that are not known yet, and what bounds them."""
        rule = "what the coordinator computes from the moments for this party: finite matrices of the planned shapes"
        return {"linear": Later(rule, alike)} if self.moments else {}

    def further_stages(self) -> tuple[Stage, ...]:
        """Between the regressions and the moments."""
        return ()

    def _notes(self) -> tuple[str, ...]:
        method = self.method
        notes = [
            "Completed tables stay with their parties; generated entries are flagged in them.",
            f"{100 * method.validation:.0f} % of the records of each completed party are hidden from all networks, to"
            " tell how near to the truth the completed entries are.",
        ]
        if len(self.facts.parties) == 2 and method.imputer != "mean":
            notes.append(
                "With two parties the sum that is opened is the other party's own hidden vector: the completed party"
                " learns it by record."
            )
        elif method.imputer != "mean":
            notes.append(
                "For a record that only one other party has, the sum that is opened is that party's own hidden vector."
                " With masking='ckks' a coordinator that deviates can have one party's alone opened; pads prevent that."
            )
        notes += empty_notes(self._filled(), FILLED)
        if method.epsilon is not None:
            notes += self._forecast(method.epsilon)
            notes.append(
                "epsilon bounds what the trained weights, and so the completed entries, say about a person. The hidden"
                " vectors and gradients that travel while training are not bounded: they are 'split-training'."
            )
        return tuple(notes)

    def _filled(self) -> dict[str, EmptyRule]:
        """The columns whose empty cells are filled in, if their party is completed."""
        declared = {name: column for target in self.targets for name, column in self.facts.columns[target].items()}
        return {name: "mask" for name, column in declared.items() if column.missing}

    def _forecast(self, epsilon: float) -> tuple[str, ...]:
        """Of the training that noise hides most."""
        forecasts: dict[float, tuple[str, ...]] = {}
        for training in self.networks:
            steps = max(min(training.iterations, training.epochs * (self.facts.n // training.batch)), 1)
            weights = max(training.weights(self.facts, party) for party in training.parties)
            noise = math.sqrt(2 * training.mu) / training.gamma
            forecasts[noise * math.sqrt(weights / steps)] = forecast.training(
                noise=noise, steps=steps, weights=weights, batch=training.batch, epsilon=epsilon
            )
        return forecasts[max(forecasts)] if forecasts else ()

    # --- the run -------------------------------------------------------------------------------------------------

    def run(self, job: Job) -> Completion:
        keys = self.meeting.run(job)
        missing: dict[str, int] = job.ask(self.missing)
        targets = _lacking(missing)
        histories: dict[str, Any] = {}
        for target in targets:
            if target in self.regressions:
                _train(job, self.regressions[target], keys, histories)
        later, chosen = self.further(job, keys, targets, histories)
        if self.moments:
            linear = self.moments.run(job, keys, targets)
            later = {target: {**later.get(target, {}), "linear": linear[target]} for target in targets}
        parties = job.ask_each(self.complete, {target: later.get(target, {}) for target in targets})
        downstream = {}
        for classifier in self.classifiers:
            downstream[classifier.rounds.training.label] = classifier.run(job, keys, histories)
        return Completion(
            options=self.method.options(),
            n=self.facts.n,
            parties=parties,
            missing=missing,
            chosen=chosen,
            histories=histories,
            downstream=downstream,
            cost=str(job.plan.total()),
            simulated=job.simulated,
            homes={party: home for party in targets if (home := job.home(party)) is not None},
        )

    def further(
        self, job: Job, keys: Keys, targets: Sequence[str], histories: dict[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], Mapping[str, tuple[str, ...]]]:
        """Run the further stages: ({target: arguments of the last step}, {target: columns that were drawn first})."""
        return {}, {}


class Drawing(Procedure[Completion]):
    """Meet, then draw the tables of one party after the other (`multiple.py`)."""

    def __init__(self, method: Complete, facts: PublicFacts, roster: Roster, draws: int) -> None:
        _check(method, facts, roster)
        self.method, self.facts = method, facts
        planner = Planner(facts, roster)
        self.meeting = Meeting(facts.parties, method.masking, planner, networks=False)
        everyone: Requests = {party: [{}] for party in method.targets(facts)}
        self.missing = planner("missing", count_missing, everyone, "how many records a party lacks", 9)
        finishing = {name: getattr(method, name) for name in ("validation", "seed", "file_format")}
        self.imputation = MultipleImputation(draws, method.masking, finishing, planner)
        self.stages: Sequence[Stage] = (*self.meeting.stages, self.missing, *self.imputation.stages)
        gaps = [name for declared in facts.columns.values() for name, column in declared.items() if column.missing]
        self.notes = (
            f"{draws} completed tables of every party stay with it; drawn entries are flagged in them. Regress on each,"
            " and combine with pool.",
            f"Each party learns {2 * draws} sums of linear predictors by record for each of its features: of a record"
            " that only one other party has, enough to solve for that party's columns.",
            f"{100 * method.validation:.0f} % of the records of each completed party are drawn once more as if it"
            " lacked them, to tell how near to the truth its draws are.",
            *empty_notes(dict.fromkeys(gaps, "mask"), DRAWN_CELLS),
        )

    def run(self, job: Job) -> Completion:
        keys = self.meeting.run(job)
        missing: dict[str, int] = job.ask(self.missing)
        _lacking(missing)
        parties = self.imputation.run(job, keys, missing)
        return Completion(
            options=self.method.options(),
            n=self.facts.n,
            parties=parties,
            missing=missing,
            histories={},
            cost=str(job.plan.total()),
            simulated=job.simulated,
            homes={party: home for party in parties if (home := job.home(party)) is not None},
        )


def _check(method: CompletionMethod, facts: PublicFacts, roster: Roster) -> None:
    method.check_facts(facts)
    if method.masking == "ckks" and set(facts.parties) & set(roster.beside_coordinator):
        raise RosterError(
            f"{roster.coordinator!r} runs the coordinator and a data party, which could decrypt what each of the"
            ' others sends; choose masking="pads".'
        )


def _lacking(missing: Mapping[str, int]) -> tuple[str, ...]:
    """The parties that lack something."""
    targets = tuple(party for party, count in missing.items() if count)
    if not targets:
        raise NotEstimable(
            "none of these parties lacks a record that another party has, or has an empty cell; nothing is to be"
            " completed."
        )
    return targets


class Classifier:
    """The label from all parties' columns, across the parties, and how many hidden labels it finds."""

    def __init__(self, training: Regression, planner: Planner) -> None:
        self.rounds = RegressionRounds(training, planner)
        self.score = planner(
            f"{training.label}: score",
            score_label,
            {training.active: [{"training": training.to_dict()}]},
            "accuracy",
            60,
        )
        self.stages = (*self.rounds.stages, self.score)

    def run(self, job: Job, keys: Keys, histories: dict[str, Any]) -> Mapping[str, Any]:
        _train(job, self.rounds, keys, histories)
        score: Mapping[str, Any] = job.ask(self.score)[self.rounds.training.active]
        return score


def _train(job: Job, rounds: Rounds, keys: Keys, histories: dict[str, Any]) -> None:
    histories[rounds.training.label] = rounds.run(job, keys).to_dict()
