"""`colonnade pca` and `colonnade classify` from CSV files to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.data.simulated import five_institutions


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five institutions as CSV files with a federation.toml."""
    folder = tmp_path_factory.mktemp("firms")
    example = five_institutions(2000, seed=3)
    lines = ['key = "firm"', 'columns = "columns.toml"']
    for party, frame in example.blocks.items():
        frame.to_csv(folder / f"{party}.csv", index=False)
        lines += [f"[parties.{party}]", f'source = "{party}.csv"']
    (folder / "columns.toml").write_text(example.columns.to_toml())
    (folder / "federation.toml").write_text("\n".join(lines))
    return folder / "federation.toml"


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        (["pca", "--n-components", "2", "--memory", "900", "--clip", "0.9"], "pca"),
        (["classify", "--response", "failed"], "classify"),
    ],
    ids=["pca", "classify"],
)
def test_a_model_runs_and_reports(federation: Path, verb: list[str], kind: str) -> None:
    arguments = [*verb, "-f", str(federation), "--epsilon", "4", "--columns", "capital,roa,fines", "--quiet"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    report = Path(done.output.strip().splitlines()[-1])
    text = report.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "capital" in text
    job = json.loads((report.parent / "job.json").read_text())
    assert (job["method"], job["state"]) == (kind, "done")


def test_too_many_components_is_a_usage_error_and_spends_nothing(federation: Path) -> None:
    before = sorted(federation.parent.glob("runs/*"))
    arguments = [
        "pca",
        "--n-components",
        "9",
        "-f",
        str(federation),
        "--epsilon",
        "1",
        "--columns",
        "capital,roa",
        "--quiet",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert sorted(federation.parent.glob("runs/*")) == before


def test_sealed_shares_are_not_said_to_be_on_the_page(federation: Path) -> None:
    arguments = ["pca", "-k", "1", "-f", str(federation), "--epsilon", "4", "--columns", "capital,roa", "--quiet"]
    done = CliRunner().invoke(app, arguments)
    text = Path(done.output.strip().splitlines()[-1]).read_text(encoding="utf-8")
    assert "none learns anything alone)." in text
    assert "seen by the coordinator and by anyone who reads this page." in text
