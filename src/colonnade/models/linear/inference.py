"""What is said of estimated coefficients, by the names that statsmodels, scikit-learn and broom give it.

Everything here follows from the coefficients and their covariance. Where errors come from G groups of records, an
estimate over its error has Student's t with G - 1 degrees of freedom, and q hypotheses together Hotelling's T^2:

    W (G - q) / (q (G - 1))  has  F(q, G - q).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pandas as pd
from formulaic.utils.constraints import LinearConstraints
from numpy.typing import NDArray
from scipy.stats import chi2, norm
from scipy.stats import f as f_distribution
from scipy.stats import t as student

from colonnade.errors import BadArguments
from colonnade.statistics.gaussian_em import Matrix, Vector

ROWS_STAY = "rows stay with their parties, so no {} of the records used exist; `predict` takes rows of your own."


@dataclass(frozen=True)
class WaldTest:
    """Are some linear combinations of coefficients what a hypothesis says? `df_denom` is None for chi-squared."""

    statistic: float
    pvalue: float
    df_num: int
    df_denom: float | None

    @property
    def distribution(self) -> str:
        """F or chi2."""
        return "chi2" if self.df_denom is None else "F"

    def __str__(self) -> str:
        degrees = f"{self.df_num}" if self.df_denom is None else f"{self.df_num}, {self.df_denom:g}"
        return f"<Wald test ({self.distribution}): statistic={self.statistic:.6g}, p={self.pvalue:.4g}, df={degrees}>"

    __repr__ = __str__


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Predicted means, their errors, and those of single responses, with the law of an estimate over its error."""

    predicted_mean: pd.Series[float]
    se_mean: pd.Series[float]
    se_obs: pd.Series[float]
    law: Any

    def __repr__(self) -> str:
        return f"<Prediction of {len(self.predicted_mean):,} rows; summary_frame() has their intervals>"

    def _repr_html_(self) -> str:
        return str(self.summary_frame().to_html())

    def summary_frame(self, alpha: float = 0.05) -> pd.DataFrame:
        """mean, mean_se, mean_ci_lower and _upper (of the mean), obs_ci_lower and _upper (of one response).

        Parameters
        ----------
        alpha : 1 - the coverage of the intervals.

        Returns
        -------
        A frame with a row for each row that was predicted.
        """
        reach = self.law.isf(checked_alpha(alpha) / 2)
        mean = self.predicted_mean
        columns = {"mean": mean, "mean_se": self.se_mean}
        for name, error in (("mean", self.se_mean), ("obs", self.se_obs)):
            columns |= {f"{name}_ci_lower": mean - reach * error, f"{name}_ci_upper": mean + reach * error}
        return pd.DataFrame(columns)

    def conf_int(self, alpha: float = 0.05, *, obs: bool = False) -> pd.DataFrame:
        """Lower and upper ends, of the mean; with `obs`, of one response.

        Parameters
        ----------
        alpha : 1 - the coverage of the intervals.
        obs : of single responses, not of their mean.

        Returns
        -------
        A frame of two columns.
        """
        kind = "obs" if obs else "mean"
        return self.summary_frame(alpha)[[f"{kind}_ci_lower", f"{kind}_ci_upper"]]


def checked_alpha(alpha: float) -> float:
    if not 0 < alpha < 1:
        raise BadArguments(f"alpha must lie between 0 and 1, not {alpha!r}; 0.05 gives 95 % intervals.")
    return alpha


