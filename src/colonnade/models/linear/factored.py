"""Regression from noisy moments that factor at the response holder's columns, with closed-form standard errors.

Let w be the response holder's columns with a 1 in front (every record used has them) and x_A the columns of another
party, present if r_A = 1. If whether a block is missing depends on w alone, then for every pattern

    E[x_A | w, r] = B_A'w,   cov(x_A, x_B | w, r) = C_AB,

so three statistics determine the joint law of (w, x), each entry of which carries noise **once**, not once a pattern:

    M_m = sum over the records of pattern m of w w'   (the response holder alone can compute it),
    X_A = sum r_A w x_A',   S_AB = sum r_A r_B x_A x_B'   (one Gram matrix, absent blocks as zeros);

    M_A = sum of M_m with A in m,   M_AB likewise,   N_AB = (M_AB)_11,
    B_A = M_A^-1 X_A,   C_AB = (S_AB - B_A' M_AB B_B) / N_AB.

The coefficients are a smooth function of the statistics T. Its gradient is here in closed form; from it follow both
the variance of the noise and the sampling variance: a record adds a quadratic form z'Qz, whose variance is that of a
Gaussian x given w, and of a Gaussian w. Nothing missing and no noise: ordinary least squares.

The rows behind the statistics were clipped, entries at 1 and a party's row at its norm: `simulator.py` says what that
did, and corrects it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve

from colonnade.errors import NotEstimable
from colonnade.models.linear.gaussian import Coefficients, to_units
from colonnade.models.matrix import consecutive
from colonnade.statistics.gaussian_em import Matrix, Vector, correlation_of, redundant

FLOOR = 0.02
"""Smallest eigenvalue of a fitted correlation matrix that is taken as it is; below it would need repair."""
ROUGH = 0.7
"""Largest spectral norm of the noise in the fitted correlations, over their smallest eigenvalue: beyond it an inverse
is no longer nearly linear in the noise, and the standard errors would be too small."""


@dataclass(frozen=True, eq=False)
class FactoredMoments:
    """The statistics over (1, w, x): `n_own` columns w first, then each other party's block.

    `gram` is the pooled Gram matrix of (1, w, x) with absent blocks as zeros, `own[m]` is M_m of the pattern `masks[m]`
    (one bool for each of the other parties). The noise on an entry of an upper triangle has standard deviation
    `gram_sd` or `own_sd`.
    """

    names: tuple[str, ...]
    n_own: int
    widths: tuple[int, ...]
    gram: Matrix
    masks: tuple[tuple[bool, ...], ...]
    own: tuple[Matrix, ...]
    gram_sd: float
    own_sd: float
    columns: tuple[str, ...] = ()
    """The column of each feature, for what is said of it; the names, if there are none."""
    response: str = ""
    """The column that is never advised to be left out."""

    @property
    def head(self) -> int:
        """The size of (1, w)."""
        return 1 + self.n_own

    @property
    def weight(self) -> float:
        """Of the Gram matrix's own corner in the moments of w: both know them, and the noise decides."""
        summed = len(self.own) * self.own_sd**2
        return summed / (summed + self.gram_sd**2) if summed else 0.0

    def total(self) -> Matrix:
        """sum w w' over all records."""
        corner = self.gram[: self.head, : self.head]
        return np.asarray(self.weight * corner + (1 - self.weight) * sum(self.own))

    def shown(self, mask: Sequence[bool]) -> Vector:
        """1.0 for the columns x that a pattern shows."""
        return np.repeat(np.asarray(mask, dtype=np.float64), self.widths)

    def pairs(self) -> dict[tuple[int, int], Matrix]:
        """M_AB for every pair of parties, M_AA = M_A."""
        parties = range(len(self.widths))
        empty = np.zeros((self.head, self.head))
        return {
            (a, b): sum((m for mask, m in zip(self.masks, self.own, strict=True) if mask[a] and mask[b]), empty)
            for a in parties
            for b in parties
        }

    def moved(self, shift: Matrix) -> FactoredMoments:
        """The statistics of shift @ (1, w, x); `shift` mixes (1, w) and rescales x (absent blocks stay 0)."""
        head = shift[: self.head, : self.head]
        return replace(self, gram=shift @ self.gram @ shift.T, own=tuple(head @ m @ head.T for m in self.own))


