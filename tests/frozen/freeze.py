"""Writes plans.json: what every method planned before the redesign, as data. README.md says how it is compared.

It runs with the source of commit 8c3c7c9 only, and refuses any other:

    PYTHONPATH=<a worktree of 8c3c7c9>/src python tests/frozen/freeze.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import colonnade
from colonnade.data.column import Column, Columns
from colonnade.data.simulated import five_institutions
from colonnade.errors import ColonnadeError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.method import METHODS, method, method_class
from colonnade.federation.plan import Plan
from colonnade.federation.roster import Member, Roster
from colonnade.statistics.polynomial import Polynomial

COMMIT = "8c3c7c9"
HERE = Path(__file__).parent

# --- who takes part, and what is public ------------------------------------------------------------------------


def _facts(n: int, **columns: list[Column]) -> PublicFacts:
    return PublicFacts(n=n, columns={party: Columns(own) for party, own in columns.items()})


def _roster(
    members: Mapping[str, str], *, without_data: Iterable[str] = (), committee: Iterable[str] = (), **stated: int
) -> Roster:
    """{member: organisation}. Keys are fixed bytes: no plan depends on them."""
    made = tuple(
        Member(
            name=name, organisation=organisation, public_key=bytes([1 + at]) * 32, owns_data=name not in without_data
        )
        for at, (name, organisation) in enumerate(members.items())
    )
    return Roster(members=made, committee=tuple(committee), **stated)


AGE = Column(name="age", kind="continuous", lower=0.0, upper=100.0)
VISITS = Column(name="visits", kind="count", lower=0, upper=9)
STAY = Column(name="stay", kind="continuous", lower=-5.0, upper=45.0)
SUED = Column(name="sued", kind="binary", categories=("no", "yes"))
DAMAGES = Column(name="damages", kind="count", lower=0, upper=5000)
SECTOR = Column(name="sector", kind="categorical", categories=("farming", "trade", "mining"))
RATING = Column(name="rating", kind="ordinal", categories=("C", "B", "A"))
INCOME = Column(name="income", kind="continuous", lower=0.0, upper=250.0, cuts=(10.0, 25.0, 50.0, 100.0))

CLINIC, COURT, BANK = [AGE, VISITS, STAY], [SUED, DAMAGES], [SECTOR, RATING, INCOME]
WITH_GAPS = [
    Column(name="debt", kind="continuous", lower=0.0, upper=90.0, missing=True),
    Column(name="grade", kind="ordinal", categories=(1, 2, 3, 4), missing=True),
]


def _five() -> tuple[PublicFacts, Mapping[str, str]]:
    """The public facts and the organisations of the five institutions, as `Federation.local` makes them."""
    example = five_institutions(n=1000, seed=0)
    held = {party: [one for one in block.columns if one != example.key] for party, block in example.blocks.items()}
    columns = {party: example.columns.select(names) for party, names in held.items()}
    return PublicFacts(n=1000, columns=columns), example.organisations


def settings() -> dict[str, tuple[PublicFacts, Roster]]:
    """{roster id: facts and roster}."""
    three = {name: name for name in ("clinic", "court", "bank")}
    two = {name: name for name in ("court", "bank")}
    with_holder = {**two, "holder": "university"}
    small = _facts(600, clinic=CLINIC, court=COURT, bank=BANK)
    pair = _facts(800, court=COURT, bank=BANK)
    five, organisations = _five()
    all_five = tuple(organisations)
    return {
        "three": (small, _roster(three, committee=three)),
        # so many records that rows travel in several chunks
        "large": (_facts(5_000_000, clinic=CLINIC, court=COURT, bank=BANK), _roster(three, committee=three)),
        # two columns that may have empty cells
        "gaps": (_facts(900, clinic=CLINIC, court=COURT, bank=[*BANK, *WITH_GAPS]), _roster(three, committee=three)),
        # a fourth member without data, of the same organisation as the first
        "sisters": (small, _roster({**three, "archive": "clinic"}, without_data=["archive"], committee=three)),
        # all noise is known to two colluding organisations, and there is no committee
        "pooled": (small, _roster({**three, "court": "clinic"}, colluders=2)),
        "five": (five, _roster(organisations, committee=all_five[:3])),
        "five-strict": (five, _roster(organisations, committee=all_five, threshold=2, colluders=2)),
        "holder": (pair, _roster(with_holder, without_data=["holder"], committee=with_holder)),
        "holder-colluding": (pair, _roster(with_holder, without_data=["holder"], committee=with_holder, colluders=2)),
        "two-alone": (pair, _roster(two)),
    }


# --- the cases -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A method with options, planned for a roster. `what` says in a few words which options are looked at."""

    method: str
    what: str
    roster: str
    given: Mapping[str, Any]

    @property
    def id(self) -> str:
        return f"{self.method}-{self.what}-{self.roster}"


