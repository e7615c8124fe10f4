"""What the coordinator of a split training can read: nothing. With planted bugs that the checks must see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.completion.split.exchange import Exchange
from colonnade.errors import ColonnadeError, SealBroken, SecureError, UnboundedNotAllowed, UnsafeRequest
from colonnade.federation import wire
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Reply, Request
from colonnade.federation.party import Party
from colonnade.secure import ckks
from support.split import ALLOWED, curved_pair, regression_of, run_training

FIRST = {"left": 1, "right": 2}


class Tapped:
    """A transport that keeps, and may change, what crosses the coordinator's border."""

    def __init__(self, inner: Any, change: Any = None) -> None:
        self.inner, self.change = inner, change
        self.parties = inner.parties
        self.seen: list[tuple[str, Request, Reply]] = []

    def __getitem__(self, party: str) -> Any:
        return self.inner[party]

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        request = Request.decode(data)
        if self.change is not None:
            request, data = self.change(party, request, data)
        answer: bytes = self.inner.exchange(party, data, timeout=timeout)
        self.seen.append((party, request, Reply.decode(answer)))
        return answer

    def where(self, party: str) -> str:
        return str(self.inner.where(party))

    def close(self) -> None:
        self.inner.close()


def tapped(masking: str, monkeypatch: pytest.MonkeyPatch | None = None, change: Any = None) -> tuple[Tapped, list[Any]]:
    """A short training whose border is watched, and the parts that the sender hid."""
    blocks, columns = curved_pair(200)
    hidden: list[Any] = []
    with Federation.local(blocks, key="id", columns=columns, seed=4, allow=ALLOWED) as opened:
        tap = Tapped(opened.transport, change)
        opened.transport = tap  # type: ignore[assignment]
        if monkeypatch is not None:
            plain = Exchange.hide

            def watched(exchange: Exchange, me: Any, values: Any, number: int) -> Any:
                hidden.append(np.array(values, dtype=np.float64).reshape(-1))
                return plain(exchange, me, values, number)

            monkeypatch.setattr(Exchange, "hide", watched)
        training = regression_of(masking=masking, iterations=10, every=2)
        run_training(opened, training, first=FIRST)
    return tap, hidden


