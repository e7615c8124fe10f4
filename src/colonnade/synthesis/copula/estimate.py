"""From noisy moments of scores to a copula: everything here is post-processing of releases and costs nothing.

1. Patterns whose noisy count drowns in noise are left out, if the others hold most records.
2. Moments of the scores (`score_moments.py`): EM over the patterns, which is right when records are missing at random,
   or available pairs.
3. Back to the latent scale: what clipping took from the variances is put back, and the Hermite bridge is inverted.
4. Where EM says that a party's records differ from the cohort, its marginals are moved to the cohort's.
5. Each entry is shrunk by its known noise (empirical Bayes); pairs of parties that share too few records are completed
   by maximum determinant; the whole is repaired to a correlation matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import NotEstimable
from colonnade.statistics.marginals import Marginal
from colonnade.statistics.moments import Moments
from colonnade.statistics.rank_correlation import EIGENVALUE_FLOOR, complete, invert_bridge, repair
from colonnade.synthesis.copula.latent_score import LatentScore, matched
from colonnade.synthesis.copula.model import shifted
from colonnade.synthesis.copula.score_moments import (
    LARGEST_FLOOR,
    Available,
    available,
    gaussian_moments,
    visible_patterns,
)
from colonnade.synthesis.copula.scores import score_factor
from colonnade.synthesis.copula.shrinkage import drawn_together, shrink

Reals = NDArray[np.float64]
Correlation = Literal["auto", "em", "pairs"]
Mode = Literal["em", "pairs"]

WARN, LEAVE = 0.01, 0.05
"""Noise (sd) of a correlation above which a pair of parties is warned about, and left to completion."""
SLOPE = 1 / math.pi
"""d cov / d r at r = 0 of the scores of two continuous columns: cov = 2 asin(r / 2) / pi."""
HELD = 0.8
"""The share of all records that visible patterns must hold; otherwise pairs are summed over all patterns."""
EM_NOISE = 0.04
"""Noise (sd) of a correlation, over all kept patterns, up to which EM is chosen."""
SCARCE, SCARCE_NOISE = 0.25, 0.01
"""EM amplifies the noise of a pair of parties where one of them has few of the records: below this share, it is chosen
only if no pair's noise is above this."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """A copula and how it was found; `shared` and `noise` are per pair of parties (records, sd of a correlation)."""

    correlation: Reals
    marginals: dict[str, Marginal]
    mode: Mode
    reason: str
    parties: tuple[str, ...]
    shared: Reals
    noise: Reals
    completed: tuple[tuple[str, str], ...]
    patterns: int
    moved: tuple[str, ...]
    shrinkage: float
    kept: float

    def notes(self) -> tuple[str, ...]:
        """What a reader of the table must know, one sentence each."""
        notes = [f"Correlations by {'EM' if self.mode == 'em' else 'available pairs'}: {self.reason}."]
        left = [f"{a!r} with {b!r}" for a, b in self.completed]
        if left:
            notes.append(
                f"Too few records are shared to measure how the columns of these parties go together (noise above"
                f" {LEAVE}); their correlations are the maximum-determinant completion of the others:"
                f" {', '.join(left)}."
            )
        poor = [(noise, a, b) for a, b, _, noise in self._pairs() if noise > WARN and (a, b) not in self.completed]
        if poor:
            noise, a, b = max(poor)
            worst = f"at most {noise:.2g}" if math.isfinite(noise) else "the worst without limit"
            notes.append(
                f"Correlations of {len(poor)} pairs of parties carry noise with a standard deviation above {WARN},"
                f" {worst} ({a!r} with {b!r})."
            )
        if self.moved:
            notes.append(
                f"Marginals of {len(self.moved)} columns were moved from the records that their party has to the whole"
                " cohort, as EM says."
            )
        if self.kept < 1:
            notes.append(f"Measured correlations were shrunk to {self.kept:g} of themselves to have a completion.")
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for result.json."""
        return {
            "correlation": self.mode,
            "because": self.reason,
            "patterns used": self.patterns,
            "pairs of parties": [
                {
                    "parties": [a, b],
                    "records shared": round(together),
                    "noise of a correlation": noise if math.isfinite(noise) else None,
                    "completed": (a, b) in self.completed,
                }
                for a, b, together, noise in self._pairs()
            ],
            "weight of measured correlations": self.shrinkage,
            "marginals moved to the cohort": list(self.moved),
        }

    def _pairs(self) -> Iterator[tuple[str, str, float, float]]:
        for a, b in itertools.combinations_with_replacement(range(len(self.parties)), 2):
            yield self.parties[a], self.parties[b], float(self.shared[a, b]), float(self.noise[a, b])


def estimate(moments: Moments, marginals: Mapping[str, Marginal], *, correlation: Correlation = "auto") -> Estimate:
    """The copula that the moments and the marginals carry; columns in the order of `moments.features`."""
    owner = np.array([moments.parties.index(feature.party) for feature in moments.features])
    mode, used, reason = _choose(moments, visible_patterns(moments), correlation)
    found = available(moments, used, owner)
    noise = _pair_noise(moments, found)
    names = [feature.column for feature in moments.features]
    whole = {name: LatentScore(marginals[name], score_factor(marginals[name]), 0.0, 1.0) for name in names}
    clipped = _clipping(moments, found, np.array([one.variance for one in whole.values()]), owner)
    target, latent = found.covariance, whole
    moved: list[str] = []
    if mode == "em":
        mean, target = gaussian_moments(moments, used, found)
        latent, moved = _moved(moments, found, whole, owner, mean, target, clipped)
    scale = 1 / np.sqrt(clipped)
    coefficients = np.array([one.coefficients for one in latent.values()])
    raw = invert_bridge(target * np.outer(scale, scale), coefficients)
    entry = _entry_noise(moments, found, owner, coefficients, scale)
    shrunk, weight = shrink(raw, entry, owner)
    known = ~((noise > LEAVE) & ~np.eye(len(noise), dtype=bool))
    completed = complete(repair_within(shrunk, owner), known[np.ix_(owner, owner)], floor=_floor(entry))
    pairs = [(a, b) for a in range(len(noise)) for b in range(a + 1, len(noise)) if not known[a, b]]
    return Estimate(
        correlation=repair(completed.correlation),
        marginals={name: shifted(marginals[name], one.mean, one.deviation) for name, one in latent.items()},
        mode=mode,
        reason=reason,
        parties=moments.parties,
        shared=found.shared,
        noise=noise,
        completed=tuple((moments.parties[a], moments.parties[b]) for a, b in pairs),
        patterns=len(used),
        moved=tuple(moved),
        shrinkage=weight,
        kept=completed.kept,
    )


# --- which moments -----------------------------------------------------------------------------------------------


def _pair_noise(moments: Moments, found: Available) -> Reals:
    """The sd that noise gives one correlation of two continuous columns, for each pair of parties."""
    size = forecast(moments.noise_sd * np.sqrt(found.terms), np.maximum(found.shared, 0.5))
    return np.where(found.shared > 0.5, size, math.inf)


def forecast(noise_sd: Reals | float, shared: Reals | float) -> Reals:
    """Noise on one entry of the Gram matrix, as noise on a latent correlation from `shared` records."""
    return np.asarray(np.divide(noise_sd, shared) / SLOPE, dtype=np.float64)


def _choose(moments: Moments, visible: list[int], asked: Correlation) -> tuple[Mode, list[int], str]:
    """(mode, patterns to use, why), from the noise and the noisy counts."""
    if moments.presence != "known":
        return "pairs", [0], "presence is secret, so only available pairs are computed"
    held = float(sum(moments.counts[k] for k in visible))
    if asked == "em" and not visible:
        raise NotEstimable(
            "no pattern of presence stands out of the noise, so EM has nothing to start from; allow a larger epsilon,"
            ' or choose correlation="pairs" with presence="secret".'
        )
    if asked == "em":
        return "em", visible, "as asked for"
    if held < HELD * moments.n:
        every = list(range(len(moments.patterns)))
        return "pairs", every, f"the {len(visible)} patterns that stand out of the noise hold too few of the records"
    if asked == "pairs":
        return "pairs", visible, "as asked for"
    if len(visible) == 1:
        return "pairs", visible, "one pattern holds nearly all records, so EM and pairs are the same"
    pooled = float(forecast(moments.noise_sd * math.sqrt(len(visible)), held))
    state = f"noise of {pooled:.3f} in a correlation over {len(visible)} patterns"
    share, worst = _scarcest(moments, visible)
    if pooled <= EM_NOISE and share < SCARCE and worst > SCARCE_NOISE:
        return (
            "pairs",
            visible,
            f"a party has {100 * share:.0f} % of the records and the noise of a pair is {worst:.3f}, which EM would"
            " amplify; it would be right for records missing at random",
        )
    if pooled <= EM_NOISE:
        return "em", visible, f"{state}: small enough for EM ({EM_NOISE})"
    return (
        "pairs",
        visible,
        f"{state}: too much for EM ({EM_NOISE}), which would be right for records missing at random",
    )


def _scarcest(moments: Moments, visible: list[int]) -> tuple[float, float]:
    """(share of the records that the scarcest party has, largest noise of a correlation across two parties)."""
    here = np.array([moments.patterns[k] for k in visible])
    counts = np.array([moments.counts[k] for k in visible])
    share = float((here * counts[:, None]).sum(axis=0).min() / max(counts.sum(), 1.0))
    worst = 0.0
    for a, b in itertools.combinations(range(here.shape[1]), 2):
        both = here[:, a] & here[:, b]
        noise = moments.noise_sd * math.sqrt(max(int(both.sum()), 1))
        worst = max(worst, float(forecast(noise, max(float(counts[both].sum()), 1.0))))
    return share, worst


# --- the latent scale --------------------------------------------------------------------------------------------


def _clipping(moments: Moments, found: Available, variance: Reals, owner: NDArray[np.intp]) -> Reals:
    """What clipping left of each column's variance: the observed variance over the one that its marginal implies.

    Rows are shortened as a whole, so the share is alike for a party's columns: each is drawn towards their mean as
    far as its noise says.
    """
    ratio = np.ones(len(variance))
    for party in range(len(moments.parties)):
        here = np.flatnonzero((owner == party) & (variance > 1e-9))
        if not here.size:
            continue
        shares = np.diag(found.covariance)[here] / variance[here]
        count = max(found.shared[party, party], 1.0)
        error = moments.noise_sd * math.sqrt(found.terms[party, party]) / count / variance[here]
        ratio[here] = drawn_together(shares, error)[0]
    return np.clip(ratio, 0.3, 1.2)


def _moved(
    moments: Moments,
    found: Available,
    whole: Mapping[str, LatentScore],
    owner: NDArray[np.intp],
    mean: Reals,
    covariance: Reals,
    clipped: Reals,
) -> tuple[dict[str, LatentScore], list[str]]:
    """Where a party lacks records, its columns' latent law in the whole cohort.

    EM's mean less the available one, and EM's variance over the available one, are those of the same clipped scores,
    so the marginal's own noise and the clipping cancel. A stepwise column is only moved, not stretched.
    """
    latent, moved = {}, []
    for j, (name, one) in enumerate(whole.items()):
        latent[name] = one
        count, terms = found.shared[owner[j], owner[j]], found.terms[owner[j], owner[j]]
        complete_here = count > moments.n - 4 * moments.noise_sd * math.sqrt(terms) - 0.5
        if complete_here or terms == 0 or one.variance < 1e-9:
            continue
        shift = (mean[j] - found.mean[j]) / math.sqrt(clipped[j])
        stretch = float(np.clip(covariance[j, j] / max(found.covariance[j, j], 1e-9), 0.5, 1.5))
        latent[name] = matched(one, shift, stretch)
        moved.append(name)
    return latent, moved


# --- a proper correlation matrix ---------------------------------------------------------------------------------


def _entry_noise(
    moments: Moments, found: Available, owner: NDArray[np.intp], coefficients: Reals, scale: Reals
) -> Reals:
    """The sd that noise gives each latent correlation near 0: that of the covariance over the bridge's slope."""
    shared = np.maximum(found.shared, np.maximum(2 * moments.noise_sd * np.sqrt(found.terms), 1.0))
    each = (moments.noise_sd * np.sqrt(found.terms) / shared)[np.ix_(owner, owner)]
    slope = np.abs(coefficients[:, 0])
    return np.asarray(each * np.outer(scale, scale) / np.maximum(np.outer(slope, slope), 1e-6), dtype=np.float64)


def repair_within(matrix: Reals, owner: NDArray[np.intp]) -> Reals:
    """Each party's own block a correlation matrix: a completion keeps these blocks."""
    found = matrix.copy()
    for party in range(owner.max(initial=0) + 1):
        here = np.flatnonzero(owner == party)
        found[np.ix_(here, here)] = repair(matrix[np.ix_(here, here)])
    return found


def _floor(noise: Reals) -> float:
    """Eigenvalues of pure noise of sd s reach 2 s sqrt(p): a quarter of it is the least that is believed."""
    typical = float(np.median(noise)) if noise.size else 0.0
    return float(np.clip(0.5 * typical * math.sqrt(len(noise)), EIGENVALUE_FLOOR, LARGEST_FLOOR))