def _case(name: str, what: str, roster: str, **given: Any) -> Case:
    return Case(name, what, roster, given)


LAST_TWO = [(False, True, True), (True, True, True), (True, False, True)]
FIRM = ("capital", "investors", "roa", "inspections", "unreachable", "fines")
PRODUCT = Polynomial.of([(1.0, {"age": 1, "income": 1}), (-2, {"sued": 1})])
CUBIC = Polynomial.of(
    [(0.5, {"age": 2, "sued": 1}), (1, {"visits": 1, "damages": 1, "rating": 1}), (0.3, {})],
    [(1, {"sector[trade]": 1}), (0.25, {"stay": 1})],
)
WITHIN = Polynomial.of([(3, {"sued": 1, "damages": 1}), (1, {"income": 2})])


def _describe() -> list[Case]:
    return [
        _case("describe", "default", "three"),
        _case("describe", "laplace", "three", delta=0.0, epsilon=2.0),
        _case("describe", "quantiles", "five", marginals="quantiles"),
        _case("describe", "small-epsilon-bins", "five", epsilon=0.01, delta=1e-9, bins=5),
        _case("describe", "columns", "holder", columns=("income", "sued"), bins=50),
        _case("describe", "large-epsilon", "gaps", epsilon=50.0),
        _case("describe", "laplace-quantiles", "gaps", delta=0.0, marginals="quantiles", columns=("debt", "age")),
        _case("describe", "one-party", "two-alone", columns=("rating",)),
    ]


def _moments() -> list[Case]:
    return [
        _case("moments", "default", "three"),
        _case("moments", "exact", "three", epsilon=None),
        _case("moments", "exact-secret", "holder", epsilon=None, presence="secret"),
        _case("moments", "secret", "five", presence="secret"),
        _case("moments", "ignore", "holder", presence="ignore"),
        _case("moments", "small-epsilon", "three", epsilon=0.02, delta=1e-9),
        _case("moments", "large-epsilon", "five", epsilon=100.0, delta=1e-3),
        _case("moments", "server", "five-strict", view="server"),
        _case("moments", "client", "five-strict", presence="secret"),
        _case("moments", "replace", "three", relation="replace"),
        _case("moments", "replace-server", "holder-colluding", relation="replace", view="server", presence="ignore"),
        _case("moments", "colluding", "holder-colluding", presence="secret", relation="replace"),
        _case("moments", "sisters", "sisters"),
        _case("moments", "clip", "three", clip={"clinic": 0.8, "bank": 1.1}),
        _case("moments", "no-constant", "three", constant=False, presence="ignore", gamma=2**9),
        _case("moments", "patterns", "three", patterns=tuple(LAST_TWO)),
        _case("moments", "columns", "five", columns=FIRM, gamma=2**14),
        _case("moments", "block", "five", block=16, presence="secret"),
        _case("moments", "memory", "large", memory=700, presence="secret"),
        _case("moments", "memory-rounds", "five", memory=403),
        _case("moments", "large", "large", presence="secret", epsilon=4.0),
        _case("moments", "memory-too-small", "three", memory=100),
        _case("moments", "no-committee", "two-alone"),
    ]


