"""`Select(epsilon=...)`: noisy moments of columns that are standardised first, at a small part of the budget.

1. *Spread.* Each party releases noisy counts of each column (`statistics.describe`): where it lies, how far it spreads.
2. *Norms.* Each party releases noisy counts of the length of its standardised rows, which fixes the last factor.
3. *Moments.* One noisy Gram matrix on secret shares, of features that are an affine map of the columns.

The map is public once 1 and 2 are released, and affine, so coefficients return to the columns' own units exactly. The
bounds of step 3 are declared in the plan: rows are clipped to them in integers, whatever the map. So the sensitivity
does not depend on 1 and 2, and all three are calibrated together. The claim is in `select.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.stats import chi2

from colonnade.data.column import Column
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.options import Presence, Verification, View
from colonnade.federation.roster import Roster
from colonnade.models.matrix import consecutive, norm_bounds
from colonnade.models.private_scales import (
    NORM_BINS,
    WIDEST_TAIL,
    Clipping,
    Counts,
    Ranges,
    Scales,
    Spread,
    centre_and_deviation,
    domain_of,
    length_quantile,
    rank_noise,
    stretched,
)
from colonnade.models.sparse.moments import Clipped
from colonnade.privacy.cost import Relation
from colonnade.statistics import forecast
from colonnade.statistics.features import features
from colonnade.statistics.joint import account_notes
from colonnade.statistics.moments import MomentComputation, MomentsLayout, MomentsResult

SPAN = 2.5
"""Deviations of a column that are mapped to 1. The noise of a correlation, per record, is in proportion to
p + SLACK K + SPAN^2 K with K parties: the last term is their presence indicators, which weigh less against larger
features. Of a Gaussian column 1.2 % lies beyond; the clipping-bias correction is for that."""
SLACK = 5.0
"""A party's row of w features has squared length w on average, in deviations; it is clipped at w + SLACK. A constant,
since w + SLACK adds up over the parties: 92 % of the rows of 5 independent columns are within it, 80 % of 20's."""
SHARES = {"spread": 0.05, "norms": 0.02, "moments": 0.93}
"""Of the budget, as 1 / noise multiplier squared."""


