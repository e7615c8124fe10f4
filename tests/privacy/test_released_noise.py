"""The noise that leaves a party, step by step, is as large as the step's cost says, and rows are as short.

The audits attack mechanisms that are put together from the product's parts. Here the steps themselves answer, at real
parties; what they release less the exact value is compared with the variance that the cost needs. A sample variance of
k draws is off by about sqrt(2 / k) (Laplace: sqrt(5 / k)); six of those are allowed. Half of the noise lies outside.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from colonnade.completion.method import Complete
from colonnade.completion.split import session
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.stage import stage
from colonnade.federation.step import Step
from colonnade.models.linear.private import own_moments
from colonnade.models.linear.weighed import WeighedLayout
from colonnade.models.private_scales import NORM_BINS, block_norms
from colonnade.papers.fedpsg.method import FedPSG
from colonnade.papers.vcds.ranks import doubled_mid_ranks
from colonnade.papers.vcds.releases import PRESENCE, release_presence, release_ranks
from colonnade.papers.vertimrf.local_fields import Counter, noisy_scores
from colonnade.papers.vertimrf.method import value_distributions
from colonnade.privacy.randomness import SystemRandomness
from colonnade.statistics.adaptive import Axis, from_arrays
from colonnade.statistics.describe import DEPTH, adaptive_rounds, marginal, presence_count
from colonnade.statistics.moments import MomentComputation, Moments, MomentsLayout
from colonnade.statistics.quantiles import dyadic_counts
from colonnade.synthesis.copula.scores import column_rounds, release_marginals
from colonnade.synthesis.field.rounds import TableRounds
from colonnade.synthesis.field.schema import Schema, TableQuery
from support.plans import plan_of_stages
from support.small import COLUMNS, three_overlapping_blocks, three_parties
from support.split import curved_pair

GAUSSIAN, LAPLACE = 2.0, 5.0
"""k times the squared relative error of a sample variance."""


def as_stated(noise: NDArray[Any], variance: float, law: float = GAUSSIAN) -> bool:
    found = float(np.mean(np.asarray(noise, dtype=np.float64) ** 2))
    allowed = 6 * math.sqrt(law / np.size(noise))
    assert allowed < 0.74, "half of the noise has a quarter of the variance"
    return abs(found / variance - 1) < allowed


def asked(federation: Federation, party: str, *requests: tuple[Step, dict[str, Any]]) -> list[Any]:
    """The party's answers, in one job with a stage for each step."""
    stages = {
        step.name: stage(
            step.name,
            step,
            {party: [arguments for other, arguments in requests if other.name == step.name]},
            facts=federation.facts,
            roster=federation.roster,
            discloses="a test",
        )
        for step, _ in requests
    }
    with federation.open(plan_of_stages("describe", tuple(stages.values()))) as job:
        return [job.ask(stages[step.name])[party] for step, _ in requests]


def leaves(values: pd.Series[float], size: int) -> NDArray[np.int64]:
    return np.histogram(values, bins=np.linspace(0.0, 100.0, size + 1))[0].astype(np.int64)


def test_describe(tmp_path: Path) -> None:
    age = three_overlapping_blocks()["clinic"]["age"]
    tree = dyadic_counts(leaves(age, 2**DEPTH))
    flat = {"column": "age", "shape": "histogram", "bins": 1000}
    deep = {"column": "age", "shape": "tree", "bins": 2}
    refined = {"column": "age", "shape": "adaptive", "bins": 2}
    gaussian, laplace = {"noise": "gaussian", "level": 9.0}, {"noise": "laplace", "level": 0.2}
    presence = [(presence_count, gaussian)] * 150
    with three_parties(tmp_path) as federation:
        found = asked(
            federation,
            "clinic",
            *((marginal, {**shape, **noise}) for shape in (flat, deep) for noise in (gaussian, laplace)),
            *((marginal, {**refined, **noise}) for noise in (gaussian, laplace) for _ in range(20)),
            *presence,
        )
        n = federation.facts.n
    assert as_stated(found[0] - leaves(age, 1000), 9.0**2)
    assert as_stated(found[1] - leaves(age, 1000), 2 / 0.2**2, LAPLACE)
    assert as_stated(found[2] - tree, DEPTH * 9.0**2), "a record is in a node of each level"
    assert as_stated(found[3] - tree, 2 * (DEPTH / 0.2) ** 2, LAPLACE)
    axis, ordered = Axis.of(COLUMNS["age"]), np.sort(age.to_numpy())
    for answers, rounds, tail in (
        (found[4:24], adaptive_rounds("gaussian", 9.0), GAUSSIAN),
        (found[24:44], adaptive_rounds("laplace", 0.2), LAPLACE),
    ):
        noise = [
            (turn.counts - axis.count(ordered, turn.edges)) / rounds.sd_of(number)
            for answer in answers
            for number, turn in enumerate(from_arrays(answer, axis, n=n, rounds=rounds))
        ]
        assert as_stated(np.concatenate(noise), 1.0, tail), "a record is in one cell of each round"
    assert as_stated(np.array(found[44:]) - len(age), 9.0**2)


