"""The border of a party: `handle` is the only way in, and its answer the only way out.

When a request reaches a party, in this order:
1. the step is one that this party's own installation registered, and its arguments match its signature;
2. the job is approved here;
3. if this (job, sequence number) was answered before, the stored bytes are returned: same bytes, no second debit;
4. the ledger debits the cost in one transaction, or refuses, before the step sees any data;
5. the step runs; a value that is not a `Release` is an error, never sent;
6. reply, peer messages and transcript are committed together and flushed to the disk; only then is anything sent.

An error is a message too: only its code leaves, the sentence goes to this party's own log.

The debit survives the death of this process from the moment it is made. It is flushed to the disk together with the
answer, or with the error, that it paid for: the loss of power can take a debit back only if nothing has left.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import colonnade
from colonnade.data.block import Block
from colonnade.data.cohort import Alignment
from colonnade.durable import Database, Head, private_file, private_folder, tighten
from colonnade.errors import (
    AwaitingApproval,
    BadArguments,
    BeyondReservation,
    ColonnadeError,
    CorruptRecord,
    EmptyParty,
    NotApproved,
    NotARelease,
    PartyLost,
    ReplayMismatch,
    RosterError,
    SeedRefused,
    StepFailed,
    StorageError,
    UnsafeRequest,
)
from colonnade.federation import wire
from colonnade.federation.catalogue import CATALOGUE, check_installed
from colonnade.federation.facts import PublicFacts
from colonnade.federation.heads import Heads, SignedHead, list_statement, read_heads, sign_head
from colonnade.federation.messages import Mail, Message, Reply, Request, Transcript, stored_proposal
from colonnade.federation.plan import Plan
from colonnade.federation.policy import (
    ASK,
    Approvals,
    Decision,
    Policy,
    check_genuine,
    columns_of,
    own_plan,
    pinned,
    plan_of,
)
from colonnade.federation.requester import SIGNED, verified
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Stage
from colonnade.federation.step import Public, Release, Step, registered
from colonnade.federation.store import OVER, Store
from colonnade.federation.workplace import Work, Workplace
from colonnade.privacy.cost import Cost
from colonnade.privacy.ledger import DAY, Ledger, since_boot
from colonnade.privacy.randomness import Randomness, SimulatedRandomness, SystemRandomness
from colonnade.secure.sealed import Identity

COORDINATOR = "coordinator"
HOUR = 3600.0
UNREADABLE = "unreadable"
"""The kind of a request that cannot be decoded."""


class Party(Workplace):
    """The process that owns a block. Steps receive it as `me`, and use of it what `Workplace` has."""

    def __init__(
        self,
        *,
        name: str,
        home: Path,
        roster: Roster,
        facts: PublicFacts,
        identity: Identity,
        block: Block | None = None,
        alignment: Alignment | None = None,
        policy: Policy | None = None,
        simulation: bool = False,
        authority: Path | None = None,
        packages: Sequence[str] = (),
        lasting: bool = True,
    ) -> None:
        """`packages` are those beyond Colonnade's own whose methods and steps this party runs. `lasting=False`: this
        folder is deleted when the federation closes, so nothing in it can be needed after the loss of power. A
        simulation protects nobody and does not wait for the disk either."""
        super().__init__(
            name=name, home=home, roster=roster, facts=facts, identity=identity, block=block, alignment=alignment
        )
        self.policy = policy or Policy()
        self.simulation = simulation
        self._authority = authority
        self.packages = tuple(packages)
        CATALOGUE.load_packages(self.packages)
        self._check_pinned()
        tighten(private_folder(home))
        self._log = _file_logger(name, home / "log.txt")
        for note in block.notes if block is not None else ():
            self._log.info("%s", note)
        self.database = Database(home / "party.db", flushed=lasting and not simulation)
        with self.database.transaction():  # one flush for all tables
            self.ledger = Ledger(self.database, budget=self.policy.budget, steady=since_boot)
            self.transcript = Transcript(self.database)
            self.heads = Heads(self.database)
            self.store = Store(self.database, home / "spool")
        self.approvals = Approvals(
            name=name,
            database=self.database,
            ledger=self.ledger,
            store=self.store,
            policy=self.policy,
            roster=roster,
            columns=tuple(facts.columns.get(name, ())),
        )
        self.said: Callable[[str], None] = lambda _: None
        self.notice: Callable[[str], None] = lambda _: None
        """Gets a sentence when a job waits for an operator."""
        """For the operator's terminal: that a job waits."""
        self._one_at_a_time = threading.Lock()
        self._closed, self._stopped = False, threading.Event()
        self._end_old_jobs()
        self._approved: dict[str, Plan] = {}
        """{job: the plan that this installation makes for it}, of jobs that were accepted or asked something here."""
        self._seeds: dict[str, tuple[int, str] | None] = {}
        """{job: its seed, and a digest of its method and options}, likewise."""

    def _check_pinned(self) -> None:
        member = self.roster.member(self.name)
        if member.public_key != self._identity.public:
            raise RosterError(f"the roster pins another key for {self.name!r}; sign this party's own key into it.")
        if member.signing_key and member.signing_key != self._identity.signing_key:
            raise RosterError(f"the roster pins another signing key for {self.name!r}; sign this party's own into it.")
        if member.owns_data != (self._block is not None):
            raise RosterError(f"the roster and the block of {self.name!r} disagree on whether it owns data.")
        if self._block is None:
            return
        if self._alignment is None or self._alignment.n != self.facts.n:
            raise EmptyParty(f"{self.name!r} is not aligned with the cohort of {self.facts.n} records; align it first.")
        if self._block.columns.fingerprint != self.facts.columns[self.name].fingerprint:
            raise RosterError(f"the pinned facts state other columns for {self.name!r} than its block has.")

    # --- the border ---------------------------------------------------------------------------------------

    def handle(self, data: bytes) -> bytes:
        """Answer one request. Never raises: an error leaves as its code."""
        with self._one_at_a_time:
            if self._closed:
                return Reply(error=PartyLost.code).encode()
            request = Request(kind=UNREADABLE, arguments={})
            try:
                self._end_old_jobs()
                request = Request.decode(data)
                answers: dict[str, Callable[[Request, bytes], bytes]] = {
                    "hello": self._hello,
                    "check": self._check,
                    "propose": self._propose,
                    "ask": self._ask,
                    "close": self._close,
                    "heads": self._heads,
                }
                return answers[request.kind](request, data)
            except ColonnadeError as error:
                self._log.warning(
                    "%s %s/%s refused (%s): %s", request.kind, request.job, request.seq, error.code, error
                )
                tells = self.policy.tells == "names" and request.kind in ("check", "propose")
                return self._refuse(request, data, error.code, error.disclosed if tells else "")
            except Exception:
                self._log.exception("%s %s/%s failed", request.kind, request.job, request.seq)
                return self._refuse(request, data, StepFailed.code)

    def _refuse(self, request: Request, data: bytes, code: str, disclosed: str = "") -> bytes:
        reply = Reply(value=disclosed or None, error=code).encode()
        try:
            discloses = f"error code {code}: {disclosed}" if disclosed else f"error code {code}"
            self._record(request, data, reply, kind="error", discloses=discloses)
        except ColonnadeError as error:
            # Unrecorded, the code of a step must not leave: perhaps its debit is not on the disk either.
            self._log.warning("the refusal (%s) could not be recorded: %s", code, error)
            return Reply(error=StorageError.code).encode()
        return reply

    def _record(
        self,
        request: Request,
        data: bytes,
        reply: bytes,
        *,
        kind: str,
        discloses: str,
        cost: Cost | None = None,
        letters: Sequence[Mail] = (),
        hashes: tuple[str, str] = ("", ""),
    ) -> None:
        """`hashes` are those of request and reply, where they are known."""

        def message(direction: Literal["in", "out"], kind: str, payload: bytes, **more: Any) -> Message:
            place = {"peer": COORDINATOR, "job": request.job, "seq": request.seq, "step": request.step}
            return Message(direction=direction, kind=kind, payload=payload, **{**place, **more})

        sealed = "sealed: only the recipient can read it"
        self.transcript.record(
            message(
                "in", request.kind, data, hashed=hashes[0] or ("" if request.kind == UNREADABLE else request.hashed)
            ),
            *(
                message("out", "mail", m.sealed, peer=m.recipient, tag=m.tag, discloses=sealed, hashed=m.hashed)
                for m in letters
            ),
            message("out", kind, reply, cost=cost, discloses=discloses, hashed=hashes[1]),
        )

    def _hello(self, request: Request, data: bytes) -> bytes:
        head = request.arguments.get("head")
        if head is not None and not self.ledger.contains(_head(head)):
            raise CorruptRecord(
                f"the ledger in {self.home} no longer contains what it told the coordinator's newest run: an older copy"
                " was restored; stop serving and run `colonnade ledger recover` with the coordinator's run folders."
            )
        value = {
            "party": self.name,
            "version": colonnade.__version__,
            "roster": self.roster.fingerprint,
            "facts": self.facts.fingerprint,
            "n": self.facts.n,
            "simulation": self.simulation,
        }
        if not request.job:  # a greeting, not a roll-call
            value["heads"] = [head for head in self.heads.longest() if head["party"] != self.name]
        reply = Reply(value=value).encode()
        discloses = "public facts: version, roster, columns; the heads that others have signed for all members"
        self._record(request, data, reply, kind="hello", discloses=discloses)
        return reply

    def _check(self, request: Request, data: bytes) -> bytes:
        """Would this plan be accepted? Asked of every party first, so that no party reserves for a job that another
        refuses."""
        plan, _ = self._acceptable(request)
        if self._block is not None:
            self._block.check_schema()
        reserved = self.approvals.reservations(request.job, plan)
        self.ledger.check([reservation.cost for reservation in reserved], allow=self.policy.allow)
        state = self.policy.decide(plan, self.facts, self.roster, party=self.name)
        reply = Reply(value={"state": state}).encode()
        self._record(request, data, reply, kind="check", discloses=f"the job would be {state} here")
        return reply

    def _propose(self, request: Request, data: bytes) -> bytes:
        if not request.job:  # a check has none, and its signature must not open a job
            raise UnsafeRequest("a proposal must name its job.")
        proposal = wire.digest(data)
        earlier = self.store.job(request.job)
        if earlier is not None and earlier.proposal != proposal:
            raise ReplayMismatch(f"job {request.job} was proposed before with another plan; use a new job id.")
        state: Decision | None = None
        if earlier is None:
            plan, own = self._acceptable(request)
            state = self.policy.decide(plan, self.facts, self.roster, party=self.name)
        with self.database.transaction():  # one flush for the job, its reservation and the answer
            if state is not None:
                if state == "approved":
                    self.approvals.reserve(request.job, plan)
                self.store.add_job(request.job, proposal, data, state)
                if state == "approved":
                    self.store.decided(request.job, "policy", columns_of(plan, self.approvals.columns))
            current = self.store.job(request.job)
            assert current is not None
            if current.state == "denied":
                raise NotApproved(f"this party's operator has denied job {request.job}.")
            self._check_not_ended(request.job)
            reply = Reply(value={"state": current.state, "ledger": _plain(self.ledger.reserved(request.job))}).encode()
            discloses = f"the job is {current.state} here, and where the ledger has its reservation"
            self._record(request, data, reply, kind="proposal", discloses=discloses)
        if state == "approved":
            self._know(request.job, own, request.arguments["seed"])
        if state == "waiting":
            self._log.info("job %s (%s) waits for the operator", request.job, plan.method)
            waits = f"job {request.job} waits for a decision"
            self.said(f"{waits}: `colonnade party requests`, or `party console`")
            self.notice(f"{self.name}: {waits} ({plan.method}). Read it with `colonnade party console`.")
        return reply

    def _acceptable(self, request: Request) -> tuple[Plan, Plan]:
        """The proposed plan, and this installation's own."""
        arguments = request.arguments
        if set(arguments) - {"requester"} != set(SIGNED) or not isinstance(arguments["plan"], dict):
            raise UnsafeRequest("a proposal must state its plan, roster, facts and seed.")
        self._check_requester(request)
        if arguments["roster"] != self.roster.fingerprint or arguments["facts"] != self.facts.fingerprint:
            raise RosterError("the proposal rests on another roster or other facts than the ones pinned here.")
        if arguments["seed"] is not None and not self.simulation:
            raise SeedRefused("a seed makes noise predictable; only a party with simulation = true accepts one.")
        self.facts.confirmed()
        try:
            plan = Plan.from_dict(arguments["plan"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UnsafeRequest(f"the proposed plan cannot be read ({error}).") from error
        return plan, self._own(plan)

    def _own(self, plan: Plan) -> Plan:
        """The plan that this installation makes for the same method and options; the proposed one must ask the same."""
        self._load(plan)
        for stage in plan.stages:
            if self.name in stage.costs:
                self._step(stage.step)
        if self._block is not None and plan.method != ASK:
            check_installed(CATALOGUE.make(plan.method, plan.options).needed(), plan.method)
        own = own_plan(plan, self.facts, self.roster)
        check_genuine(plan, own, party=self.name)
        return own

    def _load(self, plan: Plan) -> None:
        """The method's class brings its steps; one from a package that this party does not name is refused."""
        if plan.method != ASK:
            CATALOGUE.permit(plan.method, self.packages).load()

    def _step(self, name: str) -> Step:
        """The step of this party's own installation, from Colonnade itself or from a package that it names."""
        step = registered(name)
        CATALOGUE.permit_step(name, step.module, self.packages)
        return step

    def _check_requester(self, request: Request) -> None:
        """Where there is an authority, a proposal must be signed; the policy may want one of certain organisations."""
        requester, owner = request.arguments.get("requester"), None
        if self._authority is not None:
            owner = verified(requester, request.job, request.arguments, authority=self._authority)
            if owner.organisation != self.roster.coordinator:
                raise NotApproved(
                    f"{owner.organisation!r} runs the coordinator, and the roster has {self.roster.coordinator!r};"
                    " agree on one consortium.toml."
                )
        if self.policy.requesters is not None and (owner is None or owner.organisation not in self.policy.requesters):
            who = "the operator of this machine" if owner is None else repr(owner.organisation)
            raise NotApproved(f"{who} may not ask here; add the organisation to requesters in [policy] to let it.")

    def decide(self, job: str, *, approve: bool) -> None:
        """The operator's answer to a job that waits. Approval reserves its plan."""
        with self._one_at_a_time:
            self.approvals.decide(job, approve=approve)

    def waiting(self) -> dict[str, Plan]:
        """Jobs that the operator must decide."""
        return self.approvals.waiting()

    def _ask(self, request: Request, data: bytes) -> bytes:
        step = self._known_step(request)
        arguments = step.check(request.arguments)

        state = self.store.state(request.job)
        if state is None or state == "denied":
            raise NotApproved(f"job {request.job} is not approved here; propose it first.")
        if state == "waiting":
            raise AwaitingApproval(f"job {request.job} waits for this party's operator.")
        self._check_not_ended(request.job)

        hashed = request.hashed
        answered = self.store.reply(request.job, request.seq)
        if answered is not None:
            return self._replay(request, data, hashed, answered.request, answered.reply)
        if state == "closed":
            raise NotApproved(f"job {request.job} is closed; start a new one.")

        stage, number = self._bound(request)
        public = Public(job=request.job, party=self.name, facts=self.facts, roster=self.roster, packages=self.packages)
        cost = pinned(step.price(public, arguments), self.roster)
        with self.database.transaction(flush=False):  # `_commit` or `_refuse` flushes it, before anything leaves
            self.ledger.debit(
                job=request.job, seq=request.seq, request=hashed, stage=request.stage, step=step.name, cost=cost
            )

        self._work = Work(
            request.job,
            request.seq,
            request.mail,
            self._source(request.job, stage, number),
            self.store.offered(request.job),
            stage.recipients,
        )
        try:
            release = step.function(self, **arguments)
            if not isinstance(release, Release):
                raise NotARelease(f"step {step.name} returned {type(release).__name__}; a step returns a Release.")
            return self._commit(request, data, hashed, release, cost, self._work)
        finally:
            self._work = None

    def note(self, sentence: str) -> None:
        """For this party's own log."""
        self._log.warning("%s", sentence)

    def _known_step(self, request: Request) -> Step:
        """The step that a request names; after a restart the job's method is loaded again first."""
        stored = self.store.job(request.job) if request.job not in self._approved else None
        if stored is not None:
            self._know(request.job, self._own(plan_of(stored)), stored_proposal(stored.content)["seed"])
        return self._step(request.step)

    def _know(self, job: str, plan: Plan, seed: Any) -> None:
        """What all requests of a job need of its proposal."""
        # Verification draws in requests of its own: with and without it, the same seed gives the same result.
        options = {name: value for name, value in plan.options.items() if name != "verify"}
        asked = wire.digest(wire.encode([plan.method, options]))
        self._approved[job], self._seeds[job] = plan, None if seed is None else (int(seed), asked)

    def _bound(self, request: Request) -> tuple[Stage, int]:
        """The stage of a request, and its number within it. A request is answered only if it is the next one of a stage
        that this installation itself plans for the approved job, with the arguments that it plans."""
        planned = [stage for stage in self._approved[request.job].stages if self.name in stage.costs]
        names = [stage.name for stage in planned]
        if request.stage not in names:
            raise BeyondReservation(f"stage {request.stage!r} is not in the approved plan of job {request.job}.")
        stage = planned[names.index(request.stage)]
        begun = self.ledger.begun(request.job)
        later = [name for name in names[names.index(request.stage) + 1 :] if name in begun]
        if later and request.stage not in begun:
            raise BeyondReservation(f"stage {request.stage!r} comes before {later[0]!r}, of which was asked already.")
        number = self.ledger.number(request.job, request.seq, request.stage)
        stage.bind(self.name, number, request.arguments)
        return stage, number

    def _replay(self, request: Request, data: bytes, hashed: str, answered: str, reply: bytes | None) -> bytes:
        if answered != hashed:
            raise ReplayMismatch(f"request {request.seq} of job {request.job} was answered before for other content.")
        if reply is None:
            raise NotApproved(f"job {request.job} is closed and its replies are forgotten; start a new one.")
        hashes = (hashed, Reply.decode(reply).hashed)
        self._record(request, data, reply, kind="replay", discloses="the same bytes as before", hashes=hashes)
        return reply

    def _source(self, job: str, stage: Stage, number: int) -> Randomness:
        """The operating system's, or for a simulation a stream that depends on seed, party, method with its options,
        and request alone."""
        simulated = self._seeds[job]
        if simulated is None:
            return SystemRandomness()
        if not self.simulation:
            raise SeedRefused("a seed makes noise predictable; only a party with simulation = true accepts one.")
        return SimulatedRandomness(simulated[0], f"{self.name}/{simulated[1]}/{stage.name}/{number}")

    def _commit(self, request: Request, data: bytes, hashed: str, release: Release, cost: Cost, work: Work) -> bytes:
        answer = Reply(value=release.value, mail=work.outbox)
        reply = answer.encode()
        with self.database.transaction():
            self._check_not_ended(request.job)  # by the operator, while the step ran
            for name, value in work.kept.items():
                self.store.keep(request.job, name, value, cached=not self.remembers(request.job, name))
            self.store.add_letters(request.job, work.letters)
            self.store.add_sent(request.job, work.sent)
            self.store.add_reply(request.job, request.seq, hashed, reply)
            self._record(
                request,
                data,
                reply,
                kind="release",
                discloses=release.discloses,
                cost=cost,
                letters=work.outbox,
                hashes=(hashed, answer.hashed),
            )
        return reply

    def _close(self, request: Request, data: bytes) -> bytes:
        state = self.store.state(request.job)
        if state is None:
            raise NotApproved(f"job {request.job} is not known here.")
        with self.database.transaction():  # one flush for all that closing writes
            self.store.forget(request.job)
            if state not in OVER:  # a restored copy has closed its jobs, and forgotten what was asked since
                self.ledger.withdraw(request.job)
            signed, transcript = self._own_head(request.job), self.transcript.chain.head()
            value = {"ledger": _plain(signed.head), "transcript": _plain(transcript), "signed": signed.to_dict()}
            reply = Reply(value=value).encode()
            discloses = "the heads of this party's ledger and transcript"
            self._record(request, data, reply, kind="close", discloses=discloses)
        self.store.clear(request.job)
        self.forget(request.job)
        return reply

    def _own_head(self, job: str) -> SignedHead:
        """The head of this ledger, signed for the job when it was first closed, and the same whenever that is asked
        again."""
        with self.database.transaction():
            signed = self.heads.of(job).get(self.name)
            if signed is None:
                plan = self._proposed(job).fingerprint
                head = self.ledger.chain.head()
                signed = sign_head(self._identity, self.roster, job, plan, self.name, head)
                self.heads.add(job, plan, [signed])
        return signed

    def _proposed(self, job: str) -> Plan:
        if job in self._approved:  # with the fingerprint of the proposed one
            return self._approved[job]
        stored = self.store.job(job)
        if stored is None:
            raise NotApproved(f"job {job} is not known here.")
        return plan_of(stored)

    def _heads(self, request: Request, data: bytes) -> bytes:
        """Keep what all members of a closed job have signed, and sign the list. A head that contradicts an earlier one
        of the same member is kept too, as evidence, and its owner is named."""
        plan = self._proposed(request.job)
        concerned = [name for name in self.roster.names if any(name in stage.costs for stage in plan.stages)]
        if self.store.state(request.job) not in OVER or set(request.arguments) != {"heads"}:
            raise UnsafeRequest(f"the heads of job {request.job} are told when it is closed, and nothing else.")
        heads = read_heads(
            request.arguments["heads"], self.roster, job=request.job, plan=plan.fingerprint, parties=concerned
        )
        doubts = self.heads.doubts(heads, begun=self.store.begun(request.job))
        signature = ""
        if self.roster.member(self.name).signing_key:
            signature = self._identity.sign(list_statement(request.job, plan.fingerprint, heads)).hex()
        reply = Reply(value={"signature": signature, "doubts": list(doubts)}).encode()
        discloses = "that this party keeps the heads of all ledgers"
        with self.database.transaction():  # one flush for both
            self.heads.add(request.job, plan.fingerprint, heads)
            self._record(request, data, reply, kind="heads", discloses=discloses)
        for party in doubts:
            self._log.warning(
                "%s has signed heads of its ledger that contradict each other: an older copy was restored, or it was"
                " rewritten; run `colonnade ledger verify --others` with an export of its ledger",
                party,
            )
        return reply

    # --- jobs that are never closed -----------------------------------------------------------------------------

    def end(self, job: str) -> None:
        """End a job before it is closed, as the operator wishes."""
        with self._one_at_a_time:
            self.approvals.end(job)

    def end_old_jobs_hourly(self) -> None:
        """For a party that serves: end jobs that are too old also while nothing is asked, until it closes."""

        def watch() -> None:
            while not self._stopped.wait(HOUR):
                with self._one_at_a_time:
                    try:
                        if not self._closed:
                            self._end_old_jobs()
                    except ColonnadeError as error:
                        self._log.warning("jobs that are too old could not be ended: %s", error)

        threading.Thread(target=watch, name=f"{self.name}: old jobs", daemon=True).start()

    def _end_old_jobs(self) -> None:
        """A coordinator that never closes a job must not leave rows and shares here for ever."""
        if self.policy.job_days == "never":
            return
        for job in self.store.open_jobs(before=time.time() - DAY * self.policy.job_days):
            self.approvals.end(job, "policy")
            self._log.info("job %s was not closed within %g days and has ended here", job, self.policy.job_days)

    def _check_not_ended(self, job: str) -> None:
        if self.store.state(job) == "ended":
            maker, when = self.store.ended(job) or ("operator", 0.0)
            why = "the operator" if maker == "operator" else f"the policy (job_days = {self.policy.job_days})"
            shutil.rmtree(self.store.scratch(job), ignore_errors=True)  # what a running step made meanwhile
            self.forget(job)
            raise NotApproved(f"{why} has ended job {job} here on {time.strftime('%Y-%m-%d', time.gmtime(when))}.")

    def close(self) -> None:
        """Release the files once no request is being answered; the party can be opened again.

        An interruption can leave a thread behind that its pool does not know (Ctrl-C while the pool starts it), so
        nothing else waits for it: a connection that is closed under a running statement crashes the process.
        """
        with self._one_at_a_time:
            self._closed = True
            self._stopped.set()
            self.database.close()
            if self._block is not None:
                self._block.release()
        for handler in list(self._log.handlers):
            handler.close()
            self._log.removeHandler(handler)


def _plain(head: Head) -> dict[str, Any]:
    return {"rows": head.rows, "hash": head.hash}


def _head(stated: Any) -> Head:
    try:
        return Head(int(stated["rows"]), str(stated["hash"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadArguments("a greeting names a head by rows and hash.") from error


def _file_logger(name: str, path: Path) -> logging.Logger:
    """A logger of this party's own: its file never leaves the party."""
    log = logging.Logger(f"colonnade.party.{name}", level=logging.INFO)
    handler = logging.FileHandler(private_file(path), encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.propagate = False
    return log
