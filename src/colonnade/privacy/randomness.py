"""Where random bits come from.

`SystemRandomness` is the operating system's generator: the only source for noise that protects people.
`SimulatedRandomness` is a keyed stream with a seed, so that a simulation can be repeated; a party accepts it
only if its own configuration says `simulation = true`, and the result says so.

Every sampler of our own draws whole 64-bit words from here and decides with integers.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray


class Randomness(Protocol):
    """A source of uniform bytes."""

    simulated: bool

    def bytes(self, count: int) -> bytes: ...

    def words(self, count: int) -> NDArray[np.uint64]: ...

    def below(self, bound: int, count: int) -> NDArray[np.int64]: ...


class _Words:
    """What both sources derive from their bytes."""

    def bytes(self, count: int) -> bytes:
        raise TypeError("use SystemRandomness or SimulatedRandomness")

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        return np.frombuffer(self.bytes(8 * count), dtype=np.uint64).copy()

    def below(self, bound: int, count: int) -> NDArray[np.int64]:
        """`count` exactly uniform integers in [0, bound), by rejection of the incomplete last cycle."""
        if not 1 <= bound <= 2**63 - 1:
            raise ValueError(f"bound must lie in [1, 2^63), not {bound}")
        top = np.uint64(2**64 - 1 - (2**64 % bound))
        drawn = self.words(count)
        while (bad := np.flatnonzero(drawn > top)).size:
            drawn[bad] = self.words(bad.size)
        return (drawn % np.uint64(bound)).astype(np.int64)


class SystemRandomness(_Words):
    """The operating system's generator."""

    simulated = False

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)


class SimulatedRandomness(_Words):
    """AES-256 in counter mode, keyed by a seed and a label: repeatable, for simulation only."""

    simulated = True

    def __init__(self, seed: int, label: str = "") -> None:
        key = hashlib.sha256(f"colonnade simulation {seed} {label}".encode()).digest()
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def bytes(self, count: int) -> bytes:
        return self._stream.update(bytes(count))


def simulated_generator(randomness: Randomness) -> np.random.Generator:
    """A numpy generator for a simulation; refused for a source that protects people."""
    if not randomness.simulated:
        raise ValueError("a numpy generator does not protect anyone: draw from the operating system instead")
    return np.random.default_rng(int.from_bytes(randomness.bytes(16), "little"))
