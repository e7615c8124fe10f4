"""Test accuracy on ACS income, four states (the SQM paper, 6.2): Classify, minibatches, DP-SGD, local DP, no privacy.

The repetitions draw *the same integers as the protocol* without the messages. For one state the real federation is
run too: with the noise off its Gram matrix must be equal, integer by integer, with the noise on the difference must
have the stated variance; and the same holds of every score that the rounds open.

The criterion (2026-11-17, written before the run; before it was 90 % of DP-SGD's gain, for moments): at epsilon 1, in
each state, the default of `Classify`, in the client view of three parties, has a mean test accuracy at most 0.005
below that of trusted DP-SGD and a mean AUC at most 0.01 below it. DP-SGD's schedule, rate and units (declared, or the
private ones that our rounds have) are chosen on a fifth of the training rows. All that our rounds leave open was
chosen on Adult and Bank (`classify-wide`); ACS judges.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.classify_common import CLIP, Task, federation_rounds, rounds_fit, sgd_fit, sgd_tuned, told
from benchmarks.common import Page, load, quick
from benchmarks.rivals.local_dp import logistic_on_perturbed_rows
from benchmarks.rivals.non_private import logistic
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.models.classify import ClassifierOfMoments, Classify, solve_moments
from colonnade.models.matrix import SecondMoments, feature_matrix, norm_bounds, without_impossible
from colonnade.papers.sqm.logistic import SQMLogistic, descent
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.features import features, quantize
from colonnade.statistics.moments import Moments

STATES = ("CA", "TX", "NY", "FL")
DELTA, GAMMA, RECORDS, SAMPLING = 1e-5, 2**13, 10_000, 0.001
BELOW = {"accuracy": 0.005, "auc": 0.01}
"""DP-SGD, at most, at epsilon 1."""
EPOCHS = {1.0: 5}
"""The paper also has 0.5 (2 epochs), 2 (8), 4 and 8 (10); `classify-wide` has ACS at 0.5 and 3."""
RESPONSE = "income_gt_50k"
OWNERS = {
    "registry": ["age", "sex", "race", "birthplace", "marital_status", "relationship"],
    "schools": ["schooling"],
    "employer": ["class_of_worker", "occupation", "hours_per_week", RESPONSE],
}
EXACT_GAMMA = 79 * 49 * 23
"""Makes every scaled age, hour and school year a whole number."""
RATES = {"large": (2.0, 8.0, 32.0, 128.0)}
RUNS = 6


def declared(table: pd.DataFrame) -> Columns:
    """Bounds of the questionnaire; code lists of the census, as far as the four states use them."""

    def codes(name: str) -> tuple[int, ...]:
        return tuple(int(code) for code in sorted(table[name].unique()))

    def column(name: str) -> Column:
        match name:
            case "age":
                return Column(name=name, kind="count", lower=17, upper=96)
            case "hours_per_week":
                return Column(name=name, kind="count", lower=1, upper=99)
            case "schooling":
                return Column(name=name, kind="ordinal", categories=tuple(range(1, 25)))
            case "sex":
                return Column(name=name, kind="binary", categories=(1, 2))
            case "income_gt_50k":
                return Column(name=name, kind="binary", categories=(0, 1))
        return Column(name=name, kind="categorical", categories=codes(name))

    return Columns(column(name) for names in OWNERS.values() for name in names)


def states() -> list[Task]:
    table = load("acs_income_ca_tx_ny_fl")
    columns = declared(table)
    made = []
    for name in os.environ.get("ONLY", ",".join(STATES)).split(","):
        whole = table[table["state"] == name].drop(columns="state").sample(frac=1, random_state=7)
        split = {"train": whole[:RECORDS], "test": whole[RECORDS:]}
        made.append(Task(name=name, declared=columns, owners=OWNERS, response=RESPONSE, **split))
    return made


# --- the same integers as the protocol -------------------------------------------------------------------------


def quantized_gram(state: Task, gamma: int, randomness: SimulatedRandomness) -> NDArray[np.float64]:
    """The exact Gram matrix of (1, x, y) as `moments` opens it, before its noise."""
    names = (*state.explaining, state.response)
    wanted = features(state.facts, names)
    bounds = norm_bounds(state.facts, names, CLIP)
    rows = feature_matrix(state.train, wanted, state.declared)
    parts = [np.full((len(rows), 1), gamma)]
    for party in state.owners:
        mine = [at for at, feature in enumerate(wanted) if feature.party == party]
        parts.append(quantize(rows[:, mine], gamma=gamma, clip=bounds[party], entry=1.0, randomness=randomness))
    table = np.hstack(parts).astype(np.float64)
    assert len(table) * gamma**2 < 2**53
    return table.T @ table


def moments_fit(state: Task, epsilon: float, run: int, *, gamma: int = GAMMA) -> tuple[float, NDArray[np.float64]]:
    """`Classify`, from the integers that the protocol would open."""
    randomness = SimulatedRandomness(run, f"sqm-logistic {state.name} {epsilon} {gamma}")
    gram = quantized_gram(state, gamma, randomness)
    upper, n = np.triu_indices(len(gram)), len(state.train)
    names = tuple(feature.name for feature in features(state.facts, state.explaining))
    model = Classify(response=state.response, epsilon=epsilon, delta=DELTA, gamma=gamma, clip=CLIP, view="server")
    layout = ClassifierOfMoments(model, state.facts, state.roster).layout
    noise = np.zeros(gram.shape)
    noise[upper] = skellam(randomness, Fraction(layout.mu), len(upper[0])).astype(np.float64)
    second = SecondMoments(
        names=tuple(layout.entries(layout.masks[0])),
        matrix=(gram + noise + np.triu(noise, 1).T) / (gamma**2 * n),
        noise_sd=math.sqrt(2 * layout.mu) / (gamma**2 * n),
    )
    second = without_impossible(second, layout.features)
    return solve_moments(second, names=names, response=state.response, intercept=True)


def minibatch_fit(
    state: Task, epsilon: float, run: int, *, sampling: float, rounds: int, rate: float, radius: float, gamma: int
) -> tuple[float, NDArray[np.float64]]:
    """The paper's procedure, with weights within norm 1; or within another radius."""
    model = SQMLogistic(
        response=RESPONSE,
        epsilon=epsilon,
        delta=DELTA,
        gamma=gamma,
        clip=CLIP,
        view="server",
        sampling=sampling,
        rounds=rounds,
        radius=radius,
    )
    layout = model.procedure(state.facts, state.roster).layout
    randomness = SimulatedRandomness(run, f"sqm-logistic minibatch {state.name} {epsilon} {radius} {gamma}")
    rng = np.random.default_rng(run)
    rows, _ = state.training
    event = state.train[RESPONSE].to_numpy().astype(np.int64)
    mine = {p: [at for at, f in enumerate(layout.features) if f.party == p] for p in layout.parties}

    def gradient(number: int, weights: NDArray[np.int64]) -> NDArray[np.float64]:
        chosen = np.flatnonzero(rng.uniform(size=len(rows)) < sampling)
        table = np.hstack(
            [layout.quantized_part(p, rows[np.ix_(chosen, at)], event[chosen], randomness) for p, at in mine.items()]
        )
        z, s = table[:, :-1], table[:, -1]
        exact = z.T @ (z @ weights[layout.order] - 2 * layout.gamma * s)
        found = np.empty(layout.width)
        noise = skellam(randomness, Fraction(layout.mu), layout.width)
        found[layout.order] = (exact + noise).astype(np.float64) / (4.0 * layout.gamma**3)
        return found

    return descent(layout, gradient, learning_rate=rate)


