"""The coordinator's side of the rounds: counting them, and one evaluation of the loss and its gradient per round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import NotEstimable
from colonnade.federation.job import Job
from colonnade.models.sparse_glm_cover import Cover
from colonnade.models.sparse_glm_layout import SparseLayout
from colonnade.models.sparse_glm_steps import block_gradient, predict_block, respond
from colonnade.models.sparse_path import Evaluation, ProximalQuasiNewton

Vector = NDArray[np.float64]


class Rounds:
    """Numbers the rounds of a job, over all folds; stops at the number that the plan has reserved, and before a total
    that would show one party's predictor (`sparse_glm_cover.py`)."""

    def __init__(self, job: Job, layout: SparseLayout, *, limit: int) -> None:
        self.job, self.layout, self.limit = job, layout, limit
        self.plain: dict[str, Any] = layout.to_dict()
        self.used = 0
        self._marks = 0
        self._cover = Cover([one.party for one in layout.features], holder=layout.holder)

    def open(self, selected: NDArray[np.bool_]) -> None:
        """Before a total over these columns is sent: may it be seen? The history is that of all paths and folds."""
        if self.layout.exchange == "masked":
            self._cover.admit(selected)

    def next(self) -> int:
        if self.used >= self.limit:
            raise NotEstimable(
                f"the {self.limit} rounds of the plan are used up before the path has settled; allow more with rounds=,"
                " fewer lambdas, or a larger tolerance."
            )
        self.used += 1
        return self.used - 1

    def mark(self) -> int:
        """A number of its own for a message outside the rounds."""
        self._marks += 1
        return self.limit + self._marks


def quasi_newton(
    rounds: Rounds, *, fold: int | None, tolerance: float, largest: float | None = None
) -> ProximalQuasiNewton:
    """The solver whose loss and gradients the parties compute, starting at the model without covariates."""
    job, layout = rounds.job, rounds.layout
    here: dict[str, Any] = {"layout": rounds.plain}

    def answer(number: int, intercept: float | None) -> tuple[dict[str, float], Vector]:
        value = job.ask(respond, number=number, intercept=intercept, fold=fold, **here)[layout.holder]
        gradient = np.zeros(1 + len(layout.features))
        gradient[0] = value["gradient"]
        for party, part in job.ask(block_gradient, number=number, **here).items():
            gradient[1 + layout.place(party)] = part
        return value, gradient

    def evaluate(theta: Vector) -> Evaluation:
        rounds.open(theta[1:] != 0)
        number = rounds.next()
        asked = {
            member: {**here, "number": number, "coefficients": theta[1 + layout.place(member)].tolist()}
            for member in layout.senders
        }
        job.ask_each(predict_block, asked)
        value, gradient = answer(number, float(theta[0]))
        return Evaluation(value["loss"], gradient, value["held_out"])

    value, gradient = answer(rounds.mark(), None)
    start = np.zeros(1 + len(layout.features))
    start[0] = value["intercept"]
    return ProximalQuasiNewton(
        evaluate,
        start=start,
        at_start=Evaluation(value["loss"], gradient, value["held_out"]),
        # Standardised columns have a mean square of 1, so the mean curvature is the size of the diagonal.
        curvature=np.eye(len(start)) * max(value["curvature"], 1e-6),
        learn=True,
        saturated=value["saturated"],
        tolerance=tolerance,
        largest=largest,
    )
