"""Members with their certificates, parties in threads, and a proxy that fails: for tests of the network."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from colonnade.federation.transports import certificates
from colonnade.federation.transports.attend import attend
from colonnade.federation.transports.certificates import AUTHORITY, CERTIFICATE, REQUEST
from colonnade.secure.sealed import Identity


def credential(
    folder: Path, authority: Path, name: str, *, role: certificates.Role = "party", days: float = 30
) -> Path:
    """A member's folder with its key, its certificate and the authority's."""
    sealing = Identity.generate().public if role == "party" else None
    hosts = ("127.0.0.1",) if role == "coordinator" else ()
    certificates.make_request(folder, name=name, organisation=name, sealing_key=sealing, hosts=hosts)
    certificates.sign(authority, folder / REQUEST, folder / CERTIFICATE, role=role, days=days)
    shutil.copy(authority / AUTHORITY, folder / AUTHORITY)
    return folder


def echo(data: bytes) -> bytes:
    return data


class Attending:
    """A party in a thread of this process."""

    def __init__(
        self,
        folder: Path,
        port: int,
        handle: Callable[[bytes], bytes] = echo,
        members: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self.error: BaseException | None = None
        self.said: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._work = (handle, f"127.0.0.1:{port}", folder, members)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        handle, address, folder, members = self._work
        self._task = self._loop.create_task(
            attend(handle, coordinator=address, folder=folder, members=members, ping=2.0, said=self.said.append)
        )
        try:
            self._loop.run_until_complete(self._task)
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()

    def ended(self, seconds: float = 15) -> BaseException | None:
        self._thread.join(timeout=seconds)
        assert not self._thread.is_alive(), self.said
        return self.error


@contextlib.contextmanager
def attending(
    folder: Path,
    port: int,
    handle: Callable[[bytes], bytes] = echo,
    members: Mapping[str, Path] = MappingProxyType({}),
) -> Iterator[Attending]:
    made = Attending(folder, port, handle, members)
    try:
        yield made
    finally:
        if made.error is None:
            made.stop()


class Proxy:
    """Between a party and the coordinator: it can cut every connection, or fall silent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.passed = 0
        self.cut_after: int | None = None
        self.silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._pairs.append((near, far))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.passed += len(data)
                if self.cut_after is not None and self.passed > self.cut_after:
                    self.cut_after = None
                    self.cut()
                    return
                if not self.silent:
                    sink.sendall(data)

    def cut(self) -> None:
        for pair in self._pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
        self._pairs.clear()

    def close(self) -> None:
        self._listener.close()
        self.cut()
