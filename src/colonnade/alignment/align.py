"""`align`: line the records up without showing who is not shared.

Every key is hashed into a group of prime order and raised to the secret exponents of the members on its list's route
(`lists`). Exponentiation commutes, so equal keys end as equal tags, at the matcher, who numbers them; the rows go back
in the order of each list. What each side learns is in `claim.md`. The steps under the method run at the members.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.exponentiation import blind_list, raise_list
from colonnade.alignment.group import ELEMENT_BYTES, check_elements, draw_exponent, random_points
from colonnade.alignment.keys import Rule, check_rules
from colonnade.alignment.lists import (
    MOST_RECORDS,
    UNION,
    Numbered,
    Route,
    Routes,
    TaggedList,
    Terms,
    collect_places,
    listed_keys,
    number_fixed,
    number_union,
    only,
    real_places,
    routes,
)
from colonnade.codec import ListOf, plain
from colonnade.data.cohort import Alignment, Cohort
from colonnade.durable import whole_file
from colonnade.errors import BadArguments, SealBroken
from colonnade.federation.facts import PublicFacts
from colonnade.federation.home import Home
from colonnade.federation.job import Job
from colonnade.federation.method import Counted, Method, Procedure, Result, method_class
from colonnade.federation.options import Option
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Stage, stage
from colonnade.federation.step import Public, Release, Step, step
from colonnade.formatting import noise_width, of_exactly
from colonnade.formatting import number as in_words
from colonnade.privacy.accounting import check_epsilon
from colonnade.privacy.cost import Cost, Free, Laplace, Unbounded, compose
from colonnade.privacy.noise import discrete_laplace
from colonnade.privacy.randomness import Randomness
from colonnade.statistics.forecast import FORECAST
from colonnade.view.blocks import Figure, Section, Table, Text, View

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

MOST_PARTIES = 10
"""A report has 2^K patterns; with more parties it is left out."""
OVERLAP = "overlap.json"
"""In a party's own folder of the alignment: exact numbers, which stay there."""


@method_class
class AlignmentMethod(Method["Aligned"]):
    """What every way to line records up takes."""

    makes_cohort: ClassVar[bool] = True

    capacity: Annotated[
        Mapping[str, int],
        Option(
            "The most records that each party may have. Public: lists are filled up to it with dummies, so that neither"
            " message sizes nor the other parties tell how many records a party has.",
            form="PARTY=NUMBER",
            least=1,
            most=MOST_RECORDS,
        ),
    ]
    include: Annotated[
        str, Option("'union' (every record that any party has), or the party whose records are the cohort.")
    ] = UNION
    matcher: Annotated[
        str | None,
        Option("Who compares the tags of a union; by default a member without data, or else the first party."),
    ] = None
    normalise: Annotated[ListOf[Rule], Option("Which differences between two keys count for nothing.")] = ()
    epsilon: Annotated[
        float | None,
        Option(
            "Total privacy loss (epsilon) per record of the noisy overlap counts; None leaves the counts out.",
            valid=check_epsilon,
        ),
    ] = 1.0

    def check(self) -> None:
        self.normalise = check_rules(self.normalise)

    def missing_data(self) -> str:
        if self.include == UNION:
            return "Every record that any party has is in the cohort, and is lacking at the other parties."
        return f"A record that {self.include} lacks is left out of the cohort, whichever other parties have it."

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.alignment.attacks import alignment_attacks

        return alignment_attacks()


# --- the coordinator's procedure --------------------------------------------------------------------------


