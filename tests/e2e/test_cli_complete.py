"""`colonnade complete` from CSV files to the report and the completed table at its party."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from support.split import curved_pair


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    blocks, columns = curved_pair(200)
    lines = ['key = "id"', 'columns = "columns.toml"', 'allow = ["presence", "completion-quality"]']
    for party, frame in blocks.items():
        frame.to_csv(tmp_path / f"{party}.csv", index=False)
        lines += [f"[parties.{party}]", f'source = "{party}.csv"']
    (tmp_path / "columns.toml").write_text(columns.to_toml())
    (tmp_path / "federation.toml").write_text("\n".join(lines))
    return tmp_path / "federation.toml"


def test_complete_writes_the_table_at_the_party_and_no_record_into_the_run(federation: Path) -> None:
    done = CliRunner().invoke(app, ["complete", "-f", str(federation), "--imputer", "mean", "--quiet"])
    assert done.exit_code == 0, done.output
    report = Path(done.output.strip().splitlines()[-1])
    text = report.read_text(encoding="utf-8")
    assert "records completed at right" in text
    assert "<script" not in text
    assert "seen by the data parties" in text  # by the sealed letters of the meeting
    assert "seen by the coordinator and by anyone who reads this page" in text
    assert "<strong>nothing" not in text
    result = json.loads((report.parent / "result.json").read_text())
    table = pd.read_parquet(federation.parent / "home" / "right" / result["parties"]["right"]["file"])
    assert table["bump (generated)"].sum() == result["parties"]["right"]["completed"] > 0
    assert not list(report.parent.glob("*.parquet"))


def test_what_was_not_allowed_is_refused_in_one_line(federation: Path) -> None:
    done = CliRunner().invoke(app, ["complete", "-f", str(federation)])
    assert done.exit_code == 4
    assert "unbounded" in done.output.lower()
    assert not list(federation.parent.glob("runs/*"))


def test_the_plan_names_every_release(federation: Path) -> None:
    done = CliRunner().invoke(app, ["complete", "-f", str(federation), "--plan"])
    assert done.exit_code == 0, done.output
    assert "split-training" in done.output or "hidden vectors" in done.output
    assert "With two parties the sum" in done.output
    assert "seen by right, the other parties, coordinator: hidden vectors" in done.output
    assert "whom" not in done.output


def test_every_option_of_training_is_offered_and_a_wrong_one_is_named(federation: Path) -> None:
    named = [
        "--learning-rate",
        "0.01",
        "--batch",
        "32",
        "--local",
        "5",
        "--validation",
        "0.2",
        "--epochs",
        "3",
        "--clip",
        "2",
    ]
    done = CliRunner().invoke(
        app,
        ["complete", "-f", str(federation), *named, "--seed", "4", "--epsilon", "2", "--parties", "right", "--plan"],
    )
    assert done.exit_code == 0, done.output
    assert "20 % of the records" in done.output
    assert "regression for right: start" in done.output
    assert "regression for left: start" not in done.output
    for option, value in (("--seed", "-1"), ("--learning-rate", "2"), ("--validation", "1"), ("--epochs", "0")):
        done = CliRunner().invoke(app, ["complete", "-f", str(federation), option, value, "--quiet"])
        assert done.exit_code == 2, done.output
        assert option.strip("-").replace("-", "_") in done.output
        assert not list(federation.parent.glob("runs/*"))
