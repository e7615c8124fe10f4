"""Charts are drawn to scale, and inside their frame."""

from __future__ import annotations

import html
import re

import pytest

from colonnade.view.blocks import Table, Text, View
from colonnade.view.charts import MOST_ROWS, WIDTH, budget_bar, intervals, line, progress_bar, spending_line
from colonnade.view.render import notebook, render_blocks


@pytest.mark.parametrize("signs", [(1.0, 1.0), (-1.0, -1.0), (1.0, -1.0)])
def test_intervals_are_drawn_to_scale_inside_the_chart(signs: tuple[float, float]) -> None:
    """Oracle: places are affine in the values, so ratios of distances equal ratios of values."""
    centres = [2.0 * signs[0], 1.0 * signs[1]]
    svg = intervals(["a", "b"], centres, [c - 0.5 for c in centres], [c + 0.5 for c in centres], label="l")
    zero = float(re.search(r'class="noise" x1="([\d.]+)"', svg)[1])  # type: ignore[index]
    dots = [float(place) for place in re.findall(r'cx="([\d.]+)"', svg)]
    ends = [float(place) for pair in re.findall(r'class="spine" x1="([\d.]+)" x2="([\d.]+)"', svg) for place in pair]
    assert all(0 <= place <= WIDTH for place in [*dots, *ends, zero])
    assert (dots[0] - zero) / (dots[1] - zero) == pytest.approx(centres[0] / centres[1], rel=1e-3)
    assert (ends[1] - ends[0]) / abs(dots[1] - zero) == pytest.approx(1.0, rel=1e-3)


def test_many_intervals_leave_the_rest_to_the_table() -> None:
    many = [float(number) for number in range(40)]
    svg = intervals([f"x{number:g}" for number in many], many, many, many, label="l")
    assert f"and {40 - MOST_ROWS} more in the table" in svg
    assert svg.count("<circle") == MOST_ROWS


@pytest.mark.parametrize("mark", [0, 2])
def test_the_stair_stays_inside_the_chart(mark: int) -> None:
    svg = line([0, 3, 7], mark=mark, label="l")
    assert f'viewBox="0 0 {WIDTH:g}' in svg
    places = [float(part.split('"')[1]) for part in svg.split("x1=")[1:]]
    assert all(0 <= place <= WIDTH for place in places)


def test_the_consoles_bars_have_the_shares_that_they_tell() -> None:
    """Half of the budget spent, a quarter more if what waits were approved; 3 of 4 requests."""
    svg = budget_bar(2.0, 3.0, 4.0)
    assert 'class="spent" x="0" y="0" width="320"' in svg
    assert 'class="claimed" x="320" y="0" width="160"' in svg
    assert "claimed" not in budget_bar(2.0, None, 4.0)
    assert 'width="640" height="26"' in budget_bar(float("inf"), None, 4.0)
    assert 'class="spent" x="0" y="0" width="480"' in progress_bar(3, 4, "l")
    assert "<rect" in progress_bar(0, 0, "l")


def test_spending_ends_now_under_the_line_of_the_budget() -> None:
    svg = spending_line([(0.0, 1.0), (50.0, 2.0)], 4.0, 100.0)
    stair = re.search(r'class="stair" d="([^"]+)"', svg)
    assert stair
    steps = re.findall(r"H([\d.]+)V([\d.]+)", stair[1])
    assert float(steps[-1][1]) == pytest.approx((14 + 140) / 2, abs=0.1)  # half of the budget's height
    assert stair[1].endswith("H314.0")


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
