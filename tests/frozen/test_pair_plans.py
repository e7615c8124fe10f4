"""What two institutions alone plan: the same requests at the same cost as when `pair.json` was written.

A change there must be meant; then write the file again: PYTHONPATH=tests python -m frozen.test_pair_plans
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.errors import ColonnadeError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.method import Method
from colonnade.federation.roster import Member, Roster

FILE = Path(__file__).parent / "pair.json"
COURT = [
    Column(name="sued", kind="binary", categories=("no", "yes")),
    Column(name="damages", kind="count", lower=0, upper=5000),
]
BANK = [
    Column(name="sector", kind="categorical", categories=("farming", "trade", "mining")),
    Column(name="rating", kind="ordinal", categories=("C", "B", "A")),
    Column(name="income", kind="continuous", lower=0.0, upper=90.0),
]
PRODUCT = co.Polynomial.of([(1.0, {"damages": 1, "income": 2}), (-2, {"sued": 1})])
METHODS: dict[str, Method[Any]] = {
    "moments": co.Moments(epsilon=1.0),
    "moments-exact": co.Moments(epsilon=None, presence="ignore"),
    "tables": co.Tables(tables=(("sued", "sector"), ("rating", "damages")), epsilon=1.0),
    "polynomial": co.PolynomialSum(polynomial=PRODUCT, epsilon=1.0),
    "regress": co.Regress(response="damages", columns=("income", "sued")),
    "regress-em": co.Regress(response="damages", columns=("income", "sued"), missing="em"),
    "regress-private": co.Regress(response="damages", columns=("income", "sued"), epsilon=2.0),
    "regress-binomial": co.Regress(response="sued", columns=("income", "damages"), family="binomial"),
    "copula": co.Synthesize(model="copula", epsilon=1.0),
    "field": co.Synthesize(model="field", epsilon=1.0),
    "select": co.Select(response="damages", epsilon=2.0),
}


def planned(method: Method[Any]) -> dict[str, Any]:
    """Requests, costs and audiences without words, or the class of the error that refuses them."""
    members = tuple(
        Member(name=name, organisation=name, public_key=bytes([key]) * 32) for key, name in enumerate(("court", "bank"))
    )
    facts = PublicFacts(n=800, columns={"court": Columns(COURT), "bank": Columns(BANK)})
    try:
        plan = method.plan(facts, Roster(members=members, committee=(), pair=True))
    except ColonnadeError as error:
        return {"refused": type(error).__name__}
    stages = [stage.to_dict() for stage in plan.stages]
    for stage in stages:
        del stage["discloses"]
    written: dict[str, Any] = json.loads(json.dumps({"stages": stages, "total": str(plan.total())}))
    return written


@pytest.mark.parametrize("name", METHODS)
def test_a_pair_plans_what_it_planned(name: str) -> None:
    assert planned(METHODS[name]) == json.loads(FILE.read_text(encoding="utf-8"))[name]


if __name__ == "__main__":
    texts = [f'"{name}": {json.dumps(planned(method))}' for name, method in METHODS.items()]
    FILE.write_text("{\n" + ",\n".join(texts) + "\n}\n", encoding="utf-8")
