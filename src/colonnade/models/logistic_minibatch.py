"""Noisy gradients of Poisson batches on secret shares: the rounds of `SQMLogistic(solver="minibatch")`.

Rows z (features, divided by the public norm c; the intercept is a feature of the response holder) have norm at most
1, and so have the weights w (`radius`). With the response s in {-1, 1} the Taylor gradient of a record is
z (w.z / 4 - s / 2). In integers: z at scale gamma, w at scale gamma, public; each holder computes
u = Z w - 2 gamma s on its shares, a public linear map, and then Z'u, one product, opened with everybody's noise. The
opened integers are 4 gamma^3 times the gradient.

The data parties draw each batch from a key that all of them contributed to and the coordinator does not know. A
party shares only the rows of the batch, padded with zeros to a public size: neither the coordinator nor a holder
without data learns the batch. Data parties know it, and holders see every weight; so what is debited is the client
view without amplification.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.stats import binom

from colonnade.errors import BadArguments, BadPrivacyParameter, PartyLost, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import JOB, Phase
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Release, Step, step
from colonnade.models.matrix import both_views
from colonnade.privacy.cost import Cost, Free, Relation
from colonnade.privacy.skellam import Skellam, calibrate_mu, delta_1_bound
from colonnade.secure.bgw import cross, open_product
from colonnade.secure.field import Field
from colonnade.statistics.features import Feature, features
from colonnade.statistics.joint import View, colluders, deal, deal_noise, dealt, field_for, join, once
from colonnade.statistics.quantize import integer_bounds, quantize

_OVERFLOW = 2.0**-64
"""The probability that a batch is larger than what is shared; the records beyond are left out."""


# --- what everybody computes alike from public facts ------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GradientLayout:
    """The public shape of a descent; `clip` gives each party's norm, in units of its features."""

    facts: PublicFacts
    roster: Roster
    names: tuple[str, ...]
    response: str
    clip: Mapping[str, float]
    gamma: int
    intercept: bool
    radius: float
    sampling: float
    rounds: int
    mu: int = 0

    @classmethod
    def from_dict(cls, facts: PublicFacts, roster: Roster, plain: Mapping[str, Any]) -> GradientLayout:
        """The layout that a request describes, checked before anything depends on it."""
        try:
            made = cls(
                facts=facts,
                roster=roster,
                **{**plain, "names": tuple(plain["names"]), "clip": dict(plain["clip"])},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadArguments(f"the layout of a gradient request cannot be read ({error}).") from error
        made.check()
        return made

    def to_dict(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "response": self.response,
            "clip": dict(self.clip),
            "gamma": self.gamma,
            "intercept": self.intercept,
            "radius": self.radius,
            "sampling": self.sampling,
            "rounds": self.rounds,
            "mu": self.mu,
        }

    def check(self) -> None:
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in (self.gamma, self.mu, self.rounds))
        if not whole or not 1 <= self.gamma <= 2**20 or not 0 <= self.mu <= 2**90 or self.rounds < 1:
            raise BadArguments("gamma must be a whole number from 1 to 2^20, mu from 0 to 2^90, rounds at least 1.")
        for name, value in {"radius": self.radius, "sampling": self.sampling}.items():
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise BadPrivacyParameter(f"{name} must be a positive number, not {value!r}.")
        if self.sampling > 1:
            raise BadPrivacyParameter(f"sampling is a probability, not {self.sampling!r}; choose one in (0, 1].")
        if self.response in self.names or not self.features:
            raise BadArguments("a gradient needs at least one explaining column, and none of them is the response.")
        if self.facts.column(self.response).kind != "binary":
            raise BadArguments(f"the response {self.response!r} is not a binary column.")
        if set(self.clip) != {feature.party for feature in self.features} or not all(
            isinstance(bound, (int, float)) and 0 < bound < math.inf for bound in self.clip.values()
        ):
            raise BadPrivacyParameter("clip must give a positive norm for each party that has explaining columns.")

    @cached_property
    def features(self) -> list[Feature]:
        return features(self.facts, self.names)

    @cached_property
    def response_holder(self) -> str:
        return self.facts.owner(self.response)

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """The data parties that take part; the response holder last."""
        explaining = dict.fromkeys(feature.party for feature in self.features)
        return (*(party for party in explaining if party != self.response_holder), self.response_holder)

    def own_features(self, party: str) -> list[Feature]:
        return [feature for feature in self.features if feature.party == party]

    @cached_property
    def order(self) -> list[int]:
        """Where each shared column of z stands among (intercept, features): party by party, the intercept with the
        response holder's."""
        start = 1 if self.intercept else 0
        place = {feature.name: start + at for at, feature in enumerate(self.features)}
        found: list[int] = []
        for party in self.parties:
            found += [0] if self.intercept and party == self.response_holder else []
            found += [place[feature.name] for feature in self.own_features(party)]
        return found

    @property
    def width(self) -> int:
        return len(self.features) + (1 if self.intercept else 0)

    @cached_property
    def norm(self) -> float:
        """c: the largest norm of a row of (1, features)."""
        return math.sqrt(sum(bound**2 for bound in self.clip.values()) + (1 if self.intercept else 0))

    @cached_property
    def one(self) -> int:
        """The intercept's entry of a quantised row."""
        return math.floor(self.gamma / self.norm)

    @cached_property
    def row_square(self) -> int:
        """The largest squared norm of a quantised row; at most gamma^2."""
        parts = [integer_bounds(self.gamma, bound / self.norm, 1.0)[0] for bound in self.clip.values()]
        return sum(parts) + (self.one**2 if self.intercept else 0)

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

    def cost(self, *, view: View, joint: str | None = None) -> Cost:
        """One round. Sampling protects only against who does not know the batch: the coordinator."""
        return Skellam(
            self.mu,
            delta_1=self.delta_1,
            delta_2=self.delta_2,
            parties=len(self.roster.names),
            colluders=colluders(self.roster, view),
            sampling=1.0 if view == "client" else self.sampling,
            joint=joint,
        )


