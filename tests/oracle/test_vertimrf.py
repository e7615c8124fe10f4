"""The VertiMRF paper's six phases. Oracles: the pooled records, counting key by key, the numbers that the paper prints.

That its encoders estimate the tables of the pooled records is in `test_field.py`, one contract with our rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.errors import BadArguments, BadPrivacyParameter, UnboundedNotAllowed
from colonnade.federation.coordinator import Federation
from colonnade.papers import VertiMRF
from colonnade.papers.vertimrf.frequency_oracle import FrequencyOracle
from colonnade.papers.vertimrf.method import against_the_floor
from colonnade.papers.vertimrf.sketches import FMSketches
from colonnade.synthesis.field.fit import Measurement
from colonnade.synthesis.field.schema import Schema, TableQuery
from colonnade.synthesis.table import read_table
from support.fields import dependent_blocks
from support.plans import plan_of_stages
from support.small import COLUMNS, three_overlapping_blocks, three_parties

N = 600
ALMOST_NOISELESS: dict[str, dict[str, Any]] = {
    "fo": {"encoder": "fo", "epsilon": 400.0, "complete": True, "records": "noisy"},
    "fm without LocMRF": {
        "encoder": "fm",
        "epsilon": 4000.0,
        "sketches": 1500,
        "cuts": "quantiles",
        "local_mrf": False,
        "recover": "uniform",
        "consistency": False,
    },
}


@pytest.mark.parametrize("name", ALMOST_NOISELESS)
def test_the_six_phases_from_end_to_end(name: str, tmp_path: Path) -> None:
    """With a budget that leaves little noise the paper's procedure carries dependence across parties, whatever its
    options; and the report says that the tables are above the floor."""
    blocks = dependent_blocks(2000)
    with three_parties(tmp_path, blocks=blocks, seed=3, allow=("fm-sketches",)) as federation:
        method = VertiMRF(delta=1e-4, cells=5, iterations=300, rows=4000, **ALMOST_NOISELESS[name])
        result, run = federation.run(method)
        synthetic = read_table(run)
    for column in COLUMNS.values():
        column.encode(synthetic[column.name])
    real = blocks["court"].merge(blocks["bank"])
    p = real.groupby(["sued", "rating"]).size() / len(real)
    q = synthetic.groupby(["sued", "rating"], observed=True).size() / len(synthetic)
    assert p.sub(q, fill_value=0.0).abs().sum() / 2 < 0.1
    assert any(note.startswith("Noise moves a coarse cross-party table") for note in result.notes)
    if method.records == "noisy":
        assert abs(result.details["records"] - 2000) < 20


def test_the_report_says_when_a_run_is_worse_than_the_floor() -> None:
    """A dependence of 1/4 in 2 x 2 cells of 1,000 records, measured with little noise, with much, and not at all."""
    table = np.array([[375.0, 125.0], [125.0, 375.0]])
    (clear,) = against_the_floor([Measurement(("a", "b"), table, 10.0)], 1000)
    assert clear.startswith("Noise moves a coarse cross-party table by 0.016"), "sqrt(2/pi) x 10 x 4 / 2000"
    assert "is 0.23" in clear, "0.25 less 0.016"
    (hidden,) = against_the_floor([Measurement(("a", "b"), table, 200.0)], 1000)
    assert hidden.startswith("Worse than the floor")
    (none,) = against_the_floor([], 1000)
    assert "alone" in none


# --- the plan -----------------------------------------------------------------------------------------------------


def test_the_reports_cost_at_most_what_was_asked_for(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        for cuts in ("declared", "quantiles"):
            method = VertiMRF(encoder="fo", epsilon=0.7, delta=1e-5, cuts=cuts)
            assert 0.3 < federation.plan(method).total().epsilon <= 0.7, "basic composition is a safe budget"


def test_sketches_must_be_allowed(tmp_path: Path) -> None:
    with three_parties(tmp_path) as federation:
        assert "unbounded" in str(federation.plan(VertiMRF(encoder="fm")).total())
        with pytest.raises(UnboundedNotAllowed):
            VertiMRF(encoder="fm").fit(federation)


def test_options_are_data() -> None:
    for method in (VertiMRF(), VertiMRF(encoder="fo", columns=("age", "sued"), split=(0.3, 0.3, 0.4), bins=3)):
        assert VertiMRF.from_options(method.options()) == method


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"encoder": "hash"}, BadArguments),
        ({"encoder": "fo", "epsilon": None}, BadArguments),
        ({"delta": 0.0}, BadPrivacyParameter),
        ({"split": (0.5, 0.6, 0.1)}, BadPrivacyParameter),
        ({"bins": 0}, BadArguments),
        ({"rows": 0}, BadArguments),
        ({"max_clique": 0}, BadArguments),
        ({"records": "noisy"}, BadArguments),
        ({"encoder": "fo", "records": "noisy"}, BadArguments),
        ({"encoder": "fo", "sketches": 10}, BadArguments),
        ({"encoder": "fm", "accounting": "paper"}, BadArguments),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        VertiMRF(**options)


@pytest.mark.parametrize("encoder", ["fm", "fo"])
def test_as_printed_is_the_papers_section_7(encoder: str, tmp_path: Path) -> None:
    """Figures of section 7 by hand: 40 % for LocMRF, 4 % for the count, 36 % for LocEnc, 20 % for values."""
    printed = VertiMRF.as_printed(encoder=encoder, epsilon=2.0, delta=1 / 60)
    assert (printed.bins, printed.sketches, printed.complete, printed.records) == (4, 2000, True, "noisy")
    with three_parties(tmp_path) as federation:
        plan = federation.plan(printed)
        counted = plan.stage("record count").costs["clinic"]
        assert counted.number("epsilon") == pytest.approx(0.04 * 2.0)
        values = [plan.stage("value distributions").costs[party] for party in federation.facts.parties]
        spent = sum(leaf.number("epsilon") * leaf.count for cost in values for leaf in cost.leaves())
        assert spent == pytest.approx(0.2 * 2.0)
        if encoder == "fo":  # Theorem 3 as printed, for five columns: eps' = 2 epsilon / d
            leaf = next(leaf for leaf in plan.stage("LocEnc").costs["court"].leaves())
            assert leaf.number("epsilon") == pytest.approx(2 * 0.36 * 2.0 / 5)


# --- records that a party lacks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with three_parties(
        tmp_path_factory.mktemp("vertimrf"), blocks=three_overlapping_blocks(N), allow=("fm-sketches",), seed=1
    ) as consortium:
        yield consortium


def estimated(federation: Federation, make: Any) -> np.ndarray:
    """The table of sued and rating, as an encoder without noise estimates it."""
    schema = Schema.declared(federation.facts, bins=5)
    encoder = make(schema, federation.roster)
    with federation.open(plan_of_stages("vertimrf", encoder.stages)) as job:
        (table,) = encoder.encode(job, schema).tables([TableQuery.of(("sued", "rating"))], records=N)
    return np.asarray(table.counts)


@pytest.mark.parametrize("encoder", ["fm", "fo"])
@pytest.mark.parametrize("complete", [False, True])
def test_missing_data_says_where_a_record_counts_that_a_party_lacks(
    encoder: str, complete: bool, federation: Federation
) -> None:
    """Each party lacks a quarter of the records. Counted by hand as `missing_data` says it for these options."""
    blocks = three_overlapping_blocks(N)
    every = pd.DataFrame({"id": [f"K{i:05d}" for i in range(N)]})
    records = every.merge(blocks["court"], how="left").merge(blocks["bank"][["id", "rating"]], how="left")
    sued = [records["sued"] == value for value in ("no", "yes")]
    rating = [records["rating"] == value for value in "CBA"]
    said = VertiMRF(encoder=encoder, complete=complete).missing_data()
    if not complete:
        assert "counts the records that all its parties have" in said
    elif encoder == "fm":
        assert "with every value of that party's columns" in said
        sued, rating = ([value | records[n].isna() for value in c] for n, c in (("sued", sued), ("rating", rating)))
    else:
        assert "with the last value of that party's columns" in said
        sued[-1] |= records["sued"].isna()
        rating[-1] |= records["rating"].isna()
    by_hand = np.array([[(a & b).sum() for b in rating] for a in sued])
    make: Any = partial(FrequencyOracle, epsilon=30.0, bins=4, complete=complete)
    if encoder == "fm":
        make = partial(FMSketches, epsilon=None, sketches=3000, bins=4, complete=complete)
    tolerance = 6 * N / 3000**0.5 if encoder == "fm" else 1e-6
    assert np.abs(estimated(federation, make) - by_hand).max() <= tolerance
    apart = max(np.abs(by_hand - other).max() for other in _other_counts(records, by_hand))
    assert apart > tolerance, "another handling would be seen"


def _other_counts(records: pd.DataFrame, by_hand: np.ndarray) -> list[np.ndarray]:
    """The same table with absent records counted nowhere, and with the last value."""
    nowhere = pd.crosstab(records["sued"], records["rating"]).loc[["no", "yes"], list("CBA")].to_numpy()
    filled = records.fillna({"sued": "yes", "rating": "A"})
    last = pd.crosstab(filled["sued"], filled["rating"]).loc[["no", "yes"], list("CBA")].to_numpy()
    return [nowhere, last]
