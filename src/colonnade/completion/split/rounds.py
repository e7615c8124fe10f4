"""The coordinator's side of training a split network: it relays, adds what it cannot read, and decides when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from colonnade.completion.split import exchange
from colonnade.completion.split.steps import follow, hand_over, lead, meet, settle, start, take_over
from colonnade.completion.split.training import CHUNK, Training, row_chunks
from colonnade.errors import NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import JOB, Phase, audience_of
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Step
from colonnade.secure import ckks


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
        found: dict[str, float] = {}
        for _, errors in self.looks:
            for party, error in errors.items():
                found[party] = min(found.get(party, error), error)
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "stopped": self.stopped,
            "best": self.best,
            "looks": [[number, errors] for number, errors in self.looks],
            "last losses": self.losses[-1] if self.losses else [],
        }


# --- phases -------------------------------------------------------------------------------------------------------


def meeting_phases(
    members: Sequence[str], protect: exchange.Protect, facts: PublicFacts, roster: Roster
) -> list[Phase]:
    arguments = {"members": list(members), "protect": protect}
    key = 260_000 if protect == "ckks" else 0
    return [
        phase_of("meet", meet, members, 1, arguments, facts, roster, "presence, and public keys", facts.n // 8 + key),
        phase_of("settle", settle, members, 1, arguments, facts, roster, "nothing", 0),
    ]


def training_phases(training: Training, facts: PublicFacts, roster: Roster) -> list[Phase]:
    """All requests of one training, at most."""
    plain = {"training": training.to_dict()}
    label = training.label
    sealed = _bytes(training.round_size, training.protect)
    back = _bytes(training.losses * training.round_size, training.protect) * max(len(training.senders), 1)
    turn = {**plain, "number": 0, "watch": True, "better": True}
    vectors = f"hidden vectors, which only {training.active!r} can open, summed over the senders"
    rounds = training.rounds + 1
    made = [
        phase_of(f"{label}: start", start, training.parties, 1, plain, facts, roster, "the number of records used", 9),
        phase_of(f"{label}: senders", follow, training.senders, rounds, turn, facts, roster, vectors, sealed),
        phase_of(
            f"{label}: active",
            lead,
            [training.active],
            rounds,
            {**turn, "total": None},
            facts,
            roster,
            "gradients by record to the other parties, sealed; losses to the coordinator",
            back,
        ),
    ]
    if not training.gan and training.outputs:
        chunks = len(row_chunks(facts.n))
        size = _bytes(CHUNK * training.cut, training.protect)
        part = {**plain, "part": 0, "better": True}
        made += [
            phase_of(f"{label}: hand over", hand_over, training.senders, chunks, part, facts, roster, vectors, size),
            phase_of(
                f"{label}: take over",
                take_over,
                [training.active],
                chunks,
                {**turn, "total": None},
                facts,
                roster,
                "nothing: predictions stay with the active party",
                0,
            ),
        ]
    return [one for one in made if one.parties]


def _bytes(numbers: int, protect: exchange.Protect) -> int:
    return ckks.pieces(numbers) * 131_300 if protect == "ckks" else 8 * numbers


def phase_of(
    name: str,
    step: Step,
    members: Sequence[str],
    count: int,
    arguments: dict[str, Any],
    facts: PublicFacts,
    roster: Roster,
    discloses: str,
    size: int,
) -> Phase:
    costs = {}
    for party in members:
        public = Public(job=JOB, party=party, facts=facts, roster=roster)
        costs[party] = step.price(public, step.check(arguments)).times(count)
    return Phase(
        name=name,
        step=step.name,
        counts=dict.fromkeys(members, count),
        costs=costs,
        audience=audience_of(costs.values()),
        discloses=discloses,
        reply_bytes=size,
    )


# --- rounds -------------------------------------------------------------------------------------------------------


def hold_meeting(job: Job, members: Sequence[str], protect: exchange.Protect) -> dict[str, bytes | None]:
    """Presence and keys; {party: its public CKKS key}."""
    keys: dict[str, bytes | None] = job.ask(meet, members=list(members), protect=protect)
    job.ask(settle, members=list(members), protect=protect)
    return keys


def train(job: Job, training: Training, keys: dict[str, bytes | None], first: dict[str, int] | None = None) -> History:
    """Rounds until the plan's number, or until looks have stopped to improve. Raises if training diverges.

    `first` are keys of the first weights, which only a simulation may choose. Private training makes all its rounds:
    where to stop would be a release about the hidden records.
    """
    plain = training.to_dict()
    label, active = training.label, training.active
    begun = {party: {"training": plain, "key": (first or {}).get(party)} for party in training.parties}
    senders = list(training.senders)
    if senders:
        job.ask_each(start, {party: begun[party] for party in senders}, phase=f"{label}: start")
    used = job.ask_each(start, {active: begun[active]}, phase=f"{label}: start")[active]["rows"]
    if used < 2:
        raise NotEstimable(
            f"{active!r} shares {used} records with the other parties beyond those that are watched: nothing can be"
            " learned from them; align the parties' keys, watch fewer with validation=, or leave this party out."
        )
    rounds = training.rounds_for(used)
    if not rounds:
        raise NotEstimable(
            f"{training.epochs} epochs of the {used} records of {label!r} in batches of {training.batch} are fewer"
            f" iterations than a round has (local={training.local}); choose a smaller batch= or local=, or more epochs."
        )
    history = History()
    best: dict[str, float] = {}
    better, waited = False, 0
    for number in range(rounds):
        watch = number % training.every == 0
        errors = _round(job, training, keys, number, watch=watch, better=better, history=history)
        better = False
        if not watch:
            continue
        better = _improved(errors, best)
        history.looks.append((number, errors))
        waited = 0 if better else waited + 1
        if waited >= training.patience and not training.mu:
            history.stopped = f"no better error over hidden records in {waited} looks"
            break
    else:
        history.stopped = "all rounds were made"
        if rounds == training.rounds and not training.gan:
            errors = _round(job, training, keys, rounds, watch=True, better=better, history=history)
            better = _improved(errors, best)
            history.looks.append((rounds, errors))
    if not training.gan and training.outputs:
        _apply(job, training, keys, better)
    return history


def _improved(errors: dict[str, float], best: dict[str, float]) -> bool:
    found = False
    for party, error in errors.items():
        if error < best.get(party, float("inf")) * (1 - 1e-5):
            best[party] = error
            found = True
    return found


def _round(
    job: Job,
    training: Training,
    keys: dict[str, bytes | None],
    number: int,
    *,
    watch: bool,
    better: bool,
    history: History,
) -> dict[str, float]:
    """One exchange there and back; {party: error over its hidden records} of a look."""
    turn: dict[str, Any] = {"training": training.to_dict(), "number": number, "watch": watch, "better": better}
    label, active = training.label, training.active
    total: Any = None
    errors: dict[str, float] = {}
    if training.senders:
        told = job.ask(follow, phase=f"{label}: senders", **turn)
        parts = {party: one["parts"] for party, one in told.items()}
        total = exchange.add(parts, protect=training.protect, senders=training.senders, key=keys.get(active))
        errors = {party: one["error"] for party, one in told.items() if one.get("error") is not None}
    answer = job.ask(lead, phase=f"{label}: active", total=total, **turn)[active]
    if not answer["sound"]:
        raise NotEstimable(
            f"the training of {label!r} diverged in round {number} (a loss is not a number, or hidden vectors ran"
            " away); nothing is returned: choose a smaller rate=, or fewer iterations."
        )
    if answer["losses"]:
        history.losses.append([float(one) for one in answer["losses"]])
        history.rounds = number + 1
    if answer["error"] is not None:
        errors[active] = float(answer["error"])
    return errors


def _apply(job: Job, training: Training, keys: dict[str, bytes | None], better: bool) -> None:
    """The trained network on the whole cohort; its predictions stay with the active party."""
    plain, label = training.to_dict(), training.label
    for part in range(len(row_chunks(job.facts.n))):
        last = better and part == 0
        told = job.ask(hand_over, phase=f"{label}: hand over", training=plain, part=part, better=last)
        parts = {party: one["parts"] for party, one in told.items()}
        total = exchange.add(parts, protect=training.protect, senders=training.senders, key=keys.get(training.active))
        job.ask(
            take_over,
            phase=f"{label}: take over",
            training=plain,
            number=part,
            total=total,
            watch=False,
            better=last,
        )
