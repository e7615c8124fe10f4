"""From one consortium.toml to a job that operators have approved: kits, processes with their own homes, a coordinator
that stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from colonnade.errors import ColonnadeError, RosterError, RunError, SchemaError
from colonnade.federation.config import Consortium
from colonnade.federation.doctor import examine
from colonnade.federation.plan import HOPELESS
from colonnade.federation.provision import Provision, initialise, kit_manifest
from colonnade.federation.service import CoordinatorService, Queue
from colonnade.federation.transports.certificates import AUTHORITY, read_certificate
from colonnade.statistics.describe import Describe
from colonnade.synthesis.method import Synthesize
from support.consortium import COMMAND, KIT_MEMBERS, says, written

COLUMNS = {
    "bank": '[columns.income]\nkind = "continuous"\nlower = 0.0\nupper = 10000.0\n',
    "clinic": '[columns.age]\nkind = "count"\nlower = 0\nupper = 110\n',
    "registry": '[columns.region]\nkind = "categorical"\ncategories = ["north", "south"]\n',
}


def unpacked(kits: Path, name: str, target: Path) -> Path:
    with zipfile.ZipFile(kits / f"{name}.zip") as archive:
        archive.extractall(target)
    return target / name


def certificate_fault(home: Path) -> str:
    """The one fault of a party that has no certificate yet."""
    (fault,) = (finding for finding in examine(home / "party.toml").findings if finding.level == "fault")
    return fault.sentence


def test_keys_are_made_at_the_members(tmp_path: Path) -> None:
    file = written(tmp_path, sources=False)
    said = says("provision", file.name, cwd=tmp_path)
    assert "send one file back" in said
    homes, replies = {}, []
    for name in KIT_MEMBERS:
        homes[name] = home = unpacked(tmp_path / "kits", name, tmp_path / "institutions")
        assert not list(home.rglob("*.key"))
        shutil.copy(tmp_path / f"{name}.csv", home / "table.csv")
        text = (home / "party.toml").read_text()
        (home / "party.toml").write_text(text.replace("# source =", "source ="))
        with pytest.raises(SchemaError, match="declare the columns"):
            initialise(home / "party.toml", None)
        (home / "columns.toml").write_text(COLUMNS[name])
        assert certificate_fault(home).startswith("This party has no keys yet; run `colonnade party init")
        sent = says("party", "init", "party.toml", cwd=home)
        assert "fingerprint" in sent
        assert f"send it {name}.reply.json" in certificate_fault(home)
        replies.append(home / f"{name}.reply.json")
    said = says("provision", file.name, *replies, "--yes", cwd=tmp_path)
    assert "Compare by telephone" in said
    assert "Send to bank: kits/bank.zip" in said
    assert "party serve kits" not in said, "the keys are not here"
    for name in KIT_MEMBERS:
        key = (homes[name] / "credentials" / "tls.key").read_bytes()
        assert not any(key in path.read_bytes() for path in (tmp_path / "kits").rglob("*") if path.is_file())
        edited = (homes[name] / "party.toml").read_text()
        unpacked(tmp_path / "kits", name, tmp_path / "institutions")
        assert (homes[name] / "party.toml").read_text() == edited
        agreed = Consortium.from_toml(
            homes[name] / "public" / "consortium.toml", authority=homes[name] / "credentials" / AUTHORITY
        )
        assert agreed.roster.committee == KIT_MEMBERS
        assert agreed.capacity == dict.fromkeys(KIT_MEMBERS, 110)
        manifest = kit_manifest(homes[name], authority=homes[name] / "credentials" / AUTHORITY)
        assert manifest is not None
        assert manifest["keys"] == "made at the member"
        findings = {finding.about: finding for finding in examine(homes[name] / "party.toml").findings}
        assert findings["kit"].level == "ok"
    bank = homes["bank"]
    (bank / "public" / "consortium.toml").write_text("key = 'x'\n")
    with pytest.raises(RosterError, match="not the file of the kit"):
        kit_manifest(bank, authority=bank / "credentials" / AUTHORITY)
    stated = json.loads((bank / "kit.json").read_text())
    (bank / "kit.json").write_text(json.dumps({**stated, "organisation": "Thief"}))
    with pytest.raises(RosterError, match="not signed"):
        kit_manifest(bank, authority=bank / "credentials" / AUTHORITY)


def test_what_comes_back_is_checked(tmp_path: Path) -> None:
    file = written(tmp_path, sources=False)
    kits = Provision(file, tmp_path / "kits")
    kits.begin()
    (tmp_path / "kits" / "bank" / "party.toml").write_text(
        'consortium = "public/consortium.toml"\nname = "thief"\nhome = "home"\n'
    )
    _, reply = initialise(tmp_path / "kits" / "bank" / "party.toml", None)
    with pytest.raises(RosterError, match="no member"):
        kits.take([reply])
    reply.write_text("{}")
    with pytest.raises(RosterError, match="no file that"):
        kits.take([reply])
    with pytest.raises(RosterError, match="have not sent"):
        kits.complete()


def test_certificates_past_half_of_their_life_are_renewed(tmp_path: Path) -> None:
    file = written(tmp_path)
    kits = Provision(file, tmp_path / "kits", days=0.002)
    kits.begin(dealer=True, confirm=True)
    kits.take([initialise(tmp_path / "kits" / name / "party.toml", None)[1] for name in KIT_MEMBERS])
    assert kits.complete(dealer=True) == list(KIT_MEMBERS)
    certificate = tmp_path / "kits" / "bank" / "credentials" / "certificate.pem"
    earlier = read_certificate(certificate).serial_number
    later = Provision(file, tmp_path / "kits", days=90)  # backdated by five minutes: past half of its short life
    assert later.begin(dealer=True) == []
    assert later.complete(dealer=True) == list(KIT_MEMBERS)
    assert read_certificate(certificate).serial_number != earlier
    assert later.complete(dealer=True) == []


def test_a_queue_keeps_jobs_until_they_end(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue")
    first = queue.ask(Describe(epsilon=1.0), name="first")
    queue.put("pca", {"epsilon": 1.0})
    assert queue.waiting()[0] == first
    assert queue.state(first).state == "queued"
    assert not queue.served
    assert repr(queue) == f"<Queue in {tmp_path / 'queue'}: 2 jobs, not served now>"
    with pytest.raises(RunError, match="already asked"):
        queue.ask(Describe(epsilon=1.0), name="first")
    with pytest.raises(RunError):
        queue.ask(Describe(epsilon=1.0), name="../first")
    with queue.locked():
        assert queue.served
        with pytest.raises(RunError, match="already serves"), queue.locked():
            pass
    queue.end(first, failed="denied")
    assert queue.state(first).sentence == "denied"
    assert first not in queue.waiting()


class Processes:
    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, cwd: Path) -> Path:
        log = cwd / f"{name}.log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with log.open("ab") as file:
            self.running[name] = subprocess.Popen(
                [*COMMAND, *arguments], cwd=cwd, stdout=file, stderr=file, env=environment
            )
        return log

    def stop(self, *names: str) -> None:
        for name in names or tuple(self.running):
            process = self.running.pop(name)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0, name


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.stop()


def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


@pytest.mark.slow
def test_a_coordinator_that_stays_goes_on_by_itself(tmp_path: Path, processes: Processes) -> None:
    file = written(tmp_path)
    says("provision", file.name, "--trusted-dealer", "--yes", cwd=tmp_path)
    kits = tmp_path / "kits"
    clinic = kits / "clinic" / "party.toml"
    clinic.write_text(clinic.read_text().replace('# methods = ["describe"]', 'methods = ["align"]'))
    here = kits / "coordinator"
    queue = Queue.of(here / "coordinator.toml")
    log = processes.start("coordinator", "coordinator", "serve", cwd=here)
    until(lambda: queue.served)
    described = queue.ask(Describe(epsilon=1.0), name="described")
    until(lambda: "bank, clinic, registry to connect" in queue.state(described).sentence)
    for name in KIT_MEMBERS:
        processes.start(name, "party", "serve", "party.toml", cwd=kits / name)
    until(lambda: "lined up" in queue.state(described).sentence)
    said = says("align", "--yes", "--name", "lined-up", cwd=here)  # handed to the service, and followed
    assert "A cohort of" in said
    until(lambda: "operators of clinic" in queue.state(described).sentence)
    assert "clinic" in says("coordinator", "jobs", cwd=here)

    processes.stop("coordinator")
    (job,) = [
        name for name in says("party", "requests", "party.toml", cwd=kits / "clinic").split() if "describe-" in name
    ]
    says("party", "approve", "party.toml", job, cwd=kits / "clinic")
    processes.start("coordinator", "coordinator", "serve", cwd=here)
    until(lambda: queue.state(described).state == "done")
    assert (here / "runs" / "described" / "report.html").is_file()
    lost = [line for line in (kits / "bank" / "bank.log").read_text().splitlines() if "not connected" in line]
    assert len(lost) <= 2

    impossible = here / "impossible.toml"
    impossible.write_text('method = "moments"\nname = "exact"\n[options]\nepsilon = "none"\n')
    with pytest.raises(AssertionError):
        says("coordinator", "ask", "impossible.toml", cwd=here)
    impossible.write_text('method = "presence-total"\nname = "exact"\n[options]\nepsilon = 50.0\n')
    says("coordinator", "ask", "impossible.toml", cwd=here)
    until(lambda: queue.state("exact").state == "failed")
    assert "budget" in queue.state("exact").sentence
    assert "exact has failed" in log.read_text()

    hopeless = queue.ask(Synthesize(model="copula", epsilon=0.001), name="hopeless")  # nobody has seen its plan
    until(lambda: queue.state(hopeless).state == "failed")
    assert queue.state(hopeless).sentence.startswith(HOPELESS)
    assert not (here / "runs" / "hopeless").exists()


def test_the_service_renews_certificates(tmp_path: Path) -> None:
    file = written(tmp_path)
    kits = Provision(file, tmp_path / "kits", days=1e-6)
    kits.begin(dealer=True, confirm=True)
    kits.take([initialise(tmp_path / "kits" / name / "party.toml", None)[1] for name in KIT_MEMBERS])
    kits.complete(dealer=True)
    lines: list[str] = []
    service = CoordinatorService(tmp_path / "kits" / "coordinator" / "coordinator.toml", said=lines.append)
    certificate = tmp_path / "kits" / "coordinator" / "credentials" / "certificate.pem"
    earlier = read_certificate(certificate).serial_number
    assert service._renewed()
    assert read_certificate(certificate).serial_number != earlier
    assert [line.split()[3] for line in lines] == [*KIT_MEMBERS, "coordinator"]
    kit = tmp_path / "kits" / "bank"
    public = [tmp_path / "kits" / name / "public" / "clinic.pem" for name in ("coordinator", "bank")]
    shutil.copy(*public)  # as the party does when it has fetched it: the kit is still the one that was signed
    assert kit_manifest(kit, authority=kit / "credentials" / AUTHORITY) is not None

    lines.clear()
    pauses = []
    for _ in range(6):  # a job that waits is looked at less and less often, and said once
        service._later("described", "waits for the operators of clinic")
        pauses.append(service._due["described"][1])
    assert pauses == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert lines == ["described waits for the operators of clinic"]
    service._later("described", "waits for bank to connect")
    assert service._due["described"][1] == 2.0

    service.queue.ask(Describe(epsilon=1.0), name="other")
    service._end("other", "")  # what a job waits for may be the end of another
    assert service._due == {"described": (0.0, 2.0, "waits for bank to connect")}


def test_a_consortium_that_cannot_be(tmp_path: Path) -> None:
    file = written(tmp_path)
    for text, says_ in (
        ('key = "k"\ncoordinator = "nowhere"\ncoordinator_organisation = "U"\n', "lacks members"),
        (file.read_text().replace("127.0.0.1:", ""), "HOST:PORT"),
        (file.read_text().replace("[members.bank]", "[members.authority]"), "no member is called"),
        (file.read_text().replace('organisation = "Bank"', 'organization = "Bank"'), "organi"),
    ):
        file.write_text(text)
        with pytest.raises(ColonnadeError, match=says_):
            Provision(file, tmp_path / "kits").begin()
        shutil.rmtree(tmp_path / "kits", ignore_errors=True)
        file = written(tmp_path)
