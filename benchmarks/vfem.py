"""VFEM at the size of its paper: 166,207 records, five parties with 9, 12, 3, 6 and 5 columns, blocks missing as there.

- the paper's rounds, embedded, with ledgers and transcripts, plain and masked: an iteration takes at most 3 times the
  CPU time of a pooled numpy EM, measured in turn in the same run (so that load does not tell); wall time is shown;
- `solver="exact"` needs at most a tenth of the iterations of `solver="rounds"` (at 6,000 records of the same shape);
- `Regress`, once its moments are computed, takes the same time at any number of records;
- an iteration's traffic is linear in the records: one number a record and party that has it, up and down.

The response holder has every record, the others the paper's shares. In the masked rounds pairs of parties have the same
records, so that no block is left out and pads cover all of them. QUICK=1 times fewer iterations.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, quick
from colonnade.data.column import Column, Columns
from colonnade.errors import NotEstimable
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Progress
from colonnade.models.linear.gaussian import regression
from colonnade.papers.vfem.method import VFEM
from colonnade.papers.vfem.steps import Masking
from colonnade.statistics.gaussian_em import PatternStatistics, fit_gaussian

Array = NDArray[np.float64]
PARTIES = {
    "industry": (9, 1.0),
    "credit": (12, 0.4635),
    "market": (3, 0.1239),
    "judicial": (6, 0.0695),
    "law": (5, 0.0672),
}
RECORDS, SMALL = 166_207, 6_000
RATIO, TENTH = 3.0, 0.1
ALLOW = ("presence", "exact-moments", "predictor-sums", "predictors", "residuals", "block-moments")


@dataclass(frozen=True, eq=False)
class Data:
    x: Array
    """With NaN where a block is missing."""
    y: Array
    owner: NDArray[np.intp]
    names: list[str]

    def federation(self, path: Path) -> Federation:
        keys = [f"F{at:06d}" for at in range(len(self.y))]
        blocks = {}
        for place, party in enumerate(PARTIES):
            own = np.flatnonzero(self.owner == place)
            frame = pd.DataFrame(self.x[:, own], columns=[self.names[at] for at in own]).assign(firm=keys)
            blocks[party] = (frame.assign(y=self.y) if place == 0 else frame)[~np.isnan(self.x[:, own[0]])]
        columns = [Column(name=name, kind="continuous", lower=-6.0, upper=6.0) for name in self.names]
        columns.append(Column(name="y", kind="continuous", lower=-40.0, upper=40.0))
        return Federation.local(
            blocks, key="firm", columns=Columns(columns), allow=ALLOW, home=path / "home", runs=path / "runs"
        )


def draw(n: int, *, paired: bool = False) -> Data:
    """Columns correlated inside a party (0.5 between neighbours), not across. `paired`: credit and market have the same
    records (the share of credit), and so have judicial and law."""
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(len(PARTIES)), [width for width, _ in PARTIES.values()])
    x = rng.normal(size=(n, len(owner)))
    for at in range(1, len(owner)):
        if owner[at] == owner[at - 1]:
            x[:, at] = 0.5 * x[:, at - 1] + np.sqrt(0.75) * x[:, at]
    x = np.clip(x, -6, 6)
    y = np.clip(x @ rng.uniform(-0.5, 0.5, size=len(owner)) + rng.normal(size=n), -40, 40)
    gone = np.column_stack([rng.random(n) >= share for _, share in PARTIES.values()])
    if paired:
        gone[:, 2], gone[:, 4] = gone[:, 1], gone[:, 3]
    for place in range(len(PARTIES)):
        x[np.ix_(gone[:, place], owner == place)] = np.nan
    return Data(x, y, owner, [f"x{at}" for at in range(len(owner))])


class PooledEM:
    """The same model on pooled records: fill in conditional means by pattern, then one regression."""

    def __init__(self, data: Data) -> None:
        masks, index = np.unique(~np.isnan(data.x), axis=0, return_inverse=True)
        order = np.argsort(index.reshape(-1), kind="stable")
        self.x, self.y = np.column_stack([np.ones(len(order)), np.nan_to_num(data.x[order])]), data.y[order]
        ends = np.cumsum([0, *np.bincount(index.reshape(-1))])
        self.groups = [(slice(a, b), np.flatnonzero(~mask)) for a, b, mask in zip(ends, ends[1:], masks, strict=False)]
        self.same = data.owner[:, None] == data.owner[None, :]
        self.b, self.s2 = np.zeros(self.x.shape[1]), float(self.y.var())
        self.mu, self.sigma = np.nanmean(data.x, axis=0), np.diag(np.nanvar(data.x, axis=0))

    def step(self) -> None:
        n, spread = len(self.y), np.zeros_like(self.sigma)
        for rows, lost in self.groups:
            if lost.size:
                self.x[rows, 1 + lost] = self.mu[lost]
            part = self.sigma[np.ix_(lost, lost)]
            gain = part @ self.b[1 + lost]
            tau = self.s2 + self.b[1 + lost] @ gain
            if lost.size:
                r = self.y[rows] - self.x[rows] @ self.b
                self.x[rows, 1 + lost] += np.outer(r / tau, gain)
                spread[np.ix_(lost, lost)] += (rows.stop - rows.start) * (part - np.outer(gain, gain) / tau)
        gram = self.x.T @ self.x
        self.mu = gram[0, 1:] / n
        self.sigma = self.same * ((gram[1:, 1:] + spread) / n - np.outer(self.mu, self.mu))
        gram[1:, 1:] += spread
        cross = self.x.T @ self.y
        self.b = np.linalg.solve(gram, cross)
        self.s2 = float(self.y @ self.y - 2 * self.b @ cross + self.b @ gram @ self.b) / n


@dataclass(frozen=True)
class Taken:
    """Medians, in seconds: (CPU, wall) of an iteration and of a pooled step; bytes on the coordinator's border."""

    iteration: tuple[float, float]
    step: tuple[float, float]
    traffic: float

    @property
    def ratio(self) -> float:
        return self.iteration[0] / self.step[0]

    def row(self, name: str) -> list[str]:
        each = [f"{1e3 * one:.0f}" for one in (*self.iteration, *self.step)]
        return [name, *each, f"{self.ratio:.2f}", f"{self.iteration[1] / self.step[1]:.2f}"]


