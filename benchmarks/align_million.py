"""Private alignment of a million keys a side: in step with 100,000, and in bounded memory.

The two sizes run one after the other through the federation, as in `benchmarks/align.py`: a union of two parties that
share half of their keys, one worker. CPU time for each key may grow by a quarter from the smaller size to the larger.
Both parties and the coordinator are one process; for each further key of a side it may take 2 kB.
QUICK=1 takes a tenth of both sizes.
"""

from __future__ import annotations

import sys

from benchmarks.align import GROWTH, measure
from benchmarks.common import Page, quick

SIZES = (100_000, 1_000_000)
BYTES = 2048


def main() -> int:
    sizes = [size // 10 for size in SIZES] if quick() else list(SIZES)
    measure(500, "union")  # compiles, or loads what was compiled
    page = Page("align-million", "Private alignment of a million keys a side")
    page.say("A union of two parties with text keys, half of them shared; one worker; all in one process.")
    rows, rates, peaks, good = [], [], [], True
    for n in sizes:
        spent, wall, memory, found = measure(n, "union")
        good &= found == n + n // 2
        rates.append(max(spent.values()) / n)
        peaks.append(memory)
        seconds = (spent["left"], spent["right"], wall)
        rows.append((f"{n:,}", *(f"{one:.1f}" for one in seconds), f"{1e6 * rates[-1]:.0f}", f"{memory:,.0f}"))
    page.table(["keys a side", "left, CPU-s", "right, CPU-s", "wall s", "us a key", "peak MB"], rows)
    growth = rates[1] / rates[0]
    each = (peaks[1] - peaks[0]) * 2**20 / (sizes[1] - sizes[0])
    page.say(
        f"From the smaller size to the larger: CPU time for each key x {growth:.2f}, {each:,.0f} bytes for each key."
    )
    good &= growth <= GROWTH and each <= BYTES
    figures = {"seconds": f"{rates[1] * sizes[1]:.0f}", "growth": f"{growth:.2f}", "limit": GROWTH}
    return page.finish(good, keys=sizes[1], **figures, bytes_a_key=f"{each:.0f}", bytes_limit=BYTES)


if __name__ == "__main__":
    sys.exit(main())
