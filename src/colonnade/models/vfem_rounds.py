"""`VFEM(cross_party="independent", step="gradient")`: the paper's Algorithm 1 in rounds between the parties.

The E step and the M step need, of the other parties, each record's **sum** of linear predictors and one number a block
(beta'Sigma beta); everything else is per pattern. So one iteration is: predictors to the response holder, residuals
back. Coefficients move by the gradient (7) with eta = 2 / (lambda_max + lambda_min), the largest and smallest
eigenvalue of the parties' correlation matrices; means, covariances and s2 by equation (6). The likelihood must not
fall: where the covariates of different parties are correlated, which the paper's eta does not foresee, eta is halved.
The claim is in `vfem_rounds.claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.errors import BadArguments, NotEstimable
from colonnade.federation.job import Job
from colonnade.federation.plan import JOB, Phase
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Step
from colonnade.models.matrix import columns_of
from colonnade.models.vfem_block import Design
from colonnade.models.vfem_exact import Init
from colonnade.models.vfem_exchange import Exchange
from colonnade.models.vfem_independent import Block, BlockModel, Terms, Units, about, as_regression, covariance
from colonnade.models.vfem_information import Information, information_phases, weighted_gram
from colonnade.models.vfem_result import VFEMResult, in_own_units
from colonnade.models.vfem_steps import Mode, announce, holder_terms, predictors, prepare, residuals, terms
from colonnade.statistics.gaussian_em import GaussianFit, Matrix

STARTING = 40
"""At most so many iterations on complete or mean-imputed records; they only choose where EM begins."""
STARTED = 1e-3
"""A relative gain of the starting regression below this ends it."""
ROUNDING = 1e-11
"""Relative to the log-likelihood: a smaller fall is rounding, at the top."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The options of a round-based fit; `VFEM` describes them."""

    design: Design
    exchange: Exchange
    information: Information
    init: Init
    iterations: int
    tolerance: float
    gamma: int
    minimum: int
    sketch_size: int
    coordinator: str | None

    def check(self) -> None:
        if not self.design.others:
            raise BadArguments(
                "all columns are at one party, so there are no rounds to make; fit a regression there, or name columns"
                " of other parties."
            )

    # --- what is going to happen --------------------------------------------------------------------------

    def phases(self, roster: Roster) -> list[Phase]:
        self.check()
        design, names, n = self.design, list(self.design.names), self.design.facts.n
        one_round: dict[str, Any] = {"names": names, "round": 0, "eta": 1.0, "exchange": self.exchange}
        vector = 8 * (n + 1)

        def phase(name: str, step: Step, parties: tuple[str, ...], count: int, size: int, **arguments: Any) -> Phase:
            """`count` requests of the same cost; their other arguments depend on the answers."""
            costs = {
                party: step.price(
                    Public(job=JOB, party=party, facts=design.facts, roster=roster), step.check(arguments)
                ).times(count)
                for party in parties
            }
            leaf = costs[parties[0]].leaves()[0]
            return Phase(
                name=name,
                step=step.name,
                counts=dict.fromkeys(parties, count),
                costs=costs,
                audience=leaf.audience,
                discloses=str(leaf["discloses"]),
                reply_bytes=size,
            )

        others = design.others
        back = vector * len(others)
        return [
            phase("vfem: presence", announce, design.parties, 1, n // 8 * len(others), names=names),
            phase("vfem: prepare", prepare, design.parties, 1, 64, names=names),
            phase("vfem: predictors", predictors, others, self.iterations + 1, vector, retreat=False, **one_round),
            phase(
                "vfem: residuals",
                residuals,
                (design.holder,),
                self.iterations,
                back,
                retreat=False,
                mode="em",
                **one_round,
            ),
            phase("vfem: holder's terms", holder_terms, (design.holder,), 1, back, **one_round),
            phase("vfem: terms", terms, others, 1, 4096, names=names, eta=1.0),
            *information_phases(
                design,
                roster,
                information=self.information,
                gamma=self.gamma,
                size=self.sketch_size,
                coordinator=self.coordinator,
            ),
        ]

    def notes(self) -> tuple[str, ...]:
        design = self.design
        made = [
            f"At most {self.iterations} iterations, each with one number a record that a party has, from"
            f" {len(design.others)} parties, and one back; nothing of it is differentially private.",
        ]
        if self.exchange == "plain":
            made.append(
                f"exchange='plain': {design.holder!r} sees every party's linear predictor in every round, and from as"
                " many rounds as a party has columns it knows the space that these columns span."
            )
        elif len(design.others) == 1:
            made.append(
                f"With two parties there is nobody to hide behind: {design.holder!r} sees the linear predictor of"
                f" {design.others[0]!r} in every round."
            )
        else:
            made.append(
                f"{design.holder!r} sees sums over the other parties. Of a record that only one of them has, the sum is"
                " that party's linear predictor, up to a constant; over many rounds the sums span the columns of all"
                " other parties together."
            )
        made.append(
            "Every data party sees the residuals of its records, and who has which record; the coordinator sees how"
            " many records a party has, also from the size of its messages. The model takes columns of"
            " different parties as uncorrelated: where they are not, estimates are biased, and cross_party='full' is"
            " right."
        )
        if self.information == "sketch":
            made.append(
                f"information='sketch': {self.coordinator!r} sees {self.sketch_size} random combinations of each"
                " party's records. Every data party knows the seed: with it each is a linear equation in the raw"
                " columns."
            )
        return tuple(made)

    # --- the coordinator's procedure ----------------------------------------------------------------------

    def execute(self, job: Job) -> VFEMResult:
        design, names = self.design, list(self.design.names)
        job.ask(announce, names=names)
        prepared = job.ask(prepare, names=names)
        self._check_counts(prepared)
        climb = _Climb(
            job, self, 2 / (max(p["high"] for p in prepared.values()) + min(p["low"] for p in prepared.values()))
        )
        climb.up(self.init, most=STARTING, tolerance=0.0)
        climb.restore()
        trace = climb.up("em", most=self.iterations, tolerance=self.tolerance)
        replies = climb.terms()
        model, units, known = self._model(replies)
        gram = weighted_gram(
            job,
            design,
            information=self.information,
            gamma=self.gamma,
            size=self.sketch_size,
            coordinator=self.coordinator,
            weight=max(1 / model.tau(mask) for mask in known.masks),
        )
        # From features in [-1, 1] to standard units: both are affine.
        into = np.eye(1 + model.width)
        into[1:, 0] = -units.centre / units.scale
        into[1:, 1:] /= units.scale[:, None]
        known = Terms(**{**vars(known), "gram": into @ gram @ into.T})
        return self._result(job, model, units, known, trace, climb.iterations)

    def _check_counts(self, prepared: Mapping[str, Any]) -> None:
        width = {party: sum(one.party == party for one in self.design.covariates) for party in prepared}
        for party, one in prepared.items():
            if one["count"] < self.minimum * width[party]:
                raise NotEstimable(
                    f"only {one['count']} records with the response are at {party!r}, and {self.minimum * width[party]}"
                    " are needed; leave the party out with columns=, or lower minimum_joint."
                )
        complete = prepared[self.design.holder]["complete"]
        if self.init == "complete-case" and complete < 2:
            raise NotEstimable(f"{complete} records are complete, so nothing can start from them; take init='mean'.")

    def _model(self, replies: Mapping[str, Any]) -> tuple[BlockModel, Units, Terms]:
        """The model in standard units, and everything of `Terms` but the Gram matrix."""
        parties, own = self.design.parties, replies[self.design.holder]
        parts = [replies[party] for party in parties]
        blocks = tuple(Block(one["beta"], one["mu"], one["sigma"]) for one in parts)
        model = BlockModel(float(own["intercept"]), float(own["sigma2"]), blocks)
        masks = tuple(tuple(bool(here) for here in mask) for mask in own["masks"])
        tau = np.array([model.tau(mask) for mask in masks])
        lacks = (~np.asarray(own["masks"], dtype=bool)).astype(float).T
        every = np.vstack([lacks, np.ones(len(tau))])
        counts, sums, squares = own["counts"], own["sums"], own["squares"]
        known = Terms(
            masks=masks,
            counts=counts,
            sums=sums,
            squares=squares,
            gram=np.zeros((1 + model.width, 1 + model.width)),
            pull=np.concatenate([[np.sum(sums / tau)], *(one["pull"] for one in parts)]),
            first=np.column_stack([lacks @ (counts / tau), *(one["first"] for one in parts)]),
            second=np.column_stack([every @ (sums / tau**2), *(one["second"] for one in parts)]),
            seen=tuple(
                about(one["count"], np.zeros(len(one["mu"])), one["products"], np.asarray(one["mu"])) for one in parts
            ),
        )
        units = Units(
            np.concatenate([one["centre"] for one in parts]),
            np.concatenate([one["scale"] for one in parts]),
            (float(own["response"][0]), float(own["response"][1])),
        )
        return model, units, known

    def _result(
        self, job: Job, model: BlockModel, units: Units, known: Terms, trace: list[float], iterations: int
    ) -> VFEMResult:
        features = tuple(self.design.features)
        target = [feature.name for feature in features].index(self.design.names[-1])
        n = float(known.counts.sum())
        cov: Matrix = covariance(model, known)
        names = [feature.name for feature in self.design.covariates]
        mu, sigma, found = as_regression(model, cov, units, n=n, names=names, target=target)
        scales = [float(np.log(units.scale[place]).sum()) for place in model.places]
        constant = -sum(seen[0] * one for seen, one in zip(known.seen, scales, strict=True))
        constant -= n * math.log(units.response[1])
        values = tuple(value + constant for value in trace)
        return in_own_units(
            GaussianFit(mu, sigma, values[-1], values, iterations, 0),
            found,
            features=features,
            response=target,
            columns=columns_of(job.facts, features),
            parties=self.design.parties,
            patterns=tuple((mask, round(count)) for mask, count in zip(known.masks, known.counts, strict=True)),
            cohort=job.facts.n,
            dropped=(),
            simulated=job.simulated,
        )


class _Climb:
    """The rounds as the coordinator sees them: step lengths go out, log-likelihoods come back."""

    def __init__(self, job: Job, rounds: Rounds, eta: float) -> None:
        self._job, self._rounds, self._eta, self._first = job, rounds, eta, eta
        self.iterations = 0

    def restore(self) -> None:
        """The paper's step length again."""
        self._eta = self._first

    def _asked(self) -> dict[str, Any]:
        names, exchange = list(self._rounds.design.names), self._rounds.exchange
        return {"names": names, "round": self.iterations, "eta": self._eta, "exchange": exchange}

    def _value(self, mode: Mode, *, retreat: bool) -> float:
        """Everybody moves, or moves less; then the value there."""
        if self.iterations >= self._rounds.iterations:
            raise NotEstimable(
                f"the likelihood did not settle in {self.iterations} iterations; raise iterations=, or take"
                " step='exact', which needs tens."
            )
        asked = self._asked()
        self._job.ask(predictors, retreat=retreat, **asked)
        replies = self._job.ask(residuals, retreat=retreat, mode=mode, **asked)
        self.iterations += 1
        return float(next(iter(replies.values()))["value"])

    def up(self, mode: Mode, *, most: int, tolerance: float) -> list[float]:
        """Climb until what is left to gain is below `tolerance` (extrapolated from the last two gains)."""
        trace = [self._value(mode, retreat=False)]
        gains: list[float] = []
        while len(trace) < most:
            value = self._value(mode, retreat=False)
            slack = ROUNDING * max(1.0, abs(trace[-1]))
            shortest = self._eta / 2**20
            while value < trace[-1] - slack and self._eta > shortest:
                self._eta /= 2
                value = self._value(mode, retreat=True)
            gain = value - trace[-1]
            if gain < -slack:
                raise NotEstimable("no step length keeps the likelihood from falling; take step='exact'.")
            if gain <= 0:
                return trace
            trace.append(value)
            gains.append(gain)
            if mode != "em":
                if gain < STARTED * abs(value):
                    return trace
            elif len(gains) > 2 and max(_left(*gains[-2:]), _left(*gains[-3:-1])) < tolerance:
                return trace
        return trace

    def terms(self) -> dict[str, Any]:
        """Everybody's estimates where the climb ended, after one more exchange of the same predictors."""
        asked = self._asked()
        self._job.ask(predictors, retreat=True, **asked)
        own = self._job.ask(holder_terms, **asked)
        return own | self._job.ask(terms, names=asked["names"], eta=self._eta)


def _left(before: float, gain: float) -> float:
    """What a geometric series of gains still has to come; gains that grow promise much."""
    ratio = gain / before if before > 0 else 1.0
    return gain * ratio / (1 - ratio) if ratio < 1 else math.inf
