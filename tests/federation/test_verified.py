"""Members that deviate, one by one, and what the others find: wrong openings, wrong products, rows that are no
indicators, shares of no polynomial, false answers, coins that were not bound. Honest runs are as without it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import PartyLost, SecureError, StepFailed, UnsafeRequest, VerificationFailed
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Job, Progress
from colonnade.federation.messages import Request
from colonnade.federation.party import Party
from colonnade.federation.stage import SEALED
from colonnade.models.linear.combined import VERIFIED_COST
from colonnade.models.linear.regress import Regress
from colonnade.papers.vfem.method import VFEM
from colonnade.secure.field import BATCH_ROWS
from colonnade.statistics import joint, shares, verified
from colonnade.statistics.circuit import CircuitStatistic
from colonnade.statistics.moments import MomentComputation, Moments, MomentsLayout, MomentsResult
from colonnade.statistics.polynomial import Polynomial, PolynomialSum
from colonnade.statistics.tables import TableComputation, Tables, TablesLayout
from colonnade.synthesis.field.rounds import Round, TableRounds
from colonnade.synthesis.field.schema import Schema, TableQuery
from support.plans import plan_of_stages
from support.small import three_parties

PAIR = Tables(tables=(("sector", "sued"), ("rating",)), epsilon=1.0)
TRIPLE = Tables(tables=(("sector", "sued", "age"),), bins=2, epsilon=1.0)
GRAM = Moments(epsilon=1.0, presence="secret", columns=("sector", "sued", "rating"))
PATTERNS = Moments(epsilon=1.0, columns=("sector", "sued", "rating"), tile=2)
CUBIC = PolynomialSum(
    polynomial=Polynomial.of(
        [(0.3, {"age": 2, "sued": 1, "rating": 1}), (1, {})], [(2, {"rating": 1}), (1, {"age": 1})]
    )
)
METHODS: Mapping[str, Any] = {"pair": PAIR, "triple": TRIPLE, "gram": GRAM, "patterns": PATTERNS, "cubic": CUBIC}


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with three_parties(tmp_path, allow=("presence",)) as parties:
        yield parties


def refused(federation: Federation, method: Any, words: str) -> None:
    """The lie is found, and nothing is opened."""
    before = opened(federation)
    with pytest.raises(VerificationFailed, match=words):
        method.fit(federation)
    assert opened(federation) == before


def opened(federation: Federation) -> list[str]:
    """Who has let a share go."""
    members = {name: federation.transport[name] for name in federation.roster.committee}  # type: ignore[index]
    rows = ((name, row.body) for name, member in members.items() for row in member.transcript.rows(direction="out"))
    return [name for name, body in rows if body["kind"] == "release" and body["step"].endswith("open_shares")]


def changed(residues: Any, entry: int = 0) -> Any:
    """One number of an array of residues other than it should be."""
    wrong = residues.copy()
    flat = wrong.reshape(len(wrong), -1)
    flat[0, entry % flat.shape[1]] = (flat[0, entry % flat.shape[1]] + 1) % 2097143
    return wrong


# --- honest runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_an_honest_run_is_verified_and_gives_the_same(tmp_path: Path, name: str) -> None:
    results = []
    for verify in (True, False):
        method = type(METHODS[name])(**{**METHODS[name].get_params(), "verify": verify})
        with three_parties(tmp_path / str(verify), allow=("presence",), seed=4) as federation:
            plan = federation.plan(method)
            results.append(method.fit(federation).to_dict())
            steps = {stage.step for stage in plan.stages}
            assert ("statistics.verified.conclude" in steps) == verify
            assert any(note.startswith("Not verified") for note in plan.notes) == (not verify)
    assert str(results[0]) == str(results[1])


def test_small_shares_travel_in_one_message_and_large_ones_in_one_for_each_prime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, layers = [], []
    for most in (shares.SMALL_MAIL, 0):
        monkeypatch.setattr(shares, "SMALL_MAIL", most)
        with three_parties(tmp_path / str(most), allow=("presence",), seed=4) as federation:
            results.append(GRAM.fit(federation).to_dict())
            rows = federation.transport["clinic"].transcript.rows(direction="out")  # type: ignore[index]
            layers.append(sum(", prime" in row.body["tag"] for row in rows))
    assert str(results[0]) == str(results[1])
    assert layers[0] == 0 < layers[1]


def test_rows_in_chunks_are_verified_in_pieces(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = replace(TRIPLE.layout(federation.facts, federation.roster), records=25)
    stages = TableComputation(layout, "client", delta=1e-6)
    assert len(layout.chunks) == 3
    assert not layout.remembers(0)
    with federation.open(plan_of_stages("tables", stages.stages)) as job:
        assert stages.run(job).counts
    combine = TablesLayout.combine
    monkeypatch.setattr(
        TablesLayout, "combine", lambda self, me, number: changed(combine(self, me, number), int(me.name == "clinic"))
    )
    stages = TableComputation(layout, "client", delta=1e-6)
    with federation.open(plan_of_stages("tables", stages.stages)) as job, pytest.raises(VerificationFailed):
        stages.run(job)


@pytest.mark.parametrize("method", [GRAM, PATTERNS])
def test_moments_in_little_memory_are_proven_from_the_terms_of_shares(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, method: Moments
) -> None:
    """All columns together are remembered in a small job only."""
    layout = replace(method.layout(federation.facts, federation.roster), records=BATCH_ROWS)
    assert not layout.remembers(0)
    combine = MomentsLayout.combine

    def wrong(self: Any, me: Party, number: int) -> Any:
        return changed(combine(self, me, number), int(me.name == "clinic"))

    for honest in (True, False):
        if not honest:
            monkeypatch.setattr(MomentsLayout, "combine", wrong)
        stages = MomentComputation(layout, "client")
        lie = contextlib.nullcontext() if honest else pytest.raises(VerificationFailed)
        with federation.open(plan_of_stages("moments", stages.stages)) as job, lie:
            stages.run(job)


def test_several_openings_are_proven_before_the_first(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = replace(PATTERNS.layout(federation.facts, federation.roster), opening=9)
    assert len(layout.openings) > 2

    def computed() -> MomentsResult:
        stages = MomentComputation(layout, "client")
        with federation.open(plan_of_stages("moments", stages.stages)) as job:
            return stages.run(job)

    records = 60
    assert abs(computed().counts.sum() - records) < 10 * layout.noise_sd * len(layout.masks)
    before, combine = opened(federation), MomentsLayout.combine

    def wrong(self: Any, me: Party, number: int) -> Any:
        share = combine(self, me, number)
        return changed(share) if (me.name, number) == ("bank", 1) else share

    monkeypatch.setattr(MomentsLayout, "combine", wrong)
    with pytest.raises(VerificationFailed, match="what was computed by 'bank' is false"):
        computed()
    assert opened(federation) == before


def test_the_plan_forecasts_the_size_of_proofs(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, int] = {}
    exchange = federation.transport.exchange

    def measured(party: str, data: bytes, *, timeout: float) -> bytes:
        answer = exchange(party, data, timeout=timeout)
        name = Request.decode(data).stage
        sizes[name] = max(len(answer), sizes.get(name, 0))
        return answer

    monkeypatch.setattr(federation.transport, "exchange", measured)
    for method in (TRIPLE, GRAM):
        plan = federation.plan(method)
        method.fit(federation)
        for stage in plan.stages:
            if "verified" in stage.step:
                assert stage.reply_bytes / 2 - 1024 < sizes[stage.name] < 1.1 * stage.reply_bytes + 2048, stage.name


def test_memory_counts_what_is_proven(federation: Federation) -> None:
    facts = replace(federation.facts, n=2_000_000)
    for method in (GRAM, PAIR):
        limited = {**method.get_params(), "memory": 600.0}
        chunks = [
            len(type(method)(**{**limited, "verify": verify}).layout(facts, federation.roster).chunks)
            for verify in (True, False)
        ]
        assert chunks[0] > chunks[1]


def test_the_server_view_is_verified_too(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs show the holders nothing of the result: all that they get is sealed shares, coins and masked answers."""
    method = Tables(tables=(("sector", "sued"),), epsilon=1.0, view="server")
    plan = federation.plan(method)
    assert [stage.audience for stage in plan.stages if "verified" in stage.step] == [SEALED] * 5
    assert not any("Not verified" in note for note in plan.notes)
    combine = TablesLayout.combine
    monkeypatch.setattr(
        TablesLayout, "combine", lambda self, me, number: changed(combine(self, me, number), int(me.name == "clinic"))
    )
    refused(federation, method, "is false")


