"""`colonnade ledger` and `colonnade transcript`: what a party has spent, every message that crossed a border, and
whether either record is intact. Records are opened for reading only."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from colonnade.cli.output import AsJson, Output
from colonnade.durable import Chain, Database, Head
from colonnade.errors import CannotAccount, CorruptRecord, RunError, StorageError

if TYPE_CHECKING:
    from colonnade.federation.heads import Compared
    from colonnade.privacy.ledger import Budget, Ledger

ledger = typer.Typer(no_args_is_help=True, help="What a party has spent.")
transcript = typer.Typer(no_args_is_help=True, help="Every message that crossed a border.")

Record = Literal["ledger", "transcript", "heads"]
HomePath = Annotated[
    Path, typer.Argument(metavar="HOME", help="A party's folder, or its party.db.", show_default=False)
]
RecordPath = Annotated[
    Path, typer.Argument(metavar="PATH", help="A party's folder or a run folder.", show_default=False)
]
Run = Annotated[
    Path | None,
    typer.Option(
        "--run", help="Also compare with what this party told that run when the run ended.", show_default=False
    ),
]

NOT_THE_WHOLE = (
    "These totals are this party's alone: a person's total also includes the other parties' releases."
    " A run's report has the total over all parties."
)


@contextlib.contextmanager
def opened(path: Path, record: Record) -> Iterator[Database]:
    """The database of a party's folder or a run folder, or a database file itself."""
    file = next((path / name for name in ("party.db", "transcript.db") if (path / name).is_file()), path)
    if not file.is_file():
        raise StorageError(f"{path} holds no {record}; name a party's folder, a run folder or a database file.")
    with contextlib.closing(Database(file, read_only=True)) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if record not in names:
            raise StorageError(f"{file} holds no {record}; name the party's own folder.")
        if not Chain(database, record, create=False).guarded():
            raise CorruptRecord(
                f"{file} was changed: what keeps its {record} append-only is gone; restore it from a back-up."
            )
        yield database


def home_of(path: Path) -> Path:
    """The party's folder."""
    return path if path.is_dir() else path.parent


def party_of(path: Path) -> str:
    """Whose records these are; a copy that lies alone has no name."""
    from colonnade.federation.home import Home

    home = home_of(path)
    return str(Home(path=home).settings()["name"]) if (home / "party.json").is_file() else str(path)


def handed_out(path: Path, record: Record, run: Path | None) -> Head | None:
    """The head of the chain that the party handed to a run when the run ended."""
    if run is None:
        return None
    from colonnade.federation.run_folder import RunFolder

    party = party_of(path)
    heads = RunFolder.open(run, older=True).read_json("costs.json")["heads"]
    if party not in heads:
        raise RunError(f"party {party!r} took no part in {run}; name a run of this party.")
    return Head(**heads[party][record])


# --- the ledger -------------------------------------------------------------------------------------------------


