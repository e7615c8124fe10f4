"""Regression from noisy moments that factor at the response holder's columns, with closed-form gradients.

Let w be the response holder's columns with a 1 in front and products of them behind (every record used has them), x_A
the columns of another party, present if r_A = 1, and u_A a weight that is a function of w alone (`selection.py`). Five
statistics determine the joint law of (w, x), each entry of which carries noise **once**, not once a pattern:

    M_m = sum over the records of pattern m of w w',   W_A = sum r_A u_A w w'   (the response holder's alone),
    X_A = sum r_A u_A w x_A',   S_AA = sum r_A u_A x_A x_A',   S_AB = sum r_A r_B x_A x_B'   (on shares);

    M = sum of all M_m,   M_AB that of the patterns with both,   N_AB = (M_AB)_11,   N_A = (W_A)_11,
    B_A = W_A^-1 X_A,   C_AA = (S_AA - B_A' W_A B_A) / N_A,   C_AB = (S_AB - B_A' M_AB B_B) / N_AB.

If whether a block is missing depends on w alone, E[x_A | w] = B_A'w and cov(x_A, x_B | w) = C_AB, then B and C are
right whatever the weights. If E[x_A | w] and cov(x_A | w) are anything, but u_A is inverse to the chance of r_A, the
moments of w and x_A are right, and what is left to assume is that cov(x_A, x_B | w) is constant for A other than B.

The coefficients are a smooth function of the statistics. Its gradient is here in closed form; from it follow the
variance of the noise, and a record's influence. Nothing missing and no noise: ordinary least squares.

The rows behind the statistics were clipped, entries at 1 and a party's row at its norm: `simulator.py` says what that
did, and corrects it.
"""

from __future__ import annotations

import math
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
"""Smallest eigenvalue of a fitted correlation matrix that is taken as it is; below it `sound` repairs it."""
CLEAR = 2.0
"""Deviations of the spectral noise of W_A that a product of the holder's columns must exceed to be used."""
ROUGH = 1.0
"""Largest spectral norm of the noise in the fitted correlations, over their smallest eigenvalue: beyond it an inverse
is no longer nearly linear in the noise, and the standard errors would be too small."""


