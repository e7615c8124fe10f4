"""An engine for hostile coordinators and members: it records an honest run, then departs from it, and compares.

Parties are simulated, on any transport: noise comes from a seed, and seals are made a function of what they seal. So an
honest request has one answer, byte for byte, and the question "did this deviation teach the coordinator anything" has
a plain answer too: every reply that is no refusal must be one that the honest run contains. Party states are put back
after each deviation (`hostile_cast_common`).

Where a deviation keeps to what the plan leaves open (`later`), an answer is compared by what it is: party, stage,
number, fixed arguments, recipients, tags and sizes of letters; and holders must have opened for the same values.

**The list** has each field of each message of the honest run: kind, job, number, stage and step of a request, every
node of its arguments (of a longer list the first entry, the last, and one in between that the run's seed chooses),
every field of every letter; and beside these its place in the order, its bytes, and the same message of another job. A
field is covered when it was changed once, in one of its ways.

**Kinds.** A round of a fit repeats the messages of the round before it, and holders are asked the same. So the list is
covered by strata: first each kind of change of each field of each kind of message once, at one of the requests of this
kind, drawn at random; then the other fields of the list, request by request. A kind of message is its kind, its stage
and its step; a letter's is its tag. Names of stages and tags in the place of another are one kind of change, so are
the names in a proposal, and so are all earlier requests, and all later ones; but each member and each column that an
argument of a request or a letter names in the place of another is a kind of its own: these decide who learns what.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.hostile_cast_common import FORGED, START, Cast, Look, TransportName
from benchmarks.hostile_party_common import HEX, changed_part, parts_of
from colonnade.catalogue import CATALOGUE
from colonnade.errors import ColonnadeError, PartyLost
from colonnade.federation import wire
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Mail, Reply, Request
from colonnade.federation.method import Method
from colonnade.federation.plan import Plan
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.transports import Transport

JOB = "hostile job"
OTHER_JOB = "hostile job again"
BEFORE = "before"
"""The slot of a party's state before a message."""
OPENING = ("open_shares",)
"""Steps of which all holders must be asked with the same values."""


# --- one answer to one request --------------------------------------------------------------------------------------


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
    weight: float = 1.0
    """How long its list is, against that of a short case."""


class Scene:
    """A case on a cast: the honest run of its method, and what it contains. `number` chooses the entries of longer
    lists."""

    def __init__(self, case: Case, cast: Cast, number: int = 0) -> None:
        self.case, self.cast, self.number = case, cast, number
        self.where = f"{case.name} ({cast.transport_name})"
        self.federation, self.parties = cast.federation, cast.parties
        columns = [name for held in self.federation.facts.columns.values() for name in held]
        self.names = (*self.parties, *columns)
        self.method = case.method()
        self.plan: Plan = self.federation.plan(self.method)
        names = {str(leaf["name"]) for cost in self.plan.costs() for leaf in cost.leaves() if leaf.unbounded}
        cast.allow(tuple(sorted(names)))
        cast.restore(START)
        self.other = self._honest(OTHER_JOB)[0]
        cast.restore(START)
        cast.each("sent")  # of this case alone from here on
        self.honest, self.result = self._honest(JOB)
        self.parts: dict[str, dict[str, list[str]]] = cast.each("sent")
        """{party: {tag of its letters: the parts of their values}}."""
        self.spent: dict[str, float] = cast.each("spent")
        """Epsilon of the bounded releases of one run, at each party."""
        cast.restore(START)
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
        self.elsewhere = {
            (letter.sender, letter.recipient, letter.tag, letter.seq): letter
            for exchange in self.other
            for letter in Reply.decode(exchange.answer).mail
        }
        """The letters of the other job."""
        self.passed: list[list[Mail]] = [[]]
        """The letters that were written before each request."""
        for exchange in self.honest:
            self.passed.append([*self.passed[-1], *Reply.decode(exchange.answer).mail])

    def _honest(self, job: str) -> tuple[list[Exchange], Any]:
        tap = Tap(self.cast.transport)
        return tap.passed, self.run(job, tap)

    def run(self, job: str, transport: Transport) -> Any:
        """The result of a whole run, through a transport of the study's own."""
        self.cast.fresh_runs()
        self.federation.transport = transport
        try:
            with named_jobs(job):
                result, _ = self.federation.run(self.method, sure=True)
        finally:
            self.federation.transport = self.cast.transport
        return result.to_dict()

    def reads_letters(self, name: str, request: Request) -> bool:
        """Whether an answer depends on letters that came, so that holding one back changes it. An opening must not."""
        if request.step.endswith(OPENING):
            return False
        return any(
            exchange.request.mail and (exchange.party, exchange.request.stage) == (name, request.stage)
            for exchange in self.honest
        )


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
    return letter.sender, letter.recipient, HEX.sub("#", letter.tag)


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
    mail = [(*place, letter.recipient, HEX.sub("#", letter.tag), len(letter.sealed)) for letter in reply.mail]
    return [place, *mail]


