"""Every TOML file that people write, in one place.

federation.toml   all parties on one machine: key, columns, [parties.NAME], and what they agree on
consortium.toml   public, the same for everyone: key, coordinator's address, members, certificates, columns
party.toml        one institution's own: its source, its folder, its policy and budget
coordinator.toml  the coordinator's own: where it serves, its credentials, its folder of runs
job.toml          one job as a file that can be read, kept and run again: a method and its options

(columns.toml declares columns and is read by `data.column`.) A file is a dataclass here: an unknown field is refused
with the nearest known one, and every type is checked. Paths are relative to the file that states them.

A member's certificate holds its name, organisation and sealing key under the authority's signature, so the roster
follows from certificates, and nothing that anyone merely says is believed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from colonnade.codec import bare, hints_of, nearest, record
from colonnade.data.column import Columns
from colonnade.data.columns_toml import key_text, value_text
from colonnade.data.sources import check_fields, named_source
from colonnade.durable import check_name
from colonnade.errors import BadArguments, RosterError, SchemaError
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.facts import PublicFacts
from colonnade.federation.policy import Policy
from colonnade.federation.roster import COORDINATOR, Member, Roster
from colonnade.federation.transports.certificates import signed_by
from colonnade.privacy.ledger import Budget

if TYPE_CHECKING:
    from colonnade.federation.method import Method

T = TypeVar("T")

ADDRESS = "0.0.0.0:7443"
"""Where a coordinator serves by default."""


# --- reading ----------------------------------------------------------------------------------------------


def read_toml(path: Path, *, guide: str = "network") -> dict[str, Any]:
    """What a TOML file says, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SchemaError(f"{path} cannot be read ({_why(error)}); `colonnade docs {guide}` has an example.") from error


def _why(error: Exception) -> str:
    """Without the number and the name of an error of the file system."""
    return getattr(error, "strerror", None) or str(error)


def checked_toml(kind: type[T], path: Path, *, guide: str = "network") -> T:
    """A TOML file as a dataclass, with its paths made absolute by the folder that it is in."""
    try:
        checked = record(
            kind, read_toml(path, guide=guide), str(path), cure=f" `colonnade docs {guide}` has an example."
        )
    except BadArguments as error:
        raise SchemaError(str(error)) from error
    return _beside(checked, path.parent)


def _beside(value: T, folder: Path) -> T:
    """The same record, with its own paths relative to `folder`."""
    hints = hints_of(type(value))  # type: ignore[arg-type]
    moved = {
        entry.name: folder / getattr(value, entry.name)
        for entry in fields(value)  # type: ignore[arg-type]
        if bare(hints[entry.name]) in (Path, Path | None) and getattr(value, entry.name) is not None
    }
    return replace(value, **moved)  # type: ignore[type-var]


def located(source: Any, beside: Path) -> Any:
    """A source whose files are named relative to `beside`."""
    if isinstance(source, str):
        return str(beside / source)
    if isinstance(source, dict):
        check_fields(source)
        files = ("csv", "parquet", "duckdb", "dask_ca", "dask_certificate", "dask_key")
        paths = [kind for kind in files if source.get(kind, ":memory:") != ":memory:"]
        return source | {kind: str(beside / source[kind]) for kind in paths}
    raise SchemaError('a source is a file name or a table such as { duckdb = "file", query = "select ..." }.')


def kind_of(path: Path) -> Literal["federation", "coordinator", "party"]:
    """Which of these files this is; what cannot be read is left to the next reader."""
    try:
        plain = read_toml(path)
    except SchemaError:
        return "federation"
    if "consortium" not in plain:
        return "federation"
    return "party" if "name" in plain else "coordinator"


