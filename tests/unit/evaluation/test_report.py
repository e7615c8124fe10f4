"""The report is safe to open, says what result.json says, and is honest about noise, cost and simulation."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest

from colonnade.data.column import Column, Columns
from colonnade.errors import BadArguments, CorruptRecord, RunError
from colonnade.evaluation.privacy import costs_by_audience
from colonnade.evaluation.report import SIMULATED, view_of, write_index, write_report
from colonnade.federation.coordinator import Federation
from colonnade.federation.run_folder import RunFolder
from colonnade.privacy.accounting import guarantee
from colonnade.privacy.cost import Cost, Gaussian, Laplace, Unbounded, compose
from colonnade.privacy.person import presence_fixed
from colonnade.statistics.describe import Describe
from colonnade.view.blocks import ChartName, Figure, Figures, Heading, Items, Section, Table, Text, View
from colonnade.view.page import VOID, Html, join, table, tag
from colonnade.view.render import render_blocks, render_section
from support.small import three_parties

HOSTILE = '<img src=x onerror="alert(1)">'
HOSTILE_PARTY = "bank & 'co'"
HOSTILE_CATEGORY = "</svg><b>'\""


class Document(HTMLParser):
    """Checks that every element is closed in order, and collects elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile_blocks(n: int = 400) -> tuple[dict[str, pd.DataFrame], Columns]:
    """Two parties whose names, columns and categories try to be markup; empty cells in numeric columns."""
    rng = np.random.default_rng(0)
    keys = [f"K{i}" for i in range(n)]
    amount = pd.Series(rng.uniform(0, 100, n)).where(np.arange(n) % 5 > 0)
    visits = pd.Series(rng.integers(0, 6, n), dtype="Int64").where(np.arange(n) % 4 > 0)
    columns = Columns(
        [
            Column(name=HOSTILE, kind="continuous", lower=0, upper=100, missing=True),
            Column(name="visits", kind="count", lower=0, upper=5, missing=True),
            Column(
                name="sector", kind="categorical", categories=(HOSTILE_CATEGORY, *(f"sector {i}" for i in range(40)))
            ),
        ]
    )
    blocks = {
        HOSTILE_PARTY: pd.DataFrame({"id": keys, HOSTILE: amount, "visits": visits}),
        "court": pd.DataFrame({"id": keys[:200], "sector": rng.choice([HOSTILE_CATEGORY, "sector 7"], 200)}),
    }
    return blocks, columns


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    blocks, columns = hostile_blocks()
    folder = tmp_path_factory.mktemp("report")
    options: dict[str, Any] = {"home": folder / "home", "runs": folder / "runs"}
    with Federation.local(blocks, key="id", columns=columns, seed=4, **options) as made:
        yield made


@pytest.fixture(scope="module")
def run(federation: Federation) -> RunFolder:
    return federation.run(Describe(epsilon=1.0), name="hostile")[1]


@pytest.fixture(scope="module")
def html(run: RunFolder, federation: Federation) -> str:
    return write_report(run, remarks=federation.remarks).read_text(encoding="utf-8")


