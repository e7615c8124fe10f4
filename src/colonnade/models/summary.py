"""A fitted model for a terminal, as statsmodels prints it: facts in two columns, tables, privacy, numbered notes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 94
Fact = tuple[str, str]


def line(label: str, value: str, width: int = WIDTH) -> str:
    """A label on the left, its value on the right."""
    return label + short(value, width - len(label) - 1).rjust(width - len(label))


def short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _wrapped(text: str, first: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent="    ")


def summary(
    title: str,
    facts: Iterable[tuple[Fact, Fact]],
    *parts: Sequence[str],
    released: Sequence[str],
    cost: str,
    notes: Sequence[str],
) -> str:
    """`parts` are lines, each with a rule under it; `released` has no bound, and `cost` is a record's total."""
    half = WIDTH // 2 - 1
    head = [line(*left, half) + "  " + line(*right, half) for left, right in facts]
    blocks = [[title.center(WIDTH).rstrip()], head, *parts]
    if released:
        stated = (*released, f"a record's total: {cost}")
        blocks.append(["Privacy", *(part for text in stated for part in _wrapped(text, "  "))])
    numbered = [part for number, note in enumerate(notes, 1) for part in _wrapped(note, f"[{number}] ")]
    return "\n".join([*(text for block in blocks for text in (*block, "=" * WIDTH)), "Notes:", *numbered])
