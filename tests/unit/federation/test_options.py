"""Options are declared once: type, bounds and meaning are checked, and they go to data and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from sklearn.base import clone

from colonnade.errors import BadArguments, BadPrivacyParameter, UnknownColumn
from colonnade.federation.facts import PublicFacts
from colonnade.federation.method import Method, Procedure, Result, method_class
from colonnade.federation.options import ColumnNames, Epsilon, Option, Response
from colonnade.federation.roster import Roster


@method_class
class Sample(Method[Result]):
    """Draw a sample."""

    name: ClassVar[str] = "sample"

    response: Response
    size: Annotated[int, Option("How many.", least=1, most=10)] = 5
    share: Annotated[float, Option("Which share.", above=0, below=1)] = 0.5
    weights: Annotated[tuple[float, ...], Option("One each.", least=0)] = ()
    limits: Annotated[Mapping[str, float] | None, Option("By name.", above=0)] = None
    scale: Annotated[float, Option("Without bounds.")] = 1.0
    epsilon: Annotated[Epsilon, Option("Said in other words.")] = 1.0
    model: Annotated[Literal["flat", "deep"], Option("Which model.")] = "flat"
    layers: Annotated[int, Option("Of a deep model.", only={"model": ("deep",)})] = 2
    columns: ColumnNames = None
    pairs: Annotated[tuple[tuple[str, ...], ...] | None, Option("Lists of columns.", reads="named")] = None

    def check(self) -> None:
        if self.size == 7 and self.share == 0.7:
            raise BadArguments("size 7 and share 0.7 do not go together.")

    def missing_data(self) -> str:
        return "None is assumed."

    def procedure(self, facts: PublicFacts, roster: Roster) -> Procedure[Result]:
        raise NotImplementedError


def test_values_are_converted_once() -> None:
    made = Sample(response="y", size=np.int64(3), weights=[1, 2], limits={"a": 1})  # type: ignore[arg-type]
    assert made.weights == (1.0, 2.0)
    assert type(made.size) is int
    assert made.limits == {"a": 1.0}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"size": 0}, "size must be at least 1 and at most 10, not 0"),
        ({"size": 11}, "at most 10"),
        ({"size": 2.0}, "size must be an integer"),
        ({"size": True}, "size must be an integer"),
        ({"share": 0.0}, "share must be above 0 and below 1"),
        ({"share": 1}, "below 1"),
        ({"share": float("nan")}, "share must be above 0"),
        ({"weights": (1.0, -1.0)}, "weights must be at least 0, not -1.0"),
        ({"limits": {"a": 1.0, "b": 0}}, "limits must be above 0, not 0.0"),
        ({"scale": float("inf")}, "scale must be finite, not inf"),
        ({"model": "wide"}, "model must be 'flat' or 'deep', not 'wide'"),
        ({"columns": "age"}, r"columns is a list; write \['age'\]"),
        ({"layers": 3}, "layers has no meaning with model='flat'; it belongs to model='deep': leave it out"),
        ({"size": 7, "share": 0.7}, "do not go together"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BadArguments, match=told):
        Sample(response="y", **options)
    with pytest.raises(BadArguments, match=told):
        Sample.from_options({"response": "y", **options})


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf")])
def test_an_alias_brings_its_check_also_where_it_is_annotated_again(epsilon: float) -> None:
    assert Sample.declared()["epsilon"].option.help == "Said in other words."
    with pytest.raises(BadPrivacyParameter, match="epsilon must be positive and finite"):
        Sample(response="y", epsilon=epsilon)


def test_columns_may_be_left_out() -> None:
    method = Sample(response="y", columns=("!b",), pairs=(("d", "e"),))
    assert method.reads() is None
    assert method.choosing("abcdey").columns == ("a", "c"), "what other options name is theirs"
    assert method.options()["columns"] == ["!b"], "each party chooses for itself"
    with pytest.raises(UnknownColumn, match=r"no party has a column 'b' to leave out"):
        method.choosing("acy")
    with pytest.raises(BadArguments, match="not both"):
        Sample(response="y", columns=("a", "!b")).choosing("aby")
    named = Sample(response="y", columns=("a",))
    assert named.choosing("aby") is named


def test_an_option_of_one_model_may_be_set_with_that_model() -> None:
    assert Sample(response="y", model="deep", layers=3).layers == 3
    assert Sample(response="y", layers=2).layers == 2, "its default is no statement"


def test_as_scikit_learn_has_them() -> None:
    made = Sample(response="y", weights=(1.0, 2.0), model="deep", layers=4)
    copy = clone(made)
    assert copy is not made
    assert copy.get_params() == made.get_params()
    assert copy.set_params(size=2, layers=1) is copy
    assert (copy.size, copy.layers, made.size) == (2, 1, 5)


@pytest.mark.parametrize("wrong", [{"size": 1, "share": 2.0}, {"size": 1, "sise": 3}, {"size": 7, "share": 0.7}])
def test_set_params_changes_all_or_none(wrong: dict[str, Any]) -> None:
    made = Sample(response="y")
    before = made.get_params()
    with pytest.raises(BadArguments):
        made.set_params(**wrong)
    assert made.get_params() == before


def test_options_go_to_data_and_back() -> None:
    made = Sample(response="y", weights=(1.0,), limits={"a": 2.0}, columns=("x", "z"))
    stored = made.options()
    assert stored["columns"] == ["x", "z"]
    assert Sample.from_options(stored) == made


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"response": "y", "colums": ["a"]}, "Sample has no option 'colums'; .* Did you mean 'columns'"),
        ({}, "Sample needs the option 'response'"),
        ([("response", "y")], "are a table"),
    ],
)
def test_unknown_and_missing_options_are_named(options: Any, told: str) -> None:
    with pytest.raises(BadArguments, match=told):
        Sample.from_options(options)


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({"columns": ("a", "b")}, ("y", "a", "b")),
        ({}, None),
        ({"columns": ("a",), "pairs": (("a", "c"), ("d",))}, ("y", "a", "c", "d")),
        ({"columns": ("a",), "model": "deep"}, ("y", "a")),
    ],
)
def test_which_columns_a_job_reads(options: dict[str, Any], read: tuple[str, ...] | None) -> None:
    """By the options that are declared to name columns, whatever other texts the options hold."""
    assert Sample(response="y", **options).reads() == read
