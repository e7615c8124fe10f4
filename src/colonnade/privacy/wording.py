"""Costs and guarantees in words: for the plan, the report, the console and the terminal alike."""

from __future__ import annotations

import math
from typing import Any

from colonnade.privacy.accounting import Guarantee
from colonnade.privacy.cost import Cost


def cost_text(cost: Cost) -> str:
    """One line that names each mechanism, its parameters and how often; without accounting."""
    if cost.mechanism == "composed":
        inner = "; ".join(cost_text(part) for part in cost.parts) or "nothing"
        return inner if cost.count == 1 else f"{cost.count} x ({inner})"
    shown = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
        for name, value in cost.parameters
    )
    times = "" if cost.count == 1 else f"{cost.count} x "
    protects = "" if cost.mechanism in ("free", "unbounded") else f" per {cost.unit}"
    return f"{times}{cost.mechanism} ({shown}){protects}"


def pair(bound: Guarantee) -> str:
    """A guarantee where a table's heading says unit and relation, so that its cells need not."""
    return str(bound).removesuffix(f" per {bound.unit}, {bound.relation}")


def guarantee_dict(bound: Guarantee) -> dict[str, Any]:
    """A guarantee for JSON, which knows no infinity: epsilon is null where there is no bound."""
    return {
        "epsilon": bound.epsilon if math.isfinite(bound.epsilon) else None,
        "delta": bound.delta,
        "unit": bound.unit,
        "relation": bound.relation,
        "accountant": bound.accountant,
        "unbounded": list(bound.unbounded),
        "text": str(bound),
    }


def in_plain_words(bound: Guarantee) -> str:
    """The definition of the guarantee with its numbers in it."""
    if bound.unbounded:
        names = " and ".join(bound.unbounded)
        return f"There is no bound: {names} {'show' if len(bound.unbounded) > 1 else 'shows'} data as it is."
    if not math.isfinite(bound.epsilon):
        return f"There is no finite bound at delta {bound.delta:g}."
    neighbour = {"zero-out": "held nothing", "replace": "held any other record's values"}[bound.relation]
    factor = math.exp(min(bound.epsilon, 700.0))  # beyond, e^epsilon is written as such
    times = f"{factor:.3g}" if factor < 100 else f"{factor:,.0f}" if factor < 1e6 else f"e^{bound.epsilon:.3g}"
    plus = f", plus {bound.delta:g}" if bound.delta else ""
    return (
        f"Whatever anyone concludes from the released numbers, its probability is at most {times} times what it"
        f" would be if one {bound.unit} {neighbour}{plus}."
    )
