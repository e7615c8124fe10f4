"""`PCA`: principal components of the columns of all parties, from one noisy Gram matrix (the SQM paper, 5.1).

The parties quantise their columns and share them; the committee opens X'X with every member's Skellam noise; the
coordinator takes the leading eigenvectors. Everything after the opening is post-processing and costs nothing.
The claim is in `claim.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from colonnade.federation.method import Counted, Method, Procedure, Result, method_class
from colonnade.federation.options import (
    ColumnNames,
    Delta,
    Gamma,
    Memory,
    Option,
    OptionalEpsilon,
    RelationOption,
    Tile,
    Verify,
    ViewOption,
)
from colonnade.federation.roster import Roster
from colonnade.models.matrix import (
    ClipOption,
    PresenceOption,
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
from colonnade.statistics import forecast
from colonnade.statistics.features import Feature
from colonnade.statistics.joint import check_budget
from colonnade.statistics.moments import MomentComputation, Moments, MomentsResult
from colonnade.view.blocks import Figure, Figures, Section, Table, Text, View

_DENSE = 1500
"""Up to this width all eigenvectors are as cheap as a few."""
FEW_COMPONENTS = 3
"""Weights of so many are drawn on one scale; those of more as a heat map."""
MOST_FEATURES = 200
"""Rows of the table of weights."""


@method_class
class PCA(Method["PrincipalComponents"]):
    """Find the directions in which the records of all parties vary most, from one matrix of products.

    Features are the columns, mapped to [-1, 1] by their declared domains, and by default centred and divided by their
    standard deviations, all of which come from the same release: components of the correlation matrix. The SQM paper
    does neither, and takes absent blocks as zeros: `centre=False, scale=False, presence="ignore"`.

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
    centre: Annotated[bool, Option("Subtract the means, which are released with the products.")] = True
    scale: Annotated[
        bool,
        Option(
            "Divide each feature by its standard deviation, so that no column counts for its range.",
            only={"centre": (True,)},
        ),
    ] = True
    presence: PresenceOption = "secret"
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
            raise BadArguments(
                f"{width} features have no {method.n_components} components; ask for n_components={width} or fewer"
                f" (`--n-components {width}`)."
            )
        self.moments = MomentComputation(self.layout, method.view)
        self.stages = self.moments.stages
        self.notes = (
            *forecast_moments(self.layout, method.epsilon),
            *self._captured(),
            *self.moments.notes,
            *moment_views(self.layout, view=method.view, delta=method.delta),
        )

    def _captured(self) -> tuple[str, ...]:
        """What noise will take from the captured variance; columns are in [-1, 1], as `forecast_moments` assumes."""
        if not self.layout.mu:
            return ()
        captured = forecast.components(
            noise_sd=self.layout.noise_sd,
            n=self.layout.facts.n,
            deviation=0.5,
            features=len(self.layout.features),
            n_components=self.method.n_components,
        )
        return (captured,)

    def run(self, job: Job) -> PrincipalComponents:
        moments = self.moments.run(job)
        return principal_components(
            moments,
            n_components=self.method.n_components,
            centre=self.method.centre,
            scale=self.method.centre and self.method.scale,
            columns=columns_of(job.facts, moments.features),
            overwrite=True,
        )