class Inference:
    """A fitted model with coefficients `params` and their covariance `cov`."""

    params: pd.Series[float]
    cov: pd.DataFrame
    nobs: int
    df_groups: int | None

    # --- coefficients -----------------------------------------------------------------------------------------

    @property
    def bse(self) -> pd.Series[float]:
        """Standard errors of the coefficients."""
        return pd.Series(np.sqrt(np.diag(self.cov)), index=self.params.index, name="std err")

    @property
    def tvalues(self) -> pd.Series[float]:
        """Coefficients over their standard errors."""
        return (self.params / self.bse).rename(self._letter)

    @property
    def zvalues(self) -> pd.Series[float]:
        """`tvalues` under the name that normal errors have."""
        return self.tvalues.rename("z")

    @property
    def pvalues(self) -> pd.Series[float]:
        """Two-sided, of each coefficient being zero."""
        return pd.Series(2 * self._law.sf(np.abs(self.tvalues)), index=self.params.index, name=f"P>|{self._letter}|")

    @property
    def use_t(self) -> bool:
        """Whether an estimate over its error has Student's t: errors come from groups of records."""
        return self.df_groups is not None

    @property
    def _letter(self) -> str:
        return "t" if self.use_t else "z"

    @property
    def _law(self) -> Any:
        """Of an estimate over its standard error."""
        return norm if self.df_groups is None else student(self.df_groups)

    def cov_params(self) -> pd.DataFrame:
        """The covariance matrix of the coefficients."""
        return self.cov.copy()

    def conf_int(self, alpha: float = 0.05) -> pd.DataFrame:
        """Intervals of coverage 1 - alpha: columns 0 and 1. Normal ones, or Student's where errors come from groups.

        Parameters
        ----------
        alpha : 1 - the coverage of the intervals.

        Returns
        -------
        A frame with the columns 0 and 1, a row for each coefficient.
        """
        reach = self._law.isf(checked_alpha(alpha) / 2) * self.bse
        return pd.DataFrame({0: self.params - reach, 1: self.params + reach})

    def table(self, alpha: float = 0.05) -> pd.DataFrame:
        """The coefficient table.

        Parameters
        ----------
        alpha : 1 - the coverage of the intervals.

        Returns
        -------
        A frame with a row for each coefficient.
        """
        return pd.concat(
            [self.params.rename("coef"), self.bse, self.tvalues, self.pvalues, self.conf_int(alpha)], axis=1
        )

    def summary_frame(self, alpha: float = 0.05) -> pd.DataFrame:
        """The coefficient table with statsmodels' names.

        Parameters
        ----------
        alpha : 1 - the coverage of the intervals.

        Returns
        -------
        A frame with a row for each coefficient.
        """
        return self.table(alpha).rename(columns={0: "Conf. Int. Low", 1: "Conf. Int. Upp."})

    # --- hypotheses -------------------------------------------------------------------------------------------

    @property
    def df_model(self) -> int:
        """Coefficients without the constant."""
        return len(self.params) - 1

    @property
    def df_resid(self) -> int:
        """Records less coefficients."""
        return self.nobs - len(self.params)

    def wald_test(
        self,
        r_matrix: str | Sequence[str] | Matrix | tuple[Matrix, Vector],
        *,
        use_f: bool = True,
    ) -> WaldTest:
        """Test linear hypotheses together: "age = 0, bmi = smoker", or R (and q) of R params = q.

        F by default: with F(q, G - q) where errors come from G groups, F(q, df_resid) otherwise.

        Parameters
        ----------
        r_matrix : hypotheses as texts, a matrix R, or (R, q).
        use_f : False for chi-squared in place of F.

        Returns
        -------
        A `WaldTest` with `statistic`, `pvalue` and its degrees of freedom.
        """
        matrix, value = self._hypotheses(r_matrix)
        apart = matrix @ self.params.to_numpy() - value
        spread = matrix @ self.cov.to_numpy() @ matrix.T
        size = int(np.linalg.matrix_rank(spread))
        if size < len(matrix):
            raise BadArguments("some of these hypotheses follow from the others; leave them out.")
        statistic = float(apart @ np.linalg.solve(spread, apart))
        if not use_f:
            return WaldTest(statistic, float(chi2.sf(statistic, size)), size, None)
        denominator, scale = float(self.df_resid), 1.0
        if self.df_groups is not None:
            denominator = self.df_groups + 1 - size
            scale = denominator / self.df_groups
        if denominator < 1:
            raise BadArguments(f"{size} hypotheses are too many for so few groups of records; take use_f=False.")
        value_f = statistic * scale / size
        return WaldTest(value_f, float(f_distribution.sf(value_f, size, denominator)), size, denominator)

    def _hypotheses(self, stated: Any) -> tuple[Matrix, Vector]:
        width = len(self.params)
        if isinstance(stated, str) or (isinstance(stated, list | tuple) and all(isinstance(s, str) for s in stated)):
            text = stated if isinstance(stated, str) else ", ".join(stated)
            try:
                parsed = LinearConstraints.from_spec(text, variable_names=[str(name) for name in self.params.index])
            except Exception as error:
                raise BadArguments(
                    f"the hypotheses {text!r} cannot be read ({error}); write 'a = 0, b = c' with coefficients' names."
                ) from error
            return np.asarray(parsed.constraint_matrix, float), np.asarray(parsed.constraint_values, float)
        matrix, value = stated if isinstance(stated, tuple) else (stated, 0.0)
        matrix = np.atleast_2d(np.asarray(matrix, dtype=np.float64))
        if matrix.ndim != 2 or matrix.shape[1] != width:
            raise BadArguments(f"R must have {width} columns, one for each coefficient, not the shape {matrix.shape}.")
        return matrix, np.broadcast_to(np.asarray(value, dtype=np.float64), (len(matrix),))

    # --- as frames --------------------------------------------------------------------------------------------

    def tidy(self, alpha: float = 0.05) -> pd.DataFrame:
        """One row for each coefficient, in broom's columns.

        Parameters
        ----------
        alpha : 1 - the coverage of the intervals.

        Returns
        -------
        A frame with `term`, `estimate`, `std.error`, `statistic`, `p.value`, `conf.low`, `conf.high`.
        """
        names = ["estimate", "std.error", "statistic", "p.value", "conf.low", "conf.high"]
        frame = self.table(alpha).set_axis(names, axis=1)
        return frame.rename_axis("term").reset_index()

    # --- as scikit-learn has them -----------------------------------------------------------------------------

    @property
    def coef_(self) -> Vector:
        """The coefficients without the constant, as in scikit-learn."""
        return np.asarray(self.params.drop("const"), dtype=np.float64)

    @property
    def intercept_(self) -> float:
        """The constant, as in scikit-learn."""
        return float(self.params["const"])

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """What the entries of `coef_` belong to."""
        return np.array([str(name) for name in self.params.index.drop("const")], dtype=object)

    # --- what there is not ------------------------------------------------------------------------------------

    @property
    def fittedvalues(self) -> NoReturn:
        """Refused: rows stay with their parties."""
        raise AttributeError(ROWS_STAY.format("fitted values"))

    @property
    def resid(self) -> NoReturn:
        """Refused: rows stay with their parties."""
        raise AttributeError(ROWS_STAY.format("residuals"))
