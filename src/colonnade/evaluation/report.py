"""The report of a run: one self-contained HTML file that answers first and then shows what it cost.

Everything in it comes from the run folder, so it can be written again at any time. What a result says is the
business of its kind (`KINDS`); privacy, plan and transcript read alike for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import colonnade
from colonnade.errors import RunError
from colonnade.evaluation import (
    report_alignment,
    report_completion,
    report_description,
    report_models,
    report_privacy,
    report_record,
    report_regression,
    report_selection,
    report_statistics,
    report_synthetic,
)
from colonnade.evaluation.missingness import treatment
from colonnade.evaluation.page import Html, page, paragraph, tag
from colonnade.evaluation.report_privacy import Spent
from colonnade.federation.run_folder import RunFolder
from colonnade.formatting import timestamp

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


def _completion(result: Mapping[str, Any]) -> list[Shown]:
    told = report_completion
    head, *columns = (tuple(row[at] for at in told.BRIEF) for row in (told.COLUMN_HEAD, *told.column_rows(result)))
    shown = [
        Shown(told.title(result), told.PARTY_HEAD, told.party_rows(result), told.NUMERIC),
        Shown(told.quality(result), head, columns[:50], (2, 3, 4)),
        Shown("Completed tables, in the parties' own folders", told.FILE_HEAD, told.file_rows(result)),
    ]
    if result["downstream"]:
        shown.append(Shown("Classification", told.DOWNSTREAM_HEAD, told.downstream_rows(result), (1, 2, 3)))
    return shown


def _synthetic(result: Mapping[str, Any]) -> list[Shown]:
    told = report_synthetic
    return [Shown(told.title(result), told.COLUMN_HEAD, told.column_rows(result))]


def _moments(result: Mapping[str, Any]) -> list[Shown]:
    told = report_statistics
    return [Shown(told.moments_title(result), told.FEATURE_HEAD, told.feature_rows(result), (2, 3, 4))]


def _tables(result: Mapping[str, Any]) -> list[Shown]:
    told = report_statistics
    every = [(told.table_name(one), *told.cells(result, one)) for one in result["tables"]]
    return [Shown(name, head, rows[:50], tuple(range(1, len(head)))) for name, head, rows in every]


def _polynomial(result: Mapping[str, Any]) -> list[Shown]:
    told = report_statistics
    return [Shown(told.polynomial_title(result), told.OUTPUT_HEAD, told.output_rows(result)[:50], (1, 2))]


def _coverage(result: Mapping[str, Any]) -> list[Shown]:
    told = report_statistics
    return [Shown(told.coverage_title(result), told.COVERAGE_HEAD, told.coverage_rows(result), (1, 2))]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one kind of result is told: a title, the answer, what stands behind it, and the tables of a terminal."""

    title: Callable[[Mapping[str, Any]], str]
    answer: Callable[[Mapping[str, Any]], Html]
    details: Callable[[Mapping[str, Any]], Html]
    terminal: Callable[[Mapping[str, Any]], list[Shown]]
    quality: Callable[[Mapping[str, Any]], str] | None = None
    """One sentence: how good is it, as far as anybody may know without looking at data again."""


KINDS: dict[str, Kind] = {
    "description": Kind(
        title=report_description.title,
        answer=report_description.answer,
        details=report_description.details,
        terminal=_description,
        quality=report_description.quality,
    ),
    "pca": Kind(
        title=report_models.pca_title,
        answer=report_models.pca_answer,
        details=report_models.pca_details,
        terminal=_components,
        quality=report_models.pca_quality,
    ),
    "classifier": Kind(
        title=report_models.classifier_title,
        answer=report_models.classifier_answer,
        details=report_models.classifier_details,
        terminal=_classifier,
        quality=report_models.classifier_quality,
    ),
    "vfem": Kind(
        title=report_regression.title,
        answer=report_regression.answer,
        details=report_regression.details,
        terminal=_regression,
        quality=report_regression.quality,
    ),
    "alignment": Kind(
        title=report_alignment.title,
        answer=report_alignment.answer,
        details=report_alignment.details,
        terminal=_alignment,
        quality=report_alignment.quality,
    ),
    "sparse-glm": Kind(
        title=report_selection.title,
        answer=report_selection.answer,
        details=report_selection.details,
        terminal=_selection,
        quality=report_selection.quality,
    ),
    "completion": Kind(
        title=report_completion.title,
        answer=report_completion.answer,
        details=report_completion.details,
        terminal=_completion,
        quality=report_completion.quality,
    ),
    "synthetic-table": Kind(
        title=report_synthetic.title,
        answer=report_synthetic.answer,
        details=report_synthetic.details,
        terminal=_synthetic,
        quality=report_synthetic.quality,
    ),
    "moments": Kind(
        title=report_statistics.moments_title,
        answer=report_statistics.moments_answer,
        details=report_statistics.moments_details,
        terminal=_moments,
        quality=report_statistics.moments_quality,
    ),
    "tables": Kind(
        title=report_statistics.tables_title,
        answer=report_statistics.tables_answer,
        details=report_statistics.tables_details,
        terminal=_tables,
        quality=report_statistics.tables_quality,
    ),
    "polynomial": Kind(
        title=report_statistics.polynomial_title,
        answer=report_statistics.polynomial_answer,
        details=report_statistics.polynomial_details,
        terminal=_polynomial,
        quality=report_statistics.polynomial_quality,
    ),
    "coverage": Kind(
        title=report_statistics.coverage_title,
        answer=report_statistics.coverage_answer,
        details=report_statistics.coverage_details,
        terminal=_coverage,
        quality=report_statistics.coverage_quality,
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
    spent = Spent.of(plan, costs)
    compared = run.read_json(COMPARISON) if (run.path / COMPARISON).is_file() else None
    heading = kind.title(result)
    html = page(
        f"Colonnade: {heading}",
        tag("header", tag("h1", heading), paragraph(_origin(job), class_="soft")),
        paragraph(SIMULATED, class_="warning", role="note") if costs["simulated"] else None,
        report_privacy.glance(plan, spent, quality_of(run), treatment(plan.method, plan.options)),
        kind.answer(result),
        report_privacy.privacy(plan, spent, remarks, unseeded=UNSEEDED if costs["simulated"] else None),
        report_synthetic.beside_truth(compared) if compared is not None else None,
        kind.details(result),
        report_record.plan_section(plan),
        report_record.transcript_section(run.path / "transcript.db"),
        tag("footer", paragraph(f"Written by Colonnade {colonnade.__version__} from {run.path.name}.")),
    )
    return run.write("report.html", html)


def quality_of(run: RunFolder) -> str:
    """One sentence: how good the result is; beside the truth where a simulation knows it."""
    if (run.path / COMPARISON).is_file():
        return report_synthetic.quality_beside_truth(run.read_json(COMPARISON))
    result = run.read_json("result.json")
    kind = kind_of(run, result)
    return kind.quality(result) if kind.quality else "The result says what is known about its error."


def _origin(job: Mapping[str, Any]) -> str:
    when = timestamp(job.get("finished") or job["started"])
    return f"{job['method']}, job {job['job']}, finished {when}, Colonnade {job['version']}"
