"""Five institutions that know different things about the same small firms, and rarely about the same firm.

The shape is that of the VFEM paper's data, which is not public: its Table 1 (institutions, 12, 3, 6, 9 and 5 columns,
53.65, 87.61, 93.05, 0.91 and 93.28 % of the blocks missing) and its Table 2 (the variables). Values, dependence and
effects are ours. `docs/simulated-data.md` says where we depart from the paper and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, ndtr
from scipy.stats import poisson

from colonnade.data.column import Category, Column, Columns, Kind
from colonnade.data.simulated.example import Equation, Example, Truth, cut_into_blocks, design_matrix, record_keys
from colonnade.data.simulated.missingness import Presence, presence_at_exact_rates
from colonnade.errors import BadArguments

# --- the 35 covariates: domain, dependence and effect of each, in the order of the VFEM paper
#
# The paper prints abbreviations; its Appendix D, which explains them, is not part of it. Where its text says what one
# means we follow it, otherwise the description is our reading. Every domain is a round public number fixed here.
#
# Each covariate has a standard normal latent z = loadings' f + rest, and a marginal that turns z into a value.
# `effect` is its effect on `profit_growth` per unit of the encoded column, with the sign of the paper's CC-VFEM
# estimate and zero where that is not significant; `log_odds` that on the log-odds of `failed`.

# What moves firms in all five institutions at once.
FACTORS = ("size", "profit", "momentum", "risk", "age")


class Marginal(Protocol):
    def __call__(self, z: NDArray[np.float64]) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class Normal:
    mean: float
    sd: float

    def __call__(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.mean + self.sd * z


@dataclass(frozen=True)
class LogNormal:
    median: float
    sigma: float

    def __call__(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.median * np.exp(self.sigma * z)


@dataclass(frozen=True)
class Poisson:
    """`start` plus a Poisson count, as the quantile of the latent value."""

    mean: float
    start: int = 0

    def __call__(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        steps = poisson.cdf(np.arange(64), self.mean)
        return self.start + np.searchsorted(steps, ndtr(z)).astype(np.float64)


@dataclass(frozen=True)
class Shares:
    """Codes 0, 1, ... with these shares, increasing in the latent value."""

    shares: tuple[float, ...]

    def __call__(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.searchsorted(np.cumsum(self.shares)[:-1], ndtr(z)).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Covariate:
    """One variable of the paper's Table 2."""

    paper: str
    column: Column
    marginal: Marginal
    loadings: Mapping[str, float]
    effect: tuple[float, ...]
    log_odds: tuple[float, ...]
    # A categorical column moves the factors instead of being moved by them: category -> factor -> shift.
    shifts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def _bounded(
    paper: str, name: str, kind: Kind, bounds: tuple[float, float], marginal: Marginal, text: str,
    *, effect: float, log_odds: float = 0.0, **loadings: float,
) -> Covariate:  # fmt: skip
    column = Column(name=name, kind=kind, lower=bounds[0], upper=bounds[1], description=text)
    return Covariate(
        paper=paper, column=column, marginal=marginal, loadings=loadings, effect=(effect,), log_odds=(log_odds,)
    )


def _ordered(
    paper: str, name: str, shares: Mapping[Category, float], text: str,
    *, effect: float, log_odds: float = 0.0, **loadings: float,
) -> Covariate:  # fmt: skip
    kind: Kind = "binary" if len(shares) == 2 else "ordinal"
    return Covariate(
        paper=paper,
        column=Column(name=name, kind=kind, categories=tuple(shares), description=text),
        marginal=Shares(tuple(shares.values())),
        loadings=loadings,
        effect=(effect,),
        log_odds=(log_odds,),
    )


def _flag(
    paper: str, name: str, share: float, text: str, *, effect: float, log_odds: float = 0.0, **loadings: float
) -> Covariate:
    return _ordered(paper, name, {0: 1.0 - share, 1: share}, text, effect=effect, log_odds=log_odds, **loadings)


