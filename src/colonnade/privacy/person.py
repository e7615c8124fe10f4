"""What costs mean for one person: what they compose to, and what an attacker may guess and believe, also drawn.

Everything here is computed from costs, which are public.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.accounting import Guarantee, advantage, guarantee
from colonnade.privacy.cost import Cost, Relation
from colonnade.view.blocks import Figure, Figures

RELATIONS: tuple[Relation, ...] = get_args(Relation)
WONDERED: dict[Relation, str] = {"zero-out": "was it used? (zero-out)", "replace": "which of two is it? (replace)"}
"""What an attacker asks about a record."""
LEAST_EVENT = 1e-3
"""Beliefs are bounded for conclusions that are drawn at least this often; rarer ones fall under delta."""


def belief(prior: float, *, epsilon: float, delta: float = 0.0, event: float = LEAST_EVENT) -> float:
    """The most that an attacker may believe afterwards who held something for true with probability `prior` before.

    For a set S of outputs with probability q >= `event` under one neighbour, (epsilon, delta)-DP gives at most
    e^epsilon q + delta under the other. So the odds grow by at most e^epsilon + delta / event.

        belief(0.5, epsilon=1.0)  # 0.731
    """
    if not 0 <= prior <= 1 or epsilon < 0 or not 0 <= delta < 1 or not 0 < event <= 1:
        raise BadPrivacyParameter("belief needs prior, delta and event as probabilities and epsilon of at least 0.")
    if prior in (0.0, 1.0):
        return prior
    if epsilon > 700:
        return 1.0
    odds = prior / (1 - prior) * (math.exp(epsilon) + delta / event)
    return odds / (1 + odds)


def right_guesses(costs: Iterable[Cost], *, relation: Relation = "zero-out") -> float:
    """The largest share of right guesses between two neighbours that were equally likely before; 0.5 is a coin."""
    return (1 + advantage(costs, relation=relation)) / 2


PRESENCE = frozenset({"presence", "presence-to-coordinator", "alignment"})
"""Releases that show who holds which pseudonymous record, and no value of a column."""


def presence_fixed(costs: Iterable[Cost]) -> list[Cost] | None:
    """The costs with who is present held fixed: what is claimed about values beside a mask that was shown.

    None if nothing like that was shown, or if something else has no bound.
    """
    every = list(costs)
    names = {str(leaf["name"]) for cost in every for leaf in cost.leaves() if leaf.mechanism == "unbounded"}
    if not names or not names <= PRESENCE:
        return None
    return [bounded for cost in every if (bounded := _bounded(cost)) is not None]


def _bounded(cost: Cost) -> Cost | None:
    if cost.mechanism == "unbounded":
        return None
    if cost.mechanism != "composed":
        return cost
    return replace(cost, parts=tuple(bounded for part in cost.parts if (bounded := _bounded(part)) is not None))


@dataclass(frozen=True)
class PersonTotal:
    """What costs compose to for one person, under both relations.

    `shown`: releases of presence by name. Where there are any, and nothing else is without a bound, the totals hold
    with who is present held fixed.
    """

    delta: float
    total: Mapping[Relation, Guarantee]
    counted: Sequence[Cost]
    shown: tuple[str, ...] = ()

    @classmethod
    def of(cls, costs: Sequence[Cost], *, delta: float) -> PersonTotal:
        fixed = presence_fixed(costs)
        counted = costs if fixed is None else fixed
        return cls(
            delta,
            {relation: guarantee(counted, delta=delta, relation=relation) for relation in RELATIONS},
            counted,
            () if fixed is None else guarantee(costs, delta=delta).unbounded,
        )

    @property
    def bounded(self) -> bool:
        return all(math.isfinite(bound.epsilon) for bound in self.total.values())

    def right(self, relation: Relation) -> str:
        """Of 100 guesses by an attacker who knows everything else, how many at most are right; rounded up."""
        share = right_guesses(self.counted, relation=relation)
        return f"{math.ceil(100 * share - 1e-9):d}" if share < 0.995 else "100"

    @property
    def presence_sentence(self) -> str:
        return f"Who holds which pseudonymous record was shown ({', '.join(self.shown)})."


def person_figures(person: PersonTotal) -> Figures:
    """What a bounded total means: of a hundred guesses, and for any belief."""
    return Figures(figures=(guesses_figure(person), belief_figure(person.total)))


def guesses_figure(person: PersonTotal) -> Figure:
    """Of a hundred guesses whether a record was used, how many at most are right."""
    right = int(person.right("zero-out"))
    return Figure(
        name="guesses",
        chart="hundred",
        data={
            "counts": {
                "right by tossing a coin": 50,
                "more, at most, because of what was released": right - 50,
                "wrong in any case": 100 - right,
            }
        },
        label=f"Of 100 guesses whether one person's record was used at most {right} are right; a coin has 50",
        title="100 guesses: was this person's record used?",
        x="by an attacker who knows everything else",
    )


def belief_figure(bounds: Mapping[Relation, Guarantee]) -> Figure:
    """What an attacker may believe afterwards, over what it believed before."""
    priors = [place / 50 for place in range(51)]
    return Figure(
        name="belief",
        chart="curves",
        data={
            "lines": {
                WONDERED[relation]: (
                    priors,
                    [belief(prior, epsilon=bound.epsilon, delta=bound.delta) for prior in priors],
                )
                for relation, bound in bounds.items()
            },
            "diagonal": "nothing learned",
        },
        label="The most that an attacker may believe afterwards, for each belief before; the table has three of them",
        title="What epsilon means for one person",
        x="belief about one person before",
        y="at most believed afterwards",
        caption="The nearer to the diagonal, the less can be learned.",
    )
