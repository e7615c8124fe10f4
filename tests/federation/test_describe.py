"""`describe` end to end: right counts, right costs, and nothing else on the wire."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, BadPrivacyParameter, RunError, UnknownColumn
from colonnade.federation.coordinator import Federation
from colonnade.privacy.cost import compose
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics import describe
from colonnade.statistics.describe import DEPTH, Describe, integer_noise
from support.small import COLUMNS, three_overlapping_blocks, three_parties


@pytest.mark.parametrize("levels", [1, DEPTH])
def test_a_rounded_scale_never_gives_less_noise_than_is_paid_for(monkeypatch: pytest.MonkeyPatch, levels: int) -> None:
    """In exact fractions: levels / scale <= epsilon, and levels / sigma^2 <= 1 / multiplier^2."""
    drawn: list[float] = []
    for law in ("discrete_laplace", "discrete_gaussian"):
        monkeypatch.setattr(describe, law, lambda _, scale, size: drawn.append(scale) or np.zeros(size, dtype=np.int64))
    source = SimulatedRandomness(1)
    for level in np.random.default_rng(2).uniform(0.01, 30.0, 500).tolist():
        for noise in ("laplace", "gaussian"):
            integer_noise(source, noise, level, 1, levels=levels)  # type: ignore[arg-type]
        laplace, gaussian = map(Fraction, drawn[-2:])
        assert levels / laplace <= Fraction(level)
        assert gaussian**2 >= levels * Fraction(level) ** 2


def test_rounds_together_cost_no_more_than_their_level() -> None:
    """In exact fractions: the sum of 1 / scale is at most epsilon, that of 1 / sigma^2 at most 1 / multiplier^2."""
    for level in np.random.default_rng(3).uniform(0.01, 30.0, 500).tolist():
        laplace, gaussian = (describe.adaptive_rounds(noise, level) for noise in ("laplace", "gaussian"))  # type: ignore[arg-type]
        assert sum(1 / Fraction(laplace.scale_of(turn)) for turn in range(laplace.number)) <= Fraction(level)
        spent = sum(1 / Fraction(gaussian.scale_of(turn)) ** 2 for turn in range(gaussian.number))
        assert spent <= 1 / Fraction(level) ** 2


def test_counts_are_the_exact_ones_plus_noise_of_the_stated_size(tmp_path: Path) -> None:
    """Oracle: pandas on the blocks. 8 sd of the noise: a false alarm has probability below 1e-13 a count."""
    blocks = three_overlapping_blocks(3000)
    with three_parties(tmp_path, blocks=blocks) as federation:
        result = Describe(epsilon=2.0, bins=10, marginals="histogram").fit(federation)
    for party, frame in blocks.items():
        assert abs(result.presence[party] - len(frame)) < 8 * result.presence_sd
    assert result.n == 3000
    for name, column in COLUMNS.items():
        one = result.marginals[name]
        values = blocks[one["party"]][name]
        if column.discrete:
            exact = values.value_counts().reindex(list(column.categories or ())).fillna(0).to_numpy()
        else:
            exact = np.histogram(values, bins=np.array(one["edges"]))[0]
        assert len(exact) == len(one["labels"]) == len(one["counts"])
        assert np.max(np.abs(np.array(one["counts"]) - exact)) < 8 * one["sd"]
        assert sum(one["counts"]) == pytest.approx(len(values), abs=8 * one["sd"] * np.sqrt(len(exact)))
    assert result.marginals["visits"]["labels"] == [str(number) for number in range(10)]


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_quantiles_of_a_skewed_column(tmp_path: Path, delta: float) -> None:
    """Oracle: numpy.quantile. A rank is off by 8 sd of its own noise at most, and by a cell's share of the records."""
    rng = np.random.default_rng(5)
    n = 20_000
    wages = np.minimum(rng.lognormal(3, 1, n), 1000.0)
    blocks = {"tax": pd.DataFrame({"id": np.arange(n), "wage": wages})}
    columns = Columns([Column(name="wage", kind="continuous", lower=0.0, upper=1000.0)])
    with Federation.local(blocks, key="id", columns=columns, home=tmp_path / "h", runs=tmp_path / "r") as federation:
        result = Describe(epsilon=1.0, delta=delta).fit(federation)
    wage = result.marginals["wage"]
    slack = 8 * wage["cells"]["rank_sd"] / n + 0.01
    for level, value in wage["quantiles"].items():
        low, high = np.quantile(wages, np.clip([float(level) - slack, float(level) + slack], 0, 1))
        assert low <= value <= high
    assert list(wage["quantiles"].values()) == sorted(wage["quantiles"].values())


