"""`CopulaSQM`: a synthetic table with a record-level (epsilon, delta), no trusted party, and any missing blocks.

1. Each party releases private marginals of its columns (a tenth of the budget) and keeps the score maps they give.
2. The parties turn their rows into scores in [-1, 1], clip them, and compute noisy moments on secret shares.
3. The coordinator finds the latent correlation (EM over the patterns, or available pairs) and draws fresh rows.

Only 1 and 2 touch data. The claim is in `claim.md`; the post-processing is in `estimate.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np

from colonnade.data.column import Columns
from colonnade.errors import BadArguments, BadPrivacyParameter, NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Plan, phase
from colonnade.federation.roster import Roster
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import Relation
from colonnade.statistics.joint import View, account_notes, check_budget, colluders
from colonnade.statistics.moment_layout import Layout
from colonnade.statistics.moments import compute_moments, moment_notes, moment_phases
from colonnade.synthesis.copula.estimate import LEAVE, WARN, Correlation, Estimate, estimate, forecast
from colonnade.synthesis.copula.expected import Overlap, check_expected
from colonnade.synthesis.copula.model import GaussianCopula
from colonnade.synthesis.copula.scores import PartyMarginals, party_marginals, release_marginals, released_size
from colonnade.synthesis.copula.sqm_noise import SCORES, Noise, noise_for
from colonnade.synthesis.table import Format, SyntheticTable, check_format, check_rows

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

MARGINALS = "marginals"


@dataclass(frozen=True, kw_only=True)
class CopulaSQM:
    """A synthetic table from a Gaussian copula with differential privacy and no trusted party.

    Parameters
    ----------
    epsilon, delta : a person's total over all parties. `epsilon=None` computes exactly: every party must allow
        "exact-marginals" and "exact-moments" by name.
    rows : how many synthetic rows the run folder gets; as many as the cohort by default. Free of cost.
    columns : which columns; all by default. A column that may have empty cells is refused.
    marginal_share : the share of the budget (of 1 / noise^2) for the marginals.
    gamma : the scale of quantisation; from 2^12 on rounding hardly costs anything.
    clip : {party: norm} of its row of scores; by default `default_clip` of its number of columns.
    presence : "secret" shares the mask like data: everything is within (epsilon, delta), and pairs of columns are
        computed from the records that have both. "known" shows the mask over pseudonymous rows to the share holders
        (allow "presence"): moments per pattern then allow EM, which is right for records missing at random.
    correlation : "em", "pairs", or "auto": EM where presence is known and the noise is small enough.
    patterns : candidate patterns where presence is known, if fewer than all.
    expected : {"bank": 0.6, "bank+clinic": 0.4}: the parts of the cohort that parties are expected to have and share.
        It changes nothing but the plan's forecast of the noise, pair by pair (`expected.py`).
    format : of the synthetic file, "parquet" or "csv".
    view, relation : what the noise is calibrated for; the plan prints the others too.

    Categorical columns are taken in their declared order (`model.py` says why).

    Returns
    -------
    `fit(federation)` gives a `SyntheticTable`: `sample(rows)` draws a DataFrame, `cost` and `notes` say the rest.

    Example
    -------
    >>> table = co.CopulaSQM(epsilon=8.0, delta=1e-6, columns=("capital", "roa")).fit(federation)
    >>> list(table.sample(100).columns)
    ['roa', 'capital']
    """

    name: ClassVar[str] = "copula-sqm"

    epsilon: float | None = 1.0
    delta: float = 1e-6
    rows: int | None = None
    columns: tuple[str, ...] | None = None
    marginal_share: float = 0.1
    gamma: int = 2**12
    clip: Mapping[str, float] | None = None
    presence: Literal["known", "secret"] = "secret"
    correlation: Correlation = "auto"
    patterns: tuple[tuple[bool, ...], ...] | None = None
    expected: Mapping[str, float] | None = None
    format: Format = "parquet"
    view: View = "client"
    relation: Relation = "zero-out"

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        if self.rows is not None:
            check_rows(self.rows)
        check_format(self.format)
        check_expected(self.expected)
        if not 0 < self.marginal_share < 1:
            raise BadPrivacyParameter(f"marginal_share must lie between 0 and 1, not {self.marginal_share!r}.")
        if isinstance(self.columns, str):
            raise BadArguments(f"columns is a list of names; write columns=({self.columns!r},).")
        for name, value, allowed in (
            ("presence", self.presence, ("known", "secret")),
            ("correlation", self.correlation, get_args(Correlation)),
            ("view", self.view, get_args(View)),
            ("relation", self.relation, get_args(Relation)),
        ):
            if value not in allowed:
                raise BadArguments(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}.")
        if self.correlation == "em" and self.presence != "known":
            raise BadArguments('EM needs the moments of each pattern; choose presence="known", or correlation="pairs".')

    # --- the coordinator's procedure -----------------------------------------------------------------------------

    def fit(self, federation: Federation) -> SyntheticTable:
        """Run it; the run folder, with the synthetic table, is in `federation.runs`."""
        return federation.run(self)[0]  # type: ignore[no-any-return]

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        noise = self.noise(facts, roster)
        layout = noise.layout
        requests = {party: [arguments] for party, arguments in noise.requests().items()}
        here: dict[str, Any] = {"facts": facts, "roster": roster}
        cells = max(
            sum(released_size(one, noise.depth) for one in noise.columns[party].values()) for party in layout.parties
        )
        return Plan(
            method=self.name,
            options=self.options(),
            stages=(
                phase(
                    MARGINALS,
                    release_marginals,
                    requests,
                    discloses="noisy counts of the public cells of each column",
                    reply_bytes=8 * cells,
                    **here,
                ),
                *moment_phases(layout, self.view),
            ),
            notes=(*self._notes(noise), *moment_notes(layout, self.view), *self._accounts(noise)),
            delta=self.delta,
        )

    def execute(self, job: Job) -> SyntheticTable:
        noise = self.noise(job.facts, job.roster)
        counts = job.ask_each(release_marginals, noise.requests())
        released = {
            party: party_marginals(
                noise.columns[party],
                {name: np.asarray(one, dtype=np.int64) for name, one in counts[party].items()},
                sigma=noise.sigma,
                depth=noise.depth,
            )
            for party in noise.layout.parties
        }
        check_present(released)
        moments = compute_moments(job, noise.layout, self.view)
        marginals = {name: one for party in released.values() for name, one in party.marginals.items()}
        found = estimate(moments, marginals, correlation=self.correlation)
        seed = int(job.generator("synthetic rows").integers(2**63))
        return self._table(job, noise, released, found, moments.noise_sd, seed)

    def _table(
        self,
        job: Job,
        noise: Noise,
        released: Mapping[str, PartyMarginals],
        found: Estimate,
        noise_sd: float,
        seed: int,
    ) -> SyntheticTable:
        columns = Columns(column for party in noise.columns.values() for column in party.values())
        unbounded = dict.fromkeys(leaf for cost in job.plan.costs() for leaf in cost.leaves() if leaf.unbounded)
        return SyntheticTable(
            method=self.name,
            cohort=job.facts.n,
            model=GaussianCopula(columns, found.marginals, found.correlation),
            rows=job.facts.n if self.rows is None else self.rows,
            seed=seed,
            cost=str(job.plan.total(relation=self.relation)),
            simulated=job.simulated,
            format=self.format,
            released=tuple(f"{one['name']}: {one['discloses']}; seen by: {one.audience}" for one in unbounded),
            notes=found.notes(),
            details={
                "rows are": "fresh draws from the model; none belongs to a record of the cohort",
                "guarantee": self._guarantee(noise),
                "marginals": {
                    "noise sd of a count": noise.sigma,
                    "noise sd of a tree's node": noise.sigma * math.sqrt(noise.depth),
                    "knots of a continuous column": 2**noise.depth - 1,
                },
                "noise sd of a product": noise_sd,
                "records present": {party: round(max(one.present, 0.0)) for party, one in released.items()},
                **found.to_dict(),
            },
        )

    # --- noise ---------------------------------------------------------------------------------------------------

    def noise(self, facts: PublicFacts, roster: Roster) -> Noise:
        """The marginals' noise and the public shape of the moments, which together cost (epsilon, delta)."""
        silent = Layout(
            facts=facts,
            roster=roster,
            names=None if self.columns is None else tuple(self.columns),
            presence=self.presence,
            gamma=self.gamma,
            patterns=self.patterns,
            scores=SCORES,
        )
        return noise_for(
            silent,
            epsilon=self.epsilon,
            delta=self.delta,
            share=self.marginal_share,
            clip=self.clip or {},
            view=self.view,
            relation=self.relation,
        )

    def _guarantee(self, noise: Noise) -> str:
        """Of the noisy releases, with the presence mask held fixed where it is known."""
        if self.epsilon is None:
            return "none: nothing carries noise"
        costs = noise.releases(colluders(noise.layout.roster, self.view))
        fixed = "" if self.presence == "secret" else ", for a fixed presence mask"
        return f"{guarantee(costs, delta=self.delta, relation=self.relation)}{fixed}"

    def _accounts(self, noise: Noise) -> tuple[str, ...]:
        if self.epsilon is None:
            return ()
        return account_notes(noise.layout.roster, view=self.view, delta=self.delta, releases=noise.releases)

    def _notes(self, noise: Noise) -> tuple[str, ...]:
        layout = noise.layout
        notes = [
            f"Marginals: counts carry noise with standard deviation {noise.sigma:.3g}; a continuous column has"
            f" {2**noise.depth - 1} private knots."
        ]
        if layout.mu:
            sd = math.sqrt(2 * layout.mu) / layout.gamma**2
            least = float(forecast(sd, layout.facts.n))
            notes.append(
                f"Forecast: a correlation of two continuous columns carries noise with standard deviation {least:.3g}"
                f" where both parties have all {layout.facts.n} records, and {least:.3g} / f where they share the part"
                f" f of them (f is not public: the result says it, pair by pair). It is above {WARN}, and poor, for a"
                f" pair of parties that shares less than {_share(least / WARN)}; with less than"
                f" {_share(least / LEAVE)} it is above {LEAVE}, and the pair is left to maximum-determinant completion."
            )
            notes += Overlap(self.expected, layout.parties).notes(
                lambda _a, _b, shared: least / shared, warn=WARN, left=lambda sd, _: sd > LEAVE
            )
            if least > WARN:
                notes.append(
                    f"WARNING: {least:.3g} is above {WARN}: correlations will be poor even where all records are"
                    " shared; choose fewer columns, a larger epsilon, or more records."
                )
        ordered = [one.name for party in noise.columns.values() for one in party.values() if one.kind == "categorical"]
        if ordered:
            notes.append(
                f"Categorical columns keep their marginal and only the association along their declared order:"
                f" {', '.join(ordered)}."
            )
        if self.presence == "known" and layout.mu:
            notes.append(
                "With known presence every pattern carries its own noise: the forecast grows by the root of the number"
                " of patterns that two parties have in common and that stand out of the noise."
            )
        if self.presence == "secret":
            notes.append(
                "Pairs of columns are computed from the records that have both: right if records are missing"
                ' completely at random. presence="known" (allow "presence") also handles missing at random, by EM.'
            )
        return tuple(notes)

    # --- as data -------------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "rows": self.rows,
            "columns": None if self.columns is None else list(self.columns),
            "marginal_share": self.marginal_share,
            "gamma": self.gamma,
            "clip": None if self.clip is None else dict(self.clip),
            "presence": self.presence,
            "correlation": self.correlation,
            "patterns": None if self.patterns is None else [list(one) for one in self.patterns],
            "expected": None if self.expected is None else dict(self.expected),
            "format": self.format,
            "view": self.view,
            "relation": self.relation,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        columns, patterns = options["columns"], options["patterns"]
        return cls(
            **{
                **options,
                "columns": None if columns is None else tuple(columns),
                "patterns": None if patterns is None else tuple(tuple(one) for one in patterns),
            }
        )


def check_present(released: Mapping[str, PartyMarginals]) -> None:
    """A party whose noisy number of records does not stand out of its noise carries nothing."""
    for party, one in released.items():
        if one.present < max(5 * one.present_sd, 1.5):
            raise NotEstimable(
                f"{party!r} seems to have {max(one.present, 0.0):.0f} records, and the noise has standard deviation"
                f" {one.present_sd:.3g}: nothing can be said of its columns; leave them out with columns=, or allow a"
                " larger epsilon."
            )


def _share(part: float) -> str:
    """A part of the records, in words."""
    return "all records" if part >= 1 else f"{100 * part:.2g} % of the records"
