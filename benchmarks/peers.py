"""Beside the peers: same data, same machine, same run. `make bench PEERS=1` makes their environment and runs this.

Pooled statsmodels, skglm, OpenDP's synthesizers (a trusted curator), MPyC, and GAIN of hyperimpute. Ours runs through
an embedded federation with ledgers and secret shares (`peers_common.py`); theirs in `.venv-peers`, pooled, by
`rivals/peers_side.py`. Every part has a process and a limit of its own; one that does not finish says so in its row.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import peers_common as common
from benchmarks.common import REPOSITORY, Page
from benchmarks.peers_common import CATEGORIES, COMPLETED, EPSILON, GRAM, ITERATIONS, NUMBERS, PLACE, N
from colonnade.data.simulated.example import Example, design_matrix
from colonnade.evaluation import fidelity

PYTHON = REPOSITORY / ".venv-peers" / "bin" / "python"
KEPT = REPOSITORY / ".studies" / "peers"
"""What every part found, and the tables that they read and wrote; a run begins by removing it."""
SIDE = REPOSITORY / "benchmarks" / "rivals" / "peers_side.py"
LIMIT = 240
"""CPU seconds that a part may take, ours as well as a peer's, unless `LIMITS` says more."""
LIMITS = {"aim": 600}
PEERS = {
    "regress": ("statsmodels",),
    "select": ("skglm",),
    "synthesize": ("aim", "mst"),
    "complete": ("gain", "gain-few-hints"),
    "gram": ("mpyc",),
}
Found = Mapping[str, dict[str, Any]]


