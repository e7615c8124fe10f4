"""A view as HTML: one renderer for every method's result, in a report and in a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from colonnade.view.blocks import Block, Figure, Figures, Heading, Items, Section, Table, Text, View
from colonnade.view.charts import draw
from colonnade.view.page import Html, folded, join, listing, page, paragraph, section, table, tag


def view_page(view: View) -> str:
    """A view as a page of its own."""
    parts = (tag("h1", view.title), render_warnings(view), paragraph(view.quality, class_="soft"))
    return page(view.title, *parts, render_blocks(view.answer), *map(render_section, view.sections))


def render_warnings(view: View) -> Html:
    """What makes a result unusable, before anything else of it."""
    return join(paragraph(warning, class_="warning") for warning in view.warnings)


def notebook(view: View) -> str:
    """The same HTML as in a report, in a frame of its own, so that neither styles the other."""
    style = "width: 100%; height: 32rem; border: 0"
    return tag("iframe", srcdoc=view_page(view), sandbox="", title=view.title, style=style)


def render_blocks(blocks: Sequence[Block]) -> Html:
    return join(map(_block, blocks))


def render_section(part: Section) -> Html:
    return section(part.title, render_blocks(part.blocks))


def _block(block: Block) -> Html:
    if isinstance(block, Text):
        return paragraph(block.text, class_=None if block.style == "plain" else block.style)
    if isinstance(block, Items):
        return listing(block.items) if block.items else join([])
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Heading):
        return tag("h3", block.text)
    if isinstance(block, Figure):
        # A chart without words of its own belongs to the text around it.
        alone = not (block.title or block.caption or block.numbers)
        return draw(block) if alone else _figures(Figures(figures=(block,)))
    return _figures(block)


def _table(block: Table) -> Html:
    """The first rows, and behind a fold all of them."""

    def drawn(rows: Sequence[Sequence[str]], label: str) -> Html:
        return table(block.head, rows, label=label, numeric=block.numeric)

    if block.shown is None or len(block.rows) <= block.shown:
        return drawn(block.rows, block.title)
    if block.shown == 0:
        return folded(block.title, drawn(block.rows, block.title))
    every = drawn(block.rows, f"{block.title}, all rows")
    return join([drawn(block.rows[: block.shown], block.title), folded(f"All {len(block.rows):,} rows", every)])


def _figures(block: Figures) -> Html:
    charts = tag("div", *map(_figure, block.figures), class_="charts")
    return section(block.title, charts, level=3) if block.title else charts


def _figure(figure: Figure) -> Html:
    numbers = None
    if figure.numbers is not None:
        note = paragraph(figure.note) if figure.note else None
        numbers = folded("Numbers", _table(figure.numbers), note)
    return tag(
        "figure",
        tag("h4", figure.title) if figure.title else None,
        draw(figure),
        tag("figcaption", figure.caption) if figure.caption else None,
        numbers,
    )
