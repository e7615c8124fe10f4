"""What parties do while a split network trains: meet, start, then rounds of `follow` (senders) and `lead` (active).

    senders      take the gradients of the last round, make their iterations, send the parts for the next batches
    coordinator  adds what the senders sent; it cannot read it
    active       opens the sum, makes its iterations, sends gradients back, sealed; tells the coordinator its losses

`hand_over` and `take_over` apply the trained network to the whole cohort in the same way. `claim.md` says who learns
what.

A session is what a party has in memory meanwhile: its data as arrays, its part of the network, its keys. Everything in
it follows from the block and from what earlier steps kept, so that a party that was restarted makes it again and goes
on where the last committed round ended.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.completion.layout import Layout, Matrix
from colonnade.completion.quality import rmse
from colonnade.completion.split.exchange import BOUND, Floats, Masking, keep_keys, make_key
from colonnade.completion.split.training import (
    Presence,
    Regression,
    Training,
    drawing,
    row_chunks,
    weights_costs,
    words_of,
)
from colonnade.errors import PartyLost, RunError, StepFailed, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Free, Unbounded, compose
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.joint import once

TRAINING = "split-training"
PRESENCE = "presence of all"
COMPLETED = "completed matrix"
"""Under this name a party keeps its whole table, completed, as a matrix of all its columns (cohort x width)."""
ROUNDS, VALUES = 10, 11
"""What a generator is for: the rounds of a training, or the values of records that are filled in."""


def presence_of(me: Party) -> dict[str, NDArray[np.bool_]]:
    """Which records each party has, as the parties told each other."""
    packed: dict[str, Any] = me.recall(PRESENCE)
    return {party: np.unpackbits(bits, count=me.facts.n).astype(bool) for party, bits in packed.items()}


def own_matrix(me: Party, layout: Layout) -> Matrix:
    """This party's columns over the cohort; NaN where the record or the cell is missing."""
    if not layout.width:
        return np.zeros((me.facts.n, 0), dtype=np.float32)
    return layout.encode({name: me.column(name) for name in layout.columns})


def column_means(matrix: Matrix) -> NDArray[np.float64]:
    """Over the entries that are there; 0 for a column without any."""
    observed = ~np.isnan(matrix)
    return np.asarray(np.nan_to_num(matrix).sum(axis=0) / np.maximum(observed.sum(axis=0), 1))


def networks_ready() -> None:
    """Refuse in one sentence where jax, an extra, is not installed. What needs no network does without it."""
    from colonnade.completion.split import networks as networks


# --- a session ----------------------------------------------------------------------------------------------------


