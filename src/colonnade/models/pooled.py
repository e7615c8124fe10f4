"""`pool`: one set of coefficients from fits to several completed tables, by Rubin's rules.

With estimates Q_k and covariances U_k of m fits, W the mean of the U_k and B the covariance of the Q_k between them,

    Q = mean of Q_k,     T = W + (1 + 1/m) B.

For each coefficient lambda = (1 + 1/m) B / T is the share of the variance that the missing entries bring, and Q - q
over sqrt(T) has Student's t. If v is what the fits would have of degrees of freedom with nothing missing, it has
(Barnard and Rubin 1999)

    1 / (1 / ((m - 1) / lambda^2) + 1 / (v (v + 1) / (v + 3) (1 - lambda)))

degrees of freedom. Several hypotheses are tested together by D1 of Li, Raghunathan and Rubin (1991), with their degrees
of freedom, but no more than v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import f as f_distribution
from scipy.stats import t as student

from colonnade.errors import BadArguments
from colonnade.federation.method import Result
from colonnade.formatting import number
from colonnade.models.linear.inference import Inference, WaldTest
from colonnade.models.summary import WIDTH, short, summary
from colonnade.view.blocks import Block, Figure, Table, Text, View

FEW_DRAWS = 100
"""Draws for each unit of the fraction of missing information, at least (White, Royston and Wood 2011)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooled(Inference, Result):
    """Coefficients pooled over the fits to m completed tables.

    `within` and `between` are the two parts of their covariance, `df` the degrees of freedom of each, and
    `df_complete` what the fits themselves have.
    """

    kind: ClassVar[str] = "pooled"

    params: pd.Series[float]
    cov: pd.DataFrame
    within: pd.DataFrame
    between: pd.DataFrame
    nobs: int
    m: int
    df_complete: float
    response: str = ""
    df_groups: int | None = None

    # --- what is missing -------------------------------------------------------------------------------------------

    @property
    def lambda_(self) -> pd.Series[float]:
        """The share of each coefficient's variance that the missing entries bring; statsmodels' frac_miss_info."""
        share = (1 + 1 / self.m) * np.diag(self.between) / np.diag(self.cov)
        return pd.Series(share, index=self.params.index, name="lambda")

    @property
    def df(self) -> pd.Series[float]:
        """Degrees of freedom of each coefficient (Barnard and Rubin 1999)."""
        complete = self.df_complete
        degrees = [degrees_of_freedom(share, self.m, complete) for share in self.lambda_]
        return pd.Series(degrees, index=self.params.index, name="df")

    @property
    def fmi(self) -> pd.Series[float]:
        """The fraction of missing information, with what m draws do not know of it, as in R's mice."""
        share, degrees = self.lambda_, self.df
        increase = share / (1 - share)
        return ((increase + 2 / (degrees + 3)) / (increase + 1)).where(share > 0, 0.0).rename("fmi")

    # --- as `Inference` has it --------------------------------------------------------------------------------------

    @property
    def use_t(self) -> bool:
        """Whether an estimate over its error has Student's t."""
        return True

    @property
    def _law(self) -> Any:
        return student(self.df.to_numpy())

    def wald_test(self, r_matrix: Any, *, use_f: bool = True) -> WaldTest:
        """Test linear hypotheses together: "age = 0, bmi = smoker", or R (and q) of R params = q; always by F.

        Parameters
        ----------
        r_matrix : hypotheses as texts, a matrix R, or (R, q).
        use_f : only True: the law is an F.

        Returns
        -------
        A `WaldTest`.
        """
        if not use_f:
            raise BadArguments("pooled hypotheses are tested by F (D1); leave use_f out.")
        matrix, value = self._hypotheses(r_matrix)
        apart = matrix @ self.params.to_numpy() - value
        within = matrix @ self.within.to_numpy() @ matrix.T
        size = len(matrix)
        if np.linalg.matrix_rank(within) < size:
            raise BadArguments("some of these hypotheses follow from the others; leave them out.")
        inverse = np.linalg.inv(within)
        spread = matrix @ self.between.to_numpy() @ matrix.T
        increase = (1 + 1 / self.m) * float(np.trace(spread @ inverse)) / size
        statistic = float(apart @ inverse @ apart) / (size * (1 + increase))
        draws = size * (self.m - 1)
        degrees = math.inf
        if increase > 0 and draws > 4:
            degrees = 4 + (draws - 4) * (1 + (1 - 2 / draws) / increase) ** 2
        elif increase > 0:
            degrees = draws * (1 + 1 / size) * (1 + 1 / increase) ** 2 / 2
        degrees = min(degrees, self.df_complete)
        return WaldTest(statistic, float(f_distribution.sf(statistic, size, degrees)), size, degrees)

    # --- for people -------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know, one sentence each."""
        notes = [
            f"Rubin's rules over {self.m} completed tables, with the degrees of freedom of Barnard and Rubin (1999).",
            "Valid if entries are missing at random and the imputation describes how the columns go together: a linear"
            " imputation of what is not linear, or has other variances, can make intervals cover less than they say.",
        ]
        worst = self.fmi.max()
        if self.m < FEW_DRAWS * worst:
            notes.append(
                f"The largest fraction of missing information is {worst:.2f}: with {self.m} draws another run gives"
                f" visibly other intervals; {math.ceil(FEW_DRAWS * worst)} draws would do."
            )
        return tuple(notes)

    def pooled_table(self, alpha: float = 0.05) -> pd.DataFrame:
        """The coefficient table with df and fmi.

        Parameters
        ----------
        alpha : 1 - the coverage of the intervals.

        Returns
        -------
        A frame with a row for each coefficient.
        """
        return pd.concat([self.table(alpha), self.df, self.fmi], axis=1)

    def _rows(self, alpha: float = 0.05) -> tuple[tuple[str, ...], ...]:
        return tuple(
            (
                str(name),
                f"{coef:.4g}",
                f"{error:.3g}",
                f"{t:.3f}",
                f"{p:.3f}",
                f"{low:.4g}",
                f"{high:.4g}",
                f"{df:.0f}",
                f"{fmi:.2f}",
            )
            for name, coef, error, t, p, low, high, df, fmi in self.pooled_table(alpha).itertuples(name=None)
        )

    def summary(self, alpha: float = 0.05) -> str:
        """For a terminal, as statsmodels prints it.

        Parameters
        ----------
        alpha : 1 - the coverage of the intervals.

        Returns
        -------
        A text.
        """
        head = ("", "coef", "std err", "t", "P>|t|", f"[{alpha / 2:.3g}", f"{1 - alpha / 2:.3g}]", "df", "fmi")
        label = WIDTH - 9 * (len(head) - 1)
        lines = [
            short(name, label - 1).ljust(label) + "".join(cell.rjust(9) for cell in cells)
            for name, *cells in (head, *self._rows(alpha))
        ]
        complete = "normal" if math.isinf(self.df_complete) else f"{self.df_complete:,.0f}"
        facts = (
            (("Dep. Variable:", self.response), ("No. Observations:", f"{self.nobs:,}")),
            (("Method:", "Rubin's rules"), ("Completed tables:", f"{self.m}")),
            (("Largest fmi:", f"{self.fmi.max():.3f}"), ("Df with nothing missing:", complete)),
        )
        table = [lines[0], "-" * WIDTH, *lines[1:]]
        return summary("Pooled Regression Results", facts, table, released=(), cost="", notes=self.notes)

    def view(self) -> View:
        title = f"{self.response or 'Response'}, pooled over {self.m} completed tables"
        table = Table(
            title="Pooled coefficients",
            head=("", "coef", "std err", "t", "P>|t|", "95 % from", "to", "df", "fmi"),
            rows=self._rows(),
            numeric=tuple(range(1, 9)),
        )
        bounds = self.conf_int()
        figure = Figure(
            name="coefficients",
            chart="intervals",
            data={
                "labels": [str(name) for name in self.params.index],
                "centres": self.params.tolist(),
                "lows": bounds[0].tolist(),
                "highs": bounds[1].tolist(),
                "name": f"pooled over {self.m} tables, 95 % interval",
            },
            label="Pooled coefficients with intervals; the table has the numbers",
            title="Pooled coefficients",
            x="coefficient, per unit of a column",
            caption="The dashed line is zero.",
        )
        quality = (
            f"{self.m} completed tables of {number(self.nobs)} records; missing entries bring at most"
            f" {self.lambda_.max():.0%} of a coefficient's variance."
        )
        answer: tuple[Block, ...] = (figure, table, *(Text(text=note, style="soft") for note in self.notes))
        return View(title=title, quality=quality, answer=answer, terminal=(table,))

    def to_dict(self) -> dict[str, Any]:
        series = ("params", "bse", "pvalues", "df", "fmi", "lambda_")
        return {
            **{name: getattr(self, name).to_dict() for name in series},
            "conf_int": self.conf_int().T.to_dict("list"),
            "cov_params": self.cov.to_numpy().tolist(),
            "m": self.m,
            "nobs": self.nobs,
            "df_complete": None if math.isinf(self.df_complete) else self.df_complete,
            "response": self.response,
            "notes": list(self.notes),
        }


