"""Five institutions that know different things about the same small firms, and rarely about the same firm.

The shape is that of the VFEM paper's data, which is not public: its Table 1 (institutions, 12, 3, 6, 9 and 5 columns,
53.65, 87.61, 93.05, 0.91 and 93.28 % of the blocks missing) and its Table 2 (the variables). Values, dependence and
effects are ours. `docs/simulated-data.md` says where we depart from the paper and why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from colonnade.data.column import Column, Columns
from colonnade.data.simulated.example import (
    Equation,
    Example,
    Truth,
    cut_into_blocks,
    design_matrix,
    record_keys,
)
from colonnade.data.simulated.firm_columns import COVARIATES, FACTORS, Covariate
from colonnade.data.simulated.missingness import Presence, presence_at_exact_rates
from colonnade.errors import BadArguments

Missing = Literal["mar", "mcar"]
Holder = Literal["commerce", "credit"]

KEY = "firm"
ORGANISATIONS = {
    "credit": "Credit Agency",
    "market": "Market Supervision and Administration Bureau",
    "court": "Judicial Organ",
    "commerce": "Industry and Commerce Bureau",
    "enforcement": "Law-enforcement Agency",
}
MISSING_RATES = {"credit": 0.5365, "market": 0.8761, "court": 0.9305, "commerce": 0.0091, "enforcement": 0.9328}
SMALLEST_N = 200

RESPONSES = (
    Column(name="profit_growth", kind="continuous", lower=-2.0, upper=2.0, description="Net profit growth rate"),
    Column(name="failed", kind="binary", categories=(0, 1), description="Closed or insolvent within the next year"),
)
GROWTH_INTERCEPT = -0.35
GROWTH_NOISE = 0.25
FAILURE_INTERCEPT = -0.7

# Log-odds of **having** a block, per unit of (log10 capital - 6.2) / 0.7, (changes - 3) / 1.7, being in the east,
# being in the west, and profit_growth / 0.35. The commerce bureau holds all of these wherever it has the firm.
DRIVERS = ("capital", "changes", "east", "west", "profit_growth")
PRESENCE_LOG_ODDS = {
    "credit": (0.8, 0.0, 0.4, -0.4, 0.3),
    "market": (0.5, 0.2, 0.3, -0.3, 0.0),
    "court": (0.0, 0.5, 0.0, 0.4, -0.3),
    "commerce": (0.0, 0.0, 0.0, 0.0, 0.0),
    "enforcement": (0.3, 0.5, 0.2, 0.0, -0.2),
}


def five_institutions(
    n: int = 20_000,
    *,
    seed: int = 0,
    missing: Missing | None = "mar",
    response_holder: Holder = "commerce",
) -> Example:
    """Draw `n` firms. Exactly round(n x rate) of them are missing at each institution; each is known to somebody.

    `missing`: "mar" (which blocks exist depends on capital, changes, region and profit growth), "mcar" or None.
    `response_holder`: "commerce" (default): the response comes with the commerce bureau's block, so it is complete in
    the cohort of that bureau's firms, 99.09 % of all. "credit" is the paper's reading: the credit agency has a row
    with the responses for every firm, and its 12 covariates are empty cells in 53.65 % of these rows.
    The complete table depends on neither.
    """
    if n < SMALLEST_N:
        raise BadArguments(f"n = {n} leaves an institution with next to no firms: take at least {SMALLEST_N}.")
    if missing is not None and missing not in get_args(Missing):
        raise BadArguments(f"missing = {missing!r} is none of 'mar', 'mcar', None.")
    if response_holder not in get_args(Holder):
        raise BadArguments(f"response_holder = {response_holder!r} is none of 'commerce', 'credit'.")
    data, gaps, rows = (np.random.default_rng([seed, stream]) for stream in range(3))

    covariates = _draw_covariates(n, data)
    columns = _columns(response_holder)
    equations = _equations()
    design = design_matrix(covariates, columns)
    growth, failure = (equation.predictor(design) for equation in equations.values())
    noise = GROWTH_NOISE * data.standard_normal(n)
    complete = covariates.assign(
        profit_growth=np.clip(np.round(growth + noise, 4), -2.0, 2.0),
        failed=(data.random(n) < expit(failure)).astype(np.int64),
    )
    complete.insert(0, KEY, record_keys(n, "F", rows))

    seen = _presence(complete, missing, gaps)
    presence = pd.DataFrame(seen, columns=list(COVARIATES), index=complete[KEY])
    held = {party: [covariate.column.name for covariate in block] for party, block in COVARIATES.items()}
    table, rows_held = complete, presence
    if response_holder == "credit":
        table = _empty_where_absent(complete, held["credit"], presence["credit"].to_numpy())
        rows_held = presence.assign(credit=True)
    held[response_holder] = [*held[response_holder], *(column.name for column in RESPONSES)]
    return Example(
        name="five_institutions",
        key=KEY,
        blocks=cut_into_blocks(table, held, rows_held, key=KEY, rng=rows),
        columns=columns,
        organisations=dict(ORGANISATIONS),
        responses={column.name: column.kind for column in RESPONSES},
        response_holder=response_holder,
        truth=Truth(complete=complete, presence=presence, equations=equations, columns=columns),
        seed=seed,
        description=f"{n:,} simulated small firms at five institutions (VFEM paper), missing: {missing or 'nothing'}.",
    )


def _columns(response_holder: Holder) -> Columns:
    """All 35 covariates, then the responses. Only the paper's reading has rows with empty cells."""
    declared = []
    for party, block in COVARIATES.items():
        empty = party == response_holder == "credit"
        declared += [replace(covariate.column, missing=empty) for covariate in block]
    return Columns([*declared, *RESPONSES])


