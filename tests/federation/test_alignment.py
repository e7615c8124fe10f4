"""Private alignment through the federation: the same cohort as a join in the clear, and what crosses the border."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from colonnade.alignment import linkage
from colonnade.alignment.method import Align
from colonnade.alignment.session import align
from colonnade.cli.main import app
from colonnade.data.column import Column, Columns
from colonnade.errors import (
    BadArguments,
    EmptyParty,
    KeyProblem,
    SchemaError,
    SealBroken,
    SourceError,
    UnboundedNotAllowed,
    UnsafeRequest,
)
from colonnade.federation.config import Spec, capacity_of
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Progress
from colonnade.federation.stage import Stage
from colonnade.papers import blind_rsa
from colonnade.papers.blind_rsa import BlindRSA
from colonnade.view.blocks import View
from support.small import COLUMNS, three_overlapping_blocks


def spec(tmp_path: Path, **options: Any) -> Spec:
    made = {"blocks": three_overlapping_blocks(), "key": "id", "columns": COLUMNS, "allow": ("alignment",), **options}
    return Spec(home=tmp_path / "home", **made)


def people(federation: Federation) -> dict[int, dict[str, Any]]:
    """{cohort row: {party: key}} as the parties have it. Only a test may put this together."""
    found: dict[int, dict[str, Any]] = {}
    for name in federation.facts.parties:
        party = federation.transport[name]  # type: ignore[index]
        for key, row in zip(party.block.keys.tolist(), party.rows.tolist(), strict=True):
            if row >= 0:
                found.setdefault(row, {})[name] = key
    return found


def in_the_clear(blocks: dict[str, pd.DataFrame], include: str) -> dict[str, set[str]]:
    """{key: who has it} over the cohort, from the blocks."""
    keys = {party: set(frame["id"]) for party, frame in blocks.items()}
    cohort = set().union(*keys.values()) if include == "union" else keys[include]
    return {key: {party for party, held in keys.items() if key in held} for key in cohort}


CASES: list[dict[str, Any]] = [
    {"include": "union"},
    {"include": "union", "matcher": "bank"},
    {"include": "union", "holder": "Judge"},
    {"include": "court"},
    {"include": "union", "parties": 2},
    {"include": "court", "parties": 2},
    {"include": "union", "holder": "Judge", "trust_matcher": True},
    {"include": "court", "holder": "Judge", "trust_matcher": True},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cohort_is_that_of_a_join_in_the_clear(tmp_path: Path, case: dict[str, Any]) -> None:
    wanted = dict(case)
    blocks = three_overlapping_blocks(40)
    blocks = dict(list(blocks.items())[: wanted.pop("parties", 3)])
    matcher, trusted = wanted.pop("matcher", None), wanted.pop("trust_matcher", False)
    described = spec(tmp_path, blocks=blocks, **wanted, **({"allow": ("linkage-unit",)} if trusted else {}))
    result, _ = align(described, matcher=matcher, capacity={"clinic": 50}, trust_matcher=trusted)
    assert result.trusted_matcher == trusted
    truth = in_the_clear(blocks, wanted["include"])
    with Federation.from_spec(described) as federation:
        found = people(federation)
        assert federation.facts.n == result.n == len(truth) == len(found)
        assert {next(iter(held.values())): set(held) for held in found.values()} == truth
        assert all(len(set(held.values())) == 1 for held in found.values())
        assert "privately" in federation.remarks[0]
    # Each party has its exact numbers at home; the matcher's pattern counts are those of the truth.
    for party, frame in blocks.items():
        told = json.loads((tmp_path / "home" / party / "aligned" / "overlap.json").read_text())
        assert told["records"] == len(frame)
        assert told["in_the_cohort"] == sum(party in held for held in truth.values())
        assert ("patterns" in told) == (party == result.matcher)


def test_a_trusted_matcher_is_asked_for_by_name(tmp_path: Path) -> None:
    """A party that allows alignments has not allowed hashes; the plan says what the trust is; only a member without
    data may match."""
    blocks = three_overlapping_blocks(40)
    described = spec(tmp_path, blocks=blocks, holder="Judge")
    with pytest.raises(UnboundedNotAllowed, match="linkage-unit"):
        align(described, trust_matcher=True)
    capacity = dict.fromkeys(blocks, 50)
    with Federation.from_spec(described, aligned=False) as federation:
        plan = federation.plan(Align(capacity=capacity, trust_matcher=True))
        assert "could try names" in plan.notes[0]
        with pytest.raises(BadArguments, match="without data"):
            federation.plan(Align(capacity=capacity, trust_matcher=True, matcher="court"))
    with (
        Federation.from_spec(spec(tmp_path / "three", blocks=blocks), aligned=False) as federation,
        pytest.raises(BadArguments, match="add one to the roster"),
    ):
        federation.plan(Align(capacity=capacity, trust_matcher=True))


def test_hashes_go_in_pieces_that_fit_into_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linkage, "CHUNK", 7)
    described = spec(tmp_path, holder="Judge", allow=("linkage-unit",))
    result, _ = align(described, trust_matcher=True, capacity={"clinic": 90}, epsilon=None)
    assert result.n == len(in_the_clear(described.blocks, "union"))


def test_blind_rsa_gives_the_same_cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys of 2,048 bits, for the time that it takes; two signers, and a union of two."""
    monkeypatch.setattr(blind_rsa.Signer.generate.__func__, "__defaults__", (2048,))  # type: ignore[attr-defined]
    monkeypatch.setitem(blind_rsa.check_modulus.__kwdefaults__, "least_bits", 2048)
    blocks = {party: frame.head(9) for party, frame in three_overlapping_blocks(16).items()}
    for include, parties in (("court", 3), ("union", 2)):
        some = dict(list(blocks.items())[:parties])
        described = spec(tmp_path / include, blocks=some, include=include)
        result, _ = align(described, method=BlindRSA, capacity={"court": 11})
        with Federation.from_spec(described) as federation:
            found = people(federation)
        assert result.n == len(found)
        assert {next(iter(held.values())): set(held) for held in found.values()} == in_the_clear(some, include)
    with pytest.raises(BadArguments, match="with Align"):
        align(spec(tmp_path / "three", blocks=blocks), method=BlindRSA)
    printed = BlindRSA.as_printed(capacity={"a": 5, "b": 7})
    assert (printed.epsilon, printed.normalise) == (None, ())