# --- a federation on one machine --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Agreed:
    """What the parties of a local federation have in common: in Python and in a federation.toml."""

    key: str | tuple[str, ...]
    holder: str | None = None
    coordinator: str = COORDINATOR
    committee: tuple[str, ...] | Literal["pair"] | None = None
    threshold: int = 1
    colluders: int = 1
    allow: tuple[str, ...] = ()
    budget: Budget | None = None
    approve: Literal["auto", "ask"] = "auto"
    seed: int | None = None
    include: str = "union"
    transport: Literal["embedded", "processes", "network"] = "embedded"
    packages: tuple[str, ...] = field(default_factory=lambda: CATALOGUE.optional)
    timeout: float = 600.0
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Spec(_Agreed):
    """What a local federation is made of.

    blocks: {party: DataFrame, path, or source mapping}; key: the record key's column, or several that identify a
    record together; columns: `Columns` or a columns.toml; organisations: {party: name} (each party its own by default);
    holder: the organisation of an independent share holder without data (needed with two parties); coordinator: the
    organisation that runs the coordinator, if it is one of theirs; committee,
    threshold, colluders: see `Roster`; allow: unbounded releases that all parties allow by name; budget: of each
    party; seed: makes this a simulation; include: the union of all records, or one party's; packages: those beyond
    Colonnade's own methods that the parties run (the papers' wing by default); ignore: columns of the tables that
    no one uses.
    """

    blocks: Mapping[str, Any]
    columns: Columns | str | Path
    organisations: Mapping[str, str] = field(default_factory=dict)
    home: Path | str | None = None

    @classmethod
    def stated(cls, **given: Any) -> Spec:
        """What `Federation.local` is given, each option checked by its type as in a federation.toml."""
        if not isinstance(given["blocks"], Mapping):
            raise BadArguments(
                'the tables are a dict {party: data frame, path or source}, such as {"bank": bank, "clinic": clinic},'
                f" not {type(given['blocks']).__name__}."
            )
        if not isinstance(given["columns"], Columns | str | Path):
            raise BadArguments(
                "columns is a Columns or the path of a columns.toml, such as"
                f" colonnade.draft(tables, key=...).confirmed(), not {type(given['columns']).__name__}."
            )
        return record(cls, given, "Federation.local")

    @classmethod
    def from_toml(cls, path: Path) -> tuple[Spec, Path]:
        """A federation.toml, and its folder for runs."""
        file = checked_toml(_FederationFile, path, guide="federation-toml")
        if not file.parties:
            raise SchemaError(f"{path} needs at least one [parties.NAME] with a source.")
        common = {entry.name: getattr(file, entry.name) for entry in fields(_Agreed)}
        blocks = {name: party.located(path.parent) for name, party in file.parties.items()}
        organisations = {name: party.organisation or name for name, party in file.parties.items()}
        return cls(
            **common, blocks=blocks, organisations=organisations, columns=file.columns, home=file.home
        ), file.runs


@dataclass(frozen=True, kw_only=True)
class _PartyTable:
    """[parties.NAME]"""

    source: str | dict[str, Any]
    organisation: str | None = None
    ignore: tuple[str, ...] = ()

    def located(self, beside: Path) -> Any:
        """The source as `open_source` takes it, without the columns that this party does not offer."""
        source = located(self.source, beside)
        if not self.ignore:
            return source
        named = named_source(Path(source)) if isinstance(source, str) else source
        return {**named, "ignore": [*named.get("ignore", ()), *self.ignore]}


@dataclass(frozen=True, kw_only=True)
class _FederationFile(_Agreed):
    columns: Path
    parties: Mapping[str, _PartyTable]
    home: Path = Path("home")
    runs: Path = Path("runs")


