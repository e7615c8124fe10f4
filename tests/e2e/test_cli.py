"""The command line as a user meets it: verbs, exit codes, one-line errors, plain output, interruption.

Oracles: docs/command-line.md for exit codes; the library's own reading of ledgers and run folders for what a verb did.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

import colonnade
from colonnade import errors
from colonnade.catalogue import CATALOGUE
from colonnade.cli.main import app
from colonnade.cli.output import EXIT_CODES, Verbs, exit_code, one_line
from colonnade.data import Columns
from colonnade.federation.config import Spec
from colonnade.federation.run_folder import RunFolder
from colonnade.privacy.ledger import Budget
from support.small import COLUMNS, three_overlapping_blocks

COMMAND = [sys.executable, "-m", "colonnade.cli.main"]


def three_parties_on_disk(folder: Path, *, extra: str = "", n: int = 60) -> Path:
    """CSV files, a columns.toml and a federation.toml; `extra` goes above the parties."""
    for party, frame in three_overlapping_blocks(n).items():
        frame.to_csv(folder / f"{party}.csv", index=False)
    (folder / "columns.toml").write_text(COLUMNS.to_toml())
    parties = "".join(f'[parties.{party}]\nsource = "{party}.csv"\n' for party in ("clinic", "court", "bank"))
    file = folder / "federation.toml"
    file.write_text(f'key = "id"\ncolumns = "columns.toml"\n{extra}\n{parties}')
    return file


def colonnade_says(*arguments: str | Path, code: int = 0) -> str:
    """Standard output of a verb that must end with `code`; an error must be one line on standard error."""
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    assert "\x1b" not in done.output
    assert "Traceback" not in done.output
    if code not in (0, 2):
        assert re.fullmatch(r"colonnade: [^\n]+\n", done.stderr)
    return done.stdout if code == 0 else done.stderr


def ledger(home: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(colonnade_says("ledger", "show", home, "--json"))
    return read


def test_version() -> None:
    assert colonnade_says("--version") == f"colonnade {colonnade.__version__}\n"


def test_describe_runs_and_its_records_verify(tmp_path: Path) -> None:
    file = three_parties_on_disk(tmp_path)
    said = colonnade_says("describe", "-f", file, "--epsilon", "1", "--name", "first")
    run = tmp_path / "runs" / "first"
    assert said.rstrip().splitlines()[-1] == f"Report: {run / 'report.html'}"
    assert (run / "report.html").is_file()
    result = RunFolder(run).read_json("result.json")
    for count in result["presence"].values():
        assert f"{count:,} ±" in said
    assert all(name in said for name in COLUMNS)
    assert "(1, 1e-06) per record, zero-out" in said

    # One presence count and one marginal a column at each party: what was reserved is what was debited.
    for party, columns in {"clinic": 2, "court": 1, "bank": 2}.items():
        home = tmp_path / "home" / party
        read = ledger(home)
        assert sum(row["count"] for row in read["reservations"]) == len(read["debits"]) == 1 + columns
        assert "intact" in colonnade_says("ledger", "verify", home, "--run", run)
        assert "intact" in colonnade_says("transcript", "verify", home / "party.db", "--run", run)
    assert "intact" in colonnade_says("transcript", "verify", run)
    messages = json.loads(colonnade_says("transcript", "show", run, "--json"))
    assert f"{len(messages)} messages" in colonnade_says("transcript", "show", run)
    assert "noisy counts of the public cells of sued" in colonnade_says(
        "transcript", "show", tmp_path / "home" / "court"
    )


def test_describe_takes_its_options_and_quiet_prints_the_path_only(tmp_path: Path) -> None:
    file = three_parties_on_disk(tmp_path)
    options = [
        "--delta",
        "0",
        "--marginals",
        "histogram",
        "--bins",
        "5",
        "--columns",
        "age, sued",
        "--columns",
        "rating",
    ]
    said = colonnade_says("describe", "-f", file, "--epsilon", "2", *options, "--quiet")
    report = Path(said.strip())
    assert said == f"{report}\n"
    assert report.name == "report.html"
    assert RunFolder(report.parent).job["options"] == {
        "epsilon": 2.0,
        "delta": 0.0,
        "marginals": "histogram",
        "bins": 5,
        "columns": ["age", "sued", "rating"],
    }


def test_plan_touches_nothing_and_agrees_with_the_run(tmp_path: Path) -> None:
    file = three_parties_on_disk(tmp_path)
    text = colonnade_says("describe", "-f", file, "--epsilon", "1", "--plan")
    printed = json.loads(colonnade_says("describe", "-f", file, "--epsilon", "1", "--plan", "--json"))
    assert "--json goes with --plan" in colonnade_says("describe", "-f", file, "--json", code=2)
    assert not (tmp_path / "runs").exists()
    for party in ("clinic", "court", "bank"):
        read = ledger(tmp_path / "home" / party)
        assert read["reservations"] == read["debits"] == []
    assert printed["person_total"]["replace"]["text"] in text
    assert 0.99 < printed["person_total"]["zero-out"]["epsilon"] <= 1
    colonnade_says("describe", "-f", file, "--epsilon", "1", "--name", "run")
    assert RunFolder(tmp_path / "runs" / "run").read_json("plan.json") == printed["plan"]


def test_ledger_show_states_period_lifetime_and_that_it_is_one_party(tmp_path: Path) -> None:
    file = three_parties_on_disk(tmp_path, extra="budget = { epsilon = 3.0, delta = 1e-6, period_days = 30 }")
    colonnade_says("describe", "-f", file, "--epsilon", "1")
    text = colonnade_says("ledger", "show", tmp_path / "home" / "bank")
    for line in (
        "Last 30 days, zero-out: (",
        "Last 30 days, replace: (",
        "Lifetime total, zero-out: (",
        "Lifetime total, replace: (",
        "Budget: epsilon 3 at delta 1e-06, zero-out in any 30 days",
        "a person's total also includes the other parties' releases",
    ):
        assert line in text
    assert colonnade_says("ledger", "show", tmp_path / "home" / "bank" / "party.db") == text


def test_ledger_show_prints_unbounded_as_unbounded(tmp_path: Path) -> None:
    from support.small import three_parties
    from support.steps import exact_sum

    with three_parties(tmp_path, allow=("raw-sum",)) as federation:
        federation.ask(exact_sum, parties=["clinic"])
    text = colonnade_says("ledger", "show", tmp_path / "home" / "clinic")
    assert "Lifetime total, zero-out: unbounded: raw-sum" in text
    totals = ledger(tmp_path / "home" / "clinic")["totals_of_this_party"]
    assert [total["epsilon"] for total in totals] == [None, None]


def test_init_drafts_one_partys_columns_and_check_reads_them(tmp_path: Path) -> None:
    three_parties_on_disk(tmp_path)
    table, folder = tmp_path / "clinic.csv", tmp_path / "drafted"
    drafted = folder / "columns.toml"
    said = colonnade_says("init", table, "--key", "id", "--out", folder)
    assert "Nothing runs yet" in said
    assert "init.html" in said.splitlines()[-1]
    assert not (folder / "federation.toml").exists()
    assert "exists already" in colonnade_says("init", table, "--key", "id", "--out", folder, code=2)

    assert "draft" in colonnade_says("columns", "check", drafted, code=3)
    text = drafted.read_text()
    drafted.write_text(text.replace("draft = true\n", ""))
    assert "2 columns, all declared and confirmed" in colonnade_says("columns", "check", drafted)
    assert "45 records agree" in colonnade_says("columns", "check", drafted, "--source", table, "--key", "id")
    (tmp_path / "party.toml").write_text(f'source = {{ csv = "{table.name}" }}')
    colonnade_says("init", tmp_path / "party.toml", "--key", "id", "--out", tmp_path / "again")
    assert (tmp_path / "again" / "columns.toml").read_text() == text
    named = colonnade_says("columns", "check", drafted, "--source", tmp_path / "party.toml", "--key", "id")
    assert "45 records agree" in named
    colonnade_says("columns", "check", drafted, "--source", table, code=2)
    colonnade_says("columns", "check", drafted, "--source", tmp_path / "bank.csv", "--key", "id", code=3)


def ordinary_tables(folder: Path, n: int = 400) -> None:
    """Three files as institutions have them: dates, empty cells, names that clash, text that no one wants."""
    rng = np.random.default_rng(3)
    keys = [f"P{number:05d}" for number in range(n)]
    age = rng.integers(20, 90, n)
    opened = pd.Timestamp("2005-03-01") + pd.to_timedelta(rng.integers(0, 4000, n), unit="D")
    bank = pd.DataFrame({"patient": keys, "opened": opened.strftime("%d.%m.%Y"), "age": age})
    bank["income"] = [f"{amount:.2f}".replace(".", ",") for amount in rng.lognormal(8, 0.5, n)]
    bank["iban"] = [f"DE{number * 7919:012d}" for number in range(n)]
    bank.to_csv(folder / "bank.csv", index=False, sep=";", encoding="cp1252")
    clinic = pd.DataFrame({"patient": keys, "sbp": 90 + age / 2 + rng.normal(0, 8, n).round(1), "age": age})
    clinic["smoker"] = rng.choice(["Y", "N"], n)
    clinic["remark"] = [f"seen, nothing of note, day {number}" for number in range(n)]
    clinic.to_parquet(folder / "clinic.parquet")
    visits = pd.DataFrame({"patient": np.repeat(keys, 2), "when": pd.date_range("2020-01-01", periods=2 * n, freq="h")})
    visits["region"] = rng.choice(["Île-de-France", "东部", "Süd"], 2 * n)
    visits["region"] = visits["region"].mask(rng.random(2 * n) < 0.05)
    with duckdb.connect(str(folder / "registry.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT * FROM visits")


def test_from_three_tables_to_results_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary_tables(tmp_path)
    files = [tmp_path / "bank.csv", tmp_path / "clinic.parquet", f"registry={tmp_path / 'registry.duckdb'}:visits"]
    said = colonnade_says("init", *files, "--key", "patient", "--out", tmp_path / "study", "--yes")
    assert "it does not cover the domains" in said
    assert "when (max), region (last). Is that what you mean?" in said
    monkeypatch.chdir(tmp_path / "study")
    page = Path("init.html").read_text()
    for text in ("opened", "%d.%m.%Y", "iban", "an identifier", "free text", "bank has a column of this name too"):
        assert text in page
    columns = Columns.from_toml("columns.toml")
    assert columns.ignore.keys() == {"iban", "remark"}
    assert columns["opened"].kind == columns["when"].kind == "date"
    assert columns["region"].one_row == "last"
    assert "opened" in colonnade_says("describe", "--epsilon", "20")
    told = colonnade_says("synthesize", "--epsilon", "20", "--columns", "opened,sbp,age,when")
    run = Path(told.splitlines()[-1].removeprefix("Report: ")).parent
    table = pd.read_parquet(run / "synthetic.parquet")
    assert table["opened"].dtype.kind == table["when"].dtype.kind == "M"
    assert table["opened"].between("2005-01-01", "2016-12-31").all()
    monkeypatch.chdir(tmp_path)
    assert "no federation.toml in this folder" in colonnade_says("describe", "--epsilon", "1", code=2)


def test_init_with_two_tables_of_one_name(tmp_path: Path) -> None:
    three_parties_on_disk(tmp_path)
    twice = [tmp_path / "clinic.csv"] * 2
    assert "name the parties" in colonnade_says("init", *twice, "--key", "id", "--out", tmp_path / "x", code=2)


# --- exit codes -------------------------------------------------------------------------------------------


def test_every_error_has_an_exit_code() -> None:
    # Oracle: the table in docs/command-line.md, for each class that the family has.
    documented = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    codes = {kind: exit_code(kind("x")) for kind in errors.codes().values()}
    assert [kind for kind, code in codes.items() if code == 1] == [errors.ColonnadeError]
    for family, code in EXIT_CODES:
        assert re.search(rf"^\| {code} \|.*`{family.__name__}`", documented, re.MULTILINE)


def test_1_a_bug_is_one_line_and_debug_shows_where() -> None:
    broken = typer.Typer(cls=Verbs, pretty_exceptions_enable=False)

    @broken.callback()
    def main(debug: bool = False) -> None: ...

    @broken.command()
    def verb() -> None:
        raise ZeroDivisionError("a\nbug")

    done = CliRunner().invoke(broken, ["verb"])
    assert done.exit_code == 1
    assert re.fullmatch(r"colonnade: unexpected ZeroDivisionError: a bug\. [^\n]+--debug[^\n]+\n", done.stderr)
    assert "Traceback" in CliRunner().invoke(broken, ["--debug", "verb"]).stderr


def test_2_usage(tmp_path: Path) -> None:
    assert "--federation" in colonnade_says("describe", "--epsilon", "1", code=2)
    assert "adaptive|histogram" in colonnade_says("describe", "-f", tmp_path, "--marginals", "pies", code=2)
    assert "--bins 'many' is not INTEGER" in colonnade_says("describe", "-f", tmp_path, "--bins", "many", code=2)
    assert "Did you mean 'describe'?" in colonnade_says("descirbe", "-f", tmp_path, code=2)
    assert "at least 200" in colonnade_says("demo", "--n", "5", "--out", tmp_path / "demo", code=2)
    assert not (tmp_path / "demo").exists()


def test_3_data(tmp_path: Path) -> None:
    assert "cannot be read" in colonnade_says("describe", "-f", tmp_path / "no", "--plan", code=3)
    file = three_parties_on_disk(tmp_path)
    frame = pd.read_csv(tmp_path / "clinic.csv").assign(age=101.5)
    frame.to_csv(tmp_path / "clinic.csv", index=False)
    assert "'age'" in colonnade_says("describe", "-f", file, "--epsilon", "1", code=3)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("quiet", [(), ("--quiet",), ("--yes",)])
def test_3_what_will_not_work_is_run_only_by_who_is_sure(tmp_path: Path, quiet: tuple[str, ...]) -> None:
    file = three_parties_on_disk(tmp_path)
    verb = ("presence-total", "-f", file, "--epsilon", "0.02", "--name", "run", *quiet)
    said = colonnade_says(*verb, code=3)
    assert "This will not work" in said
    assert "would be enough" in said
    assert "nothing was spent; --sure runs it all the same" in said
    assert not (tmp_path / "runs").exists()
    assert ledger(tmp_path / "home" / "clinic")["reservations"] == []
    colonnade_says(*verb, "--sure")
    assert (tmp_path / "runs" / "run" / "report.html").is_file()


def test_4_privacy(tmp_path: Path) -> None:
    file = three_parties_on_disk(tmp_path, extra="budget = { epsilon = 0.1, delta = 1e-6 }")
    assert "epsilon must be positive" in colonnade_says("describe", "-f", file, "--epsilon", "-1", code=4)
    assert "budget-exceeded" in colonnade_says("describe", "-f", file, "--epsilon", "1", code=4)
    assert not (tmp_path / "runs").exists()
    assert ledger(tmp_path / "home" / "clinic")["reservations"] == []


def test_5_not_approved_yet_keeps_the_run(tmp_path: Path) -> None:
    file = three_parties_on_disk(tmp_path, extra='approve = "ask"')
    said = colonnade_says("describe", "-f", file, "--epsilon", "1", "--name", "later", code=5)
    run = tmp_path / "runs" / "later"
    assert f"colonnade resume {run}" in said
    assert ledger(tmp_path / "home" / "clinic")["reservations"] == []
    colonnade_says("resume", run, code=5)


def test_6_another_version(tmp_path: Path) -> None:
    file = three_parties_on_disk(tmp_path, extra='approve = "ask"')
    colonnade_says("describe", "-f", file, "--epsilon", "1", "--name", "old", code=5)
    run = tmp_path / "runs" / "old"
    RunFolder(run).update(version="0.0.1")
    assert "0.0.1" in colonnade_says("resume", run, code=6)


def test_7_records(tmp_path: Path) -> None:
    file = three_parties_on_disk(tmp_path)
    colonnade_says("describe", "-f", file, "--epsilon", "1", "--name", "run")
    run, home = tmp_path / "runs" / "run", tmp_path / "home" / "clinic"
    assert "is finished" in colonnade_says("resume", run, code=7)
    (run / "report.html").unlink()  # killed after the job was done and before its report
    assert colonnade_says("resume", run).rstrip().endswith(f"Report: {run / 'report.html'}")
    assert "exists already" in colonnade_says("describe", "-f", file, "--epsilon", "1", "--name", "run", code=7)
    assert "holds no ledger" in colonnade_says("ledger", "show", run, code=7)
    assert "holds no transcript" in colonnade_says("transcript", "verify", tmp_path, code=7)
    (tmp_path / "in the way").touch()
    colonnade_says("demo", "--n", "200", "--out", tmp_path / "in the way", code=7)

    # Whoever can write the file can take the triggers away, change a row and put the triggers back.
    database = sqlite3.connect(home / "party.db")
    triggers = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        database.execute(f"DROP TRIGGER {name}")
    database.execute("UPDATE ledger SET body = replace(body, '\"count\":1', '\"count\":9') WHERE number = 1")
    database.commit()
    assert "append-only is gone" in colonnade_says("ledger", "verify", home, code=7)
    for _, sql in triggers:
        database.execute(sql)
    database.commit()
    assert "row 1 of ledger" in colonnade_says("ledger", "verify", home, code=7)
    database.close()


def test_7_a_ledger_that_was_cut_off_fails_against_the_run_only(tmp_path: Path) -> None:
    file = three_parties_on_disk(tmp_path)
    colonnade_says("describe", "-f", file, "--epsilon", "1", "--name", "run")
    run, home = tmp_path / "runs" / "run", tmp_path / "home" / "clinic"
    database = sqlite3.connect(home / "party.db")
    (trigger,) = database.execute("SELECT sql FROM sqlite_master WHERE name = 'ledger_no_delete'").fetchone()
    database.execute("DROP TRIGGER ledger_no_delete")
    database.execute("DELETE FROM ledger WHERE number = (SELECT max(number) FROM ledger)")
    database.execute(trigger)
    database.commit()
    database.close()
    colonnade_says("ledger", "verify", home)
    assert "cut off" in colonnade_says("ledger", "verify", home, "--run", run, code=7)


def test_federation_toml_is_documented(tmp_path: Path) -> None:
    # Oracle: the fields of `Spec`, and the page's own example, read by the code that it describes.
    page = (Path(__file__).parents[2] / "docs" / "federation-toml.md").read_text()
    renamed = {"blocks": "[parties.NAME]", "organisations": "organisation", "budget": "[budget]"}
    for field in fields(Spec):
        assert f"| `{renamed.get(field.name, field.name)}` |" in page
    (tmp_path / "federation.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    spec, runs = Spec.from_toml(tmp_path / "federation.toml")
    assert spec.budget == Budget(epsilon=3.0, delta=1e-6, period_days=365)
    assert spec.organisations == {"credit": "Credit Agency", "court": "court", "tax": "tax"}
    assert runs == tmp_path / "runs"


def test_names_cannot_steer_the_terminal() -> None:
    assert one_line("a\x1b[31mb\r\nc") == "a [31mb  c"


# --- real processes ---------------------------------------------------------------------------------------


def test_terminal_asks_first_and_shows_progress(tmp_path: Path) -> None:
    file = three_parties_on_disk(tmp_path)
    command = [*COMMAND, "describe", "-f", str(file), "--epsilon", "1", "--name", "run"]
    code, shown = _on_a_terminal(command, "n\n")
    assert code == 5
    assert "nothing was spent" in shown
    assert not (tmp_path / "runs").exists()
    code, shown = _on_a_terminal(command, "y\n")
    assert code == 0
    # Three rounds: the presence counts, then two columns of the parties that have two.
    assert re.search(r"marginals.*round 3 of 3, [\d.]+ kB, 0 B and about 0 s left", shown)


def _on_a_terminal(command: list[str], answer: str) -> tuple[int, str]:
    """Run with a pseudo-terminal as standard input, output and error, and type `answer`."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "150", "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        os.write(ours, answer.encode())
        shown = bytearray()
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other side is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    return process.returncode, shown.decode()


