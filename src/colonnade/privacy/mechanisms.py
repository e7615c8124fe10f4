"""What each mechanism's cost means, at a count of one: the registry that the accountants read.

A `Mechanism` interprets the parameters of a `Cost` in three ways: a pure epsilon, a curve of Renyi divergences
(RDP) and, where one is proved, a privacy loss distribution (PLD). A mechanism that nobody registered is refused,
never guessed. The proofs are in `claim.md` beside this file.

dp_accounting is imported when it is first needed: importing it takes seconds.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadPrivacyParameter, CannotAccount
from colonnade.privacy.cost import RELATIONS, Cost, Laplace, Relation

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Curve = NDArray[np.float64]


class Mechanism(Protocol):
    """How one kind of cost is accounted, at a count of one."""

    def pure(self, cost: Cost) -> float:
        """Its pure epsilon, or infinity."""

    def rdp(self, cost: Cost, orders: Curve) -> Curve:
        """Its Renyi divergence at each order, infinity where no bound is known."""

    def pld(self, cost: Cost) -> PrivacyLossDistribution | None:
        """Its privacy loss distribution, pessimistic and on dp_accounting's default grid, where one is proved."""

    def scaled(self, cost: Cost, factor: float) -> Cost:
        """The cost of the same noise when the sensitivity grows by `factor`."""


_MECHANISMS: dict[str, Mechanism] = {}


_ELSEWHERE = {"skellam": "colonnade.privacy.skellam"}
"""Mechanisms that register themselves when their module is imported: a ledger that holds one must be readable."""


def register(name: str, mechanism: Mechanism) -> None:
    """Teach the accountants a mechanism. A name is given once."""
    if _MECHANISMS.setdefault(name, mechanism) is not mechanism:
        raise ValueError(f"mechanism {name!r} is registered already; a second meaning would change old ledgers")


def mechanism_of(cost: Cost) -> Mechanism:
    """The mechanism of a single cost; CannotAccount where nobody registered it."""
    if cost.mechanism in _ELSEWHERE:
        importlib.import_module(_ELSEWHERE[cost.mechanism])
    mechanism = _MECHANISMS.get(cost.mechanism)
    if mechanism is None:
        raise CannotAccount(
            f"no accountant knows the mechanism {cost.mechanism!r}; import the module that registers it,"
            f" or use one of {', '.join(sorted(_MECHANISMS))}."
        )
    return mechanism


def _stated(cost: Cost, name: str) -> float:
    """A parameter that must be positive and finite; a ledger may hold bytes that no constructor checked."""
    value = cost.number(name)
    if not 0 < value < math.inf:
        raise CannotAccount(f"parameter {name!r} of {cost.mechanism!r} must be positive and finite, not {value!r}.")
    return value


def _with(cost: Cost, **parameters: float) -> Cost:
    return replace(cost, parameters=tuple(sorted(parameters.items())))


def randomized_response_rdp(epsilon: float, categories: int, orders: Curve) -> Curve:
    """Renyi divergence between k-ary randomized response on two different answers.

    With q = 1 / (e^eps + k - 1) for each wrong answer and t = (alpha - 1) eps,
    exp((alpha - 1) D_alpha) = q (e^(alpha eps) + e^(-t) + k - 2) = 1 + q (expm1(eps) expm1(t) + 4 sinh(t/2)^2):
    the last form does not cancel for small epsilons, the first one does not overflow in logarithms.
    """
    t = (orders - 1) * epsilon
    log_q = -np.logaddexp(epsilon, math.log(categories - 1))
    small = np.minimum(t, 30.0)
    lift = -math.expm1(-epsilon) / (1 + (categories - 1) * math.exp(-epsilon))  # q expm1(eps)
    near = np.log1p(lift * np.expm1(small) + np.exp(log_q) * 4 * np.sinh(small / 2) ** 2)
    rest = np.logaddexp(-t, math.log(categories - 2) if categories > 2 else -math.inf)
    far = log_q + np.logaddexp(epsilon + t, rest)
    return np.asarray(np.minimum(np.where(t < 30.0, near, far) / (orders - 1), epsilon), dtype=np.float64)


class _Laplace:
    """Any mechanism of pure epsilon.

    Discrete Laplace noise at sensitivity 1 has the losses +-epsilon only: it *is* randomized response, and
    continuous Laplace noise leaks less. So the curve is the one of the worst mechanism of pure epsilon, binary
    randomized response, which dominates them all (Kairouz, Oh, Viswanath 2015). For small epsilons the two agree.
    """

    def pure(self, cost: Cost) -> float:
        return _stated(cost, "epsilon")

    def rdp(self, cost: Cost, orders: Curve) -> Curve:
        return randomized_response_rdp(_stated(cost, "epsilon"), 2, orders)

    def pld(self, cost: Cost) -> PrivacyLossDistribution | None:
        from dp_accounting.pld import common, privacy_loss_distribution

        return privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(_stated(cost, "epsilon"), 0.0)
        )

    def scaled(self, cost: Cost, factor: float) -> Cost:
        return _with(cost, epsilon=_stated(cost, "epsilon") * factor)


