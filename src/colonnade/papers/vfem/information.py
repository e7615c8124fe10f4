"""The one part of the information that no party can compute alone: products of columns of different parties.

sum d d'/tau over all records, d = (1, columns with missing blocks at their mean). `"secure"` computes it on secret
shares: every party shares its columns times sqrt(1/tau), and one Gram matrix is opened. `"sketch"` is the paper's
Algorithm 2 with what it needs to be right: **one** random S for all parties (with a matrix for each party the products
across parties have mean zero), unknown to the coordinator, which sees S times every block. Who knows S and sees the
sketch can solve for the block when S has as many rows as there are records; so S is kept much shorter, and a
coordinator that is also a party is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from colonnade.errors import BadArguments, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Phase, phase
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Release, step
from colonnade.papers.vfem.block import Design, forget, own_block
from colonnade.privacy.cost import Cost, Free, Unbounded
from colonnade.statistics.dealing import deal_noise, deal_rows
from colonnade.statistics.gaussian_em import Matrix, Vector
from colonnade.statistics.joint import join
from colonnade.statistics.moments import MomentsLayout
from colonnade.statistics.moments import open_moments
from colonnade.statistics.quantize import quantize

Information = Literal["secure", "sketch"]
LABEL = "vfem information"
SHORT = 8
"""A sketch has at most n / SHORT rows."""
_ROWS = 4096


def information_phases(
    design: Design, roster: Roster, *, information: Information, gamma: int, size: int, coordinator: str | None
) -> list[Phase]:
    names = list(design.names)
    here: dict[str, Any] = {"facts": design.facts, "roster": roster}
    if information == "sketch":
        check_sketch(design.facts, roster, size=size, coordinator=coordinator)
        arguments = {"names": names, "size": size, "coordinator": str(coordinator)}
        return [
            phase(
                f"{LABEL}: seed",
                share_seed,
                {design.holder: [{"names": names}]},
                audience="data parties (sealed)",
                discloses="the seed of the sketch",
                **here,
            ),
            phase(
                f"{LABEL}: sketch",
                sketch_columns,
                {party: [arguments] for party in design.parties},
                discloses="random combinations of each party's columns, and its own exact products",
                reply_bytes=8 * size * max(len(design.covariates), 1),
                **here,
            ),
        ]
    layout = information_layout(design, roster, gamma)
    return [
        phase(
            f"{LABEL}: share",
            share_information,
            {member: [{"names": names, "gamma": gamma}] for member in roster.names},
            audience="share holders (sealed; any t of them learn nothing)",
            discloses="secret shares of weighted columns",
            reply_bytes=layout.packed_bytes(design.facts.n, max(layout.width(party) for party in layout.parties)),
            **here,
        ),
        phase(
            f"{LABEL}: open",
            open_moments,
            {
                holder: [{"layout": layout.to_dict(), "view": "client", "number": number} for number in (0,)]
                for holder in roster.committee
            },
            discloses="shares of one weighted Gram matrix, which the coordinator joins",
            reply_bytes=4 * len(layout.field.primes) * layout.size(0),
            **here,
        ),
    ]


def information_layout(design: Design, roster: Roster, gamma: int) -> MomentsLayout:
    """One Gram matrix over all features; in the place of the response stands the constant."""
    roster.require_committee()
    made = MomentsLayout(
        facts=design.facts,
        roster=roster,
        names=design.names,
        presence="ignore",
        gamma=gamma,
        constant=False,
        records=design.facts.n,
        tile=len(design.features),  # one tile: `weighted_gram` reads one upper triangle
        label=LABEL,
    )
    made.check()
    return made


def weighted_gram(
    job: Job,
    design: Design,
    *,
    information: Information,
    gamma: int,
    size: int,
    coordinator: str | None,
    weight: float,
) -> Matrix:
    """sum d d'/tau over (1, covariates as features in [-1, 1]); `weight` is the largest 1/tau."""
    names = list(design.names)
    target = [feature.name for feature in design.features].index(names[-1])
    order = [target, *(at for at in range(len(design.features)) if at != target)]
    if information == "sketch":
        job.ask(share_seed, names=names)
        replies = job.ask(sketch_columns, names=names, size=size, coordinator=str(coordinator))
        whole = np.hstack([replies[party]["sketch"] for party in design.parties])
        mean = np.concatenate([replies[party]["mean"] for party in design.parties])
        # Only products of deviations are sketched; the means' part of a product is exact.
        gram = whole.T @ whole + replies[design.holder]["weight"] * np.outer(mean, mean)
        start = 0
        for party in design.parties:
            own = replies[party]["gram"]
            gram[start : start + len(own), start : start + len(own)] = own
            start += len(own)
        return np.asarray(gram[np.ix_(order, order)])
    layout = information_layout(design, job.roster, gamma)
    job.ask(share_information, names=names, gamma=gamma)
    job.roll_call(job.roster.committee)
    shares = job.ask(open_moments, phase=f"{LABEL}: open", layout=layout.to_dict(), view="client", number=0)
    opened = join(shares, layout.field, job.roster).astype(np.float64) / gamma**2
    upper = np.triu_indices(len(order))
    gram = np.zeros((len(order), len(order)))
    gram[upper] = opened
    gram.T[upper] = opened
    return np.asarray(weight * gram[np.ix_(order, order)])


