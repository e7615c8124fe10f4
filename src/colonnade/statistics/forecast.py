"""What the noise will do, in sentences for a plan: from n, the noise and stated assumptions, before anything is spent.

Who has which record is not public, so a plan cannot know the overlap. What is said not to work does not work even if
all records are at all parties; the epsilon that is then advised is enough if half of them are (`SHARED`). Columns are
spread as stated.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from scipy.special import lambertw
from scipy.stats import norm

from colonnade.federation.plan import HOPELESS
from colonnade.formatting import rough

FORECAST = "Forecast"
"""What a sentence begins with, unless it is one of those that say that a plan will not work."""
SMALLEST_EIGENVALUE = 0.5
"""Of the columns' correlations, where nothing is known of them."""
MOST_OFF = 0.5
"""A mean that is off by half of the largest that it can be says nothing."""
SPREAD, SEPARABLE, LEAST_AUC = 0.5, 0.8, 0.6
"""The standard deviation of a feature in [-1, 1], an AUC to begin with, and one below which a classifier is none."""
MOST_TRAINING = 0.1
"""On Bank, 0.04 (epsilon 8) was better than means, and 0.25 (epsilon 1) was not."""
MARGIN = 1.4
"""On the noise of an advised epsilon: delta is split, and counts are released beside sums."""
LARGEST = 20.0
"""An epsilon beyond it is not advised where fewer columns do as well."""
EMPTY_CHOICE = 0.5
"""A correlation with the response from which on hardly any column of a real table is."""
FEWEST_TELLING = 7.0
"""Exact records from which on a column with that correlation is chosen: log N / N = -log(1 - EMPTY_CHOICE^2)."""
FAR_APART = 1.0
"""Standard deviations between a column's means in two classes beyond which hardly any column of a real table is."""
FEWEST_KEPT = 3
"""Features with which an estimate is still worth asking for."""
LONG_LIST = 20
"""More columns than these are not listed."""
SMALLEST_NOISE = math.sqrt(2)
"""The standard deviation of a count's noise at any epsilon, at least: it is an integer, with mu of 1 or more."""
SHARED = 0.5
"""The part of the records that parties have in common, where an epsilon is advised for joint moments."""


def enough(epsilon: float, factor: float, delta: float = 1e-6) -> float:
    """The epsilon at which noise is so many times smaller, to two digits, rounded up. Gaussian noise of sensitivity / t
    costs about t^2 / 2 + t sqrt(2 log(1 / delta)): for large epsilon, noise falls as its root only."""
    tail = math.sqrt(2 * math.log(1 / delta))
    t = MARGIN * factor * (math.sqrt(tail**2 + 2 * epsilon) - tail)
    return _two_digits(t**2 / 2 + tail * t)


def enough_if_shared(epsilon: float, excess: float) -> str:
    """The advice where noise is so many times too large if all records are shared: noise in a moment of two parties
    grows as one over the part that is."""
    half, everything = enough(epsilon, excess / SHARED), enough(epsilon, excess)
    return f"epsilon = {half:g} would be enough if half of the records are at all parties ({everything:g} if all are)"


def fewer(features: Sequence[str], excess: float) -> str:
    """The advice where noise is so many times too large: a record's norm, and with it the noise, grows as the number of
    features, and the spectral norm of the noise as its root too."""
    return at_most(features, int(len(features) * excess ** (-2 / 3)))


def at_most(features: Sequence[str], most: int) -> str:
    """Which columns to leave out so that about so many features stay, or how many to keep where that would be a long
    list, or nothing if hardly any would stay; `features` has the column of each. Columns of many categories go first.
    """
    counts = Counter(features)
    if most < FEWEST_KEPT:
        return ""
    if len(counts) == len(features):
        return f"keep at most {most} columns with columns="
    fitting = bisect_right(list(accumulate(sorted(counts.values(), reverse=True))), most)
    if len(counts) - most > LONG_LIST and fitting >= FEWEST_KEPT:  # whichever are kept, they fit
        return f"keep at most {fitting} columns with columns="
    out: list[str] = []
    for name, count in counts.most_common(len(counts) - 1):
        if sum(counts.values()) - sum(counts[left] for left in out) > most and count > 1:
            out.append(name)
    named, rest = ", ".join(map(repr, out)), len(features) - sum(counts[left] for left in out)
    if rest > most:  # one feature each: they do not fit either
        return f"keep at most {most} columns with columns=, and none of {named}"
    return f"leave out {named} with columns= (about {most} features would do)"


def correlation_noise(noise_sd: float, n: float, deviation: float) -> float:
    """The standard deviation of the noise in a correlation: a sum over n records of products of two columns, each with
    this standard deviation, carries noise_sd."""
    return noise_sd / (n * deviation**2)


