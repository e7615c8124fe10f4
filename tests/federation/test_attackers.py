"""Attackers, a test each: what a member with a valid certificate cannot do, what a stranger gets, what the coordinator
cannot read. Certificates themselves (foreign, expired, revoked, swapped) are tried in test_network.py."""

from __future__ import annotations

import contextlib
import inspect
import socket
import ssl
import sys
import threading
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.errors import NotApproved, ReplayMismatch, SealBroken, UnknownStep, UnsafeRequest
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import proposal
from colonnade.federation.messages import Mail, Reply, Request
from colonnade.federation.party import Party
from colonnade.federation.plan import Plan
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.stage import Stage, stage
from colonnade.federation.step import Step, _registry
from colonnade.federation.transports import Transport, certificates
from colonnade.federation.transports.certificates import AUTHORITY, REVOKED
from colonnade.federation.transports.network import Network
from colonnade.privacy.cost import Laplace
from colonnade.privacy.ledger import Budget
from colonnade.secure.sealed import Identity, unseal
from colonnade.statistics.moments import Moments
from support import steps
from support.network import attending, credential
from support.small import three_parties

PARTIES = ("clinic", "court", "bank")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with three_parties(tmp_path, budget=Budget(epsilon=0.5)) as made:
        yield made


def party(federation: Federation, name: str = "clinic") -> Party:
    return federation.transport[name]  # type: ignore[no-any-return,index]


def one_stage(federation: Federation, step: Step, requests: int = 2, **arguments: Any) -> Plan:
    wanted = {name: [arguments] * requests for name in federation.facts.parties}
    made = stage("stage", step, wanted, facts=federation.facts, roster=federation.roster, discloses="a test")
    return plan_of_steps([made])


def propose(federation: Federation, plan: Plan, job: str = "job") -> Reply:
    arguments = proposal(plan, federation.roster, federation.facts, federation.seed)
    return Reply.decode(party(federation).handle(Request(kind="propose", job=job, arguments=arguments).encode()))


def question(step: str, *, job: str = "job", seq: int = 1, **arguments: Any) -> bytes:
    return Request(kind="ask", job=job, seq=seq, stage="stage", step=step, arguments=arguments).encode()


def releases(at: Party) -> int:
    return sum(row.body["kind"] == "release" for row in at.transcript.rows(direction="out"))


# --- with a valid party certificate ------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    certificates.make_authority(tmp_path / "authority", name="consortium")
    return tmp_path / "authority"


@pytest.fixture
def network(tmp_path: Path, authority: Path) -> Iterator[Network]:
    folder = credential(tmp_path / "coordinator", authority, "coordinator", role="coordinator")
    made = Network(PARTIES, address="127.0.0.1:0", folder=folder, revoked=authority / REVOKED, patience=10.0, ping=2.0)
    yield made
    made.close()


def test_a_member_cannot_call_a_step_on_another_party(tmp_path: Path, authority: Path, network: Network) -> None:
    """Parties only dial out, so the coordinator is all that a member can reach. Whatever it says there, as its
    greeting, as an answer or to another method, the other party never hears of it."""
    import grpc

    from colonnade.federation.transports.channel import ATTEND, credentials, parts
    from colonnade.federation.transports.generated.colonnade_pb2 import Frame

    heard: list[bytes] = []

    def victim(data: bytes) -> bytes:
        heard.append(data)
        return data

    key, certificate, root = credentials(credential(tmp_path / "clinic", authority, "clinic"))
    secure = grpc.ssl_channel_credentials(root, key, certificate)
    attack = question("statistics.describe.presence_count", epsilon=1.0)
    greeting = list(parts(0, bytes(16)))
    with attending(credential(tmp_path / "bank", authority, "bank"), network.port, victim):
        network.wait_for(("bank",), 20)
        with grpc.secure_channel(f"127.0.0.1:{network.port}", secure) as channel:
            attend = channel.stream_stream(ATTEND, Frame.SerializeToString, Frame.FromString)
            for frames in (list(parts(0, attack)), [*greeting, *parts(0, attack)], [*greeting, *parts(7, attack)]):
                answers = attend(iter(frames), timeout=10)
                with pytest.raises(grpc.RpcError):
                    assert list(answers) == []
                assert answers.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.CANCELLED)
            for name in ("Coordinator/Ask", "Coordinator/Handle", "Party/Attend"):
                call = channel.unary_unary(f"/colonnade.v1.{name}")
                with pytest.raises(grpc.RpcError) as refused:
                    call(attack, timeout=10)
                assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
        assert network.exchange("bank", b"of the coordinator", timeout=20) == b"of the coordinator"
    assert heard == [b"of the coordinator"]


