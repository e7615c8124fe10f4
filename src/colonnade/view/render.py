"""A view as HTML: one renderer for every method's result, in a report and in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from colonnade.errors import BadArguments
from colonnade.view.blocks import Block, Figure, Figures, Heading, Items, Section, Table, Text, View
from colonnade.view.figures import Display, plot, svg
from colonnade.view.page import Html, folded, join, listing, page, paragraph, prose, section, table, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Viewed(ABC):
    """What shows itself by a view: in a notebook, and figure by figure."""

    @abstractmethod
    def view(self) -> View:
        """Title, answer, quality and details, as values."""

    def __repr__(self) -> str:
        """What makes it unusable, then what it is."""
        view = self.view()
        return " ".join(
            (*(f"WARNING: {warning}" for warning in view.warnings), f"<{type(self).__name__}: {view.title}>")
        )

    def __str__(self) -> str:
        """What a terminal shows of it."""
        return view_text(self.view())

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of its figures, for `plot`."""
        return tuple(self.view().figures())

    def plot(self, name: str | None = None, *, ax: Axes | None = None) -> Display:
        """Draw one of the `figures`, by default the first, on matplotlib axes: yours, or new ones.

        The same figure as in the report. The `Display` that is returned has `ax_` and `figure_`, and `save(path)`.

        Parameters
        ----------
        name : one of `figures`; the first by default.
        ax : matplotlib axes to draw on; new ones by default.

        Returns
        -------
        A `Display` with `ax_`, `figure_` and `save(path)`.
        """
        drawn = self.view().figures()
        if not drawn:
            raise BadArguments("this result has no figure; print it, or see its report.")
        if name is not None and name not in drawn:
            raise BadArguments(f"there is no figure {name!r}; there are {', '.join(map(repr, drawn))}.")
        return plot(drawn[name] if name is not None else next(iter(drawn.values())), ax=ax)

    def _repr_html_(self) -> str:
        """In a notebook: the same view as in the report."""
        return notebook(self.view())


def view_text(view: View) -> str:
    """A view as plain text: what makes it unusable, what it is, how good it is, and the tables of a terminal."""
    parts = [*(f"WARNING: {warning}" for warning in view.warnings), view.title, view.quality]
    for block in view.tables() or [block for block in view.answer if isinstance(block, Table)]:
        parts += ["", *([block.title] if block.title != view.title else []), _table_text(block)]
    return "\n".join(parts)


def _table_text(block: Table) -> str:
    rows = [block.head, *block.rows[: block.shown]]
    widths = [max(len(row[place]) for row in rows) for place in range(len(block.head))]
    lines = [
        "  ".join(
            cell.rjust(width) if place in block.numeric else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def view_page(view: View) -> str:
    """A view as a page of its own."""
    parts = (tag("h1", view.title), render_warnings(view), paragraph(prose(view.quality), class_="soft"))
    return page(view.title, *parts, render_blocks(view.answer, level=2), *map(render_section, view.sections))


def render_warnings(view: View) -> Html:
    """What makes a result unusable, before anything else of it."""
    return join(paragraph(warning, class_="warning") for warning in view.warnings)


def notebook(view: View) -> str:
    """The same HTML as in a report, in a frame of its own, so that neither styles the other."""
    style = "width: 100%; height: 32rem; border: 0"
    return tag("iframe", srcdoc=view_page(view), sandbox="", title=view.title, style=style)


def render_blocks(blocks: Sequence[Block], *, level: int = 3) -> Html:
    """`level` is that of their headings: 2 where no section is around them."""
    return join(_block(block, level) for block in blocks)


def render_section(part: Section) -> Html:
    return section(part.title, render_blocks(part.blocks))


def _block(block: Block, level: int) -> Html:
    if isinstance(block, Text):
        return paragraph(prose(block.text), class_=None if block.style == "plain" else block.style)
    if isinstance(block, Items):
        return listing(map(prose, block.items)) if block.items else join([])
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Heading):
        return tag(f"h{level}", block.text)
    if isinstance(block, Figure):
        return _figure(block, wide=True)
    return _figures(block, level)


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


def _figures(block: Figures, level: int) -> Html:
    charts = tag("div", *map(_figure, block.figures), class_="charts")
    return section(block.title, charts, level=level) if block.title else charts


def _figure(figure: Figure, *, wide: bool = False) -> Html:
    """A `wide` one is drawn twice: for a desk, and for a telephone."""
    numbers = None
    if figure.numbers is not None:
        note = paragraph(figure.note) if figure.note else None
        numbers = folded("Numbers", _table(figure.numbers), note)
    return tag(
        "figure",
        paragraph(figure.title, class_="title") if figure.title else None,
        svg(figure),
        svg(figure, wide=True) if wide else None,
        tag("figcaption", figure.caption) if figure.caption else None,
        numbers,
        class_="single" if wide else None,
    )
