"""`SparseGLM(epsilon=...)`: noisy moments of columns that are standardised first, at a small part of the budget.

1. *Spread.* Each party releases noisy counts of each column (`statistics.describe`): where it lies, how far it spreads.
2. *Norms.* Each party releases noisy counts of the length of its standardised rows, which fixes the last factor.
3. *Moments.* One noisy Gram matrix on secret shares, of features that are an affine map of the columns.

The map is public once 1 and 2 are released, and affine, so coefficients return to the columns' own units exactly. The
bounds of step 3 are declared in the plan: rows are clipped to them in integers, whatever the map. So the sensitivity
does not depend on 1 and 2, and all three are calibrated together. The claim is in `sparse_glm.claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.stats import chi2

from colonnade.data.column import Column
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Phase
from colonnade.federation.roster import Roster
from colonnade.models.matrix import norm_bounds
from colonnade.models.private_scales import (
    Counts,
    Ranges,
    Scales,
    centre_and_deviation,
    domain_of,
    length_quantile,
    stretched,
)
from colonnade.models.sparse_glm_clipping import Clipped
from colonnade.models.vfem_clipping import Clipping
from colonnade.privacy.accounting import calibrate
from colonnade.privacy.cost import Cost, Gaussian, Relation
from colonnade.privacy.skellam import Skellam
from colonnade.statistics.features import Feature, features
from colonnade.statistics.joint import View, account_notes, colluders
from colonnade.statistics.moment_layout import Layout, Presence
from colonnade.statistics.moments import Moments, compute_moments, moment_notes, moment_phases

SPAN = 2.5
"""Deviations of a column that are mapped to 1. The noise of a correlation, per record, is in proportion to
p + SLACK K + SPAN^2 K with K parties: the last term is their presence indicators, which weigh less against larger
features. Of a Gaussian column 1.2 % lies beyond, and what clipping took is given back."""
SLACK = 5.0
"""A party's row of w features has squared length w on average, in deviations; it is clipped at w + SLACK. A constant,
since w + SLACK adds up over the parties: 92 % of the rows of 5 independent columns are within it, 80 % of 20's."""
SHARES = {"spread": 0.05, "norms": 0.02, "moments": 0.93}
"""Of the budget, as 1 / noise multiplier squared."""


