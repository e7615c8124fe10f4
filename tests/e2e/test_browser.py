"""The browser checks themselves: each is shown a page with the fault that it is there to find."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from colonnade.view.page import page, paragraph, section
from support.browser import PHONE, Watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HEAD = '<!doctype html><html lang="en"><head><title>x</title><link rel="icon" href="data:,">{}</head><body><main>'


def shown(browser: Browser, tmp_path: Path, body: str, head: str = "") -> Watched:
    file = tmp_path / "page.html"
    file.write_text(HEAD.format(head) + f"<h1>x</h1>{body}</main></body></html>")
    watched = Watched(browser, width=PHONE)
    watched.open(file)
    return watched


def test_a_sound_page_passes_every_check(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page("sound", section("A page", paragraph("with nothing wrong"), level=1)))
    with Watched(browser, width=PHONE, dark=True) as watched:
        watched.open(file)
        assert not watched.violations()
        assert not watched.unreachable()
        assert watched.sideways() == 0
        watched.sound()


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ('<img src="http://192.0.2.1/x.png" alt="x">', ""),
        ("", '<style>@import "http://192.0.2.1/x.css";</style>'),
    ],
)
def test_a_load_from_outside_is_seen(browser: Browser, tmp_path: Path, body: str, head: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(HEAD.format(head) + f"<h1>x</h1>{body}</main></body></html>")
    with Watched(browser) as watched:
        watched.page.route("http://**", lambda route: route.abort())
        watched.open(file)
        assert watched.outside()
        with pytest.raises(AssertionError):
            watched.sound()


def test_a_script_that_fails_is_heard(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, tmp_path, "<script>nothing.here()</script>") as watched:
        assert watched.complaints


def test_a_page_that_is_too_wide_is_measured(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, tmp_path, '<div style="width: 500px">x</div>') as watched:
        assert watched.sideways() > 0


def test_a_text_that_leaves_its_box_is_found(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, tmp_path, '<p style="width: 60px">a_name_that_cannot_be_broken</p><p>fits</p>') as seen:
        assert seen.overflowing() == ["p a_name_that_cannot_be_broken"]


def test_a_control_out_of_reach_or_without_focus_ring_is_found(browser: Browser, tmp_path: Path) -> None:
    body = (
        '<button tabindex="-1">lost</button><a href="#x" style="outline: none">blind</a>'
        '<button style="position: absolute; width: 1px; height: 1px; padding: 0; border: 0">tiny</button>'
    )
    with shown(browser, tmp_path, body) as watched:
        found = " ".join(watched.unreachable())
        assert "button lost" in found
        assert "no visible focus: a blind" in found
        assert "no visible focus: button tiny" in found


def test_axe_finds_a_serious_fault(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, tmp_path, '<p style="color: #bbb; background: #fff">pale</p><input>') as watched:
        found = " ".join(watched.violations())
        assert "color-contrast" in found
        assert "label" in found