# --- judging a deviating run ----------------------------------------------------------------------------------------


MOST_BYTES = 300 * 2**20
"""Of memory, beyond the largest amount so far, that one message may make a party of these few records take."""


LieKind = tuple[str, bool, str]
"""Tag or stage, whether it is a letter, and the part of its value that is changed."""


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
    kinds_covered: int = 0
    kinds: int = 0
    """Kinds of changes of fields that were made, and all of them."""
    covered: int = 0
    listed: int = 0
    """Fields of the list that were changed, and all of them."""
    lied: int = 0
    """Lies of members."""
    lies: set[LieKind] = field(default_factory=set)
    told: set[LieKind] = field(default_factory=set)
    """Kinds of lies of members, and those that were told."""

    def add(self, other: Verdicts) -> None:
        self.deviations += other.deviations
        self.refused += other.refused
        self.within_rules += other.within_rules
        self.learned += other.learned
        self.wrong += other.wrong
        self.noticed += other.noticed
        self.by_kind += other.by_kind
        self.kinds_covered += other.kinds_covered
        self.kinds += other.kinds
        self.covered += other.covered
        self.listed += other.listed
        self.lied += other.lied


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
        self._passed = passed

    @cached_property
    def letters(self) -> dict[tuple[str, ...], set[bytes]]:
        """Those that were written, by job and place; most deviations are refused and write none."""
        letters: dict[tuple[str, ...], set[bytes]] = defaultdict(set)
        for letter in self._passed:
            letters[JOB, *letter_key(letter)].add(letter.sealed)
        return letters

    def learned(self, what: str) -> None:
        self.verdicts.learned.append(Finding(self.scene.where, self.deviation, what))

    def say(self, name: str, sent: Request | bytes) -> Reply | None:
        """Send, and judge the answer; None for what the wire cannot carry. A party that no longer answers is a
        finding, and the end of the case."""
        data = encoded(sent)
        if data is None:
            return None
        try:
            answer = self.scene.cast.say(name, data)
        except PartyLost as error:
            self.learned(f"{name} is lost: {error}")
            raise
        return self.hear(name, readable(sent), answer)

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
        """What was answered was debited before."""
        debits = {
            name: {(job, seq) for job, seq in self.scene.cast.control(name, "debits")}
            for name in {name for name, _, _ in self.answered}
        }
        for name, job, seq in self.answered:
            if (job, seq) not in debits[name]:
                self.learned(f"{name} answered request {seq} of {job} without a debit")

    def look(self, name: str, before: Look) -> Look:
        """Its ledger is whole, and it has neither taken much memory nor ended."""
        now = self.scene.cast.look(name, before.records[0])
        if now.broken:
            self.learned(f"the ledger of {name}: {now.broken}")
        if now.peak - before.peak > MOST_BYTES:
            self.learned(f"{name} took {(now.peak - before.peak) / 2**20:,.0f} MB for it")
        if now.process != self.scene.cast.processes[name]:
            self.learned(f"the process of {name} ended, and started again")
            raise PartyLost(f"the process of {name} ended.")
        return now


