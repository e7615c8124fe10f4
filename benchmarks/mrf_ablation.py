"""What each part of VertiMRF is worth on Adult with two parties: LocMRF, recovery and consistency in the paper's
procedure at epsilon 0.8 and 3.2 (its Figures 7 to 9), and the share of the budget that LocMRF has, at 0.8 (Figure 6);
the rounds of `sqm`; and two ways with missing blocks.

Missing blocks: a quarter of the records lack the second party's block, completely at random or depending on a column of
the first party (marital status). "available" is the product's: tables from the records that both have. "level" adds a
level "absent" to each of its columns and draws complete rows only.

Five runs a line of the paper's methods since 2026-11-17 (one before), one of ours (two with missing blocks), where
differences below .002 say little. About an hour and a half of CPU.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.common import Page, quick
from benchmarks.mrf_common import CELLS, Codes, Data, Lines, Pooled, adult, federated_rows, field_method, field_rows
from colonnade.papers import VertiMRF
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.synthesis.field.procedure import FieldSynthesis
from colonnade.synthesis.field.sample import sample_cells
from colonnade.synthesis.method import Synthesize

EPSILON = 0.8
SQM_OPTIONS: dict[str, dict[str, object]] = {
    "as it is": {},
    "24 tables": {"n_tables": 24},
    "4 bins": {"bins": 4},
    "the fit goes on to 1,500 iterations": {"discrepancy": 0.0},
    "30,000 cells": {"max_clique": 30_000},
    "no triples": {"theta_triples": None},
}
PAPER_OPTIONS: dict[str, dict[str, object]] = {
    "nothing": {},
    "without LocMRF": {"local_mrf": False},
    "uniform recovery": {"recover": "uniform"},
    "without consistency": {"consistency": False},
}

RUNS = 5
THETAS = (0.1, 0.2, 0.4, 0.6, 0.8)
"""Of the budget for LocMRF; what is left goes to encoding and value distributions in the paper's 4 : 2."""


def split(theta: float) -> tuple[float, float, float]:
    return theta, (1 - theta) * 2 / 3, (1 - theta) / 3


def absent_rows(data: Data, mechanism: str, seed: int) -> np.ndarray:
    """A quarter of the records: at random, or the more likely the higher the code of marital status."""
    rng = np.random.default_rng(seed)
    if mechanism == "MCAR":
        return rng.random(data.n) < 0.25
    code = data.codes["marital_status"] / (data.schema.sizes["marital_status"] - 1)
    return rng.random(data.n) < 0.25 * code / code.mean()


class Partial(Pooled):
    """Pooled records of which some lack a block: a code of -1 is counted in no table."""

    def exact(self, query):  # type: ignore[no-untyped-def]
        rows = np.all([self._codes[name] >= 0 for name in query.columns], axis=0)
        both = Pooled({name: codes[rows] for name, codes in self._codes.items()}, self._schema, (), self._randomness)
        return both.exact(query)


def with_missing(data: Data, *, handling: str, mechanism: str, seed: int) -> Codes:
    """Rows of the field that is fitted when the second party lacks some records."""
    away = absent_rows(data, mechanism, seed)
    procedure = FieldSynthesis(field_method(data, epsilon=EPSILON, view="server"), data.facts(2), data.roster(2))
    second, schema = data.parties(2)["p01"], procedure.schema
    sizes = dict(schema.sizes)
    if handling == "level":
        codes = {name: np.where(away, sizes[name], c) if name in second else c for name, c in data.codes.items()}
        schema.__dict__["sizes"] = {name: size + (name in second) for name, size in sizes.items()}
    else:
        codes = {name: np.where(away, -1, c) if name in second else c for name, c in data.codes.items()}
    kind = Pooled if handling == "level" else Partial
    pooled = kind(codes, schema, procedure.rounds.mus, SimulatedRandomness(seed, mechanism))
    field = procedure.fitted(procedure.measure(schema, pooled.tables))
    drawn = sample_cells(field, 3 * data.n, np.random.default_rng(seed))
    complete = np.all([drawn[name] < sizes[name] for name in sizes], axis=0)
    return {name: one[complete][: data.n] for name, one in drawn.items()}