def degrees_of_freedom(share: float, m: int, complete: float) -> float:
    """Of one coefficient, from the share of its variance between the tables; with none, those of the fits."""
    if not share > 0:
        return complete
    between = (m - 1) / share**2
    if math.isinf(complete):
        return between
    observed = complete * (complete + 1) / (complete + 3) * (1 - share)
    return between * observed / (between + observed)


def pool(results: Sequence[Any], *, df_complete: float | None = None) -> Pooled:
    """One result from fits of the same model to m completed tables, by Rubin's rules.

    Parameters
    ----------
    results : fits of `Regress`, of statsmodels, or any objects with `params` and `cov_params`.
    df_complete : degrees of freedom of a fit with nothing missing; by default those that the fits use (those of groups
        of records, or residual ones), infinite where their intervals are normal.

    Returns
    -------
    A `Pooled`: `params`, `bse`, `conf_int()`, `pvalues`, `fmi`, `summary()`, `tidy()`, `view()`.

    Example
    -------
    >>> import pandas as pd
    >>> from types import SimpleNamespace as Fit
    >>> fits = [Fit(params=pd.Series({"x": slope}), cov_params=[[0.04]], nobs=90) for slope in (1.0, 1.2, 0.8)]
    >>> co.pool(fits).bse.round(3).to_dict()
    {'x': 0.306}
    """
    fits = list(results)
    if len(fits) < 2:
        raise BadArguments("pool combines the fits to at least two completed tables; ask for draws=20, say.")
    estimates = [_estimate(fit) for fit in fits]
    names = estimates[0][0].index
    if any(not params.index.equals(names) for params, _ in estimates):
        raise BadArguments(
            "the fits have other coefficients: a category that one table lacks, say; fit the same columns to each."
        )
    each = np.array([params.to_numpy(dtype=np.float64) for params, _ in estimates])
    within = np.mean([cov for _, cov in estimates], axis=0)
    between = np.atleast_2d(np.cov(each.T))
    if np.ptp(each, axis=0).max() == 0:
        between = np.zeros_like(within)  # not the rounding of a mean
    total = within + (1 + 1 / len(fits)) * between
    if df_complete is None:
        df_complete = min(_degrees(fit, len(names)) for fit in fits)
    if not df_complete > 0:
        raise BadArguments(f"df_complete must be above 0, not {df_complete!r}.")
    cov, within_frame, between_frame = (
        pd.DataFrame(part, index=names, columns=names) for part in (total, within, between)
    )
    return Pooled(
        params=pd.Series(each.mean(axis=0), index=names, name="coef"),
        cov=cov,
        within=within_frame,
        between=between_frame,
        nobs=round(min(float(getattr(fit, "nobs", math.nan)) for fit in fits)),
        m=len(fits),
        df_complete=float(df_complete),
        response=_response(fits[0]),
    )


