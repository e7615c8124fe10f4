"""Private alignment of two parties: CPU seconds a side, in step with the size, and memory.

Both parties hold `n` text keys and share half of them. Everything runs through the federation (seals, ledger,
transcript, stores); CPU time is that of the thread in which a party handles its requests, with one worker, so it holds
the whole work of that side. 100,000 x 100,000 keys may take 10 CPU seconds a side (100 us a key; 30 until 2026-11-17);
time per key must not grow by more than a quarter from the smallest size to the largest. QUICK=1 takes small sizes. For
a million keys a side there is `benchmarks/align_million.py`.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

os.environ["COLONNADE_WORKERS"] = "1"

from benchmarks.common import Page, quick
from colonnade.alignment.group import hash_and_raise
from colonnade.alignment.session import align
from colonnade.data.column import Column, Columns
from colonnade.federation.config import Spec
from colonnade.federation.transports.embedded import Embedded
from colonnade.papers.blind_rsa import Signer, full_domain_hash, own_tags

SECONDS, SIZE, GROWTH = 10.0, 100_000, 1.25
COLUMNS = Columns([Column(name=name, kind="binary", categories=("no", "yes")) for name in ("x", "y")])


def two_blocks(n: int) -> dict[str, pd.DataFrame]:
    """Text keys in a random order; the second half of one party's is the first half of the other's."""
    rng = np.random.default_rng(n)
    first, second = rng.permutation(np.arange(n)), rng.permutation(np.arange(n // 2, n // 2 + n))
    return {
        "left": pd.DataFrame({"id": [f"+49{key:010d}" for key in first], "x": "no"}),
        "right": pd.DataFrame({"id": [f"+49{key:010d}" for key in second], "y": "yes"}),
    }


def measure(n: int, include: str, *, trust_matcher: bool = False) -> tuple[dict[str, float], float, float, int]:
    """CPU seconds of each side, wall seconds, peak memory in MB, and the size of the cohort."""
    spent: dict[str, float] = defaultdict(float)
    exchange = Embedded.exchange

    def timed(transport: Embedded, party: str, data: bytes, *, timeout: float) -> bytes:
        start = time.thread_time()
        answer = exchange(transport, party, data, timeout=timeout)
        spent[party] += time.thread_time() - start
        return answer

    Embedded.exchange = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            spec = Spec(
                blocks=two_blocks(n),
                key="id",
                columns=COLUMNS,
                home=Path(folder),
                allow=("alignment", "linkage-unit"),
                include=include,
                holder="Matcher" if trust_matcher else None,
            )
            start = time.monotonic()
            result, _ = align(
                spec,
                runs=Path(folder) / "runs",
                epsilon=None,
                capacity={"left": n, "right": n},
                trust_matcher=trust_matcher,
            )
            wall = time.monotonic() - start
    finally:
        Embedded.exchange = exchange  # type: ignore[method-assign]
    return dict(spent), wall, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, result.n


def measured(n: int, include: str, *, trust_matcher: bool = False) -> dict[str, float]:
    spent, wall, memory, cohort = measure(n, include, trust_matcher=trust_matcher)
    seconds = {f"{party} seconds": own for party, own in spent.items()}
    return {**seconds, "wall seconds": wall, "peak memory": memory, "cohort": cohort}


def per_key() -> tuple[float, float, float]:
    """CPU seconds for one key: hashed and raised once on the curve; the library's multiplication alone; RSA."""
    keys = [str(i).encode() for i in range(2000)]
    hash_and_raise(keys[:64], 3, domain="warm")
    start = time.process_time()
    hash_and_raise(keys, 2**251 + 95, domain="job")
    curve = (time.process_time() - start) / len(keys)
    secret, public = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    start = time.process_time()
    for _ in keys:
        secret.exchange(public)
    multiplication = (time.process_time() - start) / len(keys)
    signer, some = Signer.generate(), keys[:20]
    full_domain_hash(some[0], signer.modulus, domain="job")
    start = time.process_time()
    own_tags(some, signer, domain="job")
    return curve, multiplication, (time.process_time() - start) / len(some)


def main() -> int:
    sizes = [2_000, 8_000] if quick() else [25_000, 50_000, SIZE]
    measure(500, "left")  # compiles, or loads what was compiled
    page = Page("align", "Private alignment of two parties")
    page.say("Text keys, half of them shared, one worker; through the embedded federation. Both sides in one process.")
    rows, good, rates, worst = [], True, [], 0.0
    for n in sizes:
        for include in ("left", "union"):
            values = page.draws.get((include, n), 0, partial(measured, n, include))
            spent = {party: values[f"{party} seconds"] for party in ("left", "right")}
            wall, memory = values["wall seconds"], values["peak memory"]
            good &= values["cohort"] == (n if include == "left" else n + n - (n - n // 2))
            slower = max(spent.values())
            cohort = "fixed" if include == "left" else include
            seconds = (spent["left"], spent["right"], wall)
            rows.append((f"{n:,}", cohort, *(f"{one:.1f}" for one in seconds), f"{memory:,.0f}"))
            if include == "left":
                rates.append(slower / n)
            if n == min(SIZE, max(sizes)):  # a quick run scales its largest size up
                worst = max(worst, slower * SIZE / n)
    page.table(["keys a side", "cohort", "left, CPU-s", "right, CPU-s", "wall s", "peak MB"], rows)
    cell = ("union, trusted matcher", sizes[-1])
    values = page.draws.get(cell, 0, partial(measured, sizes[-1], "union", trust_matcher=True))
    trusted, wall = {party: values[f"{party} seconds"] for party in ("left", "right", "holder")}, values["wall seconds"]
    good &= values["cohort"] == sizes[-1] + sizes[-1] // 2
    matched = 1e6 * max(trusted.values()) / sizes[-1]
    party, matcher = (
        1e6 * seconds / sizes[-1] for seconds in (max(trusted["left"], trusted["right"]), trusted["holder"])
    )
    page.say(
        f"With a trusted matcher (keyed hashes, union): {party:.1f} us a key at a party, {matcher:.1f} at the matcher,"
        f" {wall:.1f} s on the clock."
    )
    curve, multiplication, rsa = per_key()
    page.say(
        f"One key hashed and raised on the curve {1e6 * curve:.0f} us, of which OpenSSL's multiplication alone"
        f" {1e6 * multiplication:.0f} us: a key needs two of them at each side. Signed with RSA {1e6 * rsa:,.0f} us"
        f" ({rsa / curve:.0f} times as long)."
    )
    growth = rates[-1] / rates[0]
    good &= worst <= SECONDS and growth <= GROWTH
    return page.finish(
        good, seconds_for_100k=f"{worst:.1f}", limit=SECONDS, growth=f"{growth:.2f}", matcher_us_a_key=f"{matched:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