def federation_text(
    *,
    key: str | tuple[str, ...],
    sources: Mapping[str, Any],
    ignore: Mapping[str, Sequence[str]],
    without_bound: Mapping[str, str],
    allowed: bool,
) -> str:
    """The text of a federation.toml beside a columns.toml; `ignore` is what a party alone leaves out, `without_bound`
    says what each release without a bound shows to whom. Unless they are `allowed`, their lines are comments."""
    lines = [
        "# `colonnade docs federation-toml` explains every field.",
        f"key = {value_text(key)}",
        'columns = "columns.toml"',
    ]
    off = "" if allowed else "# "
    lines += [
        "",
        "# Releases without a privacy bound, and what each shows to whom; exact methods need them.",
        "# Who owns all tables may allow all of them."
        + (" Delete what another may not see." if allowed else " To allow one, uncomment its line and the brackets."),
        f"{off}allow = [",
        *(f"{off}    {value_text(name)},  # {shown}" for name, shown in without_bound.items()),
        f"{off}]",
    ]
    if len(sources) == 2:
        holder = (
            "# With two parties an independent organisation holds a share of what is computed together; without one,"
        )
        lines += [holder, '# take committee = "pair" instead.', 'holder = "an independent organisation"']
    for party, source in sources.items():
        lines += ["", f"[parties.{key_text(party)}]", f"source = {value_text(source)}"]
        if ignore.get(party):
            lines.append(f"ignore = {value_text(list(ignore[party]))}")
    return "\n".join(lines) + "\n"


# --- a federation on several machines ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MemberTable:
    """[members.NAME]"""

    certificate: Path
    columns: Path | None = None
    capacity: int = 0


@dataclass(frozen=True, kw_only=True)
class ConsortiumFile:
    """consortium.toml as it is written, before any certificate is looked at."""

    key: str | tuple[str, ...]
    coordinator: str
    """Its address."""
    coordinator_organisation: str
    """Who runs it, as its certificate says."""
    members: Mapping[str, MemberTable]
    committee: tuple[str, ...] | Literal["pair"] = ()
    threshold: int = 1
    colluders: int | None = None

    @classmethod
    def from_toml(cls, path: Path) -> ConsortiumFile:
        file = checked_toml(cls, path)
        if not file.members:
            raise SchemaError(f"{path} needs at least one [members.NAME] with a certificate.")
        return replace(file, members={name: _beside(table, path.parent) for name, table in file.members.items()})

    @property
    def certificates(self) -> dict[str, Path]:
        """By member."""
        return {name: table.certificate for name, table in self.members.items()}


@dataclass(frozen=True, kw_only=True)
class Consortium:
    """consortium.toml, with every certificate checked against the authority."""

    key: str | tuple[str, ...]
    coordinator: str
    roster: Roster
    columns: Mapping[str, Columns]
    capacity: Mapping[str, int]

    @classmethod
    def from_toml(cls, path: Path, *, authority: Path) -> Consortium:
        """`authority` is the reader's own copy of the authority's certificate: the file cannot bring its own."""
        file = ConsortiumFile.from_toml(path)
        members, columns = [], {}
        for name, table in file.members.items():
            owner = signed_by(authority, table.certificate)
            if owner.name != name or owner.sealing_key is None:
                raise RosterError(f"the certificate of [members.{name}] in {path} is that of {owner.name!r}.")
            if table.columns is not None:
                columns[name] = Columns.from_toml(table.columns)
            members.append(
                Member(
                    name=name,
                    organisation=owner.organisation,
                    public_key=owner.sealing_key,
                    owns_data=table.columns is not None,
                    signing_key=owner.signing_key or b"",
                )
            )
        roster = Roster(
            members=tuple(members),
            committee=() if file.committee == "pair" else file.committee,
            threshold=file.threshold,
            pair=file.committee == "pair",
            colluders=min(1, len(members) - 1) if file.colluders is None else file.colluders,
            coordinator=file.coordinator_organisation,
        )
        return cls(
            key=file.key,
            coordinator=file.coordinator,
            roster=roster,
            columns=columns,
            capacity={name: file.members[name].capacity for name in columns},
        )

    def facts(self, n: int) -> PublicFacts:
        return PublicFacts(n=n, columns=dict(self.columns))

    def capacities(self) -> dict[str, int]:
        """What an alignment must know of every member; refused if one states none."""
        lacking = [party for party, most in self.capacity.items() if most < 1]
        if lacking:
            raise SchemaError(
                f"consortium.toml states no capacity for {', '.join(lacking)}: the most records that it may have,"
                " which is public; add capacity = NUMBER."
            )
        return dict(self.capacity)