def gradient_layout(
    *, epsilon: float | None, delta: float, view: View, relation: Relation, roster: Roster, **shape: Any
) -> GradientLayout:
    """The public shape, with the noise at which all rounds together cost (epsilon, delta) in the given view."""
    if epsilon is None:
        raise UnsafeRequest("solver='minibatch' without noise would show exact gradients; use solver='moments'.")
    roster.require_committee()
    silent = GradientLayout(roster=roster, **shape)
    silent.check()
    mu = calibrate_mu(
        epsilon=epsilon,
        delta=delta,
        delta_1=silent.delta_1,
        delta_2=silent.delta_2,
        parties=len(roster.names),
        colluders=colluders(roster, view),
        sampling=1.0 if view == "client" else silent.sampling,
        steps=silent.rounds,
        relation=relation,
    )
    return replace(silent, mu=mu)


def gradient_notes(layout: GradientLayout, *, delta: float, relation: Relation) -> tuple[str, ...]:
    views: tuple[View, View] = ("client", "server")
    words = {"client": "client view, debited (no amplification)", "server": "server view, amplified by sampling"}
    return (
        f"{layout.rounds} rounds of about {layout.sampling * layout.facts.n:.0f} of {layout.facts.n} records; each"
        f" entry of a gradient carries noise with standard deviation {layout.noise_sd:.4g}.",
        *both_views(
            {words[view]: [layout.cost(view=view).times(layout.rounds)] for view in views},
            delta=delta,
            relation=relation,
        ),
        "The coordinator does not know the batches; the data parties do. Share holders see every intermediate weight.",
    )


def gradient_phases(layout: GradientLayout) -> list[Phase]:
    """All rounds are one joint release, counted `rounds` times."""
    primes, holders = len(layout.field.primes), len(layout.roster.committee)
    widest = max(len(layout.own_features(party)) for party in layout.parties) + 2
    public = {
        member: Public(job=JOB, party=member, facts=layout.facts, roster=layout.roster)
        for member in layout.roster.names
    }
    arguments = {"layout": layout.to_dict()}

    def made(name: str, what: Step, members: Sequence[str], count: int, more: dict[str, Any], **told: Any) -> Phase:
        each = {one: what.price(public[one], what.check({**arguments, **more})).times(count) for one in members}
        return Phase(name=name, step=what.name, counts=dict.fromkeys(members, count), costs=each, **told)

    return [
        made(
            "gradient: agree on batches",
            agree_batches,
            layout.parties,
            1,
            {},
            audience="the other data parties (sealed)",
            discloses="random bytes for the key of the batches",
        ),
        made(
            "gradient: share batch",
            share_batch,
            layout.roster.names,
            layout.rounds,
            {"number": 0},
            audience="share holders (sealed; any t of them learn nothing)",
            discloses="secret shares of the quantised rows of a batch and of noise",
            reply_bytes=4 * primes * holders * (layout.capacity * widest + layout.width),
        ),
        made(
            "gradient: open",
            open_gradient,
            layout.roster.committee,
            layout.rounds,
            {"number": 0, "weights": [0] * layout.width},
            audience="coordinator, who sends the next weights to the share holders",
            discloses="shares of a noisy gradient, which the coordinator joins",
            reply_bytes=4 * primes * layout.width,
        ),
    ]


