"""VFL-GLM-VS (the copula paper's Algorithm 4): sparse GLMs by ADMM, each party solving for its own block.

    party k          b_k <- argmin  sum_j w_j |b_j| + (K phi / 2) || X_k (b - b_k) + v / K ||^2,   v = h + u
    response holder  eta <- argmin  loss(eta) + (phi / 2) || sum_k X_k b_k - eta + u ||^2
                     h <- sum_k X_k b_k - eta,   u <- u + h       (u = gamma / phi; the intercept is in its own block)

until the primal residual h and the dual residual phi (eta - eta before) are small (the paper's rule). Three things
differ from the page. (1) The page lets every party correct the whole residual at once (K = 1 above): K parties then
overshoot K-fold and correlated blocks diverge (`tests/oracle/test_select.py` shows it). With K it is the sharing
ADMM of Boyd et al. (2011, 7.3), which converges; `damping="paper"` is the page. (2) Only v is sent, not h and gamma.
(3) phi is balanced: doubled or halved where one residual is ten times the other, and u with it.
A party first says which of its columns have coefficients, and sends its predictor when the total may be opened
(`Cover` in `models/sparse/rounds.py`); if it may not, the next solve starts from the last solution.
The page's rule mixes scales; here the loss is the sum over records, so that gamma is a vector of residuals.
"""

from __future__ import annotations

import weakref
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import SecureError, UnsafeRequest
from colonnade.federation.facts import PublicFacts
from colonnade.federation.method import Procedure, method_class
from colonnade.federation.options import Option
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import counted, flag, number, one_of
from colonnade.federation.step import Public, Release, step
from colonnade.models.sparse.path import PathPoint, Solved, WeightedLasso, Withheld
from colonnade.models.sparse.penalties import Penalty, penalty_slope, violations
from colonnade.models.sparse.result import Selection
from colonnade.models.sparse.rounds import (
    COEFFICIENTS,
    RESIDUALS,
    ROUND,
    Reserved,
    RoundLayout,
    Rounds,
    Trace,
    later_fold,
    later_folds,
    layout_of,
    received_residuals,
    residual_cost,
    respond,
    responding,
    response_of,
    send_predictor,
    send_residuals,
    standard_block,
    total_predictor,
    training,
)
from colonnade.models.sparse.select import COMPLETE_RECORDS, PathByRounds, PathOptions
from colonnade.papers.vfl_glm_vs.updates import block_update, holder_update
from colonnade.privacy.cost import Cost, Unbounded, compose

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Damping = Literal["sharing", "paper"]
Weights = Literal["lasso", "approximate", "hold"]
Since = Literal["nothing", "solution", "round"]
"""Where a round starts: from zero, from the last solution (after a round that was given up), or from the last round."""

SOLVED = "residuals at a solution"
"""The tag of what lets a party show its coefficients."""
BALANCED_ROUNDS = 150
"""Rounds of one solve in which phi may still change: ADMM converges for a phi that rests."""


@method_class
class VFLGLMVS(PathOptions):
    """Choose the columns that explain a response in many rounds, by alternating updates of each party's block.

    The copula paper's ADMM. Coefficients stay with their party until a solution is reached. `Select` reaches the same
    optimum in far fewer rounds, or from moments without any vector over records.

    Returns
    -------
    `fit(federation)` gives a `Selection`, as `Select` does.

    Example
    -------
    >>> from colonnade.papers import VFLGLMVS
    >>> VFLGLMVS.as_printed(response="profit_growth").damping
    'paper'
    """

    name: ClassVar[str] = "vfl-glm-vs"

    damping: Annotated[
        Damping,
        Option("sharing: every party corrects its share of the residual, which converges; paper: all of it."),
    ] = "sharing"

    @classmethod
    def as_printed(cls, **changes: Any) -> Self:
        """The page: every party corrects the whole residual, predictors are sent as they are, both tolerances are
        0.001, SCAD with a = 3.7, lambda by BIC.

        The paper is silent on phi (here balanced, starting at 1 / n), on the lambdas and on how often the weights are
        updated (the defaults here), and on an intercept and the columns' scales (here fitted, and standardised). Its
        BIC adds df log n to the mean loss, which selects nearly nothing: -2 loglik is used.
        """
        printed = {"damping": "paper", "masking": "plain", "tolerance": 1e-3, "penalty": "scad", "criterion": "bic"}
        return cls(**{**printed, **changes})

    def missing_data(self) -> str:
        return COMPLETE_RECORDS

    def procedure(self, facts: PublicFacts, roster: Roster) -> Procedure[Selection]:
        def solver(layout: RoundLayout, reserved: Reserved) -> AdmmRounds:
            return AdmmRounds(self, layout, reserved)

        # Measured: hundreds of rounds a lambda; reserved with room to spare.
        return PathByRounds(self, facts, roster, solver, name="admm", rounds_each=1000)


