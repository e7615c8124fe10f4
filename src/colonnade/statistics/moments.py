"""Counts, sums and Gram matrices over all parties' columns: one secure computation, noise once, no trusted party.

With `presence="known"` there is one Gram matrix per presence pattern. Patterns are disjoint, so a record is in one
of them and the whole set costs what one Gram matrix costs. Together they are the sufficient statistics of a
Gaussian when data are missing at random. With `presence="secret"` the mask itself is shared like data and one Gram
matrix of (mask, values) gives all available-case moments. With `presence="ignore"` an absent block is zeros.
The proofs are in `moments.claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, BadPrivacyParameter, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Phase, Plan, phase
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.accounting import check_delta, check_epsilon
from colonnade.privacy.cost import Cost, Free, Relation, Unbounded, compose
from colonnade.privacy.skellam import Skellam, calibrate_mu, delta_1_bound
from colonnade.secure.bgw import cross, gram, open_product
from colonnade.secure.field import Field, Residues
from colonnade.statistics.features import Feature, design, features
from colonnade.statistics.joint import View, colluders, deal, deal_noise, dealt, field_for, join, once
from colonnade.statistics.quantize import integer_bounds, quantize

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

Presence = Literal["known", "secret", "ignore"]
MAXIMUM_ENTRIES = 1 << 22
"""Entries opened in one round; a larger job runs in several rounds, within bounded memory."""


# --- what everybody computes alike from public facts ------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """Rows `rows` x columns `columns` of one pattern's Gram matrix; on the diagonal only the upper triangle."""

    pattern: int
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def diagonal(self) -> bool:
        return self.rows == self.columns

    @property
    def size(self) -> int:
        height, width = self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]
        return height * (height + 1) // 2 if self.diagonal else height * width


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The public shape of a job: features, patterns, bounds, noise. A party checks its data against nothing else."""

    facts: PublicFacts
    roster: Roster
    names: tuple[str, ...] | None
    presence: Presence
    gamma: int
    clip: Mapping[str, float] = field(default_factory=dict)
    constant: bool = True
    patterns: tuple[tuple[bool, ...], ...] | None = None
    mu: int = 0
    block: int = 2048
    label: str = "moments"
    """Names the computation within its job: its phases, its mail and its joint release."""

    @classmethod
    def from_dict(cls, facts: PublicFacts, roster: Roster, plain: Mapping[str, Any]) -> Layout:
        """The layout that a request describes, checked before anything depends on it."""
        try:
            made = cls(
                facts=facts,
                roster=roster,
                names=None if plain["names"] is None else tuple(plain["names"]),
                presence=plain["presence"],
                gamma=plain["gamma"],
                clip=dict(plain["clip"]),
                constant=plain["constant"],
                patterns=None
                if plain["patterns"] is None
                else tuple(tuple(bool(one) for one in pattern) for pattern in plain["patterns"]),
                mu=plain["mu"],
                block=plain["block"],
                label=str(plain["label"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadArguments(f"the layout of a moments request cannot be read ({error}).") from error
        made.check()
        return made

    def to_dict(self) -> dict[str, Any]:
        return {
            "names": None if self.names is None else list(self.names),
            "presence": self.presence,
            "gamma": self.gamma,
            "clip": dict(self.clip),
            "constant": self.constant,
            "patterns": None if self.patterns is None else [list(one) for one in self.patterns],
            "mu": self.mu,
            "block": self.block,
            "label": self.label,
        }

    def check(self) -> None:
        whole = all(
            isinstance(value, int) and not isinstance(value, bool) for value in (self.gamma, self.mu, self.block)
        )
        if not whole or not 1 <= self.gamma <= 2**26 or not 0 <= self.mu <= 2**90 or self.block < 1:
            raise BadArguments("gamma must be a whole number from 1 to 2^26, mu from 0 to 2^90, block at least 1.")
        if self.presence not in ("known", "secret", "ignore"):
            raise BadArguments(f"presence must be 'known', 'secret' or 'ignore', not {self.presence!r}.")
        if not self.features:
            raise BadArguments("moments need at least one column; name some with columns=.")
        for party, bound in self.clip.items():
            if party not in self.parties or not (isinstance(bound, (int, float)) and 0 < bound < math.inf):
                raise BadPrivacyParameter(
                    f"clip must give a positive norm for parties that take part, not {self.clip!r}."
                )
        if self.patterns is not None and (
            self.presence != "known"
            or len(set(self.patterns)) != len(self.patterns)
            or any(len(one) != len(self.parties) or not any(one) for one in self.patterns)
        ):
            raise BadArguments("patterns must be distinct, non-empty rows of one bool a party, with presence='known'.")

    @cached_property
    def features(self) -> list[Feature]:
        return features(self.facts, self.names)

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """The data parties whose columns take part."""
        return tuple(dict.fromkeys(feature.party for feature in self.features))

    @cached_property
    def masks(self) -> list[tuple[bool, ...]]:
        """The candidate patterns: declared, or every non-empty one; a single one unless presence is known."""
        if self.presence != "known":
            return [(True,) * len(self.parties)]
        if self.patterns is not None:
            return list(self.patterns)
        return [one for one in itertools.product((False, True), repeat=len(self.parties)) if any(one)]

    def width(self, party: str) -> int:
        """Columns that a party shares: its features, and its mask where presence is secret."""
        own = sum(feature.party == party for feature in self.features)
        return own + (1 if self.presence == "secret" else 0)

    def entries(self, mask: tuple[bool, ...]) -> list[str]:
        """The names of a pattern's rows and columns, in order."""
        shown = ["1"] if self.constant and self.presence != "secret" else []
        for here, party in zip(mask, self.parties, strict=True):
            if here:
                shown += [f"present at {party}"] if self.presence == "secret" else []
                shown += [feature.name for feature in self.features if feature.party == party]
        return shown

    def bound(self, party: str) -> float:
        """The declared norm of a party's features: no clipping unless `clip` asks for it."""
        return self.clip.get(party, math.sqrt(sum(feature.party == party for feature in self.features)))

    @cached_property
    def delta_2(self) -> float:
        """L2 sensitivity, in integers, of all upper triangles together when one record becomes nothing.

        z is the record's extended row. ||upper(z z')||^2 = (|z|^4 + sum z_i^4) / 2 <= (c^4 + B^2 c^2) / 2 with
        c^2 >= |z|^2 and B >= |z_i|. Where the constant is public (presence ignored) its square does not change and
        its products add A^2 |x|^2.
        """
        one = self.gamma
        rows = sum(integer_bounds(self.gamma, self.bound(party), 1.0)[0] for party in self.parties)
        if self.presence == "ignore":
            return math.sqrt((rows**2 + one**2 * rows) / 2 + (one**2 * rows if self.constant else 0))
        masks = len(self.parties) if self.presence == "secret" else 1
        square = rows + masks * one**2
        return math.sqrt((square**2 + one**2 * square) / 2)

    @property
    def replace_factor(self) -> float:
        """<upper(zz'), upper(ww')> = ((z.w)^2 + sum z_i^2 w_i^2) / 2 >= 0, so replacing costs sqrt(2). Products with a
        public constant are linear in the row: there the triangle inequality is all there is."""
        return 2.0 if self.presence == "ignore" and self.constant else math.sqrt(2)

    @cached_property
    def delta_1(self) -> float:
        largest = max(len(self.entries(mask)) for mask in self.masks)
        return delta_1_bound(self.delta_2, largest * (largest + 1) // 2)

    @cached_property
    def field(self) -> Field:
        """Holds every entry: at most n gamma^2 (all entries of a row are at most gamma), with all noise."""
        return field_for(self.facts.n * self.gamma**2, self.mu, self.roster)

    @cached_property
    def rounds(self) -> list[list[Tile]]:
        """Tiles grouped into openings of bounded size."""
        groups: list[list[Tile]] = [[]]
        for tile in self._tiles():
            if groups[-1] and sum(one.size for one in groups[-1]) + tile.size > MAXIMUM_ENTRIES:
                groups.append([])
            groups[-1].append(tile)
        return groups

    def _tiles(self) -> Iterator[Tile]:
        for number, mask in enumerate(self.masks):
            width = len(self.entries(mask))
            cuts = [(low, min(low + self.block, width)) for low in range(0, width, self.block)]
            for first, rows in enumerate(cuts):
                for columns in cuts[first:]:
                    yield Tile(number, rows, columns)

    def size(self, number: int) -> int:
        return sum(tile.size for tile in self.rounds[number])

    def cost(self, public: Public, view: View) -> Cost:
        """The one joint release of this job, at a data party."""
        joint = f"{public.job} {self.label}"
        release = Unbounded("exact-moments", "exact counts, sums and products of the columns", joint=joint)
        if self.mu:
            release = self._noisy(joint, view)
        if self.presence != "known":
            return release
        mask = Unbounded(
            "presence", "which pseudonymous records a party has, to the share holders", audience="share holders"
        )
        return compose([release, mask])

    def _noisy(self, joint: str, view: View) -> Cost:
        return Skellam(
            self.mu,
            delta_1=self.delta_1,
            delta_2=self.delta_2,
            parties=len(self.roster.names),
            colluders=colluders(self.roster, view),
            replace_factor=self.replace_factor,
            joint=joint,
        )


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

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
            if check_delta(self.delta) == 0:
                raise BadPrivacyParameter("Skellam noise has no pure bound; choose a delta above 0, below 1/n.")
        if self.view not in ("client", "server"):
            raise BadArguments(f"view must be 'client' or 'server', not {self.view!r}.")

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
        )
        silent.check()
        if self.epsilon is None:
            return silent
        mu = calibrate_mu(
            epsilon=self.epsilon,
            delta=self.delta,
            delta_1=silent.delta_1,
            delta_2=silent.delta_2,
            parties=len(roster.names),
            colluders=colluders(roster, self.view),
            relation=self.relation,
            replace_factor=silent.replace_factor,
        )
        return replace(silent, mu=mu)

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        layout = self.layout(facts, roster)
        return Plan(
            method=self.name,
            options=self.options(),
            phases=tuple(moment_phases(layout, self.view)),
            notes=moment_notes(layout, self.view),
            delta=self.delta,
        )

    def execute(self, job: Job) -> Moments:
        return compute_moments(job, self.layout(job.facts, job.roster), self.view)


