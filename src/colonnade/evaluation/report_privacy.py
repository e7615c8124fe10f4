"""What a run released, to whom, and what that means for one person, in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from colonnade.evaluation.page import Html, join, listing, paragraph, section, table, tag
from colonnade.evaluation.privacy import LEAST_EVENT, belief, costs_by_audience, presence_fixed, right_guesses
from colonnade.federation.plan import Phase, Plan
from colonnade.privacy.accounting import Guarantee, guarantee
from colonnade.privacy.cost import Cost, Relation
from colonnade.privacy.wording import in_plain_words, pair

SHOWN = "Who holds which pseudonymous record was shown ({})."
PRIORS = (0.5, 0.1, 0.01)
RELATIONS: tuple[Relation, ...] = get_args(Relation)


@dataclass(frozen=True)
class Spent:
    """The costs of a run at each party, and what they compose to for one person."""

    by_party: Mapping[str, Sequence[Cost]]
    total: Mapping[Relation, Guarantee]
    right: Mapping[Relation, float]
    shown: tuple[str, ...] = ()
    """Releases of presence, by name: then the totals hold with who is present held fixed."""

    @classmethod
    def of(cls, plan: Plan, costs: Mapping[str, Any]) -> Spent:
        by_party = {party: [Cost.from_dict(one) for one in each] for party, each in costs["costs"].items()}
        everything = [cost for each in by_party.values() for cost in each]
        fixed = presence_fixed(everything)
        counted = everything if fixed is None else fixed
        names = () if fixed is None else guarantee(everything, delta=plan.delta).unbounded
        return cls(
            by_party,
            {one: guarantee(counted, delta=plan.delta, relation=one) for one in RELATIONS},
            {one: right_guesses(counted, relation=one) for one in RELATIONS},
            names,
        )

    @property
    def everything(self) -> list[Cost]:
        return [cost for each in self.by_party.values() for cost in each]

    @property
    def bounded(self) -> bool:
        return all(math.isfinite(bound.epsilon) for bound in self.total.values())


# --- the first screen -------------------------------------------------------------------------------------


def glance(plan: Plan, spent: Spent, quality: str, treatment: str | None) -> Html:
    """What was released, to whom, at what cost, and how good it is, with what was done about missing blocks."""
    cards = (
        ("Released", listing(released(plan))),
        ("Seen by", listing(seen_by(plan))),
        ("Cost to a person", _cost_card(spent)),
        (
            "How good",
            join([paragraph(quality), paragraph(f"Missing blocks: {treatment}", class_="soft") if treatment else None]),
        ),
    )
    return tag(
        "section",
        tag("h2", "At a glance", class_="quiet"),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", told)) for name, told in cards), class_="glance"),
    )


def released(plan: Plan) -> list[str]:
    """What left the parties, one sentence each."""
    return list(dict.fromkeys(_sentence(one.discloses) for one in plan.stages if not _silent(one)))


def seen_by(plan: Plan) -> list[str]:
    """Who saw it."""
    return list(dict.fromkeys(_audience(one.audience) for one in plan.stages if not _silent(one)))


def _silent(phase: Phase) -> bool:
    """A phase in which parties only work at home."""
    return phase.discloses.startswith("nothing")


def _cost_card(spent: Spent) -> Html:
    whole = spent.total["zero-out"]
    if not spent.bounded:
        return paragraph(in_plain_words(whole), class_="strong")
    return join(
        [
            paragraph(tag("strong", SHOWN.format(", ".join(spent.shown))), " Apart from that:")
            if spent.shown
            else None,
            paragraph(
                tag("strong", f"epsilon {_rounded_up(whole.epsilon)}, delta {whole.delta:g}"),
                f" ({whole.relation}; {_rounded_up(spent.total['replace'].epsilon)} under replace).",
            ),
            paragraph(
                "An attacker who knows everything except one person's record tells whether it was used in at most"
                f" {_hundred(spent.right['zero-out'])} of 100 cases; a coin does in 50."
            ),
        ]
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _audience(name: str) -> str:
    if name == "coordinator":
        return "Coordinator, and readers of this page"
    return _sentence(name).replace("any t of them learn nothing", "none learns anything alone")


def _rounded_up(epsilon: float) -> str:
    """As `Guarantee` prints it: never smaller than it is."""
    return pair(Guarantee(epsilon=epsilon, delta=0.0, unit="record", relation="zero-out", accountant=""))[1:].split(
        ","
    )[0]


def _hundred(share: float) -> str:
    """Per 100, rounded up; a bound of almost 100 is not worth decimals."""
    return f"{math.ceil(100 * share - 1e-9):d}" if share < 0.995 else "100"


# --- the section ------------------------------------------------------------------------------------------


def privacy(plan: Plan, spent: Spent, remarks: Sequence[str], *, unseeded: str | None) -> Html:
    """The attacker, the numbers, who saw what at what cost, and who is trusted. `unseeded` warns of a simulation."""
    return section(
        "Privacy",
        tag("h3", "What it costs a person"),
        _attacker(plan, spent),
        paragraph(unseeded, class_="warning") if unseeded else None,
        tag("h3", "What left the parties, and who saw it"),
        listing(_released(*one) for one in _once_each(plan)),
        paragraph(
            "Nothing else about the data did: each party's own border lets only such releases out, and the transcript"
            " below has every message."
        ),
        *_cost_tables(plan, spent),
        tag("h3", "Who is trusted"),
        listing(
            [
                "Each party trusts its own machine and installation, and nobody else, with its data: it computes at"
                " home and adds the noise before anything leaves.",
                "Everybody named above under 'seen by' may keep what they saw, combine it with anything they know, and"
                " learn no more about a person than the cost says.",
                *remarks,
            ]
        ),
        paragraph("docs/threat-model.md says who is trusted with what, and what is out of scope.", class_="soft"),
    )


def _attacker(plan: Plan, spent: Spent) -> Html:
    if not spent.bounded:
        bound = spent.total["zero-out"]
        return join(
            [
                paragraph(in_plain_words(bound), class_="warning"),
                paragraph(
                    "An attacker who knows everything about a person except what was released here may learn it from"
                    " these releases. The parties allowed them by name; noise protects nothing in them."
                ),
            ]
        )
    zero, other = spent.total["zero-out"], spent.total["replace"]
    return join(
        [
            paragraph(
                f"{SHOWN.format(', '.join(spent.shown))} That has no bound, and the parties allowed it by name. What"
                " follows is about the values, with who is present held fixed.",
                class_="warning",
            )
            if spent.shown
            else None,
            paragraph(
                "Think of an attacker who knows everything about everybody except one person's record: all other"
                " records, this program, and every number that was released. It wants to know whether that record was"
                " used at all (zero-out), or which of two versions of it is the true one (replace)."
            ),
            paragraph(
                f"If both were equally likely before, it guesses right in at most {_hundred(spent.right['zero-out'])}"
                f" of 100 cases under zero-out and in {_hundred(spent.right['replace'])} under replace. Without any"
                " release it would be 50."
            ),
            table(
                ("believed before", *(f"at most after, {relation}" for relation in RELATIONS)),
                [
                    (
                        f"{100 * prior:g} %",
                        *(_percent(belief(prior, epsilon=b.epsilon, delta=b.delta)) for b in (zero, other)),
                    )
                    for prior in PRIORS
                ],
                label="What an attacker may believe",
                numeric=(1, 2),
            ),
            paragraph(
                f"The table holds for every conclusion that is drawn at least once in {1 / LEAST_EVENT:,.0f} cases."
                f" {in_plain_words(zero)} {in_plain_words(other)}",
                class_="soft",
            ),
        ]
    )


def _percent(share: float) -> str:
    """Rounded up: it is a bound."""
    return f"{math.ceil(1000 * share - 1e-9) / 10:.1f} %"


def _cost_tables(plan: Plan, spent: Spent) -> list[Html | None]:
    by_party = [
        (f"{party}'s releases alone", *(pair(guarantee(each, delta=plan.delta, relation=one)) for one in RELATIONS))
        for party, each in spent.by_party.items()
    ]
    whole = [guarantee(spent.everything, delta=plan.delta, relation=one) for one in RELATIONS]
    total = [("A person's total over all parties", *map(pair, whole))]
    if spent.shown:
        total.append(("with who is present held fixed", *(pair(spent.total[relation]) for relation in RELATIONS)))
    numeric = (1, 2) if not whole[0].unbounded else ()
    seen = costs_by_audience(spent.everything, delta=plan.delta)
    by_audience = [(one.audience, one.unit, *(pair(one.bounds[relation]) for relation in RELATIONS)) for one in seen]
    return [
        table(
            ("(epsilon, delta) per record", *RELATIONS), [*total, *by_party], label="Cost of this run", numeric=numeric
        ),
        table(
            ("what is shown to", "protects one", *RELATIONS),
            by_audience,
            label="Cost by audience",
            numeric=tuple(at + 1 for at in numeric),
        )
        if by_audience
        else None,
        paragraph(
            "Under zero-out a record's data becomes nothing; under replace it becomes any other's. The total composes"
            " the releases of all parties and counts a joint release once. It is that of this run alone: other runs on"
            " the same people add to it. Each party's ledger has its own part of all runs.",
            class_="soft",
        ),
    ]


def _once_each(plan: Plan) -> list[tuple[str, str, dict[str, int]]]:
    """(what, seen by whom, {party: how often}), of phases that disclose the same together; parties that only work at
    home are left out."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for one in plan.stages:
        if not _silent(one):
            counts = found.setdefault((one.discloses, one.audience), {})
            for party, count in one.counts.items():
                counts[party] = counts.get(party, 0) + count
    return [(*key, counts) for key, counts in found.items()]


def _released(what: str, audience: str, counts: Mapping[str, int]) -> Html:
    the = "" if audience.startswith(("the ", "whoever ")) else "the "
    return join(
        [
            tag("strong", what),
            f" ({_from_whom(counts)}), seen by {the}{audience}",
            # What went to anybody else is not on this page.
            " and by whoever reads this page." if audience == "coordinator" else ".",
        ]
    )


def _from_whom(counts: Mapping[str, int]) -> str:
    if len(set(counts.values())) == 1 and len(counts) > 1:
        times = next(iter(counts.values()))
        return f"{', '.join(counts)}; {'once' if times == 1 else f'{times} times'} each"
    return ", ".join(f"{party} {'once' if count == 1 else f'{count} times'}" for party, count in counts.items())
