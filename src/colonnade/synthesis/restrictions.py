"""What rows must satisfy: facts that hold in every row (`Constraints`), and conditions on a sample (`conditions`).

A fact is a text over column names: `discharge >= admission`, `pregnancies == 0 if sex == 'male'`, `paid + owed ==
total`, `not (age < 16 and licence == 'yes')`. Python's parser reads it, and nothing but the forms below is accepted.

**Rule.** An equality that begins with a numeric column assigns it: the column is computed from the others, where its
condition holds. Then a row that breaks any fact, or leaves a domain, is drawn anew: the rows are the model's, given
that the facts hold. That the facts contradict each other or the domains is found before anything is spent: their
disjunctive normal form is a list of mixed-integer programs, and one of them must have a solution.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, DomainError, NotEstimable

if TYPE_CHECKING:
    from colonnade.synthesis.table import Redrawn, Sampler

Reals = NDArray[np.float64]
Booleans = NDArray[np.bool_]

LEAST_ACCEPTED = 1e-4
"""The share of a model's rows that must satisfy the facts."""
MOST_BRANCHES = 4096
STRICTLY = 1e-9
"""By which a strict inequality of numbers that are not integers must hold, as a share of the range."""


# --- conditions on a sample -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Condition:
    """The values that a column may have: `codes` of a discrete one, or numbers from `low` to `high`, encoded."""

    codes: NDArray[np.int64] | None = None
    low: float = -np.inf
    high: float = np.inf

    def fulfilled(self, encoded: NDArray[Any]) -> Booleans:
        if self.codes is not None:
            return np.isin(encoded, self.codes)
        return np.asarray((encoded >= self.low) & (encoded <= self.high))


def conditions(columns: Columns, where: Mapping[str, Any]) -> dict[str, Condition]:
    """From `where={"sex": "male", "region": ["north", "east"], "age": (30, 40), "children": 2}`."""
    if not isinstance(where, Mapping):
        raise BadArguments(f'where is a dict such as {{"region": "north", "age": (30, 40)}}, not {where!r}.')
    return {name: _condition(columns[name], stated) for name, stated in where.items()}


def _condition(column: Column, stated: Any) -> Condition:
    if column.discrete:
        listed = list(stated) if isinstance(stated, list | tuple | set | frozenset) else [stated]
        return Condition(codes=np.unique(_encoded(column, listed).astype(np.int64)))
    if isinstance(stated, list | set | frozenset) or (isinstance(stated, tuple) and len(stated) != 2):
        raise BadArguments(f"where[{column.name!r}] must be a value, or (lowest, highest); it is {stated!r}.")
    low, high = stated if isinstance(stated, tuple) else (stated, stated)
    lowest = float(column.lower or 0.0) if low is None else _encoded(column, [low])[0]
    highest = float(column.upper or 0.0) if high is None else _encoded(column, [high])[0]
    if lowest > highest:
        raise BadArguments(f"where[{column.name!r}] = {stated!r} has no values; write (lowest, highest).")
    return Condition(low=float(lowest), high=float(highest))


def _encoded(column: Column, values: Sequence[Any]) -> NDArray[Any]:
    try:
        codes: NDArray[Any] = column.encode(pd.Series(list(values)))
    except DomainError as error:
        domain = ", ".join(map(repr, column.categories)) if column.categories else f"{column.lower} to {column.upper}"
        raise DomainError(f"where[{column.name!r}] must lie in the domain, {domain}; it is {values!r}.") from error
    if pd.isna(np.asarray(codes, dtype=np.float64)).any() or (column.discrete and (codes < 0).any()):
        raise BadArguments(f"where[{column.name!r}] cannot be an empty cell; leave it out.")
    return codes


# --- facts that hold in every row -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Atom:
    """sum of coefficients times columns + constant, `compared` (<=, <, ==) with 0; or a discrete column in `codes`."""

    terms: tuple[tuple[str, float], ...] = ()
    constant: float = 0.0
    compared: str = "<="
    column: str = ""
    codes: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Junction:
    """All (`every`) or any of its parts."""

    every: bool
    parts: tuple[Formula, ...]


Formula = Atom | Junction


