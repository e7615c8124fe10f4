"""`Regress(family="binomial", epsilon=...)` and `"poisson"`: intervals from noisy scores and one or two noisy matrices.

1. Units and a few damped rounds of noisy scores (`private.py`), of complete records, near the maximum.
2. The information there, B = sum W h h' with W = mu', and the number of complete records, opened once with noise.
3. Newton's method with that B, in proportion to the mean of W, for three more rounds; the ends of the last two are
   averaged. Where it has settled, b + B^-1 s has sampling error, and the noise of its own score s only.
4. One score there of rows that are clipped much harder. Where the model holds its mean is 0, however rows are clipped;
   where it does not, clipping moves the coefficients, and the first line says so (`misfit`).

    V = B^-1 (B + t^2) B^-1,

t the noise of the last scores together: B is the variance of an exact score if the model holds. Counts vary more than
a Poisson model says, so before 4. theirs is opened too, M = sum r^2 h h', and V = B^-1 (M + t^2) B^-1.

In rows that are clipped h is shorter than x, so that B is less than the slope sum W h x' and V is on the large side. An
offset is a covariate whose coefficient is known: it is in the predictor, and not in h. All is one account. The claim is
in `private.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, norm

from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.options import Verification
from colonnade.federation.party import Party
from colonnade.federation.plan import HOPELESS
from colonnade.federation.roster import Roster
from colonnade.formatting import number
from colonnade.models.glm.bounded import CountMean
from colonnade.models.glm.counts import EXCESS
from colonnade.models.glm.fit import check_family, fitted
from colonnade.models.glm.newton import Family
from colonnade.models.glm.private import (
    FULL_COST,
    KEPT_SQUARE,
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
from colonnade.models.glm.proof import InformationProof, ScoreProof, VariationProof
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

SHARES: dict[Family, dict[str, float]] = {
    "binomial": {"units": 0.1, "scores": 0.15, "information": 0.2, "last scores": 0.5, "check": 0.05},
    "poisson": {
        "units": 0.1,
        "scores": 0.12,
        "information": 0.25,
        "last scores": 0.35,
        "check": 0.05,
        "variation": 0.13,
    },
}
"""Of the budget, as 1 / noise multiplier squared."""
DAMPED, LAST, AVERAGED = 6, 3, 2
"""Rounds before the information and after it, and of these the last ones that the estimate is the mean of."""
WIDE: dict[Family, float] = {"binomial": 6.0, "poisson": 2.0}
"""Deviations of a row's square beyond which it is clipped: few rows are, so B is nearly the slope, and where the model
does not hold the fit is near that of maximum likelihood. Counts have more noise to lose: where their mean is right,
clipping rows brings no bias."""
DAMPING = 1.5
COUNTED = 8
"""A complete record counts as gamma^2 / 8 beside W h h', which is at most gamma^2 / 4."""
SINGULAR = 0.75
"""The smallest eigenvalue of B, in units of the norm of its noise, below which nothing is said of intervals."""
STEADY, RAISED = 1.0, 0.5
"""What smaller ones are raised to, in these units, in Newton's steps and in errors: a B that noise made too small would
lead beyond the maximum, and one that was raised makes errors too small."""
UNSETTLED = 1e-4
"""How rare a difference of the last two rounds is, by their noise alone, that is taken for more than noise."""
MISFIT = 0.02
"""How rare the score of harder clipped rows is, if the model holds, that is taken for more than chance."""
LOOSE = 0.1
"""The part of B that the variance of that score is taken to have beyond noise: what harder clipped rows do not have in
common with the others. It is .04 to .07 in bootstraps of Adult and Bank."""
COMPLETE_SHARE = 0.95
RECORDS_EACH = 10
SLOPE: dict[Family, float] = {"binomial": 0.2, "poisson": 1 / 6}
"""W that a forecast takes, in units of the cap: counts of mean 2 are cut at 12 or so."""
VARIATION: dict[Family, float] = {"binomial": 0.2, "poisson": 1 / 72}
"""The variance of y - mu that it takes, in units of the cap squared."""
CORRELATED = 0.3
"""The smallest eigenvalue of correlated features in units of their variance."""
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
        """|W| of every record, in units of the cap."""
        return self.bounded.largest_slope(*self.rounding)

    @property
    def delta_2(self) -> float:
        """W h h' has at most W |h|^2 in its upper triangle; beside it stands the record itself."""
        return self.gamma**2 * self.scale * math.hypot(self.largest_slope, 1 / COUNTED) * (1 + 1e-12)

    @property
    def noise_sd(self) -> float:
        """Of an entry of B, of rows of norm 1."""
        return math.sqrt(2 * self.mu) / (self.gamma**2 * self.scale)

    def _last(self, part: Vector, event: NDArray[Any]) -> tuple[Vector, Matrix]:
        """At frequency 0 stands the record's presence, and not its response."""
        return np.ones(len(part)), self.bounded.last(part, self.bounded.slope(self.cap))

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


