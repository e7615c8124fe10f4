"""The public shape of weighted moments: groups, what forms a holder accepts, and that no influence wraps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, PartyLost
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.roster import Member, Roster
from colonnade.federation.stage import Stage
from colonnade.models.linear import weighted
from colonnade.models.linear.combined import CombinedFit
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.weighted import (
    FORM_BITS,
    LARGEST_WEIGHT,
    WeightedLayout,
    cluster_groups,
    influence_layout,
    later_forms,
    weighted_layout,
)
from colonnade.privacy.randomness import SimulatedRandomness
from support.wages import blocks_missing_at_random, federation, whole_table

ROSTER = Roster(
    members=tuple(Member(name=name, organisation=name, public_key=name.encode() * 32) for name in "abc"),
    committee=("a", "b", "c"),
)


def layout(n: int = 1003, groups: int = 40) -> WeightedLayout:
    """Party b holds the response and a covariate; a has two columns and c one."""
    names = {"a": ["x0", "x1"], "b": ["w", "y"], "c": ["z"]}
    facts = PublicFacts(
        n=n,
        columns={
            party: Columns(Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in own)
            for party, own in names.items()
        },
    )
    return weighted_layout(facts, ROSTER, ("x0", "x1", "w", "z", "y"), 2**20, groups)


@pytest.mark.parametrize(("clusters", "groups"), [(30, 40), (500, 40), (40, 40)])
def test_clusters_are_whole_and_groups_alike_in_size(clusters: int, groups: int) -> None:
    """Each its own group where there are enough; otherwise no group is larger than another by more than a cluster."""
    rng = np.random.default_rng(3)
    values = rng.integers(clusters, size=3000).astype(np.float64)
    known = rng.random(3000) < 0.9
    group = cluster_groups(values, known, groups, SimulatedRandomness(1)).astype(int)
    assert group.max() < groups
    members = [known & (values == cluster) for cluster in np.unique(values[known])]
    assert all(len(set(group[own])) == 1 for own in members)
    assert len({group[own][0] for own in members}) == min(len(members), groups)
    sizes = np.bincount(group[known], minlength=groups)
    assert clusters <= groups or sizes.max() - sizes.min() <= max(own.sum() for own in members)
    assert (cluster_groups(values, known, groups, SimulatedRandomness(2)) != group).any()


def test_records_may_travel_in_chunks_and_products_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same figures, however the records are cut."""
    blocks = blocks_missing_at_random(whole_table(5000))
    method = Regress(response="wage", columns=("age", "debt", "visits"), verify=False)
    results = []
    for name, most in (("whole", (1 << 26, 1 << 27)), ("cut", (1, 40_000))):
        monkeypatch.setattr(weighted, "MAIL_BYTES", most[0])
        monkeypatch.setattr(weighted, "PRODUCT_BYTES", most[1])
        with federation(tmp_path / name, blocks, seed=5) as parties:
            procedure = method.procedure(parties.facts, parties.roster)
            assert isinstance(procedure, CombinedFit)
            results.append((len(procedure.layout.chunks), procedure.layout.parts, method.fit(parties)))
    (one_chunk, one_part, whole), (chunks, parts, cut) = results
    assert (one_chunk, one_part) == (1, 1)
    assert min(chunks, parts) > 1
    np.testing.assert_allclose(cut.table(), whole.table(), rtol=1e-9)


def test_forms_that_could_wrap_or_have_another_shape_are_refused() -> None:
    shape = layout()
    rule = later_forms(shape)
    fine = [np.zeros((shape.outputs, size), dtype=np.int64) for size in shape.pieces]
    fine[0][0, 0] = LARGEST_WEIGHT << FORM_BITS
    fine[-1][1, 0] = 1 << FORM_BITS
    assert rule.allows(fine, [])
    for place, entry in ((0, (0, 1)), (-1, (1, 1)), (-1, (0, 0))):
        too_large = [form.copy() for form in fine]
        too_large[place][entry] = 1 << 20
        assert not rule.allows(too_large, [])
    assert not rule.allows(fine[:-1], [])
    assert not rule.allows([form.astype(np.float64) for form in fine], [])
    assert not rule.allows("forms", [])


def test_the_field_holds_products_of_two_influences() -> None:
    shape = layout()
    largest = (-(-1003 // 40) * shape.gamma**2 * LARGEST_WEIGHT) << FORM_BITS
    assert influence_layout(shape).field.bound >= 40 * largest**2


def test_a_layout_without_other_parties_is_refused() -> None:
    with pytest.raises(BadArguments, match="1 to 8 parties"):
        replace(layout(), names=("w", "y")).check()


def test_holders_with_different_forms_open_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator gives one holder other forms: shares made with them do not meet the others'."""
    ask = Job.ask

    def two_faced(job: Job, stage: Stage, **later: Any) -> dict[str, Any]:
        if not stage.name.endswith("influences"):
            return ask(job, stage, **later)
        forms = {holder: {"forms": later["forms"]} for holder in stage.parties}
        forms[stage.parties[-1]] = {"forms": [np.zeros_like(form) for form in later["forms"]]}
        return job.ask_each(stage, forms)

    monkeypatch.setattr(Job, "ask", two_faced)
    with federation(tmp_path, blocks_missing_at_random(whole_table(400))) as parties, pytest.raises(PartyLost):
        Regress(response="wage", columns=("age", "debt", "visits")).fit(parties)
