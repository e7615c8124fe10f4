"""The claim of `completion/claim.md` on private training: its costs, its batches, and that its audit is a hard one.

`colonnade audit complete` and `audit fedpsg` try to refute it (`completion/attacks.py`); `test_attacks.py` shows that
it stands and that too little noise is found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colonnade as co
from colonnade.completion.attacks import moved_by
from colonnade.completion.method import CompletionMethod
from colonnade.completion.split.training import GAMMA, sensitivity
from colonnade.errors import BadArguments, NotEstimable, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.papers.fedpsg.method import FedPSG
from colonnade.privacy.accounting import guarantee
from support.split import curved_pair, regression_of

ALLOW = ("presence", "split-training", "completion-quality", "labels")
DELTA, EPOCHS = 1e-6, 2
SMALL: dict[str, Any] = {"epochs": EPOCHS, "batch": 16, "hidden": 2, "cut": 2, "local": 2, "iterations": 40}


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Any:
    blocks, columns = curved_pair(120)
    with co.Federation.local(
        blocks, key="id", columns=columns, seed=1, allow=ALLOW, home=tmp_path_factory.mktemp("h")
    ) as opened:
        yield opened


def _method(imputer: str, **more: Any) -> CompletionMethod:
    if imputer == "regression":
        return co.Complete(delta=DELTA, **SMALL, **more)
    return FedPSG(imputer=imputer, n_correlated=0, delta=DELTA, **SMALL, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("imputer", "more"),
    [
        ("regression", {}),
        ("gain", {"condition": "none"}),
        ("vgain", {"condition": "aligned"}),
        ("cgain", {"condition": "none", "label": "kind"}),
    ],
)
def test_all_weights_of_all_parties_together_cost_epsilon(consortium: Any, imputer: Any, more: Any) -> None:
    """Every release of the plan with a bound, composed over parties, trainings and epochs; in both relations."""
    method = _method(imputer, epsilon=4.0, **more)
    bounded = [
        leaf
        for stage in consortium.plan(method).stages
        for cost in stage.costs.values()
        for leaf in cost.leaves()
        if not leaf.unbounded and leaf.mechanism == "skellam"
    ]
    total = guarantee(bounded, delta=DELTA)
    assert 3.5 < total.epsilon <= 4.0
    assert 4.0 < guarantee(bounded, delta=DELTA, relation="replace").epsilon < 20.0


def test_nothing_else_is_trained_privately() -> None:
    for wrong in ({"imputer": "mice"}, {"label": "kind"}):
        with pytest.raises(BadArguments, match="epsilon is for"):
            co.Complete(epsilon=1.0, **wrong)  # type: ignore[arg-type]
    for wrong in ({"imputer": "mice"}, {"n_correlated": 2}, {"label": "kind"}):
        with pytest.raises(BadArguments, match="epsilon is for"):
            FedPSG(**{"epsilon": 1.0, "n_correlated": 0, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "local"), [(100, 1), (103, 4), (333, 5), (32, 3)])
def test_a_record_is_in_at_most_one_batch_of_an_epoch(rows: int, local: int) -> None:
    """Over all rounds that are made, no record is drawn more often than there are epochs; one round more is refused."""
    training = regression_of(mu=1, gamma=GAMMA, clip=1.0, epochs=3, batch=32, local=local, iterations=1000)
    here = np.arange(1000, 1000 + rows)
    rounds = training.rounds_for(rows)
    drawn = np.concatenate([training.batches(here, number).reshape(-1) for number in range(rounds)])
    assert np.bincount(drawn - 1000).max() <= 3
    assert len(drawn) > 2 * (rows // 32) * 32 - 32 * local
    with pytest.raises(UnsafeRequest, match="epochs"):
        training.batches(here, rounds + 1)
    with pytest.raises(NotEstimable, match="fewer records than a batch"):
        training.batches(here[:20], 0)


# --- the audit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("imputer", ["regression", "gain"])
def test_the_audit_attacks_with_the_most_that_a_record_can_do(consortium: Any, imputer: Any) -> None:
    """Its record moves every sum by nearly the stated sensitivity, and never by more."""
    more = {"condition": "none"} if imputer == "gain" else {}
    method = _method(imputer, epsilon=3.0, parties=("right",), **more)
    facts: PublicFacts = consortium.facts
    (training,) = method.procedure(facts, consortium.roster).networks  # type: ignore[attr-defined]
    for party in training.parties:
        weights = training.weights(facts, party)
        length = float(np.linalg.norm(moved_by(training, weights)))
        assert 0.999 * training.gamma < length <= sensitivity(training, weights)
