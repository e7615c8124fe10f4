"""What a request or a reply is known by: its digest, in which letters are hashed once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colonnade.federation import messages
from colonnade.federation.messages import Mail, Reply, Request
from colonnade.federation.wire import digest

LETTER = Mail(sender="bank", recipient="court", tag="rows", seq=1, sealed=bytes(100))
REQUEST = Request(kind="ask", job="job", seq=2, stage="share", step="share_rows", arguments={"number": 1})


def test_without_letters_it_is_the_digest_of_the_bytes() -> None:
    assert REQUEST.hashed == digest(REQUEST.encode())
    assert Reply(value=3).hashed == digest(Reply(value=3).encode())


def test_every_bit_of_a_letter_and_of_its_envelope_counts() -> None:
    letters = [
        LETTER,
        replace(LETTER, sealed=bytes(99) + b"\x01"),
        replace(LETTER, sealed=LETTER.hashed.encode()),
        replace(LETTER, tag="noise"),
        replace(LETTER, sender="clinic"),
    ]
    for message in (REQUEST, Reply(value=None)):
        assert len({replace(message, mail=(letter,)).hashed for letter in letters}) == len(letters)  # type: ignore[type-var]


def test_both_ends_know_a_message_by_the_same_digest() -> None:
    sent = replace(REQUEST, mail=(LETTER,))
    assert Request.decode(sent.encode()).hashed == sent.hashed


def test_a_relayed_letter_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    monkeypatch.setattr(messages, "digest", lambda data: hashed.append(len(data)) or digest(data))  # type: ignore[func-returns-value]
    large = Mail(**{**LETTER.to_dict(), "sealed": bytes(10_000)})
    arrived = Reply.decode(Reply(mail=(large,)).encode())
    relayed = replace(REQUEST, mail=arrived.mail)
    assert arrived.hashed != relayed.hashed
    assert [size for size in hashed if size >= 10_000] == [10_000]
