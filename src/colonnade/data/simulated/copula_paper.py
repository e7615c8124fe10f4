"""The simulation of the copula paper's section 5: mixed columns from a three-component latent mixture.

    u_i ~ 0.4 N(0, Sigma_1) + 0.3 N(-1, Sigma_2) + 0.3 N(1, Sigma_3)               p latent variables
    continuous   x = u
    multinomial  P(x = c | u) = exp(w_c u) / sum exp(w_c' u),   c = 1, ..., C
    ordinal      x | u ~ Poisson(2 + 0.3 u)
    binary       P(x = 1 | u) = 1 / (1 + exp(-0.5 u))
    beta_j = (-1)^j / 3 for the first ceil(s p_k) columns of each party, 0 for the others
    y = x'beta + N(0, 1),   or   P(y = 1) = 1 / (1 + exp(-x'beta))

The response sits with a holder of its own (the paper's server) and is never missing; K parties hold the
covariates. `docs/simulated-data.md` lists what the paper leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, softmax

from colonnade.data.column import Column, Columns
from colonnade.data.simulated.example import Equation, Example, Truth, cut_into_blocks, record_keys
from colonnade.data.simulated.missingness import Presence, bernoulli_presence, draw_may_miss, mar_presence
from colonnade.errors import BadArguments

Response = Literal["linear", "logistic"]
Missing = Literal["mcar", "mar-simple", "mar-complicated"]
Rates = Literal["observed", "missing", "table"]
Shuffle = Literal["columns", "kinds"]

HOLDER = "holder"
MIXTURE_WEIGHTS = (0.4, 0.3, 0.3)
MIXTURE_MEANS = (0.0, -1.0, 1.0)
# C and w_c are not in the paper: three categories with symmetric weights.
CATEGORY_WEIGHTS = (-1.0, 0.0, 1.0)
PAPER_KINDS = ("continuous", "multinomial", "ordinal", "binary")

# Public domains. A latent value leaves [-6, 6] with probability 2e-7, a Poisson(2 + 0.3 u) count passes 15 with
# probability below 1e-8; they are clipped. The response's bound grows with its standard deviation.
LATENT_BOUND = 6.0
COUNT_BOUND = 15


def copula_paper(
    n: int,
    *,
    seed: int,
    p: int = 100,
    parties: int = 5,
    sparsity: float = 0.6,
    response: Response = "linear",
    missing: Missing | None = None,
    rates: Rates = "observed",
    shuffle: Shuffle = "columns",
    may_miss: Sequence[str] | None = None,
) -> Example:
    """Draw section 5's data. The defaults are the paper's; the complete table does not depend on `missing`.

    `rates` reads the paper's MCAR rates .95, .90, .85, .80, .75:
      "observed"  they are the chances of being observed: 43.6 % of the records are complete;
      "missing"   as printed, the chances of being missing: 0.004 % are complete;
      "table"     each party is observed with chance .95: 77.4 % are complete (the tables say 77.32 %).
    `shuffle` reads "we shuffle the variable indices": "columns" moves each latent variable with its kind, so that
    the blocks of Sigma_1 are not the parties; "kinds" deals the kinds anew, so that they are.
    `may_miss` names the parties that may lack records under MAR, in place of the paper's fair coins.
    """
    _check(n, p, parties, sparsity, response, missing, rates, shuffle)
    structure, data, gaps, rows = (np.random.default_rng([seed, stream]) for stream in range(4))
    names = [f"x{j + 1:03d}" for j in range(p)]
    named = [f"party{k + 1}" for k in range(parties)]
    held = {party: names[k * p // parties : (k + 1) * p // parties] for k, party in enumerate(named)}

    order = structure.permutation(p)
    kinds = np.repeat(PAPER_KINDS, [len(part) for part in np.array_split(np.arange(p), 4)])[order]
    latent = _mixture(n, p, parties, data)
    if shuffle == "columns":
        latent = latent[:, order]
    covariates = np.column_stack([_observe(kind, latent[:, j], data) for j, kind in enumerate(kinds)])
    beta = np.tile(_local_coefficients(p // parties, sparsity), parties)
    nonzero = int(np.count_nonzero(beta))
    y = _respond(covariates @ beta, response, nonzero, data)

    columns = Columns([*map(_declare, names, kinds), _declare_response(response, nonzero)])
    key = "record"
    numbers = dict(zip([*names, "y"], [*covariates.T, y], strict=True))
    complete = pd.DataFrame(
        {key: record_keys(n, "R", rows)}
        | {name: x if columns[name].kind == "continuous" else x.astype(np.int64) for name, x in numbers.items()}
    )

    blocks = [covariates[:, k * p // parties : (k + 1) * p // parties] for k in range(parties)]
    seen = _presence(missing, rates, blocks, y, named, may_miss, gaps)
    presence = pd.DataFrame(seen, columns=named, index=complete[key]).assign(**{HOLDER: True})
    # The design codes a multinomial column 0, 1, 2 and the paper 1, 2, 3: the difference is an intercept.
    intercept = float(beta[kinds == "multinomial"].sum())
    equation = Equation(
        response="y",
        family="gaussian" if response == "linear" else "binomial",
        intercept=intercept,
        coefficients=pd.Series(beta, index=names, name="coefficient"),
        noise=1.0 if response == "linear" else None,
    )
    return Example(
        name="copula_paper",
        key=key,
        blocks=cut_into_blocks(complete, {**held, HOLDER: ["y"]}, presence, key=key, rng=rows),
        columns=columns,
        organisations={**{party: f"Party {k + 1}" for k, party in enumerate(named)}, HOLDER: "Response holder"},
        responses={"y": columns["y"].kind},
        response_holder=HOLDER,
        truth=Truth(complete=complete, presence=presence, equations={"y": equation}, columns=columns),
        seed=seed,
        description=f"Section 5 of the copula paper: {response} response, p = {p}, missing: {missing or 'nothing'}.",
    )


def covariances(p: int, parties: int) -> tuple[NDArray[np.float64], ...]:
    """Sigma_1 (0.3 within and 0.1 between blocks), Sigma_2 (0.5^|i-j|) and Sigma_3 (0.5, 0.25, then 0)."""
    index = np.arange(p)
    gap = np.abs(index[:, None] - index[None, :])
    block = index * parties // p
    first = np.where(block[:, None] == block[None, :], 0.3, 0.1)
    np.fill_diagonal(first, 1.0)
    third = np.select([gap == 0, gap == 1, gap == 2], [1.0, 0.5, 0.25], 0.0)
    return first, 0.5**gap, third


def _mixture(n: int, p: int, parties: int, rng: np.random.Generator) -> NDArray[np.float64]:
    component = rng.choice(3, size=n, p=MIXTURE_WEIGHTS)
    latent = rng.standard_normal((n, p))
    for c, covariance in enumerate(covariances(p, parties)):
        of_c = component == c
        latent[of_c] = latent[of_c] @ np.linalg.cholesky(covariance).T + MIXTURE_MEANS[c]
    return latent


def _observe(kind: str, u: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """One column of the given kind from its latent variable, inside its public domain."""
    if kind == "continuous":
        return np.clip(u, -LATENT_BOUND, LATENT_BOUND)
    if kind == "multinomial":
        chance = softmax(u[:, None] * np.asarray(CATEGORY_WEIGHTS), axis=1)
        above = rng.random((u.size, 1)) > np.cumsum(chance, axis=1)[:, :-1]
        return np.asarray(1.0 + above.sum(axis=1), dtype=np.float64)
    if kind == "ordinal":
        return np.minimum(rng.poisson(np.maximum(2.0 + 0.3 * u, 0.0)), COUNT_BOUND).astype(np.float64)
    return (rng.random(u.size) < expit(0.5 * u)).astype(np.float64)


def _declare(name: str, kind: str) -> Column:
    """The paper's kind in our vocabulary.

    A multinomial column has one coefficient, on its category's number, so its order is part of the model: it is
    declared ordinal. The paper's Poisson "ordinal" column is a count.
    """
    if kind == "continuous":
        return Column(name=name, kind="continuous", lower=-LATENT_BOUND, upper=LATENT_BOUND)
    if kind == "multinomial":
        categories = tuple(range(1, len(CATEGORY_WEIGHTS) + 1))
        return Column(name=name, kind="ordinal", categories=categories, description="multinomial in the paper")
    if kind == "ordinal":
        return Column(name=name, kind="count", lower=0, upper=COUNT_BOUND, description="ordinal in the paper")
    return Column(name=name, kind="binary", categories=(0, 1))


def response_bound(nonzero: int) -> float:
    """The public bound of a linear response with that many nonzero coefficients: 27 for the paper's 60.

    Its standard deviation grows like the root of their number (3.0 for 60), and so does its mean, which depends on
    how the kinds fall on the signs (within 5 for 60).
    """
    return 3.0 * (math.ceil(math.sqrt(nonzero)) + 1)


def _declare_response(response: Response, nonzero: int) -> Column:
    if response == "logistic":
        return Column(name="y", kind="binary", categories=(0, 1), description="the response")
    bound = response_bound(nonzero)
    return Column(name="y", kind="continuous", lower=-bound, upper=bound, description="the response")


def _local_coefficients(size: int, sparsity: float) -> NDArray[np.float64]:
    """(-1)^j / 3 for j = 1, ..., ceil(s p_k), then zeros. The paper's sparsity is the share that is **not** zero."""
    j = np.arange(1, size + 1)
    # 0.6 x 20 must give 12 whatever the binary fraction of 0.6 is.
    return np.where(j <= math.ceil(round(sparsity * size, 9)), (-1.0) ** j / 3.0, 0.0)


