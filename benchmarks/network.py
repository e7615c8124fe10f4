"""What the network costs on one machine: the same job embedded and over mutual TLS on loopback, in one run.

- a VFEM of 300 rounds (masked) at 100,000 records and three parties: the network takes at
  most 2 times the embedded transport, from the first round to the last, with ledgers, transcripts and flushes in both;
- a message of 200 MB passes, there and back, unchanged;
- an empty round (the smallest request and answer at every party), for the page.

A round of VFEM is one exchange of predictors and residuals. The order is embedded, network, network, embedded, so that
a machine that others use too is unfair to neither. QUICK=1 makes one pass of each with as many rounds.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, quick
from colonnade.data.column import Column, Columns
from colonnade.errors import NotEstimable
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Progress
from colonnade.federation.messages import Reply, Request
from colonnade.papers.vfem.method import VFEM

RECORDS, ROUNDS, RATIO = 100_000, 300, 2.0
SHARES = {"industry": 1.0, "credit": 0.6, "market": 0.6}
WIDTH = 4
MESSAGE = 200_000_000
ALLOW = ("presence", "exact-moments", "predictor-sums", "residuals", "block-moments")


def blocks() -> dict[str, pd.DataFrame]:
    """Columns that are highly correlated inside a party: the paper's gradient then needs hundreds of rounds."""
    rng = np.random.default_rng(1)
    keys = np.array([f"F{at:06d}" for at in range(RECORDS)])
    made, response = {}, rng.normal(size=RECORDS)
    for party, share in SHARES.items():
        x = rng.normal(size=(RECORDS, WIDTH))
        for at in range(1, WIDTH):
            x[:, at] = 0.98 * x[:, at - 1] + 0.2 * x[:, at]
        response += x @ np.array([0.5, -0.4, 0.3, -0.2])
        frame = pd.DataFrame(x.clip(-8, 8), columns=[f"{party}_{at}" for at in range(WIDTH)]).assign(firm=keys)
        made[party] = frame[rng.random(RECORDS) < share] if share < 1 else frame
    made["industry"] = made["industry"].assign(y=response.clip(-40, 40))
    return made


def columns() -> Columns:
    own = [
        Column(name=f"{party}_{at}", kind="continuous", lower=-8.0, upper=8.0)
        for party in SHARES
        for at in range(WIDTH)
    ]
    return Columns([*own, Column(name="y", kind="continuous", lower=-40.0, upper=40.0)])


def federation(path: Path, transport: str) -> Federation:
    return Federation.local(
        blocks(),
        key="firm",
        columns=columns(),
        allow=ALLOW,
        home=path / "home",
        runs=path / "runs",
        transport=transport,
    )


def vfem(transport: str) -> tuple[list[float], int]:
    """(seconds of each round, bytes of a round on the coordinator's border)."""
    ends: list[tuple[float, int]] = []

    def note(progress: Progress) -> None:
        if progress.stage == "vfem: residuals":
            ends.append((time.perf_counter(), progress.bytes))

    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), transport) as opened:
        method = VFEM(response="y", init="mean", rounds=ROUNDS, tolerance=1e-12, masking="masked")
        try:
            opened.run(method, progress=note)
        except NotEstimable:
            pass  # the rounds asked for are over
    taken = [end - start for (start, _), (end, _) in itertools.pairwise(ends)]
    return taken, (ends[-1][1] - ends[0][1]) // len(taken)


def empty_round(transport: str) -> float:
    """Milliseconds: `hello` to every party, one after the other, divided by the parties."""
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), transport) as opened:
        opened.handshake()
        hello = Request(kind="hello", arguments={}).encode()
        taken = []
        for _ in range(100):
            start = time.perf_counter()
            for party in opened.transport.parties:
                opened.transport.exchange(party, hello, timeout=60)
            taken.append((time.perf_counter() - start) / len(opened.transport.parties))
    return 1e3 * statistics.median(taken)


def large_message() -> float:
    """Seconds for a request of 200 MB; the party must have read all of it to refuse it as it does."""
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), "network") as opened:
        opened.handshake()
        noise = np.random.default_rng(0).bytes(MESSAGE)
        data = Request(kind="ask", job="job", step="nothing", arguments={"noise": noise}).encode()
        start = time.perf_counter()
        reply = Reply.decode(opened.transport.exchange("industry", data, timeout=300))
        taken = time.perf_counter() - start
    if reply.error != "unknown-step":
        raise SystemExit(f"a message of 200 MB was answered with {reply}.")
    return taken


def main() -> int:
    page = Page("network", "What the network costs on one machine")
    order = ("embedded", "network") if quick() else ("embedded", "network", "network", "embedded")
    found: dict[str, list[float]] = {"embedded": [], "network": []}
    for transport in order:
        taken, size = vfem(transport)
        found[transport] += taken
        print(f"{transport}: {len(taken) + 1} rounds in {sum(taken):.1f} s", flush=True)
    ratio = sum(found["network"]) / sum(found["embedded"])
    page.say(
        f"VFEM(masking='masked'), {ROUNDS} rounds, n = {RECORDS:,}, three parties,"
        f" {size:,} bytes a round over the coordinator's border; load {os.getloadavg()[0]:.1f}."
    )
    rows = [
        [
            transport,
            f"{sum(taken) / len(taken) * ROUNDS:.1f} s",
            f"{1e3 * statistics.median(taken):.0f} ms",
            f"{empty_round(transport):.2f} ms",
        ]
        for transport, taken in found.items()
    ]
    page.table(["transport", f"{ROUNDS} rounds", "a round, median", "an empty exchange, median"], rows)
    seconds = large_message()
    page.say(
        f"The network takes {ratio:.2f} times the embedded transport (limit {RATIO:g}). A message of 200 MB passed in"
        f" {seconds:.1f} s. Parties that are processes of their own compute at the same time, which the embedded ones"
        " in one interpreter do only in part."
    )
    enough = all(len(taken) + order.count(transport) >= ROUNDS for transport, taken in found.items())
    return page.finish(
        ratio <= RATIO and enough, ratio=f"{ratio:.2f}", rounds=ROUNDS, n=RECORDS, message_s=f"{seconds:.1f}"
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        sys.exit(main())
