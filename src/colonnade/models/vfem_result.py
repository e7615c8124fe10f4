"""What `VFEM` returns: estimates in the columns' own units, predictions, and a summary in the manner of statsmodels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm

from colonnade.data.column import Column
from colonnade.errors import BadArguments, UnknownColumn
from colonnade.federation.run_folder import RunFolder
from colonnade.models.gaussian_regression import Regression
from colonnade.statistics.features import Feature
from colonnade.statistics.gaussian_em import GaussianFit

WIDTH = 94
SHOWN_PATTERNS = 12


@dataclass(frozen=True, kw_only=True, eq=False)
class VFEMResult:
    """A linear regression fitted to incomplete records.

    `params` and `cov` are per unit of a column (codes 0, 1, ... for binary and ordinal ones), named as in the summary;
    covariances and `sigma2` carry n / (n - p - 1), the convention of ordinary least squares. `loglik` is the joint
    log-likelihood of everything observed in the records used, covariates included, so it does not compare with the
    conditional one of ordinary least squares. `patterns` are (who has the record, how many records).
    """

    response: str
    params: pd.Series[float]
    cov: pd.DataFrame
    sigma2: float
    loglik: float
    rsquared: float
    nobs: int
    cohort: int
    trace: tuple[float, ...]
    steps: tuple[int, int]
    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    features: tuple[Feature, ...]
    columns: Mapping[str, Column]
    parties: tuple[str, ...]
    patterns: tuple[tuple[tuple[bool, ...], int], ...]
    dropped: tuple[str, ...]
    simulated: bool
    released: tuple[str, ...] = ()
    cost: str = ""
    model: str = "cross_party=full"
    method: str = "Gaussian MLE, MAR"
    remarks: tuple[str, ...] = ()
    """What the model or the baseline assumes beyond the first note."""
    covariance: str = "observed information"
    basis: str = (
        "observed information with n / (n - p - 1); valid if records are missing at random and the columns are jointly"
        " Gaussian."
    )
    """Where the standard errors come from, and when they are valid."""

    # --- estimates, by the names that statsmodels gives them ------------------------------------------------

    @property
    def noisy(self) -> bool:
        """Whether the estimate is private: counts carry noise, and there is no likelihood."""
        return math.isnan(self.loglik)

    @property
    def df_resid(self) -> int:
        return self.nobs - len(self.params)

    @property
    def rsquared_adj(self) -> float:
        return 1.0 - (1.0 - self.rsquared) * (self.nobs - 1) / self.df_resid

    @property
    def bse(self) -> pd.Series[float]:
        return pd.Series(np.sqrt(np.diag(self.cov)), index=self.params.index, name="std err")

    @property
    def zvalues(self) -> pd.Series[float]:
        return (self.params / self.bse).rename("z")

    @property
    def pvalues(self) -> pd.Series[float]:
        return pd.Series(2 * norm.sf(np.abs(self.zvalues)), index=self.params.index, name="P>|z|")

    def cov_params(self) -> pd.DataFrame:
        return self.cov.copy()

    def conf_int(self, alpha: float = 0.05) -> pd.DataFrame:
        """Normal intervals of coverage 1 - alpha: columns 0 and 1."""
        if not 0 < alpha < 1:
            raise BadArguments(f"alpha must lie between 0 and 1, not {alpha!r}; 0.05 gives 95 % intervals.")
        reach = norm.isf(alpha / 2) * self.bse
        return pd.DataFrame({0: self.params - reach, 1: self.params + reach})

    # --- predictions ------------------------------------------------------------------------------------------

    @cached_property
    def _target(self) -> int:
        return [feature.name for feature in self.features].index(self.response)

    def predict(self, frame: pd.DataFrame) -> pd.Series[float]:
        """E[response | what each row shows]. A column may be empty in some rows, or not be there at all."""
        others = [place for place in range(len(self.features)) if place != self._target]
        values = self._encoded(frame)[:, others]
        mu, sigma = self.mu[others], self.sigma[np.ix_(others, others)]
        cross = self.sigma[others, self._target]
        out = np.empty(len(frame))
        shown, index = np.unique(~np.isnan(values), axis=0, return_inverse=True)
        for number, mask in enumerate(shown):
            rows = index.reshape(-1) == number
            seen = np.flatnonzero(mask)
            slope = np.linalg.solve(sigma[np.ix_(seen, seen)], cross[seen])
            out[rows] = self.mu[self._target] + (values[np.ix_(rows, seen)] - mu[seen]) @ slope
        return pd.Series(out, index=frame.index, name=self.response)

    def _encoded(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        if not any(feature.column in frame.columns for feature in self.features if feature.name != self.response):
            raise UnknownColumn("the frame has none of the columns on which the model was fitted; check its names.")
        values = np.full((len(frame), len(self.features)), np.nan)
        for place, feature in enumerate(self.features):
            if feature.column not in frame.columns or feature.name == self.response:
                continue
            column = self.columns[feature.column]
            codes = replace(column, missing=True).encode(frame[feature.column]).astype(np.float64)
            if column.discrete:
                codes[codes < 0] = np.nan
            values[:, place] = codes
            if feature.category is not None:
                values[:, place] = np.where(np.isnan(codes), np.nan, codes == feature.category)
        return values

    # --- for people -------------------------------------------------------------------------------------------

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the estimates must know."""
        made = [f"Standard errors: {self.basis}"]
        made += self.remarks
        if self.nobs < self.cohort:
            about = "About " if self.noisy else ""
            left = f"{about}{self.cohort - self.nobs:,} of the cohort's {self.cohort:,} records"
            made.append(f"{left} lack the response and are not used.")
        missing = {party for party in self.parties if self.present(party) < self.nobs}
        odd = dict.fromkeys(f.column for f in self.features if f.party in missing and self.columns[f.column].discrete)
        if odd:
            made.append(
                f"Not continuous, and missing for some records: {', '.join(odd)}. Where missingness depends on other"
                " columns, intervals can cover less than they say."
            )
        if self.dropped:
            made.append(f"Left out, since no record used has the category: {', '.join(self.dropped)}.")
        if self.simulated:
            made.append("Simulation: a seed decided the randomness, which protects nobody.")
        return tuple(made)

    def present(self, party: str) -> int:
        """The records used that a party has."""
        place = self.parties.index(party)
        return sum(count for mask, count in self.patterns if mask[place])

    def table(self, alpha: float = 0.05) -> pd.DataFrame:
        """The coefficient table."""
        return pd.concat(
            [self.params.rename("coef"), self.bse, self.zvalues, self.pvalues, self.conf_int(alpha)], axis=1
        )

    def summary(self, alpha: float = 0.05) -> str:
        """Estimates, missingness and privacy, for a terminal."""
        return "\n".join(
            [*self._head(), *self._coefficients(alpha), *self._missingness(), *self._privacy(), *self._end()]
        )

    def _head(self) -> list[str]:
        holder = next(feature.party for feature in self.features if feature.name == self.response)
        complete = sum(count for mask, count in self.patterns if all(mask))
        likelihood = "none" if self.noisy else f"{self.loglik:.6g}"
        pairs = [
            (("Dep. Variable:", self.response), ("No. Observations:", f"{self.nobs:,}")),
            (("Held by:", holder), ("of which complete:", f"{complete:,}")),
            (("Model:", f"VFEM, {self.model}"), ("Df Residuals:", f"{self.df_resid:,}")),
            (("Method:", self.method), ("Df Model:", f"{len(self.params) - 1}")),
            (("Iterations:", f"{self.steps[0]} EM, {self.steps[1]} Newton"), ("R-squared:", f"{self.rsquared:.4f}")),
            (("Log-Likelihood (joint):", likelihood), ("Adj. R-squared:", f"{self.rsquared_adj:.4f}")),
            (("Covariance Type:", self.covariance), ("Scale (sigma2):", f"{self.sigma2:.6g}")),
        ]
        half = WIDTH // 2 - 1
        lines = [_line(*left, half) + "  " + _line(*right, half) for left, right in pairs]
        return ["VFEM Regression Results".center(WIDTH).rstrip(), "=" * WIDTH, *lines, "=" * WIDTH]

    def _coefficients(self, alpha: float) -> list[str]:
        ends = f"[{alpha / 2:.3g}", f"{1 - alpha / 2:.3g}]"
        titles = "".join(title.rjust(11) for title in ("coef", "std err", "z", "P>|z|", *ends))
        label = WIDTH - len(titles)
        lines = [" " * label + titles, "-" * WIDTH]
        for name, coef, error, z, p, low, high in self.table(alpha).itertuples(name=None):
            numbers = (f"{coef:.4g}", f"{error:.3g}", f"{z:.3f}", f"{p:.3f}", f"{low:.4g}", f"{high:.4g}")
            cells = "".join(number.rjust(11) for number in numbers)
            lines.append(_short(str(name), label - 1).ljust(label) + cells)
        return [*lines, "=" * WIDTH]

    def _missingness(self) -> list[str]:
        lines = ["Missingness (records used)"]
        for party in self.parties:
            count = self.present(party)
            lines.append(f"  {party}: {count:,} present, {100 * max(1 - count / self.nobs, 0):.2f} % missing")
        ordered = sorted(self.patterns, key=lambda one: -one[1])
        lines.append(f"  {len(ordered)} patterns:")
        for mask, count in ordered[:SHOWN_PATTERNS]:
            there = " + ".join(party for here, party in zip(mask, self.parties, strict=True) if here)
            lines.append(f"  {count:>10,}  {there}")
        if len(ordered) > SHOWN_PATTERNS:
            rest = sum(count for _, count in ordered[SHOWN_PATTERNS:])
            lines.append(f"  {rest:>10,}  in {len(ordered) - SHOWN_PATTERNS} other patterns")
        return [*lines, "=" * WIDTH]

    def _privacy(self) -> list[str]:
        if not self.released:
            return []
        lines = [*self.released, f"a person's total: {self.cost}"]
        return ["Privacy", *(part for line in lines for part in _wrapped(line, "  ")), "=" * WIDTH]

    def _end(self) -> list[str]:
        numbered = enumerate(self.notes, 1)
        return ["Notes:", *(part for number, note in numbered for part in _wrapped(note, f"[{number}] "))]

    def write(self, run: RunFolder) -> None:
        """result.json with all estimates, summary.txt and coefficients.csv."""
        table = self.table().rename(columns={0: "low", 1: "high"})
        run.write("summary.txt", self.summary() + "\n")
        run.write("coefficients.csv", table.to_csv(index_label="name"))
        run.write_json(
            "result.json",
            {
                "kind": "vfem",
                "response": self.response,
                "model": self.model,
                "method": self.method,
                "nobs": self.nobs,
                "cohort": self.cohort,
                "params": {str(name): float(value) for name, value in self.params.items()},
                "bse": {str(name): float(value) for name, value in self.bse.items()},
                "pvalues": {str(name): float(value) for name, value in self.pvalues.items()},
                "conf_int": {str(name): [float(low), float(high)] for name, low, high in self.conf_int().itertuples()},
                "cov_params": self.cov.to_numpy().tolist(),
                "sigma2": self.sigma2,
                "loglik": None if self.noisy else self.loglik,
                "rsquared": self.rsquared,
                "rsquared_adj": self.rsquared_adj,
                "trace": list(self.trace),
                "mean": self.mu.tolist(),
                "covariance": self.sigma.tolist(),
                "features": [feature.name for feature in self.features],
                "parties": list(self.parties),
                "patterns": [{"present": list(mask), "count": count} for mask, count in self.patterns],
                "released": list(self.released),
                "cost": self.cost,
                "notes": list(self.notes),
                "simulated": self.simulated,
            },
        )


