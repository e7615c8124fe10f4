"""A verb for every method of the catalogue, made from the options that its class declares.

Flag, help, default and choices are the declaration's, so command line, job.toml and Python cannot differ. What is not
given is left to the class. A method is imported when its verb is called; the list of verbs reads their purpose from
the source files alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colonnade.catalogue import CATALOGUE
from colonnade.cli.output import Output, Quiet, Verbs
from colonnade.codec import nearest
from colonnade.errors import BadArguments, RunError
from colonnade.federation.spelling import form_of, members, read, repeated, spell

if TYPE_CHECKING:
    from colonnade.federation.catalogue import Entry
    from colonnade.federation.method import Method
    from colonnade.federation.options import Declared

FederationFile = Annotated[
    Path | None,
    typer.Option(
        "--federation",
        "-f",
        metavar="FILE",
        help="The federation.toml (`colonnade docs federation-toml`), or a coordinator.toml; by default the one in this"
        " folder.",
        show_default=False,
    ),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Of the run folder; made up by default.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print every cost and message of the run, and run nothing.")]
PlanJson = Annotated[bool, typer.Option("--json", help="With --plan: print JSON for a program to read.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="On a terminal: run without asking.")]
Sure = Annotated[bool, typer.Option("--sure", help="Run it also if its plan says that it will not work.")]

COMMON: dict[str, tuple[Any, Any]] = {
    "name_": (Name, None),
    "plan_only_": (PlanOnly, False),
    "as_json_": (PlanJson, False),
    "yes_": (Yes, False),
    "sure_": (Sure, False),
    "quiet_": (Quiet, False),
}
"""What every verb of a method takes besides `--federation`: {parameter: (type, default)}."""

HOW = (
    "Shows the plan, asks on a terminal, runs, and writes a run folder with the report. `colonnade run` takes the same"
    " options from a file."
)
BEFORE = (
    "Every party stores its own rows at home; the verbs that follow work on this cohort. Capacities that are not given"
    " are found out from the parties' keys, or stand in consortium.toml; include is by default that of the"
    " federation.toml."
)


# --- the verbs ------------------------------------------------------------------------------------------------


class MethodVerbs(Verbs):
    """Commands, with a verb for each entry of the catalogue among them."""

    def entries(self) -> dict[str, Entry]:
        """Colonnade's own methods, and what other packages have added; none takes the name of a command."""
        taken = {*CATALOGUE.papers(), *self.commands}
        return {name: entry for name, entry in CATALOGUE.entries().items() if name not in taken}

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *self.entries()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.entries().get(cmd_name)
        return super().get_command(ctx, cmd_name) if entry is None else verb(entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command {args[0]!r}.{nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        entries = self.entries()
        with formatter.section("Methods"):
            formatter.write_dl([(name, entry.purpose()) for name, entry in entries.items()])
        if self.commands:
            with formatter.section("Other commands"):
                formatter.write_dl([(name, command.get_short_help_str(200)) for name, command in self.commands.items()])


class PaperVerbs(MethodVerbs):
    """The papers' own algorithms."""

    def entries(self) -> dict[str, Entry]:
        return CATALOGUE.papers()


papers = typer.Typer(
    cls=PaperVerbs,
    help="The papers' own algorithms, where Colonnade has something better or safer.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@papers.callback()
def _papers() -> None: ...


@functools.cache
def verb(entry: Entry) -> Any:
    """The command of one method."""
    try:
        method = entry.load()
    except ModuleNotFoundError as error:
        raise RunError(
            f"{entry.name} needs the package {error.name}, which is not installed here; `colonnade docs dependencies`"
            " says which extra brings it."
        ) from error
    declared = method.declared()
    off = [name for name, option in declared.items() if option.hint is not bool and bool in members(option.hint)]

    def call(**given: Any) -> None:
        common = {name.rstrip("_"): given.pop(name) for name in ("federation_", *COMMON)}
        for name in off:
            if given.pop(f"no_{name}"):
                given[name] = False
        options = {name: read(declared[name], value) for name, value in given.items() if value not in (None, [])}
        run_verb(method, options, **common)

    parameters = [_parameter("federation_", FederationFile, None)]
    for name, option in declared.items():
        found_out = method.makes_cohort and name == "capacity"
        parameters.append(_parameter(name, *typer_option(option, required=not found_out)))
    for name in off:
        flag, said = declared[name].flag, f"The same as {declared[name].flag} false."
        parameters.append(
            _parameter(f"no_{name}", Annotated[bool, typer.Option(flag.replace("--", "--no-", 1), help=said)], False)
        )
    parameters += [_parameter(name, *common) for name, common in COMMON.items()]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(entry.name, help="\n\n".join((method.purpose(), HOW, BEFORE * method.makes_cohort)))(call)
    return typer.main.get_command(app)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is ... else default,
        annotation=annotation,
    )


def typer_option(declared: Declared, *, required: bool = True) -> tuple[Any, Any]:
    """(type, default) of an option as typer takes it: text that `read` turns into the option's type."""
    option = declared.option
    flag, default = declared.flag, ... if required and declared.default is MISSING else None
    kind: Any = str | None
    if declared.hint is bool:
        flag, kind = f"{flag}/--no-{flag.removeprefix('--')}", bool | None
    elif repeated(declared.hint):
        kind = list[str] if default is ... else list[str] | None
    flags = (flag, option.short) if option.short else (flag,)
    flagged = typer.Option(*flags, help=help_of(declared), metavar=form_of(declared) or None, show_default=False)
    return Annotated[kind, flagged], default


def help_of(declared: Declared) -> str:
    """The declaration's own help, with what the command line adds: bounds, lists, when it has a meaning, default."""
    option, parts = declared.option, [declared.option.help]
    if option.range:
        parts.append(f"{option.range[0].upper()}{option.range[1:]}.")
    if repeated(declared.hint) and "repeated" not in option.help:
        parts.append("May be repeated.")
    for other, values in (option.only or {}).items():
        flag, stated = f"--{other.replace('_', '-')}", [str(value) for value in values if value is not None]
        meant = [f"with {flag} {' or '.join(stated)}"] if stated else []
        parts.append(f"Only {' or '.join(meant + [f'without {flag}'] * (None in values))}.")
    if declared.default not in (MISSING, None, (), {}, ""):
        shown = " ".join(spell(declared.default)) if declared.hint is not bool else ("no", "yes")[declared.default]
        parts.append(f"[default: {shown}]")
    return " ".join(part for part in parts if part)


# --- running --------------------------------------------------------------------------------------------------


def run_verb(
    method: type[Method[Any]],
    options: Mapping[str, Any],
    *,
    federation: Path | None,
    name: str | None,
    plan_only: bool,
    as_json: bool,
    yes: bool,
    sure: bool,
    quiet: bool,
) -> None:
    """Plan, ask, run, report."""
    from colonnade.cli import running

    if as_json and not plan_only:
        raise BadArguments("--json goes with --plan; a run writes result.json into its folder.")
    out = Output(quiet=quiet or as_json)
    path = running.federation_here(federation)
    wanted = running.Wanted(yes=yes, sure=sure, plan_only=plan_only, as_json=as_json)
    if running.hand_over(method, options, path, out, name=name, wanted=wanted):
        return
    opened, ready = running.prepared(method, options, path, out, plan_only=plan_only)
    with opened:
        running.run(opened, ready, out, name=name, wanted=wanted)
