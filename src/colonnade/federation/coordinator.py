"""The coordinator's handle on all parties: it drives jobs, relays sealed mail and owns no data.

federation = Federation.local({"credit": credit, "court": court}, key="firm", columns="columns.toml")
result = federation.run(Describe(epsilon=1.0))
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import colonnade
from colonnade.data.column import Columns
from colonnade.durable import Head
from colonnade.errors import (
    BadArguments,
    ColonnadeError,
    NotEstimable,
    PartyLost,
    RosterError,
    RunError,
    UnboundedNotAllowed,
    VersionMismatch,
)
from colonnade.federation.catalogue import CATALOGUE, check_installed
from colonnade.federation.config import Consortium, ConsortiumFile, CoordinatorFile, Spec
from colonnade.federation.facts import PublicFacts
from colonnade.federation.heads import longest_told
from colonnade.federation.job import Job, Progress, proposal, refusal
from colonnade.federation.local import aligned_privately, set_up
from colonnade.federation.messages import Reply, Request
from colonnade.federation.method import Method, NoEstimate, Result
from colonnade.federation.notebook import notebook_line
from colonnade.federation.plan import Plan
from colonnade.federation.policy import plan_of_steps
from colonnade.federation.requester import Signer
from colonnade.federation.roster import COORDINATOR, Roster
from colonnade.federation.run_folder import RunFolder, newest_heads
from colonnade.federation.stage import stage
from colonnade.federation.step import Step
from colonnade.federation.transports import Transport
from colonnade.federation.transports.certificates import AUTHORITY
from colonnade.formatting import number
from colonnade.privacy.ledger import Budget
from colonnade.view.blocks import Figure, Table, Text, View
from colonnade.view.render import Viewed


class Federation(Viewed):
    """All parties, through one transport. Use it as a context manager, or call `close`.

    Parameters
    ----------
    Make it with `Federation.local` (all blocks here) or `Federation.from_toml` (a federation.toml, or the
    coordinator.toml of a consortium), not by itself. `Federation.local` takes:

    blocks : {party: DataFrame, path, or source}.
    key : the column, or columns, that identify a record.
    columns : `Columns`, or a columns.toml.
    runs : the folder of run folders; a temporary one by default.
    organisations, holder : {party: organisation}, each its own by default; an organisation without data that holds
        shares, needed with two parties.
    coordinator : the organisation that runs the coordinator, if it is one of theirs: it then counts as their members
        in every account.
    committee, threshold, colluders : who holds shares, how many of them together learn nothing, how many members are
        assumed to collude.
    allow, budget, approve : unbounded releases that all parties allow by name; each party's budget; "auto" or "ask".
    seed : makes this a simulation, which protects nobody.
    include : the cohort: "union" of all records, or one party's.
    home : the folder of the parties' ledgers; without it they last as long as this object.
    transport, timeout : "embedded", "processes" or "network"; seconds for one answer.
    ignore : columns of the parties' tables that no one uses.
    packages : packages beyond Colonnade's own methods that the parties run: the papers' own algorithms by default
        ("colonnade.papers"), and yours.

    Returns
    -------
    `plan(method)` gives every cost and message in advance; `run(method)` gives the result and its run folder.

    Example
    -------
    >>> plan = federation.plan(co.Describe(epsilon=1.0))
    >>> print(plan.total())
    (1, 1e-06) per record, zero-out
    """

    def __init__(
        self,
        *,
        transport: Transport,
        facts: PublicFacts,
        roster: Roster,
        runs: Path,
        seed: int | None = None,
        origin: str | None = None,
        timeout: float = 600.0,
        remarks: Sequence[str] = (),
        signer: Signer | None = None,
    ) -> None:
        self.transport = transport
        self.facts = facts
        self.roster = roster
        self.runs = runs
        self.seed = seed
        self.timeout = timeout
        self.remarks = tuple(remarks)
        self._signer = signer
        self._origin = origin
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._allowed: tuple[str, ...] = ()
        self._greeted = False
        self._closed = False

    def __repr__(self) -> str:
        held = ", ".join(f"{party} ({len(columns)})" for party, columns in self.facts.columns.items())
        return f"<Federation of {len(self.facts.parties)} parties, {self.facts.n:,} records; columns: {held}>"

    def view(self) -> View:
        """What is public: who takes part, and who has which columns."""
        columns = self.facts.columns
        rows = tuple(
            (party, self.roster.member(party).organisation, str(len(declared)), ", ".join(declared))
            for party, declared in columns.items()
        )
        return View(
            title=f"A federation of {len(columns)} parties",
            quality=f"Public facts: {number(self.facts.n)} records in the cohort, and the columns of each party.",
            answer=(
                Figure(
                    name="columns",
                    chart="bars",
                    data={"labels": list(columns), "values": [len(declared) for declared in columns.values()]},
                    label="How many columns each party has",
                    title="Columns of each party",
                    x="columns",
                ),
                Table(title="Columns", head=("party", "organisation", "columns", "names"), rows=rows, numeric=(2,)),
                *(Text(text=remark, style="soft") for remark in self.remarks),
            ),
        )

    @classmethod
    def local(
        cls,
        blocks: Mapping[str, Any],
        *,
        key: str | Sequence[str],
        columns: Columns | str | Path,
        runs: str | Path | None = None,
        organisations: Mapping[str, str] | None = None,
        holder: str | None = None,
        coordinator: str = COORDINATOR,
        committee: Sequence[str] | Literal["pair"] | None = None,
        threshold: int = 1,
        colluders: int = 1,
        allow: Sequence[str] = (),
        budget: Budget | None = None,
        approve: Literal["auto", "ask"] = "auto",
        seed: int | None = None,
        include: str = "union",
        home: str | Path | None = None,
        transport: Literal["embedded", "processes", "network"] = "embedded",
        timeout: float = 600.0,
        ignore: Sequence[str] = (),
        packages: Sequence[str] | None = None,
    ) -> Federation:
        """All parties on this machine; the options are explained above.

        Keys are joined in the clear: its operator sees all keys, and owns all blocks anyway. Without
        `home`, ledgers last as long as this object; give a folder to keep them.
        """
        spec = Spec.stated(
            blocks=blocks,
            key=key,
            columns=columns,
            organisations=organisations or {},
            holder=holder,
            coordinator=coordinator,
            committee=committee,
            threshold=threshold,
            colluders=colluders,
            allow=allow,
            budget=budget,
            approve=approve,
            seed=seed,
            include=include,
            home=home,
            transport=transport,
            timeout=timeout,
            ignore=ignore,
            packages=CATALOGUE.optional if packages is None else packages,
        )
        return cls.from_spec(spec, runs=runs)

    @classmethod
    def from_toml(cls, path: str | Path, *, aligned: bool = True) -> Federation:
        """The federation that a federation.toml describes, or the one that a coordinator.toml serves.

        `aligned=False` is for a federation.toml whose records are about to be lined up.

        Parameters
        ----------
        path : a federation.toml or a coordinator.toml.
        aligned : False before `Align` has lined the records up.

        Returns
        -------
        A federation to use as a context manager.
        """
        if CoordinatorFile.is_one(Path(path)):
            return cls.serve(CoordinatorFile.from_toml(Path(path)), origin=str(Path(path).absolute()))
        spec, runs = Spec.from_toml(Path(path))
        return cls.from_spec(spec, runs=runs, origin=str(Path(path).absolute()), aligned=aligned)

    @classmethod
    def serve(cls, file: CoordinatorFile, *, origin: str | None = None, patience: float = 120.0) -> Federation:
        """Serve on the network and wait for every member of the consortium to dial in.

        The size of the cohort is what all members have pinned; 1 before the first alignment.

        Parameters
        ----------
        file : the coordinator.toml, read.
        origin : its path, for run folders.
        patience : seconds to wait for the members.

        Returns
        -------
        The federation of the members that have dialled in.
        """
        from colonnade.federation.transports.network import Network

        agreed = Consortium.from_toml(file.consortium, authority=file.credentials / AUTHORITY)
        network = Network(
            agreed.roster.names,
            address=file.address,
            folder=file.credentials,
            revoked=file.revoked,
            members=ConsortiumFile.from_toml(file.consortium).certificates,
        )
        try:
            network.wait_for(agreed.roster.names, patience)
            return cls.over(network, file, agreed, origin=origin)
        except BaseException:
            network.close()
            raise

    @classmethod
    def over(
        cls, network: Transport, file: CoordinatorFile, agreed: Consortium, *, origin: str | None = None
    ) -> Federation:
        """The federation of a consortium whose members have dialled in.

        Parameters
        ----------
        network : the connections.
        file, agreed : coordinator.toml and consortium.toml, read.
        origin : the path of the first, for run folders.

        Returns
        -------
        A federation.
        """
        federation = cls(
            transport=network,
            facts=agreed.facts(1),
            roster=agreed.roster,
            runs=file.runs,
            seed=file.seed,
            origin=origin,
            timeout=file.timeout,
            remarks=["Every member runs on its own machine; records were lined up by a private alignment."],
            signer=Signer(file.credentials),
        )
        hello = Request(kind="hello", arguments={})
        sizes = {party: federation._say(party, hello)["n"] for party in network.parties}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{party} {size}" for party, size in sizes.items())
            raise RosterError(f"the members have pinned cohorts of different sizes ({listed}); align again.")
        federation.facts = agreed.facts(next(iter(sizes.values())))
        return federation

    @classmethod
    def from_spec(
        cls, spec: Spec, *, runs: str | Path | None = None, origin: str | None = None, aligned: bool = True
    ) -> Federation:
        """`aligned=False` opens the parties before their records are lined up: only `Align` makes sense on it.

        Parameters
        ----------
        spec : what `Federation.local` is given.
        runs, origin : the folder of run folders, and the file that it came from.
        aligned : False before `Align` has lined the records up.

        Returns
        -------
        A federation.
        """
        scratch: tempfile.TemporaryDirectory[str] | None = None
        home = spec.home
        if home is None:
            scratch = tempfile.TemporaryDirectory(prefix="colonnade-", ignore_cleanup_errors=True)
            home = Path(scratch.name) / "home"
        transport, facts, roster = set_up(spec, Path(home), aligned=aligned)
        federation = cls(
            transport=transport,
            facts=facts,
            roster=roster,
            runs=Path(runs) if runs is not None else Path(home).parent / "runs",
            seed=spec.seed,
            origin=origin,
            timeout=spec.timeout,
            remarks=_about_keys(spec, Path(home), aligned),
        )
        federation._scratch = scratch
        federation._allowed = spec.allow
        return federation

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the transport; without `runs`, the run folders go too."""
        self._closed = True
        self.transport.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def handshake(self) -> None:
        """Every party is there, runs the same version, and has pinned the same roster and facts."""
        if self._closed:
            raise RunError(
                "this federation is closed; open it again, and run jobs before it closes (inside its `with`)."
            )
        if self._greeted:
            return
        # On the network, each party must still have the ledger that it had at its newest run (see `recovery`).
        heads = newest_heads(self.runs) if self._signer is not None else {}
        kept: dict[str, Head] = {}
        for party in self.transport.parties:
            reply = self._say(party, Request(kind="hello", arguments=_greeting(heads.get(party))))
            if reply["version"] != colonnade.__version__:
                raise VersionMismatch(
                    f"party {party!r} runs Colonnade {reply['version']}, the coordinator {colonnade.__version__};"
                    " install the same version."
                )
            if reply["party"] != party:
                raise PartyLost(f"{reply['party']!r} answered in place of {party!r}; check the transport.")
            if reply["roster"] != self.roster.fingerprint or reply["facts"] != self.facts.fingerprint:
                raise RosterError(f"party {party!r} has pinned another roster or other facts; align and pin again.")
            for other, head in longest_told(reply.get("heads"), self.roster).items():
                kept[other] = max(kept.get(other, Head(0, "")), head, key=lambda known: known.rows)
        # The other members remember too, if run folders are lost.
        for party, head in kept.items() if self._signer is not None else ():
            if party in self.transport.parties and head.rows > heads.get(party, Head(0, "")).rows:
                self._say(party, Request(kind="hello", arguments=_greeting(head)))
        self._greeted = True

    def _say(self, party: str, request: Request) -> Any:
        reply = Reply.decode(self.transport.exchange(party, request.encode(), timeout=self.timeout))
        if reply.error:
            raise refusal(self.transport, party, reply)
        return reply.value

    def plan(self, method: Method[Any]) -> Plan:
        """All costs and messages of a method, before any data is touched. `run` takes the plan that was read.

        Parameters
        ----------
        method : a method with its options, such as `co.Describe(epsilon=1.0)`.

        Returns
        -------
        A `Plan`: print it, ask its `total()`, or hand it to `run`.
        """
        if not isinstance(method, Method):
            raise BadArguments(f"{method!r} is no method with its options; write colonnade.Describe(epsilon=1.0), say.")
        self.facts.confirmed()
        check_installed(method.needed(), method.name)
        return method.plan(self.facts, self.roster)

    def check(self, plan: Plan) -> None:
        """Would every party accept this plan? Nothing is reserved; a refusal is raised.

        Parameters
        ----------
        plan : what `plan` has returned.
        """
        self.handshake()
        arguments = proposal(plan, self.roster, self.facts, self.seed)
        if self._signer is not None:
            arguments["requester"] = self._signer.sign("", arguments)
        request = Request(kind="check", arguments=arguments)
        asked = [party for party in self.transport.parties if any(party in stage.costs for stage in plan.stages)]
        refusals: list[ColonnadeError] = []
        with ThreadPoolExecutor(max_workers=max(1, len(asked))) as pool:
            for answer in [pool.submit(self._say, party, request) for party in asked]:
                try:
                    answer.result()
                except UnboundedNotAllowed as error:
                    refusals.append(error)
        if refusals:
            raise self._not_allowed(plan, refusals)

    def _not_allowed(self, plan: Plan, refusals: Sequence[ColonnadeError]) -> UnboundedNotAllowed:
        """Every name that a party lacks, and the line to paste: it keeps what is allowed already, as it takes the place
        of the line before."""
        leaves = {
            str(leaf["name"]): str(leaf["discloses"])
            for cost in plan.costs()
            for leaf in cost.leaves()
            if leaf.unbounded
        }
        sentence = " ".join(map(str, refusals))
        lacking = [name for name in leaves if f'"{name}"' in sentence] or list(leaves)
        names = ", ".join(f'"{name}"' for name in dict.fromkeys((*self._allowed, *leaves)))
        shown = "; ".join(f"{name}: {leaves[name]}" for name in lacking)
        where = (
            f"each party that accepts this writes allow = [{names}] under [policy] in its party.toml, with what stands"
            " there already"
            if self._signer is not None
            else f"write allow = [{names}] at the top of federation.toml, or give Federation.local allow=[{names}]"
        )
        who = "1 party refuses" if len(refusals) == 1 else f"{len(refusals)} parties refuse"
        return UnboundedNotAllowed(
            f"{who} what has no privacy bound and is not allowed there ({shown}); {where}; or choose a private method."
        )

    @contextlib.contextmanager
    def open(
        self, plan: Plan, *, name: str | None = None, progress: Callable[[Progress], None] | None = None
    ) -> Iterator[Job]:
        """A job for a plan that every party accepts; its run folder is made only then.

        Parameters
        ----------
        plan : what `plan` has returned.
        name : of the run folder; one is made of the method and the time by default.
        progress : called after every round with how far the job is; a notebook shows a line by itself.

        Returns
        -------
        A context manager whose value asks the plan's stages.
        """
        self.check(plan)
        run = RunFolder.create(self.runs, plan, federation=self._origin, seed=self.seed, name=name)
        with self._job(plan, run, progress) as job:
            yield job

    @contextlib.contextmanager
    def _job(self, plan: Plan, run: RunFolder, progress: Callable[[Progress], None] | None) -> Iterator[Job]:
        with self._failing(plan, run, progress) as job:
            job.propose()
            yield job
            job.finish()

    def _finished(self, run: RunFolder, progress: Callable[[Progress], None] | None) -> None:
        """Close a job whose procedure has ended: parties that have closed it have forgotten their replies."""
        with self._failing(run.plan(), run, progress) as job:
            job.finish()

    @contextlib.contextmanager
    def _failing(self, plan: Plan, run: RunFolder, progress: Callable[[Progress], None] | None) -> Iterator[Job]:
        """A job whose error is noted in its run folder; a notebook shows its progress."""
        line = notebook_line(plan.method) if progress is None else None
        job = Job(
            plan=plan,
            run=run,
            transport=self.transport,
            facts=self.facts,
            roster=self.roster,
            timeout=self.timeout,
            progress=progress or line,
            signer=self._signer,
        )
        try:
            yield job
        except BaseException as error:
            job.fail(error)
            raise
        finally:
            job.release()
            if line is not None:
                line.end()

    def run(
        self,
        planned: Method[Any] | Plan,
        *,
        name: str | None = None,
        progress: Callable[[Progress], None] | None = None,
        sure: bool = False,
    ) -> tuple[Any, RunFolder]:
        """Propose a plan (that of a method, or the very one that was confirmed), run it, write the result, close.

        That of a method is not run if it says that it will not work, unless one is `sure`.

        Parameters
        ----------
        planned : a method, or a plan that was read.
        name : of the run folder; one is made of the method and the time by default.
        progress : called after every round with how far the job is; a notebook shows a line by itself.
        sure : run a method also if its plan says that it will not work.

        Returns
        -------
        (the result, its run folder).
        """
        plan = planned if isinstance(planned, Plan) else self.plan(planned)
        if plan.hopeless and plan is not planned and not sure:
            raise NotEstimable(f"{plan.hopeless} Not run: nothing was spent; sure=True runs it all the same.")
        if plan.run is None:
            raise RunError("a plan that was read from a file cannot run; make it with `federation.plan(method)`.")
        with self.open(plan, name=name, progress=progress) as job:
            result = _result(plan, job)
            result.write(job.run)
        return _returned(result, job), job.run

    def resume(self, path: str | Path, *, progress: Callable[[Progress], None] | None = None) -> tuple[Any, RunFolder]:
        """Continue an interrupted run: what was answered is replayed byte for byte, nothing is debited twice.

        A run whose result is written and that only has to be closed at some parties is closed; its result is None, and
        in the run folder.

        Parameters
        ----------
        path : the run folder.
        progress : called after every round with how far the job is; a notebook shows a line by itself.

        Returns
        -------
        (the result, its run folder).
        """
        run = RunFolder.open(Path(path))
        described = run.job
        if described["state"] == "done":
            raise RunError(f"{path} is finished; open its report, or start a new run.")
        if described["version"] != colonnade.__version__:
            raise VersionMismatch(
                f"{path} was started by Colonnade {described['version']}; resume it with that version, not"
                f" {colonnade.__version__}."
            )
        if described.get("withdrawn"):
            raise RunError(f"{path} was refused before anything was spent, and is withdrawn; start a new run.")
        if described.get("closing"):
            self._finished(run, progress)
            return None, run
        plan = self.plan(CATALOGUE.make(described["method"], described["options"]))
        assert plan.run is not None
        if plan.fingerprint != run.plan().fingerprint:
            raise RunError(f"the facts have changed since {path} was planned; start a new run.")
        self.handshake()
        run.update(state="running", resumed=time.time())
        with self._job(plan, run, progress) as job:
            result = _result(plan, job)
            result.write(run)
        return _returned(result, job), run

    def ask(self, step: Step, *, parties: Sequence[str] | None = None, **arguments: Any) -> dict[str, Any]:
        """One step as a job of its own: {party: value}, all parties in parallel. Parties load no method for it: the
        step is in a package that their configuration names.

        Parameters
        ----------
        step : one that the parties' installations have registered.
        parties : who is asked; all that own data by default.
        arguments : the step's own.

        Returns
        -------
        {party: value}.
        """
        wanted = tuple(parties) if parties is not None else self.facts.parties
        single = stage(
            step.name.rpartition(".")[2],
            step,
            {party: [arguments] for party in wanted},
            facts=self.facts,
            roster=self.roster,
            discloses=f"the answer of {step.name}",
        )
        with self.open(plan_of_steps([single])) as job:
            return job.ask(single)


