"""A tiny HTML toolkit: one self-contained page that loads nothing and runs nothing.

Text is escaped unless it is `Html`, and only this module makes `Html`; adding strings to it gives a plain string
again, which is escaped once more. So a hostile column name stays a name.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

SHORT, LONG = 16, 40
"""Characters of a table's cell that stay on one line, and that need a wide column."""
FEW_NOTES = 4
VOID = frozenset({"meta", "link", "br", "hr", "input"})


class Html(str):
    """Markup that needs no escaping."""

    __slots__ = ()


Attribute = str | float | bool | None


def tag(name: str, /, *children: str | None, **attributes: Attribute) -> Html:
    """An element. `class_` becomes class, other underscores hyphens; None and False leave an attribute out."""
    stated = {key: value for key, value in attributes.items() if value is not None and value is not False}
    written = "".join(_attribute(key, value) for key, value in stated.items())
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def _attribute(name: str, value: Attribute) -> str:
    spelled = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {spelled}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {spelled}="{html.escape(text, quote=True)}"'


def join(parts: Iterable[str | None]) -> Html:
    """Parts in a row; what is not `Html` is escaped, None is left out."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts if part is not None))


def prose(text: str) -> Html:
    """A sentence with `code` in it."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick that opens nothing
        return join([text])
    return join(tag("code", part) if place % 2 else part for place, part in enumerate(parts))


def paragraph(*children: str | None, **attributes: Attribute) -> Html:
    return tag("p", *children, **attributes)


def section(title: str, *children: str | None, level: int = 2, **attributes: Attribute) -> Html:
    return tag("section", tag(f"h{level}", title), *children, **attributes)


def listing(items: Iterable[str]) -> Html:
    return tag("ul", *(tag("li", item) for item in items))


def notes(sentences: Sequence[str], *, single: str = "Column '") -> list[Html]:
    """A paragraph each; those on single columns, of which there may be hundreds, folded together at the end."""
    apart = [sentence for sentence in sentences if sentence.startswith(single)]
    if len(apart) <= FEW_NOTES:
        return [paragraph(prose(sentence)) for sentence in sentences]
    shown = [paragraph(prose(sentence)) for sentence in sentences if sentence not in apart]
    return [*shown, folded(f"What to expect of each of {len(apart)} columns", listing(map(prose, apart)))]


def folded(summary: str, *children: str | None) -> Html:
    """Closed until a reader opens it; open on paper."""
    return tag("details", tag("summary", summary), *children)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    label: str,
    numeric: Collection[int] = (),
) -> Html:
    """A table that scrolls sideways on a narrow screen. The first cell of each row is its heading; `numeric` columns
    are set flush right."""

    def side(column: int, cell: str = "") -> str | None:
        if column in numeric:
            return "number"
        if isinstance(cell, Html):
            return "words"
        return "sentence" if len(cell) > LONG else "words" if len(cell) > SHORT else None

    def body(row: Sequence[str]) -> Html:
        first, *cells = row
        return tag(
            "tr",
            tag("th", first, scope="row", class_=side(0, first if " " in first else "")),  # a name is not broken
            *(
                tag("td", cell if isinstance(cell, Html) else prose(cell), class_=side(column, cell))
                for column, cell in enumerate(cells, start=1)
            ),
        )

    top = tag(
        "tr",
        *(
            tag("th", cell, scope="col", class_=side(column)) if cell else tag("td")  # a heading says something
            for column, cell in enumerate(head)
        ),
    )
    inner = tag("table", tag("thead", top), tag("tbody", *map(body, rows)))
    return tag("div", inner, class_="wide", role="region", aria_label=label, tabindex="0")


def page(title: str, *children: str | None) -> str:
    """A page whose security policy forbids scripts and any request, whatever the content."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return document(title, tag("main", *children), style=CSS, policy=policy)


def document(title: str, *body: Html, style: str, policy: str | None = None) -> str:
    """The whole document; `policy` where no header brings one."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy) if policy else None,
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(style)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


