"""What the consortium expects of the overlap, to forecast the noise of each pair of parties in the plan.

How many records two parties share is data. A plan may not look at it; but the coordinator often has a figure that is
public, or was released before (`Describe` gives noisy counts). Stated as `expected`, it changes no noise and no
result: only what the plan forecasts, pair by pair.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from colonnade.errors import BadArguments
from colonnade.federation.options import Option

Expected = Mapping[str, float] | None
"""The parts of the cohort that parties are expected to have and share: {"bank": 0.6, "bank+clinic": 0.4}."""
EXPECTED = Option(
    "The part of the cohort that a party is expected to have, or two parties to share; it changes only the plan's"
    " forecast of the noise. May be repeated.",
    form="PARTY=PART or A+B=PART",
    above=0,
    most=1,
)

BETWEEN = "+"
"""Stands between the names of a pair."""
MOST = 20
"""Pairs that a plan lists; the noisiest come first."""


class Overlap:
    """The parts of the cohort that parties are expected to have and to share.

    A party that is not named is expected to have all records, a pair that is not named to share the product of its
    parts, as if records went missing independently.
    """

    def __init__(self, expected: Expected, parties: Sequence[str]) -> None:
        given = dict(expected or {})
        self.stated = bool(given)
        self.parties = tuple(parties)
        self._part = {party: float(given.pop(party, 1.0)) for party in parties}
        self._shared = {(a, b): self._part[a] * self._part[b] for a, b in itertools.combinations(parties, 2)}
        for name, part in given.items():
            names = (pair for pair in self._shared if name in (BETWEEN.join(pair), BETWEEN.join(pair[::-1])))
            pair = next(names, None)
            if pair is None:
                raise BadArguments(
                    f"expected names {name!r}, which is no party with columns and no pair of them; write 'a' or"
                    f" 'a{BETWEEN}b' with names from {', '.join(parties)}."
                )
            a, b = (self._part[party] for party in pair)
            least = max(0.0, a + b - 1.0) if expected and set(pair) <= expected.keys() else 0.0
            if not least - 1e-9 <= part <= min(a, b) + 1e-9:
                raise BadArguments(
                    f"expected[{name!r}] = {part:g} cannot be: parties with {a:g} and {b:g} of the records share"
                    f" between {least:g} and {min(a, b):g} of them."
                )
            self._shared[pair] = float(part)

    def part(self, party: str) -> float:
        return self._part[party]

    def notes(self, noise: Callable[[str, str, float], float], *, warn: float, leave: float) -> tuple[str, ...]:
        """`noise(a, b, shared)`: the sd of a correlation between the two; above `leave` it is not estimated."""
        if not self._shared:
            return ()
        size = {pair: noise(*pair, shared) for pair, shared in self._shared.items()}
        order = sorted(size, key=lambda pair: -size[pair])

        def listed(pairs: Sequence[tuple[str, str]], detail: Callable[[str, str], str] = lambda a, b: "") -> str:
            more = [f"and {len(pairs) - MOST} more"] if len(pairs) > MOST else []
            return "; ".join([*(f"{a} & {b}{detail(a, b)}" for a, b in pairs[:MOST]), *more])

        def figures(a: str, b: str) -> str:
            return f" {size[a, b]:.2g} ({100 * self._shared[a, b]:.3g} %)"

        whose = "expected to be shared" if self.stated else "shared; state what you expect with expected="
        head = f"Forecast by pair of parties (noise of a correlation, part of the records {whose})"
        notes = [f"{head}: {listed(order, figures)}."]
        lost = [pair for pair in order if size[pair] > leave]
        poor = [pair for pair in order if size[pair] > warn and pair not in lost]
        if poor:
            notes.append(f"WARNING: above {warn}, and poor: {listed(poor)}.")
        if lost:
            notes.append(f"WARNING: too noisy to use, and left to maximum-determinant completion: {listed(lost)}.")
        return tuple(notes)
