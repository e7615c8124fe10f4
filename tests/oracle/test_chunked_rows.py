"""Shares that travel in chunks of the cohort give the result of one chunk, bit for bit. Oracle: pooled integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.errors import PartyLost, UnsafeRequest
from colonnade.federation.config import Spec
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Progress
from colonnade.federation.party import Party
from colonnade.secure.field import BATCH_ROWS
from colonnade.statistics import circuit, features, moments
from support.asking import asking

PARTIES = ("clinic", "court", "bank")
N, GAMMA = 2 * BATCH_ROWS + 700, 64


def gridded(n: int = N) -> dict[str, pd.DataFrame]:
    """Two columns a party on the grid of 1/8, which quantising does not change; a tenth of the records is absent."""
    rng = np.random.default_rng(11)
    blocks = {}
    for party in PARTIES:
        names = [f"{party}_{j}" for j in range(2)]
        frame = pd.DataFrame(rng.integers(-8, 9, size=(n, 2)) / 8, columns=names).assign(id=np.arange(n))
        blocks[party] = frame[rng.random(n) > 0.1].sample(frac=1.0, random_state=3)
    return blocks


def open_federation(folder: Path, blocks: dict[str, pd.DataFrame], **options: object) -> Federation:
    names = [name for frame in blocks.values() for name in frame if name != "id"]
    spec = Spec(
        blocks=blocks,
        key="id",
        columns=Columns([Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in names]),
        home=folder / "home",
        allow=("exact-moments", "exact-tables", "presence"),
        **options,  # type: ignore[arg-type]
    )
    return Federation.from_spec(spec, runs=folder / "runs")


def pooled(blocks: dict[str, pd.DataFrame]) -> pd.DataFrame:
    joined = None
    for party, frame in blocks.items():
        one = frame.set_index("id").assign(**{f"present at {party}": 1.0})
        joined = one if joined is None else joined.join(one, how="outer")
    assert joined is not None
    return joined


@pytest.mark.parametrize("presence", ["known", "secret", "ignore"])
@pytest.mark.parametrize("tiles", [2048, 3])
def test_moments_of_three_chunks_equal_pooled_products(
    presence: str, tiles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the matrix is opened in several rounds, so that chunks are read again; and with files of rows."""
    monkeypatch.setattr(moments, "MAXIMUM_MAIL", 1)
    monkeypatch.setattr(features, "MOST_IN_MEMORY", 0 if tiles == 3 else features.MOST_IN_MEMORY)
    blocks = gridded()
    method = co.Moments(epsilon=None, presence=presence, gamma=GAMMA, tile=tiles)
    if tiles == 3:
        monkeypatch.setattr(moments, "MAXIMUM_ENTRIES", 20)
    with open_federation(tmp_path, blocks) as federation:
        layout = method.layout(federation.facts, federation.roster)
        assert [stop - start for start, stop in layout.chunks] == [BATCH_ROWS, BATCH_ROWS, layout.facts.n % BATCH_ROWS]
        assert len(layout.rounds) > 1 or tiles == 2048
        result = method.fit(federation)
        scratch = list((tmp_path / "home").glob("*/scratch/*"))
    assert not scratch, "a closed job leaves no rows behind"
    truth = pooled(blocks)
    for mask, entries, gram in zip(result.patterns, result.entries, result.grams, strict=True):
        rows = truth
        if presence == "known":
            here = [truth[f"present at {party}"].notna() == one for party, one in zip(PARTIES, mask, strict=True)]
            rows = truth[np.logical_and.reduce(here)]
        design = np.column_stack([np.ones(len(rows)) if name == "1" else rows[name].fillna(0.0) for name in entries])
        if presence == "ignore":
            expected = design.T @ design
            assert np.array_equal(gram[1:, 1:], expected[1:, 1:])
            assert np.array_equal(gram[0, 1:], expected[0, 1:])
            assert gram[0, 0] == layout.facts.n
        else:
            assert np.array_equal(gram, design.T @ design)


