"""`Regress(family="poisson", epsilon=...)`: what is opened, the fit beside statsmodels', and what is said of it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from colonnade.data.column import Column, Columns
from colonnade.errors import SchemaError
from colonnade.federation.coordinator import Federation
from colonnade.federation.plan import HOPELESS
from colonnade.models.glm.attacks import plain_score
from colonnade.models.glm.bounded import density, distribution
from colonnade.models.glm.private import NoisyScores, NoisyScoreStages, Units
from colonnade.models.glm.private_fit import InformationStages, PrivateGeneralizedFit, VariationStages
from colonnade.models.linear.regress import Regress
from colonnade.privacy.randomness import SimulatedRandomness

COLUMNS = Columns(
    [
        Column(name="u", kind="continuous", lower=-1.0, upper=3.0),
        Column(name="claims", kind="count", lower=0, upper=40),
        Column(name="bought", kind="binary", categories=("no", "yes")),
        Column(name="place", kind="categorical", categories=("north", "south", "west")),
        Column(name="w", kind="continuous", lower=-2.0, upper=2.0),
        Column(name="years", kind="continuous", lower=-1.5, upper=2.5),
    ]
)
HELD = {"court": ["u", "claims", "bought"], "census": ["place"], "tax": ["w", "years"]}
NAMES = ["const", "u", "place[south]", "place[west]", "w"]
COVARIATES = ("u", "place", "w")


def claims(n: int, dispersion: float = 0.5) -> pd.DataFrame:
    """Counts of mean 1.8 with a variance of mu + dispersion mu^2, in proportion to exp(years)."""
    rng = np.random.default_rng(8)
    u, w, years = rng.uniform(-1, 3, n), np.clip(rng.normal(0, 0.7, n), -2, 2), rng.uniform(-1.0, 1.0, n)
    place = rng.choice(["north", "south", "west"], n)
    mean = np.exp(0.1 + 0.3 * u - 0.5 * w + 0.4 * (place == "west") + years)
    counts = rng.poisson(mean * rng.gamma(1 / dispersion, dispersion, n))
    bought = np.where(rng.uniform(size=n) < 1 / (1 + np.exp(0.5 - u - years)), "yes", "no")
    frame = pd.DataFrame({"id": np.arange(n), "u": u, "w": w, "years": years, "place": place, "bought": bought})
    return frame.assign(claims=np.minimum(counts, 40))


def design(frame: pd.DataFrame) -> np.ndarray:
    indicators = [frame["place"] == name for name in ("south", "west")]
    return np.column_stack([np.ones(len(frame)), frame["u"], *indicators, frame["w"]]).astype(float)


def claims_federation(tmp_path: Path, frame: pd.DataFrame, **options: Any) -> Federation:
    """The tax office lacks every fifth record."""
    blocks = {
        party: frame.loc[(frame["id"] % 5 != 0) | (party != "tax"), ["id", *names]] for party, names in HELD.items()
    }
    return Federation.local(
        blocks, key="id", columns=COLUMNS, home=tmp_path / "home", runs=tmp_path / "runs", **options
    )


class Watch:
    """What the parties share and what is opened of every round; all parties are in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: dict[tuple[str, int], dict[str, np.ndarray]] = {}
        self.layouts: dict[tuple[str, int], NoisyScores] = {}
        self.opened: dict[tuple[str, int], np.ndarray] = {}
        self.matrices: list[tuple[np.ndarray, Units, np.ndarray]] = []
        quantised, opened = NoisyScores.quantised, NoisyScoreStages.round

        def shared(layout: NoisyScores, party: str, *rest: Any) -> np.ndarray:
            key = layout.label, layout.turn
            self.layouts[key] = layout
            made = self.parts.setdefault(key, {})[party] = quantised(layout, party, *rest)
            return made

        def round_(stages: NoisyScoreStages, job: Any, turn: int, *rest: Any) -> np.ndarray:
            found = self.opened[stages.layout.label, turn] = opened(stages, job, turn, *rest)
            return found

        monkeypatch.setattr(NoisyScores, "quantised", shared)
        monkeypatch.setattr(NoisyScoreStages, "round", round_)
        for kind, name in ((InformationStages, "information"), (VariationStages, "variation")):
            monkeypatch.setattr(kind, name, self._watched(getattr(kind, name)))

    def _watched(self, method: Any) -> Any:
        def watched(stages: Any, job: Any, point: np.ndarray, units: Units) -> Any:
            found = method(stages, job, point, units)
            self.matrices.append((point, units, found[0] if isinstance(found, tuple) else found))
            return found

        return watched


