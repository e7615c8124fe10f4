"""`colonnade compare`: a synthetic table beside a party's own block, at home; across parties only as a release."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colonnade.cli.output import AsJson, Output
from colonnade.errors import BadArguments, NotApproved

if TYPE_CHECKING:
    import pandas as pd

    from colonnade.federation.run_folder import RunFolder


def compare(
    run: Annotated[Path, typer.Argument(help="The run folder of a synthetic table.", show_default=False)],
    block: Annotated[
        Path | None,
        typer.Option("--block", help="A party's own CSV or Parquet file: exact, nothing is sent.", show_default=False),
    ] = None,
    federation: Annotated[
        Path | None, typer.Option("--federation", "-f", help="With --joint: the federation.toml.", show_default=False)
    ] = None,
    joint: Annotated[
        list[str] | None,
        typer.Option("--joint", help="A table of columns of several parties, a,b say: a release that costs --epsilon."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="What the joint comparison may cost a person.")
    ] = None,
    delta: Annotated[float, typer.Option("--delta", help="Its delta.")] = 1e-6,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="On a terminal: spend without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say how near a synthetic table is to real records.

    `--block` compares one party's own columns, at home, exactly; its output is as sensitive as the block. `--joint`
    asks the parties for noisy tables across them, which costs `--epsilon`.
    """
    from colonnade.federation.run_folder import RunFolder
    from colonnade.synthesis.table import read_table

    folder = RunFolder.open(run)
    if folder.read_json("result.json").get("kind") != "synthetic-table":
        raise BadArguments(f"{run} holds no synthetic table; name the run folder of `colonnade synthesize`.")
    if (block is None) == (joint is None):
        raise BadArguments(
            "say either --block FILE (at home) or --joint a,b with --federation and --epsilon (a release)."
        )
    table, out = read_table(folder), Output(quiet=as_json)
    if block is not None:
        _at_home(folder, table, block, out)
        return
    if federation is None or epsilon is None:
        raise BadArguments("--joint is a release: say --federation and --epsilon, what it may cost a person.")
    _jointly(table, [one.split(",") for one in joint or ()], federation, epsilon, delta, out, ask=not yes)


def _at_home(folder: RunFolder, table: pd.DataFrame, block: Path, out: Output) -> None:
    import pandas as pd

    from colonnade.data.column import Columns
    from colonnade.data.sources import open_source
    from colonnade.evaluation.comparison import compare_locally

    columns = Columns.from_dict({"columns": folder.read_json("result.json")["columns"]})
    source = open_source(block)
    names = [name for name in source.names() if name in columns]
    cells = pd.concat(list(source.chunks(names)), ignore_index=True) if names else pd.DataFrame()
    mine = pd.DataFrame({name: columns[name].decode(columns[name].encode(cells[name])) for name in names})
    found = compare_locally(mine, table, columns)
    if out.quiet:
        out.json(found)
        return
    out.table(
        f"{found['records']:,} records of the block, {found['rows']:,} synthetic rows",
        ("column", "distance", "categories kept", "empty in the block"),
        [
            (one["name"], f"{one['distance']:.3f}", f"{100 * one['coverage']:.0f} %", f"{100 * one['empty']:.1f} %")
            for one in found["columns"]
        ],
        numeric=(1, 2, 3),
    )
    averages = ", ".join(f"{ways} columns {value:.3f}" for ways, value in found["average"].items())
    out.say(f"Mean distance (total variation) of tables of {averages}.")
    if found["correlations"]:
        out.table(
            "Rank correlations that differ most",
            ("column", "and", "block", "synthetic"),
            [
                (one["one"], one["two"], f"{one['block']:+.3f}", f"{one['synthetic']:+.3f}")
                for one in found["correlations"][:8]
            ],
            numeric=(2, 3),
        )
    if found["efficacy"]:
        out.table(
            "Predicting each column of unseen records from the others",
            ("column", "score", "trained on synthetic", "trained on the block"),
            [
                (one["response"], one["score"], f"{one['synthetic']:.3f}", f"{one['real']:.3f}")
                for one in found["efficacy"]
            ],
            numeric=(2, 3),
        )
    out.say()
    out.say("These figures are exact: keep them where the block may be seen. Nothing was sent or spent.")


def _jointly(
    table: pd.DataFrame, tables: list[list[str]], path: Path, epsilon: float, delta: float, out: Output, *, ask: bool
) -> None:
    from colonnade.cli.running import open_federation, say_total
    from colonnade.evaluation.comparison import compare_jointly, joint_release

    with open_federation(path, out) as federation:
        say_total(federation.plan(joint_release(tables, epsilon=epsilon, delta=delta)), out)
        if out.terminal and sys.stdin.isatty() and ask and not out.quiet and not typer.confirm("Spend it?"):
            raise NotApproved("not run: you said no; nothing was spent.")
        found = compare_jointly(federation, table, tables, epsilon=epsilon, delta=delta)
    if out.quiet:
        out.json({"tables": found, "epsilon": epsilon, "delta": delta})
        return
    out.table(
        "Distance of the synthetic table from noisy tables across parties",
        ("columns", "distance", "noise alone shows"),
        [(" x ".join(one["columns"]), _told(one["distance"]), _told(one["noise"])) for one in found],
        numeric=(1, 2),
    )
    out.say("A distance near what noise alone shows: no difference can be seen at this cost.")


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
