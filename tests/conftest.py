"""Fixtures that tests of several layers share."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from support.browser import browser as browser

# A job in the background of a shell ignores interrupts, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every ledger row, transcript row and mark is flushed to the disk before an answer leaves; the flush is not what is
# tested, and waiting for it takes a quarter of the time. So temporary folders, of child processes too, are in memory.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# Several test processes share few cores: threads of the linear algebra that wait for each other took most of the time.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

# A program that JAX has compiled serves all processes of all tests; compiling it anew takes longer than most fits.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"colonnade-jax-{os.getuid()}"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


def pytest_collection_finish() -> None:
    """Modules and tests live until the end: the garbage collector need not visit them again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries look for what was never freed


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, or a skip that says why."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data sets are not at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], AbstractContextManager[Path]]:
    """A folder that all test processes share, by its name: the first one that enters it fills it."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    @contextmanager
    def entered(name: str) -> Iterator[Path]:
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield base / name
            except BaseException:
                shutil.rmtree(base / name, ignore_errors=True)
                raise

    return entered
