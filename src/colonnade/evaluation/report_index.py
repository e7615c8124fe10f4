"""One page for several runs on the same people: what each found, what it cost, and what all of them cost together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from colonnade.errors import RunError, StorageError
from colonnade.evaluation.page import Html, join, page, paragraph, section, table, tag
from colonnade.evaluation.privacy import presence_fixed, right_guesses
from colonnade.evaluation.report import SIMULATED, kind_of
from colonnade.evaluation.report_privacy import SHOWN
from colonnade.evaluation.words import in_plain_words, moment, pair
from colonnade.federation.run_folder import RunFolder
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import Cost, Relation

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
    rows = [
        (str(at), _link(path, run), pair(guarantee(spent[run.path], delta=delta)), _when(run))
        for at, run in enumerate(done, start=1)
    ]
    html = page(
        title,
        tag("header", tag("h1", title)),
        paragraph(SIMULATED, class_="warning", role="note") if simulated else None,
        table(("", "result", "(epsilon, delta) per record, zero-out", "finished"), rows, label="Runs", numeric=(2,)),
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


def _costs(run: RunFolder) -> list[Cost]:
    """A run's costs; joint ids are made its own, since a plan's do not name the job."""
    plain = run.read_json("costs.json")["costs"]
    return [
        Cost.from_dict(one).with_joint(lambda name: f"{run.path.name} {name}")
        for each in plain.values()
        for one in each
    ]


def _link(index: Path, run: RunFolder) -> Html:
    result = run.read_json("result.json")
    where = os.path.relpath(run.path / "report.html", index.parent)
    return join([tag("a", kind_of(run, result).title(result), href=Path(where).as_posix()), f" ({run.job['method']})"])


def _when(run: RunFolder) -> str:
    return moment(run.job.get("finished") or run.job["started"])
