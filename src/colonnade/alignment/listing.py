"""What the steps of both protocols share: a party's list with its random places, and the messages that belong to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.keys import check_rules, normal_forms
from colonnade.alignment.numbering import permutation
from colonnade.alignment.routes import UNION, Routes
from colonnade.durable import canonical
from colonnade.errors import SchemaError, SealBroken
from colonnade.federation.party import Party


def terms(include: str, matcher: str, capacity: Mapping[str, int], normalise: Sequence[str]) -> str:
    """A digest of what an alignment was asked with. It is part of every tag: members that were asked for different
    things do not find each other's messages, and nothing is compared."""
    plain = {"include": include, "matcher": matcher, "capacity": dict(capacity), "normalise": list(normalise)}
    return hashlib.sha256(canonical(plain).encode()).hexdigest()[:32]


def listed_keys(
    me: Party, chosen: Routes, *, size: int, normalise: Sequence[str]
) -> tuple[list[bytes], NDArray[np.int64]]:
    """The normal forms of this party's keys, and a random place for each in a list of `size` places."""
    where = f"party {me.name!r}"
    forms = normal_forms(me.block.keys, check_rules(normalise), where=where)
    if len(forms) > size:
        raise SchemaError(f"{where} has {len(forms)} records, and a declared capacity of {size}; declare a larger one.")
    places = permutation(size, me.randomness)[: len(forms)]
    me.keep("places", places)
    if chosen.include == UNION and me.name != chosen.matcher:
        real = np.zeros(size, dtype=np.bool_)
        real[places] = True
        me.send(chosen.matcher, "real places", real)
    return forms, places


def collect_places(me: Party) -> None:
    """Keep what the parties of a union told the matcher: which places of their lists hold records."""
    for sender, real in me.received("real places").items():
        me.keep(f"real places of {sender}", real)


def only(me: Party, tag: str, sender: str) -> Any:
    """The one message with this tag, from the one member that sends it."""
    arrived = me.received(tag)
    if set(arrived) != {sender}:
        raise SealBroken(f"expected {tag!r} from {sender!r} alone; run the alignment again from the start.")
    return arrived[sender]


def real_places(me: Party, owner: str, include: str, capacity: Mapping[str, int]) -> NDArray[np.bool_]:
    """Which places of a list hold records. In a fixed cohort only its own matter: another's dummies match nothing."""
    if owner == me.name:
        real = np.zeros(capacity[owner], dtype=np.bool_)
        real[me.recall("places")] = True
        return real
    if include != UNION:
        return np.ones(capacity[owner], dtype=np.bool_)
    told: NDArray[np.bool_] = np.asarray(me.recall(f"real places of {owner}"), dtype=np.bool_)
    return told
