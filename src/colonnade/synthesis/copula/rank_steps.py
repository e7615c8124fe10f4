"""The parties' releases in VCDS, EVCDS and IEVCDS, and what the coordinator reads from them.

- `release_presence`: which pseudonymous records (and cells) the party has: a release without a bound, allowed by name.
- `release_ranks`: perturbed ranks of the party's columns, one whole number for each present record: the paper's
  disclosure. It would show who is present, so it runs only after `release_presence` was debited in the same job.
- `release_marginals`: the private distribution function of each column on public points, for a fixed set of present
  records: so it too runs only after `release_presence`.

`statistics/ranks.claim.md` and `statistics/marginals.claim.md` prove the costs, `vcds.claim.md` puts them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, NotEstimable, UnsafeRequest
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Laplace, Unbounded
from colonnade.privacy.randomness import Randomness
from colonnade.statistics.bernstein import LARGEST_DEGREE
from colonnade.statistics.marginals import (
    GRID,
    Budget,
    Marginal,
    bernstein_marginal,
    category_marginal,
    private_marginal,
)
from colonnade.statistics.rank_correlation import (
    LARGEST_CORRELATION,
    complete,
    invert_bridge,
    latent_from_spearman,
    rank_covariance,
    rank_variance,
)
from colonnade.statistics.ranks import Noise, PerturbedRanks, perturbed_ranks, rank_cost
from colonnade.synthesis.copula.model import (
    as_points,
    bounds_of,
    hermite_coefficients,
    listed_values,
    stepwise,
    values_of,
)

Reals = NDArray[np.float64]
MarginalMethod = Literal["smooth", "histogram", "bernstein"]

PRESENCE = "presence-to-coordinator"
"""The name by which a party allows the coordinator to see which pseudonymous records it has."""
MINIMUM_SHARED = 10
"""Records that two columns must share for their correlation to be estimated at all."""
SCARCE, LEAVE = 0.1, 0.05
"""Of a pair that less than this share of the cohort has: the largest sampling error (sd) with which it is believed."""

LARGEST_ORDER = 8
"""Of the iterated Bernstein operator; its weights grow like 2^order, and the noise with them."""

_SHOWN = "columns whose presence was shown"


# --- the parties' steps ----------------------------------------------------------------------------------


def presence_cost(public: Public, *, columns: list[str]) -> Cost:
    _own(public, columns)
    return Unbounded(PRESENCE, "which pseudonymous records this party has, to the coordinator")


@step(cost=presence_cost)
def release_presence(me: Party, *, columns: list[str]) -> Release:
    """For each column the packed bits of the records that have it."""
    masks = np.array([~np.isnan(encoded(me, name)) for name in columns])
    me.keep(_SHOWN, columns)
    return Release(np.packbits(masks, axis=1), "which pseudonymous records this party has, and their empty cells")


def ranks_cost(
    public: Public,
    *,
    columns: list[str],
    epsilon_0: float,
    noise: Noise,
    imputed: dict[str, NDArray[np.float64]] | None = None,
) -> Cost:
    """All n records count, as the number of present ones is not public. Imputed values are the coordinator's own, so
    in a later round too a replaced record changes only its own n - 1 comparisons in each column."""
    _own(public, columns)
    return rank_cost(public.facts.n, len(columns), epsilon_0, noise=noise, unit="record")


@step(cost=ranks_cost)
def release_ranks(
    me: Party,
    *,
    columns: list[str],
    epsilon_0: float,
    noise: Noise,
    imputed: dict[str, NDArray[np.float64]] | None = None,
) -> Release:
    """One column for each of `columns`: wins or doubled mid-ranks of the n records, perturbed.

    `imputed` are encoded values for the records (or cells) that the party lacks; with them all n records are ranked.
    A column with fewer than two values has no ranks, and zeros are released.
    """
    _shown(me, columns)
    out = np.zeros((me.facts.n, len(columns)), dtype=np.int64)
    for place, name in enumerate(columns):
        values = encoded(me, name)
        if imputed is not None:
            values = np.where(np.isnan(values), _imputed(imputed, name, me.facts.n), values)
        here = np.flatnonzero(~np.isnan(values))
        if here.size >= 2:
            out[here, place] = perturbed_ranks(
                values[here], epsilon_0=epsilon_0, noise=noise, cohort=me.facts.n, randomness=me.randomness
            ).released
    return Release(out, "a perturbed rank of each present record in each column")


def marginals_cost(
    public: Public, *, columns: list[str], epsilon: float, method: MarginalMethod, order: int, degree: int | None
) -> Cost:
    _own(public, columns)
    check_marginals(method, order, degree)
    return Laplace(epsilon, relation="replace", count=len(columns))


def check_marginals(method: str, order: int, degree: int | None) -> None:
    if method not in get_args(MarginalMethod):
        raise BadArguments(f"marginals must be 'smooth', 'histogram' or 'bernstein', not {method!r}.")
    if isinstance(order, bool) or not isinstance(order, int) or not 1 <= order <= LARGEST_ORDER:
        raise BadArguments(f"order must be a whole number from 1 to {LARGEST_ORDER}, not {order!r}.")
    if degree is not None and (
        isinstance(degree, bool) or not isinstance(degree, int) or not 1 <= degree <= LARGEST_DEGREE
    ):
        raise BadArguments(f"degree must be a whole number from 1 to {LARGEST_DEGREE}, or None, not {degree!r}.")


@step(cost=marginals_cost)
def release_marginals(
    me: Party, *, columns: list[str], epsilon: float, method: MarginalMethod, order: int, degree: int | None
) -> Release:
    """{column: its distribution function at `public_points`}, each with pure epsilon.

    Bins, and whether there is a curve at all, depend on the number of present records: its cost says nothing of that.
    """
    _shown(me, columns)
    found: dict[str, Reals] = {}
    for name in columns:
        column = me.block.columns[name]
        values = encoded(me, name)
        values = as_points(column, values[~np.isnan(values)])
        if values.size:
            made = column_marginal(
                column, values, epsilon=epsilon, method=method, order=order, degree=degree, randomness=me.randomness
            )
            found[name] = made.cumulative if made.discrete else made.cdf(public_points(column))
        else:  # the coordinator knows that nothing is present, and does not ask
            found[name] = np.zeros(public_points(column).size)
    return Release(found, "noisy distribution functions of the columns of the present records")


def column_marginal(
    column: Column,
    values: Reals,
    *,
    epsilon: float,
    method: MarginalMethod,
    order: int,
    degree: int | None,
    randomness: Randomness,
) -> Marginal:
    """The paper's Bernstein marginal, or one of bins, of a continuous column; noisy counts of listed values."""
    budget = Budget(epsilon=epsilon)
    if stepwise(column):
        codes = values - listed_values(column)[0]
        return category_marginal(codes, categories=values_of(column), budget=budget, randomness=randomness)
    lower, upper = bounds_of(column)
    if method != "bernstein":
        return private_marginal(values, lower=lower, upper=upper, budget=budget, method=method, randomness=randomness)
    return bernstein_marginal(
        values, lower=lower, upper=upper, epsilon=epsilon, order=order, degree=degree, randomness=randomness
    )


