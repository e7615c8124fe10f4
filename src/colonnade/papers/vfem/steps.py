"""How linear predictors reach the response holder: one by one, or as sums of groups under pads that cancel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, NotEstimable, PartyLost, SecureError, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.papers.vfem.block import (
    Design,
    Lacking,
    OwnBlock,
    alone,
    chosen_groups,
    keep_masks,
    kept_blocks,
    own_block,
    spread,
)
from colonnade.papers.vfem.model import Block, residual_likelihood
from colonnade.privacy.cost import Cost, Unbounded
from colonnade.secure.pads import FixedPoint, fixed_point, masked, pad_label
from colonnade.statistics.gaussian_em import Vector
from colonnade.statistics.joint import binding

Exchange = Literal["masked", "plain"]
PREDICTOR = "vfem predictor"
BOUND = 2.0**13
"""Largest linear predictor, in standard deviations of the response; a larger one is an error, not a wrapped sum."""


def _scale(design: Design) -> FixedPoint:
    return fixed_point(bound=BOUND, parties=max(2, len(design.others)))


def masked_predictor(
    me: Party, design: Design, block: OwnBlock, vector: Vector, asked: tuple[int, float, bool]
) -> NDArray[np.uint64]:
    """Fixed point, under a pad with each party of the group over all entries, with the others over the last one.

    `vector` is x'beta of the records here, then mu'beta, beta'Sigma beta and the likelihood of the own columns / n.
    All of a group have the same records, so their sum, and nothing finer, is what the response holder sees. The
    likelihoods are summed over all groups. The pad depends on all that was asked and on the groups: if one party were
    asked for a much longer step than the others, so that its predictor drowned theirs in the sum, nothing would cancel.
    """
    round, eta, retreat = asked
    total = _scale(design).encode(vector).view(np.uint64)
    stated = {"eta": float(eta), "retreat": retreat, "groups": [list(group) for group in block.groups]}
    agreed = binding("vfem predictors", {"names": list(design.names), **stated})
    for peer in design.others:
        if peer == me.name:
            continue
        begin = 0 if design.parties.index(peer) in block.group else len(total) - 1
        keys, label = {peer: me.pair_key(peer, agreed)}, pad_label(me.job, round)
        nothing = np.zeros(len(total) - begin, dtype=np.int64)
        total[begin:] += masked(nothing, me=me.name, peers=[peer], pair_keys=keys, label=label)
    return total


@dataclass(frozen=True, eq=False)
class Totals:
    """Of the other parties, over the cohort: the sum of their predictors where they are used; by party (a group's at
    its first one) the means and variances that stand for them where they are not; the likelihood of their columns / n.
    """

    predictor: Vector
    means: Vector
    variances: Vector
    likelihood: float


def totals(me: Party, design: Design, block: OwnBlock, exchange: Exchange) -> Totals:
    """What the response holder adds up, group by group."""
    came = me.received(PREDICTOR)
    if missing := [party for party in design.others if party not in came]:
        raise PartyLost(f"no predictor came from {', '.join(missing)}; resume when they are back.")
    kind = np.dtype(np.float64 if exchange == "plain" else np.uint64)
    predictor, likelihood = np.zeros(me.facts.n), np.zeros(1, dtype=kind)
    means, variances = np.zeros(len(design.parties)), np.zeros(len(design.parties))
    for group in block.groups:
        rows = block.rows[group[0]]
        added: NDArray[Any] = np.zeros(len(rows) + 2, dtype=kind)
        for place in group:
            array = came[design.parties[place]]
            if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != ((len(rows) + 3,), kind):
                raise SecureError(
                    f"{design.parties[place]!r} sent something other than a predictor; check its installation."
                )
            added += array[:-1]  # modulo 2^64
            likelihood += array[-1:]
        values = _numbers(design, added, exchange)
        predictor[rows] += values[:-2]
        means[group[0]], variances[group[0]] = values[-2:]
    return Totals(predictor, means, variances, float(_numbers(design, likelihood, exchange)[0]))


def _numbers(design: Design, added: NDArray[Any], exchange: Exchange) -> Vector:
    return added if exchange == "plain" else _scale(design).decode(added.view(np.int64))


# --- The parties' steps in the rounds of VFEM (`papers/vfem/method.py` drives them) -----------------------
#
# A round has two halves. Each party but the response holder moves its parameters by the residuals that it received and
# sends its linear predictor, sealed, to the response holder; with `exchange="masked"` under pads that cancel in the sum
# of a group (`vfem_groups.py`). The response holder adds them up, forms the residuals, moves its own parameters and sends
# the residuals, sealed, to the others. The coordinator relays and sees one number: the log-likelihood.
#
# A round's step length `eta` comes with the request. If the likelihood fell, the coordinator asks again with a shorter
# one (`retreat`): all parameters return to where they were, and take less of the same gradient.


Mode = Literal["complete-case", "mean", "em"]

RESIDUALS = "vfem residuals"


# --- before the rounds ------------------------------------------------------------------------------------


def _presence_cost(public: Public, *, names: list[str]) -> Cost:
    return Unbounded(
        "presence", "which pseudonymous records a party has, to the other data parties", audience="data parties"
    )


@step(cost=_presence_cost)
def announce(me: Party, *, names: list[str]) -> Release:
    """Tell the other data parties, sealed, which records are here."""
    design = Design.of(me.facts, names)
    for party in design.parties:
        me.send(party, "vfem mask", np.packbits(me.present))
    return Release(None, "nothing: the masks travel sealed")


def _prepare_cost(public: Public, *, names: list[str], exchange: Exchange) -> Cost:
    return Unbounded("block-moments", "the extreme eigenvalues of a party's correlation matrix, and its record counts")


@step(cost=_prepare_cost)
def prepare(me: Party, *, names: list[str], exchange: Exchange) -> Release:
    """Form groups, standardise; state what the step length depends on. A party with too few records only says so."""
    design = Design.of(me.facts, names)
    came = me.received("vfem mask")
    if missing := [party for party in design.parties if party not in came]:
        raise PartyLost(f"{', '.join(missing)} did not send a mask; resume when they are back.")
    bits = [np.unpackbits(np.asarray(came[party], dtype=np.uint8), count=me.facts.n) for party in design.parties]
    masks = np.column_stack(bits).astype(bool)
    with_response = masks[:, design.parties.index(design.holder)]
    others = [design.parties.index(party) for party in design.others]
    widths = [sum(one.party == party for one in design.covariates) for party in design.parties]
    groups = alone(others) if exchange == "plain" else chosen_groups(masks[with_response], others, widths)
    used = kept_blocks(masks, groups)
    keep_masks(me, design, used, groups)
    me.keep("vfem exchange", exchange)
    place = design.parties.index(me.name)
    count = int(used[with_response, place].sum())
    value: dict[str, Any] = {
        "count": count,
        "left_out": int(masks[with_response, place].sum()) - count,
        "complete": int(masks[with_response].all(axis=1).sum()),
        "groups": [[design.parties[one] for one in group] for group in groups],
    }
    if count > 1 + widths[place]:
        value["high"], value["low"] = spread(own_block(me, design))
    return Release(value, "two eigenvalues, and how many records are used, left out and complete, in which groups")


# --- the rounds -------------------------------------------------------------------------------------------


def _start(block: OwnBlock) -> dict[str, Any]:
    begin = block.start()
    zero = np.zeros(len(begin.beta))
    return {"round": -1, "base": zero, "gradient": zero, "mu": begin.mu, "sigma": begin.sigma, "own": [0.0, 0.0, 1.0]}


def _block(state: dict[str, Any], eta: float) -> Block:
    return Block(state["base"] + eta * state["gradient"], state["mu"], state["sigma"])


def _next_round(me: Party, round: int) -> dict[str, Any] | None:
    """The state, if there is one. Rounds only go forward: one pad never hides two arrays."""
    state: dict[str, Any] | None = me.recall("vfem state") if me.kept("vfem state") else None
    if state is not None and round <= state["round"]:
        raise UnsafeRequest(f"round {round} was asked before in job {me.job}; a pad serves once.")
    return state


def _predictor_cost(
    public: Public, *, names: list[str], round: int, eta: float, retreat: bool, exchange: Exchange
) -> Cost:
    if exchange == "plain":
        return Unbounded(
            "predictors",
            "this party's linear predictor of every record, in every round, to the response holder",
            audience="response holder",
        )
    return Unbounded(
        "predictor-sums",
        "sums of the linear predictors of two or more parties, of every record that all of these have, in every round,"
        " to the response holder",
        audience="response holder",
    )


@step(cost=_predictor_cost)
def predictors(me: Party, *, names: list[str], round: int, eta: float, retreat: bool, exchange: Exchange) -> Release:
    """Move by the residuals that came along, then send the linear predictor of every record to the response holder."""
    design = Design.of(me.facts, names)
    if me.name not in design.others:
        raise UnsafeRequest(f"{me.name!r} has the response, or nothing: it sends no predictor.")
    if me.recall("vfem exchange") != exchange or (exchange == "masked" and len(design.others) < 2):
        raise UnsafeRequest(
            "predictors are masked for the groups that were formed, of two parties or more; start anew."
        )
    block = own_block(me, design)
    state = _next_round(me, round) or _start(block)
    came = me.received(RESIDUALS).get(design.holder)
    if came is not None and not retreat:
        state = _moved(block, _block(state, came["eta"]), came, state)
    state["round"] = round
    me.keep("vfem state", state)
    now = _block(state, eta)
    # Mean and variance, which stand for the block where it is missing, and the likelihood of its own columns go along
    # in the sums, so that nobody sees them alone.
    rest = [float(now.mu @ now.beta), now.variance, block.likelihood(now) / block.n]
    vector = np.append(block.predictor(now), rest)
    if not np.isfinite(vector).all():
        raise NotEstimable("the estimates of this party left all bounds; leave columns out, or take step='exact'.")
    if exchange == "plain":
        me.send(design.holder, PREDICTOR, vector)
    else:
        me.send(design.holder, PREDICTOR, masked_predictor(me, design, block, vector, (round, eta, retreat)))
    return Release(None, "nothing: the predictor travels sealed")


def _moved(block: OwnBlock, now: Block, came: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """One M step of a block: the gradient, to be taken with the next eta, and equation (6) for mean and covariance."""
    e = np.asarray(came["e"])
    if came["mode"] != "em":
        gradient = block.x.T @ e / came["count"]
        return {**state, "base": now.beta, "gradient": gradient}
    lacking = Lacking(came["pull"][block.place], came["excess"][block.place], came["sigma2"])
    gradient, mu, sigma = block.maximised(now, e, lacking)
    return {**state, "base": now.beta, "gradient": gradient, "mu": mu, "sigma": sigma}


def _residual_cost(
    public: Public, *, names: list[str], round: int, eta: float, retreat: bool, exchange: Exchange, mode: Mode
) -> Cost:
    return Unbounded(
        "residuals",
        "the residuals of the records that a party has, in every round, to that party; the log-likelihood to the"
        " coordinator",
        audience="data parties",
    )


@step(cost=_residual_cost)
def residuals(
    me: Party, *, names: list[str], round: int, eta: float, retreat: bool, exchange: Exchange, mode: Mode
) -> Release:
    """The response holder's half: residuals, the likelihood, its own M step."""
    design = Design.of(me.facts, names)
    block, state = _holder_state(me, design, round, retreat)
    now, r, tau, others = _evaluated(me, design, block, state, eta, exchange)
    sums, squares = _per_pattern(block, r)
    intercept, _, sigma2 = _own(state, eta)
    message: dict[str, Any] = {"mode": mode, "eta": eta}
    if mode == "em":
        value = residual_likelihood(tau, block.counts, squares) + block.n * others + block.likelihood(now)
        share = sigma2 / tau
        lacks = (~block.masks).astype(float).T
        message |= {
            "pull": lacks @ (sums / tau),
            "excess": lacks @ ((squares / tau - block.counts) / tau),
            "sigma2": sigma2,
        }
        # E (y - b0 - x'beta)^2 = e^2 + s2 (tau - s2)/tau, at the current coefficients, as in the paper's (6).
        scatter = float(np.sum(squares * share**2 + block.counts * share * (tau - sigma2))) / block.n
        own = [intercept, float(np.sum(sums * share)) / block.n, scatter]
    else:
        chosen = np.asarray(block.masks.all(axis=1) | (mode == "mean"))
        count = float(block.counts[chosen].sum())
        share = chosen.astype(np.float64)
        message |= {"count": count}
        value = -0.5 * float(squares[chosen].sum())
        own = [intercept, float(sums[chosen].sum()) / count, sigma2]
    e = r * share[block.index]
    me.keep("vfem state", {**_moved(block, now, {**message, "e": e[block.at]}, state), "own": own, "round": round})
    me.keep("vfem before", {**state, "round": round})
    for party in design.others:
        me.send(party, RESIDUALS, {**message, "e": e[block.rows[design.parties.index(party)]]})
    return Release({"value": value}, "the log-likelihood of all records used")


