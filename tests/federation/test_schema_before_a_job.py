"""A source that changed since the party started: refused before anything is reserved, with column, cause and cure."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from colonnade.errors import ColonnadeError, SourceError, UnknownColumn
from colonnade.federation.config import Spec
from colonnade.federation.coordinator import Federation
from colonnade.statistics.describe import Describe
from support.small import COLUMNS, three_overlapping_blocks


def on_files(folder: Path) -> Federation:
    for party, frame in three_overlapping_blocks().items():
        frame.to_csv(folder / f"{party}.csv", index=False)
    blocks = {party: folder / f"{party}.csv" for party in three_overlapping_blocks()}
    spec = Spec(blocks=blocks, key="id", columns=COLUMNS, home=folder / "home")
    return Federation.from_spec(spec, runs=folder / "runs")


def lose_a_column(file: Path) -> None:
    pd.read_csv(file).iloc[:, :-1].to_csv(file, index=False)


def lose_the_file(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lose_a_column, UnknownColumn, "no longer has column"),
        (lose_the_file, SourceError, "cannot be read"),
    ],
)
def test_it_costs_nobody_anything(change, error: type[ColonnadeError], words: str, tmp_path: Path) -> None:
    with on_files(tmp_path) as federation:
        change(tmp_path / "court.csv")
        with pytest.raises(error):
            Describe(epsilon=1.0).fit(federation)
        for party in federation.facts.parties:
            assert not federation.transport[party].ledger.chain.rows()  # type: ignore[index]
        assert words in (tmp_path / "home" / "court" / "log.txt").read_text()
