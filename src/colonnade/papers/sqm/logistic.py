"""`SQMLogistic`: logistic regression by noisy gradients of Poisson batches on secret shares (the SQM paper, 5.2).

The weights w are public. Each holder computes u = Z w - 2 gamma s on its shares of the rows Z and the responses s, a
public linear map, and then Z'u, one product, opened with every member's noise. `gradient_layout` has the scales.

The data parties draw each batch from a key that all of them contributed to and the coordinator does not know. A
party shares only the rows of the batch, padded with zeros to a public size: neither the coordinator nor a holder
without data learns the batch. Data parties know it, and holders see every weight; so what is debited is the client
view without amplification. The claim is in `logistic.claim.md`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, get_args

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from colonnade.errors import PartyLost, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure, method_class
from colonnade.federation.options import Delta, Epsilon, Option, RelationOption, View, ViewOption
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import SEALED, stage
from colonnade.federation.step import Public, Release, step
from colonnade.models.classify import BinaryOptions, Classifier, classifier
from colonnade.models.matrix import missing_blocks, norm_bounds
from colonnade.papers.sqm.gradient_layout import GradientLayout, gradient_layout
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import Cost, Free, Relation
from colonnade.privacy.randomness import Randomness
from colonnade.secure.bgw import cross, open_product
from colonnade.statistics.features import quantize
from colonnade.statistics.joint import check_budget, once
from colonnade.statistics.shares import deal, deal_noise, dealt, join, noise_part

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

Gradient = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]
"""(round, quantised weights) -> noisy gradient of that round's batch, over (intercept, features)."""
EPOCHS = {0.5: 2, 1.0: 5, 2.0: 8, 4.0: 10, 8.0: 10}
"""The paper's passes over the data at each of its epsilons."""


@method_class
class SQMLogistic(BinaryOptions):
    """Predict a binary column from the columns of all parties, by many rounds of noisy gradients.

    The SQM paper's minibatches. `Classify` fits the same Taylor polynomial from one release. The share holders see
    every intermediate weight and the data parties know the batches; so the client view is always debited, without
    amplification, and with view="server" it is larger than epsilon. The plan prints both.

    Returns
    -------
    `fit(federation)` gives a `Classifier`, as `Classify` does.

    Example
    -------
    >>> from colonnade.papers import SQMLogistic
    >>> SQMLogistic.as_printed(response="failed", epsilon=2.0).rounds
    8000
    """

    name: ClassVar[str] = "sqm-logistic"

    epsilon: Epsilon = 1.0
    delta: Delta = 1e-6
    view: ViewOption = "client"
    relation: RelationOption = "zero-out"
    sampling: Annotated[float, Option("The probability of a record to be in a batch.")] = 0.01
    rounds: Annotated[int, Option("How many batches.", least=1)] = 200
    learning_rate: Annotated[float, Option("The step, as a multiple of the mean gradient of a batch.", above=0)] = 8.0
    radius: Annotated[float, Option("The norm that the weights are clipped to; rows are scaled to norm 1.")] = 1.0

    @classmethod
    def as_printed(cls, **changes: Any) -> Self:
        """The paper's experiment: delta 1e-5, gamma 2^13, batches of 0.1 % of the records, 2 to 10 epochs by epsilon
        (5 where it has none), weights within norm 1, no intercept, noise for the server view.

        The paper is silent on the learning rate (the default here). It starts at random weights, here at zero; here
        the weights of the second half of the rounds are averaged. Its sensitivity adds terms for rounding: here rows
        are clipped after rounding, so none are needed.
        """
        sampling = changes.get("sampling", 0.001)
        printed = {
            "epsilon": 1.0,
            "delta": 1e-5,
            "gamma": 2**13,
            "intercept": False,
            "view": "server",
            "relation": "zero-out",
            "sampling": sampling,
            "rounds": round(EPOCHS.get(changes.get("epsilon", 1.0), 5) / sampling),
            "radius": 1.0,
        }
        return cls(**{**printed, **changes})

    def check(self) -> None:
        super().check()
        check_budget(self.epsilon, self.delta)

    def missing_data(self) -> str:
        return missing_blocks("ignore")

    def procedure(self, facts: PublicFacts, roster: Roster) -> Descent:
        return Descent(self, facts, roster)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.papers.sqm.attacks import gradient_attacks

        return gradient_attacks()


