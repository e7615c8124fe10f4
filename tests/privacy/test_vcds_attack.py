"""The reading's attack on VCDS: worst-case neighbours defeat its nominal epsilon, and not what the ledger was debited.

A record that is below everybody in all 20 columns of a party becomes one that is above everybody. The attacker is the
coordinator: it adds up the record's debiased ranks and says which of the two it was. With a true pure epsilon no guess
is right with a chance above e^epsilon / (1 + e^epsilon), whatever it saw; so a binomial test bounds a false alarm.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.papers.vcds.attacks import nominal_ranks
from colonnade.papers.vcds.budget import RankBudget
from colonnade.papers.vcds.method import EVCDS, VCDS
from colonnade.papers.vcds.ranks import binomial_profile
from colonnade.papers.vcds.releases import PRESENCE
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.randomness import SimulatedRandomness

WIDTH = 20
NAMES = [f"x{i}" for i in range(WIDTH)]
COLUMNS = Columns([Column(name=name, kind="continuous", lower=-1.0, upper=1e5) for name in NAMES])
METHOD = VCDS(epsilon=1.0, accounting="nominal")
"""The paper's epsilon 1: epsilon_1 = 0.5 for the ranks, spread over the party's 20 columns (Theorem 1)."""
NOMINAL = 0.5
ALPHA = 1e-6


def budget(n: int) -> RankBudget:
    """Of METHOD with n records at one party."""
    alone = Roster(
        members=(Member(name="party", organisation="party", public_key=bytes(32), owns_data=True),), colluders=0
    )
    return METHOD.procedure(PublicFacts(n=n, columns={"party": COLUMNS}), alone).budget


def p_value(right: int, guesses: int, epsilon: float) -> float:
    """The chance of so many right guesses under a true epsilon: each is right with at most e^eps / (1 + e^eps)."""
    return float(stats.binom.sf(right - 1, guesses, math.exp(epsilon) / (1 + math.exp(epsilon))))


def stated_power(n: int, guesses: int, epsilon_0: float) -> float:
    """The chance that this attack refutes the claim: a guess errs if Bin(M, 1 / (1 + e^eps0)) exceeds M / 2."""
    comparisons = (n - 1) * WIDTH
    right = stats.binom.cdf(comparisons // 2, comparisons, 1 / (1 + math.exp(epsilon_0)))
    needed = next(k for k in range(guesses + 1) if p_value(k, guesses, NOMINAL) <= ALPHA)
    return float(stats.binom.sf(needed - 1, guesses, right))


def cohort(n: int, highest: bool) -> pd.DataFrame:
    """Record 0 is the victim."""
    values = np.arange(float(n))
    values[0] = 1e5 if highest else -1.0
    return pd.DataFrame({"id": range(n)} | dict.fromkeys(NAMES, values))


def seen_by_the_coordinator(tmp_path: Path, n: int, highest: bool, runs: int) -> list[bool]:
    """For each run of VCDS through a federation: does the coordinator say that the victim is the highest?"""
    said = []
    with Federation.local(
        {"party": cohort(n, highest)},
        key="id",
        columns=COLUMNS,
        home=tmp_path / "home",
        runs=tmp_path / "runs",
        allow=(PRESENCE,),
    ) as federation:
        victim = int(federation.transport["party"].rows[0])  # type: ignore[index]
        plan, procedure = federation.plan(METHOD), METHOD.procedure(federation.facts, federation.roster)
        for _ in range(runs):
            with federation.open(plan) as job:
                ranks = procedure.ask_ranks(job, procedure.ask_presence(job))
            said.append(bool(ranks[victim].sum() > WIDTH * (n + 1) / 2))
    return said


@pytest.mark.slow
def test_the_nominal_claim_falls_at_5000_records(tmp_path: Path) -> None:
    """30 runs through the border; power 0.998 or more, as stated; a false alarm has probability at most 1e-6."""
    n, each = 5000, 15
    epsilon_0 = budget(n).epsilon_0
    assert epsilon_0 == pytest.approx(NOMINAL / WIDTH)
    assert stated_power(n, 2 * each, epsilon_0) > 0.998
    highest = seen_by_the_coordinator(tmp_path / "high", n, True, each)
    lowest = seen_by_the_coordinator(tmp_path / "low", n, False, each)
    right = sum(highest) + each - sum(lowest)
    assert p_value(right, 2 * each, NOMINAL) <= ALPHA


def test_the_nominal_claim_falls_at_1000_records() -> None:
    """The same release without the border, 2 x 32 runs: 96 % of the guesses are right, where 0.5 allows 62 %."""
    n, each = 1000, 32
    epsilon_0 = budget(n).epsilon_0
    assert stated_power(n, 2 * each, epsilon_0) > 0.98
    found = nominal_ranks(
        records=n,
        columns=WIDTH,
        epsilon_0=epsilon_0,
        nominal=NOMINAL,
        guesses=2 * each,
        randomness=SimulatedRandomness(1),
    )
    right = found.right
    assert found.refuted
    assert p_value(right, 2 * each, NOMINAL) <= ALPHA
    # What the ledger is debited with allows it: the exact profile of the record's answers gives that many.
    exact = binomial_profile(n, WIDTH, epsilon_0)
    allowed = (1 + float(exact.delta(0.0)[0])) / 2
    assert stats.binom.sf(right - 1, 2 * each, allowed) > ALPHA
    assert guarantee(budget(n).costs(WIDTH), delta=1e-5, relation="replace").epsilon > exact.epsilon(1e-5) > 20


# --- rows of EVCDS ---------------------------------------------------------------------------------------


def linked(tmp_path: Path, sampler: str) -> tuple[float, float]:
    """(share of records whose own row is the nearest one, |rank correlation| of the table's order with the cohort's).

    The adjusted table is sampled once per record of the cohort; the attacker knows all values of a record.
    """
    n = 400
    z = np.random.default_rng(1).standard_normal((n, WIDTH))
    frame = pd.DataFrame(z, columns=NAMES).assign(id=range(n))
    columns = Columns([Column(name=name, kind="continuous", lower=-6.0, upper=6.0) for name in NAMES])
    made = EVCDS(epsilon=8.0, accounting="nominal", split="none", sampler=sampler)  # type: ignore[arg-type]
    with Federation.local(
        {"party": frame}, key="id", columns=columns, home=tmp_path / "h", runs=tmp_path / "r", allow=(PRESENCE,), seed=2
    ) as federation:
        order = np.argsort(federation.transport["party"].rows)  # type: ignore[index]
        table = made.fit(federation)
        rows = table.sample(n).to_numpy()
    in_order = max(abs(stats.spearmanr(rows[:, j], z[order, j]).statistic) for j in range(WIDTH))
    distance = ((z[:, None, :] - rows[None, :, :]) ** 2).sum(axis=2).min(axis=1)
    return float((distance < WIDTH / 3).mean()), float(in_order)


def test_adjusted_rows_lose_their_order_but_not_their_resemblance_and_fresh_rows_have_none(tmp_path: Path) -> None:
    """Independent normals: a row within squared distance 20/3 of a record is an accident of chance 1e-5 a pair
    (chi-squared with 20 degrees at 10/3, as the difference of two normals has variance 2), so 0.4 % of the records
    have one among 400 fresh rows. Resampling keeps 63 % of the rows. The order: 20 rank correlations of 400 records
    with nothing stay below 0.3 (6 sd)."""
    assert stats.chi2.cdf(WIDTH / 6, WIDTH) == pytest.approx(1e-5, rel=0.1)
    found, order = linked(tmp_path / "adjusted", "adjusted")
    assert found > 0.3, "what remains: whoever knows a record recognises its row"
    assert order < 0.3, "rows are not aligned with the cohort"
    found, order = linked(tmp_path / "fresh", "fresh")
    assert found < 0.05
    assert order < 0.3
