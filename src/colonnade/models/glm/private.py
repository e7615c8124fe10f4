"""Logistic and Poisson regression from a few noisy scores on secret shares: gradients of the whole likelihood, in
private units.

1. *Units.* Each party tells noisy sums of its features and of their squares, with all of the noise its own. They say
   where a feature lies, how far it spreads, and which categories are too rare to be told from the noise. The response
   holder also tells the share of the event, or how many records have which count: that says where counts are cut.
2. *Rounds.* In each, all members know the coefficients b. Share holders compute r = y - mu(b'x) of every record from
   functions of the parties' parts of the predictor (`bounded.py`), and open with every member's noise

       sum of r h(x),    h(x) = each party's features in these units, clipped to a norm, and a constant.

   The norms add up to 1 in squares and |r|, in units of the cap of a count, is at most 1 and a little, so that is the
   sensitivity of a round.

Only h is clipped: the predictor has the features as they are. Where the model holds, E[h(x) (y - mu)] = 0 at the true
coefficients whatever h is, so clipping costs precision and brings no bias (Mallows' estimating equations). In units of
their deviations features have about the same information, so a step needs no more than the units to know how long it
must be: there is no matrix of products, and the noise grows with the length of a row and not with its square. The claim
is in `private.claim.md`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.options import Verification, View
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, Stage, fields_of, stage
from colonnade.federation.step import Public, Release, step
from colonnade.models.glm.bounded import BoundedMean, bounded_mean, edges
from colonnade.models.glm.counts import Counts
from colonnade.models.glm.newton import Family
from colonnade.models.glm.proof import NoisyScoreProof, ScoreProof
from colonnade.models.glm.scores import LARGEST_COEFFICIENT, RoundStages, ScoreLayout, listed, verification_note
from colonnade.privacy.calibration import Calibration, Releases, Skellams
from colonnade.privacy.cost import Cost, Relation, Unbounded
from colonnade.privacy.randomness import Randomness
from colonnade.privacy.skellam import Skellam, delta_1_bound
from colonnade.privacy.skellam_sampler import skellam
from colonnade.secure.bgw import Product, cross
from colonnade.secure.extension import Extension
from colonnade.secure.field import Field, Residues
from colonnade.statistics.features import (
    by_rule,
    design,
    empty_rules,
    integer_bounds,
    quantize,
    stochastic_round,
)
from colonnade.statistics.gaussian_em import Matrix, Vector
from colonnade.statistics.joint import colluders, field_for
from colonnade.statistics.shares import deal_large, deal_noise, noise_part

ROUNDS = 8
"""With 4 to 12 classifiers of Adult and Bank were about as good."""
UNITS_SHARE = 0.1
"""Of the budget, for the units."""
STEPS = 2**12
"""Integer steps of a feature in the sums of the units."""
LEAST_VARIANCE = 0.01
"""Of a feature, in its declared half range: rarer categories and narrower columns are not stretched further."""
KEPT_SQUARE = 0.6
"""The squared norm to which a party's part of a row is clipped, in units of its expected square."""
DAMPING = 2.0
"""How much shorter a step is than if features were uncorrelated: correlated ones share what there is to explain."""
COARSEST_UNITS = 0.1
"""Two standard deviations of a feature's noisy mean, in its half range: beyond it the units say too little."""
FULL_COST = "three to four times"
"""What verification takes of the CPU time without it, with 2,000 to 20,000 records of three parties."""
MOST_PARTIES, LEAST_EPSILON = 6, 0.05
"""The parties' factors share the bits that noise has room for."""


