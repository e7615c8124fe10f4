"""Columns: declarations, encoding and TOML. Oracles: round trips, Python's float, and rules written out by hand."""

from __future__ import annotations

import io
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data import Column, Columns
from colonnade.data.column import RESERVED
from colonnade.data.encoding import read_numbers, spelled_number
from colonnade.errors import (
    ColumnConflict,
    DomainError,
    DraftDomain,
    DuplicateColumn,
    SchemaError,
    SourceError,
    UnknownColumn,
)

finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15)
whole = st.integers(-(2**53), 2**53)
text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
truths = st.permutations([False, True]).map(tuple)


def category_tuples(size: int | None = None) -> st.SearchStrategy[tuple]:
    limits = {"min_size": size or 1, "max_size": size or 6, "unique": True}
    values = st.one_of(
        st.lists(text, **limits), st.lists(st.integers(-(2**63), 2**63 - 1), **limits), st.lists(finite, **limits)
    )
    return st.one_of(values.map(tuple), truths)


@st.composite
def columns(draw: st.DrawFn, name: str | None = None) -> Column:
    kind = draw(st.sampled_from(["continuous", "count", "ordinal", "binary", "categorical"]))
    fields: dict = {
        "name": draw(text.filter(lambda chosen: chosen not in RESERVED)) if name is None else name,
        "kind": kind,
        "missing": draw(st.booleans()),
        "draft": draw(st.booleans()),
        "description": draw(st.text(st.characters(codec="utf-8"), max_size=8)),
    }
    if kind in ("continuous", "count"):
        edges = sorted(draw(st.lists(finite if kind == "continuous" else whole, min_size=2, max_size=5, unique=True)))
        fields["lower"], fields["upper"] = edges[0], edges[-1]
        fields["cuts"] = tuple(edges[1:-1]) or None
    else:
        fields["categories"] = draw(category_tuples(2 if kind == "binary" else None))
    return Column(**fields)


def nullable_dtype(one: Column) -> str:
    if one.categories is None:
        return "Int64" if one.kind == "count" else "Float64"
    return {str: "string", int: "Int64", float: "Float64", bool: "boolean"}[type(one.categories[0])]


def column(kind: str = "continuous", **fields: object) -> Column:
    domain = {"lower": 0, "upper": 10} if kind in ("continuous", "count") else {"categories": ("a", "b")}
    return Column(**{"name": "x", "kind": kind, **domain, **fields})


# --- round trips -----------------------------------------------------------------------------------------


@given(columns(), st.data())
@settings(max_examples=80, deadline=None)
def test_codes_survive_decode_and_encode(one: Column, data: st.DataObject) -> None:
    if one.discrete:
        code = st.integers(-1 if one.missing else 0, len(one.categories) - 1)
    elif one.kind == "count":
        code = st.integers(int(one.lower), int(one.upper)).map(float)
    else:
        code = st.floats(one.lower, one.upper)
    if one.missing and not one.discrete:
        code = code | st.just(math.nan)
    codes = np.array(data.draw(st.lists(code, max_size=6)), dtype=np.int32 if one.discrete else np.float64)
    decoded = one.decode(codes)
    again = one.encode(decoded)
    assert again.dtype == codes.dtype
    np.testing.assert_array_equal(again, codes)
    if one.discrete:
        assert decoded.cat.ordered == (one.kind == "ordinal")
        expected = [one.categories[code] for code in codes if code >= 0]
        assert [type(one.categories[0])(value) for value in decoded.dropna()] == expected
    else:
        assert decoded.dtype == ("Int64" if one.kind == "count" else "float64")
    # The same cells as plain objects, as text of a CSV file and as a nullable or categorical series encode alike.
    plain = pd.Series([None if pd.isna(value) else value for value in decoded.astype(object)], dtype=object)
    np.testing.assert_array_equal(one.encode(plain), codes)
    # By name: pandas' own convert_dtypes takes integers with gaps through float64, which changes 2^53 + 1.
    np.testing.assert_array_equal(one.encode(plain.astype(nullable_dtype(one))), codes)
    np.testing.assert_array_equal(one.encode(plain.astype("category")), codes)
    written = pd.Series([None if value is None else str(value) for value in plain], dtype="str")
    np.testing.assert_array_equal(one.encode(written), codes)


