"""The report of every kind of result in a real browser: desk and telephone, light and dark, keyboard, axe, paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from colonnade.catalogue import CATALOGUE
from colonnade.evaluation.release import write_release
from colonnade.evaluation.report import write_index, write_report
from colonnade.federation.coordinator import Federation
from colonnade.statistics.describe import Describe
from support.browser import DESK, Watched, browser, sound
from support.reports import CASES, drafted, firms, unlabelled

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with firms(tmp_path_factory.mktemp("firms")) as federation:
        yield federation


IN_THE_DEMO = ("regress private",)
"""Its report, and that of an alignment, are opened by the demo's own test."""


@pytest.mark.parametrize("case", [case for case in CASES if case not in IN_THE_DEMO])
def test_a_report_is_sound_in_a_browser(browser: Browser, federation: Federation, case: str) -> None:
    result, run = federation.run(CASES[case](), name=case.replace(" ", "-"))
    assert run.read_json("result.json")["kind"] == result.kind
    for figure in result.view().figures().values():
        assert unlabelled(figure, federation.facts.columns) == [], figure.name
    sound(browser, write_report(run, remarks=federation.remarks))
    if case == "tables":  # the page for an output checker has the same parts for every method
        sound(browser, write_release(run, run.path.parent.parent / "release"))


def test_the_draft_of_a_declaration_is_sound_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    sound(browser, drafted(tmp_path, 400))


def test_a_page_for_several_runs_is_sound_in_a_browser(
    browser: Browser, federation: Federation, tmp_path: Path
) -> None:
    runs = [federation.run(Describe(epsilon=1.0, columns=(name,)), name=f"index-{name}")[1] for name in ("roa", "roe")]
    for run in runs:
        write_report(run)
    index = write_index(tmp_path / "index.html", runs, title="Two runs")
    sound(browser, index)
    with Watched(browser, width=DESK, height=800) as watched:
        page = watched.open(index)
        for heading in ("Released", "Seen by", "Cost to a person", "How good"):
            boxes = [one.bounding_box() for one in page.get_by_text(heading, exact=True).all()]
            assert len(boxes) == len(runs)
            assert all(box and box["y"] + box["height"] < 800 for box in boxes), heading


def test_what_is_wrong_with_a_figure_is_noticed(browser: Browser, tmp_path: Path) -> None:
    """One that cannot be heard, has no label at an axis, and texts outside, over one another and too small."""
    texts = ((10, 20, 10, "one"), (12, 21, 10, "two"), (300, 40, 10, "far"), (10, 80, 4, "tiny"))
    drawn = "".join(f'<text x="{x}" y="{y}" font-size="{size}px">{word}</text>' for x, y, size, word in texts)
    file = tmp_path / "wrong.html"
    label = '<g class="axis-label x"><text x="100" y="95" font-size="10px">years</text></g>'
    size = 'class="drawn" width="300" height="100" viewBox="0 0 300 100"'
    file.write_text(f'<svg {size}>{drawn}</svg><svg {size} aria-label="b" data-scales="xy">{label}</svg>')
    with Watched(browser) as watched:
        watched.open(file)
        wrong = [line.removeprefix(": ") for line in watched.figures()]
    assert wrong[:-1] == ["no words", "no axis label", "one over two", "outside: far", "too small: tiny"]
    assert wrong[-1] == "b: no label at the y axis"


def test_every_method_that_every_party_has_is_among_them() -> None:
    assert {make().name for make in CASES.values()} | {"align"} >= set(CATALOGUE.own())


def test_the_first_screen_says_what_was_released_to_whom_at_what_cost_and_how_good(
    browser: Browser, federation: Federation
) -> None:
    _, run = federation.run(Describe(epsilon=1.0, columns=("roa",)), name="first-screen")
    with Watched(browser, width=DESK, height=800) as watched:
        page = watched.open(write_report(run))
        for heading in ("Released", "Seen by", "Cost to a person", "How good"):
            box = page.get_by_text(heading, exact=True).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] < 800, heading


def test_the_keyboard_reaches_everything_and_paper_shows_what_is_folded(
    browser: Browser, federation: Federation, tmp_path: Path
) -> None:
    _, run = federation.run(Describe(epsilon=1.0, columns=("roa", "scale")), name="keyboard")
    report = write_report(run)
    with Watched(browser) as watched:
        page = watched.open(report)
        assert watched.unreachable() == []
        page.emulate_media(media="print")
        folded = page.locator("section > details table").first
        box = folded.bounding_box()
        assert box is not None
        assert box["height"] > 0
        page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
        assert (tmp_path / "report.pdf").stat().st_size > 10_000