class Aligning(Procedure["Aligned"]):
    """Exchange blinded lists, then have the matcher number the cohort, then let every party store its rows."""

    trusted: ClassVar[bool] = False

    def __init__(self, method: AlignmentMethod, facts: PublicFacts, roster: Roster) -> None:
        self.method, self.facts, self.roster = method, facts, roster
        self.routes = self.chosen_routes()
        parties, capacity = self.routes.parties, method.capacity
        if set(capacity) != set(parties):
            raise BadArguments(
                f"capacity must state the most records of each of {', '.join(parties)}, and of nobody else."
            )
        self.epsilon = method.epsilon if len(parties) <= MOST_PARTIES else None
        terms = Terms(
            include=method.include,
            matcher=self.routes.matcher,
            capacity=dict(capacity),
            normalise=tuple(method.normalise),
            epsilon=self.epsilon,
        )
        self.arguments: dict[str, Any] = {"terms": plain(terms)}
        self.exchange = self.exchange_stages()
        self.number = stage(
            "number",
            self.number_step(),
            {self.routes.matcher: [self.arguments]},
            facts=facts,
            roster=roster,
            recipients=parties,
            discloses="the size n of the cohort, and noisy counts of the presence patterns",
            reply_bytes=8 * sum(capacity.values()),
        )
        self.settle = stage(
            "settle",
            settle,
            {party: [self.arguments] for party in parties},
            facts=facts,
            roster=roster,
            discloses="nothing: each party stores its rows at home",
        )
        self.stages = (*self.exchange, self.number, self.settle)
        self.notes = self._notes()

    def number_step(self) -> Step:
        """The matcher's."""
        return number

    def chosen_routes(self) -> Routes:
        return routes(self.roster, include=self.method.include, matcher=self.method.matcher)

    def exchange_stages(self) -> tuple[Stage, ...]:
        """Until the matcher has the tags of all lists: blind one's own, then raise the others' hop by hop."""
        largest = ELEMENT_BYTES * max(self.method.capacity.values())
        turns = {
            member: [{**self.arguments, "hop": hop} for hop in self.routes.turns(member)]
            for member in self.roster.names
        }
        common: dict[str, Any] = {
            "facts": self.facts,
            "roster": self.roster,
            "audience": "the next member of each list's route",
            "discloses": "sealed lists of blinded keys",
            "recipients": self.roster.names,
        }
        everyone = {party: [self.arguments] for party in self.routes.parties}
        return (
            stage("blind", blind, everyone, reply_bytes=largest, **common),
            stage("raise", raise_lists, turns, reply_bytes=largest * (len(self.routes.parties) - 1), **common),
        )

    def run_exchange(self, job: Job) -> None:
        blinding, raising = self.exchange
        job.ask(blinding)
        for hop in range(1, self.routes.rounds + 1):
            job.ask(raising, parties=[member for member in self.roster.names if hop in self.routes.turns(member)])

    def _notes(self) -> tuple[str, ...]:
        others = "each of the others learns which of its own records are in it, and nothing of anybody else's"
        if self.method.include == UNION:
            others = "the others learn n and pseudonymous row numbers of their own records"
        rules = ", ".join(self.method.normalise) or "nothing but Unicode's form NFC"
        notes = [
            f"{self.routes.matcher} learns the presence mask over the cohort's rows; {others}.",
            f"Keys are compared after normalising: {rules}. n becomes public.",
            "Against parties that keep to the protocol: one that adds guessed keys to its own list learns whether "
            "they are shared.",
        ]
        if self.epsilon is not None:
            notes.append(
                f"{FORECAST}: each number of records by pattern of presence is off by about"
                f" {laplace_sd(self.epsilon):.2g} (standard deviation)."
            )
        elif self.method.epsilon is not None:
            notes.append(f"No report: with more than {MOST_PARTIES} parties there are too many patterns to count.")
        return tuple(notes)

    def run(self, job: Job) -> Aligned:
        self.run_exchange(job)
        numbered = job.ask(self.number)[self.routes.matcher]
        job.ask(self.settle)
        return Aligned(
            n=numbered["n"],
            include=self.method.include,
            matcher=self.routes.matcher,
            parties=self.routes.parties,
            patterns=numbered["patterns"],
            noise_sd=0.0 if self.epsilon is None else laplace_sd(self.epsilon),
            trusted_matcher=self.trusted,
            simulated=job.simulated,
        )


def laplace_sd(epsilon: float) -> float:
    """The discrete Laplace with ratio q = e^-epsilon has variance 2 q / (1 - q)^2."""
    q = math.exp(-epsilon)
    return math.sqrt(2 * q) / (1 - q)