# --- the coordinator's procedure ----------------------------------------------------------------------------------


class AdmmRounds:
    """The stages of ADMM."""

    notes = ()

    def __init__(self, method: VFLGLMVS, layout: RoundLayout, reserved: Reserved) -> None:
        self.layout = layout
        holder = [layout.response_party]
        rho = (1.0, number("n phi, as the response holder balances it", 1e-30, 1e30))
        lam = (1.0, number("a lambda of the path", 0.0, 1e30))
        since = ("nothing", one_of("from zero, from the last solution, or from the last round", get_args(Since)))
        weights = one_of("of the lasso, the penalty, or as held", get_args(Weights))
        numbered, fold = (0, counted(ROUND)), later_fold(layout)
        self.null = layout.stage(
            "start",
            respond,
            holder,
            most=reserved.paths,
            fixed={"intercepts": None},
            later={"number": numbered, "folds": later_folds(layout)},
            audience="coordinator, parties with covariates",
            recipients=layout.parties,
            discloses=RESIDUALS,
            reply_bytes=layout.mail_bytes,
        )
        self.blocks = layout.stage(
            "blocks",
            admm_block,
            layout.parties,
            most=reserved.rounds,
            fixed={"penalty": method.penalty, "damping": method.damping, "tolerance": method.tolerance},
            later={
                "rho": rho,
                "lam": lam,
                "since": since,
                "weights": ("lasso", weights),
            },
            discloses="which columns have coefficients",
            reply_bytes=layout.block_bytes,
        )
        self.predictors = layout.predictor_stage(admm_predictor, reserved.rounds, {})
        self.multipliers = layout.stage(
            "multipliers",
            admm_holder,
            holder,
            most=reserved.rounds,
            fixed={"tolerance": method.tolerance},
            later={"rho": rho, "since": since, "adapt": (True, flag("in the first rounds of a solve")), "fold": fold},
            audience="parties with covariates, coordinator",
            recipients=layout.parties,
            discloses="multipliers by record, to the parties",
            reply_bytes=layout.mail_bytes,
        )
        self.residuals = layout.stage(
            "residuals",
            admm_residuals,
            holder,
            most=reserved.solves,
            later={"number": numbered, "fold": fold},
            audience="parties with covariates, coordinator",
            recipients=layout.parties,
            discloses=RESIDUALS,
            reply_bytes=layout.mail_bytes,
        )
        self.solutions = layout.stage(
            "solutions",
            admm_settle,
            layout.parties,
            most=reserved.solves + reserved.paths,
            fixed={"penalty": method.penalty},
            later={"lam": lam, "start": (True, flag("before the first solution of a path"))},
            discloses="coefficients of a solution, and how optimal they are",
            reply_bytes=layout.block_bytes,
        )
        self.stages = (self.null, self.solutions, self.blocks, self.predictors, self.multipliers, self.residuals)

    def start(self, rounds: Rounds) -> Admm:
        return Admm(self, rounds, fold=None, largest=None)

    def left_out(self, rounds: Rounds, solver: WeightedLasso, trace: Trace) -> list[list[PathPoint]]:
        """One fold after another: parties keep the state of one path."""
        folds = range(self.layout.folds)
        return [trace(Admm(self, rounds, fold=fold, largest=solver.largest)) for fold in folds]


