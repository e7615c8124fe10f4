"""Jobs over a wide-area network: each member behind a link of its own, in user space (`benchmarks.wan_common`).

Three jobs over the network transport (mutual TLS, a process for each member):
- a field of Adult with noise, 45,222 records, 15 columns of three members, epsilon 1;
- `Regress` on 20,000 firms of five institutions, without noise;
- a private alignment of 100,000 keys a side, two members.
Each runs without a link, over 100 Mbit/s with a round trip of 50 ms, and over 20 Mbit/s with 150 ms. Criterion, set on
2026-11-17 before the first run: the field takes less than two minutes at 100 Mbit/s on the clock, from plan to closing.
Starting the processes is not counted, but for the alignment, which opens its parties itself. QUICK=1 runs the first
link only, with a tenth of the keys, and writes no page.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.align import COLUMNS, two_blocks
from benchmarks.common import Page, machine, quick
from benchmarks.mrf_common import adult, field_method
from benchmarks.wan_common import Line, over
from colonnade.alignment.session import align
from colonnade.data.simulated import five_institutions
from colonnade.federation.config import Spec
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Progress
from colonnade.federation.method import Method
from colonnade.models.linear.regress import Regress

LINES = (Line(100, 0.05), Line(20, 0.15))
LIMIT = 120.0
FIRMS, KEYS = 20_000, 100_000


@dataclass
class Taken:
    """Seconds on the clock, rounds, bytes on the coordinator's border."""

    seconds: float = 0.0
    rounds: int = 0
    bytes: int = 0

    def note(self, progress: Progress) -> None:
        self.rounds, self.bytes = progress.rounds, progress.bytes


def ran(federation: Federation, method: Method[Any]) -> tuple[Any, Taken]:
    federation.handshake()
    taken, start = Taken(), time.monotonic()
    result, _ = federation.run(method, progress=taken.note, sure=True)
    taken.seconds = time.monotonic() - start
    return result, taken


def field(folder: Path) -> Taken:
    data = adult()
    with data.federation(3, str(folder), transport="network") as federation:
        table, taken = ran(federation, field_method(data, epsilon=1.0))
    assert len(table.sample()) == data.n
    return taken


def regress(folder: Path) -> Taken:
    example = five_institutions(n=FIRMS, seed=1)
    options: dict[str, Any] = {"home": folder / "home", "runs": folder / "runs", "transport": "network"}
    with Federation.local(
        example.blocks, key=example.key, columns=example.columns, allow=("presence", "exact-moments"), **options
    ) as federation:
        columns = tuple(name for name in example.columns if name not in example.responses)
        result, taken = ran(federation, Regress(response="profit_growth", columns=columns))
    assert result.nobs > 0
    return taken


def alignment(folder: Path) -> Taken:
    n = KEYS // 10 if quick() else KEYS
    spec = Spec(
        blocks=two_blocks(n),
        key="id",
        columns=COLUMNS,
        home=folder / "home",
        allow=("alignment",),
        include="union",
        transport="network",
    )
    taken, start = Taken(), time.monotonic()
    result, _ = align(
        spec, runs=folder / "runs", epsilon=None, capacity=dict.fromkeys(spec.blocks, n), progress=taken.note
    )
    taken.seconds = time.monotonic() - start
    assert result.n == n + n // 2
    return taken


JOBS: dict[str, Callable[[Path], Taken]] = {"field of Adult": field, "regress": regress, "alignment": alignment}


@contextlib.contextmanager
def link(line: Line | None) -> Iterator[None]:
    with contextlib.nullcontext() if line is None else over(line):
        yield


def main() -> int:
    page = Page("wan", "Jobs over a wide-area network", command="make bench NAME=wan")
    page.say(f"{machine()}. Load average at the start {os.getloadavg()[0]:.1f}.")
    page.say(
        "Each member reaches the coordinator, through which all mail goes, over a link of its own: a proxy in user"
        " space with this rate in each direction and this round trip, and TCP's slow start, without losses. Members and"
        " coordinator share the machine, so the time without a link is computing time."
    )
    rows, adult_s = [], 0.0
    for job, run in JOBS.items():
        for line in (None, *LINES[: 1 if quick() else None]):
            with link(line), tempfile.TemporaryDirectory() as folder:
                taken = run(Path(folder))
            rows.append(
                [
                    job,
                    "none" if line is None else str(line),
                    f"{taken.seconds:.1f}",
                    str(taken.rounds),
                    f"{taken.bytes / 1e6:.1f}",
                ]
            )
            print(*rows[-1], flush=True)
            if run is field and line == LINES[0]:
                adult_s = taken.seconds
    page.table(["job", "link of each member", "clock s", "rounds", "MB over the coordinator"], rows)
    page.say(f"The field of Adult at {LINES[0]} takes {adult_s:.0f} s; limit {LIMIT:.0f} s.")
    return page.finish(adult_s < LIMIT, adult_s=f"{adult_s:.0f}")


if __name__ == "__main__":
    sys.exit(main())
