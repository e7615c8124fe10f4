"""What a synthetic table shows: its file, its columns, what is typical of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.column import Column, Columns
from colonnade.synthesis.table import SyntheticTable, _typical
from colonnade.view.page import join
from colonnade.view.render import render_blocks, render_section

COLUMNS = Columns(
    [
        Column(name="age", kind="continuous", lower=0.0, upper=100.0),
        Column(name="<sex>", kind="binary", categories=("f", "m")),
    ]
)


class Fixed:
    """A sampler whose rows are known: ages in [0, 50) and [50, 100), evenly; 150 f and 250 m."""

    columns = COLUMNS

    def batches(self, rows: int, source: Any, *, size: int = 65_536) -> Iterator[pd.DataFrame]:
        ages = np.concatenate([np.linspace(0, 50, 100, endpoint=False), np.linspace(50, 100, 300, endpoint=False)])
        yield pd.DataFrame({"age": ages, "<sex>": ["f"] * 150 + ["m"] * 250})

    def to_arrays(self) -> Mapping[str, np.ndarray[Any, Any]]:
        return {}


TABLE = SyntheticTable(
    method="synthesize", cohort=1000, model=Fixed(), rows=400, seed=1, cost="", simulated=False, notes=("A note.",)
)


def test_a_synthetic_table_is_shown_with_its_file_and_columns() -> None:
    view = TABLE.view()
    page = join([render_blocks(view.answer), *map(render_section, view.sections)])
    for part in ("synthetic.parquet", "400 rows", "1,000 records", "A note.", "&lt;sex&gt;"):
        assert part in page
    assert "<sex>" not in page


def test_the_middle_half_is_that_of_the_rows_and_heaped_values_are_named() -> None:
    """100 values in [0, 50), 300 in [50, 100): the quartiles are the 100th and the 300th."""
    (table,) = TABLE.view().tables()
    assert table.rows[0] == ("age", "continuous", f"49.5 to {50 + 50 * 199 / 300:.4g}")
    assert table.rows[1] == ("<sex>", "binary", "m 62 %, f 38 %")
    ages = pd.Series([0.0] * 70 + [20.0] * 5 + [50.0] * 25)
    assert _typical(COLUMNS["age"], ages) == "0 to 20; 0 70 %"


def test_print_shows_what_a_terminal_shows() -> None:
    """The title once, how good the table is, then every column on a line."""
    lines = str(TABLE).splitlines()
    assert lines[0] == "A synthetic table of 400 rows and 2 columns"
    assert "colonnade compare" in lines[1]
    assert [line.split()[0] for line in lines[3:]] == ["column", "age", "<sex>"]
