"""`colonnade compare`: at home it spends nothing; across parties it is a release that the ledgers have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.data.simulated import five_institutions
from colonnade.data.simulated.example import Example

runner = CliRunner()
COLUMNS = "capital,roa,inspections,removed"


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Example]:
    """A federation.toml, the run folder of a synthetic table, and the simulation."""
    folder = tmp_path_factory.mktemp("firms")
    example = five_institutions(4000, seed=3)
    lines = ['key = "firm"', 'columns = "columns.toml"']
    for party, frame in example.blocks.items():
        frame.to_csv(folder / f"{party}.csv", index=False)
        lines += [f"[parties.{party}]", f'source = "{party}.csv"']
    (folder / "columns.toml").write_text(example.columns.to_toml())
    (folder / "federation.toml").write_text("\n".join(lines))
    federation = folder / "federation.toml"
    done = runner.invoke(app, ["synthesize", "-f", str(federation), "--epsilon", "20", "--columns", COLUMNS, "-q"])
    assert done.exit_code == 0, done.output
    return federation, Path(done.output.strip().splitlines()[-1]).parent, example


def ledger(federation: Path) -> dict[str, int]:
    """Reservations in each party's ledger."""
    homes = sorted(path.parent for path in federation.parent.rglob("party.json"))
    counts = {}
    for home in homes:
        done = runner.invoke(app, ["ledger", "show", str(home), "--json"])
        assert done.exit_code == 0, done.output
        counts[home.name] = len(json.loads(done.output)["reservations"])
    assert counts
    return counts


def test_at_home_nothing_is_spent_and_the_figures_are_those_of_the_block(
    consortium: tuple[Path, Path, Example],
) -> None:
    federation, run, example = consortium
    before = ledger(federation)
    arguments = ["compare", str(run), "--block", str(federation.parent / "credit.csv")]
    found = json.loads(runner.invoke(app, [*arguments, "--json"]).output)
    assert found["records"] == len(example.blocks["credit"])
    assert [one["name"] for one in found["columns"]] == ["roa"]
    assert 0 < found["columns"][0]["distance"] < 0.5
    told = runner.invoke(app, arguments)
    assert told.exit_code == 0
    assert "Nothing was sent or spent" in told.output
    assert ledger(federation) == before


def test_a_joint_comparison_is_a_release_and_sees_a_wrong_table(consortium: tuple[Path, Path, Example]) -> None:
    federation, run, _ = consortium
    before = ledger(federation)
    arguments = ["compare", str(run), "--joint", "capital,roa", "-f", str(federation), "--epsilon", "8", "--json"]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.output)["tables"]
    assert found["columns"] == ["capital", "roa"]
    assert 0 < found["noise"] < 0.2
    assert found["distance"] < 0.5
    assert sum(ledger(federation).values()) > sum(before.values())


def test_what_is_missing_is_said(consortium: tuple[Path, Path, Example]) -> None:
    federation, run, _ = consortium
    for arguments, words in (
        ([str(run)], "either --block"),
        ([str(run), "--joint", "capital,roa"], "is a release"),
        ([str(federation.parent), "--block", "x.csv"], "not a run folder"),
    ):
        done = runner.invoke(app, ["compare", *arguments])
        assert done.exit_code in (2, 7)
        assert words in done.output
