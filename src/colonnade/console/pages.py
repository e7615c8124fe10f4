"""The pages beside the requests: overview, budget, ledger, transcript, runs.

Whatever comes from a coordinator (job names, sentences, options) is text here, never markup: see `evaluation.page`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import quote

from colonnade.console.desk import Desk, JobCard, Record
from colonnade.console.figures import progress_bar, spending_line
from colonnade.console.parts import Page, Place, badge, bound_list, budget_summary, job_table, purpose, unit
from colonnade.durable import Row
from colonnade.errors import ColonnadeError
from colonnade.evaluation.page import Html, folded, join, paragraph, section, table, tag
from colonnade.federation.transports.certificates import CERTIFICATE, read_certificate
from colonnade.formatting import size, timestamp
from colonnade.privacy.cost import Cost
from colonnade.privacy.ledger import DEFAULT_DELTA
from colonnade.privacy.wording import cost_text

ROWS = 50
"""A page of a record shows this many."""

NOT_THE_WHOLE = (
    "These figures are this institution's alone: a person's total also includes the other members' releases."
    " A run's report has the total over all of them."
)


def overview(desk: Desk, at: Place) -> Page:
    jobs = desk.jobs()
    waiting = [card for card in jobs if card.state == "waiting"]
    under_way = [card for card in jobs if card.state == "approved"]
    spending = desk.spending(delta=DEFAULT_DELTA)
    cards = [
        tag(
            "li",
            tag("h2", "Waiting for you"),
            paragraph(str(len(waiting)), " ", unit("request" if len(waiting) == 1 else "requests"), class_="big"),
            paragraph(tag("a", "Read and decide", href=f"{at.base}requests"))
            if waiting
            else paragraph("Nothing waits for a decision.", class_="soft"),
            class_="card",
        ),
        tag("li", tag("h2", "Budget"), *budget_summary(spending), class_="card"),
        tag(
            "li",
            tag("h2", "Runs under way"),
            paragraph(str(len(under_way)), " ", unit("run" if len(under_way) == 1 else "runs"), class_="big"),
            *(_progress(card) for card in under_way[:3]),
            class_="card",
        ),
        tag("li", tag("h2", "Records"), *_health(desk), class_="card"),
    ]
    latest = section("Latest jobs", job_table(jobs[:8], at)) if jobs else None
    served = None
    if not desk.served:
        served = paragraph(
            f"This party has not served yet. Run colonnade party serve {desk.file.name} and leave it running.",
            class_="warning",
        )
    return Page("Overview", tag("h1", "Overview"), join([served, tag("ul", *cards, class_="cards"), latest]))


def budget(desk: Desk, at: Place) -> Page:
    spending = desk.spending(delta=DEFAULT_DELTA, history=True)
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
        parts += [*budget_summary(spending, legend_wanted=True)]
    if spending.history:
        epsilon = None if stated is None else stated.epsilon
        drawn = spending_line(spending.history, epsilon, time.time())
        parts.append(
            section(
                "How it was spent",
                tag(
                    "figure",
                    drawn,
                    tag(
                        "figcaption",
                        "Epsilon after each approval. The dashed line is the budget."
                        if stated
                        else "Epsilon after each approval.",
                    ),
                    class_="chart",
                ),
            )
        )
    totals = [("Whole life", spending.lifetime)]
    if stated is not None and spending.window is not None and stated.period_days is not None:
        totals.insert(0, (f"Last {stated.period_days:g} days", spending.window))
    parts += [
        section("Totals", bound_list(totals)),
        paragraph(NOT_THE_WHOLE, class_="soft"),
        paragraph(
            "An approval reserves the whole plan and nothing is refunded, so this is the most that was spent."
            " A release without a bound is not part of a budget: the policy allows it by name, or it does not happen.",
            class_="soft",
        ),
    ]
    return Page("Budget", join(parts))


def ledger(desk: Desk, at: Place, *, before: int | None = None) -> Page:
    rows = desk.rows("ledger", before=before, most=ROWS)
    listed = [
        (
            str(row.number),
            timestamp(row.body["time"]),
            "reserved" if row.body["kind"] == "reserve" else f"request {row.body['seq']}",
            tag("a", row.body["job"], href=at.job(row.body["job"])),
            row.body["phase"],
            cost_text(Cost.from_dict(row.body["cost"])),
        )
        for row in rows
    ]
    what = "Reservations count against the budget. A debit is made for each request, before its step sees any data."
    head = ("row", "time", "what", "job", "phase", "cost")
    return Page(
        "Ledger",
        join(
            [
                tag("h1", "Ledger"),
                paragraph(what, class_="soft"),
                _chain(desk, "ledger"),
                table(head, listed, label="Ledger, newest first", numeric=(0,)) if rows else paragraph("No rows yet."),
                _pager(rows, before, f"{at.base}ledger"),
            ]
        ),
    )


def transcript(desk: Desk, at: Place, *, job: str | None = None, before: int | None = None) -> Page:
    rows = desk.rows("transcript", job=job, before=before, most=ROWS)
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
    address = f"{at.base}transcript" + (f"?job={quote(job, safe='')}" if job else "")
    only = None
    if job:
        only = paragraph("Only job ", tag("code", job), ". ", tag("a", "All messages", href=f"{at.base}transcript"))
    return Page(
        "Transcript",
        join(
            [
                tag("h1", "Transcript"),
                paragraph(
                    "Every message that crossed this institution's border: its size, its hash and what it discloses,"
                    " not its content.",
                    class_="soft",
                ),
                _chain(desk, "transcript"),
                only,
                table(head, listed, label="Transcript, newest first", numeric=(0, 5))
                if rows
                else paragraph("No messages yet."),
                _pager(rows, before, address),
            ]
        ),
    )


def runs(desk: Desk, at: Place) -> Page:
    cards = [card for card in desk.jobs() if card.state in ("approved", "closed")]
    items = [
        tag(
            "li",
            tag("h2", purpose(card), " ", badge(card)),
            _progress(card),
            _phase_list(card),
            paragraph(
                f"{card.traffic.messages:,} messages, {size(card.traffic.bytes)}. ",
                "" if card.traffic.last is None else f"Last message {timestamp(card.traffic.last)}. ",
                tag(
                    "a",
                    "Its messages",
                    href=f"{at.base}transcript?job={quote(card.job, safe='')}",
                    aria_label=f"Messages of {card.job}",
                ),
                " · ",
                tag("a", "Its plan", href=at.job(card.job), aria_label=f"Plan of {card.job}"),
                class_="soft",
            ),
            class_="card",
        )
        for card in cards
    ]
    what = (
        "A run makes at most the requests that its plan has reserved; many need fewer. It ends when the coordinator"
        " closes it."
    )
    content = tag("ul", *items, class_="stack") if items else paragraph("No run has been approved yet.")
    return Page("Runs", join([tag("h1", "Runs"), paragraph(what, class_="soft")]), content)


def _progress(card: JobCard) -> Html:
    told = f"{card.answered:,} of at most {card.most:,} requests answered"
    return join(
        [progress_bar(card.answered, card.most, f"{card.job}: {told}"), paragraph(tag("code", card.job), f": {told}")]
    )


def _phase_list(card: JobCard) -> Html | None:
    if len(card.phases) < 2:
        return None
    rows = [(name, f"{done:,}", f"{most:,}") for name, done, most in card.phases]
    head = ("phase", "answered", "at most")
    return folded("Phases", table(head, rows, label=f"Phases of {card.job}", numeric=(1, 2)))


def _chain(desk: Desk, record: Record) -> Html:
    intact, sentence = desk.verified(record)
    return paragraph(sentence, class_="note good" if intact else "warning")


def _health(desk: Desk) -> list[Html]:
    lines = []
    for record in ("ledger", "transcript"):
        intact, sentence = desk.verified(record)
        kind, word = ("good", "intact") if intact else ("bad", "changed")
        lines.append(
            paragraph(
                f"{record.capitalize()}: ", tag("span", word, class_=f"badge {kind}"), None if intact else sentence
            )
        )
    try:
        ends = read_certificate(desk.party.credentials / CERTIFICATE).not_valid_after_utc
        days = (ends.timestamp() - time.time()) / 86_400
        kind = "bad" if days < 0 else "wait" if days < 7 else "good"
        told = f"{days:.0f} days left" if days >= 0 else "expired"
        lines.append(paragraph("Certificate: ", tag("span", told, class_=f"badge {kind}")))
    except ColonnadeError:
        lines.append(paragraph("Certificate: ", tag("span", "none", class_="badge bad")))
    lines.append(paragraph("colonnade doctor checks everything else.", class_="soft"))
    return lines


def _pager(rows: Sequence[Row], before: int | None, address: str) -> Html | None:
    links = []
    mark = "&" if "?" in address else "?"
    if before is not None:
        links.append(tag("a", "Newest", href=address))
    if len(rows) == ROWS and rows[-1].number > 1:
        links.append(tag("a", "Older", href=f"{address}{mark}before={rows[-1].number}"))
    return tag("p", *links, class_="pager") if links else None