@dataclass(frozen=True, kw_only=True)
class NoisyScores(ScoreLayout):
    """`columns` are the covariates. A round has its number, coefficients (intercept first) of features as they are
    declared, and the units: a feature is shown as (x - centre) * unit, and `norms` bound the constant's entry and each
    party's part of a row. A count is cut at `cap`, and is in units of it. If only `complete` records count, r is 0 for
    one that some party lacks; otherwise for one that the response holder lacks, and other absent blocks are zeros.
    """

    kind: ClassVar[str] = "noisy-scores"
    exact: ClassVar[tuple[str, str]] = (
        "exact-scores",
        "at coefficients that follow from those before them: exact sums over records of residuals times columns",
    )
    rows: ClassVar[str] = "quantised rows, functions of predictors, and noise"
    results: ClassVar[str] = "noisy scores of the columns"
    adaptive: ClassVar[tuple[str, ...]] = ("turn", "coefficients", "centres", "units", "norms", "cap")

    rounds: int = ROUNDS
    last_bits: int
    complete: bool = False
    mu: int = 0
    centres: tuple[float, ...] = ()
    units: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    cap: int = 1

    def check(self) -> None:
        if self.errors or self.offset is not None:
            raise BadArguments("noisy scores have no column for an offset: it is a covariate of known coefficient.")
        if self.cap not in self.bounded.caps:
            raise UnsafeRequest("the cap of a round is none of those that the declared response allows.")
        bits = (self.factor_bits, self.last_bits)
        if not 1 <= self.gamma <= 2**12 or not all(1 <= each <= 20 for each in bits) or not 0 <= self.mu <= 2**90:
            raise BadArguments("gamma must be from 1 to 2^12, bits of factors from 1 to 20, mu from 0 to 2^90.")
        if not 1 <= self.rounds <= 64 or not 0 <= self.turn < self.rounds:
            raise BadArguments("there are 1 to 64 rounds, and turn is one of them.")
        if self.response in self.columns or not self.others:
            raise BadArguments("the response is no covariate, and another party has one.")
        if self.coefficients:
            self._check_round()

    def _check_round(self) -> None:
        sizes = (len(self.coefficients), len(self.centres), len(self.units), len(self.norms))
        if sizes != (self.width, self.width - 1, self.width - 1, 1 + len(self.parties)):
            raise UnsafeRequest("a round needs a coefficient, a centre and a unit for each feature, and all norms.")
        numbers = (*self.coefficients, *self.centres, *self.units, *self.norms)
        if not all(abs(value) <= LARGEST_COEFFICIENT for value in numbers) or min(self.norms) < 0:
            raise UnsafeRequest("a coefficient, a centre, a unit or a norm is out of range.")
        if math.fsum(norm * norm for norm in self.norms) > 1:
            raise UnsafeRequest("rows with these norms would be longer than the noise is made for.")

    # --- shape --------------------------------------------------------------------------------------------

    @property
    def turns(self) -> int:
        return self.rounds

    @property
    def levels(self) -> int:
        return len(self.tree) + 1

    @property
    def size(self) -> int:
        return self.width

    @cached_property
    def filled(self) -> tuple[str, ...]:
        """An empty cell of the response, or of a column that says so, makes a record count as absent at its party. Any
        other empty cell is 0, as an absent block is; where complete records count, it makes its record incomplete."""
        if self.complete:
            return by_rule(empty_rules(self.used, self.facts, "drop"), "drop")
        dropped = by_rule(empty_rules(self.features, self.facts, "mask", "drop"), "drop")
        return (*dropped, self.response) if self.facts.column(self.response).missing else dropped

    @cached_property
    def bounded(self) -> BoundedMean:
        """The mean function, with values between 0 and the cap."""
        return bounded_mean(self.family, int(self.largest_response))

    # --- numbers ------------------------------------------------------------------------------------------

    @property
    def scale(self) -> int:
        return 1 << (self.factor_bits * len(self.others) + self.last_bits)

    @property
    def factor_width(self) -> int:
        """Cosines and sines of 0, which carry presence and response, and of the series."""
        return 2 * len(self.bounded.frequencies) + 2

    @property
    def complex_factors(self) -> bool:
        return True

    @property
    def last_width(self) -> int:
        return self.factor_width

    @property
    def residuals(self) -> tuple[tuple[int, slice, slice], ...]:
        whole = slice(0, self.factor_width)
        return ((-1, whole, whole),)

    def row_width(self, party: str) -> int:
        """Rows are shared with the first round."""
        return len(self.place(party)) if self.turn == 0 else 0

    @property
    def rounding(self) -> tuple[float, float]:
        """How large a product of the other parties' rounded factors may be, and what rounding may add to the response
        holder's."""
        others = math.pow(1 + self.bounded.step / 2**self.factor_bits, len(self.others))
        return others, len(self.bounded.frequencies) * self.bounded.step / 2**self.last_bits

    @cached_property
    def largest_residual(self) -> float:
        """|r|, in units of 1 or of the cap, of every record and in every round (`private.claim.md`): 1, the series that
        is left out, and the rounding of factors."""
        others, last = self.rounding
        return float(1 + self.bounded.left_out + self.bounded.amplitudes * (others - 1) + last * others) * (1 + 1e-12)

    @property
    def delta_2(self) -> float:
        """A row, of norm gamma at most, times r."""
        return self.gamma * self.scale * self.largest_residual

    @property
    def sensitivity(self) -> Mapping[str, Any]:
        return {"delta_1": delta_1_bound(self.delta_2, self.size), "delta_2": self.delta_2, "dimension": self.size}

    @cached_property
    def field(self) -> Field:
        return field_for(self.facts.n * math.ceil(self.delta_2), self.mu, self.roster)

    @property
    def noise_sd(self) -> float:
        """Of an entry of a score, of rows of norm 1."""
        return math.sqrt(2 * self.mu) / (self.gamma * self.scale)

    # --- cost ---------------------------------------------------------------------------------------------

    def cost(self, public: Public, view: View) -> Cost:
        """One round."""
        pooled = colluders(self.roster, view)
        return self.release(self.mu, colluders=pooled, joint=f"{public.job} {self.label}")

    def releases(self, colluders: int) -> list[Cost]:
        return [self.release(self.mu, colluders=colluders).times(self.rounds)]

    # --- what data parties share --------------------------------------------------------------------------

    @cached_property
    def rows_tag(self) -> str:
        """Binds rows, which are shared with the first round, to all later ones in the same units."""
        return replace(self, turn=0, coefficients=()).tag

    def share(self, me: Party, number: int) -> None:
        if not self.coefficients:
            raise UnsafeRequest("rows are dealt for the coefficients of a round; the request must state them.")
        if number == 0:
            values = design(me, self.features, filled=self.filled)
            responds = me.name == self.response_party
            counts = responds or self.complete
            present = self.present(me) if counts else np.ones(len(values), dtype=bool)
            event = self.event(me) if responds else np.ones(len(values))
            shared = self.quantised(me.name, values, present, event, me.randomness)
            for chunk, (start, stop) in enumerate(self.chunks):
                self._keep(me, f"own {chunk}", shared[start:stop])
        deal_large(me, f"{self.tag}: rows {number}", self.field, np.asarray(self._recall(me, f"own {number}")))

    def quantised(
        self,
        party: str,
        values: NDArray[np.float64],
        present: NDArray[np.bool_],
        event: NDArray[Any],
        randomness: Randomness,
    ) -> NDArray[np.int64]:
        """A party's part of some records as integers of certain size: its row (in the first round) and its factor, with
        zeros for a record that is not `present`. `event` is the response holder's 2 y - 1, of y in [0, 1].

        The product of all factors is summed over frequencies: the mean less 1/2 by the series, less 2 y - 1 over 2 at
        frequency 0.
        """
        bounded = self.bounded
        own = np.array(self.coefficients)[self.place(party)]
        responds = party == self.response_party
        part = values @ own[1:] + (own[0] - bounded.shift(self.cap)) if responds else values @ own
        part = np.clip(part, -bounded.reach, bounded.reach)
        if responds:
            first, factor = self._last(part, event)
            fine = float(1 << self.last_bits)
        else:
            first, factor = np.ones(len(values)), bounded.turned(part)
            fine = float(1 << self.factor_bits)
        cosine, sine = np.split(factor, 2, axis=1)
        factor = np.column_stack([first, cosine, np.zeros(len(values)), sine]) * fine
        # How far a factor may be from its value, half a step or one, is counted in the sensitivity.
        shared = stochastic_round(factor, randomness) if bounded.at_random else np.rint(factor).astype(np.int64)
        if self.turn == 0:
            shared = np.concatenate([self._row(party, values, randomness), shared], axis=1)
        shared[~present] = 0
        return shared

    def _last(self, part: Vector, event: NDArray[Any]) -> tuple[Vector, Matrix]:
        """What the response holder has at frequency 0, and multiplies the others' joint cosines and sines with."""
        return -event / 2, self.bounded.last(part, self.bounded.mean(self.cap))

    def event(self, me: Party) -> NDArray[Any]:
        """2 y - 1, y in [0, 1]: 0 or 1, or a count in units of the cap."""
        own = self._response(me)
        return own if self.family == "binomial" else np.clip(own, 0, self.cap) * (2.0 / self.cap) - 1.0

    def _row(self, party: str, values: NDArray[np.float64], randomness: Randomness) -> NDArray[np.int64]:
        columns = [place - 1 for place in self.place(party).tolist() if place]
        shown = (values - np.array(self.centres)[columns]) * np.array(self.units)[columns]
        bound = self.norms[1 + self.parties.index(party)]
        rows = np.zeros(values.shape, dtype=np.int64)
        if columns and bound > 0:
            rows = quantize(shown, gamma=self.gamma, clip=bound, entry=1.0, randomness=randomness)
        if party != self.response_party:
            return rows
        constant = np.full((len(rows), 1), integer_bounds(self.gamma, 1.0, self.norms[0])[1], dtype=np.int64)
        return np.concatenate([constant, rows], axis=1)

    def constant_scale(self, units: Units) -> float:
        """What takes the constant's entry, a whole number of steps, to 1 in the units of the others."""
        return self.gamma / units.length / integer_bounds(self.gamma, 1.0, float(units.norms[0]))[1]

    def share_noise(self, me: Party, number: int) -> None:
        drawn = noise_part(me, mu=self.mu, size=self.size)
        deal_noise(me, f"{self.tag}: noise", self.field, drawn, parts=bool(self.verify))

    # --- what holders compute -----------------------------------------------------------------------------

    def _keep_columns(self, me: Party, chunk: int, columns: Sequence[Residues]) -> None:
        if self.turn == 0:
            me.keep(f"{self.rows_tag}: columns {chunk}", np.concatenate(columns, axis=2))

    def held_columns(self, me: Party, chunk: int) -> Residues:
        name = f"{self.rows_tag}: columns {chunk}"
        if not me.kept(name):
            raise UnsafeRequest("rows were shared in other units than those of this round; nothing is opened.")
        columns: Residues = me.recall(name)
        return columns

    def held_response(self, me: Party, chunk: int) -> None:
        return None

    def _sums(self, me: Party, chunk: int) -> list[Product]:
        residual = np.ascontiguousarray(self._recall(me, f"weighted {chunk}")[:, 0, :, None])
        return [cross(self.field, self.held_columns(me, chunk), residual).flat()]

    @property
    def usual_length(self) -> int:
        return self.claim_length

    def proof(self, extension: Extension, seed: bytes) -> ScoreProof:
        return NoisyScoreProof(self, extension, seed)