@dataclass(frozen=True, eq=False)
class FactoredMoments:
    """The statistics over (1, w, x): `n_own` columns w first, the last `products` of which only help to describe x,
    then each other party's block.

    `gram` has X_A and S_AB, and nothing for w alone; `own[m]` is M_m of the pattern `masks[m]` (one bool for each of
    the other parties), `weighted[a]` is W_A. The noise on an entry of an upper triangle has standard deviation
    `gram_sd`, `own_sd` or `weighted_sd`.
    """

    names: tuple[str, ...]
    n_own: int
    widths: tuple[int, ...]
    gram: Matrix
    masks: tuple[tuple[bool, ...], ...]
    own: tuple[Matrix, ...]
    weighted: tuple[Matrix, ...]
    gram_sd: float
    own_sd: float
    weighted_sd: float
    products: int = 0
    columns: tuple[str, ...] = ()
    """The column of each feature, for what is said of it; the names, if there are none."""
    response: str = ""
    """The column that is never advised to be left out."""

    @property
    def head(self) -> int:
        """The size of (1, w)."""
        return 1 + self.n_own

    @property
    def real(self) -> NDArray[np.intp]:
        """The places of the columns that are no products."""
        places = np.arange(len(self.names))
        return places[(places < self.n_own - self.products) | (places >= self.n_own)]

    def total(self) -> Matrix:
        """M: sum w w' over all records."""
        return np.asarray(sum(self.own))

    def shown(self, mask: Sequence[bool]) -> Vector:
        """1.0 for the columns x that a pattern shows."""
        return np.repeat(np.asarray(mask, dtype=np.float64), self.widths)

    def pairs(self) -> dict[tuple[int, int], Matrix]:
        """M_AB for every pair of parties, of all records that both have."""
        parties = range(len(self.widths))
        empty = np.zeros((self.head, self.head))
        return {
            (a, b): sum((m for mask, m in zip(self.masks, self.own, strict=True) if mask[a] and mask[b]), empty)
            for a in parties
            for b in parties
        }

    def behind(self) -> dict[tuple[int, int], Matrix]:
        """The moments of w over the records behind S_AB, as they count there: W_A or M_AB."""
        return self.pairs() | {(a, a): gram for a, gram in enumerate(self.weighted)}

    def without_faint_products(self, *, least: float = CLEAR) -> FactoredMoments:
        """Only the products that vary by more than the noise, given (1, w) and the products before them, in every W_A:
        with others W_A may have no inverse. With an infinite `least`, none."""
        first = self.head - self.products
        kept = list(range(first))
        for place in range(first, self.head):
            left = [
                own[place, place] - own[place, kept] @ solve(own[np.ix_(kept, kept)], own[kept, place], assume_a="sym")
                for own in (*self.weighted, self.total())
            ]
            if min(left) > least * math.sqrt(self.head) * max(self.weighted_sd, self.own_sd):
                kept.append(place)
        head = np.array(kept)
        places = np.concatenate([head, np.arange(self.head, len(self.gram))])
        own, weighted = (tuple(m[np.ix_(head, head)] for m in part) for part in (self.own, self.weighted))
        names, columns = (
            tuple(part[place - 1] for place in places[1:]) for part in (self.names, self.columns or self.names)
        )
        return replace(
            self,
            names=names,
            columns=columns,
            n_own=len(head) - 1,
            products=len(head) - first,
            gram=self.gram[np.ix_(places, places)],
            own=own,
            weighted=weighted,
        )

    def moved(self, shift: Matrix) -> FactoredMoments:
        """The statistics of shift @ (1, w, x); `shift` mixes (1, w) and rescales x (absent blocks stay 0)."""
        head = shift[: self.head, : self.head]
        own, weighted = (tuple(head @ m @ head.T for m in part) for part in (self.own, self.weighted))
        return replace(self, gram=shift @ self.gram @ shift.T, own=own, weighted=weighted)


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
    head, behind, blocks = data.head, data.behind(), consecutive(data.widths)
    total = data.total()
    count = float(total[0, 0])
    mean = total[0, 1:] / count
    width = sum(data.widths)
    slopes, residual, counts = np.zeros((head, width)), np.zeros((width, width)), np.zeros((width, width))
    for a, block_a in enumerate(blocks):
        slopes[:, block_a] = solve(behind[a, a], data.gram[:head, head:][:, block_a], assume_a="sym")
    for a, block_a in enumerate(blocks):
        for b, block_b in enumerate(blocks):
            both = behind[a, b]
            predicted = slopes[:, block_a].T @ both @ slopes[:, block_b]
            counts[block_a, block_b] = both[0, 0]
            residual[block_a, block_b] = (data.gram[head:, head:][block_a, block_b] - predicted) / both[0, 0]
    return Factors(count, mean, total[1:, 1:] / count - np.outer(mean, mean), slopes, residual, counts)


@dataclass(frozen=True)
class Repair:
    """Why moments could not be taken as they are; columns, or names of parties. All empty: they were."""

    hidden: tuple[str, ...] = ()
    """Whose variance noise hides."""
    close: tuple[str, ...] = ()
    """Without which no eigenvalue would be below the floor."""
    apart: tuple[tuple[int, int], ...] = ()
    """Parties that share too few records: one with the response, if it is twice the same, or two with each other."""
    holder: bool = False
    """Whether the response holder's own moments are those of no table."""
    shrunk: float = 0.0
    """The part of each correlation that was taken away."""

    def __bool__(self) -> bool:
        return bool(self.hidden or self.close or self.apart or self.holder)


def _least_variances(data: FactoredMoments, law: Factors) -> Vector:
    """Twice the noise in the variances of w, and of x given w."""
    return 2 * data.gram_sd / np.concatenate([np.full(data.n_own, law.count), np.abs(np.diag(law.counts))])