def test_it_runs_with_a_process_for_each_party(tmp_path: Path) -> None:
    described = spec(tmp_path, transport="processes", include="clinic", seed=4)
    result, _ = align(described, epsilon=None)
    assert result.patterns is None
    assert result.n == 45
    again, _ = align(spec(tmp_path / "embedded", include="clinic", seed=4), epsilon=None)
    assert again.n == 45
    for party in described.blocks:  # under a seed the rows are the same, whatever carries the messages
        one, two = (
            np.load(base / "home" / party / "aligned" / "alignment.npy") for base in (tmp_path, tmp_path / "embedded")
        )
        assert np.array_equal(one, two)


def test_message_sizes_depend_on_the_capacities_alone(tmp_path: Path) -> None:
    """Two federations with other numbers of records, other overlaps and other keys, and the same capacities."""
    structures = []
    for many in (24, 40):
        blocks = three_overlapping_blocks(many, seed=many)
        described = spec(tmp_path / str(many), blocks=blocks, include="court")
        # n is public and may differ; here it is the same, and the other parties have more records than it.
        blocks["court"] = blocks["court"].head(18)
        align(described, capacity=dict.fromkeys(blocks, 60), name="run", epsilon=None)
        with Federation.from_spec(described) as federation:
            transcripts = {}
            for party in blocks:
                (job,) = federation.transport[party].store.jobs()  # type: ignore[index]
                transcripts[party] = federation.transport[party].transcript.structure(job.job)  # type: ignore[index]
        structures.append(transcripts)
    assert structures[0] == structures[1]
    assert any(row[-1] > 60 * 32 for row in structures[0]["clinic"])


def test_each_party_must_allow_it_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnboundedNotAllowed):
        align(spec(tmp_path, allow=()))
    # It did not finish: the keys are not joined in the clear behind anybody's back.
    with pytest.raises(SourceError, match="did not finish"):
        Federation.from_spec(spec(tmp_path))


def test_the_ledger_says_that_an_alignment_has_no_bound(tmp_path: Path) -> None:
    described = spec(tmp_path, include="court")
    method = Align(capacity=dict.fromkeys(described.blocks, 60), include="court", epsilon=0.5)
    with Federation.from_spec(described, aligned=False) as federation:
        plan = federation.plan(method)
        assert all(plan.total(party=party).unbounded == ("alignment",) for party in described.blocks)
        result = method.fit(federation)
    assert Align.from_options(plan.options).options() == method.options()
    # Noise of scale 2 on each count: 100 away from the truth with probability below 4 e^-50.
    assert abs(result.overlap(["court", "bank"]) - 30) < 100
    # The discrete Laplace of scale 2 has variance 2 q / (1 - q)^2 with q = e^-1/2.
    assert result.noise_sd == pytest.approx(np.sqrt(2 * np.exp(-0.5)) / (1 - np.exp(-0.5)))


