"""Inference: the Markov random field that fits noisy tables best, by mirror descent with momentum.

The field has one table of log-potentials for each maximal clique of a triangulated graph. The loss is half the sum of
squared differences between what the field says and what was measured, each divided by its variance. Tables may be
measured in coarser bins: the field's own table is then summed into the same bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from colonnade.codec import plain
from colonnade.errors import BadArguments, NotEstimable
from colonnade.statistics.marginals import on_simplex
from colonnade.synthesis.field.graph import Names, Triangulation, triangulate

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]
Tables = dict[Names, Reals]

LONGER, SHORTER = 1.01, 0.5
"""The step grows after a step that was taken, and shrinks after one that was not."""
LEAST_MASS = 0.1
"""Of a cell that a descent starts from, in standard deviations of its count."""
BLOCK = 25
"""Steps between two looks at the loss: a few steps more even out directions that the first ones have not reached."""
DISCREPANCY = 0.8
"""Noise makes the loss half the number of measured cells, at the truth. A descent that goes on far below it fits noise,
so it may stop there (the discrepancy principle); below 1, because a field has parameters of its own to spend."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """Noisy counts of one table. `bins` gives for each column the bin of each of its cells, or None where the column
    is measured cell by cell; `counts` has one axis a column. An infinite `sd` is a table that is not measured (yet): it
    has no weight, and keeps its place so that a later fit need not be compiled again. `factor`: counts of fewer records
    were scaled up by it."""

    columns: Names
    counts: Reals
    sd: float
    bins: tuple[Integers | None, ...] | None = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.counts.ndim != len(self.columns) or not self.sd > 0:
            raise BadArguments("a measurement needs one axis for each column and a positive standard deviation.")

    @property
    def coarse(self) -> bool:
        return self.bins is not None and any(bins is not None for bins in self.bins)


def packed(tables: Sequence[Measurement]) -> tuple[Reals, list[dict[str, Any]]]:
    """All counts end to end, and the rest of each table as plain data; `unpacked` is its inverse."""
    stated = [
        {
            "columns": list(table.columns),
            "shape": list(table.counts.shape),
            "sd": float(table.sd),
            "bins": plain(table.bins),
            "factor": float(table.factor),
        }
        for table in tables
    ]
    return np.concatenate([np.zeros(0), *(table.counts.ravel() for table in tables)]), stated


def unpacked(counts: Reals, stated: Sequence[Mapping[str, Any]]) -> tuple[Measurement, ...]:
    tables, start = list[Measurement](), 0
    for each in stated:
        stop = start + math.prod(each["shape"])
        bins = None if each["bins"] is None else tuple(None if one is None else np.array(one) for one in each["bins"])
        own = counts[start:stop].reshape(each["shape"])
        tables.append(Measurement(tuple(each["columns"]), own, each["sd"], bins, each["factor"]))
        start = stop
    return tuple(tables)


@dataclass(frozen=True, eq=False)
class MarkovField:
    """A fitted field: calibrated tables of the cliques, which agree with each other and sum to `total`."""

    graph: Triangulation
    tables: Mapping[Names, Reals]
    total: float
    loss: float
    excess: float = 0.0
    """At most so much is the loss above where the descent should have ended: 0 unless it ran out of steps."""

    def marginal(self, columns: Sequence[str]) -> Reals:
        """The field's table of columns that lie in one clique (sums to `total`)."""
        home = self.graph.home(columns)
        if home is None:
            return self._across(tuple(columns))
        return np.asarray(_project(self.tables[home], home, tuple(columns)))

    def given(self, evidence: Mapping[str, Reals]) -> MarkovField:
        """The field with the cells of these columns weighted; with weights 0 and 1, conditioned on the cells with 1.

        The tables are calibrated, so that HUGIN's messages are quotients of what a separator says now and said before.
        """
        tables, edges = dict(self.tables), junction_tree(self.graph.cliques)
        before = {child: _project(tables[child], child, common) for child, _, common in edges}
        for name, weights in evidence.items():
            home = self.graph.home((name,))
            assert home is not None
            tables[home] = tables[home] * _along(weights, (name,), home)
        inward = [(child, child, parent, common) for child, parent, common in reversed(edges)]
        outward = [(child, parent, child, common) for child, parent, common in edges]
        for separator, sender, receiver, common in inward + outward:
            message = _project(tables[sender], sender, common)
            news = np.divide(message, before[separator], out=np.zeros_like(message), where=before[separator] > 0)
            tables[receiver] = tables[receiver] * _along(news, common, receiver)
            before[separator] = message
        sums = {clique: float(table.sum()) for clique, table in tables.items()}
        if not min(sums.values()) > 0:
            raise NotEstimable("the field has no rows with these values; widen the condition.")
        scaled = {clique: np.asarray(table * (self.total / sums[clique])) for clique, table in tables.items()}
        return MarkovField(self.graph, scaled, self.total, self.loss)

    def _across(self, columns: Names) -> Reals:
        """Columns of several cliques: the product of conditionals, summed by elimination."""
        factors: list[tuple[Names, Reals]] = [
            ((*parents, name), conditional(self, name, parents)) for name, parents in self.graph.drawing_order()
        ]
        letters = {name: number for number, name in enumerate(self.graph.order)}
        for name in self.graph.order:
            if name in columns:
                continue
            touched = [factor for factor in factors if name in factor[0]]
            factors = [factor for factor in factors if name not in factor[0]]
            left = tuple(dict.fromkeys(other for names, _ in touched for other in names if other != name))
            factors.append((left, _contract(touched, left, letters)))
        return _contract(factors, columns, letters) * self.total