# --- units ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Units:
    """What the sums say of the features, in the order of the layout: where they lie, how far they spread (0: too rare
    to be told from the noise), and the units in which rows are shown. `length` is the norm of a row before it is made
    1."""

    centres: Vector
    variances: Vector
    scales: Vector
    norms: Vector
    length: float
    balance: float
    """The share of the event, or the mean of the counts."""
    counts: Mapping[str, float]
    """{party: about how many records it has}; all, where absent blocks are zeros."""
    response: Counts | None = None
    """What is told of a response that is a count, and where it is cut."""
    cap: int = 1

    @property
    def chosen(self) -> dict[str, Any]:
        return {
            "cap": self.cap,
            "centres": self.centres.tolist(),
            "units": (self.scales / self.length).tolist(),
            "norms": self.norms.tolist(),
        }


@dataclass(frozen=True, eq=False)
class UnitSums:
    """The sums that one party tells: of its features, of the squares of its numbers, of its records if only complete
    ones count, and of the event, or of the counts in each interval of `edges`."""

    layout: NoisyScores
    party: str

    @cached_property
    def own(self) -> list[int]:
        return [place for place, feature in enumerate(self.layout.features) if feature.party == self.party]

    @cached_property
    def numbers(self) -> list[int]:
        """Those of its features whose squares say something new, among its own."""
        facts = self.layout.facts
        kinds = [facts.column(self.layout.features[place].column).kind for place in self.own]
        category = [self.layout.features[place].category for place in self.own]
        return [index for index, kind in enumerate(kinds) if category[index] is None and kind != "binary"]

    @property
    def responds(self) -> bool:
        return self.party == self.layout.response_party

    @cached_property
    def edges(self) -> list[int]:
        """The least count of each interval."""
        return edges(int(self.layout.largest_response))

    @property
    def answers(self) -> int:
        """Sums of the response."""
        return 0 if not self.responds else 1 if self.layout.family == "binomial" else len(self.edges)

    @property
    def size(self) -> int:
        return len(self.own) + len(self.numbers) + self.layout.complete + self.answers

    @property
    def delta_2(self) -> float:
        """A column's features have norm 1 at most; so have a square, a record and the event, or the one interval in
        which a count is."""
        columns = {self.layout.features[place].column for place in self.own}
        return STEPS * math.sqrt(len(columns) + len(self.numbers) + self.layout.complete + self.responds)

    def cost(self, mu: int) -> Cost:
        if not mu:
            return Unbounded("exact-moments", "exact sums of a party's columns and of their squares")
        most = delta_1_bound(self.delta_2, self.size)
        return Skellam(mu, parties=1, delta_1=most, delta_2=self.delta_2, dimension=self.size)

    def exact(
        self, values: NDArray[np.float64], present: NDArray[np.bool_], event: NDArray[Any], randomness: Randomness
    ) -> NDArray[np.int64]:
        """Integers, each record within its bounds; zeros for one that is absent. `event` is whether it happened, or the
        count."""
        columns: list[NDArray[Any]] = [values, values[:, self.numbers] ** 2]
        columns += [present[:, None]] if self.layout.complete else []
        if self.responds and self.layout.family == "poisson":
            interval = np.searchsorted(self.edges, np.clip(event, 0, None), side="right") - 1
            columns += [interval[:, None] == np.arange(len(self.edges))]
        elif self.responds:
            columns += [(event & present)[:, None]]
        rounded = stochastic_round(np.concatenate(columns, axis=1) * (STEPS * present[:, None]), randomness)
        return np.asarray(np.clip(rounded, -STEPS, STEPS).sum(axis=0), dtype=np.int64)


