"""What a party has in memory while a split network trains: its data as arrays, its part of the network, its keys.

Everything here follows from the block and from what earlier steps kept, so that a party that was restarted makes it
again and goes on where the last committed round ended.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from colonnade.completion import networks
from colonnade.completion.layout import Layout, Matrix
from colonnade.completion.split import gain, regressor
from colonnade.completion.split.training import Training
from colonnade.errors import PartyLost, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.party import Party

COMPLETED = "completed matrix"
"""Under this name a party keeps its whole table, completed, as a matrix of all its columns (cohort x width)."""
PRESENCE = "presence of all"
ROUNDS, VALUES = 10, 11
"""What a generator is for: the rounds of a training, or the values of records that are filled in."""


def presence_of(me: Party) -> dict[str, NDArray[np.bool_]]:
    """Which records each party has, as the parties told each other."""
    packed: dict[str, Any] = me.recall(PRESENCE)
    return {party: np.unpackbits(one, count=me.facts.n).astype(bool) for party, one in packed.items()}


def own_matrix(me: Party, layout: Layout) -> Matrix:
    """This party's columns over the cohort; NaN where the record or the cell is missing."""
    if not layout.width:
        return np.zeros((me.facts.n, 0), dtype=np.float32)
    return layout.encode({name: me.column(name) for name in layout.columns})


def context_name(training: Training) -> str:
    return f"context of {training.label}"


@dataclass
class Live:
    """One party's side of one training. `number` rounds are done."""

    training: Training
    model: Any
    data: Any
    rows: NDArray[np.int64]
    watched: NDArray[np.int64]
    truth: NDArray[np.float32]
    base: NDArray[np.uint32]
    state: Any = None
    number: int = 0
    restore: Any = field(default=None, repr=False)

    def draws(self, number: int) -> tuple[Any, ...]:
        """What is random in the iterations of a round: a GAN's common bits, and this party's own."""
        known = self.training
        own = self.model.draws(networks.drawing(self.base, ROUNDS, number), known.local, known.batch)
        if not known.gan:
            return (own,)
        public = networks.drawing(networks.words_of(known.seed), ROUNDS, number)
        return self.model.common(public, known.local, known.batch), own


_alive: weakref.WeakKeyDictionary[Party, dict[str, Live]] = weakref.WeakKeyDictionary()


def live(me: Party, training: Training) -> Live:
    """As of the last committed round. A copy: a step that fails halfway must leave no trace of its iterations, which
    would else be made twice, along the same gradients."""
    tag = f"{me.job} {training.tag}"
    number = int(me.recall(f"{training.tag}: number"))
    found = _alive.setdefault(me, {}).get(tag)
    if found is None or found.number != number:
        found = begin(me, training, base=np.array(me.recall(f"{training.tag}: key")))
        found.state = found.restore(me.recall(f"{training.tag}: state"))
        found.number = number
        _remember(me, tag, found)
    return replace(found)


def _remember(me: Party, tag: str, made: Live) -> None:
    each = _alive.setdefault(me, {})
    for other in [one for one in each if not one.startswith(f"{me.job} ")]:
        del each[other]  # of an earlier job
    each[tag] = made


def commit(me: Party, one: Live) -> None:
    """Keep the state with this step's reply. Its number goes up with each state that is kept, so that one which was
    never written to the disk is known by it."""
    me.keep(f"{one.training.tag}: state", networks.flat(one.state))
    me.keep(f"{one.training.tag}: number", one.number)
    _remember(me, f"{me.job} {one.training.tag}", one)


def expect(one: Live, number: int) -> None:
    """A round happens once, in order: its pads must not serve twice."""
    if number != one.number:
        raise UnsafeRequest(f"round {number} of {one.training.label!r} was asked for, and {one.number} is next.")


def begin(me: Party, training: Training, *, base: NDArray[np.uint32]) -> Live:
    """Data, network and fresh weights, drawn from the key `base`."""
    if me.name not in training.parties:
        raise UnsafeRequest(f"{me.name!r} takes no part in {training.label!r}.")
    presence = presence_of(me)
    missing = [party for party in training.parties if party not in presence]
    if missing:
        raise PartyLost(f"{', '.join(missing)} did not say which records they have; start the job again.")
    made = _gan(me, training, presence, base) if training.gan else _regressor(me, training, presence, base)
    made.restore = networks.shaped(made.state)
    return made


# --- a regressor --------------------------------------------------------------------------------------------------


