"""The report of every kind of result in a real browser: desk and telephone, light and dark, keyboard, axe, paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import colonnade as co
from colonnade.alignment.session import align
from colonnade.data.simulated import five_institutions
from colonnade.evaluation.report import KINDS, write_report
from colonnade.evaluation.report_index import write_index
from colonnade.federation.coordinator import Federation
from colonnade.federation.config import Spec
from colonnade.federation.run_folder import RunFolder
from colonnade.statistics.describe import Describe
from support.browser import DESK, PHONE, Watched, browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]

NUMBERS = ("capital", "roa", "inspections", "profit_growth")
FEW = ("capital", "profit_growth")
SQUARE = co.Polynomial.of([(0.5, {"roa": 2}), (-1.0, {"roa": 1, "capital": 1})])
ALLOWED = ("presence", "exact-moments", "presence-to-coordinator", "split-training", "completion-quality")
CASES: dict[str, tuple[str, Any]] = {
    "describe": ("description", lambda: Describe(epsilon=1.0, delta=1e-6)),
    "copula": ("synthetic-table", lambda: co.CopulaSQM(epsilon=3.0, delta=1e-6, columns=NUMBERS)),
    "mrf": ("synthetic-table", lambda: co.VertiMRF(epsilon=4.0, delta=1e-6, columns=("scale", "removed", "penalty_1"))),
    "vcds": ("synthetic-table", lambda: co.VCDS(epsilon=1.0, accounting="nominal", columns=("capital", "roa"))),
    "regress": ("vfem", lambda: co.VFEM(response="profit_growth", columns=NUMBERS)),
    "regress private": ("vfem", lambda: co.VFEM(response="profit_growth", columns=FEW, epsilon=10.0)),
    "select": ("sparse-glm", lambda: co.SparseGLM(response="profit_growth", columns=NUMBERS)),
    "complete": ("completion", lambda: co.FedPSG(imputer="mean", complete=("market",))),
    "pca": ("pca", lambda: co.SQMPCA(n_components=2, epsilon=4.0, delta=1e-6, columns=("capital", "roa", "fines"))),
    "classify": ("classifier", lambda: co.SQMLogistic(response="failed", epsilon=4.0, columns=("capital", "roa"))),
    "moments": ("moments", lambda: co.Moments(epsilon=4.0, columns=("capital", "roa", "scale"))),
    "tables": ("tables", lambda: co.Contingency(tables=(("region",), ("scale", "removed")), epsilon=2.0)),
    "polynomial": ("polynomial", lambda: co.PolynomialSum(polynomial=SQUARE, epsilon=8.0)),
    "coverage": ("coverage", lambda: co.PresenceTotal(epsilon=1.0)),
}
"""What is run -> the kind of its result."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("firms")
    example = five_institutions(3000, seed=5)
    with Federation.local(
        example.blocks,
        key=example.key,
        columns=example.columns,
        organisations=example.organisations,
        home=folder / "home",
        runs=folder / "runs",
        allow=ALLOWED,
        seed=1,
    ) as made:
        yield made


def sound(browser: Browser, report: Path) -> None:
    """What every report must withstand."""
    for width, dark in ((DESK, False), (PHONE, True)):
        with Watched(browser, width=width, dark=dark) as watched:
            page = watched.open(report)
            assert page.locator("h1").count() == 1
            assert watched.sideways() <= 0
            assert watched.violations() == []
            page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            assert watched.sideways() <= 0
            watched.sound()


@pytest.mark.parametrize("case", CASES)
def test_a_report_is_sound_in_a_browser(browser: Browser, federation: Federation, case: str) -> None:
    kind, make = CASES[case]
    _, run = federation.run(make(), name=case.replace(" ", "-"))
    assert run.read_json("result.json")["kind"] == kind
    sound(browser, write_report(run, remarks=federation.remarks))


def test_an_alignments_report_is_sound_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    example = five_institutions(240, seed=5)
    align(
        Spec(
            blocks=example.blocks,
            key=example.key,
            columns=example.columns,
            home=tmp_path / "home",
            allow=("alignment",),
        ),
        runs=tmp_path / "runs",
    )
    (run,) = (tmp_path / "runs").iterdir()
    sound(browser, write_report(RunFolder.open(run)))


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


def test_every_kind_of_result_is_among_them() -> None:
    assert {kind for kind, _ in CASES.values()} | {"alignment"} >= set(KINDS)


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