def _pca() -> list[Case]:
    return [
        _case("pca", "default", "five"),
        _case("pca", "exact", "three", epsilon=None, n_components=2),
        _case("pca", "centre-secret", "three", centre=True, presence="secret", n_components=3),
        _case("pca", "known", "holder", presence="known", n_components=2, gamma=2**10),
        _case("pca", "clip-share", "five", clip=0.6, epsilon=0.1, delta=1e-8),
        _case("pca", "clip-parties", "holder", clip={"bank": 0.9}, n_components=1, epsilon=20.0),
        _case("pca", "replace-server", "five-strict", relation="replace", view="server"),
        _case("pca", "columns-block", "five-strict", columns=FIRM, block=2, n_components=2, centre=True),
        _case("pca", "memory", "large", memory=700, n_components=2),
        _case("pca", "too-many-components", "holder", n_components=40),
    ]


def _classify() -> list[Case]:
    few: dict[str, Any] = {"response": "sued", "columns": ("age", "income", "sector")}
    batches: dict[str, Any] = {"solver": "minibatch", "rounds": 30, "sampling": 0.05}
    return [
        _case("classify", "default", "five", response="failed"),
        _case("classify", "exact", "three", response="sued", epsilon=None),
        _case("classify", "secret-clip", "three", **few, presence="secret", clip=0.87, epsilon=0.2),
        _case("classify", "known-replace", "three", **few, presence="known", relation="replace", delta=1e-8),
        _case("classify", "server", "holder", response="sued", view="server", clip={"bank": 1.0}, block=2),
        _case("classify", "colluding", "holder-colluding", response="sued", gamma=2**10, ridge=0.01, intercept=False),
        _case("classify", "minibatch", "five", response="failed", solver="minibatch", epsilon=8.0),
        _case("classify", "minibatch-rounds", "three", **few, **batches, radius=0.5, intercept=False),
        _case("classify", "minibatch-server", "three", **few, **batches, view="server", learning_rate=2.0),
        _case("classify", "minibatch-replace", "holder", response="sued", **batches, relation="replace", gamma=2**11),
        _case("classify", "minibatch-strict", "five-strict", response="removed", columns=FIRM, **batches, clip=0.5),
        _case("classify", "not-binary", "three", response="age"),
    ]


def _vfem() -> list[Case]:
    growth: dict[str, Any] = {"response": "profit_growth"}
    firm = {**growth, "columns": FIRM}
    stay: dict[str, Any] = {"response": "stay"}
    rounds: dict[str, Any] = {**stay, "cross_party": "independent"}
    return [
        _case("vfem", "default", "five", **growth),
        _case("vfem", "columns-gamma", "five-strict", **firm, gamma=2**16, minimum_joint=20),
        _case("vfem", "complete-case", "three", **stay, missing="complete-case"),
        _case("vfem", "mean", "three", **stay, missing="mean"),
        _case("vfem", "single", "holder", response="income", missing="single"),
        _case("vfem", "binomial", "three", response="sued", family="binomial"),
        _case("vfem", "independent-exact", "three", **rounds, step="exact", init="mean"),
        _case("vfem", "independent-mean", "five", **firm, cross_party="independent", missing="mean"),
        _case("vfem", "rounds", "three", **rounds),
        _case("vfem", "rounds", "five", **firm, cross_party="independent", iterations=150, tolerance=1e-4),
        _case("vfem", "rounds-plain", "three", **rounds, exchange="plain", init="mean", iterations=50),
        _case("vfem", "rounds-plain", "holder", response="income", cross_party="independent", exchange="plain"),
        _case("vfem", "sketch", "three", **rounds, information="sketch", sketch_size=20, coordinator="university"),
        _case("vfem", "rounds-strict", "five-strict", **firm, cross_party="independent", gamma=2**18),
        _case("vfem", "private", "five", **firm, epsilon=1.0),
        _case("vfem", "private-small", "three", **stay, epsilon=0.1, delta=1e-9, clip_quantile=0.9),
        _case("vfem", "private-large", "holder", response="income", epsilon=30.0, minimum_joint=5),
        _case("vfem", "private", "five-strict", **firm, epsilon=2.0, gamma=2**12),
        _case("vfem", "private", "sisters", **stay, epsilon=2.0),
        _case("vfem", "masked-of-two", "holder", response="income", cross_party="independent"),
        _case("vfem", "sketch-by-a-party", "three", **rounds, information="sketch", coordinator="bank"),
    ]


