"""The public shape of a descent on noisy gradients: features, norms, batches, noise, and what a round costs.

Rows z (features, divided by the public norm c; the intercept is a feature of the response holder) have norm at most
1, and so have the weights w (`radius`). With the response s in {-1, 1} the Taylor gradient of a record is
z (w.z / 4 - s / 2). In integers z and w have scale gamma, and z (w.z - 2 gamma s) is 4 gamma^3 times the gradient.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.stats import binom

from colonnade.data import aggregation
from colonnade.errors import BadArguments, BadPrivacyParameter, PartyLost, UnsafeRequest
from colonnade.federation.options import View
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, fields_of
from colonnade.federation.step import Public
from colonnade.privacy.cost import Cost, Relation
from colonnade.privacy.randomness import Randomness
from colonnade.privacy.skellam import delta_1_bound
from colonnade.secure.bgw import cross
from colonnade.secure.field import Field, Residues
from colonnade.statistics.features import (
    Design,
    Feature,
    by_rule,
    empty_rules,
    features,
    integer_bounds,
    quantize,
)
from colonnade.statistics.joint import SharedStatistic, binding, colluders, field_for, once
from colonnade.statistics.shares import deal, deal_noise, dealt, noise_part

_OVERFLOW = 2.0**-64
"""The probability that a batch is larger than what is shared; the records beyond are left out."""


@dataclass(frozen=True, kw_only=True)
class GradientLayout(SharedStatistic):
    """The public shape of a descent; `clip` gives each party's norm, in units of its features.

    A chunk of rows is a batch, and its opening is the gradient at the round's weights. They are part of the layout, so
    of every tag: what was dealt for some weights is opened with these, or not at all.
    """

    kind: ClassVar[str] = "gradient"
    exact: ClassVar[tuple[str, str]] = ("exact-gradients", "exact gradients of batches of records")
    rows: ClassVar[str] = "the quantised rows of a batch"
    results: ClassVar[str] = "a noisy gradient"
    adaptive: ClassVar[tuple[str, ...]] = ("weights",)
    noise_with_rows: ClassVar[Literal["first", "each"]] = "each"

    names: tuple[str, ...]
    response: str
    clip: Mapping[str, float]
    gamma: int
    intercept: bool
    radius: float
    sampling: float
    rounds: int
    mu: int = 0
    weights: tuple[int, ...] = ()
    """Of the round, quantised; none in the plan."""
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
        if declared.kind != "binary":
            raise BadArguments(f"the response {self.response!r} must be a binary column.")
        if set(self.clip) != {feature.party for feature in self.features} or not all(
            0 < bound < math.inf for bound in self.clip.values()
        ):
            raise BadPrivacyParameter("clip must give a positive norm for each party that has explaining columns.")
        self._check_weights()

    def _check_weights(self) -> None:
        """Longer weights would show more of a record than the noise hides."""
        if self.weights and len(self.weights) != self.width:
            raise UnsafeRequest(f"this descent has {self.width} weights, not {len(self.weights)}.")
        if sum(weight * weight for weight in self.weights) > self.weight_square:
            raise UnsafeRequest("the weights are longer than the radius of the approved plan.")

    def with_chosen(self, **chosen: Any) -> GradientLayout:
        """Only the tag depends on the weights: all else that was computed for the plan's layout is taken over, since
        there are thousands of rounds."""
        layout = copy.copy(self)
        layout.__dict__.pop("tag", None)
        layout.__dict__.update(chosen)
        layout._check_weights()
        return layout

    @cached_property
    def features(self) -> list[Feature]:
        return features(self.facts, self.names)

    @cached_property
    def filled(self) -> tuple[str, ...]:
        """The columns in which an empty cell makes a record count as absent at its party: those that say so, and the
        response. Any other empty cell is 0, as an absent block is."""
        dropped = by_rule(empty_rules(self.features, self.facts, "mask", "drop"), "drop")
        return (*dropped, self.response) if self.facts.column(self.response).missing else dropped

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

    @property
    def later_weights(self) -> Later:
        """The rule for the weights of a round."""

        def accepted(weights: Any) -> bool:
            good = len(weights) == self.width and all(type(weight) is int for weight in weights)
            return good and sum(weight * weight for weight in weights) <= self.weight_square

        return fields_of("integer weights within the radius of the layout", weights=accepted)

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
        knows_batch = view == "client" or set(self.parties) & set(self.roster.beside_coordinator)
        return 1.0 if knows_batch else self.sampling

    def round_cost(self, view: View, joint: str | None = None) -> Cost:
        """One round."""
        pooled = colluders(self.roster, view)
        return self.release(self.mu, colluders=pooled, joint=joint, sampling=self.amplified(view))

    def cost(self, public: Public, view: View) -> Cost:
        """One round. Holders see every weight and data parties know the batch, so the client view is debited always."""
        if self.mu == 0:
            raise UnsafeRequest("a gradient without noise is not offered.")
        return self.round_cost("client", joint=f"{public.job} gradients")

    def releases(self, colluders: int) -> list[Cost]:
        return [self.release(self.mu, colluders=colluders).times(self.rounds)]

    # --- what members do ----------------------------------------------------------------------------------

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """Of each batch, the rows that are shared: padded with zeros to a public size."""
        return [(0, self.capacity)] * self.rounds

    @cached_property
    def openings(self) -> list[int]:
        return [self.width] * self.rounds

    def share(self, me: Party, number: int) -> None:
        """Draw the batch, quantise its rows, clip them in integers, deal them."""
        if not self.weights:
            raise UnsafeRequest("a batch is dealt for the weights of its round; the request must state them.")
        once(me, f"batch {number}")
        chosen = poisson_batch(self._batch_key(me), number, self.facts.n, self.sampling)[: self.capacity]
        rows = self.quantized_rows(me, chosen)
        padded = np.zeros((self.capacity, rows.shape[1]), dtype=np.int64)
        padded[: len(rows)] = rows
        deal(me, f"{self.tag}: batch {number}", self.field, padded)

    def share_noise(self, me: Party, number: int) -> None:
        once(me, f"noise {number}")
        deal_noise(me, f"{self.tag}: noise {number}", self.field, noise_part(me, mu=self.mu, size=self.width))

    @cached_property
    def key_tag(self) -> str:
        """Of the key of the batches, which all rounds have in common."""
        return binding(f"{self.label} key", {**self.to_dict(), "weights": []})

    def share_key(self, me: Party) -> None:
        """Every data party contributes, so that the key is unknown to outsiders as long as one of them is honest."""
        part = me.randomness.bytes(32)
        for party in self.parties:
            me.send(party, self.key_tag, part)

    def _batch_key(self, me: Party) -> bytes:
        name = f"{self.key_tag}: joint"
        if me.kept(name):
            return bytes(me.recall(name))
        parts = me.received(self.key_tag)
        missing = [party for party in self.parties if party not in parts]
        if missing:
            raise PartyLost(f"{', '.join(missing)} did not contribute to the batches; resume when they are back.")
        key = hashlib.sha256(b"".join(bytes(parts[party]) for party in self.parties)).digest()
        me.keep(name, key)
        return key

    def quantized_rows(self, me: Party, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """This party's columns of z for some records, as integers; the response holder adds intercept and response."""
        features = self.own_features(me.name)
        responds = me.name == self.response_party
        names = list(dict.fromkeys(feature.column for feature in features)) + ([self.response] if responds else [])
        place = np.full(self.facts.n, -1)
        place[chosen] = np.arange(len(chosen))
        values = np.zeros((len(chosen), len(features)))
        event = np.full(len(chosen), -1)
        filled = [name for name in self.filled if name in names]
        for index, encoded in me.mapped(names, aggregation.records, filled=filled):
            inside = place[index] >= 0
            rows = place[index][inside]
            values[rows] = Design(tuple(features))(index, encoded)[1][inside]
            if responds:
                event[rows] = encoded[self.response][inside]
        return self.quantized_part(me.name, values, event, me.randomness)

    def quantized_part(
        self, party: str, values: NDArray[np.float64], event: NDArray[np.int64], randomness: Randomness
    ) -> NDArray[np.int64]:
        """One party's part of some rows as integers. `event` is the response holder's 0 or 1, and -1 where it has no
        record: then intercept and response are zeros, as everything else is."""
        rows = np.zeros(values.shape, dtype=np.int64)
        if values.shape[1]:
            bound = self.clip[party] / self.norm
            rows = quantize(values / self.norm, gamma=self.gamma, clip=bound, entry=1.0, randomness=randomness)
        if party != self.response_party:
            return rows
        present = (event >= 0).astype(np.int64)[:, None]
        response = self.gamma * present * (2 * (event == 1)[:, None] - 1)
        return np.concatenate(
            [self.intercept_entry * present, rows, response] if self.intercept else [rows, response], axis=1
        )

    def combine(self, me: Party, number: int) -> Residues:
        """Z'(Z w - 2 gamma s) on this holder's shares, plus every member's noise."""
        field = self.field
        shared = dealt(me, f"{self.tag}: batch {number}", self.parties, field)
        for party in self.parties:
            extra = (2 if self.intercept else 1) if party == self.response_party else 0
            if shared[party].shape[1:] != (self.capacity, len(self.own_features(party)) + extra):
                raise UnsafeRequest(f"{party!r} shared rows of another shape than the layout says.")
        joined = np.concatenate([shared[party] for party in self.parties], axis=2)
        rows, response = np.ascontiguousarray(joined[:, :, :-1]), joined[:, :, -1:]
        public = field.encode(np.array([self.weights[index] for index in self.order], dtype=np.int64)[:, None])
        residual = field.sub(field.matmul(rows, public), field.scale(response, 2 * self.gamma))
        noise = dealt(me, f"{self.tag}: noise {number}", me.roster.names, field)
        return self.with_noise(me, number, [cross(field, rows, residual)], noise)


def poisson_batch(key: bytes, number: int, n: int, sampling: float) -> NDArray[np.int64]:
    """The records of one batch: each with probability `sampling` (rounded down to 2^-64), independently."""
    fresh = hashlib.sha256(b"colonnade batch" + key + number.to_bytes(8, "big")).digest()
    stream = Cipher(algorithms.AES(fresh), modes.CTR(bytes(16))).encryptor()
    words = np.frombuffer(stream.update(bytes(8 * n)), dtype="<u8")
    threshold = math.floor(Fraction(sampling) * 2**64)
    return np.flatnonzero(words < np.uint64(threshold)) if threshold < 2**64 else np.arange(n)


def gradient_layout(
    *, epsilon: float, delta: float, view: View, relation: Relation, roster: Roster, **shape: Any
) -> GradientLayout:
    """The public shape, with the noise at which all rounds together cost (epsilon, delta) in the given view."""
    roster.require_committee(pair=False)
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