def _line(label: str, value: str, width: int) -> str:
    return label + _short(value, width - len(label) - 1).rjust(width - len(label))


def _wrapped(text: str, first: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent="    ")


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def in_own_units(
    fit: GaussianFit,
    found: Regression,
    *,
    features: tuple[Feature, ...],
    response: int,
    columns: Mapping[str, Column],
    parties: tuple[str, ...],
    patterns: tuple[tuple[tuple[bool, ...], int], ...],
    cohort: int,
    dropped: tuple[str, ...],
    simulated: bool,
) -> VFEMResult:
    """From features to the columns' own units: value = centre + half * feature is affine, so nothing is approximate."""
    centre = np.array([feature.centre for feature in features])
    half = np.array([feature.half for feature in features])
    others = np.delete(np.arange(len(features)), response)
    slope = half[response] / half[others]
    back = np.zeros((len(features), len(features)))
    back[0, 0], back[0, 1:] = half[response], -slope * centre[others]
    back[1:, 1:] = np.diag(slope)
    params = back @ found.params
    params[0] += centre[response]
    names = ["const", *found.names]
    # A density in own units is the density of features divided by the scales of what a record shows.
    owner = np.array([parties.index(feature.party) for feature in features])
    moved = sum(count * float(np.log(half[np.array(mask)[owner]]).sum()) for mask, count in patterns)
    return VFEMResult(
        response=features[response].name,
        params=pd.Series(params, index=names, name="coef"),
        cov=pd.DataFrame(back @ found.cov @ back.T, index=names, columns=names),
        sigma2=found.sigma2 * half[response] ** 2,
        loglik=fit.loglik - moved,
        rsquared=found.rsquared,
        nobs=sum(count for _, count in patterns),
        cohort=cohort,
        trace=tuple(value - moved for value in fit.trace),
        steps=(fit.em_steps, fit.newton_steps),
        mu=centre + half * fit.mu,
        sigma=fit.sigma * np.outer(half, half),
        features=features,
        columns=columns,
        parties=parties,
        patterns=patterns,
        dropped=dropped,
        simulated=simulated,
    )
