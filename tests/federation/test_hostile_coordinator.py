"""A coordinator that departs from the protocol, alone or with one share holder that shows it its mail.

Each attack once read data of people whose ledger showed an epsilon below 1. Here it is refused, and it is shown to be
an attack: with all of its checks taken away it reads the data again, and each of these checks alone stops it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from colonnade.data.column import Column, Columns
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Mail, Reply
from colonnade.federation.plan import Plan
from colonnade.papers.fedpsg.method import FedPSG
from colonnade.papers.sqm.logistic import SQMLogistic
from colonnade.privacy.ledger import Budget
from colonnade.secure.field import BATCH_ROWS
from colonnade.secure.shamir import lagrange_weights, reconstruct
from colonnade.statistics.circuit import CircuitStages
from colonnade.statistics.describe import Describe
from colonnade.statistics.moments import MomentComputation, Moments
from colonnade.statistics.tables import Tables
from support.hostile import VERIFICATION, Hostile, Refused, disarm, letters, with_tag
from support.plans import plan_of_stages

BUDGET = Budget(epsilon=1.0, delta=1e-6)
Attack = Callable[[Hostile], Any]


@contextmanager
def federation(root: Path, blocks: dict[str, pd.DataFrame], columns: Columns, **options: Any) -> Iterator[Federation]:
    stated = {"budget": BUDGET, "home": root / "home", "runs": root / "runs", **options}
    with Federation.local(blocks, key="id", columns=columns, **stated) as parties:
        yield parties


def each_alone(*checks: str) -> pytest.MarkDecorator:
    """`off`: all of the checks but one, and last all of them."""
    cases = [tuple(other for other in checks if other != check) for check in checks]
    return pytest.mark.parametrize("off", [*cases, checks], ids=[*(f"only: {check}" for check in checks), "none"])


def outcome(attack: Attack, hostile: Hostile) -> Any:
    """What an attack reads; None if it is refused."""
    try:
        return attack(hostile)
    except Refused:
        return None


def padded(plan: Plan, *names: str, by: int = 1) -> Plan:
    """The plan with more requests of some stages."""
    stages = [
        replace(stage, counts={party: count + by for party, count in stage.counts.items()})
        if stage.name.endswith(names)
        else stage
        for stage in plan.stages
    ]
    return replace(plan, stages=tuple(stages))


# --- two dealings of the same rows ----------------------------------------------------------------------------------


CHUNK = 12
"""Records whose shares travel together."""


def tables_of_two(root: Path) -> Any:
    """A has ten categories, B a secret, C holds shares; C shows its mail."""
    rng = np.random.default_rng(1)
    n = 2 * CHUNK
    blocks = {
        "A": pd.DataFrame({"id": range(n), "a": rng.integers(0, 10, n).astype(str)}),
        "B": pd.DataFrame({"id": range(n), "secret": rng.choice(["no", "yes"], n)}),
        "C": pd.DataFrame({"id": range(n), "c": rng.choice(["x", "y"], n)}),
    }
    columns = Columns(
        [
            Column(name="a", kind="categorical", categories=tuple(map(str, range(10)))),
            Column(name="secret", kind="categorical", categories=("no", "yes")),
            Column(name="c", kind="categorical", categories=("x", "y")),
        ]
    )
    return federation(root, blocks, columns)


def two_chunks(hostile: Hostile, *, verify: bool = True) -> CircuitStages:
    layout = Tables(tables=(("a", "secret"),), epsilon=1.0, verify=verify).layout(hostile.facts, hostile.roster)
    return CircuitStages(replace(layout, records=CHUNK), "client")


def equivocate(hostile: Hostile, *, verify: bool) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """(candidates for B's secrets in one chunk, the truth): A deals this chunk twice, and one holder uses each.

    With the shares F1, F2 that C was sent, the opening is T + k sum_r (F1_r - F2_r) g_r + noise, for B's unknown g.
    """
    stages = two_chunks(hostile, verify=verify)
    layout: Any = stages.layout
    hostile.propose(padded(plan_of_stages("tables", stages.stages), "share rows"))
    first = letters(hostile.ask_all(stages.share, 0))
    dealt = {name: hostile.ask(name, stages.share, 1, mail=first) for name in "ABC"}
    again = hostile.ask("A", stages.share, 1)
    ends = {"ending": ": rows 1", "recipient": "C"}
    f1 = hostile.read(with_tag(dealt["A"].mail, sender="A", **ends))
    f2 = hostile.read(with_tag(again.mail, sender="A", **ends))
    g = hostile.read(with_tag(dealt["B"].mail, sender="B", **ends))
    compared = letters(hostile.ask_all(stages.compare, mail=letters(dealt)))
    (opened,) = hostile.opened(stages, mail=compared)

    (p,) = layout.field.primes
    place = {holder: number + 1 for number, holder in enumerate(hostile.roster.committee)}
    weights = dict(zip(place, lagrange_weights(p, list(place.values())), strict=True))
    used = {"A": f2[0].astype(object), "B": f1[0].astype(object), "C": f1[0].astype(object)}
    scaled = {holder: place[holder] * pow(place["C"], -1, p) % p for holder in place}
    joined = sum(weights[holder] * opened[holder][0].astype(object) for holder in place) % p
    known = sum(weights[holder] * scaled[holder] ** 2 * (g[0].astype(object).T @ used[holder]) for holder in place)
    slopes = sum(weights[holder] * (1 - scaled[holder]) * scaled[holder] * used[holder] for holder in place) % p
    target = ((joined.reshape(known.shape) - known) % p)[1]  # of the category "yes"
    candidates = np.array(list(product((0, 1), repeat=CHUNK)), dtype=np.int64)
    for cell in range(10):
        rest = (int(target[cell]) - candidates.astype(object) @ slopes[:, cell]) % p
        near = np.minimum(rest, p - rest) < 8 * math.sqrt(2 * layout.mus[0]) + 2 * CHUNK
        candidates = candidates[near.astype(bool)]
    start, stop = layout.chunks[1]
    return list(candidates), (hostile.party("B").column("secret")[start:stop] == 1).astype(np.int64)


@each_alone("genuine plan", "bound arguments", "one message under a tag", "agreement of holders", VERIFICATION)
def test_holders_cannot_be_given_two_dealings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: tuple[str, ...]
) -> None:
    with tables_of_two(tmp_path) as parties:
        hostile = Hostile(parties, "C")
        disarm(monkeypatch, *off)
        read = outcome(partial(equivocate, verify=VERIFICATION not in off), hostile)
        if len(off) < 5:
            assert read is None
        else:
            (secret,), truth = read
            assert secret.tolist() == truth.tolist()
            assert hostile.party("B").ledger.spent(delta=1e-6).epsilon < 1.0


def test_no_other_chunks_than_the_plan_has(tmp_path: Path) -> None:
    """A plan of many small chunks, of which larger ones are asked: the way to more requests than a layout needs."""
    with tables_of_two(tmp_path) as parties:
        hostile = Hostile(parties, "C")
        stages = two_chunks(hostile)
        many = CircuitStages(replace(stages.layout, records=1), "client")  # type: ignore[type-var]
        hostile.propose(plan_of_stages("tables", many.stages))
        larger = {"layout": stages.layout.to_dict()}
        for number in (0, 1):
            with pytest.raises(Refused, match="unsafe-request"):
                hostile.ask("A", many.share, number, changed=larger)
        hostile.ask("A", many.share, 0)
        with pytest.raises(Refused, match="unsafe-request"):
            hostile.ask("A", many.share, 0)
        assert hostile.debited("A") == 1


def test_mail_of_one_job_is_no_mail_of_another(tmp_path: Path) -> None:
    """Two jobs on the same data and cohort: a dealing of the one cannot take the place of a dealing of the other."""
    with tables_of_two(tmp_path) as parties:
        hostile = Hostile(parties, "C")
        method = Tables(tables=(("a", "secret"),), epsilon=0.3)
        stages = method.procedure(hostile.facts, hostile.roster)
        plan = method.plan(hostile.facts, hostile.roster)
        mail = {}
        for job in ("first", "second"):
            hostile.propose(plan, job=job)
            mail[job] = hostile.ask_all(stages.share, job=job)
        mixed = {**mail["first"], "A": mail["second"]["A"]}
        with pytest.raises(Refused, match=r"seal-broken|secure|party-lost"):
            hostile.ask("B", stages.compare, job="first", mail=letters(mixed))
        renamed = {
            **mail["first"],
            "A": Reply(mail=[_as_of(mail["second"]["A"], mail["first"]["A"], k) for k in range(2)]),
        }
        with pytest.raises(Refused, match=r"seal-broken|secure|party-lost"):
            hostile.ask("C", stages.compare, job="first", mail=letters(renamed))


def _as_of(later: Reply, first: Reply, number: int) -> Mail:
    """A letter of one job in the envelope of another."""
    return replace(first.mail[number], sealed=later.mail[number].sealed)


def test_the_same_plan_under_another_name_is_another_job(tmp_path: Path) -> None:
    """It needs a budget of its own; and what one job has dealt, the other has not."""
    with tables_of_two(tmp_path) as parties:
        hostile = Hostile(parties, "C")
        method = Tables(tables=(("a", "secret"),), epsilon=0.7)
        plan = method.plan(hostile.facts, hostile.roster)
        hostile.propose(plan)
        with pytest.raises(Refused, match="budget-exceeded"):
            hostile.propose(plan, job="job again")
        with pytest.raises(Refused, match="not-approved"):
            hostile.ask("A", plan.stages[0], job="job again")


# --- later chunks of moments, and noise -----------------------------------------------------------------------------


def deal_twice(hostile: Hostile) -> tuple[Reply, Reply]:
    """The second chunk of A's rows in moments, dealt twice."""
    layout = Moments(epsilon=0.9, presence="secret").layout(hostile.facts, hostile.roster)
    stages = MomentComputation(replace(layout, records=BATCH_ROWS), "client")
    hostile.propose(padded(plan_of_stages("moments", stages.stages), "share more rows"))
    first = letters(hostile.ask_all(stages.share))
    more = stages.share_more
    return hostile.ask("A", more, 0, mail=first), hostile.ask("A", more, 0)


@each_alone("genuine plan", "bound arguments", "one message under a tag")
def test_later_chunks_are_dealt_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: tuple[str, ...]) -> None:
    n = 2 * BATCH_ROWS
    rng = np.random.default_rng(0)
    blocks = {name: pd.DataFrame({"id": range(n), name.lower(): rng.uniform(size=n)}) for name in "ABC"}
    columns = Columns([Column(name=name, kind="continuous", lower=0.0, upper=1.0) for name in "abc"])
    with federation(tmp_path, blocks, columns) as parties:
        disarm(monkeypatch, *off)
        read = outcome(deal_twice, Hostile(parties))
        if len(off) < 3:
            assert read is None
        else:
            first, second = read
            assert [letter.tag for letter in first.mail] == [letter.tag for letter in second.mail]


