"""Moments by pattern, as the coordinator gets them and as a run folder keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.federation.run_folder import RunFolder
from colonnade.statistics.features import Feature
from colonnade.statistics.moment_layout import Presence

MAXIMUM_TEXT = 1 << 13
"""Entries that a result has as text; more are written as arrays."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """One Gram matrix per pattern, over `entries[pattern]`; "1" is the constant, so its row has count and sums.

    Features are in [-1, 1]; `features` says how to return to a column's own units. `noise_sd` is the standard
    deviation of the noise on one entry (0 if exact), independent between entries of the upper triangles.
    """

    n: int
    parties: tuple[str, ...]
    presence: Presence
    features: tuple[Feature, ...]
    patterns: tuple[tuple[bool, ...], ...]
    entries: tuple[tuple[str, ...], ...]
    grams: tuple[NDArray[np.float64], ...]
    noise_sd: float
    simulated: bool

    @property
    def counts(self) -> NDArray[np.float64]:
        """Noisy number of records in each pattern (where a constant was computed)."""
        return np.array([gram[0, 0] for gram in self.grams])

    def _available(self, feature: Feature) -> dict[str, Any]:
        """Count, sum and sum of squares of one feature over the records that have it, in [-1, 1]; and how to return."""
        total, patterns = np.zeros(3), 0
        for names, gram in zip(self.entries, self.grams, strict=True):
            mask = f"present at {feature.party}" if self.presence == "secret" else "1"
            if feature.name in names and mask in names:
                own, at = names.index(feature.name), names.index(mask)
                total += gram[at, at], gram[at, own], gram[own, own]
                patterns += 1
        count, once, square = total.tolist() if patterns else (None, None, None)
        return {
            "name": feature.name,
            "party": feature.party,
            "centre": feature.centre,
            "half": feature.half,
            "patterns": patterns,
            "count": count,
            "sum": once,
            "square": square,
        }

    def write(self, run: RunFolder) -> None:
        """result.json; matrices with too many entries to read as text go to grams.npz, one array for each pattern."""
        many = sum(one.size for one in self.grams) > MAXIMUM_TEXT
        if many:
            np.savez(run.path / "grams.npz", allow_pickle=False, **{f"{k}": one for k, one in enumerate(self.grams)})
        run.write_json(
            "result.json",
            {
                "kind": "moments",
                "n": self.n,
                "parties": list(self.parties),
                "presence": self.presence,
                "patterns": [list(one) for one in self.patterns],
                "entries": [list(one) for one in self.entries],
                "counts": self.counts.tolist() if self.entries[0][0] == "1" else None,
                "features": [self._available(one) for one in self.features],
                "grams": "grams.npz" if many else [one.tolist() for one in self.grams],
                "noise_sd": self.noise_sd,
                "simulated": self.simulated,
            },
        )
