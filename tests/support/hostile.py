"""A coordinator that says what it likes to parties, and the checks that stop it, which a test can take away.

What a test takes away with `disarm` shows that the attack is a real one: without the check it reads the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from colonnade.federation import party as border
from colonnade.federation import wire
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import proposal
from colonnade.federation.messages import Mail, Reply, Request
from colonnade.federation.party import Party
from colonnade.federation.plan import Plan
from colonnade.federation.stage import Stage
from colonnade.federation.store import Store
from colonnade.federation.workplace import Workplace
from colonnade.secure.sealed import unseal
from colonnade.statistics import joint, shares, verified
from colonnade.statistics.joint import JointStatistic
from colonnade.statistics.verified import VerifiedStages

VERIFICATION = "verification"


class Refused(Exception):
    """A party refused what the attack needs."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(f"{what}: {code}")
        self.code = code


class Hostile:
    """A coordinator that composes its requests itself. `colluding` members follow the protocol and show their mail."""

    def __init__(self, federation: Federation, *colluding: str) -> None:
        self.federation, self.colluding = federation, colluding
        self.facts, self.roster = federation.facts, federation.roster

    def party(self, name: str) -> Party:
        return self.federation.transport[name]  # type: ignore[index, no-any-return]

    def say(self, name: str, request: Request) -> Reply:
        return Reply.decode(self.federation.transport.exchange(name, request.encode(), timeout=60))

    def propose(self, plan: Plan, *, job: str = "job", to: Sequence[str] | None = None, **changed: Any) -> None:
        """The plan at all of its parties, perhaps with other words of the proposal; each must approve it."""
        arguments = {**proposal(plan, self.roster, self.facts, self.federation.seed), **changed}
        named = [name for name in self.roster.names if any(name in stage.costs for stage in plan.stages)]
        for name in named if to is None else to:
            reply = self.say(name, Request(kind="propose", job=job, arguments=arguments))
            if reply.error:
                raise Refused(reply.error, f"{name} does not take the proposal")

    def ask(
        self,
        name: str,
        stage: Stage,
        number: int = 0,
        *,
        job: str = "job",
        mail: Iterable[Mail] = (),
        changed: Mapping[str, Any] | None = None,
    ) -> Reply:
        """The planned request with this number, with other arguments if they are `changed`, as the next of the job."""
        seq = len(self.party(name).ledger._tally(job).numbers) + 1
        arguments = {**stage.requests[name][number], **(changed or {})}
        own = [letter for letter in mail if letter.recipient == name]
        reply = self.say(
            name,
            Request(kind="ask", job=job, seq=seq, stage=stage.name, step=stage.step, arguments=arguments, mail=own),
        )
        if reply.error:
            raise Refused(reply.error, f"{name} refuses {stage.name!r}")
        return reply

    def ask_all(self, stage: Stage, number: int = 0, **options: Any) -> dict[str, Reply]:
        return {name: self.ask(name, stage, number, **options) for name in stage.costs}

    def opened(self, stages: VerifiedStages, *, mail: Iterable[Mail], numbers: Sequence[int] = (0,)) -> list[Any]:
        """{holder: share} of each opening, after the proofs if there are some; `mail` are the last comparisons."""
        if stages.layout.verify:
            first, prove, second, answer, conclude = stages._proofs
            replies = self.ask_all(first, mail=mail)
            for asked in (prove, second, answer, conclude):
                coins = {name: reply.value for name, reply in replies.items()}
                changed = {"coins": coins} if asked in (prove, answer) else None
                replies = self.ask_all(asked, mail=letters(replies), changed=changed)
            mail = ()
        openings = [self.ask_all(stages.open, number, mail=mail) for number in numbers]
        return [
            {name: reply.value["share"] if stages.layout.verify else reply.value for name, reply in opening.items()}
            for opening in openings
        ]

    def read(self, letter: Mail, *, job: str = "job") -> Any:
        """A letter to a colluding member."""
        assert letter.recipient in self.colluding
        key = self.roster.member(letter.sender).public_key
        own = self.party(letter.recipient)._identity
        return wire.decode(unseal(own, key, letter.sealed, context=letter.context(job)))

    def own_part(self, name: str, tag: str, *, job: str = "job") -> Any:
        """What a colluding member dealt to itself."""
        assert name in self.colluding
        return self.party(name).store.recall(job, f"mail to myself: {tag}")

    def debited(self, name: str, job: str = "job") -> int:
        return len(self.party(name).ledger.chain.rows(kind="debit", job=job))


def letters(replies: Mapping[str, Reply]) -> list[Mail]:
    return [letter for reply in replies.values() for letter in reply.mail]


def with_tag(found: Iterable[Mail], ending: str, *, sender: str, recipient: str) -> Mail:
    """The one letter with these ends."""
    (letter,) = [
        mail for mail in found if mail.tag.endswith(ending) and (mail.sender, mail.recipient) == (sender, recipient)
    ]
    return letter


# --- the checks, each of which can be taken away ----------------------------------------------------------------------


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _to_all(self: Workplace, recipient: str, tag: str, value: Any, *, each_round: bool = False) -> None:
    work = self._working()
    work.recipients = self.roster.names
    _send(self, recipient, tag, value, each_round=each_round)


def _order_kept(self: Party, request: Request) -> tuple[Stage, int]:
    stage = next(each for each in self._approved[request.job].stages if each.name == request.stage)
    return stage, self.ledger.number(request.job, request.seq, request.stage)


def _any_dealings(me: Party, tag: str) -> None:
    """Without comparing; coins are still bound, for the verification."""
    statements = me.received(shares._statement(tag))
    if statements:
        me.keep(shares._bound_coins(tag), {holder: stated["coins"] for holder, stated in statements.items()})


_send = Workplace.send

CHECKS: dict[str, list[tuple[Any, str, Callable[..., Any] | property]]] = {
    "genuine plan": [(border, "check_genuine", _nothing)],
    "bound arguments": [(Party, "_bound", _order_kept)],
    "columns of the plan": [(Store, "offered", _nothing)],
    "recipients": [(Workplace, "send", _to_all)],
    "one message under a tag": [(Store, "sent", lambda *_: False), (Store, "add_sent", _nothing)],
    "opened once": [(joint, "once", _nothing)],
    "agreement of holders": [
        (joint, "take_dealings", _nothing),
        (joint, "require_agreement", _nothing),
        (verified, "require_agreement", _any_dealings),
    ],
    VERIFICATION: [],
    "layout in the tag": [(JointStatistic, "tag", property(lambda self: f"{self.label} layout"))],
}
"""{what a party checks: how it is taken away}; without verification a method is planned with verify=False."""


def disarm(patch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        for owner, attribute, without in CHECKS[name]:
            patch.setattr(owner, attribute, without)
