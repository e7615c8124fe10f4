"""Options of a completion that cannot be are refused in one sentence, when they are given or when a job is planned."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from colonnade.completion.method import FedPSG
from colonnade.completion.options import check_facts
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, BadPrivacyParameter, SchemaError, SecureError
from colonnade.federation.facts import PublicFacts
from colonnade.secure import ckks


@pytest.mark.parametrize(
    "wrong",
    [
        {"complete": 5},
        {"complete": (3,)},
        {"complete": ()},
        {"complete": "right"},
        {"label": 7},
        {"label": ""},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": None},
        {"rate": "0.1"},
        {"rate": None},
        {"rate": math.nan},
        {"validation": "x"},
        {"dropout": "x"},
        {"dropout": 0.999},
        {"clip": "x"},
        {"clip": math.inf},
        {"epochs": 0},
        {"iterations": True},
        {"n_correlated": 1.0},
        {"format": "xlsx"},
        {"imputer": ["gain"]},
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArguments, match=next(iter(wrong))):
        FedPSG(**wrong)


def test_a_delta_that_cannot_be_is_named() -> None:
    with pytest.raises(BadPrivacyParameter, match="delta"):
        FedPSG(delta="x")  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    made = FedPSG(iterations=np.int64(20), rate=np.float64(0.01), complete=["a", "b", "a"])  # type: ignore[arg-type]
    assert (made.iterations, type(made.iterations), type(made.rate)) == (20, int, float)
    assert made.complete == ("a", "b")
    assert FedPSG.from_options(made.options()) == made


def facts(*columns: Column, n: int = 100) -> PublicFacts:
    x = Column(name="x", kind="continuous", lower=0, upper=1)
    return PublicFacts(n=n, columns={"left": Columns([x]), "right": Columns(list(columns))})


def test_what_the_facts_rule_out_is_refused_before_any_data_is_touched() -> None:
    y = Column(name="y", kind="count", lower=0, upper=9)
    holes = Column(name="holes", kind="count", lower=0, upper=9, missing=True)
    check_facts(FedPSG(imputer="mice"), facts(y))
    check_facts(FedPSG(), facts(y, holes))
    with pytest.raises(SchemaError, match=r"holes.*imputer='regression'"):
        check_facts(FedPSG(imputer="mice"), facts(y, holes))
    single = Column(name="single", kind="categorical", categories=("this",))
    check_facts(FedPSG(imputer="mice"), facts(y, single))
    check_facts(FedPSG(imputer="copula-mean"), facts(single))
    with pytest.raises(SchemaError, match="no column of 'right' can vary"):
        check_facts(FedPSG(imputer="mice"), facts(single))
    for name in ("cohort row", "y (generated)"):
        with pytest.raises(SchemaError, match="rename"):
            check_facts(FedPSG(), facts(y, Column(name=name, kind="count", lower=0, upper=9)))
    check_facts(FedPSG(), facts(Column(name="z (generated)", kind="count", lower=0, upper=9)))


def test_private_training_that_could_not_make_one_round_is_refused() -> None:
    """It would spend epsilon and return the first weights."""
    y = Column(name="y", kind="count", lower=0, upper=9)
    check_facts(FedPSG(epsilon=8.0), facts(y, n=10_000))
    for n in (100, 300):
        with pytest.raises(BadArguments, match="smaller batch"):
            check_facts(FedPSG(epsilon=8.0), facts(y, n=n))


def test_without_tenseal_a_job_under_ckks_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    y = Column(name="y", kind="count", lower=0, upper=9)
    monkeypatch.setitem(sys.modules, "tenseal", None)
    ckks._tenseal.cache_clear()
    check_facts(FedPSG(), facts(y))
    with pytest.raises(SecureError, match="install"):
        check_facts(FedPSG(protect="ckks"), facts(y))
    ckks._tenseal.cache_clear()


def test_without_jax_the_first_use_says_what_to_install() -> None:
    script = "import sys; sys.modules['jax'] = None; import colonnade; colonnade.FedPSG"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("completion needs jax and optax; install colonnade[completion].")