def units_of(layout: NoisyScores, released: Mapping[str, NDArray[np.int64]], mus: Mapping[str, int]) -> Units:
    """Post-processing of the sums. A category that is not above two deviations of the noise is not used. Rows are
    clipped at `KEPT_SQUARE` times their expected squares."""
    n, width = layout.facts.n, layout.width - 1
    centres, variances, counts = np.zeros(width), np.zeros(width), {}
    balance, response = 0.5, None
    for party, sums in released.items():
        shape = UnitSums(layout, party)
        totals, noise = np.asarray(sums, dtype=np.float64) / STEPS, math.sqrt(2 * mus[party]) / STEPS
        place = len(shape.own) + len(shape.numbers)
        counts[party] = min(max(float(totals[place]), 1.0), float(n)) if layout.complete else float(n)
        means, unsure = totals / counts[party], 2 * noise / counts[party]
        squares = dict(zip(shape.numbers, means[len(shape.own) : place], strict=True))
        for index, place in enumerate(shape.own):
            if layout.features[place].category is None:
                centres[place] = np.clip(means[index], -1.0, 1.0)
                spread = squares.get(index, 1.0) - centres[place] ** 2
                variances[place] = min(max(spread, unsure, 1e-4), 1.0)
            elif means[index] > unsure:
                centres[place] = min(means[index], 1.0)
                variances[place] = centres[place] * (1 - centres[place])
        if shape.responds and layout.family == "poisson":
            records = totals[len(shape.own) + len(shape.numbers) + layout.complete :]
            response = Counts(shape.edges, int(layout.largest_response), records, noise)
            balance = response.mean
        elif shape.responds:
            balance = float(np.clip(means[-1], 0.01, 0.99))
    scales = np.where(variances > 0, np.maximum(variances, LEAST_VARIANCE) ** -0.5, 0.0)
    squared = scales**2 * variances
    parts = [
        KEPT_SQUARE * float(squared[[index - 1 for index in layout.place(p).tolist() if index]].sum())
        for p in layout.parties
    ]
    length = math.sqrt(1 + sum(parts))
    norms = np.sqrt([1.0, *parts]) / length * (1 - 1e-9)
    return Units(centres, variances, scales, norms, length, balance, counts, response=response)