def principal_components(
    moments: MomentsResult,
    *,
    n_components: int,
    centre: bool = False,
    scale: bool = False,
    columns: Mapping[str, Column] | None = None,
    overwrite: bool = False,
) -> PrincipalComponents:
    """The leading eigenvectors of the second moments, of the covariance, or of the correlations. With `overwrite` they
    are found in the place of the Gram matrix, which for thousands of columns is most of the memory; the moments are
    gone then.

    A noisy variance below twice its noise counts as that much: a feature that cannot be told from a constant is not
    blown up to the size of the others. A feature of variance 0 without noise is left as it is.
    """
    empty = moments.empty_cells
    second = second_moments(moments, overwrite=overwrite)
    names = tuple(feature.name for feature in moments.features)
    first = len(second.names) - len(names)  # after the constant, if there is one
    matrix, mean = second.matrix[first:, first:], np.zeros(len(names))
    if centre:
        mean = second.matrix[0, first:].copy()
        for row, value in zip(matrix, mean, strict=True):
            row -= value * mean
    deviation, hidden = np.ones(len(names)), np.zeros(len(names), dtype=bool)
    if scale:
        variances = np.diag(matrix)
        hidden = variances <= 2 * second.noise_sd
        deviation = np.sqrt(np.maximum(variances, 2 * second.noise_sd))
        deviation[deviation == 0] = 1.0
        for row, own in zip(matrix, deviation, strict=True):
            row /= own * deviation
    total = float(np.trace(matrix))
    variance, vectors = leading_eigenvectors(matrix, n_components)
    return PrincipalComponents(
        components_=vectors.T,
        explained_variance_=variance,
        explained_variance_ratio_=variance / total if total > 0 else np.full(len(variance), np.nan),
        ratio_sd_=ratio_sd(variance, vectors.T, total, second.noise_sd, deviation, scaled=scale),
        mean_=mean,
        scale_=deviation,
        hidden=tuple(name for name, below in zip(names, hidden, strict=True) if below and second.noise_sd),
        features=moments.features,
        columns=columns or {},
        n=moments.n,
        noise_sd_=moments.noise_sd,
        noise_floor_=noise_floor(second.noise_sd, deviation),
        empty_cells=empty,
        simulated=moments.simulated,
    )


def noise_floor(noise_sd: float, deviation: NDArray[np.float64]) -> float:
    """About the largest eigenvalue of noise alone: 2 max_i sqrt(sum_j s_ij^2) for a symmetric matrix of independent
    entries with standard deviations s_ij (Wigner's 2 s sqrt(d) where all are equal), here s / (d_i d_j)."""
    return float(2 * noise_sd / deviation.min() * np.sqrt(np.sum(deviation**-2.0)))


def ratio_sd(
    variance: NDArray[np.float64],
    components: NDArray[np.float64],
    total: float,
    noise_sd: float,
    deviation: NDArray[np.float64],
    *,
    scaled: bool,
) -> NDArray[np.float64]:
    """The standard deviation that noise gives to each explained ratio, to first order.

    For noise E in a matrix M an eigenvalue l with vector v moves by v'Ev, and the trace by tr E. In correlations the
    noisy variances divide too: R moves by E - (diag(E) R + R diag(E)) / 2, so l by v'Ev - l sum_i v_i^2 E_ii, and the
    trace not at all. Entries have standard deviation s / (d_i d_j), each above the diagonal counting twice. What the
    noise of means and of counts adds is left out; it is smaller by the size of a mean, or of the noise in a count.
    """
    if total <= 0:
        return np.full(len(variance), np.nan)
    weighted = components**2 / deviation**2  # v_i^2 / d_i^2
    crossed = 2 * (weighted.sum(axis=1) ** 2 - np.sum(weighted**2, axis=1))  # 4 sum_{i<j}
    if scaled:
        own = components**2 * (1 - variance[:, None])
    else:
        own = components**2 - (variance / total)[:, None]
    diagonal = np.sum((own / deviation**2) ** 2, axis=1)
    return np.asarray(noise_sd * np.sqrt(crossed + diagonal) / total)


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


def _finite(values: NDArray[np.float64]) -> list[float | None]:
    """For JSON, which has no nan: the share of a total variance that noise has made negative."""
    return [float(value) if np.isfinite(value) else None for value in values]