def excess_noise(*, noise_sd: float, n: float, deviation: float, features: int, limit: float = 1.0) -> float:
    """How many times too large the noise in a correlation matrix over n records is for an estimate.

    A symmetric matrix of independent noise with deviation s in k features has a spectral norm of about 2 s sqrt(k).
    Where that exceeds the smallest eigenvalue of the correlations, what is left of these is noise; an estimator that
    needs the noise to be a part of it says which (`limit`).
    """
    return 2 * correlation_noise(noise_sd, n, deviation) * math.sqrt(features) / SMALLEST_EIGENVALUE / limit


def correlations(
    *,
    noise_sd: float,
    n: int,
    deviation: float,
    spread: str,
    features: Sequence[str],
    epsilon: float | None,
    limit: float = 1.0,
) -> tuple[str, ...]:
    """For estimates from the correlation matrix of features, each of a column. `spread` says in words what `deviation`
    assumes, and `limit` which part of the smallest eigenvalue the noise may be (see `excess_noise`)."""
    sd = correlation_noise(noise_sd, n, deviation)
    excess = excess_noise(noise_sd=noise_sd, n=n, deviation=deviation, features=len(features), limit=limit)
    sentence = (
        f"{FORECAST}: if all {n:,} records were at all parties and {spread}, privacy noise would move a correlation by"
        f" about {sd:.2g} (sampling alone: {1 / math.sqrt(n):.2g}).",
    )
    if excess <= SHARED:
        return sentence
    if excess <= 1:
        return (
            *sentence,
            f"{FORECAST}: an estimate bears the noise if at least {math.ceil(100 * excess)} % of the records are at all"
            " parties; with fewer, take a larger epsilon or fewer columns.",
        )
    advice = "fewer columns"
    if epsilon is not None:
        advice = f"{enough_if_shared(epsilon, excess)}, or fewer columns"
        needed = enough(epsilon, excess / SHARED)
        fitting = fewer(features, excess / SHARED)
        if not fitting and len(set(features)) > 2 * FEWEST_KEPT:
            fitting = f"keep at most {FEWEST_KEPT} columns with columns=, and take a larger epsilon"
        if needed > LARGEST and fitting:
            advice = f"{fitting}, since epsilon = {needed:g}, which all of them would need, protects hardly anyone"
    return (
        *sentence,
        f"{HOPELESS}: with {len(features)} features the noise is {rough(excess)} times what an estimate can bear, even"
        f" if all records are shared; {advice}.",
    )


def components(*, noise_sd: float, n: int, deviation: float, features: int, n_components: int) -> str:
    """For the k leading eigenvectors U of a noisy correlation matrix C + E of p features, V being those of C.

    tr U'(C+E)U >= tr V'(C+E)V, so tr U'CU >= tr V'CV + tr V'EV - tr U'EU; the second term is 0 on average, and the
    last at most k times the spectral norm of E, about 2 s sqrt(p). The total variance is p.
    """
    floor = min(1.0, 2 * correlation_noise(noise_sd, n, deviation) / math.sqrt(features))
    lost = min(1.0, n_components * floor)
    listed = "1 component captures" if n_components == 1 else f"{n_components} components capture"
    return (
        f"{FORECAST}: noise alone would show a component with up to {rough(100 * floor)} % of the variance; {listed} at"
        f" most about {rough(100 * lost)} % of the variance less than without noise, under the same assumption."
    )


def choice(
    *, noise: float, n: int, epsilon: float | None = None, rare: tuple[float, float] | None = None
) -> tuple[str, ...]:
    """For columns that BIC chooses by noisy correlations. n records with noise of deviation t on each tell as much as
    N = n / (1 + n t^2) exact ones, and a column alone lowers N log RSS by more than log N if its correlation r with the
    response has -log(1 - r^2) > log N / N.

    `rare`, for a response of two classes: a share q of events, and the noise of a correlation with it. A column whose
    means in the classes are d deviations apart has r = d s / sqrt(1 + d^2 s^2), s^2 = q (1 - q).
    """
    carried, least = _least_chosen(noise, n)
    exact_worth = f"with the noise, {n:,} records at all parties would tell as much as {carried:,.0f} exact ones"
    if least >= EMPTY_CHOICE:
        advice = "with so few records no epsilon would help"
        if n > FEWEST_TELLING:
            advice = "take a larger epsilon or fewer columns"
            if epsilon is not None:
                allowed = math.sqrt(1 / FEWEST_TELLING - 1 / n)
                advice = (
                    f"epsilon = {enough(epsilon, noise / allowed):g} would be the least that helps, or fewer columns"
                )
        return (
            f"{HOPELESS}: no column is chosen unless its correlation with the response is above {least:.2f}, since"
            f" {exact_worth}; expect an empty choice: {advice}.",
        )
    sentence = (
        f"{FORECAST}: BIC will choose a column by itself only if its correlation with the response is above about"
        f" {least:.2g}, since {exact_worth}; if none is, the choice is empty.",
    )
    return sentence if rare is None else (*sentence, _of_rare_events(*rare, n, epsilon))


