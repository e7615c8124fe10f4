"""Masked sums against plain addition: equal without noise, with the stated noise, and nothing without everybody."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from colonnade.errors import (
    BadArguments,
    BadPrivacyParameter,
    ModulusTooSmall,
    PartyLost,
    StepFailed,
    TooFewHolders,
    UnboundedNotAllowed,
    UnsafeRequest,
)
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Request
from colonnade.federation.stage import stage
from colonnade.statistics.secure_sum import PresenceTotal, SecureSum, masked_presence, unmask
from support.plans import plan_of_stages
from support.small import three_overlapping_blocks, three_parties
from support.steps import masked_numbers


def masked_replies(
    federation: Federation, vectors: dict[str, list[float]], shape: SecureSum | dict[str, SecureSum], **more: Any
) -> dict[str, Any]:
    shapes = shape if isinstance(shape, dict) else dict.fromkeys(vectors, shape)
    arguments = {
        member: {"values": values, "shape": shapes[member].to_dict(), "round_number": 0, **more}
        for member, values in vectors.items()
    }
    masked = stage(
        "masked",
        masked_numbers,
        {member: [own] for member, own in arguments.items()},
        facts=federation.facts,
        roster=federation.roster,
        discloses="masked numbers",
    )
    with federation.open(plan_of_stages("presence-total", [masked])) as job:
        return job.ask(masked)


MEMBERS = ("clinic", "court", "bank")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with three_parties(tmp_path_factory.mktemp("sums"), allow=("exact-presence-total",)) as made:
        yield made


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), size=st.integers(1, 5))
def test_whole_numbers_add_up_exactly(federation: Federation, data: st.DataObject, size: int) -> None:
    """To the largest values that three members may have; totals below 2^53 are exact doubles, others to the nearest."""
    bound = data.draw(st.sampled_from([10, 2**50, (2**63 - 1) // 3 // 2]))
    vectors = {m: data.draw(st.lists(st.integers(-bound, bound), min_size=size, max_size=size)) for m in MEMBERS}
    shape = SecureSum(label="whole", size=size, bound=bound)
    total = unmask(masked_replies(federation, vectors, shape), shape=shape, roster=federation.roster)  # type: ignore[arg-type]
    assert total.tolist() == [float(sum(column)) for column in zip(*vectors.values(), strict=True)]


def test_floats_add_up_to_their_precision(federation: Federation) -> None:
    rng = np.random.default_rng(4)
    vectors = {member: rng.uniform(-3, 3, 50).tolist() for member in MEMBERS}
    shape = SecureSum.exact(label="floats", size=50, bound=3.0, roster=federation.roster)
    total = unmask(masked_replies(federation, vectors, shape), shape=shape, roster=federation.roster)
    exact = [math.fsum(column) for column in zip(*vectors.values(), strict=True)]
    assert np.abs(total - exact).max() < 2e-15


def test_values_are_clipped_to_the_declared_bound(federation: Federation) -> None:
    vectors: dict[str, list[float]] = {"clinic": [5, -7, 0], "court": [1, 1, 1], "bank": [0, 0, 0]}
    shape = SecureSum(label="clipped", size=3, bound=4)
    total = unmask(masked_replies(federation, vectors, shape), shape=shape, roster=federation.roster)
    assert total.tolist() == [5, -3, 1]
    odd = {"clinic": [math.inf, math.nan, 0.5], "court": [0.0, 0.0, 0.25], "bank": [0.0, 0.0, 0.0]}
    shape = SecureSum(label="odd", size=3, bound=4, gamma=8)
    total = unmask(masked_replies(federation, odd, shape), shape=shape, roster=federation.roster)
    assert total.tolist() == [4, 0, 0.75]


def test_the_noise_of_all_members_adds_up(federation: Federation) -> None:
    """4,000 entries: the mean square over the variance has a sd of 2.3 %, so 14 % is 6 of them. Rounding at random of
    0.3 * 10 changes nothing: the entries are whole after scaling."""
    size = 4000
    shape = SecureSum(label="noisy", size=size, bound=1.0, gamma=10, mu=3000)
    vectors = {member: [0.3] * size for member in MEMBERS}
    total = unmask(masked_replies(federation, vectors, shape), shape=shape, roster=federation.roster)
    assert shape.noise_sd == pytest.approx(math.sqrt(6000) / 10)
    assert 0.86 < np.mean((total - 0.9) ** 2) / shape.noise_sd**2 < 1.14


def test_one_masked_vector_says_nothing(federation: Federation) -> None:
    """Zeros under their pads: the high bits of 4,000 words against uniform. The sum of 64 squared deviations over
    their expectation is chi-square with 63 degrees of freedom: 140 has probability 1e-7 above it."""
    shape = SecureSum(label="uniform", size=4000, bound=1)
    replies = masked_replies(federation, {member: [0] * 4000 for member in MEMBERS}, shape)
    for words in [*replies.values(), replies["clinic"] + replies["court"]]:
        counts = np.bincount((words >> np.uint64(58)).astype(np.int64), minlength=64)
        assert np.sum((counts - 62.5) ** 2 / 62.5) < 140
    assert not unmask(replies, shape=shape, roster=federation.roster).any()


def test_a_missing_member_leaves_no_total(federation: Federation) -> None:
    shape = SecureSum(label="missing", size=2, bound=5)
    replies = masked_replies(federation, {member: [1, 2] for member in MEMBERS}, shape)
    del replies["court"]
    with pytest.raises(PartyLost, match="court"):
        unmask(replies, shape=shape, roster=federation.roster)


def test_members_that_were_asked_for_different_noise_share_no_pads(federation: Federation) -> None:
    """Without it, a coordinator could ask one member for mu = 0 and read the others' vectors with less noise."""
    weaker = SecureSum(label="mixed", size=3, bound=5, mu=0)
    shape = SecureSum(label="mixed", size=3, bound=5, mu=100)
    shapes = {"clinic": shape, "court": shape, "bank": weaker}
    replies = masked_replies(federation, {member: [1, 2, 3] for member in MEMBERS}, shapes)
    total = unmask(replies, shape=shape, roster=federation.roster)
    # A total of at most 15 with noise of sd 14; the words of uncancelled pads are below 2^40 with probability 2^-23.
    assert np.abs(total).max() > 2.0**40


