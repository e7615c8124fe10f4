"""The TOML files: every method with its defaults, paths beside the file, and one sentence for each mistake."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import BadArguments, ColonnadeError, SchemaError
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.config import ADDRESS, ConsortiumFile, CoordinatorFile, JobFile, PartyFile, Spec, kind_of

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
    required += ["response"] if name == "regress" else []  # that, or a formula
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
        ("method = ", SchemaError, "cannot be read.*colonnade docs command-line"),
        ("name = 'x'", SchemaError, "lacks method"),
        ("method = 3", SchemaError, "method in .* must be a text, not 3"),
        ("method = 'magic'", SchemaError, "names method 'magic'; this installation has .*describe"),
        ("method = 'descripe'", SchemaError, "Did you mean 'describe'"),
        ("method = 'describe'\nepsilon = 1", SchemaError, "has no field 'epsilon'; it has method, name, options"),
        ("method = 'describe'\noption = {}", SchemaError, "Did you mean 'options'"),
        ("method = 'describe'\nname = '../x'", SchemaError, "cannot be called"),
        ("method = 'describe'\n[options]\nepsilonn = 1", BadArguments, "has no option 'epsilonn'"),
        ("method = 'align'", BadArguments, "needs the option 'capacity'"),
        ("method = 'describe'\n[options]\ncolumns = 3", BadArguments, "columns is a list, not int"),
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


# --- the files of a federation ------------------------------------------------------------------------------

PARTY = 'consortium = "../public/consortium.toml"\nname = "clinic"\n'
COORDINATOR = 'consortium = "../public/consortium.toml"\n'
CONSORTIUM = (
    'key = "id"\ncoordinator = "a:1"\ncoordinator_organisation = "uni"\n[members.clinic]\ncertificate = "clinic.pem"\n'
)
FEDERATION = 'key = ["name", "birth"]\ncolumns = "columns.toml"\n[parties.clinic]\nsource = "clinic.csv"\n'


def test_paths_are_relative_to_the_file_that_states_them(tmp_path: Path) -> None:
    party = PartyFile.from_toml(written(tmp_path, PARTY + 'source = { parquet = "rows" }\n'))
    assert party.consortium == tmp_path / "../public/consortium.toml"
    assert (party.home, party.credentials) == (tmp_path / "home", tmp_path / "credentials")
    assert party.source == {"parquet": str(tmp_path / "rows")}
    coordinator = CoordinatorFile.from_toml(written(tmp_path, COORDINATOR))
    assert (coordinator.runs, coordinator.revoked, coordinator.address) == (tmp_path / "runs", None, ADDRESS)
    listed = ConsortiumFile.from_toml(written(tmp_path, CONSORTIUM)).members["clinic"]
    assert (listed.certificate, listed.columns) == (tmp_path / "clinic.pem", None)
    spec, runs = Spec.from_toml(written(tmp_path, FEDERATION))
    assert (spec.key, spec.columns, spec.home, runs) == (
        ("name", "birth"),
        tmp_path / "columns.toml",
        tmp_path / "home",
        tmp_path / "runs",
    )
    assert spec.blocks == {"clinic": str(tmp_path / "clinic.csv")}
    assert spec.organisations == {"clinic": "clinic"}
    assert spec.packages == ("colonnade.papers",)


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (PartyFile.from_toml, PARTY + 'sources = "a.csv"', "has no field 'sources'.*Did you mean 'source'"),
        (PartyFile.from_toml, PARTY + "simulation = 1", "simulation in .* must be true or false, not 1"),
        (PartyFile.from_toml, PARTY + "home = 3", "home in .* must be a path, not 3"),
        (PartyFile.from_toml, 'name = "clinic"', "lacks consortium. `colonnade docs network`"),
        (PartyFile.from_toml, PARTY + "source = 3", "a source is a file name or a table"),
        (PartyFile.from_toml, PARTY + 'packages = ["nowhere"]', "packages names 'nowhere', which is not installed"),
        (PartyFile.from_toml, PARTY + 'packages = "nowhere"', "packages in .* is a list"),
        (CoordinatorFile.from_toml, COORDINATOR + 'seed = "x"', "seed in .* must be an integer, not 'x'"),
        (CoordinatorFile.from_toml, COORDINATOR + "timeout = true", "timeout in .* must be a number"),
        (CoordinatorFile.from_toml, COORDINATOR + 'adress = "a:1"', "Did you mean 'address'"),
        (ConsortiumFile.from_toml, CONSORTIUM + "capacty = 3", "'clinic' in members .*Did you mean 'capacity'"),
        (ConsortiumFile.from_toml, CONSORTIUM + "capacity = 3.5", "capacity in 'clinic' .* must be an integer"),
        (
            ConsortiumFile.from_toml,
            'key = "id"\ncoordinator = "a:1"\ncoordinator_organisation = "uni"\n[members]\n',
            r"at least one \[members.NAME\]",
        ),
        (
            ConsortiumFile.from_toml,
            'key = "id"\ncoordinator = "a:1"\ncoordinator_organisation = "uni"\nmembers = 3\n',
            "must be a table",
        ),
        (Spec.from_toml, FEDERATION + 'organization = "A"', "'clinic' in parties .*Did you mean 'organisation'"),
        (Spec.from_toml, 'transport = "pigeon"\n' + FEDERATION, "'embedded', 'processes' or 'network'"),
    ],
)
def test_every_file_names_what_is_wrong(tmp_path: Path, read: Callable[[Path], Any], text: str, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        read(written(tmp_path, text))


def test_which_file_this_is(tmp_path: Path) -> None:
    for text, kind in ((PARTY, "party"), (COORDINATOR, "coordinator"), (FEDERATION, "federation"), ("=", "federation")):
        assert kind_of(written(tmp_path, text)) == kind
