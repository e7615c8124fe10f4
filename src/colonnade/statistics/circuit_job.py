"""The plan of a computation on a circuit, and the coordinator's part in it: the same for tables and polynomials.

Rows travel chunk by chunk. After each chunk the products of every level return to degree t. Then everything is opened
once. A data party pays for all of it with its first chunk, which carries its noise: nothing opens without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Phase, phase
from colonnade.federation.roster import Roster
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


@dataclass(frozen=True, kw_only=True)
class CircuitJob:
    """The method's three steps, and what its rows and its results are, in words."""

    layout: CircuitLayout
    view: View
    share: Step
    multiply: Step
    open: Step
    rows: str
    results: str

    @property
    def _arguments(self) -> dict[str, Any]:
        return {"layout": self.layout.to_dict(), "view": self.view}

    @property
    def _levels(self) -> range:
        return range(1, len(self.layout.circuit.levels) + 1)

    def phases(self) -> list[Phase]:
        layout, arguments = self.layout, self._arguments
        circuit, committee = layout.circuit, layout.roster.committee
        here: dict[str, Any] = {"facts": layout.facts, "roster": layout.roster}
        chunks = [{**arguments, "number": number} for number in range(len(circuit.chunks))]
        rows = circuit.row_bytes * max(stop - start for start, stop in circuit.chunks)
        opened = 4 * len(layout.field.primes) * layout.size
        sealed = "share holders (sealed; any t of them learn nothing)"
        phases = [
            phase(
                f"{layout.label}: share rows",
                self.share,
                dict.fromkeys(layout.roster.names, chunks),
                audience=sealed,
                discloses=f"secret shares of {self.rows}, of sums and of noise",
                reply_bytes=len(committee) * (rows + 2 * opened),
                **here,
            )
        ]
        if circuit.levels:
            products = [{**chunk, "level": level} for chunk in chunks for level in self._levels]
            phases.append(
                phase(
                    f"{layout.label}: multiply",
                    self.multiply,
                    dict.fromkeys(committee, products),
                    audience=sealed,
                    discloses=f"secret shares of products of the parties' {self.rows}",
                    reply_bytes=len(committee) * rows,
                    **here,
                )
            )
        phases.append(
            phase(
                f"{layout.label}: open",
                self.open,
                {holder: [arguments] for holder in committee},
                discloses=f"shares of the noisy {self.results}, which the coordinator joins",
                reply_bytes=opened,
                **here,
            )
        )
        return phases

    def opened(self, job: Job) -> NDArray[Any]:
        """Share, multiply level by level, open once, join: exact whole numbers plus noise."""
        layout, arguments = self.layout, self._arguments
        for number in range(len(layout.circuit.chunks)):
            job.ask(self.share, phase=f"{layout.label}: share rows", number=number, **arguments)
            for level in self._levels:
                job.ask(self.multiply, phase=f"{layout.label}: multiply", number=number, level=level, **arguments)
        shares = job.ask(self.open, phase=f"{layout.label}: open", **arguments)
        return join(shares, layout.field, layout.roster)


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
