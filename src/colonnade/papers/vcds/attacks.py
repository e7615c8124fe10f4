"""The attack on VCDS: worst-case neighbours defeat its nominal epsilon, and not what the ledger was debited.

A record that is below everybody in all of a party's columns becomes one that is above everybody. It changes all of its
n - 1 comparisons in every column, and its released ranks are their sums.
"""

from __future__ import annotations

import numpy as np

from colonnade.audit.attack import Attack, Setting
from colonnade.audit.bounds import CONFIDENCE
from colonnade.audit.inference import InferenceResult, attribute_inference
from colonnade.papers.vcds.ranks import perturbed_ranks
from colonnade.privacy.randomness import Randomness


def vcds_attacks() -> tuple[Attack, ...]:
    return (
        Attack("ranks of an extreme record", "the nominal epsilon of the ranks", _nominal, ours=False, plantable=False),
    )


def _nominal(setting: Setting) -> InferenceResult:
    """The paper's epsilon 1: half of it for the ranks, spread over the party's 20 columns (its Theorem 1)."""
    width, nominal = 20, 0.5
    return nominal_ranks(
        records=1000,
        columns=width,
        epsilon_0=nominal / width,
        nominal=nominal,
        guesses=max(int(64 * setting.effort), 64),
        randomness=setting.randomness,
    )


def nominal_ranks(
    *, records: int, columns: int, epsilon_0: float, nominal: float, guesses: int, randomness: Randomness
) -> InferenceResult:
    """A record that is below everybody in all of a party's columns, or above everybody; the coordinator adds up its
    debiased ranks and says which. With a true pure epsilon a guess is right with at most e^epsilon / (1 + e^epsilon).
    """
    right = 0
    for turn in range(guesses):
        highest = turn % 2 == 0
        column = np.arange(float(records))
        column[0] = 2.0 * records if highest else -1.0
        ranks = [
            perturbed_ranks(column, epsilon_0=epsilon_0, randomness=randomness).debiased[0] for _ in range(columns)
        ]
        right += bool(sum(ranks) > columns * (records + 1) / 2) == highest
    return attribute_inference(right, guesses, values=2, claimed_epsilon=nominal, delta=0.0, confidence=CONFIDENCE)
