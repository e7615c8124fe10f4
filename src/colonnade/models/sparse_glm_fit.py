"""From a path in standard units to a result: the criterion, and the columns' own units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.errors import NotEstimable, UnsafeRequest
from colonnade.federation.job import Job
from colonnade.models.matrix import columns_of
from colonnade.models.penalties import Penalty
from colonnade.models.sparse_glm_result import Criterion, SparseGLMResult, Via
from colonnade.models.sparse_path import Family, PathPoint, Traced
from colonnade.statistics.features import Feature, features

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """A path, with slopes and intercepts in the units of the features; `scale` is the response's (centre, half)."""

    points: list[PathPoint]
    scores: Vector
    chosen: int
    slopes: Matrix
    intercepts: Vector
    null_loss: float
    saturated: float
    largest: float
    response: str
    scale: tuple[float, float]
    features: tuple[Feature, ...]
    nobs: int
    rounds: int
    notes: tuple[str, ...]


def scores_by_bic(family: Family, points: Sequence[PathPoint], *, n: float, half: float) -> Vector:
    """-2 loglik + df log n, up to a constant; a gaussian's variance is profiled out: n log(RSS / n).

    The paper prints the mean loss + df log n, which selects nearly nothing.
    """
    loss = np.array([one.loss for one in points])
    fit = n * np.log(np.maximum(2.0 * loss, 1e-300) * half**2) if family == "gaussian" else 2.0 * n * loss
    return np.asarray(fit + np.log(max(n, 1.0)) * np.array([1 + one.df for one in points]))


def scores_by_folds(folds: Sequence[Sequence[PathPoint]], *, lambdas: Sequence[float], half: float) -> Vector:
    """The mean loss over held-out records; none for a lambda that one of the folds has no solution for."""
    place = {lam: at for at, lam in enumerate(lambdas)}
    loss = np.full((len(folds), len(place)), np.nan)
    for row, points in zip(loss, folds, strict=True):
        for one in points:
            row[place[one.lam]] = one.held_out
    return np.asarray(np.where(np.isnan(loss).any(axis=0), np.nan, loss.mean(axis=0)) * half**2)


def best(scores: Vector) -> int:
    if np.isnan(scores).all():
        raise NotEstimable("no lambda has a solution in all folds; use criterion='bic', or fewer folds.")
    return int(np.nanargmin(scores))


def withheld_note(traced: Traced, *, holder: str, half: float) -> tuple[str, ...]:
    """What the reader of a path must know about the solutions that it lacks; refused if it has no others."""
    if not traced.withheld:
        return ()
    whose = " or ".join(sorted({repr(party) for party in traced.withheld.values()}))
    cures = (
        "use via='moments' (gaussian, or binomial to second order), which shows no predictor, or exchange='plain',"
        " which shows each party's, if they allow 'party-predictor'"
    )
    if not any(one.df for one in traced.points):
        raise UnsafeRequest(
            f"at every lambda the total predictor would show {holder!r} a predictor of {whose} alone, which"
            f" exchange='masked' withholds; take smaller lambdas or columns of more parties, or {cures}."
        )
    lambdas = half * np.array(list(traced.withheld))
    return (
        f"Withheld: the solutions at {len(lambdas)} lambda(s) between {lambdas.max():.4g} and {lambdas.min():.4g}, as"
        f" on the way there the total predictor would have shown {holder!r} a predictor of {whose} alone. One of the"
        f" others was chosen: if columns of one party suffice, it has too many. To see them all, {cures}.",
    )


def assemble(
    job: Job, fitted: Fitted, *, family: Family, penalty: Penalty, via: Via, criterion: Criterion
) -> SparseGLMResult:
    """value = centre + half * feature, for covariates and for a gaussian response: all affine, so exact."""
    centre, half = fitted.scale
    middle = np.array([one.centre for one in fitted.features])
    width = np.array([one.half for one in fitted.features])
    slopes = half * fitted.slopes / width
    consts = centre + half * fitted.intercepts - slopes @ middle
    names = ["const", *(one.name for one in fitted.features)]
    lambdas = np.array([one.lam for one in fitted.points])
    leaves = dict.fromkeys(leaf for cost in job.plan.costs() for leaf in cost.leaves() if leaf.unbounded)
    released = [f"{leaf['name']}: {leaf['discloses']}; seen by: {leaf.audience}" for leaf in leaves]
    loss = np.array([one.loss for one in fitted.points])
    declared = job.facts.column(fitted.response)
    # Predictions take values from the whole declared range, also where the moments were of a narrower one.
    domain = {one.name: one for one in features(job.facts, [one.column for one in fitted.features])}
    notes = [
        "Lambda and the penalty belong to covariates with standard deviation 1 over the records used. There are no"
        " standard errors: after selection, ordinary ones would be too small."
    ]
    if penalty != "lasso":
        notes.append(f"{penalty.upper()}: the stationary point that local linear approximation reaches from the lasso.")
    if job.simulated:
        notes.append("Simulation: a seed decided the randomness, which protects nobody.")
    return SparseGLMResult(
        response=fitted.response,
        family=family,
        penalty=penalty,
        via=via,
        criterion=criterion,
        path=pd.DataFrame(
            np.column_stack([consts, slopes]), columns=names, index=pd.Index(lambdas * half, name="lambda")
        ),
        lambdas=lambdas * half,
        scores=fitted.scores,
        chosen=fitted.chosen,
        objective=np.array([one.objective for one in fitted.points]) * half**2,
        explained=(fitted.null_loss - loss) / (fitted.null_loss - fitted.saturated),
        residuals=np.array([one.residual for one in fitted.points]),
        lla_steps=np.array([one.lla_steps for one in fitted.points], dtype=np.int64),
        nobs=fitted.nobs,
        cohort=job.facts.n,
        rounds=fitted.rounds,
        features=tuple(domain[one.name] for one in fitted.features),
        columns=columns_of(job.facts, fitted.features),
        classes=tuple(declared.categories or ()) if family == "binomial" else (),
        notes=(*notes, *fitted.notes),
        released=tuple(dict.fromkeys(released)),
        cost=str(job.plan.total()),
        simulated=job.simulated,
    )