@dataclass(frozen=True, eq=False)
class Factors:
    """The joint law of (w, x): moments of w, and x given w. `count` is the number of records."""

    count: float
    mean: Vector
    covariance: Matrix
    slopes: Matrix
    residual: Matrix
    counts: Matrix

    @property
    def mu(self) -> Vector:
        return np.concatenate([self.mean, self.slopes[0] + self.mean @ self.slopes[1:]])

    @property
    def sigma(self) -> Matrix:
        inner = self.slopes[1:]
        cross = self.covariance @ inner
        return np.block([[self.covariance, cross], [cross.T, inner.T @ cross + self.residual]])


def factors(data: FactoredMoments) -> Factors:
    """Moments of w, B and C from the statistics."""
    head, pairs, blocks = data.head, data.pairs(), consecutive(data.widths)
    total = data.total()
    count = float(total[0, 0])
    mean = total[0, 1:] / count
    width = sum(data.widths)
    slopes, residual, counts = np.zeros((head, width)), np.zeros((width, width)), np.zeros((width, width))
    for a, block_a in enumerate(blocks):
        slopes[:, block_a] = solve(pairs[a, a], data.gram[:head, head:][:, block_a], assume_a="sym")
    for a, block_a in enumerate(blocks):
        for b, block_b in enumerate(blocks):
            both = pairs[a, b]
            predicted = slopes[:, block_a].T @ both @ slopes[:, block_b]
            counts[block_a, block_b] = both[0, 0]
            residual[block_a, block_b] = (data.gram[head:, head:][block_a, block_b] - predicted) / both[0, 0]
    return Factors(count, mean, total[1:, 1:] / count - np.outer(mean, mean), slopes, residual, counts)


def check_factors(data: FactoredMoments, law: Factors) -> None:
    """Refuse what noise has made useless: a covariance that would need repair."""
    variances = np.concatenate([np.diag(law.covariance), np.diag(law.residual)])
    noise = data.gram_sd / np.concatenate([np.full(data.n_own, law.count), np.diag(law.counts)])
    varies = variances > 2 * noise
    columns = data.columns or data.names
    hidden = [columns[place] for place in np.flatnonzero(~varies)]
    place = np.flatnonzero(varies)
    within = correlation_of(law.sigma[np.ix_(place, place)])
    close = redundant(within, [columns[index] for index in place], floor=FLOOR, keep=data.response)
    if data.response in hidden:
        raise NotEstimable(
            f"the response {data.response!r} hardly varies in the records used beside the noise; allow a larger"
            " epsilon, declare a closer range (with clip = true for what is beyond), or choose another response."
        )
    if hidden or close:
        why = "hardly vary in the records used, given the others," if hidden else "nearly determine one another"
        raise NotEstimable(
            f"columns {quoted(hidden or close)} {why} beside the noise; leave out {quoted([*hidden, *close])} with"
            " columns=, or allow a larger epsilon."
        )


def roughness(data: FactoredMoments, law: Factors) -> float:
    """The spectral norm of the noise in the residual correlations, over their smallest eigenvalue (see ROUGH)."""
    if not data.widths:
        return 0.0
    scale = np.sqrt(np.diag(law.residual))
    sd = data.gram_sd / law.counts / np.outer(scale, scale)
    # A symmetric matrix with independent entries of these deviations has about this spectral norm.
    return 2 * float(np.sqrt((sd**2).sum(axis=0).max())) / float(np.linalg.eigvalsh(correlation_of(law.residual))[0])


def quoted(columns: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(map(repr, columns)))


# --- coefficients and their covariance --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gradient:
    """d coefficient_k = <gram[k], d gram> + sum_m <own[k, m], d own_m>, all symmetric; `common[k]` is the part of
    `own[k, m]` that is the same for every pattern and belongs to the moments of w."""

    gram: Matrix
    own: Matrix
    common: Matrix


