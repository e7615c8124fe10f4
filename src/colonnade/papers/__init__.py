"""The papers' own algorithms, where Colonnade has something better or safer, each with a preset `as_printed`.

A party runs them only if its configuration names this package: packages = ["colonnade.papers"].
"""

from __future__ import annotations

import importlib
from typing import Any

from colonnade.codec import nearest
from colonnade.federation.catalogue import CATALOGUE


def _public() -> dict[str, str]:
    return {entry.cls: entry.module for entry in CATALOGUE.papers().values()}


def __getattr__(name: str) -> Any:
    """Classes load when first used."""
    module = _public().get(name)
    if module is None:
        raise AttributeError(f"module 'colonnade.papers' has no attribute {name!r}.{nearest(name, _public())}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(_public())