def moment_phases(layout: Layout, view: View) -> list[Phase]:
    """The phases of one computation of moments; other methods put them into their own plans."""
    here: dict[str, Any] = {"facts": layout.facts, "roster": layout.roster}
    arguments = {"layout": layout.to_dict(), "view": view}
    extra = len(layout.rounds) - 1
    primes = len(layout.field.primes)
    shares = 4 * primes * layout.facts.n * max(layout.width(party) for party in layout.parties)
    noise = 4 * primes * layout.size(0)
    phases = [
        phase(
            f"{layout.label}: share rows",
            share_rows,
            {member: [arguments] for member in layout.roster.names},
            audience="share holders (sealed; any t of them learn nothing)",
            discloses="secret shares of quantised rows and of noise"
            + ("; the presence mask to the holders" if layout.presence == "known" else ""),
            reply_bytes=len(layout.roster.committee) * (shares + noise),
            **here,
        ),
        phase(
            f"{layout.label}: open",
            open_moments,
            {
                holder: [{**arguments, "number": number} for number in range(len(layout.rounds))]
                for holder in layout.roster.committee
            },
            discloses="shares of the noisy counts, sums and products, which the coordinator joins",
            reply_bytes=noise,
            **here,
        ),
    ]
    if extra:
        phases.append(
            phase(
                f"{layout.label}: share noise",
                share_noise,
                {m: [{**arguments, "number": 1 + one} for one in range(extra)] for m in layout.roster.names},
                audience="share holders (sealed)",
                discloses="secret shares of noise",
                reply_bytes=len(layout.roster.committee) * noise,
                **here,
            )
        )
    return phases


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