def _least_chosen(noise: float, n: int) -> tuple[float, float]:
    """N, and the correlation from which on a column is chosen."""
    carried = n / (1 + n * noise**2)
    return carried, math.sqrt(-math.expm1(-math.log(carried) / carried)) if carried > math.e else 1.0


def _of_rare_events(share: float, noise: float, n: int, epsilon: float | None) -> str:
    _, least = _least_chosen(noise, n)
    spread = math.sqrt(share * (1 - share))
    apart = least / spread / math.sqrt(1 - least**2) if least < 1 else math.inf
    sentence = f"{FORECAST}: if {share:.0%} of the records are events, it will only if its means in the two classes are"
    sentence = f"{sentence} about {apart:.2g} standard deviations apart, or more"
    if apart <= FAR_APART:
        return f"{sentence}."
    # The N from which on the correlation of a column that is FAR_APART is enough: log N / N = bound.
    bound = math.log1p((FAR_APART * spread) ** 2)
    telling = -lambertw(-bound, -1).real / bound
    advice = "with so few records no epsilon would help"
    if n > telling:
        advice = "take a larger epsilon or fewer columns"
        if epsilon is not None:
            needed = enough(epsilon, noise / math.sqrt(1 / telling - 1 / n))
            advice = f"epsilon = {needed:g} would be enough for {FAR_APART:g}, or fewer columns"
    return f"{sentence}: expect few columns or none; {advice}."


def spreads(*, rank_noise: float, n: int, limit: float, columns: int, epsilon: float) -> tuple[str, ...]:
    """For columns whose spread is read off percentiles, the ranks of which have this noise: at most `limit` of n."""
    excess = rank_noise / (limit * n)
    if excess <= 1:
        return ()
    return (
        f"{HOPELESS}: the noisy counts of {columns} columns do not show how far they spread, and what is estimated in"
        f" wrong units is noise; epsilon = {enough(epsilon, excess):g} would be enough, or fewer columns.",
    )


def classes(*, noise_sd: float, n: int, features: int, epsilon: float | None) -> tuple[str, ...]:
    """For a classifier from the moments of k features and a balanced response s in {-1, 1}, with noise of
    t = noise_sd / n on each mean.

    Let classes be Gaussian, a distance d apart, with features of deviation SPREAD. The weights w = 2 b / SPREAD^2, b =
    E[x s], carry noise of b and of the Gram matrix, k t^2 (1 + |w|^2 / 4) / |b|^2 of their own square, and d shrinks by
    1 / sqrt(1 + that). AUC = Phi(d / sqrt 2), accuracy = Phi(d / 2).
    """
    size = _apart()[1]
    share = features * (noise_sd / n) ** 2 * (1 + (2 * size / SPREAD**2) ** 2 / 4) / size**2
    # The square of a record's length grows as k, so t does, and the share of the noise as its cube.
    return _classes(share, growth=3, n=n, features=features, epsilon=epsilon)


def classes_by_scores(*, noise_sd: float, n: int, features: int, epsilon: float | None) -> tuple[str, ...]:
    """The same for scores: noise of t = noise_sd / n, of all rounds together, on each mean of a feature of deviation 1
    times 1/2 - y, which is b / (2 SPREAD). There is no Gram matrix."""
    share = features * (2 * noise_sd / n) ** 2 / (_apart()[1] / SPREAD) ** 2
    return _classes(share, growth=2, n=n, features=features, epsilon=epsilon)


def _apart() -> tuple[float, float]:
    """(d, |b|) of classes that could be told apart with an AUC of SEPARABLE."""
    distance = math.sqrt(2) * float(norm.ppf(SEPARABLE))
    return distance, distance * SPREAD / math.sqrt(1 + distance**2 / 4) / 2


