"""Tables as institutions have them: `colonnade init --yes`, then every verb that fits, and refusals' cures followed.

Ten messy data sets made by code (`real_tables_common.py`) and every public table beside the repository, its columns
split over three parties. Each data set has a process and a folder of its own; verbs are called as on the command
line, without any file but those that `init` wrote. First `--plan`; if that says "This will not work", its advice is
followed. A refusal's cure is followed by rules that know nothing of the data: the line to paste, the epsilon that
would be enough, the option that is named, the columns to leave out. Tables with more than 24 columns are described as
they are; other verbs are given 12 of their columns. A table has at most 4,000 of its records, drawn at random. Tables
with more than 1,000 columns are also given as they are to `pca` and `classify`, whose plan must say what fits (added on
2026-11-17, after trials: `synthesize` and `regress` on as many columns as their plans allow were too slow to be here).
A selection for a binary response has 15 lambdas in place of 50, and 12
columns of at most ten categories (changed on 2026-11-17, for time: with all columns of `stays` it was stopped after
thousands of rounds).

**Criterion**, written before the first run. A verb is *finished* if it ends with exit code 0, a result and a report;
it is a *dead end* if it is refused and the refusal names no cure that a rule can follow, if the cure was followed
five times without success, if it ends in an unexpected error, or if it debits a ledger and leaves no result. Wanted:
no dead end. A result that says in its first line that it has no estimate is finished, and counted by itself: after a
plan without "This will not work" there may be some (the forecast is kind), at most 5 % of the verbs.

The rules were written from the refusals of first runs with 300 to 400 records. QUICK=1 takes 300 records in place of
4,000, of three messy tables and one public one, which a printed SEED chooses. TABLES="survey;adult" runs some of them.
KEEP=FOLDER keeps the outcomes of each table there, with the code that made them, and goes on from those of the present
code; with STALE=1 from those of other code too, and the page says of each line which commit made it and whether that
code has changed since.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import re
import secrets
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.common import Page, quick
from benchmarks.provenance_common import changed_files, commit, loaded_code
from benchmarks.real_tables_common import CSV, KEY, MESSY, Tables, public_names, tables_of

CURES = 5
WIDE, CHOSEN, WIDEST = 24, 12, 1000
PATIENCE = 3600.0
"""Seconds for one data set."""


@dataclass(frozen=True)
class Call:
    """A verb with its options; a value may be a list, which repeats the flag."""

    verb: str
    options: Mapping[str, str | list[str]] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    """The columns that it uses if it names none."""
    instead: tuple[Mapping[str, str | list[str]], ...] = ()
    """Options with another response."""

    def arguments(self) -> list[str]:
        stated = [(flag, value) for flag, values in self.options.items() for value in _listed(values)]
        return [self.verb, *(part for flag, value in stated for part in (flag, value))]

    def having(self, **options: str | list[str]) -> Call:
        return replace(self, options={**self.options, **{f"--{name}": value for name, value in options.items()}})

    def __str__(self) -> str:
        return " ".join(self.arguments())


def _listed(values: str | list[str]) -> list[str]:
    return values if isinstance(values, list) else [values]


@dataclass(frozen=True)
class Outcome:
    """Of one verb: `end` is finished, no estimate, or dead end."""

    data: str
    call: str
    end: str
    cures: tuple[str, ...]
    said: str
    seconds: float


# --- the folder ---------------------------------------------------------------------------------------------------


def write_tables(tables: Tables, folder: Path) -> list[str]:
    """As CSV files; what `init` is told."""
    folder.mkdir(parents=True, exist_ok=True)
    for party, frame in tables.items():
        frame.to_csv(folder / f"{party}.csv", index=False, **frame.attrs.get(CSV, {}))
    return [str(folder / f"{party}.csv") for party in tables]


def command(*arguments: str) -> tuple[int, str]:
    """Exit code of a verb, and all that it said; an unexpected error is one too."""
    from typer.testing import CliRunner

    from colonnade.cli.main import app

    done = CliRunner().invoke(app, list(arguments))
    crash = "" if done.exception is None or isinstance(done.exception, SystemExit) else repr(done.exception)
    return done.exit_code, done.output + crash


def debits(home: Path) -> int:
    """Rows of all ledgers in a federation's home."""
    import sqlite3

    rows = 0
    for database in home.glob("*/party.db"):
        with contextlib.closing(sqlite3.connect(database)) as connection:
            rows += int(connection.execute("SELECT COUNT(*) FROM ledger").fetchone()[0])
    return rows


