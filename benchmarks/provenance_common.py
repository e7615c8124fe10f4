"""Which code made a results page: the files that a run had loaded, each with a hash of what it does.

A page's code is recorded in docs/results/code/NAME.json when the page is written, and compared with the present files
by `standing`. The hash is of the parsed program without its docstrings, so that a comment or a better sentence does not
make a page stale, and any change of what is computed does. Parties that run as processes of their own load their
modules there; those count that the study's process has loaded too. The data that `common.load` has read count by their
bytes; where they are not there, they are taken as unchanged. The modules that read data, keep lines, compare code and
write pages compute no figure, and do not count.

    python -m benchmarks.provenance_common     writes the line about its code anew on every page (`make pages`)
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "docs" / "results"
CODE = RESULTS / "code"
MACHINERY = tuple(f"benchmarks/{name}.py" for name in ("__init__", "common", "draws_common", "provenance_common"))
used_data: set[Path] = set()
"""The files of data that this process has read."""
MOST_NAMES = 6
"""Changed files that a page names; of more it counts those of each folder."""
STANDING = re.compile(r"^\*Code: .*\*$", re.MULTILINE)
"""The line of a page that says whether its code is the present one."""


@cache
def program_hash(path: Path) -> str:
    """A hash of what a file computes: its syntax tree without docstrings and positions. Of data, of its bytes."""
    if path.suffix != ".py":
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                part for part in body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


def loaded_code() -> dict[str, str]:
    """The repository's files that this process has loaded, and the data that it has read, with their hashes."""
    folders = (REPOSITORY / "src", REPOSITORY / "benchmarks")
    paths = {
        Path(file).resolve()
        for module in list(sys.modules.values())
        if (file := getattr(module, "__file__", None)) and file.endswith(".py")
    }
    names = {
        path.relative_to(REPOSITORY).as_posix(): path
        for path in sorted(paths)
        if any(path.is_relative_to(folder) for folder in folders)
    }
    data = {os.path.relpath(path, REPOSITORY): path for path in sorted(used_data)}
    return {name: program_hash(path) for name, path in {**names, **data}.items() if name not in MACHINERY}


def changed_files(files: Mapping[str, str]) -> list[str]:
    """Those of the recorded files that compute something else now, or are gone."""
    return [name for name, recorded in files.items() if name not in MACHINERY and _changed(name, recorded)]


def _changed(name: str, recorded: str) -> bool:
    path = REPOSITORY / name
    if not path.is_file():
        return not name.startswith("..")
    return program_hash(path) != recorded


def commit() -> str:
    """The commit that is checked out, with what was changed since in src and benchmarks."""
    head = _git("rev-parse", "--short", "HEAD")
    dirty = _git("status", "--porcelain", "--", "src", "benchmarks")
    return f"{head} with changes that were not committed" if dirty else head


def known_commit(name: str) -> bool:
    """Is it in this repository's history?"""
    return (
        subprocess.run(["git", "merge-base", "--is-ancestor", name, "HEAD"], cwd=REPOSITORY, check=False).returncode
        == 0
    )


def record(name: str, older: Mapping[str, str] | None = None) -> None:
    """Keep which code made a page; `older` are hashes of parts that other code made."""
    CODE.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**loaded_code(), **(older or {})}, indent=0, sort_keys=True)
    (CODE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def standing(name: str) -> str:
    """The line about its code that a page must have."""
    path = CODE / f"{name}.json"
    if not path.is_file():
        return "*Code: older than the record of code; the code behind this page has changed since.*"
    files = json.loads(path.read_text(encoding="utf-8"))
    changed = [name.removeprefix("src/colonnade/") for name in changed_files(files)]
    if not changed:
        return "*Code: the present one.*"
    named = ", ".join(changed)
    if len(changed) > MOST_NAMES:
        folders = Counter(name.partition("/")[0] for name in changed)
        named = ", ".join(name if name in changed else f"{name}/ {count}" for name, count in sorted(folders.items()))
    return f"*Code: {len(changed)} of {len(files)} files changed since this page was written: {named}.*"


def pages() -> list[Path]:
    """The pages of studies and benchmarks."""
    return sorted(path for path in RESULTS.glob("*.md") if path.name != "index.md")


def stamp(path: Path) -> bool:
    """Write the line about its code on a page; was it another one?"""
    text, line = path.read_text(encoding="utf-8"), standing(path.stem)
    if STANDING.search(text):
        new = STANDING.sub(line, text, count=1)
    else:
        title, _, rest = text.partition("\n\n")
        new = f"{title}\n\n{line}\n\n{rest}"
    path.write_text(new, encoding="utf-8")
    return new != text


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()


if __name__ == "__main__":
    for page in pages():
        if stamp(page):
            print(f"{page.name}: {standing(page.stem)}")
