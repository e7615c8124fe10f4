"""A figure in the documentation is on a results page that its paragraph, or else its section, links to.

A figure is a number with at least two decimals outside code. It is on the page if a number there rounds to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\([\w./-]*results/([\w-]+)\.md(?:#[\w-]*)?\)")
CODE = re.compile(r"^```.*?^```|`[^`]*`", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"(?<![\w.])\d*\.\d{2,}(?![\w.]*\d)")
NUMBER = re.compile(r"(?<![\w.])\d*\.\d+")
VERSION = re.compile(r"3\.1\d")
ITEM = ("|", "- ", "* ")
OTHERS = {
    "dependencies.md": "versions",
    "simulated-data.md": "how the simulated records are drawn, and what the papers print",
    "how-to/use-a-synthetic-table.md": "thresholds of a rule, and the runs that it was derived from, without a page",
    "wire-format.md": "measured by hand, as it says",
}
"""Documents whose figures come from no study."""
DOCUMENTS = [
    path
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if "results" not in path.parts and path.relative_to(DOCS if DOCS in path.parents else ROOT).as_posix() not in OTHERS
]


def paragraphs(text: str) -> Iterator[tuple[str, str]]:
    """(paragraph, row of a table or item of a list; the section that it is in)."""
    for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        for block in re.split(r"\n\s*\n", CODE.sub("", section)):
            paragraph = ""
            for line in block.splitlines():
                if line.lstrip().startswith(ITEM) and paragraph:
                    yield paragraph, section
                    paragraph = ""
                paragraph += " " + line
            yield paragraph, section


def rounds_to(number: str, figure: str) -> bool:
    decimals = len(figure.partition(".")[2])
    return len(number.partition(".")[2]) >= decimals and abs(float(number) - float(figure)) <= 0.501 * 10**-decimals


def missing(text: str, results: Path) -> list[str]:
    """What a document says that is on no page that it links to."""
    wrong = []
    for paragraph, section in paragraphs(text):
        figures = FIGURE.findall(LINK.sub("]", paragraph))
        names = LINK.findall(paragraph) or LINK.findall(section)
        if "Python" in paragraph:
            figures = [figure for figure in figures if not VERSION.fullmatch(figure)]
        if not figures:
            continue
        numbers = [number for name in names for number in NUMBER.findall((results / f"{name}.md").read_text("utf-8"))]
        wrong += [
            f"{figure} ({', '.join(names) or 'no page is linked'}): {paragraph.strip()[:60]}"
            for figure in figures
            if not any(rounds_to(number, figure) for number in numbers)
        ]
    return wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_figures_of_a_document_are_on_the_pages_that_it_links_to(path: Path) -> None:
    assert missing(path.read_text(encoding="utf-8"), DOCS / "results") == []


def test_a_figure_that_is_not_on_its_page_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "study.md").write_text("| ours | 0.0455 | 12.5 |\n")
    text = "# T\n\n## A\n[page](results/study.md)\n\n| x | .046 |\n| y | {} |\n\n`9.99`\n\n## B\n{}\n"
    assert missing(text.format("0.0455", "no figure"), tmp_path) == []
    assert len(missing(text.format("0.0465", "no figure"), tmp_path)) == 1
    assert len(missing(text.format("12.50", "no figure"), tmp_path)) == 1, "it has more decimals than the page"
    assert missing(text.format(".045", "1.25"), tmp_path) == ["1.25 (no page is linked): ## B 1.25"]
