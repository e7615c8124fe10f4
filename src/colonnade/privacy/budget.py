"""How much a party is willing to spend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from colonnade.errors import BadPrivacyParameter
from colonnade.privacy.accounting import check_delta, check_epsilon
from colonnade.privacy.cost import Relation

DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """At most (epsilon, delta) per record; with `period_days`, within any window of that length.

    A period's budget renews itself, a person's loss does not: whoever shows a period also shows the lifetime total.

    Parameters
    ----------
    epsilon, delta : the most that one party may spend.
    relation : "zero-out" or "replace".
    period_days : the length of the window; None for ever.

    Returns
    -------
    A value that a party's ledger checks before it debits anything.

    Example
    -------
    >>> co.Budget(epsilon=3.0, delta=1e-6, period_days=365).epsilon
    3.0
    """

    epsilon: float
    delta: float = 0.0
    relation: Relation = "zero-out"
    period_days: float | None = None

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        if self.period_days is not None and not self.period_days > 0:
            raise BadPrivacyParameter(f"period_days must be positive, not {self.period_days!r}.")

    def since(self, now: float) -> float | None:
        """When the window that ends now began; None: what was ever spent counts."""
        return None if self.period_days is None else now - DAY * self.period_days

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `from_dict` is its inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Budget:
        """A budget from plain values."""
        return cls(**plain)