def _classes(share: float, *, growth: int, n: int, features: int, epsilon: float | None) -> tuple[str, ...]:
    """What is left of classes beside noise of this share in the square of the weights, which grows as this power of the
    number of features."""
    distance, _ = _apart()
    left = distance / math.sqrt(1 + share)
    auc, accuracy = (float(norm.cdf(left / scale)) for scale in (math.sqrt(2), 2.0))
    sentence = (
        f"{FORECAST}: if all {n:,} records were at all parties, a column's standard deviation is a quarter of its"
        f" declared range, and classes of equal size could be told apart with an AUC of {SEPARABLE} (accuracy"
        f" {norm.cdf(distance / 2):.2f}), privacy noise would leave {auc:.2f} ({accuracy:.2f}).",
    )
    most = (distance / (math.sqrt(2) * norm.ppf(LEAST_AUC))) ** 2 - 1
    if share <= most:
        return sentence
    advice = "fewer columns"
    if epsilon is not None:
        needed = enough(epsilon, math.sqrt(share / most))
        fitting = int(features * (most / share / MARGIN**2) ** (1 / growth))
        advice = f"epsilon = {needed:g} would be enough, or fewer columns"
        if needed > LARGEST and fitting >= FEWEST_KEPT:
            advice = f"keep at most {fitting} columns with columns="
    return (
        *sentence,
        f"{HOPELESS}: with {features} features hardly anything of the classes is left beside the noise; {advice}.",
    )


def sums(*, noise_sd: float, n: int, largest: float = 1.0, epsilon: float | None) -> tuple[str, ...]:
    """For sums over records of values of at most this size: the noise beside the largest mean that there can be."""
    off = noise_sd / n / largest
    sentences = (
        f"{FORECAST}: a mean over all {n:,} records would be off by about {off:.2g} of the largest that it can be"
        f" (sampling alone: up to {1 / math.sqrt(n):.2g}).",
    )
    if off <= MOST_OFF:
        return sentences
    advice = "" if epsilon is None else f" epsilon = {enough(epsilon, off / MOST_OFF):g} would be enough, or"
    return (*sentences, f"{HOPELESS}: the noise hides every mean, even if all records are there;{advice} more records.")


def cells(
    *,
    noise_sd: float,
    n: int,
    largest: int,
    epsilon: float | None,
    table: str = "the largest table",
    ways: int = 2,
    columns: int = 0,
) -> tuple[str, ...]:
    """For a table of so many cells over `ways` columns: the noise of a count beside the mean count of a cell. Where all
    pairs of `columns` are counted, the variance of the noise grows as the number of these pairs."""
    mean = n / largest
    sentences = (f"{FORECAST}: {table} has {mean:,.3g} records in a cell on average, and noise of {noise_sd:,.3g}.",)
    if noise_sd <= mean:
        return sentences
    advice, fitting = "tables with fewer cells", int(columns * mean / noise_sd)
    if mean < SMALLEST_NOISE:
        most = int(n / SMALLEST_NOISE)
        bins = max(2, int(most ** (1 / ways)))
        advice = f"no epsilon makes it small enough: take tables of at most {most} cells, say with `--bins {bins}`"
    elif epsilon is not None:
        needed = enough(epsilon, noise_sd / mean)
        advice = f"about epsilon = {needed:g} would be enough, or {advice}"
        if needed > LARGEST and fitting >= FEWEST_KEPT:
            advice = f"keep at most {fitting} columns with columns="
    return (
        *sentences,
        f"{HOPELESS}: the noise of a count is larger than the count of an average cell of {table}; {advice}.",
    )


def descent(*, noise: float, steps: int, weights: int, batch: float) -> tuple[float, str]:
    """For so many weights, each step of which adds up a batch of gradients of length 1 at most, with this noise on each
    weight. In all, gradients that agree move the weights by steps x batch, the noise by noise sqrt(weights steps): the
    share of the second in the first, and the sentence."""
    share = noise * math.sqrt(weights / steps) / batch
    return share, (
        f"{FORECAST}: in {steps:,} steps privacy noise moves the {weights:,} weights by {share:.2g} of what all records"
        " could, if they all pulled the same way."
    )


def training(*, noise: float, steps: int, weights: int, batch: int, epsilon: float) -> tuple[str, ...]:
    """For a network that completes records (see `descent`)."""
    share, moved = descent(noise=noise, steps=steps, weights=weights, batch=batch)
    if share <= MOST_TRAINING:
        return (moved,)
    return (
        moved,
        f"{HOPELESS}: above {MOST_TRAINING:g} completed entries are hardly better than means; epsilon ="
        f" {enough(epsilon, share / MOST_TRAINING):g} would be enough, or fewer weights (hidden=, cut=).",
    )


def dropped(columns: Sequence[str]) -> tuple[str, ...]:
    """For noisy sums over the records that have all cells of these columns."""
    if not columns:
        return ()
    return (
        "Noise stays the same when records with empty cells are dropped, and there are fewer to carry it: with a tenth"
        " of them dropped, it moves estimates 1.1 times as far.",
    )


def _two_digits(value: float) -> float:
    """Rounded up."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit
