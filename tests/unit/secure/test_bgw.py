"""BGW: exact against Python's integers; and the opened polynomial tells the result and nothing else.

Statistical tests use fixed seeds; 1e-6 is the false alarm probability that each would have with a fresh seed.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from colonnade.errors import ModulusTooSmall, PartyLost, SecureError, TooFewHolders
from colonnade.privacy.randomness import SimulatedRandomness, SystemRandomness
from colonnade.secure import bgw
from colonnade.secure.field import Field, Residues, primes_for
from colonnade.secure.shamir import interpolate, reconstruct, share
from support import whole_bgw

P = 11
PARTIES = ["court", "credit", "tax"]


def python_sum(polynomial: whole_bgw.Polynomial, columns: list[list[int]]) -> int:
    """The plain twin: the sum over records, in Python integers."""
    total = 0
    for record in zip(*columns, strict=True):
        for coefficient, exponents in polynomial:
            term = coefficient
            for value, exponent in zip(record, exponents, strict=True):
                term *= value**exponent
            total += term
    return total


# --- exactness -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data(), committee=st.sampled_from([(3, 1), (5, 2), (5, 1)]))
def test_polynomials_to_degree_four_are_exact(data: st.DataObject, committee: tuple[int, int]) -> None:
    holders, threshold = committee
    bound = data.draw(st.sampled_from([1, 2**14, 2**20 - 5]))
    exponents = st.tuples(*[st.integers(0, 4)] * 3).filter(lambda e: sum(e) <= 4)
    polynomial = data.draw(st.lists(st.tuples(st.integers(-(2**20), 2**20), exponents), min_size=1, max_size=4))
    values = st.integers(-bound, bound) | st.sampled_from([bound, -bound])
    records = data.draw(st.integers(1, 4))
    columns = [data.draw(st.lists(values, min_size=records, max_size=records)) for _ in range(3)]
    noise = {party: data.draw(st.integers(-1000, 1000)) for party in PARTIES}
    field = Field(primes_for(whole_bgw.polynomial_bits(polynomial, bounds=[bound] * 3, records=records, noise=3000)))
    # a field must hold the inputs too
    field = Field(primes_for(max(field.bound.bit_length() - 1, bound.bit_length(), 10)))
    opened = whole_bgw.evaluate(
        field,
        polynomial,
        [np.array(column) for column in columns],
        holders=holders,
        threshold=threshold,
        noise=noise,
        randomness=SystemRandomness(),
    )
    assert opened == python_sum(polynomial, columns) + sum(noise.values())


def test_the_result_may_fill_the_whole_range_and_no_more() -> None:
    polynomial = [(1, (2, 1))]
    bits = whole_bgw.polynomial_bits(polynomial, bounds=[2**20, 2**20], records=4)
    assert bits == 63  # 4 * 2^60 = 2^62: bit length 63
    columns = [[2**20] * 4, [-(2**20)] * 4]
    options = {"holders": 3, "threshold": 1, "noise": {"court": 0}, "randomness": SystemRandomness()}
    arrays = [np.array(c) for c in columns]
    assert whole_bgw.evaluate(Field(primes_for(bits)), polynomial, arrays, **options) == -(2**62)
    # one prime too few wraps: the reason why bits are computed first
    assert whole_bgw.evaluate(Field(primes_for(41)), polynomial, arrays, **options) != -(2**62)
    with pytest.raises(ModulusTooSmall):
        primes_for(whole_bgw.polynomial_bits([(1, (18,))], bounds=[2**20], records=1))


@settings(max_examples=20, deadline=None)
@given(committee=st.sampled_from([(3, 1), (5, 2)]), seed=st.integers(0, 2**32), corner=st.booleans())
def test_one_level_gram_and_cross_product_open_exactly(committee: tuple[int, int], seed: int, corner: bool) -> None:
    holders, threshold = committee
    generator = np.random.default_rng(seed)
    a = generator.integers(-(2**14), 2**14 + 1, size=(50, 4))
    b = generator.integers(-(2**14), 2**14 + 1, size=(50, 2))
    if corner:
        a[:], b[:] = -(2**14), 2**14
    field = Field(primes_for((50 * 2**28 + 3 * 2**20).bit_length()))
    sharing = {"holders": holders, "threshold": threshold, "randomness": SystemRandomness()}
    shared_a, shared_b = share(field, a, **sharing), share(field, b, **sharing)
    products = {
        "gram": [bgw.gram(field, mine) for mine in shared_a],
        "upper": [bgw.gram(field, mine, tile=2).upper() for mine in shared_a],
        "cross": [bgw.cross(field, x, y) for x, y in zip(shared_a, shared_b, strict=True)],
        "sum": [bgw.lift(field, mine).sum() for mine in shared_a],
    }
    gram = a.T @ a
    exact = {"gram": gram, "upper": gram[np.triu_indices(4)], "cross": a.T @ b, "sum": a.sum(axis=0)}
    for name, product in products.items():
        noise = {party: generator.integers(-(2**20), 2**20, size=exact[name].shape) for party in PARTIES}
        sharings = {party: bgw.noise_sharing(field, noise[party], **sharing) for party in PARTIES}
        sent = {
            j: bgw.open_product(mine, noise={q: sharings[q][j] for q in PARTIES}, parties=PARTIES)
            for j, mine in enumerate(product)
        }
        assert (reconstruct(field, sent, degree=2 * threshold) == exact[name] + sum(noise.values())).all()


def test_degree_reduction_gives_fresh_shares_of_degree_t_of_the_product() -> None:
    field = Field(primes_for(61))
    a, b = np.array([3, -5, 2**25]), np.array([-7, 11, -(2**25)])
    for holders, threshold, silent in [(3, 1, ()), (5, 2, ()), (5, 1, ()), (5, 1, (0, 3))]:
        sharing = {"holders": holders, "threshold": threshold, "randomness": SystemRandomness()}
        pairs = zip(share(field, a, **sharing), share(field, b, **sharing), strict=True)
        sent = [bgw.reshare(bgw.multiply(field, x, y), **sharing) for x, y in pairs]
        speaking = [i for i in range(holders) if i not in silent]
        reduced = {
            j: bgw.recombine(field, {i: sent[i][j] for i in speaking}, threshold=threshold) for j in range(holders)
        }
        # the surplus check of `interpolate` proves the degree; the value is the product
        assert (field.decode(interpolate(field, reduced, degree=threshold)) == a * b).all()
        with pytest.raises(TooFewHolders):
            bgw.recombine(field, {i: sent[i][0] for i in range(2 * threshold)}, threshold=threshold)


# --- what an opening shows -------------------------------------------------------------------------------


def chi_square(cells: np.ndarray, size: int) -> float:
    return float(stats.chisquare(np.bincount(cells, minlength=size)).pvalue)


def independence(a: np.ndarray, b: np.ndarray) -> float:
    """The p-value of a contingency table's chi-square."""
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)
    return float(stats.chi2_contingency(table[table.sum(1) > 0][:, table.sum(0) > 0]).pvalue)


