"""`SQMLogistic`: logistic regression by noisy gradients of Poisson batches on secret shares (the SQM paper, 5.2).

The weights w are public. Each holder computes u = Z w - 2 gamma s on its shares of the rows Z and the responses s, a
public linear map, and then Z'u, one product, opened with every member's noise. `gradient_layout` has the scales.

The data parties draw each batch from a key that all of them contributed to and the coordinator does not know. A
party shares only the rows of the batch, padded with zeros to a public size: neither the coordinator nor a holder
without data learns the batch. Data parties know it, and holders see every weight; so what is debited is the client
view without amplification. The claim is in `logistic.claim.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, get_args

import numpy as np
from numpy.typing import NDArray

from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure, method_class
from colonnade.federation.options import Delta, Epsilon, Option, RelationOption, View, ViewOption
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import counted, stage
from colonnade.federation.step import Release, step
from colonnade.models.classify import BinaryOptions, Classifier, classifier
from colonnade.models.matrix import missing_blocks, norm_bounds
from colonnade.papers.sqm.gradient_layout import GradientLayout, gradient_layout
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import Free, Relation
from colonnade.statistics import forecast
from colonnade.statistics.joint import JointStages, check_budget, share_rows
from colonnade.statistics.verified import NOT_VERIFIED

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

Gradient = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]
"""(round, quantised weights) -> noisy gradient of that round's batch, over (intercept, features)."""
EPOCHS = {0.5: 2, 1.0: 5, 2.0: 8, 4.0: 10, 8.0: 10}
"""The paper's passes over the data at each of its epsilons."""


@method_class
class SQMLogistic(BinaryOptions):
    """Predict a binary column from the columns of all parties, by many rounds of noisy gradients.

    The SQM paper's minibatches. `Classify` fits the same Taylor polynomial from one release. The share holders see
    every intermediate weight and the data parties know the batches; so the client view is always debited, without
    amplification, and with view="server" it is larger than epsilon. The plan prints both.

    Returns
    -------
    `fit(federation)` gives a `Classifier`, as `Classify` does.

    Example
    -------
    >>> from colonnade.papers import SQMLogistic
    >>> SQMLogistic.as_printed(response="failed", epsilon=2.0).rounds
    8000
    """

    name: ClassVar[str] = "sqm-logistic"

    epsilon: Epsilon = 1.0
    delta: Delta = 1e-6
    view: ViewOption = "client"
    relation: RelationOption = "zero-out"
    sampling: Annotated[float, Option("The probability of a record to be in a batch.")] = 0.01
    rounds: Annotated[int, Option("How many batches.", least=1, most=1_000_000)] = 200
    learning_rate: Annotated[float, Option("The step, as a multiple of the mean gradient of a batch.", above=0)] = 8.0
    radius: Annotated[float, Option("The norm that the weights are clipped to; rows are scaled to norm 1.")] = 1.0

    @classmethod
    def as_printed(cls, **changes: Any) -> Self:
        """The paper's experiment: delta 1e-5, gamma 2^13, batches of 0.1 % of the records, 2 to 10 epochs by epsilon
        (5 where it has none), weights within norm 1, no intercept, noise for the server view.

        The paper is silent on the learning rate (the default here). It starts at random weights, here at zero; here
        the weights of the second half of the rounds are averaged. Its sensitivity adds terms for rounding: here rows
        are clipped after rounding, so none are needed.
        """
        sampling = changes.get("sampling", 0.001)
        printed = {
            "epsilon": 1.0,
            "delta": 1e-5,
            "gamma": 2**13,
            "intercept": False,
            "view": "server",
            "relation": "zero-out",
            "sampling": sampling,
            "rounds": round(EPOCHS.get(changes.get("epsilon", 1.0), 5) / sampling),
            "radius": 1.0,
        }
        return cls(**{**printed, **changes})

    def check(self) -> None:
        super().check()
        check_budget(self.epsilon, self.delta)

    def missing_data(self) -> str:
        return missing_blocks("ignore")

    def procedure(self, facts: PublicFacts, roster: Roster) -> Descent:
        return Descent(self, facts, roster)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.papers.sqm.attacks import gradient_attacks

        return gradient_attacks()


# --- the coordinator's procedure --------------------------------------------------------------------------


