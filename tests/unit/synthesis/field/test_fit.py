"""The fitted field and its samples. Oracles: a dense joint distribution, closed forms, counting."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, NotEstimable
from colonnade.statistics.cells import cells
from colonnade.statistics.marginals import Marginal
from colonnade.synthesis.field.fit import MarkovField, Measurement, _Loss, _Tree, fit
from colonnade.synthesis.field.graph import Triangulation, triangulate
from colonnade.synthesis.field.sample import FieldSampler, sample_cells, unfinished
from colonnade.synthesis.restrictions import conditions

SIZES = {"a": 3, "b": 2, "c": 4, "d": 2}


def chain(seed: int = 0) -> np.ndarray:
    """A joint distribution a - b - c - d that is Markov along the chain."""
    rng = np.random.default_rng(seed)
    p_ab = rng.dirichlet(np.ones(6)).reshape(3, 2)
    c_b, d_c = rng.dirichlet(np.ones(4), 2), rng.dirichlet(np.ones(2), 4)
    return np.einsum("ab,bc,cd->abcd", p_ab, c_b, d_c)


@pytest.fixture(scope="module")
def fitted() -> tuple[np.ndarray, MarkovField]:
    joint = chain() * 1000
    graph = triangulate(SIZES, [("a", "b"), ("b", "c"), ("c", "d")])
    pairs = {"ab": (2, 3), "bc": (0, 3), "cd": (0, 1)}
    tables = [Measurement(tuple(names), joint.sum(axis=axes), 1.0) for names, axes in pairs.items()]
    return joint, fit(graph, tables, total=1000.0, iterations=1500)


def test_a_chain_is_recovered_from_its_pairs(fitted) -> None:
    """The field with these pairs and no other dependence is the chain itself: every table follows."""
    joint, field = fitted
    for columns in itertools.combinations("abcd", 2):
        axes = tuple(at for at, name in enumerate("abcd") if name not in columns)
        np.testing.assert_allclose(field.marginal(columns), joint.sum(axis=axes), atol=1.0)
    np.testing.assert_allclose(field.marginal(("d", "b", "a")), joint.sum(axis=2).transpose(2, 1, 0), atol=1.0)
    assert field.loss < 1.0


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 2**32), st.floats(0.1, 30.0))
def test_belief_propagation_is_that_of_mbi(seed: int, spread: float) -> None:
    """A graph in two pieces, random potentials of any spread: against mbi's own message passing, in logarithms."""
    import jax

    mbi = pytest.importorskip("mbi")
    sizes = {"a": 3, "b": 2, "c": 4, "d": 2, "e": 3, "f": 2}
    graph = triangulate(sizes, [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("e", "f")])
    rng = np.random.default_rng(seed)
    logs = {clique: rng.normal(0, spread, [sizes[name] for name in clique]) for clique in graph.cliques}
    ours = _Tree(graph).calibrated(logs, 1000.0)
    with jax.enable_x64(True):
        domain = mbi.Domain(list(sizes), list(sizes.values()))
        made = {clique: mbi.Factor(domain.project(clique), logs[clique]) for clique in graph.cliques}
        theirs = mbi.marginal_oracles.message_passing_hugin(mbi.CliqueVector(domain, graph.cliques, made), 1000.0)
        for clique in graph.cliques:
            expected = np.asarray(theirs[clique].transpose(clique).values)
            np.testing.assert_allclose(ours[clique], expected, rtol=1e-9, atol=1e-9)


def test_the_gradient_of_the_loss_is_its_derivative() -> None:
    """Tables of one, two and three columns of one clique, one in bins and one in another order of columns: against
    central differences of the loss, which is quadratic, so that they are exact but for rounding."""
    graph = triangulate(SIZES, [("a", "b", "c"), ("c", "d")])
    rng = np.random.default_rng(4)
    bins = (np.array([0, 0, 1, 1]), np.array([0, 1, 1]))
    measured = [
        Measurement(("a", "b", "c"), rng.uniform(0, 9, (3, 2, 4)), 2.0),
        Measurement(("c", "a"), rng.uniform(0, 9, (2, 2)), 1.5, bins),
        Measurement(("c", "a"), rng.uniform(0, 9, (4, 3)), 0.5),
        Measurement(("b",), rng.uniform(0, 9, 2), 3.0),
        Measurement(("d",), rng.uniform(0, 9, 2), 1.0),
    ]
    loss = _Loss(graph, measured)
    tables = {clique: rng.uniform(0, 9, [SIZES[name] for name in clique]) for clique in graph.cliques}
    slopes = loss(tables)[1]
    for clique, table in tables.items():
        for place in np.ndindex(table.shape):
            ends = []
            for move in (1.0, -1.0):
                moved = {**tables, clique: table.copy()}
                moved[clique][place] += move
                ends.append(loss(moved)[0])
            slope = np.broadcast_to(slopes[clique], table.shape)[place]
            assert math.isclose((ends[0] - ends[1]) / 2, slope, rel_tol=1e-9, abs_tol=1e-9)


