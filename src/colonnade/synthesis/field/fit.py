"""Inference: the Markov random field that fits noisy tables best, by mirror descent on mbi's potentials and losses.

The field has one table of log-potentials for each maximal clique of a triangulated graph. The loss is the sum of
squared differences between what the field says and what was measured, each divided by its variance. Tables may be
measured in coarser bins: the field's own table is then summed into the same bins.

jax and mbi are imported when a field is first fitted; 64-bit numbers are switched on for that fit only.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, NotEstimable, RunError
from colonnade.synthesis.field.graph import Names, Triangulation

Reals = NDArray[np.float64]
Integers = NDArray[np.int64]

NEEDS = ("mbi", "jax")
"""The packages of inference: the extra `mrf`."""
LONGER, SHORTER = 1.01, 0.5
"""The step grows after a step that was taken, and shrinks after one that was not."""
BLOCK = 25
DISCREPANCY = 0.7
"""Noise makes the loss half the number of measured cells, at the truth. A descent that goes on far below it fits noise,
so it may stop there (the discrepancy principle); below 1, because a field has parameters of its own to spend."""


def require_inference() -> None:
    """Refuse before anything is spent where the packages of inference are not installed."""
    absent = [package for package in NEEDS if find_spec(package) is None]
    if absent:
        raise RunError(f"a Markov random field needs {' and '.join(absent)}; install colonnade[mrf].")


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


@dataclass(frozen=True, eq=False)
class MarkovField:
    """A fitted field: calibrated tables of the cliques, which agree with each other and sum to `total`."""

    graph: Triangulation
    tables: Mapping[Names, Reals]
    total: float
    loss: float

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
    """A table (of numpy or jax) summed over all but `columns`, in their order."""
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


@dataclass(frozen=True)
class _Loss:
    """The static part of the loss: which clique each measured table is read from, and along which axes.

    Equal structures are equal values, so jax compiles a structure once.
    """

    places: tuple[tuple[Names, Names, tuple[bool, ...]], ...]

    def __call__(self, marginals: Any, data: Any) -> Any:
        import jax.numpy as jnp

        projected: dict[tuple[Names, Names], Any] = {}
        loss = 0.0
        for (home, columns, binned), (counts, weight, bins) in zip(self.places, data, strict=True):
            if (home, columns) not in projected:
                projected[home, columns] = _project(marginals[home].values, home, columns)
            table = projected[home, columns]
            maps = iter(bins)
            for axis, coarse in enumerate(binned):
                if coarse:
                    table = jnp.moveaxis(jnp.tensordot(table, next(maps), axes=(axis, 0)), -1, axis)
            loss = loss + 0.5 * weight * jnp.sum((table - counts) ** 2)
        return loss


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
    on, for tables whose errors are not independent noise of the stated size.
    Measurements must lie inside cliques of the graph. `start` is a field whose cliques lie inside those of the graph.
    """
    if not (math.isfinite(total) and total > 0):
        raise NotEstimable(f"a field cannot be fitted to {total!r} records; the noise hides them: raise epsilon.")
    merged = _merged(measurements)
    places, data = [], []
    weights: dict[Names, float] = dict.fromkeys(graph.cliques, 0.0)
    for table in merged:
        home = graph.home(table.columns)
        if home is None:
            names = " x ".join(table.columns)
            raise BadArguments(f"the table of {names} lies in no clique of the graph; leave it out.")
        binned = tuple(bins is not None for bins in table.bins or (None,) * len(table.columns))
        maps = tuple(np.eye(int(bins.max()) + 1)[bins] for bins in table.bins or () if bins is not None)
        places.append((home, table.columns, binned))
        data.append((table.counts, 1 / table.sd**2, maps))
        weights[home] += 1 / table.sd**2
    with _quiet_jax():
        loss = _Loss(tuple(places))
        enough = discrepancy * sum(table.counts.size for table in merged if math.isfinite(table.sd)) / 2
        return _descend(graph, loss, tuple(data), max(weights.values()), total, iterations, enough, start)


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