def _nominal(
    paper: str, name: str, shares: Mapping[str, float], text: str,
    *, effect: tuple[float, ...], shifts: Mapping[str, Mapping[str, float]],
) -> Covariate:  # fmt: skip
    return Covariate(
        paper=paper,
        column=Column(name=name, kind="categorical", categories=tuple(shares), description=text),
        marginal=Shares(tuple(shares.values())),
        loadings={},
        effect=effect,
        log_odds=(0.0,) * (len(shares) - 1),
        shifts=shifts,
    )


# fmt: off
CREDIT = (
    _bounded("EMP", "employees", "count", (1, 500), LogNormal(18, 0.8), "Number of employees",
             effect=-0.001, size=0.8, age=0.2),
    _bounded("ASC", "shareholder_contribution", "continuous", (3, 9), Normal(6.0, 0.7),
             "Amount of shareholder contribution, log10 yuan", effect=0.07, size=0.6, age=0.1),
    _bounded("ROA", "roa", "continuous", (-0.5, 0.5), Normal(0.04, 0.08), "Return on total assets",
             effect=0.9, log_odds=-3.0, profit=0.8, risk=-0.2),
    _bounded("ROE", "roe", "continuous", (-1, 1), Normal(0.08, 0.16), "Return on equity",
             effect=0.3, profit=0.75, risk=-0.2),
    _bounded("OPM", "operating_margin", "continuous", (-0.75, 0.75), Normal(0.06, 0.12), "Operating profit margin",
             effect=-0.3, profit=0.7),
    _ordered("Scale", "scale", {"micro": 0.55, "small": 0.33, "medium": 0.12}, "Size class of the firm",
             effect=0.08, log_odds=-0.2, size=0.8),
    _bounded("TBR", "tax_burden", "continuous", (0, 0.25), LogNormal(0.03, 0.5), "Tax burden rate",
             effect=1.0, profit=0.3, size=0.3),
    _bounded("ALR", "liability_ratio", "continuous", (0, 1.5), Normal(0.55, 0.2), "Asset liability ratio",
             effect=-0.25, log_odds=1.5, risk=0.65, profit=-0.2),
    _bounded("ER", "equity_ratio", "continuous", (0, 6), LogNormal(1.0, 0.45), "Equity ratio",
             effect=0.0, risk=0.5),
    _bounded("SGR", "sales_growth", "continuous", (-1, 1.5), Normal(0.08, 0.25), "Growth rate of sales",
             effect=0.35, momentum=0.7, profit=0.2),
    _bounded("EGR", "equity_growth", "continuous", (-1, 1), Normal(0.06, 0.2), "Growth rate of shareholders' equity",
             effect=0.0, momentum=0.6, profit=0.3),
    _bounded("AGR", "asset_growth", "continuous", (-1, 1), Normal(0.07, 0.2), "Growth rate of assets",
             effect=0.25, momentum=0.7, size=0.1),
)
MARKET = (
    _bounded("FOI", "inspections", "count", (0, 15), Poisson(2.5), "Frequency of inspections",
             effect=0.04, size=0.5, risk=0.4),
    _bounded("CI", "findings_corrected", "count", (0, 10), Poisson(1.2), "Inspection findings that the firm corrected",
             effect=-0.03, size=0.3, risk=0.4),
    _bounded("NCI", "findings_open", "count", (0, 10), Poisson(0.8), "Inspection findings that are not corrected",
             effect=-0.05, log_odds=0.2, risk=0.65),
)
COURT = (
    _bounded("ABNAP", "reports_missed", "count", (0, 6), Poisson(0.8), "Annual reports that were not submitted",
             effect=-0.05, log_odds=0.25, risk=0.65, age=-0.2),
    _flag("ABNCON", "unreachable", 0.25, "Cannot be contacted at the registered address",
          effect=-0.12, log_odds=0.5, risk=0.6, size=-0.3),
    _flag("ABNINF", "false_information", 0.15, "Disclosed information that was false or hidden",
          effect=0.06, risk=0.55),
    _flag("ABNPUB", "undisclosed", 0.20, "Did not make company information public",
          effect=-0.08, risk=0.55, age=-0.2),
    _flag("ABNOPE", "absent_from_premises", 0.15, "Does no business at the registered location",
          effect=-0.10, risk=0.5, size=-0.4),
    _flag("Removed", "removed", 0.45, "Was removed from the list of anomalies since",
          effect=-0.05, age=0.5, profit=0.2),
)
COMMERCE = (
    _nominal("ADDR", "region", {"east": 0.34, "south": 0.24, "centre": 0.18, "north": 0.14, "west": 0.10},
             "Region of the registered address", effect=(0.0, -0.05, -0.05, -0.10),
             shifts={"east": {"size": 0.3, "profit": 0.2}, "south": {"momentum": 0.3}, "centre": {"size": -0.2},
                     "north": {"age": 0.3, "profit": -0.2}, "west": {"risk": 0.4, "size": -0.4}}),
    _flag("LP", "legal_person_changed", 0.30, "The legal representative has changed",
          effect=0.05, age=0.55),
    _bounded("EXECU", "executive_changes", "count", (0, 8), Poisson(1.0), "Changes of executives",
             effect=0.04, age=0.5, size=0.3),
    _nominal("SCOPE", "scope",
             {"services": 0.32, "trade": 0.28, "manufacturing": 0.20, "construction": 0.12, "farming": 0.08},
             "Main line of the registered business scope", effect=(-0.03, 0.0, -0.06, -0.08),
             shifts={"services": {"momentum": 0.2, "size": -0.2}, "trade": {"size": -0.2, "risk": 0.1},
                     "manufacturing": {"size": 0.5, "age": 0.3}, "construction": {"risk": 0.4, "size": 0.2},
                     "farming": {"profit": -0.3, "age": 0.2}}),
    _flag("COMNAME", "name_changed", 0.15, "The company name has changed",
          effect=-0.06, age=0.4, momentum=0.2),
    _ordered("TERM", "term", {"to 10": 0.20, "to 20": 0.30, "to 30": 0.25, "unlimited": 0.25},
             "Registered term of operation, years", effect=0.04, log_odds=-0.15, size=0.4, age=0.4),
    _bounded("INVE", "investors", "count", (1, 20), Poisson(2.0, start=1), "Number of investors",
             effect=0.06, size=0.55),
    _bounded("CAPITAL", "capital", "continuous", (3, 9), Normal(6.2, 0.7), "Registered capital, log10 yuan",
             effect=-0.06, log_odds=-0.4, size=0.7, age=0.1),
    _bounded("CHANGES", "changes", "count", (0, 20), Poisson(3.0), "Changes of the registration in three years",
             effect=-0.03, age=0.4, risk=0.4),
)
ENFORCEMENT = (
    _bounded("FAP", "penalties", "count", (0, 12), Poisson(1.8), "Frequency of administrative penalties",
             effect=0.02, log_odds=0.15, risk=0.65, size=0.2),
    _flag("FP1", "penalty_1", 0.50, "Penalty of the first category: warning",
          effect=0.0, risk=0.4),
    _flag("FP2", "penalty_2", 0.35, "Penalty of the second category: fine or confiscation",
          effect=-0.10, risk=0.5, size=0.2),
    _flag("FP3", "penalty_3", 0.15, "Penalty of the third category: suspension or revocation",
          effect=0.05, risk=0.55),
    _bounded("Fines", "fines", "continuous", (0, 8), Normal(4.0, 0.8), "Sum of the fines, log10 yuan",
             effect=0.03, size=0.5, risk=0.4),
)
# fmt: on

COVARIATES: dict[str, tuple[Covariate, ...]] = {
    "credit": CREDIT,
    "market": MARKET,
    "court": COURT,
    "commerce": COMMERCE,
    "enforcement": ENFORCEMENT,
}


# --- the firms ----------------------------------------------------------------------------------------------


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
    """Draw `n` firms. Exactly round(n x rate) of them are missing at each institution; each is known to at least one.

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
    """One column inside its domain: rounded to four decimals or integers and clipped, or a category."""
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
    """The same table with empty cells; integers become pandas' nullable integers."""
    integers = complete[names].select_dtypes("integer").columns
    emptied = complete.astype(dict.fromkeys(integers, "Int64"))
    emptied.loc[~present, names] = None
    return emptied
