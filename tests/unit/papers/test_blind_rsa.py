"""Blind RSA against the definition: signatures by one power modulo N, and the intersection of the plain sets."""

from __future__ import annotations

import math

import pytest

from colonnade.errors import SecureError
from colonnade.papers import blind_rsa as rsa
from colonnade.privacy.randomness import SimulatedRandomness

SIGNER = rsa.Signer.generate(2048)
N = SIGNER.modulus
RANDOM = SimulatedRandomness(8)


def test_signing_is_a_power_modulo_n() -> None:
    d = pow(rsa.EXPONENT, -1, math.lcm(SIGNER.p - 1, SIGNER.q - 1))
    for number in (0, 1, 2, N - 1, rsa.draw_unit(N, RANDOM)):
        assert SIGNER.sign(number) == pow(number, d, N)
    assert rsa.Signer.from_list(SIGNER.to_list()) == SIGNER


def test_the_tags_agree_exactly_on_the_intersection() -> None:
    mine, theirs = [b"ann", b"bob", b"cyd"], [b"bob", b"dee", b"ann", b"eve"]
    blinded, factors = rsa.blind(mine, N, domain="job", randomness=RANDOM)
    signed = [SIGNER.sign(number) for number in blinded]
    tags = rsa.unblind(signed, blinded, factors, N, domain="job")
    others = rsa.own_tags(theirs, SIGNER, domain="job")
    assert {key for key, tag in zip(mine, tags, strict=True) if tag in others} == {b"ann", b"bob"}
    assert len({*tags, *others}) == 5
    assert not set(rsa.own_tags(theirs, SIGNER, domain="another job")) & set(others)


def test_what_the_signer_sees_is_not_the_hash_and_differs_each_time() -> None:
    one, _ = rsa.blind([b"ann"], N, domain="job", randomness=RANDOM)
    two, _ = rsa.blind([b"ann"], N, domain="job", randomness=RANDOM)
    assert len({*one, *two, rsa.full_domain_hash(b"ann", N, domain="job")}) == 3


def test_a_wrong_signature_is_refused() -> None:
    blinded, factors = rsa.blind([b"ann"], N, domain="job", randomness=RANDOM)
    with pytest.raises(SecureError, match="does not verify"):
        rsa.unblind([SIGNER.sign(blinded[0]) ^ 1], blinded, factors, N, domain="job")


def test_moduli_and_rows_as_they_arrive() -> None:
    raw = N.to_bytes(256, "big")
    assert rsa.check_modulus(raw, least_bits=2048) == N
    for wrong in (raw, b"", (N - 1).to_bytes(256, "big"), 17):
        with pytest.raises(SecureError, match="modulus"):
            rsa.check_modulus(wrong)
    numbers = [0, 1, N - 1]
    assert rsa.from_rows(rsa.to_rows(numbers, N), N, count=3) == numbers
    with pytest.raises(SecureError, match="another form"):
        rsa.from_rows(rsa.to_rows(numbers, N), N, count=2)
    with pytest.raises(SecureError, match="below its modulus"):
        rsa.from_rows(rsa.to_rows([N], N), N, count=1)
