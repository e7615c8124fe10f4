"""Scores and weighted products of a generalized linear model on secret shares, at coefficients of the coordinator's.

In a round all members know the coefficients. Each party computes its part of the predictor and shares functions of it
(`expansion.py`) with its columns; the response holder also shares its weights times these, and times the response.
Share holders

1. multiply the other parties' factors, two by two, and deal each product again at degree t;
2. multiply with the response holder's and add up: r = v (y - mu) and W = v mu' of each record, dealt again;
3. multiply the columns x by W, dealt again; open sum r x and sum W x x'.

For the errors they multiply x by r instead, and open sum r^2 x x' and sum r x g' (`newton.py`). A record that a party
lacks has the weight 0, so its rows count for nothing. No predictor, residual or weight of a record is opened, to
anyone. The claim is in `glm.claim.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, PartyLost, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.options import Verification, View
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Later, Stage, fields_of, is_number, stage
from colonnade.federation.step import Public, Release, step
from colonnade.models.glm.expansion import LARGEST_LOG_ODDS, Expansion
from colonnade.models.glm.newton import MOST_ROUNDS, Evaluation, Family
from colonnade.models.glm.proof import ScoreProof
from colonnade.models.glm.weights import PROJECTED, CompleteWeights, complete_weights, equal_weights
from colonnade.privacy.cost import Cost, Unbounded
from colonnade.secure.bgw import Product, cross, gram, lift, multiply, recombine, reshare
from colonnade.secure.claims import Factors
from colonnade.secure.extension import Extension
from colonnade.secure.field import Field, Residues, primes_for
from colonnade.secure.seeded import materialize
from colonnade.statistics.features import Feature, FilledRecords, design, features, stochastic_round
from colonnade.statistics.gaussian_em import Matrix, Vector
from colonnade.statistics.joint import HeldNoise, multiply_shares, read_statistic, share_rows
from colonnade.statistics.shares import (
    blinds_of,
    deal_large,
    deal_noise,
    dealt,
    messages,
    noise_part,
    received_from,
    received_masks,
    shares_of,
)
from colonnade.statistics.verified import NOT_VERIFIED, VerifiedStages, opened_once, verification_stages

Weighting = Literal["presence", "conditional", "equal"]
"""Of complete records: by how likely they are to be complete, by that given the holder's covariates, or not at all."""
WEIGHT = 2**14
"""Integer steps of a weight of 1, the mean of those of complete records."""
LARGEST_WEIGHT = 64
SCORE = 2**10
"""Integer steps of a presence score of mean square 1."""
LARGEST_SCORE = 1024
QUARTERS = 4
"""The range of a party's part of the predictor is told in steps of 1 / QUARTERS."""
MAXIMUM_OTHERS = 8
LARGEST_COEFFICIENT = 2.0**20
SHARE_BYTES = 1 << 25
"""One share of a chunk of rows, for about 32 frequencies."""
USUAL_FACTOR = 64
LEAST_LOG_MEAN, LARGEST_LOG_MEAN = -10.0, 16.0
"""Between these lies the sum of the largest parts of a log mean: their product is then a whole number of steps of r."""


