"""VFL-GLM-VS (the copula paper's Algorithm 4): sparse GLMs by ADMM, each party solving for its own block.

    party k     b_k <- argmin  sum_j w_j |b_j| + (K phi / 2) || X_k (b - b_k) + v / K ||^2,   v = h + u
    holder      eta <- argmin  loss(eta) + (phi / 2) || sum_k X_k b_k - eta + u ||^2
                h <- sum_k X_k b_k - eta,   u <- u + h       (u = gamma / phi; the intercept is in the holder's block)

until the primal residual h and the dual residual phi (eta - eta before) are small (the paper's rule). Three things
differ from the page. (1) The page lets every party correct the whole residual at once (K = 1 above): K parties then
overshoot K-fold and correlated blocks diverge (`tests/oracle/test_sparse_glm.py` shows it). With K it is the sharing
ADMM of Boyd et al. (2011, 7.3), which converges; `damping="paper"` is the page. (2) Only v is sent, not h and gamma.
(3) phi is balanced: doubled or halved where one residual is ten times the other, and u with it.
A party first says which of its columns have coefficients, and sends its predictor when the total may be opened
(`sparse_glm_cover.py`); if it may not, the next solve starts from the last solution.
The page's rule mixes scales; here the loss is the sum over records, so that gamma is a vector of residuals.
"""

from __future__ import annotations

import weakref
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import SecureError, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.papers.vfl_glm_vs.updates import block_update, holder_update
from colonnade.models.sparse.penalties import Penalty, penalty_slope, violations
from colonnade.models.sparse.rounds import SparseLayout
from colonnade.models.sparse.rounds import Rounds
from colonnade.models.sparse.rounds import (
    layout_of,
    residuals_here,
    respond,
    response_of,
    send_predictor,
    send_residuals,
    standard_block,
    total_predictor,
    training,
)
from colonnade.models.sparse.path import Solved, Withheld
from colonnade.privacy.cost import Cost, Free, Unbounded, compose

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Damping = Literal["sharing", "paper"]
Weights = Literal["lasso", "approximate", "hold"]
Since = Literal["nothing", "solution", "round"]
"""Where a round starts: from zero, from the last solution (after a round that was given up), or from the last round."""

BALANCED_ROUNDS = 150
"""Rounds of one solve in which phi may still change: ADMM converges for a phi that rests."""


# --- the coordinator's procedure ----------------------------------------------------------------------------------


class Admm:
    """A `WeightedLasso` whose parties keep their coefficients until a solution is reached."""

    def __init__(
        self,
        rounds: Rounds,
        *,
        penalty: Penalty,
        fold: int | None,
        tolerance: float,
        damping: Damping,
        largest: float | None = None,
    ) -> None:
        self._rounds, self._fold, self._tolerance, self._damping = rounds, fold, tolerance, damping
        self._here: dict[str, Any] = {"layout": rounds.plain}
        self._penalty, self._rho = penalty, 1.0
        self._since: Since = "nothing"
        self._rested: tuple[Since, float] = ("nothing", 1.0)
        null = rounds.job.ask(respond, number=rounds.mark(), intercept=None, fold=fold, **self._here)
        value = null[rounds.layout.holder]
        self.null_loss, self.saturated = float(value["loss"]), float(value["saturated"])
        self._at: dict[str, dict[str, Any]] = self._settle(0.0, start=True)
        self.largest = max(one["violation"] for one in self._at.values()) if largest is None else largest

    def restart(self) -> None:
        self._since, self._rho = self._rested = ("nothing", 1.0)

    def lasso(self, lam: float) -> Solved:
        return self._solve("lasso", lam)

    def approximate(self, penalty: Penalty, lam: float) -> Solved:
        return self._solve("approximate", lam)

    def next_move(self, penalty: Penalty, lam: float) -> float:
        return float(max(one["moved"] for one in self._at.values()))

    def violation(self, penalty: Penalty, lam: float) -> float:
        return float(max(one["violation"] for one in self._at.values()))

    def _solve(self, weights: Weights, lam: float) -> Solved:
        rounds, holder = self._rounds, self._rounds.layout.holder
        for turn in range(rounds.limit):
            if turn:
                self._since = "round"
            number = rounds.next()
            block: dict[str, Any] = {
                "lam": float(lam),
                "penalty": self._penalty,
                "weights": weights if turn == 0 else "hold",
            }
            moved = rounds.job.ask(
                admm_block,
                rho=self._rho,
                since=self._since,
                damping=self._damping,
                tolerance=self._tolerance,
                **block,
                **self._here,
            )
            self._open(moved)
            rounds.job.ask(admm_predictor, number=number, **self._here)
            answer = rounds.job.ask(
                admm_holder,
                rho=self._rho,
                since=self._since,
                adapt=turn < BALANCED_ROUNDS,
                fold=self._fold,
                tolerance=self._tolerance,
                **self._here,
            )[holder]
            self._rho = float(answer["rho"])
            if answer["done"] and turn:
                break
        value = rounds.job.ask(admm_residuals, number=rounds.mark(), fold=self._fold, **self._here)[holder]
        self._at = self._settle(lam)
        self._since, self._rested = "round", ("solution", self._rho)
        coefficients = np.zeros(len(rounds.layout.features))
        for party, one in self._at.items():
            coefficients[rounds.layout.place(party)] = one["coefficients"]
        return Solved(self._at[holder]["intercept"], coefficients, float(value["loss"]), float(value["held_out"]))

    def _open(self, moved: dict[str, dict[str, Any]]) -> None:
        """May the total of these updates be seen? If not, they are forgotten."""
        selected = np.zeros(len(self._rounds.layout.features), dtype=bool)
        for party, one in moved.items():
            selected[self._rounds.layout.place(party)] = one["selected"]
        try:
            self._rounds.open(selected)
        except Withheld:
            self._since, self._rho = self._rested
            raise

    def _settle(self, lam: float, *, start: bool = False) -> dict[str, dict[str, Any]]:
        return self._rounds.job.ask(admm_settle, lam=float(lam), penalty=self._penalty, start=start, **self._here)