def _sparse_glm() -> list[Case]:
    growth: dict[str, Any] = {"response": "profit_growth", "columns": FIRM}
    stay: dict[str, Any] = {"response": "stay"}
    sued: dict[str, Any] = {"response": "sued", "family": "binomial"}
    visits: dict[str, Any] = {"response": "visits", "family": "poisson"}
    return [
        _case("sparse-glm", "default", "five", response="profit_growth"),
        _case("sparse-glm", "moments-secret", "three", **stay, via="moments", presence="secret", gamma=2**18),
        _case("sparse-glm", "moments-ignore", "holder", response="income", presence="ignore", penalty="mcp"),
        _case("sparse-glm", "moments-binomial", "three", **sued, via="moments"),
        _case("sparse-glm", "newton", "three", **stay, via="newton"),
        _case("sparse-glm", "newton-lasso", "five", **growth, via="newton", penalty="lasso", n_lambdas=20),
        _case("sparse-glm", "newton-strict", "five-strict", **growth, via="newton", lla_steps=3, ratio=0.01),
        _case("sparse-glm", "newton-binomial", "three", **sued),
        _case("sparse-glm", "newton-poisson", "five", response="changes", family="poisson", columns=FIRM),
        _case("sparse-glm", "newton-cv", "three", **stay, criterion="cv", folds=4, lambdas=(1.0, 0.5, 0.1)),
        _case("sparse-glm", "newton-plain", "holder", response="income", via="newton", exchange="plain", rounds=60),
        _case("sparse-glm", "admm", "three", **stay, via="admm", tolerance=1e-4),
        _case("sparse-glm", "admm-paper", "three", **visits, via="admm", damping="paper", penalty="mcp"),
        _case("sparse-glm", "admm-cv", "five", **growth, via="admm", criterion="cv", n_lambdas=10, penalty="lasso"),
        _case("sparse-glm", "admm-plain", "holder", response="sued", family="binomial", via="admm", exchange="plain"),
        _case("sparse-glm", "private", "five", **growth, epsilon=1.0),
        _case("sparse-glm", "private-binomial", "three", **sued, epsilon=0.3, delta=1e-8),
        _case("sparse-glm", "private-known", "three", **stay, epsilon=8.0, presence="known", clip={"bank": 0.5}),
        _case("sparse-glm", "private-server", "holder-colluding", response="income", epsilon=2.0, view="server"),
        _case("sparse-glm", "private-replace", "five-strict", **growth, epsilon=2.0, relation="replace", gamma=2**10),
        _case("sparse-glm", "private-ignore", "sisters", **stay, epsilon=100.0, presence="ignore"),
        _case("sparse-glm", "masked-of-two", "holder", response="income", via="newton"),
        _case("sparse-glm", "empty-cells", "gaps", response="debt", via="newton"),
    ]


def _contingency() -> list[Case]:
    pairs = (("sued", "sector"), ("age", "rating"))
    triple = (("visits", "sued", "rating"), ("sector", "income"), ("age",))
    here = (("sued", "sector"), ("damages", "income", "rating"), ("sued", "damages"))
    return [
        _case("contingency", "pairs", "three", tables=pairs),
        _case("contingency", "triple", "three", tables=triple, bins=4),
        _case("contingency", "exact", "three", tables=triple, bins=3, epsilon=None),
        _case("contingency", "exact-within", "holder", tables=(("sued",), ("sector", "rating")), epsilon=None),
        _case(
            "contingency",
            "split",
            "three",
            tables=triple,
            split=(4.0, 2.0, 1.0),
            bins={"age": 7, "income": 3, "visits": 5},
        ),
        _case("contingency", "replace", "holder", tables=here, relation="replace", bins=5, delta=1e-8),
        _case("contingency", "server", "holder-colluding", tables=here, view="server", epsilon=0.05),
        _case("contingency", "colluding", "holder-colluding", tables=here, epsilon=30.0),
        _case("contingency", "strict", "five-strict", tables=(("scale", "removed"), ("region", "roa", "inspections"))),
        _case("contingency", "memory", "five", tables=(("scale", "removed", "region"),), memory=1 << 16),
        _case("contingency", "chunks", "large", tables=triple, bins=4),
        _case("contingency", "gaps", "gaps", tables=(("grade", "sued"), ("debt", "age")), bins=6),
        _case("contingency", "four-parties", "five", tables=(("scale", "removed", "region", "penalty_1"),)),
    ]


