"""The attack on units, noisy scores and noisy information, composed: worst-case neighbours under zero-out.

One record at the corner of its domain, or nothing, in units and at coefficients that make the most of it: its row is as
long as it may be, and its residual is 1. Rounding, clipping and noise are the product's own, and `plain_score` is what
share holders compute. Everything that is released is projected on the direction in which the neighbours differ, in
units of its noise: for nearly normal noise that is the likelihood ratio.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.audit.attack import DELTA, NEIGHBOURS, Attack, Setting
from colonnade.audit.bounds import PrivacyProfile, power
from colonnade.audit.claims import claimed_curve, small_consortium
from colonnade.audit.mechanism import Audit, AuditResult
from colonnade.audit.planted import MEMBERS, NOTHING, SELECTIONS, Planted
from colonnade.models.glm.private import STEPS, NoisyScores, PrivateScores, UnitSums
from colonnade.models.glm.private_fit import COUNTED, NoisyInformation, PrivateGeneralizedFit
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam

EPSILON, ROUNDS = 6.0, 3
Integers = NDArray[np.int64]


def score_attacks() -> tuple[Attack, ...]:
    return (_composed("units and noisy scores", scores_for_audit, scores_audit, 60_000),)


def logistic_attacks() -> tuple[Attack, ...]:
    return (_composed("units, noisy scores and information", logistic_for_audit, logistic_audit, 40_000),)


def _composed(words: str, make: Callable[[], Any], audit: Callable[..., Audit[bool]], runs: int) -> Attack:
    def run(setting: Setting) -> AuditResult:
        made = make()
        claim = claimed_curve(made.releases(0), name=f"{words}, server view")
        return audit(made, claim, runs=setting.runs(runs), planted=setting.planted).run(setting.randomness)

    return Attack(NEIGHBOURS, f"{words}, composed", run, joint=True)


@functools.cache
def scores_for_audit() -> PrivateScores:
    """Two covariates of two parties, the response at a third; noise for the server view."""
    with small_consortium() as federation:
        return PrivateScores(
            federation.facts,
            federation.roster,
            response="sued",
            columns=("age", "rating"),
            epsilon=EPSILON,
            delta=DELTA,
            view="server",
            relation="zero-out",
            rounds=ROUNDS,
        )


def plain_score(layout: NoisyScores, parts: Mapping[str, Integers], rows: Mapping[str, Integers]) -> Integers:
    """The exact integers that holders compute in a round, from what the parties share of factors and of rows; in the
    order of coefficients."""
    half = layout.factor_width // 2
    cosines = {party: part[:, -2 * half : -half] for party, part in parts.items()}
    sines = {party: part[:, -half:] for party, part in parts.items()}
    first, *others = layout.others
    real, imaginary = cosines[first], sines[first]
    for party in others:
        cosine, sine = cosines[party], sines[party]
        real, imaginary = real * cosine - imaginary * sine, real * sine + imaginary * cosine
    holder = layout.response_party
    residual = -(real * cosines[holder] + imaginary * sines[holder]).sum(axis=1)
    score = np.empty(layout.width, dtype=np.int64)
    score[layout.order] = np.concatenate([rows[party] for party in layout.parties], axis=1).T @ residual
    return score


def worst_round(layout: NoisyScores) -> NoisyScores:
    """Every norm as large as it may be, units that fill them, and log-odds against the record's response."""
    norms = (
        math.sqrt(0.5),
        *(math.sqrt(0.5 / len(layout.others)) * (party in layout.others) for party in layout.parties),
    )
    width = layout.width - 1
    return layout.with_chosen(
        coefficients=(-50.0, *(0.0,) * width),
        centres=(0.0,) * width,
        units=(100.0,) * width,
        norms=tuple(norm * (1 - 1e-9) for norm in norms),
    )


def corner_score(layout: NoisyScores) -> Integers:
    """What the corner record adds to an opened score."""
    chosen = worst_round(layout)
    one = np.ones(1, dtype=np.int64)
    parts, rows = {}, {}
    for party in chosen.parties:
        own = sum(feature.party == party for feature in chosen.features)
        shared = chosen.quantised(party, np.ones((1, own)), one > 0, one, SimulatedRandomness(0))
        parts[party], rows[party] = shared, shared[:, : len(chosen.place(party))]
    return plain_score(chosen, parts, rows)


