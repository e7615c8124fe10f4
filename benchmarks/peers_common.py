"""The data that ours and the peers get, and what ours computes with it.

`python -m benchmarks.peers_common FOLDER PART SECONDS` computes one part, in a process of its own and with a limit of
CPU seconds, so that one that fails or hangs loses no other.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import colonnade as co
from benchmarks.common import quick
from colonnade.data.simulated import five_institutions
from colonnade.data.simulated.example import Example, design_matrix
from colonnade.privacy.accounting import calibrate
from colonnade.privacy.cost import ZeroConcentrated

N = 5_000 if quick() else 20_000
SEED = 11
RESPONSE = "profit_growth"
NUMBERS = ("roa", "sales_growth", "liability_ratio", "asset_growth", "investors", "capital", "changes", RESPONSE)
CATEGORIES = ("scale", "region", "term", "removed", "unreachable", "penalty_1", "penalty_2")
EPSILON, DELTA = 1.0, 1e-6
ITERATIONS = 3000
"""Of Complete; its default is 10,000."""
COMPLETED = ("employees", "shareholder_contribution", "roa", "roe", "operating_margin", "tax_burden", "liability_ratio")
PLACE = "place in the complete table"
ALLOWED = ("presence", "exact-moments", "split-training", "completion-quality")
GRAM = (5000, 60)
"""Records and columns of the secure Gram matrix: three parties with twenty columns each."""


def whole() -> Example:
    return five_institutions(N, seed=SEED, missing=None)


def incomplete() -> Example:
    """The same firms; blocks are missing at random given what others hold."""
    return five_institutions(N, seed=SEED)


def write_tables(folder: Path) -> None:
    """The pooled tables that a trusted curator would have, and what the peers are told."""
    every, seen = whole(), incomplete()
    complete = design_matrix(every.truth.complete, every.columns.select(list(NUMBERS)))
    complete.to_parquet(folder / "regress_complete.parquet")
    pooled(seen, seen.columns.select(list(NUMBERS))).to_parquet(folder / "regress_cases.parquet")
    every.truth.complete[list(CATEGORIES)].astype(str).to_parquet(folder / "synthesize.parquet")
    pooled(seen, seen.columns).to_parquet(folder / "complete.parquet")
    told = {
        "response": RESPONSE,
        "rho": 1 / calibrate(lambda x: [ZeroConcentrated(1 / x)], epsilon=EPSILON, delta=DELTA),
        "categories": {name: [str(one) for one in every.columns[name].categories or ()] for name in CATEGORIES},
        "gram": GRAM,
    }
    (folder / "told.json").write_text(json.dumps(told))


def pooled(example: Example, columns: co.Columns) -> pd.DataFrame:
    """All columns as numbers in one table, empty where a party has no record."""
    table = design_matrix(example.truth.complete, columns)
    owner = {name: party for party, block in example.blocks.items() for name in block.columns}
    for name in table.columns:
        table.loc[~example.truth.presence[owner[name.partition("[")[0]]].to_numpy(bool), name] = np.nan
    return table


@contextmanager
def opened(example: Example) -> Iterator[co.Federation]:
    with (
        tempfile.TemporaryDirectory() as folder,
        co.Federation.local(
            example.blocks,
            key=example.key,
            columns=example.columns,
            organisations=example.organisations,
            home=Path(folder) / "home",
            runs=Path(folder) / "runs",
            allow=ALLOWED,
            seed=1,
        ) as federation,
    ):
        yield federation


# --- ours ---------------------------------------------------------------------------------------------------


def regress(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, example in (("complete", whole()), ("missing", incomplete())):
        with opened(example) as federation:
            start = time.process_time()
            fit = co.Regress(response=RESPONSE, columns=NUMBERS).fit(federation)
            found[name] = {"cpu": time.process_time() - start, "params": fit.params.to_dict()}
    return found


def select(folder: Path) -> dict[str, Any]:
    example = whole()
    with opened(example) as federation:
        start = time.process_time()
        fit = co.Select(response=RESPONSE, columns=NUMBERS, penalty="lasso", n_lambdas=20).fit(federation)
        cpu = time.process_time() - start
    spread = design_matrix(example.truth.complete, example.columns.select(list(NUMBERS))).std(ddof=0)
    lambdas = [float(one) for one in fit.lambdas]
    (folder / "lambdas.json").write_text(json.dumps(lambdas))
    return {
        "cpu": cpu,
        "lambdas": lambdas,
        "path": {n: (fit.path[n] * spread[n]).tolist() for n in fit.path.columns if n != "const"},
    }


def synthesize(folder: Path) -> dict[str, Any]:
    with opened(whole()) as federation:
        start = time.process_time()
        table = co.Synthesize(model="field", epsilon=EPSILON, delta=DELTA, columns=CATEGORIES).fit(federation)
        rows = table.sample(N)
        cpu = time.process_time() - start
    rows.to_parquet(folder / "ours.parquet")
    return {"cpu": cpu}


def complete(folder: Path) -> dict[str, Any]:
    example = incomplete()
    with opened(example) as federation:
        start = time.process_time()
        result = co.Complete(parties=("credit",), iterations=ITERATIONS).fit(federation)
        cpu = time.process_time() - start
        filled = result.table("credit")
        filled[PLACE] = places(federation, example)[filled["cohort row"].to_numpy(int)]
    filled.to_parquet(folder / "fedpsg.parquet")
    return {"cpu": cpu}


def places(federation: co.Federation, example: Example) -> np.ndarray[Any, Any]:
    """For each row of the cohort, its place in the complete table: only whoever has all blocks can say."""
    where = pd.Series(np.arange(example.n), index=example.truth.complete[example.key])
    found = np.full(federation.facts.n, -1)
    for party, block in example.blocks.items():
        found[federation.transport[party].rows] = where[block[example.key]].to_numpy()  # type: ignore[index]
    assert (found >= 0).all()
    return found


def gram(folder: Path) -> dict[str, Any]:
    """One noisy Gram matrix of three parties, with ledger and transcript; the first one compiles."""
    records, width = GRAM
    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(width)]
    columns = co.Columns([co.Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in names])
    blocks = {
        f"party{k}": pd.DataFrame(
            {"id": np.arange(records), **{name: rng.uniform(-1, 1, records) for name in names[k::3]}}
        )
        for k in range(3)
    }
    with co.Federation.local(blocks, key="id", columns=columns, seed=1) as federation:
        method = co.Moments(epsilon=4.0, presence="ignore")
        method.fit(federation)
        cpu, clock = time.process_time(), time.perf_counter()
        method.fit(federation)
        return {"cpu": time.process_time() - cpu, "clock": time.perf_counter() - clock}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "regress": regress,
    "select": select,
    "synthesize": synthesize,
    "complete": complete,
    "gram": gram,
}


def main(folder: Path, part: str, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    found = PARTS[part](folder)
    (folder / f"ours-{part}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
