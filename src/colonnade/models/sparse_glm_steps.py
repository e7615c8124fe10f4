"""What the parties do for a sparse GLM: agree on the records, send masked predictors, return gradients.

Columns are standardised where they are: each party centres its features and divides them by their standard deviation
over the records used, which are those that every party has. A round is

    every member   masks its block's predictor X_k b_k and sends it, sealed, to the response holder
    the holder     adds them up: the total predictor eta; sends y - psi'(eta), sealed, to the parties
    each party     returns X_k'(psi'(eta) - y) / n to the coordinator

The coordinator relays sealed mail and sees gradients, the loss and coefficients; no vector over records.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import NotEstimable, PartyLost, SecureError, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.models.sparse_glm_layout import LARGEST_PREDICTOR, SparseLayout
from colonnade.models.sparse_path import curvature_of, link, mean_response, saturated_loss, unit_loss
from colonnade.privacy.cost import Cost, Free, Unbounded, compose
from colonnade.statistics.features import design
from colonnade.statistics.joint import once
from colonnade.statistics.secure_sum import masked_release, unmask

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

FEWEST = 2
"""Records that a fit needs at the very least."""


# --- a party's block ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StandardBlock:
    """One party's features over the records used, standardised; a feature that does not vary is a column of zeros."""

    used: NDArray[np.bool_]
    values: Matrix
    centre: Vector
    spread: Vector

    @classmethod
    def of(cls, used: NDArray[np.bool_], raw: Matrix) -> StandardBlock:
        inside = raw[used]
        centre = inside.mean(axis=0)
        inside -= centre
        spread = np.sqrt(np.mean(inside**2, axis=0))
        # Centring leaves rounding errors in a constant column, which are no variation.
        spread[spread <= 1e-12 * np.maximum(np.abs(centre), 1e-3)] = 0.0
        inside *= np.where(spread > 0, 1.0 / np.where(spread > 0, spread, 1.0), 0.0)
        return cls(used, inside, centre, spread)

    @property
    def n(self) -> int:
        return len(self.values)

    @cached_property
    def gram(self) -> Matrix:
        return np.asarray(self.values.T @ self.values)

    def predictor(self, coefficients: Vector) -> Vector:
        """Over the whole cohort, zero for records that are not used."""
        whole = np.zeros(len(self.used))
        whole[self.used] = self.values @ coefficients
        return whole

    def own_units(self, coefficients: Matrix) -> tuple[Matrix, Vector]:
        """Coefficients of the features in [-1, 1], and what they take from the intercept; one row for each lambda."""
        inverse = np.where(self.spread > 0, 1.0 / np.where(self.spread > 0, self.spread, 1.0), 0.0)
        slopes = coefficients * inverse
        return slopes, slopes @ self.centre


_blocks: weakref.WeakKeyDictionary[Party, tuple[str, StandardBlock]] = weakref.WeakKeyDictionary()
"""The block of a party's current job. It follows from the data and what earlier steps kept, so it is only kept in
memory and made again after a restart."""


def standard_block(me: Party, known: SparseLayout) -> StandardBlock:
    tag = f"{me.job} {known.to_dict()}"
    cached = _blocks.get(me)
    if cached is None or cached[0] != tag:
        used = np.unpackbits(me.recall("records used"), count=me.facts.n).astype(bool)
        cached = (tag, StandardBlock.of(used, design(me, known.features)))
        _blocks[me] = cached
    return cached[1]


def layout_of(public: Public | Party, plain: dict[str, Any]) -> SparseLayout:
    return SparseLayout.from_dict(public.facts, public.roster, plain)


# --- which records ------------------------------------------------------------------------------------------------


def _presence_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    if public.party not in layout_of(public, layout).parties:
        return Free("this member has no columns in the model")
    return Unbounded("presence", "which pseudonymous records a party has, to the other parties", audience="parties")


