"""Costs that were moved to their owners on purpose: an old plan, as it must look now.

A release is debited at every party whose records it is about, as one joint release, and not only at the party that
computes it; and what costs nothing to compute says at every owner who sees it in the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Plan = dict[str, Any]
Cost = dict[str, Any]

NUMBERING = "n is public; row numbers are uniformly random"
"""Why the numbering of an alignment without counts was free."""


VERIFICATION = ("show_coin", "share_sums", "prove_shares", "answer_proofs", "conclude")
ADDED = ("statistics.joint.compare_shares", *(f"statistics.verified.{step}" for step in VERIFICATION))
"""Steps of stages that no old plan has: before the first opening the share holders compare what they were dealt, and
check each other and the data parties."""


def without_added(phases: list[Plan]) -> list[Plan]:
    """The phases of a new plan that an old one has. What was added is free, and is seen by share holders alone."""
    for phase in phases:
        if phase["step"] in ADDED:
            assert {cost["mechanism"] for cost in phase["costs"].values()} == {"free"}
            assert phase["audience"] == "share holders (sealed; any t of them learn nothing)"
    return [phase for phase in phases if phase["step"] not in ADDED]


VERIFIED = ("Not verified: ", "Verified: ", "Verified, ")
"""How the note begins that says what is verified, and what that takes. Regressions are, in all that they open."""
COLUMN_LINE = "Column "
"""How the line of a plan begins that says what a column's marginal will be worth. No old plan has one."""
HIDDEN = "This will not work: the noise hides how many records a party has"
"""How the note of a copula begins whose parties' sizes cannot stand out of the noise. Old plans did not say it."""
REFINED = ("release_marginals", "marginal")
"""Steps that count a numeric column in rounds. They cost what the dyadic trees cost before; the replies are larger."""
NORMS = ("Rows of numbers are proven ", "Not proven: that rows of numbers ")
"""How the note begins that says whether rows of numbers are proven to be within their norm. Where they are, they are
shared modulo more primes, and with roots."""
PROVEN = ("moments: share rows", "moments: open")
"""Phases whose replies are larger then."""
PRIMES = re.compile(r"\d+ primes of 21 bits")


def without_column_lines(plan: Plan) -> Plan:
    """A new plan without its lines on columns and on parties of hidden size."""
    return {**plan, "notes": [note for note in plan["notes"] if not note.startswith((COLUMN_LINE, HIDDEN))]}


def with_larger_replies(plan: Plan, new: Plan) -> Plan:
    """An old plan with the replies of steps that count in rounds, or prove norms, as large as they are now, and with as
    many primes."""
    sizes = {phase["name"]: phase["reply_bytes"] for phase in new["phases"]}
    primes = PRIMES.search(" ".join(new["notes"]))
    notes = [PRIMES.sub(primes[0], note) if primes else note for note in plan["notes"]]
    phases = []
    for phase in plan["phases"]:
        larger = max(sizes.get(phase["name"], 0), phase["reply_bytes"])
        grew = (_step(phase) in REFINED or phase["name"] in PROVEN) and phase["reply_bytes"]
        phases.append({**phase, "reply_bytes": larger} if grew else phase)
    return {**plan, "notes": notes, "phases": phases}


def _in_rounds(plan: Plan) -> Plan:
    """A tree of depth d had 2^d - 1 knots; now there are d rounds of the same noise."""

    def counted(knots: re.Match[str]) -> str:
        return f"a numeric column is counted in {int(knots[1]).bit_length()} rounds"

    notes = [re.sub(r"a continuous column has (\d+) private knots", counted, note) for note in plan["notes"]]
    return {**plan, "notes": notes}


ROUNDS = ("classify",)
"""Methods whose default is another release now: noisy scores in rounds in place of one noisy Gram matrix, whose noise
grows with the square of a row's length (`models/glm/private.claim.md`). Old plans are those of
solver="moments", which is asked for by name."""


MODEL = ("Model: ", "Intervals: ", "WARNING: A copula keeps only ", "WARNING: By its forecast the ")
"""How the notes of a synthetic table begin that say which model it has, why, what it lacks, and where intervals are."""


FILLED = "Empty cells of debt, grade (mask): a network is told which they are"
"""How the note of a completion begins that says what it does with empty cells."""


def without_added_notes(notes: list[str]) -> list[str]:
    """The notes that an old plan has too. New plans also say what is verified, what is proven of rows, which
    model there is, and how a completion fills empty cells."""
    return [note for note in notes if not note.startswith((*VERIFIED, FILLED, *MODEL, *NORMS))]


FEWER_CUTS = ("vertimrf-cuts-three",)
"""Cases with a column whose integers have a cell each: it is not cut at private quantiles any more, and the others have
its share of the cuts' budget."""


