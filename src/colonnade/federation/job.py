"""One job as its coordinator sees it: propose, ask, relay sealed mail, close.

Resuming needs no journal. The coordinator's procedure depends only on the replies, and a party answers a request
that it has answered before with the same bytes. So a resumed job starts from the top, with the same job id: the
part that was done is replayed, and the rest continues.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from colonnade.durable import Database
from colonnade.errors import (
    AwaitingApproval,
    BorderError,
    ColonnadeError,
    PartyLost,
    RunError,
    StepFailed,
    StorageError,
    from_code,
)
from colonnade.federation.facts import PublicFacts
from colonnade.federation.heads import FILE as HEADS
from colonnade.federation.heads import check_countersignature, list_statement, read_heads
from colonnade.federation.messages import Mail, Message, Reply, Request, Transcript
from colonnade.federation.plan import Plan
from colonnade.federation.requester import Signer
from colonnade.federation.roster import Roster
from colonnade.federation.run_folder import RunFolder
from colonnade.federation.stage import JOB, Stage
from colonnade.federation.transports import Transport
from colonnade.federation.wire import Written
from colonnade.privacy.cost import Cost, Relation


@dataclass(frozen=True)
class Progress:
    """How far a job is: rounds, bytes on the coordinator's border, seconds. `bytes_left` is what the plan forecasts for
    the requests that are left; `remaining` is the larger of two estimates, by rounds and by bytes."""

    stage: str
    rounds: int
    of: int
    bytes: int
    seconds: float
    bytes_left: int = 0

    @property
    def remaining(self) -> float | None:
        if not self.rounds:
            return None
        return self.seconds * max((self.of - self.rounds) / self.rounds, self.bytes_left / max(self.bytes, 1))


def proposal(plan: Plan, roster: Roster, facts: PublicFacts, seed: int | None) -> dict[str, Any]:
    """What a party must know to decide on a job."""
    return {"plan": plan.to_dict(), "roster": roster.fingerprint, "facts": facts.fingerprint, "seed": seed}


def refusal(transport: Transport, party: str, reply: Reply) -> ColonnadeError:
    """A party's error as the coordinator raises it: with the sentence of its log if it is on this machine, since its
    operator then sits here too, and with what its policy lets it tell otherwise."""
    where = transport.where(party)
    stated = reply.value if isinstance(reply.value, str) and len(reply.value) <= LONGEST_TOLD else ""
    sentence = _logged(Path(where), reply.error) or "".join(letter for letter in stated if letter.isprintable())
    return from_code(reply.error, party, where, sentence)


CURED_BY_RESUMING = (PartyLost, StorageError, StepFailed)
"""Failures of a proposal that are no decision of the party."""
LONGEST_TOLD = 2000
"""Characters of a refusal that a coordinator shows."""
MOST_TABLES = 64
"""Tables among arguments whose bytes a coordinator remembers."""
_TAIL = 1 << 14


def _logged(log: Path, code: str) -> str:
    """The newest refusal in a log with this code."""
    if log.name != "log.txt" or not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    for line in reversed(lines):
        _, refused, sentence = line.partition(f" refused ({code}): ")
        if refused:
            return sentence
    return ""


class Job:
    """An approved plan under way."""

    def __init__(
        self,
        *,
        plan: Plan,
        run: RunFolder,
        transport: Transport,
        facts: PublicFacts,
        roster: Roster,
        timeout: float,
        progress: Callable[[Progress], None] | None = None,
        signer: Signer | None = None,
    ) -> None:
        self.plan = plan
        self.run = run
        self.facts = facts
        self.roster = roster
        described = run.job
        self.id: str = described["job"]
        self.seed: int | None = described["seed"]
        self._entropy: str | None = described["entropy"]
        self._transport = transport
        self._timeout = timeout
        self._progress = progress
        self._signer = signer
        self._seq = dict.fromkeys(transport.parties, 0)
        self._asked: dict[str, dict[str, int]] = {}
        """{stage: {party: requests so far}}"""
        self.spent = False
        """Whether a release with a privacy bound was asked for."""
        self.released: dict[str, Any] = {}
        """{what: the noisy numbers that were released under such a bound}."""
        self.refusal: Exception | None = None
        """What a party or the transport answered in place of a reply, the last time."""
        self._tables: dict[int, tuple[dict[str, Any], Written]] = {}
        """{identity of a table among the arguments: the table, which lives as long as this entry, and its bytes}"""
        self._pending: dict[str, list[Mail]] = {party: [] for party in transport.parties}
        # Nobody's privacy rests on the coordinator's own record: it survives the process, and is flushed at the end.
        self._database = Database(run.path / "transcript.db", flushed=False)
        self.transcript = Transcript(self._database)
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(transport.parties)))
        self._rounds, self._bytes, self._started = 0, 0, time.monotonic()
        self._bytes_left = plan.bytes()

    @property
    def simulated(self) -> bool:
        """Whether a seed made the noise predictable: then the result protects nobody."""
        return self.seed is not None

    def generator(self, label: str) -> np.random.Generator:
        """For post-processing of releases (drawing synthetic rows, say). It protects nobody, and is the same after a
        resume."""
        key = f"{self._entropy or self.seed}/{label}".encode()
        return np.random.default_rng(np.frombuffer(key, dtype=np.uint8))

    def home(self, party: str) -> Path | None:
        """The party's own folder, if it is on this machine: its log is there."""
        log = Path(self._transport.where(party))
        return log.parent if log.name == "log.txt" and log.parent.is_dir() else None

    def propose(self) -> None:
        """Ask every party of the plan to approve it; each reserves its part of the cost."""
        arguments = proposal(self.plan, self.roster, self.facts, self.seed)
        if self._signer is not None:
            # Signed once: a resumed job proposes the same bytes.
            if "requester" not in self.run.job:
                self.run.update(requester=self._signer.sign(self.id, arguments))
            arguments["requester"] = self.run.job["requester"]
        request = Request(kind="propose", job=self.id, arguments=arguments)
        replies, failures = self._exchanged(dict.fromkeys(self._concerned(), request))
        refused = [error for error in failures if not isinstance(error, CURED_BY_RESUMING)]
        begun = any(row.body["kind"] == "ask" for row in self.transcript.rows(job=self.id, direction="out"))
        if refused and not begun:
            # All parties have passed `check`, but what one of them may spend or decide has changed since.
            self._withdraw([party for party, reply in replies.items() if not reply.error])
        for error in refused or failures:
            raise error
        # What is reserved must be in each ledger from now on, also if this run never ends (`newest_heads`).
        heads = {party: _reserved(party, reply.value) for party, reply in replies.items()}
        if heads != self.run.job.get("heads"):  # resumed, it has those of the first time: they are no newer
            self.run.update(proposed=time.time(), heads=heads)
        waiting = [party for party, reply in replies.items() if reply.value["state"] == "waiting"]
        if waiting:
            raise AwaitingApproval(
                f"job {self.id} waits for the operators of {', '.join(waiting)}; resume {self.run.path} when they have"
                " approved it."
            )

    def _withdraw(self, parties: Sequence[str]) -> None:
        """Close a job that will not run: where nothing of it was asked, nothing stays reserved. A party that is lost
        now does so by itself when the job is too old there."""
        self.run.update(withdrawn=True)
        self._exchanged(dict.fromkeys(parties, Request(kind="close", job=self.id, arguments={})))

    def _concerned(self) -> list[str]:
        named = {party for stage in self.plan.stages for party in stage.costs}
        return [party for party in self._transport.parties if party in named]

    def ask(self, stage: Stage, *, parties: Sequence[str] | None = None, **later: Any) -> dict[str, Any]:
        """{party: value}: the next request of a stage, to all of its parties that have one left (or to `parties`).

        `later` are the arguments that the plan could not know; the stage names them.
        """
        if parties is None:
            asked = self._asked.get(stage.name, {})
            parties = [party for party, count in stage.counts.items() if asked.get(party, 0) < count]
            if stage.counts and not parties:
                raise RunError(f"stage {stage.name!r} has no request left; the plan reserved {stage.rounds} of them.")
        return self.ask_each(stage, dict.fromkeys(parties, later))

    def ask_each(self, stage: Stage, later: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Like `ask`, with each party's own later arguments. Parties work in parallel; pending mail goes along."""
        asked = self._asked.setdefault(stage.name, {})
        arguments = {party: stage.arguments(party, asked.get(party, 0), stated) for party, stated in later.items()}
        requests: dict[str, Request] = {}
        for party, stated in arguments.items():
            asked[party] = asked.get(party, 0) + 1
            self._seq[party] += 1
            waiting, self._pending[party] = self._pending[party], []
            requests[party] = Request(
                kind="ask",
                job=self.id,
                seq=self._seq[party],
                stage=stage.name,
                step=stage.step,
                arguments=self._written(stated, later[party]),
                mail=waiting,
            )
        replies = self._exchange(requests)
        for party in arguments:
            for mail in replies[party].mail:
                if mail.sender != party or mail.recipient not in self._pending:
                    raise BorderError(
                        f"{party!r} sent mail in another's name or to a stranger; check its installation."
                    )
                self._pending[mail.recipient].append(mail)
        self._rounds += 1
        self._bytes_left -= len(arguments) * stage.border_bytes
        if self._progress is not None:
            elapsed = time.monotonic() - self._started
            left = max(self._bytes_left, 0)
            self._progress(Progress(stage.name, self._rounds, self.plan.rounds(), self._bytes, elapsed, left))
        values = {party: replies[party].value for party in arguments}
        if _bounded(stage):
            self.spent = True
            paid = {party: value for party, value in values.items() if value is not None}
            self.released |= {f"{stage.name}, {party} {asked[party]}": value for party, value in paid.items()}
        return values

    def _written(self, arguments: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of which the tables in the plan (a layout, say) are written once for all parties and stages that
        share them. What comes later may be one object with other contents each time."""
        written = dict(arguments)
        for name, value in arguments.items():
            if type(value) is dict and name not in later:
                known = self._tables.get(id(value))
                if known is None:
                    if len(self._tables) >= MOST_TABLES:
                        self._tables.clear()
                    known = self._tables[id(value)] = (value, Written.of(value))
                written[name] = known[1]
        return written

    def _exchange(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        """The reply of every party, or the first failure."""
        replies, failures = self._exchanged(requests)
        if failures:
            self.refusal = failures[0]
            raise failures[0]
        return replies

    def _exchanged(self, requests: Mapping[str, Request]) -> tuple[dict[str, Reply], list[Exception]]:
        """Send to all at once; wait for all, so that no party is left in the middle of a round."""

        def exchanged(party: str, data: bytes) -> tuple[bytes, Reply]:
            answer = self._transport.exchange(party, data, timeout=self._timeout)
            reply = Reply.decode(answer)
            reply.hashed  # noqa: B018  here, while others still answer
            return answer, reply

        encoded: dict[str, bytes] = {}
        futures: dict[str, Future[tuple[bytes, Reply]]] = {}
        for party, request in requests.items():  # the first is on its way while the next is written
            encoded[party] = request.encode()
            futures[party] = self._pool.submit(exchanged, party, encoded[party])
        replies: dict[str, Reply] = {}
        failures: list[Exception] = []
        crossed: list[dict[str, Any]] = []
        """Rows of the transcript, which hold digests of messages, and not these."""
        try:
            for party, future in futures.items():
                request = requests[party]
                place = {"job": self.id, "seq": request.seq, "peer": party, "step": request.step}
                sent = Message(
                    direction="out",
                    kind=request.kind,
                    payload=encoded.pop(party),
                    hashed=request.hashed,
                    **place,  # type: ignore[arg-type]
                )
                crossed.append(sent.body())
                try:
                    data, reply = future.result()
                except Exception as error:
                    failures.append(error)
                    continue
                kind = "error" if reply.error else "reply"
                got = Message(direction="in", kind=kind, payload=data, hashed=reply.hashed, **place)  # type: ignore[arg-type]
                crossed.append(got.body())
                self._bytes += len(sent.payload) + len(data)
                if reply.error:
                    failures.append(refusal(self._transport, party, reply))
                replies[party] = reply
        finally:  # what has crossed the border is in the record, also if waiting for the others is interrupted
            self.transcript.chain.append(*crossed)
        return replies, failures

    def costs(self) -> list[Cost]:
        """What this job's releases cost a person, over all parties."""
        return [cost.with_joint(lambda joint: joint.replace(JOB, self.id)) for cost in self.plan.costs()]

    def finish(self) -> None:
        """Close the job at every party and write down what it cost.

        A party that has closed a job has forgotten its replies. So the run folder first says that nothing but closing
        is left: an interruption from here on is resumed here.
        """
        self.run.update(closing=True)
        request = Request(kind="close", job=self.id, arguments={})
        closed = self._exchange(dict.fromkeys(self._concerned(), request))
        ends = {party: _told(party, reply.value, "ledger", "transcript", "signed") for party, reply in closed.items()}
        heads = {party: {name: value[name] for name in ("ledger", "transcript")} for party, value in ends.items()}
        self._countersign([value["signed"] for value in ends.values()])
        self._database.flush()
        totals = {relation: self.plan.total(relation=relation) for relation in get_args(Relation)}
        self.run.write_json(
            "costs.json",
            {
                "costs": {party: [c.to_dict() for c in self.plan.costs(party)] for party in self._concerned()},
                "person_total": {relation: str(total) for relation, total in totals.items()},
                "simulated": self.simulated,
                "heads": heads,
            },
        )
        self.run.update(state="done", finished=time.time())

    def _countersign(self, signed: list[Any]) -> None:
        """Relay the signed heads of all ledgers to all members, and keep what each of them signs for having them."""
        plan, parties = self.plan.fingerprint, self._concerned()
        heads = read_heads(signed, self.roster, job=self.id, plan=plan, parties=parties)
        request = Request(kind="heads", job=self.id, arguments={"heads": [head.to_dict() for head in heads]})
        replies = self._exchange(dict.fromkeys(parties, request))
        answers = {party: _told(party, reply.value, "signature", "doubts") for party, reply in replies.items()}
        statement = list_statement(self.id, plan, heads)
        for party, value in answers.items():
            check_countersignature(self.roster, party, value["signature"], statement)
        self.run.write_json(
            HEADS,
            {
                "job": self.id,
                "plan": plan,
                "keys": {party: self.roster.member(party).signing_key.hex() for party in parties},
                "heads": [head.to_dict() for head in heads],
                "countersigned": {party: value["signature"] for party, value in answers.items()},
                "doubts": {party: value["doubts"] for party, value in answers.items() if value["doubts"]},
            },
        )

    def fail(self, error: BaseException) -> None:
        """Note why the run stopped; it can be resumed. A full disk must not hide the first error."""
        with contextlib.suppress(Exception):
            self.run.update(state="failed", error=f"{type(error).__name__}: {error}")

    def release(self) -> None:
        self._pool.shutdown(wait=True)
        self._database.close()


def _told(party: str, value: Any, *names: str) -> dict[str, Any]:
    """What a party says when a job closes."""
    if not isinstance(value, dict) or set(value) != set(names):
        raise BorderError(f"{party!r} closed the job in another form; check its installation.")
    return value


def _bounded(stage: Stage) -> bool:
    leaves = (leaf for cost in stage.costs.values() for leaf in cost.leaves())
    return any(leaf.mechanism not in ("free", "unbounded") for leaf in leaves)


def _reserved(party: str, value: Any) -> dict[str, Any]:
    """Where a party's ledger has the reservation; it goes into the run folder, so it is read before it is kept."""
    try:
        return {"rows": int(value["ledger"]["rows"]), "hash": str(value["ledger"]["hash"])}
    except (KeyError, TypeError, ValueError) as error:
        raise BorderError(f"{party!r} answered a proposal in another form; check its installation.") from error
