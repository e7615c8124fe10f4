"""One contract suite for every transport: the same bytes in, the same behaviour out."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import colonnade
from colonnade.errors import BorderError, PartyLost, VersionMismatch
from colonnade.federation import wire
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Reply, Request
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.stage import stage
from colonnade.federation.transports.embedded import Embedded
from colonnade.statistics.describe import Describe
from support import steps
from support.small import three_parties

TRANSPORTS = ["embedded", "processes", "network"]


@pytest.fixture(scope="module", params=TRANSPORTS)
def federation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    try:
        folder = tmp_path_factory.mktemp(request.param)
        with three_parties(folder, transport=request.param, packages=("support.steps",), seed=3) as made:
            yield made
    finally:
        os.environ["PYTHONPATH"] = path


def test_hello_names_the_party_and_its_version(federation: Federation) -> None:
    for party in federation.transport.parties:
        data = federation.transport.exchange(party, Request(kind="hello", arguments={}).encode(), timeout=60)
        assert Reply.decode(data).value["party"] == party
        assert Reply.decode(data).value["version"] == colonnade.__version__
    federation.handshake()


def test_answers_come_from_every_party(federation: Federation) -> None:
    answers = federation.ask(steps.noisy_zero, epsilon=0.1)
    assert set(answers) == {"clinic", "court", "bank"}
    assert len(set(answers.values())) == 3


def test_garbage_gets_a_code_and_the_party_goes_on(federation: Federation) -> None:
    for data in (b"", b"\x00" * 100, wire.encode({"kind": "ask"}), wire.encode([1, 2])):
        assert Reply.decode(federation.transport.exchange("court", data, timeout=60)).error
    assert federation.ask(steps.noisy_zero, epsilon=0.1)


def test_an_error_at_one_party_is_raised_with_its_name(federation: Federation) -> None:
    with pytest.raises(BorderError, match=r"bank.*step-failed"):
        federation.ask(steps.raises_with_data, parties=["bank"], epsilon=0.1)


def test_large_messages_pass(federation: Federation) -> None:
    reply = federation.transport.exchange(
        "clinic", Request(kind="ask", job="x", arguments={"blob": bytes(30_000_000)}).encode(), timeout=120
    )
    assert Reply.decode(reply).error == "unknown-step"


def test_peer_mail_passes(federation: Federation) -> None:
    here: dict[str, Any] = {"facts": federation.facts, "roster": federation.roster}
    everybody = {name: [{}] for name in federation.roster.names}
    plan = plan_of_steps(
        (
            stage(
                "send",
                steps.send_greeting,
                everybody,
                discloses="sealed mail",
                recipients=federation.roster.names,
                **here,
            ),
            stage("read", steps.read_greetings, everybody, discloses="a sum", **here),
        ),
    )
    with federation.open(plan) as job:
        job.ask(plan.stage("send"))
        assert job.ask(plan.stage("read"))["court"] == dict.fromkeys(federation.roster.names, 6)


def test_a_stranger_is_lost(federation: Federation) -> None:
    with pytest.raises(PartyLost, match="stranger"):
        federation.transport.exchange("stranger", b"", timeout=1)


def test_a_whole_job_runs(federation: Federation) -> None:
    result, run = federation.run(Describe(epsilon=1.0))
    assert result.simulated
    assert set(result.presence) == {"clinic", "court", "bank"}
    assert run.job["state"] == "done"


def test_another_version_is_refused(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    original = federation.transport.exchange

    def older(party: str, data: bytes, *, timeout: float) -> bytes:
        reply = Reply.decode(original(party, data, timeout=timeout))
        return Reply(value={**reply.value, "version": "0.0.1"}).encode()

    monkeypatch.setattr(federation, "_greeted", False)
    monkeypatch.setattr(federation.transport, "exchange", older)
    with pytest.raises(VersionMismatch, match="install the same version"):
        federation.handshake()


def test_a_message_of_another_protocol_version_is_refused(federation: Federation) -> None:
    data = bytearray(Request(kind="hello", arguments={}).encode())
    data[3] += 1
    assert Reply.decode(federation.transport.exchange("clinic", bytes(data), timeout=60)).error == VersionMismatch.code


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs /proc")
def test_no_party_opens_a_port(federation: Federation) -> None:
    """So nobody can call a step on it but whom it has dialled."""
    if isinstance(federation.transport, Embedded):
        pytest.skip("an embedded party has no process of its own")
    federation.handshake()
    for name in federation.transport.parties:
        assert not _listening(federation.transport.pid(name))  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", 0)):
        assert _listening(os.getpid()), "the check can see a port"


def _listening(pid: int) -> set[str]:
    """The inodes of sockets of a process on which it listens."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
        inodes |= {row[9] for row in rows if row[3] == "0A"}
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    return inodes & own


def test_transports_agree_under_one_seed(tmp_path: Path) -> None:
    """Same seed, same cohort, same keys: the transports release the same bytes."""
    results = []
    for transport in TRANSPORTS:
        with three_parties(tmp_path, transport=transport, seed=5) as federation:
            results.append(federation.run(Describe(epsilon=1.0))[0])
    assert results[0] == results[1] == results[2]
