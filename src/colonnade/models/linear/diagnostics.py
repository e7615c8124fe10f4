"""What a regression's assumptions are worth, from released moments alone: no row is asked for again.

*Missing not at random.* In the pattern-mixture model with a shift, a record that lacks the column j has there, on
average, delta standard deviations more than what its other values predict. The filled-in moments then change by

    sum x   by n_j d,      sum z z'   by t d' + d t' + n_j d d',

d = delta sd_j e_j, with n_j the records that lack j and t the sum of their filled-in values: the coefficients follow.

*Residuals by pattern.* The records of a pattern that shows the covariates O have the residual

    e = y - E[y | x_O] = a' (z - mu),      a = (-Sigma_OO^-1 Sigma_Oy, 1),

so their mean, their variance and their slope on the fitted value follow from the pattern's sums and products. If the
pattern is independent of the response given x_O, the mean and the slope are 0 and the variance is that of the law.
Missing at random does not imply it: presence may depend on the response, which is observed. Skewness and tails of
residuals take third and fourth powers, which are not opened.

*Independence between parties*, on which the VFEM paper rests: canonical correlations of the fitted law, with Bartlett's
test at the number of records that both parties have.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import chi2

from colonnade.errors import BadArguments, NotEstimable
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, PatternStatistics, Vector

DELTAS = (-0.5, -0.25, 0.25, 0.5)


@dataclass(frozen=True, eq=False)
class LackingRecords:
    """The records that lack a party's block: how many, and the sum of their values, filled in by the fitted law."""

    count: float
    sums: Vector

    def in_units(self, centre: Vector, scale: Vector) -> LackingRecords:
        return LackingRecords(self.count, self.count * centre + scale * self.sums)


def lacking_records(
    data: PatternStatistics, fit: GaussianFit, owner: NDArray[np.intp], parties: Sequence[str]
) -> dict[str, LackingRecords]:
    """For each party that lacks records; `owner` has the party's place of each coordinate."""
    out = {}
    for place, party in enumerate(parties):
        own = np.flatnonzero(owner == place)
        count, sums = 0.0, np.zeros(len(owner))
        for pattern in data.patterns:
            if own.size and not np.isin(own, pattern.observed).all():
                seen = pattern.observed
                lost = np.setdiff1d(np.arange(len(owner)), seen)
                toward = np.linalg.solve(fit.sigma[np.ix_(seen, seen)], fit.sigma[np.ix_(seen, lost)])
                count += pattern.count
                sums[seen] += pattern.sums
                sums[lost] += pattern.count * fit.mu[lost] + (pattern.sums - pattern.count * fit.mu[seen]) @ toward
        if count:
            out[party] = LackingRecords(count, sums)
    return out


def residuals_by_pattern(
    data: PatternStatistics, fit: GaussianFit, owner: NDArray[np.intp], parties: Sequence[str], target: int
) -> pd.DataFrame:
    """One row for each pattern that shows the response, the largest first: `records at`, `records`, the `mean` of their
    residuals and its `std err` (both in residual standard deviations of the fitted law), `sd` over that of the law, and
    the `slope` of residuals on fitted values. Patterns of fewer records than covariates are left out."""
    rows = []
    for pattern in data.patterns:
        place = np.flatnonzero(pattern.observed == target)
        if not place.size or pattern.count <= len(pattern.observed):
            continue
        others = np.delete(pattern.observed, place)
        slopes = np.linalg.solve(fit.sigma[np.ix_(others, others)], fit.sigma[others, target])
        law = float(fit.sigma[target, target] - slopes @ fit.sigma[others, target])
        residual, fitted = np.insert(-slopes, place, 1.0), np.insert(slopes, place, 0.0)
        sums, products = pattern.about(fit.mu)
        spread = products - np.outer(sums, sums) / pattern.count
        variance, explained = float(residual @ spread @ residual), float(fitted @ spread @ fitted)
        sd = float(np.sqrt(max(variance, 0.0) / pattern.count / law))
        rows.append(
            {
                "records at": _shown_at(pattern.observed, owner, parties),
                "records": round(pattern.count),
                "mean": float(residual @ sums) / pattern.count / float(np.sqrt(law)),
                "std err": sd / float(np.sqrt(pattern.count)),
                "sd": sd,
                "slope": float(residual @ spread @ fitted) / explained if explained > 0 else 0.0,
            }
        )
    return pd.DataFrame(rows, columns=RESIDUAL_FIELDS).sort_values("records", ascending=False, kind="stable")


RESIDUAL_FIELDS = ["records at", "records", "mean", "std err", "sd", "slope"]


