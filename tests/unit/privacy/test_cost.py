"""Costs as data. Oracle: hand-written values and the inverse property of to_dict / from_dict."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.errors import BadPrivacyParameter, CannotAccount
from colonnade.privacy.cost import (
    Cost,
    Free,
    Gaussian,
    GaussianCell,
    Laplace,
    RandomizedResponse,
    Unbounded,
    compose,
)

SINGLE = st.one_of(
    st.builds(Laplace, st.floats(1e-6, 50)),
    st.builds(Gaussian, st.floats(1e-3, 1e6), unit=st.sampled_from(["record", "block"]), count=st.integers(0, 9)),
    st.builds(GaussianCell, st.floats(1e-3, 1e6), st.integers(1, 50), joint=st.none() | st.just("gram-1")),
    st.builds(RandomizedResponse, st.floats(1e-6, 50), st.integers(2, 99), relation=st.just("replace")),
    st.builds(Unbounded, st.sampled_from(["presence", "predictor"]), st.just("who is where")),
    st.builds(Free, st.just("public")),
)
COSTS = st.recursive(SINGLE, lambda inner: st.lists(inner, max_size=3).map(compose), max_leaves=6)


@given(COSTS)
def test_json_brings_a_cost_back(cost: Cost) -> None:
    assert Cost.from_dict(json.loads(json.dumps(cost.to_dict()))) == cost


@given(COSTS, st.integers(0, 4))
def test_leaves_carry_the_product_of_the_counts(cost: Cost, times: int) -> None:
    def total(of: Cost) -> int:  # brute force over the tree
        return of.count * (sum(map(total, of.parts)) if of.mechanism == "composed" else 1)

    assert sum(leaf.count for leaf in cost.times(times).leaves()) == times * total(cost)
    assert all(leaf.count > 0 for leaf in cost.leaves())


def test_compose_merges_equal_costs_and_counts_joint_ones_once() -> None:
    plain, joint = Laplace(0.5), Gaussian(3.0, joint="gram-7")
    assert compose([plain, plain.times(2)]) == plain.times(3)
    assert compose([joint, joint]) == joint
    both = compose([plain, joint, plain, joint])
    assert {(part.mechanism, part.count) for part in both.parts} == {("laplace", 2), ("gaussian", 1)}


def test_compose_takes_unit_and_relation_from_parts_that_agree() -> None:
    blocks = [Laplace(1.0, unit="block", relation="replace"), Gaussian(1.0, unit="block", relation="replace")]
    assert (compose(blocks).unit, compose(blocks).relation) == ("block", "replace")
    assert compose([*blocks, Laplace(1.0)]).unit == "record"
    assert compose(blocks, unit="record").unit == "record"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Laplace(0.0),
        lambda: Laplace(float("nan")),
        lambda: Gaussian(float("inf")),
        lambda: GaussianCell(2.0, 0),
        lambda: GaussianCell(2.0, 1.5),  # type: ignore[arg-type]
        lambda: RandomizedResponse(1.0, 1),
        lambda: Laplace(1.0, unit="person"),
        lambda: Laplace(1.0, relation="add"),
        lambda: Laplace(1.0, replace_factor=2.5),
        lambda: Laplace(1.0, count=-1),
        lambda: Cost(mechanism="free", parts=(Laplace(1.0),)),  # parts that no accountant would see
        lambda: Cost(mechanism="laplace", parameters=(("epsilon", 9.0), ("epsilon", 0.1))),
    ],
)
def test_impossible_costs_are_refused(wrong: object) -> None:
    with pytest.raises(BadPrivacyParameter):
        wrong()  # type: ignore[operator]


def test_a_missing_or_wrong_parameter_cannot_be_accounted() -> None:
    with pytest.raises(CannotAccount, match="epsilon"):
        Cost(mechanism="laplace").number("epsilon")
    with pytest.raises(CannotAccount, match="number"):
        Unbounded("presence", "who is where").number("name")


def test_unbounded_is_seen_through_composition_unless_it_never_happens() -> None:
    hidden = compose([Laplace(1.0), compose([Unbounded("presence", "who"), Laplace(2.0)])])
    assert hidden.unbounded
    assert not hidden.times(0).unbounded