@dataclass(frozen=True, kw_only=True)
class PartyFile:
    """party.toml."""

    consortium: Path
    name: str
    home: Path = Path("home")
    source: Any = None
    credentials: Path = Path("credentials")
    policy: Policy = field(default_factory=Policy)
    budget: Budget | None = None
    """In the file; afterwards it is the policy's."""
    packages: tuple[str, ...] = ()
    """Packages beyond Colonnade's own methods that this party runs: the papers' wing, or another's plug-in."""
    ignore: tuple[str, ...] = ()
    """Columns of its table that are not offered: identifiers, free text."""
    notice: tuple[str, ...] = ()
    """A command, without a shell, that gets a sentence as its input when a job waits for an operator."""
    simulation: bool = False
    """Whether this party accepts a seed, which protects nobody: for trying things out on data that are not real."""

    @classmethod
    def from_toml(cls, path: Path) -> PartyFile:
        file = checked_toml(cls, path)
        if file.policy.budget is not None:
            raise SchemaError(f"budget in {path} is a table of its own, [budget]; take it out of [policy].")
        try:
            CATALOGUE.check_packages(file.packages)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from error
        source = None if file.source is None else located(file.source, path.parent)
        return replace(file, source=source, policy=replace(file.policy, budget=file.budget))


@dataclass(frozen=True, kw_only=True)
class CoordinatorFile:
    """coordinator.toml."""

    consortium: Path
    address: str = ADDRESS
    credentials: Path = Path("credentials")
    runs: Path = Path("runs")
    queue: Path = Path("queue")
    """Where jobs wait for `colonnade coordinator serve`."""
    authority: Path | None = None
    """The authority's folder, if it is on this machine: the service then renews all members' certificates."""
    revoked: Path | None = None
    timeout: float = 600.0
    seed: int | None = None
    """Makes every job a simulation; parties refuse it unless their own party.toml says `simulation = true`."""

    @classmethod
    def from_toml(cls, path: Path) -> CoordinatorFile:
        return checked_toml(cls, path)

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether a TOML file is a coordinator.toml rather than a federation.toml."""
        return kind_of(path) == "coordinator"


def capacity_of(records: int) -> int:
    """The number of records, rounded up to two digits: at most a tenth more."""
    step: int = 10 ** max(0, len(str(records)) - 2)
    return -(-records // step) * step


# --- a job ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _JobTable:
    method: str
    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """A job.toml; `method` makes it a method.

    method = "pca"
    name = "spring"              # of the run folder; left out, one is made up

    [options]                    # as the method's class takes them
    epsilon = 1.0
    n_components = 3
    """

    path: Path
    wanted: str
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None

    @classmethod
    def from_toml(cls, path: Path) -> JobFile:
        job = checked_toml(_JobTable, path, guide="command-line")
        if job.name is not None:
            check_name(job.name, f"the run folder that name in {path} states")
        return cls(path=path, wanted=job.method, options=job.options, name=job.name)

    def method(self) -> Method[Any]:
        """The method with these options, and with its own defaults for the others."""
        if self.wanted not in CATALOGUE.names:
            raise SchemaError(
                f"{self.path} names method {self.wanted!r}; this installation has {', '.join(CATALOGUE.names)}."
                f"{nearest(self.wanted, CATALOGUE.names)}"
            )
        try:
            return CATALOGUE.make(self.wanted, self.options)
        except BadArguments as error:
            raise BadArguments(f"{self.path}, [options]: {error}") from error