class _State(NamedTuple):
    """Where the descent stands: log-potentials, what a plain step from the point before led to, the field's tables at
    the potentials with loss and gradient, and what to try. `run` counts the steps since momentum was last lost."""

    potentials: Any
    reached: Any
    tables: Any
    gradient: Any
    loss: Any
    step: Any
    run: Any
    trial: Any


WORTH_OPTIMISING = 200_000_000
"""Cells times iterations. A program that is compiled in full runs twice as fast, about 40 ns a cell and iteration, and
takes 8 s longer to compile."""
USUAL = 400
"""Iterations until a descent stops where noise begins: 100 to 600 in our studies."""


@lru_cache(maxsize=1)
def _steps(optimised: bool, structure: tuple[Any, ...]) -> Any:
    """The compiled descent: mirror descent with Armijo's rule, as mbi has it, with two changes. The program of one
    structure is kept, as each takes up to 100 MB; with it goes what jax keeps of the shapes of the one before.

    Each step computes the tables of the trial only: an accepted trial is the next point, so mbi's second pass over the
    field is saved, in the running time and in the program to compile. And log-potentials keep momentum as Nesterov's
    do, k / (k + 3) of the last move after k steps; it is lost when the loss rises (O'Donoghue and Candes, 2015), and
    the next step is a plain one. On the tables of Adult 200 such steps reach the loss of 1,500 plain ones.
    """
    import jax
    import jax.numpy as jnp

    jax.clear_caches()  # type: ignore[no-untyped-call]

    def step(state: _State, loss_fn: Any, total: Any) -> _State:
        tables = calibrated(state.trial, total)
        loss, gradient = jax.value_and_grad(loss_fn)(tables)
        first, plain = jnp.isinf(state.loss), state.run == 0
        fall = jnp.where(plain, 0.5 * state.step * state.gradient.dot(state.tables - tables), 0.0)
        taken = first | (state.loss - loss >= fall)
        length = state.step * jnp.where(first, 1.0, jnp.where(taken, LONGER, jnp.where(plain, SHORTER, 1.0)))
        run = jnp.where(taken & ~first, state.run + 1, 0.0)
        ahead = state.trial - length * gradient
        trial = ahead + run / (run + 3) * (ahead - state.reached)
        reached = _State(state.trial, ahead, tables, gradient, loss, length, run, trial)
        back = state.potentials - length * state.gradient
        stayed = state._replace(step=length, run=run, reached=back, trial=back)
        after: _State = jax.tree.map(lambda new, old: jnp.where(taken, new, old), reached, stayed)
        return after

    def steps(state: _State, loss_fn: Any, total: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, now: step(now, loss_fn, total), state)

    return jax.jit(steps, compiler_options=None if optimised else {"xla_backend_optimization_level": 0})


def _descend(
    graph: Triangulation,
    structure: _Loss,
    data: Any,
    steepest: float,
    total: float,
    iterations: int,
    enough: float,
    start: MarkovField | None,
) -> MarkovField:
    import jax.numpy as jnp
    import mbi  # type: ignore[import-untyped]

    domain = mbi.Domain(list(graph.sizes), list(graph.sizes.values()))
    loss_fn = mbi.marginal_loss.MarginalLossFn(graph.cliques, structure, data, steepest)
    zeros = mbi.CliqueVector.zeros(domain, graph.cliques)
    potentials = zeros if start is None else _potentials(mbi, domain, start).expand(graph.cliques)
    # The first step is long; the line search halves it where it overshoots, which costs a step each time. The types
    # are stated, as the steps return them: jax would compile the second block anew for a number of a weaker type.
    loss, step, run = (jnp.array(number, dtype=jnp.float64) for number in (jnp.inf, 2 / (steepest * total), 0.0))
    state = _State(potentials, potentials, zeros, zeros, loss, step, run, potentials)
    expected = min(iterations, USUAL) if enough else iterations
    steps = _steps(graph.cells * expected > WORTH_OPTIMISING, (graph.cliques, *graph.sizes.items(), structure))
    for done in range(0, iterations, BLOCK):  # in blocks, so that an interrupt is heard
        state = steps(state, loss_fn, float(total), min(BLOCK, iterations - done))
        if not float(state.loss) > enough:
            break
    tables = {
        clique: np.array(state.tables[clique].transpose(clique).values, dtype=np.float64) for clique in graph.cliques
    }
    reached = float(state.loss)
    if not math.isfinite(reached) or not all(np.isfinite(table).all() for table in tables.values()):
        raise NotEstimable("the field did not converge; the noise is too large for these tables: raise epsilon.")
    return MarkovField(graph, tables, float(total), reached)


