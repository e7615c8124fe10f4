"""Tests that try to refute a privacy claim; every mechanism and method reuses them.

- `Audit` runs a mechanism many times on two neighbours and counts how often one event tells them apart.
  `power` (in `bounds`) says in advance how surely an audit of that size catches too little noise; an audit that
  accepts without a stated power says nothing.
What these prove, and what they do not, is in `claim.md` beside this file.

    claim = profile_from_gaussian(noise_multiplier)
    stated = power(claim, shift=1.0, sd=noise_multiplier, factor=1.4, runs=20_000)
    audit = Audit(neighbours=(a, b), run_many=run_many, claim=claim, delta=1e-5, runs=20_000, stated_power=stated)
    result = audit.run(SimulatedRandomness(1))
    assert not result.refuted, result
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from colonnade.audit.bounds import (
    CONFIDENCE,
    Aim,
    Event,
    Power,
    PrivacyProfile,
    Reals,
    bonferroni,
    check_audit,
    choose,
    clopper_pearson,
    delta_lower_bound,
    epsilon_lower_bound,
    mu_lower_bound,
    power,
)
from colonnade.audit.planted import SELECTIONS, Planted
from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.randomness import Randomness

Data = TypeVar("Data")

_ROUNDING = 1e-12


# --- the audit -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One event, tested: with the audit's confidence the true rates are at least `tpr` and at most `fpr`."""

    aim: Aim
    event: Event
    hits: tuple[int, int]
    trials: int
    tpr: float
    fpr: float
    allowed: float

    @property
    def refutes(self) -> bool:
        return self.tpr > self.allowed + _ROUNDING


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """Lower bounds beside the claim. All of them hold together with probability at least `confidence`."""

    claim: str
    claimed_epsilon: float
    delta: float
    refuted: bool
    epsilon_lower_bound: float
    delta_lower_bound: float
    mu_lower_bound: float
    runs: int
    confidence: float
    findings: tuple[Finding, ...] = ()
    stated_power: Power | None = None

    @property
    def power(self) -> float | None:
        """The probability of noticing the stated fault."""
        return self.stated_power.probability if self.stated_power else None

    @property
    def threshold(self) -> float | None:
        """The threshold of the event that refutes the claim, or else of the one chosen to."""
        findings = [f for f in self.findings if f.refutes] or self.findings
        return findings[0].event.threshold if findings else None

    def __str__(self) -> str:
        verdict = "REFUTED" if self.refuted else "not refuted"
        stated = self.stated_power
        strength = (
            f"power {stated.probability:.4f} against noise / {stated.factor:g}" if stated else "no power was stated"
        )
        return (
            f"{self.claim}: {verdict}; epsilon >= {self.epsilon_lower_bound:.4g} (claimed {self.claimed_epsilon:.4g}) "
            f"at delta {self.delta:g}; delta >= {self.delta_lower_bound:.3g} at the claimed epsilon; "
            f"{self.runs} runs a neighbour, confidence 1 - {1 - self.confidence:.1e}, {strength}"
        )


RunMany = Callable[[Data, int, Randomness], Reals]


@dataclass(frozen=True, kw_only=True)
class Audit(Generic[Data]):
    """A mechanism, two neighbours, and the claim that their outputs are hard to tell apart.

    `run_many(data, runs, randomness)` returns one statistic per independent run of the mechanism, best the log
    likelihood ratio in the direction of the difference. `runs` is the number on each neighbour. The first half chooses
    the event, the second half tests it. With a declared `threshold` all runs test the event `statistic >= threshold`,
    which must be likelier under the first neighbour.
    """

    neighbours: tuple[Data, Data]
    run_many: RunMany[Data]
    claim: PrivacyProfile
    delta: float
    runs: int
    confidence: float = CONFIDENCE
    threshold: float | None = None
    stated_power: Power | None = None

    def __post_init__(self) -> None:
        check_audit(runs=self.runs, confidence=self.confidence)
        if not 0 <= self.delta < 1:
            raise BadPrivacyParameter(f"delta must lie in [0, 1), not {self.delta!r}; state the claim's own.")
        stated = self.stated_power
        about = (self.claim.name, self.runs, self.confidence, self.threshold)
        if stated and (stated.claim, stated.runs, stated.confidence, stated.threshold) != about:
            raise BadPrivacyParameter(
                "stated_power speaks of another audit; compute it for this claim, runs, confidence and threshold."
            )

    def run(self, randomness: Randomness) -> AuditResult:
        """Run the mechanism and test the claim; the false alarm probability is at most 1 - confidence."""
        p, q = (np.asarray(self.run_many(d, self.runs, randomness), dtype=np.float64) for d in self.neighbours)
        if p.shape != (self.runs,) or q.shape != (self.runs,) or bool(np.isnan(p).any() or np.isnan(q).any()):
            raise BadPrivacyParameter("run_many must return one number per run, never NaN; score a failure as -inf.")
        claimed = self.claim.epsilon(self.delta)
        events: dict[Aim, Event]
        if self.threshold is None:
            alpha, first = bonferroni(self.confidence), self.runs // 2
            events = choose(p[:first], q[:first], self.claim, delta=self.delta, epsilon=claimed, alpha=alpha)
            p, q = p[first:], q[first:]
        else:
            alpha, events = (1 - self.confidence) / 2, {"curve": Event(self.threshold)}
        findings = tuple(self._test(aim, event, p, q, alpha) for aim, event in events.items())
        # All bounds hold together, so every event may serve every aim.
        tpr, fpr = np.array([f.tpr for f in findings]), np.array([f.fpr for f in findings])
        return AuditResult(
            claim=self.claim.name,
            claimed_epsilon=claimed,
            delta=self.delta,
            runs=self.runs,
            confidence=self.confidence,
            refuted=any(f.refutes for f in findings),
            epsilon_lower_bound=float(epsilon_lower_bound(tpr, fpr, self.delta).max()),
            delta_lower_bound=float(delta_lower_bound(tpr, fpr, claimed).max()),
            mu_lower_bound=float(mu_lower_bound(tpr, fpr).max()),
            findings=findings,
            stated_power=self.stated_power,
        )

    def _test(self, aim: Aim, event: Event, p: Reals, q: Reals, alpha: float) -> Finding:
        hits = event.hits(p), event.hits(q)
        tpr = float(clopper_pearson(hits[0], p.size, alpha)[0])
        fpr = float(clopper_pearson(hits[1], q.size, alpha)[1])
        allowed = float(self.claim.tpr(np.array([fpr]))[0])
        return Finding(aim=aim, event=event, hits=hits, trials=p.size, tpr=tpr, fpr=fpr, allowed=allowed)


def presence_audit(
    run_many: RunMany[bool],
    claim: PrivacyProfile,
    *,
    shift: float,
    sd: float,
    delta: float,
    runs: int,
    planted: Planted,
    factor: float | None = None,
) -> Audit[bool]:
    """Whether one record is there. The record moves a statistic that is nearly normal, of standard deviation `sd` with
    nothing planted, by `shift`. Power is stated against noise / `factor`: by default the planted bug, or 1.4."""
    factor = planted.looked_for if factor is None else factor
    stated = power(claim, shift=shift, sd=sd, factor=factor, runs=runs, selections=SELECTIONS)
    return Audit(neighbours=(True, False), run_many=run_many, claim=claim, delta=delta, runs=runs, stated_power=stated)