@dataclass
class Session(ABC):
    """One party's side of one training. `number` rounds are done."""

    training: Any
    model: Any
    data: Any
    rows: NDArray[np.int64]
    watched: NDArray[np.int64]
    truth: Floats
    base: NDArray[np.uint32]
    state: Any
    number: int = 0
    flat: Callable[[Any], Floats] = field(init=False, repr=False)
    restore: Callable[[Floats], Any] = field(init=False, repr=False)

    # --- what a network says of itself ---------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def fresh(cls, me: Party, training: Any, presence: Presence, base: NDArray[np.uint32]) -> Self:
        """Data, network and first weights, drawn from the key `base`."""

    def introduce(self, me: Party) -> None:  # noqa: B027 - most have nothing to say
        """Tell the active party what it must know before the first round."""

    def draws(self, number: int) -> tuple[Any, ...]:
        """What is random in the iterations of a round."""
        return (self.model.draws(drawing(self.base, ROUNDS, number), self.training.local, self.training.batch),)

    @property
    @abstractmethod
    def looked_at(self) -> int:
        """Watched records whose parts the senders add to those of a round in which there is a look."""

    @abstractmethod
    def look_sending(self, me: Party) -> tuple[Floats, dict[str, Any]]:
        """A sender's look: (parts of the watched records, what it tells the coordinator)."""

    @abstractmethod
    def look_leading(self, me: Party, others: Floats) -> float | None:
        """The active party's error over its watched records; None without any."""

    # --- begin, go on, commit ------------------------------------------------------------------------------------

    @classmethod
    def begin(cls, me: Party, training: Training, *, base: NDArray[np.uint32]) -> Self:
        from colonnade.completion.split import networks  # jax is an extra

        if me.name not in training.parties:
            raise UnsafeRequest(f"{me.name!r} takes no part in {training.label!r}.")
        presence = presence_of(me)
        missing = [party for party in training.parties if party not in presence]
        if missing:
            raise PartyLost(f"{', '.join(missing)} did not say which records they have; start the job again.")
        session = cls.fresh(me, training, presence, base)
        session.flat, session.restore = networks.flat, networks.shaped(session.state)
        return session

    @classmethod
    def resume(cls, me: Party, training: Training) -> Self:
        """As of the last committed round. A copy: a step that fails halfway must leave no trace of its iterations,
        which would else be made twice, along the same gradients."""
        number = int(me.recall(f"{training.tag}: number"))
        session = _alive.setdefault(me, {}).get(f"{me.job} {training.tag}")
        if session is None or session.number != number:
            session = cls.begin(me, training, base=np.array(me.recall(f"{training.tag}: key")))
            session.state = session.restore(me.recall(f"{training.tag}: state"))
            session.number = number
            session._remember(me)
        copy = replace(session)
        copy.flat, copy.restore = session.flat, session.restore
        return copy

    def _remember(self, me: Party) -> None:
        sessions = _alive.setdefault(me, {})
        for tag in [tag for tag in sessions if not tag.startswith(f"{me.job} ")]:
            del sessions[tag]  # of an earlier job
        sessions[f"{me.job} {self.training.tag}"] = self

    def commit(self, me: Party) -> None:
        """Keep the state with this step's reply. Its number goes up with each state that is kept, so that one which
        was never written to the disk is known by it."""
        me.keep(f"{self.training.tag}: state", self.flat(self.state))
        me.keep(f"{self.training.tag}: number", self.number)
        self._remember(me)

    @classmethod
    def start(cls, me: Party, training: Training, key: int | None) -> Release:
        """Fresh weights."""
        once(me, training.tag)
        if key is not None and not me.randomness.simulated:
            raise UnsafeRequest("only a simulation may choose a party's first weights; others draw them here.")
        base = words_of(key) if key is not None else np.frombuffer(me.randomness.bytes(16), dtype=np.uint32)
        session = cls.begin(me, training, base=base)
        session.introduce(me)
        me.keep(f"{training.tag}: key", base)
        session.commit(me)
        value = {"rows": len(session.rows)} if me.name == training.active else None
        return Release(value, "the number of records used")

    # --- rounds --------------------------------------------------------------------------------------------------

    def _expect(self, number: int) -> None:
        """A round happens once, in order: its pads must not serve twice."""
        if number != self.number:
            raise UnsafeRequest(f"round {number} of {self.training.label!r} was asked for, and {self.number} is next.")

    def follow(self, me: Party, *, number: int, better: bool) -> Release:
        """Iterate along the gradients of the last round, then send the parts for this one, in a look with those of the
        records that are hidden from training. `better` says that the last look was the best so far."""
        training = self.training
        self._expect(number)
        self.take_gradients(me)
        self.settle_look(me, better)
        parts = np.zeros(0, dtype=np.float32)
        if number < training.rounds:  # after the last round there may be one more look
            rows = training.batches(self.rows, number)
            parts = np.asarray(self.model.partials(self.state, self.data, rows, *self.draws(number))).reshape(-1)
        value: dict[str, Any] = {}
        if training.has_look(number):
            seen, value = self.look_sending(me)
            parts = np.concatenate([parts, seen.reshape(-1)])
        self.number = number + 1
        self.commit(me)
        value["parts"] = training.exchange.hide(me, parts, number)
        return Release(value, f"hidden vectors that only {training.active!r} can open, summed over the senders")

    def take_gradients(self, me: Party) -> None:
        """The iterations of the last round, along the gradients that have come."""
        training, last = self.training, self.number - 1
        if last < 0:
            return
        slopes = training.exchange.take_back(
            me, size=training.gradients * training.round_size, tag=f"{training.tag}: gradients {last}"
        )
        if slopes is None:
            raise UnsafeRequest(f"the gradients of round {last} of {training.label!r} have not come; ask `lead` first.")
        backward = slopes.reshape(training.local, training.gradients, training.batch, training.cut)
        backward = backward / np.float32(training.batch)
        given = (self.state, self.data, training.batches(self.rows, last), backward, *self.draws(last))
        if training.mu:
            self.state = self.model.private_follow(training.clip, training.gamma, self._noise(me), *given)
        else:
            self.state = self.model.follow(*given)

    def _noise(self, me: Party) -> NDArray[np.int32]:
        """Of each iteration of a round, for each weight."""
        shape = self.training.local, self.training.weights(me.facts, me.name)
        return skellam(me.randomness, self.training.mu, shape).astype(np.int32)

    def settle_look(self, me: Party, better: bool) -> None:
        """What was looked at last becomes the best so far. Private training takes its last weights: a choice by the
        error on hidden records would say something about these, and no noise covers that."""
        name = f"{self.training.tag}: looked"
        if better and not self.training.mu and me.kept(name):
            me.keep(f"{self.training.tag}: best", me.recall(name))

    def best_state(self, me: Party) -> Any:
        """The state that a look has found best, or the last one if there was no look."""
        name = f"{self.training.tag}: best"
        return self.restore(me.recall(name)) if me.kept(name) else self.state

    def lead(self, me: Party, *, number: int, total: Any, better: bool) -> Release:
        """Open the sum, iterate, send gradients back."""
        training, watch = self.training, self.training.has_look(number)
        if me.name != training.active:
            raise UnsafeRequest(f"{me.name!r} does not lead {training.label!r}.")
        self._expect(number)
        self.settle_look(me, better)
        trained = training.round_size if number < training.rounds else 0
        size = trained + (self.looked_at * training.cut if watch else 0)
        opened = np.zeros(size, dtype=np.float32)
        if training.senders:
            opened = training.exchange.reveal(me, total, size=size, number=number)
        error = self.look_leading(me, opened[trained:].reshape(-1, training.cut)) if watch else None
        self.number = number + 1
        if not trained:
            self.commit(me)
            return Release({"losses": [], "sound": True, "error": error}, "the error over hidden records")
        others = opened[:trained].reshape(training.local, training.batch, training.cut)
        given = (self.state, self.data, training.batches(self.rows, number), others, *self.draws(number))
        if training.mu:
            led = self.model.private_lead(training.clip, training.gamma, self._noise(me), *given)
        else:
            led = self.model.lead(*given)
        self.state, slopes, losses = led
        self.commit(me)
        backward = np.asarray(slopes, dtype=np.float32)[:, : training.gradients].reshape(-1)
        training.exchange.send_back(me, backward * np.float32(training.batch), f"{training.tag}: gradients {number}")
        means = np.asarray(losses, dtype=np.float64).reshape(training.local, -1).mean(axis=0)
        sound = bool(np.isfinite(means).all() and np.abs(opened).max(initial=0.0) < BOUND / 2)
        value = {"losses": np.nan_to_num(means).tolist(), "sound": sound, "error": error}
        return Release(value, "losses of this round, and the error over hidden records")


