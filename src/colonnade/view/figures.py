"""Figures of a view, drawn by matplotlib: on axes of the reader's own (`plot`), and as SVG inside a page (`svg`).

What a figure shows is data (`view.blocks.Figure`); this module is the only one that draws. An SVG has its texts as
texts, no identifiers, no references, no styles: a page stays free of anything that could be loaded, and its colours
follow the page's, light or dark. Sizes are CSS pixels: a narrow figure fits a telephone, a wide one a desk. What
differs in colour also differs in form, so that it can be read in greyscale.

matplotlib is imported when the first figure is drawn. Its pyplot, which keeps figures in global state, is not used.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from colonnade.formatting import number
from colonnade.view.blocks import ChartName, Figure
from colonnade.view.page import Html, join, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

NARROW, WIDE = 320.0, 680.0
MOST_ROWS = 24
"""A list of bars or intervals shows no more than this; the table has the rest."""
MOST_CELLS = 40
"""Columns of a heat map."""
MOST_PATTERNS = 15
MOST_LABELLED = 10
"""Paths that are named at their ends."""
ROW, FOOT = 19.0, 46.0
"""Height of one row, and of an axis with its label."""
LONGEST = 60
"""Characters of a name; a longer one loses its middle."""

INK, SOFT, LINE, PANEL = "#1c1f24", "#596273", "#d5dae1", "#f5f7f9"
BAR, EMPTY, NOISE = "#2f6f9f", "#9aa3af", "#b04a00"
COLOURS = {INK: "ink", SOFT: "soft", LINE: "line", PANEL: "panel", BAR: "bar", EMPTY: "empty", NOISE: "noise"}
"""The light palette of `view.page`; in a page each becomes the variable of that name."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MARKS = ("o", "D", "s", "^", "v", "x")

STYLE: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "colonnade",
    "font.family": ["DejaVu Sans"],
    "font.size": 11.0,
    "axes.labelsize": 11.0,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "legend.fontsize": 10.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.6,
    "hatch.color": SOFT,
    "hatch.linewidth": 0.6,
}
_STYLING = threading.Lock()
"""matplotlib's settings are global."""


# --- where a figure goes ------------------------------------------------------------------------------------------


class Display:
    """A drawn figure: `ax_` and `figure_` are matplotlib's, to change and to save; a notebook shows it."""

    def __init__(self, ax: Axes, title: str) -> None:
        self.ax_, self.title = ax, title

    @property
    def figure_(self) -> Canvas:
        figure: Any = self.ax_.get_figure()
        return figure  # type: ignore[no-any-return]

    def save(self, path: str | Path, **options: Any) -> None:
        """Write it to a file, in the format of its suffix; `options` as in matplotlib's `savefig`."""
        self.figure_.savefig(path, **options)

    def __repr__(self) -> str:
        return f"<Figure: {self.title}>"

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as file:
            self.figure_.savefig(file, format="png", dpi=110)
            return file.getvalue()


def plot(figure: Figure, *, ax: Axes | None = None) -> Display:
    """Draw on `ax`, or on axes of a new figure."""
    if ax is None:
        with _styled():
            ax = _axes(figure, WIDE)
            _draw(figure, ax, WIDE)
            ax.get_figure().set_facecolor("white")  # type: ignore[union-attr]
    else:
        _draw(figure, ax, WIDE)
    ax.set_title(_plain(figure.title), loc="left")
    return Display(ax, figure.title or figure.label)


def svg(figure: Figure, *, wide: bool = False) -> Html:
    """As an element of a page."""
    width = WIDE if wide else NARROW
    with _styled(), io.StringIO() as file:
        ax = _axes(figure, width)
        _draw(figure, ax, width)
        canvas: Any = ax.get_figure()
        canvas.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        root = ElementTree.fromstring(file.getvalue())  # noqa: S314  (what matplotlib has just written)
    height = float(str(root.get("viewBox")).split()[3])
    return tag(
        "svg",
        *_elements(root, {item.get("id"): item for item in root.iter() if item.get("id")}),
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=figure.label,
        class_="drawn wide-figure" if wide else "drawn",
    )


class _styled:
    """Our style, and no warning about characters that the measuring font lacks: a browser has another."""

    def __enter__(self) -> None:
        import matplotlib as mpl

        _STYLING.acquire()
        self._settings, self._warnings = mpl.rc_context(dict(STYLE)), warnings.catch_warnings()
        self._settings.__enter__()
        self._warnings.__enter__()
        warnings.filterwarnings("ignore", message="Glyph .* missing")

    def __exit__(self, *_: object) -> None:
        self._warnings.__exit__(None, None, None)
        self._settings.__exit__(None, None, None)
        _STYLING.release()