# --- the coordinator's side -------------------------------------------------------------------------------


class NoisyScoreStages(RoundStages):
    """The rounds of one layout."""

    layout: NoisyScores

    def __init__(self, layout: NoisyScores, view: View) -> None:
        super().__init__(layout, view, later=later_round(layout), wide=layout.factor_width + layout.width)

    def score(self, job: Job, turn: int, coefficients: Vector, units: Units) -> Vector:
        """sum of (y - mu) (1, (x - centre) * scale), with rows and counts as they are clipped; in the order of
        coefficients."""
        layout = self.layout
        opened = self.round(job, turn, coefficients, units).astype(np.float64)
        score = np.empty(layout.width)
        score[layout.order] = opened * (units.cap * units.length / (layout.gamma * layout.scale))
        score[0] *= layout.constant_scale(units)
        return score

    def round(self, job: Job, turn: int, coefficients: Vector, units: Units) -> NDArray[Any]:
        """What a round opens, in the order of the share holders' columns."""
        return self.asked(job, {"turn": turn, "coefficients": coefficients.tolist(), **units.chosen})


def later_round(layout: NoisyScores) -> Later:
    size = layout.width - 1

    def within(value: Any) -> bool:
        return listed(1 + len(layout.parties), 0, 1)(value) and math.fsum(x * x for x in value) <= 1

    return fields_of(
        f"the number of the round, of {layout.rounds}, each opened once; coefficients, centres and units of size at"
        " most 2^20; and norms whose squares add up to 1 at most"
        + (f"; and where counts are cut, at most {layout.bounded.caps[-1]}" if layout.family == "poisson" else ""),
        turn=lambda value: type(value) is int and 0 <= value < layout.rounds,
        coefficients=listed(layout.width, -LARGEST_COEFFICIENT, LARGEST_COEFFICIENT),
        centres=listed(size, -1, 1),
        units=listed(size, 0, LARGEST_COEFFICIENT),
        norms=within,
        cap=lambda value: type(value) is int and value in layout.bounded.caps,
    )


