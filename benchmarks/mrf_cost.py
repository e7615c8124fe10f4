"""Bytes and seconds of each phase of VertiMRF on Adult with two parties (the paper's Table 2)."""

from __future__ import annotations

import tempfile
import time

from benchmarks.common import Page, quick
from benchmarks.mrf_common import CELLS, adult
from colonnade.federation.job import Progress
from colonnade.synthesis.mrf.vertimrf import VertiMRF

PAPER = {
    "fm": "15 Mb; 23.1 min a party, then 67 min",
    "fo": "2.5 min a party, then 67 min",
    "sqm": "not there; central PrivMRF 16 min, VertiGAN 112 Mb",
}
"""Its Table 2, Adult. (15 and 4.9 Mb are both given for the same sketches.)"""


class Meter:
    """Bytes on the coordinator's border and seconds, phase by phase."""

    def __init__(self) -> None:
        self.phases: dict[str, list[float]] = {}
        self._before = (0, 0.0)

    def __call__(self, progress: Progress) -> None:
        bytes_, seconds = self.phases.setdefault(progress.phase, [0.0, 0.0])
        self.phases[progress.phase] = [
            bytes_ + progress.bytes - self._before[0],
            seconds + progress.seconds - self._before[1],
        ]
        self._before = (progress.bytes, progress.seconds)


def main() -> int:
    page = Page("mrf-cost", "VertiMRF: bytes and seconds of each phase")
    data = adult()
    page.say(
        f"{data.n:,} records, {len(data.columns)} columns, two parties and a share holder, embedded in one process;"
        " epsilon 0.8, delta 1/n, 2,000 sketches, client view. A phase's seconds are those of all parties one after"
        " the other, and of the messages between them. Bytes are what crosses the coordinator's border, sealed shares"
        " included; the paper's are Mb."
    )
    rows = []
    for encoder in ("sqm", "fo", "fm"):
        method = VertiMRF(
            encoder=encoder,
            epsilon=0.8,
            delta=1 / data.n,
            cells=CELLS,
            sketches=100 if quick() else 2000,
            complete=True,
        )
        meter = Meter()
        with tempfile.TemporaryDirectory() as folder:
            options = {"seed": 1, "timeout": 3600.0, "allow": ("fm-sketches",)}
            with data.federation(2, folder, **options) as federation:
                started = time.monotonic()
                federation.run(method, progress=meter)
                whole = time.monotonic() - started
        asked = sum(seconds for _, seconds in meter.phases.values())
        for phase, (bytes_, seconds) in meter.phases.items():
            rows.append([encoder, phase, f"{bytes_ / 1e6:.2f}", f"{seconds:.1f}", ""])
        rows.append(
            [encoder, "all phases", f"{sum(each for each, _ in meter.phases.values()) / 1e6:.2f}", f"{asked:.1f}", ""]
        )
        rows.append([encoder, "coordinator: graph, fit, sampling, files", "", f"{whole - asked:.1f}", PAPER[encoder]])
    page.table(["encoder", "phase", "MB over the coordinator", "s", "the paper"], rows)
    return page.finish(True, phases=len(rows))


if __name__ == "__main__":
    raise SystemExit(main())
