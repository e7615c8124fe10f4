"""The frequency oracle. Oracles: expectations, the full matrix, the accountant."""

from __future__ import annotations

import math

import numpy as np
import pytest

from colonnade.errors import BadArguments
from colonnade.papers.vertimrf.frequency_oracle import (
    Reports,
    inverted,
    paper_claim,
    paper_epsilon,
    proved_epsilon,
    transition,
)
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import RandomizedResponse
from colonnade.privacy.noise import generalized_randomized_response
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.synthesis.field.schema import TableQuery


def test_the_inverse_axis_by_axis_is_the_inverse_of_the_whole_matrix() -> None:
    """P^-1 by numpy on the 12 x 12 transition of a 3 x 4 table."""
    chances = [transition(1.1, 3), transition(0.7, 4)]
    matrices = [np.full((k, k), q) + (p - q) * np.eye(k) for (p, q), k in zip(chances, (3, 4), strict=True)]
    whole = np.kron(*matrices)
    reported = np.random.default_rng(0).integers(0, 50, (3, 4))
    exact = np.linalg.solve(whole, reported.ravel()).reshape(3, 4)
    np.testing.assert_allclose(inverted(reported, chances), exact)
    assert inverted(reported, chances).sum() == pytest.approx(reported.sum()), "the total is kept"


def test_the_oracle_is_unbiased_and_its_sd_is_stated() -> None:
    """200 replications of a 2 x 3 table with an absent category each: means within 5 standard errors (x 6 cells)."""
    rng = np.random.default_rng(1)
    n, epsilon, runs = 2000, 1.5, 200
    a, b = rng.integers(0, 2, n), rng.integers(0, 3, n)
    truth = np.zeros((2, 3))
    np.add.at(truth, (a, b), 1)
    bins = {"a": np.arange(2), "b": np.arange(3)}
    source = SimulatedRandomness(4)
    found = []
    for _ in range(runs):
        codes = {
            name: generalized_randomized_response(one, categories=k + 1, epsilon=epsilon, randomness=source)
            for name, one, k in (("a", a, 2), ("b", b, 3))
        }
        (table,) = Reports(codes, bins, epsilon, False).tables([TableQuery.of(("a", "b"))], records=n)
        found.append(table.counts)
    mean, sd = np.mean(found, axis=0), np.std(found, axis=0)
    assert np.all(np.abs(mean - truth) < 5.2 * sd / math.sqrt(runs))
    # 200 replications know a standard deviation to 5 %; the formula takes the records to be spread evenly.
    assert np.all(np.abs(sd / table.sd - 1) < 0.25)


def test_the_oracle_answers_only_in_the_bins_it_encoded() -> None:
    made = Reports({"a": np.zeros(5, dtype=int)}, {"a": np.array([0, 0, 1])}, 1.0, True)
    with pytest.raises(BadArguments, match="same bins"):
        made.tables([TableQuery.of(("a",))], records=5)


def test_theorem_3_as_printed_and_as_proved() -> None:
    """d eps' / 2 is smaller for few columns. Our eps' is accounted: all reports of a record, replace-one."""
    assert paper_epsilon(1.0, 1e-5, 4) == pytest.approx(0.5)
    assert paper_claim(0.5, 1e-5, 4) == pytest.approx(1.0)
    assert paper_claim(1.0, 0.5, 40) == pytest.approx(2 * math.sqrt(80 * math.log(2)))
    sizes = (5, 5, 3, 2)
    ours = proved_epsilon(1.0, 1e-5, sizes)
    total = guarantee([RandomizedResponse(ours, k, relation="replace") for k in sizes], delta=1e-5, relation="replace")
    assert 0.99 < total.epsilon <= 1.0
    assert ours < 0.5, "the printed one would cost twice as much"
