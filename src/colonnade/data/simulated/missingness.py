"""Block-wise missingness: which party has which record.

All functions return presence, a records x parties array that is True where the party **has** the record. The
papers write M = 1 for a missing block; `presence = ~M`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from colonnade.errors import BadArguments

Presence = NDArray[np.bool_]


def bernoulli_presence(n: int, observed: Sequence[float], rng: np.random.Generator) -> Presence:
    """MCAR: record i is at party k with probability observed[k], independently of everything."""
    return rng.random((n, len(observed))) < np.asarray(observed, dtype=np.float64)


def draw_may_miss(parties: int, rng: np.random.Generator) -> Presence:
    """The copula paper's party-level mask: each party may lack records with probability 1/2.

    It is drawn again until some party may and some party may not: with none nothing is missing, with all of
    them no covariate is left for the missingness to depend on.
    """
    if parties < 2:
        raise BadArguments("missingness at random needs at least 2 parties: one that is always observed.")
    while True:
        mask = rng.random(parties) < 0.5
        if 0 < mask.sum() < parties:
            return mask


def mar_presence(
    blocks: Sequence[NDArray[np.float64]],
    may_miss: Presence,
    rng: np.random.Generator,
    *,
    response: NDArray[np.float64] | None = None,
) -> Presence:
    """The copula paper's MAR mechanism, as printed.

    For a party k that may miss, with j over the parties that may not and x^j their blocks,

        logit Pr(M_k = 1) = 1 + sum_j (-1)^j zeta_j' x^j,        zeta_ja = 1 / (j a),   j, a = 1, 2, ...

    is the simple case. With `response` it is the complicated one, which adds - y + sum_(j' < k) (-1)^j' M_j'
    over the parties j' that may miss.
    """
    n, parties = blocks[0].shape[0], len(blocks)
    sign = (-1.0) ** np.arange(1, parties + 1)
    shared = np.ones(n)
    for j in np.flatnonzero(~may_miss).tolist():
        zeta = 1.0 / ((j + 1) * np.arange(1, blocks[j].shape[1] + 1))
        shared += sign[j] * (blocks[j] @ zeta)
    missing = np.zeros((n, parties), dtype=np.bool_)
    for k in np.flatnonzero(may_miss).tolist():
        logit = shared
        if response is not None:
            # Columns of parties that may not miss are all False, so the sum over j' < k needs no mask.
            logit = shared - response + missing[:, :k] @ sign[:k]
        missing[:, k] = rng.random(n) < expit(logit)
    return ~missing


def presence_at_exact_rates(
    scores: NDArray[np.float64],
    missing: Sequence[float],
    rng: np.random.Generator,
    *,
    anchor: int,
) -> Presence:
    """Exactly round(n x missing[k]) records are missing at party k, those with large scores first.

    `scores` are log-odds of missingness up to a constant (all zero: MCAR). They may depend on what the
    `anchor` party holds: the mechanism is MAR because

    1. the records that the anchor lacks are drawn completely at random;
    2. for these, presence elsewhere is drawn at the nominal rates and ignores the scores. It is conditioned on
       at least one party having the record: a record that nobody has is in no cohort;
    3. for the others, whose anchor block is observed, party k lacks those with the largest value of
       scores[:, k] + logistic noise: a logistic model whose intercept is set to meet the rate.
    """
    n, parties = scores.shape
    quota = np.rint(n * np.asarray(missing, dtype=np.float64)).astype(np.int64)
    absent = np.zeros((n, parties), dtype=np.bool_)
    lost = rng.permutation(n)[: quota[anchor]]
    absent[lost, anchor] = True
    others = np.delete(np.arange(parties), anchor)
    undecided = lost
    while undecided.size:
        absent[np.ix_(undecided, others)] = rng.random((undecided.size, len(others))) < np.asarray(missing)[others]
        undecided = undecided[absent[undecided].all(axis=1)]
    anchored = np.flatnonzero(~absent[:, anchor])
    for k in others.tolist():
        left = int(np.clip(quota[k] - absent[lost, k].sum(), 0, anchored.size))
        score = scores[anchored, k] + rng.logistic(size=anchored.size)
        absent[anchored[np.argsort(-score)[:left]], k] = True
    return ~absent
