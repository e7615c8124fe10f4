"""A formula such as `sbp ~ age + bmi * smoker + C(region)`: its design as polynomials of the parties' features.

formulaic reads the formula and chooses the coding of categories, on a table of the declared columns without any record.
Every column of the design is a polynomial of features in [-1, 1], each of which has one holder, so a product of columns
of several parties is a product on shares, and the normal equations are sums of monomials over the records
(`statistics/polynomial.py`). They are of the records that every party has, with no empty cell: least squares on
complete records, right if whether a record is complete does not depend on the response once the covariates are known.

A formula may come from a stranger, and formulaic evaluates Python: each factor is checked here first, and only columns,
numbers, +, -, * and whole powers pass.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.linalg import cho_factor, cho_solve

from colonnade.data.column import Column
from colonnade.errors import BadArguments, NotEstimable, SchemaError, UnknownColumn
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.options import Verification
from colonnade.federation.roster import Roster
from colonnade.models.linear.private import COUNT_SDS
from colonnade.models.linear.result import Regression
from colonnade.models.matrix import columns_of
from colonnade.statistics.features import EMPTY, Feature, features, presence_name
from colonnade.statistics.gaussian_em import Matrix, Vector
from colonnade.statistics.polynomial import (
    Exponents,
    Polynomial,
    PolynomialComputation,
    PolynomialResult,
    PolynomialSum,
)

LONGEST = 1000
"""Characters of a formula."""
MOST_FACTORS = 5
"""Factors of a term that `*` expands: 2^5 terms."""
MOST_COLUMNS = 40
"""Columns of a design: their products are about half of the square."""
LARGEST_POWER = 4
EXACT_BITS = 96
"""Bits of a monomial's largest value without noise; 40 with noise, whose size ends at 2^90."""
ROUGH = 0.3
"""The largest typical change of the standardised normal equations by noise: up to it an inverse is nearly linear."""
COMPLETE = (
    "Only records that every party has, with no empty cell in the formula's columns, are used: right if whether a"
    " record is complete does not depend on the response once the covariates are known."
)

Terms = dict[Exponents, float]
"""A polynomial of features: {monomial: coefficient}."""


# --- reading ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parsed:
    """A formula that formulaic may be given: what it explains, the columns it names, whether it has products."""

    text: str
    response: str
    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    """Those of which an expression asks a number."""
    products: bool


def parsed(text: str) -> Parsed:
    """Refuse what is no formula of columns, without evaluating anything."""
    from formulaic.parser import DefaultFormulaParser

    if len(text) > LONGEST:
        raise BadArguments(f"a formula has at most {LONGEST:,} characters, not {len(text):,}.")
    try:
        tokens = [(token.kind.value, str(token.token)) for token in DefaultFormulaParser().get_tokens(text)]
    except Exception as error:  # formulaic's own family of errors, and what its tokenizer meets
        raise BadArguments(
            f"the formula {text!r} cannot be read ({_first_line(error)}); write 'y ~ a + b * c'."
        ) from error
    operators = [token for kind, token in tokens if kind == "operator"]
    if operators.count("~") != 1:
        raise BadArguments(f"the formula {text!r} needs one '~' between the response and the terms: 'y ~ a + b'.")
    for kind, token in tokens:
        if (kind == "operator" and token not in ("~", "+", "-", ":", "*")) or kind == "context":
            raise BadArguments(
                f"a formula here has +, -, : and *, and no {token!r} outside I(); write the products out, as in"
                " 'y ~ a + b + a:b'."
            )
    for _, term in itertools.groupby(operators, key=lambda token: token in ("+", "-", "~")):
        if sum(token == "*" for token in term) >= MOST_FACTORS:
            raise BadArguments(f"a term has at most {MOST_FACTORS} factors between *; use : for a single product.")
    names: dict[str, None] = {}
    numbers: dict[str, None] = {}
    for kind, token in tokens:
        if kind == "value" and token not in ("0", "1"):
            raise BadArguments(f"{token!r} in the formula is no column; numbers belong into I(), as in I(2 * age).")
        if kind == "python":
            category, read = _checked(token)
            names.update(dict.fromkeys(read))
            numbers.update({} if category else dict.fromkeys(read))
        elif kind == "name":
            names[_bare(token)] = None
    response = _response(text, tokens)
    covariates = tuple(name for name in names if name != response)
    if not covariates:
        raise BadArguments(f"the formula {text!r} has no covariate; write 'y ~ a + b'.")
    products = bool(numbers) or ":" in operators or "*" in operators
    return Parsed(text, response, covariates, tuple(numbers), products)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _bare(token: str) -> str:
    return token[1:-1] if token.startswith("`") and token.endswith("`") else token


