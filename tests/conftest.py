"""Fixtures that tests of several layers share."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from support.browser import browser as browser

# A job in the background of a shell ignores interrupts, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, or a skip that says why."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data sets are not at {SHARED_DATA}")
    return SHARED_DATA
