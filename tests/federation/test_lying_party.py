"""A data party that shares other numbers than its own: what it reads of others, and where it is found.

A row is bounded by its owner. One that shares 5,000 in place of 1 for a chosen record lifts that record's count above
the noise, at any epsilon. Indicators are proven before anything is opened, so the liar is named and reads nothing; rows
of numbers are not proven to be within their norm, and a lie about them is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from colonnade.statistics.moments import Moments, MomentsLayout
from colonnade.statistics.tables import Tables, TablesLayout

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
    with Federation.local(blocks, key="id", columns=columns, budget=Budget(epsilon=0.3, delta=1e-6), **stated) as made:
        yield made


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
        Tables(tables=(("diagnosis", "b"),), epsilon=0.1).fit(federation)
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
    table = method.fit(federation)["diagnosis", "b"]
    read = [int(np.argmax(table[:, place])) for place in range(len(TARGETS))]
    assert read == party(federation, "A").column("diagnosis")[TARGETS].tolist()
    assert party(federation, "A").ledger.spent(delta=1e-6).epsilon <= 0.11


def test_a_long_row_of_numbers_is_not_found(federation: Federation, lying: Any) -> None:
    """What the threat model says that is not protected: one value of one record to a few digits."""

    def long(rows: NDArray[Any]) -> NDArray[Any]:
        lie = np.zeros(rows.shape, dtype=np.int64)
        lie[TARGETS[0], 0] = 2**26
        return lie

    lying(MomentsLayout, "_quantised", long)
    moments = Moments(epsilon=0.1, columns=("income", "z"), presence="ignore").fit(federation)
    entries = list(moments.entries[0])
    product = moments.grams[0][entries.index("income"), entries.index("z")] * 4096 / 2**26
    truth = party(federation, "A").column("income")[TARGETS[0]]
    assert abs((product + 1) / 2 - truth) < 0.05
