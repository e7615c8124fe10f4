"""`align`: line the records up without showing who is not shared.

Every key is hashed into a group of prime order and raised to the secret exponents of the members on its list's route
(`routes`). Exponentiation commutes, so equal keys end as equal tags, at the matcher, who numbers them; the rows go back
in the order of each list. What each side learns is in `claim.md`. The steps under the method run at the members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from colonnade.alignment.group import (
    ELEMENT_BYTES,
    check_elements,
    draw_exponent,
    random_elements,
)
from colonnade.alignment.keys import check_rules
from colonnade.alignment.listing import collect_places, listed_keys, only, real_places, terms
from colonnade.alignment.numbering import Listed, number_fixed, number_union
from colonnade.alignment.raising import blind_list, raise_list
from colonnade.alignment.result import Aligned, pattern_counts, possible, write_overlap
from colonnade.alignment.routes import UNION, Route, Routes, routes
from colonnade.data.cohort import Alignment
from colonnade.errors import BadArguments, SealBroken
from colonnade.federation.facts import PublicFacts
from colonnade.federation.home import Home
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Phase, Plan, phase
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.accounting import check_epsilon
from colonnade.privacy.cost import Cost, Free, Laplace, Unbounded
from colonnade.privacy.noise import discrete_laplace

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

Protocol = Literal["ecdh", "blind-rsa"]
MOST_PARTIES = 10
"""A report has 2^K patterns; with more parties it is left out."""


# --- the coordinator's procedure --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Align:
    """Private set alignment of the parties' record keys.

    Parameters
    ----------
    capacity : {party: most records that it may have}. Public: lists are filled up to it with dummies, so that neither
        message sizes nor the other parties tell how many records a party has.
    include : a party (its records are the cohort) or "union" (every record that anybody has).
    matcher : who compares the tags of a union: by default a member without data, or the first party.
    normalise : which of "case", "spaces", "accents" are taken as equal; see `alignment.keys`.
    protocol : "ecdh", or "blind-rsa" (the FedPSG paper's; slow; a fixed cohort, or two parties).
    epsilon : of the report's pattern counts (Laplace noise); None leaves the report out.
    """

    name: ClassVar[str] = "align"

    capacity: Mapping[str, int]
    include: str = UNION
    matcher: str | None = None
    normalise: tuple[str, ...] = ()
    protocol: Protocol = "ecdh"
    epsilon: float | None = 1.0
    _rules: tuple[str, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rules", check_rules(self.normalise))
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        if self.protocol not in ("ecdh", "blind-rsa"):
            raise BadArguments(f"protocol must be 'ecdh' or 'blind-rsa', not {self.protocol!r}.")
        if any(not isinstance(size, int) or size < 1 for size in self.capacity.values()):
            raise BadArguments("a capacity is a whole number of at least 1: the most records that a party may have.")

    def options(self) -> dict[str, Any]:
        return {
            "capacity": dict(self.capacity),
            "include": self.include,
            "matcher": self.matcher,
            "normalise": list(self._rules),
            "protocol": self.protocol,
            "epsilon": self.epsilon,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(**{**options, "normalise": tuple(options.get("normalise", ()))})

    def fit(self, federation: Federation) -> Aligned:
        return federation.run(self)[0]  # type: ignore[no-any-return]

    def _reported(self, roster: Roster) -> float | None:
        return self.epsilon if len(roster.data_parties) <= MOST_PARTIES else None

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        chosen = routes(roster, include=self.include, matcher=self.matcher)
        if set(self.capacity) != set(chosen.parties):
            raise BadArguments(
                f"capacity must state the most records of each of {', '.join(chosen.parties)}, and of nobody else."
            )
        if self.protocol == "ecdh":
            phases = self._ecdh_phases(chosen, facts, roster)
        else:
            from colonnade.alignment.rsa_steps import rsa_phases

            phases = rsa_phases(self._list_arguments(chosen), chosen, facts, roster)
        phases += self._last_phases(chosen, facts, roster)
        return Plan(method=self.name, options=self.options(), stages=tuple(phases), notes=self._notes(chosen, roster))

    def _list_arguments(self, chosen: Routes) -> dict[str, Any]:
        return {
            "include": self.include,
            "matcher": chosen.matcher,
            "capacity": dict(self.capacity),
            "normalise": list(self._rules),
        }

    def _ecdh_phases(self, chosen: Routes, facts: PublicFacts, roster: Roster) -> list[Phase]:
        arguments = self._list_arguments(chosen)
        largest = ELEMENT_BYTES * max(self.capacity.values())
        turns = {
            member: [{**arguments, "hop": hop} for hop in chosen.turns(member)]
            for member in roster.names
            if chosen.turns(member)
        }
        sealed = "sealed lists of blinded keys"
        return [
            phase(
                "blind",
                blind,
                {party: [arguments] for party in chosen.parties},
                facts=facts,
                roster=roster,
                audience="the next member of each list's route",
                discloses=sealed,
                reply_bytes=largest,
            ),
            phase(
                "raise",
                raise_lists,
                turns,
                facts=facts,
                roster=roster,
                audience="the next member of each list's route",
                discloses=sealed,
                reply_bytes=largest * (len(chosen.parties) - 1),
            ),
        ]

    def _last_phases(self, chosen: Routes, facts: PublicFacts, roster: Roster) -> list[Phase]:
        numbering = {**self._list_arguments(chosen), "epsilon": self._reported(roster)}
        return [
            phase(
                "number",
                number,
                {chosen.matcher: [numbering]},
                facts=facts,
                roster=roster,
                discloses="the size n of the cohort, and noisy counts of the presence patterns",
                reply_bytes=8 * sum(self.capacity.values()),
            ),
            phase(
                "settle",
                settle,
                {party: [self._list_arguments(chosen)] for party in chosen.parties},
                facts=facts,
                roster=roster,
                discloses="nothing: each party stores its rows at home",
            ),
        ]

    def _notes(self, chosen: Routes, roster: Roster) -> tuple[str, ...]:
        others = "each of the others learns which of its own records are in it, and nothing of anybody else's"
        if self.include == UNION:
            others = "the others learn n and pseudonymous row numbers of their own records"
        rules = ", ".join(self._rules) or "nothing but Unicode's form NFC"
        notes = [
            f"{chosen.matcher} learns the presence mask over the cohort's rows; {others}.",
            f"Keys are compared after normalising: {rules}. n becomes public.",
            "Against parties that keep to the protocol: one that adds guessed keys to its own list learns whether "
            "they are shared.",
        ]
        if self.epsilon is not None and self._reported(roster) is None:
            notes.append(f"No report: with more than {MOST_PARTIES} parties there are too many patterns to count.")
        return tuple(notes)

    def execute(self, job: Job) -> Aligned:
        chosen = routes(job.roster, include=self.include, matcher=self.matcher)
        arguments = self._list_arguments(chosen)
        if self.protocol == "ecdh":
            job.ask(blind, **arguments)
            for hop in range(1, chosen.rounds + 1):
                members = [member for member in job.roster.names if hop in chosen.turns(member)]
                job.ask(raise_lists, parties=members, **arguments, hop=hop)
        else:
            from colonnade.alignment.rsa_steps import exchange_signatures

            exchange_signatures(job, arguments)
        epsilon = self._reported(job.roster)
        numbered = job.ask(number, **arguments, epsilon=epsilon)[chosen.matcher]
        job.ask(settle, **arguments)
        return Aligned(
            n=numbered["n"],
            include=self.include,
            matcher=chosen.matcher,
            parties=chosen.parties,
            patterns=numbered["patterns"],
            noise_sd=0.0 if epsilon is None else laplace_sd(epsilon),
            simulated=job.simulated,
        )


def laplace_sd(epsilon: float) -> float:
    """The discrete Laplace with ratio q = e^-epsilon has variance 2 q / (1 - q)^2."""
    q = math.exp(-epsilon)
    return math.sqrt(2 * q) / (1 - q)


# --- the members' steps -----------------------------------------------------------------------------------


def disclosure(public: Public, *, include: str, matcher: str, **_: Any) -> Cost:
    """Presence is data about people. Whoever's list is compared discloses it, without a bound."""
    if include == UNION and public.party == matcher:
        return Free("this list comes back to its owner; to everybody else its elements are uniformly random")
    told = f"to {matcher}: which records of the cohort this party has"
    if include == public.party:
        told = "to each other party: which of its own records are in this party's block"
    # The audience is part of what a reservation covers: a request for another cohort or matcher is beyond it.
    audience = "each other party" if include == public.party else matcher
    return Unbounded("alignment", told, audience=f"{audience} ({include})")


def relayed(public: Public, **_: Any) -> Cost:
    return Free("elements raised to a secret exponent are uniformly random to whoever does not know it")


@step(cost=disclosure)
def blind(me: Party, *, include: str, matcher: str, capacity: dict[str, int], normalise: list[str]) -> Release:
    """Hash this party's keys, raise them, hide them among dummies in a random order, and send them on."""
    chosen = routes(me.roster, include=include, matcher=matcher)
    forms, places = listed_keys(me, chosen, size=capacity[me.name], normalise=normalise)
    tag = terms(include, matcher, capacity, normalise)
    exponent = draw_exponent(me.randomness)
    me.keep("exponent", exponent.to_bytes(ELEMENT_BYTES, "big"))
    elements = np.empty((capacity[me.name], ELEMENT_BYTES), dtype=np.uint8)
    elements[places] = blind_list(forms, exponent, domain=me.job)
    free = np.setdiff1d(np.arange(len(elements)), places)
    elements[free] = random_elements(len(free), me.randomness)
    for route in chosen.of(me.name):
        me.send(route.hops[0], f"list {route.number} {tag}", elements)
    return Release(None, "sealed: this party's keys, blinded, among dummies")


@step(cost=relayed)
def raise_lists(
    me: Party, *, include: str, matcher: str, capacity: dict[str, int], normalise: list[str], hop: int
) -> Release:
    """Raise the lists that arrived on their way, in their order, to this member's exponent."""
    chosen = routes(me.roster, include=include, matcher=matcher)
    tag = terms(include, matcher, capacity, normalise)
    exponent = int.from_bytes(me.recall("exponent"), "big")
    collect_places(me)
    for route in chosen.at(me.name, hop):
        before = route.owner if hop == 1 else route.hops[hop - 2]
        arrived = check_elements(only(me, f"list {route.number} {tag}", before))
        if len(arrived) != capacity[route.owner]:
            raise SealBroken(f"the list of {route.owner!r} has another length than agreed; align again.")
        after = route.after(hop)
        kind = "tags" if after is None else "list"
        me.send(after or chosen.matcher, f"{kind} {route.number} {tag}", raise_list(arrived, exponent))
    return Release(None, "sealed: blinded keys, raised once more")


def numbering_cost(public: Public, *, epsilon: float | None, **_: Any) -> Cost:
    """A record is in one pattern: zeroed out it moves one count by 1, replaced two."""
    if epsilon is None:
        return Free("n is public; row numbers are uniformly random")
    return Laplace(epsilon, replace_factor=2.0)


@step(cost=numbering_cost)
def number(
    me: Party,
    *,
    include: str,
    matcher: str,
    capacity: dict[str, int],
    normalise: list[str],
    epsilon: float | None,
) -> Release:
    """At the matcher: compare the tags, draw the order of the cohort, tell each party the rows of its list."""
    chosen = routes(me.roster, include=include, matcher=matcher)
    tag = terms(include, matcher, capacity, normalise)
    collect_places(me)

    def listed(route: Route) -> Listed:
        kept = f"tags {route.number} {tag}"
        tags = check_elements(me.recall(kept) if me.kept(kept) else only(me, kept, route.hops[-1]))
        return Listed(tags, real_places(me, route.owner, include, capacity))

    if include == UNION:
        lists = {route.owner: listed(route) for route in chosen.routes}
        numbered = number_union({party: lists[party] for party in chosen.parties}, randomness=me.randomness)
    else:
        own = {route.hops[0]: listed(route) for route in chosen.of(include)}
        others = {route.owner: listed(route) for route in chosen.routes if route.owner != include}
        numbered = number_fixed(include, own, others, randomness=me.randomness)
    cohort = numbered.cohort
    for party, rows in numbered.rows.items():
        me.send(party, f"rows {tag}", {"n": cohort.n, "rows": rows})
    exact = pattern_counts(cohort, chosen.parties) if len(chosen.parties) <= MOST_PARTIES else None
    if exact is not None:
        told = {str(index): int(count) for index, count in enumerate(exact) if count}
        here = {"cohort": me.job, "n": cohort.n, "parties": list(chosen.parties), "patterns": told}
        write_overlap(me.home / "aligned", here)
    noisy = None
    if exact is not None and epsilon is not None:
        shown = np.array([possible(index, chosen.parties, include) for index in range(len(exact))])
        scale = math.nextafter(1 / epsilon, math.inf)
        noisy = np.where(shown, exact + discrete_laplace(me.randomness, scale, len(exact)), 0)
    return Release(
        {"n": cohort.n, "patterns": noisy}, "the size n of the cohort, and noisy counts of the presence patterns"
    )


@step(cost=lambda public, **_: Free("each party's rows stay with it"))
def settle(me: Party, *, include: str, matcher: str, capacity: dict[str, int], normalise: list[str]) -> Release:
    """Store this party's alignment at home; the next federation that is opened there takes it."""
    told = only(me, f"rows {terms(include, matcher, capacity, normalise)}", matcher)
    rows = np.asarray(told["rows"], dtype=np.int64)[me.recall("places")]
    alignment = Alignment(int(told["n"]), rows)
    folder = me.home / "aligned"
    Home(path=folder).align(alignment, me.block.keys, cohort=me.job)
    write_overlap(
        folder,
        {"cohort": me.job, "n": alignment.n, "records": len(rows), "in_the_cohort": int(np.count_nonzero(rows >= 0))},
    )
    return Release(None, "nothing: the rows are stored at this party")
