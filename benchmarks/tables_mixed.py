"""Mixed tables: is the default of `Synthesize` as good as the better of its two models?

Criterion, written on 2026-11-18 before the run. Five tables: Adult (20,000 records), Bank (20,000 and 5,000), the
first year of rand_hie, and 18 columns of five simulated institutions (20,000); nothing missing, blocks missing
completely at random (MCAR), or depending on a number of the first party (MAR); epsilon 1 and 3, delta 1e-6. In every
cell, and in each of three figures, the default must be within 2 % of the better of the copula and the field:
  - association error: root mean square difference over all pairs of columns from the complete records, of Spearman's
    rank correlation, and of Cramer's V where a column is nominal; at most 1.02 times the smaller one;
  - marginal error: mean over columns of the distance from the complete records (total variation of categories,
    Kolmogorov and Smirnov's of numbers); at most 1.02 times the smaller one;
  - AUC of gradient-boosted trees trained on synthetic rows and tested on a fifth of the records, which no synthesizer
    saw; at least 0.98 times the larger one.
At least 5 draws a cell. A draw has its own test records, presence, noise and rows, the same for all methods, so that
differences are paired; beside each is its standard error. A cell that misses the limit by less than two of these is
counted apart, and is not good either. Adult and Bank may be used to choose the default; the other tables judge.

A block is missing at every party but the first. MCAR: for 30 % of the records, independently. MAR: with a chance that
rises from 10 % to 50 % with the rank of a number of the first party.

`central` is AIM with a trusted curator who has the complete cases pooled, in the cells that our field cut in the same
draw (given to it for nothing), and numbers are drawn within cells as ours are. It is not judged, and comes after ours,
where there is time. The default's rows are those of the model that it chooses, with the same seed: it costs no run.

In rand_hie the label is whether a physical examination was taken. A first run had `inpmis` as label, which 0.5 % of the
persons have; it was stopped after the first draw, and its lines are gone.

QUICK=1: three tables with 3,000 records, nothing missing and MAR, epsilon 1, one draw. RUNS=k draws a cell; after
MINUTES=m no new draw is begun. Draws are made in turns, so that every cell has its first before any has its second.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from benchmarks.common import Page, load, quick
from benchmarks.copula_common import Records, pooled_copula, pooled_independent
from benchmarks.draws_common import Estimate, Values
from benchmarks.mrf_common import Pooled, count, released_cuts
from benchmarks.rivals.central_aim import Curator, aim_field
from benchmarks.rivals.central_mrf import rho_of
from colonnade.data.column import Column, Columns
from colonnade.data.simulated.five_institutions import five_institutions
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.synthesis.choice import choose
from colonnade.synthesis.copula.procedure import CopulaSynthesis
from colonnade.synthesis.field.procedure import FieldSynthesis, cell_limit
from colonnade.synthesis.field.sample import FieldSampler
from colonnade.synthesis.figures import associations
from colonnade.synthesis.method import Synthesize
from colonnade.synthesis.table import Sampler, frame_of

DELTA = 1e-6
EPSILONS = (1.0,) if quick() else (1.0, 3.0)
MISSING = ("nothing", "MAR") if quick() else ("nothing", "MCAR", "MAR")
WITHIN = 0.02
ENOUGH = 5
RUNS = 1 if quick() else int(os.environ.get("RUNS", str(ENOUGH)))
SECONDS = 60 * float(os.environ.get("MINUTES", "inf"))
OURS = ("copula", "field")
FIGURES = {"associations": -1, "marginals": -1, "AUC": 1}
"""What is measured; 1 where more is better."""
TUNED = ("Adult", "Bank", "Bank, 5,000")


@dataclass(frozen=True, eq=False)
class Mixed:
    """A table at parties of which the first has every record; `label` is predicted, `driver` moves presence."""

    name: str
    frame: pd.DataFrame
    columns: Columns
    parties: Mapping[str, tuple[str, ...]]
    label: str
    driver: str
    n: int


def made(
    name: str, frame: pd.DataFrame, listed: Mapping[str, Sequence[Column]], label: str, driver: str, n: int
) -> Mixed:
    columns = Columns(column for own in listed.values() for column in own)
    parties = {party: tuple(column.name for column in own) for party, own in listed.items()}
    return Mixed(name, frame[list(columns)].reset_index(drop=True), columns, parties, label, driver, n)


def number(name: str, lower: float, upper: float) -> Column:
    return Column(name=name, kind="continuous", lower=lower, upper=upper)


class Listed:
    """Columns of a frame with categories, which are turned into texts."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame.copy()

    def nominal(self, name: str) -> Column:
        return self._column(name, "categorical")

    def binary(self, name: str) -> Column:
        return self._column(name, "binary")

    def _column(self, name: str, kind: Any) -> Column:
        self.frame[name] = self.frame[name].astype(str)
        return Column(name=name, kind=kind, categories=tuple(sorted(self.frame[name].unique())))


