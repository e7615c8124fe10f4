"""Figures are drawn to scale, say what their axes are, and refer to nothing outside or inside the page."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

from colonnade.errors import BadArguments
from colonnade.view.blocks import SCALES, ChartName, Figure, Figures, Section, Table, Text, View
from colonnade.view.figures import CHARTS, COLOURS, HEIGHTS, MOST_ROWS, NARROW, WIDE, plot, svg
from colonnade.view.page import CSS, prose
from colonnade.view.render import Viewed, notebook, render_blocks

LONG = "a_very_long_name_of_a_column_that_nobody_would_type_twice"


def drawn(chart: ChartName, **data: Any) -> Figure:
    return Figure(chart=chart, data=data, label="what it shows", name=chart, title="T", x="across", y="up")


def intervals(centres: list[float], **others: Any) -> Figure:
    labels = [f"x{place}" for place in range(len(centres))]
    ends: dict[str, Any] = {"lows": [c - 0.5 for c in centres], "highs": [c + 0.5 for c in centres]}
    return drawn("intervals", labels=labels, centres=centres, **ends, **others)


def test_every_chart_of_a_view_can_be_drawn() -> None:
    assert set(CHARTS) == set(HEIGHTS) == set(SCALES) == set(get_args(ChartName))


def test_an_svg_refers_to_nothing_and_takes_its_colours_from_the_page() -> None:
    """Oracle: what may load, run or style something, and every colour of the palette, listed here."""
    for wide in (False, True):
        element = svg(intervals([1.0, -2.0], others={"truth": [1.1, -1.9]}), wide=wide)
        assert not re.search(
            r"<(script|style|image|use|defs|metadata|clipPath)\b|href|url\(|style=|\bid=|http", element
        )
        assert f'viewBox="0 0 {WIDE if wide else NARROW:g}' in element
        assert 'role="img"' in element
        assert 'aria-label="what it shows"' in element
        stated = set(re.findall(r'(?:fill|stroke)="([^"]+)"', element))
        assert stated <= {"none", *(f"var(--{name})" for name in COLOURS.values())}
    for colour, name in COLOURS.items():
        assert f"--{name}: {colour}" in CSS.replace("#fff;", "#ffffff;"), "the page's light palette"


def test_the_same_figure_is_the_same_text() -> None:
    assert svg(intervals([1.0, 2.0])) == svg(intervals([1.0, 2.0]))


def test_axis_labels_are_marked_and_texts_are_texts() -> None:
    element = svg(intervals([1.0]))
    labels = re.findall(r'<g class="axis-label ([xy])"><text[^>]*>([^<]+)</text>', element)
    assert sorted(labels) == [("x", "across"), ("y", "up")]
    assert 'data-scales="x"' in element
    assert ">x0</text>" in element


def test_what_rows_of_names_are_is_said_above_them() -> None:
    """Upright at the side of three rows it would be cut."""
    figure = replace(drawn("bars", labels=["0", "1", "2 to 5"], values=[3.0, 2.0, 1.0]), y="children (persons)")
    element = svg(figure)
    (place,) = re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>children', element)
    rows = [float(y) for y in re.findall(r'y="([\d.]+)"[^>]*text-anchor="end"', element)]
    assert 11 <= float(place) < min(rows) - 11
    assert "rotate" not in element
    assert [text.get_text() for text in plot(figure).ax_.texts][-1] == "children (persons)"
    assert "children" not in svg(replace(figure, y="children", title="children")), "the title says it"


def test_a_count_has_no_halves_at_its_axis() -> None:
    for cells, stated in ((3, False), (4, True)):
        edges = [3 * place / cells for place in range(cells + 1)]
        ax = plot(drawn("histogram", counts=[1] * cells, edges=edges)).ax_
        ticks = [tick for tick in ax.get_xticks() if edges[0] <= tick <= edges[-1]]
        assert any(tick % 1 for tick in ticks) == stated


@pytest.mark.parametrize("signs", [(1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)])
def test_intervals_are_drawn_to_scale(signs: tuple[float, float]) -> None:
    """Oracle: places are affine in the values, so ratios of distances equal ratios of values."""
    centres = [2.0 * signs[0], 1.0 * signs[1]]
    ax = plot(intervals(centres)).ax_
    marks = next(line for line in ax.lines if line.get_marker() == "o")
    np.testing.assert_allclose(np.asarray(marks.get_xdata()), centres)
    low, high = ax.get_xlim()
    assert low < min(centres) - 0.5
    assert max(centres) + 0.5 < high


def test_a_noisy_count_below_zero_is_drawn_as_zero_and_whiskers_are_two_deviations() -> None:
    ax = plot(drawn("bars", labels=["a", "b"], values=[10.0, -3.0], noise=2.0)).ax_
    assert [bar.get_width() for bar in ax.patches] == [10.0, 0.0]  # type: ignore[attr-defined]
    (whiskers,) = [c for c in ax.collections if len(c.get_paths()) == 2]
    ends = [path.vertices[:, 0].tolist() for path in whiskers.get_paths()]  # type: ignore[index, union-attr]
    assert ends == [[6.0, 14.0], [0.0, 4.0]]


def test_the_budget_is_above_what_was_spent_and_the_stair_ends_now() -> None:
    ax = plot(drawn("stair", times=[0.0, 50.0], values=[1.0, 2.0], now=100.0, budget=4.0)).ax_
    stair = ax.lines[0]
    assert np.asarray(stair.get_xdata())[-1] == 100.0
    assert np.asarray(stair.get_ydata()).tolist() == [1.0, 2.0, 2.0]
    assert ax.lines[1].get_ydata()[0] == 4.0  # type: ignore[index]
    assert ax.get_ylim()[1] > 4.0


def test_a_hundred_guesses_are_a_hundred_marks() -> None:
    ax = plot(drawn("hundred", counts={"coin": 50, "more": 17, "wrong": 33})).ax_
    assert [len(np.atleast_1d(line.get_xdata())) for line in ax.lines] == [50, 17, 33]


def test_a_kind_of_guess_that_does_not_occur_leaves_the_others_their_room() -> None:
    """Marks of none once squeezed the others into a corner: half of them are in each half of the picture."""
    element = svg(drawn("hundred", counts={"coin": 50, "more": 50, "wrong": 0}))
    places = [float(x) for x in re.findall(r'transform="translate\(([\d.]+) ', element)]
    assert max(places) - min(places) > 0.8 * NARROW
    assert "0 wrong" not in element


def test_an_axis_says_all_its_words_in_one_unit_with_round_ticks() -> None:
    label = "root mean squared error on hidden records (1: the declared range), which is a long label"
    figure = replace(drawn("bars", labels=["a", "b"], values=[14_000.0, 6_000.0]), x=label)
    for wide in (False, True):
        element = svg(figure, wide=wide)
        assert label in " ".join(re.findall(r"<text[^>]*>([^<]+)</text>", element))
        assert all(f">{tick}</text>" in element for tick in ("0", "5k", "10k", "15k"))


def test_blocks_are_as_high_as_their_records() -> None:
    """Two of three patterns have the first party's block, next to each other: one bar of 5 + 2 records."""
    patterns = [[True, False], [True, True], [False, True]]
    ax = plot(drawn("blocks", parties=["a", "b"], columns=[3, 1], patterns=patterns, counts=[5, 2, 4])).ax_
    heights = [patch.get_height() for patch in ax.patches]  # type: ignore[attr-defined]
    assert heights == [11.0, 7.0, 11.0, 2.0, 4.0]


