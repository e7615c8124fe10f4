"""The Gaussian copula of `synthesize`: a record-level (epsilon, delta), no trusted party, and any missing blocks.

1. Each party releases private marginals of its columns (a tenth of the budget) and keeps the score maps they give.
2. The parties turn their rows into scores in [-1, 1], clip them, and compute noisy moments on secret shares.
3. The coordinator finds the latent correlation (EM over the patterns, or available pairs) and draws fresh rows.

Only 1 and 2 touch data. The claim is in `claim.md`; the post-processing is in `estimate.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from colonnade.data.column import Column, Columns
from colonnade.errors import BadPrivacyParameter, NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.plan import HOPELESS
from colonnade.federation.roster import Roster
from colonnade.federation.stage import stage
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.calibration import Calibration, Skellams
from colonnade.privacy.cost import Cost
from colonnade.statistics.adaptive import Axis, Forecast, first_cells, histogram_words
from colonnade.statistics.cells import cells
from colonnade.statistics.forecast import SHARED, enough
from colonnade.statistics.joint import account_notes, colluders
from colonnade.statistics.moments import MomentComputation, MomentsLayout
from colonnade.synthesis.copula.estimate import LEAVE, WARN, Estimate, estimate, forecast
from colonnade.synthesis.copula.model import GaussianCopula, stepwise, values_of
from colonnade.synthesis.copula.overlap import Overlap
from colonnade.synthesis.copula.scores import (
    MOST_ROUNDS,
    SCORE_VARIANCE,
    MarginalReleases,
    PartyMarginals,
    column_rounds,
    party_marginals,
    release_marginals,
    released_size,
    round_number,
)
from colonnade.synthesis.copula.uncertainty import CopulaNoise
from colonnade.synthesis.figures import released_shares
from colonnade.synthesis.table import MOSTLY_NOISE, TALLY_BINS, Quality, SyntheticTable

if TYPE_CHECKING:
    from colonnade.synthesis.method import Synthesize

SCORES = "copula scores"
"""The label under which the parties keep their score maps."""


# --- what is released ----------------------------------------------------------------------------------------------


class CopulaReleases:
    """The two releases of one job, from public facts: noise `sigma` of a count, `rounds` of counts, the `layout` of the
    moments, the columns of each party, and the stages that ask for them."""

    def __init__(self, options: Synthesize, facts: PublicFacts, roster: Roster) -> None:
        roster.require_committee()
        self.columns = facts.wanted(options.columns)
        clip = dict(options.clip or {})
        if strangers := sorted(set(clip) - set(self.columns)):
            raise BadPrivacyParameter(f"clip names {strangers[0]!r}, which has none of the columns; leave it out.")
        noiseless = MomentsLayout(
            facts=facts,
            roster=roster,
            names=options.columns,
            presence=options.presence,
            gamma=options.gamma,
            clip={party: clip.get(party, default_clip(len(columns))) for party, columns in self.columns.items()},
            patterns=options.patterns,
            scores=SCORES,
            verify=options.verify,
        )
        noiseless.check()
        self.sigma, self.rounds, self.layout = 0.0, MOST_ROUNDS, noiseless
        self.calibration: Calibration | None = None
        independent = options.model == "independent"
        share = 1.0 if independent else options.marginal_share
        if options.epsilon is not None:
            all_columns = [column for columns in self.columns.values() for column in columns.values()]
            self.rounds = _rounds(options, options.epsilon, facts.n, len(all_columns), share)
            groups: dict[str, Any] = {
                "marginals": MarginalReleases.of(all_columns, rounds=self.rounds, share=share),
            }
            if not independent:
                moments = noiseless.release(1, colluders=colluders(roster, options.view))
                groups["moments"] = Skellams(moments, share=1 - share)
            self.calibration = Calibration(
                groups,
                epsilon=options.epsilon,
                delta=options.delta,
                relation=options.relation,
                bracket=(1e-3, 1e9),
            )
            self.sigma = self.calibration["marginals"]
            if not independent:
                self.layout = replace(noiseless, mu=self.calibration["moments"])
        cells = [
            sum(released_size(column, self.rounds) for column in columns.values()) for columns in self.columns.values()
        ]
        noise = {"label": SCORES, "sigma": self.sigma, "rounds": self.rounds}
        self.marginals = stage(
            "marginals",
            release_marginals,
            {
                party: [{**noise, "columns": list(columns), **self._filled(columns)}]
                for party, columns in self.columns.items()
            },
            facts=facts,
            roster=roster,
            discloses="noisy counts of the cells of each column",
            reply_bytes=8 * max(cells),
        )
        self.moments = MomentComputation(self.layout, options.view)
        self.stages = (self.marginals,) if independent else (self.marginals, *self.moments.stages)

    def _filled(self, columns: Collection[str]) -> dict[str, list[str]]:
        """The columns of a party in which an empty cell makes a record count as absent, if there are any."""
        filled = [name for name in self.layout.filled if name in columns]
        return {"filled": filled} if filled else {}

    def costs(self, colluding: int) -> list[Cost]:
        """What a person pays in all, if `colluding` members know their noise."""
        return [] if self.calibration is None else self.calibration.costs(colluding)

    def ask_marginals(self, job: Job) -> dict[str, PartyMarginals]:
        """The first release, party by party."""
        counts = job.ask(self.marginals)
        stated: dict[str, Any] = {"n": self.layout.facts.n, "sigma": self.sigma, "rounds": self.rounds}
        return {
            party: party_marginals(columns, counts[party], filled=self.layout.filled, **stated)
            for party, columns in self.columns.items()
        }


def default_clip(columns: int) -> float:
    """The norm to which a party's row of scores is clipped: its square is p / 3 + 0.35 (sqrt(p) + 1), at most p.

    The squared norm is p / 3 on average (the variance of a score is 1/3); its standard deviation is 0.3 sqrt(p) if
    scores are independent, more if they are not. Noise grows with the squared bound; the bias of the variances is
    corrected (`estimate.py`). On the paper's simulation (p = 20 a party) the bias that was left in a correlation was
    0.0045 (root mean square) at 1.0 times p / 3, 0.0007 at 1.25 and 0.0002 at 1.5; this bound is 1.29 times p / 3
    there.
    """
    return math.sqrt(min(columns, columns * SCORE_VARIANCE + 0.35 * (math.sqrt(columns) + 1)))


def _rounds(options: Synthesize, epsilon: float, n: int, columns: int, share: float) -> int:
    """Of counts: noise over sensitivity for (epsilon, delta), nearly, from the zCDP bound, decides it."""
    tail = math.log(1 / options.delta)
    rho = (math.sqrt(tail + epsilon) - math.sqrt(tail)) ** 2
    nearly = math.sqrt((2 if options.relation == "replace" else 1) / (2 * rho))
    return round_number(n, nearly * math.sqrt(columns / share))


# --- the coordinator's procedure -----------------------------------------------------------------------------------


class CopulaSynthesis(Procedure[SyntheticTable]):
    """Marginals, moments, the copula that they carry, fresh rows."""

    def __init__(self, options: Synthesize, facts: PublicFacts, roster: Roster) -> None:
        self.options = options
        self.releases = CopulaReleases(options, facts, roster)
        self.stages = self.releases.stages
        dependence = () if options.model == "independent" else self.releases.moments.notes
        self.notes = (*self._forecasts(), *dependence)
        if options.epsilon is not None:
            costs = self.releases.costs
            self.notes += account_notes(roster, view=options.view, delta=options.delta, releases=costs)

    def run(self, job: Job) -> SyntheticTable:
        released = self.releases.ask_marginals(job)
        check_present(released)
        marginals = {name: marginal for answer in released.values() for name, marginal in answer.marginals.items()}
        columns = Columns(column for listed in self.releases.columns.values() for column in listed.values())
        ranks = {name: sd for answer in released.values() for name, sd in answer.ranks.items()}
        size, n = len(columns), job.facts.n
        if self.options.model == "independent":
            model = GaussianCopula(columns, marginals, np.eye(size))
            nothing = np.zeros((size, size))
            redrawn = CopulaNoise(model, nothing, nothing + n, ranks, np.zeros(size, dtype=np.intp), n)
            return self._table(job, released, redrawn, None, (), {})
        moments = self.releases.moments.run(job)
        estimated = estimate(moments, marginals, correlation=self.options.correlation)
        model = GaussianCopula(columns, estimated.marginals, estimated.correlation)
        shared = estimated.shared[np.ix_(estimated.owner, estimated.owner)]
        return self._table(
            job,
            released,
            CopulaNoise(model, estimated.entry_noise, shared, ranks, estimated.owner, n),
            copula_quality(estimated),
            estimated.notes(),
            {
                "noise sd of a product": moments.noise_sd,
                **({"empty cells": _rounded(moments.empty_cells)} if moments.empty_cells else {}),
                **estimated.to_dict(),
            },
            frozenset(
                frozenset((first, second))
                for a, b in estimated.completed
                for first, second in itertools.product(self.releases.columns[a], self.releases.columns[b])
            ),
        )

    def _table(
        self,
        job: Job,
        released: Mapping[str, PartyMarginals],
        redrawn: CopulaNoise,
        quality: Quality | None,
        notes: Sequence[str],
        details: Mapping[str, Any],
        hidden: frozenset[frozenset[str]] = frozenset(),
    ) -> SyntheticTable:
        options, sigma, rounds = self.options, self.releases.sigma, self.releases.rounds
        return SyntheticTable(
            method=options.name,
            cohort=job.facts.n,
            model=redrawn.model,
            redrawn=redrawn,
            quality=quality,
            measured=measured_shares(self.releases.columns, released),
            hidden=hidden,
            drawn_from="independent marginals" if options.model == "independent" else "a Gaussian copula",
            rows=options.rows or job.facts.n,
            seed=int(job.generator("synthetic rows").integers(2**63)),
            cost=str(job.plan.total(relation=options.relation)),
            simulated=job.simulated,
            file_format=options.file_format,
            released=job.plan.unbounded(),
            notes=tuple(notes),
            details={
                "model": options.model,
                "rows are": "fresh draws from the model; none belongs to a record of the cohort",
                "guarantee": self._guarantee(),
                "marginals": {
                    "noise sd of a count": sigma,
                    "noise sd of a count of one round": sigma * math.sqrt(rounds),
                    "rounds of a numeric column": rounds,
                },
                "columns": {name: words for answer in released.values() for name, words in answer.in_words.items()},
                MOSTLY_NOISE: [name for answer in released.values() for name in answer.mostly_noise],
                "records present": {party: round(max(answer.present, 0.0)) for party, answer in released.items()},
                **details,
            },
        )

    def _guarantee(self) -> str:
        """Of the noisy releases, with the presence mask held fixed where it is known."""
        options = self.options
        if options.epsilon is None:
            return "none: nothing carries noise"
        costs = self.releases.costs(colluders(self.releases.layout.roster, options.view))
        fixed = "" if options.presence == "secret" else ", for a fixed presence mask"
        return f"{guarantee(costs, delta=options.delta, relation=options.relation)}{fixed}"

    # --- the plan's notes ------------------------------------------------------------------------------------------

    def _forecasts(self) -> tuple[str, ...]:
        options, layout, rounds = self.options, self.releases.layout, self.releases.rounds
        notes = [
            f"Marginals: counts carry noise with standard deviation {self.releases.sigma:.3g}; a numeric column is"
            f" counted in {rounds} rounds.",
            *self._columns(),
            *self._hopeless(),
        ]
        if options.model == "independent":
            return tuple(notes)
        if layout.mu:
            notes += self._pair_forecasts(layout)
        every = (column for listed in self.releases.columns.values() for column in listed.values())
        ordered = [column.name for column in every if column.kind == "categorical"]
        if ordered:
            notes.append(
                f"Categorical columns keep their marginal and only the association along their declared order:"
                f" {', '.join(ordered)}."
            )
        if options.presence == "known" and layout.mu:
            notes.append(
                "With known presence every pattern carries its own noise: the forecast grows by the root of the number"
                " of patterns that two parties have in common and that stand out of the noise."
            )
        if options.presence == "secret":
            notes.append(
                "Pairs of columns are computed from the records that have both: right if records are missing"
                ' completely at random. presence="known" (allow "presence") also handles missing at random, by EM.'
            )
        return tuple(notes)

    def _columns(self) -> list[str]:
        """A line for each column: what its marginal will be worth."""
        n, sigma = self.releases.layout.facts.n, self.releases.sigma
        rounds = column_rounds(sigma, self.releases.rounds)
        return [
            f"Column {name!r}: "
            + (
                histogram_words(values_of(column), n=n, sd=sigma)
                if stepwise(column)
                else Forecast.of(Axis.of(column), n=n, rounds=rounds).in_words()
            )
            + "."
            for listed in self.releases.columns.values()
            for name, column in listed.items()
        ]

    def _hopeless(self) -> tuple[str, ...]:
        """Can some party's number of records not stand out of its noise (`check_present`)? A column's total over c
        cells has the variance c sigma^2; the cells of a numeric column may be merged, down to one."""
        epsilon, n, sigma = self.options.epsilon, self.releases.layout.facts.n, self.releases.sigma
        rounds = column_rounds(sigma, self.releases.rounds)

        def off(cut: Callable[[Column], int]) -> float:
            """The noise that must be exceeded, as a part of n, at the party with the most of it."""
            cells = (
                [values_of(column) if stepwise(column) else cut(column) for column in listed.values()]
                for listed in self.releases.columns.values()
            )
            return STANDS_OUT * sigma / n / math.sqrt(min(sum(1 / size for size in sizes) for sizes in cells))

        if epsilon is None or off(lambda column: 1) <= 1:
            return ()
        most = off(lambda column: first_cells(Axis.of(column), n=n, rounds=rounds).counts.size)
        return (
            f"{HOPELESS}: the noise hides how many records a party has, even if it has all {n:,}; epsilon ="
            f" {enough(epsilon, most / SHARED):g} would be enough if it has half of them.",
        )

    def _pair_forecasts(self, layout: MomentsLayout) -> list[str]:
        """How much noise a correlation will carry, as far as it is known before the overlap is."""
        least = float(forecast(layout.noise_sd, layout.facts.n))
        notes = [
            f"Forecast: a correlation of two continuous columns carries noise with standard deviation {least:.3g}"
            f" where both parties have all {layout.facts.n} records, and {least:.3g} / f where they share the part"
            f" f of them (f is not public: the result says it, pair by pair). It is above {WARN}, and poor, for a"
            f" pair of parties that shares less than {_share(least / WARN)}; with less than"
            f" {_share(least / LEAVE)} it is above {LEAVE}, and the pair is left to maximum-determinant completion.",
            *Overlap(self.options.expected, layout.parties).notes(
                lambda _a, _b, shared: least / shared, warn=WARN, leave=LEAVE
            ),
        ]
        if least > WARN:
            notes.append(
                f"WARNING: {least:.3g} is above {WARN}: correlations will be poor even where all records are"
                " shared; choose fewer columns, a larger epsilon, or more records."
            )
        return notes


def copula_quality(estimated: Estimate) -> Quality:
    """From the known noise of the measured correlations alone."""
    if not np.isfinite(estimated.error) or not len(estimated.correlation) > 1:
        return Quality("Some correlations were not measured, so that nothing is said of their error.", {})
    return Quality(
        "Estimated from the noisy moments alone: if the copula is right, noise moves its correlations by about"
        f" {estimated.error:.2g} (root mean square over pairs of columns). What is no correlation, such as how three"
        " columns go together, is not measured.",
        {"error of a correlation": estimated.error},
    )


def measured_shares(
    columns: Mapping[str, Mapping[str, Column]], released: Mapping[str, PartyMarginals]
) -> dict[str, dict[str, Any]]:
    """What was released of each column, in its public cells, to draw the rows over it."""
    return {
        name: released_shares(
            column,
            answer.marginals[name],
            cells(column, bins=TALLY_BINS),
            answer.ranks[name] / max(answer.present, 1.0),
        )
        for party, answer in released.items()
        for name, column in columns[party].items()
    }


STANDS_OUT = 5.0
"""Standard deviations of its noise that a party's number of records must have."""


def check_present(released: Mapping[str, PartyMarginals]) -> None:
    """A party whose noisy number of records does not stand out of its noise carries nothing."""
    for party, answer in released.items():
        if answer.present < max(STANDS_OUT * answer.present_sd, 1.5):
            raise NotEstimable(
                f"{party!r} seems to have {max(answer.present, 0.0):.0f} records, and the noise has standard deviation"
                f" {answer.present_sd:.3g}: nothing can be said of its columns; leave them out with columns=, or allow"
                " a larger epsilon."
            )


def _rounded(counts: Mapping[str, float]) -> dict[str, int]:
    return {name: round(max(count, 0.0)) for name, count in counts.items()}


def _share(part: float) -> str:
    """A part of the records, in words."""
    return "all records" if part >= 1 else f"{100 * part:.2g} % of the records"
