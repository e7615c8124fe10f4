"""What a run's costs mean for one person, on a page: bounds by audience, what an attacker may believe, in plain words.

Everything here is computed from costs and plans, which are public. Nothing looks at data, so nothing here can spend
budget.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from colonnade.federation.plan import Plan
from colonnade.federation.stage import SEALED, Stage, audience_words
from colonnade.privacy.accounting import Guarantee, guarantee
from colonnade.privacy.cost import Cost, Relation, Unit
from colonnade.privacy.person import LEAST_EVENT, RELATIONS, PersonTotal, belief, person_figures
from colonnade.privacy.wording import in_plain_words, pair
from colonnade.view.page import Html, join, listing, paragraph, prose, section, table, tag
from colonnade.view.render import render_blocks


def costs_by_audience(costs: Sequence[Cost], *, delta: float) -> dict[tuple[str, Unit], dict[Relation, Guarantee]]:
    """The bounds of what each audience sees, for each unit that a cost speaks of; a joint release counts once.

    Audiences may combine what they saw; the person's total covers that and is not among these.
    """
    leaves = (leaf for cost in costs for leaf in cost.leaves() if leaf.mechanism != "free")
    bounds = {}
    for audience, unit in dict.fromkeys((leaf.audience, leaf.unit) for leaf in leaves):
        seen = [part for cost in costs for part in _seen_by(cost, audience, unit)]
        bounds[audience, unit] = {
            relation: guarantee(seen, delta=delta, unit=unit, relation=relation) for relation in RELATIONS
        }
    return bounds


def _seen_by(cost: Cost, audience: str, unit: Unit) -> list[Cost]:
    """The parts for one audience. A joint composed cost stays whole: its id stands for all of its parts."""
    leaves = cost.leaves()
    if all((leaf.audience, leaf.unit) == (audience, unit) or leaf.mechanism == "free" for leaf in leaves):
        return [cost] if leaves else []
    if cost.mechanism != "composed":
        return []
    return [seen.times(cost.count) for part in cost.parts for seen in _seen_by(part, audience, unit)]


# --- the first screen of a report -----------------------------------------------------------------------------


def cards(entries: Iterable[tuple[str, Html]], **attributes: str) -> Html:
    """What was released, to whom, at what cost, and how good it is, side by side."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", text)) for name, text in entries), **attributes)


def glance(plan: Plan, person: PersonTotal, quality: str) -> Html:
    assumed = paragraph(f"Missing blocks: {plan.missing_data}", class_="soft") if plan.missing_data else None
    entries = (
        ("How good", join([paragraph(prose(quality)), assumed])),
        ("Cost to a person", _cost_card(person)),
        ("Released", listing(_first(released(plan)))),
        ("Seen by", listing(_first(seen_by(plan)))),
    )
    return tag("section", tag("h2", "At a glance", class_="quiet"), cards(entries, class_="glance"))


def _first(sentences: list[str], most: int = 4) -> list[str]:
    """What fits a card; the section on privacy has all of it."""
    return sentences if len(sentences) <= most else [*sentences[:most], f"and {len(sentences) - most} more, below"]


def released(plan: Plan) -> list[str]:
    """What left the parties, one sentence each; what is not sealed comes first."""
    return list(dict.fromkeys(_sentence(stage.discloses) for stage in _open_first(plan)))


def seen_by(plan: Plan) -> list[str]:
    """Who saw it."""
    return list(dict.fromkeys(_sentence(_audience(stage.audience)) for stage in _open_first(plan)))


def _disclosing(plan: Plan) -> list[Stage]:
    """The stages without those in which parties only work at home."""
    return [stage for stage in plan.stages if not stage.discloses.startswith("nothing")]


def _open_first(plan: Plan) -> list[Stage]:
    return sorted(_disclosing(plan), key=lambda stage: stage.audience == SEALED)


