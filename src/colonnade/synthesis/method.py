"""`synthesize`: one synthetic table of all parties' columns, from a Gaussian copula or from a Markov random field.

Both models are fitted to noisy statistics that the parties compute together, with no trusted party, and both draw fresh
rows: no row belongs to a record. The copula suits numbers whose correlations matter, the field suits categories. What
each may claim is in `copula/claim.md` and `field/claim.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from colonnade.codec import ListOf
from colonnade.data.column import Columns
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, method_class
from colonnade.federation.options import (
    ColumnNames,
    Delta,
    FileFormat,
    Option,
    OptionalEpsilon,
    RelationOption,
    Rows,
    Verify,
    ViewOption,
)
from colonnade.federation.roster import Roster
from colonnade.statistics.joint import check_budget
from colonnade.synthesis.choice import Choice, choose
from colonnade.synthesis.copula.overlap import EXPECTED, Expected
from colonnade.synthesis.field.procedure import MISSING_DATA, check_split
from colonnade.synthesis.restrictions import Constraints, Restricted, RestrictedDraws
from colonnade.synthesis.table import SyntheticTable

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

COPULA: Mapping[str, tuple[str, ...]] = {"model": ("auto", "copula")}
FIELD: Mapping[str, tuple[str, ...]] = {"model": ("auto", "field")}


@method_class
class Synthesize(Method[SyntheticTable]):
    """Fit a model of all parties' columns and draw a synthetic table from it.

    Returns
    -------
    `fit(federation)` gives a `SyntheticTable`: `sample(rows)` draws a DataFrame, `cost` and `notes` say the rest.

    Example
    -------
    >>> table = co.Synthesize(epsilon=8.0, delta=1e-6, columns=("capital", "roa")).fit(federation)
    >>> list(table.sample(100).columns)
    ['roa', 'capital']
    """

    name: ClassVar[str] = "synthesize"

    epsilon: OptionalEpsilon = 1.0
    delta: Delta = 1e-6
    model: Annotated[
        Literal["auto", "copula", "field", "independent"],
        Option(
            "A Gaussian copula, for numbers; a Markov random field, for categories and mixed tables; or marginals"
            " alone. By default one of them, by what is declared: the plan says which and why.",
            short="-m",
        ),
    ] = "auto"
    columns: Annotated[
        ColumnNames,
        Option(
            "Which columns, with commas between; all by default. May be repeated. The copula takes a categorical column"
            " in its declared order; its table has no empty cells.",
            form="NAMES",
            reads="named or all",
        ),
    ] = None
    constraints: Annotated[
        ListOf[str] | None,
        Option(
            'Facts that hold in every row, as "discharge >= admission", "pregnancies == 0 if sex == \'male\'", "paid +'
            ' owed == total" or "not (age < 16 and licence == \'yes\')". May be repeated.',
            flag="--constraint",
            form="FACT",
        ),
    ] = None
    rows: Rows = None
    file_format: FileFormat = "parquet"
    view: ViewOption = "client"
    relation: RelationOption = "zero-out"
    verify: Verify = True

    # --- the copula ------------------------------------------------------------------------------------------------

    presence: Annotated[
        Literal["known", "secret"],
        Option(
            "Share the mask of presence like data, so that everything is within (epsilon, delta); or show it, over"
            ' pseudonymous rows, to the share holders (allow "presence"), which permits EM.',
            only=COPULA,
        ),
    ] = "secret"
    correlation: Annotated[
        Literal["auto", "em", "pairs"],
        Option(
            "By EM over the patterns of presence, from available pairs of records, or by EM where presence is known and"
            " the noise is small enough.",
            only=COPULA,
        ),
    ] = "auto"
    patterns: Annotated[
        ListOf[ListOf[bool]] | None,
        Option("Candidate patterns where presence is known, if fewer than all; a bool for each party.", only=COPULA),
    ] = None
    clip: Annotated[
        Mapping[str, float] | None,
        Option(
            "The norm of a party's row of scores: less is less noise and more bias. May be repeated.",
            form="PARTY=NORM",
            only=COPULA,
        ),
    ] = None
    marginal_share: Annotated[
        float, Option("The share of the budget (of 1 / noise^2) for the marginals.", above=0, below=1, only=COPULA)
    ] = 0.1
    gamma: Annotated[
        int,
        Option(
            "The scale of quantisation: scores become integers of 1/gamma of their range; from 2^12 on rounding hardly"
            " costs anything.",
            only=COPULA,
        ),
    ] = 2**12
    expected: Annotated[Expected, replace(EXPECTED, only=COPULA)] = None

    # --- the field -------------------------------------------------------------------------------------------------

    cells: Annotated[
        int, Option("Cells of a numeric column without declared cuts.", least=1, most=10_000, only=FIELD)
    ] = 16
    cuts: Annotated[
        Literal["auto", "declared", "quantiles"],
        Option(
            "These cells have equal width, or their edges are at private quantiles, as by default where there is an"
            " epsilon.",
            only=FIELD,
        ),
    ] = "auto"
    bins: Annotated[
        int | None,
        Option(
            "Coarse bins of a column, of about equal mass; by default 8, or fewer where noise is large.",
            least=1,
            most=10_000,
            only=FIELD,
        ),
    ] = None
    max_clique: Annotated[
        int | None,
        Option(
            "The most cells of the triangulated graph's tables together: time and memory of the fit. By default"
            " 524,288, or 2.5 for each record if that is more, up to 1,048,576.",
            least=1,
            only=FIELD,
        ),
    ] = None
    split: Annotated[
        ListOf[float] | None,
        Option(
            "Shares of the budget of the three rounds (one-way tables, all pairs in coarse bins, selected tables);"
            " 0.1, 0.25 and 0.65 by default.",
            only=FIELD,
        ),
    ] = None
    moment_share: Annotated[
        float,
        Option(
            "The share of the budget (of 1 / noise^2) for second moments of the columns, which give intervals of means,"
            " least squares and logistic regression of numbers; 0.25 is a good one, 0 is none.",
            least=0,
            below=1,
            only=FIELD,
        ),
    ] = 0.0
    n_tables: Annotated[
        int | None,
        Option(
            "How many tables the last round measures (a table may get several of these units); 3.2 for each column by"
            " default.",
            least=1,
            only=FIELD,
        ),
    ] = None
    theta: Annotated[
        float,
        Option(
            "A pair is measured if what the field lacks of it exceeds this times what its noise adds to it.",
            least=0,
            only=FIELD,
        ),
    ] = 0.25
    theta_triples: Annotated[
        float | None,
        Option(
            "A triple of at most two parties is measured in place of its pairs if its cells hold this times the noise;"
            " none: no triples.",
            above=0,
            only=FIELD,
        ),
    ] = 4.0
    iterations: Annotated[int, Option("Of mirror descent, at most.", least=1, most=1_000_000, only=FIELD)] = 1500
    discrepancy: Annotated[
        float,
        Option(
            "The descent stops when its loss is this share of what noise makes it at the truth; 0: never.",
            least=0,
            only=FIELD,
        ),
    ] = 0.8

    def check(self) -> None:
        check_budget(self.epsilon, self.delta)
        if self.correlation == "em" and self.presence != "known":
            raise BadArguments('EM needs the moments of each pattern; choose presence="known", or correlation="pairs".')
        if self.patterns is not None and self.presence != "known":
            raise BadArguments('patterns of presence are used where it is known; choose presence="known".')
        if self.split is not None:
            check_split(self.split)
        if self.model == "auto" and (mine := self.of_one_model("copula")) and (others := self.of_one_model("field")):
            raise BadArguments(f"{mine[0]} belongs to the copula and {others[0]} to the field; leave one of them out.")

    def missing_data(self) -> str:
        if self.model == "field" or self.of_one_model("field"):
            return MISSING_DATA
        if self.model == "independent":
            return "A column's marginal is that of the records that have it: right if records are missing at random."
        if self.model == "auto" and not self.of_one_model("copula"):
            return (
                "Columns are measured together on the records that have all of them, whichever model it is: right if"
                " records are missing completely at random."
            )
        pairs = "a pair of columns is measured on the records that have both: right if records are missing completely"
        if self.presence == "secret" or self.correlation == "pairs":
            return f"{pairs.capitalize()} at random."
        em = "Records are grouped by which parties have them, and EM fits all groups together"
        left_out = "" if self.patterns is None else " Records of a pattern that is not declared are left out."
        if self.correlation == "em":
            return f"{em}: right if records are missing at random.{left_out}"
        return (
            f"{em}, where the noise is small enough: right if records are missing at random. Otherwise {pairs} at"
            f" random; the result says which it was.{left_out}"
        )

    def procedure(self, facts: PublicFacts, roster: Roster) -> Procedure[SyntheticTable]:
        columns = Columns(column for declared in facts.wanted(self.columns).values() for column in declared.values())
        constraints = Constraints.of(self.constraints or (), columns)
        return Chosen(choose(self, facts, roster), constraints)

    def of_one_model(self, model: str) -> list[str]:
        """The options that were given and have a meaning with this model only."""
        return [
            name
            for name, declared in self.declared().items()
            if declared.option.only == {"model": ("auto", model)} and getattr(self, name) != declared.default
        ]

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.synthesis.copula.attacks import copula_attacks
        from colonnade.synthesis.field.attacks import field_attacks

        return (*copula_attacks(), *field_attacks())


class Chosen(Procedure[SyntheticTable]):
    """The procedure of the chosen model; its table says which it is and why, and its rows satisfy the constraints."""

    def __init__(self, choice: Choice, constraints: Constraints) -> None:
        self.choice, self.constraints = choice, constraints
        self.stages = choice.procedure.stages
        facts = (
            f"In every row: {'; '.join(constraints.texts)}. A column that begins an equality is computed from the"
            " others; rows that break a fact are drawn anew.",
        )
        warning = (f"WARNING: {choice.warning}",) if choice.warning not in ("", choice.because) else ()
        constrained = facts if constraints.texts else ()
        self.notes = (choice.because, *warning, *constrained, f"Intervals: {choice.intervals}", *choice.procedure.notes)

    def run(self, job: Job) -> SyntheticTable:
        warnings = (self.choice.warning,) if self.choice.warning else ()
        table = replace(self.choice.procedure.run(job), because=self.choice.because, warnings=warnings)
        if not self.constraints.texts:
            return table
        redrawn = table.redrawn
        return replace(
            table,
            model=Restricted(table.model, self.constraints),
            redrawn=None if redrawn is None else RestrictedDraws(redrawn, self.constraints),
        )
