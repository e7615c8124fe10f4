"""An engine for hostile coordinators and members: it records an honest run, then departs from it, and compares.

Parties are embedded and simulated: noise comes from a seed, and seals are made a function of what they seal. So an
honest request has one answer, byte for byte, and the question "did this deviation teach the coordinator anything" has
a plain answer too: every reply that is no refusal must be one that the honest run contains. Party states are put back
after each deviation.

Where a deviation keeps to what the plan leaves open (`later`), an answer is compared by what it is: party, stage,
number, fixed arguments, recipients, tags and sizes of letters; and holders must have opened for the same values.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import resource
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from colonnade.errors import ColonnadeError
from colonnade.federation import wire, workplace
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Mail, Reply, Request
from colonnade.federation.method import Method
from colonnade.federation.party import Party
from colonnade.federation.plan import Plan
from colonnade.federation.transports import Transport
from colonnade.federation.transports.embedded import Embedded
from colonnade.privacy.ledger import Budget, against
from colonnade.secure import sealed
from colonnade.secure.sealed import Identity

SEED = 11
JOB = "hostile job"
OTHER_JOB = "hostile job again"
OPENING = ("open_shares",)
"""Steps of which all holders must be asked with the same values."""


# --- one answer to one request --------------------------------------------------------------------------------------


@contextlib.contextmanager
def repeatable_seals() -> Iterator[None]:
    """Ephemeral keys that are a function of context and plaintext, so that a run can be compared byte for byte."""
    original = workplace.seal

    def repeatable(sender: Identity, recipient: bytes, plaintext: bytes, *, context: bytes) -> bytes:
        material = hashlib.sha256(b"ephemeral" + recipient + context + plaintext).digest()
        generate = sealed.Identity.generate
        sealed.Identity.generate = classmethod(  # type: ignore[method-assign]
            lambda cls: cls(X25519PrivateKey.from_private_bytes(material))
        )
        try:
            return original(sender, recipient, plaintext, context=context)
        finally:
            sealed.Identity.generate = generate  # type: ignore[method-assign]

    workplace.seal = repeatable  # type: ignore[attr-defined]
    try:
        yield
    finally:
        workplace.seal = original  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Exchange:
    """One request of the honest run, and its answer."""

    party: str
    request: Request
    answer: bytes


class Tap:
    """A transport that writes down what passes, one exchange at a time."""

    def __init__(self, inner: Transport) -> None:
        self.inner, self.parties = inner, inner.parties
        self.passed: list[Exchange] = []
        self._lock = threading.Lock()

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        with self._lock:
            answer = self.inner.exchange(party, data, timeout=timeout)
            self.passed.append(Exchange(party, Request.decode(data), answer))
            return answer

    def where(self, party: str) -> str:
        return self.inner.where(party)

    def close(self) -> None:
        self.inner.close()


# --- a scene: parties, an honest run, and their states --------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """A method on a small federation."""

    name: str
    method: Callable[[], Method[Any]]
    federation: Callable[..., Federation]
    exact: bool = True
    """Whether its answers are the same bytes each time (an encryption library has randomness of its own)."""


State = dict[str, sqlite3.Connection]
"""Copies of parties' records, in memory."""


class Scene:
    """The parties of a case, the honest run of its method, and how to put the parties back."""

    def __init__(self, case: Case, root: Path) -> None:
        self.case = case
        self.federation = case.federation(root, seed=SEED)
        assert isinstance(self.federation.transport, Embedded)
        self.embedded = self.federation.transport
        self.parties: dict[str, Party] = {name: self.embedded[name] for name in self.embedded.parties}
        columns = [name for held in self.federation.facts.columns.values() for name in held]
        self.names = (*self.parties, *columns)
        self.method = case.method()
        self.plan: Plan = self.federation.plan(self.method)
        names = tuple(
            sorted({str(leaf["name"]) for cost in self.plan.costs() for leaf in cost.leaves() if leaf.unbounded})
        )
        for party in self.parties.values():
            party.policy = replace(party.policy, allow=names)
            party.approvals = replace(party.approvals, policy=party.policy)
        self.start = self.state()
        self.other = self._honest(OTHER_JOB)[0]
        self.restore(self.start)
        self.honest, self.result = self._honest(JOB)
        spent = {
            name: against(Budget(epsilon=1e9, delta=1e-6), party.ledger.costs()) for name, party in self.parties.items()
        }
        self.spent = {name: total.epsilon for name, total in spent.items()}
        """Epsilon of the bounded releases of one run, at each party."""
        self.restore(self.start)
        self.answers = _answers(self.honest)
        self.values = _values(self.honest)
        self.fields: dict[str, set[str]] = defaultdict(set)
        """{kind of request: the names of what is answered}, of all but `ask`."""
        for exchange in self.honest:
            if exchange.request.kind != "ask":
                self.fields[exchange.request.kind] |= set(Reply.decode(exchange.answer).value)
            if exchange.request.kind == "propose":
                self.drawn_from = drawn_from(exchange.request)
        self.letters = Counter(
            letter_key(letter) for answer in self.answers.values() for letter in Reply.decode(answer).mail
        )
        self.shapes = {shape for exchange in self.honest for shape in shapes_of(exchange, self.plan)}

    def _honest(self, job: str) -> tuple[list[Exchange], Any]:
        tap = Tap(self.embedded)
        self.federation.transport, self.federation._greeted = tap, False
        try:
            with named_jobs(job):
                result, _ = self.federation.run(self.method, sure=True)
        finally:
            self.federation.transport = self.embedded
        return tap.passed, result.to_dict()

    def close(self) -> None:
        self.federation.close()

    # states

    def state(self, *names: str) -> State:
        return {name: _dump(self.parties[name]) for name in names or self.parties}

    def restore(self, state: State) -> None:
        for name, dumped in state.items():
            _load(self.parties[name], dumped)

    def debits(self, name: str) -> dict[tuple[str, int], str]:
        """{(job, number): the request's digest} of all debits."""
        rows = self.parties[name].ledger.chain.rows(kind="debit")
        return {(row.body["job"], row.body["seq"]): row.body["request"] for row in rows}

    def records(self, name: str) -> Any:
        """What a refusal must not change: the ledger and the states of jobs."""
        party = self.parties[name]
        return party.ledger.chain.head(), [(job.job, job.state) for job in party.store.jobs()]

    def reads_letters(self, name: str, request: Request) -> bool:
        """Whether an answer depends on letters that came, so that holding one back changes it. An opening must not."""
        if request.step.endswith(OPENING):
            return False
        return any(
            exchange.request.mail and (exchange.party, exchange.request.stage) == (name, request.stage)
            for exchange in self.honest
        )

    def say(self, name: str, data: bytes) -> bytes:
        return self.parties[name].handle(data)