def same_as_the_federation(state: Task, page: Page) -> bool:
    values = page.draws.get((state.name, "federation"), 0, partial(federation_gram, state))
    equal, ratio, tolerance = values["equal"] == 1, values["ratio"], 6 * math.sqrt(2 / values["entries"])
    page.say(
        f"The federation in the embedded transport on {state.name}, 3 parties that hold the shares themselves: with the"
        f" noise off its Gram matrix {'equals' if equal else 'DIFFERS FROM'} the fast path's in every integer (gamma ="
        f" {EXACT_GAMMA}, at which rounding has nothing to decide); with the noise on the difference has {ratio:.4f} of"
        f" the stated variance (tolerance {tolerance:.4f}). `Classify(epsilon=1, solver='moments')` fitted through it"
        f" scores {values['score']:.4f}."
    )
    rounds = page.draws.get((state.name, "federation, rounds"), 0, partial(federation_rounds, state, delta=DELTA))
    spread = 6 * math.sqrt(2 / rounds["entries"])
    page.say(
        f"Rounds through it: without noise {rounds['different']:.0f} of the {rounds['entries']:.0f} integers that are"
        " opened differ from the fast path's score of what the parties have shared; with the noise on the difference"
        f" has {rounds['ratio']:.4f} of the stated variance (tolerance {spread:.4f}). `Classify(epsilon=1)` fitted"
        f" through it scores {rounds['accuracy']:.4f} (AUC {rounds['auc']:.4f})."
    )
    same = rounds["different"] == 0 and abs(rounds["ratio"] - 1) < spread
    return bool(equal and abs(ratio - 1) < tolerance and same)


