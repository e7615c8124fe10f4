"""VFEM with differential privacy: `VFEM(epsilon=...)`.

1. *Spread.* Each party releases noisy counts of each column (`statistics.describe`): centres and deviations.
2. *Norms.* Each party releases noisy counts of the length of its standardised rows; a quantile of it fixes the scale,
   so that rows fill the bounds that the plan declared. Both are local, and cheap at the sizes where the rest works.
3. *Own moments.* The response holder, who is told who has which record, releases its columns' moments per pattern.
4. *Moments.* One Gram matrix of everybody's rows on secret shares, absent blocks as zeros.

`models/vfem_factored.py` estimates from 3 and 4, `models/vfem_clipping.py` gives back what clipping took. The noise of
all four together costs (epsilon, delta); the plan knows it before any data is touched, because the bounds are declared
and only the scales come from releases. The claim is in `vfem_private.claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.stats import chi2

from colonnade.data.column import Column
from colonnade.errors import BadArguments, NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Phase, phase
from colonnade.federation.roster import Roster
from colonnade.models.private_scales import (
    Counts,
    Ranges,
    Scales,
    centre_and_deviation,
    length_quantile,
    stretched,
)
from colonnade.models.vfem_clipping import Clipping
from colonnade.models.vfem_factored import FactoredMoments
from colonnade.models.vfem_private_budget import SHARES, calibrated_scale, noise_mu
from colonnade.models.vfem_private_budget import levels as budget_levels
from colonnade.models.vfem_private_steps import (
    MAXIMUM_OTHERS,
    own_moments,
    own_sensitivity,
    tell_presence,
)
from colonnade.privacy.cost import Relation
from colonnade.statistics.features import Feature, features
from colonnade.statistics.gaussian_em import Matrix
from colonnade.statistics.joint import check_budget, colluders
from colonnade.statistics.moment_layout import Layout
from colonnade.statistics.moments import compute_moments, moment_notes, moment_phases

if TYPE_CHECKING:
    from colonnade.models.vfem import VFEM

SPAN = 3.0
"""Deviations of a Gaussian column that are mapped to 1, if its party's columns are uncorrelated."""
Release = Literal["factored"]
COUNT_SDS = 25.0
"""Noise deviations that the count of each pair of parties must reach."""


def check_private(method: VFEM) -> None:
    """Refuse options of a private fit that cannot be meant."""
    if method.release != "factored":
        raise BadArguments(f"release must be 'factored', not {method.release!r}; vfem_private.claim.md says why.")
    if not (isinstance(method.clip_quantile, float) and 0.5 <= method.clip_quantile <= 0.9999):
        raise BadArguments(f"clip_quantile must lie between 0.5 and 0.9999, not {method.clip_quantile!r}.")
    if method.epsilon is None:
        return
    check_budget(method.epsilon, method.delta)
    if (method.cross_party, method.missing, method.family) != ("full", "em", "gaussian"):
        raise BadArguments(
            "epsilon goes with cross_party='full', missing='em' and family='gaussian'; leave those options at that."
        )


