"""A job.toml: one job as a file that can be read, kept and run again. It names a method and its options.

method = "pca"
name = "spring"              # of the run folder; left out, one is made up

[options]                    # as the method's class takes them
epsilon = 1.0
n_components = 3
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.codec import nearest
from colonnade.errors import BadArguments, SchemaError
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.method import Method


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """What the file says; `method` makes it a method."""

    path: Path
    wanted: str
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None

    @classmethod
    def from_toml(cls, path: Path) -> JobFile:
        try:
            plain = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SchemaError(f"{path} cannot be read ({error}); see docs/command-line.md for an example.") from error
        unknown = sorted(set(plain) - {"method", "name", "options"})
        if unknown:
            raise SchemaError(f"{path} has a field {unknown[0]!r}; a job has method, name and [options].")
        kinds = {"method": str, "name": str, "options": dict}
        wrong = [name for name, kind in kinds.items() if name in plain and not isinstance(plain[name], kind)]
        if "method" not in plain or wrong:
            raise SchemaError(f'{path} must have method = "NAME"; name is text too, and options is a table.')
        if Path(plain.get("name", "x")).name != plain.get("name", "x"):
            raise SchemaError(f"name in {path} is the name of a folder in runs, not a path: {plain['name']!r}.")
        return cls(path=path, wanted=plain["method"], options=plain.get("options", {}), name=plain.get("name"))

    def method(self) -> Method[Any]:
        """The method with these options, and with its own defaults for the others."""
        if self.wanted not in CATALOGUE.names:
            raise SchemaError(
                f"{self.path} names method {self.wanted!r}; this installation has {', '.join(CATALOGUE.names)}."
                f"{nearest(self.wanted, CATALOGUE.names)}"
            )
        try:
            return CATALOGUE.make(self.wanted, self.options)
        except BadArguments as error:
            raise BadArguments(f"{self.path}, [options]: {error}") from error
