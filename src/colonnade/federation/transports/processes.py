"""One operating-system process per party on this machine: spawned, never forked; threads capped.

Frames on the child's standard input and output: an 8-byte length, then the message. Nothing else is ever
written there; the child's own prints go to its log.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from colonnade.durable import private_file
from colonnade.errors import PartyLost, WireError
from colonnade.federation.home import open_party
from colonnade.federation.wire import DEFAULT

LENGTH = struct.Struct(">Q")
PIPE_BYTES = 1 << 20
KEPT_MEMORY = {"mmap_threshold": (-3, 1 << 25), "trim_threshold": (-1, 1 << 28), "top_pad": (-2, 1 << 26)}
"""Settings of glibc's allocator, with their numbers for `mallopt`. Large messages are copied a few times. In huge pages
that the process keeps (up to 256 MB) a copy of 16 MB takes a sixth of the time that it takes in fresh ones
(measured)."""
MEMORY = ":".join(
    ["glibc.malloc.hugetlb=1", *(f"glibc.malloc.{name}={size}" for name, (_, size) in KEPT_MEMORY.items())]
)
PAUSE = 60.0
"""Seconds for which the watchdog's thread waits for another request before it ends."""
THREAD_CAPS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def keep_memory() -> None:
    """The same in this process, where the allocator is glibc's: it relays what the parties send each other."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for number, size in KEPT_MEMORY.values():
            mallopt(number, size)


def write_frame(stream: IO[bytes], data: bytes) -> None:
    stream.write(LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next message, or None at a clean end."""
    head = stream.read(LENGTH.size)
    if not head:
        return None
    if len(head) < LENGTH.size:
        raise WireError("the stream ended inside a frame's length.")
    (size,) = LENGTH.unpack(head)
    if size > DEFAULT.max_bytes:
        raise WireError(f"a frame of {size} bytes is above the limit of {DEFAULT.max_bytes}.")
    data = stream.read(size)  # memory is touched only as bytes arrive, whatever the claimed size
    if len(data) < size:
        raise WireError("the stream ended inside a frame.")
    return data


class Watchdog:
    """One thread that kills every process which has not answered in its time; a timer would be a thread a request."""

    def __init__(self) -> None:
        self._due: dict[subprocess.Popen[bytes], float] = {}
        self._changed = threading.Condition()
        self._looks_at: float | None = None
        """When the thread looks next; None while there is no thread."""

    def watch(self, process: subprocess.Popen[bytes], timeout: float) -> None:
        with self._changed:
            self._due[process] = due = time.monotonic() + timeout
            if self._looks_at is None:
                self._looks_at = due
                threading.Thread(target=self._look, name="watchdog", daemon=True).start()
            elif due < self._looks_at:
                self._changed.notify()

    def done(self, process: subprocess.Popen[bytes]) -> bool:
        """Watch it no more; whether it was killed."""
        with self._changed:
            return self._due.pop(process, None) is None

    def close(self) -> None:
        with self._changed:
            self._due.clear()
            self._changed.notify()

    def _look(self) -> None:
        with self._changed:
            while self._due:
                now = time.monotonic()
                for process in [process for process, due in self._due.items() if due <= now]:
                    del self._due[process]
                    process.kill()
                self._looks_at = min(self._due.values(), default=now + PAUSE)
                self._changed.wait(self._looks_at - now)
            self._looks_at = None


class PartyProcesses(ABC):
    """A process for each party, started when it is first asked, and again if it was lost."""

    parties: tuple[str, ...]

    def __init__(self, homes: Mapping[str, Path]) -> None:
        self._homes = dict(homes)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starting = threading.Lock()

    @abstractmethod
    def _launch(self, party: str, *, log: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]: ...

    def _process(self, party: str) -> subprocess.Popen[bytes]:
        with self._starting:
            running = self._running.get(party)
            if running is None or running.poll() is not None:
                environment = {"GLIBC_TUNABLES": MEMORY, **os.environ, **dict.fromkeys(THREAD_CAPS, "1")}
                with private_file(self._homes[party] / "process.txt").open("ab") as log:
                    running = self._launch(party, log=log, environment=environment)
                self._running[party] = running
            return running

    def start(self) -> None:
        """Start all processes now, side by side, rather than when each is first asked."""
        for party in self.parties:
            self._process(party)

    def pid(self, party: str) -> int:
        return self._process(party).pid

    def where(self, party: str) -> str:
        return str(self._homes[party] / "log.txt")


def await_end(process: subprocess.Popen[bytes]) -> None:
    """Of a process that was told to end; one that does not is killed."""
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Processes(PartyProcesses):
    """`homes` maps each party to its folder (see `federation.home`)."""

    def __init__(
        self,
        homes: Mapping[str, Path],
        *,
        command: Sequence[str] = (sys.executable, "-m", "colonnade.federation.transports.processes"),
    ) -> None:
        super().__init__(homes)
        keep_memory()
        self.parties = tuple(homes)
        self._command = tuple(command)
        self._locks = {party: threading.Lock() for party in homes}
        self._watchdog = Watchdog()

    def _launch(self, party: str, *, log: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, str(self._homes[party])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            pipesize=PIPE_BYTES,
        )

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        if party not in self._homes:
            raise PartyLost(f"party {party!r} is not part of this federation; check its name.")
        with self._locks[party]:
            process = self._process(party)
            assert process.stdin is not None
            assert process.stdout is not None
            # The pipe has no time-out of its own: a watchdog ends a process that stays silent.
            self._watchdog.watch(process, timeout)
            try:
                write_frame(process.stdin, data)
                answer = read_frame(process.stdout)
            except (OSError, ValueError, WireError):
                answer = None
            finally:
                silent = self._watchdog.done(process)
            if answer is None:
                self._end(party)
                reason = f"did not answer within {timeout:g} s" if silent else "ended before it answered"
                raise PartyLost(
                    f"party {party!r} {reason}; see {self.where(party)}, then resume the run: nothing is debited twice."
                )
            return answer

    def _end(self, party: str) -> None:
        process = self._running.pop(party, None)
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        await_end(process)

    def close(self) -> None:
        for party in self.parties:
            self._end(party)
        self._watchdog.close()


# --- The process of one party: `python -m colonnade.federation.transports.processes HOME` ---------------------


def serve(handle: Callable[[bytes], bytes], source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer frames until the coordinator closes the pipe."""
    while (request := read_frame(source)) is not None:
        write_frame(sink, handle(request))


def main(home: Path) -> None:
    # Frames own the real standard output; anything that a library prints goes to the log instead.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    party = open_party(home)
    party.end_old_jobs_hourly()
    try:
        serve(party.handle, sys.stdin.buffer, sink)
    finally:
        party.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