@contextlib.contextmanager
def named_jobs(job: str) -> Iterator[None]:
    """Runs get this id."""
    from colonnade.federation import run_folder

    original = run_folder.RunFolder.create.__func__  # type: ignore[attr-defined]

    def create(cls: Any, *arguments: Any, **options: Any) -> Any:
        folder = original(cls, *arguments, **options)
        folder.update(job=job)
        return folder

    run_folder.RunFolder.create = classmethod(create)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        run_folder.RunFolder.create = classmethod(original)  # type: ignore[method-assign]


def drawn_from(proposal: Request) -> tuple[Any, Any]:
    """What the noise of a simulation is a function of, beside the party and the request."""
    return proposal.arguments["seed"], proposal.arguments["plan"]["options"]


def _dump(party: Party) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    party.database._connection.backup(copy)
    return copy


def _load(party: Party, dumped: sqlite3.Connection) -> None:
    """Put a party's records back, and forget what its process has read of them."""
    dumped.backup(party.database._connection)
    party.database.rollbacks += 1
    for memory in (party.ledger._tallies, party._approved, party._seeds, party._remembered):
        memory.clear()
    shutil.rmtree(party.home / "scratch", ignore_errors=True)


def _answers(exchanges: Iterable[Exchange]) -> dict[tuple[str, int], bytes]:
    return {
        (exchange.party, exchange.request.seq): exchange.answer
        for exchange in exchanges
        if exchange.request.kind == "ask"
    }


def _values(exchanges: Iterable[Exchange]) -> dict[tuple[str, str], set[bytes]]:
    """{(party, stage): the values of its answers}."""
    values: dict[tuple[str, str], set[bytes]] = defaultdict(set)
    for exchange in exchanges:
        if exchange.request.kind == "ask":
            value = wire.encode(Reply.decode(exchange.answer).value)
            values[exchange.party, exchange.request.stage].add(value)
    return values


def letter_key(letter: Mail) -> tuple[str, str, str]:
    return letter.sender, letter.recipient, _HEX.sub("#", letter.tag)


_HEX = re.compile(r"[0-9a-f]{32,}")


def shapes_of(exchange: Exchange, plan: Plan) -> list[tuple[Any, ...]]:
    """What an answer is, without its bytes: of the request itself, and of each letter."""
    request = exchange.request
    if request.kind != "ask":
        return []
    stages = {stage.name: stage for stage in plan.stages}
    later = stages[request.stage].later if request.stage in stages else {}
    fixed = {name: value for name, value in request.arguments.items() if name not in later}
    place = (exchange.party, request.stage, request.step, hashlib.sha256(wire.encode(fixed)).hexdigest())
    reply = Reply.decode(exchange.answer)
    mail = [(*place, letter.recipient, _HEX.sub("#", letter.tag), len(letter.sealed)) for letter in reply.mail]
    return [place, *mail]


# --- judging a deviating run ----------------------------------------------------------------------------------------


MOST_BYTES = 300 * 2**20
"""Of memory, beyond the largest amount so far, that one message may make a party of these few records take."""


def peak_bytes() -> int:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass
class Finding:
    """What a deviation taught the coordinator, or a wrong result that no one noticed."""

    case: str
    deviation: str
    what: str


