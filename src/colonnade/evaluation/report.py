"""The report of a run: one self-contained HTML file that answers first and then shows what it cost.

Everything in it comes from the run folder, so it can be written again at any time without the method: what the result
shows (view.json), the plan, the costs, the transcript. `write_index` makes one page for several runs on the same
people.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import colonnade
from colonnade.data.column import value_text
from colonnade.durable import Database, whole_file
from colonnade.errors import RunError
from colonnade.evaluation.privacy import cards, glance, privacy_section, released, seen_by
from colonnade.federation.messages import Transcript
from colonnade.federation.plan import Plan
from colonnade.federation.run_folder import RunFolder
from colonnade.formatting import counted, size, timestamp
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import Cost
from colonnade.privacy.person import RELATIONS, PersonTotal
from colonnade.privacy.wording import in_plain_words, pair
from colonnade.view.blocks import Figure, Section, Table, Text, View
from colonnade.view.page import Html, folded, listing, notes, page, paragraph, section, table, tag
from colonnade.view.render import render_blocks, render_section, render_warnings

COMPARISON = "comparison.json"
"""Beside the truth, where a simulation knows it."""
MOST_MESSAGES = 5_000
SIMULATED = (
    "This is a simulation: a seed made the noise predictable, so these numbers protect nobody. Do not use a seed on"
    " real data."
)
UNSEEDED = "With a seed none of this holds: these are the costs that the same run would have without one."


def view_of(run: RunFolder) -> View:
    """What the run's result shows."""
    return View.from_dict(run.read_json("view.json"))


def write_report(run: RunFolder, *, remarks: Sequence[str] = ()) -> Path:
    """Write report.html from the run folder's view, plan, costs and transcript.

    `remarks` are sentences about who is trusted that the folder does not hold (`Federation.remarks`).
    """
    job, plan, costs, view = run.job, run.plan(), run.read_json("costs.json"), view_of(run)
    by_party = {party: [Cost.from_dict(cost) for cost in listed] for party, listed in costs["costs"].items()}
    person = PersonTotal.of([cost for listed in by_party.values() for cost in listed], delta=plan.delta)
    truth = _truth(run)
    simulated = bool(costs["simulated"])
    origin = f"{job['method']}, job {job['job']}, finished {_when(job)}, Colonnade {job['version']}"
    html = page(
        f"Colonnade: {view.title}",
        tag("header", tag("h1", view.title), paragraph(origin, class_="soft")),
        paragraph(SIMULATED, class_="warning", role="note") if simulated else None,
        render_warnings(view),
        glance(plan, person, _quality(view, truth)),
        render_blocks(view.answer, level=2),
        privacy_section(plan, by_party, person, remarks, unseeded=UNSEEDED if simulated else None),
        render_section(_truth_section(truth)) if truth is not None else None,
        *map(render_section, view.sections),
        _plan_section(plan),
        _transcript_section(run.path / "transcript.db"),
        tag("footer", paragraph(f"Written by Colonnade {colonnade.__version__} from {run.path.name}.")),
    )
    return run.write("report.html", html)


def _truth(run: RunFolder) -> dict[str, Any] | None:
    return run.read_json(COMPARISON) if (run.path / COMPARISON).is_file() else None


def _quality(view: View, truth: Mapping[str, Any] | None) -> str:
    """One sentence: how good the result is; beside the truth (comparison.json) where a simulation knows it."""
    if truth is None:
        return view.quality
    return (
        f"Effects fitted to it correlate {truth['agreement']:.2f} with the true ones. Distributions are off by"
        f" {100 * truth['marginal']:.1f} % (one column) and {100 * truth['pairwise']:.1f} % (a pair) in total"
        " variation. These firms are simulated, so the truth is known."
    )


def _when(job: Mapping[str, Any]) -> str:
    return timestamp(job.get("finished") or job["started"])


