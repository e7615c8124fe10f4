"""A regression with differential privacy: the procedure of `Regress(epsilon=...)`.

1. *Spread.* Each party releases noisy counts of each column: its distribution, hence centres and deviations
   (`models/private_scales.py`).
2. *Norms.* Each party releases noisy counts of the length of its standardised rows; a quantile of it fixes the scale,
   so that rows fill the bounds that the plan declared. Both are local, and cheap at the sizes where the rest works.
3. *Own moments.* The response holder, who is told who has which record, releases its columns' moments per pattern, and
   how the chance that a block is there depends on its columns (`selection.py`).
4. *Weighted moments.* The same columns' moments over the records that have a block, weighted by what 3 released.
5. *Moments.* Products of the parties' rows on secret shares, weighted likewise (`weighed.py`).

`models/linear/factored.py` estimates from 3 to 5; `models/linear/simulator.py` simulates the procedure from what was
released, and corrects the bias of clipping and of missing blocks. The noise of all together costs (epsilon, delta); the
plan knows it before any data is touched, because the bounds are declared and only scales and weights between 0 and 1
come from releases. The claim is in `private.claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from scipy.stats import chi2

from colonnade.codec import plain
from colonnade.errors import BadArguments, NotEstimable, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.options import Verification
from colonnade.federation.party import Party
from colonnade.federation.plan import HOPELESS
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Stage, stage
from colonnade.federation.step import Public, Release, step
from colonnade.formatting import counted
from colonnade.models.linear.factored import ROUGH, FactoredMoments, Repair, quoted, regression, roughness, sound
from colonnade.models.linear.result import NOT_VALID, Regression, Sample
from colonnade.models.linear.selection import (
    CAPS,
    LEAST_CAP,
    STEPS,
    Weighing,
    caps,
    near_normal,
    noisy_logits,
    score_sensitivity,
)
from colonnade.models.linear.simulator import DRAWS, REDRAWN, Simulated, simulate
from colonnade.models.linear.weighed import LOCAL, WeighedLayout, WeighedStages, later_weighing, weighted_rows
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
from colonnade.privacy.randomness import Randomness
from colonnade.statistics import forecast
from colonnade.statistics.adaptive import AdaptiveMarginal
from colonnade.statistics.features import Feature, empty_notes, features, integer_bounds
from colonnade.statistics.gaussian_em import GaussianFit, Matrix
from colonnade.statistics.joint import colluders
from colonnade.statistics.marginals import Marginal

SHARES = {"spread": 0.03, "norms": 0.03, "own": 0.07, "chances": 0.04, "weighted": 0.11, "moments": 0.72}
"""Of the budget, as 1 / noise multiplier squared. With five parties of four columns the error is flat about these."""
ALONE = {"spread": 0.06, "norms": 0.06, "own": 0.88}
"""Without another party."""
LARGEST_GAMMA = 2**14
"""Finer steps than this drown in the noise, and cost primes."""
SPAN = 3.0
"""Deviations of a Gaussian column that are mapped to 1, if its party's columns are uncorrelated."""
LARGER, BIAS_LEFT, RANKS = (0.99, 0.995, 0.999, 0.9999), 0.4, 4096
"""Larger quantiles of the length of rows to choose from, the part of the bias of clipping that its correction is taken
to leave, and the ranks at which a column's distribution is looked at."""
COUNT_SDS = 25.0
"""Noise deviations that the count of each pair of parties must reach."""
MAXIMUM_OTHERS = 8
"""Parties besides the response holder: the noise of a pair's count grows with the root of the number of patterns."""
BEARABLE = 0.15
"""Noise in the correlations, as a part of their smallest eigenvalue, at which a regression nearly always has valid
standard errors: 24 of 24 runs at the advised epsilon (9 Gaussian columns at 3 parties, n = 3,000 and 12,000)."""
WITHOUT_INTERVALS = f"{NOT_VALID}: these are estimates without valid intervals"
NO_COMPLETE_CASES = (
    "Complete cases are not estimated beside it. With three or more parties the released moments do not tell those of"
    " complete records alone, which would cost epsilon; with two, the bias of clipping would be left in them and look"
    " like one of missing blocks.",
)


@dataclass(frozen=True, eq=False)
class Released:
    """What the estimate is made of: moments, how rows were clipped and weighted, the features in this order, and their
    distributions as released, and as they might be with other noise."""

    data: FactoredMoments
    clipping: Clipping
    weighing: Weighing
    features: list[Feature]
    laws: list[list[Marginal]]


