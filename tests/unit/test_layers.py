"""Each layer imports only from those before it (`colonnade/__init__.py` lists them)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import colonnade

ROOT = Path(colonnade.__file__).parent
LAYERS = (
    "errors",
    "durable",
    "data",
    "privacy",
    "secure",
    "federation",
    "statistics",
    "alignment",
    "synthesis",
    "models",
    "completion",
    "evaluation",
    "console",
    "cli",
)


def imported(path: Path) -> set[str]:
    """The layers that a module imports when it is run, not only for its types."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "colonnade":
            names += [f"colonnade.{one.name}" for one in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("colonnade.")}
    return found & set(LAYERS)


def test_the_order_is_the_documented_one() -> None:
    assert ", ".join(LAYERS) in " ".join((colonnade.__doc__ or "").split())
    present = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert present - {"__init__"} == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_from_those_before_it(layer: str) -> None:
    below = set(LAYERS[: LAYERS.index(layer) + 1])
    place = ROOT / layer
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
        assert imported(path) <= below, path


def test_the_check_sees_an_import_of_a_higher_layer(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from colonnade.models.linear.regress import VFEM\n    return VFEM\n")
    assert imported(bad) == {"models"}
