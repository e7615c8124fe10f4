"""A job.toml: every method with its defaults, and one sentence for each mistake."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING
from pathlib import Path

import pytest

from colonnade.errors import BadArguments, ColonnadeError, SchemaError
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.job_file import JobFile

NEEDED = {
    "capacity": "{ a = 5, b = 5 }",
    "tables": '[["a", "b"]]',
    "response": '"sued"',
}
"""Options without a default, by name, as a job.toml states them."""


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "job.toml").write_text(text)
    return tmp_path / "job.toml"


@pytest.mark.parametrize("name", [name for name in CATALOGUE.names if name != "polynomial-sum"])
def test_every_method_takes_its_defaults(tmp_path: Path, name: str) -> None:
    required = [option for option, stated in CATALOGUE.load(name).declared().items() if stated.default is MISSING]
    options = "".join(f"{option} = {NEEDED[option]}\n" for option in required)
    method = JobFile.from_toml(written(tmp_path, f'method = "{name}"\n[options]\n{options}')).method()
    assert method.name == name
    again = CATALOGUE.make(name, method.options())
    assert again == method
    assert again.options() == method.options()


def test_options_are_those_of_the_class(tmp_path: Path) -> None:
    file = JobFile.from_toml(
        written(tmp_path, 'method = "pca"\nname = "spring"\n[options]\nn_components = 2\ncolumns = ["a", "b"]\n')
    )
    made = file.method()
    assert file.name == "spring"
    assert made.options()["n_components"] == 2
    assert made.options()["columns"] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("method = ", SchemaError, "cannot be read"),
        ("name = 'x'", SchemaError, "must have method"),
        ("method = 3", SchemaError, "must have method"),
        ("method = 'magic'", SchemaError, "this installation has describe"),
        ("method = 'pca'\nepsilon = 1", SchemaError, "a field 'epsilon'"),
        ("method = 'pca'\nname = '../x'", SchemaError, "not a path"),
        ("method = 'pca'\n[options]\nepsilonn = 1", BadArguments, "has no option 'epsilonn'"),
        ("method = 'align'", BadArguments, "needs the option 'capacity'"),
        ("method = 'describe'\n[options]\ncolumns = 3", BadArguments, "wrong type"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, kind: type[ColonnadeError], told: str) -> None:
    with pytest.raises(kind, match=told):
        JobFile.from_toml(written(tmp_path, text)).method()


def test_the_example_in_the_documentation_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
    text = page.partition("## run")[2].partition("```toml\n")[2].partition("```")[0]
    assert tomllib.loads(text)["method"] == "pca"
    assert JobFile.from_toml(written(tmp_path, text)).method().name == "pca"
