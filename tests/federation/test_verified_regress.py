"""Regressions whose openings are verified: lies in each thing that a holder deals, opens or proves are found before
anything is opened, and honest runs are as without it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import VerificationFailed
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Progress
from colonnade.federation.party import Party
from colonnade.models.glm.scores import ScoreLayout
from colonnade.models.linear import weighted
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.weighted import InfluenceLayout, WeightedLayout
from colonnade.secure.bgw import Product
from colonnade.statistics import shares

RECORDS = 300
NAMES = ("a1", "a2", "b1", "b2", "c1", "y")
COLUMNS = Columns(
    [
        *(Column(name=name, kind="continuous", lower=-4.0, upper=4.0) for name in NAMES),
        Column(name="branch", kind="categorical", categories=("north", "south", "east")),
        Column(name="size", kind="continuous", lower=0.0, upper=5.0),
    ]
)
MAIN = Regress(response="y", columns=NAMES[:-1])


def blocks() -> dict[str, pd.DataFrame]:
    """C holds the response and lacks nothing; A and B lack a fifth each, so that pairs have weights."""
    rng = np.random.default_rng(3)
    z = np.clip(rng.normal(size=(RECORDS, 6)) @ (np.eye(6) + 0.3), -3.9, 3.9)
    frame = pd.DataFrame(z, columns=list(NAMES))
    frame["y"] = np.clip(0.5 * frame.a1 - 0.3 * frame.b1 + 0.4 * frame.c1 + rng.normal(size=RECORDS), -3.9, 3.9)
    frame["branch"], frame["size"] = rng.choice(["north", "south", "east"], RECORDS), rng.uniform(0.5, 4, RECORDS)
    frame.insert(0, "id", [f"K{i}" for i in range(RECORDS)])
    late = rng.uniform(size=(2, RECORDS)) < 0.2 / (1 + np.exp(-frame.y.to_numpy()))
    return {
        "A": frame.loc[~late[0], ["id", "a1", "a2"]],
        "B": frame.loc[~late[1], ["id", "b1", "b2", "branch"]],
        "C": frame[["id", "c1", "y", "size"]],
    }


def parties(root: Path, **options: Any) -> Federation:
    stated = {"key": "id", "columns": COLUMNS, "home": root / "home", "runs": root / "runs"}
    allowed = ("presence", "exact-moments", "exact-scores", "cluster-groups")
    return Federation.local(blocks(), allow=allowed, **stated, **options)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with parties(tmp_path) as federation:
        yield federation


def opened(federation: Federation) -> int:
    """How many shares the holders have let go."""
    members = [federation.transport[name] for name in federation.roster.committee]  # type: ignore[index]
    rows = (row.body for member in members for row in member.transcript.rows(direction="out"))
    return sum(body["kind"] == "release" and body["step"].endswith("open_shares") for body in rows)


def refused(federation: Federation, method: Regress, words: str, *, openings: int) -> None:
    """The lie is found, when each of three holders has made so many openings."""
    before = opened(federation)
    with pytest.raises(VerificationFailed, match=words):
        method.fit(federation)
    assert opened(federation) - before == 3 * openings


def changed(residues: Any, entry: int = 0) -> Any:
    """One number of an array of residues other than it should be."""
    wrong = residues.copy()
    flat = wrong.reshape(len(wrong), -1)
    flat[-1, entry % flat.shape[1]] ^= 1
    return wrong


# --- honest runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"clusters": "branch"}, {"weights": "size"}])
def test_an_honest_regression_is_verified_and_gives_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    results = []
    for verify in (True, False):
        method = Regress(**{**MAIN.get_params(), **options, "verify": verify})
        with parties(tmp_path / str(verify), seed=4) as federation:
            plan = federation.plan(method)
            results.append(method.fit(federation).to_dict())
            assert ("statistics.verified.conclude" in {stage.step for stage in plan.stages}) == verify
            assert any(note.startswith("Not verified") for note in plan.notes) == (not verify)
            free = {
                cost.mechanism for stage in plan.stages if "verified" in stage.step for cost in stage.costs.values()
            }
            assert free <= {"free"}
            results[-1].pop("costs", None)
    assert str(results[0]) == str(results[1])


def test_a_verified_regression_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    """Within the verification of influences, whose group sums are then not in memory any more."""
    with parties(tmp_path / "whole", seed=4) as federation:
        plan = federation.plan(MAIN)
        result, _ = federation.run(MAIN, name="run")
        expected = str(result.params.tolist())  # type: ignore[attr-defined]
    names = [stage.name for stage in plan.stages]
    assert "influences: share sums" in names
    for rounds in (19, 22, 25):

        def stop(progress: Progress, last: int = rounds) -> None:
            if progress.rounds == last:
                raise KeyboardInterrupt

        folder = tmp_path / str(rounds)
        with parties(folder, seed=4) as federation, pytest.raises(KeyboardInterrupt):
            federation.run(MAIN, name="run", progress=stop)
        with parties(folder, seed=4) as federation:
            result, _ = federation.resume(folder / "runs" / "run")
        assert str(result.params.tolist()) == expected  # type: ignore[attr-defined]


def test_products_in_parts_and_rows_in_chunks_are_verified(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weighted, "PRODUCT_BYTES", 1 << 15)
    monkeypatch.setattr(WeightedLayout, "remembers", lambda self, size: False)
    layout = federation.plan(MAIN)
    assert max(stage.rounds for stage in layout.stages if stage.name == "weighted: multiply") > 2
    assert np.isfinite(MAIN.fit(federation).bse).all()


# --- holders that cheat -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "before"), [(WeightedLayout, 0), (InfluenceLayout, 1)])
def test_a_holder_that_opens_a_wrong_share_is_named(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, kind: type[WeightedLayout], before: int
) -> None:
    combine = kind.combine

    def wrong(self: Any, me: Party, number: int) -> Any:
        share = combine(self, me, number)
        return changed(share, 5) if me.name == "B" else share

    monkeypatch.setattr(kind, "combine", wrong)
    refused(federation, MAIN, "what was computed by 'B' is false", openings=1 + before)


def test_a_wrong_product_dealt_again_is_found(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modulo a prime of the first opening; and modulo the last one, which only influences have: then before these."""
    in_rows, here = Product.in_rows, threading.local()

    def lying(layer: int) -> Callable[..., Product]:
        def wrong(products: Any, width: int) -> Product:
            true = in_rows(products, width)
            if getattr(here, "name", "") != "A":
                return true
            residues = true._residues.copy()
            residues[layer, 0, 3] ^= 1
            return Product(true.field, residues)

        return wrong

    multiply = WeightedLayout.multiply

    def dealing(self: Any, me: Party, number: int, level: int) -> None:
        here.name = me.name
        multiply(self, me, number, level)
        here.name = ""

    monkeypatch.setattr(WeightedLayout, "multiply", dealing)
    for layer, before in ((0, 0), (-1, 1)):
        monkeypatch.setattr(Product, "in_rows", staticmethod(lying(layer)))
        refused(federation, MAIN, "what was computed by 'A' is false", openings=1 + before)