# --- deviations of one message --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deviation:
    """A request that is sent in place of an honest one: which field differs, and in which way."""

    field: str
    way: str
    sent: Request | bytes
    change: str = ""
    """The kind of change, if it has other ways too."""

    def __str__(self) -> str:
        return f"{self.field}: {self.way}"

    def kind(self, request: Request) -> Kind:
        """Of this change, in place of this request."""
        return request.kind, request.stage, request.step, SENDER.sub("", self.field), self.change or self.way


Kind = tuple[str, ...]
SENDER = re.compile(r" of [\w-]+(?=$|: \w+$)")
"""At the end of the name of a letter, before its field."""
OTHER_NAME = "another name"


def moved(
    value: Any, *, chance: random.Random, depth: int = 3, names: Collection[str] = ()
) -> Iterator[tuple[str, str, Any]]:
    """(which part, in which way, the value with this part changed), for every part of a value; the name of a member or
    of a column becomes another of these `names`."""

    def inside(part: Any) -> Iterator[tuple[str, str, Any]]:
        return moved(part, chance=chance, depth=depth - 1, names=names) if depth else iter(())

    if isinstance(value, Mapping):
        for name, part in value.items():
            yield f".{name}", "left out", {key: other for key, other in value.items() if key != name}
            yield from ((f".{name}{path}", way, {**value, name: other}) for path, way, other in inside(part))
        yield "", "further", {**value, "further": 1}
    elif isinstance(value, bool):
        yield "", "not", not value
    elif isinstance(value, int):
        others = {"+1": value + 1, "-1": value - 1, "negative": -value - 1, "huge": 10**9, "beyond 64 bits": 2**70}
        yield from (("", way, other) for way, other in others.items())
        yield "", "zero", 0 if value else 7
    elif isinstance(value, float):
        numbers = {"larger": value * 1.5 + 1, "negative": -value - 1.0, "huge": 1e300, "nan": float("nan")}
        yield from (("", way, other) for way, other in numbers.items())
        yield "", "zero", 0.0 if value else 7.0
    elif isinstance(value, str):
        texts = {"longer": value + "x", "empty": "", "a line for the log": f"{value}\n{FORGED}"}
        yield from (("", way, other) for way, other in texts.items())
        if value in names:
            yield from (("", other, other) for other in names if other != value)
    elif isinstance(value, bytes):
        flipped = bytes([value[0] ^ 1]) + value[1:] if value else b"y"
        yield from (("", way, other) for way, other in (("longer", value + b"x"), ("empty", b""), ("a bit", flipped)))
    elif isinstance(value, (list, tuple)):
        yield "", "longer", [*value, value[-1] if value else 1]
        if value:
            yield "", "shorter", list(value[:-1])
            yield "", "turned", list(value[::-1])
            places = {"first": 0, "last": len(value) - 1}
            if len(value) > 2:
                places["between"] = chance.randrange(1, len(value) - 1)
            for entry, place in places.items() if len(value) > 1 else (("first", 0),):
                for path, way, other in inside(value[place]):
                    yield f"[{entry}]{path}", way, [*value[:place], other, *value[place + 1 :]]
    elif isinstance(value, np.ndarray):
        if value.size:
            flat = value.copy()
            flat.flat[0] = not flat.flat[0] if flat.dtype == bool else flat.flat[0] + 1
            yield "", "first number", flat
            if value.ndim:
                yield "", "shorter", value[:-1]
    elif value is None:
        yield from (("", repr(other), other) for other in (0, "", True, []))


def _numbers(seq: int) -> dict[str, int]:
    steps = {"-1": seq - 1, "+1": seq + 1, "+2": seq + 2}
    return {**steps, "zero": 0, "negative": -1, "huge": 10**9, "beyond 64 bits": 2**70}


