"""What a release spends, as data.

A `Cost` names a mechanism and its parameters; `privacy.accounting` interprets it. It states its **unit**
(what is protected) and its **relation** (what a neighbour is), and the two are never mixed up:

- unit `record`: everything that all parties hold about one person or firm;
  `block`: one party's columns of one person; `comparison`: one pairwise bit (the copula paper's nominal epsilon).
- relation `zero-out`: one record's data becomes nothing; `replace`: it becomes any other record's.
  "Nothing" is a possible record, so a `replace` bound also holds for `zero-out`. The other way the
  sensitivity grows by at most `replace_factor` (2 by the triangle inequality; smaller where it is proved).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from colonnade.errors import BadPrivacyParameter, CannotAccount

Unit = Literal["record", "block", "comparison"]
Relation = Literal["zero-out", "replace"]
Parameter = float | int | str

UNITS: tuple[str, ...] = get_args(Unit)
RELATIONS: tuple[str, ...] = get_args(Relation)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One release, or several composed (`mechanism="composed"`, with `parts`).

    `joint` is the id of a release that several parties make together: a person's total counts
    each id once. `count` repeats the same cost that many times. The unit and the relation of a composed
    cost are a summary for people; accounting reads those of its leaves.
    """

    mechanism: str
    parameters: tuple[tuple[str, Parameter], ...] = ()
    unit: Unit = "record"
    relation: Relation = "zero-out"
    replace_factor: float = 2.0
    audience: str = "coordinator"
    joint: str | None = None
    count: int = 1
    parts: tuple[Cost, ...] = ()

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise BadPrivacyParameter(f"unit {self.unit!r} is none of {', '.join(UNITS)}.")
        if self.relation not in RELATIONS:
            raise BadPrivacyParameter(f"relation {self.relation!r} is none of {', '.join(RELATIONS)}.")
        if not isinstance(self.count, int) or self.count < 0:
            raise BadPrivacyParameter(f"count must be an integer of at least 0, not {self.count!r}.")
        if not 1.0 <= self.replace_factor <= 2.0:
            raise BadPrivacyParameter(f"replace_factor must lie in [1, 2], not {self.replace_factor!r}.")
        if self.parts and self.mechanism != "composed":  # nobody would count them
            raise BadPrivacyParameter(f"a {self.mechanism!r} cost cannot have parts; use compose().")
        if len({name for name, _ in self.parameters}) != len(self.parameters):
            raise BadPrivacyParameter(f"a {self.mechanism!r} cost names a parameter twice; state each once.")

    def __getitem__(self, name: str) -> Parameter:
        for stated, value in self.parameters:
            if stated == name:
                return value
        raise CannotAccount(f"a {self.mechanism!r} cost needs the parameter {name!r}; build it with its constructor.")

    def number(self, name: str) -> float:
        value = self[name]
        if isinstance(value, str):
            raise CannotAccount(f"parameter {name!r} of {self.mechanism!r} must be a number, not {value!r}.")
        return float(value)

    @property
    def unbounded(self) -> bool:
        return any(part.mechanism == "unbounded" for part in self.leaves())

    def leaves(self) -> list[Cost]:
        """The single mechanisms inside, each with its total count. The joint id of a composed cost is not theirs."""
        if self.mechanism != "composed":
            return [self] if self.count else []
        return [
            replace(leaf, count=leaf.count * self.count)
            for part in self.parts
            for leaf in part.leaves()
            if leaf.count * self.count
        ]

    def with_joint(self, rename: Callable[[str], str]) -> Cost:
        """The same cost with its joint release ids renamed (a plan is made before its job has an id)."""
        parts = tuple(part.with_joint(rename) for part in self.parts)
        return replace(self, parts=parts, joint=None if self.joint is None else rename(self.joint))

    def times(self, count: int) -> Cost:
        return replace(self, count=self.count * count)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the wire, the ledger and JSON; `from_dict` is its inverse."""
        plain: dict[str, Any] = {
            "mechanism": self.mechanism,
            "parameters": dict(self.parameters),
            "unit": self.unit,
            "relation": self.relation,
            "replace_factor": self.replace_factor,
            "audience": self.audience,
            "joint": self.joint,
            "count": self.count,
        }
        if self.parts:
            plain["parts"] = [part.to_dict() for part in self.parts]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Cost:
        values = dict(plain)
        values["parameters"] = tuple(sorted(dict(values.get("parameters", {})).items()))
        values["parts"] = tuple(cls.from_dict(part) for part in values.get("parts", ()))
        return cls(**values)


def cost(mechanism: str, *, parameters: Mapping[str, Parameter], **stated: Any) -> Cost:
    """A cost from a mapping of parameters; `stated` are the other fields of `Cost`."""
    return Cost(mechanism=mechanism, parameters=tuple(sorted(parameters.items())), **stated)


def Laplace(epsilon: float, **stated: Any) -> Cost:
    """Discrete or continuous Laplace noise of scale sensitivity / epsilon: pure epsilon."""
    _positive("epsilon", epsilon)
    return cost("laplace", parameters={"epsilon": float(epsilon)}, **stated)


def Gaussian(noise_multiplier: float, **stated: Any) -> Cost:
    """Discrete or continuous Gaussian noise; `noise_multiplier` is its sd over the L2 sensitivity."""
    _positive("noise_multiplier", noise_multiplier)
    return cost("gaussian", parameters={"noise_multiplier": float(noise_multiplier)}, **stated)


def GaussianCell(sigma: float, sensitivity: int = 1, **stated: Any) -> Cost:
    """Discrete Gaussian noise on integers when a neighbour moves **one** coordinate, by at most `sensitivity`.

    A histogram under `zero-out` is one. Knowing the single coordinate lets accounting use the exact privacy loss
    of the discrete Gaussian, which `Gaussian` does not claim.
    """
    _positive("sigma", sigma)
    if not isinstance(sensitivity, int) or sensitivity < 1:
        raise BadPrivacyParameter(f"sensitivity must be an integer of at least 1, not {sensitivity!r}.")
    parameters: dict[str, Parameter] = {
        "noise_multiplier": sigma / sensitivity,
        "sigma": float(sigma),
        "sensitivity": sensitivity,
    }
    return cost("gaussian", parameters=parameters, **stated)


def ZeroConcentrated(rho: float, **stated: Any) -> Cost:
    """Any mechanism of rho-zCDP: D_alpha <= rho alpha. Its rho grows by the square of the sensitivity."""
    _positive("rho", rho)
    return cost("zcdp", parameters={"rho": float(rho)}, **stated)


def RandomizedResponse(epsilon: float, categories: int = 2, **stated: Any) -> Cost:
    """A true answer kept with odds e^epsilon against each other category. One answer, so `replace` is the same."""
    _positive("epsilon", epsilon)
    if not isinstance(categories, int) or categories < 2:
        raise BadPrivacyParameter(f"categories must be an integer of at least 2, not {categories!r}.")
    parameters = {"epsilon": float(epsilon), "categories": categories}
    return cost("randomized-response", parameters=parameters, **{"replace_factor": 1.0, **stated})


def Unbounded(name: str, discloses: str, **stated: Any) -> Cost:
    """A release without a bound. A party must allow it by `name`; `discloses` says what it shows."""
    return cost("unbounded", parameters={"name": name, "discloses": discloses}, **stated)


def Free(reason: str, **stated: Any) -> Cost:
    """A message that depends on public facts only, or that nobody can read alone; `reason` says why."""
    return cost("free", parameters={"reason": reason}, **stated)


def compose(costs: Iterable[Cost], **stated: Any) -> Cost:
    """Several costs as one composed event; equal costs are merged by their count.

    Equal costs with the same joint id are one release seen by several parties, so their counts do not add up.
    The unit and the relation are those of the parts where these agree.
    """
    merged: dict[Cost, int] = {}
    for cost in costs:
        key = replace(cost, count=1)
        before = merged.get(key, 0)
        merged[key] = before + cost.count if cost.joint is None else max(before, cost.count)
    parts = tuple(replace(key, count=count) for key, count in merged.items() if count)
    if len(parts) == 1 and not stated:
        return parts[0]
    for name in ("unit", "relation"):
        values = {getattr(part, name) for part in parts}
        if len(values) == 1:
            stated.setdefault(name, values.pop())
    return Cost(mechanism="composed", parts=parts, **stated)


def against_colluders(cost: Cost, *, members: int, pooled: int) -> Cost:
    """The same cost, where noise of all `members` together counts only what `pooled` of them do not know.

    Knowing its noise is knowing the batch, so sampling counts for nothing. Noise that one party makes alone is
    not shared with anyone, and where all members pool theirs the account is left to outsiders.
    """
    if cost.parts:
        parts = tuple(against_colluders(part, members=members, pooled=pooled) for part in cost.parts)
        return replace(cost, parts=parts)
    stated = dict(cost.parameters)
    if cost.mechanism != "skellam" or stated.get("parties") != members or not 0 < pooled < members:
        return cost
    stated |= {"colluders": max(pooled, int(cost.number("colluders"))), "sampling": 1.0}
    return replace(cost, parameters=tuple(sorted(stated.items())))


def _positive(name: str, value: float) -> None:
    if not (isinstance(value, (int, float)) and 0 < value < float("inf")):
        raise BadPrivacyParameter(f"{name} must be a positive finite number, not {value!r}; choose one above 0.")