def test_an_interrupted_alignment_goes_on(tmp_path: Path) -> None:
    """Interrupted after the second round, then resumed from a new federation: done once, debited once."""
    described = spec(tmp_path, include="court")
    method = Align(capacity=dict.fromkeys(described.blocks, 60), include="court")

    def interrupt(now: Progress) -> None:
        if now.rounds == 2:
            raise KeyboardInterrupt

    with Federation.from_spec(described, aligned=False) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(method, name="run", progress=interrupt)
    with Federation.from_spec(described, aligned=False) as federation:
        result, _ = federation.resume(tmp_path / "runs" / "run")
        for party in described.blocks:
            rows = federation.transport[party].ledger.chain.rows()  # type: ignore[index]
            assert sum(row.body["kind"] == "debit" and row.body["phase"] == "blind" for row in rows) == 1
    assert result.n == 45
    with Federation.from_spec(described) as federation:
        assert len(people(federation)) == 45


def forged(planned: Stage, arguments: dict[str, dict[str, Any]]) -> Stage:
    """A stage of the approved plan, asked with other arguments."""
    requests = {party: [asked] for party, asked in arguments.items()}
    costs = {party: planned.costs[party] for party in arguments}
    return replace(planned, requests=requests, costs=costs, counts=dict.fromkeys(arguments, 1))


def test_a_coordinator_cannot_turn_an_approved_alignment_into_another(tmp_path: Path) -> None:
    described = spec(tmp_path, include="court")
    method = Align(capacity=dict.fromkeys(described.blocks, 60), include="court")
    cohort = {"include": "court", "matcher": "court"}
    agreed = {**cohort, "capacity": dict(method.capacity), "normalise": [], "epsilon": 1.0}
    with Federation.from_spec(described, aligned=False) as federation:
        # Another cohort, matched by another party, and other terms: not what was approved.
        others: list[dict[str, Any]] = [{"include": "union", "matcher": "bank"}, {"include": "bank", "matcher": "bank"}]
        others += [{"normalise": ["case"]}, {"epsilon": 2.0}]
        for other in others:
            plan = federation.plan(method)
            with federation.open(plan) as job, pytest.raises(UnsafeRequest):
                job.ask(forged(plan.stage("blind"), {"clinic": {"terms": {**agreed, **other}}}))
        # Different terms for different parties, where borders are bypassed: they do not find each other's lists.
        plan = federation.plan(method)
        terms = {"court": agreed, "bank": agreed, "clinic": {**agreed, "normalise": ["case"]}}
        for party in described.blocks:
            border = federation.transport[party]  # type: ignore[index]
            border._bound = lambda request: (plan.stage(request.stage), 0)
        with federation.open(plan) as job:
            job.ask(forged(plan.stage("blind"), {party: {"terms": asked} for party, asked in terms.items()}))
            with pytest.raises(SealBroken):
                job.ask(forged(plan.stage("raise"), {"court": {"terms": agreed, "hop": 1}}))


def test_rows_of_two_alignments_never_mix(tmp_path: Path) -> None:
    described = spec(tmp_path)
    align(described)
    shutil.copytree(tmp_path / "home" / "bank" / "aligned", tmp_path / "old")
    align(described)
    Federation.from_spec(described).close()
    shutil.rmtree(tmp_path / "home" / "bank" / "aligned")
    shutil.copytree(tmp_path / "old", tmp_path / "home" / "bank" / "aligned")
    with pytest.raises(SourceError, match="align"):
        Federation.from_spec(described)


def test_keys_that_changed_are_not_joined_in_the_clear(tmp_path: Path) -> None:
    described = spec(tmp_path)
    align(described)
    described.blocks["bank"]["id"] = described.blocks["bank"]["id"] + "x"
    with pytest.raises(SourceError, match="colonnade align"):
        Federation.from_spec(described)


