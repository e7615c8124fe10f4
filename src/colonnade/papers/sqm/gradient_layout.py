"""The public shape of a descent on noisy gradients: features, norms, batches, noise, and what a round costs.

Rows z (features, divided by the public norm c; the intercept is a feature of the response holder) have norm at most
1, and so have the weights w (`radius`). With the response s in {-1, 1} the Taylor gradient of a record is
z (w.z / 4 - s / 2). In integers z and w have scale gamma, and z (w.z - 2 gamma s) is 4 gamma^3 times the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from scipy.stats import binom

from colonnade.errors import BadArguments, BadPrivacyParameter
from colonnade.federation.options import View
from colonnade.federation.roster import Roster
from colonnade.privacy.cost import Cost, Relation
from colonnade.privacy.skellam import delta_1_bound
from colonnade.secure.field import Field
from colonnade.statistics.features import Feature, features, integer_bounds
from colonnade.statistics.joint import JointStatistic, colluders, field_for

_OVERFLOW = 2.0**-64
"""The probability that a batch is larger than what is shared; the records beyond are left out."""


@dataclass(frozen=True, kw_only=True)
class GradientLayout(JointStatistic):
    """The public shape of a descent; `clip` gives each party's norm, in units of its features."""

    kind: ClassVar[str] = "gradient"
    exact: ClassVar[tuple[str, str]] = ("exact-gradients", "exact gradients of batches of records")

    names: tuple[str, ...]
    response: str
    clip: Mapping[str, float]
    gamma: int
    intercept: bool
    radius: float
    sampling: float
    rounds: int
    mu: int = 0
    label: str = "gradient"

    def check(self) -> None:
        if not 1 <= self.gamma <= 2**20 or not 0 <= self.mu <= 2**90 or self.rounds < 1:
            raise BadArguments("gamma must be an integer from 1 to 2^20, mu from 0 to 2^90, rounds at least 1.")
        for name, value in {"radius": self.radius, "sampling": self.sampling}.items():
            if not 0 < value < math.inf:
                raise BadPrivacyParameter(f"{name} must be a positive number, not {value!r}.")
        if self.sampling > 1:
            raise BadPrivacyParameter(f"sampling is a probability, not {self.sampling!r}; choose one in (0, 1].")
        if self.response in self.names or not self.features:
            raise BadArguments("a gradient needs at least one explaining column, and none of them is the response.")
        declared = self.facts.column(self.response)
        if declared.kind != "binary" or declared.missing:
            raise BadArguments(f"the response {self.response!r} must be a binary column without empty cells.")
        if set(self.clip) != {feature.party for feature in self.features} or not all(
            0 < bound < math.inf for bound in self.clip.values()
        ):
            raise BadPrivacyParameter("clip must give a positive norm for each party that has explaining columns.")

    @cached_property
    def features(self) -> list[Feature]:
        return features(self.facts, self.names)

    @cached_property
    def response_party(self) -> str:
        return self.facts.owner(self.response)

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """The data parties that take part; the response holder last."""
        explaining = dict.fromkeys(feature.party for feature in self.features)
        return (*(party for party in explaining if party != self.response_party), self.response_party)

    def own_features(self, party: str) -> list[Feature]:
        return [feature for feature in self.features if feature.party == party]

    @cached_property
    def order(self) -> list[int]:
        """Where each shared column of z stands among (intercept, features): party by party, the intercept with the
        response holder's."""
        start = 1 if self.intercept else 0
        place = {feature.name: start + index for index, feature in enumerate(self.features)}
        order: list[int] = []
        for party in self.parties:
            order += [0] if self.intercept and party == self.response_party else []
            order += [place[feature.name] for feature in self.own_features(party)]
        return order

    @property
    def width(self) -> int:
        return len(self.features) + (1 if self.intercept else 0)

    @cached_property
    def norm(self) -> float:
        """c: the largest norm of a row of (1, features)."""
        return math.sqrt(sum(bound**2 for bound in self.clip.values()) + (1 if self.intercept else 0))

    @cached_property
    def intercept_entry(self) -> int:
        """The intercept's entry of a quantised row."""
        return math.floor(self.gamma / self.norm)

    @cached_property
    def row_square(self) -> int:
        """The largest squared norm of a quantised row; at most gamma^2."""
        parts = [integer_bounds(self.gamma, bound / self.norm, 1.0)[0] for bound in self.clip.values()]
        return sum(parts) + (self.intercept_entry**2 if self.intercept else 0)

    @property
    def weight_square(self) -> int:
        """The largest squared norm of the quantised weights."""
        return math.floor((self.gamma * self.radius) ** 2)

    @cached_property
    def delta_2(self) -> float:
        """|z (w.z - 2 gamma s)| <= |z| (|w| |z| + 2 gamma^2) in integers: gamma^3 (radius + 2), and the paper's 3/4
        after division by 4 gamma^3. Nothing is added for rounding: rows are clipped as integers."""
        z = math.sqrt(self.row_square)
        return z * (math.sqrt(self.weight_square) * z + 2 * self.gamma**2) * (1 + 1e-12)

    @cached_property
    def delta_1(self) -> float:
        return delta_1_bound(self.delta_2, self.width)

    @cached_property
    def capacity(self) -> int:
        """Rows that are shared for a batch."""
        return min(self.facts.n, int(binom.isf(_OVERFLOW, self.facts.n, self.sampling)))

    @cached_property
    def field(self) -> Field:
        return field_for(self.capacity * math.ceil(self.delta_2), self.mu, self.roster)

    @property
    def noise_sd(self) -> float:
        """Of one entry of the gradient of a batch."""
        return math.sqrt(2 * self.mu) / (4 * self.gamma**3)

    @property
    def sensitivity(self) -> dict[str, Any]:
        return {"delta_1": self.delta_1, "delta_2": self.delta_2, "dimension": self.width}

    def amplified(self, view: View) -> float:
        """Sampling protects only against who does not know the batch: the coordinator."""
        return 1.0 if view == "client" else self.sampling

    def cost(self, *, view: View, joint: str | None = None) -> Cost:
        """One round."""
        pooled = colluders(self.roster, view)
        return self.release(self.mu, colluders=pooled, joint=joint, sampling=self.amplified(view))


def gradient_layout(
    *, epsilon: float, delta: float, view: View, relation: Relation, roster: Roster, **shape: Any
) -> GradientLayout:
    """The public shape, with the noise at which all rounds together cost (epsilon, delta) in the given view."""
    roster.require_committee()
    noiseless = GradientLayout(roster=roster, **shape)
    noiseless.check()
    try:
        mu = noiseless.calibrated(
            epsilon=epsilon,
            delta=delta,
            view=view,
            relation=relation,
            count=noiseless.rounds,
            sampling=noiseless.amplified(view),
        )
    except BadPrivacyParameter as error:
        raise BadPrivacyParameter(
            f"{noiseless.rounds} gradients at gamma = {noiseless.gamma} need more noise than there is (mu = 2^90);"
            " choose a smaller gamma, fewer rounds or a larger epsilon."
        ) from error
    return replace(noiseless, mu=mu)
