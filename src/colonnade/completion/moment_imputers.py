"""Imputers from joint moments: the conditional copula and chained equations (`conditional.py` has the mathematics).

Exact moments first, which a committee of three computes on secret shares; they give linear maps, one for each pattern
of presence; then each party that is completed opens the sums of what the maps make of the others' records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.completion.conditional import (
    Maps,
    chained,
    chained_maps,
    conditional_draw,
    conditional_mean,
    copula_maps,
    feature_rows,
    latent_scores,
    pattern_name,
    pattern_parties,
    patterns_of,
)
from colonnade.completion.layout import Layout, Matrix
from colonnade.completion.split.exchange import Exchange, Keys, Masking
from colonnade.completion.split.rounds import SUM, Planner
from colonnade.completion.split.session import presence_of
from colonnade.completion.split.training import CHUNK, row_chunks
from colonnade.data.aggregation import is_empty
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.stage import Later
from colonnade.federation.step import Public, Release, Size, step
from colonnade.privacy.cost import Cost, Free, Unbounded
from colonnade.statistics.features import EMPTY, Feature, column_features, design, features
from colonnade.statistics.joint import binding, once
from colonnade.statistics.marginals import Marginal
from colonnade.statistics.moments import Moments
from colonnade.synthesis.copula.estimate import available, estimate, gaussian_moments, visible_patterns
from colonnade.synthesis.copula.procedure import CopulaReleases
from colonnade.synthesis.method import Synthesize

COPULA = Synthesize(model="copula", epsilon=None, presence="known")
MOMENTS = Moments(epsilon=None, presence="known", gamma=2**16)

Scores = Literal["latent", "features", "draws"]
"""What a party's part is a linear map of."""

LARGEST_ENTRY = 1e9
"""Of a matrix that the coordinator sets; equations of nearly equal columns have large coefficients."""
LARGEST_MARGINAL = 1 << 17
"""Points of one distribution function."""


# --- the coordinator's procedure ----------------------------------------------------------------------------------


class MomentImputation:
    """Moments, then the sums at each target; `run` gives {target: what it needs to make values of its sums}."""

    def __init__(self, imputer: str, masking: Masking, targets: Sequence[str], planner: Planner) -> None:
        self.facts = planner.facts
        self.scores: Scores = "features" if imputer == "mice" else "latent"
        self.copula = None if imputer == "mice" else CopulaReleases(COPULA, planner.facts, planner.roster)
        self.moments = self.copula.moments if self.copula else MOMENTS.procedure(planner.facts, planner.roster)
        self.exchanges = {
            target: linear_exchange(target, self.scores, planner.facts.parties, masking) for target in targets
        }
        self.send, self.collect = {}, {}
        for target in targets:
            common: dict[str, Any] = {
                "scores": self.scores,
                "members": list(planner.facts.parties),
                "masking": masking,
            }
            parts = [{**common, "part": part} for part in range(len(row_chunks(planner.facts.n)))]
            sent = {
                party: [{**part, "target": target, **self._for_sender(party, target)} for part in parts]
                for party in planner.facts.parties
                if party != target
            }
            self.send[target] = planner(
                f"linear parts for {target}",
                linear_part,
                sent,
                f"linear predictors, which only {target!r} can open, summed over the senders",
                8 * min(planner.facts.n, CHUNK) * 64,
                later={
                    "maps": Later(
                        "a finite matrix for each pattern of presence, with a row for each column of the completed"
                        " party; the coordinator computes them from the moments, which no party can check",
                        alike,
                    ),
                    "marginals": Later("a distribution function for each of the party's own columns, or none", alike),
                },
            )
            self.collect[target] = planner(
                f"linear sums at {target}",
                collect_linear,
                {target: [{**part, "width": self._width(target), "total": None} for part in parts]},
                "nothing",
                later=SUM,
            )
        pairs = zip(self.send.values(), self.collect.values(), strict=True)
        moments = self.copula.stages if self.copula else self.moments.stages
        self.stages = (*moments, *(stage for pair in pairs for stage in pair))

    def _width(self, party: str) -> int:
        """Scores or features of a party."""
        columns = self.facts.columns[party]
        return len(columns if self.scores == "latent" else features(self.facts, list(columns)))

    def _marginals(self, party: str) -> dict[str, None]:
        return dict.fromkeys(self.facts.columns[party]) if self.scores == "latent" else {}

    def _for_sender(self, party: str, target: str) -> dict[str, Any]:
        """What a sender is given later, in its shape: None stands for a distribution function."""
        others = [other for other in self.facts.parties if other != target]
        matrix = np.zeros((self._width(target), self._width(party)))
        maps = {pattern_name(present): matrix for present in patterns_of(others) if party in present}
        return {"maps": maps, "marginals": self._marginals(party)}

    def for_target(self, target: str) -> dict[str, Any]:
        """What a party that is completed is given in the end, in its shape."""
        width, patterns = self._width(target), patterns_of([other for other in self.facts.parties if other != target])
        parts = {"left": (width, width)} if self.copula else {"own": (width, width), "intercept": (width,)}
        return {
            "target": {
                part: {pattern_name(present): np.zeros(shape) for present in patterns} for part, shape in parts.items()
            },
            "marginals": self._marginals(target),
            "start": np.zeros(0 if self.copula else width),
        }

    def run(self, job: Job, keys: Keys, targets: Sequence[str]) -> dict[str, dict[str, Any]]:
        marginals: dict[str, Marginal] = {}
        starts: dict[str, Any] = {}
        if self.copula:
            maps, marginals = self._copula_maps(job, self.copula, targets)
        else:
            maps, starts = self._chained_maps(job, targets)
        needed: dict[str, dict[str, Any]] = {}
        for target in targets:
            arguments = {
                party: plain_marginals({name: marginals[name] for name in columns} if marginals else {})
                for party, columns in self.facts.columns.items()
            }
            self._sums(job, keys, target, maps[target], arguments)
            needed[target] = {
                "target": maps[target].target,
                "marginals": arguments[target],
                "start": starts.get(target, np.zeros(0)),
            }
        return needed

    def _chained_maps(self, job: Job, targets: Sequence[str]) -> tuple[dict[str, Maps], dict[str, Any]]:
        """The equations of each target's columns, and the means that their sweeps start from."""
        every = features(self.facts)
        moments = self.moments.run(job)
        used = visible_patterns(moments)
        mean, covariance = gaussian_moments(moments, used, available(moments, used))
        maps, starts = {}, {}
        for target in targets:
            others = [party for party in self.facts.parties if party != target]
            maps[target] = chained_maps(every, mean, covariance, target, others)
            starts[target] = mean[[k for k, feature in enumerate(every) if feature.party == target]]
        return maps, starts

    def _copula_maps(
        self, job: Job, copula: CopulaReleases, targets: Sequence[str]
    ) -> tuple[dict[str, Maps], dict[str, Marginal]]:
        released = copula.ask_marginals(job)
        first = {name: marginal for party in released.values() for name, marginal in party.marginals.items()}
        estimated = estimate(copula.moments.run(job), first, correlation="auto")
        marginals = dict(estimated.marginals)
        return {
            target: copula_maps(self.facts, marginals, estimated.correlation, target) for target in targets
        }, marginals

    def _sums(self, job: Job, keys: Keys, target: str, maps: Maps, marginals: Mapping[str, Any]) -> None:
        """The others' linear parts of every chunk of records, added, to the target."""
        later = {party: {"maps": matrices, "marginals": marginals[party]} for party, matrices in maps.senders.items()}
        for _ in range(self.collect[target].rounds):
            replies = job.ask_each(self.send[target], later)
            parts = {party: reply["parts"] for party, reply in replies.items()}
            total = self.exchanges[target].add(parts, keys)
            job.ask(self.collect[target], total=total)


