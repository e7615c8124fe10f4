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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from colonnade.errors import BadArguments, NotEstimable, UnsafeRequest
from colonnade.federation.job import Job
from colonnade.federation.plan import JOB, Phase
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Step
from colonnade.models.matrix import columns_of
from colonnade.papers.vfem.block import Design
from colonnade.papers.vfem.model import Init
from colonnade.papers.vfem.steps import Exchange
from colonnade.papers.vfem.model import Block, BlockModel, Terms, Units, about, as_regression, covariance
from colonnade.papers.vfem.information import Information, information_phases, weighted_gram
from colonnade.models.linear.result import VFEMResult, in_own_units
from colonnade.papers.vfem.steps import Mode, announce, holder_terms, predictors, prepare, residuals, terms
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
        if self.exchange == "masked" and len(self.design.others) < 2:
            raise UnsafeRequest(
                f"{self.design.others[0]!r} has nobody to hide behind: with two parties a sum of linear predictors is"
                " one of them; take step='exact' or cross_party='full', which show none, or exchange='plain', which"
                " shows it."
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
            phase("vfem: prepare", prepare, design.parties, 1, 64, names=names, exchange=self.exchange),
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
        else:
            made.append(
                f"{design.holder!r} sees sums over groups of two or more other parties"
                + (f": here all {len(design.others)}" if len(design.others) < 4 else "")
                + ". A group's blocks are used only at the records that all of it has, and count as missing elsewhere:"
                " right if records are missing completely at random, or as the response holder's columns say. Over many"
                " rounds the sums span the columns of a group together. step='exact' and cross_party='full' use all"
                " blocks and show no record."
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
        prepared = job.ask(prepare, names=names, exchange=self.exchange)
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
        made = self._result(job, model, units, known, trace, climb.iterations)
        return replace(made, remarks=self._left_out(prepared))

    def _left_out(self, prepared: Mapping[str, Any]) -> tuple[str, ...]:
        """What hiding in groups cost."""
        lost = {party: int(one["left_out"]) for party, one in prepared.items() if one["left_out"]}
        if not lost:
            return ()
        groups = ["{" + ", ".join(group) + "}" for group in prepared[self.design.holder]["groups"]]
        counts = ", ".join(
            f"{party} {count:,} of {count + prepared[party]['count']:,}" for party, count in lost.items()
        )
        return (
            f"exchange='masked' hides {' and '.join(groups)} in sums; blocks of records that not all of a group have"
            f" are left out as if missing ({counts}). Right if records are missing completely at random, or as the"
            " response holder's columns say. step='exact' and cross_party='full' use them all.",
        )

    def _check_counts(self, prepared: Mapping[str, Any]) -> None:
        width = {party: sum(one.party == party for one in self.design.covariates) for party in prepared}
        for party, one in prepared.items():
            if one["count"] < max(self.minimum * width[party], width[party] + 2):
                left = f" ({one['left_out']} more have nothing to hide behind)" if one["left_out"] else ""
                cure = "take step='exact', which uses all of them" if one["left_out"] else "lower minimum_joint"
                raise NotEstimable(
                    f"only {one['count']} records with the response are at {party!r}{left}, and"
                    f" {max(self.minimum * width[party], width[party] + 2)} are needed; leave the party out with"
                    f" columns=, or {cure}."
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
