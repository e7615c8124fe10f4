"""Sums over records of any polynomial of the parties' columns: SQM Algorithms 1 and 3, for a polynomial given as data.

Features lie in [-1, 1] by declared bounds. Each party multiplies its own by gamma, rounds at random and clips in
integers (Algorithm 2), then multiplies what a monomial needs of its own columns at home; only products between
parties run on shares. A monomial of degree l gets its coefficient times gamma^(lambda - l), so that all terms of a
polynomial of degree lambda have one scale; where a coefficient is then no whole number, one more factor gamma is
taken before it is rounded, in public (Algorithm 3). Every member adds Skellam noise and the sums are opened once.
The proofs are in `polynomial.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Relation
from colonnade.secure.bgw import Product, lift, open_product
from colonnade.statistics.circuit import held, multiply_level, put_away, term_sums
from colonnade.statistics.circuit_job import CircuitJob, multiply_cost, open_cost, share_cost
from colonnade.statistics.features import design
from colonnade.statistics.joint import (
    View,
    account_notes,
    check_budget,
    check_view,
    colluders,
    deal,
    deal_noise,
    once,
)
from colonnade.statistics.polynomial_layout import Exponents, Layout, Polynomial, polynomial_noise
from colonnade.statistics.quantize import stochastic_round

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

__all__ = ["Polynomial", "PolynomialSum", "PolynomialTotals"]

# --- the coordinator's procedure --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PolynomialSum:
    """Noisy sums over records of a polynomial of the features.

    Parameters
    ----------
    polynomial : a `Polynomial` of features (see `statistics.features`): numeric, ordinal and binary columns by their
        names, categorical ones as column[category]. An absent block is zeros.
    epsilon, delta : a person's total. `epsilon=None` computes exactly, which is an unbounded release that every party
        must allow by name ("exact-polynomial").
    gamma : the scale of quantisation. By default the power of two up to 2^12 with gamma^(lambda + 1) <= 2^40, because
        noise ends at 2^90.
    bounds : {feature: size} below 1; larger values are clipped: less noise, some bias.
    view, relation : what the noise is calibrated for; see `docs/threat-model.md`.
    memory : bytes of one share in one round; less memory, more rounds.

    Returns
    -------
    `fit(federation)` gives the noisy sums.

    Example
    -------
    >>> square = co.Polynomial.of([(1.0, {"roa": 2})])
    >>> co.PolynomialSum(polynomial=square, epsilon=8.0).fit(federation).values.shape
    (1,)
    """

    name: ClassVar[str] = "polynomial"

    polynomial: Polynomial
    epsilon: float | None = 1.0
    delta: float = 1e-6
    gamma: int | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    view: View = "client"
    relation: Relation = "zero-out"
    memory: int = 1 << 23

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        check_view(self.view)

    def options(self) -> dict[str, Any]:
        return {
            "polynomial": self.polynomial.to_list(),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "gamma": self.gamma,
            "bounds": dict(self.bounds),
            "view": self.view,
            "relation": self.relation,
            "memory": self.memory,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(**{**options, "polynomial": Polynomial.from_list(options["polynomial"])})

    def fit(self, federation: Federation) -> PolynomialTotals:
        """Run it; the run folder is in `federation.runs`."""
        return federation.run(self)[0]  # type: ignore[no-any-return]

    def layout(self, facts: PublicFacts, roster: Roster) -> Layout:
        """The public shape, with the noise that (epsilon, delta) needs."""
        roster.require_committee()
        gamma = self.gamma if self.gamma is not None else 2 ** min(12, 40 // (self.polynomial.degree + 1))
        silent = Layout(facts, roster, self.polynomial, gamma, self.bounds, memory=self.memory)
        silent.check()
        if self.epsilon is None:
            return silent
        many = colluders(roster, self.view)
        sizes = (silent.delta_1, silent.delta_2, silent.dimension, len(roster.names), many)
        noisy = replace(silent, mu=polynomial_noise(self.epsilon, self.delta, *sizes, self.relation))
        noisy.check()
        return noisy

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        layout = self.layout(facts, roster)
        return Plan(
            method=self.name,
            options=self.options(),
            stages=tuple(polynomial_job(layout, self.view).phases()),
            notes=polynomial_notes(layout, self.view, self.delta),
            delta=self.delta,
        )

    def execute(self, job: Job) -> PolynomialTotals:
        return compute_polynomial(job, self.layout(job.facts, job.roster), self.view)


def polynomial_job(layout: Layout, view: View) -> CircuitJob:
    return CircuitJob(
        layout,
        view,
        share=share_products,
        multiply=multiply_products,
        open_step=open_polynomial,
        rows="quantised rows",
        results="sums",
    )


def polynomial_notes(layout: Layout, view: View, delta: float) -> tuple[str, ...]:
    """The forecast of a plan: scale, noise, account."""
    size = (
        f"Degree {layout.polynomial.degree}, scale gamma^{layout.scale_degree} with gamma = {layout.gamma};"
        f" {len(layout.field.primes)} primes of 21 bits, {len(layout.circuit.levels)} rounds of degree reduction.",
    )
    if not layout.mu:
        return ("Exact: no noise is added, and no privacy is claimed for the result.", *size)
    sd = math.sqrt(2 * layout.mu) / layout.gamma**layout.scale_degree
    return (
        f"Each sum carries noise with standard deviation {sd:.4g} ({sd / layout.facts.n:.2g} of n = {layout.facts.n}).",
        *account_notes(layout.roster, view=view, delta=delta, releases=lambda many: [layout.release(many)]),
        *size,
    )


def compute_polynomial(job: Job, layout: Layout, view: View) -> PolynomialTotals:
    """What is opened, and the public constants."""
    joined = polynomial_job(layout, view).opened(job)
    return PolynomialTotals(
        n=layout.facts.n,
        polynomial=layout.polynomial,
        integers=tuple(int(one) + layout.facts.n * a.get((), 0) for one, a in zip(joined, layout.whole, strict=True)),
        scale=layout.gamma**layout.scale_degree,
        noise_sd=math.sqrt(2 * layout.mu) / layout.gamma**layout.scale_degree,
        simulated=job.simulated,
    )


@dataclass(frozen=True, kw_only=True)
class PolynomialTotals:
    """`values` are the sums over records, one for each output; `integers` are the same times `scale`, exactly.

    `noise_sd` is the standard deviation of the noise on one value (0 if exact), independent between outputs.
    """

    n: int
    polynomial: Polynomial
    integers: tuple[int, ...]
    scale: int
    noise_sd: float
    simulated: bool

    @property
    def values(self) -> NDArray[np.float64]:
        return np.array([float(Fraction(one, self.scale)) for one in self.integers])

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "polynomial",
                "n": self.n,
                "polynomial": self.polynomial.to_list(),
                "values": self.values.tolist(),
                "noise_sd": self.noise_sd,
                "simulated": self.simulated,
            },
        )


# --- the members' steps -----------------------------------------------------------------------------------


def _layout(public: Public | Party, plain: Mapping[str, Any]) -> Layout:
    return Layout.from_dict(public.facts, public.roster, plain)


def _share_cost(public: Public, *, layout: dict[str, Any], view: View, number: int) -> Cost:
    return share_cost(public, _layout(public, layout), view, number)


@step(cost=_share_cost)
def share_products(me: Party, *, layout: dict[str, Any], view: View, number: int) -> Release:
    """Share one chunk of one's own factors; with the first also the sums of one's own monomials, and the noise."""
    known = _layout(me, layout)
    known.circuit.chunk(number)
    tag = known.circuit.tag
    if number == 0:
        deal_noise(me, f"{tag}: noise", known.field, mu=known.mu, size=known.size)
        if me.name in known.parties:
            _sum_and_keep(me, known)
    elif me.name in me.roster.committee:
        put_away(me, known.circuit, number - 1, len(known.circuit.levels))
    if me.name in known.circuit.widths:
        rows = me.recall(f"{tag}: quantised {number}")
        factors = [_product(me, known, rows, own) for party, own in known.shared if party == me.name]
        deal(me, f"{tag}: rows {number}", known.field, np.stack(factors, axis=1))
    return Release(None, "nothing: the shares travel sealed")


def _sum_and_keep(me: Party, known: Layout) -> None:
    """Share the sums of the monomials within this party, and keep its whole numbers for the chunks of rows."""
    rows, tag = _quantised(me, known), known.circuit.tag
    if me.name in known.local:
        sums = [sum(_product(me, known, rows, own).tolist()) for own in known.local[me.name]]
        deal(me, f"{tag}: sums", known.field, np.array(sums, dtype=object))
    for number, (start, stop) in enumerate(known.circuit.chunks) if me.name in known.circuit.widths else ():
        me.keep(f"{tag}: quantised {number}", rows[start:stop])


def _quantised(me: Party, known: Layout) -> NDArray[np.int64]:
    """Algorithm 2, and then the declared bounds in integers: rounding up must not lead beyond them."""
    mine = [feature for feature in known.features.values() if feature.party == me.name]
    largest = np.array([known.largest(feature.name) for feature in mine])
    return np.clip(stochastic_round(design(me, mine) * known.gamma, me.randomness), -largest, largest)


def _product(me: Party, known: Layout, rows: NDArray[np.int64], own: Exponents) -> NDArray[Any]:
    """The product of one's own features, exactly: Python integers where 63 bits are not enough."""
    mine = [feature.name for feature in known.features.values() if feature.party == me.name]
    small = math.prod(known.largest(name) ** e for name, e in own) < 2**62
    out = np.ones(len(rows), dtype=np.int64 if small else object)
    for name, e in own:
        column = rows[:, mine.index(name)].astype(out.dtype)
        for _ in range(e):
            out = out * column
    return out


