"""Dates and times: read from cells, counted in steps from a declared first one, and written as dates again.

A column of kind "date" is a number of steps (days, months, ... seconds) since its declared `from`, so that every method
takes it for a count. A cell that is finer than the step falls into the step that holds it: 14:30 on a day is that day.
Times with a zone are taken to UTC; without one they are as they stand.

A text is a date if it can be read in one way alone: the year first (2024-03-09, 2024/3/9, 20240309, with a time if
there is one), or the month by its English name (9 Mar 2024, March 9, 2024). For 09/03/2024 a `date_format` must say
which is the day; several formats have " | " between them, and the first that fits a cell is taken.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Step = Literal["day", "month", "year", "hour", "minute", "second"]
STEPS: tuple[str, ...] = get_args(Step)
UNITS: dict[str, str] = {"day": "D", "month": "M", "year": "Y", "hour": "h", "minute": "m", "second": "s"}
"""Each step as numpy names it."""

EITHER = " | "
"""Between two formats of one column."""
MOST_FORMATS = 3

Times = NDArray[np.datetime64]
"""Whole seconds; NaT for a cell without a date."""

_TIME = r"(?:[T ](\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?)?\s*(Z|[+-]\d{2}:?\d{2})?"
_YEAR_FIRST = re.compile(rf"(\d{{4}})([-/.]?)(\d{{2}}|(?<=[-/.])\d)\2(\d{{2}}|(?<=[-/.])\d){_TIME}")
_MONTH = re.compile(r"(\d{4})[-/.](\d{1,2})")
_YEAR = re.compile(r"\d{4}")
_NAMED = ("%d %b %Y", "%d %B %Y", "%b %d %Y", "%B %d %Y")
_DAY_OR_MONTH_FIRST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4}|\d{2})(?:[T ](\d{1,2}:\d{2}(:\d{2})?))?")


@functools.lru_cache(maxsize=1 << 16)
def parse_date(text: str, step: str = "day", date_format: str | None = None) -> datetime | None:
    """The moment that a text spells, in UTC if it names a zone; None if it is not a date, or not clearly one."""
    stripped = text.strip()
    if date_format is not None:
        return _in_format(stripped, date_format.split(EITHER))
    try:
        if year_first := _YEAR_FIRST.fullmatch(stripped):
            year, _, month, day, hour, minute, second, zone = year_first.groups(default="0")
            moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second))
            return moment if zone == "0" else _universal(datetime.strptime(f"{moment} {zone}", "%Y-%m-%d %H:%M:%S %z"))
        if step in ("month", "year") and (month_alone := _MONTH.fullmatch(stripped)):
            return datetime(int(month_alone[1]), int(month_alone[2]), 1)
        if step == "year" and _YEAR.fullmatch(stripped):
            return datetime(int(stripped), 1, 1)
    except ValueError:
        return None
    return _with_a_named_month(re.sub(r"[\s,.-]+", " ", stripped)) if re.search("[A-Za-z]{3}", stripped) else None


def _in_format(text: str, formats: list[str]) -> datetime | None:
    for form in formats:
        with contextlib.suppress(ValueError):
            return _universal(datetime.strptime(text, form))
    return None


def _with_a_named_month(text: str) -> datetime | None:
    for form in _NAMED:
        try:
            return datetime.strptime(text, form)
        except ValueError:
            continue
    return None


def _universal(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def read_dates(values: pd.Series[Any], *, step: str, date_format: str | None) -> tuple[Times, NDArray[np.bool_]]:
    """The moments of cells in whole seconds, and which cells are filled and no date."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.dtype.categories.dtype)
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        zoned = values.dt.tz is not None
        plain = values.dt.tz_convert("UTC").dt.tz_localize(None) if zoned else values
        return plain.to_numpy().astype("datetime64[s]"), np.zeros(len(values), dtype=np.bool_)
    index, distinct = pd.factorize(values.to_numpy(dtype=object))
    cells = [_moment(cell, step, date_format) for cell in distinct]
    # Index -1, an empty cell, picks what is appended.
    moments = np.array([*(np.datetime64("NaT") if cell is None else cell for cell in cells), "NaT"], "datetime64[s]")
    faulty = np.array([cell is None and value != "" for cell, value in zip(cells, distinct, strict=True)] + [False])
    return moments[index], faulty.astype(np.bool_)[index]


