"""The coordinator's side of the imputers from moments: the conditional copula and chained equations.

Exact moments first (a committee of three computes them, as `Moments`); they give linear maps, one for each
pattern of presence; then each party that is completed opens the sums of what the maps make of the others' records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from colonnade.completion.imputation.linear import Maps, chained_maps, copula_maps, plain_marginals
from colonnade.completion.imputation.linear_steps import collect_linear, linear_part
from colonnade.completion.split import exchange
from colonnade.completion.split.exchange import Protect
from colonnade.completion.split.rounds import phase_of
from colonnade.completion.split.training import CHUNK, row_chunks
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.plan import Phase
from colonnade.federation.roster import Roster
from colonnade.statistics.features import features
from colonnade.statistics.marginals import Marginal
from colonnade.statistics.moments import Moments, compute_moments, moment_phases
from colonnade.synthesis.copula.estimate import estimate
from colonnade.synthesis.copula.estimate import available, gaussian_moments, visible_patterns
from colonnade.synthesis.copula.scores import party_marginals, release_marginals
from colonnade.synthesis.copula.procedure import MARGINALS, CopulaSQM

COPULA = CopulaSQM(epsilon=None, presence="known")
MOMENTS = Moments(epsilon=None, presence="known", gamma=2**16)

Keys = Mapping[str, bytes | None]
"""{party: its public CKKS key}."""


# --- phases -------------------------------------------------------------------------------------------------------


def moment_imputer_phases(
    imputer: str, protect: Protect, facts: PublicFacts, roster: Roster, targets: Sequence[str]
) -> list[Phase]:
    made: list[Phase] = []
    if imputer == "mice":
        made += moment_phases(MOMENTS.layout(facts, roster), "client")
    else:
        made += COPULA.plan(facts, roster).stages
    chunks = len(row_chunks(facts.n))
    size = 8 * min(facts.n, CHUNK) * 64
    for target in targets:
        others = [party for party in facts.parties if party != target]
        arguments = _arguments(imputer, protect, facts, target)
        sent = {**arguments, "target": target, "maps": {}, "marginals": {}, "part": 0}
        opened = {**arguments, "part": 0, "wide": 1, "total": None}
        vectors = f"linear predictors, which only {target!r} can open, summed over the senders"
        made += [
            phase_of(f"linear parts for {target}", linear_part, others, chunks, sent, facts, roster, vectors, size),
            phase_of(f"linear sums at {target}", collect_linear, [target], chunks, opened, facts, roster, "nothing", 0),
        ]
    return made


def _arguments(imputer: str, protect: Protect, facts: PublicFacts, target: str) -> dict[str, Any]:
    return {
        "label": f"linear parts for {target}",
        "kind": "features" if imputer == "mice" else "latent",
        "members": list(facts.parties),
        "protect": protect,
    }


# --- rounds -------------------------------------------------------------------------------------------------------


def compute_linear(
    job: Job, keys: Keys, targets: Sequence[str], imputer: str, protect: Protect
) -> dict[str, dict[str, Any]]:
    """Moments, then the sums at each target; {target: what it needs to make values of its sums}."""
    facts = job.facts
    marginals: dict[str, Marginal] = {}
    starts: dict[str, Any] = {}
    if imputer == "mice":
        maps, starts = _chained(job, targets)
    else:
        maps, marginals = _copula(job, targets)
    told: dict[str, dict[str, Any]] = {}
    for target in targets:
        arguments = _arguments(imputer, protect, facts, target)
        _sums(job, keys, target, maps[target], marginals, arguments)
        own = {name: marginals[name] for name in facts.columns[target]} if marginals else {}
        told[target] = {
            "target": maps[target].target,
            "marginals": plain_marginals(own),
            "start": starts.get(target, np.zeros(0)),
        }
    return told


def _chained(job: Job, targets: Sequence[str]) -> tuple[dict[str, Maps], dict[str, Any]]:
    """The equations of each target's columns, and the means that their sweeps start from."""
    facts = job.facts
    each = features(facts)
    moments = compute_moments(job, MOMENTS.layout(facts, job.roster), "client")
    used = visible_patterns(moments)
    owner = np.array([facts.parties.index(one.party) for one in each], dtype=np.intp)
    mean, covariance = gaussian_moments(moments, used, available(moments, used, owner))
    maps, starts = {}, {}
    for target in targets:
        others = [party for party in facts.parties if party != target]
        maps[target] = chained_maps(each, mean, covariance, target, others)
        starts[target] = mean[[k for k, one in enumerate(each) if one.party == target]]
    return maps, starts


def _copula(job: Job, targets: Sequence[str]) -> tuple[dict[str, Maps], dict[str, Marginal]]:
    noise = COPULA.noise(job.facts, job.roster)
    counts = job.ask_each(release_marginals, noise.requests(), phase=MARGINALS)
    released = {
        party: party_marginals(
            noise.columns[party],
            {name: np.asarray(one, dtype=np.int64) for name, one in counts[party].items()},
            sigma=noise.sigma,
            depth=noise.depth,
        )
        for party in noise.layout.parties
    }
    moments = compute_moments(job, noise.layout, "client")
    first = {name: one for party in released.values() for name, one in party.marginals.items()}
    found = estimate(moments, first, correlation="auto")
    marginals = dict(found.marginals)
    return {target: copula_maps(job.facts, marginals, found.correlation, target) for target in targets}, marginals


def _sums(
    job: Job, keys: Keys, target: str, maps: Maps, marginals: Mapping[str, Marginal], arguments: dict[str, Any]
) -> None:
    """The others' linear parts of every chunk of records, added, to the target."""
    facts = job.facts
    others = [party for party in facts.parties if party != target]
    wide = next(iter(next(iter(maps.senders.values())).values())).shape[0]
    known = {
        party: plain_marginals({name: marginals[name] for name in facts.columns[party]} if marginals else {})
        for party in others
    }
    for part in range(len(row_chunks(facts.n))):
        asked = {
            party: {
                **arguments,
                "target": target,
                "maps": maps.senders[party],
                "marginals": known[party],
                "part": part,
            }
            for party in others
        }
        parts = job.ask_each(linear_part, asked, phase=f"linear parts for {target}")
        hidden = {party: one["parts"] for party, one in parts.items()}
        total = exchange.add(hidden, protect=arguments["protect"], senders=others, key=keys.get(target))
        job.ask(collect_linear, phase=f"linear sums at {target}", part=part, wide=wide, total=total, **arguments)
