"""Alignment by a linkage unit of ten million keys a side: keyed hashes, one matcher without data.

Two parties share half of their text keys; a union; one worker; all members in one process through the federation, as in
`benchmarks/align.py`. Criterion, set on 2026-11-17 before the first run: at most 180 CPU seconds at each member for
10,000,000 keys a side, and the right number of records. QUICK=1 takes a tenth of the keys and of the limit.
"""

from __future__ import annotations

import sys

from benchmarks.align import measure
from benchmarks.common import Page, quick

KEYS, SECONDS = 10_000_000, 180.0


def main() -> int:
    n, limit = (KEYS // 10, SECONDS / 10) if quick() else (KEYS, SECONDS)
    measure(500, "union", trust_matcher=True)  # loads what was compiled
    page = Page("align-matcher", "Alignment of ten million keys by a trusted matcher")
    page.say("A union of two parties with text keys, half of them shared; one worker; all members in one process.")
    spent, wall, memory, records = measure(n, "union", trust_matcher=True)
    rows = [(member, f"{seconds:.1f}", f"{1e6 * seconds / n:.2f}") for member, seconds in sorted(spent.items())]
    page.table(["member", "CPU-s", "us a key"], rows)
    page.say(f"{wall:.0f} s on the clock, {memory:,.0f} MB at most in the one process of all members.")
    worst = max(spent.values())
    good = worst <= limit and records == n + n // 2
    return page.finish(good, keys=n, worst_cpu_s=f"{worst:.0f}", limit=f"{limit:.0f}", peak_mb=f"{memory:.0f}")


if __name__ == "__main__":
    sys.exit(main())
