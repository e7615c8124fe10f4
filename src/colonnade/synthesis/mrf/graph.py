"""The attribute graph: triangulation, the size of the field that lives on it, and GraphCom (the paper's phase 3).

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


def triangulate(sizes: Mapping[str, int], cliques: Iterable[Sequence[str]]) -> Triangulation:
    """Greedy elimination: the next column is the one whose clique with its neighbours has the fewest cells."""
    place = {name: number for number, name in enumerate(sizes)}
    near: dict[str, set[str]] = {name: set() for name in sizes}
    for clique in cliques:
        for a, b in itertools.permutations(clique, 2):
            near[a].add(b)
    weight = {name: math.log(size) for name, size in sizes.items()}
    order: list[str] = []
    made: list[frozenset[str]] = []
    while near:
        chosen = min(near, key=lambda name: (weight[name] + sum(weight[one] for one in near[name]), place[name]))
        around = near.pop(chosen)
        for name in around:
            near[name] |= around
            near[name] -= {name, chosen}
        order.append(chosen)
        made.append(frozenset(around | {chosen}))
    maximal: list[frozenset[str]] = []
    for one in sorted(made, key=len, reverse=True):
        if not any(one <= other for other in maximal):
            maximal.append(one)
    named = [tuple(sorted(one, key=place.__getitem__)) for one in maximal]
    return Triangulation(tuple(sorted(named, key=lambda clique: [place[name] for name in clique])), tuple(order), sizes)


def within_limit(sizes: Mapping[str, int], cliques: Sequence[Sequence[str]], *, limit: int) -> Triangulation:
    """The triangulated graph, if its tables have at most `limit` cells together."""
    made = triangulate(sizes, cliques)
    if made.cells > limit:
        names = " x ".join(f"{name} ({sizes[name]})" for name in made.largest)
        raise NotEstimable(
            f"the field would need {made.cells:,} cells, above max_clique = {limit:,}, and its largest table is"
            f" {names}; raise max_clique, or give these columns fewer cells (bins, cuts, fewer categories)."
        )
    return made


def greedy_graph(
    sizes: Mapping[str, int], base: Sequence[Names], ordered: Iterable[Names], *, limit: int, most: int | None = None
) -> list[Names]:
    """Edges (or larger sets), in the order given, that keep the triangulated graph within `limit` cells."""
    within_limit(sizes, base, limit=limit)
    chosen: list[Names] = []
    for one in ordered:
        if most is not None and len(chosen) >= most:
            break
        if triangulate(sizes, [*base, *chosen, one]).cells <= limit:
            chosen.append(one)
    return chosen


def graph_com(
    sizes: Mapping[str, int],
    local: Sequence[Sequence[Names]],
    scores: Mapping[Names, float],
    *,
    limit: int,
    most: int | None = None,
) -> list[Names]:
    """GraphCom: the local graphs, joined by cross-party pairs in falling order of R-score (CSTR1), as long as the
    triangulated graph stays within `limit` (CSTR2). Returns the pairs that were linked."""
    base = [clique for graph in local for clique in graph]
    falling = sorted(scores, key=lambda pair: (-scores[pair], pair))
    return greedy_graph(sizes, base, falling, limit=limit, most=most)


def spanning_tree(names: Sequence[str], scores: Mapping[Names, float]) -> list[Names]:
    """The pairs of a tree with the largest total score (Kruskal), in falling order; a forest if pairs are missing."""
    part = {name: number for number, name in enumerate(names)}
    tree: list[Names] = []
    for pair in sorted(scores, key=lambda one: (-scores[one], one)):
        a, b = (part[name] for name in pair)
        if a != b:
            tree.append(pair)
            part = {name: a if number == b else number for name, number in part.items()}
    return tree