def _holder_state(me: Party, design: Design, round: int, retreat: bool) -> tuple[OwnBlock, dict[str, Any]]:
    if me.name != design.holder:
        raise UnsafeRequest(f"{me.name!r} does not have the response; ask its holder for residuals.")
    block = own_block(me, design)
    state = _next_round(me, round)
    if state is None:
        return block, _start(block)
    return block, me.recall("vfem before") if retreat else state


def _own(state: dict[str, Any], eta: float) -> tuple[float, float, float]:
    """Intercept, its gradient, and s2."""
    intercept, gradient, sigma2 = state["own"]
    return intercept + eta * gradient, gradient, sigma2


def _evaluated(
    me: Party, design: Design, block: OwnBlock, state: dict[str, Any], eta: float, exchange: Exchange
) -> tuple[Block, Vector, Vector, float]:
    """The holder's block, r over the cohort, tau per pattern, and the others' own likelihoods / n."""
    others = totals(me, design, block, exchange)
    now = _block(state, eta)
    intercept, _, sigma2 = _own(state, eta)
    assert block.response is not None
    lacks = (~block.masks).astype(np.float64)
    r = block.response - others.predictor
    r[block.at] -= block.predictor(now) + (intercept + lacks @ others.means)[block.index[block.at]]
    return now, r, sigma2 + lacks @ others.variances, others.likelihood