_alive: weakref.WeakKeyDictionary[Party, dict[str, Any]] = weakref.WeakKeyDictionary()


# --- of a regression ----------------------------------------------------------------------------------------------


class RegressionSession(Session):
    """Of a `Regression`: at the active party with the top of the network, at the others with a bottom."""

    @classmethod
    def fresh(cls, me: Party, training: Regression, presence: Presence, base: NDArray[np.uint32]) -> Self:
        from colonnade.completion.split.regressor import Data, Regressor  # jax is an extra

        layout = training.layout(me.facts, me.name)
        present, matrix = presence[me.name], own_matrix(me, layout)
        if training.rows == "completed" and me.kept(COMPLETED):
            table = Layout(me.facts.columns[me.name])
            matrix = np.asarray(me.recall(COMPLETED))[:, table.places(layout.columns)]
            present = np.asarray(~np.isnan(matrix).all(axis=1)) if layout.width else present
        x = features(matrix, layout, private=training.mu > 0)
        leads = me.name == training.active
        outputs = training.output_layout(me.facts)
        y = own_matrix(me, outputs) if leads else np.zeros((me.facts.n, 0), dtype=np.float32)
        rows = training.training_rows(presence)
        watched = training.hidden_rows(training.active, presence)
        if training.rows in ("complete", "completed"):
            watched = watched[np.logical_and.reduce([presence[party] for party in training.parties])[watched]]
        model = Regressor(
            inputs=x.shape[1],
            outputs=outputs.width if leads else 0,
            hidden=training.hidden,
            cut=training.cut,
            decay=training.decay,
            dropout=training.dropout,
        )
        means = None
        if leads:
            # The overall mean of a column is a sum over records too, so private training starts in the middle instead.
            means = np.full(outputs.width, 0.5) if training.mu else column_means(y[rows])
        state = model.init(base, training.learning_rate, training.iterations, means)
        data = Data.of(x, present, np.nan_to_num(y), ~np.isnan(y))
        return cls(training, model, data, rows, watched, y, base, state)

    @property
    def looked_at(self) -> int:
        return self.watched.size

    def look_sending(self, me: Party) -> tuple[Floats, dict[str, Any]]:
        me.keep(f"{self.training.tag}: looked", self.flat(self.state))
        return np.asarray(self.model.outputs_of(self.state, self.data, self.watched)), {}

    def look_leading(self, me: Party, others: Floats) -> float | None:
        if not self.watched.size:
            return None
        me.keep(f"{self.training.tag}: looked", self.flat(self.state))
        predicted = np.asarray(self.model.predict(self.state, self.data, self.watched, others))
        error = rmse(predicted, self.truth[self.watched])
        return error if math.isfinite(error) else None


