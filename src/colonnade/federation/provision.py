"""Start-up kits: from one consortium.toml to a folder for each member, in which `party serve` works.

Keys are made at the member. Its kit has the authority's certificate, a party.toml with a policy to fill in, a compose
file and systemd units; `colonnade party init` makes the keys there and one file to send back; with all members' files
the authority signs, and every kit gets the certificates and columns of all. A trusted dealer makes the keys as well:
for trials, since it could then answer in every member's name.

kits/authority/    the authority's key, which never leaves, and the members' files
kits/coordinator/  the coordinator's kit; its key is made here
kits/NAME/         a member's kit, and kits/NAME.zip to send
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.resources
import json
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from colonnade.data.block import Block
from colonnade.data.column import Columns
from colonnade.data.columns_toml import key_text, value_text
from colonnade.data.draft import draft
from colonnade.data.sources import sniffed
from colonnade.durable import canonical, check_name, private_folder
from colonnade.errors import BadArguments, RosterError, SchemaError
from colonnade.federation.config import PartyFile, capacity_of, checked_toml, located
from colonnade.federation.home import Home
from colonnade.federation.transports.certificates import (
    AUTHORITY,
    AUTHORITY_KEY,
    CERTIFICATE,
    REQUEST,
    REVOKED,
    Role,
    load_key,
    make_authority,
    make_request,
    read_certificate,
    read_request,
    sign,
    subject_of,
)
from colonnade.secure.sealed import PublicKey

MANIFEST = "kit.json"
PUBLIC = "public"
UNITS = ("colonnade-party.service", "colonnade-backup.service", "colonnade-backup.timer")
_COMPOSE: Mapping[Role, tuple[str, str]] = {
    "party": (
        "Keys and ledger stay in this folder; the table must be in it too, and party.toml name it.",
        '".:/etc/colonnade"',
    ),
    "coordinator": (
        "Runs stay in this folder. The authority's folder is there to renew certificates.",
        '".:/etc/colonnade", "../authority:/etc/authority"',
    ),
}
"""What compose.yaml says about the folder, and what the container gets of this machine."""
FIRST = ("party.toml", "columns.toml")
"""What a member edits."""


@dataclass(frozen=True, kw_only=True)
class MemberDraft:
    """[members.NAME] before there is a certificate. Without a source and columns it only holds shares."""

    organisation: str
    source: Any = None
    columns: Path | None = None
    capacity: int = 0


@dataclass(frozen=True, kw_only=True)
class ConsortiumDraft:
    """The consortium.toml that a person writes; docs/how-to/set-up-three-institutions.md has one."""

    name: str = "consortium"
    key: str | tuple[str, ...]
    coordinator: str
    """Its address, HOST:PORT."""
    coordinator_organisation: str
    members: Mapping[str, MemberDraft]
    committee: tuple[str, ...] | Literal["pair"] = ()
    threshold: int = 1
    colluders: int | None = None

    @classmethod
    def from_toml(cls, path: Path) -> ConsortiumDraft:
        draft = checked_toml(cls, path, guide="set-up-three-institutions")
        if len(draft.members) < 2:
            raise SchemaError(f"{path} needs at least two [members.NAME] with an organisation.")
        for name in draft.members:
            check_name(name, "a member", error=SchemaError)
        if {"authority", "coordinator"} & set(draft.members):
            raise SchemaError(f"{path}: no member is called authority or coordinator; choose another name.")
        beside = path.parent
        moved = {
            name: replace(member, columns=None if member.columns is None else beside / member.columns)
            for name, member in draft.members.items()
        }
        return replace(draft, members=moved)

    @property
    def host(self) -> tuple[str, str]:
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdigit():
            raise SchemaError(
                f"coordinator = {self.coordinator!r} is no HOST:PORT; write 'coordinator.example.org:7443'."
            )
        return host.strip("[]"), port

    def text(self, columns: Sequence[str], capacities: Mapping[str, int]) -> str:
        """The consortium.toml that all members agree on, beside their certificates and columns."""
        committee = "pair" if self.committee == "pair" else list(self.committee or self.members)
        lines = [
            f"key = {value_text(self.key)}",
            f"coordinator = {value_text(self.coordinator)}",
            f"coordinator_organisation = {value_text(self.coordinator_organisation)}",
            f"committee = {value_text(committee)}",
            f"threshold = {self.threshold}",
            *([] if self.colluders is None else [f"colluders = {self.colluders}"]),
        ]
        for name in self.members:
            lines += ["", f"[members.{key_text(name)}]", f'certificate = "{name}.pem"']
            if name in columns:
                lines += [f'columns = "{name}.columns.toml"', f"capacity = {capacities[name]}"]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member whose file has come back, as the authority must compare it by telephone."""

    name: str
    organisation: str
    fingerprint: str


