"""Draws of the mean and covariance of a Gaussian with missing blocks, given counts, sums and Gram matrices per pattern.

Data augmentation (Tanner and Wong 1987; Schafer 1997, section 5.4) draws what the records lack, then the parameters
given whole records. The first step needs no records: of what it draws only sums and products matter, and their law
given a pattern's moments is known. With z the deviations from the mean of what the N records of a pattern show, A the
slopes of what they lack on it, R the covariance that is left and e = z_lost - A z the residuals,

    sum e (1, z)'  ~  matrix normal, with covariance R between rows and H = sum (1, z)(1, z)' between columns,
    sum e e'       =  (sum e (1, z)') H^-1 (sum e (1, z)')'  +  Wishart(N - rank H, R), independent of the first.

The second step is Sigma ~ inverse Wishart(n - 1, scatter), mu ~ N(mean, Sigma / n): the prior |Sigma|^-(p + 1)/2.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular

from colonnade.statistics.gaussian_em import Matrix, PatternStatistics, Vector

BURN, THIN = 50, 10
"""Steps before the first draw, and between two. The correlation of two draws is about the largest fraction of missing
information to the power of THIN."""
RIDGE = 1e-6
"""Share of the median variance that every variance has besides: a category that never occurs has none of its own."""


def posterior_draws(
    data: PatternStatistics, start: tuple[Vector, Matrix], count: int, generator: np.random.Generator
) -> list[tuple[Vector, Matrix]]:
    """`count` draws of (mu, Sigma) given the patterns, nearly independent of one another; `start` is the maximum of
    the likelihood, or near it."""
    mu, sigma = start
    ridge = RIDGE * max(float(np.median(np.diag(sigma))), 1e-9)
    draws = []
    for step in range(1, BURN + THIN * count + 1):
        mu, sigma = _step(data, mu, sigma, ridge, generator)
        if step > BURN and (step - BURN) % THIN == 0:
            draws.append((mu, sigma))
    return draws


def _step(
    data: PatternStatistics, mu: Vector, sigma: Matrix, ridge: float, generator: np.random.Generator
) -> tuple[Vector, Matrix]:
    sums, products = np.zeros_like(mu), np.zeros_like(sigma)
    for pattern in data.patterns:
        t, d = pattern.about(mu)
        seen = pattern.observed
        lost = np.delete(np.arange(len(mu)), seen)
        sums[seen] += t
        products[np.ix_(seen, seen)] += d
        if not lost.size:
            continue
        across = sigma[np.ix_(seen, lost)]
        factor = cholesky(sigma[np.ix_(seen, seen)], lower=True, check_finite=False)
        a = cho_solve((factor, True), across, check_finite=False).T
        left = sigma[np.ix_(lost, lost)] - a @ across
        root = cholesky(left + 1e-3 * ridge * np.eye(len(lost)), lower=True, check_finite=False)
        cross, square = _residual_products(round(pattern.count), t, d, root, generator)
        sums[lost] += a @ t + cross[:, 0]
        mixed = a @ d + cross[:, 1:]
        products[np.ix_(lost, seen)] += mixed
        products[np.ix_(seen, lost)] += mixed.T
        toward = a @ cross[:, 1:].T
        products[np.ix_(lost, lost)] += a @ d @ a.T + toward + toward.T + square
    shift = sums / data.n
    scatter = products - data.n * np.outer(shift, shift) + data.n * ridge * np.eye(len(mu))
    sigma = _inverse_wishart(round(data.n) - 1, (scatter + scatter.T) / 2, generator)
    noise = cholesky(sigma / data.n, lower=True, check_finite=False) @ generator.standard_normal(len(mu))
    return mu + shift + noise, sigma


def _residual_products(
    count: int, t: Vector, d: Matrix, root: Matrix, generator: np.random.Generator
) -> tuple[Matrix, Matrix]:
    """Sums of e (1, z)' and of e e' over `count` records, e = root times standard normal."""
    gram = np.empty((1 + len(t), 1 + len(t)))
    gram[0, 0], gram[0, 1:], gram[1:, 0], gram[1:, 1:] = count, t, t, d
    try:
        half = cholesky(gram, lower=True, check_finite=False)
        if count <= len(gram):
            raise LinAlgError
    except LinAlgError:  # few records, or a category that none of them has
        values, vectors = np.linalg.eigh(gram)
        rank = min(int((values > 1e-10 * max(values[-1], 1e-300)).sum()), count)
        half = vectors[:, len(gram) - rank :] * np.sqrt(values[len(gram) - rank :])
    normal = generator.standard_normal((len(root), half.shape[1]))
    square = normal @ normal.T + _wishart(count - half.shape[1], len(root), generator)
    return root @ normal @ half.T, root @ square @ root.T


def _bartlett(degrees: int, size: int, generator: np.random.Generator) -> Matrix:
    """A lower triangle L with L L' ~ Wishart(degrees, I), for degrees >= size."""
    lower = np.tril(generator.standard_normal((size, size)), -1)
    lower[np.diag_indices(size)] = np.sqrt(generator.chisquare(degrees - np.arange(size)))
    return lower


def _wishart(degrees: int, size: int, generator: np.random.Generator) -> Matrix:
    if degrees < size:
        normal = generator.standard_normal((max(degrees, 0), size))
        return normal.T @ normal
    lower = _bartlett(degrees, size, generator)
    return lower @ lower.T


def _inverse_wishart(degrees: int, scatter: Matrix, generator: np.random.Generator) -> Matrix:
    """With scatter = C C' and L L' ~ Wishart(degrees, I): (C L'^-1)(C L'^-1)'."""
    lower = _bartlett(max(degrees, len(scatter)), len(scatter), generator)
    half = solve_triangular(lower, cholesky(scatter, lower=True, check_finite=False).T, lower=True, check_finite=False)
    return np.asarray(half.T @ half)
