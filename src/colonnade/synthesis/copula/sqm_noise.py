"""How much noise CopulaSQM needs: one calibration of the marginals and the moments together, from public facts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from colonnade.data.column import Column
from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.accounting import calibrate
from colonnade.privacy.cost import Cost, Relation
from colonnade.privacy.skellam import LARGEST_MU, Skellam
from colonnade.statistics.joint import View, colluders
from colonnade.statistics.moment_layout import Layout
from colonnade.synthesis.copula.scores import DEEPEST, SCORE_VARIANCE, marginals_cost, shapes, tree_depth

SCORES = "copula scores"
"""The label under which the parties keep their score maps."""


def default_clip(columns: int) -> float:
    """The norm to which a party's row of scores is clipped: its square is p / 3 + 0.35 (sqrt(p) + 1), at most p.

    The squared norm is p / 3 on average (the variance of a score is 1/3); its standard deviation is 0.3 sqrt(p) if
    scores are independent, more if they are not. Noise grows with the squared bound; what clipping takes from the
    variances is put back (`estimate.py`). On the paper's simulation (p = 20 a party) the bias that was left in a
    correlation was 0.0045 (root mean square) at 1.0 times p / 3, 0.0007 at 1.25 and 0.0002 at 1.5; this bound is 1.29
    times p / 3 there.
    """
    return math.sqrt(min(columns, columns * SCORE_VARIANCE + 0.35 * (math.sqrt(columns) + 1)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise:
    """What is public about a job: noise `sigma` of a count, `depth` of the trees, the moments' layout, the columns."""

    sigma: float
    depth: int
    layout: Layout
    columns: Mapping[str, Mapping[str, Column]]

    def requests(self) -> dict[str, dict[str, Any]]:
        return {
            party: {"label": SCORES, "columns": list(own), "sigma": self.sigma, "depth": self.depth}
            for party, own in self.columns.items()
        }

    def releases(self, many: int) -> list[Cost]:
        """What a person pays in all, if `many` members collude."""
        steps, trees = shapes(column for party in self.columns.values() for column in party.values())
        return [
            marginals_cost(steps, trees, sigma=self.sigma, depth=self.depth),
            _skellam(self.layout, many, mu=self.layout.mu),
        ]


def noise_for(
    layout: Layout,
    *,
    epsilon: float | None,
    delta: float,
    share: float,
    clip: Mapping[str, float],
    view: View,
    relation: Relation,
) -> Noise:
    """The noise of both releases for a total of (epsilon, delta), and `layout` with its clips and its mu."""
    layout.roster.require_committee()
    owned = {party: sum(one.party == party for one in layout.features) for party in layout.parties}
    if strangers := sorted(set(clip) - set(owned)):
        raise BadPrivacyParameter(f"clip names {strangers[0]!r}, which has none of the columns; leave it out.")
    clips = {party: float(clip.get(party, default_clip(size))) for party, size in owned.items()}
    silent = replace(layout, clip=clips)
    silent.check()
    columns = {
        party: {one.column: layout.facts.column(one.column) for one in silent.features if one.party == party}
        for party in silent.parties
    }
    if epsilon is None:
        return Noise(sigma=0.0, depth=DEEPEST, layout=silent, columns=columns)
    steps, trees = shapes(column for party in columns.values() for column in party.values())
    nearly = _nearly(epsilon, delta, relation) * math.sqrt((steps + trees) / share)
    depth = tree_depth(layout.facts.n, nearly)
    unit = _skellam(silent, colluders(layout.roster, view), mu=1)
    sigma, mu = _calibrated(epsilon, delta, relation, share, steps, trees, depth, unit)
    return Noise(sigma=sigma, depth=depth, layout=replace(silent, mu=mu), columns=columns)


def _nearly(epsilon: float, delta: float, relation: Relation) -> float:
    """Noise over sensitivity for (epsilon, delta), nearly, from the zCDP bound: it decides the depth of the trees."""
    tail = math.log(1 / delta)
    rho = (math.sqrt(tail + epsilon) - math.sqrt(tail)) ** 2
    return math.sqrt((2 if relation == "replace" else 1) / (2 * rho))


def _skellam(layout: Layout, many: int, *, mu: int) -> Cost:
    return Skellam(
        mu,
        delta_1=layout.delta_1,
        delta_2=layout.delta_2,
        parties=len(layout.roster.names),
        colluders=many,
        replace_factor=layout.replace_factor,
        dimension=layout.dimension,
    )


@lru_cache(maxsize=16)
def _calibrated(
    epsilon: float,
    delta: float,
    relation: Relation,
    share: float,
    steps: int,
    trees: int,
    depth: int,
    unit: Cost,
) -> tuple[float, int]:
    """(sigma of a count, mu of the moments) for a total of (epsilon, delta).

    With noise x times the sensitivity altogether, 1 / x^2 is the squared Gaussian parameter: `share` of it buys the
    marginals, equally for all columns, the rest the moments.
    """
    left = 1 - unit.number("colluders") / unit.number("parties")
    columns = steps + trees

    def scales(x: float) -> tuple[float, int]:
        sigma = x * math.sqrt(columns / share)
        mu = math.ceil((x * unit.number("delta_2")) ** 2 / (2 * left * (1 - share)))
        return sigma, min(mu, int(LARGEST_MU))

    def releases(x: float) -> list[Cost]:
        sigma, mu = scales(x)
        made = replace(unit, parameters=tuple(sorted({**dict(unit.parameters), "mu": float(mu)}.items())))
        return [marginals_cost(steps, trees, sigma=sigma, depth=depth), made]

    return scales(calibrate(releases, epsilon=epsilon, delta=delta, relation=relation, bracket=(1e-3, 1e9)))