class Overheard:
    """A transport that remembers everything that passes the coordinator."""

    def __init__(self, inner: Transport) -> None:
        self.inner, self.parties = inner, inner.parties
        self.reached: dict[str, list[bytes]] = {name: [] for name in inner.parties}
        self.mail: list[Mail] = []

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        self.reached[party].append(data)
        answer = self.inner.exchange(party, data, timeout=timeout)
        self.mail += Reply.decode(answer).mail
        return answer

    def where(self, party: str) -> str:
        return self.inner.where(party)

    def close(self) -> None:
        self.inner.close()


def test_a_member_cannot_read_peer_messages(tmp_path: Path) -> None:
    """A sealed message reaches its recipient alone, and nobody else's key opens it: no member's, and not a new one."""
    with three_parties(tmp_path, allow=("presence",)) as federation:
        overheard = Overheard(federation.transport)
        federation.transport = overheard
        _, run = federation.run(Moments(epsilon=5.0))
        homes = {name: party_of(overheard, name) for name in PARTIES}
        assert {(mail.sender, mail.recipient) for mail in overheard.mail} == {
            (one, other) for one in PARTIES for other in PARTIES if one != other
        }
        for mail in overheard.mail:
            here = [name for name, came in overheard.reached.items() if any(mail.sealed in data for data in came)]
            assert here == [mail.recipient]
            sender, context = federation.roster.member(mail.sender).public_key, mail.context(run.job["job"])
            others = [homes[name]._identity for name in PARTIES if name not in (mail.recipient, mail.sender)]
            for identity in (*others, Identity.generate()):
                with pytest.raises(SealBroken):
                    unseal(identity, sender, mail.sealed, context=context)
            assert unseal(homes[mail.recipient]._identity, sender, mail.sealed, context=context)


def party_of(overheard: Overheard, name: str) -> Party:
    return overheard.inner[name]  # type: ignore[no-any-return,index]


def test_an_old_request_gets_no_new_answer(federation: Federation) -> None:
    here = party(federation)
    plan = one_stage(federation, steps.noisy_zero, epsilon=0.05)
    propose(federation, plan)
    old = question(steps.noisy_zero.name, epsilon=0.05)
    first = here.handle(old)
    assert [here.handle(old) for _ in range(3)] == [first] * 3
    assert (releases(here), len(here.ledger.chain.rows(kind="debit"))) == (1, 1)

    here.handle(Request(kind="close", job="job", arguments={}).encode())
    assert Reply.decode(here.handle(old)).error == NotApproved.code
    # Relabelled: for a job that nobody approved, and for one whose number is taken.
    assert Reply.decode(here.handle(question(steps.noisy_zero.name, job="new", epsilon=0.05))).error == NotApproved.code
    propose(federation, plan, job="new")
    answer = here.handle(question(steps.noisy_zero.name, job="new", epsilon=0.05))
    assert answer != first
    other = question(steps.noisy_zero.name, job="new", epsilon=0.05, mark="x")
    assert Reply.decode(here.handle(other)).error == ReplayMismatch.code
    assert (releases(here), len(here.ledger.chain.rows(kind="debit"))) == (2, 2)


