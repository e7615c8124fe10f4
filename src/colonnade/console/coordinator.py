"""The coordinator's console: the queue with its progress, and a form that asks for a job.

The form has a field for each option that the method declares, read as the command line reads it. It leads to the plan,
with every cost and message; a second form asks for that very plan. Who holds the coordinator's folder may ask, here as
on the terminal; every party still decides for itself.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote, unquote

from colonnade.catalogue import CATALOGUE
from colonnade.console.layout import Address, Page
from colonnade.console.operators import Operators
from colonnade.console.pages import badge, card, progress_bar
from colonnade.errors import ColonnadeError, RunError
from colonnade.evaluation.privacy import glance
from colonnade.federation.config import Consortium, CoordinatorFile
from colonnade.federation.job import Progress
from colonnade.federation.method import Method
from colonnade.federation.options import Declared
from colonnade.federation.plan import Plan
from colonnade.federation.service import Queue, State, planned
from colonnade.federation.spelling import form_of, members, read, repeated, spell
from colonnade.federation.transports.certificates import AUTHORITY
from colonnade.formatting import duration
from colonnade.privacy.person import PersonTotal
from colonnade.view.page import Html, folded, join, notes, paragraph, section, table, tag

FIRST = ("epsilon", "delta", "response", "columns", "model", "n_components")
"""Options that are shown at once, with those that must be given; the others are folded."""
MARK = "option."
"""Before the name of an option in a form."""
BADGES = {"running": "good", "waiting": "wait", "failed": "bad"}
NOT_SERVED = "No coordinator serves this queue; start one with colonnade coordinator serve"
LATER = "The plan is made when all members are connected and their records are lined up; the job waits until then."


class CoordinatorSite:
    """For the person who asks for jobs."""

    name = "the coordinator"
    pages: ClassVar[tuple[tuple[str, str], ...]] = (("", "Jobs"), ("ask", "Ask for a job"))

    def __init__(self, file: Path) -> None:
        self.path, self.file = file, CoordinatorFile.from_toml(file)

    @property
    def queue(self) -> Queue:
        return Queue(self.file.queue)

    @property
    def operators(self) -> Operators:
        return Operators(self.file.queue)

    @cached_property
    def consortium(self) -> Consortium:
        return Consortium.from_toml(self.file.consortium, authority=self.file.credentials / AUTHORITY)

    def waiting(self) -> int:
        return 0

    def content(self, address: Address, path: str, query: Mapping[str, str]) -> Page:
        current, _, method = path.partition("/")
        if current == "ask":
            return self._asking(address, unquote(method), {}) if method else self._choice(address)
        if path:
            raise RunError("There is no such page.")
        return self._jobs(address)

    def act(self, address: Address, action: str, fields: Mapping[str, str], by: str) -> str | Page:
        try:
            if action == "end" and fields.get("sure") == "yes":
                self.queue.end(fields.get("job", ""), failed="taken out of the queue")
                return address.base
        except RunError as error:
            return replace(self._jobs(address, complaint=str(error)), agreed=False)
        if action not in ("plan", "ask"):
            raise RunError("There is no such form.")
        name = fields.get("method", "")
        texts = {key.removeprefix(MARK): text for key, text in fields.items() if key.startswith(MARK) and text.strip()}
        try:
            method, plan = planned(self.file, self._method(name), _options(self._method(name), texts))
        except RunError:
            raise
        except ColonnadeError as error:
            return replace(self._asking(address, name, texts, complaint=str(error)), agreed=False)
        if action == "plan":
            return _planned(address, method, plan, texts)
        if plan is not None and plan.hopeless and fields.get("sure") != "yes":
            return replace(_planned(address, method, plan, texts), agreed=False)
        if fields.get("plan", "") != _fingerprint(plan):
            changed = "The plan has changed since it was shown: other records are lined up, or other members connected."
            return replace(_planned(address, method, plan, texts, complaint=changed), agreed=False)
        self.queue.ask(method, sure=plan is not None)
        return address.base

    # --- the queue ----------------------------------------------------------------------------------------------

    def _jobs(self, address: Address, complaint: str = "") -> Page:
        queue = self.queue
        waiting = [(name, queue.state(name)) for name in queue.waiting()]
        items = [_job(name, queue.job(name)["method"], state, address) for name, state in waiting]
        ended = [(name, *_outcome(queue.state(name), self.file.runs / name)) for name in queue.ended()]
        parts = [
            None if queue.served else paragraph(f"{NOT_SERVED} {self.path.name}.", class_="warning"),
            tag("ul", *items, class_="stack") if items else paragraph("No job is in the queue."),
            section("Ended", table(("job", "state", ""), ended, label="Jobs that have ended")) if ended else None,
        ]
        title = [tag("h1", "Jobs"), paragraph(complaint, class_="warning", role="alert") if complaint else None]
        return Page("Jobs", join(title), join(parts))

    # --- asking -------------------------------------------------------------------------------------------------

    def _method(self, name: str) -> type[Method[Any]]:
        if name not in CATALOGUE.own():
            raise RunError(f"there is no method {name!r} that every party has.")
        return CATALOGUE.load(name)

    def _choice(self, address: Address) -> Page:
        cards = [
            card(name, paragraph(entry.purpose()), paragraph(tag("a", f"Ask for {name}", href=_asking(address, name))))
            for name, entry in CATALOGUE.own().items()
        ]
        what = "What is asked for waits in the queue until every party has approved it."
        return Page(
            "Ask for a job",
            join([tag("h1", "Ask for a job"), paragraph(what, class_="soft"), tag("ul", *cards, class_="cards")]),
        )

    def _asking(self, address: Address, name: str, texts: Mapping[str, str], complaint: str = "") -> Page:
        method = self._method(name)
        declared = [option for option in method.declared().values() if not _found_out(method, option)]
        first = [option for option in declared if option.default is MISSING or option.name in FIRST]
        rest = [option for option in declared if option not in first]
        given = any(option.name in texts for option in rest)
        fields = [
            *(_field(option, texts.get(option.name, "")) for option in first),
            tag(
                "details",
                tag("summary", "More options"),
                *(_field(option, texts.get(option.name, "")) for option in rest),
                open=given,
            )
            if rest
            else None,
            tag("datalist", *(tag("option", value=name) for name in self._columns()), id="columns"),
        ]
        parts = [
            paragraph(tag("a", "All methods", href=f"{address.base}ask")),
            tag("h1", f"Ask for {name}"),
            paragraph(method.purpose()),
            paragraph(complaint, class_="warning", role="alert") if complaint else None,
            address.form("plan", tag("button", "Show the plan", class_="main"), *fields, method=name),
            folded("Columns of the consortium", self._column_table()),
        ]
        return Page(f"Ask for {name}", join(parts))

    def _columns(self) -> list[str]:
        return [name for own in self.consortium.columns.values() for name in own]

    def _column_table(self) -> Html:
        rows = [
            (name, party, column.kind) for party, own in self.consortium.columns.items() for name, column in own.items()
        ]
        return table(("column", "held by", "kind"), rows, label="Columns of the consortium")


def _asking(address: Address, method: str) -> str:
    return f"{address.base}ask/{quote(method, safe='')}"


def _found_out(method: type[Method[Any]], option: Declared) -> bool:
    """Whether the consortium states it."""
    return method.makes_cohort and option.name == "capacity"


def _options(method: type[Method[Any]], texts: Mapping[str, str]) -> dict[str, Any]:
    """What was typed, as values; lines are what the command line would repeat."""
    declared = method.declared()
    method._known(texts)
    return {
        name: read(declared[name], text.split("\n") if repeated(declared[name].hint) else text.strip())
        for name, text in ((name, text.replace("\r", "").strip()) for name, text in texts.items())
    }


def _field(declared: Declared, text: str) -> Html:
    """One option: its name, what to type, its help and its default."""
    key, described = f"{MARK}{declared.name}", f"help-{declared.name}"
    common: dict[str, Any] = {
        "id": key,
        "name": key,
        "aria_describedby": described,
        "required": declared.default is MISSING,
    }
    choices = _choices(declared.hint)
    stated = declared.default not in (MISSING, None, (), {}, "")
    usual = " ".join(spell(declared.default)) if stated else ""
    if choices:
        blank = [] if declared.default is MISSING else [tag("option", f"by default {usual or 'none'}", value="")]
        entries = [tag("option", choice, value=choice, selected=choice == text) for choice in choices]
        control = tag("select", *blank, *entries, **common)
    elif repeated(declared.hint):
        control = tag("textarea", text, rows="2", placeholder=usual or form_of(declared), **common)
    else:
        names = "columns" if declared.option.reads else None
        control = tag("input", value=text, placeholder=usual or form_of(declared), list=names, **common)
    help_text = [declared.option.help]
    if declared.option.range:
        help_text.append(f"{declared.option.range[0].upper()}{declared.option.range[1:]}.")
    if declared.default is MISSING:
        help_text.append("Must be given.")
    elif usual and not choices:
        help_text.append(f"By default {usual}.")
    return tag(
        "div",
        tag("label", declared.name, for_=key),
        control,
        paragraph(" ".join(help_text), class_="soft", id=described),
        class_="field",
    )


def _choices(hint: Any) -> list[str]:
    """What may be chosen, where nothing else can be typed."""
    kinds = members(hint)
    values: list[Any] = []
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            values += typing.get_args(kind)
        elif kind is bool:
            values += [True, False]
        elif kind is type(None):
            values.append(None)
        else:
            return []
    return [spell(value)[0] for value in values]


def _planned(
    address: Address, method: Method[Any], plan: Plan | None, texts: Mapping[str, str], complaint: str = ""
) -> Page:
    """The plan, and the button that asks for it."""
    fields = {f"{MARK}{name}": text for name, text in texts.items()}
    hopeless = "" if plan is None else plan.hopeless
    parts = [
        paragraph(tag("a", "Other options", href=_asking(address, method.name))),
        tag("h1", f"Plan of {method.name}"),
        paragraph(method.purpose()),
        paragraph(complaint, class_="warning", role="alert") if complaint else None,
        paragraph(hopeless, class_="warning") if hopeless else None,
    ]
    if plan is None:
        parts.append(paragraph(LATER))
    else:
        person = PersonTotal.of(plan.costs(), delta=plan.delta)
        parts += [
            glance(plan, person, "Known when it has run; the notes say what to expect."),
            section("Notes of the plan", *notes([note for note in plan.notes if note not in hopeless])),
            folded("The whole plan", tag("pre", plan.text())),
        ]
    parts.append(
        address.form(
            "ask",
            tag("button", "Ask for it", class_="main"),
            sure="Ask for it though it will not work." if hopeless else "",
            method=method.name,
            plan=_fingerprint(plan),
            **fields,
        )
    )
    return Page(f"Plan of {method.name}", join(parts))


def _fingerprint(plan: Plan | None) -> str:
    return "" if plan is None else plan.fingerprint


def _job(name: str, method: str, state: State, address: Address) -> Html:
    bar = None
    if state.progress is not None:
        now = Progress(**state.progress)
        words = f"round {now.rounds:,} of {now.of:,}, {now.stage}"
        words += "" if now.remaining is None else f"; about {duration(now.remaining)} left"
        bar = join([progress_bar(now.rounds, now.of, f"{name}: {words}"), paragraph(words)])
    return tag(
        "li",
        tag("h2", name, " ", badge(BADGES.get(state.state, "plain"), state.state)),
        paragraph(method if not state.sentence else f"{method}: {state.sentence}"),
        bar,
        folded(
            "End this job",
            paragraph("It leaves the queue. What it has spent stays spent; parties end what it left by themselves."),
            address.form("end", tag("button", "End it", class_="refuse"), job=name, sure="End this job for good."),
        ),
        class_="card",
    )


def _outcome(state: State, run: Path) -> tuple[Html, Html]:
    told = state.sentence or tag("code", str((run / "report.html").absolute()))
    return badge("bad" if state.state == "failed" else "good", state.state), join([told])