def test_samples_follow_the_field(fitted) -> None:
    """Systematic sampling: within a group of r rows a cell's count is within 1 of r times its chance."""
    _, field = fitted
    rows = 20_000
    drawn = sample_cells(field, rows, np.random.default_rng(1))
    last = field.graph.order[-1]
    counts = np.bincount(drawn[last], minlength=SIZES[last])
    assert np.abs(counts - rows * field.marginal((last,)) / field.total).max() <= 1
    joint = np.zeros((3, 2, 4, 2))
    np.add.at(joint, tuple(drawn[name] for name in "abcd"), 1)
    truth = field.marginal(("a", "b", "c", "d")) / field.total
    # 48 cells, each a sum of indicators with variance at most that of independent rows: 6 sd, false alarm < 1e-6.
    assert np.all(np.abs(joint / rows - truth) < 6 * np.sqrt(truth / rows) + 1e-3)


def test_coarse_and_fine_tables_are_fitted_together() -> None:
    """One column, measured in 4 cells with sd 10 and in 2 bins with sd 1: least squares by hand.

    Minimise sum (x - y)^2 / 100 + sum (Bx - z)^2 with sum x = 100; interior, so by the normal equations.
    """
    fine, coarse, bins = np.array([30.0, 20.0, 25.0, 25.0]), np.array([60.0, 40.0]), np.array([0, 0, 1, 1])
    graph = triangulate({"a": 4}, [("a",)])
    field = fit(
        graph,
        [Measurement(("a",), fine, 10.0), Measurement(("a",), coarse, 1.0, (bins,))],
        total=100.0,
        iterations=1500,
    )
    sums = np.eye(2)[bins].T
    matrix = np.block([[np.eye(4) / 100 + sums.T @ sums, np.ones((4, 1))], [np.ones((1, 4)), np.zeros((1, 1))]])
    exact = np.linalg.solve(matrix, np.concatenate([fine / 100 + sums.T @ coarse, [100.0]]))[:4]
    np.testing.assert_allclose(field.marginal(("a",)), exact, atol=0.2)


def test_a_table_without_weight_changes_nothing_and_a_start_is_kept(fitted) -> None:
    """Fitted for one block of steps from the solution, with silent tables: still the solution."""
    joint, field = fitted
    silent = [
        Measurement(tuple(names), np.zeros((SIZES[names[0]], SIZES[names[1]])), math.inf) for names in ("ab", "cd")
    ]
    again = fit(field.graph, [Measurement(("b", "c"), joint.sum(axis=(0, 3)), 1.0), *silent], total=1000.0,
                iterations=50, start=field)  # fmt: skip
    np.testing.assert_allclose(again.marginal(("a", "b")), field.marginal(("a", "b")), atol=2.0)


def test_a_fit_stops_where_noise_begins(fitted) -> None:
    """Noise of sd 20 on a graph that can fit all of it: the descent ends soon after its loss is below the share asked
    for, and is then nearer the truth than the optimum."""
    joint, _ = fitted
    rng = np.random.default_rng(11)
    axes = {"ab": (2, 3), "bc": (0, 3), "cd": (0, 1), "bcd": (0,), "abc": (3,)}
    graph = triangulate(SIZES, [("a", "b", "c"), ("b", "c", "d")])
    tables = [
        Measurement(tuple(names), exact + rng.normal(0, 20, exact.shape), 20.0)
        for names, exact in ((names, joint.sum(axis=axis)) for names, axis in axes.items())
    ]
    noise = sum(one.counts.size for one in tables) / 2
    early, late = (fit(graph, tables, total=1000.0, discrepancy=share) for share in (0.7, 0.0))
    assert late.loss < early.loss <= 0.7 * noise
    far = [float(np.abs(one.marginal(("a", "b", "c")) - joint.sum(axis=3)).sum()) for one in (early, late)]
    assert far[0] < far[1]


