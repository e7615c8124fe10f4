"""What the copula studies share: one sparse fit for every table, and two ways to run a synthesizer.

- `federated` runs a method as a user would: parties, ledgers, messages, secret shares.
- `pooled_copula` computes what the copula of Synthesize opens, without the secret shares: the same planned noise (from
  the method's own plan), the same integer rounding and clipping, the same post-processing, on pooled rows. It is many
  times cheaper at 200,000 records. `tests/unit/benchmarks/test_copula_common.py` compares the two.

Every table, real or synthetic, is fitted alike: SCAD by local linear approximation on standardised columns, lambda by
BIC with the number of rows of the table.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.draws_common import Cell, Draws
from benchmarks.draws_common import Estimate as MeanOfDraws
from benchmarks.rivals import vertigan
from benchmarks.sparse_selection import LAMBDAS, LLA, RATIO, Quality, average, fit_pooled, quality
from colonnade.data.column import Columns
from colonnade.data.simulated import Example
from colonnade.data.simulated.example import design_matrix
from colonnade.errors import NotEstimable
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.models.sparse.path import Family, lambda_sequence, moment_solver, trace_path
from colonnade.models.sparse.result import best, scores_by_bic
from colonnade.papers.vcds.method import VCDS
from colonnade.papers.vcds.releases import PRESENCE
from colonnade.privacy.noise import discrete_gaussian
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.adaptive import Axis, release, to_arrays
from colonnade.statistics.features import quantize
from colonnade.statistics.marginals import Marginal
from colonnade.statistics.moments import MomentsLayout, MomentsResult
from colonnade.synthesis.copula.estimate import Estimate, estimate
from colonnade.synthesis.copula.model import GaussianCopula, stepwise
from colonnade.synthesis.copula.procedure import CopulaReleases, check_present
from colonnade.synthesis.copula.scores import column_rounds, count, party_marginals, score_map
from colonnade.synthesis.method import Synthesize

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

ALLOW = (PRESENCE, "presence", "exact-marginals", "exact-moments")
FAMILY: Mapping[str, Family] = {"linear": "gaussian", "logistic": "binomial"}
ROWS = 20_000
"""Synthetic rows that are fitted, at least: their number is free, and fewer add sampling error of their own."""


# --- the fit that every table gets ------------------------------------------------------------------------------------


def numbers(table: pd.DataFrame, columns: Columns, response: str) -> tuple[Array, Array, list[str]]:
    """(covariates as numbers, response, names of the covariates)."""
    design = design_matrix(table, columns, leave_out=[response])
    y = columns[response].encode(table[response]).astype(np.float64)
    return design.to_numpy(np.float64), y, list(design.columns)


def sparse_fit(x: Array, y: Array, family: Family, *, noise: float | None = None, cohort: int = 0) -> Array:
    """Coefficients per unit of each column; a column without variance gets 0.

    BIC counts the rows of the table, or, with `noise` (the sd that the result states for a correlation) and a gaussian
    response, the effective number of records behind them.
    """
    spread = x.std(axis=0)
    varies = spread > 1e-12
    found = np.zeros(x.shape[1])
    scaled = (x[:, varies] - x[:, varies].mean(axis=0)) / spread[varies]
    if noise is None or family != "gaussian":
        found[varies] = fit_pooled(family, "scad", scaled, y) / spread[varies]
        return found
    centred = y - y.mean()
    gram, cross, variance = (
        scaled.T @ scaled / len(y),
        scaled.T @ centred / len(y),
        float(centred @ centred / len(y)),
    )
    solver = moment_solver(gram, cross, variance, tolerance=1e-6)
    lambdas = lambda_sequence(solver.largest, count=LAMBDAS, ratio=RATIO)
    points = trace_path(solver, lambdas.tolist(), penalty="scad", lla_steps=LLA).points
    size = effective_records(gram, cross, variance, cohort=cohort, noise=noise)
    found[varies] = points[best(scores_by_bic(family, points, n=size, half=1.0))].coefficients / spread[varies]
    return found


def effective_records(gram: Array, cross: Array, variance: float, *, cohort: int, noise: float) -> float:
    """How many records without noise would give coefficients of the same error.

    With unit variances and independent noise of sd s on each correlation, G b - c moves by s sqrt(1 + |b|^2) in each
    entry; sampling moves it by sigma / sqrt(n). A table cannot carry more than its cohort did.
    """
    slopes = np.linalg.solve(gram + 1e-3 * np.eye(len(cross)), cross)
    unexplained = max(1 - float(cross @ slopes) / variance, 0.05)
    moved = noise**2 * (1 + float(slopes @ slopes) / variance)
    return max(1 / (1 / cohort + moved / unexplained), 10.0)


def fitted_quality(table: pd.DataFrame, example: Example, *, noise: float | None = None) -> Quality:
    """RMSE, G-means and FDR of the fit on a table with the example's columns; a column that it lacks counts as 0."""
    equation = next(iter(example.truth.equations.values()))
    family: Family = "gaussian" if equation.family == "gaussian" else "binomial"
    x, y, names = numbers(table, example.columns, equation.response)
    found = sparse_fit(x, y, family, noise=noise, cohort=example.n)
    placed = pd.Series(found, index=names).reindex(equation.coefficients.index, fill_value=0.0)
    return quality(np.asarray(placed, np.float64), np.asarray(equation.coefficients, np.float64))


