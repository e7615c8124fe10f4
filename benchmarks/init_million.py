"""`colonnade init --yes` on one table of 1,000,000 rows and 50 columns: under a minute, and under 2 GB.

A key, 30 numbers (8 with empty cells), 12 categories of 2 to 40 levels, 4 dates, a yes/no, a text and a constant, as a
CSV file. The verb runs in a process of its own; its clock, CPU time and peak memory are those of that process.
QUICK=1 takes a tenth of the rows.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import Page, quick

ROWS = 1_000_000
SECONDS, MEGABYTES = 60.0, 2048.0


def write_table(path: Path, rows: int) -> None:
    """In pieces, so that this process stays small."""
    rng = np.random.default_rng(1)
    for start in range(0, rows, 100_000):
        size = min(100_000, rows - start)
        table = pd.DataFrame({"id": np.arange(start, start + size)})
        for k in range(30):
            table[f"number {k}"] = rng.lognormal(k / 6, 1, size).round(2)
            if k < 8:
                table.loc[rng.random(size) < 0.04, f"number {k}"] = np.nan
        for k in range(12):
            table[f"category {k}"] = rng.integers(0, 2 + k * 38 // 11, size).astype(str)
            table[f"category {k}"] = "level " + table[f"category {k}"]
        for k in range(4):
            days = pd.to_timedelta(rng.integers(0, 9000, size), unit="D")
            table[f"day {k}"] = (pd.Timestamp("2000-01-01") + days).strftime("%Y-%m-%d")
        table["remark"] = [f"remark {number}" for number in range(start, start + size)]
        table["country"] = "FR"
        table["flag"] = rng.choice(["Y", "N"], size)
        table.to_csv(path, index=False, mode="w" if start == 0 else "a", header=start == 0)


def main() -> int:
    rows = ROWS // 10 if quick() else ROWS
    page = Page("init-million", "`colonnade init` on a million rows", command="make bench NAME=init-million")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_table(folder / "table.csv", rows)
        command = [sys.executable, "-m", "colonnade.cli.main", "init", "table.csv", "--key", "id", "--yes"]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ})
        seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        size = (folder / "table.csv").stat().st_size / 2**20
        drafted = (folder / "columns.toml").read_text(encoding="utf-8") if (folder / "columns.toml").is_file() else ""
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = after.ru_maxrss / 2**10
    page.say(f"{rows:,} rows, 50 columns, {size:,.0f} MB of CSV; {drafted.count('[columns.')} columns were declared.")
    page.table(["seconds", "CPU seconds", "peak MB"], [[f"{seconds:.1f}", f"{cpu:.1f}", f"{peak:,.0f}"]])
    good = done.returncode == 0 and bool(drafted) and seconds < SECONDS and peak < MEGABYTES
    if done.returncode:
        page.say(done.stderr[-600:])
    figures = {"seconds": f"{seconds:.1f}", "cpu": f"{cpu:.1f}", "limit": SECONDS, "megabytes": f"{peak:.0f}"}
    return page.finish(good, rows=rows, **figures, megabytes_limit=MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
