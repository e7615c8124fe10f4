"""Are the standard errors of a private regression right? n = 100,000, 20 covariates, epsilon 3.

30 and 60 % of the blocks are missing, MCAR and MAR.

The records are those of `benchmarks/vfem_coverage.py`. The four releases are simulated on pooled records, with the
method's own plan, bounds and noise levels and normal noise in place of integer noise; `tests/oracle/
test_regress_private.py` shows that the federation releases the same. The exact fit on the same records stands beside
it.
QUICK=1 repeats less and writes no page.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, quick
from benchmarks.draws_common import Values
from benchmarks.vfem_coverage import BETA, BLOCKS, COVARIATES, EACH, NAMES, Case, draw
from colonnade.data.column import Column, Columns
from colonnade.errors import NotEstimable
from colonnade.federation.coordinator import Federation
from colonnade.models.linear.gaussian import regression
from colonnade.models.linear.private import WITHOUT_INTERVALS, PrivateFit, Released
from colonnade.models.linear.regress import Regress
from colonnade.models.linear.selection import extended, noisy_logits
from colonnade.models.linear.weighed import clipped
from colonnade.models.matrix import consecutive
from colonnade.models.private_scales import NORM_BINS, NORM_REACH, Spread, cells_of_lengths
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.statistics.adaptive import AdaptiveMarginal, Axis, release
from colonnade.statistics.cells import cells
from colonnade.statistics.describe import adaptive_rounds
from colonnade.statistics.gaussian_em import PatternStatistics, fit_gaussian

Array = NDArray[np.float64]
N, EPSILON, DELTA = 100_000, 3.0, 1e-6
COLUMNS = Columns(
    [Column(name=name, kind="continuous", lower=-9.0, upper=9.0) for name in NAMES[:-1]]
    + [Column(name="y", kind="continuous", lower=-40.0, upper=40.0)]
)
HELD = {
    f"party{block}": [*NAMES[EACH * block : EACH * (block + 1)], *(["y"] if block == 0 else [])]
    for block in range(BLOCKS)
}


def shape(method: Regress, n: int, held: dict[str, list[str]], columns: Columns) -> PrivateFit:
    """The public shape of the releases for a cohort of n, without any record."""
    blocks = {
        party: pd.DataFrame({"id": ["a", "b", "c"], **{name: [0.0, 0.5, 1.0] for name in names}})
        for party, names in held.items()
    }
    with (
        tempfile.TemporaryDirectory() as home,
        Federation.local(blocks, key="id", columns=columns, home=Path(home) / "h", runs=Path(home) / "r") as federation,
    ):
        procedure = method.procedure(replace(federation.facts, n=n), federation.roster)
        assert isinstance(procedure, PrivateFit)
        return procedure


def released(made: PrivateFit, rows: dict[str, Array], rng: np.random.Generator, *, noise: bool = True) -> Released:
    """The releases from pooled columns (NaN where a record is not there; the response holder has all)."""
    on = 1.0 if noise else 0.0
    level = made.levels
    spread: dict[str, Spread] = {}
    randomness = SimulatedRandomness(int(rng.integers(2**31)))
    rounds = adaptive_rounds("gaussian", level["spread"])
    rounds = rounds if noise else replace(rounds, scale=0.0)
    n = len(next(iter(rows.values())))
    for column in itertools.chain(*made.columns.values()):
        values = rows[column.name][~np.isnan(rows[column.name])]
        if column.discrete:
            exact = cells(column, bins=2).count(values)
            spread[column.name] = exact + on * level["spread"] * rng.standard_normal(len(exact))
            continue
        axis, ordered = Axis.of(column), np.sort(values)
        counted = release(partial(axis.count, ordered), axis, n=n, rounds=rounds, randomness=randomness)
        spread[column.name] = AdaptiveMarginal.of(counted, axis, n=n, rounds=rounds)
    standard = made.standard(spread)
    lengths = {}
    for party in made.parties:
        mine = [one.within(*standard[one.name]) for one in made.features if one.party == party]
        scaled = np.column_stack([(rows[one.name] - one.centre) / one.half / NORM_REACH for one in mine])
        scaled = np.clip(scaled[~np.isnan(scaled[:, 0])], -1, 1)
        lengths[party] = cells_of_lengths(scaled) + on * level["norms"] * rng.standard_normal(NORM_BINS)
    layout = made.layout.with_chosen(ranges=made.final(standard, spread, lengths))
    blocks, present = {}, {}
    for party in made.parties:
        mine = layout.own_features(party)
        block = np.column_stack([(rows[one.name] - one.centre) / one.half for one in mine])
        present[party] = ~np.isnan(block[:, 0])
        blocks[party] = clipped(np.nan_to_num(block), made.bounds[party])
    head = extended(blocks[made.response_party], layout.pairs)
    masks = np.column_stack([np.zeros((n, 0), dtype=bool), *(present[party] for party in made.others)])
    chosen = [head[(masks == np.array(mask)).all(axis=1)] for mask in made.masks]
    patterns = np.array([_noisy(part.T @ part, on * made.own_sd, rng) for part in chosen])
    logits = noisy_logits(
        head,
        masks,
        patterns.sum(axis=0),
        gamma=made.gamma,
        norm=layout.head_norm,
        sigma=max(on * made.score_sd * made.gamma, 1.0),
        rand=randomness,
    )
    layout = made.weighed(layout, spread, patterns, logits)
    counted = layout.weighing.weights(head) * masks
    heavy = np.array([_noisy((head * own[:, None]).T @ head, on * made.weighted_sd, rng) for own in counted.T])
    joined = np.column_stack([head, *(blocks[party] for party in made.others)])
    places = consecutive((layout.head, *(made.width(party) for party in made.others)))
    gram = joined.T @ joined
    for own, place in zip(counted.T, places[1:], strict=True):
        weighted = joined * own[:, None]
        gram[: layout.head, place] = weighted[:, : layout.head].T @ joined[:, place]
        gram[place, place] = weighted[:, place].T @ joined[:, place]
    upper = np.triu(gram)
    gram = _noisy(upper + np.triu(upper, 1).T, on * made.gram_sd, rng)
    return made.assembled(layout, spread, gram, patterns, heavy.reshape(-1, layout.head, layout.head))


def _noisy(gram: Array, sd: float, rng: np.random.Generator) -> Array:
    upper = np.triu(sd * rng.standard_normal(gram.shape))
    return np.asarray(gram + upper + np.triu(upper, 1).T)


@dataclass(frozen=True)
class Outcome:
    """Over the simulations that gave valid intervals, as far as their first line says."""

    within: float
    lowest: float
    error_ratio: float
    rmse: float
    bias: float
    refused: int


def outcome(found: list[tuple[Array, Array] | None]) -> Outcome:
    made = [one for one in found if one is not None]
    if len(made) < 2:
        return Outcome(np.nan, np.nan, np.nan, np.nan, np.nan, len(found) - len(made))
    slopes, errors = np.array([one[0] for one in made]), np.array([one[1] for one in made])
    inside = np.mean(np.abs(slopes - BETA) <= 2 * errors, axis=0)
    spread = slopes.std(axis=0, ddof=1)
    return Outcome(
        within=float(inside.mean()),
        lowest=float(inside.min()),
        error_ratio=float(np.sqrt(np.mean(errors.mean(axis=0) ** 2) / np.mean(spread**2))),
        rmse=float(np.sqrt(np.mean((slopes - BETA) ** 2))),
        bias=float(np.sqrt(np.mean((slopes.mean(axis=0) - BETA) ** 2 / errors.mean(axis=0) ** 2))),
        refused=len(found) - len(made),
    )


def study(case: Case, repetitions: int, number: int, made: PrivateFit) -> tuple[Outcome, Outcome]:
    """(private, exact on the first few)."""
    private: list[tuple[Array, Array] | None] = []
    exact: list[tuple[Array, Array] | None] = []
    for repetition in range(repetitions):
        rng = np.random.default_rng([number, repetition])
        rows = draw(case, rng)
        try:
            found = made.result(released(made, dict(zip(NAMES, rows.T, strict=True)), rng))
            if found.verdict.startswith(WITHOUT_INTERVALS):
                raise NotEstimable(found.verdict)
            slopes = list(NAMES[:-1])
            private.append(
                (np.asarray(found.params[slopes], dtype=np.float64), np.asarray(found.bse[slopes], dtype=np.float64))
            )
        except NotEstimable as refusal:
            print(refusal, flush=True)
            private.append(None)
        if repetition < 20:
            data = PatternStatistics.of_rows(rows, NAMES)
            whole = regression(data, fit_gaussian(data), COVARIATES)
            exact.append((whole.params[1:], np.sqrt(np.diag(whole.cov))[1:]))
    return outcome(private), outcome(exact)


def values_of(case: Case, repetitions: int, number: int, made: PrivateFit) -> Values:
    """{"fit: figure": value} of `study`."""
    pairs = zip(("private", "exact"), study(case, repetitions, number, made), strict=True)
    return {f"{name}: {key}": value for name, one in pairs for key, value in asdict(one).items()}


CASES = [
    *(Case(rate=rate, mechanism=mechanism, n=N) for rate in (0.3, 0.6) for mechanism in ("mcar", "mar")),
    Case(rate=0.9, mechanism="mcar", n=N, judged=False),
]
HEAD = (
    "setting",
    "simulations",
    "within 2 SE",
    "lowest coefficient",
    "SE / empirical sd",
    "bias / SE",
    "RMSE",
    "RMSE of the exact fit",
    "without intervals",
)
LEAST, RATIO = 0.93, 0.10


def main() -> int:
    page = Page("vfem-private", "A private regression: are the standard errors right?")
    made = shape(Regress(response="y", epsilon=EPSILON, delta=DELTA), N, HELD, COLUMNS)
    page.say(
        f"n = {N:,}, 20 covariates in five blocks of 4, epsilon {EPSILON:g}, delta {DELTA:g}, a person's total over all"
        " releases, client view with one colluder. Declared ranges are 9 deviations to either side (13 for the"
        " response). The first block is at the response holder; each other block is missing with the stated"
        " probability. MAR: the log-odds depend on the response and on one column of the holder, with alternating"
        f" signs. Noise on an entry of the Gram matrix: {made.gram_sd:.1f}, of the holder's own: {made.own_sd:.1f}."
    )
    repetitions = 20 if quick() else 200
    rows, judged = [], []
    for number, case in enumerate(CASES):
        count = repetitions if case.judged else min(repetitions, 10)
        values = page.draws.get((case.name, count), number, partial(values_of, case, count, number, made))
        private, exact = (
            Outcome(**{field.name: values[f"{name}: {field.name}"] for field in fields(Outcome)})
            for name in ("private", "exact")
        )
        if case.judged:
            judged.append(private)
        rows.append(
            [
                case.name,
                f"{count}",
                *(
                    [""] * 5
                    if private.refused == count
                    else [
                        f"{private.within:.1%}",
                        f"{private.lowest:.1%}",
                        f"{private.error_ratio:.3f}",
                        f"{private.bias:.2f}",
                        f"{private.rmse:.4f}",
                    ]
                ),
                f"{exact.rmse:.4f}",
                f"{private.refused}",
            ]
        )
        print(" | ".join(rows[-1]), flush=True)
    page.table(HEAD, rows)
    page.say(
        "90 % missing is shown because its estimates must say that they have no valid intervals: about 1,000 records"
        " for each pair of parties are lost in the noise. Judged is the rest: at least 93 % of the estimates within 2"
        " standard errors, and standard errors within 10 % of the empirical standard deviation (both as root mean"
        " squares over the coefficients)."
    )
    good = all(one.within >= LEAST and abs(one.error_ratio - 1) <= RATIO and one.refused == 0 for one in judged)
    return page.finish(
        good,
        lowest=f"{min(one.within for one in judged):.3f}",
        ratios=f"{min(one.error_ratio for one in judged):.3f}-{max(one.error_ratio for one in judged):.3f}",
        refused=sum(one.refused for one in judged),
    )


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        sys.exit(main())