def test_tables_of_many_chunks_equal_pooled_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit, "SHARE_BYTES", 1 << 12)
    blocks = gridded(3000)
    wanted = (("clinic_0", "court_0"), ("bank_0", "bank_1"))
    method = co.Tables(tables=wanted, bins=2, epsilon=None)
    with open_federation(tmp_path, blocks) as federation:
        layout = method.layout(federation.facts, federation.roster)
        assert len(layout.chunks) > 5
        result = method.fit(federation)
    truth = (pooled(blocks) >= 0).astype(float).where(pooled(blocks).notna())
    for first, second in wanted:
        both = truth[[first, second]].dropna()
        expected = pd.crosstab(both[first], both[second]).to_numpy()
        assert np.array_equal(result[first, second], expected)


def test_nothing_opens_before_every_chunk_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "MAXIMUM_MAIL", 1)
    method = co.Moments(epsilon=1.0, presence="ignore", gamma=GAMMA)
    with open_federation(tmp_path, gridded()) as federation:
        plan = method.plan(federation.facts, federation.roster)
        stages = method.procedure(federation.facts, federation.roster)
        with pytest.raises(co.errors.ColonnadeError), federation.open(plan) as job:
            job.ask(stages.share)
            job.ask(stages.share_more)
            job.ask(stages.compare)
        with pytest.raises(UnsafeRequest), federation.open(plan) as job:
            job.ask(stages.share)
            job.ask(asking(stages.share_more, **{party: {"number": 3} for party in federation.roster.names}))


def test_a_resumed_job_goes_on_at_the_range_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A party is lost before the third range, and its process with what it remembered: no range is shared twice."""
    monkeypatch.setattr(moments, "MAXIMUM_MAIL", 1)
    shared: list[tuple[str, int]] = []
    share = moments.MomentsLayout.share

    def counted(layout: moments.MomentsLayout, me: Party, number: int) -> None:
        if (me.name, number) == ("court", 2) and ("court", 2) not in lost:
            lost.append(("court", 2))
            raise PartyLost("the process was killed")
        share(layout, me, number)
        shared.append((me.name, number))

    lost: list[tuple[str, int]] = []
    monkeypatch.setattr(moments.MomentsLayout, "share", counted)
    blocks, method = gridded(), co.Moments(epsilon=None, presence="secret", gamma=GAMMA)
    with open_federation(tmp_path, blocks) as federation, pytest.raises(PartyLost):
        federation.run(method, name="run")
    reports: list[Progress] = []
    with open_federation(tmp_path, blocks) as federation:
        result, _ = federation.resume(tmp_path / "runs" / "run", progress=reports.append)
    left = [report.bytes_left for report in reports]
    assert left == sorted(left, reverse=True), "what is left only shrinks"
    assert left[0] > 0.6 * reports[-1].bytes, "two of three ranges are forecast when the first has come"
    assert (left[-1], reports[-1].remaining) == (0, 0.0)
    assert sorted(shared) == [(party, number) for party in sorted(PARTIES) for number in range(3)]
    truth = pooled(blocks)[list(result.entries[0])].fillna(0.0).to_numpy()
    assert np.array_equal(result.grams[0], truth.T @ truth)


def test_a_job_in_little_memory_lets_go_of_the_table(tmp_path: Path) -> None:
    blocks: dict[str, pd.DataFrame] = gridded(600)
    for party, frame in blocks.items():
        frame.to_parquet(tmp_path / f"{party}.parquet", index=False)
    files = {party: {"parquet": str(tmp_path / f"{party}.parquet")} for party in blocks}
    columns = Columns(
        [Column(name=f"{party}_{j}", kind="continuous", lower=-1.0, upper=1.0) for party in PARTIES for j in range(2)]
    )
    with Federation.local(
        files, key="id", columns=columns, home=tmp_path / "home", runs=tmp_path / "runs", allow=("exact-moments",)
    ) as federation:
        held = [federation.transport[party].block.held for party in PARTIES]  # type: ignore[index]
        assert all(block is not None and block.columns for block in held)
        results = []
        for memory in (None, 500.0):
            assert all(block.columns for block in held)
            method = co.Moments(epsilon=None, presence="ignore", gamma=GAMMA, memory=memory, verify=False)
            results.append(method.fit(federation).grams[0])
        assert not any(block.columns for block in held)
        results.append(method.fit(federation).grams[0])  # read again
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