def of_envelope(request: Request, plan: Plan) -> Iterator[Deviation]:
    """Kind, job, number, stage, step."""
    for kind in ("hello", "check", "propose", "ask", "close", "heads", "other"):
        if kind != request.kind:
            yield Deviation("kind", kind, replace(request, kind=kind))
    for job in ("", OTHER_JOB, f"{request.job} ", f"{request.job}x", "../x", "x" * 300, f"{request.job}\n{FORGED}"):
        if job != request.job:
            yield Deviation("job", repr(job[:20]), replace(request, job=job))
    for way, seq in _numbers(request.seq).items():
        if request.kind == "ask" and seq != request.seq:
            yield Deviation("seq", way, replace(request, seq=seq))
    for stage in plan.stages:
        if stage.name != request.stage:
            yield Deviation("stage", stage.name, replace(request, stage=stage.name), OTHER_NAME)
        if stage.step != request.step:
            yield Deviation("step", stage.step, replace(request, step=stage.step), OTHER_NAME)
            both = replace(request, stage=stage.name, step=stage.step)
            yield Deviation("stage and step", stage.name, both, OTHER_NAME)
    for other in ("", "x", "statistics.describe.marginal", "federation.party.Party", f"x\n{FORGED}"):
        yield Deviation("stage", repr(other), replace(request, stage=other))
        yield Deviation("step", repr(other), replace(request, step=other))


def of_arguments(request: Request, scene: Scene, chance: random.Random) -> Iterator[Deviation]:
    """Every argument, and every field inside one."""
    for path, way, arguments in moved(dict(request.arguments), chance=chance, depth=6, names=scene.names):
        change = OTHER_NAME if way in scene.names and request.kind != "ask" else way
        yield Deviation(f"arguments{path}", way, replace(request, arguments=arguments), change)
    if request.kind == "hello":
        for head in ({"rows": 1, "hash": "0" * 64}, {"rows": -1, "hash": ""}, {"rows": 2**70, "hash": "x"}, 7):
            yield Deviation("arguments.head", str(head)[:20], replace(request, arguments={"head": head}))


def of_plans(request: Request, scene: Scene) -> Iterator[Deviation]:
    """Another method's name on the plan, and plans within the plan: its steps, each by itself, as a job of steps."""
    if request.kind not in ("check", "propose"):
        return
    arguments = dict(request.arguments)
    plan = arguments["plan"]
    for name in CATALOGUE.names:
        if name != plan["method"]:
            other = {**arguments, "plan": {**plan, "method": name}}
            yield Deviation("arguments.plan.method", name, replace(request, arguments=other), OTHER_NAME)
    for stage in scene.plan.stages:
        alone = {**arguments, "plan": plan_of_steps([stage]).to_dict()}
        yield Deviation("a plan within the plan", stage.name, replace(request, arguments=alone), "a stage")


TAGS = ("", "x", f"x\n{FORGED}")
"""That no letter has."""


def of_mail(request: Request, scene: Scene, passed: Sequence[Mail]) -> Iterator[Deviation]:
    """Every field of every letter; letters left out, doubled, moved, stale, of another job or for someone else."""
    mail = list(request.mail)
    for place, letter in enumerate(mail):
        others = [*mail[:place], *mail[place + 1 :]]
        name = f"letter {HEX.sub('#', letter.tag)} of {letter.sender}"
        yield Deviation(name, "left out", replace(request, mail=others))
        yield Deviation(name, "twice", replace(request, mail=[*mail, letter]))
        for foreign in of_other_job(scene, letter):
            yield Deviation(name, "of another job", replace(request, mail=[*others, foreign]))
        flipped = bytes([letter.sealed[0] ^ 1]) + letter.sealed[1:]
        changes: dict[str, dict[str, Any]] = {
            "sender": {member: member for member in scene.parties},
            "recipient": {member: member for member in scene.parties},
            "tag": {tag: tag for tag in (*TAGS, *dict.fromkeys(other.tag for other in mail))},
            "seq": _numbers(letter.seq),
            "sealed": {
                "first byte": flipped,
                "last byte": letter.sealed[:-1] + bytes([letter.sealed[-1] ^ 1]),
                "cut": letter.sealed[:-1],
                "empty": b"",
            },
        }
        for part, ways in changes.items():
            for way, value in ways.items():
                if value != getattr(letter, part):
                    forged = replace(letter, **{part: value})
                    change = OTHER_NAME if part == "tag" and way not in TAGS else way
                    yield Deviation(f"{name}: {part}", way, replace(request, mail=[*others, forged]), change)
    if mail:
        yield Deviation("letters", "none", replace(request, mail=[]))
        yield Deviation("letters", "turned", replace(request, mail=mail[::-1]))
    own = {(letter.sender, letter.seq, letter.tag, letter.recipient) for letter in mail}
    for letter in passed:
        if (letter.sender, letter.seq, letter.tag, letter.recipient) not in own:
            once_more = f"{letter.tag} for {letter.recipient}"
            yield Deviation("a letter once more", once_more, replace(request, mail=[*mail, letter]), "a letter")
            for place, replaced in enumerate(mail):
                if (replaced.sender, replaced.recipient) == (
                    letter.sender,
                    letter.recipient,
                ) and letter.tag == replaced.tag:
                    rest = [*mail[:place], *mail[place + 1 :]]
                    yield Deviation("a stale letter", letter.tag, replace(request, mail=[*rest, letter]), "a letter")