def with_fewer_cuts(plan: Plan, new: Plan) -> Plan:
    """An old plan with the private cuts of the new one, which ask fewer columns and spend no more in all."""
    old, now = (next(phase for phase in each["phases"] if phase["name"] == "private cuts") for each in (plan, new))

    def spent(phase: Plan) -> float:
        costs = phase["costs"].values()
        return sum(float(cost["count"] / cost["parameters"]["noise_multiplier"] ** 2) for cost in costs)

    assert sum(now["counts"].values()) < sum(old["counts"].values())
    assert spent(now) <= spent(old) * (1 + 1e-9)
    return {**plan, "phases": [now if phase is old else phase for phase in plan["phases"]]}


CUTS_COUNTED = ("vertimrf-cuts-three", "vertimrf-cuts-replace-gaps")
"""Fields with private cuts. The notes on both views' totals left the cuts out; costs and total of the plan had them."""
TOTALS = re.compile(r"\(([0-9.]+), 1e-06\)")


def with_cuts_counted(plan: Plan, new: Plan) -> Plan:
    """An old plan whose notes on totals are as they are now: larger, by no more than the cuts."""
    now = {note.split()[0]: note for note in new["notes"] if " view (" in note}
    notes = []
    for note in plan["notes"]:
        if " view (" in note:
            later = now[note.split()[0]]
            before, after = ([float(total) for total in TOTALS.findall(text)] for text in (note, later))
            assert all(one < other < 1.25 * one for one, other in zip(before, after, strict=True))
            note = later
        notes.append(note)
    return {**plan, "notes": notes}


SMALLER_CHUNKS = ("moments-memory-large", "moments-large-large", "pca-memory-large")
"""Cases with so many records that rows of moments travel in several chunks, which have another size now."""


def with_smaller_chunks(plan: Plan, new: Plan) -> Plan:
    """An old plan with the chunks of the new one. The first chunk still pays for everything, the others are free."""
    first, more = "moments: share rows", "moments: share more rows"
    now = {phase["name"]: phase for phase in new["phases"]}
    assert {cost["mechanism"] for cost in now[more]["costs"].values()} == {"free"}
    phases = []
    for phase in plan["phases"]:
        if phase["name"] == first:
            assert now[first]["reply_bytes"] < 1 << 25
            phases += [{**phase, "reply_bytes": now[first]["reply_bytes"]}, now[more]]
        elif phase["name"] != more:
            phases.append(phase)
    return {**plan, "phases": phases}


IN_STEP = {"sparse-glm-newton-cv-three": 4}
"""Cases with so many folds, fitted one after another before, and together now, after the path of all records."""


