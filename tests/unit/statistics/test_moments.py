"""The memory that a user allows decides tiles and openings, and never the result."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.federation.coordinator import Federation
from colonnade.statistics.moments import Moments

WIDTH = 240


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """Three parties with 80 whole-number columns each, so that quantising changes nothing."""
    rng = np.random.default_rng(0)
    rows = rng.integers(-8, 9, size=(30, WIDTH)) / 8
    names = [f"c{j}" for j in range(WIDTH)]
    frame = pd.DataFrame(rows, columns=names).assign(id=np.arange(30))
    blocks = {f"party{k}": frame[["id", *names[80 * k : 80 * k + 80]]] for k in range(3)}
    columns = Columns([Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in names])
    return Federation.local(
        blocks, key="id", columns=columns, allow=("exact-moments",), home=tmp_path / "home", runs=tmp_path / "runs"
    )


def exact(memory: int | None) -> Moments:
    return Moments(epsilon=None, presence="ignore", constant=False, gamma=64, memory=memory)


def test_less_memory_takes_more_rounds_and_gives_the_same_matrix(federation: Federation) -> None:
    with federation:
        refused = pytest.raises(BadArguments, match=r"needs about \d+ MB")
        with refused as found:
            exact(1).layout(federation.facts, federation.roster)
        least = int(re.findall(r"needs about (\d+) MB", str(found.value))[0])
        assert exact(least).layout(federation.facts, federation.roster), "the memory that it asks for is enough"
        with pytest.raises(BadArguments):
            exact(least - 2).layout(federation.facts, federation.roster)
        layouts = [exact(memory).layout(federation.facts, federation.roster) for memory in (least, 4 * least, None)]
        openings = [layout.opening for layout in layouts]
        assert openings == sorted(openings)
        assert openings[0] < openings[1]
        assert all(max(layout.openings) <= layout.opening for layout in layouts)
        whole, tiled = exact(None).fit(federation), exact(least).fit(federation)
        assert len(layouts[0].rounds) > 1
    assert np.array_equal(whole.grams[0], tiled.grams[0])
    assert np.array_equal(whole.grams[0], whole.grams[0].T)


def test_a_large_matrix_is_written_as_an_array(federation: Federation) -> None:
    with federation:
        result, run = federation.run(exact(None))
    assert run.read_json("result.json")["grams"] == "grams.npz"
    with np.load(run.path / "grams.npz") as stored:
        assert np.array_equal(stored["0"], result.grams[0])


def test_memory_is_an_option_that_survives_a_resume() -> None:
    method = exact(512)
    assert Moments.from_options(method.options()) == method