# --- which verbs fit --------------------------------------------------------------------------------------------


def calls_for(columns: Mapping[str, Mapping[str, Any]]) -> list[Call]:
    """Every verb of Colonnade's own methods that these columns fit; {party: {column: its declaration}}."""
    kinds = {name: column.kind for own in columns.values() for name, column in own.items()}
    order = [name for names in zip(*_padded(columns), strict=True) for name in names if name]
    numeric = [name for name in order if kinds[name] in ("continuous", "count", "date")]
    short = {name: len(column.categories or ()) for own in columns.values() for name, column in own.items()}
    listed = [name for name in order if 2 <= short[name] <= 10]
    binary = [name for name in order if kinds[name] == "binary"]
    wide = len(order) > WIDE
    chosen = {"--columns": json.dumps(list(dict.fromkeys(binary[:1] + numeric + listed))[:CHOSEN])} if wide else {}

    def explaining(response: str, *, few: bool = wide) -> dict[str, str | list[str]]:
        others = [name for name in list(dict.fromkeys(numeric + listed + binary))[: CHOSEN + 1] if name != response]
        return {"--response": response, **({"--columns": json.dumps(others)} if few and others else {})}

    response = next((name for name in numeric if kinds[name] != "date"), "")
    calls = [
        Call("describe", {"--epsilon": "1"}),
        Call("presence-total", {"--epsilon": "1"}),
        Call("moments", {"--epsilon": "4", **chosen}),
        Call("moments", {"--epsilon": "none", **chosen}),
        Call("synthesize", {"--epsilon": "4", **chosen}),
        Call("synthesize", {"--model": "copula", "--epsilon": "4", **chosen}),
        Call("pca", {"--epsilon": "4", **chosen}),
    ]
    if response:
        calls += [
            Call("regress", explaining(response)),
            Call("regress", {"--epsilon": "4", **explaining(response)}),
            Call("select", explaining(response)),
            Call("select", {"--epsilon": "4", **explaining(response)}),
            Call("polynomial-sum", {"--polynomial": json.dumps({"outputs": [[[1.0, {response: 2}]]]})}),
        ]
    if binary:
        instead = tuple(explaining(name) for name in binary[1:])
        calls += [
            Call("classify", {"--epsilon": "4", **explaining(binary[0])}, instead=instead),
            Call("regress", {"--family": "binomial", **explaining(binary[0])}, instead=instead),
            Call(
                "select",
                {"--family": "binomial", "--n-lambdas": "15", **explaining(binary[0], few=True)},
                instead=tuple(explaining(name, few=True) for name in binary[1:]),
            ),
        ]
    pair = (listed + numeric)[:2]
    if len(pair) == 2:
        calls += [Call("tables", {"--tables": json.dumps([pair]), "--epsilon": "1"})]
    if not wide:
        brief = {"--iterations": "200", "--hidden": "32"}
        calls += [Call("complete", brief), Call("complete", {"--imputer": "copula-mean"})]
    if len(order) > WIDEST:
        calls += [Call("pca", {"--epsilon": "4"})]
        calls += [Call("classify", {"--epsilon": "4", "--response": name}) for name in binary[:1]]
    calls.append(Call("align", {"--epsilon": "1"}))
    return [
        replace(call, others=tuple(name for name in order if name != call.options.get("--response"))) for call in calls
    ]


