"""The map from the five papers to this repository: docs/papers.md, from `papers_common.ITEMS` and the results pages.

Criterion, set on 2026-11-17: every item is shown or contradicted by a page whose code is the present one; absent is
allowed only where data or a definition does not exist. The page says what the others show, and this study is short as
long as one of them is stale or an item is only partly there.

QUICK=1 also makes one draw of each study again, chosen at random (SEED=7 repeats a choice) among those that took up to
a minute, or the shortest one: it must agree with what the study has kept (`draws_common` says what that is), and a
study where it does not counts as stale. A draw that takes longer than what is left of ten minutes is skipped.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from datetime import date

from benchmarks.draws_common import Line, disagreements, present, quick, read
from benchmarks.papers_common import ITEMS, Item
from benchmarks.provenance_common import REPOSITORY, RESULTS, standing
from benchmarks.refresh import run_bounded

PAGE = REPOSITORY / "docs" / "papers.md"
MINUTES, EACH = 10.0, 60.0
"""All recomputed draws together, and one of them (seconds)."""
HEAD = """# Every table and figure of the papers

Written by `make study NAME=papers` from the list in `benchmarks/papers_common.py` and the results pages. *Shown*: at
the paper's settings or stated ones, and the shape agrees. *Partly*: fewer draws, cells or rivals than the paper, or a
variant of ours. *Contradicts*: our figures say otherwise. [What is where](explanation/papers.md) has the algorithms by
class.

| paper | item | here | study | state | what it says |
| --- | --- | --- | --- | --- | --- |
"""


def row(item: Item) -> str:
    study = f"[{item.study}](results/{item.study}.md)" if item.study else ""
    return f"| {item.paper} | {item.name} | `{item.where}` | {study} | {item.state} | {item.says} |"


def written() -> str:
    """The page."""
    return HEAD + "\n".join(map(row, ITEMS)) + "\n"


# --- one draw of each study, made again -----------------------------------------------------------------------------


def choose(lines: list[Line], left: float, chance: random.Random) -> Line | None:
    """A draw of at most a minute, or the shortest; None if it takes longer than what is left."""
    short = [line for line in lines if line.seconds <= EACH]
    line = chance.choice(short) if short else min(lines, key=lambda line: line.seconds)
    return line if line.seconds <= left else None


def made_again(study: str, line: Line, lines: list[Line], left: float) -> str:
    """Run a study up to one of its draws; '' if it agrees with the line."""
    environment = {name: value for name, value in os.environ.items() if name not in ("QUICK", "SEED")}
    environment["RECOMPUTE"] = json.dumps(line.key)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        try:
            code = run_bounded(study, max(left, 1.0), environment=environment, out=out, error=error)
        except subprocess.TimeoutExpired:
            return "skipped: took longer than what was left"
        out.seek(0)
        error.seek(0)
        told = [text for text in out.read().splitlines() if text.startswith("recomputed: ")]
        if code or not told:
            return f"not made: {(error.read().strip() or 'it did not come to this draw').splitlines()[-1]}"
    values = json.loads(told[-1].removeprefix("recomputed: "))["values"]
    wrong = disagreements(line.values, values, [other.values for other in lines if other.cell == line.cell])
    changed = ", ".join(f"{name} ({line.values.get(name)}, now {values.get(name)})" for name in wrong)
    return f"differs in {changed}" if wrong else ""


def recompute(studies: Iterable[str]) -> tuple[int, int, set[str]]:
    """(draws made again, skipped, studies where one does not agree)."""
    seed = int(os.environ.get("SEED") or date.today().toordinal())
    print(f"One draw of each study, made again (SEED={seed}):")
    chance, ends = random.Random(seed), time.monotonic() + 60 * MINUTES
    done, skipped, wrong = 0, 0, set[str]()
    for study in sorted(studies):
        lines = present(study) or read(study)[0]
        left = ends - time.monotonic()
        line = choose(lines, left, chance) if lines else None
        if line is None:
            skipped += 1
            print(f"  {study}: skipped: {'no draw fits into what is left' if lines else 'has kept no draws'}")
            continue
        result = made_again(study, line, lines, left)
        skipped += result.startswith("skipped")
        done += not result.startswith(("skipped", "not made"))
        wrong |= {study} if result.startswith(("differs", "not made")) else set()
        print(f"  {study}: {' '.join(map(str, line.cell))}, draw {line.draw}: {result or 'agrees'}", flush=True)
    return done, skipped, wrong


def main() -> int:
    PAGE.write_text(written(), encoding="utf-8")
    states = Counter(item.state for item in ITEMS)
    studies = {item.study for item in ITEMS if item.study}
    missing = [study for study in studies if not (RESULTS / f"{study}.md").is_file()]
    old = {study for study in studies if "the present one" not in standing(study)}
    done, skipped, wrong = recompute(studies) if quick() else (0, 0, set[str]())
    stale = len(old | wrong)
    good = not missing and not stale and not states["partly"] and not states["absent"]
    figures = {
        "items": len(ITEMS),
        "shown": states["shown"],
        "partly": states["partly"],
        "contradict": states["contradicts"],
        "absent": states["absent"],
        "stale": stale,
        **({"recomputed": done, "skipped": skipped} if quick() else {}),
    }
    print(f"papers: {' '.join(f'{name}={value}' for name, value in figures.items())} {'ok' if good else 'short'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
