"""Contingency tables under SQM, in several rounds that depend on each other: the steps of the `sqm` encoder.

Each party shares its one-hot rows **once**. Coarse and fine tables are linear in the products of these shares, so the
holders compute every round from what they keep: bins are sums of shares, a pair is one product. What a round opens is
decided after the round before it; only its number of tables and its noise are fixed in the plan. A table that gets
several units of the budget is opened as many times with independent noise, and the coordinator averages.

The proofs are in `claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import UnsafeRequest
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import JOB, Phase
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Free, compose
from colonnade.secure.bgw import Product, cross, lift, open_product
from colonnade.secure.field import Field, Residues
from colonnade.secure.seeded import Shape, Share, whole
from colonnade.statistics.dealing import deal_noise, deal_rows, held, messages, shares_of
from colonnade.statistics.joint import View, field_for, join, once
from colonnade.synthesis.mrf.encoders import Schema, Wanted, cell_codes
from colonnade.synthesis.mrf.fit import Measurement
from colonnade.synthesis.mrf.graph import Names
from colonnade.synthesis.mrf.sqm_round import EXACT_SD, LABEL, Round, unit_cost

_Columns = dict[tuple[str, tuple[int, ...] | None], Residues]

# --- the coordinator's procedure --------------------------------------------------------------------------------


def round_phases(
    schema: Schema, roster: Roster, view: View, *, units: Sequence[int], mus: Sequence[int], cells: Sequence[int]
) -> list[Phase]:
    """The phases of all rounds: round k opens at most `units[k]` tables, with noise mus[k], about `cells[k]` counts.

    Every data party is charged for every table, whether or not it has a column in it: which tables are measured is
    decided by what was released before, and a person's total counts each joint release once.
    """

    def costs(numbers: Sequence[int]) -> dict[str, Cost]:
        per_party = compose(
            unit_cost(mus[k], roster, view, joint=f"{JOB} {LABEL} {k}").times(units[k]) for k in numbers
        )
        idle = Free("this member shares noise, and no data")
        return {member: per_party if member in schema.parties else idle for member in roster.names}

    layers = len(field_for(schema.facts.n, max(mus), roster).primes)
    widths = [sum(schema.sizes[name] for name in schema.of(party)) for party in schema.parties]
    later = list(range(1, len(units)))
    phases = [
        Phase(
            name=f"{LABEL}: share rows",
            step=share_rows.name,
            counts=dict.fromkeys(roster.names, 1),
            costs=costs([0]),
            audience="share holders (sealed; any t of them learn nothing)",
            discloses="secret shares of one-hot rows and of noise",
            reply_bytes=3 * layers * schema.facts.n * max(widths),
        ),
        Phase(
            name=f"{LABEL}: open",
            step=open_round.name,
            counts=dict.fromkeys(roster.committee, len(units)),
            costs=dict.fromkeys(
                roster.committee, Free("a share of a joint release that the data parties have debited")
            ),
            audience="coordinator",
            discloses="shares of the noisy counts, which the coordinator joins",
            reply_bytes=4 * layers * max(cells),
        ),
    ]
    if later:
        phases.insert(
            1,
            Phase(
                name=f"{LABEL}: share noise",
                step=share_noise.name,
                counts=dict.fromkeys(roster.names, len(later)),
                costs=costs(later),
                audience="share holders (sealed; any t of them learn nothing)",
                discloses="secret shares of noise, and of joint one-hot rows for tables of three columns",
                reply_bytes=3 * layers * max(cells),
            ),
        )
    return phases


def compute_round(job: Job, known: Round, view: View) -> list[Measurement]:
    """Share (rows with the first round, noise with each), open, join, average the units of each table."""
    arguments: dict[str, Any] = {"layout": known.to_dict(), "view": view}
    if known.number == 0:
        job.ask(share_rows, phase=f"{LABEL}: share rows", **arguments)
    else:
        job.ask(share_noise, phase=f"{LABEL}: share noise", **arguments)
    job.roll_call(known.roster.committee)
    opened = join(job.ask(open_round, phase=f"{LABEL}: open", **arguments), known.field, known.roster)
    counts = opened.astype(np.float64)
    found, start = [], 0
    for one, size in zip(known.wanted, known.opened, strict=True):
        axes = known.axes(one)
        shape = [known.shape(one)[one.columns.index(name)] for name in axes]
        mean = counts[start : start + size].reshape(one.units, *shape).mean(axis=0)
        mean = mean.transpose([axes.index(name) for name in one.columns])
        sd = math.sqrt(2 * known.mu / one.units) if known.mu else EXACT_SD
        found.append(Measurement(one.columns, mean, sd, one.maps()))
        start += size
    return found


# --- the members' steps -----------------------------------------------------------------------------------------


def _round(public: Public | Party, plain: Mapping[str, Any]) -> Round:
    return Round.from_dict(public.facts, public.roster, plain)


def _round_cost(public: Public, *, layout: dict[str, Any], view: View) -> Cost:
    known = _round(public, layout)
    if public.party not in known.schema.parties:
        return Free("this member shares noise, and no data")
    return unit_cost(known.mu, public.roster, view, joint=f"{public.job} {LABEL} {known.number}").times(known.units)


@step(cost=_round_cost)
def share_rows(me: Party, *, layout: dict[str, Any], view: View) -> Release:
    """Share all one-hot rows, for every round of the job, and the noise of the first round."""
    known = _round(me, layout)
    if known.number != 0:
        raise UnsafeRequest("rows are shared once, with the first round.")
    if me.name in known.schema.parties:
        starts = known.schema.starts(me.name)
        codes = cell_codes(me, known.schema, list(starts))
        rows = np.zeros((me.facts.n, sum(stop - start for start, stop in starts.values())), dtype=np.int8)
        for name, (start, _) in starts.items():
            here = np.flatnonzero(codes[name] >= 0)
            rows[here, start + codes[name][here]] = 1
        deal_rows(me, known.rows_tag, known.field, rows)
    _deal(me, known)
    return Release(None, "nothing: the shares travel sealed")


@step(cost=_round_cost)
def share_noise(me: Party, *, layout: dict[str, Any], view: View) -> Release:
    """Share the noise of a later round, and the joint one-hot rows that its tables of three columns need."""
    known = _round(me, layout)
    if known.number < 1:
        raise UnsafeRequest("the noise of the first round is shared with the rows.")
    _deal(me, known)
    return Release(None, "nothing: the shares travel sealed")


def _deal(me: Party, known: Round) -> None:
    deal_noise(me, f"{known.tag}: noise", known.field, mu=known.mu, size=sum(known.opened))
    for pair in known.joints:
        if known.schema.facts.owner(pair[0]) != me.name:
            continue
        codes = cell_codes(me, known.schema, pair)
        shape = tuple(known.schema.sizes[name] for name in pair)
        rows = np.zeros((me.facts.n, math.prod(shape)), dtype=np.int8)
        here = np.flatnonzero(np.all([codes[name] >= 0 for name in pair], axis=0))
        rows[here, np.ravel_multi_index([codes[name][here] for name in pair], shape)] = 1
        deal_rows(me, f"{known.tag}: joint {' x '.join(pair)}", known.field, rows)


def _open_cost(public: Public, *, layout: dict[str, Any], view: View) -> Cost:
    return Free("a share of a joint release that the data parties have debited")


@step(cost=_open_cost)
def open_round(me: Party, *, layout: dict[str, Any], view: View) -> Release:
    """This holder's share of every table of a round: products of the rows that it keeps, plus every member's noise."""
    known = _round(me, layout)
    once(me, f"{LABEL} {known.number}")
    layers, n = len(known.field.primes), known.schema.facts.n
    rows = messages(me, known.rows_tag, known.schema.parties, layers=layers, keep=True)
    widths: dict[str, tuple[int, ...]] = {
        party: (n, sum(known.schema.sizes[name] for name in known.schema.of(party))) for party in known.schema.parties
    }
    shares = shares_of(me, rows, known.field, widths)
    joints = {pair: _joint_share(me, known, pair) for pair in known.joints}
    products = _products(known, shares, joints)
    dealt = held(me, f"{known.tag}: noise", me.roster.names, known.field, lengths=(sum(known.opened),))
    noise = {member: whole(one) for member, one in dealt.items()}
    out = np.empty((layers, sum(known.opened)), dtype=np.int32)
    start = 0
    for one, product in zip(known.wanted, products, strict=True):
        size = math.prod(known.shape(one))
        for _ in range(one.units):
            here = slice(start, start + size)
            shaped = {member: each[:, here].reshape(layers, *product.shape) for member, each in noise.items()}
            sent = open_product(product, noise=shaped, parties=me.roster.names)
            out[:, here] = sent.reshape(layers, -1)
            start += size
    return Release(out, "a share of noisy counts")


def _joint_share(me: Party, known: Round, pair: Names) -> Share:
    owner = known.schema.facts.owner(pair[0])
    width = math.prod(known.schema.sizes[name] for name in pair)
    tag = f"{known.tag}: joint {' x '.join(pair)}"
    return held(me, tag, [owner], known.field, lengths=(known.schema.facts.n, width))[owner]


def _products(known: Round, shares: Mapping[str, Share], joints: Mapping[Names, Share]) -> list[Product]:
    """This holder's share of each table, summed over blocks of records."""
    totals: list[Product] = []
    place = {name: at for party in shares for name, at in known.schema.starts(party).items()}
    for block in range(Shape((known.schema.facts.n,)).blocks):
        rows = {party: one.block(block) for party, one in shares.items()}
        joint = {pair: one.block(block) for pair, one in joints.items()}
        needed = {key for one in known.wanted for key in zip(one.columns, one.bins, strict=True)}
        columns: _Columns = {}
        for name, bins in needed:
            mine = rows[known.schema.facts.owner(name)][:, :, slice(*place[name])]
            columns[name, bins] = mine if bins is None else _summed(known.field, mine, bins)
        for position, one in enumerate(known.wanted):
            product = _table(known, one, columns, joint)
            if block:
                totals[position] = totals[position] + product
            else:
                totals.append(product)
    return totals


def _table(known: Round, one: Wanted, columns: _Columns, joint: Mapping[Names, Residues]) -> Product:
    """One table over one block of records, its axes as `Round.axes` has them."""
    if len(one.columns) == 1:
        return lift(known.field, known.field.sum(columns[one.columns[0], one.bins[0]]))
    if len(one.columns) == 2:
        left, right = (columns[key] for key in zip(one.columns, one.bins, strict=True))
        return cross(known.field, left, right)
    pair = known.joint_pair(one)
    assert pair is not None
    (other,) = (name for name in one.columns if name not in pair)
    return cross(known.field, columns[other, None], joint[pair])


def _summed(field: Field, rows: Residues, bins: Sequence[int]) -> Residues:
    """Shares of coarse one-hot rows: the sum of a bin's cells is linear, so each holder takes it alone."""
    where: NDArray[np.int64] = np.array(bins)
    return np.stack([field.sum(rows[:, :, where == one], axis=1) for one in range(int(where.max()) + 1)], axis=2)
