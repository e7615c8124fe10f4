"""Joint statistics: the public shape of a release that several parties make together, and the steps that make it.

Data parties share integer rows to the committee; **every** member of the roster shares its part of the noise; each
holder computes on its shares, adds all noise, and lets its share of the result go once; the coordinator joins the
shares (`statistics.shares`). The roster decides who holds, who adds noise and how many may collude; a request cannot.

`JointStatistic` is what all of them have in common: a dataclass of the public options, with a codec, a tag that binds
all mail to the whole layout, a field, a cost and a calibration; a subclass says how far one record moves the result
(`sensitivity`). A `SharedStatistic` also says what a member shares and what a holder computes, and has its steps here:
the four steps below serve every kind, and the `kind` in a request finds the class in this party's own installation.
Fields that follow from earlier releases of the job (weights, tables) come beside the layout, as `chosen`; they are
part of the tag like all others.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import convert, hints_of, plain
from colonnade.durable import canonical
from colonnade.errors import BadArguments, BadPrivacyParameter, RosterError, UnsafeRequest
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.options import Verification, View
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import SEALED, Later, Stage, stage
from colonnade.federation.step import Public, Release, Step, step
from colonnade.federation.workplace import MOST_REMEMBERED
from colonnade.privacy.accounting import check_delta, check_epsilon, guarantee
from colonnade.privacy.calibration import Calibration, SkellamMus
from colonnade.privacy.cost import Cost, Free, Relation, Unbounded
from colonnade.privacy.skellam import Skellam
from colonnade.privacy.skellam_sampler import largest_draw
from colonnade.secure.bgw import Product, open_product
from colonnade.secure.claims import Factors
from colonnade.secure.extension import Extension
from colonnade.secure.field import Field, Residues, primes_for
from colonnade.secure.seeded import materialize
from colonnade.secure.sizes import Sizes
from colonnade.statistics.shares import (
    blinds_of,
    deal_large,
    deal_large_noise,
    dealt_large,
    join,
    joined_noise,
    messages,
    require_agreement,
    require_holder,
    state_dealing,
    state_taken,
    take_dealings,
    unblinded,
)

if TYPE_CHECKING:
    from colonnade.statistics.pair import Paired

# --- budgets and colluders --------------------------------------------------------------------------------


def check_budget(epsilon: float | None, delta: float) -> None:
    """A record's total under Skellam noise; without an epsilon a statistic is exact."""
    if epsilon is not None:
        check_epsilon(epsilon)
        if check_delta(delta) == 0:
            raise BadPrivacyParameter("Skellam noise has no pure bound; choose a delta above 0, below 1/n.")


def colluders(roster: Roster, view: View) -> int:
    """Members whose noise is assumed to be known where results are: those of the roster's colluding organisations, or,
    if only the coordinator sees results, those that its own organisation runs."""
    if view == "server":
        return len(roster.beside_coordinator)
    if roster.pooled >= len(roster.names):
        raise RosterError(
            f"{roster.colluders} colluding organisations run all {len(roster.names)} members, so no noise protects"
            " against them; add a member of another organisation (a holder without data will do)."
        )
    return roster.pooled


def account_notes(
    roster: Roster, *, view: View, delta: float, releases: Callable[[int], Sequence[Cost]]
) -> tuple[str, ...]:
    """A record's total under both views and both relations, for a plan; `releases(colluders)` are its costs."""
    notes = []
    for shown in get_args(View):
        pooled = colluders(roster, shown)
        costs = releases(pooled)
        totals = ", ".join(str(guarantee(costs, delta=delta, relation=relation)) for relation in get_args(Relation))
        accounted = "accounted" if shown == view else "for comparison"
        notes.append(
            f"{shown.capitalize()} view ({accounted}): {pooled} of {len(roster.names)} members collude; {totals}."
        )
    return tuple(notes)


# --- what binds members to one layout ---------------------------------------------------------------------


def field_for(largest: int, mu: int, roster: Roster) -> Field:
    """The field that holds every result of size `largest` with all members' noise: a job that could wrap has none."""
    members = len(roster.names)
    noise = members * largest_draw(Fraction(mu, members)) if mu else 0
    return Field(primes_for((largest + noise).bit_length()))


