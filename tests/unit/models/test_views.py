"""What principal components and classifiers show, with noise and without."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from colonnade.data.column import Columns
from colonnade.models.classify import MOST_SHOWN, Classifier
from colonnade.models.pca import PrincipalComponents
from colonnade.statistics.features import Feature
from colonnade.view.blocks import Table, View
from colonnade.view.render import render_blocks

FEATURES = tuple(Feature(f"x{i}", "bank", f"x{i}", None, 0.0, 1.0) for i in range(20))

COMPONENTS = PrincipalComponents(
    components_=np.eye(20)[:2],
    explained_variance_=np.array([0.5, 0.01]),
    explained_variance_ratio_=np.array([0.1, 0.002]),
    ratio_sd_=np.array([0.01, 0.001]),
    mean_=np.zeros(20),
    scale_=np.ones(20),
    hidden=(),
    features=FEATURES,
    columns=Columns([]),
    n=1000,
    noise_sd_=10.0,
    noise_floor_=2 * 10.0 * np.sqrt(20) / 1000,
    simulated=False,
)
CLASSIFIER = Classifier(
    coef_=np.linspace(-2, 1, 20)[None, :],
    intercept_=np.array([0.25]),
    classes_=np.array(["no", "yes"]),
    response="failed",
    solver="moments",
    features=FEATURES,
    columns=Columns([]),
    n=1000,
    noise_sd_=10.0,
    n_iter_=1,
    simulated=False,
)


@pytest.mark.parametrize("result", [COMPONENTS, CLASSIFIER])
def test_a_view_is_plain_data(result: PrincipalComponents | Classifier) -> None:
    assert View.from_dict(result.view().to_dict()) == result.view()


def test_components_are_compared_with_what_noise_alone_would_show() -> None:
    """2 sd sqrt(d) / n, and one of two variances above it."""
    view = COMPONENTS.view()
    assert f"up to about {2 * 10 * math.sqrt(20) / 1000:.2g}. 1 of 2 lie above." in view.quality
    assert view.tables()[0].rows[0] == ("1", "0.5", "10.0 ± 2 %", "x0 +1.00, x1 +0.00, x2 +0.00, x3 +0.00")
    exact = replace(COMPONENTS, noise_sd_=0.0).view()
    assert exact.quality.startswith("No noise was added")
    assert "is exact" in render_blocks(exact.sections[0].blocks)


@pytest.mark.parametrize(("kept", "chart"), [(3, "dots"), (5, "weights")])
def test_weights_of_all_components_are_drawn_and_in_the_table(kept: int, chart: str) -> None:
    """Oracle: the rows of `components_`, feature by feature."""
    directions = np.linalg.qr(np.random.default_rng(2).normal(size=(20, 20)))[0][:kept]
    shares = np.linspace(0.5, 0.1, kept)
    result = replace(
        COMPONENTS,
        components_=directions,
        explained_variance_=shares,
        explained_variance_ratio_=shares / 5,
        ratio_sd_=shares / 50,
    )
    figure = result.view().figures()["loadings"]
    assert figure.chart == chart
    drawn = figure.data["matrix"] if chart == "weights" else list(zip(*figure.data["series"].values(), strict=True))
    wanted = [directions[:, int(name[1:])] for name in figure.data["labels"]]
    assert np.asarray(drawn) == pytest.approx(np.array(wanted))
    assert figure.numbers is not None
    assert [row[0] for row in figure.numbers.rows] == figure.data["labels"]
    assert figure.numbers.rows[0][1:] == tuple(f"{weight:+.3f}" for weight in wanted[0])


def test_coefficients_come_by_size_and_the_small_ones_are_folded() -> None:
    view = CLASSIFIER.view()
    assert view.title == "failed = yes, explained by 20 features"
    (table,) = (block for block in view.answer if isinstance(block, Table))
    assert table.rows[:2] == (("(intercept)", "+0.2500"), ("x0", "-2.0000"))
    assert (len(table.rows), table.shown) == (21, MOST_SHOWN)
    sizes = [abs(float(cell)) for _, cell in table.rows[1:]]
    assert sizes == sorted(sizes, reverse=True)
    assert "standard deviation 10" in view.quality
    behind = render_blocks(view.sections[0].blocks)
    assert "Fitted from one noisy Gram matrix." in behind
    rounds = replace(CLASSIFIER, solver="minibatch", n_iter_=30).view()
    assert "Fitted from 30 noisy gradients." in render_blocks(rounds.sections[0].blocks)
