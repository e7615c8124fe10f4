"""A regression with differential privacy: the procedure of `Regress(epsilon=...)`.

1. *Spread.* Each party releases noisy counts of each column: its distribution, hence centres and deviations
   (`models/private_scales.py`).
2. *Norms.* Each party releases noisy counts of the length of its standardised rows; a quantile of it fixes the scale,
   so that rows fill the bounds that the plan declared. Both are local, and cheap at the sizes where the rest works.
3. *Own moments.* The response holder, who is told who has which record, releases its columns' moments per pattern.
4. *Moments.* One Gram matrix of all parties' rows on secret shares, absent blocks as zeros.

`models/linear/factored.py` estimates from 3 and 4; `models/linear/simulator.py` simulates the procedure from what was
released, and corrects the bias of clipping and of missing blocks. The noise of all four together costs (epsilon,
delta); the plan knows it before any data is touched, because the bounds are declared and only the scales come from
releases. The claim is in `private.claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from scipy.stats import chi2

from colonnade.errors import BadArguments, NotEstimable, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.party import Party
from colonnade.federation.plan import HOPELESS
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Stage, stage
from colonnade.federation.step import Public, Release, step
from colonnade.formatting import counted
from colonnade.models.linear.estimate import response_patterns
from colonnade.models.linear.factored import ROUGH, FactoredMoments, regression, roughness
from colonnade.models.linear.result import NOT_VALID, Regression, Sample
from colonnade.models.linear.simulator import DRAWS, REDRAWN, simulate
from colonnade.models.matrix import columns_of
from colonnade.models.private_scales import (
    Clipping,
    Counts,
    Ranges,
    Scales,
    Spread,
    centre_and_deviation,
    feature_law,
    length_quantile,
    numeric_law,
    redrawn,
    stretched,
)
from colonnade.privacy.cost import Cost, Gaussian, Unbounded, compose
from colonnade.privacy.noise import discrete_gaussian
from colonnade.statistics import forecast
from colonnade.statistics.adaptive import AdaptiveMarginal
from colonnade.statistics.features import Feature, design_chunks, features, integer_bounds, quantize
from colonnade.statistics.gaussian_em import GaussianFit, Matrix
from colonnade.statistics.marginals import Marginal
from colonnade.statistics.moments import MomentsLayout, later_ranges
from colonnade.statistics.shares import received_from

SHARES = {"spread": 0.03, "norms": 0.03, "own": 0.17, "moments": 0.77}
"""Of the budget, as 1 / noise multiplier squared. With five parties of four columns the error is flat about these."""
LARGEST_GAMMA = 2**14
"""Finer steps than this drown in the noise, and cost primes."""
SPAN = 3.0
"""Deviations of a Gaussian column that are mapped to 1, if its party's columns are uncorrelated."""
LARGER, BIAS_LEFT, RANKS = (0.99, 0.995, 0.999, 0.9999), 0.1, 4096
"""Larger quantiles of the length of rows to choose from, the part of the bias of clipping that its correction is taken
to leave, and the ranks at which a column's distribution is looked at."""
COUNT_SDS = 25.0
"""Noise deviations that the count of each pair of parties must reach."""
MAXIMUM_OTHERS = 8
"""Parties besides the response holder: the noise of a pair's count grows with the root of the number of patterns."""
BEARABLE = 0.15
"""Noise in the correlations, as a part of their smallest eigenvalue, at which a regression nearly always has valid
standard errors: 24 of 24 runs at the advised epsilon (9 Gaussian columns at 3 parties, n = 3,000 and 12,000)."""
NO_COMPLETE_CASES = (
    "Complete cases are not estimated beside it. With three or more parties the released moments do not tell those of"
    " complete records alone, which would cost epsilon; with two, the bias of clipping would be left in them and look"
    " like one of missing blocks.",
)
PRESENCE = "presence"
"""The tag of the masks that the response holder is told."""


# --- the coordinator's procedure --------------------------------------------------------------------------


