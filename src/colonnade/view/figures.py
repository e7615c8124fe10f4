"""Figures of a view, drawn by matplotlib: on axes of the reader's own (`plot`), and as SVG inside a page (`svg`).

What a figure shows is data (`view.blocks.Figure`); this module is the only one that draws. An SVG has its texts as
texts, no identifiers, no references, no styles: a page stays free of anything that could be loaded, and its colours
follow the page's, light or dark. Sizes are CSS pixels: a narrow figure fits a telephone, a wide one a desk. What
differs in colour also differs in form, so that it can be read in greyscale.

matplotlib is imported when the first figure is drawn. Its pyplot, which keeps figures in global state, is not used.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import textwrap
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from colonnade.formatting import number
from colonnade.view.blocks import SCALES, ChartName, Figure
from colonnade.view.page import Html, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

NARROW, WIDE = 320.0, 600.0
MOST_ROWS = 24
"""A list of bars or intervals shows no more than this; the table has the rest."""
FEW_ROWS = 8
"""Up to so many names have as many lines as they need."""
MOST_CELLS = 40
"""Columns of a wide heat map; a narrow one has a third of them."""
NUMBERED, SIGN_SHOWN = 26.0, 0.1
"""Pixels of a cell that has room for its number; in a smaller one a dash marks a value this far below zero, since
colours alone do not print in grey."""
FEW_CELLS = 8
"""With fewer columns than this its cells are squares."""
MOST_PATTERNS = 15
MOST_LABELLED = 10
"""Paths that are named at their ends."""
ROW, FOOT, APART = 19.0, 46.0, 7.0
"""Height of one row, of an axis with its label, and between two marks in a row."""
LONGEST = 60
"""Characters of a name; a longer one loses its middle."""
BEYOND, NARROWER, FEWEST_BARS = 0.1, 10.0, 3
"""A long tail with this share of the records, at most, is not drawn if the rest is so many times narrower, and has
so many bars."""

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
        self.figure_.savefig(path, **{"dpi": 150, **options})

    def __repr__(self) -> str:
        return f"<Figure: {self.title}>"

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as file:
            self.figure_.savefig(file, format="png", dpi=110)
            return file.getvalue()


_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Control characters, which a cell of a table may have, and XML may not."""


def plot(figure: Figure, *, ax: Axes | None = None) -> Display:
    """Draw on `ax`, or on axes of a new figure."""
    if ax is None:
        with _styled():
            ax = _axes(figure, WIDE)
            _draw(figure, ax, WIDE)
            ax.get_figure().set_facecolor("white")  # type: ignore[union-attr]
    else:
        _draw(figure, ax, WIDE)
    ax.set_title(_plain(figure.title), loc="left", pad=20 if _headed(figure) else None)
    return Display(ax, figure.title or figure.label)


