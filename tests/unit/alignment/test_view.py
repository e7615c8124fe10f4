"""What an alignment shows to everyone: the cohort, and noisy counts of who shares records with whom."""

from __future__ import annotations

import numpy as np

from colonnade.alignment.align import Aligned
from colonnade.view.page import join
from colonnade.view.render import render_blocks, render_section


def aligned(patterns: list[int] | None) -> str:
    view = Aligned(
        n=1500,
        include="union",
        matcher="holder",
        parties=("a", "b"),
        patterns=None if patterns is None else np.array(patterns),
        noise_sd=1.2,
        simulated=False,
    ).view()
    return join([render_blocks(view.answer), *map(render_section, view.sections)])


def test_an_alignment_is_shown_with_noisy_counts() -> None:
    page = aligned([0, 400, 288, 812])
    assert "every record that any party has" in page
    assert "a + b" in page
    assert "812" in page
    assert "± 3" in page
    assert "holder compared blinded tags" in page
    assert "overlap.json" in page


def test_counts_that_were_not_asked_for_are_not_shown() -> None:
    assert "Overlap counts were not asked for" in aligned(None)
