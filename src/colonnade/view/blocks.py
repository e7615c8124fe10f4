"""What a result shows, as values: the terminal, the HTML report and a notebook render the same view.

A method's result makes its view in its own file. The view is stored in the run folder, so a report can be written
again without the method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from colonnade.codec import TAG, convert, plain, tagged

ChartName = Literal["bars", "histogram", "quantiles", "intervals", "line"]


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
    """A chart by name with its data as plain values; `label` describes it where it cannot be seen.

    The data of each chart, what may be left out in brackets (`view.charts` draws them; all numbers finite):

    bars        labels, values, [noise: sd of one value], [whole: the value that fills the width], [empty_last: true if
                the last bar is that of empty cells]
    histogram   labels, counts, edges, [noise], [ticks: the edges as texts, such as dates]; a count beyond the edges,
                that of empty cells, is not drawn
    quantiles   quantiles: {"0.05": ..., "0.25": ..., "0.5": ..., "0.75": ..., "0.95": ...}, [texts: the same as texts]
    intervals   labels, centres, lows, highs, [truths]
    line        values, mark: the index of the one that is marked
    """

    chart: ChartName
    data: Mapping[str, Any]
    label: str
    title: str = ""
    caption: str = ""
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
        own = (block for block in self.answer if isinstance(block, Table) and block.terminal)
        return self.terminal or tuple(own)

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


def _blocks(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    return [tagged(block) for block in blocks]


__all__ = ["TAG", "Block", "Figure", "Figures", "Heading", "Items", "Section", "Table", "Text", "View"]
