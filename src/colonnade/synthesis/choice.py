"""Which model a table gets, decided before any data is touched: from the declared columns, n and epsilon alone.

Two forecasts decide. *q*: how far noise alone moves a table of two columns in coarse bins (in total variation
distance), from which a field learns what depends on what. *r*: the noise of one correlation in a copula.

- A column without order (categorical), or more: the field if q <= 0.6, else independent marginals.
- No such column, but listed ones (binary, ordinal): the field if q <= 0.4, else the copula if r <= 0.05, else
  independent marginals.
- Numbers only: the copula if r <= 0.05, else independent marginals.
- Options that belong to one model leave that model or independent marginals to choose from, within the same limits.

A model that is asked for by name is fitted whatever its forecast: to spend a budget on another one than was named would
be a surprise that cannot be undone. Plan and result then say first that independent marginals are forecast to be
better.

The limits of q come from Adult and Bank (all columns, and the ordered ones; 2,000 and 4,000 records; epsilon 0.3 to
3; three draws each). Up to these limits the field's tables of two and of three columns were as near to the records as
those of independent marginals or nearer, in the mean of both data sets (0.6, all columns: nearer on Adult, level on
Bank; 0.4, ordered columns: nearer on Adult, further on Bank), its associations about half as far off, and trees
trained on its rows had an AUC of .60 to .86, where independent rows teach nothing. Its marginals were further off, by
about a hundredth. From 0.7 on nothing but associations was nearer. The copula's correlations were nearer than none up
to an r of 0.03; from 0.06 on its marginals were ruined too (one run each). The limits were 0.5 and 0.2 until the
study `tables-mixed` showed rand_hie with independent marginals at a q of 0.53.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.synthesis.copula.estimate import forecast
from colonnade.synthesis.copula.procedure import CopulaSynthesis
from colonnade.synthesis.field.procedure import BINS, FieldSynthesis
from colonnade.synthesis.table import COPULA_INTERVALS, FIELD_INTERVALS, INDEPENDENT_INTERVALS

if TYPE_CHECKING:
    from colonnade.synthesis.method import Synthesize

Model = Literal["copula", "field", "independent"]

WITHOUT_ORDER, LISTED = 0.6, 0.4
"""The largest q at which a field is fitted: with columns that a copula has no way of, and where it has one."""
CORRELATIONS = 0.05
"""The largest r at which a copula is fitted."""
MODELS = ("copula", "field")
NAMED = 'A model that is asked for by name is fitted all the same; model="auto" takes independent marginals.'


@dataclass(frozen=True)
class Choice:
    """The procedure of a model; why it was chosen, for the plan and the first lines of the result; and what the reader
    must be warned of, if anything."""

    procedure: FieldSynthesis | CopulaSynthesis
    because: str
    warning: str = ""

    @property
    def intervals(self) -> str:
        """For which estimates the table will have valid intervals."""
        if isinstance(self.procedure, FieldSynthesis):
            return FIELD_INTERVALS
        return INDEPENDENT_INTERVALS if self.procedure.options.model == "independent" else COPULA_INTERVALS


def choose(options: Synthesize, facts: PublicFacts, roster: Roster) -> Choice:
    """The model that was asked for, or the one that the rule gives."""
    columns = [column for own in facts.wanted(options.columns).values() for column in own.values()]
    nominal = [column.name for column in columns if column.kind == "categorical"]
    names = f"{', '.join(nominal[:3])}{' and others' if len(nominal) > 3 else ''}"

    order_only = (
        (
            f"A copula keeps only the association along the declared order of the categories of {names}; a field keeps"
            " all of it.",
        )
        if nominal
        else ()
    )

    def field() -> FieldSynthesis:
        return FieldSynthesis(replace(options, model="field"), facts, roster)

    def copula() -> CopulaSynthesis:
        return CopulaSynthesis(replace(options, model="copula"), facts, roster)

    def independent() -> CopulaSynthesis:
        """Options of a model that is not fitted are not used."""
        declared = options.declared()
        unused = {name: declared[name].default for model in MODELS for name in options.of_one_model(model)}
        return CopulaSynthesis(replace(options, model="independent", **unused), facts, roster)

    if options.model == "independent":
        return Choice(independent(), "Model: independent marginals, as asked for.")
    if options.model == "field":
        asked = field()
        q = pair_noise(asked)
        warning = (
            "By its forecast the field is worse than independent marginals: noise alone moves a table of two columns"
            f" by {q:.2g} (at most {WITHOUT_ORDER}). {NAMED}"
        )
        return Choice(asked, "Model: a Markov random field, as asked for.", warning if q > WITHOUT_ORDER else "")
    if options.model == "copula":
        named = copula()
        warnings = list[str]()
        if (r := correlation_noise(named)) > CORRELATIONS:
            warnings.append(
                "By its forecast the copula is worse than independent marginals: noise moves a correlation by"
                f" {r:.2g} (at most {CORRELATIONS}). {NAMED}"
            )
        return Choice(named, "Model: a Gaussian copula, as asked for.", " ".join((*warnings, *order_only)))
    of_copula, of_field = options.of_one_model("copula"), options.of_one_model("field")
    forecasts = []
    if not of_copula and (of_field or any(column.discrete for column in columns)):
        fitted = field()
        q, most = pair_noise(fitted), WITHOUT_ORDER if nominal else LISTED
        forecasts.append(f"noise alone would move a table of two columns by {q:.2g} (total variation; at most {most})")
        if q <= most:
            kinds = f"{names} has no order" if len(nominal) == 1 else f"{names} have no order"
            why = kinds if nominal else "the table has numbers and categories"
            why = f"{', '.join(of_field)} belongs to it" if of_field else why
            return Choice(fitted, f"Model: a Markov random field, because {why}, and {forecasts[0]}.")
    if of_copula or not (nominal or of_field):
        other = copula()
        r = correlation_noise(other)
        forecasts.append(f"noise moves a correlation by {r:.2g} (at most {CORRELATIONS})")
        if r <= CORRELATIONS:
            why = f"{', '.join(of_copula)} belongs to it" if of_copula else "all columns are numbers"
            stated = forecasts if len(forecasts) > 1 else [why, *forecasts]
            return Choice(other, f"Model: a Gaussian copula, because {', and '.join(stated)}.", *order_only)
    unused = ", ".join((*of_copula, *of_field))
    said = f" {unused} {'are' if len((*of_copula, *of_field)) > 1 else 'is'} not used." if unused else ""
    why = (
        "Model: independent marginals, because anything else would be worse by its own forecast:"
        f" {', and '.join(forecasts)}.{said} Rows show no dependence; raise epsilon, or take fewer columns."
    )
    return Choice(independent(), why, why)


def pair_noise(field: FieldSynthesis) -> float:
    """q: noise of sd s moves a table of k cells by half of its mean absolute value, 0.4 s k / n, on average."""
    if len(field.rounds.mus) < 2:
        return 0.0
    bins = [min(field.options.bins or BINS, size) for size in field.schema.sizes.values()]
    cells = float(np.mean([a * b for a, b in itertools.combinations(bins, 2)]))
    return 0.4 * math.sqrt(2 * field.rounds.mus[1]) * cells / field.facts.n


def correlation_noise(copula: CopulaSynthesis) -> float:
    """r, if all records are shared."""
    layout = copula.releases.layout
    return float(forecast(layout.noise_sd, layout.facts.n)) if layout.mu else 0.0
