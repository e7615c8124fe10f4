"""`colonnade demo`: it says what it does, and its page and reports can be read by everyone."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colonnade.cli.demo import RESPONSE
from colonnade.data.simulated import five_institutions
from colonnade.errors import NotEstimable
from colonnade.evaluation import fidelity
from colonnade.evaluation.story import write_story
from colonnade.federation.method import NoEstimate
from colonnade.federation.run_folder import RunFolder
from colonnade.synthesis.table import read_table
from support.browser import chromium, launched, sound


def _synthetic_columns_are_drawn_over_the_truth(index: Path, run: RunFolder) -> None:
    """Oracle: total variation by `fidelity`, of the rows in the run folder. The response, the furthest, the nearest."""
    truth, rows = five_institutions(4000, seed=0).truth, read_table(run)
    common = truth.columns.select(list(rows.columns))
    off = fidelity.marginal_distances(fidelity.cut(truth.complete, common), fidelity.cut(rows, common))
    page, others = index.read_text(encoding="utf-8"), sorted(off[name] for name in off if name != RESPONSE)
    for words, distance in (
        ("The response", off[RESPONSE]),
        (f"The furthest of all {len(off)}", others[-1]),
        ("The nearest", others[0]),
    ):
        (stated,) = re.findall(rf"{words}: off by ([\d.]+) %", page)
        assert float(stated) == pytest.approx(100 * distance, abs=0.051)
    assert page.count(">truth</text>") >= 3


def test_demo_in_a_process_of_its_own(tmp_path: Path) -> None:
    begun = time.monotonic()
    command = [sys.executable, "-m", "colonnade.cli.main", "demo", "--n", "4000", "--out", "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    took = time.monotonic() - begun
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == f"Open: {tmp_path / 'demo' / 'index.html'}"
    index = tmp_path / "demo" / "index.html"
    linked = [tmp_path / "demo" / name for name in re.findall(r'href="(runs/[^"]+)"', index.read_text("utf-8"))]
    reports = {path.parent.name.split("-")[0]: path for path in linked}
    assert set(reports) == {"align", "describe", "synthesize", "regress"}
    assert "A person's total over all parties' releases" in done.stdout
    assert "per record, zero-out, who is present held fixed" in done.stdout
    assert "enforcement" in done.stdout
    assert "Beside the truth" in reports["synthesize"].read_text(encoding="utf-8")
    _synthetic_columns_are_drawn_over_the_truth(index, RunFolder(reports["synthesize"].parent))
    for step in ("1. Align", "2. Describe", "3. Plan", "4. Synthesize", "5. Regress"):
        assert step in done.stdout
    if chromium() is not None:  # where there is none, the tests of a browser say so
        with launched() as browser:
            for page in (index, *reports.values()):
                sound(browser, page)
    assert took < 120
    # Noise may leave the regression without an estimate: the page says so, and is there.
    regressed = RunFolder(reports["regress"].parent)
    NoEstimate("regress", NotEstimable("no noise is this large."), {}, simulated=False).write(regressed)
    runs = {name: RunFolder(path.parent) for name, path in reports.items()}
    again = write_story(index.with_name("again.html"), five_institutions(4000, seed=0), runs, response=RESPONSE)
    assert "No estimate: no noise is this large." in again.read_text("utf-8")
