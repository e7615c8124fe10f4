"""Arguments are checked against a step's signature by name and by type."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from colonnade.errors import BadArguments, UnknownStep
from colonnade.federation.party import Party
from colonnade.federation.step import Release, Step, registered
from colonnade.privacy.cost import Cost, Free
from colonnade.statistics.describe import marginal


def _function(
    me: Party,
    *,
    whole: int = 1,
    real: float = 1.0,
    text: str = "",
    flag: bool = False,
    choice: Literal["a", "b"] = "a",
    maybe: int | None = None,
    many: list[int] | None = None,
    table: dict[str, float] | None = None,
    array: NDArray[np.float64] | None = None,
    blob: bytes = b"",
) -> Release:
    return Release(None, "")


def _free(*_: Any, **__: Any) -> Cost:
    return Free("test")


STEP = Step("test", _function, _free)


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"whole": 3, "real": 2, "text": "x", "flag": True, "choice": "b", "maybe": None, "blob": b"1"},
        {"maybe": 4, "many": [1, 2], "table": {"x": 1.5}, "array": np.zeros(3)},
    ],
)
def test_matching_arguments_pass(good: dict[str, Any]) -> None:
    assert STEP.check(good) == good


@pytest.mark.parametrize(
    "bad",
    [
        {"whole": 1.5},
        {"whole": True},
        {"real": "1"},
        {"real": False},
        {"text": 1},
        {"flag": 1},
        {"choice": "c"},
        {"choice": ["a"]},
        {"maybe": "x"},
        {"many": [1, "2"]},
        {"many": (1,)},
        {"table": {"x": "y"}},
        {"array": [1.0]},
        {"blob": "text"},
        {"me": 1},
        {"unknown": 1},
    ],
)
def test_others_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadArguments, match="test"):
        STEP.check(bad)


def test_a_constant_cost_is_a_value() -> None:
    assert Step("test", _function, Free("always")).price(None, {}) == Free("always")  # type: ignore[arg-type]


def test_only_registered_names_exist() -> None:
    assert registered("statistics.describe.marginal") is marginal
    for name in ("os.system", "builtins.eval", "statistics.describe.Describe", ""):
        with pytest.raises(UnknownStep, match="same version"):
            registered(name)