@dataclass(frozen=True, kw_only=True)
class NoisyVariation(NoisyInformation):
    """One round that opens sum r^2 h h', the upper triangle. With y in [0, 1] in units of the cap,

        r^2 = y^2 - 2 y F + F^2 = (e^2 + 1) / 4 + Re sum of (q_k - (e + 1) c_k) exp(i o_k t),   e = 2 y - 1:

    a series whose coefficients the response holder knows, so no residual is multiplied by itself."""

    kind: ClassVar[str] = "noisy-variation"
    exact: ClassVar[tuple[str, str]] = (
        "exact-scores",
        "exact sums over records of squared residuals times products of columns",
    )
    results: ClassVar[str] = "noisy products of the columns, weighted by squared residuals"

    def check(self) -> None:
        super().check()
        if not isinstance(self.bounded, CountMean):
            raise BadArguments("the variation of residuals is that of a count.")

    @property
    def size(self) -> int:
        return self.width * (self.width + 1) // 2

    @property
    def largest_variation(self) -> float:
        assert isinstance(self.bounded, CountMean)
        return self.bounded.largest_variation(*self.rounding, 2.0**-self.last_bits)

    @property
    def delta_2(self) -> float:
        return self.gamma**2 * self.scale * self.largest_variation * (1 + 1e-12)

    def _last(self, part: Vector, event: NDArray[Any]) -> tuple[Vector, Matrix]:
        assert isinstance(self.bounded, CountMean)
        mean, square = (self.bounded.last(part, terms(self.cap)) for terms in (self.bounded.mean, self.bounded.square))
        return (event**2 + 1) / 4, square - (event + 1)[:, None] * mean

    @property
    def residuals(self) -> tuple[tuple[int, slice, slice], ...]:
        whole = slice(0, self.factor_width)
        return ((1, whole, whole),)

    def _sums(self, me: Party, chunk: int) -> list[Product]:
        matrix = cross(self.field, self.held_columns(me, chunk), self._recall(me, f"weighted {chunk}"))
        return [matrix.symmetric().upper()]

    def proof(self, extension: Extension, seed: bytes) -> ScoreProof:
        return VariationProof(self, extension, seed)


class MatrixStages(NoisyScoreStages):
    def matrix(self, job: Job, coefficients: Vector, units: Units) -> tuple[Matrix, Vector]:
        """(The opened matrix of features in these units, and what is opened beside it), in units of the cap."""
        layout = self.layout
        opened = self.round(job, 0, coefficients, units).astype(np.float64) / (layout.gamma**2 * layout.scale)
        triangle = layout.width * (layout.width + 1) // 2
        constant = np.append(layout.constant_scale(units), np.ones(layout.width - 1))
        return layout.matrix_of(opened[:triangle]) * units.length**2 * np.outer(constant, constant), opened[triangle:]


class VariationStages(MatrixStages):
    layout: NoisyVariation

    def variation(self, job: Job, coefficients: Vector, units: Units) -> Matrix:
        """M of features in these units."""
        return self.matrix(job, coefficients, units)[0] * units.cap**2