def test_log_potentials_that_cancel_do_not_vanish() -> None:
    """Two cliques whose log-potentials differ by 1,000 in opposite ways: their products are below the smallest float,
    and the field is the one that the sum of the potentials gives."""
    graph = triangulate({"a": 2, "b": 2, "c": 2}, [("a", "b"), ("b", "c")])
    logs = {("a", "b"): np.array([[1000.0, 0.0], [1000.5, 0.3]]), ("b", "c"): np.array([[0.0, 0.2], [999.0, 1000.0]])}
    joint = logs["a", "b"][:, :, None] + logs["b", "c"][None]
    joint = np.exp(joint - joint.max())
    joint *= 10 / joint.sum()
    tables = _Tree(graph).calibrated(logs, 10.0)
    np.testing.assert_allclose(tables["a", "b"], joint.sum(axis=2), rtol=1e-12)
    np.testing.assert_allclose(tables["b", "c"], joint.sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("seed", [1595, 6733])
def test_a_fit_to_nearly_exact_tables_that_contradict_each_other_ends_with_a_field(seed: int) -> None:
    """Tables with noise far below a record whose totals differ, as those of different records do: log-potentials of
    neighbouring cliques grow against each other until a table's products are too small for a float. Such a step had an
    infinite loss, passed the rule for steps (infinity falls by at least as much as was asked), and ended the fit."""
    graph, tables, total = contradicting(seed)
    field = fit(graph, tables, total=total, iterations=150)
    assert math.isfinite(field.loss)
    assert all(math.isclose(table.sum(), total) for table in field.tables.values())
    longer = fit(graph, tables, total=total, iterations=3000)
    assert 0 <= field.loss - longer.loss <= field.excess
    assert longer.excess < 1e-3 * longer.loss


def contradicting(seed: int) -> tuple[Triangulation, list[Measurement], float]:
    """Two to four columns of 20 to 400 records; each table is that of other records, with noise of its own size."""
    rng = np.random.default_rng(seed)
    names = "abcd"[: rng.integers(2, 5)]
    sizes = {name: int(rng.choice([2, 2, 3, 4, 10])) for name in names}
    pairs = list(itertools.combinations(names, 2))
    graph = triangulate(sizes, [pair for pair in pairs if rng.random() < 0.5])
    n, tables = int(rng.choice([20, 60, 400])), []
    for columns in [*((name,) for name in names), *(pair for pair in pairs if graph.home(pair))]:
        sd = float(10 ** rng.uniform(-1.5, 1)) * float(rng.choice([1, 1, 3]))
        shape = [sizes[name] for name in columns]
        chances = rng.dirichlet(np.full(math.prod(shape), rng.choice([0.1, 1])))
        exact = rng.multinomial(n, chances).reshape(shape) * rng.choice([1, 1, 0.5])
        scale = float(rng.choice([1, 1, 1.33, 2]))
        tables.append(Measurement(columns, (exact + rng.normal(0, sd, shape)) * scale, sd * scale))
    return graph, tables, float(n)


def test_the_excess_bounds_what_is_left_of_the_loss(fitted) -> None:
    """Stopped after a few steps; the least loss is that of the true tables, 0."""
    joint, field = fitted
    tables = [Measurement(tuple(names), joint.sum(axis=axes), 1.0) for names, axes in (("ab", (2, 3)), ("bc", (0, 3)))]
    few, enough = (fit(field.graph, tables, total=1000.0, iterations=5, discrepancy=share) for share in (0.0, 1e9))
    assert 0 < few.loss <= few.excess * (1 + 1e-9)
    assert unfinished(few)[0].startswith("The fit ran out of steps: its misfit to the noisy tables may be up to 100 %")
    assert enough.excess == 0
    assert not unfinished(enough)


def test_columns_that_nothing_links_stay_independent() -> None:
    """A graph in three pieces: the field is the product of its pieces."""
    graph = triangulate(SIZES, [("a", "b")])
    rng = np.random.default_rng(8)
    pair, c = rng.uniform(1, 9, (3, 2)), rng.uniform(1, 9, 4)
    pair, c = 100 * pair / pair.sum(), 100 * c / c.sum()
    field = fit(graph, [Measurement(("a", "b"), pair, 1.0), Measurement(("c",), c, 1.0)], total=100.0, iterations=800)
    np.testing.assert_allclose(field.marginal(("c", "a")), np.outer(c, pair.sum(axis=1)) / 100, atol=0.2)
    np.testing.assert_allclose(field.marginal(("d",)), [50.0, 50.0], atol=0.01)


def test_what_cannot_be_fitted_is_refused() -> None:
    graph = triangulate(SIZES, [("a", "b")])
    with pytest.raises(BadArguments, match="a x c"):
        fit(graph, [Measurement(("a", "c"), np.ones((3, 4)), 1.0)], total=10.0)
    with pytest.raises(NotEstimable, match="raise epsilon"):
        fit(graph, [], total=float("nan"))


COLUMNS = Columns(
    [
        Column(name="a", kind="continuous", lower=-1.0, upper=2.0),
        Column(name="b", kind="categorical", categories=("x", "y"), missing=True),
        Column(name="c", kind="count", lower=0, upper=10, cuts=(2.0, 4.5)),
    ]
)


@pytest.fixture(scope="module")
def sampler() -> FieldSampler:
    public = {name: cells(column, bins=3) for name, column in COLUMNS.items()}
    sizes = {name: len(one) for name, one in public.items()}
    graph = triangulate(sizes, [("a", "b"), ("b", "c")])
    rng = np.random.default_rng(3)
    joint = rng.uniform(0, 1, tuple(sizes.values()))
    joint[:, :, 1] = 0.0
    b = joint.sum(axis=(0, 2))
    tables = {("a", "b"): joint.sum(axis=2), ("b", "c"): joint.sum(axis=0)}
    return FieldSampler(COLUMNS, public, MarkovField(graph, tables, float(b.sum()), 0.0))


def test_rows_lie_in_the_declared_domains(sampler: FieldSampler) -> None:
    """`encode` refuses what is outside; only the column that may be empty has empty cells; no mass, no rows."""
    rows = pd.concat(list(sampler.batches(5000, 1)), ignore_index=True)
    for name, column in COLUMNS.items():
        column.encode(rows[name])
    assert rows["b"].isna().any()
    assert not rows[["a", "c"]].isna().any(axis=None)
    assert not rows["c"].isin([2, 3, 4]).any(), "the cell from 2 to 4.5 has no mass"
    assert set(rows["c"]) == {0, 1, *range(5, 11)}


def test_the_size_of_the_batches_changes_no_row(sampler: FieldSampler) -> None:
    whole = pd.concat(list(sampler.batches(70_000, 5)), ignore_index=True)
    sizes = [len(one) for one in sampler.batches(70_000, 5, size=30_000)]
    pieces = pd.concat(list(sampler.batches(70_000, 5, size=30_000)), ignore_index=True)
    assert sizes == [30_000, 30_000, 10_000]
    pd.testing.assert_frame_equal(whole, pieces)


def test_a_million_rows_stream(sampler: FieldSampler) -> None:
    """Memory is that of a block, not of the table: a million rows of three columns would be 24 MB and more."""
    peaks = []
    for rows in (200_000, 1_000_000):
        tracemalloc.start()
        counted = sum(len(one) for one in sampler.batches(rows, 3))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert counted == rows
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 20e6


# --- conditions, and numbers within cells -------------------------------------------------------------------------


def test_a_field_is_conditioned_exactly(sampler: FieldSampler) -> None:
    """The junction tree against the product of the two tables: P(a, b, c) = T_ab T_bc / T_b, kept and normalised."""
    ab, bc = sampler.field.tables["a", "b"], sampler.field.tables["b", "c"]
    joint = ab[:, :, None] * bc[None] / bc.sum(axis=1)[None, :, None]
    weights = {"a": np.array([0.0, 1.0, 0.5]), "c": np.array([1.0, 0.0, 0.25])}
    joint = joint * weights["a"][:, None, None] * weights["c"]
    joint *= sampler.field.total / joint.sum()
    given = sampler.field.given(weights)
    np.testing.assert_allclose(given.tables["a", "b"], joint.sum(axis=2), atol=1e-9)
    np.testing.assert_allclose(given.tables["b", "c"], joint.sum(axis=0), atol=1e-9)
    with pytest.raises(NotEstimable, match="no rows"):
        sampler.field.given({"c": np.array([0.0, 1.0, 0.0])})


def test_rows_of_a_conditioned_field_have_the_values(sampler: FieldSampler) -> None:
    (rows,) = sampler.given(conditions(COLUMNS, {"a": (0.3, 1.4), "c": (1, 7), "b": "y"})).batches(4000, 1)
    assert rows["a"].between(0.3, 1.4).all()
    assert rows["c"].between(1, 7).all()
    assert (rows["b"] == "y").all()
    (every,) = sampler.batches(60_000, 2)
    kept = every[every["a"].between(0.3, 1.4) & every["c"].between(1, 7) & (every["b"] == "y").fillna(False)]
    for name in ("a", "c"):
        assert abs(rows[name].astype(float).mean() - kept[name].astype(float).mean()) < 0.05 * kept[name].std() + 0.02
    (point,) = sampler.given(conditions(COLUMNS, {"a": 0.5, "c": 6})).batches(50, 1)
    assert set(point["a"]) == {0.5}
    assert set(point["c"]) == {6}


@pytest.mark.parametrize("bins", [4, 8])
def test_association_goes_on_within_cells(bins: int) -> None:
    """Two normal columns with correlation .8, cut into few cells of equal width: rows that were uniform in their cells
    would have .46 and .63."""
    columns = Columns([Column(name=name, kind="continuous", lower=0, upper=100) for name in ("a", "b")])
    records = 50 + 10 * np.random.default_rng(1).multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], size=50_000)
    public = {name: cells(column, bins=bins) for name, column in columns.items()}
    codes = [public[name].codes(np.clip(records[:, place], 0, 100)) for place, name in enumerate(columns)]
    table = np.zeros((bins, bins))
    np.add.at(table, tuple(codes), 1.0)
    graph = triangulate(dict.fromkeys(columns, bins), [("a", "b")])
    drawn = FieldSampler(columns, public, MarkovField(graph, {("a", "b"): table}, table.sum(), 0.0))
    (rows,) = drawn.batches(20_000, 1)
    assert abs(rows.corr().to_numpy()[0, 1] - 0.8) < 0.03


