"""What a plan says the noise will do, against what it does; and its cure, followed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, NotEstimable
from colonnade.federation.facts import PublicFacts
from colonnade.federation.method import NoEstimate
from colonnade.federation.plan import HOPELESS
from colonnade.models.classify import solve_moments
from colonnade.models.linear.factored import FactoredMoments
from colonnade.models.linear.private import PrivateFit
from colonnade.models.linear.result import NOT_VALID, Regression
from colonnade.models.matrix import SecondMoments
from colonnade.statistics.forecast import FORECAST, choice, classes, fewer, spreads

N = 3000


def consortium(folder: Path, seed: int, *, shared: float = 1.0) -> co.Federation:
    """Three parties with three columns each; the second and third have the same part of the first one's records."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=N)
    blocks = {
        party: pd.DataFrame({f"{party}{k}": 0.5 * common + rng.normal(size=N) for k in range(3)}).assign(
            id=np.arange(N)
        )
        for party in "abc"
    }
    blocks["a"]["a0"] = sum(0.5 * blocks[party][f"{party}1"] for party in "abc") + rng.normal(size=N)
    blocks |= {party: blocks[party][: round(shared * N)] for party in "bc"}
    names = [f"{party}{k}" for party in "abc" for k in range(3)]
    columns = Columns([Column(name=name, kind="continuous", lower=-8.0, upper=8.0) for name in names])
    return co.Federation.local(blocks, key="id", columns=columns, allow=("presence",), seed=seed, runs=folder)


def test_a_copula_that_will_not_work_is_known_before_and_the_advice_works(tmp_path: Path) -> None:
    for seed in range(3):
        with consortium(tmp_path / str(seed), seed, shared=0.5) as federation:
            hopeless = co.Synthesize(model="copula", epsilon=0.004, verify=False)
            plan = federation.plan(hopeless)
            assert isinstance(federation.run(hopeless, sure=True)[0], NoEstimate)
            advice = re.search(r"epsilon = ([\d.]+) would be enough", plan.hopeless)
            assert advice is not None
            cured = co.Synthesize(model="copula", epsilon=float(advice.group(1)), verify=False)
            assert not federation.plan(cured).hopeless
            assert not isinstance(federation.run(cured)[0], NoEstimate)


def test_a_regression_that_will_not_work_is_known_before_and_the_advice_works(tmp_path: Path) -> None:
    results: dict[str, list[type]] = {"before": [], "after": []}
    for seed in range(3):
        with consortium(tmp_path / str(seed), seed) as federation:
            plan = federation.plan(co.Regress(response="a0", epsilon=0.5))
            warning = next(note for note in plan.notes if note.startswith(HOPELESS))
            advice = re.search(r"epsilon = ([\d.]+) would be enough", warning)
            assert advice is not None
            results["before"].append(type(federation.run(plan)[0]))
            again = federation.plan(co.Regress(response="a0", epsilon=float(advice.group(1))))
            assert not [note for note in again.notes if note.startswith(HOPELESS)]
            results["after"].append(type(federation.run(again)[0]))
    assert results == {"before": [NoEstimate] * 3, "after": [Regression] * 3}


def test_plan_and_result_advise_by_one_rule_for_the_records_that_are_shared(tmp_path: Path) -> None:
    """With half of the records at all parties the epsilon that a plan advises is the one that its result would, and
    it is enough."""
    method = co.Regress(response="a0", epsilon=4.0)
    with consortium(tmp_path, 0, shared=0.5) as federation:
        plan, fit = federation.plan(method), method.procedure(federation.facts, federation.roster)
        assert isinstance(fit, PrivateFit)
        (warning,) = (note for note in plan.notes if note.startswith(HOPELESS))
        before = re.search(r"epsilon = ([\d.]+) would be enough if half .* \(([\d.]+) if all are\)", warning)
        assert before is not None
        noise = fit.gram_sd
        shared = FactoredMoments(
            names=("a0", "b0"),
            n_own=1,
            widths=(1,),
            gram=np.diag([N / 2.0] * 3),
            masks=((True,),),
            own=(np.diag([N / 2.0] * 2),),
            weighted=(np.diag([N / 2.0] * 2),),
            gram_sd=noise,
            own_sd=0.0,
            weighted_sd=0.0,
        )
        assert f"epsilon = {before.group(1)} would be enough, or fewer columns" in fit._rough(0.8, shared)
        advised = co.Regress(response="a0", epsilon=float(before.group(1))).fit(federation)
        assert not advised.verdict.startswith(NOT_VALID)
        notes = federation.plan(co.Regress(response="a0", epsilon=float(before.group(2)))).notes
        least = re.search(r"if at least (\d+) % of the records are at all parties", " ".join(notes))
        assert least is not None
        assert 50 < int(least.group(1)) <= 100


