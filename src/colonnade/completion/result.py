"""What a completion returns: how it went, how good it is, and where each party has its completed table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from colonnade.completion.quality import floor_name
from colonnade.errors import RunError
from colonnade.federation.run_folder import RunFolder

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation


@dataclass(frozen=True, kw_only=True)
class FedPSGResult:
    """`parties`: {party: file, number of completed records, quality on hidden records}.

    The tables themselves are in the parties' folders. `table` reads one where the party runs on this machine.
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
        values were drawn, than a random record of theirs."""
        if self.options["imputer"] == "mean" and not self.options["n_correlated"]:
            return ()
        floor = floor_name(imputer=self.options["imputer"], n_correlated=self.options["n_correlated"])
        return tuple(party for party in self.parties if not self.quality(party)["rmse"] < self.quality(party)[floor])

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
        return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)

    def _of(self, party: str) -> Mapping[str, Any]:
        if party not in self.parties:
            raise RunError(f"{party!r} was not completed; completed are {', '.join(self.parties)}.")
        return self.parties[party]

    def located(self, federation: Federation) -> FedPSGResult:
        """The same with the folders of the parties on this machine; a party names its log in its own folder."""
        homes = {party: Path(federation.transport.where(party)).parent for party in self.parties}
        return replace(self, homes={party: home for party, home in homes.items() if home.is_dir()})

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "completion",
                "options": dict(self.options),
                "n": self.n,
                "parties": {party: dict(one) for party, one in self.parties.items()},
                "missing": dict(self.missing),
                "chosen": {party: list(names) for party, names in self.chosen.items()},
                "histories": dict(self.histories),
                "downstream": dict(self.downstream),
                "failing": list(self.failing),
                "cost": self.cost,
                "simulated": self.simulated,
            },
        )