# --- the result -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class PrincipalComponents(Result):
    """`components_` are orthonormal rows in the space of the features less `mean_`, divided by `scale_`;
    `explained_variance_` is the variance of the noisy matrix along each, per record, `explained_variance_ratio_` its
    share of the whole with the standard deviation `ratio_sd_` that noise gives it. `noise_sd_` is the noise of one
    entry of the Gram matrix, `noise_floor_` about the variance that noise alone would show."""

    kind: ClassVar[str] = "pca"

    components_: NDArray[np.float64]
    explained_variance_: NDArray[np.float64]
    explained_variance_ratio_: NDArray[np.float64]
    ratio_sd_: NDArray[np.float64]
    mean_: NDArray[np.float64]
    scale_: NDArray[np.float64]
    hidden: tuple[str, ...]
    """Features whose variance lies below twice its noise."""
    features: tuple[Feature, ...]
    columns: Mapping[str, Column]
    n: int
    noise_sd_: float
    noise_floor_: float
    simulated: bool
    empty_cells: Mapping[str, float] = field(default_factory=dict)
    """The noisy number of empty cells of each column with a mask of its own."""

    @property
    def feature_names_(self) -> tuple[str, ...]:
        """What the entries of a component belong to."""
        return tuple(feature.name for feature in self.features)

    def transform(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        """Scores of rows: a frame of the fitted columns, or an array of the features.

        Parameters
        ----------
        rows : a frame of the fitted columns, or an array of the features.

        Returns
        -------
        An array with a column for each component.
        """
        return self._standardised(rows) @ self.components_.T

    def captured_variance(self, rows: pd.DataFrame | NDArray[Any]) -> float:
        """|X V|^2 / |X|^2 for rows X (centred and scaled if the model is).

        Parameters
        ----------
        rows : a frame of the fitted columns, or an array of the features.

        Returns
        -------
        A share between 0 and 1.
        """
        features = self._standardised(rows)
        return float(np.sum((features @ self.components_.T) ** 2) / np.sum(features**2))

    def _standardised(self, rows: pd.DataFrame | NDArray[Any]) -> NDArray[np.float64]:
        centred: NDArray[np.float64] = feature_matrix(rows, self.features, self.columns) - self.mean_
        return centred / self.scale_

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "feature_names": list(self.feature_names_),
            "components": self.components_.tolist(),
            "explained_variance": self.explained_variance_.tolist(),
            "explained_variance_ratio": _finite(self.explained_variance_ratio_),
            "explained_variance_ratio_sd": _finite(self.ratio_sd_),
            "mean": self.mean_.tolist(),
            "scale": self.scale_.tolist(),
            "noise_sd": self.noise_sd_,
            **({"empty cells": dict(self.empty_cells)} if self.empty_cells else {}),
            "simulated": self.simulated,
        }

    @classmethod
    def records_behind(cls, stated: Mapping[str, Any]) -> Iterator[Counted]:
        yield "the principal components (the cohort, a public number)", stated["n"], 0.0

    def view(self) -> View:
        title = f"{len(self.components_)} principal components of {len(self.features)} features"
        head, rows = ("component", "variance", "share of all", "mostly"), self._rows()
        noise = f"{noise_text(self.n, self.noise_sd_)} {empty_text(self.empty_cells, self.noise_sd_)}".rstrip()
        return View(
            title=title,
            quality=self._quality(),
            warnings=self._warnings(),
            answer=(
                *self._figures(),
                Table(title="Principal components", head=head, rows=rows, numeric=(1, 2)),
                Text(
                    text=self._units(),
                    style="soft",
                ),
            ),
            sections=(Section(title="Behind the components", blocks=(Text(text=noise),)),),
            terminal=(Table(title=title, head=head, rows=rows, numeric=(1, 2)),),
        )

    def _figures(self) -> tuple[Figure | Figures, ...]:
        """Variances above the noise, and the weights of the components."""
        kept, order = len(self.components_), np.argsort(-np.abs(self.components_).max(axis=0), kind="stable")
        names = [self.feature_names_[place] for place in order]
        across, rows = [str(number) for number in range(1, kept + 1)], self.components_[:, order]
        by_feature = list(zip(names, rows.T.tolist(), strict=True))
        pair = np.sqrt(np.maximum(self.explained_variance_[:2], 0.0))[:, None] * self.components_[:2]
        scree = Figure(
            name="scree",
            chart="scree",
            data={"values": self.explained_variance_.tolist(), "floor": self.noise_floor_},
            label=f"Variance of {len(self.components_)} components; the table has the numbers",
            title="Variance of each component",
            x="component",
            y="variance per record",
            caption="Bars below the dashed line may be noise alone." if self.noise_floor_ else "",
        )
        biplot = Figure(
            name="biplot",
            chart="arrows",
            data={"labels": list(self.feature_names_), "across": pair[0].tolist(), "up": pair[-1].tolist()},
            label="The features as arrows in the plane of the first two components",
            title="Features in the plane of two components",
            x="component 1",
            y="component 2",
            caption="Each weight times the root of the component's variance. Arrows in one direction go together.",
        )
        weights = Table(
            title="Weights of the features",
            head=("feature", *(f"component {number}" for number in across)),
            rows=tuple((name, *(f"{weight:+.3f}" for weight in own)) for name, own in by_feature[:MOST_FEATURES]),
            numeric=tuple(range(1, kept + 1)),
        )
        few, rest = kept <= FEW_COMPONENTS, len(names) - MOST_FEATURES
        series = {f"component {number}": row for number, row in zip(across, rows.tolist(), strict=True)}
        data = {"series": series, "signed": True} if few else {"across": across, "matrix": rows.T.tolist()}
        loadings = Figure(
            name="loadings",
            chart="dots" if few else "weights",
            data={"labels": names, **data},
            label="Weights of the features in the components, the largest first; the table has the numbers",
            title="Weights",
            x="weight in the component" if few else "component",
            numbers=weights,
            note=f"The other {rest:,} features are in result.json." if rest > 0 else "",
        )
        return (Figures(figures=(scree, biplot) if len(self.components_) > 1 else (scree,)), loadings)

    def _units(self) -> str:
        scaled = bool(np.any(self.scale_ != 1))
        units = "features with variance 1" if scaled else "features between -1 and 1, by their declared domains"
        noise = ""
        if self.noise_sd_:
            noise = " Noise makes the largest of them larger than they are; a share is given with two standard"
            noise += " deviations of the noise, to first order."
        return f"Variances are per record, of {units}.{noise}"

    def _warnings(self) -> tuple[str, ...]:
        if not self.hidden:
            return ()
        count = len(self.hidden)
        return (
            f"The variance of {', '.join(self.hidden[:5])}{' and others' if count > 5 else ''} ({count} of"
            f" {len(self.features)} features) cannot be told from noise: they count for less than they should. A larger"
            " epsilon, fewer columns or narrower declared domains would show them.",
        )

    def _rows(self) -> tuple[tuple[str, str, str, str], ...]:
        """One row a component: its noisy variance, its share, and the features that weigh most."""
        rows = []
        shares = zip(self.explained_variance_ratio_, self.ratio_sd_, strict=True)
        parts = zip(self.explained_variance_, shares, self.components_, strict=True)
        for number, (variance, (share, sd), weights) in enumerate(parts, 1):
            heaviest = sorted(zip(self.feature_names_, weights, strict=True), key=lambda pair: -abs(pair[1]))[:4]
            mostly = ", ".join(f"{name} {weight:+.2f}" for name, weight in heaviest)
            width = f" ± {200 * sd:.2g}" if sd else ""
            part = f"{100 * share:.1f}{width} %" if np.isfinite(share) else "lost in noise"
            rows.append((str(number), f"{variance:.4g}", part, mostly))
        return tuple(rows)

    def _quality(self) -> str:
        if not self.noise_sd_:
            return "No noise was added: the components are those of the records."
        above = int(np.sum(self.explained_variance_ > self.noise_floor_))
        return (
            f"Noise alone would show components of variance up to about {self.noise_floor_:.2g}. {above} of"
            f" {len(self.components_)} lie above."
        )
