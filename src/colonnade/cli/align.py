"""`colonnade align`: line the parties' records up, without showing who is not shared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from colonnade.cli.describe import FederationFile
from colonnade.cli.models import Name, Yes
from colonnade.cli.output import Output, Quiet
from colonnade.errors import SchemaError

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
    name: Name = None,
    yes: Yes = False,
    quiet: Quiet = False,
) -> None:
    """Line the parties' records up, without showing who is not shared.

    Every party stores its own rows at home; the verbs that follow work on this cohort. What each side learns is in
    docs/alignment.md. The parties must allow it: allow = ["alignment"] in the federation.toml.
    """
    from colonnade.alignment.protocol import Align
    from colonnade.alignment.session import prepare
    from colonnade.cli.running import agreed, execute, finish
    from colonnade.federation.consortium import CoordinatorFile
    from colonnade.federation.coordinator import Federation
    from colonnade.federation.local import Spec

    out = Output(quiet=quiet)
    rules = tuple(rule.strip() for each in normalise or () for rule in each.split(","))
    if CoordinatorFile.is_one(federation):
        _across_the_network(federation, out, include, matcher, rules, protocol, epsilon or None, name, yes)
        return
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
        agreed(out, yes=yes, spent="compared")
        run = execute(opened, method, out, name=name)
        out.say(f"Exact numbers are at each party: {Path(str(spec.home)) / 'PARTY' / 'aligned' / 'overlap.json'}")
        finish(opened, run, out)


def _across_the_network(
    path: Path,
    out: Output,
    include: str | None,
    matcher: str | None,
    rules: tuple[str, ...],
    protocol: Literal["ecdh", "blind-rsa"],
    epsilon: float | None,
    name: str | None,
    yes: bool,
) -> None:
    """Every member states its capacity in consortium.toml; it adopts the cohort when the job is closed."""
    from colonnade.alignment.protocol import Align
    from colonnade.cli.running import agreed, conduct
    from colonnade.federation.consortium import Consortium, CoordinatorFile
    from colonnade.federation.coordinator import Federation
    from colonnade.federation.transports.certificates import AUTHORITY

    file = CoordinatorFile.from_toml(path)
    capacity = dict(Consortium.from_toml(file.consortium, authority=file.credentials / AUTHORITY).capacity)
    lacking = [party for party, most in capacity.items() if most < 1]
    if lacking:
        raise SchemaError(
            f"consortium.toml states no capacity for {', '.join(lacking)}: the most records that it may have, which is"
            " public; add capacity = NUMBER."
        )
    method = Align(
        capacity=capacity,
        include=include or "union",
        matcher=matcher,
        normalise=rules,
        protocol=protocol,
        epsilon=epsilon,
    )
    with Federation.from_toml(path) as opened:
        for note in opened.plan(method).notes:
            out.say(note)
        agreed(out, yes=yes, spent="compared")
        conduct(opened, method, out, name=name)


def _capacities(listed: list[str]) -> dict[str, int]:
    """PARTY=NUMBER of each option."""
    found: dict[str, int] = {}
    for one in listed:
        party, _, size = one.rpartition("=")
        if not party or not size.isdecimal():
            raise typer.BadParameter(f"{one!r} is not PARTY=NUMBER.", param_hint="--capacity")
        found[party] = int(size)
    return found
