"""Colonnade: statistics across institutions that hold different columns about the same people or firms.

The layers, lowest first; each imports only from those before it:
errors, codec, formatting, view, durable, data, privacy, secure, federation, audit, statistics, alignment, synthesis,
models, completion, papers, catalogue, evaluation, console, cli.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from colonnade.catalogue import CATALOGUE
from colonnade.codec import nearest

__version__ = "0.2.0"

if TYPE_CHECKING:  # for editors and type checkers; a test compares this list with the catalogue
    from colonnade.alignment.method import Align as Align
    from colonnade.completion.method import Complete as Complete
    from colonnade.data.column import Column as Column
    from colonnade.data.column import Columns as Columns
    from colonnade.data.draft import draft as draft
    from colonnade.evaluation.saved import load as load
    from colonnade.federation.coordinator import Federation as Federation
    from colonnade.models.classify import Classify as Classify
    from colonnade.models.linear.regress import Regress as Regress
    from colonnade.models.pca import PCA as PCA
    from colonnade.models.pooled import pool as pool
    from colonnade.models.sparse.select import Select as Select
    from colonnade.privacy.ledger import Budget as Budget
    from colonnade.statistics.describe import Describe as Describe
    from colonnade.statistics.moments import Moments as Moments
    from colonnade.statistics.polynomial import Polynomial as Polynomial
    from colonnade.statistics.polynomial import PolynomialSum as PolynomialSum
    from colonnade.statistics.secure_sum import PresenceTotal as PresenceTotal
    from colonnade.statistics.tables import Tables as Tables
    from colonnade.synthesis.method import Synthesize as Synthesize

_VALUES = {
    "Budget": "colonnade.privacy.ledger",
    "Column": "colonnade.data.column",
    "Columns": "colonnade.data.column",
    "draft": "colonnade.data.draft",
    "Federation": "colonnade.federation.coordinator",
    "load": "colonnade.evaluation.saved",
    "Polynomial": "colonnade.statistics.polynomial",
    "pool": "colonnade.models.pooled",
}
"""What users need besides methods; the methods are the catalogue's own entries."""


def _public() -> dict[str, str]:
    return _VALUES | {entry.cls: entry.module for entry in CATALOGUE.own().values()}


if not TYPE_CHECKING:  # which would believe every name otherwise

    def __getattr__(name: str) -> Any:
        """Public names load when first used: `import colonnade` and the command line stay quick."""
        module = _public().get(name)
        if module is None:
            raise AttributeError(f"module 'colonnade' has no attribute {name!r}.{nearest(name, _public())}")
        return getattr(importlib.import_module(module), name)


__all__ = sorted([*_public(), "__version__"])


def __dir__() -> list[str]:
    return [*__all__, "papers"]
