"""What a completion returns: how it went, how good it is, and where each party has its completed table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from colonnade.completion.quality import fails, floor_name
from colonnade.errors import RunError
from colonnade.federation.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class FedPSGResult:
    """`parties`: {party: file, number of completed records, quality on hidden records}.

    The tables themselves are in the parties' folders. `table` reads one where the party runs on this machine; `homes`
    are the folders of those.
    """

    options: Mapping[str, Any]
    n: int
    parties: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, int]
    chosen: Mapping[str, tuple[str, ...]]
    histories: Mapping[str, Any]
    downstream: Mapping[str, Any]
    cost: str
    simulated: bool
    homes: Mapping[str, Path] = field(default_factory=dict)

    def quality(self, party: str) -> Mapping[str, Any]:
        """RMSE beside its floors, marginal and pairwise distance of a party's completed entries, on hidden records."""
        found: Mapping[str, Any] = self._of(party)["quality"]
        return found

    @property
    def failing(self) -> tuple[str, ...]:
        """The parties whose completed entries are no nearer to the truth, on hidden records, than their means; where
        values were drawn, than a random record of theirs. A party about which this cannot be told is among them."""
        if self._means:
            return ()
        return tuple(party for party in self.parties if fails(self.quality(party), self._floor))

    @property
    def failing_columns(self) -> dict[str, tuple[str, ...]]:
        """{party: its columns of which the same is true, each taken alone}, of the parties that have any. A column that
        was drawn is held against a random record, another one against its mean."""
        found = {
            party: tuple(name for name, one in self.quality(party)["columns"].items() if self._fails(party, name, one))
            for party in self.parties
        }
        return {party: names for party, names in found.items() if names}

    def _fails(self, party: str, column: str, told: Mapping[str, Any]) -> bool:
        drawn = column in self.chosen.get(party, ())
        if self.options["imputer"] == "mean" and not drawn:
            return False
        return fails(told, floor_name(imputer=self.options["imputer"], n_correlated=int(drawn)))

    @property
    def _means(self) -> bool:
        """Means were asked for, and are no better than means."""
        return self.options["imputer"] == "mean" and not self.options["n_correlated"]

    @property
    def _floor(self) -> str:
        return floor_name(imputer=self.options["imputer"], n_correlated=self.options["n_correlated"])

    def table(self, party: str) -> pd.DataFrame:
        """A party's completed table: its columns, each followed by one that says which entries were generated."""
        return self._read(party, self._of(party)["file"])

    def expected(self, party: str) -> pd.DataFrame:
        """A party's completed records before one value was chosen: numbers scaled to [0, 1] by their declared range,
        and a frequency for each category."""
        return self._read(party, self._of(party)["expected"])

    def _read(self, party: str, name: str) -> pd.DataFrame:
        if party not in self.homes or not (self.homes[party] / name).is_file():
            raise RunError(f"the completed table of {party!r} is in that party's own folder, as {name}; read it there.")
        path = self.homes[party] / name
        if path.suffix == ".csv":  # a category may be called NA; a key may be too long for a float
            return pd.read_csv(path, keep_default_na=False, na_values=[""], dtype_backend="numpy_nullable")
        return pd.read_parquet(path)

    def _of(self, party: str) -> Mapping[str, Any]:
        if party not in self.parties:
            raise RunError(f"{party!r} was not completed; completed are {', '.join(self.parties)}.")
        return self.parties[party]

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "completion",
                "options": dict(self.options),
                "n": self.n,
                "parties": _told(self.parties),
                "missing": dict(self.missing),
                "chosen": {party: list(names) for party, names in self.chosen.items()},
                "histories": dict(self.histories),
                "downstream": dict(self.downstream),
                "failing": list(self.failing),
                "failing columns": {party: list(names) for party, names in self.failing_columns.items()},
                "cost": self.cost,
                "simulated": self.simulated,
            },
        )


def _told(value: Any) -> Any:
    """As JSON has it: a figure that does not exist (of too few hidden records, say) is null."""
    if isinstance(value, Mapping):
        return {name: _told(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