def scores_audit(made: PrivateScores, claim: PrivacyProfile, *, runs: int, planted: Planted = NOTHING) -> Audit[bool]:
    noises = [(made.layout.mu, MEMBERS, corner_score(made.layout))] * made.layout.rounds
    return _audit([*noises, *_sums(made.sums, made.mus)], claim, runs=runs, planted=planted)


def corner_information(layout: NoisyInformation) -> Integers:
    """What a record adds to the information at coefficients of 0, where its weight is 1/4. A row that is the constant
    alone has all of its square in one entry of the upper triangle."""
    norms = (1 - 1e-9, *(0.0,) * len(layout.parties))
    chosen = replace(worst_round(layout), coefficients=(0.0,) * layout.width, norms=norms)
    row, presence, there = [], np.full(1, -2), np.ones(1, dtype=bool)
    slope = 1
    for party in chosen.parties:
        own = sum(feature.party == party for feature in chosen.features)
        shared = chosen.quantised(party, np.ones((1, own)), there, presence, SimulatedRandomness(0))
        row.append(shared[0, : len(chosen.place(party))])
        cosines = shared[0, len(chosen.place(party)) :][
            1 : chosen.factor_width // 2
        ]  # at a predictor of 0 all are real
        slope = slope * (int(cosines.sum()) if party == chosen.response_party else int(cosines[0]))
    entries = np.concatenate(row)
    products = np.outer(entries, entries)[np.triu_indices(chosen.width)] * slope
    return np.append(products, chosen.gamma**2 // COUNTED * chosen.scale)


@functools.cache
def logistic_for_audit() -> PrivateGeneralizedFit:
    """As `scores_for_audit`. Its noise is made for one colluder, so that with none it is worth less than epsilon."""
    with small_consortium() as federation:
        names = ("age", "rating", "sued")
        return PrivateGeneralizedFit(federation.facts, federation.roster, names=names, epsilon=EPSILON, delta=DELTA)


def logistic_audit(
    made: PrivateGeneralizedFit, claim: PrivacyProfile, *, runs: int, planted: Planted = NOTHING
) -> Audit[bool]:
    noises = [
        (stages.layout.mu, MEMBERS, corner_score(stages.layout))
        for stages in (made.first, made.last)
        for _ in range(stages.layout.rounds)
    ]
    noises.append((made.information.layout.mu, MEMBERS, corner_information(made.information.layout)))
    return _audit([*noises, *_sums(made.sums, made.mus)], claim, runs=runs, planted=planted)


def _sums(sums: Mapping[str, UnitSums], mus: Mapping[str, int]) -> list[tuple[int, int, Integers]]:
    """What the record adds to each party's sums: as much as they are accounted for. All noise is the party's own."""
    return [(mus[party], 1, np.full(shape.size, STEPS, dtype=np.int64)) for party, shape in sums.items()]


def _audit(
    noises: Sequence[tuple[int, int, Integers]], claim: PrivacyProfile, *, runs: int, planted: Planted
) -> Audit[bool]:
    """Of releases: mu, the members that share its noise, and what the record adds."""
    separation = math.sqrt(sum(float(np.sum(shift.astype(float) ** 2)) / (2 * mu) for mu, _, shift in noises))

    def run_many(present: bool, runs: int, randomness: Randomness) -> NDArray[np.float64]:
        total = np.zeros(runs)
        for mu, members, shift in noises:
            for _ in range(members - planted.silent if members > 1 else 1):
                noise = skellam(randomness, planted.variance(Fraction(mu, members)), (runs, shift.size))
                total += noise @ (shift.astype(float) / (2 * mu))
            total += present * float(np.sum(shift.astype(float) ** 2)) / (2 * mu)
        return total / separation

    factor = 1.4 if planted.nothing else planted.effective
    stated = power(claim, shift=separation, sd=1.0, factor=factor, runs=runs, selections=SELECTIONS)
    return Audit(neighbours=(True, False), run_many=run_many, claim=claim, delta=DELTA, runs=runs, stated_power=stated)
