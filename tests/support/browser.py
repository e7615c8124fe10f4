"""A headless Chromium, and what every page that we make must withstand in it.

`Watched` opens a page and notes each request and each complaint of the browser, so that a test can say: nothing was
loaded from outside, nothing went wrong. Where no Chromium is installed the tests skip and say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE, DESK = 360, 1280
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_LOCAL = ("file", "data", "blob", "about")


def chromium() -> str | None:
    """Debian's Chromium, or the one that COLONNADE_CHROMIUM names."""
    named = os.environ.get("COLONNADE_CHROMIUM")
    return named or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        try:
            yield started
        finally:
            started.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module: while it is open, its thread has an event loop of its own."""
    pytest.importorskip("playwright", reason="the playwright package is not installed")
    if chromium() is None:
        pytest.skip("no Chromium found: install Debian's `chromium`, or name one in COLONNADE_CHROMIUM")
    with launched() as started:
        yield started


class Watched:
    """One page in a context of its own. `origin` is the only host that it may talk to (None: none at all)."""

    def __init__(
        self,
        browser: Browser,
        *,
        dark: bool = False,
        width: int = DESK,
        height: int = 900,
        origin: str | None = None,
        **options: Any,
    ) -> None:
        self.origin = origin
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **options
        )
        self.page: Page = self.context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def open(self, where: str | Path) -> Page:
        self.page.goto(where.absolute().as_uri() if isinstance(where, Path) else where)
        return self.page

    def outside(self) -> list[str]:
        """Requests that left: anything but files, data and the one origin."""
        return [
            url
            for url in self.requests
            if urlsplit(url).scheme not in _LOCAL and (self.origin is None or not url.startswith(self.origin + "/"))
        ]

    def sound(self) -> None:
        """Nothing was loaded from outside, and the browser had nothing to complain about."""
        assert not self.outside()
        assert not self.complaints

    def sideways(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(self.page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth"))

    def violations(self, *, repeated: str | None = None) -> list[str]:
        """What axe finds against the accessibility guidelines, by all its rules, as readable lines.

        `repeated` selects elements with the same marks as others of the page, which are not looked at again.
        """
        from axe_playwright_python.base import AXE_SCRIPT

        excluded = f"{json.dumps({'exclude': [[repeated]]})}, " if repeated else ""
        # Through the debugger: the page's own security policy, rightly, lets no script in.
        session = self.context.new_cdp_session(self.page)
        there = session.send("Runtime.evaluate", {"expression": "typeof axe"})
        if there["result"]["value"] == "undefined":
            session.send("Runtime.evaluate", {"expression": AXE_SCRIPT})
        expression = f"axe.run({excluded}{{resultTypes: ['violations']}})"
        answer = session.send(
            "Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True}
        )
        assert "exceptionDetails" not in answer, answer
        broken: list[dict[str, Any]] = answer["result"]["value"]["violations"]
        session.detach()
        return [
            f"{rule['id']} ({rule['impact']}): {rule['help']}: {[node['target'] for node in rule['nodes']]}"
            for rule in broken
        ]

    def figures(self) -> list[str]:
        """What is wrong with the figures that can be seen: no words for a screen reader, no label at an axis that is a
        scale (`view.blocks.SCALES`), or none at all, a text outside its figure or over another one, a text too small
        to read."""
        found: list[str] = self.page.evaluate(_FIGURES)
        return found

    def overflowing(self) -> list[str]:
        """Texts that are wider than the box they stand in."""
        found: list[str] = self.page.evaluate(_OVERFLOWING)
        return found

    def tab_stops(self, *, most: int = 400) -> list[dict[str, Any]]:
        """What the Tab key reaches from the top of the page, in order: tag, name, and whether the focus can be seen."""
        self.page.evaluate(
            "() => { const b = document.body; b.tabIndex = -1; b.focus(); b.blur(); b.removeAttribute('tabindex'); }"
        )
        found: list[dict[str, Any]] = []
        for _ in range(most):
            self.page.keyboard.press("Tab")
            here = self.page.evaluate(_FOCUSED)
            if here is None or (found and here["place"] == found[0]["place"]):
                return found
            found.append(here)
        raise AssertionError(f"more than {most} places to tab to, or a trap: {found[-3:]}")

    def unreachable(self) -> list[str]:
        """Visible controls that the Tab key does not reach, and stops whose focus cannot be seen."""
        stops = self.tab_stops()
        reached = {stop["place"] for stop in stops}
        controls = self.page.evaluate(_CONTROLS)
        lost = [one["what"] for one in controls if one["place"] not in reached]
        return lost + [f"no visible focus: {stop['what']}" for stop in stops if not stop["seen"]]


def sound(browser: Browser, report: Path) -> None:
    """What every page must withstand: at a desk and on a telephone, in light and in dark."""
    with Watched(browser, width=DESK) as watched:
        page = watched.open(report)
        assert page.locator("h1").count() == 1
        for width, scheme in ((DESK, "light"), (PHONE, "dark"), (PHONE, "light"), (DESK, "dark")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert watched.sideways() <= 0
            assert not (wrong := watched.figures()), wrong
            assert not (wide := watched.overflowing()), wide
            assert not (broken := watched.violations()), broken
            if (width, scheme) in ((DESK, "light"), (PHONE, "dark")):
                page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                assert watched.sideways() <= 0
                page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = false; })")
        watched.sound()


SMALLEST = 7.5
"""Pixels of a letter's height in a figure, at least."""
_FIGURES = """() => [...document.querySelectorAll("svg.drawn")].filter((svg) => svg.checkVisibility())
.flatMap((svg) => {
  const frame = svg.getBoundingClientRect(), wrong = [], name = svg.getAttribute("aria-label") || "";
  const scale = frame.width / svg.viewBox.baseVal.width;
  if (!name) wrong.push("no words");
  if (!svg.querySelector(".axis-label text")) wrong.push("no axis label");
  for (const axis of svg.dataset.scales || "")
    if (!svg.querySelector(`.axis-label.${axis} text`)) wrong.push(`no label at the ${axis} axis`);
  const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim());
  const boxes = texts.map((text) => text.getBoundingClientRect());
  texts.forEach((text, i) => {
    const box = boxes[i], words = text.textContent;
    if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 ||
        box.bottom > frame.bottom + 2) wrong.push(`outside: ${words}`);
    if (parseFloat(getComputedStyle(text).fontSize) * scale < SMALLEST) wrong.push(`too small: ${words}`);
    if (text.hasAttribute("transform")) return;
    for (let j = i + 1; j < texts.length; j++) {
      if (texts[j].hasAttribute("transform")) continue;
      const wide = Math.min(box.right, boxes[j].right) - Math.max(box.left, boxes[j].left);
      const high = Math.min(box.bottom, boxes[j].bottom) - Math.max(box.top, boxes[j].top);
      if (wide > 3 && high > 0.4 * box.height) wrong.push(`${words} over ${texts[j].textContent}`);
    }
  });
  return wrong.map((what) => `${name.slice(0, 60)}: ${what}`);
})""".replace("SMALLEST", str(SMALLEST))

