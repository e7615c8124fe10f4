"""`Regress(family="binomial")` and `"poisson"`: the coordinator's procedure, and what may be said of its intervals.

The response holder weighs the records that all parties have (`weights.py`), Newton's method asks for scores and
weighted products on shares (`scores.py`), one more round gives the errors (`newton.py`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from colonnade.errors import NotEstimable, SchemaError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.options import Verification
from colonnade.federation.roster import Roster
from colonnade.formatting import number
from colonnade.models.glm.newton import Evaluation, Family, Solution, robust_covariance, solve
from colonnade.models.glm.result import GeneralizedRegression
from colonnade.models.glm.scores import (
    PresenceStages,
    Remarks,
    ScoreLayout,
    ScoreStages,
    Weighting,
    score_layouts,
    verification_note,
)
from colonnade.models.linear.gaussian import Coefficients
from colonnade.models.linear.propensity import CAP
from colonnade.models.linear.result import Regression
from colonnade.models.matrix import columns_of
from colonnade.statistics.features import Feature, constant_response, empty_notes, features
from colonnade.statistics.forecast import at_most
from colonnade.statistics.gaussian_em import Matrix, Vector

FULL_COST = {"binomial": "three times", "poisson": "twice"}
"""What verification takes of the CPU time without it, with 2,000 records of three parties: too much for a default."""
RECORDS_EACH = 10
"""Complete records, as many as their weights are worth, for each coefficient; and of the smaller class."""
WEIGHED = (
    "Records that every party of the model has are used, weighed so that they stand for all records with the response:"
    " right if whether a record has all blocks depends on the response holder's columns only."
)
UNLIKELY_SHARE = 0.10
"""Of the records: beyond it, complete records say too little of those that are not."""
CAPPED_SHARE = 0.01


class GeneralizedFit(Procedure[Regression]):
    """`names` are the covariates, then the response."""

    def __init__(
        self,
        facts: PublicFacts,
        roster: Roster,
        *,
        family: Family,
        names: tuple[str, ...],
        offset: str | None,
        weighting: Weighting,
        gamma: int,
        verify: Verification = False,
    ) -> None:
        roster.require_committee(pair=False)
        check_family(facts, family, names[-1], offset)
        self.family, self.weighting = family, weighting
        first, second = score_layouts(
            facts,
            roster,
            family=family,
            names=names,
            offset=offset,
            weighting=weighting,
            gamma=gamma,
            verify=verify == "full",
        )
        self.layout = first
        self.presence = PresenceStages(first)
        self.scores, self.errors = ScoreStages(first, "client"), ScoreStages(second, "client")
        self.stages = (*self.presence.stages, *self.scores.stages, *self.errors.stages)
        weighed = (
            " It is told who has which record, and weighs complete ones so that they stand for all."
            if weighting == "presence"
            else " It is told who has which record."
        )
        self.notes = (
            verification_note(verify, FULL_COST[family]),
            f"Newton's method: at most {first.turns} rounds, usually 5 to 8; those that are not needed cost nothing. In"
            f" each the coordinator sees {first.size} exact sums over records, at coefficients that it chooses and all"
            " members are told. No predictor, residual or weight of a record is shown to anyone.",
            f"Only records of {first.response_party!r}, which holds {first.response!r}, that every party has are used."
            f"{weighed}",
            *empty_notes(dict.fromkeys(first.filled, "drop")),
        )

    def run(self, job: Job) -> Regression:
        return self.result(job, *self.estimates(job)).with_costs(job.plan)

    def estimates(self, job: Job) -> tuple[Remarks, Solution, Matrix]:
        """What the response holder says of presence, the solution, and its covariance, of features."""
        remarks = self.presence.run(job)
        complete, width = remarks.counts[-1], self.layout.width
        if complete <= 2 * width:
            raise NotEstimable(
                f"{complete} records are at all parties, too few for {width} coefficients; leave columns out, or the"
                " party with the fewest records, with columns=."
            )
        if 0 < remarks.fewest < width:
            rare = "of its rarer class" if self.family == "binomial" else "above zero"
            fewer = at_most([feature.column for feature in self.layout.features], remarks.fewest - 1)
            cure = f"{fewer}, or " if fewer else ""
            raise NotEstimable(
                f"{self.layout.response!r} is {rare} in {remarks.fewest} of {complete} records that are used, fewer"
                f" than the {width} coefficients; {cure}choose another response."
            )
        turn = 0

        def evaluate(point: Vector, limit: float) -> Evaluation | None:
            nonlocal turn
            sums = self.scores.evaluation(job, turn, point, limit)
            turn += sums is not None  # a point that is out of range opens nothing
            return sums

        columns = [feature.column for feature in self.layout.features]
        gaps = [name for name in dict.fromkeys(columns) if self.layout.facts.column(name).missing]
        unvaried = constant_response(self.layout.response, gaps)
        indicators = [feature.category is not None for feature in self.layout.features]
        solution = solve(
            self.family,
            evaluate,
            width,
            columns=columns,
            indicators=indicators,
            joint=[name for name in columns if self.layout.facts.owner(name) != self.layout.response_party],
            unvaried=unvaried,
        )
        meat, explained = self.errors.meat(job, solution.everywhere())
        places = np.delete(np.arange(width), solution.absent)
        return remarks, solution, robust_covariance(solution.bread, meat[np.ix_(places, places)], explained[places])

    def result(self, job: Job, remarks: Remarks, solution: Solution, cov: Matrix) -> GeneralizedRegression:
        layout = self.layout
        mean, sigma = moments_of(self.family, solution.null)
        weighed = self.weighting == "presence"
        masks = itertools.product((False, True), repeat=len(layout.others))
        patterns = tuple(
            ((True, *mask), count)
            for mask, count in zip(masks, remarks.counts, strict=True)
            if count and (weighed or all(mask))
        )
        return fitted(
            job,
            layout,
            solution.used(layout.features),
            (solution.params, cov),
            (mean, sigma),
            patterns=patterns,
            nobs=sum(count for _, count in patterns),
            steps=(0, solution.steps),
            effective=remarks.effective,
            model=f"{self.family}, {'presence weights' if weighed else 'complete records'}",
            method="Newton, score equations",
            covariance="robust (HC1), weights" if weighed else "robust (HC1)",
            unused="lack the response" if weighed else "lack the response or a block",
            verdict=verdict(remarks, len(solution.params), weighed=weighed),
            basis=(
                "robust (sandwich), with the estimation of the presence weights; valid if whether a record has all"
                f" blocks depends on nothing but columns of {layout.response_party!r}."
                if weighed
                else "robust (sandwich); valid if records are missing completely at random."
            ),
        )


def fitted(
    job: Job,
    layout: ScoreLayout,
    held: Sequence[Feature],
    estimate: tuple[Vector, Matrix],
    moments: tuple[Vector, Matrix],
    *,
    offset: str | None = None,
    **stated: Any,
) -> GeneralizedRegression:
    """In the columns' own units: coefficients of the features that are `held`, with their covariance, and means and
    covariances of these and the response."""
    facts, (mean, sigma), offset = layout.facts, moments, layout.offset or offset
    dropped = (feature for feature in layout.features if feature not in held and feature.column != offset)
    centre, half = (np.array([getattr(feature, name) for feature in held]) for name in ("centre", "half"))
    names = tuple(feature.name for feature in held)
    own = Coefficients(names=names, params=estimate[0], cov=estimate[1], sigma2=1.0, rsquared=math.nan)
    own = own.in_units(centre, half)
    index = ["const", *own.names]
    shown = (*held, *features(facts, (layout.response,)))
    return GeneralizedRegression(
        response=layout.response,
        features=shown,
        columns=columns_of(facts, shown),
        parties=layout.parties,
        cohort=facts.n,
        dropped=tuple(feature.name for feature in dropped),
        simulated=job.simulated,
        params=pd.Series(own.params, index=index, name="coef"),
        cov=pd.DataFrame(own.cov, index=index, columns=index),
        sigma2=1.0,
        loglik=math.nan,
        rsquared=math.nan,
        trace=(),
        mu=np.append(centre + half * mean[:-1], mean[-1]),
        sigma=sigma * np.outer(np.append(half, 1.0), np.append(half, 1.0)),
        family=layout.family,
        offset=offset,
        **stated,
    )


def check_family(facts: PublicFacts, family: Family, response: str, offset: str | None) -> None:
    """The response, and the offset, must be of its family."""
    kind, wanted = facts.column(response).kind, {"binomial": "binary", "poisson": "count"}[family]
    if kind != wanted:
        declared = [(name, column) for columns in facts.columns.values() for name, column in columns.items()]
        listed = "".join(f"{name!r}, " for name, column in declared if column.kind == wanted)
        values = "counts" if wanted == "count" else "two categories"
        raise SchemaError(
            f"family={family!r} needs a {wanted} response, and {response!r} is {kind}: choose"
            f" {listed}another family, or, if its values are {values}, write"
            f' kind = "{wanted}" in columns.toml.'
        )
    if offset is not None and facts.column(offset).discrete:
        raise SchemaError(
            f"the offset {offset!r} is {facts.column(offset).kind}, and is added to the linear predictor: it must be a"
            " number, the logarithm of an exposure say."
        )


def moments_of(family: Family, null: Evaluation) -> tuple[Vector, Matrix]:
    """Weighted means and covariances of (features, response), from the sums at coefficients of zero (no offset)."""
    weight = float(null.bread[0, 0])
    products = null.bread / weight
    scale = 4.0 if family == "binomial" else 1.0
    with_response = null.score / (weight * scale) + products[0] * (0.5 if family == "binomial" else 1.0)
    mean = np.append(products[0, 1:], with_response[0])
    size = len(mean)
    joint = np.zeros((size, size))
    joint[:-1, :-1] = products[1:, 1:]
    joint[:-1, -1] = joint[-1, :-1] = with_response[1:]
    joint[-1, -1] = with_response[0] ** 2 + max(
        with_response[0] * (1 - with_response[0]) if family == "binomial" else with_response[0], 1e-12
    )
    return mean, joint - np.outer(mean, mean)


def verdict(remarks: Remarks, width: int, *, weighed: bool) -> str:
    """The first line of a summary."""
    records, complete = sum(remarks.counts), remarks.counts[-1]
    serious = []
    if complete == records:
        sentence = "Valid: every record with the response is complete."
    elif weighed:
        sentence = (
            "Valid if whether a record has all blocks depends on nothing but the response holder's columns:"
            f" {number(complete)} complete records, weighed to stand for {number(records)}."
        )
    else:
        sentence = (
            f"Valid if records are missing completely at random: {number(complete)} complete records of"
            f" {number(records)}."
        )
    if min(remarks.effective, 2 * remarks.fewest) < RECORDS_EACH * width:
        worth = min(remarks.effective, 2 * remarks.fewest)
        serious.append(
            f"the records used are worth {worth:,.0f} of equal weight and classes, too few for {width} coefficients"
        )
    if remarks.unlikely > UNLIKELY_SHARE * records:
        serious.append(
            f"{remarks.unlikely / records:.0%} of the records are of a kind that is hardly ever complete (a fifth of"
            " the average or less), so what they lack is extrapolated"
        )
    if remarks.capped > CAPPED_SHARE * complete:
        serious.append(f"{remarks.capped / complete:.1%} of the complete records have a weight beyond {CAP:g}")
    return f"Not valid for inference: {'; '.join(serious)}." if serious else sentence