def test_a_budget_cannot_be_exceeded(federation: Federation) -> None:
    """Not by a plan that states too little, and not by proposals that race."""
    here = party(federation)
    plan = one_stage(federation, steps.noisy_zero, epsilon=0.05)
    understated: Stage = replace(plan.stages[0], costs={name: Laplace(0.001).times(2) for name in PARTIES})
    assert propose(federation, replace(plan, stages=(understated,)), job="lie").error == UnsafeRequest.code
    reply = Reply.decode(here.handle(question(steps.noisy_zero.name, job="lie", epsilon=0.05)))
    assert (reply.error, reply.value) == (NotApproved.code, None)

    racing = one_stage(federation, steps.noisy_zero, requests=1, epsilon=0.2)
    states: list[str] = []
    threads = [
        threading.Thread(target=lambda job: states.append(propose(federation, racing, job=job).error), args=(f"r{k}",))
        for k in range(8)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(states) == ["", "", *["budget-exceeded"] * 6]
    assert here.ledger.spent(delta=0).epsilon <= 0.5
    here.ledger.verify()


def test_code_cannot_be_uploaded(federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's name is looked up, never imported; arguments are data, never built into objects."""
    here = party(federation)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef run(me): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    propose(federation, one_stage(federation, steps.noisy_zero, epsilon=0.05))
    names = [
        "evil.run",
        "colonnade.evil.run",
        "os.system",
        "builtins.eval",
        "..evil.run",
        "statistics.describe.np.load",
    ]
    for seq, name in enumerate([*names, "statistics.describe.__builtins__", "", ".", "support.steps"], start=1):
        assert Reply.decode(here.handle(question(name, seq=seq))).error == UnknownStep.code, name
    pickled = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
    for attack in (pickled, b"CLN\x02" + pickled, question(steps.noisy_zero.name, epsilon=0.05, mark=pickled)):
        assert Reply.decode(here.handle(attack)).error
    assert not (tmp_path / "ran").exists()
    assert "evil" not in sys.modules
    assert releases(here) == 0


SECRET = b"canary 7f3a91"


def test_a_file_cannot_be_read(tmp_path: Path) -> None:
    """Paths in every argument of every step that a party has: what is in the file comes back in no answer."""
    secret = tmp_path / "secret.toml"
    secret.write_bytes(SECRET + b"\n")
    for entry in CATALOGUE.entries().values():
        entry.load()
    with three_parties(tmp_path, seed=1, allow=("raw-sum", "presence", "exact-moments")) as federation:
        here = party(federation)
        asked = 0
        for step in [one for one in _registry.values() if one.module.startswith("colonnade.")]:
            for value in (str(secret), f"../../{secret.name}", str(here.home / "identity.pem")):
                arguments = {name: _filled(hint, value) for name, hint in _arguments(step).items()}
                job = f"job {asked}"
                wanted = plan_of_steps([_free_stage(step)])
                propose(federation, wanted, job=job)
                answer = here.handle(question(step.name, job=job, **arguments))
                asked += 1
                assert SECRET not in answer, step.name
                assert b"PRIVATE KEY" not in answer, step.name
        assert asked > 100
        assert SECRET not in (here.home / "party.db").read_bytes()


def _free_stage(step: Step) -> Stage:
    costs = {name: Laplace(100.0).times(9) for name in PARTIES}
    return Stage(
        name="stage", step=step.name, counts=dict.fromkeys(PARTIES, 9), costs=costs, audience="all", discloses="a test"
    )


def _arguments(step: Step) -> dict[str, Any]:
    hints = typing.get_type_hints(step.function)
    kinds = inspect.signature(step.function).parameters.items()
    return {name: hints.get(name, str) for name, one in kinds if one.kind is inspect.Parameter.KEYWORD_ONLY}


def _filled(hint: Any, text: str) -> Any:
    """A value of that type that is made of the text wherever the type has room for text."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return inner[0]
    if is_dataclass(hint):
        return {name: _filled(kind, text) for name, kind in typing.get_type_hints(hint).items()}
    if origin is list or hint is list:
        return [_filled(inner[0] if inner else str, text)]
    if origin is dict or hint is dict:
        return {text: _filled(inner[1] if inner else str, text)}
    if origin is not None and type(None) in inner:
        return _filled(next(one for one in inner if one is not type(None)), text)
    simple = {bool: True, int: 1, float: 1.0, bytes: text.encode(), str: text}
    return simple.get(hint, np.ones(2) if origin is np.ndarray else text)


# --- without a certificate, and at the coordinator -----------------------------------------------------------


def test_without_a_certificate_one_gets_nothing(tmp_path: Path, authority: Path, network: Network) -> None:
    """No byte of an answer: in the clear, over TLS without a certificate, or from the health service."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    where = ("127.0.0.1", network.port)
    with socket.create_connection(where, timeout=5) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        assert b"HTTP" not in _all_of(plain)
    context = ssl.create_default_context(cafile=str(authority / AUTHORITY))
    context.set_alpn_protocols(["h2"])
    with (
        contextlib.suppress(ssl.SSLError, ConnectionError),
        socket.create_connection(where, timeout=5) as below,
        context.wrap_socket(below, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        assert not _all_of(tls)
    secure = grpc.ssl_channel_credentials((authority / AUTHORITY).read_bytes())
    with grpc.secure_channel(f"127.0.0.1:{network.port}", secure) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        assert refused.value.code() in (  # type: ignore[attr-defined]
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
    assert not network.connected


def _all_of(stream: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while part := stream.recv(4096):
            found += part
    return found


def test_the_coordinator_cannot_read_sealed_messages(tmp_path: Path) -> None:
    """Neither what passes it nor what it keeps holds the values that parties sent each other."""
    with three_parties(tmp_path, seed=1) as federation:
        overheard = Overheard(federation.transport)
        federation.transport = overheard
        here: dict[str, Any] = {"facts": federation.facts, "roster": federation.roster}
        everybody = {name: [{}] for name in PARTIES}
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
            assert job.ask(plan.stage("read"))["bank"] == dict.fromkeys(PARTIES, 6)
        canary = np.arange(4).tobytes()
        assert len(overheard.mail) == 6
        passed = b"".join(data for came in overheard.reached.values() for data in came)
        kept = b"".join(path.read_bytes() for path in job.run.path.rglob("*") if path.is_file())
        assert canary not in passed
        assert canary not in kept
        assert all(mail.sealed not in kept for mail in overheard.mail), "it keeps hashes, not messages"
        for mail in overheard.mail:  # all keys that it has are public ones
            for name in PARTIES:
                with pytest.raises(SealBroken):
                    unseal(
                        Identity.generate(),
                        federation.roster.member(name).public_key,
                        mail.sealed,
                        context=mail.context(job.id),
                    )