def test_point_masses_and_a_wide_range_are_described(tmp_path: Path) -> None:
    """60 % zeros, and a median of about 22,000 on a declared range of nine decades."""
    rng = np.random.default_rng(6)
    n = 20_000
    hours = np.where(rng.random(n) < 0.6, 0.0, np.clip(rng.gamma(3, 8, n), 0, 168))
    income = np.clip(rng.lognormal(10, 0.8, n), 0, 1e9)
    blocks = {"tax": pd.DataFrame({"id": np.arange(n), "hours": hours, "income": income})}
    columns = Columns(
        [
            Column(name="hours", kind="continuous", lower=0.0, upper=168.0),
            Column(name="income", kind="continuous", lower=0.0, upper=1e9),
        ]
    )
    with Federation.local(blocks, key="id", columns=columns, home=tmp_path / "h", runs=tmp_path / "r") as federation:
        plan = federation.plan(Describe(epsilon=1.0)).text()
        result = Describe(epsilon=1.0).fit(federation)
        hidden = Describe(epsilon=0.01).fit(federation)
    assert "Column 'income': about" in plan
    (zero,) = result.marginals["hours"]["point masses"]
    assert zero["value"] == "0"
    assert abs(zero["records"] - (hours == 0).sum()) < 8 * zero["sd"]
    assert result.marginals["income"]["quantiles"]["0.5"] == pytest.approx(np.median(income), rel=0.1)
    assert not result.mostly_noise
    assert hidden.mostly_noise
    assert hidden.view().quality.startswith("Mostly noise: ")


