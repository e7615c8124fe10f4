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

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from colonnade.completion.layout import Layout
from colonnade.completion.split.exchange import Protect
from colonnade.errors import BadArguments, NotEstimable, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.statistics.joint import binding

Network = Literal["regressor", "gain", "vgain", "cgain"]
Rows = Literal["active", "all", "complete", "completed"]

_read: dict[str, Training] = {}

CHUNK = 4096
"""Rows of one message when a trained network is applied to the whole cohort."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training.

    label : names it within its job.        parties : who takes part, the active one among them.
    inputs : {party: its columns that enter}.     outputs : the active party's columns that a regressor predicts.
    rows : of a regressor: the records that the active party has and another has too ("active"), those that all have
        ("complete"), or all of them, completed first ("completed"). A GAN takes every row ("all").
    given : {party: columns that were generated before}, which a GAN takes as observed.
    context : {party: numbers a record that condition its generator}.     told : they begin with predictions of the
        party's own entries.
    validation : {party: share of its records that are hidden to watch the error}; `every` that many rounds, and
        training ends when `patience` looks have seen nothing better.
    clip, gamma, mu, epochs : of private training (`private.py`); mu = 0 is training without noise, epochs = 0 without
        a limit.
    """

    label: str
    network: Network
    active: str
    parties: tuple[str, ...]
    inputs: Mapping[str, tuple[str, ...]]
    outputs: tuple[str, ...] = ()
    rows: Rows = "active"
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    context: Mapping[str, int] = field(default_factory=dict)
    told: bool = False
    protect: Protect = "masks"
    iterations: int = 6000
    local: int = 25
    batch: int = 128
    hidden: int = 256
    cut: int = 64
    rate: float = 1e-3
    decay: float = 1e-2
    dropout: float = 0.0
    alpha: float = 100.0
    hint: float = 0.9
    hide: float = 0.5
    seed: int = 0
    validation: float = 0.1
    every: int = 8
    patience: int = 10
    clip: float = 0.0
    gamma: int = 0
    mu: int = 0
    epochs: int = 0

    def __post_init__(self) -> None:
        if self.network not in get_args(Network) or self.rows not in get_args(Rows):
            raise BadArguments(f"there is no network {self.network!r} on rows {self.rows!r}.")
        if self.protect not in get_args(Protect):
            raise BadArguments(f"protect must be 'masks' or 'ckks', not {self.protect!r}.")
        if self.active not in self.parties or len(set(self.parties)) != len(self.parties):
            raise BadArguments("the active party takes part, and every party once.")
        for name in ("iterations", "local", "batch", "hidden", "cut", "every", "patience"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadArguments(f"{name} must be a whole number of at least 1, not {value!r}.")
        if not 0 < self.validation < 1 or not 0 <= self.dropout < 1 or not 0 < self.hint <= 1 or not 0 <= self.hide < 1:
            raise BadArguments("validation, dropout, hint and hide are shares between 0 and 1.")

    # --- as data -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {**self._plain}

    @cached_property
    def _plain(self) -> dict[str, Any]:
        plain = asdict(self)
        for name in ("inputs", "given"):
            plain[name] = {party: list(columns) for party, columns in plain[name].items()}
        return {**plain, "parties": list(self.parties), "outputs": list(self.outputs), "context": dict(self.context)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The one that was read last is at hand: every round of a training names it whole."""
        found = _read.get(str(plain.get("label")))
        if found is None or found._plain != plain:
            found = cls._from_dict(plain)
            if len(_read) > 64:
                _read.clear()
            _read[found.label] = found
        return found  # type: ignore[return-value]

    @classmethod
    def _from_dict(cls, plain: Mapping[str, Any]) -> Self:
        if set(plain) != {one.name for one in fields(cls)}:
            raise BadArguments("a training has other fields; install the same version at every party.")
        made: dict[str, Any] = dict(plain)
        for name in ("inputs", "given"):
            made[name] = {party: tuple(columns) for party, columns in made[name].items()}
        return cls(**{**made, "parties": tuple(made["parties"]), "outputs": tuple(made["outputs"])})

    @cached_property
    def tag(self) -> str:
        """Names it, and binds pads and mail to every constant of it."""
        return binding(self.label, self.to_dict())

    # --- sizes ---------------------------------------------------------------------------------------------------

    @property
    def senders(self) -> tuple[str, ...]:
        return tuple(party for party in self.parties if party != self.active)

    @property
    def gan(self) -> bool:
        return self.network != "regressor"

    @property
    def losses(self) -> int:
        """Gradients that return for each hidden vector: one, or two if a sender of a GAN has a generator too."""
        return 2 if self.gan and any(sender in self.context for sender in self.senders) else 1

    @property
    def rounds(self) -> int:
        return -(-self.iterations // self.local)

    @property
    def round_size(self) -> int:
        """Numbers in the hidden vectors of one round."""
        return self.local * self.batch * self.cut

    def layout(self, facts: PublicFacts, party: str) -> Layout:
        return Layout(facts.columns[party].select(self.inputs.get(party, ())))

    def output_layout(self, facts: PublicFacts) -> Layout:
        return Layout(facts.columns[self.active].select(self.outputs))

    # --- rows ----------------------------------------------------------------------------------------------------

    def hidden_rows(self, party: str, presence: Mapping[str, NDArray[np.bool_]]) -> NDArray[np.int64]:
        """The party's records that are hidden from training to watch the error, the same in every training."""
        return validation_rows(presence, party=party, share=self.validation, seed=self.seed)

    def training_rows(self, presence: Mapping[str, NDArray[np.bool_]]) -> NDArray[np.int64]:
        if self.gan or self.rows in ("all",):
            return np.arange(len(presence[self.active]))
        senders = [party for party in self.senders if self.inputs.get(party)]
        here = presence[self.active].copy()
        if self.rows == "complete":
            here &= np.logical_and.reduce([presence[party] for party in senders])
        elif self.rows == "active":
            here &= np.logical_or.reduce([presence[party] for party in senders])
        here[self.hidden_rows(self.active, presence)] = False
        return np.flatnonzero(here)

    def batches(self, rows: NDArray[np.int64], number: int) -> NDArray[np.int32]:
        """The batches (local x batch) of round `number`."""
        size = min(self.batch, len(rows))
        if self.mu and size < self.batch:
            # A record that fills a batch up would be in it twice, and count twice.
            raise NotEstimable(
                f"private training of {self.label!r} has fewer records than a batch; choose batch=16, say."
            )
        each = max(len(rows) // size, 1)
        iterations = number * self.local + np.arange(self.local)
        epochs, within = np.divmod(iterations, each)
        if self.epochs and epochs[-1] >= self.epochs:
            raise UnsafeRequest(f"all {self.epochs} epochs of {self.label!r} are over; more would cost more.")
        places = within[:, None] * size + np.arange(self.batch) % size
        found = np.empty((self.local, self.batch), dtype=np.int32)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            found[here] = _order(rows, self.seed, int(epoch))[places[here]]
        return found

    def rounds_for(self, rows: int) -> int:
        """Rounds that are made with so many records: all, or as many as the epochs of private training allow, whose
        batches are whole."""
        if not self.epochs:
            return self.rounds
        return min(self.rounds, self.epochs * (rows // self.batch) // self.local)


_orders: list[tuple[NDArray[np.int64], tuple[int, int], NDArray[np.int64]]] = []


def _order(rows: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """The rows in the order of one epoch. Rounds ask for the same few again and again."""
    for known, key, order in _orders:
        if known is rows and key == (seed, epoch):
            return order
    order = np.random.default_rng((seed, epoch, 1)).permutation(rows)
    _orders.append((rows, (seed, epoch), order))
    del _orders[:-8]
    return order


def validation_rows(
    presence: Mapping[str, NDArray[np.bool_]], *, party: str, share: float, seed: int
) -> NDArray[np.int64]:
    """A share of the records that a party and another have, chosen by a public seed; at least one, and never all.

    A record that nobody else has is none of those that could be missing: an error on it would tell nothing about them.
    Only where no record is shared they have to do.
    """
    others = [one for other, one in presence.items() if other != party]
    shared = presence[party] & np.logical_or.reduce([*others, np.zeros_like(presence[party])])
    rows = np.flatnonzero(shared if shared.any() else presence[party])
    order = np.random.default_rng((seed, 2, *party.encode())).permutation(rows)
    return np.sort(order[: min(max(round(share * rows.size), 1), max(rows.size - 1, 0))])


def row_chunks(n: int) -> list[tuple[int, int]]:
    """The cohort in chunks of at most `CHUNK` rows."""
    return [(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK)]


def parties_of(columns: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(party for party, names in columns.items() if names)
