"""Every attack of `colonnade audit`, with and without planted bugs: our claims stand, papers' fall, bugs are found.

A false alarm has a probability of at most 1e-6 for each attack on worst-case neighbours (1e-3 in one run); a bug that
is missed has one minus the stated power. QUICK=1 leaves out one bug of three.
"""

from __future__ import annotations

import time

from benchmarks.common import Page, quick
from colonnade.audit.attack import Finding, attacked, audit_method
from colonnade.audit.planted import NOTHING, Planted

BUGS = ("noise/1.4", "silent-member") if quick() else ("noise/1.4", "silent-member", "forgotten-split")


def attack_all(planted: Planted) -> list[Finding]:
    findings = [finding for name in attacked(planted) for finding in audit_method(name, planted=planted)]
    print(f"  {planted}: {len(findings)} attacks", flush=True)
    return findings


def row(finding: Finding) -> list[str]:
    return [
        f"`{finding.method}`",
        finding.attack,
        finding.claim if finding.ours else f"{finding.claim} (a paper's)",
        f"{finding.claimed_epsilon:.3g}",
        f"{finding.epsilon_lower_bound:.3g}",
        f"{finding.delta:g}",
        f"{finding.runs:,}",
        "-" if finding.power is None else f"{finding.power:.4f}",
        finding.verdict,
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
    honest = attack_all(NOTHING)
    page.table(head, [row(finding) for finding in honest])
    missed = 0
    for bug in BUGS:
        planted = Planted.parse(bug)
        findings = attack_all(planted)
        missed += sum(not finding.refuted for finding in findings)
        page.say(f"## Planted: `{bug}` ({planted})")
        page.table(head, [row(finding) for finding in findings])
    page.say(
        "A method is missing from a table where the bug cannot be planted: no one can fall silent where each party adds"
        " its own noise, and a paper's claim that falls as it is needs no bug. Membership in one run notices"
        " noise / 10, and is asked for no less. A method that makes no release of its own under a bound is audited by"
        " what it rests on."
    )
    ours = [finding for finding in honest if finding.ours]
    papers = [finding for finding in honest if not finding.ours]
    standing, fallen = (
        sum(not finding.refuted for finding in ours),
        sum(finding.refuted for finding in papers),
    )
    return page.finish(
        standing == len(ours) and fallen == len(papers) and missed == 0,
        ours_standing=f"{standing}/{len(ours)}",
        papers_fallen=f"{fallen}/{len(papers)}",
        bugs_missed=missed,
        cpu_seconds=f"{time.process_time() - start:.0f}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
