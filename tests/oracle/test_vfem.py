"""The paper's VFEM, independence across parties, in rounds and by the closed form, against pooled records.

Oracles: (a) a pooled, record-level EM of the same block-diagonal model, written here without the product's patterns or
moments; ordinary least squares (statsmodels) where nothing is missing, and on the tables of the baselines; (c) standard
errors from a numerical Hessian of the pooled observed-data likelihood, in which a record's visible columns and response
are one Gaussian vector.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy.linalg import block_diag

from colonnade.errors import BadArguments, NotEstimable
from colonnade.federation.coordinator import Federation
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.result import Regression
from colonnade.papers.vfem.method import VFEM
from support.vfem_blocks import Simulated, simulated

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def data() -> Simulated:
    return simulated(700, (2, 2, 1), (0.97, 0.75, 0.7), seed=4)


@pytest.fixture(scope="module")
def open_federation(data: Simulated, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return data.federation(tmp_path_factory.mktemp("vfem"))


@pytest.fixture(scope="module")
def rounds(open_federation: Federation) -> Regression:
    """All blocks are used: the paper's exchange."""
    return VFEM(response="y", masking="plain", tolerance=1e-13).fit(open_federation)


@pytest.fixture(scope="module")
def closed(open_federation: Federation) -> Regression:
    return VFEM(response="y", solver="exact", gamma=2**26).fit(open_federation)


def pooled_em(data: Simulated, iterations: int = 3000) -> tuple[Array, float, Array, Array]:
    """(b0, beta), s2, mu, Sigma: record by record, conditioning by the general formula of a Gaussian vector."""
    n, p = data.x.shape
    same = data.owner[:, None] == data.owner[None, :]
    mu, sigma = np.nanmean(data.x, axis=0), np.diag(np.nanvar(data.x, axis=0))
    b, s2 = np.zeros(1 + p), float(data.y.var())
    groups = np.unique(~np.isnan(data.x), axis=0, return_inverse=True)
    for _ in range(iterations):
        joint = np.zeros((p + 1, p + 1))
        joint[:p, :p] = sigma
        joint[:p, p] = joint[p, :p] = sigma @ b[1:]
        joint[p, p] = b[1:] @ sigma @ b[1:] + s2
        centre = np.append(mu, b[0] + mu @ b[1:])
        filled, spread = np.nan_to_num(data.x), np.zeros((p, p))
        for number, mask in enumerate(groups[0]):
            rows = groups[1].reshape(-1) == number
            seen, lost = np.append(np.flatnonzero(mask), p), np.flatnonzero(~mask)
            slope = joint[np.ix_(lost, seen)] @ np.linalg.inv(joint[np.ix_(seen, seen)])
            visible = np.column_stack([data.x[rows][:, mask], data.y[rows]])
            filled[np.ix_(rows, lost)] = centre[lost] + (visible - centre[seen]) @ slope.T
            left = joint[np.ix_(lost, lost)] - slope @ joint[np.ix_(seen, lost)]
            spread[np.ix_(lost, lost)] += rows.sum() * left
        design = np.column_stack([np.ones(n), filled])
        gram = design.T @ design
        gram[1:, 1:] += spread
        fresh = np.linalg.solve(gram, design.T @ data.y)
        mu = filled.mean(axis=0)
        sigma = same * (((filled - mu).T @ (filled - mu) + spread) / n)
        s2 = float(np.mean((data.y - design @ fresh) ** 2) + fresh[1:] @ spread @ fresh[1:] / n)
        moved, b = np.abs(fresh - b).max(), fresh
        if moved < 1e-13:
            break
    return b, s2, mu, sigma


def visible_groups(data: Simulated) -> list[tuple[NDArray[np.bool_], Array]]:
    """(what the records show, with the response last; the records)."""
    whole = np.column_stack([data.x, data.y])
    masks, index = np.unique(~np.isnan(whole), axis=0, return_inverse=True)
    return [(mask, whole[index.reshape(-1) == number][:, mask]) for number, mask in enumerate(masks)]