@dataclass(frozen=True, kw_only=True)
class ScaledMoments:
    """The public shape of the three releases; `names` are all columns, the response among them.

    `clip` gives a party another norm for its row, in units in which a column's deviation is 1 / SPAN; the lengths of
    its rows then decide nothing.
    """

    facts: PublicFacts
    roster: Roster
    names: tuple[str, ...]
    epsilon: float
    delta: float
    gamma: int
    presence: Presence
    clip: Mapping[str, float]
    view: View
    relation: Relation

    # --- what is public before any data is touched ----------------------------------------------------------------

    @cached_property
    def features(self) -> list[Feature]:
        """With their declared ranges."""
        return features(self.facts, self.names)

    @cached_property
    def columns(self) -> dict[str, list[Column]]:
        """The columns of each party that takes part."""
        owned: dict[str, dict[str, Column]] = {}
        for one in self.features:
            owned.setdefault(one.party, {})[one.column] = self.facts.column(one.column)
        return {party: list(columns.values()) for party, columns in owned.items()}

    def width(self, party: str) -> int:
        return sum(feature.party == party for feature in self.features)

    @cached_property
    def bounds(self) -> dict[str, float]:
        """The declared norm of a party's row, never more than its columns can reach."""
        wanted = {party: math.sqrt(self.width(party) + SLACK) / SPAN for party in self.columns}
        return norm_bounds(self.facts, self.names, {**wanted, **self.clip})

    @cached_property
    def silent(self) -> Layout:
        self.roster.require_committee()
        layout = Layout(
            facts=self.facts,
            roster=self.roster,
            names=self.names,
            presence=self.presence,
            gamma=self.gamma,
            clip=self.bounds,
        )
        layout.check()
        return layout

    def _releases(self, scale: float, many: int) -> list[Cost]:
        """What a person pays in all, if `many` members collude."""
        mu = _mu(scale, self.silent.delta_2, len(self.roster.names), colluders(self.roster, self.view))
        return _costs(scale, mu, many, *self._shape)

    @property
    def _shape(self) -> tuple[int, int, int, float, float, int, float]:
        silent, columns = self.silent, sum(map(len, self.columns.values()))
        members = len(self.roster.names)
        sensitivity = (silent.delta_1, silent.delta_2, silent.dimension, silent.replace_factor)
        return (columns, len(self.columns), members, *sensitivity)

    @cached_property
    def scale(self) -> float:
        """The noise multiplier that the whole budget would allow one release."""
        return _calibrated(self.epsilon, self.delta, self.relation, colluders(self.roster, self.view), self._shape)

    @property
    def levels(self) -> dict[str, float]:
        """Noise multipliers of the local releases, each of a column or a party."""
        return _levels(self.scale, sum(map(len, self.columns.values())), len(self.columns))

    @cached_property
    def layout(self) -> Layout:
        """With its noise; the ranges are not known yet."""
        members, many = len(self.roster.names), colluders(self.roster, self.view)
        return replace(self.silent, mu=_mu(self.scale, self.silent.delta_2, members, many))

    @property
    def _scales(self) -> Scales:
        return Scales(self.columns, self.layout, self.levels)

    def phases(self) -> list[Phase]:
        return [*self._scales.phases(), *moment_phases(self.layout, self.view)]

    def notes(self) -> tuple[str, ...]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in SHARES.items())
        views = account_notes(
            self.roster, view=self.view, delta=self.delta, releases=lambda many: self._releases(self.scale, many)
        )
        return (
            *moment_notes(self.layout, self.view),
            *views,
            f"The budget is shared as {shares}. Columns are standardised by their noisy counts, and rows are clipped to"
            " declared norms.",
        )

    # --- the coordinator's procedure ------------------------------------------------------------------------------

    def execute(self, job: Job) -> tuple[Moments, Clipped]:
        standard = self.standard(self._scales.ask_spread(job))
        final = self.final(standard, self._scales.ask_norms(job, standard))
        return compute_moments(job, replace(self.layout, ranges=final), self.view), self.clipped(final)

    def standard(self, counts: Mapping[str, Counts]) -> Ranges:
        """{feature: centre -+ deviation} from noisy counts of each column.

        An indicator stays at 0 where its category is not, since products of two indicators must stay 0: its deviation
        is then the root of its mean square.
        """
        found = {}
        for feature in self.features:
            centre, deviation = centre_and_deviation(self.facts.column(feature.column), feature, counts[feature.column])
            if feature.category is not None:
                centre, deviation = 0.0, max(math.sqrt(max(centre, 0.0)), deviation)
            found[feature.name] = (centre - deviation, centre + deviation)
        return found

    def final(self, standard: Ranges, lengths: Mapping[str, Counts]) -> Ranges:
        """The ranges at which as many of a party's rows are within its norm as if its columns were independent.

        Never less than SPAN deviations.
        """
        stretch = {party: self._stretch(party, one) for party, one in lengths.items()}
        return {
            one.name: stretched(
                one, standard[one.name], stretch[one.party], discrete=self.facts.column(one.column).discrete
            )
            for one in self.features
        }

    def _stretch(self, party: str, lengths: Counts) -> float:
        """How many deviations are mapped to 1."""
        width = self.width(party)
        if party in self.clip:
            return SPAN
        reached = length_quantile(lengths, width, float(chi2.cdf(width + SLACK, width)))
        return max(SPAN, SPAN * reached / math.sqrt(width + SLACK))

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
        norms = [
            math.inf if longest[party] <= bound**2 else bound
            for party, bound in ((one, self.bounds[one]) for one in self.columns)
        ]
        edges = np.cumsum([0, *(self.width(party) for party in self.columns)]).tolist()
        blocks = tuple(slice(first, last) for first, last in itertools.pairwise(edges))
        return Clipped(Clipping(np.array(narrowed), tuple(norms)), blocks, tuple(values))


# --- one calibration of all releases ------------------------------------------------------------------------------


def _levels(scale: float, columns: int, parties: int) -> dict[str, float]:
    many = {"spread": columns, "norms": parties}
    return {name: scale * math.sqrt(count / SHARES[name]) for name, count in many.items()}


def _mu(scale: float, delta_2: float, members: int, colluding: int) -> int:
    """Skellam noise of variance 2 mu such that what colluders do not know has the wanted deviation."""
    return math.ceil((scale * delta_2) ** 2 / (2 * SHARES["moments"]) * members / (members - colluding))


def _costs(
    scale: float,
    mu: int,
    colluding: int,
    columns: int,
    parties: int,
    members: int,
    delta_1: float,
    delta_2: float,
    dimension: int,
    replace_factor: float,
) -> list[Cost]:
    level, root = _levels(scale, columns, parties), math.sqrt(2)
    return [
        Gaussian(level["spread"], replace_factor=root).times(columns),
        Gaussian(level["norms"], replace_factor=root).times(parties),
        Skellam(
            mu,
            delta_1=delta_1,
            delta_2=delta_2,
            parties=members,
            colluders=colluding,
            replace_factor=replace_factor,
            dimension=dimension,
        ),
    ]


@lru_cache(maxsize=16)
def _calibrated(
    epsilon: float,
    delta: float,
    relation: Relation,
    colluding: int,
    shape: tuple[int, int, int, float, float, int, float],
) -> float:
    """The scale at which all releases together cost (epsilon, delta)."""
    _, _, members, _, delta_2, _, _ = shape

    def releases(scale: float) -> list[Cost]:
        return _costs(scale, _mu(scale, delta_2, members, colluding), colluding, *shape)

    return calibrate(releases, epsilon=epsilon, delta=delta, relation=relation, bracket=(1e-3, 1e6))