# --- the members' steps -----------------------------------------------------------------------------------


def _columns(me: Party, design: Design) -> tuple[Matrix, Vector]:
    """Over the cohort: this party's features in [-1, 1], at their mean where it lacks a record, the response's column
    being 1; and sqrt(1/tau) of each record, in units of the largest, 0 where a record is not used."""
    block = own_block(me, design)
    weights: Vector = np.asarray(me.recall("vfem weights"))
    mean: Vector = np.asarray(me.recall("vfem mean"))
    rows = np.tile(block.centre + block.scale * mean, (me.facts.n, 1))
    rows[block.at] = block.x * block.scale + block.centre
    mine = [feature.name for feature in design.features if feature.party == me.name]
    if design.names[-1] in mine:
        rows = np.insert(rows, mine.index(design.names[-1]), 1.0, axis=1)
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
def share_information(me: Party, *, names: list[str], gamma: int) -> Release:
    """Share the weighted columns; every member also shares zeros, which make the opened products fresh."""
    design = Design.of(me.facts, names)
    layout = information_layout(design, me.roster, gamma)
    if me.name in design.parties:
        columns, factor = _columns(me, design)
        rows = np.clip(columns * factor[:, None], -1.0, 1.0)
        whole = quantize(rows, gamma=gamma, clip=layout.bound(me.name), entry=1.0, randomness=me.randomness)
        deal_rows(me, f"{layout.tag}: rows", layout.field, whole)
        forget(me)
    deal_noise(me, f"{layout.tag}: noise 0", layout.field, mu=0, size=layout.size(0))
    return Release(None, "nothing: the shares travel sealed")


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
            " ones let whoever learns the seed solve for the columns; choose sketch_size=, or information='secure'."
        )


def _seed_cost(public: Public, *, names: list[str]) -> Cost:
    return Free("a random seed, sealed to the data parties")


@step(cost=_seed_cost)
def share_seed(me: Party, *, names: list[str]) -> Release:
    """The response holder draws the sketch for all data parties."""
    seed = me.randomness.bytes(32)
    for party in Design.of(me.facts, names).parties:
        me.send(party, f"{LABEL}: seed", seed)
    return Release(None, "nothing: the seed travels sealed")


def _sketch_cost(public: Public, *, names: list[str], size: int, coordinator: str) -> Cost:
    return Unbounded(
        "sketched-columns",
        f"{size} random combinations of this party's records, and exact products of its own columns; with the seed,"
        " which every data party knows, each combination is a linear equation in the raw columns",
    )


@step(cost=_sketch_cost)
def sketch_columns(me: Party, *, names: list[str], size: int, coordinator: str) -> Release:
    """S times the weighted columns, S of random signs / sqrt(size), the same at every party."""
    check_sketch(me.facts, me.roster, size=size, coordinator=coordinator)
    design = Design.of(me.facts, names)
    came: Mapping[str, Any] = me.received(f"{LABEL}: seed")
    if design.holder not in came:
        raise BadArguments("the response holder has not sent the seed of the sketch; ask it first.")
    columns, factor = _columns(me, design)
    factor *= np.sqrt(np.max(me.recall("vfem weights")))
    weight = float(factor @ factor)
    mean = factor**2 @ columns / weight
    rows = (columns - mean) * factor[:, None]
    own = rows.T @ rows + weight * np.outer(mean, mean)
    stream = Cipher(algorithms.AES(came[design.holder]), modes.CTR(bytes(16))).encryptor()
    sketch = np.zeros((size, rows.shape[1]))
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        bits = np.frombuffer(stream.update(bytes(-(-size // 8) * len(part))), dtype=np.uint8).reshape(len(part), -1)
        signs = np.unpackbits(bits, axis=1, count=size).astype(np.float64) * 2 - 1
        sketch += signs.T @ part
    forget(me)
    value = {"sketch": sketch / np.sqrt(size), "mean": mean, "weight": weight, "gram": own}
    return Release(value, "random combinations of the columns")
