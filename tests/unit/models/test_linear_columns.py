"""Which covariates a regression takes, and what is said where there are too many features."""

from __future__ import annotations

import re

import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.models.linear.estimate import regression_columns


def test_too_many_features_name_the_columns_to_leave_out() -> None:
    wide = {"town": 100, "trade": 60, "size": 3}
    columns = [Column(name=name, kind="categorical", categories=tuple(map(str, range(k)))) for name, k in wide.items()]
    columns.append(Column(name="rent", kind="continuous", lower=0.0, upper=1.0))
    facts = PublicFacts(n=10, columns={"a": Columns(columns)})
    with pytest.raises(BadArguments, match=re.escape("columns 'town' (99) have the most: leave them out")):
        regression_columns(facts, "rent", None)
    assert regression_columns(facts, "rent", ("trade", "size")) == ("trade", "size", "rent")