def _shown_at(observed: NDArray[np.intp], owner: NDArray[np.intp], parties: Sequence[str]) -> str:
    """The parties whose columns a pattern shows; of some it may lack a part, where cells are empty."""
    names = []
    for place, party in enumerate(parties):
        own = np.flatnonzero(owner == place)
        share = np.isin(own, observed).mean() if own.size else 0.0
        if share > 0:
            names.append(party if share == 1 else f"{party} in part")
    return " + ".join(names)


def sensitivity(
    params: pd.Series[float],
    errors: pd.Series[float],
    names: Sequence[str],
    owners: Sequence[str],
    target: int,
    moments: tuple[float, Vector, Matrix],
    blocks: Mapping[str, LackingRecords],
    deltas: Sequence[float],
) -> pd.DataFrame:
    """For each covariate that is missing somewhere and each delta: its coefficient then, how far it moved in standard
    errors, and which coefficient moved most. `moments` are (n, mean, covariance) of the law that was fitted."""
    if any(not np.isfinite(delta) for delta in deltas):
        raise BadArguments(f"deltas must be numbers, in standard deviations of a column, not {list(deltas)!r}.")
    if not blocks:
        raise NotEstimable("no record used lacks a block, so nothing rests on why blocks are missing.")
    n, mu, sigma = moments
    second = n * (sigma + np.outer(mu, mu))
    before = _solved(n, n * mu, second, target)
    rows = []
    for place, (name, party) in enumerate(zip(names, owners, strict=True)):
        if party not in blocks or place == target:
            continue
        block = blocks[party]
        for delta in deltas:
            shift = np.zeros(len(mu))
            shift[place] = delta * np.sqrt(sigma[place, place])
            moved = second + np.outer(block.sums, shift) + np.outer(shift, block.sums)
            moved += block.count * np.outer(shift, shift)
            change = pd.Series(_solved(n, n * mu + block.count * shift, moved, target) - before, index=params.index)
            largest = str((change / errors).iloc[1:].abs().idxmax())
            rows.append(
                {
                    "column": name,
                    "party": party,
                    "delta": float(delta),
                    "coef": params[name] + change[name],
                    "change in std err": change[name] / errors[name],
                    "most changed": largest,
                    "its change in std err": change[largest] / errors[largest],
                }
            )
    return pd.DataFrame(rows)


def _solved(n: float, sums: Vector, second: Matrix, target: int) -> Vector:
    """The intercept and slopes of the regression with these sums and second moments."""
    others = np.delete(np.arange(len(sums)), target)
    mean = sums / n
    spread = second / n - np.outer(mean, mean)
    slopes = np.linalg.solve(spread[np.ix_(others, others)], spread[others, target])
    return np.concatenate([[mean[target] - slopes @ mean[others]], slopes])


def independence(
    names: Sequence[str],
    owners: Sequence[str],
    target: int,
    sigma: Matrix,
    together: Mapping[tuple[str, str], int],
) -> pd.DataFrame:
    """For each pair of parties: the largest correlation of two of their covariates, the first canonical correlation,
    and Bartlett's test that all are zero. The response is left out."""
    correlation = sigma / np.sqrt(np.outer(np.diag(sigma), np.diag(sigma)))
    rows = []
    for a, b in itertools.combinations(dict.fromkeys(owners), 2):
        left, right = (
            [place for place, party in enumerate(owners) if party == own and place != target] for own in (a, b)
        )
        if not left or not right:
            continue
        across = correlation[np.ix_(left, right)]
        within = [np.linalg.cholesky(correlation[np.ix_(own, own)]) for own in (left, right)]
        whitened = np.linalg.solve(within[1], np.linalg.solve(within[0], across).T)
        canonical = np.clip(np.linalg.svd(whitened, compute_uv=False), 0.0, 1.0 - 1e-12)
        i, j = np.unravel_index(np.argmax(np.abs(across)), across.shape)
        degrees, count = len(left) * len(right), together[a, b]
        scale = max(count - 1 - (len(left) + len(right) + 1) / 2, 0.0)
        statistic = float(-scale * np.log1p(-(canonical**2)).sum())
        rows.append(
            {
                "parties": f"{a}, {b}",
                "records": count,
                "columns": f"{names[left[i]]}, {names[right[j]]}",
                "correlation": float(across[i, j]),
                "canonical": float(canonical[0]),
                "statistic": statistic,
                "df": degrees,
                "pvalue": float(chi2.sf(statistic, degrees)),
            }
        )
    return pd.DataFrame(rows)