@dataclass(frozen=True)
class Assignment:
    """`column` is sum of coefficients times columns + constant, where `condition` holds."""

    column: str
    terms: tuple[tuple[str, float], ...]
    constant: float
    condition: Formula


TRUE: Formula = Junction(True, ())


@dataclass(frozen=True)
class Constraints:
    """Parsed facts over declared columns. `of` reads and checks them; `imposed` makes rows satisfy them."""

    columns: Columns
    formulas: tuple[Formula, ...]
    assignments: tuple[Assignment, ...]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, texts: Sequence[str], columns: Columns) -> Constraints:
        formulas, assignments = [], []
        for text in texts:
            formula, assignment = _Reader(columns, text).read()
            formulas.append(formula)
            assignments += [] if assignment is None else [assignment]
        constraints = cls(columns, tuple(formulas), tuple(assignments), tuple(texts))
        constraints._refuse_contradiction()
        return constraints

    def hold(self, frame: pd.DataFrame) -> Booleans:
        """Which rows satisfy all facts."""
        values = self._encoded(frame)
        return _holds(Junction(True, self.formulas), values, len(frame))

    def imposed(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, Booleans]:
        """The rows with assigned columns computed, and which of them satisfy all facts and lie in their domains."""
        values = self._encoded(frame)
        inside = np.ones(len(frame), dtype=np.bool_)
        for assignment in self.assignments:
            column = self.columns[assignment.column]
            chosen = _holds(assignment.condition, values, len(frame))
            computed = _linear(assignment.terms, assignment.constant, values, len(frame))
            values[column.name] = np.where(chosen, computed, values[column.name])
            assert column.lower is not None
            assert column.upper is not None
            whole = not column.whole or values[column.name] == np.rint(values[column.name])
            inside &= (values[column.name] >= column.lower) & (values[column.name] <= column.upper) & whole
        held = inside & _holds(Junction(True, self.formulas), values, len(frame))
        clipped = {
            name: self.columns[name].decode(np.clip(values[name], self.columns[name].lower, self.columns[name].upper))
            for name in dict.fromkeys(assignment.column for assignment in self.assignments)
        }
        return frame.assign(**{name: series.to_numpy() for name, series in clipped.items()}), held

    def _encoded(self, frame: pd.DataFrame) -> dict[str, Reals]:
        used = {name for formula in self.formulas for name in _names(formula)}
        used |= {name for assignment in self.assignments for name in _names(assignment.condition)}
        used |= {name for each in self.assignments for name in (each.column, *dict(each.terms))}
        return {name: self.columns[name].encode(frame[name]).astype(np.float64) for name in used}

    # --- contradictions ---------------------------------------------------------------------------------------------

    def _refuse_contradiction(self) -> None:
        """One branch of the disjunctive normal form must have a solution in the declared domains."""
        branches = _branches(Junction(True, self.formulas))
        if branches is not None and not any(map(self._feasible, branches)):
            culprits = [text for text, formula in zip(self.texts, self.formulas, strict=True) if self._alone(formula)]
            culprit = f"{culprits[0]!r} contradicts the declared domains" if culprits else "contradict each other"
            subject = "" if culprits else "the constraints "
            raise BadArguments(f"{subject}{culprit}: no row can satisfy all of {list(self.texts)!r}; take one away.")

    def _alone(self, formula: Formula) -> bool:
        branches = _branches(formula)
        return branches is not None and not any(map(self._feasible, branches))

    def _feasible(self, branch: Sequence[Atom]) -> bool:
        allowed: dict[str, frozenset[int]] = {}
        for atom in branch:
            if atom.column:
                allowed[atom.column] = allowed.get(atom.column, atom.codes) & atom.codes
        if not all(allowed.values()):
            return False
        linear = [atom for atom in branch if not atom.column]
        names = sorted({name for atom in linear for name, _ in atom.terms})
        if not names:
            return all(_compares(atom.constant, atom.compared) for atom in linear)
        coefficients = np.array([[dict(atom.terms).get(name, 0.0) for name in names] for atom in linear])
        declared = [self.columns[name] for name in names]
        lower = np.array([column.lower for column in declared], dtype=np.float64)
        upper = np.array([column.upper for column in declared], dtype=np.float64)
        whole = np.array([column.whole for column in declared])
        margins = np.array([self._margin(atom) for atom in linear])
        constants = np.array([atom.constant for atom in linear])
        floors = np.where([atom.compared == "==" for atom in linear], -constants, -np.inf)
        solved = optimize.milp(
            np.zeros(len(names)),
            integrality=whole.astype(int),
            bounds=optimize.Bounds(lower, upper),
            constraints=optimize.LinearConstraint(coefficients, floors, -constants - margins),
        )
        return bool(solved.success)

    def _margin(self, atom: Atom) -> float:
        if atom.compared != "<":
            return 0.0
        columns = [self.columns[name] for name, _ in atom.terms]
        if all(column.whole for column in columns) and all(value == round(value) for _, value in atom.terms):
            return 1.0 if atom.constant == round(atom.constant) else 0.0
        spans = (abs(value) * _span(column) for (_, value), column in zip(atom.terms, columns, strict=True))
        return STRICTLY * max(*spans, 1e-300)


