"""Lies in openings and dealings show, and are named exactly where the honest values outvote every other explanation."""

from __future__ import annotations

import numpy as np
import pytest

from colonnade.errors import TooFewHolders
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.secure import bgw
from colonnade.secure.extension import Extension
from colonnade.secure.field import PRIMES, Field, Residues
from colonnade.secure.openings import check_opening, consistent, culprits
from colonnade.secure.shamir import interpolate, reconstruct, share, share_residues

FIELD = Field(PRIMES[:2])
K = Extension(FIELD)
SEED = bytes(32)


def sharing(holders: int, threshold: int, degree: int, *, entries: int = 4) -> dict[int, Residues]:
    randomness = SimulatedRandomness(3, f"{holders} {threshold} {degree}")
    values = np.arange(entries) - 2
    shares = share(FIELD, values, holders=holders, threshold=threshold, degree=degree, randomness=randomness)
    return dict(enumerate(shares))


def changed(share: Residues, *place: int) -> Residues:
    out = share.copy()
    out[place] = (out[place] + 1) % FIELD.primes[place[0]]
    return out


@pytest.mark.parametrize(
    ("holders", "threshold", "degree"), [(3, 1, 1), (5, 2, 2), (4, 1, 2), (5, 1, 2), (5, 1, 1), (9, 2, 4)]
)
def test_up_to_t_lies_show_and_are_named_where_the_rest_outvotes_them(
    holders: int, threshold: int, degree: int
) -> None:
    honest = sharing(holders, threshold, degree)
    opening = check_opening(FIELD, honest, degree=degree, threshold=threshold)
    assert opening.liars == ()
    assert opening.values is not None
    assert (FIELD.decode(opening.values) == [-2, -1, 0, 1]).all()
    for count in range(1, threshold + 1):
        liars = tuple(range(1, 1 + count))
        shares = honest | {liar: changed(honest[liar], liar % 2, liar % 4) for liar in liars}
        assert not consistent(FIELD, shares, degree=degree)
        opening = check_opening(FIELD, shares, degree=degree, threshold=threshold)
        if holders - count - threshold >= degree + 1:
            assert opening.liars == liars
            assert opening.values is not None
            assert (FIELD.decode(opening.values) == [-2, -1, 0, 1]).all()
        else:
            assert opening == (None, ())


def test_five_holders_with_threshold_one_name_the_liar_at_every_place() -> None:
    """A product's opening has degree 2: five values have distance 3."""
    honest = sharing(5, 1, 2)
    for liar in range(5):
        for entry in range(4):
            shares = honest | {liar: changed(honest[liar], 1, entry)}
            assert culprits(FIELD, shares, degree=2, threshold=1) == (liar,)


def test_t_colluding_liars_do_not_put_the_blame_on_others() -> None:
    """Two of nine shift their values along a polynomial of degree 4 that is 0 at three others."""
    honest = sharing(9, 2, 4)
    shares = dict(honest)
    for liar in (6, 8):
        shift = int(np.prod([liar - other for other in (0, 1, 2, 3)]))
        shares[liar] = FIELD.add(honest[liar], FIELD.encode(np.full(4, shift)))
    assert culprits(FIELD, shares, degree=4, threshold=2) == (6, 8)


def test_too_few_values_prove_nothing_and_are_refused() -> None:
    honest = sharing(3, 1, 2)
    assert consistent(FIELD, honest, degree=2)
    with pytest.raises(TooFewHolders, match="do not show"):
        check_opening(FIELD, honest, degree=2, threshold=1)
    with pytest.raises(TooFewHolders, match="wait"):
        consistent(FIELD, {0: honest[0]}, degree=1)


# --- dealings --------------------------------------------------------------------------------------------------


def combination(rows: Residues, records: Residues, columns: Residues) -> Residues:
    """sum_rc records_r columns_c rows_rc in K, for a holder's shares (primes, n, w) of a dealing."""
    return K.inner(K.project(rows, columns), records)


