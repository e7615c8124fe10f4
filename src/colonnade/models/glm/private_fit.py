"""`Regress(family="binomial", epsilon=...)`: logistic regression with intervals from noisy scores and one noisy matrix.

1. Units and a few damped rounds of noisy scores (`private.py`), of complete records, near the maximum.
2. The information there, B = sum W h h' with W = mu', and the number of complete records, opened once with noise.
3. Newton's method with that B, in proportion to the mean of W, for three more rounds; the ends of the last two are
   averaged. Where it has settled, b + B^-1 s has sampling error, and the noise of its own score s only.

    V = B^-1 (B + t^2) B^-1,

t the noise of the last scores together: B is the variance of an exact score if the model holds. In rows that are
clipped h is shorter than x, so that B is less than the slope sum W h x' and V is on the large side. All is one account.
The claim is in `private.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.options import Verification
from colonnade.federation.party import Party
from colonnade.federation.plan import HOPELESS
from colonnade.federation.roster import Roster
from colonnade.formatting import number
from colonnade.models.glm.fit import check_family, fitted
from colonnade.models.glm.private import (
    FULL_COST,
    SERIES,
    NoisyScores,
    NoisyScoreStages,
    Units,
    UnitSums,
    mean_slope,
    noiseless_scores,
    units_of,
    units_releases,
    units_stage,
)
from colonnade.models.glm.proof import InformationProof, ScoreProof
from colonnade.models.glm.result import GeneralizedRegression
from colonnade.models.glm.scores import verification_note
from colonnade.models.linear.result import NOT_VALID, Regression
from colonnade.privacy.calibration import Calibration, Skellams
from colonnade.privacy.cost import Cost
from colonnade.secure.bgw import Product, cross, lift
from colonnade.secure.extension import Extension
from colonnade.statistics.features import empty_notes
from colonnade.statistics.forecast import FORECAST, enough
from colonnade.statistics.gaussian_em import Matrix, Vector
from colonnade.statistics.joint import account_notes, colluders

SHARES = {"units": 0.1, "scores": 0.2, "information": 0.2, "last scores": 0.5}
"""Of the budget, as 1 / noise multiplier squared."""
DAMPED, LAST, AVERAGED = 6, 3, 2
"""Rounds before the information and after it, and of these the last ones that the estimate is the mean of."""
WIDE = 6.0
"""Deviations of a row's square beyond which it is clipped: few rows are, so B is nearly the slope, and where the model
does not hold the fit is near that of maximum likelihood."""
DAMPING = 1.5
COUNTED = 8
"""A complete record counts as gamma^2 / 8 beside W h h', which is at most gamma^2 / 4."""
SINGULAR, RAISED = 0.75, 0.5
"""The smallest eigenvalue of B, in units of the norm of its noise, below which nothing is said of intervals; and what
smaller ones are raised to."""
UNSETTLED = 1e-4
"""How rare a difference of the last two rounds is, by their noise alone, that is taken for more than noise."""
COMPLETE_SHARE = 0.95
RECORDS_EACH = 10
SLOPE = 0.2
"""W that a forecast takes, and the smallest eigenvalue of correlated features in units of their variance."""
CORRELATED = 0.3
COMPLETE_ONLY = (
    "Only records that every party has are used: right if whether a record is complete depends on the covariates, and"
    " not on the response given these."
)


