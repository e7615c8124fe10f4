"""The process of one party: `python -m colonnade.federation.transports.serve HOME`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from colonnade.federation.home import open_party
from colonnade.federation.transports.processes import read_frame, write_frame


def serve(handle: Callable[[bytes], bytes], source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer frames until the coordinator closes the pipe."""
    while (request := read_frame(source)) is not None:
        write_frame(sink, handle(request))


def main(home: Path) -> None:
    # Frames own the real standard output; anything that a library prints goes to the log instead.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    party = open_party(home)
    try:
        serve(party.handle, sys.stdin.buffer, sink)
    finally:
        party.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
