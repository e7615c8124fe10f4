"""What every joint statistic is made of: deal shares to the committee, add everybody's noise, open once.

Data parties Shamir-share integer rows to the committee. **Every** member of the roster deals a fresh sharing, of
degree 2t, of its part Sk(mu / m) of the noise (of zeros where a statistic is declared exact). A holder computes on
its shares, adds all noise shares, and only then lets its share of the result go; the coordinator joins the shares.
The roster decides who holds, who adds noise and how many may collude; a request cannot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from colonnade.durable import canonical
from colonnade.errors import BadArguments, BadPrivacyParameter, PartyLost, RosterError, SecureError, UnsafeRequest
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.privacy.accounting import check_delta, check_epsilon, guarantee
from colonnade.privacy.cost import Cost, Relation
from colonnade.privacy.skellam_sampler import largest_draw, skellam
from colonnade.secure.bgw import noise_sharing
from colonnade.secure.field import Field, Residues
from colonnade.secure.primes import primes_for
from colonnade.secure.shamir import reconstruct, share

View = Literal["client", "server"]


def check_budget(epsilon: float | None, delta: float) -> None:
    """A person's total under Skellam noise; without an epsilon a statistic is exact."""
    if epsilon is not None:
        check_epsilon(epsilon)
        if check_delta(delta) == 0:
            raise BadPrivacyParameter("Skellam noise has no pure bound; choose a delta above 0, below 1/n.")


def check_view(view: str) -> None:
    if view not in get_args(View):
        raise BadArguments(f"view must be 'client' or 'server', not {view!r}.")


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Around the reading of a layout from a request, which is a stranger's: whatever it lacks or holds, it is named."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadArguments(f"the layout of a {what} request cannot be read ({error}).") from error


def whole_numbers(*values: object) -> bool:
    """Python takes True for 1; a layout does not."""
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def colluders(roster: Roster, view: View) -> int:
    """Members that are assumed to know their noise: those of the roster's colluding organisations, or none if only the
    coordinator sees results."""
    if view == "server":
        return 0
    if roster.pooled >= len(roster.names):
        raise RosterError(
            f"{roster.colluders} colluding organisations run all {len(roster.names)} members, so no noise protects"
            " against them; add a member of another organisation (a holder without data will do)."
        )
    return roster.pooled


def account_notes(
    roster: Roster, *, view: View, delta: float, releases: Callable[[int], Sequence[Cost]]
) -> tuple[str, ...]:
    """A person's total under both views and both relations, for a plan; `releases(colluders)` are its costs."""
    notes = []
    for one in get_args(View):
        many = colluders(roster, one)
        costs = releases(many)
        totals = ", ".join(str(guarantee(costs, delta=delta, relation=relation)) for relation in get_args(Relation))
        accounted = "accounted" if one == view else "for comparison"
        notes.append(f"{one.capitalize()} view ({accounted}): {many} of {len(roster.names)} members collude; {totals}.")
    return tuple(notes)


def field_for(largest: int, mu: int, roster: Roster) -> Field:
    """The field that holds every result of size `largest` with all members' noise: a job that could wrap has none."""
    members = len(roster.names)
    noise = members * largest_draw(Fraction(mu, members)) if mu else 0
    return Field(primes_for((largest + noise).bit_length()))


def binding(label: str, layout: Mapping[str, Any]) -> str:
    """A prefix for mail that names the whole public layout, not only its label.

    A member that was asked with another layout (less noise, say) deals under another tag. Holders then miss its
    noise, and nothing opens.
    """
    return f"{label} {hashlib.sha256(canonical(layout).encode()).hexdigest()[:32]}"


def deal(me: Party, tag: str, field: Field, values: NDArray[np.integer[Any]]) -> None:
    """Share whole numbers to the committee; each holder's share is sealed to it."""
    committee = me.roster.committee
    shares = share(field, values, holders=len(committee), threshold=me.roster.threshold, randomness=me.randomness)
    for holder, one in zip(committee, shares, strict=True):
        me.send(holder, tag, one)


def deal_noise(me: Party, tag: str, field: Field, *, mu: int, size: int) -> None:
    """Share this member's part of the noise for `size` entries that are opened together."""
    deal_drawn(me, tag, field, noise_part(me, mu=mu, size=size))


def noise_part(me: Party, *, mu: int, size: int) -> NDArray[np.int64]:
    """This member's draws of Sk(mu / m); zeros where a statistic is declared exact."""
    members = len(me.roster.names)
    return skellam(me.randomness, Fraction(mu, members), size) if mu else np.zeros(size, dtype=np.int64)


def deal_drawn(me: Party, tag: str, field: Field, noise: NDArray[np.int64]) -> None:
    """Share noise that was drawn before, entries of different mu together, by a fresh sharing of degree 2t."""
    committee = me.roster.committee
    shares = noise_sharing(
        field, noise, holders=len(committee), threshold=me.roster.threshold, randomness=me.randomness
    )
    for holder, one in zip(committee, shares, strict=True):
        me.send(holder, tag, one)


def dealt(me: Party, tag: str, senders: Sequence[str], field: Field) -> dict[str, Residues]:
    """What the named members dealt to this holder; all of it, or an error."""
    if me.name not in me.roster.committee:
        raise UnsafeRequest(f"{me.name!r} is not in the committee of the roster and holds no shares.")
    got: dict[str, Any] = me.received(tag)
    missing = [sender for sender in senders if sender not in got]
    if missing:
        raise PartyLost(f"{', '.join(missing)} did not send {tag!r}; nothing is opened. Resume when they are back.")
    for sender in senders:
        if not isinstance(got[sender], np.ndarray):
            raise SecureError(f"{sender!r} sent something other than shares; check its installation.")
        field.check(got[sender])
    return {sender: got[sender] for sender in senders}


def once(me: Party, what: str) -> None:
    """Refuse a second opening of the same thing in one job: two openings with fresh noise would average it away."""
    name = f"opened: {what}"
    if me.kept(name):
        raise UnsafeRequest(f"{what} was opened before in job {me.job}; an opening happens once.")
    me.keep(name, True)


def join(replies: Mapping[str, Residues], field: Field, roster: Roster) -> NDArray[Any]:
    """The opened integers from the holders' shares, of degree 2t. Surplus shares must agree."""
    shares = {position: replies[holder] for position, holder in enumerate(roster.committee)}
    for position, one in shares.items():
        if not isinstance(one, np.ndarray):
            raise SecureError(f"{roster.committee[position]!r} opened something other than a share; nothing is joined.")
    return reconstruct(field, shares, degree=2 * roster.threshold)
