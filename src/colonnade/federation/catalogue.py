"""Which methods there are: one table from names to classes, each imported when it is first used.

Colonnade's own methods are entered by `colonnade.catalogue`, which stands above all of them; other packages add theirs
through the entry point group `colonnade.methods`. Nothing in this package names a method. A party runs a method or a
step only if it is one of Colonnade's own, or if the party's configuration names the package that brings it
(`packages`). The papers' own algorithms are such a package too: Colonnade's, and optional.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.codec import nearest
from colonnade.durable import check_name
from colonnade.errors import PackageNotNamed, RunError, SchemaError, UnknownMethod

if TYPE_CHECKING:
    from colonnade.federation.method import Method

GROUP = "colonnade.methods"
"""The entry points through which other packages add methods: name = "package.module:Class"."""

LONGEST = 32
"""Characters of a method's name, with which its jobs and their folders begin."""
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Entry:
    """Where a method's class is. `package`: what a party must name to run it; empty, every party has it."""

    name: str
    module: str
    cls: str
    package: str = ""

    @property
    def own(self) -> bool:
        """Whether every party has it."""
        return not self.package

    def load(self) -> type[Method[Any]]:
        check_name(self.name, f"a method of {self.package or self.module}", error=UnknownMethod, longest=LONGEST)
        cls: type[Method[Any]] = getattr(importlib.import_module(self.module), self.cls)
        return cls

    def purpose(self) -> str:
        """The first line of the class's docstring, read without importing the module or its packages."""
        file = _place_of(self.module)
        if file is None or not file.is_file():
            return self.name
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == self.cls:
                return (ast.get_docstring(node) or self.name).partition("\n")[0]
        return self.name


def within(module: str, package: str) -> bool:
    """Whether a module is a package or in it."""
    return module == package or module.startswith(f"{package}.")


def _place_of(module: str) -> Path | None:
    """A module's source file, or the folder of a package without one; nothing is imported for it."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # the program that runs has none
        return None
    if spec is None:
        return None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not inner:
        return Path(spec.origin) if spec.origin is not None else next(iter(folders), None)
    bases = [folder.joinpath(*inner) for folder in folders]
    places = [place for base in bases for place in (base.with_suffix(".py"), base / "__init__.py", base)]
    return next((place for place in places if place.exists()), None)


class Catalogue:
    """Name -> class of every method that this installation has."""

    def __init__(self) -> None:
        self._entered: dict[str, Entry] = {}
        self.optional: tuple[str, ...] = ()
        """Packages of Colonnade itself that a party runs only if its configuration names them."""

    def enter(self, table: Mapping[str, str], *, optional: Sequence[str] = ()) -> None:
        """Add methods: {name: "module:Class"}; a party must name those of the packages in `optional`."""
        self.optional += tuple(optional)
        for name, target in table.items():
            module, _, cls = target.partition(":")
            self._entered[name] = Entry(name, module, cls, self.package_of(module))

    def package_of(self, module: str) -> str:
        """The package that a party must name to run what is in this module; empty for Colonnade's own."""
        for package in self.optional:
            if within(module, package):
                return package
        top = module.partition(".")[0]
        return "" if top == __name__.partition(".")[0] else top

    def entries(self) -> dict[str, Entry]:
        """All methods by name; a package cannot take the name of one of Colonnade's own."""
        return {**_plugged_in(), **self._entered}

    def own(self) -> dict[str, Entry]:
        """What every party has."""
        return {name: entry for name, entry in self._entered.items() if entry.own}

    def papers(self) -> dict[str, Entry]:
        """The papers' own algorithms."""
        return {name: entry for name, entry in self._entered.items() if not entry.own}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.entries())

    def entry(self, name: str) -> Entry:
        entry = self._entered.get(name) or self.entries().get(name)
        if entry is None:
            raise UnknownMethod(
                f"this installation has no method {name!r}; it has {', '.join(self.entries())}."
                f"{nearest(name, self.entries())}"
            )
        return entry

    def load(self, name: str) -> type[Method[Any]]:
        """The class of that name."""
        return self.entry(name).load()

    def make(self, name: str, options: Mapping[str, Any]) -> Method[Any]:
        """The method of that name with these options, and its own defaults for the others."""
        return self.load(name).from_options(options)

    # --- what a party runs ------------------------------------------------------------------------------------

    def permit(self, name: str, packages: Iterable[str]) -> Entry:
        """The entry, if a party whose configuration names `packages` runs it. Nothing is imported before that."""
        entry = self.entry(name)
        self._permit(f"method {name!r}", entry.module, entry.package, packages)
        return entry

    def permit_step(self, name: str, module: str, packages: Iterable[str]) -> None:
        """Refuse a step whose module is neither Colonnade's own nor in a package that the party names."""
        self._permit(f"step {name}", module, self.package_of(module), packages)

    def _permit(self, what: str, module: str, package: str, packages: Iterable[str]) -> None:
        if package and not any(within(module, named) for named in packages):
            raise PackageNotNamed(
                f"{what} comes from {package}, which this party's configuration does not name; add"
                f' packages = ["{package}"] to it to run what is in there.'
            )

    def check_packages(self, packages: Iterable[str]) -> None:
        """Refuse a name in `packages` that no installed package has. Nothing is imported for it."""
        for package in packages:
            if _DOTTED.fullmatch(package) is None or _place_of(package) is None:
                known = [*self.optional, *dict.fromkeys(entry.package for entry in _plugged_in().values())]
                raise SchemaError(
                    f"packages names {package!r}, which is not installed here; install it or take it out. Packages"
                    f" with methods here: {', '.join(known)}.{nearest(package, known)}"
                )

    def load_packages(self, packages: Iterable[str]) -> None:
        """Import the packages that a party names, once every name is known to exist."""
        packages = tuple(packages)
        self.check_packages(packages)
        for package in packages:
            try:
                importlib.import_module(package)
            except Exception as error:  # whatever the package's own code raises
                raise SchemaError(
                    f"packages names {package!r}, which cannot be imported ({type(error).__name__}: {error}); repair"
                    " its installation or take it out."
                ) from error


@functools.cache
def _plugged_in() -> dict[str, Entry]:
    points = importlib.metadata.entry_points(group=GROUP)
    return {point.name: Entry(point.name, point.module, point.attr, point.module.partition(".")[0]) for point in points}


CATALOGUE = Catalogue()


# --- optional extras ----------------------------------------------------------------------------------------

EXTRAS = {"jax": "completion", "optax": "completion", "tenseal": "completion"}
"""{package: the extra that brings it}"""


def check_installed(packages: Sequence[str], what: str) -> None:
    """Refuse before anything is spent what could only fail afterwards."""
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    if absent:
        extras = ",".join(sorted({EXTRAS.get(package, package) for package in absent}))
        raise RunError(
            f"{what} needs {' and '.join(absent)}, which this installation lacks; nothing was spent. Install"
            f" colonnade[{extras}].",
            disclosed=f"it lacks {' and '.join(absent)}; install colonnade[{extras}] there.",
        )
