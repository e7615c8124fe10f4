"""`VFEM`: linear regression over parties that each lack whole blocks of records, with standard errors.

The paper alternates hundreds of rounds between the parties and assumes that columns of different parties are
uncorrelated. `cross_party="full"` does neither: the parties compute their pattern moments once, on secret shares;
these are sufficient for a Gaussian with any covariance, so the coordinator finds the maximum of the observed-data
likelihood, and its curvature, without asking again (`statistics/gaussian_em.py`). Valid if records are missing at
random. The claim is in `vfem.claim.md`. `cross_party="independent"` is the paper's model, in the paper's rounds
(`models/vfem_rounds.py`) or by its equation (6) on the same moments (`models/vfem_exact.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from colonnade.data.column import Column
from colonnade.errors import BadArguments, SchemaError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.models.baselines import estimate_baseline
from colonnade.models.gaussian_regression import regression
from colonnade.models.matrix import columns_of
from colonnade.models.vfem_binomial import as_logit, discriminant
from colonnade.models.vfem_block import Design
from colonnade.models.vfem_exact import Init, estimate_independent
from colonnade.models.vfem_exchange import Exchange
from colonnade.models.vfem_information import Information
from colonnade.models.vfem_options import CrossParty, Family, Missing, StepKind, check_choices, described
from colonnade.models.vfem_private import PrivateMoments, Release, check_private
from colonnade.models.vfem_private_estimate import private_result
from colonnade.models.vfem_result import VFEMResult, in_own_units
from colonnade.models.vfem_rounds import Rounds
from colonnade.privacy.accounting import guarantee
from colonnade.statistics.features import Feature, features
from colonnade.statistics.gaussian_em import Pattern, PatternStatistics, fit_gaussian
from colonnade.statistics.moments import Moments, PatternMoments, compute_moments, moment_notes, moment_phases

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

__all__ = ["VFEM", "VFEMResult", "estimate"]

MAXIMUM_FEATURES = 120
"""The information matrix has about p^2 / 2 rows: 120 features take 0.4 GB and half a minute."""
COARSE = 2500.0
"""Smallest variance of a feature, in steps of 1/gamma squared: then rounding adds at most 1e-4 of it."""


@dataclass(frozen=True, kw_only=True)
class VFEM:
    """Regression of one column on the others, from incomplete records.

    Parameters
    ----------
    response : the column to explain. The records of its holder are the ones used; it cannot have empty cells.
    columns : the covariates; all other columns by default. A categorical one becomes an indicator for each category
        but the first; binary and ordinal ones are their codes 0, 1, ...
    family : "gaussian", or "binomial" for a binary response (with cross_party="full"): log-odds by the normal
        discriminant model, right where covariates are Gaussian within both classes.
    cross_party : "full": columns of different parties may be correlated. "independent": the paper's model, in which
        they are not; where they are, its estimates are biased.
    missing : "em", or a baseline: "complete-case", "mean" (imputation) or "single" (the response holder's columns).
    step : of "independent": "gradient", the paper's rounds, or "exact", its equation (6) on pattern moments.
    exchange : of the rounds: "masked" shows the response holder sums of predictors over groups of parties, and leaves
        out blocks that would stand alone (`models/vfem_groups.py`); "plain" (the paper's) shows each of them.
    information : of the rounds, for standard errors: "secure" computes products across parties on secret shares;
        "sketch" (with `sketch_size` rows) shows random combinations of records to a `coordinator`, the organisation
        that runs it, which must be none of the parties.
    init : of "independent": start from complete cases or from mean imputation.
    iterations, tolerance : of the rounds: at most so many, and until the log-likelihood has less than this to gain
        (1e-5: estimates are within 0.005 standard errors of the maximum).
    epsilon, delta : a person's total; None computes exactly. With epsilon, for `cross_party="full"`, the moments carry
        noise and the standard errors include it (`models/vfem_private.py`). Valid if whether a block is missing depends
        on nothing but the response holder's columns.
    release : of a private fit: "factored".
    clip_quantile : of a private fit: the quantile of the length of a party's rows at which they are clipped.
    gamma : the scale of quantisation; coefficients are exact up to about 1/gamma. At most 2^14 is used with epsilon.
    minimum_joint : records that each pair of parties must have together, for each of their features.

    Without epsilon the moments are exact: every party must allow "exact-moments". Either way it must allow "presence"
    (the share holders, and with epsilon the response holder, see the mask).

    Returns
    -------
    `fit(federation)` gives results as in statsmodels: `params`, `bse`, `pvalues`, `conf_int()`, `summary()`.

    Example
    -------
    >>> columns = ("capital", "investors", "changes", "profit_growth")
    >>> fit = co.VFEM(response="profit_growth", columns=columns).fit(federation)
    >>> bool(fit.params["investors"] > 0)
    True
    """

    name: ClassVar[str] = "vfem"

    response: str | None = None
    columns: tuple[str, ...] | None = None
    family: Family = "gaussian"
    cross_party: CrossParty = "full"
    missing: Missing = "em"
    step: StepKind = "gradient"
    exchange: Exchange = "masked"
    information: Information = "secure"
    init: Init = "complete-case"
    iterations: int = 2000
    tolerance: float = 1e-5
    sketch_size: int = 1024
    coordinator: str | None = None
    epsilon: float | None = None
    delta: float = 1e-6
    release: Release = "factored"
    clip_quantile: float = 0.98
    gamma: int = 2**20
    minimum_joint: int = 10

    def __post_init__(self) -> None:
        check_choices(self)
        check_private(self)
        if isinstance(self.minimum_joint, bool) or not isinstance(self.minimum_joint, int) or self.minimum_joint < 2:
            raise BadArguments(f"minimum_joint must be a whole number of at least 2, not {self.minimum_joint!r}.")
        if isinstance(self.columns, str):
            raise BadArguments(f"columns is a list of names; write columns=({self.columns!r},).")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(self.columns))

    # --- the coordinator's procedure ----------------------------------------------------------------------

    def fit(self, federation: Federation, *, response: str | None = None) -> VFEMResult:
        """Run it; the run folder is in `federation.runs`."""
        method = self if response is None else replace(self, response=response)
        return federation.run(method)[0]  # type: ignore[no-any-return]

    def moments(self, facts: PublicFacts) -> PatternMoments:
        """The one computation that this method asks of the parties.

        The candidate patterns are those with the response holder: a record without the response enters nothing.
        """
        names = self._names(facts)
        parties = list(dict.fromkeys(feature.party for feature in features(facts, names)))
        holder = parties.index(facts.owner(names[-1]))
        masks = [one for one in itertools.product((False, True), repeat=len(parties)) if one[holder]]
        return PatternMoments(epsilon=None, columns=names, gamma=self.gamma, patterns=tuple(masks))

    def _names(self, facts: PublicFacts) -> tuple[str, ...]:
        """The covariates, then the response."""
        if self.response is None:
            raise BadArguments("name the column to explain: VFEM(response=...), or fit(federation, response=...).")
        declared = facts.column(self.response)
        if declared.kind == "categorical":
            raise SchemaError(f"the response {self.response!r} is categorical and has no mean; choose a number.")
        if self.family == "binomial" and declared.kind != "binary":
            raise SchemaError(f"family='binomial' needs a binary response, and {self.response!r} is {declared.kind}.")
        if declared.missing:
            raise SchemaError(
                f"the response {self.response!r} may have empty cells; give its holder only the records that have it,"
                " and delete `missing = true` in columns.toml."
            )
        wanted = (
            [name for columns in facts.columns.values() for name in columns] if self.columns is None else self.columns
        )
        covariates = tuple(dict.fromkeys(name for name in wanted if name != self.response))
        count = len(features(facts, covariates)) if covariates else 0
        if not 1 <= count < MAXIMUM_FEATURES:
            raise BadArguments(
                f"the covariates give {count} features; a regression takes 1 to {MAXIMUM_FEATURES - 1}: choose them"
                " with columns=."
            )
        return (*covariates, self.response)

    def rounds(self, facts: PublicFacts) -> Rounds | None:
        """The paper's rounds, where they are asked for; everything else needs pattern moments only."""
        if self.cross_party != "independent" or self.step != "gradient" or self.missing != "em":
            return None
        return Rounds(
            design=Design.of(facts, self._names(facts)),
            exchange=self.exchange,
            information=self.information,
            init=self.init,
            iterations=self.iterations,
            tolerance=self.tolerance,
            gamma=self.gamma,
            minimum=self.minimum_joint,
            sketch_size=self.sketch_size,
            coordinator=self.coordinator,
        )

    def private(self, facts: PublicFacts, roster: Roster) -> PrivateMoments:
        """The releases of a private fit."""
        assert self.epsilon is not None
        roster.require_committee()
        return PrivateMoments(
            facts=facts,
            roster=roster,
            names=self._names(facts),
            response=str(self.response),
            epsilon=self.epsilon,
            delta=self.delta,
            gamma=min(self.gamma, 2**14),
            quantile=self.clip_quantile,
            minimum=self.minimum_joint,
        )

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        if self.epsilon is not None:
            private = self.private(facts, roster)
            phases = tuple(private.phases())
            return Plan(
                method=self.name, options=self.options(), stages=phases, notes=private.notes(), delta=self.delta
            )
        if (rounds := self.rounds(facts)) is not None:
            phases = tuple(rounds.phases(roster))
            return Plan(method=self.name, options=self.options(), stages=phases, notes=rounds.notes())
        layout = self.moments(facts).layout(facts, roster)
        return Plan(
            method=self.name,
            options=self.options(),
            stages=tuple(moment_phases(layout, "client")),
            notes=(
                *moment_notes(layout, "client"),
                f"Only records of {facts.owner(str(self.response))!r}, which holds {self.response!r}, are used:"
                f" {len(layout.masks)} candidate patterns. All estimates follow from their moments; nothing is asked"
                " twice.",
            ),
        )

    def execute(self, job: Job) -> VFEMResult:
        if self.epsilon is not None:
            private = self.private(job.facts, job.roster)
            result = private_result(private, *private.execute(job), simulated=job.simulated)
            return self._priced(result, job)
        if (rounds := self.rounds(job.facts)) is not None:
            made = rounds.execute(job)
        else:
            layout = self.moments(job.facts).layout(job.facts, job.roster)
            moments = compute_moments(job, layout, "client")
            made = estimate(
                moments,
                response=str(self.response),
                columns=columns_of(job.facts, moments.features),
                gamma=self.gamma,
                minimum_joint=self.minimum_joint,
                family=self.family,
                cross_party=self.cross_party,
                missing=self.missing,
                init=self.init,
            )
        words = described(self)
        remarks = (*words.get("remarks", ()), *made.remarks)
        return replace(self._priced(made, job), **{**words, "remarks": remarks})

    def _priced(self, made: VFEMResult, job: Job) -> VFEMResult:
        """With what was disclosed, and what it costs a person."""
        leaves = dict.fromkeys(leaf for cost in job.plan.costs() for leaf in cost.leaves())
        open_ones = [leaf for leaf in leaves if leaf.unbounded]
        released = [f"{leaf['name']}: {leaf['discloses']}; seen by: {leaf.audience}" for leaf in open_ones]
        if self.epsilon is not None:
            bounded = [cost for cost in leaves if not cost.unbounded and cost.mechanism != "free"]
            total = guarantee(bounded, delta=self.delta)
            released.insert(0, f"noisy counts and moments: {total}, the presence mask held fixed against who sees it")
        return replace(made, released=tuple(dict.fromkeys(released)), cost=str(job.plan.total()))

    # --- as data ------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        return {
            "response": self.response,
            "columns": None if self.columns is None else list(self.columns),
            "family": self.family,
            "cross_party": self.cross_party,
            "missing": self.missing,
            "step": self.step,
            "exchange": self.exchange,
            "information": self.information,
            "init": self.init,
            "iterations": self.iterations,
            "tolerance": self.tolerance,
            "sketch_size": self.sketch_size,
            "coordinator": self.coordinator,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "release": self.release,
            "clip_quantile": self.clip_quantile,
            "gamma": self.gamma,
            "minimum_joint": self.minimum_joint,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        columns = options["columns"]
        return cls(**{**options, "columns": None if columns is None else tuple(columns)})


def estimate(
    moments: Moments,
    *,
    response: str,
    columns: Mapping[str, Column],
    gamma: int,
    minimum_joint: int = 10,
    family: Family = "gaussian",
    cross_party: CrossParty = "full",
    missing: Missing = "em",
    init: Init = "complete-case",
) -> VFEMResult:
    """The regression from exact pattern moments; refused, with the reason, where they cannot carry it."""
    if missing == "em":
        check_joint_records(moments, minimum_joint, pairs=cross_party == "full")
    data, kept, dropped = _statistics(moments, response, gamma)
    shared: dict[str, Any] = {
        "features": kept,
        "columns": columns,
        "cohort": moments.n,
        "dropped": dropped,
        "simulated": moments.simulated,
    }
    if missing != "em":
        return estimate_baseline(data, missing, response=response, **shared)
    patterns = tuple(
        (mask, round(count)) for mask, count in zip(moments.patterns, moments.counts, strict=True) if count > 0.5
    )
    if cross_party == "independent":
        known = {"parties": moments.parties, "patterns": patterns, **shared}
        return estimate_independent(data, response=response, init=init, **known)
    fit = fit_gaussian(data)
    target = data.names.index(response)
    made = in_own_units(
        fit,
        regression(data, fit, target),
        response=target,
        parties=moments.parties,
        patterns=patterns,
        **shared,
    )
    return made if family == "gaussian" else as_logit(made, discriminant(data, fit, target))


def check_joint_records(moments: Moments, minimum: int, *, pairs: bool = True) -> None:
    """Every pair of parties (or only each party) must be observed together, often enough for the columns of both.

    Covariances of a pair are estimated from its joint records alone. With few of them for each column, the estimates
    exist, and their standard errors are too small.
    """
    width = {party: sum(feature.party == party for feature in moments.features) for party in moments.parties}
    counts = moments.counts
    for first, second in itertools.combinations_with_replacement(range(len(moments.parties)), 2):
        if first != second and not pairs:
            continue
        together = [mask[first] and mask[second] for mask in moments.patterns]
        count = round(float(counts[together].sum()))
        a, b = moments.parties[first], moments.parties[second]
        both, needed = f"{a!r} and {b!r} together", minimum * (width[a] + width[b])
        if first == second:
            both, needed = f"{a!r}", minimum * width[a]
        if count == 0:
            raise BadArguments(
                f"no record with the response is at {both}, so nothing tells how the columns there are related; leave"
                " a party out with columns=."
            )
        if count < needed:
            raise BadArguments(
                f"only {count} records with the response are at {both}, and {needed} are needed ({minimum} for each"
                " feature): standard errors would be too small; leave columns or a party out with columns=, or lower"
                " minimum_joint."
            )


def _statistics(
    moments: Moments, response: str, gamma: int
) -> tuple[PatternStatistics, tuple[Feature, ...], tuple[str, ...]]:
    """The occurring patterns over the features that vary; an indicator that does not is left out by name."""
    names = [feature.name for feature in moments.features]
    patterns = []
    for entries, gram in zip(moments.entries, moments.grams, strict=True):
        if gram[0, 0] > 0.5:
            observed = np.array([names.index(name) for name in entries[1:]], dtype=np.intp)
            patterns.append(Pattern(observed, float(gram[0, 0]), gram[0, 1:], gram[1:, 1:]))
    whole = PatternStatistics(tuple(names), tuple(patterns))
    _, variance = whole.available()
    still = variance < COARSE / gamma**2
    for feature, constant in zip(moments.features, still, strict=True):
        if constant and feature.category is None:
            raise BadArguments(
                f"column {feature.column!r} does not vary in the records used, or its declared range is far too wide;"
                " leave it out with columns=, or declare a closer range."
            )
    kept = np.flatnonzero(~still)
    dropped = tuple(names[place] for place in np.flatnonzero(still))
    return whole.only(kept), tuple(moments.features[place] for place in kept), dropped
