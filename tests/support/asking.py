"""Requests that no honest coordinator makes: a stage of a plan with other arguments, or asked once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from colonnade.federation.stage import Stage


def asking(stage: Stage, *, again: bool = False, **other: Mapping[str, Any]) -> Stage:
    """The same stage with other arguments at some parties; `again`: with its last request twice."""
    requests = {
        party: [{**arguments, **other.get(party, {})} for arguments in each] for party, each in stage.requests.items()
    }
    if again:
        requests = {party: [*each, each[-1]] for party, each in requests.items()}
    return replace(stage, requests=requests, counts={party: len(each) for party, each in requests.items()})
