"""A first columns.toml, read off the parties' tables, for a person to correct.

What is read off the data is a **draft**: nothing runs on it until a person has put public facts in its place and
deleted the line `draft = true`, or has confirmed it as it is. Bounds are rounded outwards, because the smallest and the
largest value are two people's own. A draft never stops at a column: what it cannot use it leaves out, with the reason.

The rules, in their order; the first that fits decides:

| cells | drafted as |
|---|---|
| none filled, or all the same | left out |
| dates, clearly or in one format | `date`, whole years; months if all days are firsts, minutes if there are times |
| 0 and 1, or two values | `binary`; no, n, false, off before yes, y, true, on |
| numbers, as their cells write them | `count` if all are whole and written so, or there are 100; else `continuous` |
| among them -999 and its like, and a few words | empty cells |
| texts of more than 20 values, most of them once | left out: identifiers, or free text if long or with spaces |
| other texts | `categorical`; `other` if there are more than 50 levels, of more than 200 the most frequent 199 |
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.column import EXACT, Column, Columns, Kind
from colonnade.data.columns_toml import columns_text
from colonnade.data.dates import Step, parse_date
from colonnade.data.encoding import MARKERS, normal_text, quoted_text
from colonnade.data.keys import key_name, no_key, read_keys, with_key
from colonnade.data.sources import Source, open_source
from colonnade.data.summary import Summary
from colonnade.errors import BadArguments, ColonnadeError, EmptyParty, KeyProblem
from colonnade.formatting import counted, number, share, with_unit
from colonnade.view.blocks import Block, Figure, Figures, Heading, Section, Table, Text, View
from colonnade.view.render import Viewed

ROWS = 16_384
FEW_NUMBERS, OFTEN = 10, 20
"""Whole numbers keep their own bounds if there are at most so many different ones, each so often on average."""
FEW_WORDS = 5
"""Among numbers so many different words, "refused" say, mean an empty cell."""
MANY_NUMBERS = 100
"""So many floats that are all whole are integers, stored as floats."""
FEW_TEXTS = 20
"""Texts of no more values than this are categories, however rare each is."""
NO_END = "9999-01-01"
"""From here on a date says that there is none."""
LONG_LIST, MOST_LEVELS = 50, 200
LONG_TEXT = 40
BINS = 20
NARROWER = 10.0
"""How many times narrower the middle of a column may be than its range before its picture leaves the tails out."""
PICTURES = 150
"""On a page; each takes about a tenth of a second to draw."""
PERSONS = 20_000
"""Persons with several rows that are looked at to see what changes from row to row."""

NEGATIVE = frozenset({"no", "n", "false", "f", "0", "off", "negative", "absent", "never", "nein", "non", "nee", "nej"})
LEVELS_TOO = frozenset({"none", "unknown", "missing"})
"""Words that mean an empty cell among numbers, and may be a level among texts."""

THOUSANDS = (
    'Every point stands before exactly three digits: if it separates thousands, write thousands = "." and other bounds.'
)
CONFIRM = "read off the data: confirm or replace, then delete the line `draft = true`"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One column of one party's table: what it is drafted as, and why; `column` is None if it is left out."""

    party: str
    name: str
    column: Column | None
    why: str
    confirm: str = ""
    records: int = 0
    empty: int = 0
    figure: Figure | None = None


