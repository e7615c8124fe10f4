"""Exponentiation of long lists on all cores of a party: batches over worker processes.

OpenSSL's multiplication holds Python's global lock, so threads do not help. A worker is this module run as a program:
it reads one frame (the exponent, then elements) on its standard input, answers one frame and ends. Nothing is pickled,
nothing is forked, and the caller's main module is not imported. The exponent travels in a pipe, not on a command line.

COLONNADE_WORKERS sets the number of workers, for the party that runs with it; by default one a core.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from colonnade.alignment.group import ELEMENT_BYTES, Elements, raise_to
from colonnade.errors import SecureError

WORTHWHILE = 20_000
"""Below this many elements a worker process takes longer to start than it saves."""
CHUNK = 250_000
"""Elements in one worker at a time."""
REFUSED = 3


def workers() -> int:
    """How many processes this party uses for a list."""
    stated = os.environ.get("COLONNADE_WORKERS", "")
    return max(1, int(stated)) if stated.isdecimal() else len(os.sched_getaffinity(0))


def raise_list(elements: Elements, exponent: int) -> Elements:
    """`raise_to`, on several cores where the list is long enough."""
    many = workers()
    if many == 1 or len(elements) < WORTHWHILE:
        return raise_to(elements, exponent)
    size = min(CHUNK, -(-len(elements) // many))
    parts = [elements[start : start + size] for start in range(0, len(elements), size)]
    with ThreadPoolExecutor(max_workers=many) as pool:
        return np.concatenate(list(pool.map(lambda part: _in_worker(part, exponent), parts)))


def _in_worker(elements: Elements, exponent: int) -> Elements:
    sent = exponent.to_bytes(ELEMENT_BYTES, "big") + elements.tobytes()
    done = subprocess.run(
        [sys.executable, "-m", "colonnade.alignment.raising"], input=sent, stdout=subprocess.PIPE, check=False
    )
    if done.returncode == REFUSED:
        raise SecureError("a group element is not on the curve; align with the same version at every party.")
    if done.returncode or len(done.stdout) != elements.size:
        raise SecureError("a worker process of the alignment ended early; run again with COLONNADE_WORKERS=1.")
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(-1, ELEMENT_BYTES)


def main() -> int:
    data = sys.stdin.buffer.read()
    elements = np.frombuffer(data[ELEMENT_BYTES:], dtype=np.uint8).reshape(-1, ELEMENT_BYTES)
    try:
        raised = raise_to(elements, int.from_bytes(data[:ELEMENT_BYTES], "big"))
    except SecureError:
        return REFUSED
    sys.stdout.buffer.write(raised.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
