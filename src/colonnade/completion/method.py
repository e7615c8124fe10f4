"""`FedPSG`: fill in the records that parties lack (the FedPSG-CAG paper, read with corrections).

1. The parties tell each other which records they have.
2. For each party that lacks records: a regression across the parties predicts its columns from the others'.
3. It chooses `n_correlated` of its columns and draws them for the missing records with a local generator, given those
   predictions (`condition="aligned"`) or not (`"none"`, the paper).
4. An imputer fills in the rest: the regression itself, a vertical GAN, a copula, chained equations, or means.
5. Each party writes its completed table in its own folder, generated entries flagged, and tells how near to the truth
   it came on records that were hidden to find out.

`claim.md` says who learns what. Nothing here is private towards the party that is completed unless it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from colonnade.completion.moment_imputers import compute_linear, moment_imputer_phases
from colonnade.completion.options import GANS, LINEAR, check_facts, checked
from colonnade.completion.result import FedPSGResult
from colonnade.completion.split.exchange import Protect
from colonnade.completion.split.rounds import History, hold_meeting, meeting_phases, phase_of, train, training_phases
from colonnade.completion.split.training import Training
from colonnade.completion.steps import (
    complete,
    count_missing,
    generate_correlated,
    keep_context,
    keep_labels,
    score_label,
    share_labels,
)
from colonnade.completion.trainings import classifier, gan, regression
from colonnade.errors import BadArguments, NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Phase, Plan
from colonnade.federation.roster import Roster

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

Imputer = Literal["regression", "gain", "vgain", "cgain", "copula-mean", "copula-draw", "mice", "mean"]
Condition = Literal["aligned", "none"]
GeneratorName = Literal["tabddpm", "tvae", "copula"]
Format = Literal["parquet", "csv"]


@dataclass(frozen=True, kw_only=True)
class FedPSG:
    """Completes the records that parties lack.

    Parameters
    ----------
    n_correlated : columns that a local generator draws before the rest is filled in; 0 leaves all to the imputer. The
        paper has 5. Drawn columns keep their scatter; the imputer's are expected values.
    generator : of the correlated columns: "tabddpm", "tvae" or "copula".
    imputer : "regression" (a network across the parties), "gain", "vgain", "cgain" (with `label`), "copula-mean",
        "copula-draw", "mice" or "mean". The copula and mice need a committee of three, as `Moments`.
    condition : "aligned": the correlated columns, and a GAN's generator, are conditioned on what the other parties know
        about the record; "none": on nothing, as in the paper.
    protect : hidden vectors travel under pairwise pads ("masks") or CKKS encryption ("ckks"), which is slower.
    complete : the parties to complete; all that lack records by default.
    label : a column with categories. "cgain" conditions on it (allow "labels"). The report tells how well it is
        classified with and without completed records, unless training is private.
    iterations, batch, rate, hidden, cut, dropout : of the networks; `cut` is the length of the hidden vectors that
        travel.
    local : iterations between two exchanges; 1 is plain gradient descent of the whole network, with `local` times the
        messages.
    generator_steps : of the generator's training.
    validation, patience : the share of records that is hidden to watch the error, and the looks without a better one
        after which training stops.
    epsilon, delta, epochs, clip : private training of the networks' weights (`split/private.py`): a person's total over
        all parties, passes over the data, and the norm that a record's gradient is clipped to. Needs an imputer that is
        trained (the regression or a GAN) and n_correlated=0: nothing else here is private.
    seed : of batches, hints and the hidden records, which are public.
    format : of the completed tables, "parquet" or "csv".

    Returns
    -------
    `fit(federation)` gives a result: `table(party)` is a completed table, `quality(party)` its errors.

    Example
    -------
    >>> result = co.FedPSG(imputer="mean", complete=("market",)).fit(federation)
    >>> "inspections (generated)" in result.table("market").columns
    True
    """

    name: ClassVar[str] = "fedpsg"

    n_correlated: int = 0
    generator: GeneratorName = "tabddpm"
    imputer: Imputer = "regression"
    condition: Condition = "aligned"
    protect: Protect = "masks"
    complete: tuple[str, ...] | None = None
    label: str | None = None
    iterations: int = 10_000
    local: int = 25
    batch: int = 128
    rate: float = 1e-3
    hidden: int = 256
    cut: int = 32
    dropout: float | None = None
    generator_steps: int = 2000
    validation: float = 0.1
    patience: int = 12
    epsilon: float | None = None
    delta: float = 1e-6
    epochs: int = 10
    clip: float = 1.0
    seed: int = 0
    format: Format = "parquet"

    def __post_init__(self) -> None:
        kinds = {
            "imputer": Imputer,
            "condition": Condition,
            "generator": GeneratorName,
            "protect": Protect,
            "format": Format,
        }
        for name, value in checked(self, kinds).items():
            object.__setattr__(self, name, value)

    # --- what it will do -----------------------------------------------------------------------------------------

    def fit(self, federation: Federation) -> FedPSGResult:
        """Run it; the run folder is in `federation.runs`, the completed tables are in the parties' own folders."""
        found: FedPSGResult = federation.run(self)[0]
        return found

    def targets(self, facts: PublicFacts) -> tuple[str, ...]:
        """The parties that may be completed."""
        if len(facts.parties) < 2:
            raise BadArguments("completion needs at least two parties with data: one knows what another lacks.")
        for party in self.complete or ():
            if party not in facts.parties:
                raise BadArguments(f"complete names {party!r}; the parties are {', '.join(facts.parties)}.")
        return tuple(party for party in facts.parties if self.complete is None or party in self.complete)

    @property
    def regresses(self) -> bool:
        """Is a regression across the parties needed?"""
        if self.imputer == "regression":
            return True
        return self.condition == "aligned" and (self.n_correlated > 0 or self.imputer in GANS)

    @property
    def _classifies(self) -> bool:
        """Is the label classified with and without completed records? Its training has no noise."""
        return self.label is not None and self.epsilon is None

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        targets, members = self.targets(facts), facts.parties
        check_facts(self, facts)
        phases: list[Phase] = meeting_phases(members, self.protect, facts, roster)
        phases.append(
            phase_of("missing", count_missing, targets, 1, {}, facts, roster, "how many records a party lacks", 9)
        )
        if self.regresses:
            for target in targets:
                phases += training_phases(regression(self, facts, target), facts, roster)
        if self.n_correlated:
            arguments = self._generation(None, ())
            what = "the names of the chosen columns"
            phases.append(phase_of("generate", generate_correlated, targets, 1, arguments, facts, roster, what, 200))
        if self.imputer == "cgain":
            holder = facts.owner(str(self.label))
            sharing = {"label": str(self.label), "members": list(members)}
            size = facts.n * 4
            phases += [
                phase_of("share labels", share_labels, [holder], 1, sharing, facts, roster, "labels, sealed", size),
                phase_of(
                    "keep labels", keep_labels, members, 1, {"label": str(self.label)}, facts, roster, "nothing", 0
                ),
            ]
        if self.imputer in GANS:
            context = {"label": "", "training": None, "tag": None}
            phases.append(phase_of("context", keep_context, targets, 1, context, facts, roster, "nothing", 0))
            phases += training_phases(gan(self, facts, {}, targets), facts, roster)
        if self.imputer in LINEAR:
            phases += moment_imputer_phases(self.imputer, self.protect, facts, roster, targets)
        finishing = {"imputer": self.imputer, "training": None, "linear": {}, **self._watching, "format": self.format}
        what = "how near completed entries are to the truth, on hidden records"
        size = 500 + 250 * max(len(facts.columns[target]) for target in targets)
        phases.append(phase_of("complete", complete, targets, 1, finishing, facts, roster, what, size))
        if self._classifies:
            for completed in (False, True):
                one = classifier(self, facts, completed=completed)
                phases += training_phases(one, facts, roster)
                told = {"training": one.to_dict()}
                phases.append(
                    phase_of(f"{one.label}: score", score_label, [one.active], 1, told, facts, roster, "accuracy", 60)
                )
        return Plan(
            method=self.name, options=self.options(), stages=tuple(phases), notes=self._notes(facts), delta=self.delta
        )

    @property
    def _watching(self) -> dict[str, Any]:
        return {"share": self.validation, "seed": self.seed}

    def _generation(self, training: Training | None, labels: tuple[str, ...]) -> dict[str, Any]:
        return {
            "count": self.n_correlated,
            "name": self.generator,
            "steps": self.generator_steps,
            "training": None if training is None else training.to_dict(),
            "keep_for": list(labels),
            **self._watching,
        }

    def _notes(self, facts: PublicFacts) -> tuple[str, ...]:
        notes = [
            "Completed tables stay with their parties; generated entries are flagged in them.",
            f"{100 * self.validation:.0f} % of the records of each completed party are hidden from all networks, to"
            " tell how near to the truth the completed entries are.",
        ]
        if len(facts.parties) == 2 and self.imputer != "mean":
            notes.append(
                "With two parties the sum that is opened is the other party's own hidden vector: the completed party"
                " learns it by record."
            )
        elif self.imputer != "mean":
            notes.append(
                "For a record that only one other party has, the sum that is opened is that party's own hidden vector."
            )
        if self.epsilon is not None:
            notes.append(
                "epsilon bounds what the trained weights, and so the completed entries, say about a person. The hidden"
                " vectors and gradients that travel while training are not bounded: they are 'split-training'."
            )
        return tuple(notes)

    # --- the coordinator's procedure -----------------------------------------------------------------------------

    def execute(self, job: Job) -> FedPSGResult:
        facts = job.facts
        keys = hold_meeting(job, facts.parties, self.protect)
        missing: dict[str, int] = job.ask(count_missing, phase="missing")
        targets = tuple(party for party, count in missing.items() if count)
        if not targets:
            raise NotEstimable(
                "none of these parties lacks a record that another party has; nothing is to be completed."
            )
        histories: dict[str, History] = {}
        regressions: dict[str, Training] = {}
        if self.regresses:
            for target in targets:
                one = regressions[target] = regression(self, facts, target)
                histories[one.label] = train(job, one, keys, self._first(job, one))
        chosen: dict[str, tuple[str, ...]] = {}
        if self.n_correlated:
            labels = (self.imputer,) if self.imputer in GANS else ()
            asked = {
                target: self._generation(regressions.get(target) if self.condition == "aligned" else None, labels)
                for target in targets
            }
            chosen = {party: tuple(names) for party, names in job.ask_each(generate_correlated, asked).items()}
        trainings: dict[str, Training] = dict(regressions)
        if self.imputer in GANS:
            network = self._train_gan(job, keys, targets, regressions, chosen, histories)
            trainings = dict.fromkeys(targets, network)
        linear: dict[str, dict[str, Any]] = {target: {} for target in targets}
        if self.imputer in LINEAR:
            linear = compute_linear(job, keys, targets, self.imputer, self.protect)
        asked = {
            target: {
                "imputer": self.imputer,
                "training": trainings[target].to_dict() if self.imputer in ("regression", *GANS) else None,
                "linear": linear[target],
                **self._watching,
                "format": self.format,
            }
            for target in targets
        }
        finished = job.ask_each(complete, asked)
        downstream = self._downstream(job, keys, histories) if self._classifies else {}
        return FedPSGResult(
            options=self.options(),
            n=facts.n,
            parties=finished,
            missing=missing,
            chosen=chosen,
            histories={label: one.to_dict() for label, one in histories.items()},
            downstream=downstream,
            cost=str(job.plan.total()),
            simulated=job.simulated,
            homes={party: home for party in targets if (home := job.home(party)) is not None},
        )

    def _first(self, job: Job, training: Training) -> dict[str, int] | None:
        """First weights of a simulation follow from its seed alone, so that ways of protection can be compared."""
        if not job.simulated:
            return None
        draw = job.generator(f"first weights of {training.label}")
        return {party: int(draw.integers(2**31)) for party in training.parties}

    def _train_gan(
        self,
        job: Job,
        keys: dict[str, bytes | None],
        targets: tuple[str, ...],
        regressions: Mapping[str, Training],
        chosen: Mapping[str, tuple[str, ...]],
        histories: dict[str, History],
    ) -> Training:
        facts = job.facts
        if self.imputer == "cgain":
            label = str(self.label)
            job.ask(share_labels, label=label, members=list(facts.parties))
            job.ask(keep_labels, label=label)
        network = gan(self, facts, chosen, targets)
        told = self.condition == "aligned"
        if any(network.context.values()):
            job.ask_each(
                keep_context,
                {
                    target: {
                        "label": network.label,
                        "training": regressions[target].to_dict() if told else None,
                        "tag": self.label if self.imputer == "cgain" else None,
                    }
                    for target in targets
                },
            )
        histories[network.label] = train(job, network, keys, self._first(job, network))
        return network

    def _downstream(self, job: Job, keys: dict[str, bytes | None], histories: dict[str, History]) -> dict[str, Any]:
        """The label classified across the parties, with and without completed records."""
        found: dict[str, Any] = {}
        for completed in (False, True):
            one = classifier(self, job.facts, completed=completed)
            histories[one.label] = train(job, one, keys, self._first(job, one))
            phase = f"{one.label}: score"
            found[one.label] = job.ask(score_label, phase=phase, training=one.to_dict())[one.active]
        return found

    # --- as data -------------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        """`columns` is no option: it tells a party's policy that the job reads all of them."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**plain, "complete": None if self.complete is None else list(self.complete), "columns": None}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(**{name: value for name, value in options.items() if name != "columns"})
