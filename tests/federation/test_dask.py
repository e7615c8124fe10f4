"""Local statistics on a party's own Dask cluster. Oracle: the same job without it, under the same seed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.data import Block, Column, Columns, open_source
from colonnade.data.aggregation import aggregate
from colonnade.data.cluster import Cluster, OnCluster
from colonnade.errors import SourceError
from colonnade.federation.config import Spec
from colonnade.federation.coordinator import Federation
from colonnade.papers.vertimrf.sketches import FMSketches
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.cells import cells
from colonnade.statistics.describe import CellCounts
from colonnade.synthesis.field.schema import Schema
from support.plans import plan_of_stages

distributed = pytest.importorskip("distributed")

ALLOW = ("exact-moments", "exact-tables", "fm-sketches", "presence")
COLUMNS = Columns(
    [
        Column(name="age", kind="count", lower=0, upper=100, missing=True),
        Column(name="height", kind="continuous", lower=0.0, upper=2.5),
        Column(name="sued", kind="binary", categories=("no", "yes")),
        Column(name="court", kind="categorical", categories=("a", "b", "c")),
        Column(name="debt", kind="continuous", lower=-1.0, upper=1.0),
    ]
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, each a process of its own."""
    local = distributed.LocalCluster(
        processes=True, n_workers=2, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1"
    )
    with local:
        yield local


def blocks(n: int = 2000) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(8)
    ids = np.arange(n)
    return {
        "clinic": pd.DataFrame(
            {
                "first": ids // 100,
                "second": ids % 100,
                "age": pd.Series(rng.integers(0, 101, n), dtype="Int64").mask(rng.random(n) < 0.1),
                "height": rng.integers(0, 33, n) * 2.5 / 32,
            }
        ).sample(frac=0.8, random_state=1),
        "court": pd.DataFrame(
            {
                "first": ids // 100,
                "second": ids % 100,
                "sued": rng.choice(["no", "yes"], n),
                "court": rng.choice(["a", "b", "c"], n),
            }
        ).sample(frac=0.7, random_state=2),
        "bank": pd.DataFrame({"first": ids // 100, "second": ids % 100, "debt": rng.integers(-8, 9, n) / 8}),
    }


def sources(folder: Path, address: str | None) -> dict[str, Any]:
    """A Parquet folder (which workers read themselves), a CSV file and a DuckDB query (which are sent to them)."""
    import duckdb

    made = blocks()
    (folder / "clinic").mkdir(exist_ok=True)
    made["clinic"].iloc[:600].to_parquet(folder / "clinic" / "0.parquet", index=False, row_group_size=150)
    made["clinic"].iloc[600:].to_parquet(folder / "clinic" / "1.parquet", index=False, row_group_size=300)
    made["court"].to_csv(folder / "court.csv", index=False)
    with duckdb.connect(str(folder / "bank.duckdb")) as connection:
        connection.register("given", made["bank"])
        connection.execute("CREATE OR REPLACE TABLE firms AS SELECT * FROM given")
    found: dict[str, Any] = {
        "clinic": {"parquet": str(folder / "clinic")},
        "court": {"csv": str(folder / "court.csv")},
        "bank": {"duckdb": str(folder / "bank.duckdb"), "query": "SELECT * FROM firms ORDER BY first, second"},
    }
    return found if address is None else {party: one | {"dask": address} for party, one in found.items()}


def opened(folder: Path, address: str | None, transport: str = "embedded") -> Federation:
    folder.mkdir(exist_ok=True)
    spec = Spec(
        blocks=sources(folder, address),
        key=["first", "second"],
        columns=COLUMNS,
        home=folder / "home",
        seed=4,
        allow=ALLOW,
        transport=transport,  # type: ignore[arg-type]
    )
    return Federation.from_spec(spec, runs=folder / "runs")


METHODS = {
    "describe": co.Describe(epsilon=1.0),
    "moments": co.Moments(epsilon=None, gamma=64, columns=("height", "sued", "court", "debt")),
    "noisy moments": co.Moments(epsilon=1.0, gamma=64, presence="secret", columns=("height", "sued", "debt")),
    "tables": co.Tables(
        tables=(("age", "height"), ("height", "sued"), ("court", "debt")), bins=4, epsilon=1.0, memory=401
    ),
}


def sketches(federation: Federation) -> dict[str, Any]:
    """The levels of `fm` sketches of every column."""
    schema = Schema.declared(federation.facts, bins=8)
    encoder = FMSketches(schema, federation.roster, epsilon=0.5, sketches=21, bins=4)
    plan = plan_of_stages("vertimrf", encoder.stages, delta=0.0)
    with federation.open(plan) as job:
        return dict(encoder.encode(job, schema).levels)


def results(federation: Federation) -> dict[str, Any]:
    with federation:
        found: dict[str, Any] = {name: method.fit(federation) for name, method in METHODS.items()}
        return {**found, "sketches": sketches(federation)}


def test_results_equal_those_of_one_process(cluster: Any, tmp_path: Path) -> None:
    here = results(opened(tmp_path / "here", None))
    there = results(opened(tmp_path / "there", cluster.scheduler_address))
    assert here["describe"] == there["describe"]
    for one, other in zip(here["moments"].grams, there["moments"].grams, strict=True):
        assert np.array_equal(one, other)
    # On the grid rounding changes nothing, but it draws once a chunk, and the noise after it is then another.
    for one, other in zip(here["noisy moments"].grams, there["noisy moments"].grams, strict=True):
        assert np.allclose(one, other, atol=8 * here["noisy moments"].noise_sd)
    for name, counts in here["tables"].counts.items():
        assert np.array_equal(counts, there["tables"].counts[name])
    assert here["sketches"].keys() == {"age", "height", "sued", "court", "debt"}
    for name, levels in here["sketches"].items():
        assert np.array_equal(levels, there["sketches"][name])
    workers = set(Cluster(address=cluster.scheduler_address).run(os.getpid, [()] * 40))
    assert len(workers) == 2
    assert os.getpid() not in workers


def test_workers_get_no_secret_of_the_party(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is submitted is pickled here as Dask would, and searched for the party's keys and random numbers."""
    with opened(tmp_path, cluster.scheduler_address) as federation:
        secrets: list[bytes] = []
        for party in federation.facts.parties:
            secrets.append((tmp_path / "home" / party / "identity.pem").read_bytes())
        submitted: list[bytes] = []
        run = Cluster.run

        def watched(self: Cluster, function: Any, tasks: Any) -> Iterator[Any]:
            def seen() -> Iterator[Any]:
                for task in tasks:
                    submitted.append(pickle.dumps((function, task)))
                    yield task

            return run(self, function, seen())

        monkeypatch.setattr(Cluster, "run", watched)
        drawn: list[bytes] = []
        draw = SimulatedRandomness.bytes

        def noted(self: SimulatedRandomness, count: int) -> bytes:
            made = draw(self, count)
            if 16 <= count <= 64:
                drawn.append(made)
            return made

        monkeypatch.setattr(SimulatedRandomness, "bytes", noted)
        for method in METHODS.values():
            method.fit(federation)
    assert len(submitted) > 20
    assert len(drawn) > 10
    for payload in submitted:
        assert not any(secret in payload for secret in secrets)
        assert not any(secret in payload for secret in drawn)
        assert b"randomness" not in payload
        assert b"Randomness" not in payload
        assert b"Party" not in payload


def test_a_party_process_uses_its_cluster(cluster: Any, tmp_path: Path) -> None:
    with opened(tmp_path / "there", cluster.scheduler_address, transport="processes") as federation:
        there = METHODS["describe"].fit(federation)
    with opened(tmp_path / "here", None) as federation:
        assert METHODS["describe"].fit(federation) == there


def test_a_source_that_changed_is_refused_by_the_worker(cluster: Any, tmp_path: Path) -> None:
    pd.DataFrame({"id": range(10), "debt": 0.5}).to_parquet(tmp_path / "t.parquet")
    source = open_source({"parquet": str(tmp_path / "t.parquet"), "dask": cluster.scheduler_address})
    block = Block.load("bank", source, key="id", columns=COLUMNS.select(["debt"]))
    pd.DataFrame({"id": range(1, 11), "debt": 0.5}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(SourceError, match="no longer gives the records"):
        aggregate(block, np.arange(10), ["debt"], CellCounts("debt", cells(COLUMNS["debt"], bins=2)))


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"dask": "tcp://10.0.0.7:8786"}, "would carry records in the clear"),
        ({"dask": "tls://10.0.0.7:8786"}, "needs dask_ca, dask_certificate and dask_key"),
        ({"dask": "10.0.0.7:8786"}, 'is "tls://HOST:PORT"'),
        ({"dask": "tcp://127.0.0.1:8786", "dask_ca": "ca.pem"}, "has no TLS"),
        ({"dask": "tcp://10.0.0.7:8786", "dask_encryption": "rot13"}, 'is "tls" or "none"'),
    ],
)
def test_a_connection_in_the_clear_must_be_asked_for(options: dict[str, str], cause: str) -> None:
    with pytest.raises(SourceError, match=cause):
        open_source({"csv": "t.csv", **options})