class InformationStages(MatrixStages):
    layout: NoisyInformation

    def information(self, job: Job, coefficients: Vector, units: Units) -> tuple[Matrix, float]:
        """(B of features in these units, the number of complete records)."""
        matrix, beside = self.matrix(job, coefficients, units)
        return matrix * units.cap, float(beside[0]) * COUNTED


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
        family: Family = "binomial",
        offset: str | None = None,
        verify: Verification = False,
    ) -> None:
        roster.require_committee(pair=False)
        check_family(facts, family, names[-1], offset)
        self.epsilon, self.family, self.offset, shares = epsilon, family, offset, SHARES[family]
        shape: dict[str, Any] = {
            "family": family,
            "response": names[-1],
            "columns": (*names[:-1], *filter(None, [offset])),
            "complete": True,
            "verify": verify == "full",
        }
        first = noiseless_scores(facts, roster, rounds=DAMPED, **shape)
        last = noiseless_scores(facts, roster, rounds=LAST, label="last scores", **shape)
        check = noiseless_scores(facts, roster, rounds=1, label="check", **shape)
        coarser = {"gamma": 2**6, "factor_bits": max(1, min(12, 16 // max(len(first.others), 1))), "last_bits": 11}
        own = {each.name: getattr(first, each.name) for each in fields(first)}
        information = NoisyInformation(**{**own, **coarser, "rounds": 1, "label": "information"})
        layouts: dict[str, NoisyScores] = {
            "scores": first,
            "information": information,
            "last scores": last,
            "check": check,
        }
        if "variation" in shares:
            layouts["variation"] = NoisyVariation(
                **{**own, **coarser, "gamma": 2**5, "rounds": 1, "label": "variation"}
            )
        for layout in layouts.values():
            layout.check()
        self.sums = {party: UnitSums(first, party) for party in first.parties}
        pooled = colluders(roster, "client")
        releases = units_releases(self.sums, shares["units"])
        for name, layout in layouts.items():
            releases[name] = Skellams(layout.release(1, colluders=pooled), count=layout.rounds, share=shares[name])
        budget = Calibration(releases, epsilon=epsilon, delta=delta, bracket=(1e-3, 1e6))
        self.mus = {party: int(budget[party]) for party in self.sums}
        noisy = {name: replace(layout, mu=int(budget[name])) for name, layout in layouts.items()}
        self.first, self.last, self.check = (
            NoisyScoreStages(noisy[name], "client") for name in ("scores", "last scores", "check")
        )
        self.information = InformationStages(noisy["information"], "client")
        self.variation = VariationStages(noisy["variation"], "client") if "variation" in noisy else None
        words = "noisy sums of a party's features and of their squares, and the noisy number of its records"
        words += "; of the response, how many records have which count" if family == "poisson" else ""
        self.tell = units_stage(self.sums, self.mus, words)
        self.rounds = (self.first, self.information, self.last, *filter(None, [self.variation]), self.check)
        self.stages = (self.tell, *(each for stages in self.rounds for each in stages.stages))
        shared = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        self.notes = (
            *self.forecast(facts.n),
            COMPLETE_ONLY,
            verification_note(verify, FULL_COST),
            f"{DAMPED} rounds of {first.size} noisy scores, {information.size} noisy sums of weighted products, and"
            f" {LAST} more rounds; then "
            + ("sums of products weighted by squared residuals, and " if self.variation else "")
            + f"one of rows clipped harder, which tells whether the model holds. Of the budget: {shared}.",
            *self._counted(),
            *empty_notes(dict.fromkeys(first.filled, "drop")),
            *account_notes(roster, view="client", delta=delta, releases=self.releases),
        )

    def releases(self, colluders: int) -> list[Cost]:
        return [
            *(sums.cost(self.mus[party]) for party, sums in self.sums.items()),
            *(cost for stages in self.rounds for cost in stages.layout.releases(colluders)),
        ]

    def _counted(self) -> tuple[str, ...]:
        """What a plan says of a count."""
        layout = self.first.layout
        if layout.family != "poisson":
            return ()
        most, largest = layout.bounded.caps[-1], int(layout.largest_response)
        beyond = (
            f" Counts beyond {most} count as {most} in any case: if many are larger, take family='gaussian' of the"
            " logarithm."
            if largest > most
            else ""
        )
        return (
            "Noise is in proportion to the count at which the response is cut. That is chosen from the noisy numbers of"
            f" records with each count, so that next to nothing lies beyond.{beyond}",
        )

    def _noise(self, length: float, cap: int = 1) -> tuple[float, float]:
        """(t, the norm of the noise of B): of rows of this length before they are made 1."""
        last, information = self.last.layout, self.information.layout
        spectral = 2 * information.noise_sd * cap * length**2 * math.sqrt(information.width)
        return last.noise_sd * cap * length / math.sqrt(AVERAGED), spectral

    def forecast(self, n: int) -> tuple[str, ...]:
        """For standardised features, none of them rare."""
        width = self.layout_width
        expected = width - 1 + WIDE[self.family] * math.sqrt(2 * (width - 1) * len(self.sums))
        score, spectral = self._noise(math.sqrt(1 + expected))
        wider = math.sqrt(1 + score**2 / (VARIATION[self.family] * n))
        few = " and counts were about 2" if self.family == "poisson" else ""
        told = (
            f"{FORECAST}: if all {n:,} records were complete{few}, intervals would be about {wider:.2f} times as wide"
            " as without noise.",
        )
        excess = SINGULAR * spectral / (SLOPE[self.family] * CORRELATED * n)
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
        released = {party: np.asarray(sums) for party, sums in job.ask(self.tell).items()}
        units = self.units(released)
        estimate = self.estimate(
            units,
            lambda turn, point: self.first.score(job, turn, point, units),
            lambda point: self.information.information(job, point, units),
            lambda turn, point: self.last.score(job, turn, point, units),
            lambda point: self.check.score(job, 0, point, self.shorter(units)),
            lambda point: self.variation.variation(job, point, units) if self.variation else None,
        )
        return self.result(job, units, estimate).with_costs(job.plan)

    def units(self, released: Mapping[str, NDArray[np.int64]]) -> Units:
        """Those of the sums, with each party's rows clipped at d + WIDE sqrt(2 d), d their expected square: that of so
        many deviations for normal features. An offset is not in the rows, and a count is cut where little is lost."""
        layout = self.first.layout
        units = units_of(layout, released, self.mus)
        offset = [feature.column == self.offset for feature in layout.features]
        units = replace(units, scales=np.where(offset, 0.0, units.scales))
        expected = self._expected(units)
        units = _clipped_at(units, expected + WIDE[self.family] * np.sqrt(2 * expected))
        if units.response is None:
            return units
        cap = units.response.cap(layout.bounded.caps, lambda cap: self._noise(units.length, cap)[0])
        return replace(units, cap=cap)

    def shorter(self, units: Units) -> Units:
        """The same units, with rows clipped within their expected square: many are."""
        return _clipped_at(units, KEPT_SQUARE * self._expected(units))

    def _expected(self, units: Units) -> Vector:
        """The square of each party's row, on average."""
        layout, squared = self.first.layout, np.append(0.0, units.scales**2 * units.variances)
        return np.array([float(squared[layout.place(party)].sum()) for party in layout.parties])

    @property
    def _known(self) -> Vector:
        """Coefficients of features that are known: that of the offset."""
        return np.array(
            [feature.half if feature.column == self.offset else 0.0 for feature in self.first.layout.features]
        )

    def estimate(
        self, units: Units, first: Any, information: Any, last: Any, check: Any, variation: Any = None
    ) -> Estimate:
        """In units of the standardised features: (x - centre) * scale, the intercept first."""
        used = np.append(True, units.scales > 0)
        scales, known = np.append(1.0, units.scales), np.append(0.0, self._known)

        def about(point: Vector) -> Vector:
            """Coefficients of features, the first the predictor at their centres."""
            return np.asarray(point * scales + known)

        def plain(point: Vector) -> Vector:
            own = about(point)
            own[0] -= float(own[1:] @ units.centres)
            return own

        def mean(point: Vector) -> float:
            return mean_slope(self.first.layout, about(point), units)

        records, longest = min(units.counts.values()), self.first.layout.bounded.longest
        point = np.zeros(len(used))
        point[0] = self.first.layout.bounded.start(units.balance, float(known[1:] ** 2 @ units.variances))
        spread = np.append(1.0, units.scales**2 * units.variances)
        for turn in range(DAMPED):
            slope = records * mean(point) * DAMPING
            step = np.where(used, first(turn, plain(point)) / (slope * np.maximum(spread, 1e-3)), 0.0)
            point = point + np.clip(step, -longest, longest)
        matrix, complete = information(plain(point))
        matrix = matrix[np.ix_(used, used)]
        noise, spectral = self._noise(units.length, units.cap)
        values, vectors = np.linalg.eigh(matrix)
        smallest = float(values[0]) / spectral
        steady, raised = (
            vectors @ np.diag(np.maximum(values, least * spectral)) @ vectors.T / mean(point)
            for least in (STEADY, RAISED)
        )
        ends = []
        for turn in range(LAST):
            point = point.copy()
            slope = steady * mean(point)
            point[used] += np.clip(np.linalg.solve(slope, last(turn, plain(point))[used]), -longest, longest)
            ends.append(point)
        steady, raised = steady * mean(point), raised * mean(point)
        inverse = np.linalg.inv(raised)
        apart = ends[-1][used] - ends[-2][used]
        # Both have the same records, and where B is the slope each has the noise of its own score only.
        distance = float(np.sum((steady @ apart) ** 2)) / (2 * AVERAGED * noise**2)
        point, varied = np.mean(ends[-AVERAGED:], axis=0), raised
        opened = variation(plain(point)) if variation is not None else None
        if opened is not None and self.variation is not None:
            unsure = self.variation.layout.noise_sd * (units.cap * units.length) ** 2
            varied = steadied(opened[np.ix_(used, used)], raised, unsure)
        harder = self.check.layout.noise_sd * units.cap * self.shorter(units).length
        return Estimate(
            used=used,
            point=point,
            misfit=misfit(check(plain(point))[used], varied, math.hypot(noise, harder)),
            cov=inverse @ (varied + noise**2 * np.eye(len(inverse))) @ inverse,
            smallest=smallest,
            settled=bool(distance < chi2.isf(UNSETTLED, len(inverse))),
            complete=complete,
            noise_share=float(np.mean(np.diag(inverse @ inverse) * noise**2 / np.diag(inverse @ varied @ inverse))),
            family=self.family,
            dispersion=float(np.trace(varied) / np.trace(raised)),
            doubts=self._doubts(units, complete, len(inverse)),
        )

    def _doubts(self, units: Units, complete: float, width: int) -> tuple[str, ...]:
        """Of a response that is a count."""
        response = units.response
        if response is None:
            return ()
        doubts = []
        if response.excess(units.cap) > EXCESS * response.deviation(self._noise(units.length, units.cap)[0]):
            doubts.append(
                f"counts beyond {units.cap}, which count as {units.cap}, are too many; a regression of their logarithm"
                " (family='gaussian') has no such limit"
            )
        if min(complete, response.total) * response.mean < RECORDS_EACH * width:
            doubts.append(f"counts of about {response.mean:.2g} on average are too few for {width} coefficients")
        return tuple(doubts)

    def coefficients(self, units: Units, estimate: Estimate) -> tuple[Vector, Matrix]:
        """Of the constant and all features as they are declared, with their covariance; 0 of those that are not
        used. The offset is added to the predictor as it is: its part at the middle of its range is in the constant."""
        change = np.diag(np.append(1.0, units.scales))
        change[0, 1:] = -units.scales * units.centres
        cov = np.zeros_like(change)
        cov[np.ix_(estimate.used, estimate.used)] = estimate.cov
        middle = (feature.centre for feature in self.first.layout.features if feature.column == self.offset)
        params = change @ estimate.point
        params[0] -= self._known @ units.centres + sum(middle)
        return params, change @ cov @ change.T

    def result(self, job: Job, units: Units, estimate: Estimate) -> GeneralizedRegression:
        layout, facts = self.first.layout, self.first.layout.facts
        held = [feature for feature, used in zip(layout.features, estimate.used[1:], strict=True) if used]
        places = np.flatnonzero(estimate.used[1:])
        params, cov = self.coefficients(units, estimate)
        shown = np.append(0, 1 + places)
        complete = min(max(round(estimate.complete), 1), facts.n)
        balance, counted = units.balance, units.response
        return fitted(
            job,
            layout,
            held,
            (params[shown], cov[np.ix_(shown, shown)]),
            (
                np.append(units.centres[places], balance),
                np.diag(np.append(units.variances[places], counted.variance if counted else balance * (1 - balance))),
            ),
            offset=self.offset,
            patterns=(((True,) * len(layout.parties), complete),),
            nobs=complete,
            steps=(0, DAMPED + LAST),
            effective=float(complete),
            private=True,
            model=f"{self.family}, complete records",
            method="noisy scores, Newton",
            covariance="robust, and noise" if self.variation else "information and noise",
            unused="lack the response or a block",
            verdict=verdict(estimate, facts.n, ["const", *(feature.name for feature in held)]),
            basis=f"{'variation of the residuals' if self.variation else 'information'} of complete records, and the"
            f" noise of the scores; valid if the model{' of the mean' if self.variation else ''} holds and whether a"
            " record is complete depends on the covariates only.",
            remarks=self._remarks(units, estimate),
        )

    def _remarks(self, units: Units, estimate: Estimate) -> tuple[str, ...]:
        remarks = [f"Privacy noise has about {estimate.noise_share / (1 + estimate.noise_share):.0%} of the variances."]
        if units.response is not None:
            remarks.append(
                f"Counts beyond {units.cap} count as {units.cap}, with the mean that a Poisson count then has."
            )
            remarks.append(f"Residuals vary {estimate.dispersion:.1f} times as much as those of a Poisson model.")
        if not (estimate.used[1:] | (self._known != 0)).all():
            remarks.append(
                "Categories whose share of the records is not above the noise have no coefficient: they count as the"
                " first category of their column."
            )
        return tuple(remarks)


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
    misfit: tuple[float, int]
    """Of the test whether the model holds: how rare so large a score is, and which coefficient's it is."""
    family: Family = "binomial"
    dispersion: float = 1.0
    """The variation of residuals, in units of what the model says."""
    doubts: tuple[str, ...] = ()
    """Of the response: why intervals are not valid."""


def _clipped_at(units: Units, squares: Vector) -> Units:
    """With rows of at most these squares, one for each party."""
    parts = np.append(1.0, squares)
    length = math.sqrt(float(parts.sum()))
    return replace(units, norms=np.sqrt(parts) / length * (1 - 1e-9), length=length)


def misfit(score: Vector, variation: Matrix, noise: float) -> tuple[float, int]:
    """Bonferroni's test that the mean of s' = sum r h' is 0 at the estimate b, h' the harder clipped rows.

    Near the true b0, s'(b) = s'(b0) - B' (b - b0) with B' = sum W h' x', and b - b0 = B^-1 (s(b0) + noise of the last
    scores). So its variance is that of sum r (h' - B' B^-1 h), `LOOSE` of that of sum r h (`variation`), that of its
    own noise, and B' B^-1 times that of the last scores', at most about theirs, since h' is shorter than h. `noise` is
    of both together.
    """
    sizes = np.abs(score) / np.sqrt(LOOSE * np.diag(variation) + noise**2)
    place = int(np.argmax(sizes))
    return min(1.0, 2 * len(score) * float(norm.sf(sizes[place]))), place


def steadied(opened: Matrix, information: Matrix, noise: float) -> Matrix:
    """The variation of residuals, without more of its noise than is due: between a multiple k of the information, at
    least 1, and what was opened, by how much that differs from it in terms of the noise (`noise` in each entry). At
    least k / 2 of the information in every direction."""
    ratio = max(float(np.trace(opened) / np.trace(information)), 1.0)
    apart = opened - ratio * information
    size = float(np.sum(apart**2))
    share = max(0.0, 1 - noise**2 * len(apart) ** 2 / size) if size else 0.0
    root = np.linalg.cholesky(information)
    within = np.linalg.solve(root, np.linalg.solve(root, (ratio * information + share * apart).T).T)
    values, vectors = np.linalg.eigh((within + within.T) / 2)
    return np.asarray(root @ vectors @ np.diag(np.maximum(values, ratio / 2)) @ vectors.T @ root.T)


MODEL: dict[Family, tuple[str, str]] = {
    "binomial": ("the logistic model", "Valid if the logistic model holds in every column"),
    "poisson": (
        "the model of the mean count",
        "Valid if the logarithm of the mean count is linear in every column, however counts vary about it",
    ),
}
"""What the check may refute, and what is assumed."""


def verdict(estimate: Estimate, n: int, names: Sequence[str] = ()) -> str:
    """The first line of a summary; `names` of the coefficients."""
    serious = [*estimate.doubts]
    chance, place = estimate.misfit
    model, assumed = MODEL[estimate.family]
    if chance < MISFIT:
        where = f", most for {names[place]!r}" if names and place else ""
        serious.append(
            f"{model} does not hold{where} (p = {chance:.1g}): rows clipped harder have another fit, so clipping moves"
            " coefficients; add squares or products of columns, or bin them"
        )
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
        f"{assumed}: where it does not, clipped rows move coefficients. A check with harder clipped rows found nothing"
        f" (p = {chance:.2g}); it finds only what noise does not hide."
    )