def of_other_job(scene: Scene, letter: Mail) -> list[Mail]:
    """The same letter as another job has it."""
    found = scene.elsewhere.get((letter.sender, letter.recipient, letter.tag, letter.seq))
    return [] if found is None else [found]


def of_order(scene: Scene, position: int, passed: Sequence[Mail]) -> Iterator[Deviation]:
    """Another request of the run in place of this one: earlier or later ones, as they are or with the next number; or
    the same request of another job. No letter comes before it was written."""
    here = scene.honest[position]
    written = {letter.sealed for letter in (*passed, *here.request.mail)}
    for other, exchange in enumerate(scene.honest):
        if exchange.party == here.party and other != position:
            when = "later" if other > position else "earlier"
            mail = [letter for letter in exchange.request.mail if letter.sealed in written]
            moved_here = replace(exchange.request, mail=mail)
            words = f"{exchange.request.kind} {exchange.request.stage}"
            yield Deviation(f"{when} request", words, moved_here, "a request")
            if exchange.request.kind == here.request.kind == "ask":
                numbered = replace(exchange.request, seq=here.request.seq, mail=mail)
                words = f"{when} request with this number"
                yield Deviation(words, exchange.request.stage, numbered, "a request")
    if here.request.job:
        for exchange in scene.other:
            same = (exchange.party, exchange.request.kind, exchange.request.seq) == (
                here.party,
                here.request.kind,
                here.request.seq,
            )
            if same:
                yield Deviation("of another job", "as it is", exchange.request)
                yield Deviation("of another job", "as of this one", replace(exchange.request, job=here.request.job))


def deviations_at(scene: Scene, position: int, passed: Sequence[Mail]) -> Iterator[Deviation]:
    """All deviations of one request of the honest run."""
    request = scene.honest[position].request
    chance = random.Random(f"{scene.number} {position}")
    yield from of_envelope(request, scene.plan)
    yield from of_arguments(request, scene, chance)
    yield from of_plans(request, scene)
    yield from of_mail(request, scene, passed)
    yield from of_order(scene, position, passed)
    data = request.encode()
    yield Deviation("bytes", "cut", data[:-1])
    yield Deviation("bytes", "longer", data + b"\x00")


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


def _can_be_sent(deviation: Deviation) -> bool:
    return encoded(deviation.sent) is not None


# --- the engine -----------------------------------------------------------------------------------------------------


PLANNING = 3
"""How many times longer a party takes to refuse a plan, which it makes itself, than a request."""
SLACK = 1.5
"""A request may take so many times its share of the time: most take less."""


