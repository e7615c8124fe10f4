"""What a column's cells look like, gathered in one pass over a table of any size: the ground of a draft.

Chunks stream by; what stays is a few counts, the ends of the range, at most `MOST_VALUES` different texts, and some
cells for a picture. Nothing here decides what a column is.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from colonnade.data.dates import likely_formats, parse_date, read_dates, wider_format
from colonnade.data.encoding import MARKERS, Spelling, likely_lines, read_numbers, read_spelled, spelled_number

MOST_VALUES = 20_000
"""Different texts of a column that are counted; a column with more is text that names people, or a time."""
MOST_SPELLED = 2_000
MOST_LEVELS = 50
"""Different numbers of a column that are listed."""
SAMPLED = 1000
"""Cells of each chunk that are kept for a picture."""

MARKER_NUMBERS = np.array(
    [-(digit * (10**length - 1) // 9) for digit in (7, 8, 9) for length in range(1, 9)]
    + [10**length - less for less in (1, 2, 3) for length in range(2, 9)]
    + [float(f"-{'9' * length}.{'9' * places}") for length in range(2, 6) for places in (1, 2)],
    dtype=np.float64,
)
"""Numbers by which tables mark a cell without a value: -9, -88, -999, -99.9, and 97, 98, 99, 9999."""
FAR, FAR_NINES = 10.0, 4.0
"""How many times further from zero than all other numbers a marker must be, where signs do not tell it; the second of
four nines and more."""

_CODE = r"^[ \t]*[+-]?0[0-9]+[ \t]*$"  # "007" is a code, not a number
_FRACTION = "[.eE]"
_SHAPES = (r"^[1-9][0-9]{0,2}\.[0-9]{3}$", r"\.", "^[0-9]{4}")


@dataclass(eq=False)
class Summary:
    """One column's cells so far."""

    records: int = 0
    empty: int = 0
    truths: int = 0
    """Cells of a type for truth values."""
    nullable: bool = False
    listed: tuple[list[Any], bool] | None = None
    """The categories of a categorical type, and whether they are ordered."""
    strange: str = ""
    """The type of cells that are none of number, text, truth value and date."""
    numbers: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    """Of the numbers that are none of `MARKER_NUMBERS`."""
    coded: Counter[float] = field(default_factory=Counter)
    """Those that are."""
    whole: bool = True
    """Are all numbers integers?"""
    floating: bool = False
    """Is the column of a floating-point type, or a number written with a point or an exponent?"""
    codes: bool = False
    """Has a number a zero before other digits?"""
    grouped: int = 0
    pointed: int = 0
    long: int = 0
    """Texts such as 1.234, those with a point at all, and those of four digits or more without one."""
    spelled: Counter[str] | None = field(default_factory=Counter)
    """Numbers as they are written, for codes and mixed columns; None if there are too many different ones."""
    levels: set[float] = field(default_factory=set)
    spelling: Spelling | None = None
    texts: Counter[str] = field(default_factory=Counter)
    """Cells that are no number."""
    more_texts: int = 0
    """Cells whose text is not counted, because there are too many different ones."""
    longest: int = 0
    dates: dict[str | None, _Dates] = field(default_factory=dict)
    """By format (None for one that is clear) what all filled cells would be as dates."""
    sample: list[NDArray[np.float64]] = field(default_factory=list)

    @property
    def filled(self) -> int:
        return self.records - self.empty

    @property
    def thousands(self) -> bool:
        """Might a point separate thousands? There are 1.234 and 560, and neither 1.2 nor 1234."""
        return 0 < self.grouped == self.pointed < self.numbers and not self.long and self.spelling is None

    def markers(self) -> tuple[float, ...]:
        """The numbers that mark an empty cell: negative ones where no other number is, or far beyond all others; twice
        at least, or nines."""
        reach = max(abs(self.lowest), abs(self.highest))
        if not math.isfinite(reach):
            return ()
        return tuple(
            number
            for number, count in sorted(self.coded.items())
            if (
                number < 0 <= self.lowest
                or abs(number) >= (FAR_NINES if re.fullmatch("-?9999[9.]*", f"{number:.12g}") else FAR) * reach
            )
            and (count > 1 or re.fullmatch("-?99[9.]*", f"{number:.12g}"))
        )

    def without(self, markers: Sequence[float]) -> Summary:
        """The same cells, with these numbers as empty ones."""
        left = [number for number in self.coded if number not in markers]
        count = sum(self.coded[number] for number in markers)
        return replace(
            self,
            empty=self.empty + count,
            numbers=self.numbers - count,
            lowest=min([self.lowest, *left]),
            highest=max([self.highest, *left]),
            levels=self.levels - set(markers),
            sample=[numbers[~np.isin(numbers, markers)] for numbers in self.sample],
        )

    def marked(self, texts: Sequence[str]) -> int:
        """How many cells are one of these texts, or the number that it spells."""
        return sum(self.texts[text] or self.coded.get(spelled_number(text) or 0.0, 0) for text in texts)

    def add(self, values: pd.Series[Any]) -> None:
        """One more chunk."""
        if isinstance(values.dtype, pd.CategoricalDtype):
            self.listed = (values.dtype.categories.tolist(), bool(values.dtype.ordered))
            values = values.astype(object)
        self.records += len(values)
        present = values.notna().to_numpy(dtype=bool)
        if pd.api.types.is_bool_dtype(values.dtype):
            self.empty += int((~present).sum())
            self.truths += int(present.sum())
            self.nullable |= values.dtype != np.dtype(bool)
            self.texts.update({str(value): int(count) for value, count in values.value_counts().items()})
        elif pd.api.types.is_datetime64_any_dtype(values.dtype):
            self.empty += int((~present).sum())
            self._add_moments(None, read_dates(values, step="second", date_format=None)[0][present])
        elif pd.api.types.is_timedelta64_dtype(values.dtype):
            self.empty += int((~present).sum())
            self.strange = str(values.dtype)
        else:
            self._add_cells(values, present)

    def _add_cells(self, values: pd.Series[Any], present: NDArray[np.bool_]) -> None:
        if values.dtype == object:
            odd = (cell for cell in values[present] if not isinstance(cell, _PLAIN) and not hasattr(cell, "year"))
            self.strange = next((type(cell).__name__ for cell in odd), self.strange)
            if self.strange:  # nothing else is asked of it, and two lists cannot be compared
                self.empty += int((~present).sum())
                return
        if isinstance(values.dtype, pd.StringDtype) or values.dtype == object:
            present = present & (values != "").to_numpy(dtype=bool, na_value=False)
        self.empty += int((~present).sum())
        numbers, unreadable = self._read(values)
        known = present & ~unreadable
        self._add_numbers(numbers[known], values[known])
        if unreadable.any():
            self._add_texts(values[unreadable])

    def _read(self, values: pd.Series[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Numbers in the spelling that the cells suggest."""
        if self.spelling is not None:
            numbers, unreadable, _ = read_spelled(values, self.spelling)
        elif self.numbers == 0 and self.filled > MOST_LEVELS and self.texts and values.dtype != object:
            return np.full(len(values), np.nan), values.notna().to_numpy(dtype=bool)  # texts, as all before
        else:
            numbers, unreadable = read_numbers(values)
        while unreadable.any() and not self.more_texts:  # of many cells, the few that need more may come late
            odd = dict.fromkeys(
                cell for cell in values[unreadable] if isinstance(cell, str) and cell.strip().casefold() not in MARKERS
            )
            wider = suggested(itertools.islice(odd, 500), self.spelling)
            if wider is None:
                break
            self.spelling = wider
            numbers, unreadable, _ = read_spelled(values, wider)
        return numbers, unreadable

    def _add_numbers(self, numbers: NDArray[np.float64], cells: pd.Series[Any]) -> None:
        if not numbers.size:
            return
        self.numbers += numbers.size
        coded = np.isin(numbers, MARKER_NUMBERS)
        self.coded.update(numbers[coded].tolist())
        self.lowest = float(numbers[~coded].min(initial=self.lowest))
        self.highest = float(numbers[~coded].max(initial=self.highest))
        self.floating |= cells.dtype.kind == "f"
        self.whole &= bool(np.all(numbers == np.rint(numbers)))
        if isinstance(cells.dtype, pd.StringDtype) or cells.dtype == object:
            texts = pa.array([cell for cell in cells if isinstance(cell, str)] if cells.dtype == object else cells)
            if self.spelled is not None:
                counted = pc.value_counts(texts)
                self.spelled.update(
                    dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))
                )
                self.spelled = self.spelled if len(self.spelled) <= MOST_SPELLED else None
            if len(texts) and self.spelling is None:
                self.codes |= pc.any(pc.match_substring_regex(texts, _CODE)).as_py() is True
                self.floating |= pc.any(pc.match_substring_regex(texts, _FRACTION)).as_py() is True
                shapes = (pc.sum(pc.match_substring_regex(texts, shape)).as_py() for shape in _SHAPES)
                grouped, pointed, long = (count or 0 for count in shapes)
                self.grouped, self.pointed, self.long = (
                    self.grouped + grouped,
                    self.pointed + pointed,
                    self.long + long,
                )
        if len(self.levels) <= MOST_LEVELS:
            self.levels.update(np.unique(numbers).tolist()[: MOST_LEVELS + 1])
        self._keep(numbers)

    def _add_texts(self, cells: pd.Series[Any]) -> None:
        texts = pa.array(cells.astype("str"))
        self.longest = max(self.longest, pc.max(pc.utf8_length(texts)).as_py())
        if self.more_texts and not self.dates:
            self.more_texts += len(cells)
            return
        counted = pc.value_counts(texts)
        counts = dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))
        filled = [text for text in counts if text.strip().casefold() not in MARKERS]
        if not self.dates and not self.texts and filled:
            self.dates = {form: _Dates() for form in (None, *likely_formats(filled[0]))}
        if self.dates and not any(all(parse_date(text, "day", form) for text in filled) for form in self.dates):
            self._widen_dates(filled)
        for form in list(self.dates):
            moments = [parse_date(text, "day", form) for text in filled]
            known = [moment for moment in moments if moment is not None]
            if len(known) < len(moments):
                del self.dates[form]
            elif known:
                cells_of = [counts[text] for text in filled]
                self._add_moments(form, np.repeat(np.array(known, dtype="datetime64[s]"), cells_of))
        room = MOST_VALUES - len(self.texts)
        for text, count in counts.items():
            if text in self.texts or room > 0:
                room -= text not in self.texts
                self.texts[text] += count
            else:
                self.more_texts += count

    def _widen_dates(self, filled: Sequence[str]) -> None:
        """Where no one format fits: the formats so far, each with others that fit what it does not."""
        earlier = [text for text in self.texts if text.strip().casefold() not in MARKERS]
        for form, dates in list(self.dates.items()):
            del self.dates[form]
            wider = wider_format(form, [*earlier, *filled])
            if wider is not None:
                self.dates.setdefault(wider, dates)

    def _add_moments(self, form: str | None, moments: NDArray[Any]) -> None:
        dates = self.dates.setdefault(form, _Dates())
        if moments.size:
            dates.add(moments)

    def _keep(self, numbers: NDArray[np.float64]) -> None:
        self.sample.append(numbers[:: max(1, len(numbers) // SAMPLED)])


@dataclass(eq=False)
class _Dates:
    """The range of cells that are dates, and how fine they are."""

    count: int = 0
    first: np.datetime64 = field(default_factory=lambda: np.datetime64("9999-12-31", "s"))
    last: np.datetime64 = field(default_factory=lambda: np.datetime64("0001-01-01", "s"))
    midnight: bool = True
    """Has no cell a time of the day?"""
    minutes: bool = True
    """Has no cell seconds?"""
    months: bool = True
    """Is every cell the first day of a month?"""
    sample: list[NDArray[Any]] = field(default_factory=list)

    def add(self, moments: NDArray[Any]) -> None:
        self.count += moments.size
        self.first, self.last = min(self.first, moments.min()), max(self.last, moments.max())
        days = moments.astype("datetime64[D]")
        self.midnight &= bool((moments == days).all())
        self.minutes &= bool((moments == moments.astype("datetime64[m]")).all())
        self.months &= bool((days == days.astype("datetime64[M]")).all())
        self.sample.append(moments[:: max(1, len(moments) // SAMPLED)])


_PLAIN = (str, bool, int, float, Decimal, np.generic)


def suggested(cells: Iterable[str], spelling: Spelling | None) -> Spelling | None:
    """The spelling under which these cells are numbers, beyond the one that was found before; None if there is none."""
    seen = list(cells)
    lines = Counter(line for cell in seen for line in likely_lines(cell))
    if not lines:
        return None
    stated: dict[str, str] = {}
    for line, _ in lines.most_common():
        name, _, value = line.partition(" = ")
        stated.setdefault(name, value.strip('"'))
    if stated.get("thousands") == stated.get("decimal", "."):
        # "1,234" alone would be thousands; beside "1,5" the comma is the decimal sign.
        stated.pop("thousands", None)
    before = spelling or Spelling()
    wider = Spelling(
        decimal=stated.get("decimal", before.decimal),
        thousands=stated.get("thousands", before.thousands),
        unit=stated.get("unit", before.unit),
        below="below" in stated or before.below,
        above="above" in stated or before.above,
    )
    if wider == spelling or wider.thousands == wider.decimal:
        return None
    _, unreadable, _ = read_spelled(pd.Series(seen, dtype="str"), wider)
    return None if unreadable.any() else wider
