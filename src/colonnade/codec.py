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
from typing import Annotated, Any, Literal, TypeVar

from colonnade.errors import BadArguments

T = TypeVar("T")

TAG = "is"
"""The key under which a member of a union of dataclasses says which one it is."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, for a message; empty if none is near."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, annotations included."""
    return typing.get_type_hints(kind, include_extras=True)


def bare(hint: Any) -> Any:
    """A type without its annotations."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint`, or `BadArguments` that names `where` it stands."""
    hint = bare(hint)
    if hint is Any or hint is object:
        return value
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _member(value, inner, hint, where)
    if origin is Literal:
        for allowed in inner:
            if type(value) is type(allowed) and value == allowed:
                return value
        raise BadArguments(f"{where} must be {words(hint)}, not {value!r}.")
    if origin in (tuple, list):
        return _sequence(value, origin, inner, where)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return _mapping(value, inner, hint, where)
    if isinstance(hint, type) and is_dataclass(hint):
        return value if isinstance(value, hint) else record(hint, value, where)
    if hint is float and isinstance(value, Real) and not isinstance(value, bool):
        return value if type(value) is float else float(value)
    if hint is int and isinstance(value, Integral) and not isinstance(value, bool):
        return value if type(value) is int else int(value)
    if hint is type(None) and value is None:
        return None
    if isinstance(hint, type) and hint not in (int, float, type(None)) and isinstance(value, hint):
        return value
    raise BadArguments(f"{where} must be {words(hint)}, not {value!r}.")


def _member(value: Any, inner: tuple[Any, ...], hint: Any, where: str) -> Any:
    """The first member of a union that fits; a tagged record says which one it is."""
    if isinstance(value, Mapping) and TAG in value:
        for kind in inner:
            if isinstance(bare(kind), type) and bare(kind).__name__ == value[TAG]:
                return convert({name: one for name, one in value.items() if name != TAG}, kind, where)
    refusal: BadArguments | None = None
    for kind in inner:
        try:
            return convert(value, kind, where)
        except BadArguments as error:
            if bare(kind) is not type(None):
                refusal = refusal or error
    many = len([kind for kind in inner if bare(kind) is not type(None)]) > 1
    if refusal is not None and not many:  # what the only real type says is clearer than the union's name
        raise refusal
    raise BadArguments(f"{where} must be {words(hint)}, not {value!r}.")


def _sequence(value: Any, origin: type, inner: tuple[Any, ...], where: str) -> Any:
    if isinstance(value, str):
        raise BadArguments(f"{where} is a list; write {where}=({value!r},).")
    if isinstance(value, Mapping) or not isinstance(value, Sequence):
        if not hasattr(value, "tolist"):
            raise BadArguments(f"{where} is a list, not {value!r}.")
        value = value.tolist()
    if origin is tuple and (len(inner) != 2 or inner[1] is not Ellipsis):
        if len(value) != len(inner):
            raise BadArguments(f"{where} has {len(inner)} entries, not {len(value)}.")
        made: Sequence[Any] = [convert(one, kind, where) for one, kind in zip(value, inner, strict=True)]
    else:
        made = [convert(one, inner[0], where) for one in value]
    same = type(value) is origin and all(new is old for new, old in zip(made, value, strict=True))
    return value if same else origin(made)


def _mapping(value: Any, inner: tuple[Any, ...], hint: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise BadArguments(f"{where} must be {words(hint)}, not {value!r}.")
    made = {convert(key, inner[0], where): convert(one, inner[1], f"{where}[{key!r}]") for key, one in value.items()}
    return value if all(made[key] is one for key, one in value.items()) else made


def record(kind: type[T], plain: Any, where: str, *, cure: str = "") -> T:
    """A dataclass from a mapping of its fields; an unknown or a missing one is named, with the nearest known name."""
    if not isinstance(plain, Mapping):
        raise BadArguments(f"{where} must be a table of {kind.__name__}, not {plain!r}.")
    known = {one.name: one for one in fields(kind) if one.init}  # type: ignore[arg-type]
    unknown = [name for name in plain if name not in known]
    if unknown:
        raise BadArguments(
            f"{where} has no field {unknown[0]!r}; it has {', '.join(known)}.{nearest(str(unknown[0]), known)}{cure}"
        )
    absent = [name for name, one in known.items() if required(one) and name not in plain]
    if absent:
        raise BadArguments(f"{where} lacks {', '.join(absent)}.{cure}")
    hints = hints_of(kind)
    return kind(**{name: convert(one, hints[name], f"{name} in {where}") for name, one in plain.items()})


def plain(value: Any) -> Any:
    """Plain data for JSON, TOML and the wire; a dataclass becomes the mapping of its fields."""
    if isinstance(value, type) or value is None or isinstance(value, (str, bool, int, float, bytes)):
        return value
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value) if one.init}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Iterable):
        return [plain(one) for one in value]
    return value


def tagged(value: Any) -> dict[str, Any]:
    """A dataclass as plain data that says which one it is, for fields that may hold several."""
    return {TAG: type(value).__name__, **plain(value)}


def words(hint: Any) -> str:
    """A type in the words of an error message and of the documentation."""
    hint = bare(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(words(one) for one in inner)
    if origin is Literal:
        return _listed([repr(one) for one in inner])
    if origin in (tuple, list):
        return f"a list of {words(inner[0]).removeprefix('a ').removeprefix('an ')}s" if inner else "a list"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a table {{{words(inner[0])}: {words(inner[1])}}}"
    names: dict[Any, str] = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
    names[type(None)] = "None"
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} or {items[-1]}"
