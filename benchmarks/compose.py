"""The start-up kits in containers: three members and a coordinator, each from its kit's compose file, with Podman.

The image is built by deploy/Containerfile (what is built already is taken from Podman's cache). Every command of
Colonnade runs in a container, in the order of docs/deployment.md: `provision`, keys made at the members, their files
back, second kits, `doctor`, `up -d`; then `align` and `describe` with epsilon 1, each approved by every member. While
the description waits for its operators, one member's container is stopped and started again.

**Criterion**: `doctor` finds no fault at any of the four; the member that was stopped is missed by the coordinator and
is connected again by itself; both jobs end with a report; the kits have nothing in them that Colonnade did not mean to
write there.

Needs podman and podman-compose. PODMAN_BUILD has more words for `podman build`, for a mirror of packages say. Run by
root, the kits belong to account 10001, which is what compose.yaml takes where OWNER is not stated.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import REPOSITORY, Page, quick
from benchmarks.first_hour import MEMBERS, free_port, tables

IMAGE, STOPPED, PATIENCE = "colonnade", "clinic", 120.0
ROOT = os.getuid() == 0
ACCOUNT = 10001 if ROOT else 0
"""In the container. Without root 0 is the account that runs this."""
CONSORTIUM = """name = "Heart study"
key = "patient_id"
coordinator = "host.containers.internal:{port}"
coordinator_organisation = "University"
"""


def called(words: list[str], folder: Path) -> str:
    """What a command says; the study ends where one fails."""
    environment = {**os.environ, "OWNER": str(ACCOUNT)}
    done = subprocess.run(
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    # podman-compose 1.0 ends with 0 whatever its command ended with, and says it.
    if done.returncode or re.search(r"^exit code: [1-9]", done.stdout + done.stderr, re.MULTILINE):
        raise SystemExit(f"{shlex.join(words)} failed: {(done.stdout + done.stderr).strip()[-1500:]}")
    return done.stdout + done.stderr


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"In {PATIENCE:.0f} seconds it did not happen: {what}.")
        time.sleep(1.0)


def owned(folder: Path) -> Path:
    """A folder with all that is in it, given to the account of the containers."""
    if ROOT:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, ACCOUNT, ACCOUNT)
    return folder


class Kit:
    """The folder of one member or of the coordinator, and its compose project."""

    def __init__(self, folder: Path, project: str) -> None:
        self.folder, self.project, self._compose = folder, project, ["podman-compose", "-p", project]

    def compose(self, *words: str) -> str:
        return called([*self._compose, *words], self.folder)

    def once(self, *words: str) -> str:
        """A command in a container of its own, before the service is there or beside it."""
        return self.compose("run", "--rm", "--no-deps", "-T", IMAGE, *words)

    def inside(self, *words: str) -> str:
        """A command in the service's container."""
        return self.compose("exec", "-T", IMAGE, "colonnade", *words)

    def ask(self, *words: str) -> subprocess.Popen[bytes]:
        """A job, asked for at the coordinator and followed until it has ended."""
        command = [*self._compose, "exec", "-T", IMAGE, "colonnade", *words, "-f", "coordinator.toml", "--yes"]
        null = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=self.folder, stdin=null, stdout=null, stderr=null)

    def end(self) -> None:
        self.compose("down")
        # podman-compose 1.0 leaves its network.
        called(["podman", "network", "rm", "-f", f"{self.project}_default"], self.folder)

    def unpack(self, kits: Path) -> None:
        with zipfile.ZipFile(kits / f"{self.folder.name}.zip") as archive:
            archive.extractall(self.folder.parent)
        owned(self.folder)

    def approve(self, method: str) -> None:
        """What the operator does when a job of this method waits."""
        job = re.compile(rf"^{method}-\S+$", re.MULTILINE)
        until(lambda: job.search(self.inside("party", "requests", "party.toml")) is not None, f"{method} waits")
        (name,) = job.findall(self.inside("party", "requests", "party.toml"))
        self.inside("party", "approve", "party.toml", name)