# --- the coordinator's procedure --------------------------------------------------------------------------


class PrivateFit(Procedure[Regression]):
    """The releases, and the estimate from them. `names` are the covariates, then the response."""

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
        verify: Verification = False,
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
        noiseless = WeighedLayout(
            facts=facts,
            roster=roster,
            names=names,
            gamma=self.gamma,
            clip=self.bounds,
            verify=verify,
            levels=dict.fromkeys(LOCAL if self.others else LOCAL[:1], 1.0),
        )
        shares = SHARES if self.others else ALONE
        self.scales = Scales(self.columns, noiseless, shares, epsilon=epsilon, delta=delta, adaptive=True)
        self.levels = self.scales.levels
        self.layout = replace(self.scales.layout, levels={name: self.levels[name] for name in noiseless.levels})
        self.moments = WeighedStages(self.layout, "client") if self.others else None
        self.gram_sd = self.layout.noise_sd
        # One record is in one pattern, in the scores of all blocks, and in the weighted moments of all blocks.
        head, blocks = self.layout.head_norm, len(self.others)
        self.own_sd = self.levels["own"] * own_sensitivity(self.gamma, head) / self.gamma**2
        self.score_sd, self.weighted_sd = 0.0, 0.0
        if self.others:
            each = self.levels["chances"] * math.sqrt(STEPS)
            self.score_sd = each * score_sensitivity(self.gamma, head, blocks) / self.gamma
            self.weighted_sd = self.own_sd * self.levels["weighted"] / self.levels["own"] * math.sqrt(blocks)
        local = self._own_stages(roster)
        self.presence, self.own, self.weighted = local
        joint = () if self.moments is None else self.moments.stages
        self.stages = (*self.scales.stages, *(stage for stage in local if stage.costs), *joint)
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
            *self._joint_notes(),
            *empty_notes(dict.fromkeys(self.layout.filled, "drop")),
            *forecast.dropped(self.layout.filled),
            f"The budget is shared as {self.scales.shared}. Rows are clipped at about the {quantile:.0%} quantile of"
            " their length; standard errors include the noise.",
            f"Only records of {self.response_party!r}, which holds {self.response!r}, are used. Valid if whether a"
            f" block is missing depends on nothing but columns of {self.response_party!r}.",
        )

    def width(self, party: str) -> int:
        return sum(feature.party == party for feature in self.features)

    def _joint_notes(self) -> tuple[str, ...]:
        if self.moments is None:
            return ()
        pooled, members = colluders(self.layout.roster, "client"), len(self.layout.roster.names)
        return (
            f"Each sum of products carries noise with standard deviation {self.gram_sd:.4g}"
            f" ({self.gram_sd / self.facts.n:.2g} of n = {self.facts.n}).",
            f"Account: client view, {pooled} of {members} members collude.",
            "Where whether a block is missing depends on the response holder's columns, records are weighted for it,"
            " unless all columns of both are near normal. That makes the noise beside this block's sums"
            f" {CAPS[LEAST_CAP]:g} times as large and more, up to {CAPS[-1]:g} times where it is small against sampling"
            " error.",
            *self.moments.verification_notes,
        )

    def _own_stages(self, roster: Roster) -> tuple[Stage, Stage, Stage]:
        """Who has which record, between the response holder and the others; and its own moments, twice."""
        planned = partial(stage, facts=self.facts, roster=roster)
        holder, arguments = self.response_party, {"layout": self.layout.to_dict()}
        presence = planned(
            "presence",
            tell_presence,
            {party: [arguments] for party in self.parties} if self.others else {},
            audience=f"{holder}; {', '.join(self.others)}",
            recipients=(holder, *self.others),
            discloses="which pseudonymous records a party has, to the response holder, and which it has, to the others",
            reply_bytes=self.facts.n // 8 * max(len(self.others), 1),
        )
        size = 8 * self.layout.head**2
        own = planned(
            "own moments",
            own_moments,
            {holder: [arguments]},
            discloses="noisy moments of the response holder's columns in each pattern, and noisy log-odds of presence",
            reply_bytes=size * len(self.masks) + 8 * self.layout.head * len(self.others),
            later={"layout": later_weighing(self.layout, weighed=False)},
        )
        weighted = planned(
            "weighted moments",
            weighted_moments,
            {holder: [arguments]} if self.others else {},
            discloses="noisy moments of the response holder's columns over the records that have a block, weighted",
            reply_bytes=size * max(len(self.others), 1),
            later={"layout": later_weighing(self.layout)},
        )
        return presence, own, weighted

    def run(self, job: Job) -> Regression:
        spread = self.scales.ask_spread(job)
        standard = self.standard(spread)
        layout = self.layout.with_chosen(ranges=self.final(standard, spread, self.scales.ask_norms(job, standard)))
        if self.others:
            job.ask(self.presence)
        own = job.ask(self.own, layout=layout.to_dict())[self.response_party]
        patterns = np.asarray(own["moments"], dtype=np.float64) / self.gamma**2
        layout = self.weighed(layout, spread, patterns, np.asarray(own["logits"], dtype=np.float64))
        heavy, gram = np.zeros((0, layout.head, layout.head)), np.zeros((layout.head, layout.head))
        if self.moments is not None:
            released = job.ask(self.weighted, layout=layout.to_dict())[self.response_party]
            heavy = np.asarray(released, dtype=np.float64) / self.gamma**2
            chosen = {name: plain(getattr(layout, name)) for name in layout.adaptive}
            gram = self.moments.run(job, chosen)
        result = self.result(self.assembled(layout, spread, gram, patterns, heavy), simulated=job.simulated)
        result = result.with_costs(job.plan, private=True)
        empty = self.scales.empty_text(spread)
        return replace(result, remarks=(*result.remarks, empty)) if empty else result

    def weighed(
        self, layout: WeighedLayout, spread: Mapping[str, Spread], patterns: Matrix, logits: Matrix
    ) -> WeighedLayout:
        """The layout with the weights that follow from the first releases: post-processing."""
        total, parties = patterns.sum(axis=0), range(len(self.others))
        records, ranks = max(float(total[0, 0]), 1.0), (np.arange(RANKS) + 0.5) / RANKS
        laws = {
            party: [
                feature_law(self.facts.column(feature.column), feature, spread[feature.column])
                for feature in layout.own_features(party)
            ]
            for party in self.parties
        }
        normal = {party: all(map(near_normal, own)) for party, own in laws.items()}
        counts, noise = [], []
        for place in parties:
            with_block = sum(float(m[0, 0]) for mask, m in zip(self.masks, patterns, strict=True) if mask[place])
            counts.append(min(max(with_block, 1.0), records))
            variances = [float(np.clip(law.quantile(ranks), -1.0, 1.0).var()) for law in laws[self.others[place]]]
            noise.append(self.gram_sd / counts[-1] / max(float(np.median(variances)), 1e-9))
        straight = [normal[party] and normal[self.response_party] for party in self.others]
        chosen = (
            caps(total, counts, logits, logit_sd=self.score_sd, noise=noise, straight=straight) if self.others else []
        )
        return layout.with_chosen(
            logits=tuple(map(tuple, logits.tolist())),
            shares=tuple(min(count / records, 1.0) for count in counts),
            caps=tuple(chosen),
        )

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
        self, layout: WeighedLayout, spread: Mapping[str, Spread], gram: Matrix, patterns: Matrix, heavy: Matrix
    ) -> Released:
        """What the estimate is made of, the response holder's features first."""
        parties = (self.response_party, *self.others)
        ordered = [feature for party in parties for feature in layout.own_features(party)]
        first = self.width(self.response_party)

        def with_products(names: Sequence[str]) -> tuple[str, ...]:
            return (*names[:first], *layout.product_names, *names[first:])

        data = FactoredMoments(
            names=with_products([feature.name for feature in ordered]),
            n_own=layout.head - 1,
            products=len(layout.pairs),
            widths=tuple(self.width(party) for party in self.others),
            gram=gram,
            masks=self.masks,
            own=tuple(patterns),
            weighted=tuple(heavy),
            gram_sd=self.gram_sd,
            own_sd=self.own_sd,
            weighted_sd=self.weighted_sd,
            columns=with_products([feature.column for feature in ordered]),
            response=self.response,
        )
        declared = {feature.name: feature.half for feature in self.features}
        narrowed = [
            not self.facts.column(feature.column).discrete and feature.half < declared[feature.name] * (1 - 1e-9)
            for feature in ordered
        ]
        laws = [
            [feature_law(self.facts.column(feature.column), feature, known[feature.column]) for feature in ordered]
            for known in (spread, *redrawn(spread, REDRAWN))
        ]
        clipping = Clipping(np.array(narrowed), tuple(self.bounds[party] for party in parties))
        # Products undo selection, as weights do; without any they would only add noise.
        selected = any(cap > 1 for cap in layout.caps)
        used = data.without_faint_products() if selected else data.without_faint_products(least=math.inf)
        return Released(used, clipping, layout.weighing, ordered, laws)

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

    def _count(self, data: FactoredMoments, pair: tuple[int, int]) -> float:
        return float(data.pairs()[pair][0, 0])

    def _apart(self, data: FactoredMoments) -> list[tuple[int, int]]:
        """Pairs of the other parties with too few records in common, a party with itself for the response's. Where
        nothing is left to estimate from, there is no estimate."""
        needed = self._needed()
        apart = [pair for pair, least in needed.items() if self._count(data, pair) < max(least)]
        count, least = float(data.total()[0, 0]), COUNT_SDS * self.own_sd * math.sqrt(len(self.masks))
        if count < least:
            raise NotEstimable(
                f"about {max(count, 0):,.0f} records have the response, and {least:,.0f} are needed for the noise;"
                " allow a larger epsilon, or leave parties out with columns=."
            )
        far = [pair for pair in apart if pair[0] == pair[1]]
        if self.others and len(far) == len(self.others) and self.width(self.response_party) == 1:
            raise NotEstimable(f"{self._too_few(data, far[0])}; {self._shared_cure(data, far[0])}.")
        return apart

    def _too_few(self, data: FactoredMoments, pair: tuple[int, int]) -> str:
        noisy, wide = self._needed()[pair]
        who = " and ".join(repr(self.others[place]) for place in dict.fromkeys(pair))
        return (
            f"about {max(self._count(data, pair), 0):,.0f} records with the response are at {who}, and"
            f" {max(noisy, wide):,.0f} are needed for the {'noise' if noisy > wide else 'columns'} there"
        )

    def _shared_cure(self, data: FactoredMoments, pair: tuple[int, int]) -> str:
        noisy, wide = self._needed()[pair]
        if noisy > wide:
            return "allow a larger epsilon, or leave a party out with columns="
        return self._fewer(self._count(data, pair))

    def result(self, released: Released, *, simulated: bool = False, draws: int = DRAWS) -> Regression:
        """The regression in the columns' own units, features in the order of the facts as without noise.

        Post-processing of the releases, which costs nothing."""
        ranged, laws = released.features, released.laws
        data, repair = sound(released.data, self._apart(released.data))
        target = data.names.index(self.response)
        law, raw = regression(data, target)
        rough = roughness(data, law)
        try:
            simulation = simulate(
                data, released.clipping, released.weighing, laws[0], target, redrawn=laws[1:], draws=draws
            )
        except LinAlgError:  # released distributions of which no rows can be made
            simulation = Simulated.unknown(law, raw, target)
        if repair:
            verdict = self._repaired(repair, rough, data)
        else:
            verdict = self._rough(rough, data) if rough > ROUGH else simulation.verdict(raw)
        real = data.real
        coefficients = simulation.corrected(raw, law.mu[real[real != target]])
        mu, sigma = law.mu[real], law.sigma[np.ix_(real, real)]
        if simulation.trusted and np.linalg.eigvalsh(sigma + simulation.sigma)[0] > 0:
            mu, sigma = mu + simulation.mu, sigma + simulation.sigma
        names = [feature.name for feature in self.features]
        known = [data.names[place] for place in real]
        places = [known.index(name) for name in names]
        sigma = sigma[np.ix_(places, places)]
        fit = GaussianFit(mu[places], sigma, loglik=math.nan, trace=(), em_steps=0, newton_steps=0)
        noise_share = np.clip(np.diag(raw.cov) / np.diag(coefficients.cov), 0.0, 1.0)
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
            verdict=verdict,
            covariance="simulated, with noise",
            count_sd=(self.own_sd * math.sqrt(len(self.masks)), self.own_sd),
            basis="sampling and privacy noise together, and a part of the bias that was corrected; valid if whether a"
            f" block is missing depends on nothing but columns of {self.response_party!r}, and clipping did to the"
            " columns what it does to a Gaussian copula with their released distributions.",
            remarks=(
                f"Privacy noise makes up {noise_share.min():.0%} to {noise_share.max():.0%} of the variances. Counts of"
                " records are noisy, and there is no likelihood.",
                *(NO_COMPLETE_CASES if self.others else ()),
            ),
        )

    def _rough(self, rough: float, data: FactoredMoments) -> str:
        return (
            f"{WITHOUT_INTERVALS}. The noise in the residual correlations is {rough:.2g} of their smallest eigenvalue"
            f" (at most {ROUGH}), and the standard errors are too small; epsilon = {self._enough(rough, data):g} would"
            " be enough, or fewer columns."
        )

    def _enough(self, rough: float, data: FactoredMoments, apart: Sequence[tuple[int, int]] = ()) -> float:
        """By the plan's rule for the records that are shared. Where it sees no excess, the columns are closer than it
        assumes, and what was measured decides; that is not asked first, because noise makes an eigenvalue smaller."""
        shared = [float(gram[0, 0]) for pair, gram in data.pairs().items() if not {pair, pair[::-1]} & set(apart)]
        excess = self._excess(min(shared, default=float(self.facts.n)))
        return forecast.enough(self.epsilon, excess if excess > 1 else rough / ROUGH)

    def _repaired(self, repair: Repair, rough: float, data: FactoredMoments) -> str:
        """What noise left of the moments, which columns that concerns, and what would work."""
        why, cures = [], []
        for pair in repair.apart:
            if pair[0] == pair[1] or not {(place, place) for place in pair} & set(repair.apart):
                taken = "unrelated to all others" if pair[0] == pair[1] else "unrelated, given the response holder's"
                why.append(f"{self._too_few(data, pair)}, so their columns count as {taken}")
                cures.append(self._shared_cure(data, pair))
        if repair.hidden:
            why.append(
                f"columns {quoted(repair.hidden)} hardly vary in the records used, given the others, beside the noise"
            )
        if repair.close:
            why.append(f"columns {quoted(repair.close)} are nearly determined by others beside the noise")
        if repair.holder:
            why.append("the noisy moments of the response holder's columns are those of no table")
            cures.append("allow a larger epsilon, or fewer columns")
        out = quoted([*repair.hidden, *repair.close])
        if out:
            cures.append(f"leave out {out} with columns=")
            if rough > ROUGH:
                cures.append(f"allow epsilon = {self._enough(rough, data, repair.apart):g}")
        shrunk = f"; all correlations were made {repair.shrunk:.0%} smaller" if repair.shrunk else ""
        return f"{WITHOUT_INTERVALS}: {'; '.join(why)}{shrunk}. {_sentence(' or '.join(dict.fromkeys(cures)))}"

    def _patterns(self, data: FactoredMoments) -> tuple[tuple[tuple[bool, ...], int], ...]:
        """Noisy counts of the patterns over all parties; those that noise hides are not shown."""
        patterns = []
        for mask, own in zip(data.masks, data.own, strict=True):
            count = round(float(own[0, 0]))
            if count > max(2 * data.own_sd, 0.5):
                present = dict(zip(self.others, mask, strict=True)) | {self.response_party: True}
                patterns.append((tuple(present[party] for party in self.parties), count))
        return tuple(patterns)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# --- the parties' steps -----------------------------------------------------------------------------------


