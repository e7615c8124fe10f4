"""The bundle for an output checker: counts, rules, hashes, and nothing that should stay."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.errors import BadArguments, RunError
from colonnade.evaluation.release import Rules, checked, figures_of, write_release
from colonnade.evaluation.report import write_report
from colonnade.federation.run_folder import RunFolder
from colonnade.models.linear.regress import Regress
from colonnade.statistics.describe import Describe
from colonnade.statistics.tables import Tables
from support.small import three_parties


def test_rules_are_judged_with_the_noise() -> None:
    rules = Rules(threshold=10, dominance=0.5)
    assert checked("a", 30, 5, rules).threshold == "passed"
    assert checked("a", 15, 5, rules).threshold == "cannot be told"
    assert checked("a", 9, 0, rules).threshold == "not passed"
    assert checked("a", -20, 5, rules).threshold == "not passed"
    assert checked("a", 1, 0, rules).dominance == "not passed"
    assert checked("a", 2, 0, rules).dominance == "passed"
    assert checked("a", 100, 0, rules).largest_share == pytest.approx(0.01)
    with pytest.raises(BadArguments):
        Rules(threshold=0)


def test_every_cell_of_a_table_is_a_figure() -> None:
    result = {
        "kind": "tables",
        "labels": {"a": ["x", "y"], "b": ["1", "2", "3"]},
        "tables": [{"columns": ["a", "b"], "counts": [[1, 20, 30], [4, 50, 60]], "noise_sd": 2.0}],
    }
    figures = figures_of(result, Rules())
    assert [figure.figure for figure in figures][:2] == ["a = x, b = 1", "a = x, b = 2"]
    assert [figure.records for figure in figures] == [1, 20, 30, 4, 50, 60]


def test_a_bundle_has_all_that_a_checker_needs(tmp_path: Path) -> None:
    with three_parties(tmp_path, allow=("exact-moments", "presence")) as federation:
        _, described = federation.run(Describe(epsilon=2.0), name="described")
        write_report(described)
        _, tables = federation.run(Tables(tables=(("sector", "rating"),), epsilon=5.0), name="tables")
        _, fitted = federation.run(
            Regress(response="visits", columns=("age",), missing="single", minimum_joint=2), name="fitted"
        )
    out = tmp_path / "bundle"
    said = CliRunner().invoke(app, ["release", str(described.path), "--out", str(out)])
    assert said.exit_code == 0, said.output
    stated = json.loads((out / "release.json").read_text())
    assert stated["privacy"]["bounds"]["zero-out"].startswith("(2, ")
    assert {"records of clinic", "records of court"} <= {figure["figure"] for figure in stated["figures"]}
    assert stated["transcript"]["rows"] > 0
    assert len(stated["code"]) == 64
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    assert {"outputs/report.html", "outputs/result.json", "outputs/plan.txt"} <= set(stated["outputs"])
    content = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert described.job["entropy"].encode() not in content
    page = (out / "release.html").read_text()
    assert "<details" not in page
    assert "<script" not in page
    assert stated["plan"] in page
    with pytest.raises(BadArguments, match="not empty"):
        write_release(described, out)

    write_release(tables, tmp_path / "second")
    counted = json.loads((tmp_path / "second" / "release.json").read_text())["figures"]
    assert len(counted) == 9
    write_release(fitted, tmp_path / "third", rules=Rules(threshold=1000))
    exact = json.loads((tmp_path / "third" / "release.json").read_text())
    assert {figure["threshold"] for figure in exact["figures"]} == {"not passed"}
    assert "exact-moments" in " ".join(exact["privacy"]["shown without a bound"])

    described.update(state="failed")
    with pytest.raises(RunError, match="not finished"):
        write_release(RunFolder.open(described.path), tmp_path / "fourth")
