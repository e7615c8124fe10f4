"""What people who join the project are told agrees with the repository."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import colonnade

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_import_is_quick_and_brings_no_numpy() -> None:
    """Of a new process, by its CPU time, which other work on the machine does not lengthen; the best of three."""
    script = (
        "import sys, time; start = time.process_time(); import colonnade;"
        "print(time.process_time() - start, sorted({'numpy', 'pandas', 'scipy', 'typer'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(" ", 1) for _ in "123"]
    assert min(float(seconds) for seconds, _ in outputs) < 0.1
    assert {loaded.strip() for _, loaded in outputs} == {"[]"}


def test_the_citation_is_of_this_version() -> None:
    assert f"version: {colonnade.__version__}\n" in read("CITATION.cff")


def test_the_workflow_runs_what_ci_runs_for_every_python_that_is_declared() -> None:
    job = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"]["test"]
    assert job["steps"][-1] == {"run": "bash .ci/run"}
    assert read(".ci/run").rstrip().endswith("exec make test")
    project = tomllib.loads(read("pyproject.toml"))["project"]
    named = [entry.rpartition(" ")[2] for entry in project["classifiers"] if "Python :: 3." in entry]
    assert job["strategy"]["matrix"]["python"] == named
    assert named[0] == project["requires-python"].removeprefix(">=")
    steps = {step.get("uses", "").partition("@")[0]: step.get("with", {}) for step in job["steps"]}
    assert steps["actions/setup-python"]["python-version"] == "${{ matrix.python }}"


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