# --- the result -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Aligned(Result):
    """A cohort of n records, with a noisy count of each presence pattern (None without a report).

    `patterns[i]` are the counts of the pattern in which exactly the parties whose bit is set in i have the record; the
    first party is the lowest bit. n is exact and public; exact counts stay with the members that may have them.
    """

    kind: ClassVar[str] = "alignment"

    n: int
    include: str
    matcher: str
    parties: tuple[str, ...]
    patterns: NDArray[np.int64] | None
    noise_sd: float
    simulated: bool
    trusted_matcher: bool = False

    def overlap(self, parties: Sequence[str]) -> float:
        """The noisy number of records that all of these parties have.

        Parameters
        ----------
        parties : their names.

        Returns
        -------
        A number, which may be negative for the noise.
        """
        if self.patterns is None:
            raise ValueError("this alignment made no report; run it with an epsilon.")
        wanted = sum(1 << self.parties.index(party) for party in parties)
        return float(sum(count for index, count in enumerate(self.patterns.tolist()) if index & wanted == wanted))

    def rows(self) -> list[tuple[tuple[str, ...], int]]:
        """(who has the record, noisy count) for each pattern that can occur."""
        if self.patterns is None:
            return []
        return [
            (tuple(party for bit, party in enumerate(self.parties) if index >> bit & 1), count)
            for index, count in enumerate(self.patterns.tolist())
            if possible(index, self.parties, self.include)
        ]

    def to_dict(self) -> dict[str, Any]:
        patterns = [{"parties": list(names), "count": count} for names, count in self.rows()]
        return {**plain(self), "patterns": patterns}

    @classmethod
    def records_behind(cls, stated: Mapping[str, Any]) -> Iterator[Counted]:
        for pattern in stated["patterns"]:
            yield of_exactly(pattern["parties"]), pattern["count"], stated["noise_sd"]

    def _figure(self) -> Figure:
        held = self.rows()
        return Figure(
            name="overlap",
            chart="upset",
            data={
                "parties": list(self.parties),
                "patterns": [[party in names for party in self.parties] for names, _ in held],
                "counts": [count for _, count in held],
                "noise": self.noise_sd,
            },
            label="Who shares how many records; the numbers are in the table below",
            title="Who shares how many records",
            caption="A row is one combination of parties: joined dots have the record, faint ones do not. Whiskers are"
            " two standard deviations of the noise.",
            x="noisy number of records that exactly these parties have",
        )

    def _compared(self) -> str:
        if self.trusted_matcher:
            return "keyed hashes, which it could try names on if a party gave it the key,"
        return "blinded tags"

    def view(self) -> View:
        title = f"A cohort of {in_words(self.n)} records at {len(self.parties)} parties"
        cohort = "every record that any party has" if self.include == UNION else f"the records of {self.include}"
        rows = tuple((" + ".join(names), in_words(count)) for names, count in self.rows())
        head = ("records that exactly these hold", "noisy number")
        width = noise_width(self.noise_sd)
        if rows:
            ordered = tuple(row for _, row in sorted(zip((-count for _, count in self.rows()), rows, strict=True)))
            answer: tuple[Text | Table | Figure, ...] = (
                Text(text=f"The cohort is {cohort}.", style="lead"),
                self._figure(),
                Table(title="Overlap", head=head, rows=ordered, numeric=(1,), shown=0),
                Text(text=f"Noise: {width} (two standard deviations).", style="soft"),
            )
        else:
            many = len(self.parties) > MOST_PARTIES
            why = f"are left out with more than {MOST_PARTIES} parties" if many else "were not asked for"
            answer = (Text(text=f"The cohort is {cohort}. Overlap counts {why}."),)
        counts = f" Overlap counts are {width}." if rows else ""
        return View(
            title=title,
            quality=f"Equal keys are matched exactly; keys that are spelled differently are not.{counts}",
            answer=answer,
            sections=(
                Section(
                    title="Who learned what",
                    blocks=(
                        Text(
                            text=f"{self.matcher} compared {self._compared()} and knows which parties have each"
                            " pseudonymous row. Every party knows the rows of its own records. No party learned a key"
                            " that it does not hold. Exact overlap counts stay in each party's own folder"
                            " (aligned/overlap.json)."
                        ),
                    ),
                ),
            ),
            terminal=(Table(title=title, head=head, rows=rows, numeric=(1,)),),
        )