def test_a_heat_map_marks_what_the_noise_hides() -> None:
    unknown = [[False, False, True], [False, False, False], [True, False, False]]
    ax = plot(drawn("heatmap", labels=["a", "b", "c"], matrix=np.eye(3).tolist(), unknown=unknown)).ax_
    crosses = next(line for line in ax.lines if line.get_marker() == "x")
    assert np.asarray(crosses.get_xydata()).tolist() == [[0.5, 2.5]]


def test_a_heat_map_shows_the_sign_without_colour() -> None:
    """By its numbers where they fit, by a dash otherwise."""
    matrix = np.full((20, 20), 0.3)
    matrix[7, 2] = matrix[2, 7] = -0.4
    few = svg(drawn("heatmap", labels=list("abcdefgh"), matrix=matrix[:8, :8].tolist()), wide=True)
    assert "-.40" in few
    ax = plot(drawn("heatmap", labels=[f"x{place}" for place in range(20)], matrix=matrix.tolist())).ax_
    dashes = next(line for line in ax.lines if line.get_marker() == "_")
    assert np.asarray(dashes.get_xydata()).tolist() == [[2.5, 7.5]]


def test_weights_of_all_components_are_in_their_cells_and_their_sign_needs_no_colour() -> None:
    labels, matrix = ["a", "b"], [[0.5, -0.25, 0.0, 0.1], [-0.75, 0.25, 1.0, -0.3]]
    few = svg(drawn("weights", labels=labels, across=list("1234"), matrix=matrix))
    numbers = re.findall(r">(-?1?\.\d\d)<", few)
    assert numbers == [".50", "-.25", ".00", ".10", "-.75", ".25", "1.00", "-.30"]
    assert all(f">{name}</text>" in few for name in (*labels, *"1234"))
    many = [[0.3] * 13, [0.2] * 12 + [-0.4]]
    ax = plot(drawn("weights", labels=labels, across=[str(place) for place in range(1, 14)], matrix=many)).ax_
    assert not [line for line in ax.lines if line.get_marker() == "_"], "13 numbers fit on a desk"
    ax = plot(drawn("weights", labels=labels, across=[str(k) for k in range(26)], matrix=[row * 2 for row in many])).ax_
    (dashes,) = (line for line in ax.lines if line.get_marker() == "_")
    across, down = np.asarray(dashes.get_xydata()).T
    assert across.tolist() == [12.5, 25.5]
    assert len(set(down)) == 1
    assert "first 13 of 26" in svg(
        drawn("weights", labels=["a"], across=[str(k) for k in range(26)], matrix=[[0.1] * 26])
    )


