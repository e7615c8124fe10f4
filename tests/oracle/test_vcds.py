"""VCDS, EVCDS and IEVCDS against scipy on pooled rows, the laws that made the data, and closed forms.

Simulated seeds are fixed. Tolerances are at least 5 standard errors of what they bound (a false alarm of 6e-7).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.papers.vcds.method import EVCDS, IEVCDS, VCDS
from colonnade.papers.vcds.releases import PRESENCE, column_marginal
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.marginals import GRID, iterated_basis
from colonnade.synthesis.copula.model import GaussianCopula

R = np.array([[1.0, 0.7, 0.3, -0.4], [0.7, 1.0, 0.0, 0.2], [0.3, 0.0, 1.0, 0.1], [-0.4, 0.2, 0.1, 1.0]])
COLUMNS = Columns(
    [
        Column(name="a", kind="continuous", lower=-6.0, upper=6.0),
        Column(name="b", kind="continuous", lower=0.0, upper=400.0),
        Column(name="c", kind="binary", categories=("no", "yes")),
        Column(name="d", kind="count", lower=0, upper=12),
    ]
)
OWNERS = {"first": ["a"], "second": ["b", "c"], "third": ["d"]}
LOUD: dict[str, Any] = {"epsilon": 60.0, "accounting": "nominal", "split": "none"}
"""So large a budget that next to nothing is flipped."""


def pooled(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A Gaussian copula seen through a normal, a lognormal, a coin of chance 0.3 and a Poisson(3) column."""
    z = np.random.default_rng(seed).multivariate_normal(np.zeros(4), R, size=n)
    u = stats.norm.cdf(z)
    frame = pd.DataFrame(
        {
            "id": np.arange(n),
            "a": z[:, 0],
            "b": np.minimum(np.exp(1 + z[:, 1]), 400.0),
            "c": np.where(u[:, 2] > 0.7, "yes", "no"),
            "d": np.minimum(stats.poisson.ppf(u[:, 3], 3), 12).astype(int),
        }
    )
    return frame, z


def federation(tmp_path: Path, frame: pd.DataFrame, present: np.ndarray | None = None, **options: Any) -> Federation:
    """`present`: records x parties; all by default."""
    here = np.ones((len(frame), len(OWNERS)), dtype=bool) if present is None else present
    blocks = {p: frame.loc[here[:, k], ["id", *names]] for k, (p, names) in enumerate(OWNERS.items())}
    return Federation.local(
        blocks,
        key="id",
        columns=COLUMNS,
        home=tmp_path / "home",
        runs=tmp_path / "runs",
        allow=(PRESENCE,),
        **{"seed": 1, **options},
    )


def model_of(table: Any) -> GaussianCopula:
    assert isinstance(table.model, GaussianCopula)
    return table.model


def off_diagonal(found: np.ndarray) -> np.ndarray:
    return np.asarray((found - R)[np.triu_indices(4, 1)])


@pytest.mark.parametrize("noise", ["exact", "skellam"])
def test_without_noise_the_correlation_is_that_of_spearman_on_pooled_rows(tmp_path: Path, noise: str) -> None:
    """Oracle: scipy.stats.spearmanr on the pooled rows and 2 sin(pi rho / 6), for the two continuous columns."""
    frame, _ = pooled(2000, 1)
    with federation(tmp_path, frame) as parties:
        model = model_of(VCDS(**{**LOUD, "noise": noise}).fit(parties))
    rho = stats.spearmanr(frame["a"], frame["b"]).statistic
    assert model.correlation[0, 1] == pytest.approx(2 * np.sin(np.pi * rho / 6), abs=0.002)
    # Discrete columns: the law that made them; standard errors up to 0.03 at n = 2000.
    assert np.abs(off_diagonal(model.correlation)).max() < 0.15


