"""A data party that shares other numbers than its own: what it reads of others, and where it is found.

A row is bounded by its owner. One that shares 5,000 in place of 1 for a chosen record lifts that record's count above
the noise, at any epsilon. Indicators are proven before anything is opened, so the liar is named and reads nothing; so
are rows of numbers, to be within their norm, where that does not cost too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from colonnade.data.column import Column, Columns
from colonnade.errors import VerificationFailed
from colonnade.federation.coordinator import Federation
from colonnade.privacy.ledger import Budget
from colonnade.secure.sizes import Sizes
from colonnade.statistics import moments as moments_module
from colonnade.statistics.moments import MOST_NORM_TRAFFIC, MomentComputation, Moments, MomentsLayout
from colonnade.statistics.norms import Norm
from colonnade.statistics.tables import Tables, TablesLayout
from colonnade.statistics.verified import NORMS_NOT_PROVEN

RECORDS, WEIGHT = 300, 5000
TARGETS = list(range(7, 300, 30))
CATEGORIES = tuple(map(str, range(10)))


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    rng = np.random.default_rng(2)
    keys = range(RECORDS)
    blocks = {
        "A": pd.DataFrame(
            {"id": keys, "diagnosis": rng.choice(CATEGORIES, RECORDS), "income": rng.uniform(size=RECORDS)}
        ),
        "B": pd.DataFrame({"id": keys, "b": rng.choice(CATEGORIES, RECORDS), "z": rng.uniform(size=RECORDS)}),
        "C": pd.DataFrame({"id": keys, "c": rng.choice(["x", "y"], RECORDS)}),
    }
    columns = Columns(
        [
            Column(name="diagnosis", kind="categorical", categories=CATEGORIES),
            Column(name="b", kind="categorical", categories=CATEGORIES),
            Column(name="c", kind="categorical", categories=("x", "y")),
            Column(name="income", kind="continuous", lower=0.0, upper=1.0),
            Column(name="z", kind="continuous", lower=0.0, upper=1.0),
        ]
    )
    stated: dict[str, Any] = {"home": tmp_path / "home", "runs": tmp_path / "runs"}
    budget = Budget(epsilon=0.5, delta=1e-6)
    with Federation.local(blocks, key="id", columns=columns, budget=budget, allow=("presence",), **stated) as parties:
        yield parties


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str, Callable[[NDArray[Any]], NDArray[Any]]], None]:
    """B shares other rows."""

    def change(layout: type, name: str, lie: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        honest = getattr(layout, name)

        def changed(self: Any, me: Any, *arguments: Any) -> NDArray[Any]:
            rows = honest(self, me, *arguments)
            return lie(rows) if me.name == "B" else rows

        monkeypatch.setattr(layout, name, changed)

    return change


def heavy(rows: NDArray[Any]) -> NDArray[Any]:
    """The chosen records alone, each in a column of its own."""
    lie = np.zeros(rows.shape, dtype=np.int64)
    lie[TARGETS, np.arange(len(TARGETS))] = WEIGHT
    return lie


def party(federation: Federation, name: str) -> Any:
    return federation.transport[name]  # type: ignore[index]


def test_a_heavy_indicator_is_found_before_anything_is_opened(federation: Federation, lying: Any) -> None:
    """Its owner is named, and no holder has let a share of the result go."""
    lying(TablesLayout, "shared_rows", heavy)
    with pytest.raises(VerificationFailed, match="the shape of the rows by 'B' is false"):
        Tables(tables=(("diagnosis", "b"),), epsilon=0.1).fit(federation, sure=True)
    steps = [
        row.body["step"]
        for holder in federation.roster.committee
        for row in party(federation, holder).transcript.rows(direction="out")
    ]
    assert any(step.endswith("conclude") for step in steps)
    assert not any(step.endswith("open_shares") for step in steps)


def test_without_verification_it_reads_the_chosen_records(federation: Federation, lying: Any) -> None:
    """This is why verification is the default, and why a plan without it says so."""
    lying(TablesLayout, "shared_rows", heavy)
    method = Tables(tables=(("diagnosis", "b"),), epsilon=0.1, verify=False)
    assert any("Not verified" in note for note in federation.plan(method).notes)
    table = method.fit(federation, sure=True)["diagnosis", "b"]
    read = [int(np.argmax(table[:, place])) for place in range(len(TARGETS))]
    assert read == party(federation, "A").column("diagnosis")[TARGETS].tolist()
    assert party(federation, "A").ledger.spent(delta=1e-6).epsilon <= 0.11


@pytest.mark.parametrize("presence", ["ignore", "secret", "known"])
def test_a_row_beyond_its_norm_is_found_and_its_owner_named(federation: Federation, lying: Any, presence: Any) -> None:
    """A thousand times its norm, in one record of one column; and twice as long as the proof lets it be."""
    method = Moments(epsilon=0.1, columns=("income", "z"), presence=presence)
    layout = method.layout(federation.facts, federation.roster)
    assert layout.norms
    assert any("proven to be within 1.03 times their norm" in note for note in federation.plan(method).notes)
    factor = [1000]

    def long(rows: NDArray[Any]) -> NDArray[Any]:
        lie = rows.astype(np.int64)
        lie[TARGETS[0], -1] = int(factor[0] * layout.gamma)
        return lie

    lying(MomentsLayout, "quantised", long)
    for times in (1000, 10, 2 * layout.norm("B").slack):
        factor[0] = times
        with pytest.raises(VerificationFailed, match="the size of the rows by 'B' is false"):
            method.fit(federation, sure=True)


def test_a_row_beyond_its_norm_is_found_however_its_owner_writes_it(
    federation: Federation, lying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a root and a rest that are small, the sum of squares is false."""

    def long(rows: NDArray[Any]) -> NDArray[Any]:
        lie = rows.astype(np.int64)
        lie[TARGETS[0], 0] = 5 * 4096
        return lie

    roots = Norm.roots
    monkeypatch.setattr(Norm, "roots", lambda self, rows: np.clip(roots(self, rows), -self.gamma, self.gamma))
    lying(MomentsLayout, "quantised", long)
    with pytest.raises(VerificationFailed, match="the shape of the rows by 'B' is false"):
        Moments(epsilon=0.1, columns=("income", "z"), presence="ignore").fit(federation, sure=True)


