"""Every figure of the scoreboard is on the page that it links to, which says its command and its date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("| `", "| secure"))]


ROWS = rows_of((ROOT / "docs" / "scoreboard.md").read_text(encoding="utf-8"))
WRITTEN = re.compile(r"Written by `make (?:study|bench|bench PEERS=1)(?: NAME=([\w-]+))?.*` on (\d{4}-\d\d-\d\d)")
DATED = re.compile(r"\b\d{4}-\d\d-\d\d\b|[Bb]y hand")


def job(row: str) -> str:
    return row.split("|")[1].strip()


def checked(row: str, pages: Path) -> list[str]:
    """What is wrong with a row."""
    command = re.search(r"`make (?:study|bench) (NAME=[\w-]+|PEERS=1)`", row)
    link = re.search(r"\[page\]\(([^)]+)\)", row)
    if command is None or link is None:
        return ["names no command or no page"]
    page = pages / link[1]
    if not page.is_file():
        return [f"{page} is not there"]
    text = page.read_text(encoding="utf-8")
    wrong = [f"{one} is not on {page.name}" for one in re.findall(r"\*\*([^*]+)\*\*", row) if one not in text]
    if not re.findall(r"\*\*([^*]+)\*\*", row.split("|")[2]):
        wrong.append("has no figure of ours")
    name = "peers" if command[1] == "PEERS=1" else command[1].removeprefix("NAME=")
    found = WRITTEN.search(text)
    if found is None or (found[1] or "peers") != name:
        wrong.append(f"{page.name} was not written by {command[1]}")
    if not (ROOT / "benchmarks" / f"{name.replace('-', '_')}.py").is_file():
        wrong.append(f"there is no benchmark {name}")
    return wrong


def test_there_is_a_row_for_every_job() -> None:
    told = " ".join(map(job, ROWS))
    for verb in ("synthesize", "regress", "select", "pca", "classify", "complete", "align"):
        assert f"`{verb}" in told


@pytest.mark.parametrize("row", ROWS, ids=job)
def test_the_figures_of_a_row_are_on_its_page(row: str) -> None:
    assert checked(row, ROOT / "docs") == []


def test_the_readme_has_five_of_them() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Scoreboard")[2].partition("\n## ")[0]
    shown = [row.replace("docs/results/", "results/") for row in rows_of(readme)]
    assert len(shown) == 5
    assert set(shown) <= set(ROWS)


def test_a_stale_figure_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("Written by `make study NAME=field` on 2026-01-01 in 1 minutes.\n3.18\n")
    row = "| `job` | **{}** | | | `make study NAME=field`, [page](page.md) |"
    assert checked(row.format("3.18"), tmp_path) == []
    assert checked(row.format("3.19"), tmp_path) == ["3.19 is not on page.md"]
    assert checked(row.replace("study NAME=field", "study NAME=other").format("3.18"), tmp_path)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "results").glob("*.md")), ids=lambda page: page.name)
def test_a_results_page_says_its_command_and_its_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = WRITTEN.search(text)
    if page.name == "index.md":
        return
    if found is None:  # written by people, from the pages of several commands
        assert DATED.search(text), f"{page.name} says no date"
        assert re.search(r"`make (study|bench)|`[a-z]+(-[a-z]+)*`", text), f"{page.name} names no command"
        return
    name = found[1] or "peers"
    assert (ROOT / "benchmarks" / f"{name.replace('-', '_')}.py").is_file()
