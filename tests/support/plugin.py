"""A method outside Colonnade, as another package installs it: a module, and an entry point that names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from colonnade.federation import catalogue

METHOD = '''
"""How many records each party has, with noise."""

from dataclasses import dataclass
from typing import ClassVar

from colonnade.federation.method import Method, Procedure, Result, method_class
from colonnade.federation.options import Epsilon
from colonnade.federation.stage import stage
from colonnade.federation.step import Release, step
from colonnade.view.blocks import Text, View
from colonnade.privacy.cost import Laplace
from colonnade.privacy.noise import discrete_laplace


@method_class
class Sizes(Method["SizesResult"]):
    """Count each party's records with noise, by a package of somebody else's."""

    name: ClassVar[str] = "sizes"

    epsilon: Epsilon = 1.0

    def missing_data(self):
        return "Each party counts what it has."

    def procedure(self, facts, roster):
        return Counting(self, facts, roster)


class Counting(Procedure["SizesResult"]):
    def __init__(self, method, facts, roster):
        requests = {party: [{"epsilon": method.epsilon}] for party in facts.parties}
        self.count = stage("count", size, requests, facts=facts, roster=roster, discloses="a noisy count")
        self.stages = (self.count,)

    def run(self, job):
        return SizesResult(job.ask(self.count))


@dataclass(frozen=True)
class SizesResult(Result):
    kind: ClassVar[str] = "sizes"
    sizes: dict

    def to_dict(self):
        return {"sizes": self.sizes}

    def view(self):
        return View(title="Sizes", quality="With noise.", answer=(Text(text=str(self.sizes)),))


@step(cost=lambda public, *, epsilon: Laplace(epsilon))
def size(me, *, epsilon: float):
    return Release(int(me.present.sum()) + int(discrete_laplace(me.randomness, 1 / epsilon, 1)[0]), "a noisy count")
'''


@contextmanager
def installed(folder: Path, *, package: str = "plugged_in", **names: str) -> Iterator[str]:
    """A package in `folder` with an entry point `sizes`, and others by name; it is gone afterwards."""
    site = folder / "site"
    (site / package).mkdir(parents=True)
    (site / package / "__init__.py").write_text("")
    (site / package / "sizes.py").write_text(METHOD)
    points = {"sizes": f"{package}.sizes:Sizes", **names}
    described = site / f"{package}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    listed = "".join(f"{name} = {target}\n" for name, target in points.items())
    (described / "entry_points.txt").write_text(f"[{catalogue.GROUP}]\n{listed}")
    sys.path.insert(0, str(site))
    catalogue._plugged_in.cache_clear()
    try:
        yield package
    finally:
        sys.path.remove(str(site))
        catalogue._plugged_in.cache_clear()
        for module in [name for name in sys.modules if catalogue.within(name, package)]:
            del sys.modules[module]
