"""Hashing and exponentiation of long lists on all cores of a party: batches over worker processes.

OpenSSL's multiplication holds Python's global lock, so threads do not help. A worker is this module run as a program:
it reads one frame (the exponent, then elements, or a domain and keys) on its standard input, answers one frame and
ends. Nothing is pickled, nothing is forked, and the caller's main module is not imported. Exponent and keys travel in a
pipe, not on a command line.

COLONNADE_WORKERS sets the number of workers, for the party that runs with it; by default one a core.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from colonnade.alignment.group import ELEMENT_BYTES, Elements, hash_and_raise, raise_to
from colonnade.errors import SecureError

WORTHWHILE = 20_000
"""Below this many elements a worker process takes longer to start than it saves."""
CHUNK = 250_000
"""Elements in one worker at a time."""
REFUSED = 3
_RAISE, _BLIND = b"r", b"b"


def workers() -> int:
    """How many processes this party uses for a list."""
    stated = os.environ.get("COLONNADE_WORKERS", "")
    return max(1, int(stated)) if stated.isdecimal() else len(os.sched_getaffinity(0))


def raise_list(elements: Elements, exponent: int) -> Elements:
    """`raise_to`, on several cores where the list is long enough."""
    if workers() == 1 or len(elements) < WORTHWHILE:
        return raise_to(elements, exponent)
    head = _RAISE + exponent.to_bytes(ELEMENT_BYTES, "big")
    return _spread(len(elements), lambda part: head + elements[part].tobytes())


def blind_list(keys: Sequence[bytes], exponent: int, *, domain: str) -> Elements:
    """`hash_and_raise`, on several cores where the list is long enough."""
    if workers() == 1 or len(keys) < WORTHWHILE:
        return hash_and_raise(keys, exponent, domain=domain)
    head = _BLIND + exponent.to_bytes(ELEMENT_BYTES, "big")
    return _spread(len(keys), lambda part: head + _texts([domain.encode(), *keys[part]]))


def _spread(count: int, frame: Callable[[slice], bytes]) -> Elements:
    """Workers' answers to the frames of consecutive parts."""
    many = workers()
    size = min(CHUNK, -(-count // many))
    parts = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    with ThreadPoolExecutor(max_workers=many) as pool:
        return np.concatenate(list(pool.map(lambda part: _in_worker(frame(part), part.stop - part.start), parts)))


def _in_worker(sent: bytes, count: int) -> Elements:
    done = subprocess.run(
        [sys.executable, "-m", "colonnade.alignment.exponentiation"], input=sent, stdout=subprocess.PIPE, check=False
    )
    if done.returncode == REFUSED:
        raise SecureError(
            "a group element is not on the curve, or of small order; align with the same version at every party."
        )
    if done.returncode or len(done.stdout) != ELEMENT_BYTES * count:
        raise SecureError("a worker process of the alignment ended early; run again with COLONNADE_WORKERS=1.")
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(-1, ELEMENT_BYTES)


def _texts(texts: Sequence[bytes]) -> bytes:
    """How many, the length of each, then all of them."""
    lengths = np.array([len(texts), *(len(text) for text in texts)], dtype="<u4")
    return lengths.tobytes() + b"".join(texts)


def _split(data: bytes) -> list[bytes]:
    count = int(np.frombuffer(data, dtype="<u4", count=1)[0])
    ends = 4 + 4 * count + np.cumsum(np.frombuffer(data, dtype="<u4", count=count, offset=4).astype(np.int64))
    return [data[start:stop] for start, stop in itertools.pairwise([4 + 4 * count, *ends.tolist()])]


def main() -> int:
    data = sys.stdin.buffer.read()
    exponent, rest = int.from_bytes(data[1 : 1 + ELEMENT_BYTES], "big"), data[1 + ELEMENT_BYTES :]
    try:
        if data[:1] == _BLIND:
            domain, *keys = _split(rest)
            raised = hash_and_raise(keys, exponent, domain=domain.decode())
        else:
            raised = raise_to(np.frombuffer(rest, dtype=np.uint8).reshape(-1, ELEMENT_BYTES), exponent)
    except SecureError:
        return REFUSED
    sys.stdout.buffer.write(raised.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
