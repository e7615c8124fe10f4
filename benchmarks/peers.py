"""Beside the peers: same data, same machine, same run. `make bench PEERS=1` makes their environment and runs this.

Pooled statsmodels, skglm, OpenDP's AIM (a trusted curator), MPyC, and GAIN of hyperimpute. Ours runs here, through an
embedded federation with ledgers and secret shares; theirs in `.venv-peers`, by `rivals/peers_side.py`, pooled.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import colonnade as co
from benchmarks.common import REPOSITORY, Page, quick
from colonnade.data.simulated import five_institutions
from colonnade.data.simulated.example import Example, design_matrix
from colonnade.evaluation import fidelity
from colonnade.privacy.accounting import calibrate
from colonnade.privacy.cost import ZeroConcentrated

PEERS = REPOSITORY / ".venv-peers" / "bin" / "python"
N = 20_000
RESPONSE = "profit_growth"
NUMBERS = ("roa", "sales_growth", "liability_ratio", "asset_growth", "investors", "capital", "changes", RESPONSE)
CATEGORIES = ("scale", "region", "term", "removed", "unreachable", "penalty_1", "penalty_2")
EPSILON, DELTA = 1.0, 1e-6
COMPLETED = ("employees", "shareholder_contribution", "roa", "roe", "operating_margin", "tax_burden", "liability_ratio")
PLACE = "place in the complete table"
ALLOWED = ("presence", "exact-moments", "split-training", "completion-quality")


def federation(example: Example, folder: str) -> co.Federation:
    return co.Federation.local(
        example.blocks,
        key=example.key,
        columns=example.columns,
        organisations=example.organisations,
        home=Path(folder) / "home",
        runs=Path(folder) / "runs",
        allow=ALLOWED,
        seed=1,
    )


def run_ours(folder: Path, whole: Example, missing: Example) -> dict[str, Any]:
    """Fit with ours; write the tables that the peers read."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home, federation(whole, home) as complete:
        start = time.process_time()
        fit = co.VFEM(response=RESPONSE, columns=NUMBERS).fit(complete)
        found["regress"] = {
            "response": RESPONSE,
            "cpu": time.process_time() - start,
            "params": fit.params.to_dict(),
            "bse": fit.bse.to_dict(),
        }
        start = time.process_time()
        path = co.SparseGLM(response=RESPONSE, columns=NUMBERS, penalty="lasso", n_lambdas=20).fit(complete)
        found["select"] = {
            "response": RESPONSE,
            "cpu": time.process_time() - start,
            "lambdas": [float(one) for one in path.lambdas],
        }
        spread = design_matrix(whole.truth.complete, whole.columns.select(list(NUMBERS))).std(ddof=0)
        found["select"]["path"] = {n: (path.path[n] * spread[n]).tolist() for n in path.path.columns if n != "const"}
        start = time.process_time()
        table = co.VertiMRF(epsilon=EPSILON, delta=DELTA, columns=CATEGORIES).fit(complete)
        rows = table.sample(N)
        rho = 1 / calibrate(lambda x: [ZeroConcentrated(1 / x)], epsilon=EPSILON, delta=DELTA)
        found["synthesize"] = {
            "cpu": time.process_time() - start,
            "rho": rho,
            "categories": {name: [str(one) for one in whole.columns[name].categories or ()] for name in CATEGORIES},
        }
    rows.to_parquet(folder / "ours.parquet")
    with tempfile.TemporaryDirectory() as home, federation(missing, home) as incomplete:
        start = time.process_time()
        fit = co.VFEM(response=RESPONSE, columns=NUMBERS).fit(incomplete)
        found["regress"]["missing"] = {"cpu": time.process_time() - start, "params": fit.params.to_dict()}
        start = time.process_time()
        result = co.FedPSG(complete=("credit",), iterations=600 if quick() else 3000).fit(incomplete)
        found["complete"] = {"cpu": time.process_time() - start}
        filled = result.table("credit")
        filled[PLACE] = places(incomplete, missing)[filled["cohort row"].to_numpy(int)]
        filled.to_parquet(folder / "fedpsg.parquet")
    return found


def write_tables(folder: Path, whole: Example, missing: Example) -> None:
    """The pooled tables that a trusted curator would have."""
    complete = design_matrix(whole.truth.complete, whole.columns.select(list(NUMBERS)))
    complete.to_parquet(folder / "regress_complete.parquet")
    complete.to_parquet(folder / "select.parquet")
    seen = design_matrix(missing.truth.complete, missing.columns.select(list(NUMBERS)))
    has = missing.truth.presence
    owner = {name: party for party, block in missing.blocks.items() for name in block.columns}
    for name in seen.columns:
        seen.loc[~has[owner[name]].to_numpy(bool), name] = np.nan
    seen.to_parquet(folder / "regress_cases.parquet")
    whole.truth.complete[list(CATEGORIES)].astype(str).to_parquet(folder / "synthesize.parquet")
    pooled = design_matrix(
        missing.truth.complete, missing.columns.select([*COMPLETED, "investors", "capital", "changes", RESPONSE])
    )
    hidden = ~has["credit"].to_numpy(bool)
    pooled.loc[hidden, list(COMPLETED)] = np.nan
    pooled.to_parquet(folder / "complete.parquet")


