"""What a newcomer does first, counted: commands, hand-written files and seconds, from nothing but three CSV files.

*Local*: `colonnade init` and then one verb, for each first result, in a fresh folder. *Network*: three members, each a
process with a home, keys and a table of its own, and a coordinator that stays; from nothing to the report of a job that
every member's policy has approved. Commands are run as they are typed, in a shell's place, and each counts one; a file
counts as hand-written if this script writes it, apart from the tables.

**Criterion**, written before the first run: each local result takes at most 3 commands and no hand-written file; the
network's takes at most 8 commands and 1 hand-written file; every command ends with exit code 0 (those that stay, on
SIGTERM) and every result has its report.html. Seconds are reported and not judged.

The tables are those of a bank, a clinic and a registry on 3,000 people (QUICK=1: 400), with dates, empty cells, a
category written in Chinese, and people whom one or two of them lack.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import Page, quick

COLONNADE = [sys.executable, "-m", "colonnade.cli.main"]
MEMBERS = ("bank", "clinic", "registry")
MOST_LOCAL, MOST_NETWORK, MOST_FILES = 3, 8, 1
FIRST_RESULTS = {
    "describe": ["describe", "--epsilon", "1"],
    "synthesize": ["synthesize", "--epsilon", "4"],
    "regress": ["regress", "--formula", "sbp ~ age + bmi * smoker + C(region)"],
    "regress, private": ["regress", "-r", "sbp", "--columns", "age,bmi", "--epsilon", "8"],
    "pca": ["pca", "--epsilon", "4", "--columns", "income,age,bmi,sbp", "--n-components", "2"],
}


@dataclass
class Newcomer:
    """One folder, and what was done in it."""

    folder: Path
    commands: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    staying: list[subprocess.Popen[bytes]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    """Until its result was there."""

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    def types(self, *words: str) -> None:
        """A command that ends."""
        self.commands.append(" ".join(words))
        done = subprocess.run(
            [*COLONNADE, *words], cwd=self.folder, env=self.environment, capture_output=True, check=False
        )
        if done.returncode:
            self.failed.append(f"{' '.join(words)}: {done.stderr.decode().strip()[-300:]}")

    def starts(self, *words: str) -> None:
        """A command that stays."""
        self.commands.append(" ".join(words))
        log = (self.folder / f"{len(self.commands)}.log").open("wb")
        self.staying.append(
            subprocess.Popen([*COLONNADE, *words], cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        )

    def writes(self, name: str, text: str) -> None:
        self.written.append(name)
        (self.folder / name).write_text(text, encoding="utf-8")

    def stops(self) -> None:
        for process in self.staying:
            process.send_signal(signal.SIGTERM)
        for process in self.staying:
            if process.wait(timeout=60):
                self.failed.append(f"a process that stays ended with {process.returncode}")

    def has_it(self, runs: str, count: int) -> None:
        self.seconds = time.monotonic() - self.began
        reports = len(list((self.folder / runs).glob("*/report.html")))
        if not self.failed and reports != count:
            self.failed.append(f"{reports} reports in place of {count}")


def tables(folder: Path, n: int) -> None:
    rng = np.random.default_rng(11)
    keys = [f"P{number:06d}" for number in range(n)]
    age, bmi = rng.integers(18, 90, n), rng.normal(26, 4, n).clip(15, 50).round(1)
    smoker = rng.random(n) < 0.25
    sbp = (95 + 0.5 * age + 0.9 * bmi + 5 * smoker + rng.normal(0, 10, n)).clip(70, 230).round()
    days = pd.Timestamp("2010-01-01") + pd.to_timedelta(rng.integers(0, 5000, n), unit="D")
    blocks = {
        "bank": {"income": rng.lognormal(8, 0.4, n).round(2), "opened": days.strftime("%Y-%m-%d")},
        "clinic": {"age": age, "bmi": bmi, "sbp": sbp},
        "registry": {
            "smoker": np.where(smoker, "yes", "no"),
            "region": rng.choice(["Île-de-France", "东部", "Nord"], n),
        },
    }
    for name, columns in blocks.items():
        frame = pd.DataFrame({"patient_id": keys, **columns})
        if name == "bank":
            frame.loc[rng.random(n) < 0.04, "income"] = np.nan
        frame[rng.random(n) < 0.9].sample(frac=1, random_state=1).to_csv(folder / f"{name}.csv", index=False)


@contextlib.contextmanager
def newcomer(n: int) -> Iterator[Newcomer]:
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        tables(Path(folder), n)
        person = Newcomer(Path(folder))
        try:
            yield person
        finally:
            person.stops()


def local(words: list[str], n: int) -> Newcomer:
    with newcomer(n) as person:
        person.types("init", *(f"{name}.csv" for name in MEMBERS), "--key", "patient_id", "--yes")
        person.types(*words, "--yes")
        person.has_it("runs", 1)
    return person


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def network(n: int) -> Newcomer:
    with newcomer(n) as person:
        members = "".join(
            f'\n[members.{name}]\norganisation = "{name.title()}"\nsource = "{name}.csv"\n' for name in MEMBERS
        )
        person.writes(
            "consortium.toml",
            f'name = "Heart study"\nkey = "patient_id"\ncoordinator = "127.0.0.1:{free_port()}"\n'
            f'coordinator_organisation = "University"\n{members}',
        )
        person.types("provision", "consortium.toml", "--trusted-dealer", "--yes")
        for name in MEMBERS:
            person.starts("party", "serve", f"kits/{name}/party.toml")
        person.starts("coordinator", "serve", "kits/coordinator/coordinator.toml")
        deadline = time.monotonic() + 60
        while not (person.folder / "kits/coordinator/queue/status.json").is_file() and time.monotonic() < deadline:
            time.sleep(0.2)  # a person reads what the terminal says
        for words in (["align"], ["describe", "--epsilon", "1"]):
            person.types(*words, "-f", "kits/coordinator/coordinator.toml", "--yes")
        person.has_it("kits/coordinator/runs", 2)
    return person


def main() -> int:
    n = 400 if quick() else 3000
    page = Page("first-hour", "The first hour: from three CSV files to a result")
    page.say(f"{n:,} people in three tables; the criterion is in `benchmarks/first_hour.py`.")
    done = {f"local, {name}": local(words, n) for name, words in FIRST_RESULTS.items()}
    alone = list(done.values())
    done["network, three members"] = together = network(n)
    rows = [
        [name, str(len(person.commands)), str(len(person.written)), f"{person.seconds:.0f}"]
        for name, person in done.items()
    ]
    page.table(("first result", "commands", "hand-written files", "seconds"), rows)
    page.say("The commands of the network, in their order:")
    page.say("\n".join(f"    colonnade {command}" for command in together.commands))
    failed = [f"{name}: {fault}" for name, person in done.items() for fault in person.failed]
    for fault in failed:
        page.say(f"- {fault}")
    commands, files = max(len(person.commands) for person in alone), max(len(person.written) for person in alone)
    good = not failed and commands <= MOST_LOCAL and files == 0
    good = good and len(together.commands) <= MOST_NETWORK and len(together.written) <= MOST_FILES
    return page.finish(
        good,
        local_commands=commands,
        local_files=files,
        network_commands=len(together.commands),
        network_files=len(together.written),
        failed=len(failed),
    )


if __name__ == "__main__":
    sys.exit(main())
