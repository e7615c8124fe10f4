"""Colonnade: statistics across institutions that hold different columns about the same people or firms.

The layers, lowest first; each imports only from those before it:
errors, durable, data, privacy, secure, federation, statistics, alignment, synthesis, models, completion, evaluation,
console, cli.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

from colonnade import catalogue as catalogue

if TYPE_CHECKING:
    from colonnade.completion.fedpsg import FedPSG as FedPSG
    from colonnade.data.column import Column as Column
    from colonnade.data.column import Columns as Columns
    from colonnade.federation.coordinator import Federation as Federation
    from colonnade.models.logistic import SQMLogistic as SQMLogistic
    from colonnade.models.pca import SQMPCA as SQMPCA
    from colonnade.models.sparse_glm import SparseGLM as SparseGLM
    from colonnade.models.vfem import VFEM as VFEM
    from colonnade.privacy.budget import Budget as Budget
    from colonnade.statistics.contingency import Contingency as Contingency
    from colonnade.statistics.describe import Describe as Describe
    from colonnade.statistics.moments import PatternMoments as PatternMoments
    from colonnade.statistics.polynomial import PolynomialSum as PolynomialSum
    from colonnade.statistics.polynomial_layout import Polynomial as Polynomial
    from colonnade.statistics.secure_sum import PresenceTotal as PresenceTotal
    from colonnade.synthesis.copula.evcds import EVCDS as EVCDS
    from colonnade.synthesis.copula.ievcds import IEVCDS as IEVCDS
    from colonnade.synthesis.copula.sqm import CopulaSQM as CopulaSQM
    from colonnade.synthesis.copula.vcds import VCDS as VCDS
    from colonnade.synthesis.mrf.vertimrf import VertiMRF as VertiMRF

_PUBLIC = {
    "FedPSG": "colonnade.completion.fedpsg",
    "CopulaSQM": "colonnade.synthesis.copula.sqm",
    "VCDS": "colonnade.synthesis.copula.vcds",
    "EVCDS": "colonnade.synthesis.copula.evcds",
    "IEVCDS": "colonnade.synthesis.copula.ievcds",
    "SparseGLM": "colonnade.models.sparse_glm",
    "VertiMRF": "colonnade.synthesis.mrf.vertimrf",
    "VFEM": "colonnade.models.vfem",
    "SQMPCA": "colonnade.models.pca",
    "SQMLogistic": "colonnade.models.logistic",
    "Polynomial": "colonnade.statistics.polynomial_layout",
    "PolynomialSum": "colonnade.statistics.polynomial",
    "PresenceTotal": "colonnade.statistics.secure_sum",
    "Contingency": "colonnade.statistics.contingency",
    "Budget": "colonnade.privacy.budget",
    "Column": "colonnade.data.column",
    "Columns": "colonnade.data.column",
    "Describe": "colonnade.statistics.describe",
    "Federation": "colonnade.federation.coordinator",
    "PatternMoments": "colonnade.statistics.moments",
}

__all__ = [
    "Budget",
    "Column",
    "Columns",
    "Contingency",
    "CopulaSQM",
    "Describe",
    "EVCDS",
    "FedPSG",
    "Federation",
    "IEVCDS",
    "PatternMoments",
    "Polynomial",
    "PolynomialSum",
    "PresenceTotal",
    "SQMLogistic",
    "SQMPCA",
    "SparseGLM",
    "VCDS",
    "VFEM",
    "VertiMRF",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Public names load when first used: `import colonnade` and the command line stay quick."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'colonnade' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