def features(matrix: Matrix, layout: Layout, *, private: bool) -> Floats:
    """What enters a bottom: numbers as standard scores and as ranks (a long tail hides the middle of a min-max scale),
    indicators as they are, and whether a cell is there where it may be empty. These scales never leave the party.

    Private training may not look at the data outside its noisy sums: it takes the declared scale alone.
    """
    observed = ~np.isnan(matrix)
    parts: list[NDArray[np.floating[Any]]] = []
    for name, column in layout.columns.items():
        place = layout.slices[name]
        values, filled = matrix[:, place].astype(np.float64), observed[:, place]
        if private or not layout.numeric_mask[place.start]:
            parts.append(np.where(filled, 2 * np.nan_to_num(values) - 1, 0.0))
        elif filled.any():
            seen = values[filled]
            scores = np.clip((values - seen.mean()) / max(float(seen.std()), 1e-6), -4.0, 4.0)
            levels, counts = np.unique(seen, return_counts=True)
            middle = (np.cumsum(counts) - counts / 2) / seen.size
            ranks = np.interp(np.nan_to_num(values), levels, 3.4 * middle - 1.7)
            parts += [np.where(filled, np.nan_to_num(scores), 0.0), np.where(filled, ranks, 0.0)]
        else:
            parts += [np.zeros_like(values), np.zeros_like(values)]
        if column.missing:
            parts.append(filled[:, :1].astype(np.float64))
    if not parts:
        return np.zeros((len(matrix), 0), dtype=np.float32)
    return np.concatenate(parts, axis=1).astype(np.float32)


def predictions(me: Party, training: Regression) -> Floats:
    """What `take_over` kept, for the whole cohort; NaN where no other party has the record."""
    predicted = np.concatenate(
        [me.recall(f"{training.tag}: predictions {part}") for part in range(len(row_chunks(me.facts.n)))]
    )
    presence = presence_of(me)
    others = [presence[party] for party in training.parties if party != me.name and training.inputs.get(party)]
    predicted[~np.logical_or.reduce([*others, np.zeros(me.facts.n, dtype=bool)])] = np.nan
    return predicted


# --- steps: meeting -----------------------------------------------------------------------------------------------


MEETING = Unbounded(
    "presence",
    "which records this party has, to the other parties; how many of these each lacks, to the coordinator",
    audience="the data parties, coordinator",
)


@step(cost=MEETING)
def meet(me: Party, *, members: list[str], masking: Masking, networks: bool) -> Release:
    """Tell the others which records are here, and with CKKS one's public key."""
    if networks:
        try:
            networks_ready()
        except RunError as error:  # before anything is told
            raise StepFailed(str(error)) from error
    others = [member for member in members if member != me.name]
    for other in others:
        me.send(other, "presence", np.packbits(me.present))
    public = make_key(me, others) if masking == "ckks" else None
    return Release(public, "a public key; presence travels sealed to the other parties")


