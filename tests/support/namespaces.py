"""Separate networks on one machine: a network namespace for the coordinator and one for each member.

Each member has one cable (a veth pair) to the coordinator's namespace and no route to anybody else. Needs root,
iproute2 and a kernel that allows it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

COORDINATOR = "10.77.0.1"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Namespaces:
    prefix: str
    members: tuple[str, ...]

    def inside(self, member: str) -> list[str]:
        """The words before a command that put it into a member's network (or the coordinator's)."""
        return ["ip", "netns", "exec", self.name(member)]

    def name(self, member: str) -> str:
        return f"{self.prefix}-{'c' if member == 'coordinator' else self.members.index(member)}"

    def address(self, member: str) -> str:
        return f"10.77.{self.members.index(member) + 1}.2"

    def make(self) -> None:
        centre = self.name("coordinator")
        _ip("netns", "add", centre)
        _ip("-n", centre, "link", "set", "lo", "up")
        _ip("-n", centre, "address", "add", f"{COORDINATOR}/32", "dev", "lo")
        for number, member in enumerate(self.members, start=1):
            here, near, far = self.name(member), f"{self.prefix}n{number}", f"{self.prefix}f{number}"
            _ip("netns", "add", here)
            _ip("link", "add", near, "type", "veth", "peer", "name", far)
            for cable, place, address in ((near, here, self.address(member)), (far, centre, f"10.77.{number}.1")):
                _ip("link", "set", cable, "netns", place)
                _ip("-n", place, "address", "add", f"{address}/24", "dev", cable)
                _ip("-n", place, "link", "set", cable, "up")
            _ip("-n", here, "route", "add", COORDINATOR, "via", f"10.77.{number}.1")

    def remove(self) -> None:
        for member in ("coordinator", *self.members):
            with contextlib.suppress(OSError):
                _ip("netns", "delete", self.name(member))


@contextlib.contextmanager
def namespaces(members: Sequence[str]) -> Iterator[Namespaces]:
    """Made for the block; skips the test with the reason where the machine does not allow them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the ip command")
    made = Namespaces(f"cln{os.getpid() % 100_000}", tuple(members))
    try:
        try:
            made.make()
        except OSError as error:
            pytest.skip(f"this machine allows no network namespaces ({error})")
        yield made
    finally:
        made.remove()