def _span(column: Column) -> float:
    return float((column.upper or 0.0) - (column.lower or 0.0))


def _names(formula: Formula) -> Iterator[str]:
    if isinstance(formula, Junction):
        for part in formula.parts:
            yield from _names(part)
    else:
        yield from [formula.column] if formula.column else dict(formula.terms)


def _branches(formula: Formula) -> list[tuple[Atom, ...]] | None:
    """The disjunctive normal form; None if it is too long to be worth it."""
    if isinstance(formula, Atom):
        return [(formula,)]
    parts = [_branches(part) for part in formula.parts]
    listed = [part for part in parts if part is not None]
    if len(listed) < len(parts):
        return None
    if not formula.every:
        return [branch for part in listed for branch in part]
    if np.prod([len(part) for part in listed], dtype=np.float64) > MOST_BRANCHES:
        return None
    return [tuple(itertools.chain(*chosen)) for chosen in itertools.product(*listed)]


def _negated(formula: Formula) -> Formula:
    if isinstance(formula, Junction):
        return Junction(not formula.every, tuple(map(_negated, formula.parts)))
    if formula.column:
        raise AssertionError("a set of codes is negated where its column is known")
    turned = tuple((name, -value) for name, value in formula.terms)
    if formula.compared == "==":
        below = Atom(formula.terms, formula.constant, "<")
        return Junction(False, (below, Atom(turned, -formula.constant, "<")))
    return Atom(turned, -formula.constant, "<" if formula.compared == "<=" else "<=")


def _holds(formula: Formula, values: Mapping[str, Reals], rows: int) -> Booleans:
    if isinstance(formula, Junction):
        held = [_holds(part, values, rows) for part in formula.parts]
        combine = np.logical_and.reduce if formula.every else np.logical_or.reduce
        return np.asarray(combine(held)) if held else np.full(rows, formula.every)
    if formula.column:
        return np.isin(values[formula.column], list(formula.codes))
    return np.asarray(_compares(_linear(formula.terms, formula.constant, values, rows), formula.compared))


def _linear(terms: Sequence[tuple[str, float]], constant: float, values: Mapping[str, Reals], rows: int) -> Reals:
    return sum((value * values[name] for name, value in terms), np.full(rows, constant))


def _compares(left: Any, compared: str) -> Any:
    # An empty cell compares as nothing: a fact says nothing about it.
    unknown = np.isnan(left)
    if compared == "==":
        return unknown | (np.abs(left) <= 1e-9 * np.maximum(1.0, np.abs(left)))
    return unknown | (left < 0 if compared == "<" else left <= 0)