class PrivateFit(Procedure[Regression]):
    """The four releases, and the estimate from them. `names` are the covariates, then the response."""

    def __init__(
        self,
        facts: PublicFacts,
        roster: Roster,
        *,
        names: tuple[str, ...],
        epsilon: float,
        delta: float,
        gamma: int,
        quantile: float,
        minimum_joint: int,
        verify: bool = False,
    ) -> None:
        roster.require_committee()
        self.facts, self.names, self.response, self.epsilon = facts, names, names[-1], epsilon
        self.gamma, self.quantile, self.minimum_joint = min(gamma, LARGEST_GAMMA), quantile, minimum_joint
        self.features: list[Feature] = features(facts, names)
        """With their declared ranges."""
        self.parties = tuple(dict.fromkeys(feature.party for feature in self.features))
        self.response_party = facts.owner(self.response)
        self.others = tuple(party for party in self.parties if party != self.response_party)
        if len(self.others) > MAXIMUM_OTHERS:
            raise BadArguments(
                f"a private regression takes at most {MAXIMUM_OTHERS} parties besides the response holder, not"
                f" {len(self.others)}; choose columns of fewer with columns=."
            )
        self.masks = tuple(itertools.product((False, True), repeat=len(self.others)))
        """The patterns of the other parties."""
        self.bounds = {
            party: min(math.sqrt(chi2.ppf(quantile, self.width(party))) / SPAN, math.sqrt(self.width(party)))
            for party in self.parties
        }
        """The declared norm of a party's row: a quantile of the length of uncorrelated Gaussian columns, in SPANs."""
        self.columns = {
            party: [column for column in facts.columns[party].values() if column.name in names]
            for party in self.parties
        }
        noiseless = MomentsLayout(
            facts=facts,
            roster=roster,
            names=names,
            presence="known",
            gamma=self.gamma,
            clip=self.bounds,
            patterns=response_patterns(facts, names),
            pooled=True,
            verify=verify,
        )
        self.scales = Scales(self.columns, noiseless, SHARES, epsilon=epsilon, delta=delta, adaptive=True)
        self.layout, self.levels, self.moments = self.scales.layout, self.scales.levels, self.scales.moments
        self.gram_sd = math.sqrt(2 * self.layout.mu) / self.gamma**2
        sensitivity = own_sensitivity(self.gamma, self.bounds[self.response_party])
        self.own_sd = self.levels["own"] * sensitivity / self.gamma**2
        self.presence, self.own = self._own_stages(roster)
        self.stages = (*self.scales.stages, self.presence, self.own, *self.moments.stages)
        self.notes = (
            *forecast.correlations(
                noise_sd=self.gram_sd,
                n=facts.n,
                deviation=1 / SPAN,
                spread="columns are near normal",
                features=[feature.column for feature in self.features],
                epsilon=epsilon,
                limit=BEARABLE,
            ),
            *self._forecast_counts(epsilon),
            *self.moments.notes,
            *forecast.dropped(self.layout.filled),
            f"The budget is shared as {self.scales.shared}. Rows are clipped at about the {quantile:.0%} quantile of"
            " their length; standard errors include the noise.",
            f"Only records of {self.response_party!r}, which holds {self.response!r}, are used. Valid if whether a"
            f" block is missing depends on nothing but columns of {self.response_party!r}.",
        )

    def width(self, party: str) -> int:
        return sum(feature.party == party for feature in self.features)

    def _own_stages(self, roster: Roster) -> tuple[Stage, Stage]:
        """Who has which record, to the response holder; and its own moments."""
        planned = partial(stage, facts=self.facts, roster=roster)
        presence = planned(
            "presence",
            tell_presence,
            {party: [self._presence_arguments(party)] for party in self.others},
            audience=self.response_party,
            recipients=(self.response_party,),
            discloses="which pseudonymous records a party has, to the response holder",
            reply_bytes=self.facts.n // 8,
        )
        arguments = {"layout": self.layout.to_dict(), "others": list(self.others), "level": self.levels["own"]}
        own = planned(
            "own moments",
            own_moments,
            {self.response_party: [arguments]},
            discloses="noisy moments of the response holder's columns in each pattern",
            reply_bytes=8 * len(self.masks) * (self.width(self.response_party) + 1) ** 2,
            later={"layout": later_ranges(self.layout)},
        )
        return presence, own

    def _presence_arguments(self, party: str) -> dict[str, Any]:
        filled = [name for name in self.layout.filled if self.facts.owner(name) == party]
        arguments: dict[str, Any] = {"to": self.response_party, "level": self.levels["own"]}
        return {**arguments, "filled": filled} if filled else arguments

    def run(self, job: Job) -> Regression:
        spread = self.scales.ask_spread(job)
        standard = self.standard(spread)
        ranges = self.final(standard, spread, self.scales.ask_norms(job, standard))
        layout = replace(self.layout, ranges=ranges)
        if self.others:
            job.ask(self.presence)
        own = job.ask(self.own, layout=layout.to_dict())[self.response_party]
        gram = self.moments.run(job, ranges=ranges).grams[0]
        releases = self.assembled(layout.features, spread, gram, np.asarray(own, dtype=np.float64) / self.gamma**2)
        result = self.result(*releases, simulated=job.simulated).with_costs(job.plan, private=True)
        empty = self.scales.empty_text(spread)
        return replace(result, remarks=(*result.remarks, empty)) if empty else result

    def standard(self, spread: Mapping[str, Spread]) -> Ranges:
        """{feature: centre -+ deviation} from noisy counts of each column."""
        ranges = {}
        for feature in self.features:
            centre, deviation = centre_and_deviation(self.facts.column(feature.column), feature, spread[feature.column])
            ranges[feature.name] = (centre - deviation, centre + deviation)
        return ranges

    def final(self, standard: Ranges, spread: Mapping[str, Spread], lengths: Mapping[str, Counts]) -> Ranges:
        """The ranges at which a quantile of a party's rows has the declared norm."""
        stretch = {party: self._stretch(party, standard, spread, lengths[party]) for party in self.parties}
        return stretched(self.facts, self.features, standard, stretch)

    def _stretch(self, party: str, standard: Ranges, spread: Mapping[str, Spread], lengths: Counts) -> float:
        """How far a party's ranges reach, in deviations: the wanted quantile of the length of its rows, or one of some
        larger ones where that is better.

        Within half widths h a numeric column with E[x^2] = v about its centre keeps E[min(x^2, h^2)]. What is left of
        the loss when its simulated part is taken away, n BIAS_LEFT (1 - E[min(x^2, h^2)] / v), and the noise of a
        square, gram_sd h^2 / v, are compared by the sum of their squares over the columns.
        """
        columns = []
        for feature in self.features:
            known = spread[feature.column]
            if feature.party == party and isinstance(known, AdaptiveMarginal):
                low, high = standard[feature.name]
                values = numeric_law(known).quantile((np.arange(RANKS) + 0.5) / RANKS) - (low + high) / 2
                columns.append(((high - low) / 2, np.square(values)))

        def loss(stretch: float) -> float:
            total = 0.0
            for deviation, squares in columns:
                # A column may lie at its centre: then the smallest ranges are the best.
                most, mean = (deviation * stretch) ** 2, max(float(squares.mean()), 1e-9 * deviation**2)
                cut = 1 - float(np.minimum(squares, most).mean()) / mean
                total += (self.facts.n * BIAS_LEFT * cut) ** 2 + (self.gram_sd * most / mean) ** 2
            return total

        quantiles = (self.quantile, *(larger for larger in LARGER if larger > self.quantile))
        reach = [max(length_quantile(lengths, self.width(party), share), 0.5) for share in quantiles]
        return min((own / self.bounds[party] for own in reach), key=loss)

    def assembled(
        self, ranged: Sequence[Feature], spread: Mapping[str, Spread], gram: Matrix, own: Matrix
    ) -> tuple[FactoredMoments, Clipping, list[Feature], list[list[Marginal]]]:
        """The moments, and the features in their order, the response holder's first, with their distributions as
        released, and as they might be with other noise; a pair of parties seldom together is refused."""
        parties = (self.response_party, *self.others)
        order = [place for party in parties for place, feature in enumerate(ranged) if feature.party == party]
        ordered = [ranged[place] for place in order]
        places = np.array([0, *(place + 1 for place in order)])
        data = FactoredMoments(
            names=tuple(feature.name for feature in ordered),
            n_own=self.width(self.response_party),
            widths=tuple(self.width(party) for party in self.others),
            gram=gram[np.ix_(places, places)],
            masks=self.masks,
            own=tuple(own),
            gram_sd=self.gram_sd,
            own_sd=self.own_sd,
            columns=tuple(feature.column for feature in ordered),
            response=self.response,
        )
        self._check_counts(data)
        declared = {feature.name: feature.half for feature in self.features}
        narrowed = [
            not self.facts.column(feature.column).discrete and feature.half < declared[feature.name] * (1 - 1e-9)
            for feature in ordered
        ]
        laws = [
            [feature_law(self.facts.column(feature.column), feature, known[feature.column]) for feature in ordered]
            for known in (spread, *redrawn(spread, REDRAWN))
        ]
        return data, Clipping(np.array(narrowed), tuple(self.bounds[party] for party in parties)), ordered, laws

    def _needed(self) -> dict[tuple[int, int], tuple[float, int]]:
        """For each pair of the other parties, how many joint records the noise needs, and how many the features."""
        needed = {}
        for a, b in itertools.combinations_with_replacement(range(len(self.others)), 2):
            patterns = sum(mask[a] and mask[b] for mask in self.masks)
            features = sum(self.width(self.others[place]) for place in {a, b})
            needed[a, b] = (COUNT_SDS * self.own_sd * math.sqrt(patterns), self.minimum_joint * features)
        return needed

    def _excess(self, records: float) -> float:
        """How many times too large the noise is over so many shared records."""
        return forecast.excess_noise(
            noise_sd=self.gram_sd, n=records, deviation=1 / SPAN, features=len(self.features), limit=BEARABLE
        )

    def _forecast_counts(self, epsilon: float) -> tuple[str, ...]:
        """How many records each pair of parties needs, and whether there can be so many."""
        needed, n = self._needed(), self.facts.n
        if not needed:
            return ()
        noisy, wide = (max(each) for each in zip(*needed.values(), strict=True))
        notes = [
            f"{forecast.FORECAST}: each pair of parties needs about {max(noisy, wide):,.0f} records with the response"
            f" in common, of at most {n:,}."
        ]
        if noisy > n:
            notes.append(
                f"{HOPELESS}: the noise of a count is too large for {n:,} records;"
                f" {forecast.enough_if_shared(epsilon, noisy / n)}, or fewer parties."
            )
        elif wide > n:
            notes.append(f"{HOPELESS}: {self._fewer(n)}.")
        return tuple(notes)

    def _fewer(self, count: float) -> str:
        """The cure where records are too few for the features of a pair of parties."""
        most = max(int(count // self.minimum_joint), 1)
        return (
            f"{max(count, 0):,.0f} records are enough for {counted(most, 'feature')} of a pair of parties"
            f" ({self.minimum_joint} records each); keep at most {counted(most, 'column')} with columns="
        )

    def _check_counts(self, data: FactoredMoments) -> None:
        pairs = data.pairs()
        for (a, b), (noisy, wide) in self._needed().items():
            count = float(pairs[a, b][0, 0])
            if count < max(noisy, wide):
                who = " and ".join(repr(party) for party in dict.fromkeys((self.others[a], self.others[b])))
                cure = "allow a larger epsilon, or leave a party out with columns=" if noisy > wide else ""
                raise NotEstimable(
                    f"about {max(count, 0):,.0f} records with the response are at {who}, and {max(noisy, wide):,.0f}"
                    f" are needed for the {'noise' if noisy > wide else 'columns'} there;"
                    f" {cure or self._fewer(count)}."
                )

    def result(
        self,
        data: FactoredMoments,
        clipping: Clipping,
        ranged: Sequence[Feature],
        laws: Sequence[Sequence[Marginal]],
        *,
        simulated: bool = False,
        draws: int = DRAWS,
    ) -> Regression:
        """The regression in the columns' own units, features in the order of the facts as without noise.

        Post-processing of the releases, which costs nothing."""
        try:
            target = data.names.index(self.response)
            law, raw, sampling = regression(data, target)
            rough = roughness(data, law)
            simulation = simulate(data, clipping, laws[0], target, redrawn=laws[1:], draws=draws)
        except LinAlgError as error:
            raise NotEstimable(
                "the noisy moments of the response holder's columns are not those of any table; allow a larger epsilon,"
                " or fewer columns."
            ) from error
        coefficients = simulation.corrected(raw, sampling, np.delete(law.mu, target))
        mu, sigma = law.mu, law.sigma
        if simulation.trusted and np.linalg.eigvalsh(sigma + simulation.sigma)[0] > 0:
            mu, sigma = mu + simulation.mu, sigma + simulation.sigma
        names = [feature.name for feature in self.features]
        places = [data.names.index(name) for name in names]
        sigma = sigma[np.ix_(places, places)]
        fit = GaussianFit(mu[places], sigma, loglik=math.nan, trace=(), em_steps=0, newton_steps=0)
        noise_share = np.clip(np.diag(raw.cov - sampling) / np.diag(coefficients.cov), 0.0, 1.0)
        covariates = tuple(name for name in names if name != self.response)
        order = [0, *(coefficients.names.index(name) + 1 for name in covariates)]
        params, cov = coefficients.params[order], coefficients.cov[np.ix_(order, order)]
        sample = Sample(
            response=self.response,
            features=tuple(ranged[place] for place in places),
            columns=columns_of(self.facts, self.features),
            parties=self.parties,
            patterns=self._patterns(data),
            cohort=self.facts.n,
            simulated=simulated,
        )
        return replace(
            sample.regression(fit, replace(coefficients, names=covariates, params=params, cov=cov)),
            nobs=min(round(law.count), self.facts.n),
            method="noisy moments, factored",
            verdict=self._rough(rough, data) if rough > ROUGH else simulation.verdict(raw),
            covariance="simulated, with noise",
            count_sd=(self.own_sd * math.sqrt(len(self.masks)), self.own_sd),
            basis="sampling and privacy noise together, and a part of the bias that was corrected; valid if whether a"
            f" block is missing depends on nothing but columns of {self.response_party!r}, and the columns go together"
            " as in a Gaussian copula with their released distributions.",
            remarks=(
                f"Privacy noise makes up {noise_share.min():.0%} to {noise_share.max():.0%} of the variances. Counts of"
                " records are noisy, and there is no likelihood.",
                *(NO_COMPLETE_CASES if self.others else ()),
            ),
        )

    def _rough(self, rough: float, data: FactoredMoments) -> str:
        """The plan's rule for the records that are shared. Where it sees no excess, the columns are closer than it
        assumes, and what was measured decides; that is not asked first, because noise makes an eigenvalue smaller."""
        shared = min([float(joint[0, 0]) for joint in data.pairs().values()], default=float(self.facts.n))
        excess = self._excess(shared)
        enough = forecast.enough(self.epsilon, excess if excess > 1 else rough / ROUGH)
        return (
            f"{NOT_VALID}: these are estimates without valid intervals. The noise in the residual"
            f" correlations is {rough:.2g} of their smallest eigenvalue (at most {ROUGH}), and the standard errors are"
            f" too small; epsilon = {enough:g} would be enough, or fewer columns."
        )

    def _patterns(self, data: FactoredMoments) -> tuple[tuple[tuple[bool, ...], int], ...]:
        """Noisy counts of the patterns over all parties; those that noise hides are not shown."""
        patterns = []
        for mask, own in zip(data.masks, data.own, strict=True):
            count = round(float(own[0, 0]))
            if count > max(2 * data.own_sd, 0.5):
                present = dict(zip(self.others, mask, strict=True)) | {self.response_party: True}
                patterns.append((tuple(present[party] for party in self.parties), count))
        return tuple(patterns)


# --- the parties' steps -----------------------------------------------------------------------------------


def own_sensitivity(gamma: int, norm: float) -> float:
    """||upper(z z')|| with z = (gamma, row), |row| <= gamma norm: sqrt((s^2 + gamma^2 s) / 2), s = |z|^2."""
    square = integer_bounds(gamma, norm, 1.0)[0] + gamma**2
    return math.sqrt((square**2 + gamma**2 * square) / 2)


def _moments_cost(public: Public, level: float) -> Cost:
    """The triangle of a pattern moves by at most `own_sensitivity`; patterns are disjoint. Two triangles have a
    non-negative inner product, so replacing a record costs sqrt(2). The response holder computes them, but the patterns
    are those of the others' records: each of these parties pays, for one joint release."""
    return Gaussian(level, replace_factor=math.sqrt(2), joint=f"{public.job} moments by pattern")


def _presence_cost(public: Public, *, to: str, level: float, filled: list[str] | None = None) -> Cost:
    complete = " without empty cells" if filled else ""
    shown = f"which pseudonymous records a party has{complete}, to the response holder"
    return compose([Unbounded("presence", shown, audience=to), _moments_cost(public, level)])


@step(cost=_presence_cost)
def tell_presence(me: Party, *, to: str, level: float, filled: list[str] | None = None) -> Release:
    """`level` is part of the tag: the response holder finds the masks only of parties that paid for its noise."""
    me.send(to, f"{PRESENCE} {level!r}", np.packbits(me.present_with(filled or [])))
    return Release(None, "nothing: the mask travels sealed")


def _own_cost(public: Public, *, layout: dict[str, Any], others: list[Any], level: float) -> Cost:
    return _moments_cost(public, level)


@step(cost=_own_cost)
def own_moments(me: Party, *, layout: dict[str, Any], others: list[Any], level: float) -> Release:
    """Noisy Gram matrices of (1, this party's columns), one for each pattern of the others; in integers."""
    ranged = MomentsLayout.from_dict(me.facts, me.roster, layout)
    distinct = set(others)
    if not len(others) == len(distinct) <= MAXIMUM_OTHERS or not distinct <= set(ranged.parties) - {me.name}:
        raise UnsafeRequest("the other parties of a private regression must be distinct data parties of its layout.")
    pattern = _pattern_numbers(me, others, level)
    width = ranged.width(me.name) + 1
    grams = np.zeros((2 ** len(others), width, width), dtype=np.int64)
    norm = ranged.bound(me.name)
    for index, rows in design_chunks(me, ranged.features, filled=ranged.filled):
        integers = quantize(rows, gamma=ranged.gamma, clip=norm, entry=1.0, randomness=me.randomness)
        extended = np.column_stack([np.full(len(integers), ranged.gamma, dtype=np.int64), integers])
        for number in np.unique(pattern[index]):
            records = extended[pattern[index] == number]
            grams[number] += records.T @ records
    sigma = math.nextafter(level * own_sensitivity(ranged.gamma, norm), math.inf)
    upper = np.triu_indices(width)
    noise = discrete_gaussian(me.randomness, sigma, len(grams) * len(upper[0])).reshape(len(grams), -1)
    grams[:, upper[0], upper[1]] += noise
    grams[:, upper[1], upper[0]] = grams[:, upper[0], upper[1]]
    return Release(grams, "noisy moments of the response holder's columns in each pattern")


def _pattern_numbers(me: Party, others: Sequence[str], level: float) -> NDArray[np.int64]:
    """For each record of the cohort, its pattern among the others, counted as `itertools.product` does."""
    number = np.zeros(me.facts.n, dtype=np.int64)
    for packed in received_from(me, f"{PRESENCE} {level!r}", others).values():
        number = 2 * number + np.unpackbits(np.asarray(packed, dtype=np.uint8), count=me.facts.n)
    return number
