"""The demo's page: a question, who holds what, what came out, what it cost a person, what left, and the reports.

Everything in it comes from the run folders of one simulated consortium, and from its truth, which only a simulation
has.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.data.simulated.example import Example
from colonnade.durable import whole_file
from colonnade.evaluation import fidelity
from colonnade.evaluation.privacy import released, seen_by
from colonnade.evaluation.report import SIMULATED, costs_of, truth_figure, view_of
from colonnade.federation.method import NoEstimate
from colonnade.federation.run_folder import RunFolder
from colonnade.formatting import number
from colonnade.privacy.person import PersonTotal, person_figures
from colonnade.privacy.wording import pair
from colonnade.statistics.cells import Cells
from colonnade.synthesis.figures import column_figure
from colonnade.view.blocks import Figure, Figures
from colonnade.view.page import Html, listing, page, paragraph, section, tag
from colonnade.view.render import render_blocks

MOST_EFFECTS = 12
INSTITUTIONS = {
    "credit": "a credit agency (balance sheets)",
    "market": "a market regulator (inspections)",
    "court": "a court registry (enforcement of debts)",
    "commerce": "a bureau of commerce (the register of firms, and the growth of profits)",
    "enforcement": "an enforcement office (penalties)",
}


def write_story(path: Path, example: Example, runs: Mapping[str, RunFolder], *, response: str) -> Path:
    """`runs`: the finished runs "align", "describe", "synthesize" and "regress", each with its report."""
    person = PersonTotal.of([cost for run in runs.values() for cost in costs_of(run)], delta=max_delta(runs))
    simulated = any(run.read_json("costs.json")["simulated"] for run in runs.values())
    who = [INSTITUTIONS.get(party, party) for party in example.parties]
    effects: tuple[Figure, ...] = ()
    if runs["regress"].read_json("result.json")["kind"] == NoEstimate.kind:  # rare, and then there is nothing to draw
        answer = " ".join(view_of(runs["regress"]).warnings)
    else:
        effects = (effects_figure(runs["regress"], example, response),)
        answer = _answer(runs["regress"], response)
    html = page(
        "Colonnade: five institutions, one answer",
        tag(
            "header",
            tag("h1", f"What goes with the {response.replace('_', ' ')} of small firms?"),
            paragraph(
                f"The answer is spread over {len(who)} institutions: {', '.join(who[:-1])} and {who[-1]}. Each knows"
                " other columns, few know the same firms, and none may show its records. They computed together what"
                " follows: on secret shares, with noise that protects each firm. All firms here are simulated, so the"
                " truth is known and drawn beside.",
                class_="lead",
            ),
        ),
        paragraph(SIMULATED, class_="warning", role="note") if simulated else None,
        tag("h2", "Who holds what, and what came out", class_="quiet"),
        render_blocks([Figures(figures=(holdings_figure(runs["align"], example), *effects))]),
        paragraph(answer, " ", _link(path, runs["regress"], "The regression's report"), "."),
        section(
            "One table that anyone may use",
            paragraph(
                _table_words(runs["synthesize"]), " ", _link(path, runs["synthesize"], "The table's report"), "."
            ),
            render_blocks(
                [
                    Figures(figures=distribution_figures(runs["synthesize"], example, response)),
                    _fewer(truth_figure(runs["synthesize"].read_json("comparison.json"))),
                ]
            ),
        ),
        section(
            "What it cost a person",
            paragraph(_cost_words(person), class_="lead"),
            render_blocks([person_figures(person)]) if person.bounded else None,
        ),
        section("What left the institutions", *(_left(path, name, run) for name, run in runs.items())),
    )
    with whole_file(path) as partial:
        partial.write_text(html, encoding="utf-8")
    return path


def max_delta(runs: Mapping[str, RunFolder]) -> float:
    return max(run.plan().delta for run in runs.values())


def holdings_figure(aligned: RunFolder, example: Example) -> Figure:
    """Who holds which block, from the noisy counts of the alignment."""
    result = aligned.read_json("result.json")
    parties, patterns = result["parties"], result["patterns"]
    return Figure(
        name="holdings",
        chart="blocks",
        data={
            "parties": parties,
            "columns": [len(example.blocks[party].columns) - 1 for party in parties],
            "patterns": [[party in pattern["parties"] for party in parties] for pattern in patterns],
            "counts": [max(pattern["count"], 0) for pattern in patterns],
        },
        label=f"{result['n']:,} firms and the institutions that have them; most firms lack most blocks",
        title="Who holds what",
        x="institution, as wide as it has columns",
        y="firms",
        caption=f"{number(result['n'])} firms from top to bottom, by a private alignment with noisy counts. A"
        " method that needs all five blocks of a firm would use the few at the top only.",
    )


def effects_figure(regressed: RunFolder, example: Example, response: str) -> Figure:
    """The private regression's coefficients beside what only a simulation knows: no gaps, no noise."""
    result, figure = regressed.read_json("result.json"), view_of(regressed).figures()["coefficients"]
    names, columns = figure.data["labels"], example.truth.columns
    taken = [name for name in columns if name in names or name == response]
    scale = dict(
        zip(
            names,
            (centre / result["params"][name] for name, centre in zip(names, figure.data["centres"], strict=True)),
            strict=True,
        )
    )
    complete = fidelity.least_squares(example.truth.complete[taken], columns.select(taken), response)["coef"]
    held = example.truth.presence[
        [party for party in example.parties if set(example.blocks[party].columns) & set(taken)]
    ]
    few = example.truth.complete.loc[held.all(axis=1).to_numpy(), taken]
    cases = fidelity.least_squares(few, columns.select(taken), response)["coef"]
    others = {
        "truth: all firms, no gaps, no noise": [float(complete[name] * scale[name]) for name in names],
        f"complete cases only ({number(len(few))} firms)": [float(cases[name] * scale[name]) for name in names],
    }
    return replace(
        figure,
        data={**figure.data, "name": "private estimate, 95 % interval", "others": others},
        title="What came out",
        caption=f"{figure.title}; private, epsilon {result_epsilon(regressed):g}. The dashed line is zero.",
    )


