"""The coordinator's end of the network: parties dial in over mutual TLS 1.3 and keep one stream open.

A party is who its certificate says, never who its messages say. When a stream is lost, the same bytes are sent again to
the party that comes back: requests are idempotent by (job, sequence number), so nothing is computed or debited twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from cryptography import x509

from colonnade.errors import BadArguments, ColonnadeError, PartyLost, WireError
from colonnade.federation.transports.certificates import Revoked, Subject, subject_of
from colonnade.federation.transports.channel import (
    ATTEND,
    GREETING,
    add_certificates,
    add_clock,
    credentials,
    grpc_module,
    keep_alive,
    message,
    parts,
)

T = TypeVar("T")
_LOG = logging.getLogger("colonnade.network")
GREETING_SECONDS = 10.0
DRAIN_SECONDS = 2.0
SLOWEST = 10_000
"""Bytes a second."""
_STOPPED: list[asyncio.AbstractEventLoop] = []


class _Gone(Exception):
    """The stream ended before the answer came."""


class _Connection:
    """One party's live stream."""

    def __init__(self, owner: Subject, instance: bytes, context: Any) -> None:
        self.owner, self.instance = owner, instance
        self._context = context
        self._gone = asyncio.Event()
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._count = 0
        self._heard: Callable[[int], None] | None = None

    def heard(self, size: int) -> None:
        """So many bytes of a message came."""
        if self._heard is not None:
            self._heard(size)

    async def ask(self, data: bytes, passing: Callable[[int], None]) -> bytes:
        """`passing` is called with the bytes of each part that passes, in either direction."""
        self._count += 1
        self._heard = passing
        exchange = self._count
        answer = self._answers[exchange] = asyncio.get_running_loop().create_future()
        lost = asyncio.create_task(self._gone.wait())
        try:
            for part in parts(exchange, data):
                if self._gone.is_set():
                    raise _Gone
                await self._context.write(part)
                passing(len(part.data))
            await asyncio.wait({answer, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise _Gone
            reply: bytes = answer.result()
            return reply
        except _Gone:
            raise
        except (asyncio.CancelledError, TimeoutError):
            if self._gone.is_set():
                raise _Gone from None
            raise
        except Exception as error:  # whatever gRPC raises when a stream breaks while it is written
            raise _Gone from error
        finally:
            self._heard = None
            lost.cancel()
            self._answers.pop(exchange, None)

    def take(self, exchange: int, data: bytes) -> None:
        """An answer; one that nobody waits for any more (a time-out) is dropped."""
        waiting = self._answers.get(exchange)
        if not 1 <= exchange <= self._count:
            raise WireError(f"an answer to request {exchange}, which was never sent.")
        if waiting is not None and not waiting.done():
            waiting.set_result(data)

    def leave(self) -> None:
        self._gone.set()


class Network:
    """A transport. Serves on `address` (host:port, port 0 for any) until `close`.

    folder: tls.key, certificate.pem and authority.pem of the coordinator. revoked: a list of serial numbers, read again
    when it changes. members: the parties' own certificates by name, which parties fetch when they are renewed.
    patience: seconds that a lost party may stay away before it is `PartyLost`.
    """

    def __init__(
        self,
        parties: Sequence[str],
        *,
        address: str,
        folder: Path,
        revoked: Path | None = None,
        members: Mapping[str, Path] = MappingProxyType({}),
        patience: float = 30.0,
        ping: float = 20.0,
    ) -> None:
        self.parties = tuple(parties)
        self._patience, self._ping = patience, ping
        self._revoked = Revoked(revoked)
        self._connections: dict[str, _Connection] = {}
        self._closing = False
        self._changed = asyncio.Event()
        self._locks = {party: asyncio.Lock() for party in parties}
        self._grpc = grpc_module()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="colonnade network", daemon=True)
        self._thread.start()
        try:
            self.port: int = self._run(self._start(address, folder, members))
        except BaseException:
            self._stop_loop()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, address: str, folder: Path, members: Mapping[str, Path]) -> int:
        grpc = self._grpc
        key, certificate, authority = credentials(folder)
        self._server = grpc.aio.server(options=keep_alive(self._ping))
        from colonnade.federation.transports.generated.colonnade_pb2 import Frame

        handler = grpc.stream_stream_rpc_method_handler(
            self._attend, request_deserializer=Frame.FromString, response_serializer=Frame.SerializeToString
        )
        service, method = ATTEND.strip("/").split("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        _add_health(self._server)
        add_clock(self._server, grpc)
        add_certificates(self._server, grpc, members)
        mutual = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        try:
            port = self._server.add_secure_port(address, mutual)
        except RuntimeError as error:
            raise BadArguments(
                f"the coordinator cannot serve at {address} ({error}); choose another address or port, and check its"
                " certificate and key."
            ) from error
        await self._server.start()
        return int(port)

    # --- the parties' streams -------------------------------------------------------------------------------

    async def _attend(self, _: Any, context: Any) -> None:
        refused = self._grpc.StatusCode.PERMISSION_DENIED
        try:
            owner = self._owner(context)
        except ColonnadeError as error:
            _LOG.warning("refused %s: %s", context.peer(), error)
            await context.abort(refused, str(error))
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                greeting = await message(context, self._grpc.aio.EOF)
        except (TimeoutError, WireError):
            greeting = None
        if greeting is None or greeting[0] != 0 or len(greeting[1]) != GREETING:
            await context.abort(self._grpc.StatusCode.INVALID_ARGUMENT, "a party greets first.")
        assert greeting is not None
        earlier = self._connections.get(owner.name)
        if earlier is not None and earlier.instance != greeting[1]:
            _LOG.warning("a second process tried to attend as %r from %s", owner.name, context.peer())
            await context.abort(
                self._grpc.StatusCode.ALREADY_EXISTS,
                f"another process already attends as {owner.name!r}; stop it, or find out whose it is.",
            )
        connection = self._connections[owner.name] = _Connection(owner, greeting[1], context)
        if earlier is not None:
            earlier.leave()
        self._announce()
        try:
            while (received := await message(context, self._grpc.aio.EOF, connection.heard)) is not None:
                connection.take(*received)
        except WireError as error:
            _LOG.warning("%r broke the protocol: %s", owner.name, error)
            await context.abort(self._grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            if not self._closing:  # gRPC writes a traceback for every stream that ends so
                raise
        finally:
            connection.leave()
            if self._connections.get(owner.name) is connection:
                del self._connections[owner.name]
            self._announce()

    def _owner(self, context: Any) -> Subject:
        """The member on the other end, from the certificate that the handshake verified."""
        pem = context.auth_context().get("x509_pem_cert")
        if not pem:
            raise WireError("the connection has no certificate.")
        owner = subject_of(x509.load_pem_x509_certificate(pem[0]))
        self._check(owner)
        return owner

    def _check(self, owner: Subject) -> None:
        """Still good? A stream can outlive its certificate."""
        if owner.name not in self._locks:
            raise PartyLost(f"{owner.name!r} is not a member of this federation's roster.")
        if self._revoked.has(owner):
            raise PartyLost(f"the certificate of {owner.name!r} is revoked; ask the authority for a new one.")
        if owner.expires is None or owner.expires <= datetime.datetime.now(datetime.UTC):
            raise PartyLost(
                f"the certificate of {owner.name!r} has expired; ask the authority for a new one, or set the clock."
            )

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- the seam -------------------------------------------------------------------------------------------

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        if party not in self._locks:
            raise PartyLost(f"party {party!r} is not part of this federation; check its name.")
        return self._run(self._exchange(party, data, timeout))

    async def _exchange(self, party: str, data: bytes, timeout: float) -> bytes:
        """`timeout` counts from the last part of a message that passed, so that a large one may take long; but a line
        must pass `SLOWEST` bytes a second."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._locks[party]:
            while True:
                connection = await self._connection(party, min(self._patience, deadline - loop.time()))

                def passing(size: int) -> None:
                    nonlocal deadline
                    deadline = max(deadline, min(deadline + size / SLOWEST, loop.time() + timeout))
                    if not clock.expired():
                        clock.reschedule(deadline)

                try:
                    async with asyncio.timeout_at(deadline) as clock:
                        return await connection.ask(data, passing)
                except _Gone:
                    continue  # the same bytes again when it is back: an answered request is answered from the record
                except TimeoutError:
                    raise PartyLost(
                        f"party {party!r} did not answer within {timeout:g} s; ask its operator to look at"
                        f" {self.where(party)}, then resume the run: nothing is debited twice."
                    ) from None

    async def _connection(self, party: str, patience: float) -> _Connection:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(patience, 0.0)):
                while party not in self._connections:
                    await self._changed.wait()
        connection = self._connections.get(party)
        if connection is None:
            raise PartyLost(
                f"party {party!r} is not connected; ask its operator to run `colonnade party serve`, then resume the"
                " run: nothing is debited twice."
            )
        self._check(connection.owner)
        return connection

    def wait_for(self, parties: Sequence[str], timeout: float) -> None:
        """Until these have dialled in; `PartyLost` names one that has not."""
        deadline = time.monotonic() + timeout
        for party in parties:
            self._run(self._connection(party, deadline - time.monotonic()))

    @property
    def connected(self) -> tuple[str, ...]:
        return tuple(party for party in self.parties if party in self._connections)

    def where(self, party: str) -> str:
        return f"the log in the folder of {party!r}"

    def close(self) -> None:
        if not self._loop.is_running():
            return
        self._closing = True
        self._run(self._server.stop(grace=0.2))
        self._run(_drain())
        self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        # Not closed: gRPC has one poller for all loops of a process, which may still hand an event to this one.
        _STOPPED.append(self._loop)


async def _drain() -> None:
    """Let what still runs on this loop end before the loop does: by itself, since gRPC writes a traceback for each of
    its tasks that is cancelled."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if others:
        _, others = map(list, await asyncio.wait(others, timeout=DRAIN_SECONDS))
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _add_health(server: Any) -> None:
    """The standard health service, for anyone with a certificate."""
    from grpc_health.v1 import health_pb2_grpc
    from grpc_health.v1._async import HealthServicer

    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
