"""Synthesize end to end at the size of the copula paper's data: 71,827 firms x 55 columns at five parties, embedded.

From the parties' blocks to the run folder with its synthetic table: private marginals, scores, secret shares, noisy
moments, correlation, fresh rows, ledgers and transcripts. Columns and missing blocks are as in the paper's Table 8.

- under 60 seconds of wall time on 2 cores, with secret presence (the default) and with known presence and EM, on an
  otherwise idle machine; the page states the load;
- memory is linear in N: twice as many records add twice the peak (a square would add 4 times as much); the limit
  is halfway between them, 2.8 times. Each size runs in a process of its own.

Memory is measured from 72k to 288k records, where data outweigh what Python and its libraries take; QUICK=1 from 36k to
144k.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import REPOSITORY, RESULTS, Page, quick
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.synthesis.method import Synthesize

PARTIES = {
    "credit": (13, 0.7234),
    "market": (6, 0.8353),
    "court": (6, 0.8733),
    "commerce": (19, 0.2711),
    "enforcement": (11, 0.0),
}
"""(columns, share of the records that are missing)."""
RECORDS, SECONDS, GROWTH = 71_827, 60.0, 2**1.5


def blocks(n: int) -> tuple[dict[str, pd.DataFrame], Columns]:
    """Columns of every kind in turn from one latent factor, with the paper's missing blocks."""
    rng = np.random.default_rng(n)
    common = rng.standard_normal(n)
    keys = np.array([f"F{at:06d}" for at in range(n)])
    columns: list[Column] = []
    made = {}
    for party, (width, missing) in PARTIES.items():
        frame: dict[str, object] = {"firm": keys}
        for at in range(width):
            z = 0.5 * common + np.sqrt(0.75) * rng.standard_normal(n)
            name = f"{party}_{at}"
            match at % 4:
                case 0:
                    frame[name] = np.clip(z, -6, 6)
                    columns.append(Column(name=name, kind="continuous", lower=-6.0, upper=6.0))
                case 1:
                    frame[name] = np.clip(np.rint(3 + 2 * z), 0, 15).astype(np.int64)
                    columns.append(Column(name=name, kind="count", lower=0, upper=15))
                case 2:
                    frame[name] = (z > 0.8).astype(np.int64)
                    columns.append(Column(name=name, kind="binary", categories=(0, 1)))
                case _:
                    frame[name] = 1 + (z > -0.5).astype(np.int64) + (z > 0.7)
                    columns.append(Column(name=name, kind="ordinal", categories=(1, 2, 3)))
        made[party] = pd.DataFrame(frame)[rng.random(n) >= missing]
    return made, Columns(columns)


def measure(n: int, presence: str) -> dict[str, object]:
    """In this process: seconds of wall and CPU of the job, and the peak of memory in MB, before and after it."""
    made, columns = blocks(n)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        with Federation.local(
            made, key="firm", columns=columns, allow=("presence",), home=here / "home", runs=here / "runs"
        ) as parties:
            before = peak()
            wall, cpu = time.perf_counter(), time.process_time()
            how: Any = {"presence": presence, "correlation": "em" if presence == "known" else "pairs"}
            table, _ = parties.run(Synthesize(model="copula", epsilon=1.0, delta=1e-6, **how), sure=True)
            return {
                "wall": time.perf_counter() - wall,
                "cpu": time.process_time() - cpu,
                "before": before,
                "peak": peak(),
                "how": table.details["correlation"],
            }


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_its_own_process(n: int, presence: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.copula", str(n), presence]
    environment = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")}
    run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(run.stderr)
    return json.loads(run.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> int:
    page = Page("copula-speed", "Synthesize end to end: 71,827 records x 55 columns, five parties, embedded")
    page.say(
        "Wall time from the plan to the run folder, with what it takes to write a synthetic table of as many rows;"
        " epsilon 1, delta 1e-6. Peak memory of a process with all five parties and the coordinator."
    )
    load = os.getloadavg()[0]
    sizes = [RECORDS // 2, RECORDS, 2 * RECORDS] if quick() else [RECORDS, 2 * RECORDS, 4 * RECORDS]
    found = {(n, "secret"): in_its_own_process(n, "secret") for n in sizes}
    found[RECORDS, "known"] = in_its_own_process(RECORDS, "known")
    rows = [
        [
            f"{n:,}",
            presence,
            str(one["how"]),
            f"{one['wall']:.1f}",
            f"{one['cpu']:.1f}",
            f"{one['before']:.0f}",
            f"{one['peak']:.0f}",
        ]
        for (n, presence), one in found.items()
    ]
    page.table(["records", "presence", "correlation by", "wall s", "CPU s", "MB with the data loaded", "peak MB"], rows)
    small, middle, large = (found[n, "secret"]["peak"] for n in sizes)
    growth = (large - middle) / (middle - small)
    page.say(
        f"The peak grows by {middle - small:.0f} MB from {sizes[0]:,} to {sizes[1]:,} records and by"
        f" {large - middle:.0f} MB from there to {sizes[2]:,}: {growth:.2f} times as much for twice as many (linear is"
        f" 2, quadratic 4, the limit {GROWTH:.1f})."
    )
    busy = max(load, os.getloadavg()[0])
    page.say(f"The load average was {busy:.1f} on {os.cpu_count()} cores.")
    slowest = {one: max(found[RECORDS, presence][one] for presence in ("secret", "known")) for one in ("wall", "cpu")}
    status = page.finish(
        slowest["wall"] <= SECONDS and growth <= GROWTH,
        cpu_s=f"{slowest['cpu']:.1f}",
        wall_s=f"{slowest['wall']:.1f}",
        load=f"{busy:.1f}",
        memory_growth=f"{growth:.2f}",
    )
    if not quick():
        # copula.md is written by hand, so the page has another name than the benchmark that writes it.
        path = RESULTS / "copula-speed.md"
        text = path.read_text(encoding="utf-8").replace("make study NAME=copula-speed", "make bench NAME=copula")
        path.write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), sys.argv[2])))
    else:
        sys.exit(main())
