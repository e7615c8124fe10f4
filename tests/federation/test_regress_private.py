"""A private regression at the border: what must be allowed, what is sent, and columns that are not continuous.

Oracle: statsmodels on pooled records, where nothing is missing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from colonnade.data.column import Column, Columns
from colonnade.errors import UnboundedNotAllowed
from colonnade.federation.coordinator import Federation
from colonnade.models.linear.regress import Regress

COLUMNS = Columns(
    [
        Column(name="wage", kind="continuous", lower=-50.0, upper=150.0),
        Column(name="age", kind="continuous", lower=0.0, upper=120.0),
        Column(name="sued", kind="binary", categories=("no", "yes")),
        Column(name="sector", kind="categorical", categories=("farming", "trade", "mining")),
        Column(name="visits", kind="count", lower=0, upper=40),
    ]
)
HELD = {"employer": ["wage", "age"], "court": ["sued", "sector"], "clinic": ["visits"]}


def table(n: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = np.clip(45 + 10 * rng.normal(size=n), 0, 120)
    sued = rng.random(n) < 0.2
    sector = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    visits = np.clip(np.rint(10 + 0.1 * (age - 45) + 3 * rng.normal(size=n)), 0, 40).astype(int)
    wage = 20 + 0.3 * age - 4 * sued + 3 * (sector == 1) - 0.5 * visits + 4 * rng.normal(size=n)
    return pd.DataFrame(
        {
            "id": [f"P{i:05d}" for i in range(n)],
            "wage": wage,
            "age": age,
            "sued": np.where(sued, "yes", "no"),
            "sector": np.array(["farming", "trade", "mining"])[sector],
            "visits": visits,
        }
    )


def federation(path: Path, whole: pd.DataFrame, **options: object) -> Federation:
    blocks = {party: whole[["id", *names]] for party, names in HELD.items()}
    return Federation.local(blocks, key="id", columns=COLUMNS, home=path / "home", runs=path / "runs", **options)


def test_a_party_that_does_not_show_its_mask_takes_no_part(tmp_path: Path) -> None:
    with federation(tmp_path, table(60)) as parties, pytest.raises(UnboundedNotAllowed):
        Regress(response="wage", epsilon=3.0).fit(parties, sure=True)


def test_binary_and_categorical_columns_and_only_planned_steps(tmp_path: Path) -> None:
    """Hardly any noise, nothing missing: ordinary least squares, up to what clipping numeric columns costs (a third of
    a standard error). The plan, beyond which a party refuses every request, names these steps."""
    whole = table(3000)
    with federation(tmp_path, whole, allow=("presence",)) as parties:
        wanted = Regress(response="wage", epsilon=1e8)
        plan = parties.plan(wanted)
        result, run = parties.run(wanted)
    design = pd.DataFrame(
        {
            "age": whole["age"],
            "sued": (whole["sued"] == "yes").astype(float),
            "sector[trade]": (whole["sector"] == "trade").astype(float),
            "sector[mining]": (whole["sector"] == "mining").astype(float),
            "visits": whole["visits"].astype(float),
        }
    )
    ols = sm.OLS(whole["wage"], sm.add_constant(design)).fit()
    assert set(result.params.index) == {"const", *design.columns}
    gap = (result.params[ols.params.index] - ols.params) / ols.bse
    assert np.abs(gap).max() < 0.35
    np.testing.assert_allclose(result.bse[ols.bse.index], ols.bse, rtol=0.05)
    planned = {one.step for one in plan.stages}
    joint = {"share_rows", "compare_shares", "open_shares"}
    joint |= {"show_coin", "prove_shares", "answer_proofs", "conclude"}  # of verification
    assert {name.rpartition(".")[2] for name in planned} == {
        "block_norms",
        "tell_presence",
        "own_moments",
        "weighted_moments",
        "marginal",
        *joint,
    }
    assert run.path.is_dir()
