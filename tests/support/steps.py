"""Steps that misbehave or that tests need; a party registers them only if its own configuration names this module."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Free, Laplace, Unbounded
from colonnade.statistics.secure_sum import SecureSum, masked_release


def _pure(public: Public, *, epsilon: float, mark: str = "") -> Cost:
    return Laplace(epsilon)


@step(cost=_pure)
def noisy_zero(me: Party, *, epsilon: float, mark: str = "") -> Release:
    """Eight random bytes: two answers are equal only if one is a replay."""
    return Release(me.randomness.bytes(8), "random bytes")


@step(cost=_pure)
def bare_array(me: Party, *, epsilon: float, mark: str = "") -> Release:
    return np.arange(3)  # type: ignore[return-value]


@step(cost=_pure)
def raises_with_data(me: Party, *, epsilon: float, mark: str = "") -> Release:
    raise ValueError("secret value 424242")


@step(cost=_pure)
def dies_once(me: Party, *, epsilon: float, mark: str = "") -> Release:
    """Killed between debit and reply, the first time; `mark` is a file that remembers."""
    if mark and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Release(me.randomness.bytes(8), "random bytes")


def _dying_cost(public: Public, *, epsilon: float, mark: str = "") -> Cost:
    """Killed before the debit, the first time that a party (not the coordinator's plan) asks for the price."""
    if mark and not public.job.startswith("(") and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Laplace(epsilon)


@step(cost=_dying_cost)
def dies_before_debit(me: Party, *, epsilon: float, mark: str = "") -> Release:
    return Release(me.randomness.bytes(8), "random bytes")


@step(cost=_pure)
def sleeps(me: Party, *, epsilon: float, mark: str = "") -> Release:
    time.sleep(30)
    return Release(0, "nothing")


_free = Free("sealed; only the recipient can read it")


@step(cost=_free)
def send_greeting(me: Party, *, tag: str = "greeting") -> Release:
    for name in me.roster.names:
        me.send(name, tag, {"from": me.name, "value": np.arange(4)})
    me.keep("count", len(me.roster.names))
    return Release(None, "nothing")


@step(cost=_free)
def read_greetings(me: Party, *, tag: str = "greeting") -> Release:
    got = me.received(tag)
    assert me.recall("count") == len(me.roster.names)
    return Release({sender: int(value["value"].sum()) for sender, value in got.items()}, "what was received")


@step(cost=_free)
def send_note(me: Party, *, to: str) -> Release:
    me.send(to, "note", "a secret")
    return Release(None, "nothing")


def _unbounded(public: Public) -> Cost:
    return Unbounded("raw-sum", "the exact sum")


@step(cost=_unbounded)
def exact_sum(me: Party) -> Release:
    return Release(float(sum(np.nansum(next(iter(v.values()))) for _, v in me.chunks())), "the exact sum")


@step(cost=Free("a test's own numbers"))
def masked_numbers(
    me: Party, *, values: list[float], shape: dict[str, Any], round_number: int, times: int = 1
) -> Release:
    """The numbers that a test gives this member, under its pads."""
    integers = all(isinstance(value, int) for value in values)
    vector = np.array(values, dtype=np.int64 if integers else np.float64)
    masked = [masked_release(me, vector, shape=SecureSum(**shape), round_number=round_number) for _ in range(times)]
    return Release(masked[0], "masked numbers")