def compute_moments(job: Job, layout: Layout, view: View) -> Moments:
    """Share, open, join: the result is exact integers plus noise, rescaled."""
    arguments: dict[str, Any] = {"layout": layout.to_dict(), "view": view}
    job.ask(share_rows, phase=f"{layout.label}: share rows", **arguments)
    opened: dict[Tile, NDArray[Any]] = {}
    for number, tiles in enumerate(layout.rounds):
        if number:
            job.ask(share_noise, phase=f"{layout.label}: share noise", number=number, **arguments)
        shares = job.ask(open_moments, phase=f"{layout.label}: open", number=number, **arguments)
        joined = join(shares, layout.field, layout.roster)
        start = 0
        for tile in tiles:
            opened[tile] = joined[start : start + tile.size]
            start += tile.size
    grams = []
    for number, mask in enumerate(layout.masks):
        width = len(layout.entries(mask))
        whole = np.zeros((width, width))
        for tile, values in opened.items():
            if tile.pattern == number:
                _place(whole, tile, values.astype(np.float64))
        grams.append(whole / layout.gamma**2)
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


def _place(whole: NDArray[np.float64], tile: Tile, values: NDArray[np.float64]) -> None:
    rows, columns = slice(*tile.rows), slice(*tile.columns)
    if not tile.diagonal:
        square = values.reshape(tile.rows[1] - tile.rows[0], -1)
        whole[rows, columns], whole[columns, rows] = square, square.T
        return
    size = tile.rows[1] - tile.rows[0]
    square = np.zeros((size, size))
    square[np.triu_indices(size)] = values
    whole[rows, columns] = square + np.triu(square, 1).T


