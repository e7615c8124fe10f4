"""A hostile coordinator below the messages: it serves the parts of the network's streams and the members' certificates
itself, as bytes, to a party's own process.

For each field of a part, and for what else it serves, deviations by a list. The party must live and come back, answer
an honest greeting after each of them, answer nothing else but refusals, and keep its ledger.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Reply, Request
from colonnade.federation.transports.certificates import CERTIFICATE
from colonnade.federation.transports.channel import ATTEND, CERTIFICATES, NEWEST, credentials, grpc_module, keep_alive
from colonnade.federation.wire import DEFAULT

HONEST = 999
"""The exchange of the honest greeting that ends each script."""
FETCHING = 5.0
PATIENCE = 20.0
"""Seconds in which a party must have come back and answered."""


@dataclass(frozen=True)
class Script:
    """What the coordinator does on one stream: parts as bytes, the certificates that it tells of, and how it ends the
    stream (a status code of gRPC, or none)."""

    name: str
    parts: Sequence[bytes] = ()
    certificates: bytes = b"{}"
    status: str = ""
    asked: frozenset[int] = frozenset()
    """Exchanges that the party may answer, with a refusal or with an honest greeting."""


def part(data: bytes, *, exchange: int = 1, last: bool = True, size: int | None = None) -> bytes:
    from colonnade.federation.transports.generated import colonnade_pb2

    stated = len(data) if size is None else size
    return bytes(colonnade_pb2.Frame(exchange=exchange, data=data, last=last, size=stated).SerializeToString())


def greeting() -> bytes:
    return Request(kind="hello", arguments={}).encode()


def scripts(own: bytes) -> Iterator[Script]:
    """`own`: the party's certificate, in PEM form."""
    hello = greeting()
    half = len(hello) // 2

    def parts(name: str, *sent: bytes, asked: Sequence[int] = (1,)) -> Script:
        return Script(name, sent, asked=frozenset(asked))

    for exchange in (0, 2, 2**31, 2**32 - 1):
        yield parts(f"exchange {exchange}", part(hello, exchange=exchange), asked=(exchange,))
    yield parts("two requests under one number", part(hello), part(hello))
    for size in (0, len(hello) - 1, len(hello) + 1, DEFAULT.max_bytes, DEFAULT.max_bytes + 1, 2**40):
        yield parts(f"size {size}", part(hello, size=size))
    yield parts("no last part", part(hello, last=False))
    yield parts("nothing", part(b""))
    yield parts("an empty part that is not the last", part(b"", last=False), part(hello))
    yield parts("an empty message", b"")
    yield parts("a part twice", *[part(hello[:half], last=False, size=len(hello))] * 2)
    first, second = (part(hello[:half], exchange=number, last=False, size=len(hello)) for number in (1, 2))
    yield parts("parts of two messages mixed", first, second, asked=(1, 2))
    yield parts("parts of one byte", *(
        part(hello[at : at + 1], last=at == len(hello) - 1, size=len(hello)) for at in range(len(hello))
    ))  # fmt: skip
    yield parts("many empty parts", *[part(b"", last=False, size=len(hello))] * 2000)
    yield parts("no protocol buffer", b"\xff\xff\xff")
    yield parts("a field of another type", b"\x0a\x03abc")
    yield parts("a length beyond the end", part(hello)[:-3])
    yield parts("a further field", part(hello) + b"\x7a\x01x")
    yield parts("other bytes", part(b"CLN\x02\xff"))
    yield parts("another protocol", part(b"CLN\x09\xc0"))
    yield parts("many requests at once", *(part(hello, exchange=number) for number in range(1, 50)), asked=range(1, 50))

    owner = x509.load_pem_x509_certificate(own)
    name = str(owner.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
    for what, told in {
        "nothing": b"",
        "a list": b"[]",
        "null": b"null",
        "a number for a certificate": json.dumps({name: 7}).encode(),
        "null for a certificate": json.dumps({name: None}).encode(),
        "no text": b"\xff\xfe\x00",
        "half a surrogate pair": b'{"%s": "\\ud800"}' % name.encode(),
        "no number": b'{"%s": NaN}' % name.encode(),
        "lists in lists": b"[" * 100_000,
        "tables in tables": b'{"a":' * 100_000,
        "a number of a million digits": b"9" * 10**6,
        "more than is taken": b" " * 3_000_000,
        "no certificate": json.dumps({name: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}).encode(),
        "a certificate of another version": _told(name, own, b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07"),
        "a certificate with another signature algorithm": _told(
            name, own, bytes.fromhex("06082a8648ce3d040302"), bytes.fromhex("06082a8648ce3d04037f")
        ),
        "a certificate with another key algorithm": _told(
            name, own, bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d03017f")
        ),
        "a certificate with one bit changed": json.dumps({name: _pem(_flipped(_der(own)))}).encode(),
        "a member that nobody knows": json.dumps({"../x": own.decode()}).encode(),
    }.items():
        yield Script(f"certificates: {what}", certificates=told)
    for status in ("UNAVAILABLE", "INTERNAL", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "CANCELLED"):
        yield Script(f"the stream ends: {status}", status=status)


def _der(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def _pem(der: bytes) -> str:
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{body}-----END CERTIFICATE-----\n"


def _told(name: str, pem: bytes, here: bytes, instead: bytes) -> bytes:
    """The party's certificate with some bytes changed wherever they are."""
    der = _der(pem)
    assert here in der
    return json.dumps({name: _pem(der.replace(here, instead))}).encode()


def _flipped(der: bytes) -> bytes:
    return der[:-1] + bytes([der[-1] ^ 1])


class HostileLine:
    """A server with the coordinator's credentials that plays scripts to the party that dials in."""

    def __init__(self, folder: Path) -> None:
        self._grpc = grpc_module()
        self._script = Script("none")
        self._replies: list[tuple[int, bytes]] = []
        self._answered = threading.Event()
        self._leave, self._fetched = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.port: int = self._run(self._start(folder))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, folder: Path) -> int:
        grpc = self._grpc
        key, certificate, authority = credentials(folder)
        self._server = grpc.aio.server(options=keep_alive(20.0))
        service, method = ATTEND.strip("/").split("/")
        attend = grpc.stream_stream_rpc_method_handler(self._attend)  # bytes in, bytes out
        newest = grpc.unary_unary_rpc_method_handler(self._newest)
        for name, served in ((service, {method: attend}), (CERTIFICATES, {NEWEST: newest})):
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, served),))
        mutual = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        port = self._server.add_secure_port("127.0.0.1:0", mutual)
        await self._server.start()
        return int(port)

    async def _newest(self, _: bytes, __: Any) -> bytes:
        self._fetched.set()
        return self._script.certificates

    async def _attend(self, _: Any, context: Any) -> None:
        from colonnade.federation.transports.generated import colonnade_pb2

        script, leave = self._script, self._leave
        await context.read()
        sent, self._script = self._script.parts, Script(script.name, certificates=script.certificates)
        for raw in sent:
            await context.write(raw)
        if script.status:
            await context.abort(getattr(self._grpc.StatusCode, script.status), "so says the coordinator")
        with contextlib.suppress(TimeoutError):  # the certificates first, which the party fetches beside its stream
            async with asyncio.timeout(FETCHING):
                await self._fetched.wait()
            await asyncio.sleep(0.05)
        await context.write(part(greeting(), exchange=HONEST))
        leaving, whole = asyncio.create_task(leave.wait()), b""
        while True:
            reading = asyncio.create_task(context.read())
            await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done() or reading.exception() or reading.result() is self._grpc.aio.EOF:
                reading.cancel()
                leaving.cancel()
                return
            frame = colonnade_pb2.Frame.FromString(reading.result())
            whole += frame.data
            if frame.last:
                self._replies.append((frame.exchange, whole))
                whole = b""
                if frame.exchange == HONEST:
                    self._answered.set()

    def play(self, script: Script, lives: Callable[[], bool] = lambda: True) -> list[tuple[int, bytes]] | None:
        """What the party answered to a script, up to the honest greeting; None: that was not answered in time, or the
        party no longer `lives`."""
        self._answered.clear()

        async def begin() -> None:
            self._script, self._replies, self._fetched = script, [], asyncio.Event()
            leave, self._leave = self._leave, asyncio.Event()
            leave.set()  # the party's stream ends, and it dials again

        self._run(begin())
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and lives():
            if self._answered.wait(0.1):
                return self._replies
        return None

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)  # the stream that is open ends first
        self._run(self._server.stop(grace=0.2))
        self._loop.call_soon_threadsafe(self._loop.stop)


