"""VertiMRF against central synthesis and against no cross-party information: total variation distance of 3-, 4- and
5-way marginals on Adult (the paper's Figures 3 and 5); Bank and ACS are in the study `mrf-tvd-transfer`.

Most repetitions of `sqm` go without messages (see `mrf_common`). One federation is run with the noise off and must give
the same tables, count by count; federations of 2, 4 and 15 parties then run the whole protocol. `fm` and `fo` always
run in federations.

The whole grid has five runs a line at every epsilon of the paper, about an hour and a half of CPU. More runs and FM and
FO with 4 and 15 parties since 2026-11-17; the limits are those of before.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.common import Page, quick
from benchmarks.mrf_common import (
    CELLS,
    Codes,
    Data,
    Lines,
    Pooled,
    adult,
    cells_of,
    federated_rows,
    field_method,
    field_rows,
)
from benchmarks.rivals import vertigan
from benchmarks.rivals.central_mrf import central_field, independent_fields, rho_of
from colonnade.federation.method import Method
from colonnade.federation.options import View
from colonnade.papers import VertiMRF
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.synthesis.field.procedure import FieldSynthesis, cell_limit
from colonnade.synthesis.field.schema import TableQuery
from colonnade.synthesis.method import Synthesize
from colonnade.synthesis.table import SyntheticTable

LIMITS = {0.2: 0.085, 0.8: 0.052, 3.2: 0.042}
CENTRAL, PARTIES = 1.10, 0.05
"""`sqm` against the central reference at epsilon 0.8 and above; other numbers of parties against two."""
ONE_RUN = 0.06
"""Three standard deviations of a single run's distance, which is about 2 % of it."""
QUICK_ERROR = 1.05
"""Limits of a quick run are wider: one run instead of five, whose mean 3-way distance has a standard deviation of about
2 %."""


@dataclass(frozen=True)
class Runs:
    """How many runs each line of a data set gets at an epsilon; 0 leaves it out."""

    sqm: int = 1
    client: int = 0
    central: int = 1
    floor: int = 1
    paper: int = 0
    gan: int = 0


EPSILONS = (0.2, 0.4, 0.8, 1.6, 3.2)
FIVE = Runs(sqm=5, client=1, central=5, floor=5, paper=5, gan=5)


TUNING = (
    "What was looked at: the shares of the budget, `theta`, `theta_triples`, `tables` and `bins` were tuned on this"
    " data set in earlier trials. When the fit stops (`discrepancy` 0.7) was chosen on the 155 3-way marginals of Adult"
    " that are **not** among the 300 reported here, with other noise (epsilon 0.2, 0.8 and 3.2, one run each), and"
    " checked on Bank (epsilon 0.8). The same rule and the same fit serve the central reference, whose `theta` was"
    " chosen in the same way. `mrf-tvd-transfer` has other data."
)

# --- one run of each method, by its seed --------------------------------------------------------------------------


def _method(data: Data, epsilon: float, view: View = "server") -> Synthesize:
    return field_method(data, view=view, epsilon=epsilon)


def _pooled(data: Data, method: Synthesize, parties: int, seed: int) -> Codes:
    return field_rows(data, method, parties, seed=seed)


def _federated(data: Data, method: Method[SyntheticTable], parties: int, seed: int) -> Codes:
    return federated_rows(data, method, parties, seed=seed)


def _central(data: Data, rho: float, seed: int) -> Codes:
    return central_field(data.codes, data.schema.sizes, rho=rho, seed=seed, limit=cell_limit(data.n))


def _floor(data: Data, rho: float, seed: int) -> Codes:
    return independent_fields(data.codes, data.schema.sizes, data.parties(2), rho=rho, seed=seed)


VERTIGAN = vertigan.Options(batch=512, rounds=600, critic_steps=2)
"""More records a batch than its default, for less noise: on Adult at epsilon 0.8 the 3-way distance was 0.42 in a
trial, 0.49 with the default."""


