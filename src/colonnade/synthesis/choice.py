"""Which model a table gets, decided before any data is touched: from the declared columns, n and epsilon alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from colonnade.federation.facts import PublicFacts

if TYPE_CHECKING:
    from colonnade.synthesis.method import Synthesize

Model = Literal["copula", "field", "independent"]


@dataclass(frozen=True)
class Choice:
    """The model, and why, in a sentence for the plan and the first lines of the result."""

    model: Model
    because: str


def choose(options: Synthesize, facts: PublicFacts) -> Choice:
    """The model that was asked for, or the one that the rule gives."""
    if options.model != "auto":
        return Choice(options.model, f"Model: {options.model}, as asked for.")
    columns = [column for own in facts.wanted(options.columns).values() for column in own.values()]
    nominal = [column.name for column in columns if column.kind == "categorical"]
    if nominal:
        return Choice("field", "Model: a Markov random field.")
    return Choice("copula", "Model: a Gaussian copula.")
