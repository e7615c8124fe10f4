"""What several pages share: what a method is for, a job in a table, the budget, whether a record is intact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from colonnade.console.desk import JobCard, Spending
from colonnade.console.figures import budget_bar, legend
from colonnade.evaluation.page import Html, join, paragraph, table, tag
from colonnade.formatting import timestamp
from colonnade.privacy.accounting import Guarantee
from colonnade.privacy.wording import in_plain_words

METHODS = {
    "align": "Line up the members' records without showing keys",
    "describe": "Count records, and each column's values, with noise",
    "moments": "Counts, sums and products of columns, with noise",
    "contingency": "Tables of counts across members, with noise",
    "polynomial": "One polynomial of columns, summed over records, with noise",
    "presence-total": "Count the records that all members have, with noise",
    "pca": "Principal components of all members' columns",
    "classify": "Explain a yes-or-no column by the others (logistic regression)",
    "vfem": "Explain a column by the others, with missing blocks (regression)",
    "sparse-glm": "Choose the columns that explain another one",
    "copula-sqm": "A synthetic table of all members' columns (Gaussian copula)",
    "vcds": "A synthetic table (the copula paper's VCDS)",
    "evcds": "A synthetic table (the copula paper's EVCDS)",
    "ievcds": "A synthetic table (the copula paper's IEVCDS)",
    "fedpsg": "Fill in the records that a member lacks",
    "vertimrf": "A synthetic table of all members' columns (Markov random field)",
}
"""What a method is for, in words that need no paper."""

STATES = {"waiting": "wait", "approved": "good", "denied": "bad", "closed": "plain"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a page is served, and the word that its forms must bring back."""

    base: str
    form_token: str

    def job(self, name: str) -> str:
        return f"{self.base}requests/{quote(name, safe='')}"


@dataclass(frozen=True)
class Page:
    """`changing` is the part that the page's script asks for again."""

    title: str
    content: Html
    changing: Html | None = None


def purpose(card: JobCard) -> str:
    """What a job is for."""
    return METHODS.get(card.plan.method, card.plan.method)


def unit(text: str) -> Html:
    return tag("span", text, class_="unit")


def badge(card: JobCard) -> Html:
    words = {"waiting": "waits for you", "approved": "under way", "denied": "denied", "closed": "finished"}
    return tag("span", words[card.state], class_=f"badge {STATES[card.state]}")


def decided(card: JobCard) -> str:
    if card.decided is None:
        return ""
    maker, when = card.decided
    return f"{'denied' if card.state == 'denied' else 'approved'} by the {maker} on {timestamp(when)}"


def bound_words(bound: Guarantee) -> str:
    """A guarantee for somebody who reads no formulas."""
    if bound.unbounded:
        return f"no bound ({', '.join(bound.unbounded)})"
    if bound.epsilon == 0:
        return "none of its own"
    at = f" at delta {bound.delta:g}" if bound.delta else ""
    return f"epsilon {eps(bound)}{at}"


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


def job_table(cards: Sequence[JobCard], at: Place) -> Html:
    rows = [
        (
            tag("a", card.job, href=at.job(card.job)),
            purpose(card),
            card.asker or "-",
            "" if card.first is None else timestamp(card.first),
            join([badge(card), " ", tag("span", decided(card).removeprefix("denied "), class_="soft")]),
        )
        for card in cards
    ]
    return table(("job", "what", "asked by", "received", "state"), rows, label="Jobs")


def eps(bound: Guarantee) -> str:
    return f"{bound.epsilon:.3g}" if math.isfinite(bound.epsilon) else "infinity"


def budget_summary(spending: Spending, *, legend_wanted: bool = False) -> list[Html | None]:
    stated, window = spending.budget, spending.window
    if stated is None or window is None:
        return [paragraph("No budget", class_="big"), paragraph("party.toml states none.", class_="soft")]
    left = max(stated.epsilon - window.epsilon, 0.0) if math.isfinite(window.epsilon) else 0.0
    period = "" if stated.period_days is None else f" in any {stated.period_days:g} days"
    entries = [("spent", f"spent: {eps(window)}"), ("left", f"left: {left:.3g}")]
    if spending.waiting is not None:
        entries.insert(1, ("claimed", "what waits"))
    return [
        paragraph(f"{left:.3g}", " ", unit(f"of epsilon {stated.epsilon:g} left"), class_="big"),
        budget_bar(window.epsilon, spending.waiting, stated.epsilon),
        legend(*entries) if legend_wanted else None,
        paragraph(f"At delta {stated.delta:g}, {stated.relation}{period}.", class_="soft"),
    ]


def missing(what: str) -> Page:
    return Page("Not here", join([tag("h1", "Not here"), paragraph(what)]))