CSS = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1f24; --soft: #596273; --line: #d5dae1; --panel: #f5f7f9;
  --bar: #2f6f9f; --empty: #9aa3af; --noise: #b04a00; --warn-paper: #fff3e0; --warn-line: #b04a00; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15181c; --ink: #e6e9ed; --soft: #a5aebb; --line: #363d47; --panel: #1d2126; --bar: #6db1e0;
    --empty: #6b7482; --noise: #ffa057; --warn-paper: #33240f; --warn-line: #ffa057; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.1rem; margin: 1.75rem 0 .5rem; }
p, li { max-width: 52rem; overflow-wrap: anywhere; }
.soft, figcaption, caption { color: var(--soft); }
.glance { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: 1rem;
  margin: 1rem 0 1.5rem; }
.glance > div { background: var(--panel); border: 1px solid var(--line); border-top: 3px solid var(--bar);
  border-radius: 6px; padding: .75rem 1rem; min-width: 0; break-inside: avoid; }
.glance dt { font-weight: 700; margin-bottom: .35rem; } .glance dd { margin: 0; font-size: .95rem; }
.glance p { margin: 0 0 .5rem; } .glance ul { margin: 0; padding-left: 1.1rem; } .strong { font-weight: 600; }
.runs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: 1rem;
  margin: 1rem 0; }
.runs article { background: var(--panel); border: 1px solid var(--line); border-top: 3px solid var(--bar);
  border-radius: 6px; padding: .75rem 1rem; min-width: 0; font-size: .92rem; }
.runs h3 { margin: 0 0 .25rem; } .runs p { margin: 0 0 .4rem; } .runs dl, .runs dd { margin: 0; }
.runs dt { font-weight: 700; margin-top: .6rem; } .runs ul { margin: 0; padding-left: 1.1rem; }
.quiet { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.lead { font-size: 1.1rem; }
.warning { border: 2px solid var(--warn-line); background: var(--warn-paper); padding: .75rem 1rem; border-radius: 6px;
  font-weight: 600; max-width: none; }
.wide { overflow-x: auto; margin: .75rem 0; scrollbar-width: thin; scrollbar-color: var(--empty) var(--panel);
  background: linear-gradient(to left, var(--paper) 2rem, transparent) right / 4rem 100% no-repeat local,
    linear-gradient(to left, var(--line), transparent) right / 1rem 100% no-repeat scroll; }
figure .wide, .card .wide { --paper: var(--panel); }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 600; overflow-wrap: break-word; } td { white-space: nowrap; }
.words, .sentence { white-space: normal; overflow-wrap: break-word; min-width: 7rem; }
.sentence { min-width: 12rem; overflow-wrap: anywhere; }
.number { text-align: right; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1rem;
  align-items: start; }
figure { margin: 0; padding: .75rem; background: var(--panel); border: 1px solid var(--line); border-radius: 6px;
  min-width: 0; break-inside: avoid; }
figure .title { margin: 0; font-weight: 700; overflow-wrap: anywhere; }
figcaption { font-size: .85rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; margin: .5rem 0; }
svg.drawn { max-width: 30rem; stroke-linejoin: round; }
figure.single { margin: 1rem 0; max-width: 52rem; } svg.wide-figure { max-width: 50rem; }
.single svg.drawn:not(.wide-figure) { display: none; }
@media (max-width: 44rem) { .single svg.wide-figure { display: none; }
  .single svg.drawn:not(.wide-figure) { display: block; } }
details { margin: .5rem 0; } summary { cursor: pointer; font-size: .9rem; }
summary:focus-visible, .wide:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px; }
a { color: var(--bar); } a:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px; }
.whole { white-space: nowrap; }
@media (max-width: 34rem) { table { font-size: .84rem; } th, td { padding-right: .5rem; } }
code { font: .88em ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
@media print {
  :root { --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --panel: #fff; --bar: #2f6f9f; }
  html { font-size: 10px; } main { max-width: none; padding: 0; }
  details::details-content { content-visibility: visible; display: block; height: auto; }
  figure details { display: none; } .wide { overflow: visible; }
}
"""