def test_parts_of_a_budget_are_drawn_to_scale_and_so_is_what_goes_beyond() -> None:
    ax = plot(drawn("parts", parts={"spent": 1.0, "this job": 0.5}, budget=4.0)).ax_
    ends = [(bar.get_x(), bar.get_width()) for bar in ax.patches]  # type: ignore[attr-defined]
    assert ends == [(0.0, 1.0), (1.0, 0.5), (1.5, 2.5)]
    element = svg(drawn("parts", parts={"spent": 1.0, "this job": 0.5}, budget=4.0))
    assert all(f">{words}</text>" in element for words in ("spent 1", "this job 0.5", "then left 2.5"))
    assert ">left 3</text>" in svg(drawn("parts", parts={"spent": 1.0}, budget=4.0))
    beyond = plot(drawn("parts", parts={"spent": 3.0, "this job": 2.0}, budget=4.0)).ax_
    assert [bar.get_width() for bar in beyond.patches] == [3.0, 2.0]  # type: ignore[attr-defined]
    assert np.asarray(beyond.lines[0].get_xdata()).tolist() == [4.0, 4.0]
    assert beyond.get_xlim()[1] > 5.0


@pytest.mark.parametrize("chart", ["bars", "histogram"])
def test_the_truth_is_drawn_beside_synthetic_rows_without_noise(chart: Any) -> None:
    data: dict[str, Any] = {"labels": ["a", "b"], "values": [3.0, 1.0]}
    if chart == "histogram":
        data = {"edges": [0.0, 1.0, 2.0], "counts": [3.0, 1.0]}
    element = svg(drawn(chart, **data, truth=[2.0, 7.0]))
    assert ">truth</text>" in element
    assert "released" not in element
    ax = plot(drawn(chart, **data, truth=[2.0, 7.0])).ax_
    shown = ax.lines[0].get_xdata() if chart == "bars" else ax.patches[-1].get_data().values
    assert np.asarray(shown).tolist() == [2.0, 7.0]
    assert (ax.get_xlim() if chart == "bars" else ax.get_ylim())[1] >= 7.0


def test_many_rows_leave_the_rest_to_the_table() -> None:
    element = svg(intervals([float(place) for place in range(40)]))
    assert f"and {40 - MOST_ROWS} more in the table" in element


