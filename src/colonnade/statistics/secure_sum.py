"""Sums over parties of vectors that nobody sees: pads of each pair of members cancel in the total, and only there.

One round, no committee, and any number of members from two. What steps of other methods use: `SecureSum` is the
public shape of a sum, `masked_release` what a member's step returns, `unmask` what the coordinator does with the
replies. Every member of the roster takes part and adds its Sk(mu / m) to the total's noise; a member without a
vector of its own adds zeros. If one is missing there is no total. `PresenceTotal` is a small method made of it.
The proofs are in `secure_sum.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, ModulusTooSmall, TooFewHolders
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Phase, Plan, phase
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Free, Relation, Unbounded
from colonnade.privacy.skellam import LARGEST_MU, Skellam, calibrate_mu
from colonnade.privacy.skellam_sampler import largest_draw
from colonnade.secure.pads import fixed_point, largest_summand, masked, pad_label, unmask_sum
from colonnade.statistics.joint import (
    View,
    account_notes,
    binding,
    check_budget,
    check_view,
    colluders,
    noise_part,
    once,
)
from colonnade.statistics.quantize import stochastic_round

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation


@dataclass(frozen=True, kw_only=True)
class SecureSum:
    """The public shape of one masked sum: `size` entries, each of size at most `bound` at every member.

    Entries are multiplied by `gamma`, rounded (at random if there is noise) and clipped in integers to gamma * bound;
    whole numbers have gamma = 1. The total carries Sk(mu). `label` names the sum within its job.
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
        """The largest size of an entry in whole numbers; exactly, because a double ends at 53 bits."""
        return math.floor(Fraction(self.bound) * self.gamma + Fraction(1, 10**9))

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise on one entry of the total."""
        return math.sqrt(2 * self.mu) / self.gamma

    def to_dict(self) -> dict[str, Any]:
        return {"label": self.label, "size": self.size, "bound": self.bound, "gamma": self.gamma, "mu": self.mu}


def masked_release(
    me: Party, values: NDArray[np.floating[Any] | np.integer[Any]], *, shape: SecureSum, round: int = 0
) -> NDArray[np.uint64]:
    """This member's vector with its part of the noise, under its pads: uniform to everybody but the sum of all.

    A (label, round) serves once in a job. The pads depend on the whole shape: if members were asked for different
    noise or different scales, nothing cancels.
    """
    shape.check(me.roster)
    if values.shape != (shape.size,):
        raise BadArguments(f"the vector has shape {values.shape}, and the sum {shape.label!r} {shape.size} entries.")
    once(me, f"masked sum {shape.label} {round}")
    if np.issubdtype(values.dtype, np.integer):
        # Clipped before scaling, so that the product stays below 2^63.
        bound = math.floor(shape.bound)
        whole = np.clip(values, -bound, bound).astype(np.int64) * shape.gamma
    else:
        scaled = np.clip(np.nan_to_num(values), -shape.bound, shape.bound) * float(shape.gamma)
        whole = stochastic_round(scaled, me.randomness) if shape.mu else np.rint(scaled).astype(np.int64)
    whole = np.clip(whole, -shape.largest, shape.largest) + noise_part(me, mu=shape.mu, size=shape.size)
    peers = [name for name in me.roster.names if name != me.name]
    agreed = binding(shape.label, shape.to_dict())
    keys = {peer: me.pair_key(peer, agreed) for peer in peers}
    return masked(whole, me=me.name, peers=peers, pair_keys=keys, label=pad_label(me.job, round))


def unmask(replies: Mapping[str, NDArray[np.uint64]], *, shape: SecureSum, roster: Roster) -> NDArray[np.float64]:
    """The total over all members of the roster; `PartyLost` names who is missing."""
    total = unmask_sum(replies.items(), parties=roster.names)
    return total.astype(np.float64) / shape.gamma


# --- a method: how many blocks of records there are in all ------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PresenceTotal:
    """The number of records that the parties have, summed over the parties, without any party's own number.

    It answers how complete a cohort is before anybody decides to work on it: total / (n parties) of its blocks are
    there.

    Parameters
    ----------
    epsilon, delta : a person's total. `epsilon=None` counts exactly, which is an unbounded release that every party
        must allow by name ("exact-presence-total").
    view, relation : what the noise is calibrated for; see `docs/threat-model.md`.

    Returns
    -------
    `fit(federation)` gives the noisy `total`, its `fraction` of all blocks, and `noise_sd`.

    Example
    -------
    >>> found = co.PresenceTotal(epsilon=1.0).fit(federation)
    >>> 0 < found.fraction < 1
    True
    """

    name: ClassVar[str] = "presence-total"
    label: ClassVar[str] = "presence total"

    epsilon: float | None = 1.0
    delta: float = 1e-6
    view: View = "client"
    relation: Relation = "zero-out"

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        check_view(self.view)

    def options(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "delta": self.delta, "view": self.view, "relation": self.relation}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(**options)

    def fit(self, federation: Federation) -> Coverage:
        """Run it; the run folder is in `federation.runs`."""
        return federation.run(self)[0]  # type: ignore[no-any-return]

    def mu(self, facts: PublicFacts, roster: Roster) -> int:
        """The Skellam parameter that (epsilon, delta) needs; 0 if exact."""
        if self.epsilon is None:
            return 0
        sizes = (len(facts.parties), len(roster.names), colluders(roster, self.view))
        return _presence_noise(self.epsilon, self.delta, *sizes, self.relation)

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        mu = self.mu(facts, roster)
        shape = presence_shape(facts, mu=mu, label=self.label)
        shape.check(roster)
        notes: tuple[str, ...] = ("Exact: no noise is added, and no privacy is claimed for the result.",)
        if mu:
            notes = (
                f"The total carries integer noise with standard deviation {shape.noise_sd:.4g}.",
                *account_notes(
                    roster,
                    view=self.view,
                    delta=self.delta,
                    releases=lambda many: [_presence_release(facts, roster, mu, many)],
                ),
            )
        phases = tuple(presence_phases(facts, roster, mu=mu, view=self.view, label=self.label))
        return Plan(method=self.name, options=self.options(), stages=phases, notes=notes, delta=self.delta)

    def execute(self, job: Job) -> Coverage:
        mu = self.mu(job.facts, job.roster)
        shape = presence_shape(job.facts, mu=mu, label=self.label)
        replies = job.ask(masked_presence, phase=self.label, mu=mu, view=self.view, label=self.label)
        return Coverage(
            n=job.facts.n,
            parties=len(job.facts.parties),
            total=float(unmask(replies, shape=shape, roster=job.roster)[0]),
            noise_sd=shape.noise_sd,
            simulated=job.simulated,
        )


def presence_shape(facts: PublicFacts, *, mu: int, label: str) -> SecureSum:
    """One entry; a party has at most n records of the cohort."""
    return SecureSum(label=label, size=1, bound=facts.n, mu=mu)


def presence_phases(facts: PublicFacts, roster: Roster, *, mu: int, view: View, label: str) -> list[Phase]:
    arguments = {"mu": mu, "view": view, "label": label}
    return [
        phase(
            label,
            masked_presence,
            {member: [arguments] for member in roster.names},
            facts=facts,
            roster=roster,
            discloses="masked counts, of which the coordinator can read the noisy total only",
            reply_bytes=8,
        )
    ]


def _presence_release(facts: PublicFacts, roster: Roster, mu: int, many: int, joint: str | None = None) -> Cost:
    """A record is in at most every party's block: it moves the one total by a whole number up to their number."""
    if not mu:
        return Unbounded("exact-presence-total", "the exact number of records over all parties", joint=joint)
    most = len(facts.parties)
    members = len(roster.names)
    return Skellam(mu, delta_1=most, delta_2=most, parties=members, colluders=many, shift="single", joint=joint)


