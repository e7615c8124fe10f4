"""What clipping took from factored moments, by simulation from the fitted law, and given back.

Rows were clipped: an entry whose range was narrowed at 1, a party's row at its norm. Under the fitted law (Gaussian x
given w, and w Gaussian within each pattern) the expected loss of each statistic is simulated and added; the law is
fitted again, a few times. All of it is post-processing, with fixed draws, so the same release gives the same estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky

from colonnade.models.vfem_factored import FactoredMoments, Factors, check_factors, factors
from colonnade.statistics.gaussian_em import Matrix, Vector

DRAWS = 200_000
ROUNDS = 5
"""Each leaves about the share of the variance that lies beyond the clipping bounds: some percent."""
FEW = 30.0
"""Noise deviations of a pattern's count below which the law of w is taken from all records."""


@dataclass(frozen=True, eq=False)
class Clipping:
    """`entries`: the columns of (w, x) that are clipped at 1; `norms`: the bound of each block, the holder's first."""

    entries: NDArray[np.bool_]
    norms: tuple[float, ...]

    def __call__(self, rows: Matrix, blocks: Sequence[slice]) -> Matrix:
        """Rows as the parties clip them; `blocks` are the columns of each party."""
        out = np.where(self.entries, np.clip(rows, -1.0, 1.0), rows)
        for block, norm in zip(blocks, self.norms, strict=True):
            lengths = np.sqrt(np.einsum("ij,ij->i", out[:, block], out[:, block]))
            out[:, block] *= np.minimum(1.0, norm / np.maximum(lengths, 1e-300))[:, None]
        return out


def unclipped(data: FactoredMoments, clipping: Clipping, *, draws: int = DRAWS) -> FactoredMoments:
    """The moments as they would be, in expectation, without clipping."""
    made = data
    for _ in range(ROUNDS):
        law = factors(made)
        check_factors(made, law)
        made = _given_back(data, made, law, clipping, draws)
    return made


def _given_back(
    data: FactoredMoments, latest: FactoredMoments, law: Factors, clipping: Clipping, draws: int
) -> FactoredMoments:
    head = data.head
    blocks = [slice(0, head - 1), *(slice(head - 1 + one.start, head - 1 + one.stop) for one in data.blocks)]
    gram, own = data.gram.copy(), [one.copy() for one in data.own]
    for number, mask in enumerate(data.masks):
        count = float(latest.own[number][0, 0])
        size = round(draws * count / law.count)
        if size < 1:
            continue
        rng = np.random.default_rng(number)  # post-processing: it protects nobody
        here = np.flatnonzero(data.shown(mask))
        mean, root = _holder_law(latest, law, number)
        w = mean + rng.standard_normal((size, head - 1)) @ root.T
        x = np.zeros((size, len(law.residual)))
        noise = rng.standard_normal((size, len(here)))
        if here.size:
            c = cholesky(law.residual[np.ix_(here, here)], lower=True)
            x[:, here] = law.slopes[0, here] + w @ law.slopes[1:, here] + noise @ c.T
        rows = np.column_stack([w, x])
        lost = (_products(rows) - _products(clipping(rows, blocks))) * (count / size)
        gram += lost
        own[number] += lost[:head, :head]
    return replace(data, gram=gram, own=tuple(own))


def _holder_law(latest: FactoredMoments, law: Factors, number: int) -> tuple[Vector, Matrix]:
    """Mean and root of the covariance of w in a pattern, or over all records if noise hides the pattern's."""
    own = latest.own[number]
    if own[0, 0] > FEW * latest.own_sd:
        mean = own[0, 1:] / own[0, 0]
        try:
            return mean, cholesky(own[1:, 1:] / own[0, 0] - np.outer(mean, mean), lower=True)
        except LinAlgError:
            pass
    return law.mean, cholesky(law.spread, lower=True)


def _products(rows: Matrix) -> Matrix:
    with_one = np.column_stack([np.ones(len(rows)), rows])
    return np.asarray(with_one.T @ with_one)