def svg(figure: Figure, *, wide: bool = False) -> Html:
    """As an element of a page."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    width = WIDE if wide else NARROW
    with _styled(), io.StringIO() as file:
        ax = _axes(figure, width)
        _draw(figure, ax, width)
        canvas: Any = ax.get_figure()
        # Laid out with this backend's measures, and no more when it is saved: that would draw everything twice.
        FigureCanvasSVG(canvas)
        canvas.get_layout_engine().execute(canvas)
        canvas.set_layout_engine(None)
        canvas.savefig(
            file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
        root = ElementTree.fromstring(_NOT_XML.sub("\ufffd", file.getvalue()))
    height = float(str(root.get("viewBox")).split()[3])
    return tag(
        "svg",
        *_elements(root, {item.get("id"): item for item in root.iter() if item.get("id")}),
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=figure.label,
        class_="drawn wide-figure" if wide else "drawn",
        data_scales=SCALES[figure.chart],
    )


@contextlib.contextmanager
def _styled() -> Iterator[None]:
    """Our style, and no warning about characters that the measuring font lacks: a browser has another."""
    import matplotlib as mpl

    style: Any = dict(STYLE)
    with _STYLING, mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def _axes(figure: Figure, width: float) -> Axes:
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    height = HEIGHTS[figure.chart](figure.data, width) + (16.0 if _headed(figure) else 0.0)
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06)
    return Canvas(figsize=(width / 72, height / 72), dpi=72, layout=layout).add_subplot()


def _headed(figure: Figure) -> bool:
    """Is there a line above rows of names that says what they are, unless the title does? Upright at their side it
    would need more rows."""
    return SCALES[figure.chart] == "x" and figure.y not in ("", figure.title)


def _draw(figure: Figure, ax: Axes, width: float) -> None:
    CHARTS[figure.chart](ax, figure.data, width)
    ax.set_axisbelow(True)
    upright = "" if SCALES[figure.chart] == "x" else figure.y
    for axis, label, line, name in ((ax.xaxis, figure.x, 44, "x"), (ax.yaxis, upright, 28, "y")):
        if label:
            axis.set_label_text(_lines(label, line if width < WIDE else 2 * line))
            axis.label.set_gid(f"{LABEL} {name}")
    if _headed(figure):
        shown = _plain(_shortened(figure.y, 30 if width < WIDE else 60))
        ax.text(0.0, 1.0, shown, va="bottom", transform=ax.transAxes, gid=f"{LABEL} y")


# --- an SVG that refers to nothing --------------------------------------------------------------------------------

LABEL = "axis-label"
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
            elements.append(
                tag(name, item.text.strip() if name == "text" and item.text else None, *children, **_short(attributes))
            )
    return elements


def _attributes(item: Any) -> dict[str, str]:
    attributes = {name: value for name, value in item.attrib.items() if name not in ("style", "id", _XLINK)}
    for entry in (item.get("style") or "").split("; "):
        name, _, value = entry.partition(": ")
        if name:
            attributes[name] = f"var(--{COLOURS[value]})" if value in COLOURS else value
    if item.get("id", "").startswith(LABEL):
        attributes["class"] = item.get("id")
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


def _shortened(label: str, most: int) -> str:
    """Both ends of a long name: names often differ in their last words only."""
    half = (most - 1) // 2
    return label if len(label) <= most else f"{label[:half].rstrip()}…{label[-half:].lstrip()}"


def _wrapped(label: str, width: int) -> str:
    """In lines of about `width` characters, also at underscores; the middle of a very long name is left out."""
    return _lines(_shortened(label, LONGEST), width)


def _lines(label: str, width: int) -> str:
    # textwrap breaks at spaces: one after each underscore, taken out again.
    spaced = re.sub(r"([_/.])", "\\1\u200b ", label)
    lines = textwrap.wrap(spaced, width, break_long_words=True) or [""]
    return _plain("\n".join(line.replace("\u200b ", "").replace("\u200b", "") for line in lines))


def _names(labels: Sequence[str], width: float) -> list[str]:
    """Two lines each where there are many of them: more would make a list of bars several screens long."""
    line = 17 if width < WIDE else 34
    most = LONGEST if len(labels) <= FEW_ROWS else 2 * line - line // 3  # lines break at words, before their end
    return [_lines(label, line) for label in _told_apart(labels, most)]


def _told_apart(labels: Sequence[str], most: int) -> list[str]:
    """Each shortened; those that would become alike keep what differs, and lose what they begin with."""
    short = [_shortened(label, most) for label in labels]
    for alike in (name for name, count in Counter(short).items() if count > 1):
        places = [place for place, name in enumerate(short) if name == alike]
        signs = zip(*(labels[place] for place in places), strict=False)
        same = "".join(sign[0] for sign in takewhile(lambda each: len(set(each)) == 1, signs))
        start = same.rfind("[") + 1 or max(same.rfind(sign) + 1 for sign in " _/.")  # of a level, or of a word
        for place in places:
            kept = f"{labels[place][: min(start, most // 4)]}…{labels[place][start:]}"
            short[place] = kept if len(kept) <= most else f"{kept[: most - 1]}…"
    return short


def _heights(labels: Sequence[str], width: float, room: float = ROW) -> list[float]:
    """Of rows with these names, in pixels, each with at least so much room."""
    return [max(room, 13.0 * (name.count("\n") + 1) + 4) for name in _names(labels[:MOST_ROWS], width)]


def _rows(ax: Axes, labels: Sequence[str], width: float, room: float = ROW) -> tuple[Any, Any]:
    """Name the rows of the y axis from the top down: (their middles, the heights of bars in them)."""
    heights = np.array(_heights(labels, width, room))
    middles = np.cumsum(heights) - heights / 2
    ax.set_yticks(middles, _names(labels[: len(middles)], width))
    rest = len(labels) - len(middles)
    ax.set_ylim(heights.sum() + (ROW if rest else 0.0), 0)  # what is left out is said below the last row
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    if rest:
        ax.text(
            1.0, 0.01, f"and {rest:,} more in the table", ha="right", va="bottom", color=SOFT, transform=ax.transAxes
        )
    return middles, np.full(len(middles), 0.62 * ROW)


def _compact(value: float, largest: float | None = None) -> str:
    """Of a count: 12,000 as 12k; on an axis in the unit of the `largest`."""
    for least, size, suffix in ((1e12, 1e12, "tn"), (1e9, 1e9, "bn"), (1e6, 1e6, "m"), (1e4, 1e3, "k")):
        if value and abs(value if largest is None else largest) >= least:
            return f"{value / size:.3g}{suffix}"
    return number(value)


# --- the charts ---------------------------------------------------------------------------------------------------
#
# Each takes axes, the figure's data and its width; `view.blocks.Figure` says what the data of each are.


def bars(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """One bar a label, with its value; whiskers are two standard deviations of the noise. A noisy count below zero is
    drawn as zero, the table has it as it is. What was released, or is true, is a diamond, with its own whiskers."""
    labels, values = data["labels"], np.asarray(data["values"], dtype=np.float64)
    middles, thick = _rows(ax, labels, width)
    shown, noise = np.maximum(values[: len(middles)], 0.0), float(data.get("noise", 0.0))
    drawn = ax.barh(middles, shown, height=thick, color=BAR)
    if data.get("empty_last") and len(middles) == len(labels):
        drawn[-1].set(facecolor=EMPTY)
    if noise > 0:
        _whiskers(ax, shown, middles, 2 * noise)
    beside = _beside(data)
    if beside is not None:
        measured, sd = (values[: len(middles)] for values in beside[:2])
        measured = np.maximum(measured, 0.0)
        if sd.any():
            _whiskers(ax, measured, middles, 2 * sd)
        ax.plot(measured, middles, "D", color=NOISE, markersize=6, markeredgecolor=PANEL, clip_on=False)
        _key(ax, [("synthetic", _patch(BAR)), (beside[2], _mark("D", NOISE))])
    else:
        for place, value, true in zip(middles, shown, values, strict=False):
            ax.annotate(
                _compact(true), (value + 2 * noise, place), (4, 0), textcoords="offset points", va="center", color=SOFT
            )
    top = max(float(data.get("whole", 1.0)), float(shown.max(initial=0.0)) + 2 * noise)
    if beside is not None:
        top = max(top, float((measured + 2 * sd).max(initial=0.0)))
    ax.set_xlim(0, top * (1.18 if beside is None else 1.03))
    _count_axis(ax.xaxis)
    if "whole" in data:  # nothing can be more
        ax.set_xticks([tick for tick in ax.get_xticks() if tick <= top])
        ax.spines["bottom"].set_bounds(0, top)


def histogram(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """Bars between the edges of a numeric column, and a band of two standard deviations of the noise. A last count
    beyond the edges, that of empty cells, is not drawn: it would set the scale. A cell that is wider than the others,
    such as a tail, is as high as what it holds in their width: otherwise its area would tell of many records."""
    edges = np.asarray(data["edges"], dtype=np.float64)
    held = np.maximum(np.asarray(data["counts"], dtype=np.float64)[: len(edges) - 1], 0.0)
    usual = np.minimum(np.median(np.diff(edges)) / np.diff(edges), 1.0)
    counts, noise, beside = held * usual, float(data.get("noise", 0.0)) * usual, _beside(data)
    ax.stairs(counts, edges, fill=True, color=BAR, alpha=0.55 if data.get("noise") or beside else 0.85, linewidth=0)
    ax.stairs(counts, edges, color=BAR, linewidth=1.0)
    highest = float((counts + 2 * noise).max(initial=0.0))
    if data.get("noise"):
        _band(ax, counts - 2 * noise, counts + 2 * noise, edges)
        _key(ax, [("noisy count", _patch(BAR)), ("± 2 sd of its noise", _patch(NOISE, 0.3))])
    if beside is not None:
        level, sd = (usual * values[: len(usual)] for values in beside[:2])
        if sd.any():
            _band(ax, level - 2 * sd, level + 2 * sd, edges)
        ax.stairs(np.maximum(level, 0.0), edges, color=NOISE, linewidth=1.4, linestyle=DASHES[1], baseline=None)
        highest = max(highest, float(np.max(level + 2 * sd, initial=0.0)))
        _key(ax, [("synthetic", _patch(BAR, 0.55)), (beside[2], _stroke(NOISE, DASHES[1]))])
    first, last = _middle(held, edges)
    ax.set_xlim(edges[first], edges[last])
    ax.set_ylim(0, 1.05 * max(highest, 1.0))
    if last - first < len(counts):
        left_out = 1 - held[first:last].sum() / held.sum()
        ax.text(0.98, 0.97, _tail(left_out, first > 0), ha="right", va="top", color=SOFT, transform=ax.transAxes)
    _count_axis(ax.yaxis)
    texts = data.get("ticks")
    if texts is not None:  # the edges are no numbers
        places = np.unique(np.linspace(first, last, 3 if width < WIDE else 5).round().astype(int))
        ax.set_xticks(edges[places], [_plain(texts[place]) for place in places])
    else:
        _number_axis(ax.xaxis, most=5 if width < WIDE else 8, whole=bool((edges == edges.round()).all()))


def _beside(data: Mapping[str, Any]) -> tuple[Any, Any, str] | None:
    """What is drawn beside synthetic counts: (values, the deviations of their noise, what they are)."""
    if "truth" in data:
        truth = np.asarray(data["truth"], dtype=np.float64)
        return truth, np.zeros(len(truth)), "truth"
    if data.get("released") is None:
        return None
    counts, sd = (np.asarray(data["released"][name], dtype=np.float64) for name in ("counts", "sd"))
    return counts, sd, "released ± 2 sd of its noise"


def _middle(counts: Any, edges: Any) -> tuple[int, int]:
    """The first and the last edge to draw: all of them, or those without a long tail that holds little. On declared
    decades the rest would be one line at the bound."""
    first, last, left_out = 0, len(counts), 0.0
    while last - first > FEWEST_BARS:
        ends = {first: edges[first + 1] - edges[first], last - 1: edges[last] - edges[last - 1]}
        widest = max(ends, key=lambda place: (ends[place], -counts[place]))
        left_out += float(counts[widest])
        if left_out > BEYOND * counts.sum():
            break
        first, last = (first + 1, last) if widest == first else (first, last - 1)
    narrower = (edges[-1] - edges[0]) / (edges[last] - edges[first])
    return (first, last) if narrower >= NARROWER and last - first >= FEWEST_BARS else (0, len(counts))


def _tail(part: float, both: bool) -> str:
    return f"{'less than 1' if part < 0.01 else f'{100 * part:.0f}'} % {'outside' if both else 'beyond'}"


def intervals(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """An estimate with its interval for each label, on a common scale with zero marked; `others` are further values
    for the same labels, by what they are."""
    others = data.get("others", {})
    middles, _ = _rows(ax, data["labels"], width, room=_interval_room(data))
    count, places = len(middles), middles - APART * len(others) / 2
    centres, lows, highs = (np.asarray(data[name], dtype=np.float64)[:count] for name in ("centres", "lows", "highs"))
    ax.axvline(0.0, color=SOFT, linewidth=1.0, linestyle=DASHES[1], zorder=0)
    ax.hlines(places, lows, highs, color=BAR, linewidth=2.2)
    for ends in (lows, highs):
        ax.plot(ends, places, "|", color=BAR, markersize=8, markeredgewidth=1.4)
    ax.plot(centres, places, "o", color=BAR, markersize=5)
    entries = [(data.get("name", "estimate, 95 % interval"), _mark("o", BAR))]
    for mark, (name, values) in zip(MARKS[1:], others.items(), strict=False):
        places = places + APART
        own = np.asarray(values, dtype=np.float64)[:count]
        ax.plot(own, places, mark, markersize=5.5, markerfacecolor="none", markeredgecolor=NOISE, markeredgewidth=1.3)
        entries.append((name, _mark(mark, NOISE, hollow=True)))
    if len(entries) > 1:
        _key(ax, entries)
    ax.grid(axis="x", color=LINE, linewidth=0.6)
    ax.margins(x=0.04)
    _number_axis(ax.xaxis, most=5 if width < WIDE else 9)


def _interval_room(data: Mapping[str, Any]) -> float:
    """A row with further marks under the estimate is higher, and apart from the next."""
    others = len(data.get("others", ()))
    return ROW + (APART + 3.0) * others


def dots(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """Several values for each label, each kind with its own mark."""
    middles, _ = _rows(ax, data["labels"], width)
    entries = []
    values = [np.asarray(row, dtype=np.float64)[: len(middles)] for row in data["series"].values()]
    ax.hlines(middles, np.nanmin(values, axis=0), np.nanmax(values, axis=0), color=LINE, linewidth=1.5, zorder=0)
    for place, (name, row) in enumerate(zip(data["series"], values, strict=True)):
        colour, hollow = (BAR, False) if place == 0 else (NOISE if place == 1 else INK, True)
        ax.plot(
            row,
            middles,
            MARKS[place],
            color=colour,
            markersize=6,
            markerfacecolor="none" if hollow else colour,
            clip_on=False,
        )
        entries.append((name, _mark(MARKS[place], colour, hollow=hollow)))
    if data.get("signed"):
        ax.axvline(0.0, color=SOFT, linewidth=1.0, linestyle=DASHES[1], zorder=0)
    else:
        ax.set_xlim(left=0)
    if len(entries) > 1:
        _key(ax, entries)
    ax.grid(axis="x", color=LINE, linewidth=0.6)
    _number_axis(ax.xaxis, most=5 if width < WIDE else 8)


def paths(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """Coefficients along the penalty, from the largest to the smallest; those that were chosen are named."""
    lambdas = np.asarray(data["lambdas"], dtype=np.float64)
    chosen, marked = data["chosen"], set(data["names"])
    largest = sorted(marked, key=lambda name: -abs(data["paths"][name][chosen]))[:MOST_LABELLED]
    for name, values in data["paths"].items():
        if name not in marked:
            ax.plot(lambdas, values, color=EMPTY, linewidth=0.8)
    for place, name in enumerate(name for name in data["paths"] if name in marked):
        ax.plot(lambdas, data["paths"][name], color=BAR, linestyle=DASHES[place % len(DASHES)])
    ax.axhline(0.0, color=SOFT, linewidth=0.8)
    ax.axvline(lambdas[chosen], color=NOISE, linestyle=DASHES[1], linewidth=1.2)
    ax.set_xscale("log")
    if len(set(lambdas)) > 1:
        ax.set_xlim(lambdas.max(), lambdas.min())
    ticks = _log_ticks(lambdas.min(), lambdas.max())
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    _number_axis(ax.yaxis, most=6)
    low, high = ax.get_ylim()
    ends = _apart(
        [(data["paths"][name][-1], name) for name in largest], (high - low) * 14 / (0.8 * HEIGHTS["paths"](data, width))
    )
    shown = dict(zip(largest, _told_apart(largest, 17 if width < WIDE else 34), strict=True))  # a line each
    for level, name in ends:
        ax.annotate(
            _plain(shown[name]),
            (lambdas.min(), level),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9.5,
        )
    ax.annotate(
        "chosen", (lambdas[chosen], high), (0, 2), textcoords="offset points", ha="center", va="bottom", color=NOISE
    )


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, or round numbers where fewer than two lie between."""
    for steps in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(ticks) > 2:
            return ticks[:: math.ceil(len(ticks) / 5)]
    return [low, high]


