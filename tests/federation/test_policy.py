"""A party's policy: what it accepts by itself, what waits for the operator, and what nobody may ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colonnade.completion.method import Complete
from colonnade.errors import BadArguments, BudgetExceeded, ColumnNotOffered, NotApproved, SchemaError, UnsafeRequest
from colonnade.federation.config import PartyFile
from colonnade.federation.coordinator import Federation
from colonnade.federation.home import prepare
from colonnade.federation.job import proposal
from colonnade.federation.messages import Reply, Request
from colonnade.federation.party import Party
from colonnade.federation.plan import Plan
from colonnade.federation.policy import Policy, operator
from colonnade.federation.requester import Signer
from colonnade.federation.stage import Stage
from colonnade.federation.transports.certificates import AUTHORITY, CERTIFICATE, make_authority, make_request, sign
from colonnade.federation.transports.embedded import Embedded
from colonnade.federation.workplace import Work
from colonnade.privacy.ledger import Budget
from colonnade.privacy.randomness import SystemRandomness
from colonnade.secure.sealed import Identity
from colonnade.statistics.cells import cells
from colonnade.statistics.describe import CellCounts, Describe
from colonnade.statistics.secure_sum import PresenceTotal
from support.consortium import Consortium
from support.small import COLUMNS, three_parties


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with three_parties(tmp_path) as made:
        yield made


def clinic(federation: Federation, **rules: Any) -> Party:
    """The clinic, with this policy from now on."""
    assert isinstance(federation.transport, Embedded)
    here = federation.transport["clinic"]
    here.policy = Policy(**{"approve": "auto", **rules})
    here.approvals = replace(here.approvals, policy=here.policy)
    return here


def proposed(here: Party, federation: Federation, plan: Plan, job: str = "job", signer: Signer | None = None) -> Reply:
    arguments = proposal(plan, federation.roster, federation.facts, None)
    if signer is not None:
        arguments["requester"] = signer.sign(job, arguments)
    return Reply.decode(here.handle(Request(kind="propose", job=job, arguments=arguments).encode()))


def described(federation: Federation, *columns: str) -> Plan:
    return federation.plan(Describe(epsilon=1.0, columns=columns or None))


# --- methods ----------------------------------------------------------------------------------------------


def test_a_method_outside_the_list_waits(federation: Federation) -> None:
    plan = described(federation)
    assert proposed(clinic(federation, methods=("describe",)), federation, plan).value["state"] == "approved"
    here = clinic(federation, methods=("pca",))
    assert proposed(here, federation, plan, "second").value["state"] == "waiting"
    assert {row.body["job"] for row in here.ledger.chain.rows()} == {"job"}, "a job that waits reserves nothing"


@pytest.mark.parametrize("forgery", ["another step", "more requests", "unreadable options"])
def test_a_plan_that_borrows_a_methods_name_is_refused(federation: Federation, forgery: str) -> None:
    plan = described(federation)
    first, *others = plan.stages
    forged = {
        "another step": replace(plan, stages=(replace(first, step=others[0].step), *others)),
        "more requests": replace(plan, stages=(*plan.stages[:1], _often(others[0]))),
        "unreadable options": replace(plan, options={"epsilon": {}}),
    }[forgery]
    here = clinic(federation, methods=("describe",))
    expected = BadArguments if forgery == "unreadable options" else UnsafeRequest
    assert proposed(here, federation, forged).error == expected.code
    assert not here.ledger.chain.rows()
    assert here.store.job("job") is None


def _often(one: Stage) -> Stage:
    return replace(one, counts={party: count + 1 for party, count in one.counts.items()})


# --- columns ----------------------------------------------------------------------------------------------


def test_a_completion_reads_every_column_and_says_so(federation: Federation) -> None:
    """It would else be approved, and refused at the border when presence is told and paid for."""
    plan = federation.plan(Complete(imputer="mean"))
    assert proposed(clinic(federation, columns=("age",)), federation, plan, "some").value["state"] == "waiting"
    here = clinic(federation, columns=("age", "visits"), allow=("presence", "completion-quality"))
    assert proposed(here, federation, plan, "all").value["state"] == "approved"


def test_only_the_columns_offered_go_without_asking(federation: Federation) -> None:
    here = clinic(federation, columns=("age",))
    assert proposed(here, federation, described(federation, "age", "sued"), "one").value["state"] == "approved"
    assert proposed(here, federation, described(federation, "visits"), "two").value["state"] == "waiting"
    assert proposed(here, federation, described(federation), "three").value["state"] == "waiting", "all columns"


@pytest.mark.parametrize("way", ["chunks", "all chunks", "mapped", "aggregate", "column"])
def test_no_way_to_the_rows_leads_past_the_policy(federation: Federation, way: str) -> None:
    here = clinic(federation)
    counts = CellCounts("age", cells(COLUMNS["age"], bins=2))
    ways: dict[str, Callable[[], Any]] = {
        "chunks": lambda: list(here.chunks(["age"])),
        "all chunks": lambda: list(here.chunks()),
        "mapped": lambda: list(here.mapped(["age"], lambda at, values: len(at))),
        "aggregate": lambda: here.aggregate(["age"], counts),
        "column": lambda: here.column("age"),
    }
    here._work = Work("job", 1, (), SystemRandomness(), offered=None)
    assert ways[way]() is not None, "all declared columns"
    here._work = Work("job", 1, (), SystemRandomness(), offered=("visits",))
    with pytest.raises(ColumnNotOffered, match="age"):
        ways[way]()


def test_a_job_that_reads_more_than_it_said_is_refused_at_the_border(federation: Federation) -> None:
    here = clinic(federation, columns=("age",), methods=("describe",))
    plan = described(federation, "age")
    assert proposed(here, federation, plan).value["state"] == "approved"

    def ask(column: str, job: str, seq: int) -> Reply:
        arguments = {**plan.stage("marginals").requests["clinic"][0], "column": column}
        request = Request(
            kind="ask", job=job, seq=seq, stage="marginals", step="statistics.describe.marginal", arguments=arguments
        )
        return Reply.decode(here.handle(request.encode()))

    refused = ask("visits", "job", 1)
    assert (refused.error, refused.value) == (UnsafeRequest.code, None)
    # The operator's word goes no further than the plan that was approved.
    here = clinic(federation, approve="ask", columns=("age",))
    proposed(here, federation, plan, "approved by hand")
    here.decide("approved by hand", approve=True)
    assert here.store.offered("approved by hand") == ("age",)
    assert ask("visits", "approved by hand", 1).error == UnsafeRequest.code
    assert not ask("age", "approved by hand", 1).error
    assert here.store.decision("job")[0] == "policy"  # type: ignore[index]
    assert here.store.decision("approved by hand")[0] == "operator"  # type: ignore[index]


# --- who may ask ------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    make_authority(tmp_path / "authority", name="Consortium")
    return tmp_path / "authority"


def coordinator(authority: Path, organisation: str, **options: Any) -> Signer:
    folder = authority.parent / organisation
    make_request(folder, name="coordinator", organisation=organisation, hosts=("127.0.0.1",))
    sign(authority, folder / "request.pem", folder / CERTIFICATE, role="coordinator", **options)
    return Signer(folder)


@pytest.fixture
def university_runs(tmp_path: Path) -> Iterator[Federation]:
    with three_parties(tmp_path, coordinator="University") as consortium:
        yield consortium


def test_only_the_coordinator_of_the_roster_may_ask(university_runs: Federation, authority: Path) -> None:
    federation = university_runs
    here = clinic(federation, requesters=("University",))
    here._authority = authority / AUTHORITY
    plan = described(federation)
    university, rival = coordinator(authority, "University"), coordinator(authority, "Rival Ltd")
    assert proposed(here, federation, plan, "one", university).value["state"] == "approved"
    assert proposed(here, federation, plan, "two", rival).error == NotApproved.code
    assert proposed(here, federation, plan, "three").error == UnsafeRequest.code, "nobody signed"
    assert [stored.job for stored in here.store.jobs()] == ["one"]
    here = clinic(federation)  # no rule: the coordinator whose organisation is in the roster, and no other
    assert proposed(here, federation, plan, "four", rival).error == NotApproved.code
    assert proposed(here, federation, plan, "five").error == UnsafeRequest.code
    here = clinic(federation, requesters=("Rival Ltd",))
    assert proposed(here, federation, plan, "neither", university).error == NotApproved.code
    here = clinic(federation, requesters=("University",))
    here._authority = None  # one machine, no certificates: the rule cannot be met
    assert proposed(here, federation, plan, "six", university).error == NotApproved.code


def test_a_signature_is_for_one_job_and_one_plan(university_runs: Federation, authority: Path, tmp_path: Path) -> None:
    federation = university_runs
    here = clinic(federation, requesters=("University",))
    here._authority = authority / AUTHORITY
    university = coordinator(authority, "University")
    good = proposal(described(federation), federation.roster, federation.facts, None)
    other = proposal(described(federation, "age"), federation.roster, federation.facts, None)

    def sent(arguments: dict[str, Any], job: str = "job") -> str:
        return Reply.decode(here.handle(Request(kind="propose", job=job, arguments=arguments).encode())).error

    signed = university.sign("job", good)
    assert sent({**good, "requester": signed}, job="another job") == UnsafeRequest.code
    assert sent({**other, "requester": signed}) == UnsafeRequest.code
    assert sent({**good, "requester": {**signed, "signature": "00"}}) == UnsafeRequest.code
    assert sent({**good, "requester": {**signed, "certificate": "none"}}) == UnsafeRequest.code
    assert sent({**good, "requester": "University"}) == UnsafeRequest.code

    expired = coordinator(authority, "Late University", days=1e-9)
    assert sent({**good, "requester": expired.sign("job", good)}) == UnsafeRequest.code
    make_authority(tmp_path / "elsewhere" / "authority", name="Consortium")
    foreign = coordinator(tmp_path / "elsewhere" / "authority", "University")
    assert sent({**good, "requester": foreign.sign("job", good)}) == UnsafeRequest.code
    member = tmp_path / "member"
    make_request(member, name="court", organisation="University", sealing_key=Identity.generate().public)
    sign(authority, member / "request.pem", member / CERTIFICATE, role="party")
    assert sent({**good, "requester": Signer(member).sign("job", good)}) == UnsafeRequest.code, "a party may not ask"
    assert not here.store.jobs()
    assert not sent({**good, "requester": signed})


# --- cohort, budget, and what an operator may write -------------------------------------------------------


def test_a_small_cohort_waits(federation: Federation) -> None:
    n = federation.facts.n
    assert proposed(clinic(federation, minimum_cohort=n), federation, described(federation)).value["state"] == (
        "approved"
    )
    here = clinic(federation, minimum_cohort=n + 1)
    assert proposed(here, federation, described(federation), "second").value["state"] == "waiting"


def test_the_operator_is_bound_by_the_budget_that_party_toml_has_now(tmp_path: Path) -> None:
    with three_parties(tmp_path, approve="ask", budget=Budget(epsilon=0.5, delta=1e-6)) as federation:
        assert isinstance(federation.transport, Embedded)
        here = federation.transport["clinic"]
        plan = described(federation, "age")
        assert proposed(here, federation, plan).value["state"] == "waiting"
        home = tmp_path / "home" / "clinic"
        with operator(home) as desk, pytest.raises(BudgetExceeded):
            desk.decide("job", approve=True)
        assert here.store.job("job").state == "waiting"  # type: ignore[union-attr]
        with operator(home, policy=Policy(budget=Budget(epsilon=5.0, delta=1e-6))) as desk:
            desk.decide("job", approve=True)
        assert here.store.job("job").state == "approved"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ('approve = "always"', "approve in policy in .* must be 'auto' or 'ask', not 'always'"),
        ('methods = "describe"', r"methods in policy in .* is a list; write \['describe'\]"),
        ('methods = ["descirbe"]', "does not have.*Did you mean 'describe'"),
        ("allow = [1]", "allow in policy in .* a text, not 1"),
        ("minimum_cohort = 0", "a number from 1"),
        ("minimum_cohort = true", "must be an integer, not True"),
        ('askers = ["University"]', "has no field 'askers'.*Did you mean 'requesters'"),
        ("budget = { epsilon = 1.0 }", "a table of its own"),
        ("[budgets]", "has no field 'budgets'.*Did you mean 'budget'"),
        ("[budget]\nepsilon = 1.0\nperiod = 30", "has no field 'period'.*Did you mean 'period_days'"),
    ],
)
def test_a_policy_with_a_slip_is_refused(tmp_path: Path, rules: str, says: str) -> None:
    file = tmp_path / "party.toml"
    file.write_text(f'consortium = "consortium.toml"\nname = "clinic"\n[policy]\n{rules}\n')
    with pytest.raises(SchemaError, match=says):
        PartyFile.from_toml(file)


def test_a_policy_survives_its_file() -> None:
    rules = Policy(
        approve="auto",
        methods=("describe",),
        columns=("age",),
        requesters=("University",),
        allow=("alignment",),
        budget=Budget(epsilon=1.0, period_days=30),
        minimum_cohort=50,
    )
    assert Policy.from_dict(rules.to_dict()) == rules
    assert Policy.from_dict(Policy().to_dict()) == Policy()


def test_every_rule_can_be_written_into_party_toml(tmp_path: Path) -> None:
    file = tmp_path / "party.toml"
    file.write_text(
        'consortium = "consortium.toml"\nname = "clinic"\nsource = "clinic.csv"\n[policy]\napprove = "auto"\n'
        'methods = ["describe"]\ncolumns = ["age"]\nrequesters = ["University"]\nallow = ["alignment"]\n'
        "minimum_cohort = 50\n[budget]\nepsilon = 1.0\nperiod_days = 30\n"
    )
    assert PartyFile.from_toml(file).policy == Policy(
        approve="auto",
        methods=("describe",),
        columns=("age",),
        requesters=("University",),
        allow=("alignment",),
        minimum_cohort=50,
        budget=Budget(epsilon=1.0, period_days=30),
    )
    file.write_text(file.read_text().replace("requesters", "requester"))
    with pytest.raises(SchemaError, match="Did you mean 'requesters'"):
        PartyFile.from_toml(file)


def test_a_policy_offers_no_column_that_is_not_declared(tmp_path: Path) -> None:
    made = Consortium(tmp_path, n=200)
    file = made.root / "credit" / "party.toml"
    file.write_text(file.read_text().replace("[policy]", '[policy]\ncolumns = ["roa", "salary"]'))
    with pytest.raises(SchemaError, match="offers 'salary'"):
        prepare(PartyFile.from_toml(file))


# --- budgets ----------------------------------------------------------------------------------------------


def test_a_budget_counts_only_noise_that_the_roster_s_colluders_do_not_know(tmp_path: Path) -> None:
    """A job states for which view its noise was made. That is no reason for a party to count less than its own roster
    says: another party that knows its part of the noise is not bound by what a job states."""
    budget = Budget(epsilon=1.0, delta=1e-6)
    with three_parties(tmp_path, budget=budget) as federation:
        server = PresenceTotal(epsilon=1.0, delta=1e-6, view="server")
        assert federation.plan(server).total().epsilon <= 1.0
        with pytest.raises(BudgetExceeded):
            server.fit(federation)
        PresenceTotal(epsilon=1.0, delta=1e-6, view="client").fit(federation)
    with three_parties(tmp_path / "without") as federation:
        _, run = federation.run(server)
        here = clinic(federation).ledger
        assert here.spent(delta=1e-6).epsilon > 1.0
        assert [leaf["colluders"] for leaf in here.debited(run.job["job"]).leaves()] == [1]
        here.verify()
