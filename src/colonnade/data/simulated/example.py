"""What a simulation returns: the parties' blocks, the public columns, and the truth that no party would know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.column import Columns, Kind
from colonnade.errors import SourceError


@dataclass(frozen=True, kw_only=True, eq=False)
class Equation:
    """How a response was drawn: its family, and its coefficients on the columns of `design_matrix`.

    A coefficient is per unit of the design column, so it does not depend on the sample. `noise` is the
    standard deviation of a gaussian response's error, and None for a binomial one (logit link).
    """

    response: str
    family: Literal["gaussian", "binomial"]
    intercept: float
    coefficients: pd.Series[float]
    noise: float | None = None

    def predictor(self, design: pd.DataFrame) -> NDArray[np.float64]:
        """intercept + design x coefficients."""
        names = list(self.coefficients.index)
        slope: NDArray[np.float64] = design[names].to_numpy(np.float64) @ self.coefficients.to_numpy(np.float64)
        return self.intercept + slope


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """The table before anything went missing, who has which record, and the equations of the responses."""

    complete: pd.DataFrame
    presence: pd.DataFrame
    equations: dict[str, Equation]
    columns: Columns

    @property
    def coefficients(self) -> pd.Series[float]:
        """Of the first response, per unit of each column of `design`."""
        return next(iter(self.equations.values())).coefficients

    @property
    def standardised(self) -> pd.Series[float]:
        """The same, per standard deviation of each design column in the complete table."""
        scale = self.design().std(ddof=0)
        return (self.coefficients * scale[self.coefficients.index]).rename("standardised")

    def design(self) -> pd.DataFrame:
        """The complete covariates as numbers (`design_matrix`), one row for each row of `complete`."""
        return design_matrix(self.complete, self.columns, leave_out=list(self.equations))


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """One simulated consortium.

    Each block has the key, its columns and only the records that its party has, in an order of its own.
    """

    name: str
    key: str
    blocks: dict[str, pd.DataFrame]
    columns: Columns
    organisations: dict[str, str]
    responses: dict[str, Kind]
    response_holder: str
    truth: Truth
    seed: int
    description: str

    @property
    def n(self) -> int:
        """The number of simulated records, at whatever party."""
        return len(self.truth.complete)

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self.blocks)


def design_matrix(table: pd.DataFrame, columns: Columns, *, leave_out: Sequence[str] = ()) -> pd.DataFrame:
    """The declared columns of `table` as numbers, in declared order.

    Continuous and count columns keep their values. Binary and ordinal ones become their codes 0, 1, ... A
    categorical column becomes one indicator for each category but the first, named `region[east]`.
    """
    parts: dict[str, NDArray[np.float64]] = {}
    for name, column in columns.items():
        if name not in table.columns or name in leave_out:
            continue
        codes = column.encode(table[name])
        if column.kind != "categorical":
            parts[name] = codes.astype(np.float64)
            continue
        for code, category in enumerate(column.categories or ()):
            if code > 0:
                parts[f"{name}[{category}]"] = (codes == code).astype(np.float64)
    return pd.DataFrame(parts, index=table.index)


def record_keys(n: int, letter: str, rng: np.random.Generator) -> list[str]:
    """`n` different keys like F000123, in an order that says nothing."""
    return [f"{letter}{number:06d}" for number in rng.permutation(n)]


def cut_into_blocks(
    complete: pd.DataFrame,
    held: Mapping[str, Sequence[str]],
    presence: pd.DataFrame,
    *,
    key: str,
    rng: np.random.Generator,
) -> dict[str, pd.DataFrame]:
    """Each party's columns of the records that it has, rows shuffled anew for each party."""
    blocks = {}
    for party, names in held.items():
        rows = rng.permutation(np.flatnonzero(presence[party].to_numpy()))
        blocks[party] = complete[[key, *names]].iloc[rows].reset_index(drop=True)
    return blocks


# --- a simulated consortium as files: one CSV a party, columns.toml, federation.toml ----------------------


def write_example(example: Example, folder: str | Path, *, allow: tuple[str, ...] = ("alignment", "presence")) -> Path:
    """Write the parties' blocks and what they declare, and return the path of the federation.toml.

    `allow` are the releases without a bound that all parties accept.

        write_example(five_institutions(2000), "firms")  # firms/federation.toml
    """
    where = Path(folder)
    if (where / "federation.toml").exists():
        raise SourceError(f"{where / 'federation.toml'} exists already; name a new folder.")
    where.mkdir(parents=True, exist_ok=True)
    named = ", ".join(f'"{name}"' for name in allow)
    lines = [f'key = "{example.key}"', 'columns = "columns.toml"', f"allow = [{named}]"]
    for party, frame in example.blocks.items():
        frame.to_csv(where / f"{party}.csv", index=False)
        lines += ["", f"[parties.{party}]", f'source = "{party}.csv"']
        lines += [f'organisation = "{example.organisations[party]}"'] if party in example.organisations else []
    (where / "columns.toml").write_text(example.columns.to_toml(), encoding="utf-8")
    path = where / "federation.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