def _response(text: str, tokens: Sequence[tuple[str, str]]) -> str:
    left = list(itertools.takewhile(lambda token: token != ("operator", "~"), tokens))
    if len(left) != 1 or left[0][0] != "name":
        raise BadArguments(f"the response of the formula {text!r} must be one column, as in 'y ~ a + b'.")
    response = _bare(left[0][1])
    if any(kind == "name" and _bare(token) == response for kind, token in tokens[1:]):
        raise BadArguments(f"the response {response!r} cannot explain itself; take it out of the formula's right side.")
    return response


def _checked(token: str) -> tuple[bool, tuple[str, ...]]:
    """(whether it is C(column), the columns it names) of a Python factor; anything but polynomials is refused."""
    try:
        tree = ast.parse(token.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BadArguments(f"{token!r} in the formula cannot be read; write I(a * b) or C(a).") from error
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and len(tree.args) == 1 and not tree.keywords:
        if tree.func.id == "C" and isinstance(tree.args[0], ast.Name):
            return True, (tree.args[0].id,)
        if tree.func.id == "I":
            return False, _names(tree.args[0], token)
    return False, _names(tree, token)


def _names(tree: ast.expr, token: str) -> tuple[str, ...]:
    """The columns of a polynomial expression."""
    if isinstance(tree, ast.Name):
        return (tree.id,)
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float) and abs(tree.value) < 1e12:
        return ()
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub | ast.UAdd):
        return _names(tree.operand, token)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub | ast.Mult):
        return (*_names(tree.left, token), *_names(tree.right, token))
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow) and _power(tree.right) is not None:
        return _names(tree.left, token)
    raise BadArguments(
        f"{token!r} in the formula is no polynomial of columns: I() takes +, -, * and ** up to {LARGEST_POWER}, and C()"
        " one column. Anything else, a logarithm say, its holder adds to its table as a column of its own."
    )


def _power(tree: ast.expr) -> int | None:
    """A whole exponent that is written as a number."""
    if isinstance(tree, ast.Constant) and type(tree.value) is int and 1 <= tree.value <= LARGEST_POWER:
        return tree.value
    return None


