"""VCDS, EVCDS and IEVCDS at the border: what is refused, what is debited, what crosses, and odd data."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import BudgetExceeded, NotEstimable, UnboundedNotAllowed, UnknownColumn, UnsafeRequest
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.coordinator import Federation
from colonnade.federation.stage import stage
from colonnade.federation.step import Step
from colonnade.papers.vcds.method import EVCDS, IEVCDS, VCDS
from colonnade.papers.vcds.releases import PRESENCE, release_marginals, release_ranks
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import compose
from colonnade.privacy.ledger import Budget
from support.plans import plan_of_stages
from support.small import COLUMNS, three_overlapping_blocks, three_parties

Synthesizer = VCDS | EVCDS | IEVCDS
NOMINAL: dict[str, Any] = {"accounting": "nominal", "epsilon": 1.0, "noise": "skellam"}


def ledger(federation: Federation, party: str) -> Any:
    return federation.transport[party].ledger  # type: ignore[index]


# --- budgets and ledgers ---------------------------------------------------------------------------------


def test_presence_must_be_allowed_by_name(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation, pytest.raises(UnboundedNotAllowed):
        VCDS().fit(federation)


@pytest.mark.parametrize("kind", [VCDS, EVCDS, IEVCDS])
def test_an_ordinary_budget_refuses_a_nominal_epsilon_and_accepts_a_record_s(
    tmp_path: Path, kind: type[Synthesizer]
) -> None:
    budget = Budget(epsilon=3.0, delta=1e-6)
    with three_parties(tmp_path, allow=(PRESENCE,), budget=budget) as federation:
        nominal = kind(**NOMINAL)
        assert "accounting='record'" in federation.plan(nominal).text(), "the plan says the cure"
        with pytest.raises(BudgetExceeded):
            nominal.fit(federation)
        assert ledger(federation, "clinic").costs() == [], "nothing was reserved"
        assert not list((tmp_path / "runs").glob("*")), "and no run was begun"
        table = kind(epsilon=1.0, noise="skellam").fit(federation)
    assert len(table.sample()) == 60


def test_a_large_budget_covers_exactly_what_the_plan_says_it_needs(tmp_path: Path) -> None:
    """The plan names what each party's budget must cover; that much is enough, and 2 % less is not."""
    facts_only = tmp_path / "facts"
    with three_parties(facts_only) as federation:
        plan = federation.plan(VCDS(**NOMINAL))
        needed = max(
            guarantee([c for c in plan.costs(party) if not c.unbounded], delta=1e-6).epsilon
            for party in federation.facts.parties
        )
    assert needed > 20
    for number, (factor, refused) in enumerate(((0.98, True), (1.001, False))):
        budget = Budget(epsilon=needed * factor, delta=1e-6)
        with three_parties(tmp_path / str(number), allow=(PRESENCE,), budget=budget) as federation:
            if refused:
                with pytest.raises(BudgetExceeded):
                    VCDS(**NOMINAL).fit(federation)
            else:
                VCDS(**NOMINAL).fit(federation)


@pytest.mark.parametrize("made", [VCDS(**NOMINAL), EVCDS(**NOMINAL), IEVCDS(iterations=3, **NOMINAL)])
def test_ledgers_are_debited_at_record_level_with_all_that_was_planned(tmp_path: Path, made: Synthesizer) -> None:
    with three_parties(tmp_path, allow=(PRESENCE,)) as federation:
        table, run = federation.run(made)
        everything = []
        for party in federation.facts.parties:
            debited = ledger(federation, party).debited(run.job["job"])
            assert debited == compose(run.plan().costs(party))
            assert {leaf.unit for leaf in debited.leaves()} == {"record"}
            everything += [leaf for leaf in debited.leaves() if not leaf.unbounded]
        total = guarantee(everything, delta=1e-6, relation="replace")
    assert str(total) in table.cost  # type: ignore[attr-defined]
    assert table.details["units"]["record"] == str(total)  # type: ignore[attr-defined]
    assert total.epsilon > 10, "a nominal epsilon of 1 costs a record far more"
    assert any("protects no record" in note for note in table.notes)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("step", "arguments"),
    [
        (release_ranks, {"columns": ["age"], "epsilon_0": 0.1, "noise": "skellam"}),
        (
            release_marginals,
            {"columns": ["age"], "epsilon": 0.1, "method": "smooth", "order": 2, "degree": None},
        ),
    ],
    ids=["ranks", "marginals"],
)
def test_nothing_is_released_before_presence_was_debited(tmp_path: Path, step: Step, arguments: dict[str, Any]) -> None:
    """A plan with such a stage alone has only bounded costs, which hold for a fixed presence: the party itself must
    refuse. (A marginal of nobody is zeros without noise, so it tells none from one.)"""
    with three_parties(tmp_path, allow=()) as federation:
        alone = stage(
            "alone",
            step,
            {"clinic": [arguments]},
            facts=federation.facts,
            roster=federation.roster,
            discloses="a test",
        )
        with (
            pytest.raises(UnsafeRequest),
            federation.open(plan_of_stages("vcds", [alone])) as job,
        ):
            job.propose()
            job.ask(alone)
        outward = federation.transport["clinic"].transcript.rows(direction="out")  # type: ignore[index]
        assert not [row for row in outward if row.body["kind"] == "release"]


