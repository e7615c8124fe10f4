"""`Federation.local` names every option, so that completion and type checkers know them."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields

import pytest

from colonnade.federation.config import Spec
from colonnade.federation.coordinator import Federation


def test_every_option_is_a_parameter_with_its_default() -> None:
    parameters = inspect.signature(Federation.local).parameters
    assert all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    stated = {field.name: field for field in fields(Spec)}
    assert set(parameters) == {*stated, "runs"}
    for name, field in stated.items():
        if field.default is not MISSING:
            assert parameters[name].default == field.default, name


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(TypeError, match="alow"):
        Federation.local({}, key="id", columns="columns.toml", alow=["presence"])  # type: ignore[call-arg]
