"""What an alignment tells: n and noisy pattern counts to the coordinator; exact numbers stay with who may have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data.cohort import Cohort
from colonnade.federation.run_folder import RunFolder

OVERLAP = "overlap.json"
"""In a party's own folder of the alignment: exact numbers, which stay there."""


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """A cohort of n records, with a noisy count of each presence pattern (None without a report).

    `patterns[i]` are the counts of the pattern in which exactly the parties whose bit is set in i have the record; the
    first party is the lowest bit.
    """

    n: int
    include: str
    matcher: str
    parties: tuple[str, ...]
    patterns: NDArray[np.int64] | None
    noise_sd: float
    simulated: bool

    def overlap(self, parties: Sequence[str]) -> float:
        """The noisy number of records that all of these parties have."""
        if self.patterns is None:
            raise ValueError("this alignment made no report; run it with an epsilon.")
        wanted = sum(1 << self.parties.index(party) for party in parties)
        return float(sum(count for index, count in enumerate(self.patterns.tolist()) if index & wanted == wanted))

    def rows(self) -> list[tuple[tuple[str, ...], int]]:
        """(who has the record, noisy count) for each pattern that can occur."""
        if self.patterns is None:
            return []
        return [
            (tuple(party for bit, party in enumerate(self.parties) if index >> bit & 1), count)
            for index, count in enumerate(self.patterns.tolist())
            if possible(index, self.parties, self.include)
        ]

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "alignment",
                "n": self.n,
                "include": self.include,
                "matcher": self.matcher,
                "parties": list(self.parties),
                "patterns": [{"parties": list(names), "count": count} for names, count in self.rows()],
                "noise_sd": self.noise_sd,
                "simulated": self.simulated,
            },
        )


def possible(index: int, parties: Sequence[str], include: str) -> bool:
    """Somebody has every record; in a fixed cohort its party has."""
    return bool(index >> parties.index(include) & 1) if include in parties else index > 0


def pattern_counts(cohort: Cohort, parties: Sequence[str]) -> NDArray[np.int64]:
    """Exact counts of all 2^K patterns, in the order of `Aligned.patterns`."""
    columns = [cohort.parties.index(party) for party in parties]
    index = cohort.presence[:, columns] @ (1 << np.arange(len(columns), dtype=np.int64))
    return np.bincount(index, minlength=2 ** len(columns)).astype(np.int64)


def write_overlap(folder: Path, plain: dict[str, Any]) -> None:
    """Exact numbers, for the operator of the party whose folder this is."""
    folder.mkdir(parents=True, exist_ok=True)
    known = json.loads((folder / OVERLAP).read_text()) if (folder / OVERLAP).is_file() else {}
    kept = known if known.get("cohort") == plain["cohort"] else {}
    partial = folder / f"{OVERLAP}.partial"
    partial.write_text(json.dumps({**kept, **plain}, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / OVERLAP)