def pooled_likelihood(data: Simulated, theta: Array, groups: list[tuple[NDArray[np.bool_], Array]]) -> float:
    """At (b, s2, mu, triangles of the blocks of Sigma)."""
    p = data.x.shape[1]
    b, s2, mu, rest = theta[: 1 + p], theta[1 + p], theta[2 + p : 2 + 2 * p], theta[2 + 2 * p :]
    parts = []
    for place in np.unique(data.owner):
        width = int(np.sum(data.owner == place))
        upper = np.zeros((width, width))
        upper[np.triu_indices(width)], rest = np.split(rest, [width * (width + 1) // 2])
        parts.append(upper + np.triu(upper, 1).T)
    sigma = block_diag(*parts)
    cross = sigma @ b[1:]
    joint = np.block([[sigma, cross[:, None]], [cross[None, :], np.array([[b[1:] @ cross + s2]])]])
    centre = np.append(mu, b[0] + mu @ b[1:])
    value = 0.0
    for mask, visible in groups:
        rows = visible - centre[mask]
        part = joint[np.ix_(mask, mask)]
        value -= 0.5 * np.einsum("ij,ij->", rows @ np.linalg.inv(part), rows)
        value -= 0.5 * len(rows) * (np.linalg.slogdet(part)[1] + mask.sum() * np.log(2 * np.pi))
    return value


def pooled_theta(data: Simulated) -> Array:
    b, s2, mu, sigma = pooled_em(data)
    triangles = []
    for place in np.unique(data.owner):
        inside = np.flatnonzero(data.owner == place)
        triangles.append(sigma[np.ix_(inside, inside)][np.triu_indices(len(inside))])
    return np.concatenate([b, [s2], mu, *triangles])


def numerical_errors(data: Simulated, theta: Array) -> Array:
    """Square roots of the diagonal of the inverse numerical Hessian, with n / (n - p - 1)."""
    size, h = len(theta), 1e-3 * np.maximum(np.abs(theta), 0.3)
    hessian, groups = np.zeros((size, size)), visible_groups(data)
    for i in range(size):
        for j in range(i, size):
            at = [
                pooled_likelihood(data, theta + s * h * np.eye(size)[i] + t * h * np.eye(size)[j], groups)
                for s, t in ((1, 1), (1, -1), (-1, 1), (-1, -1))
            ]
            hessian[i, j] = hessian[j, i] = (at[0] - at[1] - at[2] + at[3]) / (4 * h[i] * h[j])
    n, p = data.x.shape
    return np.sqrt(np.diag(np.linalg.inv(-hessian)))[: 1 + p] * np.sqrt(n / (n - p - 1))


def test_rounds_reach_the_pooled_em(data: Simulated, rounds: Regression) -> None:
    b, s2, mu, sigma = pooled_em(data)
    n, p = data.x.shape
    assert list(rounds.params.index) == ["const", *data.names]
    np.testing.assert_allclose(rounds.params, b, rtol=0, atol=1e-6)
    np.testing.assert_allclose(rounds.sigma2, s2 * n / (n - p - 1), rtol=1e-6)
    target = [feature.name for feature in rounds.features].index("y")
    np.testing.assert_allclose(np.delete(rounds.mu, target), mu, atol=1e-6)
    np.testing.assert_allclose(np.delete(np.delete(rounds.sigma, target, 0), target, 1), sigma, atol=1e-6)
    np.testing.assert_allclose(
        rounds.loglik, pooled_likelihood(data, pooled_theta(data), visible_groups(data)), rtol=1e-10
    )


def test_masked_rounds_are_the_pooled_em_without_the_blocks_left_out(
    data: Simulated, open_federation: Federation
) -> None:
    """b and c hide behind each other: where one of them lacks a record, the block of the other counts as missing."""
    found = VFEM(response="y", tolerance=1e-13).fit(open_federation)
    both = ~np.isnan(data.x[:, data.owner > 0]).any(axis=1)
    x = data.x.copy()
    x[np.ix_(~both, data.owner > 0)] = np.nan
    less = replace(data, x=x)
    b, s2, *_ = pooled_em(less)
    n, p = x.shape
    np.testing.assert_allclose(found.params, b, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.sigma2, s2 * n / (n - p - 1), rtol=1e-6)
    np.testing.assert_allclose(found.bse, numerical_errors(less, pooled_theta(less)), rtol=1e-2)
    left = int((~np.isnan(data.x[:, data.owner == 1][:, 0]) & ~both).sum())
    assert any(f"b {left} of" in remark for remark in found.remarks)
    assert found.present("b") == found.present("c") == both.sum()


def test_the_closed_form_reaches_the_same_optimum_sooner(
    data: Simulated, rounds: Regression, closed: Regression
) -> None:
    b, *_ = pooled_em(data)
    # Moments are rounded at 1/gamma = 1.5e-8 of a range of 18 or 80.
    np.testing.assert_allclose(closed.params, b, rtol=0, atol=1e-6)
    np.testing.assert_allclose(closed.bse, rounds.bse, rtol=1e-5)
    assert sum(closed.steps) < rounds.steps[0]


def test_the_likelihood_never_falls(rounds: Regression, closed: Regression) -> None:
    for trace in (rounds.trace, closed.trace):
        assert len(trace) > 3
        assert np.diff(trace).min() >= 0


def test_standard_errors_against_a_numerical_hessian(data: Simulated, rounds: Regression, closed: Regression) -> None:
    wanted = numerical_errors(data, pooled_theta(data))
    np.testing.assert_allclose(rounds.bse, wanted, rtol=1e-2)
    np.testing.assert_allclose(closed.bse, wanted, rtol=1e-2)


def test_both_starting_values_agree(open_federation: Federation, rounds: Regression, closed: Regression) -> None:
    from_means = VFEM(response="y", masking="plain", init="mean").fit(open_federation)
    for other in (
        from_means,
        VFEM(response="y", solver="exact", init="mean").fit(open_federation),
    ):
        np.testing.assert_allclose(other.params, rounds.params, rtol=1e-2, atol=1e-2 * rounds.bse.min())
        np.testing.assert_allclose(other.bse, rounds.bse, rtol=1e-2)


def test_a_sketch_comes_near(data: Simulated, rounds: Regression, tmp_path: Path) -> None:
    """The estimates are the same. A sketched product of two columns is off by about 1/sqrt(80) = 0.11 of their norms,
    across parties alone; standard errors move by less. The seed fixes the sketch."""
    method = VFEM.as_printed(response="y", sketch_size=80, coordinator="university")
    with data.federation(tmp_path, seed=3) as opened:
        sketched = method.fit(opened)
    np.testing.assert_allclose(sketched.params, rounds.params, atol=1e-3)
    np.testing.assert_allclose(sketched.bse, rounds.bse, rtol=0.1)
    assert not np.allclose(sketched.bse, rounds.bse, rtol=1e-6)


def test_least_squares_where_nothing_is_missing(tmp_path: Path) -> None:
    whole = simulated(300, (1, 2, 1), (1.0, 1.0, 1.0), seed=8, correlation=0.4)
    wanted = sm.OLS(whole.y, sm.add_constant(whole.x)).fit()
    with whole.federation(tmp_path) as opened:
        found = VFEM(response="y", tolerance=1e-13).fit(opened)
    np.testing.assert_allclose(found.params, wanted.params, atol=1e-6)
    np.testing.assert_allclose(found.bse, wanted.bse, rtol=1e-4)
    np.testing.assert_allclose(found.sigma2, wanted.scale, rtol=1e-6)
    np.testing.assert_allclose(
        found.predict(whole.blocks["a"].merge(whole.blocks["b"]).merge(whole.blocks["c"])),
        wanted.fittedvalues,
        atol=1e-5,
    )


@pytest.mark.parametrize("kind", ["complete-case", "mean", "single"])
def test_baselines_are_least_squares_on_their_tables(kind: str, data: Simulated, open_federation: Federation) -> None:
    x, y = data.x, data.y
    if kind == "complete-case":
        rows = ~np.isnan(x).any(axis=1)
        x, y = x[rows], y[rows]
    elif kind == "mean":
        x = np.where(np.isnan(x), np.nanmean(x, axis=0), x)
    else:
        x = x[:, data.owner == 0]
    wanted = sm.OLS(y, sm.add_constant(x)).fit()
    found = Regress(response="y", missing=kind, gamma=2**26).fit(open_federation)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.params, wanted.params, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.bse, wanted.bse, rtol=1e-6)
    np.testing.assert_allclose(found.rsquared, wanted.rsquared, rtol=1e-6)
    assert found.nobs == len(y)
    assert "baseline for comparison" in found.summary()


def test_correlated_parties_shorten_the_step(tmp_path: Path) -> None:
    """Four parties of one column, correlated 0.6 across: the largest eigenvalue is 2.8, and 2/(1 + 1) overshoots."""
    close = simulated(400, (1, 1, 1, 1), (1.0, 1.0, 1.0, 1.0), seed=5, correlation=1.5)
    wanted = sm.OLS(close.y, sm.add_constant(close.x)).fit()
    with close.federation(tmp_path) as opened:
        found = VFEM(response="y", init="mean", tolerance=1e-6).fit(opened)
    np.testing.assert_allclose(found.params, wanted.params, atol=1e-3)
    assert np.diff(found.trace).min() >= 0
    assert "uncorrelated" in found.summary()


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArguments, match="solver"):
        VFEM(response="y", solver="newton")  # type: ignore[arg-type]
    with pytest.raises(BadArguments, match="masking has no meaning with solver='exact'"):
        VFEM(response="y", solver="exact", masking="plain")
    apart = simulated(200, (1, 1, 1), (1.0, 0.5, 0.5), seed=1)
    half = apart.blocks["b"]["id"]
    apart.blocks["c"] = apart.blocks["c"][~apart.blocks["c"]["id"].isin(half)]
    with apart.federation(tmp_path) as opened:
        plain = VFEM(response="y", masking="plain")
        with pytest.raises(NotEstimable, match="init='mean'"):
            plain.fit(opened)
        with pytest.raises(NotEstimable, match="rounds"):
            replace(plain, init="mean", rounds=10).fit(opened)
        with pytest.raises(NotEstimable, match="complete"):
            Regress(response="y", missing="complete-case").fit(opened)
        assert VFEM(response="y", solver="exact", init="mean").fit(opened).nobs == 200
