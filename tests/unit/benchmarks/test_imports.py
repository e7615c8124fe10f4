"""What studies and benches import from the package is there: they run seldom, and must not find out then."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from benchmarks.provenance_common import REPOSITORY

SCRIPTS = sorted((REPOSITORY / "benchmarks").rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each name that a script imports from the package or from another script."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(("colonnade.", "benchmarks.")):
            yield from ((node.module, alias.name) for alias in node.names)


def source(module: str) -> Path | None:
    """The file of a module; None if there is no such module."""
    root = REPOSITORY / "src" if module.startswith("colonnade") else REPOSITORY
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def names(path: Path) -> frozenset[str]:
    """What a module defines or imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    defined = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    aliases = {alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return frozenset(defined | assigned | aliases)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_script_imports_is_there(path: Path) -> None:
    for module, name in imported(path):
        file = source(module)
        assert file is not None, module
        lazy = "__getattr__" in names(file)  # a package that loads its classes when they are first used
        assert lazy or name in names(file) or source(f"{module}.{name}"), f"{module} has no {name}"
