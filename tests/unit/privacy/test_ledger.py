"""The ledger: debit once, never above the reservation, never above the budget, and every change is found."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from colonnade.durable import Chain, Database, Head, Row
from colonnade.errors import (
    BeyondReservation,
    BudgetExceeded,
    CannotAccount,
    CorruptRecord,
    ReplayMismatch,
    StorageError,
)
from colonnade.privacy.cost import Cost, Gaussian, Laplace, Unbounded, compose
from colonnade.privacy.ledger import DAY, Budget, Ledger, Reservation


def ledger(tmp_path: Path, **options: object) -> Ledger:
    return Ledger(Database(tmp_path / "party.db"), **options)  # type: ignore[arg-type]


def reservation(epsilon: float = 0.1, count: int = 1) -> Reservation:
    return Reservation(stage="p", step="s", count=count, cost=Laplace(epsilon).times(count))


def debit(book: Ledger, *, job: str = "j", seq: int = 1, epsilon: float = 0.1, request: str = "r") -> bool:
    return book.debit(job=job, seq=seq, request=request, stage="p", step="s", cost=Laplace(epsilon))


def test_a_request_is_debited_once(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve("j", [reservation()])
    book.reserve("j", [reservation()])
    assert debit(book)
    assert not debit(book)
    with pytest.raises(ReplayMismatch):
        debit(book, request="another")
    assert len(book.chain.rows()) == 2
    assert book.debited("j") == Laplace(0.1)


def test_debits_of_one_joint_release_all_count(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    cost = Laplace(0.1, joint="j gradients")
    book.reserve("j", [Reservation(stage="p", step="s", count=3, cost=cost.times(3))])
    for seq in range(3):
        book.debit(job="j", seq=seq, request=str(seq), stage="p", step="s", cost=cost)
    assert book.debited("j") == cost.times(3)


@pytest.mark.parametrize(
    "cost",
    [
        Cost(mechanism="unheard-of"),
        Cost(mechanism="skellam"),
        Cost(mechanism="laplace", parameters=(("epsilon", -1.0),)),
        Laplace(0.1, unit="comparison"),
        compose([Laplace(0.1), Cost(mechanism="gaussian", parameters=(("noise_multiplier", 0.0),))]),
    ],
    ids=["unknown", "empty", "negative", "unit", "composed"],
)
def test_a_row_that_nobody_can_account_for_is_refused_without_a_budget_too(tmp_path: Path, cost: Cost) -> None:
    """Costs of a proposal are a stranger's. The ledger only grows: one such row, and no total would ever be known."""
    book = ledger(tmp_path)
    book.reserve("before", [reservation()])
    with pytest.raises(CannotAccount):
        book.reserve("j", [reservation(), Reservation(stage="q", step="s", count=1, cost=cost)])
    assert book.spent(delta=0).epsilon == pytest.approx(0.1)
    assert len(book.verify().hash) == 64


def test_it_survives_being_reopened(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve("j", [reservation()])
    debit(book)
    again = ledger(tmp_path)
    assert not debit(again)
    assert again.verify() == book.verify()
    assert again.spent(delta=0).epsilon == pytest.approx(0.1)


def test_a_budget_holds_over_jobs_and_a_refusal_leaves_no_row(tmp_path: Path) -> None:
    book = ledger(tmp_path, budget=Budget(epsilon=0.25))
    book.reserve("a", [reservation(0.1), Reservation(stage="q", step="s", count=1, cost=Laplace(0.1))])
    with pytest.raises(BudgetExceeded, match=r"0\.3.*0\.25"):
        book.reserve("b", [reservation(0.1)])
    assert not book.chain.rows(job="b")
    book.reserve("c", [reservation(0.05)])


def test_gaussian_costs_compose_better_than_their_sum(tmp_path: Path) -> None:
    """Ten releases at (0.5, 1e-6) each fit into (2, 1e-6) by concentrated DP, though their epsilons sum to 5."""
    single = Gaussian(10.0)
    book = ledger(tmp_path, budget=Budget(epsilon=2.0, delta=1e-6))
    for number in range(10):
        book.reserve(f"j{number}", [Reservation(stage="p", step="s", count=1, cost=single)])
    assert 1.0 < book.spent(delta=1e-6).epsilon < 2.0


def test_a_period_renews_the_budget_and_the_lifetime_total_stays(tmp_path: Path) -> None:
    now = [1_000_000.0]
    book = ledger(tmp_path, budget=Budget(epsilon=0.1, period_days=30), clock=lambda: now[0])
    book.reserve("a", [reservation(0.1)])
    with pytest.raises(BudgetExceeded):
        book.reserve("b", [reservation(0.1)])
    now[0] += 31 * DAY
    book.reserve("c", [reservation(0.1)])
    assert book.spent(delta=0).epsilon == pytest.approx(0.2)
    assert book.spent(delta=0, since=now[0] - DAY).epsilon == pytest.approx(0.1)


def test_a_clock_set_back_does_not_renew_a_budget(tmp_path: Path) -> None:
    """What is spent while the clock is wrong must not look a hundred days old when it is right again."""
    now = [100 * DAY]
    book = ledger(tmp_path, budget=Budget(epsilon=0.1, period_days=30), clock=lambda: now[0])
    book.reserve("a", [reservation(0.05)])
    now[0] = 0.0
    with pytest.raises(BudgetExceeded):
        book.reserve("b", [reservation(0.1)])
    book.reserve("c", [reservation(0.05)])
    now[0] = 101 * DAY
    with pytest.raises(BudgetExceeded):
        book.reserve("d", [reservation(0.05)])


def test_after_an_unbounded_release_the_total_is_unbounded(tmp_path: Path) -> None:
    book = ledger(tmp_path, budget=Budget(epsilon=1.0))
    predictor = Unbounded("linear-predictor", "each record's predictor")
    book.reserve("a", [Reservation(stage="p", step="s", count=1, cost=predictor)], allow=["linear-predictor"])
    assert "unbounded" in str(book.spent())
    book.reserve("b", [reservation(0.9)])
    with pytest.raises(BudgetExceeded):
        book.reserve("c", [reservation(0.2)])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE ledger SET body = replace(body, '0.1', '0.01') WHERE number = 2",
        "DELETE FROM ledger WHERE number = 2",
        "UPDATE ledger SET number = 9 WHERE number = 3",
    ],
)
def test_a_changed_row_is_found(tmp_path: Path, change: str) -> None:
    book = ledger(tmp_path)
    for job in "abc":
        book.reserve(job, [reservation()])
    with pytest.raises(StorageError, match="append-only"):
        book.database.execute(change)
    book.database.close()
    raw = sqlite3.connect(tmp_path / "party.db")
    for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        raw.execute(f"DROP TRIGGER {name}")
    raw.execute(change)
    raw.commit()
    raw.close()
    with pytest.raises(CorruptRecord, match="row"):
        ledger(tmp_path).verify()


