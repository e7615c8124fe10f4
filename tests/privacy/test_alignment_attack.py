"""A dictionary attack on phone numbers: the attacker tries every number of an area code against all that it has seen.

It succeeds against plain hashes and against a blinding that was left out, so it is an attack; it learns nothing from
ours. The attacker is the coordinator, or any one party with its own exponent and every
message that it could open.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.alignment import align as protocol
from colonnade.alignment import linkage
from colonnade.alignment.group import ELEMENT_BYTES, ORDER, hash_to_group, raise_to
from colonnade.alignment.session import align
from colonnade.federation.config import Spec
from colonnade.federation.party import Party
from colonnade.federation.transports.embedded import Embedded
from support.curve25519 import in_group
from support.small import COLUMNS, three_overlapping_blocks

AREA = [f"+4930{i:05d}" for i in range(600)]


class Seen:
    """Every message of a run: raw at the coordinator, opened at the party that received it, and each exponent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wire: list[bytes] = []
        self.opened: dict[str, list[bytes]] = {}
        self.exponents: dict[str, int] = {}
        self.job = ""
        exchange, received, keep = Embedded.exchange, Party.received, Party.keep

        def tapped(transport: Embedded, party: str, data: bytes, *, timeout: float) -> bytes:
            answer = exchange(transport, party, data, timeout=timeout)
            self.wire += [data, answer]
            return answer

        def opening(me: Party, tag: str) -> dict[str, Any]:
            values = received(me, tag)
            self.job = me.job
            for value in values.values():
                if isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype == np.uint8:
                    self.opened.setdefault(me.name, []).extend(row.tobytes() for row in value)
            return values

        def keeping(me: Party, name: str, value: Any) -> None:
            if name == "exponent":
                self.exponents[me.name] = int.from_bytes(value, "big")
            keep(me, name, value)

        monkeypatch.setattr(Embedded, "exchange", tapped)
        monkeypatch.setattr(Party, "received", opening)
        monkeypatch.setattr(Party, "keep", keeping)


def phone_blocks() -> dict[str, pd.DataFrame]:
    """Three parties with phone numbers as keys, out of the 600 that the attacker tries; some are one party's alone."""
    number = {f"K{i:05d}": AREA[7 * i] for i in range(60)}
    blocks = {}
    for turn, (party, frame) in enumerate(three_overlapping_blocks(60).items()):
        place = frame["id"].str[1:].astype(int)
        alone = frame[(place >= 24) | (place % 3 == turn)].reset_index(drop=True)
        blocks[party] = alone.assign(id=alone["id"].map(number))
    return blocks


def guesses(job: str) -> Iterator[tuple[str, bytes]]:
    """What offline brute force can compute for each number without any secret."""
    keys = [number.encode() for number in AREA]
    for number, key, element in zip(AREA, keys, hash_to_group(keys, domain=job), strict=True):
        yield number, element.tobytes()
        yield number, key
        for algorithm in ("sha256", "sha1", "md5", "sha512", "blake2b"):
            for salted in (key, job.encode() + key, key + job.encode()):
                yield number, hashlib.new(algorithm, salted).digest()


def dictionary_attack(seen: Seen, attacker: str) -> set[str]:
    """The numbers that the attacker recognises."""
    if attacker == "coordinator":
        everything = b"".join(seen.wire)
        return {number for number, guess in guesses(seen.job) if guess in everything}
    rows = set(seen.opened.get(attacker, []))
    found = {number for number, guess in guesses(seen.job) if guess in rows}
    # With its own exponent a it can also try H(z)^a, and take its own exponent off what it got.
    own = seen.exponents.get(attacker)
    if own is not None:
        keys = [number.encode() for number in AREA]
        hashed = hash_to_group(keys, domain=seen.job)
        for power in (own, pow(own, -1, ORDER), own * own % ORDER):
            raised = raise_to(hashed, power)
            found |= {number for number, row in zip(AREA, raised, strict=True) if row.tobytes() in rows}
    return found


