"""The public description of one training of a split network: who takes part with which columns, and every constant.

A round covers `local` iterations. It begins with one exchange: every sender computes its parts for all batches of the
round, and the active party opens their sum. The active party then makes `local` iterations with the others' parts as
they were when the round began, and returns the gradients; the others make theirs along these. With local = 1 this is
exactly stochastic gradient descent of the whole network. With more it is block coordinate descent with parts that are
at most `local` iterations old (FedBCD, Liu et al. 2019), for `local` times fewer messages.

An iteration's batch is `batch` rows of a random permutation that begins anew each epoch: a record is in at most one
batch of an epoch, which is what the accounting of private training counts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import plain, record
from colonnade.completion.layout import Layout
from colonnade.completion.split.exchange import Exchange, Masking
from colonnade.errors import BadArguments, BadPrivacyParameter, NotEstimable, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.step import Public
from colonnade.privacy.calibration import Calibration, SkellamMus
from colonnade.privacy.cost import Cost
from colonnade.privacy.skellam import Skellam, delta_1_bound
from colonnade.privacy.skellam_sampler import largest_draw
from colonnade.statistics.joint import binding

Presence = Mapping[str, NDArray[np.bool_]]
"""{party: which records of the cohort it has}."""

LARGEST = {
    "iterations": 1_000_000,
    "local": 1_000_000,
    "batch": 16_384,
    "hidden": 4_096,
    "cut": 1_024,
    "every": 1_000_000,
    "patience": 1_000_000,
}
"""What takes memory or time in a training."""
CHUNK = 4096
"""Rows of one message when a trained network is applied to the whole cohort."""

_read: dict[tuple[type[Any], str], Any] = {}


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """One training.

    label : names it within its job.        parties : who takes part, the active one among them.
    inputs : {party: its columns that enter}.
    validation : the share of a party's records that are hidden to watch the error, every `every` rounds; training ends
        when `patience` looks have seen nothing better.
    clip, gamma, mu, epochs : of private training (see below); mu = 0 is training without noise, epochs = 0 without a
        limit.
    """

    losses: ClassVar[int] = 1
    """Losses that the networks minimise; in private training the gradient of each is clipped by itself."""

    label: str
    active: str
    parties: tuple[str, ...]
    inputs: Mapping[str, tuple[str, ...]]
    masking: Masking = "pads"
    iterations: int = 6000
    local: int = 25
    batch: int = 128
    hidden: int = 256
    cut: int = 64
    learning_rate: float = 1e-3
    dropout: float = 0.0
    seed: int = 0
    validation: float = 0.1
    every: int = 8
    patience: int = 10
    clip: float = 0.0
    gamma: int = 0
    mu: int = 0
    epochs: int = 0

    def __post_init__(self) -> None:
        if self.active not in self.parties or len(set(self.parties)) != len(self.parties):
            raise BadArguments("the active party takes part, and every party once.")
        for name, most in LARGEST.items():
            if not 1 <= getattr(self, name) <= most:
                raise BadArguments(f"{name} of a training must be from 1 to {most:,}, not {getattr(self, name)!r}.")
        if not 0 <= self.epochs <= LARGEST["iterations"]:
            raise BadArguments(
                f"epochs of a training must be from 0 to {LARGEST['iterations']:,}, not {self.epochs!r}."
            )
        if not 0 < self.validation < 1 or not 0 <= self.dropout < 1:
            raise BadArguments("validation and dropout of a training are shares between 0 and 1.")

    # --- as data -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {**self._plain}

    @cached_property
    def _plain(self) -> dict[str, Any]:
        described: dict[str, Any] = plain(self)
        return described

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> Self:
        """The one that was read last is at hand: every round of a training names it whole."""
        place = cls, str(described.get("label"))
        training: Self | None = _read.get(place)
        if training is None or training._plain != described:
            training = record(cls, described, "a training", cure=" Install the same version at every party.")
            if len(_read) > 64:
                _read.clear()
            _read[place] = training
        return training

    @cached_property
    def tag(self) -> str:
        """Names it, and binds pads and mail to every constant of it."""
        return binding(self.label, self._plain)

    # --- sizes ---------------------------------------------------------------------------------------------------

    @property
    def senders(self) -> tuple[str, ...]:
        return tuple(party for party in self.parties if party != self.active)

    @cached_property
    def exchange(self) -> Exchange:
        return Exchange(masking=self.masking, opener=self.active, senders=self.senders, label=self.tag)

    @property
    def gradients(self) -> int:
        """Gradients that return for each hidden vector."""
        return 1

    @property
    def rounds(self) -> int:
        return -(-self.iterations // self.local)

    def has_look(self, number: int) -> bool:
        """Is the error over hidden records looked at in a round? After the last one there may be one more, for that
        alone."""
        return number % self.every == 0 or number == self.rounds

    @property
    def round_size(self) -> int:
        """Numbers in the hidden vectors of one round."""
        return self.local * self.batch * self.cut

    def layout(self, facts: PublicFacts, party: str) -> Layout:
        return Layout(facts.columns[party].select(self.inputs.get(party, ())))

    @abstractmethod
    def weights(self, facts: PublicFacts, party: str) -> int:
        """How many a party trains with noise: a public number."""

    # --- rows ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def training_rows(self, presence: Presence) -> NDArray[np.int64]:
        """The records that batches are drawn from."""

    def hidden_rows(self, party: str, presence: Presence) -> NDArray[np.int64]:
        """The party's records that are hidden from training to watch the error, the same in every training."""
        return validation_rows(presence, party=party, share=self.validation, seed=self.seed)

    def batches(self, rows: NDArray[np.int64], number: int) -> NDArray[np.int32]:
        """The batches (local x batch) of round `number`."""
        size = min(self.batch, len(rows))
        if self.mu and size < self.batch:
            # A record that fills a batch up would be in it twice, and count twice.
            raise NotEstimable(
                f"private training of {self.label!r} has fewer records than a batch; choose batch=16, say."
            )
        count = max(len(rows) // size, 1)
        iterations = number * self.local + np.arange(self.local)
        epochs, within = np.divmod(iterations, count)
        if self.epochs and epochs[-1] >= self.epochs:
            raise UnsafeRequest(f"all {self.epochs} epochs of {self.label!r} are over; more would cost more.")
        places = within[:, None] * size + np.arange(self.batch) % size
        batches = np.empty((self.local, self.batch), dtype=np.int32)
        for epoch in np.unique(epochs):
            now = epochs == epoch
            batches[now] = _order(rows, self.seed, int(epoch))[places[now]]
        return batches

    def rounds_for(self, rows: int) -> int:
        """Rounds that are made with so many records: all, or as many as the epochs of private training allow, whose
        batches are full."""
        if not self.epochs:
            return self.rounds
        return min(self.rounds, self.epochs * (rows // self.batch) // self.local)


@dataclass(frozen=True, kw_only=True)
class Regression(Training):
    """A network that predicts `outputs`, columns of the active party, from the other parties' columns and its own.

    rows : the records that the active party has and another has too ("active"), those that all have ("complete"), or
        all of them, completed first ("completed").
    """

    outputs: tuple[str, ...]
    rows: Literal["active", "complete", "completed"] = "active"
    decay: float = 1e-2

    def output_layout(self, facts: PublicFacts) -> Layout:
        return Layout(facts.columns[self.active].select(self.outputs))

    def weights(self, facts: PublicFacts, party: str) -> int:
        layout = self.layout(facts, party)
        inputs = layout.width + sum(column.missing for column in layout.columns.values())
        count = (inputs + 1) * self.hidden + (self.hidden + 1) * self.cut if inputs else 0
        if party == self.active:
            count += (self.cut + 1) * self.hidden + (self.hidden + 1) * self.output_layout(facts).width
        return count

    def training_rows(self, presence: Presence) -> NDArray[np.int64]:
        senders = [presence[party] for party in self.senders if self.inputs.get(party)]
        used = presence[self.active].copy()
        if self.rows == "complete":
            used &= np.logical_and.reduce(senders)
        elif self.rows == "active":
            used &= np.logical_or.reduce(senders)
        used[self.hidden_rows(self.active, presence)] = False
        return np.flatnonzero(used)


_orders: list[tuple[NDArray[np.int64], tuple[int, int], NDArray[np.int64]]] = []


def _order(rows: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """The rows in the order of one epoch. Rounds ask for the same few again and again."""
    for ordered, key, order in _orders:
        if ordered is rows and key == (seed, epoch):
            return order
    order = np.random.default_rng((seed, epoch, 1)).permutation(rows)
    _orders.append((rows, (seed, epoch), order))
    del _orders[:-8]
    return order


def validation_rows(presence: Presence, *, party: str, share: float, seed: int) -> NDArray[np.int64]:
    """A share of the records that a party and another have, chosen by a public seed; at least one, and never all.

    A record that no other party has is none of those that could be missing: an error on it would tell nothing about
    them. Only where no record is shared they have to do.
    """
    others = [present for other, present in presence.items() if other != party]
    shared = presence[party] & np.logical_or.reduce([*others, np.zeros_like(presence[party])])
    rows = np.flatnonzero(shared if shared.any() else presence[party])
    order = np.random.default_rng((seed, 2, *party.encode())).permutation(rows)
    return np.sort(order[: min(max(round(share * rows.size), 1), max(rows.size - 1, 0))])


def row_chunks(n: int) -> list[tuple[int, int]]:
    """The cohort in chunks of at most `CHUNK` rows."""
    return [(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK)]


def words_of(seed: int) -> NDArray[np.uint32]:
    """Four words that everything random in one party's part of a network follows from."""
    return np.asarray(np.random.SeedSequence(seed).generate_state(4), dtype=np.uint32)


def drawing(words: NDArray[np.uint32], *path: int) -> np.random.Generator:
    """A quick generator for one purpose. It is numpy's, outside the compiled steps: in there random numbers take more
    time than the products, and as long to compile. It protects nothing."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([*map(int, words), *path])))


# --- private training ---------------------------------------------------------------------------------------------
#
# DP-SGD with Skellam noise. Each party clips the gradient of its own weights record by record to the norm `clip`, adds
# up the batch, multiplies by gamma / clip, rounds to integers and adds Sk(mu). A record is in at most one batch of an
# epoch, so each party's weights cost `epochs` such releases, and a person's total composes over the parties and
# trainings. With two losses the gradients are clipped to clip / sqrt(2) each, so that neither takes the other's share,
# and both together move by at most `clip`.
#
# Sensitivity: a record moves the sum by at most clip in L2, so the rounded sum by at most gamma + sqrt(p), since
# rounding moves each of the p coordinates by less than one unit more. Sums are in float32: 1e-4 of gamma covers their
# error.
#
# The noise is drawn outside the compiled step, by the exact sampler, from the operating system's generator, and added
# in integers modulo 2^32. All that follows, back to float32 too, is post-processing. The records that are watched take
# no part in this: the weights are those of the last round, whatever the error on them.
#
# This bounds what the **weights**, and with them predictions and generated records, say about a person. It bounds
# nothing of the hidden vectors that the active party opens while training, nor of the gradients: those stay
# `split-training`.

GAMMA = 2**15
"""Units in one clipped gradient: rounding 10,000 weights then adds 0.3 % to the sensitivity."""


def sensitivity(training: Training, weights: int) -> float:
    """In L2, of the rounded sum of one batch."""
    return training.gamma * (1 + 1e-4) + math.sqrt(weights)


def _release(mu: int, *, length: float, weights: int) -> Cost:
    """One party's noisy sum of gradients, in one epoch."""
    return Skellam(
        mu,
        delta_1=delta_1_bound(length, weights),
        delta_2=length,
        parties=1,
        dimension=weights,
        audience="whoever sees generated records",
    )


def noise_for(trainings: Sequence[Training], facts: PublicFacts, *, epsilon: float, delta: float) -> int:
    """The mu at which all parties' weights, in all of these trainings together, cost (epsilon, delta).

    Every release is taken to be as large as the largest; they differ by the square root of their numbers of weights.
    """
    if min(training.epochs for training in trainings) < 1:
        raise BadPrivacyParameter("private training needs a number of epochs; choose epochs=10, say.")
    counts = [
        (training, weights)
        for training in trainings
        for party in training.parties
        if (weights := training.weights(facts, party))
    ]
    most = max(weights for _, weights in counts)
    length = max(sensitivity(training, most) for training in trainings)
    releases = sum(training.epochs for training, _ in counts)
    statistic = _release(1, length=length, weights=most)
    budget = Calibration({"weights": SkellamMus(statistic, count=releases)}, epsilon=epsilon, delta=delta)
    mu = int(budget["weights"])
    if largest_draw(mu) + max(training.batch * training.gamma for training in trainings) >= 2**31:
        raise BadPrivacyParameter(
            f"epsilon = {epsilon:g} over {releases} releases takes noise beyond 32 bits; choose a larger epsilon or"
            " fewer epochs."
        )
    return mu


def weights_costs(training: Training, public: Public) -> list[Cost]:
    """Of all parties' weights: one release of each in each epoch.

    A gradient at one party is a function of what all parties know of the record, so every party pays for the weights of
    all. The joint ids let a person's total count each release once.
    """
    counts = {party: training.weights(public.facts, party) for party in training.parties}
    most = max(counts.values())
    release = _release(training.mu, length=sensitivity(training, most), weights=most).times(training.epochs)
    return [
        replace(release, joint=f"{public.job} {training.label}: weights of {party}")
        for party, weights in counts.items()
        if weights
    ]
