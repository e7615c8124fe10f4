"""What a party does for a completion, besides training: linear parts, local generation, and the completed table.

The completed table never leaves its party. It is written to `completed/JOB.parquet` in the party's folder, with a
column of truth values beside each column that says which entries were generated.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.completion import quality
from colonnade.completion.correlated import choose_correlated, spearman
from colonnade.completion.generators import generator
from colonnade.completion.imputation.conditional import conditional_draw, conditional_mean, latent_scores
from colonnade.completion.imputation.linear import chained, feature_rows, read_marginals
from colonnade.completion.layout import Layout, Matrix
from colonnade.completion.networks import drawing, words_of
from colonnade.completion.split import exchange
from colonnade.completion.split.exchange import Protect
from colonnade.completion.split.live import COMPLETED, features, live, own_matrix, presence_of
from colonnade.completion.split.regressor import Data, Regressor
from colonnade.completion.split.steps import best_state, gan_values, look, predictions
from colonnade.completion.split.training import Training, row_chunks, validation_rows
from colonnade.errors import BadArguments, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Free, Unbounded
from colonnade.statistics.features import column_features, design
from colonnade.statistics.joint import binding, once

GENERATED = " (generated)"
"""Ends the name of the column that flags the generated entries of another."""
QUALITY = "completion-quality"


def missing_rows(me: Party) -> NDArray[np.int64]:
    """Records of the cohort that this party lacks and another has."""
    presence = presence_of(me)
    anybody = np.logical_or.reduce([one for party, one in presence.items() if party != me.name])
    return np.flatnonzero(~presence[me.name] & anybody)


def watched_rows(me: Party, share: float, seed: int) -> NDArray[np.int64]:
    """Records that are hidden everywhere, so that completed entries can be compared with the truth."""
    return validation_rows(presence_of(me)[me.name], party=me.name, share=share, seed=seed)


def _count_cost(public: Public) -> Cost:
    return Unbounded("presence", "how many records this party lacks")


@step(cost=_count_cost)
def count_missing(me: Party) -> Release:
    """How many records of others this party lacks."""
    return Release(int(missing_rows(me).size), "the number of records that this party lacks")


# --- linear parts -------------------------------------------------------------------------------------------------


def _linear_cost(
    public: Public,
    *,
    label: str,
    target: str,
    kind: str,
    maps: dict[str, Any],
    marginals: dict[str, Any],
    members: list[str],
    protect: Protect,
    part: int,
) -> Cost:
    return Unbounded(
        "linear-predictors", f"sums of linear predictors of its columns by record, to {target!r}", audience=target
    )


@step(cost=_linear_cost)
def linear_part(
    me: Party,
    *,
    label: str,
    target: str,
    kind: Literal["latent", "features"],
    maps: dict[str, Any],
    marginals: dict[str, Any],
    members: list[str],
    protect: Protect,
    part: int,
) -> Release:
    """This party's scores or features of one chunk of records times the matrix of each record's pattern."""
    presence = presence_of(me)
    others = [member for member in members if member != target]
    begin, end = row_chunks(me.facts.n)[part]
    here = presence[me.name][begin:end]
    wide = next(iter(maps.values())).shape[0]
    found = np.zeros((end - begin, wide), dtype=np.float32)
    own = _own_scores(me, kind, marginals)[begin:end]
    for name, matrix in maps.items():
        present = name.split("|")
        rows = here.copy()
        for other in others:
            rows &= presence[other][begin:end] == (other in present)
        found[rows] = own[rows] @ np.asarray(matrix, dtype=np.float64).T
    tag = binding(label, {"target": target, "kind": kind, "members": members})
    once(me, f"{tag}: chunk {part}")
    value = exchange.hide(me, found, protect=protect, opener=target, senders=others, label=tag, number=part)
    return Release({"parts": value}, f"linear predictors that only {target!r} can open, summed over the senders")


def _own_scores(me: Party, kind: str, marginals: dict[str, Any]) -> NDArray[np.float64]:
    columns = me.facts.columns[me.name]
    if kind == "features":
        return design(me, [one for column in columns.values() for one in column_features(me.name, column)])
    known = read_marginals(marginals)
    each = [latent_scores(column, known[name], me.column(name)) for name, column in columns.items()]
    return np.nan_to_num(np.column_stack(each))


def _collect_cost(
    public: Public, *, label: str, members: list[str], kind: str, protect: Protect, part: int, wide: int, total: Any
) -> Cost:
    return Free("nothing leaves: the sum stays here")


@step(cost=_collect_cost)
def collect_linear(
    me: Party,
    *,
    label: str,
    members: list[str],
    kind: Literal["latent", "features"],
    protect: Protect,
    part: int,
    wide: int,
    total: Any,
) -> Release:
    """Open the sum of one chunk and keep it."""
    begin, end = row_chunks(me.facts.n)[part]
    tag = binding(label, {"target": me.name, "kind": kind, "members": members})
    senders = [member for member in members if member != me.name]
    opened = exchange.reveal(
        me, total, size=(end - begin) * wide, protect=protect, senders=senders, label=tag, number=part
    )
    me.keep(f"linear {part}", opened.reshape(-1, wide))
    return Release(None, "nothing")


# --- the correlated columns ---------------------------------------------------------------------------------------


def _generate_cost(
    public: Public,
    *,
    count: int,
    name: str,
    steps: int,
    training: dict[str, Any] | None,
    keep_for: list[str],
    share: float,
    seed: int,
) -> Cost:
    return Unbounded("correlated-columns", "which of its columns are most strongly associated")


@step(cost=_generate_cost)
def generate_correlated(
    me: Party,
    *,
    count: int,
    name: Literal["tabddpm", "tvae", "copula"],
    steps: int,
    training: dict[str, Any] | None,
    keep_for: list[str],
    share: float,
    seed: int,
) -> Release:
    """Choose the columns, fit a local generator on them, and draw them for the records that are to be completed.

    With `training` (a regression that was made across the parties) the generator is conditioned on its predictions.
    """
    whole = Layout(me.facts.columns[me.name])
    rows = np.flatnonzero(presence_of(me)[me.name])
    watched = watched_rows(me, share, seed)
    rows = rows[~np.isin(rows, watched)]
    codes = {column: me.column(column)[rows] for column in whole.columns}
    chosen = choose_correlated(list(whole.columns), spearman(codes), count)
    layout = Layout(me.facts.columns[me.name].select(chosen))
    known = layout.encode({column: codes[column] for column in chosen})
    wanted = np.concatenate([missing_rows(me), watched])
    condition = given = None
    if training is not None:
        told = np.nan_to_num(predictions(me, Training.from_dict(training)), nan=0.5)
        condition, given = told[rows], told[wanted]
    options = {} if name == "copula" else {"steps": steps}
    fitted = generator(name, **options).fit(known, layout, condition=condition, seed=seed)
    made = fitted.sample(wanted.size, condition=given, seed=seed + 1)
    filled = np.full((me.facts.n, whole.width), np.nan, dtype=np.float32)
    filled[np.ix_(wanted, whole.places(chosen))] = made
    for label in keep_for:
        me.keep(f"generated by {label}", filled)
    me.keep("generated", filled)
    me.keep("chosen", chosen)
    return Release(chosen, "the names of the chosen columns")


def _context_cost(public: Public, *, label: str, training: dict[str, Any] | None, tag: str | None) -> Cost:
    return Free("nothing leaves")


@step(cost=_context_cost)
def keep_context(me: Party, *, label: str, training: dict[str, Any] | None, tag: str | None) -> Release:
    """What conditions this party's generator of the GAN `label`: predictions across the parties, and labels."""
    parts = []
    if training is not None:
        parts.append(np.nan_to_num(predictions(me, Training.from_dict(training)), nan=0.5))
    if tag is not None:
        parts.append(labels_of(me, tag))
    me.keep(f"context of {label}", np.concatenate(parts, axis=1).astype(np.float32))
    return Release(None, "nothing")