def _potentials(mbi: Any, domain: Any, start: MarkovField) -> Any:
    """Log-potentials of a calibrated field: each column's conditional, put into a clique that has it."""
    logs: dict[Names, Any] = {}
    for name, parents in start.graph.drawing_order():
        chances = np.maximum(conditional(start, name, parents), 1e-300)
        home = start.graph.home((*parents, name))
        assert home is not None
        before = logs.get(home, mbi.Factor.zeros(domain.project(home)))
        logs[home] = before + mbi.Factor(domain.project((*parents, name)), np.log(chances))
    for clique in start.graph.cliques:
        logs.setdefault(clique, mbi.Factor.zeros(domain.project(clique)))
    return mbi.CliqueVector(domain, list(logs), logs)


@contextmanager
def _quiet_jax() -> Iterator[None]:
    """64-bit numbers inside, and no word of mbi's about the precision and the cache that jax has outside."""
    import jax

    with jax.enable_x64(True):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="JAX ", category=UserWarning)
            import mbi  # noqa: F401
        yield


# --- Belief propagation on a junction tree, for `fit`: the tables of a field from its log-potentials ------
#
# The schedule is HUGIN's (collect, then distribute, dividing out on separators what came up), as in mbi, but on
# probabilities instead of logarithms: one exponential a cell, and sums and products after that, where mbi takes an
# exponential and a logarithm for every message. A table is scaled by its largest entry, so only cells whose chance is
# below 1e-300 of the largest vanish. The program is shorter too, and compiles faster.


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


def calibrated(potentials: Any, total: Any) -> Any:
    """The tables of all cliques, each with the sum `total`; an oracle in the sense of mbi. The cliques must be the
    maximal cliques of a chordal graph, with their columns in the order of the domain."""
    import jax
    import jax.numpy as jnp
    import mbi

    domain, cliques = potentials.domain, tuple(potentials.cliques)
    keep: Any = jax.lax.optimization_barrier  # else the compiler computes a table anew for each sum over it
    values = {clique: potentials[clique].values for clique in cliques}
    beliefs = {clique: keep(jnp.exp(logs - logs.max())) for clique, logs in values.items()}
    edges = junction_tree(cliques)
    sent: dict[Names, Any] = {}
    for child, parent, common in reversed(edges):
        message = _project(beliefs[child], child, common)
        sent[child] = message / message.max()
        beliefs[parent] = keep(beliefs[parent] * _along(sent[child], common, parent))
    for child, parent, common in edges:
        message = _project(beliefs[parent], parent, common)
        news = jnp.where(sent[child] > 0, message / jnp.where(sent[child] > 0, sent[child], 1.0), 0.0)
        beliefs[child] = keep(beliefs[child] * _along(news / news.max(), common, child))
    tables = {
        clique: mbi.Factor(domain.project(clique), keep(table * (total / table.sum())))
        for clique, table in beliefs.items()
    }
    return mbi.CliqueVector(domain, cliques, tables)


def _along(message: Any, axes: Names, clique: Names) -> Any:
    """Shaped so that it multiplies a table of the clique."""
    sizes = dict(zip(axes, message.shape, strict=True))
    return message.reshape([sizes.get(name, 1) for name in clique])
