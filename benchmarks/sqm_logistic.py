"""Test accuracy on ACS income, four states (the SQM paper, 6.2): Classify, minibatches, DP-SGD, local DP, no privacy.

The repetitions draw *the same integers as the protocol* without the messages. For one state the real federation is
run too: with the noise off its Gram matrix must be equal, integer by integer, and with the noise on the difference
must have the stated variance.

The limit (90 % of DP-SGD's gain) is of before 2026-11-17. Then came: DP-SGD's schedule and rate chosen on a fifth of
the training rows (on the test rows before), minibatches with a radius that does not cap them beside the paper's, more
runs, and other gammas at epsilon 1.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, load, quick
from benchmarks.rivals.dp_sgd import dp_sgd
from benchmarks.rivals.local_dp import logistic_on_perturbed_rows
from benchmarks.rivals.non_private import accuracy, logistic
from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.models.classify import Classify, solve_moments
from colonnade.models.matrix import SecondMoments, feature_matrix, norm_bounds, without_impossible
from colonnade.papers.sqm.logistic import SQMLogistic, descent
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.privacy.skellam_sampler import skellam
from colonnade.statistics.features import features, quantize
from colonnade.statistics.moments import Moments

STATES = ("CA", "TX", "NY", "FL")
DELTA, GAMMA, RECORDS, SAMPLING = 1e-5, 2**13, 10_000, 0.001
EPOCHS = {0.5: 2, 1.0: 5, 2.0: 8, 4.0: 10, 8.0: 10}
KEPT = 0.9
RESPONSE = "income_gt_50k"
OWNERS = {
    "registry": ["age", "sex", "race", "birthplace", "marital_status", "relationship"],
    "schools": ["schooling"],
    "employer": ["class_of_worker", "occupation", "hours_per_week", RESPONSE],
}
CLIP = math.sqrt(0.75)
"""Of the norm that a party's columns can reach: a rule without data; the page says how it was chosen."""
EXACT_GAMMA = 79 * 49 * 23
"""Makes every scaled age, hour and school year a whole number."""
RATES = {"paper": (0.5, 2.0, 8.0, 32.0), "large": (2.0, 8.0, 32.0, 128.0)}


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


