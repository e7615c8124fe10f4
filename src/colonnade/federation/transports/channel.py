"""Messages in parts over a gRPC stream, and the settings that both ends of the network transport share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import colonnade
from colonnade.errors import PartyLost, StorageError, WireError
from colonnade.federation.transports.certificates import AUTHORITY, CERTIFICATE, KEY
from colonnade.federation.wire import DEFAULT

if TYPE_CHECKING:
    from colonnade.federation.transports.generated.colonnade_pb2 import Frame

ATTEND = "/colonnade.v1.Coordinator/Attend"
PART = 1 << 20
"""Bytes in one part: small enough that pings and other streams pass between two of them."""
GREETING = 16

# gRPC for Python cannot name a least TLS version (grpc/grpc#37305). The only suites that it may use in TLS 1.2 are
# those that need an RSA certificate, and ours are P-256: so no TLS 1.2 handshake succeeds, and TLS 1.3 has suites of
# its own. `tests/federation/test_network.py` tries both.
_TLS_12_SUITES = "ECDHE-RSA-AES256-GCM-SHA384"


def grpc_module() -> Any:
    """gRPC with TLS 1.3 alone. It reads the environment when it first makes a connection."""
    os.environ["GRPC_SSL_CIPHER_SUITES"] = _TLS_12_SUITES
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import grpc.aio
    except ImportError as error:
        raise StorageError("the network transport needs gRPC; install colonnade[network].") from error
    return grpc


def credentials(folder: Path) -> tuple[bytes, bytes, bytes]:
    """Private key, certificate and the authority's certificate, as gRPC wants them."""
    contents = []
    for name in (KEY, CERTIFICATE, AUTHORITY):
        try:
            contents.append((folder / name).read_bytes())
        except OSError as error:
            raise StorageError(
                f"{folder / name} cannot be read ({error.strerror}); make the request with `init`, have the authority"
                " sign it, and put its certificate and the authority's there."
            ) from error
    return contents[0], contents[1], contents[2]


def keep_alive(seconds: float) -> list[tuple[str, int]]:
    """Pings find a silent loss within twice this time."""
    pause = int(seconds * 1000)
    return [
        ("grpc.keepalive_time_ms", pause),
        ("grpc.keepalive_timeout_ms", pause),
        ("grpc.http2.ping_timeout_ms", pause),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", max(pause // 2, 1)),
        ("grpc.max_receive_message_length", 2 * PART),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.so_reuseport", 0),
    ]


def parts(exchange: int, data: bytes) -> Iterator[Frame]:
    from colonnade.federation.transports.generated.colonnade_pb2 import Frame

    view = memoryview(data)
    for start in range(0, max(len(data), 1), PART):
        piece = bytes(view[start : start + PART])
        yield Frame(exchange=exchange, data=piece, last=start + PART >= len(data), size=len(data))


class Reader(Protocol):
    async def read(self) -> Any: ...


async def message(
    stream: Reader, end: object, heard: Callable[[int], None] = lambda _: None
) -> tuple[int, bytes] | None:
    """(exchange, bytes) of the next whole message, or None when the other side is done. `heard` is told the bytes of
    each part."""
    collected = bytearray()
    exchange: int | None = None
    size = 0
    while True:
        frame = await stream.read()
        if frame is end:
            return None
        if frame is None:  # gRPC's word for bytes that are no frame
            raise WireError("a part of a message cannot be read.")
        heard(len(frame.data))
        if exchange is None:
            exchange, size = frame.exchange, frame.size
            if size > DEFAULT.max_bytes:
                raise WireError(f"a message of {size} bytes is above the limit of {DEFAULT.max_bytes}.")
        if frame.exchange != exchange or frame.size != size or len(collected) + len(frame.data) > size:
            raise WireError("the parts of a message do not belong together.")
        collected += frame.data
        if frame.last:
            if len(collected) != size:
                raise WireError("a message is shorter than it says.")
            return exchange, bytes(collected)


# --- what else the coordinator serves over the same mutual TLS: its clock and version, for `colonnade doctor`, and the
# members' newest certificates ---------------------------------------------------------------------------------


CLOCK, NOW = "colonnade.v1.Clock", "Now"
CERTIFICATES, NEWEST = "colonnade.v1.Certificates", "Newest"


@dataclass(frozen=True, kw_only=True)
class ClockReading:
    """The coordinator's clock minus ours, in seconds, known to `within`; and its version."""

    ahead: float
    within: float
    version: str


async def _now(_: bytes, __: Any) -> bytes:
    return json.dumps({"time": time.time(), "version": colonnade.__version__}).encode()


def add_clock(server: Any, grpc: Any) -> None:
    """Serve the time to anyone with a certificate."""
    handler = grpc.unary_unary_rpc_method_handler(_now)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(CLOCK, {NOW: handler}),))


def ask_clock(coordinator: str, folder: Path, *, timeout: float = 5.0) -> ClockReading:
    """Half of the round trip is the error of the comparison."""
    grpc = grpc_module()
    key, certificate, authority = credentials(folder)
    mutual = grpc.ssl_channel_credentials(authority, key, certificate)
    with grpc.secure_channel(coordinator, mutual) as channel:
        call = channel.unary_unary(f"/{CLOCK}/{NOW}")
        try:
            call(b"", timeout=timeout)  # the handshake is not part of the round trip
            sent = time.time()
            answer = call(b"", timeout=timeout)
            received = time.time()
        except grpc.RpcError as error:
            raise PartyLost(f"{error.code().name.lower()}: {error.details()}") from error
    try:
        reading = json.loads(answer)
        return ClockReading(
            ahead=float(reading["time"]) - (sent + received) / 2,
            within=(received - sent) / 2,
            version=str(reading["version"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError("the coordinator's clock answered with something else than the time.") from error


def add_certificates(server: Any, grpc: Any, members: Mapping[str, Path]) -> None:
    """Serve the members' certificates, as the coordinator has them, to anyone with a certificate."""

    async def newest(_: bytes, __: Any) -> bytes:
        present = {name: path for name, path in members.items() if path.is_file()}
        return json.dumps({name: path.read_text(encoding="ascii") for name, path in present.items()}).encode()

    handler = grpc.unary_unary_rpc_method_handler(newest)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(CERTIFICATES, {NEWEST: handler}),))


async def newest_certificates(channel: Any, *, timeout: float = 30.0) -> dict[str, bytes]:
    """{member: certificate in PEM form}; each is still to be checked against the own authority."""
    answer = await channel.unary_unary(f"/{CERTIFICATES}/{NEWEST}")(b"", timeout=timeout)
    try:
        return {str(name): str(pem).encode() for name, pem in json.loads(answer).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise WireError("the coordinator answered with something else than certificates.") from error
