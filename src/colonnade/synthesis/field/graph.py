"""The attribute graph: triangulation, and the size of the field that lives on it.

A field over a graph has one table for each maximal clique of the triangulated graph. The sum of their cells is what
inference costs in time and memory, so it is the limit that every choice of an edge has to respect.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from colonnade.errors import NotEstimable

Names = tuple[str, ...]


@dataclass(frozen=True)
class Triangulation:
    """Maximal cliques of a chordal graph, the columns of each in the declared order, and an elimination order."""

    cliques: tuple[Names, ...]
    order: Names
    sizes: Mapping[str, int]

    @property
    def cells(self) -> int:
        """Of all cliques together."""
        return sum(self.clique_cells(clique) for clique in self.cliques)

    def clique_cells(self, clique: Names) -> int:
        return math.prod(self.sizes[name] for name in clique)

    @property
    def largest(self) -> Names:
        return max(self.cliques, key=self.clique_cells)

    def home(self, columns: Iterable[str]) -> Names | None:
        """The smallest clique that has all of these columns."""
        wanted = set(columns)
        inside = [clique for clique in self.cliques if wanted <= set(clique)]
        return min(inside, key=self.clique_cells) if inside else None

    def drawing_order(self) -> list[tuple[str, Names]]:
        """The columns against the order of elimination, each with those before it that it depends on: its neighbours,
        which lie in one clique with it."""
        drawn: set[str] = set()
        ordered: list[tuple[str, Names]] = []
        for name in reversed(self.order):
            around = {other for clique in self.cliques if name in clique for other in clique}
            ordered.append((name, tuple(other for other in self.sizes if other in around and other in drawn)))
            drawn.add(name)
        return ordered


def triangulate(sizes: Mapping[str, int], cliques: Iterable[Sequence[str]]) -> Triangulation:
    """Greedy elimination: the next column is the one whose clique with its neighbours has the fewest cells."""
    place = {name: number for number, name in enumerate(sizes)}
    near: dict[str, set[str]] = {name: set() for name in sizes}
    for clique in cliques:
        for a, b in itertools.permutations(clique, 2):
            near[a].add(b)
    weight = {name: math.log(size) for name, size in sizes.items()}

    def log_cells(name: str) -> float:
        """Summed in the declared order: that of a set differs from process to process, and with it the rounding."""
        return weight[name] + sum(weight[other] for other in sorted(near[name], key=place.__getitem__))

    logs = {name: log_cells(name) for name in near}
    order: list[str] = []
    eliminated: list[frozenset[str]] = []
    while near:
        chosen = min(near, key=logs.__getitem__)  # of equals the first
        around = near.pop(chosen)
        for name in around:
            near[name] |= around
            near[name] -= {name, chosen}
            logs[name] = log_cells(name)
        order.append(chosen)
        eliminated.append(frozenset(around | {chosen}))
    maximal: list[frozenset[str]] = []
    for members in sorted(eliminated, key=len, reverse=True):
        if not any(members <= other for other in maximal):
            maximal.append(members)
    named = [tuple(sorted(members, key=place.__getitem__)) for members in maximal]
    return Triangulation(tuple(sorted(named, key=lambda clique: [place[name] for name in clique])), tuple(order), sizes)


def within_limit(sizes: Mapping[str, int], cliques: Sequence[Sequence[str]], *, limit: int) -> Triangulation:
    """The triangulated graph, if its tables have at most `limit` cells together."""
    graph = triangulate(sizes, cliques)
    if graph.cells > limit:
        names = " x ".join(f"{name} ({sizes[name]})" for name in graph.largest)
        raise NotEstimable(
            f"the field would need {graph.cells:,} cells, above max_clique = {limit:,}, and its largest table is"
            f" {names}; raise max_clique, or give these columns fewer cells (bins, cuts, fewer categories)."
        )
    return graph


def greedy_graph(
    sizes: Mapping[str, int], base: Sequence[Names], ordered: Iterable[Names], *, limit: int
) -> list[Names]:
    """Edges (or larger sets), in the order given, that keep the triangulated graph within `limit` cells."""
    within_limit(sizes, base, limit=limit)
    chosen: list[Names] = []
    for columns in ordered:
        if triangulate(sizes, [*base, *chosen, columns]).cells <= limit:
            chosen.append(columns)
    return chosen


def falling(scores: Mapping[Names, float]) -> list[Names]:
    """Sets of columns in falling order of their scores; equal ones by name."""
    return sorted(scores, key=lambda columns: (-scores[columns], columns))


def spanning_tree(names: Sequence[str], scores: Mapping[Names, float]) -> list[Names]:
    """The pairs of a tree with the largest total score (Kruskal), in falling order; a forest if pairs are missing."""
    part = {name: number for number, name in enumerate(names)}
    tree: list[Names] = []
    for pair in falling(scores):
        a, b = (part[name] for name in pair)
        if a != b:
            tree.append(pair)
            part = {name: a if number == b else number for name, number in part.items()}
    return tree