class Descent(Procedure[Classifier]):
    """Projected gradient descent. All rounds are one joint release, counted `rounds` times."""

    def __init__(self, method: SQMLogistic, facts: PublicFacts, roster: Roster) -> None:
        self.method = method
        explaining = method.explaining(facts)
        self.layout = layout = gradient_layout(
            facts=facts,
            roster=roster,
            names=explaining,
            response=method.response,
            clip=norm_bounds(facts, explaining, method.clip),
            gamma=method.gamma,
            intercept=method.intercept,
            radius=method.radius,
            sampling=method.sampling,
            rounds=method.rounds,
            epsilon=method.epsilon,
            delta=method.delta,
            view=method.view,
            relation=method.relation,
        )
        primes, holders = len(layout.field.primes), len(roster.committee)
        widest = max(len(layout.own_features(party)) for party in layout.parties) + 2
        self.agree = stage(
            "gradient: agree on batches",
            agree_batches,
            {party: [{"layout": layout.to_dict()}] for party in layout.parties},
            facts=facts,
            roster=roster,
            audience="the other data parties (sealed)",
            recipients=layout.parties,
            discloses="random bytes for the key of the batches",
        )
        self.joint = joint = JointStages(
            layout,
            "client",
            later={"number": counted("the rounds of the descent, one after the other"), "chosen": layout.later_weights},
        )
        self.share = joint.stage(
            "share batch",
            share_rows,
            roster.names,
            [{"number": 0}] * layout.rounds,
            discloses="secret shares of the quantised rows of a batch and of noise",
            reply_bytes=4 * primes * holders * (layout.capacity * widest + layout.width),
        )
        self.compare, self.open = joint.opening(
            [{"number": 0}] * layout.rounds,
            audience="coordinator, who sends the next weights to the share holders",
            discloses="shares of a noisy gradient, which the coordinator joins",
        )
        self.stages = (self.agree, self.share, self.compare, self.open)
        self.notes = gradient_notes(layout, view=method.view, delta=method.delta)

    def run(self, job: Job) -> Classifier:
        layout, method = self.layout, self.method

        def gradient(number: int, weights: NDArray[np.int64]) -> NDArray[np.float64]:
            later: dict[str, Any] = {"chosen": {"weights": weights.tolist()}}
            job.ask(self.share, **later)
            opened = self.joint.opened(job, **later).astype(np.float64)
            ordered = np.empty(layout.width)
            ordered[layout.order] = opened / (4.0 * layout.gamma**3)
            return ordered

        job.ask(self.agree)
        intercept, weights = descent(layout, gradient, learning_rate=method.learning_rate)
        return classifier(
            method, job, intercept, weights, noise_sd=layout.noise_sd, rounds=layout.rounds, solver="minibatch"
        )


def gradient_notes(layout: GradientLayout, *, view: View, delta: float) -> tuple[str, ...]:
    """What all rounds are worth, under both views and both relations; only the client view is debited."""
    notes = [
        f"{layout.rounds} rounds of about {layout.sampling * layout.facts.n:.0f} of {layout.facts.n} records; each"
        f" entry of a gradient carries noise with standard deviation {layout.noise_sd:.4g}.",
        forecast.descent(
            noise=layout.noise_sd,
            steps=layout.rounds,
            weights=layout.width,
            batch=layout.sampling * layout.facts.n,
        )[1],
    ]
    words: dict[View, str] = {
        "client": "debited, no amplification",
        "server": "the coordinator, amplified by sampling",
    }
    for each, meaning in words.items():
        costs = [layout.round_cost(each).times(layout.rounds)]
        totals = ", ".join(str(guarantee(costs, delta=delta, relation=relation)) for relation in get_args(Relation))
        aim = "; the noise is calibrated for it" if each == view else ""
        notes.append(f"{each.capitalize()} view ({meaning}{aim}): {totals}.")
    notes.append(
        "The coordinator does not know the batches; the data parties do. Share holders see every intermediate weight."
    )
    notes.append(NOT_VERIFIED)
    return tuple(notes)


def descent(layout: GradientLayout, gradient: Gradient, *, learning_rate: float) -> tuple[float, NDArray[np.float64]]:
    """(intercept, coefficients) by the steps of the descent: w is clipped to `radius` after each step, and the weights
    of the second half of the rounds are averaged."""
    weights = np.zeros(layout.width)
    total = np.zeros(layout.width)
    averaged = 0
    batch = layout.sampling * layout.facts.n
    for number in range(layout.rounds):
        weights = weights - learning_rate / batch * gradient(number, quantized_weights(layout, weights))
        weights *= min(1.0, layout.radius / max(float(np.linalg.norm(weights)), 1e-300))
        if number >= layout.rounds // 2:
            total += weights
            averaged += 1
    mean = total / averaged
    scale = layout.intercept_entry / layout.gamma
    return (float(mean[0] * scale), mean[1:] / layout.norm) if layout.intercept else (0.0, mean / layout.norm)


def quantized_weights(layout: GradientLayout, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Toward zero, so that the norm stays within the radius."""
    return np.trunc(weights * layout.gamma * (1 - 1e-12)).astype(np.int64)


# --- the members' step: rows, noise and openings are the common steps of joint statistics -------------------------


@step(cost=Free("random bytes; no data"))
def agree_batches(me: Party, *, layout: dict[str, Any]) -> Release:
    """A data party's contribution to the key of the batches."""
    GradientLayout.from_dict(me.facts, me.roster, layout).share_key(me)
    return Release(None, "nothing: the key travels sealed")