def adult() -> Mixed:
    own = Listed(load("adult"))
    listed = {
        "registry": [
            count("age", 17, 90),
            own.binary("sex"),
            *(own.nominal(name) for name in ("race", "native_country", "marital_status", "relationship")),
        ],
        "employer": [
            count("education_num", 1, 16),
            own.nominal("workclass"),
            own.nominal("occupation"),
            count("hours_per_week", 1, 99),
        ],
        "tax": [count("capital_gain", 0, 99_999), count("capital_loss", 0, 4_400), own.binary("income")],
    }
    return made("Adult", own.frame, listed, "income", "age", 20_000)


def bank(name: str = "Bank", n: int = 20_000) -> Mixed:
    own = Listed(load("bank_marketing"))
    listed = {
        "registry": [count("age", 18, 95), *(own.nominal(each) for each in ("job", "marital", "education"))],
        "accounts": [
            own.binary("credit_default"),
            number("balance", -10_000, 110_000),
            own.binary("housing_loan"),
            own.binary("personal_loan"),
        ],
        "calls": [
            own.nominal("contact"),
            count("day", 1, 31),
            own.nominal("month"),
            count("duration", 0, 5_000),
            count("campaign", 1, 64),
            number("pdays", -1, 900),
            count("previous", 0, 300),
            own.nominal("poutcome"),
            own.binary("y"),
        ],
    }
    return made(name, own.frame, listed, "y", "age", n)


