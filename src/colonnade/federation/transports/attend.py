"""A party's end of the network: dial the coordinator, answer its requests, come back after every loss.

python -m colonnade.federation.transports.attend HOME --coordinator HOST:PORT --credentials FOLDER
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import logging
import os
import random
import secrets
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from colonnade.errors import PartyLost, RosterError, StorageError, WireError
from colonnade.federation.home import open_party
from colonnade.federation.party import Party
from colonnade.federation.transports.certificates import (
    AUTHORITY,
    CERTIFICATE,
    read_certificate,
    signed_by,
    subject_of,
    take_renewed,
)
from colonnade.federation.transports.channel import (
    ATTEND,
    GREETING,
    credentials,
    grpc_module,
    keep_alive,
    message,
    newest_certificates,
    parts,
)

_LOG = logging.getLogger("colonnade.network")
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 15.0
LONGEST_LOOK = 3600.0
"""Seconds between two looks for renewed certificates."""


async def attend(
    handle: Callable[[bytes], bytes],
    *,
    coordinator: str,
    folder: Path,
    members: Mapping[str, Path] = MappingProxyType({}),
    ping: float = 20.0,
    said: Callable[[str], None] = _LOG.info,
) -> None:
    """Answer until cancelled. Raises only where coming back cannot help: a refusal, or a second process.

    A request that is being answered when the connection breaks is answered to the end; the coordinator asks again and
    gets the stored bytes. The certificate is read again for each connection: a renewed one needs no restart.
    members: this party's copies of the members' certificates. Renewed ones are fetched from the coordinator and taken
    if the authority has signed them for the same owners and keys; with a renewed one of its own the party dials again.
    """
    grpc = grpc_module()
    key, certificate, authority = credentials(folder)
    instance = secrets.token_bytes(GREETING)
    final = {grpc.StatusCode.PERMISSION_DENIED: RosterError, grpc.StatusCode.ALREADY_EXISTS: PartyLost}
    pause, reported = FIRST_PAUSE, ""

    def welcomed() -> None:
        nonlocal pause, reported
        pause, reported = FIRST_PAUSE, ""
        said(f"connected to the coordinator at {coordinator}")

    while True:
        try:
            with contextlib.suppress(StorageError):  # it is being replaced: the old one may still do
                key, certificate, authority = credentials(folder)
            mutual = grpc.ssl_channel_credentials(authority, key, certificate)
            async with grpc.aio.secure_channel(coordinator, mutual, options=keep_alive(ping)) as channel:
                renewed = asyncio.create_task(_renewed(grpc, channel, folder, members, said))
                try:
                    await _session(grpc, channel, handle, instance, welcomed, renewed)
                finally:
                    renewed.cancel()
                state = kind = "the coordinator closed the connection"
        except _Renewed:
            continue
        except grpc.aio.AioRpcError as error:
            if error.code() in final:
                raise final[error.code()](f"the coordinator refused this party: {error.details()}") from None
            kind = error.code().name.lower()
            state = f"{kind}: {error.details()}"
        except (_Broken, WireError) as error:
            state = kind = str(error)
        if kind != reported:  # the details of one kind differ from try to try
            said(f"not connected to {coordinator} ({state}); trying again")
            reported = kind
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # jitter, so that parties do not return all at once
        pause = min(2 * pause, LONGEST_PAUSE)


class _Broken(Exception):
    """The stream broke while it was used."""


class _Renewed(Exception):
    """The own certificate was renewed: dial again with it."""


async def _renewed(
    grpc: Any, channel: Any, folder: Path, members: Mapping[str, Path], said: Callable[[str], None]
) -> None:
    """Returns when this party's own certificate has been replaced by a renewed one."""
    reported = ""
    while True:
        pause = LONGEST_LOOK
        try:
            earlier = subject_of(read_certificate(folder / CERTIFICATE))
            assert earlier.expires is not None
            left = (earlier.expires - datetime.datetime.now(datetime.UTC)).total_seconds()
            pause = min(max(left / 20, 1.0), LONGEST_LOOK)
            owner = None
            for member, pem in (await newest_certificates(channel)).items():
                if member in members:
                    take_renewed(folder / AUTHORITY, members[member], pem)
                if member == earlier.name:
                    owner = take_renewed(folder / AUTHORITY, folder / CERTIFICATE, pem)
            if owner is not None:
                said(f"the certificate of {owner.name} is renewed; it ends {owner.expires:%Y-%m-%d %H:%M} UTC")
                return
        except grpc.aio.AioRpcError:
            pass  # not connected, or a coordinator that does not offer this: the session says what matters
        except Exception as error:  # these are a stranger's words: whatever they break, the party goes on without them
            if str(error) != reported:
                reported = str(error)
                said(f"renewed certificates cannot be taken: {reported}")
        await asyncio.sleep(pause)


