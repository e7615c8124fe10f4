"""Empty cells: a dropped record counts as one that its party lacks, and masked moments are pandas' pairwise ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.models.classify import Classify
from colonnade.models.linear.regress import Regress
from colonnade.models.matrix import second_moments
from colonnade.models.pca import PCA
from colonnade.models.sparse.select import Select
from colonnade.statistics.moments import MOST_CELL_PATTERNS, Moments, available_cases
from colonnade.statistics.polynomial import Polynomial, PolynomialSum
from colonnade.statistics.tables import Tables
from colonnade.synthesis.method import Synthesize
from support.gaps import COLUMNS, HELD, blocks_with_gaps, gaps_federation, with_rule, without_gaps
from support.small import committee_of

ROUNDS = ("party-predictor", "response-residuals", "gradients", "coefficients", "record-count", "loss")
EVERY = ("presence", "exact-moments", "exact-marginals", "exact-polynomial", "exact-tables", *ROUNDS)


def grams(result: Any) -> np.ndarray:
    return np.concatenate([gram.ravel() for gram in result.grams])


def copula(result: Any) -> np.ndarray:
    return np.concatenate([result.model.correlation.ravel(), *(m.cumulative for m in result.model.marginals.values())])


DROPPED: dict[str, tuple[Any, Callable[[Any], np.ndarray]]] = {
    "moments known": (Moments(epsilon=None), grams),
    "moments secret": (Moments(epsilon=None, presence="secret"), grams),
    "moments ignored": (Moments(epsilon=None, presence="ignore"), grams),
    # Groups of records are of another random order of the cohort, and so the standard errors.
    "regress": (Regress(response="claims"), lambda fit: np.asarray(fit.params)),
    "regress em": (Regress(response="claims", missing="em"), lambda fit: np.concatenate([fit.params, fit.bse])),
    "select": (Select(response="claims"), lambda fit: fit.path.to_numpy()),
    "select by rounds": (
        Select(response="claims", solver="newton", masking="plain", n_lambdas=8),
        lambda fit: fit.path.to_numpy(),
    ),
    "polynomial": (
        PolynomialSum(
            polynomial=Polynomial.of([(1.0, {"debt": 1, "size": 1}), (1.0, {"claims": 2, "rating": 1})]), epsilon=None
        ),
        lambda sums: sums.values,
    ),
    "tables": (
        Tables(tables=(("rating", "claims"), ("debt",)), epsilon=None, bins=3),
        lambda tables: np.append(tables["rating", "claims"], tables["debt",]),
    ),
    "pca": (PCA(epsilon=None, n_components=2, presence="known"), lambda fit: np.abs(fit.components_)),
    "classify": (Classify(response="sued", epsilon=None, presence="secret"), lambda fit: fit.coef_),
    "copula": (
        Synthesize(
            model="copula",
            epsilon=None,
            presence="known",
            correlation="em",
            columns=("size", "debt", "rating", "claims"),
        ),
        copula,
    ),
}


OF_HOLDERS = ("regress", "select by rounds")
"""What parties in pairs do not compute, or compute as share holders do."""


@pytest.mark.parametrize(
    ("engine", "which"),
    [*(("holders", which) for which in DROPPED), *(("pair", which) for which in DROPPED if which not in OF_HOLDERS)],
)
def test_a_dropped_record_is_one_that_its_party_lacks(tmp_path: Path, engine: str, which: str) -> None:
    """The same numbers as from blocks without the records that have an empty cell, be it of the response."""
    method, numbers = DROPPED[which]
    used = ("debt", "rating", "claims")  # the registry has all records: the cohort stays the same
    blocks = blocks_with_gaps(names=used, share=0.08)
    options = {"allow": EVERY, **committee_of(engine)}
    with gaps_federation(tmp_path / "gaps", blocks, with_rule("drop", used), **options) as federation:
        assert any("count" in note and "lacks" in note for note in federation.plan(method).notes)
        got = numbers(method.fit(federation))
    with gaps_federation(tmp_path / "without", without_gaps(blocks, used), COLUMNS, **options) as federation:
        wanted = numbers(method.fit(federation))
    # The default of `regress` combines two estimates by the covariance of random groups, which moves it a little.
    limit = 5e-3 if which == "regress" else 1e-3
    assert np.abs(got - wanted).max() < limit * max(1.0, np.abs(wanted).max())


# --- masks --------------------------------------------------------------------------------------------------------


def in_features(blocks: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """All features of all records, NaN where a block or a cell is missing, made from the frames alone."""
    joined = None
    for party, names in HELD.items():
        block = blocks[party].set_index("id")
        values = pd.DataFrame(index=block.index)
        for name in names:
            cells, column = block[name], COLUMNS[name]
            known = cells.notna()
            if column.kind == "categorical":
                for label in column.categories[1:]:
                    values[f"{name}[{label}]"] = (cells == label).astype(float).where(known)
                continue
            codes = cells.map(column.categories.index, na_action="ignore") if column.categories else cells
            low, high = (0, len(column.categories) - 1) if column.categories else (column.lower, column.upper)
            values[name] = (codes.astype(float) - (low + high) / 2) / ((high - low) / 2)
        joined = values if joined is None else joined.join(values, how="outer")
    return joined


@pytest.mark.parametrize("presence", ["secret", "known"])
def test_masked_moments_are_pairwise_ones(tmp_path: Path, engine: str, presence: Any) -> None:
    """Counts, means and covariances over the records in which both cells are filled, exactly: gamma rounds nothing."""
    few = tuple(COLUMNS) if presence == "secret" else ("debt", "sector", "claims")
    blocks = blocks_with_gaps(names=few, share=0.1)
    with gaps_federation(tmp_path, blocks, with_rule("mask", few), **committee_of(engine)) as federation:
        moments = Moments(epsilon=None, presence=presence).fit(federation)
    table = in_features(blocks)[[feature.name for feature in moments.features]]
    filled = table.notna().astype(float)
    cases = available_cases(moments)
    assert np.array_equal(cases.counts, filled.T @ filled)
    assert np.array_equal(cases.sums, table.fillna(0.0).T @ filled)
    means = cases.sums / cases.counts
    covariance = (cases.products / cases.counts - means * means.T) * cases.counts / (cases.counts - 1)
    assert np.allclose(covariance, table.cov(), rtol=1e-9, atol=1e-12)
    if presence == "secret":
        present = {name: len(blocks[party]) for party, names in HELD.items() for name in names}
        empty = {name: blocks[party][name].isna().sum() for party, names in HELD.items() for name in names}
        assert moments.empty_cells == {name: empty[name] for name in present}
    second = second_moments(moments)
    assert np.allclose(second.matrix[0, 1:], table.mean())


def pooled_em(table: np.ndarray, steps: int = 500) -> np.ndarray:
    """The covariance of a Gaussian from rows with NaN, record by record: the textbook's EM."""
    mean = np.nanmean(table, axis=0)
    covariance = np.diag(np.nanvar(table, axis=0))
    for _ in range(steps):
        filled, extra = np.empty_like(table), np.zeros_like(covariance)
        for i, row in enumerate(table):
            o, m = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
            slope = np.linalg.solve(covariance[np.ix_(o, o)], covariance[np.ix_(o, m)]).T
            filled[i, o], filled[i, m] = row[o], mean[m] + slope @ (row[o] - mean[o])
            extra[np.ix_(m, m)] += covariance[np.ix_(m, m)] - slope @ covariance[np.ix_(o, m)]
        mean, before = filled.mean(axis=0), covariance
        centred = filled - mean
        covariance = (centred.T @ centred + extra) / len(table)
        if np.abs(covariance - before).max() < 1e-10:
            break
    return covariance


