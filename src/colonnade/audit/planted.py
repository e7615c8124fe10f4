"""Bugs that an audit must notice: too little noise, a member who adds none, a budget spent twice."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from colonnade.errors import BadArguments

MEMBERS = 3
SELECTIONS = 20
"""Simulated choices of the event behind a stated power; their spread is subtracted."""


@dataclass(frozen=True)
class Planted:
    """`factor` divides the noise's standard deviation; `silent` members of three add no noise of their own."""

    factor: float = 1.0
    silent: int = 0

    def __post_init__(self) -> None:
        if not 0.1 <= self.factor <= 100 or not 0 <= self.silent < MEMBERS:
            raise BadArguments("a planted bug divides noise by 0.1 to 100, and leaves at least one of three members.")

    @classmethod
    def parse(cls, text: str) -> Planted:
        """`noise/1.4`, `silent-member` or `forgotten-split` (two releases that each spend the whole budget)."""
        if text == "silent-member":
            return cls(silent=1)
        if text == "forgotten-split":
            return cls(factor=math.sqrt(2))
        divided = re.fullmatch(r"noise/(\d+(\.\d+)?)", text)
        if divided is None:
            raise BadArguments(f"{text!r} is no bug to plant; write noise/1.4, silent-member or forgotten-split.")
        return cls(factor=float(divided[1]))

    @property
    def nothing(self) -> bool:
        return self == NOTHING

    @property
    def members(self) -> int:
        """How many of three members add their share."""
        return MEMBERS - self.silent

    @property
    def effective(self) -> float:
        """By how much the standard deviation of three members' noise together is too small."""
        return self.factor * math.sqrt(MEMBERS / self.members)

    @property
    def looked_for(self) -> float:
        """Against what power is stated: this bug, or noise / 1.4 where there is none."""
        return 1.4 if self.nothing else self.effective

    def variance(self, mu: Fraction | int) -> Fraction:
        """A Skellam parameter with the planted factor."""
        return Fraction(mu) / Fraction(self.factor).limit_denominator(10_000) ** 2

    def __str__(self) -> str:
        if self.nothing:
            return "nothing"
        parts = [f"noise / {self.factor:.4g}"] if self.factor != 1 else []
        return " and ".join([*parts, *(["a member's noise missing"] if self.silent else [])])


NOTHING = Planted()
