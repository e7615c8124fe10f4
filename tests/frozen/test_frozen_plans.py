"""Every method still plans what it planned before the redesign: the same requests at the same cost. See README.md."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import BadArguments, ColonnadeError
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.facts import PublicFacts
from colonnade.federation.plan import HOPELESS, Plan
from colonnade.federation.roster import Roster
from colonnade.federation.stage import JOB
from colonnade.privacy.accounting import guarantee
from colonnade.statistics.forecast import FORECAST
from frozen.mapping import translate
from frozen.moved import (
    CUTS_COUNTED,
    FEWER_CUTS,
    IN_STEP,
    NUMBERING,
    SMALLER_CHUNKS,
    moved,
    with_cuts_counted,
    with_fewer_cuts,
    with_folds_in_step,
    with_larger_replies,
    with_smaller_chunks,
    without_added,
    without_added_notes,
    without_column_lines,
)

WORDING: dict[str, str] = {
    " (docs/results/mrf-tvd.md). A run's report": ". A run's report",
    "noisy counts of the public cells of each column": "noisy counts of the cells of each column",
    "noisy counts of a dyadic tree over one column's bounds": (
        "noisy counts of cells between one column's bounds, round by round"
    ),
    "how many records this party lacks": "how many records this party lacks or has with empty cells",
    NUMBERING: f"{NUMBERING}; the data parties pay for noisy counts",
    "which records this party has, to the other parties": (
        "which records this party has, to the other parties; how many of these each lacks, to the coordinator"
    ),
    "which pseudonymous records a party has, to the other parties": (
        "which pseudonymous records a party has, to the other parties; how many all of them have, to the coordinator"
    ),
    "which pseudonymous records a party has, to the other data parties": (
        "which pseudonymous records a party has, to the other data parties; counts of the patterns, to the coordinator"
    ),
    "sums of hidden vectors by record, to": (
        "sums of hidden vectors by record (what is made of them, gradients, losses and errors over hidden records, to"
        " the others and the coordinator), to"
    ),
    "sums of linear predictors of its columns by record, to": (
        "sums of linear predictors of its columns by record, with coefficients that the coordinator sets (their errors"
        " to the coordinator), to"
    ),
    "in every round, to the response holder": (
        "in every round, to the response holder; in residuals to the data parties, in likelihoods and sums of residuals"
        " to the coordinator"
    ),
    "each party's own linear predictor, record by record, in every round": (
        "each party's own linear predictor, record by record, in every round; the sum of all in residuals to the"
        " parties, in mean losses and gradients to the coordinator"
    ),
    "in every round that mixes two other parties'": (
        "in every round that mixes two other parties' (with the coordinator, who knows the coefficients, the response"
        " holder can work out the columns); in residuals to the parties, in mean losses and gradients to the"
        " coordinator"
    ),
    "the fitted coefficients, for every lambda of the path": (
        "the fitted coefficients, for every lambda of the path; in the columns' units they show means and deviations"
    ),
    "the sum that is opened is that party's own hidden vector.": (
        "the sum that is opened is that party's own hidden vector. With masking='ckks' a coordinator that deviates can"
        " have one party's alone opened; pads prevent that."
    ),
    "can work out the response and the total predictor": (
        "can work out the response and the total predictor; sums of them with each column, to the coordinator"
    ),
    "step='exact' and cross_party='full' use all blocks": "solver='exact' and Regress use all blocks",
    "estimates are biased, and cross_party='full' is right": "estimates are biased, and Regress is right",
    "exchange='plain': ": "masking='plain': ",
    "or take CopulaSQM, to stay": "or take Synthesize, to stay",
    "via='admm' shows sums at the solutions only": "VFLGLMVS, of the papers' wing, shows sums at the solutions only",
    "use via='moments' (gaussian), or synthesize a table with CopulaSQM and fit that": (
        "use Select(solver='moments') (gaussian) or Select(solver='wald')"
    ),
}
"""Old text -> new text, in names of phases, in `discloses`, in notes, and in the reasons that costs state. A whole text
or a part of one; numbers must stay. Every entry must occur in an old text, so this lists each difference once."""
EXACT = re.compile("(shares|masked parts) of the exact (?=counts|sums)")
"""What is opened without noise is called exact now; an old plan called it noisy."""
ERRORS: dict[str, str] = {}
"""Old -> new name of the class of an error that refuses a case."""
TAKEN = ("sparse-glm-empty-cells-gaps", "fedpsg-empty-cells-gaps", "copula-sqm-empty-cells-gaps")
"""Cases that were refused because a column may have empty cells, which every method takes now."""
GONE = ("vfem-binomial-three",)
"""Cases of models that are no more: the discriminant model of a binary response. A logistic regression took its name,
with rounds of its own; what the old options ask for (EM) is refused."""

REBUILT = tuple(f"vfem-private-{name}" for name in ("five", "small-three", "large-holder", "five-strict", "sisters"))
"""Private regressions: presence weights took the place of unweighted products, with other stages (17 November 2026).
They cost what was asked for, as before, and show no more to anyone but the response holder's mask to the others."""