@step(cost=multiply_cost)
def multiply_products(me: Party, *, layout: dict[str, Any], view: View, number: int, level: int) -> Release:
    """Products of shared columns, dealt again to return to degree t."""
    multiply_level(me, _layout(me, layout).circuit, number, level)
    return Release(None, "nothing: the shares travel sealed")


@step(cost=open_cost)
def open_polynomial(me: Party, *, layout: dict[str, Any], view: View) -> Release:
    """This holder's share of all outputs: monomials times their public coefficients, plus every member's noise."""
    known = _layout(me, layout)
    once(me, known.label)
    noise, sums = held(me, known.circuit, "noise"), held(me, known.circuit, "sums")
    monomials: dict[Exponents, Product] = {
        own: lift(known.field, sums[party][:, position])
        for party, each in known.local.items()
        for position, own in enumerate(each)
    }
    for own, product in zip(known.terms, term_sums(me, known.circuit), strict=True):
        monomials[own] = product.sum().sum()
    out = np.empty((len(known.field.primes), known.size), dtype=np.int32)
    for position, output in enumerate(known.whole):
        total = lift(known.field, known.field.zeros(()))
        for own, coefficient in output.items():
            if own:
                total = total + monomials[own].scale(coefficient)
        here = {member: one[:, position] for member, one in noise.items()}
        out[:, position] = open_product(total, noise=here, parties=me.roster.names)
    return Release(out, "a share of noisy sums")
