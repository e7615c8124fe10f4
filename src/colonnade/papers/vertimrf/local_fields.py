"""LocMRF (the paper's phase 1): PrivMRF at one party, on its own columns.

  1. noisy R-scores of all pairs; a graph of the largest, triangulated under a limit of cells;
  2. candidate marginals from its cliques, if they are useful: n / cells >= theta x the noise of a count (the paper
     has this inequality the wrong way round);
  3. the initial set: for each column the candidate that is most correlated with it;
  4. refinement: the candidate that the field gets most wrong is measured next.
All noise is integer noise on integers. The party releases what its field says about the marginals of its set, which is
post-processing. The sensitivities are in `claim.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadPrivacyParameter
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, Size, step
from colonnade.privacy.cost import Cost, ZeroConcentrated
from colonnade.privacy.noise import discrete_gaussian, discrete_laplace
from colonnade.privacy.randomness import Randomness
from colonnade.synthesis.field.fit import DISCREPANCY, MarkovField, Measurement, fit
from colonnade.synthesis.field.graph import Names, Triangulation, falling, greedy_graph, triangulate
from colonnade.synthesis.field.schema import Integers, Schema, cell_codes
from colonnade.synthesis.field.selection import MEAN_OF_NOISE

SCORES, CHOICES, TABLES = 0.1, 0.1, 0.8
"""Shares of rho: R-scores, choices in the refinement, measured tables."""
MOST_CELLS = 1 << 28
"""Of a field's tables together."""
MOST_CANDIDATES = 40
SENSITIVITY_OF_SCORE = 3
"""One record moves n |n T_ab - T_a T_b| by less than 3 n (`claim.md`)."""


@dataclass(frozen=True)
class Counter:
    """Exact tables of one party's records, inside the party."""

    codes: Mapping[str, NDArray[np.int32]]
    sizes: Mapping[str, int]
    n: int

    def table(self, columns: Sequence[str]) -> Integers:
        shape = tuple(self.sizes[name] for name in columns)
        present = np.all([self.codes[name] >= 0 for name in columns], axis=0)
        flat = np.ravel_multi_index([self.codes[name][present] for name in columns], shape)
        return np.bincount(flat, minlength=math.prod(shape)).reshape(shape).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LocalField:
    """What PrivMRF made: the graph's cliques, the marginal set S with the field's own tables, the noise of a count."""

    graph: Triangulation
    tables: Mapping[Names, NDArray[np.float64]]
    sd: float
    field: MarkovField


def priv_mrf(
    counter: Counter,
    *,
    rho: float,
    limit: int,
    theta: float,
    iterations: int,
    randomness: Randomness,
    rounds: int | None = None,
    each: int = 1,
    final: int | None = None,
    most: int = MOST_CANDIDATES,
    theta_triples: float | None = None,
) -> LocalField:
    """PrivMRF with rho of zCDP, zero-out.

    `rounds` of refinement (half as many as columns unless stated) measure `each` tables; `final` are the iterations of
    the last fit. `theta` holds for triples too unless they have their own.
    """
    names = list(counter.sizes)
    if rounds is None or len(names) == 1:
        rounds = math.ceil(len(names) / 2) if len(names) > 1 else 0
    choices = rounds * each
    planned = len(names) + choices
    variance = planned / (2 * TABLES * rho)
    sigma = math.nextafter(math.sqrt(variance), math.inf)
    scores = noisy_scores(counter, rho=SCORES * rho, randomness=randomness)
    graph = triangulate(counter.sizes, greedy_graph(counter.sizes, [], falling(scores), limit=limit))
    thetas = (theta, theta if theta_triples is None else theta_triples)
    useful = candidate_marginals(graph, scores, n=counter.n, noise=MEAN_OF_NOISE * sigma, thetas=thetas, most=most)
    measured: dict[Names, Measurement] = {}

    def measure(columns: Names) -> None:
        exact = counter.table(columns)
        noisy = exact + discrete_gaussian(randomness, sigma, exact.size).reshape(exact.shape)
        measured[columns] = Measurement(columns, noisy.astype(np.float64), sigma)

    for columns in initial_set(names, useful, scores):
        measure(columns)
    field: MarkovField | None = None
    epsilon = math.sqrt(2 * CHOICES * rho / choices) if choices else 0.0  # pure epsilon is epsilon^2 / 2 of zCDP
    for number in range(rounds + 1):
        # The number of records: the mean of the noisy tables' sums, weighted by precision.
        sums, weights = zip(*((table.counts.sum(), 1 / table.counts.size) for table in measured.values()), strict=True)
        total = max(float(np.average(sums, weights=weights)), 1.0)
        # Every candidate has a place in the loss, those not measured without weight: one structure, compiled once.
        blank = {
            columns: Measurement(columns, np.zeros([counter.sizes[name] for name in columns]), math.inf)
            for columns in useful
        }
        rest = [columns for columns in useful if columns not in measured]
        last = number == rounds or not rest
        steps = final if last and final is not None else iterations
        tables = list((blank | measured).values())
        field = fit(graph, tables, total=total, iterations=steps, discrepancy=DISCREPANCY, start=field)
        if last:
            break
        for _ in range(min(each, len(rest))):
            chosen = worst_inferred(counter, field, rest, epsilon=epsilon, randomness=randomness)
            measure(chosen)
            rest.remove(chosen)
    assert field is not None
    return LocalField(graph, {columns: field.marginal(columns) for columns in measured}, sigma, field)


