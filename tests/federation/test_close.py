"""A party that is closed while a request is being answered: the request ends first, and later ones are refused."""

from __future__ import annotations

import threading
from pathlib import Path

from colonnade.federation.messages import Reply, Request
from colonnade.federation.party import Party
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
