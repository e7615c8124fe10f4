"""A vertical imputation GAN as a split training: its public description, a party's session and steps, its rounds.

`gain.py` has the network. The active party has the top discriminator; it learns which cells of the others are there,
because its discriminator is taught that. `completion.split` has what all split trainings share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.completion.layout import Layout
from colonnade.completion.quality import rmse
from colonnade.completion.split.exchange import Floats
from colonnade.completion.split.rounds import Rounds
from colonnade.completion.split.session import (
    GRADIENTS,
    ROUNDS,
    VALUES,
    Session,
    column_means,
    own_matrix,
    predictions,
    presence_of,
    start_cost,
    vectors_cost,
)
from colonnade.completion.split.training import Presence, Regression, Training, drawing, words_of
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, Step, step
from colonnade.privacy.cost import Cost, Free, Unbounded

if TYPE_CHECKING:
    from colonnade.papers.fedpsg.gain import Gain

Kind = Literal["gain", "vgain", "cgain"]

GENERATED = "generated"
"""Under this name a party keeps the columns that were drawn first (cohort x width, NaN elsewhere)."""
CONTEXT, LABELS = "context of the generator", "labels"


# --- the public description ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GanTraining(Training):
    """One training of a GAN, on every row of the cohort.

    given : {party: columns that were drawn before}, which count as observed.
    context : {party that is completed: numbers a record that condition its generator}.
    predicted : these begin with predictions of the party's own entries.
    alpha, hint, hide : the weight of the reconstruction, the share of entries that are hinted, and that of a completed
        party's blocks that are hidden from its generator.
    """

    losses: ClassVar[int] = 2

    kind: Kind
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    context: Mapping[str, int] = field(default_factory=dict)
    predicted: bool = False
    alpha: float = 100.0
    hint: float = 0.9
    hide: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.hint <= 1 or not 0 <= self.hide < 1:
            raise BadArguments("hint and hide of a training are shares between 0 and 1.")

    @property
    def gradients(self) -> int:
        """Those of both losses, if a sender has a generator too."""
        return 2 if any(sender in self.context for sender in self.senders) else 1

    def weights(self, facts: PublicFacts, party: str) -> int:
        return self.network(facts, party).weights

    def training_rows(self, presence: Presence) -> NDArray[np.int64]:
        return np.arange(len(presence[self.active]))

    def network(self, facts: PublicFacts, party: str) -> Gain:
        """One party's part; its shape is public."""
        from colonnade.papers.fedpsg.gain import Gain  # jax is an extra

        layouts = {member: self.layout(facts, member) for member in self.parties}
        own = layouts[party]
        given, first = list[int](), 0
        for member, layout in layouts.items():
            given += [first + int(place) for place in layout.places(self.given.get(member, ()))]
            first += layout.width
        return Gain(
            kind=self.kind,
            widths=tuple(layout.width for layout in layouts.values()),
            place=self.parties.index(party),
            active=party == self.active,
            groups=tuple((place.start, place.stop) for name, place in own.slices.items() if name in own.one_hot),
            context=self.context.get(party, 0),
            hidden=self.hidden,
            cut=self.cut,
            learning_rate=self.learning_rate,
            alpha=self.alpha,
            hint=self.hint,
            hide=tuple(self.hide if member in self.context else 0.0 for member in self.parties),
            given=tuple(given),
            fills=party in self.context,
            predicted=self.predicted,
            dropout=self.dropout,
        )


# --- a party's session --------------------------------------------------------------------------------------------


class GanSession(Session):
    """Of a `GanTraining`: a bottom discriminator everywhere, a generator where records are completed."""

    @classmethod
    def fresh(cls, me: Party, training: GanTraining, presence: Presence, base: NDArray[np.uint32]) -> Self:
        from colonnade.papers.fedpsg.gain import Data  # jax is an extra

        layout = training.layout(me.facts, me.name)
        truth = own_matrix(me, layout)
        watched = training.hidden_rows(me.name, presence)
        if me.name not in training.context:
            watched = watched[:0]  # this party lacks nothing
        seen = truth.copy()
        seen[watched] = np.nan
        given = training.given.get(me.name, ())
        if given:
            places = layout.places(given)
            drawn = np.asarray(me.recall(GENERATED), dtype=np.float32)[:, places]
            seen[:, places] = np.where(np.isnan(seen[:, places]), drawn, seen[:, places])
        mask = ~np.isnan(seen)
        model = training.network(me.facts, me.name)
        masks = np.zeros((me.facts.n, 0), dtype=bool)
        if me.name == training.active:
            every = {**_masks(me, training, model.widths), me.name: mask}
            masks = np.concatenate([every[party] for party in training.parties], axis=1)
        context = me.recall(CONTEXT) if model.context else np.zeros((me.facts.n, 0))
        data = Data.of(np.nan_to_num(seen), mask, np.asarray(context, dtype=np.float32), masks)
        return cls(training, model, data, training.training_rows(presence), watched, truth, base, model.init(base))

    def introduce(self, me: Party) -> None:
        if me.name != self.training.active:
            me.send(self.training.active, f"{self.training.tag}: masks", np.packbits(np.asarray(self.data.mask)))

    def draws(self, number: int) -> tuple[Any, ...]:
        """The common bits of all parties, and this party's own."""
        training = self.training
        public = drawing(words_of(training.seed), ROUNDS, number)
        return self.model.common(public, training.local, training.batch), *super().draws(number)

    @property
    def looked_at(self) -> int:
        return 0

    def look_sending(self, me: Party) -> tuple[Floats, dict[str, Any]]:
        return np.zeros(0, dtype=np.float32), {"error": self.look(me)}

    def look_leading(self, me: Party, others: Floats) -> float | None:
        return self.look(me)

    def look(self, me: Party) -> float | None:
        """RMSE of the generator on the records that are hidden from it; its best state is kept here. None without
        any."""
        if not self.watched.size:
            return None
        error = rmse(self.values(self.watched, self.state), self.truth[self.watched])
        if not math.isfinite(error):
            return None
        name = f"{self.training.tag}: least"
        if self.training.mu:
            return error  # told, and nothing more: a choice by it would be a release that no noise covers
        if not me.kept(name) or error < float(me.recall(name)):
            me.keep(name, error)
            me.keep(f"{self.training.tag}: best", self.flat(self.state))
        return error

    def values(self, rows: NDArray[np.int64], state: Any) -> Floats:
        """What the generator says about some rows."""
        values: Floats = self.model.impute(state, self.data, rows, drawing(self.base, VALUES))
        return values


