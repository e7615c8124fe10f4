"""Options as text: what is typed after a flag of the command line or into a form, and back.

A number, a name or a choice is itself; `none` is None where the option may be None. A list has commas between, and may
be repeated; a name with a comma is in double quotes, as in a CSV file. In a list of lists each repetition is one list.
A table is NAME=VALUE, repeated. What is none of these, and any list or table, may be JSON.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from colonnade.codec import bare, plain
from colonnade.errors import BadArguments

if TYPE_CHECKING:
    from colonnade.federation.options import Declared


def members(hint: Any) -> tuple[Any, ...]:
    """The types that an option may have."""
    hint = bare(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for member in typing.get_args(hint) for kind in members(member))
    return (hint,)


def _is_list(kind: Any) -> bool:
    return typing.get_origin(kind) in (tuple, list)


def _is_table(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def repeated(hint: Any) -> bool:
    """Whether the flag may be given more than once."""
    return any(_is_list(kind) or _is_table(kind) for kind in members(hint))


def form_of(declared: Declared) -> str:
    """What a value looks like, for the help."""
    if declared.option.form or declared.hint is bool:
        return declared.option.form
    return "|".join(dict.fromkeys(_form(kind) for kind in members(declared.hint) if kind is not type(None)))


def _form(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "|".join(str(value) for value in typing.get_args(kind))
    if _is_list(kind):
        inner = members(typing.get_args(kind)[0])[0]
        return _form(inner) if _is_list(inner) else f"{'NAME' if inner is str else _form(inner)},..."
    if _is_table(kind):
        return f"NAME={_form(members(typing.get_args(kind)[1])[0])}"
    return {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: "true|false"}.get(kind, "JSON")


def read(declared: Declared, stated: str | list[str] | bool) -> Any:
    """The value that the texts after a flag state; `BadArguments` if they state none of the option's type."""
    if isinstance(stated, bool):
        return stated
    texts = [stated] if isinstance(stated, str) else list(stated)

    def rank(kind: Any) -> int:
        """Which type is tried first: text is always one, and a list of texts nearly always."""
        if kind is str:
            return 2 if len(texts) == 1 and "," not in texts[0] else 4
        return 3 if _is_list(kind) else 1 if kind is type(None) else 0

    for kind in sorted(members(declared.hint), key=rank):
        with contextlib.suppress(ValueError):
            return _read(kind, texts)
    raise BadArguments(f"{declared.flag} {' '.join(texts)!r} is not {form_of(declared)}.")


def _read(kind: Any, texts: list[str]) -> Any:
    """As one type, or ValueError."""
    inner = typing.get_args(kind)
    if _is_list(kind) or _is_table(kind):
        if len(texts) == 1 and texts[0].lstrip()[:1] in ("[", "{"):
            return json.loads(texts[0])
        if _is_table(kind):
            pairs = [text.rpartition("=") for text in texts]
            if not all(name for name, _, _ in pairs):
                raise ValueError("a table has a name before each value")
            return {_read_item(inner[0], name): _read_item(inner[1], value) for name, _, value in pairs}
        if any(map(_is_list, members(inner[0]))):
            return tuple(_read_item(inner[0], text) for text in texts)
        items = [item for text in texts for item in _items(text)]
        kinds = inner if Ellipsis not in inner and len(inner) == len(items) else (inner[0],) * len(items)
        return tuple(_read_item(hint, item) for hint, item in zip(kinds, items, strict=True))
    (text,) = texts
    values = inner if typing.get_origin(kind) is Literal else {bool: (True, False), type(None): (None,)}.get(kind)
    if values is None:
        return kind(text) if kind in (int, float, str) else json.loads(text)
    choices = {spell(value)[0]: value for value in values}
    if text not in choices:
        raise ValueError(f"not one of {', '.join(choices)}")
    return choices[text]


def _items(text: str) -> list[str]:
    """What commas separate, outside of double quotes."""
    try:
        return [item.strip() for row in csv.reader([text], skipinitialspace=True) for item in row] or [""]
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _row(items: list[str]) -> str:
    """The text that `_items` reads as these."""
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow(items)
    return row.getvalue()


def _read_item(hint: Any, text: str) -> Any:
    """As the first type of the hint that fits, or ValueError."""
    for kind in members(hint):
        with contextlib.suppress(ValueError):
            return _read(kind, [text])
    raise ValueError("of no type that it may have")


def spell(value: Any) -> list[str]:
    """The texts that `read` turns into `value`."""
    if value is None:
        return ["none"]
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, str | int | float):
        return [str(value)]
    if isinstance(value, tuple | list) and value and all(isinstance(item, tuple | list) for item in value):
        return [text for item in value for text in spell(item)]
    if isinstance(value, tuple | list) and value and all(isinstance(item, str | int | float) for item in value):
        return [_row([text for item in value for text in spell(item)])]
    if isinstance(value, Mapping) and value and all(isinstance(item, int | float) for item in value.values()):
        return [f"{name}={number}" for name, number in value.items()]
    return [json.dumps(plain(value))]