def _contract(factors: Sequence[tuple[Names, Reals]], out: Names, letters: Mapping[str, int]) -> Reals:
    operands: list[Any] = []
    for names, table in factors:
        operands += [table, [letters[name] for name in names]]
    return np.asarray(np.einsum(*operands, [letters[name] for name in out], optimize="greedy"))


def _project(table: Any, axes: Names, columns: Names) -> Any:
    """A table summed over all but `columns`, in their order."""
    left = tuple(name for name in axes if name in columns)
    summed = table.sum(axis=tuple(axis for axis, name in enumerate(axes) if name not in columns))
    return summed if left == columns else summed.transpose([left.index(name) for name in columns])


def conditional(field: MarkovField, name: str, parents: Names) -> Reals:
    """P(name | parents), the last axis `name`; uniform where the parents have no mass."""
    home = field.graph.home((*parents, name))
    assert home is not None  # the order is a perfect elimination order of a chordal graph
    joint = np.maximum(_project(field.tables[home], home, (*parents, name)), 0.0)
    mass = joint.sum(axis=-1, keepdims=True)
    even = np.full_like(joint, 1 / joint.shape[-1])
    return np.asarray(np.divide(joint, mass, out=even, where=mass > 0))


# --- fitting -------------------------------------------------------------------------------------------------


def fit(
    graph: Triangulation,
    measurements: Sequence[Measurement],
    *,
    total: float,
    iterations: int = 1500,
    discrepancy: float = 0.0,
    start: MarkovField | None = None,
) -> MarkovField:
    """The field on `graph` with the least squared error, each measurement weighed by its precision.

    At most `iterations`; fewer if the loss falls to the share `discrepancy` of what noise makes it at the truth. 0 goes
    on, for tables whose errors are not independent noise of the stated size. The best field on the way is returned,
    however far the descent has come: `excess` bounds what is left.
    Measurements must lie inside cliques of the graph. `start` is a field whose cliques lie inside those of the graph;
    by default columns are independent, each as it was measured alone: a descent that stops early keeps what it starts
    from where noise hides the rest.
    """
    if not (math.isfinite(total) and total > 0):
        raise NotEstimable(f"a field cannot be fitted to {total!r} records; the noise hides them: raise epsilon.")
    merged = _merged(measurements)
    weights: dict[Names, float] = dict.fromkeys(graph.cliques, 0.0)
    for table in merged:
        home = graph.home(table.columns)
        if home is None:
            names = " x ".join(table.columns)
            raise BadArguments(f"the table of {names} lies in no clique of the graph; leave it out.")
        weights[home] += 1 / table.sd**2
    heard = [table for table in merged if math.isfinite(table.sd)]
    enough = discrepancy * sum(table.counts.size for table in heard) / 2
    potentials = {clique: np.zeros([graph.sizes[name] for name in clique]) for clique in graph.cliques}
    _add_conditionals(potentials, graph, start or _product(graph.sizes, heard, total))
    descent = _Descent(graph, heard, potentials, total, step=2 / (max(weights.values(), default=0.0) * total or 1.0))
    with np.errstate(over="ignore", invalid="ignore"):  # a step that goes too far is not taken
        for done in range(1, iterations + 1):
            descent.step()
            if done % BLOCK == 0 and not descent.loss > enough:
                break
        excess = max(min(descent.above_least(), descent.loss - enough), 0.0)
    return MarkovField(graph, descent.tables, float(total), descent.loss, excess)


