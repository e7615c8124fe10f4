"""What errors, reports and drafts name as a guide can be read where Colonnade is installed, without the repository."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.guides import guides
from colonnade.cli.main import app

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "colonnade"
SHIPPED = [*SOURCE.rglob("*.py"), *(SOURCE / "federation" / "kit").iterdir()]
GUIDE = re.compile(r"colonnade docs ([\w/-]+)")
BARE = re.compile(r"\bdocs/[\w/-]+\.md")


def strings(path: Path) -> Iterator[str]:
    """What a file can show a person: its string literals without docstrings, or its text if it is no program. The
    docstring of a verb is its help."""
    if path.suffix != ".py":
        yield path.read_text(encoding="utf-8")
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    is_verb = path.parent.name == "cli"
    plain = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and not (is_verb and node in _first_statements(tree))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in plain:
            yield node.value


def _first_statements(tree: ast.Module) -> list[ast.stmt]:
    return [node.body[0] for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@pytest.mark.parametrize("page", [None, "network", "docs/how-to/declare-columns.md", "declare-columns"])
def test_guides_are_listed_and_printed(page: str | None) -> None:
    answer = CliRunner().invoke(app, ["docs", *([page] if page else [])])
    assert answer.exit_code == 0
    if page is None:
        assert [line.split()[0] for line in answer.output.splitlines()] == list(guides())
        assert "known-issues" in guides()
        assert not [name for name in guides() if name.startswith("results")]
    else:
        name = Path(page).stem
        folder = ROOT / "docs" / ("" if name == "network" else "how-to")
        assert answer.output == (folder / f"{name}.md").read_text(encoding="utf-8").rstrip() + "\n"


def test_an_unknown_guide_is_refused_with_a_cure() -> None:
    answer = CliRunner().invoke(app, ["docs", "netwrok"])
    assert answer.exit_code == 2
    assert "`colonnade docs` lists them" in answer.output


def test_what_is_named_is_there() -> None:
    known = {name.rpartition("/")[2] for name in guides()} | set(guides())
    named = [(path.name, name) for path in SHIPPED for text in strings(path) for name in GUIDE.findall(text)]
    assert len(named) > 10
    assert [(path, name) for path, name in named if name not in known] == []
    asked = re.compile(r'guide(?:: str)? ?= ?"([\w-]+)"')
    config = {name for path in SOURCE.rglob("*.py") for name in asked.findall(path.read_text(encoding="utf-8"))}
    assert {"sources", "federation-toml", "command-line"} <= config <= known


def test_nothing_that_a_person_sees_names_a_file_of_the_repository() -> None:
    assert [(path.name, *BARE.findall(text)) for path in SHIPPED for text in strings(path) if BARE.search(text)] == []


def test_a_wheel_carries_the_guides(tmp_path: Path) -> None:
    """Built from the files that git tracks of what a build reads, without the network."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "results", "images", "notebooks")
    for name in ("src", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "out", "."]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    carried = [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("colonnade/guides/")]
    assert sorted(name.removeprefix("colonnade/guides/").removesuffix(".md") for name in carried) == sorted(guides())