def _estimate(fit: Any) -> tuple[pd.Series[float], NDArray[np.float64]]:
    params, cov = getattr(fit, "params", None), getattr(fit, "cov_params", None)
    if params is None or cov is None:
        raise BadArguments(f"{type(fit).__name__} has no params and cov_params; pool combines fitted regressions.")
    if not isinstance(params, pd.Series):
        named = getattr(getattr(fit, "model", None), "exog_names", None)
        params = pd.Series(np.asarray(params, dtype=np.float64), index=named)
    matrix = np.asarray(cov() if callable(cov) else cov, dtype=np.float64)
    if matrix.shape != (len(params), len(params)) or not np.isfinite(matrix).all():
        raise BadArguments(f"{type(fit).__name__} has no covariance of its {len(params)} coefficients; fit it again.")
    return params, matrix


def _degrees(fit: Any, width: int) -> float:
    """Of the law that a fit's own intervals have."""
    groups = getattr(fit, "df_groups", None)
    if groups is not None:
        return float(groups)
    if not getattr(fit, "use_t", False):
        return math.inf
    return float(getattr(fit, "df_resid", getattr(fit, "nobs", math.inf) - width))


def _response(fit: Any) -> str:
    return str(getattr(fit, "response", "") or getattr(getattr(fit, "model", None), "endog_names", "") or "")