@given(st.lists(columns(), max_size=5, unique_by=lambda one: one.name))
@settings(deadline=None)
def test_toml_and_dict_round_trip(listed: list[Column]) -> None:
    declared = Columns(listed)
    again = Columns.from_dict(declared.to_dict())
    assert again.fingerprint == declared.fingerprint
    assert list(again.values()) == listed
    if listed:
        read = Columns.from_toml_text(declared.to_toml())
        assert read.fingerprint == declared.fingerprint
        assert list(read) == [one.name for one in listed]


@pytest.mark.parametrize("name", ["a.b", 'quo"ted', "new\nline", "tab\t", "back\\slash", "größe", "", "\x7f", " ", "#"])
def test_awkward_names_survive_toml(name: str) -> None:
    if name:
        declared = Columns([column(name=name, description=name)])
        assert Columns.from_toml_text(declared.to_toml()) == declared
    else:
        with pytest.raises(SchemaError, match="name"):
            column(name=name)


@given(st.one_of(st.from_regex(r"[ +\-0-9.eE_xX]{0,9}", fullmatch=True), st.text(max_size=6), finite.map(repr)))
@settings(deadline=None)
def test_text_is_a_number_exactly_when_it_is_a_plain_decimal(cell: str) -> None:
    # Oracle: Python's float, without the forms that it takes beyond plain ASCII decimals.
    try:
        expected = float(cell)
    except ValueError:
        expected = None
    stripped = cell.strip(" \t")
    if not stripped or set(stripped) - set("0123456789+-.eE") or cell.strip() != stripped:
        expected = None
    assert spelled_number(cell) == expected
    try:
        series = pd.Series([cell], dtype="str")
    except UnicodeEncodeError:
        return  # a lone surrogate is no text
    numbers, unreadable = read_numbers(series)
    assert math.isnan(numbers[0]) if expected is None else numbers[0] == expected
    assert unreadable[0] == (expected is None and cell != "")
    as_objects = read_numbers(series.astype(object))
    np.testing.assert_array_equal(as_objects[0], numbers)
    np.testing.assert_array_equal(as_objects[1], unreadable)


@given(
    st.lists(st.sampled_from([0, 1, 2.5, -3]), min_size=1), st.sampled_from(["int64", "float64", "Int64", "boolean"])
)
@settings(max_examples=50, deadline=None)
def test_a_frame_and_its_csv_file_encode_alike(values: list, dtype: str) -> None:
    series = pd.Series([bool(v) for v in values] if dtype == "boolean" else values)
    if dtype in ("int64", "Int64"):
        series = series.round()
    series = series.astype(dtype)
    written = pd.read_csv(io.StringIO(series.to_csv(index=False, header=["x"])), dtype=str, keep_default_na=False)["x"]
    for categories in [(0, 1), (False, True), ("1", "2", "True", "False", "2.5", "1.0")]:
        one = column("categorical", categories=categories, missing=True)
        np.testing.assert_array_equal(one.clipped(series), one.clipped(written))
    one = column(lower=-2, upper=3, missing=True)
    np.testing.assert_array_equal(one.clipped(series), one.clipped(written))


# --- what matches what -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("categories", "cells", "codes"),
    [
        ((1, 2), ["1", "2.0", " 1", "1e0"], [0, 1, 0, 0]),
        (("1", "2"), ["1", "2", 1, 2.0, np.int64(2)], [0, 1, 0, 1, 1]),
        (("1", "1.0"), [1.0, 1, "1.0"], [1, 0, 1]),
        ((0, 1), [True, False, "True", "false", np.True_], [1, 0, 1, 0, 1]),
        ((True, False), ["True", "true", "TRUE", "1", 1, 0.0, False, "0"], [0, 0, 0, 0, 0, 1, 1, 1]),
        (("True", "False"), [True, "False", np.False_], [0, 1, 1]),
        ((0.5, 1.5), [0.5, "1.5", Decimal("0.5")], [0, 1, 0]),
        (("NA", "nan", "ZA"), ["NA", "nan", "ZA"], [0, 1, 2]),
        ((2**53, 2**53 + 1), [2**53 + 1, str(2**53 + 1), float(2**53)], [1, 1, 0]),
    ],
)
def test_cells_match_categories_by_their_declared_type(categories: tuple, cells: list, codes: list[int]) -> None:
    one = column("categorical", categories=categories)
    np.testing.assert_array_equal(one.encode(pd.Series(cells, dtype=object)), codes)