def units_releases(sums: Mapping[str, UnitSums], share: float) -> dict[str, Releases]:
    """What the parties tell of units, for a calibration that gives them this share of the budget."""
    return {party: Skellams(each.cost(1), share=share / len(sums)) for party, each in sums.items()}


def units_stage(sums: Mapping[str, UnitSums], mus: Mapping[str, int], words: str) -> Stage:
    layout = next(iter(sums.values())).layout
    return stage(
        "scores: units",
        tell_sums,
        {party: [{"layout": layout.to_dict(), "mu": mus[party]}] for party in sums},
        facts=layout.facts,
        roster=layout.roster,
        audience="coordinator, who tells all members",
        discloses=words,
        reply_bytes=9 * max(each.size for each in sums.values()),
    )


class PrivateScores:
    """Both releases of a job as stages of its plan, calibrated together, and the descent that asks them.

    Without epsilon sums and scores are exact.
    """

    def __init__(
        self,
        facts: PublicFacts,
        roster: Roster,
        *,
        response: str,
        columns: Sequence[str],
        epsilon: float | None,
        delta: float,
        view: View,
        relation: Relation,
        rounds: int = ROUNDS,
        verify: Verification = False,
    ) -> None:
        roster.require_committee(pair=False)
        full = verify == "full"
        noiseless = noiseless_scores(facts, roster, response=response, columns=columns, rounds=rounds, verify=full)
        noiseless.check()
        self.sums = {party: UnitSums(noiseless, party) for party in noiseless.parties}
        self.budget, mu, self.mus = None, 0, dict.fromkeys(self.sums, 0)
        if epsilon is not None:
            releases = units_releases(self.sums, UNITS_SHARE)
            single = noiseless.release(1, colluders=colluders(roster, view))
            releases["scores"] = Skellams(single, count=rounds, share=1 - UNITS_SHARE)
            self.budget = Calibration(releases, epsilon=epsilon, delta=delta, relation=relation, bracket=(1e-3, 1e6))
            mu, self.mus = int(self.budget["scores"]), {party: int(self.budget[party]) for party in self.sums}
        self.layout = layout = replace(noiseless, mu=mu)
        words = "noisy sums of a party's features and of their squares" if mu else "sums of a party's features"
        self.tell = units_stage(self.sums, self.mus, words)
        self.rounds = NoisyScoreStages(layout, view)
        self.stages = (self.tell, *self.rounds.stages)
        self.notes = (
            verification_note(verify, FULL_COST),
            f"{rounds} rounds. In each the coordinator sees {layout.size} noisy sums over records, at coefficients that"
            " follow from those before, and tells all members the next ones. No predictor or residual of a record is"
            " shown to anyone.",
        )

    def releases(self, colluders: int) -> list[Cost]:
        """What a record pays in all, if so many members know their noise. A party's own noise is known to no other."""
        return [*(sums.cost(self.mus[party]) for party, sums in self.sums.items()), *self.layout.releases(colluders)]

    @property
    def unsure(self) -> float:
        """Two standard deviations of the noise of a feature's mean, at the party where it is largest."""
        return 2 * math.sqrt(2 * max(self.mus.values())) / (STEPS * self.layout.facts.n)

    @property
    def told_apart(self) -> int:
        """Features that can be told from the noise: categories that have a larger share of the records than it."""
        counts = Counter(feature.column for feature in self.layout.features)
        return sum(min(count, max(1, int(1 / max(self.unsure, 1e-9)))) for count in counts.values())

    @property
    def noise(self) -> float:
        """The standard deviation on a sum over records of a feature in units of its deviation times y - mu, of all
        rounds together, as far as public facts tell it."""
        return self.layout.noise_sd * math.sqrt((1 + KEPT_SQUARE * self.told_apart) / self.layout.rounds)

    def fit(self, job: Job) -> tuple[float, Vector]:
        """(intercept, coefficients of features)."""
        released = {party: np.asarray(sums) for party, sums in job.ask(self.tell).items()}
        units = units_of(self.layout, released, self.mus)
        turns = iter(range(self.layout.rounds))
        return descent(
            self.layout, units, lambda coefficients: self.rounds.score(job, next(turns), coefficients, units)
        )