@lru_cache(maxsize=64)
def _presence_noise(epsilon: float, delta: float, most: int, members: int, colluders: int, relation: Relation) -> int:
    return calibrate_mu(
        epsilon=epsilon,
        delta=delta,
        delta_1=most,
        delta_2=most,
        parties=members,
        colluders=colluders,
        relation=relation,
        shift="single",
    )


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """`total` blocks of records, noisy, of n times `parties` possible ones."""

    n: int
    parties: int
    total: float
    noise_sd: float
    simulated: bool

    @property
    def fraction(self) -> float:
        """The part of all possible blocks that is there."""
        return self.total / (self.n * self.parties)

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "coverage",
                "n": self.n,
                "parties": self.parties,
                "total": self.total,
                "noise_sd": self.noise_sd,
                "simulated": self.simulated,
            },
        )


# --- the members' step ------------------------------------------------------------------------------------


def _presence_cost(public: Public, *, mu: int, view: View, label: str) -> Cost:
    if public.party not in public.facts.parties:
        return Free("this member masks noise, and no data")
    many = colluders(public.roster, view)
    return _presence_release(public.facts, public.roster, mu, many, joint=f"{public.job} {label}")


@step(cost=_presence_cost)
def masked_presence(me: Party, *, mu: int, view: View, label: str) -> Release:
    """The number of this party's records in the cohort, with noise, masked; zero at a member without data."""
    count = int(me.present.sum()) if me.name in me.facts.parties else 0
    shape = presence_shape(me.facts, mu=mu, label=label)
    value = masked_release(me, np.array([count]), shape=shape)
    return Release(value, "a masked count: only the sum over all members can be read")