def open_twice(hostile: Hostile, *, verify: bool) -> tuple[NDArray[Any], NDArray[Any], float]:
    """(one opening, the same with other noise, its stated deviation): each by half of six holders."""
    method = Moments(epsilon=0.99, presence="secret", tile=3, verify=verify)
    layout = replace(method.layout(hostile.facts, hostile.roster), opening=9)
    stages = MomentComputation(layout, "client")
    plan = plan_of_stages("moments", stages.stages)
    hostile.propose(padded(plan, "noise", by=len(layout.rounds)))
    names = hostile.roster.committee
    compared = letters(hostile.ask_all(stages.compare, 0, mail=letters(hostile.ask_all(stages.share))))
    openings = [] if verify else hostile.opened(stages, mail=compared)
    for number in range(1, len(layout.rounds)):
        waiting, compared = (compared if verify else []), []
        for half in (names[:3], names[3:]):
            noise = letters(hostile.ask_all(stages.add_noise, number - 1, mail=waiting))
            compared += letters({name: hostile.ask(name, stages.compare, number, mail=noise) for name in half})
            waiting = []
        openings += [] if verify else hostile.opened(stages, mail=compared, numbers=(number,))
    if verify:
        openings = hostile.opened(stages, mail=compared, numbers=range(len(layout.rounds)))
    copies: list[list[NDArray[Any]]] = [[], []]
    for opened in openings[1:]:
        for half, opening in zip((range(3), range(3, 6)), copies, strict=True):
            shares = {place: opened[names[place]] for place in half}
            opening.append(np.ravel(reconstruct(layout.field, shares, degree=2)).astype(float))
    return np.concatenate(copies[0]), np.concatenate(copies[1]), math.sqrt(2 * layout.mu)


