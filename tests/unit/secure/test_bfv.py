"""Products under encryption are exact, and the attacks that each of the multiplier's three additions prevents work
without it: an encryption of zero, a uniform mask, flooding noise."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from colonnade.errors import ModulusTooSmall, SecureError
from colonnade.federation import wire
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness
from colonnade.secure import bfv
from colonnade.secure.bfv import DEGREE, PRIMES, CrossProduct, Encrypter, Multiplier


def shares(
    product: CrossProduct, left: np.ndarray, right: np.ndarray, chunk: int = DEGREE
) -> tuple[np.ndarray, np.ndarray]:
    """Both members' shares, through a secret key and sums that were written and read between chunks."""
    encrypter = Encrypter(product)
    secret, public, state = encrypter.to_bytes(), encrypter.public(), None
    for start in range(0, len(left), chunk):
        multiplier = Multiplier(product, state)
        multiplier.add(right[start : start + chunk], Encrypter(product, secret).encrypt(left[start : start + chunk]))
        state = wire.decode(wire.encode(multiplier.state))
    returned, own = Multiplier(product, state).finish(public, SystemRandomness())
    return Encrypter(product, secret).decrypt(returned), own


def joined(product: CrossProduct, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    shift = np.uint64(64 - product.bits)
    return ((first + second) << shift).view(np.int64) >> np.int64(shift)


@pytest.mark.parametrize(
    ("records", "left", "right", "bound", "bits"),
    [(1, 1, 1, 1, 3), (7, 3, 2, 5, 20), (300, 5, 3, 2**14, 50), (9000, 1, 2, 2**20, 59), (20, 70, 1, 2**40, 59)],
)
def test_products_are_exact(records: int, left: int, right: int, bound: int, bits: int) -> None:
    rng = np.random.default_rng(records)
    product = CrossProduct(records=records, left=left, right=right, bound=bound, bits=bits)
    a = rng.integers(-(2**14), 2**14 + 1, (records, left))
    b = rng.integers(-bound, bound + 1, (records, right))
    a[0], b[0], b[:, -1] = 2**14, bound, 0  # the extremes, and a column of zeros
    total = joined(product, *shares(product, a, b))
    modulus = 1 << bits
    expected = (a.T.astype(object) @ b.astype(object) + modulus // 2) % modulus - modulus // 2
    assert np.array_equal(total, expected.astype(np.int64))


def test_columns_are_packed_in_powers_of_two() -> None:
    product = CrossProduct(records=200_000, left=58, right=59, bound=2**14, bits=50)
    assert [(group.width, group.packed) for group in product.groups] == [(58, 64)]
    assert product.ciphertexts(200_000) == 1563
    split = CrossProduct(records=2_000_000, left=20, right=3, bound=1, bits=50)
    assert [(group.width, group.packed) for group in split.groups] == [(16, 16), (4, 4)]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ModulusTooSmall, match="smaller gamma"):
        CrossProduct(records=10, left=1, right=1, bound=1, bits=60)
    with pytest.raises(SecureError, match="2048 columns"):
        CrossProduct(records=10, left=1, right=3000, bound=1, bits=20)
    assert [len(CrossProduct(records=10**5, left=9, right=9, bound=2**k, bits=58).primes) for k in (12, 20)] == [3, 4]
    with pytest.raises(ModulusTooSmall, match="flooding"):
        CrossProduct(records=10**6, left=50, right=50, bound=2**36, bits=59)
    product = CrossProduct(records=4, left=1, right=1, bound=3, bits=20)
    with pytest.raises(ModulusTooSmall, match="declared size"):
        Multiplier(product).add(np.full((4, 1), 4), Encrypter(product).encrypt(np.ones((4, 1), dtype=np.int64)))


def test_a_strangers_bytes_are_checked_before_anything_is_computed() -> None:
    product = CrossProduct(records=4, left=1, right=1, bound=3, bits=20)
    other = CrossProduct(records=4, left=1, right=1, bound=3, bits=21)
    rows = np.ones((4, 1), dtype=np.int64)
    (good,) = Encrypter(product).encrypt(rows)
    for bad in (b"", b"\x80\x04.", good[:100], good + bytes(1), good + bytes(900_000), bytes(200_000), "text", None):
        with pytest.raises(SecureError):
            Multiplier(product).add(rows, [bad])
    with pytest.raises(SecureError, match="another number"):
        Multiplier(product).add(rows, [good, good])
    with pytest.raises(SecureError):  # of another plaintext modulus
        Multiplier(product).add(rows, Encrypter(other).encrypt(rows))
    multiplier = Multiplier(product)
    for bad in (b"", good, Encrypter(other).public(), None):
        with pytest.raises(SecureError):
            multiplier.finish(bad, SystemRandomness())
    encrypter = Encrypter(product)
    returned, _ = multiplier.finish(encrypter.public(), SystemRandomness())
    too_large = {name: limbs.copy() for name, limbs in returned.items()}
    too_large["c1 0"][0, 0, 0] = PRIMES[0][0]
    for bad in ({}, {**returned, "c0 0": returned["c0 0"][:, :1]}, too_large):
        with pytest.raises(SecureError):
            encrypter.decrypt(bad)


# --- attacks by the encrypter ----------------------------------------------------------------------------------


def _transparent(context: Any, encryptor: Any) -> Any:
    """The planted bug: an encryption of zero that anyone could have made, (0, 1) times nothing but a constant."""
    limbs = np.zeros((2, 3, DEGREE), dtype=np.uint64)
    limbs[1, :, 0] = 1  # SEAL refuses to compute with c_1 = 0
    return context.ciphertext(limbs, context.full)


def _guessed(product: CrossProduct, secret: bytes, ciphertext: bytes, column: np.ndarray) -> np.ndarray:
    """c_1 as the encrypter expects it back for a column, from what it sent alone: its product with the column."""
    multiplier = Multiplier(product)
    multiplier.add(column[:, None], [ciphertext])
    returned, _ = multiplier.finish(Encrypter(product, secret).public(), SimulatedRandomness(0))
    return returned["c1 0"]


def test_without_an_encryption_of_zero_the_encrypter_reads_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """c_1 of the product is the column times c_1 of what was sent, so a column can be tried; with it, none fits."""
    product = CrossProduct(records=5, left=2, right=1, bound=1, bits=20)
    encrypter, column = Encrypter(product), np.array([1, 0, 1, 1, 0])
    (sent,) = encrypter.encrypt(np.arange(10).reshape(5, 2))

    def answer() -> np.ndarray:
        multiplier = Multiplier(product)
        multiplier.add(column[:, None], [sent])
        return multiplier.finish(encrypter.public(), SystemRandomness())[0]["c1 0"]

    sound = answer()
    monkeypatch.setattr(bfv, "encrypted_zero", _transparent)
    broken = answer()
    candidates = [np.array(tried) for tried in itertools.product((0, 1), repeat=5) if any(tried)]
    guesses = [_guessed(product, encrypter.to_bytes(), sent, tried) for tried in candidates]
    assert [tried.tolist() for tried, c1 in zip(candidates, guesses, strict=True) if np.array_equal(c1, broken)] == [
        column.tolist()
    ]
    assert not any(np.array_equal(c1, sound) for c1 in guesses)
    # Not even a coefficient agrees more often than chance.
    assert max(np.mean(c1[0, 0] == sound[0, 0]) for c1 in guesses) < 0.01


class _NoMask(SystemRandomness):
    """The planted bug: masks of zeros, where flooding is as it should be."""

    def words(self, count: int) -> np.ndarray:
        drawn = super().words(count)
        return np.zeros_like(drawn) if count <= 8 else drawn


def test_without_a_mask_the_encrypter_reads_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    product = CrossProduct(records=50, left=4, right=40, bound=3, bits=16)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (50, 4)), rng.integers(-3, 4, (50, 40))
    encrypter, multiplier = Encrypter(product), Multiplier(product)
    multiplier.add(b, encrypter.encrypt(a))
    sound = encrypter.decrypt(multiplier.finish(encrypter.public(), SystemRandomness())[0])
    broken = encrypter.decrypt(multiplier.finish(encrypter.public(), _NoMask())[0])
    truth = (a.T @ b) % 2**16
    assert np.array_equal(broken, truth.astype(np.uint64))
    assert np.mean(sound == truth) < 0.1
    # The share is uniform: its 160 values, by their upper four bits, against 16 equal cells.
    observed = np.bincount((sound >> np.uint64(12)).astype(int).reshape(-1), minlength=16)
    assert ((observed - 10) ** 2 / 10).sum() < 45  # chi-square with 15 degrees of freedom, beyond 1e-4