def _vertigan(data: Data, epsilon: float, seed: int) -> Codes:
    blocks = {party: data.frame[list(names)] for party, names in data.parties(2).items()}
    made = vertigan.synthesize(
        blocks, data.columns, epsilon=epsilon, delta=1 / data.n, n=data.n, seed=seed, options=VERTIGAN
    )
    return cells_of(made, data.schema)


def _resampled(data: Data, seed: int) -> Codes:
    rows = np.random.default_rng(seed).integers(0, data.n, data.n)
    return {name: codes[rows] for name, codes in data.codes.items()}


def _separate(data: Data, seed: int) -> Codes:
    rng = np.random.default_rng(seed)
    return {name: rng.permutation(codes) for name, codes in data.codes.items()}


# --- the study ------------------------------------------------------------------------------------------------------


def check_protocol(page: Page, data: Data) -> bool:
    """A federation with the noise off against the pooled tables: one-way tables and all pairs, count by count."""
    values = page.draws.get((data.name, "federation without noise"), 0, partial(_equal_tables, data))
    equal, tables = values["equal"], values["tables"]
    page.say(f"The federation's tables with the noise off equal the pooled ones: {equal == tables} ({tables} tables).")
    return equal == tables


def _equal_tables(data: Data) -> dict[str, float]:
    small = Data(data.name, data.frame.head(3000), data.columns)
    method = field_method(small, epsilon=None, iterations=50, max_clique=20_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        small.federation(2, folder, seed=1, allow=("exact-tables",)) as federation,
        federation.open(federation.plan(method)) as job,
    ):
        procedure = FieldSynthesis(method, job.facts, job.roster)
        schema = procedure.schema
        queries = [
            [TableQuery.of((name,)) for name in schema.names],
            [TableQuery.of(pair) for pair in itertools.combinations(schema.names, 2)],
        ]
        opened = [procedure.rounds.tables(job, schema, number, each) for number, each in enumerate(queries)]
    pooled = Pooled(small.codes, schema, (0, 0), SimulatedRandomness(0))
    pairs = [pair for tables, each in zip(opened, queries, strict=True) for pair in zip(tables, each, strict=True)]
    equal = sum(np.array_equal(table.counts, pooled.exact(query)) for table, query in pairs)
    return {"equal": equal, "tables": len(pairs)}


def references(lines: Lines) -> None:
    """What no method goes below, and what one without any dependence has."""
    lines.add("rows drawn again from the records", None, partial(_resampled, lines.data))
    lines.add("every column on its own, exact", None, partial(_separate, lines.data))


def at_epsilon(page: Page, lines: Lines, epsilon: float, runs: Runs) -> tuple[float, float]:
    """Every method at one epsilon; returns the mean 3-way distances of `sqm` (server view) and central synthesis."""
    data = lines.data
    server = lines.add("sqm, server view", epsilon, partial(_pooled, data, _method(data, epsilon), 2), runs.sqm)
    if runs.client:
        client = _method(data, epsilon, "client")
        lines.add("sqm, client view, 2 parties", epsilon, partial(_pooled, data, client, 2), runs.client)
    rho = rho_of(epsilon, 1 / data.n)
    central = lines.add("central", epsilon, partial(_central, data, rho), runs.central)
    if not runs.floor:
        return server, central
    floor = lines.add("floor: 2 parties alone", epsilon, partial(_floor, data, rho), runs.floor)
    if server > floor:
        page.say(f"**At epsilon {epsilon:g} the encoder sqm is worse than the parties alone.**")
    if runs.gan:
        lines.add("VertiGAN, 2 parties", epsilon, partial(_vertigan, data, epsilon), runs.gan)
    for encoder in ("fm", "fo") if runs.paper else ():
        if as_printed(lines, encoder, epsilon, parties=2, runs=runs.paper) > floor:
            page.say(f"**At epsilon {epsilon:g} the encoder {encoder} is worse than the parties alone.**")
    return server, central


def as_printed(lines: Lines, encoder: str, epsilon: float, *, parties: int, runs: int) -> float:
    """The paper's own method and settings, in federations."""
    data = lines.data
    method = VertiMRF.as_printed(encoder=encoder, epsilon=epsilon, delta=1 / data.n, cells=CELLS)
    name = f"{encoder}, as printed, {parties} parties"
    return lines.add(name, epsilon, partial(_federated, data, method, parties), runs)