@dataclass
class Played:
    scripts: int = 0
    refused: list[str] = field(default_factory=list)
    findings: list[tuple[str, str]] = field(default_factory=list)
    """(script, what happened)"""


def play_all(federation: Callable[..., Federation], *, only: Callable[[str], bool] = lambda name: True) -> Played:
    """All scripts, against the process of one party of a network of its own."""
    played = Played()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        with federation(Path(folder), seed=1, transport="network") as made:
            party = made.transport.parties[0]
            made.transport.exchange(party, greeting(), timeout=60)  # its folder is whole
        home, network = Path(folder) / "home" / party, Path(folder) / "home" / "network"
        line = HostileLine(network / "coordinator")
        command = [sys.executable, "-m", "colonnade.federation.transports.attend", str(home)]
        command += ["--coordinator", f"127.0.0.1:{line.port}", "--credentials", str(network / f"party-{party}")]

        def started() -> subprocess.Popen[bytes]:
            with (home / "process.txt").open("ab") as log:
                return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        process = started()
        try:
            honest = line.play(Script("the honest coordinator"))
            if honest is None:
                raise RuntimeError(f"{party} does not dial in: {(home / 'process.txt').read_text()[-2000:]}")
            own = (network / f"party-{party}" / CERTIFICATE).read_bytes()
            for script in [script for script in scripts(own) if only(script.name)]:
                played.scripts += 1
                replies = line.play(script, lambda: process.poll() is None)  # noqa: B023  the present one
                for exchange, answer in replies or ():
                    reply = Reply.decode(answer)
                    if reply.error:
                        played.refused.append(reply.error)
                    elif exchange not in {*script.asked, HONEST} or reply.value != Reply.decode(honest[-1][1]).value:
                        played.findings.append((script.name, f"{party} answered {reply.value!r}"))
                if process.poll() is not None:
                    played.findings.append((script.name, f"the process of {party} ended"))
                    process = started()
                    line.play(Script("the honest coordinator"))
                elif replies is None:
                    played.findings.append((script.name, f"{party} does not come back"))
        finally:
            process.terminate()
            process.wait()
            line.close()
    return played
