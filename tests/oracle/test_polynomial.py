"""Polynomials on secret shares against Python integers on the pooled records: equal, exactly, with the noise off."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from colonnade.codec import convert, plain
from colonnade.errors import (
    BadArguments,
    BadPrivacyParameter,
    BeyondReservation,
    ModulusTooSmall,
    SecureError,
    UnboundedNotAllowed,
    UnknownColumn,
)
from colonnade.federation.coordinator import Federation
from colonnade.privacy.accounting import guarantee
from colonnade.statistics import circuit
from colonnade.statistics.polynomial import Polynomial, PolynomialSum
from support.asking import asking
from support.patterns import FIVE_COLUMNS, blocks_of_every_pattern
from support.small import computing_by, three_parties

ALLOW = ("exact-polynomial",)
GAMMA = 900
Rows = list[dict[str, int]]


def pooled(blocks: Mapping[str, pd.DataFrame], gamma: int = GAMMA) -> Rows:
    """Every record's features times gamma, from the frames: whole numbers. A missing block is zeros."""
    features = {
        "age": lambda value: Fraction(value) / 50 - 1,
        "visits": lambda value: Fraction(int(value) * 2, 9) - 1,
        "sued": lambda value: 1 if value == "yes" else -1,
        "rating": lambda value: "CBA".index(value) - 1,
        "sector[trade]": lambda value: int(value == "trade"),
        "sector[mining]": lambda value: int(value == "mining"),
        "x0": lambda value: 2 * int(value) - 1,
        "x1": lambda value: 2 * int(value) - 1,
    }
    rows: dict[str, dict[str, int]] = {}
    for frame in blocks.values():
        for record in frame.to_dict("records"):
            row = rows.setdefault(str(record["id"]), dict.fromkeys(features, 0))
            for name, value in features.items():
                column = name.partition("[")[0]
                if column in record:
                    scaled = value(record[column]) * gamma
                    assert scaled == int(scaled)
                    row[name] = int(scaled)
    return list(rows.values())


def evaluated(
    polynomial: list[list[tuple[float, dict[str, int]]]], rows: Rows, gamma: int = GAMMA
) -> tuple[int, list[int]]:
    """(scale, sums): Algorithm 3 as the paper writes it, in Python integers; without the extra gamma if nothing needs
    rounding."""
    degree = max(sum(exponents.values()) for output in polynomial for _, exponents in output)

    def coefficient(a: float, exponents: dict[str, int], extra: int) -> Fraction:
        return Fraction(a) * gamma ** (degree + extra - sum(exponents.values()))

    exact = all(coefficient(a, e, 0).denominator == 1 for output in polynomial for a, e in output)
    extra = 0 if exact else 1
    sums = [
        sum(
            round(coefficient(a, exponents, extra)) * math.prod(row[name] ** e for name, e in exponents.items())
            for a, exponents in output
            for row in rows
        )
        for output in polynomial
    ]
    return gamma ** (degree + extra), sums


@pytest.fixture(scope="module")
def federations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, tuple[Federation, Rows]]]:
    three, five = blocks_of_every_pattern(35), blocks_of_every_pattern(155, parties=5)
    home = tmp_path_factory.mktemp("polynomial")
    with (
        three_parties(home / "3", blocks=three, allow=ALLOW) as first,
        three_parties(home / "5", blocks=five, columns=FIVE_COLUMNS, allow=ALLOW, threshold=2) as second,
    ):
        assert (len(first.roster.committee), len(second.roster.committee)) == (3, 5)
        yield {3: (first, pooled(three)), 5: (second, pooled(five))}


@pytest.fixture(scope="module")
def in_pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, Rows]]:
    """Three parties without share holders."""
    blocks = blocks_of_every_pattern(35)
    given = computing_by("pair", blocks)
    with three_parties(tmp_path_factory.mktemp("in-pairs"), allow=ALLOW, **given) as federation:
        yield federation, pooled(blocks)


def monomials(names: list[str]) -> st.SearchStrategy[dict[str, int]]:
    """Exponents that sum up to 1 ... 4."""
    return st.lists(st.sampled_from(names), min_size=1, max_size=4).map(
        lambda drawn: {one: drawn.count(one) for one in drawn}
    )


HELD = [["age", "visits"], ["sued"], ["rating", "sector[trade]", "sector[mining]"]]
THREE = [name for names in HELD for name in names]
COEFFICIENTS = st.one_of(st.integers(-5, 5).filter(bool), st.floats(-2, 2).filter(lambda a: abs(a) > 0.01))