# --- the coordinator's procedure --------------------------------------------------------------------------


class Descent(Procedure[Classifier]):
    """Projected gradient descent. All rounds are one joint release, counted `rounds` times."""

    def __init__(self, method: SQMLogistic, facts: PublicFacts, roster: Roster) -> None:
        self.method = method
        explaining = method.explaining(facts)
        self.layout = layout = gradient_layout(
            facts=facts,
            roster=roster,
            names=explaining,
            response=method.response,
            clip=norm_bounds(facts, explaining, method.clip),
            gamma=method.gamma,
            intercept=method.intercept,
            radius=method.radius,
            sampling=method.sampling,
            rounds=method.rounds,
            epsilon=method.epsilon,
            delta=method.delta,
            view=method.view,
            relation=method.relation,
        )
        primes, holders = len(layout.field.primes), len(roster.committee)
        widest = max(len(layout.own_features(party)) for party in layout.parties) + 2
        arguments: dict[str, Any] = {"layout": layout.to_dict()}
        number = "each round of the descent once"
        self.agree = stage(
            "gradient: agree on batches",
            agree_batches,
            {party: [arguments] for party in layout.parties},
            facts=facts,
            roster=roster,
            audience="the other data parties (sealed)",
            discloses="random bytes for the key of the batches",
        )
        self.share = stage(
            "gradient: share batch",
            share_batch,
            dict.fromkeys(roster.names, [{**arguments, "number": 0}] * layout.rounds),
            facts=facts,
            roster=roster,
            audience=SEALED,
            discloses="secret shares of the quantised rows of a batch and of noise",
            reply_bytes=4 * primes * holders * (layout.capacity * widest + layout.width),
            later={"number": number},
        )
        self.open = stage(
            "gradient: open",
            open_gradient,
            dict.fromkeys(
                roster.committee, [{**arguments, "number": 0, "weights": [0] * layout.width}] * layout.rounds
            ),
            facts=facts,
            roster=roster,
            audience="coordinator, who sends the next weights to the share holders",
            discloses="shares of a noisy gradient, which the coordinator joins",
            reply_bytes=4 * primes * layout.width,
            later={"number": number, "weights": "integers within the radius of the layout, which every holder checks"},
        )
        self.stages = (self.agree, self.share, self.open)
        self.notes = gradient_notes(layout, view=method.view, delta=method.delta)

    def run(self, job: Job) -> Classifier:
        layout, method = self.layout, self.method

        def gradient(number: int, weights: NDArray[np.int64]) -> NDArray[np.float64]:
            job.ask(self.share, number=number)
            shares = job.ask(self.open, number=number, weights=weights.tolist())
            opened = join(shares, layout.field, layout.roster).astype(np.float64)
            ordered = np.empty(layout.width)
            ordered[layout.order] = opened / (4.0 * layout.gamma**3)
            return ordered

        job.ask(self.agree)
        intercept, weights = descent(layout, gradient, learning_rate=method.learning_rate)
        return classifier(
            method, job, intercept, weights, noise_sd=layout.noise_sd, rounds=layout.rounds, solver="minibatch"
        )


def gradient_notes(layout: GradientLayout, *, view: View, delta: float) -> tuple[str, ...]:
    """What all rounds are worth, under both views and both relations; only the client view is debited."""
    notes = [
        f"{layout.rounds} rounds of about {layout.sampling * layout.facts.n:.0f} of {layout.facts.n} records; each"
        f" entry of a gradient carries noise with standard deviation {layout.noise_sd:.4g}."
    ]
    words: dict[View, str] = {
        "client": "debited, no amplification",
        "server": "the coordinator, amplified by sampling",
    }
    for each, meaning in words.items():
        costs = [layout.cost(view=each).times(layout.rounds)]
        totals = ", ".join(str(guarantee(costs, delta=delta, relation=relation)) for relation in get_args(Relation))
        aim = "; the noise is calibrated for it" if each == view else ""
        notes.append(f"{each.capitalize()} view ({meaning}{aim}): {totals}.")
    notes.append(
        "The coordinator does not know the batches; the data parties do. Share holders see every intermediate weight."
    )
    return tuple(notes)