def _label_cost(public: Public, *, label: str, members: list[str]) -> Cost:
    return Unbounded("labels", "the label of every record, to the other parties", audience="the data parties")


@step(cost=_label_cost)
def share_labels(me: Party, *, label: str, members: list[str]) -> Release:
    """Send the label as indicators to the other parties, sealed."""
    column = me.facts.columns[me.name].select([label])
    for member in members:
        me.send(member, "labels", np.nan_to_num(own_matrix(me, Layout(column))))
    return Release(None, "nothing: labels travel sealed to the other parties")


def _labels_cost(public: Public, *, label: str) -> Cost:
    return Free("nothing leaves")


@step(cost=_labels_cost)
def keep_labels(me: Party, *, label: str) -> Release:
    """Keep the labels that were sent."""
    me.keep("labels", me.received("labels")[me.facts.owner(label)])
    return Release(None, "nothing")


def labels_of(me: Party, label: str) -> Matrix:
    found: Matrix = me.recall("labels")
    return found


# --- the completed table ------------------------------------------------------------------------------------------


def _complete_cost(
    public: Public,
    *,
    imputer: str,
    training: dict[str, Any] | None,
    linear: dict[str, Any],
    share: float,
    seed: int,
    format: str,
) -> Cost:
    return Unbounded(QUALITY, "how near completed entries are to the truth, on records that were hidden to find out")