@dataclass(frozen=True, kw_only=True)
class NoisyInformation(NoisyScores):
    """One round that opens sum W h h', the upper triangle, and the number of complete records."""

    kind: ClassVar[str] = "noisy-information"
    exact: ClassVar[tuple[str, str]] = (
        "exact-scores",
        "exact sums over records of weighted products of columns at coefficients that all members are told",
    )
    results: ClassVar[str] = "noisy weighted products of the columns, and the noisy number of complete records"

    @property
    def levels(self) -> int:
        return len(self.tree) + 2

    @property
    def size(self) -> int:
        return self.width * (self.width + 1) // 2 + 1

    @property
    def largest_slope(self) -> float:
        """|W| of every record: b_k o_k are positive and add up to 1/4 at most, and factors are rounded."""
        others = math.pow(1 + math.sqrt(0.5) / 2**self.factor_bits, len(self.others))
        return float(others * (0.25 + len(SERIES.frequencies) * math.sqrt(0.5) / 2**self.last_bits) * (1 + 1e-12))

    @property
    def delta_2(self) -> float:
        """W h h' has at most W |h|^2 in its upper triangle; beside it stands the record itself."""
        return self.gamma**2 * self.scale * math.hypot(self.largest_slope, 1 / COUNTED) * (1 + 1e-12)

    @property
    def noise_sd(self) -> float:
        """Of an entry of B, of rows of norm 1."""
        return math.sqrt(2 * self.mu) / (self.gamma**2 * self.scale)

    def _response(self, me: Party) -> NDArray[np.int64]:
        """At frequency 0 stands the record's presence, -event / 2, and not its response."""
        return np.full(self.facts.n, -2, dtype=np.int64)

    def _last(self, part: Vector) -> list[Matrix]:
        return np.split(SERIES.last_factors(part, 0.0)[1], 2, axis=1)

    @property
    def residuals(self) -> tuple[tuple[int, slice, slice], ...]:
        """Presence, and W."""
        return tuple((1, part, part) for part in (slice(0, 1), slice(1, self.factor_width)))

    @property
    def counted(self) -> int:
        """What a complete record counts, in units of the presence that factors carry."""
        return self.gamma**2 // COUNTED

    def _sums(self, me: Party, chunk: int) -> list[Product]:
        matrix = cross(self.field, self.held_columns(me, chunk), self._recall(me, f"weighted {chunk}"))
        present = self.field.sum(self._recall(me, f"residual {chunk}"))[:, None]
        return [matrix.symmetric().upper(), lift(self.field, self.field.scale(present, self.counted))]

    def proof(self, extension: Extension, seed: bytes) -> ScoreProof:
        return InformationProof(self, extension, seed)


class InformationStages(NoisyScoreStages):
    layout: NoisyInformation

    def information(self, job: Job, coefficients: Vector, units: Units) -> tuple[Matrix, float]:
        """(B of features in these units, the number of complete records)."""
        layout = self.layout
        opened = self.round(job, 0, coefficients, units).astype(np.float64) / (layout.gamma**2 * layout.scale)
        matrix = layout.matrix_of(opened[:-1])
        constant = np.append(layout.constant_scale(units), np.ones(layout.width - 1))
        return matrix * units.length**2 * np.outer(constant, constant), float(opened[-1]) * COUNTED


