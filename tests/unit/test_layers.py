"""Each layer names only those before it, in imports and in texts (`colonnade/__init__.py` and README list them)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import colonnade

ROOT = Path(colonnade.__file__).parent
LAYERS = (
    "errors",
    "codec",
    "formatting",
    "view",
    "durable",
    "data",
    "privacy",
    "secure",
    "federation",
    "audit",
    "statistics",
    "alignment",
    "synthesis",
    "models",
    "completion",
    "papers",
    "catalogue",
    "evaluation",
    "console",
    "cli",
)

DOTTED = re.compile(r"\bcolonnade\.([a-z_]+)\b")
"""Our modules in a text, wherever they stand in it."""
STEP = re.compile(r"([a-z_]+)(\.[a-z_]+)+(:\w+)?")
"""What a whole text may be: a module or a step without the package's name, or a class behind a colon."""


def imported(tree: ast.Module) -> Iterator[str]:
    """The layers that a module imports when it is run, not only for its types."""
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "colonnade":
            names += [f"colonnade.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("colonnade."))


def written(tree: ast.Module) -> Iterator[str]:
    """The layers whose modules a text constant names. Docstrings, also those of attributes, may speak of any."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in prose:
            continue
        yield from DOTTED.findall(node.value)
        whole = STEP.fullmatch(node.value)
        if whole and exists(node.value.partition(":")[0]):
            yield whole[1]


def exists(dotted: str) -> bool:
    """Whether a text such as models.linear.regress.share names one of our modules, or something in one."""
    parts = dotted.split(".")
    return (
        any((ROOT.joinpath(*parts[:end])).with_suffix(".py").is_file() for end in range(2, len(parts) + 1))
        or (ROOT.joinpath(*parts) / "__init__.py").is_file()
    )


def named(text: str) -> set[str]:
    tree = ast.parse(text)
    return (set(imported(tree)) | set(written(tree))) & set(LAYERS)


def test_the_order_is_the_documented_one() -> None:
    assert ", ".join(LAYERS) in " ".join((colonnade.__doc__ or "").split())
    readme = (ROOT.parents[1] / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| layer | what is in it |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)(?:/|\.py)`", table, flags=re.MULTILINE) == list(LAYERS)
    present = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert present - {"__init__"} == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_names_only_those_before_it(layer: str) -> None:
    below = set(LAYERS[: LAYERS.index(layer) + 1])
    place = ROOT / layer
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
        assert named(path.read_text(encoding="utf-8")) <= below, path


@pytest.mark.parametrize(
    "bad",
    [
        "def f():\n    from colonnade.models.pca import PCA\n    return PCA\n",
        "import colonnade.models.pca\n",
        "from colonnade import models\n",
        "METHODS = {'pca': 'colonnade.models.pca:PCA'}\n",
        "import importlib\nimportlib.import_module('colonnade.models.pca')\n",
        "def f(name):\n    return f'colonnade.models.{name}'\n",
        "STEPS = ['models.pca.project']\n",
        "TARGET = 'models.pca:PCA'\n",
    ],
)
def test_the_check_sees_a_higher_layer(bad: str) -> None:
    assert named(bad) == {"models"}


@pytest.mark.parametrize(
    "good",
    [
        '"""As colonnade.models does it."""\n',
        'X = 1\n"""Of colonnade.models."""\n',
        "if TYPE_CHECKING:\n    from colonnade.models.pca import PCA\n",
        "WORDS = 'the models.'\n",
        "FILE = 'data.csv'\n",
    ],
)
def test_what_is_no_dependence_passes(good: str) -> None:
    assert named(good) == set()