OLD_JOB = "(this job)"
"""What stood for the job's id in the joint release ids of an old plan."""
TEXTS = ("discloses", "reason")
"""Parameters of a cost that are words for people."""


# --- the frozen plans ------------------------------------------------------------------------------------------


@cache
def _file() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("plans.json").read_text(encoding="utf-8"))
    return found


def _cases() -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in _file()["cases"]}


def frozen_plan(case: Mapping[str, Any]) -> dict[str, Any]:
    """The old plan of a case, with its costs in place."""
    costs = _file()["costs"]
    phases = [
        {**one, "costs": {party: costs[place] for party, place in one["costs"].items()}}
        for one in case["plan"]["phases"]
    ]
    return {**case["plan"], "phases": phases}


def planned(case: Mapping[str, Any]) -> Plan:
    """What the code of today plans for a case."""
    stored = _file()["rosters"][case["roster"]]
    name, options = translate(case["method"], copy.deepcopy(case["options"]))
    facts, roster = PublicFacts.from_dict(stored["facts"]), Roster.from_dict(stored["roster"])
    return CATALOGUE.make(name, options).plan(facts, roster)


# --- the comparison --------------------------------------------------------------------------------------------


class Comparison:
    """Finds what differs between an old and a new plan, both as data. Joint ids may be spelt in another way, but two
    that were equal must be equal and two that were different must be different, over the whole plan."""

    def __init__(self, *, wording: Mapping[str, str], job: str) -> None:
        self.found: list[str] = []
        self.wording = wording
        self.job = job
        self.forth: dict[str, str] = {}
        self.back: dict[str, str] = {}

    def plans(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
        self.same("delta", old["delta"], new["delta"])
        # Forecasts were added to plans that had none; they cost nothing.
        had = any(note.startswith(FORECAST) for note in old["notes"])
        notes = [note for note in new["notes"] if had or not note.startswith((FORECAST, HOPELESS))]
        self.each("notes", old["notes"], notes, self.text)
        self.each("phases", old["phases"], new["phases"], self.phase)
        return self.found

    def phase(self, where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """All but the name of the step."""
        where = f"{where} ({old['name']})"
        for field in ("name", "discloses"):
            self.text(f"{where}, {field}", old[field], new[field])
        for field in ("counts", "audience", "reply_bytes"):
            self.same(f"{where}, {field}", old[field], new[field])
        if self.keys(f"{where}, costs", old["costs"], new["costs"]):
            for party, cost in old["costs"].items():
                self.cost(f"{where}, cost at {party}", cost, new["costs"][party])

    def cost(self, where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        if not self.keys(where, old, new):
            return
        for field, value in old.items():
            here = f"{where}, {field}"
            if field == "joint":
                self.joint(here, value, new[field])
            elif field == "parameters":
                if self.keys(here, value, new[field]):
                    for name, one in value.items():
                        check = self.text if name in TEXTS else self.same
                        check(f"{here}, {name}", one, new[field][name])
            elif field == "parts":
                self.each(here, value, new[field], self.cost)
            else:
                self.same(here, value, new[field])

    def joint(self, where: str, old: str | None, new: str | None) -> None:
        if old is None or new is None:
            self.same(where, old, new)
            return
        if self.forth.setdefault(old, new) != new:
            self.found.append(f"{where}: {old!r} was one release and is now both {self.forth[old]!r} and {new!r}")
        if self.back.setdefault(new, old) != old:
            self.found.append(f"{where}: {old!r} and {self.back[new]!r} were two releases and are now one, {new!r}")
        if (OLD_JOB in old) != (self.job in new):
            self.found.append(f"{where}: {old!r} and {new!r} do not both name the job")

    def text(self, where: str, old: str, new: str) -> None:
        self.same(where, worded(old, self.wording), EXACT.sub(r"\1 of the noisy ", new))

    def same(self, where: str, old: Any, new: Any) -> None:
        """Whole numbers exactly, other numbers to 1e-12."""
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            if self.keys(where, old, new):
                for name, value in old.items():
                    self.same(f"{where}, {name}", value, new[name])
            return
        if not equal(old, new):
            self.found.append(f"{where}: was {old!r} and is {new!r}")

    def keys(self, where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
        if set(old) != set(new):
            self.found.append(f"{where}: was for {sorted(old)} and is for {sorted(new)}")
        return set(old) == set(new)

    def each(self, where: str, old: Sequence[Any], new: Sequence[Any], check: Callable[[str, Any, Any], None]) -> None:
        if len(old) != len(new):
            self.found.append(f"{where}: there were {len(old)} and are {len(new)}")
            return
        for at, (before, after) in enumerate(zip(old, new, strict=True)):
            check(f"{where} {at}", before, after)


def equal(old: Any, new: Any) -> bool:
    numbers = (int, float)
    if isinstance(old, bool) or isinstance(new, bool) or not (isinstance(old, numbers) and isinstance(new, numbers)):
        return type(old) is type(new) and bool(old == new)
    if isinstance(old, int) and isinstance(new, int):
        return old == new
    return math.isclose(old, new, rel_tol=1e-12, abs_tol=0.0)


def worded(text: str, wording: Mapping[str, str]) -> str:
    """An old text in new words; the longest parts first, and each part of the text once."""
    if not wording:
        return text
    parts = sorted(wording, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, parts)), lambda match: wording[match.group()], text)


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, wording: Mapping[str, str] = WORDING, job: str = JOB
) -> list[str]:
    return Comparison(wording=wording, job=job).plans(old, new)


# --- the tests -------------------------------------------------------------------------------------------------


NAMES = tuple(CATALOGUE.names)
"""Our own methods, as long as no other test has entered one."""
LOADS = """
import json, sys
from colonnade.federation.step import _registry
from colonnade.catalogue import CATALOGUE
from colonnade.federation.policy import plan_of_steps
import os, cffi, mpmath, numba, numpy, pandas, scipy.optimize, scipy.sparse.csgraph, scipy.special, scipy.stats
import colonnade.federation.coordinator, colonnade.privacy.skellam_sampler
import colonnade.secure.proof, colonnade.secure.seeded
for name in sys.argv[1:]:
    read, write = os.pipe()
    if os.fork() == 0:
        CATALOGUE.load(name)
        os.write(write, json.dumps([step.name for step in _registry.values()]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        print(name, pipe.read())
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded_steps(shared_folder: Callable[[str], AbstractContextManager[Path]]) -> dict[str, set[str]]:
    """The steps that a fresh process knows once it has loaded a method's class."""
    with shared_folder("loaded-steps") as file:
        if not file.exists():
            command = [sys.executable, "-c", LOADS, *NAMES]
            done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
            assert done.returncode == 0, done.stderr
            file.write_text(done.stdout, encoding="utf-8")
        lines = [line.partition(" ") for line in file.read_text(encoding="utf-8").splitlines()]
    assert all(listed for _, _, listed in lines)
    return {name: set(json.loads(listed)) for name, _, listed in lines}


@pytest.mark.parametrize("case_id", _cases())
def test_plan_has_not_moved(case_id: str, loaded_steps: dict[str, set[str]]) -> None:
    case = _cases()[case_id]
    if case["options"].get("protect") == "ckks":
        pytest.importorskip("tenseal")
    if case_id in TAKEN:
        assert case["error"] == "SchemaError"
        taken = planned(case)
        assert taken.stages
        # A completion fills empty cells; the others say what they assume of them.
        assert taken.method == "complete" or any(note.startswith("Empty cells of") for note in taken.notes)
        return
    if case_id in GONE:
        with pytest.raises(BadArguments, match="has no missing='em'"):
            planned(case)
        return
    if "error" in case:
        with pytest.raises(ColonnadeError) as refused:
            planned(case)
        assert refused.type.__name__ == ERRORS.get(case["error"], case["error"])
        return
    plan = planned(case)
    if case_id in REBUILT:
        leaves = [leaf for cost in plan.costs() for leaf in cost.leaves()]
        bounded = [leaf for leaf in leaves if not leaf.unbounded]
        epsilon, delta = case["options"]["epsilon"], case["options"]["delta"]
        assert 0.98 * epsilon < guarantee(bounded, delta=delta).epsilon <= epsilon
        assert {str(leaf["name"]) for leaf in leaves if leaf.unbounded} == {"presence"}
        return
    # A party that has just started loads the class that a proposal names, and must know every step of its plan.
    assert {stage.step for stage in plan.stages} <= loaded_steps[plan.method]
    new = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    new["phases"] = without_added(new.pop("stages"))  # as they were called
    new["notes"] = without_added_notes(new["notes"])
    new = without_column_lines(new)
    old = moved(frozen_plan(case))
    old = with_fewer_cuts(old, new) if case_id in FEWER_CUTS else old
    old = with_cuts_counted(old, new) if case_id in CUTS_COUNTED else old
    old = with_smaller_chunks(old, new) if case_id in SMALLER_CHUNKS else old
    old = with_folds_in_step(old, IN_STEP[case_id]) if case_id in IN_STEP else old
    found = differences(with_larger_replies(old, new), new)
    assert not found, "\n".join(found)


def test_wording_changes_words_that_occur_and_no_numbers() -> None:
    texts = set()
    for case in _file()["cases"]:
        for one in case.get("plan", {"notes": [], "phases": []})["phases"]:
            texts |= {one["name"], one["discloses"]}
        texts |= set(case.get("plan", {"notes": []})["notes"])
    texts |= set(_reasons(_file()["costs"]))
    for old, new in WORDING.items():
        assert old
        assert any(old in text for text in texts), f"no old plan says {old!r}"
        assert re.findall(r"\d+", old) == re.findall(r"\d+", new), f"{old!r} and {new!r} have different numbers"


def _reasons(costs: Sequence[Mapping[str, Any]]) -> list[str]:
    own = [cost["parameters"][name] for cost in costs for name in TEXTS if name in cost["parameters"]]
    return own + [text for cost in costs for text in _reasons(cost.get("parts", ()))]


# --- the comparison itself can fail ----------------------------------------------------------------------------


def _release(joint: str | None, **parameters: Any) -> dict[str, Any]:
    return {
        "mechanism": "skellam",
        "parameters": {"mu": 2**70 + 1, "delta_2": 0.1, **parameters},
        "unit": "record",
        "relation": "zero-out",
        "replace_factor": 1.5,
        "audience": "coordinator",
        "joint": joint,
        "count": 2,
    }


def _example() -> dict[str, Any]:
    both = {**_release(None), "mechanism": "composed", "parameters": {}}
    both["parts"] = [_release(f"{OLD_JOB} moments a1"), _release(f"{OLD_JOB} tables b2"), _release(None)]
    phase = {
        "name": "share",
        "step": "moments.share",
        "counts": {"clinic": 3, "court": 1},
        "costs": {"clinic": both, "court": _release(f"{OLD_JOB} moments a1", reason="shares are sealed")},
        "audience": "share holders",
        "discloses": "secret shares of rows",
        "reply_bytes": 80,
    }
    return _apart({"delta": 1e-6, "notes": ["Noise of 3.5."], "phases": [phase, {**phase, "name": "open"}]})


def _apart(plan: Mapping[str, Any]) -> Any:
    """A copy in which no two places share a value, so that a change of one changes no other."""
    return json.loads(json.dumps(plan))


def _changed(change: Callable[[Any], None]) -> list[str]:
    new = _example()
    change(new)
    return differences(_example(), new, wording={}, job=OLD_JOB)


def _set(*path: Any) -> Callable[[Any], None]:
    """A change of one value in a plan: the way to it, and the new value last."""

    def change(plan: Any) -> None:
        *way, last, value = path
        for one in way:
            plan = plan[one]
        plan[last] = value

    return change


COST = ("phases", 1, "costs", "clinic", "parts", 1)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_set(*COST, "parameters", "mu", 2**70), id="whole number of a cost"),
        pytest.param(_set(*COST, "parameters", "delta_2", 0.1 * (1 + 1e-11)), id="number of a cost"),
        pytest.param(_set(*COST, "parameters", "sampling", 1.0), id="another parameter"),
        pytest.param(_set(*COST, "count", 3), id="count of a cost"),
        pytest.param(_set(*COST, "mechanism", "gaussian"), id="mechanism"),
        pytest.param(_set(*COST, "unit", "block"), id="unit"),
        pytest.param(_set(*COST, "relation", "replace"), id="relation"),
        pytest.param(_set(*COST, "replace_factor", 2.0), id="replace factor"),
        pytest.param(_set(*COST, "audience", "everybody"), id="audience of a cost"),
        pytest.param(_set("phases", 0, "costs", "clinic", "parts", []), id="parts"),
        pytest.param(_set("phases", 0, "costs", {}), id="costs of a phase"),
        pytest.param(_set("phases", 0, "counts", "clinic", 2), id="count of requests"),
        pytest.param(_set("phases", 0, "counts", "bank", 0), id="who is asked"),
        pytest.param(_set("phases", 0, "audience", "coordinator"), id="audience of a phase"),
        pytest.param(_set("phases", 0, "discloses", "rows"), id="what it discloses"),
        pytest.param(_set("phases", 0, "reply_bytes", 81), id="reply bytes"),
        pytest.param(_set("phases", _example()["phases"][:1]), id="number of phases"),
        pytest.param(_set("phases", _example()["phases"][::-1]), id="order of phases"),
        pytest.param(_set("delta", 1e-5), id="delta"),
        pytest.param(_set("notes", ["Noise of 3.6."]), id="notes"),
        pytest.param(_set(*COST, "joint", f"{OLD_JOB} moments a1"), id="two joint ids merged"),
        pytest.param(_set(*COST, "joint", f"{OLD_JOB} tables c3"), id="one joint id in two"),
        pytest.param(_set(*COST, "joint", None), id="a joint id lost"),
        pytest.param(_set("phases", 1, "costs", "clinic", "parts", 2, "joint", f"{OLD_JOB} own"), id="a joint id made"),
    ],
)
def test_the_comparison_sees_a_change(change: Callable[[Any], None]) -> None:
    assert _changed(change)