def complete_records(example: Example) -> pd.DataFrame:
    return example.truth.complete.loc[example.truth.presence.to_numpy().all(axis=1)]


# --- a method as a user runs it ---------------------------------------------------------------------------------------


def federated(method: Any, example: Example, *, seed: int, allow: Sequence[str] = ALLOW) -> Any:
    """Embedded parties with their ledgers and transcripts, on the example's blocks."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Federation.local(
            example.blocks,
            key=example.key,
            columns=example.columns,
            organisations=example.organisations,
            allow=allow,
            seed=seed,
            home=Path(folder) / "home",
            runs=Path(folder) / "runs",
        ) as parties,
    ):
        return method.fit(parties, sure=True)


def with_blocks(example: Example, table: pd.DataFrame, parties: Sequence[str] | None = None) -> Example:
    """The example with the rows of `table` at every party (of `parties`): complete cases, imputed or fewer columns."""
    blocks = {
        party: table[list(block.columns)].reset_index(drop=True)
        for party, block in example.blocks.items()
        if parties is None or party in parties
    }
    names = {name for block in blocks.values() for name in block.columns}
    organisations = {party: example.organisations[party] for party in blocks}
    columns = Columns(column for name, column in example.columns.items() if name in names)
    return dataclasses.replace(example, blocks=blocks, columns=columns, organisations=organisations)


def mean_imputed(example: Example) -> pd.DataFrame:
    """The complete table with each absent cell the mean of the present ones, or the nearest value of the domain."""
    table = example.truth.complete.copy()
    for party, block in example.blocks.items():
        absent = ~example.truth.presence[party].to_numpy()
        if not absent.any():
            continue
        for name in block.columns.drop(example.key):
            column = example.columns[name]
            codes = column.encode(table[name]).astype(np.float64)
            mean = float(codes[~absent].mean())
            codes[absent] = mean if column.kind == "continuous" else np.rint(mean)
            filled = column.decode(codes.astype(np.int32) if column.discrete else codes)
            table[name] = filled.set_axis(table.index)
    return table


def vertigan_rows(example: Example, *, epsilon: float, delta: float, seed: int) -> pd.DataFrame:
    """Of the rival VertiGAN, with epsilon for one party's block of a person, as the papers claim it."""
    made = vertigan.synthesize(
        example.blocks, example.columns, epsilon=epsilon, delta=delta, n=ROWS, seed=seed, unit="block"
    )
    if made[next(iter(example.truth.equations.values())).response].nunique() < 2:
        raise NotEstimable("VertiGAN's response is constant, so nothing can be fitted to it.")
    return made


