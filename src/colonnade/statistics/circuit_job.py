"""The plan of a computation on a circuit, and the coordinator's part in it: the same for tables and polynomials.

Rows travel chunk by chunk. After each chunk the products of every level return to degree t. Then everything is opened
once. A data party pays for all of it with its first chunk, which carries its noise: nothing opens without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.roster import Roster
from colonnade.federation.stage import SEALED, Stage, stage
from colonnade.federation.step import Public, Step
from colonnade.privacy.cost import Cost, Free
from colonnade.secure.field import Field
from colonnade.statistics.circuit import Circuit
from colonnade.statistics.joint import View, join


class CircuitLayout(Protocol):
    """The public shape of such a computation; `size` is the number of entries that are opened."""

    @property
    def facts(self) -> PublicFacts: ...

    @property
    def roster(self) -> Roster: ...

    @property
    def label(self) -> str: ...

    @property
    def parties(self) -> tuple[str, ...]: ...

    @property
    def field(self) -> Field: ...

    @property
    def circuit(self) -> Circuit: ...

    @property
    def size(self) -> int: ...

    def cost(self, public: Public, view: View) -> Cost: ...

    def to_dict(self) -> dict[str, Any]: ...


class CircuitJob:
    """The coordinator's side: `layout` with the method's three steps, and what rows and results are, in words."""

    def __init__(
        self,
        layout: CircuitLayout,
        view: View,
        *,
        share: Step,
        multiply: Step,
        open_step: Step,
        rows: str,
        results: str,
    ) -> None:
        self.layout, self.view = layout, view
        facts, roster, circuit = layout.facts, layout.roster, layout.circuit
        arguments: dict[str, Any] = {"layout": layout.to_dict(), "view": view}
        chunks = [{**arguments, "number": number} for number in range(len(circuit.chunks))]
        self._levels = range(1, len(circuit.levels) + 1)
        row_bytes = circuit.row_bytes * max(stop - start for start, stop in circuit.chunks)
        opened = 4 * len(layout.field.primes) * layout.size
        self.share = stage(
            f"{layout.label}: share rows",
            share,
            dict.fromkeys(roster.names, chunks),
            facts=facts,
            roster=roster,
            audience=SEALED,
            discloses=f"secret shares of {rows}, of sums and of noise",
            reply_bytes=len(roster.committee) * (row_bytes + 2 * opened),
        )
        self.multiply = stage(
            f"{layout.label}: multiply",
            multiply,
            dict.fromkeys(roster.committee, [{**chunk, "level": level} for chunk in chunks for level in self._levels]),
            facts=facts,
            roster=roster,
            audience=SEALED,
            discloses=f"secret shares of products of the parties' {rows}",
            reply_bytes=len(roster.committee) * row_bytes,
        )
        self.open = stage(
            f"{layout.label}: open",
            open_step,
            dict.fromkeys(roster.committee, [arguments]),
            facts=facts,
            roster=roster,
            discloses=f"shares of the noisy {results}, which the coordinator joins",
            reply_bytes=opened,
        )
        self.stages = tuple(one for one in (self.share, self.multiply, self.open) if one.costs)

    def opened(self, job: Job) -> NDArray[Any]:
        """Share, multiply level by level, open once, join: exact integers plus noise."""
        for _ in self.layout.circuit.chunks:
            job.ask(self.share)
            for _ in self._levels:
                job.ask(self.multiply)
        return join(job.ask(self.open), self.layout.field, self.layout.roster)

    def phases(self) -> list[Stage]:  # TRANSITION
        return list(self.stages)


def share_cost(public: Public, known: CircuitLayout, view: View, number: int) -> Cost:
    """The first chunk pays for everything: a holder opens nothing unless it has all chunks of every party."""
    if public.party not in known.parties:
        return Free("this member shares noise, and no data")
    if number:
        return Free("more secret shares for a joint release that the first chunk has debited")
    return known.cost(public, view)


def multiply_cost(public: Public, *, layout: Mapping[str, Any], view: View, number: int, level: int) -> Cost:
    return Free("secret shares of products; any t holders learn nothing")


def open_cost(public: Public, *, layout: Mapping[str, Any], view: View) -> Cost:
    return Free("a share of a joint release that the data parties have debited")