def distribution_figures(synthesized: RunFolder, example: Example, response: str) -> tuple[Figure, ...]:
    """Columns of the synthetic table over all firms' true ones: the response, and those that are furthest from the
    truth and nearest to it in total variation."""
    drawn, columns = synthesized.read_json("result.json")["marginals"], example.truth.columns
    figures, off = {}, {}
    for name, own in drawn.items():
        edges = None if own["edges"] is None else np.array(own["edges"])
        public = Cells(tuple(own["labels"]), edges, missing=False)
        truth = public.count(columns[name].encode(example.truth.complete[name]))
        truth = truth * sum(own["counts"]) / truth.sum()
        off[name] = float(np.abs(truth - own["counts"]).sum()) / 2 / sum(own["counts"])
        figure = column_figure(name, own, unit=columns[name].unit)
        figures[name] = replace(
            figure, data={**figure.data, "truth": truth.tolist()}, label=f"Synthetic rows of {name}, and all firms"
        )
    ordered = sorted((name for name in off if name != response), key=lambda name: off[name])
    which = {response: "The response", ordered[-1]: f"The furthest of all {len(off)}", ordered[0]: "The nearest"}
    return tuple(
        replace(figures[name], caption=f"{words}: off by {100 * off[name]:.1f} %.") for name, words in which.items()
    )


def result_epsilon(run: RunFolder) -> float:
    return float(run.plan().options["epsilon"])


def _answer(run: RunFolder, response: str) -> str:
    result = run.read_json("result.json")
    names = [name for name in result["params"] if name != "const" and result["pvalues"][name] < 0.05]
    rise = [name for name in names if result["params"][name] > 0]
    fall = [name for name in names if result["params"][name] < 0]
    sentences = [
        f"{response} goes up with {_listed(rise)}." if rise else "",
        f"It goes down with {_listed(fall)}." if fall else "",
    ]
    return " ".join(
        (*(sentence for sentence in sentences if sentence), "The intervals count the missing blocks and the noise.")
    )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _table_words(run: RunFolder) -> str:
    result, truth = run.read_json("result.json"), run.read_json("comparison.json")
    return (
        f"{number(result['rows'])} synthetic firms with all {len(result['columns'])} columns, none empty; no row"
        f" belongs to a firm. Effects that a regression finds in it correlate {truth['agreement']:.2f} with the true"
        f" ones, and a column's distribution is off by {100 * truth['marginal']:.1f} % (total variation) on average."
    )


def _fewer(figure: Figure) -> Figure:
    """The largest effects; the report has all."""
    data: dict[str, Any] = {
        name: values[:MOST_EFFECTS] if isinstance(values, list) else values for name, values in figure.data.items()
    }
    data["others"] = {name: values[:MOST_EFFECTS] for name, values in figure.data["others"].items()}
    return replace(
        figure, data=data, numbers=None, note="", caption=f"The {MOST_EFFECTS} largest effects. {figure.caption}"
    )


def _cost_words(person: PersonTotal) -> str:
    total = person.total["zero-out"]
    if not math.isfinite(total.epsilon) or total.unbounded:
        return "Together these runs have no bound on what a person loses."
    shown = (
        f" {person.presence_sentence} What follows is about the values, who is present held fixed."
        if person.shown
        else ""
    )
    epsilon, delta = pair(total)[1:-1].split(", ")
    return f"All runs together cost epsilon {epsilon}, delta {delta} ({total.relation}).{shown}"


def _left(index: Path, name: str, run: RunFolder) -> Html:
    """What one run released, and to whom."""
    plan = run.plan()
    return tag(
        "div",
        tag("h3", f"{name.capitalize()}: ", _link(index, run, view_of(run).title)),
        listing(released(plan)),
        paragraph(f"Seen by: {'; '.join(seen_by(plan))}.", class_="soft"),
    )


def _link(index: Path, run: RunFolder, text: str) -> Html:
    return tag("a", text, href=Path(os.path.relpath(run.path / "report.html", index.parent)).as_posix())
