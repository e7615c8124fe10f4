"""The group: the curve and exponentiation against plain integers, published vectors, what is sent, and refusals."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.alignment import exponentiation as raising
from colonnade.alignment import group
from colonnade.alignment.group import (
    ORDER,
    PRIME,
    Elements,
    check_elements,
    draw_exponent,
    hash_and_raise,
    hash_to_group,
    raise_to,
    random_points,
)
from colonnade.errors import SecureError
from colonnade.privacy.randomness import SimulatedRandomness
from support.curve25519 import in_group, multiple, on_curve

GENERATOR = 9
SMALL_ORDERS = (1, 325606250916557431795983626356110631294008115727848805560023387167927233504)
"""x of points of order 4 and 8."""


def rows(*values: int) -> Elements:
    return np.frombuffer(b"".join(value.to_bytes(32, "little") for value in values), dtype=np.uint8).reshape(-1, 32)


def numbers(elements: Elements) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in elements]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(0, 2**256 - 1),
            st.integers(0, 2**255 - 1),
            st.integers(0, 40),
            st.integers(PRIME - 40, PRIME + 40),
            st.integers(0, 255).map(lambda bit: 1 << bit),
            st.integers(1, 255).map(lambda bit: (1 << bit) - 1),
        ),
        min_size=1,
        max_size=80,
    )
)
def test_the_curve_is_that_of_plain_integers(values: list[int]) -> None:
    assert group.on_curve(rows(*values)).tolist() == [on_curve(x) for x in values]


def test_many_points_are_checked_each_for_itself() -> None:
    drawn = np.frombuffer(SimulatedRandomness(1).bytes(32 * 1000), dtype=np.uint8).reshape(-1, 32)
    assert group.on_curve(drawn).tolist() == [on_curve(x) for x in numbers(drawn)]
    assert group.on_curve(drawn[:0]).shape == (0,)


def test_published_vectors() -> None:
    """RFC 7748, section 5.2: the first vector, and X25519(9, 9)."""
    scalar, x, product = (
        int.from_bytes(bytes.fromhex(text), "little")
        for text in (
            "a046e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449a44",  # with X25519's fixed bits
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        )
    )
    assert numbers(raise_to(rows(x), scalar % ORDER)) == [product]
    product = int.from_bytes(
        bytes.fromhex("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"), "little"
    )
    assert numbers(raise_to(rows(GENERATOR), (2**254 + 8) % ORDER)) == [product]


def test_exponentiation_is_that_of_plain_integers() -> None:
    randomness = SimulatedRandomness(5)
    for element in raise_to(random_points(4, randomness), 1):
        for exponent in (1, 2, 3, ORDER - 1, draw_exponent(randomness)):
            assert numbers(raise_to(element[None], exponent)) == [multiple(numbers(element[None])[0], exponent)]


def test_the_order_is_prime_and_that_of_the_generator() -> None:
    """q G is the point at infinity, and q is prime (Miller-Rabin to 40 bases): so no element has a smaller order."""
    assert multiple(GENERATOR, ORDER) is None
    odd, twos = ORDER - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, ORDER)
        assert x in (1, ORDER - 1) or any(pow(x, 2**i, ORDER) == ORDER - 1 for i in range(1, twos))


def test_exponents_commute_and_can_be_undone() -> None:
    randomness = SimulatedRandomness(6)
    elements = raise_to(random_points(70, randomness), 1)
    a, b = draw_exponent(randomness), draw_exponent(randomness)
    both = raise_to(raise_to(elements, a), b)
    assert np.array_equal(both, raise_to(raise_to(elements, b), a))
    assert np.array_equal(raise_to(both, pow(a * b, -1, ORDER)), elements)


def candidates(key: bytes, domain: str) -> list[int]:
    """The digests that are tried for a key."""
    salt = hashlib.sha256(b"colonnade alignment v2" + domain.encode()).digest()
    digests = (hashlib.sha256(salt + i.to_bytes(4, "big") + key).digest() for i in range(99))
    return [int.from_bytes(digest, "little") % 2**255 for digest in digests]


def test_hashing_takes_the_first_digest_on_the_curve_into_the_group() -> None:
    keys = [f"key {i}".encode() for i in range(60)]
    into_group = 8 * pow(8, -1, ORDER)  # 1 modulo q, and 0 modulo 8
    for key, hashed in zip(keys, numbers(hash_to_group(keys, domain="job")), strict=True):
        point = next(x for x in candidates(key, "job") if on_curve(x))
        assert hashed == multiple(point, into_group)


def test_no_bit_of_a_key_survives_the_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blinded key is on the curve and of prime order, whatever the key. Planted: hashes that may be on the twist, so
    that whoever tries a name sees from the blinded value whether it may be that."""
    keys, exponent = [f"key {i}".encode() for i in range(40)], draw_exponent(SimulatedRandomness(8))
    blinded = hash_and_raise(keys, exponent, domain="job")
    assert all(in_group(row.tobytes()) for row in blinded)
    monkeypatch.setattr(group, "on_curve", lambda xs: np.ones(len(xs), dtype=np.bool_))
    leaking = [on_curve(x) for x in numbers(hash_and_raise(keys, exponent, domain="job"))]
    assert leaking == [on_curve(candidates(key, "job")[0]) for key in keys]
    assert len(set(leaking)) == 2


