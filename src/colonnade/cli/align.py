"""`colonnade align`: line the parties' records up, without showing who is not shared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from colonnade.cli.output import Output
from colonnade.errors import NotApproved

if TYPE_CHECKING:
    from colonnade.alignment.result import Aligned

FederationFile = Annotated[
    Path, typer.Argument(metavar="FEDERATION.TOML", help="See docs/federation-toml.md.", show_default=False)
]
Include = Annotated[
    str | None,
    typer.Option("--include", help="'union', or the party whose records are the cohort; that of the file by default."),
]
Matcher = Annotated[str | None, typer.Option("--matcher", help="Who compares the tags of a union.")]
Normalise = Annotated[
    list[str] | None,
    typer.Option("--normalise", help="Of case, spaces, accents: what is taken as equal. With commas, or repeated."),
]
Capacity = Annotated[
    list[str] | None,
    typer.Option("--capacity", help="PARTY=NUMBER: the most records it may have (public). May be repeated."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the run folder.")]


def align(
    federation: FederationFile,
    include: Include = None,
    matcher: Matcher = None,
    normalise: Normalise = None,
    capacity: Capacity = None,
    protocol: Annotated[
        Literal["ecdh", "blind-rsa"], typer.Option("--protocol", help="blind-rsa is the paper's, and slow.")
    ] = "ecdh",
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="Of the noisy overlap counts; 0 leaves them out.", min=0.0)
    ] = 1.0,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run folder; made up by default.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="On a terminal: run without asking.")] = False,
    quiet: Quiet = False,
) -> None:
    """Line the parties' records up, without showing who is not shared.

    Every party stores its own rows at home; the verbs that follow work on this cohort. What each side learns is in
    docs/alignment.md. The parties must allow it: allow = ["alignment"] in the federation.toml.
    """
    from colonnade.alignment.protocol import Align
    from colonnade.alignment.session import prepare
    from colonnade.federation.coordinator import Federation
    from colonnade.federation.local import Spec

    out = Output(quiet=quiet)
    rules = tuple(rule.strip() for each in normalise or () for rule in each.split(","))
    spec, runs = Spec.from_toml(federation)
    with out.busy("reading the parties' keys"):
        sizes = prepare(spec, normalise=rules, capacity=_capacities(capacity or []))
    method = Align(
        capacity=sizes,
        include=include or spec.include,
        matcher=matcher,
        normalise=rules,
        protocol=protocol,
        epsilon=epsilon or None,
    )
    with Federation.from_spec(spec, runs=runs, origin=str(federation.absolute()), aligned=False) as opened:
        for note in opened.plan(method).notes:
            out.say(note)
        if out.terminal and sys.stdin.isatty() and not (yes or quiet) and not typer.confirm("Run it?"):
            raise NotApproved("not run: you said no; nothing was compared.")
        with out.progress() as progress:
            aligned, run = opened.run(method, name=name, progress=progress)
    _tell(aligned, out)
    out.say()
    out.say(f"Exact numbers are at each party: {Path(str(spec.home)) / 'PARTY' / 'aligned' / 'overlap.json'}")
    out.result(str(run.path.absolute()) if quiet else f"Run: {run.path.absolute()}")


def _tell(aligned: Aligned, out: Output) -> None:
    from colonnade.evaluation.words import with_noise

    rows = [(" + ".join(names), with_noise(count, aligned.noise_sd)) for names, count in aligned.rows()]
    title = f"{aligned.n:,} records in the cohort; ± is two standard deviations of the noise"
    if rows:
        out.table(title, ("held by exactly", "records"), rows, numeric=(1,))
    else:
        out.say(f"{aligned.n:,} records in the cohort")


def _capacities(listed: list[str]) -> dict[str, int]:
    """PARTY=NUMBER of each option."""
    found: dict[str, int] = {}
    for one in listed:
        party, _, size = one.rpartition("=")
        if not party or not size.isdecimal():
            raise typer.BadParameter(f"{one!r} is not PARTY=NUMBER.", param_hint="--capacity")
        found[party] = int(size)
    return found
