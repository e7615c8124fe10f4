"""Sums over parties of vectors that no one sees: pads of each pair of members cancel in the total, and only there.

One round, no committee, and any number of members from two. What steps of other methods use: `SecureSum` is the
public shape of a sum, `masked_release` what a member's step returns, `unmask` what the coordinator does with the
replies. Every member of the roster takes part and adds its Sk(mu / m) to the total's noise; a member without a
vector of its own adds zeros. If one is missing there is no total. `PresenceTotal` is a small method made of it.
The proofs are in `secure_sum.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import plain
from colonnade.errors import BadArguments, ModulusTooSmall, TooFewHolders
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Counted, Method, Procedure, Result, method_class
from colonnade.federation.options import Delta, OptionalEpsilon, RelationOption, View, ViewOption
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import stage
from colonnade.federation.step import Public, Release, step
from colonnade.formatting import number, share, with_noise
from colonnade.privacy.calibration import Calibration, SkellamMus
from colonnade.privacy.cost import Cost, Free, Unbounded
from colonnade.privacy.skellam import LARGEST_MU, Skellam
from colonnade.privacy.skellam_sampler import largest_draw
from colonnade.secure.pads import fixed_point, largest_summand, masked, pad_label, unmask_sum
from colonnade.statistics import forecast
from colonnade.statistics.features import stochastic_round
from colonnade.statistics.joint import EXACT, account_notes, binding, check_budget, colluders, once
from colonnade.statistics.shares import noise_part
from colonnade.view.blocks import Section, Table, Text
from colonnade.view.blocks import View as Shown

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack


@dataclass(frozen=True, kw_only=True)
class SecureSum:
    """The public shape of one masked sum: `size` entries, each of size at most `bound` at every member.

    Entries are multiplied by `gamma`, rounded (at random if there is noise) and clipped in integers to gamma * bound;
    integers have gamma = 1. The total carries Sk(mu). `label` names the sum within its job.
    """

    label: str
    size: int
    bound: float
    gamma: int = 1
    mu: int = 0

    @classmethod
    def exact(cls, *, label: str, size: int, bound: float, roster: Roster) -> Self:
        """Sums of floats without noise, at the finest scale that cannot wrap: rounded by at most 2^-62 of the range."""
        bits = fixed_point(bound=bound, parties=len(roster.names)).fraction_bits
        return cls(label=label, size=size, bound=bound, gamma=2 ** max(0, bits))

    def check(self, roster: Roster) -> None:
        """Refuse a sum that could wrap, or that masks nothing."""
        members = len(roster.names)
        if members < 2:
            raise TooFewHolders("a masked sum over one member is its vector; it needs at least two members.")
        if min(self.size, self.gamma) < 1 or not 0 < self.bound < math.inf or not 0 <= self.mu <= LARGEST_MU:
            raise BadArguments("a masked sum needs a size, a positive bound, gamma of at least 1 and mu up to 2^90.")
        if self.largest + largest_draw(Fraction(self.mu, members)) > largest_summand(members):
            raise ModulusTooSmall(
                f"the total of {members} members, with noise, could leave the range of 64 bits; take a smaller gamma"
                f" than {self.gamma} or a smaller bound than {self.bound:g}."
            )

    @property
    def largest(self) -> int:
        """The largest size of an entry in integers; exactly, because a double ends at 53 bits."""
        return math.floor(Fraction(self.bound) * self.gamma + Fraction(1, 10**9))

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise on one entry of the total."""
        return math.sqrt(2 * self.mu) / self.gamma

    def to_dict(self) -> dict[str, Any]:
        return {"label": self.label, "size": self.size, "bound": self.bound, "gamma": self.gamma, "mu": self.mu}


