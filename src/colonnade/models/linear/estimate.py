"""A regression from exact pattern moments: maximum likelihood, or one of the paper's three baselines, for comparison.

A baseline is ordinary least squares on a table without gaps, whose moments follow from the pattern moments.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from colonnade.data.column import Column
from colonnade.errors import BadArguments, NotEstimable, SchemaError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.options import Verification
from colonnade.federation.roster import Roster
from colonnade.models.linear.diagnostics import lacking_records, residuals_by_pattern
from colonnade.models.linear.gaussian import Coefficients, regression
from colonnade.models.linear.result import COMPLETE_CASES, Regression, Sample, missing_information
from colonnade.models.matrix import columns_of
from colonnade.statistics.features import Feature, constant_response, empty_rules, features
from colonnade.statistics.forecast import at_most
from colonnade.statistics.gaussian_em import GaussianFit, Pattern, PatternStatistics, fit_gaussian
from colonnade.statistics.moments import MomentComputation, MomentsLayout, MomentsResult

Family = Literal["gaussian", "binomial", "poisson"]
Missing = Literal["combined", "em", "complete-case", "mean", "single"]
LIKELIHOOD = ("combined", "em")
"""By maximum likelihood here; `combined.py` adds presence weights for a gaussian response."""
BASELINES = {
    "complete-case": "Only records that every party has are used: right if records are missing completely at random.",
    "mean": "Every record with the response is used, and the blocks that it lacks are filled in with their means: a"
    " baseline, biased; its intervals are too short.",
    "single": "Only the response holder's own columns are used, of all its records; what other parties have or lack"
    " plays no part: a baseline, which omits what they know.",
}
MAXIMUM_FEATURES = 120
"""The information matrix has about p^2 / 2 rows: 120 features take 0.4 GB and half a minute."""
COARSE = 2500.0
"""Smallest variance of a feature, in steps of 1/gamma squared: then rounding adds at most 1e-4 of it."""


# --- what is asked for --------------------------------------------------------------------------------------


def regression_columns(
    facts: PublicFacts,
    response: str,
    columns: Sequence[str] | None,
    *,
    offset: str | None = None,
    aside: tuple[str | None, ...] = (),
) -> tuple[str, ...]:
    """The covariates (by default all columns but those `aside`), then the response."""
    declared = facts.column(response)
    if declared.kind == "categorical":
        raise SchemaError(f"the response {response!r} is categorical and has no mean; choose a number.")
    every = (name for own in facts.columns.values() for name in own)
    wanted = [name for name in every if name not in aside] if columns is None else columns
    covariates = tuple(dict.fromkeys(name for name in wanted if name not in (response, offset)))
    if not covariates:
        raise BadArguments(f"no column is left to explain {response!r}; name some with columns=.")
    check_few_features(facts, covariates)
    return (*covariates, response)


def check_few_features(facts: PublicFacts, covariates: tuple[str, ...]) -> None:
    """Refuse covariates of too many categories, and say which to leave out."""
    counts = Counter(feature.column for feature in features(facts, covariates))
    excess, many = counts.total() - MAXIMUM_FEATURES + 1, []
    for name, count in counts.most_common():
        if excess > 0:
            many.append(f"{name!r} ({count})")
            excess -= count
    if len(counts) >= MAXIMUM_FEATURES:
        raise BadArguments(
            f"{len(counts):,} columns are too many for a regression: {at_most(list(counts), MAXIMUM_FEATURES - 1)}."
        )
    if many:
        raise BadArguments(
            f"the covariates give {counts.total()} features, and a regression takes at most {MAXIMUM_FEATURES - 1};"
            f" columns {', '.join(many)} have the most: leave them out with columns=, or declare fewer categories."
        )


def response_patterns(facts: PublicFacts, names: tuple[str, ...]) -> tuple[tuple[bool, ...], ...]:
    """The candidate patterns: those with the response holder. A record without the response enters nothing."""
    parties = list(dict.fromkeys(feature.party for feature in features(facts, names)))
    response_party = parties.index(facts.owner(names[-1]))
    return tuple(mask for mask in itertools.product((False, True), repeat=len(parties)) if mask[response_party])


def cell_patterns(facts: PublicFacts, names: tuple[str, ...]) -> bool:
    """Whether a column asks for patterns of its empty cells, which EM alone can use."""
    return "mask" in empty_rules(features(facts, names), facts, "drop", "mask").values()


class MomentFit(Procedure[Regression]):
    """One secure computation of exact pattern moments, and an estimate from them; no party is asked again.

    `names` are the covariates, then the response; `estimator` takes what `estimate` does.
    """

    def __init__(
        self,
        facts: PublicFacts,
        roster: Roster,
        *,
        names: tuple[str, ...],
        gamma: int,
        estimator: Callable[..., Regression],
        verify: Verification = False,
    ) -> None:
        roster.require_committee()
        self.response, self.gamma, self.estimator = names[-1], gamma, estimator
        masks = response_patterns(facts, names)
        self.layout = MomentsLayout(
            facts=facts, roster=roster, names=names, presence="known", gamma=gamma, patterns=masks, verify=verify
        )
        self.layout.check()
        self.moments = MomentComputation(self.layout, "client")
        self.stages = self.moments.stages
        self.notes = (
            *self.moments.notes,
            f"Only records of {facts.owner(self.response)!r}, which holds {self.response!r}, are used: {len(masks)}"
            " candidate patterns. All estimates follow from their moments; nothing is asked twice.",
        )

    def run(self, job: Job) -> Regression:
        moments = self.moments.run(job).having(self.response)
        columns = columns_of(job.facts, moments.features)
        result = self.estimator(moments, response=self.response, columns=columns, gamma=self.gamma)
        return result.with_costs(job.plan)


# --- what was observed --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed(Sample):
    """The statistics of the records with the response: the features that vary, and the patterns that occur."""

    data: PatternStatistics

    def regression(self, fit: GaussianFit, coefficients: Coefficients) -> Regression:
        """With what is known of the records that lack a block, and of the residuals."""
        result = super().regression(fit, coefficients)
        owner = np.array([self.parties.index(feature.party) for feature in self.features])
        centre, half = (np.array([getattr(feature, name) for feature in self.features]) for name in ("centre", "half"))
        known = lacking_records(self.data, fit, owner, self.parties)
        return replace(
            result,
            blocks={party: own.in_units(centre, half) for party, own in known.items()},
            residuals=residuals_by_pattern(self.data, fit, owner, self.parties, self.target),
        )

    @classmethod
    def of(cls, moments: MomentsResult, *, response: str, columns: Mapping[str, Column], gamma: int) -> Observed:
        data = moments.sufficient()
        _, variance = data.available()
        constant = variance < COARSE / gamma**2
        if any(feature.column == response for feature in itertools.compress(moments.features, constant)):
            gaps = [name for name, column in columns.items() if column.missing and name != response]
            raise BadArguments(constant_response(response, gaps))
        blocks: dict[tuple[bool, ...], float] = {}
        for mask, count in zip(moments.patterns, moments.counts.tolist(), strict=True):
            blocks[mask] = blocks.get(mask, 0.0) + count
        return cls(
            response=response,
            data=data.only(np.flatnonzero(~constant)),
            features=tuple(itertools.compress(moments.features, ~constant)),
            dropped=tuple(itertools.compress(data.names, constant)),
            columns=columns,
            parties=moments.parties,
            patterns=tuple((mask, round(count)) for mask, count in blocks.items() if count > 0.5),
            cohort=moments.n,
            simulated=moments.simulated,
        )

    def fitted(self) -> GaussianFit:
        """The maximum likelihood law; a refusal names columns to leave out."""
        alone = never_together(self.data, self.features, self.response)
        if alone:
            listed = ", ".join(map(repr, alone))
            raise BadArguments(
                f"{listed} (or a category) does not vary in the records that another party has too, so nothing tells"
                f" how their columns are related; leave out {listed} with columns=, or list fewer categories, so that"
                " rare ones are other."
            )
        return fit_gaussian(self.data, columns=[feature.column for feature in self.features], keep=self.response)


def never_together(data: PatternStatistics, features: Sequence[Feature], response: str) -> list[str]:
    """Columns of a feature that does not vary in the records that show some other party's block: their covariance is in
    no pattern, and the likelihood is flat along it."""
    owner = np.array([feature.party for feature in features])
    alone: dict[str, None] = {}
    for party in dict.fromkeys(owner.tolist()):
        beside = [pattern for pattern in data.patterns if (owner[pattern.observed] == party).any()]
        variance = PatternStatistics(data.names, tuple(beside)).available()[1]
        flat = ~(variance > 0) & (owner != party)
        alone |= dict.fromkeys(feature.column for feature in itertools.compress(features, flat))
    return [name for name in alone if name != response]


def check_joint_records(moments: MomentsResult, minimum: int, *, pairs: bool = True) -> None:
    """Every pair of parties (or only each party) must be observed together, often enough for the columns of both.

    Covariances of a pair are estimated from its joint records alone. With few of them for each column, the estimates
    exist, and their standard errors are too small.
    """
    masks = np.array(moments.patterns)
    for size in (1, 2) if pairs else (1,):
        for places in itertools.combinations(range(len(moments.parties)), size):
            group = [moments.parties[place] for place in places]
            count = round(float(moments.counts[masks[:, places].all(axis=1)].sum()))
            needed = minimum * sum(feature.party in group for feature in moments.features)
            who = " and ".join(map(repr, group)) + " together" * (size - 1)
            if count == 0:
                raise BadArguments(
                    f"no record with the response is at {who}, so nothing tells how the columns there are related;"
                    " leave a party out with columns=."
                )
            if count < needed:
                raise BadArguments(
                    f"only {count} records with the response are at {who}, and {needed} are needed ({minimum} for each"
                    " feature): standard errors would be too small; leave columns or a party out with columns=, or"
                    " lower minimum_joint."
                )


# --- estimates ----------------------------------------------------------------------------------------------


def estimate(
    moments: MomentsResult,
    *,
    response: str,
    columns: Mapping[str, Column],
    gamma: int,
    minimum_joint: int = 10,
    missing: Missing = "em",
) -> Regression:
    """The regression from exact pattern moments; refused, with the reason, where they cannot carry it."""
    if missing in LIKELIHOOD:
        check_joint_records(moments, minimum_joint)
    observed = Observed.of(moments, response=response, columns=columns, gamma=gamma)
    if missing not in LIKELIHOOD:
        return _baseline(observed, missing)
    fit = observed.fitted()
    result = observed.regression(fit, regression(observed.data, fit, observed.target))
    beside = complete_cases(observed)
    return replace(result, beside=pd.DataFrame(beside) if beside else None, fmi=missing_information(result))


def _baseline(observed: Observed, kind: Missing) -> Regression:
    table = without_gaps(observed, kind)
    fit = fit_gaussian(table.data)
    return replace(
        table.regression(fit, regression(table.data, fit, table.target)),
        patterns=observed.patterns if kind == "mean" else table.patterns,
        model=f"missing={kind}",
        method="Least squares",
        baseline=True,
        unused="are not complete" if kind == "complete-case" else "lack the response",
        covariance="nonrobust",
        basis="of least squares on a table without gaps, as if it had been observed so.",
        remarks=(f"missing={kind!r} is a baseline for comparison. {BASELINES[kind]}",),
    )


def complete_cases(observed: Observed) -> dict[str, pd.Series[float]]:
    """Least squares on the records that every party has, to compare with; nothing where they are too few, or all."""
    if len(observed.patterns) < 2:
        return {}
    try:
        baseline = _baseline(observed, "complete-case")
    except (BadArguments, NotEstimable):  # the estimate beside which it would stand is there
        return {}
    return {COMPLETE_CASES: baseline.params, f"{COMPLETE_CASES} std err": baseline.bse}


def without_gaps(observed: Observed, kind: Missing) -> Observed:
    """The moments of a baseline's table."""
    data, parties, dropped = observed.data, observed.parties, observed.dropped
    features = observed.features
    if kind == "single":
        response_party = features[observed.target].party
        own = np.array([feature.party == response_party for feature in features])
        if own.sum() < 2:
            raise NotEstimable(f"{response_party!r} has no covariate beside the response; missing='single' needs one.")
        parties, dropped, features = (response_party,), (), tuple(itertools.compress(features, own))
        data = pooled(data.only(np.flatnonzero(own)))
    elif kind == "complete-case":
        width = len(data.names)
        complete = tuple(pattern for pattern in data.patterns if len(pattern.observed) == width)
        count = round(sum(pattern.count for pattern in complete))
        if count <= width:
            raise NotEstimable(
                f"{count} records are complete, too few for {width} coefficients; leave out the party with the fewest"
                " records, or take missing='em'."
            )
        data = PatternStatistics(data.names, complete)
    else:
        data = pooled(data)
    patterns = (((True,) * len(parties), round(data.n)),)
    # A category that occurs, but in none of this table's records.
    constant = np.array([feature.category is not None for feature in features]) & ~(data.available()[1] > 0)
    return replace(
        observed,
        data=data.only(np.flatnonzero(~constant)),
        features=tuple(itertools.compress(features, ~constant)),
        dropped=(*dropped, *itertools.compress(data.names, constant)),
        parties=parties,
        patterns=patterns,
    )


def pooled(data: PatternStatistics) -> PatternStatistics:
    """All records as one pattern; what a record lacks is at the mean of the records that have it."""
    mean, _ = data.available()
    sums, gram = np.zeros(len(mean)), np.zeros((len(mean), len(mean)))
    for pattern in data.patterns:  # about the mean, what is lacking adds nothing
        own_sums, own_gram = pattern.about(mean)
        sums[pattern.observed] += own_sums
        gram[np.ix_(pattern.observed, pattern.observed)] += own_gram
    every = np.arange(len(mean))
    back = Pattern(every, data.n, sums, gram).about(-mean)
    return PatternStatistics(data.names, (Pattern(every, data.n, *back),))