def descent(layout: GradientLayout, gradient: Gradient, *, learning_rate: float) -> tuple[float, NDArray[np.float64]]:
    """(intercept, coefficients) by the steps of the descent: w is clipped to `radius` after each step, and the weights
    of the second half of the rounds are averaged."""
    weights = np.zeros(layout.width)
    total = np.zeros(layout.width)
    averaged = 0
    batch = layout.sampling * layout.facts.n
    for number in range(layout.rounds):
        weights = weights - learning_rate / batch * gradient(number, quantized_weights(layout, weights))
        weights *= min(1.0, layout.radius / max(float(np.linalg.norm(weights)), 1e-300))
        if number >= layout.rounds // 2:
            total += weights
            averaged += 1
    mean = total / averaged
    scale = layout.intercept_entry / layout.gamma
    return (float(mean[0] * scale), mean[1:] / layout.norm) if layout.intercept else (0.0, mean / layout.norm)


def quantized_weights(layout: GradientLayout, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Toward zero, so that the norm stays within the radius."""
    return np.trunc(weights * layout.gamma * (1 - 1e-12)).astype(np.int64)


# --- the members' steps -----------------------------------------------------------------------------------


def _layout(public: Public | Party, plain: Mapping[str, Any]) -> GradientLayout:
    return GradientLayout.from_dict(public.facts, public.roster, plain)


@step(cost=Free("random bytes; no data"))
def agree_batches(me: Party, *, layout: dict[str, Any]) -> Release:
    """Every data party contributes to the key, so that it is unknown to outsiders as long as one of them is honest."""
    shape = _layout(me, layout)
    part = me.randomness.bytes(32)
    for party in shape.parties:
        me.send(party, f"{shape.tag}: key", part)
    return Release(None, "nothing: the key travels sealed")


def _share_cost(public: Public, *, layout: dict[str, Any], number: int) -> Cost:
    shape = _layout(public, layout)
    if public.party not in shape.parties:
        return Free("this member shares noise, and no data")
    if shape.mu == 0:
        raise UnsafeRequest("a gradient without noise is not offered.")
    return shape.cost(view="client", joint=f"{public.job} gradients")


@step(cost=_share_cost)
def share_batch(me: Party, *, layout: dict[str, Any], number: int) -> Release:
    """Draw the batch, quantise its rows, clip them in integers, share them; and share noise."""
    shape = _layout(me, layout)
    if not 0 <= number < shape.rounds:
        raise UnsafeRequest(f"this job has no round {number}.")
    once(me, f"batch {number}")
    if me.name in shape.parties:
        chosen = poisson_batch(_batch_key(me, shape), number, shape.facts.n, shape.sampling)[: shape.capacity]
        rows = quantized_rows(me, shape, chosen)
        padded = np.zeros((shape.capacity, rows.shape[1]), dtype=np.int64)
        padded[: len(rows)] = rows
        deal(me, f"{shape.tag}: batch {number}", shape.field, padded)
    noise = noise_part(me, mu=shape.mu, size=shape.width)
    deal_noise(me, f"{shape.tag}: noise {number}", shape.field, noise)
    return Release(None, "nothing: the shares travel sealed")


def _batch_key(me: Party, shape: GradientLayout) -> bytes:
    if me.kept(f"{shape.tag}: joint key"):
        return bytes(me.recall(f"{shape.tag}: joint key"))
    parts = me.received(f"{shape.tag}: key")
    missing = [party for party in shape.parties if party not in parts]
    if missing:
        raise PartyLost(f"{', '.join(missing)} did not contribute to the batches; resume when they are back.")
    key = hashlib.sha256(b"".join(bytes(parts[party]) for party in shape.parties)).digest()
    me.keep(f"{shape.tag}: joint key", key)
    return key


def poisson_batch(key: bytes, number: int, n: int, sampling: float) -> NDArray[np.int64]:
    """The records of one batch: each with probability `sampling` (rounded down to 2^-64), independently."""
    fresh = hashlib.sha256(b"colonnade batch" + key + number.to_bytes(8, "big")).digest()
    stream = Cipher(algorithms.AES(fresh), modes.CTR(bytes(16))).encryptor()
    words = np.frombuffer(stream.update(bytes(8 * n)), dtype="<u8")
    threshold = math.floor(Fraction(sampling) * 2**64)
    return np.flatnonzero(words < np.uint64(threshold)) if threshold < 2**64 else np.arange(n)


def quantized_rows(me: Party, shape: GradientLayout, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """This party's columns of z for some records, as integers; the response holder adds intercept and response."""
    own = shape.own_features(me.name)
    responds = me.name == shape.response_party
    names = list(dict.fromkeys(feature.column for feature in own)) + ([shape.response] if responds else [])
    place = np.full(shape.facts.n, -1)
    place[chosen] = np.arange(len(chosen))
    values = np.zeros((len(chosen), len(own)))
    event = np.full(len(chosen), -1)
    for index, encoded in me.chunks(names):
        inside = place[index] >= 0
        rows = place[index][inside]
        for column, feature in enumerate(own):
            codes = encoded[feature.column][inside]
            values[rows, column] = (
                np.clip(np.nan_to_num((codes - feature.centre) / feature.half), -1.0, 1.0)
                if feature.category is None
                else codes == feature.category
            )
        if responds:
            event[rows] = encoded[shape.response][inside]
    return quantized_part(shape, me.name, values, event, me.randomness)


def quantized_part(
    shape: GradientLayout,
    party: str,
    values: NDArray[np.float64],
    event: NDArray[np.int64],
    randomness: Randomness,
) -> NDArray[np.int64]:
    """One party's part of some rows as integers. `event` is the response holder's 0 or 1, and -1 where it has no
    record: then intercept and response are zeros, as everything else is."""
    rows = np.zeros(values.shape, dtype=np.int64)
    if values.shape[1]:
        bound = shape.clip[party] / shape.norm
        rows = quantize(values / shape.norm, gamma=shape.gamma, clip=bound, entry=1.0, randomness=randomness)
    if party != shape.response_party:
        return rows
    present = (event >= 0).astype(np.int64)[:, None]
    response = shape.gamma * present * (2 * (event == 1)[:, None] - 1)
    return np.concatenate(
        [shape.intercept_entry * present, rows, response] if shape.intercept else [rows, response], axis=1
    )


@step(cost=Free("a share of a joint release that the data parties have debited"))
def open_gradient(me: Party, *, layout: dict[str, Any], number: int, weights: list[int]) -> Release:
    """This holder's share of Z'(Z w - 2 gamma s) plus every member's noise. Longer weights would show more of a
    record than the noise hides: refused."""
    shape = _layout(me, layout)
    if not 0 <= number < shape.rounds or len(weights) != shape.width:
        raise UnsafeRequest(f"this job has no round {number} with {len(weights)} weights.")
    if sum(weight * weight for weight in weights) > shape.weight_square:
        raise UnsafeRequest("the weights are longer than the radius of the approved plan.")
    once(me, f"gradient {number}")
    field = shape.field
    shared = dealt(me, f"{shape.tag}: batch {number}", shape.parties, field)
    for party in shape.parties:
        extra = (2 if shape.intercept else 1) if party == shape.response_party else 0
        if shared[party].shape[1:] != (shape.capacity, len(shape.own_features(party)) + extra):
            raise UnsafeRequest(f"{party!r} shared rows of another shape than the layout says.")
    joined = np.concatenate([shared[party] for party in shape.parties], axis=2)
    rows, response = np.ascontiguousarray(joined[:, :, :-1]), joined[:, :, -1:]
    public = field.encode(np.array([weights[index] for index in shape.order], dtype=np.int64)[:, None])
    residual = field.sub(field.matmul(rows, public), field.scale(response, 2 * shape.gamma))
    noise = dealt(me, f"{shape.tag}: noise {number}", me.roster.names, field)
    product = cross(field, rows, residual)
    shaped = {member: part.reshape(-1, *product.shape) for member, part in noise.items()}
    opened = open_product(product, noise=shaped, parties=me.roster.names)
    return Release(opened[:, :, 0], "a share of a noisy gradient")