def masked_release(
    me: Party, values: NDArray[np.floating[Any] | np.integer[Any]], *, shape: SecureSum, round_number: int = 0
) -> NDArray[np.uint64]:
    """This member's vector with its part of the noise, under its pads: uniform to everyone but the sum of all.

    A (label, round_number) serves once in a job. The pads depend on the whole shape: if members were asked for
    different noise or different scales, nothing cancels.
    """
    shape.check(me.roster)
    if values.shape != (shape.size,):
        raise BadArguments(f"the vector has shape {values.shape}, and the sum {shape.label!r} {shape.size} entries.")
    once(me, f"masked sum {shape.label} {round_number}")
    if np.issubdtype(values.dtype, np.integer):
        # Clipped before scaling, so that the product stays below 2^63.
        bound = math.floor(shape.bound)
        integers = np.clip(values, -bound, bound).astype(np.int64) * shape.gamma
    else:
        scaled = np.clip(np.nan_to_num(values), -shape.bound, shape.bound) * float(shape.gamma)
        integers = stochastic_round(scaled, me.randomness) if shape.mu else np.rint(scaled).astype(np.int64)
    integers = np.clip(integers, -shape.largest, shape.largest) + noise_part(me, mu=shape.mu, size=shape.size)
    peers = [name for name in me.roster.names if name != me.name]
    agreed = binding(shape.label, shape.to_dict())
    keys = {peer: me.pair_key(peer, agreed) for peer in peers}
    return masked(integers, me=me.name, peers=peers, pair_keys=keys, label=pad_label(me.job, round_number))


def unmask(replies: Mapping[str, NDArray[np.uint64]], *, shape: SecureSum, roster: Roster) -> NDArray[np.float64]:
    """The total over all members of the roster; `PartyLost` names who is missing."""
    total = unmask_sum(replies.items(), parties=roster.names)
    return total.astype(np.float64) / shape.gamma


# --- a method: how many blocks of records there are in all ------------------------------------------------

LABEL = "presence total"


@method_class
class PresenceTotal(Method["Coverage"]):
    """Add up how many records each party has, without any party's own number.

    The total is over parties, so a record that three parties have counts three times: it says how complete a cohort
    is (total / (n parties) of its blocks are there), and not how many records all parties have.

    Returns
    -------
    `fit(federation)` gives `Coverage`: the `total`, noisy if there is an epsilon, its `fraction` of all blocks, and
    `noise_sd`.

    Example
    -------
    >>> coverage = co.PresenceTotal(epsilon=1.0).fit(federation)
    >>> 0 < coverage.fraction < 1
    True
    """

    name: ClassVar[str] = "presence-total"

    epsilon: OptionalEpsilon = 1.0
    delta: Delta = 1e-6
    view: ViewOption = "client"
    relation: RelationOption = "zero-out"

    def check(self) -> None:
        check_budget(self.epsilon, self.delta)

    def missing_data(self) -> str:
        return "It counts what is there: a record adds one for each party that has it."

    def procedure(self, facts: PublicFacts, roster: Roster) -> PresenceTotalling:
        return PresenceTotalling(self, facts, roster)

    def reads(self) -> tuple[str, ...]:
        """Presence alone, and no column."""
        return ()

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.statistics.attacks import presence_attacks

        return presence_attacks()


class PresenceTotalling(Procedure["Coverage"]):
    """One masked count of every member."""

    def __init__(self, method: PresenceTotal, facts: PublicFacts, roster: Roster) -> None:
        self.facts, self.roster = facts, roster
        self.mu = 0
        if method.epsilon is not None:
            pooled = colluders(roster, method.view)
            total = SkellamMus(_presence_release(facts, roster, 1, pooled))
            self.mu = Calibration({LABEL: total}, epsilon=method.epsilon, delta=method.delta, relation=method.relation)[
                LABEL
            ]
        self.shape = presence_shape(facts, mu=self.mu, label=LABEL)
        self.shape.check(roster)
        arguments = {"mu": self.mu, "view": method.view, "label": LABEL}
        self.count = stage(
            LABEL,
            masked_presence,
            {member: [arguments] for member in roster.names},
            facts=facts,
            roster=roster,
            discloses="masked counts, of which the coordinator can read the noisy total only",
            reply_bytes=8,
        )
        self.stages = (self.count,)
        self.notes = (
            (EXACT,)
            if not self.mu
            else (
                *forecast.sums(
                    noise_sd=self.shape.noise_sd, n=facts.n, largest=len(facts.parties), epsilon=method.epsilon
                ),
                f"The total carries integer noise with standard deviation {self.shape.noise_sd:.4g}.",
                *account_notes(
                    roster,
                    view=method.view,
                    delta=method.delta,
                    releases=lambda pooled: [_presence_release(facts, roster, self.mu, pooled)],
                ),
            )
        )

    def run(self, job: Job) -> Coverage:
        return Coverage(
            n=self.facts.n,
            parties=len(self.facts.parties),
            total=float(unmask(job.ask(self.count), shape=self.shape, roster=self.roster)[0]),
            noise_sd=self.shape.noise_sd,
            simulated=job.simulated,
        )


