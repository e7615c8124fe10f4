"""Maximum likelihood for a Gaussian with missing blocks, from counts, sums and Gram matrices per pattern alone.

Records are z ~ N(mu, Sigma), and each shows the coordinates O of its pattern. With n, t, G the count, sum and Gram
matrix of a pattern, and D = G - t mu' - mu t' + n mu mu' about a mean mu, the observed-data log-likelihood is

    l(mu, Sigma) = -1/2 sum_patterns [ n |O| log 2 pi + n log det Sigma_OO + tr(Sigma_OO^-1 D) ],

so the pattern moments are sufficient, whatever the number of records. If records are missing at random, maximising l
ignores the missingness rightly. EM climbs from any start but slowly; Newton's method finishes. Both only accept a
step that does not lower l. The observed information is exact (second derivatives in closed form); from it
`models/linear/gaussian.py` has the standard errors of a regression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky

from colonnade.errors import BadArguments

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

EM_STEPS = 30
"""EM steps before each attempt at Newton's method."""
MAXIMUM_ROUNDS = 100
"""Of EM and Newton: 3,000 EM steps without settling are a refusal."""
NEAR = 1e-6
"""Newton decrement g' I^-1 g (the squared distance to the top, in standard errors) from which the remaining gain drowns
in the rounding of the likelihood: from there plain Newton steps finish, each squaring the distance."""
SINGULAR = 1e-9
"""Smallest eigenvalue of the fitted correlation matrix; below it columns determine one another."""
NEARLY_SINGULAR = 1e-3
"""The same of the columns that are left when a refusal says which to leave out."""
FEWEST_A_COLUMN = 3
"""Records for each column; with fewer, no single column is to blame if they determine one another."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """`count` records that show the coordinates `observed` (ascending), with sums of their values and products."""

    observed: NDArray[np.intp]
    count: float
    sums: Vector
    gram: Matrix

    def about(self, mean: Vector) -> tuple[Vector, Matrix]:
        """Sum and products of the deviations from `mean`."""
        centre = mean[self.observed]
        cross = np.outer(self.sums, centre)
        return self.sums - self.count * centre, self.gram - cross - cross.T + self.count * np.outer(centre, centre)

    def standardised(self, mean: Vector, scale: Vector) -> Pattern:
        sums, gram = self.about(mean)
        units = scale[self.observed]
        return Pattern(self.observed, self.count, sums / units, gram / np.outer(units, units))


@dataclass(frozen=True, eq=False)
class PatternStatistics:
    """The sufficient statistics: the names of the coordinates and the patterns that occur."""

    names: tuple[str, ...]
    patterns: tuple[Pattern, ...]

    @classmethod
    def of_rows(cls, rows: Matrix, names: Sequence[str]) -> PatternStatistics:
        """Of pooled records with NaN where a value is missing: what the parties compute together."""
        mask = ~np.isnan(rows)
        packed = np.packbits(mask, axis=1)
        _, first, index = np.unique(
            packed.view(np.dtype((np.void, packed.shape[1])))[:, 0], return_index=True, return_inverse=True
        )
        patterns = []
        for number, example in enumerate(first):
            observed = np.flatnonzero(mask[example])
            part = rows[index == number][:, observed]
            patterns.append(Pattern(observed, float(len(part)), part.sum(axis=0), part.T @ part))
        return cls(tuple(names), tuple(patterns))

    @property
    def n(self) -> float:
        return sum(pattern.count for pattern in self.patterns)

    def standardised(self, mean: Vector, scale: Vector) -> PatternStatistics:
        return PatternStatistics(self.names, tuple(pattern.standardised(mean, scale) for pattern in self.patterns))

    def only(self, columns: NDArray[np.intp]) -> PatternStatistics:
        """These coordinates alone; a pattern that shows none of them says nothing and goes."""
        place = np.full(len(self.names), -1, dtype=np.intp)
        place[columns] = np.arange(len(columns))
        patterns = []
        for pattern in self.patterns:
            inside = np.flatnonzero(place[pattern.observed] >= 0)
            if inside.size:
                gram = pattern.gram[np.ix_(inside, inside)]
                patterns.append(Pattern(place[pattern.observed[inside]], pattern.count, pattern.sums[inside], gram))
        return PatternStatistics(tuple(self.names[column] for column in columns), tuple(patterns))

    def available(self) -> tuple[Vector, Vector]:
        """Mean and variance of each coordinate over the records that show it."""
        width = len(self.names)
        counts, sums, squares = np.zeros(width), np.zeros(width), np.zeros(width)
        for pattern in self.patterns:
            counts[pattern.observed] += pattern.count
            sums[pattern.observed] += pattern.sums
        mean = sums / np.maximum(counts, 1.0)
        for pattern in self.patterns:
            squares[pattern.observed] += np.diag(pattern.about(mean)[1])
        return mean, squares / np.maximum(counts, 1.0)


# --- the climb --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GaussianFit:
    """The maximum, and how it was reached; `trace` is the log-likelihood after each accepted step."""

    mu: Vector
    sigma: Matrix
    loglik: float
    trace: tuple[float, ...]
    em_steps: int
    newton_steps: int


def fit_gaussian(
    data: PatternStatistics,
    *,
    start: tuple[Vector, Matrix] | None = None,
    columns: Sequence[str] = (),
    keep: str = "",
) -> GaussianFit:
    """The maximum likelihood estimate; refused where there is none, or none that is determined.

    Works on coordinates standardised by their available cases, so that tolerances mean the same for all units.
    `start` is (mean, covariance); by default the available cases' means and variances, without correlation. A refusal
    names `columns`, those of the coordinates (or their names), and advises to leave out any but `keep`.
    """
    columns = columns or data.names
    centre, variance = data.available()
    flat = [name for name, varies in zip(data.names, variance, strict=True) if not varies > 0]
    if flat:
        raise BadArguments(f"{', '.join(map(repr, flat))} does not vary in the records used; leave it out.")
    scale = np.sqrt(variance)
    standard = data.standardised(centre, scale)
    mu, sigma = np.zeros(len(scale)), np.eye(len(scale))
    if start is not None:
        mu, sigma = (start[0] - centre) / scale, start[1] / np.outer(scale, scale)
    # Changing units moves every log-likelihood by the same constant.
    constant = -sum(pattern.count * float(np.log(scale[pattern.observed]).sum()) for pattern in standard.patterns)
    mu, sigma, trace, em_steps, newton_steps = _climb(standard, mu, sigma, columns, keep)
    if np.linalg.eigvalsh(correlation_of(sigma))[0] < SINGULAR:
        raise BadArguments(_singular(data, sigma, columns, keep))
    return GaussianFit(
        mu=centre + scale * mu,
        sigma=sigma * np.outer(scale, scale),
        loglik=trace[-1] + constant,
        trace=tuple(value + constant for value in trace),
        em_steps=em_steps,
        newton_steps=newton_steps,
    )


def _climb(
    data: PatternStatistics, mu: Vector, sigma: Matrix, columns: Sequence[str], keep: str
) -> tuple[Vector, Matrix, list[float], int, int]:
    """Rounds of EM then Newton, until Newton says that the top is nearer than rounding."""
    value, *onward = em_step(data, mu, sigma)
    trace = [value]
    em_steps, newton_steps = 0, 0
    for _ in range(MAXIMUM_ROUNDS):
        for _ in range(EM_STEPS):
            try:
                value, *after = em_step(data, *onward)
            except LinAlgError as error:
                raise BadArguments(_singular(data, onward[1], columns, keep)) from error
            if value < trace[-1]:  # an EM step cannot fall: the top is reached up to rounding
                break
            (mu, sigma), onward = onward, after
            trace.append(value)
            em_steps += 1
        if np.linalg.eigvalsh(correlation_of(sigma))[0] < SINGULAR:
            raise BadArguments(_singular(data, sigma, columns, keep))
        while True:
            score, information = derivatives(data, mu, sigma)
            try:
                step = cho_solve(cho_factor(information, check_finite=False), score)
            except LinAlgError:
                break  # not concave here yet
            if score @ step <= NEAR:
                top = _finish(data, *_moved(mu, sigma, step))
                return *top, [*trace, max(trace[-1], log_likelihood(data, *top))], em_steps, newton_steps + 1
            better = _search(data, mu, sigma, step, trace[-1])
            if better is None:
                break
            mu, sigma, value = better
            trace.append(value)
            newton_steps += 1
        _, *onward = em_step(data, mu, sigma)
    out = redundant(correlation_of(sigma), columns, floor=NEARLY_SINGULAR, keep=keep)
    raise BadArguments(
        f"the likelihood did not settle in {em_steps:,} steps: too few records show the columns together, or some"
        f" nearly determine one another; leave out {', '.join(map(repr, out)) or 'the party with the fewest records'}"
        " with columns=."
    )


def _finish(data: PatternStatistics, mu: Vector, sigma: Matrix) -> tuple[Vector, Matrix]:
    for _ in range(3):
        score, information = derivatives(data, mu, sigma)
        step = cho_solve(cho_factor(information, check_finite=False), score)
        if score @ step < NEAR**2:
            break
        mu, sigma = _moved(mu, sigma, step)
    return mu, sigma


def _search(
    data: PatternStatistics, mu: Vector, sigma: Matrix, step: Vector, value: float
) -> tuple[Vector, Matrix, float] | None:
    """The longest of 1, 1/2, 1/4, ... of a Newton step that does not lower the likelihood and keeps a fifth of every
    variance: near a singular Sigma the likelihood is not concave and EM hardly moves."""
    for halvings in range(6):
        mu_next, sigma_next = _moved(mu, sigma, step * 0.5**halvings)
        try:
            cholesky(sigma_next - 0.2 * sigma)
            reached = log_likelihood(data, mu_next, sigma_next)
        except LinAlgError:
            continue
        if reached >= value:
            return mu_next, sigma_next, reached
    return None


def _moved(mu: Vector, sigma: Matrix, step: Vector) -> tuple[Vector, Matrix]:
    width = len(mu)
    upper = np.zeros((width, width))
    upper[np.triu_indices(width)] = step[width:]
    return mu + step[:width], sigma + upper + np.triu(upper, 1).T


def log_likelihood(data: PatternStatistics, mu: Vector, sigma: Matrix) -> float:
    """Of everything observed, at (mu, Sigma); `LinAlgError` if Sigma is not positive definite where it is needed."""
    return sum(_contribution(pattern, pattern.about(mu)[1], _factor(pattern, sigma)) for pattern in data.patterns)


def _factor(pattern: Pattern, sigma: Matrix) -> tuple[Matrix, bool]:
    return cho_factor(sigma[np.ix_(pattern.observed, pattern.observed)], lower=True, check_finite=False)


def _contribution(pattern: Pattern, products: Matrix, factor: tuple[Matrix, bool]) -> float:
    determinant = 2.0 * float(np.log(np.diag(factor[0])).sum())
    constant = len(pattern.observed) * math.log(2 * math.pi)
    distance = float(np.trace(cho_solve(factor, products, check_finite=False)))
    return -0.5 * (pattern.count * (constant + determinant) + distance)


def em_step(data: PatternStatistics, mu: Vector, sigma: Matrix) -> tuple[float, Vector, Matrix]:
    """The log-likelihood here, and the next (mu, Sigma).

    E: expected sum and products of whole records given what they show; M: their mean and covariance.
    With A = Sigma_.O Sigma_OO^-1 (the identity on O), E[z - mu | z_O] = A (z_O - mu_O) and
    var(z | z_O) = Sigma - A Sigma_O. (zero on O).
    """
    value, sums, products = 0.0, np.zeros_like(mu), np.zeros_like(sigma)
    for pattern in data.patterns:
        t, d = pattern.about(mu)
        factor = _factor(pattern, sigma)
        value += _contribution(pattern, d, factor)
        a = cho_solve(factor, sigma[pattern.observed], check_finite=False).T
        sums += a @ t
        products += a @ d @ a.T + pattern.count * (sigma - a @ sigma[pattern.observed])
    shift = sums / data.n
    covariance = products / data.n - np.outer(shift, shift)
    return value, mu + shift, (covariance + covariance.T) / 2


def derivatives(data: PatternStatistics, mu: Vector, sigma: Matrix) -> tuple[Vector, Matrix]:
    """Score and observed information (minus the second derivatives) in (mu, upper triangle of Sigma row by row).

    For a pattern let K = Sigma_OO^-1, r = K t with t the sum of deviations, Q = K D K. For directions m and symmetric
    A, B:  dl[m] = r'm,  dl[A] = tr((Q - n K) A) / 2,
    information[m, m] = n m'K m,  [m, A] = m'K A r,  [A, B] = tr(K A P B) with P = Q - n K / 2.
    A coordinate (i, j) of the triangle is the direction e_i e_j' + e_j e_i', halved if i = j.
    """
    width = len(mu)
    place = np.zeros((width, width), dtype=np.intp)
    place[np.triu_indices(width)] = width + np.arange(width * (width + 1) // 2)
    score = np.zeros(width + width * (width + 1) // 2)
    information = np.zeros((len(score), len(score)))  # its upper triangle, until the end
    for pattern in data.patterns:
        seen = pattern.observed
        t, d = pattern.about(mu)
        k = cho_solve(_factor(pattern, sigma), np.eye(len(seen)), check_finite=False)
        r, q = k @ t, k @ d @ k
        i, j = np.triu_indices(len(seen))
        half = np.where(i == j, 0.5, 1.0)
        places = place[seen[i], seen[j]]
        score[seen] += r
        score[places] += half * (q - pattern.count * k)[i, j]
        information[np.ix_(seen, seen)] += pattern.count * k
        information[np.ix_(seen, places)] += (k[:, i] * r[j] + k[:, j] * r[i]) * half
        _add_curvature(information, places, i, j, half, np.ascontiguousarray(k), q - 0.5 * pattern.count * k)
    return score, np.triu(information) + np.triu(information, 1).T


@numba.njit(cache=True)
def _add_curvature(information: Any, places: Any, i: Any, j: Any, half: Any, k: Any, p: Any) -> None:
    """tr(K A P B) for all coordinates A = (i_a, j_a) and B = (i_b, j_b) with a <= b."""
    for a in range(places.size):
        for b in range(a, places.size):
            value = k[i[a], j[b]] * p[j[a], i[b]] + k[j[a], j[b]] * p[i[a], i[b]]
            value += k[i[a], i[b]] * p[j[a], j[b]] + k[j[a], i[b]] * p[i[a], j[b]]
            information[places[a], places[b]] += half[a] * half[b] * value


def correlation_of(sigma: Matrix) -> Matrix:
    deviations = np.sqrt(np.diag(sigma))
    return np.asarray(sigma / np.outer(deviations, deviations))


def redundant(correlation: Matrix, columns: Sequence[str], *, floor: float, keep: str = "") -> list[str]:
    """Columns without which no eigenvalue of the correlations is below `floor`: one after another, that with the
    largest part in the flattest direction; never `keep`."""
    left, out = list(range(len(columns))), list[str]()
    while len(left) > 1:
        values, vectors = np.linalg.eigh(correlation[np.ix_(left, left)])
        parts = np.where([columns[place] == keep for place in left], 0.0, np.abs(vectors[:, 0]))
        if values[0] >= floor or not parts.any():
            break
        out.append(columns[left[int(np.argmax(parts))]])
        left = [place for place in left if columns[place] not in out]
    return out


def _singular(data: PatternStatistics, sigma: Matrix, columns: Sequence[str], keep: str) -> str:
    """Which columns determine one another, the largest weights of the flattest direction; and which to leave out."""
    correlation = correlation_of(sigma)
    vector = np.abs(np.linalg.eigh(correlation)[1][:, 0])
    blame = [data.names[place] for place in np.argsort(-vector) if vector[place] > 0.1 * vector.max()][:6]
    n, width = sum(pattern.count for pattern in data.patterns), len(data.names)
    if n < FEWEST_A_COLUMN * width:
        return f"{n:,.0f} records cannot determine how {width} columns go together; leave columns out with columns=."
    out = redundant(correlation, columns, floor=NEARLY_SINGULAR, keep=keep)
    return (
        f"the columns {', '.join(map(repr, blame))} determine one another in the records used, so their effects cannot"
        f" be told apart; leave out {', '.join(map(repr, out)) or 'one of them'} with columns=."
    )