@dataclass(frozen=True, eq=False)
class Standard:
    """The regression of column `target` (among w) in units of the fitted deviations and about the mean of w, where the
    formulas are short. `shift` takes (1, w, x) there; `contrast` is (-beta, 1), in the order of the columns.

    The blocks x cannot be centred afterwards, since an absent one is zeros: let the features' centres be near their
    means, or the products S_AB vary more than they need to.
    """

    raw: Factors
    shift: Matrix
    moved: FactoredMoments
    law: Factors
    others: NDArray[np.intp]
    contrast: Vector
    gradient: Gradient

    @classmethod
    def of(cls, data: FactoredMoments, target: int) -> Standard:
        raw = factors(data)
        check_factors(data, raw)
        head = data.head
        scale = np.sqrt(np.diag(raw.sigma))
        shift = np.diag(np.concatenate([[1.0], 1 / scale]))
        shift[1:head, 0] = -raw.mean / scale[: head - 1]
        moved = data.moved(shift)
        law = factors(moved)
        others = np.delete(np.arange(len(scale)), target)
        inverse = cho_factor(law.sigma[np.ix_(others, others)])
        contrast = np.zeros(len(scale))
        contrast[others], contrast[target] = -cho_solve(inverse, law.sigma[others, target]), 1.0
        gradient = _gradient(moved, law, contrast, others, cho_solve(inverse, np.eye(len(others))))
        return cls(raw, shift, moved, law, others, contrast, gradient)

    def in_units(self, names: Sequence[str], target: int, cov: Matrix) -> Coefficients:
        mu, scale = self.raw.mu, np.sqrt(np.diag(self.raw.sigma))
        residual = float(self.contrast @ self.law.sigma @ self.contrast)
        return Coefficients(
            names=tuple(names[place] for place in self.others),
            params=np.concatenate([[0.0], -self.contrast[self.others]]),  # the intercept at the fitted means
            cov=cov,
            sigma2=self.correction * residual,
            rsquared=1.0 - residual,
        ).in_units(mu[self.others], scale[self.others], (mu[target], scale[target]))

    @property
    def correction(self) -> float:
        return self.law.count / (self.law.count - len(self.others) - 1)


def regression(data: FactoredMoments, target: int) -> tuple[Factors, Coefficients, Matrix]:
    """The law, the regression of column `target` (among w) on all other columns, and its sampling covariance alone."""
    standard = Standard.of(data, target)
    sampling = standard.correction * _sampling(standard.moved, standard.law, standard.gradient)
    shift, head = standard.shift, data.head
    noise = _noise(standard.gradient.gram, shift) * data.gram_sd**2
    own = standard.gradient.own.swapaxes(0, 1)
    noise += sum(_noise(pattern, shift[:head, :head]) for pattern in own) * data.own_sd**2
    sampled, total = (standard.in_units(data.names, target, cov) for cov in (sampling, sampling + noise))
    return standard.raw, total, sampled.cov


def influences(data: FactoredMoments, rows: Matrix, present: NDArray[np.bool_], target: int) -> Matrix:
    """How much each of the rows (1 for each, and their presence in each block) moves the coefficients: its quadratic
    form in the gradient at `data`, a row of coefficients for each."""
    standard = Standard.of(data, target)
    shown = np.column_stack([np.ones((len(rows), data.head)), np.repeat(present, data.widths, axis=1)])
    moved = (np.column_stack([np.ones(len(rows)), rows]) * shown) @ standard.shift.T
    own = moved[:, : data.head]
    values = np.column_stack([((moved @ weights) * moved).sum(axis=1) for weights in standard.gradient.gram])
    for mask, weights in zip(data.masks, standard.gradient.own.swapaxes(0, 1), strict=True):
        chosen = (present == np.array(mask, dtype=bool)).all(axis=1)
        part = own[chosen]
        values[chosen] += np.column_stack([((part @ weight) * part).sum(axis=1) for weight in weights])
    mu, scale = standard.raw.mu, np.sqrt(np.diag(standard.raw.sigma))
    others = standard.others
    return np.asarray(values @ to_units(mu[others], scale[others], scale[target]).T)


