"""`make screenshots`: the pages that people see, as pictures: for the documentation, and to look at.

docs/images gets those that the pages show; screenshots/ every page of the demo, a report of each kind of result, a
release for an output checker, the draft of a declaration and both consoles, from head to foot, at a desk and on a
telephone, in light and in dark.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.console.coordinator import CoordinatorSite
from colonnade.evaluation.release import write_release
from colonnade.evaluation.report import write_report
from support.browser import DESK, PHONE, Watched, launched
from support.consortium import provisioned
from support.operators import busy_party, served
from support.reports import CASES, drafted, firms

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HIGHEST = 6_000
"""Pixels of a picture; a longer page is in parts."""
LOOKS = [(width, dark) for width in (DESK, PHONE) for dark in (False, True)]


def head_to_foot(page: Page, folder: Path, name: str, width: int, dark: bool) -> None:
    high = int(page.evaluate("() => document.documentElement.scrollHeight"))
    for part, top in enumerate(range(0, high, HIGHEST), 1):
        numbered = f"-part{part}" if high > HIGHEST else ""
        page.screenshot(
            path=folder / f"{name}-{width}{'-dark' if dark else ''}{numbered}.png",
            full_page=True,
            clip={"x": 0, "y": top, "width": width, "height": min(high - top, HIGHEST)},
        )


def console_pictures(browser: Browser, images: Path, folder: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as root,
        busy_party(Path(root), n=2000) as made,
        served(made.service) as (console, link),
    ):
        components = made.service.waiting()[0].name
        with Watched(browser, width=1000, height=700) as seen:
            seen.open(link)
            for name, path, width, height in (
                ("overview", "", 1160, 640),
                ("request", f"requests/{components}", 900, 1440),
                ("budget", "budget", 900, 820),
                ("transcript", "transcript", 1160, 560),
            ):
                seen.page.set_viewport_size({"width": width, "height": height})
                seen.open(console.origin + console.base + path)
                seen.page.screenshot(path=images / f"console-{name}.png")
        with Watched(browser, width=PHONE, height=760, dark=True) as seen:
            seen.open(console.new_link())
            seen.open(f"{console.origin}{console.base}runs")
            seen.page.screenshot(path=images / "console-runs-dark-phone.png")
        pages = ("", "requests", f"requests/{components}", "budget", "ledger", "transcript", "runs")
        for width, dark in LOOKS:
            with Watched(browser, width=width, dark=dark) as seen:
                seen.open(console.new_link())
                for path in pages:
                    page = seen.open(console.origin + console.base + path)
                    name = "request" if path.endswith(components) else path or "overview"
                    head_to_foot(page, folder, f"operator-{name}", width, dark)


def coordinator_pictures(browser: Browser, images: Path, folder: Path) -> None:
    """Asking for a job: the form and the plan that it leads to, for the documentation in part."""
    with tempfile.TemporaryDirectory() as root:
        site = CoordinatorSite(provisioned(Path(root)))
        name = site.queue.put("describe", {"epsilon": 1.0}, name="describe-march")
        progress = {"stage": "moments", "rounds": 3, "of": 12, "bytes": 10, "seconds": 60.0}
        site.queue.tell({"n": 5000, "jobs": {name: {"state": "running", "sentence": "", "progress": progress}}})
        with served(site) as (console, _):
            for width, dark in LOOKS:
                with Watched(browser, width=width, dark=dark) as seen:
                    page = seen.open(console.new_link())
                    head_to_foot(page, folder, "console-jobs", width, dark)
                    seen.open(f"{console.origin}{console.base}ask")
                    head_to_foot(page, folder, "console-methods", width, dark)
                    seen.open(f"{console.origin}{console.base}ask/synthesize")
                    page.get_by_label("epsilon").fill("4")
                    page.get_by_text("More options").click()
                    head_to_foot(page, folder, "console-form", width, dark)
                    page.get_by_role("button", name="Show the plan").click()
                    head_to_foot(page, folder, "console-plan", width, dark)
            with Watched(browser, width=900, height=760) as seen:
                page = seen.open(console.new_link())
                seen.open(f"{console.origin}{console.base}ask/synthesize")
                page.get_by_label("epsilon").fill("4")
                page.screenshot(path=images / "console-ask.png")


def demo_pictures(browser: Browser, demo: Path, images: Path) -> None:
    """The first screen of the demo's page, the whole of it, and one of its reports."""
    for scale, part, name in ((1.5, ".charts", "story"), (1.0, "main", "demo")):
        with Watched(browser, width=1120, height=760, device_scale_factor=scale) as seen:
            seen.open(demo / "index.html")
            seen.page.locator(part).first.screenshot(path=images / f"{name}.png")
    report = next((demo / "runs").glob("regress-*")) / "report.html"
    with Watched(browser, width=1120, height=900) as seen:
        seen.open(report)
        seen.page.screenshot(path=images / "report.png")
    with Watched(browser, width=PHONE, height=760, dark=True, device_scale_factor=2) as seen:
        page = seen.open(report)
        page.locator("figure").first.scroll_into_view_if_needed()
        page.screenshot(path=images / "report-phone.png")


def every_picture(browser: Browser, pages: dict[str, Path], folder: Path) -> None:
    for name, path in pages.items():
        for width, dark in LOOKS:
            with Watched(browser, width=width, dark=dark) as seen:
                head_to_foot(seen.open(path), folder, name, width, dark)


def every_kind(root: Path) -> dict[str, Path]:
    """A report of each kind of result, and releases of some for an output checker."""
    pages = {}
    with firms(root) as federation:
        for case, method in CASES.items():
            run = federation.run(method(), name=case.replace(" ", "-"))[1]
            pages[f"kind-{run.path.name}"] = write_report(run, remarks=federation.remarks)
            if case in ("describe", "field", "regress", "regress private", "tables"):
                pages[f"release-{run.path.name}"] = write_release(run, root / "releases" / run.path.name)
    return pages


def readme_picture(images: Path) -> None:
    """What the README's first lines draw."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    with contextlib.chdir(images):
        exec(compile(readme.partition("```python\n")[2].partition("```")[0], "README.md", "exec"), {})


def main(images: Path, folder: Path) -> None:
    for target in (images, folder):
        target.mkdir(parents=True, exist_ok=True)
    readme_picture(images)
    with tempfile.TemporaryDirectory() as root:
        demo = Path(root) / "demo"
        done = CliRunner().invoke(app, ["demo", "--quiet", "--out", str(demo)])
        assert done.exit_code == 0, done.output
        reports = {path.parent.name.split("-")[0]: path for path in sorted((demo / "runs").glob("*/report.html"))}
        with launched() as browser:
            demo_pictures(browser, demo, images)
            every_picture(browser, {"demo": demo / "index.html", **reports, "init": drafted(Path(root), 2000)}, folder)
            every_picture(browser, every_kind(Path(root)), folder)
            console_pictures(browser, images, folder)
            coordinator_pictures(browser, images, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
