"""Proofs of inner products: against Python's integers; planted lies are found; and a holder's view tells nothing.

`Committee` runs in one process what holders do. Statistical tests use fixed seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from colonnade.errors import SecureError
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.secure import bgw, claims, proof
from colonnade.secure.extension import Extension
from colonnade.secure.field import PRIMES, Field, Residues
from colonnade.secure.proof import Layout, Query, answer, fold, prove, verdict
from colonnade.secure.shamir import share, share_residues
from support.cubic import ZERO, Cubic, Element

sys.path.insert(0, str(Path(__file__).parents[3]))  # `benchmarks` is beside the package
from benchmarks.verify_common import KINDS, Committee, Dealer, Numbers, Sums, alter, planted, seed

COMMITTEES = [(3, 1), (5, 2), (5, 1)]


def elements(layer: Residues) -> list[Element]:
    return [(int(a), int(b), int(c)) for a, b, c in layer.reshape(-1, 3)]


# --- the honest run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("holders", "threshold"), COMMITTEES)
@pytest.mark.parametrize(("primes", "width"), [(PRIMES[:3], 1), (PRIMES[:2], 5), ((11, 13), 4), ((11,), 5)])
def test_true_claims_of_holders_are_accepted(holders: int, threshold: int, primes: tuple[int, ...], width: int) -> None:
    for number in range(3):
        committee = Committee(holders, threshold, field=Field(primes), width=width, number=number)
        assert committee.run(number).accepted


@pytest.mark.parametrize(("holders", "threshold"), COMMITTEES)
def test_a_dealer_proves_its_rows_one_hot(holders: int, threshold: int) -> None:
    """The secret is at 0; the dealer deals its masks itself, and all of the right side is its own."""
    extension = Extension(Field(PRIMES[:2]))
    field, randomness = extension.field, SimulatedRandomness(2)
    sharing = {"holders": holders, "threshold": threshold, "randomness": randomness}
    layout = Layout.balanced(9, square=True)
    u, psi = (extension.uniform((size,), seed=seed(1), label=label) for label, size in (("u", 3), ("psi", 9)))
    query = Query(extension, layout, extension.point(seed=seed(1), label="r"))
    for valid in (True, False):
        values = np.eye(3, dtype=np.int64)[np.arange(9) % 3]
        values[5, 0] += not valid
        rows, shares = field.encode(values), share(field, values, **sharing)
        masks = field.uniform((layout.masks(1), 3), randomness)
        dealt_masks = share_residues(field, masks, **sharing)
        proven = prove(extension, layout, *claims.one_hot_factors(extension, rows, u, psi), masks=masks)
        proofs = share_residues(field, proven, **sharing)
        answers = {
            i: answer(
                query,
                *claims.one_hot_factors(extension, mine, u, psi),
                masks=dealt_masks[i],
                proofs=proofs[i][:, None],
                own=claims.one_hot_value(extension, mine, u, psi)[:, None],
            )
            for i, mine in enumerate(shares)
        }
        result = verdict(extension, layout, answers, places=[0], threshold=threshold)
        assert result == ((), {}, () if valid else (0,))


# --- against Python's integers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "width"), [(1, 1), (5, 1), (6, 3), (7, 3), (3, 5)])
def test_proof_and_folds_are_those_of_the_polynomials(length: int, width: int) -> None:
    extension, layout = Extension(Field((*PRIMES[:2], 11))), Layout(length, width)
    draw = lambda label, size: extension.uniform((size,), seed=seed(3), label=label)  # noqa: E731
    a, b, masks = draw("a", length), draw("b", length), draw("masks", layout.masks(2))
    a[:2, ::2] = np.array(PRIMES[:2])[:, None, None] - 1
    query = Query(extension, layout, extension.point(seed=seed(3), label="r"))
    proven = prove(extension, layout, a, b, masks=masks, prover=1)
    folded = fold(query, b, masks[:, layout.rows : 2 * layout.rows])
    dealt = extension.inner(proven, query.proof_weights)
    for layer, p in enumerate(extension.field.primes):
        oracle = Cubic(p, extension.constants[layer])
        point = elements(query.point[layer])[0]
        vectors = elements(a[layer]), elements(b[layer])
        mask = elements(masks[layer])
        polynomial = oracle.proof(*vectors, mask, mask[2 * layout.rows + 1], width)
        values = [oracle.evaluate(polynomial, (k, 0, 0)) for k in range(2 * width + 1)]
        assert oracle.sum(values[1 : width + 1]) == ZERO
        assert elements(proven[layer]) == values[:1] + values[2:]
        assert elements(dealt[layer]) == [oracle.evaluate(polynomial, point)]
        rows = oracle.rows(vectors[1], mask[layout.rows : 2 * layout.rows], width)
        assert elements(folded[layer]) == [oracle.evaluate(row, point) for row in rows]


def test_pieces_of_any_size_give_what_the_whole_vector_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    extension, layout = Extension(Field(PRIMES[:2])), Layout(1000, 7)
    a, b = (extension.uniform((1000,), seed=seed(4), label=label) for label in "ab")
    masks = extension.uniform((layout.masks(1),), seed=seed(4), label="masks")
    query = Query(extension, layout, extension.point(seed=seed(4), label="r"))
    expected = prove(extension, layout, a, b, masks=masks), fold(query, a, masks[:, : layout.rows])
    monkeypatch.setattr(proof, "CHUNK", 100)  # several chunks
    for edges in ([333, 334], [7, 14], [999]):
        pieces = [np.split(vector, edges, axis=1) for vector in (a, b)]
        assert (prove(extension, layout, iter(pieces[0]), b, masks=masks) == expected[0]).all()
        assert (prove(extension, layout, a, pieces[1], masks=masks) == expected[0]).all()
        assert (fold(query, iter(pieces[0]), masks[:, : layout.rows]) == expected[1]).all()
    square, of_copies = (prove(extension, layout, a, other, masks=masks) for other in (a, a.copy()))
    assert (square == of_copies).all()


@pytest.mark.parametrize("width", [1, 700])
def test_long_claims_of_the_largest_residues_stay_exact(width: int) -> None:
    """2^18 rows are one chunk, and rows of 700 make sums of 700 products: the largest that a kernel adds up."""
    extension, layout = Extension(Field(PRIMES[3:4])), Layout((1 << 18) + 3, width)
    a = np.full((1, layout.length, 3), PRIMES[3] - 1, dtype=np.int32)
    masks = np.full((1, layout.masks(1), 3), PRIMES[3] - 1, dtype=np.int32)
    query = Query(extension, layout, extension.point(seed=seed(8), label="r"))
    opened = answer(
        query,
        a,
        a,
        masks=masks,
        proofs=prove(extension, layout, a, a, masks=masks)[:, None],
        own=extension.inner(a, a)[:, None],
    )
    rows, right = layout.rows, extension.sum(opened[:, 2 * layout.rows :])
    left = extension.inner(opened[:, :rows], opened[:, rows : 2 * rows])
    assert np.array_equal(left, right)


def test_shapes_that_do_not_fit_are_refused() -> None:
    extension, layout = Extension(Field(PRIMES[:2])), Layout(10, 3)
    a, masks = extension.zeros((10,)), extension.zeros((layout.masks(1),))
    query = Query(extension, layout, extension.point(seed=seed(5), label="r"))
    with pytest.raises(SecureError, match="9 elements"):
        prove(extension, layout, a[:, 1:], a[:, 1:], masks=masks)
    with pytest.raises(SecureError, match="at least"):
        prove(extension, layout, a, a, masks=masks[:, 1:])
    with pytest.raises(SecureError, match="at least"):
        fold(query, a.astype(np.int64), masks[:, : layout.rows])
    with pytest.raises(SecureError, match="a proof has 6"):
        answer(query, a, a, masks=masks, proofs=extension.zeros((1, 5)))
    with pytest.raises(SecureError, match="in place of"):
        verdict(extension, layout, dict.fromkeys(range(3), a[:, 1:]), places=[1], threshold=1)
    with pytest.raises(SecureError, match="shorter rows"):
        prove(Extension(Field((7,))), Layout(10, 4), a[:1], a[:1], masks=masks[:1])
    for length, width in ((0, 1), (5, 0), (5, 2048)):
        with pytest.raises(SecureError, match="rows"):
            Layout(length, width)


def test_the_balanced_layout_keeps_the_chance_below_2_to_the_minus_50() -> None:
    for length in (1, 24, 10**4, 10**6, 10**8, 10**10):
        layout = Layout.balanced(length)
        assert layout.rows * layout.width >= length
        assert 2 * layout.width + 4 < (PRIMES[-1] ** 3 - PRIMES[-1]) / 2**50


# --- planted lies ------------------------------------------------------------------------------------------------


def test_single_changes_of_every_kind_are_found() -> None:
    """`make bench NAME=verify` plants a thousand of each."""
    generator = np.random.default_rng(11)
    honest = [Committee(3, 1, field=Field(PRIMES[:1]), width=3, number=number) for number in range(10)]
    assert all(committee.run(number).accepted for number, committee in enumerate(honest))
    assert Dealer(1).verdict().accepted
    assert Numbers(1).verdict().accepted
    assert Sums(3, 1, field=Field(PRIMES[:1]), width=3).run(0).accepted
    for kind in KINDS:
        for trial in range(8 if kind in ("number", "residue") else 60):  # ten challenges will do for all changes
            found, holder = planted(kind, honest[trial % 10], generator)
            if kind in ("opened", "stated", "dealt again", "influence", "sum", "indicator", "number", "residue"):
                assert found == ((), {}, (holder,))  # the liar is named
            elif kind == "proof":
                assert found == ((), {holder: None}, ())
            elif kind == "answer":
                assert found.liars is None or list(found.disputed.values()) == [None]
            else:
                assert found == (None, {}, ())


def test_five_holders_with_threshold_one_name_the_one_that_lied_in_its_answer() -> None:
    committee = Committee(5, 1, field=Field(PRIMES[:2]), width=3)
    assert committee.run(0).accepted
    generator, rows = np.random.default_rng(12), committee.layout.rows
    for liar in range(5):
        honest = committee.answers
        committee.answers = {**honest, liar: honest[liar].copy()}
        alter(committee, committee.answers[liar][:, : 2 * rows + 5], generator)
        assert committee.verdict() == ((liar,), {}, ())
        committee.answers = {**honest, liar: honest[liar].copy()}
        alter(committee, committee.answers[liar][:, 2 * rows + 5 + 2 :][:, :1], generator)
        assert committee.verdict() == ((), {2: (liar,)}, ())  # or the prover dealt it a wrong share
        committee.answers = honest


def test_t_liars_together_cannot_refute_an_honest_prover() -> None:
    """With 2t + 1 answers of degree t, errors of t holders never look like another polynomial."""
    committee = Committee(5, 2, field=Field((11,)), width=3)
    assert committee.run(0).accepted
    generator, honest = np.random.default_rng(13), committee.answers
    for _ in range(200):
        liars = generator.choice(5, size=2, replace=False)
        committee.answers = dict(honest)
        for liar in liars:
            noise = generator.integers(11, size=honest[0].shape).astype(np.int32)
            committee.answers[int(liar)] = committee.extension.field.add(honest[int(liar)], noise)
        result = committee.verdict()
        assert not result.accepted
        assert result.refuted == ()


# --- the best false proof ----------------------------------------------------------------------------------------


def test_the_best_false_proof_passes_at_no_more_than_2m_points() -> None:
    """Modulo 7, K has 343 elements and 336 are challenges. A liar picks the 2M = 4 of them at which it is believed."""
    p, width = 7, 2
    extension, layout = Extension(Field((p,))), Layout(4, width)
    field, oracle = extension.field, Cubic(p, extension.constants[0])
    randomness = SimulatedRandomness(14)
    sharing = {"holders": 3, "threshold": 1, "randomness": randomness}
    a, b, masks = (field.uniform((size, 3), randomness) for size in (4, 4, layout.masks(1)))
    error: Element = (3, 0, 0)
    claim = extension.add(extension.inner(a, b), np.array([error], dtype=np.int32))
    points = [(x, y, z) for x in range(p) for y in range(p) for z in range(p) if y or z]
    chosen = [points[k] for k in (5, 77, 200, 301)]
    # P is false by a polynomial with these roots whose sum over the nodes 1, ..., M is the error
    vanishing = [(1, 0, 0)]
    for root in chosen:
        vanishing = oracle.times(vanishing, [oracle.neg(root), (1, 0, 0)])
    total = oracle.sum([oracle.evaluate(vanishing, (k, 0, 0)) for k in range(1, width + 1)])
    factor = oracle.mul(error, oracle.inverse(total))
    line = oracle.interpolate(range(width + 1), [ZERO, error, ZERO])  # what the false claim takes from the true P
    honest = elements(prove(extension, layout, a, b, masks=masks)[0])
    false = [
        oracle.add(
            oracle.sub(value, oracle.evaluate(line, (k, 0, 0))),
            oracle.mul(factor, oracle.evaluate(vanishing, (k, 0, 0))),
        )
        for k, value in zip((0, 2, 3, 4), honest, strict=True)
    ]
    shares = [
        share_residues(field, secret, **sharing)
        for secret in (a, b, masks, np.array([[false]], dtype=np.int32), claim[:, None])
    ]
    accepted = []
    for point in points:
        query = Query(extension, layout, np.array([point], dtype=np.int32))
        answers = {
            i: answer(query, left, right, masks=mask, proofs=dealt, own=own)
            for i, (left, right, mask, dealt, own) in enumerate(zip(*shares, strict=True))
        }
        result = verdict(extension, layout, answers, places=[0], threshold=1)
        assert result.liars == ()
        if result.accepted:
            accepted.append(point)
    assert sorted(accepted) == sorted(chosen)
    assert len(accepted) == 2 * width


# --- what a holder sees ------------------------------------------------------------------------------------------

P = 5


def views(a: int, b: int, *, trials: int, masks: Callable[[Residues], Residues]) -> np.ndarray:
    """What holder 0 of three sees when a b is opened with noise 0 and proven by all, again and again modulo 5.

    (trials, numbers): its shares, its shares of the others' proofs, all opened shares and all answers. Holder 0 dealt
    some of the masks itself and knows these: 0, without loss of generality. What it proves itself it knows as well.
    """
    field = Field((P,))
    extension, layout, randomness = Extension(field), Layout(1, 1), SimulatedRandomness(15, f"{a} {b}")
    sharing = {"holders": 3, "threshold": 1, "randomness": randomness}
    query = Query(extension, layout, extension.point(seed=seed(6), label="r"))
    out = []
    for _ in range(trials):
        x, y = share(field, [a], **sharing), share(field, [b], **sharing)
        noise = bgw.blinded_noise(field, [0], **sharing)
        terms = [[bgw.noise_term(field, noise[i], holder=j) for j in range(3)] for i in range(3)]
        opened = [field.add(field.mul(x[j], y[j]), terms[j][j]) for j in range(3)]
        mask = [masks(m) for m in share_residues(field, field.uniform((layout.masks(3), 3), randomness), **sharing)]
        left, right = [extension.embed(v) for v in x], [extension.embed(v) for v in y]
        proofs = [
            share_residues(field, prove(extension, layout, left[j], right[j], masks=mask[j], prover=j), **sharing)
            for j in range(3)
        ]
        seen = [x[0], y[0], noise[0], mask[0], *opened, proofs[1][0], proofs[2][0]]
        for i in range(3):
            others = extension.embed(np.concatenate([field.sub(opened[j], terms[i][j]) for j in range(3)], axis=1))
            dealt = np.stack([proofs[j][i] for j in range(3)], axis=1)
            seen.append(answer(query, left[i], right[i], masks=mask[i], proofs=dealt, others=others))
        out.append(np.concatenate([array.ravel() for array in seen]))
    return np.array(out, dtype=np.int64)


def smallest_p_value(first: np.ndarray, second: np.ndarray) -> float:
    """Of the chi-square tests that two samples agree in the joint distribution of each pair of numbers."""
    tables = []
    for view in (first, second):
        indicators = (view[:, :, None] == np.arange(P)).reshape(len(view), -1).astype(np.float64)
        tables.append((indicators.T @ indicators).reshape(view.shape[1], P, view.shape[1], P))
    total = tables[0] + tables[1]
    terms = np.divide((tables[0] - tables[1]) ** 2, total, out=np.zeros_like(total), where=total > 0)
    cells = (total > 0).sum(axis=(1, 3))
    pairs = np.triu_indices(first.shape[1], 1)
    return float(stats.chi2.sf(terms.sum(axis=(1, 3))[pairs], np.maximum(cells[pairs] - 1, 1)).min())


def hide(first: int, last: int | None) -> Callable[[Residues], Residues]:
    """A planted bug: these masks are left out. Masks are those of a, of b, and of the claims of the three provers."""

    def without(masks: Residues) -> Residues:
        masks[:, first:last] = 0
        return masks

    return without


def test_one_holders_view_is_the_same_for_two_secrets_with_one_result() -> None:
    """1 times -1 and 2 times 2 are both -1 modulo 5. The smallest of 5,565 p-values is about 2e-4 by chance."""
    first, second = (views(*secrets, trials=400, masks=lambda masks: masks) for secrets in ((1, -1), (2, 2)))
    assert smallest_p_value(first, second) > 1e-6


@pytest.mark.parametrize("masks", [(0, 1), (1, 2), (2, None)])
def test_a_mask_left_out_is_seen_in_the_view(masks: tuple[int, int | None]) -> None:
    first, second = (views(*secrets, trials=200, masks=hide(*masks)) for secrets in ((1, -1), (2, 2)))
    assert smallest_p_value(first, second) < 1e-12
