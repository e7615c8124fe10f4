"""The designs of the study of intervals: simulated columns, the five institutions, and bootstraps of real tables.

A design gives complete records with the coefficients that they have; a mechanism knocks blocks out. The response
holder's block is always there. Blocks go missing independently given the holder's columns, half of the records each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.common import load
from benchmarks.vfem_coverage import (
    BETA,
    BLOCKS,
    CORRELATION,
    COVARIATES,
    EACH,
    NOISE,
    half_binary,
    intercept,
    lognormal,
)
from benchmarks.vfem_prediction import _feature, column_features
from colonnade.data.simulated import five_institutions

Array = NDArray[np.float64]
Mechanism = Literal["none", "mcar", "mar-y", "mar-x", "nonlinear"]
MECHANISMS: tuple[Mechanism, ...] = ("none", "mcar", "mar-y", "mar-x", "nonlinear")
RATE = 0.5
SLOPE = 1.2
"""Log-odds of missing for one standard deviation of what they depend on; alternating signs over the blocks."""
RARE = 0.01
BOOTSTRAP = 20_000
"""Records of a bootstrap, or as many as the table has."""


@dataclass(frozen=True, eq=False)
class Records:
    """Complete records: the holder's covariates, the response, the other parties' columns and whose each is.

    `truth` has the intercept, the holder's slopes and the others'. `present` is given where the design has its own
    mechanism.
    """

    own: Array
    response: Array
    others: Array
    block: NDArray[np.intp]
    truth: Array
    present: NDArray[np.bool_] | None = None

    @property
    def spread(self) -> Array:
        """What one unit of a slope is worth: the standard deviation of its column over that of the response."""
        return np.column_stack([self.own, self.others]).std(axis=0) / self.response.std()


# --- simulated columns --------------------------------------------------------------------------------------


def plain(z: Array) -> Array:
    return z


def zero_inflated(z: Array) -> Array:
    """Two thirds zeros, then lognormal: as amounts are."""
    return np.where(z > 0.43, np.exp(z), 0.0)


def three_levels(z: Array) -> Array:
    """Codes 0, 1, 2 with shares .6, .3, .1."""
    return (z > 0.2533).astype(float) + (z > 1.2816)


def heavy_tails(z: Array, rng: np.random.Generator) -> Array:
    """A common random scale: Student's t with 6 degrees of freedom, unit variance; not a copula."""
    return np.asarray(z * np.sqrt(4 / rng.chisquare(6, size=(len(z), 1))))


def squares(z: Array) -> Array:
    """Every other column contains the square of the common factor."""
    out = z.copy()
    factor = z.mean(axis=1, keepdims=True) / np.sqrt(CORRELATION + (1 - CORRELATION) / z.shape[1])
    out[:, ::2] = 0.8 * z[:, ::2] + 0.42 * (factor**2 - 1)
    return out


SHAPES: Mapping[str, Callable[..., Array]] = {
    "gaussian": plain,
    "lognormal": lognormal,
    "half-binary": half_binary,
    "heavy tails": heavy_tails,
    "zero-inflated": zero_inflated,
    "three levels": three_levels,
    "squares": squares,
}


def simulated(name: str, rng: np.random.Generator, n: int = 5000) -> Records:
    z = np.sqrt(CORRELATION) * rng.normal(size=(n, 1)) + np.sqrt(1 - CORRELATION) * rng.normal(size=(n, COVARIATES))
    x = heavy_tails(z, rng) if name == "heavy tails" else SHAPES[name](z)
    y = x @ BETA + NOISE * rng.normal(size=n)
    block = np.repeat(np.arange(BLOCKS - 1), EACH)
    return Records(x[:, :EACH], y, x[:, EACH:], block, np.concatenate([[0.0], BETA]))


# --- the five institutions ----------------------------------------------------------------------------------


def institutions(n: int, seed: int, mechanism: Mechanism) -> Records:
    """Their own mechanism (rates from 1 to 98 %) stands for "mar-y" and "mcar"."""
    response = "profit_growth"
    example = five_institutions(n, seed=seed, missing="mcar" if mechanism == "mcar" else "mar")
    table = example.truth.complete
    known = [
        feature
        for party, block in example.blocks.items()
        for name in block.columns
        if name in example.columns and name not in set(example.responses) - {response}
        for feature in column_features(party, example.columns[name])
    ]
    rows = np.column_stack([_feature(feature, example, table) for feature in known])
    used = example.truth.presence["commerce"].to_numpy(bool)
    names = [feature.name for feature in known]
    target = names.index(response)
    own = [place for place, feature in enumerate(known) if feature.party == "commerce" and place != target]
    parties = ["credit", "market", "court", "enforcement"]
    others = [place for place, feature in enumerate(known) if feature.party in parties]
    order = [*own, *others]
    half = np.array([feature.half for feature in known])
    slopes = example.truth.equations[response].coefficients[[names[place] for place in order]].to_numpy()
    present = None
    if mechanism in ("mcar", "mar-y"):
        present = example.truth.presence[parties].to_numpy(bool)[used]
    return Records(
        rows[np.ix_(used, own)],
        rows[used, target],
        rows[np.ix_(used, others)],
        np.array([parties.index(known[place].party) for place in others]),
        np.concatenate([[np.nan], slopes * half[order] / half[target]]),
        present,
    )


# --- real tables --------------------------------------------------------------------------------------------


def levels(column: pd.Series[str]) -> pd.DataFrame:
    """Indicators of each level but the most frequent; levels below 1 % of the records are joined to that one."""
    shares = column.astype(str).value_counts(normalize=True)
    names = [name for name in shares.index[1:] if shares[name] >= RARE]
    return pd.DataFrame({f"{column.name}[{name}]": (column.astype(str) == name).astype(float) for name in names})


