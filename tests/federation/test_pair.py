"""Two and three institutions in pairs as a federation: who may be one, what is refused, bound, added and seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.errors import (
    BadArguments,
    BeyondReservation,
    ModulusTooSmall,
    PartyLost,
    RosterError,
    SecureError,
    TooFewHolders,
    UnsafeRequest,
)
from colonnade.federation.config import ConsortiumFile, Spec
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Request
from colonnade.federation.party import Party
from colonnade.federation.roster import Member, Roster
from colonnade.statistics import pair as module
from colonnade.statistics.paired_moments import PairedMoments
from colonnade.statistics.tables import TableComputation, Tables, TablesLayout
from support.asking import asking

ALLOW = ("presence", "exact-moments", "exact-tables")
COLUMNS = Columns(
    [
        Column(name="x", kind="continuous", lower=-1.0, upper=1.0),
        Column(name="y", kind="continuous", lower=-1.0, upper=1.0),
        Column(name="d", kind="binary", categories=("0", "1")),
        Column(name="k", kind="categorical", categories=tuple(map(str, range(30)))),
        Column(name="l", kind="categorical", categories=tuple(map(str, range(20)))),
        Column(name="v", kind="count", lower=0, upper=9),
    ]
)


def blocks(parties: int = 2, n: int = 300) -> dict[str, pd.DataFrame]:
    """A bank and a court; of three parties the third, an office, has a column of the court."""
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {
            "id": np.arange(n),
            "x": rng.uniform(-1, 1, n),
            "k": rng.integers(0, 30, n).astype(str),
            "y": rng.uniform(-1, 1, n),
            "d": rng.integers(0, 2, n).astype(str),
            "l": rng.integers(0, 20, n).astype(str),
            "v": rng.integers(0, 10, n),
        }
    )
    held = {"bank": ["x", "k"], "court": ["y", "d", "v", "l"]}
    held = held if parties == 2 else {"bank": ["x", "k"], "court": ["y", "d", "v"], "office": ["l"]}
    return {party: frame[["id", *names]] for party, names in held.items()}


def pair(tmp_path: Path, parties: int = 2, **options: Any) -> Federation:
    given: dict[str, Any] = {"committee": "pair", "allow": ALLOW, **options}
    folders = {"home": tmp_path / "h", "runs": tmp_path / "r"}
    return Federation.local(blocks(parties), key="id", columns=COLUMNS, **folders, **given)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with pair(tmp_path_factory.mktemp("pair")) as both:
        yield both


# --- who may be a pair -----------------------------------------------------------------------------------------


def _roster(*members: tuple[str, str, bool], **options: Any) -> Roster:
    return Roster(
        members=tuple(
            Member(name=name, organisation=organisation, public_key=name.encode(), owns_data=owns)
            for name, organisation, owns in members
        ),
        **options,
    )


def test_a_pair_is_data_parties_of_different_organisations() -> None:
    two = (("bank", "a bank", True), ("court", "a court", True))
    roster = _roster(*two, pair=True)
    assert Roster.from_dict(roster.to_dict()) == roster
    assert roster.fingerprint != _roster(*two).fingerprint
    assert "pair" not in _roster(*two).to_dict()  # older rosters keep their fingerprints
    assert _roster(*two, ("tax", "an office", True), pair=True).pair
    for members in (
        (*two, ("tax", "a bank", True)),
        (*two, ("holder", "an office", False)),
        (("bank", "a bank", True), ("court", "a bank", True)),
        (("bank", "a bank", True), ("holder", "a court", False)),
    ):
        with pytest.raises(RosterError, match="two or more data parties"):
            _roster(*members, pair=True)


def test_two_parties_alone_are_refused_until_they_say_pair(tmp_path: Path) -> None:
    with pair(tmp_path, committee=None) as federation, pytest.raises(TooFewHolders, match='committee = "pair"'):
        federation.plan(co.Moments())


def test_pair_is_written_in_the_files(tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(
        'key = "id"\ncolumns = "columns.toml"\ncommittee = "pair"\n[parties.a]\nsource = "a.csv"\n'
        '[parties.b]\nsource = "b.csv"\n'
    )
    assert Spec.from_toml(tmp_path / "federation.toml")[0].committee == "pair"
    (tmp_path / "consortium.toml").write_text(
        'key = "id"\ncoordinator = "host:1"\ncoordinator_organisation = "o"\ncommittee = "pair"\n'
        '[members.a]\ncertificate = "a.pem"\n'
    )
    assert ConsortiumFile.from_toml(tmp_path / "consortium.toml").committee == "pair"


HOLDER = r"alone cannot; add an independent holder"
DEEPER = {
    "weights that depend on records": (co.Regress(response="y", columns=("x",)), 'alone cannot; choose missing="em"'),
    "survey weights": (co.Regress(response="y", columns=("x",), weights="v"), HOLDER),
    "clusters": (co.Regress(response="y", columns=("x", "v"), clusters="v"), HOLDER),
    "logistic regression": (co.Regress(response="d", columns=("x",), family="binomial"), HOLDER),
    "private logistic regression": (co.Regress(response="d", columns=("x",), family="binomial", epsilon=1.0), HOLDER),
    "Poisson regression": (co.Regress(response="v", columns=("x",), family="poisson"), HOLDER),
    "selection from a Poisson fit": (co.Select(response="v", columns=("x",), family="poisson", solver="wald"), HOLDER),
    "a classifier in rounds": (
        co.Classify(response="d", columns=("x",), solver="rounds"),
        "multiply once; leave solver out",
    ),
}


@pytest.mark.parametrize("name", DEEPER)
def test_what_needs_more_than_one_product_is_refused_before_anything_is_spent(
    federation: Federation, name: str
) -> None:
    method, cure = DEEPER[name]
    ledgers = {party: federation.transport[party].ledger for party in federation.roster.names}  # type: ignore[index]
    before = {party: ledger.chain.head() for party, ledger in ledgers.items()}
    with pytest.raises((TooFewHolders, BadArguments), match=cure):
        federation.run(method)
    assert {party: ledger.chain.head() for party, ledger in ledgers.items()} == before


def test_numbers_that_words_of_a_pair_do_not_hold_are_refused(federation: Federation) -> None:
    with pytest.raises(ModulusTooSmall, match="smaller gamma"):
        federation.plan(co.Moments(epsilon=None, gamma=2**26))


def test_products_of_three_parties_are_refused_with_a_cure(tmp_path: Path) -> None:
    product = co.Polynomial.of([(1.0, {"x": 1, "y": 1, "l[3]": 1})])
    with pair(tmp_path, parties=3) as federation:
        for method in (co.Tables(tables=(("k", "d", "l"),)), co.PolynomialSum(polynomial=product)):
            with pytest.raises(TooFewHolders, match=r"3 parties .* leave out committee"):
                federation.plan(method)
        with pytest.raises(TooFewHolders, match=r'choose missing="em", or leave out committee'):
            federation.plan(co.Regress(response="y", columns=("x",)))
        text = federation.plan(co.Tables(tables=(("k", "l"), ("k", "d")))).text()
    assert "3 institutions in pairs" in text
    assert "'office' encrypts, 'bank' multiplies" in text
    assert "However many of them pool" in text
    assert "1 of 3 members collude" in text


def test_the_plan_says_what_it_rests_on(federation: Federation) -> None:
    text = federation.plan(co.Tables(tables=(("k", "l"),))).text()
    assert "two institutions alone" in text
    assert "ring learning with errors" in text
    assert "'court' encrypts, 'bank' multiplies" in text  # 20 indicators against 30
    assert "Not verified" in text
    assert "malformed key" in text
    assert "1 of 2 members collude" in text


# --- what is bound ---------------------------------------------------------------------------------------------


def computation(federation: Federation, **options: Any) -> tuple[Any, TableComputation]:
    method = Tables(tables=(("k", "l"),), **options)
    plan = federation.plan(method)
    run: Any = plan.run
    return plan, run.__self__


@pytest.mark.parametrize("parties", [2, 3])
def test_other_arguments_and_second_openings_are_refused(tmp_path: Path, parties: int) -> None:
    with pair(tmp_path, parties) as federation:
        plan, tables = computation(federation, epsilon=1.0)
        less = {**tables.layout.to_dict(), "mus": [1]}
        with federation.open(plan) as job, pytest.raises(UnsafeRequest):
            job.ask(asking(tables.pair.exchange, bank={"layout": less}))
        with federation.open(plan) as job, pytest.raises((PartyLost, UnsafeRequest)):  # before anything was multiplied
            job.ask(tables.pair.open)
        with federation.open(plan) as job:
            tables.pair.ask_rows(job)
            tables.pair.all_opened(job, tables.layout)
            with pytest.raises(BeyondReservation):
                job.ask(asking(tables.pair.open, again=True))
        with federation.open(plan) as job, pytest.raises(BeyondReservation):
            tables.pair.ask_rows(job)
            job.ask(asking(tables.pair.exchange, again=True))


@pytest.mark.parametrize("parties", [2, 3])
def test_every_request_is_answered_by_the_same_bytes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parties: int
) -> None:
    """What a resumed job gets: no second key, mask, noise or share."""
    answer, asked = Party.handle, []

    def twice(self: Party, data: bytes) -> bytes:
        reply = answer(self, data)
        if (request := Request.decode(data)).kind == "ask":
            assert answer(self, data) == reply
            asked.append(request.stage)
        return reply

    monkeypatch.setattr(Party, "handle", twice)
    with pair(tmp_path, parties) as federation:
        result = co.Moments(epsilon=None, columns=("x", "y", "l"), presence="known").fit(federation)
    assert asked.count("moments: exchange rows") == 2 * parties
    assert asked.count("moments: open") == parties
    frames = blocks()
    assert abs(result.grams[-1][1, 2] - frames["bank"]["x"] @ frames["court"]["y"]) < 0.1


def test_a_mask_of_another_length_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PairedMoments, "masks", lambda self, me: np.zeros((1, 3), dtype=np.uint8))
    with pair(tmp_path) as federation, pytest.raises(UnsafeRequest):
        co.Moments(epsilon=None, columns=("x", "y"), presence="known").fit(federation)


# --- noise, and what is seen -----------------------------------------------------------------------------------


def _noisy(federation: Federation) -> tuple[np.ndarray, float]:
    """The errors of 600 cells of one table and 1200 of another, and their stated deviation."""
    tables = (("k", "l"), ("k", "y"))
    exact = Tables(tables=tables, bins=40, epsilon=None).fit(federation)
    noisy = Tables(tables=tables, bins=40, epsilon=1.0).fit(federation, sure=True)
    # In the order of the opening: the smaller side first.
    errors = [noisy["k", "l"].T - exact["k", "l"].T, noisy["k", "y"] - exact["k", "y"]]
    return np.concatenate([table.reshape(-1) for table in errors]), noisy.noise_sd["k", "l"]


def _is_stated(errors: np.ndarray, sd: float) -> bool:
    """The mean square of the draws is within 6 deviations of the stated variance."""
    return abs(np.mean((errors / sd) ** 2) - 1) < 6 * np.sqrt(2 / errors.size)


@pytest.mark.parametrize("parties", [2, 3])
def test_each_party_adds_its_part_of_the_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parties: int) -> None:
    """The total carries all parties' noise; what one of them knows of it leaves the calibrated noise of the others."""
    drawn: dict[str, list[np.ndarray]] = {}
    original = TablesLayout.noise

    def recorded(self: TablesLayout, me: Party) -> np.ndarray:
        values = original(self, me)
        drawn.setdefault(me.name, []).append(values)
        return values

    monkeypatch.setattr(TablesLayout, "noise", recorded)
    with pair(tmp_path, parties) as federation:
        errors, sd = _noisy(federation)
    assert _is_stated(errors, sd)
    own = {party: values[-1] for party, values in drawn.items()}
    assert set(own) == set(blocks(parties))
    for known in own.values():
        assert _is_stated(errors - known, sd * np.sqrt(1 - 1 / parties))


