"""Makes `benchmarks` importable, which is beside the package; and the two engines of joint statistics."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.small import ENGINES

sys.path.insert(0, str(Path(__file__).parents[2]))


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Where the oracle of a statistic is the same for share holders and for parties in pairs."""
    return str(request.param)
