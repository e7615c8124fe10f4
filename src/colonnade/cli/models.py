"""The options that the verbs of models share, and how such a verb runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from colonnade.cli.output import Output
from colonnade.cli.running import agreed, conduct, open_federation, say_total
from colonnade.errors import BadArguments

if TYPE_CHECKING:
    from colonnade.federation.method import Method

Delta = Annotated[float, typer.Option("--delta", help="Its delta; above 0, and well below one over the records.")]
Gamma = Annotated[int, typer.Option("--gamma", help="The scale of quantisation.")]
Clip = Annotated[
    list[str] | None,
    typer.Option(
        "--clip", help="PARTY=NORM: clip its part of a row (may be repeated); or a share, 0.87 say, of all norms."
    ),
]
PresenceOption = Annotated[
    Literal["ignore", "secret", "known"],
    typer.Option("--presence", help="An absent block is zeros (ignore), or products use the records that have both."),
]
ViewOption = Annotated[
    Literal["client", "server"],
    typer.Option("--view", help="Noise against the parties too, or against the coordinator only."),
]
RelationOption = Annotated[
    Literal["zero-out", "replace"], typer.Option("--relation", help="What the noise is calibrated for.")
]
Memory = Annotated[
    int | None,
    typer.Option("--memory", help="MB that the coordinator or a party may use; less memory takes more rounds."),
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run folder; made up by default.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print every cost and message of the run, and run nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="On a terminal: run without asking.")]


def names_of(columns: list[str] | None) -> tuple[str, ...] | None:
    """Column names from --columns a,b --columns c."""
    return None if columns is None else tuple(one.strip() for each in columns for one in each.split(","))


def norms(clip: list[str] | None) -> dict[str, float] | float | None:
    """{party: norm} from PARTY=NORM, or one share for all."""
    if clip is None:
        return None
    if len(clip) == 1 and "=" not in clip[0]:
        try:
            return float(clip[0])
        except ValueError:
            raise BadArguments(f"--clip {clip[0]!r} is no number; write --clip 0.87 or --clip bank=1.5, say.") from None
    return numbers_by_name("--clip", clip, "PARTY=NORM", "bank=1.5")


def numbers_by_name(option: str, given: list[str], form: str, example: str) -> dict[str, float]:
    """{name: number} from an option that is repeated as NAME=NUMBER."""
    found: dict[str, float] = {}
    for one in given:
        name, _, number = one.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            raise BadArguments(f"{option} {one!r} is not {form}; write {option} {example}, say.") from None
    return found


def party_norms(clip: list[str] | None) -> dict[str, float] | None:
    """{party: norm} from PARTY=NORM, for methods that take nothing else."""
    found = norms(clip)
    if isinstance(found, float):
        raise BadArguments(f"--clip {found:g} names no party; write --clip bank={found:g}, say.")
    return found


def parts(expected: list[str] | None) -> dict[str, float] | None:
    """{party or pair: part of the records} from PARTY=PART."""
    return None if expected is None else numbers_by_name("--expected", expected, "PARTY=PART", "bank=0.6")


def run(federation: Path, method: Method, out: Output, *, name: str | None, yes: bool, plan_only: bool = False) -> None:
    """Show the plan, ask on a terminal, run."""
    with open_federation(federation, out) as opened:
        plan = opened.plan(method)
        if plan_only:
            out.say(plan.text())
            return
        say_total(plan, out)
        for note in plan.notes:
            out.say(note)
        agreed(out, yes=yes)
        conduct(opened, method, out, name=name)