async def _session(
    grpc: Any,
    channel: Any,
    handle: Callable[[bytes], bytes],
    instance: bytes,
    welcomed: Callable[[], None],
    renewed: asyncio.Task[None],
) -> None:
    from colonnade.federation.transports.generated.colonnade_pb2 import Frame

    method = channel.stream_stream(
        ATTEND, request_serializer=Frame.SerializeToString, response_deserializer=Frame.FromString
    )
    call = method()
    try:
        for part in parts(0, instance):
            await call.write(part)
        await call.wait_for_connection()
        welcomed()
        while (received := await _next_message(grpc, call, renewed)) is not None:
            exchange, data = received
            answer = await asyncio.to_thread(handle, data)
            for part in parts(exchange, answer):
                await call.write(part)
    except asyncio.InvalidStateError as error:  # written after the stream had ended
        raise _Broken("the connection broke") from error
    finally:
        call.cancel()


async def _next_message(grpc: Any, call: Any, renewed: asyncio.Task[None]) -> tuple[int, bytes] | None:
    reading = asyncio.create_task(message(call, grpc.aio.EOF))
    try:
        await asyncio.wait({reading, renewed}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            return reading.result()
        renewed.result()
        raise _Renewed
    finally:
        reading.cancel()


class Serving:
    """A party that opens itself again when an alignment has given it a new cohort.

    `prepare` writes the party's folder from its own files, and adopts such a cohort.
    """

    def __init__(
        self,
        home: Path,
        *,
        prepare: Callable[[], object] = lambda: None,
        said: Callable[[str], None] = lambda _: None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._home, self._prepare, self._said, self._notice = home, prepare, said, notice
        self.party = self._open()

    def _open(self) -> Party:
        self._prepare()
        self._seen = self._newest()
        party = open_party(self._home)
        party.said, party.notice = self._said, self._notice
        party.end_old_jobs_hourly()
        return party

    def _newest(self) -> int | None:
        """When an alignment last wrote here."""
        file = self._home / "aligned" / "overlap.json"
        return file.stat().st_mtime_ns if file.is_file() else None

    def handle(self, data: bytes) -> bytes:
        answer = self.party.handle(data)
        # A job that still runs works on the old cohort to its end.
        if self._newest() != self._seen and all(job.state != "approved" for job in self.party.store.jobs()):
            self.party.close()
            self.party = self._open()
        return answer


def serve(
    home: Path,
    *,
    coordinator: str,
    folder: Path,
    said: Callable[[str], None],
    members: Mapping[str, Path] = MappingProxyType({}),
    prepare: Callable[[], object] = lambda: None,
    notice: Callable[[str], None] = lambda _: None,
) -> None:
    """Open the party in `home` and attend until SIGINT or SIGTERM."""
    owner = signed_by(folder / AUTHORITY, folder / CERTIFICATE)
    serving = Serving(home, prepare=prepare, said=said, notice=notice)
    try:
        party = serving.party
        if owner.name != party.name or owner.sealing_key != party.roster.member(party.name).public_key:
            raise RosterError(
                f"the certificate in {folder} is for {owner.name!r} and another sealing key than this party's; have the"
                " authority sign this party's own request."
            )
        work = attend(serving.handle, coordinator=coordinator, folder=folder, members=members, said=said)
        asyncio.run(_until_stopped(work))
    finally:
        serving.party.close()


async def _until_stopped(work: Any) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--credentials", type=Path, required=True)
    arguments = parser.parse_args()

    def said(text: str) -> None:
        os.write(2, f"{text}\n".encode())

    serve(arguments.home, coordinator=arguments.coordinator, folder=arguments.credentials, said=said)


if __name__ == "__main__":
    main()
