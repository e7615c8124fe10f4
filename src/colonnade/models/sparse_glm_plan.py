"""What a sparse GLM by rounds will ask, of whom, how often at most, and what that discloses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from colonnade.federation.plan import JOB, Phase, audience_of
from colonnade.federation.step import Public, Step
from colonnade.models.sparse.penalties import Penalty
from colonnade.models.sparse.result import Via
from colonnade.models.sparse.rounds import (
    agree_records,
    block_gradient,
    block_units,
    predict_block,
    respond,
    show_presence,
)
from colonnade.models.sparse.rounds import SparseLayout
from colonnade.papers.vfl_glm_vs.method import (
    Damping,
    admm_block,
    admm_holder,
    admm_predictor,
    admm_residuals,
    admm_settle,
)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """One step, asked of `members` at most `count` times; `arguments` stand for all requests, which cost alike."""

    name: str
    step: Step
    members: Sequence[str]
    count: int
    discloses: str
    size: int
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def phase(self, layout: SparseLayout) -> Phase:
        publics = [Public(job=JOB, party=one, facts=layout.facts, roster=layout.roster) for one in self.members]
        arguments = {"layout": layout.to_dict(), **self.arguments}
        costs = {one.party: self.step.price(one, arguments).times(self.count) for one in publics}
        return Phase(
            name=self.name,
            step=self.step.name,
            counts=dict.fromkeys(self.members, self.count),
            costs=costs,
            audience=audience_of(costs.values()),
            discloses=self.discloses,
            reply_bytes=self.size,
        )


def round_phases(
    layout: SparseLayout, *, via: Via, penalty: Penalty, damping: Damping, rounds: int, paths: int, solves: int
) -> tuple[tuple[Phase, ...], tuple[str, ...]]:
    """Phases and notes. `paths` is 1 and one for each fold, `solves` the weighted lassos of all of them."""
    asked = [*_before(layout)]
    asked += (
        _newton(layout, rounds=rounds, paths=paths)
        if via == "newton"
        else _admm(layout, penalty=penalty, damping=damping, rounds=rounds, paths=paths, solves=solves)
    )
    covered = [party for party in layout.parties if layout.width(party)]
    asked.append(
        _Asked(
            name="coefficients",
            step=block_units,
            members=covered,
            count=1,
            arguments={"path": []},
            discloses="the fitted coefficients",
            size=_numbers(layout),
        )
    )
    whose = "the total linear predictor" if layout.exchange == "masked" else "each party's linear predictor"
    notes = (
        f"At most {rounds:,} rounds are reserved; a path usually needs far fewer.",
        f"In each round {layout.holder!r} sees {whose} by record, and the parties with covariates see residuals by"
        " record, from which they can work out the response.",
        *(_sums(layout) if via == "newton" else ()),
        "Only records that every party has are used: right if records are missing completely at random. With missing"
        " blocks use via='moments' (gaussian), or synthesize a table with CopulaSQM and fit that.",
    )
    return tuple(one.phase(layout) for one in asked), notes


def _sums(layout: SparseLayout) -> tuple[str]:
    p, n = len(layout.features), layout.facts.n
    return (
        f"In each round the coordinator sees {p} exact sums over records. As many rounds as records ({n:,}) could"
        " determine these; via='admm' shows sums at the solutions only, in many times the rounds.",
    )


def _numbers(layout: SparseLayout) -> int:
    return 8 * max(layout.width(party) for party in layout.parties)


def _before(layout: SparseLayout) -> list[_Asked]:
    n, parties = layout.facts.n, layout.parties
    told = "which records a party has, to the other parties"
    return [
        _Asked(
            name="presence", step=show_presence, members=parties, count=1, discloses=told, size=n // 8 * len(parties)
        ),
        _Asked(
            name="records", step=agree_records, members=parties, count=1, discloses="how many records all have", size=9
        ),
    ]


def _sizes(layout: SparseLayout) -> tuple[int, int, str]:
    """Bytes of one vector over records, of the holder's mail to all parties, and what predictors disclose."""
    vector = 8 * layout.facts.n
    how = "masked linear predictors" if layout.exchange == "masked" else "linear predictors"
    return vector, vector * (len(layout.parties) - 1), f"{how}, to the response holder"


_RESIDUALS = "response less fitted mean by record, to the parties; the loss to the coordinator"


def _newton(layout: SparseLayout, *, rounds: int, paths: int) -> list[_Asked]:
    vector, mail, sums = _sizes(layout)
    return [
        _Asked(
            name="predictors",
            step=predict_block,
            members=layout.senders,
            count=rounds,
            arguments={"number": 0, "coefficients": []},
            discloses=sums,
            size=vector,
        ),
        _Asked(
            name="residuals",
            step=respond,
            members=[layout.holder],
            count=rounds + paths,
            arguments={"number": 0, "intercept": None, "fold": None},
            discloses=_RESIDUALS,
            size=mail,
        ),
        _Asked(
            name="gradients",
            step=block_gradient,
            members=[party for party in layout.parties if layout.width(party)],
            count=rounds + paths,
            arguments={"number": 0},
            discloses="one sum over records for each column",
            size=_numbers(layout),
        ),
    ]


def _admm(
    layout: SparseLayout, *, penalty: Penalty, damping: Damping, rounds: int, paths: int, solves: int
) -> list[_Asked]:
    vector, mail, sums = _sizes(layout)
    holder = [layout.holder]
    shape: dict[str, Any] = {"lam": 1.0, "penalty": penalty, "start": True}
    block = {
        "lam": 1.0,
        "penalty": penalty,
        "since": "nothing",
        "rho": 1.0,
        "weights": "lasso",
        "damping": damping,
        "tolerance": 1.0,
    }
    turn = {"rho": 1.0, "since": "nothing", "adapt": True, "fold": None, "tolerance": 1.0}
    null = {"number": 0, "intercept": None, "fold": None}
    return [
        _Asked(
            name="start", step=respond, members=holder, count=paths, arguments=null, discloses=_RESIDUALS, size=mail
        ),
        _Asked(
            name="blocks",
            step=admm_block,
            members=layout.parties,
            count=rounds,
            arguments=block,
            discloses="which columns have coefficients",
            size=_numbers(layout),
        ),
        _Asked(
            name="predictors",
            step=admm_predictor,
            members=layout.senders,
            count=rounds,
            arguments={"number": 0},
            discloses=sums,
            size=vector,
        ),
        _Asked(
            name="multipliers",
            step=admm_holder,
            members=holder,
            count=rounds,
            arguments=turn,
            discloses="multipliers by record, to the parties",
            size=mail,
        ),
        _Asked(
            name="residuals",
            step=admm_residuals,
            members=holder,
            count=solves,
            arguments={"number": 0, "fold": None},
            discloses=_RESIDUALS,
            size=mail,
        ),
        _Asked(
            name="solutions",
            step=admm_settle,
            members=layout.parties,
            count=solves + paths,
            arguments=shape,
            discloses="coefficients of a solution, and how optimal they are",
            size=_numbers(layout),
        ),
    ]