class _Reader:
    """From a text to a formula, and to an assignment if it is an equality that begins with a numeric column."""

    def __init__(self, columns: Columns, text: str) -> None:
        self.columns, self.text = columns, text

    def read(self) -> tuple[Formula, Assignment | None]:
        fact, conditional, condition = self.text.partition(" if ")
        then, when = self._parsed(fact), self._formula(self._parsed(condition)) if conditional else TRUE
        formula = self._formula(then)
        if conditional:
            formula = Junction(False, (self._opposite(self._parsed(condition)), formula))
        return formula, self._assignment(then, when)

    def _parsed(self, text: str) -> ast.expr:
        names = sorted((name for name in self.columns if not name.isidentifier()), key=len, reverse=True)
        self.aliases = {f"column_{place}_": name for place, name in enumerate(names)}
        for alias, name in self.aliases.items():
            text = re.sub(rf"`{re.escape(name)}`", alias, text)
        try:
            return ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            raise self._refused("cannot be read") from None

    def _refused(self, fault: str) -> BadArguments:
        return BadArguments(
            f'constraint {self.text!r} {fault}; write for example "a <= b", "a == 0 if b == \'no\'", "a + b == c" or'
            " \"not (a == 'x' and b == 'y')\", and a column whose name is no word in backquotes."
        )

    def _assignment(self, node: ast.expr, condition: Formula) -> Assignment | None:
        simple = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
        if not simple or not isinstance(node, ast.Compare) or not isinstance(node.left, ast.Name):
            return None
        column = self._column(node.left)
        if column.discrete:
            return None
        terms, constant = self._expression(node.comparators[0], column)
        return None if column.name in terms else Assignment(column.name, tuple(terms.items()), constant, condition)

    def _opposite(self, node: ast.expr) -> Formula:
        return self._formula(ast.UnaryOp(op=ast.Not(), operand=node))

    def _formula(self, node: ast.expr, negated: bool = False) -> Formula:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._formula(node.operand, not negated)
        if isinstance(node, ast.BoolOp):
            every = isinstance(node.op, ast.And) != negated
            return Junction(every, tuple(self._formula(part, negated) for part in node.values))
        if not isinstance(node, ast.Compare):
            raise self._refused("is no comparison")
        chain = [node.left, *node.comparators]
        parts = [
            self._atom(*sides, operator) for sides, operator in zip(itertools.pairwise(chain), node.ops, strict=True)
        ]
        atoms = tuple(self._turned(part) if negated else part for part in parts)
        return atoms[0] if len(atoms) == 1 else Junction(not negated, atoms)

    def _turned(self, formula: Formula) -> Formula:
        if isinstance(formula, Atom) and formula.column:
            categories = self.columns[formula.column].categories or ()
            return Atom(column=formula.column, codes=frozenset(range(len(categories))) - formula.codes)
        return _negated(formula)

    def _atom(self, left: ast.expr, right: ast.expr, operator: ast.cmpop) -> Formula:
        if isinstance(left, ast.Name) and self._column(left).discrete:
            return self._membership(self._column(left), right, operator)
        known = self._date_of(left) or self._date_of(right)
        (first, constant), (second, other) = self._expression(left, known), self._expression(right, known)
        terms = {name: first.get(name, 0.0) - second.get(name, 0.0) for name in {**first, **second}}
        less = Atom(tuple(terms.items()), constant - other)
        turned = Atom(tuple((name, -value) for name, value in terms.items()), other - constant)
        forms: dict[type[ast.cmpop], Callable[[], Formula]] = {
            ast.LtE: lambda: less,
            ast.Lt: lambda: Atom(less.terms, less.constant, "<"),
            ast.GtE: lambda: turned,
            ast.Gt: lambda: Atom(turned.terms, turned.constant, "<"),
            ast.Eq: lambda: Atom(less.terms, less.constant, "=="),
            ast.NotEq: lambda: _negated(Atom(less.terms, less.constant, "==")),
        }
        if type(operator) not in forms:
            raise self._refused("compares numbers with something else than <=, <, >=, >, == or !=")
        return forms[type(operator)]()

    def _membership(self, column: Column, right: ast.expr, operator: ast.cmpop) -> Formula:
        try:
            stated = ast.literal_eval(right)
        except ValueError:
            raise self._refused(f"compares {column.name!r} with something else than its categories") from None
        several = isinstance(operator, ast.In | ast.NotIn)
        if not isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            raise self._refused(f"compares {column.name!r}, which has categories, in another way than ==, != or in")
        codes = _encoded(column, list(stated) if several else [stated])
        atom = Atom(column=column.name, codes=frozenset(int(code) for code in codes))
        return self._turned(atom) if isinstance(operator, ast.NotEq | ast.NotIn) else atom

    def _column(self, node: ast.Name) -> Column:
        return self.columns[self.aliases.get(node.id, node.id)]

    def _date_of(self, node: ast.expr) -> Column | None:
        columns = (self._column(part) for part in ast.walk(node) if isinstance(part, ast.Name))
        return next((column for column in columns if column.kind == "date"), None)

    def _expression(self, node: ast.expr, known: Column | None) -> tuple[dict[str, float], float]:
        """Coefficients and constant of a linear expression; a text is a date of the `known` column."""
        if isinstance(node, ast.Name):
            column = self._column(node)
            if column.discrete:
                raise self._refused(f"computes with {column.name!r}, which has categories")
            return {column.name: 1.0}, 0.0
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return {}, float(node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and known is not None:
            return {}, float(_encoded(known, [node.value])[0])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            terms, constant = self._expression(node.operand, known)
            return {name: -value for name, value in terms.items()}, -constant
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            sign = 1.0 if isinstance(node.op, ast.Add) else -1.0
            (first, constant), (second, other) = (self._expression(side, known) for side in (node.left, node.right))
            terms = {name: first.get(name, 0.0) + sign * second.get(name, 0.0) for name in {**first, **second}}
            return terms, constant + sign * other
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            (first, constant), (second, other) = (self._expression(side, known) for side in (node.left, node.right))
            if not first or not second:
                return {name: (constant or 0.0) * value for name, value in second.items()} | {
                    name: other * value for name, value in first.items()
                }, constant * other
        raise self._refused("is not linear in numeric columns")


# --- rows that satisfy them -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Restricted:
    """A model's rows, given that the facts hold: those that break one are drawn anew, and so are those that no longer
    fulfil the conditions `where` after columns were computed."""

    model: Sampler
    constraints: Constraints
    where: Mapping[str, Condition] = field(default_factory=dict)

    @property
    def columns(self) -> Columns:
        return self.model.columns

    def batches(self, rows: int, source: int | np.random.Generator, *, size: int = 65_536) -> Iterator[pd.DataFrame]:
        draw = source if isinstance(source, np.random.Generator) else np.random.default_rng(source)
        waiting: list[pd.DataFrame] = []
        drawn = accepted = given = 0
        while given < rows:
            block = max(1024, int(1.1 * (rows - accepted) * max(drawn, 1) / max(accepted, 1))) if drawn else rows
            for frame in self.model.batches(min(block, 65_536), draw):
                imposed, held = self.constraints.imposed(frame)
                for name, condition in self.where.items():
                    held &= condition.fulfilled(self.columns[name].encode(imposed[name]))
                waiting.append(imposed[held])
                drawn, accepted = drawn + len(frame), accepted + int(held.sum())
            if drawn > 10 / LEAST_ACCEPTED and accepted < LEAST_ACCEPTED * drawn:
                raise NotEstimable(
                    f"of {drawn:,} rows of the model {accepted} satisfy {list(self.constraints.texts)!r}; the data seem"
                    " to break these facts, or the model does not know them: take one away."
                )
            while accepted - given >= min(size, rows - given) and given < rows:
                joined = pd.concat(waiting, ignore_index=True)
                count = min(size, rows - given)
                yield joined.iloc[:count].reset_index(drop=True)
                waiting, given = [joined.iloc[count:]], given + count

    def given(self, where: Mapping[str, Condition]) -> Restricted:
        return Restricted(conditioned(self.model, where), self.constraints, {**self.where, **where})

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        return self.model.to_arrays()


@dataclass(frozen=True, eq=False)
class RestrictedDraws:
    """Other models that the released numbers support as well, each given that the facts hold."""

    redrawn: Redrawn
    constraints: Constraints

    def __call__(self, source: np.random.Generator) -> Restricted:
        return Restricted(self.redrawn(source), self.constraints)

    def to_arrays(self) -> Mapping[str, NDArray[Any]]:
        return self.redrawn.to_arrays()


def conditioned(model: Any, where: Mapping[str, Condition]) -> Any:
    """The model given these values."""
    if not hasattr(model, "given"):
        raise BadArguments("rows of this model cannot be drawn for given values; draw many, and keep those that fit.")
    return model.given(where)