@step(cost=_complete_cost)
def complete(
    me: Party,
    *,
    imputer: str,
    training: dict[str, Any] | None,
    linear: dict[str, Any],
    share: float,
    seed: int,
    format: Literal["parquet", "csv"],
) -> Release:
    """Fill in what this party lacks, write the table here, and tell how good it is on the hidden records."""
    layout = Layout(me.facts.columns[me.name])
    truth = own_matrix(me, layout)
    watched, lacking = watched_rows(me, share, seed), missing_rows(me)
    wanted = np.concatenate([lacking, watched])
    seen = truth.copy()
    seen[watched] = np.nan
    means = _means(seen)
    values = _filled(me, layout, seen, wanted, means, imputer=imputer, training=training, linear=linear, seed=seed)
    if me.kept("generated"):
        places = layout.places(me.recall("chosen"))
        values[:, places] = np.asarray(me.recall("generated"))[np.ix_(wanted, places)]
    told = quality.summary(layout, values[lacking.size :], truth[watched], means)
    completed = truth.copy()
    completed[lacking] = values[: lacking.size]
    me.keep(COMPLETED, completed)
    path = write_completed(me, layout, completed, lacking, format)
    expected = write_expected(me, layout, completed, lacking)
    return Release(
        {"file": path, "expected": expected, "completed": int(lacking.size), "quality": told},
        "how many records were completed, and how near to the truth on hidden ones",
    )


def _means(seen: Matrix) -> NDArray[np.float64]:
    known = ~np.isnan(seen)
    return np.asarray(np.nan_to_num(seen).sum(axis=0) / np.maximum(known.sum(axis=0), 1), dtype=np.float64)


def _filled(
    me: Party,
    layout: Layout,
    seen: Matrix,
    wanted: NDArray[np.int64],
    means: NDArray[np.float64],
    *,
    imputer: str,
    training: dict[str, Any] | None,
    linear: dict[str, Any],
    seed: int,
) -> Matrix:
    """The wanted rows, whole; a record about which no other party knows anything gets the means."""
    if imputer == "mean":
        return np.broadcast_to(means, (wanted.size, layout.width)).astype(np.float32).copy()
    if imputer in ("copula-mean", "copula-draw", "mice"):
        return _linear_values(me, layout, wanted, means, imputer, linear, seed)
    if training is None:
        raise BadArguments(f"imputer {imputer!r} needs a training; install the same version at every party.")
    known = Training.from_dict(training)
    if imputer == "regression":
        told = predictions(me, known)
        if me.kept("generated"):
            told = _given_correlated(me, layout, seen, np.nan_to_num(told, nan=0.5), wanted, seed)
        found = told[wanted]
    else:
        one = live(me, known)
        look(me, one)
        found = gan_values(one, wanted, best_state(me, one))
    return np.where(np.isnan(found), means, found).astype(np.float32)


