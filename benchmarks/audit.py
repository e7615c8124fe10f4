"""Every attack of `colonnade audit`, with and without planted bugs: our claims stand, papers' fall, bugs are found.

A false alarm has a probability of at most 1e-6 for each attack on worst-case neighbours (1e-3 in one run); a bug that
is missed has one minus the stated power. QUICK=1 leaves out one bug of three.
"""

from __future__ import annotations

import time

from benchmarks.common import Page, quick
from colonnade.audit.planted import NOTHING, Planted
from colonnade.evaluation.attacks.catalogue import Finding, audit_method, methods

BUGS = ("noise/1.4", "silent-member") if quick() else ("noise/1.4", "silent-member", "forgotten-split")


def attacked(planted: Planted) -> list[Finding]:
    found = [one for name in methods(planted) for one in audit_method(name, planted=planted)]
    print(f"  {planted}: {len(found)} attacks", flush=True)
    return found


def row(one: Finding) -> list[str]:
    return [
        f"`{one.method}`",
        one.attack,
        one.claim if one.ours else f"{one.claim} (a paper's)",
        f"{one.claimed_epsilon:.3g}",
        f"{one.epsilon_lower_bound:.3g}",
        f"{one.delta:g}",
        f"{one.runs:,}",
        "-" if one.power is None else f"{one.power:.4f}",
        one.verdict,
    ]


def main() -> int:
    page = Page("audit", "Attacks on our claims, and bugs that they must find")
    page.say(
        "`colonnade audit all`, at its default effort and seed 1. *Claimed* is an upper bound on what a person loses,"
        " *proved* a lower bound from the attack's hits. A claim is tested on its whole curve, so it may fall though"
        " the bound at this delta stays below it. *Power* is the chance to notice noise / 1.4, or the planted bug."
    )
    head = ["method", "attack", "claim", "epsilon claimed", "proved at least", "delta", "runs", "power", "verdict"]
    start = time.process_time()
    honest = attacked(NOTHING)
    page.table(head, [row(one) for one in honest])
    missed = 0
    for bug in BUGS:
        planted = Planted.parse(bug)
        found = attacked(planted)
        missed += sum(not one.refuted for one in found)
        page.say(f"## Planted: `{bug}` ({planted})")
        page.table(head, [row(one) for one in found])
    page.say(
        "A method is missing from a table where the bug cannot be planted: nobody can fall silent where each party adds"
        " its own noise, and a paper's claim that falls as it is needs no bug. Membership in one run notices"
        " noise / 10, and is asked for no less. `pca` and `classify` release moments, `sparse-glm` moments and noisy"
        " counts: they are audited as such. The minibatches of `classify` have"
        " `tests/privacy/test_minibatch_audit.py`."
    )
    ours = [one for one in honest if one.ours]
    papers = [one for one in honest if not one.ours]
    standing, fallen = sum(not one.refuted for one in ours), sum(one.refuted for one in papers)
    return page.finish(
        standing == len(ours) and fallen == len(papers) and missed == 0,
        ours_standing=f"{standing}/{len(ours)}",
        papers_fallen=f"{fallen}/{len(papers)}",
        bugs_missed=missed,
        cpu_seconds=f"{time.process_time() - start:.0f}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