def _masks(me: Party, training: GanTraining, widths: tuple[int, ...]) -> dict[str, NDArray[np.bool_]]:
    """Which cells the others have, as they sent it when the training started."""
    name = f"{training.tag}: masks"
    if not me.kept(name):
        received = me.received(name)
        me.keep(name, {sender: received[sender] for sender in training.senders})
    shapes = {party: (me.facts.n, width) for party, width in zip(training.parties, widths, strict=True)}
    return {
        party: np.unpackbits(bits, count=math.prod(shapes[party])).astype(bool).reshape(shapes[party])
        for party, bits in me.recall(name).items()
    }


# --- the parties' steps -------------------------------------------------------------------------------------------


def _start_cost(public: Public, *, training: dict[str, Any], **_: Any) -> Cost:
    described = GanTraining.from_dict(training)
    shown = f"which of this party's cells are there, to {described.active!r}"
    masks = [Unbounded("presence", shown, audience=described.active)] if public.party != described.active else []
    return start_cost(described, public, *masks)


@step(cost=_start_cost)
def start(me: Party, *, training: dict[str, Any], key: int | None = None) -> Release:
    return GanSession.start(me, GanTraining.from_dict(training), key)


def _follow_cost(public: Public, *, training: dict[str, Any], **_: Any) -> Cost:
    return vectors_cost(GanTraining.from_dict(training), "; an error over hidden records")


@step(cost=_follow_cost)
def follow(me: Party, *, training: dict[str, Any], number: int, better: bool) -> Release:
    session = GanSession.resume(me, GanTraining.from_dict(training))
    return session.follow(me, number=number, better=better)


@step(cost=GRADIENTS)
def lead(me: Party, *, training: dict[str, Any], number: int, total: Any, better: bool) -> Release:
    session = GanSession.resume(me, GanTraining.from_dict(training))
    return session.lead(me, number=number, total=total, better=better)


class GanRounds(Rounds):
    """The coordinator's side."""

    start_step: ClassVar[Step] = start
    follow_step: ClassVar[Step] = follow
    lead_step: ClassVar[Step] = lead


@step(cost=Unbounded("labels", "the label of every record, to the other parties", audience="the data parties"))
def share_labels(me: Party, *, label: str, members: list[str]) -> Release:
    """Send the label as indicators to the other parties, sealed."""
    indicators = np.nan_to_num(own_matrix(me, Layout(me.facts.columns[me.name].select([label]))))
    for member in members:
        me.send(member, "labels", indicators)
    return Release(None, "nothing: labels travel sealed to the other parties")


@step(cost=Free("nothing leaves"))
def keep_labels(me: Party, *, label: str) -> Release:
    """Keep the labels that were sent."""
    me.keep(LABELS, me.received("labels")[me.facts.owner(label)])
    return Release(None, "nothing")


@step(cost=Free("nothing leaves"))
def keep_context(me: Party, *, training: dict[str, Any] | None, labels: bool) -> Release:
    """What conditions this party's generator: predictions of a regression across the parties, and labels."""
    parts = []
    if training is not None:
        described = Regression.from_dict(training)
        predicted = predictions(me, described)
        seen = own_matrix(me, Layout(me.facts.columns[me.name]))
        seen[described.hidden_rows(me.name, presence_of(me))] = np.nan
        # Where no other party has the record the means are expected. They are not private.
        usual = np.full(predicted.shape[1], 0.5) if described.mu else column_means(seen)
        parts.append(np.where(np.isnan(predicted), usual, predicted))
    if labels:
        parts.append(me.recall(LABELS))
    me.keep(CONTEXT, np.concatenate(parts, axis=1).astype(np.float32))
    return Release(None, "nothing")