def _given_correlated(
    me: Party, layout: Layout, seen: Matrix, told: Matrix, wanted: NDArray[np.int64], seed: int
) -> Matrix:
    """The other columns given the predictions across parties and the correlated columns, by a network of this party
    alone: a generated column and the rest of its record belong together."""
    chosen = list(me.recall("chosen"))
    rest = [name for name in layout.columns if name not in chosen]
    if not rest:
        return told
    filled = seen.copy()
    places = layout.places(chosen)
    filled[np.ix_(wanted, places)] = np.asarray(me.recall("generated"))[np.ix_(wanted, places)]
    given = layout.columns.select(chosen)
    x = np.concatenate([features(filled[:, places], Layout(given), private=False), 4 * told - 2], axis=1)
    targets = layout.places(rest)
    rows = np.flatnonzero(~np.isnan(seen[:, targets]).all(axis=1) & ~np.isnan(seen[:, places]).any(axis=1))
    held = rows[:: max(len(rows) // 500, 10)]
    trained = rows[~np.isin(rows, held)]
    y = seen[:, targets]
    local, batch, iterations = 50, 128, 2000
    model = Regressor(x.shape[1], targets.size, 64, 32, dropout=0.1)
    data = Data(jnp.asarray(x), jnp.ones(len(x), bool), jnp.asarray(np.nan_to_num(y)), jnp.asarray(~np.isnan(y)))
    state = best = model.init(words_of(seed), 1e-3, iterations, _means(y[trained]).astype(np.float32))
    draw = drawing(words_of(seed), 5)
    nothing, least = jnp.zeros((local, batch, 32)), float("inf")
    for _ in range(iterations // local):
        picked = jnp.asarray(draw.choice(trained, (local, batch)))
        state, _, _ = model.lead(state, data, picked, nothing, model.draws(draw, local, batch))
        error = quality.rmse(
            np.asarray(model.predict(state, data, jnp.asarray(held), jnp.zeros((held.size, 32)))), y[held]
        )
        if error < least:
            best, least = state, error
    made = told.copy()
    for begin, end in row_chunks(len(x)):
        at = jnp.arange(begin, end)
        made[begin:end, targets] = np.asarray(model.predict(best, data, at, jnp.zeros((end - begin, 32))))
    return made


def _linear_values(
    me: Party,
    layout: Layout,
    wanted: NDArray[np.int64],
    means: NDArray[np.float64],
    imputer: str,
    linear: dict[str, Any],
    seed: int,
) -> Matrix:
    presence = presence_of(me)
    others = [party for party in presence if party != me.name]
    sums = np.concatenate([me.recall(f"linear {part}") for part in range(len(row_chunks(me.facts.n)))])
    found = np.broadcast_to(means, (wanted.size, layout.width)).astype(np.float32).copy()
    marginals = read_marginals(linear["marginals"])
    draw = np.random.default_rng((seed, 6))
    for name in sorted(linear["target"]["left" if imputer != "mice" else "own"]):
        present = name.split("|")
        here = np.ones(wanted.size, dtype=bool)
        for other in others:
            here &= presence[other][wanted] == (other in present)
        centre = sums[wanted[here]].astype(np.float64)
        if imputer == "mice":
            own, intercept = (np.asarray(linear["target"][one][name]) for one in ("own", "intercept"))
            each = [one for column in layout.columns.values() for one in column_features(me.name, column)]
            start = np.asarray(linear["start"])
            found[here] = feature_rows(layout.columns, each, chained(centre, own, intercept, start))
            continue
        left = np.asarray(linear["target"]["left"][name])
        if imputer == "copula-mean":
            variance = np.broadcast_to(np.diag(left), centre.shape)
            found[here] = conditional_mean(layout, marginals, centre, variance)
        else:
            found[here] = conditional_draw(layout, marginals, centre, left, draw)
    return found


def write_completed(
    me: Party, layout: Layout, completed: Matrix, lacking: NDArray[np.int64], format: Literal["parquet", "csv"]
) -> str:
    """The whole table of this party, one row for each record of the cohort that it has or that was completed."""
    generated = np.zeros(me.facts.n, dtype=bool)
    generated[lacking] = True
    rows = np.flatnonzero(presence_of(me)[me.name] | generated)
    codes = layout.decode(completed[rows])
    real = {name: me.column(name)[rows] for name in layout.columns}
    table = pd.DataFrame({"cohort row": rows})
    for name, column in layout.columns.items():
        # Real entries as the block has them; a count or a number is not passed through the scale of a network.
        both = np.where(generated[rows], codes[name], real[name])
        table[name] = column.decode(both.astype(np.int32) if column.discrete else both).to_numpy()
        table[f"{name}{GENERATED}"] = generated[rows]
    return _written(me, table, f"{me.job}.{format}")


def write_expected(me: Party, layout: Layout, completed: Matrix, lacking: NDArray[np.int64]) -> str:
    """The completed records as they were before one value was chosen: scaled numbers, and a frequency for each
    category."""
    names: list[str] = []
    for name, column in layout.columns.items():
        at = layout.slices[name]
        names += [name] if layout.numeric_mask[at.start] else [f"{name}[{label}]" for label in column.categories or ()]
    table = pd.DataFrame(completed[lacking], columns=pd.Index(names))
    table.insert(0, "cohort row", lacking)
    return _written(me, table, f"{me.job}.expected.parquet")


def _written(me: Party, table: pd.DataFrame, name: str) -> str:
    """Whole or not at all, in the party's own folder."""
    folder = me.home / "completed"
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{name}.partial"
    if name.endswith(".csv"):
        table.to_csv(partial, index=False)
    else:
        table.to_parquet(partial, index=False)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(folder / name)
    return f"completed/{name}"


# --- downstream ---------------------------------------------------------------------------------------------------


def _score_cost(public: Public, *, training: dict[str, Any]) -> Cost:
    return Unbounded(QUALITY, "how many labels of hidden records a classifier finds")


@step(cost=_score_cost)
def score_label(me: Party, *, training: dict[str, Any]) -> Release:
    """Share of the hidden records, among those that all parties have, whose label the classifier finds."""
    known = Training.from_dict(training)
    if me.name != known.active:
        raise UnsafeRequest(f"{me.name!r} does not have the label.")
    one = live(me, known)
    found = predictions(me, known)[one.watched]
    truth = one.truth[one.watched]
    kept = ~np.isnan(truth).any(axis=1) & ~np.isnan(found).any(axis=1)
    hits = np.argmax(found[kept], axis=1) == np.argmax(truth[kept], axis=1)
    most = float(np.bincount(np.argmax(truth[kept], axis=1)).max() / max(int(kept.sum()), 1)) if kept.any() else 0.0
    value = {"records": int(kept.sum()), "accuracy": float(hits.mean()) if kept.any() else None, "largest class": most}
    return Release(value, "the classifier's accuracy on hidden records")
