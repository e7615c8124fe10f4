"""`Regress(family="binomial", epsilon=...)`: what is opened, the fit beside statsmodels', and what is said of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import expit

from colonnade.federation.plan import HOPELESS
from colonnade.models.glm.private_fit import COUNTED, InformationStages, PrivateGeneralizedFit
from colonnade.models.linear.regress import Regress
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.randomness import SimulatedRandomness
from support.buyers import NAMES, buyers, buyers_federation, pooled
from support.shapes import shape


def test_the_fit_is_that_of_statsmodels_on_complete_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At epsilon 100 noise is a tenth of the standard errors (seeded); the bank lacks every fifth record. The opened
    information is the exact one of what was shared, up to the rounding of rows and its noise."""
    frame = buyers(4000)
    rows, sign = pooled(frame)
    complete = frame["id"].to_numpy() % 5 != 0
    oracle = sm.Logit((sign > 0)[complete].astype(float), sm.add_constant(rows[complete])).fit(disp=0)
    seen: list[tuple[np.ndarray, Any, np.ndarray, float]] = []
    information = InformationStages.information

    def watched(stages: InformationStages, job: Any, point: np.ndarray, units: Any) -> tuple[np.ndarray, float]:
        found = information(stages, job, point, units)
        seen.append((point, units, *found))
        return found

    monkeypatch.setattr(InformationStages, "information", watched)
    with buyers_federation(tmp_path, frame, absent="bank", seed=5) as parties:
        model = Regress(response="bought", family="binomial", epsilon=100.0)
        fit = model.fit(parties, sure=True)
        layout = model.procedure(parties.facts, parties.roster).information.layout  # type: ignore[attr-defined]
    order = ["const", *NAMES]
    assert np.abs(fit.params[order] - oracle.params).max() < 0.5 * oracle.bse.max()
    assert fit.bse[order].to_numpy() == pytest.approx(oracle.bse, rel=0.12)
    assert fit.nobs == pytest.approx(complete.sum(), abs=20)
    assert fit.verdict.startswith("Valid if whether a record is complete depends on the covariates only: about 3,2")
    assert fit.noisy
    assert "complete records" in fit.summary()
    assert "All records used are complete cases" in fit.view().figures()["coefficients"].caption
    # The matrix itself: rows in the order of the layout's features, in its units.
    ((point, units, matrix, count),) = seen
    table = rows[:, [NAMES.index(feature.name) for feature in layout.features]]
    shown = np.column_stack([np.ones(len(table)), (table - units.centres) * units.scales])
    for party, norm in zip(layout.parties, units.norms[1:] * units.length, strict=True):
        mine = [place for place in layout.place(party).tolist() if place]
        shown[:, mine] *= np.minimum(1, norm / np.maximum(np.linalg.norm(shown[:, mine], axis=1, keepdims=True), 1e-9))
    mean = expit(point[0] + table @ point[1:])
    exact = (shown * (mean * (1 - mean) * complete)[:, None]).T @ shown
    noise = layout.noise_sd * units.length**2
    assert np.abs(matrix - exact).max() < 5 * noise + 0.02 * np.diag(exact).max()
    assert count == pytest.approx(complete.sum(), abs=6 * layout.noise_sd * COUNTED)


def test_no_slope_exceeds_its_bound() -> None:
    """W on shares, as `test_private_scores` has it for residuals: none above the bound, with the corner of a record's
    products beside it."""
    facts, roster = shape(5)
    made = PrivateGeneralizedFit(facts, roster, names=("x0", "x1", "k", "x2", "x3", "x4", "y"), epsilon=1.0, delta=1e-6)
    layout, rng = made.information.layout, np.random.default_rng(0)
    width, parties = layout.width - 1, layout.parties
    for size in (0.0, 0.01, 1.0, 30.0):
        chosen = layout.with_chosen(
            coefficients=tuple((size * rng.normal(size=width + 1)).tolist()),
            centres=(0.0,) * width,
            units=(100.0,) * width,
            norms=(math.sqrt(1 / (1 + len(parties))) * (1 - 1e-9),) * (1 + len(parties)),
        )
        everyone, presence = np.ones(facts.n, dtype=bool), np.full(facts.n, -2)
        real, imaginary, rows = None, None, []
        for party in (*chosen.others, chosen.response_party):
            values = rng.uniform(-1, 1, (facts.n, sum(feature.party == party for feature in chosen.features)))
            part = chosen.quantised(party, values, everyone, presence, SimulatedRandomness(1))
            factor = part[:, len(chosen.place(party)) :]
            rows.append(part[:, : len(chosen.place(party))])
            cosine, sine = factor[:, : chosen.factor_width // 2], factor[:, chosen.factor_width // 2 :]
            if party == chosen.response_party:
                terms = real * cosine + imaginary * sine
            elif real is None:
                real, imaginary = cosine, sine
            else:
                real, imaginary = real * cosine - imaginary * sine, real * sine + imaginary * cosine
        slope = terms[:, 1:].sum(axis=1) / layout.scale
        assert np.all(terms[:, 0] == layout.scale), "presence is exact"
        assert np.abs(slope).max() <= layout.largest_slope
        row = np.concatenate(rows, axis=1).astype(float)
        upper = np.triu(np.einsum("ri,rj->rij", row, row)) * (slope * layout.scale)[:, None, None]
        beside = (layout.gamma**2 // COUNTED) * layout.scale
        assert np.sqrt((upper**2).sum(axis=(1, 2)) + beside**2).max() <= layout.delta_2


def test_the_whole_fit_costs_what_was_asked() -> None:
    facts, roster = shape()
    made = PrivateGeneralizedFit(facts, roster, names=("x0", "x1", "k", "x2", "y"), epsilon=1.0, delta=1e-6)
    assert 0.99 < guarantee(made.releases(1), delta=1e-6, relation="zero-out").epsilon <= 1.0
    assert max(stages.layout.mu for stages in (made.first, made.information, made.last)) < 2**90


def test_a_design_that_cannot_work_is_told_before_and_said_first(tmp_path: Path) -> None:
    """200 records at epsilon 0.5: the plan warns, and the result has no valid intervals (seeded)."""
    with buyers_federation(tmp_path, buyers(200), seed=6) as parties:
        model = Regress(response="bought", family="binomial", epsilon=0.5)
        assert any(note.startswith(HOPELESS) for note in parties.plan(model).notes)
        fit = model.fit(parties, sure=True)
    assert fit.verdict.startswith("Not valid for inference")
    assert fit.summary().startswith("Not valid for inference")
    assert np.isfinite(fit.params).all()