def _cost_card(person: PersonTotal) -> Html:
    zero_out, replaced = (person.total[relation] for relation in ("zero-out", "replace"))
    if not person.bounded:
        return paragraph(in_plain_words(zero_out), class_="strong")
    return join(
        [
            paragraph(tag("strong", person.presence_sentence), " Apart from that:") if person.shown else None,
            paragraph(
                tag(
                    "strong",
                    f"epsilon {_rounded_up(zero_out)}, ",
                    tag("span", f"delta {zero_out.delta:g}", class_="whole"),
                ),
                f" ({zero_out.relation}; {_rounded_up(replaced)} under replace).",
            ),
            paragraph(
                "An attacker who knows everything except one person's record tells whether it was used in at most"
                f" {person.right('zero-out')} of 100 cases; a coin does in 50."
            ),
        ]
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _audience(name: str) -> str:
    return "coordinator, and readers of this page" if name == "coordinator" else audience_words(name)


def _rounded_up(bound: Guarantee) -> str:
    """As `Guarantee` prints it: never smaller than it is."""
    return pair(bound)[1:].split(",")[0]


# --- the section ----------------------------------------------------------------------------------------------

PRIORS = (0.5, 0.1, 0.01)


def privacy_section(
    plan: Plan,
    by_party: Mapping[str, Sequence[Cost]],
    person: PersonTotal,
    remarks: Sequence[str],
    *,
    unseeded: str | None,
) -> Html:
    """The attacker, the numbers, who saw what at what cost, and who is trusted. `unseeded` warns of a simulation."""
    return section(
        "Privacy",
        tag("h3", "What it costs a person"),
        _attacker(person),
        paragraph(unseeded, class_="warning") if unseeded else None,
        tag("h3", "What left the parties, and who saw it"),
        listing(_released(*release, parties=by_party) for release in _once_each(plan)),
        paragraph(
            "Nothing else about the data did: each party's own border lets only such releases out, and the transcript"
            " below has every message."
        ),
        *_cost_tables(by_party, person),
        tag("h3", "Who is trusted"),
        listing(
            [
                "Each party trusts its own machine and installation, and no one else, with its data: it computes at"
                " home and adds the noise before anything leaves.",
                "Everyone named above under 'seen by' may keep what they saw, combine it with anything they know, and"
                " learn no more about a person than the cost says.",
                *remarks,
            ]
        ),
        paragraph(
            prose("`colonnade docs threat-model` says who is trusted with what, and what is out of scope."),
            class_="soft",
        ),
    )


def _attacker(person: PersonTotal) -> Html:
    zero_out, replaced = (person.total[relation] for relation in ("zero-out", "replace"))
    if not person.bounded:
        return join(
            [
                paragraph(in_plain_words(zero_out), class_="warning"),
                paragraph(
                    "An attacker who knows everything about a person except what was released here may learn it from"
                    " these releases. The parties allowed them by name; noise protects nothing in them."
                ),
            ]
        )
    beliefs = [
        (
            f"{100 * prior:g} %",
            *(_percent(belief(prior, epsilon=bound.epsilon, delta=bound.delta)) for bound in (zero_out, replaced)),
        )
        for prior in PRIORS
    ]
    return join(
        [
            paragraph(
                f"{person.presence_sentence} That has no bound, and the parties allowed it by name. What follows is"
                " about the values, with who is present held fixed.",
                class_="warning",
            )
            if person.shown
            else None,
            paragraph(
                "Think of an attacker who knows everything about everyone except one person's record: all other"
                " records, this program, and every number that was released. It wants to know whether that record was"
                " used at all (zero-out), or which of two versions of it is the true one (replace)."
            ),
            paragraph(
                "If both were equally likely before, it guesses right in at most"
                f" {person.right('zero-out')} of 100 cases under zero-out and in"
                f" {person.right('replace')} under replace. Without any release it would be 50."
            ),
            render_blocks([person_figures(person)]),
            table(
                ("believed before", *(f"at most after, {relation}" for relation in RELATIONS)),
                beliefs,
                label="What an attacker may believe",
                numeric=(1, 2),
            ),
            paragraph(
                f"The table holds for every conclusion that is drawn at least once in {1 / LEAST_EVENT:,.0f} cases."
                f" {in_plain_words(zero_out)} {in_plain_words(replaced)}",
                class_="soft",
            ),
        ]
    )


def _percent(share: float) -> str:
    """Rounded up: it is a bound."""
    return f"{math.ceil(1000 * share - 1e-9) / 10:.1f} %"


def _cost_tables(by_party: Mapping[str, Sequence[Cost]], person: PersonTotal) -> list[Html | None]:
    everything = [cost for costs in by_party.values() for cost in costs]

    def both(costs: Sequence[Cost]) -> list[str]:
        return [pair(guarantee(costs, delta=person.delta, relation=relation)) for relation in RELATIONS]

    rows = [("A person's total over all parties", *both(everything))]
    if person.shown:
        rows.append(("with who is present held fixed", *map(pair, person.total.values())))
    rows += [(f"{party}'s releases alone", *both(costs)) for party, costs in by_party.items()]
    by_audience = [
        (audience if unit == "record" else f"{audience}, of one {unit}", *map(pair, bounds.values()))
        for (audience, unit), bounds in costs_by_audience(everything, delta=person.delta).items()
    ]
    unbounded = bool(guarantee(everything, delta=person.delta).unbounded)
    return [
        table(
            ("(epsilon, delta) per record", *RELATIONS),
            rows,
            label="Cost of this run",
            numeric=() if unbounded else (1, 2),
        ),
        table(
            ("what is shown to", *RELATIONS),
            by_audience,
            label="Cost by audience",
            numeric=() if unbounded else (1, 2),
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
    """(what, seen by whom, {party: how often}); stages that disclose the same are put together."""
    together: dict[tuple[str, str], dict[str, int]] = {}
    for stage in _disclosing(plan):
        counts = together.setdefault((stage.discloses, stage.audience), {})
        for party, count in stage.counts.items():
            counts[party] = counts.get(party, 0) + count
    return [(*release, counts) for release, counts in together.items()]


def _released(what: str, audience: str, counts: Mapping[str, int], *, parties: Collection[str]) -> Html:
    the = "" if audience in parties or audience.startswith(("the ", "anyone ", "whoever ")) else "the "
    # What went to others is not on this page.
    seen = "coordinator and by anyone who reads this page" if audience == "coordinator" else _audience(audience)
    return join([tag("strong", what), f" ({_from_whom(counts)}), seen by {the}{seen}."])


def _from_whom(counts: Mapping[str, int]) -> str:
    if len(set(counts.values())) == 1 and len(counts) > 1:
        times = next(iter(counts.values()))
        return f"{', '.join(counts)}; {'once' if times == 1 else f'{times} times'} each"
    return ", ".join(f"{party} {'once' if count == 1 else f'{count} times'}" for party, count in counts.items())
