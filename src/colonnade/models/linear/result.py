"""What a regression returns: estimates in the columns' own units, predictions, a summary as in statsmodels, a view."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from scipy.stats import chi2, norm

from colonnade.codec import plain
from colonnade.data.column import Column
from colonnade.data.spreadsheet import csv_text
from colonnade.errors import UnknownColumn
from colonnade.federation.method import Counted, Result
from colonnade.federation.plan import Plan
from colonnade.federation.run_folder import RunFolder
from colonnade.formatting import counted, number, of_exactly, share, with_unit
from colonnade.models.linear.diagnostics import DELTAS, LackingRecords, independence, sensitivity
from colonnade.models.linear.gaussian import Coefficients
from colonnade.models.linear.inference import Inference, Prediction
from colonnade.models.summary import WIDTH, Fact, short, summary
from colonnade.privacy.accounting import guarantee
from colonnade.statistics.features import EMPTY, Feature
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, Vector
from colonnade.view.blocks import Figure, Heading, Items, Section, Table, Text, View

SHOWN_PATTERNS = 12
SHOWN_COEFFICIENTS = 20
FEWEST_RESIDUALS = 30
"""Records of a pattern whose mean residual is drawn."""
NOT_VALID = "Not valid for inference"
"""What a verdict begins with that takes the intervals away."""
COMPLETE_CASES = "complete cases"
"""A column of `beside`: least squares on the records that every party has."""
NORMAL_THEORY = "Gaussian std err by normal theory"
"""A column of `beside`: standard errors of the Gaussian fit from its likelihood alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """The features and the records that a regression is of.

    `patterns` are (who has the record, how many records); a feature that does not vary is left out by name
    (`dropped`).
    """

    response: str
    features: tuple[Feature, ...]
    columns: Mapping[str, Column]
    parties: tuple[str, ...]
    patterns: tuple[tuple[tuple[bool, ...], int], ...]
    cohort: int
    dropped: tuple[str, ...] = ()
    simulated: bool

    @cached_property
    def target(self) -> int:
        """The place of the response."""
        return [feature.name for feature in self.features].index(self.response)

    def regression(self, fit: GaussianFit, coefficients: Coefficients) -> Regression:
        """From features to the columns' own units: value = centre + half * feature."""
        centre = np.array([feature.centre for feature in self.features])
        half = np.array([feature.half for feature in self.features])
        others = np.delete(np.arange(len(centre)), self.target)
        in_units = coefficients.in_units(centre[others], half[others], (centre[self.target], half[self.target]))
        # A density in own units is the density of features divided by the scales of what a record shows.
        owner = np.array([self.parties.index(feature.party) for feature in self.features])
        moved = sum(count * float(np.log(half[np.array(mask)[owner]]).sum()) for mask, count in self.patterns)
        return Regression(
            **{in_units.name: getattr(self, in_units.name) for in_units in fields(Sample)},
            **_estimates(in_units),
            loglik=fit.loglik - moved,
            nobs=sum(count for _, count in self.patterns),
            trace=tuple(value - moved for value in fit.trace),
            steps=(fit.em_steps, fit.newton_steps),
            mu=centre + half * fit.mu,
            sigma=fit.sigma * np.outer(half, half),
        )


def _estimates(coefficients: Coefficients) -> dict[str, Any]:
    """Coefficients as the fields of a `Regression`."""
    names = ["const", *coefficients.names]
    return {
        "params": pd.Series(coefficients.params, index=names, name="coef"),
        "cov": pd.DataFrame(coefficients.cov, index=names, columns=names),
        "sigma2": coefficients.sigma2,
        "rsquared": coefficients.rsquared,
    }


def missing_information(likelihood: Regression) -> pd.Series[float]:
    """`fmi`, from a result whose covariance is that of the likelihood."""
    others = np.delete(np.arange(len(likelihood.mu)), likelihood.target)
    second = np.eye(1 + len(others))
    second[0, 1:] = second[1:, 0] = mean = likelihood.mu[others]
    second[1:, 1:] = likelihood.sigma[np.ix_(others, others)] + np.outer(mean, mean)
    complete = likelihood.sigma2 * np.diag(np.linalg.inv(likelihood.nobs * second))
    fraction = np.clip(1 - complete / np.diag(likelihood.cov), 0.0, 1.0)
    return pd.Series(fraction, index=likelihood.params.index, name="fmi")


