"""The parties' steps in the rounds of VFEM (`papers/vfem/method.py` drives them).

A round has two halves. Each party but the response holder moves its parameters by the residuals that it received and
sends its linear predictor, sealed, to the response holder; with `masking="masked"` under pads that cancel in the sum
of a group (`papers/vfem/block.py`). The response holder adds them up, forms the residuals, moves its own parameters and
sends the residuals, sealed, to the others. The coordinator relays and sees one number: the log-likelihood.

A round's step length `eta` comes with the request. If the likelihood fell, the coordinator asks again with a shorter
one (`retreat`): all parameters return to where they were, and take less of the same gradient.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadArguments, NotEstimable, SecureError, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.papers.vfem.block import (
    Design,
    OwnBlock,
    chosen_groups,
    own_block,
    unpacked_masks,
    used_blocks,
)
from colonnade.papers.vfem.model import BlockParameters, residual_likelihood
from colonnade.privacy.cost import Cost, Unbounded
from colonnade.secure.pads import FixedPoint, fixed_point, masked, pad_label
from colonnade.statistics.gaussian_em import Vector
from colonnade.statistics.joint import binding
from colonnade.statistics.shares import received_from

Masking = Literal["masked", "plain"]
Mode = Literal["complete-case", "mean", "em"]

MASK, PREDICTOR, RESIDUALS = "vfem mask", "vfem predictor", "vfem residuals"
"""The tags of mail."""
PREDICTORS_SEEN_BY = "response holder, data parties, coordinator"
BOUND = 2.0**13
"""Largest linear predictor, in standard deviations of the response; a larger one is an error, not a wrapped sum."""


# --- before the rounds ------------------------------------------------------------------------------------


@step(
    cost=Unbounded(
        "presence",
        "which pseudonymous records a party has, to the other data parties; counts of the patterns, to the coordinator",
        audience="data parties, coordinator",
    )
)
def announce(me: Party, *, names: list[str]) -> Release:
    """Tell the other data parties, sealed, which records are here."""
    design = Design.of(me.facts, names)
    for party in design.parties:
        me.send(party, MASK, np.packbits(design.present(me)))
    return Release(None, "nothing: the masks travel sealed")


@step(cost=Unbounded("block-moments", "the extreme eigenvalues of a party's correlation matrix, and its record counts"))
def prepare(me: Party, *, names: list[str], masking: Masking) -> Release:
    """Form groups, standardise; state what the step length depends on. A party with too few records only says so."""
    design = Design.of(me.facts, names)
    masks = unpacked_masks(design, received_from(me, MASK, design.parties))
    with_response = masks[:, design.parties.index(design.response_party)]
    others = [design.parties.index(party) for party in design.others]
    widths = [design.width(party) for party in design.parties]
    alone = tuple((place,) for place in others)
    groups = alone if masking == "plain" else chosen_groups(masks[with_response], others, widths)
    used = used_blocks(masks, groups)
    packed = {party: np.packbits(used[:, place]) for place, party in enumerate(design.parties)}
    me.keep("vfem masks", {"masks": packed, "groups": [list(group) for group in groups]})
    me.keep("vfem masking", masking)
    place = design.parties.index(me.name)
    count = int(used[with_response, place].sum())
    value: dict[str, Any] = {
        "count": count,
        "left_out": int(masks[with_response, place].sum()) - count,
        "complete": int(masks[with_response].all(axis=1).sum()),
        "groups": [[design.parties[member] for member in group] for group in groups],
    }
    if count > 1 + widths[place]:
        value["high"], value["low"] = own_block(me, design).eigenvalue_range()
    return Release(value, "two eigenvalues, and how many records are used, left out and complete, in which groups")


# --- the rounds: parties other than the response holder ---------------------------------------------------


def _start(block: OwnBlock) -> dict[str, Any]:
    """Coefficients 0, available-case mean 0 and covariance."""
    zero, sigma = np.zeros(len(block.centre)), block.products / len(block.own_rows)
    return {"round": -1, "base": zero, "gradient": zero, "mu": zero, "sigma": sigma, "own": [0.0, 0.0, 1.0]}


def _parameters(state: dict[str, Any], eta: float) -> BlockParameters:
    return BlockParameters(state["base"] + eta * state["gradient"], state["mu"], state["sigma"])


def _state(me: Party, round_number: int) -> dict[str, Any] | None:
    """The state, if there is one. Rounds only go forward: one pad never hides two arrays."""
    state: dict[str, Any] | None = me.recall("vfem state") if me.kept("vfem state") else None
    if state is not None and round_number <= state["round"]:
        raise UnsafeRequest(f"round {round_number} was asked before in job {me.job}; a pad serves once.")
    return state


def _predictor_cost(
    public: Public, *, names: list[str], round_number: int, eta: float, retreat: bool, masking: Masking
) -> Cost:
    if masking == "plain":
        return Unbounded(
            "predictors",
            "this party's linear predictor of every record, in every round, to the response holder; in residuals to the"
            " data parties, in likelihoods and sums of residuals to the coordinator",
            audience=PREDICTORS_SEEN_BY,
        )
    return Unbounded(
        "predictor-sums",
        "sums of the linear predictors of two or more parties, of every record that all of these have, in every round,"
        " to the response holder; in residuals to the data parties, in likelihoods and sums of residuals to the"
        " coordinator",
        audience=PREDICTORS_SEEN_BY,
    )


@step(cost=_predictor_cost)
def predictors(
    me: Party, *, names: list[str], round_number: int, eta: float, retreat: bool, masking: Masking
) -> Release:
    """Move by the residuals that came along, then send the linear predictor of every record to the response holder."""
    design = Design.of(me.facts, names)
    if me.name not in design.others:
        raise UnsafeRequest(f"{me.name!r} has the response, or nothing: it sends no predictor.")
    if me.recall("vfem masking") != masking or (masking == "masked" and len(design.others) < 2):
        raise UnsafeRequest(
            "predictors are masked for the groups that were formed, of two parties or more; start anew."
        )
    block = own_block(me, design)
    state = _state(me, round_number) or _start(block)
    received = me.received(RESIDUALS).get(design.response_party)
    if received is None and round_number and not retreat:
        # A party that stands still, at no coefficients say, would leave another's predictor alone in the sum.
        raise UnsafeRequest(f"the residuals of the round before {round_number} have not come; no party moves alone.")
    if received is not None and not retreat:
        state = _moved(block, _parameters(state, received["eta"]), received, state)
    state["round"] = round_number
    me.keep("vfem state", state)
    now = _parameters(state, eta)
    # Mean and variance, which stand for the block where it is missing, and the likelihood of its own columns go along
    # in the sums, so that no party sees them alone.
    rest = [float(now.mu @ now.beta), now.variance, now.likelihood(block.own) / block.n]
    vector = np.append(block.x @ now.beta, rest)
    if not np.isfinite(vector).all():
        raise NotEstimable("the estimates of this party left all bounds; leave columns out, or take solver='exact'.")
    if masking == "masked":
        vector = _under_pads(me, design, block, vector, round_number=round_number, eta=eta, retreat=retreat)
    me.send(design.response_party, PREDICTOR, vector, each_round=True)
    return Release(None, "nothing: the predictor travels sealed")


def _moved(block: OwnBlock, now: BlockParameters, received: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """One M step of a block: the gradient, to be taken with the next eta, and equation (6) for mean and covariance."""
    e = np.asarray(received["e"])
    if received["mode"] != "em":
        gradient = block.x.T @ e / received["count"]
        return {**state, "base": now.beta, "gradient": gradient}
    missing = {name: received[name][block.place] for name in ("score_sum", "variance_excess")}
    gradient, mu, sigma = block.maximised(now, e, sigma2=received["sigma2"], **missing)
    return {**state, "base": now.beta, "gradient": gradient, "mu": mu, "sigma": sigma}


def _scale(design: Design) -> FixedPoint:
    return fixed_point(bound=BOUND, parties=max(2, len(design.others)))


def _under_pads(
    me: Party, design: Design, block: OwnBlock, vector: Vector, *, round_number: int, eta: float, retreat: bool
) -> NDArray[np.uint64]:
    """Fixed point, under a pad with each party of the group over all entries, with the others over the last one.

    `vector` is x'beta of the party's records, then mu'beta, beta'Sigma beta and the likelihood of the own columns / n.
    All of a group have the same records, so their sum, and nothing finer, is what the response holder sees. The
    likelihoods are summed over all groups. The pad depends on all that was asked and on the groups: if one party were
    asked for a much longer step than the others, so that its predictor drowned theirs in the sum, nothing would cancel.
    """
    total = _scale(design).encode(vector).view(np.uint64)
    stated = {"eta": float(eta), "retreat": retreat, "groups": [list(group) for group in block.groups]}
    agreed = binding("vfem predictors", {"names": list(design.names), **stated})
    together = next(group for group in block.groups if block.place in group)
    for peer in design.others:
        if peer == me.name:
            continue
        begin = 0 if design.parties.index(peer) in together else len(total) - 1
        keys, label = {peer: me.pair_key(peer, agreed)}, pad_label(me.job, round_number)
        nothing = np.zeros(len(total) - begin, dtype=np.int64)
        total[begin:] += masked(nothing, me=me.name, peers=[peer], pair_keys=keys, label=label)
    return total


# --- the rounds: the response holder ----------------------------------------------------------------------


def _totals(me: Party, design: Design, block: OwnBlock, masking: Masking) -> tuple[Vector, Vector, Vector, float]:
    """What the response holder adds up, group by group, over the cohort: the sum of the others' predictors where they
    are used; by party (a group's at its first one) the means and variances that stand for them where they are not; the
    likelihood of their columns / n."""
    received = received_from(me, PREDICTOR, design.others)
    kind = np.dtype(np.float64 if masking == "plain" else np.uint64)

    def numbers(added: NDArray[Any]) -> Vector:
        return added if masking == "plain" else _scale(design).decode(added.view(np.int64))

    predictor, likelihood = np.zeros(me.facts.n), np.zeros(1, dtype=kind)
    means, variances = np.zeros(len(design.parties)), np.zeros(len(design.parties))
    for group in block.groups:
        rows = block.rows[group[0]]
        added: NDArray[Any] = np.zeros(len(rows) + 2, dtype=kind)
        for place in group:
            array = received[design.parties[place]]
            if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != ((len(rows) + 3,), kind):
                raise SecureError(
                    f"{design.parties[place]!r} sent something other than a predictor; check its installation."
                )
            added += array[:-1]  # modulo 2^64
            likelihood += array[-1:]
        values = numbers(added)
        predictor[rows] += values[:-2]
        means[group[0]], variances[group[0]] = values[-2:]
    return predictor, means, variances, float(numbers(likelihood)[0])


@step(
    cost=Unbounded(
        "residuals",
        "the residuals of the records that a party has, in every round, to that party; the log-likelihood to the"
        " coordinator",
        audience="data parties, coordinator",
    )
)
def residuals(
    me: Party, *, names: list[str], round_number: int, eta: float, retreat: bool, masking: Masking, mode: Mode
) -> Release:
    """The response holder's half: residuals, the likelihood, its own M step."""
    design = Design.of(me.facts, names)
    block, state = _response_state(me, design, round_number, retreat)
    now, r, tau, others = _evaluated(me, design, block, state, eta, masking)
    sums, squares = _per_pattern(block, r)
    intercept, sigma2 = _own(state, eta)
    message: dict[str, Any] = {"mode": mode, "eta": eta}
    if mode == "em":
        value = residual_likelihood(tau, block.counts, squares) + block.n * others + now.likelihood(block.own)
        share = sigma2 / tau
        message |= {
            "score_sum": block.lacks.T @ (sums / tau),
            "variance_excess": block.lacks.T @ ((squares / tau - block.counts) / tau),
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
    moved = _moved(block, now, {**message, "e": e[block.own_rows]}, state)
    me.keep("vfem state", {**moved, "own": own, "round": round_number})
    me.keep("vfem before", {**state, "round": round_number})
    for party in design.others:
        own_rows = block.rows[design.parties.index(party)]
        me.send(party, RESIDUALS, {**message, "e": e[own_rows]}, each_round=True)
    return Release({"value": value}, "the log-likelihood of all records used")


def _response_state(me: Party, design: Design, round_number: int, retreat: bool) -> tuple[OwnBlock, dict[str, Any]]:
    if me.name != design.response_party:
        raise UnsafeRequest(f"{me.name!r} does not have the response; ask its holder for residuals.")
    block = own_block(me, design)
    state = _state(me, round_number)
    if state is None:
        return block, _start(block)
    return block, me.recall("vfem before") if retreat else state


def _own(state: dict[str, Any], eta: float) -> tuple[float, float]:
    """Intercept and s2."""
    intercept, gradient, sigma2 = state["own"]
    return intercept + eta * gradient, sigma2


def _evaluated(
    me: Party, design: Design, block: OwnBlock, state: dict[str, Any], eta: float, masking: Masking
) -> tuple[BlockParameters, Vector, Vector, float]:
    """The response holder's block, r over the cohort, tau per pattern, and the others' own likelihoods / n."""
    predictor, means, variances, likelihood = _totals(me, design, block, masking)
    now = _parameters(state, eta)
    intercept, sigma2 = _own(state, eta)
    assert block.response is not None
    r = block.response - predictor
    r[block.own_rows] -= block.x @ now.beta + (intercept + block.lacks @ means)[block.index[block.own_rows]]
    return now, r, sigma2 + block.lacks @ variances, likelihood


def _per_pattern(block: OwnBlock, r: Vector) -> tuple[Vector, Vector]:
    """Sums of r and of r^2."""
    index, own = block.index[block.own_rows], r[block.own_rows]
    sums, squares = (np.bincount(index, weights=values, minlength=len(block.masks)) for values in (own, own * own))
    return np.asarray(sums, dtype=np.float64), np.asarray(squares, dtype=np.float64)


# --- after the rounds -------------------------------------------------------------------------------------


@step(
    cost=Unbounded(
        "block-moments", "estimates, pattern counts and residual sums, and moments of this party's own columns"
    )
)
def response_terms(me: Party, *, names: list[str], round_number: int, eta: float, masking: Masking) -> Release:
    """The response holder's part of the estimates and of the information; the others get r/tau and 1/tau."""
    design = Design.of(me.facts, names)
    block, state = _response_state(me, design, round_number, True)
    now, r, tau, _ = _evaluated(me, design, block, state, eta, masking)
    sums, squares = _per_pattern(block, r)
    scores, score_sums, weights = r / tau[block.index], sums / tau, 1 / tau
    me.keep("vfem weights", weights)
    me.keep("vfem mean", now.mu)
    for party in design.others:
        party_scores = scores[block.rows[design.parties.index(party)]]
        terms_of = {"scores": party_scores, "score_sums": score_sums, "weights": weights}
        me.send(party, RESIDUALS, terms_of, each_round=True)
    intercept, sigma2 = _own(state, eta)
    value = {
        **_estimates(block, now, scores[block.own_rows], score_sums, weights),
        "intercept": intercept,
        "sigma2": sigma2,
        "response": list(block.response_units),
        "masks": block.masks,
        "counts": block.counts,
        "sums": sums,
        "squares": squares,
    }
    return Release(value, "the response holder's estimates, pattern counts and moments")


@step(cost=Unbounded("block-moments", "estimates, and moments of this party's own columns, also with the residuals"))
def terms(me: Party, *, names: list[str], eta: float) -> Release:
    """A party's part of the estimates and of the information."""
    design = Design.of(me.facts, names)
    received = me.received(RESIDUALS).get(design.response_party)
    if received is None or "scores" not in received:
        raise BadArguments("the response holder has not sent what the information needs; ask it first.")
    block = own_block(me, design)
    now = _parameters(me.recall("vfem state"), eta)
    me.keep("vfem weights", received["weights"])
    me.keep("vfem mean", now.mu)
    value = _estimates(block, now, received["scores"], received["score_sums"], received["weights"])
    return Release(value, "estimates and moments of one block")


def _estimates(
    block: OwnBlock, now: BlockParameters, scores: Vector, score_sums: Vector, weights: Vector
) -> dict[str, Any]:
    return {
        "beta": now.beta,
        "mu": now.mu,
        "sigma": now.sigma,
        "centre": block.centre,
        "scale": block.scale,
        "count": float(len(block.own_rows)),
        "products": block.products,
        **block.sums(now, scores, score_sums, weights),
    }