def own_sensitivity(gamma: int, norm: float) -> float:
    """||upper(z z')|| with z an integer row, |z| <= gamma norm and entries at most gamma: sqrt((s^2 + gamma^2 s) / 2),
    s = |z|^2."""
    square = integer_bounds(gamma, norm, 1.0)[0]
    return math.sqrt((square**2 + gamma**2 * square) / 2)


def _local_costs(public: Public, layout: Mapping[str, Any], names: Sequence[str]) -> list[Cost]:
    """The triangle of a pattern moves by at most `own_sensitivity`; patterns are disjoint. Two triangles have a
    non-negative inner product, so replacing a record costs sqrt(2); scores may change their sign: 2. The response
    holder computes them, but they are about the presence of the others' records: each of these parties pays, for one
    joint release."""
    levels = WeighedLayout.from_dict(public.facts, public.roster, layout).levels
    factors = {"own": math.sqrt(2), "chances": 2.0, "weighted": math.sqrt(2)}
    return [
        Gaussian(levels[name], replace_factor=factors[name], joint=f"{public.job} {name} moments")
        for name in names
        if name in levels
    ]


def _presence_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    statistic = WeighedLayout.from_dict(public.facts, public.roster, layout)
    complete = (
        " without empty cells" if any(public.facts.owner(name) == public.party for name in statistic.filled) else ""
    )
    mine = public.party == statistic.response_party
    disclosed = Unbounded(
        "presence",
        f"which pseudonymous records a party has{complete}, to the {'other parties' if mine else 'response holder'}",
        audience=", ".join(statistic.others) if mine else statistic.response_party,
    )
    return compose([disclosed, *([] if mine else _local_costs(public, layout, LOCAL))])