class Admm:
    """A `WeightedLasso` whose parties keep their coefficients until a solution is reached."""

    def __init__(self, stages: AdmmRounds, rounds: Rounds, *, fold: int | None, largest: float | None) -> None:
        self._stages, self._rounds, self._fold, self._rho = stages, rounds, fold, 1.0
        self._since: Since = "nothing"
        self._rested: tuple[Since, float] = ("nothing", 1.0)
        null = rounds.job.ask(stages.null, folds=[fold])[rounds.layout.response_party]
        self.null_loss, self.saturated = float(null["loss"][0]), float(null["saturated"][0])
        self._blocks: dict[str, dict[str, Any]] = self._settle(0.0, start=True)
        self.largest = max(block["violation"] for block in self._blocks.values()) if largest is None else largest

    def restart(self) -> None:
        self._since, self._rho = self._rested = ("nothing", 1.0)

    def lasso(self, lam: float) -> Solved:
        return self._solve("lasso", lam)

    def approximate(self, penalty: Penalty, lam: float) -> Solved:
        return self._solve("approximate", lam)

    def next_move(self, penalty: Penalty, lam: float) -> float:
        return float(max(block["moved"] for block in self._blocks.values()))

    def violation(self, penalty: Penalty, lam: float) -> float:
        return float(max(block["violation"] for block in self._blocks.values()))

    def _solve(self, weights: Weights, lam: float) -> Solved:
        rounds, stages, job = self._rounds, self._stages, self._rounds.job
        holder = rounds.layout.response_party
        for turn in range(rounds.limit):
            if turn:
                self._since = "round"
            rounds.next()
            updated = job.ask(
                stages.blocks,
                rho=self._rho,
                since=self._since,
                lam=float(lam),
                weights=weights if turn == 0 else "hold",
            )
            job.ask(stages.predictors, active=[self._open(updated).tolist()])
            answer = job.ask(
                stages.multipliers,
                rho=self._rho,
                since=self._since,
                adapt=turn < BALANCED_ROUNDS,
                fold=self._fold,
            )[holder]
            self._rho = float(answer["rho"])
            if answer["done"] and turn:
                break
        rounds.solve()
        value = job.ask(stages.residuals, fold=self._fold)[holder]
        self._blocks = self._settle(lam)
        self._since, self._rested = "round", ("solution", self._rho)
        coefficients = np.zeros(len(rounds.layout.features))
        for party, block in self._blocks.items():
            coefficients[rounds.layout.place(party)] = block["coefficients"]
        intercept = self._blocks[holder]["intercept"]
        return Solved(intercept, coefficients, float(value["loss"][0]), float(value["held_out"][0]))

    def _open(self, updated: dict[str, dict[str, Any]]) -> NDArray[np.bool_]:
        """The columns of a total that may be seen. If it may not, these updates are forgotten."""
        selected = np.zeros(len(self._rounds.layout.features), dtype=bool)
        for party, block in updated.items():
            selected[self._rounds.layout.place(party)] = block["selected"]
        try:
            self._rounds.open(selected)
        except Withheld:
            self._since, self._rho = self._rested
            raise
        return selected

    def _settle(self, lam: float, *, start: bool = False) -> dict[str, dict[str, Any]]:
        return self._rounds.job.ask(self._stages.solutions, lam=float(lam), start=start)


# --- the parties' steps -------------------------------------------------------------------------------------------

_designs: weakref.WeakKeyDictionary[Party, tuple[str, Matrix, Matrix]] = weakref.WeakKeyDictionary()


def _design(me: Party, model: RoundLayout) -> tuple[Matrix, Matrix]:
    """This block and its Gram matrix; the response holder's has the intercept as its first column. In memory only."""
    tag = f"{me.job} {model.to_dict()}"
    cached = _designs.get(me)
    if cached is None or cached[0] != tag:
        values = standard_block(me, model).values
        if me.name == model.response_party:
            values = np.column_stack([np.ones(len(values)), values])
        cached = (tag, values, values.T @ values)
        _designs[me] = cached
    return cached[1], cached[2]


def _own_weights(me: Party, model: RoundLayout, coefficients: Vector, penalty: Penalty, lam: float) -> Vector:
    """The penalty's slopes at this block's coefficients; none for the intercept."""
    slopes = penalty_slope(penalty, coefficients, lam)
    if me.name == model.response_party:
        slopes[0] = 0.0
    return slopes


@step(cost=Unbounded("coefficients", "which columns of this block have coefficients, in every round"))
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
    model = layout_of(me, layout)
    values, gram = _design(me, model)
    if since == "nothing":
        before, push = np.zeros(values.shape[1]), np.zeros(len(values))
    elif since == "solution":
        before, push = np.asarray(me.recall("admm solution")), np.asarray(me.recall("admm multipliers"))
    else:
        before, push = np.asarray(me.recall("admm coefficients")), _multipliers(me, model, len(values))
    if weights == "hold":
        slopes = np.asarray(me.recall("admm weights"))
    else:
        slopes = _own_weights(me, model, before, "lasso" if weights == "lasso" else penalty, lam)
        me.keep("admm weights", slopes)
    many = len(model.parties) if damping == "sharing" else 1
    fine = 1e-3 * tolerance * max(lam, 1e-9)
    after = block_update(values, gram, before, push, slopes, rho=rho, many=many, tolerance=fine)
    me.keep("admm coefficients", after)
    return Release({"selected": _selected(me, model, after)}, "which columns of this block have coefficients")


def _selected(me: Party, model: RoundLayout, coefficients: Vector) -> NDArray[np.bool_]:
    """Which columns have coefficients; the intercept is none."""
    return np.asarray(coefficients[1 if me.name == model.response_party else 0 :] != 0)


