"""Sums over records of any polynomial of the parties' columns: SQM Algorithms 1 and 3, for a polynomial given as data.

Features lie in [-1, 1] by declared bounds. Each party multiplies its own by gamma, rounds at random and clips in
integers (Algorithm 2), then multiplies what a monomial needs of its own columns at home; only products between
parties run on shares. A monomial of degree l gets its coefficient times gamma^(lambda - l), so that all terms of a
polynomial of degree lambda have one scale; where a coefficient is then no integer, one more factor gamma is taken
before it is rounded, in public (Algorithm 3). Every member adds Skellam noise and the sums are opened once.
The proofs are in `polynomial.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from colonnade.codec import plain
from colonnade.data.column import EmptyRule
from colonnade.errors import BadArguments, BadPrivacyParameter, UnknownColumn
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, Result, method_class
from colonnade.federation.options import (
    Delta,
    Memory,
    Option,
    OptionalEpsilon,
    RelationOption,
    Verify,
    View,
    ViewOption,
)
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public
from colonnade.formatting import number
from colonnade.privacy.cost import Cost
from colonnade.privacy.skellam import LARGEST_MU
from colonnade.secure.bgw import Product, lift
from colonnade.secure.extension import Extension
from colonnade.secure.field import Field, Residues
from colonnade.statistics import forecast
from colonnade.statistics.circuit import (
    Circuit,
    CircuitStages,
    CircuitStatistic,
    Factor,
    PairedCircuit,
    within_memory,
)
from colonnade.statistics.features import (
    EMPTY_WORDS,
    PRESENT,
    Feature,
    by_rule,
    design,
    empty_notes,
    empty_rules,
    features,
    integer_bounds,
    presence_feature,
    stochastic_round,
)
from colonnade.statistics.joint import EXACT, account_notes, check_budget, colluders, field_for
from colonnade.statistics.pair import Words, bits_for
from colonnade.statistics.shares import noise_part
from colonnade.statistics.verified import NORMS_NOT_PROVEN
from colonnade.view.blocks import Block, Section, Table, Text
from colonnade.view.blocks import View as Shown

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

LARGEST_DEGREE = 16
MOST_ROWS = 500
"""A table in the report shows no more rows than this; result.json has all."""

Exponents = tuple[tuple[str, int], ...]
"""A monomial: each feature in it with its power, sorted by name."""


@dataclass(frozen=True)
class Polynomial:
    """One polynomial of the features for each output; build it with `Polynomial.of`.

    Parameters
    ----------
    outputs : for each output its monomials (coefficient, {feature: exponent}). Equal monomials are added up, those with
        coefficient 0 are left out, and all are sorted.

    Returns
    -------
    A value that `PolynomialSum` takes; `degree` is its degree.

    Example
    -------
    >>> co.Polynomial.of([(0.5, {"roa": 2}), (-1, {"roa": 1, "capital": 1})]).degree
    2
    """

    outputs: tuple[tuple[tuple[float, Mapping[str, int]], ...], ...]

    def __post_init__(self) -> None:
        outputs = []
        for output in self.outputs:
            merged: dict[Exponents, float] = {}
            for coefficient, exponents in output:
                if isinstance(coefficient, bool) or not isinstance(coefficient, (int, float)):
                    raise BadArguments(f"a coefficient must be a number, not {coefficient!r}.")
                if not math.isfinite(coefficient):
                    raise BadArguments(f"a coefficient must be finite, not {coefficient!r}.")
                if not isinstance(exponents, Mapping):
                    raise BadArguments(
                        f'a monomial is (coefficient, {{"age": 2}}), and its powers are no {exponents!r}.'
                    )
                if any(isinstance(e, bool) or not isinstance(e, int) or e < 0 for e in exponents.values()):
                    raise BadArguments(f"exponents must be integers of at least 0, not {dict(exponents)!r}.")
                key = tuple(sorted((str(name), e) for name, e in exponents.items() if e))
                merged[key] = merged.get(key, 0.0) + float(coefficient)
            outputs.append(tuple((merged[key], dict(key)) for key in sorted(merged) if merged[key]))
        object.__setattr__(self, "outputs", tuple(outputs))

    @classmethod
    def of(cls, *outputs: Sequence[tuple[float, Mapping[str, int]]]) -> Self:
        """`Polynomial.of([(0.5, {"age": 2}), (-1, {"age": 1, "sued": 1})], ...)`: one list for each output.

        Parameters
        ----------
        outputs : for each a list of (coefficient, {feature: exponent}).

        Returns
        -------
        The polynomial.
        """
        return cls(tuple(tuple(output) for output in outputs))

    @property
    def monomials(self) -> list[list[tuple[float, Exponents]]]:
        """Each output's coefficients and monomials, as values that can be compared."""
        return [
            [(coefficient, tuple(exponents.items())) for coefficient, exponents in output] for output in self.outputs
        ]

    @property
    def degree(self) -> int:
        """The largest sum of exponents in a monomial."""
        return max((sum(exponents.values()) for output in self.outputs for _, exponents in output), default=0)

    @property
    def features(self) -> set[str]:
        """The features that it names."""
        return {name for output in self.outputs for _, exponents in output for name in exponents}

    def formulas(self) -> list[str]:
        """Each output as people write it: 0.5 roa^2 - capital roa."""
        return [_formula(output) for output in self.outputs]


