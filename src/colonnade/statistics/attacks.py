"""Attacks on the statistics that methods are made of: noisy counts, per party and joint, sums, and Gram matrices.

Worst-case neighbours under zero-out: a record that is in one cell of every table, or at the corner of its domain, or
nothing. Quantisation, clipping and noise are the product's own; the statistic is the log likelihood ratio of what the
record moves, or the release projected on the direction in which the neighbours differ.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from colonnade.audit.attack import DELTA, NEIGHBOURS, Attack, Setting
from colonnade.audit.bounds import CONFIDENCE, PrivacyProfile, profile_from_gaussian
from colonnade.audit.claims import claimed_curve, small_consortium
from colonnade.audit.inference import InferenceResult, attribute_inference, one_run_audit
from colonnade.audit.mechanism import Audit, AuditResult, presence_audit
from colonnade.audit.planted import MEMBERS, NOTHING, Planted
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.calibration import Calibration, Gaussians
from colonnade.privacy.cost import Gaussian, GaussianCell
from colonnade.privacy.noise import discrete_gaussian
from colonnade.privacy.randomness import Randomness, SimulatedRandomness, simulated_generator
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.adaptive import Axis, Counts, Rounds, release
from colonnade.statistics.describe import Describe
from colonnade.statistics.moments import Moments, MomentsLayout
from colonnade.statistics.polynomial import Polynomial, PolynomialSum
from colonnade.statistics.secure_sum import PresenceTotal
from colonnade.statistics.tables import Tables

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]

# --- `describe` -------------------------------------------------------------------------------------------


def describe_attacks() -> tuple[Attack, ...]:
    return (
        Attack(NEIGHBOURS, "counts of every column, composed", _every_column),
        Attack(NEIGHBOURS, "rounds of an adaptive marginal, composed", _adaptive_counts),
        Attack("where cells are cut", "rounds of an adaptive marginal, composed", _adaptive_choice, plantable=False),
        Attack("a hidden attribute", "one histogram, under replace", _hidden_attribute),
        Attack("membership in one run", "a whole job through the border", _one_run, least=10.0),
    )


def _every_column(setting: Setting) -> AuditResult:
    with small_consortium() as federation:
        plan = federation.plan(Describe(epsilon=6.0, delta=DELTA))
        leaves = [leaf for cost in plan.costs() for leaf in cost.leaves()]
    claim = claimed_curve(plan.costs(), name="noisy counts")
    audit = counts_audit(
        claim,
        level=leaves[0].number("noise_multiplier"),
        releases=sum(leaf.count for leaf in leaves),
        delta=DELTA,
        runs=setting.runs(60_000),
        planted=setting.planted,
    )
    return audit.run(setting.randomness)


def _adaptive_counts(setting: Setting) -> AuditResult:
    audit = rounds_audit(rounds_claim(), delta=DELTA, runs=setting.runs(2500), planted=setting.planted)
    return audit.run(setting.randomness)


def _adaptive_choice(setting: Setting) -> AuditResult:
    return choice_audit(rounds_claim(), delta=DELTA, runs=setting.runs(1500)).run(setting.randomness)


def _hidden_attribute(setting: Setting) -> InferenceResult:
    level = 4.0
    claimed = guarantee([Gaussian(level, replace_factor=2**0.5)], delta=DELTA, relation="replace").epsilon
    return hidden_attribute(
        level=level,
        epsilon=claimed,
        delta=DELTA,
        trials=setting.runs(20_000),
        randomness=setting.randomness,
        planted=setting.planted,
    )


def _one_run(setting: Setting) -> InferenceResult:
    return described_once(
        epsilon=1.0, delta=1e-6, canaries=setting.runs(2000), seed=setting.seed, planted=setting.planted
    )


# --- joint statistics -------------------------------------------------------------------------------------


def tables_attacks() -> tuple[Attack, ...]:
    return (Attack(NEIGHBOURS, "two tables, composed", _two_tables, joint=True),)


def moments_attacks() -> tuple[Attack, ...]:
    return (Attack(NEIGHBOURS, "one Gram matrix", _gram_matrix, joint=True),)


def polynomial_attacks() -> tuple[Attack, ...]:
    return (Attack(NEIGHBOURS, "one sum of products", _sum_of_products, joint=True),)


def presence_attacks() -> tuple[Attack, ...]:
    return (Attack(NEIGHBOURS, "one total over all parties", _total, joint=True),)


def _two_tables(setting: Setting) -> AuditResult:
    method = Tables(tables=(("sued", "rating"), ("sector",)), epsilon=2.0, delta=DELTA, view="server")
    with small_consortium() as federation:
        mus = method.layout(federation.facts, federation.roster).mus
        claim = claimed_curve(federation.plan(method).costs(), name="two contingency tables")
    audit = tables_audit(claim, mus, delta=DELTA, runs=setting.runs(100_000), planted=setting.planted)
    return audit.run(setting.randomness)


def _gram_matrix(setting: Setting) -> AuditResult:
    method = Moments(
        epsilon=8.0,
        delta=DELTA,
        columns=("sued", "rating"),
        presence="ignore",
        constant=False,
        view="server",
        gamma=64,
    )
    with small_consortium() as federation:
        layout = method.layout(federation.facts, federation.roster)
        claim = claimed_curve(federation.plan(method).costs(), name="a Gram matrix")
    audit = moments_audit(layout, claim, delta=DELTA, runs=setting.runs(1_500_000), planted=setting.planted)
    return audit.run(setting.randomness)


def _sum_of_products(setting: Setting) -> AuditResult:
    method = PolynomialSum(
        polynomial=Polynomial.of([(1.0, {"sued": 1, "rating": 1})]), epsilon=8.0, delta=DELTA, view="server", gamma=64
    )
    with small_consortium() as federation:
        layout = method.layout(federation.facts, federation.roster)
        claim = claimed_curve(federation.plan(method).costs(), name="a sum of products")
    (reach,) = layout.reach
    audit = total_audit(
        claim, layout.mu, shift=reach, delta=DELTA, runs=setting.runs(1_500_000), planted=setting.planted
    )
    return audit.run(setting.randomness)


def _total(setting: Setting) -> AuditResult:
    method = PresenceTotal(epsilon=4.0, delta=DELTA, view="server")
    with small_consortium() as federation:
        mu, parties = method.procedure(federation.facts, federation.roster).mu, len(federation.facts.parties)
        claim = claimed_curve(federation.plan(method).costs(), name="records over all parties")
    audit = total_audit(claim, mu, shift=parties, delta=DELTA, runs=setting.runs(100_000), planted=setting.planted)
    return audit.run(setting.randomness)


# --- counts -----------------------------------------------------------------------------------------------


def counts_audit(
    claim: PrivacyProfile, *, level: float, releases: int, delta: float, runs: int, planted: Planted = NOTHING
) -> Audit[bool]:
    """A record that adds 1 to one cell of each of `releases` histograms with discrete Gaussian noise of sd `level`."""
    sd = level / planted.factor

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        noise = discrete_gaussian(randomness, sd, runs * releases).reshape(runs, releases)
        return np.asarray((noise + int(present)).sum(axis=1) / level**2, dtype=np.float64)

    shift = math.sqrt(releases) / level
    return presence_audit(run_many, claim, shift=shift, sd=1.0, delta=delta, runs=runs, planted=planted)


def tables_audit(
    claim: PrivacyProfile,
    mus: Sequence[int],
    *,
    delta: float,
    runs: int,
    units: Sequence[int] | None = None,
    moments: MomentsLayout | None = None,
    planted: Planted = NOTHING,
) -> Audit[bool]:
    """A record that adds 1 to one cell of every joint table; each of three members adds its share of Sk(mu).

    `units` says how many tables are opened with each mu; one by default. With `moments` a Gram matrix is opened too,
    that of a record at the corner of its domain.
    """
    every = [(mu, count) for mu, count in zip(mus, units or [1] * len(mus), strict=True) if count]
    corner = np.zeros(0) if moments is None else corner_products(moments).astype(np.float64)
    wide = 1 if moments is None else moments.mu

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        score = np.zeros(runs)
        for mu, count in every:
            share = planted.variance(mu) / MEMBERS
            for _ in range(count):
                cell = int(present) + sum(skellam(randomness, share, runs) for _ in range(planted.members))
                values, where = np.unique(cell, return_inverse=True)
                score += (stats.skellam.logpmf(values - 1, mu, mu) - stats.skellam.logpmf(values, mu, mu))[where]
        for shift in corner:  # noise this large is normal, so the likelihood ratio is linear
            noise = sum(skellam(randomness, planted.variance(wide) / MEMBERS, runs) for _ in range(planted.members))
            score += (shift * int(present) + noise) * shift / (2 * wide)
        return score

    # The score is nearly normal: in units of the noise the neighbours differ by sqrt(sum 1 / (2 mu)).
    shift = math.sqrt(sum(count / (2 * mu) for mu, count in every) + float(corner @ corner) / (2 * wide))
    return presence_audit(run_many, claim, shift=shift, sd=1.0, delta=delta, runs=runs, planted=planted)


def corner_products(layout: MomentsLayout) -> Integers:
    """What a record at the corner of its domain adds to a Gram matrix with a public constant, as the parties quantise
    and clip it: every number at its bound, the last category of each column."""
    blocks = []
    for party in layout.parties:
        features = [feature for feature in layout.features if feature.party == party]
        last = {feature.column: feature.name for feature in features}
        ends = [float(feature.category is None or last[feature.column] == feature.name) for feature in features]
        blocks.append(layout.integer_rows(party)(np.array([ends]), SimulatedRandomness(0))[0])
    row = np.concatenate([[layout.gamma], *blocks])
    changed = upper_triangle(row) - upper_triangle(np.concatenate([[layout.gamma], 0 * row[1:]]))
    return np.asarray(changed[changed != 0])


def total_audit(
    claim: PrivacyProfile, mu: int, *, shift: int, delta: float, runs: int, planted: Planted = NOTHING
) -> Audit[bool]:
    """A record that moves one joint total by `shift`; each of three members adds its share of Sk(mu)."""
    share = planted.variance(mu) / MEMBERS

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        noise = sum(skellam(randomness, share, runs) for _ in range(planted.members))
        return np.asarray(noise + shift * int(present), dtype=np.float64)

    return presence_audit(run_many, claim, shift=shift, sd=math.sqrt(2 * mu), delta=delta, runs=runs, planted=planted)


# --- moments ----------------------------------------------------------------------------------------------


def upper_triangle(row: Integers) -> Integers:
    return np.asarray(np.outer(row, row)[np.triu_indices(len(row))])


def corner_moments(layout: MomentsLayout, present: bool, randomness: Randomness) -> Integers:
    """The upper triangle of the one record's Gram matrix, as the parties quantise and clip it: a record at the corner
    of its domain with every cell filled, or one that no party has."""
    values = {party: np.ones((1, len(layout.own_masked(party)) + 1)) for party in layout.parties}
    blocks = [layout.integer_rows(party)(corner, randomness) for party, corner in values.items()]
    return upper_triangle(np.concatenate(blocks, axis=1)[0] * int(present))


def moments_audit(
    layout: MomentsLayout, claim: PrivacyProfile, *, delta: float, runs: int, planted: Planted = NOTHING
) -> Audit[bool]:
    """One column of one bit at each party; three members share the Skellam noise."""
    direction = corner_moments(layout, True, SimulatedRandomness(0)).astype(float)
    direction /= np.linalg.norm(direction)
    share = planted.variance(layout.mu) / MEMBERS

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        noise = sum(skellam(randomness, share, (runs, direction.size)) for _ in range(planted.members))
        return np.asarray((corner_moments(layout, present, randomness) + noise) @ direction)

    sd = math.sqrt(2 * layout.mu)
    return presence_audit(run_many, claim, shift=layout.delta_2, sd=sd, delta=delta, runs=runs, planted=planted)


# --- the rounds of an adaptive marginal -----------------------------------------------------------------------
#
# The mechanism is the product's own `adaptive.release`, run again and again. The record is one of several with the same
# value, so that cells are cut around it in every round; the attacker knows the others.

ROUND_LEVEL, ROUND_NUMBER = 0.55, 3
"""The noise multiplier of the whole release, and its rounds."""
AUDITED = Axis(0.0, 100.0, 1 << 30)


def rounds_claim() -> PrivacyProfile:
    """What the rounds cost: a histogram each, of which one cell moves by 1."""
    one_round = GaussianCell(audited_rounds().scale)
    return claimed_curve([one_round.times(ROUND_NUMBER)], name="rounds of an adaptive marginal")


def audited_rounds(planted: Planted = NOTHING) -> Rounds:
    return Rounds(ROUND_NUMBER, "gaussian", ROUND_LEVEL * math.sqrt(ROUND_NUMBER) / planted.factor)


def released_around(others: int, present: bool, rounds: Rounds, randomness: Randomness) -> list[Counts]:
    """The release of `others` records at one value, with one more or without."""
    values = np.full(others + present, 37.5)
    return release(lambda edges: AUDITED.count(values, edges), AUDITED, n=60, rounds=rounds, randomness=randomness)


def rounds_audit(claim: PrivacyProfile, *, delta: float, runs: int, planted: Planted = NOTHING) -> Audit[bool]:
    """The log likelihood ratio of all rounds: with y the count of the cell of the record, c that of the others in it,
    (2 (y - c) - 1) / (2 s^2) for each. Which cell that is follows from the rounds before, which are counted too."""
    rounds, others = audited_rounds(planted), 30

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        ratios = np.zeros(runs)
        for run in range(runs):
            for turn in released_around(others, present, rounds, randomness):
                cell = int(np.searchsorted(AUDITED.values(turn.edges), 37.5, side="right")) - 1
                ratios[run] += (2 * (int(turn.counts[cell]) - others) - 1) / (2 * rounds.scale**2)
        return ratios

    return presence_audit(run_many, claim, shift=1.0, sd=ROUND_LEVEL, delta=delta, runs=runs, planted=planted)


def choice_audit(claim: PrivacyProfile, *, delta: float, runs: int) -> Audit[bool]:
    """How many cells the second round has. With the record its cell reaches the number from which on a cell is cut,
    without it not: a choice by exact counts would tell them apart for sure, one by noisy counts hardly."""
    rounds = audited_rounds()
    others = math.ceil((rounds.clear() + 1) * rounds.believed) - 1

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        sizes = [released_around(others, present, rounds, randomness)[1].counts.size for _ in range(runs)]
        return np.array(sizes, dtype=np.float64)

    return Audit(neighbours=(True, False), run_many=run_many, claim=claim, delta=delta, runs=runs)


# --- many people at once ------------------------------------------------------------------------------------


def hidden_attribute(
    *, level: float, epsilon: float, delta: float, trials: int, randomness: Randomness, planted: Planted = NOTHING
) -> InferenceResult:
    """The attacker knows all but one binary attribute; it sees both noisy cells and names the one that looks larger.

    `epsilon` is the claim under replace: the record moves from one cell to the other, sqrt(2) apart. For normal noise
    the guess is right with probability Phi(1 / (sqrt(2) sd)), which is all that the claimed curve allows.
    """
    truth = simulated_generator(randomness).integers(0, 2, trials)
    noise = discrete_gaussian(randomness, level / planted.factor, 2 * trials).reshape(trials, 2)
    shown = noise + np.eye(2, dtype=np.int64)[truth]
    right = int((shown.argmax(axis=1) == truth).sum())
    return attribute_inference(
        right,
        trials,
        values=2,
        claimed_epsilon=epsilon,
        delta=delta,
        confidence=CONFIDENCE,
        claim=profile_from_gaussian(level / math.sqrt(2)),
        success=float(stats.norm.cdf(planted.looked_for / (math.sqrt(2) * level))),
    )


def described_once(
    *, epsilon: float, delta: float, canaries: int, seed: int, planted: Planted = NOTHING
) -> InferenceResult:
    """One real `describe` job, through border, ledger and wire. Each canary has a category of its own.

    A coin lets each canary in. One that is out stays in the cohort, through another party, and holds nothing: zero-out.
    Membership is guessed from its noisy cell. A planted factor takes the epsilon of so much less noise.
    """
    rng = np.random.default_rng(seed)
    coins = rng.random(canaries) < 0.5
    coins[:2] = True, False  # neither block may be empty; these two are not scored
    keys = [f"C{i:05d}" for i in range(canaries)]
    names = tuple(f"cell {i}" for i in range(canaries))
    columns = Columns(
        [
            Column(name="cell", kind="categorical", categories=names),
            Column(name="listed", kind="binary", categories=("no", "yes")),
        ]
    )
    frame = pd.DataFrame({"id": keys, "cell": names})
    blocks = {"court": frame[coins].reset_index(drop=True), "registry": pd.DataFrame({"id": keys, "listed": "yes"})}
    with (
        tempfile.TemporaryDirectory() as folder,
        Federation.local(
            blocks, key="id", columns=columns, home=Path(folder) / "home", runs=Path(folder) / "runs", seed=seed
        ) as federation,
    ):
        described = Describe(epsilon=_at_less_noise(epsilon, delta, planted, releases=4), delta=delta).fit(
            federation, sure=True
        )
    counts = np.asarray(described.marginals["cell"]["counts"][:canaries], dtype=np.float64)
    guesses = 2 * max(canaries // 20, 5)
    return one_run_audit(
        counts[2:], coins[2:], claimed_epsilon=epsilon, delta=delta, guesses=guesses, confidence=1 - 1e-3
    )


def _at_less_noise(epsilon: float, delta: float, planted: Planted, *, releases: int) -> float:
    """The epsilon of `releases` Gaussian releases with noise `planted.factor` times smaller than that of epsilon."""
    if planted.factor == 1:
        return epsilon
    level = Calibration({"counts": Gaussians(count=releases, share=releases)}, epsilon=epsilon, delta=delta)["counts"]
    return guarantee([Gaussian(level / planted.factor).times(releases)], delta=delta).epsilon
