"""The one part of the information that no party can compute alone: products of columns of different parties.

sum d d'/tau over all records, d = (1, columns with missing blocks at their mean). `"secure"` computes it on secret
shares: every party shares its columns times sqrt(1/tau), and one Gram matrix is opened. `"sketch"` is the paper's
Algorithm 2 with what it needs to be right: **one** random S for all parties (with a matrix for each party the products
across parties have mean zero), unknown to the coordinator, which sees S times every block. With both S and the sketch
anyone can solve for the block when S has as many rows as there are records; so S is kept much shorter, and a
coordinator that is also a party is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from colonnade.errors import BadArguments, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import SEALED, Stage, stage
from colonnade.federation.step import Public, Release, Size, step
from colonnade.models.matrix import consecutive
from colonnade.papers.vfem.block import Design, forget, own_block
from colonnade.privacy.cost import Cost, Free, Unbounded
from colonnade.statistics.features import quantize
from colonnade.statistics.gaussian_em import Matrix, Vector
from colonnade.statistics.joint import JointStages
from colonnade.statistics.moments import MomentsLayout
from colonnade.statistics.shares import deal_large, state_dealing

Information = Literal["secure", "sketch"]
LABEL = "vfem information"
SHORT = 8
"""A sketch has at most n / SHORT rows."""
_ROWS = 4096


# --- the coordinator's side -------------------------------------------------------------------------------


class WeightedGram(ABC):
    """sum d d'/tau over (1, covariates as features in [-1, 1]), as stages of a larger procedure."""

    stages: tuple[Stage, ...]

    def __init__(self, design: Design) -> None:
        self.design = design
        target = [feature.name for feature in design.features].index(design.response)
        self.order = [target, *(place for place in range(len(design.features)) if place != target)]

    @abstractmethod
    def run(self, job: Job, *, weight: float) -> Matrix:
        """`weight` is the largest 1/tau."""

    def ordered(self, gram: Matrix) -> Matrix:
        """The constant first, then the covariates."""
        return np.asarray(gram[np.ix_(self.order, self.order)])


class SecureGram(WeightedGram):
    """On secret shares."""

    def __init__(self, design: Design, roster: Roster, *, gamma: int) -> None:
        super().__init__(design)
        self.layout = information_layout(design, roster, gamma)
        joint = JointStages(self.layout, "client")
        widest = max(self.layout.width(party) for party in self.layout.parties)
        shared = {"names": list(design.names), "gamma": gamma}
        self.share = stage(
            f"{LABEL}: share",
            share_information,
            {member: [shared] for member in roster.names},
            facts=design.facts,
            roster=roster,
            audience=SEALED,
            discloses="secret shares of weighted columns",
            reply_bytes=self.layout.packed_bytes(design.facts.n, widest),
        )
        discloses = "shares of one weighted Gram matrix, which the coordinator joins"
        self.joint, self.stages = joint, (self.share, *joint.opening(discloses=discloses))

    def run(self, job: Job, *, weight: float) -> Matrix:
        job.ask(self.share)
        opened = self.joint.opened(job).astype(np.float64) / self.layout.gamma**2
        upper = np.triu_indices(len(self.order))
        gram = np.zeros((len(self.order), len(self.order)))
        gram[upper] = opened
        gram.T[upper] = opened
        return weight * self.ordered(gram)


class SketchedGram(WeightedGram):
    """From random combinations of the records."""

    def __init__(self, design: Design, roster: Roster, *, size: int, coordinator: str | None) -> None:
        super().__init__(design)
        check_sketch(design.facts, roster, size=size, coordinator=coordinator)
        names = list(design.names)
        arguments = {"names": names, "size": size, "coordinator": str(coordinator)}
        planned = partial(stage, facts=design.facts, roster=roster)
        self.seed = planned(
            f"{LABEL}: seed",
            share_seed,
            {design.response_party: [{"names": names}]},
            audience="data parties (sealed)",
            recipients=design.parties,
            discloses="the seed of the sketch",
        )
        self.sketch = planned(
            f"{LABEL}: sketch",
            sketch_columns,
            {party: [arguments] for party in design.parties},
            discloses="random combinations of each party's columns, and its own exact products",
            reply_bytes=8 * size * max(len(design.covariates), 1),
        )
        self.stages = (self.seed, self.sketch)

    def run(self, job: Job, *, weight: float) -> Matrix:
        job.ask(self.seed)
        replies = job.ask(self.sketch)
        parts = [replies[party] for party in self.design.parties]
        sketch = np.hstack([part["sketch"] for part in parts])
        mean = np.concatenate([part["mean"] for part in parts])
        # Only products of deviations are sketched; the means' part of a product is exact.
        gram = sketch.T @ sketch + replies[self.design.response_party]["weight"] * np.outer(mean, mean)
        for part, place in zip(parts, consecutive([len(part["gram"]) for part in parts]), strict=True):
            gram[place, place] = part["gram"]
        return self.ordered(gram)


def information_layout(design: Design, roster: Roster, gamma: int) -> MomentsLayout:
    """One Gram matrix over all features; in the place of the response stands the constant."""
    roster.require_committee(pair=False)
    layout = MomentsLayout(
        facts=design.facts,
        roster=roster,
        names=design.names,
        presence="ignore",
        gamma=gamma,
        constant=False,
        records=design.facts.n,
        tile=len(design.features),  # one tile: one upper triangle is read
        label=LABEL,
    )
    layout.check()
    return layout