def _equations() -> dict[str, Equation]:
    effect: dict[str, float] = {}
    log_odds: dict[str, float] = {}
    for covariate in (covariate for block in COVARIATES.values() for covariate in block):
        name, categories = covariate.column.name, covariate.column.categories or ()
        nominal = covariate.column.kind == "categorical"
        names = [f"{name}[{category}]" for category in categories[1:]] if nominal else [name]
        effect.update(zip(names, covariate.effect, strict=True))
        log_odds.update(zip(names, covariate.log_odds, strict=True))
    growth = Equation(
        response="profit_growth",
        family="gaussian",
        intercept=GROWTH_INTERCEPT,
        coefficients=pd.Series(effect, name="coefficient"),
        noise=GROWTH_NOISE,
    )
    failure = Equation(
        response="failed",
        family="binomial",
        intercept=FAILURE_INTERCEPT,
        coefficients=pd.Series(log_odds, name="coefficient"),
    )
    return {equation.response: equation for equation in (growth, failure)}


def _draw_covariates(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Nominal columns first: they shift the factors; then every other column from the factors."""
    every = [covariate for block in COVARIATES.values() for covariate in block]
    codes = {c.column.name: c.marginal(rng.standard_normal(n)) for c in every if c.shifts}
    factors = {factor: rng.standard_normal(n) for factor in FACTORS}
    for covariate in every:
        for code, category in enumerate(covariate.column.categories or () if covariate.shifts else ()):
            of_category = codes[covariate.column.name] == code
            for factor, shift in covariate.shifts[str(category)].items():
                factors[factor] = factors[factor] + shift * of_category
    return pd.DataFrame({c.column.name: _values(c, codes.get(c.column.name), factors, rng, n) for c in every})


def _values(
    covariate: Covariate,
    code: NDArray[np.float64] | None,
    factors: dict[str, NDArray[np.float64]],
    rng: np.random.Generator,
    n: int,
) -> NDArray[np.generic]:
    """One column inside its domain: rounded to four decimals or whole numbers and clipped, or a category."""
    column = covariate.column
    if code is None:
        own = np.sqrt(1.0 - sum(loading**2 for loading in covariate.loadings.values()))
        latent = own * rng.standard_normal(n)
        for factor, loading in covariate.loadings.items():
            latent += loading * factors[factor]
        code = covariate.marginal(latent)
    if column.categories is not None:
        return np.asarray(column.categories)[code.astype(np.int64)]
    if column.kind == "count":
        return np.clip(np.rint(code), column.lower, column.upper).astype(np.int64)
    return np.clip(np.round(code, 4), column.lower, column.upper)


def _presence(complete: pd.DataFrame, missing: Missing | None, rng: np.random.Generator) -> Presence:
    parties = list(COVARIATES)
    if missing is None:
        return np.ones((len(complete), len(parties)), dtype=np.bool_)
    scores = np.zeros((len(complete), len(parties)))
    if missing == "mar":
        drivers = np.column_stack(
            [
                (complete["capital"] - 6.2) / 0.7,
                (complete["changes"] - 3.0) / 1.7,
                complete["region"] == "east",
                complete["region"] == "west",
                complete["profit_growth"] / 0.35,
            ]
        )
        scores = -drivers @ np.array([PRESENCE_LOG_ODDS[party] for party in parties]).T
    rates = [MISSING_RATES[party] for party in parties]
    return presence_at_exact_rates(scores, rates, rng, anchor=parties.index("commerce"))


def _empty_where_absent(complete: pd.DataFrame, names: list[str], present: NDArray[np.bool_]) -> pd.DataFrame:
    """The same table with empty cells; whole numbers become pandas' nullable integers."""
    whole = complete[names].select_dtypes("integer").columns
    emptied = complete.astype(dict.fromkeys(whole, "Int64"))
    emptied.loc[~present, names] = None
    return emptied
