"""What the studies of `Classify` share: a table split between parties, fits from the integers that the protocol would
open, and trusted DP-SGD, tuned on a part of its own of the training rows."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from benchmarks.rivals.dp_sgd import dp_sgd
from benchmarks.rivals.non_private import accuracy
from colonnade.data.column import Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.federation.options import View
from colonnade.federation.roster import Member, Roster
from colonnade.models.classify import Classify
from colonnade.models.glm.attacks import plain_score
from colonnade.models.glm.private import (
    UNITS_SHARE,
    NoisyScores,
    NoisyScoreStages,
    PrivateScores,
    Units,
    descent,
    units_of,
)
from colonnade.models.matrix import feature_matrix, norm_bounds
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.features import features

CLIP = math.sqrt(0.75)
"""Of the norm that a party's columns can reach, for rows in declared units: a rule without data."""
Fit = tuple[float, NDArray[np.float64]]
"""(intercept, coefficients)."""


def auc(scores: NDArray[np.float64], sign: NDArray[np.float64]) -> float:
    """The area under the ROC curve, from ranks."""
    event = sign > 0
    count = int(event.sum())
    return float((rankdata(scores)[event].sum() - count * (count + 1) / 2) / (count * (len(sign) - count)))


@dataclass(frozen=True, kw_only=True)
class Task:
    """Training and test rows of one table; `owners` says which party has which columns."""

    name: str
    train: pd.DataFrame
    test: pd.DataFrame
    declared: Columns
    owners: Mapping[str, Sequence[str]]
    response: str

    @cached_property
    def facts(self) -> PublicFacts:
        return PublicFacts(
            n=len(self.train), columns={party: self.declared.select(names) for party, names in self.owners.items()}
        )

    @cached_property
    def roster(self) -> Roster:
        members = tuple(
            Member(name=party, organisation=party, public_key=bytes([at]) * 32) for at, party in enumerate(self.owners)
        )
        return Roster(members=members, committee=tuple(self.owners))

    @cached_property
    def explaining(self) -> tuple[str, ...]:
        return tuple(name for names in self.owners.values() for name in names if name != self.response)

    def rows(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        return feature_matrix(frame, features(self.facts, self.explaining), self.declared)

    def sign(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        event = (self.declared[self.response].categories or (0, 1))[1]
        return np.where(frame[self.response].to_numpy() == event, 1.0, -1.0)

    @cached_property
    def plain(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.rows(self.train), self.sign(self.train)

    @cached_property
    def testing(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.rows(self.test), self.sign(self.test)

    def own(self, party: str) -> list[int]:
        """Where a party's features are."""
        wanted = features(self.facts, self.explaining)
        return [at for at, feature in enumerate(wanted) if feature.party == party]

    @cached_property
    def training(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """In declared units, each party's part within the norm that moments clip it to; the response apart."""
        plain, sign = self.plain
        rows = plain.copy()
        for party, bound in norm_bounds(self.facts, self.explaining, CLIP).items():
            mine = self.own(party)
            norms = np.linalg.norm(rows[:, mine], axis=1, keepdims=True)
            rows[:, mine] *= np.minimum(1.0, bound / np.maximum(norms, 1e-300))
        return rows, sign

    @cached_property
    def norm(self) -> float:
        """Of (1, features) in declared units: columns of norm at most 1, clipped."""
        return math.sqrt(1 + CLIP**2 * len(self.explaining))

    @cached_property
    def majority(self) -> float:
        _, sign = self.testing
        return float(max(np.mean(sign > 0), np.mean(sign < 0)))

    def score(self, intercept: float, coef: NDArray[np.float64]) -> dict[str, float]:
        """On the test rows."""
        rows, sign = self.testing
        return {"accuracy": accuracy(rows, sign, intercept, coef), "auc": auc(rows @ coef + intercept, sign)}


# --- rounds, with the same integers as the protocol --------------------------------------------------------------


@lru_cache(maxsize=32)
def _planned(task: Any, epsilon: float | None, delta: float, view: View) -> PrivateScores:
    return PrivateScores(
        task.value.facts,
        task.value.roster,
        response=task.value.response,
        columns=task.value.explaining,
        epsilon=epsilon,
        delta=delta,
        view=view,
        relation="zero-out",
    )


class _Same:
    """The very same object, as a key."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


def planned(task: Task, epsilon: float | None, delta: float, view: View = "client") -> PrivateScores:
    return _planned(_Same(task), epsilon, delta, view)


class PlainRounds:
    """Units and scores of one run without the messages: each party's own integers, and noise of the same law."""

    def __init__(self, task: Task, made: PrivateScores, randomness: SimulatedRandomness) -> None:
        self.task, self.made, self.randomness = task, made, randomness
        rows, sign = task.plain
        self.values = {party: rows[:, task.own(party)] for party in made.layout.parties}
        self.event = sign.astype(np.int64)
        self.rows: dict[str, NDArray[np.int64]] = {}

    def units(self) -> Units:
        told = {}
        for party, shape in self.made.sums.items():
            everyone = np.ones(len(self.event), dtype=bool)
            exact = shape.exact(self.values[party], everyone, self.event > 0, self.randomness)
            mu = self.made.mus[party]
            told[party] = exact + (skellam(self.randomness, Fraction(mu), shape.size) if mu else 0)
        return units_of(self.made.layout, told, self.made.mus)

    def score(self, turn: int, coefficients: NDArray[np.float64], units: Units) -> NDArray[np.float64]:
        chosen = {"turn": turn, "coefficients": coefficients.tolist(), **units.chosen}
        layout: NoisyScores = self.made.layout.with_chosen(
            **{name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()}
        )
        everyone = np.ones(len(self.event), dtype=bool)
        parts = {
            party: layout.quantised(party, values, everyone, self.event, self.randomness)
            for party, values in self.values.items()
        }
        if turn == 0:
            self.rows = {party: parts[party][:, : len(layout.place(party))] for party in parts}
        opened = plain_score(layout, parts, self.rows)
        if layout.mu:
            opened = opened + skellam(self.randomness, Fraction(layout.mu), layout.size)
        return np.asarray(opened.astype(np.float64) * (units.length / (layout.gamma * layout.scale)))

    def fit(self) -> Fit:
        units = self.units()
        turns = iter(range(self.made.layout.rounds))
        return descent(self.made.layout, units, lambda point: self.score(next(turns), point, units))


def rounds_fit(task: Task, epsilon: float | None, run: int, *, delta: float, view: View = "client") -> Fit:
    randomness = SimulatedRandomness(run, f"classify {task.name} {epsilon}")
    return PlainRounds(task, planned(task, epsilon, delta, view), randomness).fit()


def federation_rounds(task: Task, *, delta: float) -> dict[str, float]:
    """The real federation, without noise and with it: in how many entries what is opened differs from the fast path's
    score of what the parties have shared (all of them are in this process), the variance of the noise over the stated
    one, and what the private fit scores."""
    blocks = {
        party: task.train[list(own)].assign(record=np.arange(len(task.train))) for party, own in task.owners.items()
    }
    layouts: dict[int, NoisyScores] = {}
    parts: dict[int, dict[str, NDArray[np.int64]]] = {}
    opened: dict[int, NDArray[np.float64]] = {}
    quantised, opening = NoisyScores.quantised, NoisyScoreStages.round

    def shared(layout: NoisyScores, party: str, *rest: Any) -> NDArray[np.int64]:
        layouts[layout.turn] = layout
        parts.setdefault(layout.turn, {})[party] = quantised(layout, party, *rest)
        return parts[layout.turn][party]

    def joined(stages: NoisyScoreStages, job: Any, turn: int, *rest: Any) -> NDArray[Any]:
        opened[turn] = opening(stages, job, turn, *rest)
        return opened[turn]

    def differences() -> NDArray[np.float64]:
        rows = {party: part[:, : len(layouts[0].place(party))] for party, part in parts[0].items()}
        return np.concatenate(
            [
                opened[turn].astype(float) - plain_score(layout, parts[turn], rows)[layout.order]
                for turn, layout in layouts.items()
            ]
        )

    NoisyScores.quantised, NoisyScoreStages.round = shared, joined  # type: ignore[method-assign, assignment]
    try:
        with tempfile.TemporaryDirectory() as folder:
            federation = Federation.local(
                blocks,
                key="record",
                columns=task.declared,
                allow=("exact-moments", "exact-scores"),
                home=f"{folder}/home",
                runs=f"{folder}/runs",
            )
            with federation:
                Classify(response=task.response, epsilon=None, solver="rounds").fit(federation, sure=True)
                exact = differences()
                on = Classify(response=task.response, epsilon=1.0, delta=delta).fit(federation, sure=True)
                noise = differences()
    finally:
        NoisyScores.quantised, NoisyScoreStages.round = quantised, opening  # type: ignore[method-assign]
    assert on.solver == "rounds"
    return {
        "different": float(np.sum(exact != 0)),
        "entries": float(len(exact)),
        "ratio": float(np.mean(noise**2) / (2 * layouts[0].mu)),
        **task.score(float(on.intercept_[0]), on.coef_[0]),
    }


# --- trusted DP-SGD ---------------------------------------------------------------------------------------------

SHOWN = ("declared", "private")
"""The units of DP-SGD's rows: as declared, clipped by a rule without data; or as our rounds have them, for a tenth of
the budget, with noise of one trusted place."""


def shown_rows(
    task: Task, shown: str, epsilon: float, delta: float, rng: np.random.Generator, places: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float, NDArray[np.float64]]:
    """(rows of norm at most 1 with a constant first, the unit of each feature, that of the constant, centres)."""
    if shown == "declared":
        rows, _ = task.training
        width = rows.shape[1]
        table = np.column_stack([np.ones(len(places)), rows[places]]) / task.norm
        return table, np.full(width, 1 / task.norm), 1 / task.norm, np.zeros(width)
    made = planned(task, epsilon, delta, "server")
    rows, sign = task.plain
    randomness = SimulatedRandomness(int(rng.integers(2**31)), "units")
    told = {}
    for party, shape in made.sums.items():
        everyone = np.ones(len(places), dtype=bool)
        exact = shape.exact(rows[np.ix_(places, task.own(party))], everyone, sign[places] > 0, randomness)
        told[party] = exact + np.rint(rng.normal(scale=math.sqrt(2 * made.mus[party]), size=shape.size)).astype(int)
    units = units_of(made.layout, told, made.mus)
    scale = units.scales / units.length
    table = (rows[places] - units.centres) * scale
    for party, norm in zip(made.layout.parties, units.norms[1:], strict=True):
        mine = task.own(party)
        lengths = np.linalg.norm(table[:, mine], axis=1, keepdims=True)
        table[:, mine] *= np.minimum(1.0, norm / np.maximum(lengths, 1e-300))
    constant = np.full((len(table), 1), units.norms[0])
    return np.hstack([constant, table]), scale, float(units.norms[0]), units.centres


def sgd_fit(
    task: Task,
    epsilon: float,
    choice: str,
    run: int,
    *,
    delta: float,
    schedules: Mapping[str, tuple[float, int]],
    places: NDArray[np.intp] | None = None,
) -> Fit:
    """`choice` is "units schedule rate"; `places` are training rows, all by default."""
    shown, schedule, rate = choice.split()
    rng = np.random.default_rng(run)
    used = np.arange(len(task.train)) if places is None else places
    table, unit, constant, centres = shown_rows(task, shown, epsilon, delta, rng, used)
    sampling, rounds = schedules[schedule]
    weights = dp_sgd(
        table,
        task.sign(task.train)[used],
        epsilon=epsilon,
        delta=delta,
        sampling=sampling,
        rounds=rounds,
        learning_rate=float(rate),
        rng=rng,
        before=UNITS_SHARE if shown == "private" else 0.0,
    )
    coef = weights[1:] * unit
    return float(weights[0] * constant - coef @ centres), coef


def sgd_tuned(
    task: Task,
    epsilon: float,
    *,
    delta: float,
    schedules: Mapping[str, tuple[float, int]],
    rates: Mapping[str, Sequence[float]],
    by: str,
) -> dict[str, float]:
    """`by` (accuracy or auc) of each choice on a fifth of the training rows, fitted on the others, two runs."""
    rows, sign = task.plain
    held = np.arange(len(rows)) % 5 == 0
    found = {}
    for shown in SHOWN:
        for schedule in schedules:
            for rate in rates[schedule]:
                choice = f"{shown} {schedule} {rate:g}"
                values = []
                for run in (100, 101):
                    intercept, coef = sgd_fit(
                        task, epsilon, choice, run, delta=delta, schedules=schedules, places=np.flatnonzero(~held)
                    )
                    told = {
                        "accuracy": accuracy(rows[held], sign[held], intercept, coef),
                        "auc": auc(rows[held] @ coef, sign[held]),
                    }
                    values.append(told[by])
                found[choice] = float(np.mean(values))
    return found


def told(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1) / math.sqrt(len(values)):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"