def pooled_attack(seen: Seen, coalition: Sequence[str]) -> set[str]:
    """The numbers that colluders recognise who pool their lists and every quotient of products of their exponents."""
    rows = {row for member in coalition for row in seen.opened.get(member, [])}
    hashed = hash_to_group([number.encode() for number in AREA], domain=seen.job)
    found: set[str] = set()
    for signs in itertools.product((-1, 0, 1), repeat=len(coalition)):
        power = 1
        for member, sign in zip(coalition, signs, strict=True):
            power = power * pow(seen.exponents.get(member, 1), sign, ORDER) % ORDER
        raised = raise_to(hashed, power)
        found |= {number for number, row in zip(AREA, raised, strict=True) if row.tobytes() in rows}
    return found


def run(tmp_path: Path, include: str, holder: str | None = None, **options: Any) -> None:
    blocks = phone_blocks()
    align(
        Spec(
            blocks=blocks,
            key="id",
            columns=COLUMNS,
            home=tmp_path,
            allow=("alignment",),
            include=include,
            holder=holder,
        ),
        **options,
    )


CASES = [("union", None), ("union", "Judge"), ("court", None)]


@pytest.mark.parametrize(("include", "holder"), CASES)
def test_a_dictionary_finds_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, include: str, holder: str | None
) -> None:
    seen = Seen(monkeypatch)
    run(tmp_path, include, holder)
    assert len(seen.wire) > 10
    assert all(len(seen.opened[party]) >= 30 for party in phone_blocks())
    for attacker in ("coordinator", "clinic", "court", "bank", *(["holder"] if holder else [])):
        assert dictionary_attack(seen, attacker) == set(), attacker


def outside_of_the_group(seen: Seen) -> int:
    """How many elements can be told from uniform ones by the curve alone: on the twist, or of another order."""
    return sum(not in_group(row) for row in {row for rows in seen.opened.values() for row in rows})


def test_records_and_dummies_are_in_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: dummies that are points of the curve, not raised; one in eight of them would pass for a record."""
    capacity = dict.fromkeys(phone_blocks(), 60)
    seen = Seen(monkeypatch)
    run(tmp_path / "honest", "court", capacity=capacity)
    assert sum(len(rows) for rows in seen.opened.values()) >= 3 * 60
    assert outside_of_the_group(seen) == 0
    raised = protocol.raise_list
    calls = itertools.count()  # a party's first list is its dummies
    first = len(capacity)
    monkeypatch.setattr(
        protocol, "raise_list", lambda rows, power: rows if next(calls) < first else raised(rows, power)
    )
    planted = Seen(monkeypatch)
    run(tmp_path / "planted", "court", capacity=capacity)
    dummies = sum(60 - len(block) for block in phone_blocks().values())
    assert outside_of_the_group(planted) > dummies / 2


@pytest.mark.parametrize("include", ["union", "court"])
def test_two_colluders_find_nobody_and_all_three_find_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, include: str
) -> None:
    """Every list carries its owner's exponent. With all exponents nothing is left to hide, so it is an attack."""
    seen = Seen(monkeypatch)
    run(tmp_path, include)
    blocks = {party: set(frame["id"]) for party, frame in phone_blocks().items()}
    for pair in itertools.combinations(blocks, 2):
        known = blocks[pair[0]] | blocks[pair[1]]
        assert set().union(*blocks.values()) > known  # the third party has records that these two lack
        assert pooled_attack(seen, pair) <= known, pair
    assert pooled_attack(seen, tuple(blocks)) == set().union(*blocks.values())


@pytest.mark.parametrize(("include", "holder"), CASES)
def test_the_same_attack_finds_everybody_where_the_blinding_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, include: str, holder: str | None
) -> None:
    """Planted: every exponent is 1, so what is sent are plain hashes. Seals still keep them from the coordinator."""
    monkeypatch.setattr(protocol, "draw_exponent", lambda randomness: 1)
    seen = Seen(monkeypatch)
    run(tmp_path, include, holder)
    blocks = {party: set(frame["id"]) for party, frame in phone_blocks().items()}
    matcher = include if include != "union" else "holder" if holder else "clinic"
    assert dictionary_attack(seen, matcher) >= set().union(*(held for name, held in blocks.items() if name != matcher))
    assert dictionary_attack(seen, "coordinator") == set()


