"""The deployment files: systemd accepts the units, and what they and the walk-through call exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.federation.config import CoordinatorFile
from colonnade.federation.provision import Provision
from colonnade.federation.transports.processes import MEMORY

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROGRAM = "/opt/colonnade/.venv/bin/colonnade"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    names = []
    for unit in [*DEPLOY.glob("*.service"), *DEPLOY.glob("*.timer")]:
        text = unit.read_text().replace(PROGRAM, "/bin/true")
        (tmp_path / unit.name).write_text(text)
        names.append(str(tmp_path / unit.name))
    assert len(names) == 4
    command = ["systemd-analyze", "verify", "--man=no"]
    done = subprocess.run([*command, *names], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    broken = tmp_path / "colonnade-party.service"
    broken.write_text(broken.read_text().replace("ProtectSystem=strict", "ProtectSystme=strict"))
    assert (
        "ProtectSystme" in subprocess.run([*command, str(broken)], capture_output=True, text=True, check=False).stderr
    )


def test_the_units_and_the_container_state_the_memory_settings_of_party_processes() -> None:
    for name in ("colonnade-party.service", "colonnade-coordinator.service", "Containerfile"):
        assert f"GLIBC_TUNABLES={MEMORY}\n" in (DEPLOY / name).read_text()


def test_the_container_keeps_nothing_where_it_would_be_lost() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    assert not [line for line in lines if line.startswith("VOLUME")]
    assert any(" HOME=/tmp " in line for line in lines if line.startswith("ENV"))


def test_the_verbs_that_the_units_and_the_container_call_exist() -> None:
    called = [
        words
        for unit in DEPLOY.glob("*.service")
        for words in re.findall(rf"{PROGRAM} ([a-z]+(?: [a-z]+)?)", unit.read_text())
    ]
    assert sorted(called) == ["coordinator serve", "doctor", "doctor", "ledger backup", "party serve"]
    for words in [*called, "party console", "ledger restore", "ledger recover", "authority revoke", "coordinator init"]:
        assert CliRunner().invoke(app, [*words.split(), "--help"]).exit_code == 0, words
    container = (DEPLOY / "Containerfile").read_text()
    assert 'CMD ["party", "serve", "party.toml"]' in container
    for copied in re.findall(r"^COPY (?!--from)(.*) \./?\S*$", container, re.MULTILINE):
        for name in copied.split():
            assert (ROOT / name).exists(), name


COMPOSED: dict[str, type] = {
    "image": str,
    "command": list,
    "restart": str,
    "read_only": bool,
    "tmpfs": list,
    "cap_drop": list,
    "security_opt": list,
    "user": str,
    "volumes": list,
    "ports": list,
}
"""What our services may state, and in which form, by the compose specification; it allows no other spelling."""


@pytest.mark.parametrize("role", ["party", "coordinator"])
def test_what_the_compose_file_of_a_kit_names_is_there(tmp_path: Path, role: str) -> None:
    """Where there is no container engine the file is read as YAML, and all that it names is looked for;
    `make study NAME=compose` runs it."""
    file = tmp_path / "consortium.toml"
    members = "".join(f'[members.{name}]\norganisation = "{name}"\n' for name in ("bank", "clinic", "tax"))
    file.write_text(f'key = "id"\ncoordinator = "c.example.org:7443"\ncoordinator_organisation = "U"\n{members}')
    Provision(file, tmp_path / "kits").begin()
    kit = tmp_path / "kits" / ("bank" if role == "party" else role)
    composed = yaml.safe_load((kit / "compose.yaml").read_text())
    assert list(composed) == ["services"]
    service = composed["services"]["colonnade"]
    assert {name: type(value) for name, value in service.items()}.items() <= COMPOSED.items()
    for listed in (value for value in service.values() if isinstance(value, list)):
        assert len(set(listed)) == len(listed)
        assert all(isinstance(entry, str) for entry in listed)
    assert service["restart"] in ("no", "always", "on-failure", "unless-stopped")
    assert all(re.fullmatch(r"\.\.?(/[\w./-]+)?:/[\w./-]+", entry) for entry in service["volumes"])
    container = (DEPLOY / "Containerfile").read_text()
    assert 'ENTRYPOINT ["colonnade"]' in container
    assert service["command"] == [role, "serve", f"{role}.toml"]
    assert CliRunner().invoke(app, [*service["command"][:2], "--help"]).exit_code == 0
    assert (kit / service["command"][2]).is_file()
    workplace = next(line.split()[1] for line in container.splitlines() if line.startswith("WORKDIR /etc"))
    mounts = dict(reversed(entry.split(":")) for entry in service["volumes"])
    assert (kit / mounts[workplace]).samefile(kit)
    assert service.get("ports") == (["7443:7443"] if role == "coordinator" else None)
    if role == "coordinator":
        stated = CoordinatorFile.from_toml(kit / "coordinator.toml")
        inside = Path(workplace, stated.authority.relative_to(kit)).resolve()  # "../authority" in the container
        assert (kit / mounts[str(inside)]).samefile(tmp_path / "kits" / "authority")
    assert set(re.findall(r"\$\{(\w+)", service["user"])) == {"OWNER"}
    assert "OWNER=$(id -u)" in (kit / "compose.yaml").read_text()


def test_commands_in_the_deployment_notes_exist() -> None:
    text = (ROOT / "docs" / "deployment.md").read_text()
    named = set(re.findall(r"colonnade ((?:party|ledger|authority|coordinator|transcript) [a-z]+)", text))
    named |= set(re.findall(r"colonnade (doctor|align|describe|resume|run)\b", text))
    assert len(named) > 10
    for words in named:
        assert CliRunner().invoke(app, [*words.split(), "--help"]).exit_code == 0, words
    for name in re.findall(r"`(deploy/[\w.-]+)`", text):
        assert (ROOT / name).is_file()