def test_marginals_of_the_copula(tmp_path: Path) -> None:
    """A listed value is in one cell; a record is in one cell of each round, and each has the cost of 1 / rounds."""
    number, sigma = 9, 20.0
    block = three_overlapping_blocks()["clinic"]
    request = {"label": "scores", "columns": ["age", "visits"], "sigma": sigma, "rounds": number}
    with three_parties(tmp_path) as federation:
        found = asked(federation, "clinic", *[(release_marginals, request)] * 20)
        n = federation.facts.n
    listed = np.bincount(block["visits"], minlength=10)
    axis, rounds = Axis.of(COLUMNS["age"]), column_rounds(sigma, number)
    ages = np.sort(block["age"].to_numpy())
    noise = [
        turn.counts - axis.count(ages, turn.edges)
        for one in found
        for turn in from_arrays(one["age"], axis, n=n, rounds=rounds)
    ]
    assert as_stated(np.concatenate(noise), number * sigma**2)
    assert as_stated(np.array([one["visits"] for one in found]) - listed, sigma**2)


def test_private_regression(tmp_path: Path) -> None:
    gamma, norm, level = 2**12, 0.5, 3.0
    with three_parties(tmp_path) as federation:
        layout = WeighedLayout(
            facts=federation.facts,
            roster=federation.roster,
            names=("age", "visits"),
            gamma=gamma,
            clip={"clinic": norm},
            levels={"own": level},
        ).to_dict()
        found = asked(
            federation,
            "clinic",
            *[(block_norms, {"layout": layout, "level": level})] * 12,
            *[(own_moments, {"layout": layout})] * 60,
        )
    lengths, grams = np.array(found[:12]), np.array([one["moments"] for one in found[12:]])
    # Repeated requests share the exact value: deviations from their mean have (k - 1) / k of the variance.
    assert lengths.shape == (12, NORM_BINS)
    assert as_stated(lengths - lengths.mean(axis=0), level**2 * 11 / 12)
    square = gamma**2 * (1 + norm**2)
    delta = math.sqrt((square**2 + gamma**2 * square) / 2)
    upper = grams[:, 0][:, *np.triu_indices(3)]
    assert as_stated(upper - upper.mean(axis=0), (level * delta) ** 2 * 59 / 60)


def test_ranks_have_the_noise_of_the_whole_cohort(tmp_path: Path) -> None:
    """A party with 10 of 60 records: the cost is that of 60, since how many it has is not public."""
    blocks = three_overlapping_blocks()
    blocks["court"] = blocks["court"].head(10)
    times, epsilon_0 = 30, 0.2
    with three_parties(tmp_path, blocks=blocks, allow=(PRESENCE,)) as federation:
        ranked = (release_ranks, {"columns": ["sued"], "epsilon_0": epsilon_0, "noise": "skellam"})
        shown, *found = asked(federation, "court", (release_presence, {"columns": ["sued"]}), *[ranked] * times)
        n = federation.facts.n
        codes = federation.transport["court"].block.encoded("sued")
        at = federation.transport["court"].rows
    here = np.flatnonzero(np.unpackbits(shown[0], count=n))
    exact = dict(zip(at.tolist(), doubled_mid_ranks(codes).tolist(), strict=True))
    noise = np.array(found)[:, here, 0] - np.array([exact[row] for row in here.tolist()])
    theta = 1 / (1 + math.exp(epsilon_0))
    assert len(here) == 10
    assert as_stated(noise, 4 * n * theta * (1 - theta) / (1 - 2 * theta) ** 2)


# --- moments on shares ------------------------------------------------------------------------------------


@pytest.fixture
def wide(tmp_path: Path) -> Federation:
    """Three parties with ten columns of -1 and 1 each, so that quantising rounds nothing."""
    rng = np.random.default_rng(5)
    names = [f"c{j}" for j in range(30)]
    rows = pd.DataFrame(rng.choice([-1.0, 1.0], size=(12, 30)), columns=names).assign(id=np.arange(12))
    return Federation.local(
        {f"party{k}": rows[["id", *names[10 * k : 10 * k + 10]]] for k in range(3)},
        key="id",
        columns=Columns([Column(name=name, kind="continuous", lower=-1.0, upper=1.0) for name in names]),
        allow=("exact-moments",),
        home=tmp_path / "home",
        runs=tmp_path / "runs",
    )


def gram(federation: Federation, layout: MomentsLayout) -> NDArray[np.float64]:
    computation = MomentComputation(layout, "client")
    with federation.open(plan_of_stages("moments", computation.stages)) as job:
        return computation.run(job).grams[0]


def test_every_opening_of_moments_has_its_noise(wide: Federation) -> None:
    shape: dict[str, Any] = {"names": None, "presence": "ignore", "gamma": 16, "constant": False, "tile": 10}
    with wide as federation:
        made = MomentsLayout(facts=federation.facts, roster=federation.roster, mu=40_000, opening=250, **shape)
        assert len(made.rounds) == 3
        exact = MomentsLayout(facts=federation.facts, roster=federation.roster, opening=2000, **shape)
        noise = gram(federation, made) - gram(federation, exact)
    whole = noise * made.gamma**2
    for tiles in made.rounds:
        drawn = np.concatenate(
            [
                whole[slice(*tile.rows), slice(*tile.columns)][np.triu_indices(10)]
                if tile.diagonal
                else whole[slice(*tile.rows), slice(*tile.columns)].ravel()
                for tile in tiles
            ]
        )
        assert as_stated(drawn, 2 * made.mu), "the first opening and the later ones"


