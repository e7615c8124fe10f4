"""What a plan says the noise will do, against what it does; and its cure, followed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.federation.method import NoEstimate
from colonnade.models.linear.result import Regression
from colonnade.statistics.forecast import FORECAST, HOPELESS

N = 3000


def consortium(folder: Path, seed: int) -> co.Federation:
    rng = np.random.default_rng(seed)
    common = rng.normal(size=N)
    blocks = {
        party: pd.DataFrame({f"{party}{k}": 0.5 * common + rng.normal(size=N) for k in range(3)}).assign(
            id=np.arange(N)
        )
        for party in "abc"
    }
    blocks["a"]["a0"] = sum(0.5 * blocks[party][f"{party}1"] for party in "abc") + rng.normal(size=N)
    names = [f"{party}{k}" for party in "abc" for k in range(3)]
    columns = Columns([Column(name=name, kind="continuous", lower=-8.0, upper=8.0) for name in names])
    return co.Federation.local(blocks, key="id", columns=columns, allow=("presence",), seed=seed, runs=folder)


def test_a_regression_that_will_not_work_is_known_before_and_the_advice_works(tmp_path: Path) -> None:
    results: dict[str, list[type]] = {"before": [], "after": []}
    for seed in range(3):
        with consortium(tmp_path / str(seed), seed) as federation:
            plan = federation.plan(co.Regress(response="a0", epsilon=0.5))
            warning = next(note for note in plan.notes if note.startswith(HOPELESS))
            advice = re.search(r"epsilon = ([\d.]+) would be enough", warning)
            assert advice is not None
            results["before"].append(type(federation.run(plan)[0]))
            again = federation.plan(co.Regress(response="a0", epsilon=float(advice.group(1))))
            assert not [note for note in again.notes if note.startswith(HOPELESS)]
            results["after"].append(type(federation.run(again)[0]))
    assert results == {"before": [NoEstimate] * 3, "after": [Regression] * 3}


def test_the_forecast_noise_of_a_correlation_is_that_of_the_result(tmp_path: Path) -> None:
    """The noise in a standardised coefficient is at least that in a correlation, and not several times more here."""
    with consortium(tmp_path, 1) as federation:
        plan = federation.plan(co.Regress(response="a0", epsilon=10.0))
        (note,) = (note for note in plan.notes if note.startswith(FORECAST))
        told = re.search(r"by about ([\d.e-]+) \(sampling alone: ([\d.e-]+)\)", note)
        assert told is not None
        fit = co.Regress(response="a0", epsilon=10.0).fit(federation)
    noise, sampling = map(float, told.groups())
    measured = float(np.median(np.asarray(fit.bse)[1:]))
    assert 0.5 < measured / np.hypot(noise, sampling) < 4


def test_a_job_without_an_estimate_keeps_what_was_released(tmp_path: Path) -> None:
    with consortium(tmp_path, 0) as federation:
        result, run = federation.run(co.Regress(response="a0", epsilon=0.5))
    assert isinstance(result, NoEstimate)
    assert run.job["state"] == "done"
    stored = run.read_json("result.json")
    assert stored["kind"] == "no-estimate"
    assert stored["reason"] == result.reason
    assert any(name.startswith("moments") for name in stored["released"]), "the noisy moments that were paid for"
    assert run.read_json("view.json")["warnings"] == [f"No estimate: {result.reason}"]
    with pytest.raises(co.errors.NotEstimable, match="gave no estimate"):
        _ = result.params


POLYNOMIAL = {"outputs": [[[2.0, {"a0": 2}]]]}


@pytest.mark.parametrize(
    ("method", "small"),
    [
        (lambda epsilon: co.Moments(columns=("a0", "b0", "c0"), epsilon=epsilon, verify=False), 0.0005),
        (lambda epsilon: co.PolynomialSum(polynomial=POLYNOMIAL, epsilon=epsilon, verify=False), 0.0005),
        (lambda epsilon: co.PresenceTotal(epsilon=epsilon), 0.0005),
        (lambda epsilon: co.Tables(tables=(("a0", "b0"),), epsilon=epsilon, verify=False), 0.05),
        (lambda epsilon: co.Synthesize(model="field", columns=("a0", "b0"), epsilon=epsilon, verify=False), 0.05),
    ],
    ids=["moments", "polynomial", "presence", "tables", "field"],
)
def test_what_will_not_work_is_said_with_an_epsilon_that_does(
    tmp_path: Path, method: Callable[[float], Any], small: float
) -> None:
    with consortium(tmp_path, 1) as federation:
        before = federation.plan(method(small)).notes
        warning = next(note for note in before if note.startswith(HOPELESS))
        advice = re.search(r"epsilon = ([\d.e+-]+) would be enough", warning)
        assert advice is not None
        after = federation.plan(method(float(advice.group(1)))).notes
    assert any(note.startswith(FORECAST) for note in after)
    assert not any(note.startswith(HOPELESS) for note in after)


def test_the_forecast_of_a_mean_is_the_noise_of_the_result(tmp_path: Path) -> None:
    method = co.PolynomialSum(polynomial=POLYNOMIAL, epsilon=0.01, verify=False)
    with consortium(tmp_path, 1) as federation:
        plan = federation.plan(method)
        told = re.search(r"off by about ([\d.e-]+) of the largest", " ".join(plan.notes))
        assert told is not None
        result, _ = federation.run(plan)
    assert float(told.group(1)) == pytest.approx(result.noise_sd / N / 2.0, rel=0.1)


def test_a_selection_that_noise_has_made_says_so_first(tmp_path: Path) -> None:
    with consortium(tmp_path, 1) as federation:
        result = co.Select(response="a0", epsilon=2.0, verify=False).fit(federation)
    (warning,) = result.view().warnings
    assert warning.startswith("Selection is unreliable: privacy noise moves a correlation by ")
    assert repr(result).startswith(f"WARNING: {warning} <Selection: ")
    assert len(repr(result)) < 400, "no arrays"
