"""One budget for several releases: a total of (epsilon, delta), split over named releases by their shares.

    budget = Calibration(
        {"marginals": Gaussians(share=0.2, count=12), "moments": Skellams(statistic, share=0.8)},
        epsilon=1.0, delta=1e-6, relation="zero-out",
    )
    budget["marginals"], budget["moments"]    # the noise multiplier of each marginal, and mu

Everything is one function of one noise scale, which is found by accounting all releases **together**: in the normal
limit a release with share f costs f of 1 / scale^2. What is returned was itself accounted.

A group of releases says its `level` at a scale, and its `cost` at a level. `Gaussians` and `Skellams` take the scale as
a noise multiplier, so they can be mixed; `SkellamMus` take it as mu, and stand among themselves. Another kind
of release is a frozen dataclass with the same two methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from colonnade.privacy.accounting import calibrate, keeps_within
from colonnade.privacy.cost import Cost, Gaussian, Relation
from colonnade.privacy.skellam import LARGEST_MU


class Releases(Protocol):
    """A group of releases with noise of one level. Hashable, because a calibration is solved once and remembered."""

    def level(self, scale: float) -> float:
        """The noise at a common scale; more noise for a larger scale."""

    def cost(self, level: float, *, colluders: int | None = None) -> Cost:
        """All releases of the group at a level, if so many members know their noise (None: as it is calibrated)."""


@dataclass(frozen=True, kw_only=True)
class Gaussians:
    """`count` releases with Gaussian noise, which together have `share` of the budget; the level is the noise
    multiplier of each. With share = count the scale is this multiplier."""

    count: int = 1
    share: float = 1.0
    replace_factor: float = 2.0

    def level(self, scale: float) -> float:
        return scale * math.sqrt(self.count / self.share)

    def cost(self, level: float, *, colluders: int | None = None) -> Cost:
        return Gaussian(level, replace_factor=self.replace_factor).times(self.count)


@dataclass(frozen=True)
class Skellams:
    """`count` joint releases with Skellam noise; the level is mu, an integer.

    `statistic` is what one of them costs, as a `Skellam` cost with any mu. The noise that colluders do not know has
    scale * sqrt(count / share) times the L2 sensitivity as its standard deviation.
    """

    statistic: Cost
    count: int = 1
    share: float = 1.0

    def level(self, scale: float) -> int:
        unknown = 1 - self.statistic.number("colluders") / self.statistic.number("parties")
        mu = self.count * (scale * self.statistic.number("delta_2")) ** 2 / (2 * unknown * self.share)
        return math.ceil(min(mu, LARGEST_MU))

    def cost(self, level: float, *, colluders: int | None = None) -> Cost:
        return _at(self.statistic, level, colluders).times(self.count)


@dataclass(frozen=True)
class SkellamMus:
    """`count` joint releases with Skellam noise of mu = ratio * scale, at least 1.

    The scale is found as a real number; then every mu is rounded up to an integer, and all are accounted again.
    """

    statistic: Cost
    count: int = 1
    ratio: float = 1.0

    def level(self, scale: float) -> float:
        return max(1.0, scale * self.ratio)

    def cost(self, level: float, *, colluders: int | None = None) -> Cost:
        return _at(self.statistic, level, colluders).times(self.count)


def _at(statistic: Cost, mu: float, colluders: int | None) -> Cost:
    stated: dict[str, Any] = dict(statistic.parameters) | {"mu": float(mu)}
    if colluders is not None:
        stated["colluders"] = colluders
    return replace(statistic, parameters=tuple(sorted(stated.items())))


class Calibration(Mapping[str, Any]):
    """{name: level} at which all named releases, and `others` whose noise is fixed, cost at most (epsilon, delta).

    `scale` is the common one, within `bracket`; a budget that needs more noise is refused.
    """

    def __init__(
        self,
        releases: Mapping[str, Releases],
        *,
        epsilon: float,
        delta: float,
        relation: Relation = "zero-out",
        others: Sequence[Cost] = (),
        bracket: tuple[float, float] | None = None,
    ) -> None:
        self.releases, self.others = dict(releases), tuple(others)
        groups = tuple(self.releases.values())
        ratio = max((group.ratio for group in groups if isinstance(group, SkellamMus)), default=None)
        within = bracket or ((1e-9, 1e30) if ratio is None else (1 / ratio, LARGEST_MU / ratio))
        self.scale, levels = _solved(groups, self.others, epsilon, delta, relation, within)
        self._levels = dict(zip(self.releases, levels, strict=True))

    def __getitem__(self, name: str) -> Any:
        return self._levels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._levels)

    def __len__(self) -> int:
        return len(self._levels)

    def costs(self, colluders: int | None = None) -> list[Cost]:
        """What a record pays in all, if so many members collude (None: as many as it is calibrated for)."""
        named = [group.cost(self[name], colluders=colluders) for name, group in self.releases.items()]
        return [*named, *self.others]


@lru_cache(maxsize=64)  # the same job is often planned several times
def _solved(
    groups: tuple[Releases, ...],
    others: tuple[Cost, ...],
    epsilon: float,
    delta: float,
    relation: Relation,
    bracket: tuple[float, float],
) -> tuple[float, tuple[float, ...]]:
    """(scale, level of each group)."""

    def costs(levels: Sequence[float]) -> list[Cost]:
        return [*(group.cost(level) for group, level in zip(groups, levels, strict=True)), *others]

    def levels(scale: float) -> list[float]:
        return [group.level(scale) for group in groups]

    def enough(levels: Sequence[float]) -> bool:
        return keeps_within(costs(levels), epsilon=epsilon, delta=delta, relation=relation)

    scale = calibrate(
        lambda scale: costs(levels(scale)), epsilon=epsilon, delta=delta, relation=relation, bracket=bracket
    )
    ratios = [group.ratio for group in groups if isinstance(group, SkellamMus)]
    if not ratios:
        return scale, tuple(levels(scale))
    # Integers are accounted again, because a grid of losses is monotone but for its step.
    mus = [math.ceil(level) for level in levels(scale)]
    while len(mus) == 1 and 1 < mus[0] < 2**13 and enough([mus[0] - 1]):  # nearer than the tolerance of the scale
        mus[0] -= 1
    while not enough(mus):
        scale += max(1 / max(ratios), scale / 2**14)
        mus = [math.ceil(level) for level in levels(scale)]
    return scale, tuple(mus)