@dataclass(frozen=True, kw_only=True)
class Moments:
    """One Gram matrix per pattern, over `entries[pattern]`; "1" is the constant, so its row has count and sums.

    Features are in [-1, 1]; `features` says how to return to a column's own units. `noise_sd` is the standard
    deviation of the noise on one entry (0 if exact), independent between entries of the upper triangles.
    """

    n: int
    parties: tuple[str, ...]
    presence: Presence
    features: tuple[Feature, ...]
    patterns: tuple[tuple[bool, ...], ...]
    entries: tuple[tuple[str, ...], ...]
    grams: tuple[NDArray[np.float64], ...]
    noise_sd: float
    simulated: bool

    @property
    def counts(self) -> NDArray[np.float64]:
        """Noisy number of records in each pattern (where a constant was computed)."""
        return np.array([gram[0, 0] for gram in self.grams])

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "moments",
                "n": self.n,
                "parties": list(self.parties),
                "presence": self.presence,
                "patterns": [list(one) for one in self.patterns],
                "entries": [list(one) for one in self.entries],
                "grams": [one.tolist() for one in self.grams],
                "noise_sd": self.noise_sd,
                "simulated": self.simulated,
            },
        )


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
        rows = quantize(
            design(me, known.features),
            gamma=known.gamma,
            clip=known.bound(me.name),
            entry=1.0,
            randomness=me.randomness,
        )
        if known.presence == "secret":
            rows = np.concatenate([known.gamma * me.present[:, None].astype(np.int64), rows], axis=1)
        deal(me, f"{known.label}: rows", known.field, rows)
        if known.presence == "known":
            for holder in me.roster.committee:
                me.send(holder, f"{known.label}: mask", np.packbits(me.present))
    deal_noise(me, f"{known.label}: noise 0", known.field, mu=known.mu, size=known.size(0))
    return Release(None, "nothing: the shares travel sealed")


def _noise_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    return Free("secret shares of noise; no data")


@step(cost=_noise_cost)
def share_noise(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    known = _layout(me, layout)
    if not 1 <= number < len(known.rounds):
        raise UnsafeRequest(f"this job has no opening {number}.")
    deal_noise(me, f"{known.label}: noise {number}", known.field, mu=known.mu, size=known.size(number))
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
    rows, mask = _rows(me, known, number)
    noise = dealt(me, f"{known.label}: noise {number}", me.roster.names, known.field)
    out = np.empty((len(known.field.primes), known.size(number)), dtype=np.int32)
    start = 0
    for pattern, tiles in itertools.groupby(known.rounds[number], key=lambda tile: tile.pattern):
        columns = _pattern_columns(known, rows, mask, pattern)
        for tile in tiles:
            left = columns[:, :, slice(*tile.rows)]
            product = (
                gram(known.field, left).upper()
                if tile.diagonal
                else cross(known.field, left, columns[:, :, slice(*tile.columns)])
            )
            part = slice(start, start + tile.size)
            shaped = {member: one[:, part].reshape(-1, *product.shape) for member, one in noise.items()}
            opened = open_product(product, noise=shaped, parties=me.roster.names)
            out[:, part] = opened.reshape(len(known.field.primes), -1)
            start += tile.size
    return Release(out, "a share of noisy counts, sums and products")


def _rows(me: Party, known: Layout, number: int) -> tuple[dict[str, Residues], dict[str, NDArray[np.bool_]]]:
    """The dealt rows and masks: from the mail of the first opening, kept for the later ones."""
    if number:
        return me.recall(f"{known.label}: rows"), me.recall(f"{known.label}: mask")
    rows = dealt(me, f"{known.label}: rows", known.parties, known.field)
    for party in known.parties:
        if rows[party].shape[1:] != (known.facts.n, known.width(party)):
            raise UnsafeRequest(f"{party!r} shared rows of another shape than the layout says.")
    mask: dict[str, NDArray[np.bool_]] = {}
    if known.presence == "known":
        got = me.received(f"{known.label}: mask")
        for party in known.parties:
            mask[party] = np.unpackbits(np.asarray(got[party], dtype=np.uint8), count=known.facts.n).astype(bool)
    if len(known.rounds) > 1:
        me.keep(f"{known.label}: rows", rows)
        me.keep(f"{known.label}: mask", mask)
    return rows, mask


def _pattern_columns(
    known: Layout, rows: Mapping[str, Residues], mask: Mapping[str, NDArray[np.bool_]], pattern: int
) -> Residues:
    """The holder's shares of one pattern's records: the constant (public, so its own share) and all present blocks."""
    here = known.masks[pattern]
    shown = [party for present, party in zip(here, known.parties, strict=True) if present]
    chosen = np.arange(known.facts.n)
    if known.presence == "known":
        wanted = dict(zip(known.parties, here, strict=True))
        match = np.all([mask[party] == wanted[party] for party in known.parties], axis=0)
        chosen = np.flatnonzero(match)
    parts = []
    if known.constant and known.presence != "secret":
        one = known.field.encode(np.array([[known.gamma]]))
        parts.append(np.broadcast_to(one, (one.shape[0], len(chosen), 1)))
    parts += [rows[party] if len(chosen) == known.facts.n else rows[party][:, chosen] for party in shown]
    return np.ascontiguousarray(np.concatenate(parts, axis=2))
