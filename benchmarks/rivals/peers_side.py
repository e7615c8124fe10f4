"""What the peers compute, in their own environment: `.venv-peers/bin/python peers_side.py FOLDER`.

Reads what `benchmarks/peers.py` wrote into the folder and writes peers.json there: for each job the figures, CPU
seconds and versions; or the reason why a peer could not run. Nothing of Colonnade is imported.
"""

from __future__ import annotations

import importlib.metadata
import json
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

    table = pd.read_parquet(folder / "select.parquet")
    y = table.pop(told["response"])
    x = ((table - table.mean()) / table.std(ddof=0)).to_numpy(np.float64)
    centred = (y - y.mean()).to_numpy(np.float64)
    x = np.asfortranarray(x)
    Lasso(alpha=told["lambdas"][0], fit_intercept=False).fit(x, centred)
    start, path = time.process_time(), []
    for lam in told["lambdas"]:
        path.append(Lasso(alpha=lam, fit_intercept=False, tol=1e-9).fit(x, centred).coef_.tolist())
    return {"peer": version("skglm"), "cpu": time.process_time() - start, "path": path, "columns": list(table.columns)}


def opendp_aim(folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    """AIM with a trusted curator who has all columns; synthetic rows."""
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
        .contingency_table(keys=told["categories"], algorithm=dp.mbi.AIM())
        .release()
    )
    rows = release.synthesize(rows=len(table), method="sample").to_pandas()
    cpu = time.process_time() - start
    rows.astype(str).to_parquet(folder / "aim.parquet")
    return {"peer": version("opendp", "mbi"), "cpu": cpu}


def hyperimpute_gain(folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    """GAIN on the pooled table; the hidden entries are scored."""
    from hyperimpute.plugins.imputers import Imputers

    table = pd.read_parquet(folder / "complete.parquet")
    start = time.process_time()
    filled = Imputers().get("gain").fit_transform(table.copy())
    filled = pd.DataFrame(np.asarray(filled, dtype=np.float64), columns=table.columns)
    filled.to_parquet(folder / "gain.parquet")
    return {"peer": version("hyperimpute", "torch"), "cpu": time.process_time() - start}


JOBS: dict[str, Callable[[Path, dict[str, Any]], dict[str, Any]]] = {
    "regress": statsmodels_ols,
    "select": skglm_lasso,
    "synthesize": opendp_aim,
    "complete": hyperimpute_gain,
}


def main(folder: Path) -> None:
    told = json.loads((folder / "ours.json").read_text())
    found: dict[str, Any] = {}
    for job, run in JOBS.items():
        if job not in told:
            continue
        try:
            found[job] = run(folder, told[job])
        except Exception as error:  # a peer that fails is reported with its reason, not hidden
            found[job] = {"failed": f"{type(error).__name__}: {error}"[:300]}
        print(job, "failed" if "failed" in found[job] else "done", found[job].get("failed", ""), flush=True)
    (folder / "peers.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
