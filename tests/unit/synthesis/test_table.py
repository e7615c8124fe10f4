"""What every synthesizer returns: streamed files that read back as they were drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from colonnade.errors import BadArguments, StorageError
from colonnade.federation.run_folder import RunFolder
from colonnade.synthesis.table import SyntheticTable, frame_of, read_table, write_rows
from colonnade.view.blocks import Figures, Items, Text, View
from support.copulas import mixed_copula


def made(rows: int = 500, **options: object) -> SyntheticTable:
    return SyntheticTable(
        method="some", cohort=60, model=mixed_copula(), rows=rows, seed=7, cost="none", simulated=True, **options
    )


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_a_written_table_reads_back_as_it_was_drawn(tmp_path: Path, file_format: str) -> None:
    table = made(file_format=file_format)
    run = RunFolder(tmp_path)
    table.write(run)
    back = read_table(run)
    pd.testing.assert_frame_equal(back, table.sample(), check_categorical=True)
    described = run.read_json("result.json")
    assert described["file"] == f"synthetic.{file_format}"
    assert described["simulated"] is True
    assert not list(tmp_path.glob("*.partial"))
    with np.load(tmp_path / "model.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["correlation"], mixed_copula().correlation)


def test_rows_do_not_depend_on_how_they_are_cut_into_batches(tmp_path: Path) -> None:
    model = mixed_copula()
    whole = frame_of(model, 1000, 3)
    pieces = pd.concat(list(model.batches(1000, 3, size=77)), ignore_index=True)
    pd.testing.assert_frame_equal(whole, pieces)
    write_rows(tmp_path / "rows.parquet", model.batches(1000, 3), file_format="parquet")
    assert len(pd.read_parquet(tmp_path / "rows.parquet")) == 1000


def test_the_number_of_rows_and_the_seed_are_free() -> None:
    table = made()
    assert len(table.sample(3)) == 3
    assert len(table.sample(5000)) == 5000
    assert not table.sample(seed=1).equals(table.sample(seed=2))
    generator = np.random.default_rng(4)
    assert not table.sample(50, seed=generator).equals(table.sample(50, seed=generator)), "a generator moves on"


@pytest.mark.parametrize("rows", [0, -1, 2.5, True])
def test_a_table_needs_an_integer_number_of_rows(rows: object) -> None:
    with pytest.raises(BadArguments, match="rows must be"):
        made(rows=rows)  # type: ignore[arg-type]


def test_an_unknown_format_and_a_folder_that_is_gone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArguments, match="format must be"):
        made(file_format="xlsx")
    with pytest.raises(StorageError, match="free disk space"):
        (tmp_path / "gone").write_text("a file where a folder was")
        write_rows(tmp_path / "gone" / "rows.csv", mixed_copula().batches(10, 1), file_format="csv")


# --- what people see ---------------------------------------------------------------------------------------------


def test_the_view_of_a_written_table_is_the_one_that_it_shows(tmp_path: Path) -> None:
    """Counted while the rows are written, or by drawing them once more: the same marginals."""
    table = made(notes=("A note.",), drawn_from="a Gaussian copula")
    run = RunFolder(tmp_path)
    table.write(run)
    assert View.from_dict(run.read_json("view.json")) == table.view()
    assert {"kind": "synthetic-table", **table.to_dict()} == run.read_json("result.json")


def test_the_view_says_where_the_rows_are_whose_they_are_and_what_the_columns_look_like() -> None:
    view = made(notes=("A note.",), drawn_from="a Gaussian copula").view()
    assert view.title == "A synthetic table of 500 rows and 7 columns"
    lead, *_, notes = view.answer
    assert isinstance(lead, Text)
    assert isinstance(notes, Items)
    for words in ("synthetic.parquet", "500 rows", "a Gaussian copula", "60 records", "No row belongs to a record"):
        assert words in lead.text
    assert notes.items == ("A note.",)
    ((figures,),) = [section.blocks for section in view.sections]
    assert isinstance(figures, Figures)
    assert [figure.title for figure in figures.figures] == list(mixed_copula().columns)
    assert sum(figures.figures[0].data["counts"]) == 500
    (listed,) = view.tables()
    assert [row[:2] for row in listed.rows][:2] == [("age", "continuous"), ("visits", "count")]
    imitating = made(fresh=False).view().answer[0]
    assert isinstance(imitating, Text)
    assert "Each row imitates a record" in imitating.text
    assert "No row belongs" not in imitating.text
