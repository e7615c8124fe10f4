"""Skellam noise of a large mean is normal noise, rounded, but for a factor that is bounded here.

A release of integers with rounded N(0, 2 mu) is post-processing of the Gaussian mechanism, whose privacy loss is
known for every dimension. The laws differ by a factor within e^(+-oscillation) as far as 14 standard deviations. So
the loss of Skellam noise is the Gaussian one plus a constant, its tail larger by a constant factor, except with a
probability that is counted as an infinite loss. With gamma of 2^10 and more the constant is far below the grid, and
several per cent of noise are saved against Renyi divergences. The proof is part 5 of `skellam.claim.md`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

GRID = 1e-4
_REACH = 14.0
_LARGEST_CONSTANT = 1e-3


def oscillation(variance: float, reach: float) -> float:
    """max - min over |k| <= reach * sd of log(P(Skellam = k) / P(rounded normal = k)), both of that variance.

    With x = 2 mu the variance, z = reach, p(k) = e^-x I_k(x), and Amos (1974), for a = j + 1/2,
        x / (a + sqrt(x^2 + (a+1)^2)) <= I_(j+1)(x) / I_j(x) <= x / (a + sqrt(x^2 + a^2)) = e^(-asinh(a / x)):
    - log p(k)/p(0) <= -sum asinh(a/x) <= -k^2/2x + k^4/24x^3, since asinh is concave and at least t - t^3/6;
    - log p(k)/p(0) >= -sum log(1 + y), y = a/x + (a+1)^2/2x^2, and log(1+y) <= y - y^2/2 + y^3/3 with y <= 2(a+1)/x
      gives >= -k^2/2x - (k^2+k)/2x^2 - (2/3)(k+1)^4/x^3;
    - log of the rounded normal is -k^2/2x + a constant, between -1/8x and + k^2/24x^2 (Jensen; sinh(y)/y <= e^(y^2/6)).
    """
    z, step = reach, 1 / math.sqrt(variance)
    above = z**4 / 24 + 1 / 8
    below = (z**2 + z * step) / 2 + (2 / 3) * (z + step) ** 4 + z**2 / 24
    return (above + below) / variance * (1 + 1e-9)


def normal_losses(*, variance: float, delta_2: float, coordinates: int) -> PrivacyLossDistribution | None:
    """A dominating privacy loss of Skellam noise on integers of which a neighbour moves at most `coordinates`, by
    `delta_2` in L2; None where the comparison is too coarse."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as Losses

    ratio = delta_2 / math.sqrt(variance)
    reach = _REACH + ratio
    if reach > variance**0.25:  # far from normal; also y <= 2(a+1)/x above
        return None
    constant = coordinates * oscillation(variance, reach)
    if constant > _LARGEST_CONSTANT:
        return None
    # Chernoff at t = z / sd <= 1, with cosh t - 1 <= t^2/2 + t^4/12: P(|Skellam| > z sd) <= 2 exp(-z^2/2 + z^4/12x).
    beyond = 2 * coordinates * math.exp(-(_REACH**2) / 2 + _REACH**4 / (12 * variance))
    # The Gaussian loss is N(r^2/2, r^2). Its tail times e^constant, at losses rounded up to the grid, plus the
    # constant, rounded up too.
    mean, width = ratio**2 / 2, 10 * ratio
    first, last = math.floor((mean - width) / GRID), math.ceil((mean + width) / GRID)
    tail = np.minimum(1.0, math.exp(constant) * ndtr((mean - np.arange(first, last + 1) * GRID) / ratio))
    tail[0] = 1.0
    mass = -np.diff(tail)
    shift = math.ceil(constant / GRID)
    losses = dict(zip(range(first + 1 + shift, last + 1 + shift), mass.tolist(), strict=True))
    outside = float(tail[-1]) + beyond
    made: Losses = Losses.create_from_rounded_probability(losses, min(1.0, outside), GRID)
    return made