def _formula(output: Sequence[tuple[float, Mapping[str, int]]]) -> str:
    text = ""
    for coefficient, exponents in output:
        size = abs(coefficient)
        powers = [name if power == 1 else f"{name}^{power}" for name, power in exponents.items()]
        factors = " ".join([*([f"{size:g}"] if size != 1 or not powers else []), *powers])
        sign = "-" if coefficient < 0 else "+"
        text += f" {sign} {factors}" if text else f"-{factors}" if coefficient < 0 else factors
    return text or "0"


@method_class
class PolynomialSum(Method["PolynomialResult"]):
    """Sum a polynomial of columns over the records, across parties, with noise unless epsilon is none.

    Returns
    -------
    `fit(federation)` gives `PolynomialResult`: the noisy sums.

    Example
    -------
    >>> square = co.Polynomial.of([(1.0, {"roa": 2})])
    >>> co.PolynomialSum(polynomial=square, epsilon=8.0).fit(federation).values.shape
    (1,)
    """

    name: ClassVar[str] = "polynomial-sum"

    polynomial: Annotated[
        Polynomial,
        Option(
            "Of features in [-1, 1]: numeric, ordinal and binary columns by their names, categorical ones as"
            ' column[category]. As data: {"outputs": [[[0.5, {"age": 2}], [-1, {"age": 1, "sued": 1}]]]}.'
        ),
    ]
    epsilon: OptionalEpsilon = 1.0
    delta: Delta = 1e-6
    gamma: Annotated[
        int | None,
        Option(
            "The scale of quantisation. By default the power of two up to 2^12 with gamma^(degree + 1) <= 2^40, because"
            " noise ends at 2^90."
        ),
    ] = None
    bounds: Annotated[
        Mapping[str, float],
        Option("Sizes of features below 1; larger values are clipped: less noise, some bias.", form="FEATURE=SIZE"),
    ] = field(default_factory=dict)
    view: ViewOption = "client"
    relation: RelationOption = "zero-out"
    memory: Memory = None
    verify: Verify = True

    def check(self) -> None:
        check_budget(self.epsilon, self.delta)

    def reads(self) -> tuple[str, ...]:
        """A feature column[category] reads its column; a name may also be that of a column with brackets in it."""
        named = sorted(self.polynomial.features)
        return tuple(dict.fromkeys(part for name in named for part in (name, name.partition("[")[0])))

    def missing_data(self) -> str:
        return "A block that a record lacks counts as zeros."

    def procedure(self, facts: PublicFacts, roster: Roster) -> PolynomialComputation:
        computation = PolynomialComputation(self.layout(facts, roster), self.view, delta=self.delta)
        layout = computation.layout
        if layout.mu:
            largest = max(sum(abs(c) for c, _ in terms) for terms in self.polynomial.outputs)
            noise = math.sqrt(2 * layout.mu) / layout.scale
            expected = forecast.sums(noise_sd=noise, n=facts.n, largest=largest, epsilon=self.epsilon)
            computation.notes = (*expected, *computation.notes)
        return computation

    def layout(self, facts: PublicFacts, roster: Roster) -> PolynomialLayout:
        """The public shape, with the noise that (epsilon, delta) needs."""
        roster.require_committee()
        gamma = self.gamma if self.gamma is not None else 2 ** min(12, 40 // (self.polynomial.degree + 1))
        layout = PolynomialLayout(
            facts=facts, roster=roster, polynomial=self.polynomial, gamma=gamma, bounds=self.bounds
        )
        layout.check()
        layout = replace(layout, verify=self.verify)
        if self.epsilon is not None:
            try:
                mu = layout.calibrated(epsilon=self.epsilon, delta=self.delta, view=self.view, relation=self.relation)
            except BadPrivacyParameter as error:
                raise BadPrivacyParameter(
                    f"one record moves the sums by up to {layout.delta_2:.3g} in integers, and no noise up to 2^90"
                    f" covers that at epsilon {self.epsilon:g}; choose a smaller gamma, smaller coefficients or a"
                    " larger epsilon."
                ) from error
            layout = replace(layout, mu=mu)
            layout.check()
        return layout if self.memory is None else within_memory(layout, self.memory)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.statistics.attacks import polynomial_attacks

        return polynomial_attacks()


# --- the public shape -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PolynomialLayout(CircuitStatistic):
    """The public shape of a polynomial's sums: integer coefficients, bounds, products, noise.

    `bounds` are declared sizes of features below 1, `mu` is the noise of each output; 0 is exact.
    """

    kind: ClassVar[str] = "polynomial"
    exact: ClassVar[tuple[str, str]] = ("exact-polynomial", "exact sums of a polynomial of the columns")
    rows: ClassVar[str] = "quantised rows"

    polynomial: Polynomial
    gamma: int
    bounds: Mapping[str, float] = field(default_factory=dict)
    mu: int = 0
    label: str = "polynomial"

    @property
    def results(self) -> str:
        return f"{'noisy' if self.mu else 'exact'} sums"

    def check(self) -> None:
        if not 1 <= self.gamma <= 2**26 or not 0 <= self.mu <= LARGEST_MU or self.records < 0:
            raise BadArguments("gamma must be an integer from 1 to 2^26, mu from 0 to 2^90, records at least 0.")
        if not 1 <= self.polynomial.degree <= LARGEST_DEGREE:
            raise BadArguments(f"the polynomial must have a degree from 1 to {LARGEST_DEGREE}.")
        for name, bound in self.bounds.items():
            if name not in self.features or not 0 < bound <= 1 or self.gamma * bound < 1:
                raise BadPrivacyParameter(
                    f"the bound of a feature must be a number from 1 / gamma to 1, not {bound!r} for {name!r}."
                )
        if not any(self.reach):
            raise BadArguments(
                f"every coefficient is rounded to 0 at gamma = {self.gamma}; scale the polynomial up, or gamma."
            )
        assert self.field.bound >= self.facts.n * max(self.reach), "a job that could wrap has no field"

    @cached_property
    def features(self) -> dict[str, Feature]:
        """The features that the polynomial names."""
        named = self.polynomial.features
        columns = [column for owned in self.facts.columns.values() for column in owned if _concerns(column, named)]
        declared = {feature.name: feature for feature in features(self.facts, columns)}
        for column in columns:
            present = presence_feature(self.facts.owner(column), column)
            declared.setdefault(present.name, present)
        if unknown := sorted(named - set(declared)):
            raise UnknownColumn(
                f"the polynomial names {', '.join(unknown)}, which no party has; a categorical column has the features"
                " column[category], for each category but the first."
            )
        return {name: feature for name, feature in declared.items() if name in named}

    @cached_property
    def rules(self) -> dict[str, EmptyRule]:
        """What becomes of empty cells. Presence is that of records without them."""
        if any(feature.category == PRESENT for feature in self.features.values()):
            used = dict.fromkeys(feature.column for feature in self.features.values())
            return {name: "drop" for name in used if self.facts.column(name).missing}
        return empty_rules(self.features.values(), self.facts, "mask", "drop")

    def own_features(self, party: str) -> list[Feature]:
        return [feature for feature in self.features.values() if feature.party == party]

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature.party for feature in self.features.values()))

    def largest(self, name: str) -> int:
        """The largest size of a feature in integers."""
        return integer_bounds(self.gamma, 1.0, self.bounds.get(name, 1.0))[1]

    @cached_property
    def scale_degree(self) -> int:
        """All terms have the scale gamma to this power: lambda where no coefficient needs rounding, else lambda + 1."""
        degree = self.polynomial.degree
        scaled = [
            Fraction(coefficient) * self.gamma ** (degree - sum(exponents.values()))
            for output in self.polynomial.outputs
            for coefficient, exponents in output
        ]
        return degree + (1 if any(coefficient.denominator > 1 for coefficient in scaled) else 0)

    @property
    def scale(self) -> int:
        """What a sum is divided by in the end."""
        return int(self.gamma**self.scale_degree)

    @cached_property
    def coefficients(self) -> list[dict[Exponents, int]]:
        """Each output in integers: a monomial of degree l has its coefficient times gamma^(scale - l), rounded."""
        outputs = []
        for output in self.polynomial.monomials:
            rounded = {
                exponents: round(Fraction(a) * self.gamma ** (self.scale_degree - sum(e for _, e in exponents)))
                for a, exponents in output
            }
            outputs.append({exponents: a for exponents, a in rounded.items() if a})
        return outputs

    @cached_property
    def reach(self) -> list[int]:
        """How far one record can move each output: sum of |coefficient| times the largest product. n is public, and so
        is the constant of a polynomial times n: it does not move."""
        return [
            sum(abs(a) * self._largest_product(exponents) for exponents, a in output.items() if exponents)
            for output in self.coefficients
        ]

    def _largest_product(self, exponents: Exponents) -> int:
        return math.prod(self.largest(name) ** e for name, e in exponents)

    @property
    def size(self) -> int:
        """Outputs that are opened."""
        return len(self.coefficients)

    @property
    def cohort_bytes(self) -> int:
        """A party quantises all of its rows with the first chunk, and keeps them."""
        widest = max(len(self.own_features(party)) for party in self.parties)
        return super().cohort_bytes + 32 * self.facts.n * widest

    @cached_property
    def field(self) -> Field:
        """Holds every output with all noise."""
        return field_for(self.facts.n * max(self.reach), self.mu, self.roster)

    # --- noise and cost -----------------------------------------------------------------------------------

    @property
    def delta_1(self) -> float:
        return float(max(sum(self.reach), self.delta_2))

    @property
    def delta_2(self) -> float:
        square = sum(moved * moved for moved in self.reach)
        root = math.isqrt(square)
        # Where the root is no integer: a few units of the last place above the double, so never below the root.
        return float(root) if root * root == square else math.sqrt(square) * (1 + 2**-50)

    @property
    def dimension(self) -> int:
        """Outputs that a record can move."""
        return sum(1 for moved in self.reach if moved)

    @property
    def sensitivity(self) -> dict[str, Any]:
        return {"delta_1": self.delta_1, "delta_2": self.delta_2, "dimension": self.dimension}

    def cost(self, public: Public, view: View) -> Cost:
        """The one joint release of this job, at a data party."""
        return self.release(self.mu, colluders=colluders(self.roster, view), joint=f"{public.job} {self.label}")

    def releases(self, colluders: int) -> list[Cost]:
        return [self.release(self.mu, colluders=colluders)]

    # --- products -----------------------------------------------------------------------------------------

    @cached_property
    def shared(self) -> dict[tuple[str, Exponents], Factor]:
        """One column for each product of one party's own features that a monomial of several parties needs."""
        placed: dict[tuple[str, Exponents], Factor] = {}
        ends: dict[str, int] = {}
        for split in (self._split(exponents) for output in self.coefficients for exponents in output):
            for factor in split if len(split) > 1 else ():
                if factor not in placed:
                    start = ends.get(factor[0], 0)
                    placed[factor] = Factor(factor[0], start, start + 1)
                    ends[factor[0]] = start + 1
        return placed

    @cached_property
    def local(self) -> dict[str, list[Exponents]]:
        """The monomials that lie within one party: it shares their sums, not its rows."""
        within: dict[str, dict[Exponents, None]] = {}
        for split in (self._split(exponents) for output in self.coefficients for exponents in output):
            if len(split) == 1:
                within.setdefault(split[0][0], {})[split[0][1]] = None
        return {party: list(monomials) for party, monomials in within.items()}

    @cached_property
    def terms(self) -> dict[Exponents, tuple[Factor, ...]]:
        """The monomials of several parties, each once."""
        monomials = dict.fromkeys(exponents for output in self.coefficients for exponents in output)
        split = {exponents: self._split(exponents) for exponents in monomials}
        return {
            exponents: tuple(self.shared[factor] for factor in parts)
            for exponents, parts in split.items()
            if len(parts) > 1
        }

    def _split(self, exponents: Exponents) -> list[tuple[str, Exponents]]:
        """A monomial as one factor a party."""
        parts: dict[str, list[tuple[str, int]]] = {}
        for name, e in exponents:
            parts.setdefault(self.features[name].party, []).append((name, e))
        return [(party, tuple(parts[party])) for party in self.parties if party in parts]

    @cached_property
    def circuit(self) -> Circuit:
        terms = tuple(self.terms.values())
        return Circuit(terms=terms, n=self.facts.n, field=self.field, records=self.records)

    # --- what members do ----------------------------------------------------------------------------------

    def noise(self, me: Party) -> NDArray[np.int64]:
        return noise_part(me, mu=self.mu, size=self.size)

    def begin(self, me: Party) -> None:
        """A party rounds its values once, before the first chunk: sums and products are of the same integers."""
        rows = self._quantised(me)
        for chunk, (start, stop) in enumerate(self.chunks) if me.name in self.circuit.widths else ():
            me.keep(f"{self.tag}: quantised {chunk}", rows[start:stop])
        if me.name in self.local:
            sums = [sum(self._product(me, rows, exponents).tolist()) for exponents in self.local[me.name]]
            me.keep(f"{self.tag}: own sums", [str(total) for total in sums])

    def local_sums(self, me: Party) -> NDArray[Any]:
        return np.array([int(total) for total in me.recall(f"{self.tag}: own sums")], dtype=object)

    def shared_rows(self, me: Party, number: int) -> NDArray[Any]:
        rows = me.recall(f"{self.tag}: quantised {number}")
        products = (exponents for party, exponents in self.shared if party == me.name)
        return np.stack([self._product(me, rows, exponents) for exponents in products], axis=1)

    def _quantised(self, me: Party) -> NDArray[np.int64]:
        """Algorithm 2, and then the declared bounds in integers: rounding up must not lead beyond them."""
        features = self.own_features(me.name)
        largest = np.array([self.largest(feature.name) for feature in features])
        rows = design(me, features, filled=by_rule(self.rules, "drop"))
        return np.clip(stochastic_round(rows * self.gamma, me.randomness), -largest, largest)

    def _product(self, me: Party, rows: NDArray[np.int64], exponents: Exponents) -> NDArray[Any]:
        """The product of one's own features, exactly: Python integers where 63 bits are not enough."""
        mine = [feature.name for feature in self.own_features(me.name)]
        product = np.ones(len(rows), dtype=np.int64 if self._largest_product(exponents) < 2**62 else object)
        for name, e in exponents:
            column = rows[:, mine.index(name)].astype(product.dtype)
            for _ in range(e):
                product = product * column
        return product

    def combine(self, me: Party, number: int) -> Residues:
        """Monomials times their public coefficients, plus every member's noise."""
        sums, nothing = self.held(me, "sums"), lift(self.field, self.field.zeros(()))
        monomials: dict[Exponents, Product] = {
            monomial: lift(self.field, sums[party][:, position])
            for party, exponents in self.local.items()
            for position, monomial in enumerate(exponents)
        }
        for monomial, product in zip(self.terms, self.term_sums(me), strict=True):
            monomials[monomial] = product.sum().sum()
        outputs = (
            sum((monomials[monomial].scale(a) for monomial, a in output.items() if monomial), start=nothing)
            for output in self.coefficients
        )
        return self.with_noise(me, number, outputs, self.held_noise(me))

    @cached_property
    def paired(self) -> PairedPolynomial:
        return PairedPolynomial(self)

    # --- what is verified ---------------------------------------------------------------------------------

    def opening_weights(self, extension: Extension, seed: bytes, number: int) -> Residues:
        return extension.uniform((self.size,), seed=seed, label="outputs")

    def _monomial_weights(self, extension: Extension, seed: bytes) -> dict[Exponents, Residues]:
        """The weight of each monomial in the combination of all outputs: sum_o W_o coefficient_o."""
        outputs = self.opening_weights(extension, seed, 0)
        weights: dict[Exponents, Residues] = {}
        for position, output in enumerate(self.coefficients):
            for monomial, coefficient in output.items():
                scaled = self.field.scale(outputs[:, position], coefficient)
                weights[monomial] = extension.add(weights[monomial], scaled) if monomial in weights else scaled
        return weights

    @property
    def proof_notes(self) -> tuple[str, ...]:
        return (NORMS_NOT_PROVEN,) if self.circuit.terms else ()

    def term_vectors(self, extension: Extension, seed: bytes, side: int) -> list[Residues]:
        """The weight of the monomial on the left, 1 on the right."""
        ones = extension.embed(np.ones((len(self.field.primes), 1), dtype=np.int32))
        if side == 1:
            return [ones] * len(self.terms)
        weights = self._monomial_weights(extension, seed)
        return [weights[monomial][:, None] for monomial in self.terms]

    def sum_weights(self, extension: Extension, seed: bytes) -> dict[str, Residues]:
        weights = self._monomial_weights(extension, seed)
        return {
            party: np.stack([weights[monomial] for monomial in exponents], axis=1)
            for party, exponents in self.local.items()
        }