def binding(label: str, layout: Mapping[str, Any]) -> str:
    """A prefix for mail that names the whole public layout, not only its label.

    A member that was asked with another layout (less noise, say) deals under another tag. Holders then miss its
    noise, and nothing opens.
    """
    return f"{label} {hashlib.sha256(canonical(layout).encode()).hexdigest()[:32]}"


def once(me: Party, what: str) -> None:
    """Refuse a second opening of the same thing in one job: two openings with fresh noise would average it away."""
    name = f"opened: {what}"
    if me.kept(name):
        raise UnsafeRequest(f"{what} was opened before in job {me.job}; an opening happens once.")
    me.keep(name, True)


# --- the public shape -------------------------------------------------------------------------------------

_kinds: dict[str, type[RequestLayout]] = {}


@dataclass(frozen=True, kw_only=True)
class RequestLayout(ABC):
    """What a request describes. Everyone computes the rest alike from public facts, the pinned roster and these
    options; a party checks its data and its mail against nothing else."""

    kind: ClassVar[str]
    """Its name in requests."""

    facts: PublicFacts
    roster: Roster

    def __init_subclass__(cls, **stated: Any) -> None:
        super().__init_subclass__(**stated)
        if "kind" in cls.__dict__:
            first = _kinds.setdefault(cls.kind, cls)
            if (first.__module__, first.__qualname__) != (cls.__module__, cls.__qualname__):
                raise BadArguments(f"{first.__module__} and {cls.__module__} both have a joint statistic {cls.kind!r}.")
            _kinds[cls.kind] = cls

    @abstractmethod
    def check(self) -> None:
        """Refuse a shape that cannot be computed, or whose noise would not protect as its cost says."""

    def to_dict(self) -> dict[str, Any]:
        """Its kind and all of its fields but the pinned ones; `from_dict` is its inverse."""
        return {"kind": self.kind} | {name: plain(getattr(self, name)) for name in _stated(type(self))}

    @classmethod
    def from_dict(cls, facts: PublicFacts, roster: Roster, layout: Mapping[str, Any]) -> Self:
        """What a request describes, checked before anything depends on it."""
        try:
            text = canonical(layout)
        except (TypeError, ValueError) as error:
            raise BadArguments(f"the layout of a request cannot be read ({error}).") from error
        statistic = _parsed(Same(facts), Same(roster), text)
        if not isinstance(statistic, cls):
            raise BadArguments(f"this step takes a layout of another kind than {statistic.kind!r}.")
        return statistic


@dataclass(frozen=True, kw_only=True)
class JointStatistic(RequestLayout):
    """The public shape of a joint release. `label` names the computation within its job: its stages, its mail and its
    joint releases."""

    exact: ClassVar[tuple[str, str]]
    """Without noise: the name under which a party must allow the release, and what it discloses."""

    label: str

    @property
    @abstractmethod
    def parties(self) -> tuple[str, ...]:
        """The data parties whose columns take part."""

    @property
    @abstractmethod
    def field(self) -> Field:
        """Holds every entry of the result with all noise."""

    # --- noise and cost -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def sensitivity(self) -> Mapping[str, Any]:
        """How far one record moves the result, as `Skellam` takes it: delta_1, delta_2, and what else is proved."""

    def release(self, mu: int, *, colluders: int, joint: str | None = None, **stated: Any) -> Cost:
        """One joint release with noise Sk(mu); without noise it has no bound. `stated` is what `Skellam` takes too."""
        if not mu:
            return Unbounded(*self.exact, joint=joint)
        members = len(self.roster.names)
        return Skellam(mu, parties=members, colluders=colluders, joint=joint, **self.sensitivity, **stated)

    def calibrated(
        self,
        *,
        epsilon: float,
        delta: float,
        view: View,
        relation: Relation = "zero-out",
        count: int = 1,
        **stated: Any,
    ) -> int:
        """The mu at which `count` releases cost at most (epsilon, delta)."""
        statistic = self.release(1, colluders=colluders(self.roster, view), **stated)
        budget = Calibration(
            {self.label: SkellamMus(statistic, count)}, epsilon=epsilon, delta=delta, relation=relation
        )
        return int(budget[self.label])

    @cached_property
    def tag(self) -> str:
        """Begins the tags of this computation's mail, and binds them to the whole layout."""
        return binding(self.label, self.to_dict())


