"""What a completion returns: how it went, how good it is, and where each party has its completed table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from colonnade.codec import plain
from colonnade.completion.layout import COHORT_ROW
from colonnade.completion.quality import DONOR, MEAN, fails
from colonnade.errors import RunError
from colonnade.federation.method import Counted, Result
from colonnade.formatting import number
from colonnade.view.blocks import Block, Figure, Heading, Items, Section, Table, Text, View

PARTY_HEAD = (
    "party",
    "records completed",
    "RMSE",
    "of the mean",
    "of a random record",
    "marginal distance",
    "pairwise distance",
    "",
)
COLUMN_HEAD = ("party", "column", "RMSE", "of the mean", "of a random record", "in the table", "distance", "")
BRIEF = (0, 1, 2, 3, 4, 5, 7)
"""Of a column's figures, those for a terminal."""
MOST_COLUMNS = 50
"""A terminal shows no more columns than this."""


@dataclass(frozen=True, kw_only=True)
class Completion(Result):
    """`parties`: {party: file, number of completed records, quality on hidden records}; `chosen`: {party: columns that
    were drawn first}; `downstream`: a label classified with and without completed records.

    The tables themselves are in the parties' folders. `table` reads one where the party runs on this machine; `homes`
    are the folders of those.
    """

    kind: ClassVar[str] = "completion"

    options: Mapping[str, Any]
    n: int
    parties: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, int]
    histories: Mapping[str, Any]
    cost: str
    simulated: bool
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    downstream: Mapping[str, Any] = field(default_factory=dict)
    homes: Mapping[str, Path] = field(default_factory=dict)

    # --- how good it is ------------------------------------------------------------------------------------------

    def quality(self, party: str) -> Mapping[str, Any]:
        """RMSE beside its floors, marginal and pairwise distance of a party's completed entries, on hidden records.

        Parameters
        ----------
        party : its name.

        Returns
        -------
        {measure: value}.
        """
        quality: Mapping[str, Any] = self._of(party)["quality"]
        return quality

    @property
    def _drawn(self) -> bool:
        """Are there values with a scatter of their own?"""
        return self._all_drawn or bool(self.chosen)

    @property
    def _all_drawn(self) -> bool:
        return self.options["imputer"] == "copula-draw" or self.draws > 0

    @property
    def draws(self) -> int:
        """How many completed tables each party has by multiple imputation; 0: one, and not by it."""
        return self.options.get("draws") or 0

    @property
    def failing(self) -> tuple[str, ...]:
        """The parties whose completed entries are no nearer to the truth, on hidden records, than their means; where
        values were drawn, than a random record of theirs. A party about which this cannot be told is among them."""
        if self.options["imputer"] == "mean" and not self._drawn:  # means are no better than means
            return ()
        return tuple(party for party in self._filled if fails(self.quality(party), drawn=self._drawn))

    @property
    def _filled(self) -> tuple[str, ...]:
        """The parties that lacked something; with `draws` the others have tables too."""
        return tuple(party for party, done in self.parties.items() if done["completed"] or done["cells"])

    @property
    def failing_columns(self) -> dict[str, tuple[str, ...]]:
        """{party: its columns of which the same is true, each taken alone}, of the parties that have any. A column that
        was drawn is held against a random record, another one against its mean."""
        failing = {party: self._weak_columns(party) for party in self._filled}
        return {party: names for party, names in failing.items() if names}

    def _weak_columns(self, party: str) -> tuple[str, ...]:
        imputer, chosen = self.options["imputer"], self.chosen.get(party, ())
        return tuple(
            name
            for name, errors in self.quality(party)["columns"].items()
            if (imputer != "mean" or name in chosen) and fails(errors, drawn=name in chosen or self._all_drawn)
        )

    # --- the tables ----------------------------------------------------------------------------------------------

    def table(self, party: str) -> pd.DataFrame:
        """A party's completed table: its columns, each followed by one that says which entries were generated. With
        `draws` it is long: all draws one below the other, numbered in the column `draw`.

        Parameters
        ----------
        party : its name.

        Returns
        -------
        A frame.
        """
        return self._read(party, self._of(party)["file"])

    def blocks(self, draw: int) -> dict[str, pd.DataFrame]:
        """Every party's table of one draw (1, 2, ...), ready for `Federation.local(..., key="cohort row")`.

        Parameters
        ----------
        draw : its number, from 1.

        Returns
        -------
        {party: frame}.
        """
        if not 1 <= draw <= self.draws:
            raise RunError(
                f"there are {self.draws} draws, numbered from 1, and none is {draw!r}; ask for draws= first."
            )
        return {party: self._read(party, done["sources"][draw - 1]) for party, done in self.parties.items()}

    def own(self, party: str) -> pd.DataFrame:
        """A party's own records under their keys, with their empty cells filled in: a table to load as its block.

        Parameters
        ----------
        party : its name.

        Returns
        -------
        A frame.
        """
        return self._single(party, "own")

    def expected(self, party: str) -> pd.DataFrame:
        """A party's completed records before one value was chosen: numbers scaled to [0, 1] by their declared range,
        and a frequency for each category.

        Parameters
        ----------
        party : its name.

        Returns
        -------
        A frame.
        """
        return self._single(party, "expected")

    def _single(self, party: str, name: str) -> pd.DataFrame:
        if self.draws:
            raise RunError("several draws have no such table; `table` has all of them, and `blocks(draw)` one.")
        return self._read(party, self._of(party)[name])

    def _read(self, party: str, name: str) -> pd.DataFrame:
        inside = Path(name).parent == Path("completed")  # the party has said where, and it is said of its own folder
        if party not in self.homes or not inside or not (self.homes[party] / name).is_file():
            raise RunError(f"the completed table of {party!r} is in that party's own folder, as {name}; read it there.")
        path = self.homes[party] / name
        if path.suffix == ".csv":  # a category may be called NA; a key may be too long for a float
            return pd.read_csv(path, keep_default_na=False, na_values=[""], dtype_backend="numpy_nullable")
        return pd.read_parquet(path)

    def _of(self, party: str) -> Mapping[str, Any]:
        if party not in self.parties:
            raise RunError(f"{party!r} was not completed; completed are {', '.join(self.parties)}.")
        return self.parties[party]

    # --- as data -------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        described = {
            **{name: plain(getattr(self, name)) for name in self.__dataclass_fields__ if name not in ("kind", "homes")},
            "failing": list(self.failing),
            "failing columns": {party: list(names) for party, names in self.failing_columns.items()},
        }
        described["parties"] = _finite(described["parties"])
        return described

    @classmethod
    def records_behind(cls, stated: Mapping[str, Any]) -> Iterator[Counted]:
        for party, count in stated["missing"].items():
            yield f"records completed at {party}", count, 0.0

    # --- as people see it ----------------------------------------------------------------------------------------

    def view(self) -> View:
        count = sum(done["completed"] for done in self.parties.values())
        cells = sum(done["cells"] for done in self.parties.values())
        amount = f"{number(count)} records and {number(cells)} empty cells" if cells else f"{number(count)} records"
        title, quality = f"{amount} completed at {', '.join(self._filled)}", self._quality()
        parties = Table(title="Completed parties", head=PARTY_HEAD, rows=self._party_rows(), numeric=(1, 2, 3, 4, 5, 6))
        rows = self._column_rows()
        columns = Table(title="Columns", head=COLUMN_HEAD, rows=rows, numeric=(2, 3, 4, 6))
        last = ("each draw as a source", "sources") if self.draws else ("before one value was chosen", "expected")
        files = tuple((party, done["file"], _span(done[last[1]])) for party, done in self.parties.items())
        classified = (
            Table(
                title="Classification with and without completed records",
                head=("classifier", "hidden records", "accuracy", "largest class"),
                rows=tuple(
                    (name, number(score["records"]), _figure(score["accuracy"], 3), _figure(score["largest class"], 3))
                    for name, score in self.downstream.items()
                ),
                numeric=(1, 2, 3),
            ),
        )
        return View(
            title=title,
            quality=quality,
            answer=(*self._answer(parties), *(classified if self.downstream else ())),
            sections=(Section(title="How it went", blocks=self._details(columns)),),
            terminal=(
                replace(parties, title=title),
                Table(
                    title=quality,
                    head=tuple(COLUMN_HEAD[place] for place in BRIEF),
                    rows=tuple(tuple(row[place] for place in BRIEF) for row in rows[:MOST_COLUMNS]),
                    numeric=(2, 3, 4),
                ),
                Table(
                    title="Completed tables, in the parties' own folders",
                    head=("party", "completed table", last[0]),
                    rows=files,
                ),
                *(classified if self.downstream else ()),
            ),
        )

    def _party_rows(self) -> tuple[tuple[str, ...], ...]:
        return tuple(
            (
                party,
                number(done["completed"]),
                *_floors(done["quality"]),
                _figure(done["quality"]["marginal distance"], 3),
                _figure(done["quality"]["pairwise distance"], 3),
                "fails" if party in self.failing else "",
            )
            for party, done in self.parties.items()
            if party in self._filled
        )

    def _column_rows(self) -> tuple[tuple[str, ...], ...]:
        weak = self.failing_columns
        return tuple(
            (
                party,
                name,
                *_floors(errors),
                _in_plain_terms(errors),
                _figure(self.quality(party)["marginals"].get(name), 3),
                "fails" if name in weak.get(party, ()) else "",
            )
            for party in self._filled
            for name, errors in self.quality(party)["columns"].items()
        )

    def _quality(self) -> str:
        """How near to the truth, in sentences."""
        if self.options["imputer"] == "mean" and not self._drawn:
            return "Every completed entry is its column's mean, as was asked for."
        floor = "a random record of the same party" if self._drawn else "plain means"
        unknown = [party for party in self._filled if not _exists(self.quality(party)["rmse"])]
        failing = [party for party in self.failing if party not in unknown]
        good = [party for party in self._filled if party not in self.failing]
        sentences = []
        if unknown:
            sentences.append(
                f"At {', '.join(unknown)} there was no record to hide, so it is not known how good the completion is."
            )
        if failing:
            sentences.append(
                f"At {', '.join(failing)} the completion fails: its entries are no nearer to the truth than {floor}."
                " Do not use it."
            )
        if good:
            where = f"At {', '.join(good)} the" if unknown or failing else "On hidden records the"
            sentences.append(f"{where} completed entries are nearer to the truth than {floor}, by as much as is shown.")
        columns = self.failing_columns
        weak = [f"{', '.join(columns[party])} at {party}" for party in good if party in columns]
        if weak:
            yardstick = "a random record's" if self._all_drawn else "their means"
            drawn = " (where they were drawn, than those of a random record)" if self.chosen else ""
            sentences.append(f"Taken alone, these columns are no nearer than {yardstick}{drawn}: {'; '.join(weak)}.")
        return " ".join(sentences)

    def _answer(self, parties: Table) -> tuple[Block, ...]:
        options = self.options
        drawn = f" {options['n_correlated']} columns drawn first by {options['generator']};" if self.chosen else ""
        several = f", {self.draws} draws" if self.draws else ""
        hidden = "from every network"
        if options["imputer"] in ("copula-mean", "copula-draw", "mice"):
            hidden = (
                "when they were completed, though not from the moments, which rest on all records: with few records the"
                " figures are too good"
            )
        masking = {"pads": "pairwise pads", "ckks": "CKKS encryption"}[options["masking"]]
        return (
            Text(text=f"Imputer: {options['imputer']}{several};{drawn} hidden vectors under {masking}.", style="lead"),
            *self._figures(),
            parties,
            Text(
                text=f"All figures are on records that the party has and that were hidden {hidden}. RMSE is on scaled"
                " numbers and indicators of categories. Distances compare the completed values with the true ones: 0 is"
                " the same distribution, or the same association within the party.",
                style="soft",
            ),
            Text(
                text="The completed tables are in the parties' own folders. A column named '(generated)' beside each"
                " column flags the generated entries; treat them as estimates, not as observations."
            ),
        )

    def _figures(self) -> tuple[Figure, ...]:
        """One for each party: its columns' errors beside both floors, those with most gained first."""
        figures = []
        for party in self.parties:
            known = {
                name: errors
                for name, errors in self.quality(party)["columns"].items()
                if all(_exists(errors[what]) for what in ("rmse", MEAN, DONOR))
            }
            ordered = sorted(known, key=lambda name: known[name]["rmse"] - known[name][MEAN])
            if not ordered:
                continue
            series = {"completed": "rmse", "the column's mean": MEAN, "a random record (donor)": DONOR}
            figures.append(
                Figure(
                    name=f"errors at {party}" if len(self.parties) > 1 else "errors",
                    chart="dots",
                    data={
                        "labels": ordered,
                        "series": {label: [known[name][what] for name in ordered] for label, what in series.items()},
                    },
                    label=f"Errors of {party}'s completed columns beside those of means and of random records",
                    title=f"Errors at {party}, by column",
                    x="root mean squared error on hidden records (1: the declared range)",
                    caption="Filled dots should lie left of the diamonds; where values were drawn, of the squares.",
                )
            )
        return tuple(figures)

    def _details(self, columns: Table) -> tuple[Block, ...]:
        steps = [
            f"{label}: {history['rounds']} rounds; {history['stopped']}; least error over hidden records: "
            + (", ".join(f"{party} {_figure(error)}" for party, error in history["best"].items()) or "none was watched")
            + "."
            for label, history in self.histories.items()
        ]
        steps += [f"Drawn first at {party}: {', '.join(names)}." for party, names in self.chosen.items()]
        steps += [
            f"{party}: {done['file']} in its folder with all draws, and {_span(done['sources'])}, each draw as a source"
            f" with the key '{COHORT_ROW}'."
            if self.draws
            else f"{party}: {done['file']} in its folder, {done['own']} with its own records, to load as its block, and"
            f" {done['expected']} with numbers and frequencies before one value was chosen."
            for party, done in self.parties.items()
        ]
        return (
            Items(items=tuple(steps)),
            Heading(text="Every column"),
            columns,
            Text(
                text="RMSE is on the scale of the declared range, or of indicators. 'In the table' is the root mean"
                " squared error of the completed numbers in the column's own units (positions, if it is ordinal), or"
                " how many completed categories are right. The distance compares the distributions.",
                style="soft",
            ),
        )


def _span(names: str | Sequence[str]) -> str:
    """One file, or the first and the last of several."""
    return names if isinstance(names, str) else f"{names[0]} to {names[-1]}"


def _finite(value: Any) -> Any:
    """As JSON has it: a figure that does not exist (of too few hidden records, say) is null."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _exists(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _figure(value: float | None, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if _exists(value) else "-"


def _floors(errors: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_figure(errors[name]) for name in ("rmse", MEAN, DONOR))


def _in_plain_terms(errors: Mapping[str, Any]) -> str:
    """A column's error in its own units, or how many categories are right."""
    if "right" not in errors:
        return f"off by {errors['error']:.3g} {errors.get('unit', '')}".rstrip() if _exists(errors["error"]) else "-"
    if not _exists(errors["right"]):
        return "-"
    return f"{errors['right']:.0%} right; the most frequent: {errors['right if the most frequent']:.0%}"