def test_the_fit_is_that_of_statsmodels_on_complete_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At epsilon 200 noise is a tenth of the standard errors (seeded). What is opened is the exact score of what was
    shared, up to its noise; the matrices are those of the records, up to noise and the rounding of rows."""
    frame = claims(6000)
    complete = frame["id"].to_numpy() % 5 != 0
    table, counts, years = design(frame), frame["claims"].to_numpy(), frame["years"].to_numpy()
    oracle = sm.GLM(counts[complete], table[complete], family=sm.families.Poisson(), offset=years[complete])
    found = oracle.fit(cov_type="HC0")
    watch = Watch(monkeypatch)
    with claims_federation(tmp_path, frame, seed=5) as parties:
        model = Regress(response="claims", columns=COVARIATES, family="poisson", offset="years", epsilon=200.0)
        fit = model.fit(parties, sure=True)
    off = (fit.params[NAMES] - found.params) / found.bse
    assert np.abs(off).max() < 0.4
    assert fit.bse[NAMES].to_numpy() == pytest.approx(found.bse, rel=0.12)
    assert np.all(found.bse > 1.2 * oracle.fit().bse), "robust errors are larger here"
    assert fit.nobs == pytest.approx(complete.sum(), abs=20)
    assert fit.offset == "years"
    assert fit.dropped == ()
    assert fit.verdict.startswith("Valid if whether a record is complete depends on the covariates only: about 4,")
    expected = np.exp(table @ fit.params[NAMES].to_numpy() + years)
    assert fit.predict(frame).to_numpy() == pytest.approx(expected, rel=1e-6)
    for (label, turn), layout in watch.layouts.items():
        if "scores" not in label:
            continue
        rows = {party: part[:, : len(layout.place(party))] for party, part in watch.parts[label, 0].items()}
        exact = plain_score(layout, watch.parts[label, turn], rows)[layout.order]
        noise = watch.opened[label, turn].astype(float) - exact
        assert np.abs(noise).max() < 5 * math.sqrt(2 * layout.mu)
    # The matrices themselves: rows in the order of the layout's features, in its units.
    layout = watch.layouts["scores", 0]
    order = [1 + ["u", "place[south]", "place[west]", "w", "years"].index(f.name) for f in layout.features]
    columns = np.column_stack([table, years])[:, order]
    plain = np.column_stack([(columns[:, at] - f.centre) / f.half for at, f in enumerate(layout.features)])
    (_, units, _), _ = watch.matrices
    shown = clipped(layout, plain, units)
    traces = []
    for (point, _, matrix), kind in zip(watch.matrices, ("information", "variation"), strict=True):
        eta = point[0] + plain @ point[1:] - math.log(units.cap)
        weight = units.cap * density(eta, units.cap)
        if kind == "variation":
            weight = (np.minimum(counts, units.cap) - units.cap * distribution(eta, units.cap)) ** 2
        exact = (shown * (weight * complete)[:, None]).T @ shown
        sd = watch.layouts[kind, 0].noise_sd * units.length**2 * units.cap ** (1 + (kind == "variation"))
        assert np.abs(matrix - exact).max() < 5 * sd + 0.03 * np.diag(exact).max()
        assert sd < 0.1 * np.diag(exact).max()
        traces.append(np.trace(exact))
    (told,) = re.findall(r"Residuals vary (\S+) times", fit.summary())
    assert float(told) == pytest.approx(traces[1] / traces[0], abs=0.3)


def clipped(layout: NoisyScores, plain: np.ndarray, units: Units) -> np.ndarray:
    """Rows of features in their units, each party's part clipped to its norm."""
    shown = np.column_stack([np.ones(len(plain)), (plain - units.centres) * units.scales])
    for party, norm in zip(layout.parties, units.norms[1:] * units.length, strict=True):
        mine = [place for place in layout.place(party).tolist() if place]
        shown[:, mine] *= np.minimum(1, norm / np.maximum(np.linalg.norm(shown[:, mine], axis=1, keepdims=True), 1e-9))
    return shown


def exactly(made: PrivateGeneralizedFit, frame: pd.DataFrame, cap: int, wide: float) -> tuple[np.ndarray, np.ndarray]:
    """The estimate from exact sums without noise; rows are clipped at `wide` times their usual norm."""
    layout = made.first.layout
    table = np.column_stack([design(frame), frame["years"]])[:, 1:]
    order = [["u", "place[south]", "place[west]", "w", "years"].index(f.name) for f in layout.features]
    plain = np.column_stack([(table[:, at] - f.centre) / f.half for at, f in zip(order, layout.features, strict=True)])
    counts, everyone = frame["claims"].to_numpy(), np.ones(len(frame), dtype=bool)
    told = {}
    for party, shape in made.sums.items():
        told[party] = shape.exact(plain[:, shape.own], everyone, counts, SimulatedRandomness(0))
    units = replace(made.units(told), cap=cap)
    shown = clipped(layout, plain, replace(units, norms=units.norms * np.append(1, [wide] * len(layout.parties))))

    def residual(point: np.ndarray) -> np.ndarray:
        eta = point[0] + plain @ point[1:] - math.log(cap)
        return np.minimum(counts, cap) - cap * distribution(eta, cap)

    def score(_: int, point: np.ndarray) -> np.ndarray:
        return shown.T @ residual(point)

    def information(point: np.ndarray) -> tuple[np.ndarray, float]:
        eta = point[0] + plain @ point[1:] - math.log(cap)
        return (shown * (cap * density(eta, cap))[:, None]).T @ shown, float(len(plain))

    def variation(point: np.ndarray) -> np.ndarray:
        return (shown * residual(point)[:, None] ** 2).T @ shown

    harder = clipped(layout, plain, made.shorter(units))
    estimate = made.estimate(units, score, information, score, lambda point: harder.T @ residual(point), variation)
    params, cov = made.coefficients(units, estimate)
    used = [0, *(1 + at for at, feature in enumerate(layout.features) if feature.column != "years")]
    half = np.array([1.0, *(f.half for f in layout.features if f.column != "years")])
    centre = np.array([0.0, *(f.centre for f in layout.features if f.column != "years")])
    change = np.diag(1 / half)
    change[0] -= centre / half
    names = [f.name for f in layout.features if f.column != "years"]
    back = [0, *(1 + names.index(name) for name in NAMES[1:])]
    errors = np.sqrt(np.diag(change @ cov[np.ix_(used, used)] @ change.T))
    return (change @ params[used])[back], errors[back]