def run(folder: Path, name: str) -> dict[str, Any]:
    """One part in a process of its own: what it found, or `{"failed": why}`."""
    seconds = LIMITS.get(name.removeprefix("ours-"), LIMIT)
    part = name.removeprefix("ours-")
    ours = [sys.executable, "-m", "benchmarks.peers_common", str(folder), part, str(seconds)]
    theirs = [str(PYTHON), str(SIDE), str(folder), part, str(seconds)]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    process = subprocess.Popen(
        ours if name.startswith("ours-") else theirs,
        cwd=REPOSITORY,
        env=os.environ | one_thread,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:  # a part that waits spends no CPU time: the clock is a limit too
        said, _ = process.communicate(timeout=4 * seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return failed(name, f"did not finish in {4 * seconds} seconds on the clock at {N:,} records")
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return failed(name, f"did not finish in {seconds} CPU seconds at {N:,} records")
    if process.returncode:
        return failed(name, (said.strip().splitlines() or ["it said nothing"])[-1][:200].replace("|", "/"))
    print(f"  {name}: done", flush=True)
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


def failed(name: str, why: str) -> dict[str, Any]:
    print(f"  {name}: {why}", flush=True)
    return {"failed": why}


def main() -> int:
    if not PYTHON.is_file():
        raise SystemExit("there is no .venv-peers; run `make bench PEERS=1`, which makes it.")
    page = Page("peers", "Beside the peers", command="make bench PEERS=1")
    page.say(
        f"Same data, same machine, same run; one thread. {N:,} simulated firms at five institutions. Ours goes through"
        " an embedded federation with ledgers, secret shares and transcripts, and no party sees another's columns; the"
        " peers have all columns in one table. CPU seconds are those of one run; what is compiled at first use counts"
        " for ours and for OpenDP, not for skglm nor for the Gram matrix."
    )
    busy = os.getloadavg()[0]
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    common.write_tables(KEPT)
    found = {name: run(KEPT, name) for job in PEERS for name in (f"ours-{job}", *PEERS[job])}
    rows, wrong = tell(KEPT, found)
    page.table(["job", "figure", "ours", "peer", "CPU s, ours / peer", "versions"], rows)
    page.say(
        f"A part that needs more than {LIMIT} CPU seconds (AIM: {LIMITS['aim']}) is stopped and says so. Not compared:"
        " SmartNoise, whose synthesizers need an older opendp and pandas than the other peers; its AIM and MST are the"
        " mechanisms of OpenDP's, both on mbi. OpenDP, GAIN and Complete run with their default options, but GAIN with"
        f" its paper's 10,000 steps and Complete with {ITERATIONS:,}. Rows in which OpenDP drew no category (it keeps a"
        " cell for that) are left out. MPyC computes an exact matrix; ours has noise, ledger and transcript."
    )
    page.say(
        "GAIN was published for entries that are missing one by one. Here a party lacks whole records, so a hint about"
        " one entry tells its discriminator the whole block: with few hints it does better."
    )
    page.say(
        f"The load average of the machine was {busy:.1f} before the run and {os.getloadavg()[0]:.1f} after it, on"
        f" {os.cpu_count()} cores: the clock counts that, CPU seconds hardly do."
    )
    unfinished = [name for name, one in found.items() if "failed" in one]
    return page.finish(
        not wrong and not any(name.startswith("ours-") for name in unfinished),
        parts=len(found),
        unfinished=",".join(unfinished) or "none",
        wrong=",".join(wrong) or "none",
    )


# --- the table ------------------------------------------------------------------------------------------------


def tell(folder: Path, found: Found) -> tuple[list[list[str]], list[str]]:
    """The rows, and the jobs in which ours is not what the pooled computation gives."""
    rows: list[list[str]] = []
    wrong: list[str] = []
    for job, peers in PEERS.items():
        for peer in peers:
            stopped = [f"{name}: {found[name]['failed']}" for name in (f"ours-{job}", peer) if "failed" in found[name]]
            if stopped:
                rows.append([f"`{job}`", "not compared", "", "; ".join(stopped), "", ""])
                continue
            try:
                told, good = JOBS[job](folder, found[f"ours-{job}"], found[peer] | {"name": peer})
            except Exception as error:  # one comparison that fails must not lose the others
                told, good = (
                    [[f"`{job}`", f"not compared with {peer}", "", f"{type(error).__name__}: {error}", "", ""]],
                    False,
                )
            rows += told
            wrong += [] if good else [job]
    return rows, wrong


def cpu(mine: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return f"{mine['cpu']:.2f} / {other['cpu']:.2f}"


def regress(folder: Path, mine: dict[str, Any], peer: dict[str, Any]) -> tuple[list[list[str]], bool]:
    reference = peer["complete"]["params"]
    gap = max(abs(mine["complete"]["params"][k] - reference[k]) / peer["complete"]["bse"][k] for k in reference)
    example = common.whole()
    spread = design_matrix(example.truth.complete, example.columns.select(list(NUMBERS))).std(ddof=0)
    kept = [name for name in reference if name != "const"]

    def error(params: Mapping[str, float]) -> float:
        return math.sqrt(float(np.mean([((params[k] - reference[k]) * spread[k]) ** 2 for k in kept])))

    rows = [
        [
            "`regress`, complete records",
            "largest difference of a coefficient, in standard errors",
            f"{gap:.1e}",
            "0 (pooled least squares)",
            cpu(mine["complete"], peer["complete"]),
            peer["peer"],
        ],
        [
            "`regress`, blocks missing at random",
            "RMSE from the fit without missing blocks, per standard deviation",
            f"{error(mine['missing']['params']):.4f}",
            f"{error(peer['cases']['params']):.4f} (complete cases, {peer['cases']['n']:,})",
            cpu(mine["missing"], peer["cases"]),
            peer["peer"],
        ],
    ]
    return rows, gap < 0.1


def select(folder: Path, mine: dict[str, Any], peer: dict[str, Any]) -> tuple[list[list[str]], bool]:
    other = np.array(peer["path"])
    ours = np.column_stack([mine["path"][name] for name in peer["columns"]])
    gap = float(np.abs(ours - other).max() / np.abs(other).max())
    row = [
        "`select`, lasso, 20 lambdas",
        "largest difference of a coefficient, of the largest",
        f"{gap:.1e}",
        "0 (pooled)",
        cpu(mine, peer),
        peer["peer"],
    ]
    return [row], gap < 1e-2


def synthesize(folder: Path, mine: dict[str, Any], peer: dict[str, Any]) -> tuple[list[list[str]], bool]:
    example = common.whole()
    columns = example.columns.select(list(CATEGORIES))
    real = fidelity.cut(example.truth.complete, columns)
    made = fidelity.cut(pd.read_parquet(folder / "ours.parquet"), columns)
    drawn = pd.read_parquet(folder / f"{peer['name']}.parquet")
    told = {n: [str(one) for one in columns[n].categories or ()] for n in CATEGORIES}
    # OpenDP's tables have a cell for values that are in no category; rows drawn from it are left out.
    drawn = drawn[np.logical_and.reduce([drawn[n].isin(told[n]) for n in CATEGORIES])]
    rival = fidelity.cut(pd.DataFrame({n: columns[n].decode(columns[n].encode(drawn[n])) for n in CATEGORIES}), columns)
    rows = []
    for ways in (2, 3):
        one, two = (fidelity.average_distance(real, other, ways=ways, tables=100, seed=0) for other in (made, rival))
        rows.append(
            [
                f"`synthesize`, {len(CATEGORIES)} columns of categories, epsilon {EPSILON:g}",
                f"mean {ways}-way total variation distance",
                f"{one:.4f} (no trusted party)",
                f"{two:.4f} ({peer['name'].upper()}, trusted curator)",
                cpu(mine, peer),
                peer["peer"],
            ]
        )
    return rows, True


def complete(folder: Path, mine: dict[str, Any], peer: dict[str, Any]) -> tuple[list[list[str]], bool]:
    one, two, means = completion_errors(folder, common.incomplete(), rival=peer["name"])
    hints = {"gain": "as published, hint rate 0.9", "gain-few-hints": "hint rate 0.1"}[peer["name"]]
    row = [
        "`complete`, the credit agency's records",
        "RMSE of hidden entries, of a column's range",
        f"{one:.4f}",
        f"{two:.4f} (GAIN, pooled, {hints}); means {means:.4f}",
        cpu(mine, peer),
        peer["peer"],
    ]
    return [row], True


def completion_errors(folder: Path, missing: Example, *, rival: str) -> tuple[float, float, float]:
    """RMSE on the records that the credit agency lacks: ours, GAIN's, means'. In the order of the complete table."""
    columns = missing.columns.select(list(COMPLETED))
    truth = design_matrix(missing.truth.complete, columns)
    gain = pd.read_parquet(folder / f"{rival}.parquet")
    filled = pd.read_parquet(folder / "fedpsg.parquet")
    ranges = {name: float((columns[name].upper or 1.0) - (columns[name].lower or 0.0)) for name in COMPLETED}

    def rmse(values: pd.DataFrame, known: pd.DataFrame) -> float:
        errors = [(values[n].to_numpy(float) - known[n].to_numpy(float)) / ranges[n] for n in COMPLETED]
        return math.sqrt(float(np.mean(np.square(errors))))

    # The same records for all three: those that the credit agency lacks and ours completed.
    filled = filled[filled[[f"{n} (generated)" for n in COMPLETED]].all(axis=1)]
    places = filled[PLACE].to_numpy(int)
    assert not missing.truth.presence["credit"].to_numpy(bool)[places].any()
    held = missing.truth.presence["credit"].to_numpy(bool)
    means = truth.loc[held, list(COMPLETED)].mean()
    flat = pd.DataFrame({n: np.full(places.size, means[n]) for n in COMPLETED})
    known = truth.iloc[places]
    return rmse(filled, known), rmse(gain.iloc[places], known), rmse(flat, known)


def gram(folder: Path, mine: dict[str, Any], peer: dict[str, Any]) -> tuple[list[list[str]], bool]:
    row = [
        f"secure Gram matrix, {GRAM[0]:,} x {GRAM[1]}",
        "seconds on the clock",
        f"{mine['clock']:.2f} (with noise, ledger and transcript)",
        f"{peer['clock']:.2f} (exact)",
        cpu(mine, peer),
        peer["peer"],
    ]
    return [row], True


JOBS = {"regress": regress, "select": select, "synthesize": synthesize, "complete": complete, "gram": gram}


if __name__ == "__main__":
    raise SystemExit(main())
