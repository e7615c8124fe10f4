"""From noisy moments of scores to a copula: everything here is post-processing of releases and costs nothing.

1. Patterns whose noisy count is below the noise are left out, if the others hold most records.
2. Mean and covariance of the scores: by EM over the patterns, which is right when records are missing at random, or
   from available pairs of records.
3. Back to the latent scale: the clipping bias of the variances is corrected, and the Hermite bridge is inverted.
4. Where EM says that a party's records differ from the cohort, its marginals are moved to the cohort's.
5. Each entry is shrunk by its known noise (empirical Bayes); pairs of parties that share too few records are
   completed by maximum determinant; the result is repaired to a correlation matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from colonnade.errors import NotEstimable
from colonnade.statistics.gaussian_em import Pattern, PatternStatistics, em_step
from colonnade.statistics.latent_correlation import (
    EIGENVALUE_FLOOR,
    TERMS,
    complete,
    flat_coefficients,
    floored,
    invert_bridge,
    repair,
    step_coefficients,
)
from colonnade.statistics.marginals import Marginal
from colonnade.statistics.moments import MomentsResult, available_cases
from colonnade.synthesis.copula.model import shifted
from colonnade.synthesis.copula.scores import score_factor
from colonnade.synthesis.table import TOO_FEW

Reals = NDArray[np.float64]
Correlation = Literal["auto", "em", "pairs"]
Mode = Literal["em", "pairs"]

WARN, LEAVE = 0.01, 0.05
"""Noise (sd) of a correlation above which a pair of parties is warned about, and left to completion."""
SLOPE = 1 / math.pi
"""d cov / d r at r = 0 of the scores of two continuous columns: cov = 2 asin(r / 2) / pi."""
VISIBLE = 5.0
"""Standard deviations of noise that a pattern's count must reach to be used."""
HELD = 0.8
"""The share of all records that visible patterns must hold; otherwise pairs are summed over all patterns."""
EM_NOISE = 0.04
"""Noise (sd) of a correlation, over all used patterns, up to which EM is chosen."""
SCARCE, SCARCE_NOISE = 0.25, 0.01
"""EM amplifies the noise of a pair of parties where one of them has few of the records: below this share, it is chosen
only if no pair's noise is above this."""
EM_STEPS = 300
LARGEST_FLOOR = 0.05
"""Of the eigenvalues of a correlation matrix that noise has made indefinite."""
FURTHEST = 3.0
"""Latent standard deviations that a marginal is moved by at most."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """A copula and how it was found; `shared` and `noise` are per pair of parties (records, sd of a correlation).

    `shrinkage` is the mean weight that measured correlations kept, `factor` the one by which all of them had to
    shrink to have a completion. `error` is an estimate of the correlations' error (root mean square) from their noise,
    `entry_noise` the sd of each covariance of two scores (infinite where it is completed), `owner` each column's party.
    """

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
    factor: float
    error: float
    entry_noise: Reals
    owner: NDArray[np.intp]

    def notes(self) -> tuple[str, ...]:
        """What a reader of the table must know, one sentence each."""
        notes = [f"Correlations by {'EM' if self.mode == 'em' else 'available pairs'}: {self.reason}."]
        left = [f"{a!r} with {b!r}" for a, b in self.completed]
        if left:
            notes.append(
                f"{TOO_FEW} to measure how the columns of these parties go together (noise above"
                f" {LEAVE}): {', '.join(left)}. Their correlations are what the measured ones imply (the"
                " maximum-determinant completion)."
            )
        poor = [(noise, a, b) for a, b, _, noise in self._pairs() if noise > WARN and (a, b) not in self.completed]
        if poor:
            noise, a, b = max(poor)
            worst = f"at most {noise:.2g}" if math.isfinite(noise) else "the worst without limit"
            notes.append(
                f"Correlations of {len(poor)} pairs of parties carry noise with a standard deviation above {WARN},"
                f" {worst} ({f'within {a!r}' if a == b else f'{a!r} with {b!r}'})."
            )
        if self.moved:
            notes.append(
                f"Marginals of {len(self.moved)} columns were moved from the records that their party has to the whole"
                " cohort, as EM says."
            )
        if self.factor < 1:
            notes.append(f"Measured correlations were shrunk to {self.factor:g} of themselves to have a completion.")
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


def estimate(
    moments: MomentsResult, marginals: Mapping[str, Marginal], *, correlation: Correlation = "auto"
) -> Estimate:
    """The copula that the moments and the marginals carry; columns in the order of `moments.features`."""
    owner = np.array([moments.parties.index(feature.party) for feature in moments.features])
    mode, used, reason = _choose(moments, visible_patterns(moments), correlation)
    pairs = available(moments, used)
    # The sd that noise gives one correlation of two continuous columns, for each pair of parties.
    noise = forecast(moments.noise_sd * np.sqrt(pairs.terms), np.maximum(pairs.shared, 0.5))
    noise[pairs.shared <= 0.5] = math.inf
    names = [feature.column for feature in moments.features]
    present = {name: LatentScore(marginals[name], score_factor(marginals[name]), 0.0, 1.0) for name in names}
    clipping = _clipping(moments, pairs, np.array([score.variance for score in present.values()]), owner)
    covariance, latent = pairs.covariance, present
    moved: list[str] = []
    if mode == "em":
        mean, covariance = gaussian_moments(moments, used, pairs)
        latent, moved = _moved(moments, pairs, present, owner, mean, covariance, clipping)
    scale = 1 / np.sqrt(clipping)
    coefficients = np.array([score.coefficients for score in latent.values()])
    raw = invert_bridge(covariance * np.outer(scale, scale), coefficients)
    entry_noise = _entry_noise(pairs, coefficients, scale)
    shrunk, weights = shrink(raw, entry_noise, owner)
    off = ~np.eye(len(raw), dtype=bool)
    error = _error(raw, shrunk, weights, entry_noise) if moments.noise_sd else 0.0
    measured = ~((noise > LEAVE) & ~np.eye(len(noise), dtype=bool))
    for party in range(len(noise)):  # a completion keeps each party's own block: it must be a correlation matrix
        block = np.ix_(owner == party, owner == party)
        shrunk[block] = repair(shrunk[block])
    completion, factor = complete(shrunk, measured[np.ix_(owner, owner)], floor=_floor(entry_noise))
    completed = [(a, b) for a in range(len(noise)) for b in range(a + 1, len(noise)) if not measured[a, b]]
    return Estimate(
        correlation=repair(completion),
        marginals={name: shifted(marginals[name], score.mean, score.deviation) for name, score in latent.items()},
        mode=mode,
        reason=reason,
        parties=moments.parties,
        shared=pairs.shared,
        noise=noise,
        completed=tuple((moments.parties[a], moments.parties[b]) for a, b in completed),
        patterns=len(used),
        moved=tuple(moved),
        shrinkage=float(weights[off].mean()) if off.any() else 1.0,
        factor=factor,
        error=error,
        entry_noise=np.where(measured[np.ix_(owner, owner)], pairs.noise * np.outer(scale, scale), np.inf),
        owner=owner,
    )


# --- which moments -----------------------------------------------------------------------------------------------


def forecast(noise_sd: Reals | float, shared: Reals | float) -> Reals:
    """Noise on one entry of the Gram matrix, as noise on a latent correlation from `shared` records."""
    return np.asarray(np.divide(noise_sd, shared) / SLOPE, dtype=np.float64)


def visible_patterns(moments: MomentsResult) -> list[int]:
    """Patterns whose noisy count is beyond doubt. The others hold less than that many records each, if any."""
    if moments.presence == "secret":
        return [0]
    return [k for k, count in enumerate(moments.counts) if count > max(VISIBLE * moments.noise_sd, 0.5)]


def _choose(moments: MomentsResult, visible: list[int], asked: Correlation) -> tuple[Mode, list[int], str]:
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


def _scarcest(moments: MomentsResult, visible: list[int]) -> tuple[float, float]:
    """(share of the records that the scarcest party has, largest noise of a correlation across two parties)."""
    present = np.array([moments.patterns[k] for k in visible])
    counts = np.array([moments.counts[k] for k in visible])
    share = float((present * counts[:, None]).sum(axis=0).min() / max(counts.sum(), 1.0))
    worst = 0.0
    for a, b in itertools.combinations(range(present.shape[1]), 2):
        shared = present[:, a] & present[:, b]
        noise = moments.noise_sd * math.sqrt(max(int(shared.sum()), 1))
        worst = max(worst, float(forecast(noise, max(float(counts[shared].sum()), 1.0))))
    return share, worst


# --- moments of the scores ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Available:
    """Available-case moments of the scores; for each pair of parties the records that both have (`shared`), out of
    `terms` noisy counts; and for each pair of columns the noise of an entry of the covariance (`noise`)."""

    mean: Reals
    covariance: Reals
    shared: Reals
    terms: Reals
    noise: Reals


def available(moments: MomentsResult, used: list[int]) -> Available:
    """Each product averaged over the records that have both cells, less the means over the same records. What it is
    divided by is their number, but at least twice its noise."""
    cases = available_cases(moments, used)
    deviation = moments.noise_sd * np.sqrt(cases.terms)
    together = np.maximum(cases.counts, np.maximum(2 * deviation, 1.0))
    means = cases.sums / together  # means[j, k]: of column j over the records that have both
    shared, terms = _shared_records(moments, used)
    return Available(
        mean=np.diag(means),
        covariance=cases.products / together - means * means.T,
        shared=np.maximum(shared, 0.0),
        terms=terms,
        noise=deviation / together,
    )


def _shared_records(moments: MomentsResult, used: list[int]) -> tuple[Reals, Reals]:
    """For each pair of parties: records that both have, and the noisy counts that it is the sum of."""
    if moments.presence == "secret":
        (gram,), (entries,) = moments.grams, moments.entries
        masks = [entries.index(f"present at {party}") for party in moments.parties]
        return gram[np.ix_(masks, masks)], np.ones((len(masks), len(masks)))
    present = np.array([moments.patterns[k] for k in used], dtype=np.float64).reshape(-1, len(moments.parties))
    return present.T @ (moments.counts[used, None] * present), present.T @ present


def pattern_statistics(moments: MomentsResult, used: list[int]) -> PatternStatistics:
    """Counts, sums and Gram matrices of these patterns."""
    names = tuple(feature.name for feature in moments.features)
    patterns = tuple(
        Pattern(
            np.array([names.index(name) for name in moments.entries[k][1:]], dtype=np.intp),
            float(moments.counts[k]),
            moments.grams[k][0, 1:],
            moments.grams[k][1:, 1:],
        )
        for k in used
    )
    return PatternStatistics(names, patterns)


def gaussian_moments(moments: MomentsResult, used: list[int], pairs: Available) -> tuple[Reals, Reals]:
    """Mean and covariance of the scores of the whole cohort, by EM from available pairs on.

    With noise a Gram matrix may be indefinite, and the likelihood then has no top: eigenvalues are kept above a floor
    in each step, which the noise of a correlation decides.
    """
    data = pattern_statistics(moments, used)
    mean, covariance = pairs.mean, pairs.covariance
    typical = max(float(np.median(np.diag(covariance))), 1e-6)
    floor = typical * (LARGEST_FLOOR if moments.noise_sd else 1e-6)
    covariance = floored(covariance, floor)
    for _ in range(EM_STEPS):
        _, mean, onward = em_step(data, mean, covariance)
        onward = floored(onward, floor)
        change = float(np.abs(onward - covariance).max())
        covariance = onward
        if change < 1e-6 * typical:
            break
    return mean, covariance


# --- the latent scale --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LatentScore:
    """a (2 F(x) - 1) of x = F^-1(Phi(mean + deviation Z)), with Z standard normal and F the `marginal`.

    A party's score map comes from the marginal F of the records that the party has. In the whole cohort the latent
    variable may have another mean and deviation (records missing at random); the score is the same function of it.
    """

    marginal: Marginal
    factor: float
    mean: float
    deviation: float

    @property
    def coefficients(self) -> Reals:
        """In normalised Hermite polynomials h_1, h_2, ...

        Continuous: with t^2 = 1 + s^2, E d^k/dz^k Phi(m + s Z) = s^k d^(k-1)/dm^(k-1) (phi(m / t) / t), so that
        c_k = (s / t)^k (-1)^(k-1) h_(k-1)(m / t) phi(m / t) / sqrt(k). A point mass makes the score constant between
        two thresholds: what it takes away there is subtracted.
        """
        if self.marginal.discrete:
            thresholds = (special.ndtri(self.marginal.cumulative[:-1]) - self.mean) / self.deviation
            return step_coefficients(thresholds, self._levels)
        before, after = self.marginal.jumps
        low, high = ((special.ndtri(side) - self.mean) / self.deviation for side in (before, after))
        flat = flat_coefficients(low, high, before + after, mean=self.mean, deviation=self.deviation)
        return self.factor * (self._smooth_coefficients() - flat)

    def _smooth_coefficients(self) -> Reals:
        """Of 2 Phi(m + s Z) - 1."""
        t = math.hypot(1.0, self.deviation)
        where, ratio = self.mean / t, -self.deviation / t
        coefficients = np.zeros(TERMS)
        before, now = 0.0, math.exp(-where * where / 2) / math.sqrt(2 * math.pi)
        power = -2.0
        for k in range(1, TERMS + 1):
            power *= ratio
            coefficients[k - 1] = power * now / math.sqrt(k)
            before, now = now, (where * now - math.sqrt(k - 1) * before) / math.sqrt(k)
        return coefficients

    @property
    def variance(self) -> float:
        """From the probabilities where F jumps: the coefficients of a jump fall so slowly that a sum of their squares
        would miss some per cent."""
        if self.marginal.discrete:
            return float(self._chances @ (self._levels - self.expectation) ** 2)
        if not self._mixed:
            return float((self.coefficients**2).sum())
        return float(_WEIGHTS @ (self._on_grid - self.expectation) ** 2)

    @property
    def expectation(self) -> float:
        if self.marginal.discrete:
            return float(self._chances @ self._levels)
        if not self._mixed:
            return 2 * float(special.ndtr(self.mean / math.hypot(1.0, self.deviation))) - 1
        return float(_WEIGHTS @ self._on_grid)

    @property
    def _mixed(self) -> bool:
        """Has it point masses between continuous parts?"""
        return bool(self.marginal.jumps[0].size)

    @property
    def _on_grid(self) -> Reals:
        """The score on a fine grid of Z."""
        u = special.ndtr(self.mean + self.deviation * _GRID)
        before, after = self.marginal.jumps
        place = np.clip(np.searchsorted(after, u, side="left"), 0, after.size - 1)
        inside = (before[place] < u) & (u <= after[place])
        return self.factor * (2 * np.where(inside, (before + after)[place] / 2, u) - 1)

    @property
    def _chances(self) -> Reals:
        return shifted(self.marginal, self.mean, self.deviation).probabilities

    @property
    def _levels(self) -> Reals:
        return np.asarray(self.factor * (2 * self.marginal.scores(self.marginal.points) - 1), dtype=np.float64)


_GRID = np.linspace(-8.0, 8.0, 4097)
_WEIGHTS = np.exp(-(_GRID**2) / 2) / np.exp(-(_GRID**2) / 2).sum()
"""Of numerical means over Z, for scores with point masses."""


def matched(score: LatentScore, shift: float, stretch: float) -> LatentScore:
    """The latent mean (and deviation) at which the score's mean is moved by `shift` and its variance is `stretch`
    times what it was."""

    def with_deviation(deviation: float) -> LatentScore:
        def gap(mean: float) -> float:
            return LatentScore(score.marginal, score.factor, mean, deviation).expectation - score.expectation - shift

        if gap(-FURTHEST) > 0 or gap(FURTHEST) < 0:  # further than any score can say
            return LatentScore(score.marginal, score.factor, math.copysign(FURTHEST, shift), deviation)
        mean = float(optimize.brentq(gap, -FURTHEST, FURTHEST, xtol=1e-6))
        return LatentScore(score.marginal, score.factor, mean, deviation)

    if score.marginal.discrete:
        return with_deviation(1.0)

    def excess(deviation: float) -> float:
        return with_deviation(deviation).variance - stretch * score.variance

    if excess(0.5) > 0 or excess(2.0) < 0:
        return with_deviation(1.0)
    return with_deviation(float(optimize.brentq(excess, 0.5, 2.0, xtol=1e-4)))


def _clipping(moments: MomentsResult, pairs: Available, variance: Reals, owner: NDArray[np.intp]) -> Reals:
    """The part of each column's variance that clipping left: the observed variance over the one that its marginal
    implies.

    Rows are shortened as a whole, so the part is alike for a party's columns: each is drawn towards their mean as
    far as its noise says.
    """
    ratio = np.ones(len(variance))
    for party in range(len(moments.parties)):
        own = np.flatnonzero((owner == party) & (variance > 1e-9))
        if not own.size:
            continue
        shares = np.diag(pairs.covariance)[own] / variance[own]
        count = max(pairs.shared[party, party], 1.0)
        error = moments.noise_sd * math.sqrt(pairs.terms[party, party]) / count / variance[own]
        ratio[own] = drawn_together(shares, error)[0]
    return np.clip(ratio, 0.3, 1.2)


def _moved(
    moments: MomentsResult,
    pairs: Available,
    present: Mapping[str, LatentScore],
    owner: NDArray[np.intp],
    mean: Reals,
    covariance: Reals,
    clipping: Reals,
) -> tuple[dict[str, LatentScore], list[str]]:
    """Where a party lacks records, its columns' latent law in the whole cohort.

    EM's mean less the available one, and EM's variance over the available one, are those of the same clipped scores,
    so the marginal's own noise and the clipping cancel. A stepwise column is only moved, not stretched.
    """
    latent, moved = {}, []
    for j, (name, score) in enumerate(present.items()):
        latent[name] = score
        count, terms = pairs.shared[owner[j], owner[j]], pairs.terms[owner[j], owner[j]]
        has_all = count > moments.n - 4 * moments.noise_sd * math.sqrt(terms) - 0.5
        if has_all or terms == 0 or score.variance < 1e-9:
            continue
        shift = (mean[j] - pairs.mean[j]) / math.sqrt(clipping[j])
        stretch = float(np.clip(covariance[j, j] / max(pairs.covariance[j, j], 1e-9), 0.5, 1.5))
        latent[name] = matched(score, shift, stretch)
        moved.append(name)
    return latent, moved


# --- a proper correlation matrix ---------------------------------------------------------------------------------


def _entry_noise(pairs: Available, coefficients: Reals, scale: Reals) -> Reals:
    """The sd that noise gives each latent correlation near 0: that of the covariance over the bridge's slope."""
    noise = pairs.noise
    slope = np.abs(coefficients[:, 0])
    return np.asarray(noise * np.outer(scale, scale) / np.maximum(np.outer(slope, slope), 1e-6), dtype=np.float64)