def test_without_noise_and_clipping_it_is_maximum_likelihood(tmp_path: Path) -> None:
    """Sums are exact, and the account is so generous that the noise which the errors count is next to nothing.
    Coefficients are statsmodels' to 2 % of a standard error, and errors its robust ones (HC0) to 3 %, if neither rows
    nor counts are clipped. Clipped rows move them by less than one standard error, and counts cut at 28, where the fit
    cuts them, by a fifth."""
    frame = claims(6000)
    oracle = sm.GLM(frame["claims"], design(frame), family=sm.families.Poisson(), offset=frame["years"])
    found = oracle.fit(cov_type="HC0")
    with claims_federation(tmp_path, frame) as parties:
        made = PrivateGeneralizedFit(
            parties.facts,
            parties.roster,
            family="poisson",
            names=(*COVARIATES, "claims"),
            offset="years",
            epsilon=2000.0,
            delta=1e-6,
        )
    for cap, wide, tolerance in ((40, 1e3, 0.02), (40, 0.7, 1.0), (28, 1e3, 0.2)):
        params, errors = exactly(made, frame, cap, wide)
        assert np.abs((params - found.params) / found.bse).max() < tolerance
        assert errors == pytest.approx(found.bse, rel=0.03 if wide > 1 else 0.25)


def test_a_logistic_fit_may_have_an_offset_too(tmp_path: Path) -> None:
    frame = claims(4000)
    complete = frame["id"].to_numpy() % 5 != 0
    event = (frame["bought"] == "yes").to_numpy(float)[complete]
    offset = frame["years"].to_numpy()[complete]
    oracle = sm.GLM(event, design(frame)[complete], family=sm.families.Binomial(), offset=offset).fit()
    with claims_federation(tmp_path, frame, seed=6) as parties:
        options = {"response": "bought", "columns": COVARIATES, "family": "binomial", "offset": "years"}
        fit = Regress(**options, epsilon=100.0).fit(parties, sure=True)
    assert np.abs((fit.params[NAMES] - oracle.params) / oracle.bse).max() < 0.5
    assert fit.bse[NAMES].to_numpy() == pytest.approx(oracle.bse, rel=0.12)


def test_what_cannot_work_is_told_before_and_said_first(tmp_path: Path) -> None:
    """200 records at epsilon 0.5: the plan warns and names an epsilon that is enough, and the result has no valid
    intervals (seeded)."""
    with claims_federation(tmp_path, claims(200), seed=6) as parties:
        model = Regress(response="claims", columns=COVARIATES, family="poisson", epsilon=0.5)
        notes = parties.plan(model).notes
        (hopeless,) = (note for note in notes if note.startswith(HOPELESS))
        assert "would be enough, or fewer columns" in hopeless
        assert any("next to nothing lies beyond" in note for note in notes)
        assert "Only records that every party has" in " ".join(notes)
        fit = model.fit(parties, sure=True)
        with pytest.raises(SchemaError, match="needs a count response"):
            parties.plan(Regress(response="u", columns=("place", "w"), family="poisson", epsilon=1.0))
    assert fit.verdict.startswith("Not valid for inference")
    assert fit.summary().startswith("Not valid for inference")
    assert np.isfinite(fit.params).all()


def test_counts_beyond_the_largest_cap_are_said_first(tmp_path: Path) -> None:
    """Counts of 100 or so, where none beyond 64 is told apart."""
    frame = claims(1000).assign(claims=lambda own: 60 + 3 * own["claims"])
    columns = Columns([*(c for c in COLUMNS.values() if c.name != "claims"), wide_count()])
    blocks = {party: frame[["id", *names]] for party, names in HELD.items()}
    with Federation.local(
        blocks, key="id", columns=columns, home=tmp_path / "home", runs=tmp_path / "runs", seed=7
    ) as parties:
        model = Regress(response="claims", columns=COVARIATES, family="poisson", epsilon=50.0)
        assert any("Counts beyond 64 count as 64 in any case" in note for note in parties.plan(model).notes)
        fit = model.fit(parties, sure=True)
    assert fit.verdict.startswith("Not valid for inference: counts beyond 64, which count as 64, are too many")


def wide_count() -> Column:
    return Column(name="claims", kind="count", lower=0, upper=500)