@step(cost=Free("nothing leaves: what the others sent is kept"))
def settle(me: Party, *, members: list[str], masking: Masking) -> Release:
    """Keep what the others sent."""
    received = {**me.received("presence"), me.name: np.packbits(me.present)}
    absent = [member for member in members if not isinstance(received.get(member), np.ndarray)]
    if absent:
        raise UnsafeRequest(f"{', '.join(absent)} did not say which records they have; ask `meet` of all first.")
    me.keep(PRESENCE, {member: received[member] for member in members})
    if masking == "ckks":
        keep_keys(me, members)
    return Release(None, "nothing")


# --- steps: the training of a regression --------------------------------------------------------------------------


def start_cost(training: Training, public: Public, *shown: Cost) -> Cost:
    """What is shown when a training starts, and the weights of private training."""
    costs = [*shown, *(weights_costs(training, public) if training.mu else [])]
    return compose(costs) if costs else Free("nothing leaves")


def vectors_cost(training: Training, also: str = "") -> Cost:
    """Of a sender's hidden vectors."""
    made = "what is made of them, gradients, losses and errors over hidden records, to the others and the coordinator"
    shown = f"sums of hidden vectors by record ({made}), to {training.active!r}"
    return Unbounded(TRAINING, f"{shown}{also}", audience=f"{training.active}, the other parties, coordinator")


GRADIENTS = Unbounded(
    TRAINING,
    "gradients by record to the other parties; losses and an error over hidden records to the coordinator",
    audience="the other parties, coordinator",
)


def _start_cost(public: Public, *, training: dict[str, Any], **_: Any) -> Cost:
    described = Regression.from_dict(training)
    leads = public.party == described.active
    shown = [Unbounded("presence", "how many records the training uses")] if leads else []
    return start_cost(described, public, *shown)


@step(cost=_start_cost)
def start(me: Party, *, training: dict[str, Any], key: int | None = None) -> Release:
    return RegressionSession.start(me, Regression.from_dict(training), key)


def _vectors_cost(public: Public, *, training: dict[str, Any], **_: Any) -> Cost:
    return vectors_cost(Regression.from_dict(training))


@step(cost=_vectors_cost)
def follow(me: Party, *, training: dict[str, Any], number: int, better: bool) -> Release:
    session = RegressionSession.resume(me, Regression.from_dict(training))
    return session.follow(me, number=number, better=better)


@step(cost=GRADIENTS)
def lead(me: Party, *, training: dict[str, Any], number: int, total: Any, better: bool) -> Release:
    session = RegressionSession.resume(me, Regression.from_dict(training))
    return session.lead(me, number=number, total=total, better=better)


@step(cost=_vectors_cost)
def hand_over(me: Party, *, training: dict[str, Any], part: int, better: bool) -> Release:
    """The parts of one chunk of the cohort, by the best state."""
    described = Regression.from_dict(training)
    session = RegressionSession.resume(me, described)
    session.settle_look(me, better)
    once(me, f"{described.tag}: chunk {part}")
    if part == 0 and session.number and me.received(f"{described.tag}: gradients {session.number - 1}"):
        session.take_gradients(me)  # of the last round, if no look came after it
        session.number += 1
        session.commit(me)
    rows = np.arange(*row_chunks(me.facts.n)[part], dtype=np.int32)
    parts = np.asarray(session.model.outputs_of(session.best_state(me), session.data, rows))
    value = described.exchange.hide(me, parts, described.rounds + 1 + part)
    return Release({"parts": value}, f"hidden vectors that only {described.active!r} can open, summed over the senders")


@step(cost=GRADIENTS)
def take_over(me: Party, *, training: dict[str, Any], part: int, total: Any, better: bool) -> Release:
    """What the network says about the active party's columns for one chunk of the cohort; it stays here."""
    described = Regression.from_dict(training)
    session = RegressionSession.resume(me, described)
    session.settle_look(me, better)
    rows = np.arange(*row_chunks(me.facts.n)[part], dtype=np.int32)
    opened = described.exchange.reveal(me, total, size=rows.size * described.cut, number=described.rounds + 1 + part)
    others = opened.reshape(-1, described.cut)
    predicted = session.model.predict(session.best_state(me), session.data, rows, others)
    me.keep(f"{described.tag}: predictions {part}", np.asarray(predicted, dtype=np.float32))
    return Release(None, "nothing: the predictions stay here")
