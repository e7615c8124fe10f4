"""The papers' own algorithms, where Colonnade has something better or safer, each with a preset `as_printed`.

A party runs them only if its configuration names this package: packages = ["colonnade.papers"].
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from colonnade.codec import nearest
from colonnade.federation.catalogue import CATALOGUE

if TYPE_CHECKING:  # for editors and type checkers; a test compares this list with the catalogue
    from colonnade.papers.blind_rsa import BlindRSA as BlindRSA
    from colonnade.papers.fedpsg.method import FedPSG as FedPSG
    from colonnade.papers.sqm.logistic import SQMLogistic as SQMLogistic
    from colonnade.papers.vcds.method import EVCDS as EVCDS
    from colonnade.papers.vcds.method import IEVCDS as IEVCDS
    from colonnade.papers.vcds.method import VCDS as VCDS
    from colonnade.papers.vertimrf.method import VertiMRF as VertiMRF
    from colonnade.papers.vfem.method import VFEM as VFEM
    from colonnade.papers.vfl_glm_vs.method import VFLGLMVS as VFLGLMVS


def _public() -> dict[str, str]:
    return {entry.cls: entry.module for entry in CATALOGUE.papers().values()}


if not TYPE_CHECKING:  # which would believe every name otherwise

    def __getattr__(name: str) -> Any:
        """Classes load when first used."""
        module = _public().get(name)
        if module is None:
            raise AttributeError(f"module 'colonnade.papers' has no attribute {name!r}.{nearest(name, _public())}")
        return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(_public())