def descent(layout: NoisyScores, units: Units, score: Callable[[Vector], Vector]) -> tuple[float, Vector]:
    """(intercept, coefficients) after the rounds: those of the second half are averaged.

    At coefficients b, score_j is about sum_k H_jk (b*_k - b_k). H_jj = n m scale_j variance_j with m the mean of mu',
    and a step goes H_jj / (H_jj^2 + s^2) of the score, with s the noise of all rounds together: 1 / H_jj where much is
    known, and hardly anything where the noise is larger than what a coefficient of 1 would do.
    """
    n, balance = layout.facts.n, units.balance
    noise = layout.noise_sd * units.length / math.sqrt(layout.rounds)
    # About the centres, where the intercept has least to do with the other coefficients.
    point = np.append(math.log(balance / (1 - balance)), np.zeros(layout.width - 1))
    points = []
    for turn in range(layout.rounds):
        slopes = np.append(1.0, units.scales * units.variances) * (DAMPING * n * mean_slope(layout, point, units))
        rates = slopes / np.maximum(slopes**2 + noise**2, 1e-300)
        rates[0] = 1 / slopes[0]
        plain = point.copy()
        plain[0] -= float(point[1:] @ units.centres)
        point = point + rates * score(plain)
        if turn >= layout.rounds // 2:
            points.append(point)
    mean = np.mean(points, axis=0)
    return float(mean[0] - mean[1:] @ units.centres), mean[1:]


