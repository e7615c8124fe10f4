"""Ten minutes of hostile bytes for the wire format (QUICK=1: one minute).

    python benchmarks/fuzz_wire.py

Valid messages are cut, spliced and overwritten, grammars of lying heads are grown, and random bytes are thrown in.
A child process decodes them under a limit on its address space (RLIMIT_AS), so that an allocation bomb, a segfault
or an endless loop kills the child and not the study; the input lies in a mapped file, from where it is saved.
An input counts as a crash if

- anything but `WireError` or `VersionMismatch` escapes, or memory ran out;
- it is accepted, and encoding the value does not give the same bytes;
- it takes more than 2 seconds of processor time (inputs have at most 64 kB);
- the child dies or does not stop.

The last line is `fuzz-wire: runs=... crashes=... max_rss_mb=... ok|short`. It is `ok` if there was no crash, the
child grew by at most 64 MB (64 kB times the 100 bytes of memory per byte of message that docs/wire-format.md states
is 6.4 MB, the rest is room for the allocator), there were at least 500 runs a second for the whole time, and at
least one input in a hundred was accepted (or else the mutations test the first refusal only).
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.errors import VersionMismatch, WireError
from colonnade.federation.wire import DEFAULT, Limits, decode, encode

SECONDS = 60 if os.environ.get("QUICK") else 600
SLICE = 30  # seconds of one child; each child has a new seed
LONGEST = 2**16
HEADROOM = 2**28  # bytes of address space that the child may add to what it has after its imports
MOST_GROWTH_MB = 64
MOST_SECONDS = 2.0
LEAST_RATE = 500

MAGIC = encode(None)[:4]
TIGHT = Limits(max_bytes=4096, max_depth=4, max_items=64, max_str=64)
LENGTHS = [0, 1, 2, 7, 15, 16, 31, 32, 255, 256, 9999, 10_000, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1]
WORDS = [0, 1, 2**31, 2**32, 2**32 + 1, 2**60, 2**61 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]


# --- inputs ----------------------------------------------------------------------------------------------


def valid_value(chance: random.Random, depth: int = 0) -> Any:
    """A value of the format, of any kind."""
    kind = chance.randrange(11 if depth < 5 else 8)
    match kind:
        case 0:
            return chance.choice([None, True, False])
        case 1:
            return chance.choice([-1, 1]) * chance.getrandbits(chance.choice([1, 5, 7, 8, 16, 31, 32, 63, 64]))
        case 2:
            return chance.choice([-1, 1]) * chance.getrandbits(chance.randint(65, 4096))
        case 3:
            return struct.unpack("<d", chance.randbytes(8))[0]
        case 4:
            return "".join(chance.choice("ab\0é€😀") for _ in range(chance.choice([0, 1, 3, 31, 32, 200])))
        case 5:
            return chance.randbytes(chance.choice([0, 1, 16, 255, 256, 1000]))
        case 6 | 7:
            shape = tuple(chance.choice([0, 1, 1, 2, 3, 5]) for _ in range(chance.randint(0, 5)))
            dtype = np.dtype(chance.choice(DTYPES))
            raw = np.frombuffer(chance.randbytes(int(np.prod(shape)) * dtype.itemsize), dtype=np.uint8)
            return (raw % 2 if dtype == np.bool_ else raw).view(dtype).reshape(shape)
        case 8 | 9:
            return [valid_value(chance, depth + 1) for _ in range(chance.choice([0, 1, 2, 4, 17]))]
        case _:
            return {valid_key(chance): valid_value(chance, depth + 1) for _ in range(chance.choice([0, 1, 2, 4, 17]))}


def valid_key(chance: random.Random) -> str:
    return "".join(chance.choice("abcdé😀") for _ in range(chance.randint(0, 4)))


def lying_item(chance: random.Random) -> bytes:
    """A head of any kind with a length that need not be true, and sometimes a little of what it promises."""
    head = chance.choice([0xC4, 0xC7, 0xC9, 0xCC, 0xCF, 0xD0, 0xD3, 0xD4, 0xD8, 0xD9, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF])
    if chance.random() < 0.5:
        head = chance.randrange(256)
    claim = chance.choice(LENGTHS)
    size = {0xC9: 4, 0xC6: 4, 0xDB: 4, 0xDD: 4, 0xDF: 4, 0xCE: 4, 0xDC: 2, 0xDE: 2, 0xDA: 2}.get(head, 1)
    body = (claim & ((1 << 8 * size) - 1)).to_bytes(size, "big")
    if 0xC7 <= head <= 0xC9 or 0xD4 <= head <= 0xD8:
        ndim = chance.choice([0, 1, 2, 3, 8, 9, 255])
        shape = b"".join(struct.pack("<Q", chance.choice(WORDS)) for _ in range(min(ndim, 9)))
        body += bytes([chance.choice([1, 2, 2, 2, 255])])
        body += struct.pack("<BB6x", chance.randint(0, 13), ndim) + shape
    return bytes([head]) + body


def grown(chance: random.Random) -> bytes:
    """Nested claims: a run of lying items, often one of them repeated to make it deep."""
    body = b"".join(lying_item(chance) for _ in range(chance.randint(1, 12)))
    if chance.random() < 0.3:
        body = body[: chance.randint(1, 8)] * chance.randint(1, LONGEST // 16) + body
    return body


def overwritten(edited: bytearray, chance: random.Random) -> None:
    """One edit of the bytes behind the magic."""
    at = chance.randint(min(len(MAGIC), len(edited)), len(edited))
    match chance.randrange(7):
        case 0 if at < len(edited):
            edited[at] ^= 1 << chance.randrange(8)
        case 1:
            edited[at : at + 1] = bytes([chance.randrange(256)])
        case 2:
            del edited[at : at + chance.choice([1, 2, 8, 64, LONGEST])]
        case 3:
            edited[at:at] = chance.randbytes(chance.choice([1, 2, 8, 64]))
        case 4:
            edited[at : at + 4] = struct.pack(">I", chance.choice(LENGTHS))
        case 5:
            edited[at : at + 8] = struct.pack("<Q", chance.choice(WORDS))
        case _:
            start = chance.randint(0, len(edited))
            edited[at:at] = edited[start : start + chance.choice([1, 4, 16, 256])] * chance.choice([1, 1, 2, 100])


def next_input(chance: random.Random, corpus: list[bytes]) -> bytes:
    draw = chance.random()
    if draw < 0.02:
        return chance.randbytes(chance.choice([0, 1, 3, 4, 5, 64, 4096]))
    if draw < 0.12:
        return MAGIC + chance.randbytes(chance.choice([0, 1, 2, 5, 16, 64, 512]))
    if draw < 0.30:
        return (MAGIC + grown(chance))[:LONGEST]
    edited = bytearray(chance.choice(corpus))
    if draw < 0.45:  # splice: the head of one message and the tail of another
        other = chance.choice(corpus)
        edited[chance.randint(4, len(edited)) :] = other[chance.randint(4, len(other)) :]
    for _ in range(chance.choice([0, 1, 1, 2, 3, 8])):
        overwritten(edited, chance)
    if draw > 0.99:
        edited[chance.randrange(4)] ^= 1 << chance.randrange(8)
    return bytes(edited[:LONGEST])


# --- the child -------------------------------------------------------------------------------------------


def verdict(data: bytes, limits: Limits) -> str:
    """`accepted` or `refused`, or a sentence that says what went wrong."""
    begin = time.process_time()
    try:
        value = decode(data, limits=limits)
        result = "accepted" if encode(value, limits=limits) == data else "accepted, but encodes to other bytes"
    except (WireError, VersionMismatch) as error:
        result = "memory ran out" if isinstance(error.__cause__, MemoryError) else "refused"
    except BaseException as error:
        result = f"{type(error).__name__} escaped"
    spent = time.process_time() - begin
    return result if spent < MOST_SECONDS else f"took {spent:.1f} s"


def rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(seed: int, seconds: float, box_path: str) -> None:
    chance = random.Random(seed)
    corpus = [message for message in (encode(valid_value(chance)) for _ in range(400)) if len(message) <= LONGEST]
    address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (address_space + HEADROOM, address_space + HEADROOM))
    counts = {"accepted": 0, "refused": 0}
    wrong: list[tuple[str, str]] = []
    before = rss_mb()
    stop = time.monotonic() + seconds
    with Path(box_path).open("r+b") as file, mmap.mmap(file.fileno(), LONGEST + 8) as box:
        while time.monotonic() < stop:
            data = next_input(chance, corpus)
            box[: 8 + len(data)] = len(data).to_bytes(8, "little") + data
            result = verdict(data, TIGHT if chance.random() < 0.2 else DEFAULT)
            if result in counts:
                counts[result] += 1
            else:
                wrong.append((result, data.hex()))
                if len(wrong) >= 20:
                    break
    print(json.dumps({**counts, "wrong": wrong, "rss": rss_mb(), "growth": rss_mb() - before}))


# --- the study -------------------------------------------------------------------------------------------


def one_slice(seed: int, seconds: float, box: Path) -> dict[str, Any]:
    """Run one child; if it dies, the input that it was decoding is what is wrong."""
    box.write_bytes(bytes(LONGEST + 8))
    command = [sys.executable, __file__, "--child", str(seed), str(seconds), str(box)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds + 120)
        if done.returncode == 0:
            result: dict[str, Any] = json.loads(done.stdout)
            return result
        reason = f"child ended with {done.returncode}: {done.stderr.strip()[-200:]}"
    except subprocess.TimeoutExpired:
        reason = "child did not stop"
    held = box.read_bytes()
    data = held[8 : 8 + int.from_bytes(held[:8], "little")]
    return {"accepted": 0, "refused": 0, "wrong": [(reason, data.hex())], "rss": 0.0, "growth": 0.0}


def main() -> int:
    from benchmarks.common import Page  # not at the top: a child runs this file as a script of its own

    first_seed = int(os.environ.get("SEED", "1"))
    accepted = refused = crashes = 0
    max_rss = max_growth = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for index in range(SECONDS // SLICE):
            result = one_slice(first_seed + index, SLICE, Path(folder) / "input")
            accepted += result["accepted"]
            refused += result["refused"]
            crashes += len(result["wrong"])
            max_rss, max_growth = max(max_rss, result["rss"]), max(max_growth, result["growth"])
            for reason, data in result["wrong"]:
                saved = Path(tempfile.gettempdir()) / f"fuzz_wire_{first_seed + index}_{crashes}.hex"
                saved.write_text(data)
                print(f"seed {first_seed + index}: {reason}; the input is in {saved}")
            print(f"seed {first_seed + index}: accepted={result['accepted']} refused={result['refused']}", flush=True)
    runs = accepted + refused + crashes
    ok = crashes == 0 and runs >= LEAST_RATE * SECONDS and max_growth <= MOST_GROWTH_MB and accepted > runs // 100
    page = Page("fuzz-wire", "Fuzzing the decoder of the wire format")
    page.say(
        f"Mutated valid messages and random bytes for {SECONDS:.0f} seconds, in child processes under a memory limit."
        f" {accepted} were accepted, {refused} refused; resident memory grew by at most {max_growth:.1f} MB."
    )
    return page.finish(ok, runs=runs, crashes=crashes, max_rss_mb=f"{max_rss:.0f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main())
