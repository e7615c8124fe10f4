"""The attack on the copula's two releases together.

Worst-case neighbours under zero-out: one record at the corner of its domain, or nothing. Marginals, score maps,
quantisation, clipping and noise are the product's own; the statistic is the log likelihood ratio of normal noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from colonnade.audit.attack import DELTA, NEIGHBOURS, Attack, Setting
from colonnade.audit.bounds import PrivacyProfile
from colonnade.audit.claims import AGE, claimed_curve, small_consortium
from colonnade.audit.mechanism import Audit, AuditResult, presence_audit
from colonnade.audit.planted import MEMBERS, NOTHING, Planted
from colonnade.privacy.noise import discrete_gaussian
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.adaptive import Axis, release, to_arrays
from colonnade.statistics.features import quantize
from colonnade.synthesis.copula.procedure import CopulaReleases
from colonnade.synthesis.copula.scores import column_rounds, party_marginals, score_map
from colonnade.synthesis.method import Synthesize

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]


def copula_attacks() -> tuple[Attack, ...]:
    return (Attack(NEIGHBOURS, "marginals and moments, composed", _marginals_and_moments, joint=True),)


def _marginals_and_moments(setting: Setting) -> AuditResult:
    method = Synthesize(model="copula", epsilon=4.0, delta=DELTA, columns=("age",), marginal_share=0.5, view="server")
    with small_consortium() as federation:
        releases = CopulaReleases(method, federation.facts, federation.roster)
        claim = claimed_curve(federation.plan(method).costs(), name="marginals and moments together")
    audit = copula_audit(releases, claim, delta=DELTA, runs=setting.runs(100_000), planted=setting.planted)
    return audit.run(setting.randomness)


def corner_scores(releases: CopulaReleases, present: bool, randomness: Randomness) -> tuple[Integers, Integers]:
    """(the record's count in each round, upper triangle of the Gram matrix) of a record at the upper bound of `age`, or
    of nobody.

    It is in the last cell of every round, whatever the rounds before have chosen, and its score is 1 whatever noise the
    marginal has.
    """
    sigma, number, layout = releases.sigma, releases.rounds, releases.layout
    values = np.array([AGE.upper] if present else [], dtype=np.float64)
    axis, n = Axis.of(AGE), layout.facts.n
    noise = column_rounds(sigma, number)
    released = release(lambda edges: axis.count(values, edges), axis, n=n, rounds=noise, randomness=randomness)
    marginals = party_marginals(
        {"age": AGE}, {"age": to_arrays(released, noise)}, n=n, sigma=sigma, rounds=number
    ).marginals
    counts = np.array([axis.count(values, turn.edges)[-1] for turn in released], dtype=np.int64)
    scores = score_map(AGE, marginals["age"])(values)
    rows = quantize(
        scores.reshape(-1, 1), gamma=layout.gamma, clip=layout.bound("clinic"), entry=1.0, randomness=randomness
    )
    row = np.array([layout.gamma, rows[0, 0]]) if present else np.zeros(2, dtype=np.int64)
    return counts, np.asarray(np.outer(row, row)[np.triu_indices(2)])


def copula_audit(
    releases: CopulaReleases, claim: PrivacyProfile, *, delta: float, runs: int, planted: Planted = NOTHING
) -> Audit[bool]:
    """Both releases together, as an attacker sees them: the log likelihood ratio of normal noise."""
    sigma, layout = releases.sigma, releases.layout
    round_sd = sigma / planted.factor * math.sqrt(releases.rounds)
    mu = planted.variance(layout.mu)
    truth = {present: corner_scores(releases, present, SimulatedRandomness(1)) for present in (True, False)}
    moved = truth[True][0] > truth[False][0]
    direction = truth[True][1].astype(float) / float(2 * mu * planted.members / MEMBERS)

    def run_many(present: bool, runs: int, randomness: Randomness) -> Reals:
        cells = truth[present][0][moved] + discrete_gaussian(randomness, round_sd, runs * moved.sum()).reshape(runs, -1)
        opened = truth[present][1] + sum(skellam(randomness, mu / MEMBERS, (runs, 3)) for _ in range(planted.members))
        return np.asarray(cells.sum(axis=1) / round_sd**2 + opened @ direction)

    # Squared Gaussian parameters add up: 1 / sigma^2 for all rounds, delta_2^2 / (2 mu) for the moments.
    counted, gram = 1 / sigma**2, layout.delta_2**2 / (2 * layout.mu)
    looked_for = Planted(factor=1.4) if planted.nothing else planted
    broken = looked_for.factor**2 * (counted + gram * MEMBERS / looked_for.members)
    return presence_audit(
        run_many,
        claim,
        shift=math.sqrt(counted + gram),
        sd=1.0,
        delta=delta,
        runs=runs,
        planted=planted,
        factor=math.sqrt(broken / (counted + gram)),
    )
