"""`Align`: by commuting exponents, which trusts no member, or by a linkage unit."""

from __future__ import annotations

from typing import Annotated, ClassVar

from colonnade.alignment.align import Aligning, AlignmentMethod
from colonnade.alignment.linkage import Linking
from colonnade.federation.facts import PublicFacts
from colonnade.federation.method import method_class
from colonnade.federation.options import Option
from colonnade.federation.roster import Roster


@method_class
class Align(AlignmentMethod):
    """Line the parties' records up by their keys, without showing who is not shared.

    Also known as privacy-preserving record linkage on exact keys, or private set intersection: of a fixed cohort with
    each other party, or a union of all. Keys that are spelled differently are different records.

    Returns
    -------
    `fit(federation)` gives an `Aligned`: the size `n` of the cohort and noisy counts of who shares records with whom.
    Every party stores its own rows at home, and the jobs that follow work on this cohort.

    Example
    -------
    >>> co.Align(capacity={"credit": 900, "court": 500}, include="credit").include
    'credit'
    """

    name: ClassVar[str] = "align"

    trust_matcher: Annotated[
        bool,
        Option(
            "Let a member without data match keyed hashes, as linkage units do: a hundred times faster, but the matcher"
            " together with any one party could try names."
        ),
    ] = False

    def procedure(self, facts: PublicFacts, roster: Roster) -> Aligning:
        return (Linking if self.trust_matcher else Aligning)(self, facts, roster)
