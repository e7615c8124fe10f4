"""What a logistic or Poisson regression returns: as a `Regression`, with the family's own predictions and facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from scipy.special import expit

from colonnade.errors import UnknownColumn
from colonnade.formatting import number
from colonnade.models.glm.newton import Family
from colonnade.models.linear.diagnostics import DELTAS
from colonnade.models.linear.result import Regression
from colonnade.models.summary import Fact
from colonnade.statistics.gaussian_em import Vector

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
"""Quadrature for a normal part of the predictor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GeneralizedRegression(Regression):
    """`params` are log-odds of the response's second category, or logarithms of the mean of a count, per unit of a
    column. `nobs` are the records that the complete ones stand for; these are worth `effective` of equal weight. There
    is no likelihood and no R-squared.
    """

    family: Family
    offset: str | None
    effective: float
    private: bool = False

    @property
    def noisy(self) -> bool:
        """Whether the estimate is private."""
        return self.private

    def _facts(self) -> tuple[tuple[Fact, Fact], ...]:
        return (
            (("Dep. Variable:", self.response), ("No. Observations:", f"{self.nobs:,}")),
            (("Held by:", self.features[self.target].party), ("of which complete:", f"{self.complete:,}")),
            (("Model:", self.model), ("worth, by weight:", f"{self.effective:,.0f}")),
            (("Link:", "logit" if self.family == "binomial" else "log"), ("Df Model:", f"{len(self.params) - 1}")),
            (("Method:", self.method), ("Rounds:", f"{self.steps[1]}")),
            (("Offset:", self.offset or "none"), ("Covariance Type:", self.covariance)),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Without what holds of Gaussian columns only: weights need no law of the covariates."""
        return tuple(note for note in super().notes if not note.startswith("Not continuous"))

    def _lead(self) -> str:
        return (
            f"From {number(self.complete)} complete records, for {number(self.nobs)} with the response of"
            f" {number(self.cohort)}."
        )

    def to_dict(self) -> dict[str, Any]:
        absent = dict.fromkeys(("loglik", "rsquared", "rsquared_adj"))
        own = {"family": self.family, "offset": self.offset, "effective": self.effective}
        return {**super().to_dict(), **absent, **own}

    @property
    def _unit(self) -> str:
        return f"log-odds of {self.response}" if self.family == "binomial" else f"the logarithm of mean {self.response}"

    @property
    def _no_complete_cases(self) -> str:
        if self.noisy:
            return super()._no_complete_cases
        return "a fit to them takes as many rounds again, with missing='complete-case'"

    def predict(self, frame: pd.DataFrame) -> pd.Series[float]:
        """P(response = its second category), or the mean count, given what each row shows.

        What a row lacks of the covariates is taken as normal given what it shows, with the weighted covariance of the
        records used. The offset's column must be there and filled.
        """
        design, variance = self._completed(frame)
        predictor = design @ self.params.to_numpy()
        if self.offset is not None:
            if self.offset not in frame.columns:
                raise UnknownColumn(f"the frame has no column {self.offset!r}, the offset of the model; add it.")
            predictor = predictor + frame[self.offset].to_numpy(float)
        return pd.Series(self._mean(predictor, variance), index=frame.index, name=self.response)

    def get_prediction(self, frame: pd.DataFrame) -> NoReturn:
        raise AttributeError(f"family={self.family!r} has predictions without intervals: use predict.")

    def sensitivity(self, deltas: Sequence[float] = DELTAS) -> NoReturn:
        raise AttributeError("the sensitivity to missing not at random needs the moments of a linear regression.")

    def _mean(self, predictor: Vector, variance: Vector) -> Vector:
        """E of the mean response over a normal predictor."""
        if self.family == "poisson":
            return np.asarray(np.exp(predictor + variance / 2))
        points = predictor[:, None] + np.sqrt(np.maximum(variance, 0.0))[:, None] * NODES
        return np.asarray(expit(points) @ WEIGHTS / WEIGHTS.sum())
