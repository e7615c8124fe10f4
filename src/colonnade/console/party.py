"""The console of one party: which page is where, and what its forms do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar
from urllib.parse import unquote

from colonnade.console import pages, requests
from colonnade.console.layout import Address, Page
from colonnade.console.operator import OperatorService
from colonnade.console.operators import Operators
from colonnade.errors import ColonnadeError, RunError


@dataclass(frozen=True)
class PartySite:
    """For the operators of a party."""

    service: OperatorService
    pages: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "Overview"),
        ("requests", "Requests"),
        ("budget", "Budget"),
        ("ledger", "Ledger"),
        ("transcript", "Transcript"),
        ("runs", "Runs"),
    )

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def operators(self) -> Operators:
        return self.service.operators

    def waiting(self) -> int:
        try:
            return len(self.service.waiting())
        except ColonnadeError:
            return 0

    def content(self, address: Address, path: str, query: Mapping[str, str]) -> Page:
        current, _, rest = path.partition("/")
        before = _row(query.get("before"))
        if current == "requests" and rest:
            return requests.request(self.service, address, unquote(rest))
        if rest:
            raise RunError("There is no such page.")
        if current == "ledger":
            return pages.ledger(self.service, address, before=before)
        if current == "transcript":
            return pages.transcript(self.service, address, job=query.get("job"), before=before)
        simple = {"": pages.overview, "requests": requests.requests, "budget": pages.budget, "runs": pages.runs}
        if current not in simple:
            raise RunError("There is no such page.")
        return simple[current](self.service, address)

    def act(self, address: Address, action: str, fields: Mapping[str, str], by: str) -> str | Page:
        """A decision, or the end of a job; a refusal is shown on the job's page."""
        job, choice = fields.get("job", ""), fields.get("choice")
        deciding = action == "decide" and choice in ("approve", "deny")
        if not deciding and not (action == "end" and fields.get("sure") == "yes"):
            raise RunError("There is no such form.")
        try:
            if deciding:
                self.service.decide(job, approve=choice == "approve", by=by)
            else:
                self.service.end(job, by=by)
        except ColonnadeError as error:
            return replace(requests.request(self.service, address, job, complaint=str(error)), agreed=False)
        return address.job(job)


def _row(text: str | None) -> int | None:
    """The row that an address names."""
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise RunError("an address names a row by its number; follow a link of the page instead.")
    return int(text)