def clocks() -> Array:
    return np.array([time.process_time(), time.perf_counter()])


def rounds(data: Data, iterations: int, masking: Masking) -> Taken:
    """A pooled step runs between two iterations, so that both meet the same machine."""
    pooled = PooledEM(data)
    pooled.step()
    taken: list[Array] = []
    steps: list[Array] = []
    traffic: list[int] = []
    start: list[Array] = []

    def note(progress: Progress) -> None:
        if progress.stage == "vfem: residuals":
            now = clocks()
            if start:
                taken.append(now - start[-1])
            traffic.append(progress.bytes)
            pooled.step()
            steps.append(clocks() - now)
            start.append(clocks())

    method = VFEM(response="y", init="mean", masking=masking, rounds=iterations)
    with tempfile.TemporaryDirectory() as folder, data.federation(Path(folder)) as opened:
        try:
            opened.run(method, progress=note)
        except NotEstimable:
            pass  # the iterations asked for are over
    one, two = np.median(taken, axis=0), np.median(steps, axis=0)
    return Taken((one[0], one[1]), (two[0], two[1]), float(np.median(np.diff(traffic))))


def counts(data: Data) -> tuple[int, int, float]:
    """(iterations of the rounds, steps of "exact", largest difference of coefficients in standard errors)."""
    with tempfile.TemporaryDirectory() as folder, data.federation(Path(folder)) as opened:
        slow = VFEM(response="y", masking="plain", init="mean", rounds=5000, gamma=2**24).fit(opened)
        fast = VFEM(response="y", solver="exact", init="mean", gamma=2**24).fit(opened)
    apart = float(((slow.params - fast.params).abs() / fast.bse).max())
    return slow.steps[0], sum(fast.steps), apart


def full_seconds(n: int) -> float:
    """From moments to standard errors."""
    data = draw(n)
    moments = PatternStatistics.of_rows(np.column_stack([data.x, data.y]), [*data.names, "y"])
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        regression(moments, fit_gaussian(moments), len(data.names))
        taken.append(time.perf_counter() - start)
    return min(taken)


def main() -> int:
    page = Page("vfem", "VFEM in rounds: time, iterations, traffic")
    n, iterations = RECORDS, 12 if quick() else 30
    page.say(
        f"n = {n:,}, p = {sum(width for width, _ in PARTIES.values())}, K = {len(PARTIES)}, one thread for linear"
        f" algebra, load {os.getloadavg()[0]:.1f}. Medians of an iteration, embedded, and of a step of a pooled numpy"
        " EM on the same records, in turn:"
    )
    data = draw(n, paired=True)
    plain, masked = rounds(draw(n), iterations, "plain"), rounds(data, iterations, "masked")
    page.table(
        ["rounds", "CPU ms", "wall ms", "pooled CPU ms", "pooled wall ms", "ratio (CPU)", "ratio (wall)"],
        [plain.row("plain, blocks missing as in the paper"), masked.row("masked, pairs of parties missing together")],
    )
    ratio = max(plain.ratio, masked.ratio)
    small = rounds(draw(n // 4, paired=True), 12, "masked").traffic
    large = masked.traffic
    sent = int(sum((~np.isnan(data.x[:, data.owner == place][:, 0])).sum() for place in range(1, len(PARTIES))))
    page.say(
        f"Masked, one iteration: {large:,.0f} bytes over the coordinator's border, {large / sent / 8 / 4:.2f} x 8 bytes"
        f" x records held x 4; {small:,.0f} at n = {n // 4:,}, {large / small:.2f} times less. Each number crosses the"
        " border four times: up to the coordinator and on, for predictors and for residuals."
    )
    slow, fast, apart = counts(draw(SMALL))
    page.say(
        f"At n = {SMALL:,}: {slow} iterations of solver='rounds', {fast} of solver='exact'; coefficients differ by at"
        f" most {apart:.4f} standard errors."
    )
    few, many = full_seconds(20_000), full_seconds(n)
    page.say(f"`Regress` after its moments: {few:.2f} s at 20,000 records, {many:.2f} s at {n:,}.")
    linear = 3.5 < large / small < 4.5 and large < 1.05 * sent * 8 * 4 + 60_000
    good = ratio <= RATIO and fast <= TENTH * slow and many < 2 * few + 0.5 and linear and apart < 0.05
    return page.finish(
        good,
        plain_ratio=f"{plain.ratio:.2f}",
        masked_ratio=f"{masked.ratio:.2f}",
        limit=f"{RATIO:g}",
        rounds=slow,
        exact=fast,
        full_s=f"{many:.2f}",
        bytes=f"{large:.0f}",
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        sys.exit(main())
