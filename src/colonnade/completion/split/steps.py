"""What parties do while a split network trains: meet, start, then rounds of `follow` (senders) and `lead` (active).

    senders   take the gradients of the last round, make their iterations, send the parts for the next batches
    coordinator  adds what the senders sent; it cannot read it
    active    opens the sum, makes its iterations, sends gradients back, sealed; tells the coordinator its losses

`hand_over` and `take_over` apply the trained network to the whole cohort in the same way. `claim.md` says who learns
what.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from colonnade.completion.split import networks
from colonnade.completion.quality import rmse
from colonnade.completion.split import exchange, private
from colonnade.completion.split.exchange import Protect
from colonnade.completion.split.session import PRESENCE, VALUES, Live, begin, commit, expect, live, presence_of
from colonnade.completion.split.training import Training, row_chunks
from colonnade.errors import UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Free, Unbounded, compose
from colonnade.statistics.joint import once

TRAINING = "split-training"


def _training(plain: dict[str, Any]) -> Training:
    return Training.from_dict(plain)


# --- meeting ------------------------------------------------------------------------------------------------------


def _meet_cost(public: Public, *, members: list[str], protect: Protect) -> Cost:
    return Unbounded("presence", "which records this party has, to the other parties", audience="the data parties")


@step(cost=_meet_cost)
def meet(me: Party, *, members: list[str], protect: Protect) -> Release:
    """Tell the others which records are here, and with CKKS one's public key."""
    others = [member for member in members if member != me.name]
    for other in others:
        me.send(other, "presence", np.packbits(me.present))
    public = exchange.make_key(me, others) if protect == "ckks" else None
    return Release(public, "a public key; presence travels sealed to the other parties")


def _settle_cost(public: Public, *, members: list[str], protect: Protect) -> Cost:
    return Free("nothing leaves: what the others sent is kept")


@step(cost=_settle_cost)
def settle(me: Party, *, members: list[str], protect: Protect) -> Release:
    """Keep what the others sent."""
    got = me.received("presence")
    absent = [member for member in members if member != me.name and not isinstance(got.get(member), np.ndarray)]
    if absent:
        raise UnsafeRequest(f"{', '.join(absent)} did not say which records they have; ask `meet` of all first.")
    told = {member: np.packbits(me.present) if member == me.name else got[member] for member in members}
    me.keep(PRESENCE, told)
    if protect == "ckks":
        exchange.keep_keys(me, members)
    return Release(None, "nothing")


# --- a training ---------------------------------------------------------------------------------------------------


def _start_cost(public: Public, *, training: dict[str, Any], key: int | None = None) -> Cost:
    known = _training(training)
    costs: list[Cost] = []
    if known.gan and public.party != known.active:
        costs.append(
            Unbounded("presence", f"which of this party's cells are there, to {known.active!r}", audience=known.active)
        )
    if not known.gan and public.party == known.active:
        costs.append(Unbounded("presence", "how many records the training uses"))
    if known.mu:
        costs.append(private.cost(known, public))
    return compose(costs) if costs else Free("nothing leaves")


@step(cost=_start_cost)
def start(me: Party, *, training: dict[str, Any], key: int | None = None) -> Release:
    """Fresh weights. A GAN's active party learns which entries are observed: its discriminator is taught that."""
    known = _training(training)
    once(me, known.tag)
    if key is not None and not me.randomness.simulated:
        raise UnsafeRequest("only a simulation may choose a party's first weights; others draw them here.")
    base = networks.words_of(key) if key is not None else np.frombuffer(me.randomness.bytes(16), dtype=np.uint32)
    if known.gan and me.name == known.active:
        got = me.received(f"{known.tag}: masks")
        me.keep(f"{known.tag}: masks", {sender: got[sender] for sender in known.senders})
    one = begin(me, known, base=base)
    if known.gan and me.name != known.active:
        me.send(known.active, f"{known.tag}: masks", np.packbits(np.asarray(one.data.mask)))
    me.keep(f"{known.tag}: key", base)
    commit(me, one)
    return Release({"rows": len(one.rows)} if me.name == known.active else None, "the number of records used")


def _follow_cost(public: Public, *, training: dict[str, Any], number: int, watch: bool, better: bool) -> Cost:
    known = _training(training)
    return Unbounded(
        TRAINING,
        f"sums of hidden vectors by record, to {known.active!r}"
        + ("; an error over hidden records" if known.gan else ""),
        audience=known.active,
    )