def _per_pattern(block: OwnBlock, r: Vector) -> tuple[Vector, Vector]:
    """Sums of r and of r^2."""
    index, here = block.index[block.at], r[block.at]
    sums: Vector = np.bincount(index, weights=here, minlength=len(block.masks)).astype(np.float64)
    squares: Vector = np.bincount(index, weights=here * here, minlength=len(block.masks)).astype(np.float64)
    return sums, squares


# --- after the rounds -------------------------------------------------------------------------------------


def _holder_terms_cost(public: Public, *, names: list[str], round: int, eta: float, exchange: Exchange) -> Cost:
    return Unbounded(
        "block-moments",
        "estimates, pattern counts and residual sums, and moments of this party's own columns",
    )


@step(cost=_holder_terms_cost)
def holder_terms(me: Party, *, names: list[str], round: int, eta: float, exchange: Exchange) -> Release:
    """The response holder's part of the estimates and of the information; the others get r/tau and 1/tau."""
    design = Design.of(me.facts, names)
    block, state = _holder_state(me, design, round, True)
    now, r, tau, _ = _evaluated(me, design, block, state, eta, exchange)
    sums, squares = _per_pattern(block, r)
    pulled, pulls, weights = r / tau[block.index], sums / tau, 1 / tau
    me.keep("vfem weights", weights)
    me.keep("vfem mean", now.mu)
    for party in design.others:
        here = pulled[block.rows[design.parties.index(party)]]
        me.send(party, RESIDUALS, {"pulled": here, "pulls": pulls, "weights": weights})
    intercept, _, sigma2 = _own(state, eta)
    value = {
        **_estimates(block, now, pulled[block.at], pulls, weights),
        "intercept": intercept,
        "sigma2": sigma2,
        "response": list(block.response_units),
        "masks": block.masks,
        "counts": block.counts,
        "sums": sums,
        "squares": squares,
    }
    return Release(value, "the response holder's estimates, pattern counts and moments")


def _terms_cost(public: Public, *, names: list[str], eta: float) -> Cost:
    return Unbounded("block-moments", "estimates, and moments of this party's own columns, also with the residuals")


@step(cost=_terms_cost)
def terms(me: Party, *, names: list[str], eta: float) -> Release:
    """A party's part of the estimates and of the information."""
    design = Design.of(me.facts, names)
    came = me.received(RESIDUALS).get(design.holder)
    if came is None or "pulled" not in came:
        raise BadArguments("the response holder has not sent what the information needs; ask it first.")
    block = own_block(me, design)
    now = _block(me.recall("vfem state"), eta)
    me.keep("vfem weights", came["weights"])
    me.keep("vfem mean", now.mu)
    value = _estimates(block, now, came["pulled"], came["pulls"], came["weights"])
    return Release(value, "estimates and moments of one block")


def _estimates(block: OwnBlock, now: Block, pulled: Vector, pulls: Vector, weights: Vector) -> dict[str, Any]:
    return {
        "beta": now.beta,
        "mu": now.mu,
        "sigma": now.sigma,
        "centre": block.centre,
        "scale": block.scale,
        "count": float(len(block.at)),
        "products": block.products,
        **block.sums(now, pulled, pulls, weights),
    }