# --- the design ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FormulaDesign:
    """The columns of the design by name, "const" first, and the response, each a polynomial of features."""

    response: str
    declared: Mapping[str, Feature]
    columns: Mapping[str, Column]
    design: Mapping[str, Terms]

    @classmethod
    def of(cls, formula: Parsed, facts: PublicFacts) -> FormulaDesign:
        names = (*formula.columns, formula.response)
        declared = {feature.name: feature for feature in features(facts, names) if feature.category != EMPTY}
        columns = {name: facts.column(name) for name in names}
        if columns[formula.response].kind == "categorical":
            raise SchemaError(f"the response {formula.response!r} is categorical and has no mean; choose a number.")
        for name in formula.numbers:
            if columns[name].kind == "categorical":
                raise SchemaError(f"{name!r} is categorical and has no number; take it out of I().")
        bare = cls(formula.response, declared, columns, {})
        return replace(bare, design=bare._designed(formula.text))

    def _designed(self, text: str) -> dict[str, Terms]:
        """Which terms there are, and which of their categories are left out, as formulaic decides it."""
        from formulaic import Formula

        table = pd.DataFrame(
            {
                name: pd.Categorical([str(column.categories[0])], [str(label) for label in column.categories])
                if column.kind == "categorical" and column.categories
                else [0.0]
                for name, column in self.columns.items()
            }
        )
        try:
            spec = Formula(text).get_model_matrix(table, context={}).rhs.model_spec
        except Exception as error:  # formulaic's own family of errors
            raise BadArguments(f"the formula {text!r} cannot be used ({_first_line(error)}).") from error
        design: dict[str, Terms] = {}
        for structure in spec.structure:
            for scoped in structure.scoped_terms:
                factors = [self._factor(part.factor.factor.expr, reduced=part.reduced) for part in scoped.factors]
                # formulaic lets the first factor vary fastest
                for parts in itertools.product(*reversed(factors)):
                    name = ":".join(name for name, _ in reversed(parts)) or "const"
                    product: Terms = {(): float(scoped.scale)}
                    for _, terms in parts:
                        product = self.multiplied(product, terms)
                    design[name] = product
        if "const" not in design:
            raise BadArguments(f"the formula {text!r} leaves the constant out; take 0 or -1 away.")
        if len(design) > MOST_COLUMNS:
            raise BadArguments(f"the formula {text!r} has {len(design)} columns; at most {MOST_COLUMNS} can be fitted.")
        return {"const": design.pop("const"), **design}

    def _factor(self, expression: str, *, reduced: bool) -> list[tuple[str, Terms]]:
        """(name, polynomial) for each column that a factor becomes."""
        tree = ast.parse(expression, mode="eval").body if expression not in self.columns else None
        called = tree.func.id if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else ""
        name = expression
        if called == "C":
            assert isinstance(tree, ast.Call)
            assert isinstance(tree.args[0], ast.Name)
            name = tree.args[0].id
        if name in self.columns:
            column = self.columns[name]
            if column.kind == "categorical":
                return self._categories(column, reduced=reduced)
            if called == "C" and column.kind != "binary":
                raise SchemaError(
                    f"C({name}) asks for categories, and {name!r} is declared {column.kind}; write {name} for its"
                    " numbers or codes, or declare it categorical."
                )
            return [(name, self.value(name))]
        inner = tree.args[0] if isinstance(tree, ast.Call) else tree
        assert inner is not None
        return [(expression, self._polynomial(inner))]

    def _categories(self, column: Column, *, reduced: bool) -> list[tuple[str, Terms]]:
        declared = [feature for feature in self.declared.values() if feature.column == column.name]
        indicators: list[tuple[str, Terms]] = [(feature.name, {((feature.name, 1),): 1.0}) for feature in declared]
        if reduced:
            return indicators
        assert column.categories is not None
        first: Terms = {(): 1.0, **{monomial: -1.0 for _, terms in indicators for monomial in terms}}
        return [(f"{column.name}[{column.categories[0]}]", first), *indicators]

    def value(self, name: str) -> Terms:
        """A column's own value, or code: centre + half * feature."""
        feature = self.declared[name]
        return {monomial: number for monomial, number in (((), feature.centre), (((name, 1),), feature.half)) if number}

    def _polynomial(self, tree: ast.expr) -> Terms:
        if isinstance(tree, ast.Name):
            return self.value(tree.id)
        if isinstance(tree, ast.Constant):
            return {(): float(tree.value)}  # type: ignore[arg-type]
        if isinstance(tree, ast.UnaryOp):
            sign = -1.0 if isinstance(tree.op, ast.USub) else 1.0
            return _scaled(self._polynomial(tree.operand), sign)
        assert isinstance(tree, ast.BinOp)
        if isinstance(tree.op, ast.Pow):
            base = self._polynomial(tree.left)
            product: Terms = {(): 1.0}
            for _ in range(_power(tree.right) or 0):
                product = self.multiplied(product, base)
            return product
        left, right = self._polynomial(tree.left), self._polynomial(tree.right)
        if isinstance(tree.op, ast.Mult):
            return self.multiplied(left, right)
        return _sum(left, _scaled(right, -1.0 if isinstance(tree.op, ast.Sub) else 1.0))

    def multiplied(self, left: Terms, right: Terms) -> Terms:
        product: Terms = {}
        for (a, x), (b, y) in itertools.product(left.items(), right.items()):
            monomial = self.monomial(a, b)
            if monomial is not None:
                product[monomial] = product.get(monomial, 0.0) + x * y
        return product

    def monomial(self, left: Exponents, right: Exponents) -> Exponents | None:
        """A product, reduced: an indicator is its own square, two of one column exclude each other (None), and the
        square of a binary feature, -1 or 1, is 1."""
        powers: dict[str, int] = dict(left)
        for name, power in right:
            powers[name] = powers.get(name, 0) + power
        indicators = [self.declared[name].column for name in powers if self.declared[name].category is not None]
        if len(set(indicators)) < len(indicators):
            return None
        for name in powers:
            if self.declared[name].category is not None:
                powers[name] = 1
            elif self.columns[self.declared[name].column].kind == "binary":
                powers[name] %= 2
        return tuple(sorted((name, power) for name, power in powers.items() if power))

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature.party for feature in self.declared.values()))

    def holders(self, terms: Iterable[Exponents]) -> tuple[str, ...]:
        """The parties whose columns a polynomial is made of."""
        parties = {self.declared[name].party for monomial in terms for name, _ in monomial}
        return tuple(party for party in self.parties if party in parties)

    def evaluated(self, frame: pd.DataFrame) -> Matrix:
        """The design and then the response of a table; NaN where a cell that is needed is empty or not there."""
        values: dict[str, Vector] = {}
        for name, feature in self.declared.items():
            if feature.column not in frame.columns:
                values[name] = np.full(len(frame), np.nan)
                continue
            column = self.columns[feature.column]
            codes = replace(column, missing=True).encode(frame[feature.column]).astype(np.float64)
            codes = np.where(codes < 0, np.nan, codes) if column.discrete else codes
            own = codes if feature.category is None else np.where(np.isnan(codes), np.nan, codes == feature.category)
            values[name] = (own - feature.centre) / feature.half
        out = np.zeros((len(frame), len(self.design) + 1))
        for place, terms in enumerate((*self.design.values(), self.value(self.response))):
            for monomial, coefficient in terms.items():
                product = np.ones(len(frame))
                for name, power in monomial:
                    product = product * values[name] ** power
                out[:, place] += coefficient * product
        return out