def test_points_that_were_not_raised_can_be_told_from_elements() -> None:
    """So dummies must be raised: seven points in eight of the curve are outside of the group."""
    points = random_points(64, SimulatedRandomness(9))
    assert all(on_curve(x) for x in numbers(points))
    assert 1 <= sum(in_group(row.tobytes()) for row in points) <= 24
    assert all(in_group(row.tobytes()) for row in raise_to(points, draw_exponent(SimulatedRandomness(10))))


def test_hashes_of_two_jobs_have_nothing_in_common() -> None:
    keys = [str(i).encode() for i in range(50)]
    first, second = (set(numbers(hash_to_group(keys, domain=domain))) for domain in ("a", "b"))
    assert len(first) == len(second) == 50
    assert not first & second


def test_a_point_of_the_twist_is_refused() -> None:
    """An x whose right side is no square belongs to the twist; an x of p or above is a second name of a point."""
    twist = next(x for x in range(100) if not on_curve(x) and x)
    for wrong in (0, twist, PRIME + 1, PRIME + GENERATOR, 2**255 + GENERATOR, 2**256 - 1):
        with pytest.raises(SecureError, match="not on the curve"):
            raise_to(rows(GENERATOR, wrong), 7)


@pytest.mark.parametrize("x", SMALL_ORDERS)
def test_a_point_of_small_order_is_refused(x: int) -> None:
    assert on_curve(x)
    assert multiple(x, 8) is None
    with pytest.raises(SecureError, match="small order"):
        raise_to(rows(GENERATOR, x), 7)


def test_lists_of_another_form_are_refused() -> None:
    for wrong in ([1, 2], np.zeros((2, 31), dtype=np.uint8), np.zeros((2, 32)), np.zeros(32, dtype=np.uint8)):
        with pytest.raises(SecureError, match="group element"):
            check_elements(wrong)


def test_workers_give_the_same_list(monkeypatch: pytest.MonkeyPatch) -> None:
    elements = random_points(9, SimulatedRandomness(7))
    monkeypatch.setattr(raising, "WORTHWHILE", 1)
    monkeypatch.setenv("COLONNADE_WORKERS", "2")
    assert np.array_equal(raising.raise_list(elements, 12345), raise_to(elements, 12345))
    keys = [b"", b"a", "größe".encode(), b"x" * 300, b"0"]
    expected = raise_to(hash_to_group(keys, domain="täg"), 12345)
    assert np.array_equal(hash_and_raise(keys, 12345, domain="täg"), expected)
    assert np.array_equal(raising.blind_list(keys, 12345, domain="täg"), expected)
    with pytest.raises(SecureError, match="not on the curve"):
        raising.raise_list(np.full((1, 32), 255, dtype=np.uint8), 5)


@pytest.mark.parametrize("drawn", [0, 1, 2**251 - 1, 2**256 - 1])
def test_exponents_are_those_of_x25519(drawn: int) -> None:
    """A multiple of 8 in [2^254, 2^255), whatever is drawn; and each has its number again, up to sign."""

    class Listed(SimulatedRandomness):
        def bytes(self, count: int) -> bytes:
            return drawn.to_bytes(count, "little")

    exponent = draw_exponent(Listed(0))
    number = 2**254 + 8 * (drawn % 2**251)
    assert exponent == number % ORDER
    assert numbers(raise_to(rows(GENERATOR), exponent)) == [multiple(GENERATOR, number)]


@pytest.mark.parametrize("exponent", [0, 8, ORDER - 8])
def test_an_exponent_without_a_number_of_x25519_is_refused(exponent: int) -> None:
    with pytest.raises(SecureError, match="no number for this exponent"):
        raise_to(rows(GENERATOR), exponent)
