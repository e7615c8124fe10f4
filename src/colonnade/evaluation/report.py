"""The report of a run: one self-contained HTML file that answers first and then shows what it cost.

Everything in it comes from the run folder, so it can be written again at any time. What a result says is the
business of its kind (`KINDS`); privacy, plan and transcript read alike for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import colonnade
from colonnade.durable import Database
from colonnade.errors import RunError
from colonnade.evaluation import (
    report_alignment,
    report_description,
    report_models,
    report_regression,
    report_selection,
    report_synthetic,
)
from colonnade.evaluation.page import Html, folded, join, listing, page, paragraph, section, table, tag
from colonnade.evaluation.words import in_plain_words, moment, size
from colonnade.federation.plan import Plan
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.transcript import Transcript
from colonnade.privacy.accounting import Guarantee, guarantee
from colonnade.privacy.cost import Cost, Relation

MOST_MESSAGES = 5_000
COMPARISON = "comparison.json"
SIMULATED = (
    "This is a simulation: a seed made the noise predictable, so these numbers protect nobody. Do not use a seed on"
    " real data."
)
UNSEEDED = "With a seed none of this holds: these are the costs that the same run would have without one."


@dataclass(frozen=True)
class Shown:
    """A table for a terminal; `numeric` columns are set flush right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: tuple[int, ...] = ()


def _description(result: Mapping[str, Any]) -> list[Shown]:
    told = report_description
    cohort = f"{result['n']:,} records in the cohort; ± is two standard deviations of the noise"
    return [
        Shown(cohort, told.PARTY_HEAD, told.party_rows(result), (1, 2, 3)),
        Shown("Columns", told.COLUMN_HEAD, told.column_rows(result)),
    ]


def _components(result: Mapping[str, Any]) -> list[Shown]:
    told = report_models
    return [Shown(told.pca_title(result), told.COMPONENT_HEAD, told.component_rows(result), (1,))]


def _classifier(result: Mapping[str, Any]) -> list[Shown]:
    told = report_models
    rows = told.coefficient_rows(result)[: told.MOST_SHOWN]
    return [Shown(told.classifier_title(result), told.COEFFICIENT_HEAD, rows, (1,))]


def _regression(result: Mapping[str, Any]) -> list[Shown]:
    told = report_regression
    return [Shown(told.title(result), told.COEFFICIENT_HEAD, told.coefficient_rows(result), (1, 2, 3, 4, 5, 6))]


def _alignment(result: Mapping[str, Any]) -> list[Shown]:
    told = report_alignment
    return [Shown(told.title(result), told.PATTERN_HEAD, told.pattern_rows(result), (1,))]


def _selection(result: Mapping[str, Any]) -> list[Shown]:
    told = report_selection
    return [Shown(told.title(result), told.COEFFICIENT_HEAD, told.coefficient_rows(result), (1,))]


