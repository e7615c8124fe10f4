"""Belief propagation on a junction tree, for `fit`: the tables of a field from its log-potentials.

The schedule is HUGIN's (collect, then distribute, dividing out on separators what came up), as in mbi, but on
probabilities instead of logarithms: one exponential a cell, and sums and products after that, where mbi takes an
exponential and a logarithm for every message. A table is scaled by its largest entry, so only cells whose chance is
below 1e-300 of the largest vanish. The program is shorter too, and compiles faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from colonnade.synthesis.mrf.graph import Names

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
            ((one, other) for one in inside for other in left), key=lambda pair: len(set(pair[0]) & set(pair[1]))
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
    import mbi  # type: ignore[import-untyped]

    domain, cliques = potentials.domain, tuple(potentials.cliques)
    keep: Any = jax.lax.optimization_barrier  # else the compiler computes a table anew for each sum over it
    beliefs = {clique: keep(_scaled(jnp, potentials[clique].values)) for clique in cliques}
    edges = junction_tree(cliques)
    sent: dict[Names, Any] = {}
    for child, parent, common in reversed(edges):
        message = _onto(beliefs[child], child, common)
        sent[child] = message / message.max()
        beliefs[parent] = keep(beliefs[parent] * _along(sent[child], common, parent))
    for child, parent, common in edges:
        message = _onto(beliefs[parent], parent, common)
        news = jnp.where(sent[child] > 0, message / jnp.where(sent[child] > 0, sent[child], 1.0), 0.0)
        beliefs[child] = keep(beliefs[child] * _along(news / news.max(), common, child))
    made = {
        clique: mbi.Factor(domain.project(clique), keep(table * (total / table.sum())))
        for clique, table in beliefs.items()
    }
    return mbi.CliqueVector(domain, cliques, made)


def _scaled(jnp: Any, logs: Any) -> Any:
    return jnp.exp(logs - logs.max())


def _onto(table: Any, axes: Names, kept: Names) -> Any:
    """Summed over all but `kept`, which are in the order of `axes`."""
    return table.sum(axis=tuple(at for at, name in enumerate(axes) if name not in kept))


def _along(message: Any, axes: Names, clique: Names) -> Any:
    """Shaped so that it multiplies a table of the clique."""
    sizes = dict(zip(axes, message.shape, strict=True))
    return message.reshape([sizes.get(name, 1) for name in clique])