def test_the_shape_of_a_marginal_is_kept_within_cells() -> None:
    """One cell with 60 % zeros and a tail, as a private marginal says: rows have the zeros and the tail's median."""
    columns = Columns([Column(name="a", kind="continuous", lower=0, upper=100)])
    public = {"a": cells(columns["a"], bins=1)}
    field = MarkovField(triangulate({"a": 1}, [("a",)]), {("a",): np.array([10.0])}, 10.0, 0.0)
    shape = Marginal(np.array([0.0, 0.0, 5.0, 100.0]), np.array([0.0, 0.6, 0.9, 1.0]))
    (rows,) = FieldSampler(columns, public, field, {"a": shape}).batches(5000, 1)
    assert abs((rows["a"] == 0).mean() - 0.6) < 0.02
    assert abs((rows["a"] <= 5).mean() - 0.9) < 0.02


def test_memory_does_not_grow_over_fits() -> None:
    """20 fits, one after another of another graph, in a fresh process: after the second it grows by 5 % at most."""
    script = """
import resource, gc, sys
import numpy as np
from colonnade.synthesis.field.fit import Measurement, fit
from colonnade.synthesis.field.graph import triangulate
names = tuple("abc")
def now():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
sizes = []
for turn in range(20):
    rng = np.random.default_rng(turn % 10)
    order, size = rng.permutation(3), 3 + turn % 10
    pairs = [(names[min(a, b)], names[max(a, b)]) for a, b in zip(order[:-1], order[1:])]
    graph = triangulate(dict.fromkeys(names, size), pairs)
    fit(graph, [Measurement(p, rng.uniform(0, 9, (size, size)), 1.0) for p in pairs], total=100.0, iterations=5)
    sizes.append(now())
print(sizes[1], max(sizes[2:]))
"""
    one_arena = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # what the allocator keeps for each thread does not count
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200, env=one_arena
    )
    second, largest = map(int, said.stdout.split())
    assert largest <= 1.05 * second, f"{second / 1e6:.0f} MB after the second fit, {largest / 1e6:.0f} MB later"