def federation_gram(state: Task) -> dict[str, float]:
    """Whether the exact matrix is equal, the variance of the noise over the stated one, and the fit's score."""
    fast = quantized_gram(state, EXACT_GAMMA, SimulatedRandomness(1, "check"))
    names = (*state.explaining, RESPONSE)
    blocks = {party: state.train[columns].assign(record=np.arange(RECORDS)) for party, columns in OWNERS.items()}
    clip = norm_bounds(state.facts, names, CLIP)
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation.local(
            blocks,
            key="record",
            columns=state.declared,
            allow=("exact-moments",),
            home=f"{folder}/home",
            runs=f"{folder}/runs",
        )
        with federation:
            options = {"presence": "ignore", "gamma": EXACT_GAMMA, "clip": clip, "columns": names, "view": "server"}
            options["verify"] = False
            off = Moments(epsilon=None, **options).fit(federation)  # type: ignore[arg-type]
            on = Moments(epsilon=1.0, delta=DELTA, **options).fit(federation, sure=True)  # type: ignore[arg-type]
            model = Classify(
                response=RESPONSE, epsilon=1.0, delta=DELTA, gamma=GAMMA, clip=CLIP, view="server", verify=False
            )
            fitted = model.fit(federation, sure=True)
    upper = np.triu_indices(len(fast))
    return {
        "equal": int(np.array_equal(np.rint(off.grams[0] * EXACT_GAMMA**2), fast)),
        "ratio": float(np.mean((on.grams[0] - off.grams[0])[upper] ** 2) / on.noise_sd**2),
        "entries": len(upper[0]),
        "score": float(fitted.score(state.test, state.test[RESPONSE])),
    }


# --- the study -------------------------------------------------------------------------------------------------


SCHEDULES = {"large": (0.05, 200)}
"""(Sampling, rounds). The paper's batches of 0.1 % in 5,000 rounds were never chosen when they were among these."""


def fitted_score(state: Task, method: str, epsilon: float, run: int, choice: str) -> dict[str, float]:
    """Accuracy and AUC on the test rows of one method."""
    if method == "rounds":
        return state.score(*rounds_fit(state, epsilon, run, delta=DELTA))
    if method == "DP-SGD":
        return state.score(*sgd_fit(state, epsilon, choice, run, delta=DELTA, schedules=SCHEDULES))
    if method == "local DP":
        rows, sign = state.training
        local = logistic_on_perturbed_rows(
            rows, sign, norm=CLIP * math.sqrt(10), epsilon=epsilon, delta=DELTA, rng=np.random.default_rng(run)
        )
        return state.score(*local)
    if method == "moments":
        return state.score(*moments_fit(state, epsilon, run))
    return state.score(*minibatch_fit(state, epsilon, run, gamma=GAMMA, **MINIBATCH[method]))


MINIBATCH: dict[str, dict[str, Any]] = {
    "minibatch, radius 1": {"sampling": 0.05, "rounds": 200, "rate": 0.4, "radius": 1.0},
    "minibatch, radius 5": {"sampling": 0.05, "rounds": 200, "rate": 8.0, "radius": 5.0},
}
METHODS = ("rounds", "DP-SGD", "moments", *MINIBATCH, "local DP")
FEW = {"moments": 1, "local DP": 1, **dict.fromkeys(MINIBATCH, 1)}
"""Runs of methods that are not judged."""


