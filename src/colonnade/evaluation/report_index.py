"""One page for several runs on the same people: what each found, what it cost, and what all of them cost together."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from colonnade.errors import RunError, StorageError
from colonnade.evaluation.page import Html, listing, page, paragraph, section, tag
from colonnade.evaluation.privacy import presence_fixed, right_guesses
from colonnade.evaluation.report import SIMULATED, kind_of, quality_of
from colonnade.evaluation.report_privacy import SHOWN, released, seen_by
from colonnade.federation.run_folder import RunFolder
from colonnade.formatting import timestamp
from colonnade.privacy.accounting import Guarantee, guarantee
from colonnade.privacy.cost import Cost, Relation
from colonnade.privacy.wording import in_plain_words, pair

RELATIONS: tuple[Relation, ...] = get_args(Relation)


def write_index(path: Path, runs: Sequence[RunFolder], *, title: str) -> Path:
    """Write an HTML page beside the runs, with links to their reports. Runs without a result are left out.

    The total holds if all runs are about the same people; joint releases of one run count once.
    """
    done = [run for run in runs if run.job.get("state") == "done" and (run.path / "report.html").is_file()]
    if not done:
        raise RunError(f"no finished run with a report among {len(runs)}; run a method first.")
    delta = max(run.plan().delta for run in done)
    spent = {run.path: _costs(run) for run in done}
    everything = [cost for each in spent.values() for cost in each]
    simulated = any(run.read_json("costs.json")["simulated"] for run in done)
    fixed = presence_fixed(everything)
    counted = everything if fixed is None else fixed
    whole = {relation: guarantee(counted, delta=delta, relation=relation) for relation in RELATIONS}
    html = page(
        title,
        tag("header", tag("h1", title), paragraph(_together(whole["zero-out"], fixed is not None), class_="lead")),
        paragraph(SIMULATED, class_="warning", role="note") if simulated else None,
        tag("h2", "The runs", class_="quiet"),
        tag(
            "div",
            *(_card(path, run, at, spent[run.path], delta) for at, run in enumerate(done, start=1)),
            class_="runs",
        ),
        section(
            "What all of it costs a person",
            paragraph(
                f"{SHOWN.format(', '.join(guarantee(everything, delta=delta).unbounded))} That has no bound, and the"
                " parties allowed it by name. What follows holds who is present fixed."
            )
            if fixed is not None
            else None,
            paragraph(" and ".join(str(whole[relation]) for relation in RELATIONS) + ".", class_="lead"),
            paragraph(in_plain_words(whole["zero-out"])),
            paragraph(
                f"A guess whether a record was used is right in at most {100 * right_guesses(counted):.0f} of 100"
                " cases, all releases of all runs together; a coin is right in 50."
            )
            if not whole["zero-out"].unbounded
            else None,
        ),
    )
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"writing {path} failed ({error}); free disk space.") from error
    return path


def _together(whole: Guarantee, shown: bool) -> str:
    """The first sentence: what all runs cost a person."""
    if whole.unbounded or not math.isfinite(whole.epsilon):
        return "Together these runs have no bound on what a person loses."
    also = "They also show who holds which pseudonymous record." if shown else ""
    epsilon, delta = pair(whole)[1:-1].split(", ")
    return f"Together these runs cost a person epsilon {epsilon}, delta {delta} ({whole.relation}). {also}".strip()


def _costs(run: RunFolder) -> list[Cost]:
    """A run's costs; joint ids are made its own, since a plan's do not name the job."""
    plain = run.read_json("costs.json")["costs"]
    return [
        Cost.from_dict(one).with_joint(lambda name: f"{run.path.name} {name}")
        for each in plain.values()
        for one in each
    ]


def _card(index: Path, run: RunFolder, number: int, costs: list[Cost], delta: float) -> Html:
    """What one run released, to whom, at what cost, and how good it is; its heading leads to the report."""
    result, plan = run.read_json("result.json"), run.plan()
    where = os.path.relpath(run.path / "report.html", index.parent)
    told = (
        ("How good", paragraph(quality_of(run))),
        ("Cost to a person", _cost(costs, delta)),
        ("Released", listing(released(plan))),
        ("Seen by", listing(seen_by(plan))),
    )
    return tag(
        "article",
        tag("h3", f"{number}. ", tag("a", kind_of(run, result).title(result), href=Path(where).as_posix())),
        paragraph(f"{run.job['method']}, {_when(run)}", class_="soft"),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", one)) for name, one in told)),
    )


def _cost(costs: list[Cost], delta: float) -> Html:
    fixed = presence_fixed(costs)
    whole = guarantee(costs, delta=delta)
    if fixed is None:
        return paragraph(tag("strong", pair(whole)), " (epsilon, delta), zero-out.")
    apart = pair(guarantee(fixed, delta=delta)) if fixed else "nothing"
    return paragraph(SHOWN.format(", ".join(whole.unbounded)), " Apart from that: ", tag("strong", apart), ".")


def _when(run: RunFolder) -> str:
    return timestamp(run.job.get("finished") or run.job["started"])
