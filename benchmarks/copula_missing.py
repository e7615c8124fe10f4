"""Missing blocks at the copula paper's nominal epsilon 1: its Tables 4 to 7 (RMSE, G-means, FDR), as far as possible.

MCAR (both readings of the rates: 44 % or 77 % of the records are complete), MAR simple and MAR complicated. The paper
puts VCDS behind the baselines too: complete cases, mean imputation; "single" is the response holder with party1 alone.
IEVCDS runs 10 rounds, each with the rank budget of one (the paper's tables) or with its share of it. Synthesize takes
known presence and EM, at the record-level epsilon that VCDS costs here (tens of thousands: it is as good as exact), and
at the one that VCDS with the theorem's split costs (hundreds). VertiGAN trains on the records that each party has, at
epsilon 1 for one party's block. The rank methods draw their noise as Skellam, which has the moments of flipped
comparisons.

Asked: VCDS beats VCDS on complete cases under MCAR and errors of VCDS and EVCDS fall with N; Synthesize with EM beats
complete cases and mean imputation with VCDS, at the same cost, under every mechanism at the largest N; VCDS and EVCDS
have at most half the RMSE of VertiGAN there. What the paper says beyond that is shown and not asked. These criteria are
of before 2026-11-17. Since then there are N = 3,000, the logistic model at all sizes, EVCDS behind complete cases and
mean imputation, the paper's methods as printed (N rows), and 20 draws a cell (10 of IEVCDS and of VertiGAN, which is
run at N = 5,000, linear). QUICK=1 draws once, at N = 3,000, linear, without VertiGAN.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial

import pandas as pd
from threadpoolctl import threadpool_limits

from benchmarks.common import Page, quick
from benchmarks.copula_common import (
    ROWS,
    Records,
    complete_records,
    federated,
    fitted_quality,
    holder_always_present,
    mean_imputed,
    measured,
    pooled_copula,
    record_epsilon,
    vertigan_rows,
    with_blocks,
)
from benchmarks.draws_common import Cell
from benchmarks.sparse_selection import Quality, null_rmse
from colonnade.data.simulated import Example, copula_paper
from colonnade.data.simulated.copula_paper import Missing, Rates, Response
from colonnade.papers.vcds.method import EVCDS, IEVCDS, VCDS
from colonnade.synthesis.method import Synthesize

FIRST_SEED = 94_000
DELTA = 1e-5
VCDS_1 = VCDS(epsilon=1.0, delta=DELTA, accounting="nominal", split="none", noise="skellam")
EVCDS_1 = EVCDS(epsilon=1.0, delta=DELTA, accounting="nominal", split="none", noise="skellam")
THEOREM = VCDS(epsilon=1.0, delta=DELTA, accounting="nominal", split="theorem", noise="skellam")
FAR = 0.5
MECHANISMS: dict[str, tuple[Missing, Rates]] = {
    "MCAR, rates observed": ("mcar", "observed"),
    "MCAR, .95 each": ("mcar", "table"),
    "MAR simple": ("mar-simple", "observed"),
    "MAR complicated": ("mar-complicated", "observed"),
}
METHODS = (
    "nothing missing",
    "CC-VCDS",
    "Impute-VCDS",
    "single-VCDS",
    "VCDS",
    "CC-EVCDS",
    "Impute-EVCDS",
    "EVCDS",
    "IEVCDS, each round",
    "IEVCDS, shared",
    "VertiGAN",
    "VCDS, as printed",
    "EVCDS, as printed",
    "IEVCDS, as printed",
    "Synthesize, EM",
    "Synthesize, EM, theorem's cost",
)
DRAWS, FEWER = 20, 10
PAPER = {
    "MCAR, .95 each": (0.0965, 0.0932, 0.0727, 0.0904, 0.1675),
    "MAR simple": (0.1214, 0.1367, 0.0781, 0.1240, 0.1355),
    "MAR complicated": (0.1665, 0.1250, 0.0832, 0.1156, 0.1332),
}
"""RMSE of CC-VCDS, Impute-VCDS, VCDS, EVCDS and IEVCDS: linear, N = 5,000 (Tables 4 and 6)."""


def iterated(*, per_iteration: bool) -> IEVCDS:
    stated = {"accounting": "nominal", "split": "none", "noise": "skellam"}
    return IEVCDS(epsilon=1.0, delta=DELTA, per_iteration=per_iteration, **stated)  # type: ignore[arg-type]


def sqm_rows(example: Example, seed: int, like: VCDS) -> pd.DataFrame:
    """Of Synthesize at the record-level cost of `like`."""
    records = Records.of(example)
    method = Synthesize(
        model="copula",
        epsilon=record_epsilon(like, records),
        delta=DELTA,
        presence="known",
        correlation="em",
        patterns=holder_always_present(records, example.response_holder),
    )
    return pooled_copula(method, records, seed=seed)[0].sample(ROWS, seed)


@lru_cache(maxsize=1)
def example_of(response: Response, label: str, n: int, seed: int) -> Example:
    missing, rates = MECHANISMS[label]
    return copula_paper(n, seed=seed, response=response, missing=missing, rates=rates)


def drawn(response: Response, label: str, n: int, method: str, seed: int) -> Quality:
    """One method on one draw of the records."""
    example = example_of(response, label, n, seed)
    baseline, _, kind = method.rpartition("-")
    if baseline:
        table = {
            "CC": complete_records,
            "Impute": mean_imputed,
            "single": lambda example: _present(example, "party1"),
        }[baseline](example)
        parties = ["party1", "holder"] if baseline == "single" else None
        synthesizer = VCDS_1 if kind == "VCDS" else EVCDS_1
        made = federated(synthesizer, with_blocks(example, table, parties), seed=seed)
        return fitted_quality(made.sample(ROWS), example)
    if method.endswith(", as printed"):
        changes = {"delta": DELTA, "split": "none", **({"per_iteration": True} if method.startswith("I") else {})}
        printed = {"VCDS": VCDS, "EVCDS": EVCDS, "IEVCDS": IEVCDS}[method.partition(",")[0]].as_printed(**changes)
        return fitted_quality(federated(printed, example, seed=seed).sample(n), example)
    synthesizers = {
        "VCDS": VCDS_1,
        "EVCDS": EVCDS_1,
        "IEVCDS, each round": iterated(per_iteration=True),
        "IEVCDS, shared": iterated(per_iteration=False),
    }
    if method in synthesizers:
        return fitted_quality(federated(synthesizers[method], example, seed=seed).sample(ROWS), example)
    if method == "nothing missing":
        return fitted_quality(example.truth.complete, example)
    if method == "VertiGAN":
        return fitted_quality(vertigan_rows(example, epsilon=1.0, delta=DELTA, seed=seed), example)
    like = VCDS_1 if method == "Synthesize, EM" else THEOREM
    return fitted_quality(sqm_rows(example, seed, like), example)


def complete_share(response: Response, label: str, n: int) -> dict[str, float]:
    """Of the records, in the first draw."""
    return {"share": len(complete_records(example_of(response, label, n, FIRST_SEED))) / n}


def draws_of(response: Response, n: int, method: str) -> int:
    if method == "VertiGAN":
        return FEWER if not quick() and (response, n) == ("linear", 5000) else 0
    if method == "IEVCDS, shared" and (quick() or response == "logistic"):
        return 0
    return 1 if quick() else FEWER if method.startswith("IEVCDS") else DRAWS


def _present(example: Example, party: str) -> pd.DataFrame:
    return example.truth.complete[example.truth.presence[party].to_numpy()]


def main() -> int:
    page = Page("copula-missing", "Missing blocks at a nominal epsilon of 1 (the copula paper's Tables 4 to 7)")
    cells: list[tuple[Response, int]] = [("linear", 3000)]
    if not quick():
        cells = [(response, n) for response in ("linear", "logistic") for n in (1000, 3000, 5000)]
    costs = []
    for n in sorted({size for _, size in cells}):
        records = Records.of(copula_paper(n, seed=FIRST_SEED))
        costs.append(
            f"epsilon {record_epsilon(VCDS_1, records):,.0f} at N = {n:,}, {record_epsilon(THEOREM, records):,.0f} with"
            " the theorem's split"
        )
    page.say(
        f"p = 100, five parties and a response holder that has every record; RMSE ± its standard error / G-means / FDR,"
        f" means of {draws_of('linear', 3000, 'VCDS')} draws ({FEWER} of IEVCDS and of VertiGAN); {ROWS:,} synthetic"
        " rows, N where it says as printed (`as_printed`: Bernstein marginals, adjusted rows, imputed values between"
        ' neighbours in rank; split="none" and the budget of one round in each, as its tables need); SCAD, BIC. A'
        f" model without columns has RMSE {null_rmse():.3f}."
        ' **Epsilon 1 is nominal, split="none": it protects no record.** Synthesize stands at the same cost per record'
        f" ({', '.join(costs)}; delta {DELTA:g}), where its noise is next to nothing, and at the theorem's split's;"
        " presence is known to the share holders there. VertiGAN's epsilon 1 is for one party's block of a person."
    )
    mechanisms = {label: one for label, one in MECHANISMS.items() if one[1] == "observed" or not quick()}
    mean: dict[tuple[str, str, int, str], Quality] = {}
    for response, n in cells:
        rows = []
        seeds = {method: range(FIRST_SEED, FIRST_SEED + draws_of(response, n, method)) for method in METHODS}
        for label in mechanisms:
            work: dict[Cell, Callable[[int], Quality]] = {
                (response, label, n, method): partial(drawn, response, label, n, method) for method in METHODS
            }
            found = measured(page.draws, work, {cell: seeds[str(cell[3])] for cell in work})
            mean |= {(response, label, n, str(cell[3])): each.mean for cell, each in found.items() if each.each}
            share = page.draws.get(
                (response, label, n, "complete records"), FIRST_SEED, partial(complete_share, response, label, n)
            )
            rows.append([label, f"{share['share']:.0%}", *(str(each) if each.asked else "" for each in found.values())])
        page.say(f"{response.capitalize()} model, N = {n:,}:")
        page.table(["mechanism", "complete", *METHODS], rows)
    largest = max(n for response, n in cells if response == "linear")
    compared = ("CC-VCDS", "Impute-VCDS", "VCDS", "EVCDS", "IEVCDS, each round")
    printed = {"VCDS": "VCDS, as printed", "EVCDS": "EVCDS, as printed", "IEVCDS, each round": "IEVCDS, as printed"}

    def rmse(label: str, name: str, n: int = largest) -> float:
        one = mean.get(("linear", label, n, name))
        return float("inf") if one is None else one.rmse

    page.say(f"RMSE of the linear model in the paper (N = 5,000) and here (N = {largest:,}):")
    page.table(
        ["mechanism", *(f"{name}: paper, ours" + ", as printed" * (name in printed) for name in compared)],
        [
            [
                label,
                *(
                    ", ".join(
                        [f"{there:.3f}"]
                        + [
                            f"{rmse(label, kind):.3f}"
                            for kind in (name, printed.get(name))
                            if kind and ("linear", label, largest, kind) in mean
                        ]
                    )
                    for there, name in zip(paper, compared, strict=True)
                ),
            ]
            for label, paper in PAPER.items()
        ],
    )

    smallest = min(n for response, n in cells if response == "linear")
    mcar = [label for label in mechanisms if label.startswith("MCAR")]
    checks = {
        "vcds_beats_cc_under_mcar": all(rmse(label, "VCDS") < rmse(label, "CC-VCDS") for label in mcar),
        "em_beats_cc_and_impute": all(
            rmse(label, "Synthesize, EM") < min(rmse(label, "CC-VCDS"), rmse(label, "Impute-VCDS"))
            for label in mechanisms
        ),
    }
    if ("linear", mcar[0], largest, "VertiGAN") in mean:
        checks["beats_vertigan"] = all(
            rmse(label, one) <= FAR * rmse(label, "VertiGAN") for label in mechanisms for one in ("VCDS", "EVCDS")
        )
    if smallest < largest:
        checks["falls_with_n"] = all(
            rmse(label, one, smallest) > rmse(label, one) for label in mechanisms for one in ("VCDS", "EVCDS")
        )
    shown_too = {
        "EVCDS better than VCDS under MAR": [
            rmse(one, "EVCDS") < rmse(one, "VCDS") for one in ("MAR simple", "MAR complicated")
        ],
        "IEVCDS (each round) better than EVCDS under MAR": [
            rmse(one, "IEVCDS, each round") < rmse(one, "EVCDS") for one in ("MAR simple", "MAR complicated")
        ],
        "Synthesize with EM better than all of them": [
            rmse(one, "Synthesize, EM") < min(rmse(one, name) for name in METHODS[1:-2] if name != "VertiGAN")
            for one in mechanisms
        ],
    }
    for name, good in checks.items():
        page.say(f"Asked, {name.replace('_', ' ')}: {'yes' if good else 'no'}.")
    for name, each_case in shown_too.items():
        page.say(f"Not asked, {name}: in {sum(each_case)} of {len(each_case)} mechanisms.")
    return page.finish(
        all(checks.values()),
        vcds_mar_c=f"{rmse('MAR complicated', 'VCDS'):.4f}",
        evcds_mar_c=f"{rmse('MAR complicated', 'EVCDS'):.4f}",
        em_mar_c=f"{rmse('MAR complicated', 'Synthesize, EM'):.4f}",
        **{name: "yes" if good else "no" for name, good in checks.items()},
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        sys.exit(main())