@dataclass(frozen=True, kw_only=True)
class State:
    """Training and test rows of one state, split at random as the paper does: 10,000 to train, the others to test."""

    name: str
    train: pd.DataFrame
    test: pd.DataFrame
    declared: Columns

    @cached_property
    def facts(self) -> PublicFacts:
        return PublicFacts(
            n=len(self.train), columns={party: self.declared.select(names) for party, names in OWNERS.items()}
        )

    @cached_property
    def roster(self) -> Roster:
        members = tuple(
            Member(name=party, organisation=party, public_key=bytes([at]) * 32) for at, party in enumerate(OWNERS)
        )
        return Roster(members=members, committee=tuple(OWNERS))

    @cached_property
    def explaining(self) -> tuple[str, ...]:
        return tuple(name for names in OWNERS.values() for name in names if name != RESPONSE)

    def rows(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        return feature_matrix(frame, features(self.facts, self.explaining), self.declared)

    @cached_property
    def training(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rows for the rivals: each party's part within the norm that SQM clips it to, the response apart."""
        rows = self.rows(self.train)
        wanted = features(self.facts, self.explaining)
        for party, bound in norm_bounds(self.facts, self.explaining, CLIP).items():
            mine = [at for at, feature in enumerate(wanted) if feature.party == party]
            norms = np.linalg.norm(rows[:, mine], axis=1, keepdims=True)
            rows[:, mine] *= np.minimum(1.0, bound / np.maximum(norms, 1e-300))
        return rows, 2.0 * self.train[RESPONSE].to_numpy() - 1

    @cached_property
    def testing(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.rows(self.test), 2.0 * self.test[RESPONSE].to_numpy() - 1

    @cached_property
    def norm(self) -> float:
        """Of (1, features): ten columns of norm at most 1, clipped."""
        return math.sqrt(1 + CLIP**2 * len(self.explaining))

    def score(self, intercept: float, coef: NDArray[np.float64]) -> float:
        return accuracy(*self.testing, intercept, coef)


def states() -> list[State]:
    table = load("acs_income_ca_tx_ny_fl")
    columns = declared(table)
    made = []
    for name in os.environ.get("ONLY", ",".join(STATES)).split(","):
        whole = table[table["state"] == name].drop(columns="state").sample(frac=1, random_state=7)
        made.append(State(name=name, train=whole[:RECORDS], test=whole[RECORDS:], declared=columns))
    return made


# --- the same integers as the protocol -------------------------------------------------------------------------


def quantized_gram(state: State, gamma: int, randomness: SimulatedRandomness) -> NDArray[np.float64]:
    """The exact Gram matrix of (1, x, y) as `moments` opens it, before its noise."""
    names = (*state.explaining, RESPONSE)
    wanted = features(state.facts, names)
    bounds = norm_bounds(state.facts, names, CLIP)
    rows = feature_matrix(state.train, wanted, state.declared)
    parts = [np.full((len(rows), 1), gamma)]
    for party in OWNERS:
        mine = [at for at, feature in enumerate(wanted) if feature.party == party]
        parts.append(quantize(rows[:, mine], gamma=gamma, clip=bounds[party], entry=1.0, randomness=randomness))
    table = np.hstack(parts).astype(np.float64)
    assert len(table) * gamma**2 < 2**53
    return table.T @ table


def moments_fit(state: State, epsilon: float, run: int, *, gamma: int = GAMMA) -> tuple[float, NDArray[np.float64]]:
    """`Classify`, from the integers that the protocol would open."""
    randomness = SimulatedRandomness(run, f"sqm-logistic {state.name} {epsilon} {gamma}")
    gram = quantized_gram(state, gamma, randomness)
    upper, n = np.triu_indices(len(gram)), len(state.train)
    names = tuple(feature.name for feature in features(state.facts, state.explaining))
    model = Classify(response=RESPONSE, epsilon=epsilon, delta=DELTA, gamma=gamma, clip=CLIP, view="server")
    layout = model.procedure(state.facts, state.roster).layout
    noise = np.zeros(gram.shape)
    noise[upper] = skellam(randomness, Fraction(layout.mu), len(upper[0])).astype(np.float64)
    second = SecondMoments(
        names=tuple(layout.entries(layout.masks[0])),
        matrix=(gram + noise + np.triu(noise, 1).T) / (gamma**2 * n),
        noise_sd=math.sqrt(2 * layout.mu) / (gamma**2 * n),
    )
    second = without_impossible(second, layout.features)
    return solve_moments(second, names=names, response=RESPONSE, intercept=True)


def minibatch_fit(
    state: State, epsilon: float, run: int, *, sampling: float, rounds: int, rate: float, radius: float, gamma: int
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


def same_as_the_federation(state: State, page: Page) -> bool:
    values = page.draws.get((state.name, "federation"), 0, partial(federation_gram, state))
    equal, ratio, tolerance = values["equal"] == 1, values["ratio"], 6 * math.sqrt(2 / values["entries"])
    page.say(
        f"The federation in the embedded transport on {state.name}, 3 parties that hold the shares themselves: with the"
        f" noise off its Gram matrix {'equals' if equal else 'DIFFERS FROM'} the fast path's in every integer (gamma ="
        f" {EXACT_GAMMA}, at which rounding has nothing to decide); with the noise on the difference has {ratio:.4f} of"
        f" the stated variance (tolerance {tolerance:.4f}). `Classify(epsilon=1)` fitted through it scores"
        f" {values['score']:.4f}."
    )
    return equal and abs(ratio - 1) < tolerance


def federation_gram(state: State) -> dict[str, float]:
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
            off = Moments(epsilon=None, **options).fit(federation)  # type: ignore[arg-type]
            on = Moments(epsilon=1.0, delta=DELTA, **options).fit(federation, sure=True)  # type: ignore[arg-type]
            model = Classify(response=RESPONSE, epsilon=1.0, delta=DELTA, gamma=GAMMA, clip=CLIP, view="server")
            fitted = model.fit(federation, sure=True)
    upper = np.triu_indices(len(fast))
    return {
        "equal": int(np.array_equal(np.rint(off.grams[0] * EXACT_GAMMA**2), fast)),
        "ratio": float(np.mean((on.grams[0] - off.grams[0])[upper] ** 2) / on.noise_sd**2),
        "entries": len(upper[0]),
        "score": fitted.score(state.test, state.test[RESPONSE]),
    }


# --- the study -------------------------------------------------------------------------------------------------


SCHEDULES = {
    epsilon: {"paper": (SAMPLING, round(EPOCHS[epsilon] / SAMPLING)), "large": (0.05, 200)} for epsilon in EPOCHS
}


def sgd_weights(
    rows: NDArray[np.float64], sign: NDArray[np.float64], epsilon: float, schedule: str, rate: float, run: int
) -> NDArray[np.float64]:
    sampling, rounds = SCHEDULES[epsilon][schedule]
    return dp_sgd(
        rows,
        sign,
        epsilon=epsilon,
        delta=DELTA,
        sampling=sampling,
        rounds=rounds,
        learning_rate=rate,
        rng=np.random.default_rng(run),
    )


def with_constant(state: State) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows, sign = state.training
    return np.column_stack([np.ones(len(rows)), rows]) / state.norm, sign


def tuned(state: State, epsilon: float) -> dict[str, float]:
    """Accuracy of each schedule and learning rate on a fifth of the training rows, fitted on the others, three runs."""
    rows, sign = with_constant(state)
    held = np.arange(len(rows)) % 5 == 0
    return {
        f"{schedule} {rate:g}": float(
            np.mean(
                [
                    np.mean(np.sign(rows[held] @ weights) == sign[held])
                    for run in (100, 101, 102)
                    for weights in [sgd_weights(rows[~held], sign[~held], epsilon, schedule, rate, run)]
                ]
            )
        )
        for schedule, rates in RATES.items()
        for rate in rates
    }


def fitted_score(state: State, method: str, epsilon: float, run: int, choice: str) -> dict[str, float]:
    """Accuracy on the test rows of one method."""
    if method == "DP-SGD":
        schedule, rate = choice.split()
        weights = sgd_weights(*with_constant(state), epsilon, schedule, float(rate), run)
        return {"accuracy": state.score(float(weights[0]), weights[1:])}
    if method == "local DP":
        rows, sign = state.training
        local = logistic_on_perturbed_rows(
            rows, sign, norm=CLIP * math.sqrt(10), epsilon=epsilon, delta=DELTA, rng=np.random.default_rng(run)
        )
        return {"accuracy": state.score(*local)}
    if method == "moments":
        return {"accuracy": state.score(*moments_fit(state, epsilon, run))}
    return {"accuracy": state.score(*minibatch_fit(state, epsilon, run, gamma=GAMMA, **MINIBATCH[method]))}


MINIBATCH: dict[str, dict[str, Any]] = {
    "minibatch, radius 1": {"sampling": 0.05, "rounds": 200, "rate": 0.4, "radius": 1.0},
    "minibatch, radius 5": {"sampling": 0.05, "rounds": 200, "rate": 8.0, "radius": 5.0},
}
METHODS = ("moments", *MINIBATCH, "DP-SGD", "local DP")
GAMMAS = (2**4, 2**7, 2**10, 2**13)


def told(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1) / math.sqrt(len(values)):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"


def over_gamma(state: State, page: Page, repetitions: int) -> None:
    """At epsilon 1; the paper's Figure 2 varies gamma too."""

    def score(method: str, gamma: int, run: int) -> dict[str, float]:
        if method == "moments":
            return {"accuracy": state.score(*moments_fit(state, 1.0, run, gamma=gamma))}
        return {"accuracy": state.score(*minibatch_fit(state, 1.0, run, gamma=gamma, **MINIBATCH[method]))}

    lines = []
    for gamma in GAMMAS:
        found = [
            [
                page.draws.get((state.name, 1.0, method, "gamma", gamma), run, partial(score, method, gamma, run))
                for run in range(repetitions)
            ]
            for method in METHODS[:3]
        ]
        cells = (told([values["accuracy"] for values in each]) for each in found)
        lines.append((f"2^{int(math.log2(gamma))}", *cells))
    page.say(f"Over gamma, {state.name}, epsilon 1:")
    page.table(("gamma", *(f"SQM, {name}" for name in METHODS[:3])), lines)


def main() -> int:
    page = Page("sqm-logistic", "Classify: test accuracy on ACS income")
    repetitions = 2 if quick() else 20
    page.say(
        f"Train on {RECORDS:,} records of a state (the paper's size), test on the others; 790 features of ten columns"
        " at three parties, 0/1 indicators and numbers in [-1, 1]. Every mechanism sees the same training rows: each"
        f" party's part is clipped to {CLIP:.3f} of the norm that its columns can reach (the root of their number). All"
        f" mechanisms at (epsilon, {DELTA:g}), relation zero-out, server view; gamma = 2^13. Mean of"
        f" {repetitions} runs ± its standard error (local DP: 3)."
    )
    page.say(
        "moments are `Classify`: one release. minibatch is the paper's `SQMLogistic` in 200 rounds of 1 record in 20"
        " (with the paper's 1 in 1,000 it did worse on CA: 0.63 at best at epsilon 0.5), with weights within norm 1 as"
        " printed and learning rate 0.4, and within norm 5 and rate 8. In the ball of radius 1 the exact optimum of its"
        " loss, without any noise, has an accuracy of .667 on CA: the radius caps it, whatever epsilon is. DP-SGD: the"
        " better of the paper's batches and epochs and of 200 rounds of 1 in 20, and of four learning rates each,"
        " chosen on a fifth of the training rows; averaged weights; noise by privacy loss distributions; gradients"
        " clipped to norm 1, which those of rows of norm 1 never exceed. Local DP is the paper's Algorithm 4."
    )
    page.say(
        "What was chosen, and on which data. The clip (three quarters of the squared norm that the declared domains"
        " allow, for every party) was suggested by the data set Adult: with its columns split between three parties as"
        " here, clips near this one raised the share of DP-SGD's gain at epsilon 0.5 from 97 to between 99 and 101 %,"
        " and changed nothing at epsilon 8. This very value was first tried on NY and FL at epsilon 0.5, and not"
        " changed afterwards. The ridge rule of `moments` (half the noise level) was chosen earlier after a look at the"
        " test rows of CA and TX; on Adult half was better than a quarter and once the level at epsilon 0.5,"
        " and as good as once the level at 2 and 8. DP-SGD's gradient norm of 1 was not tuned."
    )
    good, worst = True, math.inf
    for at, state in enumerate(states()):
        page.say(f"## {state.name}")
        _, sign = state.testing
        majority = float(max(np.mean(sign > 0), np.mean(sign < 0)))
        best = state.score(*logistic(state.rows(state.train), state.training[1]))
        best = page.draws.get(
            (state.name, "no privacy"),
            0,
            lambda: {"accuracy": state.score(*logistic(state.rows(state.train), state.training[1]))},  # noqa: B023
        )["accuracy"]
        page.say(f"Majority rate {majority:.4f}; logistic regression without privacy {best:.4f}.")
        if at == 0:
            good &= same_as_the_federation(state, page)
        lines = []
        for epsilon in EPOCHS:
            tried = page.draws.get((state.name, epsilon, "DP-SGD, tuning"), 0, partial(tuned, state, epsilon))
            choice = max(tried, key=tried.__getitem__)
            found = {
                method: [
                    page.draws.get(
                        (state.name, epsilon, method), run, partial(fitted_score, state, method, epsilon, run, choice)
                    )["accuracy"]
                    for run in range(min(repetitions, 3) if method == "local DP" else repetitions)
                ]
                for method in METHODS
            }
            share = (float(np.mean(found["moments"])) - majority) / (float(np.mean(found["DP-SGD"])) - majority)
            worst = min(worst, share)
            lines.append((f"{epsilon:g}", *map(told, found.values()), choice, f"{100 * share:.0f} %"))
        page.table(
            (
                "epsilon",
                *(f"SQM, {name}" if name in METHODS[:3] else name for name in METHODS),
                "DP-SGD's schedule and rate",
                "gain of moments over DP-SGD's",
            ),
            lines,
        )
        if at == 0:
            over_gamma(state, page, repetitions)
    page.say(f"The limit is {100 * KEPT:.0f} % of DP-SGD's gain over the majority rate, in every row, for `moments`.")
    return page.finish(good and worst >= KEPT, **{"smallest-share-of-gain": f"{100 * worst:.0f}%"})


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        sys.exit(main())