def test_130_interrupted_run_resumes_without_a_second_debit(tmp_path: Path) -> None:
    # 40 columns in a CSV that every request reads again; the signal comes when the run has begun.
    n, names = 3_000, [f"x{i}" for i in range(40)]
    values = np.random.default_rng(0).integers(0, 10, (n, len(names)))
    pd.DataFrame(values, columns=names).assign(id=range(n)).to_csv(tmp_path / "wide.csv", index=False)
    declared = "".join(f'[columns.{name}]\nkind = "count"\nlower = 0\nupper = 9\n' for name in names)
    (tmp_path / "columns.toml").write_text(declared)
    file = tmp_path / "federation.toml"
    file.write_text('key = "id"\ncolumns = "columns.toml"\n[parties.wide]\nsource = "wide.csv"\n')
    run = tmp_path / "runs" / "long"

    # A shell may have told this process to ignore the signal; the command must not inherit that.
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script += "from colonnade.cli.main import app; app()"
    command = [sys.executable, "-c", script, "describe", "-f", str(file), "--epsilon", "1", "--name", "long"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (run / "transcript.db").exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=200)
    assert process.returncode == 130, said
    assert said == f"colonnade: interrupted. The run is kept: resume it with `colonnade resume {run}`.\n"
    assert not (run / "result.json").exists()

    assert colonnade_says("resume", run).rstrip().endswith(f"Report: {run / 'report.html'}")
    read = ledger(tmp_path / "home" / "wide")
    assert [row["count"] for row in read["reservations"]] == [1, len(names)]
    assert len(read["debits"]) == 1 + len(names)


@pytest.mark.parametrize("verb", sorted({*typer.main.get_command(app).list_commands(None), *CATALOGUE.papers()}))  # type: ignore[attr-defined]
def test_every_verb_is_documented_and_helps(verb: str) -> None:
    words = ("papers", verb) if verb in CATALOGUE.papers() else (verb,)
    assert "Usage:" in colonnade_says(*words, "--help")
    documented = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    # The verbs of methods are filled in from their declarations: tests/unit/test_docs.py.
    assert verb in CATALOGUE.names or f"`colonnade {verb}" in documented


def test_the_list_of_verbs_imports_no_method() -> None:
    """Not even what methods are made of: it reads their purpose from the source files."""
    script = (
        "import sys; from typer.testing import CliRunner; from colonnade.cli.main import app;"
        " said = CliRunner().invoke(app, ['--help']).output; assert 'describe' in said, said;"
        " print(*[name for name in ('numpy', 'pandas', 'scipy', 'jax', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
