"""The doctor finds each fault that is planted, names its cure, and finds nothing where nothing is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.federation import doctor as doctor_network
from colonnade.federation import doctor as examination
from colonnade.federation.config import PartyFile
from colonnade.federation.doctor import examine
from colonnade.federation.home import open_party, prepare
from colonnade.federation.messages import Request
from colonnade.federation.transports import channel as clock
from colonnade.federation.transports.certificates import make_authority, make_request, revoke, sign
from colonnade.federation.transports.network import Network
from support.consortium import MEMBERS, Consortium, says


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    """Three members and a coordinator; the credit agency has served once."""
    made = Consortium(tmp_path_factory.mktemp("consortium"), n=200)
    prepare(PartyFile.from_toml(made.root / "credit" / "party.toml"))
    party = open_party(made.root / "credit" / "home")
    party.handle(Request(kind="hello", arguments={}).encode())
    party.close()
    for name in MEMBERS:
        (made.root / name / "home").chmod(0o700)
    (made.root / "authority" / "revoked.txt").touch()
    return made


@pytest.fixture
def root(template: Consortium, tmp_path: Path) -> Path:
    """A copy to plant a fault in."""
    shutil.copytree(template.root, tmp_path / "copy")
    toml = tmp_path / "copy" / "coordinator" / "coordinator.toml"
    toml.write_text(toml.read_text().replace(str(template.root), str(tmp_path / "copy")))
    return tmp_path / "copy"


def found(path: Path, level: str, *, quick: bool = False) -> str:
    """The sentences of one level, one line each."""
    return "\n".join(
        f"{one.about}: {one.sentence}" for one in examine(path, quick=quick).findings if one.level == level
    )


def test_nothing_is_wrong(root: Path) -> None:
    for file in (root / "credit" / "party.toml", root / "coordinator" / "coordinator.toml"):
        assert not found(file, "fault")
    # A coordinator serves only while a job runs, and nobody has aligned yet: worth a word, not a fault.
    assert {one.about for one in examine(root / "credit" / "party.toml").findings if one.level == "warning"} == {
        "network",
        "alignment",
    }
    assert not found(root / "coordinator" / "coordinator.toml", "warning")
    checked = {one.about for one in examine(root / "credit" / "party.toml").findings}
    assert checked == {
        "versions", "certificates", "keys", "consortium", "members", "columns", "alignment", "network", "disk",
        "records", "clocks",
    }  # fmt: skip


def test_the_command_says_the_same_and_its_exit_code_tells(root: Path) -> None:
    runner = CliRunner()
    file = str(root / "credit" / "party.toml")
    done = runner.invoke(app, ["doctor", file])
    assert done.exit_code == 0, done.output
    assert "0 faults, 2 warnings. Nothing is wrong." in done.output
    (root / "credit" / "credentials" / "tls.key").chmod(0o644)
    done = runner.invoke(app, ["doctor", file, "--json"])
    assert done.exit_code == 8
    told = json.loads(done.stdout)
    assert (told["side"], told["name"], told["faults"]) == ("party", "credit", 1)
    assert runner.invoke(app, ["doctor", str(root / "nothing.toml")]).exit_code == 3


# --- certificates and keys --------------------------------------------------------------------------------


def renew(root: Path, name: str, *, days: float, role: str = "party", authority: str = "authority") -> None:
    folder = root / name / "credentials"
    for place in (folder / "certificate.pem", root / "public" / f"{name}.pem"):
        place.unlink(missing_ok=True)
    sign(root / authority, folder / "request.pem", folder / "certificate.pem", role=role, days=days)  # type: ignore[arg-type]
    shutil.copy(folder / "certificate.pem", root / "public" / f"{name}.pem")


def test_an_expired_certificate(root: Path) -> None:
    renew(root, "credit", days=1e-9)
    told = found(root / "credit" / "party.toml", "fault")
    assert "certificates: The certificate of credit ended at" in told
    assert "have the authority sign the request again" in told
    assert "members: The certificate of member 'credit' ended" in found(root / "market" / "party.toml", "fault")


def test_a_certificate_that_ends_soon(root: Path) -> None:
    renew(root, "credit", days=3)
    assert not found(root / "credit" / "party.toml", "fault")
    assert "The certificate of credit ends in 3.0 days" in found(root / "credit" / "party.toml", "warning")
    assert "The certificate of member 'credit' ends in 3.0 days" in found(
        root / "coordinator" / "coordinator.toml", "warning"
    )


def test_a_clock_before_the_certificate(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Early(doctor_network.datetime.datetime):  # type: ignore[name-defined,misc]
        @classmethod
        def now(cls, tz: object = None) -> object:
            return super().now(tz) - doctor_network.datetime.timedelta(days=1)

    monkeypatch.setattr(doctor_network.datetime, "datetime", Early)
    assert "which is not yet; set this machine's clock" in found(root / "credit" / "party.toml", "fault", quick=True)


def test_a_foreign_authority(root: Path) -> None:
    make_authority(root / "elsewhere", name="Another")
    shutil.copy(root / "elsewhere" / "authority.pem", root / "credit" / "credentials" / "authority.pem")
    told = found(root / "credit" / "party.toml", "fault")
    assert "certificates: The certificate of credit was not signed by the authority" in told
    assert "consortium: " in told


def test_a_key_that_does_not_fit(root: Path) -> None:
    shutil.copy(root / "market" / "credentials" / "tls.key", root / "credit" / "credentials" / "tls.key")
    assert "is not the key of the certificate of credit" in found(root / "credit" / "party.toml", "fault")
    (root / "credit" / "credentials" / "tls.key").write_text("nothing")
    assert "is not a private key in PEM form" in found(root / "credit" / "party.toml", "fault")


@pytest.mark.parametrize("name", ["credentials/tls.key", "home/identity.pem"])
def test_keys_that_others_can_read_or_that_are_gone(root: Path, name: str) -> None:
    (root / "credit" / name).chmod(0o640)
    told = found(root / "credit" / "party.toml", "fault")
    assert "(mode 640)" in told
    assert "chmod 600" in told
    (root / "credit" / name).unlink()
    told = found(root / "credit" / "party.toml", "fault")
    assert "is not there" in told
    assert not (root / "credit" / name).exists(), "a check makes no keys"


def test_somebody_elses_certificate(root: Path) -> None:
    shutil.copy(
        root / "market" / "credentials" / "certificate.pem", root / "credit" / "credentials" / "certificate.pem"
    )
    told = found(root / "credit" / "party.toml", "fault")
    assert "the certificate is for 'market'" in told.lower()
    assert "another sealing key" in told


def test_the_wrong_role_and_the_wrong_host(root: Path) -> None:
    shutil.copy(root / "credit" / "credentials" / "certificate.pem", root / "coordinator" / "credentials")
    assert "is not a coordinator's" in found(root / "coordinator" / "coordinator.toml", "fault")
    folder = root / "coordinator" / "credentials"
    for name in ("tls.key", "request.pem", "certificate.pem"):
        (folder / name).unlink()
    make_request(folder, name="coordinator", organisation="University", hosts=("elsewhere.example",))
    sign(root / "authority", folder / "request.pem", folder / "certificate.pem", role="coordinator")
    told = found(root / "coordinator" / "coordinator.toml", "fault")
    assert "parties dial '127.0.0.1'" in told.lower()
    assert "--host 127.0.0.1" in told


def test_a_revoked_member_and_a_missing_list(root: Path) -> None:
    revoke(root / "authority", root / "public" / "market.pem")
    assert "member 'market' is revoked" in found(root / "coordinator" / "coordinator.toml", "fault")
    (root / "authority" / "revoked.txt").unlink()
    assert "none counts as revoked" in found(root / "coordinator" / "coordinator.toml", "warning")


@pytest.mark.parametrize("sealing", [False, True], ids=["a new TLS key", "a new sealing key too"])
def test_keys_are_rotated_as_the_deployment_notes_say(root: Path, sealing: bool) -> None:
    here = root / "credit"
    before = (here / "home" / "identity.pem").read_bytes()
    for name in ("tls.key", "request.pem", "certificate.pem"):
        (here / "credentials" / name).rename(here / f"old-{name}")
    if sealing:
        (here / "home" / "identity.pem").rename(here / "old-identity.pem")
    says("party", "init", "party.toml", "--organisation", "credit Ltd", cwd=here)
    assert ((here / "home" / "identity.pem").read_bytes() == before) != sealing
    renew(root, "credit", days=90)
    for name in MEMBERS:
        assert not found(root / name / "party.toml", "fault")
        prepare(PartyFile.from_toml(root / name / "party.toml"))  # everybody can serve
    assert not found(root / "coordinator" / "coordinator.toml", "fault")


# --- the way to the coordinator, clocks, versions ---------------------------------------------------------


@contextlib.contextmanager
def serving(root: Path) -> Iterator[int]:
    """The coordinator's end, on a free port that consortium.toml then names."""
    network = Network(MEMBERS, address="127.0.0.1:0", folder=root / "coordinator" / "credentials")
    file = root / "public" / "consortium.toml"
    lines = file.read_text().splitlines()
    lines = [f'coordinator = "127.0.0.1:{network.port}"' if one.startswith("coordinator =") else one for one in lines]
    file.write_text("\n".join(lines) + "\n")
    try:
        yield network.port
    finally:
        network.close()


