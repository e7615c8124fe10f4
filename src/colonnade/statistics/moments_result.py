"""What a computation of moments gives: Gram matrices by pattern, what they say of available cases, and the report."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.durable import whole_file
from colonnade.errors import BadArguments
from colonnade.federation.method import Counted, Result
from colonnade.federation.options import Presence
from colonnade.federation.run_folder import RunFolder
from colonnade.formatting import digits, number, of_exactly, rough, with_noise
from colonnade.statistics.features import Feature
from colonnade.statistics.gaussian_em import Pattern, PatternStatistics
from colonnade.view.blocks import Block, Heading, Section, Table, Text, View

MAXIMUM_TEXT = 1 << 13
"""Entries that a result has as text; more are written as arrays."""
SHOWN_ENTRIES = 40
"""Rows and columns of a matrix in the report."""


@dataclass(frozen=True, kw_only=True)
class MomentsResult(Result):
    """One Gram matrix per pattern, over `entries[pattern]`; "1" is the constant, so its row has count and sums.

    Features are in [-1, 1]; `features` says how to return to a column's own units. `noise_sd` is the standard
    deviation of the noise on one entry (0 if exact), independent between entries of the upper triangles.
    """

    kind: ClassVar[str] = "moments"

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
        return np.array([matrix[0, 0] for matrix in self.grams])

    def having(self, name: str) -> MomentsResult:
        """Only the patterns in which an entry is observed."""
        places = [place for place, names in enumerate(self.entries) if name in names]
        return replace(
            self,
            patterns=tuple(self.patterns[place] for place in places),
            entries=tuple(self.entries[place] for place in places),
            grams=tuple(self.grams[place] for place in places),
        )

    def by_fold(self, folds: int) -> list[MomentsResult]:
        """Those of each fold, of a layout that has them."""
        size = len(self.grams) // folds
        parts = [slice(start, start + size) for start in range(0, len(self.grams), size)]
        return [
            replace(self, patterns=self.patterns[part], entries=self.entries[part], grams=self.grams[part])
            for part in parts
        ]

    def sufficient(self) -> PatternStatistics:
        """For the likelihood of a Gaussian: the sums and products of each pattern that occurs, of exact moments."""
        names = tuple(feature.name for feature in self.features)
        patterns = []
        for entries, gram in zip(self.entries, self.grams, strict=True):
            if gram[0, 0] > 0.5:
                observed = np.array([names.index(name) for name in entries[1:]], dtype=np.intp)
                patterns.append(Pattern(observed, float(gram[0, 0]), gram[0, 1:], gram[1:, 1:]))
        return PatternStatistics(names, tuple(patterns))

    def mask_of(self, feature: Feature) -> str:
        """The entry that counts the records which have a feature, in a matrix with masks."""
        filled = f"filled {feature.column}"
        return filled if filled in self._first_entries else f"present at {feature.party}"

    @cached_property
    def _first_entries(self) -> frozenset[str]:
        return frozenset(self.entries[0])

    @property
    def empty_cells(self) -> dict[str, float]:
        """The noisy number of empty cells of each column with a mask of its own, among its party's records."""
        if self.presence != "secret":
            return {}
        (gram,), (entries,) = self.grams, self.entries
        empty = {}
        for feature in self.features:
            mask, block = entries.index(self.mask_of(feature)), entries.index(f"present at {feature.party}")
            if mask != block:
                empty[feature.column] = float(gram[block, block] - gram[mask, mask])
        return empty

    @property
    def _many(self) -> bool:
        """Are there too many entries to read as text?"""
        return sum(matrix.size for matrix in self.grams) > MAXIMUM_TEXT

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "parties": list(self.parties),
            "presence": self.presence,
            "patterns": [list(pattern) for pattern in self.patterns],
            "entries": [list(names) for names in self.entries],
            "counts": self.counts.tolist() if self.entries[0][0] == "1" else None,
            "features": [self._available(feature) for feature in self.features],
            **({"empty cells": self.empty_cells} if self.empty_cells else {}),
            "grams": "grams.npz" if self._many else [matrix.tolist() for matrix in self.grams],
            "noise_sd": self.noise_sd,
            "simulated": self.simulated,
        }

    @classmethod
    def records_behind(cls, stated: Mapping[str, Any]) -> Iterator[Counted]:
        if not stated.get("counts"):
            yield from super().records_behind(stated)
        for mask, count in zip(stated["patterns"], stated.get("counts") or (), strict=False):
            yield of_exactly(itertools.compress(stated["parties"], mask)), count, stated["noise_sd"]

    def write(self, run: RunFolder) -> None:
        """Matrices with too many entries to read as text go to grams.npz, one array for each pattern."""
        if self._many:
            arrays = {f"{pattern}": matrix for pattern, matrix in enumerate(self.grams)}
            with whole_file(run.path / "grams.npz") as partial, partial.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
        super().write(run)

    def _available(self, feature: Feature) -> dict[str, Any]:
        """Count, sum and sum of squares of one feature over the records that have it, in [-1, 1]; and how to return."""
        total, patterns = np.zeros(3), 0
        for names, matrix in zip(self.entries, self.grams, strict=True):
            mask = self.mask_of(feature) if self.presence == "secret" else "1"
            if feature.name in names and mask in names:
                own, count = names.index(feature.name), names.index(mask)
                total += matrix[count, count], matrix[count, own], matrix[own, own]
                patterns += 1
        records, once, square = total.tolist() if patterns else (None, None, None)
        return {
            "name": feature.name,
            "party": feature.party,
            "centre": feature.centre,
            "half": feature.half,
            "patterns": patterns,
            "count": records,
            "sum": once,
            "square": square,
        }

    def view(self) -> View:
        many, patterns = len(self.features), len(self.patterns)
        by = f", by {patterns} patterns of presence" if patterns > 1 else ""
        title = f"Counts, sums and products of {many} feature{'' if many == 1 else 's'}{by}"
        means = Table(
            title="Means of the features",
            head=("feature", "party", "records", "mean", "standard deviation"),
            rows=tuple(self._mean(self._available(feature)) for feature in self.features),
            numeric=(2, 3, 4),
        )
        zeros = (
            " An absent block counts as the middle of its columns' ranges, because presence was ignored."
            if self.presence == "ignore"
            else ""
        )
        noise = "± is two standard deviations of the noise, without sampling error. " if self.noise_sd else ""
        answer: list[Block] = [
            means,
            Text(
                text=f"{noise}Means are in the column's own units, in steps from the first of a date, and in codes from"
                f" 0 for columns with categories.{zeros}",
                style="soft",
            ),
        ]
        if self.presence == "known":
            head = ("parties with the record", "records")
            rows = tuple(self._pattern_rows())
            answer += [
                Heading(text="Patterns of presence"),
                Table(title="Records of each pattern", head=head, rows=rows, numeric=(1,)),
            ]
        return View(
            title=title,
            quality=self._quality(),
            answer=tuple(answer),
            sections=(Section(title="The matrices", blocks=self._matrix()),),
            terminal=(replace(means, title=title),),
        )

    def _mean(self, feature: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
        """One row a feature, from the records that have it, in its column's own units.

        With m = S / N and q = Q / N of noisy sums, m is known to sd sqrt(1 + m^2) / N and the variance q - m^2 to
        sd sqrt(1 + 4 m^2 + (q - 2 m^2)^2) / N, to first order.
        """
        name, party, count = feature["name"], feature["party"], feature["count"]
        sd = self.noise_sd * math.sqrt(feature["patterns"])
        if count is None:
            return name, party, "not computed", "-", "-"
        if count <= 2 * sd:  # within two standard deviations of its own noise
            return name, party, with_noise(count, sd), "too few for this noise", "-"
        mean = feature["sum"] / count
        square = feature["square"] / count
        variance = max(square - mean**2, 0.0)
        error = 2 * sd * math.sqrt(1 + mean**2) / count
        spread = 2 * sd * math.sqrt(1 + 4 * mean**2 + (square - 2 * mean**2) ** 2) / count
        centre, half = feature["centre"], feature["half"]
        shown = digits(centre + half * mean) + (f" ± {rough(half * error)}" if sd else "")
        if sd and variance <= spread:
            deviation = f"below {rough(half * math.sqrt(variance + spread))}"
        else:
            root = math.sqrt(variance)
            deviation = digits(half * root) + (f" ± {rough(half * spread / (2 * root))}" if sd else "")
        return name, party, with_noise(count, sd), shown, deviation

    def _pattern_rows(self) -> Iterator[tuple[str, str]]:
        """One row a pattern; only where presence is known does a pattern have a count of its own."""
        counts = self.counts.tolist() if self.entries[0][0] == "1" else [None] * len(self.patterns)
        for pattern, entries, count in zip(self.patterns, self.entries, counts, strict=True):
            present = {party for party, held in zip(self.parties, pattern, strict=True) if held}
            lost = [f.column for f in self.features if f.party in present and f.name not in entries]
            without = f" without {', '.join(dict.fromkeys(lost))}" if lost else ""
            shown = "not computed" if count is None else with_noise(count, self.noise_sd)
            yield f"{self._held(pattern)}{without}", shown

    def _held(self, pattern: Sequence[bool]) -> str:
        return ", ".join(party for party, present in zip(self.parties, pattern, strict=True) if present) or "no party"

    def _quality(self) -> str:
        if not self.noise_sd:
            return f"Exact sums over {number(self.n)} records: no noise was added."
        return (
            f"Every entry of a matrix is a sum over at most {number(self.n)} records and carries noise with standard"
            f" deviation {self.noise_sd:.3g}; a feature adds at most 1 for each record."
        )

    def _matrix(self) -> tuple[Block, ...]:
        """The last pattern's."""
        if self._many:
            return (Text(text="They have too many entries to show: grams.npz has them."),)
        names = self.entries[-1][:SHOWN_ENTRIES]
        rows = tuple(
            (name, *(f"{value:,.1f}" for value in line))
            for name, line in zip(names, self.grams[-1][:SHOWN_ENTRIES, :SHOWN_ENTRIES].tolist(), strict=True)
        )
        among = f" of the records at {self._held(self.patterns[-1])}" if self.presence == "known" else ""
        numeric = tuple(range(1, len(names) + 1))
        return (
            Text(
                text=f"Sums over records of the product of two features, each between -1 and 1{among}. result.json has"
                " all patterns and entries."
            ),
            Table(title="Gram matrix", head=("", *names), rows=rows, numeric=numeric, shown=0),
        )


# --- available cases --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class AvailableCases:
    """For each pair of features j, k, over the records that have both: their number, the sum of j, the sum of the
    products; and the number of noisy terms in each of these."""

    counts: NDArray[np.float64]
    sums: NDArray[np.float64]
    products: NDArray[np.float64]
    terms: NDArray[np.float64]


def available_cases(moments: MomentsResult, used: Sequence[int] | None = None) -> AvailableCases:
    """From a matrix with masks, or from those of the patterns `used` (all by default); what pandas calls pairwise."""
    names = [feature.name for feature in moments.features]
    if moments.presence == "secret":
        (gram,), (entries,) = moments.grams, moments.entries
        place = {name: index for index, name in enumerate(entries)}
        values = [place[name] for name in names]
        masks = [place[moments.mask_of(feature)] for feature in moments.features]
        terms = np.ones((len(names), len(names)))
        # The mask of column k times the values of column j: the sum of j over the records that have k.
        sums = gram[np.ix_(values, masks)]
        return AvailableCases(
            counts=gram[np.ix_(masks, masks)], sums=sums, products=gram[np.ix_(values, values)], terms=terms
        )
    index = {name: place for place, name in enumerate(names)}
    counts, sums, products, terms = (np.zeros((len(names), len(names))) for _ in range(4))
    for pattern in range(len(moments.grams)) if used is None else used:
        entries, gram = moments.entries[pattern], moments.grams[pattern]
        if entries[0] != "1":
            raise BadArguments("available cases need the counts; compute the moments with constant=True.")
        places = np.array([index[name] for name in entries[1:]], dtype=np.intp)
        square = np.ix_(places, places)
        counts[square] += gram[0, 0]
        sums[square] += gram[0, 1:, None]
        products[square] += gram[1:, 1:]
        terms[square] += 1
    return AvailableCases(counts=counts, sums=sums, products=products, terms=terms)