@pytest.mark.parametrize(
    ("categories", "cell"),
    [
        ((1, 2), "one"),
        ((1, 2), 1.5),
        ((1, 2), "1,0"),
        ((True, False), "yes"),
        ((True, False), 2),
        (("a", "b"), "a "),
        (("a", "b"), "A"),
        (("1", "2"), "01"),
        (("1", "0"), True),
        ((1, 2), math.inf),
        (("a", "b"), ["a"]),
        (("a", "b"), pd.Timestamp("2020-01-01")),
    ],
)
def test_other_cells_are_outside(categories: tuple, cell: object) -> None:
    one = column("categorical", categories=categories, missing=True)
    with pytest.raises(DomainError, match="1 cell is none of the declared categories"):
        one.encode(pd.Series([cell], dtype=object))
    assert one.clipped(pd.Series([cell], dtype=object)).tolist() == [-1]


@pytest.mark.parametrize(
    "series",
    [
        pd.Series([1, 0, None], dtype="Int64"),
        pd.Series([True, False, None], dtype="boolean"),
        pd.Series([True, False, None], dtype=object),
        pd.Series(["1", "0", None], dtype="str"),
        pd.Series(["1", "0", ""], dtype="str"),
        pd.Series([1.0, 0.0, np.nan]),
        pd.Series(["true", "false", None], dtype="category"),
        pd.Series([1, 0, None], dtype="int64[pyarrow]"),
        pd.Series([Decimal(1), Decimal(0), Decimal("nan")], dtype=object),
    ],
)
def test_every_dtype_of_a_truth_column(series: pd.Series) -> None:
    one = column("binary", categories=(False, True), missing=True)
    assert one.encode(series).tolist() == [1, 0, -1]
    with pytest.raises(DomainError, match=r"1 cell is empty; .*missing = true"):
        column("binary", categories=(False, True)).encode(series)


def test_whole_numbers_with_gaps_stay_exact_above_2_53() -> None:
    one = column("binary", categories=(2**53, 2**53 + 1), missing=True)
    for dtype in ("Int64", object, "int64[pyarrow]"):
        assert one.encode(pd.Series([2**53 + 1, None, 2**53], dtype=dtype)).tolist() == [1, -1, 0]
    assert one.decode(np.array([1, -1], dtype=np.int32)).dropna().tolist() == [2**53 + 1]


def test_numpy_bools_and_unused_categories() -> None:
    one = column("binary", categories=(False, True))
    assert one.encode(pd.Series(np.array([True, False]))).tolist() == [1, 0]
    unused = pd.Series(pd.Categorical(["a"], categories=["zzz", "a", "b"]))
    assert column("binary").encode(unused).tolist() == [0]


@pytest.mark.parametrize(
    "series",
    [
        pd.Series([3, None], dtype="Int64"),
        pd.Series([3.0, np.nan], dtype="float32"),
        pd.Series([3, None], dtype="double[pyarrow]"),
        pd.Series(["3", ""], dtype="str"),
        pd.Series([Decimal("3.0"), None], dtype=object),
        pd.Series([np.int8(3), pd.NA], dtype=object),
        pd.Series([3, None], dtype="Int64").astype("category"),
        pd.Series(["3.0", None], dtype="category"),
    ],
)
@pytest.mark.parametrize("kind", ["continuous", "count"])
def test_every_dtype_of_a_numeric_column(series: pd.Series, kind: str) -> None:
    codes = column(kind, missing=True).encode(series)
    assert codes.dtype == np.float64
    np.testing.assert_array_equal(codes, [3.0, np.nan])


