"""A wide-area network in user space: a proxy between each party and the coordinator, with a rate and a round trip.

python -m benchmarks.wan_common --target PORT --links 3 --mbit 100 --round-trip 0.05

Each link passes bytes in both directions at its rate, and delivers them half a round trip later. It behaves as TCP
without losses: what is in flight is bounded by a window that begins with ten segments, grows by what is acknowledged,
and begins again after an idle time, as the kernel's does. Members' messages go by way of the coordinator, so a link
for each party is a link between every two members. It runs in a process of its own: the ends do not wait for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from colonnade.federation.transports import loopback
from colonnade.federation.transports.loopback import Loopback

REPOSITORY = Path(__file__).parent.parent
SEGMENT, FIRST_WINDOW, LARGEST_WINDOW = 1460, 14_600, 4 << 20
IDLE = 0.2
"""Seconds without traffic, beyond a round trip, after which the window begins again (Linux: a retransmission time)."""
QUEUE = 0.05
"""Seconds of traffic that wait before the link; then the sender does."""


@dataclass(frozen=True)
class Line:
    """One link's rate in Mbit/s and round trip in seconds."""

    mbit: float
    round_trip: float

    def __str__(self) -> str:
        return f"{self.mbit:g} Mbit/s, {1000 * self.round_trip:g} ms"


class _Direction:
    """One direction of a connection."""

    def __init__(self, line: Line, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        self._rate, self._delay = line.mbit * 1e6 / 8, line.round_trip / 2
        self._source, self._sink = source, sink
        self._arriving: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._window = FIRST_WINDOW
        self._flying: deque[tuple[float, int]] = deque()
        """(time of acknowledgement, bytes)."""
        self._free = 0.0
        """When the link has sent all that it was given."""

    async def run(self) -> None:
        delivering = asyncio.create_task(self._deliver())
        try:
            while data := await self._source.read(1 << 14):
                await self._send(data)
            await self._arriving.put((self._free + self._delay, b""))
            await delivering
        finally:
            delivering.cancel()
            self._sink.close()

    async def _send(self, data: bytes) -> None:
        await self._room(len(data))
        now = time.monotonic()
        if now - self._free > IDLE + 2 * self._delay:
            self._window = FIRST_WINDOW
        self._free = max(now, self._free) + len(data) / self._rate
        self._flying.append((self._free + 2 * self._delay, len(data)))
        await self._arriving.put((self._free + self._delay, data))
        if self._free - now > QUEUE:
            await asyncio.sleep(self._free - now - QUEUE)

    async def _room(self, size: int) -> None:
        """Wait until the window has room."""
        while self._flying:
            while self._flying and self._flying[0][0] <= time.monotonic():
                self._window = min(self._window + self._flying.popleft()[1], LARGEST_WINDOW)
            if not self._flying or sum(flying for _, flying in self._flying) + size <= self._window:
                return
            await asyncio.sleep(max(self._flying[0][0] - time.monotonic(), 0.0))

    async def _deliver(self) -> None:
        while True:
            due, data = await self._arriving.get()
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            if not data:
                return
            self._sink.write(data)
            await self._sink.drain()


async def _serve(target: int, links: int, line: Line) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        ways = [_Direction(line, reader, far_writer).run(), _Direction(line, far_reader, writer).run()]
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(*ways)

    servers = [await asyncio.start_server(connected, "127.0.0.1", 0) for _ in range(links)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


@contextlib.contextmanager
def links(target: int, count: int, line: Line) -> Iterator[list[int]]:
    """Ports of links to a port of this machine, in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.wan_common", "--target", str(target), "--links", str(count)]
    command += ["--mbit", str(line.mbit), "--round-trip", str(line.round_trip)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        try:
            yield [int(port) for port in process.stdout.readline().split()]
        finally:
            process.terminate()


@contextlib.contextmanager
def over(line: Line) -> Iterator[None]:
    """Federations with `transport="network"` that are opened inside have such a link between each two members."""

    class Distant(Loopback):
        def start(self) -> None:
            self._closing_links = contextlib.ExitStack()
            ports = self._closing_links.enter_context(links(self.port, len(self.parties), line))
            self._ports = dict(zip(self.parties, ports, strict=True))
            super().start()

        def dialled(self, party: str) -> int:
            return self._ports[party]

        def close(self) -> None:
            super().close()
            self._closing_links.close()

    with mock.patch.object(loopback, "Loopback", Distant):
        yield


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=int, required=True)
    parser.add_argument("--links", type=int, required=True)
    parser.add_argument("--mbit", type=float, required=True)
    parser.add_argument("--round-trip", type=float, required=True)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.target, arguments.links, Line(arguments.mbit, arguments.round_trip)))


if __name__ == "__main__":
    main()
