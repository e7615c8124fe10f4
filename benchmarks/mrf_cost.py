"""Bytes and seconds of each phase of VertiMRF on Adult with two parties (the paper's Table 2)."""

from __future__ import annotations

import tempfile
import time
from typing import Any

from benchmarks.common import Page, quick
from benchmarks.mrf_common import CELLS, adult, field_method
from colonnade.federation.job import Progress
from colonnade.federation.method import Method
from colonnade.papers import VertiMRF

PAPER = {
    "fm": "15 Mb; 23.1 min a party, then 67 min",
    "fo": "2.5 min a party, then 67 min",
    "sqm": "not there; central PrivMRF 16 min, VertiGAN 112 Mb",
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


def main() -> int:
    page = Page("mrf-cost", "VertiMRF: bytes and seconds of each phase")
    data = adult()
    page.say(
        f"{data.n:,} records, {len(data.columns)} columns, two parties and a share holder, embedded in one process;"
        " epsilon 0.8, delta 1/n, 2,000 sketches, client view. A phase's seconds are those of all parties one after"
        " the other, and of the messages between them; read the CPU seconds where the machine had other work. Bytes are"
        " what crosses the coordinator's border, sealed shares included; the paper's are Mb."
    )
    rows = []
    for encoder in ("sqm", "fo", "fm"):
        paper: dict[str, Any] = {"sketches": 100 if quick() else 2000} if encoder == "fm" else {}
        method: Method[Any] = field_method(data, epsilon=0.8)
        if encoder != "sqm":
            method = VertiMRF(encoder=encoder, epsilon=0.8, delta=1 / data.n, cells=CELLS, complete=True, **paper)
        meter = Meter()
        with tempfile.TemporaryDirectory() as folder:
            options = {"seed": 1, "timeout": 3600.0, "allow": ("fm-sketches",)}
            with data.federation(2, folder, **options) as federation:
                started, used = time.monotonic(), time.process_time()
                federation.run(method, progress=meter)
                whole, spent = time.monotonic() - started, time.process_time() - used
        bytes_, asked, cpu = (sum(one) for one in zip(*meter.phases.values(), strict=True))
        for phase, (each, seconds, own) in [*meter.phases.items(), ("all phases", (bytes_, asked, cpu))]:
            rows.append([encoder, phase, f"{each / 1e6:.2f}", f"{seconds:.1f}", f"{own:.1f}", ""])
        rest = ["", f"{whole - asked:.1f}", f"{spent - cpu:.1f}", PAPER[encoder]]
        rows.append([encoder, "coordinator: graph, fit, sampling, files", *rest])
    page.table(["encoder", "phase", "MB over the coordinator", "s", "CPU-s", "the paper"], rows)
    return page.finish(True, phases=len(rows))


if __name__ == "__main__":
    raise SystemExit(main())