def _error(raw: Reals, shrunk: Reals, weights: Reals, noise: Reals) -> float:
    """Root mean square error of shrunk correlations, by Stein's identity: (shrunk - raw)^2 - s^2 + 2 w s^2 has the mean
    (shrunk - truth)^2 where an entry keeps the weight w and has noise s."""
    upper = np.triu_indices(len(raw), 1)
    squares = (shrunk - raw)[upper] ** 2 + (2 * weights[upper] - 1) * noise[upper] ** 2
    return math.sqrt(max(float(squares.mean()), 0.0)) if squares.size else 0.0


def shrink(raw: Reals, noise: Reals, owner: NDArray[np.intp]) -> tuple[Reals, Reals]:
    """Empirical Bayes for each block of two parties' columns: drawn towards the block's mean as the noise asks.

    Also the weights that entries keep: 1 without noise.
    """
    shrunk, weights = raw.copy(), np.ones_like(raw)
    for a, b in itertools.combinations_with_replacement(range(owner.max(initial=0) + 1), 2):
        block = (owner[:, None] == a) & (owner == b)
        i, j = np.nonzero(np.triu(block, 1) if a == b else block)
        values, weight = drawn_together(raw[i, j], noise[i, j])
        shrunk[i, j] = shrunk[j, i] = values
        weights[i, j] = weights[j, i] = weight
    return shrunk, weights


def drawn_together(values: Reals, error: Reals) -> tuple[Reals, Reals]:
    """(posterior means, weights of the values) under values ~ N(truth, error^2), truth ~ N(t, tau^2)."""
    if values.size < 2 or not np.any(error > 0):
        return values, np.ones_like(values)
    precision = 1 / np.maximum(error, 1e-9) ** 2
    centre = float(np.average(values, weights=precision))
    tau = max(float(np.average((values - centre) ** 2 - error**2, weights=precision**2)), 0.0)
    weight = tau / (tau + error**2)
    return np.asarray(weight * values + (1 - weight) * centre), np.asarray(weight)


def _floor(noise: Reals) -> float:
    """Eigenvalues of pure noise of sd s reach 2 s sqrt(p): a quarter of it is the least that is believed."""
    typical = float(np.median(noise)) if noise.size else 0.0
    return float(np.clip(0.5 * typical * math.sqrt(len(noise)), EIGENVALUE_FLOOR, LARGEST_FLOOR))
