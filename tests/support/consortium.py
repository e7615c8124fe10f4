"""Three institutions, an authority and a coordinator, each with its own folder, as their operators would make them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.data.simulated import five_institutions
from colonnade.federation.provision import Provision, initialise

COMMAND = [sys.executable, "-m", "colonnade.cli.main"]
MEMBERS = ("credit", "commerce", "market")
COLUMNS = {"credit": ["roa", "roe"], "commerce": ["profit_growth", "capital"], "market": ["inspections"]}
METHODS = ("align", "describe", "synthesize", "regress", "pca")
ALLOW = ("alignment", "exact-moments", "presence")


def says(*arguments: str | Path, cwd: Path, code: int = 0) -> str:
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout if code == 0 else done.stderr


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Consortium:
    """`seed` makes it a simulation. `host` is where the coordinator is dialled; `inside` puts a member's process into
    another network: the words that come before its command."""

    def __init__(
        self,
        root: Path,
        *,
        approve: str = "auto",
        n: int = 1500,
        seed: int | None = None,
        host: str = "127.0.0.1",
        inside: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.root, self.seed, self.host, self.inside = root, seed, host, dict(inside or {})
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.n, self.example = n, five_institutions(n, seed=5)
        self.port = free_port()
        says("authority", "init", "authority", cwd=root)
        public = root / "public"
        public.mkdir()
        for name in MEMBERS:
            self._member(name, approve)
        self._coordinator()

    def _member(self, name: str, approve: str) -> None:
        here = self.root / name
        here.mkdir()
        columns = self.example.columns.select(COLUMNS[name])
        (self.root / "public" / f"{name}.columns.toml").write_text(columns.to_toml())
        self.example.blocks[name][["firm", *COLUMNS[name]]].to_csv(here / "block.csv", index=False)
        allow, methods = (", ".join(f'"{one}"' for one in listed) for listed in (ALLOW, METHODS))
        (here / "party.toml").write_text(
            f'consortium = "../public/consortium.toml"\nname = "{name}"\nsource = "block.csv"\n'
            f"{'' if self.seed is None else 'simulation = true'}\n"
            f'[policy]\napprove = "{approve}"\nmethods = [{methods}]\nallow = [{allow}]\n'
        )
        says("party", "init", "party.toml", "--organisation", f"{name} Ltd", cwd=here)
        self._sign(here / "credentials", name, "party")

    def _sign(self, folder: Path, name: str, role: str) -> None:
        certificate = self.root / "public" / f"{name}.pem"
        says("authority", "sign", folder / "request.pem", "--role", role, "--out", certificate, cwd=self.root)
        shutil.copy(certificate, folder / "certificate.pem")
        shutil.copy(self.root / "authority" / "authority.pem", folder / "authority.pem")

    def _coordinator(self) -> None:
        here = self.root / "coordinator"
        here.mkdir()
        says("coordinator", "init", "credentials", "--host", self.host, "--organisation", "University", cwd=here)
        self._sign(here / "credentials", "coordinator", "coordinator")
        members = "".join(
            f'[members.{name}]\ncertificate = "{name}.pem"\ncolumns = "{name}.columns.toml"\ncapacity = {self.n}\n'
            for name in MEMBERS
        )
        (self.root / "public" / "consortium.toml").write_text(
            f'key = "firm"\ncoordinator = "{self.host}:{self.port}"\ncoordinator_organisation = "University"\n'
            f'committee = ["credit", "commerce", "market"]\n{members}'
        )
        (here / "coordinator.toml").write_text(
            f'consortium = "../public/consortium.toml"\naddress = "{self.host}:{self.port}"\n'
            f'revoked = "{self.root / "authority" / "revoked.txt"}"\n'
            f"{'' if self.seed is None else f'seed = {self.seed}'}\n"
        )

    def start(self, name: str) -> None:
        log = (self.root / name / "serve.txt").open("ab")
        command = [*self.inside.get(name, ()), *COMMAND, "party", "serve", "party.toml"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.running[name] = subprocess.Popen(command, cwd=self.root / name, stdout=log, stderr=log, env=environment)

    def start_all(self) -> None:
        for name in MEMBERS:
            self.start(name)

    def stop(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            assert process.wait(timeout=30) == 0

    def run(self, *arguments: str, code: int = 0) -> str:
        return says(*arguments, "-f", "coordinator.toml", cwd=self.root / "coordinator", code=code)


# --- by start-up kits ---------------------------------------------------------------------------------------------

KIT_MEMBERS = ("bank", "clinic", "registry")


def written(folder: Path, *, n: int = 120, sources: bool = True) -> Path:
    """Three tables and the consortium.toml that a person writes."""
    rng = np.random.default_rng(3)
    keys = [f"P{number:04d}" for number in range(n)]
    values = {
        "bank": ("income", rng.uniform(1000, 9000, n).round()),
        "clinic": ("age", rng.integers(20, 90, n)),
        "registry": ("region", rng.choice(["north", "south"], n)),
    }
    for name, (column, cells) in values.items():
        frame = pd.DataFrame({"patient_id": keys, column: cells})
        frame.sample(frac=0.9, random_state=1).to_csv(folder / f"{name}.csv", index=False)
    members = "".join(
        f'[members.{name}]\norganisation = "{name.title()}"\n' + (f'source = "{name}.csv"\n' if sources else "")
        for name in KIT_MEMBERS
    )
    file = folder / "consortium.toml"
    file.write_text(
        f'name = "Heart study"\nkey = "patient_id"\ncoordinator = "127.0.0.1:{free_port()}"\n'
        f'coordinator_organisation = "University"\n{members}'
    )
    return file


def provisioned(folder: Path) -> Path:
    """The coordinator.toml of a consortium whose kits were made and sent back on this machine; no process runs."""
    kits = Provision(written(folder), folder / "kits")
    kits.begin(dealer=True, confirm=True)
    kits.take([initialise(folder / "kits" / name / "party.toml", None)[1] for name in KIT_MEMBERS])
    kits.complete(dealer=True)
    return folder / "kits" / "coordinator" / "coordinator.toml"