def _adult() -> tuple[pd.Series[float], list[pd.DataFrame]]:
    table = load("adult")
    own = pd.DataFrame({"age": table.age, "male": table.sex == "Male", "education": table.education_num})
    money = pd.DataFrame(
        {
            "gain": np.log1p(table.capital_gain),
            "loss": np.log1p(table.capital_loss),
            "rich": table.income.astype(str).str.contains(">50K"),
        }
    )
    family = pd.concat([levels(table.marital_status), levels(table.race)], axis=1)
    return table.hours_per_week.astype(float), [own, money, family, levels(table.workclass)]


def _bank() -> tuple[pd.Series[float], list[pd.DataFrame]]:
    table = load("bank_marketing")
    own = pd.concat(
        [pd.DataFrame({"age": table.age, "campaign": np.log(table.campaign)}), levels(table.contact)], axis=1
    )
    account = pd.DataFrame(
        {
            "balance": np.arcsinh(table.balance),
            "housing": table.housing_loan == "yes",
            "personal": table.personal_loan == "yes",
            "default": table.credit_default == "yes",
        }
    )
    person = pd.concat([levels(table.job), levels(table.education), levels(table.marital)], axis=1)
    earlier = pd.concat([pd.DataFrame({"previous": np.log1p(table.previous)}), levels(table.poutcome)], axis=1)
    return pd.Series(np.log1p(table.duration)), [own, account, person, earlier]


def _acs() -> tuple[pd.Series[float], list[pd.DataFrame]]:
    table = load("acs_income_ca_tx_ny_fl")
    own = pd.DataFrame({"age": table.age, "female": table.sex == 2})
    work = pd.concat([levels(table.class_of_worker), pd.DataFrame({"rich": table.income_gt_50k})], axis=1)
    person = pd.concat([levels(table.marital_status), levels(table.race)], axis=1)
    school = pd.concat([pd.DataFrame({"schooling": table.schooling}), levels(table.state)], axis=1)
    return table.hours_per_week.astype(float), [own, work, person, school]


def _rand() -> tuple[pd.Series[float], list[pd.DataFrame]]:
    table = load("rand_hie")
    table = table[table.year == 1].dropna(subset=["fmde", "lpi"]).reset_index(drop=True)
    own = table[["xage", "female"]]
    home = pd.DataFrame({"linc": table.linc, "lfam": table.lfam, "black": table.black, "child": table.child})
    health = table[["xghindx", "disea", "physlm", "mhi"]]
    plan = table[["logc", "idp", "fmde", "lpi"]]
    return pd.Series(np.log1p(table.meddol)), [own, home, health, plan]


TABLES: Mapping[str, Callable[[], tuple[pd.Series[float], list[pd.DataFrame]]]] = {
    "Adult": _adult,
    "Bank": _bank,
    "ACS": _acs,
    "rand_hie": _rand,
}


@cache
def _whole(name: str) -> tuple[Array, Array, Array, NDArray[np.intp], Array]:
    """The table, and the coefficients of ordinary least squares on all of it: what a bootstrap estimates."""
    response, parts = TABLES[name]()
    own, others = parts[0].to_numpy(float), np.column_stack([part.to_numpy(float) for part in parts[1:]])
    block = np.repeat(np.arange(len(parts) - 1), [part.shape[1] for part in parts[1:]])
    y = response.to_numpy(float)
    design = np.column_stack([np.ones(len(y)), own, others])
    return own, y, others, block, np.linalg.lstsq(design, y, rcond=None)[0]


def bootstrap(name: str, rng: np.random.Generator, n: int | None = None) -> Records:
    own, y, others, block, truth = _whole(name)
    drawn = rng.integers(len(y), size=min(len(y), BOOTSTRAP) if n is None else n)
    return Records(own[drawn], y[drawn], others[drawn], block, truth)


# --- cells --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    design: str
    mechanism: Mechanism

    @property
    def name(self) -> str:
        return f"{self.design}, {self.mechanism}"

    @property
    def firms(self) -> int:
        """How many firms, where the design is the five institutions."""
        return int(self.design.removeprefix("institutions ")) if self.design.startswith("institutions") else 0


def complete_records(cell: Cell, rng: np.random.Generator) -> Records:
    if cell.firms:
        return institutions(cell.firms, int(rng.integers(2**31)), cell.mechanism)
    return simulated(cell.design, rng) if cell.design in SHAPES else bootstrap(cell.design, rng)


def presence(cell: Cell, records: Records, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which of the other parties' blocks each record has."""
    n, blocks = len(records.response), int(records.block.max()) + 1
    if cell.mechanism == "none":
        return np.ones((n, blocks), dtype=bool)
    if records.present is not None:
        return records.present
    y, z = _standard(records.response), _standard(records.own[:, 0])
    score = {
        "mcar": np.zeros(n),
        "mar-y": SLOPE * y,
        "mar-x": SLOPE * z,
        "nonlinear": SLOPE * ((y**2 - 1) / 2 + z * (y > 0)),
    }[cell.mechanism]
    gone = []
    for number in range(blocks):
        signed = score if number % 2 else -score
        gone.append(rng.random(n) < expit(signed + intercept(signed, RATE)))
    return ~np.column_stack(gone)


def _standard(values: Array) -> Array:
    """Within two and a half standard deviations, so that every record can have every pattern."""
    return np.clip((values - values.mean()) / values.std(), -2.5, 2.5)
