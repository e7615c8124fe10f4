"""`PCA`: principal components of the columns of all parties, from one noisy Gram matrix (the SQM paper, 5.1).

The parties quantise their columns and share them; the committee opens X'X with every member's Skellam noise; the
coordinator takes the leading eigenvectors. Everything after the opening is post-processing and costs nothing.
The claim is in `claim.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from colonnade.data.column import Column
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Method, Procedure, Result, method_class
from colonnade.federation.options import (
    ColumnNames,
    Delta,
    Gamma,
    Memory,
    Option,
    OptionalEpsilon,
    Presence,
    RelationOption,
    Tile,
    Verify,
    ViewOption,
)
from colonnade.federation.roster import Roster
from colonnade.models.matrix import (
    ClipOption,
    columns_of,
    empty_text,
    feature_matrix,
    forecast_moments,
    missing_blocks,
    moment_views,
    noise_text,
    norm_bounds,
    second_moments,
)
from colonnade.statistics.features import Feature
from colonnade.statistics.joint import check_budget
from colonnade.statistics.moments import MomentComputation, Moments, MomentsResult
from colonnade.view.blocks import Section, Table, Text, View

_DENSE = 1500
"""Up to this width all eigenvectors are as cheap as a few."""


@method_class
class PCA(Method["PrincipalComponents"]):
    """Find the directions in which the records of all parties vary most, from one matrix of products.

    Features are the columns scaled to [-1, 1] by their declared domains.

    Returns
    -------
    `fit(federation)` gives `PrincipalComponents` with scikit-learn's attributes, `transform` and `captured_variance`.

    Example
    -------
    >>> components = co.PCA(n_components=1, epsilon=8.0, columns=("capital", "investors", "changes")).fit(federation)
    >>> components.components_.shape
    (1, 3)
    """

    name: ClassVar[str] = "pca"
    rests_on: ClassVar[tuple[str, ...]] = ("moments",)

    n_components: Annotated[int, Option("How many components.", short="-k", least=1, most=10_000)] = 5
    epsilon: OptionalEpsilon = 1.0
    delta: Delta = 1e-6
    gamma: Gamma = 2**12
    columns: ColumnNames = None
    clip: ClipOption = None
    centre: Annotated[bool, Option("Subtract the means, which are then released too.")] = False
    presence: Annotated[
        Presence,
        Option(
            "ignore takes an absent block as zeros; secret and known average each product over the records that have"
            " both blocks, and known shows the share holders who has which record."
        ),
    ] = "ignore"
    view: ViewOption = "client"
    relation: RelationOption = "zero-out"
    tile: Tile = 2048
    memory: Memory = None
    verify: Verify = True

    def check(self) -> None:
        check_budget(self.epsilon, self.delta)

    def missing_data(self) -> str:
        return missing_blocks(self.presence)

    def procedure(self, facts: PublicFacts, roster: Roster) -> ComponentsOfMoments:
        return ComponentsOfMoments(self, facts, roster)


class ComponentsOfMoments(Procedure["PrincipalComponents"]):
    """One computation of moments, then the leading eigenvectors."""

    def __init__(self, method: PCA, facts: PublicFacts, roster: Roster) -> None:
        self.method = method
        self.layout = Moments(
            epsilon=method.epsilon,
            delta=method.delta,
            columns=method.columns,
            presence=method.presence,
            gamma=method.gamma,
            clip=norm_bounds(facts, method.columns, method.clip),
            constant=method.centre or method.presence != "ignore",
            view=method.view,
            relation=method.relation,
            tile=method.tile,
            memory=method.memory,
            verify=method.verify,
        ).layout(facts, roster)
        width = len(self.layout.features)
        if method.n_components > width:
            raise BadArguments(f"{width} features have no {method.n_components} components; ask for fewer.")
        self.moments = MomentComputation(self.layout, method.view)
        self.stages = self.moments.stages
        self.notes = (
            *forecast_moments(self.layout, method.epsilon),
            *self.moments.notes,
            *moment_views(self.layout, view=method.view, delta=method.delta),
        )

    def run(self, job: Job) -> PrincipalComponents:
        moments = self.moments.run(job)
        return principal_components(
            moments,
            n_components=self.method.n_components,
            centre=self.method.centre,
            columns=columns_of(job.facts, moments.features),
            overwrite=True,
        )


def principal_components(
    moments: MomentsResult,
    *,
    n_components: int,
    centre: bool = False,
    columns: Mapping[str, Column] | None = None,
    overwrite: bool = False,
) -> PrincipalComponents:
    """The leading eigenvectors of the second moments, or of the covariance. With `overwrite` they are found in the
    place of the Gram matrix, which for thousands of columns is most of the memory; the moments are gone then."""
    empty = moments.empty_cells
    second = second_moments(moments, overwrite=overwrite)
    names = tuple(feature.name for feature in moments.features)
    first = len(second.names) - len(names)  # after the constant, if there is one
    matrix, mean = second.matrix[first:, first:], np.zeros(len(names))
    if centre:
        mean = second.matrix[0, first:].copy()
        for row, value in zip(matrix, mean, strict=True):
            row -= value * mean
    variance, vectors = leading_eigenvectors(matrix, n_components)
    return PrincipalComponents(
        components_=vectors.T,
        explained_variance_=variance,
        mean_=mean,
        features=moments.features,
        columns=columns or {},
        n=moments.n,
        noise_sd_=moments.noise_sd,
        empty_cells=empty,
        simulated=moments.simulated,
    )


def leading_eigenvectors(matrix: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The largest eigenvalues, downwards, and their eigenvectors as columns, each with its largest entry positive."""
    width = len(matrix)
    values: NDArray[np.float64] | None = None
    if width > _DENSE and count < width // 20:
        try:
            start = np.random.default_rng(0).normal(size=width)  # any start but a special one; protects nobody
            values, vectors = eigsh(matrix, k=count, which="LA", v0=start, ncv=max(8 * count, 60), tol=1e-6)
        except ArpackNoConvergence:
            values = None
    if values is None:
        values, vectors = eigh(matrix, subset_by_index=(width - count, width - 1))
    order = np.argsort(values)[::-1]
    values, vectors = values[order], vectors[:, order]
    largest = np.argmax(np.abs(vectors), axis=0)
    return values, vectors * np.sign(vectors[largest, np.arange(count)])


