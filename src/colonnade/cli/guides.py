"""`colonnade docs`: the guides of this installation, which errors, reports and drafts of files name.

A wheel carries them beside the code (setup.py); a checkout has them in docs/. They are those of the installed version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import colonnade
from colonnade.errors import BadArguments

PACKAGE = Path(colonnade.__file__).parent
NO_GUIDES = ("results", "images", "notebooks")
"""Folders of docs/ that a wheel does not carry."""


def guides() -> dict[str, Path]:
    """{name: file}; a name is a path inside docs/ without its ending, such as `how-to/declare-columns`."""
    installed = PACKAGE / "guides"
    folder = installed if installed.is_dir() else PACKAGE.parents[1] / "docs"
    named = {page.relative_to(folder).with_suffix("").as_posix(): page for page in sorted(folder.rglob("*.md"))}
    return {name: page for name, page in named.items() if name.split("/")[0] not in NO_GUIDES}


def docs(
    page: Annotated[
        str | None,
        typer.Argument(
            help="A guide's name, with or without its folder; without it, all are listed.", show_default=False
        ),
    ] = None,
) -> None:
    """Print a guide, or list them."""
    known = guides()
    if page is None:
        width = max(map(len, known), default=0)
        for name, file in known.items():
            typer.echo(f"{name:{width}}  {_title(file)}")
        return
    wanted = page.removesuffix(".md").removeprefix("docs/")
    named = [file for name, file in known.items() if wanted in (name, name.rpartition("/")[2])]
    if not named:
        raise BadArguments(f"there is no guide {page!r}; `colonnade docs` lists them.")
    typer.echo(named[0].read_text(encoding="utf-8").rstrip())


def _title(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return next((line[2:].strip() for line in lines if line.startswith("# ")), "")
