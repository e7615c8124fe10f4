"""Empty cells: a record that is dropped counts as one that its party lacks, and masked moments are pandas' pairwise ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.models.classify import Classify
from colonnade.models.linear.regress import Regress
from colonnade.models.pca import PCA
from colonnade.models.sparse.select import Select
from colonnade.statistics.moments import Moments
from colonnade.statistics.polynomial import Polynomial, PolynomialSum
from colonnade.statistics.tables import Tables
from colonnade.synthesis.method import Synthesize
from support.gaps import COLUMNS, blocks_with_gaps, gaps_federation, with_rule, without_gaps

NEWTON = ("total-predictor", "party-predictor", "residuals", "gradients", "coefficients", "record-count", "response")
EVERY = ("presence", "exact-moments", "exact-marginals", "losses", *NEWTON)


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
        PolynomialSum(polynomial=Polynomial.of([(1.0, {"debt": 1, "size": 1}), (1.0, {"claims": 2})]), epsilon=None),
        lambda sums: sums.values,
    ),
    "tables": (Tables(tables=(("rating", "sued"), ("debt",)), epsilon=None, bins=3), lambda tables: tables["debt",]),
    "pca": (PCA(epsilon=None, n_components=2, presence="known"), lambda fit: np.abs(fit.components_)),
    "classify": (Classify(response="sued", epsilon=None, presence="secret"), lambda fit: fit.coef_),
    "copula": (Synthesize(epsilon=None, presence="known", correlation="em"), copula),
}


@pytest.mark.parametrize("which", DROPPED)
def test_a_dropped_record_is_one_that_its_party_lacks(tmp_path: Path, which: str) -> None:
    """The same numbers as from blocks without the records that have an empty cell; the response is among the columns."""
    method, numbers = DROPPED[which]
    used = ("debt", "rating", "claims")  # the registry has all records: the cohort stays the same
    blocks = blocks_with_gaps(names=used, share=0.08)
    with gaps_federation(tmp_path / "gaps", blocks, with_rule("drop", used), allow=EVERY) as federation:
        assert any("count" in note and "lacks" in note for note in federation.plan(method).notes)
        got = numbers(method.fit(federation))
    with gaps_federation(tmp_path / "without", without_gaps(blocks, used), COLUMNS, allow=EVERY) as federation:
        wanted = numbers(method.fit(federation))
    assert np.abs(got - wanted).max() < 1e-3 * max(1.0, np.abs(wanted).max())
