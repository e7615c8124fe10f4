"""Sums under CKKS: right numbers, refused parameters, and no way to read without the key."""

from __future__ import annotations

import numpy as np
import pytest

from colonnade.errors import SecureError
from colonnade.secure import ckks


@pytest.fixture(scope="module")
def key() -> ckks.SecretKey:
    return ckks.SecretKey.generate()


def test_a_sum_of_encrypted_vectors_is_the_sum(key: ckks.SecretKey) -> None:
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=5000) * 10 for _ in range(3)]
    public = key.public
    total = public.add([public.encrypt(one) for one in vectors])
    found = key.decrypt(total, size=5000, summands=3)
    assert np.abs(found - sum(vectors)).max() < ckks.PRECISION


def test_parameters_below_128_bits_are_refused() -> None:
    ckks.check_parameters(ckks.DEGREE, ckks.MODULUS_BITS)
    assert sum(ckks.MODULUS_BITS) <= ckks.MOST_BITS[ckks.DEGREE]
    with pytest.raises(SecureError, match="128 bits"):
        ckks.check_parameters(4096, (60, 60))
    with pytest.raises(SecureError, match="ring degree"):
        ckks.check_parameters(5000, (20,))


@pytest.mark.parametrize(("degree", "bits"), [(4096, [50, 50]), (8192, [40, 40]), (16384, [60, 60])])
def test_a_key_that_came_with_other_parameters_is_refused(degree: int, bits: list[int]) -> None:
    tenseal = pytest.importorskip("tenseal")
    made = tenseal.context(tenseal.SCHEME_TYPE.CKKS, degree, coeff_mod_bit_sizes=bits)
    made.global_scale = 2.0**ckks.SCALE_BITS
    data = made.serialize(save_public_key=True, save_secret_key=False, save_galois_keys=False, save_relin_keys=False)
    with pytest.raises(SecureError, match="other parameters"):
        ckks.PublicKey.from_bytes(data)


def test_another_key_and_a_missing_summand_are_errors(key: ckks.SecretKey) -> None:
    public = key.public
    sealed = public.encrypt(np.ones(10))
    with pytest.raises(SecureError, match="another key"):
        ckks.SecretKey.generate().decrypt(sealed, size=10, summands=1)
    with pytest.raises(SecureError, match="summand is missing"):
        key.decrypt(sealed, size=10, summands=2)
    with pytest.raises(SecureError, match="ciphertexts"):
        key.decrypt(sealed, size=10_000, summands=1)


def test_a_public_key_has_no_secret_and_a_secret_one_is_not_handed_out(key: ckks.SecretKey) -> None:
    with pytest.raises(SecureError, match="never hand it out"):
        ckks.PublicKey.from_bytes(key.to_bytes())
    with pytest.raises(SecureError, match="public key"):
        ckks.SecretKey.from_bytes(key.public.to_bytes())
    with pytest.raises(SecureError, match="no CKKS key"):
        ckks.PublicKey.from_bytes(b"not a key")


def test_garbage_is_no_ciphertext(key: ckks.SecretKey) -> None:
    with pytest.raises(SecureError, match="no CKKS ciphertext"):
        key.decrypt([b"garbage"], size=3, summands=1)


def test_equal_vectors_have_different_ciphertexts_and_wild_values_are_clipped(key: ckks.SecretKey) -> None:
    public = key.public
    assert public.encrypt(np.ones(4)) != public.encrypt(np.ones(4))
    found = key.decrypt(public.encrypt(np.array([np.nan, np.inf, -np.inf])), size=3, summands=1)
    assert np.allclose(found, [ckks.BOUND, ckks.BOUND, -ckks.BOUND])
