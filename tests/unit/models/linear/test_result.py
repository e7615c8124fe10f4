"""What a regression shows: every number of the result, where it belongs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.models.linear.result import Regression
from colonnade.statistics.features import Feature
from colonnade.view.blocks import Figure, Items, Table, View
from colonnade.view.render import render_blocks, render_section


def result(names: tuple[str, ...] = ("age", "region[<b>]"), **changes: object) -> Regression:
    index = ["const", *names]
    every = (*names, "income")
    plain = Regression(
        response="income",
        params=pd.Series([1.0, *(0.5 - place for place in range(len(names)))], index=index, name="coef"),
        cov=pd.DataFrame(np.eye(len(index)) / 16, index=index, columns=index),
        sigma2=1.0,
        loglik=-10.0,
        rsquared=0.61234,
        nobs=900,
        cohort=1000,
        trace=(-11.0, -10.0),
        steps=(3, 1),
        mu=np.zeros(len(every)),
        sigma=4.0 * np.eye(len(every)),
        features=tuple(Feature(name, "bank" if name == "age" else "tax", name, None, 0.0, 1.0) for name in every),
        columns=Columns(Column(name=name, kind="continuous", lower=-9.0, upper=9.0) for name in every),
        parties=("bank", "tax"),
        patterns=(((True, True), 300), ((False, True), 600)),
        dropped=(),
        simulated=False,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def coefficients(view: View) -> Table:
    return next(block for block in view.answer if isinstance(block, Table))


def test_the_answer_has_the_numbers_and_escapes_names() -> None:
    view = result().view()
    page = render_blocks(view.answer)
    assert view.title == "income, explained by 2 features"
    assert "R-squared 0.6123" in page
    assert "900 records of 1,000; 300 of them are complete" in page
    assert "region[<b>]" not in page
    assert "region[&lt;b&gt;]" in page
    assert coefficients(view).rows[1] == ("age", "0.5", "0.25", "2.000", "0.046", "0.01001", "0.99")
    assert view.tables()[0].rows == coefficients(view).rows
    assert View.from_dict(view.to_dict()) == view


def test_the_quality_counts_clear_coefficients_and_says_what_the_errors_know() -> None:
    """Of 0.5 and -0.5 with standard errors 0.25 both differ from zero; a baseline's errors know nothing of gaps."""
    assert "2 of 2 coefficients differ from zero at 5 %" in result().view().quality
    assert "count the missing blocks" in result().view().quality
    baseline = result(baseline=True).view().quality
    assert "count the missing blocks" not in baseline
    assert "baseline" in baseline


def test_an_exact_coefficient_has_no_z() -> None:
    cov = result().cov.copy()
    cov.loc["age", "age"] = 0.0
    rows = coefficients(result(cov=cov).view()).rows
    assert rows[1][3] == "nan"
    assert math.isfinite(float(rows[2][3]))


def test_missing_blocks_are_counted_from_the_patterns() -> None:
    fit = result(remarks=("Valid if missing at random.",))
    section = fit.view().sections[0]
    page = render_section(section)
    assert fit.complete == 300
    assert fit.present("bank") == 300
    assert "66.7 %" in page  # the bank lacks 600 of 900
    assert "0.0 %" in page
    assert next(block for block in section.blocks if isinstance(block, Items)).items == fit.notes
    assert "Valid if missing at random." in page


@pytest.mark.parametrize("unused", ["lack the response", "are not complete"])
def test_the_records_that_are_not_used_are_named_rightly(unused: str) -> None:
    assert f"100 of the cohort's 1,000 records {unused} and are not used." in result(unused=unused).notes


def test_empty_cells_and_units_are_told() -> None:
    """A record that has the response and an empty cell beside it does not "lack the response" alone."""
    columns = Columns(
        [
            Column(name="age", kind="count", lower=0, upper=120, missing=True),
            Column(name="sex", kind="binary", categories=("m", "w"), missing=True),
            Column(name="seen", kind="date", from_="2019-01-01", to="2020-12-31"),
            Column(name="paid", kind="binary", categories=(0, 1)),
            Column(name="income", kind="continuous", lower=-9.0, upper=9.0),
        ]
    )
    notes = result(("age", "sex", "seen", "paid"), columns=columns).notes
    assert "A record with an empty cell in age, sex counts as one that its party lacks." in notes
    unused = "100 of the cohort's 1,000 records lack the response, or have an empty cell in sex, and are not used."
    assert unused in notes, "sex is the response holder's, age is not"
    assert "Units: sex is 1 for 'w'; seen counts days from 2019-01-01." in notes


def test_the_figure_shows_effects_of_a_deviation_the_largest_first() -> None:
    fit = result(("small", "large"), params=pd.Series([1.0, 0.1, -3.0], index=["const", "small", "large"], name="coef"))
    figure = next(block for block in fit.view().answer if isinstance(block, Figure))
    assert figure.data["labels"] == ["large", "small"]
    np.testing.assert_allclose(figure.data["centres"], [-6.0, 0.2])
    np.testing.assert_allclose(figure.data["highs"], [-6.0 + 2 * 0.48999, 0.2 + 2 * 0.48999], atol=1e-4)


def test_the_figure_names_the_unit_of_the_response() -> None:
    columns = result().columns
    assert result().plot().ax_.get_xlabel() == "change of income"
    priced = Columns(replace(column, unit="USD" if name == "income" else None) for name, column in columns.items())
    assert result(columns=priced).plot().ax_.get_xlabel() == "change of income (USD)"


def test_the_figure_says_why_complete_cases_are_not_in_it() -> None:
    """600 of 900 records lack a block."""

    def said(**changes: object) -> str:
        return result(**changes).view().figures()["coefficients"].caption.partition("zero.")[2].strip()

    assert said() == "Complete cases are not drawn: too few records are complete."
    assert "would cost epsilon" in said(loglik=math.nan)
    drawn = pd.DataFrame({"complete cases": [0.1, 0.2, 0.3]}, index=result().params.index)
    assert said(beside=drawn) == said(baseline=True) == ""
    assert said(patterns=(((True, True), 900),)) == "All records used are complete cases."
    assert said(patterns=(((True, True), 900),), cohort=900) == "", "nothing is missing"


def test_many_coefficients_leave_the_rest_to_the_table() -> None:
    fit = result(tuple(f"x{place}" for place in range(40)))
    page = render_blocks(fit.view().answer)
    assert "and 16 more in the table" in page
    assert "All 41 rows" in page
    assert len(fit.view().tables()[0].rows) == 41
