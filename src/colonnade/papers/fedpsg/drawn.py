"""The columns that are drawn first: the greedy choice of the FedPSG paper, section 3.1, and a local generator.

The pairs of a party's columns are gone through from the strongest association (|Spearman|) down. If neither column of a
pair is chosen yet, the one that is more strongly associated with the others is taken; if one is, the other is added;
until `count` columns are chosen. Ties go to the earlier declared column, so that the choice can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from colonnade.completion.layout import Layout, Matrix
from colonnade.completion.quality import rmse
from colonnade.completion.split.session import column_means, features, predictions, presence_of
from colonnade.completion.split.training import Regression, drawing, row_chunks, words_of
from colonnade.completion.steps import OwnTable
from colonnade.errors import BadArguments
from colonnade.federation.party import Party
from colonnade.federation.step import Release, Size, step
from colonnade.papers.fedpsg.gan import GENERATED
from colonnade.papers.fedpsg.generators import FEWEST
from colonnade.papers.fedpsg.generators import generator as generator_of
from colonnade.privacy.cost import Unbounded

CHOSEN = "chosen"
"""Under this name a party keeps the names of the drawn columns."""

Reals = NDArray[np.float64]


# --- the choice ---------------------------------------------------------------------------------------------------


def spearman(values: Mapping[str, NDArray[Any]]) -> Reals:
    """|Spearman| of each pair of encoded columns over the records that have both; 0 where a column does not vary.

    A categorical column is taken in its declared order, as the paper's ranks of codes do.
    """
    columns = [np.asarray(codes, dtype=np.float64) for codes in values.values()]
    known = [
        column >= 0 if np.asarray(codes).dtype.kind == "i" else ~np.isnan(column)
        for column, codes in zip(columns, values.values(), strict=True)
    ]
    size = len(columns)
    strength = np.zeros((size, size))
    for i in range(size):
        for j in range(i):
            both = known[i] & known[j]
            if both.sum() < 3:
                continue
            a, b = stats.rankdata(columns[i][both]), stats.rankdata(columns[j][both])
            if a.std() > 0 and b.std() > 0:
                strength[i, j] = strength[j, i] = abs(float(np.corrcoef(a, b)[0, 1]))
    return strength


def choose_correlated(names: list[str], strength: Reals, count: int) -> list[str]:
    """`count` of the names (all, if there are fewer), in the order in which they were chosen."""
    if strength.shape != (len(names), len(names)):
        raise BadArguments("the strengths are a square matrix over the names; give one row for each name.")
    wanted = min(count, len(names))
    total = np.asarray(strength, dtype=np.float64).sum(axis=1)
    pairs = sorted(
        ((i, j) for i in range(len(names)) for j in range(i + 1, len(names))),
        key=lambda pair: (-float(strength[pair]), pair),
    )
    chosen: list[int] = []
    while len(chosen) < wanted:
        # The strongest pair that still adds a column: the paper resets a pair to 0 once it has served.
        pair = next(((i, j) for i, j in pairs if i not in chosen or j not in chosen), None)
        if pair is None:
            chosen.append(next(k for k in range(len(names)) if k not in chosen))
            continue
        i, j = pair
        if i in chosen or j in chosen:
            chosen.append(j if i in chosen else i)
        else:
            chosen.append(j if total[j] > total[i] else i)
    return [names[k] for k in chosen]


# --- the parties' step --------------------------------------------------------------------------------------------


@step(cost=Unbounded("correlated-columns", "which of its columns are most strongly associated"))
def draw_correlated(
    me: Party,
    *,
    count: Annotated[int, Size(10_000)],
    generator: Literal["tabddpm", "tvae", "copula"],
    steps: Annotated[int, Size(1_000_000)],
    training: dict[str, Any] | None,
    validation: float,
    seed: int,
) -> Release:
    """Choose the columns, fit a local generator on them, and draw them for the records that are to be completed.

    With `training` (a regression that was made across the parties) the generator is conditioned on its predictions, and
    learns from records that another party has: about the others there is no prediction.
    """
    table = OwnTable.of(me, validation=validation, seed=seed)
    rows = np.flatnonzero(presence_of(me)[me.name])
    rows = rows[~np.isin(rows, table.watched)]
    codes = {column: me.column(column)[rows] for column in table.layout.columns}
    chosen = choose_correlated(list(table.layout.columns), spearman(codes), count)
    layout = Layout(me.facts.columns[me.name].select(chosen))
    known = layout.encode({column: codes[column] for column in chosen})
    condition = given = None
    if training is not None:
        predicted = predictions(me, Regression.from_dict(training))
        reached = ~np.isnan(predicted[rows]).any(axis=1)
        known, condition = known[reached], predicted[rows[reached]]
        given = np.nan_to_num(predicted[table.wanted], nan=0.5)
    options = {} if generator == "copula" else {"steps": steps}
    fitted = generator_of(generator, **options).fit(known, layout, condition=condition, seed=seed)
    drawn = np.full((me.facts.n, table.layout.width), np.nan, dtype=np.float32)
    places = np.ix_(table.wanted, table.layout.places(chosen))
    drawn[places] = fitted.sample(table.wanted.size, condition=given, seed=seed + 1)
    me.keep(GENERATED, drawn)
    me.keep(CHOSEN, chosen)
    return Release(chosen, "the names of the chosen columns")


# --- what the drawn columns say about the others --------------------------------------------------------------------


def with_drawn(me: Party, table: OwnTable, values: Matrix) -> Matrix:
    """The wanted rows with the columns that were drawn for them."""
    places = table.layout.places(me.recall(CHOSEN))
    values[:, places] = np.asarray(me.recall(GENERATED))[np.ix_(table.wanted, places)]
    return values


def given_drawn(me: Party, table: OwnTable, predicted: Matrix, seed: int) -> Matrix:
    """The other columns given the predictions across parties and the drawn columns, by a network of this party alone: a
    drawn column and the rest of its record belong together. From few records it learns nothing: then the predictions
    stay."""
    from colonnade.completion.split.regressor import Data, Regressor  # jax is an extra

    layout, chosen = table.layout, list(me.recall(CHOSEN))
    rest = [name for name in layout.columns if name not in chosen]
    if not rest:
        return predicted
    filled, places = table.seen.copy(), layout.places(chosen)
    filled[np.ix_(table.wanted, places)] = np.asarray(me.recall(GENERATED))[np.ix_(table.wanted, places)]
    reached = ~np.isnan(predicted).any(axis=1)
    predicted = np.nan_to_num(predicted, nan=0.5)
    drawn = features(filled[:, places], Layout(layout.columns.select(chosen)), private=False)
    x, y = np.concatenate([drawn, 4 * predicted - 2], axis=1), table.seen[:, layout.places(rest)]
    rows = np.flatnonzero(reached & ~np.isnan(y).all(axis=1) & ~np.isnan(table.seen[:, places]).any(axis=1))
    if len(rows) < FEWEST:
        return predicted
    held = rows[:: max(len(rows) // 500, 10)]
    trained = rows[~np.isin(rows, held)]
    local, batch, iterations, cut = 50, 128, 2000, 32
    model = Regressor(x.shape[1], y.shape[1], 64, cut, dropout=0.1)
    data = Data.of(x, np.ones(len(x), bool), np.nan_to_num(y), ~np.isnan(y))
    means = column_means(y[trained]).astype(np.float32)
    state = best = model.init(words_of(seed), 1e-3, iterations, means)
    draw = drawing(words_of(seed), 5)
    nothing, least = np.zeros((local, batch, cut), dtype=np.float32), float("inf")
    for _ in range(iterations // local):
        picked = draw.choice(trained, (local, batch))
        state, _, _ = model.lead(state, data, picked, nothing, model.draws(draw, local, batch))
        error = rmse(np.asarray(model.predict(state, data, held, nothing[0, :1])), y[held])
        if error < least:
            best, least = state, error
    targets = layout.places(rest)
    for begin, end in row_chunks(len(x)):
        part = np.arange(begin, end, dtype=np.int32)
        predicted[begin:end, targets] = np.asarray(model.predict(best, data, part, nothing[0, :1]))
    return predicted