@dataclass
class Verdicts:
    deviations: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    within_rules: int = 0
    learned: list[Finding] = field(default_factory=list)
    wrong: list[Finding] = field(default_factory=list)
    noticed: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)

    def add(self, other: Verdicts) -> None:
        self.deviations += other.deviations
        self.refused += other.refused
        self.within_rules += other.within_rules
        self.learned += other.learned
        self.wrong += other.wrong
        self.noticed += other.noticed
        self.by_kind += other.by_kind


class Witness:
    """Sees every answer of one deviating run, and says what is in it beyond the honest one."""

    def __init__(self, scene: Scene, verdicts: Verdicts, deviation: str, passed: Iterable[Mail] = ()) -> None:
        self.scene, self.verdicts, self.deviation = scene, verdicts, deviation
        self.loose = not scene.case.exact
        """Whether something within the rules of the plan was chosen otherwise: then bytes differ from here on."""
        self.seen: dict[tuple[str, str, int], bytes] = {}
        self.asked: dict[tuple[str, str, str], int] = defaultdict(int)
        self.opened: dict[tuple[str, str, int], set[str]] = defaultdict(set)
        self.answered: list[tuple[str, str, int]] = []
        self.letters: dict[tuple[str, ...], set[bytes]] = defaultdict(set)
        for letter in passed:
            self.letters[JOB, *letter_key(letter)].add(letter.sealed)

    def learned(self, what: str) -> None:
        self.verdicts.learned.append(Finding(self.scene.case.name, self.deviation, what))

    def hear(self, name: str, request: Request | None, answer: bytes) -> Reply:
        """An answer to a request; None: one that cannot be read."""
        reply = Reply.decode(answer)
        if reply.error:
            self.verdicts.refused[reply.error] += 1
            asked = request is not None and request.kind == "ask"
            if reply.mail or (reply.value is not None and (asked or not isinstance(reply.value, str))):
                self.learned(f"{name} refused with a value or letters: {reply.value!r}")
            return reply
        if request is None:
            self.learned(f"{name} answered what no one can read")
        elif request.kind == "ask":
            self._answer(name, request, answer, reply)
        elif reply.mail or set(reply.value) - self.scene.fields[request.kind]:
            self.learned(f"{name} answered {request.kind} with letters, or with more than in the honest run")
        elif request.kind == "propose" and drawn_from(request) != self.scene.drawn_from:
            # Taken with another seed, or with other options, on which no stage depends (the rows of a table, say): a
            # simulation draws other noise for them, so that bytes differ from here on.
            self.loose = True
        return reply

    def _answer(self, name: str, request: Request, answer: bytes, reply: Reply) -> None:
        scene, place = self.scene, (name, request.job, request.seq)
        if place in self.seen:
            if self.seen[place] != answer:
                self.learned(f"{name} gave two answers to {request.stage} {request.seq} of {request.job}")
            return
        self.seen[place] = answer
        self.answered.append(place)
        number = self.asked[name, request.job, request.stage]
        self.asked[name, request.job, request.stage] += 1
        for letter in reply.mail:
            written = self.letters[request.job, *letter_key(letter)]
            written.add(letter.sealed)
            if 0 < scene.letters[letter_key(letter)] < len(written):
                self.learned(f"{name} sent {letter.tag} to {letter.recipient} more often than in the honest run")
        if request.job == JOB and scene.answers.get((name, request.seq)) == answer and not self.loose:
            return
        if request.step.endswith(OPENING):
            values = hashlib.sha256(wire.encode(dict(request.arguments))).hexdigest()
            self.opened[request.job, request.stage, number].add(values)
            if len(self.opened[request.job, request.stage, number]) > 1:
                self.learned(f"holders opened {request.stage} for different values")
        beyond = [
            shape for shape in shapes_of(Exchange(name, request, answer), scene.plan) if shape not in scene.shapes
        ]
        if beyond and self.within_rules(name, request):  # what the plan leaves open may decide how long a letter is
            known = {shape[:-1] for shape in scene.shapes}
            beyond = [shape for shape in beyond if shape[:-1] not in known]
        same_value = wire.encode(reply.value) in scene.values[name, request.stage]
        if beyond:
            self.learned(f"{name} answered {request.stage}, which the honest run does not contain: {beyond[-1]}")
        elif same_value and request.job == JOB and not self.loose:
            return  # a part of the honest run, with other numbers on its letters
        elif self.loose or request.job != JOB or self.within_rules(name, request) or scene.reads_letters(name, request):
            self.loose = True
            self.verdicts.within_rules += 1
        else:
            self.learned(f"{name} answered {request.stage} {request.seq} with another value than in the honest run")

    def within_rules(self, name: str, request: Request) -> bool:
        """Whether a request differs from the honest one in what the plan leaves open, and in nothing else."""
        stage = next((stage for stage in self.scene.plan.stages if stage.name == request.stage), None)
        honest = next(
            (
                exchange.request
                for exchange in self.scene.honest
                if exchange.party == name and exchange.request.kind == "ask" and exchange.request.seq == request.seq
            ),
            None,
        )
        if stage is None or honest is None or not stage.later:
            return False
        return wire.encode(dict(request.arguments)) != wire.encode(dict(honest.arguments))

    def settle(self) -> None:
        """What was answered was debited before, within what was reserved."""
        for name, party in self.scene.parties.items():
            debits = self.scene.debits(name)
            for answered, job, seq in self.answered:
                if answered == name and (job, seq) not in debits:
                    self.learned(f"{name} answered request {seq} of {job} without a debit")
            try:
                party.ledger.verify()
            except ColonnadeError as error:
                self.learned(f"the ledger of {name}: {error}")