# --- what crosses the border -----------------------------------------------------------------------------


def test_no_raw_value_crosses_the_border(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Canaries that no noisy count or grid point equals by accident; three rounds send imputed values too."""
    n = 64
    blocks = {
        "clinic": pd.DataFrame({"id": [f"CANARY-{i}" for i in range(n)], "age": 77.123456789, "visits": 7}),
        "court": pd.DataFrame({"id": [f"CANARY-{i}" for i in range(0, n, 2)], "sued": "yes"}),
        "bank": pd.DataFrame({"id": [f"CANARY-{i}" for i in range(n // 2)], "sector": "mining", "rating": "B"}),
    }
    wire: list[bytes] = []
    with three_parties(tmp_path, blocks=blocks, allow=(PRESENCE,)) as federation:
        original = federation.transport.exchange

        def tapped(party: str, data: bytes, *, timeout: float) -> bytes:
            answer = original(party, data, timeout=timeout)
            wire.extend([data, answer])
            return answer

        monkeypatch.setattr(federation.transport, "exchange", tapped)
        IEVCDS(iterations=3, **NOMINAL).fit(federation)
    seen = b"\n".join(wire)
    assert b"visits" in seen, "the search itself works: public names do appear"
    for canary in (b"CANARY", b"77.123", struct.pack("<d", 77.123456789), struct.pack(">d", 77.123456789)):
        assert canary not in seen


def test_message_sizes_depend_on_public_facts_only(tmp_path: Path) -> None:
    """Same columns and n, other values and other presence: the same structure, byte counts included."""
    shapes = []
    for number, seed in enumerate((1, 2)):
        blocks = three_overlapping_blocks(60, seed=seed)
        if number:
            blocks["court"] = blocks["court"].iloc[:30]
        with three_parties(tmp_path / str(number), blocks=blocks, allow=(PRESENCE,)) as federation:
            run = federation.run(VCDS(**NOMINAL))[1]
            here = federation.transport["court"]  # type: ignore[index]
            rows = here.transcript.rows(direction="out")
            assert run.job["state"] == "done"
            shapes.append([(row.body["step"], row.body["bytes"]) for row in rows if row.body["kind"] == "release"])
    assert len(shapes[0]) == 3
    # The release of ranks is an array of 64-bit numbers, that of marginals one of doubles: their sizes are fixed.
    assert shapes[0] == shapes[1]


def test_a_seed_makes_the_same_table_and_says_that_it_is_simulated(tmp_path: Path) -> None:
    tables = []
    for number in range(2):
        with three_parties(tmp_path / str(number), allow=(PRESENCE,), seed=5) as federation:
            table = IEVCDS(iterations=2, sampler="adjusted", **NOMINAL).fit(federation)
            assert table.simulated
            tables.append(table.sample())
    pd.testing.assert_frame_equal(tables[0], tables[1])


def test_a_run_folder_names_its_method_and_holds_the_table(tmp_path: Path) -> None:
    with three_parties(tmp_path, allow=(PRESENCE,)) as federation:
        _, run = federation.run(EVCDS(rows=25, file_format="csv", **NOMINAL))
    again = CATALOGUE.make(run.job["method"], run.job["options"])
    assert isinstance(again, EVCDS)
    assert again.options() == run.job["options"]
    assert len(pd.read_csv(run.path / "synthetic.csv")) == 25
    result = run.read_json("result.json")
    assert result["details"]["accounting"] == "nominal"
    assert set(result["details"]["units"]) == {"nominal", "record", "blocks", "ranks_of_a_record_exactly"}


# --- odd data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [VCDS, EVCDS, IEVCDS])
@pytest.mark.parametrize("noise", ["exact", "skellam"])
def test_all_kinds_of_columns_come_back_in_their_domains(tmp_path: Path, kind: type[Synthesizer], noise: str) -> None:
    with three_parties(tmp_path, allow=(PRESENCE,)) as federation:
        table = kind(epsilon=2.0, accounting="nominal", noise=noise).fit(federation)  # type: ignore[arg-type]
    rows = table.sample(500)
    assert list(rows) == ["age", "visits", "sued", "sector", "rating"]
    for name in rows:
        COLUMNS[name].encode(rows[name])  # refuses a value outside the domain, or an empty one
    assert not rows.isna().any().any()


def test_two_records_and_one_category(tmp_path: Path) -> None:
    """Two records can be ranked but no correlation measured: the columns come out independent, and it is said."""
    columns = Columns(
        [
            Column(name="x", kind="continuous", lower=0.0, upper=1.0),
            Column(name="one", kind="categorical", categories=("only",)),
            Column(name="long", kind="count", lower=0, upper=5000),
        ]
    )
    blocks = {
        "a": pd.DataFrame({"id": [1, 2], "x": [0.2, 0.9]}),
        "b": pd.DataFrame({"id": [1, 2], "one": ["only", "only"], "long": [3, 4000]}),
    }
    with Federation.local(
        blocks, key="id", columns=columns, home=tmp_path / "h", runs=tmp_path / "r", allow=(PRESENCE,), holder="other"
    ) as federation:
        for made in (VCDS(**NOMINAL), EVCDS(**NOMINAL), IEVCDS(iterations=2, **NOMINAL), VCDS(noise="exact")):
            table = made.fit(federation)  # type: ignore[attr-defined]
            rows = table.sample(200)
            assert set(rows["one"]) == {"only"}
            assert rows["x"].between(0, 1).all()
            assert rows["long"].between(0, 5000).all()
            assert len(table.details["unmeasured_pairs"]) == 3


def test_a_column_that_nobody_has_is_refused_by_name_before_ranks_are_asked_for(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": range(40), "x": np.linspace(0, 1, 40), "void": [None] * 40})
    columns = Columns(
        [
            Column(name="x", kind="continuous", lower=0.0, upper=1.0),
            Column(name="void", kind="continuous", lower=0.0, upper=1.0, missing=True),
        ]
    )
    here = {"key": "id", "columns": columns, "home": tmp_path / "h", "runs": tmp_path / "r", "allow": (PRESENCE,)}
    with Federation.local({"a": frame}, **here) as federation:  # type: ignore[arg-type]
        with pytest.raises(NotEstimable, match=r"'void'.*columns="):
            VCDS(**NOMINAL).fit(federation)
        outward = federation.transport["a"].transcript.rows(direction="out")  # type: ignore[index]
        assert not [row for row in outward if str(row.body["step"]).endswith("release_ranks")]
        assert list(VCDS(columns=("x",), **NOMINAL).fit(federation).sample(5)) == ["x"]
        with pytest.raises(UnknownColumn, match="wage"):
            VCDS(columns=("wage",)).fit(federation)


def test_empty_cells_are_absent_records_of_their_column(tmp_path: Path) -> None:
    """Half of the cells are empty: the column is ranked among the others, and no cell of the table is empty."""
    n = 200
    x = np.random.default_rng(1).random(n)
    frame = pd.DataFrame({"id": range(n), "x": x, "y": np.where(np.arange(n) % 2, x, np.nan)})
    columns = Columns([Column(name=c, kind="continuous", lower=0.0, upper=1.0, missing=c == "y") for c in ("x", "y")])
    here = {"key": "id", "columns": columns, "home": tmp_path / "h", "runs": tmp_path / "r", "allow": (PRESENCE,)}
    with Federation.local({"a": frame}, **here) as federation:  # type: ignore[arg-type]
        for made in (VCDS, EVCDS, IEVCDS):
            table = made(epsilon=40.0, accounting="nominal", split="none").fit(federation)
            rows = table.sample(2000)
            assert rows.corr(method="spearman").iloc[0, 1] > 0.9, made.name
            assert not rows.isna().any().any()