OF_TWO = [[*first, *second] for first, second in itertools.combinations(HELD, 2)]


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_polynomials_of_two_parties_in_pairs_equal_python_integers(
    in_pairs: tuple[Federation, Rows], data: st.DataObject
) -> None:
    """Each monomial has columns of two of the three parties."""
    federation, rows = in_pairs
    monomial = st.tuples(COEFFICIENTS, st.one_of(*map(monomials, OF_TWO)))
    output = st.lists(monomial, min_size=1, max_size=4, unique_by=lambda one: tuple(sorted(one[1].items())))
    polynomial = data.draw(st.lists(output, min_size=1, max_size=3))
    result = PolynomialSum(polynomial=Polynomial.of(*polynomial), epsilon=None, gamma=GAMMA).fit(federation)
    assert (result.scale, list(result.integers)) == evaluated(polynomial, rows)


@pytest.mark.parametrize("holders", [3, 5])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_polynomials_equal_python_integers(
    federations: dict[int, tuple[Federation, Rows]], holders: int, data: st.DataObject
) -> None:
    federation, rows = federations[holders]
    names = THREE if holders == 3 else [*THREE, "x0", "x1"]
    monomial = st.tuples(COEFFICIENTS, monomials(names))
    output = st.lists(monomial, min_size=1, max_size=4, unique_by=lambda one: tuple(sorted(one[1].items())))
    polynomial = data.draw(st.lists(output, min_size=1, max_size=3))
    share_bytes = data.draw(st.sampled_from([1 << 20, 2000]))
    with mock.patch.object(circuit, "SHARE_BYTES", share_bytes):
        result = PolynomialSum(polynomial=Polynomial.of(*polynomial), epsilon=None, gamma=GAMMA).fit(federation)
    scale, sums = evaluated(polynomial, rows)
    assert result.scale == scale
    assert result.integers == tuple(sums)
    assert np.allclose(result.values, [float(Fraction(one, scale)) for one in sums])


def test_products_of_five_parties_take_two_rounds_of_reduction(federations: dict[int, tuple[Federation, Rows]]) -> None:
    """Also beyond 64 bits: 900^10 has 99, and a party multiplies its own columns in Python integers."""
    federation, rows = federations[5]
    polynomial = [
        [(1, {"age": 1, "sued": 1, "rating": 1, "x0": 1, "x1": 1}), (-2, {"age": 2, "rating": 2, "x1": 1})],
        [(3, {"age": 5, "visits": 4, "sued": 1}), (1, {"sued": 1}), (7, {})],
    ]
    method = PolynomialSum(polynomial=Polynomial.of(*polynomial), epsilon=None, gamma=GAMMA)  # type: ignore[arg-type]
    assert len(method.layout(federation.facts, federation.roster).circuit.levels) == 2
    scale, sums = evaluated(polynomial, rows)  # type: ignore[arg-type]
    assert scale == GAMMA**10
    assert method.fit(federation).integers == tuple(sums)
    assert any(all(row[name] for name in ("age", "sued", "rating", "x0", "x1")) for row in rows)


def test_the_first_algorithm_needs_no_scaling_of_coefficients(federations: dict[int, tuple[Federation, Rows]]) -> None:
    """One monomial with coefficient 1: the scale is gamma^lambda. A fraction takes one more factor."""
    federation, _ = federations[3]
    for coefficient, degree in ((1, 3), (0.25, 4), (1 / 3, 4)):
        polynomial = Polynomial.of([(coefficient, {"age": 2, "sued": 1})])
        layout = PolynomialSum(polynomial=polynomial, gamma=GAMMA, epsilon=None).layout(
            federation.facts, federation.roster
        )
        assert layout.scale_degree == degree
    assert PolynomialSum(polynomial=Polynomial.of([(0.5, {"age": 1, "sued": 1}), (0.5, {"age": 1})]), gamma=2).layout(
        federation.facts, federation.roster
    ).coefficients == [{(("age", 1),): 2, (("age", 1), ("sued", 1)): 1}]


def test_the_sensitivity_bound_holds_and_is_reached(federations: dict[int, tuple[Federation, Rows]]) -> None:
    """Search over all corners and many inner rows of whole numbers within the declared bounds."""
    federation, _ = federations[3]
    polynomial = [[(0.7, {"age": 2}), (-1.5, {"age": 1, "sued": 1})], [(2, {"rating": 3}), (0.3, {"sued": 1}), (9, {})]]
    layout = PolynomialSum(
        polynomial=Polynomial.of(*polynomial),
        gamma=50,
        bounds={"age": 0.5},
        epsilon=None,  # type: ignore[arg-type]
    ).layout(federation.facts, federation.roster)
    limits = {"age": 25, "sued": 50, "rating": 50}
    rng = np.random.default_rng(0)
    candidates = [
        dict(zip(limits, corner, strict=True)) for corner in itertools.product(*((-b, b) for b in limits.values()))
    ]
    candidates += [{name: int(rng.integers(-b, b + 1)) for name, b in limits.items()} for _ in range(3000)]
    reached = 0.0
    for row in candidates:
        moved = [
            sum(a * math.prod(row[name] ** e for name, e in exponents) for exponents, a in output.items() if exponents)
            for output in layout.coefficients
        ]
        assert sum(map(abs, moved)) <= layout.delta_1
        assert math.hypot(*moved) <= layout.delta_2
        reached = max(reached, math.hypot(*moved))
    assert reached > 0.999 * layout.delta_2