@pytest.mark.parametrize("parties", [2, 3])
def test_a_partys_missing_noise_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parties: int) -> None:
    original = TablesLayout.noise
    monkeypatch.setattr(TablesLayout, "noise", lambda self, me: original(self, me) * (0 if me.name == "court" else 1))
    with pair(tmp_path, parties) as federation:
        errors, sd = _noisy(federation)
    assert not _is_stated(errors, sd)


def test_the_coordinator_sees_uniform_words_and_their_sum(tmp_path: Path) -> None:
    """Also of what lies within a party: in the server's view neither part alone carries enough noise."""
    with pair(tmp_path) as federation:
        plan, tables = computation(federation, epsilon=None)
        with federation.open(plan) as job:
            tables.pair.ask_rows(job)
            replies = job.ask(tables.pair.open)
    assert all(map(_uniform, replies.values()))


def _uniform(words: np.ndarray) -> bool:
    """The highest four bits: 15 degrees of freedom, and the limit is beyond 1e-4."""
    observed = np.bincount((words >> np.uint64(60)).astype(int), minlength=16)
    expected = words.size / 16
    return bool(((observed - expected) ** 2 / expected).sum() < 45)


def test_a_third_party_sees_nothing_of_the_product_of_two_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message about it goes to the office; and the parts of the other two, without the pads that the office shares
    with them and could tell the coordinator, are uniform still. The office's own part is not: it has no noise here, and
    what a coalition of all others reads is what is opened."""
    sent, send, mask = list[tuple[str, str]](), Party.send, module.masked

    def recorded(self: Party, recipient: str, tag: str, value: Any) -> None:
        sent.append((self.name, recipient))
        send(self, recipient, tag, value)

    def without_the_office(values: Any, **stated: Any) -> Any:
        if stated["me"] == "office":
            return values.view(np.uint64)
        return mask(values, **stated | {"peers": [peer for peer in stated["peers"] if peer != "office"]})

    monkeypatch.setattr(Party, "send", recorded)
    monkeypatch.setattr(module, "masked", without_the_office)
    with pair(tmp_path, parties=3) as federation:
        method = Tables(tables=(("k", "y"), ("l",)), bins=40, epsilon=None)
        plan = federation.plan(method)
        run: Any = plan.run
        tables: TableComputation = run.__self__
        with federation.open(plan) as job:
            tables.pair.ask_rows(job)
            replies = job.ask(tables.pair.open)
    assert set(sent) == {("bank", "court"), ("court", "bank")}
    assert _uniform(replies["bank"])
    assert _uniform(replies["court"])
    assert not replies["office"][:-20].any()
    assert not _uniform(replies["office"])


def test_a_ciphertext_of_something_else_stops_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Encrypter, "encrypt", lambda self, rows: [b"not a ciphertext"])
    with pair(tmp_path) as federation, pytest.raises(SecureError):
        co.Moments(epsilon=None, columns=("x", "y"), presence="ignore").fit(federation)