def test_an_epsilon_that_protects_hardly_anyone_is_not_advised(tmp_path: Path) -> None:
    with consortium(tmp_path, 0) as federation:
        facts = federation.facts
        few = replace(facts, n=180)
        (warning,) = (
            note
            for note in co.PCA(epsilon=8.0, verify=False).plan(few, federation.roster).notes
            if note.startswith(HOPELESS)
        )
    assert re.search(r"keep at most \d columns with columns=, since epsilon = \d+, which", warning)
    listed = ["town"] * 40 + ["sex", "age"] + ["region"] * 5
    assert fewer(listed, 2.0) == "leave out 'town' with columns= (about 29 features would do)"
    many = [*listed[:40], *map(str, range(26))]  # without the town 26 stay, and 20 would do
    assert fewer(many, 6.0) == "keep at most 19 columns with columns=, and none of 'town'"
    assert fewer(listed, 200.0) == "", "hardly any could stay"
    assert fewer(listed, 20.0) == "leave out 'town', 'region' with columns= (about 6 features would do)"


def test_the_forecast_of_components_bounds_what_noise_takes_from_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    n, width, k = 2000, 8, 2
    loadings = rng.normal(size=(width, 2))
    common = rng.normal(size=(n, 2)) @ loadings.T + rng.normal(size=(n, width))
    rows = np.clip(0.5 * (common - common.mean(0)) / common.std(0), -1, 1)  # a quarter of the declared range
    names = [f"x{j}" for j in range(width)]
    columns = Columns([Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in names])
    blocks = {
        party: pd.DataFrame(rows[:, part], columns=names[part]).assign(id=np.arange(n))
        for party, part in zip("abc", (slice(0, 3), slice(3, 6), slice(6, 8)), strict=True)
    }
    best = np.linalg.eigvalsh(np.corrcoef(rows.T))[-k:].sum() / width
    method, lost, floors = co.PCA(n_components=k, epsilon=0.5, verify=False), [], []
    for seed in range(8):
        with co.Federation.local(blocks, key="id", columns=columns, seed=seed, runs=tmp_path / str(seed)) as federation:
            note = next(note for note in federation.plan(method).notes if "noise alone would show a component" in note)
            result = method.fit(federation, sure=True)
        found = result.components_ @ np.corrcoef(rows.T) @ result.components_.T
        lost.append(best - np.trace(found) / width)
        floors.append(result.noise_floor_ / width)
    told = re.search(r"up to ([\d.]+) % .* most about ([\d.]+) %", note)
    assert told is not None
    # The result's floor is at the smallest deviation of a column; clipped, they are a little below half.
    assert float(told.group(1)) / 100 == pytest.approx(np.mean(floors), rel=0.4)
    assert 0.05 < np.mean(lost) / (float(told.group(2)) / 100) < 1


def test_the_forecast_noise_of_a_correlation_is_that_of_the_result(tmp_path: Path) -> None:
    """The noise in a standardised coefficient is at least that in a correlation, and not several times more here."""
    with consortium(tmp_path, 1) as federation:
        plan = federation.plan(co.Regress(response="a0", epsilon=10.0))
        note = next(note for note in plan.notes if note.startswith(FORECAST))
        told = re.search(r"by about ([\d.e-]+) \(sampling alone: ([\d.e-]+)\)", note)
        assert told is not None
        fit = co.Regress(response="a0", epsilon=10.0).fit(federation)
    noise, sampling = map(float, told.groups())
    measured = float(np.median(np.asarray(fit.bse)[1:]))
    assert 0.5 < measured / np.hypot(noise, sampling) < 4


def test_a_job_without_an_estimate_keeps_what_was_released(tmp_path: Path) -> None:
    with consortium(tmp_path, 0) as federation:
        method = co.Regress(response="a0", epsilon=0.5)
        with pytest.raises(NotEstimable, match=r"^This will not work: .*epsilon = 16 would be enough.*sure=True"):
            method.fit(federation)
        assert not list(federation.runs.glob("*/job.json"))
        parties = [federation.transport[name] for name in federation.facts.parties]  # type: ignore[index]
        assert not any(party.ledger.costs() for party in parties)
        result, run = federation.run(method, sure=True)
    assert isinstance(result, NoEstimate)
    assert run.job["state"] == "done"
    stored = run.read_json("result.json")
    assert stored["kind"] == "no-estimate"
    assert stored["reason"] == result.reason
    assert any(name.startswith("moments") for name in stored["released"]), "the noisy moments that were paid for"
    assert run.read_json("view.json")["warnings"] == [f"No estimate: {result.reason}"]
    with pytest.raises(co.errors.NotEstimable, match="gave no estimate"):
        _ = result.params


