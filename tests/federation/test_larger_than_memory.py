"""A block several times larger than the memory that a statistic may take. Oracle: numpy on the whole table.

`support/larger_than_memory.py` runs all parties and the coordinator in one process and measures its memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from support import larger_than_memory as program

RECORDS, WIDTH = 500_000, 40

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to measure peak memory")


def pooled_gram(table: pd.DataFrame) -> np.ndarray:
    """Of the constant, the large block and the two small ones, which are zero where they lack a record."""
    design = np.ones((len(table), WIDTH + 3))
    design[:, 1 : WIDTH + 1] = table[[f"x{j}" for j in range(WIDTH)]]
    small = table["id"].to_numpy()
    design[:, WIDTH + 1 :] = np.where(small % 100 == 0, small % 17 / 8 - 1, 0.0)[:, None]
    return design.T @ design


def cells(values: np.ndarray, count: int) -> np.ndarray:
    return np.minimum(((values + 1) / 2 * count).astype(int), count - 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_statistics_of_a_block_larger_than_their_memory(tmp_path: Path) -> None:
    command = [sys.executable, program.__file__, str(tmp_path), str(RECORDS), str(WIDTH)]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=found).stdout)
    file = tmp_path / "large" / "a.parquet"
    size = file.stat().st_size / 2**20
    grown = told["grown"]
    assert size > 150
    assert grown.pop("everything at once") > 0.9 * size, "the meter sees a table that is loaded whole"
    assert set(grown) == {"describe", "moments", "tables", "sketches"}
    for name, megabytes in grown.items():
        assert megabytes < size / 2, f"{name} took {megabytes:.0f} MB for a file of {size:.0f} MB"

    table = pd.read_parquet(file)
    found = told["found"]
    for name in ("x0", "x1"):
        assert found["describe"][name] == np.bincount(cells(table[name].to_numpy(), 16), minlength=16).tolist()
    assert np.array_equal(found["moments"], pooled_gram(table))
    x = [cells(table[f"x{j}"].to_numpy(), 4) for j in range(4)]
    assert found["tables"]["x0 x1"] == np.bincount(4 * x[0] + x[1], minlength=16).reshape(4, 4).tolist()
    ids = table["id"].to_numpy()
    for own, party in ((x[2], "b"), (x[3], "c")):
        there = ids % 100 == 0
        other = cells(ids[there] % 17 / 8 - 1, 4)
        expected = np.bincount(4 * own[there] + other, minlength=16).reshape(4, 4)
        assert found["tables"][f"{'x2' if party == 'b' else 'x3'} {party}"] == expected.tolist()

    with program.federation(tmp_path / "large", WIDTH, tmp_path / "again", whole=True) as federation:
        assert program.sketches(federation) == found["sketches"]