class _Gaussian:
    """Gaussian noise of s times the L2 sensitivity: D_alpha <= alpha / (2 s^2), discrete or not.

    For the discrete Gaussian this is Canonne, Kamath and Steinke 2020, Theorem 4. The PLD of the continuous Gaussian
    is not a proven bound for it, so a PLD exists only where a neighbour moves a single integer coordinate by a
    known amount (`GaussianCell`): then the loss is known exactly.
    """

    _LARGEST_SIGMA = 2000.0  # the PLD of one cell takes time in proportion to sigma

    def pure(self, cost: Cost) -> float:
        self._multiplier(cost)
        return math.inf

    def rdp(self, cost: Cost, orders: Curve) -> Curve:
        shift = 1 / self._multiplier(cost)
        return orders * (shift * shift / 2)

    def pld(self, cost: Cost) -> PrivacyLossDistribution | None:
        self._multiplier(cost)
        if not self._single_cell(cost) or _stated(cost, "sigma") > self._LARGEST_SIGMA:
            return None
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.from_discrete_gaussian_mechanism(
            _stated(cost, "sigma"), sensitivity=int(_stated(cost, "sensitivity"))
        )

    def scaled(self, cost: Cost, factor: float) -> Cost:
        # A record that is replaced may leave one cell and enter another, so the single coordinate is given up.
        return cost if factor == 1 else _with(cost, noise_multiplier=self._multiplier(cost) / factor)

    def _single_cell(self, cost: Cost) -> bool:
        return any(name == "sigma" for name, _ in cost.parameters)

    def _multiplier(self, cost: Cost) -> float:
        multiplier = _stated(cost, "noise_multiplier")
        if self._single_cell(cost):
            sigma, sensitivity = _stated(cost, "sigma"), _stated(cost, "sensitivity")
            if sensitivity != int(sensitivity) or not math.isclose(sigma, multiplier * sensitivity, rel_tol=1e-9):
                raise CannotAccount(
                    f"a gaussian cost contradicts itself: sigma {sigma}, sensitivity {sensitivity}, noise multiplier"
                    f" {multiplier}; build it with GaussianCell."
                )
        return multiplier


class _ZeroConcentrated:
    """rho-zCDP (Bun and Steinke 2016): the Renyi curve is all that is known."""

    def pure(self, cost: Cost) -> float:
        return math.inf

    def rdp(self, cost: Cost, orders: Curve) -> Curve:
        return orders * _stated(cost, "rho")

    def pld(self, cost: Cost) -> PrivacyLossDistribution | None:
        return None

    def scaled(self, cost: Cost, factor: float) -> Cost:
        return _with(cost, rho=_stated(cost, "rho") * factor * factor)


class _RandomizedResponse:
    """k-ary randomized response on one answer: the losses are +-epsilon and 0."""

    def pure(self, cost: Cost) -> float:
        return _stated(cost, "epsilon")

    def rdp(self, cost: Cost, orders: Curve) -> Curve:
        return randomized_response_rdp(_stated(cost, "epsilon"), self._categories(cost), orders)

    def pld(self, cost: Cost) -> PrivacyLossDistribution | None:
        epsilon, categories = _stated(cost, "epsilon"), self._categories(cost)
        if epsilon > 30:
            return None  # the chance of a wrong answer would vanish in dp_accounting's 1 - p
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.from_randomized_response(
            categories / (math.exp(epsilon) + categories - 1), categories
        )

    def scaled(self, cost: Cost, factor: float) -> Cost:
        # More answers of one record change: what is left of the structure is a pure epsilon.
        if factor == 1:
            return cost
        stated = {"unit": cost.unit, "relation": cost.relation, "audience": cost.audience, "joint": cost.joint}
        return Laplace(self.pure(cost) * factor, replace_factor=cost.replace_factor, count=cost.count, **stated)

    def _categories(self, cost: Cost) -> int:
        categories = _stated(cost, "categories")
        if categories != int(categories) or categories < 2:
            raise CannotAccount(f"randomized response needs at least 2 whole categories, not {categories!r}.")
        return int(categories)


class _Constant:
    """The two extremes: a message that shows nothing, and a release without a bound."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon

    def pure(self, cost: Cost) -> float:
        return self._epsilon

    def rdp(self, cost: Cost, orders: Curve) -> Curve:
        return np.full(orders.shape, self._epsilon)

    def pld(self, cost: Cost) -> PrivacyLossDistribution | None:
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.identity() if self._epsilon == 0 else None

    def scaled(self, cost: Cost, factor: float) -> Cost:
        return cost


register("laplace", _Laplace())
register("gaussian", _Gaussian())
register("zcdp", _ZeroConcentrated())
register("randomized-response", _RandomizedResponse())
register("free", _Constant(0.0))
register("unbounded", _Constant(math.inf))


def under(cost: Cost, relation: Relation) -> Cost:
    """The same cost, stated for the other neighbouring relation.

    A `replace` bound holds for `zero-out` as it is. A `zero-out` bound becomes a `replace` bound when the
    sensitivity grows by the cost's `replace_factor`.
    """
    if relation not in RELATIONS:
        raise BadPrivacyParameter(f"relation {relation!r} is none of {', '.join(RELATIONS)}.")
    if cost.mechanism == "composed":
        return replace(cost, relation=relation, parts=tuple(under(part, relation) for part in cost.parts))
    if cost.relation == relation:
        return cost
    if relation == "replace":
        cost = mechanism_of(cost).scaled(cost, cost.replace_factor)
    return replace(cost, relation=relation, replace_factor=1.0)
