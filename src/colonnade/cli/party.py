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
    from colonnade.console.desk import Desk

    output = Output()
    desk = Desk(file)
    waiting = desk.waiting()
    if as_json:
        output.json({card.job: card.plan.to_dict() for card in waiting})
        return
    if not waiting:
        output.say("No job is waiting.")
    for card in waiting:
        forecast = desk.forecast(card)
        output.say(card.job)
        output.say(f"Asked by {card.asker or 'whoever runs this machine'}.")
        if not forecast.genuine:
            output.say(f"Take care: the sentences of this plan are the coordinator's. {forecast.doubt}")
        output.say(card.plan.text())
        if forecast.before is not None and forecast.after is not None:
            output.say(f"Counted against the budget: {forecast.before} before, {forecast.after} after.")
        if forecast.refused:
            output.say(f"It cannot be approved: {forecast.refused}")
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


@app.command()
def console(
    file: PartyToml,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0 for any free one.")] = 0,
) -> None:
    """Show requests, budget, ledger, transcript and runs in this machine's browser (docs/console.md)."""
    from colonnade.console.desk import Desk
    from colonnade.console.server import Console

    output = Output()
    desk = Desk(file)
    output.say(f"Console of {desk.name}, for this machine only. Stop it with Ctrl-C.")

    def link(address: str) -> None:
        output.result(f"To enter from one browser, once: {address}")

    served = Console(desk, port=port, said=link)
    try:
        link(served.start())
        served.wait()
    except KeyboardInterrupt:
        output.say("The console is closed.")
    finally:
        served.close()


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