def check_sketch(facts: PublicFacts, roster: Roster, *, size: int, coordinator: str | None) -> None:
    organisations = {member.organisation for member in roster.members if member.owns_data}
    if not coordinator or coordinator in organisations:
        raise UnsafeRequest(
            "a sketch hides the columns only from a coordinator that is none of the parties: name the organisation that"
            " runs it with coordinator=, or take information='secure'."
        )
    if not isinstance(size, int) or not 1 <= size * SHORT <= facts.n:
        raise BadArguments(
            f"a sketch of {size} rows for {facts.n} records must have at least 1 and at most {facts.n // SHORT}: longer"
            " ones let anyone who learns the seed solve for the columns; choose sketch_size=, or information='secure'."
        )


# --- the members' steps -----------------------------------------------------------------------------------


def _columns(me: Party, design: Design) -> tuple[Matrix, Vector]:
    """Over the cohort: this party's features in [-1, 1], at their mean where it lacks a record, the response's column
    being 1; and sqrt(1/tau) of each record, in units of the largest, 0 where a record is not used."""
    block = own_block(me, design)
    weights: Vector = np.asarray(me.recall("vfem weights"))
    mean: Vector = np.asarray(me.recall("vfem mean"))
    rows = np.tile(block.centre + block.scale * mean, (me.facts.n, 1))
    rows[block.own_rows] = block.x * block.scale + block.centre
    names = [feature.name for feature in design.features if feature.party == me.name]
    if design.response in names:
        rows = np.insert(rows, names.index(design.response), 1.0, axis=1)
    factor = np.sqrt(weights / weights.max())[block.index]
    factor[block.index < 0] = 0.0
    return rows, factor


def _share_cost(public: Public, *, names: list[str], gamma: int) -> Cost:
    if public.party not in Design.of(public.facts, names).parties:
        return Free("this member shares zeros, and no data")
    return Unbounded(
        "exact-moments",
        "one exact matrix of products of all columns, summed over the records with weights",
        joint=f"{public.job} {LABEL}",
    )


@step(cost=_share_cost)
def share_information(me: Party, *, names: list[str], gamma: Annotated[int, Size(2**26, least=1)]) -> Release:
    """Share the weighted columns; every member also shares zeros, which make the opened products fresh."""
    design = Design.of(me.facts, names)
    layout = information_layout(design, me.roster, gamma)
    if me.name in design.parties:
        columns, factor = _columns(me, design)
        rows = np.clip(columns * factor[:, None], -1.0, 1.0)
        integers = quantize(rows, gamma=gamma, clip=layout.bound(me.name), entry=1.0, randomness=me.randomness)
        deal_large(me, layout.rows_tag(0), layout.field, integers)
        forget(me)
    layout.share_noise(me, 0)
    state_dealing(me, layout.tag, "rows 0")
    return Release(None, "nothing: the shares travel sealed")


@step(cost=Free("a random seed, sealed to the data parties"))
def share_seed(me: Party, *, names: list[str]) -> Release:
    """The response holder draws the sketch for all data parties."""
    seed = me.randomness.bytes(32)
    for party in Design.of(me.facts, names).parties:
        me.send(party, f"{LABEL}: seed", seed)
    return Release(None, "nothing: the seed travels sealed")


def _sketch_cost(public: Public, *, names: list[str], size: int, coordinator: str) -> Cost:
    check_sketch(public.facts, public.roster, size=size, coordinator=coordinator)
    return Unbounded(
        "sketched-columns",
        f"{size} random combinations of this party's records, and exact products of its own columns; with the seed,"
        " which every data party knows, each combination is a linear equation in the raw columns",
    )


@step(cost=_sketch_cost)
def sketch_columns(
    me: Party, *, names: list[str], size: Annotated[int, Size(1_000_000, least=1)], coordinator: str
) -> Release:
    """S times the weighted columns, S of random signs / sqrt(size), the same at every party."""
    check_sketch(me.facts, me.roster, size=size, coordinator=coordinator)
    design = Design.of(me.facts, names)
    received: Mapping[str, Any] = me.received(f"{LABEL}: seed")
    if design.response_party not in received:
        raise BadArguments("the response holder has not sent the seed of the sketch; ask it first.")
    columns, factor = _columns(me, design)
    factor *= np.sqrt(np.max(me.recall("vfem weights")))
    weight = float(factor @ factor)
    mean = factor**2 @ columns / weight
    rows = (columns - mean) * factor[:, None]
    gram = rows.T @ rows + weight * np.outer(mean, mean)
    sketch = _signed_sums(rows, size, key=received[design.response_party]) / np.sqrt(size)
    forget(me)
    value = {"sketch": sketch, "mean": mean, "weight": weight, "gram": gram}
    return Release(value, "random combinations of the columns")


def _signed_sums(rows: Matrix, size: int, *, key: bytes) -> NDArray[np.float64]:
    """`size` sums of the rows, each with random signs of its own; the signs are a keyed stream."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    sums = np.zeros((size, rows.shape[1]))
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        bits = np.frombuffer(stream.update(bytes(-(-size // 8) * len(part))), dtype=np.uint8).reshape(len(part), -1)
        signs = np.unpackbits(bits, axis=1, count=size).astype(np.float64) * 2 - 1
        sums += signs.T @ part
    return sums