def test_shared_rows_are_clipped_to_the_norm_that_the_cost_states(wide: Federation) -> None:
    """Every row has norm sqrt(10) at each party, and the declared bounds are 1 and 2."""
    clip = {"party0": 1.0, "party1": 2.0}
    method = Moments(epsilon=None, presence="ignore", constant=False, gamma=2**10, clip=clip)
    with wide as federation:
        found = np.diag(method.fit(federation).grams[0])
    for place, square in enumerate((1.0, 4.0, 10.0)):
        reached = found[10 * place : 10 * place + 10].sum() / 12
        assert 0.99 * square < reached <= square


# --- tables of Markov random fields -----------------------------------------------------------------------


def test_every_round_of_tables_has_its_noise(tmp_path: Path) -> None:
    """The first round's noise comes with the rows, a later one's by itself; a unit is an opening of its own."""
    mus, bins, units = (400, 900), 200, 10
    with three_parties(tmp_path) as federation:
        schema = Schema.declared(federation.facts, bins=bins, columns=["age", "sued"])
        query = TableQuery.of(("age", "sued"), units=units)
        rounds = TableRounds(schema, federation.roster, "client", units=(units, units), mus=mus)
        with federation.open(plan_of_stages("synthesize", rounds.stages)) as job:
            measured = [table for k in range(2) for table in rounds.tables(job, schema, k, [query])]
    blocks = three_overlapping_blocks()
    both = blocks["clinic"].merge(blocks["court"], on="id")
    exact = np.stack([leaves(both["age"][both["sued"] == value], bins) for value in ("no", "yes")], axis=1)
    for mu, table in zip(mus, measured, strict=True):
        assert as_stated(table.counts - exact, 2 * mu / units), "the mean of so many independent openings"


def test_value_distributions_and_scores(tmp_path: Path) -> None:
    epsilon, rho = 0.3, 0.01
    with three_parties(tmp_path) as federation:
        schema = Schema.declared(federation.facts, bins=800, columns=["age"])
        (found,) = asked(federation, "clinic", (value_distributions, {"schema": schema.to_dict(), "epsilon": epsilon}))
    assert as_stated(found["age"] - leaves(three_overlapping_blocks()["clinic"]["age"], 800), 2 / epsilon**2, LAPLACE)
    n, names = 50, [f"c{j}" for j in range(26)]
    counter = Counter({name: np.zeros(n, dtype=np.int32) for name in names}, dict.fromkeys(names, 2), n)
    noisy = noisy_scores(counter, rho=rho, randomness=SystemRandomness())
    # Constant columns have score 0; all pairs together have L2 sensitivity 3 n sqrt(pairs), in units of 1 / 2n.
    assert len(noisy) == 325
    assert as_stated(np.array(list(noisy.values())) * 2 * n, 325 * (3 * n) ** 2 / (2 * rho))


# --- private training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("imputer", ["regression", "gain"])
def test_every_weight_of_private_training_has_its_noise(tmp_path: Path, imputer: Any) -> None:
    """After one iteration Adam's first moments are (1 - b1) times the noisy mean gradient, at both parties."""
    blocks, columns = curved_pair(120)
    small: dict[str, Any] = {"epochs": 1, "batch": 16, "hidden": 24, "cut": 8, "local": 1, "iterations": 1}
    small |= {"epsilon": 0.5, "parties": ("right",)}
    method: Any = Complete(**small)
    if imputer == "gain":
        method = FedPSG(imputer=imputer, n_correlated=0, condition="none", **small)
    allow = ("presence", "split-training", "completion-quality")
    with Federation.local(blocks, key="id", columns=columns, allow=allow, home=tmp_path / "home") as federation:
        (training,) = method.procedure(federation.facts, federation.roster).networks
        method.fit(federation, sure=True)
        parties: Any = federation.transport
        # A GAN's passive party learns of the last gradients when another round begins, and none does.
        for party in ("left", "right") if imputer == "regression" else ("right",):
            (kept,) = session._alive[parties[party]].values()
            optimisers = [kept.state.optimiser[0]] if imputer == "regression" else [*kept.state[3:]]
            moments = [leaf for optimiser in optimisers for leaf in _moments(optimiser)]
            noisy = np.concatenate([np.asarray(leaf).ravel() for leaf in moments]) / 0.1
            assert noisy.size == training.weights(federation.facts, party)
            assert as_stated(noisy, 2 * training.mu * (training.clip / training.gamma / training.batch) ** 2)


def _moments(optimiser: Any) -> list[Any]:
    """The first moments in Adam's state, wherever a chain of transformations has it."""
    found = optimiser if hasattr(optimiser, "mu") else next(part for part in optimiser if hasattr(part, "mu"))
    return jax.tree_util.tree_leaves(found.mu)