# --- the coordinator's procedure --------------------------------------------------------------------------


def descend(job: Job, layout: GradientLayout, *, learning_rate: float) -> tuple[float, NDArray[np.float64]]:
    """(intercept, coefficients) by projected gradient descent."""
    arguments: dict[str, Any] = {"layout": layout.to_dict()}

    def gradient(number: int, weights: NDArray[np.int64]) -> NDArray[np.float64]:
        job.ask(share_batch, number=number, **arguments)
        shares = job.ask(open_gradient, number=number, weights=weights.tolist(), **arguments)
        opened = join(shares, layout.field, layout.roster).astype(np.float64)
        found = np.empty(layout.width)
        found[layout.order] = opened / (4.0 * layout.gamma**3)
        return found

    job.ask(agree_batches, **arguments)
    return descent(layout, gradient, learning_rate=learning_rate)


def descent(layout: GradientLayout, gradient: Any, *, learning_rate: float) -> tuple[float, NDArray[np.float64]]:
    """The steps of the descent, whoever computes `gradient(number, quantised weights)`: w is clipped to `radius`
    after each step, and the weights of the second half of the rounds are averaged."""
    weights = np.zeros(layout.width)
    total = np.zeros(layout.width)
    kept = 0
    batch = layout.sampling * layout.facts.n
    for number in range(layout.rounds):
        weights = weights - learning_rate / batch * gradient(number, quantized_weights(layout, weights))
        weights *= min(1.0, layout.radius / max(float(np.linalg.norm(weights)), 1e-300))
        if number >= layout.rounds // 2:
            total += weights
            kept += 1
    mean = total / kept
    scale = layout.one / layout.gamma
    return (float(mean[0] * scale), mean[1:] / layout.norm) if layout.intercept else (0.0, mean / layout.norm)