POLYNOMIAL = {"outputs": [[[2.0, {"a0": 2}]]]}
SMALL_NETWORK: dict[str, Any] = {"epochs": 10, "batch": 64, "hidden": 8, "cut": 2}


@pytest.mark.parametrize(
    ("method", "small"),
    [
        (lambda epsilon: co.Moments(columns=("a0", "b0", "c0"), epsilon=epsilon, verify=False), 0.0005),
        (lambda epsilon: co.PolynomialSum(polynomial=POLYNOMIAL, epsilon=epsilon, verify=False), 0.0005),
        (lambda epsilon: co.PresenceTotal(epsilon=epsilon), 0.0005),
        (lambda epsilon: co.Tables(tables=(("a0", "b0"),), epsilon=epsilon, verify=False), 0.05),
        (lambda epsilon: co.Synthesize(model="field", columns=("a0", "b0"), epsilon=epsilon, verify=False), 0.005),
        (lambda epsilon: co.Complete(parties=("a",), epsilon=epsilon, **SMALL_NETWORK), 1.0),
    ],
    ids=["moments", "polynomial", "presence", "tables", "field", "completion"],
)
def test_what_will_not_work_is_said_with_an_epsilon_that_does(
    tmp_path: Path, method: Callable[[float], Any], small: float
) -> None:
    with consortium(tmp_path, 1) as federation:
        before = federation.plan(method(small)).notes
        warning = next(note for note in before if note.startswith(HOPELESS))
        advice = re.search(r"epsilon = ([\d.e+-]+) would be enough", warning)
        assert advice is not None
        after = federation.plan(method(float(advice.group(1)))).notes
    assert any(note.startswith(FORECAST) for note in after)
    assert not any(note.startswith(HOPELESS) for note in after)


def test_the_forecast_of_a_mean_is_the_noise_of_the_result(tmp_path: Path) -> None:
    method = co.PolynomialSum(polynomial=POLYNOMIAL, epsilon=0.01, verify=False)
    with consortium(tmp_path, 1) as federation:
        plan = federation.plan(method)
        told = re.search(r"off by about ([\d.e-]+) of the largest", " ".join(plan.notes))
        assert told is not None
        result, _ = federation.run(plan)
    assert float(told.group(1)) == pytest.approx(result.noise_sd / N / 2.0, rel=0.1)


def test_a_selection_that_noise_has_made_says_so_first(tmp_path: Path) -> None:
    with consortium(tmp_path, 1) as federation:
        result = co.Select(response="a0", epsilon=2.0, verify=False).fit(federation)
    (warning,) = result.view().warnings
    assert warning.startswith("Selection is unreliable: privacy noise moves a correlation by ")
    assert repr(result).startswith(f"WARNING: {warning} <Selection: ")
    assert len(repr(result)) < 400, "no arrays"


def test_a_private_regression_says_how_many_records_each_pair_of_parties_needs(tmp_path: Path) -> None:
    """`minimum_joint` for each feature of the pair, or what the noise of a count needs."""
    few = {party: pd.DataFrame({"id": range(40), f"{party}0": 0.0, f"{party}1": 1.0}) for party in "abc"}
    columns = Columns(
        [Column(name=f"{party}{k}", kind="continuous", lower=-8.0, upper=8.0) for party in "abc" for k in (0, 1)]
    )
    with co.Federation.local(few, key="id", columns=columns, allow=("presence",), runs=tmp_path) as federation:
        notes = " ".join(federation.plan(co.Regress(response="a0", epsilon=1e5, minimum_joint=11)).notes)
        assert "needs about 44 records with the response in common, of at most 40" in notes
        assert f"{HOPELESS}: 40 records are enough for 3 features" in notes
        assert "keep at most 3 columns with columns=" in notes
        enough = federation.plan(co.Regress(response="a0", epsilon=1e5, minimum_joint=10)).notes
        assert not any("features of a pair" in note for note in enough)
        noisy = " ".join(federation.plan(co.Regress(response="a0", epsilon=1.0)).notes)
        assert "the noise of a count is too large for 40 records" in noisy