# --- the result -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class PrincipalComponents(Result):
    """`components_` are orthonormal rows in the space of the features, `explained_variance_` the variance of the noisy
    matrix along each, per record; `noise_sd_` is the noise of one entry of the Gram matrix."""

    kind: ClassVar[str] = "pca"

    components_: NDArray[np.float64]
    explained_variance_: NDArray[np.float64]
    mean_: NDArray[np.float64]
    features: tuple[Feature, ...]
    columns: Mapping[str, Column]
    n: int
    noise_sd_: float
    simulated: bool
    empty_cells: Mapping[str, float] = field(default_factory=dict)
    """The noisy number of empty cells of each column with a mask of its own."""

    @property
    def feature_names_(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.features)

    def transform(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        """Scores of rows: a frame of the fitted columns, or an array of the features."""
        return (feature_matrix(rows, self.features, self.columns) - self.mean_) @ self.components_.T

    def captured_variance(self, rows: pd.DataFrame | NDArray[Any]) -> float:
        """|X V|^2 / |X|^2 for rows X (centred if the model is)."""
        centred = feature_matrix(rows, self.features, self.columns) - self.mean_
        return float(np.sum((centred @ self.components_.T) ** 2) / np.sum(centred**2))

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "feature_names": list(self.feature_names_),
            "components": self.components_.tolist(),
            "explained_variance": self.explained_variance_.tolist(),
            "mean": self.mean_.tolist(),
            "noise_sd": self.noise_sd_,
            **({"empty cells": dict(self.empty_cells)} if self.empty_cells else {}),
            "simulated": self.simulated,
        }

    def view(self) -> View:
        title = f"{len(self.components_)} principal components of {len(self.features)} features"
        head, rows = ("component", "variance", "mostly"), self._rows()
        noise = f"{noise_text(self.n, self.noise_sd_)} {empty_text(self.empty_cells, self.noise_sd_)}".rstrip()
        return View(
            title=title,
            quality=self._quality(),
            answer=(
                Table(title="Principal components", head=head, rows=rows, numeric=(1,)),
                Text(
                    text="The variance is that of the noisy matrix, per record, in units of the features, which lie"
                    " between -1 and 1. Noise makes it larger than it is. result.json has all weights.",
                    style="soft",
                ),
            ),
            sections=(Section(title="Behind the components", blocks=(Text(text=noise),)),),
            terminal=(Table(title=title, head=head, rows=rows, numeric=(1,)),),
        )

    def _rows(self) -> tuple[tuple[str, str, str], ...]:
        """One row a component: its noisy variance and the features that weigh most."""
        rows = []
        for number, (variance, weights) in enumerate(zip(self.explained_variance_, self.components_, strict=True), 1):
            heaviest = sorted(zip(self.feature_names_, weights, strict=True), key=lambda pair: -abs(pair[1]))[:4]
            mostly = ", ".join(f"{name} {weight:+.2f}" for name, weight in heaviest)
            rows.append((str(number), f"{variance:.4g}", mostly))
        return tuple(rows)

    def _quality(self) -> str:
        """The largest eigenvalue of a symmetric noise matrix is near 2 sd sqrt(d) (Wigner)."""
        if not self.noise_sd_:
            return "No noise was added: the components are those of the records."
        edge = 2 * self.noise_sd_ * math.sqrt(len(self.features)) / self.n
        above = int(np.sum(self.explained_variance_ > edge))
        return (
            f"Noise alone would show components of variance up to about {edge:.2g}. {above} of"
            f" {len(self.components_)} lie above."
        )