@step(cost=_presence_cost)
def tell_presence(me: Party, *, layout: dict[str, Any]) -> Release:
    """The response holder tells the others which records it has, and each of them tells it."""
    statistic = WeighedLayout.from_dict(me.facts, me.roster, layout)
    for party in statistic.others if me.name == statistic.response_party else [statistic.response_party]:
        me.send(party, statistic.masks_tag, np.packbits(statistic.present(me)))
    return Release(None, "nothing: the mask travels sealed")


def _own_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    return compose(_local_costs(public, layout, ("own", "chances")))


@step(cost=_own_cost)
def own_moments(me: Party, *, layout: dict[str, Any]) -> Release:
    """Noisy Gram matrices of this party's extended rows, one for each pattern of the others, in integers; and noisy
    log-odds of the others' presence."""
    statistic, rows, present, sigma = _own_rows(me, layout)
    blocks = len(statistic.others)
    number = present @ (1 << np.arange(blocks)[::-1])  # as `itertools.product` counts patterns
    integers = statistic.integers(rows, statistic.head_norm, me.randomness)
    grams = np.array([_gram(integers[number == pattern]) for pattern in range(2**blocks)])
    noisy = _noisy_triangles(grams, statistic.levels["own"] * sigma, me.randomness)
    logits = np.zeros((blocks, statistic.head))
    if blocks:
        gamma = statistic.gamma
        each = statistic.levels["chances"] * math.sqrt(STEPS) * score_sensitivity(gamma, statistic.head_norm, blocks)
        total = noisy.sum(axis=0) / gamma**2
        logits = noisy_logits(
            rows, present, total, gamma=gamma, norm=statistic.head_norm, sigma=up(each), rand=me.randomness
        )
    words = "noisy moments of the response holder's columns in each pattern, and noisy log-odds of presence"
    return Release({"moments": noisy, "logits": logits}, words)