# --- the members' steps -----------------------------------------------------------------------------------


def disclosure(public: Public, *, terms: Terms) -> Cost:
    """What a party pays when its list enters the comparison: its presence, and the counts that are made of it.

    The matcher, which may own no data, computes the counts, but they are about the records of all data parties: each
    of them pays, and the joint id lets a person's total count them once. A record is in one pattern: zeroed out it
    moves one count by 1, replaced two.
    """
    return with_counts(public, presence_disclosure(public, terms), terms)


def with_counts(public: Public, presence: Cost, terms: Terms) -> Cost:
    """What presence costs, and the noisy counts of the patterns if there are any."""
    if terms.epsilon is None:
        return presence
    return compose([presence, Laplace(terms.epsilon, replace_factor=2.0, joint=f"{public.job} presence patterns")])


def presence_disclosure(public: Public, terms: Terms) -> Cost:
    """Presence is data about people. A party whose list is compared discloses it, without a bound."""
    include, matcher = terms.include, terms.matcher
    if include == UNION and public.party == matcher:
        return Free("this list comes back to its owner; to everybody else its elements are uniformly random")
    discloses = f"to {matcher}: which records of the cohort this party has"
    if include == public.party:
        discloses = "to each other party: which of its own records are in this party's block"
    # The audience is part of what a reservation covers: a request for another cohort or matcher is beyond it.
    audience = "each other party" if include == public.party else matcher
    return Unbounded("alignment", discloses, audience=f"{audience} ({include})")


RELAYED = Free("elements raised to a secret exponent are uniformly random to whoever does not know it")


@step(cost=disclosure)
def blind(me: Party, *, terms: Terms) -> Release:
    """Hash this party's keys, raise them, hide them among dummies in a random order, and send them on."""
    chosen = terms.routes(me.roster)
    forms, places = listed_keys(me, terms, tell=chosen.tell)
    exponent = draw_exponent(me.randomness)
    me.keep("exponent", exponent.to_bytes(ELEMENT_BYTES, "big"))
    elements = np.empty((terms.capacity[me.name], ELEMENT_BYTES), dtype=np.uint8)
    elements[places] = blind_list(forms, exponent, domain=me.job)
    free = np.setdiff1d(np.arange(len(elements)), places)
    elements[free] = raise_list(random_points(len(free), me.randomness), exponent)
    for route in chosen.of(me.name):
        me.send(route.hops[0], f"list {route.number} {terms.digest}", elements)
    return Release(None, "sealed: this party's keys, blinded, among dummies")


@step(cost=RELAYED)
def raise_lists(me: Party, *, terms: Terms, hop: int) -> Release:
    """Raise the lists that arrived on their way, in their order, to this member's exponent."""
    chosen = terms.routes(me.roster)
    exponent = int.from_bytes(me.recall("exponent"), "big")
    collect_places(me)
    for route in chosen.through(me.name, hop):
        before = route.owner if hop == 1 else route.hops[hop - 2]
        arrived = check_elements(only(me, f"list {route.number} {terms.digest}", before))
        if len(arrived) != terms.capacity[route.owner]:
            raise SealBroken(f"the list of {route.owner!r} has another length than agreed; align again.")
        after = route.after(hop)
        kind = "tags" if after is None else "list"
        me.send(after or chosen.matcher, f"{kind} {route.number} {terms.digest}", raise_list(arrived, exponent))
    return Release(None, "sealed: blinded keys, raised once more")


@step(cost=Free("n is public; row numbers are uniformly random; the data parties pay for noisy counts"))
def number(me: Party, *, terms: Terms) -> Release:
    """At the matcher: compare the tags, draw the order of the cohort, tell each party the rows of its list."""
    chosen = terms.routes(me.roster)
    collect_places(me)

    def listed(route: Route) -> TaggedList:
        name = f"tags {route.number} {terms.digest}"
        tags = check_elements(me.recall(name) if me.kept(name) else only(me, name, route.hops[-1]))
        return TaggedList(tags, real_places(me, route.owner, terms))

    if terms.include == UNION:
        lists = {route.owner: listed(route) for route in chosen.routes}
        numbered = number_union({party: lists[party] for party in chosen.parties}, randomness=me.randomness)
    else:
        own = {route.hops[0]: listed(route) for route in chosen.of(terms.include)}
        others = {route.owner: listed(route) for route in chosen.routes if route.owner != terms.include}
        numbered = number_fixed(terms.include, own, others, randomness=me.randomness)
    return announce(me, numbered, chosen.parties, terms)


