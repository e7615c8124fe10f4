"""Bytes and seconds of each phase of VertiMRF on Adult with two parties (the paper's Table 2)."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from typing import Any

from benchmarks.common import Page, quick
from benchmarks.mrf_common import CELLS, Data, adult, field_method
from benchmarks.mrf_tvd import VERTIGAN
from benchmarks.rivals import vertigan
from colonnade.federation.job import Progress
from colonnade.federation.method import Method
from colonnade.papers import VertiMRF

PAPER = {
    "fm, t = 2,000": "15 Mb; 23.1 min a party, then 67 min",
    "fm, t = 8,000": "more than fo",
    "fo": "2.5 min a party, then 67 min",
    "sqm": "not there; central PrivMRF 16 min",
    "VertiGAN": "112 Mb",
}
"""Its Table 2, Adult. (15 and 4.9 Mb are both given for the same sketches.)"""


class Meter:
    """Bytes on the coordinator's border, seconds and CPU seconds, phase by phase."""

    def __init__(self) -> None:
        self.phases: dict[str, list[float]] = {}
        self._before = (0, 0.0, time.process_time())

    def __call__(self, progress: Progress) -> None:
        now = (progress.bytes, progress.seconds, time.process_time())
        known = self.phases.setdefault(progress.stage, [0.0, 0.0, 0.0])
        self.phases[progress.stage] = [
            one + after - before for one, after, before in zip(known, now, self._before, strict=True)
        ]
        self._before = now


ENCODERS = ("sqm", "fo", "fm, t = 2,000", "fm, t = 8,000")
UNITS = ("bytes", "seconds", "cpu_seconds")
REST = "coordinator: graph, fit, sampling, files"


def metered(data: Data, name: str) -> dict[str, float]:
    """{"phase unit": amount} of one run."""
    encoder, _, sketches = name.partition(", t = ")
    method: Method[Any] = field_method(data, epsilon=0.8)
    if encoder != "sqm":
        paper = {"sketches": int(sketches.replace(",", "")) // (20 if quick() else 1)} if sketches else {}
        method = VertiMRF.as_printed(encoder=encoder, epsilon=0.8, delta=1 / data.n, cells=CELLS, **paper)
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"seed": 1, "timeout": 3600.0, "allow": ("fm-sketches",)}
        with data.federation(2, folder, **options) as federation:
            started, used = time.monotonic(), time.process_time()
            federation.run(method, progress=meter, sure=True)
            seconds, cpu = time.monotonic() - started, time.process_time() - used
    total = [sum(amounts) for amounts in zip(*meter.phases.values(), strict=True)]
    amounts = {
        f"{phase} {unit}": amount
        for phase, each in [*meter.phases.items(), ("all phases", total)]
        for unit, amount in zip(UNITS, each, strict=True)
    }
    return {**amounts, f"{REST} seconds": seconds - total[1], f"{REST} cpu_seconds": cpu - total[2]}


def main() -> int:
    page = Page("mrf-cost", "VertiMRF: bytes and seconds of each phase")
    data = adult()
    page.say(
        f"{data.n:,} records, {len(data.columns)} columns, two parties and a share holder, embedded in one process;"
        " epsilon 0.8, delta 1/n, client view; `fm` and `fo` as printed, with t sketches. A phase's seconds are those"
        " of all parties one after the other, and of the messages between them; read the CPU seconds where the machine"
        " had other work. Bytes are what crosses the coordinator's border, sealed shares included; the paper's are Mb."
        " VertiGAN's are computed: gradients and the shared part of its generator, in each of its rounds."
    )
    rows = []
    for name in ENCODERS:
        phases = page.draws.get(("adult", name), 0, partial(metered, data, name))
        for phase in dict.fromkeys(key.rpartition(" ")[0] for key in phases):
            megabytes, seconds, cpu = (phases.get(f"{phase} {unit}") for unit in UNITS)
            paper = PAPER[name] if phase == REST else ""
            shown = "" if megabytes is None else f"{megabytes / 1e6:.2f}"
            rows.append([name, phase, shown, f"{seconds:.1f}", f"{cpu:.1f}", paper])
    rows.append(
        ["VertiGAN", "all rounds", f"{vertigan.message_bytes(VERTIGAN, 2) / 1e6:.2f}", "", "", PAPER["VertiGAN"]]
    )
    page.table(["encoder", "phase", "MB over the coordinator", "s", "CPU-s", "the paper"], rows)
    return page.finish(True, phases=len(rows))


if __name__ == "__main__":
    raise SystemExit(main())
