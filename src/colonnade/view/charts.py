"""Charts as inline SVG: those that a view may name, and the console's bars and stairs.

The charts of a view are drawn 320 units wide, so that their text stays readable on a telephone. A noisy count below
zero is drawn as zero; the table beside a chart shows it as it is. The dashed line marks two standard deviations of the
noise: a bar that does not reach it may be noise alone. Without noise there is no line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from colonnade.formatting import number
from colonnade.view.blocks import ChartName, Figure
from colonnade.view.page import Html, join, tag

WIDTH = 320.0
MOST_ROWS = 24
"""A list of bars shows no more than this; the table has the rest."""
MOST_BARS = 80
"""A histogram with more cells is drawn as one outline."""


def shorten(label: str, most: int) -> str:
    """Both ends of a long label: categories often differ in their last words only."""
    half = (most - 1) // 2
    return label if len(label) <= most else f"{label[:half]}…{label[-half:]}"


def _svg(height: float, label: str, *children: str | None, width: float = WIDTH, class_: str | None = None) -> Html:
    return tag("svg", *children, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label, class_=class_)


def bars(
    labels: Sequence[str],
    values: Sequence[float],
    *,
    label: str,
    noise: float = 0.0,
    empty_last: bool = False,
    whole: float | None = None,
) -> Html:
    """One horizontal bar for each label, with its value. `whole` fixes the length that fills the width."""
    left, right, row = 116.0, 52.0, 20.0
    room = WIDTH - left - right
    shown = min(len(labels), MOST_ROWS)
    top = max(whole or 0.0, 2 * noise, *values, 1.0)
    parts: list[Html] = []
    for index, (name, value) in enumerate(zip(labels[:shown], values, strict=False)):
        y = index * row
        length = room * max(value, 0.0) / top
        kind = "empty" if empty_last and index == len(labels) - 1 else "bar"
        parts += [
            tag("text", shorten(name, 15), x=left - 6, y=y + 14, text_anchor="end"),
            tag("rect", _hint(name, value), class_=kind, x=left, y=y + 3, width=length, height=row - 6),
            tag("text", number(value), x=left + length + 4, y=y + 14, class_="soft"),
        ]
    bottom = shown * row
    parts.append(tag("line", class_="axis", x1=left, x2=left, y1=0.0, y2=bottom))
    if noise > 0:
        x = left + room * 2 * noise / top
        parts.append(tag("line", class_="noise", x1=x, x2=x, y1=0.0, y2=bottom))
    if shown < len(labels):
        more = f"and {len(labels) - shown:,} more in the table"
        parts.append(tag("text", more, x=left, y=bottom + 14, class_="soft"))
        bottom += row
    return _svg(bottom + 2, label, *parts)


def histogram(
    labels: Sequence[str],
    counts: Sequence[float],
    edges: Sequence[float],
    *,
    label: str,
    noise: float = 0.0,
    ticks: Sequence[str] | None = None,
) -> Html:
    """Upright bars between the edges of a numeric column. A last count beyond the edges, that of empty cells, is
    not drawn: it would set the scale. `ticks` are the edges as texts, where they are no numbers."""
    left, top, base, height = 42.0, 8.0, 120.0, 138.0
    cells = len(edges) - 1
    highest = max(2 * noise, *counts[:cells], 1.0)
    wide = (WIDTH - left) / cells

    def level(count: float) -> float:
        return base - (base - top) * max(count, 0.0) / highest

    parts = [
        tag("line", class_="axis", x1=left, x2=WIDTH, y1=base, y2=base),
        tag("line", class_="axis", x1=left, x2=WIDTH, y1=top, y2=top),
        tag("text", number(highest), x=left - 4, y=top + 4, text_anchor="end", class_="soft"),
        tag("text", "0", x=left - 4, y=base + 4, text_anchor="end", class_="soft"),
    ]
    if cells <= MOST_BARS:
        gap = 1.0 if wide > 3 else 0.0
        parts += [
            tag(
                "rect",
                _hint(labels[cell], counts[cell]),
                class_="bar",
                x=left + cell * wide,
                y=level(counts[cell]),
                width=wide - gap,
                height=base - level(counts[cell]),
            )
            for cell in range(cells)
        ]
    else:
        steps = "".join(f"V{level(count):.1f}h{wide:.3f}" for count in counts[:cells])
        parts.append(tag("path", class_="bar", d=f"M{left:g} {base:g}{steps}V{base:g}Z"))
    if noise > 0:
        parts.append(tag("line", class_="noise", x1=left, x2=WIDTH, y1=level(2 * noise), y2=level(2 * noise)))
    for edge, anchor in ((0, "start"), (cells // 2, "middle"), (cells, "end")):
        if edge not in (0, cells) and cells < 4:
            continue
        x = left + edge * wide
        text = f"{edges[edge]:.4g}" if ticks is None else ticks[edge]
        parts.append(tag("text", text, x=x, y=base + 14, text_anchor=anchor, class_="soft"))
    return _svg(height, label, *parts)


def quantile_box(quantiles: Mapping[str, float], *, label: str, texts: Mapping[str, str] | None = None) -> Html:
    """A line from the 5th to the 95th percentile, a box between the quartiles, a gap at the median. `texts` are the
    quantiles as they are written, where they are no numbers."""
    left, right, middle = 8.0, WIDTH - 8.0, 22.0
    low, first, median, third, high = (quantiles[level] for level in ("0.05", "0.25", "0.5", "0.75", "0.95"))
    width = (high - low) or 1.0

    def place(value: float) -> float:
        return left + (right - left) * (value - low) / width

    box = max(place(third) - place(first), 2.0)
    written = texts or {level: f"{value:.4g}" for level, value in quantiles.items()}
    return _svg(
        56.0,
        label,
        tag("line", class_="spine", x1=left, x2=place(high), y1=middle, y2=middle),
        tag("rect", class_="bar", x=place(first), y=middle - 12, width=box, height=24.0),
        tag("line", class_="median", x1=place(median), x2=place(median), y1=middle - 12, y2=middle + 12),
        join(
            tag("text", text, x=x, y=50.0, text_anchor=anchor, class_="soft")
            for text, x, anchor in (
                (f"5 %: {written['0.05']}", left, "start"),
                (f"median: {written['0.5']}", WIDTH / 2, "middle"),
                (f"95 %: {written['0.95']}", right, "end"),
            )
        ),
    )


def intervals(
    labels: Sequence[str],
    centres: Sequence[float],
    lows: Sequence[float],
    highs: Sequence[float],
    *,
    label: str,
    truths: Sequence[float] | None = None,
) -> Html:
    """One estimate with its interval for each label, on a common scale with zero marked; rings for known truths."""
    left, right, row, foot = 122.0, 8.0, 18.0, 20.0
    shown = min(len(labels), MOST_ROWS)
    drawn = (truths or ())[:shown]
    least, most = min(0.0, *lows[:shown], *drawn), max(0.0, *highs[:shown], *drawn)
    width = (most - least) or 1.0
    bottom = shown * row

    def place(value: float) -> float:
        return left + 4 + (WIDTH - left - right - 8) * (value - least) / width

    parts = [tag("line", class_="noise", x1=place(0.0), x2=place(0.0), y1=0.0, y2=bottom)]
    for index, (name, centre, low, high) in enumerate(zip(labels[:shown], centres, lows, highs, strict=False)):
        y = index * row + row / 2
        hint = tag("title", f"{name}: {centre:.4g}, {low:.4g} to {high:.4g}")
        parts += [
            tag("text", shorten(name, 17), x=left - 6, y=y + 4, text_anchor="end"),
            tag("line", class_="spine", x1=place(low), x2=place(high), y1=y, y2=y),
            tag("circle", hint, class_="bar", cx=place(centre), cy=y, r=3.5),
        ]
        if index < len(drawn):
            hint = tag("title", f"{name}: {drawn[index]:.4g} in truth")
            parts.append(tag("circle", hint, class_="truth", cx=place(drawn[index]), cy=y, r=5.0))
    # The numbers at the ends, unless zero is one of them and would be written over.
    ends = [(least, "start"), (most, "end")]
    if least < 0 < most:
        ends.append((0.0, "middle"))
    spots = [place(value) for value, _ in ends]
    for (value, anchor), x in zip(ends, spots, strict=True):
        crowded = anchor == "middle" and min(x - spots[0], spots[1] - x) < 44
        if not crowded:
            parts.append(tag("text", f"{value:.3g}", x=x, y=bottom + 14, text_anchor=anchor, class_="soft"))
    if shown < len(labels):
        more = f"and {len(labels) - shown:,} more in the table"
        parts.append(tag("text", more, x=left, y=bottom + 14 + row, class_="soft"))
        bottom += row
    return _svg(bottom + foot, label, *parts)


def line(values: Sequence[float], *, mark: int, label: str) -> Html:
    """A stair over equally spaced places, with one of them marked."""
    left, top, base = 34.0, 8.0, 110.0
    highest = max(*values, 1.0)
    wide = (WIDTH - left) / len(values)

    def level(value: float) -> float:
        return base - (base - top) * value / highest

    stairs = "".join(f"V{level(value):.1f}h{wide:.3f}" for value in values)
    marked = left + (mark + 0.5) * wide
    return _svg(
        base + 6,
        label,
        tag("line", class_="axis", x1=left, x2=WIDTH, y1=base, y2=base),
        tag("path", class_="stair", d=f"M{left:g} {base:g}{stairs}"),
        tag("line", class_="noise", x1=marked, x2=marked, y1=top, y2=base),
        tag("text", number(highest), x=left - 4, y=top + 6, text_anchor="end", class_="soft"),
        tag("text", "0", x=left - 4, y=base + 4, text_anchor="end", class_="soft"),
        tag("text", number(values[mark]), x=min(marked + 4, WIDTH - 20), y=top + 6),
    )


def _hint(label: str, count: float) -> Html:
    """What a pointer over the bar shows."""
    return tag("title", f"{label}: {number(count)}")


CHARTS: Mapping[ChartName, Callable[..., Html]] = {
    "bars": bars,
    "histogram": histogram,
    "quantiles": quantile_box,
    "intervals": intervals,
    "line": line,
}
"""The charts that a view may name; `view.blocks.Figure` says what data each takes."""


def draw(figure: Figure) -> Html:
    return CHARTS[figure.chart](**figure.data, label=figure.label)


# --- the console's ------------------------------------------------------------------------------------------------

WIDE = 640.0


def budget_bar(spent: float, waiting: float | None, budget: float) -> Html:
    """One bar as long as the budget: spent, what waiting jobs would add, left."""
    height = 26.0

    def length(epsilon: float) -> float:
        return WIDE * min(epsilon / budget, 1.0) if math.isfinite(epsilon) else WIDE

    after = spent if waiting is None else waiting
    claimed = max(length(after) - length(spent), 0.0)
    label = f"Spent {spent:.3g} of epsilon {budget:g}"
    if waiting is not None:
        label += f"; {after:.3g} if everything that waits were approved"
    used = max(length(spent), 3.0 if spent > 0 else 0.0)
    return _svg(
        height,
        label,
        tag("rect", class_="left", x=0.5, y=0.5, width=WIDE - 1, height=height - 1, rx=6.0),
        tag("rect", class_="claimed", x=length(spent), y=0.0, width=claimed, height=height) if claimed > 0 else None,
        tag("rect", class_="spent", x=0.0, y=0.0, width=used, height=height, rx=6.0),
        width=WIDE,
        class_="figure",
    )


def spending_line(points: Sequence[tuple[float, float]], budget: float | None, now: float) -> Html:
    """What counted against the budget, as a stair over time, under the line of the budget."""
    left, right, top, base = 34.0, WIDTH - 6.0, 14.0, 140.0
    first, last = points[0][0], points[-1][1]
    span = 1.04 * max(now - first, 1.0)
    highest = max([epsilon for _, epsilon in points] + ([budget] if budget is not None else [])) or 1.0

    def across(when: float) -> float:
        return left + (right - left) * (when - now + span) / span

    def level(epsilon: float) -> float:
        return base - (base - top) * epsilon / highest

    path = f"M{left:g} {base:g}" + "".join(f"H{across(when):.1f}V{level(epsilon):.1f}" for when, epsilon in points)
    stair = f"{path}H{across(now):.1f}"
    # A date that is the same at both ends says less than the hour.
    date = time.strftime("%d %b" if span > 3 * 86_400 else "%d %b %H:%M", time.gmtime(first))
    parts = [
        tag("line", class_="axis", x1=left, x2=right, y1=base, y2=base),
        tag("path", class_="area", d=f"{stair}V{base:g}Z"),
        tag("path", class_="stair", d=stair),
        tag("text", "0", x=left - 5, y=base + 4, text_anchor="end", class_="soft"),
        tag("text", date, x=left, y=base + 16, class_="soft"),
        tag("text", "now", x=right, y=base + 16, text_anchor="end", class_="soft"),
    ]
    if budget is not None:
        parts += [
            tag("line", class_="noise", x1=left, x2=right, y1=level(budget), y2=level(budget)),
            tag("text", f"{budget:g}", x=left - 5, y=level(budget) + 4, text_anchor="end"),
        ]
    if budget is None or level(last) - level(budget) > 14:
        parts.append(tag("text", f"{last:.3g}", x=left - 5, y=level(last) + 4, text_anchor="end", class_="soft"))
    label = f"Epsilon spent since {time.strftime('%d %B %Y', time.gmtime(first))}, now {last:.3g}"
    return _svg(base + 22, label, *parts, class_="figure")


def progress_bar(done: int, most: int, label: str) -> Html:
    share = done / most if most else 0.0
    return _svg(
        8.0,
        label,
        tag("rect", class_="left", x=0.0, y=0.0, width=WIDE, height=8.0, rx=4.0),
        tag("rect", class_="spent", x=0.0, y=0.0, width=WIDE * share, height=8.0, rx=4.0) if done else None,
        width=WIDE,
        class_="progress",
    )


def legend(*entries: tuple[str, str]) -> Html:
    """(class of the rectangle, what it means)."""

    def entry(kind: str, text: str) -> Html:
        swatch = tag("rect", class_=kind, x=0.5, y=0.5, width=11.0, height=11.0, rx=3.0)
        return tag("li", tag("svg", swatch, viewBox="0 0 12 12", aria_hidden="true", class_="key"), text)

    return tag("ul", *(entry(kind, text) for kind, text in entries), class_="legend")
