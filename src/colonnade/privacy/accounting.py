"""What costs add up to.

`guarantee` composes costs in three ways, as pure epsilons, as Renyi divergences (RDP) and as privacy loss
distributions (PLD), and reports the smallest epsilon, because each way gives a true bound. `dominated` says whether
a reservation covers what was spent, `calibrate` finds the noise for a target. `privacy.mechanisms` says what a
single cost means; its registry is offered here too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from functools import lru_cache
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from colonnade.errors import BadPrivacyParameter, CannotAccount
from colonnade.privacy.cost import RELATIONS, UNITS, Cost, Relation, Unit
from colonnade.privacy.losses import composition
from colonnade.privacy.mechanisms import Curve, Mechanism, mechanism_of, register, under

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

__all__ = [
    "ORDERS",
    "Guarantee",
    "Mechanism",
    "advantage",
    "calibrate",
    "check_delta",
    "check_epsilon",
    "dominated",
    "guarantee",
    "kinds_of",
    "register",
    "under",
]

# Fractions of 1 for large epsilons; all small integers, where Skellam has its bounds (convexity covers the rest); then
# integers 8 % apart, up to the orders that epsilons of 0.001 need. A neighbour 8 % off costs < 0.1 % of epsilon.
ORDERS: Curve = np.unique(
    np.concatenate(
        [
            1 + np.geomspace(0.02, 1, 45),
            np.arange(2.5, 12, 0.5),
            np.arange(2, 65),
            np.round(np.geomspace(64, 2**17, 100)),
        ]
    )
)
_ORDER_TWO = int(np.searchsorted(ORDERS, 2.0))

_PLD_GRID = 1e-4  # dp_accounting's default spacing of the losses
# PLDs are convolved by FFT, whose rounding moves delta by less than this; smaller deltas are left to RDP.
_PLD_ROUNDING = 1e-13
_PLD_SMALLEST_DELTA = 1e-10
# A PLD takes time and memory in proportion to the width of the losses. The Renyi divergence of order 2 measures
# that width; the limit keeps one composition below about 0.1 s. Both limits are monotone: adding costs never makes
# a PLD available that was not (`dominated` relies on it).
_PLD_WIDEST = 4.0
_PLD_MOST_KINDS = 16


# --- accountants -----------------------------------------------------------------------------------------


def pure_sum(costs: Counter[Cost]) -> float:
    """Basic composition: pure epsilons add up."""
    return sum((count * mechanism_of(cost).pure(cost) for cost, count in costs.items()), 0.0)


def rdp_sum(costs: Counter[Cost]) -> Curve:
    """Renyi divergences add up at each order (Mironov 2017)."""
    total = np.zeros(ORDERS.shape)
    for cost, count in costs.items():
        curve = np.asarray(mechanism_of(cost).rdp(cost, ORDERS), dtype=np.float64)
        if curve.shape != ORDERS.shape or not np.all(curve >= 0):
            raise CannotAccount(f"the mechanism {cost.mechanism!r} gave no divergence for {dict(cost.parameters)}.")
        total += count * curve
    return total


def has_pld(costs: Counter[Cost], rdp: Curve) -> bool:
    """Is every privacy loss known, and their convolution cheap?"""
    if not costs or len(costs) > _PLD_MOST_KINDS or rdp[_ORDER_TWO] > _PLD_WIDEST:
        return False
    return all(_single_pld(cost) is not None for cost in costs)


def composed_pld(costs: Counter[Cost]) -> PrivacyLossDistribution:
    """The convolution of all privacy losses; only where `has_pld`."""
    return _composed(tuple(costs.items()))


@lru_cache(maxsize=8)  # a calibration ends with what the plan then states
def _composed(counted: tuple[tuple[Cost, int], ...]) -> PrivacyLossDistribution:
    losses: list[tuple[Any, int]] = [(_single_pld(cost), count) for cost, count in counted]
    return composition(losses)


@lru_cache(maxsize=64)
def _single_pld(cost: Cost) -> PrivacyLossDistribution | None:
    return mechanism_of(cost).pld(cost)


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """A bound for one unit under one relation, and the accountant that gave it.

    `unbounded` names the releases without a bound; if there is one, epsilon is infinite.
    """

    epsilon: float
    delta: float
    unit: Unit
    relation: Relation
    accountant: str
    unbounded: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.unbounded:
            return f"unbounded: {', '.join(self.unbounded)}"
        if math.isinf(self.epsilon):
            return f"no finite epsilon at delta {self.delta:g} per {self.unit}, {self.relation}"
        upwards = Context(prec=3, rounding=ROUND_CEILING).create_decimal_from_float(self.epsilon)
        return f"({float(upwards):g}, {self.delta:g}) per {self.unit}, {self.relation}"


def guarantee(
    costs: Iterable[Cost], *, delta: float, unit: Unit = "record", relation: Relation = "zero-out"
) -> Guarantee:
    """The smallest epsilon at `delta` that an accountant proves for all `costs` together.

    Costs of another unit are refused, except that `record` costs also bound a `block`. A joint release counts once.
    """
    delta = check_delta(delta)
    kinds, without = _composition(costs, unit, relation)
    if without:
        return Guarantee(
            epsilon=math.inf, delta=delta, unit=unit, relation=relation, accountant="none", unbounded=without
        )
    accountant, epsilon = _smallest(tuple(kinds.items()), delta)
    return Guarantee(epsilon=epsilon, delta=delta, unit=unit, relation=relation, accountant=accountant)


@lru_cache(maxsize=256)
def _smallest(counted: tuple[tuple[Cost, int], ...], delta: float) -> tuple[str, float]:
    """The accountant with the smallest epsilon. Plans, reports and ledgers ask the same again; sums are in the order in
    which the costs came, as everywhere."""
    kinds = Counter(dict(counted))
    epsilons = {"pure": pure_sum(kinds)}
    if delta > 0:
        curve = rdp_sum(kinds)
        epsilons["rdp"] = _rdp_epsilon(curve, delta)
        if delta >= _PLD_SMALLEST_DELTA and has_pld(kinds, curve):
            epsilons["pld"] = float(composed_pld(kinds).get_epsilon_for_delta(delta - _PLD_ROUNDING))
    accountant = min(epsilons, key=epsilons.__getitem__)
    return accountant, epsilons[accountant]


def _rdp_epsilon(curve: Curve, delta: float) -> float:
    from dp_accounting import rdp

    return float(rdp.compute_epsilon(ORDERS, curve, delta)[0])


def keeps_within(costs: Iterable[Cost], *, epsilon: float, delta: float, relation: Relation = "zero-out") -> bool:
    """Whether `guarantee` is at most `epsilon`, in less time: the cheap accountants first, and of a privacy loss only
    its delta at this epsilon, which falls as epsilon rises."""
    delta = check_delta(delta)
    kinds, without = _composition(costs, "record", relation)
    if without:
        return False
    if pure_sum(kinds) <= epsilon:
        return True
    if delta == 0:
        return False
    curve = rdp_sum(kinds)
    if _rdp_epsilon(curve, delta) <= epsilon:
        return True
    if delta < _PLD_SMALLEST_DELTA or not has_pld(kinds, curve):
        return False
    return bool(composed_pld(kinds).get_delta_for_epsilon(epsilon) <= delta - _PLD_ROUNDING)


def advantage(costs: Iterable[Cost], *, relation: Relation = "zero-out") -> float:
    """How much better than a coin the best guess between two neighbours can be: at most (1 + advantage) / 2 are right.

    It is delta at epsilon 0, the total variation distance, as the sharpest accountant bounds it; 1 without a bound.
    """
    kinds, without = _composition(costs, "record", relation)
    if without:
        return 1.0
    from dp_accounting.rdp import rdp_privacy_accountant

    curve = rdp_sum(kinds)
    # A pure epsilon is at best randomized response, whose distance is tanh(epsilon / 2).
    bounds = [1.0, math.tanh(pure_sum(kinds) / 2), float(rdp_privacy_accountant.compute_delta(ORDERS, curve, 0.0)[0])]
    if has_pld(kinds, curve):
        bounds.append(float(composed_pld(kinds).get_delta_for_epsilon(0.0)) + _PLD_ROUNDING)
    return min(bounds)


def _composition(costs: Iterable[Cost], unit: Unit, relation: Relation) -> tuple[Counter[Cost], tuple[str, ...]]:
    """What is to be composed, or the names of the releases without a bound: no bound for a part is none for the whole,
    whatever its unit."""
    if unit not in UNITS or relation not in RELATIONS:
        raise BadPrivacyParameter(
            f"unit {unit!r} must be one of {', '.join(UNITS)} and relation {relation!r} one of {', '.join(RELATIONS)}."
        )
    leaves = _once(costs)
    without = tuple(sorted({str(leaf["name"]) for leaf in leaves if leaf.mechanism == "unbounded"}))
    if without:
        return Counter(), without
    return _kinds(_as_unit(leaf, unit, relation) for leaf in leaves if leaf.mechanism != "free"), ()


def kinds_of(costs: Iterable[Cost]) -> Counter[Cost]:
    """How often each mechanism is used, for `rdp_sum` and `composed_pld`; costs without a bound are refused."""
    kinds, without = _composition(costs, "record", "zero-out")
    if without:
        raise CannotAccount(f"{', '.join(without)} has no bound, so there is no curve of its privacy loss.")
    return kinds


def _once(costs: Iterable[Cost]) -> list[Cost]:
    """All leaves, those of a joint release from one of its entries only.

    Entries with one id are the same releases seen by several parties, so the largest count covers the others.
    """
    leaves: list[Cost] = []
    joint: dict[str, Cost] = {}

    def walk(cost: Cost, times: int) -> None:
        cost = cost.times(times)
        if cost.joint is not None:
            mine, other = replace(cost, audience=""), joint.setdefault(cost.joint, replace(cost, audience=""))
            if replace(mine, count=1) != replace(other, count=1):
                raise CannotAccount(
                    f"two different costs carry the joint id {cost.joint!r}; give each joint release an id of its own."
                )
            joint[cost.joint] = max(mine, other, key=lambda entry: entry.count)
        elif cost.mechanism == "composed":
            for part in cost.parts:
                walk(part, cost.count)
        elif cost.count:
            leaves.append(cost)

    for cost in costs:
        walk(cost, 1)
    return leaves + [leaf for cost in joint.values() for leaf in cost.leaves()]


def _as_unit(leaf: Cost, unit: Unit, relation: Relation) -> Cost:
    if leaf.unit == unit:
        return under(leaf, relation)
    if leaf.unit == "record" and unit == "block":
        # A record with one block zeroed or replaced is another record: a special case of `replace`, and only of
        # that. (Zeroing a whole record can move a statistic less than zeroing one block of it does.)
        return replace(under(under(leaf, "replace"), relation), unit=unit)
    raise CannotAccount(
        f"a cost per {leaf.unit} ({leaf.mechanism}) says nothing about a {unit}; ask for the guarantee per {leaf.unit}."
    )


def _kinds(leaves: Iterable[Cost]) -> Counter[Cost]:
    """Counts of leaves that are accounted alike: who reads a release does not change its bound."""
    kinds: Counter[Cost] = Counter()
    for leaf in leaves:
        kinds[replace(leaf, audience="", joint=None, count=1)] += leaf.count
    return kinds


# --- comparison, calibration, checks ---------------------------------------------------------------------


def dominated(spent: Sequence[Cost], reserved: Sequence[Cost]) -> bool:
    """Is what was spent covered by what was reserved, whichever accountant and whatever else is added?

    Compared separately for each unit and relation: pure sums, Renyi curves at every order, and, if a PLD would be used
    for the reservation, the whole delta(epsilon) curve of what does not cancel; the same again under `replace`.
    Releases without a bound are covered by name, audience and count. A ledger belongs to one party, so every entry
    counts, joint or not.
    """
    all_spent = [leaf for cost in spent for leaf in cost.leaves() if leaf.mechanism != "free"]
    all_reserved = [leaf for cost in reserved for leaf in cost.leaves() if leaf.mechanism != "free"]
    if _without_bound(all_spent) - _without_bound(all_reserved):
        return False
    for unit, relation in {(leaf.unit, leaf.relation) for leaf in all_spent if leaf.mechanism != "unbounded"}:
        used, allowed = (
            [leaf for leaf in leaves if (leaf.unit, leaf.relation) == (unit, relation) and not leaf.unbounded]
            for leaves in (all_spent, all_reserved)
        )
        if not _kinds(used) - _kinds(allowed):  # the very releases that were reserved, as most requests are
            continue
        targets: set[Relation] = {relation, "replace"}
        for target in targets:
            if not _covers(
                _kinds(under(leaf, target) for leaf in allowed), _kinds(under(leaf, target) for leaf in used)
            ):
                return False
    return True


def _without_bound(leaves: Sequence[Cost]) -> Counter[tuple[str, str, str]]:
    released: Counter[tuple[str, str, str]] = Counter()
    for leaf in leaves:
        if leaf.mechanism == "unbounded":
            released[str(leaf["name"]), leaf.unit, leaf.audience] += leaf.count
    return released


_SLACK = 1 + 1e-9  # for sums in another order


def _covers(allowed: Counter[Cost], used: Counter[Cost]) -> bool:
    beyond, left = used - allowed, allowed - used  # what is equal cancels
    if not beyond:
        return True
    curve = rdp_sum(allowed)
    if pure_sum(used) > pure_sum(allowed) * _SLACK or np.any(rdp_sum(used) > curve * _SLACK):
        return False
    if not has_pld(allowed, curve):
        return True
    return _packs(beyond, left) or _loses_less(beyond, left)


def _packs(beyond: Counter[Cost], left: Counter[Cost]) -> bool:
    """Do the pure epsilons fit into the Laplace costs left over?

    Several releases that add up to at most epsilon are one mechanism of pure epsilon, and a Laplace cost is accounted
    as the worst of those. Largest first, one Laplace cost after the other.
    """
    if beyond.total() + left.total() > 100_000:
        return False
    rooms = sorted(mechanism_of(cost).pure(cost) for cost in left.elements() if cost.mechanism == "laplace")
    sizes = sorted(mechanism_of(cost).pure(cost) for cost in beyond.elements())
    while sizes and rooms:
        room = rooms.pop() * _SLACK
        while sizes and sizes[-1] <= room:
            room -= sizes.pop()
    return not sizes


def _loses_less(beyond: Counter[Cost], left: Counter[Cost]) -> bool:
    """Is delta(epsilon) of what goes beyond nowhere above that of what is left over?

    Then it stays below in any composition (Zhu, Dong, Wang 2022). Both curves are over-estimates: each loss is rounded
    up by less than one point of the grid, so the second one is read as many points further on as it has releases.
    Where both neighbours lose alike, epsilons of at least 0 decide; other pairs are not compared.
    """
    if not has_pld(beyond, rdp_sum(beyond)) or not has_pld(left, rdp_sum(left)):
        return False
    ours, theirs = composed_pld(beyond), composed_pld(left)
    widest = ours.get_epsilon_for_delta(_PLD_ROUNDING)
    if math.isinf(widest) or not all(getattr(pld, "_symmetric", False) for pld in (ours, theirs)):
        return False
    grid = np.arange(math.ceil(widest / _PLD_GRID) + 1) * _PLD_GRID
    above = np.asarray(ours.get_delta_for_epsilon(grid))
    below = np.asarray(theirs.get_delta_for_epsilon(grid + left.total() * _PLD_GRID))
    return bool(np.all(above <= below + _PLD_ROUNDING))


def calibrate(
    make: Callable[[float], Sequence[Cost]],
    *,
    epsilon: float,
    delta: float,
    relation: Relation = "zero-out",
    bracket: tuple[float, float] = (1e-9, 1e30),
) -> float:
    """The smallest noise scale x in `bracket`, to 1e-4 and on the safe side, at which make(x) costs at most `epsilon`.

    `make` must cost less for a larger x. The scale that is returned was itself accounted.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    lowest, highest = bracket

    def enough(scale: float) -> bool:
        return keeps_within(make(scale), epsilon=epsilon, delta=delta, relation=relation)

    low = high = min(max(1.0, lowest), highest)
    if enough(high):
        while enough(low):
            high = low
            if low <= lowest:
                return low
            low = max(low / 4, lowest)
    else:
        while not enough(high):
            if high >= highest:
                raise BadPrivacyParameter(
                    f"no noise scale up to {highest:g} reaches epsilon {epsilon:g} at delta {delta:g}; allow a larger"
                    " epsilon, or a delta above 0 if the noise has no pure bound."
                )
            low, high = high, min(high * 4, highest)
    while high > low * (1 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def check_epsilon(value: float) -> float:
    """The value as a float, if it can be an epsilon."""
    if not 0 < _number(value) < math.inf:
        raise BadPrivacyParameter(f"epsilon must be positive and finite, not {value!r}; common choices are 0.1 to 10.")
    return float(value)


def check_delta(value: float) -> float:
    """The value as a float, if it can be a delta."""
    if not 0 <= _number(value) < 1:
        raise BadPrivacyParameter(
            f"delta must lie in [0, 1), not {value!r}; choose it well below 1/n, say 1e-6, or 0 for a pure guarantee."
        )
    return float(value)


def _number(value: object) -> float:
    """Not a number where it is none: every comparison with it fails."""
    return math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