@pytest.mark.parametrize(("epsilon", "features"), [(1.0, 8), (0.25, 8), (4.0, 8)])
def test_the_forecast_of_a_classifier_is_what_it_reaches(epsilon: float, features: int) -> None:
    """Classes with an AUC of 0.8 and features of deviation 0.5, with the noise of a release: over 30 draws."""
    rng = np.random.default_rng(0)
    n, noise_sd = 1000, 60.0 / epsilon
    (note, *_) = classes(noise_sd=noise_sd, n=n, features=features, epsilon=None)
    told = re.search(r"would leave ([\d.]+)", note)
    assert told is not None
    distance = np.sqrt(2) * norm.ppf(0.8)
    within = 0.5 / np.sqrt(1 + distance**2 / 4)
    reached = []
    for _ in range(30):
        centre = rng.normal(size=features)
        centre *= distance * within / 2 / np.linalg.norm(centre)
        side = rng.choice([-1.0, 1.0], 3 * n)
        rows = np.column_stack(
            [np.ones(3 * n), within * rng.normal(size=(3 * n, features)) + np.outer(side, centre), side]
        )
        noise = np.triu(rng.normal(0, noise_sd / n, (features + 2, features + 2)))
        names = ("1", *map(str, range(features)), "y")
        matrix = rows[:n].T @ rows[:n] / n + noise + np.triu(noise, 1).T
        matrix[0, 0] = 1.0
        second = SecondMoments(names=names, matrix=matrix, noise_sd=noise_sd / n)
        _, weights = solve_moments(second, names=names[1:-1], response="y", intercept=True)
        reached.append(roc_auc_score(side[n:] > 0, rows[n:, 1:-1] @ weights))
    assert float(told.group(1)) == pytest.approx(np.mean(reached), abs=0.04)


def test_a_classifier_that_noise_hides_is_refused_with_an_epsilon(tmp_path: Path) -> None:
    (_, warning) = classes(noise_sd=300.0, n=1000, features=30, epsilon=0.5)
    assert warning.startswith(HOPELESS)
    assert re.search(r"epsilon = [\d.]+ would be enough, or fewer columns", warning)
    assert len(classes(noise_sd=30.0, n=1000, features=30, epsilon=0.5)) == 1


@pytest.mark.parametrize(("noise", "n"), [(0.0, 1000), (0.05, 3000), (0.2, 3000)])
def test_a_column_is_chosen_from_the_correlation_on_that_the_plan_says(noise: float, n: int) -> None:
    """BIC of one column against none, over the exact records that the noisy ones are worth."""
    (said,) = choice(noise=noise, n=n)
    least = float(re.search(r"above (?:about )?([\d.]+)", said).group(1))  # type: ignore[union-attr]
    worth = n / (1 + n * noise**2)
    for factor, chosen in ((0.9, False), (1.1, True)):
        assert (worth * np.log(1 - (factor * least) ** 2) + np.log(worth) < 0) == chosen


def test_an_empty_choice_is_known_before_anything_is_spent(tmp_path: Path) -> None:
    with consortium(tmp_path, 1) as federation:
        plan = federation.plan(co.Select(response="a0", epsilon=0.05))
        assert any(note.startswith(HOPELESS) and "empty choice" in note for note in plan.notes)
        nothing = federation.run(plan)[0]
        assert isinstance(nothing, NoEstimate) or nothing.support == ()
        rich = federation.plan(co.Select(response="a0", epsilon=20.0))
        assert any("BIC will choose a column by itself" in note for note in rich.notes)
        assert federation.run(rich)[0].support


def rare_events(folder: Path, apart: list[float], seed: int) -> co.Federation:
    """Three parties with four columns each, and an event that 5 % have: the first columns differ by so many deviations
    between the classes."""
    rng, event = np.random.default_rng(seed), np.arange(N) < N // 20
    values = rng.normal(size=(N, 12))
    values[:, : len(apart)] += np.outer(event, apart)
    table = pd.DataFrame(values, columns=[f"x{k}" for k in range(12)]).assign(id=np.arange(N))
    blocks = {party: table[["id", *(f"x{4 * place + k}" for k in range(4))]] for place, party in enumerate("abc")}
    blocks["a"] = blocks["a"].assign(event=np.where(event, "yes", "no"))
    columns = [Column(name=f"x{k}", kind="continuous", lower=-8.0, upper=8.0) for k in range(12)]
    columns.append(Column(name="event", kind="binary", categories=("no", "yes")))
    return co.Federation.local(blocks, key="id", columns=Columns(columns), seed=seed, runs=folder)