@step(cost=_follow_cost)
def follow(me: Party, *, training: dict[str, Any], number: int, watch: bool, better: bool) -> Release:
    """Iterate along the gradients of the last round, then send the parts for this one.

    `watch` adds the records that are hidden from training; `better` says that the last look was the best so far.
    """
    known = _training(training)
    one = live(me, known)
    expect(one, number)
    _along(me, one)
    _settle_look(me, one, better)
    value: dict[str, Any] = {}
    parts = np.zeros(0, dtype=np.float32)
    if not _over(known, number):
        rows = known.batches(one.rows, number)
        parts = np.asarray(one.model.partials(one.state, one.data, rows, *one.draws(number))).reshape(-1)
    if watch and known.gan:
        value["error"] = look(me, one)
    elif watch:
        seen = one.model.outputs_of(one.state, one.data, jnp.asarray(one.watched))
        parts = np.concatenate([parts, np.asarray(seen).reshape(-1)])
        me.keep(f"{known.tag}: looked", networks.flat(one.state))
    one.number = number + 1
    commit(me, one)
    value["parts"] = exchange.hide(
        me, parts, protect=known.protect, opener=known.active, senders=known.senders, label=known.tag, number=number
    )
    return Release(value, f"hidden vectors that only {known.active!r} can open, summed over the senders")


def _over(known: Training, number: int) -> bool:
    """After the last round there may be one more look."""
    return number >= known.rounds


def _along(me: Party, one: Live) -> None:
    """The iterations of the last round, if its gradients have come."""
    known = one.training
    if one.number == 0:
        return
    last = one.number - 1
    slopes = exchange.take_back(
        me,
        opener=known.active,
        size=known.losses * known.round_size,
        protect=known.protect,
        tag=f"{known.tag}: gradients {last}",
    )
    if slopes is None:
        raise UnsafeRequest(f"the gradients of round {last} of {known.label!r} have not come; ask `lead` first.")
    shape = (known.local, known.losses, known.batch, known.cut)
    backward = slopes.reshape(shape) / np.float32(known.batch)
    rows = known.batches(one.rows, last)
    if known.mu:
        one.state = private.follow(me, one, rows, backward, *one.draws(last))
    else:
        one.state = one.model.follow(one.state, one.data, rows, backward, *one.draws(last))


def _settle_look(me: Party, one: Live, better: bool) -> None:
    """What was looked at last becomes the best so far. Private training takes its last weights: a choice by the error
    on hidden records would say something about these, and no noise covers that."""
    name = f"{one.training.tag}: looked"
    if better and not one.training.mu and me.kept(name):
        me.keep(f"{one.training.tag}: best", me.recall(name))


def look(me: Party, one: Live) -> float | None:
    """RMSE of a generator on the records that are hidden from it; its best state is kept here. None without any."""
    if not one.watched.size:
        return None
    found = gan_values(one, one.watched)
    error = rmse(found, one.truth[one.watched])
    if not math.isfinite(error):
        return None
    name = f"{one.training.tag}: least"
    if one.training.mu:
        return error  # told, and nothing more: a choice by it would be a release that no noise covers
    if not me.kept(name) or error < float(me.recall(name)):
        me.keep(name, error)
        me.keep(f"{one.training.tag}: best", networks.flat(one.state))
    return error


def gan_values(one: Live, rows: NDArray[np.int64], state: Any = None) -> NDArray[np.float32]:
    """What the generator says about some rows."""
    draw = networks.drawing(one.base, VALUES)
    found: NDArray[np.float32] = one.model.impute(one.state if state is None else state, one.data, rows, draw)
    return found


def _lead_cost(public: Public, *, training: dict[str, Any], number: int, total: Any, watch: bool, better: bool) -> Cost:
    return Unbounded(
        TRAINING,
        "gradients by record to the other parties; losses and an error over hidden records to the coordinator",
        audience="the other parties, coordinator",
    )