def other_parties(lines: Lines, server: float, epsilon: float, *, runs: int) -> bool:
    """4 and all-separate parties. Tables of three columns need two at one party, so more parties have fewer of them;
    they pay most at a large epsilon (`docs/synthesis-mrf.md`)."""
    data, good = lines.data, True
    for count in (4, len(data.columns)):
        make = partial(_pooled, data, _method(data, epsilon), count)
        found = lines.add(f"sqm, server view, {count} parties", epsilon, make, runs)
        good &= abs(found / server - 1) <= PARTIES
    return good


def federations(page: Page, lines: Lines, server: float, *, epsilon: float = 0.8) -> bool:
    """Federations of 2, 4 and all-separate parties, messages and all; and what the client view pays with each."""
    data = lines.data
    method, everyone = _method(data, epsilon), len(data.columns)
    noise = {
        count: FieldSynthesis(method, data.facts(count), data.roster(count)).rounds.mus for count in (2, 4, everyone)
    }
    page.say(f"The noise of the server view is the same for {', '.join(map(str, noise))} parties: {noise[2]}.")
    good = len(set(noise.values())) == 1
    for count in noise:
        found = lines.add(f"sqm, server view, federation of {count}", epsilon, partial(_federated, data, method, count))
        good &= abs(found / server - 1) <= PARTIES + ONE_RUN
        if count > 2:
            client = _method(data, epsilon, "client")
            lines.add(f"sqm, client view, {count} parties", epsilon, partial(_pooled, data, client, count))
    return good


def main() -> int:
    page = Page("mrf-tvd", "VertiMRF: total variation distance of marginals on Adult")
    good, told, wider = True, {}, QUICK_ERROR if quick() else 1.0
    data = adult()
    lines = Lines(data, page.draws)
    page.say(
        f"{data.n:,} records, {len(data.columns)} columns, delta = 1/n, as many synthetic rows as records; mean total"
        " variation distance of 300 random marginals. A line is the mean over its runs, with the standard error of the"
        " 3-way distance. `as printed` is the paper's own setting (`VertiMRF.as_printed`), the other lines are ours."
    )
    page.say(TUNING)
    good &= check_protocol(page, data)
    references(lines)
    for epsilon, runs in ({0.8: Runs(client=1)} if quick() else dict.fromkeys(EPSILONS, FIVE)).items():
        server, central = at_epsilon(page, lines, epsilon, runs)
        told[f"sqm_{epsilon:g}"] = f"{server:.4f}"
        if epsilon in LIMITS:
            told[f"central_{epsilon:g}"] = f"{central:.4f}"
            good &= server <= wider * LIMITS[epsilon]
            good &= epsilon < 0.8 or server <= wider * CENTRAL * central
        if epsilon == 0.8 and not quick():
            good &= other_parties(lines, server, epsilon, runs=5)
            good &= federations(page, lines, server)
            for encoder, parties in itertools.product(("fm", "fo"), (4, len(data.columns))):
                as_printed(lines, encoder, epsilon, parties=parties, runs=5)
        if epsilon == 3.2 and not quick():
            good &= other_parties(lines, server, epsilon, runs=3)
    page.table(Lines.HEAD, lines.rows)
    page.say(
        f"Limits on the 3-way distance of `sqm` in the server view: {LIMITS}; within {CENTRAL} times the central"
        f" reference at epsilon 0.8 and 3.2; the means of 4 and 15 parties within {PARTIES:.0%} of that of two, at 0.8"
        f" and 3.2; one federation each of 2, 4 and 15 parties within {PARTIES + ONE_RUN:.0%}, which allows for the"
        f" noise of a single run. (At first a single federation was held to {PARTIES:.0%}; that of 4 parties missed it,"
        " and the means over several runs were added to see whether that was more than chance.)"
    )
    return page.finish(good, **told)


if __name__ == "__main__":
    raise SystemExit(main())
