"""Misclassification of a linear SVM trained on synthetic rows and tested on real ones (the paper's Figure 4).

80 % of Adult makes the synthetic table, 20 % is the test set. The label is income. Five folds since 2026-11-17 (one
before), with the paper's methods as printed and VertiGAN beside ours; an error rate of one fold has a standard
deviation of .004 from its test set alone. About an hour of CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import LinearSVC

from benchmarks.common import Page, quick
from benchmarks.draws_common import Estimate
from benchmarks.mrf_common import CELLS, Codes, Data, adult, cells_of, federated_rows, field_method, field_rows
from benchmarks.mrf_tvd import EPSILONS, VERTIGAN
from benchmarks.rivals import vertigan
from benchmarks.rivals.central_mrf import central_field, independent_fields, rho_of
from colonnade.papers import VertiMRF

LABEL = "income"
LIMIT = 0.05
"""`sqm` at the largest epsilon against the real rows."""


def error(train: Codes, test: Codes, sizes: dict[str, int]) -> float:
    """Of a linear SVM on one-hot cells."""
    features = [name for name in sizes if name != LABEL]
    encoder = OneHotEncoder(categories=[list(range(sizes[name])) for name in features], handle_unknown="ignore")
    model = make_pipeline(make_column_transformer((encoder, features)), LinearSVC(dual=False, C=0.1, random_state=0))
    frames = [pd.DataFrame(one) for one in (train, test)]
    if frames[0][LABEL].nunique() < 2:
        return float(np.mean(frames[1][LABEL] != frames[0][LABEL].iloc[0]))
    model.fit(frames[0][features], frames[0][LABEL])
    return float(np.mean(model.predict(frames[1][features]) != frames[1][LABEL]))


def folds(data: Data, count: int) -> list[tuple[Data, Codes]]:
    order = np.random.default_rng(0).permutation(data.n)
    made = []
    for part in np.array_split(order, 5)[:count]:
        rest = np.setdiff1d(order, part)
        train = Data(data.name, data.frame.iloc[rest].reset_index(drop=True), data.columns)
        made.append((train, {name: codes[part] for name, codes in data.codes.items()}))
    return made


def synthetic(train: Data, method: str, epsilon: float, seed: int) -> Codes:
    """Rows for training, two parties."""
    sizes, delta = train.schema.sizes, 1 / train.n
    match method:
        case "sqm, server view" | "sqm, client view":
            view = method.split()[1]
            return field_rows(train, field_method(train, epsilon=epsilon, view=view), 2, seed=seed)
        case "central":
            return central_field(train.codes, sizes, rho=rho_of(epsilon, delta), seed=seed)
        case "floor: 2 parties alone":
            return independent_fields(train.codes, sizes, train.parties(2), rho=rho_of(epsilon, delta), seed=seed)
        case "VertiGAN":
            blocks = {party: train.frame[list(names)] for party, names in train.parties(2).items()}
            rows = vertigan.synthesize(
                blocks, train.columns, epsilon=epsilon, delta=delta, n=train.n, seed=seed, options=VERTIGAN
            )
            return cells_of(rows, train.schema)
    paper = VertiMRF.as_printed(encoder=method.partition(",")[0], epsilon=epsilon, delta=delta, cells=CELLS)
    return federated_rows(train, paper, 2, seed=seed)


METHODS = (
    "sqm, server view",
    "sqm, client view",
    "central",
    "floor: 2 parties alone",
    "fm, as printed",
    "fo, as printed",
    "VertiGAN",
)


def main() -> int:
    page = Page("mrf-svm", "VertiMRF: misclassification of an SVM trained on synthetic rows")
    data = adult()
    sizes = data.schema.sizes
    parts = folds(data, 1 if quick() else 5)

    def over_folds(method: str, epsilon: float | None, make: Callable[[int], float]) -> Estimate:
        cell = (method, epsilon)
        each = [page.draws.get(cell, fold, lambda fold=fold: {"error": make(fold)}) for fold in range(len(parts))]
        return Estimate.of(values["error"] for values in each)

    def trained(method: str, epsilon: float, fold: int) -> float:
        train, test = parts[fold]
        return error(synthetic(train, method, epsilon, fold), test, sizes)

    def commoner(fold: int) -> float:
        train, test = parts[fold]
        return float(np.mean(test[LABEL] != np.bincount(train.codes[LABEL]).argmax()))

    real = over_folds("real rows", None, lambda fold: error(parts[fold][0].codes, parts[fold][1], sizes))
    most = over_folds("the commoner income", None, commoner)
    page.say(
        f"Adult, two parties, delta = 1/n, {len(parts)} folds: 80 % of the records make the synthetic table, 20 % are"
        " the test set. Means with their standard error over folds. Trained on the real rows:"
        f" {real.shown(4)}; always the commoner income: {most.shown(4)}. The run is good if `sqm` in the server view is"
        f" within {LIMIT} of the real rows at the largest epsilon; no limit was set. `as printed` is"
        " `VertiMRF.as_printed`."
    )
    rows, ours = [], 1.0
    for epsilon in (0.8,) if quick() else EPSILONS:
        for method in METHODS[:4] if quick() else METHODS:
            estimate = over_folds(method, epsilon, partial(trained, method, epsilon))
            rows.append([method, f"{epsilon:g}", f"{estimate.mean:.4f}", f"{estimate.error:.4f}"])
            print(rows[-1], flush=True)
            ours = estimate.mean if method == METHODS[0] else ours
    page.table(["method", "epsilon", "misclassified", "± se"], rows)
    return page.finish(ours < real.mean + LIMIT, real=f"{real.mean:.4f}", sqm=f"{ours:.4f}")


if __name__ == "__main__":
    raise SystemExit(main())