class Provision:
    """The kits of one consortium, in `out`."""

    def __init__(self, path: Path, out: Path, *, days: float = 90.0) -> None:
        self.draft, self.beside, self.out, self.days = ConsortiumDraft.from_toml(path), path.parent, out, days
        self.authority = out / "authority"
        self.replies = self.authority / "replies"

    # --- the first kit: what a member needs to make its keys --------------------------------------------------

    def begin(self, *, dealer: bool = False, confirm: bool = False) -> list[str]:
        """Kits for all members that have none yet, and the coordinator's; the names of the new ones. A dealer drafts
        columns that are not declared from the tables; `confirm` takes these drafts as they are."""
        if not (self.authority / AUTHORITY_KEY).is_file():
            make_authority(self.authority, name=self.draft.name)
            (self.authority / REVOKED).touch()  # none yet; without it `doctor` warns at the coordinator
        private_folder(self.replies)
        fresh = [name for name in self.draft.members if not (self.out / name).exists()]
        for name in fresh:
            kit = private_folder(self.out / name)
            member = self._located(self.draft.members[name]) if dealer else self.draft.members[name]
            (kit / "party.toml").write_text(self._party(name, member, dealer=dealer), encoding="utf-8")
            if member.columns is not None:
                shutil.copy(member.columns, kit / "columns.toml")
            elif dealer and member.source is not None:
                drafted = draft({name: member.source}, key=self.draft.key)
                (kit / "columns.toml").write_text(drafted.to_toml(confirmed=confirm), encoding="utf-8")
            (kit / "README.txt").write_text(_readme(name, self.draft, dealer=dealer), encoding="utf-8")
            self._common(kit, "party")
            self._signed(kit, name, dealer=dealer)
            if not dealer:
                self._zipped(name)
        if not (self.out / "coordinator").exists():
            self._coordinator()
        return fresh

    def _common(self, kit: Path, role: Role) -> None:
        private_folder(kit / "credentials")
        shutil.copy(self.authority / AUTHORITY, kit / "credentials" / AUTHORITY)
        ports = "" if role == "party" else f'    ports: ["{self.draft.host[1]}:{self.draft.host[1]}"]\n'
        words = {"ROLE": role, "PORTS\n": ports, **dict(zip(("NOTE", "MOUNTS"), _COMPOSE[role], strict=True))}
        compose = _template("compose.yaml")
        for word, meant in words.items():
            compose = compose.replace(word, meant)
        (kit / "compose.yaml").write_text(compose, encoding="utf-8")
        for unit in UNITS if role == "party" else ("colonnade-coordinator.service",):
            (kit / unit).write_text(_template(unit), encoding="utf-8")

    def _located(self, member: MemberDraft) -> MemberDraft:
        """With its table as it lies on this machine."""
        if member.source is None:
            return member
        source = located(member.source, self.beside.absolute())
        return replace(member, source=sniffed(Path(source)) if isinstance(source, str) else source)

    def _party(self, name: str, member: MemberDraft, *, dealer: bool) -> str:
        source = member.source
        stated = "# source = " if source is None else "source = "
        return (
            f'consortium = "{PUBLIC}/consortium.toml"\nname = {value_text(name)}\n'
            f"{stated}{value_text('table.csv' if source is None else source)}"
            "    # this member's table; leave it out at a member that only holds shares\n"
            'home = "home"                    # keys, ledger, log; under systemd "/var/lib/colonnade"\n'
            'credentials = "credentials"\n'
            '# ignore = ["name"]             # columns of the table that are not offered\n'
            + (
                "# Made by a trusted dealer, keys included: for trials, with data that are not real.\n"
                if dealer
                else ""
            )
            + "\n[policy]                         # `colonnade docs network` explains every line\n"
            f'approve = "{"auto" if dealer else "ask"}"    # "ask": every job waits for the operator\n'
            'allow = ["alignment"]            # releases without a bound, by name\n'
            '# methods = ["describe"]         # accepted without asking, with approve = "auto"\n'
            f"requesters = [{value_text(self.draft.coordinator_organisation)}]\n"
            f"minimum_cohort = {1 if dealer else 100}\n"
            "\n[budget]                         # of each person, over all jobs of the period\n"
            "epsilon = 10.0\ndelta = 1e-5\nperiod_days = 365\n"
        )

    def _coordinator(self) -> None:
        kit = private_folder(self.out / "coordinator")
        host, port = self.draft.host
        local = host in ("127.0.0.1", "localhost", "::1")
        self._common(kit, "coordinator")
        for folder in ("runs", "queue"):  # the unit may write where they are
            private_folder(kit / folder)
        make_request(
            kit / "credentials",
            name="coordinator",
            organisation=self.draft.coordinator_organisation,
            hosts=(host,),
        )
        (kit / "coordinator.toml").write_text(
            f'consortium = "{PUBLIC}/consortium.toml"\naddress = "{host if local else "0.0.0.0"}:{port}"\n'
            'credentials = "credentials"\nruns = "runs"\n'
            'authority = "../authority"       # to renew certificates by itself; delete it if the key is elsewhere\n'
            f'revoked = "../authority/{REVOKED}"\n',
            encoding="utf-8",
        )

    # --- what comes back --------------------------------------------------------------------------------------

    def take(self, files: Sequence[Path]) -> list[Member]:
        """Keep what members have sent back; whom the authority must ask for the fingerprint."""
        members = []
        for file in files:
            reply = _reply(file)
            partial = self.replies / "partial.request.pem"
            partial.write_text(str(reply["request"]), encoding="utf-8")
            owner = subject_of(read_request(partial))
            if owner.name not in self.draft.members or owner.sealing_key is None:
                raise RosterError(
                    f"{file} is from {owner.name!r}, which is no member of {self.draft.name!r}; check it."
                )
            organisation = self.draft.members[owner.name].organisation
            if owner.organisation != organisation:
                raise RosterError(f"{file} names {owner.organisation!r} in place of {organisation!r}; ask its sender.")
            partial.replace(self.replies / f"{owner.name}.request.pem")
            (self.replies / f"{owner.name}.json").write_text(json.dumps(reply), encoding="utf-8")
            fingerprint = PublicKey(owner.sealing_key).fingerprint
            members.append(Member(name=owner.name, organisation=organisation, fingerprint=fingerprint))
        return members

    @property
    def lacking(self) -> list[str]:
        return [name for name in self.draft.members if not (self.replies / f"{name}.json").is_file()]

    def complete(self, *, dealer: bool = False) -> list[str]:
        """Sign every member's request, and write all certificates and columns into every kit; the names whose
        certificates are new. One with more than half of its life left stays."""
        if self.lacking:
            raise RosterError(f"{', '.join(self.lacking)} have not sent their file back; wait for it.")
        replies = {name: _reply(self.replies / f"{name}.json") for name in self.draft.members}
        public = private_folder(self.authority / PUBLIC)
        columns = {name: str(reply["columns"]) for name, reply in replies.items() if reply["columns"]}
        for name, text in columns.items():
            (public / f"{name}.columns.toml").write_text(text, encoding="utf-8")
            Columns.from_toml(public / f"{name}.columns.toml").confirmed()
        holders = () if self.draft.committee == "pair" else self.draft.committee
        if set(holders) - set(replies):
            raise SchemaError("committee names one that is no member; correct consortium.toml.")
        fresh = [name for name in replies if self._certified(public, name)]
        capacities = {name: int(replies[name]["capacity"]) for name in columns}
        (public / "consortium.toml").write_text(self.draft.text(tuple(columns), capacities), encoding="utf-8")
        request = self.out / "coordinator" / "credentials" / REQUEST
        certificate = self.out / "coordinator" / "credentials" / CERTIFICATE
        if _half_gone(certificate):
            certificate.unlink(missing_ok=True)
            sign(self.authority, request, certificate, role="coordinator", days=self.days)
        for name in (*self.draft.members, "coordinator"):
            kit = self.out / name
            shutil.copytree(public, kit / PUBLIC, dirs_exist_ok=True)
            if name != "coordinator":
                shutil.copy(public / f"{name}.pem", kit / "credentials" / CERTIFICATE)
                self._signed(kit, name, dealer=dealer)
                self._zipped(name, complete=True, keys=dealer)
        return fresh

    def _certified(self, public: Path, name: str) -> bool:
        certificate = public / f"{name}.pem"
        if not _half_gone(certificate):
            return False
        certificate.unlink(missing_ok=True)
        sign(self.authority, self.replies / f"{name}.request.pem", certificate, role="party", days=self.days)
        return True

    # --- a kit as a whole -------------------------------------------------------------------------------------

    def _signed(self, kit: Path, name: str, *, dealer: bool) -> None:
        """Write the manifest: what the authority put into the kit. What the member edits or makes is not listed."""
        listed = [path for path in sorted(kit.rglob("*")) if path.is_file() and _listed(path.relative_to(kit))]
        stated = {
            "consortium": self.draft.name,
            "member": name,
            "organisation": self.draft.members[name].organisation,
            "key": self.draft.key if isinstance(self.draft.key, str) else list(self.draft.key),
            "capacity": self.draft.members[name].capacity,
            "keys": "made by a trusted dealer: for trials" if dealer else "made at the member",
            "files": {str(path.relative_to(kit)): _digest(path) for path in listed},
        }
        signature = load_key(self.authority / AUTHORITY_KEY).sign(_statement(stated), ec.ECDSA(hashes.SHA256()))
        text = json.dumps({**stated, "signature": signature.hex()}, indent=2, ensure_ascii=False)
        (kit / MANIFEST).write_text(text + "\n", encoding="utf-8")

    def _zipped(self, name: str, *, complete: bool = False, keys: bool = False) -> None:
        """To send: without what the member makes itself, unless a dealer made it. The complete kit is unpacked over the
        first, and leaves what the member has edited."""
        kit = self.out / name
        with zipfile.ZipFile(self.out / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(kit.rglob("*")):
                inside = path.relative_to(kit)
                sent = _listed(inside) or inside.name in (MANIFEST, *((CERTIFICATE,) if complete else FIRST))
                if path.is_file() and (keys or sent):
                    archive.write(path, Path(name) / inside)


def _listed(path: Path) -> bool:
    """Whether the authority answers for a file of a kit."""
    return path.parts[0] == PUBLIC or path.name in ("README.txt", "compose.yaml", AUTHORITY, *UNITS)


def _half_gone(certificate: Path) -> bool:
    if not certificate.is_file():
        return True
    signed = read_certificate(certificate)
    life = signed.not_valid_after_utc - signed.not_valid_before_utc
    return signed.not_valid_after_utc - datetime.datetime.now(datetime.UTC) < life / 2


def _template(name: str) -> str:
    return (importlib.resources.files("colonnade.federation") / "kit" / name).read_text(encoding="utf-8")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _statement(stated: Mapping[str, Any]) -> bytes:
    return b"colonnade kit 1\n" + canonical(dict(stated)).encode()


def _reply(file: Path) -> dict[str, Any]:
    try:
        reply = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(reply, dict) or set(reply) != {"request", "columns", "capacity"}:
            raise ValueError("it has other fields")
    except (OSError, ValueError) as error:
        raise RosterError(
            f"{file} is no file that `colonnade party init` wrote ({error}); ask its sender again."
        ) from error
    return reply


# --- at the member ------------------------------------------------------------------------------------------


def kit_manifest(folder: Path, *, authority: Path) -> dict[str, Any] | None:
    """What the authority says about the kit in a folder, with its signature and every file verified; None if the folder
    is no kit."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        signature = bytes.fromhex(stated.pop("signature"))
        key = read_certificate(authority).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(signature, _statement(stated), ec.ECDSA(hashes.SHA256()))
    except (OSError, ValueError, KeyError, AttributeError, InvalidSignature, AssertionError) as error:
        raise RosterError(f"{path} was not signed by the authority in {authority}; ask for the kit again.") from error
    # Members' certificates have signatures of their own and are renewed.
    fixed = {name: digest for name, digest in stated["files"].items() if not _renewable(Path(name))}
    changed = [name for name, digest in fixed.items() if not _same(folder / name, digest)]
    if changed:
        raise RosterError(f"{folder / changed[0]} is not the file of the kit that was signed; ask for the kit again.")
    return dict(stated)


def _renewable(path: Path) -> bool:
    return path.parts[0] == PUBLIC and path.suffix == ".pem"


def _same(path: Path, digest: str) -> bool:
    return path.is_file() and _digest(path) == digest


def initialise(file: Path, organisation: str | None) -> tuple[str, Path]:
    """Make a party's keys where they stay; its fingerprint, and the one file to send to the authority. With a kit that
    is the reply, with the request, the declared columns and the capacity; without, the request alone."""
    settings = PartyFile.from_toml(file)
    manifest = kit_manifest(file.parent, authority=settings.credentials / AUTHORITY)
    if manifest is None and organisation is None:
        raise BadArguments("name who runs this party with --organisation; only a kit knows it by itself.")
    who = organisation if manifest is None or organisation is not None else str(manifest["organisation"])
    assert who is not None
    columns, capacity = None, 0
    if manifest is not None and settings.source is not None:
        columns, capacity = _declared(file.parent, settings, manifest)
    identity = Home(path=settings.home).identity()
    request = make_request(
        settings.credentials,
        name=settings.name,
        organisation=who,
        sealing_key=identity.public,
        signing_key=identity.signing_key,
    )
    if manifest is None:
        return identity.public.fingerprint, request
    reply = file.parent / f"{settings.name}.reply.json"
    stated = {"request": request.read_text(encoding="ascii"), "columns": columns, "capacity": capacity}
    reply.write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")
    return identity.public.fingerprint, reply


def _declared(folder: Path, settings: PartyFile, manifest: Mapping[str, Any]) -> tuple[str, int]:
    """The public columns of a member's table, confirmed by it, and the most records that it may have."""
    path = folder / "columns.toml"
    if not path.is_file():
        raise SchemaError(
            f"{path} is not there: declare the columns of this party's table; `colonnade init TABLE --key KEY` in that"
            " folder drafts it."
        )
    columns = Columns.from_toml(path)
    columns.confirmed()
    key = manifest["key"] if isinstance(manifest["key"], str) else tuple(manifest["key"])
    block = Block.open(settings.name, settings.source, key=key, columns=columns.ignoring(settings.ignore))
    stated = int(manifest["capacity"])
    if 0 < stated < block.n_records:
        raise SchemaError(
            f"{settings.name!r} has {block.n_records:,} records and a capacity of {stated:,} in the consortium's file;"
            " have it raised there."
        )
    return path.read_text(encoding="utf-8"), stated or capacity_of(block.n_records)


def _readme(name: str, draft: ConsortiumDraft, *, dealer: bool) -> str:
    key = draft.key if isinstance(draft.key, str) else " --key ".join(draft.key)
    first = (
        "This kit was made by a trusted dealer, keys included: it could answer in your name. Use it for trials, with\n"
        "data that are not real. Go on with step 3.\n\n"
        if dealer
        else ""
    )
    return (
        f"Start-up kit of {name} in {draft.name!r}\n\n{first}"
        "1. Put your table's path into party.toml (source), go through its [policy] and [budget], and declare your\n"
        f"   columns: `colonnade init TABLE --key {key}` in this folder drafts columns.toml and init.html.\n"
        "   The columns, their domains and the number of your records, rounded up to two digits, become public.\n"
        f"2. `colonnade party init party.toml` makes your keys here and writes {name}.reply.json. Send that one file\n"
        "   to the authority, and read it the fingerprint by telephone. It sends you a second kit with all\n"
        "   certificates and columns: unpack it over this folder.\n"
        "3. `colonnade doctor party.toml` says what is wrong, if anything.\n"
        "4. `colonnade party serve party.toml` answers the coordinator. To keep it up: compose.yaml, or\n"
        "   colonnade-party.service and colonnade-backup.timer for systemd.\n"
        "5. `colonnade party console party.toml` shows in a browser what waits for your decision.\n"
    )