def test_what_is_refused(tmp_path: Path) -> None:
    blocks = three_overlapping_blocks()
    with pytest.raises(SchemaError, match="capacity of 10"):
        align(spec(tmp_path), capacity={"bank": 10})
    with pytest.raises(SchemaError, match="nobody"):
        align(spec(tmp_path), capacity={"nobody": 10})
    with pytest.raises(BadArguments, match="no party"):
        align(spec(tmp_path), include="nobody")
    strangers = {**blocks, "bank": blocks["bank"].assign(id=[f"Z{i}" for i in range(45)])}
    with pytest.raises(EmptyParty):
        align(spec(tmp_path, blocks=strangers, include="court"))
    twins = {**blocks, "bank": blocks["bank"].assign(id=[*"aAbB", *(f"Z{i}" for i in range(41))])}
    with pytest.raises(KeyProblem, match=r"'bank': 2 record\(s\) repeat"):
        align(spec(tmp_path, blocks=twins), normalise=("case",))
    assert [capacity_of(n) for n in (1, 9, 99, 101, 45_678, 100_000)] == [1, 9, 99, 110, 46_000, 100_000]


def test_composite_keys_and_normalisation_through_files(tmp_path: Path) -> None:
    """Two files that spell the same people differently; the truth is known by hand."""
    (tmp_path / "columns.toml").write_text(
        Columns([Column(name=name, kind="continuous", lower=0.0, upper=9.0) for name in ("x", "y")]).to_toml()
    )
    (tmp_path / "a.csv").write_text("given,born,x\nJosé,1970,1\nAnn  Lee,1971,2\nBo,1970,3\n")
    (tmp_path / "b.csv").write_text("given,born,y\nANN LEE,1971,4\njose,1970,5\nBo,1999,6\n")
    file = tmp_path / "federation.toml"
    file.write_text(
        'key = ["given", "born"]\ncolumns = "columns.toml"\nallow = ["alignment"]\n'
        '[parties.a]\nsource = "a.csv"\n[parties.b]\nsource = "b.csv"\n'
    )
    command = ["align", "-f", str(file), "--normalise", "case,spaces", "--normalise", "accents", "--capacity", "a=7"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "A cohort of 4 records" in done.output
    with Federation.from_toml(file) as federation:
        shared = [held for held in people(federation).values() if len(held) == 2]
    assert {held["a"] for held in shared} == {"José\x1f1970", "Ann  Lee\x1f1971"}
    assert {held["b"] for held in shared} == {"jose\x1f1970", "ANN LEE\x1f1971"}
    told = {path.parents[1].name: json.loads(path.read_text()) for path in tmp_path.rglob("overlap.json")}
    assert {party: counts["normalised"] for party, counts in told.items()} == {"a": 3, "b": 2}
    quiet = CliRunner().invoke(
        app, ["align", "-f", str(file), "--include", "a", "--epsilon", "none", "-q", "--normalise", "case"]
    )
    assert quiet.exit_code == 3, quiet.output  # without the other rules nobody is shared
    assert CliRunner().invoke(app, ["align", "-f", str(file), "--capacity", "a"]).exit_code == 2


@pytest.mark.parametrize("include", ["union", "court"])
def test_what_is_said_about_lacking_records_is_what_happens(tmp_path: Path, include: str) -> None:
    """Records of the bank alone are in a union, and left out of the court's cohort."""
    blocks = three_overlapping_blocks()
    alone = pd.DataFrame({"id": ["only-at-the-bank"], "sector": ["trade"], "rating": ["A"]})
    wider = {**blocks, "bank": pd.concat([blocks["bank"], alone])}
    sizes = [
        align(spec(tmp_path / str(number), blocks=held, include=include), epsilon=None)[0].n
        for number, held in enumerate((blocks, wider))
    ]
    said = Align(capacity={}, include=include).missing_data()
    left_out = "left out of the cohort" in said
    assert left_out == (sizes[1] == sizes[0])
    assert ("is in the cohort" in said) == (sizes[1] == sizes[0] + 1)


def test_the_view_says_what_the_result_holds(tmp_path: Path) -> None:
    result, run = align(spec(tmp_path, include="union", seed=3))
    view = result.view()
    assert view.title == f"A cohort of {result.n} records at 3 parties"
    (table,) = view.tables()
    assert [name for name, _ in table.rows] == [" + ".join(names) for names, _ in result.rows()]
    assert View.from_dict(run.read_json("view.json")) == view
    assert run.read_json("result.json")["kind"] == "alignment"
    without = replace(result, patterns=None).view()
    assert "were not asked for" in str(without.answer[0])
    many = replace(result, patterns=None, parties=tuple("abcdefghijk")).view()
    assert "left out with more than 10 parties" in str(many.answer[0])