def test_page_asks_nobody_for_anything_and_runs_nothing(html: str) -> None:
    # Oracle: the HTML standard's ways to load or run something, listed here.
    document = Document(html)
    assert "http://" not in html
    assert "https://" not in html
    assert not document.names & {"script", "img", "iframe", "object", "embed", "video", "audio", "form", "base"}
    loading = {"src", "srcset", "href", "xlink:href", "action", "data", "poster", "background", "style"}
    assert {(name, value) for name, value in document.attributes if name in loading} == {("href", "data:,")}
    assert not [name for name, _ in document.attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import", html)


def test_hostile_names_stay_text(html: str) -> None:
    # Oracle: the parser's own view of the page; the names are in its text and none became an element.
    document = Document(html)
    for name in (HOSTILE, HOSTILE_PARTY, HOSTILE_CATEGORY):
        assert name not in html
        assert name in document.text
    assert "b" not in document.names


def test_answer_comes_first_with_its_noise(html: str, run: RunFolder) -> None:
    # Oracle: result.json; two standard deviations computed here.
    result = run.read_json("result.json")
    text = Document(html).text
    for count in result["presence"].values():
        shown = f"{count:,} ± {math.ceil(2 * result['presence_sd']):,}"
        assert shown in text
        assert text.index(shown) < text.index("What it costs a person") < text.index("The transcript")


def test_cost_is_shown_under_both_relations(html: str, run: RunFolder) -> None:
    # Oracle: the person's total that the job itself wrote down; e^1 = 2.72.
    text = Document(html).text
    for relation, total in run.read_json("costs.json")["person_total"].items():
        assert total.removesuffix(f" per record, {relation}") in text
    assert "at most 2.72 times what it would be if one record held nothing, plus 1e-06" in text
    assert "Record keys were joined in the clear" in text


def test_simulation_is_named(html: str, tmp_path: Path) -> None:
    assert SIMULATED in Document(html).text
    with three_parties(tmp_path) as federation:
        _, run = federation.run(Describe(epsilon=1.0, columns=("age",)))
    assert "seed" not in Document(write_report(run).read_text(encoding="utf-8")).text


def test_every_count_is_in_a_table_as_it_is(html: str, run: RunFolder) -> None:
    # Oracle: result.json. With 41 categories of which two occur, some noisy counts are below zero.
    counts = [count for one in run.read_json("result.json")["marginals"].values() for count in one["counts"]]
    assert min(counts) < 0
    for count in counts:
        assert f'<td class="number">{count:,.0f}</td>' in html


def test_quantiles_and_what_was_found_are_said(federation: Federation) -> None:
    # Oracle: result.json, and the exact quantiles of the data (uniform on 0 to 100, 320 filled cells): noise of sd < 2
    # a count leaves the median within 20 of 50. The seed is fixed.
    _, run = federation.run(Describe(epsilon=50.0), name="quantiles")
    text = Document(write_report(run).read_text(encoding="utf-8")).text
    described = run.read_json("result.json")["marginals"][HOSTILE]
    quantiles = described["quantiles"]
    assert abs(quantiles["0.5"] - 50) < 20
    assert f"median {quantiles['0.5']:.4g}" in text
    assert described["in words"].capitalize() in text


def test_report_needs_its_view_and_an_intact_transcript(run: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(tmp_path / "copy")
    shutil.copytree(run.path, copy.path)
    (copy.path / "transcript.db").write_bytes(b"not a database" * 100)
    with pytest.raises(CorruptRecord):
        write_report(copy)
    copy.write_json("view.json", {"title": "A horoscope"})
    with pytest.raises(BadArguments, match=r"view\.json lacks quality"):
        write_report(copy)
    copy.update(format=1)
    with pytest.raises(RunError, match="in another format"):
        RunFolder.open(copy.path)


def test_unbounded_cost_prints_as_unbounded(run: RunFolder, tmp_path: Path) -> None:
    # A run whose costs name a release without a bound; the report must not print a finite total anywhere for it.
    copy = RunFolder(tmp_path / "copy")
    shutil.copytree(run.path, copy.path)
    costs = run.read_json("costs.json")
    costs["costs"]["court"].append(Unbounded("raw-sum", "the exact sum").to_dict())
    copy.write_json("costs.json", costs)
    html = write_report(copy).read_text(encoding="utf-8")
    assert "There is no bound: raw-sum shows data as it is." in Document(html).text
    total = html.partition("A person&#x27;s total over all parties")[2].partition("</tr>")[0]
    assert total.count("unbounded: raw-sum") == 2


def test_toolkit_escapes_everything_but_its_own_markup() -> None:
    assert tag("p", "<b>", Html("<i></i>"), title='"') == '<p title="&quot;">&lt;b&gt;<i></i></p>'
    assert join([tag("p") + "<b>"]) == "&lt;p&gt;&lt;/p&gt;&lt;b&gt;"  # a sum is a plain string again: escaped
    assert tag("meta", charset="utf-8", hidden=True, lang=None) == '<meta charset="utf-8" hidden>'
    assert '<td class="number">&lt;</td>' in table(("a", "b"), [("x", "<")], label="l", numeric=(1,))


def every_block() -> View:
    """A view with each kind of block and each chart, whose words try to be markup."""
    numbers = Table(title="Numbers", head=("cell", "count"), rows=((HOSTILE, "1"), ("b", "2")), numeric=(1,))
    data: dict[str, dict[str, Any]] = {
        "bars": {"labels": [HOSTILE, "b"], "values": [1.0, -2.0], "noise": 1.0, "whole": 5.0, "empty_last": True},
        "histogram": {"counts": [1.0, 2.0, 3.0], "edges": [0.0, 1.0, 2.0], "ticks": [HOSTILE, "b", "c"]},
        "intervals": {
            "labels": [HOSTILE],
            "centres": [1.0],
            "lows": [0.0],
            "highs": [2.0],
            "others": {HOSTILE: [1.5]},
        },
        "dots": {"labels": [HOSTILE], "series": {HOSTILE: [1.0], "b": [2.0]}},
        "paths": {"lambdas": [1.0, 0.1], "paths": {HOSTILE: [0.0, 1.0]}, "chosen": 1, "names": [HOSTILE]},
        "upset": {"parties": [HOSTILE, "b"], "patterns": [[True, False], [True, True]], "counts": [3, 2], "noise": 1.0},
        "blocks": {"parties": [HOSTILE, "b"], "columns": [2, 1], "patterns": [[True, False]], "counts": [3]},
        "heatmap": {"labels": [HOSTILE, "b"], "matrix": [[1.0, 0.5], [0.5, 1.0]]},
        "weights": {"labels": [HOSTILE], "across": [HOSTILE, "b"], "matrix": [[0.5, -0.5]]},
        "parts": {"parts": {HOSTILE: 1.0}, "budget": 2.0},
        "scree": {"values": [2.0, 1.0], "floor": 0.5},
        "arrows": {"labels": [HOSTILE, "b"], "across": [1.0, -1.0], "up": [0.5, 0.5]},
        "curves": {"lines": {HOSTILE: [[0.0, 1.0], [0.0, 1.0]]}, "diagonal": "chance"},
        "stair": {"times": [0.0, 50.0], "values": [1.0, 2.0], "now": 100.0, "budget": 4.0},
        "hundred": {"counts": {HOSTILE: 60, "b": 40}},
    }
    assert set(data) == set(get_args(ChartName))
    figures = tuple(
        Figure(
            chart=chart, data=values, label=f"{chart} {HOSTILE}", title=HOSTILE, caption="c", numbers=numbers, note="n"
        )
        for chart, values in data.items()
    )  # type: ignore[arg-type]
    return View(
        title=HOSTILE,
        quality="good",
        answer=(Text(text=HOSTILE, style="lead"), Items(items=(HOSTILE, "b")), numbers, figures[0]),
        sections=(Section(title=HOSTILE, blocks=(Heading(text=HOSTILE), Figures(title=HOSTILE, figures=figures))),),
    )


def test_every_kind_of_block_is_rendered_from_a_stored_view() -> None:
    """What was stored as JSON is drawn, and a hostile word stays a word."""
    view = every_block()
    read = View.from_dict(json.loads(json.dumps(view.to_dict())))
    assert read == view
    document = Document(join([render_blocks(read.answer), *map(render_section, read.sections)]))
    assert {"p", "ul", "table", "svg", "figure", "h2", "h3", "details"} <= document.names
    assert document.text.count(HOSTILE) > 10
    assert not {"img", "script"} & document.names


def test_the_renderer_needs_no_command_line() -> None:
    """A notebook renders the same view."""
    script = "import sys, colonnade.evaluation.report; print('typer' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_rows_beyond_what_is_shown_are_folded() -> None:
    rows = tuple((f"row {number}", str(number)) for number in range(30))
    html = render_blocks([Table(title="Many", head=("a", "b"), rows=rows, shown=10)])
    first, fold, every = html.partition("<details>")
    assert first.count("<tr>") == 1 + 10
    assert fold
    assert "All 30 rows" in every
    assert every.count("<tr>") == 1 + 30
    whole = render_blocks([Table(title="All of it", head=("a", "b"), rows=rows, shown=0)])
    assert whole.startswith("<details><summary>All of it</summary>")
    assert whole.count("<tr>") == 1 + 30
    assert "<details>" not in render_blocks([Table(title="Few", head=("a", "b"), rows=rows[:10], shown=10)])


def test_what_it_assumes_about_missing_data_is_the_plans_own_sentence(html: str, run: RunFolder) -> None:
    assert run.plan().missing_data == Describe().missing_data()
    assert f"Missing blocks: {Describe().missing_data()}" in Document(html).text


def test_terminal_and_report_show_the_same_view(html: str, run: RunFolder) -> None:
    for table_ in view_of(run).tables():
        if table_.title != "Columns":  # the report has a figure for each
            for row in table_.rows:
                assert all(cell in Document(html).text for cell in row)


def test_an_attackers_odds_are_those_of_the_definition(html: str, run: RunFolder) -> None:
    # Oracle: from even odds e^1 + 1000 delta gives 73.1 %, rounded up; e^epsilon / (1 + e^epsilon) where delta is 0.
    text = Document(html).text
    assert "73.2 %" in text
    for heading in ("Released", "Seen by", "Cost to a person", "How good"):
        assert text.index(heading) < text.index("What it costs a person")


def test_costs_are_told_apart_by_audience_and_unit() -> None:
    # Oracle: `guarantee` of each group by hand. A joint release counts once.
    joint = Gaussian(noise_multiplier=3.0, joint="sum")
    alone = Laplace(0.25, audience="court")
    told = costs_by_audience([joint, compose([joint, alone.times(2)]), Laplace(0.5, unit="block")], delta=1e-6)
    found = {shown: bounds["zero-out"].epsilon for shown, bounds in told.items()}
    expected = {
        ("coordinator", "record"): guarantee([joint], delta=1e-6).epsilon,
        ("court", "record"): 0.5,
        ("coordinator", "block"): 0.5,
    }
    assert found == pytest.approx(expected, abs=1e-5)


def test_presence_that_was_shown_is_named_and_the_rest_is_bounded_with_it_held_fixed(
    run: RunFolder, tmp_path: Path
) -> None:
    # Oracle: `guarantee` of the bounded part by hand.
    noisy = Gaussian(noise_multiplier=3.0)
    mixed = compose([noisy, Unbounded("presence", "who has what")])
    (kept,) = presence_fixed([mixed]) or [None]
    assert guarantee([kept], delta=1e-6).epsilon == guarantee([noisy], delta=1e-6).epsilon
    assert presence_fixed([noisy]) is None
    assert presence_fixed([mixed, Unbounded("exact-moments", "sums")]) is None
    copy = RunFolder(tmp_path / "shown")
    shutil.copytree(run.path, copy.path)
    costs = copy.read_json("costs.json")
    costs["costs"]["court"] = [mixed.to_dict()]
    copy.write_json("costs.json", costs)
    text = Document(write_report(copy).read_text(encoding="utf-8")).text
    assert "Who holds which pseudonymous record was shown (presence)." in text
    assert "with who is present held fixed" in text
    assert "unbounded: presence" in text


def test_an_index_composes_the_costs_of_all_runs(federation: Federation, run: RunFolder, tmp_path: Path) -> None:
    # Oracle: `guarantee` of both runs' costs; two runs of (1, 1e-6) cost more than one and less than two.
    _, other = federation.run(Describe(epsilon=1.0, columns=("visits",)), name="second")
    for one in (run, other):
        write_report(one)
    text = Document(write_index(tmp_path / "index.html", [run, other], title="Two runs").read_text("utf-8")).text
    both = [
        Cost.from_dict(one)
        for each in (run, other)
        for costs in each.read_json("costs.json")["costs"].values()
        for one in costs
    ]
    total = guarantee(both, delta=1e-6)
    assert str(total) in text
    assert 1.0 < total.epsilon < 2.0
    with pytest.raises(RunError, match="no finished run"):
        write_index(tmp_path / "none.html", [], title="Nothing")