def quantized_weights(layout: GradientLayout, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Toward zero, so that the norm stays within the radius."""
    return np.trunc(weights * layout.gamma * (1 - 1e-12)).astype(np.int64)


# --- the members' steps -----------------------------------------------------------------------------------


def _layout(public: Public | Party, plain: Mapping[str, Any]) -> GradientLayout:
    return GradientLayout.from_dict(public.facts, public.roster, plain)


def _agree_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    return Free("random bytes; no data")


@step(cost=_agree_cost)
def agree_batches(me: Party, *, layout: dict[str, Any]) -> Release:
    """Every data party contributes to the key, so that it is unknown to outsiders as long as one of them is honest."""
    part = me.randomness.bytes(32)
    for party in _layout(me, layout).parties:
        me.send(party, "gradient: batch key", part)
    return Release(None, "nothing: the key travels sealed")


def _share_cost(public: Public, *, layout: dict[str, Any], number: int) -> Cost:
    known = _layout(public, layout)
    if public.party not in known.parties:
        return Free("this member shares noise, and no data")
    if known.mu == 0:
        raise UnsafeRequest("a gradient without noise is not offered.")
    return known.cost(view="client", joint=f"{public.job} gradients")


@step(cost=_share_cost)
def share_batch(me: Party, *, layout: dict[str, Any], number: int) -> Release:
    """Draw the batch, quantise its rows, clip them in integers, share them; and share noise."""
    known = _layout(me, layout)
    if not 0 <= number < known.rounds:
        raise UnsafeRequest(f"this job has no round {number}.")
    once(me, f"batch {number}")
    if me.name in known.parties:
        chosen = poisson_batch(_batch_key(me, known), number, known.facts.n, known.sampling)[: known.capacity]
        rows = quantized_rows(me, known, chosen)
        padded = np.zeros((known.capacity, rows.shape[1]), dtype=np.int64)
        padded[: len(rows)] = rows
        deal(me, f"gradient: batch {number}", known.field, padded)
    deal_noise(me, f"gradient: noise {number}", known.field, mu=known.mu, size=known.width)
    return Release(None, "nothing: the shares travel sealed")


def _batch_key(me: Party, known: GradientLayout) -> bytes:
    if me.kept("gradient: key"):
        return bytes(me.recall("gradient: key"))
    parts = me.received("gradient: batch key")
    missing = [party for party in known.parties if party not in parts]
    if missing:
        raise PartyLost(f"{', '.join(missing)} did not contribute to the batches; resume when they are back.")
    key = hashlib.sha256(b"".join(bytes(parts[party]) for party in known.parties)).digest()
    me.keep("gradient: key", key)
    return key


def poisson_batch(key: bytes, number: int, n: int, sampling: float) -> NDArray[np.int64]:
    """The records of one batch: each with probability `sampling` (rounded down to 2^-64), independently."""
    fresh = hashlib.sha256(b"colonnade batch" + key + number.to_bytes(8, "big")).digest()
    stream = Cipher(algorithms.AES(fresh), modes.CTR(bytes(16))).encryptor()
    words = np.frombuffer(stream.update(bytes(8 * n)), dtype="<u8")
    threshold = math.floor(Fraction(sampling) * 2**64)
    return np.flatnonzero(words < np.uint64(threshold)) if threshold < 2**64 else np.arange(n)


def quantized_rows(me: Party, known: GradientLayout, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """This party's columns of z for some records, as integers; the response holder adds intercept and response."""
    mine = known.own_features(me.name)
    holder = me.name == known.response_holder
    names = list(dict.fromkeys(feature.column for feature in mine)) + ([known.response] if holder else [])
    place = np.full(known.facts.n, -1)
    place[chosen] = np.arange(len(chosen))
    values = np.zeros((len(chosen), len(mine)))
    response = np.zeros((len(chosen), 1), dtype=np.int64)
    present = np.zeros((len(chosen), 1), dtype=np.int64)
    for at, encoded in me.chunks(names):
        here = place[at] >= 0
        to = place[at][here]
        present[to] = 1
        for column, feature in enumerate(mine):
            codes = encoded[feature.column][here]
            values[to, column] = (
                np.clip((codes - feature.centre) / feature.half, -1.0, 1.0)
                if feature.category is None
                else codes == feature.category
            )
        if holder:
            response[to, 0] = known.gamma * (2 * encoded[known.response][here] - 1)
    rows = np.zeros((len(chosen), 0), dtype=np.int64)
    if mine:
        bound = known.clip[me.name] / known.norm
        rows = quantize(values / known.norm, gamma=known.gamma, clip=bound, entry=1.0, randomness=me.randomness)
    if not holder:
        return rows
    return np.concatenate([known.one * present, rows, response] if known.intercept else [rows, response], axis=1)


def _open_cost(public: Public, *, layout: dict[str, Any], number: int, weights: list[int]) -> Cost:
    return Free("a share of a joint release that the data parties have debited")


@step(cost=_open_cost)
def open_gradient(me: Party, *, layout: dict[str, Any], number: int, weights: list[int]) -> Release:
    """This holder's share of Z'(Z w - 2 gamma s) plus every member's noise. Longer weights would show more of a
    record than the noise hides: refused."""
    known = _layout(me, layout)
    if not 0 <= number < known.rounds or len(weights) != known.width:
        raise UnsafeRequest(f"this job has no round {number} with {len(weights)} weights.")
    if sum(one * one for one in weights) > known.weight_square:
        raise UnsafeRequest("the weights are longer than the radius of the approved plan.")
    once(me, f"gradient {number}")
    field = known.field
    shared = dealt(me, f"gradient: batch {number}", known.parties, field)
    for party in known.parties:
        extra = (2 if known.intercept else 1) if party == known.response_holder else 0
        if shared[party].shape[1:] != (known.capacity, len(known.own_features(party)) + extra):
            raise UnsafeRequest(f"{party!r} shared rows of another shape than the layout says.")
    joined = np.concatenate([shared[party] for party in known.parties], axis=2)
    rows, response = np.ascontiguousarray(joined[:, :, :-1]), joined[:, :, -1:]
    public = field.encode(np.array([weights[at] for at in known.order], dtype=np.int64)[:, None])
    residual = field.sub(field.matmul(rows, public), field.scale(response, 2 * known.gamma))
    noise = dealt(me, f"gradient: noise {number}", me.roster.names, field)
    product = cross(field, rows, residual)
    shaped = {member: one.reshape(-1, *product.shape) for member, one in noise.items()}
    opened = open_product(product, noise=shaped, parties=me.roster.names)
    return Release(opened[:, :, 0], "a share of a noisy gradient")