@pytest.mark.parametrize(
    ("kind", "cells", "count", "words", "clipped"),
    [
        ("continuous", [1.0, 11.0, -3.0], 2, "not a number in \\[0.0, 10.0\\]", [1, 10, 0]),
        ("continuous", [math.inf, -math.inf, 2.0], 2, "not a number in", [10, 0, 2]),
        ("continuous", ["1.5", "abc", ""], 1, "not a number .one has the form 'abc'.", [1.5, np.nan, np.nan]),
        ("continuous", ["1,5"], 1, "not a number", [np.nan]),
        ("continuous", ["inf", "nan", "NA"], 3, "not a number", [np.nan] * 3),
        ("continuous", [True], 1, "not a number", [np.nan]),
        ("continuous", [pd.Timestamp("2020-01-01")], 1, "not a number", [np.nan]),
        ("continuous", [10**400], 1, "not a number in", [10]),
        ("continuous", [1 + 2j], 1, "not a number", [np.nan]),
        ("count", [1.5, 2.0], 1, "not an integer in", [2, 2]),
        ("count", ["11", "3"], 1, "not an integer in", [10, 3]),
    ],
)
def test_numbers_outside(kind: str, cells: list, count: int, words: str, clipped: list) -> None:
    one = column(kind, missing=True)
    with pytest.raises(DomainError, match=f"column 'x': {count} cells? (is|are) {words}"):
        one.encode(pd.Series(cells, dtype=object))
    np.testing.assert_array_equal(one.clipped(pd.Series(cells, dtype=object)), clipped)


def test_a_typed_series_that_is_no_number() -> None:
    for series in [pd.Series([True]), pd.Series(pd.to_datetime(["2020-01-01"])), pd.Series([1 + 2j])]:
        with pytest.raises(DomainError, match="1 cell is not a number"):
            column().encode(series)


def test_a_complaint_quotes_one_value_cut_short() -> None:
    with pytest.raises(DomainError) as caught:
        column("categorical").encode(pd.Series(["secret-one" * 20, "secret-two"]))
    assert "secret-one" in str(caught.value)
    assert "secret-two" not in str(caught.value)
    assert len(str(caught.value)) < 280


def test_decode_refuses_other_codes() -> None:
    for codes in ([2], [-2], [0.5]):
        with pytest.raises(DomainError, match="codes -1 to 1"):
            column("binary").decode(np.array(codes))
    with pytest.raises(DomainError, match="finite"):
        column("count").decode(np.array([np.inf]))