# --- the copula on pooled rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """An example's cohort as its parties encode it: {column: one number a record}, and who has which record."""

    facts: PublicFacts
    roster: Roster
    values: Mapping[str, NDArray[Any]]
    present: Mask

    @classmethod
    def of(cls, example: Example) -> Records:
        held = {party: block.columns.drop(example.key) for party, block in example.blocks.items()}
        here = example.truth.presence[list(held)].to_numpy()
        known = here.any(axis=1)
        table = example.truth.complete[known]
        facts = PublicFacts(
            n=int(known.sum()),
            columns={party: Columns(example.columns[name] for name in names) for party, names in held.items()},
        )
        members = tuple(
            Member(name=party, organisation=party, public_key=bytes([at + 1]) * 32) for at, party in enumerate(held)
        )
        values = {name: example.columns[name].encode(table[name]) for names in held.values() for name in names}
        return cls(
            facts=facts,
            roster=Roster(members=members, committee=facts.parties[:3]),
            values=values,
            present=here[known],
        )

    def at(self, party: str) -> Mask:
        return np.asarray(self.present[:, self.facts.parties.index(party)])


def pooled_copula(method: Synthesize, records: Records, *, seed: int) -> tuple[GaussianCopula, Estimate]:
    """The fitted copula of Synthesize, without the secret shares."""
    releases = CopulaReleases(method, records.facts, records.roster)
    layout, marginals, scores = releases.layout, dict[str, Marginal](), {}
    for party, own in releases.columns.items():
        marginals |= (released := _released(releases, records, party, seed))
        present = records.at(party)
        maps = {name: score_map(own[name], marginal) for name, marginal in released.items()}
        scored = np.column_stack([score(records.values[name]) for name, score in maps.items()])
        scored[~present] = 0.0
        randomness = SimulatedRandomness(seed, f"rounding of {party}")
        scores[party] = quantize(scored, gamma=layout.gamma, clip=layout.bound(party), entry=1.0, randomness=randomness)
    estimated = estimate(_moments(layout, records, scores, seed), marginals, correlation=method.correlation)
    return GaussianCopula(_columns(releases), estimated.marginals, estimated.correlation), estimated


def pooled_independent(method: Synthesize, records: Records, *, seed: int) -> GaussianCopula:
    """Its marginals alone (`model="independent"`)."""
    releases = CopulaReleases(method, records.facts, records.roster)
    marginals = dict[str, Marginal]()
    for party in releases.columns:
        marginals |= _released(releases, records, party, seed)
    columns = _columns(releases)
    return GaussianCopula(columns, marginals, np.eye(len(columns)))


def _columns(releases: CopulaReleases) -> Columns:
    return Columns(column for own in releases.columns.values() for column in own.values())


def _released(releases: CopulaReleases, records: Records, party: str, seed: int) -> Mapping[str, Marginal]:
    """A party's marginals."""
    sigma, n, rounds = releases.sigma, releases.layout.facts.n, column_rounds(releases.sigma, releases.rounds)
    randomness, own = SimulatedRandomness(seed, f"marginals of {party}"), releases.columns[party]
    present = records.at(party)
    counts: dict[str, Any] = {}
    for name, column in own.items():
        values = records.values[name][present]
        if stepwise(column):
            cells = count(column, values)
            counts[name] = cells + discrete_gaussian(randomness, sigma, cells.size) if sigma else cells
            continue
        axis = Axis.of(column)
        counter = partial(axis.count, np.sort(values[~np.isnan(values)]))
        counts[name] = to_arrays(release(counter, axis, n=n, rounds=rounds, randomness=randomness), rounds)
    released = party_marginals(own, counts, n=n, sigma=sigma, rounds=releases.rounds)
    check_present({party: released})
    return released.marginals


