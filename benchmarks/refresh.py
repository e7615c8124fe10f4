"""Every page whose code has changed, anew: `make refresh`, one study after the other, shortest first.

First it says what it will run and how long that takes: what the last run of each took (docs/results/durations.json, or
the minutes on its page), less the draws that the present code has left in docs/results/lines. Of a study that was
changed and has not run since, durations.json may hold an estimate. A study that fails, or takes five times its time and
an hour more, is noted and the next one runs; its output is in .studies/refresh. Stopped
and called again, it goes on: pages of the present code are left alone, and of the others only the draws are made that
are not there.

PLAN=1 says what would be run. ONLY=mrf-svm,vfem-sme runs these (if they are stale), HOURS=8 those that fit, QUICK=1
each in its quick form, which writes no page. The last line is for machines; short if a page is not of the present code,
or says short itself.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.draws_common import present, quick
from benchmarks.provenance_common import REPOSITORY, RESULTS, program_hash, standing

SCRIPTS = Path(__file__).parent
LOGS = REPOSITORY / ".studies" / "refresh"
PAGE = re.compile(r"Page\(\s*\"([a-z-]+)\"")
MINUTES = re.compile(r"\bin (\d+) minutes\b")
LAST = re.compile(r"^ {4}[a-z-]+: .*\b(ok|short)$", re.MULTILINE)
PRESENT = "*Code: the present one.*"


@dataclass(frozen=True)
class Study:
    """A script and the page that it writes."""

    name: str
    page: str

    @property
    def path(self) -> Path:
        return RESULTS / f"{self.page}.md"

    @property
    def state(self) -> str:
        """What its page is: missing, stale, short or ok."""
        if not self.path.is_file():
            return "missing"
        if standing(self.page) != PRESENT:
            return "stale"
        last = LAST.findall(self.path.read_text(encoding="utf-8"))
        return last[-1] if last else "short"

    @property
    def whole(self) -> float | None:
        """Seconds of its last full run; None if none is known."""
        durations = RESULTS / "durations.json"
        known = json.loads(durations.read_text(encoding="utf-8")) if durations.is_file() else {}
        if self.page in known:
            return float(known[self.page])
        minutes = MINUTES.search(self.path.read_text(encoding="utf-8")) if self.path.is_file() else None
        return 60 * (int(minutes[1]) + 0.5) if minutes else None

    @property
    def expected(self) -> float | None:
        """Seconds that it still needs."""
        if self.whole is None:
            return None
        return max(self.whole - sum(line.seconds for line in present(self.page)), 0.0)


def studies() -> list[Study]:
    """Every script that writes a page."""
    scripts = (path for path in sorted(SCRIPTS.glob("[a-z]*.py")) if not path.stem.endswith("common"))
    pages = ((path.stem.replace("_", "-"), PAGE.search(path.read_text(encoding="utf-8"))) for path in scripts)
    return [Study(name, page[1]) for name, page in pages if page]


def chosen(all_studies: Sequence[Study]) -> list[Study]:
    """Those whose page is missing or stale, shortest first, those of unknown time last; what ONLY and HOURS leave."""
    only = [name for name in os.environ.get("ONLY", "").split(",") if name]
    unknown = set(only) - {study.name for study in all_studies}
    if unknown:
        raise SystemExit(f"ONLY names {', '.join(sorted(unknown))}; `make study` lists the names.")
    stale = [study for study in all_studies if (not only or study.name in only) and study.state in ("missing", "stale")]
    expected = {study: study.expected for study in stale}
    ordered = sorted(stale, key=lambda study: (expected[study] is None, expected[study] or 0.0, study.name))
    left = 3600 * float(os.environ.get("HOURS") or "inf")
    fitting = []
    for study in ordered:
        seconds = expected[study]
        if left == float("inf") or (seconds is not None and seconds <= left):
            fitting.append(study)
            left -= seconds or 0.0
    return fitting


def hours(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min"


def announce(run: Sequence[Study], all_studies: Sequence[Study]) -> None:
    """What will run and how long it takes, the total first."""
    expected = {study: study.expected for study in run}
    known = [seconds for seconds in expected.values() if seconds is not None]
    unknown = len(run) - len(known)
    more = f", and {unknown} whose time is not known" if unknown else ""
    how = " if run in full; QUICK=1 writes no page" if quick() else ""
    print(f"{len(run)} of {len(all_studies)} pages to write anew: {hours(sum(known))}{more}{how}.")
    for study, seconds in expected.items():
        takes = "not known" if seconds is None else hours(seconds)
        print(f"  {study.name:20} {takes:>12}  {study.state}", flush=True)


def run_bounded(study: str, seconds: float, *, environment: Mapping[str, str], out: IO[str], error: IO[str]) -> int:
    """Run a study and all that it starts for so long at most; its exit code, or TimeoutExpired."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", study],
        cwd=REPOSITORY,
        env=dict(environment),
        stdout=out,
        stderr=error,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def run_study(study: Study) -> str:
    """Run it, its output to a log; '' or what went wrong."""
    LOGS.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("ONLY", "HOURS", "PLAN")}
    limit = 3600 + 5 * (study.expected or 6 * 3600)
    with (LOGS / f"{study.name}.log").open("a", encoding="utf-8") as log:
        try:
            code = run_bounded(study.name, limit, environment=environment, out=log, error=log)
        except subprocess.TimeoutExpired:
            return f"ended after {hours(limit)}"
    program_hash.cache_clear()  # files may have been edited since
    if code and (quick() or study.state in ("missing", "stale")):
        return f"ended with {code}"
    return ""


def main() -> int:
    every = studies()
    run = chosen(every)
    announce(run, every)
    failed, done = list[str](), 0
    try:
        for study in run if not os.environ.get("PLAN") else ():
            started = time.monotonic()
            wrong = run_study(study)
            failed += [study.name] if wrong else []
            done += not wrong
            result = f"{wrong}; see {LOGS / study.name}.log" if wrong else study.state
            print(f"{time.strftime('%H:%M')} {study.name}: {hours(time.monotonic() - started)}, {result}", flush=True)
    except KeyboardInterrupt:
        print("Stopped; `make refresh` goes on from here.")
    states = [study.state for study in every]
    figures = {"pages": len(every), "run": done, "failed": len(failed)}
    figures |= {state: states.count(state) for state in ("ok", "short", "stale", "missing")}
    good = figures["ok"] == figures["pages"] and not failed
    print(f"refresh: {' '.join(f'{name}={count}' for name, count in figures.items())} {'ok' if good else 'short'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