def main() -> int:
    page = Page("mrf-ablation", "VertiMRF: what each part is worth")
    data = adult()
    lines = Lines(data, page.draws)
    page.say(
        "Adult, two parties, delta 1/n; distances of 300 marginals as in `mrf-tvd`. `sqm` (ours) in the server view;"
        " `fm` and `fo` as printed (`VertiMRF.as_printed`) but for what a line names. A run's 3-way distance has a"
        " standard deviation of about .001 with `sqm`, so differences below .002 say little. The paper's Figure 6 gives"
        " what LocMRF leaves to encoding alone, on binary columns, which need no value distributions; here encoding"
        " and value distributions share it as 4 : 2."
    )
    page.say(
        "Missing blocks: a quarter of the records lack the second party's block, completely at random (MCAR) or the"
        " more likely the higher the code of marital status, which the first party has (MAR). *Both present*: a table"
        " counts the records that all of its parties have, and is scaled up. *Absent level*: each column of the party"
        " gets a level of its own for them, and only rows without it are kept of the synthetic ones. The truth is the"
        " complete table."
    )
    first = last = 0.0
    for words, options in list(SQM_OPTIONS.items())[: 2 if quick() else None]:
        method = field_method(data, epsilon=EPSILON, view="server", **options)
        make = partial(_sqm, data, method)
        last = lines.add(f"sqm: {words}", EPSILON, make)
        first = first or last
    kept: dict[str, list[float]] = {"available": [], "level": []}
    for handling, found in kept.items():
        for mechanism in ("MCAR", "MAR"):
            make = partial(_missing, data, handling, mechanism)
            words = {"available": "both present", "level": "absent level"}[handling]
            found.append(lines.add(f"sqm, blocks missing {mechanism}: {words}", EPSILON, make, 1 if quick() else 2))
    for encoder in () if quick() else ("fm", "fo"):
        for words, options in PAPER_OPTIONS.items():
            for epsilon in (EPSILON, 3.2):
                add_printed(
                    lines, f"{encoder}, as printed: {words}".removesuffix(": nothing"), encoder, epsilon, options
                )
        for theta in THETAS:
            name = f"{encoder}, as printed: {theta:.0%} of the budget for LocMRF"
            add_printed(lines, name, encoder, EPSILON, {"split": split(theta)})
    page.table(Lines.HEAD, lines.rows)
    chosen, other = (sum(kept[handling]) / 2 for handling in ("available", "level"))
    page.say(
        f"Choice for missing blocks: tables from the records that both parties have give {chosen:.4f} on average over"
        f" the two mechanisms, a level of its own {other:.4f}. The product does the first."
    )
    good = first < 0.052 and chosen <= other
    return page.finish(good, as_it_is=f"{first:.4f}", available=f"{chosen:.4f}", level=f"{other:.4f}")


def _sqm(data: Data, method: Synthesize, seed: int) -> Codes:
    return field_rows(data, method, 2, seed=seed)


def _missing(data: Data, handling: str, mechanism: str, seed: int) -> Codes:
    return with_missing(data, handling=handling, mechanism=mechanism, seed=seed)


def add_printed(lines: Lines, name: str, encoder: str, epsilon: float, options: dict[str, object]) -> None:
    method = VertiMRF.as_printed(encoder=encoder, epsilon=epsilon, delta=1 / lines.data.n, cells=CELLS, **options)
    lines.add(name, epsilon, partial(_federated, lines.data, method), RUNS)


def _federated(data: Data, method: VertiMRF, seed: int) -> Codes:
    return federated_rows(data, method, 2, seed=seed)


if __name__ == "__main__":
    raise SystemExit(main())
