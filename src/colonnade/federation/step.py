"""Steps: the functions that run at a party, and releases: the only thing that they may return.

    @step(cost=presence_cost)
    def presence_count(me: Party, *, epsilon: float) -> Release: ...

Code never travels. A request names a step; the party runs the function that its **own installation** registered
under that name, after checking the arguments against the function's signature. The cost is a value, or a function of
the arguments and of what is public (`Public`), so it is known before any data is touched.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from colonnade.codec import bare, convert
from colonnade.errors import BadArguments, UnknownStep
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.privacy.cost import Cost


@dataclass(frozen=True)
class Size:
    """The most that a whole number may be by which a step takes memory or time, `Annotated[int, Size(10_000)]`; also
    for each value of a table of such numbers. It is checked before the step is priced, and so before any debit."""

    most: int
    least: int = 0

    def check(self, value: Any, where: str) -> None:
        for number in value.values() if isinstance(value, Mapping) else (value,):
            if number is not None and not self.least <= number <= self.most:
                raise BadArguments(f"{where} must be from {self.least:,} to {self.most:,}, not {number!r}.")


@dataclass(frozen=True)
class Release:
    """A value that may leave, and one sentence that says what it discloses."""

    value: Any
    discloses: str


@dataclass(frozen=True, kw_only=True)
class Public:
    """What a cost may depend on besides the arguments."""

    job: str
    party: str
    facts: PublicFacts
    roster: Roster
    packages: tuple[str, ...] | None = None
    """Those beyond Colonnade's own that the party runs; None where its own installation makes a plan."""


@dataclass(frozen=True)
class Step:
    """A registered function. Call it by asking a federation."""

    name: str
    function: Callable[..., Release]
    cost: Cost | Callable[..., Cost]

    @property
    def module(self) -> str:
        return self.function.__module__

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, if they match the signature by name and type; those of a dataclass as such."""
        hints, wanted = _signature(self.function)
        unknown = sorted(set(arguments) - set(wanted))
        needed = [name for name, parameter in wanted.items() if parameter.default is inspect.Parameter.empty]
        absent = sorted(set(needed) - set(arguments))
        if unknown or absent:
            raise BadArguments(
                f"step {self.name} takes {', '.join(wanted) or 'no arguments'}; unknown: {unknown}, absent: {absent}."
            )
        checked = dict(arguments)
        for name, value in arguments.items():
            hint, where = hints.get(name, Any), f"argument {name!r} of step {self.name}"
            converted = convert(value, bare(hint), where, exact=True)
            if is_dataclass(converted):
                checked[name] = converted
            for size in getattr(hint, "__metadata__", ()):
                if isinstance(size, Size):
                    size.check(value, where)
        return checked

    def price(self, public: Public, arguments: Mapping[str, Any]) -> Cost:
        """What a request with these arguments costs at `public.party`."""
        return self.cost if isinstance(self.cost, Cost) else self.cost(public, **arguments)


@functools.cache
def _signature(function: Callable[..., Release]) -> tuple[dict[str, Any], dict[str, inspect.Parameter]]:
    """The types and the keyword arguments of a step; reading them takes longer than many a step."""
    parameters = inspect.signature(function).parameters.items()
    return typing.get_type_hints(function, include_extras=True), {
        name: parameter for name, parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


_registry: dict[str, Step] = {}


def step(*, cost: Cost | Callable[..., Cost]) -> Callable[[Callable[..., Release]], Step]:
    """Register a function as a step; `cost` is what each request costs, or `cost(public, **arguments)` prices it."""

    def register(function: Callable[..., Release]) -> Step:
        module = function.__module__.removeprefix("colonnade.")
        new = Step(f"{module}.{function.__name__}", function, cost)
        earlier = _registry.get(new.name)
        if earlier is not None and earlier.function.__code__.co_filename != function.__code__.co_filename:
            raise UnknownStep(f"two modules register a step named {new.name!r}; rename one of them.")
        _registry[new.name] = new
        return new

    return register


def registered(name: str) -> Step:
    """The step of that name, if the module that has it was loaded: a method's class loads its own steps."""
    if name not in _registry:
        raise UnknownStep(f"this installation has no step {name!r}; install the same version at every party.")
    return _registry[name]
