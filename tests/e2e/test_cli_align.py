"""`colonnade align` on files: composite keys, declared normalisation, the overlap report, resuming, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.data.cohort import Alignment
from colonnade.data.column import Column, Columns
from colonnade.federation.policy import operator

COLUMNS = Columns(
    [
        Column(name="visits", kind="count", lower=0, upper=9),
        Column(name="sued", kind="binary", categories=("no", "yes")),
    ]
)


def colonnade(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout + done.stderr


def two_registers(folder: Path, extra: str = "", *, twice: bool = False) -> Path:
    """30 people at the clinic and 25 at the court, who write 20 names differently; the parts of the key are two."""
    names = [f"Zoé Öz{number}" for number in range(30)]
    clinic = pd.DataFrame({"name": names, "born": range(1900, 1930), "visits": 3})
    court = pd.DataFrame(
        {"name": [f"  ZOE  OZ{number}" for number in range(10, 35)], "born": range(1910, 1935), "sued": "no"}
    )
    if twice:
        court.loc[1, ["name", "born"]] = ["zoe oz10", 1910]
    clinic.to_csv(folder / "clinic.csv", index=False)
    court.to_csv(folder / "court.csv", index=False)
    (folder / "columns.toml").write_text(COLUMNS.to_toml())
    file = folder / "federation.toml"
    file.write_text(
        f'key = ["name", "born"]\ncolumns = "columns.toml"\nallow = ["alignment"]\n{extra}\n'
        '[parties.clinic]\nsource = "clinic.csv"\n[parties.court]\nsource = "court.csv"\n'
    )
    return file


def test_align_then_describe(tmp_path: Path) -> None:
    file = two_registers(tmp_path)
    said = colonnade("align", "-f", file, "--normalise", "case,spaces,accents", "--name", "first", "--epsilon", 50)
    assert "learns the presence mask" in said
    assert "overlap.json" in (tmp_path / "runs" / "first" / "report.html").read_text()
    result = json.loads((tmp_path / "runs" / "first" / "result.json").read_text())
    assert result["n"] == 35
    counts = {tuple(one["parties"]): one["count"] for one in result["patterns"]}
    # With epsilon 50 the noise is not 0 with probability below e^-49.
    assert counts == {("clinic",): 10, ("court",): 5, ("clinic", "court"): 20}
    own = json.loads((tmp_path / "home" / "court" / "aligned" / "overlap.json").read_text())
    assert (own["records"], own["in_the_cohort"]) == (25, 25)
    homes = [tmp_path / "home" / party / "aligned" for party in ("clinic", "court")]
    clinic, court = (Alignment.load(home / "alignment.npy") for home in homes)
    assert np.array_equal(clinic.rows[10:30], court.rows[:20]), "the same person has the same row at both"
    assert "aligned privately" in colonnade("describe", "-f", file, "--epsilon", 1)


def test_an_alignment_that_waited_is_resumed(tmp_path: Path) -> None:
    file = two_registers(tmp_path, 'approve = "ask"')
    rules = ("--normalise", "case,spaces,accents")
    said = colonnade("align", "-f", file, "--include", "clinic", *rules, "--name", "a", code=5)
    assert "colonnade resume" in said
    job = json.loads((tmp_path / "runs" / "a" / "job.json").read_text())["job"]
    for party in ("clinic", "court"):
        with operator(tmp_path / "home" / party) as desk:
            desk.decide(job, approve=True)
    colonnade("resume", tmp_path / "runs" / "a")
    result = json.loads((tmp_path / "runs" / "a" / "result.json").read_text())
    assert (result["n"], result["matcher"]) == (30, "clinic")


def test_keys_that_repeat_after_normalising_are_refused_with_their_number(tmp_path: Path) -> None:
    file = two_registers(tmp_path, twice=True)
    said = colonnade("align", "-f", file, "--normalise", "case,spaces", "--normalise", "accents", code=3)
    assert "party 'court': 1 record(s) repeat the key of an earlier one in normal form (case, spaces, accents)" in said
    assert "oz10" not in said.lower()
    assert not (tmp_path / "home").exists()
