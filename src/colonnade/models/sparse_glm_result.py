"""What `SparseGLM` returns: the path and the chosen model in the columns' own units, predictions, and a summary."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.data.column import Category, Column
from colonnade.errors import BadArguments
from colonnade.federation.run_folder import RunFolder
from colonnade.models.matrix import feature_matrix
from colonnade.models.penalties import Penalty
from colonnade.models.sparse_path import Family, mean_response
from colonnade.statistics.features import Feature

WIDTH = 94
Criterion = Literal["bic", "cv"]
Via = Literal["moments", "newton", "admm"]


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseGLMResult:
    """A path of sparse models, and the one that the criterion chose.

    `path` has a row for each lambda and a column for each coefficient, `const` first, per unit of a column (codes 0, 1,
    ... for binary and ordinal ones). Lambdas and objectives belong to standardised covariates; those of a gaussian
    response are in its own units. `objective` is the mean loss plus the penalty; `residual` the largest violation of
    its optimality conditions, as a share of the largest lambda.
    """

    response: str
    family: Family
    penalty: Penalty
    via: Via
    criterion: Criterion
    path: pd.DataFrame
    lambdas: NDArray[np.float64]
    scores: NDArray[np.float64]
    chosen: int
    objective: NDArray[np.float64]
    explained: NDArray[np.float64]
    residuals: NDArray[np.float64]
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

    # --- the chosen model -------------------------------------------------------------------------------------

    @property
    def lambda_(self) -> float:
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
        """Coefficients at the lambda of the path that is nearest on a log scale."""
        if not lam > 0:
            raise BadArguments(f"lambda must be above 0, not {lam!r}.")
        return self.path.iloc[int(np.argmin(np.abs(np.log(self.lambdas / lam))))].rename("coef")

    # --- predictions --------------------------------------------------------------------------------------------

    def predict(self, frame: pd.DataFrame, *, kind: Literal["mean", "link"] = "mean") -> pd.Series[float]:
        """Expected response (probability of the second category, expected count), or the linear predictor."""
        if kind not in ("mean", "link"):
            raise BadArguments(f"kind must be 'mean' or 'link', not {kind!r}.")
        centre = np.array([one.centre for one in self.features])
        half = np.array([one.half for one in self.features])
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
            (("Method:", f"{self.via}, {self.rounds} rounds"), ("lambda:", f"{self.lambda_:.5g}")),
            (
                (f"Criterion: {self.criterion}", f"{self.scores[self.chosen]:.6g}"),
                ("Optimality residual:", f"{self.residual:.1e}"),
            ),
        ]
        half = WIDTH // 2 - 1
        lines = ["Sparse GLM Results".center(WIDTH).rstrip(), "=" * WIDTH]
        lines += [_line(*left, half) + "  " + _line(*right, half) for left, right in pairs]
        lines += ["=" * WIDTH, "coef".rjust(WIDTH), "-" * WIDTH]
        shown = self.params[(self.params != 0) | (self.params.index == "const")]
        owner = {one.name: one.party for one in self.features}
        for name, value in shown.items():
            label = f"{name}  ({owner[str(name)]})" if name in owner else str(name)
            lines.append(_line(label, f"{value:.5g}", WIDTH))
        lines.append("=" * WIDTH)
        if self.released:
            told = [*self.released, f"a person's total: {self.cost}"]
            lines += ["Privacy", *(part for one in told for part in _wrapped(one, "  ")), "=" * WIDTH]
        numbered = enumerate(self.notes, 1)
        return "\n".join([*lines, "Notes:", *(part for k, note in numbered for part in _wrapped(note, f"[{k}] "))])

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "sparse-glm",
            "response": self.response,
            "family": self.family,
            "penalty": self.penalty,
            "via": self.via,
            "criterion": self.criterion,
            "lambda": self.lambda_,
            "params": {str(name): float(value) for name, value in self.params.items()},
            "support": list(self.support),
            "residual": self.residual,
            "lambdas": self.lambdas.tolist(),
            "scores": [None if np.isnan(one) else float(one) for one in self.scores],
            "df": self.df.tolist(),
            "explained": self.explained.tolist(),
            "objective": self.objective.tolist(),
            "residuals": self.residuals.tolist(),
            "nobs": self.nobs,
            "cohort": self.cohort,
            "rounds": self.rounds,
            "classes": list(self.classes),
            "notes": list(self.notes),
            "released": list(self.released),
            "cost": self.cost,
            "simulated": self.simulated,
        }

    def write(self, run: RunFolder) -> None:
        """result.json, summary.txt, coefficients.csv (the chosen model) and path.csv (the coordinator's own)."""
        run.write("summary.txt", self.summary() + "\n")
        run.write("coefficients.csv", self.params.to_csv(index_label="name"))
        whole = pd.concat([self.table(), self.path.reset_index(drop=True)], axis=1)
        run.write("path.csv", whole.to_csv(index=False))
        run.write_json("result.json", self.to_dict())


def _line(label: str, value: str, width: int) -> str:
    room = width - len(label) - 1
    return label + (value if len(value) <= room else value[: room - 3] + "...").rjust(width - len(label))


def _wrapped(text: str, first: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent="    ")