def _hidden(data: FactoredMoments, law: Factors) -> tuple[str, ...]:
    """Columns whose variance noise hides. Without the response there is no estimate at all."""
    variances = np.concatenate([np.diag(law.covariance), np.diag(law.residual)])
    real, columns = data.real, data.columns or data.names
    hidden = [columns[place] for place in real[variances[real] <= _least_variances(data, law)[real]]]
    if data.response in hidden:
        raise NotEstimable(
            f"the response {data.response!r} hardly varies in the records used beside the noise; allow a larger"
            " epsilon, declare a closer range (with clip = true for what is beyond), or choose another response."
        )
    return tuple(dict.fromkeys(hidden))


def _close(data: FactoredMoments, sigma: Matrix, hidden: Sequence[str]) -> tuple[str, ...]:
    columns = data.columns or data.names
    left = [place for place in data.real.tolist() if columns[place] not in hidden]
    within, names = correlation_of(sigma[np.ix_(left, left)]), [columns[place] for place in left]
    return tuple(redundant(within, names, floor=FLOOR, keep=data.response))


def sound(data: FactoredMoments, apart: Sequence[tuple[int, int]] = ()) -> tuple[FactoredMoments, Repair]:
    """Moments that are those of some table, and what that took; `apart` are parties with too few records in common.

    As they are, if that is possible, or without products. Else they are repaired, by post-processing of the releases:
    a party `apart` from the response counts as unrelated to all others, and two that are apart from each other as
    unrelated given w; variances are at least twice their noise; and all correlations are multiplied by the largest
    1 - t with which none of their eigenvalues is below FLOOR, t = (FLOOR - smallest) / (1 - smallest).
    """
    if not apart:
        for tried in (data, data.without_faint_products(least=math.inf)):
            if _definite(tried):
                law = factors(tried)
                hidden = _hidden(tried, law)
                if not hidden and not _close(tried, law.sigma, hidden):
                    return tried, Repair()
    data = data.without_faint_products(least=math.inf)
    total, head, definite = data.total(), data.head, _definite(data)
    # Weighted records are like all others: what noise left no table of is taken from these.
    far = {a for a, b in apart if a == b}
    count = float(total[0, 0])
    least = max(math.sqrt(head) * max(data.weighted_sd, data.own_sd), 1e-9 * count)
    weighted = tuple(
        gram
        if a not in far and np.linalg.eigvalsh(gram)[0] > 0
        else _positive(total, least) * max(float(gram[0, 0]), least) / count
        for a, gram in enumerate(data.weighted)
    )
    data = replace(data, weighted=weighted)
    law, blocks = factors(data), consecutive(data.widths)
    hidden = _hidden(data, law)
    slopes, residual = law.slopes.copy(), law.residual.copy()
    for a, b in apart:
        residual[blocks[a], blocks[b]] = residual[blocks[b], blocks[a]] = 0.0
    for a in far:
        residual[blocks[a]] = residual[:, blocks[a]] = 0.0
        residual[blocks[a], blocks[a]] = np.diag(np.diag(law.sigma)[data.n_own :][blocks[a]])
        slopes[1:, blocks[a]] = 0.0
    lowest = np.maximum(_least_variances(data, law), 1e-9)
    covariance = _shrunk(_varying(law.covariance, lowest[: data.n_own]), 1e-6)[0]
    residual = _varying(residual, lowest[data.n_own :])
    sigma = _varying(replace(law, covariance=covariance, slopes=slopes, residual=residual).sigma, lowest)
    close = _close(data, sigma, hidden)
    sigma, shrunk = _shrunk(sigma, FLOOR)
    w, x = slice(0, data.n_own), slice(data.n_own, None)
    inner = np.linalg.solve(sigma[w, w], sigma[w, x])
    mu = np.concatenate([law.mean, slopes[0] + law.mean @ slopes[1:]])
    slopes = np.vstack([mu[x] - law.mean @ inner, inner])
    changed = sigma[w, w] - law.covariance
    gram = tuple(m + np.pad(changed * count / len(data.own), ((1, 0), (1, 0))) for m in data.own)
    return (
        _with_law(replace(data, own=gram), slopes, sigma[x, x] - inner.T @ sigma[w, x]),
        Repair(hidden, close, tuple(apart), not (definite or apart), shrunk),
    )