# --- declarations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("lower = 0", DomainError, 'no kind; add the line `kind = "continuous" or .* under \\[columns.x\\]'),
        ('kind = "continuous"\nlower = 0', DomainError, "add the line `upper = .* under \\[columns.x\\]"),
        ('kind = "count"\nupper = 0', DomainError, "add the line `lower = .* under \\[columns.x\\]"),
        ('kind = "ordinal"', DomainError, "add the line `categories = "),
        ('kind = "binary"', DomainError, "add the line `categories = \\[<what counts as 0>"),
        ('kind = "number"\nlower = 0\nupper = 1', SchemaError, "'x': the field 'kind' is 'number'; choose one of"),
        ("kind = 3", SchemaError, "the field 'kind' is 3"),
        ('kind = "continuous"\nlower = "0"\nupper = 1', SchemaError, "'x': the field 'lower' is '0'; write a number"),
        ('kind = "continuous"\nlower = true\nupper = 1', SchemaError, "the field 'lower' is True; write a number"),
        ('kind = "continuous"\nlower = 0\nupper = inf', DomainError, "the field 'upper' is inf; write a finite"),
        ('kind = "continuous"\nlower = nan\nupper = 1', DomainError, "the field 'lower' is nan"),
        ('kind = "continuous"\nlower = 1\nupper = 1', DomainError, "not below upper"),
        ('kind = "continuous"\nlower = -1.7e308\nupper = 1.7e308', DomainError, "overflows"),
        ('kind = "count"\nlower = 0.5\nupper = 1', DomainError, "integer"),
        ('kind = "count"\nlower = 0\nupper = 9007199254740993', DomainError, "2\\^53"),
        ('kind = "count"\nlower = 0\nupper = 1\ncategories = [1]', SchemaError, "'categories' does not belong"),
        ('kind = "binary"\ncategories = [0, 1]\nlower = 0', SchemaError, "'lower' does not belong"),
        ('kind = "binary"\ncategories = [0, 1, 2]', DomainError, "has 3 entries; list exactly two"),
        ('kind = "binary"\ncategories = "no"', SchemaError, "'categories' is not a list"),
        ('kind = "ordinal"\ncategories = []', DomainError, "is empty"),
        ('kind = "ordinal"\ncategories = ["a", "a"]', DomainError, "twice"),
        ('kind = "ordinal"\ncategories = ["a", 1]', SchemaError, "one plain type"),
        ('kind = "ordinal"\ncategories = [1, true]', SchemaError, "one plain type"),
        ('kind = "ordinal"\ncategories = [1979-05-27]', SchemaError, "one plain type"),
        ('kind = "ordinal"\ncategories = ["a", ""]', DomainError, "no cell can hold"),
        ('kind = "ordinal"\ncategories = [inf]', DomainError, "no cell can hold"),
        ('kind = "ordinal"\ncategories = [9223372036854775808]', DomainError, "no cell can hold"),
        (
            'kind = "ordinal"\ncategories = ["a"]\nmissing = "yes"',
            SchemaError,
            "the field 'missing' is 'yes'; write true",
        ),
        ('kind = "ordinal"\ncategories = ["a"]\ndraft = 1', SchemaError, "the field 'draft' is 1"),
        ('kind = "ordinal"\ncategories = ["a"]\ndescription = 1', SchemaError, "'description' is not a text"),
        ('kind = "ordinal"\ncategories = ["a"]\ncuts = [1]', SchemaError, "'cuts' does not belong"),
        ('kind = "count"\nlower = 0\nupper = 9\ncuts = [3, 3]', DomainError, "not increasing"),
        ('kind = "count"\nlower = 0\nupper = 9\nscale = "log"', SchemaError, "'scale' does not belong"),
        ('kind = "continuous"\nlower = 0\nupper = 9\nscale = "ln"', SchemaError, "'scale' is not"),
        ('kind = "continuous"\nlower = -1\nupper = 9\nscale = "log"', SchemaError, "lower is -1"),
        ('kind = "count"\nlower = 0\nupper = 9\ncuts = [0]', DomainError, "not increasing"),
        ('kind = "count"\nlower = 0\nupper = 9\ncuts = []', DomainError, "not increasing"),
        ('kind = "count"\nlower = 0\nupper = 9\ncuts = 3', SchemaError, "'cuts' is not a list"),
        (
            'kind = "count"\nlower = 0\nupper = 9\nmaximum = 9',
            SchemaError,
            "'x': the field 'maximum' is unknown; delete",
        ),
        ('kind = "count"\nname = "y"\nlower = 0\nupper = 9', SchemaError, "a field 'name'"),
        ("[columns.x.y]\nkind = 1", SchemaError, r'write \[columns."x.y"\]'),
        ("kind = ", SchemaError, "not valid TOML"),
    ],
)
def test_a_bad_declaration_names_column_field_and_cure(body: str, error: type[Exception], words: str) -> None:
    with pytest.raises(SchemaError, match=words) as caught:
        Columns.from_toml_text(f"[columns.x]\n{body}\n")
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("document", "words"),
    [("", "declares no column"), ("[tables.x]\n", "unknown section 'tables'"), ("[columns]\nx = 3\n", "a section")],
)
def test_a_document_that_is_no_columns_toml(document: str, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        Columns.from_toml_text(document)


@pytest.mark.parametrize("name", ["roa", '"a.b"'])
def test_a_column_declared_twice(name: str) -> None:
    section = f'[columns.{name}]\nkind = "count"\nlower = 0\nupper = 1\n'
    with pytest.raises(DuplicateColumn, match=f"{name.strip(chr(34))}' twice; delete one"):
        Columns.from_toml_text(section + section)
    with pytest.raises(DuplicateColumn, match="'x' is declared twice"):
        Columns([column(), column("count")])


def test_a_columns_toml_that_cannot_be_read(tmp_path) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        Columns.from_toml(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b'[columns."gr\xf6sse"]')
    with pytest.raises(SourceError, match="UTF-8"):
        Columns.from_toml(tmp_path / "latin.toml")
    (tmp_path / "columns.toml").write_text(Columns([column()]).to_toml(), encoding="utf-8")
    assert Columns.from_toml(tmp_path / "columns.toml") == Columns([column()])


def test_names_numbers_and_texts_of_python_callers() -> None:
    assert Column(name="x", kind="count", lower=np.int64(0), upper=np.float64(3)).upper == 3.0
    assert column(lower=-0.0).to_dict()["lower"].hex() == (0.0).hex()
    assert column("ordinal", categories=(np.int64(1), 2.5)).categories == (1.0, 2.5)
    for name in (3, "", "\ud800"):
        with pytest.raises(SchemaError, match="name"):
            column(name=name)
    with pytest.raises(SchemaError, match="plain values"):
        Columns.from_dict({"columns": {"x": {}}})
    with pytest.raises(SchemaError, match="needs a name"):
        Columns.from_dict({"columns": [{"kind": "count"}]})


# --- the set of columns ----------------------------------------------------------------------------------


def test_columns_are_an_ordered_mapping() -> None:
    declared = Columns([column(name="roa"), column(name="roe"), column("binary", name="sector")])
    assert list(declared) == ["roa", "roe", "sector"]
    assert len(declared) == 3
    assert "roa" in declared
    assert "rob" not in declared
    assert declared.get("rob") is None
    assert list(declared.select(["sector", "roa"])) == ["sector", "roa"]
    with pytest.raises(UnknownColumn, match="no column is called 'rob'; did you mean 'ro"):
        declared["rob"]
    with pytest.raises(UnknownColumn, match="the columns are roa, roe, sector"):
        declared.select(["unlike"])
    with pytest.raises(DuplicateColumn):
        declared.select(["roa", "roa"])


def test_merge_keeps_order_and_refuses_a_second_owner() -> None:
    left, right = Columns([column(name="b")]), Columns([column(name="a")])
    assert list(left.merge(right)) == ["b", "a"]
    with pytest.raises(ColumnConflict, match="'b'"):
        left.merge(Columns([column(name="a"), column(name="b")]))


def test_drafts_need_confirmation() -> None:
    Columns([column()]).confirmed()
    with pytest.raises(DraftDomain, match=r"'a', 'b'.*delete the line `draft = true`"):
        Columns([column(name="a", draft=True), column(name="b", draft=True), column(name="c")]).confirmed()


def test_the_fingerprint_tells_declarations_apart() -> None:
    variants = [
        Columns([column("binary", categories=categories)])
        for categories in [(0, 1), (1, 0), (0.0, 1.0), (False, True), ("0", "1")]
    ]
    variants += [Columns([]), Columns([column()]), Columns([column(upper=10.5)]), Columns([column(missing=True)])]
    variants += [Columns([column(name="a"), column(name="b")]), Columns([column(name="b"), column(name="a")])]
    assert len({one.fingerprint for one in variants}) == len(variants)
    assert len(set(variants)) == len(variants)
    assert Columns([column(lower=0)]) == Columns([column(lower=0.0)])
    # The canonical form is part of the wire: pinned by hand.
    assert variants[0].to_dict() == {"columns": [{"name": "x", "kind": "binary", "categories": [0, 1]}]}


@pytest.mark.parametrize("name", ["1", "const", "present at court", "filled age"])
def test_a_name_that_results_need_is_refused(name: str) -> None:
    """A column of numbers without names may be called 1, and its products were taken for those of the constant."""
    with pytest.raises(SchemaError, match="rename it"):
        Column(name=name, kind="count", lower=0, upper=1)