def test_marginals_are_those_of_the_pooled_rows(tmp_path: Path) -> None:
    """Oracle: the empirical distribution. Noise is next to nothing, so a histogram is within one bin of it."""
    frame, _ = pooled(4000, 2)
    with federation(tmp_path, frame) as parties:
        table = VCDS(**LOUD).fit(parties)
    model, rows = model_of(table), table.sample(20_000)
    assert stats.kstest(frame["a"], model.marginals["a"].cdf).statistic < 0.02
    assert model.marginals["c"].probabilities[1] == pytest.approx((frame["c"] == "yes").mean(), abs=0.002)
    exact = frame["d"].value_counts(normalize=True).reindex(range(13), fill_value=0.0).to_numpy()
    assert np.allclose(model.marginals["d"].probabilities, exact, atol=0.002)
    assert np.allclose(rows["d"].value_counts(normalize=True).reindex(range(13), fill_value=0), exact, atol=0.02)


def test_the_bernstein_marginal_is_its_closed_form_when_noise_is_next_to_nothing() -> None:
    """Oracle: sum_v F(v / l) b_v(x) written with scipy's binomial probabilities, order 1, degree 20."""
    values = np.random.default_rng(3).beta(2, 3, 3000)
    column = Column(name="x", kind="continuous", lower=0.0, upper=1.0)
    here = {"epsilon": 1e6, "method": "bernstein", "randomness": SimulatedRandomness(1)}
    found = column_marginal(column, values, order=1, degree=20, **here)  # type: ignore[arg-type]
    nodes = np.array([(values <= v / 20).mean() for v in range(21)])
    x = np.linspace(0, 1, GRID + 1)
    closed = stats.binom.pmf(np.arange(21)[None, :], 20, x[:, None]) @ nodes
    assert np.abs(found.cumulative - closed)[1:-1].max() < 1e-3
    # The iterated operator of order 2 is 2 B - B B.
    at_nodes = stats.binom.pmf(np.arange(21)[None, :], 20, np.arange(21)[:, None] / 20)
    twice = 2 * closed - stats.binom.pmf(np.arange(21)[None, :], 20, x[:, None]) @ (at_nodes @ nodes)
    assert np.allclose(iterated_basis(20, 2, x) @ nodes, twice)
    second = column_marginal(column, values, order=2, degree=20, **here)  # type: ignore[arg-type]
    assert np.abs(second.cumulative - twice)[1:-1].max() < 1e-3


def test_released_ranks_are_unbiased_and_have_the_variance_of_the_formula(tmp_path: Path) -> None:
    """Over 200 columns of one party with the same values: mean within 5 standard errors, variance within 5 of its own.

    Oracle: mid-ranks by scipy, and (n - 1) s^2 with s^2 = theta (1 - theta) / (1 - 2 theta)^2.
    """
    n, copies = 60, 200
    values = np.random.default_rng(4).permutation(n).astype(float)
    names = [f"x{i}" for i in range(copies)]
    columns = Columns([Column(name=name, kind="continuous", lower=0.0, upper=100.0) for name in names])
    frame = pd.DataFrame({"id": range(n)} | dict.fromkeys(names, values))
    method = VCDS(epsilon=0.6, accounting="nominal", split="none")
    here = {"key": "id", "columns": columns, "home": tmp_path / "h", "runs": tmp_path / "r", "allow": (PRESENCE,)}
    with (
        Federation.local({"one": frame}, seed=2, **here) as parties,  # type: ignore[arg-type]
        parties.open(parties.plan(method)) as job,
    ):
        procedure = method.procedure(parties.facts, parties.roster)
        ranks = procedure.ask_ranks(job, procedure.ask_presence(job))
        order = parties.transport["one"].rows  # type: ignore[index]
    truth = np.empty(n)
    truth[order] = stats.rankdata(values)
    theta = 1 / (1 + np.exp(0.3))
    variance = (n - 1) * theta * (1 - theta) / (1 - 2 * theta) ** 2
    error = ranks - truth[:, None]
    assert np.abs(error.mean(axis=1)).max() < 5 * np.sqrt(variance / copies)
    assert error.var() == pytest.approx(variance, rel=5 * np.sqrt(2 / error.size) * 1.5)
    assert np.allclose(ranks.sum(axis=0), n * (n + 1) / 2)