def _moments(
    layout: MomentsLayout, records: Records, scores: Mapping[str, NDArray[np.int64]], seed: int
) -> MomentsResult:
    """Noisy Gram matrices. Products are integers below n gamma^2 < 2^53, so float64 adds them exactly."""
    assert records.facts.n * layout.gamma**2 < 2**53
    randomness = SimulatedRandomness(seed, "moments")
    here = np.column_stack([records.at(party) for party in layout.parties])
    grams = []
    for mask in layout.masks:
        secret = layout.presence == "secret"
        rows = np.arange(len(here)) if secret else np.flatnonzero((here == np.array(mask)).all(axis=1))
        parts = [] if secret else [np.full((rows.size, 1), float(layout.gamma))]
        for place, party in enumerate(layout.parties):
            if mask[place]:
                if secret:
                    parts.append(here[:, [place]] * float(layout.gamma))
                parts.append(scores[party][rows].astype(np.float64))
        joined = np.concatenate(parts, axis=1)
        gram = joined.T @ joined
        if layout.mu:
            upper = np.triu_indices(len(gram))
            gram[upper] += skellam(randomness, Fraction(layout.mu), len(upper[0]))
            gram.T[upper] = gram[upper]
        grams.append(gram / layout.gamma**2)
    return MomentsResult(
        n=records.facts.n,
        parties=layout.parties,
        presence=layout.presence,
        features=tuple(layout.features),
        patterns=tuple(layout.masks),
        entries=tuple(tuple(layout.entries(mask)) for mask in layout.masks),
        grams=tuple(grams),
        noise_sd=math.sqrt(2 * layout.mu) / layout.gamma**2,
        simulated=True,
    )


def holder_always_present(records: Records, holder: str) -> tuple[tuple[bool, ...], ...]:
    """The candidate patterns where one party has every record by design."""
    place = records.facts.parties.index(holder)
    size = len(records.facts.parties)
    every = ((number >> np.arange(size)) & 1 for number in range(2**size))
    return tuple(tuple(bool(bit) for bit in one) for one in every if one[place])


# --- budgets ----------------------------------------------------------------------------------------------------------


def record_epsilon(method: VCDS, records: Records) -> float:
    """What a record loses to a rank method, at its delta, with presence held fixed."""
    return method.procedure(records.facts, records.roster).budget.record.epsilon


def shown(one: Quality | None) -> str:
    """RMSE / G-means / FDR of a cell."""
    return "" if one is None else f"{one.rmse:.3f} / {one.g_means:.2f} / {one.fdr:.2f}"


# --- the draws of a cell ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """The draws of one cell; those in which the method refused are `asked` and not there."""

    each: tuple[Quality, ...]
    asked: int

    @property
    def mean(self) -> Quality:
        return average(self.each)

    @property
    def rmse(self) -> MeanOfDraws:
        return MeanOfDraws.of(one.rmse for one in self.each)

    def __str__(self) -> str:
        if not self.each:
            return "refused" if self.asked else ""
        error = f" ± {self.rmse.error:.3f}" if self.rmse.error else ""
        refused = f" ({self.asked - len(self.each)} of {self.asked} refused)" if self.asked > len(self.each) else ""
        return f"{self.mean.rmse:.3f}{error} / {self.mean.g_means:.2f} / {self.mean.fdr:.2f}{refused}"


def measured(
    draws: Draws, cells: Mapping[Cell, Callable[[int], Quality]], seeds: Mapping[Cell, Sequence[int]]
) -> dict[Cell, Measured]:
    """Every cell over its seeds, seed by seed, so that methods on the same draw follow one another."""
    each: dict[Cell, list[Quality]] = {cell: [] for cell in cells}
    for seed in sorted({seed for own in seeds.values() for seed in own}):
        for cell, compute in cells.items():
            if seed in seeds[cell]:
                values = draws.get(cell, seed, partial(_values, compute, seed))
                each[cell] += [Quality(**values)] if values else []
    return {cell: Measured(tuple(each[cell]), len(seeds[cell])) for cell in cells}


def _values(compute: Callable[[int], Quality], seed: int) -> dict[str, float]:
    try:
        return dataclasses.asdict(compute(seed))
    except NotEstimable:
        return {}