def _varying(matrix: Matrix, least: Vector) -> Matrix:
    """With variances of at least these."""
    return np.asarray(matrix + np.diag(np.maximum(least - np.diag(matrix), 0.0)))


def _shrunk(matrix: Matrix, floor: float) -> tuple[Matrix, float]:
    """The covariances smaller by the least part with which no eigenvalue of the correlations is below the floor."""
    smallest = float(np.linalg.eigvalsh(correlation_of(matrix))[0])
    part = max((floor - smallest) / (1 - smallest), 0.0)
    return np.where(np.eye(len(matrix), dtype=bool), matrix, (1 - part) * matrix), part


def _definite(data: FactoredMoments) -> bool:
    return all(np.linalg.eigvalsh(gram)[0] > 0 for gram in (data.total(), *data.weighted))


def _positive(matrix: Matrix, least: float) -> Matrix:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def _with_law(data: FactoredMoments, slopes: Matrix, residual: Matrix) -> FactoredMoments:
    """The moments of w as they are, and those of x at which `factors` gives these slopes and residual covariances."""
    head, gram, blocks = data.head, np.zeros_like(data.gram), consecutive(data.widths)
    head_rows, inner = gram[:head, head:], gram[head:, head:]  # views
    for (a, b), both in data.behind().items():
        mine, other = slopes[:, blocks[a]], slopes[:, blocks[b]]
        inner[blocks[a], blocks[b]] = residual[blocks[a], blocks[b]] * both[0, 0] + mine.T @ both @ other
        if a == b:
            head_rows[:, blocks[a]] = both @ mine
    gram[head:, :head] = head_rows.T
    return replace(data, gram=gram)


def _deviations(law: Factors) -> Vector:
    """Noise may leave nothing of the variance of a product, of which nothing is said."""
    return np.sqrt(np.maximum(np.diag(law.sigma), 1e-9))


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
    """d coefficient_k = <gram[k], d gram> + sum_m <own[k, m], d own_m> + sum_a <weighted[k, a], d weighted_a>, all
    symmetric."""

    gram: Matrix
    own: Matrix
    weighted: Matrix


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
        head = data.head
        scale = _deviations(raw)
        shift = np.diag(np.concatenate([[1.0], 1 / scale]))
        shift[1:head, 0] = -raw.mean / scale[: head - 1]
        moved = data.moved(shift)
        law = factors(moved)
        others = data.real[data.real != target]
        inverse = cho_factor(law.sigma[np.ix_(others, others)])
        contrast = np.zeros(len(scale))
        contrast[others], contrast[target] = -cho_solve(inverse, law.sigma[others, target]), 1.0
        gradient = _gradient(moved, law, contrast, others, cho_solve(inverse, np.eye(len(others))))
        return cls(raw, shift, moved, law, others, contrast, gradient)

    def in_units(self, names: Sequence[str], target: int, cov: Matrix) -> Coefficients:
        mu, scale = self.raw.mu, _deviations(self.raw)
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


def regression(data: FactoredMoments, target: int) -> tuple[Factors, Coefficients]:
    """The law, and the regression of column `target` (among w) on all other columns that are no products, with the
    covariance that noise alone gives it."""
    standard = Standard.of(data, target)
    shift, head, gradient = standard.shift, data.head, standard.gradient
    noise = _noise(gradient.gram, shift) * data.gram_sd**2
    for parts, sd in ((gradient.own, data.own_sd), (gradient.weighted, data.weighted_sd)):
        noise += sum(_noise(part, shift[:head, :head]) for part in parts.swapaxes(0, 1)) * sd**2
    return standard.raw, standard.in_units(data.names, target, noise)


