"""The attribute graph. Oracles: networkx's chordality and maximal cliques, and a spanning tree by enumeration."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.errors import NotEstimable
from colonnade.synthesis.field.graph import falling, greedy_graph, spanning_tree, triangulate, within_limit

NAMES = tuple("abcdefg")
PAIRS = list(itertools.combinations(NAMES, 2))
sizes_of = st.lists(st.integers(1, 6), min_size=7, max_size=7).map(lambda drawn: dict(zip(NAMES, drawn, strict=True)))


@settings(max_examples=60, deadline=None)
@given(sizes_of, st.sets(st.sampled_from(PAIRS)))
def test_a_triangulation_is_chordal_and_lists_its_maximal_cliques(sizes, edges) -> None:
    made = triangulate(sizes, edges)
    graph = nx.Graph()
    graph.add_nodes_from(NAMES)
    graph.add_edges_from(pair for clique in made.cliques for pair in itertools.combinations(clique, 2))
    assert all(graph.has_edge(*edge) for edge in edges)
    assert nx.is_chordal(graph)
    assert {frozenset(one) for one in made.cliques} == {frozenset(one) for one in nx.find_cliques(graph)}
    assert made.cells == sum(math.prod(sizes[name] for name in clique) for clique in made.cliques)


@settings(max_examples=60, deadline=None)
@given(sizes_of, st.sets(st.sampled_from(PAIRS)))
def test_the_order_is_a_perfect_elimination_order(sizes, edges) -> None:
    """A column and its neighbours that come later lie in one clique: what sampling rests on."""
    made = triangulate(sizes, edges)
    for at, name in enumerate(made.order):
        later = set(made.order[at + 1 :])
        around = {one for clique in made.cliques if name in clique for one in clique} & later
        assert made.home({name, *around}) is not None


def test_the_order_is_the_same_in_every_process() -> None:
    """In a complete graph every column ties with every other. The order of a set must not break the ties: it differs
    from process to process, and a resumed job would choose other tables."""
    sizes = {"age": 16, "visits": 10, "sued": 2, "sector": 3, "rating": 3}
    program = (
        "import itertools; from colonnade.synthesis.field.graph import triangulate;"
        f"print(triangulate({sizes}, itertools.combinations({sizes}, 2)).order)"
    )
    orders = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(orders) == 1


def test_a_limit_that_cannot_be_met_names_the_columns() -> None:
    sizes = {"town": 400, "street": 500, "sex": 2}
    with pytest.raises(NotEstimable, match=r"town \(400\) x street \(500\)"):
        within_limit(sizes, [("town", "street")], limit=10_000)
    with pytest.raises(NotEstimable, match="street"):
        greedy_graph(sizes, [], [], limit=300)


def test_edges_are_added_as_long_as_the_limit_holds() -> None:
    sizes = dict.fromkeys("abcd", 10)
    edges = greedy_graph(sizes, [], [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")], limit=310)
    assert edges == [("a", "b"), ("b", "c"), ("c", "d")], "a-b-c as a triangle alone needs 1,000 cells"


def test_high_scores_are_linked_first() -> None:
    sizes = dict.fromkeys("abcd", 10)
    local = [("a", "b"), ("c", "d")]
    scores = {("a", "c"): 0.1, ("b", "c"): 0.3, ("a", "d"): 0.2, ("b", "d"): 0.05}
    assert greedy_graph(sizes, local, falling(scores), limit=300) == [("b", "c")]
    assert greedy_graph(sizes, local, falling(scores), limit=1_000_000)[:2] == [("b", "c"), ("a", "d")]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=10, max_size=10))
def test_the_spanning_tree_has_the_largest_total(drawn) -> None:
    names = "abcde"
    scores = dict(zip(itertools.combinations(names, 2), map(float, drawn), strict=True))
    tree = spanning_tree(names, scores)
    best = max(
        sum(scores[edge] for edge in edges)
        for edges in itertools.combinations(scores, 4)
        if nx.is_connected(nx.Graph([(name, name) for name in names] + list(edges)))
    )
    assert len(tree) == 4
    assert sum(scores[edge] for edge in tree) == best