def noisy_scores(counter: Counter, *, rho: float, randomness: Randomness) -> dict[Names, float]:
    """R-scores with noise. 2 n R = sum |n T_ab - T_a T_b| is an integer, and so is the noise."""
    pairs = list(itertools.combinations(counter.sizes, 2))
    if not pairs:
        return {}
    n = counter.n
    one_way = {name: counter.table([name]) for name in counter.sizes}
    exact = [int(np.abs(n * counter.table(p) - np.outer(one_way[p[0]], one_way[p[1]])).sum()) for p in pairs]
    sigma = math.nextafter(SENSITIVITY_OF_SCORE * n * math.sqrt(len(pairs) / (2 * rho)), math.inf)
    noisy = np.array(exact, dtype=np.int64) + discrete_gaussian(randomness, sigma, len(pairs))
    return {pair: float(score) / (2 * n) for pair, score in zip(pairs, noisy, strict=True)}


def candidate_marginals(
    graph: Triangulation,
    scores: Mapping[Names, float],
    *,
    n: int,
    noise: float,
    thetas: tuple[float, float],
    most: int,
) -> list[Names]:
    """Subsets of cliques that are useful: pairs by the first theta, triples by the second; every column is one."""
    useful = {
        columns: _worth(columns, scores)
        for size, theta in zip((2, 3), thetas, strict=True)
        for clique in graph.cliques
        for columns in itertools.combinations(clique, size)
        if n / math.prod(graph.sizes[name] for name in columns) >= theta * noise
    }
    return [*((name,) for name in graph.sizes), *falling(useful)[:most]]


def _worth(columns: Names, scores: Mapping[Names, float]) -> float:
    """The mean score of the pairs inside."""
    pairs = list(itertools.combinations(columns, 2))
    return sum(scores[pair] for pair in pairs) / len(pairs) if pairs else -math.inf


def initial_set(names: Sequence[str], candidates: Sequence[Names], scores: Mapping[Names, float]) -> list[Names]:
    """For each column the candidate that has it and is most correlated; each once."""
    worth = {columns: _worth(columns, scores) for columns in candidates}
    best = (max((columns for columns in candidates if name in columns), key=worth.__getitem__) for name in names)
    return list(dict.fromkeys(best))


def worst_inferred(
    counter: Counter, field: MarkovField, candidates: Sequence[Names], *, epsilon: float, randomness: Randomness
) -> Names:
    """Report noisy max of how far the field is from each table, in L1. A record moves each distance by at most 1, so
    discrete Laplace noise of scale 2 / epsilon makes the choice epsilon-DP."""
    distance = [
        int(np.abs(counter.table(columns) - np.rint(field.marginal(columns)).astype(np.int64)).sum())
        for columns in candidates
    ]
    noise = discrete_laplace(randomness, math.nextafter(2 / epsilon, math.inf), len(candidates))
    return candidates[int(np.argmax(np.array(distance) + noise))]


# --- the party's step -------------------------------------------------------------------------------------------


def _field_cost(public: Public, *, rho: float, **others: Any) -> Cost:
    if not 0 < rho < math.inf:
        raise BadPrivacyParameter(f"rho must be positive, not {rho!r}.")
    return ZeroConcentrated(rho)


@step(cost=_field_cost)
def local_mrf(
    me: Party,
    *,
    schema: dict[str, Any],
    rho: float,
    limit: Annotated[int, Size(MOST_CELLS)],
    theta: float,
    iterations: Annotated[int, Size(1_000_000)],
) -> Release:
    """LocMRF: the attribute graph, the marginal set and the tables that the local field infers for it."""
    layout = Schema.from_dict(me.facts, schema)
    names = layout.of(me.name)
    counter = Counter(cell_codes(me, layout, names), {name: layout.sizes[name] for name in names}, me.facts.n)
    local = priv_mrf(counter, rho=rho, limit=limit, theta=theta, iterations=iterations, randomness=me.randomness)
    value = {
        "cliques": [list(clique) for clique in local.graph.cliques],
        "tables": [{"columns": list(columns), "counts": table} for columns, table in local.tables.items()],
        "sd": local.sd,
    }
    return Release(value, "noisy tables of this party's own columns, fitted by a local field")


def local_tables(answer: Mapping[str, Any], total: float) -> list[Measurement]:
    """The tables of a party's answer to LocMRF, as if the party had all `total` records."""
    counts = {tuple(table["columns"]): np.asarray(table["counts"], dtype=np.float64) for table in answer["tables"]}
    own = next(iter(counts.values())).sum()
    factor = total / own if own > 0 else 1.0
    return [Measurement(columns, table * factor, answer["sd"] * factor) for columns, table in counts.items()]
