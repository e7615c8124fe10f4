"""columns.toml: plain values from text and back. What the values mean is the business of `Column`.

```toml
[columns.roa]
kind = "continuous"
lower = -1.0
upper = 1.0
```
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from colonnade.errors import DuplicateColumn, SchemaError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def parse(text: str, *, where: str = "columns.toml") -> list[dict[str, Any]]:
    """The columns of a columns.toml in their order, each as its fields and its name."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        twice = re.search(r"Cannot declare \('columns', (.*)\) twice", str(error))
        if twice:
            name = twice[1].rstrip(",")
            raise DuplicateColumn(f"{where} has the column {name} twice; delete one of the two. ({error})") from None
        raise SchemaError(f"{where} is not valid TOML; correct it where the parser stopped: {error}.") from None
    for name in document:
        if name != "columns":
            raise SchemaError(f"{where} has an unknown section {name!r}; every section is called [columns.<name>].")
    columns = document.get("columns", {})
    if not isinstance(columns, dict) or not columns:
        raise SchemaError(f"{where} declares no column; add a section [columns.<name>] for each.")
    for name, fields in columns.items():
        if not isinstance(fields, dict):
            raise SchemaError(
                f"{where}: {name!r} is a value under [columns]; make it a section [columns.{key_text(name)}]."
            )
        if "name" in fields:
            raise SchemaError(
                f"{where}: column {name!r} has a field 'name'; delete it, the section's title is the name."
            )
    return [{"name": name, **fields} for name, fields in columns.items()]


def write(columns: Iterable[Mapping[str, Any]], *, comments: Mapping[str, str] | None = None) -> str:
    """The text of a columns.toml, with an optional comment under a column's title."""
    sections = []
    for column in columns:
        lines = [f"[columns.{key_text(column['name'])}]"]
        if comments and column["name"] in comments:
            lines.append(f"# {comments[column['name']]}")
        for field, value in column.items():
            if column["kind"] == "count" and field in ("lower", "upper"):
                value = int(value)
            if field != "name":
                lines.append(f"{field} = {_value_text(value)}")
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def key_text(name: str) -> str:
    """A name as a TOML key: bare where TOML allows it, else quoted."""
    return name if _BARE.fullmatch(name) else _value_text(name)


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(_value_text(item) for item in value)}]"
    return repr(value)