@each_alone("genuine plan", "bound arguments", "one message under a tag", "agreement of holders", VERIFICATION)
def test_surplus_holders_do_not_open_with_other_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: tuple[str, ...]
) -> None:
    n, names = 20, tuple("ABCDEF")
    rng = np.random.default_rng(3)
    blocks = {name: pd.DataFrame({"id": range(n), f"x{name}": rng.uniform(size=n)}) for name in names}
    columns = Columns([Column(name=f"x{name}", kind="continuous", lower=0.0, upper=1.0) for name in names])
    with federation(tmp_path, blocks, columns, committee=names) as parties:
        disarm(monkeypatch, *off)
        read = outcome(partial(open_twice, verify=VERIFICATION not in off), Hostile(parties))
        if len(off) < 5:
            assert read is None
        else:
            first, second, sd = read
            assert 0.7 < np.std(first - second) / math.sqrt(2) / sd < 1.3


# --- weights of a gradient ------------------------------------------------------------------------------------------

RECORDS = 10


def different_weights(hostile: Hostile) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """(candidates for B's secrets, the truth): weights for each holder that cancel Z'Z and leave the data times C's
    known shares Z1. With x = the holder's place over C's, a holder has (1 - x) Z + x Z1."""
    method = SQMLogistic(
        response="sick",
        epsilon=0.99,
        sampling=1.0,
        rounds=1,
        gamma=2**8,
        columns=("a1", "secret", "c"),
    )
    stages = method.procedure(hostile.facts, hostile.roster)
    layout = stages.layout
    hostile.propose(method.plan(hostile.facts, hostile.roster))
    committee = hostile.roster.committee
    place = {holder: number + 1 for number, holder in enumerate(committee)}
    column = [feature.name for feature in layout.features].index("secret") + 1

    def chosen(weight: int) -> dict[str, Any]:
        return {"number": 0, "chosen": {"weights": [weight if k == column else 0 for k in range(layout.width)]}}

    modulus = math.prod(layout.field.primes)
    lagrange = {
        holder: math.prod(
            -place[other] * pow(place[holder] - place[other], -1, modulus) for other in place if other != holder
        )
        % modulus
        for holder in place
    }
    x = {holder: place[holder] * pow(place["C"], -1, modulus) % modulus for holder in place}
    weight = {"A": 3, "B": 12, "C": 0}
    assert sum(lagrange[holder] * (1 - x[holder]) ** 2 * weight[holder] for holder in place) % modulus == 0

    agreed = letters(hostile.ask_all(stages.agree))
    dealt = letters(hostile.ask_all(stages.share, mail=agreed, changed=chosen(weight["C"])))
    compared = []
    for holder in committee:
        compared += list(hostile.ask(holder, stages.compare, mail=dealt, changed=chosen(weight[holder])).mail)
    shares = {
        holder: hostile.ask(holder, stages.open, mail=compared, changed=chosen(weight[holder])).value
        for holder in committee
    }

    def integers(residues: NDArray[Any]) -> NDArray[Any]:
        each = zip(residues, layout.field.primes, strict=True)
        return sum(r.astype(object) * (modulus // p) * pow(modulus // p, -1, p) for r, p in each) % modulus

    joined = sum(lagrange[holder] * integers(shares[holder]) for holder in place) % modulus
    tag = next(letter.tag for letter in dealt if letter.tag.endswith(": batch 0"))
    rows = {
        letter.sender: hostile.read(letter) for letter in dealt if letter.recipient == "C" and letter.tag == tag
    } | {"C": hostile.own_part("C", tag)}
    held = integers(np.concatenate([rows[party] for party in layout.parties], axis=2))[:, :-1]
    names = [
        name
        for party in layout.parties
        for name in (["1"] if layout.intercept and party == layout.response_party else [])
        + [feature.name for feature in layout.own_features(party)]
    ]
    j, unit = names.index("secret"), round(layout.gamma / layout.norm)
    linear = sum(lagrange[h] * (1 - x[h]) * x[h] * weight[h] for h in place) % modulus
    square = sum(lagrange[h] * x[h] ** 2 * weight[h] for h in place) % modulus
    rest = (joined - held.T @ (held[:, j] * square)) % modulus  # Z'(Z1 b) + Z1'(Z b) - 2 gamma Z's + noise
    known = held[:, j] * linear % modulus
    c = unit * (2 * hostile.party("C").column("c").astype(object) - 1)
    values = {"1": np.full(RECORDS, layout.intercept_entry, dtype=object), "c": c}
    window = 8 * math.isqrt(2 * layout.mu) + layout.gamma**2 * unit * RECORDS
    candidates = np.array(list(product((0, 1), repeat=RECORDS)), dtype=object)
    for name in ("secret", "1", "c"):
        k = names.index(name)
        slopes = unit * (held[:, k] * linear + (known if name == "secret" else 0))
        base = 0 if name == "secret" else int(values[name] @ known)
        off = (int(rest[k]) - base - (2 * candidates - 1) @ slopes) % modulus
        candidates = candidates[(np.minimum(off, modulus - off) < window).astype(bool)]
    return list(candidates.astype(np.int64)), (hostile.party("B").column("secret") == 1).astype(np.int64)


def binary_blocks() -> tuple[dict[str, pd.DataFrame], Columns]:
    rng = np.random.default_rng(0)
    held = {"A": ("a1", "a2"), "B": ("secret", "sick"), "C": ("c",)}
    blocks = {
        party: pd.DataFrame({"id": range(RECORDS), **{name: rng.integers(0, 2, RECORDS) for name in names}})
        for party, names in held.items()
    }
    listed = [Column(name=name, kind="binary", categories=(0, 1)) for names in held.values() for name in names]
    return blocks, Columns(listed)


@each_alone("layout in the tag")
def test_holders_cannot_be_given_different_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: tuple[str, ...]
) -> None:
    with federation(tmp_path, *binary_blocks()) as parties:
        hostile = Hostile(parties, "C")
        disarm(monkeypatch, *off)
        read = outcome(different_weights, hostile)
        if not off:
            assert read is None
        else:
            candidates, truth = read
            assert truth.tolist() in [candidate.tolist() for candidate in candidates]
            assert len(candidates) <= 4
            assert hostile.party("B").ledger.spent(delta=1e-6).epsilon < 1.0


# --- arguments, columns and recipients ------------------------------------------------------------------------------


def another_column(hostile: Hostile) -> list[int]:
    """The operator approves a histogram of age; the coordinator asks for diagnosis."""
    method = Describe(epsilon=1.0, columns=("age",), marginals="histogram")
    plan = method.plan(hostile.facts, hostile.roster)
    hostile.propose(plan)
    hostile.party("A").decide("job", approve=True)
    changed = {"column": "diagnosis"}
    counts: list[int] = hostile.ask("A", plan.stage("marginals"), changed=changed).value.tolist()
    return counts


@each_alone("bound arguments", "columns of the plan")
def test_an_approved_column_cannot_be_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(1)
    n = 1000
    names = ("none", "hiv", "cancer")
    block = pd.DataFrame({"id": range(n), "age": rng.uniform(0, 100, n), "diagnosis": rng.choice(names, n)})
    columns = Columns(
        [
            Column(name="age", kind="continuous", lower=0.0, upper=100.0),
            Column(name="diagnosis", kind="categorical", categories=names),
        ]
    )
    with federation(tmp_path, {"A": block}, columns, approve="ask") as parties:
        disarm(monkeypatch, *off)
        read = outcome(another_column, Hostile(parties))
        if len(off) < 2:
            assert read is None
        else:
            truth = block["diagnosis"].value_counts().reindex(list(names))
            assert np.abs(np.array(read) - truth.to_numpy()).max() < 60


def raw_labels(label: str) -> Attack:
    """A label that was approved for the data parties, or another column, to a member without data."""

    def attack(hostile: Hostile) -> NDArray[Any]:
        method = FedPSG(imputer="cgain", label="sector", n_correlated=0)
        plan = method.plan(hostile.facts, hostile.roster)
        hostile.propose(plan)
        hostile.party("A").decide("job", approve=True)
        stage = plan.stage("share labels")
        (letter,) = hostile.ask("A", stage, changed={"label": label, "members": ["holder"]}).mail
        return np.asarray(hostile.read(letter))[:, -1].astype(int)

    return attack


@pytest.mark.parametrize("label", ["sector", "diagnosis"])
@each_alone("bound arguments", "recipients")
def test_raw_labels_go_to_no_one_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: tuple[str, ...], label: str
) -> None:
    rng = np.random.default_rng(1)
    n = 12
    blocks = {
        "A": pd.DataFrame(
            {"id": range(n), "sector": rng.choice(["x", "y"], n), "diagnosis": rng.choice(["none", "hiv"], n)}
        ),
        "B": pd.DataFrame({"id": range(n), "b": rng.choice(["x", "y"], n)}),
    }
    columns = Columns(
        [
            Column(name="sector", kind="categorical", categories=("x", "y")),
            Column(name="diagnosis", kind="categorical", categories=("none", "hiv")),
            Column(name="b", kind="categorical", categories=("x", "y")),
        ]
    )
    allow = ("completion-quality", "labels", "presence", "split-training")
    with federation(tmp_path, blocks, columns, holder="University", approve="ask", allow=allow) as parties:
        hostile = Hostile(parties, "holder")
        disarm(monkeypatch, *off)
        read = outcome(raw_labels(label), hostile)
        if len(off) < 2:
            assert read is None
        else:
            assert read.tolist() == (hostile.party("A").column(label) == 1).astype(int).tolist()