def _polynomial() -> list[Case]:
    return [
        _case("polynomial", "product", "three", polynomial=PRODUCT),
        _case("polynomial", "cubic", "three", polynomial=CUBIC),
        _case("polynomial", "exact", "three", polynomial=CUBIC, epsilon=None),
        _case("polynomial", "within", "holder", polynomial=WITHIN, epsilon=10.0),
        _case("polynomial", "gamma-bounds", "three", polynomial=PRODUCT, gamma=2**8, bounds={"age": 0.5}),
        _case("polynomial", "replace", "three", polynomial=PRODUCT, relation="replace", epsilon=0.1, delta=1e-9),
        _case("polynomial", "server", "holder-colluding", polynomial=WITHIN, view="server"),
        _case("polynomial", "sisters", "sisters", polynomial=PRODUCT),
        _case("polynomial", "memory", "three", polynomial=CUBIC, memory=1 << 12),
        _case("polynomial", "chunks", "large", polynomial=CUBIC),
        _case(
            "polynomial",
            "strict",
            "five-strict",
            polynomial=Polynomial.of([(1.0, {"roa": 1, "capital": 1, "fines": 1}), (0.5, {"inspections": 2})]),
        ),
        _case("polynomial", "unknown-feature", "three", polynomial=Polynomial.of([(1.0, {"height": 1})])),
    ]


def _ranks() -> list[Case]:
    some = ("capital", "roa", "inspections", "failed", "fines")
    shared = {"clinic": 0.7, "court": 0.6, "clinic+court": 0.4}
    nominal: dict[str, Any] = {"accounting": "nominal", "iterations": 2}
    return [
        _case("vcds", "default", "three"),
        _case("vcds", "skellam", "three", noise="skellam", epsilon=8.0),
        _case("vcds", "small-epsilon", "holder", epsilon=0.05, delta=1e-9, noise="skellam"),
        _case("vcds", "nominal", "five", accounting="nominal", columns=some),
        _case("vcds", "nominal-unsplit", "three", accounting="nominal", split="none", noise="skellam", epsilon=2.0),
        _case("vcds", "bernstein", "two-alone", marginals="bernstein", order=3, degree=12),
        _case("vcds", "histogram-expected", "three", marginals="histogram", expected=shared, noise="skellam"),
        _case("vcds", "gaps", "gaps", noise="skellam", columns=("debt", "grade", "age"), rows=50, format="csv"),
        _case("evcds", "default", "holder"),
        _case("evcds", "skellam", "five", noise="skellam", columns=some, epsilon=4.0, delta=1e-5),
        _case("evcds", "nominal", "three", accounting="nominal", split="none", draws="adjusted", sweeps=0),
        _case("evcds", "bernstein", "three", noise="skellam", marginals="bernstein", order=1, expected=shared),
        _case("evcds", "degree", "two-alone", noise="skellam", marginals="bernstein", degree=9, rows=40, format="csv"),
        _case("ievcds", "default", "three", noise="skellam"),
        _case("ievcds", "three-rounds", "holder", iterations=3, imputation="ranked"),
        _case("ievcds", "nominal", "three", accounting="nominal", iterations=4, expected=shared, rows=10),
        _case("ievcds", "nominal-each-round", "five", accounting="nominal", per_iteration=True, columns=some),
        _case("ievcds", "unsplit-histogram", "gaps", accounting="nominal", split="none", marginals="histogram"),
        _case("ievcds", "bernstein", "five", **nominal, columns=some, epsilon=3.0, marginals="bernstein", order=3),
        _case("ievcds", "adjusted", "sisters", **nominal, degree=8, draws="adjusted", sweeps=2, format="csv"),
        _case("ievcds", "pure", "three", delta=0.0),
    ]