@dataclass(frozen=True, kw_only=True, eq=False)
class Regression(Sample, Inference, Result):
    """A linear regression fitted to incomplete records.

    `params` and `cov` are per unit of a column (codes 0, 1, ... for binary and ordinal ones), named as in the summary;
    covariances and `sigma2` carry n / (n - p - 1), the convention of ordinary least squares. `loglik` is the joint
    log-likelihood of everything observed in the records used, covariates included, so it does not compare with the
    conditional one of ordinary least squares.
    """

    kind: ClassVar[str] = "regression"

    params: pd.Series[float]
    cov: pd.DataFrame
    sigma2: float
    loglik: float
    rsquared: float
    nobs: int
    trace: tuple[float, ...]
    steps: tuple[int, int]
    mu: Vector
    sigma: Matrix
    released: tuple[str, ...] = ()
    cost: str = ""
    model: str = "full covariance"
    method: str = "Gaussian MLE, MAR"
    baseline: bool = False
    """Least squares on a table without gaps: its standard errors know nothing of the missing blocks."""
    unused: str = "lack the response"
    """What is said of the cohort's other records."""
    remarks: tuple[str, ...] = ()
    """What the model or the baseline assumes beyond the first note."""
    covariance: str = "observed information"
    count_sd: tuple[float, float] = (0.0, 0.0)
    """Standard deviations of the noise on `nobs`, and on the records of a pattern."""
    basis: str = (
        "observed information with n / (n - p - 1); valid if records are missing at random and the columns are jointly"
        " Gaussian."
    )
    """Where the standard errors come from, and when they are valid."""
    df_groups: int | None = None
    """Degrees of freedom of errors from groups of records; None: intervals are normal."""
    verdict: str = ""
    """Whether intervals may be relied on, as far as the checks tell; empty where nothing was checked."""
    beside: pd.DataFrame | None = None
    """Other estimates of the same coefficients, with their standard errors: those that this one combines, and that of
    the complete cases."""

    weighted_by: str | None = None
    """The column by which records were weighted."""
    fmi: pd.Series[float] | None = None
    """The fraction of missing information of each coefficient: 1 - the variance that complete records would give over
    the variance from what is observed, both by the Gaussian likelihood."""
    blocks: Mapping[str, LackingRecords] = field(default_factory=dict)
    """What is known of the records that lack a party's block, in the columns' own units."""
    residuals: pd.DataFrame | None = None
    """Residuals by pattern of presence (`diagnostics.residuals_by_pattern`); None where no exact moments tell them."""

    def with_costs(self, plan: Plan, *, private: bool = False) -> Self:
        """With what was disclosed, and what it costs a person."""
        released = plan.unbounded()
        if private:
            leaves = dict.fromkeys(leaf for cost in plan.costs() for leaf in cost.leaves())
            bounded = [leaf for leaf in leaves if not leaf.unbounded and leaf.mechanism != "free"]
            total = guarantee(bounded, delta=plan.delta)
            noisy = f"noisy counts and moments: {total}, the presence mask held fixed against who sees it"
            released = (noisy, *released)
        return replace(self, released=released, cost=str(plan.total()))

    # --- estimates, by the names that statsmodels gives them ------------------------------------------------

    @property
    def noisy(self) -> bool:
        """Whether the estimate is private: counts carry noise, and there is no likelihood."""
        return math.isnan(self.loglik)

    @property
    def rsquared_adj(self) -> float:
        """R-squared, adjusted for the number of coefficients."""
        return 1.0 - (1.0 - self.rsquared) * (self.nobs - 1) / self.df_resid

    @property
    def llf(self) -> float:
        """The log-likelihood of the response given the covariates, where every record used is complete."""
        reason = ""
        if self.noisy:
            reason = "the estimate is private, and its moments carry noise"
        elif math.isnan(self.rsquared) or self.weighted_by is not None:
            reason = "the estimate solves weighted equations, which no likelihood of the records has"
        elif self.complete < self.nobs:
            reason = (
                "where blocks are missing, `loglik` is of response and covariates together and does not compare between"
                " sets of covariates; use wald_test"
            )
        if reason:
            raise AttributeError(f"no likelihood of the response alone exists: {reason}.")
        return -self.nobs / 2 * (math.log(2 * math.pi * self.sigma2 * self.df_resid / self.nobs) + 1)

    @property
    def aic(self) -> float:
        """Akaike's criterion by `llf`; refused where there is no such likelihood."""
        return -2 * self.llf + 2 * len(self.params)

    @property
    def bic(self) -> float:
        """Schwarz's criterion by `llf`; refused where there is no such likelihood."""
        return -2 * self.llf + math.log(self.nobs) * len(self.params)

    def glance(self) -> pd.DataFrame:
        """One row of facts about the fit, in broom's columns; NaN where there is none."""
        slopes = self.wald_test(np.eye(len(self.params))[1:])
        facts = {
            "r.squared": self.rsquared,
            "adj.r.squared": self.rsquared_adj,
            "sigma": math.sqrt(self.sigma2),
            "statistic": slopes.statistic,
            "p.value": slopes.pvalue,
            "df": self.df_model,
            "logLik": getattr(self, "llf", math.nan),
            "AIC": getattr(self, "aic", math.nan),
            "BIC": getattr(self, "bic", math.nan),
            "df.residual": self.df_resid,
            "nobs": self.nobs,
        }
        return pd.DataFrame([facts])

    def present(self, party: str) -> int:
        """The records used that a party has."""
        place = self.parties.index(party)
        return sum(count for mask, count in self.patterns if mask[place])

    @property
    def complete(self) -> int:
        """The records used that every party has."""
        return sum(count for mask, count in self.patterns if all(mask))

    # --- what it rests on -------------------------------------------------------------------------------------

    def sensitivity(self, deltas: Sequence[float] = DELTAS) -> pd.DataFrame:
        """What if blocks are missing not at random: each column in turn is, where it is missing, delta standard
        deviations above what the record's other values predict (`diagnostics.py`).

        Parameters
        ----------
        deltas : in standard deviations.

        Returns
        -------
        A frame with a row for each column and delta.
        """
        moments = float(self.nobs), self.mu, self.sigma
        return sensitivity(self.params, self.bse, *self._owned(), moments, self.blocks, deltas)

    def independence(self) -> pd.DataFrame:
        """Are the parties' covariates independent of one another, as the VFEM paper's model has it? By the fitted law
        and normal theory."""
        place = {party: index for index, party in enumerate(self.parties)}
        together = {
            (a, b): sum(count for mask, count in self.patterns if mask[place[a]] and mask[place[b]])
            for a in self.parties
            for b in self.parties
        }
        return independence(*self._owned(), self.sigma, together)

    def _owned(self) -> tuple[list[str], list[str], int]:
        return [feature.name for feature in self.features], [feature.party for feature in self.features], self.target

    # --- predictions ------------------------------------------------------------------------------------------

    def predict(self, frame: pd.DataFrame) -> pd.Series[float]:
        """E[response | what each row shows]. A column may be empty in some rows, or not be there at all.

        Parameters
        ----------
        frame : rows with the columns of the model, as they were declared; a column or a cell may be lacking.

        Returns
        -------
        A series with the frame's index.
        """
        return self.get_prediction(frame).predicted_mean

    def get_prediction(self, frame: pd.DataFrame) -> Prediction:
        """Predictions with intervals: `get_prediction(frame).summary_frame(alpha)`, as in statsmodels.

        What a row lacks is filled in with its mean given what the row shows. Errors of the mean are those of the
        coefficients; the covariates' law counts as known. The interval of a response adds what the residual and the
        missing values vary.

        Parameters
        ----------
        frame : rows with the columns of the model, as they were declared; a column or a cell may be lacking.

        Returns
        -------
        A `Prediction`.
        """
        design, missing = self._completed(frame)
        params = self.params.to_numpy()
        of_mean = np.einsum("ri,ij,rj->r", design, self.cov.to_numpy(), design)
        of_response = of_mean + self.sigma2 + np.maximum(missing, 0.0)
        mean_values, se_mean, se_obs = (
            pd.Series(column, index=frame.index, name=self.response)
            for column in (design @ params, np.sqrt(of_mean), np.sqrt(of_response))
        )
        return Prediction(mean_values, se_mean, se_obs, self._law)

    def _completed(self, frame: pd.DataFrame) -> tuple[Matrix, Vector]:
        """(1, covariates) of each row, with the mean given what it shows in place of what it lacks; and the variance of
        the linear predictor that this leaves."""
        values = np.delete(self._encoded(frame), self.target, axis=1)
        covariates = np.delete(np.arange(len(self.features)), self.target)
        mean, sigma = self.mu[covariates], self.sigma[np.ix_(covariates, covariates)]
        slopes, variance = self.params.to_numpy()[1:], np.zeros(len(frame))
        masks, index = np.unique(~np.isnan(values), axis=0, return_inverse=True)
        for pattern, mask in enumerate(masks):
            rows, seen, lost = index.reshape(-1) == pattern, np.flatnonzero(mask), np.flatnonzero(~mask)
            toward = np.linalg.solve(sigma[np.ix_(seen, seen)], sigma[np.ix_(seen, lost)])
            values[np.ix_(rows, lost)] = mean[lost] + (values[np.ix_(rows, seen)] - mean[seen]) @ toward
            left = sigma[np.ix_(lost, lost)] - sigma[np.ix_(lost, seen)] @ toward
            variance[rows] = slopes[lost] @ left @ slopes[lost]
        return np.column_stack([np.ones(len(frame)), values]), variance

    def _encoded(self, frame: pd.DataFrame) -> Matrix:
        if not any(feature.column in frame.columns for feature in self.features if feature.name != self.response):
            raise UnknownColumn("the frame has none of the columns on which the model was fitted; check its names.")
        values = np.full((len(frame), len(self.features)), np.nan)
        for place, feature in enumerate(self.features):
            if feature.column not in frame.columns or feature.name == self.response:
                continue
            column = self.columns[feature.column]
            codes = replace(column, missing=True).encode(frame[feature.column]).astype(np.float64)
            cells = codes if feature.category is None else codes == feature.category
            values[:, place] = np.where(codes < 0, np.nan, cells) if column.discrete else cells
        return values

    # --- for people -------------------------------------------------------------------------------------------

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the estimates must know."""
        notes = [f"Standard errors: {self.basis}", *self.remarks]
        gaps = self._gaps()
        if gaps:
            notes.append(f"A record with an empty cell in {', '.join(gaps)} counts as one that its party lacks.")
        if self.nobs < self.cohort:
            about = "About " if self.noisy else ""
            left = f"{about}{self.cohort - self.nobs:,} of the cohort's {self.cohort:,} records"
            holder = self.features[self.target].party
            among = [name for name, party in gaps.items() if party == holder and name != self.response]
            empty = f", or have an empty cell in {', '.join(among)}," if among else ""
            notes.append(f"{left} {self.unused}{empty} and are not used.")
        missing = {party for party in self.parties if self.present(party) < self.nobs}
        odd = dict.fromkeys(f.column for f in self.features if f.party in missing and self.columns[f.column].discrete)
        if odd:
            notes.append(
                f"Not continuous, and missing for some records: {', '.join(odd)}. Where missingness depends on other"
                " columns, intervals can cover less than they say."
            )
        units = self._units()
        if units:
            notes.append(f"Units: {'; '.join(units)}.")
        if self.dropped:
            notes.append(f"Left out, since they do not vary in the records used: {', '.join(self.dropped)}.")
        if self.simulated:
            notes.append("Simulation: a seed decided the randomness, which protects nobody.")
        return tuple(notes)

    def _gaps(self) -> dict[str, str]:
        """{column: its party} for those whose empty cells make a record count as absent."""
        level = {feature.column for feature in self.features if feature.category == EMPTY}
        owners = {feature.column: feature.party for feature in self.features if feature.column not in level}
        return {
            name: party
            for name, party in owners.items()
            if name in self.columns and self.columns[name].rule_for_empty("drop", "mask") == "drop"
        }

    def _units(self) -> list[str]:
        """What 1 is of columns whose cells are no numbers."""
        units = []
        for name in dict.fromkeys(feature.column for feature in self.features if feature.column in self.columns):
            column = self.columns[name]
            if column.kind == "date":
                units.append(f"{name} counts {column.step}s from {column.from_}")
            elif column.categories is not None and column.kind != "categorical" and column.categories != (0, 1):
                units.append(f"{name} is {len(column.categories) - 1} for {str(column.categories[-1])!r}")
        return units

    def _facts(self) -> tuple[tuple[Fact, Fact], ...]:
        likelihood = "none" if self.noisy else f"{self.loglik:.6g}"
        return (
            (("Dep. Variable:", self.response), ("No. Observations:", f"{self.nobs:,}")),
            (("Held by:", self.features[self.target].party), ("of which complete:", f"{self.complete:,}")),
            (("Model:", self.model), ("Df Residuals:", f"{self.df_resid:,}")),
            (("Method:", self.method), ("Df Model:", f"{len(self.params) - 1}")),
            (("Iterations:", f"{self.steps[0]} EM, {self.steps[1]} Newton"), ("R-squared:", f"{self.rsquared:.4f}")),
            (("Log-Likelihood (joint):", likelihood), ("Adj. R-squared:", f"{self.rsquared_adj:.4f}")),
            (("Covariance Type:", self.covariance), ("Scale (sigma2):", f"{self.sigma2:.6g}")),
        )

    def summary(self, alpha: float = 0.05) -> str:
        """Estimates, missingness and privacy, for a terminal.

        Parameters
        ----------
        alpha : 1 - the coverage of the intervals.

        Returns
        -------
        A text.
        """
        tables, facts = (self._coefficients(alpha), self._missingness()), self._facts()
        text = summary("Regression Results", facts, *tables, released=self.released, cost=self.cost, notes=self.notes)
        return f"{self.first_line}\n{text}" if self.first_line else text

    @property
    def first_line(self) -> str:
        """What a reader must know first: which columns are not in the fit, and what is said of its intervals."""
        lost = [repr(name) for name in self.dropped if name in self.columns]
        without = (
            f"Without {', '.join(lost)}, which {'does' if len(lost) == 1 else 'do'} not vary in the records used, or"
            " only in a small part of a declared range; declare a closer one. "
        )
        return f"{without if lost else ''}{self.verdict}".rstrip()

    def __repr__(self) -> str:
        first = self.first_line or "Intervals were not checked."
        return f"<Regression of {self.response} on {len(self.params) - 1} features, {self.nobs:,} records. {first}>"

    def _coefficients(self, alpha: float) -> list[str]:
        head = (
            "",
            "coef",
            "std err",
            self._letter,
            f"P>|{self._letter}|",
            f"[{alpha / 2:.3g}",
            f"{1 - alpha / 2:.3g}]",
        )
        label = WIDTH - 11 * (len(head) - 1)
        lines = [
            short(name, label - 1).ljust(label) + "".join(cell.rjust(11) for cell in cells)
            for name, *cells in (head, *self._rows(alpha))
        ]
        return [lines[0], "-" * WIDTH, *lines[1:]]

    def _rows(self, alpha: float = 0.05) -> tuple[tuple[str, ...], ...]:
        """The coefficient table as text; a coefficient without an error has no z."""
        rows = []
        for name, coef, error, z, p, low, high in self.table(alpha).itertuples(name=None):
            ratio = f"{z if error > 0 else math.nan:.3f}"
            rows.append((str(name), f"{coef:.4g}", f"{error:.3g}", ratio, f"{p:.3f}", f"{low:.4g}", f"{high:.4g}"))
        return tuple(rows)

    def _missingness(self) -> list[str]:
        lines = ["Missingness (records used)"]
        for party in self.parties:
            count = self.present(party)
            lines.append(f"  {party}: {count:,} present, {100 * max(1 - count / self.nobs, 0):.2f} % missing")
        ordered = self._ordered_patterns()
        lines.append(f"  {counted(len(ordered), 'pattern')}:")
        lines += [f"  {count:>10,}  {parties}" for parties, count in ordered[:SHOWN_PATTERNS]]
        if len(ordered) > SHOWN_PATTERNS:
            rest = sum(count for _, count in ordered[SHOWN_PATTERNS:])
            lines.append(f"  {rest:>10,}  in {len(ordered) - SHOWN_PATTERNS} other patterns")
        return lines

    def _ordered_patterns(self) -> list[tuple[str, int]]:
        """(the parties of a pattern, its records), the most frequent first."""
        return [
            (" + ".join(party for has, party in zip(mask, self.parties, strict=True) if has), count)
            for mask, count in sorted(self.patterns, key=lambda pattern: -pattern[1])
        ]

    # --- as a view --------------------------------------------------------------------------------------------

    def view(self) -> View:
        title = f"{self.response}, explained by {counted(len(self.params) - 1, 'feature')}"
        table = Table(
            title="Coefficients",
            head=("", "coef", "std err", self._letter, f"P>|{self._letter}|", "95 % from", "to"),
            rows=self._rows(),
            numeric=tuple(range(1, 7)),
            shown=SHOWN_COEFFICIENTS,
        )
        return View(
            title=title,
            quality=self._quality(),
            answer=(
                Text(text=self._lead(), style="lead"),
                self._figure(),
                table,
                Text(text="Coefficients are per unit of a column, as it was declared.", style="soft"),
            ),
            sections=(
                Section(title="Missing blocks", blocks=self._missing_blocks()),
                Section(title="Residuals", blocks=self._residuals()),
            ),
            terminal=(replace(table, title=title, shown=None),),
            warnings=(self.first_line,) if NOT_VALID in self.first_line or self.first_line != self.verdict else (),
        )

    def _lead(self) -> str:
        return (
            f"R-squared {self.rsquared:.4f} (adjusted {self.rsquared_adj:.4f}), from {number(self.nobs)} records of"
            f" {number(self.cohort)}; {number(min(self.complete, self.nobs))} of them are complete."
        )

    def _quality(self) -> str:
        tested = self.pvalues.drop("const")
        explained = "" if math.isnan(self.rsquared) else f"R-squared {self.rsquared:.3f}. "
        errors = "count the missing blocks and any noise"
        if self.baseline:
            errors = "are those of least squares on a table without gaps, a baseline to compare with"
        first = f"{self.first_line} " if self.first_line else ""
        return (
            f"{first}{explained}{int((tested < 0.05).sum())} of {len(tested)} coefficients differ from zero at 5 %;"
            f" their standard errors {errors}."
        )

    def _figure(self) -> Figure:
        """Sorted by size. A column's unit is arbitrary, so its coefficient is multiplied by the column's deviation."""
        names = [feature.name for feature in self.features]
        deviation = pd.Series(np.sqrt(np.diag(self.sigma)), index=names).drop(self.response)
        effects = self.conf_int().loc[deviation.index].mul(deviation, axis=0).assign(centre=self.params * deviation)
        effects = effects.iloc[np.argsort(-effects["centre"].abs(), kind="stable")]
        others = {}
        if self.beside is not None and COMPLETE_CASES in self.beside:
            beside = self.beside[COMPLETE_CASES].reindex(effects.index)
            sizes = (beside * deviation[effects.index]).astype(object)
            others[f"complete cases ({number(self.complete)} records)"] = sizes.where(sizes.notna(), None).tolist()
        return Figure(
            name="coefficients",
            chart="intervals",
            data={
                "labels": [str(name) for name in effects.index],
                "centres": effects["centre"].tolist(),
                "lows": effects[0].tolist(),
                "highs": effects[1].tolist(),
                "name": f"all {number(self.nobs)} records used, 95 % interval",
                "others": others,
            },
            label="Coefficients with intervals; the table has the numbers",
            title="Effect of one standard deviation of each feature",
            x=f"change of {self._unit}",
            caption=f"Lines are 95 % intervals; the dashed one is zero. {self._alone}".rstrip(),
        )

    def _blocks_figure(self) -> Figure:
        held = [sum(feature.party == party for feature in self.features) for party in self.parties]
        patterns = sorted(self.patterns, key=lambda pattern: -pattern[1])
        return Figure(
            name="missing blocks",
            chart="blocks",
            data={
                "parties": list(self.parties),
                "columns": held,
                "patterns": [list(mask) for mask, _ in patterns],
                "counts": [max(count, 0) for _, count in patterns],
            },
            label="Which records have which party's block; the numbers are in the tables below",
            title="Which blocks are there",
            x="party, as wide as it has columns",
            y="noisy number of records used" if self.noisy else "records used",
            caption="A band is one pattern of presence, as high as it has records.",
        )

    @property
    def _unit(self) -> str:
        return with_unit(self.response, self.columns[self.response].unit if self.response in self.columns else None)

    @property
    def _alone(self) -> str:
        """Why complete cases are not drawn beside it; empty where they are, or where nothing asks for them."""
        if self.complete >= self.nobs:
            return "All records used are complete cases." if self.nobs < self.cohort else ""
        if self.baseline or (self.beside is not None and COMPLETE_CASES in self.beside):
            return ""
        return f"Complete cases are not drawn: {self._no_complete_cases}."

    @property
    def _no_complete_cases(self) -> str:
        if self.noisy:
            return "what was released does not give them without bias, and more would cost epsilon"
        return "too few records are complete"

    def _missing_blocks(self) -> tuple[Table | Heading | Items | Figure, ...]:
        parties = tuple(
            (party, number(self.present(party)), share(self.nobs - self.present(party), self.nobs))
            for party in self.parties
        )
        patterns = tuple((who, number(count), share(count, self.nobs)) for who, count in self._ordered_patterns())
        return (
            *((self._blocks_figure(),) if len(self.parties) > 1 else ()),
            Table(
                title="Missingness by party",
                head=("party", "records used that it has", "missing"),
                rows=parties,
                numeric=(1, 2),
            ),
            Table(
                title="Presence patterns",
                head=("records at", "records", "share"),
                rows=patterns,
                numeric=(1, 2),
                shown=SHOWN_PATTERNS,
            ),
            Heading(text="What the estimates rest on"),
            Items(items=self.notes),
        )

    def normality(self) -> pd.DataFrame | None:
        """By how many per cent standard errors of the Gaussian fit are larger by the spread between groups of records
        than by normal theory, with a 95 % interval; None where there are no such groups.

        If residuals vary alike everywhere and what is missing follows the normal law, both estimate the same (White's
        information matrix equality), and df times the squared ratio is chi-squared with the groups' df.
        """
        if self.beside is None or NORMAL_THEORY not in self.beside or self.df_groups is None:
            return None
        ratio = self.beside["Gaussian std err"] / self.beside[NORMAL_THEORY]
        ends = np.sqrt(self.df_groups / chi2.ppf([0.975, 0.025], self.df_groups))
        frame = pd.DataFrame({"difference": ratio, 0: ratio * ends[0], 1: ratio * ends[1]}).drop("const")
        beyond = frame[np.isfinite(frame["difference"])].sub(1).mul(100)
        ordered: pd.DataFrame = beyond.iloc[np.argsort(-beyond["difference"].abs(), kind="stable")]
        return ordered

    def _normality(self) -> tuple[Figure | Text, ...]:
        checked = self.normality()
        lacking = (
            "There is no plot of single residuals and no Q-Q plot: rows stay with their parties, and skewness and tails"
            " take third and fourth powers of residuals, which are not among the moments that were opened."
        )
        if checked is None or checked.empty:
            return (Text(text=lacking, style="soft"),)
        rows = tuple(
            (str(name), f"{value:+.1f}", f"{low:+.1f}", f"{high:+.1f}")
            for name, value, low, high in checked.itertuples(name=None)
        )
        figure = Figure(
            name="normality",
            chart="intervals",
            data={
                "labels": [str(name) for name in checked.index],
                "centres": checked["difference"].tolist(),
                "lows": checked[0].tolist(),
                "highs": checked[1].tolist(),
                "name": "larger than by normal theory, 95 % interval",
            },
            label="Standard errors from groups of records against normal theory; the table has the numbers",
            title="Do errors need the normal law?",
            x="standard error beyond that of normal theory, in %",
            caption="Standard errors of the Gaussian fit by the spread between groups of records, against those of"
            " normal theory. They differ where residuals do not vary alike everywhere, or what is missing does not"
            " follow the normal law. The intervals above come from the groups, and hold either way.",
            numbers=Table(
                title="Standard errors beyond normal theory",
                head=("feature", "per cent", "95 % from", "to"),
                rows=rows,
                numeric=(1, 2, 3),
                shown=SHOWN_COEFFICIENTS,
            ),
        )
        return (figure, Text(text=lacking, style="soft"))

    def _residuals(self) -> tuple[Figure | Table | Text, ...]:
        """What the opened moments tell of the residuals, and why there is no more."""
        if self.residuals is None or len(self.residuals) < 2:
            why = (
                "All records that tell of residuals have the same blocks, so their mean is 0 by construction."
                if self.residuals is not None
                else self._unchecked
            )
            return (Text(text=why), *self._normality())
        shown = self.residuals[self.residuals["records"] >= FEWEST_RESIDUALS].head(SHOWN_PATTERNS)
        reach = norm.isf(0.025) * shown["std err"]
        rows = tuple(
            (who, number(count), f"{mean:+.3f}", f"{error:.3f}", f"{sd:.3f}", f"{slope:+.3f}")
            for who, count, mean, error, sd, slope in self.residuals.itertuples(index=False, name=None)
        )
        table = Table(
            title="Residuals by pattern",
            head=("records at", "records", "mean", "std err", "sd over the fitted", "slope on the fitted value"),
            rows=rows,
            numeric=(1, 2, 3, 4, 5),
            shown=SHOWN_PATTERNS,
        )
        if shown.empty:
            return (table, *self._normality())
        figure = Figure(
            name="residuals",
            chart="intervals",
            data={
                "labels": shown["records at"].tolist(),
                "centres": shown["mean"].tolist(),
                "lows": (shown["mean"] - reach).tolist(),
                "highs": (shown["mean"] + reach).tolist(),
                "name": "mean of the residuals, 95 % interval",
            },
            label="Mean residual of each pattern of presence with its interval; the table has the numbers",
            title="Residuals by pattern of presence",
            x="mean residual, in standard deviations",
            caption="From what a pattern's records show. Where which blocks are missing has nothing more to do with the"
            " response, means are about 0, deviations about 1 and slopes about 0. Where it has, complete cases mislead;"
            " this fit allows for it as far as values that are there decide it (missing at random), which no residual"
            f" can show. Patterns of fewer than {FEWEST_RESIDUALS} records are in the table only.",
            numbers=table,
        )
        return (figure, *self._normality())

    @property
    def _unchecked(self) -> str:
        """Why nothing is known of residuals."""
        if self.noisy:
            return "Residuals were not checked: the fit uses up the noisy moments, and others would cost epsilon."
        return "Residuals were not checked: what was opened determines the fit and tells no more."

    # --- as data ----------------------------------------------------------------------------------------------

    def write(self, run: RunFolder) -> None:
        """summary.txt and coefficients.csv too."""
        table = self.table().rename(columns={0: "low", 1: "high"})
        run.write("summary.txt", self.summary() + "\n")
        run.write("coefficients.csv", csv_text(table, index_label="name"))
        super().write(run)

    def to_dict(self) -> dict[str, Any]:
        stated = ["response", "model", "method", "nobs", "cohort", "sigma2", "rsquared", "rsquared_adj", "trace"]
        stated += ["parties", "released", "cost", "notes", "simulated", "count_sd"]
        return {name: plain(getattr(self, name)) for name in stated} | {
            "params": self.params.to_dict(),
            "bse": self.bse.to_dict(),
            "pvalues": self.pvalues.to_dict(),
            "conf_int": self.conf_int().T.to_dict("list"),
            "cov_params": self.cov.to_numpy().tolist(),
            "df_groups": self.df_groups,
            "loglik": None if self.noisy else self.loglik,
            **{name: getattr(self, name, None) for name in ("llf", "aic", "bic")},
            "mean": self.mu.tolist(),
            "covariance": self.sigma.tolist(),
            "features": [feature.name for feature in self.features],
            "patterns": [{"present": list(mask), "count": count} for mask, count in self.patterns],
            "verdict": self.verdict or None,
            "weighted_by": self.weighted_by,
            "fmi": None if self.fmi is None else self.fmi.to_dict(),
            # A category that no complete record has is without a coefficient there.
            "beside": None
            if self.beside is None
            else self.beside.astype(object).where(self.beside.notna(), None).to_dict(),
            "residuals": None if self.residuals is None else self.residuals.to_dict("records"),
        }

    @classmethod
    def records_behind(cls, stated: Mapping[str, Any]) -> Iterator[Counted]:
        of_all, of_pattern = stated["count_sd"]
        yield "the regression (records used)", stated["nobs"], of_all
        yield "its degrees of freedom", stated["nobs"] - len(stated["params"]), of_all
        for pattern in stated["patterns"]:
            yield of_exactly(itertools.compress(stated["parties"], pattern["present"])), pattern["count"], of_pattern