def combinations_of(dealt: list[Residues], masks: list[Residues], label: str) -> dict[int, Residues]:
    n, w = dealt[0].shape[1:]
    records, columns = K.uniform((n,), seed=SEED, label=label), K.uniform((w,), seed=SEED, label=f"{label}, columns")
    half = n // 2
    return {
        holder: K.add(
            masks[holder],
            K.add(
                combination(rows[:, :half], records[:, :half], columns),
                combination(rows[:, half:], records[:, half:], columns),
            ),
        )
        for holder, rows in enumerate(dealt)
    }


@pytest.mark.parametrize(("holders", "threshold"), [(3, 1), (5, 2), (5, 1)])
def test_a_dealing_of_another_degree_is_found(holders: int, threshold: int) -> None:
    randomness = SimulatedRandomness(4, f"{holders} {threshold}")
    options = {"holders": holders, "threshold": threshold, "randomness": randomness}
    generator = np.random.default_rng(1)
    values = generator.integers(-9, 9, size=(10, 3))
    masks = share_residues(FIELD, FIELD.uniform((3,), randomness), **options)
    dealt = share(FIELD, values, **options)
    assert consistent(FIELD, combinations_of(dealt, masks, "honest"), degree=threshold)
    other = share(FIELD, values, degree=threshold + 1, **options)
    assert not consistent(FIELD, combinations_of(other, masks, "degree"), degree=threshold)
    for trial in range(100):
        wrong = list(dealt)
        holder, place = trial % holders, (trial % 2, int(generator.integers(10)), int(generator.integers(3)))
        wrong[holder] = changed(dealt[holder], *place)
        opened = combinations_of(wrong, masks, f"trial {trial}")
        assert not consistent(FIELD, opened, degree=threshold)
        if (holders, threshold) == (5, 1):
            assert culprits(FIELD, opened, degree=threshold, threshold=threshold) == (holder,)


def test_a_wrong_dealing_would_show_anothers_value_and_is_found_before() -> None:
    """Four holders, t = 1. A party deals holder 3 a share that is off by 1; the opened product's surplus is then
    holder 3's share of the other party's secret, whatever the noise, and a second share gives the secret."""
    secret, options = 123, {"holders": 4, "threshold": 1, "randomness": SimulatedRandomness(8)}
    x, y = share(FIELD, [[secret]], **options), share(FIELD, [[5]], **options)
    y[3] = changed(changed(y[3], 0, 0, 0), 1, 0, 0)
    noise = share(FIELD, [[10**6]], degree=2, **options)
    opened = {i: FIELD.add(FIELD.mul(x[i], y[i]), noise[i]) for i in range(4)}
    stolen = FIELD.sub(opened[3], interpolate(FIELD, {i: opened[i] for i in range(3)}, degree=2, point=4))
    assert int(reconstruct(FIELD, {0: x[0], 3: stolen}, degree=1)[0, 0]) == secret
    masks = share_residues(FIELD, FIELD.uniform((3,), options["randomness"]), **options)
    assert culprits(FIELD, combinations_of(y, masks, "rows"), degree=1, threshold=1) == (3,)


# --- products, with noise that others can check -----------------------------------------------------------------


@pytest.mark.parametrize(("holders", "threshold"), [(4, 1), (5, 1), (7, 2)])
def test_an_opened_product_is_checked_by_its_surplus(holders: int, threshold: int) -> None:
    options = {"holders": holders, "threshold": threshold, "randomness": SimulatedRandomness(5)}
    x = share(FIELD, np.array([3, -4]), **options)
    noise = bgw.blinded_noise(FIELD, np.array([7, -1]), **options)
    opened = {
        holder: bgw.open_product(
            bgw.multiply(FIELD, mine, mine),
            noise={"tax": bgw.noise_term(FIELD, noise[holder], holder=holder)},
            parties=["tax"],
        )
        for holder, mine in enumerate(x)
    }
    opening = check_opening(FIELD, opened, degree=2 * threshold, threshold=threshold)
    assert opening.values is not None
    assert FIELD.decode(opening.values).tolist() == [16, 15]
    lie = opened | {2: changed(opened[2], 0, 1)}
    expected = (2,) if holders >= 4 * threshold + 1 else ()
    assert check_opening(FIELD, lie, degree=2 * threshold, threshold=threshold).liars == expected
    assert not consistent(FIELD, lie, degree=2 * threshold)