class ScaledMoments:
    """The three releases as stages of a plan; `names` are all columns, the response among them.

    `clip` gives a party another norm for its row, in units in which a column's deviation is 1 / SPAN; the lengths of
    its rows then decide nothing.
    """

    def __init__(
        self,
        facts: PublicFacts,
        roster: Roster,
        *,
        names: tuple[str, ...],
        epsilon: float,
        delta: float,
        gamma: int,
        presence: Presence,
        clip: Mapping[str, float],
        view: View,
        relation: Relation,
        verify: Verification,
    ) -> None:
        roster.require_committee()
        self.facts, self.clip, self.gamma = facts, clip, gamma
        self.features = features(facts, names)
        """With their declared ranges."""
        self.columns = _columns(facts, names)
        wanted = {party: math.sqrt(self.width(party) + SLACK) / SPAN for party in self.columns}
        self.bounds = norm_bounds(facts, names, {**wanted, **clip})
        """The declared norm of a party's row, never more than its columns can reach."""
        noiseless = MomentsLayout(
            facts=facts,
            roster=roster,
            names=names,
            presence=presence,
            gamma=gamma,
            clip=self.bounds,
            verify=verify,
        )
        self._scales = Scales(
            self.columns, noiseless, SHARES, epsilon=epsilon, delta=delta, view=view, relation=relation
        )
        self.layout = self._scales.layout
        self._moments = MomentComputation(self.layout, view, adaptive=True)
        self.stages = (*self._scales.stages, *self._moments.stages)
        self.notes = (
            *forecast.correlations(
                noise_sd=self.layout.noise_sd,
                n=facts.n,
                deviation=1 / SPAN,
                spread="columns are near normal, with a deviation of a thousandth of their declared range or more",
                features=[feature.column for feature in self.features],
                epsilon=epsilon,
            ),
            *forecast.spreads(
                rank_noise=rank_noise(self._scales.levels["spread"]),
                n=facts.n,
                limit=WIDEST_TAIL,
                columns=sum(map(len, self.columns.values())),
                epsilon=epsilon,
            ),
            *self._moments.notes,
            *account_notes(roster, view=view, delta=delta, releases=self._scales.levels.costs),
            f"The budget is shared as {self._scales.shared}. Columns are standardised by their noisy counts, and rows"
            " are clipped to declared norms.",
        )

    @property
    def correlation_noise(self) -> float:
        """The standard deviation of the noise in a correlation, if all records are at all parties."""
        return forecast.correlation_noise(self.layout.noise_sd, self.facts.n, 1 / SPAN)

    def noise_beside_events(self, share: float) -> float:
        """The same in a correlation with a binary response, of which this share are events: its range is that of
        `final`, since a listed value is never clipped."""
        deviation = math.sqrt(share * (1 - share))
        return self.correlation_noise * max(SPAN * deviation, 1 - share, share) / (SPAN * deviation)

    def width(self, party: str) -> int:
        return sum(feature.party == party for feature in self.features)

    def run(self, job: Job) -> tuple[MomentsResult, Clipped]:
        standard = self.standard(self._scales.ask_spread(job))
        ranges = self.final(standard, self._scales.ask_norms(job, standard))
        return self._moments.run(job, ranges=ranges), self.clipped(ranges)

    def standard(self, counts: Mapping[str, Spread]) -> Ranges:
        """{feature: centre -+ deviation} from noisy counts of each column.

        An indicator stays at 0 where its category is not, since products of two indicators must stay 0: its deviation
        is then the root of its mean square.
        """
        ranges = {}
        for feature in self.features:
            column, level = self.facts.column(feature.column), self._scales.levels["spread"]
            centre, deviation = centre_and_deviation(column, feature, counts[feature.column], level=level)
            if feature.category is not None:
                centre, deviation = 0.0, max(math.sqrt(max(centre, 0.0)), deviation)
            ranges[feature.name] = (centre - deviation, centre + deviation)
        return ranges

    def final(self, standard: Ranges, lengths: Mapping[str, Counts]) -> Ranges:
        """The ranges at which as many of a party's rows are within its norm as if its columns were independent.

        Never less than SPAN deviations.
        """
        stretch = {party: self._stretch(party, counts) for party, counts in lengths.items()}
        return stretched(self.facts, self.features, standard, stretch)

    def _stretch(self, party: str, lengths: Counts) -> float:
        """How many deviations are mapped to 1: where the noise of a rank would take the quantile of a long row to the
        end, a shorter one is compared with that of independent columns."""
        width = self.width(party)
        if party in self.clip:
            return SPAN
        unsure = 2 * self._scales.levels["norms"] * math.sqrt(NORM_BINS) / max(float(lengths.sum()), 1.0)
        share = min(float(chi2.cdf(width + SLACK, width)), max(1 - unsure, 0.5))
        return max(SPAN, SPAN * length_quantile(lengths, width, share) / math.sqrt(chi2.ppf(share, width)))

    def clipped(self, ranges: Mapping[str, tuple[float, float]]) -> Clipped:
        """What the parties do to their rows: entries whose range is narrower than their domain end at 1, and rows at
        their norm, unless no row can be that long."""
        narrowed, values, longest = [], [], dict.fromkeys(self.columns, 0.0)
        for feature in self.features:
            low, high = ranges[feature.name]
            least, most = domain_of(feature)
            edge = 1e-9 * (most - least)
            covered = low <= least + edge and high >= most - edge
            column = self.facts.column(feature.column)
            narrowed.append(not covered and not column.discrete)
            middle, half = (low + high) / 2, (high - low) / 2
            ends = (least - middle) / half, (most - middle) / half
            values.append(ends if column.kind == "binary" else None)
            longest[feature.party] += min(max(map(abs, ends)), 1.0) ** 2
        bounds = {party: self.bounds[party] for party in self.columns}
        norms = [math.inf if longest[party] <= bound**2 else bound for party, bound in bounds.items()]
        blocks = tuple(consecutive([self.width(party) for party in self.columns]))
        return Clipped(Clipping(np.array(narrowed), tuple(norms)), blocks, tuple(values))


def _columns(facts: PublicFacts, names: tuple[str, ...]) -> dict[str, list[Column]]:
    """The columns of each party that takes part."""
    owned: dict[str, dict[str, Column]] = {}
    for feature in features(facts, names):
        owned.setdefault(feature.party, {})[feature.column] = facts.column(feature.column)
    return {party: list(columns.values()) for party, columns in owned.items()}