def _weighted_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    return compose(_local_costs(public, layout, ("weighted",)))


@step(cost=_weighted_cost)
def weighted_moments(me: Party, *, layout: dict[str, Any]) -> Release:
    """Noisy Gram matrices of this party's extended rows over the records with each block, weighted; in integers."""
    statistic, rows, present, sigma = _own_rows(me, layout)
    heavy = np.sqrt(statistic.weighing.weights(rows)) * present
    # The weight is shared between the two rows of a product: sqrt(u) h is no longer than h.
    parts = [statistic.integers(part, statistic.head_norm, me.randomness) for part in weighted_rows(rows, heavy)]
    grams = np.array([_gram(part) for part in parts])
    noisy = _noisy_triangles(grams, statistic.levels["weighted"] * math.sqrt(len(parts)) * sigma, me.randomness)
    return Release(noisy, "noisy moments of the response holder's columns over the records with each block, weighted")


def _own_rows(me: Party, layout: dict[str, Any]) -> tuple[WeighedLayout, Matrix, NDArray[np.bool_], float]:
    """The layout, this party's extended rows, who else has the record, and the sensitivity of one triangle."""
    statistic = WeighedLayout.from_dict(me.facts, me.roster, layout)
    if me.name != statistic.response_party:
        raise UnsafeRequest("only the response holder releases its own moments.")
    records, rows = statistic.head_rows(me)
    present = statistic.told(me, statistic.others)[records]
    return statistic, rows, present, own_sensitivity(statistic.gamma, statistic.head_norm)


def _gram(integers: NDArray[np.int64]) -> NDArray[np.int64]:
    return integers.T @ integers


def up(sigma: float) -> float:
    return math.nextafter(sigma, math.inf)


def _noisy_triangles(grams: NDArray[np.int64], sigma: float, randomness: Randomness) -> NDArray[np.int64]:
    upper = np.triu_indices(grams.shape[1])
    noise = discrete_gaussian(randomness, up(sigma), len(grams) * len(upper[0])).reshape(len(grams), -1)
    out = grams.copy()
    out[:, upper[0], upper[1]] += noise
    out[:, upper[1], upper[0]] = out[:, upper[0], upper[1]]
    return out