@step(cost=_presence_cost)
def show_presence(me: Party, *, layout: dict[str, Any]) -> Release:
    """Tell the other parties of the model which records of the cohort are here."""
    known = layout_of(me, layout)
    for party in known.parties:
        me.send(party, "presence", np.packbits(me.present))
    return Release(None, "nothing to the coordinator: the masks travel sealed")


def _agree_cost(public: Public, *, layout: dict[str, Any]) -> Cost:
    return Unbounded("record-count", "how many records every party has", joint=f"{public.job} record count")


@step(cost=_agree_cost)
def agree_records(me: Party, *, layout: dict[str, Any]) -> Release:
    """The records used: those that every party of the model has. Returns their number."""
    known = layout_of(me, layout)
    got = me.received("presence")
    missing = [party for party in known.parties if party not in got]
    if missing:
        raise PartyLost(f"{', '.join(missing)} did not say which records they have; resume when they are back.")
    together = np.bitwise_and.reduce([np.asarray(got[party], dtype=np.uint8) for party in known.parties])
    me.keep("records used", together)
    return Release(int(np.unpackbits(together, count=me.facts.n).sum()), "the number of records that all parties have")


# --- a round ------------------------------------------------------------------------------------------------------


def send_predictor(me: Party, known: SparseLayout, values: Vector | None, number: int) -> None:
    """Send a predictor to the holder: masked, or as it is. A member without a block masks zeros."""
    mine = np.zeros(me.facts.n) if values is None else values
    if not np.abs(mine).max(initial=0.0) < LARGEST_PREDICTOR:
        raise NotEstimable("a linear predictor left its range: the fit does not settle; take larger lambdas (ratio=).")
    if known.exchange == "masked":
        me.send(known.holder, "predictor", masked_release(me, mine, shape=known.total, round=number))
    else:
        me.send(known.holder, "predictor", mine)


def total_predictor(me: Party, known: SparseLayout) -> Vector:
    """What the holder adds up, over the records used."""
    got = me.received("predictor")
    missing = [member for member in known.senders if member not in got]
    if missing:
        raise PartyLost(f"no predictor came from {', '.join(missing)}; resume when they are back.")
    shapes = {np.shape(got[member]) for member in known.senders}
    if shapes != {(me.facts.n,)}:
        raise SecureError("a member sent a predictor of another length than the cohort; check its installation.")
    if known.exchange == "masked":
        total = unmask({member: got[member] for member in known.senders}, shape=known.total, roster=me.roster)
    else:
        total = np.sum([np.asarray(got[member], dtype=np.float64) for member in known.senders], axis=0)
    return np.asarray(total[standard_block(me, known).used])


def response_of(me: Party, known: SparseLayout) -> Vector:
    """The response over the records used, in the units that are computed with."""
    centre, half = known.scale
    values = me.column(known.response)[standard_block(me, known).used].astype(np.float64)
    return np.asarray((values - centre) / half)


def fold_of(known: SparseLayout, size: int) -> NDArray[np.int64]:
    """Which fold each record used is in: as even as can be, in an order that is public and independent of data."""
    order = np.random.default_rng(20_100_131).permutation(size)  # public: hides nothing, protects nobody
    return np.asarray(np.argsort(order) % max(known.folds, 1))


def training(known: SparseLayout, size: int, fold: int | None) -> NDArray[np.bool_]:
    if fold is None:
        return np.ones(size, dtype=bool)
    if not 0 <= fold < known.folds:
        raise UnsafeRequest(f"this job has no fold {fold}.")
    return np.asarray(fold_of(known, size) != fold)


def _predict_cost(public: Public, *, layout: dict[str, Any], number: int, coefficients: list[float]) -> Cost:
    known = layout_of(public, layout)
    if public.party not in known.parties:
        return Free("this member masks zeros, and no data")
    return known.predictor_cost(public.job)


@step(cost=_predict_cost)
def predict_block(me: Party, *, layout: dict[str, Any], number: int, coefficients: list[float]) -> Release:
    """This block's linear predictor for the given coefficients (standard units), masked, to the response holder."""
    known = layout_of(me, layout)
    values = None
    if me.name in known.parties:
        values = standard_block(me, known).predictor(np.array(coefficients, dtype=np.float64))
    send_predictor(me, known, values, number)
    return Release(None, "nothing to the coordinator: the masked predictor travels sealed")