def alike(value: Any, planned: Any) -> bool:
    """Whether a value has the shape of the planned one, and finite numbers; None stands for a distribution function."""
    if planned is None:
        points, cumulative = value["points"], value["cumulative"]
        sound = all(np.ndim(values) == 1 and np.size(values) <= LARGEST_MARGINAL for values in (points, cumulative))
        sound = sound and len(value) == 3 and isinstance(value["discrete"], bool) and bool(np.isfinite(points).all())
        return sound and isinstance(Marginal(np.array(points), np.array(cumulative), value["discrete"]), Marginal)
    if isinstance(planned, dict):
        return set(value) == set(planned) and all(alike(value[name], part) for name, part in planned.items())
    sound = isinstance(value, np.ndarray) and value.dtype == np.float64 and value.shape == planned.shape
    return sound and bool((np.abs(value) <= LARGEST_ENTRY).all())


def linear_exchange(target: str, scores: Scores, members: Sequence[str], masking: Masking) -> Exchange:
    label = binding(f"linear parts for {target}", {"target": target, "scores": scores, "members": list(members)})
    senders = tuple(member for member in members if member != target)
    return Exchange(masking=masking, opener=target, senders=senders, label=label)


def plain_marginals(marginals: Mapping[str, Marginal]) -> dict[str, dict[str, Any]]:
    return {
        name: {"points": marginal.points, "cumulative": marginal.cumulative, "discrete": marginal.discrete}
        for name, marginal in marginals.items()
    }


def read_marginals(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Marginal]:
    return {
        name: Marginal(np.array(stored["points"]), np.array(stored["cumulative"]), bool(stored["discrete"]))
        for name, stored in plain.items()
    }


# --- the parties' steps -------------------------------------------------------------------------------------------


def _linear_cost(public: Public, *, target: str, **_: Any) -> Cost:
    shown = (
        "sums of linear predictors of its columns by record, with coefficients that the coordinator sets (their errors"
        f" to the coordinator), to {target!r}"
    )
    return Unbounded("linear-predictors", shown, audience=f"{target}, coordinator")