def provisioned(folder: Path, port: int) -> tuple[dict[str, Kit], Kit]:
    """Members whose keys were made in their own folders, and the coordinator."""
    university = folder / "university"
    university.mkdir()
    stated = "".join(f'\n[members.{name}]\norganisation = "{name.title()}"\n' for name in MEMBERS)
    (university / "consortium.toml").write_text(CONSORTIUM.format(port=port) + stated, encoding="utf-8")
    mount = f"{owned(university)}:/etc/colonnade"
    provision = ["podman", "run", "--rm", "--user", str(ACCOUNT), "-v", mount, IMAGE, "provision", "consortium.toml"]
    called(provision, university)
    members = {name: Kit(folder / name, f"colonnade-{port}-{name}") for name in MEMBERS}
    for name, member in members.items():
        member.unpack(university / "kits")
        (folder / f"{name}.csv").rename(member.folder / "table.csv")
        party = member.folder / "party.toml"
        party.write_text(party.read_text(encoding="utf-8").replace("# source =", "source ="), encoding="utf-8")
        owned(member.folder)
        member.once("init", "table.csv", "--key", "patient_id", "--yes")
        member.once("party", "init", "party.toml")
        shutil.copy(member.folder / f"{name}.reply.json", university)
    owned(university)
    called([*provision, *(f"{name}.reply.json" for name in MEMBERS), "--yes"], university)
    for member in members.values():
        member.unpack(university / "kits")
    return members, Kit(university / "kits" / "coordinator", f"colonnade-{port}-coordinator")


def worked(members: dict[str, Kit], coordinator: Kit) -> None:
    """Both jobs, to their reports, with a member that is stopped and started meanwhile."""

    def connected(*names: str) -> bool:
        lines = re.findall(r"^connected: (.*?)(?:;.*)?$", coordinator.compose("logs"), re.MULTILINE)
        return bool(lines) and lines[-1].strip() == ", ".join(names)

    for kit in (coordinator, *members.values()):
        kit.once("doctor", f"{'coordinator' if kit is coordinator else 'party'}.toml")
        kit.compose("up", "-d")
        if kit is coordinator:
            until(lambda: "serving at" in coordinator.compose("logs"), "the coordinator serves")
    until(lambda: connected(*MEMBERS), "all members are connected")
    asked = coordinator.ask("align")
    for member in members.values():
        member.approve("align")
    until(lambda: asked.poll() is not None, "the alignment ends")
    asked = coordinator.ask("describe", "--epsilon", "1")
    others = [name for name in MEMBERS if name != STOPPED]
    for name in others:
        members[name].approve("describe")
    members[STOPPED].compose("stop")
    until(lambda: connected(*others), f"{STOPPED} is missed")
    members[STOPPED].compose("start")
    until(lambda: connected(*MEMBERS), f"{STOPPED} is connected again")
    members[STOPPED].approve("describe")
    until(lambda: asked.poll() is not None, "the description ends")


def main() -> int:
    if lacking := [name for name in ("podman", "podman-compose") if shutil.which(name) is None]:
        raise SystemExit(f"This study needs {' and '.join(lacking)}; install them from your distribution's packages.")
    page = Page("compose", "The start-up kits in containers")
    build = ["podman", "build", *shlex.split(os.environ.get("PODMAN_BUILD", ""))]
    called([*build, "-f", "deploy/Containerfile", "-t", IMAGE, "."], REPOSITORY)
    version = called(["podman", "--version"], REPOSITORY).strip()
    account = "root, with the kits' account 10001" if ROOT else "an account without root"
    page.say(f"{version}, run by {account}; the steps and the criterion are in `benchmarks/compose.py`.")
    with tempfile.TemporaryDirectory(prefix="compose-") as temporary:
        folder, began = Path(temporary), time.monotonic()
        tables(folder, 400 if quick() else 3000)
        members, coordinator = provisioned(folder, free_port())
        prepared = time.monotonic()
        try:
            worked(members, coordinator)
        finally:
            for kit in (*members.values(), coordinator):
                kit.end()
        jobs = len(list((coordinator.folder / "runs").glob("*/report.html")))
        strays = [str(path) for kit in (*members.values(), coordinator) for path in kit.folder.glob(".*")]
        rows = [["kits", f"{prepared - began:.0f}"], ["service and jobs", f"{time.monotonic() - prepared:.0f}"]]
        page.table(("step", "seconds"), rows)
    for stray in strays:
        page.say(f"- not meant to be in a kit: {stray}")
    # The study has ended before this if the member was not missed, or did not come back.
    return page.finish(jobs == 2 and not strays, members=len(members), jobs=jobs, reconnected="yes", strays=len(strays))


if __name__ == "__main__":
    sys.exit(main())