# --- the parties' steps -------------------------------------------------------------------------------------------

_designs: weakref.WeakKeyDictionary[Party, tuple[str, Matrix, Matrix]] = weakref.WeakKeyDictionary()


def _design(me: Party, known: SparseLayout) -> tuple[Matrix, Matrix]:
    """This block and its Gram matrix; the holder's has the intercept as its first column. Kept in memory only."""
    tag = f"{me.job} {known.to_dict()}"
    cached = _designs.get(me)
    if cached is None or cached[0] != tag:
        values = standard_block(me, known).values
        if me.name == known.holder:
            values = np.column_stack([np.ones(len(values)), values])
        cached = (tag, values, values.T @ values)
        _designs[me] = cached
    return cached[1], cached[2]


def _own_weights(me: Party, known: SparseLayout, coefficients: Vector, penalty: Penalty, lam: float) -> Vector:
    """The penalty's slopes at this block's coefficients; none for the intercept."""
    slopes = penalty_slope(penalty, coefficients, lam)
    if me.name == known.holder:
        slopes[0] = 0.0
    return slopes


def _block_cost(public: Public, *, layout: dict[str, Any], **arguments: Any) -> Cost:
    return Unbounded("coefficients", "which columns of this block have coefficients, in every round")


@step(cost=_block_cost)
def admm_block(
    me: Party,
    *,
    layout: dict[str, Any],
    rho: float,
    lam: float,
    penalty: Penalty,
    weights: Weights,
    since: Since,
    damping: Damping,
    tolerance: float,
) -> Release:
    """(4.4): this block's weighted lasso around its last coefficients, which stay here."""
    known = layout_of(me, layout)
    values, gram = _design(me, known)
    if since == "nothing":
        before, push = np.zeros(values.shape[1]), np.zeros(len(values))
    elif since == "solution":
        before, push = np.asarray(me.recall("admm solution")), np.asarray(me.recall("admm multipliers"))
    else:
        before, push = np.asarray(me.recall("admm coefficients")), _multipliers(me, known, len(values))
    if weights == "hold":
        slopes = np.asarray(me.recall("admm weights"))
    else:
        slopes = _own_weights(me, known, before, "lasso" if weights == "lasso" else penalty, lam)
        me.keep("admm weights", slopes)
    many = len(known.parties) if damping == "sharing" else 1
    fine = 1e-3 * tolerance * max(lam, 1e-9)
    after = block_update(values, gram, before, push, slopes, rho=rho, many=many, tolerance=fine)
    me.keep("admm coefficients", after)
    first = 1 if me.name == known.holder else 0
    return Release({"selected": after[first:] != 0}, "which columns of this block have coefficients")


def _predictor_cost(public: Public, *, layout: dict[str, Any], number: int) -> Cost:
    known = layout_of(public, layout)
    if public.party not in known.parties:
        return Free("this member masks zeros, and no data")
    return known.predictor_cost(public.job)


