"""Progress in a notebook: one line that updates itself, once a job takes longer than a moment.

Nothing of Jupyter is imported unless it runs: then the process has it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from colonnade.federation.job import Progress
from colonnade.formatting import duration
from colonnade.view.page import join, tag

MOMENT = 1.0
"""Seconds after which a job shows its progress."""


class NotebookLine:
    """What a notebook shows of one job; called as the job goes on."""

    def __init__(self, method: str) -> None:
        self.method = method
        self._display = importlib.import_module("IPython.display").display
        self._handle: Any = None
        self._last: Progress | None = None

    def __call__(self, now: Progress) -> None:
        self._last = now
        if self._handle is None and now.seconds < MOMENT:
            return
        left = "" if now.remaining is None else f", about {duration(now.remaining)} left"
        self._show(f"{self.method}: round {now.rounds:,} of {now.of:,}, {now.stage}{left}", now.rounds / now.of)

    def end(self) -> None:
        """Leave how long it took, where a line was shown."""
        if self._handle is not None and self._last is not None:
            self._show(f"{self.method}: {self._last.rounds:,} rounds in {duration(self._last.seconds)}", None)

    def _show(self, words: str, part: float | None) -> None:
        bar = None if part is None else tag("progress", value=part, max="1", aria_label=words)
        bundle = {"text/plain": words, "text/html": tag("div", join([bar, " " if bar else None, words]))}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def notebook_line(method: str) -> NotebookLine | None:
    """None where no notebook runs."""
    interactive = sys.modules.get("IPython")
    shell = None if interactive is None else interactive.get_ipython()
    return None if getattr(shell, "kernel", None) is None else NotebookLine(method)