def test_rare_events_choose_the_columns_that_the_plan_says(tmp_path: Path) -> None:
    """Columns that are twice as far apart as they must be, and a third of it; and an epsilon at which none can be."""
    asked = co.Select(response="event", family="binomial", epsilon=2.0, verify=False)
    with rare_events(tmp_path / "plan", [], 0) as federation:
        notes = " ".join(federation.plan(asked).notes)
        poor = federation.plan(replace(asked, epsilon=0.6))
    least = float(re.search(r"about ([\d.]+) standard deviations apart, or more\.", notes).group(1))  # type: ignore[union-attr]
    chosen: list[set[str]] = []
    for seed in range(3):
        with rare_events(tmp_path / str(seed), [2 * least, 2 * least, least / 3, least / 3], seed) as federation:
            chosen.append(set(asked.fit(federation).support))
            nothing = federation.run(poor)[0]
            assert isinstance(nothing, NoEstimate) or len(nothing.support) <= 1
    assert sum(len(support & {"x0", "x1"}) for support in chosen) >= 5
    assert sum(len(support & {"x2", "x3"}) for support in chosen) <= 2
    (warning,) = (note for note in poor.notes if "expect few columns or none" in note)
    advice = float(re.search(r"epsilon = ([\d.]+) would be enough for 1", warning).group(1))  # type: ignore[union-attr]
    with rare_events(tmp_path / "again", [], 0) as federation:
        assert not any("few columns or none" in note for note in federation.plan(replace(asked, epsilon=advice)).notes)


def test_what_no_epsilon_helps_is_said() -> None:
    (few,) = choice(noise=1.0, n=6, epsilon=1.0)
    assert few.startswith(HOPELESS)
    assert few.endswith("no epsilon would help.")
    (many,) = choice(noise=1.0, n=6000, epsilon=1.0)
    advice = float(re.search(r"epsilon = ([\d.]+) would be the least", many).group(1))  # type: ignore[union-attr]
    assert advice > 1.0
    assert choice(noise=1.0 / advice, n=6000)[0].startswith(FORECAST)
    assert choice(noise=0.01, n=90, epsilon=1.0, rare=(0.05, 0.01))[1].endswith("no epsilon would help.")
    assert spreads(rank_noise=300.0, n=1000, limit=0.35, columns=64, epsilon=3.0) == ()
    (wide,) = spreads(rank_noise=400.0, n=1000, limit=0.35, columns=64, epsilon=3.0)
    assert wide.startswith(HOPELESS)


def test_a_table_with_too_many_columns_is_told_how_many_fit(tmp_path: Path) -> None:
    """What the plan says of thousands of columns, followed, leads to one that says nothing of the kind."""
    names = [f"x{number}" for number in range(2400)]
    held = {
        party: Columns([Column(name=name, kind="binary", categories=("0", "1")) for name in names[place::3]])
        for place, party in enumerate("abc")
    }
    with consortium(tmp_path, 0) as federation:
        facts, roster = PublicFacts(n=2000, columns=held), federation.roster
    with pytest.raises(BadArguments, match=r"keep at most 2\d\d\d columns with columns="):
        co.Synthesize(model="field", epsilon=4.0).plan(facts, roster)
    for method in (co.Describe(epsilon=0.4), co.PCA(epsilon=4.0), co.Classify(response="x0")):
        said = method.plan(facts, roster).hopeless
        most = re.search(r"keep at most (\d+) columns with columns=", said)
        assert most is not None, said
        method.set_params(columns=tuple(names[1 : 1 + int(most.group(1))]))
        assert not method.plan(facts, roster).hopeless


def test_cells_that_no_epsilon_serves_are_made_larger(tmp_path: Path) -> None:
    """Integer noise has a smallest size: the advice is fewer cells, and followed it leads to an epsilon that works."""
    with consortium(tmp_path, 0) as federation:
        roster = federation.roster
    column = {party: Columns([Column(name=party, kind="continuous", lower=-1, upper=1)]) for party in "abc"}
    facts, method = PublicFacts(n=61, columns=column), co.Tables(tables=(("a", "b"),), epsilon=1.0)
    said = method.plan(facts, roster).hopeless
    fewer = re.search(r"no epsilon makes it small enough.*`--bins (\d+)`", said)
    assert fewer is not None, said
    method.set_params(bins=int(fewer.group(1)))
    for _ in range(3):
        larger = re.search(r"epsilon = ([\d.]+) would be enough", method.plan(facts, roster).hopeless)
        if larger:
            method.set_params(epsilon=float(larger.group(1)))
    assert not method.plan(facts, roster).hopeless
