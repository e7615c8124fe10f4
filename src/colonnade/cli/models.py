"""The options that the verbs of models share, and how such a verb runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from colonnade.cli.output import Output
from colonnade.cli.running import conduct, open_federation, say_total
from colonnade.errors import BadArguments, NotApproved

if TYPE_CHECKING:
    from colonnade.federation.method import Method

Delta = Annotated[float, typer.Option("--delta", help="Its delta; above 0, and well below one over the records.")]
Gamma = Annotated[int, typer.Option("--gamma", help="The scale of quantisation.")]
Clip = Annotated[
    list[str] | None,
    typer.Option("--clip", help="PARTY=NORM: clip its part of a row; less noise, some bias. May be repeated."),
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
Name = Annotated[str | None, typer.Option("--name", help="Name of the run folder; made up by default.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print every cost and message of the run, and run nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="On a terminal: run without asking.")]


def norms(clip: list[str] | None) -> dict[str, float] | None:
    """{party: norm} from PARTY=NORM."""
    if clip is None:
        return None
    found: dict[str, float] = {}
    for one in clip:
        party, _, number = one.rpartition("=")
        try:
            found[party] = float(number)
        except ValueError:
            raise BadArguments(f"--clip {one!r} is not PARTY=NORM; write --clip bank=1.5, say.") from None
    return found


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
        if out.terminal and sys.stdin.isatty() and not (yes or out.quiet) and not typer.confirm("Run it?"):
            raise NotApproved("not run: you said no; nothing was spent.")
        conduct(opened, method, out, name=name, again="resume it with `colonnade resume RUN`")