@dataclass(frozen=True, kw_only=True)
class ScoreLayout(FilledRecords, HeldNoise):
    """`columns` are the covariates. Rounds differ in the `adaptive` fields: their number, the coefficients (intercept
    first, of features), and the range of each party's part of the predictor.

    With `errors` there is one round, which opens what the covariance needs. `factor_bits` are those of one factor.
    """

    kind: ClassVar[str] = "scores"
    exact: ClassVar[tuple[str, str]] = (
        "exact-scores",
        "at coefficients that the coordinator chooses in each round: exact sums over records of residuals times columns"
        " and of weighted products of columns, and the range of each party's part of the predictor; counts of records;"
        " coefficients and ranges to all members",
    )
    rows: ClassVar[str] = "quantised rows, and functions of predictors and weights"
    results: ClassVar[str] = "scores and weighted products of the columns"
    adaptive: ClassVar[tuple[str, ...]] = ("turn", "coefficients", "low", "high")
    proof_width: ClassVar[int] = 32

    family: Family
    response: str
    columns: tuple[str, ...]
    offset: str | None
    weighting: Weighting
    gamma: int
    factor_bits: int
    errors: bool
    turn: int = 0
    coefficients: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    label: str = "scores"

    def check(self) -> None:
        if not 1 <= self.gamma <= 2**26 or not 1 <= self.factor_bits <= 32 or not 0 <= self.turn < self.turns:
            raise BadArguments("gamma must be from 1 to 2^26, factor_bits from 1 to 32, turn one of the rounds.")
        if self.response in self.columns or self.offset in (*self.columns, self.response):
            raise BadArguments("the response, the offset and the covariates must be different columns.")
        if not 1 <= len(self.others) <= MAXIMUM_OTHERS:
            raise BadArguments(
                f"{self.family} regression over a federation needs covariates of 1 to {MAXIMUM_OTHERS} parties besides"
                f" {self.response_party!r}, which holds the response; name some with columns=, or fit it there."
            )
        if self.coefficients:
            self._check_round()

    def _check_round(self) -> None:
        if len(self.coefficients) != 1 + len(self.features) or not len(self.low) == len(self.high) == len(self.parties):
            raise UnsafeRequest("a round needs a coefficient for each feature and a range for each party.")
        inside = all(abs(value) <= LARGEST_COEFFICIENT for value in self.coefficients)
        ordered = all(low <= high for low, high in zip(self.low, self.high, strict=True))
        if not inside or not ordered or not self.in_range(self.low, self.high):
            raise UnsafeRequest("the coefficients of a round, or the predictors there, leave the range of the layout.")

    # --- shape --------------------------------------------------------------------------------------------

    @property
    def turns(self) -> int:
        return 1 if self.errors else MOST_ROUNDS

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        return tuple(features(self.facts, self.columns))

    @cached_property
    def used(self) -> tuple[Feature, ...]:
        """All that the model reads."""
        return tuple(features(self.facts, (*self.columns, self.response, *filter(None, [self.offset]))))

    def place(self, party: str) -> NDArray[np.intp]:
        """Where a party's coefficients are; the response holder has the intercept."""
        own = [1 + place for place, feature in enumerate(self.features) if feature.party == party]
        return np.array([0, *own] if party == self.response_party else own, dtype=np.intp)

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """Where the share holders' columns are among the coefficients."""
        return np.concatenate([self.place(party) for party in self.parties])

    def matrix_of(self, triangle: Vector) -> Matrix:
        """The symmetric matrix of an opened upper triangle, in the order of coefficients."""
        upper = np.zeros((self.width, self.width))
        upper[np.triu_indices(self.width)] = triangle
        matrix = np.zeros_like(upper)
        matrix[np.ix_(self.order, self.order)] = upper + np.triu(upper, 1).T
        return matrix

    @cached_property
    def response_party(self) -> str:
        return self.facts.owner(self.response)

    @cached_property
    def others(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(feature.party for feature in self.used if feature.party != self.response_party))

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return (self.response_party, *self.others)

    @property
    def width(self) -> int:
        """Coefficients."""
        return 1 + len(self.features)

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """The cohort's rows, the same in every round."""
        widest = max(self.width + 2 * USUAL_FACTOR, USUAL_FACTOR * len(self.others))
        rows = max(1, SHARE_BYTES // (4 * len(self.field.primes) * widest))
        return [(start, min(start + rows, self.facts.n)) for start in range(0, self.facts.n, rows)]

    @property
    def tree(self) -> list[list[int]]:
        """How many factors there are before each level of products of the other parties' factors, in pairs."""
        levels, count = [], len(self.others)
        while count > 1:
            levels.append([count // 2, count % 2])
            count -= count // 2
        return levels

    @property
    def levels(self) -> int:
        return len(self.tree) + 2

    @property
    def factor_width(self) -> int:
        """Columns of another party's factor."""
        return self.expansion.width

    @property
    def complex_factors(self) -> bool:
        """Whether factors are cosines and sines; otherwise they are exponentials."""
        return self.family == "binomial"

    @property
    def last_width(self) -> int:
        """Columns that the response holder shares beside its row: factors, weighted response, presence scores."""
        return (self.factor_width + PROJECTED if self.errors else 2 * self.factor_width) + 1

    @property
    def residuals(self) -> tuple[tuple[int, slice, slice], ...]:
        """What holders deal again for each record, r and W, or r alone in the round of errors. Each is a sum of
        products: its sign, and the columns of the others' joint factor and of the response holder's that are
        multiplied. Columns x are multiplied by the last one."""
        whole, slopes = slice(0, self.factor_width), slice(self.factor_width, 2 * self.factor_width)
        return ((-1, whole, whole),) if self.errors else ((-1, whole, whole), (1, whole, slopes))

    def row_width(self, party: str) -> int:
        """Columns that a party shares in this round beside its factors."""
        return len(self.place(party))

    def product_shape(self, chunk: int, level: int) -> tuple[int, ...]:
        """Of what a holder deals again."""
        start, stop = self.chunks[chunk]
        if level <= len(self.tree):
            return self.tree[level - 1][0], stop - start, self.factor_width
        return (len(self.residuals), stop - start) if level == len(self.tree) + 1 else (stop - start, self.width)

    @property
    def size(self) -> int:
        triangle = self.width * (self.width + 1) // 2
        return triangle + self.width * (PROJECTED if self.errors else 1)

    @property
    def openings(self) -> list[int]:
        return [self.size] * self.turns

    # --- numbers ------------------------------------------------------------------------------------------

    def in_range(self, low: Sequence[float], high: Sequence[float]) -> bool:
        """Whether predictors with these ranges can be computed with."""
        if self.family == "binomial":
            return max(-sum(low), sum(high)) <= LARGEST_LOG_ODDS
        return LEAST_LOG_MEAN <= sum(high) <= LARGEST_LOG_MEAN

    @property
    def largest_response(self) -> float:
        return max(1.0, float(self.facts.column(self.response).upper or 1.0))

    @cached_property
    def expansion(self) -> Expansion:
        return Expansion(self.family, sum(self.low), sum(self.high))

    @property
    def unit(self) -> float:
        """Of r and W: products of factors are whole numbers of 1 / scale of it."""
        return self.expansion.unit

    @property
    def scale(self) -> int:
        return 1 << (self.factor_bits * len(self.parties))

    @property
    def response_factor(self) -> int:
        """Takes v (2 y - 1), or v y, in steps of weights, to the scale of r: a power of 2."""
        unit = 2.0 if self.family == "binomial" else self.unit
        return int(self.scale / (WEIGHT * unit))

    @cached_property
    def field(self) -> Field:
        """Holds sums of r x and W x x', or of r^2 x x': |r| is at most the largest weight times the largest of 1,
        y / unit, with room for rounding."""
        reach = 1.0 if self.family == "binomial" else self.largest_response * math.exp(-LEAST_LOG_MEAN)
        residual = 2 * LARGEST_WEIGHT * self.scale * math.ceil(reach)
        product = residual * self.gamma
        largest = self.facts.n * (product**2 if self.errors else product * self.gamma)
        return Field(primes_for(max(largest, self.facts.n * product * SCORE * LARGEST_SCORE).bit_length() + 1))

    # --- cost ---------------------------------------------------------------------------------------------

    @property
    def sensitivity(self) -> Mapping[str, Any]:
        """There is none to state: nothing here carries noise."""
        return {}

    def cost(self, public: Public, view: View) -> Cost:
        """All members are told the ranges, and the coefficients that follow from the sums."""
        return Unbounded(*self.exact, audience="coordinator, all members", joint=f"{public.job} scores")

    def releases(self, colluders: int) -> list[Cost]:
        return [self.release(0, colluders=colluders)]

    # --- what data parties share --------------------------------------------------------------------------

    def part(self, me: Party) -> Vector:
        """This party's part of the predictor over the cohort: its columns, its offset, and the intercept."""
        own = np.array(self.coefficients)[self.place(me.name)]
        rows = design(me, self.features, filled=self.filled)
        part = rows @ own[1:] + own[0] if me.name == self.response_party else rows @ own
        if self.offset is not None and self.facts.owner(self.offset) == me.name:
            (feature,) = features(self.facts, (self.offset,))
            part = part + feature.centre + feature.half * design(me, [feature], filled=self.filled)[:, 0]
        return np.asarray(part)

    @property
    def range_tag(self) -> str:
        """Of what the parties tell each other of their ranges at these coefficients."""
        nothing = (0.0,) * len(self.parties)
        return f"ranges for {replace(self, low=nothing, high=nothing).tag}"

    def tell_range(self, me: Party) -> list[float]:
        """The smallest and the largest part of the predictor at this party, outwards to quarters; also to the other
        parties, who would not take another from the coordinator: the size of what they deal follows from it."""
        part = self.part(me)[self.present(me)]
        low, high = (float(part.min()), float(part.max())) if len(part) else (0.0, 0.0)
        outwards = [math.floor(QUARTERS * low) / QUARTERS, math.ceil(QUARTERS * high) / QUARTERS]
        for party in self.parties:
            me.send(party, self.range_tag, outwards)
        return outwards

    def _check_ranges(self, me: Party) -> None:
        told = received_from(me, self.range_tag, self.parties)
        for party, low, high in zip(self.parties, self.low, self.high, strict=True):
            if told[party] != [low, high]:
                raise UnsafeRequest(
                    f"the range of the predictor at {party!r} is not the one that it told; start again."
                )

    def share(self, me: Party, number: int) -> None:
        """A party rounds its values with the first chunk of a round, at random: sums have no bias of it."""
        if not self.coefficients:
            raise UnsafeRequest("rows are dealt for the coefficients of a round; the request must state them.")
        if number == 0:
            rows = self._quantised(me)
            for chunk, (start, stop) in enumerate(self.chunks):
                self._keep(me, f"own {chunk}", rows[start:stop])
        deal_large(me, f"{self.tag}: rows {number}", self.field, np.asarray(self._recall(me, f"own {number}")))

    def _quantised(self, me: Party) -> NDArray[np.int64]:
        """(Columns, factor); the response holder's (1, columns, factors with weights, weighted response), and in the
        round of errors its presence scores."""
        self._check_ranges(me)
        factor_scale = float(1 << self.factor_bits)
        place = self.parties.index(me.name)
        part = np.clip(self.part(me), self.low[place], self.high[place])
        rows = stochastic_round(design(me, self.features, filled=self.filled) * self.gamma, me.randomness)
        rows = np.clip(rows, -self.gamma, self.gamma)
        if me.name != self.response_party:
            factor = self.expansion.factor(part, self.high[place]) * self.present(me)[:, None]
            return np.column_stack([rows, stochastic_round(factor * factor_scale, me.randomness)])
        weights = np.asarray(me.recall(_kept_weights(self.errors)), dtype=np.int64)
        mean, slope = self.expansion.last_factors(part, self.high[place])
        factors = mean if self.errors else np.concatenate([mean, slope], axis=1)
        heavy = stochastic_round(factors * (weights[:, None] * (factor_scale / WEIGHT)), me.randomness)
        constant = np.where(weights > 0, self.gamma, 0)
        columns = [constant, rows, heavy, weights * self._response(me)]
        return np.column_stack([*columns, np.asarray(me.recall(KEPT_SCORES))] if self.errors else columns)

    def _response(self, me: Party) -> NDArray[np.int64]:
        """2 y - 1 of a binary one, or the count; anything where a record is absent, its weight is 0."""
        (feature,) = features(self.facts, (self.response,))
        own = design(me, [feature], filled=self.filled)[:, 0]
        if self.family == "binomial":
            return np.where(own > 0, 1, -1).astype(np.int64)
        return np.rint(feature.centre + feature.half * own).astype(np.int64)

    def share_noise(self, me: Party, number: int) -> None:
        drawn = noise_part(me, mu=0, size=self.size)
        deal_noise(me, f"{self.tag}: noise", self.field, drawn, parts=bool(self.verify))

    # --- what holders compute -----------------------------------------------------------------------------
    #
    # A holder keeps what later levels of a chunk need, under names that the next round overwrites; the tag is in what
    # is kept, so that no round uses what belongs to another.

    def multiply(self, me: Party, number: int, level: int) -> None:
        if not 1 <= level <= self.levels:
            raise UnsafeRequest(f"this computation has no level {level} of products.")
        product = self._product(me, number, level)
        shares = reshare(
            product, holders=len(me.roster.committee), threshold=me.roster.threshold, randomness=me.randomness
        )
        for holder, residues in zip(me.roster.committee, shares, strict=True):
            me.send(holder, f"{self.tag}: products {number} {level}", residues)

    def _product(self, me: Party, chunk: int, level: int) -> Product:
        if level == 1:
            factors = self._take_rows(me, chunk)
        elif level <= len(self.tree) + 1:
            factors = self._joint_factors(me, chunk, level - 1)
        else:
            return self._weighted_columns(me, chunk)
        if level <= len(self.tree):
            pairs, odd = self.tree[level - 1]
            if odd:
                self._keep(me, f"odd {chunk}", factors[-1])
            return Product.stack([self._times(factors[2 * p], factors[2 * p + 1]) for p in range(pairs)])
        return self._residuals(me, chunk, factors[0])

    def _take_rows(self, me: Party, chunk: int) -> list[Residues]:
        """The other parties' factors; all columns, the response holder's factors and the first noise are put away."""
        start, stop = self.chunks[chunk]
        rows = {party: self.row_width(party) for party in self.parties}
        widths = dict.fromkeys(self.others, self.factor_width) | {self.response_party: self.last_width}
        lengths = {party: (stop - start, rows[party] + widths[party]) for party in self.parties}
        received = messages(me, f"{self.tag}: rows {chunk}", self.parties, layers=len(self.field.primes))
        shares = {party: materialize(share) for party, share in shares_of(me, received, self.field, lengths).items()}
        if chunk == 0:
            for part in ("noise", *(blinds_of(me.roster, "noise") if self.verify else [])):
                self._keep(me, part, dealt(me, f"{self.tag}: {part}", me.roster.names, self.field))
        self._keep_columns(me, chunk, [shares[party][:, :, : rows[party]] for party in self.parties])
        self._keep(me, f"last {chunk}", shares[self.response_party][:, :, rows[self.response_party] :])
        factors = [shares[party][:, :, rows[party] :] for party in self.others]
        if self.verify:
            self._keep(me, f"factors {chunk}", factors)
        return factors

    def _keep_columns(self, me: Party, chunk: int, columns: Sequence[Residues]) -> None:
        self._keep(me, f"columns {chunk}", np.concatenate(columns, axis=2))

    def _joint_factors(self, me: Party, chunk: int, level: int) -> list[Residues]:
        """Products of factors that were dealt again, and the factor that had no partner."""
        pairs, odd = self.tree[level - 1]
        products = self._dealt_again(me, chunk, level)
        factors = [products[:, place] for place in range(pairs)]
        return [*factors, self._recall(me, f"odd {chunk}")] if odd else factors

    def _dealt_again(self, me: Party, chunk: int, level: int) -> Residues:
        sharings = dealt(me, f"{self.tag}: products {chunk} {level}", me.roster.committee, self.field)
        if any(sharing.shape[1:] != self.product_shape(chunk, level) for sharing in sharings.values()):
            raise UnsafeRequest("a holder dealt products of another shape than the layout says; nothing is opened.")
        if self.verify:
            self._keep(me, f"dealt {chunk} {level}", [sharings[holder] for holder in me.roster.committee])
        placed = {place: sharings[holder] for place, holder in enumerate(me.roster.committee)}
        return recombine(self.field, placed, threshold=me.roster.threshold)

    def _times(self, a: Residues, b: Residues) -> Product:
        """Of two factors: complex numbers as (cosines, sines), or exponentials."""
        if not self.complex_factors:
            return multiply(self.field, a, b)
        half = a.shape[2] // 2
        (re_a, im_a), (re_b, im_b) = ((factor[:, :, :half], factor[:, :, half:]) for factor in (a, b))
        real = multiply(self.field, re_a, re_b) + multiply(self.field, im_a, im_b).scale(-1)
        imaginary = multiply(self.field, re_a, im_b) + multiply(self.field, im_a, re_b)
        return Product.beside([real, imaginary])

    def _residuals(self, me: Party, chunk: int, factor: Residues) -> Product:
        """What `residuals` lists, and the weighted response in r: (kind, record)."""
        last = self.held_last(me, chunk)
        sums = []
        for sign, mine, theirs in self.residuals:
            own, others = np.ascontiguousarray(last[:, :, theirs]), np.ascontiguousarray(factor[:, :, mine])
            sums.append(multiply(self.field, others, own).sum(axis=1).scale(sign))
        response = self.held_response(me, chunk)
        if response is not None:
            sums[0] = lift(self.field, self.field.scale(response, self.response_factor)) + sums[0]
        return Product.stack(sums)

    def _weighted_columns(self, me: Party, chunk: int) -> Product:
        """W x, or r x in the round of errors."""
        residuals = self._dealt_again(me, chunk, self.levels - 1)
        self._keep(me, f"residual {chunk}", residuals[:, 0])
        weights = np.ascontiguousarray(residuals[:, -1, :, None])
        return multiply(self.field, self.held_columns(me, chunk), weights)

    def put_away(self, me: Party, number: int) -> None:
        if not self._kept(me, f"weighted {number}"):
            self._keep(me, f"weighted {number}", self._dealt_again(me, number, self.levels))

    def combine(self, me: Party, number: int) -> Residues:
        """The sums of a round, over all chunks, with every member's noise."""
        if number != self.turn:
            raise UnsafeRequest("a round is opened under its own number.")
        self.put_away(me, len(self.chunks) - 1)
        chunks = [self._sums(me, chunk) for chunk in range(len(self.chunks))]
        sums = (functools.reduce(Product.__add__, of_chunks) for of_chunks in zip(*chunks, strict=True))
        return self.with_noise(me, number, sums, self.held_noise(me))

    def _sums(self, me: Party, chunk: int) -> list[Product]:
        """What a chunk adds to the parts of what is opened. X' W X is symmetric; that a holder's share of it is so too
        makes the proof short."""
        weighted = self._recall(me, f"weighted {chunk}")
        if self.errors:
            scores = self.held_last(me, chunk)[:, :, -PROJECTED:]
            return [gram(self.field, weighted).upper(), cross(self.field, weighted, scores).flat()]
        columns, residual = self.held_columns(me, chunk), self._recall(me, f"residual {chunk}")[:, :, None]
        matrix = cross(self.field, columns, weighted).symmetric().upper()
        return [matrix, cross(self.field, columns, residual).flat()]

    def held(self, me: Party, what: str, number: int = 0) -> dict[str, Residues]:
        shares: dict[str, Residues] = self._recall(me, what)
        return shares

    def hold(self, me: Party, number: int) -> None:
        """All of it was kept when it came."""

    # --- what is verified (`proof.py`) ----------------------------------------------------------------------

    @property
    def proven_openings(self) -> tuple[int]:
        return (self.turn,)

    @property
    def claim_length(self) -> int:
        """Products of factors, residuals, and one or two sums for each record."""
        pairs = sum(count for count, _ in self.tree)
        return self.facts.n * (self.factor_width * (pairs + 1) + (2 if self.errors else 1))

    @property
    def usual_length(self) -> int:
        """The same with as many frequencies as are usual, for a plan."""
        wide = USUAL_FACTOR if self.family == "binomial" else 1
        return self.facts.n * (wide * len(self.others) + 2)

    def held_factors(self, me: Party, chunk: int) -> list[Residues]:
        factors: list[Residues] = self._recall(me, f"factors {chunk}")
        return factors

    def held_columns(self, me: Party, chunk: int) -> Residues:
        """This holder's shares of x."""
        columns: Residues = self._recall(me, f"columns {chunk}")
        return columns

    def held_last(self, me: Party, chunk: int) -> Residues:
        last: Residues = self._recall(me, f"last {chunk}")
        return last

    def held_response(self, me: Party, chunk: int) -> Residues | None:
        """The weighted response; None where factors carry it."""
        place = self.factor_width * (1 if self.errors else 2)
        return np.ascontiguousarray(self.held_last(me, chunk)[:, :, place])

    def dealt_products(self, me: Party, chunk: int, level: int) -> list[Residues]:
        """What each holder has dealt to this one."""
        sharings: list[Residues] = self._recall(me, f"dealt {chunk} {level}")
        return sharings

    def held_products(self, me: Party, chunk: int, level: int) -> Residues:
        placed = dict(enumerate(self.dealt_products(me, chunk, level)))
        return recombine(self.field, placed, threshold=me.roster.threshold)

    def proof(self, extension: Extension, seed: bytes) -> ScoreProof:
        return ScoreProof(self, extension, seed)

    def opening_weights(self, extension: Extension, seed: bytes, number: int) -> Residues:
        return self.proof(extension, seed).opening_weights()

    def claim_factors(self, me: Party, extension: Extension, seed: bytes) -> Iterator[Factors]:
        yield from self.proof(extension, seed).factors(me)

    def claim_products(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        return self.proof(extension, seed).dealt_again(me)

    def claim_sums(self, me: Party, extension: Extension, seed: bytes) -> Residues:
        return self.proof(extension, seed).sums(me)

    # --- what is kept ---------------------------------------------------------------------------------------

    def _keep(self, me: Party, name: str, value: Any) -> None:
        me.keep(f"{self.label}: {name}", [self.tag, value])

    def _kept(self, me: Party, name: str) -> bool:
        return me.kept(f"{self.label}: {name}") and me.recall(f"{self.label}: {name}")[0] == self.tag

    def _recall(self, me: Party, name: str) -> Any:
        tag, value = me.recall(f"{self.label}: {name}")
        if tag != self.tag:
            raise PartyLost(f"this holder has no {name} of this round; resume when all members are back.")
        return value


# --- the coordinator's side -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Remarks:
    """What the response holder says of presence: `counts` are of the patterns of the other parties, in the order of
    `itertools.product`; `fewest` are complete records in the smaller class, or those with a count above zero."""

    counts: tuple[int, ...]
    effective: float
    capped: int
    unlikely: int
    rare: int
    fewest: int

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Remarks:
        whole = {name: int(told[name]) for name in ("capped", "unlikely", "rare", "fewest")}
        return cls(counts=tuple(map(int, told["counts"])), effective=float(told["effective"]), **whole)


class RoundStages(VerifiedStages):
    """Rounds of one layout: rows, products, an opening. `wide` are columns of the largest message of a record."""

    layout: ScoreLayout

    def __init__(self, layout: ScoreLayout, view: View, *, later: Later, wide: int) -> None:
        super().__init__(layout, view, later={"chosen": later})
        committee = layout.roster.committee
        chunks = [number for _ in range(layout.turns) for number in range(len(layout.chunks))]
        levels = range(1, layout.levels + 1)
        rows = max(stop - start for start, stop in layout.chunks)
        entry = 4 * len(layout.field.primes) * len(committee)
        self.share = self.stage(
            "share rows",
            share_rows,
            layout.roster.names,
            [{"number": number} for number in chunks],
            discloses=f"secret shares of {layout.rows}",
            reply_bytes=entry * (rows * wide + 2 * layout.size),
        )
        self.multiply = self.stage(
            "multiply",
            multiply_shares,
            committee,
            [{"number": number, "level": level} for number in chunks for level in levels],
            discloses="secret shares of products of these",
            reply_bytes=entry * rows * wide,
        )
        self.compare, self.open = self.opening(audience="coordinator, who tells the next coefficients to all members")
        self._proofs = ()
        if layout.verify:
            requests = [self._arguments] * layout.turns
            self._proofs = verification_stages(layout, requests, (), self._later, products=layout.usual_length)
        self.stages: tuple[Stage, ...] = (self.share, self.multiply, self.compare, *self._proofs, self.open)

    def asked(self, job: Job, chosen: Mapping[str, Any]) -> NDArray[Any]:
        """What a round opens, in the order of the share holders' columns."""
        for _ in self.layout.chunks:
            job.ask(self.share, chosen=chosen)
            for _ in range(self.layout.levels):
                job.ask(self.multiply, chosen=chosen)
        layout = self.layout.with_chosen(**as_tuples(chosen))
        return opened_once(job, self.compare, self._proofs, self.open, layout, chosen=chosen)


class ScoreStages(RoundStages):
    """Ranges of the predictors before each round."""

    def __init__(self, layout: ScoreLayout, view: View) -> None:
        wide = 2 * USUAL_FACTOR + layout.width + PROJECTED
        super().__init__(layout, view, later=later_round(layout), wide=wide)
        self.range = self.stage(
            "ranges",
            predictor_range,
            layout.parties,
            [{"number": 0}] * (1 if layout.errors else 2 * MOST_ROUNDS),
            audience="coordinator, who tells all members",
            recipients=layout.parties,
            discloses="the range of a party's part of the linear predictor, in quarters",
            reply_bytes=256 * len(layout.parties),
        )
        self.stages = (self.range, *self.stages)

    def sums(
        self, job: Job, turn: int, coefficients: Vector, limit: float
    ) -> tuple[Matrix, Matrix, ScoreLayout] | None:
        """(triangle as a matrix, the other sums (coefficient, column), the layout of the round); None if a predictor
        may exceed the limit or leaves its range: nothing is opened then."""
        layout, count = self.layout, self.layout.width
        empty = [0.0] * len(layout.parties)
        chosen: dict[str, Any] = {"turn": turn, "coefficients": coefficients.tolist(), "low": empty, "high": empty}
        replies = job.ask(self.range, chosen=chosen)
        chosen["low"], chosen["high"] = ([replies[party][end] for party in layout.parties] for end in (0, 1))
        if sum(chosen["high"]) > limit or not layout.in_range(chosen["low"], chosen["high"]):
            return None
        opened = self.asked(job, chosen).astype(np.float64)
        layout = layout.with_chosen(**as_tuples(chosen))
        triangle = count * (count + 1) // 2
        other = np.zeros((count, (layout.size - triangle) // count))
        other[layout.order] = opened[triangle:].reshape(count, -1)
        return layout.matrix_of(opened[:triangle]), other, layout

    def evaluation(self, job: Job, turn: int, coefficients: Vector, limit: float) -> Evaluation | None:
        """Bread and score."""
        sums = self.sums(job, turn, coefficients, limit)
        if sums is None:
            return None
        matrix, score, layout = sums
        step = layout.unit / (layout.scale * layout.gamma)
        return Evaluation(score[:, 0] * step, matrix * (step / layout.gamma), sum(layout.high))

    def meat(self, job: Job, coefficients: Vector) -> tuple[Matrix, Matrix]:
        """M and C of `newton.py`."""
        sums = self.sums(job, 0, coefficients, math.inf)
        if sums is None:
            raise UnsafeRequest("the predictors left their range between two rounds; a party has changed its data.")
        matrix, scores, layout = sums
        step = layout.unit / (layout.scale * layout.gamma)
        return matrix * step**2, scores * (step / (SCORE * math.sqrt(layout.facts.n)))


def verification_note(verify: Verification, cost: str) -> str:
    """What a plan says of rounds, whose verification takes `cost` of the CPU time without it."""
    if verify == "full":
        return f"Verified, in every round: about {cost} the CPU time without."
    return f'{NOT_VERIFIED} verify="full" finds that, for about {cost} the CPU time.' if verify else NOT_VERIFIED


def as_tuples(chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()}


def listed(size: int, least: float, most: float) -> Callable[[Any], bool]:
    """Whether a value is a list of so many numbers within bounds."""
    return lambda value: (
        isinstance(value, list) and len(value) == size and all(is_number(each, least, most) for each in value)
    )


def later_round(layout: ScoreLayout) -> Later:
    parties = len(layout.parties)
    return fields_of(
        "the number of the round, coefficients of size at most 2^20, and the ranges that the parties told, which each"
        f" party compares with what the others told it; at most {layout.turns} rounds are opened, each once",
        turn=lambda value: type(value) is int and 0 <= value < layout.turns,
        coefficients=listed(layout.width, -LARGEST_COEFFICIENT, LARGEST_COEFFICIENT),
        low=listed(parties, -LARGEST_COEFFICIENT, LARGEST_COEFFICIENT),
        high=listed(parties, -LARGEST_COEFFICIENT, LARGEST_COEFFICIENT),
    )


class PresenceStages:
    """Who has which record, to the response holder; its weights, and what it says of them."""

    def __init__(self, layout: ScoreLayout) -> None:
        facts, roster, holder = layout.facts, layout.roster, layout.response_party
        arguments = {"layout": layout.to_dict()}
        self.layout = layout
        self.presence = stage(
            f"{layout.label}: presence",
            tell_blocks,
            {party: [arguments] for party in layout.others},
            facts=facts,
            roster=roster,
            audience=holder,
            recipients=(holder,),
            discloses="which pseudonymous records a party has, to the response holder",
            reply_bytes=facts.n // 8,
        )
        self.weigh = stage(
            f"{layout.label}: weights",
            weigh_complete,
            {holder: [arguments]},
            facts=facts,
            roster=roster,
            discloses="how many records each pattern of parties has, and how unequal the weights of complete ones are",
            reply_bytes=64 + 9 * 2 ** len(layout.others),
        )
        self.stages = (self.presence, self.weigh)

    def run(self, job: Job) -> Remarks:
        job.ask(self.presence)
        return Remarks.read(job.ask(self.weigh)[self.layout.response_party])


# --- the parties' steps -----------------------------------------------------------------------------------

KEPT_SCORES = "scores of presence"


def _kept_weights(errors: bool) -> str:
    return "weights of complete records" + (" for errors" if errors else "")


def _layout(public: Public | Party, layout: Mapping[str, Any]) -> ScoreLayout:
    return ScoreLayout.from_dict(public.facts, public.roster, layout)


def _range_cost(
    public: Public, *, layout: dict[str, Any], view: View, number: int, chosen: dict[str, Any] | None = None
) -> Cost:
    return _layout(public, layout).cost(public, view)


@step(cost=_range_cost)
def predictor_range(
    me: Party, *, layout: dict[str, Any], view: View, number: int, chosen: dict[str, Any] | None = None
) -> Release:
    """The range of this party's part of the predictor, to the coordinator and to the other parties."""
    statistic = read_statistic(me, layout, chosen)
    if not isinstance(statistic, ScoreLayout) or me.name not in statistic.parties:
        raise UnsafeRequest(f"{me.name!r} has no part of this predictor.")
    return Release(statistic.tell_range(me), "the range of this party's part of the linear predictor, in quarters")


def _blocks_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    shown = "which pseudonymous records a party has, to the response holder"
    return Unbounded("presence", shown, audience=_layout(public, layout).response_party)


@step(cost=_blocks_cost)
def tell_blocks(me: Party, *, layout: dict[str, Any]) -> Release:
    """Tell the response holder which records of the cohort this party has."""
    statistic = _layout(me, layout)
    if me.name not in statistic.others:
        raise UnsafeRequest(f"{me.name!r} is not one of the parties whose presence is weighed.")
    me.send(statistic.response_party, f"blocks for {statistic.tag}", np.packbits(statistic.present(me)))
    return Release(None, "nothing: the mask travels sealed")


def _weigh_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    """Counts over the response holder's records: parts of the release that the scores are."""
    return _layout(public, layout).cost(public, "client")


@step(cost=_weigh_cost)
def weigh_complete(me: Party, *, layout: dict[str, Any]) -> Release:
    """Fit the others' presence on one's own columns, and keep the weights; they leave as secret shares only."""
    statistic = _layout(me, layout)
    if me.name != statistic.response_party:
        raise UnsafeRequest(f"{me.name!r} does not hold the response.")
    present = received_masks(me, f"blocks for {statistic.tag}", statistic.others)
    records = np.flatnonzero(statistic.present(me))
    mine = [feature for feature in statistic.used if feature.party == me.name]
    own = design(me, mine, filled=statistic.filled)[records]
    response = [feature.column for feature in mine].index(statistic.response)
    fitted, remarks = presence_weights(own, response, present[records], statistic.family, statistic.weighting)
    _keep_weights(me, fitted, records, statistic.width)
    return Release(remarks, "counts of patterns, and how unequal the weights of complete records are")


def presence_weights(
    own: Matrix, response: int, present: NDArray[np.bool_], family: str, weighting: Weighting
) -> tuple[CompleteWeights, dict[str, Any]]:
    """From the response holder's columns, the place of the response, and the mask (record, other party): the weights,
    and what the coordinator is told of them."""
    fitted = equal_weights(present)
    if weighting != "equal":
        fitted = complete_weights(own, response, present, family=family, conditional=weighting == "conditional")
    complete = fitted.weights > 0
    event = own[complete, response] > (0 if family == "binomial" else -1 + 1e-9)
    fewest = min(int(event.sum()), int((~event).sum())) if family == "binomial" else int(event.sum())
    number = np.zeros(len(own), dtype=np.int64)
    for mask in present.T:
        number = 2 * number + mask
    return fitted, {
        "counts": np.bincount(number, minlength=2 ** present.shape[1]),
        "effective": fitted.effective,
        "capped": fitted.capped,
        "unlikely": fitted.unlikely,
        "rare": fitted.rare,
        "fewest": fewest,
    }


def _keep_weights(me: Party, fitted: CompleteWeights, records: NDArray[np.intp], width: int) -> None:
    """As integers over the cohort: those of the fit, those of the errors, and the scores of presence."""
    inflation = fitted.inflation(width)
    least = (fitted.weights > 0).astype(np.int64)
    for errors, weights in ((False, fitted.weights), (True, fitted.weights * inflation)):
        integers = np.zeros(me.facts.n, dtype=np.int64)
        integers[records] = np.clip(np.rint(weights * WEIGHT), least, LARGEST_WEIGHT * WEIGHT)
        me.keep(_kept_weights(errors), integers)
    scores = np.zeros((me.facts.n, PROJECTED), dtype=np.int64)
    size = fitted.scores.shape[1]
    scaled = np.rint(fitted.scores / inflation[:, None] * (math.sqrt(me.facts.n) * SCORE))
    scores[records, :size] = np.clip(scaled, -SCORE * LARGEST_SCORE, SCORE * LARGEST_SCORE)
    me.keep(KEPT_SCORES, scores)


def score_layouts(
    facts: PublicFacts,
    roster: Roster,
    *,
    family: Family,
    names: Sequence[str],
    offset: str | None,
    weighting: Weighting,
    gamma: int,
    verify: Verification = False,
) -> tuple[ScoreLayout, ScoreLayout]:
    """Of the fit, and of its errors, in coarser steps: `names` are the covariates, then the response."""
    used = (*names, *filter(None, [offset]))
    parties = len({facts.owner(name) for name in used})
    layouts = []
    for errors, label, bits, least, finest in (
        (False, "scores", 72, 14, 2**24),
        (True, "errors", 40, 10, 2**14),
    ):
        layout = ScoreLayout(
            facts=facts,
            roster=roster,
            family=family,
            response=names[-1],
            columns=tuple(names[:-1]),
            offset=offset,
            weighting=weighting,
            gamma=min(16 * gamma, finest),
            factor_bits=min(30, max(least, bits // parties)),
            errors=errors,
            label=label,
            verify=verify,
        )
        layout.check()
        layouts.append(layout)
    return layouts[0], layouts[1]