def test_the_error_falls_with_the_records_and_with_epsilon(tmp_path: Path) -> None:
    """Root mean square error of all latent correlations over 3 runs, far apart by the forecast's factors."""

    def error(n: int, epsilon: float) -> float:
        found = []
        for seed in range(3):
            frame, _ = pooled(n, 10 + seed)
            with federation(tmp_path / f"{n} {epsilon} {seed}", frame, seed=seed) as parties:
                made = VCDS(epsilon=epsilon, accounting="nominal", split="none", noise="skellam")
                found.append(off_diagonal(model_of(made.fit(parties)).correlation))
        return float(np.sqrt(np.mean(np.square(found))))

    few, loud, many = error(300, 0.2), error(300, 4.0), error(3000, 0.2)
    assert loud < few / 2
    assert many < few / 2


def missing_at_random(z: np.ndarray, seed: int) -> np.ndarray:
    """`second` lacks records by the value of `a`, which everybody shows: the larger a is, the more often."""
    chance = stats.norm.cdf(1.5 * z[:, 0])
    present = np.ones((len(z), 3), dtype=bool)
    present[:, 1] = np.random.default_rng(seed).random(len(z)) > chance
    return present


def test_iterations_correct_a_marginal_under_mar_that_vcds_cannot(tmp_path: Path) -> None:
    """b is missing where a is large, and r(a, b) = 0.7, so present values of b lie low.

    Oracle: the median of b is e, and the latent mean of its present records is -0.7 x 2 x 1.5 / sqrt(1 + 1.5^2) phi(0)
    = -0.465. IEVCDS must recover at least half of that shift; VCDS recovers none of it.
    """
    frame, z = pooled(3000, 20)
    present = missing_at_random(z, 21)
    shift = z[present[:, 1], 1].mean()
    assert shift == pytest.approx(-0.465, abs=0.12)
    methods = {
        "vcds": VCDS(**LOUD),
        "evcds": EVCDS(**LOUD),
        "one round": IEVCDS(iterations=1, **LOUD),
        "ievcds": IEVCDS(iterations=8, sweeps=2, per_iteration=True, **LOUD),
    }
    with federation(tmp_path, frame, present) as parties:
        models = {name: model_of(method.fit(parties)) for name, method in methods.items()}
    # Where the true median of b lies in each marginal, on the latent scale: 0 is right.
    off = {name: float(stats.norm.ppf(model.marginals["b"].cdf(np.e))) for name, model in models.items()}
    assert off["vcds"] > 0.35
    assert abs(off["ievcds"]) < off["vcds"] / 2
    # What each says that it is right for is what it is right for.
    for name, method in methods.items():
        corrects = abs(off[name]) < off["vcds"] / 2
        assert ("right if records are missing at random" in method.missing_data()) == corrects, name
        assert ("right if records are missing completely at random" in method.missing_data()) != corrects, name


@pytest.mark.parametrize("made", [EVCDS(sampler="fresh", **LOUD), EVCDS(sampler="adjusted", **LOUD)])
def test_evcds_keeps_dependence_and_marginals_under_mcar(tmp_path: Path, made: EVCDS) -> None:
    """A third of each party's records are missing at random; Spearman's rho of a and b is 6 / pi asin(r / 2)."""
    frame, _ = pooled(3000, 30)
    present = np.random.default_rng(31).random((3000, 3)) > 1 / 3
    with federation(tmp_path, frame, present) as parties:
        rows = made.fit(parties).sample(6000)
    found = stats.spearmanr(rows["a"], rows["b"]).statistic
    assert found == pytest.approx(6 / np.pi * np.arcsin(0.35), abs=0.09)
    assert (rows["c"] == "yes").mean() == pytest.approx(0.3, abs=0.1)
    assert stats.kstest(rows["a"], stats.norm.cdf).statistic < 0.1


def test_facts_name_columns_party_by_party() -> None:
    facts = PublicFacts(n=10, columns={party: COLUMNS.select(names) for party, names in OWNERS.items()})
    members = tuple(
        Member(name=party, organisation=party, public_key=bytes([k]) * 32, owns_data=True)
        for k, party in enumerate(OWNERS)
    )
    procedure = VCDS(columns=("d", "a")).procedure(facts, Roster(members=members))
    assert procedure.held == {"first": ["a"], "third": ["d"]}
    assert list(procedure.columns) == ["a", "d"]