class PairedPolynomial(PairedCircuit):
    """Coefficients are public, so each party takes them times its own sums and its shares of products."""

    layout: PolynomialLayout

    def bound(self, party: str) -> int:
        return max(
            self.layout._largest_product(exponents) for holder, exponents in self.layout.shared if holder == party
        )

    @cached_property
    def bits(self) -> int:
        return bits_for(self.layout.facts.n * max(self.layout.reach), self.layout.mu, self.layout.roster)

    def addends(self, me: Party, number: int, cross: Mapping[str, Words]) -> Words:
        layout, monomials = self.layout, dict[Exponents, int]()
        for monomial, total in zip(layout.local.get(me.name, ()), self.own_sums(me), strict=True):
            monomials[monomial] = int(total)
        for monomial, term in layout.terms.items():
            share = self.share_of(me, cross, term)
            if share is not None:
                monomials[monomial] = int(share[0, 0])
        totals = [
            sum(a * monomials.get(monomial, 0) for monomial, a in output.items() if monomial)
            for output in layout.coefficients
        ]
        return np.array([total % 2**64 for total in totals], dtype=np.uint64)

    def noise(self, me: Party, number: int) -> Words:
        return self.layout.noise(me).view(np.uint64)


def _concerns(column: str, named: set[str]) -> bool:
    return column in named or any(name.startswith(f"{column}[") for name in named)


