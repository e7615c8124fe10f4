"""Bar charts as inline SVG, drawn 320 units wide so that their text stays readable on a telephone.

A noisy count below zero is drawn as zero; the table beside a chart shows it as it is. The dashed line marks two
standard deviations of the noise: a bar that does not reach it may be noise alone. Without noise there is no line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from colonnade.evaluation.page import Html, join, tag
from colonnade.formatting import number

WIDTH = 320.0
MOST_ROWS = 24
"""A list of bars shows no more than this; the table has the rest."""
MOST_BARS = 80
"""A histogram with more cells is drawn as one outline."""


def shorten(label: str, most: int) -> str:
    """Both ends of a long label: categories often differ in their last words only."""
    half = (most - 1) // 2
    return label if len(label) <= most else f"{label[:half]}…{label[-half:]}"


def _svg(height: float, label: str, *children: str | None) -> Html:
    return tag("svg", *children, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=label)


def bar_list(
    labels: Sequence[str],
    counts: Sequence[float],
    *,
    label: str,
    noise: float,
    empty_last: bool = False,
    whole: float | None = None,
) -> Html:
    """One horizontal bar for each label, with its value. `whole` fixes the length that fills the width."""
    left, right, row = 116.0, 52.0, 20.0
    room = WIDTH - left - right
    shown = min(len(labels), MOST_ROWS)
    top = max(whole or 0.0, 2 * noise, *counts, 1.0)
    parts: list[Html] = []
    for at in range(shown):
        y = at * row
        length = room * max(counts[at], 0.0) / top
        kind = "empty" if empty_last and at == len(labels) - 1 else "bar"
        parts += [
            tag("text", shorten(labels[at], 15), x=left - 6, y=y + 14, text_anchor="end"),
            tag("rect", _hint(labels[at], counts[at]), class_=kind, x=left, y=y + 3, width=length, height=row - 6),
            tag("text", number(counts[at]), x=left + length + 4, y=y + 14, class_="soft"),
        ]
    bottom = shown * row
    at_noise = left + room * 2 * noise / top
    parts.append(tag("line", class_="axis", x1=left, x2=left, y1=0.0, y2=bottom))
    if noise > 0:
        parts.append(tag("line", class_="noise", x1=at_noise, x2=at_noise, y1=0.0, y2=bottom))
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
    noise: float,
) -> Html:
    """Upright bars between the edges of a numeric column. A last count beyond the edges, that of empty cells, is
    not drawn: it would set the scale."""
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
                _hint(labels[at], counts[at]),
                class_="bar",
                x=left + at * wide,
                y=level(counts[at]),
                width=wide - gap,
                height=base - level(counts[at]),
            )
            for at in range(cells)
        ]
    else:
        steps = "".join(f"V{level(counts[at]):.1f}h{wide:.3f}" for at in range(cells))
        parts.append(tag("path", class_="bar", d=f"M{left:g} {base:g}{steps}V{base:g}Z"))
    if noise > 0:
        parts.append(tag("line", class_="noise", x1=left, x2=WIDTH, y1=level(2 * noise), y2=level(2 * noise)))
    for at, anchor in ((0, "start"), (cells // 2, "middle"), (cells, "end")):
        if at not in (0, cells) and cells < 4:
            continue
        x = left + at * wide
        parts.append(tag("text", f"{edges[at]:.4g}", x=x, y=base + 14, text_anchor=anchor, class_="soft"))
    return _svg(height, label, *parts)


def quantile_box(quantiles: Mapping[str, float], *, label: str) -> Html:
    """A line from the 5th to the 95th percentile, a box between the quartiles, a gap at the median."""
    left, right, middle = 8.0, WIDTH - 8.0, 22.0
    low, first, median, third, high = (quantiles[at] for at in ("0.05", "0.25", "0.5", "0.75", "0.95"))
    spread = (high - low) or 1.0

    def place(value: float) -> float:
        return left + (right - left) * (value - low) / spread

    box = max(place(third) - place(first), 2.0)
    return _svg(
        56.0,
        label,
        tag("line", class_="spine", x1=left, x2=place(high), y1=middle, y2=middle),
        tag("rect", class_="bar", x=place(first), y=middle - 12, width=box, height=24.0),
        tag("line", class_="median", x1=place(median), x2=place(median), y1=middle - 12, y2=middle + 12),
        join(
            tag("text", text, x=x, y=50.0, text_anchor=anchor, class_="soft")
            for text, x, anchor in (
                (f"5 %: {low:.4g}", left, "start"),
                (f"median: {median:.4g}", WIDTH / 2, "middle"),
                (f"95 %: {high:.4g}", right, "end"),
            )
        ),
    )


def interval_list(
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
    known = truths or ()
    least, most = min(0.0, *lows[:shown], *known[:shown]), max(0.0, *highs[:shown], *known[:shown])
    spread = (most - least) or 1.0
    bottom = shown * row

    def place(value: float) -> float:
        return left + 4 + (WIDTH - left - right - 8) * (value - least) / spread

    parts = [tag("line", class_="noise", x1=place(0.0), x2=place(0.0), y1=0.0, y2=bottom)]
    for at in range(shown):
        y = at * row + row / 2
        hint = tag("title", f"{labels[at]}: {centres[at]:.4g}, {lows[at]:.4g} to {highs[at]:.4g}")
        parts += [
            tag("text", shorten(labels[at], 17), x=left - 6, y=y + 4, text_anchor="end"),
            tag("line", class_="spine", x1=place(lows[at]), x2=place(highs[at]), y1=y, y2=y),
            tag("circle", hint, class_="bar", cx=place(centres[at]), cy=y, r=3.5),
        ]
        if at < len(known):
            told = tag("title", f"{labels[at]}: {known[at]:.4g} in truth")
            parts.append(tag("circle", told, class_="truth", cx=place(known[at]), cy=y, r=5.0))
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


def step_line(values: Sequence[float], *, mark: int, label: str) -> Html:
    """A stair over equally spaced places, with one of them marked."""
    left, top, base = 34.0, 8.0, 110.0
    highest = max(*values, 1.0)
    wide = (WIDTH - left) / len(values)

    def level(value: float) -> float:
        return base - (base - top) * value / highest

    stairs = "".join(f"V{level(value):.1f}h{wide:.3f}" for value in values)
    at = left + (mark + 0.5) * wide
    return _svg(
        base + 6,
        label,
        tag("line", class_="axis", x1=left, x2=WIDTH, y1=base, y2=base),
        tag("path", class_="stair", d=f"M{left:g} {base:g}{stairs}"),
        tag("line", class_="noise", x1=at, x2=at, y1=top, y2=base),
        tag("text", number(highest), x=left - 4, y=top + 6, text_anchor="end", class_="soft"),
        tag("text", "0", x=left - 4, y=base + 4, text_anchor="end", class_="soft"),
        tag("text", number(values[mark]), x=min(at + 4, WIDTH - 20), y=top + 6),
    )


def _hint(label: str, count: float) -> Html:
    """What a pointer over the bar shows."""
    return tag("title", f"{label}: {number(count)}")
