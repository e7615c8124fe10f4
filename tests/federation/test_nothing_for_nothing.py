"""No path spends and fails: every method, with what can be wrong, leaves every ledger as it was or leaves a result.

A refusal comes before the first reservation at any party. After it, a job returns what it has: an estimate, or
`NoEstimate` with its reason in the first line. A party that is lost in between leaves a run that can be resumed.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import colonnade as co
from colonnade.catalogue import CATALOGUE, WITHOUT_BOUND
from colonnade.durable import Database
from colonnade.errors import (
    BadPrivacyParameter,
    BudgetExceeded,
    ColonnadeError,
    NotApproved,
    PartyLost,
    RunError,
    UnboundedNotAllowed,
)
from colonnade.evaluation.report import view_of, write_report
from colonnade.federation.catalogue import EXTRAS
from colonnade.federation.config import Spec
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Request
from colonnade.federation.method import NoEstimate
from colonnade.federation.run_folder import RunFolder
from colonnade.privacy.ledger import Ledger
from colonnade.statistics.forecast import FORECAST
from support.small import COLUMNS, three_overlapping_blocks

PARTIES = ("clinic", "court", "bank")
N = 60
NETWORK = {"iterations": 4, "local": 2, "batch": 16, "hidden": 4, "cut": 2}
POLYNOMIAL = {"outputs": [[[1.0, {"age": 1, "sued": 1}]]]}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "align": ("align", {"capacity": dict.fromkeys(PARTIES, N), "epsilon": 1.0}),
    "describe": ("describe", {"epsilon": 1.0}),
    "copula": ("synthesize", {"model": "copula", "epsilon": 4.0, "verify": False}),
    "field": ("synthesize", {"model": "field", "epsilon": 4.0, "iterations": 20, "verify": False}),
    "exact regression": ("regress", {"response": "age"}),
    "private regression": ("regress", {"response": "age", "epsilon": 4.0}),
    "exact selection": ("select", {"response": "age"}),
    "private selection": ("select", {"response": "age", "epsilon": 4.0, "verify": False}),
    "selection in rounds": ("select", {"response": "sued", "family": "binomial", "n_lambdas": 3, "tolerance": 0.05}),
    "completion": ("complete", NETWORK),
    "private completion": ("complete", {**NETWORK, "epsilon": 4.0, "epochs": 2, "batch": 8}),
    "copula completion": ("complete", {"imputer": "copula-mean"}),
    "pca": ("pca", {"epsilon": 4.0, "n_components": 2, "verify": False}),
    "classify": ("classify", {"response": "sued", "epsilon": 4.0, "verify": False}),
    "moments": ("moments", {"epsilon": 4.0, "verify": False}),
    "exact moments": ("moments", {"epsilon": None, "verify": False}),
    "tables": ("tables", {"tables": [["sued", "sector"]], "epsilon": 1.0, "verify": False}),
    "exact tables": ("tables", {"tables": [["sued", "sector"]], "epsilon": None, "verify": False}),
    "polynomial": ("polynomial-sum", {"polynomial": POLYNOMIAL, "epsilon": 1.0, "verify": False}),
    "exact polynomial": ("polynomial-sum", {"polynomial": POLYNOMIAL, "epsilon": None, "verify": False}),
    "presence": ("presence-total", {"epsilon": 1.0}),
    "exact presence": ("presence-total", {"epsilon": None}),
    "blind rsa": ("blind-rsa", {"capacity": dict.fromkeys(PARTIES, N), "include": "clinic"}),
    "vcds": ("vcds", {}),
    "evcds": ("evcds", {}),
    "ievcds": ("ievcds", {"iterations": 2}),
    "vertimrf": ("vertimrf", {"epsilon": 4.0}),
    "vfem": ("vfem", {"response": "age", "tolerance": 0.1}),
    "fedpsg": ("fedpsg", {}),
    "vfl-glm-vs": ("vfl-glm-vs", {"response": "age", "lambdas": [0.5], "tolerance": 0.05}),
    "sqm-logistic": ("sqm-logistic", {"response": "sued", "epsilon": 4.0}),
}


def test_every_method_is_walked() -> None:
    assert {name for name, _ in CASES.values()} == set(CATALOGUE.names) & {*CATALOGUE.own(), *CATALOGUE.papers()}


ALLOWED = (*WITHOUT_BOUND, "presence-to-coordinator", "fm-sketches")


def made(case: str, **options: Any) -> Any:
    name, stated = CASES[case]
    return CATALOGUE.make(name, {**stated, **options})


def unbounded_names(plan: Any) -> tuple[str, ...]:
    return tuple(sorted({str(leaf["name"]) for cost in plan.costs() for leaf in cost.leaves() if leaf.unbounded}))


@contextmanager
def ready(
    folder: Path, method: Any, blocks: dict[str, pd.DataFrame] | None = None, transport: str = "embedded"
) -> Iterator[Federation]:
    """A federation whose parties allow what the method needs."""
    described = Spec(
        blocks=blocks or three_overlapping_blocks(N),
        key="id",
        columns=COLUMNS,
        home=folder / "home",
        transport=transport,
        seed=1,
        allow=ALLOWED,
    )
    with Federation.from_spec(described, runs=folder / "runs", aligned=not method.makes_cohort) as federation:
        yield federation


def ledgers(federation: Federation) -> list[int]:
    """The number of rows of each ledger, wherever its party runs; a party makes its own with its first job."""
    rows = []
    for party in PARTIES:
        path = Path(federation.transport.where(party)).parent / "party.db"
        if not path.exists():
            rows.append(0)
            continue
        with closing(Database(path, read_only=True)) as database:
            rows.append(Ledger(database, create=False).chain.head().rows)
    return rows


def lost(federation: Federation, party: str, kind: str) -> Callable[[], None]:
    """That party no longer answers requests of this kind; call what is returned to bring it back."""
    exchange = federation.transport.exchange

    def exchanging(to: str, data: bytes, *, timeout: float) -> bytes:
        if to == party and Request.decode(data).kind == kind:
            raise PartyLost(f"{party!r} does not answer.")
        return exchange(to, data, timeout=timeout)

    federation.transport.exchange = exchanging  # type: ignore[method-assign]
    return lambda: setattr(federation.transport, "exchange", exchange)


@pytest.mark.parametrize("case", CASES)
def test_what_is_refused_anywhere_is_reserved_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    method = made(case)
    with ready(tmp_path, method) as federation:
        packages = method.needed()
        plan = federation.plan(method)
        if packages:
            with monkeypatch.context() as patched:
                find = importlib.util.find_spec
                patched.setattr(
                    importlib.util, "find_spec", lambda name, *more: None if name in EXTRAS else find(name, *more)
                )
                with pytest.raises(RunError, match="nothing was spent"):
                    federation.run(method)
        for place in PARTIES:
            party = federation.transport[place]  # type: ignore[index]
            if not any(place in stage.costs for stage in plan.stages):
                continue
            mine = [leaf for cost in plan.costs(place) for leaf in cost.leaves()]
            policy, budget = party.policy, party.ledger.budget
            if any(leaf.unbounded for leaf in mine):
                party.policy = replace(policy, allow=())
                with pytest.raises(UnboundedNotAllowed):
                    federation.run(plan)
                party.policy = policy
            if any(leaf.mechanism not in ("free", "unbounded") for leaf in mine):
                party.ledger.budget = co.Budget(epsilon=1e-4, delta=1e-9)
                with pytest.raises(BudgetExceeded):
                    federation.run(plan)
                party.ledger.budget = budget
            back = lost(federation, place, "check")
            with pytest.raises(PartyLost):
                federation.run(plan)
            back()
        assert ledgers(federation) == [0, 0, 0]
        assert not federation.runs.exists() or not list(federation.runs.iterdir())


def left_behind(federation: Federation, method: Any, *, report: bool = True) -> str:
    """What a run leaves: nothing, a result, or none with the reason in the first line."""
    before = ledgers(federation)
    said = ""
    try:
        federation.run(method, name="run", sure=True)
    except ColonnadeError as error:
        said = str(error)
        if ledgers(federation) == before:
            return "refused"
    run = RunFolder.open(federation.runs / "run")
    assert run.job["state"] == "done", said
    stored = run.read_json("result.json")
    page = write_report(run).read_text(encoding="utf-8") if report else ""
    if stored["kind"] != "no-estimate":
        return "result"
    warning = f"No estimate: {stored['reason']}"
    assert view_of(run).warnings[0] == warning
    assert said in ("", stored["reason"])
    assert not report or page.index("No estimate: ") < page.index("<table")
    return "no estimate"


SMALL_EPSILON = {
    "align": "result",
    "describe": "result",
    "copula": "no estimate",
    "field": "result",
    "private regression": "no estimate",
    "private selection": "no estimate",
    "private completion": "result",
    "pca": "result",
    "classify": "result",
    "moments": "result",
    "tables": "result",
    "polynomial": "result",
    "presence": "result",
    "blind rsa": "result",
    "vcds": "result",
    "evcds": "result",
    "ievcds": "result",
    "vertimrf": "result",
}


def test_every_private_method_is_walked_with_a_small_epsilon() -> None:
    private = {case for case in CASES if getattr(made(case), "epsilon", None) is not None}
    assert private == {*SMALL_EPSILON, "sqm-logistic"}


@pytest.mark.parametrize("case", SMALL_EPSILON)
def test_too_small_an_epsilon_gives_a_result_or_says_that_there_is_none(tmp_path: Path, case: str) -> None:
    method = made(case, epsilon=0.05)
    with ready(tmp_path, method) as federation:
        plan = federation.plan(method)
        assert any(FORECAST in note or "moves a correlation" in note for note in plan.notes) or (
            case == "describe"  # a line for each column
        )
        assert plan.hopeless or SMALL_EPSILON[case] == "result"
        assert left_behind(federation, method) == SMALL_EPSILON[case]


def test_noise_beyond_any_integer_is_refused_by_the_plan_and_its_cure_works(tmp_path: Path) -> None:
    with ready(tmp_path, made("sqm-logistic")) as federation:
        with pytest.raises(BadPrivacyParameter, match="choose a smaller gamma"):
            federation.plan(made("sqm-logistic", epsilon=0.05))
        assert ledgers(federation) == [0, 0, 0]
        assert left_behind(federation, made("sqm-logistic", epsilon=0.05, gamma=1024)) == "result"


def few(n: int) -> dict[str, pd.DataFrame]:
    return three_overlapping_blocks(n)


def constant() -> dict[str, pd.DataFrame]:
    blocks = three_overlapping_blocks(N)
    blocks["clinic"] = blocks["clinic"].assign(age=50.0, visits=3)
    blocks["bank"] = blocks["bank"].assign(sector="trade")
    return blocks


def apart() -> dict[str, pd.DataFrame]:
    """No record of the court is at another party."""
    blocks = three_overlapping_blocks(N)
    blocks["court"] = blocks["court"].assign(id=[f"X{k}" for k in range(len(blocks["court"]))])
    return blocks


ODD = {"few": lambda: few(8), "constant": constant, "apart": apart}


STATISTICS = ["describe", "exact regression", "private regression", "exact selection", "selection in rounds", "tables"]


@pytest.mark.parametrize(
    ("case", "odd"), [*((case, "few") for case in CASES), *itertools.product(STATISTICS, ("constant", "apart"))]
)
def test_odd_data_give_a_result_or_say_that_there_is_none(tmp_path: Path, case: str, odd: str) -> None:
    method = made(case)
    with ready(tmp_path, method, ODD[odd]()) as federation:
        left_behind(federation, method)


def test_an_error_after_privacy_was_spent_keeps_what_was_released(tmp_path: Path) -> None:
    method = made("tables")
    with ready(tmp_path, method) as federation:
        plan = federation.plan(method)
        assert plan.run is not None
        procedure = plan.run

        def broken(job: Any) -> Any:
            procedure(job)
            raise ZeroDivisionError("of a mistake")

        with pytest.raises(ZeroDivisionError):
            federation.run(replace(plan, run=broken), name="run")
        run = RunFolder.open(federation.runs / "run")
        assert run.read_json("result.json")["reason"] == "unexpected ZeroDivisionError: of a mistake. This is a bug."
        assert run.read_json("result.json")["released"]
        result, _ = federation.resume(run.path)
        assert not isinstance(result, NoEstimate)


@pytest.mark.parametrize("place", PARTIES)
def test_a_party_that_is_lost_while_others_reserve_leaves_a_run_to_resume(tmp_path: Path, place: str) -> None:
    method = made("tables")
    with ready(tmp_path, method) as federation:
        back = lost(federation, place, "propose")
        with pytest.raises(PartyLost):
            federation.run(method, name="run")
        back()
        federation.resume(federation.runs / "run")
        for party in PARTIES:
            ledger = federation.transport[party].ledger  # type: ignore[index]
            stages = [stage for stage in federation.plan(method).stages if party in stage.costs]
            assert len(ledger.chain.rows(kind="reserve")) == len(stages), "each stage once"


@pytest.mark.parametrize("case", [case for case, (name, _) in CASES.items() if name in CATALOGUE.own()])
def test_a_drafted_folder_allows_what_own_methods_need(tmp_path: Path, case: str) -> None:
    method = made(case)
    with ready(tmp_path, method) as federation:
        assert set(unbounded_names(federation.plan(method))) <= set(WITHOUT_BOUND)


# --- a party that refuses after it passed the check --------------------------------------------------------------


@pytest.mark.parametrize("place", PARTIES)
def test_a_refusal_after_the_check_leaves_no_reservation_anywhere(tmp_path: Path, place: str) -> None:
    """What a party may spend has gone to another job, between its check and its proposal."""
    method = made("describe")
    with ready(tmp_path, method) as federation:
        party = federation.transport[place]  # type: ignore[index]
        check = federation.check

        def checked(plan: Any) -> None:
            check(plan)
            party.ledger.budget = co.Budget(epsilon=1e-4, delta=1e-9)

        federation.check = checked  # type: ignore[method-assign]
        with pytest.raises(BudgetExceeded):
            federation.run(method, name="run")
        for other in PARTIES:
            ledger = federation.transport[other].ledger  # type: ignore[index]
            assert ledger.costs() == []
            assert ledger.verify().rows == len(ledger.chain.rows())
            assert bool(ledger.chain.rows(kind="withdraw")) == (other != place)
        with pytest.raises(RunError, match="start a new run"):
            federation.resume(federation.runs / "run")
        federation.check, party.ledger.budget = check, None  # type: ignore[method-assign]
        federation.run(method, name="again")
        assert all(federation.transport[other].ledger.costs() for other in PARTIES)  # type: ignore[index]


def test_what_was_asked_is_never_withdrawn(tmp_path: Path) -> None:
    """An operator ends a job of which something was asked, and one of which nothing was."""
    method = made("describe")
    with ready(tmp_path, method) as federation:
        plan = federation.plan(method)
        bank, clinic = (federation.transport[party] for party in ("bank", "clinic"))  # type: ignore[index]
        with pytest.raises(KeyboardInterrupt), federation.open(plan, name="asked") as job:
            job.ask(plan.stages[0], parties=["bank"])
            raise KeyboardInterrupt
        assert clinic.ledger.debited(job.id) != bank.ledger.debited(job.id)
        spent = bank.ledger.costs()
        for party in (bank, clinic):
            party.end(job.id)
            party.ledger.verify()
        assert bank.ledger.costs() == spent
        assert clinic.ledger.costs() == []
        with pytest.raises(NotApproved):
            federation.resume(federation.runs / "asked")
        assert bank.ledger.costs() == spent
        assert federation.transport["court"].ledger.costs(), "the run was begun: it is not withdrawn"  # type: ignore[index]


# --- parties in processes of their own, and over the network ------------------------------------------------------


def under(federation: Federation, party: str, **policy: Any) -> None:
    """That party starts again under another policy."""
    file = Path(federation.transport.where(party)).parent / "party.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**settings, "policy": {**settings["policy"], **policy}}), encoding="utf-8")
    process = federation.transport._process(party)  # type: ignore[attr-defined]
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("transport", ["processes", "network"])
def test_elsewhere_too_what_is_refused_anywhere_is_reserved_nowhere(tmp_path: Path, transport: str) -> None:
    """Every method, refused by every party for want of an allowance or of budget."""
    with ready(tmp_path, made("describe"), transport=transport) as federation:
        for place, case in zip(PARTIES, ("exact regression", "tables", "describe"), strict=True):
            back = lost(federation, place, "check")
            with pytest.raises(PartyLost):
                federation.run(made(case), sure=True)
            back()
        plans = {case: federation.plan(made(case)) for case in CASES if not made(case).makes_cohort}
        for refusing in PARTIES:
            under(federation, refusing, allow=[], budget={"epsilon": 1e-4, "delta": 1e-9})
            for case, plan in plans.items():
                mine = [leaf for cost in plan.costs(refusing) for leaf in cost.leaves() if leaf.mechanism != "free"]
                if mine:
                    expected = UnboundedNotAllowed if any(leaf.unbounded for leaf in mine) else BudgetExceeded
                    with pytest.raises(expected):
                        federation.run(plan, sure=True)
                    assert ledgers(federation) == [0, 0, 0], case
            if refusing != PARTIES[-1]:
                under(federation, refusing, allow=list(ALLOWED), budget={"epsilon": 100.0, "delta": 1e-2})
        assert not federation.runs.exists() or not list(federation.runs.iterdir())

        federation.check = lambda plan: None  # type: ignore[method-assign]
        with pytest.raises(BudgetExceeded):
            federation.run(made("describe"), name="refused by one when the others have reserved")
        assert sorted(ledgers(federation))[0] == 0
        assert sorted(ledgers(federation))[1] > 0
        for place in PARTIES:
            with closing(Database(tmp_path / "home" / place / "party.db", read_only=True)) as database:
                assert Ledger(database, create=False).costs() == []


@pytest.mark.parametrize("transport", ["processes", "network"])
def test_elsewhere_too_few_records_and_a_small_epsilon_leave_a_result_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    """Every method on eight records, and every private one with a small epsilon too; none without its extra."""
    cases = [case for case in CASES if not made(case).makes_cohort]
    runs: list[tuple[str, dict[str, float]]] = [(case, {}) for case in cases]
    runs += [(case, {"epsilon": 0.05}) for case in SMALL_EPSILON if case in cases]
    with ready(tmp_path, made("describe"), few(8), transport=transport) as federation:
        find = importlib.util.find_spec
        before = ledgers(federation)
        for case in cases:
            if made(case).needed():
                with monkeypatch.context() as patched, pytest.raises(RunError, match="nothing was spent"):
                    patched.setattr(
                        importlib.util, "find_spec", lambda name, *more: None if name in EXTRAS else find(name, *more)
                    )
                    federation.run(made(case))
        assert ledgers(federation) == before
        for number, (case, options) in enumerate(runs):
            federation.runs = tmp_path / f"runs {number}"
            left_behind(federation, made(case, **options), report=False)  # reports are those of the embedded walk
