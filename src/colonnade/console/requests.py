"""The requests that wait, and one request with its plan in plain words and the operator's decision."""

from __future__ import annotations

import json
from collections.abc import Sequence

from colonnade.console.desk import Desk, Forecast, JobCard
from colonnade.console.figures import budget_bar, legend
from colonnade.console.parts import Page, Place, badge, bound_list, bound_words, decided, eps, job_table, purpose
from colonnade.errors import ColonnadeError
from colonnade.evaluation.page import Html, folded, join, paragraph, section, tag
from colonnade.federation.plan import Phase
from colonnade.formatting import timestamp
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.wording import cost_text


def requests(desk: Desk, at: Place) -> Page:
    jobs = desk.jobs()
    waiting = [card for card in jobs if card.state == "waiting"]
    done = [card for card in jobs if card.state != "waiting"]
    items = [tag("li", *_request_summary(card, desk, at), class_="card") for card in waiting]
    parts = [
        tag("ul", *items, class_="stack") if items else paragraph("No request waits for a decision."),
        section("Decided", job_table(done, at)) if done else None,
    ]
    return Page("Requests", join([tag("h1", "Requests"), paragraph(_policy_words(desk), class_="soft")]), join(parts))


def request(desk: Desk, at: Place, job: str, *, complaint: str | None = None) -> Page:
    card = desk.job(job)
    try:
        forecast, unaccountable = desk.forecast(card), None
    except ColonnadeError as error:
        forecast, unaccountable = None, str(error)
    mine = [one for one in card.plan.stages if desk.name in one.costs]
    parts: list[str | None] = [
        paragraph(tag("a", "All requests", href=f"{at.base}requests")),
        tag("h1", purpose(card), " ", badge(card)),
        _facts(card, desk, forecast),
        paragraph(complaint, class_="warning", role="alert") if complaint else None,
        paragraph(unaccountable, class_="warning") if unaccountable else None,
        _trust(forecast) if forecast and forecast.genuine is not None else None,
        section("What leaves this institution", _leaves(mine, desk.name, card.plan.delta)),
    ]
    if forecast is not None:
        parts.append(_protection(forecast, desk))
    if card.state == "waiting":
        parts.append(_decision(card, forecast, at))
    if card.plan.notes:
        parts.append(section("Notes of the plan", *(paragraph(note) for note in card.plan.notes)))
    options = json.dumps(dict(card.plan.options), indent=2, ensure_ascii=False)
    parts += [
        folded("Options of the method", tag("pre", options)),
        folded("The whole plan, with the other members' part", tag("pre", card.plan.text())),
    ]
    return Page(f"Request {card.job}", join(parts))


def _who(card: JobCard) -> str:
    return card.asker or "whoever runs this machine (a federation without certificates)"


def _request_summary(card: JobCard, desk: Desk, at: Place) -> list[Html | None]:
    mine = [one for one in card.plan.stages if desk.name in one.costs]
    try:
        cost = bound_words(card.plan.total(party=desk.name))
    except ColonnadeError as error:
        cost = str(error)
    return [
        tag("h2", purpose(card)),
        paragraph(
            f"{card.asker or 'Whoever runs this machine'} asks for ",
            tag("code", card.job),
            "" if card.first is None else f", received {timestamp(card.first)}.",
        ),
        paragraph(f"What leaves: {'; '.join(one.discloses for one in mine)}."),
        paragraph(f"Cost here: {cost}."),
        paragraph(
            tag("a", "Read the plan and decide", href=at.job(card.job), aria_label=f"Read and decide {card.job}")
        ),
    ]


def _policy_words(desk: Desk) -> str:
    policy = desk.now().policy
    if policy.approve == "ask":
        return "The policy in party.toml approves nothing by itself: every job waits here."
    methods = "every method" if policy.methods is None else ", ".join(policy.methods)
    columns = "every declared column" if policy.columns is None else ", ".join(policy.columns)
    return (
        f"The policy in party.toml approves by itself: {methods}; on {columns}; from {policy.minimum_cohort:,} records."
        " Everything else waits here."
    )


