"""`Complete(draws=m)` across three parties: joint draws, domains, tables that can be sources, and pooled regressions
beside those of the pooled records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from benchmarks.pooled_imputation import drawn_tables

import colonnade as co
from colonnade.completion.layout import COHORT_ROW
from colonnade.completion.result import Completion
from colonnade.completion.split import training
from colonnade.errors import BadArguments, NotEstimable

ALLOW = ("presence", "linear-predictors", "completion-quality", "exact-moments")
DRAWS = 8


def three_parties(n: int = 900) -> tuple[dict[str, pd.DataFrame], co.Columns]:
    """`bank` has all records; `clinic` (an amount with many zeros, a category) and `shop` lack a third each. What the
    last two have in common is not known to the first. A tenth of the clinic's amounts are empty."""
    rng = np.random.default_rng(7)
    common, second = rng.normal(size=(2, n))
    noise = rng.normal(size=(4, n))
    x = common + noise[0]
    spent = np.round(np.maximum(0.7 * x + second, 0.0), 2)
    kind = np.where(second + noise[1] > 0.8, "c", np.where(x + noise[1] > 0, "b", "a"))
    visits = 2 + 0.5 * x + second + 0.5 * noise[2]
    y = x + 0.5 * spent - 0.5 * visits + noise[3]
    table = pd.DataFrame({"id": np.arange(n), "y": y, "x": x, "spent": spent, "kind": kind, "visits": visits})
    blocks = {
        "bank": table[["id", "y", "x"]],
        "clinic": table.loc[rng.random(n) < 0.67, ["id", "spent", "kind"]],
        "shop": table.loc[rng.random(n) < 0.67, ["id", "visits"]],
    }
    gone = rng.random(len(blocks["clinic"])) < 0.1
    blocks["clinic"] = blocks["clinic"].assign(spent=blocks["clinic"]["spent"].mask(gone))
    columns = co.Columns(
        [
            co.Column(name="y", kind="continuous", lower=-15, upper=15),
            co.Column(name="x", kind="continuous", lower=-10, upper=10),
            co.Column(name="spent", kind="continuous", lower=0, upper=10, missing=True),
            co.Column(name="kind", kind="categorical", categories=("a", "b", "c")),
            co.Column(name="visits", kind="continuous", lower=-10, upper=15),
        ]
    )
    return blocks, columns


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> tuple[Completion, dict[str, pd.DataFrame], co.Columns]:
    blocks, columns = three_parties()
    options: dict[str, Any] = {"allow": ALLOW, "seed": 2, "home": tmp_path_factory.mktemp("home")}
    with (
        pytest.MonkeyPatch.context() as patch,
        co.Federation.local(blocks, key="id", columns=columns, **options) as federation,
    ):
        patch.setattr(training, "CHUNK", 256)  # four messages for each party
        return co.Complete(imputer="mice", draws=DRAWS).fit(federation), blocks, columns


def test_every_party_has_every_record_in_every_draw_with_its_own_values_untouched(completion: Any) -> None:
    result, blocks, _ = completion
    long = result.table("clinic")
    assert sorted(set(long["draw"])) == list(range(1, DRAWS + 1))
    own = long[long["id"].notna() & ~long["spent (generated)"]]
    truth = blocks["clinic"].set_index("id")["spent"]
    assert (own["spent"].to_numpy() == truth.loc[own["id"].astype(int)].to_numpy()).all()
    for draw in (1, DRAWS):
        tables = result.blocks(draw)
        assert {party: len(table) for party, table in tables.items()} == dict.fromkeys(blocks, 900)
        assert not any(table.isna().any().any() for table in tables.values())
        assert set(tables["clinic"]["spent"]) <= set(truth.dropna())  # donors' values alone: zeros, two digits
        assert set(tables["clinic"]["kind"]) <= {"a", "b", "c"}
    zeros = [(table["spent"] == 0).mean() for table in (result.blocks(draw)["clinic"] for draw in (1, 2, 3))]
    assert np.abs(np.array(zeros) - (truth.dropna() == 0).mean()).max() < 0.05
    first, other = (result.blocks(draw)["clinic"]["spent"] for draw in (1, 2))
    assert (first != other).mean() > 0.1