def _regressor(me: Party, training: Training, presence: dict[str, NDArray[np.bool_]], base: NDArray[np.uint32]) -> Live:
    layout = training.layout(me.facts, me.name)
    here = presence[me.name]
    matrix = own_matrix(me, layout)
    if training.rows == "completed" and me.kept(COMPLETED):
        whole = Layout(me.facts.columns[me.name])
        matrix = np.asarray(me.recall(COMPLETED))[:, whole.places(layout.columns)]
        here = np.asarray(~np.isnan(matrix).all(axis=1)) if layout.width else here
    x = features(matrix, layout, private=training.mu > 0)
    leads = me.name == training.active
    outputs = training.output_layout(me.facts)
    y = own_matrix(me, outputs) if leads else np.zeros((me.facts.n, 0), dtype=np.float32)
    rows = training.training_rows(presence)
    watched = training.hidden_rows(training.active, presence)
    if training.rows in ("complete", "completed"):
        watched = watched[np.logical_and.reduce([presence[party] for party in training.parties])[watched]]
    known = ~np.isnan(y)
    model = regressor.Regressor(
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
        means = np.full(outputs.width, 0.5, dtype=np.float32) if training.mu else _means(y[rows])
    data = regressor.Data(jnp.asarray(x), jnp.asarray(here), jnp.asarray(np.nan_to_num(y)), jnp.asarray(known))
    state = model.init(base, training.rate, training.iterations, means)
    return Live(training, model, data, rows, watched, y, base, state)


def _means(y: NDArray[np.float32]) -> NDArray[np.float32]:
    known = ~np.isnan(y)
    return np.asarray(np.nan_to_num(y).sum(axis=0) / np.maximum(known.sum(axis=0), 1), dtype=np.float32)


def features(matrix: Matrix, layout: Layout, *, private: bool) -> NDArray[np.float32]:
    """What enters a bottom: numbers as standard scores and as ranks (a long tail hides the middle of a min-max scale),
    indicators as they are, and whether a cell is there where it may be empty. These scales never leave the party.

    Private training may not look at the data outside its noisy sums: it takes the declared scale alone.
    """
    known = ~np.isnan(matrix)
    parts: list[NDArray[np.floating[Any]]] = []
    for name, column in layout.columns.items():
        at = layout.slices[name]
        values, there = matrix[:, at].astype(np.float64), known[:, at]
        if private or not layout.numeric_mask[at.start]:
            parts.append(np.where(there, 2 * np.nan_to_num(values) - 1, 0.0))
        elif there.any():
            seen = values[there]
            scores = np.clip((values - seen.mean()) / max(float(seen.std()), 1e-6), -4.0, 4.0)
            levels, counts = np.unique(seen, return_counts=True)
            middle = (np.cumsum(counts) - counts / 2) / seen.size
            ranks = np.interp(np.nan_to_num(values), levels, 3.4 * middle - 1.7)
            parts += [np.where(there, np.nan_to_num(scores), 0.0), np.where(there, ranks, 0.0)]
        else:
            parts += [np.zeros_like(values), np.zeros_like(values)]
        if column.missing:
            parts.append(there[:, :1].astype(np.float64))
    if not parts:
        return np.zeros((len(matrix), 0), dtype=np.float32)
    return np.concatenate(parts, axis=1).astype(np.float32)


# --- a GAN --------------------------------------------------------------------------------------------------------


def _gan(me: Party, training: Training, presence: dict[str, NDArray[np.bool_]], base: NDArray[np.uint32]) -> Live:
    layout = training.layout(me.facts, me.name)
    truth = own_matrix(me, layout)
    seen = truth.copy()
    watched = training.hidden_rows(me.name, presence)
    if training.context.get(me.name) is None:
        watched = watched[:0]  # this party lacks nothing
    seen[watched] = np.nan
    given = training.given.get(me.name, ())
    if given:
        made = np.asarray(me.recall(f"generated by {training.label}"), dtype=np.float32)
        places = layout.places(given)
        empty = np.isnan(seen[:, places])
        seen[:, places] = np.where(empty, made[:, places], seen[:, places])
    mask = ~np.isnan(seen)
    model = gain_of(training, me.facts, me.name)
    masks = np.zeros((me.facts.n, 0), dtype=bool)
    if me.name == training.active:
        each = {**_masks(me, training, model.widths), me.name: mask}
        masks = np.concatenate([each[party] for party in training.parties], axis=1)
    context = (
        np.asarray(me.recall(context_name(training)), dtype=np.float32)
        if model.context
        else np.zeros((me.facts.n, 0), dtype=np.float32)
    )
    data = gain.Data(jnp.asarray(np.nan_to_num(seen)), jnp.asarray(mask), jnp.asarray(context), jnp.asarray(masks))
    state = model.init(base)
    return Live(training, model, data, training.training_rows(presence), watched, truth, base, state)


def gain_of(training: Training, facts: PublicFacts, party: str) -> gain.Gain:
    """One party's part of a GAN; its shape is public."""
    layouts = {one: training.layout(facts, one) for one in training.parties}
    layout = layouts[party]
    given, first = list[int](), 0
    for one, each in layouts.items():
        given += [first + int(place) for place in each.places(training.given.get(one, ()))]
        first += each.width
    return gain.Gain(
        kind=training.network,  # type: ignore[arg-type]
        widths=tuple(one.width for one in layouts.values()),
        place=training.parties.index(party),
        active=party == training.active,
        groups=tuple((at.start, at.stop) for name, at in layout.slices.items() if name in layout.one_hot),
        context=training.context.get(party, 0),
        hidden=training.hidden,
        cut=training.cut,
        rate=training.rate,
        alpha=training.alpha,
        hint=training.hint,
        hide=tuple(training.hide if one in training.context else 0.0 for one in training.parties),
        given=tuple(given),
        fills=party in training.context,
        told=training.told,
        dropout=training.dropout,
    )


def _masks(me: Party, training: Training, widths: tuple[int, ...]) -> dict[str, NDArray[np.bool_]]:
    packed: dict[str, Any] = me.recall(f"{training.tag}: masks")
    shapes = dict(zip(training.parties, widths, strict=True))
    return {
        party: np.unpackbits(one, count=me.facts.n * shapes[party]).astype(bool).reshape(me.facts.n, shapes[party])
        for party, one in packed.items()
    }