def test_the_person_total_is_what_was_asked_for(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        for method in (
            Describe(epsilon=1.0),
            Describe(epsilon=0.3, delta=0.0),
            Describe(epsilon=4.0, columns=("age",)),
        ):
            total = federation.plan(method).total()
            assert 0.99 * method.epsilon <= total.epsilon <= method.epsilon * (1 + 1e-9)
            assert total.delta == method.delta
            run = federation.run(method)[1]
            for party in federation.facts.parties:
                ledger = federation.transport[party].ledger  # type: ignore[index]
                assert ledger.debited(run.job["job"]) == compose(run.plan().costs(party))


def test_empty_cells_are_counted_where_they_are_declared(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": range(400), "x": [None, 1.0, 2.0, 3.0] * 100, "c": ["a", None, "b", None] * 100})
    columns = Columns(
        [
            Column(name="x", kind="continuous", lower=0.0, upper=4.0, missing=True),
            Column(name="c", kind="categorical", categories=("a", "b"), missing=True),
        ]
    )
    with Federation.local({"one": frame}, key="id", columns=columns) as federation:
        result = Describe(epsilon=50.0, bins=4, marginals="histogram").fit(federation)
        refined = Describe(epsilon=50.0).fit(federation)
    assert result.marginals["x"]["labels"][-1] == "missing"
    assert np.allclose(result.marginals["x"]["counts"], [0, 100, 100, 100, 100], atol=10)
    assert np.allclose(result.marginals["c"]["counts"], [100, 100, 200], atol=10)
    assert refined.marginals["x"]["labels"][-1] == "missing"
    assert abs(refined.marginals["x"]["counts"][-1] - 100) < 30
    assert sorted(point["value"] for point in refined.marginals["x"]["point masses"]) == ["1", "2", "3"]


def canaries() -> dict[str, pd.DataFrame]:
    """Values so odd that finding one in any encoding on the wire is no accident."""
    n = 64
    return {
        "clinic": pd.DataFrame(
            {"id": [f"CANARY-KEY-{i:04d}" for i in range(n)], "age": np.full(n, 77.123456789), "visits": np.full(n, 7)}
        ),
        "court": pd.DataFrame({"id": [f"CANARY-KEY-{i:04d}" for i in range(n)], "sued": ["yes"] * n}),
        "bank": pd.DataFrame(
            {"id": [f"CANARY-KEY-{i:04d}" for i in range(n)], "sector": ["mining"] * n, "rating": ["B"] * n}
        ),
    }


def encodings(value: float) -> list[bytes]:
    texts = [str(value), repr(value), f"{value:.6f}", f"{value:.3f}"]
    packed = [struct.pack(code, value) for code in ("<d", ">d", "<f", ">f")]
    scaled = [struct.pack(code, round(value * 10**k)) for code in ("<q", ">q") for k in (6, 9)]
    return [text.encode() for text in texts] + packed + scaled


def test_no_raw_value_appears_in_any_encoding_on_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wire: list[bytes] = []
    with three_parties(tmp_path, blocks=canaries()) as federation:
        original = federation.transport.exchange

        def tapped(party: str, data: bytes, *, timeout: float) -> bytes:
            answer = original(party, data, timeout=timeout)
            wire.extend([data, answer])
            return answer

        monkeypatch.setattr(federation.transport, "exchange", tapped)
        federation.run(Describe(epsilon=1.0))
        federation.run(Describe(epsilon=1.0, marginals="histogram"))
    seen = b"\n".join(wire)
    assert len(seen) > 10_000
    for canary in [b"CANARY", *encodings(77.123456789)]:
        assert canary not in seen
    assert b"age" in seen, "the search itself works: public names do appear"
    for path in tmp_path.glob("runs/**/*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(canary in content for canary in [b"CANARY", *encodings(77.123456789)])


def test_message_sizes_do_not_depend_on_the_data(tmp_path: Path) -> None:
    """Two federations with the same public facts and very different data: transcripts of the same structure."""
    constant = canaries()
    varied = {p: f.copy() for p, f in constant.items()}
    varied["clinic"]["age"] = np.linspace(0, 100, 64)
    varied["bank"]["sector"] = (["farming", "trade", "mining", "trade"] * 16)[:64]
    shapes = []
    for name, blocks in (("constant", constant), ("varied", varied)):
        with three_parties(tmp_path / name, blocks=blocks) as federation:
            run = federation.run(Describe(epsilon=1.0))[1]
            here = federation.transport["clinic"]  # type: ignore[index]
            shapes.append([row for row in here.transcript.structure(run.job["job"]) if row[3].endswith("marginal")])
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf")])
def test_epsilon_out_of_range(bad: float) -> None:
    with pytest.raises(BadPrivacyParameter, match="epsilon"):
        Describe(epsilon=bad)


@pytest.mark.parametrize("bad", [-1e-9, 1.0, 2.0, float("nan")])
def test_delta_out_of_range(bad: float) -> None:
    with pytest.raises(BadPrivacyParameter, match="delta"):
        Describe(delta=bad)


def test_bad_requests_change_nothing_on_disk(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UnknownColumn, match="wage"):
            federation.run(Describe(columns=("wage",)))
        with pytest.raises(BadArguments):
            federation.run(Describe(bins=0))
        assert sorted(tmp_path.rglob("*")) == before
        _, run = federation.run(Describe(epsilon=1.0), name="run")
        with pytest.raises(RunError, match="exists already"):
            federation.run(Describe(epsilon=1.0), name="run")
        with pytest.raises(RunError, match="finished"):
            federation.resume(run.path)
        with pytest.raises(RunError, match="not a run folder"):
            federation.resume(tmp_path)