def test_rows_that_were_cut_off_are_found_with_the_head_that_was_handed_out(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve("a", [reservation()])
    early = book.chain.head()
    book.reserve("b", [reservation()])
    late = book.chain.head()
    assert book.verify(expect=early) == book.verify(expect=late) == late
    with pytest.raises(CorruptRecord, match="cut off"):
        book.verify(expect=Head(late.rows, "f" * 64))
    with pytest.raises(CorruptRecord, match="cut off"):
        book.verify(expect=Head(late.rows + 1, late.hash))


def test_a_file_that_is_no_database_is_found(tmp_path: Path) -> None:
    (tmp_path / "party.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(CorruptRecord, match="restore"):
        ledger(tmp_path)


def test_a_full_disk_leaves_whole_rows_only(tmp_path: Path) -> None:
    """SQLite's page limit gives the error of a full disk: every reservation is there whole, or not at all."""
    book = ledger(tmp_path)
    book.database.execute(f"PRAGMA max_page_count = {book.database.execute('PRAGMA page_count')[0][0] + 4}")
    made = 0
    with pytest.raises(StorageError, match="free disk space"):
        for number in range(1000):
            book.reserve(f"j{number}", [reservation(), Reservation(stage="q", step="s", count=1, cost=Laplace(0.1))])
            made = number + 1
    assert book.verify().rows == 2 * made
    book.database.execute("PRAGMA max_page_count = 1073741823")
    book.reserve("after", [reservation()])
    assert book.verify().rows == 2 * made + 1


def test_a_failed_transaction_leaves_no_trace(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.db")
    chain = Chain(database, "chain")
    chain.append({"a": 1})

    def half_done() -> None:
        with database.transaction():
            chain.append({"a": 2})
            raise RuntimeError("in between")

    with pytest.raises(RuntimeError):
        half_done()
    assert [row.body for row in chain.rows()] == [{"a": 1}]
    chain.verify()


def test_sums_in_memory_follow_what_is_on_disk(tmp_path: Path) -> None:
    """Another process writes, a transaction is rolled back, many jobs pass: the reservation holds all the same."""
    book, other = ledger(tmp_path), ledger(tmp_path)
    book.reserve("j", [reservation(count=3)])
    assert debit(book, seq=1)
    assert debit(other, seq=2)
    assert not debit(book, seq=2)
    with pytest.raises(RuntimeError), book.database.transaction():
        assert debit(book, seq=3)
        assert not debit(book, seq=3)
        raise RuntimeError("rolled back")
    assert debit(book, seq=4)
    for number in range(40):
        book.reserve(f"job {number}", [reservation()])
        assert debit(book, job=f"job {number}")
    for each in (book, other):
        with pytest.raises(BeyondReservation, match="all of its 3"):
            debit(each, seq=5)
    assert [row.body["seq"] for row in book.chain.rows(kind="debit", job="j")] == [1, 2, 4]
    book.verify()


def test_a_late_request_is_checked_as_fast_as_an_early_one(tmp_path: Path) -> None:
    """Counted in rows that are read: one a request, not one for each request before it."""
    book = Ledger(Database(tmp_path / "party.db", flushed=False))
    book.reserve("j", [reservation(count=200)])
    read: list[int] = []
    original = book.chain.rows

    def counted(**where: object) -> list[Row]:
        found = original(**where)  # type: ignore[arg-type]
        read.append(len(found))
        return found

    book.chain.rows = counted  # type: ignore[method-assign,assignment]
    for seq in range(1, 201):
        assert debit(book, seq=seq)
    assert max(read) == 1


def test_a_clock_set_ahead_does_not_renew_a_budget(tmp_path: Path) -> None:
    """While the party runs. The steady clock says how long that really was; what really passes still counts."""
    wall, steady = [1_000_000.0], [50.0]
    book = ledger(
        tmp_path,
        budget=Budget(epsilon=0.1, period_days=30),
        clock=lambda: wall[0],
        steady=lambda: steady[0],
    )
    book.reserve("a", [reservation()])
    wall[0] += 400 * DAY
    steady[0] += 60
    with pytest.raises(BudgetExceeded):
        book.reserve("b", [reservation()])
    steady[0] += 31 * DAY
    book.reserve("b", [reservation()])