@dataclass(frozen=True, kw_only=True)
class DraftedTable:
    """One party's table: rows, different keys, and rows without a key."""

    party: str
    rows: int
    persons: int
    keyless: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Draft(Viewed):
    """What was found in the parties' tables, column by column. It shows the owner's own data: keep it at home."""

    key: str | tuple[str, ...]
    tables: tuple[DraftedTable, ...]
    findings: tuple[Finding, ...]
    keys: tuple[str, ...] = ()
    """What is odd about the keys of two tables beside each other."""

    @property
    def columns(self) -> Columns:
        """The drafted columns, and what every party leaves out. Private methods refuse them until a person confirms."""
        used = [finding.column for finding in self.findings if finding.column is not None]
        names = {column.name for column in used}
        left = {finding.name: finding.why for finding in self.findings if finding.column is None}
        return Columns(used, ignore={name: why for name, why in left.items() if name not in names})

    def confirmed(self) -> Columns:
        """The same columns, confirmed as they were drafted: then a privacy claim does not cover their domains."""
        return Columns((replace(column, draft=False) for column in self.columns.values()), ignore=self.columns.ignore)

    def withheld(self, party: str) -> tuple[str, ...]:
        """What this party leaves out although another party's column has the name.

        Parameters
        ----------
        party : its name.

        Returns
        -------
        Names of columns.
        """
        left = [finding.name for finding in self.findings if finding.party == party and finding.column is None]
        return tuple(name for name in left if name in self.columns)

    def to_toml(self, *, confirmed: bool = False) -> str:
        """The text of a columns.toml, with a comment on each guess.

        Parameters
        ----------
        confirmed : without the lines `draft = true`.

        Returns
        -------
        A text.
        """
        columns = self.confirmed() if confirmed else self.columns
        comments = {
            finding.name: finding.why if confirmed or not finding.column.draft else f"{finding.why}; {CONFIRM}"
            for finding in self.findings
            if finding.column is not None
        }
        return columns_text(columns.to_dict()["columns"], comments=comments, ignore=columns.ignore)

    def view(self, *, confirmed: bool = False) -> View:
        used = [finding for finding in self.findings if finding.column is not None]
        left = [finding for finding in self.findings if finding.column is None]
        title = f"{counted(len(used), 'column')} drafted, {len(left)} left out"
        state = (
            Text(text=SAID_YES, style="warning")
            if confirmed
            else Text(
                text="Nothing runs yet. Go through the columns: put what is publicly known in place of each bound and "
                "list in columns.toml, and delete its line `draft = true`. Or confirm everything as it is with --yes.",
                style="lead",
            )
        )
        tables = tuple(
            (table.party, number(table.rows), number(table.persons), number(table.keyless)) for table in self.tables
        )
        listed = tuple(
            (finding.name, finding.party, finding.column.kind, domain_text(finding.column), _empty(finding))
            for finding in used
            if finding.column is not None
        )
        overview = Table(title=title, head=("column", "party", "kind", "domain", "empty"), rows=listed, terminal=True)
        ignored = tuple((finding.name, finding.party, finding.why) for finding in left)
        leaves_out = Table(title="Left out", head=("column", "party", "why"), rows=ignored, terminal=True)
        head = ("party", "rows", "records (different keys)", "rows without a key")
        answer: list[Block] = [
            state,
            Text(text="This page shows the tables' own counts, without noise: keep it where the tables are."),
            Table(title="The tables", head=head, rows=tables, numeric=(1, 2, 3)),
            *(Text(text=sentence, style="warning") for sentence in self.warnings()),
            Heading(text="Columns"),
            overview,
        ]
        if left:
            answer += [Heading(text="Left out"), leaves_out]
        return View(
            title=title,
            quality="Domains were read off the data and rounded outwards: guesses, until a person confirms them.",
            answer=tuple(answer),
            sections=tuple(self._section(table.party) for table in self.tables),
        )

    def warnings(self) -> list[str]:
        """What happens to rows: those without a key, and several of one record; and values that are taken as none."""
        keyless = [f"{table.party} ({number(table.keyless)})" for table in self.tables if table.keyless]
        said = (
            [f"Rows without a key are left out, by `require` in the source: {', '.join(keyless)}."] if keyless else []
        )
        said += self.keys
        for table in self.tables:
            if table.persons < table.rows - table.keyless:
                rules = [
                    f"{finding.name} ({finding.column.one_row})"
                    for finding in self.findings
                    if finding.party == table.party and finding.column is not None
                ]
                said.append(
                    f"{table.party} has {number(table.rows)} rows of {number(table.persons)} records, which become one"
                    f" each, by `one_row` in columns.toml: {', '.join(rules)}. Is that what you mean?"
                )
        said += [f"{finding.name}: {THOUSANDS}" for finding in self.findings if THOUSANDS in finding.confirm]
        marked = [
            f"{', '.join(unusual)} of {finding.name}"
            for finding in self.findings
            if finding.column is not None
            and (unusual := [text for text in finding.column.empty or () if text.casefold() not in MARKERS])
        ]
        if marked:
            said.append(f"Taken as empty cells, by `missing` in columns.toml: {'; '.join(marked)}. Are they?")
        return said

    def _section(self, party: str) -> Section:
        findings = [finding for finding in self.findings if finding.party == party and finding.column is not None]
        rows = tuple((finding.name, finding.why, finding.confirm) for finding in findings)
        figures = tuple(finding.figure for finding in findings if finding.figure is not None)
        reasons = Table(title=f"Guesses of {party}", head=("column", "guessed because", "to confirm"), rows=rows)
        blocks: list[Block] = [reasons]
        most = max(PICTURES // len(self.tables), 1)
        if len(figures) > most:
            blocks.append(Text(text=f"Pictures of the first {most} of {number(len(figures))} columns."))
        if figures:
            blocks.append(Figures(figures=figures[:most]))
        return Section(title=party, blocks=tuple(blocks))


SAID_YES = (
    "Every domain was confirmed as it was read off the data. An (epsilon, delta) of a run holds for what is computed "
    "within these domains; it does not cover the domains themselves, which show roughly how small and how large values "
    "are and which levels occur. Replace them by public facts before a claim is made to anyone outside."
)


def draft(frames: Mapping[str, Any] | pd.DataFrame | str | Path, *, key: str | Sequence[str]) -> Draft:
    """Draft the declaration of all columns of one or several parties' tables.

    Parameters
    ----------
    frames : {party: DataFrame, path, or source}, or one data frame or path.
    key : the column, or columns, that identify a record.

    Returns
    -------
    A `Draft`: `columns` (drafts), `confirmed()` (the same, usable at once), `to_toml()` and `view()`, and what was left
    out and why. Domains are read off the data, so a claim does not cover them until public facts take their place.

    Example
    -------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"id": [1, 2, 3], "age": [34, 51, 47], "town": ["Ulm", "Bonn", "Ulm"]})
    >>> list(co.draft({"clinic": table}, key="id").columns)
    ['age', 'town']
    """
    if isinstance(frames, str | Path):
        frames = {Path(frames).stem: frames}
    if not isinstance(frames, Mapping | pd.DataFrame):
        raise BadArguments(
            'draft takes a dict {party: data frame, path or source}, such as {"bank": bank, "clinic": clinic}, or one'
            f" of them, not {type(frames).__name__}."
        )
    tables = {"table": frames} if isinstance(frames, pd.DataFrame) else dict(frames)
    drafted: list[DraftedTable] = []
    findings: list[Finding] = []
    owner: dict[str, str] = {}
    written: dict[str, tuple[Hashes, Hashes]] = {}
    for party, source in tables.items():
        table, own, written[party] = _of_table(party, with_key(open_source(source), key), key_name(key))
        drafted.append(table)
        for finding in own:
            if finding.column is not None and finding.name in owner:
                why = f"{owner[finding.name]} has a column of this name too; rename it in this table to use both"
                finding = replace(finding, column=None, why=why, figure=None)
            elif finding.column is not None:
                owner[finding.name] = party
            findings.append(finding)
    return Draft(
        key=key if isinstance(key, str) else tuple(key),
        tables=tuple(drafted),
        findings=tuple(findings),
        keys=tuple(_compared(written)),
    )


# --- keys of two tables -------------------------------------------------------------------------------------------


Hashes = NDArray[np.uint64]


def _hashed(keys: NDArray[Any]) -> tuple[Hashes, Hashes]:
    """Keys as their text, as a join compares them; and without what may be written in two ways."""
    texts = pd.Series(keys).astype(str)
    rough = texts.str.casefold().str.replace(r"\s|\.0$|^0+(?=.)", "", regex=True)
    plain, bare = (pd.util.hash_array(part.to_numpy(dtype=object)) for part in (texts, rough))
    return np.asarray(plain, dtype=np.uint64), np.asarray(bare, dtype=np.uint64)


def _compared(written: Mapping[str, tuple[Hashes, Hashes]]) -> Iterator[str]:
    """For each pair of tables whose keys are none of the other's, or would be more often if they were written alike."""
    for (one, (plain, bare)), (other, (plain_other, bare_other)) in itertools.combinations(written.items(), 2):
        least = min(len(plain), len(plain_other))
        same, alike = len(np.intersect1d(plain, plain_other)), len(np.intersect1d(bare, bare_other))
        if alike > same + 0.01 * least:
            yield (
                f"{one} and {other} share {counted(same, 'key')}, and {alike:,} if leading zeros, a final .0, capitals"
                " and spaces do not count: write them alike in both tables, or these records are strangers."
            )
        elif not same:
            yield f"{one} and {other} share no key, so that nothing tells how their columns go together."


# --- one table ----------------------------------------------------------------------------------------------------


def _of_table(party: str, source: Source, key: str) -> tuple[DraftedTable, list[Finding], tuple[Hashes, Hashes]]:
    names = source.names()
    if key not in names:
        raise no_key(source.description, key, names)
    counts = Counter(names)
    if counts[key] > 1:
        raise KeyProblem(f"{source.description} has the key column {key!r} more than once; rename or drop one.")
    others = [name for name in counts if name != key and counts[name] == 1]
    twice = [name for name in counts if counts[name] > 1]
    summaries = {name: Summary() for name in others}
    hashes: list[tuple[Hashes, Hashes]] = []
    rows = keyless = 0
    for frame in source.chunks([key, *others], rows=ROWS):
        keys, missing = read_keys(frame[key], where=f"party {party!r}, key {key!r}")
        hashes.append(_hashed(keys))
        rows, keyless = rows + len(frame), keyless + missing
        for name in others:
            summaries[name].add(frame[name])
    if rows == 0:
        raise EmptyParty(f"party {party!r}: {source.description} has no records to draft from; load at least one.")
    plain, bare = (np.unique(np.concatenate(parts)) for parts in zip(*hashes, strict=True))
    persons = len(plain)
    findings = [_finding(party, name, summaries[name]) for name in others]
    if persons < rows - keyless:
        findings = _with_rules(findings, _changing(source, key, others, persons))
    why = "the table has this name more than once; rename all but one to use them"
    findings += [Finding(party=party, name=name, column=None, why=why, records=rows) for name in twice]
    return DraftedTable(party=party, rows=rows, persons=persons, keyless=keyless), findings, (plain, bare)


def _finding(party: str, name: str, summary: Summary) -> Finding:
    try:
        column, why, confirm = _decide(name, summary)
    except ColonnadeError as error:  # a name or a value that no declaration can hold
        column, why, confirm = None, str(error), ""
    figure = None if column is None else _figure(column, summary)
    marked = summary.marked((None if column is None else column.empty) or ())
    return Finding(
        party=party,
        name=name,
        column=column,
        why=why,
        confirm=confirm,
        records=summary.records,
        empty=summary.empty + marked,
        figure=figure,
    )


Decision = tuple[Column | None, str, str]
"""The column, or None; why; what a person has to confirm."""


def _decide(name: str, summary: Summary) -> Decision:
    if summary.strange:
        return None, f"its cells are of type {summary.strange}, which is neither number, text, truth value nor date", ""
    if summary.filled == 0:
        return None, "every cell is empty", ""
    if summary.truths:
        column = Column(name=name, kind="binary", categories=(False, True), missing=summary.nullable)
        return column, "truth values", ""
    if summary.listed is not None:
        return _listed(name, summary)
    if summary.dates and not summary.numbers:
        return _date(name, summary)
    meaning = {text for text in summary.texts if text.strip().casefold() in MARKERS}
    words = {text for text in summary.texts if text not in meaning}
    if summary.numbers > summary.filled / 2 and len(summary.levels) > FEW_NUMBERS and len(words) <= FEW_WORDS:
        meaning |= {word for word in words if not any(letter.isdigit() for letter in word)}
    read = summary.numbers + sum(summary.texts[text] for text in meaning)
    if read == summary.filled and summary.numbers and not summary.codes:
        markers = summary.markers()
        texts = (*(f"{number:.12g}" for number in markers), *sorted(meaning))
        return _numbers(name, summary.without(markers), texts)
    return _texts(name, summary)


def _missing(summary: Summary, meaning: Sequence[str] = ()) -> dict[str, Any]:
    return {"missing": summary.empty > 0 or bool(meaning), "empty": tuple(meaning) or None}


def _numbers(name: str, summary: Summary, meaning: tuple[str, ...]) -> Decision:
    if not math.isfinite(summary.lowest) or not math.isfinite(summary.highest):
        return None, "it has infinite cells, and infinity is in no domain", ""
    if summary.lowest == summary.highest:
        return None, "every filled cell is the same", ""
    missing = _missing(summary, meaning)
    spelled, as_written = _spelling(summary)
    levels = sorted(summary.levels)
    # pandas stores integers with gaps as floats, and some files all numbers; a few floats may be whole by chance.
    integers = summary.whole and (summary.empty > 0 or not summary.floating or summary.numbers >= MANY_NUMBERS)
    whole = integers and max(abs(summary.lowest), abs(summary.highest)) < EXACT / 16
    if not spelled and (set(levels) == {0.0, 1.0} or (whole and len(levels) == 2 and _often(summary, 2))):
        column = Column(name=name, kind="binary", categories=tuple(map(int, levels)), draft=True, **missing)
        return column, "two whole numbers", f"Is {int(levels[1])} the event?"
    few = not spelled and whole and len(levels) <= FEW_NUMBERS and _often(summary, len(levels))
    if whole and not few and not spelled and _compact_dates(summary):
        return _compact(name, summary, missing)
    # Each of a few values is many people's: the bounds are nobody's own.
    lower, upper = (levels[0], levels[-1]) if few else round_outwards(summary.lowest, summary.highest, integers=whole)
    kind: Kind = "count" if whole else "continuous"
    column = Column(name=name, kind=kind, lower=lower, upper=upper, draft=True, **missing, **spelled)
    why = ("whole numbers" if whole else "numbers") + as_written + _meaning(meaning)
    question = f"Are {_bound(lower)} and {_bound(upper)} bounds that anyone may know?"
    if summary.thousands:
        question += f" {THOUSANDS}"
    if few:
        codes = ", ".join(str(int(level)) for level in levels)
        question += f' Are they codes, not quantities? Then write kind = "categorical" and categories = [{codes}].'
    return column, why, question


def _often(summary: Summary, levels: int) -> bool:
    return summary.numbers >= OFTEN * levels


def _spelling(summary: Summary) -> tuple[dict[str, Any], str]:
    """The fields that say how the numbers are written, and the same in words."""
    spelling = summary.spelling
    if spelling is None:
        return {}, ""
    stated: dict[str, Any] = {
        "decimal": None if spelling.decimal == "." else spelling.decimal,
        "thousands": spelling.thousands,
        "unit": spelling.unit,
        "below": "limit" if spelling.below else None,
        "above": "limit" if spelling.above else None,
    }
    stated = {field: value for field, value in stated.items() if value is not None}
    written = ", ".join(f"{field} = {quoted_text(value)}" for field, value in stated.items())
    return stated, f", written with {written}" if written else ""


def _meaning(meaning: Sequence[str]) -> str:
    return f"; {', '.join(map(repr, meaning))} read as empty" if meaning else ""


# --- dates


def _date(name: str, summary: Summary) -> Decision:
    form, dates = next(iter(summary.dates.items()))
    meaning = tuple(sorted(text for text in summary.texts if text.strip().casefold() in MARKERS))
    first, last = dates.first, dates.last
    if last >= np.datetime64(NO_END) and not summary.more_texts:  # "valid until" the end of all days
        moments = {text: parse_date(text, "day", form) for text in summary.texts if text not in meaning}
        known = {text: np.datetime64(moment, "s") for text, moment in moments.items() if moment is not None}
        endless = {text for text, moment in known.items() if moment >= np.datetime64(NO_END)}
        others = [moment for text, moment in known.items() if text not in endless]
        if endless and others:
            meaning, first, last = (*meaning, *sorted(endless)), min(others), max(others)
    if first == last:
        return None, "every filled cell is the same", ""
    years = [int(str(end.astype("datetime64[Y]"))) for end in (first, last)]
    step: Step = "day"
    if not dates.midnight:
        step = "minute" if dates.minutes else "second"
    elif dates.months:
        step = "month"
    column = Column(
        name=name,
        kind="date",
        from_=f"{years[0]:04d}-01-01",
        to=f"{years[1]:04d}-12-31",
        step=step,
        date_format=form,
        draft=True,
        **_missing(summary, meaning),
    )
    why = "dates" if form is None else f"dates written as {form}"
    doubt = " It could also be month first: write the other date_format then." * (len(summary.dates) > 1)
    return column, why + _meaning(meaning), f"Are {column.from_} and {column.to} ends that anyone may know?{doubt}"


def _compact_dates(summary: Summary) -> bool:
    """Are the whole numbers dates such as 20240309?"""
    if not 19_000_101 <= summary.lowest <= summary.highest <= 21_001_231:
        return False
    sample = np.concatenate(summary.sample).astype(np.int64)
    return bool(
        ((sample // 100 % 100 >= 1) & (sample // 100 % 100 <= 12) & (sample % 100 >= 1) & (sample % 100 <= 31)).all()
    )


def _compact(name: str, summary: Summary, missing: dict[str, Any]) -> Decision:
    years = [int(end // 10_000) for end in (summary.lowest, summary.highest)]
    first, last = f"{years[0]}-01-01", f"{years[1]}-12-31"
    column = Column(name=name, kind="date", from_=first, to=last, draft=True, **missing)
    return (
        column,
        "whole numbers that are dates, such as 20240309",
        f"Are {years[0]} and {years[1]} its first and last years?",
    )


# --- categories


def _listed(name: str, summary: Summary) -> Decision:
    assert summary.listed is not None
    levels, ordered = summary.listed
    if len(levels) < 2:
        return None, "every filled cell is the same", ""
    kind: Kind = "ordinal" if ordered else "binary" if len(levels) == 2 else "categorical"
    column = Column(name=name, kind=kind, categories=tuple(levels), draft=True, **_missing(summary))
    return column, "the categories of its type", "Is the list public, and complete?"


def _texts(name: str, summary: Summary) -> Decision:
    counted = summary.texts.copy()
    if summary.numbers:  # codes such as 007, or texts among numbers
        if summary.spelled is None and not summary.more_texts:
            return None, "codes of many different values" if summary.codes else "numbers and texts are mixed", ""
        counted.update(summary.spelled or {})
    different = len(counted) + summary.more_texts
    if different > FEW_TEXTS and different > summary.filled / 2:
        words = summary.longest > LONG_TEXT or sum(" " in text for text in counted) > len(counted) / 2
        return None, "free text" if words else "an identifier: nearly every record has its own text", ""
    if summary.more_texts or summary.longest > 5 * LONG_TEXT:
        return None, f"free text: more than {len(counted):,} different ones" if summary.more_texts else "free text", ""
    meaning = _marked(counted)
    for text in meaning:
        del counted[text]
    if len(counted) < 2:
        return None, "every filled cell is the same", ""
    missing = _missing(summary, meaning)
    if {text.casefold() for text in counted} == {"true", "false"}:
        column = Column(name=name, kind="binary", categories=(False, True), draft=True, **missing)
        return column, "true and false", ""
    alike: dict[str, str] = {}
    for text, _ in counted.most_common():  # of texts that differ in spaces and capitals, the most frequent
        alike.setdefault(normal_text(text, trim=True, ignore_case=True), text)
    rules: dict[str, Any] = {"trim": True, "ignore_case": True} if len(alike) < len(counted) else {}
    levels = sorted(text.strip() for text in alike.values()) if rules else sorted(counted)
    why = (
        f"texts with {len(levels)} different values" + _meaning(meaning) + "; spaces and capitals differ" * bool(rules)
    )
    if len(levels) == 2:
        levels.sort(key=lambda text: text.strip().casefold() not in NEGATIVE)
        column = Column(name=name, kind="binary", categories=tuple(levels), draft=True, **missing, **rules)
        return column, why, f"Is {levels[1]!r} the event?"
    if len(levels) > LONG_LIST:
        rules["other"] = "other"
    if len(levels) > MOST_LEVELS:
        levels = sorted(text.strip() if "trim" in rules else text for text, _ in counted.most_common(MOST_LEVELS - 1))
        why += f"; the {len(levels)} most frequent are listed"
    column = Column(name=name, kind="categorical", categories=tuple(levels), draft=True, **missing, **rules)
    return column, why, "Is the list public, and complete? A rare level may name a person: leave it to `other`."


def _marked(counted: Mapping[str, int]) -> tuple[str, ...]:
    """Texts that mean an empty cell among categories. "NA" among two-letter codes is Namibia."""
    codes = all(len(text.strip()) == 2 and text.strip().isupper() for text in counted)
    return tuple(
        sorted(
            text
            for text in counted
            if re.fullmatch(r"-([789])\1*", text.strip())
            or (text.strip().casefold() in MARKERS - LEVELS_TOO and not (codes and text.strip() == "NA"))
        )
    )


# --- many rows for one person


def _changing(source: Source, key: str, names: Sequence[str], persons: int) -> set[str]:
    """The columns that change from row to row of one person, among some persons chosen by their key's hash."""
    every = max(1, persons // PERSONS)
    parts = []
    for frame in source.chunks([key, *names], rows=ROWS):
        filled = frame[frame[key].notna()]
        parts.append(filled[_hashed(filled[key].to_numpy(dtype=object))[0] % np.uint64(every) == 0])
    rows = pd.concat(parts, ignore_index=True)
    changing = set()
    for name in names:
        pairs = rows[[key, name]].dropna().astype(str).drop_duplicates()
        if pairs[key].duplicated().any():
            changing.add(name)
    return changing


def _with_rules(findings: Sequence[Finding], changing: set[str]) -> list[Finding]:
    """How each column's rows become one: what does not change is taken from the first row."""
    dated = [f.name for f in findings if f.column is not None and f.column.kind == "date" and f.name in changing]
    ruled = []
    for finding in findings:
        column = finding.column
        if column is not None:
            if finding.name not in changing:
                column, why = replace(column, one_row="first"), "the same in all rows of a record"
            elif column.kind == "continuous":
                column, why = replace(column, one_row="mean"), "the mean of a record's rows"
            elif column.kind == "binary":
                column, why = replace(column, one_row="any"), "whether it holds in any row of a record"
            elif column.kind in ("date", "ordinal"):
                column, why = replace(column, one_row="max"), "the largest of a record's rows"
            else:
                order = dated[0] if dated else None
                column = replace(column, one_row="last", order_by=order)
                why = f"a record's last row{f' by {order}' if order else ''}"
            finding = replace(finding, column=column, why=f"{finding.why}; {why}")
        ruled.append(finding)
    return ruled


# --- pictures -----------------------------------------------------------------------------------------------------


def domain_text(column: Column) -> str:
    """A column's domain in a few words."""
    if column.categories is not None:
        shown = ", ".join(map(str, column.categories[:4]))
        rest = len(column.categories) - 4
        return shown + (f" and {rest} more" if rest > 0 else "")
    assert column.lower is not None
    assert column.upper is not None
    if column.kind == "date":
        return f"{column.from_} to {column.to}, in {column.step}s"
    return f"{_bound(column.lower)} to {_bound(column.upper)}"


def _bound(value: float) -> str:
    """Thousands apart, but for four digits: 1950 may be a year."""
    return f"{value:,.12g}" if abs(value) >= 10_000 else f"{value:.12g}"


def _empty(finding: Finding) -> str:
    return share(finding.empty, finding.records) if finding.empty else ""


def _figure(column: Column, summary: Summary) -> Figure:
    caption = f"{column.kind}, {domain_text(column)}" + (
        f"; {share(summary.empty, summary.records)} of the cells empty" if summary.empty else ""
    )
    label = f"Cells of {column.name}"
    if column.categories is not None:
        counts = _level_counts(column, summary)
        labels = [str(level) for level in column.categories]
        data: dict[str, Any] = {"labels": labels, "values": counts}
        return Figure(chart="bars", data=data, label=label, title=column.name, caption=caption, x="cells")
    if column.kind == "date" and summary.dates:
        moments = np.concatenate(next(iter(summary.dates.values())).sample)
        numbers = column.numbers(pd.Series(moments))[0]
    elif column.kind == "date":
        numbers = column.numbers(pd.Series(np.concatenate(summary.sample)))[0]
    else:
        numbers = np.concatenate(summary.without(summary.markers()).sample)
    assert column.lower is not None
    assert column.upper is not None
    edges = np.linspace(column.lower, column.upper, BINS + 1)
    low, high = np.quantile(numbers, [0.03, 0.97]).clip(column.lower, column.upper)
    if 0 < NARROWER * (high - low) < column.upper - column.lower:  # a tail that would leave one bar at the bound
        edges = np.unique([column.lower, *np.linspace(low, high, BINS - 1), column.upper])
    drawn, _ = np.histogram(np.clip(numbers, column.lower, column.upper), edges)
    if len(numbers) < summary.filled:
        caption += f"; {number(len(numbers))} cells drawn"
    data = {"counts": drawn.tolist(), "edges": edges.tolist()}
    if column.kind == "date":
        data["ticks"] = [column.label(edge) for edge in edges]
    x = with_unit(column.name, column.unit)
    return Figure(chart="histogram", data=data, label=label, title=column.name, caption=caption, x=x, y="cells")


def _level_counts(column: Column, summary: Summary) -> list[int]:
    texts = summary.texts + (summary.spelled or Counter())
    if texts:
        cells: pd.Series[Any] = pd.Series(list(texts), dtype="str")
        counts = np.fromiter(texts.values(), dtype=np.int64)
    else:
        cells = pd.Series(np.concatenate(summary.sample))
        counts = np.ones(len(cells), dtype=np.int64)
    codes = column.read(cells)[0]
    known = codes >= 0
    drawn = np.bincount(codes[known], weights=counts[known], minlength=len(column.categories or ()))
    return [int(count) for count in drawn]


def round_outwards(smallest: float, largest: float, *, integers: bool = False) -> tuple[float, float]:
    """Bounds around the data at multiples of the power of ten below its range; at least one step apart."""
    spread = largest - smallest or abs(largest) or 1.0
    if not math.isfinite(spread):
        return smallest, largest
    step = Decimal(10) ** math.floor(math.log10(spread))
    if integers:
        step = max(step, Decimal(1))
    lower = (Decimal(repr(smallest)) / step).to_integral_value(ROUND_FLOOR) * step
    upper = (Decimal(repr(largest)) / step).to_integral_value(ROUND_CEILING) * step
    low, high = float(lower), float(upper if upper > lower else lower + step)
    return low, high if high > low else math.nextafter(low, math.inf)  # the smallest numbers there are