def _scaled(terms: Terms, factor: float) -> Terms:
    return {monomial: factor * number for monomial, number in terms.items()}


def _sum(left: Terms, right: Terms) -> Terms:
    return {monomial: left.get(monomial, 0.0) + right.get(monomial, 0.0) for monomial in {**left, **right}}


# --- the coordinator's procedure ----------------------------------------------------------------------------


class FormulaFit(Procedure[Regression]):
    """One secure computation of the sums of monomials, and least squares from them."""

    def __init__(
        self,
        facts: PublicFacts,
        roster: Roster,
        *,
        design: FormulaDesign,
        epsilon: float | None,
        delta: float,
        gamma: int,
        verify: Verification = True,
    ) -> None:
        self.facts, self.design = facts, design
        self.basis = tuple(dict.fromkeys((*itertools.chain(*design.design.values()), *design.value(design.response))))
        """The monomials of which the design and the response are made."""
        self.products: dict[Exponents, int] = {}
        """The monomials of the normal equations, each in its place among the sums."""
        pairs = itertools.combinations_with_replacement(range(len(self.basis)), 2)
        self.places = {(i, j): self._place(self.basis[i], self.basis[j]) for i, j in pairs}
        outputs = [((1.0, dict(self._complete(monomial))),) for monomial in self.products]
        polynomial = Polynomial.of(*outputs)
        bits = (EXACT_BITS if epsilon is None else 40) // (polynomial.degree + 1)
        method = PolynomialSum(
            polynomial=polynomial,
            epsilon=epsilon,
            delta=delta,
            gamma=min(gamma, 2 ** min(20, max(bits, 1))),
            verify=verify,
        )
        self.sums: PolynomialComputation = method.procedure(facts, roster)
        self.private = epsilon is not None
        self.stages = self.sums.stages
        across = [name for name, terms in design.design.items() if len(design.holders(terms)) > 1]
        self.notes = (
            f"The formula's design has {len(design.design)} columns, and its normal equations are {len(self.products)}"
            " sums over the records."
            + (f" Products across parties, on shares: {', '.join(across)}." if across else ""),
            *self.sums.notes,
        )

    def _place(self, left: Exponents, right: Exponents) -> int | None:
        monomial = self.design.monomial(left, right)
        return None if monomial is None else self.products.setdefault(monomial, len(self.products))

    def _complete(self, monomial: Exponents) -> Exponents:
        """Of complete records alone: a feature of a record that its party lacks is 0, and a party that holds no factor
        brings its presence."""
        present = {self.design.declared[name].party for name, _ in monomial}
        absent = tuple((presence_name(party), 1) for party in self.design.parties if party not in present)
        return (*monomial, *absent)

    def run(self, job: Job) -> Regression:
        return self.result(self.sums.run(job)).with_costs(job.plan, private=self.private)

    def matrices(self, result: PolynomialResult) -> tuple[Matrix, Matrix]:
        """Sums of products of the design's columns and the response; and what one unit of each sum adds to them."""
        rows = [*self.design.design.values(), self.design.value(self.design.response)]
        to_design = np.array([[terms.get(monomial, 0.0) for monomial in self.basis] for terms in rows])
        size = len(self.basis)
        units = np.zeros((len(self.products), size, size))
        for (i, j), place in self.places.items():
            if place is not None:
                units[place, i, j] = units[place, j, i] = 1.0
        moved = to_design @ units @ to_design.T
        return np.tensordot(result.values, moved, axes=1), moved

    def result(self, sums: PolynomialResult) -> Regression:
        gram, moved = self.matrices(sums)
        names = tuple(self.design.design)
        n, p = float(gram[0, 0]), len(names)
        if n <= max(p + 1, COUNT_SDS * sums.noise_sd):
            raise NotEstimable(
                f"about {max(n, 0):.0f} records are complete, too few for {p} coefficients and the noise;"
                " leave terms out, or allow a larger epsilon."
            )
        scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
        unit = gram / np.outer(scale, scale)
        changes = moved / np.outer(scale, scale)
        inside = unit[:p, :p]
        smallest = float(np.linalg.eigvalsh(inside)[0])
        if smallest < 1e-12:
            raise NotEstimable(
                "the columns of the formula's design determine one another in the complete records; leave a term out."
                if not self.private
                else "the noise exceeds what a column of the formula's design varies; allow a larger epsilon."
            )
        solved = cho_factor(inside)
        if self.private:
            _check_noise(inside, changes[:, :p, :p] * sums.noise_sd)
        beta = cho_solve(solved, unit[:p, p])
        residual = float(unit[p, p] - beta @ unit[:p, p])
        if residual <= 0:
            raise NotEstimable("the noise exceeds what the response varies; allow a larger epsilon or leave terms out.")
        against = np.concatenate([-beta, [1.0]])
        cov = cho_solve(solved, np.eye(p)) * residual / (n - p)
        if self.private:  # d beta = Gxx^-1 (dG (-beta, 1))_x, for unit changes of each sum
            jacobian = cho_solve(solved, (changes @ against)[:, :p].T)
            cov = cov + sums.noise_sd**2 * jacobian @ jacobian.T
        back = scale[p] / scale[:p]
        mean = gram[0] / n
        sigma = gram / n - np.outer(mean, mean)
        rss = residual * scale[p] ** 2
        keep = np.arange(1, p + 1)
        index = list(names)
        return FormulaRegression(
            response=self.design.response,
            features=tuple(self._feature(name) for name in (*names[1:], self.design.response)),
            columns=columns_of(self.facts, tuple(self.design.declared.values())),
            parties=self.design.parties,
            patterns=(((True,) * len(self.design.parties), round(n)),),
            cohort=self.facts.n,
            simulated=sums.simulated,
            params=pd.Series(beta * back, index=index, name="coef"),
            cov=pd.DataFrame(cov * np.outer(back, back), index=index, columns=index),
            sigma2=rss / (n - p),
            loglik=math.nan if self.private else -n / 2 * (math.log(2 * math.pi * rss / n) + 1),
            rsquared=1.0 - rss / (n * float(sigma[p, p])),
            nobs=round(n),
            trace=(),
            steps=(0, 0),
            mu=mean[keep],
            sigma=sigma[np.ix_(keep, keep)],
            model="formula",
            method="Least squares",
            unused="are not complete",
            covariance="nonrobust, with noise" if self.private else "nonrobust",
            count_sd=(sums.noise_sd, sums.noise_sd),
            basis=f"least squares{' and privacy noise' if self.private else ''}, with equal variances. {COMPLETE}",
            design=self.design,
        )

    def _feature(self, name: str) -> Feature:
        """A column of the design in its own units, with those who hold its factors."""
        terms = self.design.value(name) if name == self.design.response else self.design.design[name]
        holders = self.design.holders(terms)
        first = next((feature for monomial in terms for feature, _ in monomial), name)
        return Feature(name, " x ".join(holders), self.design.declared[first].column, None, 0.0, 1.0)