def test_regressions_say_what_is_verified(federation: Federation) -> None:
    """The default is; other families are only if asked for, and the Gram matrix of the paper's rounds is not."""
    columns: dict[str, Any] = {"response": "age", "columns": ("visits", "sued", "rating")}

    def noted(method: Any) -> tuple[bool, list[str]]:
        plan = federation.plan(method)
        notes = [note for note in plan.notes if note.startswith("Not verified")]
        return any("verified" in stage.step for stage in plan.stages), notes

    assert noted(Regress(missing="em", **columns)) == (True, [])
    assert noted(Regress(epsilon=50.0, **columns)) == (True, [])
    assert noted(Regress(**columns)) == (True, [])
    assert VERIFIED_COST in federation.plan(Regress(**columns)).notes
    sick: dict[str, Any] = {"response": "sued", "columns": ("age", "rating"), "family": "binomial"}
    verified_fit, (note,) = noted(Regress(**sick))
    assert not verified_fit
    assert note.startswith(verified.NOT_VERIFIED)
    assert "three times the CPU time" in note
    assert noted(Regress(verify="full", **sick)) == (True, [])
    assert noted(Regress(verify=False, **columns)) == (False, [verified.NOT_VERIFIED])
    assert noted(VFEM(**columns)) == (False, [verified.NOT_VERIFIED])


