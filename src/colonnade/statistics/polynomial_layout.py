"""A polynomial as data, and the public shape of its evaluation: whole coefficients, bounds, products, noise.

Everybody computes it alike from public facts, the pinned roster and the options; a party checks its data and its
mail against nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Self

from colonnade.errors import BadArguments, BadPrivacyParameter, UnknownColumn
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public
from colonnade.privacy.cost import Cost, Relation, Unbounded
from colonnade.privacy.skellam import LARGEST_MU, Skellam, calibrate_mu
from colonnade.secure.field import Field
from colonnade.statistics.circuit import Circuit, Factor
from colonnade.statistics.features import Feature, features
from colonnade.statistics.joint import View, binding, colluders, field_for, reading, whole_numbers
from colonnade.statistics.quantize import integer_bounds

Exponents = tuple[tuple[str, int], ...]
LARGEST_DEGREE = 16


@dataclass(frozen=True)
class Polynomial:
    """One polynomial of the features for each output; build it with `Polynomial.of`.

    Parameters
    ----------
    outputs : for each output its monomials (coefficient, ((feature, exponent), ...)), as sorted tuples. `Polynomial.of`
        makes them from lists: equal monomials are added up, and those with coefficient 0 left out.

    Returns
    -------
    A value that `PolynomialSum` takes; `degree` is its degree.

    Example
    -------
    >>> co.Polynomial.of([(0.5, {"roa": 2}), (-1, {"roa": 1, "capital": 1})]).degree
    2
    """

    outputs: tuple[tuple[tuple[float, Exponents], ...], ...]

    @classmethod
    def of(cls, *outputs: Sequence[tuple[float, Mapping[str, int]]]) -> Self:
        """`Polynomial.of([(0.5, {"age": 2}), (-1, {"age": 1, "sued": 1})], ...)`: one list for each output."""
        made = []
        for output in outputs:
            merged: dict[Exponents, float] = {}
            for coefficient, exponents in output:
                if isinstance(coefficient, bool) or not isinstance(coefficient, (int, float)):
                    raise BadArguments(f"a coefficient must be a number, not {coefficient!r}.")
                if not math.isfinite(coefficient):
                    raise BadArguments(f"a coefficient must be finite, not {coefficient!r}.")
                if any(isinstance(e, bool) or not isinstance(e, int) or e < 0 for e in exponents.values()):
                    raise BadArguments(f"exponents must be whole numbers of at least 0, not {dict(exponents)!r}.")
                key = tuple(sorted((str(name), e) for name, e in exponents.items() if e))
                merged[key] = merged.get(key, 0) + coefficient
            made.append(tuple((merged[key], key) for key in sorted(merged) if merged[key]))
        return cls(tuple(made))

    @property
    def degree(self) -> int:
        """The largest sum of exponents in a monomial."""
        return max((sum(e for _, e in exponents) for output in self.outputs for _, exponents in output), default=0)

    def to_list(self) -> list[Any]:
        """Plain values, as `of` takes them; `from_list` is its inverse."""
        return [[[coefficient, dict(exponents)] for coefficient, exponents in output] for output in self.outputs]

    @classmethod
    def from_list(cls, plain: Sequence[Any]) -> Self:
        """A polynomial from plain values."""
        return cls.of(*([(coefficient, exponents) for coefficient, exponents in output] for output in plain))


@dataclass(frozen=True)
class Layout:
    """The public shape of a job: the polynomial in whole numbers, bounds, noise.

    `bounds` are declared sizes of features below 1; `memory` is the size in bytes of one share in one round; `label`
    names the computation within its job: its phases, its mail and its joint release.
    """

    facts: PublicFacts
    roster: Roster
    polynomial: Polynomial
    gamma: int
    bounds: Mapping[str, float] = field(default_factory=dict)
    mu: int = 0
    memory: int = 1 << 23
    label: str = "polynomial"

    @classmethod
    def from_dict(cls, facts: PublicFacts, roster: Roster, plain: Mapping[str, Any]) -> Layout:
        """The layout that a request describes, checked before anything depends on it."""
        with reading("polynomial"):
            made = cls(
                facts=facts,
                roster=roster,
                polynomial=Polynomial.from_list(plain["polynomial"]),
                gamma=plain["gamma"],
                bounds=dict(plain["bounds"]),
                mu=plain["mu"],
                memory=plain["memory"],
                label=str(plain["label"]),
            )
        made.check()
        return made

    def to_dict(self) -> dict[str, Any]:
        return {
            "polynomial": self.polynomial.to_list(),
            "gamma": self.gamma,
            "bounds": dict(self.bounds),
            "mu": self.mu,
            "memory": self.memory,
            "label": self.label,
        }

    def check(self) -> None:
        whole = whole_numbers(self.gamma, self.mu, self.memory)
        if not whole or not 1 <= self.gamma <= 2**26 or not 0 <= self.mu <= LARGEST_MU or self.memory < 1:
            raise BadArguments("gamma must be a whole number from 1 to 2^26, mu from 0 to 2^90, memory at least 1.")
        if not 1 <= self.polynomial.degree <= LARGEST_DEGREE:
            raise BadArguments(f"the polynomial must have a degree from 1 to {LARGEST_DEGREE}.")
        for name, bound in self.bounds.items():
            if name not in self.features or isinstance(bound, bool) or not 0 < bound <= 1 or self.gamma * bound < 1:
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
        named = {name for output in self.polynomial.outputs for _, exponents in output for name, _ in exponents}
        columns = [column for owned in self.facts.columns.values() for column in owned if _concerns(column, named)]
        known = {one.name: one for one in features(self.facts, columns)}
        if unknown := sorted(named - set(known)):
            raise UnknownColumn(
                f"the polynomial names {', '.join(unknown)}, which no party has; a categorical column has the features"
                " column[category], for each category but the first."
            )
        return {name: one for name, one in known.items() if name in named}

    @property
    def parties(self) -> tuple[str, ...]:
        """The data parties whose features take part."""
        return tuple(dict.fromkeys(feature.party for feature in self.features.values()))

    def largest(self, name: str) -> int:
        """The largest size of a feature in whole numbers."""
        return integer_bounds(self.gamma, 1.0, self.bounds.get(name, 1.0))[1]

    @cached_property
    def scale_degree(self) -> int:
        """All terms have the scale gamma to this power: lambda where no coefficient needs rounding, else lambda + 1."""
        degree = self.polynomial.degree
        scaled = [
            Fraction(coefficient) * self.gamma ** (degree - sum(e for _, e in exponents))
            for output in self.polynomial.outputs
            for coefficient, exponents in output
        ]
        return degree + (1 if any(one.denominator > 1 for one in scaled) else 0)

    @cached_property
    def whole(self) -> list[dict[Exponents, int]]:
        """Each output in whole numbers: a monomial of degree l has its coefficient times gamma^(scale - l), rounded."""
        made = []
        for output in self.polynomial.outputs:
            rounded = {
                exponents: round(Fraction(a) * self.gamma ** (self.scale_degree - sum(e for _, e in exponents)))
                for a, exponents in output
            }
            made.append({exponents: a for exponents, a in rounded.items() if a})
        return made

    @cached_property
    def reach(self) -> list[int]:
        """How far one record can move each output: sum of |coefficient| times the largest product. n is public, and so
        is the constant of a polynomial times n: it does not move."""
        return [
            sum(abs(a) * self._largest_product(exponents) for exponents, a in output.items() if exponents)
            for output in self.whole
        ]

    def _largest_product(self, exponents: Exponents) -> int:
        return math.prod(self.largest(name) ** e for name, e in exponents)

    @property
    def size(self) -> int:
        """Outputs that are opened."""
        return len(self.whole)

    @property
    def dimension(self) -> int:
        """Outputs that a record can move."""
        return sum(1 for one in self.reach if one)

    @property
    def delta_1(self) -> float:
        return float(max(sum(self.reach), self.delta_2))

    @property
    def delta_2(self) -> float:
        square = sum(one * one for one in self.reach)
        root = math.isqrt(square)
        # Where the root is no whole number: a few units of the last place above the double, so never below the root.
        return float(root) if root * root == square else math.sqrt(square) * (1 + 2**-50)

    @cached_property
    def field(self) -> Field:
        """Holds every output with all noise."""
        return field_for(self.facts.n * max(self.reach), self.mu, self.roster)

    @cached_property
    def shared(self) -> dict[tuple[str, Exponents], Factor]:
        """One column for each product of one party's own features that a monomial of several parties needs."""
        placed: dict[tuple[str, Exponents], Factor] = {}
        ends: dict[str, int] = {}
        for own in (self._split(exponents) for output in self.whole for exponents in output):
            for factor in own if len(own) > 1 else ():
                if factor not in placed:
                    start = ends.get(factor[0], 0)
                    placed[factor] = Factor(factor[0], start, start + 1)
                    ends[factor[0]] = start + 1
        return placed

    @cached_property
    def local(self) -> dict[str, list[Exponents]]:
        """The monomials that lie within one party: it shares their sums, not its rows."""
        found: dict[str, dict[Exponents, None]] = {}
        for own in (self._split(exponents) for output in self.whole for exponents in output):
            if len(own) == 1:
                found.setdefault(own[0][0], {})[own[0][1]] = None
        return {party: list(monomials) for party, monomials in found.items()}

    @cached_property
    def terms(self) -> dict[Exponents, tuple[Factor, ...]]:
        """The monomials of several parties, each once."""
        monomials = dict.fromkeys(exponents for output in self.whole for exponents in output)
        split = {exponents: self._split(exponents) for exponents in monomials}
        return {one: tuple(self.shared[factor] for factor in own) for one, own in split.items() if len(own) > 1}

    def _split(self, exponents: Exponents) -> list[tuple[str, Exponents]]:
        """A monomial as one factor a party."""
        own: dict[str, list[tuple[str, int]]] = {}
        for name, e in exponents:
            own.setdefault(self.features[name].party, []).append((name, e))
        return [(party, tuple(own[party])) for party in self.parties if party in own]

    @cached_property
    def circuit(self) -> Circuit:
        return Circuit(
            terms=tuple(self.terms.values()),
            local=tuple(self.local),
            n=self.facts.n,
            field=self.field,
            tag=binding(self.label, self.to_dict()),
            memory=self.memory,
        )

    def cost(self, public: Public, view: View) -> Cost:
        """The one joint release of this job, at a data party."""
        return self.release(colluders(self.roster, view), joint=f"{public.job} {self.label}")

    def release(self, many: int, joint: str | None = None) -> Cost:
        """All outputs together, against `many` colluders."""
        if not self.mu:
            return Unbounded("exact-polynomial", "exact sums of a polynomial of the columns", joint=joint)
        return Skellam(
            self.mu,
            delta_1=self.delta_1,
            delta_2=self.delta_2,
            parties=len(self.roster.names),
            colluders=many,
            dimension=self.dimension,
            joint=joint,
        )


def _concerns(column: str, named: set[str]) -> bool:
    return column in named or any(name.startswith(f"{column}[") for name in named)


@lru_cache(maxsize=64)
def polynomial_noise(
    epsilon: float,
    delta: float,
    delta_1: float,
    delta_2: float,
    dimension: int,
    parties: int,
    colluders: int,
    relation: Relation,
) -> int:
    stated: dict[str, Any] = {"parties": parties, "colluders": colluders, "relation": relation, "dimension": dimension}
    try:
        return calibrate_mu(epsilon=epsilon, delta=delta, delta_1=delta_1, delta_2=delta_2, **stated)
    except BadPrivacyParameter as error:
        raise BadPrivacyParameter(
            f"one record moves the sums by up to {delta_2:.3g} in whole numbers, and no noise up to 2^90 covers that"
            f" at epsilon {epsilon:g}; choose a smaller gamma, smaller coefficients or a larger epsilon."
        ) from error