def test_a_reachable_coordinator_its_clock_and_its_version(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = root / "credit" / "party.toml"
    with serving(root):
        assert not found(file, "fault", quick=True)
        told = found(file, "ok", quick=True)
        assert "is reachable, and the coordinator's certificate is good" in told
        assert "clocks: This clock and the coordinator's differ by 0.0 s." in told

        honest = clock.ask_clock

        def shifted(seconds: float, version: str | None = None) -> None:
            def asked(*arguments: object, **options: object) -> clock.ClockReading:
                told = honest(*arguments, **options)  # type: ignore[arg-type]
                return clock.ClockReading(
                    ahead=told.ahead + seconds, within=told.within, version=version or told.version
                )

            monkeypatch.setattr(clock, "ask_clock", asked)

        shifted(30.0)
        assert "differ by 30.0 s; set both by NTP" in found(file, "warning", quick=True)
        shifted(-900.0)
        assert "certificates will be refused" in found(file, "fault", quick=True)
        shifted(0.0, "0.0.9")
        assert "The coordinator runs Colonnade 0.0.9" in found(file, "fault", quick=True)


def test_an_impostor_at_the_coordinators_address(root: Path) -> None:
    make_authority(root / "elsewhere", name="Another")
    folder = root / "coordinator" / "credentials"
    (folder / "certificate.pem").unlink()
    sign(root / "elsewhere", folder / "request.pem", folder / "certificate.pem", role="coordinator")
    shutil.copy(root / "elsewhere" / "authority.pem", folder / "authority.pem")
    with serving(root):
        assert "is not the coordinator that your authority certified" in found(
            root / "credit" / "party.toml", "fault", quick=True
        )


def test_a_party_that_the_coordinator_does_not_accept(root: Path) -> None:
    make_authority(root / "elsewhere", name="Another")
    with serving(root):
        folder = root / "credit" / "credentials"
        (folder / "certificate.pem").unlink()
        sign(root / "elsewhere", folder / "request.pem", folder / "certificate.pem", role="party")
        told = found(root / "credit" / "party.toml", "fault", quick=True)
        assert "hung up when it saw this party's certificate" in told


def test_a_name_that_leads_nowhere_and_a_port_that_is_taken(root: Path) -> None:
    file = root / "public" / "consortium.toml"
    with serving(root) as port:
        toml = root / "coordinator" / "coordinator.toml"
        toml.write_text(toml.read_text().replace("address = ", f'address = "127.0.0.1:{port}" # '))
        assert "cannot be served at now" in found(toml, "warning")
    file.write_text(file.read_text().replace('coordinator = "127.0.0.1:', 'coordinator = "no-such-host.invalid:'))
    assert "leads nowhere" in found(root / "credit" / "party.toml", "fault", quick=True)


def test_records_that_end_in_the_future_or_go_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, home = root / "credit" / "party.toml", root / "credit" / "home"
    now = time.time()
    for shift in (0.0, -3600.0):
        monkeypatch.setattr(time, "time", lambda shift=shift: now + shift)
        party = open_party(home)
        party.handle(Request(kind="hello", arguments={}).encode())
        party.close()
    monkeypatch.setattr(time, "time", lambda: now + 10)
    assert "This clock went back by 3600 s at row" in found(file, "warning", quick=True)
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    assert "86400 s in the future" in found(file, "fault", quick=True)


# --- disk, columns, records -------------------------------------------------------------------------------


@pytest.mark.parametrize(("free", "level"), [(50e6, "fault"), (1e9, "warning"), (50e9, "ok")])
def test_disk_space(root: Path, monkeypatch: pytest.MonkeyPatch, free: float, level: str) -> None:
    usage = shutil.disk_usage(root)
    monkeypatch.setattr(examination.shutil, "disk_usage", lambda _: usage._replace(free=int(free)))
    for file in (root / "credit" / "party.toml", root / "coordinator" / "coordinator.toml"):
        assert "GB are free" in found(file, level, quick=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(root: Path) -> None:
    (root / "credit" / "home").chmod(0o500)
    assert "cannot be written" in found(root / "credit" / "party.toml", "fault", quick=True)


def test_a_source_that_does_not_agree(root: Path) -> None:
    file, source = root / "credit" / "party.toml", root / "credit" / "block.csv"
    good = source.read_text()
    source.write_text(good.replace("roe", "return_on_equity", 1))
    assert "has no column 'roe'" in found(file, "fault", quick=True)
    first, second, *rest = good.splitlines()
    source.write_text("\n".join([first, second.rpartition(",")[0] + ",1e9", *rest]))
    assert "roe" in found(file, "fault")
    assert "columns:" not in found(file, "fault", quick=True), "quick reads no rows"
    source.unlink()
    assert "block.csv" in found(file, "fault")
    source.write_text(good)
    file.write_text(file.read_text().replace("[policy]", '[policy]\ncolumns = ["roa", "salary"]'))
    assert "offers 'salary'" in found(file, "fault")


def test_records_that_were_changed(root: Path) -> None:
    raw = sqlite3.connect(root / "credit" / "home" / "party.db")
    raw.executescript(
        "DROP TRIGGER transcript_no_update; UPDATE transcript SET body = replace(body, 'hello', 'hallo');"
    )
    raw.close()
    told = found(root / "credit" / "party.toml", "fault")
    assert "what keeps the transcript append-only is gone" in told.lower()
    assert "row 1 of transcript" in told.lower()


def test_a_folder_that_everybody_can_read(root: Path) -> None:
    (root / "credit" / "home").chmod(0o755)
    assert "chmod 700" in found(root / "credit" / "party.toml", "warning")


def test_a_run_whose_transcript_was_changed(root: Path) -> None:
    run = root / "coordinator" / "runs" / "one"
    run.mkdir(parents=True)
    shutil.copy(root / "credit" / "home" / "party.db", run / "transcript.db")
    assert "newest 1 runs are intact" in found(root / "coordinator" / "coordinator.toml", "ok")
    raw = sqlite3.connect(run / "transcript.db")
    raw.executescript(
        "DROP TRIGGER transcript_no_update; UPDATE transcript SET body = replace(body, 'hello', 'hallo');"
    )
    raw.close()
    assert "does not follow from the row before it" in found(root / "coordinator" / "coordinator.toml", "fault")
