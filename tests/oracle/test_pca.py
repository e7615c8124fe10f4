"""PCA against numpy, pandas and scikit-learn on the pooled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA as SklearnPCA
from sklearn.preprocessing import StandardScaler

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, BadPrivacyParameter, UnknownColumn
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.coordinator import Federation
from colonnade.models import pca as module
from colonnade.models.matrix import norm_bounds, second_moments
from colonnade.models.pca import PCA, leading_eigenvectors
from colonnade.statistics.moments import Moments
from support.gaps import pairwise_covariance
from support.small import committee_of, three_overlapping_blocks, three_parties

EXACT = ("presence", "exact-moments")
PRINTED: dict[str, Any] = {"centre": False, "presence": "ignore"}
"""As the SQM paper has it: the features as they are, an absent block as zeros."""
NUMBERS = Columns(
    [Column(name=f"x{i}", kind="continuous", lower=-1.0, upper=1.0) for i in range(6)]
    + [Column(name="kind", kind="categorical", categories=("a", "b", "c"))]
)


def correlated_rows(n: int = 400) -> pd.DataFrame:
    """Six numbers in [-1, 1] on a grid of 1/1024, with two strong directions, and a category."""
    rng = np.random.default_rng(3)
    factors = rng.uniform(-1, 1, (n, 2)) @ rng.uniform(-0.4, 0.4, (2, 6)) + rng.uniform(-0.1, 0.3, (n, 6))
    frame = pd.DataFrame(np.rint(np.clip(factors, -1, 1) * 1024) / 1024, columns=[f"x{i}" for i in range(6)])
    return frame.assign(kind=rng.choice(list("abc"), n, p=[0.5, 0.3, 0.2]), id=np.arange(n))


def split(frame: pd.DataFrame, absent: bool = False) -> dict[str, pd.DataFrame]:
    owners = {"first": ["x0", "x1"], "second": ["x2", "x3", "kind"], "third": ["x4", "x5"]}
    keep = np.arange(len(frame)) % 4
    return {
        party: frame.loc[(keep != at) | (not absent), ["id", *names]]
        for at, (party, names) in enumerate(owners.items())
    }


def pooled_features(frame: pd.DataFrame) -> np.ndarray:
    """The documented map, written out: numbers as they are, an indicator for each category but the first."""
    numbers = frame[["x0", "x1", "x2", "x3"]], frame[["x4", "x5"]]
    kinds = np.column_stack([frame["kind"] == "b", frame["kind"] == "c"]).astype(float)
    return np.column_stack([numbers[0], kinds, numbers[1]])


def federation(tmp_path: Path, frame: pd.DataFrame, *, absent: bool = False, **options: Any) -> Federation:
    return three_parties(tmp_path, blocks=split(frame, absent), columns=NUMBERS, **options)


def test_components_without_noise_are_those_of_the_pooled_rows(tmp_path: Path, engine: str) -> None:
    """gamma = 1024 makes every feature a whole number, so the Gram matrix is exact and so are its eigenvectors."""
    frame = correlated_rows()
    rows = pooled_features(frame)
    with federation(tmp_path, frame, allow=EXACT, **committee_of(engine)) as parties:
        model = PCA(n_components=3, epsilon=None, gamma=1024, **PRINTED).fit(parties)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    assert model.feature_names_ == ("x0", "x1", "x2", "x3", "kind[b]", "kind[c]", "x4", "x5")
    assert model.explained_variance_ == pytest.approx(values[::-1][:3] / len(frame), rel=1e-12)
    assert np.abs(np.sum(model.components_ * vectors[:, ::-1][:, :3].T, axis=1)) == pytest.approx(1, abs=1e-10)
    assert model.captured_variance(frame) == pytest.approx(values[::-1][:3].sum() / values.sum(), rel=1e-12)
    assert np.allclose(model.transform(frame), rows @ model.components_.T)
    assert np.array_equal(model.transform(frame), model.transform(rows))
    assert model.noise_sd_ == 0


def test_centred_components_are_scikit_learns(tmp_path: Path) -> None:
    frame = correlated_rows()
    rows = pooled_features(frame)
    with federation(tmp_path, frame, allow=EXACT) as parties:
        model = PCA(n_components=2, epsilon=None, gamma=1024, scale=False, presence="ignore").fit(parties)
    theirs = SklearnPCA(2).fit(rows)
    assert np.abs(np.sum(model.components_ * theirs.components_, axis=1)) == pytest.approx(1, abs=1e-9)
    assert model.explained_variance_ == pytest.approx(theirs.explained_variance_ * (399 / 400), rel=1e-9)
    assert np.allclose(np.abs(model.transform(frame)), np.abs(theirs.transform(rows)))


def test_by_default_components_are_those_of_standardised_columns(tmp_path: Path) -> None:
    frame = correlated_rows()
    rows = pooled_features(frame)
    with federation(tmp_path, frame, allow=EXACT) as parties:
        model = PCA(n_components=2, epsilon=None, gamma=1024).fit(parties)
    standardised = StandardScaler().fit(rows)
    theirs = SklearnPCA(2).fit(standardised.transform(rows))
    assert model.mean_ == pytest.approx(standardised.mean_, abs=1e-9)
    assert model.scale_ == pytest.approx(standardised.scale_, rel=1e-9)
    assert np.abs(np.sum(model.components_ * theirs.components_, axis=1)) == pytest.approx(1, abs=1e-9)
    assert model.explained_variance_ratio_ == pytest.approx(theirs.explained_variance_ratio_, rel=1e-9)
    assert model.ratio_sd_ == pytest.approx(0)
    assert np.allclose(np.abs(model.transform(frame)), np.abs(theirs.transform(standardised.transform(rows))))
    assert model.captured_variance(frame) == pytest.approx(theirs.explained_variance_ratio_.sum(), rel=1e-9)


def test_by_default_absent_blocks_are_missing(tmp_path: Path) -> None:
    """Means and variances over the records that have a block, covariances over those that have both."""
    frame = correlated_rows()
    with federation(tmp_path, frame, absent=True, allow=EXACT) as parties:
        model = PCA(n_components=2, epsilon=None, gamma=1024).fit(parties)
    table = pd.DataFrame(pooled_features(frame))
    for place, columns in enumerate(([0, 1], [2, 3, 4, 5], [6, 7])):
        table.loc[np.arange(len(frame)) % 4 == place, columns] = np.nan
    mean, deviation = table.mean().to_numpy(), table.std(ddof=0).to_numpy()
    values = np.linalg.eigvalsh(pairwise_covariance(table) / np.outer(deviation, deviation))[::-1]
    assert model.mean_ == pytest.approx(mean, abs=1e-9)
    assert model.explained_variance_ == pytest.approx(values[:2], rel=1e-6)


def test_a_column_near_one_end_of_its_range_is_not_tied_to_others_by_missing_blocks(tmp_path: Path) -> None:
    """Claims of which most are 0, with a range for the largest there could be: independent of the rest, as drawn."""
    rng = np.random.default_rng(3)
    claims = np.where(rng.random(600) < 0.1, rng.lognormal(7, 1, 600), 0.0)
    blocks = {
        "insurer": pd.DataFrame({"id": range(600), "claim": claims}),
        "clinic": pd.DataFrame({"id": range(150, 750), "age": rng.integers(60, 90, 600)}),
    }
    claim = Column(name="claim", kind="continuous", lower=0, upper=1_000_000)
    columns = Columns([claim, Column(name="age", kind="count", lower=0, upper=120)])
    how = {"key": "id", "columns": columns, "holder": "university", "allow": EXACT}
    with Federation.local(blocks, **how, home=tmp_path) as parties:
        model = PCA(n_components=1, epsilon=None).fit(parties)
    both = blocks["insurer"].merge(blocks["clinic"])
    correlation = abs(both["claim"].corr(both["age"]))
    assert model.explained_variance_[0] == pytest.approx(1 + correlation, abs=0.05), "was 2.5"


@pytest.mark.parametrize("scaled", [False, True])
def test_the_stated_noise_of_a_share_is_that_of_repetitions(scaled: bool) -> None:
    """400 draws of a small symmetric noise on a matrix with separated eigenvalues: within 15 % of the formula."""
    rng = np.random.default_rng(8)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    matrix, noise = basis @ np.diag([3.0, 1.5, 0.8, 0.4, 0.2, 0.1]) @ basis.T, 2e-4

    def shares(disturbed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, np.ndarray]:
        deviation = np.sqrt(np.diag(disturbed)) if scaled else np.ones(6)
        disturbed = disturbed / np.outer(deviation, deviation)
        values, vectors = leading_eigenvectors(disturbed, 2)
        return values / np.trace(disturbed), values, vectors.T, float(np.trace(disturbed)), deviation

    drawn = []
    for _ in range(400):
        upper = np.triu(rng.normal(scale=noise, size=(6, 6)))
        drawn.append(shares(matrix + upper + np.triu(upper, 1).T)[0])
    _, values, vectors, total, deviation = shares(matrix)
    stated = module.ratio_sd(values, vectors, total, noise, deviation, scaled=scaled)
    assert stated == pytest.approx(np.std(drawn, axis=0, ddof=1), rel=0.15)


def test_a_column_that_cannot_be_told_from_noise_is_named_first(tmp_path: Path) -> None:
    frame = correlated_rows().assign(x5=0.25)
    with federation(tmp_path, frame, seed=4) as parties:
        model = PCA(n_components=2, epsilon=1.0).fit(parties, sure=True)
    assert "x5" in model.hidden
    assert model.view().warnings[0].startswith("The variance of ")
    assert np.all(model.ratio_sd_ > 0)


@pytest.mark.parametrize("presence", ["known", "secret", "ignore"])
def test_second_moments_are_of_the_records_that_have_both_blocks(tmp_path: Path, presence: Any) -> None:
    """Covariances as pandas has them, over available pairs; with presence ignored an absent block is zeros."""
    frame = correlated_rows()
    with federation(tmp_path, frame, absent=True, allow=EXACT) as parties:
        second = second_moments(Moments(epsilon=None, gamma=1024, presence=presence).fit(parties))
    table = pd.DataFrame(pooled_features(frame))
    for at, columns in enumerate(([0, 1], [2, 3, 4, 5], [6, 7])):
        table.loc[np.arange(len(frame)) % 4 == at, columns] = 0.0 if presence == "ignore" else np.nan
    extended = pd.concat([pd.Series(1.0, table.index), table], axis=1)
    expected = pairwise_covariance(extended) + np.outer(extended.mean(), extended.mean())
    assert second.names[0] == "1"
    assert np.allclose(second.matrix, expected, atol=1e-12)


def test_impossible_products_carry_no_noise(tmp_path: Path) -> None:
    """kind[b] kind[c] is 0 in every record, and n is public; everything else is noisy."""
    with federation(tmp_path, correlated_rows(), seed=1) as parties:
        noisy = Moments(epsilon=1.0, presence="ignore").fit(parties)
    second = second_moments(noisy)
    b, c = second.names.index("kind[b]"), second.names.index("kind[c]")
    assert noisy.grams[0][b, c] != 0
    cleared = np.zeros(second.matrix.shape, dtype=bool)
    cleared[b, c] = cleared[c, b] = cleared[0, 0] = True
    assert second.matrix[b, c] == second.matrix[c, b] == 0
    assert second.matrix[0, 0] == 1
    assert np.array_equal(second.matrix[~cleared], noisy.grams[0][~cleared] / 400)
    assert second.noise_sd == pytest.approx(noisy.noise_sd / 400 * np.sqrt(1 - 2 / 81))


def test_a_row_never_exceeds_the_public_norm(tmp_path: Path) -> None:
    """Norm at most the root of the number of columns, reached by the extreme rows; a smaller clip is taken."""
    frame = correlated_rows(40)
    frame.loc[0, ["x2", "x3", "kind"]] = [1.0, -1.0, "c"]
    with federation(tmp_path, frame) as parties:
        bounds = norm_bounds(parties.facts, None, {"first": 0.5, "third": 9.0})
        whole = norm_bounds(parties.facts, None)
        share = norm_bounds(parties.facts, None, 0.5)
        for wrong in (0.0, 1.5, True):
            with pytest.raises(BadPrivacyParameter, match="share"):
                norm_bounds(parties.facts, None, wrong)
        with pytest.raises(BadPrivacyParameter, match="positive norm"):
            PCA(clip={"nobody": 1.0}).fit(parties)
        layout = PCA(**PRINTED).procedure(parties.facts, parties.roster).layout
    assert bounds == pytest.approx({"first": 0.5, "second": np.sqrt(3), "third": np.sqrt(2)})
    assert share == pytest.approx({party: 0.5 * bound for party, bound in whole.items()})
    norms = np.linalg.norm(pooled_features(frame)[:, 2:6], axis=1)
    assert norms.max() == pytest.approx(whole["second"])
    # (c^4 + B^2 c^2) / 2 with c^2 = 7 columns, not the 8 features
    assert layout.delta_2 == pytest.approx(np.sqrt((49 + 7) / 2) * 2**24, rel=1e-6)


def test_the_memory_that_the_user_allows_decides_the_rounds_and_not_the_result(tmp_path: Path) -> None:
    """Exact components are the same in one round or in many; what cannot be done is refused in the plan."""
    frame = correlated_rows()
    with federation(tmp_path, frame, allow=EXACT) as parties:
        with pytest.raises(BadArguments, match="allow memory="):
            parties.plan(PCA(n_components=2, memory=1, **PRINTED))
        plain = PCA(n_components=2, epsilon=None, gamma=1024, scale=False, presence="ignore").fit(parties)
        tiled_method = PCA(n_components=2, epsilon=None, gamma=1024, scale=False, presence="ignore", memory=480, tile=3)
        tiled = tiled_method.fit(parties)
        assert tiled_method.procedure(parties.facts, parties.roster).layout.tile == 3
    assert np.array_equal(tiled.components_, plain.components_)


@pytest.mark.parametrize("centre", [False, True])
def test_components_in_the_place_of_the_gram_matrix_are_the_same(tmp_path: Path, centre: bool) -> None:
    with federation(tmp_path, correlated_rows(), seed=2) as parties:
        moments = Moments(epsilon=4.0, presence="ignore", constant=centre).fit(parties)
    before = moments.grams[0].copy()
    kept = module.principal_components(moments, n_components=3, centre=centre)
    assert np.array_equal(moments.grams[0], before)
    moved = module.principal_components(moments, n_components=3, centre=centre, overwrite=True)
    assert np.array_equal(kept.components_, moved.components_)
    assert np.shares_memory(second_moments(moments, overwrite=True).matrix, moments.grams[0])


def test_noisy_components_lose_little_when_the_noise_is_small(tmp_path: Path) -> None:
    """n = 400, noise sd about 0.6 % of n at epsilon 8: a loss above 2 % of the captured variance would need noise ten
    times the stated size (perturbation bound 2 |N| / n with |N| <= 2 sd sqrt(8) is 6 %; typical loss is its square)."""
    frame = correlated_rows()
    with federation(tmp_path, frame, seed=5, allow=EXACT) as parties:
        exact = PCA(n_components=2, epsilon=None, gamma=1024, **PRINTED).fit(parties)
        noisy = PCA(n_components=2, epsilon=8.0, view="server", **PRINTED).fit(parties)
    assert 0 < noisy.noise_sd_ < 8
    assert noisy.captured_variance(frame) > 0.98 * exact.captured_variance(frame)
    assert noisy.captured_variance(frame) < exact.captured_variance(frame)
    assert np.allclose(noisy.components_ @ noisy.components_.T, np.eye(2))


def test_wide_matrices_take_few_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The iterative solver against the dense one, with a spike that stands out of the noise and two that do not."""
    monkeypatch.setattr(module, "_DENSE", 100)
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(300, 300))
    spike = rng.normal(size=300) / np.sqrt(300)
    matrix = (noise + noise.T) / 2 + 60 * np.outer(spike, spike)
    values, vectors = leading_eigenvectors(matrix, 3)
    dense, theirs = np.linalg.eigh(matrix)
    assert values == pytest.approx(dense[::-1][:3], rel=1e-8)
    assert np.abs(np.sum(vectors * theirs[:, ::-1][:, :3], axis=0)) == pytest.approx(1, abs=1e-6)