def test_the_comparison_allows_other_spelling() -> None:
    """Names of steps, joint ids as a bijection, listed words, and rounding."""
    new = json.loads(json.dumps(_example()).replace("moments a1", "moments f9").replace("tables b2", "counts f9"))
    for one in new["phases"]:
        one["step"] = "gram.share"
        one["discloses"] = "secret shares of records"
        one["costs"]["court"]["parameters"]["reason"] = "shares are under seal"
        one["costs"]["court"]["parameters"]["delta_2"] *= 1 + 1e-13
    assert differences(_example(), new, wording={}, job=OLD_JOB)
    wording = {"of rows": "of records", "shares are sealed": "shares are under seal"}
    assert not differences(_example(), new, wording=wording, job=OLD_JOB)


def test_joint_ids_must_name_the_job() -> None:
    """Otherwise two jobs would share an id, and one of them would go uncounted."""
    spelt = json.loads(json.dumps(_example()).replace(OLD_JOB, "{job}"))
    assert not differences(_example(), spelt, wording={}, job="{job}")
    assert differences(_example(), spelt, wording={}, job="{other}")


@pytest.mark.parametrize("case_id", ["moments-default-three", "vertimrf-strict-five-strict"])
def test_a_changed_cost_of_a_frozen_plan_is_seen(case_id: str) -> None:
    """With a real plan: one leaf of one party costs less."""
    old = frozen_plan(_cases()[case_id])
    new = _apart(old)
    assert not differences(old, new, wording={}, job=OLD_JOB)
    leaf = next(one for phase in new["phases"] for cost in phase["costs"].values() for one in _noisy(cost))
    leaf["parameters"]["mu"] *= 2
    assert len(differences(old, new, wording={}, job=OLD_JOB)) == 1


def _noisy(cost: dict[str, Any]) -> list[dict[str, Any]]:
    own = [cost] if cost["mechanism"] == "skellam" else []
    return own + [leaf for part in cost.get("parts", ()) for leaf in _noisy(part)]
