"""The layout of a completion's matrix: round trips, and scales written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.completion.layout import Layout
from colonnade.completion.quality import by_column
from colonnade.data import Column, Columns
from colonnade.errors import BadArguments, UnknownColumn

KINDS = ("continuous", "count", "ordinal", "binary", "categorical")


def mixed_columns() -> Columns:
    return Columns(
        [
            Column(name="income", kind="continuous", lower=-10, upper=30),
            Column(name="children", kind="count", lower=0, upper=20),
            Column(name="school", kind="ordinal", categories=("low", "middle", "high")),
            Column(name="owner", kind="binary", categories=("no", "yes")),
            Column(name="sector", kind="categorical", categories=("a", "b", "c", "d")),
        ]
    )


@st.composite
def column(draw: st.DrawFn, name: str) -> Column:
    kind = draw(st.sampled_from(KINDS))
    if kind in ("continuous", "count"):
        lower = draw(st.integers(-10_000, 10_000))
        return Column(name=name, kind=kind, lower=lower, upper=lower + draw(st.integers(1, 2**20)), missing=True)
    size = 2 if kind == "binary" else draw(st.integers(1, 6))
    return Column(name=name, kind=kind, categories=tuple(f"c{at}" for at in range(size)), missing=True)


@st.composite
def table(draw: st.DrawFn) -> tuple[Columns, dict[str, np.ndarray]]:
    columns = Columns([draw(column(f"x{at}")) for at in range(draw(st.integers(1, 5)))])
    rows, values = draw(st.integers(0, 6)), {}
    for name, one in columns.items():
        if one.discrete:
            cells = st.integers(-1, len(one.categories) - 1)
        elif one.kind == "count":
            cells = st.one_of(st.integers(int(one.lower), int(one.upper)), st.just(float("nan")))
        else:
            cells = st.one_of(st.floats(one.lower, one.upper), st.just(float("nan")))
        drawn = draw(st.lists(cells, min_size=rows, max_size=rows))
        values[name] = np.array(drawn, dtype=np.int32 if one.discrete else np.float64)
    return columns, values


@given(table())
@settings(max_examples=100, deadline=None)
def test_decode_undoes_encode(drawn: tuple[Columns, dict[str, np.ndarray]]) -> None:
    columns, values = drawn
    layout = Layout(columns)
    back = layout.decode(layout.encode(values))
    assert list(back) == list(columns)
    for name, one in columns.items():
        assert back[name].dtype == values[name].dtype
        if one.kind == "continuous":
            # float32 keeps 24 bits of the position in the range
            np.testing.assert_allclose(back[name], values[name], rtol=0, atol=(one.upper - one.lower) * 2**-23)
        else:
            np.testing.assert_array_equal(back[name], values[name])


@given(table())
@settings(max_examples=50, deadline=None)
def test_matrix_is_scaled_and_missing_cells_are_missing_everywhere(
    drawn: tuple[Columns, dict[str, np.ndarray]],
) -> None:
    columns, values = drawn
    layout = Layout(columns)
    matrix = layout.encode(values)
    assert matrix.dtype == np.float32
    assert matrix.shape[1] == layout.width == sum(at.stop - at.start for at in layout.slices.values())
    seen = layout.observed(matrix)
    assert ((matrix[seen] >= 0) & (matrix[seen] <= 1)).all()
    for name, one in columns.items():
        known = values[name] >= 0 if one.discrete else ~np.isnan(values[name])
        assert (seen[:, layout.slices[name]] == known[:, None]).all()
        if name in layout.one_hot:
            np.testing.assert_array_equal(matrix[known][:, layout.slices[name]].sum(axis=1), 1.0)
    np.testing.assert_array_equal(layout.legal(matrix), matrix)


def test_the_scale_is_the_declared_one() -> None:
    layout = Layout(mixed_columns())
    values = {
        "income": np.array([-10.0, 10.0, 40.0]),
        "children": np.array([0.0, 5.0, np.nan]),
        "school": np.array([0, 1, 2], np.int32),
        "owner": np.array([1, 0, -1], np.int32),
        "sector": np.array([3, 0, 1], np.int32),
    }
    nan = np.nan
    expected = [
        [0.0, 0.0, 0.0, 0, 1, 0, 0, 0, 1],
        [0.5, 0.25, 0.5, 1, 0, 1, 0, 0, 0],
        [1.0, nan, 1.0, nan, nan, 0, 1, 0, 0],
    ]
    np.testing.assert_array_equal(layout.encode(values), np.array(expected, np.float32))
    assert layout.numeric_mask.tolist() == [True] * 3 + [False] * 6
    assert layout.places(["sector", "income"]).tolist() == [5, 6, 7, 8, 0]


def test_decode_takes_the_likeliest_category_and_stays_in_the_domain() -> None:
    layout = Layout(mixed_columns())
    back = layout.decode(np.array([[1.2, 0.49, 0.8, 0.4, 0.6, 0.1, 0.2, 0.4, 0.3], [-1, 2, -3, 1, 1, 0, 0, 0, 0]]))
    assert back["income"].tolist() == [30.0, -10.0]
    assert back["children"].tolist() == [10.0, 20.0]
    assert back["school"].tolist() == [2, 0]
    assert back["owner"].tolist() == [1, 0]
    assert back["sector"].tolist() == [2, 0]


def test_wrong_input_is_refused_with_the_cure() -> None:
    layout = Layout(mixed_columns())
    with pytest.raises(BadArguments, match="'children', 'school', 'owner', 'sector' too"):
        layout.encode({"income": np.zeros(2)})
    with pytest.raises(BadArguments, match="one length"):
        layout.encode({name: np.zeros(2 + (name == "owner")) for name in layout.columns})
    with pytest.raises(BadArguments, match="records x 9"):
        layout.decode(np.zeros((3, 4)))
    with pytest.raises(UnknownColumn):
        layout.places(["incom"])


def test_expectable_rows_are_frequencies_and_no_further_from_any_legal_row() -> None:
    """The nearest points of a convex set that has all legal rows in it."""
    layout = Layout(mixed_columns())
    rng = np.random.default_rng(3)
    raw = rng.normal(0.3, 0.6, (200, layout.width))
    found = layout.expectable(raw)
    assert found.min() >= 0
    assert found.max() <= 1
    for name in layout.one_hot:
        assert np.allclose(found[:, layout.slices[name]].sum(axis=1), 1, atol=1e-6)
    for _ in range(20):
        legal = layout.legal(rng.random(raw.shape))
        before, after = (((one - legal) ** 2).sum(axis=1) for one in (raw, found))
        assert (after <= before + 1e-5).all()
    assert np.allclose(layout.expectable(found), found, atol=1e-6)
    assert (layout.legal(raw) == layout.legal(found)).all()


def test_the_error_of_a_date_names_its_step() -> None:
    """Two hours of 1440 minutes; a count has no unit to name."""
    columns = [
        Column.from_dict({"name": "seen", "kind": "date", "from": "2024-01-01", "to": "2024-01-01", "step": "minute"}),
        Column(name="steps", kind="count", lower=0, upper=10),
    ]
    layout = Layout(Columns(columns))
    truth = layout.encode({"seen": np.array([0.0, 600.0]), "steps": np.array([0.0, 5.0])})
    values = layout.encode({"seen": np.array([120.0, 720.0]), "steps": np.array([1.0, 6.0])})
    errors = by_column(layout, values, truth, truth.mean(axis=0), truth.var(axis=0))
    assert errors["seen"]["error"] == pytest.approx(120, rel=0.01)
    assert errors["seen"]["unit"] == "minutes"
    assert "unit" not in errors["steps"]
