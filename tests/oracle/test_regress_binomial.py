"""`Regress` with a binary response against pooled records.

Oracles: scikit-learn's linear discriminant analysis where nothing is missing; a record-level EM of the general location
model, and numerical derivatives of its likelihood, where blocks are; statsmodels' logistic regression in the large.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, SchemaError
from colonnade.federation.coordinator import Federation
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.result import Regression

Array = NDArray[np.float64]
NAMES = ["u", "v", "w"]
COLUMNS = Columns(
    [
        *(Column(name=name, kind="continuous", lower=-9.0, upper=9.0) for name in NAMES),
        Column(name="sued", kind="binary", categories=("no", "yes")),
    ]
)
GAMMA = 2**26


def table(n: int, seed: int) -> tuple[Array, NDArray[np.bool_]]:
    """Gaussian within both classes, correlated across parties."""
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.3
    mix = np.array([[1.0, 0.4, 0.3], [0.0, 0.9, 0.4], [0.0, 0.0, 1.2]])
    return np.clip(rng.normal(size=(n, 3)) @ mix + np.outer(y, [0.8, -0.5, 0.6]) + 0.5, -9, 9), y


def fit(path: Path, x: Array, y: NDArray[np.bool_]) -> Regression:
    frame = pd.DataFrame(x, columns=NAMES).assign(id=[f"K{at}" for at in range(len(y))], sued=np.where(y, "yes", "no"))
    blocks = {
        "court": frame[["id", "u", "sued"]],
        "bank": frame.loc[~np.isnan(x[:, 1]), ["id", "v"]],
        "tax": frame.loc[~np.isnan(x[:, 2]), ["id", "w"]],
    }
    allow = ("presence", "exact-moments")
    with Federation.local(blocks, key="id", columns=COLUMNS, allow=allow, home=path / "h", runs=path / "r") as opened:
        return Regress(response="sued", family="binomial", gamma=GAMMA).fit(opened)


def with_gaps(x: Array, y: NDArray[np.bool_], seed: int) -> Array:
    """Missing at random: who is at the bank depends on the response, at the tax office on u."""
    rng = np.random.default_rng(seed)
    out = x.copy()
    out[rng.random(len(y)) < expit(0.8 * y - 0.6), 1] = np.nan
    out[rng.random(len(y)) < expit(x[:, 0] - 0.5), 2] = np.nan
    return out


def likelihood(x: Array, y: NDArray[np.bool_], theta: Array) -> float:
    """Of x given y at (a, d, triangle of Omega), record by record in groups that show the same."""
    a, d, rest = theta[:3], theta[3:6], theta[6:]
    upper = np.zeros((3, 3))
    upper[np.triu_indices(3)] = rest
    omega = upper + np.triu(upper, 1).T
    centred = x - a - np.outer(y, d)
    value = 0.0
    masks, index = np.unique(~np.isnan(x), axis=0, return_inverse=True)
    for number, mask in enumerate(masks):
        rows = centred[index.reshape(-1) == number][:, mask]
        part = omega[np.ix_(mask, mask)]
        value -= 0.5 * np.einsum("ij,ij->", rows @ np.linalg.inv(part), rows)
        value -= 0.5 * len(rows) * (np.linalg.slogdet(part)[1] + mask.sum() * np.log(2 * np.pi))
    return value


def pooled_em(x: Array, y: NDArray[np.bool_]) -> Array:
    """(a, d, triangle of Omega) of the general location model."""
    design = np.column_stack([np.ones(len(y)), y])
    means, omega = np.vstack([np.nanmean(x, axis=0), np.zeros(3)]), np.diag(np.nanvar(x, axis=0))
    masks, index = np.unique(~np.isnan(x), axis=0, return_inverse=True)
    for _ in range(2000):
        filled, spread, centre = np.nan_to_num(x), np.zeros((3, 3)), design @ means
        for number, mask in enumerate(masks):
            rows = index.reshape(-1) == number
            seen, lost = np.flatnonzero(mask), np.flatnonzero(~mask)
            slope = omega[np.ix_(lost, seen)] @ np.linalg.inv(omega[np.ix_(seen, seen)])
            filled[np.ix_(rows, lost)] = centre[np.ix_(rows, lost)] + (x - centre)[np.ix_(rows, seen)] @ slope.T
            spread[np.ix_(lost, lost)] += rows.sum() * (omega[np.ix_(lost, lost)] - slope @ omega[np.ix_(seen, lost)])
        fresh = np.linalg.lstsq(design, filled, rcond=None)[0]
        left = filled - design @ fresh
        omega = (left.T @ left + spread) / len(y)
        moved, means = np.abs(fresh - means).max(), fresh
        if moved < 1e-13:
            break
    return np.concatenate([means[0], means[1], omega[np.triu_indices(3)]])


def coefficients(theta: Array, pi: float) -> Array:
    """(intercept, beta) of the log-odds."""
    upper = np.zeros((3, 3))
    upper[np.triu_indices(3)] = theta[6:]
    beta = np.linalg.solve(upper + np.triu(upper, 1).T, theta[3:6])
    return np.append(np.log(pi / (1 - pi)) - beta @ (theta[:3] + theta[3:6] / 2), beta)


def numerical_errors(x: Array, y: NDArray[np.bool_], theta: Array) -> Array:
    """Hessian of the likelihood, Jacobian of the coefficients, both by differences; and the variance of logit(pi)."""
    size, h, pi = len(theta), 1e-3, float(y.mean())
    unit = h * np.eye(size)
    hessian = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            at = [likelihood(x, y, theta + s * unit[i] + t * unit[j]) for s, t in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
            hessian[i, j] = (at[0] - at[1] - at[2] + at[3]) / (4 * h * h)
    jacobian = np.column_stack([(coefficients(theta + e, pi) - coefficients(theta - e, pi)) / (2 * h) for e in unit])
    cov = jacobian @ np.linalg.inv(-hessian) @ jacobian.T
    cov[0, 0] += 1 / (len(y) * pi * (1 - pi))
    return np.sqrt(np.diag(cov))


@pytest.fixture(scope="module")
def incomplete(tmp_path_factory: pytest.TempPathFactory) -> tuple[Regression, Array, NDArray[np.bool_]]:
    x, y = table(900, seed=6)
    x = with_gaps(x, y, seed=7)
    return fit(tmp_path_factory.mktemp("logit"), x, y), x, y


def test_discriminant_analysis_where_nothing_is_missing(tmp_path: Path) -> None:
    x, y = table(400, seed=1)
    found = fit(tmp_path, x, y)
    wanted = LinearDiscriminantAnalysis(solver="lsqr").fit(x, y)
    np.testing.assert_allclose(found.params, [wanted.intercept_[0], *wanted.coef_[0]], atol=1e-5)
    chance = found.predict(pd.DataFrame(x, columns=NAMES))
    np.testing.assert_allclose(chance, wanted.predict_proba(x)[:, 1], atol=1e-5)


def test_estimates_and_errors_with_missing_blocks(incomplete: tuple[Regression, Array, NDArray[np.bool_]]) -> None:
    found, x, y = incomplete
    theta = pooled_em(x, y)
    np.testing.assert_allclose(found.params, coefficients(theta, float(y.mean())), atol=1e-5)
    np.testing.assert_allclose(found.bse, numerical_errors(x, y, theta), rtol=1e-2)
    bernoulli = np.log(np.where(y, y.mean(), 1 - y.mean())).sum()
    np.testing.assert_allclose(found.loglik, likelihood(x, y, theta) + bernoulli, rtol=1e-6)
    assert np.diff(found.trace).min() >= 0
    assert found.params.name == "coef"
    assert "discriminant" in found.summary()


def test_an_incomplete_record_is_predicted_from_what_it_shows(
    incomplete: tuple[Regression, Array, NDArray[np.bool_]],
) -> None:
    """Bayes' rule with the two Gaussian densities of u and w."""
    found, x, y = incomplete
    theta, pi = pooled_em(x, y), float(y.mean())
    upper = np.zeros((3, 3))
    upper[np.triu_indices(3)] = theta[6:]
    inverse = np.linalg.inv((upper + np.triu(upper, 1).T)[np.ix_([0, 2], [0, 2])])
    a, d = theta[[0, 2]], theta[[3, 5]]
    point = np.array([1.0, -0.4])
    heights = [np.exp(-0.5 * (point - a - k * d) @ inverse @ (point - a - k * d)) for k in (0, 1)]
    wanted = pi * heights[1] / (pi * heights[1] + (1 - pi) * heights[0])
    got = found.predict(pd.DataFrame({"u": [1.0, np.nan], "w": [-0.4, np.nan]}))
    np.testing.assert_allclose(got, [wanted, pi], atol=1e-5)