def rand() -> Mixed:
    """The first year: a row a person. What is a function of other columns is left out."""
    table = load("rand_hie")
    table = table[table.year == 1].dropna(subset=["fmde", "educdec"])
    own = Listed(table)
    listed = {
        "household": [
            number("xage", 0, 65),
            number("income", 0, 30_000),
            number("educdec", 0, 25),
            own.binary("female"),
            own.nominal("site"),
            count("num", 1, 14),
        ],
        "insurer": [own.nominal("plan"), count("coins", 0, 100), number("fmde", 0, 9), own.binary("idp")],
        "questionnaire": [
            number("mhi", 0, 100),
            number("disea", 0, 60),
            number("physlm", 0, 1),
            own.binary("tookphys"),
            own.binary("hlthg"),
            own.binary("hlthf"),
        ],
        "claims": [
            number("outpdol", 0, 3_000),
            number("drugdol", 0, 1_000),
            count("mdvis", 0, 100),
            count("mentvis", 0, 100),
        ],
    }
    return made("rand_hie", own.frame, listed, "tookphys", "xage", 4 * len(table) // 5)


FIRMS: Mapping[str, tuple[str, ...]] = {
    "commerce": ("capital", "changes", "region", "scope", "term", "legal_person_changed", "profit_growth", "failed"),
    "credit": ("roa", "liability_ratio", "employees", "sales_growth"),
    "market": ("inspections", "findings_open"),
    "court": ("reports_missed", "unreachable"),
    "enforcement": ("penalties", "penalty_2"),
}


def firms() -> Mixed:
    """18 of the 37 columns, all records drawn; blocks go missing as in the other tables."""
    example = five_institutions(25_000, seed=18, missing=None)
    listed = {party: [example.columns[name] for name in names] for party, names in FIRMS.items()}
    return made("five institutions", example.truth.complete, listed, "failed", "capital", 20_000)


@cache
def tables() -> tuple[Mixed, ...]:
    if quick():
        small = adult(), bank(), rand()
        return tuple(Mixed(**{**vars(one), "n": 3_000}) for one in small)
    return bank("Bank, 5,000", 5_000), rand(), bank(), adult(), firms()


# --- one draw of a table ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Drawn:
    """Records for the synthesizers, which of them each party has, and records for the test."""

    table: Mixed
    train: pd.DataFrame
    test: pd.DataFrame
    present: NDArray[np.bool_]
    seed: int

    @property
    def facts(self) -> PublicFacts:
        columns = {party: self.table.columns.select(own) for party, own in self.table.parties.items()}
        return PublicFacts(n=len(self.train), columns=columns)

    @property
    def roster(self) -> Roster:
        names = tuple(self.table.parties)
        members = tuple(
            Member(name=name, organisation=name, public_key=bytes([at + 1]) * 32, owns_data=True)
            for at, name in enumerate(names)
        )
        return Roster(members=members, committee=names[:3], threshold=1, colluders=1)

    @property
    def records(self) -> Records:
        values = {name: column.encode(self.train[name]) for name, column in self.table.columns.items()}
        return Records(facts=self.facts, roster=self.roster, values=values, present=self.present)


@lru_cache(maxsize=1)
def drawn(place: int, missing: str, seed: int) -> Drawn:
    table, rng = tables()[place], np.random.default_rng([seed, place, MISSING.index(missing)])
    order = rng.permutation(len(table.frame))
    test, train = np.split(order, [len(order) // 5])
    frame = table.frame.iloc[train[: table.n]].reset_index(drop=True)
    chance = np.zeros(len(frame))
    if missing != "nothing":
        rank = frame[table.driver].rank(pct=True).to_numpy()
        chance = np.full(len(frame), 0.3) if missing == "MCAR" else 0.1 + 0.4 * rank
    present = rng.random((len(frame), len(table.parties))) >= chance[:, None]
    present[:, 0] = True
    return Drawn(table, frame, table.frame.iloc[test].reset_index(drop=True), present, seed)


def method_of(model: Any, epsilon: float) -> Synthesize:
    return Synthesize(model=model, epsilon=epsilon, delta=DELTA, verify=False)


def measured_field(data: Drawn, epsilon: float) -> tuple[FieldSampler, dict[str, NDArray[np.int64]]]:
    """The field of the product, from what its rounds would open; and all records in its cells."""
    procedure = FieldSynthesis(method_of("field", epsilon), data.facts, data.roster)
    records, values = data.records, dict[str, NDArray[Any]]()
    for party, own in data.table.parties.items():
        values |= {name: records.values[name][records.at(party)] for name in own}
    schema, marginals = released_cuts(procedure, values, seed=data.seed)
    codes = {name: schema.cells[name].codes(records.values[name]).astype(np.int64) for name in schema.names}
    held = {
        name: np.where(records.at(party), codes[name], -1) for party, own in data.table.parties.items() for name in own
    }
    pooled = Pooled(held, schema, procedure.rounds.mus, SimulatedRandomness(data.seed, "tables"))
    field = procedure.fitted(procedure.measure(schema, pooled.tables))
    shapes = {name: each.marginal for name, each in marginals.items()}
    return FieldSampler(schema.columns, schema.cells, field, shapes), codes


def sampler(data: Drawn, model: str, epsilon: float) -> Sampler:
    if model == "copula":
        return pooled_copula(method_of("copula", epsilon), data.records, seed=data.seed)[0]
    if model == "independent":
        return pooled_independent(method_of("independent", epsilon), data.records, seed=data.seed)
    ours, codes = measured_field(data, epsilon)
    if model == "field":
        return ours
    complete = data.present.all(axis=1)
    cases = {name: own[complete] for name, own in codes.items()}
    curator = Curator(cases, ours.field.graph.sizes, data.seed)
    field = aim_field(curator, rho=rho_of(epsilon, DELTA), limit=cell_limit(curator.n))
    return FieldSampler(ours.columns, ours.cells, field, ours.shapes)


def chosen(data: Drawn, epsilon: float) -> str:
    """The model that the default takes, which is decided before any data is touched."""
    procedure = choose(method_of("auto", epsilon), data.facts, data.roster).procedure
    assert isinstance(procedure, FieldSynthesis | CopulaSynthesis)
    return procedure.options.model


# --- figures ----------------------------------------------------------------------------------------------------------


def distance(column: Column, rows: pd.Series, records: pd.Series) -> float:
    """Of two distributions of a column."""
    first, second = (np.asarray(column.encode(each), dtype=np.float64) for each in (rows, records))
    values = np.unique(np.concatenate([first, second]))
    if column.kind in ("categorical", "binary", "ordinal"):
        shares = [
            np.bincount(each.astype(np.int64), minlength=len(column.categories or ())) for each in (first, second)
        ]
        return float(np.abs(shares[0] / first.size - shares[1] / second.size).sum() / 2)
    below = [np.searchsorted(np.sort(each), values, side="right") / each.size for each in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def auc(table: Mixed, rows: pd.DataFrame, test: pd.DataFrame) -> float:
    """Of gradient-boosted trees; a label that is always the same predicts nothing."""
    features = [name for name in table.columns if name != table.label]
    nominal = [table.columns[name].kind == "categorical" for name in features]
    x, unseen = (
        np.column_stack([np.asarray(table.columns[name].encode(each[name]), float) for name in features])
        for each in (rows, test)
    )
    y, truth = (np.asarray(table.columns[table.label].encode(each[table.label])) for each in (rows, test))
    if np.unique(y).size < 2:
        return 0.5
    model = HistGradientBoostingClassifier(max_iter=60, categorical_features=nominal, random_state=0)
    return float(roc_auc_score(truth, model.fit(x, y).predict_proba(unseen)[:, 1]))


@lru_cache(maxsize=1)
def truth_of(data: Drawn) -> NDArray[np.float64]:
    return associations(data.train, data.table.columns)


def figures(data: Drawn, rows: pd.DataFrame) -> dict[str, float]:
    columns = data.table.columns
    upper = np.triu_indices(len(columns), 1)
    apart = (associations(rows, columns) - truth_of(data))[upper]
    return {
        "associations": float(np.sqrt(np.mean(apart**2))),
        "marginals": float(np.mean([distance(columns[name], rows[name], data.train[name]) for name in columns])),
        "AUC": auc(data.table, rows, data.test),
    }


def one_draw(place: int, missing: str, model: str, epsilon: float | None, seed: int) -> Values:
    data, started = drawn(place, missing, seed), time.process_time()
    if epsilon is None:
        rows = data.train
    else:
        rows = frame_of(sampler(data, model, epsilon), len(data.train), seed)
    return {**figures(data, rows), "cpu_seconds": time.process_time() - started}


# --- the page ---------------------------------------------------------------------------------------------------------

Found = dict[tuple[int, str, float | None, str], list[Values]]
"""The draws of (table, missing, epsilon, method)."""


def wanted() -> Iterator[tuple[int, int, str, float | None, str]]:
    """Draw, place of the table, missing, epsilon, method: in turns."""
    cells = tuple(itertools.product(EPSILONS, MISSING, range(len(tables()))))
    for seed in range(RUNS):
        for epsilon, missing, place in cells:
            if epsilon == EPSILONS[0] and missing == MISSING[0]:
                yield seed, place, missing, None, "real records"
            for method in dict.fromkeys((*OURS, chosen(drawn(place, missing, seed), epsilon))):
                yield seed, place, missing, epsilon, method
    for seed in range(RUNS):
        for epsilon, missing, place in cells:
            yield seed, place, missing, epsilon, "central"


def main() -> int:
    page = Page("tables-mixed", "Mixed tables: the default beside its two models and a trusted curator's AIM")
    page.say((__doc__ or "").partition("\n\n")[2].strip())
    found: Found = {}
    started = time.monotonic()
    for seed, place, missing, epsilon, method in wanted():
        cell = (tables()[place].name, missing, epsilon, method)
        if time.monotonic() - started > SECONDS and not page.draws.known(cell, seed):
            continue
        values = page.draws.get(cell, seed, partial(one_draw, place, missing, method, epsilon, seed))
        found.setdefault((place, missing, epsilon, method), []).append(values)
    return report(page, found)


def report(page: Page, found: Found) -> int:
    worst, missed, near, absent, runs = dict.fromkeys(FIGURES, (0.0, "")), [], [], [], []
    lines: dict[str, list[list[str]]] = {figure: [] for figure in FIGURES}
    for place, missing, epsilon in itertools.product(range(len(tables())), MISSING, EPSILONS):
        table = tables()[place]
        title = f"{table.name}, {missing} missing, epsilon {epsilon:g}"
        default = chosen(drawn(place, missing, 0), epsilon)
        own = {method: found.get((place, missing, epsilon, method), []) for method in dict.fromkeys((*OURS, default))}
        draws = min(len(each) for each in own.values())
        runs.append(draws)
        if not draws:
            absent.append(title)
            continue
        real, central = (
            found.get(key, [])
            for key in ((place, "nothing", None, "real records"), (place, missing, epsilon, "central"))
        )
        for figure, sign in FIGURES.items():
            each = {method: np.array([values[figure] for values in listed[:draws]]) for method, listed in own.items()}
            better = max(OURS, key=lambda method: sign * each[method].mean())
            lacking = -sign * (each[default] / each[better].mean() - each[better] / each[better].mean())
            lack = Estimate.of(lacking)
            where = f"{title} ({default} in place of {better})"
            if lack.mean > worst[figure][0]:
                worst[figure] = (lack.mean, where)
            if lack.mean > WITHIN:
                sure = draws > 1 and lack.mean - WITHIN > 2 * lack.error
                (missed if sure else near).append(f"{figure}, {where}: {lack.mean:.1%}")
            ceiling = Estimate.of([values[figure] for values in real]).shown() if real and figure == "AUC" else ""
            lines[figure].append(
                [
                    table.name,
                    missing,
                    f"{epsilon:g}",
                    *(Estimate.of(each[method]).shown() for method in OURS),
                    default,
                    f"{100 * lack.mean:.1f} ± {100 * lack.error:.1f}" if lack.error else f"{100 * lack.mean:.1f}",
                    Estimate.of([values[figure] for values in central]).shown() if central else "",
                    *([ceiling] if figure == "AUC" else []),
                    str(draws),
                ]
            )
    words = {"associations": "Association error", "marginals": "Marginal error", "AUC": "AUC on unseen records"}
    for figure, listed in lines.items():
        more = ["trained on the records"] if figure == "AUC" else []
        page.say(f"{words[figure]}; `lacks` is what the default lacks of the better of the two, in %:")
        page.table(["table", "missing", "epsilon", *OURS, "default", "lacks", "central", *more, "draws"], listed)
    for figure, (lack_most, where) in worst.items():
        page.say(
            f"{words[figure]}: the default lacks at most {100 * lack_most:.1f} %" + (f" ({where})." if where else ".")
        )
    page.say(f"Beyond 2 % by more than two standard errors: {'; '.join(missed) or 'nowhere'}.")
    page.say(f"Beyond 2 %, by less than that or in a single draw: {'; '.join(near) or 'nowhere'}.")
    complete = not absent and min(runs) >= RUNS >= (1 if quick() else ENOUGH)
    if not complete:
        lacking_cells = f" No figures: {'; '.join(absent)}." if absent else ""
        page.say(
            f"**Not all of it has run:** {min(runs)} to {max(runs)} draws a cell, where the criterion asks for"
            f" {ENOUGH}; a single draw has no standard error.{lacking_cells}"
        )
    told = {f"worst_{figure}": f"{lack_most:.3f}" for figure, (lack_most, _) in worst.items()}
    good = complete and not missed and not near
    return page.finish(good, **told, beyond=len(missed) + len(near), draws=min(runs), cells=len(runs) - len(absent))


if __name__ == "__main__":
    raise SystemExit(main())
