"""`colonnade ledger show|verify`: what a party has spent, and whether its record is intact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from colonnade.cli.output import AsJson, Output
from colonnade.cli.records import Run, handed_out, home_of, opened, party_of
from colonnade.errors import CannotAccount

if TYPE_CHECKING:
    from colonnade.privacy.budget import Budget
    from colonnade.privacy.ledger import Ledger

app = typer.Typer(no_args_is_help=True, help="What a party has spent.")

Where = Annotated[Path, typer.Argument(metavar="HOME", help="A party's folder, or its party.db.", show_default=False)]

NOT_THE_WHOLE = (
    "These totals are this party's alone: a person's total also includes the other parties' releases."
    " A run's report has the total over all parties."
)


@app.command()
def show(
    home: Where,
    delta: Annotated[
        float | None,
        typer.Option("--delta", help="Delta of the totals; the budget's, or 1e-6, by default.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a party's reservations, debits and totals under both relations."""
    from colonnade.privacy.ledger import DEFAULT_DELTA, Ledger

    out = Output(quiet=as_json)
    budget = _budget(home)
    with opened(home, "ledger") as database:
        ledger = Ledger(database)
        rows = [{"number": row.number, **row.body} for row in ledger.chain.rows()]
        if delta is None:
            delta = (budget.delta if budget is not None else 0.0) or DEFAULT_DELTA
        totals = _totals(ledger, budget, delta)
    reserved, debited = ([row for row in rows if row["kind"] == kind] for kind in ("reserve", "debit"))
    if as_json:
        out.json(
            {
                "party": _party(home),
                "reservations": reserved,
                "debits": debited,
                "budget": None if budget is None else budget.to_dict(),
                "totals_of_this_party": totals,
                "note": NOT_THE_WHOLE,
            }
        )
        return
    out.say(f"Ledger of {_party(home)}, {len(rows)} rows")
    _say_rows(out, reserved, debited)
    out.say()
    for total in totals:
        out.say(f"{total['window']}, {total['relation']}: {total['text'].removesuffix(', ' + total['relation'])}")
    if budget is not None:
        window = "" if budget.period_days is None else f" in any {budget.period_days:g} days"
        out.say(f"Budget: epsilon {budget.epsilon:g} at delta {budget.delta:g}, {budget.relation}{window}")
    out.say(NOT_THE_WHOLE)


@app.command()
def verify(home: Where, run: Run = None) -> None:
    """Check that no row was changed, removed or inserted, and that every debit was reserved."""
    from colonnade.privacy.ledger import Ledger

    out = Output()
    expect = handed_out(home, "ledger", run)
    with opened(home, "ledger") as database:
        head = Ledger(database).verify(expect=expect)
    out.result(f"The ledger of {_party(home)} is intact: {head.rows} rows, ending in {head.hash[:16]}.")
    if expect is not None:
        out.result(f"It still contains what it told {run}.")


@app.command()
def backup(
    home: Where,
    out: Annotated[Path, typer.Option("--out", help="A new file for the copy.", show_default=False)],
) -> None:
    """Copy a party's records while it serves, and verify the copy."""
    from colonnade.federation.recovery import backup as copied

    head = copied(home_of(home), out)
    Output().result(f"{out}: an intact copy with {head.rows} ledger rows, ending in {head.hash[:16]}.")


@app.command()
def restore(
    copy: Annotated[Path, typer.Argument(help="A copy that `colonnade ledger backup` made.", show_default=False)],
    home: Where,
) -> None:
    """Put a copy in the place of a party's records. What was spent since must be recovered then."""
    from colonnade.federation.recovery import restore as put_back

    head, kept = put_back(copy, home_of(home))
    out = Output()
    out.result(f"Restored {head.rows} ledger rows, ending in {head.hash[:16]}.")
    if kept is not None:
        out.say(f"What was there before is in {kept}.")
    out.say("Before this party serves: `colonnade ledger recover HOME --runs RUNS` with the coordinator's run folders.")


@app.command()
def recover(
    home: Where,
    runs: Annotated[Path, typer.Option("--runs", help="The coordinator's folder of runs.", show_default=False)],
) -> None:
    """Count again what runs have spent since the copy that was restored."""
    from colonnade.federation.recovery import recover as made_up

    out = Output()
    found = made_up(home_of(home), party_of(home), runs)
    for one in found:
        out.say(f"{one.job}: {one.stages} stages counted again")
    out.result(f"{len(found)} runs were missing from the ledger of {_party(home)}, which now answers for them.")


def _party(home: Path) -> str:
    return party_of(home) if (home_of(home) / "party.json").is_file() else str(home)


def _budget(home: Path) -> Budget | None:
    """The budget of the party's own policy, where its configuration is at hand."""
    from colonnade.federation.home import Home
    from colonnade.federation.policy import Policy

    if not (home_of(home) / "party.json").is_file():
        return None
    return Policy.from_dict(Home(path=home_of(home)).settings()["policy"]).budget


def _totals(ledger: Ledger, budget: Budget | None, delta: float) -> list[dict[str, Any]]:
    """Over the budget's period, if it has one, and over the whole life; each under both relations."""
    from colonnade.privacy.cost import Relation
    from colonnade.privacy.ledger import DAY
    from colonnade.privacy.wording import guarantee_dict

    windows: list[tuple[str, float | None]] = [("Lifetime total", None)]
    if budget is not None and budget.period_days is not None:
        windows.insert(0, (f"Last {budget.period_days:g} days", time.time() - DAY * budget.period_days))
    totals: list[dict[str, Any]] = []
    for window, since in windows:
        for relation in get_args(Relation):
            try:
                bound = guarantee_dict(ledger.spent(delta=delta, relation=relation, since=since))
            except CannotAccount as error:
                bound = {"epsilon": None, "delta": delta, "relation": relation, "text": f"not a total: {error}"}
            totals.append({"window": window, **bound})
    return totals


def _say_rows(out: Output, reserved: list[dict[str, Any]], debited: list[dict[str, Any]]) -> None:
    from colonnade.formatting import timestamp
    from colonnade.privacy.cost import Cost
    from colonnade.privacy.wording import cost_text

    def cost(row: dict[str, Any]) -> str:
        return cost_text(Cost.from_dict(row["cost"]))

    out.table(
        "Reservations: what approved plans may spend (this counts; nothing is refunded)",
        ("row", "time", "job", "stage", "requests", "cost"),
        [(str(r["number"]), timestamp(r["time"]), r["job"], r["phase"], str(r["count"]), cost(r)) for r in reserved],
        numeric=(0, 4),
    )
    out.table(
        "Debits: each request, written down before its step saw any data",
        ("row", "time", "job", "stage", "request", "cost"),
        [(str(r["number"]), timestamp(r["time"]), r["job"], r["phase"], str(r["seq"]), cost(r)) for r in debited],
        numeric=(0, 4),
    )
