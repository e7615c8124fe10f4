"""What people who join the project are told agrees with the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import colonnade

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version() -> None:
    assert f"version: {colonnade.__version__}\n" in read("CITATION.cff")


def test_the_workflow_runs_what_ci_runs_and_python_is_the_declared_one() -> None:
    workflow = read(".github/workflows/test.yml")
    assert "run: bash .ci/run" in workflow
    assert read(".ci/run").rstrip().endswith("exec make test")
    least = tomllib.loads(read("pyproject.toml"))["project"]["requires-python"].removeprefix(">=")
    assert f'python-version: "{least}"' in workflow


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_commands_and_links_of_a_page_are_there(name: str) -> None:
    text, makefile = read(name), read("Makefile")
    for target in re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / link).is_file(), link


def test_the_shell_completes_verbs_and_options() -> None:
    from typer.testing import CliRunner

    from colonnade.cli.main import app

    def completed(words: str, position: int) -> str:
        environment = {"_COLONNADE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        return CliRunner().invoke(app, prog_name="colonnade", env=environment).output

    assert completed("colonnade syn", 1).split() == ["synthesize"]
    assert completed("colonnade synthesize --eps", 2).split() == ["--epsilon"]
