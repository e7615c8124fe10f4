"""`Regress` by default at the size of the VFEM paper: five institutions, 166,207 firms, 41 coefficients and a constant.

The whole job of all parties in one process: presence, weights, pattern moments, weighted moments, group errors, with
ledgers and transcripts, and the verification of the moments. Limit: 60 CPU seconds. QUICK=1 takes 20,000 firms.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, quick
from colonnade.data.simulated import five_institutions
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Progress
from colonnade.models.linear.regress import Regress

RECORDS, LIMIT = 166_207, 60.0


def main() -> int:
    page = Page("regress", "Regress: CPU time of one fit", command="make bench NAME=regress")
    example = five_institutions(n=20_000 if quick() else RECORDS, seed=1)
    covariates = tuple(name for name in example.columns if name not in example.responses)
    spent: dict[str, float] = {}
    last = [0.0]

    def note(progress: Progress) -> None:
        now = time.process_time()
        spent[progress.stage] = spent.get(progress.stage, 0.0) + now - last[0]
        last[0] = now

    with (
        tempfile.TemporaryDirectory() as folder,
        Federation.local(
            example.blocks,
            key=example.key,
            columns=example.columns,
            allow=("presence", "exact-moments"),
            home=Path(folder) / "home",
            runs=Path(folder) / "runs",
        ) as federation,
    ):
        method = Regress(response="profit_growth", columns=covariates)
        last[0], start, wall = time.process_time(), time.process_time(), time.perf_counter()
        result, _ = federation.run(method, progress=note)
        taken, clock = time.process_time() - start, time.perf_counter() - wall
        n = federation.facts.n
    page.say(f"{len(example.blocks)} parties, {n:,} records, {result.nobs:,} used, {result.complete:,} complete.")
    spent["estimates, and what the coordinator writes"] = taken - sum(spent.values())
    page.table(["stage", "CPU s, all members"], [[stage, f"{seconds:.1f}"] for stage, seconds in spent.items()])
    truth = example.truth.equations["profit_growth"].coefficients
    apart = (result.params[truth.index] - truth) / result.bse[truth.index]
    size = np.sqrt((apart**2).mean())
    page.say(f"On the clock: {clock:.0f} s. Root mean square of (estimate - truth) / error: {size:.2f}.")
    return page.finish(
        taken <= LIMIT,
        cpu_s=f"{taken:.1f}",
        n=n,
        coefficients=len(result.params) - 1,
        parties=len(example.blocks),
        limit_s=f"{LIMIT:g}",
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        sys.exit(main())
