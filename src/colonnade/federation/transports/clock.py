"""What time it is at the coordinator, and its version: for `colonnade doctor`, over the same mutual TLS."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import colonnade
from colonnade.errors import PartyLost, WireError
from colonnade.federation.transports.frames import credentials, grpc_module

SERVICE, METHOD = "colonnade.v1.Clock", "Now"


@dataclass(frozen=True, kw_only=True)
class Told:
    """The coordinator's clock minus ours, in seconds, known to `within`; and its version."""

    ahead: float
    within: float
    version: str


async def _now(_: bytes, __: Any) -> bytes:
    return json.dumps({"time": time.time(), "version": colonnade.__version__}).encode()


def add_clock(server: Any, grpc: Any) -> None:
    """Serve the time to whoever has a certificate."""
    handler = grpc.unary_unary_rpc_method_handler(_now)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))


def ask_clock(coordinator: str, folder: Path, *, timeout: float = 5.0) -> Told:
    """Half of the round trip is the error of the comparison."""
    grpc = grpc_module()
    key, certificate, authority = credentials(folder)
    mutual = grpc.ssl_channel_credentials(authority, key, certificate)
    with grpc.secure_channel(coordinator, mutual) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        try:
            call(b"", timeout=timeout)  # the handshake is not part of the round trip
            asked = time.time()
            answer = call(b"", timeout=timeout)
            got = time.time()
        except grpc.RpcError as error:
            raise PartyLost(f"{error.code().name.lower()}: {error.details()}") from error
    try:
        told = json.loads(answer)
        return Told(
            ahead=float(told["time"]) - (asked + got) / 2, within=(got - asked) / 2, version=str(told["version"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise WireError("the coordinator's clock answered with something else than the time.") from error