def test_a_cluster_that_is_away_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colonnade.data.cluster.PATIENCE", 1)
    (tmp_path / "t.csv").write_text("id,debt\n1,0.5\n")
    plain = {"csv": str(tmp_path / "t.csv"), "dask": "tcp://127.0.0.1:9", "dask_encryption": "none"}
    source = open_source(plain)
    assert isinstance(source, OnCluster)
    with pytest.raises(SourceError, match=r"tcp://127\.0\.0\.1:9 cannot be reached .* start its scheduler"):
        list(source.cluster.run(len, [("abc",)]))


def test_a_cluster_with_tls_is_used_and_refuses_strangers(tmp_path: Path) -> None:
    security = distributed.Security.temporary()
    files = {}
    for field, text in (("ca", "tls_ca_file"), ("certificate", "tls_client_cert"), ("key", "tls_client_key")):
        files[field] = str(tmp_path / f"{field}.pem")
        (tmp_path / f"{field}.pem").write_text(getattr(security, text))
    with distributed.LocalCluster(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0", protocol="tls", security=security
    ) as local:
        address = local.scheduler_address
        assert address.startswith("tls://")
        assert list(Cluster(address=address, **files).run(len, [("abc",), ("",)])) == [3, 0]
        plain = Cluster(address=address.replace("tls://", "tcp://"), encryption="none")
        with pytest.raises(SourceError, match="cannot be reached"):
            list(plain.run(len, [("abc",)]))
