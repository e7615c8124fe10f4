"""Three institutions and a coordinator, each with its own folder, keys and process, over mutual TLS on loopback.

Everything goes through the command line, as docs/network.md tells it. Oracle: the embedded federation on these files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.data.simulated import five_institutions
from colonnade.errors import PartyLost
from colonnade.federation.consortium import CoordinatorFile
from colonnade.federation.coordinator import Federation
from colonnade.federation.run_folder import RunFolder
from colonnade.models.vfem import VFEM

COMMAND = [sys.executable, "-m", "colonnade.cli.main"]
MEMBERS = ("credit", "commerce", "market")
COLUMNS = {"credit": ["roa", "roe"], "commerce": ["profit_growth", "capital"], "market": ["inspections"]}
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
    """Folders of three members, an authority and a coordinator, as their operators would make them."""

    def __init__(self, root: Path, *, approve: str) -> None:
        self.root, self.running = root, {}  # type: ignore[var-annotated]
        self.example = five_institutions(1500, seed=5)
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
        allow = ", ".join(f'"{one}"' for one in ALLOW)
        (here / "party.toml").write_text(
            f'consortium = "../public/consortium.toml"\nname = "{name}"\nsource = "block.csv"\n'
            f'[policy]\napprove = "{approve}"\nmethods = ["align", "describe", "vfem"]\nallow = [{allow}]\n'
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
        says("coordinator", "init", "credentials", "--host", "127.0.0.1", "--organisation", "University", cwd=here)
        self._sign(here / "credentials", "coordinator", "coordinator")
        members = "".join(
            f'[members.{name}]\ncertificate = "{name}.pem"\ncolumns = "{name}.columns.toml"\ncapacity = 1500\n'
            for name in MEMBERS
        )
        (self.root / "public" / "consortium.toml").write_text(
            f'key = "firm"\ncoordinator = "127.0.0.1:{self.port}"\n'
            f'committee = ["credit", "commerce", "market"]\n{members}'
        )
        (here / "coordinator.toml").write_text(
            f'consortium = "../public/consortium.toml"\naddress = "127.0.0.1:{self.port}"\n'
            f'revoked = "{self.root / "authority" / "revoked.txt"}"\n'
        )

    def start(self, name: str) -> None:
        log = (self.root / name / "serve.txt").open("ab")
        command = [*COMMAND, "party", "serve", "party.toml"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.running[name] = subprocess.Popen(command, cwd=self.root / name, stdout=log, stderr=log, env=environment)

    def stop(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            assert process.wait(timeout=30) == 0

    def run(self, *arguments: str, code: int = 0) -> str:
        return says(*arguments, "-f", "coordinator.toml", cwd=self.root / "coordinator", code=code)


@pytest.fixture
def consortium(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Consortium]:
    made = Consortium(tmp_path, approve=getattr(request, "param", "auto"))
    for name in MEMBERS:
        made.start(name)
    yield made
    made.stop()


@pytest.mark.slow
def test_align_describe_and_regress_across_institutions(consortium: Consortium) -> None:
    firms = set().union(*(set(consortium.example.blocks[name]["firm"]) for name in MEMBERS))
    said = consortium.run("align", "--quiet")
    result = RunFolder.open(Path(said.strip().splitlines()[-1]).parent).read_json("result.json")
    assert result["n"] == len(firms)
    for name in MEMBERS:  # no key of another party reached anybody's folder
        others = firms - set(consortium.example.blocks[name]["firm"])
        content = b"".join(path.read_bytes() for path in (consortium.root / name / "home").rglob("*") if path.is_file())
        assert not any(key.encode() in content for key in list(others)[:50])

    said = consortium.run("describe", "--epsilon", "5", "--quiet")
    described = RunFolder.open(Path(said.strip().splitlines()[-1]).parent).read_json("result.json")
    assert described["n"] == len(firms)

    said = consortium.run("regress", "--response", "profit_growth", "--quiet")
    fitted = RunFolder.open(Path(said.strip().splitlines()[-1]).parent).read_json("result.json")
    blocks = {name: consortium.example.blocks[name][["firm", *COLUMNS[name]]] for name in MEMBERS}
    columns = consortium.example.columns.select([one for each in COLUMNS.values() for one in each])
    with Federation.local(blocks, key="firm", columns=columns, allow=ALLOW[1:]) as here:
        oracle = VFEM(response="profit_growth").fit(here)
    # Rounding to 2^-20 is random, so the two agree to about that.
    pd.testing.assert_series_equal(pd.Series(fitted["params"]), oracle.params, check_names=False, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("consortium", ["ask"], indirect=True)
def test_an_operator_decides(consortium: Consortium) -> None:
    waiting = consortium.run("align", "--quiet", "--name", "first", code=5)
    assert "waits for the operators of credit, commerce, market" in waiting
    for name in MEMBERS:
        listed = says("party", "requests", "party.toml", cwd=consortium.root / name)
        job = listed.splitlines()[0]
        assert job.startswith("align-")
        assert "alignment" in listed
        says("party", "approve", "party.toml", job, cwd=consortium.root / name)
        assert "No job is waiting" in says("party", "requests", "party.toml", cwd=consortium.root / name)
    again = says("party", "approve", "party.toml", job, cwd=consortium.root / "credit", code=5)
    assert "no job" in again
    run = consortium.root / "coordinator" / "runs" / "first"
    says("resume", run, "--quiet", cwd=consortium.root / "coordinator")
    assert RunFolder.open(run).job["state"] == "done"

    consortium.run("describe", "--epsilon", "1", "--quiet", "--name", "second", code=5)
    listed = says("party", "requests", "party.toml", cwd=consortium.root / "market")
    says("party", "deny", "party.toml", listed.splitlines()[0], cwd=consortium.root / "market")
    denied = says(
        "resume", consortium.root / "coordinator" / "runs" / "second", cwd=consortium.root / "coordinator", code=5
    )
    assert "not-approved" in denied


@pytest.mark.slow
def test_a_missing_member_is_named(tmp_path: Path) -> None:
    made = Consortium(tmp_path, approve="auto")
    made.start("credit")
    try:
        file = made.root / "coordinator" / "coordinator.toml"
        started = time.monotonic()
        with pytest.raises(PartyLost, match="'commerce' is not connected"):
            Federation.serve(CoordinatorFile.from_toml(file), patience=12.0)
        assert time.monotonic() - started < 60
    finally:
        made.stop()
