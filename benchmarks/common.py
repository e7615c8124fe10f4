"""What the studies share: the public data beside the repository, and a results page written by the run itself."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.provenance_common import REPOSITORY, commit, loaded_code, record, standing

DATA = REPOSITORY / ".." / "shared" / "data"
RESULTS = REPOSITORY / "docs" / "results"


def quick() -> bool:
    """QUICK=1 asks for fewer repetitions; a quick run writes no results page."""
    return os.environ.get("QUICK", "") not in ("", "0")


def load(name: str) -> pd.DataFrame:
    """A public data set; ../shared/data/README.md describes it."""
    path = DATA / f"{name}.parquet"
    if not path.is_file():
        raise SystemExit(f"{path} is not there; put the shared data beside the repository.")
    return pd.read_parquet(path)


def machine() -> str:
    """Processor, cores and Python of this run."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = (line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name"))
        model = next(lines, f": {model}").partition(":")[2].strip()
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"


class Page:
    """A results page: `say` and `table` print at once and are written by `finish`."""

    def __init__(self, name: str, title: str, *, command: str | None = None) -> None:
        self.name = name
        self.command = command or f"make study NAME={name}"
        self.older: Mapping[str, str] = {}
        """{file: its hash} of parts that were made by other code than this process has loaded."""
        self._started = time.monotonic()
        self._lines = [f"# {title}", ""]
        loaded_code()  # hashes are of the files as they are now, whatever is edited while a study runs

    def say(self, text: str = "") -> None:
        print(text, flush=True)
        self._lines += [text, ""]

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
        lines = [f"| {line} |" for line in lines]
        print("\n".join(lines), flush=True)
        self._lines += [*lines, ""]

    def finish(self, good: bool, **figures: object) -> int:
        """Write docs/results/NAME.md (not of a quick run) and print the line that is read by machines."""
        told = " ".join(f"{key}={value}" for key, value in figures.items())
        last = f"{self.name}: {told} {'ok' if good else 'short'}"
        origin = (
            f"Written by `{self.command}` on {time.strftime('%Y-%m-%d')} in"
            f" {(time.monotonic() - self._started) / 60:.0f} minutes, on {machine()}; commit {commit()}."
        )
        if not quick():
            RESULTS.mkdir(parents=True, exist_ok=True)
            record(self.name, self.older)
            head = [*self._lines[:2], origin, "", standing(self.name), ""]
            text = "\n".join([*head, *self._lines[2:], f"    {last}", ""])
            (RESULTS / f"{self.name}.md").write_text(text, encoding="utf-8")
        print(last)
        return 0 if good else 1