def main() -> int:
    page = Page("sqm-logistic", "Classify: test accuracy on ACS income")
    repetitions = 2 if quick() else RUNS
    page.say(
        f"Train on {RECORDS:,} records of a state (the paper's size), test on the others; 790 features of ten columns"
        " at three parties, 0/1 indicators and numbers in [-1, 1], of which 528 are occupations and 222 birthplaces."
        f" All mechanisms at (epsilon, {DELTA:g}), relation zero-out. Mean of {repetitions} runs ± its standard error"
        " (moments, local DP and minibatches: 1)."
    )
    page.say(
        "rounds are the default of `Classify`, in the **client view** of three parties with one colluder, whose"
        " noise is 1.22 times that of a trusted place. moments are `Classify(solver='moments')`, one release, clip"
        " 0.866, gamma 2^13, server view. DP-SGD is trusted: one place has all rows and adds all noise. It is the"
        " best, on a fifth of the training rows, of four learning rates in 200 rounds of 1 record in 20 (the paper's"
        " smaller batches were never chosen where they were tried) and of rows in declared units (clipped to 0.866 of"
        " the norm that a"
        " party's columns can reach) and in the private units of our rounds, for the same tenth of the budget;"
        " averaged weights; noise by privacy loss distributions. minibatch is the paper's `SQMLogistic` in 200"
        " rounds of 1 record in 20 in the server view, with weights within norm 1 as printed and learning rate 0.4,"
        " and within norm 5 and rate 8; in the ball of radius 1 the exact optimum of its loss, without any noise,"
        " has an accuracy of .667 on CA. Local DP is the paper's Algorithm 4."
    )
    page.say(
        "What was chosen, and on which data. Rounds (8, a tenth of the budget for units, clipping, damping): on"
        " Adult and Bank, 10,000 records, epsilon 1; nothing was chosen on ACS. The clip of moments was suggested by"
        " Adult and first tried on NY and FL; their ridge was chosen after a look at the test rows of CA and TX. The"
        " norm of 1 of DP-SGD's gradients was not tuned."
    )
    good, least = True, dict.fromkeys(BELOW, math.inf)
    for at, state in enumerate(states()):
        page.say(f"## {state.name}")
        best = page.draws.get(
            (state.name, "no privacy, auc"), 0, lambda state=state: state.score(*logistic(*state.plain))
        )
        page.say(
            f"Majority rate {state.majority:.4f}; logistic regression without privacy: accuracy {best['accuracy']:.4f},"
            f" AUC {best['auc']:.4f}."
        )
        if at == 0:
            good &= same_as_the_federation(state, page)
        lines, areas = [], []
        for epsilon in EPOCHS:
            tried = page.draws.get(
                (state.name, epsilon, "DP-SGD, tuning of units"),
                0,
                partial(
                    sgd_tuned,
                    state,
                    epsilon,
                    delta=DELTA,
                    schedules=SCHEDULES,
                    rates=RATES,
                    by="accuracy",
                ),
            )
            choice = max(tried, key=tried.__getitem__)
            found = {
                method: [
                    page.draws.get(
                        (state.name, epsilon, method, "auc"),
                        run,
                        partial(fitted_score, state, method, epsilon, run, choice),
                    )
                    for run in range(min(repetitions, FEW.get(method, RUNS)))
                ]
                for method in METHODS
            }
            mean = {
                (method, name): float(np.mean([values[name] for values in found[method]]))
                for method in METHODS[:2]
                for name in BELOW
            }
            if epsilon == 1.0:
                for name in BELOW:
                    least[name] = min(least[name], mean["rounds", name] - mean["DP-SGD", name])
            lines.append((f"{epsilon:g}", *(told([v["accuracy"] for v in each]) for each in found.values()), choice))
            areas.append((f"{epsilon:g}", *(told([v["auc"] for v in found[method]]) for method in METHODS[:3])))
        page.say("Accuracy:")
        page.table(("epsilon", *METHODS, "DP-SGD's units, schedule and rate"), lines)
        page.say("AUC:")
        page.table(("epsilon", *METHODS[:3]), areas)
    page.say(
        f"The criterion: at epsilon 1 rounds are at most {BELOW['accuracy']} in accuracy and {BELOW['auc']} in AUC"
        " below DP-SGD, in every state. The smallest differences are below; positive ones are in favour of rounds."
    )
    good &= all(least[name] >= -most for name, most in BELOW.items())
    return page.finish(good, **{f"{name}-over-dp-sgd": f"{value:+.4f}" for name, value in least.items()})


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        sys.exit(main())
