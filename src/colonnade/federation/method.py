"""What every method is: options declared once, a procedure with its stages, what it assumes, and what attacks it.

A method's file says its purpose (the first line of its docstring), its options (`federation.options`), what it assumes
about records that lack a block, its attacks for the audit, and its procedure. Everything else is derived here and by
every reader of the catalogue: the plan, the verb, the console's sentence, the report's box, the API page.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform

import numpy as np

from colonnade.codec import plain, words
from colonnade.errors import BadArguments, ColonnadeError, NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.options import Declared, Options
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.stage import Stage
from colonnade.view.blocks import Table, Text, View
from colonnade.view.render import Viewed

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack
    from colonnade.federation.coordinator import Federation


Counted = tuple[str, float, float]
"""A figure, the records behind it, and the standard deviation of the noise on their number."""


class Result(Viewed):
    """What a method returns. It writes itself into the run folder, and says what people see of it."""

    kind: ClassVar[str]
    """What sort of result this is, for a program that reads result.json."""
    kinds: ClassVar[dict[str, type[Result]]] = {}

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """All numbers, as plain data for result.json."""

    @classmethod
    def records_behind(cls, stated: Mapping[str, Any]) -> Iterator[Counted]:
        """The records behind each figure of a result.json, for those who check outputs; by default the cohort."""
        kind = stated.get("kind", "result").replace("-", " ")
        sizes = [stated[name] for name in ("nobs", "n", "cohort") if isinstance(stated.get(name), int | float)]
        yield from ((f"the {kind} (the cohort, a public number)", size, 0.0) for size in sizes[:1])

    @classmethod
    def about_rows(cls, stated: Mapping[str, Any]) -> str:
        """What a rule on records means for rows that are released themselves; empty where there are none."""
        return ""

    def __init_subclass__(cls, **stated: Any) -> None:
        super().__init_subclass__(**stated)
        if "kind" in cls.__dict__:
            Result.kinds.setdefault(cls.kind, cls)
        if "__repr__" not in cls.__dict__:  # before `dataclass` puts one there that prints every number
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def write(self, run: RunFolder) -> None:
        """Into the run folder: result.json and view.json. A result with files of its own writes them first."""
        run.write_json("result.json", {"kind": self.kind, **self.to_dict()})
        run.write_json("view.json", self.view().to_dict())


class NoEstimate(Result):
    """What a private job returns if its noisy releases do not support an estimate: why, and these releases. They were
    paid for, and anything may still be made of them. What a result of the method would have says why it is not there.
    """

    kind: ClassVar[str] = "no-estimate"

    def __init__(self, method: str, cause: Exception, released: Mapping[str, Any], *, simulated: bool) -> None:
        self.method, self.cause, self.released, self.simulated = method, cause, released, simulated
        self.reason = str(cause)
        if not isinstance(cause, ColonnadeError):
            self.reason = f"unexpected {type(cause).__name__}: {cause}. This is a bug."

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotEstimable(f"{self.method} gave no estimate: {self.reason}")

    def __repr__(self) -> str:
        return f"NoEstimate({self.method!r}: {self.reason})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "reason": self.reason,
            "released": plain(self.released),
            "simulated": self.simulated,
        }

    def view(self) -> View:
        rows = tuple((name, f"{np.size(value):,}") for name, value in self.released.items())
        return View(
            title=f"{self.method}: no estimate",
            quality="There is none to judge.",
            answer=(
                Text(text="The noisy releases of this run are in result.json. They are paid for, and can be used."),
                Table(title="What was released", head=("what", "numbers"), rows=rows, numeric=(1,), shown=10),
            )
            if rows
            else (Text(text="Nothing with a privacy bound was released: this run has cost no privacy budget."),),
            warnings=(f"No estimate: {self.reason}",),
        )


C = TypeVar("C", bound=type)
R_co = TypeVar("R_co", bound=Result, covariant=True)
R = TypeVar("R", bound=Result)


class Procedure(ABC, Generic[R_co]):
    """The coordinator's side of one job: its public layout, its stages, and the run that asks them.

    Made once for a plan, from public facts alone; `run` asks the very stages that the plan has shown.
    """

    stages: Sequence[Stage]
    notes: Sequence[str] = ()
    """Forecasts and warnings for the plan, in plain words."""

    @abstractmethod
    def run(self, job: Job) -> R_co:
        """Ask the stages; it depends on nothing but the replies, so that a job can be resumed."""


class Method(Options, ABC, Generic[R]):
    """Options that can plan themselves and run. Subclasses are decorated with `@method_class`."""

    name: ClassVar[str]
    """Its name in the catalogue, in a job.toml and in a policy; the verb is called the same."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Packages of an optional extra that it cannot do without."""
    rests_on: ClassVar[tuple[str, ...]] = ()
    """Methods whose private releases are all that it makes: an audit attacks those instead."""
    makes_cohort: ClassVar[bool] = False
    """It lines the records up, so it runs before there is a cohort."""

    delta: float = 1e-6

    def needed(self) -> tuple[str, ...]:
        """Packages of optional extras that data parties and the coordinator need for these options."""
        return self.needs

    @abstractmethod
    def missing_data(self) -> str:
        """What these options assume about records that lack a block, in one sentence."""

    @abstractmethod
    def procedure(self, facts: PublicFacts, roster: Roster) -> Procedure[R]:
        """The stages and the run that asks them, from public facts alone."""

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        """What tries to refute its privacy claim; empty if it releases nothing of its own under a bound."""
        return ()

    @classmethod
    def purpose(cls) -> str:
        """What it is for, in one sentence that needs no paper: the first line of its docstring."""
        return (inspect.getdoc(cls) or cls.__name__).partition("\n")[0]

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        """Every cost and message, before any data is touched; the plan can be run.

        Parameters
        ----------
        facts, roster : a federation's public facts and members; `federation.plan(method)` knows both.

        Returns
        -------
        A `Plan`.
        """
        columns = [name for declared in facts.columns.values() for name in declared]
        procedure = self.choosing(columns).procedure(facts, roster)
        return Plan(
            method=self.name,
            options=self.options(),
            stages=tuple(stage for stage in procedure.stages if stage.costs),
            notes=tuple(procedure.notes),
            missing_data=self.missing_data(),
            delta=self.delta,
            run=procedure.run,
        )

    def fit(self, federation: Federation, *, sure: bool = False) -> R:
        """Run it; the run folder is in `federation.runs`. A plan that says "This will not work" is run only if you are
        `sure`: else its sentence is raised, and nothing is spent.

        Parameters
        ----------
        federation : all parties, from `Federation.local` or `Federation.from_toml`.
        sure : run it also if its plan says that it will not work.

        Returns
        -------
        The result; the class says which.
        """
        if not hasattr(federation, "run"):
            raise BadArguments(
                f"fit takes a federation, not {type(federation).__name__}; make one with"
                " colonnade.Federation.local(tables, key=..., columns=...)."
            )
        result: R = federation.run(self, sure=sure)[0]
        return result


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def method_class(cls: C) -> C:
    """Make a class of options a dataclass, and write its options into its docstring, for `help` and the API page."""
    decorated: Any = dataclass(kw_only=True)(cls)
    decorated.__init__ = _by_name(decorated.__init__)
    text = inspect.getdoc(cls) or ""
    before, heading, after = text.partition("\nReturns\n---")
    decorated.__signature__ = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(option), annotation=option.hint)
            for name, option in decorated.declared().items()
        ]
    )
    decorated.__doc__ = f"{before.rstrip()}\n\n{parameters(decorated)}\n{heading}{after}"
    return decorated  # type: ignore[no-any-return]


def _by_name(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor, which refuses what it does not know in a sentence of ours, and not in one about itself."""

    @functools.wraps(init)
    def checked(self: Options, *values: Any, **options: Any) -> None:
        kind = type(self)
        if values:
            first = next(iter(kind.declared()))
            raise BadArguments(f"{kind.__name__} takes its options by name; write {kind.__name__}({first}=...).")
        init(self, **kind.stated(options))

    return checked


def _default(declared: Declared) -> Any:
    return inspect.Parameter.empty if declared.default is MISSING else declared.default


def parameters(cls: type[Options]) -> str:
    """The options of a method as the Parameters section of a docstring."""
    lines = ["Parameters", "----------"]
    for name, declared in cls.declared().items():
        default = "" if declared.default is MISSING else f", default {declared.default!r}"
        lines += [f"{name} : {words(declared.hint)}{default}", f"    {declared.option.help}"]
    return "\n".join(lines) + "\n"