def _plan_section(plan: Plan) -> Html:
    """The plan as it was agreed."""
    rows = [
        (
            stage.name,
            stage.step,
            party,
            str(stage.counts[party]),
            pair(guarantee([cost], delta=plan.delta)),
            stage.audience,
        )
        for stage in plan.stages
        for party, cost in stage.costs.items()
    ]
    options = ", ".join(f"{name} = {_option(value)}" for name, value in plan.options.items() if value is not None)
    head = ("stage", "step", "party", "requests", "(epsilon, delta), zero-out", "seen by")
    return section(
        "The plan",
        paragraph(
            f"Agreed before any data was touched: {counted(plan.rounds(), 'round')} in"
            f" {counted(len(plan.stages), 'stage')},"
            f" method {plan.method} with {options}."
        ),
        *notes(plan.notes),
        folded("Requests and costs of each party", table(head, rows, label="Stages of the plan", numeric=(3,))),
    )


def _option(value: object) -> str:
    """A name as it is, anything else as a TOML file has it."""
    return value if isinstance(value, str) else value_text(value)


def _transcript_section(path: Path) -> Html:
    """What crossed the coordinator's border."""
    with closing(Database(path, read_only=True)) as database:
        transcript = Transcript(database, create=False)
        head = transcript.verify()
        messages = transcript.rows()
    rows = [
        (
            str(message.number),
            timestamp(message.body["time"]),
            f"{'to' if message.body['direction'] == 'out' else 'from'} {message.body['peer']}",
            message.body["kind"],
            message.body["step"],
            str(message.body["seq"]),
            f"{message.body['bytes']:,}",
            message.body["payload"][:12],
        )
        for message in messages[:MOST_MESSAGES]
    ]
    left_out = len(messages) - len(rows)
    names = ("no.", "time", "message", "kind", "step", "request", "bytes", "hash begins")
    return section(
        "The transcript",
        paragraph(
            f"{head.rows:,} messages, {size(sum(message.body['bytes'] for message in messages))}, crossed the"
            " coordinator's border. Their chain of hashes is intact; it ends in ",
            tag("code", head.hash[:16]),
            ".",
        ),
        folded(
            "Every message",
            table(names, rows, label="Messages of this run", numeric=(0, 5, 6)),
            paragraph(f"The other {left_out:,} are in transcript.db.") if left_out else None,
        ),
    )


# --- where a simulation knows the truth -----------------------------------------------------------------------


def truth_figure(comparison: Mapping[str, Any]) -> Figure:
    """Coefficients fitted to the synthetic table, beside the true ones; the largest first."""
    rows = sorted(comparison["coefficients"], key=lambda row: -abs(row["truth"] * row["scale"]))

    def ends(reach: float) -> list[float]:
        return [(row["synthetic"] + reach * row["synthetic_error"]) * row["scale"] for row in rows]

    return Figure(
        name="beside the truth",
        chart="intervals",
        data={
            "labels": [row["name"] for row in rows],
            "centres": ends(0.0),
            "lows": ends(-1.96),
            "highs": ends(1.96),
            "name": "synthetic table",
            "others": {"truth": [row["truth"] * row["scale"] for row in rows]},
        },
        label="Coefficients from the synthetic table, and in truth; the table below has the numbers",
        title=f"A regression of {comparison['response']} on the synthetic table",
        x=f"effect on {comparison['response']} of one standard deviation",
        caption="The intervals are those that least squares would claim. They know nothing of the synthesis, so they"
        " are too short.",
        numbers=Table(
            title="Coefficients (standard errors of least squares)",
            head=("feature", "in truth", "from the synthetic table", "from the complete table, were it known"),
            rows=tuple(
                (
                    row["name"],
                    f"{row['truth']:.4g}",
                    f"{row['synthetic']:.4g} ({row['synthetic_error']:.2g})",
                    f"{row['complete']:.4g} ({row['complete_error']:.2g})",
                )
                for row in rows
            ),
            numeric=(1, 2, 3),
        ),
        note="In brackets: standard errors of least squares.",
    )


def _truth_section(comparison: Mapping[str, Any]) -> Section:
    """The report's section on comparison.json: coefficients beside the truth, and distances."""
    return Section(
        title="Beside the truth",
        blocks=(
            Text(
                text="These firms are simulated, so the truth is known. In a real federation no one has it, and this"
                " section is not there."
            ),
            truth_figure(comparison),
            Text(
                text=f"Correlation of fitted with true effects {comparison['agreement']:.3f}; mean distance (total"
                f" variation) of one column's distribution {comparison['marginal']:.3f}, of a pair's"
                f" {comparison['pairwise']:.3f}; mean error of a rank correlation"
                f" {comparison['rank_correlation']:.3f} (within one party {comparison['rank_correlation_within']:.3f},"
                f" across parties {comparison['rank_correlation_across']:.3f})."
            ),
        ),
    )