def influences(data: FactoredMoments, rows: Matrix, present: NDArray[np.bool_], weights: Matrix, target: int) -> Matrix:
    """How much each of the rows of (w, x) (1 for each; presence and weight of each block) moves the coefficients: its
    quadratic form in the gradient at `data`, a row of coefficients for each."""
    standard = Standard.of(data, target)
    gradient, head = standard.gradient, data.head
    shown = np.column_stack([np.ones((len(rows), head)), np.repeat(present, data.widths, axis=1)])
    moved = (np.column_stack([np.ones(len(rows)), rows]) * shown) @ standard.shift.T
    own, counted = moved[:, :head], weights * present
    blocks = [slice(head + block.start, head + block.stop) for block in consecutive(data.widths)]
    across = gradient.gram.copy()
    across[:, :head] = across[:, :, :head] = 0.0
    for block in blocks:
        across[:, block, block] = 0.0
    values = _forms(across, moved)
    for a, block in enumerate(blocks):
        x = moved[:, block]
        mixed = 2 * np.column_stack([((own @ part) * x).sum(axis=1) for part in gradient.gram[:, :head, block]])
        within = mixed + _forms(gradient.gram[:, block, block], x) + _forms(gradient.weighted[:, a], own)
        values += counted[:, [a]] * within
    for m, mask in enumerate(data.masks):
        chosen = (present == np.array(mask, dtype=bool)).all(axis=1)
        values[chosen] += _forms(gradient.own[:, m], own[chosen])
    mu, scale = standard.raw.mu, _deviations(standard.raw)
    others = standard.others
    return np.asarray(values @ to_units(mu[others], scale[others], scale[target]).T)


def _forms(weights: Matrix, rows: Matrix) -> Matrix:
    """z'Qz for each row z (rows) and each Q of a stack (columns)."""
    return np.column_stack([((rows @ weight) * rows).sum(axis=1) for weight in weights])


def _gradient(data: FactoredMoments, law: Factors, v: Vector, others: NDArray[np.intp], inverse: Matrix) -> Gradient:
    """By the chain rule backwards: coefficients, then Sigma and the means, then (S, B, C), then the statistics.

    About the mean of w:  d beta = Sxx^-1 (dSigma v)_x  and, for the intercept at the fitted means, v'd mu with
    mu_x = B_0 + B'mu_w.
    """
    head, size, behind, blocks = data.head, len(data.gram), data.behind(), consecutive(data.widths)
    inner, count = law.slopes[1:], law.count
    many = len(others) + 1
    gradient = Gradient(
        np.zeros((many, size, size)),
        np.zeros((many, len(data.own), head, head)),
        np.zeros((many, len(blocks), head, head)),
    )
    solved = {a: cho_factor(gram) for a, gram in enumerate(data.weighted)}
    shown = [data.shown(mask) for mask in data.masks]
    across = np.ones_like(law.residual)
    for block in blocks:
        across[block, block] = 0.0
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
                by_slopes[:, block_a] -= 2 * behind[a, b] @ law.slopes[:, block_b] @ f[block_b, block_a]
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
        for a, block in enumerate(blocks):
            slopes, inner_f = law.slopes[:, block], f[block, block]
            lost = through[:, block] @ slopes.T
            gradient.weighted[k, a] = -(lost + lost.T) / 2 - slopes @ inner_f @ slopes.T
            gradient.weighted[k, a, 0, 0] -= np.sum(inner_f * law.residual[block, block])
        for m, mask in enumerate(shown):
            seen, both = law.slopes * mask, f * across
            gradient.own[k, m] = common - seen @ both @ seen.T
            gradient.own[k, m, 0, 0] -= mask @ (both * law.residual) @ mask
    return gradient


def _noise(weights: Matrix, shift: Matrix) -> Matrix:
    """sum over the upper triangle of (coefficient_k)(coefficient_l), with unit noise before the shift.

    An off-diagonal entry of a symmetric weight counts twice: 2 <A, B> - <diag A, diag B>.
    """
    before = shift.T @ weights @ shift
    flat = before.reshape(len(before), -1)
    diagonal = np.diagonal(before, axis1=1, axis2=2)
    return np.asarray(2 * flat @ flat.T - diagonal @ diagonal.T)