def test_a_label_serves_once(federation: Federation) -> None:
    """Two vectors under one pad would show their difference."""
    shape = SecureSum(label="twice", size=1, bound=5)
    with pytest.raises(UnsafeRequest):
        masked_replies(federation, {member: [1] for member in MEMBERS}, shape, times=2)


def test_what_could_wrap_is_refused(federation: Federation) -> None:
    roster = federation.roster
    largest = (2**63 - 1) // 3
    SecureSum(label="x", size=1, bound=2**60, gamma=2).check(roster)
    with pytest.raises(ModulusTooSmall, match="smaller gamma"):
        SecureSum(label="x", size=1, bound=2**60, gamma=4).check(roster)
    with pytest.raises(ModulusTooSmall):
        SecureSum(label="x", size=1, bound=largest - 2**40, mu=2**90).check(roster)
    for wrong in ({"size": 0}, {"bound": -1.0}, {"bound": math.inf}, {"gamma": 0}, {"mu": -1}):
        with pytest.raises(BadArguments):
            SecureSum(**{"label": "x", "size": 1, "bound": 1.0, **wrong}).check(roster)  # type: ignore[arg-type]
    with pytest.raises((BadArguments, StepFailed)):
        masked_replies(federation, {m: [1, 1] for m in MEMBERS}, SecureSum(label="short", size=1, bound=1))


# --- the method -------------------------------------------------------------------------------------------


def test_the_presence_total_is_the_number_of_rows(federation: Federation) -> None:
    rows = sum(len(frame) for frame in three_overlapping_blocks().values())
    result = PresenceTotal(epsilon=None).fit(federation)
    assert result.total == rows
    assert result.fraction == pytest.approx(rows / 180)
    noisy = [PresenceTotal(epsilon=1.0).fit(federation) for _ in range(12)]
    # The sum of 12 squared standard errors, nearly chi-square: each limit has a probability of 2.5e-7.
    low, high = chi2.ppf([2.5e-7, 1 - 2.5e-7], 12)
    assert low < sum(((one.total - rows) / one.noise_sd) ** 2 for one in noisy) < high


