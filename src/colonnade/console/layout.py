"""The frame of every page: head, navigation, style, and one small script that keeps a page up to date.

Style and script are inline and allowed by their hash, so the security policy lets nothing else in.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from colonnade.view.page import CSS, Html, document, join, paragraph, tag

STYLE = (
    CSS
    + """
:root { --good: #1d6b3f; --good-paper: #e5f4ea; --bad: #a3241c; --bad-paper: #fdeceb; --accent: #235c87; }
@media (prefers-color-scheme: dark) {
  :root { --good: #7fd1a0; --good-paper: #15301f; --bad: #ff9d94; --bad-paper: #3a1a18; --accent: #8cc4ea; }
}
a { color: var(--accent); text-underline-offset: .15em; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
.skip { position: absolute; left: -999rem; } .skip:focus { left: 1rem; top: .5rem; background: var(--paper);
  padding: .5rem .75rem; z-index: 2; }
header { border-bottom: 1px solid var(--line); background: var(--panel); }
.top { max-width: 66rem; margin: 0 auto; padding: .75rem 1rem 0; display: flex; gap: .5rem;
  align-items: baseline; justify-content: space-between; }
.mark { display: inline-block; width: 1.25rem; height: 1.25rem; margin: 0 .45rem 0 0; vertical-align: -.22rem;
  fill: var(--accent); }
.brand { min-width: 0; overflow-wrap: anywhere; font-weight: 700; letter-spacing: .01em; }
.brand span { color: var(--soft); font-weight: 400; }
header form { margin: 0; }
nav ul { list-style: none; margin: .4rem 0 0 -.6rem; padding: 0; display: flex; flex-wrap: wrap; }
nav { max-width: 66rem; margin: 0 auto; padding: 0 1rem; }
nav a { display: block; padding: .45rem .6rem .5rem; color: var(--ink); text-decoration: none;
  border-bottom: 3px solid transparent; }
nav a:hover { border-color: var(--line); } nav a[aria-current] { border-color: var(--accent); font-weight: 600; }
.count { display: inline-block; min-width: 1.35em; padding: 0 .35em; border-radius: 1em; text-align: center;
  background: var(--accent); color: var(--paper); font-size: .8rem; font-weight: 700; }
main { padding-top: 1.25rem; } main section { margin-top: 2.25rem; }
main h2:first-child { border: 0; padding: 0; margin-top: 0; }
h1 + p { margin-top: .25rem; } h1 + .big { margin-top: 1rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 14.5rem), 1fr)); gap: 1rem;
  margin: 1rem 0; padding: 0; list-style: none; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.1rem;
  min-width: 0; max-width: none; }
.card h2, .card h3 { font-size: 1rem; margin: 0 0 .35rem; border: 0; padding: 0; overflow-wrap: anywhere; }
.card p { margin: .3rem 0; } .card > :last-child { margin-bottom: 0; }
.big { font-size: 1.9rem; line-height: 1.15; font-weight: 650; font-variant-numeric: tabular-nums; }
.unit { font-size: 1rem; font-weight: 400; color: var(--soft); }
.stack { display: grid; gap: 1rem; margin: 1rem 0; padding: 0; list-style: none; }
.stack > li { max-width: none; }
.badge { display: inline-block; padding: .05rem .55rem; border-radius: 1em; font-size: .82rem; font-weight: 600;
  border: 1px solid currentcolor; white-space: nowrap; }
.good { color: var(--good); background: var(--good-paper); } .bad { color: var(--bad); background: var(--bad-paper); }
.wait { color: var(--warn-line); background: var(--warn-paper); } .plain { color: var(--soft); }
.note { border-left: 4px solid var(--line); padding: .1rem 0 .1rem .9rem; margin: 1rem 0; }
.note.good { border-color: var(--good); background: none; color: inherit; }
.note.bad { border-color: var(--bad); background: none; color: inherit; }
.warning { overflow-wrap: anywhere; } .warning p { margin: 0; max-width: none; }
.decide { display: flex; flex-wrap: wrap; gap: .75rem; align-items: center; margin: 1rem 0; }
button { font: inherit; font-weight: 600; padding: .5rem 1.1rem; border-radius: 7px; cursor: pointer;
  border: 1.5px solid var(--accent); background: var(--paper); color: var(--accent); }
button.main { background: var(--accent); color: var(--paper); }
button.refuse { border-color: var(--bad); color: var(--bad); }
button.textual { border: 0; background: none; padding: .1rem .2rem; font-weight: 400; text-decoration: underline;
  color: var(--accent); text-underline-offset: .15em; }
