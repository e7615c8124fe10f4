"""Noisy gradients of Poisson batches on secret shares: the rounds of `SQMLogistic(solver="minibatch")`.

The weights w are public. Each holder computes u = Z w - 2 gamma s on its shares of the rows Z and the responses s, a
public linear map, and then Z'u, one product, opened with everybody's noise. `gradient_layout` has the scales.

The data parties draw each batch from a key that all of them contributed to and the coordinator does not know. A
party shares only the rows of the batch, padded with zeros to a public size: neither the coordinator nor a holder
without data learns the batch. Data parties know it, and holders see every weight; so what is debited is the client
view without amplification.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, get_args

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from colonnade.errors import PartyLost, UnsafeRequest
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import JOB, Phase
from colonnade.federation.step import Public, Release, Step, step
from colonnade.papers.sqm.gradient_layout import GradientLayout
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import Cost, Free, Relation
from colonnade.privacy.randomness import Randomness
from colonnade.secure.bgw import cross, open_product
from colonnade.statistics.joint import View, deal, deal_noise, dealt, join, once
from colonnade.statistics.quantize import quantize

Gradient = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]
"""(round, quantised weights) -> noisy gradient of that round's batch, over (intercept, features)."""


def gradient_notes(layout: GradientLayout, *, view: View, delta: float) -> tuple[str, ...]:
    """What all rounds are worth, under both views and both relations; only the client view is debited."""
    notes = [
        f"{layout.rounds} rounds of about {layout.sampling * layout.facts.n:.0f} of {layout.facts.n} records; each"
        f" entry of a gradient carries noise with standard deviation {layout.noise_sd:.4g}."
    ]
    views: tuple[View, View] = ("client", "server")
    words = {"client": "debited, no amplification", "server": "the coordinator, amplified by sampling"}
    for one in views:
        costs = [layout.cost(view=one).times(layout.rounds)]
        totals = ", ".join(str(guarantee(costs, delta=delta, relation=relation)) for relation in get_args(Relation))
        aim = "; the noise is calibrated for it" if one == view else ""
        notes.append(f"{one.capitalize()} view ({words[one]}{aim}): {totals}.")
    notes.append(
        "The coordinator does not know the batches; the data parties do. Share holders see every intermediate weight."
    )
    return tuple(notes)


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


def descent(layout: GradientLayout, gradient: Gradient, *, learning_rate: float) -> tuple[float, NDArray[np.float64]]:
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
    known = _layout(me, layout)
    part = me.randomness.bytes(32)
    for party in known.parties:
        me.send(party, f"{known.label}: key", part)
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
        deal(me, f"{known.label}: batch {number}", known.field, padded)
    deal_noise(me, f"{known.label}: noise {number}", known.field, mu=known.mu, size=known.width)
    return Release(None, "nothing: the shares travel sealed")


def _batch_key(me: Party, known: GradientLayout) -> bytes:
    if me.kept(f"{known.label}: joint key"):
        return bytes(me.recall(f"{known.label}: joint key"))
    parts = me.received(f"{known.label}: key")
    missing = [party for party in known.parties if party not in parts]
    if missing:
        raise PartyLost(f"{', '.join(missing)} did not contribute to the batches; resume when they are back.")
    key = hashlib.sha256(b"".join(bytes(parts[party]) for party in known.parties)).digest()
    me.keep(f"{known.label}: joint key", key)
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
    event = np.full(len(chosen), -1)
    for at, encoded in me.chunks(names):
        here = place[at] >= 0
        to = place[at][here]
        for column, feature in enumerate(mine):
            codes = encoded[feature.column][here]
            values[to, column] = (
                np.clip(np.nan_to_num((codes - feature.centre) / feature.half), -1.0, 1.0)
                if feature.category is None
                else codes == feature.category
            )
        if holder:
            event[to] = encoded[known.response][here]
    return quantized_part(known, me.name, values, event, me.randomness)


def quantized_part(
    known: GradientLayout,
    party: str,
    values: NDArray[np.float64],
    event: NDArray[np.int64],
    randomness: Randomness,
) -> NDArray[np.int64]:
    """One party's part of some rows as integers. `event` is the response holder's 0 or 1, and -1 where it has no
    record: then intercept and response are zeros, as everything else is."""
    rows = np.zeros(values.shape, dtype=np.int64)
    if values.shape[1]:
        bound = known.clip[party] / known.norm
        rows = quantize(values / known.norm, gamma=known.gamma, clip=bound, entry=1.0, randomness=randomness)
    if party != known.response_holder:
        return rows
    here = (event >= 0).astype(np.int64)[:, None]
    response = known.gamma * here * (2 * (event == 1)[:, None] - 1)
    return np.concatenate([known.one * here, rows, response] if known.intercept else [rows, response], axis=1)


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
    shared = dealt(me, f"{known.label}: batch {number}", known.parties, field)
    for party in known.parties:
        extra = (2 if known.intercept else 1) if party == known.response_holder else 0
        if shared[party].shape[1:] != (known.capacity, len(known.own_features(party)) + extra):
            raise UnsafeRequest(f"{party!r} shared rows of another shape than the layout says.")
    joined = np.concatenate([shared[party] for party in known.parties], axis=2)
    rows, response = np.ascontiguousarray(joined[:, :, :-1]), joined[:, :, -1:]
    public = field.encode(np.array([weights[at] for at in known.order], dtype=np.int64)[:, None])
    residual = field.sub(field.matmul(rows, public), field.scale(response, 2 * known.gamma))
    noise = dealt(me, f"{known.label}: noise {number}", me.roster.names, field)
    product = cross(field, rows, residual)
    shaped = {member: one.reshape(-1, *product.shape) for member, one in noise.items()}
    opened = open_product(product, noise=shaped, parties=me.roster.names)
    return Release(opened[:, :, 0], "a share of a noisy gradient")