def _align() -> list[Case]:
    three = {"clinic": 700, "court": 500, "bank": 650}
    two = {"court": 500, "bank": 650}
    five = {"credit": 600, "market": 200, "court": 100, "commerce": 1000, "enforcement": 100}
    return [
        _case("align", "union", "three", capacity=three),
        _case("align", "matcher", "three", capacity=three, matcher="bank", epsilon=0.1),
        _case("align", "one-party", "three", capacity=three, include="court", normalise=("case", "spaces")),
        _case("align", "no-report", "three", capacity=three, epsilon=None),
        _case("align", "sister-matches", "sisters", capacity=three),
        _case("align", "union", "five", capacity=five),
        _case("align", "one-party", "five-strict", capacity=five, include="commerce", epsilon=5.0),
        _case("align", "union", "holder", capacity=two, normalise=("accents",)),
        _case("align", "party-matches", "holder", capacity=two, matcher="court"),
        _case("align", "blind-rsa", "three", capacity=three, include="clinic", protocol="blind-rsa"),
        _case("align", "blind-rsa", "two-alone", capacity=two, protocol="blind-rsa", epsilon=None),
        _case("align", "blind-rsa", "holder", capacity=two, include="bank", protocol="blind-rsa"),
        _case("align", "blind-rsa-union", "three", capacity=three, protocol="blind-rsa"),
    ]


def _presence_total() -> list[Case]:
    return [
        _case("presence-total", "default", "three"),
        _case("presence-total", "exact", "two-alone", epsilon=None),
        _case("presence-total", "server", "five", view="server", epsilon=0.05),
        _case("presence-total", "replace", "three", relation="replace", delta=1e-9),
        _case("presence-total", "strict", "five-strict", epsilon=3.0),
        _case("presence-total", "colluding", "holder-colluding", epsilon=50.0, relation="replace"),
        _case("presence-total", "sisters", "sisters"),
        _case("presence-total", "no-honest-noise", "pooled"),
    ]


def _vertimrf() -> list[Case]:
    some = ("scale", "removed", "penalty_1", "region", "inspections", "capital")
    few: dict[str, Any] = {"columns": ("age", "sued", "sector", "income")}
    return [
        _case("vertimrf", "default", "three"),
        _case("vertimrf", "exact", "three", epsilon=None, cells=6),
        _case("vertimrf", "small-epsilon", "five", epsilon=0.1, delta=1e-9, columns=some),
        _case("vertimrf", "server", "holder-colluding", view="server", tables=5),
        _case("vertimrf", "replace", "holder", relation="replace", epsilon=20.0, rows=30),
        _case("vertimrf", "strict", "five-strict", columns=some, split=(0.2, 0.3, 0.5), bins=4),
        _case("vertimrf", "cuts", "three", cuts="quantiles", theta_triples=float("inf"), discrepancy=0.0),
        _case("vertimrf", "cuts-replace", "gaps", cuts="quantiles", relation="replace", cells=8, theta=1.0),
        _case("vertimrf", "one-column", "three", columns=("rating",), max_clique=1000, format="csv"),
        _case("vertimrf", "fm", "three", encoder="fm", sketches=500),
        _case("vertimrf", "fm-complete", "five", encoder="fm", complete=True, columns=some, epsilon=4.0),
        _case("vertimrf", "fm-noisy-count", "holder", encoder="fm", complete=True, records="noisy", bins=3),
        _case("vertimrf", "fm-no-local", "three", encoder="fm", local_mrf=False, recover="uniform", iterations=100),
        _case("vertimrf", "fm-cuts", "three", encoder="fm", cuts="quantiles", **few),
        _case("vertimrf", "fo", "three", encoder="fo", **few),
        _case("vertimrf", "fo-paper", "three", encoder="fo", accounting="paper", **few, split=(0.2, 0.6, 0.2)),
        _case("vertimrf", "fo-complete", "holder", encoder="fo", complete=True, epsilon=8.0, consistency=False),
        _case("vertimrf", "fo-noisy-count", "five", encoder="fo", complete=True, records="noisy", columns=some),
        _case("vertimrf", "fo-no-local", "three", encoder="fo", local_mrf=False, **few, max_clique=5000),
        _case("vertimrf", "fo-cuts", "two-alone", encoder="fo", cuts="quantiles", delta=1e-8),
        _case("vertimrf", "no-committee", "two-alone"),
        _case("vertimrf", "exact-cuts", "three", epsilon=None, cuts="quantiles"),
    ]