def _check_noise(inside: Matrix, noise: Matrix) -> None:
    """Refuse noise that is no small change of the normal equations, by 30 draws of it; they are post-processing."""
    values, vectors = np.linalg.eigh(inside)
    root = vectors / np.sqrt(values)
    drawn = np.random.default_rng(0).standard_normal((30, len(noise)))
    sizes = [np.abs(np.linalg.eigvalsh(root.T @ np.tensordot(each, noise, axes=1) @ root)).max() for each in drawn]
    if np.median(sizes) > ROUGH:
        raise NotEstimable(
            f"the noise typically changes the normal equations by {np.median(sizes):.1f} of their size (at most"
            f" {ROUGH}), too large for valid standard errors; allow a larger epsilon, declare closer bounds, or leave"
            " terms out."
        )


# --- the result ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class FormulaRegression(Regression):
    """A regression on the columns of a formula's design, from complete records. `loglik` is that of the response given
    the covariates, as statsmodels has it."""

    design: FormulaDesign

    def _encoded(self, frame: pd.DataFrame) -> Matrix:
        """The design of a table, without the constant, and the response last and unknown."""
        if not any(name in frame.columns for name in self.columns if name != self.response):
            raise UnknownColumn("the frame has none of the columns on which the model was fitted; check its names.")
        values = self.design.evaluated(frame)[:, 1:]
        values[:, -1] = np.nan
        return values
