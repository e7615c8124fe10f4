"""The network transport on one machine: an authority, certificates and one party process each, over loopback.

What a real consortium does on several machines, for tests and for trying it out. Here one person holds all keys.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from colonnade.federation.transports import certificates
from colonnade.federation.transports.certificates import AUTHORITY, CERTIFICATE, REQUEST, REVOKED
from colonnade.federation.transports.network import Network
from colonnade.federation.transports.processes import PartyProcesses, await_end

STARTING = 60.0
"""Seconds that a party process may take to load its block and dial in."""


class Loopback(PartyProcesses, Network):
    """`homes` maps each party to (folder, organisation, sealing key). A lost process starts again when next asked."""

    def __init__(self, homes: Mapping[str, tuple[Path, str, bytes]], *, folder: Path) -> None:
        PartyProcesses.__init__(self, {party: home for party, (home, _, _) in homes.items()})
        self._folder = folder
        self._issue(homes)
        Network.__init__(
            self,
            tuple(homes),
            address="127.0.0.1:0",
            folder=folder / "coordinator",
            revoked=folder / "authority" / REVOKED,
            patience=STARTING,
        )

    def _issue(self, homes: Mapping[str, tuple[Path, str, bytes]]) -> None:
        """Certificates for all members, made once and kept in `folder`."""
        authority = self._folder / "authority"
        if not (authority / AUTHORITY).exists():
            certificates.make_authority(authority, name="loopback")
        self._credential("coordinator", organisation="loopback", sealing_key=None)
        for party, (_, organisation, sealing_key) in homes.items():
            self._credential(f"party-{party}", name=party, organisation=organisation, sealing_key=sealing_key)

    def _credential(
        self, place: str, *, organisation: str, sealing_key: bytes | None, name: str = "coordinator"
    ) -> None:
        folder, authority = self._folder / place, self._folder / "authority"
        if (folder / CERTIFICATE).exists():
            return
        hosts = ("127.0.0.1",) if sealing_key is None else ()
        certificates.make_request(folder, name=name, organisation=organisation, sealing_key=sealing_key, hosts=hosts)
        role: certificates.Role = "coordinator" if sealing_key is None else "party"
        certificates.sign(authority, folder / REQUEST, folder / CERTIFICATE, role=role, days=3650)
        (folder / AUTHORITY).write_bytes((authority / AUTHORITY).read_bytes())

    def dialled(self, party: str) -> int:
        """The port at which a party's process reaches the coordinator."""
        return self.port

    def _launch(self, party: str, *, log: IO[bytes], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "colonnade.federation.transports.attend", str(self._homes[party])]
        command += ["--coordinator", f"127.0.0.1:{self.dialled(party)}"]
        command += ["--credentials", str(self._folder / f"party-{party}")]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        if party in self._homes:
            self._process(party)
        return super().exchange(party, data, timeout=timeout)

    def close(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            await_end(process)
        self._running.clear()
        super().close()