def _merged(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Tables of the same columns measured cell by cell become one, by inverse variance; the rest stay as they are."""
    fine: dict[Names, list[Measurement]] = {}
    for table in measurements:
        if not table.coarse:
            fine.setdefault(table.columns, []).append(table)
    joined = []
    for columns, same in fine.items():
        if len(same) == 1:
            joined += same
            continue
        precision = sum(table.sd**-2 for table in same)
        counts = sum((table.counts * table.sd**-2 for table in same), np.zeros(same[0].counts.shape)) / precision
        joined.append(Measurement(columns, counts, precision**-0.5))
    return joined + [table for table in measurements if table.coarse]


def _product(sizes: Mapping[str, int], measured: Sequence[Measurement], total: float) -> MarkovField:
    """The field of independent columns, from their own tables (uniform where there is none). No cell is empty: what the
    descent starts from without mass would never get any."""
    graph = triangulate(sizes, [])
    tables = {clique: np.full([sizes[name] for name in clique], total / sizes[clique[0]]) for clique in graph.cliques}
    for table in measured:
        if len(table.columns) == 1 and not table.coarse:
            held = np.maximum(on_simplex(table.counts / total), LEAST_MASS * table.sd / total)
            tables[table.columns] = held * (total / held.sum())
    return MarkovField(graph, tables, total, math.inf)


def _add_conditionals(potentials: Tables, graph: Triangulation, start: MarkovField) -> None:
    """Log-potentials of a calibrated field: each column's conditional, put into a clique that has it."""
    for name, parents in start.graph.drawing_order():
        columns = (*parents, name)
        home = graph.home(columns)
        if home is None:
            raise BadArguments(f"the field to start from links {' x '.join(columns)}, which the graph does not.")
        logs = np.log(np.maximum(conditional(start, name, parents), 1e-300))
        inside = tuple(other for other in home if other in columns)
        potentials[home] = potentials[home] + _along(
            logs.transpose([columns.index(one) for one in inside]), inside, home
        )


class _Descent:
    """Mirror descent with Armijo's rule and momentum, as far as it has come: log-potentials, the field's tables at them
    with loss and gradient, and what to try next.

    Log-potentials keep momentum as Nesterov's do, k / (k + 3) of the last move after k steps; it is lost when the loss
    rises (O'Donoghue and Candes, 2015), and the next step is a plain one. On the tables of Adult 200 such steps reach
    the loss of 1,500 plain ones. The first step is long; the line search halves it where it overshoots.
    """

    def __init__(
        self, graph: Triangulation, measured: Sequence[Measurement], potentials: Tables, total: float, *, step: float
    ) -> None:
        self._tree, self._loss, self._total = _Tree(graph), _Loss(graph, measured), total
        self._length, self._run = step, 0
        self._potentials, self.tables = potentials, self._tree.calibrated(potentials, total)
        self.loss, self._gradient = self._loss(self.tables)
        self._reached = self._trial = self._moved()

    def _moved(self) -> Tables:
        """One plain step from the present point."""
        return {
            clique: logs - self._length * self._gradient[clique] if clique in self._gradient else logs
            for clique, logs in self._potentials.items()
        }

    def step(self) -> None:
        tables = self._tree.calibrated(self._trial, self._total)
        loss, gradient = self._loss(tables)
        fall = 0.0
        if not self._run:
            moves = ((slope * (self.tables[clique] - tables[clique])).sum() for clique, slope in self._gradient.items())
            fall = 0.5 * self._length * float(sum(moves))
        if math.isfinite(loss) and self.loss - loss >= fall:  # infinite losses would satisfy Armijo's rule
            self._potentials, self.tables, self.loss, self._gradient = self._trial, tables, loss, gradient
            self._length *= LONGER
            self._run += 1
            kept, ahead = self._run / (self._run + 3), self._moved()
            self._trial = {clique: logs + kept * (logs - self._reached[clique]) for clique, logs in ahead.items()}
            self._reached = ahead
        else:
            self._length *= 1.0 if self._run else SHORTER
            self._run = 0
            self._reached = self._trial = self._moved()

    def above_least(self) -> float:
        """A bound on the loss above its least.

        With the gradient g at the present tables m, L(s) >= L(m) + g'(s - m) at any tables s, and the least g's is that
        of n times one row: Frank and Wolfe's gap. L is half a squared norm |A s - y|^2, so that the same holds with
        a times its residual for any a, L(s) >= (2 a - a^2) L(m) - a gap, and the best a makes the bound
        gap - gap^2 / (4 L(m)), or L(m) where the gap is 2 L(m) or more.
        """
        slopes = {c: np.broadcast_to(self._gradient.get(c, 0.0), table.shape) for c, table in self.tables.items()}
        here = sum(float((slope * self.tables[clique]).sum()) for clique, slope in slopes.items())
        gap = max(here + self._total * self._tree.largest({clique: -slope for clique, slope in slopes.items()}), 0.0)
        return self.loss if gap >= 2 * self.loss else gap - gap**2 / (4 * self.loss)


Place = tuple[Names, Reals, float, list[Reals | None]]
"""Of a measured table: its columns in the clique's order, counts, weight, and the bins of each axis as a matrix."""


class _Loss:
    """The loss, and its gradient by the cliques' tables.

    Within a clique, tables are summed one axis at a time, each from the smallest table that has its columns and one
    more; the gradient goes the same way back.
    """

    def __init__(self, graph: Triangulation, measured: Sequence[Measurement]) -> None:
        self._graph = graph
        self._places: dict[Names, list[Place]] = {}
        self._sums: dict[Names, dict[Names, tuple[Names, int]]] = {}
        for table in sorted(measured, key=lambda one: -len(one.columns)):
            home = graph.home(table.columns)
            assert home is not None
            columns = tuple(name for name in home if name in table.columns)
            order = [table.columns.index(name) for name in columns]
            maps = [None if table.bins is None else table.bins[at] for at in order]
            bins = [None if bin_of is None else np.eye(int(bin_of.max()) + 1)[bin_of] for bin_of in maps]
            place = (columns, table.counts.transpose(order), table.sd**-2, bins)
            self._places.setdefault(home, []).append(place)
            self._reach(home, columns, self._sums.setdefault(home, {}))

    def _reach(self, home: Names, columns: Names, sums: dict[Names, tuple[Names, int]]) -> None:
        """From which table, summed over which axis, the table of these columns comes."""
        if columns == home or columns in sums:
            return
        wider = [each for each in (home, *sums) if len(each) == len(columns) + 1 and set(columns) < set(each)]
        if not wider:
            smallest = min((name for name in home if name not in columns), key=self._graph.sizes.__getitem__)
            wider = [tuple(name for name in home if name in columns or name == smallest)]
            self._reach(home, wider[0], sums)
        source = min(wider, key=self._graph.clique_cells)
        sums[columns] = (source, next(axis for axis, name in enumerate(source) if name not in columns))

    def __call__(self, tables: Tables) -> tuple[float, Tables]:
        loss, gradient = 0.0, {}
        for home, places in self._places.items():
            summed = {home: tables[home]}
            for columns, (source, axis) in self._sums[home].items():
                summed[columns] = summed[source].sum(axis=axis)
            slopes: Tables = {}
            for columns, counts, weight, bins in places:
                apart = _binned(summed[columns], bins) - counts
                loss += 0.5 * weight * float(np.vdot(apart, apart))
                slope = _binned(weight * apart, [None if each is None else each.T for each in bins])
                slopes[columns] = slopes[columns] + slope if columns in slopes else slope
            for columns, (source, axis) in reversed(self._sums[home].items()):
                if columns in slopes:
                    slope = np.expand_dims(slopes[columns], axis)
                    slopes[source] = slopes[source] + slope if source in slopes else slope
            gradient[home] = slopes[home]
        return loss, gradient


def _binned(table: Reals, bins: Sequence[Reals | None]) -> Reals:
    """A table with its axes multiplied by matrices."""
    for axis, matrix in enumerate(bins):
        if matrix is not None:
            table = np.moveaxis(np.tensordot(table, matrix, axes=(axis, 0)), -1, axis)
    return table


# --- Belief propagation on a junction tree, for `fit`: the tables of a field from its log-potentials ------
#
# The schedule is HUGIN's (collect, then distribute, dividing out on separators what came up), on probabilities instead
# of logarithms: one exponential a cell, and sums and products after that. A table is scaled by its largest entry, so
# only cells whose chance is below 1e-300 of the largest vanish. Where noise is small, log-potentials of two cliques may
# cancel each other by more than that: a table that would then vanish as a whole is computed with logarithms.


Edge = tuple[Names, Names, Names]
"""Child, parent, separator."""


def junction_tree(cliques: Sequence[Names]) -> list[Edge]:
    """A maximum spanning tree of the maximal cliques of a chordal graph, weighed by the columns that two have in common
    (so each column's cliques are connected), parents before children. Cliques without common columns are not linked."""
    left = list(cliques)
    inside = [left.pop(0)]
    edges: list[Edge] = []
    while left:
        parent, child = max(
            ((clique, other) for clique in inside for other in left), key=lambda pair: len(set(pair[0]) & set(pair[1]))
        )
        common = tuple(name for name in child if name in parent)
        if common:
            edges.append((child, parent, common))
        left.remove(child)
        inside.append(child)
    return edges


LEAST_SUM = 1e-280
"""Of a clique's products: below, cells that matter may have been lost."""


class _Tree:
    """Messages of a junction tree."""

    def __init__(self, graph: Triangulation) -> None:
        self._edges = []
        self._roots = set(graph.cliques)
        for child, parent, common in junction_tree(graph.cliques):
            self._roots.discard(child)
            ends = []
            for clique in (child, parent):
                summed = tuple(axis for axis, name in enumerate(clique) if name not in common)
                ends.append((clique, summed, [graph.sizes[name] if name in common else 1 for name in clique]))
            self._edges.append(ends)

    def calibrated(self, potentials: Tables, total: float) -> Tables:
        """The tables of all cliques, each with the sum `total`. The cliques must be the maximal cliques of a chordal
        graph, with their columns in the order of the sizes."""
        with np.errstate(divide="ignore", invalid="ignore"):
            beliefs = self._products(potentials)
        sums = {clique: float(table.sum()) for clique, table in beliefs.items()}
        if not min(sums.values()) > LEAST_SUM:
            beliefs = self._from_logs(potentials)
            sums = {clique: float(table.sum()) for clique, table in beliefs.items()}
        for clique, table in beliefs.items():
            table *= total / sums[clique]
        return beliefs

    def _products(self, potentials: Tables) -> Tables:
        beliefs = {clique: np.exp(logs - logs.max()) for clique, logs in potentials.items()}
        sent = []
        for (child, summed, _), (parent, _, shape) in reversed(self._edges):
            message = beliefs[child].sum(axis=summed)
            message /= message.max()
            beliefs[parent] *= message.reshape(shape)
            sent.append(message)
        for (child, _, shape), (parent, summed, _) in self._edges:
            before, message = sent.pop(), beliefs[parent].sum(axis=summed)
            news = np.divide(message, before, out=np.zeros_like(message), where=before > 0)
            news /= news.max()
            beliefs[child] *= news.reshape(shape)
        return beliefs

    def _from_logs(self, potentials: Tables) -> Tables:
        """The same, at three exponentials a cell."""
        logs, sent = dict(potentials), []
        for (child, summed, _), (parent, _, shape) in reversed(self._edges):
            message = special.logsumexp(logs[child], axis=summed)
            logs[parent] = logs[parent] + message.reshape(shape)
            sent.append(message)
        for (child, _, shape), (parent, summed, _) in self._edges:
            news = special.logsumexp(logs[parent], axis=summed) - sent.pop()
            logs[child] = logs[child] + news.reshape(shape)
        return {clique: np.exp(own - own.max()) for clique, own in logs.items()}

    def largest(self, tables: Tables) -> float:
        """The largest sum of one cell of each table, over all rows."""
        best = dict(tables)
        for (child, summed, _), (parent, _, shape) in reversed(self._edges):
            best[parent] = best[parent] + best[child].max(axis=summed).reshape(shape)
        return sum(float(best[root].max()) for root in self._roots)


def _along(message: Any, axes: Names, clique: Names) -> Any:
    """Shaped so that it multiplies a table of the clique."""
    sizes = dict(zip(axes, message.shape, strict=True))
    return message.reshape([sizes.get(name, 1) for name in clique])
