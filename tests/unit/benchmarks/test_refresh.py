"""Draws that are kept, one command that writes all pages anew, and one draw of each study made again.

In a folder with the modules of `benchmarks` and tiny studies in place of the real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import draws_common as draws
from benchmarks import provenance_common as provenance

MODULES = ("__init__", "__main__", "common", "draws_common", "provenance_common", "refresh", "papers")
COIN = """
import pathlib, random
from benchmarks.common import Page
from benchmarks.coin_common import SIDES

def toss(seed):
    stop = pathlib.Path("stop")
    if seed == 2 and stop.is_file():
        raise SystemExit(3)
    with open("tosses", "a") as file:
        file.write(f"{seed} ")
    chance = random.Random(seed)
    return {"share": sum(chance.random() < 1 / SIDES for _ in range(100)) / 100}

page = Page("coin", "A coin")
shares = [page.draws.get(("heads", 0.5), seed, lambda: toss(seed))["share"] for seed in range(4)]
page.say(f"{sum(shares) / 4:.3f}")
raise SystemExit(page.finish(True, share=sum(shares) / 4))
"""
STUDIES = {
    "coin": COIN,
    "coin_common": "SIDES = 2\n",
    "broken": 'from benchmarks.common import Page\npage = Page("broken", "Broken")\nraise ValueError\n',
    "low": 'from benchmarks.common import Page\nraise SystemExit(Page("low", "Low").finish(False))\n',
    "papers_common": (
        "from types import SimpleNamespace\nItem = SimpleNamespace\n"
        "ITEMS = [Item(paper='p', name='i', where='w', study=study, state='shown', says='') for study in ('coin',)]\n"
    ),
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks").mkdir()
    for name in MODULES:
        shutil.copy(provenance.REPOSITORY / "benchmarks" / f"{name}.py", tmp_path / "benchmarks")
    for name, text in STUDIES.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
    return tmp_path


def run(repository: Path, study: str, **environment: str) -> tuple[int, list[str]]:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", study],
        cwd=repository,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout.splitlines()


def tosses(repository: Path) -> list[str]:
    return (repository / "tosses").read_text().split()


def test_a_refresh_goes_on_after_a_failure_and_after_a_stop(repository: Path) -> None:
    durations = repository / "docs" / "results" / "durations.json"
    durations.write_text(json.dumps({"coin": 90, "low": 7200}))
    (repository / "stop").touch()
    code, told = run(repository, "refresh")
    assert code == 1
    assert told[0] == "3 of 3 pages to write anew: 2 h 02 min, and 1 whose time is not known."
    assert [line.split()[0] for line in told[1:4]] == ["coin", "low", "broken"]
    assert told[-1] == "refresh: pages=3 run=1 failed=2 ok=0 short=1 stale=0 missing=2 short"
    assert tosses(repository) == ["0", "1"]

    (repository / "stop").unlink()
    (repository / "benchmarks" / "broken.py").unlink()
    code, told = run(repository, "refresh", HOURS="1")
    assert told[0].startswith("1 of 2 pages to write anew: 0 h 02 min")
    assert told[-1] == "refresh: pages=2 run=1 failed=0 ok=1 short=1 stale=0 missing=0 short"
    assert tosses(repository) == ["0", "1", "2", "3"], "draws of the first sitting were made again"

    (repository / "benchmarks" / "low.py").unlink()
    code, told = run(repository, "refresh")
    assert (code, told[0]) == (0, "0 of 1 pages to write anew: 0 h 00 min.")

    (repository / "benchmarks" / "coin_common.py").write_text("SIDES = 3\n")
    code, told = run(repository, "refresh", PLAN="1")
    assert (code, told[-1]) == (1, "refresh: pages=1 run=0 failed=0 ok=0 short=0 stale=1 missing=0 short")
    run(repository, "refresh")
    assert len(tosses(repository)) == 8, "draws of other code were used"


def test_a_draw_that_is_made_again_must_agree(repository: Path) -> None:
    run(repository, "coin")
    code, told = run(repository, "papers", QUICK="1", SEED="1")
    assert (code, told[-1].split(" stale=")[1]) == (0, "0 recomputed=1 skipped=0 ok"), told
    path = repository / "docs" / "results" / "lines" / "coin.jsonl"
    path.write_text(path.read_text().replace('"share": 0.', '"share": 7.'))
    code, told = run(repository, "papers", QUICK="1", SEED="1")
    assert (code, told[-1].split(" stale=")[1]) == (1, "1 recomputed=1 skipped=0 short"), told
    path.write_text(path.read_text().replace('"seconds": 0.', '"seconds": 1000.'))
    assert run(repository, "papers", QUICK="1")[1][-1].endswith("stale=0 recomputed=0 skipped=1 ok")


def test_values_agree_to_a_millionth_or_within_four_errors_of_two_draws() -> None:
    cell = [{"x": 1.0}, {"x": 2.0}, {"x": 3.0}]  # a standard deviation of 1, so 4 sqrt(2) are allowed
    assert draws.disagreements({"x": 1.0}, {"x": 6.6}, cell) == []
    assert draws.disagreements({"x": 1.0}, {"x": 6.7}, cell) == ["x"]
    assert draws.disagreements({"x": 1.0}, {"x": 1.0 + 5e-7}, cell[:1]) == []
    assert draws.disagreements({"x": 1.0}, {"x": 1.0 + 5e-6}, cell[:1]) == ["x"]
    assert draws.disagreements({"x": [1.0, 2.0]}, {"x": [1.0, 2.1]}, []) == ["x"]
    assert draws.disagreements({"x": 1.0, "cpu_seconds": 1.0}, {"x": 1.0, "cpu_seconds": 9.0}, []) == []
    assert draws.disagreements({"x": 1.0}, {}, []) == ["x"]
