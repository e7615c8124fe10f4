"""Which model a table gets: from declared columns, n and epsilon alone; the plan and the table say which and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.synthesis.choice import choose
from colonnade.synthesis.inference import contrast, quantile, share
from colonnade.synthesis.table import NOT_STUDIED
from colonnade.view.blocks import Text
from support.small import three_parties

NUMBERS = [Column(name=f"x{place}", kind="continuous", lower=0, upper=1) for place in range(5)]
MANY = [Column(name=f"x{place}", kind="continuous", lower=0, upper=10) for place in range(10)]
LISTED = [Column(name=f"b{place}", kind="binary", categories=("no", "yes")) for place in range(2)]
NOMINAL = [Column(name="region", kind="categorical", categories=("n", "e", "s", "w"))]


def facts(columns: list[Column], n: int) -> PublicFacts:
    parts = [columns[place::3] for place in range(3)]
    return PublicFacts(n=n, columns={party: Columns(part) for party, part in zip("abc", parts, strict=True)})


def roster() -> Roster:
    members = tuple(Member(name=name, organisation=name, public_key=name.encode() * 32) for name in "abc")
    return Roster(members=members, committee=("a", "b", "c"), threshold=1, colluders=1)


@pytest.mark.parametrize(
    ("columns", "n", "epsilon", "begins"),
    [
        (NUMBERS, 20_000, 1.0, "Model: a Gaussian copula, because all columns are numbers"),
        (NUMBERS, 500, 0.5, "Model: independent marginals, because anything else would be worse"),
        (NUMBERS + LISTED, 20_000, 1.0, "Model: a Markov random field, because the table has numbers and categories"),
        (MANY + LISTED, 3_000, 1.0, "Model: a Gaussian copula, because noise alone would move a table"),
        (NUMBERS + LISTED, 300, 0.5, "Model: independent marginals"),
        (NUMBERS + NOMINAL, 20_000, 1.0, "Model: a Markov random field, because region has no order"),
        (NUMBERS + NOMINAL, 500, 0.5, "Model: independent marginals"),
        (NUMBERS + NOMINAL, 500, None, "Model: a Markov random field"),
    ],
)
def test_the_rule(columns: list[Column], n: int, epsilon: float | None, begins: str) -> None:
    choice = choose(co.Synthesize(epsilon=epsilon, verify=False), facts(columns, n), roster())
    assert choice.because.startswith(begins)
    assert bool(choice.warning) == ("independent" in begins)


def test_what_was_asked_for_is_done_and_warned_of() -> None:
    def chosen(n: int = 20_000, **options: Any) -> Any:
        return choose(co.Synthesize(verify=False, **options), facts(NUMBERS + NOMINAL, n), roster())

    assert "association along the declared order" in chosen(model="copula").warning
    for model in ("field", "copula"):
        named = chosen(model=model, n=400, epsilon=0.5)
        assert "as asked for" in named.because
        assert "worse than independent" in named.warning
        assert "worse than independent" not in chosen(model=model).warning
    assert not chosen(model="field").warning
    assert "because presence belongs to it" in chosen(presence="known").because
    assert "association along the declared order" in chosen(presence="known").warning
    assert "because cells belongs to it" in chosen(cells=8).because
    with pytest.raises(BadArguments, match="leave one of them out"):
        co.Synthesize(presence="known", cells=8)


@pytest.mark.parametrize("option", [{"cells": 8}, {"moment_share": 0.25}, {"presence": "known"}, {"clip": {"a": 1.0}}])
def test_an_option_of_a_model_does_not_make_a_table_worse_than_independent_marginals(option: dict[str, Any]) -> None:
    choice = choose(co.Synthesize(verify=False, epsilon=0.5, **option), facts(NUMBERS + NOMINAL, 400), roster())
    assert choice.because.startswith("Model: independent marginals")
    assert f"{next(iter(option))} is not used." in choice.warning
    assert [stage.name for stage in choice.procedure.stages] == ["marginals"]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("field", "not for contrasts, quantiles and functions of your own, nor where blocks are missing"),
        ("copula", "how often they cover was not studied"),
        ("independent", "nothing about two columns together is"),
    ],
)
def test_plan_and_report_say_for_which_estimates_intervals_are_valid(tmp_path: Path, model: str, says: str) -> None:
    with three_parties(tmp_path, seed=1) as federation:
        method = co.Synthesize(model=model, epsilon=40.0, delta=1e-4, columns=("visits", "sued"), verify=False)
        plan = federation.plan(method)
        table = method.fit(federation)
    assert says in plan.text().replace("\n", " ")
    assert any(says in block.text for block in table.view().answer if isinstance(block, Text))
    studied = NOT_STUDIED not in table.analyse(share("sued", "yes"), draws=2, unproven=True).attrs["valid for"]
    assert studied == (model == "field")
    assert NOT_STUDIED in table.analyse(quantile("visits", 0.5), draws=2, unproven=True).attrs["valid for"]
    assert (
        NOT_STUDIED in table.analyse(contrast("visits", "sued", "yes", "no"), draws=2, unproven=True).attrs["valid for"]
    )


def test_the_plan_and_the_table_say_it_first(tmp_path: Path) -> None:
    with three_parties(tmp_path, seed=1) as federation:
        method = co.Synthesize(epsilon=2.0, delta=1e-4, rows=40, constraints=("visits <= 5",))
        plan = federation.plan(method)
        table = method.fit(federation)
    assert plan.notes[0].startswith("Model: independent marginals")
    assert "In every row: visits <= 5" in plan.text()
    assert [stage.name for stage in plan.stages] == ["marginals"]
    assert table.because == plan.notes[0]
    assert table.view().warnings[0] == table.because
    assert repr(table).startswith("WARNING: Model: independent marginals")
    assert (table.sample()["visits"] <= 5).all()
    assert table.to_dict()["because"] == table.because


def test_contradictory_facts_are_refused_in_the_plan(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation, pytest.raises(BadArguments, match="no row can satisfy"):
        federation.plan(co.Synthesize(constraints=("visits < 3", "visits > 4")))