# --- the coordinator's procedure --------------------------------------------------------------------------


class PolynomialComputation(CircuitStages, Procedure["PolynomialResult"]):
    """One computation of sums. Other methods put its stages into their own plans."""

    layout: PolynomialLayout

    def __init__(self, layout: PolynomialLayout, view: View, *, delta: float) -> None:
        super().__init__(layout, view)
        zero = {**EMPTY_WORDS, "mask": "such a cell counts as 0, the middle of its declared range"}
        self.notes = (*_notes(layout, view, delta), *empty_notes(layout.rules, zero), *self.verification_notes)

    def run(self, job: Job) -> PolynomialResult:
        """What is opened, and the public constants."""
        layout = self.layout
        opened, n = self.compute(job), layout.facts.n
        return PolynomialResult(
            n=n,
            polynomial=layout.polynomial,
            integers=tuple(
                int(total) + n * output.get((), 0) for total, output in zip(opened, layout.coefficients, strict=True)
            ),
            scale=layout.scale,
            noise_sd=math.sqrt(2 * layout.mu) / layout.scale,
            simulated=job.simulated,
        )


def _notes(layout: PolynomialLayout, view: View, delta: float) -> tuple[str, ...]:
    """The forecast of a plan: scale, noise, account."""
    size = f"Degree {layout.polynomial.degree}, scale gamma^{layout.scale_degree} with gamma = {layout.gamma};" + (
        f" modulus 2^{layout.paired.bits}."
        if layout.roster.pair
        else f" {len(layout.field.primes)} primes of 21 bits, {len(layout.circuit.levels)} rounds of degree reduction."
    )
    if not layout.mu:
        return (EXACT, size)
    sd = math.sqrt(2 * layout.mu) / layout.scale
    return (
        f"Each sum carries noise with standard deviation {sd:.4g} ({sd / layout.facts.n:.2g} of n = {layout.facts.n}).",
        *account_notes(layout.roster, view=view, delta=delta, releases=layout.releases),
        size,
    )


