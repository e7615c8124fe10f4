"""Which methods there are: one table from names to classes, each imported when it is first used.

Colonnade's own methods are entered by `colonnade.catalogue`, which stands above all of them; other packages add theirs
through the entry point group `colonnade.methods`. Nothing in this package names a method. A party runs a method only
if it is one of Colonnade's own, or if the party's configuration names the package that brings it (`packages`): the
papers' own algorithms are such a package too, `colonnade.papers`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.codec import nearest
from colonnade.errors import NotApproved, RunError

if TYPE_CHECKING:
    from colonnade.federation.method import Method

GROUP = "colonnade.methods"
"""The entry points through which other packages add methods: name = "package.module:Class"."""

PAPERS = "colonnade.papers"
"""The wing of the papers' own algorithms, which a party runs only if its configuration says so."""


@dataclass(frozen=True)
class Entry:
    """Where a method's class is."""

    name: str
    module: str
    cls: str

    @property
    def own(self) -> bool:
        """Colonnade's own, and not in the papers' wing: every party has it."""
        return self.module.startswith("colonnade.") and not within(self.module, PAPERS)

    def load(self) -> type[Method[Any]]:
        found: type[Method[Any]] = getattr(importlib.import_module(self.module), self.cls)
        return found

    def purpose(self) -> str:
        """The first line of the class's docstring, read without importing what the method needs."""
        found = importlib.util.find_spec(self.module)
        if found is None or found.origin is None:
            return self.name
        for node in ast.parse(Path(found.origin).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == self.cls:
                return (ast.get_docstring(node) or self.name).partition("\n")[0]
        return self.name


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


class Catalogue:
    """Name -> class of every method that this installation has."""

    def __init__(self) -> None:
        self._own: dict[str, Entry] = {}

    def enter(self, table: Mapping[str, str]) -> None:
        """Add methods: {name: "module:Class"}."""
        for name, target in table.items():
            module, _, cls = target.partition(":")
            self._own[name] = Entry(name, module, cls)

    def entries(self) -> dict[str, Entry]:
        """All methods by name; a package cannot take the name of one of Colonnade's own."""
        return {**_plugged_in(), **self._own}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.entries())

    def entry(self, name: str) -> Entry:
        known = self._own.get(name) or self.entries().get(name)
        if known is None:
            raise RunError(
                f"this installation has no method {name!r}; it has {', '.join(self.entries())}."
                f"{nearest(name, self.entries())}"
            )
        return known

    def load(self, name: str) -> type[Method[Any]]:
        """The class of that name."""
        return self.entry(name).load()

    def make(self, name: str, options: Mapping[str, Any]) -> Method[Any]:
        """The method of that name with these options, and its own defaults for the others."""
        return self.load(name).from_options(options)

    def permit(self, name: str, packages: Iterable[str]) -> Entry:
        """The entry, if a party whose configuration names `packages` runs it."""
        found = self.entry(name)
        if not found.own and not any(within(found.module, package) for package in packages):
            package = PAPERS if within(found.module, PAPERS) else found.module.partition(".")[0]
            raise NotApproved(
                f"method {name!r} comes from {package}, which this party's configuration does not name; add"
                f' packages = ["{package}"] to it to run such methods.'
            )
        return found


@functools.cache
def _plugged_in() -> dict[str, Entry]:
    found = importlib.metadata.entry_points(group=GROUP)
    return {point.name: Entry(point.name, point.module, point.attr) for point in found}


CATALOGUE = Catalogue()