def test_a_bit_that_differs_from_prime_to_prime_is_found(
    federation: Federation, lying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 modulo the first prime and 0 modulo the others passes for a bit at each, and is huge: with noise that hides all
    of A's incomes together, it would leave some 36 of the 8,193 values that a chosen one can have."""
    method = Moments(epsilon=0.1, columns=("income", "z"), presence="secret")
    field, gamma = method.layout(federation.facts, federation.roster).field, 4096
    rest = field.modulus // field.primes[0]
    idempotent = rest * pow(rest, -1, field.primes[0]) * gamma % field.modulus

    def mixed(rows: NDArray[Any]) -> NDArray[Any]:
        lie = rows.astype(np.int64)
        lie[:, 0] = 0
        lie[TARGETS[0], 0] = idempotent - (field.modulus if idempotent > field.bound else 0)
        return lie

    lying(MomentsLayout, "quantised", mixed)
    with pytest.raises(VerificationFailed, match="the size of the rows by 'B' is false"):
        method.fit(federation, sure=True)
    monkeypatch.setattr(Sizes, "false", lambda self, answers, threshold: ((), False))
    assert method.fit(federation, sure=True).noise_sd  # nothing else finds it


def test_full_verification_proves_norms_whatever_it_costs(
    federation: Federation, lying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a job that is too large for it by the rule, as every job is here: the option asks for it, in requests too."""
    monkeypatch.setattr(moments_module, "MOST_NORM_ENTRIES", 0)
    methods = {
        verify: Moments(epsilon=0.1, columns=("income", "z"), presence="ignore", verify=verify)
        for verify in (True, "full")
    }
    plans = {verify: " ".join(federation.plan(method).notes) for verify, method in methods.items()}
    assert NORMS_NOT_PROVEN in plans[True]
    assert 'verify="full" asks for it' in plans[True]
    assert "Rows of numbers are proven to be within" in plans["full"]
    large = Moments(verify="full").layout(replace(federation.facts, n=1_000_000), federation.roster)
    assert large.norms
    assert "CPU seconds" in large.proof_notes[0]

    def long(rows: NDArray[Any]) -> NDArray[Any]:
        lie = rows.astype(np.int64)
        lie[TARGETS[0], -1] = 100 * 4096
        return lie

    lying(MomentsLayout, "quantised", long)
    assert methods[True].fit(federation, sure=True).noise_sd
    with pytest.raises(VerificationFailed, match="the size of the rows by 'B' is false"):
        methods["full"].fit(federation, sure=True)


def test_numbers_are_not_proven_where_it_costs_too_much(federation: Federation, lying: Any) -> None:
    """What the threat model says that is not protected: one value of one record to a few digits. The plan says so."""

    def long(rows: NDArray[Any]) -> NDArray[Any]:
        lie = np.zeros(rows.shape, dtype=np.int64)
        lie[TARGETS[0], 0] = 2**26
        return lie

    facts = replace(federation.facts, n=100_000)
    method = Moments(epsilon=0.1, columns=("income", "z"), presence="ignore")
    costly = method.layout(facts, federation.roster)
    assert not costly.norms
    assert costly.norm_traffic > MOST_NORM_TRAFFIC
    assert any(note.startswith(NORMS_NOT_PROVEN) for note in MomentComputation(costly, "client").notes)
    lying(MomentsLayout, "quantised", long)
    method = Moments(epsilon=0.1, columns=("income", "z"), presence="ignore", verify=False)
    moments = method.fit(federation, sure=True)
    entries = list(moments.entries[0])
    product = moments.grams[0][entries.index("income"), entries.index("z")] * 4096 / 2**26
    truth = party(federation, "A").column("income")[TARGETS[0]]
    assert abs((product + 1) / 2 - truth) < 0.05
