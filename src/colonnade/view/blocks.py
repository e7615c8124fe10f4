"""What a result shows, as values: the terminal, the HTML report and a notebook render the same view.

A method's result makes its view in its own file. The view is stored in the run folder, so a report can be written
again without the method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from colonnade.codec import TAG, convert, plain, tagged

ChartName = Literal[
    "bars",
    "histogram",
    "intervals",
    "dots",
    "paths",
    "upset",
    "blocks",
    "heatmap",
    "weights",
    "scree",
    "arrows",
    "curves",
    "stair",
    "parts",
    "hundred",
]

SCALES: Mapping[ChartName, str] = {
    "bars": "x",
    "histogram": "xy",
    "intervals": "x",
    "dots": "x",
    "paths": "xy",
    "upset": "x",
    "blocks": "xy",
    "heatmap": "",
    "weights": "",
    "scree": "xy",
    "arrows": "xy",
    "curves": "xy",
    "stair": "xy",
    "parts": "x",
    "hundred": "",
}
"""The axes of each chart that are scales: a figure says what they show, and in which unit. The others hold names, which
speak for themselves; where they are ranges of a column's numbers, the figure says of which."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph. A `lead` opens a page, `soft` explains, a `warning` must be seen."""

    text: str
    style: Literal["plain", "lead", "soft", "warning"] = "plain"


@dataclass(frozen=True, kw_only=True)
class Items:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells as text; `numeric` columns are set flush right. Rows beyond `shown` are folded.

    `terminal`: a terminal shows it too, with at most `shown` rows if that is stated.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...] = ()
    shown: int | None = None
    terminal: bool = False


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart with its data as plain values; `label` describes it where it cannot be seen, `x` and `y` are what its
    axes show. A result's `plot` finds it by its `name`.

    The data of each chart, what may be left out in brackets (`view.figures` draws them; all numbers finite):

    bars        labels, values, [noise: sd of one value], [whole: the value that fills the width], [empty_last: true if
                the last bar is that of empty cells], [released: {counts, sd}, measured values beside synthetic ones],
                [truth: true values beside synthetic ones]
    histogram   counts, edges, [noise], [ticks: the edges as texts, such as dates], [released, truth: as of bars]; a
                count beyond the edges, that of empty cells, is not drawn
    intervals   labels, centres, lows, highs, [name: of the estimate], [others: {what: values or None}]
    dots        labels, series: {what: values}, [signed: true if zero is a line, not the end]
    paths       lambdas, paths: {name: coefficients}, chosen: the index of a lambda, names: those that were chosen
    upset       parties, patterns: who has the records, counts, [noise]
    blocks      parties, columns: how many each has, patterns, counts
    heatmap     labels, matrix: values between -1 and 1, [unknown: true where noise hides a pair]
    weights     labels, across: names of the columns of cells, matrix: values between -1 and 1
    scree       values, [floor: what noise alone would show]
    arrows      labels, across, up
    curves      lines: {name: (across, up)} in the unit square, diagonal: what it means, [mark]
    stair       times: in seconds since 1970, values, now, [budget]
    parts       parts: {what: value}, at most two, budget: what they are parts of
    hundred     counts: {what: how many of 100}
    """

    chart: ChartName
    data: Mapping[str, Any]
    label: str
    name: str = ""
    title: str = ""
    caption: str = ""
    x: str = ""
    y: str = ""
    numbers: Table | None = None
    """The same numbers as a table, folded under the figure."""
    note: str = ""
    """A sentence under these numbers."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Charts side by side, under a heading if there is one."""

    figures: tuple[Figure, ...]
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """Opens a part of a section."""

    text: str


Block = Text | Items | Table | Figure | Figures | Heading


@dataclass(frozen=True, kw_only=True)
class Section:
    """What stands behind the answer, under a title of its own."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class View:
    """The answer first, then what stands behind it.

    `quality` is one sentence: how good the result is, as far as anyone may know without looking at data again.
    `warnings` make a result unusable for what it looks like; they come before everything else, wherever it is shown.
    """

    title: str
    quality: str
    answer: tuple[Block, ...]
    sections: tuple[Section, ...] = ()
    warnings: tuple[str, ...] = ()
    terminal: tuple[Table, ...] = ()
    """What a terminal shows, where that is not the answer's own tables."""

    def tables(self) -> tuple[Table, ...]:
        """What a terminal shows."""
        tables = (block for block in self.answer if isinstance(block, Table) and block.terminal)
        return self.terminal or tuple(tables)

    def figures(self) -> dict[str, Figure]:
        """All figures by their names, in the order in which they are shown.

        A column may be called what another figure is called (`score`): the first keeps the name.
        """
        every = (*self.answer, *(block for section in self.sections for block in section.blocks))
        listed = [figure for block in every for figure in _figures(block)]
        named: dict[str, Figure] = {}
        for figure in listed:
            name = figure.name or figure.title
            if named.get(name, figure) != figure:
                name = f"column {name}"
            if name:
                named[name] = figure
        return named

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "quality": self.quality,
            "answer": _blocks(self.answer),
            "sections": [{"title": section.title, "blocks": _blocks(section.blocks)} for section in self.sections],
            "warnings": list(self.warnings),
            "terminal": [plain(section) for section in self.terminal],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> View:
        view: View = convert(stored, cls, "view.json")
        return view


def _figures(block: Block) -> tuple[Figure, ...]:
    return block.figures if isinstance(block, Figures) else (block,) if isinstance(block, Figure) else ()


def _blocks(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    return [tagged(block) for block in blocks]


__all__ = ["TAG", "Block", "Figure", "Figures", "Heading", "Items", "Section", "Table", "Text", "View"]