@step(cost=_predictor_cost)
def admm_predictor(me: Party, *, layout: dict[str, Any], number: int) -> Release:
    """The predictor of this block's update, masked, to the holder."""
    known = layout_of(me, layout)
    whole = None
    if me.name in known.parties:
        values, _ = _design(me, known)
        whole = np.zeros(me.facts.n)
        whole[standard_block(me, known).used] = values @ np.asarray(me.recall("admm coefficients"))
    send_predictor(me, known, whole, number)
    return Release(None, "nothing to the coordinator: the masked predictor travels sealed")


def _multipliers(me: Party, known: SparseLayout, size: int) -> Vector:
    """v of the last round: it comes with this request, or came with one in between and was kept."""
    got = me.received("multipliers")
    value = got[known.holder] if known.holder in got else me.recall("admm multipliers")
    if np.shape(value) != (size,):
        raise SecureError("the multipliers are of another length than the records used; check the holder.")
    return np.asarray(value, dtype=np.float64)


def _holder_cost(public: Public, *, layout: dict[str, Any], **arguments: Any) -> Cost:
    known = layout_of(public, layout)
    return compose([known.residual_cost(), Unbounded("loss", "norms of the residuals of ADMM, in every round")])


@step(cost=_holder_cost)
def admm_holder(
    me: Party,
    *,
    layout: dict[str, Any],
    rho: float,
    since: Since,
    adapt: bool,
    fold: int | None,
    tolerance: float,
) -> Release:
    """(4.5), (4.6): the proximal step on the loss, the multipliers, and the stopping rule. phi is rho / n."""
    known = _holder(me, layout)
    total, y = total_predictor(me, known), response_of(me, known)
    train = training(known, len(y), fold)
    if since == "nothing":
        eta_before, u = np.zeros((2, len(y)))
    else:
        eta_before, u = np.asarray(me.recall("admm state" if since == "round" else "admm solution state"))
    turn = holder_update(
        known.family,
        total,
        y,
        train,
        eta_before,
        u,
        rho=rho,
        width=len(known.features),
        adapt=adapt,
        tolerance=tolerance,
    )
    me.keep("admm state", np.stack([turn.eta, turn.u]))
    me.keep("admm total", total)
    for party in known.parties:
        me.send(party, "multipliers", turn.push)
    value = {"done": turn.done, "rho": turn.rho, "primal": turn.primal, "dual": turn.dual}
    return Release(value, "norms of the residuals")


def _holder(me: Party, layout: dict[str, Any]) -> SparseLayout:
    known = layout_of(me, layout)
    if me.name != known.holder:
        raise UnsafeRequest(f"{me.name!r} does not hold the response.")
    return known


@step(cost=_holder_cost)
def admm_residuals(me: Party, *, layout: dict[str, Any], number: int, fold: int | None) -> Release:
    """The residuals at the parties' own total predictor, from which they check how optimal their blocks are."""
    known = _holder(me, layout)
    total, y = np.asarray(me.recall("admm total")), response_of(me, known)
    me.keep("admm solution state", np.asarray(me.recall("admm state")))
    return send_residuals(me, known, y, total, training(known, len(y), fold), 0.0)


def _settle_cost(public: Public, *, layout: dict[str, Any], lam: float, penalty: Penalty, start: bool) -> Cost:
    return Unbounded("coefficients", "the fitted coefficients, for every lambda of the path")


@step(cost=_settle_cost)
def admm_settle(me: Party, *, layout: dict[str, Any], lam: float, penalty: Penalty, start: bool) -> Release:
    """This block's coefficients (standard units), how far they are from optimal, and how LLA would move its weights."""
    known = layout_of(me, layout)
    values, _ = _design(me, known)
    if not start:
        me.keep("admm multipliers", _multipliers(me, known, len(values)))
    gradient = values.T @ residuals_here(me, known)
    coefficients = np.zeros(len(gradient)) if start else np.asarray(me.recall("admm coefficients"))
    if not start:
        me.keep("admm solution", coefficients)
    slopes = _own_weights(me, known, coefficients, penalty, lam)
    weights = slopes if start else np.asarray(me.recall("admm weights"))
    first = 1 if me.name == known.holder else 0
    judged = slice(first, None) if start else slice(None)  # at the start only the covariates are not optimal
    value = {
        "coefficients": coefficients[first:],
        "intercept": float(coefficients[0]) if first else 0.0,
        "violation": float(violations(gradient, coefficients, slopes)[judged].max(initial=0.0)),
        "moved": float(np.abs(slopes - weights).max(initial=0.0)),
    }
    return Release(value, "coefficients of this block, and how optimal they are")
