"""`SQMPCA`: principal components of the columns of all parties, from one noisy Gram matrix (the SQM paper, 5.1).

The parties quantise their columns and share them; the committee opens X'X with everybody's Skellam noise; the
coordinator takes the leading eigenvectors. Everything after the opening is post-processing and costs nothing.
The claim is in `claim.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from colonnade.data.column import Column
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.models.matrix import (
    Clip,
    clip_option,
    columns_of,
    feature_matrix,
    moment_views,
    norm_bounds,
    second_moments,
)
from colonnade.privacy.cost import Relation
from colonnade.statistics.features import Feature
from colonnade.statistics.joint import View
from colonnade.statistics.moments import MomentsLayout, Presence
from colonnade.statistics.moments import MomentsResult, Moments, compute_moments, moment_notes, moment_phases

if TYPE_CHECKING:
    from colonnade.federation.coordinator import Federation

_DENSE = 1500
"""Up to this width all eigenvectors are as cheap as a few."""


@dataclass(kw_only=True)
class SQMPCA:
    """Principal components with differential privacy and no trusted party.

    Parameters
    ----------
    n_components : how many.
    epsilon, delta : a person's total. `epsilon=None` computes exactly: every party must allow "exact-moments".
    gamma : the scale of quantisation; from 2^12 on rounding hardly costs anything.
    columns : which columns; all by default. Features are scaled to [-1, 1] by their declared domains.
    clip : {party: norm} of its part of a row, below the root of its number of columns; or a share of those roots, for
        all parties. Less noise, some bias.
    centre : subtract the means (they are released with the products). The paper does not, and neither does the default.
    presence : "ignore" takes an absent block as zeros; "secret" and "known" average each product over the records
        that have both blocks.
    view, relation : what the noise is calibrated for; the plan prints the others too.
    block : the width of the tiles in which the matrix is computed.
    memory : the most memory, in MB, that the coordinator or a party may use; less memory takes more rounds. Refused
        in the plan if the job cannot be done with it.

    Attributes
    ----------
    components_ (n_components x features, orthonormal rows), explained_variance_ (of the noisy matrix, per record),
    mean_, feature_names_, noise_sd_ (of one entry of the Gram matrix), result_.

    Returns
    -------
    `fit(federation)` gives the fitted model itself, as in scikit-learn.

    Example
    -------
    >>> model = co.SQMPCA(n_components=1, epsilon=8.0, columns=("capital", "investors", "changes")).fit(federation)
    >>> model.components_.shape
    (1, 3)
    """

    name: ClassVar[str] = "pca"

    n_components: int = 5
    epsilon: float | None = 1.0
    delta: float = 1e-6
    gamma: int = 2**12
    columns: tuple[str, ...] | None = None
    clip: Clip | None = None
    centre: bool = False
    presence: Presence = "ignore"
    view: View = "client"
    relation: Relation = "zero-out"
    block: int = 2048
    memory: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.n_components, bool) or not isinstance(self.n_components, int) or self.n_components < 1:
            raise BadArguments(f"n_components must be a whole number of at least 1, not {self.n_components!r}.")
        self._moments({})

    def _moments(self, clip: Mapping[str, float]) -> Moments:
        return Moments(
            epsilon=self.epsilon,
            delta=self.delta,
            columns=None if self.columns is None else tuple(self.columns),
            presence=self.presence,
            gamma=self.gamma,
            clip=clip,
            constant=self.centre or self.presence != "ignore",
            view=self.view,
            relation=self.relation,
            tile=self.block,
            memory=self.memory,
        )

    # --- the coordinator's procedure ----------------------------------------------------------------------

    def fit(self, federation: Federation) -> Self:
        """Run it; the run folder is in `federation.runs`."""
        self._take(federation.run(self)[0])
        return self

    def layout(self, facts: PublicFacts, roster: Roster) -> MomentsLayout:
        """The public shape of the Gram matrix, with its noise."""
        made = self._moments(norm_bounds(facts, self.columns, self.clip)).layout(facts, roster)
        if self.n_components > len(made.features):
            raise BadArguments(f"{len(made.features)} features have no {self.n_components} components; ask for fewer.")
        return made

    def plan(self, facts: PublicFacts, roster: Roster) -> Plan:
        layout = self.layout(facts, roster)
        return Plan(
            method=self.name,
            options=self.options(),
            stages=tuple(moment_phases(layout, self.view)),
            notes=(
                *moment_notes(layout, self.view),
                *moment_views(layout, view=self.view, delta=self.delta),
            ),
            delta=self.delta,
        )

    def execute(self, job: Job) -> PrincipalComponents:
        layout = self.layout(job.facts, job.roster)
        moments = compute_moments(job, layout, self.view)
        return principal_components(
            moments,
            n_components=self.n_components,
            centre=self.centre,
            columns=columns_of(job.facts, moments.features),
            overwrite=True,
        )

    # --- as data ------------------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        return {
            "n_components": self.n_components,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "gamma": self.gamma,
            "columns": None if self.columns is None else list(self.columns),
            "clip": clip_option(self.clip),
            "centre": self.centre,
            "presence": self.presence,
            "view": self.view,
            "relation": self.relation,
            "block": self.block,
            "memory": self.memory,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        columns = options["columns"]
        return cls(**{**options, "columns": None if columns is None else tuple(columns)})

    # --- a fitted model -----------------------------------------------------------------------------------

    result_: PrincipalComponents | None = field(default=None, init=False, repr=False)

    def _take(self, result: PrincipalComponents) -> None:
        self.result_ = result
        self.components_ = result.components
        self.explained_variance_ = result.explained_variance
        self.mean_ = result.mean
        self.feature_names_ = result.feature_names
        self.noise_sd_ = result.noise_sd

    def _fitted(self) -> PrincipalComponents:
        if self.result_ is None:
            raise BadArguments("this SQMPCA is not fitted yet; call fit(federation) first.")
        return self.result_

    def transform(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        """Scores of rows: a frame of the fitted columns, or an array of the features."""
        return self._fitted().transform(rows)

    def captured_variance(self, rows: pd.DataFrame | NDArray[Any]) -> float:
        """|X V|^2 / |X|^2 for rows X (centred if the model is)."""
        return self._fitted().captured_variance(rows)


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
    second = second_moments(moments, overwrite=overwrite)
    names = tuple(feature.name for feature in moments.features)
    first = len(second.names) - len(names)  # after the constant, if there is one
    matrix, mean = second.matrix[first:, first:], np.zeros(len(names))
    if centre:
        mean = second.matrix[0, first:].copy()
        for row, one in zip(matrix, mean, strict=True):
            row -= one * mean
    variance, vectors = leading_eigenvectors(matrix, n_components)
    return PrincipalComponents(
        components=vectors.T,
        explained_variance=variance,
        mean=mean,
        features=moments.features,
        columns=columns or {},
        n=moments.n,
        noise_sd=moments.noise_sd,
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


@dataclass(frozen=True, kw_only=True)
class PrincipalComponents:
    """Orthonormal rows `components` in the space of the features, with the noisy variance along each."""

    components: NDArray[np.float64]
    explained_variance: NDArray[np.float64]
    mean: NDArray[np.float64]
    features: tuple[Feature, ...]
    columns: Mapping[str, Column]
    n: int
    noise_sd: float
    simulated: bool

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(feature.name for feature in self.features)

    def transform(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        return (feature_matrix(rows, self.features, self.columns) - self.mean) @ self.components.T

    def captured_variance(self, rows: pd.DataFrame | NDArray[Any]) -> float:
        centred = feature_matrix(rows, self.features, self.columns) - self.mean
        return float(np.sum((centred @ self.components.T) ** 2) / np.sum(centred**2))

    def write(self, run: RunFolder) -> None:
        run.write_json(
            "result.json",
            {
                "kind": "pca",
                "n": self.n,
                "feature_names": list(self.feature_names),
                "components": self.components.tolist(),
                "explained_variance": self.explained_variance.tolist(),
                "mean": self.mean.tolist(),
                "noise_sd": self.noise_sd,
                "simulated": self.simulated,
            },
        )