def _apart(ends: Sequence[tuple[float, str]], least: float) -> list[tuple[float, str]]:
    """The same names at levels that are at least so far apart, each as near to its own as that allows."""
    ordered = sorted(ends)
    levels = np.array([level for level, _ in ordered], dtype=np.float64)
    for _ in range(50):
        for place in range(1, len(levels)):
            gap = least - (levels[place] - levels[place - 1])
            if gap > 0:
                levels[place - 1] -= gap / 2
                levels[place] += gap / 2
    return [(float(level), name) for level, (_, name) in zip(levels, ordered, strict=True)]


def upset(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """Who shares how many records: a row for each combination of parties, its dots joined, and its noisy number."""
    parties = data["parties"]
    order = np.argsort(-np.asarray(data["counts"], dtype=np.float64), kind="stable")[:MOST_PATTERNS]
    counts = np.maximum(np.asarray(data["counts"], dtype=np.float64)[order], 0.0)
    masks = np.asarray(data["patterns"], dtype=bool)[order]
    noise, rows = 2 * float(data.get("noise", 0.0)), np.arange(len(order))
    top = max(float(counts.max(initial=0.0)) + noise, 1.0)
    ax.barh(rows, counts, height=0.62, color=BAR)
    if noise > 0:
        _whiskers(ax, counts, rows, noise)
    for row, count in zip(rows, counts, strict=True):
        ax.annotate(_compact(count), (count + noise, row), (4, 0), textcoords="offset points", va="center", color=SOFT)
    # The matrix of dots stands left of zero: as many pixels a party, in units of the axis.
    step = (17.0 if width < WIDE else 30.0) * 1.2 * top / (width - 17.0 * len(parties) - 20)
    places = -step * (np.arange(len(parties), 0, -1) - 0.2)
    for row, mask in zip(rows, masks, strict=True):
        ax.plot(places, np.full(len(places), row), "o", markersize=6.5, color=LINE)
        ax.plot(places[mask], np.full(mask.sum(), row), "o-", markersize=6.5, color=INK, linewidth=1.6)
    ax.set_xlim(places[0] - step / 2, 1.16 * top)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.spines["bottom"].set_bounds(0, 1.16 * top)
    for place, party in zip(places, parties, strict=True):
        ax.annotate(
            _plain(_shortened(party, LONGEST)),
            (place, -0.5),
            (3, 2),
            textcoords="offset points",
            rotation=60,
            ha="left",
            va="bottom",
            rotation_mode="anchor",
        )
    rest = len(data["counts"]) - len(rows)
    if rest > 0:
        words = f"and {rest:,} smaller ones in the table"
        ax.text(1.0, 0.02, words, ha="right", va="bottom", color=SOFT, transform=ax.transAxes)
    _count_axis(ax.xaxis, most=6 if width < WIDE else 8)  # some of them lie left of zero
    ax.set_xticks([tick for tick in ax.get_xticks() if 0 <= tick <= 1.16 * top])


def blocks(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """Who has which block: a column for each party, as wide as it has columns, a band for each pattern of records,
    as high as it has records."""
    parties, counts = data["parties"], np.maximum(np.asarray(data["counts"], dtype=np.float64), 0.0)
    masks = np.asarray(data["patterns"], dtype=bool)
    order = np.lexsort([~masks[:, place] for place in reversed(range(len(parties)))])
    tops = np.concatenate([[0.0], np.cumsum(counts[order])])
    # Narrow blocks stay visible: an even share of a third of the width, the rest by the number of columns.
    columns = np.asarray(data["columns"], dtype=np.float64)
    wide = columns.sum() / 3 / len(columns) + 2 / 3 * columns
    lefts = np.cumsum(wide) - wide + 0.03 * columns.sum() * np.arange(len(wide))
    for place, (left, party_width) in enumerate(zip(lefts, wide, strict=True)):
        ax.barh(
            0.0, party_width, left=left, height=tops[-1], align="edge", facecolor="none", edgecolor=EMPTY, linewidth=0.8
        )
        held = masks[order, place]
        starts = np.flatnonzero(held & ~np.concatenate([[False], held[:-1]]))
        ends = np.flatnonzero(held & ~np.concatenate([held[1:], [False]])) + 1
        ax.barh(tops[starts], party_width, left=left, height=tops[ends] - tops[starts], align="edge", color=BAR)
    ax.set_ylim(tops[-1], 0)
    beside = 0.01 * columns.sum()
    ax.set_xlim(lefts[0] - beside, lefts[-1] + wide[-1] + beside)
    narrow = width < WIDE
    names = [
        _wrapped(name, 24) if narrow else f"{_wrapped(name, 24)}\n{count:g}"
        for name, count in zip(parties, columns, strict=True)
    ]
    slanted: dict[str, Any] = {"rotation": 50, "ha": "left", "rotation_mode": "anchor"} if narrow else {}
    ax.set_xticks(lefts + wide / 2, names, **slanted)
    ax.xaxis.tick_top()
    ax.tick_params(axis="x", length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    _count_axis(ax.yaxis)
    _key(ax, [("has the record", _patch(BAR)), ("lacks it", _patch("none", edge=EMPTY))])


def heatmap(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """Associations of pairs of columns, the darker the stronger; a cross marks a pair of which the noise hides it."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    labels, matrix = data["labels"], np.asarray(data["matrix"], dtype=np.float64)
    unknown = np.asarray(data.get("unknown", np.zeros(matrix.shape)), dtype=bool)
    most = _most_cells(width)
    if len(labels) > most:  # those with the strongest associations
        strength = np.abs(np.where(unknown, 0.0, matrix) - np.diag(np.diag(matrix))).max(axis=0)
        taken = np.sort(np.argsort(-strength, kind="stable")[:most])
        ax.set_title(f"strongest {most} of {len(labels)}", loc="left", fontsize="medium", color=SOFT)
        labels, (matrix, unknown) = (
            [labels[t] for t in taken],
            (part[np.ix_(taken, taken)] for part in (matrix, unknown)),
        )
    down, across = np.tril_indices(len(labels), -1)
    values = matrix[down, across]
    squares = [[(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)] for x, y in zip(across, down, strict=True)]
    tints = [(*to_rgb(colour), opacity) for colour, opacity in map(_tint, values)]
    ax.add_collection(PolyCollection(squares, facecolors=tints, edgecolors=LINE, linewidths=0.4))
    hidden = unknown[down, across]
    ax.plot(across[hidden] + 0.5, down[hidden] + 0.5, "x", color=INK, markersize=_cross(len(labels), width))
    signed = (values <= -SIGN_SHOWN) & ~hidden & (_cell(len(labels), width) < NUMBERED)
    if _cell(len(labels), width) >= NUMBERED:
        for x, y, value, crossed in zip(across, down, values, hidden, strict=True):
            if not crossed:
                ax.text(x + 0.5, y + 0.5, _decimals(value), **_in_a_cell(value))
    ax.set_xlim(0, max(len(labels) - 1, 1))
    ax.set_ylim(max(len(labels), 2), 1)
    names = [_plain(name) for name in _told_apart(labels, 20 if width < WIDE else 34)]
    small: dict[str, Any] = {"fontsize": 9.5 if len(labels) <= 20 else 8}
    ax.set_xticks(np.arange(len(labels) - 1) + 0.5, names[:-1], rotation=90, **small)
    ax.set_yticks(np.arange(1, len(labels)) + 0.5, names[1:], **small)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.plot(across[signed] + 0.5, down[signed] + 0.5, "_", color=INK, markersize=0.4 * _cell(len(labels), width))
    if len(labels) < FEW_CELLS:
        ax.set_aspect("equal", anchor="W")
    entries = [(f"{value:g}", _patch(*_tint(value))) for value in (-0.8, -0.3, 0.3, 0.8)]
    if signed.any():
        entries.append(("negative", _mark("_", INK)))
    if hidden.any():
        entries.append(("hidden by noise", _mark("x", INK)))
    _key(ax, entries, columns=min(len(entries), 3) if width < WIDE and len(entries) > 4 else len(entries))


def weights(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """A cell for each label and each name across, the darker the larger; its number stands in it where there is room,
    otherwise a dash in the middle marks one below zero."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    most = _most_cells(width)
    middles, _ = _rows(ax, data["labels"], width)
    matrix, across = np.asarray(data["matrix"], dtype=np.float64)[: len(middles), :most], data["across"][:most]
    heights = np.array(_heights(data["labels"], width))
    cells = [(x, y, matrix[row, x], heights[row]) for row, y in enumerate(middles) for x in range(len(across))]
    squares = [
        [(x, y - high / 2), (x + 1, y - high / 2), (x + 1, y + high / 2), (x, y + high / 2)] for x, y, _, high in cells
    ]
    tints = [(*to_rgb(colour), opacity) for colour, opacity in (_tint(value) for _, _, value, _ in cells)]
    ax.add_collection(PolyCollection(squares, facecolors=tints, edgecolors=LINE, linewidths=0.4))
    numbered = _cell(len(across), width) >= NUMBERED
    for x, y, value, _ in cells if numbered else ():
        ax.text(x + 0.5, y, _decimals(value), **_in_a_cell(value))
    signed = [(x + 0.5, y) for x, y, value, _ in cells if not numbered and value <= -SIGN_SHOWN]
    if signed:
        ax.plot(*zip(*signed, strict=True), "_", color=INK, markersize=0.4 * _cell(len(across), width))
        _key(ax, [("negative", _mark("_", INK))])
    ax.set_xlim(0, max(len(across), 4))  # a few of them stay narrow
    every = math.ceil(len(across) / (10 if width < WIDE else 20))
    ax.set_xticks(np.arange(len(across))[::every] + 0.5, [_plain(name) for name in across[::every]])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    if len(data["across"]) > most:
        ax.set_title(f"first {most} of {len(data['across'])}", loc="left", fontsize="medium", color=SOFT)


def _decimals(value: float) -> str:
    """Of a number between -1 and 1: .12 or -.12."""
    return f"{value:z.2f}".replace("0.", ".")


def _in_a_cell(value: float) -> dict[str, Any]:
    """How a number is set in its cell."""
    return {"ha": "center", "va": "center", "fontsize": 9, "color": INK if abs(value) < 0.7 else PANEL}


def _tint(value: float) -> tuple[str, float]:
    """(colour, opacity) of an association."""
    return BAR if value >= 0 else NOISE, 0.06 + 0.94 * min(abs(float(value)), 1.0)


def _cross(count: int, width: float) -> float:
    return min(max(2.0, 0.35 * _cell(count, width)), 12.0)


def _most_cells(width: float) -> int:
    return MOST_CELLS if width >= WIDE else MOST_CELLS // 3


def _cell(count: int, width: float) -> float:
    """The size of a heat map's square, in pixels, nearly."""
    return float((width - (120 if width < WIDE else 180)) / max(count, 1))


def _heatmap_height(labels: Sequence[str], width: float) -> float:
    count = min(len(labels), _most_cells(width))
    if count < FEW_CELLS:  # squares of about 46 pixels, and names that stand below them
        return 46.0 * max(count - 1, 1) + 6.0 * min(max(map(len, labels)), 20 if width < WIDE else 34) + 80
    return count * min(max(_cell(count, width), 10.0), 30.0) + 170


def scree(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """The variance of each component, and what noise alone would show."""
    values = np.asarray(data["values"], dtype=np.float64)
    places = np.arange(1, len(values) + 1)
    ax.bar(places, np.maximum(values, 0.0), width=0.62, color=BAR)
    floor = float(data.get("floor", 0.0))
    if floor > 0:
        ax.axhline(floor, color=NOISE, linestyle=DASHES[1])
        _key(ax, [("noise alone shows up to this", _stroke(NOISE, DASHES[1]))])
    ax.set_xlim(0.4, len(values) + 0.6)
    ax.set_ylim(0, 1.08 * max(float(values.max(initial=0.0)), floor, 1e-12))
    every = max(1, math.ceil(len(values) / (8 if width < WIDE else 20)))
    ax.set_xticks(places[::every])
    _number_axis(ax.yaxis, most=5)


def arrows(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """Each variable as an arrow: its weights in two components."""
    x, y = (np.asarray(data[name], dtype=np.float64) for name in ("across", "up"))
    reach = 1.12 * max(float(np.abs([x, y]).max(initial=0.0)), 1e-12)
    longest = np.argsort(-np.hypot(x, y))[:MOST_LABELLED]
    for place, (end_x, end_y) in enumerate(zip(x, y, strict=True)):
        strong = place in longest
        ax.annotate(
            "",
            (end_x, end_y),
            (0, 0),
            arrowprops={"arrowstyle": "->", "color": BAR if strong else EMPTY, "shrinkA": 0, "shrinkB": 0},
        )
    for side in (True, False):
        ends = [(float(y[place]), str(place)) for place in longest if (x[place] >= 0) == side]
        for level, index in _apart(ends, 2 * reach * 13 / (HEIGHTS["arrows"](data, width) - FOOT)):
            ax.annotate(
                _wrapped(data["labels"][int(index)], 16),
                (x[int(index)], level),
                (3 if side else -3, 0),
                textcoords="offset points",
                ha="left" if side else "right",
                va="center",
                fontsize=9.5,
            )
    ax.axhline(0.0, color=LINE, linewidth=0.8, zorder=0)
    ax.axvline(0.0, color=LINE, linewidth=0.8, zorder=0)
    ax.set_xlim(-1.5 * reach, 1.5 * reach)
    ax.set_ylim(-reach, reach)
    for axis in (ax.xaxis, ax.yaxis):
        _number_axis(axis, most=5)


def curves(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """Lines in the unit square, with its diagonal: {name: (across, up)}."""
    ax.plot((0, 1), (0, 1), color=SOFT, linewidth=1.0, linestyle=DASHES[2])
    entries = [(data["diagonal"], _stroke(SOFT, DASHES[2]))]
    for place, (name, (across, up)) in enumerate(data["lines"].items()):
        colour = (BAR, NOISE, INK)[place % 3]
        ax.plot(across, up, color=colour, linestyle=DASHES[place % 2], marker=data.get("mark", ""), markersize=4)
        entries.append((name, _stroke(colour, DASHES[place % 2])))
    _key(ax, entries)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    ax.grid(color=LINE, linewidth=0.6)


def stair(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """What counted against a budget, over time, under the line of the budget."""
    times, values = [*data["times"], data["now"]], [*data["values"], data["values"][-1]]
    budget = data.get("budget")
    ax.fill_between(times, values, step="post", color=BAR, alpha=0.2, linewidth=0)
    ax.step(times, values, where="post", color=BAR)
    top = max(values)
    if budget is not None:
        ax.axhline(budget, color=NOISE, linestyle=DASHES[1])
        ax.annotate(
            f"budget {budget:g}", (times[0], budget), (2, 3), textcoords="offset points", color=NOISE, va="bottom"
        )
        top = max(top, budget)
    ax.annotate(f"{values[-1]:.3g}", (times[-1], values[-1]), (3, 0), textcoords="offset points", va="center")
    span = max(times[-1] - times[0], 1.0)
    ax.set_xlim(times[0] - 0.02 * span, times[0] + 1.06 * span)
    ax.set_ylim(0, 1.18 * max(top, 1e-12))
    form = "%d %b %Y" if span > 90 * 86_400 else "%d %b" if span > 3 * 86_400 else "%d %b %H:%M"
    ticks: dict[str, float] = {}
    for place in np.linspace(times[0], times[-1], 3 if width < WIDE else 5)[:-1]:
        ticks.setdefault(time.strftime(form, time.gmtime(place)), float(place))  # a label once
    ax.set_xticks([*ticks.values(), times[-1]], [*ticks, "now"])
    _number_axis(ax.yaxis, most=5)


def parts(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """One bar as long as a budget: its parts one after another, and what is left of it."""
    budget, start, entries = float(data["budget"]), 0.0, list[tuple[str, Any]]()
    looks: tuple[dict[str, Any], ...] = ({"facecolor": BAR}, {"facecolor": NOISE, "alpha": 0.45, "edgecolor": NOISE})
    for (name, value), look in zip(data["parts"].items(), looks, strict=False):
        entries.append((f"{name} {value:.3g}", ax.barh(0.0, value, left=start, height=1.0, **look)))
        start += value
    if start < budget:
        left = ax.barh(0.0, budget - start, left=start, height=1.0, facecolor="none", edgecolor=SOFT, linewidth=0.8)
        entries.append((f"{'then ' * (len(entries) > 1)}left {budget - start:.3g}", left))
    else:
        entries.append((f"budget {budget:g}", ax.axvline(budget, color=INK, linestyle=DASHES[1])))
    ax.set_xlim(0, 1.01 * max(start, budget))
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    _number_axis(ax.xaxis, most=5 if width < WIDE else 9)
    _key(ax, entries)


def hundred(ax: Axes, data: Mapping[str, Any], width: float) -> None:
    """A hundred guesses as marks, ten in a row: {what they are: how many}."""
    place, entries = 0, []
    looks = ((BAR, "o", False), (NOISE, "s", False), (EMPTY, "x", False))
    for (name, count), (colour, mark, hollow) in zip(data["counts"].items(), looks, strict=False):
        if not count:  # marks of none, which are not clipped, would be laid out far away
            continue
        spots = np.arange(place, place + count)
        ax.plot(spots % 20, spots // 20, mark, color=colour, markersize=8 if width < WIDE else 11, clip_on=False)
        entries.append((f"{count} {name}", _mark(mark, colour, hollow=hollow)))
        place += count
    ax.set_xlim(-0.5, 19.5)
    ax.set_ylim(4.5, -0.5)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)
    _key(ax, entries, columns=1)


CHARTS: Mapping[ChartName, Callable[[Axes, Mapping[str, Any], float], None]] = {
    "bars": bars,
    "histogram": histogram,
    "intervals": intervals,
    "dots": dots,
    "paths": paths,
    "upset": upset,
    "blocks": blocks,
    "heatmap": heatmap,
    "weights": weights,
    "scree": scree,
    "arrows": arrows,
    "curves": curves,
    "stair": stair,
    "parts": parts,
    "hundred": hundred,
}
HEIGHTS: Mapping[ChartName, Callable[[Mapping[str, Any], float], float]] = {
    "bars": lambda data, width: sum(_heights(data["labels"], width)) + FOOT + (20 if _beside(data) else 0),
    "histogram": lambda data, width: 190.0 if width < WIDE else 240.0,
    "intervals": lambda data, width: (
        sum(_heights(data["labels"], width, _interval_room(data))) + FOOT + 18 * (1 + len(data.get("others", ())))
    ),
    "dots": lambda data, width: sum(_heights(data["labels"], width)) + FOOT + 18 * len(data["series"]),
    "paths": lambda data, width: 250.0 if width < WIDE else 340.0,
    "upset": lambda data, width: (
        ROW * min(len(data["counts"]), MOST_PATTERNS) + FOOT + 30 + 5.5 * min(max(map(len, data["parties"])), LONGEST)
    ),
    "blocks": lambda data, width: 290.0 if width < WIDE else 320.0,
    "heatmap": lambda data, width: _heatmap_height(data["labels"], width),
    "weights": lambda data, width: sum(_heights(data["labels"], width)) + FOOT + 22,
    "scree": lambda data, width: 220.0 if width < WIDE else 240.0,
    "arrows": lambda data, width: 270.0 if width < WIDE else 420.0,
    "curves": lambda data, width: 270.0 if width < WIDE else 380.0,
    "stair": lambda data, width: 190.0 if width < WIDE else 230.0,
    "parts": lambda data, width: 96.0,
    "hundred": lambda data, width: 180.0 if width < WIDE else 220.0,
}


# --- parts of charts --------------------------------------------------------------------------------------------


def _band(ax: Axes, low: Any, high: Any, edges: Any) -> None:
    low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
    ax.stairs(high, edges, baseline=low, fill=True, color=NOISE, alpha=0.3, linewidth=0)


def _whiskers(ax: Axes, values: Any, places: Any, reach: Any) -> None:
    lows = np.minimum(values, reach)
    ax.errorbar(
        values, places, xerr=[lows, np.full(len(values), reach)], fmt="none", ecolor=NOISE, elinewidth=1.2, capsize=2.5
    )


def _count_axis(axis: Any, *, most: int = 4) -> None:
    """Few ticks, short numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, steps=[1, 2, 5, 10], integer=True, min_n_ticks=2))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _compact(value, max(axis.get_view_interval()))))


def _number_axis(axis: Any, *, most: int, whole: bool = False) -> None:
    """Round ticks, short numbers; of a count no halves."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, steps=[1, 2, 5, 10], integer=whole))

    def label(value: float, _: Any) -> str:
        largest = float(np.abs(axis.get_view_interval()).max())
        if largest >= 1e5:  # five of these do not fit side by side
            return _compact(value, largest)
        stated = 0.0 if abs(value) < 1e-12 else value
        return f"{stated:,.10g}" if largest >= 1e4 else f"{stated:.10g}"  # 1950 may be a year

    axis.set_major_formatter(FuncFormatter(label))


def _patch(colour: str, opacity: float = 1.0, *, edge: str = "none") -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, alpha=opacity, edgecolor=edge)


def _stroke(colour: str, dashes: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linestyle=dashes)


def _mark(mark: str, colour: str, *, hollow: bool = False) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [], [], linestyle="none", marker=mark, markersize=6, color=colour, markerfacecolor="none" if hollow else colour
    )


def _key(ax: Axes, entries: Sequence[tuple[str, Any]], *, columns: int | None = None) -> None:
    """What the marks mean: under the axes where they are ours alone, otherwise inside them."""
    figure: Any = ax.get_figure()
    narrow = figure.get_figwidth() * 72 < WIDE
    ours = figure.axes == [ax] and figure.get_layout_engine() is not None
    (figure if ours else ax).legend(
        [handle for _, handle in entries],
        [_plain(name) for name, _ in entries],
        loc="outside lower left" if ours else "best",
        ncols=columns or (1 if not ours or (narrow and sum(len(name) for name, _ in entries) > 34) else len(entries)),
        handlelength=1.4,
        columnspacing=1.4,
        borderpad=0.1,
        borderaxespad=0.0 if ours else None,
    )