def test_near_logistic_regression(tmp_path: Path) -> None:
    """Both are consistent here and estimate the same coefficients, from the same records: within 3 standard errors of
    the logistic one (the data are fixed by a seed)."""
    x, y = table(4000, seed=3)
    found = fit(tmp_path, x, y)
    logistic = sm.Logit(y.astype(float), sm.add_constant(x)).fit(disp=False)
    assert np.all(np.abs(found.params.to_numpy() - logistic.params) < 3 * logistic.bse)
    assert np.all(found.bse.to_numpy() < 1.02 * logistic.bse), "efficiency: Efron 1975"


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArguments, match="family has no meaning with missing='mean'"):
        Regress(response="sued", family="binomial", missing="mean")
    with pytest.raises(BadArguments, match=r"family has no meaning with epsilon=1\.0"):
        Regress(response="sued", family="binomial", epsilon=1.0)
    x, y = table(100, seed=2)
    frame = pd.DataFrame(x, columns=NAMES).assign(id=[f"K{at}" for at in range(100)], sued=np.where(y, "yes", "no"))
    blocks = {name: frame[["id", *own]] for name, own in {"a": ["u", "sued"], "b": ["v"], "c": ["w"]}.items()}
    with (
        Federation.local(blocks, key="id", columns=COLUMNS, home=tmp_path / "h", runs=tmp_path / "r") as opened,
        pytest.raises(SchemaError, match="binary response"),
    ):
        Regress(response="u", family="binomial").fit(opened)