@dataclass(frozen=True, kw_only=True)
class PrivateMoments:
    """The public shape of the four releases; `names` are the columns, `response` the one to explain."""

    facts: PublicFacts
    roster: Roster
    names: tuple[str, ...]
    response: str
    epsilon: float
    delta: float
    gamma: int
    quantile: float
    minimum: int = 10
    relation: Relation = "zero-out"

    # --- what is public before any data is touched ----------------------------------------------------------

    @cached_property
    def features(self) -> list[Feature]:
        return features(self.facts, self.names)

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature.party for feature in self.features))

    @property
    def holder(self) -> str:
        return self.facts.owner(self.response)

    @cached_property
    def others(self) -> tuple[str, ...]:
        found = tuple(party for party in self.parties if party != self.holder)
        if len(found) > MAXIMUM_OTHERS:
            raise BadArguments(
                f"a private VFEM takes at most {MAXIMUM_OTHERS} parties besides the response holder, not {len(found)};"
                " choose columns of fewer with columns=."
            )
        return found

    @property
    def masks(self) -> tuple[tuple[bool, ...], ...]:
        """The patterns of the other parties."""
        return tuple(itertools.product((False, True), repeat=len(self.others)))

    def width(self, party: str) -> int:
        return sum(feature.party == party for feature in self.features)

    @cached_property
    def bounds(self) -> dict[str, float]:
        """The declared norm of a party's row: a quantile of the length of uncorrelated Gaussian columns, in SPANs."""
        return {
            party: min(math.sqrt(chi2.ppf(self.quantile, self.width(party))) / SPAN, math.sqrt(self.width(party)))
            for party in self.parties
        }

    @cached_property
    def silent(self) -> Layout:
        place = self.parties.index(self.holder)
        masks = [one for one in itertools.product((False, True), repeat=len(self.parties)) if one[place]]
        layout = Layout(
            facts=self.facts,
            roster=self.roster,
            names=self.names,
            presence="known",
            gamma=self.gamma,
            clip=self.bounds,
            patterns=tuple(masks),
            pooled=True,
        )
        layout.check()
        return layout

    @cached_property
    def columns(self) -> dict[str, list[Column]]:
        """The columns of each party that takes part."""
        return {
            party: [one for one in self.facts.columns[party].values() if one.name in self.names]
            for party in self.parties
        }

    @cached_property
    def scale(self) -> float:
        """The noise multiplier that the whole budget would allow one release."""
        silent = self.silent
        return calibrated_scale(
            epsilon=self.epsilon,
            delta=self.delta,
            relation=self.relation,
            columns=sum(map(len, self.columns.values())),
            parties=len(self.parties),
            delta_1=silent.delta_1,
            delta_2=silent.delta_2,
            dimension=silent.dimension,
            replace_factor=silent.replace_factor,
            members=len(self.roster.names),
            colluding=colluders(self.roster, "client"),
        )

    @property
    def levels(self) -> dict[str, float]:
        """Noise multipliers of the local releases, each of a column, a party, or the response holder."""
        return budget_levels(self.scale, sum(map(len, self.columns.values())), len(self.parties))

    @cached_property
    def layout(self) -> Layout:
        members = len(self.roster.names)
        return replace(
            self.silent, mu=noise_mu(self.scale, self.silent.delta_2, members, colluders(self.roster, "client"))
        )

    @property
    def own_delta(self) -> float:
        """L2 sensitivity, in integers, of the response holder's upper triangles: as in `Layout.delta_2`."""
        return own_sensitivity(self.gamma, self.bounds[self.holder])

    @property
    def gram_sd(self) -> float:
        return math.sqrt(2 * self.layout.mu) / self.gamma**2

    @property
    def own_sd(self) -> float:
        return self.levels["own"] * self.own_delta / self.gamma**2

    @property
    def _scales(self) -> Scales:
        return Scales(self.columns, self.layout, self.levels)

    def phases(self) -> list[Phase]:
        here: dict[str, Any] = {"facts": self.facts, "roster": self.roster}
        own = {"layout": self.layout.to_dict(), "others": list(self.others), "level": self.levels["own"]}
        made = self._scales.phases()
        if self.others:
            made.append(
                phase(
                    "presence",
                    tell_presence,
                    {party: [{"to": self.holder}] for party in self.others},
                    audience=self.holder,
                    discloses="which pseudonymous records a party has, to the response holder",
                    reply_bytes=self.facts.n // 8,
                    **here,
                )
            )
        made.append(
            phase(
                "own moments",
                own_moments,
                {self.holder: [own]},
                discloses="noisy moments of the response holder's columns in each pattern",
                reply_bytes=8 * len(self.masks) * (self.width(self.holder) + 1) ** 2,
                **here,
            )
        )
        return [*made, *moment_phases(self.layout, "client")]

    def notes(self) -> tuple[str, ...]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in SHARES.items())
        return (
            *moment_notes(self.layout, "client"),
            f"The budget is shared as {shares}. Rows are clipped at about the {self.quantile:.0%} quantile of their"
            " length; standard errors include the noise.",
            f"Only records of {self.holder!r}, which holds {self.response!r}, are used. Valid if whether a block is"
            f" missing depends on nothing but columns of {self.holder!r}.",
        )

    # --- the coordinator's procedure ------------------------------------------------------------------------

    def execute(self, job: Job) -> tuple[FactoredMoments, Clipping, list[Feature]]:
        """All four releases; the features are in the order of the moments, the response holder's first."""
        standard = self.standard(self._scales.ask_spread(job))
        final = self.final(standard, self._scales.ask_norms(job, standard))
        layout = replace(self.layout, ranges=final)
        if self.others:
            job.ask(tell_presence, phase="presence", to=self.holder)
        own = job.ask(
            own_moments,
            phase="own moments",
            layout=layout.to_dict(),
            others=list(self.others),
            level=self.levels["own"],
        )[self.holder]
        moments = compute_moments(job, layout, "client")
        return self.assembled(layout.features, moments.grams[0], np.asarray(own, dtype=np.float64) / self.gamma**2)

    def standard(self, counts: Mapping[str, Counts]) -> Ranges:
        """{feature: centre -+ deviation} from noisy counts of each column."""
        found = {}
        for feature in self.features:
            centre, deviation = centre_and_deviation(self.facts.column(feature.column), feature, counts[feature.column])
            found[feature.name] = (centre - deviation, centre + deviation)
        return found

    def final(self, standard: Ranges, lengths: Mapping[str, Counts]) -> Ranges:
        """The ranges at which the wanted quantile of a party's rows has the declared norm."""
        stretch = {
            party: max(length_quantile(lengths[party], self.width(party), self.quantile), 0.5) / self.bounds[party]
            for party in self.parties
        }
        return {
            one.name: stretched(
                one, standard[one.name], stretch[one.party], discrete=self.facts.column(one.column).discrete
            )
            for one in self.features
        }

    def assembled(
        self, ranged: Sequence[Feature], gram: Matrix, own: Matrix
    ) -> tuple[FactoredMoments, Clipping, list[Feature]]:
        """The moments with the response holder's columns first; a pair of parties seldom together is refused."""
        order = [at for at, one in enumerate(ranged) if one.party == self.holder]
        order += [at for party in self.others for at, one in enumerate(ranged) if one.party == party]
        ordered = [ranged[at] for at in order]
        places = np.array([0, *(at + 1 for at in order)])
        data = FactoredMoments(
            names=tuple(one.name for one in ordered),
            holder=self.width(self.holder),
            widths=tuple(self.width(party) for party in self.others),
            gram=gram[np.ix_(places, places)],
            masks=self.masks,
            own=tuple(own),
            gram_sd=self.gram_sd,
            own_sd=self.own_sd,
        )
        declared = {feature.name: feature for feature in self.features}
        narrowed = [
            not self.facts.column(one.column).discrete and one.half < declared[one.name].half * (1 - 1e-9)
            for one in ordered
        ]
        self._check_counts(data)
        norms = tuple(self.bounds[party] for party in (self.holder, *self.others))
        return data, Clipping(np.array(narrowed), norms), ordered

    def _check_counts(self, data: FactoredMoments) -> None:
        pairs = data.pairs()
        for a, b in itertools.combinations_with_replacement(range(len(self.others)), 2):
            many = sum(mask[a] and mask[b] for mask in data.masks)
            columns = sum(data.widths[one] for one in {a, b})
            least = max(COUNT_SDS * data.own_sd * math.sqrt(many), self.minimum * columns)
            count = float(pairs[a, b][0, 0])
            if count < least:
                who = " and ".join(repr(one) for one in dict.fromkeys((self.others[a], self.others[b])))
                raise NotEstimable(
                    f"about {max(count, 0):,.0f} records with the response are at {who}, and {least:,.0f} are needed"
                    " for the noise and the columns there; allow a larger epsilon, or leave a party out with columns=."
                )
