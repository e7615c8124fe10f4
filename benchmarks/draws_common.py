"""A study's draws: what each has given, in docs/results/lines, with the code that made it and its seconds.

A *cell* is a place in a study's tables (names and numbers), a *draw* is one seeded repetition of it. Its values are
numbers by name; a method that refuses gives none. A full run computes the draws that are not there of the present code,
so a study that was stopped goes on. A quick run keeps nothing.

RECOMPUTE='[cell, draw]' runs a study up to one draw, takes every other from the file, whatever code made it, prints
what the draw gives now, and ends there.

Two values of one draw agree if they differ by a millionth (bytes, by a hundredth), or by less than 4 combined standard
errors, those of two single draws of the cell. Names that end in `seconds` or `memory` measure a machine and are not
compared.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.provenance_common import RESULTS, changed_files, loaded_code

LINES = RESULTS / "lines"
SAME, SAME_BYTES, ERRORS = 1e-6, 1e-2, 4.0

Cell = tuple[str | int | float | None, ...]
Key = tuple[Cell, int]
Value = float | list[float]
Values = dict[str, Any]
Work = Mapping[Key, Callable[[], Mapping[str, Any]]]


def quick() -> bool:
    """QUICK=1 asks for fewer repetitions; a quick run writes no results page."""
    return os.environ.get("QUICK", "") not in ("", "0")


@dataclass(frozen=True)
class Estimate:
    """A mean over draws, and its standard error (0 of a single draw: then nothing is known about it)."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Estimate:
        each = np.array(list(values))
        spread = float(np.std(each, ddof=1)) if len(each) > 1 else 0.0
        return cls(float(each.mean()), spread / math.sqrt(len(each)))

    def shown(self, digits: int = 3) -> str:
        return f"{self.mean:.{digits}f}" + (f" ± {self.error:.{digits}f}" if self.error else "")

    def __str__(self) -> str:
        return self.shown()


@dataclass(frozen=True)
class Line:
    """One draw of a cell as it is kept; `code` is the digest of the files that made it."""

    cell: Cell
    draw: int
    values: Values
    seconds: float
    code: str

    @property
    def key(self) -> Key:
        return self.cell, self.draw


def digest(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12]


def read(study: str) -> tuple[list[Line], dict[str, dict[str, str]]]:
    """The lines of a study, and {digest: files} of the codes that made them."""
    lines, codes = list[Line](), dict[str, dict[str, str]]()
    path = LINES / f"{study}.jsonl"
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(text)
        except json.JSONDecodeError:  # a run was ended while it wrote
            continue
        if "files" in entry:
            codes[entry["code"]] = entry["files"]
        else:
            lines.append(Line(**{**entry, "cell": tuple(entry["cell"])}))
    return lines, codes


def present(study: str) -> list[Line]:
    """The lines that the present code has made."""
    lines, codes = read(study)
    valid = {code for code, files in codes.items() if not changed_files(files)}
    return [line for line in lines if line.code in valid]


def in_turn(work: Work) -> Iterator[tuple[Key, Mapping[str, Any], float]]:
    """(key, values, seconds), one after the other."""
    for key, compute in work.items():
        started = time.perf_counter()
        values = compute()
        yield key, values, time.perf_counter() - started


class Draws:
    """The draws of one run of a study."""

    def __init__(self, study: str) -> None:
        self.study = study
        self.reused = 0.0
        """Seconds that the draws took which this run did not have to make."""
        wanted = json.loads(os.environ.get("RECOMPUTE", "null"))
        self._wanted: Key | None = wanted and (tuple(wanted[0]), wanted[1])
        known = read(study)[0] if self._wanted else [] if quick() else present(study)
        self._known = {line.key: line for line in known}
        self._asked: dict[Key, Line] = {}
        self._codes: dict[str, dict[str, str]] = {}

    def known(self, cell: Sequence[Any], draw: int) -> bool:
        """Is there a line of the present code?"""
        return (tuple(cell), draw) in self._known

    def get(self, cell: Sequence[Any], draw: int, compute: Callable[[], Mapping[str, Any]]) -> Values:
        """The values of one draw."""
        key = (tuple(cell), draw)
        return self.all({key: compute})[key]

    def all(
        self, work: Work, run: Callable[[Work], Iterator[tuple[Key, Mapping[str, Any], float]]] = in_turn
    ) -> dict[Key, Values]:
        """The values of several draws; `run` computes those that are not there, in any order."""
        if self._wanted:
            self._recompute(work)
        missing = {key: compute for key, compute in work.items() if key not in self._known and key not in self._asked}
        for key in work.keys() - missing.keys() - self._asked.keys():
            self._asked[key] = self._known[key]
            self.reused += self._known[key].seconds
        for key, values, seconds in run(missing):
            self._keep(key, dict(values), seconds)
        return {key: self._asked[key].values for key in work}

    def settle(self) -> None:
        """Leave the lines of this run in the file and no others: those that the page is made of."""
        if not self._asked or quick():
            return
        codes = read(self.study)[1]
        used = dict.fromkeys(line.code for line in self._asked.values())
        entries = [{"code": code, "files": codes[code]} for code in used]
        _write(self.study, [*entries, *map(vars, self._asked.values())], mode="w")

    def _keep(self, key: Key, values: Values, seconds: float) -> None:
        files = loaded_code()
        code = digest(files)
        line = Line(*key, values, round(seconds, 3), code)
        self._asked[key] = line
        print(f"  {' '.join(map(str, line.cell))}, draw {line.draw}: {seconds:.1f} s", file=sys.stderr, flush=True)
        if quick():
            return
        entries = [] if code in self._codes else [{"code": code, "files": files}]
        self._codes[code] = files
        _write(self.study, [*entries, vars(line)], mode="a")

    def _recompute(self, work: Work) -> None:
        if self._wanted in work:
            _, values, seconds = next(in_turn({self._wanted: work[self._wanted]}))
            print("recomputed: " + json.dumps({"values": values, "seconds": seconds}), flush=True)
            raise SystemExit(0)
        unknown = [key for key in work if key not in self._known]
        if unknown:
            raise SystemExit(f"{self.study} asks for {unknown[0]}, of which there is no line")


def _write(study: str, entries: Iterable[Mapping[str, Any]], *, mode: str) -> None:
    LINES.mkdir(parents=True, exist_ok=True)
    with (LINES / f"{study}.jsonl").open(mode, encoding="utf-8") as file:
        file.write("".join(json.dumps(entry) + "\n" for entry in entries))


def disagreements(before: Mapping[str, Value], now: Mapping[str, Value], others: Sequence[Values]) -> list[str]:
    """The names whose two values of one draw do not agree; `others` are the values of the cell's draws."""
    if before.keys() != now.keys():
        return sorted(before.keys() ^ now.keys())
    return [
        name
        for name in before
        if not name.endswith(("seconds", "memory"))
        and not _agree(
            before[name],
            now[name],
            [values[name] for values in others if name in values],
            SAME_BYTES if name.endswith("bytes") else SAME,
        )
    ]


def _agree(before: Value, now: Value, draws: Sequence[Value], same: float) -> bool:
    first, second = np.atleast_1d(before), np.atleast_1d(now)
    if first.shape != second.shape:
        return False
    allowed = same * np.maximum(np.abs(first), np.abs(second))
    if len(draws) > 1:
        spread = np.std(np.array([np.atleast_1d(one) for one in draws], float), axis=0, ddof=1)
        allowed = np.maximum(allowed, ERRORS * math.sqrt(2) * spread)
    return bool(np.all((np.abs(first - second) <= allowed) | (np.isnan(first) & np.isnan(second))))
