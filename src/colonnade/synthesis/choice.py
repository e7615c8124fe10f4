"""Which model a table gets, decided before any data is touched: from the declared columns, n and epsilon alone.

Two forecasts decide. *q*: how far noise alone moves a table of two columns in coarse bins (in total variation
distance), from which a field learns what depends on what. *r*: the noise of one correlation in a copula.

- A column without order (categorical), or more: the field if q <= 0.5, else independent marginals.
- No such column, but listed ones (binary, ordinal): the field if q <= 0.2, else the copula if r <= 0.05, else
  independent marginals.
- Numbers only: the copula if r <= 0.05, else independent marginals.

The limits come from Adult and Bank (all columns, ordered ones, numbers; 3,000 to 30,000 records; epsilon 0.5 to 3; one
run each). In tables of two columns the field was nearer to the records than independent marginals at all q up to 0.15,
at 0.2 and 0.42, and further at 0.18 (numbers), 0.22, 0.27, 0.32 and from 0.59 on. The copula's correlations were nearer
than none up to an r of 0.03; from 0.06 on its marginals were ruined too. On mixed tables with q <= 0.2 rows of the
field train classifiers that are as good as the copula's or better (AUC .89 to .91 against .83 to .87 with all columns);
on numbers the copula has the better correlations.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from colonnade.federation.facts import PublicFacts
from colonnade.federation.method import Procedure
from colonnade.federation.roster import Roster
from colonnade.synthesis.copula.estimate import forecast
from colonnade.synthesis.copula.procedure import CopulaSynthesis
from colonnade.synthesis.field.procedure import BINS, FieldSynthesis
from colonnade.synthesis.table import SyntheticTable

if TYPE_CHECKING:
    from colonnade.synthesis.method import Synthesize

Model = Literal["copula", "field", "independent"]

WITHOUT_ORDER, LISTED = 0.5, 0.2
"""The largest q at which a field is fitted: with columns that a copula has no way of, and where it has one."""
CORRELATIONS = 0.05
"""The largest r at which a copula is fitted."""


@dataclass(frozen=True)
class Choice:
    """The procedure of a model; why it was chosen, for the plan and the first lines of the result; and what the reader
    must be warned of, if anything."""

    procedure: Procedure[SyntheticTable]
    because: str
    warning: str = ""


def choose(options: Synthesize, facts: PublicFacts, roster: Roster) -> Choice:
    """The model that was asked for, or the one that the rule gives."""
    columns = [column for own in facts.wanted(options.columns).values() for column in own.values()]
    nominal = [column.name for column in columns if column.kind == "categorical"]
    names = f"{', '.join(nominal[:3])}{' and others' if len(nominal) > 3 else ''}"

    def field() -> FieldSynthesis:
        return FieldSynthesis(replace(options, model="field"), facts, roster)

    def copula(model: Literal["copula", "independent"] = "copula") -> CopulaSynthesis:
        return CopulaSynthesis(replace(options, model=model), facts, roster)

    if options.model == "independent":
        return Choice(copula("independent"), "Model: independent marginals, as asked for.")
    if options.model == "field":
        asked = field()
        q = pair_noise(asked)
        warning = (
            "By its forecast the field is worse than independent marginals: noise alone moves a table of two columns"
            f" by {q:.2g}."
        )
        return Choice(asked, "Model: a Markov random field, as asked for.", warning if q > WITHOUT_ORDER else "")
    if options.model == "copula":
        warning = (
            f"A copula keeps only the association along the declared order of the categories of {names}; a field keeps"
            " all of it."
        )
        return Choice(copula(), "Model: a Gaussian copula, as asked for.", warning if nominal else "")
    if mine := options.of_one_model("copula"):
        return Choice(copula(), f"Model: a Gaussian copula, because {', '.join(mine)} belongs to it.")
    if mine := options.of_one_model("field"):
        return Choice(field(), f"Model: a Markov random field, because {', '.join(mine)} belongs to it.")
    listed = any(column.discrete for column in columns)
    noise = ""
    if listed:
        fitted = field()
        q, most = pair_noise(fitted), WITHOUT_ORDER if nominal else LISTED
        noise = f"noise alone would move a table of two columns by {q:.2g} (total variation; at most {most})"
        if q <= most:
            kinds = f"{names} has no order" if len(nominal) == 1 else f"{names} have no order"
            why = kinds if nominal else "the table has numbers and categories"
            return Choice(fitted, f"Model: a Markov random field, because {why}, and {noise}.")
    if not nominal:
        other = copula()
        r = correlation_noise(other)
        states = f"noise moves a correlation by {r:.2g} (at most {CORRELATIONS})"
        if r <= CORRELATIONS:
            why = f"{noise}, and {states}" if noise else f"all columns are numbers, and {states}"
            return Choice(other, f"Model: a Gaussian copula, because {why}.")
        noise = f"{noise}, and {states}" if noise else states
    worse = "Model: independent marginals, because anything else would be worse by its own forecast"
    why = f"{worse}: {noise}. Rows show no dependence; raise epsilon, or take fewer columns."
    return Choice(copula("independent"), why, why)


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