def main() -> int:
    if not PEERS.is_file():
        raise SystemExit("there is no .venv-peers; run `make bench PEERS=1`, which makes it.")
    page = Page("peers", "Beside the peers")
    page.say(
        f"Same data, same machine, same run; one thread. {N:,} simulated firms at five institutions. Ours goes through"
        " an embedded federation with ledgers, secret shares and transcripts, and no party sees another's columns; the"
        " peers have all columns in one table. CPU seconds are those of one run; what is compiled at first use counts"
        " for ours, and not for skglm."
    )
    whole, missing = five_institutions(N, seed=11, missing=None), five_institutions(N, seed=11)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_tables(folder, whole, missing)
        ours = run_ours(folder, whole, missing)
        (folder / "ours.json").write_text(json.dumps(ours))
        side = REPOSITORY / "benchmarks" / "rivals" / "peers_side.py"
        subprocess.run([str(PEERS), str(side), str(folder)], check=True)
        theirs = json.loads((folder / "peers.json").read_text())
        good = tell(page, folder, ours, theirs, whole, missing)
    return page.finish(good, jobs=len(theirs), failed=sum("failed" in one for one in theirs.values()))


def tell(
    page: Page, folder: Path, ours: dict[str, Any], theirs: dict[str, Any], whole: Example, missing: Example
) -> bool:
    rows: list[list[str]] = []
    good = True

    def add(job: str, figure: str, mine: str, peer: str, cpu: str, told: str) -> None:
        rows.append([job, figure, mine, peer, cpu, told])

    def ran(job: str) -> bool:
        if "failed" in theirs[job]:
            add(job, "did not run", "", theirs[job]["failed"].replace("|", "/"), "", "")
            return False
        return True

    if ran("regress"):
        mine, peer = ours["regress"], theirs["regress"]
        gap = max(
            abs(mine["params"][k] - peer["complete"]["params"][k]) / peer["complete"]["bse"][k]
            for k in peer["complete"]["params"]
        )
        good &= gap < 0.1
        add(
            "`regress`, complete records",
            "largest difference of a coefficient, in standard errors",
            f"{gap:.4f}",
            "0 (pooled least squares)",
            f"{mine['cpu']:.1f} / {peer['complete']['cpu']:.2f}",
            peer["peer"],
        )
        truth = missing.truth.equations[RESPONSE].coefficients
        spread = design_matrix(missing.truth.complete, missing.columns.select(list(NUMBERS))).std(ddof=0)
        reference = theirs["regress"]["complete"]["params"]  # the same firms with nothing missing
        kept = [name for name in reference if name != "const"]

        def error(params: dict[str, float]) -> float:
            return math.sqrt(float(np.mean([((params[k] - reference[k]) * spread[k]) ** 2 for k in kept])))

        assert set(kept) <= set(truth.index)
        add(
            "`regress`, blocks missing at random",
            "RMSE from the fit without missing blocks, per standard deviation",
            f"{error(mine['missing']['params']):.4f}",
            f"{error(peer['cases']['params']):.4f} (complete cases, {peer['cases']['n']:,})",
            f"{mine['missing']['cpu']:.1f} / {peer['cases']['cpu']:.2f}",
            peer["peer"],
        )
    if ran("select"):
        mine, peer = ours["select"], theirs["select"]
        other = np.array(peer["path"])
        gap = float(
            np.abs(np.column_stack([mine["path"][n] for n in peer["columns"]]) - other).max() / np.abs(other).max()
        )
        good &= gap < 1e-2
        add(
            "`select`, lasso, 20 lambdas",
            "largest difference of a coefficient, of the largest",
            f"{gap:.1e}",
            "0 (pooled)",
            f"{mine['cpu']:.1f} / {peer['cpu']:.2f}",
            peer["peer"],
        )
    if ran("synthesize"):
        columns = whole.columns.select(list(CATEGORIES))
        real = fidelity.cut(whole.truth.complete, columns)
        made = fidelity.cut(pd.read_parquet(folder / "ours.parquet"), columns)
        aim = pd.read_parquet(folder / "aim.parquet")
        rival = fidelity.cut(
            pd.DataFrame({n: columns[n].decode(columns[n].encode(aim[n])) for n in CATEGORIES}), columns
        )
        for ways in (2, 3):
            one, two = (
                fidelity.average_distance(real, other, ways=ways, tables=100, seed=0) for other in (made, rival)
            )
            add(
                f"`synthesize`, {len(CATEGORIES)} columns of categories, epsilon {EPSILON:g}",
                f"mean {ways}-way total variation distance",
                f"{one:.4f} (no trusted party)",
                f"{two:.4f} (AIM, trusted curator)",
                f"{ours['synthesize']['cpu']:.1f} / {theirs['synthesize']['cpu']:.1f}",
                theirs["synthesize"]["peer"],
            )
    if ran("complete"):
        one, two, mean = completion_errors(folder, missing)
        add(
            "`complete`, the credit agency's records",
            "RMSE of hidden entries, of a column's range",
            f"{one:.4f}",
            f"{two:.4f} (GAIN, pooled); means {mean:.4f}",
            f"{ours['complete']['cpu']:.0f} / {theirs['complete']['cpu']:.0f}",
            theirs["complete"]["peer"],
        )
    secure = against_mpyc()
    rows.append(secure)
    page.table(["job", "figure", "ours", "peer", "CPU s, ours / peer", "versions"], rows)
    page.say(
        "Left out: SmartNoise, whose synthesizers need older packages; OpenDP's AIM is the same mechanism."
        " A peer that did not run says why in its row."
    )
    return good


