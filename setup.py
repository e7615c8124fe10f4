"""Puts the guides into a wheel, where `colonnade docs` reads them; everything else stands in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LEFT_OUT = ("results", "images", "notebooks")


class WithGuides(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # a checkout has docs/ itself
            return
        docs = Path(__file__).parent / "docs"
        for page in sorted(docs.rglob("*.md")):
            name = page.relative_to(docs)
            if name.parts[0] not in LEFT_OUT:
                copy = Path(self.build_lib) / "colonnade" / "guides" / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(page.read_bytes())


setup(cmdclass={"build_py": WithGuides})
