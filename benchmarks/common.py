"""What the studies share: the public data beside the repository, and a results page written by the run itself.

How long a page's run took, with the draws that it found there, is kept in docs/results/durations.json: `make refresh`
reads it.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.draws_common import Draws, quick
from benchmarks.provenance_common import REPOSITORY, RESULTS, commit, loaded_code, record, standing, used_data

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DATA", "REPOSITORY", "RESULTS", "Page", "load", "machine", "quick"]
DATA = REPOSITORY / ".." / "shared" / "data"


def load(name: str) -> pd.DataFrame:
    """A public data set; ../shared/data/README.md describes it."""
    import pandas as pd  # not by studies without data, which start faster

    path = DATA / f"{name}.parquet"
    if not path.is_file():
        raise SystemExit(f"{path} is not there; put the shared data beside the repository.")
    used_data.add(path)
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
    """A results page: `say` and `table` print at once and are written by `finish`; `draws` are what it is made of."""

    def __init__(self, name: str, title: str, *, command: str | None = None) -> None:
        self.name = name
        self.command = command or f"make study NAME={name}"
        self.older: Mapping[str, str] = {}
        """{file: its hash} of parts that were made by other code than this process has loaded."""
        self.draws = Draws(name)
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
        taken, reused = time.monotonic() - self._started, self.draws.reused
        earlier = f" ({reused / 60:.0f} of them in earlier sittings)" if reused >= 30 else ""
        origin = (
            f"Written by `{self.command}` on {time.strftime('%Y-%m-%d')} in {(taken + reused) / 60:.0f} minutes"
            f"{earlier}, on {machine()}; commit {commit()}."
        )
        if not quick():
            RESULTS.mkdir(parents=True, exist_ok=True)
            record(self.name, self.older)
            self.draws.settle()
            path = RESULTS / "durations.json"
            durations = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            durations[self.name] = round(taken + reused)
            path.write_text(json.dumps(durations, indent=0, sort_keys=True) + "\n", encoding="utf-8")
            head = [*self._lines[:2], origin, "", standing(self.name), ""]
            text = "\n".join([*head, *self._lines[2:], f"    {last}", ""])
            (RESULTS / f"{self.name}.md").write_text(text, encoding="utf-8")
        print(last)
        return 0 if good else 1
