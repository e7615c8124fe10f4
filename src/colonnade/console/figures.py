"""The budget and the progress of a run as inline SVG."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from colonnade.evaluation.page import Html, join, tag

WIDTH = 640.0


def _svg(height: float, label: str, *children: str | None, width: float = WIDTH, class_: str = "figure") -> Html:
    return tag("svg", *children, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label, class_=class_)


def budget_bar(spent: float, waiting: float | None, budget: float) -> Html:
    """One bar as long as the budget: spent, what waiting jobs would add, left."""
    height = 26.0
    full = WIDTH
    used = full * min(spent / budget, 1.0) if math.isfinite(spent) else full
    after = spent if waiting is None else waiting
    claimed = max((full * min(after / budget, 1.0) if math.isfinite(after) else full) - used, 0.0)
    label = f"Spent {spent:.3g} of epsilon {budget:g}"
    if waiting is not None:
        label += f"; {after:.3g} if everything that waits were approved"
    return _svg(
        height,
        label,
        tag("rect", class_="left", x=0.5, y=0.5, width=full - 1, height=height - 1, rx=6.0),
        tag("rect", class_="claimed", x=used, y=0.0, width=claimed, height=height) if claimed > 0 else None,
        tag("rect", class_="spent", x=0.0, y=0.0, width=max(used, 3.0 if spent > 0 else 0.0), height=height, rx=6.0),
    )


def spending_line(points: Sequence[tuple[float, float]], budget: float | None, now: float) -> Html:
    """What counted against the budget, as a stair over time, under the line of the budget."""
    width, left, right, top, base = 320.0, 34.0, 6.0, 14.0, 140.0
    begin = points[0][0]
    span = max(now - begin, 1.0)
    begin, span = begin - 0.04 * span, 1.04 * span
    highest = max([epsilon for _, epsilon in points] + ([budget] if budget is not None else []), default=1.0) or 1.0

    def across(at: float) -> float:
        return left + (width - left - right) * (at - begin) / span

    def level(epsilon: float) -> float:
        return base - (base - top) * epsilon / highest

    path = f"M{left:g} {base:g}" + "".join(f"H{across(at):.1f}V{level(epsilon):.1f}" for at, epsilon in points)
    stair = f"{path}H{across(now):.1f}"
    # A date that is the same at both ends says less than the hour.
    format = "%d %b" if span > 3 * 86_400 else "%d %b %H:%M"
    parts = [
        tag("line", class_="axis", x1=left, x2=width - right, y1=base, y2=base),
        tag("path", class_="area", d=f"{stair}V{base:g}Z"),
        tag("path", class_="stair", d=stair),
        tag("text", "0", x=left - 5, y=base + 4, text_anchor="end", class_="soft"),
        tag("text", time.strftime(format, time.gmtime(points[0][0])), x=left, y=base + 16, class_="soft"),
        tag("text", "now", x=width - right, y=base + 16, text_anchor="end", class_="soft"),
    ]
    if budget is not None:
        parts += [
            tag("line", class_="noise", x1=left, x2=width - right, y1=level(budget), y2=level(budget)),
            tag("text", f"{budget:g}", x=left - 5, y=level(budget) + 4, text_anchor="end"),
        ]
    if budget is None or level(points[-1][1]) - level(budget) > 14:
        last = points[-1][1]
        parts.append(tag("text", f"{last:.3g}", x=left - 5, y=level(last) + 4, text_anchor="end", class_="soft"))
    told = f"Epsilon spent since {time.strftime('%d %B %Y', time.gmtime(points[0][0]))}, now {points[-1][1]:.3g}"
    return _svg(base + 22, told, *parts, width=width)


def progress_bar(done: int, most: int, label: str) -> Html:
    share = done / most if most else 0.0
    return _svg(
        8.0,
        label,
        tag("rect", class_="left", x=0.0, y=0.0, width=WIDTH, height=8.0, rx=4.0),
        tag("rect", class_="spent", x=0.0, y=0.0, width=WIDTH * share, height=8.0, rx=4.0) if done else None,
        class_="progress",
    )


def legend(*entries: tuple[str, str]) -> Html:
    """(class of the rectangle, what it means)."""
    return tag(
        "ul",
        join(
            tag(
                "li",
                tag("svg", tag("rect", class_=kind, x=0.5, y=0.5, width=11.0, height=11.0, rx=3.0), viewBox="0 0 12 12",
                    aria_hidden="true", class_="key"),
                text,
            )
            for kind, text in entries
        ),
        class_="legend",
    )  # fmt: skip