@lru_cache(maxsize=64)
def _stated(kind: type[RequestLayout]) -> tuple[str, ...]:
    """The fields that a request states; facts and roster are pinned, and never stated."""
    return tuple(field.name for field in fields(kind) if field.name not in ("facts", "roster"))


class Same:
    """Equal to the very same object only, which it keeps alive: a pinned roster is compared quickly, and never with
    another one that is spelt alike."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@lru_cache(maxsize=32)
def _parsed(facts: Same, roster: Same, text: str) -> RequestLayout:
    """The layout that a canonical text states: a function of nothing else, so that it is parsed once a job."""
    layout = json.loads(text)
    kind = layout.pop("kind", None) if isinstance(layout, dict) else None
    cls = _kinds.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise BadArguments(f"this installation has no joint statistic {kind!r}; install the same version everywhere.")
    wanted = _stated(cls)
    for name in (*layout, *wanted):
        if name not in wanted or name not in layout:
            raise BadArguments(
                f"the layout of a {kind} request {'lacks' if name in wanted else 'has an unknown field'} {name!r}."
            )
    hints = hints_of(cls)
    stated = {
        name: convert(value, hints[name], f"{name} in a {kind} request", exact=True) for name, value in layout.items()
    }
    statistic = cls(facts=facts.value, roster=roster.value, **stated)
    statistic.check()
    return statistic


# --- statistics that the steps below compute --------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SharedStatistic(JointStatistic):
    """Rows are shared in chunks of the cohort, and the result is opened in rounds, of which each happens once."""

    rows: ClassVar[str]
    """What the parties share, in words."""
    adaptive: ClassVar[tuple[str, ...]] = ()
    """Fields that a request may choose from what was released before; all others are those of the plan."""
    squares: ClassVar[bool] = False
    """Whether all products in what the holders prove are squares; in what a data party proves they are."""
    proof_width: ClassVar[int | None] = None
    """Products in a row of the holders' proof (`secure.proof`), if not the usual: with many primes shorter rows take
    less time, and more traffic."""
    verify: Verification = False
    """Whether rows and openings are verified (`statistics.verified`): noise is dealt in parts, and holders keep all."""
    noise_with_rows: ClassVar[Literal["first", "each"]] = "first"
    """Noise goes along with the first chunk, for the first opening, or with each chunk, for its own opening."""

    @property
    @abstractmethod
    def results(self) -> str:
        """What is opened, in words."""

    @property
    @abstractmethod
    def chunks(self) -> Sequence[tuple[int, int]]:
        """The cohort's rows in ranges whose shares travel together."""

    @property
    @abstractmethod
    def openings(self) -> Sequence[int]:
        """How many entries each round opens."""

    @abstractmethod
    def cost(self, public: Public, view: View) -> Cost:
        """What a data party debits for all openings, or for the opening of each chunk if each carries its noise."""

    @abstractmethod
    def releases(self, colluders: int) -> list[Cost]:
        """What a record pays in all, if so many members know their noise."""

    def __post_init__(self) -> None:
        if self.roster.pair:  # there are no holders that could check each other
            object.__setattr__(self, "verify", False)

    @cached_property
    def paired(self) -> Paired:
        """The same statistic as parties compute it in pairs (`statistics.pair`)."""
        self.roster.require_committee(pair=False)
        raise UnsafeRequest(f"{self.kind} is not computed in pairs.")

    def noise_goes_along(self, number: int) -> bool:
        """Whether a chunk of rows carries noise, and so pays."""
        return number == 0 or self.noise_with_rows == "each"

    def with_chosen(self, **chosen: Any) -> Self:
        """The same shape with other values in fields that are `adaptive`, checked."""
        statistic = replace(self, **chosen)
        statistic.check()
        return statistic

    # --- what members do ----------------------------------------------------------------------------------

    @abstractmethod
    def share(self, me: Party, number: int) -> None:
        """Deal a data party's rows of one chunk."""

    @abstractmethod
    def share_noise(self, me: Party, number: int) -> None:
        """Deal a member's noise for one opening."""

    def put_away(self, me: Party, number: int) -> None:
        """Keep, as a holder, what this request's mail brought of a chunk, before the next one is dealt. Nothing, where
        a chunk is opened before the next one is dealt."""

    def multiply(self, me: Party, number: int, level: int) -> None:
        """Deal products of shared columns of one chunk again, as a holder; only statistics of degree 3 and more do."""
        raise UnsafeRequest(f"this computation has no level {level} of products.")

    def hold(self, me: Party, number: int) -> None:
        """Keep, as a holder, all that an opening is computed from, for the verification."""
        if number == 0:
            self.put_away(me, len(self.chunks) - 1)

    def remembers(self, size: int) -> bool:
        """Whether a holder may have so many bytes in memory from one request of a verification to the next."""
        return self.verify and not self.in_little_memory and size <= MOST_REMEMBERED * 3 // 4

    @property
    def in_little_memory(self) -> bool:
        """Whether the user has said how much memory there is."""
        return False

    def result_name(self, number: int) -> str:
        """Under which a holder keeps its share of an opening."""
        return f"{self.tag}: result {number}"

    def compared_name(self, number: int) -> str:
        """Names the comparison before an opening; the coins that are drawn with the last one verify all of them."""
        return f"{self.tag} {number}"

    @property
    def proven_openings(self) -> Sequence[int]:
        """The numbers of the openings that are proven together: all of them, unless the layout is of one only."""
        return range(len(self.openings))

    @property
    def proven_name(self) -> str:
        """Under which a holder that has found no lie keeps its shares of what each holder has proven to open."""
        return f"{self.tag}: proven"

    # --- what is verified (`statistics.verified`) ---------------------------------------------------------

    @property
    def claim_length(self) -> int:
        """Products in the one inner product to which a random combination of all openings comes down."""
        raise UnsafeRequest(f"{self.kind} is not verified.")

    def claimed_products(self, me: Party) -> int:
        """The same as a holder knows it, if it is fewer: all holders know alike who has which record."""
        return self.claim_length

    def opening_weights(self, extension: Extension, seed: bytes, number: int) -> Residues:
        """The weights of the entries of one opening in that combination."""
        raise UnsafeRequest(f"{self.kind} is not verified.")

    def claim_factors(self, me: Party, extension: Extension, seed: bytes) -> Iterator[Factors]:
        """A holder's shares of the two vectors of the inner product, in pieces."""
        raise UnsafeRequest(f"{self.kind} is not verified.")

    def claim_sums(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        """A holder's share of the part of the combination that is no product."""
        return extension.zeros()

    def claim_products(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        """A holder's shares of the part that each holder has dealt again, (primes, holders, 3)."""
        return extension.zeros((len(self.roster.committee),))

    @property
    def sums_length(self) -> int:
        """Elements that a holder deals after the first challenge, so that the claim becomes short: sums of products,
        weighted by this challenge, which the next one compresses again. 0: there is no need; a statistic that has them
        proves nothing about rows."""
        return 0

    def claim_matrices(self, me: Party, extension: Extension, seed: bytes) -> Product:
        """A holder's own sums of this kind, the coefficients of elements over K: (3, sums_length)."""
        raise UnsafeRequest(f"{self.kind} has no sums that are dealt for its proof.")

    def dealt_matrices(self, me: Party) -> Residues:
        """This holder's shares of the sums that each holder dealt, (primes, holders, sums_length, 3)."""
        elements: Residues = me.recall(f"{self.tag}: sums of each holder")
        return elements

    def second_challenge(self, me: Party) -> bytes:
        """The seed that was drawn when all of these sums were dealt."""
        return bytes(me.recall(f"{self.tag}: second challenge"))

    def noise_parts(self, me: Party, number: int) -> tuple[Residues, list[Residues]]:
        """A holder's shares of all members' noise for an opening, and of its blinds: of degree t each."""
        raise UnsafeRequest(f"{self.kind} is not verified.")

    def input_length(self, dealer: str) -> int:
        """Products in the proof that a party's rows are indicators; 0 if it proves nothing."""
        return 0

    def input_claims(
        self, me: Party, dealer: str, extension: Extension, seed: bytes, *, own: bool
    ) -> Iterator[tuple[Factors, Residues]]:
        """Pieces of the two vectors of that proof, each with its part of the right side: of the dealer's own values, or
        of a holder's shares of them."""
        raise UnsafeRequest(f"{self.kind} proves nothing about rows.")

    @property
    def proof_notes(self) -> tuple[str, ...]:
        """What a plan says of what is proven of the rows, where not all of it is."""
        return ()

    def sized_columns(self, dealer: str) -> tuple[int, ...]:
        """The largest entry of each column of a party's rows of which something is proven."""
        return ()

    def sized_blocks(self, me: Party, dealer: str, *, own: bool) -> Iterator[Residues]:
        """Blocks of these columns, (primes, records, columns): the dealer's own, or a holder's shares of them."""
        raise UnsafeRequest(f"{self.kind} proves nothing about rows.")

    def entry_sizes(self, dealer: str) -> Sizes | None:
        """How a party shows that what is proven of its rows modulo each prime is true of integers; with one prime it
        is."""
        return self._sizes[dealer]

    @cached_property
    def _sizes(self) -> dict[str, Sizes | None]:
        proven = self.verify and len(self.field.primes) > 1
        largest = {party: self.sized_columns(party) if proven else () for party in self.parties}
        return {
            party: Sizes(self.field, self.facts.n, columns) if columns else None for party, columns in largest.items()
        }

    @property
    def sizes_tag(self) -> str:
        """Of what a dealer deals to that end beside its rows; it keeps it under the same name."""
        return f"{self.tag}: sizes"

    def share_sizes(self, me: Party) -> None:
        shape = self.entry_sizes(me.name)
        if shape is not None:
            drawn = shape.draw(me.randomness)
            me.keep(self.sizes_tag, drawn)
            deal_large(me, self.sizes_tag, self.field, drawn)

    def take_mail(self, me: Party) -> None:
        """Check the mail that came with this request, and keep what is needed no sooner than in the verification."""
        take_dealings(me, self.mail_tags)
        if me.name in me.roster.committee and any(mail.tag.startswith(self.sizes_tag) for mail in me.mail):
            dealers = [party for party in self.parties if self.entry_sizes(party) is not None]
            messages(me, self.sizes_tag, dealers, layers=len(self.field.primes), keep=True)

    @property
    def mail_tags(self) -> tuple[str, ...]:
        """What the tags of this statistic's mail begin with."""
        return (self.tag,)

    def alike(self, me: Party) -> Mapping[str, bytes]:
        """{dealer: what it sent to all holders that must be the same at each}; shares are not of this kind."""
        return {}

    @abstractmethod
    def combine(self, me: Party, number: int) -> Residues:
        """A holder's share of one opening, with the noise of every member of the roster in it."""

    def with_noise(
        self, me: Party, number: int, products: Iterable[Product], noise: Mapping[str, Residues]
    ) -> Residues:
        """An opening that is made of products, one after the other, each with all members' noise for its entries."""
        opened = np.empty((len(self.field.primes), self.openings[number]), dtype=np.int32)
        start = 0
        for product in products:
            part = slice(start, start + math.prod(product.shape))
            drawn = {member: shares[:, part].reshape(-1, *product.shape) for member, shares in noise.items()}
            opened[:, part] = open_product(product, noise=drawn, parties=me.roster.names).reshape(len(opened), -1)
            start = part.stop
        return opened


@dataclass(frozen=True, kw_only=True)
class HeldNoise(SharedStatistic):
    """With noise that every member deals whole, in parts if it is verified, and that each holder keeps."""

    noise_name: ClassVar[str] = "noise"

    def noise_called(self, number: int) -> str:
        """What the noise of an opening is called in the tags of its mail."""
        return self.noise_name

    @abstractmethod
    def held(self, me: Party, what: str, number: int = 0) -> dict[str, Residues]:
        """This holder's shares of all members' noise for an opening, of its blinds, or of what else is held."""

    def held_noise(self, me: Party, number: int = 0) -> dict[str, Residues]:
        """This holder's shares, of degree 2t, of every member's noise for an opening."""
        noise = self.held(me, self.noise_called(number), number)
        if not self.verify:
            return noise
        blinds = [self.held(me, blind, number) for blind in blinds_of(me.roster, self.noise_called(number))]
        return {
            member: joined_noise(me, self.field, noise[member], [blind[member] for blind in blinds]) for member in noise
        }

    def noise_parts(self, me: Party, number: int) -> tuple[Residues, list[Residues]]:
        name = self.noise_called(number)
        noise, *blinds = (
            functools.reduce(self.field.add, self.held(me, part, number).values())
            for part in (name, *blinds_of(me.roster, name))
        )
        return noise, [unblinded(me, self.field, blind) for blind in blinds]


@dataclass(frozen=True, kw_only=True)
class LargeNoise(HeldNoise):
    """With noise of so many entries that it travels seeded (`shares.deal_large_noise`)."""

    mu: int

    def share_noise(self, me: Party, number: int) -> None:
        tag, size = f"{self.tag}: {self.noise_called(number)}", self.openings[number]
        deal_large_noise(me, tag, self.field, mu=self.mu, size=size, parts=bool(self.verify))

    def keep_noise(self, me: Party, number: int) -> None:
        name = self.noise_called(number)
        for part in (name, *(blinds_of(me.roster, name) if self.verify else [])):
            messages(me, f"{self.tag}: {part}", me.roster.names, layers=len(self.field.primes), keep=True)

    def held(self, me: Party, what: str, number: int = 0) -> dict[str, Residues]:
        """Needed for the opening and again for its proof: remembered if there is room."""
        entries = self.openings[number]

        def shares() -> dict[str, Residues]:
            dealt = dealt_large(me, f"{self.tag}: {what}", me.roster.names, self.field, lengths=(entries,))
            return {member: materialize(share) for member, share in dealt.items()}

        size = 4 * len(self.field.primes) * entries * len(me.roster.names)
        return me.remembered(f"{self.tag}: {what}: shares", size, shares) if self.remembers(size) else shares()


# --- memory -----------------------------------------------------------------------------------------------

PYTHON = 400 << 20
"""What a process takes before any job: the interpreter, the libraries and the accountant (340 MB measured), and room to
breathe."""


def opened_bytes(layout: SharedStatistic) -> int:
    """For each entry that is opened: at a holder all members' noise, products and the reply; at the coordinator every
    holder's reply as bytes and as residues, and what joining them takes (240 bytes measured, 3 primes and holders).
    With verification also the weights of entries in a claim, in four forms, and the blinds of the noise."""
    primes, members, committee = len(layout.field.primes), len(layout.roster.names), len(layout.roster.committee)
    proven = 4 * primes * (12 + members * layout.roster.threshold) if layout.verify else 0
    return max(4 * primes * (members + 7) + 16, 4 * primes * (2 * committee + 12) + 8 * primes + 32) + proven


def too_little_memory(needed: int) -> BadArguments:
    megabytes = -(-needed // (1 << 20))
    return BadArguments(
        f"this job needs about {megabytes} MB at its busiest process; allow memory={megabytes}, or choose fewer"
        " columns."
    )


# --- the coordinator's side -------------------------------------------------------------------------------

EXACT = "Exact: no noise is added, and no privacy is claimed for the result."
"""The note of a plan without noise."""


COMPARING: dict[str, Any] = {
    "audience": SEALED,
    "discloses": "digests of what a share holder was dealt, to the other share holders, and a commitment to its share",
    "reply_bytes": 1024,
}
"""The stage in which holders compare."""


class JointStages:
    """What a coordinator asks for one joint statistic; procedures are made of it.

    `later` says which arguments are known only when the job runs, as a `Stage` takes it: `chosen`, of which the plan
    has the layout's own values as an example, or a number.
    """

    def __init__(self, layout: SharedStatistic, view: View, *, later: Mapping[str, Later] | None = None) -> None:
        self.layout, self.view = layout, view
        self._arguments: dict[str, Any] = {"layout": layout.to_dict(), "view": view}
        self._later = later or {}
        if "chosen" in self._later:
            self._arguments["chosen"] = {name: self._arguments["layout"][name] for name in layout.adaptive}

    def stage(
        self, what: str, asked: Step, members: Sequence[str], requests: Sequence[Mapping[str, int]], **stated: Any
    ) -> Stage:
        """One stage: the same requests, each with its own numbers, of all of these members."""
        distinct = {tuple(numbers.items()): {**self._arguments, **numbers} for numbers in requests}
        arguments = [distinct[tuple(numbers.items())] for numbers in requests]
        return stage(
            f"{self.layout.label}: {what}",
            asked,
            dict.fromkeys(members, arguments),
            facts=self.layout.facts,
            roster=self.layout.roster,
            later=self._later,
            **{"audience": SEALED, **stated},
        )

    def opening(self, requests: Sequence[Mapping[str, int]] | None = None, **stated: Any) -> tuple[Stage, Stage]:
        """Compare, then open: the two stages of every opening."""
        layout = self.layout
        if requests is None:
            requests = [{"number": number} for number in range(len(layout.openings))]
        self.compare = self.stage("compare", compare_shares, layout.roster.committee, requests, **COMPARING)
        words = f"shares of the {layout.results}, which the coordinator joins"
        size = 4 * len(layout.field.primes) * max(layout.openings)
        given = {"audience": "coordinator", "discloses": words, "reply_bytes": size, **stated}
        self.open = self.stage("open", open_shares, layout.roster.committee, requests, **given)
        return self.compare, self.open

    def opened(self, job: Job, **later: Any) -> NDArray[Any]:
        """The next opening: exact integers plus noise. No holder is asked to let its share go while another is lost:
        all have compared just before."""
        job.ask(self.compare, **later)
        return joined(job, self.open, self.layout, **later)


def joined(job: Job, opening: Stage, layout: SharedStatistic, **later: Any) -> NDArray[Any]:
    """What the holders open of a layout that is not verified."""
    integers = join(job.ask(opening, **later), layout.field, layout.roster)
    job.released[f"{layout.label}, opening {len(job.released)}"] = integers
    return integers


# --- the members' steps -----------------------------------------------------------------------------------


def read_statistic(
    public: Public | Party, layout: Mapping[str, Any], chosen: Mapping[str, Any] | None
) -> SharedStatistic:
    """A statistic of Colonnade's own, or of a package that this party's configuration names."""
    kind = layout.get("kind")
    if public.packages is not None and isinstance(kind, str) and kind in _kinds:
        CATALOGUE.permit_step(f"for the joint statistic {kind!r}", _kinds[kind].__module__, public.packages)
    statistic = SharedStatistic.from_dict(public.facts, public.roster, layout)
    if chosen is None:
        return statistic
    try:
        return _with_chosen(Same(statistic), canonical(chosen))
    except (TypeError, ValueError) as error:
        raise BadArguments(f"what was chosen for a {kind} request cannot be read ({error}).") from error


@lru_cache(maxsize=32)
def _with_chosen(statistic: Same, text: str) -> SharedStatistic:
    """A function of the parsed layout and the canonical text alone, as `_parsed` is."""
    layout: SharedStatistic = statistic.value
    chosen = json.loads(text)
    beyond = sorted(set(chosen) - set(layout.adaptive))
    if beyond:
        raise UnsafeRequest(f"a {layout.kind} request must not choose {', '.join(beyond)}: the plan has fixed it.")
    hints = hints_of(type(layout))
    return layout.with_chosen(
        **{
            name: convert(value, hints[name], f"{name} in a {layout.kind} request", exact=True)
            for name, value in chosen.items()
        }
    )


def _within(number: int, of: Sequence[Any], what: str) -> None:
    if not 0 <= number < len(of):
        raise UnsafeRequest(f"this computation has no {what} {number}.")


Chosen = dict[str, Any] | None
"""Fields of the layout that were chosen from earlier releases; None: the layout is as the plan has it."""


def share_cost(public: Public, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Cost:
    """What carries noise pays: a holder opens nothing without the noise of every member. Where that is the first chunk
    it pays for everything."""
    statistic = read_statistic(public, layout, chosen)
    if public.party not in statistic.parties:
        return Free("this member shares noise, and no data")
    if not statistic.noise_goes_along(number):
        return Free("more secret shares for a joint release that the first chunk has debited")
    return statistic.cost(public, view)


@step(cost=share_cost)
def share_rows(me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Release:
    """Share one chunk of a party's rows; where noise goes along, every member shares its part of it."""
    statistic = read_statistic(me, layout, chosen)
    _within(number, statistic.chunks, "chunk of rows")
    statistic.take_mail(me)
    if number and me.name in me.roster.committee:
        statistic.put_away(me, number - 1)
    if me.name in statistic.parties:
        if statistic.in_little_memory:
            me.block.let_go()
        statistic.share(me, number)
    if statistic.noise_goes_along(number):
        statistic.share_noise(me, number)
    if me.name in statistic.parties and number == len(statistic.chunks) - 1:
        statistic.share_sizes(me)
    state_dealing(me, statistic.tag, f"rows {number}")
    return Release(None, "nothing: the shares travel sealed")


@step(cost=Free("secret shares of noise; no data"))
def share_noise(me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Release:
    """Share a member's noise for a later opening."""
    statistic = read_statistic(me, layout, chosen)
    if number < 1 or statistic.noise_goes_along(number):
        raise UnsafeRequest(f"the noise of opening {number} is shared with the rows.")
    _within(number, statistic.openings, "opening")
    if statistic.verify and me.name in me.roster.committee:
        require_agreement(me, statistic.compared_name(number - 1))
    statistic.share_noise(me, number)
    state_dealing(me, statistic.tag, f"noise {number}")
    return Release(None, "nothing: the shares travel sealed")


@step(cost=Free("secret shares of products; any t holders learn nothing"))
def multiply_shares(
    me: Party, *, layout: dict[str, Any], view: View, number: int, level: int, chosen: Chosen = None
) -> Release:
    """Products of shared columns in one chunk, dealt again to return to degree t."""
    statistic = read_statistic(me, layout, chosen)
    _within(number, statistic.chunks, "chunk of rows")
    statistic.take_mail(me)
    statistic.multiply(me, number, level)
    state_dealing(me, statistic.tag, f"products {number} {level}")
    return Release(None, "nothing: the shares travel sealed")


@step(cost=Free("digests of secret shares, sealed to the other holders"))
def compare_shares(me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Release:
    """Compute this holder's share of one opening, and tell the other holders what it was computed from. The share waits
    here until all of them have said the same; if it is to be verified, this holder is bound to it from now on."""
    statistic = read_statistic(me, layout, chosen)
    _within(number, statistic.openings, "opening")
    require_holder(me)
    statistic.take_mail(me)
    if statistic.verify:
        statistic.hold(me, number)
    share = statistic.combine(me, number)
    me.keep(statistic.result_name(number), share)
    state_taken(me, statistic.compared_name(number), statistic.alike(me))
    if not statistic.verify:
        return Release(None, "nothing: the digests travel sealed")
    salt = me.randomness.bytes(32)
    me.keep(f"{statistic.result_name(number)}: salt", salt)
    return Release(commitment(salt, share), "a salted digest of the share that this holder will open")


def commitment(salt: bytes, share: Residues) -> bytes:
    """Binds a holder to its share of an opening before the challenge by which it is verified is known."""
    return hashlib.sha256(salt + np.ascontiguousarray(share).tobytes()).digest()


@step(cost=Free("a share of a joint release that the data parties have debited"))
def open_shares(me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: Chosen = None) -> Release:
    """This holder's share of one opening, if all holders agree on what they were dealt: what it computed on its shares,
    plus every member's noise. If it is verified, all proofs come first, and this holder has found no lie in them."""
    statistic = read_statistic(me, layout, chosen)
    _within(number, statistic.openings, "opening")
    require_holder(me)
    once(me, f"{statistic.label} {number}")
    share = me.recall(statistic.result_name(number))
    if not statistic.verify:
        require_agreement(me, statistic.compared_name(number))
        return Release(share, f"a share of {statistic.results}")
    if not me.kept(statistic.proven_name):
        raise UnsafeRequest("nothing is opened before this holder has found what was dealt and computed to be true.")
    salt = me.recall(f"{statistic.result_name(number)}: salt")
    opened = {"share": share, "salt": salt, "proven": me.recall(statistic.proven_name)}
    return Release(opened, f"a share of {statistic.results}, and shares of what the holders have proven of theirs")
