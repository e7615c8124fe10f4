"""No path spends and fails: every method, with what can be wrong, leaves every ledger as it was or leaves a result.

A refusal comes before the first reservation at any party. After it, a job returns what it has: an estimate, or
`NoEstimate` with its reason in the first line. A party that is lost in between leaves a run that can be resumed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.catalogue import CATALOGUE
from colonnade.errors import BudgetExceeded, ColonnadeError, NotEstimable, PartyLost, RunError, UnboundedNotAllowed
from colonnade.evaluation.report import view_of, write_report
from colonnade.federation.catalogue import EXTRAS
from colonnade.federation.config import Spec
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Reply, Request
from colonnade.federation.run_folder import RunFolder
from support.small import COLUMNS, three_overlapping_blocks

PARTIES = ("clinic", "court", "bank")
N = 60
POLYNOMIAL = {"outputs": [[[1.0, {"age": 1, "sued": 1}]]]}
NETWORK = {"iterations": 4, "local": 2, "batch": 16, "hidden": 4, "cut": 2}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "align": ("align", {"capacity": dict.fromkeys(PARTIES, N), "epsilon": 1.0}),
    "describe": ("describe", {"epsilon": 1.0}),
    "copula": ("synthesize", {"epsilon": 4.0}),
    "field": ("synthesize", {"model": "field", "epsilon": 4.0, "iterations": 20}),
    "exact regression": ("regress", {"response": "age", "missing": "em"}),
    "private regression": ("regress", {"response": "age", "epsilon": 4.0}),
    "exact selection": ("select", {"response": "age"}),
    "private selection": ("select", {"response": "age", "epsilon": 4.0}),
    "selection in rounds": ("select", {"response": "sued", "family": "binomial", "n_lambdas": 3, "tolerance": 0.05}),
    "completion": ("complete", NETWORK),
    "private completion": ("complete", {**NETWORK, "epsilon": 4.0, "epochs": 2, "batch": 8}),
    "copula completion": ("complete", {"imputer": "copula-mean"}),
    "pca": ("pca", {"epsilon": 4.0, "n_components": 2}),
    "classify": ("classify", {"response": "sued", "epsilon": 4.0}),
    "moments": ("moments", {"epsilon": 4.0}),
    "tables": ("tables", {"tables": [["sued", "sector"]], "epsilon": 1.0}),
    "polynomial": ("polynomial-sum", {"polynomial": POLYNOMIAL, "epsilon": 1.0}),
    "presence": ("presence-total", {"epsilon": 1.0}),
    "blind rsa": ("blind-rsa", {}),
    "vcds": ("vcds", {}),
    "evcds": ("evcds", {}),
    "ievcds": ("ievcds", {"iterations": 2}),
    "vertimrf": ("vertimrf", {"epsilon": 4.0}),
    "vfem": ("vfem", {"response": "age", "tolerance": 0.1}),
    "fedpsg": ("fedpsg", {}),
    "vfl-glm-vs": ("vfl-glm-vs", {"response": "age"}),
    "sqm-logistic": ("sqm-logistic", {"response": "sued", "epsilon": 4.0}),
}
