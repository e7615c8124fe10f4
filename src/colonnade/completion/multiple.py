"""Multiple imputation: m completed tables of every party, each from parameters that were drawn first.

1. Exact moments by pattern of presence, as for chained equations. The coordinator draws m pairs (mean, covariance) from
   what these say of them (`statistics/gaussian_draws.py`); no further exchange is needed for that.
2. The parties are completed one after the other. Of the next one the others send, for each record and draw, linear
   predictors of its features from theirs, which it alone can open summed up; a party that was completed before sends
   what it has drawn. So what two parties lack of one record is drawn jointly: the second given the first.
3. The party draws by predictive mean matching (`matching.py`) and writes its m tables.

The m tables of all parties have the cohort's rows as their common key: the k-th of each are one complete table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.completion import quality
from colonnade.completion.conditional import pattern_name, pattern_parties, patterns_of
from colonnade.completion.layout import COHORT_ROW, DRAW, GENERATED
from colonnade.completion.matching import Conditional, Expected, OwnRows
from colonnade.completion.moment_imputers import (
    MOMENTS,
    alike,
    collect_linear,
    linear_exchange,
    own_features,
    rows_of_pattern,
)
from colonnade.completion.split.exchange import Keys, Masking
from colonnade.completion.split.rounds import SUM, Planner
from colonnade.completion.split.session import column_means, presence_of
from colonnade.completion.split.training import CHUNK, row_chunks
from colonnade.completion.steps import COMPLETED_COST, FileFormat, OwnTable, key_name, keys_of, write_table
from colonnade.errors import NotEstimable
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.stage import Later
from colonnade.federation.step import Public, Release, Size, step
from colonnade.privacy.cost import Cost, Unbounded
from colonnade.statistics.features import EMPTY, Feature, features
from colonnade.statistics.gaussian_draws import posterior_draws
from colonnade.statistics.joint import once
from colonnade.synthesis.copula.estimate import available, gaussian_moments, pattern_statistics, visible_patterns

DRAWN = "draws"
"""What a party keeps of its draws."""
MOST_DRAWS = 1_000
MAPS = Later(
    "finite matrices of the planned shapes for each pattern of presence and each draw; the coordinator computes them"
    " from the moments, which no party can check",
    alike,
)


# --- the coordinator's procedure ----------------------------------------------------------------------------------


class MultipleImputation:
    """The moments, then for each party the others' sums and its draws."""

    def __init__(self, draws: int, masking: Masking, finishing: Mapping[str, Any], planner: Planner) -> None:
        self.facts, self.draws, self.seed = planner.facts, draws, int(finishing["seed"])
        parties = self.facts.parties
        self.moments = MOMENTS.procedure(planner.facts, planner.roster)
        self.features = features(self.facts)
        self.exchanges = {target: linear_exchange(target, "draws", parties, masking) for target in parties}
        self.send, self.collect, self.complete = {}, {}, {}
        for target in parties:
            width = len(self._own(target))
            common: dict[str, Any] = {"members": list(parties), "masking": masking}
            parts = [{**common, "part": part} for part in range(len(row_chunks(self.facts.n)))]
            sent = {
                party: [
                    {
                        **part,
                        "target": target,
                        "before": self._before(target),
                        "draws": draws,
                        "maps": self._maps_shape(party, target),
                    }
                    for part in parts
                ]
                for party in parties
                if party != target
            }
            self.send[target] = planner(
                f"linear parts of every draw for {target}",
                drawn_part,
                sent,
                f"linear predictors of every draw, which only {target!r} can open, summed over the senders",
                8 * min(self.facts.n, CHUNK) * 2 * draws * width,
                later={"maps": MAPS},
            )
            self.collect[target] = planner(
                f"linear sums of every draw at {target}",
                collect_linear,
                {target: [{**part, "scores": "draws", "width": 2 * draws * width, "total": None} for part in parts]},
                "nothing",
                later=SUM,
            )
            self.complete[target] = planner(
                f"draws of {target}",
                complete_draws,
                {
                    target: [
                        {
                            "before": self._before(target),
                            "draws": draws,
                            "law": self._law_shape(target),
                            **finishing,
                        }
                    ]
                },
                "how near drawn entries are to the truth, on hidden records",
                500 + 250 * len(self.facts.columns[target]),
                later={"law": MAPS},
            )
        stages_of = ((self.send[target], self.collect[target], self.complete[target]) for target in parties)
        self.stages = (*self.moments.stages, *(stage for stages in stages_of for stage in stages))

    def _own(self, party: str) -> NDArray[np.intp]:
        return np.array([k for k, feature in enumerate(self.features) if feature.party == party], dtype=np.intp)

    def _before(self, target: str) -> list[str]:
        return list(self.facts.parties[: self.facts.parties.index(target)])

    def _patterns(self, target: str) -> list[tuple[str, ...]]:
        """Who may be known of a record when a party is completed: all before it, and any of the others."""
        before = self._before(target)
        others = [party for party in self.facts.parties if party != target]
        later = [party for party in others if party not in before]
        known = [{*before, *present} for present in ((), *patterns_of(later))]
        return [tuple(party for party in others if party in each) for each in known]

    def _maps_shape(self, party: str, target: str) -> dict[str, Any]:
        shape = (self.draws + 1, len(self._own(target)), len(self._own(party)))
        return {pattern_name(known): np.zeros(shape) for known in self._patterns(target) if party in known}

    def _law_shape(self, target: str) -> dict[str, Any]:
        width, patterns = len(self._own(target)), [pattern_name(known) for known in self._patterns(target)]
        return {
            "intercept": {name: np.zeros((self.draws + 1, width)) for name in patterns},
            "left": {name: np.zeros((self.draws + 1, width, width)) for name in patterns},
        }

    def run(self, job: Job, keys: Keys, missing: Mapping[str, int]) -> dict[str, Any]:
        """{party: what its last step tells}."""
        laws = self._laws(job)
        parties: dict[str, Any] = {}
        for target in self.facts.parties:
            law = self._law_shape(target)
            if missing[target]:
                maps, law = self._maps(target, laws)
                for _ in range(self.collect[target].rounds):
                    replies = job.ask_each(
                        self.send[target], {party: {"maps": matrices} for party, matrices in maps.items()}
                    )
                    parts = {party: reply["parts"] for party, reply in replies.items()}
                    job.ask(self.collect[target], total=self.exchanges[target].add(parts, keys))
            parties |= job.ask(self.complete[target], law=law)
        return parties

    def _laws(self, job: Job) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """(mean, covariance) as estimated, and then of every draw."""
        moments = self.moments.run(job)
        used = visible_patterns(moments)
        pairs = available(moments, used)
        apart = np.argwhere(pairs.shared < 0.5)
        if apart.size:
            a, b = (moments.parties[place] for place in apart[0])
            raise NotEstimable(
                f"no record is at both {a!r} and {b!r}, so nothing tells how their columns go together; complete with"
                " a third party's records, or without one of the two."
            )
        estimated = gaussian_moments(moments, used, pairs)
        generator = np.random.default_rng((self.seed, 8))
        return [estimated, *posterior_draws(pattern_statistics(moments, used), estimated, self.draws, generator)]

    def _maps(
        self, target: str, laws: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """({sender: {pattern: slopes of every law}}, {part: {pattern: of every law}} for the target)."""
        own = self._own(target)
        senders: dict[str, dict[str, Any]] = {party: {} for party in self.facts.parties if party != target}
        law: dict[str, Any] = {"intercept": {}, "left": {}}
        for known in self._patterns(target):
            name = pattern_name(known)
            places = np.array([k for k, feature in enumerate(self.features) if feature.party in known], dtype=np.intp)
            each = [Conditional.of(mean, covariance, own, places) for mean, covariance in laws]
            law["intercept"][name] = np.array([conditional.intercept for conditional in each])
            law["left"][name] = np.array([conditional.left for conditional in each])
            slopes = np.array([conditional.slopes for conditional in each])
            for party in known:
                columns = np.flatnonzero([self.features[place].party == party for place in places])
                senders[party][name] = slopes[:, :, columns]
        return senders, law


# --- the parties' steps -------------------------------------------------------------------------------------------


def _drawn_cost(public: Public, *, target: str, draws: int, **_: Any) -> Cost:
    shown = (
        f"{2 * draws} sums of linear predictors of its columns by record for each feature of {target!r}, with"
        " coefficients that the coordinator sets (their errors to the coordinator): enough to solve for the columns of"
        f" a party that is alone in them, to {target!r}"
    )
    return Unbounded("linear-predictors", shown, audience=f"{target}, coordinator")


def own_places(every: Sequence[Feature], names: Sequence[str], *, empty: bool) -> list[NDArray[np.intp]]:
    """The places of each column's features, with or without that of the empty cell."""
    return [
        np.array(
            [
                place
                for place, feature in enumerate(every)
                if feature.column == name and (empty or feature.category != EMPTY)
            ],
            dtype=np.intp,
        )
        for name in names
    ]


def with_donors(
    values: NDArray[Any], part: slice, rows: NDArray[np.int64], donors: NDArray[np.int64], places: Sequence[Any]
) -> NDArray[Any]:
    """A part of the rows with each lost column as its donor has it; `rows` ascend, `places` are a column's own."""
    out = values[part].copy()
    inside = slice(*np.searchsorted(rows, [part.start, part.stop]))
    for column, entries in enumerate(places):
        chosen = donors[inside, column]
        lost = chosen >= 0
        out[np.ix_(rows[inside][lost] - part.start, entries)] = values[np.ix_(chosen[lost], entries)]
    return out


@step(cost=_drawn_cost)
def drawn_part(
    me: Party,
    *,
    target: str,
    before: list[str],
    draws: Annotated[int, Size(MOST_DRAWS)],
    maps: dict[str, Any],
    members: list[str],
    masking: Masking,
    part: int,
) -> Release:
    """This party's features of one chunk of records, as they are in each draw, times the matrices of each record's
    pattern: those of the draw, and the estimated ones."""
    exchange = linear_exchange(target, "draws", members, masking)
    rows = slice(*row_chunks(me.facts.n)[part])
    known = _known(me, before, rows)
    every, own = own_features(me)
    places = own_places(every, list(me.facts.columns[me.name]), empty=True)
    stored = me.recall(DRAWN) if me.name in before else None
    width = next(iter(maps.values())).shape[1]
    parts = np.zeros((rows.stop - rows.start, draws, 2, width), dtype=np.float32)
    chosen = {name: rows_of_pattern(known, exchange.senders, pattern_parties(name)) for name in maps}
    for draw in range(draws):
        values = own[rows] if stored is None else with_donors(own, rows, stored["rows"], stored["donors"][draw], places)
        for name, matrices in maps.items():
            records = chosen[name]
            for place, number in enumerate((draw + 1, 0)):
                parts[records, draw, place] = values[records] @ np.asarray(matrices[number], dtype=np.float64).T
    once(me, f"{exchange.label}: chunk {part}")
    value = exchange.hide(me, parts, part)
    return Release({"parts": value}, f"linear predictors that only {target!r} can open, summed over the senders")


def _known(me: Party, before: Sequence[str], rows: slice) -> dict[str, NDArray[np.bool_]]:
    """Of which records each party's columns are known: those that it has, or all, once it is completed."""
    return {party: present[rows] | (party in before) for party, present in presence_of(me).items()}


@step(cost=COMPLETED_COST)
def complete_draws(
    me: Party,
    *,
    before: list[str],
    draws: Annotated[int, Size(MOST_DRAWS)],
    law: dict[str, Any],
    validation: float,
    seed: int,
    file_format: FileFormat,
) -> Release:
    """Draw what this party lacks, write the tables here, and tell how good the first is on the hidden records."""
    table = OwnTable.of(me, validation=validation, seed=seed)
    names = list(me.facts.columns[me.name])
    empty = np.zeros((me.facts.n, len(names)), dtype=np.bool_)
    for column, name in enumerate(names):
        empty[table.gaps, column] = np.isnan(table.truth[table.gaps, table.layout.slices[name].start])
    lost = empty.copy()
    lost[table.lacking] = True
    rows = np.flatnonzero(lost.any(axis=1))
    donors = np.full((draws, rows.size, len(names)), -1, dtype=np.int64)
    hidden = table.layout.encode({name: me.column(name)[:0] for name in names})
    watched = table.watched[:0]
    if rows.size:  # otherwise nothing was opened
        drawing = _Drawing(me, before, draws, law, seed)
        complete = np.zeros(me.facts.n, dtype=np.bool_)
        complete[table.present] = True
        complete[table.gaps] = False
        for draw in range(draws):
            donors[draw] = drawing.donors(draw, rows, lost[rows], complete)
        watched = table.watched
        complete[watched] = False
        match = drawing.donors(0, watched, np.ones((watched.size, len(names)), dtype=np.bool_), complete)
        hidden = table.layout.encode({name: me.column(name)[match[:, k]] for k, name in enumerate(names)})
    me.keep(DRAWN, {"rows": rows, "donors": donors})
    summary = quality.summary(
        table.layout,
        hidden,
        table.truth[watched],
        means=table.means,
        variances=column_means(np.square(table.seen - table.means.astype(np.float32))),
    )
    value = {
        **_written(me, table, rows, lost, donors, file_format),
        "completed": int(table.lacking.size),
        "cells": int(empty.sum()),
        "quality": summary,
    }
    return Release(value, "how many records and empty cells were drawn, and how near to the truth on hidden ones")


class _Drawing:
    """What the others have said of this party's records, in every draw."""

    def __init__(self, me: Party, before: Sequence[str], draws: int, law: Mapping[str, Any], seed: int) -> None:
        self.every, self.features = own_features(me)
        self.places = own_places(self.every, list(me.facts.columns[me.name]), empty=False)
        self.seed = (seed, 9, me.facts.parties.index(me.name))
        sums = np.concatenate([me.recall(f"linear {part}") for part in range(len(row_chunks(me.facts.n)))])
        self.opened = sums.reshape(len(sums), draws, 2, len(self.every))
        nothing = pattern_name(())
        names = sorted(law["left"], key=lambda name: (name == nothing, name))  # no pattern is the last, -1
        self.intercept = np.array([law["intercept"][name] for name in names])
        self.left = {(-1 if name == nothing else place): law["left"][name] for place, name in enumerate(names)}
        self.pattern = np.full(me.facts.n, -1, dtype=np.int64)
        known = _known(me, before, slice(0, me.facts.n))
        others = [party for party in known if party != me.name]
        for place, name in enumerate(names):
            if name != nothing:
                self.pattern[rows_of_pattern(known, others, pattern_parties(name))] = place

    def donors(
        self, draw: int, rows: NDArray[np.intp], lost: NDArray[np.bool_], complete: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        drawn, estimated = (
            self.opened[:, draw, place] + self.intercept[self.pattern, number]
            for place, number in enumerate((draw + 1, 0))
        )
        of_draw, of_estimate = ({key: left[number] for key, left in self.left.items()} for number in (draw + 1, 0))
        block = OwnRows(self.features, self.places, rows, lost, self.pattern, complete)
        generator = np.random.default_rng((*self.seed, draw, len(rows)))
        return block.drawn(Expected(drawn, estimated, of_draw, of_estimate), generator)


def _written(
    me: Party,
    table: OwnTable,
    rows: NDArray[np.intp],
    lost: NDArray[np.bool_],
    donors: NDArray[np.int64],
    file_format: FileFormat,
) -> dict[str, Any]:
    """One long table with every draw, and each draw alone with the cohort's rows as its key: a source."""
    names = list(me.facts.columns[me.name])
    shown = np.union1d(table.present, table.lacking)
    long, sources = [], []
    for draw, donor in enumerate(donors, 1):
        frame = pd.DataFrame({DRAW: draw, COHORT_ROW: shown})
        frame[key_name(me)] = keys_of(me).iloc[shown].array
        for place, name in enumerate(names):
            values = me.column(name).copy()
            drawn = donor[:, place] >= 0
            values[rows[drawn]] = values[donor[drawn, place]]
            frame[name] = me.facts.columns[me.name][name].decode(values[shown]).to_numpy()
            frame[f"{name}{GENERATED}"] = lost[shown, place]
        sources.append(write_table(me, frame[[COHORT_ROW, *names]], f"{me.job}.draw-{draw}.{file_format}"))
        long.append(frame)
    return {"file": write_table(me, pd.concat(long, ignore_index=True), f"{me.job}.{file_format}"), "sources": sources}