def test_two_parties_suffice_and_a_holder_without_data_takes_part(tmp_path: Path) -> None:
    blocks = three_overlapping_blocks()
    del blocks["bank"]
    for number, options in enumerate(({}, {"holder": "Notary"})):
        with three_parties(
            tmp_path / str(number), blocks=blocks, allow=("exact-presence-total",), **options
        ) as federation:
            assert PresenceTotal(epsilon=None).fit(federation).total == sum(map(len, blocks.values()))
    alone = {"clinic": blocks["clinic"]}
    with (
        three_parties(tmp_path / "one", blocks=alone, allow=("exact-presence-total",)) as federation,
        pytest.raises(TooFewHolders, match="two members"),
    ):
        PresenceTotal(epsilon=None).fit(federation)


def test_the_plan_total_is_epsilon_and_counts_once(federation: Federation) -> None:
    plan = federation.plan(PresenceTotal(epsilon=1.0))
    assert 0.98 < plan.total().epsilon <= 1.0
    for party in federation.facts.parties:
        assert plan.total(party=party).epsilon == plan.total().epsilon
    replaced = federation.plan(PresenceTotal(epsilon=1.0, relation="replace"))
    assert 0.98 < replaced.total(relation="replace").epsilon <= 1.0
    assert "Server view" in plan.text()
    assert federation.plan(PresenceTotal(epsilon=None)).total().unbounded == ("exact-presence-total",)


def test_one_record_moves_the_total_by_at_most_the_number_of_parties(tmp_path: Path) -> None:
    """The sensitivity of the claim, at its worst: a record that every party has, against none having it."""
    keys = ["a", "b", "c"]
    columns = {"clinic": "visits", "court": "sued", "bank": "rating"}
    values: dict[str, list[Any]] = {"visits": [1, 2, 3], "sued": ["no", "yes", "no"], "rating": ["A", "B", "C"]}
    whole = {party: pd.DataFrame({"id": keys, name: values[name]}) for party, name in columns.items()}
    less = {party: frame[frame["id"] != "b"].reset_index(drop=True) for party, frame in whole.items()}
    totals = []
    for number, blocks in enumerate((whole, less)):
        with three_parties(tmp_path / str(number), blocks=blocks, allow=("exact-presence-total",)) as federation:
            totals.append(PresenceTotal(epsilon=None).fit(federation).total)
            cost = federation.plan(PresenceTotal(epsilon=1.0)).stage("presence total").costs["bank"]
    assert totals[0] - totals[1] == cost.number("delta_2") == 3


def test_a_party_that_is_lost_leaves_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with three_parties(tmp_path, allow=("exact-presence-total",)) as federation:
        exchange = federation.transport.exchange

        def lost(party: str, data: bytes, *, timeout: float) -> bytes:
            if party == "bank" and Request.decode(data).kind == "ask":
                raise PartyLost("bank does not answer.")
            return exchange(party, data, timeout=timeout)

        monkeypatch.setattr(federation.transport, "exchange", lost)
        with pytest.raises(PartyLost):
            federation.run(PresenceTotal(epsilon=None), name="broken")
        assert not (federation.runs / "broken" / "result.json").exists()
        monkeypatch.setattr(federation.transport, "exchange", exchange)
        result, _ = federation.resume(federation.runs / "broken")
        assert result.total == sum(map(len, three_overlapping_blocks().values()))


def test_bad_options(tmp_path: Path) -> None:
    with pytest.raises(BadPrivacyParameter, match="delta above 0"):
        PresenceTotal(delta=0.0)
    with pytest.raises(BadArguments, match="view"):
        PresenceTotal(view="both")  # type: ignore[arg-type]
    assert PresenceTotal.from_options(PresenceTotal(epsilon=None).options()) == PresenceTotal(epsilon=None)
    with three_parties(tmp_path) as federation:
        with pytest.raises(UnboundedNotAllowed):
            PresenceTotal(epsilon=None).fit(federation)
        with pytest.raises(BadPrivacyParameter):
            federation.ask(masked_presence, mu=-1, view="client", label="x")
