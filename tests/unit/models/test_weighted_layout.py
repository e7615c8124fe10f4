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
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.weighted import FORM_BITS, LARGEST_WEIGHT, WeightedLayout, later_forms, weighted_layout
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


@pytest.mark.parametrize(("n", "groups", "records"), [(1003, 40, 0), (1003, 40, 17), (50, 50, 7), (1000, 3, 999)])
def test_groups_are_runs_of_records_of_equal_size(n: int, groups: int, records: int) -> None:
    """Every record is in one group, whatever the chunks; sizes differ by one at most."""
    shape = replace(layout(n, groups), records=records)
    group = np.full(n, -1)
    for number, (start, _) in enumerate(shape.chunks):
        for own, part in shape.segments(number):
            places = np.arange(start + part.start, start + part.stop)
            assert (group[places] == -1).all()
            group[places] = own
    assert (np.diff(group) >= 0).all()
    sizes = np.bincount(group, minlength=groups)
    assert sizes.max() - sizes.min() <= 1


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
    assert shape.field.bound >= 40 * largest**2


def test_a_layout_without_other_parties_or_with_verification_is_refused() -> None:
    shape = layout()
    with pytest.raises(BadArguments, match="1 to 8 parties"):
        replace(shape, names=("w", "y")).check()
    with pytest.raises(BadArguments, match="not verified"):
        replace(shape, verify=True).check()


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
