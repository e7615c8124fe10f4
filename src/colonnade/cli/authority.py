"""`colonnade authority`: the consortium's own certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from colonnade.cli.output import Output, Verbs

app = typer.Typer(
    cls=Verbs, help="Make, sign and revoke the consortium's certificates.", no_args_is_help=True, rich_markup_mode=None
)

Folder = Annotated[Path, typer.Option("--authority", help="The authority's folder.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder; its key never leaves it.")] = Path("authority"),
    name: Annotated[str, typer.Option("--name", help="Of the consortium.")] = "consortium",
) -> None:
    """Make the authority. Give everybody its authority.pem over a channel that they trust."""
    from colonnade.federation.transports.certificates import make_authority

    made = make_authority(folder, name=name)
    Output().result(f"Give this to every member and the coordinator: {made}")


@app.command()
def sign(
    request: Annotated[Path, typer.Argument(help="A member's request.pem.")],
    out: Annotated[Path, typer.Option("--out", help="Where the certificate goes.", show_default=False)],
    role: Annotated[Literal["party", "coordinator"], typer.Option("--role", help="Whose it is.")] = "party",
    days: Annotated[float, typer.Option("--days", help="How long it is valid; short is safer.")] = 30.0,
    authority: Folder = Path("authority"),
) -> None:
    """Sign a request, after its sender has confirmed the name and the fingerprint that are printed."""
    from colonnade.federation.transports import certificates
    from colonnade.secure.sealed import PublicKey

    made = certificates.sign(authority, request, out, role=role, days=days)
    output = Output()
    output.say(f"name          {made.name}")
    output.say(f"organisation  {made.organisation}")
    if made.sealing_key is not None:
        output.say(f"sealing key   {PublicKey(made.sealing_key).fingerprint}")
    output.say(f"expires       {made.expires:%Y-%m-%d %H:%M} UTC")
    output.result(f"Certificate: {out}")


@app.command()
def revoke(
    certificate: Annotated[Path, typer.Argument(help="The certificate that is no longer good.")],
    authority: Folder = Path("authority"),
) -> None:
    """Add a certificate to revoked.txt; copy that file to the coordinator, which reads it at once."""
    from colonnade.federation.transports import certificates

    gone = certificates.revoke(authority, certificate)
    Output().result(f"Revoked {gone.name}, serial {gone.serial:x}: copy {authority / certificates.REVOKED}")
