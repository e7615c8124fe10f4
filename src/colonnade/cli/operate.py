"""One institution's end of a federation: party, coordinator, certificates, check-ups and column declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from colonnade.cli.output import UNWELL, AsJson, Output
from colonnade.cli.start import TABLE, table_source
from colonnade.codec import plain

if TYPE_CHECKING:
    from colonnade.console.operator import OperatorService
    from colonnade.console.server import Site
    from colonnade.federation.run_folder import RunFolder

party = typer.Typer(no_args_is_help=True, help="Set up, serve and decide for one institution.")
operators = typer.Typer(no_args_is_help=True, help="Who may decide for a party, each with a password.")
party.add_typer(operators, name="operator")
coordinator = typer.Typer(no_args_is_help=True, help="Set up and run the coordinator.")
authority = typer.Typer(no_args_is_help=True, help="Make, sign and revoke the consortium's certificates.")
columns = typer.Typer(no_args_is_help=True, help="Declare the columns' public domains.")


# --- a party --------------------------------------------------------------------------------------------------

PartyToml = Annotated[Path, typer.Argument(help="This institution's party.toml (`colonnade docs network`).")]
OperatorName = Annotated[
    str | None, typer.Option("--operator", help="Who decides; asks for the password.", show_default=False)
]
JobName = Annotated[str, typer.Argument(help="The job, as `colonnade party requests` names it.")]


@party.command("init")
def party_init(
    file: PartyToml,
    organisation: Annotated[
        str | None, typer.Option("--organisation", help="Who runs it; a kit knows.", show_default=False)
    ] = None,
) -> None:
    """Make this party's keys where they stay, and one file for the authority."""
    from colonnade.federation.provision import initialise

    fingerprint, request = initialise(file, organisation)
    out = Output()
    out.say(f"Tell the authority this fingerprint by telephone: {fingerprint}")
    out.result(f"Send this to the authority: {request}")


@party.command()
def serve(file: PartyToml) -> None:
    """Dial the coordinator and answer its requests, until interrupted. No port is opened here."""
    from colonnade.console.operators import send_notice
    from colonnade.federation.config import ConsortiumFile, PartyFile
    from colonnade.federation.home import prepare
    from colonnade.federation.transports.attend import serve as attend

    settings = PartyFile.from_toml(file)
    agreed = prepare(settings)
    said = Output().say
    attend(
        settings.home,
        coordinator=agreed.coordinator,
        folder=settings.credentials,
        said=said,
        members=ConsortiumFile.from_toml(settings.consortium).certificates,
        prepare=lambda: prepare(PartyFile.from_toml(file)),
        notice=lambda text: send_notice(settings.notice, text, said=said),
    )


@party.command()
def requests(file: PartyToml, as_json: AsJson = False) -> None:
    """List the jobs that wait for a decision, with what each does and its plan."""
    from colonnade.console.operator import OperatorService

    out = Output()
    service = OperatorService(file)
    waiting = service.waiting()
    if as_json:
        out.json({job.name: job.plan.to_dict() for job in waiting})
        return
    if not waiting:
        out.say("No job is waiting.")
    for job in waiting:
        forecast = service.forecast(job)
        out.say(job.name)
        out.say(service.summary(job.plan).purpose)
        out.say(f"Asked by {job.requester or 'the user of this machine'}.")
        if not forecast.genuine:
            out.say(f"Take care: the sentences of this plan are the coordinator's. {forecast.doubt}")
        out.say(job.plan.text())
        if forecast.before is not None and forecast.after is not None:
            out.say(f"Counted against the budget: {forecast.before} before, {forecast.after} after.")
        if forecast.refused:
            out.say(f"It cannot be approved: {forecast.refused}")
        out.say()


@party.command()
def approve(file: PartyToml, job: JobName, operator: OperatorName = None) -> None:
    """Approve a job that waits: its cost is reserved, and the coordinator may resume it."""
    _decide(file, job, operator, approved=True)


@party.command()
def deny(file: PartyToml, job: JobName, operator: OperatorName = None) -> None:
    """Deny a job that waits."""
    _decide(file, job, operator, approved=False)