button:hover { filter: brightness(1.08); } button:disabled { opacity: .55; cursor: not-allowed; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.1rem; margin: .75rem 0; max-width: 60rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
@media (max-width: 34rem) { .wide table { min-width: 40rem; } .card .wide table { min-width: 0; } }
.leaves { list-style: none; padding: 0; margin: .75rem 0; } .leaves li { border-top: 1px solid var(--line);
  padding: .55rem 0; max-width: none; } .leaves p { margin: .1rem 0; }
progress, meter { display: block; appearance: none; width: 100%; height: .6rem; margin: .5rem 0 .3rem; border: 0;
  border-radius: 4px; overflow: hidden; background: var(--line); }
::-webkit-progress-bar, ::-webkit-meter-bar { background: var(--line); border: 0; height: .6rem; }
::-webkit-progress-value, ::-webkit-meter-optimum-value { background: var(--bar); }
::-moz-progress-bar, ::-moz-meter-bar { background: var(--bar); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--panel); border: 1px solid var(--line);
  border-radius: 6px; padding: .75rem; font: .85rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
td .soft { font-size: .9em; } .pager { display: flex; gap: 1.5rem; }
main footer { border-top: 1px solid var(--line); padding-top: .75rem; }
.glance { max-width: none; } .glance dt { color: inherit; }
.field { margin: .9rem 0; max-width: 44rem; } .field label { display: block; font-weight: 600; }
.field p { margin: .15rem 0; }
.field input, .field select, .field textarea { font: inherit; width: 100%; padding: .4rem .55rem;
  border: 1px solid var(--soft); border-radius: 6px; background: var(--paper); color: var(--ink); }
@media print { header nav, .decide, .skip { display: none; } }
"""
)

# Asks for the changing part of the page again, and leaves it alone while the reader is inside it with the keyboard.
SCRIPT = """
(() => {
  const live = document.getElementById("live");
  if (!live) return;
  let last = null;
  const look = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, {headers: {"X-Part": "live"}, cache: "no-store"});
        if (answer.status === 401) { location.reload(); return; }
        const text = await answer.text();
        if (!answer.ok || text === last) { }
        else if (last === null) last = text;
        else if (!live.contains(document.activeElement)) { live.innerHTML = text; last = text; }
      } catch (lost) { }
    }
    setTimeout(look, 3000);
  };
  setTimeout(look, 500);
})();
"""


# Three columns under one roof.
MARK = tag(
    "svg",
    tag("path", d="M2 7 12 2l10 5v2H2zM4 11h3v8H4zM10.5 11h3v8h-3zM17 11h3v8h-3zM2 20h20v2H2z"),
    viewBox="0 0 24 24",
    class_="mark",
    aria_hidden="true",
)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src '{_hash(STYLE)}'",
        f"script-src '{_hash(SCRIPT)}'",
        "connect-src 'self'",
        "img-src data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the console is served, and the word that its forms must bring back."""

    base: str
    form_token: str

    def job(self, name: str) -> str:
        return f"{self.base}requests/{quote(name, safe='')}"

    def form(self, action: str, button: Html, *controls: Html | None, sure: str = "", **fields: str) -> Html:
        """A button that sends what is in the controls, these fields, and the session's word; with `sure`, only once
        this sentence is ticked."""
        hidden = {"form": self.form_token, **fields}.items()
        inputs = [tag("input", type="hidden", name=name, value=value) for name, value in hidden]
        if sure:
            tick = tag("input", type="checkbox", name="sure", value="yes", required=True)
            inputs.append(paragraph(tag("label", tick, " ", sure)))
        return tag("form", *controls, *inputs, button, method="post", action=self.base + action)


@dataclass(frozen=True)
class Page:
    """`changing` is the part that the page's script asks for again; `agreed`: not in answer to a form that failed."""

    title: str
    content: Html
    changing: Html | None = None
    agreed: bool = True


def bare(title: str, *children: str | None) -> str:
    """A page without navigation, for a visitor who has not entered."""
    return _document(title, tag("main", tag("h1", title), *children))


def framed(
    page: Page, address: Address, *, party: str, pages: Sequence[tuple[str, str]], current: str, waiting: int
) -> str:
    """A page of the console; `current` is its entry in the navigation, `waiting` are requests for a decision."""
    links = []
    for path, name in pages:
        count = tag("span", str(waiting), class_="count") if path == "requests" and waiting else None
        link = tag(
            "a",
            join([name, " ", count]) if count else name,
            href=address.base + path,
            aria_current="page" if path == current else None,
            aria_label=f"{name}, {waiting} waiting" if count else None,
        )
        links.append(tag("li", link))
    header = tag(
        "header",
        tag(
            "div",
            tag("div", MARK, "Colonnade ", tag("span", f"console of {party}"), class_="brand"),
            address.form("leave", tag("button", "Leave", class_="textual")),
            class_="top",
        ),
        tag("nav", tag("ul", *links), aria_label="Pages"),
    )
    skip = tag("a", "Skip to the content", href="#content", class_="skip")
    part = None if page.changing is None else tag("div", page.changing, id="live")
    main = tag("main", page.content, part, id="content", tabindex="-1")
    return _document(f"{page.title} · {party} · Colonnade", skip, header, main)


def _document(title: str, *body: Html) -> str:
    return document(title, *body, tag("script", Html(SCRIPT)), style=STYLE)