def _padded(columns: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    longest = max(map(len, columns.values()))
    return [[*own, *[""] * (longest - len(own))] for own in columns.values()]


# --- cures --------------------------------------------------------------------------------------------------------

Rule = tuple[str, Callable[[re.Match[str], Call], Call | None]]


def _paste(match: re.Match[str], call: Call) -> Call:
    """The line `allow = [...]` at the top of federation.toml, with what is there already."""
    file = Path("federation.toml")
    text = file.read_text(encoding="utf-8")
    names = {*tomllib.loads(text).get("allow", ()), *json.loads(f"[{match.group(1)}]")}
    rest = re.sub(r"(?ms)^allow = \[.*?^\]\n|^allow = \[[^\n]*\]\n", "", text)
    file.write_text(f"allow = {json.dumps(sorted(names))}\n{rest}", encoding="utf-8")
    return call


def _named(call: Call) -> list[str]:
    """The columns that a call uses besides its response."""
    return json.loads(str(call.options["--columns"])) if "--columns" in call.options else list(call.others)


def _fewer_columns(match: re.Match[str], call: Call) -> Call | None:
    names = _named(call)
    return call.having(columns=json.dumps(names[: len(names) // 2])) if len(names) > 1 else None


def _keep(most: int, call: Call) -> Call | None:
    names = _named(call)
    return call.having(columns=json.dumps(names[:most])) if most < len(names) else None


def _without(match: re.Match[str], call: Call) -> Call | None:
    """Without the columns that the sentence names in quotes."""
    quoted = re.findall(r"'([^']+)'", match.group(0))
    names = [name for name in _named(call) if name not in quoted]
    return call.having(columns=json.dumps(names)) if names and len(names) < len(_named(call)) else None


def _another_response(match: re.Match[str], call: Call) -> Call | None:
    if not call.instead:
        return None
    rest = {flag: value for flag, value in call.options.items() if flag not in ("--response", "--columns")}
    return replace(call, options={**rest, **call.instead[0]}, instead=call.instead[1:])


def _larger(match: re.Match[str], call: Call) -> Call:
    return call.having(epsilon=f"{3 * float(str(call.options['--epsilon'])):g}")


RULES: tuple[Rule, ...] = (
    (r"write allow = \[(.*?)\]", _paste),
    (r"epsilon = ([\d.e+]+) would be enough", lambda match, call: call.having(epsilon=match.group(1))),
    (r"`--([a-z-]+) ([\w.]+)`", lambda match, call: call.having(**{match.group(1): match.group(2)})),
    (r"columns? '[^']+'.*leave (it|them) out with columns=", _without),
    (r"leave out with columns= what may be empty: '.*", _without),
    (r"leave out '.*' with columns=", _without),
    (r"use Select\(solver='moments'\)", lambda match, call: call.having(solver="moments")),
    (r"keep at most (\d+) columns?\b", lambda match, call: _keep(int(match.group(1)), call)),
    (r"(allow|take) a larger epsilon|raise epsilon", _larger),
    (r"choose another response", _another_response),
    (r"fewer columns|leave columns out|leave columns or a party out|choose (them with )?columns=", _fewer_columns),
)
"""(what a sentence says, what the call is then); the first that fits is followed."""


SPOKEN = re.compile("^colonnade: |No estimate")
"""The line that says why a verb has no result; what stands before it is the plan."""


def cured(sentence: str, call: Call) -> tuple[Call, str] | None:
    for pattern, follow in RULES:
        match = re.search(pattern, sentence)
        if match is not None:
            again = follow(match, call)
            if again is not None:
                return again, match.group(0)
    return None


# --- one verb, one data set -------------------------------------------------------------------------------------


def attempt(data: str, call: Call, name: str) -> Outcome:
    """Plan, follow the advice, run, follow the cure, in this folder."""
    started, cures, first = time.monotonic(), [], str(call)
    code, said, empty = 0, "", False

    def outcome(end: str) -> Outcome:
        return Outcome(data, first, end, tuple(cures), said.strip(), time.monotonic() - started)

    for number in range(CURES + 1):
        code, said = command(*call.arguments(), "--plan")
        hopeless = next((line for line in said.splitlines() if "This will not work" in line), "")
        if code == 0 and not hopeless:
            before = debits(Path("home"))
            code, said = command(*call.arguments(), "--name", f"{name}-{number}")
            run = Path("runs") / f"{name}-{number}"
            if code == 0 and (run / "report.html").is_file() and (run / "result.json").is_file():
                stored = json.loads((run / "result.json").read_text(encoding="utf-8"))
                if stored["kind"] != "no-estimate":
                    return outcome("finished")
                empty = True
            elif debits(Path("home")) != before and not (run / "result.json").is_file():
                return outcome("dead end: spent without a result")
        sentence = hopeless or next((line for line in said.splitlines() if SPOKEN.search(line)), said)
        cure = None if "This is a bug" in sentence else cured(sentence, call)
        if cure is None:
            break
        call, what = cure
        cures.append(what)
    return outcome("no estimate" if empty else "dead end: refused" if code else "dead end: will not work")


def verbs_of(data: str, folder: Path, n: int, *, verbs: Sequence[str] = ()) -> list[Outcome]:
    """All outcomes of one data set, in `folder`."""
    from colonnade.federation.coordinator import Federation

    started = time.monotonic()
    files = write_tables(tables_of(data, n), folder / "tables")
    code, said = command("init", *files, "--key", KEY, "--out", str(folder / "study"), "--yes")
    end = "finished" if code == 0 else "dead end: init"
    outcomes = [Outcome(data, "init", end, (), said.strip(), time.monotonic() - started)]
    if code:
        return outcomes
    with contextlib.chdir(folder / "study"):
        with Federation.from_toml("federation.toml") as federation:
            columns = federation.facts.columns
        for place, call in enumerate(calls_for(columns)):
            if not verbs or call.verb in verbs:
                outcomes.append(attempt(data, call, f"{place:02d}-{call.verb}"))
                print(f"{data}: {outcomes[-1].call[:100]}: {outcomes[-1].end}", flush=True)
    return outcomes


@dataclass(frozen=True)
class Line:
    """Of one data set: its outcomes, and the code that made them."""

    outcomes: tuple[Outcome, ...]
    commit: str = ""
    code: Mapping[str, str] = field(default_factory=dict)
    """{file: the hash of what it does}"""

    @property
    def made_by(self) -> str:
        return f"{self.commit}{'; changed since' if changed_files(self.code) else ''}"


def _child(data: str, folder: Path, n: int, answers: Any) -> None:
    load_methods()
    origin = (commit(), loaded_code())
    with contextlib.redirect_stderr(sys.stdout):
        answers.put((data, Line(tuple(verbs_of(data, folder, n)), *origin)))


def load_methods() -> None:
    """The record of a line's code has what its process has loaded."""
    from colonnade.catalogue import CATALOGUE

    for entry in CATALOGUE.own().values():
        entry.load()


def kept_lines(names: Sequence[str]) -> dict[str, Line]:
    """Of earlier runs with the same KEEP, a folder; so that a long study can be made in pieces."""
    folder = os.environ.get("KEEP")
    files = {data: Path(folder) / f"{data}.json" for data in names} if folder else {}
    plain = {data: json.loads(file.read_text()) for data, file in files.items() if file.is_file()}
    lines = {
        data: Line(
            tuple(Outcome(**{**own, "cures": tuple(own["cures"])}) for own in line["outcomes"]),
            line["commit"],
            line["code"],
        )
        for data, line in plain.items()
    }
    stale = os.environ.get("STALE") == "1"
    return {data: line for data, line in lines.items() if stale or not changed_files(line.code)}


def keep_line(data: str, line: Line) -> None:
    folder = os.environ.get("KEEP")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{data}.json").write_text(json.dumps(asdict(line), indent=1))


def in_processes(names: Sequence[str], n: int) -> dict[str, Line]:
    """One process for each data set, two at once unless JOBS says otherwise."""
    at_once = int(os.environ.get("JOBS", "2"))
    context = multiprocessing.get_context("spawn")
    scratch = Path(tempfile.mkdtemp(prefix="real-tables-"))
    answers = context.Queue()
    lines = kept_lines(names)
    waiting, running = [data for data in names if data not in lines], {}
    while waiting or running:
        while waiting and len(running) < at_once:
            data = waiting.pop(0)
            process = context.Process(target=_child, args=(data, scratch / str(len(waiting)), n, answers))
            process.start()
            running[data] = (process, time.monotonic())
        with contextlib.suppress(Exception):
            data, line = answers.get(timeout=1)
            lines[data] = line
            keep_line(data, line)
            running.pop(data)[0].join()
        for data, (process, started) in list(running.items()):
            if (process.exitcode not in (None, 0)) or time.monotonic() - started > PATIENCE:
                process.kill()
                running.pop(data)
                end, seconds = "dead end: the process ended", time.monotonic() - started
                lines[data] = Line((Outcome(data, "all", end, (), str(process.exitcode), seconds),), commit())
    shutil.rmtree(scratch, ignore_errors=True)
    return lines


def chosen(seed: int) -> list[str]:
    """Three messy tables and one public one."""
    draw = random.Random(seed)
    return [*draw.sample(list(MESSY), 3), draw.choice(public_names())]


def main() -> int:
    load_methods()
    n = 300 if quick() else 4000
    page = Page("real-tables", "Real tables: from `init` to a result of every verb")
    names = [*MESSY, *public_names()]
    if quick():
        seed = int(os.environ.get("SEED", "0")) or secrets.randbelow(10**6)
        names = chosen(seed)
        page.say(f"SEED={seed} has chosen {', '.join(names)}.")
    names = [name for name in os.environ.get("TABLES", "").split(";") if name] or names
    page.say(f"{len(names)} data sets of at most {n:,} records; the criterion is in `benchmarks/real_tables.py`.")
    left_out = [] if quick() else [name for name in (*MESSY, *public_names()) if name not in names]
    if left_out:
        page.say(f"A part of the study, which is therefore short: {', '.join(left_out)} are not in it.")
    lines = in_processes(names, n)
    page.older = {
        name: line.code[name] for line in lines.values() for name in changed_files(line.code)
    }  # so that the page says that its code has changed, if that of a line has
    outcomes = [outcome for line in lines.values() for outcome in line.outcomes]
    rows = []
    for data in names:
        own = [outcome for outcome in outcomes if outcome.data == data]
        rows.append(
            [
                data,
                str(len(own)),
                *(str(sum(outcome.end == end for outcome in own)) for end in ("finished", "no estimate")),
                str(sum(bool(outcome.cures) for outcome in own)),
                str(sum(outcome.end.startswith("dead end") for outcome in own)),
                f"{sum(outcome.seconds for outcome in own):.0f}",
                lines[data].made_by,
            ]
        )
    page.table(("data set", "verbs", "finished", "no estimate", "after a cure", "dead ends", "seconds", "commit"), rows)
    dead = [outcome for outcome in outcomes if outcome.end.startswith("dead end")]
    empty = sum(outcome.end == "no estimate" for outcome in outcomes)
    for outcome in dead:
        page.say(f"- {outcome.data}, `{outcome.call}`: {outcome.end} ({outcome.cures}); {outcome.said[-600:]}")
    finished = len(outcomes) - len(dead)
    good = not dead and not left_out and empty <= 0.05 * len(outcomes)
    return page.finish(
        good,
        verbs=len(outcomes),
        finished=finished,
        cured=sum(bool(outcome.cures) for outcome in outcomes),
        no_estimate=empty,
        dead_ends=len(dead),
    )


if __name__ == "__main__":
    sys.exit(main())
