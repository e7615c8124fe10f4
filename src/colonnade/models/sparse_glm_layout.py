"""The public shape of a sparse GLM over a federation: who holds what, and what each member may ask of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from colonnade.data.column import Column
from colonnade.errors import BadArguments, SchemaError, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Roster
from colonnade.models.sparse_path import Family, check_family
from colonnade.privacy.cost import Cost, Unbounded
from colonnade.statistics.features import Feature, features
from colonnade.statistics.secure_sum import SecureSum

Exchange = Literal["masked", "plain"]

LARGEST_PREDICTOR = 2.0**16
"""Largest linear predictor of a party: exp(700) overflows already, and masked sums are exact to 2^-40 within it."""


@dataclass(frozen=True, kw_only=True)
class SparseLayout:
    """`columns` are the covariates; `holder` has the response. Everybody computes the rest alike from public facts."""

    facts: PublicFacts
    roster: Roster
    family: Family
    response: str
    columns: tuple[str, ...]
    folds: int
    exchange: Exchange = "masked"

    @classmethod
    def from_dict(cls, facts: PublicFacts, roster: Roster, plain: Mapping[str, Any]) -> SparseLayout:
        """The layout that a request describes, checked before anything depends on it."""
        try:
            made = cls(
                facts=facts,
                roster=roster,
                family=cast(Family, str(plain["family"])),
                response=str(plain["response"]),
                columns=tuple(str(name) for name in plain["columns"]),
                folds=int(plain["folds"]),
                exchange=plain["exchange"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadArguments(f"the layout of a sparse GLM request cannot be read ({error}).") from error
        made.check()
        return made

    def to_dict(self) -> dict[str, Any]:
        return {
            "family": self.family,
            "response": self.response,
            "columns": list(self.columns),
            "folds": self.folds,
            "exchange": self.exchange,
        }

    def check(self) -> None:
        check_family(self.family)
        if self.exchange not in get_args(Exchange):
            raise BadArguments(f"exchange must be 'masked' or 'plain', not {self.exchange!r}.")
        check_response(self.facts.column(self.response), self.family)
        if self.response in self.columns or not self.features:
            raise BadArguments("the covariates must be at least one column other than the response.")
        if self.exchange == "masked" and len(self.others) < 2:
            raise UnsafeRequest(
                f"only {len(self.others)} party besides {self.holder!r} holds covariates: the total predictor shows its"
                " own; add a party, or say exchange='plain' and allow 'party-predictor'."
            )

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        return tuple(features(self.facts, self.columns))

    @cached_property
    def holder(self) -> str:
        return self.facts.owner(self.response)

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """The holder, then every other party with covariates."""
        return (self.holder, *self.others)

    @cached_property
    def others(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.party for one in self.features if one.party != self.holder))

    @property
    def senders(self) -> tuple[str, ...]:
        """Who sends to the holder in each round: every member, as pads are between all of them; or the parties."""
        return self.roster.names if self.exchange == "masked" else self.parties

    def width(self, party: str) -> int:
        return sum(one.party == party for one in self.features)

    def place(self, party: str) -> NDArray[np.intp]:
        """Where a party's features are among all."""
        return np.flatnonzero([one.party == party for one in self.features])

    @cached_property
    def total(self) -> SecureSum:
        """The masked sum of linear predictors, one entry a record of the cohort."""
        return SecureSum.exact(label="total predictor", size=self.facts.n, bound=LARGEST_PREDICTOR, roster=self.roster)

    @cached_property
    def scale(self) -> tuple[float, float]:
        """(centre, half): a gaussian response is computed with as (y - centre) / half, both public."""
        if self.family != "gaussian":
            return 0.0, 1.0
        (feature,) = features(self.facts, (self.response,))
        return feature.centre, feature.half

    # --- what leaves ----------------------------------------------------------------------------------------------

    def predictor_cost(self, job: str) -> Cost:
        if self.exchange == "plain":
            return Unbounded(
                "party-predictor",
                "each party's own linear predictor, record by record, in every round",
                audience=f"response holder {self.holder}",
            )
        return Unbounded(
            "total-predictor",
            "the sum of all parties' linear predictors, record by record, in every round that mixes two other parties'",
            audience=f"response holder {self.holder}",
            joint=f"{job} total predictor",
        )

    def residual_cost(self) -> Cost:
        return Unbounded(
            "response-residuals",
            "response less fitted mean, record by record, in every round: the parties with covariates can work out"
            " the response and the total predictor",
            audience="parties with covariates",
        )


def check_response(column: Column, family: Family) -> None:
    """The response must be of its family, and have no empty cells."""
    wanted = {
        "gaussian": ("continuous", "count", "ordinal", "binary"),
        "binomial": ("binary",),
        "poisson": ("count",),
    }[family]
    if column.kind not in wanted:
        raise SchemaError(
            f"the response {column.name!r} is {column.kind}; family={family!r} needs {' or '.join(wanted)}."
        )
    if column.missing:
        raise SchemaError(
            f"the response {column.name!r} may have empty cells; give its holder only the records that have it, and"
            " delete `missing = true` in columns.toml."
        )
