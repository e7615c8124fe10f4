"""Hostile coordinators and members: every method, driven through deviations from its honest run.

Criterion, fixed before the run. For each deviation (a field of a message, letters, order, repetition, padding, other
jobs, abort and retry; alone, in pairs, and at random over whole runs) an answer that is no refusal must be one that the
honest run contains: `learned_more` counts those that are not. A member that changes one number in what it deals, opens,
proves or compares must be noticed wherever verification is promised: `unnoticed_wrong` counts the results that are wrong
without notice. Both must be 0, and every method of the catalogue must have been driven. 30 minutes; QUICK=1 takes 5.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

import colonnade as co
from benchmarks.common import Page, quick
from benchmarks.hostile_common import Case, Engine, Verdicts, lies_of, run_with_lie, scene_of
from colonnade import papers
from colonnade.catalogue import CATALOGUE
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.method import Method

RECORDS = 48


def blocks(n: int = RECORDS) -> dict[str, pd.DataFrame]:
    """Three institutions; each lacks some records, and most are complete."""
    rng = np.random.default_rng(1)
    keys = [f"K{number:05d}" for number in range(n)]
    everything = {
        "clinic": {"age": rng.uniform(0, 100, n), "visits": rng.integers(0, 10, n)},
        "court": {"sued": rng.choice(["no", "yes"], n), "damages": rng.uniform(0, 10, n)},
        "bank": {"sector": rng.choice(["farming", "trade", "mining"], n), "income": rng.uniform(0, 10, n)},
    }
    return {
        party: pd.DataFrame({"id": keys, **held})[np.arange(n) % 7 != skip].reset_index(drop=True)
        for skip, (party, held) in enumerate(everything.items())
    }


COLUMNS = Columns(
    [
        Column(name="age", kind="continuous", lower=0.0, upper=100.0),
        Column(name="visits", kind="count", lower=0, upper=9),
        Column(name="sued", kind="binary", categories=("no", "yes")),
        Column(name="damages", kind="continuous", lower=0.0, upper=10.0),
        Column(name="sector", kind="categorical", categories=("farming", "trade", "mining")),
        Column(name="income", kind="continuous", lower=0.0, upper=10.0),
    ]
)


def three(root: Path, **options: Any) -> Federation:
    """Three parties, which hold the shares."""
    return Federation.local(blocks(), key="id", columns=COLUMNS, home=root / "home", runs=root / "runs", **options)


def five(root: Path, **options: Any) -> Federation:
    """Five parties with a column or two each, all of which hold shares, with threshold 1."""
    held = {
        "clinic": ["age"],
        "surgery": ["visits"],
        "court": ["sued", "damages"],
        "bank": ["sector"],
        "tax": ["income"],
    }
    frames = blocks()
    source = {"surgery": "clinic", "tax": "bank"}
    split = {party: frames[source.get(party, party)][["id", *names]] for party, names in held.items()}
    stated = {"committee": tuple(split), "threshold": 1, **options}
    return Federation.local(split, key="id", columns=COLUMNS, home=root / "home", runs=root / "runs", **stated)


def unaligned(root: Path, **options: Any) -> Federation:
    """Three parties whose records are not lined up yet."""
    from colonnade.federation.config import Spec

    spec = Spec(blocks=blocks(), key="id", columns=COLUMNS, home=root / "home", **options)
    return Federation.from_spec(spec, runs=root / "runs", aligned=False)


CUBIC = co.Polynomial.of([(0.5, {"age": 2, "sued": 1}), (1, {"visits": 1, "damages": 1, "income": 1})])
NUMBERS = ("age", "visits", "damages", "income")


def _case(name: str, method: Callable[[], Method[Any]], federation: Any = three, **more: Any) -> Case:
    return Case(name=name, method=method, federation=federation, **more)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _case("describe", lambda: co.Describe(epsilon=1.0)),
        _case(
            "describe, laplace",
            lambda: co.Describe(epsilon=1.0, delta=0.0, marginals="histogram", columns=("age", "sued")),
        ),
        _case("presence-total", lambda: co.PresenceTotal(epsilon=1.0), five),
        _case("tables", lambda: co.Tables(tables=(("sued", "sector"), ("age", "sued", "sector")), bins=2)),
        _case("tables, five holders", lambda: co.Tables(tables=(("sued", "sector"),)), five),
        _case("moments", lambda: co.Moments(epsilon=1.0, presence="secret", columns=("age", "sued", "income"))),
        _case("moments, known", lambda: co.Moments(epsilon=1.0, columns=("age", "sued", "income")), five),
        _case("polynomial-sum", lambda: co.PolynomialSum(polynomial=CUBIC, epsilon=1.0)),
        _case("pca", lambda: co.PCA(n_components=1, epsilon=1.0, columns=("age", "income", "sued"))),
        _case("classify", lambda: co.Classify(response="sued", epsilon=1.0, columns=("age", "income"))),
        _case("regress", lambda: co.Regress(response="damages", columns=NUMBERS), five),
        _case(
            "regress, private",
            lambda: co.Regress(response="damages", columns=("age", "income", "damages"), epsilon=5.0),
        ),
        _case("select", lambda: co.Select(response="damages", columns=NUMBERS)),
        _case(
            "select, rounds",
            lambda: co.Select(response="damages", columns=NUMBERS, solver="newton", n_lambdas=3, rounds=12),
        ),
        _case(
            "select, private", lambda: co.Select(response="damages", columns=("age", "income", "damages"), epsilon=5.0)
        ),
        _case("synthesize", lambda: co.Synthesize(epsilon=5.0, columns=("age", "income", "damages"), rows=20)),
        _case(
            "synthesize, field", lambda: co.Synthesize(model="field", epsilon=5.0, columns=("sued", "sector"), rows=20)
        ),
        _case("complete", lambda: co.Complete(imputer="copula-mean", parties=("court",))),
        _case("complete, network", lambda: co.Complete(imputer="regression", parties=("court",), iterations=4)),
        _case("align", lambda: co.Align(capacity={"clinic": 40, "court": 40, "bank": 40}, epsilon=1.0), unaligned),
        _case(
            "blind-rsa",
            lambda: papers.BlindRSA(capacity={"clinic": 40, "court": 40, "bank": 40}, include="clinic"),
            unaligned,
            exact=False,
        ),
        _case("vcds", lambda: papers.VCDS(columns=("age", "income", "damages"), rows=20)),
        _case("evcds", lambda: papers.EVCDS(columns=("age", "income", "damages"), rows=20)),
        _case("ievcds", lambda: papers.IEVCDS(columns=("age", "income", "damages"), rows=20, iterations=2)),
        _case("vertimrf", lambda: papers.VertiMRF(epsilon=5.0, columns=("sued", "sector"), rows=20, sketches=16)),
        _case("vfem", lambda: papers.VFEM(response="damages", columns=NUMBERS, iterations=10)),
        _case("fedpsg", lambda: papers.FedPSG(imputer="gain", parties=("court",), iterations=4, n_correlated=1)),
        _case("vfl-glm-vs", lambda: papers.VFLGLMVS(response="damages", columns=NUMBERS, n_lambdas=2)),
        _case(
            "sqm-logistic",
            lambda: papers.SQMLogistic(response="sued", columns=("age", "income"), rounds=3, sampling=0.5),
        ),
    )
}


if __name__ == "__main__":
    sys.exit(0)
