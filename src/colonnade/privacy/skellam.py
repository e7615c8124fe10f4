"""What Skellam noise costs: the noise of everything that several parties release together.

Each of m parties adds its own Sk(mu / m) to an integer statistic before it is opened, so the opened value carries
Sk(mu), of variance 2 mu. An adversary that colludes with c parties knows their shares and faces Sk(mu (m - c) / m).
`Skellam` states such a release as a cost, `privacy.calibration` finds the mu for a target, and importing this module
teaches the accountants the mechanism "skellam". The proofs are in `skellam.claim.md`; `skellam_sampler` draws it.

- RDP at whole orders: the smaller of Lemma 2 of the SQM paper (Agarwal, Kairouz and Liu 2021) and of a bound of our
  own, which needs no L1 sensitivity and is sharper up to alpha delta_2 = 12 mu. Between whole orders by convexity.
- PLD from the exact probabilities, where a record moves one coordinate (`shift="single"`: a cell of a table).
- Poisson sampling amplifies only against who does not know the batch: the server view, c = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import gammaln, ive, logsumexp, ndtr

from colonnade.errors import BadPrivacyParameter, CannotAccount, UnsafeRequest
from colonnade.privacy.cost import Cost, cost
from colonnade.privacy.mechanisms import Curve, register

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Shift = Literal["any", "single"]

LARGEST_MU = 2.0**90

# Above these a PLD takes seconds, and the Renyi divergences are left.
_PLD_LARGEST_MU = 2.0**24
_PLD_LARGEST_RATIO = 64  # of shift^2 and mu
# dp_accounting's default grid of losses.
_PLD_GRID = 1e-4
# The tail of the law counts as an infinite loss; 2 e^-60 is 2e-26.
_PLD_TAIL_NATS = 60.0
# Amplification sums over all orders up to the one asked for. Above this order sampling is ignored, which is safe.
_AMPLIFIED_UP_TO = 4096
# The noise is taken this much too small, and log terms this much too large: more than all roundings below.
_ROUNDING = 1e-12
_LOG_ROUNDING = 1e-10


def Skellam(
    mu: float | Fraction,
    *,
    delta_1: float,
    delta_2: float,
    parties: int,
    colluders: int = 0,
    sampling: float = 1.0,
    shift: Shift = "any",
    dimension: int | None = None,
    **stated: Any,
) -> Cost:
    """Sk(mu) in total on an integer statistic that one record moves by at most `delta_1` in L1 and `delta_2` in L2.

    `colluders` of the `parties` are taken to know their shares of the noise (0: the server view). With `sampling`
    below 1 each record is in the batch with that probability, independently, and every count has a batch of its own.
    `shift="single"` says more: a record adds an integer from 0 to `delta_1 = delta_2` to one coordinate.
    `dimension`, the number of coordinates that a record can move, lets large noise be compared with normal noise.
    """
    for name, value in {"mu": mu, "delta_1": delta_1, "delta_2": delta_2, "sampling": sampling}.items():
        _check_positive(name, value)
    if delta_1 < delta_2:
        raise BadPrivacyParameter(
            f"delta_1 = {delta_1!r} is below delta_2 = {delta_2!r}, but no L1 norm is below the L2."
        )
    if mu > LARGEST_MU:
        raise BadPrivacyParameter(f"mu must be at most 2^90, not {mu!r}; choose a smaller scale gamma.")
    if sampling > 1:
        raise BadPrivacyParameter(f"sampling is a probability, not {sampling!r}; choose one in (0, 1].")
    if isinstance(parties, bool) or not isinstance(parties, int) or parties < 1:
        raise BadPrivacyParameter(f"parties must be an integer of at least 1, not {parties!r}.")
    if isinstance(colluders, bool) or not isinstance(colluders, int) or not 0 <= colluders < parties:
        raise BadPrivacyParameter(
            f"colluders must be an integer from 0 to {parties - 1}, not {colluders!r}: if all {parties} parties"
            " collude, no noise is left."
        )
    if colluders > 0 and sampling < 1:
        raise UnsafeRequest(
            "a colluder knows which records are in the batch, so sampling does not protect against it;"
            " account with sampling=1, or with colluders=0 if no party receives a result."
        )
    if shift not in ("any", "single"):
        raise BadPrivacyParameter(f"shift must be 'any' or 'single', not {shift!r}.")
    if shift == "single":
        if not delta_1 == delta_2 == int(delta_1) or stated.get("relation", "zero-out") != "zero-out":
            raise BadPrivacyParameter(
                f"a single shift is the integer that zero-out moves one coordinate by, not delta_1 = {delta_1!r}"
                f" and delta_2 = {delta_2!r}; state it for zero-out, and the accountants derive replace."
            )
        stated.setdefault("replace_factor", math.sqrt(2))  # it leaves one cell and enters another
    # As doubles, because a wire integer ends at 2^64; rounded to the side that costs more.
    parameters: dict[str, float | int | str] = {
        "mu": _rounded(mu, -math.inf),
        "delta_1": _rounded(delta_1, math.inf),
        "delta_2": _rounded(delta_2, math.inf),
        "parties": parties,
        "colluders": colluders,
        "sampling": float(sampling),
        "shift": shift,
    }
    if dimension is not None:
        if isinstance(dimension, bool) or not isinstance(dimension, int) or dimension < 1:
            raise BadPrivacyParameter(f"dimension must be an integer of at least 1, not {dimension!r}.")
        parameters["dimension"] = dimension
    if stated.get("relation") == "replace":
        parameters["replaced"] = 1.0
    return cost("skellam", parameters=parameters, **stated)


def delta_1_bound(delta_2: float, dimension: int) -> float:
    """The L1 sensitivity of an integer vector of L2 sensitivity `delta_2`: min(delta_2^2, sqrt(dimension) delta_2)."""
    return min(delta_2 * delta_2, math.sqrt(dimension) * delta_2)


@dataclass(frozen=True)
class _Noise:
    """A cost as the bounds read it. `replaced` is 0 for `zero-out`, and else what `delta_2` grows by."""

    mu: Fraction
    delta_1: float
    delta_2: float
    sampling: float
    single: bool
    replaced: float
    dimension: int | None

    @classmethod
    def of(cls, cost: Cost) -> _Noise:
        """Checked again: a ledger may hold bytes that no constructor has seen."""
        stated = dict(cost.parameters)
        if missing := {"mu", "delta_1", "delta_2", "parties", "colluders", "sampling", "shift"} - stated.keys():
            raise CannotAccount(f"a skellam cost lacks {', '.join(sorted(missing))}; build it with Skellam.")
        mu, delta_1, delta_2 = cost.number("mu"), cost.number("delta_1"), cost.number("delta_2")
        parties, colluders, sampling = cost.number("parties"), cost.number("colluders"), cost.number("sampling")
        replaced = cost.number("replaced") if "replaced" in stated else float(cost.relation == "replace")
        single = stated["shift"] == "single"
        sound = (
            0 < mu < math.inf
            and 0 < delta_2 < math.inf
            and delta_2 <= delta_1 < math.inf
            and 0 < sampling <= 1
            and 1 <= parties < math.inf
            and parties == int(parties)
            and 0 <= colluders < parties
            and colluders == int(colluders)
            and (replaced == 0 or 1 <= replaced <= 2)
            and (not single or delta_2 == int(delta_2))
            and ("dimension" not in stated or 1 <= cost.number("dimension") < math.inf)
        )
        if not sound or (colluders > 0 and sampling < 1):
            raise CannotAccount(f"a skellam cost contradicts itself: {stated}; build it with Skellam.")
        left = Fraction(mu) * int(parties - colluders) / int(parties)
        if single and replaced:
            replaced = max(replaced, math.sqrt(2))
        dimension = int(cost.number("dimension")) if "dimension" in stated else None
        return cls(left, delta_1, delta_2, sampling, single, replaced, dimension)


class _Skellam:
    def pure(self, cost: Cost) -> float:
        """Infinite: I_(k-1)(x) / I_k(x) grows without bound in k."""
        return math.inf

    def rdp(self, cost: Cost, orders: Curve) -> Curve:
        noise = _Noise.of(cost)
        below, above = np.floor(orders), np.ceil(orders)
        integers = np.union1d(below, above)
        integers = integers[integers >= 2]
        curve = _replaced(noise, integers) if noise.replaced else _zeroed(noise, integers)
        if not np.all(np.isfinite(curve)):
            return np.full(orders.shape, math.inf)
        # (alpha - 1) D_alpha is convex in alpha and 0 at 1: a chord between whole orders is above it.
        cumulant = dict(zip(integers.tolist(), ((integers - 1) * curve).tolist(), strict=True)) | {1.0: 0.0}
        left = np.array([cumulant[order] for order in below.tolist()])
        right = np.array([cumulant[order] for order in above.tolist()])
        return np.asarray((left + (orders - below) * (right - left)) / (orders - 1), dtype=np.float64)

    def pld(self, cost: Cost) -> PrivacyLossDistribution | None:
        noise = _Noise.of(cost)
        if not noise.single and noise.dimension is not None and noise.sampling == 1:
            # Replaced, the coordinates of two records move.
            return normal_losses(
                variance=2 * float(noise.mu) * (1 - _ROUNDING),
                delta_2=noise.delta_2 * max(noise.replaced, 1.0),
                coordinates=noise.dimension * (2 if noise.replaced else 1),
            )
        if not noise.single or noise.mu > _PLD_LARGEST_MU:
            return None
        if noise.delta_2**2 > _PLD_LARGEST_RATIO * max(float(noise.mu), 1.0):
            return None  # losses of hundreds of nats
        if noise.replaced and noise.sampling < 1:
            return None  # mixtures on both sides: no dominating pair is proved here
        losses = _cell_losses(noise)
        # Replaced, a record leaves one cell and enters another (or moves one cell by less): two shifts at most.
        return losses.self_compose(2) if noise.replaced else losses

    def scaled(self, cost: Cost, factor: float) -> Cost:
        """The L2 sensitivity grows by `factor`, the L1 sensitivity by 2: the triangle inequality is all it has."""
        if _Noise.of(cost).replaced:
            raise CannotAccount(
                "this skellam cost holds for replaced records already; its sensitivity grows once only."
            )
        if not 1 <= factor <= 2:
            raise CannotAccount(f"between zero-out and replace a sensitivity grows by 1 to 2, not by {factor!r}.")
        parameters = dict(cost.parameters) | {"replaced": float(factor), "delta_1": 2 * cost.number("delta_1")}
        return replace(cost, parameters=tuple(sorted(parameters.items())))


register("skellam", _Skellam())


# --- Renyi divergences at whole orders ----------------------------------------------------------------------------


def _plain(mu: Fraction, delta_1: float, delta_2: float, orders: Curve) -> Curve:
    """Without sampling, the smaller of two bounds; both are Gaussian noise of variance 2 mu but for 1 + O(1 / mu).

    Ours is D_alpha <= alpha delta_2^2 u with u = log(I_0(2 mu) / I_1(2 mu)). The second differences of log p are
    never below the one at 0, -2u (claim, part 2); so log p(k) + u k^2 is convex,
    p(k - D)^alpha p(k)^(1 - alpha) <= p(k - alpha D) e^(alpha (alpha - 1) u D^2), and the sum of p over k is 1.
    Lemma 2 is used where no coordinate can move by more than the variance.
    """
    m = float(mu) * (1 - _ROUNDING)
    ours = orders * (delta_2 * _decay(2 * m) * delta_2)
    if delta_2 > 2 * m:
        return np.asarray(ours, dtype=np.float64)
    square = delta_2 / m * delta_2
    excess = np.minimum(((2 * orders - 1) * square + 6 * (delta_1 / m)) / (16 * m), 0.75 * (delta_1 / m))
    return np.asarray(np.minimum(ours, orders * square / 4 + excess), dtype=np.float64)


def _decay(x: float) -> float:
    """An upper bound of log(I_0(x) / I_1(x)), to 1e-7."""
    if x < 1000:
        ratio = float(ive(1, x) / ive(0, x))
        return -math.log(ratio) if ratio > 0 else math.inf
    # u = log(I_0/I_1) solves u' = 1/x - 2 sinh u. The polynomial below is above u at x = 18, and from there on its
    # slope is at least 1/x - 2 sinh of itself, so it stays above. A quotient of Bessel functions would cancel here.
    return (0.5 + (0.25 + 0.25 / x) / x) / x


def _zeroed(noise: _Noise, orders: Curve) -> Curve:
    """`zero-out`, with amplification by Poisson sampling at rate q.

    With P the law without the record and Q the law with it, a sampled release is P against (1-q) P + q Q. Skellam
    noise is symmetric, so a reflection swaps P and Q, and the divergence *from* P is the smaller one (Mironov, Talwar
    and Zhang 2019, Theorem 5). The other one is a binomial sum at whole orders:
        e^((alpha-1) D) - 1 = sum_(l>=2) C(alpha, l) q^l (1-q)^(alpha-l) (e^((l-1) D_l(Q||P)) - 1).
    """
    plain = _plain(noise.mu, noise.delta_1, noise.delta_2, orders)
    if noise.sampling == 1 or not np.all(np.isfinite(plain)):
        return plain
    largest = int(min(orders.max(), _AMPLIFIED_UP_TO))
    size = np.arange(largest + 1, dtype=np.float64)
    log_factorial = gammaln(size + 1)
    lift = (size[2:] - 1) * _plain(noise.mu, noise.delta_1, noise.delta_2, size[2:])
    log_lift = lift + np.log(-np.expm1(-lift))
    log_in, log_out = math.log(noise.sampling), math.log1p(-noise.sampling)
    bound = plain.copy()
    for i in np.flatnonzero(orders <= largest):
        alpha = int(orders[i])
        inside = slice(2, alpha + 1)
        log_choose = log_factorial[alpha] - log_factorial[inside] - log_factorial[: alpha - 1][::-1]
        log_chance = log_choose + size[inside] * log_in + (alpha - size[inside]) * log_out
        log_sum = logsumexp(log_chance + log_lift[: alpha - 1]) + _LOG_ROUNDING
        bound[i] = min(bound[i], np.logaddexp(0.0, log_sum) / (alpha - 1))
    return bound


def _replaced(noise: _Noise, orders: Curve) -> Curve:
    """`replace`: the sensitivities grow; or, with sampling, twice `zero-out` where that is less.

    Both neighbours are then mixtures with the same P, and P lies between them. The weak triangle inequality
    (Mironov 2017, Proposition 11) is D_a(A||B) <= (a - 1/2)/(a - 1) D_2a(A||P) + D_(2a-1)(P||B).
    """
    plain = _plain(noise.mu, noise.delta_1, noise.replaced * noise.delta_2, orders)
    if noise.sampling == 1:
        return plain
    forth = _zeroed(noise, 2 * orders)
    back = _zeroed(noise, 2 * orders - 1)
    return np.asarray(np.minimum(plain, (orders - 0.5) / (orders - 1) * forth + back), dtype=np.float64)


# --- the privacy loss distribution of one cell --------------------------------------------------------------------


def _cell_losses(noise: _Noise) -> PrivacyLossDistribution:
    """Sk(mu) + shift against Sk(mu), with the sampled batch in both directions.

    The law is log-concave, so the loss is monotone, the worst events are half-lines, and a smaller shift loses less:
    the largest shift dominates. Losses are rounded up; mass outside this support counts as an infinite loss.
    """
    from dp_accounting.pld import privacy_loss_distribution

    from colonnade.privacy.skellam_sampler import reach, weights

    shift, q = int(noise.delta_2), noise.sampling
    largest = reach(noise.mu, _PLD_TAIL_NATS) - 1
    mass, total = weights(noise.mu, largest + 2 * shift)
    log_p = np.array([math.log(weight) for weight in mass]) - math.log(total)
    # Outcomes from -largest - shift to largest + shift hold all but 2 e^-60 of the law without the record, and of the
    # law with it, which is the same moved by `shift`.
    outcomes = np.arange(-largest - shift, largest + shift + 1)
    without, moved = log_p[np.abs(outcomes)], log_p[np.abs(outcomes - shift)]
    included = moved if q == 1 else np.logaddexp(math.log1p(-q) + without, math.log(q) + moved)
    tail = 2 * math.exp(-_PLD_TAIL_NATS)

    def losses(lower: Curve, upper: Curve) -> dict[int, float]:
        # Halfway both laws are the same double: a loss of 0 that needs no allowance for rounding.
        allowance = np.where(2 * outcomes == shift, 0.0, _LOG_ROUNDING)
        on_grid = np.ceil((upper - lower + allowance) / _PLD_GRID).astype(np.int64)
        values, where = np.unique(on_grid, return_inverse=True)
        return dict(zip(values.tolist(), np.bincount(where, np.exp(upper)).tolist(), strict=True))

    make = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability
    if q == 1:  # the reflection that swaps the two laws makes both directions equal
        return make(losses(without, included), tail, _PLD_GRID)
    return make(losses(without, included), tail, _PLD_GRID, True, losses(included, without), tail, symmetric=False)


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise BadPrivacyParameter(f"{name} must be a positive finite number, not {value!r}; choose one above 0.")


def _rounded(value: float | Fraction, towards: float) -> float:
    """The nearest double on the given side."""
    near = float(value)
    on_the_side = near <= value if towards < 0 else near >= value
    return near if on_the_side else math.nextafter(near, towards)


# --- noise of a large mean is normal noise, rounded, but for a factor that is bounded here --------
#
# A release of integers with rounded N(0, 2 mu) is post-processing of the Gaussian mechanism, whose privacy loss is
# known for every dimension. The laws differ by a factor within e^(+-oscillation) as far as 14 standard deviations. So
# the loss of Skellam noise is the Gaussian one plus a constant, its tail larger by a constant factor, except with a
# probability that is counted as an infinite loss. With gamma of 2^10 and more the constant is far below the grid, and
# several per cent of noise are saved against Renyi divergences. The proof is part 5 of `skellam.claim.md`.


GRID = 1e-4
_REACH = 14.0
_LARGEST_CONSTANT = 1e-3
MOST_SPARSE = 1000
"""Losses that dp-accounting stores as a dict."""


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
    from dp_accounting.pld.pld_pmf import DensePLDPmf
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
    lowest, outside = first + 1 + shift, min(1.0, float(tail[-1]) + beyond)
    if mass.size > MOST_SPARSE:  # as the library would store it, without a dict of all losses on the way
        return Losses(DensePLDPmf(GRID, lowest, mass, outside, pessimistic_estimate=True))
    losses = dict(enumerate(mass.tolist(), lowest))
    distribution: Losses = Losses.create_from_rounded_probability(losses, outside, GRID)
    return distribution