def test_regression_over_cell_patterns_is_that_of_a_pooled_em(tmp_path: Path, engine: str) -> None:
    """Two columns ask for patterns of their empty cells; the response is one of them, and its records are used."""
    masked = ("debt", "claims")
    blocks = blocks_with_gaps(250, names=masked, share=0.15)
    columns = ("size", "debt", "claims")
    # The default, "combined", is EM where cells are masked; parties in pairs are asked for EM by name.
    way: dict[str, Any] = {} if engine == "holders" else {"missing": "em"}
    with gaps_federation(tmp_path, blocks, with_rule("mask", masked), **committee_of(engine)) as federation:
        plan = federation.plan(Regress(response="claims", columns=columns, **way))
        assert any("pattern, which the share holders see" in note for note in plan.notes)
        fit = Regress(response="claims", columns=columns, **way).fit(federation)
    table = in_features(blocks)[["size", "debt", "claims"]].to_numpy()
    covariance = pooled_em(table[~np.isnan(table[:, 2])])
    slopes = np.linalg.solve(covariance[:2, :2], covariance[:2, 2])
    assert fit.nobs == np.count_nonzero(~np.isnan(table[:, 2]))
    # Features are columns over 4, and claims over 8.
    assert np.allclose(fit.params[["size", "debt"]], slopes * 8 / 4, atol=1e-4)


def test_too_many_cell_patterns_become_dropped_records(tmp_path: Path) -> None:
    columns = with_rule("mask")
    with gaps_federation(tmp_path, blocks_with_gaps(60), columns) as federation:
        layout = Moments(epsilon=None).layout(federation.facts, federation.roster)
    patterns = sum(2 ** (2 * sum(mask)) for mask in itertools.product((0, 1), repeat=3) if any(mask))
    assert (patterns > MOST_CELL_PATTERNS) == (layout.masked == ())
    assert set(layout.filled) | set(layout.masked) == set(COLUMNS)


# --- levels -------------------------------------------------------------------------------------------------------


def test_an_empty_cell_can_be_a_level(tmp_path: Path, engine: str) -> None:
    blocks = blocks_with_gaps(share=0.1)
    cells = {name: block[name] for block in blocks.values() for name in block.columns[1:]}
    with gaps_federation(tmp_path, blocks, with_rule("level"), **committee_of(engine)) as federation:
        tables = Tables(tables=(("sector",), ("debt",), ("rating", "sued")), epsilon=None, bins=4).fit(federation)
        moments = Moments(epsilon=None, presence="secret", columns=("sector", "debt")).fit(federation)
    assert tables["sector",].tolist() == [
        *((cells["sector"] == label).sum() for label in COLUMNS["sector"].categories),
        cells["sector"].isna().sum(),
    ]
    assert tables["debt",][-1] == cells["debt"].isna().sum()
    assert tables["rating", "sued"].shape == (4, 3)
    (entries,), (gram,) = moments.entries, moments.grams
    place = entries.index("sector[missing]")
    assert gram[place, place] == cells["sector"].isna().sum()
    assert moments.empty_cells.keys() == {"debt"}, "a number has no level among features: it is masked"
