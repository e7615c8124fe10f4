"""columns.toml: plain values from text and back. What the values mean is the business of `data.column`.

```toml
[columns.roa]
kind = "continuous"
lower = -1.0
upper = 1.0
```
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from colonnade.codec import nearest
from colonnade.data.encoding import is_text, quoted_text
from colonnade.errors import DuplicateColumn, SchemaError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def parse_columns(text: str, *, where: str = "columns.toml") -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The columns of a columns.toml in their order, each as its fields and its name; and what to ignore, with reasons.

    A column is a section [columns.NAME], or [[columns]] with a field `name`.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        twice = re.search(r"Cannot declare \('columns', (.*)\) twice", str(error))
        if twice:
            name = twice[1].rstrip(",")
            raise DuplicateColumn(f"{where} has the column {name} twice; delete one of the two. ({error})") from None
        raise SchemaError(f"{where} is not valid TOML; correct it where the parser stopped: {error}.") from None
    for name in document:
        if name not in ("columns", "ignore"):
            raise SchemaError(
                f"{where} has an unknown section {name!r}; it has [columns.<name>] for each column, and `ignore`."
                f"{nearest(name, ('columns', 'ignore'))}"
            )
    columns = document.get("columns", {})
    if not isinstance(columns, dict | list) or not columns:
        raise SchemaError(f"{where} declares no column; add a section [columns.<name>] for each.")
    listed = _listed(columns, where) if isinstance(columns, list) else _titled(columns, where)
    ignore = _ignored(document.get("ignore", ()), where)
    for stated in listed:
        if stated["name"] in ignore:
            raise SchemaError(f"{where} declares {stated['name']!r} and ignores it; delete one of the two.")
    return listed, ignore


def _titled(columns: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    for name, stated in columns.items():
        if not isinstance(stated, dict):
            raise SchemaError(
                f"{where}: {name!r} is a value under [columns]; make it a section [columns.{key_text(name)}]."
            )
        if "name" in stated:
            raise SchemaError(
                f"{where}: column {name!r} has a field 'name'; delete it, the section's title is the name."
            )
    return [{"name": name, **stated} for name, stated in columns.items()]


def _listed(columns: list[Any], where: str) -> list[dict[str, Any]]:
    for stated in columns:
        if not isinstance(stated, dict) or not is_text(stated.get("name")):
            raise SchemaError(
                f"{where}: a section [[columns]] has no name; add `name = ...`, or write [columns.<name>]."
            )
    return columns


def _ignored(stated: Any, where: str) -> dict[str, str]:
    names = dict(stated) if isinstance(stated, dict) else dict.fromkeys(stated, "") if _is_list(stated) else None
    if names is None or not all(isinstance(reason, str) for reason in names.values()):
        raise SchemaError(
            f'{where}: ignore is a list of names, ignore = ["note"], or a section [ignore] with a reason for each, '
            'note = "free text".'
        )
    return names


def _is_list(stated: Any) -> bool:
    return isinstance(stated, list | tuple) and all(isinstance(name, str) for name in stated)


def columns_text(
    columns: Iterable[Mapping[str, Any]],
    *,
    comments: Mapping[str, str] | None = None,
    ignore: Mapping[str, str] | None = None,
) -> str:
    """The text of a columns.toml, with an optional comment under a column's title."""
    sections = []
    if ignore:
        reasons = "".join(f"{key_text(name)} = {value_text(reason)}\n" for name, reason in ignore.items())
        sections.append(f"[ignore]\n{reasons}")
    for column in columns:
        lines = [f"[columns.{key_text(column['name'])}]"]
        if comments and column["name"] in comments:
            lines.append(f"# {comments[column['name']]}")
        for field, value in column.items():
            if column["kind"] == "count" and field in ("lower", "upper"):
                value = int(value)
            if field != "name":
                lines.append(f"{field} = {value_text(value)}")
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def key_text(name: str) -> str:
    """A name as a TOML key: bare where TOML allows it, else quoted."""
    return name if _BARE.fullmatch(name) else value_text(name)


def value_text(value: object) -> str:
    """A plain value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted_text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(value_text(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key_text(name)} = {value_text(item)}' for name, item in value.items())} }}"
    return repr(value)
