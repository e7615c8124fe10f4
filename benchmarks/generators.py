"""The local generators on Bank and Letter: how near are their rows to records that they have not seen?

Half of the records are learned, the other half is the judge: mean total variation distance of single columns, of pairs
and of 300 triples (20 public cells a number), and a classifier that is trained on drawn rows and tested on the judge.
Beside them: the learned half itself (nothing can be expected below it), and every column permuted on its own (no
dependence at all). `nearer` is the share of rows whose nearest record, of equally many of each half, is a learned one:
1/2 if the generator has remembered nothing, 1 for copies.

Asked, before the first run: TabDDPM's and TVAE's pairs are below the permuted columns', and TabDDPM's below the
copula's, on both tables. QUICK=1 takes Letter alone.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, load, quick
from benchmarks.mrf_common import Data, bank
from colonnade.completion.layout import Layout, Matrix
from colonnade.data.column import Column, Columns
from colonnade.evaluation.fidelity import average_distance, cut
from colonnade.papers.fedpsg.generators import generator

SEED = 7
TRIPLES = 300
NEAR = 4000
"""Records of each half among which the nearest is looked for, and rows that are looked up."""
NAMES = ("copula", "tvae", "tabddpm")


def letter() -> Data:
    """20,000 x 17: sixteen features with the published domain 0 to 15, and the letter."""
    frame = load("letter")
    kinds = tuple(sorted(frame["letter"].astype(str).unique()))
    frame = frame.assign(letter=frame["letter"].astype(str))
    columns = [
        Column(name=str(name), kind="ordinal", categories=tuple(range(16)))
        if name != "letter"
        else Column(name="letter", kind="categorical", categories=kinds)
        for name in frame.columns
    ]
    return Data("letter", frame, Columns(columns))


LABELS = {"bank": "y", "letter": "letter"}


def encoded(frame: pd.DataFrame, layout: Layout) -> Matrix:
    return layout.encode({name: column.encode(frame[name]) for name, column in layout.columns.items()})


def decoded(matrix: Matrix, layout: Layout) -> pd.DataFrame:
    return pd.DataFrame({name: layout.columns[name].decode(codes) for name, codes in layout.decode(matrix).items()})


def downstream(rows: Matrix, judge: Matrix, layout: Layout, label: str) -> float:
    """Gradient boosting: area under the curve for two classes, accuracy for more."""
    at = layout.slices[label]
    rest = np.setdiff1d(np.arange(layout.width), np.arange(at.start, at.stop))
    y, truth = np.argmax(rows[:, at], axis=1), np.argmax(judge[:, at], axis=1)
    if np.unique(y).size < 2:
        return 0.5
    fitted = HistGradientBoostingClassifier(max_iter=60, early_stopping=False, random_state=SEED)
    fitted.fit(rows[:, rest], y)
    if at.stop - at.start > 2:
        return float((fitted.predict(judge[:, rest]) == truth).mean())
    return float(roc_auc_score(truth, fitted.predict_proba(judge[:, rest])[:, 1]))


def nearer(rows: Matrix, learned: Matrix, judge: Matrix) -> float:
    """Ties (records that both halves have) count one half."""
    near = [
        NearestNeighbors(n_neighbors=1).fit(one[:NEAR]).kneighbors(rows[:NEAR])[0][:, 0] for one in (learned, judge)
    ]
    return float(np.mean((near[0] < near[1]) + 0.5 * (near[0] == near[1])))


def permuted(matrix: Matrix, layout: Layout, rng: np.random.Generator) -> Matrix:
    made = matrix.copy()
    for at in layout.slices.values():
        made[:, at] = matrix[rng.permutation(len(matrix)), at]
    return made


def judged(rows: Matrix, learned: Matrix, judge: Matrix, layout: Layout, label: str) -> dict[str, float]:
    one, other = (cut(decoded(each, layout), layout.columns) for each in (judge, rows))
    found: dict[str, Any] = {
        f"{ways}-way": average_distance(one, other, ways=ways, tables=TRIPLES, seed=SEED) for ways in (1, 2, 3)
    }
    return found | {
        "downstream": downstream(rows, judge, layout, label),
        "nearer": nearer(rows, learned, judge),
    }


def study(page: Page, data: Data) -> dict[str, float]:
    """One table of the page; returns the mean distance of pairs for each line."""
    layout, label = Layout(data.columns), LABELS[data.name]
    rng = np.random.default_rng(SEED)
    matrix: NDArray[Any] = encoded(data.frame, layout)[rng.permutation(data.n)]
    learned, judge = matrix[: data.n // 2], matrix[data.n // 2 :]
    lines, pairs = [], {}

    def add(name: str, rows: Matrix, fitting: float | None = None, drawing: float | None = None) -> None:
        one = judged(rows, learned, judge, layout, label)
        pairs[name] = one["2-way"]
        times = ["" if spent is None else f"{spent:.0f}" for spent in (fitting, drawing)]
        lines.append([name, *(f"{one[key]:.4f}" for key in ("1-way", "2-way", "3-way")), *_shown(one), *times])
        print(lines[-1], flush=True)

    add("the learned records", learned)
    add("columns permuted", permuted(learned, layout, rng))
    for name in NAMES:
        made = generator(name)  # type: ignore[arg-type]
        started = time.process_time()
        made.fit(learned, layout, seed=SEED)
        fitted = time.process_time()
        rows = made.sample(len(judge), seed=SEED + 1)
        add(name, rows, fitted - started, time.process_time() - fitted)
    measure = "AUC" if len(data.columns[label].categories or ()) == 2 else "accuracy"
    page.say(f"## {data.name}: {len(learned):,} records learned, {len(data.columns)} columns, {layout.width} places")
    page.table(
        ["rows", "1-way", "2-way", "3-way", f"{measure} of `{label}`", "nearer", "CPU s to fit", "CPU s to draw"], lines
    )
    return pairs


def _shown(one: dict[str, float]) -> list[str]:
    return [f"{one['downstream']:.3f}", f"{one['nearer']:.3f}"]


def main() -> int:
    page = Page("generators", "Local generators on Bank and Letter")
    page.say(
        "Mean total variation distances to records that were not learned. Default options of each generator; nothing"
        " is private here."
    )
    good, told = True, {}
    for data in [letter()] if quick() else [bank(), letter()]:
        pairs = study(page, data)
        good &= max(pairs["tabddpm"], pairs["tvae"]) < pairs["columns permuted"]
        good &= pairs["tabddpm"] < pairs["copula"]
        told |= {f"{data.name}_{name}": f"{pairs[name]:.4f}" for name in NAMES}
    return page.finish(good, **told)


if __name__ == "__main__":
    with threadpool_limits(1):
        sys.exit(main())