@ledger.command("show")
def ledger_show(
    home: HomePath,
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
        book = Ledger(database)
        rows = [{"number": row.number, **row.body} for row in book.chain.rows()]
        if delta is None:
            delta = (budget.delta if budget is not None else 0.0) or DEFAULT_DELTA
        totals = _totals(book, budget, delta)
    withdrawn = {row["job"] for row in rows if row["kind"] == "withdraw"}
    reserved = [row for row in rows if row["kind"] == "reserve" and row["job"] not in withdrawn]
    debited = [row for row in rows if row["kind"] == "debit"]
    if as_json:
        out.json(
            {
                "party": party_of(home),
                "reservations": reserved,
                "debits": debited,
                "withdrawn": sorted(withdrawn),
                "budget": None if budget is None else budget.to_dict(),
                "totals_of_this_party": totals,
                "note": NOT_THE_WHOLE,
            }
        )
        return
    out.say(f"Ledger of {party_of(home)}, {len(rows)} rows")
    counts = "Reservations: what approved plans may spend (this counts)"
    _ledger_table(out, counts, reserved, ("requests", "count"))
    _ledger_table(out, "Debits: each request, written down before its step saw any data", debited, ("request", "seq"))
    out.say()
    for total in totals:
        out.say(f"{total['window']}, {total['relation']}: {total['text'].removesuffix(', ' + total['relation'])}")
    if budget is not None:
        window = "" if budget.period_days is None else f" in any {budget.period_days:g} days"
        out.say(f"Budget: epsilon {budget.epsilon:g} at delta {budget.delta:g}, {budget.relation}{window}")
    out.say(NOT_THE_WHOLE)


@ledger.command("verify")
def ledger_verify(
    home: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A party's folder; with --others a run folder too.", show_default=False),
    ],
    run: Run = None,
    others: Annotated[
        bool, typer.Option("--others", help="Check the other members' ledgers against the heads that they have signed.")
    ] = False,
    ledgers: Annotated[
        list[str] | None,
        typer.Option(
            "--ledger",
            metavar="PARTY=FILE",
            help="With --others: a member's present ledger, as its `ledger export` wrote it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check that no row was changed, removed or inserted, and that every debit was reserved."""
    from colonnade.privacy.ledger import Ledger

    if others:
        _verify_others(home, ledgers or [])
        return
    expect = handed_out(home, "ledger", run)
    with opened(home, "ledger") as database:
        head = Ledger(database).verify(expect=expect)
    _intact(f"The ledger of {party_of(home)}", "rows", head, run)


def _verify_others(path: Path, named: list[str]) -> None:
    from colonnade.federation import heads
    from colonnade.federation.home import Home

    present = {}
    for entry in named:
        party, separator, file = entry.partition("=")
        if not separator:
            raise typer.BadParameter(f"{entry!r} is not PARTY=FILE.", param_hint="--ledger")
        present[party] = heads.PresentLedger.read(Path(file))
    unknown: list[str] = []
    if (path / heads.FILE).is_file():
        kept, keys = heads.of_run(path)
    else:
        mine, (roster, _) = party_of(path), Home(path=home_of(path)).pinned()
        keys = {member.name: member.signing_key for member in roster.members}
        with opened(path, "heads") as database:
            book = heads.Heads(database, create=False)
            book.chain.verify()
            kept = {party: entries for party, entries in book.by_party().items() if party != mine}
            unknown = heads.without_others(database, book)
    verdicts = heads.compared(kept, keys, present)
    _others(verdicts, unknown, [party for party in present if party not in kept])


def _others(verdicts: list[Compared], unknown: list[str], strangers: list[str]) -> None:
    out = Output()
    for party in strangers:
        out.say(f"{party}: has signed nothing that is kept here.")
    for verdict in verdicts:
        signed = "signed" if verdict.signed else "stated, without a signing key in the roster,"
        at = f"{verdict.newest.rows} rows, ending in {verdict.newest.hash[:16]}"
        out.say(f"{verdict.party}: {verdict.heads} heads {signed} the longest {at}.")
        if verdict.forked:
            out.say(f"  It has signed two ledgers: the heads for {', '.join(verdict.forked)} contradict others.")
        if verdict.missing:
            out.say(f"  Its ledger no longer contains what it signed for {', '.join(verdict.missing)}.")
        if not verdict.ledger:
            out.say(f"  Its ledger was not at hand: give --ledger {verdict.party}=FILE to compare.")
    if unknown:
        out.say(f"Closed without the heads of the other members: {', '.join(unknown)}; ask the coordinator why.")
    bad = [verdict.party for verdict in verdicts if not verdict.well]
    if bad:
        raise CorruptRecord(
            f"the ledger of {', '.join(bad)} was rolled back or rewritten after its owner had signed it; ask its"
            " operator, and count what the jobs above have cost."
        )
    out.result(f"Nothing contradicts what {len(verdicts)} members have signed.")


@ledger.command("export")
def ledger_export(
    home: HomePath,
    out: Annotated[Path, typer.Option("--out", help="A new file, ending in .json.", show_default=False)],
) -> None:
    """Write the rows of a ledger (jobs, stages, costs, times; no data) for other members to compare."""
    from colonnade.federation.heads import export

    head = export(home_of(home), out)
    Output().result(f"{out}: {head.rows} ledger rows, ending in {head.hash[:16]}.")


def _intact(record: str, rows: str, head: Head, run: Path | None) -> None:
    out = Output()
    out.result(f"{record} is intact: {head.rows} {rows}, ending in {head.hash[:16]}.")
    if run is not None:
        out.result(f"It still contains what it told {run}.")


@ledger.command()
def backup(
    home: HomePath,
    out: Annotated[Path, typer.Option("--out", help="A new file for the copy.", show_default=False)],
) -> None:
    """Copy a party's records while it serves, and verify the copy."""
    from colonnade.federation.recovery import backup as copied

    head = copied(home_of(home), out)
    Output().result(f"{out}: an intact copy with {head.rows} ledger rows, ending in {head.hash[:16]}.")


@ledger.command()
def restore(
    copy: Annotated[Path, typer.Argument(help="A copy that `colonnade ledger backup` made.", show_default=False)],
    home: HomePath,
) -> None:
    """Put a copy in the place of a party's records. What was spent since must be recovered then."""
    from colonnade.federation.recovery import restore as put_back

    head, replaced = put_back(copy, home_of(home))
    out = Output()
    out.result(f"Restored {head.rows} ledger rows, ending in {head.hash[:16]}.")
    if replaced is not None:
        out.say(f"What was there before is in {replaced}.")
    out.say("Before this party serves: `colonnade ledger recover HOME --runs RUNS` with the coordinator's run folders.")


@ledger.command()
def recover(
    home: HomePath,
    runs: Annotated[Path, typer.Option("--runs", help="The coordinator's folder of runs.", show_default=False)],
) -> None:
    """Count again what runs have spent since the copy that was restored."""
    from colonnade.federation.recovery import recover as made_up

    out = Output()
    recovered = made_up(home_of(home), party_of(home), runs)
    for job in recovered:
        out.say(f"{job.job}: {job.stages} stages counted again")
    out.result(f"{len(recovered)} runs were missing from the ledger of {party_of(home)}, which now answers for them.")


def _budget(home: Path) -> Budget | None:
    """The budget of the party's own policy, where its configuration is at hand."""
    from colonnade.federation.home import Home
    from colonnade.federation.policy import Policy

    if not (home_of(home) / "party.json").is_file():
        return None
    return Policy.from_dict(Home(path=home_of(home)).settings()["policy"]).budget


def _totals(book: Ledger, budget: Budget | None, delta: float) -> list[dict[str, Any]]:
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
                bound = guarantee_dict(book.spent(delta=delta, relation=relation, since=since))
            except CannotAccount as error:
                bound = {"epsilon": None, "delta": delta, "relation": relation, "text": f"not a total: {error}"}
            totals.append({"window": window, **bound})
    return totals


def _ledger_table(out: Output, title: str, rows: list[dict[str, Any]], number: tuple[str, str]) -> None:
    """`number`: the heading and the field of the column that tells requests apart. A row has its stage as "phase"."""
    from colonnade.formatting import timestamp
    from colonnade.privacy.cost import Cost
    from colonnade.privacy.wording import cost_text

    out.table(
        title,
        ("row", "time", "job", "stage", number[0], "cost"),
        [
            (
                str(row["number"]),
                timestamp(row["time"]),
                row["job"],
                row["phase"],
                str(row[number[1]]),
                cost_text(Cost.from_dict(row["cost"])),
            )
            for row in rows
        ],
        numeric=(0, 4),
    )


# --- the transcript ---------------------------------------------------------------------------------------------


@transcript.command("show")
def transcript_show(
    path: RecordPath,
    job: Annotated[str | None, typer.Option("--job", help="Only this job's messages.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages: direction, peer, step, bytes, cost and what each discloses."""
    from colonnade.federation.messages import Transcript
    from colonnade.formatting import size, timestamp
    from colonnade.privacy.cost import Cost
    from colonnade.privacy.wording import cost_text

    out = Output(quiet=as_json)
    with opened(path, "transcript") as database:
        messages = Transcript(database, create=False).rows(**({} if job is None else {"job": job}))
    rows = [{"number": message.number, **message.body, "hash": message.hash} for message in messages]
    if as_json:
        out.json(rows)
        return
    out.table(
        f"{len(rows)} messages, {size(sum(row['bytes'] for row in rows))}",
        ("row", "time", "message", "kind", "request", "step", "bytes", "cost", "discloses"),
        [
            (
                str(row["number"]),
                timestamp(row["time"]),
                f"{'to' if row['direction'] == 'out' else 'from'} {row['peer']}",
                row["kind"],
                str(row["seq"]),
                row["step"],
                str(row["bytes"]),
                "" if row["cost"] is None else cost_text(Cost.from_dict(row["cost"])),
                row["discloses"],
            )
            for row in rows
        ],
        numeric=(0, 4, 6),
    )


@transcript.command("verify")
def transcript_verify(path: RecordPath, run: Run = None) -> None:
    """Check that no message was changed, removed or inserted."""
    from colonnade.federation.messages import Transcript

    expect = handed_out(path, "transcript", run)
    with opened(path, "transcript") as database:
        head = Transcript(database, create=False).verify(expect=expect)
    _intact(f"The transcript in {path}", "messages", head, run)