def openings(x: int, y: int, *, trials: int, masked: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """Three holders multiply the same x and y again and again, modulo 11, with zero noise.

    Returns what each holder sends, and the code of the product polynomial's two upper coefficients.
    """
    field = Field((P,))
    sharing = {"holders": 3, "threshold": 1, "randomness": SimulatedRandomness(7, f"{x} {y}")}
    pairs = zip(share(field, np.full(trials, x), **sharing), share(field, np.full(trials, y), **sharing), strict=True)
    products = [bgw.multiply(field, a, b) for a, b in pairs]
    raw = [product._residues[0].astype(np.int64) for product in products]
    # f(1), f(2), f(3) to the coefficients: second difference / 2, and f(1) - f(0) - f_2
    square = (raw[2] - 2 * raw[1] + raw[0]) * pow(2, -1, P) % P
    linear = (raw[0] - x * y - square) % P
    if not masked:
        return raw, linear * P + square
    zero = np.zeros(trials, dtype=np.int64)
    sharings = {q: bgw.noise_sharing(field, zero, **sharing) for q in PARTIES}
    sent = [
        bgw.open_product(product, noise={q: sharings[q][j] for q in PARTIES}, parties=PARTIES)[0].astype(np.int64)
        for j, product in enumerate(products)
    ]
    return sent, linear * P + square


@pytest.mark.parametrize(("x", "y"), [(0, 0), (0, 4), (3, 5), (-1, -1)])
def test_any_2t_opened_shares_are_uniform_and_independent_of_the_product_polynomial(x: int, y: int) -> None:
    sent, polynomial = openings(x, y, trials=40 * P**4, masked=True)
    for i, j in combinations(range(3), 2):
        pair = sent[i] * P + sent[j]
        assert chi_square(pair, P**2) > 1e-6
        assert independence(pair, polynomial) > 1e-6
    opened = reconstruct(Field((P,)), {j: s[None].astype(np.int32) for j, s in enumerate(sent)}, degree=2)
    assert (opened == (x * y + P // 2) % P - P // 2).all()


@pytest.mark.parametrize(("x", "y"), [(0, 0), (0, 4), (3, 5), (-1, -1)])
def test_opening_without_the_fresh_sharing_would_be_caught(x: int, y: int) -> None:
    """Planted bug: the raw product shares are sent. The test above finds it, at every input."""
    sent, polynomial = openings(x, y, trials=40 * P**4, masked=False)
    for i, j in combinations(range(3), 2):
        pair = sent[i] * P + sent[j]
        assert chi_square(pair, P**2) < 1e-12
        assert independence(pair, polynomial) < 1e-12


@pytest.mark.parametrize("masked", [True, False])
def test_five_holders_any_four_opened_shares_are_uniform_only_if_masked(masked: bool) -> None:
    p, holders, trials = 7, 5, 60 * 7**4
    field = Field((p,))
    sharing = {"holders": holders, "threshold": 2, "randomness": SimulatedRandomness(9)}
    pairs = zip(*[share(field, np.full(trials, v), **sharing) for v in (2, 3)], strict=True)
    noise = bgw.noise_sharing(field, np.zeros(trials, dtype=np.int64), **sharing)
    sent = []
    for (a, b), mine in zip(pairs, noise, strict=True):
        product = bgw.multiply(field, a, b)
        sent.append(bgw.open_product(product, noise={"tax": mine}, parties=["tax"]) if masked else product._residues)
    for chosen in combinations(range(holders), 4):
        cells = sum(sent[j][0].astype(np.int64) * p**i for i, j in enumerate(chosen))
        pvalue = chi_square(cells, p**4)
        assert pvalue > 1e-6 if masked else pvalue < 1e-12


def test_sharings_of_degree_t_would_not_be_enough() -> None:
    """Planted bug: the noise is shared with degree t, so the top coefficient a_1 b_1 stays bare."""
    field, trials = Field((P,)), 200 * P**2
    sharing = {"holders": 3, "threshold": 1, "randomness": SimulatedRandomness(8)}
    shared = [share(field, np.full(trials, 3), **sharing) for _ in range(2)]
    weak = share(field, np.zeros(trials, dtype=np.int64), **sharing)
    sent = [
        bgw.open_product(bgw.multiply(field, a, b), noise={"tax": z}, parties=["tax"])[0].astype(np.int64)
        for a, b, z in zip(*shared, weak, strict=True)
    ]
    square = (sent[2] - 2 * sent[1] + sent[0]) * pow(2, -1, P) % P
    assert chi_square(square, P) < 1e-12


# --- noise whose terms others can check ---------------------------------------------------------------------


@pytest.mark.parametrize(("holders", "threshold"), [(3, 1), (5, 2), (5, 1)])
def test_noise_terms_have_degree_2t_and_each_is_known_to_any_t_plus_1_holders(holders: int, threshold: int) -> None:
    field, noise = Field(primes_for(61)), np.array([5, -(2**40), 0])
    shares = bgw.blinded_noise(field, noise, holders=holders, threshold=threshold, randomness=SystemRandomness())
    terms = {j: bgw.noise_term(field, shares[j], holder=j) for j in range(holders)}
    assert (reconstruct(field, terms, degree=2 * threshold) == noise).all()
    for j in range(holders):
        seen = {i: bgw.noise_term(field, shares[i], holder=j) for i in range(holders)}
        assert (interpolate(field, seen, degree=threshold, point=j + 1) == terms[j]).all()


@pytest.mark.parametrize("blinded", [True, False])
def test_blinded_noise_hides_the_product_as_a_sharing_of_degree_2t_does(blinded: bool) -> None:
    """To t holders with their shares of noise and blinds, t more terms are uniform; without blinds they know them."""
    for p, holders, threshold, trials in ((7, 3, 1, 40 * 7**3), (5, 3, 1, 40 * 5**3)):
        field, randomness = Field((p,)), SimulatedRandomness(10)
        shares = bgw.blinded_noise(
            field, np.full(trials, 2), holders=holders, threshold=threshold, randomness=randomness
        )
        if not blinded:
            shares = [share[:, :1] for share in shares]
        terms = [bgw.noise_term(field, share, holder=j)[0].astype(np.int64) for j, share in enumerate(shares)]
        for own, other in ((0, 1), (2, 0)):
            cells = terms[other]
            for power in shares[own][0]:
                cells = cells * p + power
            assert (chi_square(cells, p ** (len(shares[own][0]) + 1)) > 1e-6) == blinded


def test_of_five_holders_any_four_noise_terms_are_uniform() -> None:
    p, trials = 7, 60 * 7**4
    options = {"holders": 5, "threshold": 2, "randomness": SimulatedRandomness(11)}
    shares = bgw.blinded_noise(Field((p,)), np.full(trials, 3), **options)
    terms = [bgw.noise_term(Field((p,)), share, holder=j)[0].astype(np.int64) for j, share in enumerate(shares)]
    for chosen in combinations(range(5), 4):
        cells = sum(terms[j] * p**i for i, j in enumerate(chosen))
        assert chi_square(cells, p**4) > 1e-6


# --- refusals --------------------------------------------------------------------------------------------


def product_and_noise() -> tuple[bgw.Product, dict[str, Residues]]:
    field = Field(primes_for(40))
    sharing = {"holders": 3, "threshold": 1, "randomness": SystemRandomness()}
    mine = share(field, [1, 2], **sharing)[0]
    return bgw.multiply(field, mine, mine), {q: bgw.noise_sharing(field, [0, 0], **sharing)[0] for q in PARTIES}


def test_an_opening_waits_for_every_party() -> None:
    product, noise = product_and_noise()
    for lost in PARTIES:
        with pytest.raises(PartyLost, match=lost):
            bgw.open_product(product, noise={q: n for q, n in noise.items() if q != lost}, parties=PARTIES)
    with pytest.raises(PartyLost, match="any party"):
        bgw.open_product(product, noise={}, parties=[])


def test_foreign_doubled_misshapen_or_damaged_noise_is_refused() -> None:
    product, noise = product_and_noise()
    with pytest.raises(SecureError, match="stranger"):
        bgw.open_product(product, noise={**noise, "stranger": noise["tax"]}, parties=PARTIES)
    with pytest.raises(SecureError, match="one sharing"):
        bgw.open_product(product, noise=noise, parties=[*PARTIES, "tax"])
    for wrong in (noise["tax"][:, :1], noise["tax"][:, 0]):
        with pytest.raises(SecureError, match="noise of its own"):
            bgw.open_product(product, noise={**noise, "tax": wrong}, parties=PARTIES)
    damaged = noise["tax"].copy()
    damaged[0, 0] = -1
    with pytest.raises(SecureError, match="out of range"):
        bgw.open_product(product, noise={**noise, "tax": damaged}, parties=PARTIES)


def test_products_that_are_made_symmetric_or_combined_open_to_the_same_sums() -> None:
    field, randomness = Field(primes_for(40)), SystemRandomness()
    sharing = {"holders": 3, "threshold": 1, "randomness": randomness}
    x, w = np.array([[1, -2], [3, 4], [0, 5]]), np.array([[2], [-1], [7]])
    rows, weighted = share(field, x, **sharing), share(field, w * x, **sharing)
    weights = field.encode(np.array([[3, -4], [0, 1]]))
    opened: dict[str, dict[int, Residues]] = {"symmetric": {}, "combined": {}}
    for holder in range(3):
        product = bgw.cross(field, rows[holder], weighted[holder])
        assert not np.array_equal(product._residues, np.swapaxes(product._residues, 1, 2))
        opened["symmetric"][holder] = symmetric = product.symmetric()._residues
        assert np.array_equal(symmetric, np.swapaxes(symmetric, 1, 2))
        opened["combined"][holder] = product.combined(weights)._residues
    truth = x.T @ (w * x)
    assert np.array_equal(reconstruct(field, opened["symmetric"], degree=2), truth)
    assert np.array_equal(reconstruct(field, opened["combined"], degree=2), np.array([[3, -4], [0, 1]]) @ truth)


def test_a_product_shows_its_residues_to_nobody() -> None:
    product, _ = product_and_noise()
    assert "residues" not in repr(product)
    public = {name for name in dir(product) if not name.startswith("_")}
    shown = {"field", "shape", "scale", "sum", "upper", "stack", "beside", "in_rows", "part", "flat", "mapped"}
    assert public == shown | {"combined", "symmetric"}
    stacked = bgw.Product.stack([product, product])
    others = (
        stacked,
        stacked.part(slice(0, 1), slice(0, 1)),
        bgw.Product.in_rows([product, product], 2),
        stacked.flat(),
        stacked.mapped(np.eye(2, dtype=np.int64)),
        stacked.combined(np.ones((len(product.field.primes), 1, 2), dtype=np.int32)),
        stacked.symmetric(),
    )
    assert all(isinstance(other, bgw.Product) for other in others), "what is made of products is one"