def test_the_plan_prints_both_views_and_costs_what_was_asked(tmp_path: Path) -> None:
    with three_parties(tmp_path) as parties:
        plan = parties.plan(PCA(n_components=2, epsilon=1.0))
        server = parties.plan(PCA(n_components=2, epsilon=1.0, view="server"))
    assert 0.99 < plan.total().epsilon <= 1.0
    assert "Client view (accounted): 1 of 3" in plan.text()
    assert "Server view (for comparison): 0 of 3" in plan.text()
    assert 0.99 < server.total().epsilon <= 1.0
    assert any("Client view (for comparison): 1 of 3" in note for note in server.notes)


def test_options_return_the_same_method(tmp_path: Path) -> None:
    model = PCA(n_components=2, epsilon=0.5, columns=("age", "visits"), clip={"clinic": 1.0}, presence="secret")
    again = PCA.from_options(model.options())
    with three_parties(tmp_path) as parties:
        assert parties.plan(again).fingerprint == parties.plan(model).fingerprint
        run = parties.run(model, sure=True)[1]
    assert run.read_json("result.json")["kind"] == "pca"
    assert run.job["method"] == "pca"
    assert set(run.job["options"]) == set(model.options())
    assert isinstance(CATALOGUE.make("pca", run.job["options"]), PCA)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArguments, match="n_components"):
        PCA(n_components=0)
    with pytest.raises(BadPrivacyParameter):
        PCA(epsilon=-1.0)
    with three_parties(tmp_path) as parties:
        with pytest.raises(BadArguments, match="components"):
            PCA(n_components=7).fit(parties)
        model = PCA(n_components=2).fit(parties, sure=True)
    with pytest.raises(BadArguments, match="one column for each"):
        model.transform(np.zeros((1, 3)))
    with pytest.raises(UnknownColumn, match="no column"):
        model.transform(three_overlapping_blocks()["clinic"])