# --- the result -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PolynomialResult(Result):
    """`values` are the sums over records, one for each output; `integers` are the same times `scale`, exactly.

    `noise_sd` is the standard deviation of the noise on one value (0 if exact), independent between outputs.
    """

    kind: ClassVar[str] = "polynomial"

    n: int
    polynomial: Polynomial
    integers: tuple[int, ...]
    scale: int
    noise_sd: float
    simulated: bool

    @property
    def values(self) -> NDArray[np.float64]:
        """The sums, one for each output."""
        return np.array([float(Fraction(total, self.scale)) for total in self.integers])

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "polynomial": plain(self.polynomial.outputs),
            "values": self.values.tolist(),
            "noise_sd": self.noise_sd,
            "simulated": self.simulated,
        }

    def view(self) -> Shown:
        many = len(self.integers)
        title = f"{many} sum{'' if many == 1 else 's'} over {number(self.n)} records"
        noise = f"± {2 * self.noise_sd:.4g}" if self.noise_sd else "none"
        sums = Table(
            title="Sums over records",
            head=("sum over records of", "value", "noise"),
            rows=tuple(
                (formula, f"{value:,.4f}", noise)
                for formula, value in zip(self.polynomial.formulas(), self.values.tolist(), strict=True)
            ),
            numeric=(1, 2),
        )
        answer: list[Block] = [replace(sums, rows=sums.rows[:MOST_ROWS])]
        if many > MOST_ROWS:
            answer.append(Text(text=f"The other {many - MOST_ROWS:,} are in result.json."))
        return Shown(
            title=title,
            quality=self._quality(),
            answer=tuple(answer),
            sections=(
                Section(
                    title="How to read the sums",
                    blocks=(
                        Text(
                            text="Features lie between -1 and 1: a column's declared range is mapped to that, a"
                            " category is 0 or 1, and a block that a record lacks is zeros. Values were"
                            " rounded at random to a fine grid, which has no bias."
                        ),
                    ),
                ),
            ),
            terminal=(replace(sums, title=title, shown=50),),
        )

    def _quality(self) -> str:
        if not self.noise_sd:
            return "Exact sums: no noise was added."
        clear = int((np.abs(self.values) > 2 * self.noise_sd).sum())
        return (
            f"A sum is ± {2 * self.noise_sd:.3g} in 95 of 100 cases. {clear:,} of {len(self.integers):,} are larger"
            " than that; the others may be noise alone."
        )
