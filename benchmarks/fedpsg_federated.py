"""Is imputation across parties better than each on its own (the paper's Table 2), and is our GAIN a GAIN?

Limits: federated below local for each GAN; plain GAIN on the whole of Letter at 20 % of the cells missing at random has
the published order of error (RMSE 0.12 to 0.13; up to 0.135 is accepted, since the published figure is a mean of runs).
"""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Page, load, quick
from benchmarks.fedpsg_common import HEAD, MEAN, Case, Score, completed, floors, score
from colonnade.completion.correlated import choose_correlated, spearman
from colonnade.completion.fedpsg import FedPSG
from colonnade.completion.generators import generator
from colonnade.completion.layout import Layout
from colonnade.completion.networks import drawing, words_of
from colonnade.completion.quality import rmse
from colonnade.completion.split import gain


def alone(
    values: NDArray[Any],
    mask: NDArray[np.bool_],
    watched: NDArray[np.bool_],
    *,
    iterations: int,
    seed: int = 0,
    **shape: Any,
) -> NDArray[Any]:
    """A GAN of one table. `watched` entries are hidden, and choose the best of the states seen every 250 iterations."""
    shown = mask & ~watched
    width = values.shape[1]
    model = gain.Gain(widths=(width,), place=0, active=True, context=0, rate=1e-3, **shape)
    clean = np.where(shown, values, 0.0).astype(np.float32)
    data = gain.Data(jnp.asarray(clean), jnp.asarray(shown), jnp.zeros((len(values), 0)), jnp.asarray(shown))
    state = best = model.init(words_of(seed))
    draw, least = drawing(words_of(seed), 1), np.inf
    local, batch, everything = 50, 128, np.arange(len(values))
    for number in range(iterations // local):
        rows = jnp.asarray(draw.integers(len(values), size=(local, batch)))
        common, own = (each(draw, local, batch) for each in (model.common, model.draws))
        state, _, _ = model.lead(state, data, rows, jnp.zeros((local, batch, shape["cut"])), common, own)
        if number % 5 == 4:
            found = model.impute(state, data, everything, drawing(words_of(seed), 2))
            error = rmse(found, np.where(watched, values, np.nan))
            if error < least:
                best, least = state, error
    return model.impute(best, data, everything, drawing(words_of(seed), 2))


def plain_gain_on_letter() -> tuple[float, float]:
    """(RMSE of GAIN, of means) on cells missing completely at random."""
    values = load("letter").drop(columns="letter").to_numpy(dtype=np.float64) / 15.0
    rng = np.random.default_rng(3)
    mask = rng.random(values.shape) > 0.2
    watched = mask & (rng.random(values.shape) < 0.05)
    found = alone(values, mask, watched, iterations=5000, kind="gain", groups=(), hidden=16, cut=16, dropout=0.0)
    truth = np.where(mask, np.nan, values)
    means = np.array([values[mask[:, j], j].mean() for j in range(values.shape[1])])
    return rmse(found, truth), rmse(np.broadcast_to(means, values.shape), truth)


def local_gan(case: Case, kind: str, columns: int, iterations: int) -> Score:
    """B alone: its correlated columns drawn by TabDDPM, the rest by a GAN of its own table."""
    layout, whole = case.layout, case.matrix(1).astype(np.float64)
    known = case.frame.loc[~case.lacking]
    codes = {name: case.columns[name].encode(known[name]) for name in layout.columns}
    chosen = choose_correlated(list(layout.columns), spearman(codes), columns)
    small = Layout(layout.columns.select(chosen))
    fitted = generator("tabddpm", steps=1000).fit(small.encode({name: codes[name] for name in chosen}), small, seed=1)
    values = whole.copy()
    mask = np.ones(whole.shape, dtype=bool)
    mask[case.lacking] = False
    values[case.lacking] = 0.0
    places = layout.places(chosen)
    values[np.ix_(case.lacking, places)] = fitted.sample(int(case.lacking.sum()), seed=2)
    mask[:, places] = True
    rng = np.random.default_rng(4)
    watched = np.zeros_like(mask)
    rows = rng.random(len(mask)) < 0.1
    watched[rows & ~case.lacking] = True
    watched[:, places] = False
    groups = tuple((at.start, at.stop) for name, at in layout.slices.items() if name in layout.one_hot)
    found = alone(
        values, mask, watched, iterations=iterations, kind=kind, groups=groups, hidden=64, cut=32, hide=(0.5,)
    )
    found = np.array(found)
    found[:, places] = values[:, places]
    return score(case, found[case.lacking], 0.0)


def main() -> int:
    page = Page("fedpsg-federated", "Completion: across parties against alone")
    error, mean = plain_gain_on_letter()
    page.say(
        f"Plain GAIN on the whole of Letter, 20 % of the cells missing at random, 5,000 iterations with early stopping"
        f" on hidden cells: RMSE {error:.4f} (means: {mean:.4f}; published: 0.12 to 0.13)."
    )
    good = error <= 0.135
    figures: dict[str, str] = {"gain_letter": f"{error:.4f}"}
    page.say(
        "Below, 50 % of B's records missing, five correlated columns by TabDDPM (1,000 steps). Local: B's table alone."
        " Federated: the same across A and B, conditioned (`aligned`) or as in the paper (`none`). 1,000 iterations on"
        " Credit, 1,500 on Bank (the paper: 10,000). The local CGAIN has no label, so it is left out."
    )
    for name in ("credit",) if quick() else ("credit", "bank"):
        case = Case(name, 0.5, seed=1)
        below = floors(case)
        rows = [[method, *one.cells()] for method, one in below.items()]
        iterations, local = (1500, 25) if name == "bank" else (1000, 5)
        for kind in ("gain", "vgain") if name == "credit" else ("gain",):
            apart = local_gan(case, kind, 5, iterations)
            rows.append([f"{kind.upper()}, local", *apart.against(below[MEAN]).cells()])
            told: dict[str, float] = {}
            for condition in ("aligned", "none"):
                method = FedPSG(
                    imputer=kind,  # type: ignore[arg-type]
                    condition=condition,  # type: ignore[arg-type]
                    n_correlated=5,
                    iterations=iterations,
                    local=local,
                    generator_steps=1000,
                    complete=("B",),
                )
                scored, _ = completed(case, method)
                rows.append([f"VF-{kind.upper()}, {condition}", *scored.against(below[MEAN]).cells()])
                print(rows[-1], flush=True)
                told[condition] = scored.rmse
            good = good and told["aligned"] < min(told["none"], apart.rmse)
            figures[f"{name}_{kind}"] = f"{told['aligned']:.3f}<{told['none']:.3f},local:{apart.rmse:.3f}"
        page.say(f"## {name.capitalize()}")
        page.table(["method", *HEAD], rows)
    return page.finish(good, **figures)


if __name__ == "__main__":
    sys.exit(main())
