"""What every method offers, so that one driver can plan, run and resume any of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

from colonnade.errors import RunError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder

METHODS: dict[str, tuple[str, str]] = {
    "describe": ("colonnade.statistics.describe", "Describe"),
    "moments": ("colonnade.statistics.moments", "PatternMoments"),
    "pca": ("colonnade.models.pca", "SQMPCA"),
    "classify": ("colonnade.models.logistic", "SQMLogistic"),
    "vfem": ("colonnade.models.vfem", "VFEM"),
    "sparse-glm": ("colonnade.models.sparse_glm", "SparseGLM"),
    "contingency": ("colonnade.statistics.contingency", "Contingency"),
    "polynomial": ("colonnade.statistics.polynomial", "PolynomialSum"),
    "vcds": ("colonnade.synthesis.copula.vcds", "VCDS"),
    "evcds": ("colonnade.synthesis.copula.evcds", "EVCDS"),
    "ievcds": ("colonnade.synthesis.copula.ievcds", "IEVCDS"),
    "align": ("colonnade.alignment.protocol", "Align"),
    "presence-total": ("colonnade.statistics.secure_sum", "PresenceTotal"),
    "vertimrf": ("colonnade.synthesis.mrf.vertimrf", "VertiMRF"),
    "fedpsg": ("colonnade.completion.fedpsg", "FedPSG"),
    "copula-sqm": ("colonnade.synthesis.copula.sqm", "CopulaSQM"),
}
"""Name -> (module, class) of every method that a run folder may name."""


class Result(Protocol):
    """What a method returns; it can write itself into the run folder."""

    def write(self, run: RunFolder) -> None: ...


class Method(Protocol):
    """`plan` looks at public facts only; `execute` is the coordinator's procedure and depends only on replies."""

    name: ClassVar[str]

    def options(self) -> dict[str, Any]: ...

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self: ...

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan: ...

    def execute(self, job: Job) -> Result: ...


def method_class(name: str) -> Any:
    """The class of the method of that name."""
    if name not in METHODS:
        raise RunError(f"this installation has no method {name!r}; it has {', '.join(METHODS)}.")
    module, kind = METHODS[name]
    return getattr(importlib.import_module(module), kind)


def method(name: str, options: Mapping[str, Any]) -> Method:
    """The method of that name with those options, as a run folder holds them."""
    made: Method = method_class(name).from_options(options)
    return made