def test_many_long_names_have_two_lines_each() -> None:
    few, many = ([f"sector {place} of the manufacture of something rather long" for place in range(n)] for n in (8, 20))
    heights = [HEIGHTS["bars"]({"labels": names}, NARROW) / len(names) for names in (few, many)]
    assert heights[1] < 0.65 * heights[0]
    element = svg(drawn("bars", labels=many, values=[1.0] * 20))
    assert all(f">sector {place} " in element for place in range(20)), "they can be told apart"


def test_a_long_tail_is_not_drawn_and_said() -> None:
    edges = [0.0, 1.0, 2.0, 3.0, 4.0, 5e6]
    ax = plot(drawn("histogram", counts=[50, 30, 10, 7, 4], edges=edges)).ax_
    assert ax.get_xlim() == (0, 4)
    assert [text.get_text() for text in ax.texts] == ["4 % beyond"]
    whole = plot(drawn("histogram", counts=[50, 30, 10, 6, 20], edges=edges)).ax_
    assert whole.get_xlim() == (0, 5e6), "more than a tenth of the records is not left out"
    assert "2m" in [label.get_text() for label in whole.get_xticklabels()], "and large numbers are short"
    heights = plot(drawn("histogram", counts=[10, 10, 40], edges=[0.0, 1.0, 2.0, 6.0])).ax_.patches[0].get_data().values
    assert heights.tolist() == [10, 10, 10], "four times as wide, four times as many: as high"
    left = plot(drawn("histogram", counts=[1, 30, 40, 30], edges=[-1e6, 1.0, 2.0, 3.0, 4.0])).ax_
    assert left.get_xlim() == (1, 4)


@pytest.mark.parametrize("cells", [1, 2, 20, 200])
def test_charts_can_be_drawn_at_every_size(cells: int) -> None:
    edges = [float(place) for place in range(cells + 1)]
    counts = [-5.0 if place % 3 == 0 else 10.0 * place for place in range(cells)]
    released = {"counts": counts, "sd": [2.0] * cells}
    for figure in (
        drawn("histogram", counts=counts, edges=edges, noise=3.0),
        drawn("histogram", counts=counts, edges=edges, released=released),
        drawn("bars", labels=[LONG] * cells, values=counts, noise=3.0),
        drawn("upset", parties=["a", LONG], patterns=[[True, False]] * cells, counts=counts, noise=1.0),
        drawn("scree", values=counts, floor=3.0),
        drawn("heatmap", labels=[LONG] * min(cells, 50), matrix=np.eye(min(cells, 50)).tolist()),
    ):
        element = svg(figure)
        assert "nan" not in element.lower()
        assert element.count("<") == element.count(">")


@pytest.mark.parametrize("name", ["cost in $", "$x$ and $y$", "a_{b}^2", "<b>&amp;"])
def test_no_name_is_a_formula(name: str) -> None:
    element = svg(drawn("bars", labels=[name], values=[1.0]))
    assert html.escape(name) in element.replace("\n", "")


def test_code_in_a_sentence_is_set_as_code() -> None:
    assert prose("with `a < b` and more") == "with <code>a &lt; b</code> and more"
    assert prose("one ` alone") == "one ` alone"
    assert "<code>compare</code>" in render_blocks([Text(text="use `compare`")])


def test_a_long_name_is_broken_and_not_cut() -> None:
    element = svg(drawn("bars", labels=[LONG], values=[1.0]))
    parts = re.findall(r"<text[^>]*>([^<]+)</text>", element)
    assert LONG in "".join(parts)


def test_a_reader_s_own_axes_and_settings_are_left_as_they_are() -> None:
    before = dict(mpl.rcParams)
    canvas = Canvas()
    left, right = canvas.subplots(1, 2)
    display = plot(intervals([1.0], others={"truth": [1.0]}), ax=right)
    assert display.ax_ is right
    assert display.figure_ is canvas
    assert not left.lines
    assert not canvas.legends, "a legend of its own axes"
    assert dict(mpl.rcParams) == before