def test_the_attack_finds_everybody_in_hashes_with_a_shared_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the usual practice of sending SHA-256 of key and a job's salt."""
    seen = Seen(monkeypatch)
    seen.job = "align-1"
    held = AREA[::9]
    seen.opened["clinic"] = [hashlib.sha256(b"align-1" + number.encode()).digest() for number in held]
    seen.wire = list(seen.opened["clinic"])
    assert dictionary_attack(seen, "clinic") == set(held)
    assert dictionary_attack(seen, "coordinator") == set(held)


def test_two_runs_have_no_element_in_common(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody can follow a person from one alignment to the next by what was sent."""
    rows = []
    for name in ("one", "two"):
        with monkeypatch.context() as patch:
            seen = Seen(patch)
            run(tmp_path / name, "court")
        rows.append({row for some in seen.opened.values() for row in some if len(row) == ELEMENT_BYTES})
    assert len(rows[0]) > 100
    assert not rows[0] & rows[1]


# --- the linkage unit: keyed hashes at a matcher that is trusted by name ----------------------------------------------


def hashed_names(key: bytes, rows: set[bytes]) -> set[str]:
    """The numbers whose hash under this key is among the rows."""
    hashes = linkage.keyed_hashes([number.encode() for number in AREA], key)
    return {number for number, row in zip(AREA, hashes, strict=True) if row.tobytes() in rows}


@pytest.mark.parametrize("include", ["union", "court"])
def test_a_matcher_alone_finds_nobody_and_with_one_partys_key_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, include: str
) -> None:
    """The second half is the trust that a party must allow by name; the claim says so, and this shows it."""
    seen, keys, parts = Seen(monkeypatch), [], []
    joined, send = linkage.joined_key, Party.send

    def keeping(pieces: dict[str, Any], *, job: str) -> bytes:
        parts.append(pieces)
        keys.append(joined(pieces, job=job))
        return keys[-1]

    def counting(me: Party, to: str, tag: str, value: Any) -> None:
        assert not (tag.startswith("part of the key") and to == "holder")
        send(me, to, tag, value)

    monkeypatch.setattr(linkage, "joined_key", keeping)
    monkeypatch.setattr(Party, "send", counting)
    blocks = phone_blocks()
    described = Spec(
        blocks=blocks,
        key="id",
        columns=COLUMNS,
        home=tmp_path,
        allow=("linkage-unit",),
        include=include,
        holder="Judge",
    )
    align(described, trust_matcher=True)
    held = set().union(*(set(frame["id"]) for frame in blocks.values()))
    rows = set(seen.opened["holder"])
    assert len(rows) >= len(held)
    for attacker in ("coordinator", "holder", *blocks):
        assert dictionary_attack(seen, attacker) == set(), attacker
    assert len(set(keys)) == 1
    assert hashed_names(keys[0], rows) == held
    # Any two of the three parts leave the key unknown: a party that lies about its own does not fix the others'.
    for missing in blocks:
        fewer = {party: part for party, part in parts[0].items() if party != missing}
        assert hashed_names(joined({**fewer, missing: bytes(32)}, job=seen.job), rows) == set()


def test_the_attack_finds_everybody_where_the_key_of_the_hashes_is_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the key is the job's name, which all members know."""
    monkeypatch.setattr(linkage, "joined_key", lambda pieces, *, job: hashlib.sha256(job.encode()).digest())
    seen, blocks = Seen(monkeypatch), phone_blocks()
    described = Spec(blocks=blocks, key="id", columns=COLUMNS, home=tmp_path, allow=("linkage-unit",), holder="Judge")
    align(described, trust_matcher=True)
    found = hashed_names(hashlib.sha256(seen.job.encode()).digest(), set(seen.opened["holder"]))
    assert found == set().union(*(set(frame["id"]) for frame in blocks.values()))
