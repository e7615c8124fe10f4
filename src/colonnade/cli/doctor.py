"""`colonnade doctor`: what is wrong with this end of a federation, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.output import UNWELL, AsJson, Output


def doctor(
    file: Annotated[Path, typer.Argument(help="party.toml or coordinator.toml.", show_default=False)],
    quick: Annotated[bool, typer.Option("--quick", help="Do not read the rows of the source.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check certificates, keys, clocks, versions, ports, disk, columns and records; say what to do."""
    from colonnade.federation.doctor import examine

    out = Output(quiet=as_json)
    with out.busy("looking"):
        found = examine(file, quick=quick)
    if as_json:
        out.json(
            {
                "side": found.side,
                "name": found.name,
                "faults": found.faults,
                "warnings": found.warnings,
                "findings": [
                    {"level": one.level, "about": one.about, "sentence": one.sentence} for one in found.findings
                ],
            }
        )
    else:
        order = {"fault": 0, "warning": 1, "ok": 2}
        out.table(
            f"{found.side.capitalize()} {found.name}" if found.side == "party" else "Coordinator",
            ("", "about", "finding"),
            [(one.level, one.about, one.sentence) for one in sorted(found.findings, key=lambda one: order[one.level])],
        )
        out.say()
        well = "Nothing is wrong." if not found.faults else "Cure the faults first."
        out.say(f"{_count(found.faults, 'fault')}, {_count(found.warnings, 'warning')}. {well}")
    if found.faults:
        raise typer.Exit(UNWELL)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
