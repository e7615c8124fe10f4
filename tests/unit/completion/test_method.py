"""Options of a completion that cannot be are refused in one sentence, when they are given or when a job is planned."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from colonnade.completion.method import Complete
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, BadPrivacyParameter, SchemaError, SecureError
from colonnade.federation.facts import PublicFacts
from colonnade.secure import ckks


@pytest.mark.parametrize(
    "wrong",
    [
        {"parties": 5},
        {"parties": (3,)},
        {"parties": ()},
        {"parties": "right"},
        {"label": 7},
        {"label": ""},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": None},
        {"learning_rate": "0.1"},
        {"learning_rate": None},
        {"learning_rate": math.nan},
        {"validation": "x"},
        {"dropout": "x"},
        {"dropout": 0.999},
        {"clip": "x"},
        {"clip": math.inf},
        {"epochs": 0},
        {"iterations": True},
        {"file_format": "xlsx"},
        {"delta": "x"},
        {"imputer": ["gain"]},
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArguments, match=next(iter(wrong))):
        Complete(**wrong)


def test_a_delta_that_cannot_be_is_named() -> None:
    with pytest.raises(BadPrivacyParameter, match="delta"):
        Complete(delta=2.0)


def test_numbers_of_numpy_are_numbers() -> None:
    made = Complete(iterations=np.int64(20), learning_rate=np.float64(0.01), parties=["a", "b", "a"])  # type: ignore[arg-type]
    assert (made.iterations, type(made.iterations), type(made.learning_rate)) == (20, int, float)
    assert made.parties == ("a", "b")
    assert Complete.from_options(made.options()) == made


def facts(*columns: Column, n: int = 100) -> PublicFacts:
    x = Column(name="x", kind="continuous", lower=0, upper=1)
    return PublicFacts(n=n, columns={"left": Columns([x]), "right": Columns(list(columns))})


def test_what_the_facts_rule_out_is_refused_before_any_data_is_touched() -> None:
    y = Column(name="y", kind="count", lower=0, upper=9)
    holes = Column(name="holes", kind="count", lower=0, upper=9, missing=True)
    Complete(imputer="mice").check_facts(facts(y))
    for imputer in ("regression", "mice", "copula-draw"):
        Complete(imputer=imputer).check_facts(facts(y, holes))
    single = Column(name="single", kind="categorical", categories=("this",))
    Complete(imputer="mice").check_facts(facts(y, single))
    Complete(imputer="copula-mean").check_facts(facts(single))
    with pytest.raises(SchemaError, match="no column of 'right' can vary"):
        Complete(imputer="mice").check_facts(facts(single))
    for name in ("cohort row", "y (generated)"):
        with pytest.raises(SchemaError, match="rename"):
            Complete().check_facts(facts(y, Column(name=name, kind="count", lower=0, upper=9)))
    Complete().check_facts(facts(Column(name="z (generated)", kind="count", lower=0, upper=9)))


def test_private_training_that_could_not_make_one_round_is_refused() -> None:
    """It would spend epsilon and return the first weights."""
    y = Column(name="y", kind="count", lower=0, upper=9)
    Complete(epsilon=8.0).check_facts(facts(y, n=10_000))
    for n in (100, 300):
        with pytest.raises(BadArguments, match="smaller batch"):
            Complete(epsilon=8.0).check_facts(facts(y, n=n))


def test_without_tenseal_a_job_under_ckks_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    y = Column(name="y", kind="count", lower=0, upper=9)
    monkeypatch.setitem(sys.modules, "tenseal", None)
    ckks._tenseal.cache_clear()
    Complete().check_facts(facts(y))
    with pytest.raises(SecureError, match="install"):
        Complete(masking="ckks").check_facts(facts(y))
    ckks._tenseal.cache_clear()


def test_without_jax_a_network_says_what_to_install_and_the_rest_does_without_it() -> None:
    """At the coordinator when a job is planned, at a party before it tells anything."""
    script = """
import sys
sys.modules["jax"] = None
import pandas as pd
import colonnade as co
from colonnade.errors import RunError
columns = co.Columns([co.Column(name=name, kind="continuous", lower=0, upper=9) for name in "xy"])
blocks = {name: pd.DataFrame({"id": range(least, 40), name: 1.0}) for name, least in (("x", 0), ("y", 9))}
with co.Federation.local(blocks, key="id", columns=columns, allow=("presence", "completion-quality")) as federation:
    print(co.Complete(imputer="mean").fit(federation).parties["y"]["completed"])
    try:
        federation.plan(co.Complete())
    except RunError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "9",
        "complete needs jax, which this installation lacks; nothing was spent. Install colonnade[completion].",
    ]