def _predictor_cost(public: Public, *, layout: dict[str, Any], number: int, active: list[list[bool]]) -> Cost:
    return layout_of(public, layout).predictor_cost(public)


@step(cost=_predictor_cost)
def admm_predictor(me: Party, *, layout: dict[str, Any], number: int, active: list[list[bool]]) -> Release:
    """The predictor of this block's update, masked, to the response holder."""
    model = layout_of(me, layout)
    predictor, selected = np.zeros(me.facts.n), np.zeros(0, dtype=bool)
    if me.name in model.parties:
        values, _ = _design(me, model)
        coefficients = np.asarray(me.recall("admm coefficients"))
        predictor[standard_block(me, model).used] = values @ coefficients
        selected = _selected(me, model, coefficients)
    send_predictor(me, model, predictor[None], selected[None], active, number)
    return Release(None, "nothing to the coordinator: the masked predictor travels sealed")


def _multipliers(me: Party, model: RoundLayout, size: int) -> Vector:
    """v of the last round: it comes with this request, or came with one in between and was kept."""
    received = me.received("multipliers")
    value = received.get(model.response_party)
    value = me.recall("admm multipliers") if value is None else value
    if np.shape(value) != (size,):
        raise SecureError(
            "the multipliers are of another length than the records used; check the response holder's installation."
        )
    return np.asarray(value, dtype=np.float64)


HOLDER_COST = compose([residual_cost(), Unbounded("loss", "norms of the residuals of ADMM, in every round")])


@step(cost=HOLDER_COST)
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
    model = responding(me, layout)
    (total,), y = total_predictor(me, model), response_of(me, model)
    train = training(model, len(y), fold)
    if since == "nothing":
        eta_before, u = np.zeros((2, len(y)))
    else:
        eta_before, u = np.asarray(me.recall("admm state" if since == "round" else "admm solution state"))
    turn = holder_update(
        model.family,
        total,
        y,
        train,
        eta_before,
        u,
        rho=rho,
        width=len(model.features),
        adapt=adapt,
        tolerance=tolerance,
    )
    me.keep("admm state", np.stack([turn.eta, turn.u]))
    me.keep("admm total", total)
    me.keep("admm done", turn.done)
    for party in model.parties:
        me.send(party, "multipliers", turn.push, each_round=True)
    value = {"done": turn.done, "rho": turn.rho, "primal": turn.primal, "dual": turn.dual}
    return Release(value, "norms of the residuals")


@step(cost=HOLDER_COST)
def admm_residuals(me: Party, *, layout: dict[str, Any], number: int, fold: int | None) -> Release:
    """The residuals at the parties' own total predictor, from which they check how optimal their blocks are.

    Only at a solution: what the parties then tell the coordinator is said to be that, and they answer nothing without
    these residuals.
    """
    model = responding(me, layout)
    if not me.recall("admm done"):
        raise UnsafeRequest("the last round of ADMM has not settled; residuals are sent at solutions only.")
    total, y = np.asarray(me.recall("admm total")), response_of(me, model)
    me.keep("admm solution state", np.asarray(me.recall("admm state")))
    train = training(model, len(y), fold)
    return send_residuals(me, model, y, total[None], train[None], np.zeros(1), tag=SOLVED)


@step(cost=COEFFICIENTS)
def admm_settle(me: Party, *, layout: dict[str, Any], lam: float, penalty: Penalty, start: bool) -> Release:
    """This block's coefficients (standard units), how far they are from optimal, and how LLA would move its weights."""
    model = layout_of(me, layout)
    values, _ = _design(me, model)
    if not start:
        me.keep("admm multipliers", _multipliers(me, model, len(values)))
    (residuals,) = received_residuals(me, model) if start else received_residuals(me, model, tag=SOLVED)
    gradient = values.T @ residuals
    coefficients = np.zeros(len(gradient)) if start else np.asarray(me.recall("admm coefficients"))
    if not start:
        me.keep("admm solution", coefficients)
    slopes = _own_weights(me, model, coefficients, penalty, lam)
    weights = slopes if start else np.asarray(me.recall("admm weights"))
    first = 1 if me.name == model.response_party else 0
    judged = slice(first, None) if start else slice(None)  # at the start only the covariates are not optimal
    value = {
        "coefficients": coefficients[first:],
        "intercept": float(coefficients[0]) if first else 0.0,
        "violation": float(violations(gradient, coefficients, slopes)[judged].max(initial=0.0)),
        "moved": float(np.abs(slopes - weights).max(initial=0.0)),
    }
    return Release(value, "coefficients of this block, and how optimal they are")
