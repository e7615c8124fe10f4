"""A release as an output checker needs it: what would leave, the records behind each figure, rules passed or not, what
it costs a person, the plan, the hashes of the records, the version of the code.

Everything comes from the run folder; nothing is asked and nothing is spent. Checkers know rules for exact outputs: a
threshold on the records behind a figure, and dominance, the part of it that one record can be. Figures here carry
noise, so a rule is judged by the count less or more two standard deviations of its noise, and may not be decidable;
what then protects a person is the bound on epsilon, which the bundle states beside it.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import colonnade
from colonnade.catalogue import CATALOGUE
from colonnade.codec import plain
from colonnade.durable import Database, whole_file
from colonnade.errors import BadArguments, RunError
from colonnade.evaluation.privacy import released, seen_by
from colonnade.evaluation.report import view_of
from colonnade.federation.messages import Transcript
from colonnade.federation.method import Result
from colonnade.federation.run_folder import RunFolder
from colonnade.formatting import number, timestamp
from colonnade.privacy.cost import Cost
from colonnade.privacy.person import PersonTotal
from colonnade.privacy.wording import in_plain_words
from colonnade.view.blocks import Table, View
from colonnade.view.page import Html, listing, page, paragraph, section, table, tag

Verdict = Literal["passed", "not passed", "cannot be told"]
LEFT_AT_HOME = ("transcript.db", "transcript.db-wal", "transcript.db-shm", "job.json")
"""What stays in the run folder: times and sizes of messages, and how the coordinator drew its rows."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """threshold: records behind a figure, and degrees of freedom of a model. dominance: the largest part of a figure
    that one record may be."""

    threshold: int = 10
    dominance: float = 0.5

    def __post_init__(self) -> None:
        if self.threshold < 1 or not 0 < self.dominance <= 1:
            raise BadArguments("threshold is a number from 1, and dominance a part from 0 to 1.")


@dataclass(frozen=True, kw_only=True)
class CheckedFigure:
    """One figure, or cell of a table: the records behind it, as released, and the noise on their number."""

    figure: str
    records: float
    noise_sd: float
    threshold: Verdict
    dominance: Verdict
    largest_share: float
    """At most: a record is 1 of a count, and of a mean of values with declared bounds 1 / count of their range."""


def checked(figure: str, records: float, noise_sd: float, rules: Rules) -> CheckedFigure:
    low, high = records - 2 * noise_sd, records + 2 * noise_sd
    share = 1.0 / low if low > 1 else 1.0
    return CheckedFigure(
        figure=figure,
        records=records,
        noise_sd=noise_sd,
        threshold=_verdict(low >= rules.threshold, high < rules.threshold),
        dominance=_verdict(share <= rules.dominance, high < 1 / rules.dominance),
        largest_share=share,
    )


def _verdict(passed: bool, failed: bool) -> Verdict:
    return "passed" if passed else "not passed" if failed else "cannot be told"


def figures_of(method: str, result: Mapping[str, Any], rules: Rules) -> list[CheckedFigure]:
    """Every figure of a result.json whose records it states, as the result's class says."""
    counted = _class_of(method, result).records_behind(result)
    return [checked(name, float(count), float(sd), rules) for name, count, sd in counted]


def _class_of(method: str, result: Mapping[str, Any]) -> type[Result]:
    """Which sort of result it is; that of a package that is not installed here is nothing but a result."""
    if method in CATALOGUE.names:
        CATALOGUE.load(method)  # whose module brings it
    return Result.kinds.get(result.get("kind", ""), Result)


# --- the bundle ---------------------------------------------------------------------------------------------