def test_verification_costs_nothing(federation: Federation) -> None:
    with_it, without = (
        federation.plan(Tables(tables=(("sector", "sued"),), epsilon=1.0, verify=verify)) for verify in (True, False)
    )
    assert str(with_it.total()) == str(without.total())
    added = [stage for stage in with_it.stages if stage.step.startswith("statistics.verified.")]
    assert {cost.mechanism for stage in added for cost in stage.costs.values()} == {"free"}


def test_a_verification_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    """After the proofs, and after the answers; nothing of it is in the memory of the new processes."""
    rounds = (5, 7)
    for number in rounds:

        def stop(progress: Progress, last: int = number) -> None:
            if progress.rounds == last:
                raise KeyboardInterrupt

        folder = tmp_path / str(number)
        with three_parties(folder, seed=4) as federation, pytest.raises(KeyboardInterrupt):
            federation.run(PAIR, name="run", progress=stop)
        with three_parties(folder, seed=4) as federation:
            result, _ = federation.resume(folder / "runs" / "run")
        counts = result["sector", "sued"]  # type: ignore[index]
        if number == rounds[0]:
            expected = counts
        assert np.array_equal(counts, expected)


# --- holders that cheat -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pair", "patterns", "cubic"])
def test_a_holder_that_opens_a_wrong_share_is_named(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    method = METHODS[name]
    kind = type(method.layout(federation.facts, federation.roster))
    combine = kind.combine
    rng = np.random.default_rng(5)

    def wrong(self: Any, me: Party, number: int) -> Any:
        share = combine(self, me, number)
        return changed(share, int(rng.integers(share.shape[1]))) if me.name == "court" else share

    monkeypatch.setattr(kind, "combine", wrong)
    refused(federation, method, "what was computed by 'court' is false")


def test_a_holder_that_opens_something_else_than_it_proves_is_found(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was bound to its share before the challenge was known; without that, the proof would still not fit."""
    read = verified._opened

    def another(holder: str, value: Any) -> Any:
        share, salt, proven = read(holder, value)
        return (changed(share, 3) if holder == "court" else share), salt, proven

    monkeypatch.setattr(verified, "_opened", another)
    with pytest.raises(VerificationFailed, match="'court' has opened something else than what it was bound to"):
        PAIR.fit(federation)
    for module in (joint, verified):
        monkeypatch.setattr(module, "commitment", lambda salt, share: b"")
    with pytest.raises(VerificationFailed, match="opened something else than what it has proven"):
        PAIR.fit(federation)


def test_a_holder_that_deals_a_wrong_product_again_is_found(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiplied, multiply = CircuitStatistic._multiplied, CircuitStatistic.multiply
    here = threading.local()  # a party answers in a thread of its own

    def wrong(self: Any, nodes: Any, level: int) -> Any:
        left, right = multiplied(self, nodes, level)
        return (changed(left, 7) if getattr(here, "lies", False) else left), right

    def dealing(self: Any, me: Party, number: int, level: int) -> None:
        here.lies = me.name == "bank"
        multiply(self, me, number, level)
        here.lies = False

    monkeypatch.setattr(CircuitStatistic, "_multiplied", wrong)
    monkeypatch.setattr(CircuitStatistic, "multiply", dealing)
    refused(federation, TRIPLE, "what was computed by 'bank' is false")


def test_a_false_answer_is_found(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = verified.answer
    count = iter(range(100))

    def wrong(*arguments: Any, **stated: Any) -> Any:
        true = answer(*arguments, **stated)
        return changed(true, 1) if next(count) == 0 else true

    monkeypatch.setattr(verified, "answer", wrong)
    refused(federation, PAIR, "do not fit together")


def test_with_five_holders_the_culprit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"party{number}" for number in range(5)]
    rng = np.random.default_rng(0)
    blocks = {name: pd.DataFrame({"id": range(40), f"{name}_x": rng.integers(0, 2, 40)}) for name in names}
    columns = Columns([Column(name=f"{name}_x", kind="binary", categories=(0, 1)) for name in names])
    method = Tables(tables=(("party0_x", "party1_x"), ("party2_x", "party4_x")), epsilon=1.0)
    send = Party.send

    def lying(me: Party, recipient: str, tag: str, value: Any, *, each_round: bool = False) -> None:
        if me.name == "party3" and tag.endswith(": answers"):
            value = {what: changed(answers, 1) for what, answers in value.items()}
        send(me, recipient, tag, value, each_round=each_round)

    monkeypatch.setattr(Party, "send", lying)
    home = {"key": "id", "columns": columns, "home": tmp_path / "home", "runs": tmp_path / "runs"}
    with Federation.local(blocks, committee=names, **home) as federation:
        refused(federation, method, "'party3' answered falsely about what was computed")
    monkeypatch.setattr(Party, "send", send)
    with Federation.local(blocks, committee=names, threshold=2, **home) as federation:
        assert method.fit(federation).noise_sd
        monkeypatch.setattr(Party, "send", lying)
        refused(federation, method, "do not fit together")


# --- data parties that cheat ------------------------------------------------------------------------------


def _weighted(rows: Any) -> Any:
    rows = rows.astype(np.int64)
    rows[np.flatnonzero(rows.any(axis=1))[3]] *= 5000
    return rows


def _twice(rows: Any) -> Any:
    rows[2] = 1
    return rows


@pytest.mark.parametrize("lie", [_weighted, _twice])
def test_rows_that_are_no_indicators_are_found(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, lie: Callable[[Any], Any]
) -> None:
    """A record with weight 5000 would read others' records out of the noise."""
    shared_rows = TablesLayout.shared_rows

    def wrong(self: Any, me: Party, number: int) -> Any:
        rows = shared_rows(self, me, number)
        return lie(rows) if me.name == "bank" else rows

    monkeypatch.setattr(TablesLayout, "shared_rows", wrong)
    refused(federation, PAIR, "the shape of the rows by 'bank' is false")


def test_presence_that_is_neither_0_nor_1_is_found(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    quantised = MomentsLayout.quantised

    def wrong(self: Any, me: Party, number: int) -> Any:
        rows = quantised(self, me, number)
        if me.name == "clinic":
            rows[:, 0] *= 3
        return rows

    monkeypatch.setattr(MomentsLayout, "quantised", wrong)
    refused(federation, Moments(epsilon=1.0, presence="secret", columns=("age", "sued")), "rows by 'clinic'")


def test_shares_of_no_polynomial_are_found(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    share, turn = shares.share, iter(range(100))

    def wrong(*arguments: Any, **stated: Any) -> Any:
        parts = share(*arguments, **stated)
        return [changed(parts[0], 5), *parts[1:]] if next(turn) == 0 else parts

    monkeypatch.setattr(shares, "share", wrong)
    refused(federation, PAIR, "do not fit together")


# --- rounds of tables -------------------------------------------------------------------------------------


def two_rounds(federation: Federation) -> None:
    schema = Schema.declared(federation.facts, bins=4)
    rounds = TableRounds(schema, federation.roster, "client", units=(3, 4), mus=(50, 80), verify=True)
    with federation.open(plan_of_stages("synthesize", rounds.stages)) as job:
        rounds.tables(job, schema, 0, [TableQuery.of(("age",)), TableQuery.of(("sued",), units=2)])
        triple, pair = TableQuery.of(("age", "visits", "rating")), TableQuery.of(("age", "rating"))
        rounds.tables(job, schema, 1, [TableQuery.of(("age", "sued"), units=2), pair, triple])


def test_the_rounds_of_a_field_are_verified(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    two_rounds(federation)
    combine, own_rows, joint_rows = Round.combine, Round._own_rows, Round._joint_rows

    def wrong(self: Any, me: Party, number: int) -> Any:
        share = combine(self, me, number)
        return changed(share, 2) if me.name == "court" and self.number == 1 else share

    with monkeypatch.context() as lies, pytest.raises(VerificationFailed, match="what was computed by 'court'"):
        lies.setattr(Round, "combine", wrong)
        two_rounds(federation)
    with monkeypatch.context() as lies, pytest.raises(VerificationFailed, match="the shape of the rows by 'clinic'"):
        lies.setattr(Round, "_own_rows", lambda self, me: own_rows(self, me) * (3 if me.name == "clinic" else 1))
        two_rounds(federation)
    with monkeypatch.context() as lies, pytest.raises(VerificationFailed, match="the shape of the rows by 'clinic'"):
        lies.setattr(Round, "_joint_rows", lambda self, me, pair: joint_rows(self, me, pair) * 2)
        two_rounds(federation)


# --- coins ------------------------------------------------------------------------------------------------


def test_coins_are_bound_and_all_comes_in_its_turn(federation: Federation) -> None:
    stages = PAIR.procedure(federation.facts, federation.roster)
    plan = PAIR.plan(federation.facts, federation.roster)
    first, prove, second, *_ = stages._proofs

    def compared(job: Job) -> None:
        job.ask(stages.share)
        job.ask(stages.compare)

    with federation.open(plan) as job:
        job.ask(stages.share)
        with pytest.raises(StepFailed):  # the first coin before the comparison
            job.ask(first)
    with federation.open(plan) as job:
        compared(job)
        with pytest.raises(UnsafeRequest):  # an opening before the proofs
            job.ask(stages.open)
    with federation.open(plan) as job:
        compared(job)
        coins = job.ask(first)
        with pytest.raises(SecureError):  # a coin of the coordinator's choice
            job.ask(prove, coins={**coins, "court": bytes(32)})
    with federation.open(plan) as job:
        compared(job)
        job.ask(first)
        with pytest.raises(PartyLost):  # the second coin before the proofs
            job.ask(second)
    assert not opened(federation)


def test_a_party_that_is_no_holder_cannot_be_framed_by_other_coins(tmp_path: Path) -> None:
    """It has no coins to compare with. A proof for other coins is refused, and not taken for a lie."""
    with three_parties(tmp_path, committee=("clinic", "court", "holder"), holder="archive") as federation:
        stages = PAIR.procedure(federation.facts, federation.roster)
        first, prove, second, *_ = stages._proofs
        with federation.open(PAIR.plan(federation.facts, federation.roster)) as job:
            job.ask(stages.share)
            job.ask(stages.compare)
            coins = job.ask(first)
            others = {**coins, "court": bytes(32)}
            job.ask_each(prove, {party: {"coins": others if party == "bank" else coins} for party in prove.parties})
            with pytest.raises(SecureError, match="other coins"):
                job.ask(second)
