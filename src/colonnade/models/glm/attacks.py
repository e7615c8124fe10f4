"""The attack on units, noisy scores, information and variation, composed: worst-case neighbours under zero-out.

One record at the corner of its domain, or nothing, in units and at coefficients that make the most of it: its row is as
long as it may be, and its residual is 1, in units of the cap. Rounding, clipping and noise are the product's own, and
`plain_score` is what share holders compute. Everything that is released is projected on the direction in which the
neighbours differ, in units of its noise: for nearly normal noise that is the likelihood ratio.
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
from colonnade.audit.bounds import PrivacyProfile
from colonnade.audit.claims import claimed_curve, small_consortium
from colonnade.audit.mechanism import Audit, AuditResult, presence_audit
from colonnade.audit.planted import MEMBERS, NOTHING, Planted
from colonnade.data.column import Column, Columns
from colonnade.models.glm.private import STEPS, NoisyScores, PrivateScores, UnitSums
from colonnade.models.glm.private_fit import NoisyInformation, NoisyVariation, PrivateGeneralizedFit
from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam

EPSILON, ROUNDS = 6.0, 3
Integers = NDArray[np.int64]


def score_attacks() -> tuple[Attack, ...]:
    return (_composed("units and noisy scores", scores_for_audit, scores_audit, 60_000),)


def logistic_attacks() -> tuple[Attack, ...]:
    return (_composed("units, noisy scores and information", logistic_for_audit, fit_audit, 40_000),)


def poisson_attacks() -> tuple[Attack, ...]:
    return (_composed("units, noisy scores, information and variation", poisson_for_audit, fit_audit, 40_000),)


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
    score = np.empty(layout.width, dtype=np.int64)
    columns = np.concatenate([rows[party] for party in layout.parties], axis=1)
    score[layout.order] = columns.T @ -plain_terms(layout, parts).sum(axis=1)
    return score


def plain_terms(layout: NoisyScores, parts: Mapping[str, Integers]) -> Integers:
    """(record, frequency): products of all parties' factors, real parts."""
    half = layout.factor_width // 2
    cosines = {party: part[:, -2 * half : -half] for party, part in parts.items()}
    sines = {party: part[:, -half:] for party, part in parts.items()}
    first, *others = layout.others
    real, imaginary = cosines[first], sines[first]
    for party in others:
        cosine, sine = cosines[party], sines[party]
        real, imaginary = real * cosine - imaginary * sine, real * sine + imaginary * cosine
    holder = layout.response_party
    return np.asarray(real * cosines[holder] + imaginary * sines[holder])


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


def corner_score(layout: NoisyScores, event: float = 1.0) -> Integers:
    """What the corner record adds to an opened score. A larger `event` is one whose response was not clipped."""
    chosen = worst_round(layout)
    parts = _shared(chosen, event)
    return plain_score(chosen, parts, {party: part[:, : len(chosen.place(party))] for party, part in parts.items()})


def _shared(chosen: NoisyScores, event: float) -> dict[str, Integers]:
    """What the parties share of the corner record."""
    present = np.ones(1, dtype=bool)
    own = {party: sum(feature.party == party for feature in chosen.features) for party in chosen.parties}
    return {
        party: chosen.quantised(party, np.ones((1, own[party])), present, np.full(1, event), SimulatedRandomness(0))
        for party in chosen.parties
    }


def scores_audit(scores: PrivateScores, claim: PrivacyProfile, *, runs: int, planted: Planted = NOTHING) -> Audit[bool]:
    noises = [(scores.layout.mu, MEMBERS, corner_score(scores.layout))] * scores.layout.rounds
    return _audit([*noises, *_sums(scores.sums, scores.mus)], claim, runs=runs, planted=planted)


def corner_matrix(layout: NoisyInformation, event: float = 1.0) -> Integers:
    """What a record adds to the information where its weight is largest, or to the variation where its residual is. A
    row that is the constant alone has all of its square in one entry of the upper triangle."""
    norms, varies = (1 - 1e-9, *(0.0,) * len(layout.parties)), isinstance(layout, NoisyVariation)
    cap = layout.bounded.caps[-1]
    point = -50.0 if varies else layout.bounded.steepest(cap)
    chosen = replace(worst_round(layout), cap=cap, coefficients=(point, *(0.0,) * (layout.width - 1)), norms=norms)
    parts = _shared(chosen, event)
    terms = plain_terms(chosen, parts)[0]
    entries = np.concatenate([parts[party][0, : len(chosen.place(party))] for party in chosen.parties])
    products = np.outer(entries, entries)[np.triu_indices(chosen.width)]
    if varies:
        return np.asarray(products * terms.sum())
    return np.append(products * terms[1:].sum(), layout.counted * terms[0])


@functools.cache
def logistic_for_audit() -> PrivateGeneralizedFit:
    """As `scores_for_audit`. Its noise is made for one colluder, so that with none it is worth less than epsilon."""
    with small_consortium() as federation:
        names = ("age", "rating", "sued")
        return PrivateGeneralizedFit(federation.facts, federation.roster, names=names, epsilon=EPSILON, delta=DELTA)


@functools.cache
def poisson_for_audit() -> PrivateGeneralizedFit:
    """As `logistic_for_audit`, with a count for the response."""
    with small_consortium() as federation:
        facts, visits = federation.facts, Column(name="visits", kind="count", lower=0, upper=9)
        counted = replace(facts, columns={**facts.columns, "court": Columns([visits])})
        names = ("age", "rating", "visits")
        return PrivateGeneralizedFit(
            counted, federation.roster, family="poisson", names=names, epsilon=EPSILON, delta=DELTA
        )


def fit_audit(
    fit: PrivateGeneralizedFit, claim: PrivacyProfile, *, runs: int, planted: Planted = NOTHING, event: float = 1.0
) -> Audit[bool]:
    noises = [
        (stages.layout.mu, MEMBERS, corner_score(stages.layout, event))
        for stages in (fit.first, fit.last, fit.check)
        for _ in range(stages.layout.rounds)
    ]
    matrices = (fit.information.layout, *([fit.variation.layout] if fit.variation else []))
    noises += [(layout.mu, MEMBERS, corner_matrix(layout, event)) for layout in matrices]
    return _audit([*noises, *_sums(fit.sums, fit.mus)], claim, runs=runs, planted=planted)


def _sums(sums: Mapping[str, UnitSums], mus: Mapping[str, int]) -> list[tuple[int, int, Integers]]:
    """What the record adds to each party's sums: as much as they are accounted for. All noise is the party's own."""
    added = []
    for party, shape in sums.items():
        own = np.full(shape.size, STEPS, dtype=np.int64)
        if shape.responds:  # a count is in one interval
            own[shape.size - shape.answers + 1 :] = 0
        added.append((mus[party], 1, own))
    return added


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

    return presence_audit(run_many, claim, shift=separation, sd=1.0, delta=DELTA, runs=runs, planted=planted)