def _influences(me: Party, product: Product) -> Product:
    return Product(product.field, changed(product._residues, 7)) if me.name == "C" else product


@pytest.mark.parametrize("method", ["_influences", "claim_matrices"])
def test_wrong_influences_and_wrong_sums_for_proofs_are_found(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    true = getattr(InfluenceLayout, method)
    monkeypatch.setattr(InfluenceLayout, method, lambda self, me, *rest: _influences(me, true(self, me, *rest)))
    refused(federation, MAIN, "what was computed by 'C' is false", openings=2)


def test_influences_that_fit_wrong_sums_are_found(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forms fit the sums that are dealt; these are not those of the records."""
    summed = InfluenceLayout._summed_by_group

    def wrong(self: Any, me: Party, forms: Any) -> Any:
        sums = summed(self, me, forms)
        if me.name == "A":
            used = next(place for place in range(len(self.masks)) if forms[place].any())
            sums[used]._totals[0, 2, 1] ^= 1
        return sums

    monkeypatch.setattr(InfluenceLayout, "_summed_by_group", wrong)
    refused(federation, MAIN, "what was computed by 'A' is false", openings=2)


def test_sums_for_proofs_of_no_polynomial_are_found(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    send = Party.send

    def wrong(me: Party, recipient: str, tag: str, value: Any, *, each_round: bool = False) -> None:
        if (me.name, recipient) == ("B", "C") and tag.endswith("sums for proofs"):
            value = changed(value, 2)
        send(me, recipient, tag, value, each_round=each_round)

    monkeypatch.setattr(Party, "send", wrong)
    refused(federation, MAIN, "of no polynomial", openings=2)


def test_rows_of_no_polynomial_are_found(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    send = shares._send_packed

    def wrong(me: Party, holder: str, tag: str, packed: Any) -> None:
        if (me.name, ": rows " in tag and tag.startswith("weighted")) == ("A", True):
            words = [layer.copy() for layer in packed.words]
            words[0] ^= np.uint64(1)  # of every record: one that its party lacks is in no product, and harms no one
            packed = type(packed)(packed.field, packed.shape, words)
        send(me, holder, tag, packed)

    monkeypatch.setattr(shares, "_send_packed", wrong)
    refused(federation, MAIN, "do not fit together", openings=1)


def test_without_the_claim_about_forms_a_lie_goes_unnoticed(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests above rest on: without the claim that links influences to sums, the lie is opened."""
    true = InfluenceLayout._influences
    monkeypatch.setattr(InfluenceLayout, "_influences", lambda self, me, forms: _influences(me, true(self, me, forms)))
    with monkeypatch.context() as blind:
        blind.setattr(InfluenceLayout, "_link", lambda self, extension, seed: extension.zeros())
        before = opened(federation)
        with contextlib.suppress(RuntimeWarning, np.linalg.LinAlgError):  # whatever is made of a wrong covariance
            MAIN.fit(federation)
        assert opened(federation) - before == 9  # three openings by three holders
    refused(federation, MAIN, "what was computed by 'C' is false", openings=2)


# --- other families -----------------------------------------------------------------------------------------

COUNTS = Columns(
    [
        *(Column(name=name, kind="continuous", lower=-4.0, upper=4.0) for name in ("x", "v", "w")),
        Column(name="sick", kind="binary", categories=("no", "yes")),
        Column(name="visits", kind="count", lower=0, upper=9),
    ]
)


def families(root: Path, **options: Any) -> Federation:
    """Two parties besides the response holder, so that factors are multiplied before residuals are."""
    rng = np.random.default_rng(5)
    n, keys = 150, [f"K{i}" for i in range(150)]
    x, v, w = np.clip(rng.normal(size=(3, n)), -2, 2)
    eta = 0.6 * x - 0.4 * v + 0.5 * w
    blocks = {
        "A": pd.DataFrame(
            {
                "id": keys,
                "x": x,
                "sick": np.where(rng.uniform(size=n) < 1 / (1 + np.exp(-eta)), "yes", "no"),
                "visits": np.minimum(rng.poisson(np.exp(eta)), 9),
            }
        ),
        "B": pd.DataFrame({"id": keys, "v": v})[rng.uniform(size=n) < 0.9],
        "C": pd.DataFrame({"id": keys, "w": w}),
    }
    stated = {"key": "id", "columns": COUNTS, "home": root / "home", "runs": root / "runs"}
    return Federation.local(blocks, allow=("presence", "exact-scores"), **stated, **options)


def of_family(family: str, **options: Any) -> Regress:
    response = {"binomial": "sick", "poisson": "visits"}[family]
    return Regress(**{"response": response, "family": family, "columns": ("x", "v", "w"), "verify": "full", **options})


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_an_honest_fit_of_a_family_is_verified_and_gives_the_same(tmp_path: Path, family: str) -> None:
    results = []
    for verify in ("full", False):
        with families(tmp_path / str(verify), seed=4) as federation:
            method = of_family(family, verify=verify)
            plan = federation.plan(method)
            assert ("statistics.verified.conclude" in {stage.step for stage in plan.stages}) == bool(verify)
            fit = method.fit(federation)
            results.append((fit.params.tolist(), fit.bse.tolist()))
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", ["opened", "level 1", "level 2", "level 3", "factors"])
def test_lies_in_a_round_of_scores_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """In what a holder opens, in each product that it deals again, and in a party's rows."""
    combine, product, send = ScoreLayout.combine, ScoreLayout._product, shares._send_packed

    def opening(self: Any, me: Party, number: int) -> Any:
        share = combine(self, me, number)
        return changed(share, 4) if me.name == "B" and self.turn == 1 else share

    def multiplied(self: Any, me: Party, chunk: int, level: int) -> Product:
        true = product(self, me, chunk, level)
        lies = me.name == "B" and self.turn == 1 and kind == f"level {level}"
        return Product(true.field, changed(true._residues, 6)) if lies else true

    def dealt(me: Party, holder: str, tag: str, packed: Any) -> None:
        if me.name == "C" and ": rows 0" in tag:
            words = [layer.copy() for layer in packed.words]
            words[-1][9] ^= np.uint64(1)
            packed = type(packed)(packed.field, packed.shape, words)
        send(me, holder, tag, packed)

    if kind == "opened":
        monkeypatch.setattr(ScoreLayout, "combine", opening)
    elif kind == "factors":
        monkeypatch.setattr(shares, "_send_packed", dealt)
    else:
        monkeypatch.setattr(ScoreLayout, "_product", multiplied)
    with families(tmp_path) as federation:
        words, openings = ("do not fit together", 0) if kind == "factors" else ("what was computed by 'B' is false", 1)
        refused(federation, of_family("binomial"), words, openings=openings)


@pytest.mark.parametrize("level", [2, 3])
def test_lies_in_the_round_of_errors_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    product = ScoreLayout._product

    def multiplied(self: Any, me: Party, chunk: int, own: int) -> Product:
        true = product(self, me, chunk, own)
        lies = me.name == "A" and self.errors and own == level
        return Product(true.field, changed(true._residues, 6)) if lies else true

    monkeypatch.setattr(ScoreLayout, "_product", multiplied)
    with families(tmp_path) as federation, pytest.raises(VerificationFailed, match="computed by 'A' is false"):
        of_family("poisson").fit(federation)
