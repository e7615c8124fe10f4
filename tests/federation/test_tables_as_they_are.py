"""Dates, clipped values, other levels, ignored columns and many rows per person, from the tables to results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.federation.config import Spec
from colonnade.federation.home import open_party
from colonnade.synthesis.table import read_table

COLUMNS = """
ignore = ["remark"]

[columns.opened]
kind = "date"
from = 2010-01-01
to = 2020-12-31
date_format = "%d/%m/%Y"

[columns.income]
kind = "continuous"
lower = 0
upper = 5000
decimal = ","
unit = "€"
clip = true

[columns.age]
kind = "count"
lower = 18
upper = 100

[columns.visit]
kind = "date"
from = "2020-01"
to = "2020-12"
step = "month"
one_row = "max"

[columns.town]
kind = "categorical"
categories = ["Ulm", "Bonn"]
other = "other"
one_row = "last"
order_by = "visit"
"""


def tables(n: int = 400) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(4)
    keys = np.arange(n)
    opened = pd.Timestamp("2011-01-01") + pd.to_timedelta(rng.integers(0, 3000, n), unit="D")
    bank = pd.DataFrame({"id": keys, "opened": opened.strftime("%d/%m/%Y"), "remark": "seen"})
    bank["income"] = [f"{amount:.2f} €".replace(".", ",") for amount in rng.lognormal(8, 0.6, n)]
    clinic = pd.DataFrame({"id": keys, "age": rng.integers(18, 90, n)})
    visits = pd.DataFrame({"id": np.repeat(keys, 2), "town": rng.choice(["Ulm", "Bonn", "Köln"], 2 * n)})
    visits["visit"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 365, 2 * n), unit="D")
    return {"bank": bank, "clinic": clinic, "registry": visits}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> co.Federation:
    folder = tmp_path_factory.mktemp("tables")
    columns = co.Columns.from_toml_text(COLUMNS)
    with co.Federation.local(
        tables(), key="id", columns=columns, home=folder / "home", runs=folder / "runs", seed=1, allow=("presence",)
    ) as opened:
        yield opened


def test_the_owners_log_counts_what_was_put_right_and_nothing_else_does(federation: co.Federation) -> None:
    home = federation.runs.parent / "home"
    above = sum(float(cell.split()[0].replace(",", ".")) > 5000 for cell in tables()["bank"]["income"])
    assert above > 10
    bank = (home / "bank" / "log.txt").read_text()
    assert f"column 'income': {above} cells are outside the declared bounds, taken as the nearest bound." in bank
    assert "column 'town'" in (home / "registry" / "log.txt").read_text()
    assert "column" not in (home / "clinic" / "log.txt").read_text()


def test_a_person_counts_once(federation: co.Federation) -> None:
    assert federation.facts.n == 400


def test_descriptions_speak_of_dates(federation: co.Federation) -> None:
    described = co.Describe(epsilon=50.0).fit(federation)
    rows = {row[0]: row for table in described.view().tables() for row in table.rows}
    assert "median 201" in rows["opened"][-1]
    assert "between 2020-0" in rows["visit"][-1]
    assert described.marginals["visit"]["labels"][:2] == ["2020-01", "2020-02"]


@pytest.mark.parametrize(("model", "file_format"), [("copula", "parquet"), ("copula", "csv"), ("field", "csv")])
def test_synthetic_tables_have_dates_in_the_range_and_read_back(
    federation: co.Federation, model: str, file_format: str
) -> None:
    names = ("opened", "visit", "income", "age") if model == "copula" else ("opened", "visit", "town")
    method = co.Synthesize(epsilon=60.0, delta=1e-6, columns=names, model=model, file_format=file_format, rows=300)
    result, run = federation.run(method)
    table = read_table(run)
    pd.testing.assert_frame_equal(table, result.sample())
    assert table["opened"].dtype.kind == "M"
    assert table["opened"].between("2010-01-01", "2020-12-31").all()
    assert set(table["visit"].dt.day) == {1}
    if file_format == "csv":
        assert (run.path / "synthetic.csv").read_text().splitlines()[1].startswith("201")
    if model == "copula":
        true = pd.to_datetime(tables()["bank"]["opened"], format="%d/%m/%Y")
        assert abs(table["opened"].mean() - true.mean()) < pd.Timedelta(days=200)


def test_ignore_reaches_a_party_from_every_file(tmp_path: Path) -> None:
    """At the top of federation.toml, in one party's table, in a source; and the party's own folder keeps it."""
    frames = tables(60)
    frames["clinic"] = frames["clinic"].assign(shoe=42, opened="x")
    frames["registry"] = frames["registry"].assign(iban="x")
    for party, frame in frames.items():
        frame.to_csv(tmp_path / f"{party}.csv", index=False)
    (tmp_path / "columns.toml").write_text(COLUMNS)
    (tmp_path / "federation.toml").write_text(
        'key = "id"\ncolumns = "columns.toml"\nignore = ["shoe"]\n'
        '[parties.bank]\nsource = "bank.csv"\n'
        '[parties.clinic]\nsource = "clinic.csv"\nignore = ["opened"]\n'
        '[parties.registry]\nsource = { csv = "registry.csv", ignore = ["iban"] }\n'
    )
    spec, _ = Spec.from_toml(tmp_path / "federation.toml")
    assert spec.blocks["clinic"]["ignore"] == ["opened"]
    with co.Federation.from_toml(tmp_path / "federation.toml") as federation:
        assert federation.facts.owner("opened") == "bank"
    for party, names in (("clinic", ["age"]), ("registry", ["visit", "town"])):
        again = open_party(tmp_path / "home" / party)
        assert list(again.block.columns) == names
        again.close()


def test_completed_tables_have_dates() -> None:
    rng = np.random.default_rng(0)
    keys = np.arange(400)
    age = rng.uniform(20, 80, 400)
    opened = pd.Timestamp("2010-01-01") + pd.to_timedelta((40 * age + rng.normal(0, 60, 400)).astype(int), unit="D")
    blocks = {
        "clinic": pd.DataFrame({"id": keys, "age": age}),
        "bank": pd.DataFrame({"id": keys, "opened": opened.strftime("%d/%m/%Y")})[:200],
    }
    fields = {"from_": "2010-01-01", "to": "2020-12-31", "date_format": "%d/%m/%Y"}
    columns = co.Columns(
        [
            co.Column(name="age", kind="continuous", lower=0, upper=120),
            co.Column(name="opened", kind="date", **fields),
        ]
    )
    allow = ("presence", "completion-quality")
    with co.Federation.local(blocks, key="id", columns=columns, holder="a third", allow=allow, seed=1) as federation:
        table = co.Complete(imputer="mean").fit(federation).table("bank")
    assert table["opened"].dtype.kind == "M"
    own = table[~table["opened (generated)"]]
    assert (own["opened"].to_numpy() == opened[own["id"].astype(int)].to_numpy()).all()
    filled = table[table["opened (generated)"]]["opened"]
    assert len(filled) == 200
    assert filled.between("2010-01-01", "2020-12-31").all()
    assert abs(filled.mean() - opened[200:].mean()) < pd.Timedelta(days=150)