def _synthetic(result: Mapping[str, Any]) -> list[Shown]:
    told = report_synthetic
    return [Shown(told.title(result), told.COLUMN_HEAD, told.column_rows(result))]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one kind of result is told: a title, the answer, what stands behind it, and the tables of a terminal."""

    title: Callable[[Mapping[str, Any]], str]
    answer: Callable[[Mapping[str, Any]], Html]
    details: Callable[[Mapping[str, Any]], Html]
    terminal: Callable[[Mapping[str, Any]], list[Shown]]


KINDS: dict[str, Kind] = {
    "description": Kind(
        title=report_description.title,
        answer=report_description.answer,
        details=report_description.details,
        terminal=_description,
    ),
    "pca": Kind(
        title=report_models.pca_title,
        answer=report_models.pca_answer,
        details=report_models.pca_details,
        terminal=_components,
    ),
    "classifier": Kind(
        title=report_models.classifier_title,
        answer=report_models.classifier_answer,
        details=report_models.classifier_details,
        terminal=_classifier,
    ),
    "vfem": Kind(
        title=report_regression.title,
        answer=report_regression.answer,
        details=report_regression.details,
        terminal=_regression,
    ),
    "alignment": Kind(
        title=report_alignment.title,
        answer=report_alignment.answer,
        details=report_alignment.details,
        terminal=_alignment,
    ),
    "sparse-glm": Kind(
        title=report_selection.title,
        answer=report_selection.answer,
        details=report_selection.details,
        terminal=_selection,
    ),
    "synthetic-table": Kind(
        title=report_synthetic.title,
        answer=report_synthetic.answer,
        details=report_synthetic.details,
        terminal=_synthetic,
    ),
}


def kind_of(run: RunFolder, result: Mapping[str, Any]) -> Kind:
    """How this result is told."""
    kind = KINDS.get(str(result.get("kind")))
    if kind is None:
        raise RunError(
            f"{run.path} holds a result of kind {result.get('kind')!r}, for which this version has no report; update"
            " Colonnade."
        )
    return kind


def write_report(run: RunFolder, *, remarks: Sequence[str] = ()) -> Path:
    """Write report.html from the run folder's result, plan, costs and transcript.

    `remarks` are sentences about who is trusted that the folder does not hold (`Federation.remarks`).
    """
    result = run.read_json("result.json")
    kind = kind_of(run, result)
    job, plan, costs = run.job, run.plan(), run.read_json("costs.json")
    heading = kind.title(result)
    html = page(
        f"Colonnade: {heading}",
        tag("header", tag("h1", heading), paragraph(_origin(job), class_="soft")),
        paragraph(SIMULATED, class_="warning", role="note") if costs["simulated"] else None,
        kind.answer(result),
        _beside_truth(run),
        _privacy(plan, costs, remarks),
        kind.details(result),
        _plan(plan),
        _transcript(run.path / "transcript.db"),
        tag("footer", paragraph(f"Written by Colonnade {colonnade.__version__} from {run.path.name}.")),
    )
    return run.write("report.html", html)


def _beside_truth(run: RunFolder) -> Html | None:
    """Only a simulation has comparison.json."""
    if not (run.path / COMPARISON).is_file():
        return None
    return report_synthetic.beside_truth(run.read_json(COMPARISON))


def _origin(job: Mapping[str, Any]) -> str:
    when = moment(job.get("finished") or job["started"])
    return f"{job['method']}, job {job['job']}, finished {when}, Colonnade {job['version']}"


# --- privacy, in plain words ------------------------------------------------------------------------------


def _privacy(plan: Plan, costs: Mapping[str, Any], remarks: Sequence[str]) -> Html:
    spent = {party: [Cost.from_dict(one) for one in each] for party, each in costs["costs"].items()}
    everything = [cost for each in spent.values() for cost in each]
    relations: tuple[Relation, ...] = get_args(Relation)
    whole = {relation: guarantee(everything, delta=plan.delta, relation=relation) for relation in relations}
    rows = [
        (f"{party}'s releases alone", *(_pair(guarantee(each, delta=plan.delta, relation=one)) for one in relations))
        for party, each in spent.items()
    ]
    total = ("A person's total over all parties", *(_pair(whole[relation]) for relation in relations))
    unbounded = any(bound.unbounded for bound in whole.values())
    return section(
        "Privacy",
        paragraph("What left the parties:"),
        listing(_released(plan)),
        paragraph(
            "Nothing else about the data did: each party's own border lets only such releases out, and the transcript"
            " below has every message."
        ),
        tag("h3", "What it costs a person"),
        paragraph(in_plain_words(whole["zero-out"]), class_="warning" if unbounded else None),
        None if unbounded else paragraph(in_plain_words(whole["replace"])),
        paragraph(UNSEEDED, class_="warning") if costs["simulated"] else None,
        table(
            ("(epsilon, delta) per record", *relations),
            [total, *rows],
            label="Cost of this run",
            numeric=() if unbounded else (1, 2),
        ),
        paragraph(
            "Under zero-out a record's data becomes nothing; under replace it becomes any other's. The total composes"
            " the releases of all parties and counts a joint release once. It is that of this run alone: other runs on"
            " the same people add to it. Each party's ledger has its own part of all runs.",
            class_="soft",
        ),
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


def _pair(bound: Guarantee) -> str:
    """The table's heading says unit and relation, so its cells need not."""
    return str(bound).removesuffix(f" per {bound.unit}, {bound.relation}")


def _released(plan: Plan) -> list[Html]:
    return [
        join(
            [
                tag("strong", one.discloses),
                f" ({', '.join(f'{count} from {party}' for party, count in one.counts.items())}),"
                f" seen by the {one.audience}",
                # What went to anybody else is not on this page.
                " and by whoever reads this page." if one.audience == "coordinator" else ".",
            ]
        )
        for one in plan.phases
    ]


# --- the record -------------------------------------------------------------------------------------------


def _plan(plan: Plan) -> Html:
    rows = [
        (one.name, one.step, party, str(one.counts[party]), _pair(guarantee([cost], delta=plan.delta)), one.audience)
        for one in plan.phases
        for party, cost in one.costs.items()
    ]
    options = ", ".join(f"{name} = {value}" for name, value in plan.options.items() if value is not None)
    head = ("phase", "step", "party", "requests", "(epsilon, delta), zero-out", "seen by")
    return section(
        "The plan",
        paragraph(
            f"Agreed before any data was touched: {plan.rounds()} rounds in {len(plan.phases)} phases,"
            f" method {plan.method} with {options}."
        ),
        *(paragraph(note) for note in plan.notes),
        folded("Requests and costs of each party", table(head, rows, label="Phases of the plan", numeric=(3,))),
    )


def _transcript(path: Path) -> Html:
    with closing(Database(path, read_only=True)) as database:
        transcript = Transcript(database, create=False)
        head = transcript.verify()
        bodies = [(row.number, row.body) for row in transcript.rows()]
    rows = [
        (
            str(number),
            moment(body["time"]),
            f"{'to' if body['direction'] == 'out' else 'from'} {body['peer']}",
            body["kind"],
            body["step"],
            str(body["seq"]),
            f"{body['bytes']:,}",
            body["payload"][:12],
        )
        for number, body in bodies[:MOST_MESSAGES]
    ]
    left_out = len(bodies) - len(rows)
    names = ("no.", "time", "message", "kind", "step", "request", "bytes", "hash begins")
    return section(
        "The transcript",
        paragraph(
            f"{head.rows:,} messages, {size(sum(body['bytes'] for _, body in bodies))}, crossed the coordinator's"
            " border. Their chain of hashes is intact; it ends in ",
            tag("code", head.hash[:16]),
            ".",
        ),
        folded(
            "Every message",
            table(names, rows, label="Messages of this run", numeric=(0, 5, 6)),
            paragraph(f"The other {left_out:,} are in transcript.db.") if left_out else None,
        ),
    )