def _respond(
    predictor: NDArray[np.float64], response: Response, nonzero: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    if response == "logistic":
        return (rng.random(predictor.size) < expit(predictor)).astype(np.float64)
    bound = response_bound(nonzero)
    return np.clip(predictor + rng.standard_normal(predictor.size), -bound, bound)


def observed_rates(parties: int, rates: Rates) -> tuple[float, ...]:
    """The chance that each party has a record under MCAR; .95, .90, ... continue by .05 for more parties."""
    if rates == "table":
        return (0.95,) * parties
    printed = [round(1.0 - 0.05 * (k + 1), 2) for k in range(parties)]
    return tuple(printed if rates == "observed" else [round(1.0 - rate, 2) for rate in printed])


def _presence(
    missing: Missing | None,
    rates: Rates,
    blocks: Sequence[NDArray[np.float64]],
    y: NDArray[np.float64],
    named: Sequence[str],
    may_miss: Sequence[str] | None,
    rng: np.random.Generator,
) -> Presence:
    if missing is None:
        return np.ones((y.size, len(named)), dtype=np.bool_)
    if missing == "mcar":
        return bernoulli_presence(y.size, observed_rates(len(named), rates), rng)
    if may_miss is None:
        mask = draw_may_miss(len(named), rng)
    else:
        if strangers := sorted(set(may_miss) - set(named)):
            raise BadArguments(f"may_miss names {strangers[0]!r}; the parties with covariates are {', '.join(named)}.")
        mask = np.isin(named, list(may_miss))
    return mar_presence(blocks, mask, rng, response=y if missing == "mar-complicated" else None)


def _check(n: int, p: int, parties: int, sparsity: float, *choices: str | None) -> None:
    if n < 1 or parties < 1 or p < 1 or p % parties:
        raise BadArguments(f"n = {n}, p = {p}, parties = {parties}: all must be positive and p a multiple of parties.")
    if parties > 19:
        raise BadArguments(f"the paper's rates .95, .90, ... end after 19 parties: choose fewer than {parties}.")
    if not 0.0 <= sparsity <= 1.0:
        raise BadArguments(f"sparsity is the share of nonzero coefficients: choose it in [0, 1], not {sparsity}.")
    for name, choice, allowed in zip(
        ("response", "missing", "rates", "shuffle"),
        choices,
        (get_args(Response), (None, *get_args(Missing)), get_args(Rates), get_args(Shuffle)),
        strict=True,
    ):
        if choice not in allowed:
            raise BadArguments(f"{name} = {choice!r} is none of {', '.join(map(repr, allowed))}.")