def mean_slope(layout: NoisyScores, point: Vector, units: Units) -> float:
    """E of mu' for a normal predictor with the variance that uncorrelated features would give it."""
    return layout.bounded.mean_slope(float(point[0]), float(point[1:] ** 2 @ units.variances), units.cap)


def noiseless_scores(
    facts: PublicFacts,
    roster: Roster,
    *,
    response: str,
    columns: Sequence[str],
    rounds: int,
    family: Family = "binomial",
    complete: bool = False,
    label: str = "scores",
    verify: bool = False,
) -> NoisyScores:
    """Rows of 2^8 steps and up to 28 bits of residuals; where more than three parties share these, rows give two of
    theirs. Noise has room for 45 bits, of which it takes 7 to 9 itself."""
    others = len({facts.owner(name) for name in columns} - {facts.owner(response)})
    rows, last, shared = (8, 12, 17) if others <= 2 else (6, 11, 20)
    return NoisyScores(
        facts=facts,
        roster=roster,
        family=family,
        response=response,
        columns=tuple(columns),
        offset=None,
        weighting="equal",
        gamma=2**rows,
        factor_bits=max(1, min(12, shared // max(others, 1))),
        last_bits=last,
        errors=False,
        rounds=rounds,
        complete=complete,
        label=label,
        verify=verify,
    )


# --- the parties' step ------------------------------------------------------------------------------------


def _sums_cost(public: Public, *, layout: dict[str, Any], mu: int) -> Cost:
    return UnitSums(NoisyScores.from_dict(public.facts, public.roster, layout), public.party).cost(mu)


@step(cost=_sums_cost)
def tell_sums(me: Party, *, layout: dict[str, Any], mu: int) -> Release:
    """Noisy sums of this party's features and of their squares; all of the noise is its own."""
    statistic = NoisyScores.from_dict(me.facts, me.roster, layout)
    if me.name not in statistic.parties:
        raise UnsafeRequest(f"{me.name!r} has no columns of this model.")
    shape = UnitSums(statistic, me.name)
    values = design(me, statistic.features, filled=statistic.filled)
    present = statistic.present(me)
    event: NDArray[Any] = present
    if shape.responds:
        event = statistic._response(me) if statistic.family == "poisson" else statistic._response(me) > 0
    sums = shape.exact(values, present, event, me.randomness)
    noise = skellam(me.randomness, Fraction(mu), shape.size) if mu else np.zeros(shape.size, dtype=np.int64)
    return Release(sums + noise, "noisy sums of this party's features and of their squares")
