"""One attack on one claim, and the audit of a method: all of its attacks, each with what it found.

A method brings its attacks (`Method.attacks`); `audit_method` runs them and says what each found: a lower bound on
epsilon, with confidence, beside the upper bound that is claimed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from colonnade.audit.inference import InferenceResult
from colonnade.audit.mechanism import AuditResult
from colonnade.audit.planted import NOTHING, Planted
from colonnade.codec import plain
from colonnade.errors import BadArguments
from colonnade.federation.catalogue import CATALOGUE
from colonnade.privacy.randomness import SimulatedRandomness

DELTA = 1e-5
"""The delta of the audits that do not need another."""

NEIGHBOURS = "worst-case neighbours"
"""The attack that plays the mechanism on two records that differ as much as they may."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one attack found. `ours`: the product makes this claim; otherwise a paper does, and it need not hold.

    `power` is the probability of noticing the planted bug (noise / 1.4 where none is planted), where it is known.
    """

    method: str
    attack: str
    claim: str
    ours: bool
    claimed_epsilon: float
    delta: float
    epsilon_lower_bound: float
    confidence: float
    refuted: bool
    planted: str
    power: float | None
    runs: int
    seconds: float

    @property
    def verdict(self) -> str:
        if self.planted != str(NOTHING):
            return "found" if self.refuted else "not found"
        return "REFUTED" if self.refuted else "not refuted"

    def to_dict(self) -> dict[str, Any]:
        return {**plain(self), "verdict": self.verdict}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How an attack is run: the bug, how many times the usual runs, the seed."""

    planted: Planted
    effort: float
    seed: int

    def runs(self, usual: int) -> int:
        return max(int(usual * self.effort), 1000)

    @property
    def randomness(self) -> SimulatedRandomness:
        return SimulatedRandomness(self.seed)


Run = Callable[[Setting], AuditResult | InferenceResult]


@dataclass(frozen=True)
class Attack:
    """A claim in words, the attack in words, and how it is run.

    `ours`: the product makes the claim. `plantable` is False where no bug can be planted; `joint` is True where three
    members add noise together, so that one of them can fall silent. `least` is the smallest division of the noise that
    the attack can notice: it is not run against a smaller planted bug.
    """

    attack: str
    claim: str
    run: Run
    ours: bool = True
    plantable: bool = True
    joint: bool = False
    least: float = 1.0

    def takes(self, planted: Planted) -> bool:
        """Can this bug be planted, and noticed?"""
        if planted.nothing:
            return True
        return self.plantable and planted.effective >= self.least and (self.joint or not planted.silent)


def attacked(planted: Planted = NOTHING) -> tuple[str, ...]:
    """All methods with attacks of their own, of what is installed; or those into which this bug can be planted."""
    methods = {name: CATALOGUE.load(name) for name in CATALOGUE.names}
    return tuple(
        name
        for name, method in methods.items()
        if all(map(find_spec, method.needs)) and any(attack.takes(planted) for attack in method.attacks())
    )


def audit_method(name: str, *, planted: Planted = NOTHING, effort: float = 1.0, seed: int = 1) -> Iterator[Finding]:
    """Run every attack on a method, one finding after the other. `effort` multiplies the runs: more runs, more power.

    A method without attacks of its own is audited by those on the methods whose releases it makes (`rests_on`).

    [finding.verdict for finding in audit_method("tables")]
    """
    method = CATALOGUE.load(name)
    attacks = method.attacks()
    if not 0.001 <= effort <= 1000:
        raise BadArguments(f"effort must lie between 0.001 and 1000, not {effort!r}.")
    if not attacks:
        parts = [part for part in method.rests_on if part in attacked(planted)]
        if not method.rests_on:
            raise BadArguments(
                f"no attack on {name!r}: it makes no release under a bound. Try {', '.join(attacked())}."
            )
        if not parts:
            raise BadArguments(f"this bug cannot be planted into {', '.join(method.rests_on)}, on which {name} rests.")
        for part in parts:
            yield from audit_method(part, planted=planted, effort=effort, seed=seed)
        return
    if not planted.nothing and not any(attack.plantable for attack in attacks):
        raise BadArguments(f"no bug can be planted into {name}: its claim falls as it is.")
    if planted.silent and not any(attack.joint for attack in attacks):
        raise BadArguments(f"in {name} each party adds its own noise, so no member can fall silent; plant noise/1.4.")
    setting = Setting(planted=planted, effort=effort, seed=seed)
    for attack in attacks:
        if attack.takes(planted):
            start = time.perf_counter()
            result = attack.run(setting)
            yield Finding(
                method=name,
                attack=attack.attack,
                claim=attack.claim,
                ours=attack.ours,
                claimed_epsilon=result.claimed_epsilon,
                delta=result.delta,
                epsilon_lower_bound=result.epsilon_lower_bound,
                confidence=result.confidence,
                refuted=result.refuted,
                planted=str(planted),
                power=result.power,
                runs=result.runs,
                seconds=time.perf_counter() - start,
            )


def as_expected(findings: list[Finding]) -> bool:
    """Our claims stand and papers' claims that do not hold fall; or the planted bug was found by one attack."""
    if any(finding.planted != str(NOTHING) for finding in findings):
        return any(finding.refuted for finding in findings)
    return all(finding.refuted != finding.ours for finding in findings)
