"""The network transport against people who should not get in, and against a network that fails."""

from __future__ import annotations

import datetime
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.errors import PartyLost, RosterError, StorageError
from colonnade.federation.job import Progress
from colonnade.federation.transports import certificates
from colonnade.federation.transports.attend import serve
from colonnade.federation.transports.certificates import AUTHORITY, CERTIFICATE, KEY, REQUEST, REVOKED
from colonnade.federation.transports.network import Network
from colonnade.statistics.moments import Moments
from support.network import Attending, Proxy, attending, credential
from support.small import three_overlapping_blocks, three_parties

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks` is beside the package and not installed

from benchmarks.wan_common import Line, links, over

PARTIES = ("bank", "clinic")


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    certificates.make_authority(tmp_path / "authority", name="consortium")
    return tmp_path / "authority"


@pytest.fixture
def network(tmp_path: Path, authority: Path) -> Iterator[Network]:
    folder = credential(tmp_path / "coordinator", authority, "coordinator", role="coordinator")
    made = Network(PARTIES, address="127.0.0.1:0", folder=folder, revoked=authority / REVOKED, patience=30.0, ping=2.0)
    yield made
    made.close()


# --- who gets in ------------------------------------------------------------------------------------------


def test_a_member_gets_in_and_answers(tmp_path: Path, authority: Path, network: Network) -> None:
    with attending(credential(tmp_path / "bank", authority, "bank"), network.port):
        assert network.exchange("bank", b"question", timeout=20) == b"question"
        assert network.connected == ("bank",)
        assert network.exchange("bank", b"", timeout=20) == b""


def handshake(port: int, folder: Path, *options: str) -> str:
    """What OpenSSL says about a connection that it tries."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-alpn", "h2", "-CAfile", folder / AUTHORITY]
    command += ["-cert", folder / CERTIFICATE, "-key", folder / KEY, *options]
    done = subprocess.run([str(one) for one in command], input=b"", capture_output=True, timeout=30)
    return (done.stdout + done.stderr).decode(errors="replace")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_only_tls_13_is_spoken(tmp_path: Path, authority: Path, network: Network) -> None:
    folder = credential(tmp_path / "bank", authority, "bank")
    assert "Cipher is TLS_AES" in handshake(network.port, folder, "-tls1_3")
    assert "Cipher is (NONE)" in handshake(network.port, folder, "-tls1_2")


def test_a_foreign_certificate_gets_nothing(tmp_path: Path, network: Network, authority: Path) -> None:
    certificates.make_authority(tmp_path / "foreign", name="consortium")
    folder = credential(tmp_path / "bank", tmp_path / "foreign", "bank")
    shutil.copy(authority / AUTHORITY, folder / AUTHORITY)  # it may know whom it talks to
    with attending(folder, network.port) as party:
        with pytest.raises(PartyLost, match="'bank' is not connected"):
            network.exchange("bank", b"question", timeout=3)
        assert any("unavailable" in one for one in party.said)


def test_an_expired_certificate_gets_nothing(tmp_path: Path, network: Network, authority: Path) -> None:
    folder = credential(tmp_path / "bank", authority, "bank", days=1e-6)
    time.sleep(1.1)
    with pytest.raises(RosterError, match="renew it"):
        certificates.signed_by(folder / AUTHORITY, folder / CERTIFICATE)
    with attending(folder, network.port), pytest.raises(PartyLost, match="not connected"):
        network.exchange("bank", b"question", timeout=3)


def test_a_renewed_certificate_needs_no_restart(tmp_path: Path, network: Network, authority: Path) -> None:
    folder = credential(tmp_path / "bank", authority, "bank", days=1e-6)
    time.sleep(0.2)
    with attending(folder, network.port) as party:
        with pytest.raises(PartyLost, match="not connected"):
            network.exchange("bank", b"question", timeout=1)
        certificates.sign(authority, folder / REQUEST, tmp_path / "renewed.pem", role="party")
        shutil.move(tmp_path / "renewed.pem", folder / CERTIFICATE)
        assert network.exchange("bank", b"question", timeout=30) == b"question", party.said


def test_renewed_certificates_reach_the_parties_by_themselves(tmp_path: Path, authority: Path) -> None:
    """Certificates of three seconds: a party that stays connected answers after their end, with a renewed one."""
    public = {name: tmp_path / "public" / f"{name}.pem" for name in PARTIES}
    mine = {name: tmp_path / "bank" / "public" / f"{name}.pem" for name in PARTIES}
    for name in PARTIES:
        folder = credential(tmp_path / name, authority, name, days=3 / 86400)
        for copies in (public, mine):
            copies[name].parent.mkdir(exist_ok=True)
            shutil.copy(folder / CERTIFICATE, copies[name])
    coordinator = credential(tmp_path / "coordinator", authority, "coordinator", role="coordinator")
    served = Network(PARTIES, address="127.0.0.1:0", folder=coordinator, members=public, patience=10.0, ping=2.0)
    ends = certificates.read_certificate(public["bank"]).not_valid_after_utc
    try:
        with attending(tmp_path / "bank", served.port, members=mine) as party:
            assert served.exchange("bank", b"question", timeout=10) == b"question"
            while datetime.datetime.now(datetime.UTC) <= ends + datetime.timedelta(seconds=0.2):
                time.sleep(0.1)
                for name in PARTIES:
                    certificates.renew(authority, public[name], certificates.Revoked(None))
            assert served.exchange("bank", b"question", timeout=10) == b"question", party.said
            assert any("certificate of bank is renewed" in line for line in party.said)
            assert not any("not connected" in line for line in party.said)
        for name in PARTIES:
            assert certificates.read_certificate(mine[name]).not_valid_after_utc > ends
    finally:
        served.close()


def test_only_a_renewed_certificate_of_the_same_owner_and_key_is_taken(tmp_path: Path, authority: Path) -> None:
    folder = credential(tmp_path / "bank", authority, "bank", days=1)
    certificates.make_authority(tmp_path / "foreign", name="consortium")
    certificates.sign(tmp_path / "foreign", folder / REQUEST, tmp_path / "foreign.pem", role="party")
    certificates.sign(authority, folder / REQUEST, tmp_path / "shorter.pem", role="party", days=0.5)
    other = credential(tmp_path / "other", authority, "bank")  # the same name, another sealing key
    sealing = certificates.subject_of(certificates.read_certificate(folder / CERTIFICATE)).sealing_key
    certificates.make_request(
        tmp_path / "thief", name="bank", organisation="bank", sealing_key=sealing
    )  # its own TLS key
    certificates.sign(authority, tmp_path / "thief" / REQUEST, tmp_path / "thief.pem", role="party", days=9)
    earlier = (folder / CERTIFICATE).read_bytes()
    names = ("foreign.pem", "shorter.pem", "thief.pem")
    for forged in (*(tmp_path / name for name in names), other / CERTIFICATE, authority / AUTHORITY):
        taken = certificates.take_renewed(folder / AUTHORITY, folder / CERTIFICATE, forged.read_bytes())
        assert taken is None, forged
    assert certificates.take_renewed(folder / AUTHORITY, folder / CERTIFICATE, b"no certificate") is None
    assert (folder / CERTIFICATE).read_bytes() == earlier
    certificates.sign(authority, folder / REQUEST, tmp_path / "longer.pem", role="party", days=2)
    longer = (tmp_path / "longer.pem").read_bytes()
    assert certificates.take_renewed(folder / AUTHORITY, folder / CERTIFICATE, longer) is not None
    assert (folder / CERTIFICATE).read_bytes() == longer


def test_a_revoked_certificate_is_not_renewed_and_takes_its_key_with_it(tmp_path: Path, authority: Path) -> None:
    folder = credential(tmp_path / "bank", authority, "bank", days=3 / 86400)
    earlier = certificates.signed_by(folder / AUTHORITY, folder / CERTIFICATE)
    revoked = certificates.Revoked(authority / REVOKED)
    assert certificates.renew(authority, folder / CERTIFICATE, revoked) is None  # more than a third of its life is left
    time.sleep(2.2)
    renewed = certificates.renew(authority, folder / CERTIFICATE, revoked)
    assert renewed is not None
    assert (renewed.tls_key, renewed.serial != earlier.serial) == (earlier.tls_key, True)
    certificates.revoke(authority, folder / CERTIFICATE)
    assert revoked.has(earlier)
    time.sleep(2.2)
    assert certificates.renew(authority, folder / CERTIFICATE, revoked) is None
    assert certificates.renew(authority, folder / CERTIFICATE, certificates.Revoked(None)) is not None


def test_swapped_certificates_get_nothing(tmp_path: Path, network: Network, authority: Path) -> None:
    """Another member's certificate without its key opens no connection; with both, it is not this party's home."""
    bank, clinic = (credential(tmp_path / name, authority, name) for name in PARTIES)
    swapped = tmp_path / "swapped"
    shutil.copytree(bank, swapped)
    shutil.copy(clinic / CERTIFICATE, swapped / CERTIFICATE)
    with attending(swapped, network.port):
        for name in PARTIES:
            with pytest.raises(PartyLost, match="not connected"):
                network.exchange(name, b"question", timeout=2)
    blocks = {}
    for name, frame in three_overlapping_blocks().items():
        blocks[name] = tmp_path / f"{name}.csv"
        frame.to_csv(blocks[name], index=False)
    three_parties(tmp_path / "federation", blocks=blocks).close()
    for folder in (bank, clinic):  # a certificate with the right name and another sealing key, and one of another name
        with pytest.raises(RosterError, match="have the authority sign this party's own request"):
            serve(tmp_path / "federation" / "home" / "bank", coordinator="127.0.0.1:1", folder=folder, said=print)


def test_a_stream_does_not_outlive_its_certificate(
    tmp_path: Path, authority: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attending(credential(tmp_path / "bank", authority, "bank"), network.port):
        network.exchange("bank", b"question", timeout=20)

        class Later(datetime.datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime.datetime:  # type: ignore[override]
                return datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)

        monkeypatch.setattr("colonnade.federation.transports.network.datetime.datetime", Later)
        with pytest.raises(PartyLost, match="has expired"):
            network.exchange("bank", b"question", timeout=20)


def test_a_revoked_certificate_is_cut_off_at_once(tmp_path: Path, authority: Path, network: Network) -> None:
    folder = credential(tmp_path / "bank", authority, "bank")
    with attending(folder, network.port):
        network.exchange("bank", b"question", timeout=20)
        certificates.revoke(authority, folder / CERTIFICATE)
        with pytest.raises(PartyLost, match="revoked"):
            network.exchange("bank", b"question", timeout=20)
    again = Attending(folder, network.port)
    assert isinstance(again.ended(), RosterError)
    assert "revoked" in str(again.error)


def test_somebody_outside_the_roster_is_refused(tmp_path: Path, authority: Path, network: Network) -> None:
    stranger = Attending(credential(tmp_path / "stranger", authority, "stranger"), network.port)
    assert "not a member" in str(stranger.ended())


def test_the_coordinators_certificate_cannot_dial_in(tmp_path: Path, authority: Path, network: Network) -> None:
    folder = credential(tmp_path / "other", authority, "bank", role="coordinator")
    with attending(folder, network.port), pytest.raises(PartyLost, match="not connected"):
        network.exchange("bank", b"question", timeout=3)


def test_a_party_cannot_pose_as_the_coordinator(tmp_path: Path, authority: Path) -> None:
    """Its certificate names no host and may not serve, so nobody who dials it says anything."""
    posing = Network(PARTIES, address="127.0.0.1:0", folder=credential(tmp_path / "x", authority, "clinic"), patience=3)
    try:
        with attending(credential(tmp_path / "bank", authority, "bank"), posing.port) as party:
            with pytest.raises(PartyLost):
                posing.exchange("bank", b"question", timeout=3)
            assert not any("connected to" in one and "not" not in one for one in party.said)
    finally:
        posing.close()


def test_a_second_process_with_one_identity_is_refused(tmp_path: Path, authority: Path, network: Network) -> None:
    folder = credential(tmp_path / "bank", authority, "bank")
    with attending(folder, network.port):
        network.exchange("bank", b"question", timeout=20)
        second = Attending(folder, network.port, lambda data: b"forged")
        assert isinstance(second.ended(), PartyLost)
        assert "another process" in str(second.error)
        assert network.exchange("bank", b"question", timeout=20) == b"question"


def test_one_partys_certificate_answers_for_that_party_alone(tmp_path: Path, authority: Path, network: Network) -> None:
    folder = credential(tmp_path / "clinic", authority, "clinic")
    with attending(folder, network.port, lambda data: b"I am bank"), pytest.raises(PartyLost, match="'bank' is not"):
        network.exchange("bank", b"question", timeout=2)


def test_idle_connections_and_unfinished_handshakes_block_nobody(
    tmp_path: Path, authority: Path, network: Network
) -> None:
    idle = [socket.create_connection(("127.0.0.1", network.port)) for _ in range(100)]
    for one in idle[50:]:
        one.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a TLS greeting
    try:
        with attending(credential(tmp_path / "bank", authority, "bank"), network.port):
            assert network.exchange("bank", b"question", timeout=20) == b"question"
    finally:
        for one in idle:
            one.close()


# --- a network that fails ---------------------------------------------------------------------------------


def test_a_cut_in_the_middle_of_an_answer_is_healed(tmp_path: Path, authority: Path, network: Network) -> None:
    """The same request comes twice, which the party's border answers from its record."""
    proxy = Proxy(network.port)
    seen: list[bytes] = []

    def handle(data: bytes) -> bytes:
        seen.append(data)
        return bytes(8_000_000)

    try:
        with attending(credential(tmp_path / "bank", authority, "bank"), proxy.port, handle):
            network.wait_for(("bank",), 20)
            proxy.cut_after = proxy.passed + 3_000_000
            assert network.exchange("bank", b"question", timeout=60) == bytes(8_000_000)
            assert seen == [b"question", b"question"]
    finally:
        proxy.close()


def test_silence_is_found_by_pings(tmp_path: Path, authority: Path, network: Network) -> None:
    """Half open: packets vanish, no end is told. The party comes back over a new connection."""
    proxy = Proxy(network.port)
    try:
        with attending(credential(tmp_path / "bank", authority, "bank"), proxy.port):
            network.wait_for(("bank",), 20)
            proxy.silent = True
            deadline = time.monotonic() + 30
            while network.connected and time.monotonic() < deadline:
                time.sleep(0.1)
            assert not network.connected
            proxy.silent = False
            assert network.exchange("bank", b"question", timeout=60) == b"question"
    finally:
        proxy.close()


def test_a_slow_party_is_named(tmp_path: Path, authority: Path, network: Network) -> None:
    def slow(data: bytes) -> bytes:
        time.sleep(1.5)
        return data

    with attending(credential(tmp_path / "bank", authority, "bank"), network.port, slow):
        with pytest.raises(PartyLost, match=r"'bank' did not answer within 0.5 s"):
            network.exchange("bank", b"first", timeout=0.5)
        # Its late answer is not taken for that of the next request.
        assert network.exchange("bank", b"second", timeout=20) == b"second"


@pytest.mark.slow
def test_a_message_of_200_mb_passes(tmp_path: Path, authority: Path, network: Network) -> None:
    data = bytes(range(256)) * (200_000_000 // 256)
    with attending(credential(tmp_path / "bank", authority, "bank"), network.port):
        assert network.exchange("bank", data, timeout=120) == data


def test_lies_about_sizes_end_the_stream(tmp_path: Path, authority: Path, network: Network) -> None:
    grpc = __import__("grpc")
    from colonnade.federation.transports.channel import ATTEND, credentials
    from colonnade.federation.transports.generated.colonnade_pb2 import Frame

    key, certificate, root = credentials(credential(tmp_path / "bank", authority, "bank"))
    secure = grpc.ssl_channel_credentials(root, key, certificate)
    wrong = [
        [Frame(exchange=0, data=b"short", last=True, size=5)],
        [Frame(exchange=0, data=bytes(16), last=True, size=16), Frame(exchange=1, data=b"x", last=True, size=1)],
        [Frame(exchange=0, data=bytes(16), last=True, size=16), Frame(exchange=1, data=b"x", size=2**60)],
        [Frame(exchange=0, data=bytes(16), last=True, size=16), Frame(exchange=0, data=b"xx", last=True, size=1)],
    ]
    for frames in wrong:
        with grpc.secure_channel(f"127.0.0.1:{network.port}", secure) as channel:
            call = channel.stream_stream(
                ATTEND, request_serializer=Frame.SerializeToString, response_deserializer=Frame.FromString
            )
            with pytest.raises(grpc.RpcError) as caught:
                list(call(iter(frames), timeout=20))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


# --- certificates -----------------------------------------------------------------------------------------


def test_requests_and_roles_are_not_mixed(tmp_path: Path, authority: Path) -> None:
    certificates.make_request(tmp_path / "p", name="p", organisation="o", sealing_key=bytes(32))
    with pytest.raises(RosterError, match="not a coordinator's request"):
        certificates.sign(authority, tmp_path / "p" / REQUEST, tmp_path / "c.pem", role="coordinator")
    with pytest.raises(RosterError, match="needs a sealing key"):
        certificates.make_request(tmp_path / "q", name="q", organisation="o")
    with pytest.raises(RosterError, match="1 to 64"):
        certificates.make_request(tmp_path / "r", name="n" * 65, organisation="o", sealing_key=bytes(32))
    assert not (tmp_path / "r").exists()
    with pytest.raises(StorageError, match="not overwritten"):
        certificates.make_request(tmp_path / "p", name="p", organisation="o", sealing_key=bytes(32))
    with pytest.raises(RosterError, match="days"):
        certificates.sign(authority, tmp_path / "p" / REQUEST, tmp_path / "c.pem", role="party", days=0)
    made = certificates.sign(authority, tmp_path / "p" / REQUEST, tmp_path / "c.pem", role="party")
    assert (made.name, made.organisation, made.sealing_key) == ("p", "o", bytes(32))
    assert certificates.signed_by(authority / AUTHORITY, tmp_path / "c.pem") == made
    certificates.make_authority(tmp_path / "foreign", name="consortium")
    with pytest.raises(RosterError, match="not signed by"):
        certificates.signed_by(tmp_path / "foreign" / AUTHORITY, tmp_path / "c.pem")


def test_a_changed_request_is_not_signed(tmp_path: Path, authority: Path) -> None:
    """One byte of the name changed inside the signed part."""
    import base64

    certificates.make_request(tmp_path / "p", name="peter", organisation="o", sealing_key=bytes(32))
    lines = (tmp_path / "p" / REQUEST).read_text().splitlines()
    raw = base64.b64decode("".join(lines[1:-1])).replace(b"peter", b"petra")
    body = base64.encodebytes(raw).decode()
    (tmp_path / "changed.pem").write_text(f"{lines[0]}\n{body}{lines[-1]}\n")
    with pytest.raises(RosterError, match="was changed"):
        certificates.sign(authority, tmp_path / "changed.pem", tmp_path / "c.pem", role="party")


def test_private_keys_are_readable_by_their_owner_alone(tmp_path: Path, authority: Path) -> None:
    folder = credential(tmp_path / "bank", authority, "bank")
    for path in (folder / KEY, authority / "authority.key"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_large_message_may_take_longer_than_the_time_out(tmp_path: Path, authority: Path, network: Network) -> None:
    """25 MB at 100 Mbit/s take two seconds each way; what counts is the time without a part of it. A party that
    computes for too long is lost all the same."""
    folder, data = credential(tmp_path / "bank", authority, "bank"), bytes(25_000_000)
    with links(network.port, 1, Line(100, 0.05)) as (port,):
        with attending(folder, port):
            start = time.monotonic()
            assert network.exchange("bank", data, timeout=1.8) == data
            assert time.monotonic() - start > 3.6
        with (
            attending(folder, port, lambda _: time.sleep(2.5) or b"late"),  # type: ignore[func-returns-value]
            pytest.raises(PartyLost, match="did not answer"),
        ):
            network.exchange("bank", b"question", timeout=1.8)


def test_a_job_over_a_slow_line_has_the_result_of_one_process(tmp_path: Path) -> None:
    """Members behind a link each, as in `make bench NAME=wan`. Progress tells the bytes and the time that are left."""
    line = Line(20, 0.15)
    method = Moments(epsilon=1.0, presence="secret")
    with three_parties(tmp_path / "here", seed=3) as federation:
        here = method.fit(federation, sure=True)
    reports: list[Progress] = []
    with over(line), three_parties(tmp_path / "there", seed=3, transport="network") as federation:
        federation.handshake()
        start = time.monotonic()
        there, _ = federation.run(method, progress=reports.append, sure=True)
        taken = time.monotonic() - start
    assert np.array_equal(here.grams[0], there.grams[0])
    assert taken > line.round_trip * reports[-1].rounds, "every round crosses the link and back"
    assert all(report.bytes_left > 0 and report.remaining for report in reports[:-1])
    assert (reports[-1].bytes_left, reports[-1].remaining) == (0, 0.0)
