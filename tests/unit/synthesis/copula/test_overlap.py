"""Forecasts by pair of parties from stated parts of the cohort; wrong statements are refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import BadArguments
from colonnade.papers.vcds.method import VCDS
from colonnade.synthesis.copula.estimate import LEAVE, WARN
from colonnade.synthesis.copula.overlap import Overlap
from colonnade.synthesis.method import Synthesize
from support.small import three_parties


def forecast(overlap: Overlap, least: float) -> str:
    return "\n".join(overlap.notes(lambda _a, _b, shared: least / shared, warn=WARN, leave=LEAVE))


def test_pairs_are_listed_with_their_noise_and_sorted_into_poor_and_left() -> None:
    """a & b share 0.5 x 0.5, a & c what was stated, b & c all that b has: 0.004 over those."""
    text = forecast(Overlap({"a": 0.5, "b": 0.5, "c+a": 0.05, "b+c": 0.5, "c": 0.55}, ("a", "b", "c")), 0.004)
    listed, poor, left = text.split("\n")
    assert "a & c 0.08 (5 %); a & b 0.016 (25 %); b & c 0.008 (50 %)" in listed
    assert poor == f"WARNING: above {WARN}, and poor: a & b."
    assert "left to maximum-determinant completion: a & c." in left


def test_without_a_statement_all_records_are_shared_and_the_plan_asks_for_one() -> None:
    text = forecast(Overlap(None, ("a", "b")), 0.004)
    assert "a & b 0.004 (100 %)" in text
    assert "state what you expect" in text
    assert "WARNING" not in text
    assert Overlap({"a": 0.5}, ("a",)).notes(lambda *_: 1.0, warn=WARN, leave=LEAVE) == ()


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        ({"a": 0.6, "nobody": 0.5}, "'nobody'"),
        ({"a+a": 0.5}, "'a\\+a'"),
        ({"a": 0.6, "b": 0.5, "a+b": 0.55}, "share between 0.1 and 0.5"),
        ({"a": 0.9, "b": 0.9, "b+a": 0.5}, "share between 0.8 and 0.9"),
    ],
)
def test_what_cannot_be_is_refused(expected: dict[str, float], told: str) -> None:
    with pytest.raises(BadArguments, match=told):
        Overlap(expected, ("a", "b"))


@pytest.mark.parametrize("method", [Synthesize, VCDS])
@pytest.mark.parametrize("part", [0.0, -0.1, 1.1, True, "half", float("nan")])
def test_a_part_is_between_0_and_1(method: type, part: object) -> None:
    with pytest.raises(BadArguments, match="expected"):
        method(expected={"clinic": part})


@pytest.mark.parametrize("method", [partial(Synthesize, model="copula"), VCDS])
def test_plans_forecast_by_pair_and_nothing_else_changes(method: Any, tmp_path: Path) -> None:
    stated = method(epsilon=3.0, expected={"clinic": 0.5, "clinic+court": 0.1})
    with three_parties(tmp_path, seed=3) as parties:
        plan, plain = parties.plan(stated), parties.plan(method(epsilon=3.0))
        with pytest.raises(BadArguments, match="'museum'"):
            parties.plan(method(epsilon=3.0, expected={"museum": 0.5}))
    text = plan.text()
    assert "clinic & court" in text
    assert "(10 %)" in text
    assert "(50 %)" in text
    assert "(100 %)" in plain.text()
    assert str(plan.total()) == str(plain.total())
    assert type(stated).from_options(plan.options) == stated
