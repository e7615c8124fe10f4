"""`colonnade party` and `colonnade coordinator`: one institution's end of a federation over the network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.output import AsJson, Output, Verbs

app = typer.Typer(
    cls=Verbs, help="Set up, serve and decide for one institution.", no_args_is_help=True, rich_markup_mode=None
)
coordinator = typer.Typer(cls=Verbs, help="Set up the coordinator.", no_args_is_help=True, rich_markup_mode=None)

PartyToml = Annotated[Path, typer.Argument(help="This institution's party.toml (docs/network.md).")]
JobName = Annotated[str, typer.Argument(help="The job, as `colonnade party requests` names it.")]


@app.command()
def init(
    file: PartyToml,
    organisation: Annotated[str, typer.Option("--organisation", help="Who runs it.", show_default=False)],
) -> None:
    """Make this party's keys where they stay, and a request for the authority to sign."""
    from colonnade.federation.consortium import PartyFile
    from colonnade.federation.home import Home
    from colonnade.federation.transports.certificates import make_request

    party = PartyFile.from_toml(file)
    identity = Home(path=party.home).identity()
    made = make_request(party.credentials, name=party.name, organisation=organisation, sealing_key=identity.public)
    output = Output()
    output.say(f"Tell the authority this fingerprint by telephone: {identity.public.fingerprint}")
    output.result(f"Send this to the authority: {made}")


@app.command()
def serve(file: PartyToml) -> None:
    """Dial the coordinator and answer its requests, until interrupted. No port is opened here."""
    from colonnade.federation.consortium import PartyFile
    from colonnade.federation.transports.attend import serve as attend

    output = Output()
    party = PartyFile.from_toml(file)
    agreed = party.prepare()
    attend(
        party.home,
        coordinator=agreed.coordinator,
        folder=party.credentials,
        said=output.say,
        prepare=lambda: PartyFile.from_toml(file).prepare(),
    )


@app.command()
def requests(file: PartyToml, as_json: AsJson = False) -> None:
    """List the jobs that wait for a decision, with their plans."""
    from colonnade.federation.approvals import operator
    from colonnade.federation.consortium import PartyFile

    output = Output()
    with operator(PartyFile.from_toml(file).home) as desk:
        waiting = desk.waiting()
        if as_json:
            output.json({job: plan.to_dict() for job, plan in waiting.items()})
            return
        if not waiting:
            output.say("No job is waiting.")
        for job, plan in waiting.items():
            output.say(f"{job}")
            output.say(plan.text())
            output.say()


@app.command()
def approve(file: PartyToml, job: JobName) -> None:
    """Approve a job that waits: its cost is reserved, and the coordinator may resume it."""
    _decide(file, job, approved=True)


@app.command()
def deny(file: PartyToml, job: JobName) -> None:
    """Deny a job that waits."""
    _decide(file, job, approved=False)


def _decide(file: Path, job: str, *, approved: bool) -> None:
    from colonnade.federation.approvals import operator
    from colonnade.federation.consortium import PartyFile

    party = PartyFile.from_toml(file)
    with operator(party.home, policy=party.policy) as desk:
        desk.decide(job, approve=approved)
    Output().result(f"{job}: {'approved' if approved else 'denied'}")


@coordinator.command("init")
def coordinator_init(
    folder: Annotated[Path, typer.Argument(help="A new folder for its credentials.")],
    host: Annotated[list[str], typer.Option("--host", help="Name or address that parties dial. May be repeated.")],
    organisation: Annotated[str, typer.Option("--organisation", help="Who runs it.", show_default=False)],
) -> None:
    """Make the coordinator's key where it stays, and a request for the authority to sign."""
    from colonnade.federation.transports.certificates import make_request

    made = make_request(folder, name="coordinator", organisation=organisation, hosts=tuple(host))
    Output().result(f"Send this to the authority: {made}")
