"""Private marginals at each party, and the scores that they turn its columns into.

Each party releases noisy counts of its columns, once: of the listed values of a stepwise column, or of the cells that a
few rounds choose between the bounds of another (`statistics.adaptive`). Marginal and score map are functions of these
released counts alone, so the coordinator and the party compute the same ones, and the party keeps its maps for the
moments.

The score of a value is a (2 F(x) - 1), with F at the middle of its jump where it jumps: at listed values, and at the
point masses of any column. The factor a gives every column the variance of a continuous one, 1/3, as far as the score
stays in [-1, 1]: noise of one size then hurts all columns alike. The claim is in `claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.aggregation import Values
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, Size, step
from colonnade.privacy.cost import Cost, GaussianCell, Unbounded, compose
from colonnade.privacy.noise import discrete_gaussian
from colonnade.statistics.adaptive import (
    AdaptiveMarginal,
    Axis,
    Rounds,
    from_arrays,
    most_counts,
    mostly_noise,
    to_arrays,
)
from colonnade.statistics.describe import release_adaptive
from colonnade.statistics.features import ScoreMap, keep_scores
from colonnade.statistics.marginals import Marginal, from_shares
from colonnade.synthesis.copula.model import listed_values, stepwise, values_of

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_ROUNDS = 9
"""Of the counts of a column that is not stepwise."""
SCORE_VARIANCE = 1 / 3
"""Of the score of a continuous column, uniform on [-1, 1]."""


def round_number(n: int, sigma: float) -> int:
    """From public facts: a round more while the noise of a count leaves room for twice as many cells."""
    number = 2
    while number < MOST_ROUNDS and n / 2 ** (number + 1) > sigma * math.sqrt(number + 1):
        number += 1
    return number


# --- post-processing: what released counts say -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PartyMarginals:
    """A party's marginals, and how many records it seems to have (`present`, with its standard deviation).

    in_words : what was found of each column. mostly_noise : the columns of which little more than noise is seen.
    ranks : the noise of a rank in each column, or of a count of a listed value.
    """

    marginals: dict[str, Marginal]
    present: float
    present_sd: float
    in_words: dict[str, str]
    mostly_noise: tuple[str, ...]
    ranks: dict[str, float]


def party_marginals(
    columns: Mapping[str, Column],
    counts: Mapping[str, Any],
    *,
    n: int,
    sigma: float,
    rounds: int,
    filled: Collection[str] = (),
) -> PartyMarginals:
    """From one party's noisy counts. Columns without empty cells count the same records, so their totals are averaged;
    those of a column with empty cells, unless it is `filled` in all records counted, are its own."""
    totals: dict[str, float] = {}
    variances: dict[str, float] = {}
    fitted: dict[str, AdaptiveMarginal] = {}
    for name, column in columns.items():
        if stepwise(column):
            totals[name] = float(np.sum(counts[name]))
            variances[name] = sigma**2 * values_of(column)
            continue
        axis, noise = Axis.of(column), column_rounds(sigma, rounds)
        released = from_arrays(counts[name], axis, n=n, rounds=noise)
        fitted[name] = AdaptiveMarginal.of(released, axis, n=n, rounds=noise)
        totals[name] = fitted[name].total
        variances[name] = fitted[name].total_sd ** 2
    complete = [name for name, column in columns.items() if not column.missing or name in filled]
    averaged = complete or [max(totals, key=lambda name: totals[name])]
    precision = 1 / np.maximum([variances[name] for name in averaged], 1e-6)
    present = float(np.average([totals[name] for name in averaged], weights=precision))
    held = {name: present if name in complete else totals[name] for name in columns}
    noisy = [
        name
        for name, column in columns.items()
        if (fitted[name].mostly_noise if name in fitted else mostly_noise(values_of(column), held[name], sigma))
    ]
    return PartyMarginals(
        marginals={
            name: fitted[name].marginal if name in fitted else _stepwise_marginal(column, counts[name], held[name])
            for name, column in columns.items()
        },
        present=present,
        present_sd=math.sqrt(1 / precision.sum()) if sigma else 0.0,
        in_words={name: marginal.in_words(columns[name].label) for name, marginal in fitted.items()},
        mostly_noise=tuple(noisy),
        ranks={name: fitted[name].rank_sd if name in fitted else sigma for name in columns},
    )


def _stepwise_marginal(column: Column, counts: Any, present: float) -> Marginal:
    """A column about which the noise says nothing is uniform on its domain."""
    shares = np.asarray(counts, dtype=np.float64) / max(present, 1.0)
    known = shares if present >= 1 else np.full(shares.size, 1 / shares.size)
    return from_shares(listed_values(column), known)


def column_rounds(sigma: float, rounds: int) -> Rounds:
    """Rounds that together cost what one histogram with noise `sigma` costs."""
    return Rounds(rounds, "gaussian", sigma * math.sqrt(rounds))


def score_factor(marginal: Marginal) -> float:
    """a = sqrt(SCORE_VARIANCE / var(2 F - 1)), or less where the largest score would pass 1; 1 if continuous.

    With probabilities p of the jumps the variance is (1 - sum p^3) / 3.
    """
    if marginal.discrete:
        jumps, scores = marginal.probabilities, marginal.scores(marginal.points)
    else:
        before, after = marginal.jumps
        smooth = (np.diff(marginal.points) > 0) & (np.diff(marginal.cumulative) > 0)
        ends = (marginal.cumulative[:-1][smooth], marginal.cumulative[1:][smooth])
        jumps, scores = after - before, np.concatenate([(before + after) / 2, *ends])
    variance = (1 - float((jumps**3).sum())) / 3
    largest = float(np.abs(2 * scores - 1).max())
    if variance < 1e-12 or largest < 1e-9:
        return 1.0
    return min(math.sqrt(SCORE_VARIANCE / variance), 1 / largest)


def score_map(column: Column, marginal: Marginal) -> ScoreMap:
    """From encoded values to scores in [-1, 1]."""
    # A long count stands in the middle of its unit, so the map is moved by half a unit instead of the data.
    moved = 0.5 if column.whole and not marginal.discrete else 0.0
    points = np.unique(marginal.points)
    below, upto = marginal.below(points), marginal.cdf(points)
    knots, scores = points - moved, (below + upto) / 2
    if not marginal.discrete:
        # A jump is steep, not sudden: from the double before it to the double after it.
        jump = upto > below
        steep = np.concatenate([np.nextafter(knots[jump], -np.inf), np.nextafter(knots[jump], np.inf)])
        knots, place = np.unique(np.concatenate([knots, steep]), return_index=True)
        scores = np.concatenate([scores, below[jump], upto[jump]])[place]
    return ScoreMap(knots, np.clip(score_factor(marginal) * (2 * scores - 1), -1.0, 1.0))


# --- the party's step --------------------------------------------------------------------------------------------


def _wanted(columns: Columns, names: Sequence[str]) -> dict[str, Column]:
    if not names or len(set(names)) != len(names):
        raise BadArguments("name the columns whose marginals are released, each once.")
    return {name: columns[name] for name in names}


def _marginals_cost(
    public: Public, *, label: str, columns: list[str], sigma: float, rounds: int, filled: list[str] | None = None
) -> Cost:
    """Nothing else of a zeroed record shows in a histogram than its one cell. Rounds are one histogram each, with
    sqrt(rounds) times the noise, so that a column costs the same whatever its kind. Replacing moves two cells."""
    wanted = _wanted(public.facts.columns[public.party], columns)
    if not isinstance(rounds, int) or not 1 <= rounds <= MOST_ROUNDS:
        raise BadArguments(f"rounds must be an integer from 1 to {MOST_ROUNDS}, not {rounds!r}.")
    if sigma == 0:
        return Unbounded("exact-marginals", "exact counts of the public cells of each column")
    return MarginalReleases.of(wanted.values(), rounds=rounds).cost(sigma)


@dataclass(frozen=True, kw_only=True)
class MarginalReleases:
    """The marginals of some columns as one group of a `Calibration`; the level is sigma, the noise of a count.

    `steps` of them are released as one histogram and `refined` ones in rounds. Together they have `share` of the
    budget, equally for all columns.
    """

    steps: int
    refined: int
    rounds: int
    share: float = 1.0

    @classmethod
    def of(cls, columns: Iterable[Column], *, rounds: int, share: float = 1.0) -> MarginalReleases:
        jumps = [stepwise(column) for column in columns]
        return cls(steps=sum(jumps), refined=len(jumps) - sum(jumps), rounds=rounds, share=share)

    def level(self, scale: float) -> float:
        return scale * math.sqrt((self.steps + self.refined) / self.share)

    def cost(self, level: float, *, colluders: int | None = None) -> Cost:
        stated: dict[str, Any] = {"replace_factor": math.sqrt(2)}
        return compose(
            [
                GaussianCell(level, **stated).times(self.steps),
                GaussianCell(level * math.sqrt(self.rounds), **stated).times(self.refined * self.rounds),
            ]
        )


@step(cost=_marginals_cost)
def release_marginals(
    me: Party,
    *,
    label: str,
    columns: list[str],
    sigma: float,
    rounds: Annotated[int, Size(MOST_ROUNDS, least=1)],
    filled: list[str] | None = None,
) -> Release:
    """Noisy counts of this party's records in cells; its score maps stay here, under `label`. Records with an empty
    cell in the `filled` columns count as absent."""
    wanted = _wanted(me.block.columns, columns)
    lists = {name: column for name, column in wanted.items() if stepwise(column)}
    complete = filled or []
    exact = me.aggregate(list(lists), ListedCounts(lists), filled=complete) if lists else {}
    noisy: dict[str, Any] = {}
    for name, column in wanted.items():
        if name in lists:
            counts = exact[name]
            noisy[name] = counts + discrete_gaussian(me.randomness, sigma, counts.size) if sigma else counts
        else:
            counted = column_rounds(sigma, rounds)
            noisy[name] = to_arrays(release_adaptive(me, column, counted, filled=complete), counted)
    private = party_marginals(wanted, noisy, n=me.facts.n, sigma=sigma, rounds=rounds, filled=complete)
    marginals = private.marginals
    keep_scores(me, label, {name: score_map(wanted[name], marginal) for name, marginal in marginals.items()})
    return Release(noisy, "noisy counts of the cells of each column")


@dataclass(frozen=True, eq=False)
class ListedCounts:
    """Exact counts of the listed values of stepwise columns."""

    columns: Mapping[str, Column]

    def of(self, rows: Integers, values: Values) -> dict[str, Integers]:
        return {name: count(column, values[name]) for name, column in self.columns.items()}

    def merge(self, left: dict[str, Integers], right: dict[str, Integers]) -> dict[str, Integers]:
        return {name: counts + right[name] for name, counts in left.items()}


def released_size(column: Column, rounds: int) -> int:
    """Numbers that leave the party for one column, at most."""
    return values_of(column) if stepwise(column) else most_counts(rounds)


def count(column: Column, encoded: NDArray[Any]) -> Integers:
    """Exact counts of encoded values of a stepwise column; a cell that became empty is in none of them."""
    values = encoded[encoded >= 0] if column.discrete else encoded[~np.isnan(encoded)]
    size = values_of(column)
    cell = np.rint(values - (0.0 if column.lower is None else column.lower)).astype(np.int64)
    return np.bincount(np.clip(cell, 0, size - 1), minlength=size).astype(np.int64)