@party.command()
def end(
    file: PartyToml,
    job: JobName,
    operator: OperatorName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """End a job that waits or is under way: rows and shares that it left here are deleted."""
    from colonnade.console.operator import OperatorService

    if not yes:
        typer.confirm(f"End {job}? It cannot go on afterwards, and what it has spent stays spent.", abort=True)
    service = OperatorService(file)
    service.end(job, by=_signed_in(service, operator))
    Output().result(f"{job}: ended")


def _decide(file: Path, job: str, operator: str | None, *, approved: bool) -> None:
    from colonnade.console.operator import OperatorService

    service = OperatorService(file)
    lacking = service.decide(job, approve=approved, by=_signed_in(service, operator))
    waits = f"; it waits for {_count(lacking, 'more operator')}" if lacking else ""
    Output().result(f"{job}: {'approved' if approved else 'denied'}{waits}")


def _signed_in(service: OperatorService, operator: str | None) -> str:
    """The operator who says so and has the password; empty if none was named."""
    if operator is None:
        return ""
    return service.operators.signed_in(operator, typer.prompt("Password", hide_input=True))


@operators.command()
def add(file: PartyToml, name: Annotated[str, typer.Argument(help="Their name.", show_default=False)]) -> None:
    """Add an operator with a password of their own, or give one a new password."""
    from colonnade.console.operator import OperatorService

    password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    OperatorService(file).operators.add(name, password)
    Output().result(f"{name} may decide; how many must approve a job is approvals in [policy].")


@operators.command()
def remove(file: PartyToml, name: Annotated[str, typer.Argument(help="Their name.", show_default=False)]) -> None:
    """Take an operator away."""
    from colonnade.console.operator import OperatorService

    OperatorService(file).operators.remove(name)
    Output().result(f"{name} is no operator any more.")


@operators.command("list")
def list_operators(file: PartyToml) -> None:
    """Name the operators."""
    from colonnade.console.operator import OperatorService

    names = OperatorService(file).operators.names
    Output().result(", ".join(names) if names else "No operator has a password: who holds the folder decides.")


Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0 for any free one.")]


@party.command()
def console(
    file: PartyToml,
    port: Port = 0,
) -> None:
    """Show requests, budget, ledger, transcript and runs in this machine's browser (`colonnade docs console`)."""
    from colonnade.console.operator import OperatorService
    from colonnade.console.party import PartySite

    _console(PartySite(OperatorService(file)), port)


def _console(site: Site, port: int) -> None:
    """Until Ctrl-C."""
    from colonnade.console.server import Console

    out = Output()
    out.say(f"Console of {site.name}, for this machine only. Stop it with Ctrl-C.")

    def link(address: str) -> None:
        out.result(f"To enter from one browser, once: {address}")

    served = Console(site, port=port, said=link)
    try:
        link(served.start())
        served.wait()
    except KeyboardInterrupt:
        out.say("The console is closed.")
    finally:
        served.close()


# --- the coordinator and the authority ------------------------------------------------------------------------

AuthorityFolder = Annotated[Path, typer.Option("--authority", help="The authority's folder.")]


@coordinator.command("init")
def coordinator_init(
    folder: Annotated[Path, typer.Argument(help="A new folder for its credentials.")],
    host: Annotated[list[str], typer.Option("--host", help="Name or address that parties dial. May be repeated.")],
    organisation: Annotated[str, typer.Option("--organisation", help="Who runs it.", show_default=False)],
) -> None:
    """Make the coordinator's key where it stays, and a request for the authority to sign."""
    from colonnade.federation.transports.certificates import make_request

    request = make_request(folder, name="coordinator", organisation=organisation, hosts=tuple(host))
    Output().result(f"Send this to the authority: {request}")


CoordinatorToml = Annotated[Path, typer.Argument(help="The coordinator.toml (`colonnade docs network`).")]


@coordinator.command("serve")
def coordinator_serve(file: CoordinatorToml = Path("coordinator.toml")) -> None:
    """Stay: keep the parties connected, run what is asked for, go on when operators have approved.

    While it runs, every verb with `-f coordinator.toml` puts its job into the queue and follows it.
    """
    import signal

    from colonnade.evaluation.report import write_report
    from colonnade.federation.service import CoordinatorService

    def report(run: RunFolder, remarks: Sequence[str]) -> None:
        write_report(run, remarks=remarks)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = Output()
    try:
        CoordinatorService(file, finished=report, said=out.say).serve()
    except KeyboardInterrupt:
        out.say("The coordinator has stopped; what was under way goes on when it is started again.")


@coordinator.command()
def ask(
    job: Annotated[Path, typer.Argument(help="A job.toml: method, and [options] as the method's class takes them.")],
    file: Annotated[Path, typer.Option("--federation", "-f", metavar="FILE", help="The coordinator.toml.")] = Path(
        "coordinator.toml"
    ),
    sure: Annotated[bool, typer.Option("--sure", help="Run it also if its plan says that it will not work.")] = False,
) -> None:
    """Put a job into the queue of the coordinator, and leave it there."""
    from colonnade.federation.config import JobFile
    from colonnade.federation.service import Queue

    asked = JobFile.from_toml(job)
    asked.method()
    Output().result(Queue.of(file).put(asked.wanted, asked.options, name=asked.name, sure=sure))


@coordinator.command()
def jobs(file: CoordinatorToml = Path("coordinator.toml"), as_json: AsJson = False) -> None:
    """List what is in the queue, and whom or what each job waits for."""
    from colonnade.federation.service import Queue

    queue, out = Queue.of(file), Output()
    states = {name: queue.state(name) for name in queue.waiting()}
    if as_json:
        out.json({"served": queue.served, "jobs": plain(states)})
        return
    if not queue.served:
        out.say("No coordinator serves this queue; start one with `colonnade coordinator serve`.")
    if not states:
        out.say("No job is in the queue.")
        return
    rows = [(name, state.state, state.sentence or _rounds(state.progress)) for name, state in states.items()]
    out.table("Jobs", ("job", "state", ""), rows)


def _rounds(progress: Mapping[str, Any] | None) -> str:
    return "" if progress is None else f"round {progress['rounds']} of {progress['of']}"


@coordinator.command("console")
def coordinator_console(file: CoordinatorToml = Path("coordinator.toml"), port: Port = 0) -> None:
    """Show the queue in this machine's browser, and ask for jobs there (`colonnade docs console`)."""
    from colonnade.console.coordinator import CoordinatorSite

    _console(CoordinatorSite(file), port)


@coordinator.command("end")
def coordinator_end(
    job: Annotated[str, typer.Argument(help="The job, as `colonnade coordinator jobs` names it.")],
    file: Annotated[Path, typer.Option("--federation", "-f", metavar="FILE", help="The coordinator.toml.")] = Path(
        "coordinator.toml"
    ),
) -> None:
    """Take a job out of the queue. What it has spent stays spent; parties end what it left by themselves."""
    from colonnade.federation.service import Queue

    Queue.of(file).end(job, failed="taken out of the queue")
    Output().result(f"{job}: ended")


@authority.command("init")
def authority_init(
    folder: Annotated[Path, typer.Argument(help="A new folder; its key never leaves it.")] = Path("authority"),
    name: Annotated[str, typer.Option("--name", help="Of the consortium.")] = "consortium",
) -> None:
    """Make the authority. Give everyone its authority.pem over a channel that they trust."""
    from colonnade.federation.transports.certificates import make_authority

    Output().result(f"Give this to every member and the coordinator: {make_authority(folder, name=name)}")


@authority.command()
def sign(
    request: Annotated[Path, typer.Argument(help="A member's request.pem.")],
    out: Annotated[Path, typer.Option("--out", help="Where the certificate goes.", show_default=False)],
    role: Annotated[Literal["party", "coordinator"], typer.Option("--role", help="Whose it is.")] = "party",
    days: Annotated[float, typer.Option("--days", help="How long it is valid; short is safer.")] = 30.0,
    authority: AuthorityFolder = Path("authority"),
) -> None:
    """Sign a request, after its sender has confirmed the name and the fingerprint that are printed."""
    from colonnade.federation.transports import certificates
    from colonnade.secure.sealed import PublicKey

    signed = certificates.sign(authority, request, out, role=role, days=days)
    output = Output()
    output.say(f"name          {signed.name}")
    output.say(f"organisation  {signed.organisation}")
    if signed.sealing_key is not None:
        output.say(f"sealing key   {PublicKey(signed.sealing_key).fingerprint}")
    output.say(f"expires       {signed.expires:%Y-%m-%d %H:%M} UTC")
    output.result(f"Certificate: {out}")


@authority.command()
def revoke(
    certificate: Annotated[Path, typer.Argument(help="The certificate that is no longer good.")],
    authority: AuthorityFolder = Path("authority"),
) -> None:
    """Add a certificate to revoked.txt; copy that file to the coordinator, which reads it at once."""
    from colonnade.federation.transports import certificates

    gone = certificates.revoke(authority, certificate)
    Output().result(f"Revoked {gone.name}, serial {gone.serial:x}: copy {authority / certificates.REVOKED}")


def provision(
    file: Annotated[Path, typer.Argument(help="The consortium.toml that you have written.", show_default=False)],
    replies: Annotated[
        list[Path] | None, typer.Argument(metavar="[REPLY]...", help="What members have sent back.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the kits go.")] = Path("kits"),
    days: Annotated[float, typer.Option("--days", help="How long certificates are valid.")] = 90.0,
    trusted_dealer: Annotated[
        bool, typer.Option("--trusted-dealer", help="Make the members' keys too: for trials, with data not real.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask for fingerprints; with a dealer, confirm drafted columns."),
    ] = False,
) -> None:
    """Make a signed start-up kit for each member of a consortium, and the coordinator's.

    Members send one file back; with all of them, the same command signs and completes the kits. Later it renews
    certificates that are past half of their life.
    """
    from colonnade.federation.provision import Provision, initialise

    output = Output()
    kits = Provision(file, out, days=days)
    fresh = kits.begin(dealer=trusted_dealer, confirm=yes)
    if trusted_dealer:
        replies = [initialise(out / name / "party.toml", None)[1] for name in fresh]
        output.say("The keys of all members were made here, by you: for trials, with data that are not real.")
    members = kits.take(replies or [])
    if members and not trusted_dealer:
        output.table(
            "Compare by telephone",
            ("member", "organisation", "fingerprint"),
            [(member.name, member.organisation, member.fingerprint) for member in members],
        )
        if not yes:
            typer.confirm("Has every sender confirmed its fingerprint?", abort=True)
    if kits.lacking:
        for name in fresh:
            output.say(f"Send to {name}: {out / name}.zip")
        output.say(f"{', '.join(kits.lacking)} send one file back each; then: colonnade provision {file} FILE...")
    else:
        kits.complete(dealer=trusted_dealer)
        away = False
        for name in kits.draft.members:
            if (out / name / "credentials" / "tls.key").is_file():
                output.say(f"{name}: colonnade party serve {out / name / 'party.toml'}    (to send: {out / name}.zip)")
            else:
                away = True
                output.say(f"Send to {name}: {out / name}.zip")
        if away:
            output.say("There, unpacked over the first kit: colonnade party serve party.toml")
        output.say(f"Here: colonnade coordinator serve {out / 'coordinator' / 'coordinator.toml'}")
    output.result(f"Kits: {out.absolute()}")


# --- check-ups ------------------------------------------------------------------------------------------------


def doctor(
    file: Annotated[Path, typer.Argument(help="party.toml or coordinator.toml.", show_default=False)],
    quick: Annotated[bool, typer.Option("--quick", help="Do not read the rows of the source.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check certificates, keys, clocks, versions, ports, disk, columns and records; say what to do."""
    from colonnade.federation.doctor import examine

    out = Output(quiet=as_json)
    with out.busy("looking"):
        examined = examine(file, quick=quick)
    if as_json:
        out.json(
            {
                "side": examined.side,
                "name": examined.name,
                "faults": examined.faults,
                "warnings": examined.warnings,
                "findings": plain(examined.findings),
            }
        )
    else:
        order = {"fault": 0, "warning": 1, "ok": 2}
        findings = sorted(examined.findings, key=lambda finding: order[finding.level])
        out.table(
            f"{examined.side.capitalize()} {examined.name}" if examined.side == "party" else "Coordinator",
            ("", "about", "finding"),
            [(finding.level, finding.about, finding.sentence) for finding in findings],
        )
        out.say()
        well = "Nothing is wrong." if not examined.faults else "Cure the faults first."
        out.say(f"{_count(examined.faults, 'fault')}, {_count(examined.warnings, 'warning')}. {well}")
    if examined.faults:
        raise typer.Exit(UNWELL)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# --- column declarations --------------------------------------------------------------------------------------


@columns.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="COLUMNS.TOML", help="The declaration.", show_default=False)],
    source: Annotated[
        Path | None, typer.Option("--source", help=f"What to check against it. {TABLE}", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The column that identifies a record.", show_default=False)
    ] = None,
) -> None:
    """Check a columns.toml, and with --source and --key that a table agrees with it."""
    from colonnade.data.block import Block
    from colonnade.data.column import Columns

    if (source is None) != (key is None):
        raise typer.BadParameter("give --source and --key together, or neither.")
    out = Output()
    declared = Columns.from_toml(file)
    declared.confirmed()
    out.result(f"{file}: {len(declared)} columns, all declared and confirmed.")
    if source is not None and key is not None:
        block = Block.open(source.stem, table_source(str(source)), key=key, columns=declared)
        for note in block.notes:
            out.say(note)
        out.result(f"{source}: {block.n_records:,} records agree with the {len(block.columns)} columns that it has.")
