"""What one peer computes, in the peers' environment: `.venv-peers/bin/python peers_side.py FOLDER PEER SECONDS`.

Reads what `benchmarks/peers_common.py` wrote into the folder and writes PEER.json there: figures, CPU seconds and
versions. It may take SECONDS of CPU time. Nothing of Colonnade is imported.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

warnings.filterwarnings("ignore")


def version(*packages: str) -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def statsmodels_ols(folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    """Pooled least squares on the complete table, and on the complete cases of the table with missing blocks."""
    import statsmodels.api as sm

    found: dict[str, Any] = {"peer": version("statsmodels")}
    for name in ("complete", "cases"):
        table = pd.read_parquet(folder / f"regress_{name}.parquet").dropna()
        start = time.process_time()
        y = table[told["response"]]
        fit = sm.OLS(y, sm.add_constant(table.drop(columns=told["response"]))).fit()
        found[name] = {
            "cpu": time.process_time() - start,
            "params": fit.params.to_dict(),
            "bse": fit.bse.to_dict(),
            "n": len(table),
        }
    return found


def skglm_lasso(folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    """The lasso at each lambda, on standardised columns, pooled; the first fit compiles and is not counted."""
    from skglm import Lasso

    lambdas = json.loads((folder / "lambdas.json").read_text())
    table = pd.read_parquet(folder / "regress_complete.parquet")
    y = table.pop(told["response"])
    x = np.asfortranarray(((table - table.mean()) / table.std(ddof=0)).to_numpy(np.float64))
    centred = (y - y.mean()).to_numpy(np.float64)
    Lasso(alpha=lambdas[0], fit_intercept=False).fit(x, centred)
    start, path = time.process_time(), []
    for lam in lambdas:
        path.append(Lasso(alpha=lam, fit_intercept=False, tol=1e-9).fit(x, centred).coef_.tolist())
    return {"peer": version("skglm"), "cpu": time.process_time() - start, "path": path, "columns": list(table.columns)}


def opendp_table(folder: Path, told: dict[str, Any], algorithm: str) -> dict[str, Any]:
    """A synthesizer of OpenDP with its default options: a trusted curator has all columns. Writes synthetic rows."""
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib")
    table = pd.read_parquet(folder / "synthesize.parquet")
    start = time.process_time()
    context = dp.Context.compositor(
        data=pl.from_pandas(table).lazy(),
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(rho=told["rho"]),
    )
    release = (
        context.query(rho=told["rho"])
        .select(*table.columns)
        .contingency_table(keys=told["categories"], algorithm=getattr(dp.mbi, algorithm)())
        .release()
    )
    rows = release.synthesize(rows=len(table), method="sample").to_pandas()
    cpu = time.process_time() - start
    rows.astype(str).to_parquet(folder / f"{algorithm.lower()}.parquet")
    return {"peer": version("opendp", "mbi"), "cpu": cpu}


def hyperimpute_gain(folder: Path, *, name: str, hint_rate: float) -> dict[str, Any]:
    """GAIN on the pooled table, with as many steps as in its paper: 10,000 of 128 records."""
    import torch
    from hyperimpute.plugins.imputers.plugin_gain import GainImputation

    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - hyperimpute draws from it
    table = pd.read_parquet(folder / "complete.parquet")
    start = time.process_time()
    filled = GainImputation(batch_size=128, n_epochs=10_000, hint_rate=hint_rate).fit_transform(
        torch.from_numpy(table.to_numpy(np.float64, copy=True))
    )
    cpu = time.process_time() - start
    pd.DataFrame(np.asarray(filled), columns=table.columns).to_parquet(folder / f"{name}.parquet")
    return {"peer": version("hyperimpute", "torch"), "cpu": cpu}


def mpyc_gram(folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    """An exact Gram matrix of three processes; each spends about as much CPU time as the first, which measures it."""
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("mpyc_gram.py")), "-M3", *map(str, told["gram"])],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"seconds ([0-9.]+) cpu ([0-9.]+)", ended.stdout + ended.stderr)
    if found is None:
        raise RuntimeError((ended.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return {"peer": version("mpyc"), "clock": float(found[1]), "cpu": 3 * float(found[2])}


PEERS: dict[str, Callable[[Path, dict[str, Any]], dict[str, Any]]] = {
    "statsmodels": statsmodels_ols,
    "skglm": skglm_lasso,
    "mst": lambda folder, told: opendp_table(folder, told, "MST"),
    "aim": lambda folder, told: opendp_table(folder, told, "AIM"),
    "gain": lambda folder, told: hyperimpute_gain(folder, name="gain", hint_rate=0.9),
    "gain-few-hints": lambda folder, told: hyperimpute_gain(folder, name="gain-few-hints", hint_rate=0.1),
    "mpyc": mpyc_gram,
}


def main(folder: Path, peer: str, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    found = PEERS[peer](folder, json.loads((folder / "told.json").read_text()))
    (folder / f"{peer}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
