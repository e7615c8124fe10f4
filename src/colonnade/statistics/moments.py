"""Counts, sums and Gram matrices over all parties' columns: one secure computation, noise once, no trusted party.

With `presence="known"` there is one Gram matrix per presence pattern. Patterns are disjoint, so a record is in one
of them and the whole set costs what one Gram matrix costs. Together they are the sufficient statistics of a
Gaussian when data are missing at random. With `presence="secret"` the mask itself is shared like data and one Gram
matrix of (mask, values) gives all available-case moments. With `presence="ignore"` an absent block is zeros.
The proofs are in `moments.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.party import Party
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.federation.stage import SEALED, Stage, stage
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Free, Relation
from colonnade.privacy.skellam import calibrate_mu
from colonnade.secure.bgw import open_product
from colonnade.secure.seeded import whole
from colonnade.statistics.cohort_rows import CohortRows
from colonnade.statistics.dealing import deal_noise, deal_rows, held, messages, whole_holders
from colonnade.statistics.features import design_chunks
from colonnade.statistics.joint import View, check_budget, check_view, colluders, join, once
from colonnade.statistics.moment_layout import MAXIMUM_ENTRIES, Layout, Presence, Tile, within_memory
from colonnade.statistics.moment_products import masks_of, products_of
from colonnade.statistics.moment_result import Moments as Moments
from colonnade.statistics.quantize import quantize

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

_calibrated = lru_cache(maxsize=16)(calibrate_mu)  # once for the plan, and again when it is executed

# --- the coordinator's procedure --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PatternMoments:
    """Noisy counts, sums and Gram matrices.

    Parameters
    ----------
    epsilon, delta : a person's total. `epsilon=None` computes exactly, which is an unbounded release that every party
        must allow by name ("exact-moments").
    columns : which columns; all by default. Features are scaled to [-1, 1] (see `statistics.features`).
    presence : "known", "secret" or "ignore" (see the module). "known" shows the mask over pseudonymous rows to the
        share holders: allow "presence".
    gamma : the scale of quantisation; rounding adds less error than the noise from about 2^10.
    clip : {party: norm} below the default sqrt(number of its features): less noise, some bias.
    constant : whether counts and sums are computed too (as products with 1).
    patterns : candidate patterns, if fewer than all; a record of another pattern is left out.
    view, relation : what the noise is calibrated for; see `docs/threat-model.md`.
    block : the width of the tiles in which the matrix is computed.
    memory : the most memory, in MB, that the coordinator or a party may use; it decides the tiles and how many entries
        one round opens. Less memory takes more rounds. Refused in the plan if the job cannot be done with it.

    Returns
    -------
    `fit(federation)` gives moments by pattern, with `noise_sd`, the noise of one entry.

    Example
    -------
    >>> moments = co.PatternMoments(epsilon=2.0, columns=("capital", "roa"), presence="secret").fit(federation)
    >>> moments.noise_sd > 0
    True
    """

    name: ClassVar[str] = "moments"

    epsilon: float | None = 1.0
    delta: float = 1e-6
    columns: tuple[str, ...] | None = None
    presence: Presence = "known"
    gamma: int = 2**12
    clip: Mapping[str, float] = field(default_factory=dict)
    constant: bool = True
    patterns: tuple[tuple[bool, ...], ...] | None = None
    view: View = "client"
    relation: Relation = "zero-out"
    block: int = 2048
    memory: int | None = None

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        check_view(self.view)

    def options(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "columns": None if self.columns is None else list(self.columns),
            "presence": self.presence,
            "gamma": self.gamma,
            "clip": dict(self.clip),
            "constant": self.constant,
            "patterns": None if self.patterns is None else [list(one) for one in self.patterns],
            "view": self.view,
            "relation": self.relation,
            "block": self.block,
            "memory": self.memory,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        columns, patterns = options["columns"], options["patterns"]
        return cls(
            **{
                **options,
                "columns": None if columns is None else tuple(columns),
                "patterns": None if patterns is None else tuple(tuple(one) for one in patterns),
            }
        )

    def fit(self, federation: Federation) -> Moments:
        """Run it; the run folder is in `federation.runs`."""
        return federation.run(self)[0]  # type: ignore[no-any-return]

    def layout(self, facts: PublicFacts, roster: Roster) -> Layout:
        """The public shape, with the noise that (epsilon, delta) needs."""
        roster.require_committee()
        silent = Layout(
            facts=facts,
            roster=roster,
            names=self.columns,
            presence=self.presence,
            gamma=self.gamma,
            clip=self.clip,
            constant=self.constant,
            patterns=self.patterns,
            block=self.block,
            opening=MAXIMUM_ENTRIES,
        )
        silent.check()
        if self.epsilon is None:
            return self._sized(silent)
        mu = _calibrated(
            epsilon=self.epsilon,
            delta=self.delta,
            delta_1=silent.delta_1,
            delta_2=silent.delta_2,
            parties=len(roster.names),
            colluders=colluders(roster, self.view),
            relation=self.relation,
            replace_factor=silent.replace_factor,
            dimension=silent.dimension,
        )
        return self._sized(replace(silent, mu=mu))

    def _sized(self, layout: Layout) -> Layout:
        return layout if self.memory is None else within_memory(layout, self.memory)

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        layout = self.layout(facts, roster)
        return Plan(
            method=self.name,
            options=self.options(),
            stages=tuple(moment_phases(layout, self.view)),
            notes=moment_notes(layout, self.view),
            delta=self.delta,
        )

    def execute(self, job: Job) -> Moments:
        return compute_moments(job, self.layout(job.facts, job.roster), self.view)


class MomentComputation(Procedure[Moments]):
    """One computation of moments: share rows, open, join. Other methods put its stages into their own plans."""

    def __init__(self, layout: Layout, view: View) -> None:
        self.layout, self.view = layout, view
        facts, roster = layout.facts, layout.roster
        arguments: dict[str, Any] = {"layout": layout.to_dict(), "view": view}
        largest = max(layout.size(number) for number in range(len(layout.rounds)))
        degree = roster.threshold
        start, stop = layout.chunks[0]
        shares = max(
            len(whole_holders(roster, party, degree)) * layout.packed_bytes(stop - start, layout.width(party))
            for party in layout.parties
        )
        noise = max(len(whole_holders(roster, member, 2 * degree)) for member in roster.names)
        noise *= layout.packed_bytes(largest, 1)

        def numbered(first: int, last: int) -> list[dict[str, Any]]:
            return [{**arguments, "number": number} for number in range(first, last)]

        self.share = stage(
            f"{layout.label}: share rows",
            share_rows,
            dict.fromkeys(roster.names, [arguments]),
            facts=facts,
            roster=roster,
            audience=SEALED,
            discloses="secret shares of quantised rows and of noise"
            + ("; the presence mask to the holders" if layout.presence == "known" else ""),
            reply_bytes=shares + noise,
        )
        self.share_more = stage(
            f"{layout.label}: share more rows",
            share_more_rows,
            dict.fromkeys(roster.names, numbered(1, len(layout.chunks))),
            facts=facts,
            roster=roster,
            audience=SEALED,
            discloses="secret shares of quantised rows",
            reply_bytes=shares,
        )
        self.open = stage(
            f"{layout.label}: open",
            open_moments,
            dict.fromkeys(roster.committee, numbered(0, len(layout.rounds))),
            facts=facts,
            roster=roster,
            discloses="shares of the noisy counts, sums and products, which the coordinator joins",
            reply_bytes=4 * len(layout.field.primes) * largest,
        )
        self.add_noise = stage(
            f"{layout.label}: share noise",
            share_noise,
            dict.fromkeys(roster.names, numbered(1, len(layout.rounds))),
            facts=facts,
            roster=roster,
            audience="share holders (sealed)",
            discloses="secret shares of noise",
            reply_bytes=noise,
        )
        self.stages = tuple(one for one in (self.share, self.share_more, self.open, self.add_noise) if one.costs)
        self.notes = moment_notes(layout, view)

    def run(self, job: Job) -> Moments:
        """The result is exact integers plus noise, rescaled."""
        layout = self.layout
        job.ask(self.share)
        for _ in range(1, len(layout.chunks)):
            job.ask(self.share_more)
        grams = [np.zeros((width, width)) for width in (len(layout.entries(mask)) for mask in layout.masks)]
        for number, tiles in enumerate(layout.rounds):
            if number:
                job.ask(self.add_noise)
            job.roll_call(layout.roster.committee)
            joined = join(job.ask(self.open), layout.field, layout.roster).astype(np.float64) / layout.gamma**2
            start = 0
            for tile in tiles:
                _place(grams[tile.pattern], tile, joined[start : start + tile.size])
                start += tile.size
        return Moments(
            n=layout.facts.n,
            parties=layout.parties,
            presence=layout.presence,
            features=tuple(layout.features),
            patterns=tuple(layout.masks),
            entries=tuple(tuple(layout.entries(mask)) for mask in layout.masks),
            grams=tuple(grams),
            noise_sd=math.sqrt(2 * layout.mu) / layout.gamma**2,
            simulated=job.simulated,
        )


def moment_phases(layout: Layout, view: View) -> list[Stage]:  # TRANSITION
    return list(MomentComputation(layout, view).stages)


def moment_notes(layout: Layout, view: View) -> tuple[str, ...]:
    if layout.mu == 0:
        return ("Exact: no noise is added, and no privacy is claimed for the result.",)
    sd = math.sqrt(2 * layout.mu) / layout.gamma**2
    return (
        f"Each entry of a Gram matrix carries noise with standard deviation {sd:.4g}"
        f" ({sd / layout.facts.n:.2g} of n = {layout.facts.n}).",
        f"Account: {view} view, {colluders(layout.roster, view)} of {len(layout.roster.names)} members collude;"
        f" {len(layout.field.primes)} primes of 21 bits.",
    )


def compute_moments(job: Job, layout: Layout, view: View) -> Moments:  # TRANSITION
    return MomentComputation(layout, view).run(job)


def _place(whole: NDArray[np.float64], tile: Tile, values: NDArray[np.float64]) -> None:
    rows, columns = slice(*tile.rows), slice(*tile.columns)
    if not tile.diagonal:
        square = values.reshape(tile.rows[1] - tile.rows[0], -1)
        whole[rows, columns], whole[columns, rows] = square, square.T
        return
    size = tile.rows[1] - tile.rows[0]
    upper = np.triu_indices(size)
    whole[rows, columns][upper] = values
    whole[rows, columns].T[upper] = values


# --- the members' steps -----------------------------------------------------------------------------------


def _layout(public: Public | Party, plain: Mapping[str, Any]) -> Layout:
    return Layout.from_dict(public.facts, public.roster, plain)


def _share_cost(public: Public, *, layout: dict[str, Any], view: View) -> Cost:
    known = _layout(public, layout)
    if public.party not in known.parties:
        return Free("this member shares noise, and no data")
    return known.cost(public, view)


@step(cost=_share_cost)
def share_rows(me: Party, *, layout: dict[str, Any], view: View) -> Release:
    """Quantise, clip in integers, share. Every member also shares its noise for the first opening."""
    known = _layout(me, layout)
    if me.name in known.parties:
        deal_rows(me, known.rows_tag(0), known.field, _quantised(me, known, 0))
        if known.presence == "known":
            for holder in me.roster.committee:
                me.send(holder, f"{known.tag}: mask", np.packbits(me.present))
    deal_noise(me, f"{known.tag}: noise 0", known.field, mu=known.mu, size=known.size(0))
    return Release(None, "nothing: the shares travel sealed")


def _more_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    """A holder opens nothing unless it has all chunks of every party."""
    return Free("more secret shares for a joint release that the first chunk has debited")


@step(cost=_more_cost)
def share_more_rows(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    """Share a later chunk of rows; a holder puts the one before away."""
    known = _layout(me, layout)
    if not 1 <= number < len(known.chunks):
        raise UnsafeRequest(f"this job has no chunk {number} of rows.")
    if me.name in me.roster.committee:
        messages(me, known.rows_tag(number - 1), known.parties, layers=len(known.field.primes), keep=True)
        if number == 1:
            masks_of(me, known, keep=True)
            messages(me, f"{known.tag}: noise 0", me.roster.names, layers=len(known.field.primes), keep=True)
    if me.name in known.parties:
        deal_rows(me, known.rows_tag(number), known.field, _quantised(me, known, number))
    return Release(None, "nothing: the shares travel sealed")


def _quantised(me: Party, known: Layout, number: int) -> NDArray[np.integer[Any]]:
    """This party's rows of one chunk of the cohort, in integers; a record that it lacks is a row of zeros."""
    secret = known.presence == "secret"

    def stream() -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        for at, features in design_chunks(me, known.features, scores=known.scores):
            rows = quantize(features, gamma=known.gamma, clip=known.bound(me.name), entry=1.0, randomness=me.randomness)
            yield at, np.insert(rows, 0, known.gamma, axis=1) if secret else rows

    wanted = CohortRows(
        label=f"{known.tag}: quantised",
        ranges=known.chunks,
        width=known.width(me.name),
        dtype=np.int16 if known.gamma < 2**15 else np.int32,
    )
    return wanted.range(me, number, stream)


