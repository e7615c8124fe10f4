"""The parties' releases in VCDS, EVCDS and IEVCDS.

- `release_presence`: which pseudonymous records (and cells) the party has: a release without a bound, allowed by name.
- `release_ranks`: perturbed ranks of the party's columns, one integer for each present record: the paper's disclosure.
  It would show who is present, so it runs only after `release_presence` was debited in the same job.
- `release_marginals`: the private distribution function of each column on public points, for a fixed set of present
  records: so it too runs only after `release_presence`.

`ranks.claim.md` and `statistics/marginals.claim.md` prove the costs, `claim.md` puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.data.column import Column
from colonnade.errors import BadArguments, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, Size, step
from colonnade.papers.vcds.ranks import Noise, perturbed_ranks, rank_cost
from colonnade.privacy.cost import Cost, Laplace, Unbounded
from colonnade.privacy.randomness import Randomness
from colonnade.statistics.marginals import (
    GRID,
    LARGEST_DEGREE,
    Marginal,
    bernstein_marginal,
    binned_marginal,
    category_marginal,
)
from colonnade.synthesis.copula.model import as_points, bounds_of, listed_values, stepwise, values_of

Reals = NDArray[np.float64]
MarginalMethod = Literal["smooth", "histogram", "bernstein"]

PRESENCE = "presence-to-coordinator"
"""The name by which a party allows the coordinator to see which pseudonymous records it has."""
LARGEST_ORDER = 8
"""Of the iterated Bernstein operator; its weights grow like 2^order, and the noise with them."""

_SHOWN = "columns whose presence was shown"


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
    n = me.facts.n
    released = np.zeros((n, len(columns)), dtype=np.int64)
    for place, name in enumerate(columns):
        values = encoded(me, name)
        if imputed is not None and name in imputed:
            given = np.asarray(imputed[name], dtype=np.float64)
            if given.shape != (n,):
                raise BadArguments(f"imputed values of {name!r} must be one number for each of the {n} records.")
            values = np.where(np.isnan(values), given, values)
        present = np.flatnonzero(~np.isnan(values))
        if present.size >= 2:
            released[present, place] = perturbed_ranks(
                values[present], epsilon_0=epsilon_0, noise=noise, cohort=n, randomness=me.randomness
            ).released
    return Release(released, "a perturbed rank of each present record in each column")


def marginals_cost(
    public: Public, *, columns: list[str], epsilon: float, method: MarginalMethod, order: int, degree: int | None
) -> Cost:
    _own(public, columns)
    return Laplace(epsilon, relation="replace", count=len(columns))


@step(cost=marginals_cost)
def release_marginals(
    me: Party,
    *,
    columns: list[str],
    epsilon: float,
    method: MarginalMethod,
    order: Annotated[int, Size(LARGEST_ORDER, least=1)],
    degree: Annotated[int | None, Size(LARGEST_DEGREE, least=1)],
) -> Release:
    """{column: its distribution function at `public_points`}, each with pure epsilon.

    Bins, and whether there is a curve at all, depend on the number of present records: its cost says nothing of that.
    """
    _shown(me, columns)
    curves: dict[str, Reals] = {}
    for name in columns:
        column = me.block.columns[name]
        values = encoded(me, name)
        values = as_points(column, values[~np.isnan(values)])
        curves[name] = np.zeros(public_points(column).size)
        if values.size:  # if nothing is present the coordinator knows, and does not ask
            marginal = column_marginal(
                column, values, epsilon=epsilon, method=method, order=order, degree=degree, randomness=me.randomness
            )
            curves[name] = marginal.cumulative if marginal.discrete else marginal.cdf(public_points(column))
    return Release(curves, "noisy distribution functions of the columns of the present records")


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
    private: dict[str, Any] = {"epsilon": epsilon, "randomness": randomness}
    if stepwise(column):
        return category_marginal(values - listed_values(column)[0], categories=values_of(column), **private)
    lower, upper = bounds_of(column)
    if method == "bernstein":
        return bernstein_marginal(values, lower=lower, upper=upper, order=order, degree=degree, **private)
    return binned_marginal(values, lower=lower, upper=upper, smooth=method == "smooth", **private)


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
