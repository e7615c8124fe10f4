"""Whatever the umask: keys, ledgers, logs, rows and runs are for their owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import colonnade as co
from colonnade.durable import tighten
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.transports.certificates import AUTHORITY, CERTIFICATE
from support.small import three_parties

PUBLIC = {AUTHORITY, CERTIFICATE, "request.pem", "revoked.txt"}
"""Certificates, in folders that are private."""


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(root: Path) -> list[str]:
    """Every folder and file below `root` that another account may read, enter or write."""
    return [
        f"{path.relative_to(root)} {stat.S_IMODE(path.stat().st_mode):o}"
        for path in [root, *root.rglob("*")]
        if path.stat().st_mode & 0o077 and path.name not in PUBLIC
    ]


@pytest.mark.parametrize("transport", ["embedded", "processes"])
def test_a_full_job_leaves_nothing_open_to_others(tmp_path: Path, no_umask: None, transport: str) -> None:
    with three_parties(tmp_path, transport=transport, allow=("presence",)) as federation:
        names = ("age", "visits", "rating")
        federation.run(co.Moments(columns=names, epsilon=1.0, delta=1e-6), name="run")
        federation.run(co.Describe(epsilon=1.0))
        assert not open_to_others(tmp_path / "home")  # while it is open: logs of the database, scratch, spool
    assert not open_to_others(tmp_path / "home")
    assert not open_to_others(tmp_path / "runs")
    assert (tmp_path / "home" / "clinic" / "party.db").is_file()
    assert (tmp_path / "runs" / "run" / "transcript.db").is_file()


def test_completed_tables_are_private(tmp_path: Path, no_umask: None) -> None:
    allow = ("presence", "completion-quality")
    with three_parties(tmp_path, allow=allow) as federation:
        co.Complete(imputer="mean").fit(federation)
    assert list((tmp_path / "home" / "clinic" / "completed").iterdir())
    assert not open_to_others(tmp_path / "home")
    assert not open_to_others(tmp_path / "runs")


def test_homes_and_runs_that_were_open_are_tightened(tmp_path: Path) -> None:
    """A variant: the folders of an older version, or a copy that lost its modes."""
    with three_parties(tmp_path) as federation:
        federation.run(co.Describe(epsilon=1.0), name="run")
    for path in tmp_path.rglob("*"):
        if path.name != "identity.pem":  # a key that others may read is refused, not repaired
            path.chmod(0o777 if path.is_dir() else 0o666)
    assert open_to_others(tmp_path / "home" / "clinic")
    three_parties(tmp_path).close()
    assert not [place for party in ("clinic", "court", "bank") for place in open_to_others(tmp_path / "home" / party)]
    RunFolder.open(tmp_path / "runs" / "run")
    assert not open_to_others(tmp_path / "runs" / "run")


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "link").symlink_to(outside)
    tighten(tmp_path / "home")
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644
