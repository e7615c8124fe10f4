"""Do completed records help a classifier (the paper's Experiment 3)?

A pooled gradient boosting classifier of the label on all columns, trained on the aligned records, on aligned and
completed ones, or on the true ones, and tested on a fifth of the records that nobody completed or trained on. There is
no limit: the paper's claim that completed records help is what is checked, and the page says what was found.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score, f1_score

from benchmarks.common import Page, quick
from benchmarks.draws_common import Estimate, Values
from benchmarks.fedpsg_common import Case, Matrix, beside, expected_values
from benchmarks.fedpsg_runs_common import method_for, side_by_side

SPLITS = (1, 2, 3, 4, 5)
ALIGNED, TRUE = "aligned records only", "all records, true values"
OURS = {
    "the copula, drawn": {"imputer": "copula-draw"},
    "the regression": {},
    "VF-GAIN": {"imputer": "gain"},
}


@dataclass(frozen=True)
class Classified:
    """Accuracy and macro F1 on the test records, and how many records trained."""

    accuracy: float
    f1: float
    records: int


def classify(case: Case) -> dict[str, Classified]:
    """With every way to complete the records that B lacks."""
    label = case.frame[case.label].to_numpy()
    a, b = case.matrix(0), case.matrix(1)
    test = np.random.default_rng((case.seed, 21)).random(len(a)) < 0.2

    def found(rows: NDArray[np.bool_], side: Matrix) -> Classified:
        model = HistGradientBoostingClassifier(random_state=0, max_iter=60)
        model.fit(np.concatenate([a[rows], side[rows]], axis=1), label[rows])
        told = model.predict(np.concatenate([a[test], b[test]], axis=1))
        accuracy, f1 = accuracy_score(label[test], told), f1_score(label[test], told, average="macro")
        return Classified(float(accuracy), float(f1), int(rows.sum()))

    values = {name: one for name, (one, _) in beside(case).items()}
    values |= {name: expected_values(case, method_for(case, **options)) for name, options in OURS.items()}
    made = {ALIGNED: found(~case.lacking & ~test, b)}
    for name, one in values.items():
        side = b.copy()
        side[case.lacking] = case.layout.legal(one)
        made[f"and completed by {name}"] = found(~test, side)
    return {**made, TRUE: found(~test, b)}


def classified(case: Case) -> Values:
    """{"method: figure": value} of `classify`; `by_method` puts them together again."""
    return {f"{method}: {name}": value for method, one in classify(case).items() for name, value in asdict(one).items()}


def by_method(values: Values) -> dict[str, Classified]:
    methods = dict.fromkeys(name.rpartition(": ")[0] for name in values)
    return {
        method: Classified(**{name: values[f"{method}: {name}"] for name in ("accuracy", "f1", "records")})
        for method in methods
    }


def main() -> int:
    splits = SPLITS[:1] if quick() else SPLITS
    page = Page("fedpsg-downstream", "Completion: does it help a classifier?")
    page.say(
        "80 % of B's records missing. A fifth of all records, with their true values, is kept for the test. Gradient"
        " boosting (scikit-learn) on encoded columns, with the values of the completed table. F1 is the macro average."
        f" Means of {len(splits)} splits; the gain is the difference in accuracy to the aligned records alone on the"
        " same split, with the standard error of its mean. Floors and pooled oracles stand beside: what completion can"
        " do here at all."
    )
    names = ("credit",) if quick() else ("credit", "letter", "bank")
    work = {((name,), seed): partial(classified, Case(name, 0.8, seed=seed)) for name in names for seed in splits}
    found = page.draws.all(work, side_by_side)
    helped = list[bool]()
    for name in names:
        each = [by_method(found[(name,), seed]) for seed in splits]
        rows = []
        for method in each[0]:
            accuracy = Estimate.of(one[method].accuracy for one in each)
            f1 = Estimate.of(one[method].f1 for one in each)
            gain = Estimate.of(one[method].accuracy - one[ALIGNED].accuracy for one in each)
            rows.append([method, f"{each[0][method].records}", f"{accuracy.mean:.3f}", f"{f1.mean:.3f}", str(gain)])
            if method.removeprefix("and completed by ") in OURS:
                helped.append(gain.mean > 0)
        page.say(f"## {name.capitalize()}")
        page.table(["trained on", "records", "accuracy", "macro F1", "gain"], rows)
    return page.finish(True, helped=f"{sum(helped)}/{len(helped)}")


if __name__ == "__main__":
    sys.exit(main())