# --- one page for several runs --------------------------------------------------------------------------------


def write_index(path: Path, runs: Sequence[RunFolder], *, title: str) -> Path:
    """Write an HTML page beside the runs: what each found, what it cost, and what all of them cost together.

    It links to their reports; runs without one are left out. The total holds if all runs are about the same people;
    joint releases of one run count once.
    """
    done = [run for run in runs if run.job.get("state") == "done" and (run.path / "report.html").is_file()]
    if not done:
        raise RunError(f"no finished run with a report among {len(runs)}; run a method first.")
    delta = max(run.plan().delta for run in done)
    costs = [costs_of(run) for run in done]
    person = PersonTotal.of([cost for listed in costs for cost in listed], delta=delta)
    simulated = any(run.read_json("costs.json")["simulated"] for run in done)
    articles = [_article(path, run, number, costs[number - 1], delta) for number, run in enumerate(done, start=1)]
    html = page(
        title,
        tag("header", tag("h1", title), paragraph(_together(person), class_="lead")),
        paragraph(SIMULATED, class_="warning", role="note") if simulated else None,
        tag("h2", "The runs", class_="quiet"),
        tag("div", *articles, class_="runs"),
        section(
            "What all of it costs a person",
            paragraph(
                f"{person.presence_sentence} That has no bound, and the parties allowed it by name. What follows holds"
                " who is present fixed."
            )
            if person.shown
            else None,
            paragraph(" and ".join(str(person.total[relation]) for relation in RELATIONS) + ".", class_="lead"),
            paragraph(in_plain_words(person.total["zero-out"])),
            paragraph(
                "A guess whether a record was used is right in at most"
                f" {person.right('zero-out')} of 100 cases, all releases of all runs together; a coin is"
                " right in 50."
            )
            if person.bounded
            else None,
        ),
    )
    with whole_file(path) as partial:
        partial.write_text(html, encoding="utf-8")
    return path


def _together(person: PersonTotal) -> str:
    """The first sentence: what all runs cost a person."""
    total = person.total["zero-out"]
    if total.unbounded or not math.isfinite(total.epsilon):
        return "Together these runs have no bound on what a person loses."
    also = " They also show who holds which pseudonymous record." if person.shown else ""
    epsilon, delta = pair(total)[1:-1].split(", ")
    return f"Together these runs cost a person epsilon {epsilon}, delta {delta} ({total.relation}).{also}"


def costs_of(run: RunFolder) -> list[Cost]:
    """A run's costs; joint ids are made its own, since a plan's do not name the job."""
    by_party = run.read_json("costs.json")["costs"].values()
    return [
        Cost.from_dict(cost).with_joint(lambda name: f"{run.path.name} {name}")
        for listed in by_party
        for cost in listed
    ]


def _article(index: Path, run: RunFolder, number: int, costs: list[Cost], delta: float) -> Html:
    """What one run released, to whom, at what cost, and how good it is; its heading leads to the report."""
    view, plan = view_of(run), run.plan()
    report = Path(os.path.relpath(run.path / "report.html", index.parent)).as_posix()
    person = PersonTotal.of(costs, delta=delta)
    bound = person.total["zero-out"]
    total = tag("strong", "nothing" if bound.epsilon == 0 else pair(bound))
    entries = (
        ("How good", paragraph(_quality(view, _truth(run)))),
        (
            "Cost to a person",
            paragraph(person.presence_sentence, " Apart from that: ", total, ".")
            if person.shown
            else paragraph(total, " (epsilon, delta), zero-out."),
        ),
        ("Released", listing(released(plan))),
        ("Seen by", listing(seen_by(plan))),
    )
    return tag(
        "article",
        tag("h3", f"{number}. ", tag("a", view.title, href=report)),
        paragraph(f"{run.job['method']}, {_when(run.job)}", class_="soft"),
        cards(entries),
    )