def completion_errors(folder: Path, missing: Example) -> tuple[float, float, float]:
    """RMSE on the records that the credit agency lacks: ours, GAIN's, means'. In the order of the complete table."""
    columns = missing.columns.select(list(COMPLETED))
    truth = design_matrix(missing.truth.complete, columns)
    hidden = ~missing.truth.presence["credit"].to_numpy(bool)
    ranges = {name: float((columns[name].upper or 1.0) - (columns[name].lower or 0.0)) for name in COMPLETED}
    gain = pd.read_parquet(folder / "gain.parquet")
    filled = pd.read_parquet(folder / "fedpsg.parquet")

    def rmse(values: pd.DataFrame, known: pd.DataFrame) -> float:
        return math.sqrt(
            float(
                np.mean(
                    [
                        np.mean(((values[n].to_numpy(float) - known[n].to_numpy(float)) / ranges[n]) ** 2)
                        for n in COMPLETED
                    ]
                )
            )
        )

    generated = filled[[f"{n} (generated)" for n in COMPLETED]].all(axis=1)
    known = truth.iloc[filled.loc[generated, PLACE].to_numpy(int)]
    means = truth.loc[~hidden, list(COMPLETED)].mean()
    flat = pd.DataFrame({n: np.full(int(hidden.sum()), means[n]) for n in COMPLETED})
    return rmse(filled[generated], known), rmse(gain.loc[hidden], truth.loc[hidden]), rmse(flat, truth.loc[hidden])


def places(opened: co.Federation, example: Example) -> np.ndarray[Any, Any]:
    """For each row of the cohort, its place in the complete table: only whoever has all blocks can say."""
    where = pd.Series(np.arange(example.n), index=example.truth.complete[example.key])
    found = np.full(opened.facts.n, -1)
    for party, block in example.blocks.items():
        found[opened.transport[party].rows] = where[block[example.key]].to_numpy()  # type: ignore[index]
    assert (found >= 0).all()
    return found


def against_mpyc() -> list[str]:
    """One exact Gram matrix of 500 x 20, three parties; MPyC's as `benchmarks/sqm.py` runs it."""
    records, width = 500, 20
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.rivals.mpyc_gram", "-M3", str(records), str(width)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"seconds ([0-9.]+) cpu ([0-9.]+)", ended.stdout + ended.stderr)
    assert found is not None, ended.stderr
    rng = np.random.default_rng(0)
    keys = np.arange(records)
    columns = co.Columns([co.Column(name=f"x{i}", kind="continuous", lower=-1.0, upper=1.0) for i in range(width)])
    cuts = [range(0, 7), range(7, 14), range(14, 20)]
    blocks = {
        f"party{k}": pd.DataFrame({"id": keys, **{f"x{i}": rng.uniform(-1, 1, records) for i in cut}})
        for k, cut in enumerate(cuts)
    }
    with co.Federation.local(blocks, key="id", columns=columns, seed=1) as federation:
        method = co.PatternMoments(epsilon=4.0, presence="ignore")
        method.fit(federation)  # compiled kernels
        cpu, clock = time.process_time(), time.perf_counter()
        method.fit(federation)
        cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
    return [
        f"secure Gram matrix, {records} x {width}",
        "seconds on the clock",
        f"{clock:.2f} (with noise, ledger and transcript)",
        f"{float(found[1]):.2f}",
        f"{cpu:.2f} / {3 * float(found[2]):.2f}",
        "mpyc",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