def _fedpsg() -> list[Case]:
    private: dict[str, Any] = {"epsilon": 2.0, "batch": 50, "local": 5, "epochs": 4}
    network: dict[str, Any] = {"iterations": 300, "local": 10, "batch": 64, "hidden": 24, "cut": 6}
    drawn: dict[str, Any] = {"n_correlated": 2, "generator_steps": 300}
    return [
        _case("fedpsg", "default", "three"),
        _case("fedpsg", "default", "five", complete=("market", "court")),
        _case("fedpsg", "gaps", "gaps", complete=("bank",), seed=7, format="csv"),
        _case("fedpsg", "network", "three", **network, dropout=0.2, rate=1e-2, validation=0.2, patience=4),
        _case("fedpsg", "two-parties", "holder", complete=("bank",)),
        _case("fedpsg", "ckks", "three", protect="ckks", **network),
        _case("fedpsg", "gain", "three", imputer="gain"),
        _case("fedpsg", "gain-unconditioned", "holder", imputer="gain", condition="none"),
        _case("fedpsg", "vgain", "three", imputer="vgain", complete=("clinic",)),
        _case("fedpsg", "vgain-ckks", "holder", imputer="vgain", protect="ckks"),
        _case("fedpsg", "cgain", "three", imputer="cgain", label="sector"),
        _case("fedpsg", "copula-mean", "three", imputer="copula-mean"),
        _case("fedpsg", "copula-draw", "holder", imputer="copula-draw", protect="ckks"),
        _case("fedpsg", "mice", "three", imputer="mice"),
        _case("fedpsg", "mice", "five-strict", imputer="mice", complete=("credit",)),
        _case("fedpsg", "mean", "two-alone", imputer="mean"),
        _case("fedpsg", "tabddpm", "three", **drawn),
        _case("fedpsg", "tvae-unconditioned", "three", **drawn, generator="tvae", condition="none", imputer="mean"),
        _case("fedpsg", "copula-generator", "three", **drawn, generator="copula", imputer="vgain"),
        _case("fedpsg", "label", "three", label="rating", imputer="mean"),
        _case("fedpsg", "label", "five", label="failed", complete=("credit",), **network),
        _case("fedpsg", "private", "three", **private),
        _case("fedpsg", "private-clip", "holder", **{**private, "epsilon": 0.5}, clip=0.3, delta=1e-8),
        _case("fedpsg", "private-gain", "three", **private, imputer="gain", complete=("court",)),
        _case("fedpsg", "private-cgain", "three", **private, imputer="cgain", label="sued", condition="none"),
        _case("fedpsg", "empty-cells", "gaps", imputer="mice"),
        _case("fedpsg", "too-few-epochs", "three", epsilon=1.0, epochs=1, batch=500),
    ]


def _copula_sqm() -> list[Case]:
    shared = {"court": 0.5, "court+bank": 0.3}
    return [
        _case("copula-sqm", "default", "three"),
        _case("copula-sqm", "default", "five"),
        _case("copula-sqm", "exact", "three", epsilon=None),
        _case("copula-sqm", "exact-known", "holder", epsilon=None, presence="known"),
        _case("copula-sqm", "known", "three", presence="known", correlation="em", epsilon=8.0),
        _case("copula-sqm", "patterns", "three", presence="known", patterns=tuple(LAST_TWO), correlation="pairs"),
        _case("copula-sqm", "share", "three", marginal_share=0.3, delta=1e-9),
        _case("copula-sqm", "clip-gamma", "three", clip={"clinic": 1.0}, gamma=2**9, rows=20, format="csv"),
        _case("copula-sqm", "small-epsilon", "holder", epsilon=0.05),
        _case("copula-sqm", "expected", "holder", expected=shared, epsilon=100.0),
        _case("copula-sqm", "server", "holder-colluding", view="server", epsilon=2.0),
        _case("copula-sqm", "colluding", "holder-colluding", relation="replace"),
        _case("copula-sqm", "strict", "five-strict", columns=FIRM, epsilon=2.0),
        _case("copula-sqm", "sisters", "sisters", relation="replace", presence="known"),
        _case("copula-sqm", "empty-cells", "gaps"),
        _case("copula-sqm", "columns", "gaps", columns=("age", "sued", "income")),
    ]