@step(cost=_linear_cost)
def linear_part(
    me: Party,
    *,
    target: str,
    scores: Scores,
    maps: dict[str, Any],
    marginals: dict[str, Any],
    members: list[str],
    masking: Masking,
    part: int,
) -> Release:
    """This party's scores or features of one chunk of records times the matrix of each record's pattern."""
    exchange = linear_exchange(target, scores, members, masking)
    rows = slice(*row_chunks(me.facts.n)[part])
    presence = {party: present[rows] for party, present in presence_of(me).items()}
    own = _own_scores(me, scores, marginals)[rows]
    width = next(iter(maps.values())).shape[0]
    parts = np.zeros((len(own), width), dtype=np.float32)
    for name, matrix in maps.items():
        chosen = presence[me.name] & rows_of_pattern(presence, exchange.senders, pattern_parties(name))
        parts[chosen] = own[chosen] @ np.asarray(matrix, dtype=np.float64).T
    once(me, f"{exchange.label}: chunk {part}")
    value = exchange.hide(me, parts, part)
    return Release({"parts": value}, f"linear predictors that only {target!r} can open, summed over the senders")


def rows_of_pattern(
    presence: Mapping[str, NDArray[np.bool_]], others: Sequence[str], present: Sequence[str]
) -> NDArray[np.bool_]:
    """Which records those of the others have that are named in `present`, and no other."""
    return np.asarray(np.logical_and.reduce([presence[other] == (other in present) for other in others]))


def _own_scores(me: Party, scores: Scores, marginals: dict[str, Any]) -> NDArray[np.float64]:
    if scores == "features":
        return own_features(me)[1]
    known = read_marginals(marginals)
    columns = me.facts.columns[me.name]
    latent = [latent_scores(column, known[name], me.column(name)) for name, column in columns.items()]
    return np.nan_to_num(np.column_stack(latent))


def own_features(me: Party) -> tuple[list[Feature], NDArray[np.float64]]:
    """This party's features over the cohort, with their means in place of empty cells."""
    columns = me.facts.columns[me.name].values()
    every = [feature for column in columns for feature in column_features(me.name, column)]
    return every, _with_means(me, every, design(me, every))


def _with_means(me: Party, every: Sequence[Feature], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The features with their means in place of empty cells, about which the equations then say nothing."""
    present = me.present
    for place, feature in enumerate(every):
        if me.facts.column(feature.column).missing and feature.category != EMPTY:
            empty = is_empty(me.column(feature.column))
            known = present & ~empty
            rows[present & empty, place] = rows[known, place].mean() if known.any() else 0.0
    return rows


@step(cost=Free("nothing leaves: the sum stays here"))
def collect_linear(
    me: Party,
    *,
    scores: Scores,
    members: list[str],
    masking: Masking,
    part: int,
    width: Annotated[int, Size(10_000)],
    total: Any,
) -> Release:
    """Open the sum of one chunk and keep it."""
    begin, end = row_chunks(me.facts.n)[part]
    exchange = linear_exchange(me.name, scores, members, masking)
    opened = exchange.reveal(me, total, size=(end - begin) * width, number=part)
    me.keep(f"linear {part}", opened.reshape(-1, width))
    return Release(None, "nothing")


def linear_values(
    me: Party,
    layout: Layout,
    wanted: NDArray[np.int64],
    means: NDArray[np.float64],
    imputer: str,
    linear: dict[str, Any],
    seed: int,
) -> Matrix:
    """The wanted rows from the sums that `collect_linear` kept; the means where no other party has the record."""
    presence = {party: present[wanted] for party, present in presence_of(me).items()}
    others = [party for party in presence if party != me.name]
    sums = np.concatenate([me.recall(f"linear {part}") for part in range(len(row_chunks(me.facts.n)))])
    values = np.broadcast_to(means, (wanted.size, layout.width)).astype(np.float32).copy()
    marginals = read_marginals(linear["marginals"])
    draw = np.random.default_rng((seed, 6))
    for name in sorted(linear["target"]["left" if imputer != "mice" else "own"]):
        chosen = rows_of_pattern(presence, others, pattern_parties(name))
        centre = sums[wanted[chosen]].astype(np.float64)
        if imputer == "mice":
            own, intercept = (np.asarray(linear["target"][part][name]) for part in ("own", "intercept"))
            every = [feature for column in layout.columns.values() for feature in column_features(me.name, column)]
            start = np.asarray(linear["start"])
            values[chosen] = feature_rows(layout.columns, every, chained(centre, own, intercept, start))
            continue
        left = np.asarray(linear["target"]["left"][name])
        if imputer == "copula-mean":
            variance = np.broadcast_to(np.diag(left), centre.shape)
            values[chosen] = conditional_mean(layout, marginals, centre, variance)
        else:
            values[chosen] = conditional_draw(layout, marginals, centre, left, draw)
    return values