@step(cost=_lead_cost)
def lead(me: Party, *, training: dict[str, Any], number: int, total: Any, watch: bool, better: bool) -> Release:
    """Open the sum, iterate, send gradients back."""
    known = _training(training)
    one = live(me, known)
    if me.name != known.active:
        raise UnsafeRequest(f"{me.name!r} does not lead {known.label!r}.")
    expect(one, number)
    _settle_look(me, one, better)
    extra = one.watched.size if watch and not known.gan else 0
    trained = 0 if _over(known, number) else known.round_size
    size = trained + extra * known.cut
    if known.senders:
        opened = exchange.reveal(
            me, total, size=size, protect=known.protect, senders=known.senders, label=known.tag, number=number
        )
    else:
        opened = np.zeros(size, dtype=np.float32)
    error: float | None = None
    if watch:
        error = look(me, one) if known.gan else _error(me, one, opened[trained:].reshape(-1, known.cut))
    one.number = number + 1
    if not trained:
        commit(me, one)
        return Release({"losses": [], "sound": True, "error": error}, "the error over hidden records")
    others = opened[:trained].reshape(known.local, known.batch, known.cut)
    rows = known.batches(one.rows, number)
    if known.mu:
        one.state, slopes, losses = private.lead(me, one, rows, others, *one.draws(number))
    else:
        one.state, slopes, losses = one.model.lead(one.state, one.data, rows, others, *one.draws(number))
    commit(me, one)
    exchange.send_back(
        me,
        np.asarray(slopes, dtype=np.float32)[:, : known.losses].reshape(-1) * np.float32(known.batch),
        protect=known.protect,
        senders=known.senders,
        tag=f"{known.tag}: gradients {number}",
    )
    each = np.asarray(losses, dtype=np.float64).reshape(known.local, -1).mean(axis=0)
    sound = bool(np.isfinite(each).all() and np.abs(opened).max(initial=0.0) < exchange.BOUND / 2)
    value = {"losses": np.nan_to_num(each).tolist(), "sound": sound, "error": error}
    return Release(value, "losses of this round, and the error over hidden records")


def _error(me: Party, one: Live, others: NDArray[np.float32]) -> float | None:
    """RMSE over the records that are hidden from training, before this round's iterations."""
    if not one.watched.size:
        return None
    me.keep(f"{one.training.tag}: looked", networks.flat(one.state))
    found = np.asarray(one.model.predict(one.state, one.data, jnp.asarray(one.watched), jnp.asarray(others)))
    error = rmse(found, one.truth[one.watched])
    return error if math.isfinite(error) else None


# --- the trained network on the whole cohort ----------------------------------------------------------------------


def _hand_over_cost(public: Public, *, training: dict[str, Any], part: int, better: bool) -> Cost:
    known = _training(training)
    return Unbounded(TRAINING, f"sums of hidden vectors by record, to {known.active!r}", audience=known.active)


@step(cost=_hand_over_cost)
def hand_over(me: Party, *, training: dict[str, Any], part: int, better: bool) -> Release:
    """The parts of one chunk of the cohort, by the best state."""
    known = _training(training)
    one = live(me, known)
    _settle_look(me, one, better)
    number = known.rounds + 1 + part
    once(me, f"{known.tag}: chunk {part}")
    if part == 0 and one.number and me.received(f"{known.tag}: gradients {one.number - 1}"):
        _along(me, one)  # of the last round, if no look came after it
        one.number += 1
        commit(me, one)
    begin_, end = row_chunks(me.facts.n)[part]
    state = best_state(me, one)
    parts = np.asarray(one.model.outputs_of(state, one.data, jnp.arange(begin_, end))).reshape(-1)
    value = exchange.hide(
        me, parts, protect=known.protect, opener=known.active, senders=known.senders, label=known.tag, number=number
    )
    return Release({"parts": value}, f"hidden vectors that only {known.active!r} can open, summed over the senders")


def best_state(me: Party, one: Live) -> Any:
    """The state that a look has found best, or the last one if nobody looked."""
    name = f"{one.training.tag}: best"
    return one.restore(me.recall(name)) if me.kept(name) else one.state


@step(cost=_lead_cost)
def take_over(me: Party, *, training: dict[str, Any], number: int, total: Any, watch: bool, better: bool) -> Release:
    """What the network says about the active party's columns for one chunk of the cohort; it stays here."""
    known = _training(training)
    one = live(me, known)
    _settle_look(me, one, better)
    begin_, end = row_chunks(me.facts.n)[number]
    size = (end - begin_) * known.cut
    opened = exchange.reveal(
        me,
        total,
        size=size,
        protect=known.protect,
        senders=known.senders,
        label=known.tag,
        number=known.rounds + 1 + number,
    )
    state = best_state(me, one)
    rest = jnp.asarray(opened.reshape(-1, known.cut))
    found = np.asarray(one.model.predict(state, one.data, jnp.arange(begin_, end), rest), dtype=np.float32)
    me.keep(f"{known.tag}: predictions {number}", found)
    return Release(None, "nothing: the predictions stay here")


def predictions(me: Party, training: Training) -> NDArray[np.float32]:
    """What `take_over` kept, for the whole cohort; NaN where no other party has the record."""
    found = np.concatenate(
        [me.recall(f"{training.tag}: predictions {part}") for part in range(len(row_chunks(me.facts.n)))]
    )
    presence = presence_of(me)
    reached = np.logical_or.reduce(
        [presence[party] for party in training.parties if party != me.name and training.inputs.get(party)]
        + [np.zeros(me.facts.n, dtype=bool)]
    )
    found[~reached] = np.nan
    return found
