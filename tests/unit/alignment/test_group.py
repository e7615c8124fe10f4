"""The group: square roots and exponentiation against plain integers, a published vector, and refusals."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.alignment import exponentiation as raising
from colonnade.alignment.group import (
    ORDER,
    PRIME,
    B,
    Elements,
    check_elements,
    draw_exponent,
    hash_and_raise,
    hash_to_group,
    lift,
    raise_to,
    random_elements,
)
from colonnade.errors import SecureError
from colonnade.privacy.randomness import SimulatedRandomness

GENERATOR_X = 0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296


def rows(*values: int) -> Elements:
    return np.frombuffer(b"".join(value.to_bytes(32, "big") for value in values), dtype=np.uint8).reshape(-1, 32)


def numbers(elements: Elements) -> list[int]:
    return [int.from_bytes(row.tobytes(), "big") for row in elements]


def right_side(x: int) -> int:
    return (x**3 - 3 * x + B) % PRIME


def on_curve(x: int) -> bool:
    """Euler's criterion."""
    return x < PRIME and pow(right_side(x), (PRIME - 1) // 2, PRIME) in (0, 1)


def multiple(x: int, k: int) -> int | None:
    """The x coordinate of k times a point with this x, by affine double-and-add: slow, and nothing like ours."""
    Point = tuple[int, int] | None
    start = (x, pow(right_side(x), (PRIME + 1) // 4, PRIME))

    def add(p: Point, q: Point) -> Point:
        if p is None or q is None:
            return p or q
        if p[0] == q[0] and (p[1] + q[1]) % PRIME == 0:
            return None
        if p == q:
            slope = (3 * p[0] ** 2 - 3) * pow(2 * p[1], -1, PRIME)
        else:
            slope = (q[1] - p[1]) * pow(q[0] - p[0], -1, PRIME)
        third = (slope**2 - p[0] - q[0]) % PRIME
        return third, (slope * (p[0] - third) - p[1]) % PRIME

    total: Point = None
    for bit in bin(k)[2:]:
        total = add(total, total)
        if bit == "1":
            total = add(total, start)
    return None if total is None else total[0]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(0, 2**256 - 1),
            st.integers(0, 40),
            st.integers(PRIME - 40, PRIME + 40),
            st.integers(0, 255).map(lambda bit: 1 << bit),
            st.integers(1, 255).map(lambda bit: (1 << bit) - 1),
        ),
        min_size=1,
        max_size=80,
    )
)
def test_lift_is_the_square_root_by_integers(values: list[int]) -> None:
    ys, good = lift(rows(*values))
    for x, y, there in zip(values, numbers(ys), good.tolist(), strict=True):
        assert there == on_curve(x)
        if there:
            assert y < PRIME
            assert y * y % PRIME == right_side(x)


def test_lift_of_nothing() -> None:
    ys, good = lift(np.zeros((0, 32), dtype=np.uint8))
    assert ys.shape == (0, 32)
    assert good.shape == (0,)


def test_a_published_vector() -> None:
    """NIST CAVP, ECC CDH primitive, P-256, count 0."""
    other = 0x700C48F77F56584C5CC632CA65640DB91B6BACCE3A4DF6B42CE7CC838833D287
    secret = 0x7D7DC5F71EB29DDAF80D6214632EEAE03D9058AF1FB6D22ED80BADB62BC1A534
    shared = 0x46FC62106420FF012E54A434FBDD2D25CCC5852060561E68040DD7778997BD7B
    assert numbers(raise_to(rows(other), secret)) == [shared]


def test_exponentiation_is_that_of_plain_integers() -> None:
    randomness = SimulatedRandomness(5)
    for element in random_elements(4, randomness):
        for exponent in (1, 2, 3, ORDER - 1, draw_exponent(randomness)):
            assert numbers(raise_to(element[None], exponent)) == [multiple(numbers(element[None])[0], exponent)]


def test_the_order_is_prime_and_that_of_the_generator() -> None:
    """q G is the point at infinity, and q is prime (Miller-Rabin to 40 bases): so no element has a smaller order."""
    assert multiple(GENERATOR_X, ORDER) is None
    odd, twos = ORDER - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        x = pow(base, odd, ORDER)
        assert x in (1, ORDER - 1) or any(pow(x, 2**i, ORDER) == ORDER - 1 for i in range(1, twos))


def test_exponents_commute_and_can_be_undone() -> None:
    randomness = SimulatedRandomness(6)
    elements = random_elements(70, randomness)
    a, b = draw_exponent(randomness), draw_exponent(randomness)
    both = raise_to(raise_to(elements, a), b)
    assert np.array_equal(both, raise_to(raise_to(elements, b), a))
    assert np.array_equal(raise_to(both, pow(a * b, -1, ORDER)), elements)


def test_hashing_takes_the_first_digest_on_the_curve() -> None:
    keys = [f"key {i}".encode() for i in range(60)]
    salt = hashlib.sha256(b"colonnade alignment v1" + b"job").digest()
    for key, found in zip(keys, numbers(hash_to_group(keys, domain="job")), strict=True):
        tries = (int.from_bytes(hashlib.sha256(salt + i.to_bytes(4, "big") + key).digest(), "big") for i in range(99))
        assert found == next(x for x in tries if on_curve(x))


def test_hashes_of_two_jobs_have_nothing_in_common() -> None:
    keys = [str(i).encode() for i in range(50)]
    one, two = (set(numbers(hash_to_group(keys, domain=domain))) for domain in ("a", "b"))
    assert len(one) == len(two) == 50
    assert not one & two


def test_a_point_of_the_twist_is_refused() -> None:
    """An x whose right side is no square belongs to the twist; an x of p or above is a second name of a point."""
    twist = next(x for x in range(100) if not on_curve(x))
    small = next(x for x in range(100) if on_curve(x))
    for wrong in (twist, PRIME + small, 2**256 - 1):
        with pytest.raises(SecureError, match="not on the curve"):
            raise_to(rows(small, wrong), 7)


def test_lists_of_another_form_are_refused() -> None:
    for wrong in ([1, 2], np.zeros((2, 31), dtype=np.uint8), np.zeros((2, 32)), np.zeros(32, dtype=np.uint8)):
        with pytest.raises(SecureError, match="group element"):
            check_elements(wrong)


def test_workers_give_the_same_list(monkeypatch: pytest.MonkeyPatch) -> None:
    elements = random_elements(9, SimulatedRandomness(7))
    monkeypatch.setattr(raising, "WORTHWHILE", 1)
    monkeypatch.setenv("COLONNADE_WORKERS", "2")
    assert np.array_equal(raising.raise_list(elements, 12345), raise_to(elements, 12345))
    keys = [b"", b"a", "größe".encode(), b"x" * 300, b"0"]
    expected = raise_to(hash_to_group(keys, domain="täg"), 12345)
    assert np.array_equal(hash_and_raise(keys, 12345, domain="täg"), expected)
    assert np.array_equal(raising.blind_list(keys, 12345, domain="täg"), expected)
    with pytest.raises(SecureError, match="not on the curve"):
        raising.raise_list(np.full((3, 32), 255, dtype=np.uint8), 5)


def test_exponents_are_below_the_order() -> None:
    drawn = iter([0, ORDER, 2**256 - 1, ORDER - 1])

    class Listed(SimulatedRandomness):
        def bytes(self, count: int) -> bytes:
            return next(drawn).to_bytes(count, "big")

    assert draw_exponent(Listed(0)) == ORDER - 1
