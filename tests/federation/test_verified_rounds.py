"""Rounds of noisy scores (`Classify`, private logistic regression) that are verified: one changed residue in each kind
of message is found before anything of its round is opened, and honest runs are as without verification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.errors import VerificationFailed
from colonnade.federation.party import Party
from colonnade.models.classify import Classify
from colonnade.models.glm import scores
from colonnade.models.glm.private import NoisyScores
from colonnade.models.glm.private_fit import NoisyInformation
from colonnade.models.glm.proof import ScoreProof
from colonnade.models.glm.scores import ScoreLayout
from colonnade.models.linear.regress import Regress
from colonnade.secure.bgw import Product
from colonnade.statistics import shares
from federation.test_verified_regress import changed, families, opened

COVARIATES = ("x", "v", "w")
ROUNDS = {"classify": 8, "regress": 11}


def rounds(method: str, verify: bool | str = "full") -> Any:
    if method == "classify":
        return Classify(response="sick", columns=COVARIATES, epsilon=4.0, solver="rounds", verify=verify)
    return Regress(response="sick", columns=COVARIATES, epsilon=20.0, family="binomial", verify=verify)


def found(federation: Any, method: str, words: str, *, openings: int) -> None:
    """A lie is found, when each of three holders has made so many openings."""
    before = opened(federation)
    with pytest.raises(VerificationFailed, match=words):
        rounds(method).fit(federation, sure=True)
    assert opened(federation) - before == 3 * openings


@pytest.mark.parametrize("method", ["classify", "regress"])
def test_honest_rounds_are_verified_and_give_the_same(tmp_path: Path, method: str) -> None:
    results, words = [], {}
    for verify in ("full", True, False):
        with families(tmp_path / str(verify), seed=4) as federation:
            plan = federation.plan(rounds(method, verify))
            concluded = [stage for stage in plan.stages if stage.step == "statistics.verified.conclude"]
            assert sum(stage.rounds for stage in concluded) == (ROUNDS[method] if verify == "full" else 0)
            free = {
                cost.mechanism for stage in plan.stages if "verified" in stage.step for cost in stage.costs.values()
            }
            assert free <= {"free"}
            (words[verify],) = (note for note in plan.notes if "erified" in note)
            fit = rounds(method, verify).fit(federation, sure=True)
            results.append(fit.coef_.tolist() if method == "classify" else (fit.params.tolist(), fit.bse.tolist()))
    assert results[0] == results[1] == results[2]
    assert words["full"].startswith("Verified, in every round: about ")
    assert "Not verified: " in words[True]
    assert 'verify="full" finds that' in words[True]
    assert words[False].startswith("Not verified: ")
    assert "full" not in words[False]


def test_rows_in_chunks_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "SHARE_BYTES", 1 << 17)
    monkeypatch.setattr(NoisyScores, "remembers", lambda self, size: False)
    with families(tmp_path, seed=4) as federation:
        plan = federation.plan(rounds("regress"))
        assert max(stage.rounds for stage in plan.stages if stage.name == "scores: share rows") > 6
        assert np.isfinite(rounds("regress").fit(federation, sure=True).params).all()


# --- lies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [0, 2])
def test_a_wrong_share_of_a_score_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: int) -> None:
    combine = ScoreLayout.combine

    def wrong(self: Any, me: Party, number: int) -> Any:
        share = combine(self, me, number)
        return changed(share, entry) if me.name == "B" and self.turn == 3 else share

    monkeypatch.setattr(ScoreLayout, "combine", wrong)
    with families(tmp_path) as federation:
        found(federation, "classify", "what was computed by 'B' is false", openings=3)


@pytest.mark.parametrize("entry", [4, -1])
def test_a_wrong_share_of_the_information_or_the_count_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: int
) -> None:
    combine = ScoreLayout.combine

    def wrong(self: Any, me: Party, number: int) -> Any:
        share = combine(self, me, number)
        return changed(share, entry) if me.name == "C" and isinstance(self, NoisyInformation) else share

    monkeypatch.setattr(ScoreLayout, "combine", wrong)
    with families(tmp_path) as federation:
        found(federation, "regress", "what was computed by 'C' is false", openings=6)


@pytest.mark.parametrize(
    ("kind", "level", "entry", "before"),
    [
        (NoisyScores, 1, 6, 0),  # a product of two parties' factors
        (NoisyScores, 1, 0, 0),  # ... at frequency 0, which carries presence
        (NoisyScores, 2, 6, 0),  # a residual
        (NoisyInformation, 1, 6, 6),
        (NoisyInformation, 2, 6, 6),  # the presence of a record
        (NoisyInformation, 2, 150 + 6, 6),  # its weight
        (NoisyInformation, 3, 6, 6),  # a weighted column
    ],
)
def test_a_wrong_product_dealt_again_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[NoisyScores], level: int, entry: int, before: int
) -> None:
    product = ScoreLayout._product

    def wrong(self: Any, me: Party, chunk: int, own: int) -> Product:
        true = product(self, me, chunk, own)
        lies = me.name == "A" and type(self) is kind and own == level
        return Product(true.field, changed(true._residues, entry)) if lies else true

    monkeypatch.setattr(ScoreLayout, "_product", wrong)
    with families(tmp_path) as federation:
        found(federation, "regress", "what was computed by 'A' is false", openings=before)


@pytest.mark.parametrize(("dealer", "turn"), [("C", 0), ("B", 0), ("C", 2), ("A", 2)])
def test_rows_and_factors_of_no_polynomial_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dealer: str, turn: int
) -> None:
    """In the first round also in the rows, which all later rounds use."""
    send, seen = shares._send_packed, dict[str, int]()

    def wrong(me: Party, holder: str, tag: str, packed: Any) -> None:
        if me.name == dealer and ": rows 0" in tag and seen.setdefault(tag, len(seen)) == turn:
            words = [layer.copy() for layer in packed.words]
            words[0][3] ^= np.uint64(1)
            packed = type(packed)(packed.field, packed.shape, words)
        send(me, holder, tag, packed)

    monkeypatch.setattr(shares, "_send_packed", wrong)
    with families(tmp_path) as federation:
        found(federation, "classify", "do not fit together", openings=turn)


@pytest.mark.parametrize("part", [": noise", ": noise, blind 1", ": masks", ": proof"])
def test_noise_masks_and_proofs_of_no_polynomial_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    send = Party.send

    def wrong(me: Party, recipient: str, tag: str, value: Any, *, each_round: bool = False) -> None:
        if (me.name, recipient) == ("B", "C") and tag.endswith(part) and isinstance(value, np.ndarray):
            value = changed(value, 2)
        send(me, recipient, tag, value, each_round=each_round)

    monkeypatch.setattr(Party, "send", wrong)
    with families(tmp_path) as federation:
        found(federation, "classify", "fit together|of no polynomial", openings=0)


# --- what these tests rest on --------------------------------------------------------------------------------


def test_without_the_check_a_lie_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    combine = ScoreLayout.combine

    def wrong(self: Any, me: Party, number: int) -> Any:
        share = combine(self, me, number)
        return changed(share, 1) if me.name == "B" and self.turn == ROUNDS["classify"] - 1 else share

    monkeypatch.setattr(ScoreLayout, "combine", wrong)
    with families(tmp_path) as federation:
        rounds("classify", verify=False).fit(federation, sure=True)
        assert opened(federation) == 3 * ROUNDS["classify"]


@pytest.mark.parametrize("skipped", ["factors", "counted"])
def test_without_a_part_of_the_claim_a_lie_in_it_goes_unnoticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skipped: str
) -> None:
    """Products of factors, and the count: lies in these are found because of their own part of the claim."""
    product, combine, uniform = ScoreLayout._product, ScoreLayout.combine, ScoreProof._uniform

    def multiplied(self: Any, me: Party, chunk: int, own: int) -> Product:
        true = product(self, me, chunk, own)
        last = self.label == "check"  # a wrong score before it leads out of range
        lies = me.name == "A" and own == 1 and skipped == "factors" and last
        return Product(true.field, changed(true._residues, 6)) if lies else true

    def combined(self: Any, me: Party, number: int) -> Any:
        share = combine(self, me, number)
        lies = me.name == "A" and isinstance(self, NoisyInformation) and skipped == "counted"
        return changed(share, -1) if lies else share

    def blind(self: Any, label: str, *shape: int) -> Any:
        drawn = uniform(self, label, *shape)
        left_out = "factor " if skipped == "factors" else "other sums"
        return np.zeros_like(drawn) if label.startswith(left_out) else drawn

    monkeypatch.setattr(ScoreLayout, "_product", multiplied)
    monkeypatch.setattr(ScoreLayout, "combine", combined)
    with families(tmp_path / "seeing") as federation:
        found(federation, "regress", "what was computed by 'A' is false", openings=10 if skipped == "factors" else 6)
    monkeypatch.setattr(ScoreProof, "_uniform", blind)
    with families(tmp_path / "blind") as federation:
        rounds("regress").fit(federation, sure=True)
        assert opened(federation) == 3 * ROUNDS["regress"]
