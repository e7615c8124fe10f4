"""Masked sums: the total is exact, one masked array is uniform, and a subset of them is noise."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from colonnade.errors import ModulusTooSmall, PartyLost, SecureError
from colonnade.secure.pads import FixedPoint, fixed_point, largest_summand, masked, pad_label, unmask_sum
from colonnade.secure.sealed import Identity, pair_key

NAMES = ["credit", "court", "tax", "registry"]


def agreed_keys(names: list[str]) -> dict[str, dict[str, bytes]]:
    """What each party holds after agreeing on keys with every other."""
    identities = {name: Identity.generate() for name in names}
    return {
        me: {other: pair_key(identities[me], identities[other].public, b"pads") for other in names if other != me}
        for me in names
    }


def mask_all(
    arrays: dict[str, np.ndarray], keys: dict[str, dict[str, bytes]], label: bytes = b"job 1"
) -> dict[str, np.ndarray]:
    return {
        me: masked(array, me=me, peers=[q for q in arrays if q != me], pair_keys=keys[me], label=label)
        for me, array in arrays.items()
    }


KEYS = agreed_keys(NAMES)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), count=st.integers(2, 4))
def test_the_total_is_exact(data: st.DataObject, count: int) -> None:
    # oracle: Python integers, at sizes up to the limit
    limit = largest_summand(count)
    values = st.integers(-limit, limit) | st.sampled_from([limit, -limit])
    rows = [data.draw(st.lists(values, min_size=3, max_size=3)) for _ in range(count)]
    arrays = {name: np.array(row, dtype=np.int64) for name, row in zip(NAMES, rows, strict=False)}
    total = unmask_sum(mask_all(arrays, KEYS).items(), parties=list(arrays))
    assert total.dtype == np.int64
    assert total.tolist() == [sum(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("shape", [(), (0,), (3, 2), (1_100_000,)])
def test_any_shape_and_memory_order(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(-1000, 1000, size=shape)
    sent = mask_all({"credit": array, "tax": np.array(array, order="F")}, KEYS)
    assert sent["tax"].shape == shape
    assert (unmask_sum(sent.items(), parties=["credit", "tax"]) == 2 * array).all()


def test_one_masked_array_and_every_partial_sum_are_uniform() -> None:
    # chi-square of 256 cells in the high and the low byte; keys are fixed, 1e-6 is the nominal false alarm rate
    fixed = {me: {other: bytes(sorted((len(me), len(other)))) * 16 for other in NAMES if other != me} for me in NAMES}
    sent = mask_all({name: np.zeros(50_000, dtype=np.int64) for name in NAMES[:3]}, fixed)
    for names in (["credit"], ["court"], ["tax"], ["credit", "court"], ["court", "tax"], ["credit", "tax"]):
        partial = np.add.reduce([sent[name] for name in names])
        for shift in (0, 56):
            cells = (partial >> np.uint64(shift)) & np.uint64(255)
            assert stats.chisquare(np.bincount(cells.astype(int), minlength=256)).pvalue > 1e-6


def test_another_label_or_another_roster_gives_other_pads() -> None:
    zeros = np.zeros(4, dtype=np.int64)
    three = dict.fromkeys(NAMES[:3], zeros)
    first = mask_all(three, KEYS)["credit"]
    assert (first == mask_all(three, KEYS)["credit"]).all()
    assert (first != mask_all(three, KEYS, label=b"job 2")["credit"]).all()
    # the pad between two parties changes with the roster, so two rosters' arrays do not uncover a third's pad
    two = mask_all(dict.fromkeys(NAMES[:2], zeros), KEYS)["credit"]
    alone = masked(zeros, me="credit", peers=["tax"], pair_keys=KEYS["credit"], label=b"job 1")
    assert (first - two != alone).all()
    assert pad_label("a", 1) != pad_label("a", 2) != pad_label("b", 2)
    assert len({pad_label(job, r) for job in ("", "a", "ab") for r in range(3)}) == 9


def test_a_lost_doubled_or_foreign_party_is_named() -> None:
    sent = mask_all({name: np.arange(3) for name in NAMES}, KEYS)
    for lost in NAMES:
        with pytest.raises(PartyLost, match=lost):
            unmask_sum([(q, a) for q, a in sent.items() if q != lost], parties=NAMES)
    with pytest.raises(PartyLost, match="'tax' came twice"):
        unmask_sum([*sent.items(), ("tax", sent["tax"])], parties=NAMES)
    with pytest.raises(PartyLost, match="'tax' is not of the roster"):
        unmask_sum(sent.items(), parties=["credit", "court", "registry"])
    with pytest.raises(SecureError, match="one shape"):
        unmask_sum({**sent, "tax": sent["tax"][:2]}.items(), parties=NAMES)
    with pytest.raises(SecureError, match="uint64"):
        unmask_sum({**sent, "tax": sent["tax"].view(np.int64)}.items(), parties=NAMES)
    for wrong in ({name: np.zeros(3) for name in NAMES}, dict.fromkeys(NAMES, "words")):
        with pytest.raises(SecureError, match="uint64"):
            unmask_sum(wrong.items(), parties=NAMES)  # type: ignore[arg-type]


def test_bad_peers_keys_and_types_are_refused() -> None:
    values = np.arange(3)
    good = {"me": "credit", "peers": ["tax"], "pair_keys": KEYS["credit"], "label": b""}
    for change in ({"peers": []}, {"peers": ["credit"]}, {"peers": ["tax", "tax"]}):
        with pytest.raises(SecureError, match="every other party"):
            masked(values, **{**good, **change})
    for keys in ({}, {"tax": b"short"}):
        with pytest.raises(SecureError, match="32-byte"):
            masked(values, **{**good, "pair_keys": keys})
    with pytest.raises(SecureError, match="int64"):
        masked(values.astype(float), **good)
    for extreme in (largest_summand(2) + 1, -largest_summand(2) - 1, -(2**63)):
        with pytest.raises(ModulusTooSmall, match="could wrap"):
            masked(np.array([extreme]), **good)


# --- fixed point -----------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    bound=st.floats(1e-300, 1e300) | st.sampled_from([1.0, math.nextafter(1.0, 0), 2.0**-1074, 1.7e308]),
    parties=st.integers(1, 5000),
    fraction=st.floats(-1, 1),
)
def test_a_total_never_wraps_and_stays_precise(bound: float, parties: int, fraction: float) -> None:
    # oracle: exact arithmetic on the encoded integers
    scale = fixed_point(bound=bound, parties=parties)
    extreme = scale.encode([bound, -bound, bound * fraction])
    assert all(abs(int(v)) * parties <= 2**62 for v in extreme)
    assert int(np.abs(extreme).max()) <= largest_summand(parties)
    decoded = scale.decode(extreme)
    # half a unit of the scale, which is at most bound * parties * 2^-60, and float64's own rounding of an int64
    assert abs(decoded[2] - bound * fraction) <= bound * (parties * 2.0**-60 + 2.0**-52)
    assert abs(decoded[0] - bound) <= bound * (parties * 2.0**-60 + 2.0**-52)


def test_floats_through_a_masked_sum() -> None:
    generator = np.random.default_rng(1)
    floats = {name: generator.uniform(-2.5, 2.5, size=100) for name in NAMES}
    scale = fixed_point(bound=2.5, parties=len(NAMES))
    sent = mask_all({name: scale.encode(v) for name, v in floats.items()}, KEYS)
    total = scale.decode(unmask_sum(sent.items(), parties=NAMES))
    assert np.allclose(total, sum(floats.values()), rtol=0, atol=4 * 2.0**-52)


def test_values_beyond_the_bound_and_unsafe_scales_are_refused() -> None:
    scale = fixed_point(bound=1.0, parties=3)
    for wrong in (1.0000001, -2.0, math.nan, math.inf):
        with pytest.raises(ModulusTooSmall, match="declared"):
            scale.encode([0.0, wrong])
    for bound, parties in ((0.0, 3), (-1.0, 3), (math.inf, 3), (math.nan, 3), (1.0, 0)):
        with pytest.raises(ModulusTooSmall):
            fixed_point(bound=bound, parties=parties)
    with pytest.raises(ModulusTooSmall, match="could wrap"):
        FixedPoint(bound=1.0, parties=3, fraction_bits=scale.fraction_bits + 1)
    assert FixedPoint(bound=1.0, parties=3, fraction_bits=8).encode([0.5]).tolist() == [128]


def test_keys_that_differ_leave_noise() -> None:
    keys = {me: dict(others) for me, others in KEYS.items()}
    keys["tax"]["credit"] = os.urandom(32)
    sent = mask_all({"credit": np.zeros(8, dtype=np.int64), "tax": np.zeros(8, dtype=np.int64)}, keys)
    assert (np.abs(unmask_sum(sent.items(), parties=["credit", "tax"])) > 2**32).any()
