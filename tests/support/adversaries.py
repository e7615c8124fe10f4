"""Two adversaries for tests, beside the attacks that methods bring: members counted at a false positive rate, and a
search for neighbours that refute a sensitivity.

`membership_attack`. **Claim.** The intervals of the true and the false positive rate hold together with `confidence`,
and `refuted` has a false alarm of at most 1 - confidence: the threshold comes from the first half of the non-members,
which is not counted. `allowed` is what the claim permits at the nominal rate; the verdict uses the upper bound of the
measured one. Scores must come from independent runs.

`sensitivity_search`. **Claim.** `best` is reached by the returned witnesses, so it is a lower bound on the sensitivity,
up to rounding of the floats in f. `refuted` leaves 1e-12 for that. A search that finds nothing proves nothing: prove
the bound, and let the search try it. It finds the true value for sums and Gram matrices (zero-out c^2, replace sqrt(2)
c^2), and it refutes the SQM paper's gamma^2 c^2 + n under stochastic rounding without clipping again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.audit.bounds import CONFIDENCE, Event, PrivacyProfile, Reals, check_audit, clopper_pearson
from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.randomness import Randomness, simulated_generator

Data = TypeVar("Data")
Norm = Literal["l1", "l2", "linf"] | Callable[[NDArray[Any]], float]

_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class MembershipResult:
    """An attacker's hits at one false positive rate, with both intervals at `confidence` together."""

    threshold: float
    fpr: float
    tpr: float
    fpr_interval: tuple[float, float]
    tpr_interval: tuple[float, float]
    allowed: float
    confidence: float
    refuted: bool


def membership_attack(
    members: Reals,
    others: Reals,
    *,
    fpr: float,
    claim: PrivacyProfile,
    confidence: float = CONFIDENCE,
) -> MembershipResult:
    """How many members an attacker finds at the false positive rate `fpr`, beside `allowed`, what `claim` permits
    there: e^epsilon fpr + delta for an (epsilon, delta) claim.

    `members` and `others` are the attacker's scores from independent runs with and without the record (high means
    "member"). The first half of `others` sets the threshold; the second half, and all members, are counted.
    """
    p, held = np.asarray(members, dtype=np.float64), np.asarray(others, dtype=np.float64)
    check_audit(runs=min(p.size, held.size), confidence=confidence)
    if not 0 < fpr < 1 or bool(np.isnan(p).any() or np.isnan(held).any()):
        raise BadPrivacyParameter("membership_attack needs fpr between 0 and 1 and scores without NaN.")
    first, second = np.sort(held[: held.size // 2]), held[held.size // 2 :]
    # Just above the value that fpr of the first half exceed, so that ties never raise the rate.
    threshold = float(np.nextafter(first[max(first.size - 1 - int(fpr * first.size), 0)], np.inf))
    event, alpha = Event(threshold), (1 - confidence) / 4
    hits = event.hits(p), event.hits(second)
    tpr_low, tpr_high = (float(x) for x in clopper_pearson(hits[0], p.size, alpha))
    fpr_low, fpr_high = (float(x) for x in clopper_pearson(hits[1], second.size, alpha))
    return MembershipResult(
        threshold=threshold,
        fpr=hits[1] / second.size,
        tpr=hits[0] / p.size,
        fpr_interval=(fpr_low, fpr_high),
        tpr_interval=(tpr_low, tpr_high),
        allowed=float(claim.tpr(np.array([fpr]))[0]),
        confidence=confidence,
        refuted=tpr_low > float(claim.tpr(np.array([fpr_high]))[0]) + _ROUNDING,
    )


# --- an adversary for sensitivity ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SensitivityResult(Generic[Data]):
    """The largest distance found: a lower bound on the sensitivity, with the neighbours that show it."""

    best: float
    claimed: float
    witnesses: tuple[Data, Data]
    coins: Reals
    evaluations: int

    @property
    def refuted(self) -> bool:
        return self.best > self.claimed * (1 + _ROUNDING)


def sensitivity_search(
    f: Callable[[Data], NDArray[Any]],
    draw_neighbours: Callable[[Reals], tuple[Data, Data]],
    *,
    coins: int,
    claimed: float,
    randomness: Randomness,
    norm: Norm = "l2",
    runs: int = 20_000,
    climbs: int = 4,
) -> SensitivityResult[Data]:
    """Look for neighbours D, D' with a larger ||f(D) - f(D')|| than `claimed`, in `runs` evaluations.

    `draw_neighbours` turns any point of the cube [0, 1]^coins into neighbours, so that random search and climbing
    both stay inside the relation and its clipping. Randomness inside the mechanism before the noise (stochastic
    rounding) also comes from these coins: a sensitivity must hold for every outcome of it. A quarter of the runs are
    random; the best `climbs` points then climb one coin at a time.
    """
    generator = simulated_generator(randomness)
    evaluations = 0

    def distance(point: Reals) -> float:
        nonlocal evaluations
        evaluations += 1
        one, other = draw_neighbours(point)
        return _length(np.asarray(f(one)) - np.asarray(f(other)), norm)

    starts = [generator.random(coins) for _ in range(max(runs // 4, climbs))]
    ranked = sorted(((distance(point), i) for i, point in enumerate(starts)), reverse=True)
    best, winner = ranked[0][0], starts[ranked[0][1]]
    share = max(runs - len(starts), 0) // climbs
    for value, index in ranked[:climbs]:
        value, point = _climb(distance, value, starts[index].copy(), share, generator)
        if value > best:
            best, winner = value, point
    return SensitivityResult(
        best=best, claimed=claimed, witnesses=draw_neighbours(winner), coins=winner, evaluations=evaluations
    )


def _climb(
    distance: Callable[[Reals], float], value: float, point: Reals, budget: int, generator: np.random.Generator
) -> tuple[float, Reals]:
    """Change one coin at a time: to an end, the middle, anywhere, or a step away; a dry sweep shortens the step."""
    step = 0.25
    while step > 1e-9:
        before = value
        for coin in generator.permutation(point.size):
            here = point[coin]
            for proposal in (0.0, 0.5, 1.0, generator.random(), min(here + step, 1.0), max(here - step, 0.0)):
                if budget <= 0:
                    return value, point
                budget -= 1
                held, point[coin] = point[coin], proposal
                tried = distance(point)
                if tried > value:
                    value = tried
                else:
                    point[coin] = held
        if value == before:
            step /= 4
    return value, point


def _length(difference: NDArray[Any], norm: Norm) -> float:
    if callable(norm):
        return float(norm(difference))
    return float(np.linalg.norm(difference.ravel().astype(np.float64), {"l1": 1, "l2": 2, "linf": np.inf}[norm]))