class Shown(Viewed):
    def view(self) -> View:
        figures = Figures(figures=(intervals([1.0]), drawn("scree", values=[1.0])))
        return View(title="R", quality="q", answer=(), sections=(Section(title="S", blocks=(figures,)),))


def test_a_result_draws_its_figures_by_name(tmp_path: Path) -> None:
    shown = Shown()
    assert shown.figures == ("intervals", "scree")
    assert shown.plot().ax_.get_xlabel() == "across"
    display = shown.plot("scree")
    display.save(tmp_path / "scree.png")
    assert (tmp_path / "scree.png").read_bytes().startswith(b"\x89PNG")
    assert display._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(BadArguments, match=r"no figure 'roc'; there are 'intervals', 'scree'"):
        shown.plot("roc")


def test_a_notebook_shows_the_report_s_view_in_a_frame_of_its_own() -> None:
    view = View(
        title="Means <b>",
        quality="Good.",
        answer=(Table(title="Means", head=("group", "mean"), rows=(("a", "1"),), numeric=(1,)), Text(text="Noise.")),
    )
    shown = notebook(view)
    assert shown.startswith('<iframe srcdoc="')
    assert 'sandbox=""' in shown
    inner = html.unescape(shown)
    assert str(render_blocks(view.answer)) in inner
    assert "Means &lt;b&gt;" in inner, "a name stays a name"


def test_a_figure_on_its_own_is_drawn_for_a_desk_and_for_a_telephone() -> None:
    alone = render_blocks([intervals([1.0])])
    assert [f'viewBox="0 0 {width:g}' in alone for width in (NARROW, WIDE)] == [True, True]
    beside = render_blocks([Figures(figures=(intervals([1.0]),))])
    assert [f'viewBox="0 0 {width:g}' in beside for width in (NARROW, WIDE)] == [True, False]


def test_matplotlib_is_imported_by_the_first_figure_only_and_pyplot_never() -> None:
    script = (
        "import sys, json, colonnade as co; co.Regress; import colonnade.view.render as render\n"
        "import colonnade.console.party, colonnade.console.coordinator, colonnade.console.server\n"
        "first = 'matplotlib' in sys.modules\n"
        "from colonnade.view.blocks import Figure\n"
        "render.svg(Figure(chart='scree', data={'values': [1.0]}, label='l'))\n"
        "print(json.dumps([first, 'matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules]))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(told) == [False, True, False]


def test_names_at_the_ends_of_paths_do_not_overlap() -> None:
    paths = {f"x{place}": [0.0, 1.0 + place / 1000] for place in range(6)}
    ax = plot(drawn("paths", lambdas=[1.0, 0.01], paths=paths, chosen=1, names=list(paths))).ax_
    levels = sorted(text.xy[1] for text in ax.texts if text.get_text() in paths)  # type: ignore[attr-defined]
    low, high = ax.get_ylim()
    assert min(b - a for a, b in pairwise(levels)) > 0.03 * (high - low)


def test_long_names_that_begin_alike_are_told_apart_and_have_a_line_at_the_end_of_a_path() -> None:
    names = [f"section with a descriptive title[Sector {sign}: of something rather long]" for sign in "ABCDEFGHI"]
    bars = svg(drawn("bars", labels=names, values=[1.0] * 9))
    assert all(f"Sector {sign}" in bars for sign in "ABCDEFGHI")
    paths = {name: [0.0, 1.0 + place / 1000] for place, name in enumerate(names)}
    ax = plot(drawn("paths", lambdas=[1.0, 0.01], paths=paths, chosen=1, names=names)).ax_
    ends = [text.get_text() for text in ax.texts if "Sector" in text.get_text()]
    assert len(set(ends)) == 9
    assert not any("\n" in end for end in ends)


def test_a_column_does_not_hide_a_figure_of_its_name() -> None:
    def bars(name: str, count: int) -> Figure:
        return Figure(chart="bars", data={"labels": ["a"], "values": [count]}, label="bars", name=name, x="records")

    score, column, other = bars("score", 1), bars("score", 2), bars("age", 3)
    shown = View(title="t", quality="", answer=(score, column, other, other)).figures()
    assert shown == {"score": score, "column score": column, "age": other}
