"""A party that the hostile study watches, in the study's own process or in one of its own.

It is the party of the transport with three additions, without which a deviation could not be compared with the honest
run: ephemeral keys of seals are a function of what is sealed, so that an honest request has one answer, byte for byte;
its records can be put back as they were; and it can be made to lie. The study asks for these with messages that begin
with `MARK`, which no message of the wire format does.

    python -m benchmarks.hostile_party_common (processes | network) PREPARE HOME [...]     one party's process
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import sqlite3
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from colonnade.errors import ColonnadeError
from colonnade.federation import wire, workplace
from colonnade.federation.party import Party
from colonnade.privacy.ledger import Budget, _Tally, against
from colonnade.secure import sealed
from colonnade.secure.sealed import Identity

MARK = b"study "
HEX = re.compile(r"[0-9a-f]{32,}")
"""A digest inside a tag."""

_saved: dict[tuple[str, str], tuple[sqlite3.Connection, dict[str, Any], dict[str, _Tally]]] = {}
"""{(home, slot): a copy of the party's records, in memory; what its process has read of them, by attribute; and what
it has added up of its ledger}."""
_READ = ("_approved", "_seeds", "_remembered")
_lies: dict[str, tuple[str, str, random.Random]] = {}
"""{home: the tag of the letter in which its party changes one number, the part of its value, and where the number comes
from}."""
_parts: dict[str, dict[str, list[str]]] = {}
"""{home: {tag: the parts of the value}} of the letters that its party has sent."""


_watchers: list[object] = []
_unwatch: list[Callable[[], None]] = []


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """All parties of this process are watched, as long as anyone does."""
    watcher = object()
    if not _watchers:
        _unwatch.append(_watch())
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
        if not _watchers:
            _unwatch.pop()()


def _watch() -> Callable[[], None]:
    """Begins; call what is returned to end it."""
    handle, seal, send = Party.handle, workplace.seal, workplace.Workplace.send

    def watched(party: Party, data: bytes) -> bytes:
        if not data.startswith(MARK):
            return handle(party, data)
        stated = wire.decode(data[len(MARK) :])
        with party._one_at_a_time:
            try:
                return wire.encode({"done": _DONE[stated.pop("do")](party, **stated)})
            except Exception as error:  # the study's own mistake must not look like a party that was lost
                return wire.encode({"failed": f"{type(error).__name__}: {error}"})

    def repeatable(sender: Identity, recipient: bytes, plaintext: bytes, *, context: bytes) -> bytes:
        material = hashlib.sha256(b"ephemeral" + recipient + context + plaintext).digest()
        generate = sealed.Identity.generate
        sealed.Identity.generate = classmethod(  # type: ignore[method-assign]
            lambda cls: cls(X25519PrivateKey.from_private_bytes(material))
        )
        try:
            return seal(sender, recipient, plaintext, context=context)
        finally:
            sealed.Identity.generate = generate  # type: ignore[method-assign]

    def lying(me: workplace.Workplace, recipient: str, tag: str, value: Any, **options: Any) -> None:
        lie, role = _lies.get(str(me.home)), HEX.sub("#", tag)
        if recipient != me.name:
            known = _parts.setdefault(str(me.home), {}).setdefault(role, [])
            known += [part for part in parts_of(value) if part not in known]
        if lie is not None and recipient != me.name and role == lie[0] and lie[1] in parts_of(value):
            del _lies[str(me.home)]  # told once
            value = changed_part(value, lie[1], lie[2])
        send(me, recipient, tag, value, **options)

    Party.handle = watched  # type: ignore[method-assign]
    workplace.seal = repeatable  # type: ignore[attr-defined]
    workplace.Workplace.send = lying  # type: ignore[assignment, method-assign]

    def end() -> None:
        Party.handle = handle  # type: ignore[method-assign]
        workplace.seal = seal  # type: ignore[attr-defined]
        workplace.Workplace.send = send  # type: ignore[method-assign]

    return end


# --- what the study asks of a party that it watches -----------------------------------------------------------------


def _save(party: Party, slot: str) -> None:
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    party.database._connection.backup(copy)
    read = {name: dict(getattr(party, name)) for name in _READ}
    tallies = {job: _copied(tally, 0) for job, tally in party.ledger._tallies.items()}
    if (str(party.home), slot) in _saved:
        _saved[str(party.home), slot][0].close()
    _saved[str(party.home), slot] = copy, read, tallies


def _copied(tally: _Tally, rollbacks: int) -> _Tally:
    return replace(
        tally,
        rollbacks=rollbacks,
        requests=dict(tally.requests),
        reserved=dict(tally.reserved),
        spent={stage: Counter(costs) for stage, costs in tally.spent.items()},
        numbers=dict(tally.numbers),
    )


def _restore(party: Party, slot: str) -> None:
    """Put the records back, and what the process had read of them: to read them again, and to make the plan of a job
    again, took a third of the time of a deviation."""
    records, read, tallies = _saved[str(party.home), slot]
    records.backup(party.database._connection)
    party.database.rollbacks += 1
    for name, value in read.items():
        setattr(party, name, dict(value))
    copies = {job: _copied(tally, party.database.rollbacks) for job, tally in tallies.items()}
    party.ledger._tallies = OrderedDict(copies)
    _lies.pop(str(party.home), None)
    shutil.rmtree(party.home / "scratch", ignore_errors=True)


def _look(party: Party, since: int) -> dict[str, Any]:
    """What a refusal must not change (the ledger's head and the states of jobs), the process and the most memory that
    it has taken, and, if the ledger has changed `since`, what is wrong with it."""
    head, broken = party.ledger.chain.head(), ""
    if head.rows != since:
        try:
            party.ledger.verify()
        except ColonnadeError as error:
            broken = str(error)
    jobs = [list(row) for row in party.database.execute("SELECT job, state FROM jobs ORDER BY job")]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"records": [head.rows, head.hash, jobs], "process": os.getpid(), "peak": peak, "broken": broken}


def _debits(party: Party) -> list[list[Any]]:
    """(job, number) of all debits."""
    return [[row.body["job"], row.body["seq"]] for row in party.ledger.chain.rows(kind="debit")]


def _spent(party: Party) -> float:
    """Epsilon of the bounded releases so far."""
    return against(Budget(epsilon=1e9, delta=1e-6), party.ledger.costs()).epsilon


def _rule(party: Party, allow: list[str], authority: str) -> None:
    """Unbounded releases that the party allows, and the certificate by which it verifies who asks (empty: none)."""
    party.policy = replace(party.policy, allow=tuple(allow))
    party.approvals = replace(party.approvals, policy=party.policy)
    party._authority = Path(authority) if authority else None
    _settle(party, authority=authority or None)


def _budget(party: Party, epsilon: float | None) -> None:
    party.ledger.budget = None if epsilon is None else Budget(epsilon=epsilon, delta=1e-6)
    party.policy = replace(party.policy, budget=party.ledger.budget)
    _settle(party)


def _settle(party: Party, **settings: Any) -> None:
    """In its file too: a party that serves opens itself again after an alignment."""
    file = party.home / "party.json"
    stated = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**stated, "policy": party.policy.to_dict(), **settings}), encoding="utf-8")


def _lie(party: Party, tag: str, part: str, seed: int) -> None:
    _lies[str(party.home)] = (tag, part, random.Random(seed))


def _told(party: Party) -> bool:
    return str(party.home) not in _lies


def _sent(party: Party) -> dict[str, list[str]]:
    """The parts of the letters that it has sent since this was last asked."""
    return _parts.pop(str(party.home), {})


def _forget(party: Party) -> None:
    for place in [place for place in _saved if place[0] == str(party.home)]:
        _saved.pop(place)[0].close()


_DONE: Mapping[str, Callable[..., Any]] = {
    "save": _save,
    "restore": _restore,
    "look": _look,
    "debits": _debits,
    "spent": _spent,
    "rule": _rule,
    "budget": _budget,
    "lie": _lie,
    "told": _told,
    "sent": _sent,
    "forget": _forget,
}


def changeable(value: Any) -> bool:
    """Whether there is a number in it, a byte or a truth value."""
    if isinstance(value, Mapping):
        return any(changeable(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return any(changeable(part) for part in value)
    if isinstance(value, np.ndarray):
        return value.size > 0
    return bool(value) if isinstance(value, bytes) else isinstance(value, (int, float))


def parts_of(value: Any) -> list[str]:
    """The names of what can be changed in a value; one without names has the part ""."""
    if not isinstance(value, Mapping):
        return [""] if changeable(value) else []
    return [str(name) for name, part in value.items() if changeable(part)]


def changed_part(value: Any, part: str, chance: random.Random) -> Any:
    """The value with one number of this part changed."""
    if not isinstance(value, Mapping):
        return changed_number(value, chance)
    return {name: changed_number(held, chance) if str(name) == part else held for name, held in value.items()}


def changed_number(value: Any, chance: random.Random) -> Any:
    """The value with one number, byte or truth value changed."""
    if isinstance(value, np.ndarray):
        other = value.copy()
        place = chance.randrange(other.size)
        if other.dtype == bool:
            other.flat[place] = not other.flat[place]
        elif np.issubdtype(other.dtype, np.integer):
            other.flat[place] = other.flat[place] - 1 if other.flat[place] > 0 else other.flat[place] + 1
        else:
            other.flat[place] = other.flat[place] + 1
        return other
    if isinstance(value, bytes):
        place = chance.randrange(len(value))
        return value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
    if isinstance(value, Mapping):
        name = chance.choice([name for name, part in value.items() if changeable(part)])
        return {**value, name: changed_number(value[name], chance)}
    if isinstance(value, (list, tuple)):
        place = chance.choice([place for place, part in enumerate(value) if changeable(part)])
        return [*value[:place], changed_number(value[place], chance), *value[place + 1 :]]
    return not value if isinstance(value, bool) else value + 1


# --- the process of one party ---------------------------------------------------------------------------------------


def main() -> None:
    """`PREPARE` is empty, or the `module:function` that plants a bug in this process before the party opens."""
    transport, prepare, *rest = sys.argv[1:]
    if prepare:
        module, _, function = prepare.partition(":")
        getattr(importlib.import_module(module), function)()
    with watching():
        if transport == "processes":
            from colonnade.federation.transports import processes

            processes.main(Path(rest[0]))
        else:
            from colonnade.federation.transports import attend

            sys.argv[1:] = rest
            attend.main()


if __name__ == "__main__":
    main()