def _respond_cost(
    public: Public, *, layout: dict[str, Any], number: int, intercept: float | None, fold: int | None
) -> Cost:
    known = layout_of(public, layout)
    loss = Unbounded("loss", "the mean loss over the records, in every round")
    return compose([loss, known.residual_cost()])


@step(cost=_respond_cost)
def respond(me: Party, *, layout: dict[str, Any], number: int, intercept: float | None, fold: int | None) -> Release:
    """The holder: residuals at the total predictor to every party, scalars to the coordinator.

    Without an intercept, the model without covariates is fitted first. Held-out records have no residual.
    """
    known = layout_of(me, layout)
    if me.name != known.holder:
        raise UnsafeRequest(f"{me.name!r} does not hold the response.")
    once(me, f"residuals {number}")
    y = response_of(me, known)
    train = training(known, len(y), fold)
    if train.sum() < FEWEST or np.ptp(y[train]) == 0:
        raise NotEstimable("the response does not vary in the records used; check that the parties' records overlap.")
    start = link(known.family, float(y[train].mean())) if intercept is None else float(intercept)
    eta = start + (np.zeros(len(y)) if intercept is None else total_predictor(me, known))
    return send_residuals(me, known, y, eta, train, start)


def send_residuals(
    me: Party, known: SparseLayout, y: Vector, eta: Vector, train: NDArray[np.bool_], intercept: float
) -> Release:
    """(psi'(eta) - y) / n to every party, and scalars to the coordinator."""
    residual = np.where(train, (mean_response(known.family, eta) - y) / train.sum(), 0.0)
    for party in known.parties:
        me.send(party, "residuals", residual)
    losses = unit_loss(known.family, eta, y)
    value = {
        "loss": float(losses[train].mean()),
        "held_out": 0.0 if train.all() else float(losses[~train].mean()),
        "gradient": float(residual.sum()),
        "curvature": float(curvature_of(known.family, eta)[train].mean()),
        "intercept": intercept,
        "saturated": saturated_loss(known.family, y[train]),
    }
    return Release(value, "mean loss, mean residual and mean curvature over the records")


def residuals_here(me: Party, known: SparseLayout) -> Vector:
    """The holder's residuals of this round, over the records used."""
    got = me.received("residuals")
    if known.holder not in got:
        raise PartyLost(f"the residuals of {known.holder!r} have not come; resume when it is back.")
    residual = np.asarray(got[known.holder], dtype=np.float64)
    if residual.shape != (standard_block(me, known).n,):
        raise SecureError("the residuals are of another length than the records used; check the holder's installation.")
    return residual


def _gradient_cost(public: Public, *, layout: dict[str, Any], number: int) -> Cost:
    return Unbounded("gradients", "one exact sum over records for each column, in every round")


@step(cost=_gradient_cost)
def block_gradient(me: Party, *, layout: dict[str, Any], number: int) -> Release:
    """X_k'(psi'(eta) - y) / n."""
    known = layout_of(me, layout)
    gradient = standard_block(me, known).values.T @ residuals_here(me, known)
    return Release(gradient, "the gradient of the mean loss in this block's coefficients")


# --- the end ------------------------------------------------------------------------------------------------------


def _units_cost(public: Public, *, layout: dict[str, Any], path: list[list[float]]) -> Cost:
    return Unbounded("coefficients", "the fitted coefficients, for every lambda of the path")


@step(cost=_units_cost)
def block_units(me: Party, *, layout: dict[str, Any], path: list[list[float]]) -> Release:
    """Coefficients from standard units to those of the features, and their part of the intercept."""
    block = standard_block(me, layout_of(me, layout))
    slopes, offsets = block.own_units(np.array(path, dtype=np.float64).reshape(len(path), block.values.shape[1]))
    return Release({"slopes": slopes, "offsets": offsets}, "the coefficients in the units of the columns")