def _noise_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    return Free("secret shares of noise; no data")


@step(cost=_noise_cost)
def share_noise(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    known = _layout(me, layout)
    if not 1 <= number < len(known.rounds):
        raise UnsafeRequest(f"this job has no opening {number}.")
    deal_noise(me, f"{known.tag}: noise {number}", known.field, mu=known.mu, size=known.size(number))
    return Release(None, "nothing: the shares travel sealed")


def _open_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    return Free("a share of a joint release that the data parties have debited")


@step(cost=_open_cost)
def open_moments(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    """This holder's share of one opening: products of its shares plus every member's noise."""
    known = _layout(me, layout)
    if not 0 <= number < len(known.rounds):
        raise UnsafeRequest(f"this job has no opening {number}.")
    once(me, f"{known.label} {number}")
    later = len(known.rounds) > 1
    products = products_of(me, known, number, keep=later)
    noise = held(me, f"{known.tag}: noise {number}", me.roster.names, known.field, lengths=(known.size(number),))
    added = {member: whole(one) for member, one in noise.items()}
    out = np.empty((len(known.field.primes), known.size(number)), dtype=np.int32)
    start = 0
    for tile in known.rounds[number]:
        product = products.pop(tile)
        product = product.upper() if tile.diagonal else product
        part = slice(start, start + tile.size)
        shaped = {member: one[:, part].reshape(-1, *product.shape) for member, one in added.items()}
        out[:, part] = open_product(product, noise=shaped, parties=me.roster.names).reshape(len(out), -1)
        start += tile.size
    return Release(out, "a share of noisy counts, sums and products")