def arrays(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [one for inner in value.values() for one in arrays(inner)]
    if isinstance(value, list):
        return [one for inner in value for one in arrays(inner)]
    return [value] if isinstance(value, (np.ndarray, bytes)) else []


def looks_uniform(words: Any) -> bool:
    """Bytes of uniform words: every value of a byte is about as frequent (chi-squared, six deviations)."""
    counts = np.bincount(np.frombuffer(np.ascontiguousarray(words).tobytes(), dtype=np.uint8), minlength=256)
    expected = counts.sum() / 256
    return abs(((counts - expected) ** 2 / expected).sum() - 255) < 6 * np.sqrt(2 * 255)


def test_masked_vectors_are_noise_to_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    tap, hidden = tapped("pads", monkeypatch)
    shown = [one for _, _, reply in tap.seen for one in arrays(reply.value) if isinstance(one, np.ndarray)]
    assert len(shown) == len(hidden) > 0
    assert all(one.dtype == np.uint64 for one in shown)
    assert looks_uniform(np.concatenate(shown))
    # The planted bug: fixed-point numbers without pads are far from uniform.
    bare = np.rint(np.concatenate(hidden) * 2.0**40).astype(np.int64)
    assert not looks_uniform(bare)


def test_no_secret_key_and_no_readable_ciphertext_reaches_the_coordinator() -> None:
    tap, _ = tapped("ckks")
    messages = [(request, reply) for _, request, reply in tap.seen]
    blobs = [one for request, reply in messages for one in arrays([reply.value, dict(request.arguments)])]
    keys = {}
    ciphertexts = []
    for blob in blobs:
        assert isinstance(blob, bytes)  # no array of numbers crosses
        try:
            keys[blob] = ckks.PublicKey.from_bytes(blob)
        except SecureError as error:
            if "secret" in str(error):
                pytest.fail("a secret key crossed the border")
            ciphertexts.append(blob)
    assert len(keys) == 2
    assert ciphertexts
    for blob in keys:
        with pytest.raises(SecureError, match="public key"):
            ckks.SecretKey.from_bytes(blob)
    with pytest.raises(SecureError):
        ckks.SecretKey.generate().decrypt(ciphertexts[:1], size=8, summands=1)


def test_a_changed_gradient_breaks_the_seal() -> None:
    def flip(party: str, request: Request, data: bytes) -> tuple[Request, bytes]:
        gradients = [one for one in request.mail if "gradients" in one.tag]
        if not gradients:
            return request, data
        changed = [
            type(one)(**{**one.to_dict(), "sealed": one.sealed[:-1] + bytes([one.sealed[-1] ^ 1])})
            for one in request.mail
        ]
        bad = replace(request, mail=changed)
        return bad, bad.encode()

    with pytest.raises(SealBroken):
        tapped("pads", change=flip)


@pytest.mark.parametrize("masking", ["pads", "ckks"])
def test_a_spoiled_sum_is_a_clear_error(masking: str) -> None:
    """A garbled sum is noticed by its check value; one that the coordinator made up well is not, nor is it claimed."""

    def spoil(party: str, request: Request, data: bytes) -> tuple[Request, bytes]:
        if not request.step.endswith(".lead"):
            return request, data
        total: Any = request.arguments["total"]
        changed = total + np.uint64(2**50) if masking == "pads" else [b"garbage"]
        bad = replace(request, arguments={**request.arguments, "total": changed})
        return bad, bad.encode()

    with pytest.raises(SecureError):
        tapped(masking, change=spoil)


def test_a_wrong_pair_key_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One party's key with another is not the one that the other has: the pads do not cancel. The coordinator is told
    who refused; the sentence is in that party's own log."""
    agreed = Party.pair_key

    def wrong(me: Party, peer: str, label: str) -> bytes:
        key = agreed(me, peer, label)
        return bytes(32) if me.name == "left" else key

    monkeypatch.setattr(Party, "pair_key", wrong)
    blocks, columns = curved_pair(60)
    with (
        Federation.local(blocks, key="id", columns=columns, seed=4, allow=ALLOWED, home=tmp_path) as opened,
        pytest.raises(SecureError, match="party 'right' refused"),
    ):
        run_training(opened, regression_of(iterations=5), first=FIRST)
    assert "do not cancel: a party used another key" in (tmp_path / "right" / "log.txt").read_text()


def test_a_round_cannot_be_asked_for_twice() -> None:
    """The same pads over other numbers would show their difference."""

    def repeat(party: str, request: Request, data: bytes) -> tuple[Request, bytes]:
        if request.step.endswith(".follow") and request.arguments["number"] == 1:
            bad = replace(request, arguments={**request.arguments, "number": 0})
            return bad, bad.encode()
        return request, data

    with pytest.raises(UnsafeRequest):
        tapped("pads", change=repeat)


def test_nothing_starts_without_the_parties_leave() -> None:
    blocks, columns = curved_pair(60)
    with Federation.local(blocks, key="id", columns=columns, seed=4, allow=("presence",)) as opened:
        with pytest.raises(UnboundedNotAllowed):
            run_training(opened, regression_of())
        assert not list(opened.runs.glob("*"))


def test_only_a_simulation_chooses_a_partys_weights() -> None:
    blocks, columns = curved_pair(60)
    with (
        Federation.local(blocks, key="id", columns=columns, allow=ALLOWED) as opened,
        pytest.raises((UnsafeRequest, ColonnadeError)),
    ):
        run_training(opened, regression_of(), first=FIRST)


def test_masked_parts_travel_as_whole_words() -> None:
    """A float array in a reply would be a plain vector: the wire carries uint64 for pads."""
    tap, _ = tapped("pads")
    for _, _, reply in tap.seen:
        for one in arrays(reply.value):
            assert not (isinstance(one, np.ndarray) and one.dtype.kind == "f"), wire.digest(reply.encode())
