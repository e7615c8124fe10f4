"""The coordinator's side of training a split network: it relays, adds what it cannot read, and decides when to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from colonnade.completion.split import session
from colonnade.completion.split.exchange import PUBLIC_KEY_BYTES, Keys, Masking
from colonnade.completion.split.training import CHUNK, Regression, Training, row_chunks
from colonnade.errors import NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, Requests, Stage, audience_of, counted, flag, stage
from colonnade.federation.step import Step


@dataclass(frozen=True)
class Planner:
    """Makes the stages of one job; the audience of each is the one that its costs name."""

    facts: PublicFacts
    roster: Roster

    def __call__(
        self,
        name: str,
        step: Step,
        requests: Requests,
        discloses: str,
        reply_bytes: int = 0,
        later: Mapping[str, Later] | None = None,
        recipients: Sequence[str] = (),
    ) -> Stage:
        public: dict[str, Any] = {"facts": self.facts, "roster": self.roster, "discloses": discloses}
        planned = stage(name, step, requests, reply_bytes=reply_bytes, later=later, recipients=recipients, **public)
        return replace(planned, audience=audience_of(planned.costs.values()))


@dataclass
class History:
    """How a training went: mean losses of each round, and (round, RMSE over hidden records) of each look."""

    losses: list[list[float]] = field(default_factory=list)
    looks: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    rounds: int = 0
    stopped: str = ""

    @property
    def best(self) -> dict[str, float]:
        """The least error of each party that was looked at."""
        least: dict[str, float] = {}
        for _, errors in self.looks:
            for party, error in errors.items():
                least[party] = min(least.get(party, error), error)
        return least

    def to_dict(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "stopped": self.stopped,
            "best": self.best,
            "looks": [[number, errors] for number, errors in self.looks],
            "last losses": self.losses[-1] if self.losses else [],
        }


class Meeting:
    """The parties tell each other which records they have; with CKKS also their public keys."""

    def __init__(self, members: Sequence[str], masking: Masking, planner: Planner, *, networks: bool = True) -> None:
        stated = {"members": list(members), "masking": masking}
        size = planner.facts.n // 8 + (PUBLIC_KEY_BYTES if masking == "ckks" else 0)
        requests = {member: [{**stated, "networks": networks}] for member in members}
        self.meet = planner("meet", session.meet, requests, "presence, and public keys", size, recipients=members)
        self.settle = planner("settle", session.settle, {member: [stated] for member in members}, "nothing")
        self.stages = (self.meet, self.settle)

    def run(self, job: Job) -> Keys:
        keys: Keys = job.ask(self.meet)
        job.ask(self.settle)
        return keys


# --- rounds -------------------------------------------------------------------------------------------------------

BETTER = {
    "better": flag(
        "whether the last look saw a smaller error than all before it, so that its weights are the best ones"
    )
}
ROUND = {"number": counted("the next round: its pads serve once"), **BETTER}
SUM = {
    "total": Later(
        "the sum of what the senders have sent, which the coordinator cannot read; the opener refuses one of another"
        " size, or in which a summand is missing",
        lambda value, _: (
            value is None
            or (isinstance(value, np.ndarray) and value.dtype == np.uint64 and value.ndim == 1)
            or (isinstance(value, list) and all(isinstance(piece, bytes) for piece in value))
        ),
    )
}
FIRST_WEIGHTS = Later(
    "of the first weights in a simulation; otherwise a party draws its own, and refuses any",
    lambda value, _: value is None or (type(value) is int and 0 <= value < 2**31),
)


class Rounds:
    """One training: its stages, with as many requests as it may need, and the run that asks them.

    `settled` bounds what is not known of a training when it is planned; `run` is then given the training that is made.
    """

    start_step: ClassVar[Step] = session.start
    follow_step: ClassVar[Step] = session.follow
    lead_step: ClassVar[Step] = session.lead
    looks_last: ClassVar[bool] = False
    """Is there a look after the last round?"""

    def __init__(self, training: Training, planner: Planner, *, settled: Later | None = None) -> None:
        self.training = training
        self.later = {"training": settled} if settled else {}
        label, exchange, senders = training.label, training.exchange, training.senders
        described = {"training": training.to_dict()}
        turn = {**described, "number": 0, "better": True}
        rounds = training.rounds + 1
        self.vectors = f"hidden vectors, which only {training.active!r} can open, summed over the senders"
        self.start = planner(
            f"{label}: start",
            self.start_step,
            {party: [described] for party in training.parties},
            "the number of records used",
            9,
            later={**self.later, "key": FIRST_WEIGHTS},
            recipients=(training.active,),
        )
        self.follow = planner(
            f"{label}: senders",
            self.follow_step,
            dict.fromkeys(senders, [turn] * rounds),
            self.vectors,
            exchange.size(training.round_size),
            later={**self.later, **ROUND},
        )
        self.lead = planner(
            f"{label}: active",
            self.lead_step,
            {training.active: [{**turn, "total": None}] * rounds},
            "gradients by record to the other parties, sealed; losses to the coordinator",
            exchange.size(training.gradients * training.round_size) * max(len(senders), 1),
            later={**self.later, **ROUND, **SUM},
            recipients=senders,
        )
        self.stages: tuple[Stage, ...] = (self.start, self.follow, self.lead)

    def run(
        self, job: Job, keys: Keys, *, first: Mapping[str, int] | None = None, training: Training | None = None
    ) -> History:
        """Rounds until the plan's number, or until looks have stopped to improve. Raises if training diverges.

        `first` are keys of the first weights, which only a simulation may choose. Private training makes all its
        rounds: where to stop would be a release about the hidden records.
        """
        training = training or self.training
        rounds = self._start(job, training, first if first is not None else _first_weights(job, training))
        history = History()
        best: dict[str, float] = {}
        better, waited = False, 0
        for number in range(rounds):
            errors = self._round(job, training, keys, history, number=number, better=better)
            better = training.has_look(number) and _improved(errors, best)
            if not training.has_look(number):
                continue
            history.looks.append((number, errors))
            waited = 0 if better else waited + 1
            if waited >= training.patience and not training.mu:
                history.stopped = f"no better error over hidden records in {waited} looks"
                break
        else:
            history.stopped = "all rounds were made"
            if self.looks_last and rounds == training.rounds:
                errors = self._round(job, training, keys, history, number=rounds, better=better)
                history.looks.append((rounds, errors))
                better = _improved(errors, best)
        self._finish(job, training, keys, better=better)
        return history

    def _start(self, job: Job, training: Training, first: Mapping[str, int]) -> int:
        """Fresh weights everywhere, the active party last; the number of rounds."""
        label, active = training.label, training.active
        described = self._described(training)
        begun = {party: {**described, "key": first.get(party)} for party in training.parties}
        if training.senders:
            job.ask_each(self.start, {party: begun[party] for party in training.senders})
        used = job.ask_each(self.start, {active: begun[active]})[active]["rows"]
        if used < 2:
            raise NotEstimable(
                f"{active!r} shares {used} records with the other parties beyond those that are watched: nothing can be"
                " learned from them; align the parties' keys, watch fewer with validation=, or leave this party out."
            )
        rounds = training.rounds_for(used)
        if not rounds:
            raise NotEstimable(
                f"{training.epochs} epochs of the {used} records of {label!r} in batches of {training.batch} are fewer"
                f" iterations than a round has (local={training.local}); choose a smaller batch= or local=, or more"
                " epochs."
            )
        return rounds

    def _described(self, training: Training) -> dict[str, Any]:
        return {"training": training.to_dict()} if self.later else {}

    def _round(
        self, job: Job, training: Training, keys: Keys, history: History, *, number: int, better: bool
    ) -> dict[str, float]:
        """One exchange there and back; {party: error over its hidden records} of a look."""
        turn: dict[str, Any] = {**self._described(training), "better": better}
        total: Any = None
        errors: dict[str, float] = {}
        if training.senders:
            replies = job.ask(self.follow, **turn)
            total = training.exchange.add({party: reply["parts"] for party, reply in replies.items()}, keys)
            errors = {party: reply["error"] for party, reply in replies.items() if reply.get("error") is not None}
        answer = job.ask(self.lead, total=total, **turn)[training.active]
        if not answer["sound"]:
            raise NotEstimable(
                f"the training of {training.label!r} diverged in round {number} (a loss is not a number, or hidden"
                " vectors ran away); nothing is returned: choose a smaller learning_rate=, or fewer iterations."
            )
        if answer["losses"]:
            history.losses.append([float(loss) for loss in answer["losses"]])
            history.rounds = number + 1
        if answer["error"] is not None:
            errors[training.active] = float(answer["error"])
        return errors

    def _finish(self, job: Job, training: Training, keys: Keys, *, better: bool) -> None:
        """What is done with the trained network."""


class RegressionRounds(Rounds):
    """Ends with a last look, and with the trained network on the whole cohort; its predictions stay with the active
    party."""

    looks_last: ClassVar[bool] = True

    def __init__(self, training: Regression, planner: Planner) -> None:
        super().__init__(training, planner)
        described = {"training": training.to_dict(), "better": True}
        parts = [{**described, "part": part} for part in range(len(row_chunks(planner.facts.n)))]
        self.hand_over = planner(
            f"{training.label}: hand over",
            session.hand_over,
            dict.fromkeys(training.senders, parts),
            self.vectors,
            training.exchange.size(CHUNK * training.cut),
            later=BETTER,
        )
        self.take_over = planner(
            f"{training.label}: take over",
            session.take_over,
            {training.active: [{**part, "total": None} for part in parts]},
            "nothing: predictions stay with the active party",
            later={**BETTER, **SUM},
        )
        self.stages = (*self.stages, self.hand_over, self.take_over)

    def _finish(self, job: Job, training: Training, keys: Keys, *, better: bool) -> None:
        for part in range(self.take_over.rounds):
            last = better and part == 0
            replies = job.ask(self.hand_over, better=last)
            total = training.exchange.add({party: reply["parts"] for party, reply in replies.items()}, keys)
            job.ask(self.take_over, total=total, better=last)


def _first_weights(job: Job, training: Training) -> dict[str, int]:
    """Those of a simulation follow from its seed alone, so that ways of masking can be compared."""
    if not job.simulated:
        return {}
    draw = job.generator(f"first weights of {training.label}")
    return {party: int(draw.integers(2**31)) for party in training.parties}


def _improved(errors: dict[str, float], best: dict[str, float]) -> bool:
    improved = False
    for party, error in errors.items():
        if error < best.get(party, float("inf")) * (1 - 1e-5):
            best[party] = error
            improved = True
    return improved