def test_values_beyond_a_declared_bound_are_clipped_in_integers(
    federations: dict[int, tuple[Federation, Rows]],
) -> None:
    federation, rows = federations[3]
    method = PolynomialSum(
        polynomial=Polynomial.of([(1, {"age": 1, "sued": 1})], [(1, {"age": 2})]),
        gamma=GAMMA,
        bounds={"age": 0.5},
        epsilon=None,
    )
    clipped = [{**row, "age": max(-450, min(450, row["age"]))} for row in rows]
    assert method.fit(federation).integers == (
        sum(row["age"] * row["sued"] for row in clipped),
        sum(row["age"] ** 2 for row in clipped),
    )


def test_noise_has_the_stated_size(tmp_path: Path, engine: str) -> None:
    """300 outputs, so the mean square over the variance has a sd of 8 %: within 50 % is 6 of them."""
    blocks = blocks_of_every_pattern(35)
    one = [(1, {"age": 1, "sued": 1, **({"rating": 1} if engine == "holders" else {})})]
    with three_parties(tmp_path, allow=ALLOW, **computing_by(engine, blocks)) as federation:
        method = PolynomialSum(polynomial=Polynomial.of(*[one] * 300), gamma=GAMMA, epsilon=1.0)  # type: ignore[arg-type]
        result = method.fit(federation, sure=True)
        plan = federation.plan(method)
    _, (exact,) = evaluated([one], pooled(blocks))  # type: ignore[list-item]
    errors = np.array([(value - exact) / result.scale for value in result.integers])
    assert 0.5 < np.mean(errors**2) / result.noise_sd**2 < 1.5
    assert 0.999 < plan.total().epsilon <= 1.0


def test_large_noise_costs_what_gaussian_noise_of_its_size_does(tmp_path: Path) -> None:
    """Balle and Wang's exact condition for Gaussian noise of the same standard deviation and sensitivity: never above
    the stated delta, and within 2 % of it. Outputs that no record moves do not count."""
    polynomial = Polynomial.of([(1, {"age": 1, "sued": 1})], [(1, {"visits": 1})], [(5, {})])
    with three_parties(tmp_path) as federation:
        method = PolynomialSum(polynomial=polynomial, epsilon=1.0, delta=1e-5, gamma=2**12, view="server")
        layout = method.layout(federation.facts, federation.roster)
    assert layout.dimension == 2
    sigma = math.sqrt(2 * layout.mu) / layout.delta_2
    spent = norm.cdf(0.5 / sigma - sigma) - math.e * norm.cdf(-0.5 / sigma - sigma)
    assert 0.98e-5 < spent <= 1e-5
    assert guarantee(layout.releases(0), delta=1e-5).accountant == "pld"


def test_the_plan_counts_the_joint_release_once_and_prints_both_views(tmp_path: Path) -> None:
    polynomial = Polynomial.of([(0.5, {"age": 2}), (1, {"age": 1, "sued": 1})], [(1, {"rating": 1})])
    with three_parties(tmp_path, allow=ALLOW) as federation:
        for relation in ("zero-out", "replace"):
            plan = federation.plan(PolynomialSum(polynomial=polynomial, epsilon=1.0, relation=relation))  # type: ignore[arg-type]
            assert 0.999 < plan.total(relation=relation).epsilon <= 1.0  # type: ignore[arg-type]
            for party in federation.facts.parties:
                assert plan.total(party=party).epsilon == plan.total().epsilon
        assert "Server view" in plan.text()
        assert federation.plan(PolynomialSum(polynomial=polynomial, epsilon=None)).total().unbounded == (
            "exact-polynomial",
        )


