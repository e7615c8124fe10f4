"""Is a declared domain sound? Every refusal names the column, the field and the cure, down to the line to add."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal, NoReturn, get_args

import numpy as np

from colonnade.data.columns_toml import key_text
from colonnade.data.encoding import Category, as_float
from colonnade.errors import DomainError, SchemaError

Kind = Literal["continuous", "count", "ordinal", "binary", "categorical"]
KINDS: tuple[str, ...] = get_args(Kind)

EXACT = 2**53  # whole numbers up to here are exact in float64


def refuse(name: str, field: str, fault: str, cure: str, error: type[SchemaError] = SchemaError) -> NoReturn:
    raise error(f"column {name!r}: the field {field!r} {fault}; {cure}.")


def undeclared(name: str, what: str, line: str) -> NoReturn:
    """A part of the declaration is not there: say which line to add, and where."""
    place = f"[columns.{key_text(name)}] in columns.toml"
    raise DomainError(f"column {name!r} has no {what}; add the line `{line}` under {place}.")


def bounds(name: str, kind: str, lower: object, upper: object) -> tuple[float, float]:
    """Both bounds as numbers: finite, increasing, and whole for a count."""
    if lower is None:
        undeclared(name, "bound 'lower'", "lower = <the smallest value that is possible>")
    if upper is None:
        undeclared(name, "bound 'upper'", "upper = <the largest value that is possible>")
    low, high = _number(name, "lower", lower), _number(name, "upper", upper)
    for field, value, number in (("lower", lower, low), ("upper", upper, high)):
        if kind == "count" and (number != value or not number.is_integer() or abs(number) > EXACT):
            refuse(name, field, f"is {value!r}", "a count needs a whole number, at most 2^53 in size", DomainError)
    if not low < high:
        refuse(name, "lower", f"is {low:g}, not below upper = {high:g}", "widen the bounds", DomainError)
    if not math.isfinite(high - low):
        refuse(name, "upper", "is so far from lower that the range overflows", "narrow the bounds", DomainError)
    return low, high


def cuts(name: str, given: object, lower: float, upper: float) -> tuple[float, ...]:
    """Inner cut points: increasing, strictly inside the bounds."""
    if not isinstance(given, tuple):
        refuse(name, "cuts", "is not a list of numbers", "write for example `cuts = [0.0, 0.5]`")
    inner = tuple(_number(name, "cuts", cut) for cut in given)
    if not inner or any(left >= right for left, right in itertools.pairwise((lower, *inner, upper))):
        cure = f"list increasing numbers strictly between {lower:g} and {upper:g}, or delete the line"
        refuse(name, "cuts", "is not increasing inside the bounds", cure, DomainError)
    return inner


def categories(name: str, kind: str, given: object) -> tuple[Category, ...]:
    """Distinct categories of one type; exactly two for a binary column."""
    if given is None:
        example = "[<what counts as 0>, <what counts as 1>]" if kind == "binary" else '["<first>", "<second>"]'
        undeclared(name, "categories", f"categories = {example}")
    if not isinstance(given, tuple):
        refuse(name, "categories", "is not a list", 'write for example `categories = ["no", "yes"]`')
    if not given:
        refuse(name, "categories", "is empty", "list at least one category", DomainError)
    plain = tuple(value.item() if isinstance(value, np.generic) else value for value in given)
    types = {type(value) for value in plain}
    if types == {int, float} or types == {float}:
        plain = tuple(as_float(value) + 0.0 for value in plain)  # -0.0 becomes 0.0: equal domains, equal fingerprints
    elif len(types) > 1 or not types <= {str, int, bool}:
        cure = "write only texts, only numbers, or only true and false"
        refuse(name, "categories", "does not hold values of one plain type", cure)
    if len(set(plain)) < len(plain):
        refuse(name, "categories", "names a category twice", "delete the repetition", DomainError)
    if kind == "binary" and len(plain) != 2:
        refuse(name, "categories", f"has {len(plain)} entries", "list exactly two: first 0, then 1", DomainError)
    holds: dict[type, Callable[[Any], bool]] = {str: is_text, float: math.isfinite}
    if not all(holds.get(type(value), _fits)(value) for value in plain):
        cure = "leave out empty texts (`missing = true` allows empty cells), infinity and integers beyond 64 bits"
        refuse(name, "categories", "has an entry that no cell can hold", cure, DomainError)
    return plain


def is_text(value: object) -> bool:
    """A text that is not empty and is valid Unicode: a lone surrogate cannot be written to a file."""
    if not isinstance(value, str):
        return False
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _number(name: str, field: str, value: object) -> float:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(name, field, f"is {value!r}", "write a number, without quotes")
    number = as_float(value) + 0.0  # -0.0 becomes 0.0
    if not math.isfinite(number):
        refuse(name, field, f"is {value!r}", "write a finite number", DomainError)
    return number
