"""How a private VFEM shares its budget over its four releases."""

from __future__ import annotations

import math
from functools import lru_cache

from colonnade.privacy.accounting import calibrate
from colonnade.privacy.cost import Cost, Gaussian, Relation
from colonnade.privacy.skellam import Skellam

SHARES = {"spread": 0.03, "norms": 0.03, "own": 0.17, "moments": 0.77}
"""Of the budget, as 1 / noise multiplier squared. With five parties of four columns the error is flat about these."""


def levels(scale: float, columns: int, parties: int) -> dict[str, float]:
    many = {"spread": columns, "norms": parties, "own": 1}
    return {name: scale * math.sqrt(count / SHARES[name]) for name, count in many.items()}


def noise_mu(scale: float, delta_2: float, members: int, colluding: int) -> int:
    """Skellam noise of variance 2 mu such that what colluders do not know has the wanted deviation."""
    deviation = scale * delta_2 / math.sqrt(SHARES["moments"])
    return math.ceil(deviation**2 / 2 * members / (members - colluding))


@lru_cache(maxsize=16)
def calibrated_scale(
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    columns: int,
    parties: int,
    delta_1: float,
    delta_2: float,
    dimension: int,
    replace_factor: float,
    members: int,
    colluding: int,
) -> float:
    """The scale at which all releases together cost (epsilon, delta)."""

    def releases(scale: float) -> list[Cost]:
        each = levels(scale, columns, parties)
        root = math.sqrt(2)
        return [
            Gaussian(each["spread"], replace_factor=root).times(columns),
            Gaussian(each["norms"], replace_factor=root).times(parties),
            Gaussian(each["own"], replace_factor=root),
            Skellam(
                noise_mu(scale, delta_2, members, colluding),
                delta_1=delta_1,
                delta_2=delta_2,
                parties=members,
                colluders=colluding,
                replace_factor=replace_factor,
                dimension=dimension,
            ),
        ]

    return calibrate(releases, epsilon=epsilon, delta=delta, relation=relation, bracket=(1e-3, 1e6))