def test_what_two_parties_lack_of_one_record_is_drawn_jointly(completion: Any) -> None:
    result, _, _ = completion
    generated = [result.table(party) for party in ("clinic", "shop")]
    both = generated[0].merge(generated[1], on=["draw", COHORT_ROW])
    given = both.merge(result.table("bank")[["draw", COHORT_ROW, "x"]], on=["draw", COHORT_ROW])

    def partial(rows: pd.DataFrame) -> float:
        """The correlation of amount and visits that x does not explain."""
        left = [
            rows[name] - np.polyval(np.polyfit(rows["x"], rows[name], 1), rows["x"]) for name in ("spent", "visits")
        ]
        return float(np.corrcoef(left)[0, 1])

    lacking = given["kind (generated)"] & given["visits (generated)"]
    known = ~given["spent (generated)"] & ~given["visits (generated)"]
    assert lacking.sum() > 500
    assert partial(given[known]) > 0.5
    assert partial(given[lacking]) == pytest.approx(partial(given[known]), abs=0.12)


def regressions(tables: list[pd.DataFrame]) -> Any:
    fits = []
    for table in tables:
        design = pd.get_dummies(table[["x", "spent", "kind", "visits"]], columns=["kind"], dtype=float)
        design = design[["x", "spent", "visits", "kind_b", "kind_c"]].astype(float)
        fits.append(sm.OLS(table["y"], sm.add_constant(design)).fit())
    return co.pool(fits)


def test_pooled_regressions_are_those_of_pooled_records(completion: Any) -> None:
    """The same mathematics on one pooled table without empty cells, with other random numbers."""
    result, blocks, _ = completion
    ours = regressions(
        [
            result.blocks(draw)["bank"]
            .merge(result.blocks(draw)["clinic"], on=COHORT_ROW)
            .merge(result.blocks(draw)["shop"], on=COHORT_ROW)
            for draw in range(1, DRAWS + 1)
        ]
    )
    table = blocks["bank"].merge(blocks["clinic"], on="id", how="left").merge(blocks["shop"], on="id", how="left")
    # One column at a party here: an empty amount makes the whole block missing.
    table.loc[table["spent"].isna(), ["kind"]] = np.nan
    levels = [(table["kind"] == level).where(table["kind"].notna()).astype(float) for level in "bc"]
    rows = np.column_stack([table[["y", "x", "spent"]], *levels, table["visits"]]).astype(float)
    places = [[np.array([0]), np.array([1])], [np.array([2]), np.array([3, 4])], [np.array([5])]]
    tables = []
    for drawn in drawn_tables(rows, places, DRAWS, np.random.default_rng(3)):
        kind = np.select([drawn[:, 3] == 1, drawn[:, 4] == 1], ["b", "c"], "a")
        tables.append(pd.DataFrame(drawn[:, [0, 1, 2, 5]], columns=["y", "x", "spent", "visits"]).assign(kind=kind))
    theirs = regressions(tables)
    assert np.abs((ours.params - theirs.params) / theirs.bse).max() < 0.8
    assert (ours.bse / theirs.bse).between(0.75, 1.3).all()
    assert ours.lambda_["visits"] > 0.1


def test_the_draws_are_sources_and_regress_is_pooled(completion: Any, tmp_path: Path) -> None:
    result, _, columns = completion
    fits = []
    for draw in (1, 2):
        with co.Federation.local(
            result.blocks(draw), key=COHORT_ROW, columns=columns, allow=("exact-moments", "presence"), seed=1
        ) as federation:
            fits.append(co.Regress(response="y", missing="em").fit(federation))
    pooled = co.pool(fits)
    assert pooled.nobs == 900
    assert pooled.response == "y"
    assert list(pooled.params.index) == list(fits[0].params.index)


def test_refusals(tmp_path: Path) -> None:
    for wrong in ({"draws": 1}, {"draws": 5, "imputer": "mean"}, {"draws": 5, "parties": ("a",)}):
        with pytest.raises(BadArguments):
            co.Complete(**{"imputer": "mice", **wrong})  # type: ignore[arg-type]
    blocks, columns = three_parties(200)
    apart = {**blocks, "shop": blocks["shop"][~blocks["shop"]["id"].isin(blocks["clinic"]["id"])]}
    with (
        co.Federation.local(apart, key="id", columns=columns, allow=ALLOW, seed=2, home=tmp_path) as federation,
        pytest.raises(NotEstimable, match="no record is at both 'clinic' and 'shop'"),
    ):
        co.Complete(imputer="mice", draws=2).fit(federation)