def _result(plan: Plan, job: Job) -> Result:
    """What the procedure makes of the releases. If they support no estimate, the result says so, and is in the run
    folder like any other."""
    assert plan.run is not None

    def none(error: Exception) -> NoEstimate:
        return NoEstimate(plan.method, error, job.released, simulated=job.simulated)

    try:
        return plan.run(job)
    except NotEstimable as error:
        return none(error)
    except BadArguments as error:  # of options that do not fit what the releases show; a party's refusal stays one
        if error is job.refusal:
            raise
        return none(error)
    except Exception as error:
        if job.spent and not isinstance(error, ColonnadeError):
            # The run can be resumed by a version that has the mistake no more. Until then, what was paid for is there.
            none(error).write(job.run)
        raise


def _returned(result: Result, job: Job) -> Result:
    """An estimate, or none if privacy was spent for it. What cost no privacy budget is simply an error."""
    if isinstance(result, NoEstimate) and not job.spent:
        raise result.cause
    return result


def _greeting(head: Head | None) -> dict[str, Any]:
    """What a party is told when it is greeted: the head that its ledger must contain."""
    return {} if head is None else {"head": {"rows": head.rows, "hash": head.hash}}


def _about_keys(spec: Spec, home: Path, aligned: bool) -> list[str]:
    """How the records were lined up, for every report."""
    if not aligned:
        return []
    if aligned_privately(spec, home):
        return ["Record keys were aligned privately; alignment/claim.md says who learned what."]
    return ["Record keys were joined in the clear by the operator of this federation."]
