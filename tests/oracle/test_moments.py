"""Moments on secret shares against numpy on the pooled integers: equal, exactly, with the noise off."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import (
    BadPrivacyParameter,
    BeyondReservation,
    SecureError,
    TooFewHolders,
    UnboundedNotAllowed,
)
from colonnade.federation.coordinator import Federation
from colonnade.statistics import moments as module
from colonnade.statistics.features import features
from colonnade.statistics.moments import Moments
from support.asking import asking
from support.small import COLUMNS, committee_of, computing_by, three_overlapping_blocks, three_parties

ALLOW = ("presence", "exact-moments")


def pooled(federation: Federation, blocks: dict[str, pd.DataFrame], gamma: int) -> tuple[np.ndarray, np.ndarray]:
    """(presence mask, quantised features) in cohort order, made directly from the frames.

    Column values are chosen so that gamma * feature is a whole number: rounding has nothing to decide.
    """
    wanted = features(federation.facts)
    mask = np.zeros((federation.facts.n, len(blocks)), dtype=bool)
    rows = np.zeros((federation.facts.n, len(wanted)), dtype=np.int64)
    for k, (party, frame) in enumerate(blocks.items()):
        at = federation.transport[party].rows  # type: ignore[index]
        mask[at, k] = True
        for j, feature in enumerate(wanted):
            if feature.party == party:
                codes = federation.facts.column(feature.column).encode(frame[feature.column])
                value = (
                    codes == feature.category
                    if feature.category is not None
                    else (codes - feature.centre) / feature.half
                )
                rows[at, j] = np.rint(value * gamma).astype(np.int64)
    return mask, rows


def whole_blocks(n: int = 90) -> dict[str, pd.DataFrame]:
    """Three overlapping blocks whose scaled values are multiples of 1/900, with the extremes among them."""
    blocks = three_overlapping_blocks(n)
    rng = np.random.default_rng(2)
    size = len(blocks["clinic"])
    blocks["clinic"]["age"] = rng.choice([0.0, 100.0, 50.0, 12.5, 99.0], size)
    return blocks


@pytest.mark.parametrize(("engine", "members"), [("pair", 3), ("pair", 4), ("holders", 3), ("holders", 5)])
def test_pattern_moments_equal_numpy_exactly(tmp_path: Path, engine: str, members: int) -> None:
    blocks = whole_blocks()
    gamma = 900
    keys = blocks["clinic"]["id"]
    blocks |= {
        f"extra{i}": pd.DataFrame(
            {"id": keys[i:], f"x{i}": [1, 0] * ((len(keys) - i) // 2) + [1] * ((len(keys) - i) % 2)}
        )
        for i in range(members - 3)
    }
    columns = Columns([*COLUMNS.values(), *(Column(name=f"x{i}", kind="binary", categories=(0, 1)) for i in range(2))])
    columns = Columns([column for column in columns.values() if any(column.name in block for block in blocks.values())])
    options = computing_by(engine, blocks) | ({"threshold": 2} if members == 5 else {})
    with three_parties(tmp_path, columns=columns, allow=ALLOW, **options) as federation:
        assert len(federation.roster.committee) == (0 if engine == "pair" else members)
        result = Moments(epsilon=None, gamma=gamma).fit(federation)
        mask, rows = pooled(federation, blocks, gamma)
    assert len(result.patterns) == 2 ** len(blocks) - 1
    parties = list(blocks)
    owner = np.array([parties.index(feature.party) for feature in result.features])
    seen = 0
    for pattern, entries, got in zip(result.patterns, result.entries, result.grams, strict=True):
        here = np.all(mask == np.array(pattern), axis=1)
        extended = np.column_stack([np.full(here.sum(), gamma), rows[here][:, np.array(pattern)[owner]]])
        assert entries == ("1", *(f.name for f in result.features if pattern[parties.index(f.party)]))
        assert np.array_equal(np.rint(got * gamma**2).astype(np.int64), extended.T @ extended)
        seen += int(here.sum())
    assert seen == 90, "empty patterns are zero and every record is in one pattern"


def test_available_case_moments_under_secret_presence(tmp_path: Path, engine: str) -> None:
    given = computing_by(engine, whole_blocks())
    gamma = 900
    with three_parties(tmp_path, allow=("exact-moments",), **given) as federation:
        result = Moments(epsilon=None, gamma=gamma, presence="secret").fit(federation)
        mask, rows = pooled(federation, given["blocks"], gamma)
    (entries,), (got,) = result.entries, result.grams
    columns = []
    for k, party in enumerate(result.parties):
        columns.append(gamma * mask[:, [k]].astype(np.int64))
        columns.append(rows[:, [j for j, f in enumerate(result.features) if f.party == party]])
    extended = np.concatenate(columns, axis=1)
    assert len(entries) == extended.shape[1]
    assert np.array_equal(np.rint(got * gamma**2).astype(np.int64), extended.T @ extended)


def test_tiled_openings_give_the_same_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """A small limit forces several rounds of noise and opening."""
    with three_parties(tmp_path, allow=ALLOW, **computing_by(engine, whole_blocks())) as federation:
        whole = Moments(epsilon=None, gamma=900, presence="ignore").fit(federation)
        monkeypatch.setattr(module, "MAXIMUM_ENTRIES", 7)
        method = Moments(epsilon=None, gamma=900, presence="ignore", tile=3)
        assert len(method.layout(federation.facts, federation.roster).rounds) > 3
        tiled = method.fit(federation)
    assert np.array_equal(whole.grams[0], tiled.grams[0])


def test_noise_has_the_stated_size_and_is_independent_of_rounding(tmp_path: Path, engine: str) -> None:
    """The mean square of noisy - exact is the stated variance. 93 entries x 6 runs: a sd of 6 %, so 30 % is 5 sd."""
    with three_parties(tmp_path, allow=ALLOW, **computing_by(engine, whole_blocks())) as federation:
        exact = Moments(epsilon=None, gamma=900).fit(federation)
        errors = []
        for _ in range(6):
            noisy = Moments(epsilon=1.0, gamma=900, verify=False).fit(federation)
            for got, true in zip(noisy.grams, exact.grams, strict=True):
                errors.append((got - true)[np.triu_indices(len(true))])
    drawn = np.concatenate(errors)
    assert drawn.size == 93 * 6
    assert 0.7 < np.mean(np.square(drawn)) / noisy.noise_sd**2 < 1.3
    assert all(np.array_equal(got, got.T) for got in noisy.grams)


def test_two_data_parties_need_an_independent_holder(tmp_path: Path) -> None:
    blocks = whole_blocks()
    del blocks["bank"]
    with three_parties(tmp_path / "two", blocks=blocks, allow=ALLOW) as federation:
        assert federation.roster.committee == ()
        with pytest.raises(TooFewHolders, match="independent holder"):
            Moments(epsilon=None).fit(federation)
    with three_parties(tmp_path / "three", blocks=blocks, allow=ALLOW, holder="Notary") as federation:
        assert len(federation.roster.committee) == 3
        result = Moments(epsilon=None, gamma=900).fit(federation)
        mask, _ = pooled(federation, blocks, 900)
    for pattern, count in zip(result.patterns, result.counts, strict=True):
        assert round(count) == np.all(mask == np.array(pattern), axis=1).sum()


def test_the_plan_counts_the_joint_release_once(tmp_path: Path, engine: str) -> None:
    with three_parties(tmp_path, allow=ALLOW, **committee_of(engine)) as federation:
        plan = federation.plan(Moments(epsilon=1.0, presence="secret"))
        assert 0.99 < plan.total().epsilon <= 1.0
        for party in federation.facts.parties:
            assert plan.total(party=party).epsilon == pytest.approx(plan.total().epsilon)
        known = federation.plan(Moments(epsilon=1.0))
        assert known.total().unbounded == ("presence",)


def test_presence_must_be_allowed_by_name(tmp_path: Path, engine: str) -> None:
    with three_parties(tmp_path, **committee_of(engine)) as federation:
        with pytest.raises(UnboundedNotAllowed):
            Moments(epsilon=1.0).fit(federation)
        assert Moments(epsilon=1.0, presence="secret").fit(federation, sure=True).noise_sd > 0


def test_an_opening_happens_once(tmp_path: Path) -> None:
    """A coordinator that asks for the same opening again, with fresh noise, could average the noise away."""
    with three_parties(tmp_path, allow=ALLOW) as federation:
        method = Moments(epsilon=1.0, presence="ignore", tile=3)
        plan = method.plan(federation.facts, federation.roster)
        stages = method.procedure(federation.facts, federation.roster)
        with pytest.raises(BeyondReservation), federation.open(plan) as job:
            job.ask(stages.share)
            assert len(list(stages.all_opened(job, stages.layout))) == 1
            # A second request of the same opening is beyond the reservation, or refused by the holder itself.
            for party in job._seq:
                federation.transport[party].ledger.debit = lambda **_: True  # type: ignore[index]
            job.ask(asking(stages.open, again=True))


def test_nothing_opens_without_everybodys_noise(tmp_path: Path) -> None:
    with three_parties(tmp_path, allow=ALLOW) as federation:
        method = Moments(epsilon=1.0, presence="ignore")
        stages = method.procedure(federation.facts, federation.roster)
        with pytest.raises(SecureError), federation.open(method.plan(federation.facts, federation.roster)) as job:
            job.ask(stages.share)
            for mail in job._pending.values():
                mail[:] = [letter for letter in mail if not (letter.sender == "bank" and "noise" in letter.tag)]
            job.ask(stages.compare)
            job.ask(stages.open)
        assert not any(
            row.body["kind"] == "release" and row.body["step"].endswith("open_shares")
            for party in ("clinic", "court")
            for row in federation.transport[party].transcript.rows()  # type: ignore[index]
        )


def test_bad_options(tmp_path: Path) -> None:
    with pytest.raises(BadPrivacyParameter):
        Moments(epsilon=-1.0)
    with pytest.raises(BadPrivacyParameter, match="delta above 0"):
        Moments(epsilon=1.0, delta=0.0)


def upper_triangles(row: np.ndarray) -> np.ndarray:
    return np.outer(row, row)[np.triu_indices(len(row))]


@pytest.mark.parametrize("presence", ["known", "secret", "ignore"])
def test_the_sensitivity_bound_holds_and_is_nearly_reached(tmp_path: Path, presence: Any, engine: str) -> None:
    """Numerical search over rows that obey the per-party bounds; the extreme row (+-1 everywhere) comes within 1 %."""
    with three_parties(tmp_path, allow=ALLOW, **committee_of(engine)) as federation:
        layout = Moments(presence=presence, gamma=64).layout(federation.facts, federation.roster)
    widths = [sum(f.party == party for f in layout.features) for party in layout.parties]
    best = 0.0
    rng = np.random.default_rng(0)
    candidates = [np.array(signs) for signs in itertools.product((-1, 1), repeat=sum(widths))]
    candidates += [rng.uniform(-1, 1, sum(widths)) for _ in range(2000)]
    for candidate in candidates:
        row = np.rint(64 * candidate)
        if presence == "ignore":
            change = np.concatenate([64 * row, upper_triangles(row)])
        elif presence == "known":
            change = upper_triangles(np.concatenate([[64], row]))
        else:
            parts = np.split(row, np.cumsum(widths)[:-1])
            change = upper_triangles(np.concatenate([np.concatenate([[64], part]) for part in parts]))
        best = max(best, float(np.linalg.norm(change)))
        assert np.abs(change).sum() <= layout.delta_1 * (1 + 1e-12)
    assert 0.99 * layout.delta_2 < best <= layout.delta_2 * (1 + 1e-12)
    assert math.isfinite(layout.delta_1)


def test_a_cell_that_became_empty_counts_as_nothing(tmp_path: Path, engine: str) -> None:
    """The block was checked when it loaded; a source that changed afterwards must not put NaN into an integer."""
    blocks: dict[str, Any] = dict(whole_blocks())
    clinic, path = blocks["clinic"], tmp_path / "clinic.parquet"
    clinic.to_parquet(path, index=False)
    blocks["clinic"] = path
    with three_parties(tmp_path, allow=ALLOW, **computing_by(engine, blocks)) as federation:
        clinic.assign(age=np.nan).to_parquet(path, index=False)
        result = Moments(epsilon=None, gamma=900, presence="ignore", columns=("age", "sued")).fit(federation)
    age = result.entries[0].index("age")
    assert np.array_equal(result.grams[0][age], np.zeros(len(result.entries[0])))