def encoded(me: Party, name: str) -> Reals:
    """A column over the whole cohort in numbers, NaN where the record or the cell is missing."""
    values = me.column(name)
    if me.block.columns[name].discrete:
        return np.where(values < 0, np.nan, values.astype(np.float64))
    return np.asarray(values, dtype=np.float64)


def public_points(column: Column) -> Reals:
    """Where a marginal is stated: at the listed values, or on a grid over the declared bounds."""
    return listed_values(column) if stepwise(column) else np.linspace(*bounds_of(column), GRID + 1)


def _own(public: Public, columns: Sequence[str]) -> None:
    if not columns:
        raise BadArguments("name at least one column.")
    for name in columns:
        public.facts.columns[public.party][name]


def _shown(me: Party, columns: Sequence[str]) -> None:
    """Refuse what shows who is present, or holds it fixed, in a job that has not paid for showing it."""
    if not me.kept(_SHOWN) or not set(columns) <= set(me.recall(_SHOWN)):
        raise UnsafeRequest("this rests on who is present; ask for the presence of the same columns first.")


def _imputed(imputed: Mapping[str, NDArray[np.float64]], name: str, n: int) -> Reals:
    values = np.asarray(imputed[name], dtype=np.float64) if name in imputed else np.full(n, np.nan)
    if values.shape != (n,):
        raise BadArguments(f"imputed values of {name!r} must be one number for each of the {n} records.")
    return values


# --- what the coordinator reads --------------------------------------------------------------------------


Mask = NDArray[np.bool_]


def ask_presence(job: Job, held: Mapping[str, Sequence[str]], *, phase: str) -> Mask:
    """Which record has which column; a column that cannot be ranked is refused before anything is spent on it."""
    answers = job.ask_each(
        release_presence, {party: {"columns": list(names)} for party, names in held.items()}, phase=phase
    )
    packed = np.concatenate([np.asarray(answers[party], dtype=np.uint8) for party in held])
    present = np.unpackbits(packed, axis=1, count=job.facts.n).astype(bool).T
    for name, count in zip((one for names in held.values() for one in names), present.sum(axis=0), strict=True):
        if count < 2:
            raise NotEstimable(
                f"fewer than two records have the column {name!r}, so it has no ranks; leave it out with columns=."
            )
    return present