def presence_shape(facts: PublicFacts, *, mu: int, label: str) -> SecureSum:
    """One entry; a party has at most n records of the cohort."""
    return SecureSum(label=label, size=1, bound=facts.n, mu=mu)


def _presence_release(facts: PublicFacts, roster: Roster, mu: int, colluders: int, joint: str | None = None) -> Cost:
    """A record is in at most every party's block: it moves the one total by an integer up to their number."""
    if not mu:
        return Unbounded("exact-presence-total", "the exact number of records over all parties", joint=joint)
    most = len(facts.parties)
    members = len(roster.names)
    return Skellam(mu, delta_1=most, delta_2=most, parties=members, colluders=colluders, shift="single", joint=joint)


@dataclass(frozen=True, kw_only=True)
class Coverage(Result):
    """`total` blocks of records, noisy, of n times `parties` possible ones."""

    kind: ClassVar[str] = "coverage"

    n: int
    parties: int
    total: float
    noise_sd: float
    simulated: bool

    @property
    def fraction(self) -> float:
        """The part of all possible blocks that is there."""
        return self.total / (self.n * self.parties)

    def to_dict(self) -> dict[str, Any]:
        stated: dict[str, Any] = plain(self)
        return stated

    @classmethod
    def records_behind(cls, stated: Mapping[str, Any]) -> Iterator[Counted]:
        yield "blocks of records that are there", stated["total"], stated["noise_sd"]

    def view(self) -> Shown:
        possible = self.n * self.parties
        title = f"{share(self.total, possible)} of all blocks are there"
        missing = possible - self.total
        blocks = Table(
            title="Blocks of records",
            head=("", "blocks", "share of all possible"),
            rows=(
                ("there", with_noise(self.total, self.noise_sd), share(self.total, possible)),
                ("missing", with_noise(missing, self.noise_sd), share(missing, possible)),
                ("possible", number(possible), "100.0 %"),
            ),
            numeric=(1, 2),
        )
        width = f"The share is ± {200 * self.noise_sd / possible:.2g} percentage points in 95 of 100 cases."
        return Shown(
            title=title,
            quality=width if self.noise_sd else "An exact count: no noise was added.",
            answer=(
                blocks,
                Text(
                    text=f"A block is one party's columns of one record: {number(self.n)} records times {self.parties}"
                    " parties. No party's own number was shown.",
                    style="soft",
                ),
            ),
            sections=(
                Section(
                    title="What it is good for",
                    blocks=(
                        Text(
                            text="It says how complete the cohort is, before anyone decides to work on it; not who"
                            " lacks what, and not how many records all parties have."
                        ),
                    ),
                ),
            ),
            terminal=(replace(blocks, title=title),),
        )


# --- the members' step ------------------------------------------------------------------------------------


def _presence_cost(public: Public, *, mu: int, view: View, label: str) -> Cost:
    if public.party not in public.facts.parties:
        return Free("this member masks noise, and no data")
    pooled = colluders(public.roster, view)
    return _presence_release(public.facts, public.roster, mu, pooled, joint=f"{public.job} {label}")


@step(cost=_presence_cost)
def masked_presence(me: Party, *, mu: int, view: View, label: str) -> Release:
    """The number of this party's records in the cohort, with noise, masked; zero at a member without data."""
    count = int(me.present.sum()) if me.name in me.facts.parties else 0
    value = masked_release(me, np.array([count]), shape=presence_shape(me.facts, mu=mu, label=label))
    return Release(value, "a masked count: only the sum over all members can be read")
