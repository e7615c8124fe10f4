"""The pages beside the requests: overview, budget, ledger, transcript, runs; and what all pages share.

Whatever comes from a coordinator (job names, sentences, options) is text here, never markup: see `view.page`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from urllib.parse import quote

from colonnade.console.layout import Address, Page
from colonnade.console.operator import JobSummary, OperatorService, Record, Spending
from colonnade.durable import Row
from colonnade.errors import ColonnadeError
from colonnade.federation.transports.certificates import CERTIFICATE, read_certificate
from colonnade.formatting import duration, size, timestamp
from colonnade.privacy.accounting import Guarantee
from colonnade.privacy.cost import Cost
from colonnade.privacy.ledger import DEFAULT_DELTA, budget_figure, spending_figure
from colonnade.privacy.wording import cost_text, in_plain_words
from colonnade.view.page import Html, folded, join, paragraph, section, table, tag
from colonnade.view.render import render_blocks

ROWS = 50
"""A page of a record shows this many."""

NOT_THE_WHOLE = (
    "These figures are this institution's alone: a person's total also includes the other members' releases."
    " A run's report has the total over all of them."
)

STATES = {
    "waiting": ("wait", "waits for you"),
    "approved": ("good", "under way"),
    "denied": ("bad", "denied"),
    "closed": ("plain", "finished"),
    "ended": ("bad", "ended here"),
}
"""State of a job -> class of its badge, and its word."""


# --- what all pages share -----------------------------------------------------------------------------------------


def unit(text: str) -> Html:
    return tag("span", text, class_="unit")


def badge(kind: str, word: str) -> Html:
    return tag("span", word, class_=f"badge {kind}")


def state_badge(job: JobSummary) -> Html:
    return badge(*STATES[job.state])


def card(title: str, *children: str | None) -> Html:
    return tag("li", tag("h2", title), *children, class_="card")


def counted(count: int, noun: str) -> Html:
    return paragraph(str(count), " ", unit(noun if count == 1 else f"{noun}s"), class_="big")


def decision_of(job: JobSummary) -> str:
    if job.decision is None:
        return ""
    maker, when = job.decision
    word = job.state if job.state in ("denied", "ended") else "approved"
    who = ", ".join(job.approved_by) if word == "approved" and job.approved_by else f"the {maker}"
    return f"{word} by {who} on {timestamp(when)}"


def bound_words(bound: Guarantee) -> str:
    """A guarantee for a reader who reads no formulas."""
    if bound.unbounded:
        return f"no bound ({', '.join(bound.unbounded)})"
    if bound.epsilon == 0:
        return "none of its own"
    delta = f" at delta {bound.delta:g}" if bound.delta else ""
    return f"epsilon {eps(bound)}{delta}"


def bound_list(entries: Sequence[tuple[str, Guarantee]]) -> Html:
    """Whose total, what it is, and what that means."""
    return tag(
        "ul",
        *(
            tag(
                "li",
                paragraph(tag("strong", f"{whose}: {bound_words(bound)}"), "."),
                paragraph(in_plain_words(bound), class_="soft"),
            )
            for whose, bound in entries
        ),
        class_="leaves",
    )


def job_table(jobs: Sequence[JobSummary], service: OperatorService, address: Address) -> Html:
    rows = [
        (
            tag("a", job.name, href=address.job(job.name)),
            service.summary(job.plan).purpose,
            job.requester or "-",
            "" if job.proposed is None else timestamp(job.proposed),
            join([state_badge(job), " ", tag("span", decision_of(job).removeprefix("denied "), class_="soft")]),
        )
        for job in jobs
    ]
    return table(("job", "what", "asked by", "received", "state"), rows, label="Jobs")


def eps(bound: Guarantee) -> str:
    return f"{bound.epsilon:.3g}" if math.isfinite(bound.epsilon) else "infinity"


def progress_bar(done: int, most: int, label: str) -> Html:
    return tag("progress", value=done, max=max(most, 1), aria_label=label)


def budget_picture(spent: Guarantee, what: str, after: float | None, budget: float) -> Html | None:
    """What is spent and left, and what would be spent; none where no number says it."""
    if not math.isfinite(spent.epsilon) or not math.isfinite(after or 0.0):
        return None
    return render_blocks([budget_figure(spent.epsilon, what, after, budget)])


def budget_summary(spending: Spending, *, drawn: bool = False) -> list[Html | None]:
    """In words, with a picture where it is `drawn`, otherwise with a bar that the browser draws: the overview is asked
    for again every few seconds."""
    stated, window = spending.budget, spending.window
    if stated is None or window is None:
        return [paragraph("No budget", class_="big"), paragraph("party.toml states none.", class_="soft")]
    left = max(stated.epsilon - window.epsilon, 0.0) if math.isfinite(window.epsilon) else 0.0
    period = "" if stated.period_days is None else f" in any {stated.period_days:g} days"
    if drawn:
        picture = budget_picture(window, "what waits", spending.waiting, stated.epsilon)
    else:
        words = f"Spent {eps(window)} of epsilon {stated.epsilon:g}"
        spent = min(window.epsilon, stated.epsilon)
        picture = tag("meter", value=f"{spent:.4g}", max=f"{stated.epsilon:g}", aria_label=words)
    claimed = f"{spending.waiting:.3g} would be spent if all that waits were approved." if spending.waiting else ""
    return [
        paragraph(f"{left:.3g}", " ", unit(f"of epsilon {stated.epsilon:g} left"), class_="big"),
        picture,
        paragraph(claimed) if claimed and not drawn else None,
        paragraph(f"At delta {stated.delta:g}, {stated.relation}{period}.", class_="soft"),
    ]


# --- the pages ----------------------------------------------------------------------------------------------------


def overview(service: OperatorService, address: Address) -> Page:
    jobs = service.jobs()
    waiting = [job for job in jobs if job.state == "waiting"]
    under_way = [job for job in jobs if job.state == "approved"]
    spending = service.spending(delta=DEFAULT_DELTA)
    cards = [
        card(
            "Waiting for you",
            counted(len(waiting), "request"),
            paragraph(tag("a", "Read and decide", href=f"{address.base}requests"))
            if waiting
            else paragraph("Nothing waits for a decision.", class_="soft"),
        ),
        card("Budget", *budget_summary(spending)),
        card("Runs under way", counted(len(under_way), "run"), *map(_progress, under_way[:3])),
        card("Records", *_health(service)),
    ]
    latest = section("Latest jobs", job_table(jobs[:8], service, address)) if jobs else None
    served = None
    if not service.served:
        served = paragraph(
            f"This party has not served yet. Run colonnade party serve {service.file.name} and leave it running.",
            class_="warning",
        )
    return Page("Overview", tag("h1", "Overview"), join([served, tag("ul", *cards, class_="cards"), latest]))


def budget(service: OperatorService, address: Address) -> Page:
    spending = service.spending(delta=DEFAULT_DELTA, history=True)
    parts: list[str | None] = [tag("h1", "Budget")]
    stated = spending.budget
    if stated is None:
        parts.append(
            paragraph(
                "party.toml states no [budget], so nothing stops the sum of approved jobs from growing. Add one, such"
                " as epsilon = 5.0 and delta = 1e-6.",
                class_="warning",
            )
        )
    elif spending.window is not None:
        parts += budget_summary(spending, drawn=True)
    if spending.history:
        figure = spending_figure(spending.history, None if stated is None else stated.epsilon, time.time())
        parts.append(section("How it was spent", render_blocks([figure])))
    totals = [("Whole life", spending.lifetime)]
    if stated is not None and spending.window is not None and stated.period_days is not None:
        totals.insert(0, (f"Last {stated.period_days:g} days", spending.window))
    parts += [
        section("Totals", bound_list(totals)),
        paragraph(NOT_THE_WHOLE, class_="soft"),
        paragraph(
            "An approval reserves the whole plan, and only a job of which nothing was ever asked is taken off again, so"
            " this is the most that was spent."
            " A release without a bound is not part of a budget: the policy allows it by name, or it does not happen.",
            class_="soft",
        ),
    ]
    return Page("Budget", join(parts))


WHAT = {"reserve": "reserved", "withdraw": "withdrawn"}


def ledger(service: OperatorService, address: Address, *, before: int | None = None) -> Page:
    rows = service.rows("ledger", before=before, most=ROWS)
    listed = [
        (
            str(row.number),
            timestamp(row.body["time"]),
            f"request {row.body['seq']}" if row.body["kind"] == "debit" else WHAT[row.body["kind"]],
            tag("a", row.body["job"], href=address.job(row.body["job"])),
            row.body["phase"],  # its stage
            cost_text(Cost.from_dict(row.body["cost"])),
        )
        for row in rows
    ]
    head = ("row", "time", "what", "job", "stage", "cost")
    return _record(
        service,
        "ledger",
        "Reservations count against the budget. A debit is made for each request, before its step sees any data.",
        table(head, listed, label="Ledger, newest first", numeric=(0,)) if rows else paragraph("No rows yet."),
        _pager(rows, before, f"{address.base}ledger"),
    )


def transcript(
    service: OperatorService, address: Address, *, job: str | None = None, before: int | None = None
) -> Page:
    rows = service.rows("transcript", job=job, before=before, most=ROWS)
    listed = [
        (
            str(row.number),
            timestamp(row.body["time"]),
            f"{'to' if row.body['direction'] == 'out' else 'from'} {row.body['peer']}",
            row.body["kind"],
            row.body["step"] or "",
            size(row.body["bytes"]),
            row.body["discloses"] or "",
        )
        for row in rows
    ]
    head = ("row", "time", "message", "kind", "step", "size", "discloses")
    link = f"{address.base}transcript" + (f"?job={quote(job, safe='')}" if job else "")
    every = tag("a", "All messages", href=f"{address.base}transcript")
    return _record(
        service,
        "transcript",
        "Every message that crossed this institution's border: its size, its hash and what it discloses, not its"
        " content.",
        paragraph("Only job ", tag("code", job), ". ", every) if job else None,
        table(head, listed, label="Transcript, newest first", numeric=(0, 5))
        if rows
        else paragraph("No messages yet."),
        _pager(rows, before, link),
    )


def _record(service: OperatorService, record: Record, what: str, *rows: Html | None) -> Page:
    """A page of a record: what it is, whether its chain is intact, its rows."""
    intact, sentence = service.verified(record)
    chain = paragraph(sentence, class_="note good" if intact else "warning")
    title = record.capitalize()
    return Page(title, join([tag("h1", title), paragraph(what, class_="soft"), chain, *rows]))


def runs(service: OperatorService, address: Address) -> Page:
    approved = [job for job in service.jobs() if job.state in ("approved", "closed", "ended")]
    items = [
        tag(
            "li",
            tag("h2", service.summary(job.plan).purpose, " ", state_badge(job)),
            _progress(job),
            _stage_list(job),
            paragraph(
                f"{job.traffic.messages:,} messages, {size(job.traffic.bytes)}. ",
                "" if job.traffic.last is None else f"Last message {timestamp(job.traffic.last)}. ",
                tag(
                    "a",
                    "Its messages",
                    href=f"{address.base}transcript?job={quote(job.name, safe='')}",
                    aria_label=f"Messages of {job.name}",
                ),
                " · ",
                tag("a", "Its plan", href=address.job(job.name), aria_label=f"Plan of {job.name}"),
                class_="soft",
            ),
            class_="card",
        )
        for job in approved
    ]
    what = (
        "A run makes at most the requests that its plan has reserved; many need fewer. It ends when the coordinator"
        " closes it."
    )
    content = tag("ul", *items, class_="stack") if items else paragraph("No run has been approved yet.")
    return Page("Runs", join([tag("h1", "Runs"), paragraph(what, class_="soft")]), content)


def _progress(job: JobSummary) -> Html:
    progress = f"{job.answered:,} of at most {job.most:,} requests answered"
    if job.state == "approved" and job.remaining is not None:
        progress += f", at most about {duration(job.remaining)} left"
    return join(
        [
            progress_bar(job.answered, job.most, f"{job.name}: {progress}"),
            paragraph(tag("code", job.name), f": {progress}"),
        ]
    )


def _stage_list(job: JobSummary) -> Html | None:
    if len(job.stages) < 2:
        return None
    rows = [(name, f"{done:,}", f"{most:,}") for name, done, most in job.stages]
    head = ("stage", "answered", "at most")
    return folded("Stages", table(head, rows, label=f"Stages of {job.name}", numeric=(1, 2)))


def _health(service: OperatorService) -> list[Html]:
    lines = []
    for record in ("ledger", "transcript"):
        intact, sentence = service.verified(record)
        state = badge("good", "intact") if intact else badge("bad", "changed")
        lines.append(paragraph(f"{record.capitalize()}: ", state, None if intact else sentence))
    try:
        ends = read_certificate(service.party.credentials / CERTIFICATE).not_valid_after_utc
        days = (ends.timestamp() - time.time()) / 86_400
        kind = "bad" if days < 0 else "wait" if days < 7 else "good"
        certificate = badge(kind, f"{days:.0f} days left" if days >= 0 else "expired")
    except ColonnadeError:
        certificate = badge("bad", "none")
    hint = paragraph("colonnade doctor checks everything else.", class_="soft")
    return [*lines, paragraph("Certificate: ", certificate), hint]


def _pager(rows: Sequence[Row], before: int | None, address: str) -> Html | None:
    links = []
    mark = "&" if "?" in address else "?"
    if before is not None:
        links.append(tag("a", "Newest", href=address))
    if len(rows) == ROWS and rows[-1].number > 1:
        links.append(tag("a", "Older", href=f"{address}{mark}before={rows[-1].number}"))
    return tag("p", *links, class_="pager") if links else None