def write_release(run: RunFolder, out: Path, *, rules: Rules | None = None) -> Path:
    """A folder with the outputs, release.json, release.html and the hashes of all files; the page's path."""
    rules = rules or Rules()
    job = run.job
    if job["state"] != "done":
        raise RunError(f"{run.path} is not finished, so nothing of it can be released; resume it first.")
    if out.exists() and any(out.iterdir()):
        raise BadArguments(f"{out} is not empty; name a new folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(run.path.rglob("*")):
        if path.is_file() and path.name not in LEFT_AT_HOME:
            target = out / "outputs" / path.relative_to(run.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    stated = statement(run, rules)
    outputs = {
        str(path.relative_to(out)): _digest(path) for path in sorted((out / "outputs").rglob("*")) if path.is_file()
    }
    stated["outputs"] = outputs
    _write(out / "release.json", json.dumps(stated, indent=2, ensure_ascii=False) + "\n")
    _write(out / "release.html", _page(run, stated))
    files = {**outputs, **{name: _digest(out / name) for name in ("release.json", "release.html")}}
    _write(out / "SHA256SUMS", "".join(f"{digest}  {name}\n" for name, digest in files.items()))
    return out / "release.html"


def statement(run: RunFolder, rules: Rules) -> dict[str, Any]:
    """All that the checker decides by, as plain data."""
    job, plan, costs, view = run.job, run.plan(), run.read_json("costs.json"), view_of(run)
    result = run.read_json("result.json")
    listed = [Cost.from_dict(cost) for own in costs["costs"].values() for cost in own]
    person = PersonTotal.of(listed, delta=plan.delta)
    with closing(Database(run.path / "transcript.db", read_only=True)) as database:
        head = Transcript(database, create=False).verify()
    return {
        "what": view.title,
        "quality": view.quality,
        "warnings": list(view.warnings),
        "method": plan.method,
        "options": plain(plan.options),
        "job": job["job"],
        "finished": timestamp(job.get("finished") or job["started"]),
        "simulated": bool(costs["simulated"]),
        "released": released(plan),
        "seen by": seen_by(plan),
        "missing data": plan.missing_data,
        "rows": _class_of(plan.method, result).about_rows(result),
        "privacy": {
            "statement": list(dict.fromkeys(in_plain_words(bound) for bound in person.total.values())),
            "bounds": {relation: str(bound) for relation, bound in person.total.items()},
            "shown without a bound": list(plan.unbounded()),
        },
        "rules": plain(rules),
        "figures": [plain(figure) for figure in figures_of(plan.method, result, rules)],
        "plan": plan.fingerprint,
        "transcript": {"rows": head.rows, "hash": head.hash},
        "ledgers": costs["heads"],
        "version": job["version"],
        "code": code_digest(),
    }


def code_digest() -> str:
    """SHA-256 over the Python files of this installation, by name: what "the same code" means."""
    root = Path(colonnade.__file__).parent
    hasher = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        hasher.update(f"{path.relative_to(root)} {_digest(path)}\n".encode())
    return hasher.hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, text: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


# --- the page -----------------------------------------------------------------------------------------------


def _page(run: RunFolder, stated: Mapping[str, Any]) -> str:
    """Nothing is folded: it is read on paper."""
    counts = {verdict: _counted(stated, verdict) for verdict in ("passed", "not passed", "cannot be told")}
    rules = stated["rules"]
    privacy = stated["privacy"]
    facts = [
        ("Method", stated["method"]),
        ("Job", f"{stated['job']}, finished {stated['finished']}"),
        ("Colonnade", f"{stated['version']}; its files: sha256 {stated['code']}"),
        ("Plan", f"sha256 {stated['plan']}"),
        ("Transcript", f"{stated['transcript']['rows']:,} rows, intact, ending in {stated['transcript']['hash']}"),
        *(
            (f"Ledger of {party}", f"{heads['ledger']['rows']:,} rows, ending in {heads['ledger']['hash']}")
            for party, heads in stated["ledgers"].items()
        ),
    ]
    rows = [
        (
            figure["figure"],
            number(figure["records"]),
            f"± {math.ceil(2 * figure['noise_sd']):,}" if figure["noise_sd"] else "none",
            figure["threshold"],
            f"{figure['largest_share']:.2%}",
            figure["dominance"],
        )
        for figure in stated["figures"]
    ]
    head = ("figure", "records", "noise", f"at least {rules['threshold']}", "one record is at most", "dominance")
    return page(
        f"Release: {stated['what']}",
        tag("header", tag("h1", f"Release for output checking: {stated['what']}"), paragraph(stated["quality"])),
        paragraph("A seed made the noise predictable: this protects no one.", class_="warning")
        if stated["simulated"]
        else None,
        *(paragraph(warning, class_="warning") for warning in stated["warnings"]),
        section(
            "What would leave",
            paragraph("These files, in the folder outputs:"),
            listing(name for name, _ in _named(stated["outputs"].items())),
            paragraph("They were computed from what the parties let go:"),
            listing(stated["released"]),
            paragraph(f"Seen by: {'; '.join(stated['seen by'])}."),
        ),
        section("What it says", *_said(view_of(run))),
        section("What it costs a person", *_privacy(privacy)),
        section(
            "Rules",
            paragraph(stated["rows"]) if stated["rows"] else None,
            paragraph(
                f"Threshold and dominance ({rules['threshold']} records; one record at most"
                f" {rules['dominance']:.0%} of a figure): {counts['passed']} figures pass both,"
                f" {counts['not passed']} fail one, and for {counts['cannot be told']} the noise leaves it open."
                + (" There, the bound on epsilon is what protects a person." * bool(counts["cannot be told"]))
            ),
            paragraph("Counts are as released, so noise may carry one below zero. ± is two standard deviations.")
            if any(figure["noise_sd"] for figure in stated["figures"])
            else None,
            table(head, rows, label="Figures and the records behind them", numeric=(1, 2, 4)) if rows else None,
        ),
        section("What it rests on", paragraph(stated["missing data"])) if stated["missing data"] else None,
        section("Where it comes from", table(("what", "where from"), facts, label="Origin")),
        section("Files", table(("in outputs", "sha256"), _named(stated["outputs"].items()), label="Files")),
        section(
            "The plan, as it was agreed",
            tag("pre", run.plan().text(), style="white-space: pre-wrap; overflow-wrap: anywhere"),
        ),
        section(
            "Decision",
            paragraph("Released / not released: ______________________    Checked by: ______________________"),
            paragraph("Date: ______________________"),
        ),
    )


def _said(view: View) -> list[Html]:
    """The tables of the answer, every row of them: what a checker reads beside the rules."""
    tables = [block for block in view.answer if isinstance(block, Table)] or view.tables()
    own = [
        part
        for shown in tables
        for part in (
            tag("h3", shown.title),
            table(shown.head, shown.rows, label=f"{shown.title}, as released", numeric=shown.numeric),
        )
    ]
    return [*own, paragraph("All numbers are in the files.")]


def _privacy(privacy: Mapping[str, Any]) -> list[Html | None]:
    bounds = [
        f"(epsilon, delta) = {bound}" for bound in privacy["bounds"].values() if not bound.startswith("unbounded")
    ]
    parts = [listing(bounds) if bounds else None, *(paragraph(sentence) for sentence in privacy["statement"])]
    if shown := privacy["shown without a bound"]:
        without = paragraph("Shown without a bound, which every party allowed by name:", class_="warning")
        parts = [without, listing(shown), paragraph("Apart from that:") if bounds else None, *parts]
    return parts


def _named(outputs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name.removeprefix("outputs/"), digest) for name, digest in outputs]


def _counted(stated: Mapping[str, Any], verdict: str) -> int:
    worst = {"not passed": 0, "cannot be told": 1, "passed": 2}
    verdicts = (min(figure["threshold"], figure["dominance"], key=worst.__getitem__) for figure in stated["figures"])
    return sum(judged == verdict for judged in verdicts)
