"""The presets of the copula paper's algorithms, and what their options refuse."""

from __future__ import annotations

import numpy as np
import pytest

from colonnade.errors import BadArguments
from colonnade.papers import EVCDS, IEVCDS, VCDS
from colonnade.papers.vcds.ranks import comparison_budget
from colonnade.papers.vcds.releases import PRESENCE
from support.small import three_parties

PRINTED = {
    "epsilon": 1.0,
    "accounting": "nominal",
    "split": "theorem",
    "noise": "exact",
    "marginals": "bernstein",
}
ADJUSTED = {"sampler": "adjusted", "sweeps": 0}
ITERATED = {"iterations": 10, "per_iteration": False, "imputation": "ranked"}


@pytest.mark.parametrize(
    ("kind", "printed"),
    [(VCDS, PRINTED), (EVCDS, PRINTED | ADJUSTED), (IEVCDS, PRINTED | ADJUSTED | ITERATED)],
)
def test_a_preset_sets_the_options_as_the_paper_prints_them(kind, printed, tmp_path) -> None:  # type: ignore[no-untyped-def]
    method = kind.as_printed(rows=30)
    assert {name: getattr(method, name) for name in printed} == printed
    assert {name: value for name, value in method.get_params().items() if name not in (*printed, "rows")} == {
        name: value for name, value in kind().get_params().items() if name not in (*printed, "rows")
    }
    with three_parties(tmp_path, allow=(PRESENCE,), seed=2) as federation:
        budget = method.procedure(federation.facts, federation.roster).budget
        table = method.fit(federation)
    # Theorem 1, and Theorem 7 for T rounds: eps0 = epsilon_1 K / (T (p + 1)), with epsilon_1 half of epsilon.
    rounds = printed.get("iterations", 1)
    assert budget.epsilon_0 == pytest.approx(0.5 * 3 / 5 / rounds)
    assert budget.marginal == comparison_budget(0.5, parties=3, total_columns=5)
    assert len(table.sample()) == 30
    assert table.fresh == (kind is VCDS)
    assert np.isfinite(budget.epsilon_0)


def test_a_preset_can_be_changed() -> None:
    assert VCDS.as_printed(split="none", epsilon=3.0).epsilon == 3.0
    with pytest.raises(BadArguments, match="belongs to accounting='nominal'"):
        VCDS.as_printed(accounting="record", split="none")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "none"}, "split has no meaning with accounting='record'"),
        ({"degree": 8}, "degree has no meaning with marginals='smooth'"),
        ({"order": 3, "marginals": "histogram"}, "order has no meaning"),
        ({"columns": ()}, "names no column"),
    ],
)
def test_options_without_a_meaning_are_refused(options, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadArguments, match=says):
        VCDS(**options)


def test_columns_are_taken_once() -> None:
    assert VCDS(columns=("a", "b", "a")).columns == ("a", "b")
