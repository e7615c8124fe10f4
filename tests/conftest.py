"""Fixtures that tests of several layers share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from support.browser import browser as browser

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, or a skip that says why."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data sets are not at {SHARED_DATA}")
    return SHARED_DATA
