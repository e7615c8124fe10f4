"""Which method is attacked how: the claim, the attack, and whose claim it is.

`audit_method` runs all attacks on one method and says what each found: a lower bound on epsilon, with confidence,
beside the upper bound that is claimed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from colonnade.audit.claims import claimed_curve, small_consortium
from colonnade.audit.inference import InferenceResult
from colonnade.audit.mechanism import AuditResult
from colonnade.audit.planted import NOTHING, Planted
from colonnade.errors import BadArguments
from colonnade.evaluation.attacks import gram
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import Gaussian
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics import attacks as cells
from colonnade.statistics.describe import Describe
from colonnade.statistics.moments import Moments
from colonnade.statistics.polynomial import Polynomial, PolynomialSum
from colonnade.statistics.secure_sum import PresenceTotal
from colonnade.statistics.tables import Tables

DELTA = 1e-5


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
        names = self.__dataclass_fields__
        return {**{name: getattr(self, name) for name in names}, "verdict": self.verdict}


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


# --- the attacks --------------------------------------------------------------------------------------------


def _describe(setting: Setting) -> AuditResult:
    with small_consortium() as federation:
        plan = federation.plan(Describe(epsilon=6.0, delta=DELTA))
        leaves = [leaf for cost in plan.costs() for leaf in cost.leaves()]
    claim = claimed_curve(plan.costs(), name="noisy counts")
    audit = cells.counts_audit(
        claim,
        level=leaves[0].number("noise_multiplier"),
        releases=sum(leaf.count for leaf in leaves),
        delta=DELTA,
        runs=setting.runs(60_000),
        planted=setting.planted,
    )
    return audit.run(setting.randomness)


def _hidden(setting: Setting) -> InferenceResult:
    level = 4.0
    claimed = guarantee([Gaussian(level, replace_factor=2**0.5)], delta=DELTA, relation="replace").epsilon
    return cells.hidden_attribute(
        level=level,
        epsilon=claimed,
        delta=DELTA,
        trials=setting.runs(20_000),
        randomness=setting.randomness,
        planted=setting.planted,
    )


def _one_run(setting: Setting) -> InferenceResult:
    return cells.described_once(
        epsilon=1.0, delta=1e-6, canaries=setting.runs(2000), seed=setting.seed, planted=setting.planted
    )


def _tables(setting: Setting) -> AuditResult:
    method = Tables(tables=(("sued", "rating"), ("sector",)), epsilon=2.0, delta=DELTA, view="server")
    with small_consortium() as federation:
        mus = method.layout(federation.facts, federation.roster).mus
        claim = claimed_curve(federation.plan(method).costs(), name="two contingency tables")
    audit = cells.tables_audit(claim, mus, delta=DELTA, runs=setting.runs(100_000), planted=setting.planted)
    return audit.run(setting.randomness)


def _presence(setting: Setting) -> AuditResult:
    method = PresenceTotal(epsilon=4.0, delta=DELTA, view="server")
    with small_consortium() as federation:
        mu, parties = method.mu(federation.facts, federation.roster), len(federation.facts.parties)
        claim = claimed_curve(federation.plan(method).costs(), name="records over all parties")
    audit = cells.total_audit(
        claim, mu, shift=parties, delta=DELTA, runs=setting.runs(100_000), planted=setting.planted
    )
    return audit.run(setting.randomness)


def _polynomial(setting: Setting) -> AuditResult:
    method = PolynomialSum(
        polynomial=Polynomial.of([(1.0, {"sued": 1, "rating": 1})]), epsilon=8.0, delta=DELTA, view="server", gamma=64
    )
    with small_consortium() as federation:
        layout = method.layout(federation.facts, federation.roster)
        claim = claimed_curve(federation.plan(method).costs(), name="a sum of products")
    (reach,) = layout.reach
    audit = cells.total_audit(
        claim, layout.mu, shift=reach, delta=DELTA, runs=setting.runs(1_500_000), planted=setting.planted
    )
    return audit.run(setting.randomness)


def _moments(setting: Setting) -> AuditResult:
    method = Moments(
        epsilon=8.0,
        delta=DELTA,
        columns=("sued", "rating"),
        presence="ignore",
        constant=False,
        view="server",
        gamma=64,
    )
    with small_consortium() as federation:
        layout = method.layout(federation.facts, federation.roster)
        claim = claimed_curve(federation.plan(method).costs(), name="a Gram matrix")
    audit = gram.moments_audit(layout, claim, delta=DELTA, runs=setting.runs(1_500_000), planted=setting.planted)
    return audit.run(setting.randomness)


def _own_moments(setting: Setting) -> AuditResult:
    level = 0.4
    claim = claimed_curve([Gaussian(level)], name="the response holder's own moments")
    audit = gram.own_moments_audit(claim, level=level, delta=DELTA, runs=setting.runs(60_000), planted=setting.planted)
    return audit.run(setting.randomness)


def _training(setting: Setting) -> AuditResult:
    """A GAN and the regression that conditions it: one epsilon for the weights of both, at all parties."""
    # Not above: jax is an extra, and the other attacks do without it.
    from colonnade.completion.attacks import training_audit
    from colonnade.completion.method import FedPSG
    from colonnade.completion.trainings import gan, regression

    small: dict[str, Any] = {"epochs": 2, "batch": 16, "hidden": 2, "cut": 2, "local": 2, "iterations": 40}
    method = FedPSG(imputer="gain", epsilon=4.0, delta=DELTA, complete=("bank",), **small)
    with small_consortium(allow=("presence", "split-training", "completion-quality")) as federation:
        facts = federation.facts
        leaves = [leaf for cost in federation.plan(method).costs() for leaf in cost.leaves() if not leaf.unbounded]
    claim = claimed_curve(leaves, name="all weights of all parties")
    trainings = [regression(method, facts, "bank"), gan(method, facts, {}, ("bank",))]
    audit = training_audit(trainings, facts, claim, delta=DELTA, runs=setting.runs(60_000), planted=setting.planted)
    return audit.run(setting.randomness)


NEIGHBOURS = "worst-case neighbours"
ATTACKS: dict[str, tuple[Attack, ...]] = {
    "describe": (
        Attack(NEIGHBOURS, "counts of every column, composed", _describe),
        Attack("a hidden attribute", "one histogram, under replace", _hidden),
        Attack("membership in one run", "a whole job through the border", _one_run, least=10.0),
    ),
    "contingency": (Attack(NEIGHBOURS, "two tables, composed", _tables, joint=True),),
    "moments": (Attack(NEIGHBOURS, "one Gram matrix", _moments, joint=True),),
    "polynomial": (Attack(NEIGHBOURS, "one sum of products", _polynomial, joint=True),),
    "presence-total": (Attack(NEIGHBOURS, "one total over all parties", _presence, joint=True),),
    "vfem": (Attack(NEIGHBOURS, "the private fit's own moments", _own_moments),),
    "fedpsg": (Attack(NEIGHBOURS, "all weights of all parties, composed", _training),),
}
"""Method -> its attacks."""

NEEDS = {"fedpsg": "jax"}
"""Methods of an extra that may not be installed, and the package that shows it."""

RESTS_ON: dict[str, tuple[str, ...]] = {
    "pca": ("moments",),
    "classify": ("moments",),
    "sparse-glm": ("moments", "describe"),
}
"""Methods whose private releases are those of others: what is attacked instead. The minibatch solver of `classify` is
audited in `tests/privacy/test_minibatch_audit.py`."""


def methods(planted: Planted = NOTHING) -> tuple[str, ...]:
    """All that can be attacked with what is installed, or those into which this bug can be planted."""
    return tuple(
        name
        for name, attacks in ATTACKS.items()
        if any(_plantable(one, planted) for one in attacks) and (name not in NEEDS or find_spec(NEEDS[name]))
    )


def _plantable(attack: Attack, planted: Planted) -> bool:
    if planted.nothing:
        return True
    return attack.plantable and planted.effective >= attack.least and (attack.joint or not planted.silent)


def audit_method(name: str, *, planted: Planted = NOTHING, effort: float = 1.0, seed: int = 1) -> Iterator[Finding]:
    """Run every attack on a method, one finding after the other. `effort` multiplies the runs: more runs, more power.

    [finding.verdict for finding in audit_method("contingency")]
    """
    if name in RESTS_ON:
        parts = [one for one in RESTS_ON[name] if one in methods(planted)]
        if not parts:
            raise BadArguments(f"this bug cannot be planted into {', '.join(RESTS_ON[name])}, on which {name} rests.")
        for part in parts:
            yield from audit_method(part, planted=planted, effort=effort, seed=seed)
        return
    if name not in ATTACKS:
        raise BadArguments(
            f"no attack on {name!r}; there are attacks on {', '.join(ATTACKS)}, and on what rests on them:"
            f" {', '.join(RESTS_ON)}."
        )
    if not 0.001 <= effort <= 1000:
        raise BadArguments(f"effort must lie between 0.001 and 1000, not {effort!r}.")
    if not planted.nothing and not any(one.plantable for one in ATTACKS[name]):
        raise BadArguments(f"no bug can be planted into {name}: its claim falls as it is.")
    if planted.silent and not any(one.joint for one in ATTACKS[name]):
        raise BadArguments(f"in {name} each party adds its own noise, so no member can fall silent; plant noise/1.4.")
    chosen = [one for one in ATTACKS[name] if _plantable(one, planted)]
    setting = Setting(planted=planted, effort=effort, seed=seed)
    for one in chosen:
        start = time.perf_counter()
        found = one.run(setting)
        stated = found.stated_power if isinstance(found, AuditResult) else None
        yield Finding(
            method=name,
            attack=one.attack,
            claim=one.claim,
            ours=one.ours,
            claimed_epsilon=found.claimed_epsilon,
            delta=found.delta,
            epsilon_lower_bound=found.epsilon_lower_bound,
            confidence=found.confidence,
            refuted=found.refuted,
            planted=str(planted),
            power=found.power if isinstance(found, InferenceResult) else stated.probability if stated else None,
            runs=found.runs if isinstance(found, AuditResult) else found.guesses,
            seconds=time.perf_counter() - start,
        )


def as_expected(findings: list[Finding]) -> bool:
    """Our claims stand and papers' claims that do not hold fall; or the planted bug was found by one attack."""
    if any(one.planted != str(NOTHING) for one in findings):
        return any(one.refuted for one in findings)
    return all(one.refuted != one.ours for one in findings)
