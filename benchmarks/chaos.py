"""200 runs, each with one process killed, paused, or one connection cut, silenced or held up, at a random request.

Three parties and a coordinator over mutual TLS on this machine. Where a run does not heal by itself, the dead process
is started again and the run resumed. Nothing of this may happen: a result other than the undisturbed one, a request
that is debited or answered twice, an attempt that does not end in time, a ledger or a transcript that does not verify.
QUICK=1 makes 40 runs.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.chaos_common import FAULTS, JOBS, LIMIT, PARTIES, PATIENCE, SLACK, TIMEOUT, Fault, Outcome, Stage
from benchmarks.common import Page, quick

RUNS = 200


def draw(rng: np.random.Generator, stage: Stage) -> Fault:
    """Any fault, at any request of any job, to any party; a third of them before the request leaves, the others within
    the next 50 ms: while the party works, or while its answer travels."""
    job, target = str(rng.choice(list(JOBS))), str(rng.choice(PARTIES))
    return Fault(
        kind=str(rng.choice(FAULTS)),
        job=job,
        target=target,
        at=int(
            rng.integers(1, stage.requests[job][target] + 1, endpoint=True)
        ),  # one more: `check` is in no run's record
        late=0.0 if rng.random() < 1 / 3 else float(rng.uniform(0, 0.05)),
        lasts=float(rng.uniform(0.1, 1.5 * TIMEOUT)),
    )


def main() -> int:
    page = Page("chaos", "Chaos: what a fault at a random moment can do")
    runs = 40 if quick() else RUNS
    rng = np.random.default_rng(20261116)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        try:
            for number in range(runs):
                outcomes.append(stage.run(f"run-{number}", draw(rng, stage)))
                last = outcomes[-1]
                print(
                    f"{number + 1}/{runs} {last.fault.kind}, {last.fault.job} at {last.fault.target}:"
                    f" {last.attempts} attempts, {last.seconds:.1f} s {'; '.join(last.wrong)}",
                    flush=True,
                )
        finally:
            stage.close()
    bad = [one for one in outcomes if one.wrong]
    page.say(
        f"{runs} runs of {', '.join(JOBS)} by {len(PARTIES)} party processes and a coordinator process over mutual TLS."
        f" A request may take {TIMEOUT:g} s, a lost party may stay away for {PATIENCE:g} s; a request that takes"
        f" {SLACK:g} s more than it may, or an attempt of more than {LIMIT:g} s, counts as a hang. A fault lasts up to"
        f" {1.5 * TIMEOUT:g} s. A run is right if its result"
        " equals the undisturbed one in every digit, every request was debited once and released once at every party,"
        " and all ledgers and transcripts verify."
    )
    rows = []
    for kind in FAULTS:
        of = [one for one in outcomes if one.fault.kind == kind]
        if of:
            rows.append(
                [
                    kind,
                    str(len(of)),
                    str(sum(one.attempts == 1 for one in of)),
                    str(sum(one.attempts > 1 for one in of)),
                    str(sum(bool(one.wrong) for one in of)),
                    f"{statistics.median(one.seconds for one in of):.1f} s",
                    f"{max(one.slowest for one in of):.1f} s",
                    f"{max(one.longest for one in of):.1f} s",
                ]
            )
    head = [
        "fault",
        "runs",
        "healed by itself",
        "resumed",
        "wrong",
        "median of a run",
        "slowest attempt",
        "slowest request",
    ]
    page.table(head, rows)
    for one in bad:
        page.say(f"WRONG: {one.fault}: {'; '.join(one.wrong)}; errors: {'; '.join(one.errors)}")
    named = [error for one in outcomes for error in one.errors if error.startswith("PartyLost")]
    page.say(
        f"{len(named)} attempts ended in `PartyLost`; {sum(any(p in error for p in PARTIES) for error in named)} of"
        " them name the party."
    )
    missed = sum(not one.struck for one in outcomes)
    page.say(f"In {missed} runs the chosen request was never made (a coordinator that has greeted does not again).")
    good = not bad and missed < runs / 20 and all(any(p in error for p in PARTIES) for error in named)
    return page.finish(
        good,
        runs=runs,
        wrong=len(bad),
        resumed=sum(one.attempts > 1 for one in outcomes),
        request_s=f"{max(one.longest for one in outcomes):.1f}",
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        sys.exit(main())
