"""What the software says of a method is what the method does: the contradictions of the first version, each with a test
that compares the statement with the behaviour. (What methods say of missing blocks: tests/oracle/test_missing_blocks.py
and test_regress_missing_data.py, tests/unit/statistics/test_missing_data.py.)"""

from __future__ import annotations

import html
import inspect
import re
from dataclasses import MISSING
from pathlib import Path

import pandas as pd
import pytest

import colonnade as co
from colonnade.data.column import Column, Columns
from colonnade.evaluation.report import write_report
from colonnade.federation.catalogue import CATALOGUE
from colonnade.federation.options import Memory
from colonnade.federation.policy import columns_of
from support.small import three_parties

KEYS = [f"K{number:04d}" for number in range(60)]


def test_a_report_says_once_what_became_of_missing_blocks_and_that_is_what_was_fitted(tmp_path: Path) -> None:
    """Regress(missing="single") used the response party's columns alone, and its report said "filled in once"."""
    blocks = {
        "bank": pd.DataFrame({"id": KEYS, "y": [number % 7 for number in range(60)], "x": [n % 5 for n in range(60)]}),
        "court": pd.DataFrame({"id": KEYS[:40], "z": [float(number % 3) for number in range(40)]}),
        "tax": pd.DataFrame({"id": KEYS[10:], "w": [float(number % 4) for number in range(50)]}),
    }
    columns = Columns([Column(name=name, kind="continuous", lower=0.0, upper=10.0) for name in ("y", "x", "z", "w")])
    with co.Federation.local(
        blocks, key="id", columns=columns, runs=tmp_path, allow=("presence", "exact-moments")
    ) as federation:
        method = co.Regress(response="y", missing="single")
        result, run = federation.run(method)
    assert [name for name in result.params.index if name != "const"] == ["x"], "only the response party's columns"
    text = re.sub(r"<[^>]+>|\s+", " ", html.unescape(write_report(run).read_text(encoding="utf-8")))
    assert method.missing_data() in text
    assert "response holder's own columns" in method.missing_data()
    assert "filled in" not in text


@pytest.mark.parametrize("name", CATALOGUE.names)
def test_one_purpose_wherever_it_is_shown(name: str) -> None:
    entry = CATALOGUE.entry(name)
    assert entry.purpose() == entry.load().purpose() == (inspect.getdoc(entry.load()) or "").partition("\n")[0]
    assert entry.purpose().endswith(".")


def test_memory_is_in_megabytes_everywhere(tmp_path: Path) -> None:
    """`Contingency(memory=500)` meant bytes and planned 251 rounds instead of 2."""
    helps = {
        name: CATALOGUE.load(name).declared()["memory"].option.help
        for name in CATALOGUE.names
        if "memory" in CATALOGUE.load(name).declared()
    }
    assert len(helps) >= 4
    assert all("MB" in text for text in helps.values()), helps
    assert "MB" in Memory.__metadata__[0].help  # type: ignore[attr-defined]
    with three_parties(tmp_path) as federation:
        tables = co.Tables(tables=(("sued", "rating"),), epsilon=1.0)
        roomy = co.Tables(tables=(("sued", "rating"),), epsilon=1.0, memory=500)
        assert federation.plan(roomy).rounds() == federation.plan(tables).rounds()


def test_a_column_counts_as_read_only_where_an_option_names_columns(tmp_path: Path) -> None:
    """A column called "client" or "em" was taken as read by every job whose options hold that word as a value."""
    blocks = {
        party: pd.DataFrame({"id": KEYS, **{name: [float(number % 9) for number in range(60)] for name in own}})
        for party, own in {"a": ["client", "y"], "b": ["em", "gaussian"], "c": ["x"]}.items()
    }
    names = ("client", "y", "em", "gaussian", "x")
    columns = Columns([Column(name=name, kind="continuous", lower=0.0, upper=10.0) for name in names])
    with co.Federation.local(blocks, key="id", columns=columns, runs=tmp_path) as federation:
        regression = federation.plan(co.Regress(response="y", columns=("x",), missing="em"))
        assert {"em", "gaussian"} <= {value for value in regression.options.values() if isinstance(value, str)}
        assert columns_of(regression, names) == ("y", "x")
        moments = federation.plan(co.Moments(columns=("x", "y")))
        assert "client" in moments.options.values()
        assert columns_of(moments, names) == ("y", "x")
        assert columns_of(federation.plan(co.Describe()), names) == names, "no choice: all of them"


@pytest.mark.parametrize("name", CATALOGUE.names)
def test_every_option_is_declared_with_help(name: str) -> None:
    for option in CATALOGUE.load(name).declared().values():
        assert option.option.help.endswith((".", ")")), f"{name} {option.name} has no help"
        assert option.default is not MISSING or option.name in ("response", "tables", "polynomial", "capacity"), name
