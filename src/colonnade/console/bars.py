"""Bars of the console: what is spent of a budget, how far a job is. They hold no numbers that the text does not say."""

from __future__ import annotations

import math

from colonnade.view.page import Html, tag

WIDE = 640.0


def _svg(height: float, label: str, *children: str | None, class_: str) -> Html:
    shape = "none" if class_ == "progress" else None  # its height is the same on every screen
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {WIDE:g} {height:g}",
        role="img",
        aria_label=label,
        class_=class_,
        preserveAspectRatio=shape,
    )


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
        class_="figure",
    )


def progress_bar(done: int, most: int, label: str) -> Html:
    share = done / most if most else 0.0
    return _svg(
        8.0,
        label,
        tag("rect", class_="track", x=0.0, y=0.0, width=WIDE, height=8.0),
        tag("rect", class_="spent", x=0.0, y=0.0, width=WIDE * share, height=8.0) if done else None,
        class_="progress",
    )


def legend(*entries: tuple[str, str]) -> Html:
    """(class of the rectangle, what it means)."""

    def entry(kind: str, text: str) -> Html:
        swatch = tag("rect", class_=kind, x=0.5, y=0.5, width=11.0, height=11.0, rx=3.0)
        return tag("li", tag("svg", swatch, viewBox="0 0 12 12", aria_hidden="true", class_="key"), text)

    return tag("ul", *(entry(kind, text) for kind, text in entries), class_="legend")