def ask_ranks(
    job: Job,
    held: Mapping[str, Sequence[str]],
    present: Mask,
    *,
    epsilon_0: float,
    noise: Noise,
    phase: str,
    imputed: Mapping[str, Reals] | None = None,
) -> Reals:
    """Debiased ranks of all columns, records x columns, NaN where a record has neither a value nor an imputed one."""
    arguments: dict[str, dict[str, Any]] = {}
    for party, names in held.items():
        arguments[party] = {"columns": list(names), "epsilon_0": epsilon_0, "noise": noise}
        if imputed is not None:
            arguments[party]["imputed"] = {name: imputed[name] for name in names if name in imputed}
    answers = job.ask_each(release_ranks, arguments, phase=phase)
    released = np.concatenate([np.asarray(answers[party], dtype=np.int64) for party in held], axis=1)
    ranks = np.full(released.shape, np.nan)
    for place, name in enumerate(name for names in held.values() for name in names):
        here = present[:, place]
        if imputed is not None and name in imputed:
            here = here | ~np.isnan(imputed[name])
        ranks[here, place] = PerturbedRanks(released[here, place], epsilon_0, noise, job.facts.n).debiased
    return ranks


def ask_marginals(
    job: Job, held: Mapping[str, Sequence[str]], columns: Columns, *, phase: str, **options: Any
) -> dict[str, Marginal]:
    """The private marginal of each column, in the order of `columns`."""
    arguments = {party: {"columns": list(names), **options} for party, names in held.items()}
    answers = job.ask_each(release_marginals, arguments, phase=phase)
    found = {name: curve for party in held for name, curve in answers[party].items()}
    return {
        name: Marginal(public_points(column), np.asarray(found[name], dtype=np.float64), stepwise(column))
        for name, column in columns.items()
    }


@dataclass(frozen=True, eq=False)
class LatentCorrelation:
    """A proper correlation matrix, and the pairs of columns (by place) that nobody could measure."""

    matrix: Reals
    unmeasured: tuple[tuple[int, int], ...]


def sampling_error(coefficients: Reals, shared: NDArray[np.int64]) -> Reals:
    """The sd of each latent correlation near 0, from so many records: that of a score covariance over the bridge's
    slope.

    For two continuous columns it is 1 / sqrt(shared), nearly; for a rare category it is much larger.
    """
    deviation, slope = np.sqrt((coefficients**2).sum(axis=1)), np.maximum(np.abs(coefficients[:, 0]), 1e-6)
    factor = deviation / slope
    return np.asarray(np.outer(factor, factor) / np.sqrt(np.maximum(shared, 1)), dtype=np.float64)


def latent_correlation(ranks: Reals, marginals: Mapping[str, Marginal]) -> LatentCorrelation:
    """From debiased ranks over the records that two columns share.

    The noise of two columns is independent, so it biases no covariance, and the variance of the true ranks is known:
    the noisy diagonal is not used. Two continuous columns: 2 sin(pi rho / 6); otherwise the Hermite bridge. Pairs that
    share fewer than `MINIMUM_SHARED` records, or a small part of the cohort that leaves an error above `LEAVE`, get
    the entries of the largest determinant: their errors would spoil the repair of all others.
    """
    covariance = rank_covariance(ranks)
    coefficients = hermite_coefficients(marginals)
    found = invert_bridge(covariance.scores, coefficients)
    smooth = np.flatnonzero([not one.discrete for one in marginals.values()])
    sizes = np.diag(covariance.shared)[smooth]
    spread = np.sqrt([rank_variance(int(size)) / size**2 for size in sizes])
    both = np.ix_(smooth, smooth)
    rho = covariance.scores[both] / np.outer(spread, spread)
    limit = LARGEST_CORRELATION
    found[both] = np.clip(latent_from_spearman(rho), -limit, limit)
    np.fill_diagonal(found, 1.0)
    error = sampling_error(coefficients, covariance.shared)
    scarce = (covariance.shared < SCARCE * len(ranks)) & (error > LEAVE)
    known = (covariance.shared >= MINIMUM_SHARED) & ~scarce
    np.fill_diagonal(known, True)
    matrix = complete(found, known).correlation
    largest = float(np.abs(matrix - np.eye(len(matrix))).max(initial=0.0))
    if largest > limit:
        matrix = matrix * (limit / largest)
        np.fill_diagonal(matrix, 1.0)
    pairs = zip(*np.nonzero(np.triu(~known, 1)), strict=True)
    return LatentCorrelation(matrix, tuple((int(a), int(b)) for a, b in pairs))