def test_a_job_that_could_wrap_is_refused_in_its_plan(tmp_path: Path) -> None:
    """900^10 n takes 104 bits and passes; (2^26)^16 takes more than the 334 bits of all primes."""
    with three_parties(tmp_path, allow=ALLOW) as federation:
        deep = Polynomial.of([(1, {"age": 8, "sued": 8})])
        with pytest.raises(ModulusTooSmall, match="coarser quantisation"):
            federation.plan(PolynomialSum(polynomial=deep, gamma=2**26, epsilon=None))
        with pytest.raises(BadPrivacyParameter, match="smaller gamma"):
            federation.plan(PolynomialSum(polynomial=deep, gamma=2**12, epsilon=1.0))
        assert (
            federation.plan(PolynomialSum(polynomial=Polynomial.of([(1, {"age": 2, "sued": 2})]))).total().epsilon <= 1
        )


def openers(federation: Federation) -> set[str]:
    """Who let a share of the result go."""
    return {
        party
        for party in federation.roster.committee
        for row in federation.transport[party].transcript.rows()  # type: ignore[index]
        if row.body["kind"] == "release" and row.body["step"].endswith("open_shares")
    }


def test_an_opening_happens_once_and_not_without_everybodys_noise(tmp_path: Path) -> None:
    method = PolynomialSum(polynomial=Polynomial.of([(1, {"age": 1, "sued": 1})]), epsilon=1.0)
    with three_parties(tmp_path, allow=ALLOW) as federation:
        plan = method.plan(federation.facts, federation.roster)
        stages = method.procedure(federation.facts, federation.roster)
        with pytest.raises(SecureError), federation.open(plan) as job:
            job.ask(stages.share)
            for mail in job._pending.values():
                mail[:] = [letter for letter in mail if not (letter.sender == "bank" and "noise" in letter.tag)]
            job.ask(stages.compare)
            job.ask(stages.open)
        # The bank has its own noise and may answer: one share of a polynomial of degree 2 says nothing.
        assert openers(federation) <= {"bank"}
        with pytest.raises(BeyondReservation), federation.open(plan) as job:
            job.ask(stages.share)
            assert len(list(stages.all_opened(job, stages.layout))) == 1
            for party in job._seq:  # even if the ledger did not mind
                federation.transport[party].ledger.debit = lambda **_: True  # type: ignore[index]
            job.ask(asking(stages.open, again=True))


def test_a_run_writes_its_sums_and_options_survive(tmp_path: Path) -> None:
    method = PolynomialSum(polynomial=Polynomial.of([(1, {"age": 1}), (0.5, {"age": 1, "sued": 2})]), epsilon=2.0)
    assert PolynomialSum.from_options(method.options()) == method
    with three_parties(tmp_path, seed=3) as federation:
        result, run = federation.run(method)
    assert run.read_json("result.json")["values"] == result.values.tolist()


def test_polynomials_are_values() -> None:
    made = Polynomial.of([(1, {"b": 1, "a": 2}), (2, {"a": 2, "b": 1}), (1, {"c": 1}), (-1, {"c": 1}), (4, {"a": 0})])
    assert made.outputs == (((4, {}), (3, {"a": 2, "b": 1})),)
    assert made.degree == 3
    assert convert(json.loads(json.dumps(plain(made))), Polynomial, "polynomial") == made


def test_bad_options(tmp_path: Path) -> None:
    for wrong in ((math.nan, {"age": 1}), (True, {"age": 1}), (1, {"age": -1}), (1, {"age": 0.5})):
        with pytest.raises(BadArguments):
            Polynomial.of([wrong])  # type: ignore[list-item]
    with pytest.raises(BadPrivacyParameter, match="delta above 0"):
        PolynomialSum(polynomial=Polynomial.of([(1, {"age": 1})]), delta=0.0)
    with three_parties(tmp_path, allow=ALLOW) as federation:

        def refused(kind: type[Exception], match: str, terms: Any, **options: Any) -> None:
            with pytest.raises(kind, match=match):
                federation.plan(PolynomialSum(polynomial=Polynomial.of(terms), **{"epsilon": None, **options}))

        refused(UnknownColumn, "height", [(1, {"height": 1})])
        refused(UnknownColumn, "column\\[category\\]", [(1, {"sector": 1})])
        refused(BadArguments, "degree", [(1, {})])
        refused(BadArguments, "degree", [(1, {"sued": 17})])
        refused(BadArguments, "rounded to 0", [(1e-9, {"sued": 1})], gamma=4)
        refused(BadArguments, "gamma", [(1, {"sued": 1})], gamma=0)
        refused(BadPrivacyParameter, "bound", [(1, {"sued": 1})], bounds={"sued": 2})
        refused(BadPrivacyParameter, "bound", [(1, {"sued": 1})], bounds={"visits": 0.5})
    with three_parties(tmp_path / "strict") as federation, pytest.raises(UnboundedNotAllowed):
        PolynomialSum(polynomial=Polynomial.of([(1, {"sued": 1})]), epsilon=None).fit(federation)
