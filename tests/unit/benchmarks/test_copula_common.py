"""The copula studies' pooled Synthesize against the federation, and their mean imputation and effective records."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.copula_common import (
    Records,
    effective_records,
    federated,
    holder_always_present,
    mean_imputed,
    pooled_copula,
    with_blocks,
)

from colonnade.data.simulated import copula_paper
from colonnade.synthesis.method import Synthesize


@pytest.mark.parametrize("presence", ["secret", "known"])
def test_without_noise_pooled_rows_and_the_federation_find_the_same_copula(presence: str) -> None:
    """Oracle: the federation. Both round at random to 2^-14, so correlations agree to 1e-3 and marginals exactly (up to
    what EM's correlations move them by)."""
    example = copula_paper(1500, seed=3, p=10, missing="mcar")
    records = Records.of(example)
    patterns = holder_always_present(records, "holder") if presence == "known" else None
    method = Synthesize(model="copula", epsilon=None, gamma=2**14, presence=presence, patterns=patterns)  # type: ignore[arg-type]
    copula, found = pooled_copula(method, records, seed=1)
    table = federated(method, example, seed=1)
    assert found.mode == table.details["correlation"] == ("em" if presence == "known" else "pairs")
    assert list(copula.columns) == list(table.columns)
    assert np.abs(copula.correlation - table.model.correlation).max() < 1e-3  # type: ignore[attr-defined]
    for name, one in copula.marginals.items():
        theirs = table.model.marginals[name]  # type: ignore[attr-defined]
        assert np.abs(one.cumulative - theirs.cumulative).max() < 1e-3


def test_with_noise_both_are_as_far_from_the_truth() -> None:
    """Oracle: the federation at the same plan. Errors of 55 correlations have the same size: the ratio of two root mean
    squares over 55 entries, of noise with one sd, is beyond 2 with probability below 1e-6 (F quantile of 55, 55)."""
    example = copula_paper(4000, seed=4, p=10)
    records = Records.of(example)
    exact, _ = pooled_copula(Synthesize(model="copula", epsilon=None), records, seed=1)
    method = Synthesize(model="copula", epsilon=2.0, delta=1e-5)
    ours, _ = pooled_copula(method, records, seed=2)
    theirs = federated(method, example, seed=3)
    away = [
        float(np.sqrt(np.mean((one - exact.correlation)[np.triu_indices(11, 1)] ** 2)))
        for one in (ours.correlation, theirs.model.correlation)  # type: ignore[attr-defined]
    ]
    assert min(away) > 0.003, "there is noise"
    assert 0.5 < away[0] / away[1] < 2


def test_candidate_patterns_with_the_holder() -> None:
    records = Records.of(copula_paper(50, seed=1, p=10))
    patterns = holder_always_present(records, "holder")
    assert len(set(patterns)) == 32
    assert all(one[records.facts.parties.index("holder")] for one in patterns)


def test_mean_imputation_stays_in_the_domains_and_keeps_present_cells() -> None:
    example = copula_paper(400, seed=2, p=20, missing="mcar")
    table = mean_imputed(example)
    for party, block in example.blocks.items():
        here = example.truth.presence[party].to_numpy()
        for name in block.columns.drop("record"):
            column = example.columns[name]
            codes, truth = (column.encode(one[name]) for one in (table, example.truth.complete))
            assert np.array_equal(codes[here], truth[here])
            if column.kind == "continuous" and not here.all():
                assert codes[~here] == pytest.approx(truth[here].mean())
    few = with_blocks(example, table, ["holder", "party1"])
    assert set(few.blocks) == {"holder", "party1"}
    assert len(few.columns) == 5


def test_effective_records_are_those_of_the_cohort_without_noise_and_fall_with_it() -> None:
    """Closed form for uncorrelated unit columns: 1 / n + s^2 (1 + b^2) / (1 - b^2) with c = b, up to the ridge."""
    gram, cross = np.eye(2), np.array([0.5, 0.0])
    assert effective_records(gram, cross, 1.0, cohort=1000, noise=0.0) == pytest.approx(1000)
    found = effective_records(gram, cross, 1.0, cohort=1000, noise=0.01)
    assert found == pytest.approx(1 / (1e-3 + 1e-4 * 1.25 / 0.75), rel=5e-3)
    assert math.isfinite(effective_records(gram, cross, 1.0, cohort=1000, noise=100.0))
