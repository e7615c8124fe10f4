"""Typed values from plain data and back: what options, layouts, TOML files and stored views have in common.

`convert` reads a value as a type hint says and refuses everything else in one sentence; a value that already has the
type comes back as the same object. `plain` is its inverse: dicts, lists, strings, numbers, booleans and None.
"""

from __future__ import annotations

import difflib
import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from colonnade.errors import BadArguments

T = TypeVar("T")

if TYPE_CHECKING:
    ListOf = Sequence
    """What an option is that takes a list: type checkers let any sequence pass, `convert` makes it a tuple."""
else:

    class ListOf:
        def __class_getitem__(cls, kind: Any) -> Any:
            return tuple[kind, ...]


TAG = "is"
"""The key under which a member of a union of dataclasses says which one it is."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, for a message; empty if none is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


@functools.cache
def hints_of(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, annotations included."""
    return typing.get_type_hints(kind, include_extras=True)


def bare(hint: Any) -> Any:
    """A type without its annotations."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def convert(value: Any, hint: Any, where: str, *, exact: bool = False) -> Any:
    """`value` as the type `hint`, or `BadArguments` that names `where` it stands.

    A list passes for a tuple and numpy's numbers for Python's, unless `exact`: then a value must be what JSON, TOML and
    the wire give. An integer passes as a number, and a truth value never does.
    """
    hint = bare(hint)
    if hint is Any or hint is object:
        return value
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _member(value, inner, hint, where, exact)
    if origin is Literal:
        for allowed in inner:
            if type(value) is type(allowed) and value == allowed:
                return value
        raise _refused(value, hint, where)
    if origin in (tuple, list):
        return _sequence(value, origin, inner, where, exact)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(value, inner, hint, where, exact)
    if isinstance(hint, type) and is_dataclass(hint):
        return value if isinstance(value, hint) else record(hint, value, where)
    if hint in (int, float):
        return _number(value, hint, where, exact)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is None or hint is type(None):
        if value is None:
            return None
    elif isinstance(value, origin or hint):  # of an array, the class alone
        return value
    raise _refused(value, hint, where)


def _refused(value: Any, hint: Any, where: str) -> BadArguments:
    text = repr(value)
    return BadArguments(f"{where} must be {words(hint)}, not {text if len(text) <= 80 else f'{text[:77]}...'}.")


def _number(value: Any, hint: Any, where: str, exact: bool) -> Any:
    kinds: tuple[type, ...] = (Integral,) if hint is int else (Real,)
    if exact:
        kinds = (int,) if hint is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise _refused(value, hint, where)
    return value if type(value) is hint else hint(value)


def _member(value: Any, inner: tuple[Any, ...], hint: Any, where: str, exact: bool) -> Any:
    """The first member of a union that fits; a tagged record says which one it is."""
    if isinstance(value, Mapping) and TAG in value:
        for kind in inner:
            if isinstance(bare(kind), type) and bare(kind).__name__ == value[TAG]:
                untagged = {name: part for name, part in value.items() if name != TAG}
                return convert(untagged, kind, where, exact=exact)
    refusals: list[BadArguments] = []
    for kind in inner:
        try:
            return convert(value, kind, where, exact=exact)
        except BadArguments as refusal:
            if bare(kind) is not type(None):
                refusals.append(refusal)
    # What the only real type says is clearer than the union's name.
    raise refusals[0] if len(refusals) == 1 else _refused(value, hint, where)


def _sequence(value: Any, origin: type, inner: tuple[Any, ...], where: str, exact: bool) -> Any:
    if isinstance(value, str):
        nested = typing.get_origin(bare(inner[0])) in (tuple, list) if inner else False
        raise BadArguments(f"{where} is a list; write {[[value]] if nested else [value]!r}.")
    if not exact and hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list if exact else Sequence) or isinstance(value, bytes):
        raise BadArguments(f"{where} is a list, not {type(value).__name__}.")
    if origin is tuple and (len(inner) != 2 or inner[1] is not Ellipsis):
        if len(value) != len(inner):
            raise BadArguments(f"{where} has {len(inner)} entries, not {len(value)}.")
        items = [convert(item, kind, where, exact=exact) for item, kind in zip(value, inner, strict=True)]
    else:
        nested = typing.get_origin(bare(inner[0])) in (tuple, list)
        items = [convert(item, inner[0], f"each of {where}" if nested else where, exact=exact) for item in value]
    same = type(value) is origin and all(new is old for new, old in zip(items, value, strict=True))
    return value if same else origin(items)


def _mapping(value: Any, inner: tuple[Any, ...], hint: Any, where: str, exact: bool) -> Any:
    if not isinstance(value, dict if exact else Mapping):
        raise _refused(value, hint, where)
    items = {
        convert(key, inner[0], where, exact=exact): convert(item, inner[1], f"{key!r} in {where}", exact=exact)
        for key, item in value.items()
    }
    same = set(items) == set(value) and all(items[key] is item for key, item in value.items())
    return value if same else items


def record(kind: type[T], plain: Any, where: str, *, cure: str = "") -> T:
    """A dataclass from a mapping of its fields; an unknown or a missing one is named, with the nearest known name."""
    if not isinstance(plain, Mapping):
        raise BadArguments(f"{where} must be a {kind.__name__} or a table of its fields, not {plain!r}.")
    known = {field.name: field for field in fields(kind) if field.init}  # type: ignore[arg-type]
    unknown = [name for name in plain if name not in known]
    if unknown:
        raise BadArguments(
            f"{where} has no field {unknown[0]!r}; it has {', '.join(known)}.{nearest(str(unknown[0]), known)}{cure}"
        )
    absent = [name for name, field in known.items() if required(field) and name not in plain]
    if absent:
        raise BadArguments(f"{where} lacks {', '.join(absent)}.{cure}")
    hints = hints_of(kind)  # type: ignore[arg-type]
    return kind(**{name: convert(value, hints[name], f"{name} in {where}") for name, value in plain.items()})


def plain(value: Any) -> Any:
    """Plain data for JSON, TOML and the wire; a dataclass becomes the mapping of its fields."""
    if isinstance(value, type) or value is None or isinstance(value, (str, bool, int, float, bytes)):
        return value
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return value


def tagged(value: Any) -> dict[str, Any]:
    """A dataclass as plain data that says which one it is, for fields that may hold several."""
    return {TAG: type(value).__name__, **plain(value)}


def words(hint: Any) -> str:
    """A type in the words of an error message and of the documentation."""
    hint = bare(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(words(kind) for kind in inner)
    if origin is Literal:
        return _listed([repr(allowed) for allowed in inner])
    if origin in (tuple, list):
        return f"a list of {_several(words(inner[0]))}" if inner else "a list"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a table {{{words(inner[0])}: {words(inner[1])}}}"
    names: dict[Any, str] = {int: "an integer", float: "a number", str: "a text", bool: "true or false", Path: "a path"}
    names[type(None)] = "None"
    return names.get(hint, getattr(origin or hint, "__name__", str(hint)))


def _several(kind: str) -> str:
    """The plural of what `words` says; a choice of values has none."""
    article, _, noun = kind.partition(" ")
    if article not in ("a", "an"):
        return kind
    first, space, tail = noun.partition(" ")
    return f"{first}s{space}{tail}"


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"
