"""Budgets of the rank synthesizers in all three units. Oracles: the reading's figures, closed forms, the accountant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from colonnade.errors import BadArguments, BadPrivacyParameter, NotEstimable
from colonnade.papers.vcds.budget import MARGINAL_SHARE, RankBudget
from colonnade.papers.vcds.method import EVCDS, IEVCDS, VCDS
from colonnade.papers.vcds.ranks import comparison_budget, perturbed_ranks, rank_noise_variance
from colonnade.papers.vcds.releases import PRESENCE
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.synthesis.copula.overlap import Overlap

PAPER = {"party1": 21, "party2": 20, "party3": 20, "party4": 20, "party5": 20}
EVERYTHING = Overlap(None, tuple(PAPER))
NOMINAL: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "accounting": "nominal"}


@pytest.mark.parametrize(("n", "record", "block"), [(1_000, 63.6, 20.4), (5_000, 229.0, 63.2)])
def test_the_paper_s_epsilon_of_one_is_what_the_reading_measured(n: int, record: float, block: float) -> None:
    """Oracle: /work/shared/readings/copula.md, exact (epsilon, delta) of a record's ranks at the paper's epsilon 1."""
    budget = RankBudget(VCDS(**NOMINAL), n, PAPER)
    assert budget.epsilon_0 == pytest.approx(0.5 * 5 / 101)
    assert budget.exact == pytest.approx(record, rel=0.002)
    # The accountant (Renyi, marginals included) is above the exact figure of the ranks, and not far.
    assert record < budget.record.epsilon < record * 1.2 + 4
    assert block < budget.blocks["party2"].epsilon < block * 1.2 + 2
    assert budget.nominal["pair"] == pytest.approx(21 * (0.5 * 5 / 101) * 2)


def test_split_none_gives_every_comparison_the_whole_rank_budget() -> None:
    budget = RankBudget(VCDS(split="none", **NOMINAL), 100, PAPER)
    assert budget.epsilon_0 == budget.marginal == 0.5


@pytest.mark.parametrize("noise", ["exact", "skellam"])
@pytest.mark.parametrize("rounds", [1, 4])
def test_record_accounting_spends_what_was_asked_for_and_no_more(noise: str, rounds: int) -> None:
    """Oracle: the accountant on the costs that the ledgers will be debited with."""
    asked = IEVCDS(epsilon=2.0, delta=1e-6, noise=noise, iterations=rounds)  # type: ignore[arg-type]
    budget = RankBudget(asked, 500, {"a": 3, "b": 2})
    total = guarantee(budget.costs(5), delta=1e-6, relation="replace")
    assert 1.5 < total.epsilon <= 2.0 * (1 + 1e-9)
    assert 5 * budget.marginal == pytest.approx(2.0 * MARGINAL_SHARE)
    assert budget.rounds == rounds


def test_iterations_share_a_nominal_budget_or_multiply_it() -> None:
    """Corollary 4: T epsilon_1 + epsilon_2."""
    whole = RankBudget(IEVCDS(iterations=10, **NOMINAL), 100, PAPER)
    each = RankBudget(IEVCDS(iterations=10, per_iteration=True, **NOMINAL), 100, PAPER)
    one = comparison_budget(0.5, parties=5, total_columns=101)
    assert whole.epsilon_0 == pytest.approx(one / 10)
    assert each.epsilon_0 == pytest.approx(one)
    assert whole.marginal == each.marginal == pytest.approx(one)


def test_a_nominal_epsilon_is_not_called_private() -> None:
    budget = RankBudget(VCDS(**NOMINAL), 1000, PAPER)
    notes = budget.notes(EVERYTHING)
    assert "not what a record loses" in notes[0]
    assert "not called private" in notes[0]
    text = " ".join(notes)
    assert str(budget.record) in text
    assert "Warning" in text
    assert f"{PRESENCE!r}" in text
    assert "accounting='record'" in text, "the cure for a refusing budget"


def test_the_forecast_is_the_variance_of_a_product_of_noisy_ranks() -> None:
    """Closed form: two ratios q give sqrt((2 q + q^2) / shared)."""
    budget = RankBudget(VCDS(**NOMINAL), 400, {"a": 1, "b": 1})
    q = rank_noise_variance(400, budget.epsilon_0) / ((400**2 - 1) / 12)
    assert budget.correlation_noise() == pytest.approx(((2 * q + q * q) / 400) ** 0.5)
    assert budget.correlation_noise((200, 200), 100) > 2 * budget.correlation_noise()


@pytest.mark.parametrize(
    "wrong",
    [
        {"accounting": "trust me"},
        {"noise": "gauss"},
        {"split": "half"},
        {"marginals": "spline"},
        {"order": 0},
        {"marginals": "bernstein", "degree": 10_000},
        {"order": 3},
        {"split": "none"},
        {"columns": "age"},
        {"columns": ()},
        {"rows": 0},
    ],
)
def test_wrong_options_are_refused_when_they_are_stated(wrong: dict[str, object]) -> None:
    with pytest.raises(BadArguments):
        VCDS(**wrong)  # type: ignore[arg-type]


def test_options_of_the_others() -> None:
    with pytest.raises(BadArguments, match="sampler"):
        EVCDS(sampler="aligned")  # type: ignore[arg-type]
    with pytest.raises(BadArguments, match="sweeps"):
        EVCDS(sweeps=-1)
    with pytest.raises(BadArguments, match="iterations"):
        IEVCDS(iterations=0)
    with pytest.raises(BadArguments, match="imputation"):
        IEVCDS(imputation="mean")  # type: ignore[arg-type]
    with pytest.raises(BadArguments, match="per_iteration"):
        IEVCDS(per_iteration=True)
    with pytest.raises(BadPrivacyParameter, match="epsilon"):
        VCDS(epsilon=-1.0)


@pytest.mark.parametrize("method", [VCDS(columns=("a", "b")), EVCDS(sampler="adjusted"), IEVCDS(iterations=3)])
def test_options_round_trip(method: VCDS | EVCDS | IEVCDS) -> None:
    assert type(method).from_options(method.options()) == method


def test_skellam_noise_is_made_for_the_cohort_when_few_are_present() -> None:
    """Oracle: scipy's ranks, and mu / 2 (1 - 1 / m) with mu for 400 records. 300 releases of 50 ranks: the variance has
    a relative standard error of about sqrt(2 / 15000) = 1.2 %, so 7 % is 6 of them."""
    values = np.random.default_rng(1).permutation(50).astype(float)
    randomness = SimulatedRandomness(2)
    made = [
        perturbed_ranks(values, epsilon_0=0.3, noise="skellam", cohort=400, randomness=randomness) for _ in range(300)
    ]
    errors = np.array([one.debiased for one in made]) - stats.rankdata(values)
    wanted = rank_noise_variance(50, 0.3, noise="skellam", cohort=400)
    assert wanted == pytest.approx(8 * rank_noise_variance(50, 0.3), rel=0.01)
    assert errors.var() == pytest.approx(wanted, rel=0.07)
    with pytest.raises(BadPrivacyParameter, match="cohort"):
        perturbed_ranks(values, epsilon_0=0.3, cohort=49, randomness=randomness)


def test_one_record_cannot_be_ranked() -> None:
    with pytest.raises(NotEstimable, match="one record"):
        RankBudget(VCDS(**NOMINAL), 1, {"a": 1})
    with pytest.raises(BadArguments, match="delta"):
        RankBudget(VCDS(delta=0.0), 10, {"a": 1})