class PrivateGeneralizedFit(Procedure[Regression]):
    """`names` are the covariates, then the response."""

    def __init__(
        self,
        facts: PublicFacts,
        roster: Roster,
        *,
        names: Sequence[str],
        epsilon: float,
        delta: float,
        verify: Verification = False,
    ) -> None:
        roster.require_committee(pair=False)
        check_family(facts, "binomial", names[-1], None)
        self.epsilon = epsilon
        shape: dict[str, Any] = {
            "response": names[-1],
            "columns": tuple(names[:-1]),
            "complete": True,
            "verify": verify == "full",
        }
        first = noiseless_scores(facts, roster, rounds=DAMPED, **shape)
        last = noiseless_scores(facts, roster, rounds=LAST, label="last scores", **shape)
        coarser = {"gamma": 2**6, "factor_bits": max(1, min(12, 16 // max(len(first.others), 1))), "last_bits": 11}
        own = {each.name: getattr(first, each.name) for each in fields(first)}
        information = NoisyInformation(**{**own, **coarser, "rounds": 1, "label": "information"})
        layouts: dict[str, NoisyScores] = {"scores": first, "information": information, "last scores": last}
        for layout in layouts.values():
            layout.check()
        self.sums = {party: UnitSums(first, party) for party in first.parties}
        pooled = colluders(roster, "client")
        releases = units_releases(self.sums, SHARES["units"])
        for name, layout in layouts.items():
            releases[name] = Skellams(layout.release(1, colluders=pooled), count=layout.rounds, share=SHARES[name])
        budget = Calibration(releases, epsilon=epsilon, delta=delta, bracket=(1e-3, 1e6))
        self.mus = {party: int(budget[party]) for party in self.sums}
        noisy = {name: replace(layout, mu=int(budget[name])) for name, layout in layouts.items()}
        self.first, self.last = (NoisyScoreStages(noisy[name], "client") for name in ("scores", "last scores"))
        self.information = InformationStages(noisy["information"], "client")
        words = "noisy sums of a party's features and of their squares, and the noisy number of its records"
        self.tell = units_stage(self.sums, self.mus, words)
        self.stages = (self.tell, *self.first.stages, *self.information.stages, *self.last.stages)
        shared = ", ".join(f"{name} {share:.0%}" for name, share in SHARES.items())
        self.notes = (
            *self.forecast(facts.n),
            COMPLETE_ONLY,
            verification_note(verify, FULL_COST),
            f"{DAMPED} rounds of {first.size} noisy scores, {information.size} noisy sums of weighted products, and"
            f" {LAST} more rounds. Of the budget: {shared}.",
            *empty_notes(dict.fromkeys(first.filled, "drop")),
            *account_notes(roster, view="client", delta=delta, releases=self.releases),
        )

    def releases(self, colluders: int) -> list[Cost]:
        joint = [
            layout.releases(colluders) for layout in (self.first.layout, self.information.layout, self.last.layout)
        ]
        return [
            *(sums.cost(self.mus[party]) for party, sums in self.sums.items()),
            *(one for each in joint for one in each),
        ]

    def _noise(self, length: float) -> tuple[float, float]:
        """(t, the norm of the noise of B): of rows of this length before they are made 1."""
        last, information = self.last.layout, self.information.layout
        spectral = 2 * information.noise_sd * length**2 * math.sqrt(information.width)
        return last.noise_sd * length / math.sqrt(AVERAGED), spectral

    def forecast(self, n: int) -> tuple[str, ...]:
        """For standardised features, none of them rare."""
        width = self.layout_width
        expected = width - 1 + WIDE * math.sqrt(2 * (width - 1) * len(self.sums))
        score, spectral = self._noise(math.sqrt(1 + expected))
        wider = math.sqrt(1 + score**2 / (SLOPE * n))
        told = (
            f"{FORECAST}: if all {n:,} records were complete, intervals would be about {wider:.2f} times as wide as"
            " without noise.",
        )
        excess = SINGULAR * spectral / (SLOPE * CORRELATED * n)
        if excess < 1:
            return told
        return (
            *told,
            f"{HOPELESS}: the noise of the information of {width} coefficients is as large as it can be of correlated"
            f" columns; epsilon = {enough(self.epsilon, excess):g} would be enough, or fewer columns.",
        )

    @property
    def layout_width(self) -> int:
        return self.first.layout.width

    def run(self, job: Job) -> Regression:
        told = {party: np.asarray(sums) for party, sums in job.ask(self.tell).items()}
        units = self.units(told)
        estimate = self.estimate(
            units,
            lambda turn, point: self.first.score(job, turn, point, units),
            lambda point: self.information.information(job, point, units),
            lambda turn, point: self.last.score(job, turn, point, units),
        )
        return self.result(job, units, estimate).with_costs(job.plan)

    def units(self, told: Mapping[str, NDArray[np.int64]]) -> Units:
        """Those of the sums, with each party's rows clipped at d + WIDE sqrt(2 d), d their expected square: that of so
        many deviations for normal features."""
        layout = self.first.layout
        units = units_of(layout, told, self.mus)
        squared = np.append(0.0, units.scales**2 * units.variances)
        expected = np.array([float(squared[layout.place(party)].sum()) for party in layout.parties])
        parts = np.append(1.0, expected + WIDE * np.sqrt(2 * expected))
        length = math.sqrt(float(parts.sum()))
        return replace(units, norms=np.sqrt(parts) / length * (1 - 1e-9), length=length)

    def estimate(self, units: Units, first: Any, information: Any, last: Any) -> Estimate:
        """In units of the standardised features: (x - centre) * scale, the intercept first."""
        used = np.append(True, units.scales > 0)
        scales = np.append(1.0, units.scales)

        def plain(point: Vector) -> Vector:
            own: Vector = point * scales
            own[0] -= float(own[1:] @ units.centres)
            return own

        records = min(units.counts.values())
        point = np.zeros(len(used))
        point[0] = math.log(units.balance / (1 - units.balance))
        spread = np.append(1.0, units.scales**2 * units.variances)
        for turn in range(DAMPED):
            slope = records * mean_slope(point * scales, units) * DAMPING
            point = point + np.where(used, first(turn, plain(point)) / (slope * np.maximum(spread, 1e-3)), 0.0)
        matrix, complete = information(plain(point))
        matrix = matrix[np.ix_(used, used)]
        noise, spectral = self._noise(units.length)
        values, vectors = np.linalg.eigh(matrix)
        smallest = float(values[0]) / spectral
        raised = vectors @ np.diag(np.maximum(values, RAISED * spectral)) @ vectors.T
        raised = raised / mean_slope(point * scales, units)
        ends = []
        for turn in range(LAST):
            point = point.copy()
            slope = raised * mean_slope(point * scales, units)
            point[used] += np.linalg.solve(slope, last(turn, plain(point))[used])
            ends.append(point)
        raised = raised * mean_slope(point * scales, units)
        inverse = np.linalg.inv(raised)
        apart = ends[-1][used] - ends[-2][used]
        # Both have the same records, and where B is the slope each has the noise of its own score only.
        distance = float(np.sum((raised @ apart) ** 2)) / (2 * AVERAGED * noise**2)
        return Estimate(
            used=used,
            point=np.mean(ends[-AVERAGED:], axis=0),
            cov=inverse @ (raised + noise**2 * np.eye(len(inverse))) @ inverse,
            smallest=smallest,
            settled=bool(distance < chi2.isf(UNSETTLED, len(inverse))),
            complete=complete,
            noise_share=float(np.mean(np.diag(inverse @ inverse) * noise**2 / np.diag(inverse))),
        )

    def result(self, job: Job, units: Units, estimate: Estimate) -> GeneralizedRegression:
        layout, facts = self.first.layout, self.first.layout.facts
        held = [feature for feature, used in zip(layout.features, estimate.used[1:], strict=True) if used]
        places = np.flatnonzero(estimate.used[1:])
        change = np.zeros((1 + len(held), 1 + len(held)))
        change[0, 0] = 1.0
        change[1:, 1:] = np.diag(units.scales[places])
        change[0, 1:] = -units.scales[places] * units.centres[places]
        complete = min(max(round(estimate.complete), 1), facts.n)
        balance = units.balance
        return fitted(
            job,
            layout,
            held,
            (change @ estimate.point[estimate.used], change @ estimate.cov @ change.T),
            (
                np.append(units.centres[places], balance),
                np.diag(np.append(units.variances[places], balance * (1 - balance))),
            ),
            patterns=(((True,) * len(layout.parties), complete),),
            nobs=complete,
            steps=(0, DAMPED + LAST),
            effective=float(complete),
            private=True,
            model="binomial, complete records",
            method="noisy scores, Newton",
            covariance="information and noise",
            unused="lack the response or a block",
            verdict=verdict(estimate, facts.n),
            basis="information of complete records, and the noise of the scores; valid if the model holds and whether a"
            " record is complete depends on the covariates only.",
            remarks=self._remarks(units, estimate),
        )

    def _remarks(self, units: Units, estimate: Estimate) -> tuple[str, ...]:
        said = [f"Privacy noise has about {estimate.noise_share / (1 + estimate.noise_share):.0%} of the variances."]
        if not estimate.used.all():
            said.append(
                "Categories whose share of the records is not above the noise have no coefficient: they count as the"
                " first category of their column."
            )
        return tuple(said)


@dataclass(frozen=True, eq=False)
class Estimate:
    used: NDArray[np.bool_]
    point: Vector
    cov: Matrix
    smallest: float
    """Eigenvalue of B, in units of the norm of its noise."""
    settled: bool
    complete: float
    noise_share: float


def verdict(estimate: Estimate, n: int) -> str:
    """The first line of a summary."""
    serious = []
    if estimate.smallest < SINGULAR:
        serious.append("some coefficients have less information than noise; take fewer columns or a larger epsilon")
    if not estimate.settled:
        serious.append("the last rounds differ by more than their noise, so the fit has not settled")
    if estimate.complete < RECORDS_EACH * len(estimate.cov):
        serious.append(f"about {max(estimate.complete, 0):,.0f} complete records are too few")
    if serious:
        return f"{NOT_VALID}: {'; '.join(serious)}."
    if estimate.complete < COMPLETE_SHARE * n:
        return (
            f"Valid if whether a record is complete depends on the covariates only: about"
            f" {number(round(estimate.complete))} of {number(n)} records are at all parties, and only these are used."
        )
    return (
        "Valid if the logistic model holds in every column: where it does not, clipped rows move coefficients unseen"
        " (on a census table the worst by one and a half standard errors)."
    )