def announce(me: Party, numbered: Numbered, parties: Sequence[str], terms: Terms) -> Release:
    """At the matcher: send each party the rows of its list, keep exact counts here, release n and noisy counts."""
    cohort = numbered.cohort
    for party, rows in numbered.rows.items():
        me.send(party, f"rows {terms.digest}", {"n": cohort.n, "rows": rows})
    exact = pattern_counts(cohort, parties) if len(parties) <= MOST_PARTIES else None
    if exact is not None:
        patterns = {str(index): int(count) for index, count in enumerate(exact) if count}
        overlap = {"cohort": me.job, "n": cohort.n, "parties": list(parties), "patterns": patterns}
        write_overlap(me.home / "aligned", overlap)
    noisy = None
    if exact is not None and terms.epsilon is not None:
        shown = np.array([possible(index, parties, terms.include) for index in range(len(exact))])
        noisy = np.where(shown, noisy_counts(exact, terms.epsilon, me.randomness), 0)
    return Release(
        {"n": cohort.n, "patterns": noisy}, "the size n of the cohort, and noisy counts of the presence patterns"
    )


@step(cost=Free("each party's rows stay with it"))
def settle(me: Party, *, terms: Terms) -> Release:
    """Store this party's alignment at home; the next federation that is opened there takes it."""
    numbered = only(me, f"rows {terms.digest}", terms.matcher)
    rows = np.asarray(numbered["rows"], dtype=np.int64)[me.recall("places")]
    if not 1 <= int(numbered["n"]) <= sum(terms.capacity.values()):
        raise SealBroken(f"{terms.matcher!r} numbered more records than all lists hold; align again.")
    alignment = Alignment(int(numbered["n"]), rows)
    folder = me.home / "aligned"
    Home(path=folder).align(alignment, me.block.keys, cohort=me.job)
    counts = {"records": len(rows), "in_the_cohort": int(np.count_nonzero(rows >= 0))}
    # Of the keys that normalising changed nothing is shown but how many they are.
    write_overlap(folder, {"cohort": me.job, "n": alignment.n, **counts, "normalised": int(me.recall("normalised"))})
    return Release(None, "nothing: the rows are stored at this party")


# --- exact numbers, which stay with the members that may have them ------------------------------------------


def possible(index: int, parties: Sequence[str], include: str) -> bool:
    """Some party has every record; in a fixed cohort its party has."""
    return bool(index >> parties.index(include) & 1) if include in parties else index > 0


def pattern_counts(cohort: Cohort, parties: Sequence[str]) -> NDArray[np.int64]:
    """Exact counts of all 2^K patterns, in the order of `Aligned.patterns`."""
    columns = [cohort.parties.index(party) for party in parties]
    index = cohort.presence[:, columns] @ (1 << np.arange(len(columns), dtype=np.int64))
    return np.bincount(index, minlength=2 ** len(columns)).astype(np.int64)


def noisy_counts(exact: NDArray[np.int64], epsilon: float, randomness: Randomness) -> NDArray[np.int64]:
    """Of L1 sensitivity 1 under zero-out; the scale is rounded up."""
    return exact + discrete_laplace(randomness, math.nextafter(1 / epsilon, math.inf), len(exact))


def write_overlap(folder: Path, plain: dict[str, Any]) -> None:
    """Exact numbers, for the operator of the party whose folder this is."""
    stored = json.loads((folder / OVERLAP).read_text()) if (folder / OVERLAP).is_file() else {}
    earlier = stored if stored.get("cohort") == plain["cohort"] else {}
    with whole_file(folder / OVERLAP) as partial:
        partial.write_text(json.dumps({**earlier, **plain}, indent=2) + "\n", encoding="utf-8")
