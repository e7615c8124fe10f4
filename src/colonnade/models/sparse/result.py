"""From a path in standard units to a `Selection`: the criterion, the columns' own units, predictions, the view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.codec import plain
from colonnade.data.column import Category, Column
from colonnade.data.spreadsheet import csv_text
from colonnade.errors import BadArguments, NotEstimable
from colonnade.federation.job import Job
from colonnade.federation.method import Counted, Result
from colonnade.federation.run_folder import RunFolder
from colonnade.formatting import counted, number, with_unit
from colonnade.models.matrix import columns_of, feature_matrix
from colonnade.models.sparse.moments import UNRELIABLE
from colonnade.models.sparse.path import Family, PathPoint, Traced, mean_response
from colonnade.models.sparse.penalties import Penalty
from colonnade.models.summary import WIDTH, line, summary
from colonnade.statistics.features import Feature, features
from colonnade.view.blocks import Figure, Items, Section, Table, Text, View

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Criterion = Literal["bic", "cv"]
Solver = Literal["moments", "newton", "wald", "admm"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection(Result):
    """A path of sparse models, and the one that the criterion chose.

    `path` has a row for each lambda and a column for each coefficient, `const` first, per unit of a column (codes 0, 1,
    ... for binary and ordinal ones). Lambdas and objectives belong to standardised covariates; those of a gaussian
    response are in its own units. `objective` is the mean loss plus the penalty; `residual` the largest violation of
    its optimality conditions, as a share of the largest lambda.
    """

    kind: ClassVar[str] = "selection"

    response: str
    family: Family
    penalty: Penalty
    solver: Solver
    criterion: Criterion
    path: pd.DataFrame
    lambdas: Vector
    scores: Vector
    chosen: int
    objective: Vector
    explained: Vector
    residuals: Vector
    lla_steps: NDArray[np.int64]
    nobs: int
    cohort: int
    rounds: int
    features: tuple[Feature, ...]
    columns: Mapping[str, Column]
    classes: tuple[Category, ...]
    notes: tuple[str, ...]
    released: tuple[str, ...]
    cost: str
    simulated: bool
    count_sd: float = 0.0
    """Standard deviation of the noise on `nobs`."""
    unit: str | None = None
    """Of the response."""

    # --- the chosen model -------------------------------------------------------------------------------------

    @property
    def lambda_(self) -> float:
        """The chosen penalty."""
        return float(self.lambdas[self.chosen])

    @property
    def params(self) -> pd.Series[float]:
        """Coefficients at the chosen lambda, `const` first."""
        return self.path.iloc[self.chosen].rename("coef")

    @property
    def support(self) -> tuple[str, ...]:
        """The covariates that were selected."""
        slopes = self.params.drop("const")
        return tuple(str(name) for name in slopes.index[slopes != 0])

    @property
    def df(self) -> NDArray[np.int64]:
        """Nonzero coefficients at each lambda, `const` apart."""
        return np.asarray(np.count_nonzero(self.path.to_numpy()[:, 1:], axis=1), dtype=np.int64)

    @property
    def residual(self) -> float:
        """The optimality residual of the chosen model."""
        return float(self.residuals[self.chosen])

    def at(self, lam: float) -> pd.Series[float]:
        """Coefficients at the lambda of the path that is nearest on a log scale.

        Parameters
        ----------
        lam : a penalty.

        Returns
        -------
        A series, by coefficient.
        """
        if not lam > 0:
            raise BadArguments(f"lambda must be above 0, not {lam!r}.")
        return self.path.iloc[int(np.argmin(np.abs(np.log(self.lambdas / lam))))].rename("coef")

    # --- predictions --------------------------------------------------------------------------------------------

    def predict(self, frame: pd.DataFrame, *, kind: Literal["mean", "link"] = "mean") -> pd.Series[float]:
        """Expected response (probability of the second category, expected count), or the linear predictor.

        Parameters
        ----------
        frame : rows with the columns of the model, as they were declared.
        kind : 'mean' or 'link', the linear predictor.

        Returns
        -------
        A series with the frame's index.
        """
        if kind not in ("mean", "link"):
            raise BadArguments(f"kind must be 'mean' or 'link', not {kind!r}.")
        centre = np.array([feature.centre for feature in self.features])
        half = np.array([feature.half for feature in self.features])
        values = centre + half * feature_matrix(frame, self.features, self.columns)
        eta = values @ self.params.to_numpy(np.float64)[1:] + float(self.params.iloc[0])
        out = eta if kind == "link" else mean_response(self.family, eta)
        return pd.Series(out, index=frame.index, name=self.response)

    # --- for people ---------------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """The path at a glance: lambda, how many columns, deviance explained, the criterion, optimality."""
        return pd.DataFrame(
            {
                "lambda": self.lambdas,
                "df": self.df,
                "explained": self.explained,
                self.criterion: self.scores,
                "objective": self.objective,
                "residual": self.residuals,
                "lla_steps": self.lla_steps,
            }
        )

    def summary(self) -> str:
        """The chosen model, how it was found, and what was released, for a terminal."""
        pairs = [
            (("Dep. Variable:", self.response), ("No. Observations:", f"{self.nobs:,} of {self.cohort:,}")),
            (("Family:", self.family), ("Selected:", f"{len(self.support)} of {len(self.features)}")),
            (("Penalty:", self.penalty), ("Deviance explained:", f"{self.explained[self.chosen]:.4f}")),
            (("Solver:", f"{self.solver}, {counted(self.rounds, 'round')}"), ("lambda:", f"{self.lambda_:.5g}")),
            (
                (f"Criterion: {self.criterion}", f"{self.scores[self.chosen]:.6g}"),
                ("Optimality residual:", f"{self.residual:.1e}"),
            ),
        ]
        shown = self.params[(self.params != 0) | (self.params.index == "const")]
        owner = {feature.name: feature.party for feature in self.features}
        lines = ["coef".rjust(WIDTH), "-" * WIDTH]
        for name, value in shown.items():
            label = f"{name}  ({owner[str(name)]})" if name in owner else str(name)
            lines.append(line(label, f"{value:.5g}"))
        return summary("Sparse GLM Results", pairs, lines, released=self.released, cost=self.cost, notes=self.notes)

    def view(self) -> View:
        penalty = self.penalty if self.penalty == "lasso" else self.penalty.upper()
        criterion = {"bic": "BIC", "cv": "cross-validated loss"}[self.criterion]
        title = f"{len(self.support)} of {len(self.features)} features explain {self.response}"
        shown = tuple((name, f"{self.params[name]:.4g}") for name in ("const", *self.support))
        head = ("feature", "coefficient")
        path = tuple(
            (f"{lam:.4g}", str(df), f"{100 * part:.1f} %", "-" if np.isnan(score) else f"{score:.6g}")
            for lam, df, part, score in zip(self.lambdas, self.df, self.explained, self.scores, strict=True)
        )
        return View(
            title=title,
            warnings=tuple(note for note in self.notes if note.startswith(UNRELIABLE)),
            quality=f"The chosen columns explain {100 * self.explained[self.chosen]:.1f} % of the deviance, in the same"
            " records that chose them.",
            answer=(
                Text(
                    text=f"{penalty} penalty, {self.family} response, from {number(self.nobs)} records; lambda"
                    f" {self.lambda_:.4g} by {criterion}.",
                    style="lead",
                ),
                self._figure(),
                Table(title="Chosen coefficients", head=head, rows=shown, numeric=(1,)),
                Text(
                    text="Per unit of a column, as it was declared. They are shrunk or chosen from the data, so"
                    " ordinary standard errors do not apply.",
                    style="soft",
                ),
            ),
            sections=(
                Section(
                    title="The path",
                    blocks=(
                        Table(
                            title="Every lambda",
                            head=("lambda", "columns chosen", "explained", "score"),
                            rows=path,
                            numeric=(0, 1, 2, 3),
                            shown=0,
                        ),
                        Text(
                            text=f"Largest violation of the optimality conditions at the chosen lambda:"
                            f" {self.residual:.2g} of the largest lambda."
                        ),
                        Items(items=self.notes),
                    ),
                ),
            ),
            terminal=(Table(title=title, head=head, rows=shown, numeric=(1,)),),
        )

    def _figure(self) -> Figure:
        """Along the declared range of each column, so that their units do not matter."""
        ranges = {feature.name: 2 * feature.half for feature in self.features}
        effects = {name: (self.path[name] * width).tolist() for name, width in ranges.items()}
        what = {
            "gaussian": with_unit(self.response, self.unit),
            "binomial": f"log-odds of {self.response}",
            "poisson": f"the logarithm of mean {self.response}",
        }[self.family]
        return Figure(
            name="paths",
            chart="paths",
            data={
                "lambdas": self.lambdas.tolist(),
                "paths": effects,
                "chosen": self.chosen,
                "names": list(self.support),
            },
            label="Coefficients from the largest lambda to the smallest; chosen are"
            f" {', '.join(self.support) or 'none'}",
            title="Coefficient paths",
            caption="Each line is a column; the chosen ones are named. The vertical line is the chosen lambda.",
            x="lambda, from strong to weak penalty",
            y=f"effect on {what} across the column's range",
        )

    def to_dict(self) -> dict[str, Any]:
        stated = ["response", "family", "penalty", "solver", "criterion", "support", "residual", "lambdas", "df"]
        stated += ["explained", "objective", "residuals", "nobs", "count_sd", "cohort", "rounds", "classes", "notes"]
        stated += ["released", "cost", "simulated"]
        return {name: plain(getattr(self, name)) for name in stated} | {
            "lambda": self.lambda_,
            "params": {str(name): float(value) for name, value in self.params.items()},
            "scores": [None if np.isnan(score) else float(score) for score in self.scores],
        }

    @classmethod
    def records_behind(cls, stated: Mapping[str, Any]) -> Iterator[Counted]:
        yield "the selection (records used)", stated["nobs"], stated["count_sd"]
        yield "its degrees of freedom", stated["nobs"] - 1 - len(stated["support"]), stated["count_sd"]

    def write(self, run: RunFolder) -> None:
        """result.json, view.json, summary.txt, coefficients.csv (the chosen model) and path.csv (the coordinator's
        own)."""
        run.write("summary.txt", self.summary() + "\n")
        run.write("coefficients.csv", csv_text(self.params, index_label="name"))
        path = pd.concat([self.table(), self.path.reset_index(drop=True)], axis=1)
        run.write("path.csv", csv_text(path, index=False))
        super().write(run)


# --- the criterion ------------------------------------------------------------------------------------------------


def scores_by_bic(family: Family, points: Sequence[PathPoint], *, n: float, half: float) -> Vector:
    """-2 loglik + df log n, up to a constant; a gaussian's variance is profiled out: n log(RSS / n).

    The paper prints the mean loss + df log n, which selects nearly nothing.
    """
    loss = np.array([point.loss for point in points])
    fit = n * np.log(np.maximum(2.0 * loss, 1e-300) * half**2) if family == "gaussian" else 2.0 * n * loss
    return np.asarray(fit + np.log(max(n, 1.0)) * np.array([1 + point.df for point in points]))


def scores_by_folds(folds: Sequence[Sequence[PathPoint]], *, lambdas: Sequence[float], half: float) -> Vector:
    """The mean loss over held-out records; none for a lambda that one of the folds has no solution for."""
    place = {lam: index for index, lam in enumerate(lambdas)}
    loss = np.full((len(folds), len(place)), np.nan)
    for row, points in zip(loss, folds, strict=True):
        for point in points:
            row[place[point.lam]] = point.held_out
    return np.asarray(np.where(np.isnan(loss).any(axis=0), np.nan, loss.mean(axis=0)) * half**2)


def best(scores: Vector) -> int:
    if np.isnan(scores).all():
        raise NotEstimable("no lambda has a solution in all folds; use criterion='bic', or fewer folds.")
    return int(np.nanargmin(scores))


def withheld_note(traced: Traced, *, response_party: str, half: float) -> tuple[str, ...]:
    """What the reader of a path must know about the solutions that it lacks; refused if it has no others."""
    if not traced.withheld:
        return ()
    whose = " or ".join(sorted({repr(party) for party in traced.withheld.values()}))
    cures = (
        "use Select(solver='moments') (gaussian, or binomial to second order), which shows no predictor, or"
        " masking='plain', which shows each party's, if they allow 'party-predictor'"
    )
    if not any(point.df for point in traced.points):
        raise NotEstimable(
            f"at every lambda the total predictor would show {response_party!r} a predictor of {whose} alone, which"
            f" masking='masked' withholds; take smaller lambdas or columns of more parties, or {cures}."
        )
    lambdas = half * np.array(list(traced.withheld))
    return (
        f"Withheld: the solutions at {len(lambdas)} lambda(s) between {lambdas.max():.4g} and {lambdas.min():.4g}, as"
        f" on the way there the total predictor would have shown {response_party!r} a predictor of {whose} alone. One"
        f" of the others was chosen: if columns of one party suffice, it has too many. To see them all, {cures}.",
    )


# --- the columns' own units ---------------------------------------------------------------------------------------


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
    count_sd: float = 0.0

    def selection(
        self, job: Job, *, family: Family, penalty: Penalty, solver: Solver, criterion: Criterion
    ) -> Selection:
        """value = centre + half * feature, for covariates and for a gaussian response: all affine, so exact."""
        centre, half = self.scale
        middle = np.array([feature.centre for feature in self.features])
        width = np.array([feature.half for feature in self.features])
        slopes = half * self.slopes / width
        consts = centre + half * self.intercepts - slopes @ middle
        names = ["const", *(feature.name for feature in self.features)]
        lambdas = half * np.array([point.lam for point in self.points])
        loss = np.array([point.loss for point in self.points])
        # Predictions take values from the whole declared range, also where the moments were of a narrower one.
        wanted = features(job.facts, [feature.column for feature in self.features])
        declared = {feature.name: feature for feature in wanted}
        notes = [
            "Lambda and the penalty belong to covariates with standard deviation 1 over the records used. There are no"
            " standard errors: after selection, ordinary ones would be too small."
        ]
        if penalty != "lasso":
            notes.append(
                f"{penalty.upper()}: the stationary point that local linear approximation reaches from the lasso."
            )
        if job.simulated:
            notes.append("Simulation: a seed decided the randomness, which protects nobody.")
        return Selection(
            response=self.response,
            family=family,
            penalty=penalty,
            solver=solver,
            criterion=criterion,
            path=pd.DataFrame(np.column_stack([consts, slopes]), columns=names, index=pd.Index(lambdas, name="lambda")),
            lambdas=lambdas,
            scores=self.scores,
            chosen=self.chosen,
            objective=np.array([point.objective for point in self.points]) * half**2,
            explained=(self.null_loss - loss) / (self.null_loss - self.saturated),
            residuals=np.array([point.residual for point in self.points]),
            lla_steps=np.array([point.lla_steps for point in self.points], dtype=np.int64),
            nobs=self.nobs,
            count_sd=self.count_sd,
            cohort=job.facts.n,
            rounds=self.rounds,
            features=tuple(declared[feature.name] for feature in self.features),
            columns=columns_of(job.facts, self.features),
            unit=job.facts.column(self.response).unit,
            classes=tuple(job.facts.column(self.response).categories or ()) if family == "binomial" else (),
            notes=(*notes, *self.notes),
            released=job.plan.unbounded(),
            cost=str(job.plan.total()),
            simulated=job.simulated,
        )