def _facts(card: JobCard, desk: Desk, forecast: Forecast | None) -> Html:
    columns = None
    if forecast is not None:
        columns = ", ".join(forecast.columns) or "none of this institution's"
    entries = [
        ("Asked by", _who(card)),
        ("Job", tag("code", card.job)),
        ("Received", "" if card.first is None else timestamp(card.first)),
        ("Decision", decided(card) or ("waits for the operator" if card.state == "waiting" else "")),
        ("Method", card.plan.method),
        ("Columns it reads here", columns or ""),
        ("Rounds", f"{card.plan.rounds():,} in {len(card.plan.stages)} phases"),
        ("Simulation", "yes: a seed makes the noise predictable, so nobody is protected" if card.asked.seeded else ""),
    ]
    return tag("dl", *(join([tag("dt", term), tag("dd", text)]) for term, text in entries if text))


def _trust(forecast: Forecast) -> Html:
    if forecast.genuine:
        return paragraph(
            "This installation makes the very same plan for this method and these options, so the sentences below are"
            " its own.",
            class_="note good",
        )
    return paragraph(
        f"Take care: the sentences below are the coordinator's. {forecast.doubt} Ask the consortium before you"
        " approve.",
        class_="note bad",
    )


def _sentence(words: str) -> str:
    """With a capital, unless the first word is a symbol such as n."""
    return words if not words[1:2].isalpha() else f"{words[:1].upper()}{words[1:]}"


def _leaves(mine: Sequence[Phase], party: str, delta: float) -> Html:
    if not mine:
        return paragraph("Nothing: this job asks nothing of this institution.")
    items = []
    for one in mine:
        count = one.counts[party]
        times = "one message" if count == 1 else f"up to {count:,} messages"
        try:
            cost = bound_words(guarantee([one.costs[party]], delta=delta))
        except ColonnadeError:
            cost = cost_text(one.costs[party])
        items.append(
            tag(
                "li",
                paragraph(tag("strong", _sentence(one.discloses)), "."),
                paragraph(f"{times} for {one.audience}; phase {one.name}, step {one.step}", class_="soft"),
                paragraph(f"Cost: {cost}", class_="soft"),
            )
        )
    return tag("ul", *items, class_="leaves")


def _protection(forecast: Forecast, desk: Desk) -> Html:
    totals = bound_list(
        [("This institution's releases", forecast.here), ("All members' releases together", forecast.person)]
    )
    open_ended = None
    if forecast.unbounded:
        told = [
            paragraph(f"{name}: {discloses}. Your policy {'allows' if allowed else 'does not allow'} it by name.")
            for name, discloses, allowed in forecast.unbounded
        ]
        open_ended = tag(
            "div", paragraph("Shown as it is, without a bound. No epsilon covers this."), *told, class_="warning"
        )
    bar = None
    if forecast.before is not None and forecast.after is not None:
        stated = desk.now().policy.budget
        assert stated is not None
        bar = join(
            [
                tag("h3", "Your budget"),
                paragraph(
                    f"Spending counted against the budget goes from epsilon {eps(forecast.before)} to"
                    f" {eps(forecast.after)} of {stated.epsilon:g}."
                ),
                budget_bar(forecast.before.epsilon, forecast.after.epsilon, stated.epsilon),
                legend(("spent", "spent"), ("claimed", "this job"), ("left", "left")),
            ]
        )
    return section(
        "What it costs a person",
        open_ended,
        totals,
        bar,
    )


def _decision(card: JobCard, forecast: Forecast | None, at: Place) -> Html:
    refused = None if forecast is None else forecast.refused
    blocked = bool(refused) or forecast is None

    def form(choice: str, text: str, kind: str, *, disabled: bool = False) -> Html:
        return tag(
            "form",
            tag("input", type="hidden", name="form", value=at.form_token),
            tag("input", type="hidden", name="job", value=card.job),
            tag("input", type="hidden", name="choice", value=choice),
            tag("button", text, class_=kind, disabled=disabled),
            method="post",
            action=f"{at.base}decide",
        )

    return section(
        "Your decision",
        paragraph(f"It cannot be approved: {refused}", class_="warning") if refused else None,
        paragraph(
            "Approving reserves the whole cost at once and cannot be taken back. The coordinator then resumes the run."
            " Denying ends this job; the coordinator may propose another."
        ),
        tag(
            "div",
            form("approve", "Approve", "main", disabled=blocked),
            form("deny", "Deny", "refuse"),
            class_="decide",
        ),
    )