def cases() -> list[Case]:
    """All cases, in the order of the registry."""
    made = [
        *_describe(),
        *_moments(),
        *_pca(),
        *_classify(),
        *_vfem(),
        *_sparse_glm(),
        *_contingency(),
        *_polynomial(),
        *_ranks(),
        *_align(),
        *_presence_total(),
        *_vertimrf(),
        *_fedpsg(),
        *_copula_sqm(),
    ]
    ids = [one.id for one in made]
    assert len(set(ids)) == len(ids), "two cases have the same id"
    assert {one.method for one in made} == set(METHODS), "a method of the registry has no case"
    return made


# --- as data ---------------------------------------------------------------------------------------------------


class Costs:
    """The distinct costs of all plans; a plan names its costs by their place here."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, cost: Any) -> int:
        return self.places.setdefault(dumped(cost), len(self.places))


def dumped(plain: Any) -> str:
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def frozen(plan: Plan, costs: Costs) -> dict[str, Any]:
    """A plan without its method and options, which the case has."""
    plain = plan.to_dict()
    phases = [
        {**one, "costs": {party: costs.place(cost) for party, cost in one["costs"].items()}} for one in plain["phases"]
    ]
    return {"delta": plain["delta"], "notes": plain["notes"], "phases": phases}


def planned(case: Case, facts: PublicFacts, roster: Roster, costs: Costs) -> dict[str, Any]:
    """The case with its plan, or with the error that refuses it. Everything passes through JSON, as in a run folder."""
    options = json.loads(dumped(method_class(case.method)(**case.given).options()))
    stored = {"id": case.id, "roster": case.roster, "method": case.method, "options": options}
    try:
        plan = method(case.method, options).plan(facts, roster)
    except ColonnadeError as error:
        return {**stored, "error": type(error).__name__}
    return {**stored, "plan": frozen(plan, costs)}


def written(known: Mapping[str, Any], costs: Costs, made: Iterable[Mapping[str, Any]]) -> str:
    """One line for each roster, cost and case, so that a difference can be read."""
    rosters = ",\n".join(f"{dumped(name)}: {dumped(one)}" for name, one in known.items())
    return (
        f'{{"commit": {dumped(COMMIT)},\n"rosters": {{\n{rosters}\n}},\n"costs": [\n'
        + ",\n".join(costs.places)
        + '\n],\n"cases": [\n'
        + ",\n".join(map(dumped, made))
        + "\n]}\n"
    )


def check_source() -> None:
    """Refuse to freeze anything but the code before the redesign."""
    source = Path(colonnade.__file__).parent
    head = subprocess.run(
        ["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout
    changed = subprocess.run(
        ["git", "-C", str(source), "status", "--porcelain", "."], capture_output=True, text=True, check=True
    ).stdout
    if not head.startswith(COMMIT) or changed:
        sys.exit(f"{source} is not commit {COMMIT} unchanged; set PYTHONPATH to the src of a worktree of it.")


def main() -> None:
    check_source()
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "plans.json"
    known = settings()
    # Facts and rosters as they are read back, which is what the test has.
    plain = {name: {"facts": facts.to_dict(), "roster": roster.to_dict()} for name, (facts, roster) in known.items()}
    plain = json.loads(dumped(plain))
    costs, made = Costs(), []
    for case in cases():
        since = time.perf_counter()
        facts = PublicFacts.from_dict(plain[case.roster]["facts"])
        roster = Roster.from_dict(plain[case.roster]["roster"])
        made.append(planned(case, facts, roster, costs))
        took = time.perf_counter() - since
        sys.stdout.write(f"{took:6.2f} s  {case.id}  {made[-1].get('error', '')}\n")
    target.write_text(written(plain, costs, made), encoding="utf-8")
    refused = sum("error" in one for one in made)
    sys.stdout.write(f"{len(made)} cases, {refused} of them refused, {len(costs.places)} distinct costs: {target}\n")


if __name__ == "__main__":
    main()
