"""Arguments are checked against a step's signature by name and by type."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

import colonnade
from colonnade.errors import BadArguments, UnknownStep
from colonnade.federation.party import Party
from colonnade.federation.step import BUILT_IN, Release, Step, _registry, registered
from colonnade.privacy.cost import Cost, Free


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


def test_only_registered_names_exist() -> None:
    assert registered("statistics.describe.marginal").name == "statistics.describe.marginal"
    for name in ("os.system", "builtins.eval", "statistics.describe.Describe", ""):
        with pytest.raises(UnknownStep, match="same version"):
            registered(name)


def test_every_step_of_the_package_is_found_by_its_name() -> None:
    """A party imports the module that a step's name states, if it is on the list of built-in modules."""
    for module in pkgutil.walk_packages(colonnade.__path__, "colonnade."):
        if not module.name.startswith("colonnade.cli"):
            importlib.import_module(module.name)
    ours = [one for one in _registry.values() if one.function.__module__.startswith("colonnade.")]
    assert len(ours) > 4
    for one in ours:
        assert one.function.__module__ in BUILT_IN, one.name
        assert registered(one.name) is one