# --- deviations of one message --------------------------------------------------------------------------------------


Deviation = tuple[str, Request | bytes]
"""(what is changed, the request that is sent instead)"""


def moved(value: Any, *, depth: int = 3, names: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """(which part, the value with this part changed), for every part of a value; the name of a member or of a column
    becomes another of these `names`."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield f".{name} left out", {key: other for key, other in value.items() if key != name}
            if depth:
                yield from (
                    (f".{name}{path}", {**value, name: other})
                    for path, other in moved(part, depth=depth - 1, names=names)
                )
        yield ".further", {**value, "further": 1}
    elif isinstance(value, bool):
        yield "", not value
    elif isinstance(value, int):
        yield from (("", other) for other in (value + 1, value - 1, -value - 1, 0 if value else 7, 10**9))
    elif isinstance(value, float):
        yield from (
            ("", other) for other in (value * 1.5 + 1, -value - 1.0, 0.0 if value else 7.0, 1e300, float("nan"))
        )
    elif isinstance(value, str):
        yield from (("", other) for other in (value + "x", ""))
        if value in names:
            yield from ((f" {other}", other) for other in names if other != value)
    elif isinstance(value, bytes):
        yield from (("", other) for other in (value + b"x", b"", bytes([value[0] ^ 1]) + value[1:] if value else b"y"))
    elif isinstance(value, (list, tuple)):
        yield "[] longer", [*value, value[-1] if value else 1]
        if value:
            yield "[] shorter", list(value[:-1])
            yield "[] turned", list(value[::-1])
            for place in sorted({0, len(value) - 1}) if depth else ():
                for path, other in moved(value[place], depth=depth - 1, names=names):
                    yield f"[{place}]{path}", [*value[:place], other, *value[place + 1 :]]
    elif isinstance(value, np.ndarray):
        if value.size:
            flat = value.copy()
            flat.flat[0] = flat.flat[0] + 1
            yield "[0]", flat
            yield " shorter", value[:-1]
    elif value is None:
        yield from (("", other) for other in (0, "", True, []))


def of_envelope(request: Request, plan: Plan) -> Iterator[Deviation]:
    """Kind, job, number, stage, step."""
    for kind in ("hello", "check", "propose", "ask", "close", "heads", "other"):
        if kind != request.kind:
            yield f"kind {kind}", replace(request, kind=kind)
    for job in ("", OTHER_JOB, f"{request.job} ", f"{request.job}x", "../x", "x" * 300):
        yield f"job {job[:20]!r}", replace(request, job=job)
    if request.kind == "ask":
        for seq in {0, request.seq - 1, request.seq + 1, request.seq + 2, 10**9, -1} - {request.seq}:
            yield f"seq {seq - request.seq:+d}", replace(request, seq=seq)
    for stage in plan.stages:
        if stage.name != request.stage:
            yield f"stage {stage.name}", replace(request, stage=stage.name)
        if stage.step != request.step:
            yield f"step {stage.step}", replace(request, step=stage.step)
            yield f"stage and step {stage.name}", replace(request, stage=stage.name, step=stage.step)
    for other in ("", "x", "statistics.describe.marginal", "federation.party.Party"):
        yield f"stage {other!r}", replace(request, stage=other)
        yield f"step {other!r}", replace(request, step=other)


def of_arguments(request: Request, scene: Scene) -> Iterator[Deviation]:
    """Every argument, and every field inside one."""
    for path, arguments in moved(dict(request.arguments), depth=6, names=scene.names):
        yield f"arguments{path}", replace(request, arguments=arguments)


def of_mail(request: Request, scene: Scene, name: str, passed: Sequence[Mail]) -> Iterator[Deviation]:
    """Every field of every letter; letters left out, doubled, moved, stale, of another job or for someone else."""
    mail = list(request.mail)
    for place, letter in enumerate(mail):
        others = [*mail[:place], *mail[place + 1 :]]
        yield f"letter {letter.tag} left out", replace(request, mail=others)
        yield f"letter {letter.tag} twice", replace(request, mail=[*mail, letter])

        def instead(what: str, others: list[Mail] = others, letter: Mail = letter, **changed: Any) -> Deviation:
            return f"letter {letter.tag}: {what}", replace(request, mail=[*others, replace(letter, **changed)])

        for member in scene.parties:
            if member != letter.sender:
                yield instead(f"sender {member}", sender=member)
            if member != letter.recipient:
                yield instead(f"recipient {member}", recipient=member)
        for tag in ("", "x", *dict.fromkeys(other.tag for other in mail if other.tag != letter.tag)):
            yield instead(f"tag {tag}", tag=tag)
        for seq in (letter.seq - 1, letter.seq + 1, 0, 10**9):
            yield instead(f"seq {seq - letter.seq:+d}", seq=seq)
        flipped = bytes([letter.sealed[0] ^ 1]) + letter.sealed[1:]
        for what, bytes_sent in (
            ("first byte", flipped),
            ("last byte", letter.sealed[:-1] + bytes([letter.sealed[-1] ^ 1])),
            ("cut", letter.sealed[:-1]),
            ("empty", b""),
        ):
            yield instead(what, sealed=bytes_sent)
        for foreign in of_other_job(scene, letter):
            yield f"letter {letter.tag} of another job", replace(request, mail=[*others, foreign])
    if mail:
        yield "no letters", replace(request, mail=[])
        yield "letters turned", replace(request, mail=mail[::-1])
    own = {(letter.sender, letter.seq, letter.tag, letter.recipient) for letter in mail}
    for letter in passed:
        if (letter.sender, letter.seq, letter.tag, letter.recipient) not in own:
            yield f"letter {letter.tag} for {letter.recipient} once more", replace(request, mail=[*mail, letter])
            for place, replaced in enumerate(mail):
                if (replaced.sender, replaced.recipient) == (
                    letter.sender,
                    letter.recipient,
                ) and letter.tag == replaced.tag:
                    rest = [*mail[:place], *mail[place + 1 :]]
                    yield f"stale letter {letter.tag}", replace(request, mail=[*rest, letter])


def of_other_job(scene: Scene, letter: Mail) -> list[Mail]:
    """The same letter as another job has it."""
    return [
        other
        for exchange in scene.other
        for other in Reply.decode(exchange.answer).mail
        if (other.sender, other.recipient, other.tag, other.seq)
        == (letter.sender, letter.recipient, letter.tag, letter.seq)
    ][:1]


def of_order(scene: Scene, position: int, passed: Sequence[Mail]) -> Iterator[Deviation]:
    """Another request of the run in place of this one: earlier or later ones, as they are or with the next number. No
    letter comes before it was written."""
    here = scene.honest[position]
    written = {letter.sealed for letter in (*passed, *here.request.mail)}
    for other, exchange in enumerate(scene.honest):
        if exchange.party == here.party and other != position:
            when = "later" if other > position else "earlier"
            mail = [letter for letter in exchange.request.mail if letter.sealed in written]
            yield f"{when} {exchange.request.kind} {exchange.request.stage}", replace(exchange.request, mail=mail)
            if exchange.request.kind == here.request.kind == "ask":
                numbered = replace(exchange.request, seq=here.request.seq, mail=mail)
                yield f"{when} {exchange.request.stage} with this number", numbered


def deviations_at(scene: Scene, position: int, passed: Sequence[Mail]) -> Iterator[Deviation]:
    """All deviations of one request of the honest run."""
    exchange = scene.honest[position]
    request = exchange.request
    yield from of_envelope(request, scene.plan)
    yield from of_arguments(request, scene)
    yield from of_mail(request, scene, exchange.party, passed)
    yield from of_order(scene, position, passed)
    if request.kind == "hello":
        for head in ({"rows": 1, "hash": "0" * 64}, {"rows": -1, "hash": ""}, {"rows": 0, "hash": "x"}, 7):
            yield "head", replace(request, arguments={"head": head})
    data = request.encode()
    yield "bytes cut", data[:-1]
    yield "bytes longer", data + b"\x00"


def readable(sent: Request | bytes) -> Request | None:
    if isinstance(sent, Request):
        return sent
    try:
        return Request.decode(sent)
    except ColonnadeError:
        return None


def encoded(sent: Request | bytes) -> bytes | None:
    """None: what the wire cannot carry."""
    if isinstance(sent, bytes):
        return sent
    try:
        return sent.encode()
    except (ColonnadeError, TypeError, ValueError, OverflowError):
        return None


# --- the engine -----------------------------------------------------------------------------------------------------


class Engine:
    """Walks through the honest run of a scene and departs from it, at each request, in chosen ways."""

    def __init__(self, scene: Scene, chance: random.Random, verdicts: Verdicts | None = None) -> None:
        self.scene, self.chance = scene, chance
        self.verdicts = Verdicts() if verdicts is None else verdicts

    def witness(self, deviation: str, passed: Iterable[Mail] = ()) -> Witness:
        return Witness(self.scene, self.verdicts, deviation, passed)

    # one message, then as if nothing had been

    def probe_all(
        self,
        *,
        most: int,
        until: Callable[[], bool] = lambda: False,
        only: Callable[[str], bool] = lambda what: True,
    ) -> None:
        """At every request of the run, up to `most` deviations of this one message; a list that is longer is drawn
        from at random, each kind of deviation first."""
        scene = self.scene
        scene.restore(scene.start)
        passed: list[Mail] = []
        for position, exchange in enumerate(scene.honest):
            if until():
                break
            every = [deviation for deviation in deviations_at(scene, position, passed) if only(deviation[0])]
            chosen = self._chosen(every, most)
            before, records = scene.state(exchange.party), scene.records(exchange.party)
            for what, sent in chosen:
                self._probe(position, what, sent, passed)
                if scene.records(exchange.party) != records:
                    scene.restore(before)
            scene.restore(before)
            answer = scene.say(exchange.party, exchange.request.encode())
            passed += Reply.decode(answer).mail
            if exchange.request.kind == "ask" and scene.case.exact and answer != exchange.answer:
                raise AssertionError(
                    f"{scene.case.name}: {exchange.party} answered {exchange.request.stage} otherwise than before,"
                    f" {Reply.decode(answer).error!r}: the engine cannot compare."
                )
        scene.restore(scene.start)

    def _chosen(self, every: list[Deviation], most: int) -> list[Deviation]:
        """At most so many, one of each kind first; now and then two at once."""
        if len(every) > most:
            kinds: dict[str, list[Deviation]] = defaultdict(list)
            for deviation in every:
                kinds[deviation[0].split(" ")[0].split("[")[0]].append(deviation)
            drawn = [self.chance.choice(same) for same in kinds.values()]
            drawn = self.chance.sample(drawn, min(most, len(drawn)))
            rest = [deviation for deviation in every if deviation not in drawn] if len(every) < 500 else every
            every = drawn + self.chance.sample(rest, max(0, min(most - len(drawn), len(rest))))
        pairs = [pair for pair in (self._both(every) for _ in range(len(every) // 10)) if pair is not None]
        return every + pairs

    def _both(self, every: list[Deviation]) -> Deviation | None:
        """Two deviations in one message, in different fields."""
        (first, one), (second, other) = self.chance.sample(every, 2)
        if not isinstance(one, Request) or not isinstance(other, Request):
            return None
        if first.startswith("arguments"):
            return f"{first} and {second}", replace(other, arguments=one.arguments)
        if first.startswith("letter"):
            return f"{first} and {second}", replace(other, mail=one.mail)
        return None

    def _probe(self, position: int, what: str, sent: Request | bytes, passed: Sequence[Mail]) -> None:
        data = encoded(sent)
        if data is None:
            return
        exchange = self.scene.honest[position]
        place = f"request {position} ({exchange.request.kind} {exchange.request.stage})"
        witness = self.witness(f"{place}: {what}", passed)
        self.verdicts.deviations += 1
        self.verdicts.by_kind["one message"] += 1
        before = peak_bytes()
        witness.hear(exchange.party, readable(sent), self.scene.say(exchange.party, data))
        if (taken := peak_bytes() - before) > MOST_BYTES:
            witness.learned(f"{exchange.party} took {taken / 2**20:,.0f} MB for it")
        witness.settle()

    # a deviation, and then on with the run

    def runs(self, count: int, *, until: Callable[[], bool] = lambda: False) -> None:
        """Whole runs, each with one to three deviations at random places; the coordinator goes on with what it gets."""
        kinds = (self._changed_messages, self._early_close, self._retry, self._mixed_order, self._mixed_jobs)
        for number in range(count):
            if until():
                break
            kinds[number % len(kinds)]()
            self.verdicts.deviations += 1
            self.verdicts.by_kind[kinds[number % len(kinds)].__name__.strip("_").replace("_", " ")] += 1
        self.scene.restore(self.scene.start)

    def _changed_messages(self) -> None:
        """One to three messages of a run are changed; letters go on as they come."""
        scene, chance = self.scene, self.chance
        asks = [place for place, exchange in enumerate(scene.honest) if exchange.request.kind in ("ask", "propose")]
        places = sorted(chance.sample(asks, min(len(asks), chance.choice((1, 1, 2, 3)))))
        wanted: dict[int, Deviation] = {}
        for place in places:
            wanted[place] = chance.choice(list(deviations_at(scene, place, ())))
        self._drive(scene.honest, wanted)

    def _drive(self, exchanges: Sequence[Exchange], wanted: Mapping[int, Deviation]) -> Witness:
        """Ask in this order, with live letters; `wanted` are sent instead."""
        scene = self.scene
        scene.restore(scene.start)
        words = "; ".join(f"request {place}: {what}" for place, (what, _) in wanted.items()) or "another order"
        witness = self.witness(words)
        relayed = Relay(scene)
        for place, exchange in enumerate(exchanges):
            sent: Request | bytes = exchange.request
            if place in wanted:
                sent = wanted[place][1]
            if isinstance(sent, Request) and sent.kind == "ask" and sent.mail == exchange.request.mail:
                sent = replace(sent, mail=relayed.take(exchange.party, sent))
            data = encoded(sent)
            if data is None:
                continue
            reply = witness.hear(exchange.party, readable(sent), scene.say(exchange.party, data))
            relayed.give(reply.mail, sent.job if isinstance(sent, Request) else JOB)
        witness.settle()
        return witness

    def _early_close(self) -> None:
        """Close the job somewhere at some parties, and go on asking."""
        scene, chance = self.scene, self.chance
        place = chance.randrange(len(scene.honest))
        closing = [
            Exchange(name, Request(kind="close", job=JOB, arguments={}), b"")
            for name in scene.parties
            if chance.random() < 0.6
        ]
        order = [*scene.honest[:place], *closing, *scene.honest[place:], *scene.honest[place:]]
        self._drive(order, {})

    def _retry(self) -> None:
        """Stop somewhere, perhaps after an opening, and begin again: the same job, or another one of the same plan.
        With a budget for one run, the other one is refused wherever it would cost something."""
        scene, chance = self.scene, self.chance
        place = chance.randrange(1, len(scene.honest))
        again, budget = chance.choice((scene.honest, scene.other)), chance.random() < 0.5
        with self._budgets() if budget else contextlib.nullcontext():
            witness = self._drive([*scene.honest[:place], *again], {})
        proposed = {exchange.party for exchange in scene.honest[:place] if exchange.request.kind == "propose"}
        if budget and again is scene.other:
            for name, job, seq in witness.answered:
                if job == OTHER_JOB and name in proposed and scene.spent[name] > 0:
                    witness.learned(f"{name} answered request {seq} of a second job, for which it had no budget left")

    @contextlib.contextmanager
    def _budgets(self) -> Iterator[None]:
        """Budgets for one run."""
        parties = self.scene.parties.items()
        before = {name: party.ledger.budget for name, party in parties}
        for name, party in parties:
            party.ledger.budget = Budget(epsilon=max(1.05 * self.scene.spent[name], 1e-9), delta=1e-6)
        try:
            yield
        finally:
            for name, party in parties:
                party.ledger.budget = before[name]

    def _mixed_order(self) -> None:
        """Neighbouring requests exchanged, and some left out."""
        order = list(self.scene.honest)
        for _ in range(self.chance.choice((1, 2, 4))):
            first, second = self.chance.randrange(len(order)), self.chance.randrange(len(order))
            order[first], order[second] = order[second], order[first]
        if self.chance.random() < 0.5:
            del order[self.chance.randrange(len(order))]
        self._drive(order, {})

    def _mixed_jobs(self) -> None:
        """Two jobs of one plan side by side, with letters of the one in the other."""
        scene, chance = self.scene, self.chance
        scene.restore(scene.start)
        witness, relayed = self.witness("letters of one job in another"), Relay(scene)
        first, second = list(scene.honest), list(scene.other)
        while first or second:
            queue = first if first and (not second or chance.random() < 0.5) else second
            exchange = queue.pop(0)
            request = exchange.request
            if request.kind == "ask":
                request = replace(request, mail=relayed.take(exchange.party, request, mixed=chance))
            reply = witness.hear(exchange.party, request, scene.say(exchange.party, request.encode()))
            relayed.give(reply.mail, request.job)
        witness.settle()


class Relay:
    """Letters on their way, by job."""

    def __init__(self, scene: Scene) -> None:
        self.waiting: dict[tuple[str, str], list[Mail]] = defaultdict(list)

    def give(self, letters: Iterable[Mail], job: str = JOB) -> None:
        for letter in letters:
            self.waiting[job, letter.recipient].append(letter)

    def take(self, name: str, request: Request, mixed: random.Random | None = None) -> list[Mail]:
        own = self.waiting.pop((request.job, name), [])
        others = [
            letter
            for (job, recipient), letters in self.waiting.items()
            if recipient == name and job != request.job
            for letter in letters
        ]
        if mixed is None or not others:
            return own
        placed = {(letter.sender, letter.tag): letter for letter in own}
        for letter in others:
            if mixed.random() < 0.3:
                placed[letter.sender, letter.tag] = letter
        return list(placed.values())


# --- members that deviate -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lie:
    """A member changes one number: in what it sends under a tag, or in its answer to a stage."""

    member: str
    where: str
    """A tag without its digests, or the name of a stage."""
    letters: bool


def changed_number(value: Any, chance: random.Random) -> Any:
    """The value with one number, byte or entry changed."""
    if isinstance(value, np.ndarray) and value.size:
        other = value.copy()
        place = chance.randrange(other.size)
        if other.dtype == bool:
            other.flat[place] = not other.flat[place]
        elif np.issubdtype(other.dtype, np.integer):
            other.flat[place] = other.flat[place] - 1 if other.flat[place] > 0 else other.flat[place] + 1
        else:
            other.flat[place] = other.flat[place] + 1
        return other
    if isinstance(value, bytes) and value:
        place = chance.randrange(len(value))
        return value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
    if isinstance(value, Mapping) and value:
        name = chance.choice(list(value))
        return {**value, name: changed_number(value[name], chance)}
    if isinstance(value, (list, tuple)) and value:
        place = chance.randrange(len(value))
        return [*value[:place], changed_number(value[place], chance), *value[place + 1 :]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return value


def lies_of(scene: Scene) -> list[Lie]:
    """Each kind of letter and each kind of answer with a value, of each member."""
    lies: dict[Lie, None] = {}
    for exchange in scene.honest:
        if exchange.request.kind != "ask":
            continue
        reply = Reply.decode(exchange.answer)
        for letter in reply.mail:
            lies[Lie(exchange.party, _HEX.sub("#", letter.tag), True)] = None
        if reply.value is not None:
            lies[Lie(exchange.party, exchange.request.stage, False)] = None
    return list(lies)


def run_with_lie(scene: Scene, lie: Lie, chance: random.Random) -> str:
    """ "noticed", with the error's code; "same", if the result is the honest one; "wrong" otherwise."""
    scene.restore(scene.start)
    send, told = workplace.Workplace.send, [0]

    def lying(me: workplace.Workplace, recipient: str, tag: str, value: Any, **options: Any) -> None:
        if lie.letters and me.name == lie.member and _HEX.sub("#", tag) == lie.where and recipient != me.name:
            told[0] += 1
            if told[0] == 1:
                value = changed_number(value, chance)
        send(me, recipient, tag, value, **options)

    class Lying(Tap):
        def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
            answer = super().exchange(party, data, timeout=timeout)
            request = self.passed[-1].request
            if not lie.letters and party == lie.member and request.stage == lie.where and not told[0]:
                reply = Reply.decode(answer)
                if not reply.error:
                    told[0] += 1
                    return replace(reply, value=changed_number(reply.value, chance)).encode()
            return answer

    transport = Lying(scene.embedded)
    scene.federation.transport, scene.federation._greeted = transport, False
    workplace.Workplace.send = lying  # type: ignore[assignment, method-assign]
    try:
        with named_jobs(JOB):
            result, _ = scene.federation.run(scene.method, sure=True)
    except ColonnadeError as error:
        return f"noticed: {error.code}"
    except Exception as error:  # what the coordinator cannot compute with is noticed too
        return f"noticed: {type(error).__name__}"
    finally:
        workplace.Workplace.send = send  # type: ignore[method-assign]
        scene.federation.transport = scene.embedded
        scene.restore(scene.start)
    return "same" if _same(result.to_dict(), scene.result) else "wrong"


def _same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


# --- parties in processes of their own, and over the network --------------------------------------------------------


class Meddling(Tap):
    """Before some honest requests, a deviating one to the same party. What follows may fail; it may teach nothing."""

    def __init__(self, inner: Transport, scene: Scene, chance: random.Random, verdicts: Verdicts) -> None:
        super().__init__(inner)
        self.scene, self.chance, self.verdicts = scene, chance, verdicts
        self.often = 0.5

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        request = Request.decode(data)
        if self.chance.random() < self.often:
            with self._lock:
                passed = [letter for exchange in self.passed for letter in Reply.decode(exchange.answer).mail]
                kinds = (of_envelope(request, self.scene.plan), of_arguments(request, self.scene))
                letters = of_mail(request, self.scene, party, passed[-20:])
                every = [each for kind in (*kinds, letters) for each in kind if encoded(each[1]) is not None]
                what, sent = self.chance.choice(every)
                bytes_sent = encoded(sent)
                assert bytes_sent is not None
                answer = self.inner.exchange(party, bytes_sent, timeout=timeout)
                self._judge(party, what, readable(sent), answer)
        return super().exchange(party, data, timeout=timeout)

    def _judge(self, party: str, what: str, sent: Request | None, answer: bytes) -> None:
        self.verdicts.deviations += 1
        self.verdicts.by_kind["in a process or on the network"] += 1
        reply = Reply.decode(answer)
        if reply.error:
            self.verdicts.refused[reply.error] += 1
            return
        shapes = [] if sent is None else shapes_of(Exchange(party, sent, answer), self.scene.plan)
        if sent is None or any(shape not in self.scene.shapes for shape in shapes):
            words = f"{party} answered what the honest run does not contain"
            self.verdicts.learned.append(Finding(f"{self.scene.case.name}, remote", what, words))


def remote_runs(
    scene: Scene, transport: str, chance: random.Random, verdicts: Verdicts, until: Callable[[], bool]
) -> int:
    """Runs with parties elsewhere, until the time is over; returns how many there were."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        allow = next(iter(scene.parties.values())).policy.allow
        federation = scene.case.federation(Path(folder), seed=SEED, transport=transport, allow=allow)
        runs = 0
        with federation:
            inner = federation.transport
            while not until():
                meddling = Meddling(inner, scene, chance, verdicts)
                meddling.often = chance.choice((0.1, 0.3, 0.6))
                federation.transport, federation._greeted = meddling, False
                with contextlib.suppress(ColonnadeError):
                    federation.run(scene.method, sure=True)
                runs += 1
            federation.transport = inner
    return runs


@contextlib.contextmanager
def scene_of(case: Case) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder, repeatable_seals():
        scene = Scene(case, Path(folder))
        try:
            yield scene
        finally:
            scene.close()
