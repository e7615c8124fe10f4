"""The map from the five papers to this repository: docs/papers.md, from `papers_common.ITEMS` and the results pages.

Criterion, set on 2026-11-17: every item is shown or contradicted by a page whose code is the present one; absent is
allowed only where data or a definition does not exist. Nothing is run here: the page says what the others show, and
this study is short as long as one of them is stale or an item is only partly there. Recomputing a random cell of each
study is not built.
"""

from __future__ import annotations

import sys
from collections import Counter

from benchmarks.papers_common import ITEMS, Item
from benchmarks.provenance_common import REPOSITORY, RESULTS, standing

PAGE = REPOSITORY / "docs" / "papers.md"
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


def main() -> int:
    PAGE.write_text(written(), encoding="utf-8")
    states = Counter(item.state for item in ITEMS)
    studies = {item.study for item in ITEMS if item.study}
    missing = [study for study in studies if not (RESULTS / f"{study}.md").is_file()]
    stale = sum("the present one" not in standing(study) for study in studies)
    good = not missing and not stale and not states["partly"] and not states["absent"]
    figures = {
        "items": len(ITEMS),
        "shown": states["shown"],
        "partly": states["partly"],
        "contradict": states["contradicts"],
        "absent": states["absent"],
        "stale": stale,
    }
    print(f"papers: {' '.join(f'{name}={value}' for name, value in figures.items())} {'ok' if good else 'short'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
