"""Every verb has a plan, and a small part of the study real-tables: `init --yes`, verbs, and their cures followed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pandas as pd
import pytest
from benchmarks.provenance_common import REPOSITORY, program_hash
from benchmarks.real_tables import (
    SPOKEN,
    Call,
    Line,
    Outcome,
    calls_for,
    chosen,
    command,
    cured,
    keep_line,
    kept_lines,
    verbs_of,
    write_tables,
)
from benchmarks.real_tables_common import KEY, MESSY, public_names, tables_of

from colonnade.catalogue import CATALOGUE, WITHOUT_BOUND
from colonnade.data import Columns
from colonnade.federation.config import Spec


@pytest.mark.parametrize(
    ("data", "verbs"),
    [
        ("yes-and-no", ("presence-total", "tables", "describe")),
        ("empty and constant", ("presence-total", "tables", "regress")),
    ],
)
def test_verbs_finish_in_the_folder_that_init_wrote(tmp_path: Path, data: str, verbs: tuple[str, ...]) -> None:
    outcomes = verbs_of(data, tmp_path, 80, verbs=verbs)
    assert {outcome.call.split()[0] for outcome in outcomes} == {"init", *verbs}
    assert [outcome for outcome in outcomes if outcome.end.startswith("dead end")] == []


def test_a_drafted_folder_states_what_exact_methods_show(tmp_path: Path) -> None:
    files = write_tables(tables_of("yes-and-no", 40), tmp_path / "tables")
    for folder, options in (("open", ["--yes"]), ("closed", [])):
        code, said = command("init", *files, "--key", KEY, "--out", str(tmp_path / folder), *options)
        assert code == 0, said
        text = (tmp_path / folder / "federation.toml").read_text(encoding="utf-8")
        assert all(f"{json.dumps(name)},  # {shown}" in text for name, shown in WITHOUT_BOUND.items())
        described, _ = Spec.from_toml(tmp_path / folder / "federation.toml")
        assert set(described.allow) == (set(WITHOUT_BOUND) if options else set())


def test_every_verb_has_a_plan_and_prints_its_notes(tmp_path: Path) -> None:
    files = write_tables(tables_of("yes-and-no", 40), tmp_path / "tables")
    command("init", *files, "--key", KEY, "--out", str(tmp_path / "study"), "--yes")
    with contextlib.chdir(tmp_path / "study"):
        columns = Columns.from_toml("columns.toml")
        owned = {
            name: {column: columns[column] for column in frame.columns if column in columns}
            for name, frame in tables_of("yes-and-no", 40).items()
        }
        first = {call.verb: call for call in reversed(calls_for(owned))}
        plans = {verb: command(*call.arguments(), "--plan") for verb, call in first.items()}
        assert set(plans) == set(CATALOGUE.own())
        for verb, (code, said) in plans.items():
            assert code == 0, said
            assert "total" in said.lower(), verb
            assert "Traceback" not in said
        assert "Forecast: " in plans["moments"][1]
        assert not Path("runs").exists()


def test_every_messy_table_is_made(tmp_path: Path) -> None:
    for data in MESSY:
        tables = tables_of(data, 30)
        assert len(tables) == 3
        assert all(isinstance(frame, pd.DataFrame) and KEY in frame for frame in tables.values())


@pytest.mark.parametrize(
    ("sentence", "options"),
    [
        ("epsilon = 7.5 would be enough, or fewer columns.", {"--epsilon": "7.5"}),
        ("column 'b' does not vary in the records used; leave it out with columns=.", {"--columns": '["a", "c"]'}),
        ("columns 'b', 'c' do not vary in the records used; leave them out with columns=.", {"--columns": '["a"]'}),
        ("the columns 'y', 'c' determine one another; leave out 'c' with columns=.", {"--columns": '["a", "b"]'}),
        ("one class has 3 records; leave columns out.", {"--columns": '["a"]'}),
        ("2 features have no 5 components (`--n-components 2`).", {"--n-components": "2"}),
        ("'y' is of its rarer class in 2 of 90 records; choose another response.", {"--response": "b"}),
    ],
)
def test_a_cure_is_read_from_the_sentence(sentence: str, options: dict[str, str]) -> None:
    call = Call("regress", {"--response": "y"}, others=("a", "b", "c"), instead=({"--response": "b"},))
    cure = cured(sentence, call)
    assert cure is not None
    assert dict(cure[0].options) == {"--response": "y", **options}


def test_a_seed_chooses_the_tables_of_a_quick_run() -> None:
    if not public_names():
        pytest.skip("the public tables are not there")
    assert chosen(5) == chosen(5)
    assert len({tuple(chosen(seed)) for seed in range(20)}) > 10
    assert sum(name in MESSY for name in chosen(5)) == 3


def test_lines_are_kept_with_the_code_that_made_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEEP", raising=False)
    file = "benchmarks/real_tables.py"
    outcomes = (Outcome("survey", "init", "finished", ("a cure",), "said", 1.0),)
    line = Line(outcomes, "abc1234", {file: program_hash(REPOSITORY / file)})
    keep_line("survey", line)
    assert kept_lines(["survey"]) == {}
    monkeypatch.setenv("KEEP", str(tmp_path / "kept"))
    keep_line("survey", line)
    assert kept_lines(["survey", "claims"]) == {"survey": line}
    assert line.made_by == "abc1234"
    other = Line(outcomes, "abc1234", {file: "another"})
    assert other.made_by == "abc1234; changed since"
    keep_line("survey", other)
    assert kept_lines(["survey"]) == {}, "it is run again"
    monkeypatch.setenv("STALE", "1")
    assert kept_lines(["survey"]) == {"survey": other}


def test_the_sentence_of_a_refusal_is_followed_not_the_plan_before_it() -> None:
    said = "With missing blocks use Select(solver='moments').\ncolonnade: leave out 'b' with columns=."
    assert [line for line in said.splitlines() if SPOKEN.search(line)] == ["colonnade: leave out 'b' with columns=."]