def _gradient(data: FactoredMoments, law: Factors, v: Vector, others: NDArray[np.intp], inverse: Matrix) -> Gradient:
    """By the chain rule backwards: coefficients, then Sigma and the means, then (S, B, C), then the statistics.

    About the mean of w:  d beta = Sxx^-1 (dSigma v)_x  and, for the intercept at the fitted means, v'd mu with
    mu_x = B_0 + B'mu_w.
    """
    head, size, pairs, blocks = data.head, len(data.gram), data.pairs(), consecutive(data.widths)
    inner, count = law.slopes[1:], law.count
    many = len(others) + 1
    gradient = Gradient(
        np.zeros((many, size, size)), np.zeros((many, len(data.own), head, head)), np.zeros((many, head, head))
    )
    solved = {a: cho_factor(pairs[a, a]) for a in range(len(blocks))}
    shown = [data.shown(mask) for mask in data.masks]
    for k in range(many):
        by_mean, by_covariance = np.zeros(head - 1), np.zeros((head - 1, head - 1))
        by_slopes, by_residual = np.zeros_like(law.slopes), np.zeros_like(law.residual)
        if k == 0:
            by_mean = v[: head - 1] + inner @ v[head - 1 :]
            by_slopes[0] = v[head - 1 :]
        else:
            u = np.zeros(size - 1)
            u[others] = inverse[k - 1]
            by_sigma = (np.outer(u, v) + np.outer(v, u)) / 2
            (ww, wx), (_, xx) = (np.split(rows, [head - 1], axis=1) for rows in np.split(by_sigma, [head - 1]))
            by_covariance = ww + wx @ inner.T + inner @ wx.T + inner @ xx @ inner.T
            by_slopes[1:] = 2 * law.covariance @ (wx + inner @ xx)
            by_residual = xx
        # C_AB = (S_AB - B_A' M_AB B_B) / N_AB
        f = by_residual / law.counts if law.counts.size else by_residual
        gradient.gram[k, head:, head:] = f
        for a, block_a in enumerate(blocks):
            for b, block_b in enumerate(blocks):
                by_slopes[:, block_a] -= 2 * pairs[a, b] @ law.slopes[:, block_b] @ f[block_b, block_a]
        # B_A = M_A^-1 X_A
        through = np.zeros_like(law.slopes)
        for a, block_a in enumerate(blocks):
            through[:, block_a] = cho_solve(solved[a], by_slopes[:, block_a])
        gradient.gram[k, :head, head:] = through / 2
        gradient.gram[k, head:, :head] = through.T / 2
        # the moments of w
        common = np.zeros((head, head))
        common[0, 1:] = common[1:, 0] = by_mean / (2 * count)
        common[1:, 1:] = by_covariance / count
        common[0, 0] = -np.sum(by_covariance * law.covariance) / count
        gradient.common[k] = common
        gradient.gram[k, :head, :head] = data.weight * common
        for m, mask in enumerate(shown):
            seen = law.slopes * mask
            lost = (through * mask) @ law.slopes.T
            gradient.own[k, m] = (1 - data.weight) * common - (lost + lost.T) / 2 - seen @ f @ seen.T
            gradient.own[k, m, 0, 0] -= mask @ (f * law.residual) @ mask
    return gradient


def _sampling(data: FactoredMoments, law: Factors, gradient: Gradient) -> Matrix:
    """The covariance of sum_i z_i'Q z_i with x = B'w + e: parts linear and quadratic in e given w, and the part of w.

    The expectation of z'Qz given w is that of `common` in every pattern: a record that obeys B and C moves neither.
    """
    head = data.head
    linear, square = gradient.common[:, 0, 1:], gradient.common[:, 1:, 1:]
    out = law.count * (4 * linear @ law.covariance @ linear.T + 2 * _traces(square @ law.covariance))
    for mask, own in zip(data.masks, data.own, strict=True):
        shown = np.flatnonzero(data.shown(mask))
        if not shown.size:
            continue
        slopes, c = law.slopes[:, shown], law.residual[np.ix_(shown, shown)]
        xx = gradient.gram[:, head + shown[:, None], head + shown]
        mixed = gradient.gram[:, :head, head + shown] + slopes @ xx
        out += 4 * np.einsum("kia,ij,ljb,ab->kl", mixed, own, mixed, c, optimize=True)
        out += 2 * own[0, 0] * _traces(xx @ c)
    return np.asarray((out + out.T) / 2)


def _traces(stack: Matrix) -> Matrix:
    """tr(A_k A_l) for a stack of matrices."""
    return np.asarray(np.einsum("kij,lji->kl", stack, stack, optimize=True))


def _noise(weights: Matrix, shift: Matrix) -> Matrix:
    """sum over the upper triangle of (coefficient_k)(coefficient_l), with unit noise before the shift.

    An off-diagonal entry of a symmetric weight counts twice: 2 <A, B> - <diag A, diag B>.
    """
    before = shift.T @ weights @ shift
    flat = before.reshape(len(before), -1)
    diagonal = np.diagonal(before, axis1=1, axis2=2)
    return np.asarray(2 * flat @ flat.T - diagonal @ diagonal.T)