def _budget(encrypter: Encrypter, returned: dict[str, np.ndarray]) -> int:
    """Bits of room that are left for noise: what the holder of the key sees of the error."""
    context: Any = encrypter._context
    limbs = np.zeros((2, 2, DEGREE), dtype=np.uint64)
    limbs[0, :, : returned["c0 0"].shape[2]], limbs[1] = returned["c0 0"][0], returned["c1 0"][0]
    # Only the coefficients that were returned count: the others are as in a fresh ciphertext of zero.
    decryptor = context.seal.Decryptor(context.context, encrypter._secret)
    return int(decryptor.invariant_noise_budget(context.ciphertext(limbs, context.shown)))


def test_without_flooding_the_error_tells_columns_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a product is sum e_i b_i. The encrypter knows every e_i, and with the key it reads the sum."""
    columns = DEGREE  # so that all coefficients are returned, and the whole error can be measured
    product = CrossProduct(records=1, left=columns, right=1, bound=2**58, bits=20)

    def budgets() -> tuple[int, int]:
        measured = []
        for value in (0, 2**58):
            encrypter, multiplier = Encrypter(product), Multiplier(product)
            multiplier.add(np.array([[value]]), encrypter.encrypt(np.zeros((1, columns), dtype=np.int64)))
            measured.append(_budget(encrypter, multiplier.finish(encrypter.public(), SystemRandomness())[0]))
        return measured[0], measured[1]

    nothing, large = budgets()
    assert nothing == large
    monkeypatch.setattr(
        bfv, "_uniform_residues", lambda _, __, count, primes: [np.zeros(count, dtype=np.uint64)] * len(primes)
    )
    nothing, large = budgets()
    assert nothing > large + 3


def test_flooding_is_uniform_over_its_bits() -> None:
    bits, count = 70, 4000
    first, second = PRIMES[0][:2]
    residues = bfv._uniform_residues(SystemRandomness(), bits, count, (first, second))
    modulus, lift = first * second, first * pow(first, -1, second)
    values = [
        (int(a) + lift * ((int(b) - int(a)) % second)) % modulus for a, b in zip(residues[0], residues[1], strict=True)
    ]
    centred = np.array([(v - modulus if v > modulus // 2 else v) / 2 ** (bits - 1) for v in values])
    assert -1 <= centred.min() < -0.99
    assert 0.99 < centred.max() < 1
    assert abs(centred.std() - 1 / np.sqrt(3)) < 0.03
