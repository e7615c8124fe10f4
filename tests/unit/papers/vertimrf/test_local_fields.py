"""PrivMRF at a party. Oracles: brute force over neighbours, counting by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.papers.vertimrf import local_fields
from colonnade.papers.vertimrf.local_fields import (
    SENSITIVITY_OF_SCORE,
    Counter,
    candidate_marginals,
    initial_set,
    noisy_scores,
    priv_mrf,
    worst_inferred,
)
from colonnade.privacy.noise import discrete_gaussian
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.synthesis.field.fit import MarkovField
from colonnade.synthesis.field.graph import triangulate

SIZES = {"a": 3, "b": 2, "c": 4}


def counter(n: int = 400, seed: int = 0) -> Counter:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 3, n)
    b = np.where(rng.random(n) < 0.8, a % 2, rng.integers(0, 2, n))
    c = rng.integers(0, 4, n)
    return Counter({"a": a.astype(np.int32), "b": b.astype(np.int32), "c": c.astype(np.int32)}, SIZES, n)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 12), st.data())
def test_one_record_moves_a_score_by_less_than_stated(n, data) -> None:
    """sum |n T_ab - T_a T_b| with a record, and with the record zeroed out: below 3 n, for any data."""
    codes = [np.array(data.draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)), dtype=np.int32) for _ in "ab"]
    codes[1] = np.where(codes[0] < 0, -1, np.maximum(codes[1], 0)).astype(np.int32)

    def score(present: np.ndarray) -> int:
        kept = [np.where(present, one, -1).astype(np.int32) for one in codes]
        own = Counter({"a": kept[0], "b": kept[1]}, {"a": 3, "b": 3}, n)
        return int(np.abs(n * own.table("ab") - np.outer(own.table("a"), own.table("b"))).sum())

    everybody = np.ones(n, dtype=bool)
    for record in range(n):
        without = everybody.copy()
        without[record] = False
        assert abs(score(everybody) - score(without)) < SENSITIVITY_OF_SCORE * n


def test_noisy_scores_find_the_dependent_pair() -> None:
    """At a large rho they are the R-scores: n/2 |P_ab - P_a P_b|_1 by hand."""
    own = counter()
    scores = noisy_scores(own, rho=1e6, randomness=SimulatedRandomness(1))
    joint = own.table("ab") / own.n
    by_hand = own.n / 2 * np.abs(joint - np.outer(joint.sum(axis=1), joint.sum(axis=0))).sum()
    assert scores["a", "b"] == pytest.approx(by_hand, rel=0.01)
    assert max(scores, key=scores.__getitem__) == ("a", "b")


def test_candidates_are_useful_the_right_way_round() -> None:
    """n / cells >= theta x noise: small tables are kept and large ones are not."""
    graph = triangulate(SIZES, [("a", "b"), ("b", "c"), ("a", "c")])
    scores = dict.fromkeys(itertools.combinations("abc", 2), 1.0)
    kept = candidate_marginals(graph, scores, n=400, noise=10.0, thetas=(4.0, 4.0), most=40)
    assert ("a", "b") in kept
    assert ("a", "b", "c") not in kept, "400 / 24 < 40"
    assert ("a", "b", "c") in candidate_marginals(graph, scores, n=400, noise=10.0, thetas=(4.0, 1.0), most=40)
    assert {("a",), ("b",), ("c",)} <= set(kept)
    first = initial_set("abc", kept, scores | {("a", "b"): 5.0})
    assert first[0] == ("a", "b")
    assert {name for one in first for name in one} == set("abc")


def test_the_worst_inferred_table_is_chosen() -> None:
    """A field of independent columns at a large epsilon: the dependent pair is what it gets most wrong."""
    own = counter(4000)
    graph = triangulate(SIZES, [(name,) for name in SIZES])
    tables = {(name,): own.table(name).astype(float) for name in SIZES}
    field = MarkovField(graph, tables, float(own.n), 0.0)
    pairs = list(itertools.combinations("abc", 2))
    assert worst_inferred(own, field, pairs, epsilon=5.0, randomness=SimulatedRandomness(2)) == ("a", "b")


def test_priv_mrf_learns_the_table_at_a_large_budget() -> None:
    own = counter(2000)
    found = priv_mrf(own, rho=50.0, limit=1000, theta=1.0, iterations=300, randomness=SimulatedRandomness(5))
    assert {name for columns in found.tables for name in columns} == set(SIZES)
    table = found.field.marginal(("a", "b")) / found.field.total
    # Noise of sd < 1 on counts of 2000 records, and a fit that stops after 300 steps.
    assert np.abs(table - own.table("ab") / own.n).sum() < 0.02


@pytest.mark.parametrize("rho", [0.01, 2.0])
def test_what_priv_mrf_draws_spends_its_rho(rho: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Summed over the draws that were made: 1 / (2 sd^2) a table, e^2 / 2 a choice, and the scores' share."""
    drawn: list[float] = []
    chosen: list[float] = []
    scored: list[float] = []

    def gaussian(randomness: Any, sd: float, size: int) -> Any:
        drawn.append(sd)
        return discrete_gaussian(randomness, sd, size)

    def choose(*arguments: Any, epsilon: float, **options: Any) -> Any:
        chosen.append(epsilon)
        return worst_inferred(*arguments, epsilon=epsilon, **options)

    def score(own: Counter, *, rho: float, **options: Any) -> Any:
        scored.append(rho)
        before = len(drawn)
        made = noisy_scores(own, rho=rho, **options)
        del drawn[before:]
        return made

    monkeypatch.setattr(local_fields, "discrete_gaussian", gaussian)
    monkeypatch.setattr(local_fields, "worst_inferred", choose)
    monkeypatch.setattr(local_fields, "noisy_scores", score)
    own = counter(2000)
    found = priv_mrf(own, rho=rho, limit=1000, theta=1.0, iterations=20, randomness=SimulatedRandomness(5))
    assert set(drawn) == {found.sd}
    assert len(drawn) >= len(SIZES)
    tables = sum(1 / (2 * sd**2) for sd in drawn)
    choices = sum(one**2 / 2 for one in chosen)
    assert 0.5 * local_fields.TABLES * rho < tables <= local_fields.TABLES * rho
    assert choices <= local_fields.CHOICES * rho * (1 + 1e-12)
    assert scored == [local_fields.SCORES * rho]
    assert tables + choices + scored[0] <= rho * (1 + 1e-12)