_OVERFLOWING = """() => [...document.querySelectorAll(
  "p, li, dd, dt, td, th, h1, h2, h3, h4, summary, figcaption, figure, label, button, .glance > div, .runs article")]
.filter((e) => e.checkVisibility() && !e.closest(".quiet") && getComputedStyle(e).overflowX === "visible" &&
  e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && !e.querySelector(".wide, pre"))
.map((e) => `${e.tagName.toLowerCase()} ${e.textContent.trim().slice(0, 60)}`)"""

_PLACE = """
const place = (e) => { const path = []; for (; e && e.parentElement; e = e.parentElement)
  path.unshift([...e.parentElement.children].indexOf(e)); return path.join("."); };
const what = (e) => e.tagName.toLowerCase() + " " +
  (e.getAttribute("aria-label") || e.textContent || e.name || "").trim().slice(0, 60);
"""
_FOCUSED = (
    "() => {"
    + _PLACE
    + """
const e = document.activeElement;
if (!e || e === document.body || e === document.documentElement) return null;
const style = getComputedStyle(e), box = e.getBoundingClientRect();
const ringed = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
const seen = ringed && Math.min(box.width, box.height) >= 8;
return {place: place(e), what: what(e), seen}; }"""
)
_CONTROLS = (
    "() => {"
    + _PLACE
    + """
return [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")]
  .filter((e) => !e.disabled && e.checkVisibility({visibilityProperty: true}))
  .filter((e) => !(e.type === "radio" && !e.checked &&
      document.querySelector(`input[type=radio][name="${e.name}"]:checked`)))
  .map((e) => ({place: place(e), what: what(e)})); }"""
)
