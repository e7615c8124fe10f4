"""From the names before the redesign to those after it."""

from __future__ import annotations

from typing import Any


def translate(method: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The new name and the new options of an old method with its old options.

    `options` are what `Method.options()` gave before the redesign, read from JSON. For now nothing has another name.
    An old option that has no counterpart may be dropped only where it changed no plan.
    """
    return method, options
