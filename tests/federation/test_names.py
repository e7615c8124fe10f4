"""Names of parties, jobs and runs become files: none of them leads out of the folder that it is meant for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.durable import check_name
from colonnade.errors import RosterError, RunError, SchemaError, UnknownMethod, WireError
from colonnade.federation.catalogue import Entry
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Request
from colonnade.federation.roster import Member, Roster
from colonnade.federation.run_folder import RunFolder
from support.small import three_parties

UNFIT = ["../C", "a/b", "a\\b", "", ".", "..", ".hidden", "a\0b", "a\nb", "x" * 65, "CON", "nul.txt", "Lpt1 .x"]
UNFIT += ["end.", "end ", " begin", "A<i>", 'a"b', "a:b", "a|b", "a*b", "-rf", "I\u0302le", "a\u202eb"]
FIT = ["clinic", "Île-de-France", "Žilina (kraj)", "東京都", "St. Mary's", "R&D, 2nd", "a_b-c.d", "3rd", "Console"]


@pytest.mark.parametrize("name", UNFIT)
def test_unfit_names_are_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(SchemaError, match="begins with a letter or a digit"):
        check_name(name, "a party")


@pytest.mark.parametrize("name", FIT)
def test_names_of_people_and_places_are_fine(name: str) -> None:
    assert check_name(name, "a party") == name


def member(name: str, key: int = 1) -> Member:
    return Member(name=name, organisation=name or "none", public_key=bytes([key]) * 32)


@pytest.mark.parametrize("name", UNFIT)
def test_the_roster_itself_refuses_them(name: str) -> None:
    """At the border: whatever file or request it comes from."""
    stated = {
        "members": [{**vars(member("fit")), "name": name, "public_key": "01" * 32, "signing_key": ""}],
        "committee": [],
        "threshold": 1,
        "colluders": 0,
    }
    with pytest.raises(RosterError):
        Roster.from_dict(stated)


def test_names_that_a_file_system_may_confuse_are_refused() -> None:
    with pytest.raises(RosterError, match="capital"):
        Roster(members=(member("Bank", 1), member("bank", 2)))
    with pytest.raises(RosterError, match="printable"):
        Roster(members=(Member(name="a", organisation="x\x1b[2J", public_key=b"1" * 32),), colluders=0)


def blocks(*names: str) -> dict[str, Any]:
    return {name: pd.DataFrame({"id": range(30), f"c{place}": [0.5] * 30}) for place, name in enumerate(names)}


def test_a_party_cannot_put_its_folder_elsewhere(tmp_path: Path) -> None:
    columns = Columns([Column(name=f"c{place}", kind="continuous", lower=0.0, upper=1.0) for place in range(3)])
    place: dict[str, Any] = {
        "key": "id",
        "columns": columns,
        "home": tmp_path / "h" / "home",
        "runs": tmp_path / "runs",
    }
    for names in (("A", "B", "../C"), ("A", "B", "x/../../C"), ("A<i>", "B", "C")):
        with pytest.raises(RosterError, match="cannot be called"):
            Federation.local(blocks(*names), **place)
        assert not list(tmp_path.iterdir()), "nothing is written before names are checked"
    with Federation.local(blocks("Île-de-France", "東京都", "C"), **place) as federation:
        co.Describe(epsilon=1.0).fit(federation)
    assert {path.name for path in (tmp_path / "h" / "home").iterdir()} == {"Île-de-France", "東京都", "C"}
    assert {path.name for path in tmp_path.iterdir()} == {"h", "runs"}


@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", "NUL", "x" * 65])
def test_a_run_cannot_put_its_folder_elsewhere(tmp_path: Path, name: str) -> None:
    with three_parties(tmp_path) as federation:
        plan = federation.plan(co.Describe(epsilon=1.0))
        before = {path.name for path in tmp_path.rglob("*")}
        with pytest.raises(RunError, match="cannot be called"):
            RunFolder.create(tmp_path / "runs", plan, federation=None, seed=None, name=name)
        assert {path.name for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("job", ["../../x", "a/b", "..", "x" * 201, "nul", "a\0b"])
def test_a_job_id_that_would_be_a_path_is_no_message(job: str) -> None:
    """A completed table is written to a file that is called like its job."""
    with pytest.raises(WireError, match="cannot be called"):
        Request.decode(Request(kind="ask", job=job, arguments={}).encode())


def test_a_plug_in_with_a_name_that_would_be_a_path_is_not_loaded() -> None:
    for name in ("../method", "a/b", "nul", "m" * 33):
        with pytest.raises(UnknownMethod, match="cannot be called"):
            Entry(name, "colonnade.statistics.describe", "Describe", "plugged_in").load()


def test_a_completed_table_is_read_from_its_own_folder_only(tmp_path: Path) -> None:
    """A variant: the name of the file comes from the party."""
    with three_parties(tmp_path, allow=("presence", "completion-quality")) as federation:
        result = co.Complete(imputer="mean").fit(federation)
        assert len(result.table("clinic")) == 60
        (tmp_path / "elsewhere.parquet").write_bytes(
            (tmp_path / "home" / "clinic" / result.parties["clinic"]["file"]).read_bytes()
        )
        for name in (
            "../../elsewhere.parquet",
            str(tmp_path / "elsewhere.parquet"),
            "completed/../../../elsewhere.parquet",
        ):
            result.parties["clinic"]["file"] = name
            with pytest.raises(RunError, match="own folder"):
                result.table("clinic")
