"""Closing: of a party while a request is being answered (the request ends first, and later ones are refused), and of
a job: what each of its requests writes is on the disk by one flush."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from colonnade.durable import Database
from colonnade.federation.messages import Reply, Request
from colonnade.federation.party import Party
from colonnade.statistics.moments import Moments
from support.small import three_parties

HELLO = Request(kind="hello", arguments={}).encode()


def test_close_waits_for_the_request_that_is_being_answered(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        party: Party = federation.transport["court"]  # type: ignore[index]
        inside, go_on, ended = threading.Event(), threading.Event(), threading.Event()
        answers: list[bytes] = []
        original = party._hello

        def slow(request: Request, data: bytes) -> bytes:
            inside.set()
            assert go_on.wait(20)
            return original(request, data)

        party._hello = slow  # type: ignore[method-assign]
        asking = threading.Thread(target=lambda: answers.append(party.handle(HELLO)))
        asking.start()
        assert inside.wait(20)

        def close() -> None:
            party.close()
            ended.set()

        closing = threading.Thread(target=close)
        closing.start()
        assert not ended.wait(0.3)
        go_on.set()
        assert ended.wait(20)
        asking.join(20)
        closing.join(20)
        assert not Reply.decode(answers[0]).error
        assert Reply.decode(party.handle(HELLO)).error == "party-lost"


def test_each_request_is_one_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A party waits for its disk once a request, before it answers: also where a proposal is reserved and noted, and a
    job closed, its reservation withdrawn, the ledger's head signed, and the answer noted."""
    transaction, handle = Database.transaction, Party.handle
    flushed: Counter[Path] = Counter()
    of_kind: dict[str, set[int]] = {}

    @contextlib.contextmanager
    def counted(self: Database, *, flush: bool = True) -> Iterator[None]:
        flushed[self.path] += flush and not self._under_way()
        with transaction(self, flush=flush):
            yield

    def handled(self: Party, data: bytes) -> bytes:
        before = flushed[self.database.path]
        answer = handle(self, data)
        of_kind.setdefault(Request.decode(data).kind, set()).add(flushed[self.database.path] - before)
        return answer

    with three_parties(tmp_path) as federation:
        federation.handshake()
        monkeypatch.setattr(Database, "transaction", counted)
        monkeypatch.setattr(Party, "handle", handled)
        Moments(epsilon=1.0, presence="ignore").fit(federation, sure=True)
    assert of_kind == {kind: {1} for kind in ("check", "propose", "ask", "close", "heads")}