def with_folds_in_step(plan: Plan, folds: int) -> Plan:
    """An old plan with the rounds of two paths in place of 1 + folds, each with a row for every fold."""
    together = f", for each of up to {folds} folds at once"
    phases = []
    for phase in plan["phases"]:
        if phase["name"] in ("residuals", "gradients", "predictors"):
            counts = {party: count // (1 + folds) * 2 for party, count in phase["counts"].items()}
            costs = {party: {**cost, "count": counts[party]} for party, cost in phase["costs"].items()}
            size, words = folds * phase["reply_bytes"], f"{phase['discloses']}{together}"
            phase = {**phase, "counts": counts, "costs": costs, "reply_bytes": size, "discloses": words}
        phases.append(phase)
    rounds = next(phase["counts"] for phase in phases if phase["name"] == "predictors")
    notes = [
        re.sub(r"[\d,]+ rounds are reserved", f"{max(rounds.values()):,} rounds are reserved", note)
        for note in plan["notes"]
    ]
    notes = [note.replace("exact sums over records", f"exact sums over records{together}") for note in notes]
    return {**plan, "phases": phases, "notes": notes}


def _more_cells(plan: Plan) -> Plan:
    """A field on secret tables may have four times the cells by default, since a fit takes a tenth of its time."""
    if not any(phase["name"].startswith("sqm tables") for phase in plan["phases"]):
        return plan
    wider = ("tables have at most 131,072 cells together", "tables have at most 524,288 cells together")
    return {**plan, "notes": [note.replace(*wider) for note in plan["notes"]]}


def moved(plan: Plan) -> Plan:
    for change in (
        _in_rounds,
        _more_cells,
        _pattern_counts,
        _moments_by_pattern,
        _weights,
        _wider_audiences,
        _as_first_asked,
    ):
        plan = change(plan)
    return plan


def _step(phase: Plan) -> str:
    return str(phase["step"].rpartition(".")[2])


def _with_costs(plan: Plan, change: Callable[[Plan, str, Cost], Cost]) -> Plan:
    phases = [
        {**phase, "costs": {party: change(phase, party, cost) for party, cost in phase["costs"].items()}}
        for phase in plan["phases"]
    ]
    return {**plan, "phases": phases}


def _composed(*parts: Cost) -> Cost:
    whole = {**parts[-1], "mechanism": "composed", "parameters": {}, "joint": None, "audience": "coordinator"}
    return {**whole, "replace_factor": 2.0, "count": 1, "parts": list(parts)}


def _pattern_counts(plan: Plan) -> Plan:
    """The noisy pattern counts of an alignment were debited at the matcher, who may own no data; now at every data
    party, together with the presence of its list."""
    counted = [cost for phase in plan["phases"] if _step(phase) == "number" for cost in phase["costs"].values()]
    if not counted or counted[0]["mechanism"] == "free":
        return plan
    joint = {**counted[0], "joint": "(this job) presence patterns"}

    def owned(phase: Plan, party: str, cost: Cost) -> Cost:
        if _step(phase) == "number":
            return {**cost, "mechanism": "free", "parameters": {"reason": NUMBERING}, "replace_factor": 2.0}
        return _composed(cost, joint) if _step(phase) in ("blind", "blind_keys", "sign_blinded") else cost

    return _with_costs(plan, owned)


def _moments_by_pattern(plan: Plan) -> Plan:
    """The noisy moments of a private regression, by the patterns of the other parties: at these too."""
    moments = [cost for phase in plan["phases"] if _step(phase) == "own_moments" for cost in phase["costs"].values()]
    if not moments:
        return plan
    joint = {**moments[0], "joint": "(this job) moments by pattern"}

    def owned(phase: Plan, party: str, cost: Cost) -> Cost:
        if _step(phase) == "own_moments":
            return joint
        return _composed(cost, joint) if _step(phase) == "tell_presence" else cost

    return _with_costs(plan, owned)


def _weights(plan: Plan) -> Plan:
    """The weights of each party of a private training: at all parties of the training."""

    def owned(phase: Plan, party: str, cost: Cost) -> Cost:
        leaves = cost.get("parts") or [cost]
        if _step(phase) != "start" or not any(leaf["mechanism"] == "skellam" for leaf in leaves):
            return cost
        parts = [leaf for leaf in leaves if leaf["mechanism"] != "skellam"]
        (release,) = (leaf for leaf in leaves if leaf["mechanism"] == "skellam")
        parts += [{**release, "joint": f"(this job) {phase['name']} of {owner}"} for owner in phase["costs"]]
        return _composed(*parts)

    return _with_costs(plan, owned)


WIDER = {
    "meet": ("presence", ", coordinator", True),
    "show_presence": ("presence", ", coordinator", False),
    "announce": ("presence", ", coordinator", True),
    "linear_part": ("linear-predictors", ", coordinator", True),
    "follow": ("split-training", ", the other parties, coordinator", True),
    "hand_over": ("split-training", ", the other parties, coordinator", True),
    "predictors": (None, ", data parties, coordinator", True),
    "residuals": ("residuals", ", coordinator", True),
    "predict_block": (None, ", parties with covariates, coordinator", False),
    "admm_predictor": (None, ", parties with covariates, coordinator", False),
    "respond": ("response-residuals", ", coordinator", False),
    "admm_holder": ("response-residuals", ", coordinator", False),
    "admm_residuals": ("response-residuals", ", coordinator", False),
}
"""{step: (the name of its release without a bound (None: any), who else learns something of it, whether the phase says
so too)}: a function of the release goes on to these, from the party that receives it."""


def _wider_audiences(plan: Plan) -> Plan:
    def widened(cost: Cost, name: str | None, more: str) -> Cost:
        if "parts" in cost:
            return {**cost, "parts": [widened(part, name, more) for part in cost["parts"]]}
        if cost["mechanism"] != "unbounded" or name not in (None, cost["parameters"]["name"]):
            return cost
        return {**cost, "audience": cost["audience"] + more}

    def owned(phase: Plan, party: str, cost: Cost) -> Cost:
        name, more, _ = WIDER.get(_step(phase), (None, "", False))
        return widened(cost, name, more) if more else cost

    plan = _with_costs(plan, owned)
    phases = [
        {**phase, "audience": phase["audience"] + WIDER[_step(phase)][1]}
        if WIDER.get(_step(phase), ("", "", False))[2]
        else phase
        for phase in plan["phases"]
    ]
    return {**plan, "phases": phases}


ORDER = (
    ("residuals", "gradients", "predictors"),
    ("solutions", "blocks", "predictors", "multipliers", "residuals"),
    ("sqm tables: open", "sqm tables: share noise"),
)
"""Phases that are asked in turns now stand in the order in which they are first asked: a party answers no phase after a
later one was begun."""


def _as_first_asked(plan: Plan) -> Plan:
    phases = list(plan["phases"])
    for order in ORDER:
        for start in range(len(phases) - len(order) + 1):
            turns = slice(start, start + len(order))
            if sorted(phase["name"] for phase in phases[turns]) == sorted(order):
                phases[turns] = sorted(phases[turns], key=lambda phase: order.index(phase["name"]))
    return {**plan, "phases": phases}
