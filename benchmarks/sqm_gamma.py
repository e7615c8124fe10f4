"""What gamma costs: sensitivity and noise of a gradient of logistic regression (the SQM paper's Figure 3).

800 features at three parties, epsilon 1, delta 1e-5, 5 epochs of 1 record in 1,000, as printed (`SQMLogistic
.as_printed`, server view). The paper adds terms for rounding to the sensitivity of a gradient, 3/4; here parties clip
after rounding, so that none are needed. Nothing is drawn: both are the method's own plan.

Criterion, set on 2026-11-17 before the run: our sensitivity is never above 3/4, and from gamma 2^10 on the noise is
within 1 % of that at the largest gamma. How far it is from DP-SGD's Gaussian noise is shown. After a first run: the
largest gamma is the largest that is not refused (65,536 is), and Gaussian noise by the accountant that SQM has was put
beside the tighter one, by which ours is 1.26 times as large.
"""

from __future__ import annotations

import math
import sys
from functools import partial

from benchmarks.common import Page
from benchmarks.rivals import vertigan
from benchmarks.rivals.dp_sgd import noise_multiplier
from colonnade.data.column import Column, Columns
from colonnade.errors import BadPrivacyParameter
from colonnade.federation.facts import PublicFacts
from colonnade.federation.roster import Member, Roster
from colonnade.papers.sqm.logistic import SQMLogistic

FEATURES, RECORDS, EPSILON, DELTA, SAMPLING, ROUNDS = 800, 10_000, 1.0, 1e-5, 0.001, 5000
GAMMAS = (64, 256, 1024, 4096, 16_384, 65_536)
EXACT = 0.75
"""L2 sensitivity of a gradient without rounding."""
PARTIES = ("a", "b", "c")


def declared() -> PublicFacts:
    """Features in [-1, 1], divided among the parties; the last one has the response."""
    columns: dict[str, list[Column]] = {party: [] for party in PARTIES}
    for number in range(FEATURES):
        columns[PARTIES[number % 3]].append(Column(name=f"x{number:03d}", kind="continuous", lower=-1.0, upper=1.0))
    columns["c"].append(Column(name="y", kind="binary", categories=(0, 1)))
    return PublicFacts(n=RECORDS, columns={party: Columns(held) for party, held in columns.items()})


def printed_overhead(gamma: int) -> float:
    """The paper's: sqrt((3/4)^2 + 9 d / gamma + 36 / gamma^2) - 3/4."""
    return math.sqrt(EXACT**2 + 9 * FEATURES / gamma + 36 / gamma**2) - EXACT


def planned(gamma: int) -> dict[str, float]:
    """Sensitivity and noise of the gradient that is opened, in units of the gradient; nothing if it is refused."""
    members = tuple(
        Member(name=party, organisation=party, public_key=bytes([place + 1]) * 32)
        for place, party in enumerate(PARTIES)
    )
    method = SQMLogistic.as_printed(response="y", epsilon=EPSILON, delta=DELTA, gamma=gamma)
    try:
        layout = method.procedure(declared(), Roster(members=members, committee=PARTIES)).layout
    except BadPrivacyParameter:  # more noise than a draw can have, 2^90
        return {}
    unit = 4.0 * gamma**3
    return {
        "sensitivity": layout.delta_2 / unit,
        "noise": math.sqrt(2 * layout.mu) / unit,
        "bits": math.log2(layout.field.modulus),
    }


def gaussian_noise(accountant: str) -> dict[str, float]:
    """DP-SGD's, by privacy loss distributions or by Renyi divergences."""
    calibrated = noise_multiplier if accountant == "pld" else vertigan.noise_multiplier
    return {"noise": EXACT * calibrated(EPSILON, DELTA, SAMPLING, ROUNDS)}


def main() -> int:
    page = Page("sqm-gamma", "SQM: what gamma costs a gradient")
    page.say(
        f"{FEATURES} features, epsilon {EPSILON:g}, delta {DELTA:g}, {ROUNDS:,} batches of {SAMPLING:g} of the records;"
        f" units of the gradient, whose L2 sensitivity without rounding is {EXACT}. *As printed*: the paper's formula"
        " for its overhead. *Ours*: rows are clipped after rounding."
    )
    central, same = (
        page.draws.get(("central", name), 0, partial(gaussian_noise, name))["noise"] for name in ("pld", "rdp")
    )
    plans = {gamma: page.draws.get(("plan", gamma), 0, partial(planned, gamma)) for gamma in GAMMAS}
    found = {gamma: values for gamma, values in plans.items() if values}
    page.table(
        (
            "gamma",
            "sensitivity overhead, as printed",
            "ours",
            "noise sd",
            "over Gaussian noise, Renyi divergences",
            "over Gaussian noise, privacy loss distributions",
            "bits of the modulus",
        ),
        [
            (
                f"{gamma:,}",
                f"{printed_overhead(gamma):.4f}",
                f"{values['sensitivity'] - EXACT:+.4f}",
                f"{values['noise']:.4f}",
                f"{values['noise'] / same:.4f}",
                f"{values['noise'] / central:.4f}",
                f"{values['bits']:.0f}",
            )
            for gamma, values in found.items()
        ],
    )
    page.say(
        "Refused, since the integers would need more noise than a draw can have (a variance of 2^91): gamma "
        + (", ".join(f"{gamma:,}" for gamma in GAMMAS if gamma not in found) or "none of them")
        + "."
    )
    page.say(
        f"DP-SGD's Gaussian noise has a standard deviation of {same:.4f} by Renyi divergences, by which ours is"
        f" calibrated too, and of {central:.4f} by privacy loss distributions. The second reference, and which gamma is"
        " the largest where one is refused, were added after a first run."
    )
    last = found[max(found)]["noise"]
    worst = max(abs(values["noise"] / last - 1) for gamma, values in found.items() if gamma >= 1024)
    most = max(values["sensitivity"] for values in found.values())
    return page.finish(
        most <= EXACT and worst <= 0.01,
        sensitivity=f"{most:.4f}",
        noise=f"{last:.4f}",
        over_gaussian=f"{last / same:.4f}",
        over_gaussian_pld=f"{last / central:.4f}",
        worst_from_1024=f"{worst:.4f}",
    )


if __name__ == "__main__":
    sys.exit(main())
