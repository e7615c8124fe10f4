"""The requests that wait, and one request with its plan in plain words and the operator's decision.

What a job is for, its options and what it assumes are the words of this party's own catalogue; sentences of the plan
are the coordinator's, unless this installation makes the very same plan.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from colonnade.console.layout import Address, Page
from colonnade.console.operator import Forecast, JobSummary, MethodSummary, OperatorService
from colonnade.console.pages import bound_list, bound_words, budget_picture, decision_of, eps, job_table, state_badge
from colonnade.errors import ColonnadeError
from colonnade.federation.stage import Stage, audience_words
from colonnade.formatting import timestamp
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.wording import cost_text
from colonnade.view.page import Html, folded, join, notes, paragraph, section, tag


def requests(service: OperatorService, address: Address) -> Page:
    jobs = service.jobs()
    waiting = [job for job in jobs if job.state == "waiting"]
    done = [job for job in jobs if job.state != "waiting"]
    items = [tag("li", *_request_summary(job, service, address), class_="card") for job in waiting]
    parts = [
        tag("ul", *items, class_="stack") if items else paragraph("No request waits for a decision."),
        section("Decided", job_table(done, service, address)) if done else None,
    ]
    return Page(
        "Requests", join([tag("h1", "Requests"), paragraph(_policy_words(service), class_="soft")]), join(parts)
    )


def request(service: OperatorService, address: Address, name: str, *, complaint: str | None = None) -> Page:
    job = service.job(name)
    summary = service.summary(job.plan)
    try:
        forecast, unaccountable = service.forecast(job), None
    except ColonnadeError as error:
        forecast, unaccountable = None, str(error)
    parts: list[str | None] = [
        paragraph(tag("a", "All requests", href=f"{address.base}requests")),
        tag("h1", summary.purpose, " ", state_badge(job)),
        _facts(job, summary, forecast),
        paragraph(complaint, class_="warning", role="alert") if complaint else None,
        paragraph(unaccountable, class_="warning") if unaccountable else None,
        _trust(forecast) if forecast and forecast.genuine is not None else None,
        section("What leaves this institution", _leaves(_own_stages(job, service), service.name, job.plan.delta)),
    ]
    if forecast is not None:
        parts.append(_protection(forecast, service))
    if job.state == "waiting":
        parts.append(_decision(job, forecast, address, service.now().policy.approvals))
    if job.state in ("waiting", "approved"):
        parts.append(_ending(job, address))
    if job.plan.notes:
        parts.append(section("Notes of the plan", *notes(job.plan.notes)))
    options = json.dumps(dict(summary.options), indent=2, ensure_ascii=False)
    parts += [
        folded("Options of the method", tag("pre", options)),
        folded("The whole plan, with the other members' part", tag("pre", job.plan.text())),
    ]
    return Page(f"Request {job.name}", join(parts))


def _own_stages(job: JobSummary, service: OperatorService) -> list[Stage]:
    return [stage for stage in job.plan.stages if service.name in stage.costs]


def _request_summary(job: JobSummary, service: OperatorService, address: Address) -> list[Html | None]:
    leaves = "; ".join(dict.fromkeys(stage.discloses for stage in _own_stages(job, service)))
    try:
        cost = bound_words(job.plan.total(party=service.name))
    except ColonnadeError as error:
        cost = str(error)
    return [
        tag("h2", service.summary(job.plan).purpose),
        paragraph(
            f"{job.requester or 'The user of this machine'} asks for ",
            tag("code", job.name),
            "" if job.proposed is None else f", received {timestamp(job.proposed)}.",
        ),
        paragraph(f"What leaves: {leaves}."),
        paragraph(f"Cost here: {cost}."),
        paragraph(
            tag("a", "Read the plan and decide", href=address.job(job.name), aria_label=f"Read and decide {job.name}")
        ),
    ]


def _policy_words(service: OperatorService) -> str:
    policy = service.now().policy
    if policy.approve == "ask":
        return "The policy in party.toml approves nothing by itself: every job waits here."
    methods = "every method" if policy.methods is None else ", ".join(policy.methods)
    columns = "every declared column" if policy.columns is None else ", ".join(policy.columns)
    return (
        f"The policy in party.toml approves by itself: {methods}; on {columns}; from {policy.minimum_cohort:,} records."
        " Everything else waits here."
    )


def _facts(job: JobSummary, summary: MethodSummary, forecast: Forecast | None) -> Html:
    columns = ""
    if forecast is not None:
        columns = ", ".join(forecast.columns) or "none of this institution's"
    entries = [
        ("Asked by", job.requester or "the user of this machine (a federation without certificates)"),
        ("Job", tag("code", job.name)),
        ("Received", "" if job.proposed is None else timestamp(job.proposed)),
        ("Decision", decision_of(job) or _awaited(job)),
        ("Method", job.plan.method),
        ("Columns it reads here", columns),
        ("Records that lack a block", summary.missing_data),
        ("Rounds", f"{job.plan.rounds():,} in {len(job.plan.stages)} stages"),
        ("Simulation", "yes: a seed makes the noise predictable, so no one is protected" if job.seeded else ""),
    ]
    return tag("dl", *(join([tag("dt", term), tag("dd", text)]) for term, text in entries if text))


def _awaited(job: JobSummary) -> str:
    if job.state != "waiting":
        return ""
    return (
        f"approved by {', '.join(job.approved_by)}; waits for another" if job.approved_by else "waits for the operator"
    )


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


def _leaves(stages: Sequence[Stage], party: str, delta: float) -> Html:
    if not stages:
        return paragraph("Nothing: this job asks nothing of this institution.")
    together: dict[tuple[str, ...], list[Stage]] = {}
    for stage in stages:
        try:
            cost = bound_words(guarantee([stage.costs[party]], delta=delta))
        except ColonnadeError:
            cost = cost_text(stage.costs[party])
        # Only what costs nothing is put together: a reader must not add up.
        own = () if stage.costs[party].mechanism == "free" else (stage.name,)
        together.setdefault((stage.discloses, stage.audience, cost, *own), []).append(stage)
    items = []
    for (discloses, audience, cost, *_), alike in together.items():
        count = sum(stage.counts[party] for stage in alike)
        times = "one message" if count == 1 else f"up to {count:,} messages"
        steps = ", ".join(f"{stage.name} ({stage.step})" for stage in alike)
        items.append(
            tag(
                "li",
                paragraph(tag("strong", _sentence(discloses)), "."),
                paragraph(f"{times} for {audience_words(audience)}; in {steps}", class_="soft"),
                paragraph(f"Cost: {cost}", class_="soft"),
            )
        )
    return tag("ul", *items, class_="leaves")


def _protection(forecast: Forecast, service: OperatorService) -> Html:
    totals = bound_list(
        [("This institution's releases", forecast.own), ("All members' releases together", forecast.person)]
    )
    open_ended = None
    if forecast.unbounded:
        listed = [
            paragraph(f"{name}: {discloses}. Your policy {'allows' if allowed else 'does not allow'} it by name.")
            for name, discloses, allowed in forecast.unbounded
        ]
        open_ended = tag(
            "div", paragraph("Shown as it is, without a bound. No epsilon covers this."), *listed, class_="warning"
        )
    bar = None
    if forecast.before is not None and forecast.after is not None:
        stated = service.now().policy.budget
        assert stated is not None
        bar = join(
            [
                tag("h3", "Your budget"),
                paragraph(
                    f"Spending counted against the budget goes from epsilon {eps(forecast.before)} to"
                    f" {eps(forecast.after)} of {stated.epsilon:g}."
                ),
                budget_picture(forecast.before, "this job", forecast.after.epsilon, stated.epsilon),
            ]
        )
    return section("What it costs a person", open_ended, totals, bar)


def _ending(job: JobSummary, address: Address) -> Html:
    return folded(
        "End this job",
        paragraph(
            "What it left here is deleted: rows, shares, kept values. What it reserved stays spent, and the coordinator"
            " cannot go on with it."
        ),
        address.form("end", tag("button", "End it", class_="refuse"), job=job.name, sure="End this job for good."),
    )


def _decision(job: JobSummary, forecast: Forecast | None, address: Address, approvals: int) -> Html:
    refused = None if forecast is None else forecast.refused
    approve = tag("button", "Approve", class_="main", disabled=bool(refused) or forecast is None)
    deny = tag("button", "Deny", class_="refuse")
    return section(
        "Your decision",
        paragraph(f"It cannot be approved: {refused}", class_="warning") if refused else None,
        paragraph(f"{approvals} operators must approve it; one is enough to deny it.") if approvals > 1 else None,
        paragraph(
            "Approving reserves the whole cost at once and cannot be taken back. The coordinator then resumes the run."
            " Denying ends this job; the coordinator may propose another."
        ),
        tag(
            "div",
            address.form("decide", approve, job=job.name, choice="approve"),
            address.form("decide", deny, job=job.name, choice="deny"),
            class_="decide",
        ),
    )
