"""A stated cost as the curve that an audit tests, and a small simulated consortium to state costs for."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from colonnade.audit.bounds import PrivacyProfile, profile_from_pld, profile_from_rdp
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.privacy.accounting import ORDERS, composed_pld, has_pld, kinds_of, rdp_sum
from colonnade.privacy.cost import Cost

AGE = Column(name="age", kind="continuous", lower=0.0, upper=100.0)
COLUMNS = Columns(
    [
        AGE,
        Column(name="sector", kind="categorical", categories=("farming", "trade", "mining")),
        Column(name="sued", kind="binary", categories=("no", "yes")),
        Column(name="rating", kind="ordinal", categories=("C", "B", "A")),
    ]
)


def claimed_curve(costs: Iterable[Cost], *, name: str) -> PrivacyProfile:
    """What these costs claim under zero-out: the exact privacy loss where it is known, otherwise Renyi divergences."""
    kinds = kinds_of(costs)
    curve = rdp_sum(kinds)
    if has_pld(kinds, curve):
        return profile_from_pld(composed_pld(kinds), name=name)
    return profile_from_rdp(ORDERS.tolist(), curve.tolist(), name=name)


@contextlib.contextmanager
def small_consortium(*, allow: Sequence[str] = ()) -> Iterator[Federation]:
    """Three parties with all records; nobody's data matters, the public facts do."""
    rng, records = np.random.default_rng(0), 60
    keys = [f"K{i:05d}" for i in range(records)]
    blocks = {
        "clinic": pd.DataFrame({"id": keys, "age": rng.uniform(0, 100, records)}),
        "court": pd.DataFrame({"id": keys, "sued": rng.choice(["no", "yes"], records)}),
        "bank": pd.DataFrame(
            {
                "id": keys,
                "sector": rng.choice(["farming", "trade"], records),
                "rating": rng.choice(list("CBA"), records),
            }
        ),
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        Federation.local(
            blocks,
            key="id",
            columns=COLUMNS,
            home=Path(folder) / "home",
            runs=Path(folder) / "runs",
            seed=0,
            allow=allow,
        ) as federation,
    ):
        yield federation
