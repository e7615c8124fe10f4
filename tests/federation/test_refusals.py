"""A refusal says what to do where the user is, nothing is spent by it, and following it works."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import colonnade as co
from colonnade.errors import BudgetExceeded, RunError, UnboundedNotAllowed
from colonnade.federation.job import proposal, refusal
from colonnade.federation.messages import Reply, Request
from colonnade.federation.policy import Policy
from colonnade.privacy.ledger import rounded_up
from support.small import three_parties


def spent(federation: co.Federation) -> list[int]:
    return [len(federation.transport[party].ledger.chain.rows()) for party in federation.roster.names]  # type: ignore[index]


@pytest.mark.parametrize(
    "method",
    [co.Regress(response="age"), co.Moments(epsilon=None), co.Moments(epsilon=5.0), co.Select(response="age")],
    ids=lambda method: method.name,
)
def test_all_names_are_printed_as_the_line_to_paste_and_pasting_it_works(tmp_path: Path, method: Any) -> None:
    """Its line takes the place of the one before: what was allowed for other jobs stays allowed."""
    allowed = ("exact-moments", "split-training") if method.name == "regress" else ("split-training",)
    with three_parties(tmp_path / "before", seed=1, allow=allowed) as federation:
        with pytest.raises(UnboundedNotAllowed) as refused:
            federation.run(method)
        assert not any(spent(federation)), "nothing was reserved"
        assert not (tmp_path / "before" / "runs").exists() or not list((tmp_path / "before" / "runs").iterdir())
    line = re.search(r"allow = \[(.*?)\]", str(refused.value))
    assert line is not None
    names = tuple(name.strip('"') for name in line.group(1).split(", "))
    assert set(allowed) <= set(names)
    with three_parties(tmp_path / "after", seed=1, allow=names) as federation:
        federation.check(federation.plan(method))


@pytest.mark.parametrize("transport", ["embedded", "processes"])
def test_a_local_refusal_quotes_the_partys_own_sentence(tmp_path: Path, transport: str) -> None:
    budget = co.Budget(epsilon=0.5, delta=1e-6)
    with three_parties(tmp_path, seed=1, budget=budget, transport=transport) as federation:
        with pytest.raises(
            BudgetExceeded, match=r"to epsilon 0\.59\d* at delta 1e-06, above the budget of 0\.5, of which"
        ):
            federation.run(co.Describe(epsilon=1.0))
        federation.run(co.Describe(epsilon=0.4))


def test_elsewhere_a_refusal_tells_names_and_a_rounded_budget_and_no_more(tmp_path: Path) -> None:
    class Elsewhere:
        def where(self, party: str) -> str:
            return f"the log in the folder of {party!r}"

    with three_parties(tmp_path, seed=1, budget=co.Budget(epsilon=0.5, delta=1e-6)) as federation:
        overheard: list[Reply] = []
        exchange: Callable[..., bytes] = federation.transport.exchange

        def listening(party: str, data: bytes, *, timeout: float) -> bytes:
            reply = exchange(party, data, timeout=timeout)
            overheard.append(Reply.decode(reply))
            return reply

        federation.transport.exchange = listening  # type: ignore[method-assign]
        for method in (co.Describe(epsilon=1.0), co.Regress(response="age")):
            with pytest.raises((BudgetExceeded, UnboundedNotAllowed)):
                federation.run(method)
        told = {reply.error: reply.value for reply in overheard if reply.error}
        assert told == {
            "budget-exceeded": "less than epsilon 0.6 is left of the budget; ask for less, or ask its operator to raise"
            " it.",
            "unbounded-not-allowed": 'not allowed here: "exact-moments", "presence".',
        }
        error = refusal(Elsewhere(), "clinic", overheard[-1])  # type: ignore[arg-type]
        assert str(error) == (
            'party \'clinic\' refused (unbounded-not-allowed): not allowed here: "exact-moments", "presence".'
        )


def test_what_a_hostile_party_tells_is_shown_short_and_printable(tmp_path: Path) -> None:
    class Elsewhere:
        def where(self, party: str) -> str:
            return "its log"

    escape = Reply(error="budget-exceeded", value="\x1b[2Jfree")
    assert "\x1b" not in str(refusal(Elsewhere(), "clinic", escape))  # type: ignore[arg-type]
    long = Reply(error="budget-exceeded", value="x" * 10**6)
    assert len(str(refusal(Elsewhere(), "clinic", long))) < 300  # type: ignore[arg-type]


def test_a_policy_may_keep_to_codes(tmp_path: Path) -> None:
    with three_parties(tmp_path, seed=1) as federation:
        here = federation.transport["clinic"]  # type: ignore[index]
        here.policy = Policy(approve="auto", tells="code")
        plan = federation.plan(co.Moments(epsilon=None))
        arguments = proposal(plan, federation.roster, federation.facts, federation.seed)
        reply = Reply.decode(here.handle(Request(kind="check", arguments=arguments).encode()))
        assert (reply.error, reply.value) == ("unbounded-not-allowed", None)


@pytest.mark.parametrize(("left", "told"), [(0.0, 0.0), (1.895, 2.0), (2.0, 3.0), (0.0301, 0.04), (0.999, 1.0)])
def test_a_budget_is_told_to_one_digit_upwards(left: float, told: float) -> None:
    assert rounded_up(left) == pytest.approx(told)


@pytest.mark.parametrize(
    ("method", "package", "extra"),
    [
        (co.Complete(), "optax", "completion"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_missing_extra_is_found_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any, package: str, extra: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else find(name, *more))
    with three_parties(tmp_path, seed=1) as federation:
        with pytest.raises(RunError, match=rf"needs {package}.*nothing was spent. Install colonnade\[{extra}\]"):
            federation.run(method)
        assert not any(spent(federation))