class Engine:
    """Walks through the honest run of a scene and departs from it, at each request, in chosen ways."""

    def __init__(self, scene: Scene, chance: random.Random, verdicts: Verdicts | None = None) -> None:
        self.scene, self.chance = scene, chance
        self.verdicts = Verdicts() if verdicts is None else verdicts

    def witness(self, deviation: str, passed: Iterable[Mail] = ()) -> Witness:
        return Witness(self.scene, self.verdicts, deviation, passed)

    # one message, then as if nothing had been

    def cover(
        self, end: float = math.inf, *, kinds_end: float = math.inf, only: Callable[[str], bool] = lambda what: True
    ) -> None:
        """The list: first each kind once, until `kinds_end`; then at every request each of the other fields once, in
        one of its ways, in a random order. Where the time until `end` does not do for these, each request gets the
        share of its fields."""
        honest, places = self.scene.honest, dict[Kind, list[tuple[int, int]]]()
        fields: list[list[str]] = []
        """Of each deviation of each request."""
        for position, exchange in enumerate(honest):
            fields.append([])
            for number, deviation in enumerate(self._deviations_at(position)):
                fields[-1].append(deviation.field)
                if only(deviation.field):
                    places.setdefault(deviation.kind(exchange.request), []).append((position, number))
        first: dict[int, list[int]] = defaultdict(list)
        for found in places.values():
            position, number = self.chance.choice(found)
            first[position].append(number)
        left = [{name for name in named if only(name)} for named in fields]
        self.verdicts.kinds += len(places)
        self.verdicts.listed += sum(map(len, left))

        def kinds_at(position: int) -> list[Deviation]:
            all_here = list(self._deviations_at(position)) if position in first else []
            return self._mixed(all_here[number] for number in first[position])

        def others_at(position: int) -> list[Deviation]:
            """Of the fields that no kind has changed here."""
            ways = {name: each for name, each in self._fields_at(position, only).items() if name in left[position]}
            return self._mixed(next(filter(_can_be_sent, self._mixed(each)), each[0]) for each in ways.values())

        def did(position: int, deviation: Deviation, sent: bool) -> bool:
            self.verdicts.covered += sent and deviation.field in left[position]
            if sent:
                left[position].discard(deviation.field)
            return sent

        def did_kind(position: int, deviation: Deviation, sent: bool) -> None:
            """What the wire cannot carry is no change that a coordinator can make."""
            self.verdicts.kinds_covered += did(position, deviation, sent)
            self.verdicts.kinds -= not sent

        def weights(counts: Iterable[int]) -> list[int]:
            planning = [PLANNING if exchange.request.kind in ("check", "propose") else 1 for exchange in honest]
            return [count * times for count, times in zip(counts, planning, strict=True)]

        self._walk(kinds_at, weights(len(first[place]) for place in range(len(honest))), kinds_end, did_kind)
        if any(left):
            self._walk(others_at, weights(map(len, left)), end, did)

    def _mixed(self, deviations: Iterable[Deviation]) -> list[Deviation]:
        mixed = list(deviations)
        self.chance.shuffle(mixed)
        return mixed

    def _deviations_at(self, position: int) -> Iterator[Deviation]:
        return deviations_at(self.scene, position, self.scene.passed[position])

    def _fields_at(self, position: int, only: Callable[[str], bool]) -> dict[str, list[Deviation]]:
        fields: dict[str, list[Deviation]] = defaultdict(list)
        for deviation in self._deviations_at(position):
            if only(deviation.field):
                fields[deviation.field].append(deviation)
        return fields

    def probe_all(self, *, most: int, end: float = math.inf, only: Callable[[str], bool] = lambda what: True) -> None:
        """At every request of the run, up to `most` deviations of this one message; a list that is longer is drawn
        from at random, each field first."""

        def drawn(position: int) -> list[Deviation]:
            return self._chosen(self._fields_at(position, only), most)

        self._walk(drawn, [1] * len(self.scene.honest), end)

    def _walk(
        self,
        chosen: Callable[[int], list[Deviation]],
        weights: Sequence[int],
        end: float,
        did: Callable[[int, Deviation, bool], object] = lambda place, deviation, sent: None,
    ) -> None:
        """Through the honest run with the deviations that are chosen at each request, which gets the share of its
        weight of the time; `did` hears of each deviation, and whether it could be sent."""
        scene, cast, left = self.scene, self.scene.cast, sum(weights)
        cast.restore(START)
        written: list[Mail] = []
        """Letters of this walk: not those of the first run, where keys are drawn anew each time."""
        for position, exchange in enumerate(scene.honest):
            begun = time.monotonic()
            if begun > end:
                break
            share = min(1.0, SLACK * weights[position] / max(left, 1))
            due = begun + share * (end - begun) if share and end < math.inf else end
            left -= weights[position]
            if weights[position]:
                for deviation, sent in self._probe(position, chosen(position), due, written):
                    did(position, deviation, sent)
            answer = cast.say(exchange.party, exchange.request.encode())
            written += Reply.decode(answer).mail
            if exchange.request.kind == "ask" and scene.case.exact and answer != exchange.answer:
                raise AssertionError(
                    f"{scene.case.name}: {exchange.party} answered {exchange.request.stage} otherwise than before,"
                    f" {Reply.decode(answer).error!r}: the engine cannot compare."
                )
        cast.restore(START)

    def _chosen(self, fields: dict[str, list[Deviation]], most: int) -> list[Deviation]:
        """At most so many, of different fields first; now and then two at once."""
        ways = [deviation for same in fields.values() for deviation in same]
        if len(ways) > most:
            drawn = [self.chance.choice(same) for same in fields.values()]
            drawn = self.chance.sample(drawn, min(most, len(drawn)))
            ways = drawn + self.chance.sample(ways, max(0, most - len(drawn)))
        pairs = [pair for pair in (self._both(ways) for _ in range(len(ways) // 10)) if pair is not None]
        return ways + pairs

    def _both(self, ways: list[Deviation]) -> Deviation | None:
        """Two deviations in one message, in different fields."""
        first, second = self.chance.sample(ways, 2)
        if not isinstance(first.sent, Request) or not isinstance(second.sent, Request):
            return None
        both = (f"{first} and", str(second))
        if first.field.startswith("arguments"):
            return Deviation(*both, replace(second.sent, arguments=first.sent.arguments))
        if first.field.startswith("letter"):
            return Deviation(*both, replace(second.sent, mail=first.sent.mail))
        return None

    def _probe(
        self, position: int, deviations: Sequence[Deviation], due: float, written: Sequence[Mail]
    ) -> list[tuple[Deviation, bool]]:
        """Each of them in place of one request of the honest run, until it is `due`; with whether it could be sent."""
        scene, cast = self.scene, self.scene.cast
        exchange = scene.honest[position]
        name, place = exchange.party, f"request {position} ({exchange.request.kind} {exchange.request.stage})"
        done: list[tuple[Deviation, bool]] = []
        if not deviations:
            return done
        cast.save(BEFORE, name)
        before = cast.look(name)
        for deviation in deviations:
            if time.monotonic() > due:
                break
            witness = self.witness(f"{place}: {deviation}", written)
            done.append((deviation, witness.say(name, deviation.sent) is not None))
            if not done[-1][1]:
                continue
            now = witness.look(name, before)
            witness.settle()
            if now.records != before.records:
                cast.restore(BEFORE, name)
            before = replace(before, peak=now.peak)
        cast.restore(BEFORE, name)
        sent = sum(each for _, each in done)
        self.verdicts.deviations += sent
        self.verdicts.by_kind["one message"] += sent
        return done

    # a deviation, and then on with the run

    def runs(self, count: int, *, until: Callable[[], bool] = lambda: False) -> None:
        """Whole runs, with one to three deviations at random places, or another order, or another job beside it; the
        coordinator goes on with what it gets."""
        kinds = (self._changed_messages, self._early_close, self._retry, self._mixed_order, self._mixed_jobs)
        for number in range(count):
            if until():
                break
            kinds[number % len(kinds)]()
            self.verdicts.deviations += 1
            self.verdicts.by_kind[kinds[number % len(kinds)].__name__.strip("_").replace("_", " ")] += 1
        self.scene.cast.restore(START)

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
        words = "; ".join(f"request {place}: {deviation}" for place, deviation in wanted.items()) or "another order"
        with self._whole_run(words) as witness:
            relayed = Relay()
            for place, exchange in enumerate(exchanges):
                sent: Request | bytes = wanted[place].sent if place in wanted else exchange.request
                if isinstance(sent, Request) and sent.kind == "ask" and sent.mail == exchange.request.mail:
                    sent = replace(sent, mail=relayed.take(exchange.party, sent))
                reply = witness.say(exchange.party, sent)
                if reply is not None:
                    relayed.give(reply.mail, sent.job if isinstance(sent, Request) else JOB)
        return witness

    @contextlib.contextmanager
    def _whole_run(self, words: str) -> Iterator[Witness]:
        """From the first state of the parties; when it ends, all of them are looked at."""
        cast, witness = self.scene.cast, self.witness(words)
        cast.restore(START)
        before = {name: cast.look(name) for name in cast.parties}
        yield witness
        witness.settle()
        for name, look in before.items():
            witness.look(name, look)

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
        cast = self.scene.cast
        for name in cast.parties:
            cast.control(name, "budget", epsilon=max(1.05 * self.scene.spent[name], 1e-9))
        try:
            yield
        finally:
            cast.each("budget", epsilon=None)

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
        first, second, relayed = list(scene.honest), list(scene.other), Relay()
        with self._whole_run("letters of one job in another") as witness:
            while first or second:
                queue = first if first and (not second or chance.random() < 0.5) else second
                exchange = queue.pop(0)
                request = exchange.request
                if request.kind == "ask":
                    request = replace(request, mail=relayed.take(exchange.party, request, mixed=chance))
                reply = witness.say(exchange.party, request)
                assert reply is not None
                relayed.give(reply.mail, request.job)


class Relay:
    """Letters on their way, by job."""

    def __init__(self) -> None:
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
    part: str = ""
    """Of the value, if it has names."""

    @property
    def kind(self) -> LieKind:
        return self.where, self.letters, self.part


def lies_of(scene: Scene) -> list[Lie]:
    """Each part of each kind of letter and of each kind of answer with a value, of each member."""
    lies: dict[Lie, None] = {}
    for exchange in scene.honest:
        if exchange.request.kind != "ask":
            continue
        reply = Reply.decode(exchange.answer)
        for letter in reply.mail:
            role = HEX.sub("#", letter.tag)
            for part in scene.parts[exchange.party].get(role, ()):
                lies[Lie(exchange.party, role, True, part)] = None
        for part in parts_of(reply.value):
            lies[Lie(exchange.party, exchange.request.stage, False, part)] = None
    return list(lies)


NOT_TOLD = "not told"


def run_with_lie(scene: Scene, lie: Lie, chance: random.Random) -> str:
    """ "noticed", with the error's code; "same", if the result is the honest one; "wrong" otherwise; or "not told": the
    run had no place for it."""
    cast = scene.cast
    cast.restore(START)
    if lie.letters:
        cast.control(lie.member, "lie", tag=lie.where, part=lie.part, seed=chance.randrange(2**31))
    told: list[bool] = []

    class Lying(Tap):
        def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
            answer = super().exchange(party, data, timeout=timeout)
            request = self.passed[-1].request
            if not lie.letters and party == lie.member and request.stage == lie.where and not told:
                reply = Reply.decode(answer)
                if not reply.error and lie.part in parts_of(reply.value):
                    told.append(True)
                    return replace(reply, value=changed_part(reply.value, lie.part, chance)).encode()
            return answer

    try:
        result = scene.run(JOB, Lying(cast.transport))
        outcome = "same" if repr(result) == repr(scene.result) else "wrong"
    except ColonnadeError as error:
        outcome = f"noticed: {error.code}"
    except Exception as error:  # what the coordinator cannot compute with is noticed too
        outcome = f"noticed: {type(error).__name__}"
    if lie.letters:
        told.extend([True] * cast.control(lie.member, "told"))
    cast.restore(START)
    return outcome if told else NOT_TOLD


@contextlib.contextmanager
def scene_of(case: Case, transport: TransportName = "embedded", *, prepare: str = "") -> Iterator[Scene]:
    """A case on a cast of its own."""
    with contextlib.closing(Cast(case.federation, transport, prepare=prepare)) as cast:
        yield Scene(case, cast)