def _moment(cell: object, step: str, date_format: str | None) -> datetime | None:
    if isinstance(cell, datetime):
        return _universal(cell).replace(microsecond=0)
    if isinstance(cell, date):
        return datetime(cell.year, cell.month, cell.day)
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, float) and cell.is_integer():  # integers with gaps
        cell = int(cell)
    if isinstance(cell, int) and not isinstance(cell, bool):  # 20240309, or a year
        cell = str(cell)
    return parse_date(cell, step, date_format) if isinstance(cell, str) else None


def likely_formats(text: str) -> tuple[str, ...]:
    """For a text whose day and month cannot be told apart: the formats that it may have, day first."""
    shape = _DAY_OR_MONTH_FIRST.fullmatch(text.strip())
    if shape is None:
        return ()
    separator, year = shape[2], "%Y" if len(shape[4]) == 4 else "%y"
    clock = "" if shape[5] is None else f"{'T' if 'T' in text else ' '}{'%H:%M:%S' if shape[6] else '%H:%M'}"
    return tuple(
        f"{first}{separator}{second}{separator}{year}{clock}" for first, second in (("%d", "%m"), ("%m", "%d"))
    )


def wider_format(form: str | None, texts: Sequence[str]) -> str | None:
    """The format with what these texts need besides, the day or the month first in all of them; None if there is none
    of at most `MOST_FORMATS`. `form` is None for the year first, the only clear format that is widened."""
    formats = [] if form is None else form.split(EITHER)
    for text in texts:
        if formats and _in_format(text.strip(), formats) is not None:
            continue
        shape = _YEAR_FIRST.fullmatch(text.strip())
        dashes = shape is not None and shape[2] == "-" and shape[8] is None
        clock = "" if shape is None or shape[5] is None else f" {'%H:%M:%S' if shape[7] else '%H:%M'}"
        likely = (f"%Y-%m-%d{clock}",) if dashes else likely_formats(text)
        leading = {own[:2] for own in formats} & {"%d", "%m"}
        fitting = [own for own in likely if own[:2] in (leading or {"%d"}) or own.startswith("%Y")]
        formats += fitting[:1]
        if not fitting or len(formats) > MOST_FORMATS or _in_format(text.strip(), formats) is None:
            return None
    return EITHER.join(formats)


# --- steps ----------------------------------------------------------------------------------------------------


def steps_between(first: str, moments: Times, step: str) -> NDArray[np.float64]:
    """Whole steps from `first` to each moment; NaN for NaT."""
    unit = UNITS[step]
    counted = moments.astype(f"datetime64[{unit}]") - np.datetime64(first).astype(f"datetime64[{unit}]")
    return np.where(np.isnat(moments), np.nan, counted.astype(np.int64).astype(np.float64))


def after_steps(first: str, steps: NDArray[Any], step: str) -> Times:
    """The moments so many steps after `first`, at the beginning of their step; NaT for NaN."""
    numbers = np.asarray(steps, dtype=np.float64)
    unit = UNITS[step]
    empty = np.isnan(numbers)
    whole = np.rint(np.where(empty, 0, numbers)).astype(np.int64)
    moments = (np.datetime64(first).astype(f"datetime64[{unit}]") + whole.astype(f"timedelta64[{unit}]")).astype(
        "datetime64[s]"
    )
    return np.where(empty, np.datetime64("NaT", "s"), moments)


def date_text(moment: np.datetime64, step: str) -> str:
    """A moment as ISO text, no finer than the step; an hour is written with its minutes."""
    if np.isnat(moment):
        return ""
    text = str(moment.astype(f"datetime64[{UNITS[step]}]")).replace("T", " ")
    return f"{text}:00" if step == "hour" else text


def iso_text(value: object, step: str) -> str | None:
    """A declared end of a range (ISO text, a TOML date or time, a year) as ISO text of the step; None if it is none."""
    moment = _moment(value, step, None)
    return None if moment is None else date_text(np.datetime64(moment, "s"), step)