def _axes(figure: Figure, width: float) -> Axes:
    from matplotlib.figure import Figure as Canvas

    height = HEIGHTS[figure.chart](figure.data, width)
    canvas = Canvas(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
    canvas.get_layout_engine().set(w_pad=0.03, h_pad=0.03)  # type: ignore[union-attr]
    return canvas.add_subplot()


def _draw(figure: Figure, ax: Axes, width: float) -> None:
    CHARTS[figure.chart](ax, figure.data, width)
    ax.set_axisbelow(True)
    for axis, label in ((ax.xaxis, figure.x), (ax.yaxis, figure.y)):
        if label:
            axis.set_label_text(_wrapped(label, 44 if width < WIDE else 90))
            axis.label.set_gid("axis-label")


# --- an SVG that refers to nothing --------------------------------------------------------------------------------

_XLINK = "{http://www.w3.org/1999/xlink}href"
_DROPPED = ("font-family", "font-variant", "font-stretch", "clip-path", "id")
_WIDE_NUMBER = re.compile(r"-?\d+\.\d{2,}")


def _elements(parent: Any, named: Mapping[Any, Any]) -> list[Html]:
    """The parts of matplotlib's SVG as plain elements: references are followed, styles become attributes."""
    elements: list[Html] = []
    for item in parent:
        name = item.tag.partition("}")[2]
        if name in ("defs", "metadata"):
            continue
        if name == "use":
            original = named[item.get(_XLINK)[1:]]
            place = f"translate({item.get('x', '0')} {item.get('y', '0')})"
            stated = {"d": original.get("d"), **_attributes(original), **_attributes(item)}
            elements.append(tag("path", **_short({**stated, "x": None, "y": None, "transform": place})))
            continue
        attributes, children = _attributes(item), _elements(item, named)
        if name == "g" and not attributes:
            elements += children
        elif name != "g" or children:
            elements.append(tag(name, item.text.strip() if name == "text" and item.text else None, *children, **_short(attributes)))
    return elements


def _attributes(item: Any) -> dict[str, str]:
    attributes = {name: value for name, value in item.attrib.items() if name not in ("style", "id", _XLINK)}
    for entry in (item.get("style") or "").split("; "):
        name, _, value = entry.partition(": ")
        if name:
            attributes[name] = f"var(--{COLOURS[value]})" if value in COLOURS else value
    if item.get("id") == "axis-label":
        attributes["class"] = "axis-label"
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    return {name: value for name, value in attributes.items() if name not in _DROPPED}


def _short(attributes: Mapping[str, str | None]) -> dict[str, str]:
    """A tenth of a pixel is enough."""
    return {
        name: _WIDE_NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), " ".join(value.split()))
        for name, value in attributes.items()
        if value is not None
    }


# --- words ------------------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """A dollar sign is no formula."""
    return text.replace("$", r"\$")


def _wrapped(label: str, width: int) -> str:
    """In lines of about `width` characters, also at underscores; the middle of a very long name is left out."""
    if len(label) > LONGEST:
        half = (LONGEST - 1) // 2
        label = f"{label[:half]}…{label[-half:]}"
    # textwrap breaks at spaces: one after each underscore, taken out again.
    spaced = re.sub(r"([_/.])", "\\1\u200b ", label)
    lines = textwrap.wrap(spaced, width, break_long_words=True) or [""]
    return _plain("\n".join(line.replace("\u200b ", "").replace("\u200b", "") for line in lines))


def _names(labels: Sequence[str], width: float) -> list[str]:
    return [_wrapped(label, 17 if width < WIDE else 34) for label in labels]


def _rows(labels: Sequence[str], width: float) -> float:
    """The height of rows with these names."""
    lines = [name.count("\n") + 1 for name in _names(labels[:MOST_ROWS], width)]
    return sum(max(ROW, 13.0 * count + 4) for count in lines)


def _compact(value: float) -> str:
    """Of a count: 12,000 as 12k."""
    for size, suffix in ((1e9, "bn"), (1e6, "m"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.3g}{suffix}"
    return number(value)


def _counts(ax: Axes, axis: str = "x") -> None:
    """An axis of counts: few ticks, short numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    chosen = ax.xaxis if axis == "x" else ax.yaxis
    chosen.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=2))
    chosen.set_major_formatter(FuncFormatter(lambda value, _: _compact(value)))


def _ticks(ax: Axes, axis: str = "x", most: int = 5) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.locator_params(axis=axis, nbins=most) if not isinstance(ax.xaxis.get_major_locator(), MaxNLocator) else (
        ax.xaxis if axis == "x" else ax.yaxis
    ).set_major_locator(MaxNLocator(nbins=most))
