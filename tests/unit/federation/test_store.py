"""What a party remembers: whole payloads while a job is open, hashes when it is closed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.durable import Database
from colonnade.errors import CorruptRecord
from colonnade.federation.store import BUFFER, SPOOL_ABOVE, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(Database(tmp_path / "party.db"), tmp_path / "spool")
    made.add_job("j", "hash", b"plan", "approved")
    return made


def spooled(store: Store) -> list[Path]:
    return sorted(store._spool.iterdir()) if store._spool.is_dir() else []


@pytest.mark.parametrize("size", [10, SPOOL_ABOVE, SPOOL_ABOVE + 1, 3 * SPOOL_ABOVE, 2 * BUFFER, 2 * BUFFER + 4097])
def test_replies_come_back_byte_for_byte(store: Store, size: int) -> None:
    payload = np.random.default_rng(size).bytes(size)
    store.add_reply("j", 1, "request", payload)
    found = store.reply("j", 1)
    assert found is not None
    assert (found.request, found.reply) == ("request", payload)
    assert len(spooled(store)) == (1 if size > SPOOL_ABOVE else 0)
    assert store.reply("j", 2) is None


@pytest.mark.parametrize("failing", ["open", "write"])
def test_a_disk_that_takes_no_direct_writes_is_written_through_the_cache(
    store: Store, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_, write = os.open, os.write

    def refused(first: Any, second: Any, *rest: Any, **more: Any) -> Any:
        if failing == "write" or second & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return open_(first, second, *rest, **more)

    monkeypatch.setattr(os, failing, refused)
    payload = np.random.default_rng(0).bytes(SPOOL_ABOVE + 1)
    store.add_reply("j", 1, "request", payload)
    monkeypatch.setattr(os, failing, open_ if failing == "open" else write)
    stored = store.reply("j", 1)
    assert stored is not None
    assert stored.reply == payload
    assert len(spooled(store)) == 1


def test_closing_a_job_shrinks_it_to_hashes(store: Store) -> None:
    store.add_reply("j", 1, "request", bytes(2 * SPOOL_ABOVE))
    store.add_reply("j", 2, "request", b"small")
    store.keep("j", "shares", np.ones(SPOOL_ABOVE))
    store.add_job("other", "hash", b"plan", "approved")
    store.keep("other", "shares", np.zeros(SPOOL_ABOVE))
    assert len(spooled(store)) == 3
    store.forget("j")
    store.clear("j")
    for seq in (1, 2):
        found = store.reply("j", seq)
        assert found is not None
        assert found.reply is None
    assert not store.keeps("j", "shares")
    assert len(spooled(store)) == 1, "the other job's payload stays"
    assert store.recall("other", "shares").sum() == 0


def test_names_of_a_transaction_that_failed_are_forgotten(store: Store) -> None:
    assert not store.keeps("j", "shares")
    with pytest.raises(RuntimeError), store.database.transaction():
        store.keep("j", "shares", 1)
        store.add_sent("j", [("bank", "rows")])
        assert store.keeps("j", "shares")
        raise RuntimeError
    assert not store.keeps("j", "shares")
    assert not store.sent("j", "bank", "rows")
    with store.database.transaction():
        store.keep("j", "shares", 2)
    assert store.keeps("j", "shares")
    assert not store.keeps("other", "shares")


def test_a_killed_steps_leftovers_are_swept(store: Store, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / ("0" * 64)).write_bytes(b"orphan")
    store.sweep()
    assert not spooled(store)


def test_a_changed_payload_is_found(store: Store) -> None:
    store.add_reply("j", 1, "request", bytes(2 * SPOOL_ABOVE))
    spooled(store)[0].write_bytes(b"changed")
    with pytest.raises(CorruptRecord, match="changed"):
        store.reply("j", 1)
    spooled(store)[0].unlink()
    with pytest.raises(CorruptRecord, match="gone"):
        store.reply("j", 1)


def test_what_is_not_kept_is_not_recalled(store: Store) -> None:
    with pytest.raises(KeyError):
        store.recall("j", "nothing")


def test_what_was_kept_is_overwritten_when_the_job_closes(tmp_path: Path) -> None:
    """In the file and in its log; also if another job is open."""
    store = Store(Database(tmp_path / "party.db"), tmp_path / "spool")
    canary = np.random.default_rng(1).bytes(20_000)
    for job in ("j", "other"):
        store.add_job(job, "hash", b"plan", "approved")
    store.keep("j", "shares", canary)
    store.keep("j", "shares", canary[::-1])
    store.add_reply("j", 1, "request", bytes(50_000))
    store.keep("other", "mine", b"stays")
    files = [tmp_path / name for name in ("party.db", "party.db-wal")]
    parts = [canary[at : at + 16] for at in range(0, 20_000, 1000)] + [canary[::-1][at : at + 16] for at in (0, 9000)]
    assert any(part in path.read_bytes() for path in files for part in parts)
    store.forget("j")
    store.clear("j")
    assert not any(part in path.read_bytes() for path in files for part in parts)
    assert store.recall("other", "mine") == b"stays"
