"""What a cost says under `replace` covers two records that are as far apart as records can be.

Costs are stated for `zero-out`, with a factor for `replace`. Here a record is replaced by its opposite, with the
product's own counting, quantisation and clipping, and the distance that it moves the exact statistic is compared with
what the accountants are told. A factor that is too small shows: the worst pairs reach the bound, or pass a smaller one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.federation.step import Public
from colonnade.models.linear.private import own_moments, own_sensitivity
from colonnade.models.linear.weighed import WeighedLayout
from colonnade.models.private_scales import block_norms, cells_of_lengths
from colonnade.privacy.cost import Cost
from colonnade.privacy.mechanisms import under
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.adaptive import Axis, release
from colonnade.statistics.cells import cells
from colonnade.statistics.describe import DEPTH, marginal, presence_count
from colonnade.statistics.features import quantize
from colonnade.statistics.moments import MomentsLayout
from colonnade.statistics.quantiles import dyadic_counts
from colonnade.synthesis.copula.scores import column_rounds, count, release_marginals
from support.small import COLUMNS

ROSTER = Roster(
    members=tuple(Member(name=name, organisation=name, public_key=name.encode() * 32) for name in "abc"),
    committee=("a", "b", "c"),
)
FACTS = PublicFacts(
    n=50,
    columns={
        "a": COLUMNS.select(["age", "visits"]),
        "b": COLUMNS.select(["sued"]),
        "c": COLUMNS.select(["sector", "rating"]),
    },
)
PUBLIC = Public(job="j", party="a", facts=FACTS, roster=ROSTER)
RANDOM = SimulatedRandomness(1)


def covered(cost: Cost, sd: float, moved: NDArray[Any]) -> None:
    """Gaussian noise of deviation `sd` on a statistic that the replaced record moved so."""
    stated = sum(leaf.count / leaf.number("noise_multiplier") ** 2 for leaf in under(cost, "replace").leaves())
    reached = float(np.sum(np.asarray(moved, dtype=np.float64) ** 2)) / sd**2
    assert reached <= stated * (1 + 1e-9)
    assert reached >= stated * 0.999, "and the pair is a worst one"


@pytest.mark.parametrize("shape", ["histogram", "tree"])
def test_marginals(shape: str) -> None:
    """An adaptive one has its price: `test_marginals_of_the_copula` counts what a record moves there."""
    levels, level = (DEPTH, 3.0) if shape == "tree" else (1, 3.0)
    leaves = cells(COLUMNS["age"], bins=2**DEPTH)
    before, after = leaves.count(np.array([1.0, 50.0])), leaves.count(np.array([99.0, 50.0]))
    moved = dyadic_counts(after) - dyadic_counts(before) if shape == "tree" else after - before
    request = {"column": "age", "shape": shape, "bins": 10, "level": level}
    covered(marginal.price(PUBLIC, {**request, "noise": "gaussian"}), level * math.sqrt(levels), moved)
    laplace = under(marginal.price(PUBLIC, {**request, "noise": "laplace"}), "replace")
    assert laplace.number("epsilon") >= float(np.abs(moved).sum()) * level / levels * (1 - 1e-12)


def test_presence_and_lengths() -> None:
    """Replaced by nothing a record leaves a count; no replacement moves one count by more."""
    covered(presence_count.price(PUBLIC, {"noise": "gaussian", "level": 2.0}), 2.0, np.ones(1))
    rows = np.array([[0.0, 0.0]]), np.array([[1.0, 1.0]])
    moved = cells_of_lengths(rows[1]) - cells_of_lengths(rows[0])
    covered(block_norms.price(PUBLIC, {"layout": {}, "level": 5.0}), 5.0, moved)


@pytest.mark.parametrize(("column", "ends"), [("age", (0.0, 100.0)), ("visits", (0.0, 9.0))])
def test_marginals_of_the_copula(column: str, ends: tuple[float, float]) -> None:
    """A column in rounds: the cells of a round are the same for both neighbours, given the rounds before."""
    sigma, rounds = 7.0, 4
    cost = release_marginals.price(PUBLIC, {"label": "x", "columns": [column], "sigma": sigma, "rounds": rounds})
    if column == "visits":
        before, after = (count(COLUMNS[column], np.array([end])) for end in ends)
        covered(cost, sigma, after - before)
        return
    axis, noise = Axis.of(COLUMNS[column]), column_rounds(sigma, rounds)
    others = np.repeat(ends, 400)  # so many at both ends that every round has both apart
    released = release(lambda edges: axis.count(others, edges), axis, n=FACTS.n, rounds=noise, randomness=RANDOM)
    moved = [axis.count(np.array([end]), turn.edges) for turn in released for end in ends]
    covered(cost, noise.scale, np.concatenate(moved[1::2]) - np.concatenate(moved[::2]))


def triangle(row: NDArray[np.int64]) -> NDArray[np.float64]:
    whole = np.outer(row, row).astype(np.float64)
    return whole[np.triu_indices(len(row))]


def quantised(values: list[float], gamma: int, norm: float) -> NDArray[np.int64]:
    return quantize(np.array([values]), gamma=gamma, clip=norm, entry=1.0, randomness=RANDOM)[0]


def test_moments_of_the_response_holder() -> None:
    """(1, x) and (1, -x) share their squares; the products with the constant turn. 2 gamma |x| passes the bound without
    a factor, and stays below the one with sqrt(2)."""
    gamma, norm, level = 2**10, 1.0, 4.0
    row = quantised([0.8, 0.6], gamma, norm)
    moved = triangle(np.array([gamma, *row])) - triangle(np.array([gamma, *-row]))
    layout = WeighedLayout(
        facts=FACTS, roster=ROSTER, names=("age", "visits"), gamma=gamma, clip={"a": norm}, levels={"own": level}
    )
    assert layout.head_norm == math.sqrt(1 + norm**2)
    (cost,) = own_moments.price(PUBLIC, {"layout": layout.to_dict()}).leaves()
    sd = level * own_sensitivity(gamma, layout.head_norm)
    stated = 1 / under(cost, "replace").number("noise_multiplier")
    assert 1 / cost.number("noise_multiplier") < float(np.linalg.norm(moved)) / sd <= stated


@pytest.mark.parametrize("presence", ["ignore", "known"])
def test_moments_on_shares(presence: Any) -> None:
    """Short rows: the products with the constant are all there is, and they turn. With presence ignored the constant's
    own square is public, so only the triangle inequality is left."""
    norm = 0.05
    layout = MomentsLayout(
        facts=FACTS,
        roster=ROSTER,
        names=("age", "visits"),
        presence=presence,
        gamma=2**12,
        clip={"a": norm},
        mu=10**9,
    )
    cost = next(leaf for leaf in layout.cost(PUBLIC, "client").leaves() if not leaf.unbounded)
    row = quantised([norm * 0.8, norm * 0.6], layout.gamma, norm)
    here, there = (triangle(np.array([layout.gamma, *one])) for one in (row, -row))
    told = dict(under(cost, "replace").parameters)
    moved = here - there
    assert np.linalg.norm(moved) <= float(told["replaced"]) * float(told["delta_2"])
    assert np.abs(moved).sum() <= float(told["delta_1"])
    if presence == "ignore":
        assert np.linalg.norm(moved) > math.sqrt(2) * float(told["delta_2"]) * 0.999, "sqrt(2) would not do"
