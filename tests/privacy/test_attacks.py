"""`colonnade audit`: our claims stand, papers' claims that are false fall, and planted bugs are found.

More runs and more bugs for each mechanism are in the audits beside this file, which use the same attacks.
"""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from colonnade.audit.attack import as_expected, attacked, audit_method
from colonnade.audit.claims import small_consortium
from colonnade.audit.planted import NOTHING, Planted
from colonnade.catalogue import CATALOGUE
from colonnade.cli.main import app
from colonnade.errors import BadArguments
from support.plans import own_methods

runner = CliRunner()


@pytest.mark.parametrize(
    "name", ["align", "describe", "presence-total", "vertimrf", "regress", "complete", "fedpsg", "vcds"]
)
def test_our_claims_stand_and_papers_fall(name: str) -> None:
    found = list(audit_method(name, seed=3))
    assert as_expected(found), [str(one) for one in found]
    for one in found:
        assert one.refuted or one.epsilon_lower_bound <= one.claimed_epsilon
        assert one.epsilon_lower_bound > 0 or one.attack == "membership in one run"
        assert one.power is None or one.power > 0.99


@pytest.mark.parametrize(
    ("name", "bug", "attacks", "effort"),
    [
        ("align", "noise/1.4", 1, 1.0),
        ("describe", "noise/1.4", 3, 1.0),
        ("describe", "noise/10", 4, 0.3),  # one run is attacked only where it can notice the bug
        ("regress", "forgotten-split", 3, 1.0),
        ("complete", "noise/1.4", 1, 1.0),
        ("fedpsg", "noise/1.4", 1, 1.0),
        ("vertimrf", "noise/1.4", 1, 1.0),
        ("presence-total", "silent-member", 1, 1.0),
    ],
)
def test_planted_bugs_are_found_by_every_attack_that_is_run(name: str, bug: str, attacks: int, effort: float) -> None:
    found = list(audit_method(name, planted=Planted.parse(bug), effort=effort, seed=4))
    assert [one.verdict for one in found] == ["found"] * attacks
    assert all(one.power is None or one.power > 0.999 for one in found)


OPTIONS = {
    "align": {"capacity": {"clinic": 60, "court": 60, "bank": 60}},
    "blind-rsa": {"capacity": {"clinic": 60, "court": 60, "bank": 60}, "include": "bank", "epsilon": 1.0},
    "regress": {"response": "age", "epsilon": 4.0},
    "select": {"response": "age", "epsilon": 4.0},
    "complete": {"epsilon": 4.0, "batch": 16, "local": 2},
    "classify": {"response": "sued"},
    "tables": {"tables": (("sued", "rating"),)},
    "polynomial-sum": {"polynomial": {"outputs": [[[1.0, {"sued": 1}]]]}},
    "vfem": {"response": "age"},
    "fedpsg": {"epsilon": 4.0, "n_correlated": 0, "batch": 16, "local": 2},
    "vfl-glm-vs": {"response": "age"},
    "sqm-logistic": {"response": "sued"},
}


@pytest.mark.parametrize("name", sorted(own_methods()))
def test_what_costs_epsilon_can_be_audited(name: str) -> None:
    method = CATALOGUE.make(name, OPTIONS.get(name, {}))
    with small_consortium() as federation:
        leaves = [leaf for cost in federation.plan(method).costs() for leaf in cost.leaves()]
    bounded = any(not leaf.unbounded and leaf.mechanism != "free" for leaf in leaves)
    assert bounded == bool(method.attacks() or method.rests_on)


def test_what_rests_on_moments_is_audited_through_them() -> None:
    assert {one.method for one in audit_method("pca", effort=0.01)} == {"moments"}
    with pytest.raises(BadArguments, match="cannot be planted"):
        list(audit_method("evcds", planted=Planted.parse("noise/1.4")))


def test_the_command_prints_claims_beside_bounds_and_its_exit_code_says_whether_all_is_well() -> None:
    done = runner.invoke(app, ["audit", "vertimrf"])
    assert done.exit_code == 0, done.output
    for words in (
        "epsilon claimed",
        "proved at least",
        "Theorem 3 as printed",
        "REFUTED",
        "1 of 1 claims of ours stand",
    ):
        assert words in done.output
    told = json.loads(runner.invoke(app, ["audit", "vcds", "--json"]).output)
    assert told["as_expected"]
    assert told["findings"][0]["verdict"] == "REFUTED"
    missed = runner.invoke(app, ["audit", "vertimrf", "--planted", "noise/1.01", "--effort", "0.01"])
    assert missed.exit_code == 4
    assert "NOT found" in missed.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "it has align, describe"),
        (["describe", "--planted", "silent-member"], "each party adds its own noise"),
        (["vcds", "--planted", "noise/1.4"], "its claim falls as it is"),
        (["describe", "--planted", "less"], "no bug to plant"),
        (["describe", "--effort", "0"], "effort must lie"),
    ],
)
def test_bad_arguments_name_the_cure(arguments: list[str], words: str) -> None:
    done = runner.invoke(app, ["audit", *arguments])
    assert done.exit_code == 2
    assert words in done.output


def test_a_planted_bug_says_what_it_is() -> None:
    assert str(NOTHING) == "nothing"
    assert str(Planted.parse("noise/1.4")) == "noise / 1.4"
    assert Planted.parse("silent-member").effective == pytest.approx(1.5**0.5)
    assert Planted.parse("forgotten-split").factor == pytest.approx(2**0.5)
    with pytest.raises(BadArguments):
        Planted(factor=0.0)
    assert set(attacked()) >= {"describe", "moments", "tables", "synthesize", "vcds", "vertimrf", "regress"}
