"""The verbs are what the methods declare: same options, same defaults, same words, for every method of the catalogue.

Oracle: the class itself. What a verb reads from text gives the same `options()` as the class made with the values.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import colonnade as co
from colonnade.catalogue import CATALOGUE
from colonnade.cli import verbs
from colonnade.cli.main import app
from colonnade.codec import bare
from colonnade.errors import BadArguments
from colonnade.federation import spelling
from colonnade.federation.options import Declared, Option

METHODS = sorted(CATALOGUE.names)
REQUIRED: dict[str, Any] = {
    "response": "roa",
    "capacity": {"credit": 3, "court": 4},
    "tables": (("roa", "region"), ("scale",)),
    "polynomial": co.Polynomial.of([(0.5, {"roa": 2}), (-1.0, {"roa": 1, "capital": 1})]),
}
"""Values of options that have no default, by name; others are drawn from their type."""


def words(name: str) -> tuple[str, ...]:
    return ("papers", name) if name in CATALOGUE.papers() else (name,)


def command(name: str) -> Any:
    top: Any = typer.main.get_command(app)
    context = typer.Context(top)
    if name in CATALOGUE.papers():
        top = top.get_command(context, "papers")
    return top.get_command(context, name)


def an_example(declared: Declared) -> Any:
    """A value of a required option."""
    if declared.name in REQUIRED:
        return REQUIRED[declared.name]
    return example_of(declared.hint, declared.option)


def example_of(hint: Any, option: Option) -> Any:
    kind = spelling.members(hint)[0]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return inner[0]
    if origin in (tuple, list):
        return (example_of(inner[0], option),)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {example_of(inner[0], option): example_of(inner[1], option)}
    if kind in (int, float):
        low = max(option.least, option.above)
        return kind(low + 1) if math.isfinite(low) else kind(1)
    if kind is str:
        return "roa"
    if kind is bool:
        return True
    raise AssertionError(f"add an example of {kind} to REQUIRED")


def minimal(name: str) -> dict[str, Any]:
    declared = CATALOGUE.load(name).declared()
    required = {option.name: an_example(option) for option in declared.values() if option.default is MISSING}
    return required or {name: an_example(option) for name, option in declared.items() if name == "response"}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """What verbs would run: (class, options, common options)."""
    calls: list[tuple[Any, dict[str, Any], dict[str, Any]]] = []
    monkeypatch.setattr(verbs, "run_verb", lambda cls, options, **common: calls.append((cls, options, common)))
    return calls


# --- every method of the catalogue --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_verb_class_and_catalogue_say_one_purpose(name: str) -> None:
    """The console shows it too: tests/e2e/test_console.py."""
    purpose = CATALOGUE.load(name).purpose()
    assert CATALOGUE.entry(name).purpose() == purpose
    assert purpose.endswith(".")
    assert len(purpose) > 20
    assert purpose in " ".join(CliRunner().invoke(app, [*words(name), "--help"]).output.split())
    listed = CliRunner().invoke(app, [*words(name)[:-1], "--help"]).output
    assert purpose in " ".join(listed.split())


@pytest.mark.parametrize("name", METHODS)
def test_every_option_has_a_flag_with_its_default(name: str) -> None:
    method = CATALOGUE.load(name)
    declared = method.declared()
    flags = {parameter.name: parameter for parameter in command(name).params}
    assert set(declared) <= set(flags)
    off = {"no_verify"} if "verify" in declared and declared["verify"].hint is not bool else set()
    assert set(flags) - set(declared) == {"federation_", *verbs.COMMON, *off}
    spelled = [text for parameter in flags.values() for text in (*parameter.opts, *parameter.secondary_opts)]
    assert len(set(spelled)) == len(spelled), "two options share a flag"
    for option in declared.values():
        parameter = flags[option.name]
        assert parameter.opts[0] == option.flag
        assert option.option.help, f"{option.name} has no help"
        assert option.option.help in parameter.help
        assert parameter.required == (option.default is MISSING and not method.makes_cohort)
        assert parameter.default in (None, []), "what is not given is left to the class"
        if isinstance(option.default, int | float | str) and option.default != "" and option.hint is not bool:
            assert f"[default: {spelling.spell(option.default)[0]}]" in parameter.help


@pytest.mark.parametrize(
    ("flags", "expected"),
    [((), None), (("--verify", "full"), "full"), (("--verify", "false"), False), (("--no-verify",), False)],
)
def test_verification_is_chosen_by_a_word_or_turned_off(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected: object
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(verbs, "run_verb", lambda method, options, **common: given.append(options.get("verify")))
    answer = CliRunner().invoke(app, ["moments", *flags])
    assert answer.exit_code == 0, answer.output
    assert given == [expected]


def test_bounds_and_what_an_option_goes_with_are_written_for_people() -> None:
    def shown(**stated: Any) -> str:
        return verbs.help_of(Declared("x", int, Option("Help.", **stated), None))

    assert shown() == "Help."
    assert shown(least=1, most=2**26) == "Help. At least 1 and at most 67,108,864."
    assert shown(above=0, below=0.1) == "Help. Above 0 and below 0.1."
    assert shown(only={"epsilon": (None,)}) == "Help. Only without --epsilon."
    assert shown(only={"n_folds": (2, 3, None)}) == "Help. Only with --n-folds 2 or 3 or without --n-folds."


@pytest.mark.parametrize("name", METHODS)
def test_a_verb_with_nothing_but_what_it_must_have_is_the_class_with_that(
    name: str, called: list[tuple[Any, dict[str, Any], dict[str, Any]]]
) -> None:
    method, given_options = CATALOGUE.load(name), minimal(name)
    spelled = [
        text
        for option, value in given_options.items()
        for each in spelling.spell(value)
        for text in (method.declared()[option].flag, each)
    ]
    done = CliRunner().invoke(app, [*words(name), "-f", "federation.toml", *spelled], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    ((cls, options, common),) = called
    assert cls is method
    assert cls.from_options(options).options() == method(**given_options).options()
    assert common["federation"] == Path("federation.toml")


@pytest.mark.parametrize("name", METHODS)
def test_every_default_and_every_choice_can_be_written_on_the_command_line(name: str) -> None:
    for option in CATALOGUE.load(name).declared().values():
        values = [] if option.default is MISSING or option.hint is bool else [option.default]
        for kind in spelling.members(option.hint):
            values += list(typing.get_args(kind)) if typing.get_origin(kind) is Literal else []
        for value in values:
            if value != ():
                given_text = spelling.spell(value)
                read = spelling.read(option, given_text if spelling.repeated(option.hint) else given_text[0])
                assert read == value
                assert type(read) is type(value) or isinstance(value, Mapping)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_assumes_about_missing_data(name: str) -> None:
    """That the sentence is true is tested where the method is."""
    sentence = CATALOGUE.load(name)(**minimal(name)).missing_data()
    assert sentence.endswith(".")
    assert sentence[0].isupper()


# --- options as text ----------------------------------------------------------------------------------------------

NAMES = st.text("abcdefgh_0123", min_size=1, max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32).map(float)
SHAPES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(10**9), 10**9),
    float: NUMBERS,
    str: NAMES,
    int | None: st.none() | st.integers(),
    float | None: st.none() | NUMBERS,
    Literal["a", "b", 3]: st.sampled_from(["a", "b", 3]),
    Literal["none", "all"]: st.sampled_from(["none", "all"]),
    tuple[str, ...]: st.lists(st.text('ab ,"é', min_size=1).map(str.strip).filter(bool), min_size=1).map(tuple),
    tuple[float, ...] | None: st.none() | st.lists(NUMBERS, min_size=1, max_size=4).map(tuple),
    tuple[int, float]: st.tuples(st.integers(), NUMBERS),
    tuple[tuple[str, ...], ...]: st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), min_size=1).map(tuple),
    Mapping[str, float]: st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=3),
    Mapping[str, float] | float | None: st.none() | NUMBERS | st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=3),
}


@pytest.mark.parametrize("hint", SHAPES, ids=str)
def test_what_is_spelled_is_read_back(hint: Any) -> None:
    option = Declared("x", bare(hint), Option("help"), None)

    @given(SHAPES[hint])
    @settings(max_examples=60, deadline=None)
    def check(value: Any) -> None:
        texts = spelling.spell(value)
        read = spelling.read(option, texts if spelling.repeated(hint) else texts[0])
        assert read == value
        assert type(read) is type(value)

    check()


@pytest.mark.parametrize(
    ("hint", "texts", "value"),
    [
        (tuple[str, ...], ["a, b", "c"], ("a", "b", "c")),
        (tuple[str, ...], ['a,"turnover, EUR",5" disk'], ("a", "turnover, EUR", '5" disk')),
        (tuple[str, ...], ['["a,b"]'], ["a,b"]),
        (tuple[tuple[str, ...], ...], ["age,sector", "sector"], (("age", "sector"), ("sector",))),
        (Mapping[str, float], ["bank=1.5", "a=b=2"], {"bank": 1.5, "a=b": 2.0}),
        (Mapping[str, float] | float, ["0.87"], 0.87),
        (str | tuple[str, ...], ["a"], "a"),
        (str | tuple[str, ...], ["a,b"], ("a", "b")),
        (bool | None, ["true"], True),
        (dict[str, Any], ['{"a": [1]}'], {"a": [1]}),
    ],
    ids=str,
)
def test_what_people_write(hint: Any, texts: list[str], value: Any) -> None:
    assert spelling.read(Declared("x", hint, Option("help"), None), texts) == value


@pytest.mark.parametrize(
    ("hint", "form", "text", "says"),
    [
        (int, "", "many", "--x 'many' is not INTEGER"),
        (Literal["a", "b"], "", "c", "--x 'c' is not a|b"),
        (Mapping[str, float] | None, "PARTY=PART", "half", "--x 'half' is not PARTY=PART"),
        (tuple[int, ...], "", "1,two", "--x '1,two' is not INTEGER,..."),
        (float | None, "", "nothing", "--x 'nothing' is not NUMBER"),
    ],
    ids=str,
)
def test_what_states_no_value_is_refused_with_what_one_looks_like(hint: Any, form: str, text: str, says: str) -> None:
    option = Declared("x", hint, Option("help", form=form), None)
    with pytest.raises(BadArguments) as refusal:
        spelling.read(option, [text] if spelling.repeated(hint) else text)
    assert says in str(refusal.value)


# --- a method from elsewhere --------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Borrowed(CATALOGUE.load("describe")):  # type: ignore[misc]
    """Count what another package counts, with noise."""

    name: ClassVar[str] = "borrowed"
    twice: Annotated[bool, Option("Count everything twice.")] = False
    weights: Annotated[Mapping[str, float] | None, Option("Of each party.", form="PARTY=WEIGHT")] = None
    cells: Annotated[int, Option("How many.", least=1, only={"twice": (True,)})] = 3


def test_a_plug_in_has_a_verb_of_its_own(
    monkeypatch: pytest.MonkeyPatch, called: list[tuple[Any, dict[str, Any], dict[str, Any]]]
) -> None:
    from colonnade.federation import catalogue

    entry = catalogue.Entry("borrowed", __name__, "Borrowed", "elsewhere")
    monkeypatch.setattr(catalogue, "_plugged_in", lambda: {"borrowed": entry})
    monkeypatch.setattr(catalogue.Entry, "load", lambda self: Borrowed)
    monkeypatch.setattr(catalogue.Entry, "purpose", lambda self: Borrowed.purpose())
    assert "Count what another package counts, with noise." in " ".join(CliRunner().invoke(app, ["-h"]).output.split())
    said = " ".join(CliRunner().invoke(app, ["borrowed", "-h"]).output.split())
    for part in ("--twice / --no-twice", "--weights PARTY=WEIGHT", "At least 1. Only with --twice True. [default: 3]"):
        assert part in said
    arguments = ["borrowed", "-f", "f.toml", "--twice", "--weights", "a=1", "--weights", "b=2", "--cells", "7"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    ((_, options, _),) = called
    assert options == {"twice": True, "weights": {"a": 1.0, "b": 2.0}, "cells": 7}
