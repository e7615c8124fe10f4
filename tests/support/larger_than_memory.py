"""A program: run four statistics on a block that is larger than the memory they may take, and print what they took.

    python larger_than_memory.py FOLDER RECORDS WIDTH

Prints one line of JSON: for each statistic its peak growth of resident memory in MB, and results to compare. It runs by
itself because memory is measured for a whole process: all three parties and the coordinator.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.federation.config import Spec
from colonnade.federation.coordinator import Federation
from colonnade.papers.vertimrf.sketches import FMSketches
from colonnade.synthesis.field.schema import Schema
from support.plans import plan_of_stages

MEMORY = 450
"""MB that a job of moments may use, 400 of them for the interpreter and the libraries."""


def large_file(path: Path, records: int, width: int) -> None:
    """Columns on the grid of 1/8, keys in a random order, one row group for each 100,000 records."""
    rng = np.random.default_rng(0)
    keys = rng.permutation(records)
    writer = None
    for start in range(0, records, 100_000):
        ids = keys[start : start + 100_000]
        values = {f"x{j}": rng.integers(-8, 9, len(ids)) / 8 for j in range(width)}
        table = pa.table({"id": ids, **values})
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=False, compression="none")
        writer.write_table(table)
    assert writer is not None
    writer.close()


def opened(folder: Path, records: int, width: int) -> Federation:
    folder.mkdir()
    large_file(folder / "a.parquet", records, width)
    ids = np.arange(0, records, 100)
    for party in ("b", "c"):
        pd.DataFrame({"id": ids, party: ids % 17 / 8 - 1}).to_parquet(folder / f"{party}.parquet")
    return federation(folder, width, folder / "home")


def federation(folder: Path, width: int, home: Path, *, whole: bool = False) -> Federation:
    """Of the files in a folder, or of the same tables in memory."""
    names = [*(f"x{j}" for j in range(width)), "b", "c"]
    files = {party: folder / f"{party}.parquet" for party in "abc"}
    spec = Spec(
        blocks={party: pd.read_parquet(path) for party, path in files.items()} if whole else files,
        key="id",
        columns=Columns([Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in names]),
        home=home,
        seed=1,
        allow=("exact-moments", "exact-tables", "fm-sketches"),
    )
    return Federation.from_spec(spec, runs=home / "runs")


def describe(federation: Federation) -> Any:
    """So large an epsilon that the noise is 0."""
    found = co.Describe(epsilon=1e4, delta=0.0, marginals="histogram", bins=16, columns=("x0", "x1")).fit(federation)
    return {name: one["counts"] for name, one in found.marginals.items()}


def moments(federation: Federation) -> Any:
    method = co.Moments(epsilon=None, gamma=64, presence="ignore", memory=MEMORY, verify=False)
    assert len(method.layout(federation.facts, federation.roster).chunks) > 1 or federation.facts.n < 10_000
    return method.fit(federation).grams[0].tolist()


def tables(federation: Federation) -> Any:
    wanted = (("x0", "x1"), ("x2", "b"), ("x3", "c"))
    found = co.Tables(tables=wanted, bins=4, epsilon=None, memory=MEMORY - 30, verify=False).fit(federation)
    return {" ".join(names): found[names].tolist() for names in wanted}


def sketches(federation: Federation) -> Any:
    schema = Schema.declared(federation.facts, bins=8)
    encoder = FMSketches(schema, federation.roster, epsilon=None, sketches=6, bins=4)
    with federation.open(plan_of_stages("vertimrf", encoder.stages, delta=0.0)) as job:
        return {name: levels.tolist() for name, levels in encoder.encode(job, schema).levels.items()}


def resident(field: str) -> float:
    """MB: "VmRSS" is now, "VmHWM" the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def measured(work: Callable[[], Any]) -> tuple[float, Any]:
    """The peak growth of resident memory, and what came out."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    result = work()
    return resident("VmHWM") - before, result


def main(folder: Path, records: int, width: int) -> None:
    statistics = (describe, moments, tables, sketches)
    with opened(folder / "small", 5000, 6) as small:
        for one in statistics:  # libraries are loaded and kernels compiled before anything is measured
            one(small)
    grown, found = {}, {}
    with opened(folder / "large", records, width) as large:
        for one in statistics:
            grown[one.__name__], found[one.__name__] = measured(lambda one=one: one(large))
    grown["everything at once"], _ = measured(lambda: pd.read_parquet(folder / "large" / "a.parquet"))
    sys.stdout.write(json.dumps({"grown": grown, "found": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
