"""describe, a synthesis, a regression and a PCA by three party processes and a coordinator over mutual TLS.

In four separate network namespaces where the machine allows them, otherwise on loopback, through `colonnade align` and
`colonnade run job.toml`. Everything is a simulation under one seed, so that the embedded federation on the same files
and the same cohort must give the same results, and the parties' transcripts must have the same messages in the same
order, each with the same number of bytes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.durable import Database
from colonnade.federation.config import JobFile
from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Transcript
from colonnade.federation.run_folder import RunFolder
from support.consortium import ALLOW, COLUMNS, MEMBERS, Consortium
from support.namespaces import COORDINATOR, namespaces

SEED = 7
JOBS = {
    "describe": 'method = "describe"\n[options]\nepsilon = 2.0\n',
    "synthesis": 'method = "synthesize"\n[options]\nepsilon = 200.0\nrows = 50\nfile_format = "csv"\n',
    "regression": 'method = "regress"\n[options]\nresponse = "profit_growth"\n',
    "pca": 'method = "pca"\n[options]\nepsilon = 5.0\nn_components = 2\n',
}
ALL_VERBS = """
import sys
from colonnade.cli.main import app
for words in (["align"], *(["run", f"{name}.toml"] for name in sys.argv[1:])):
    name = words[-1].removesuffix(".toml")
    app([*words, "--quiet", "--name", name, "-f", "coordinator.toml"], standalone_mode=False)
"""
ASKED = ("ask", "release", "mail", "reply")


def write_jobs(folder: Path) -> None:
    for name, text in JOBS.items():
        (folder / f"{name}.toml").write_text(text)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    """Aligned, and with all four jobs done; runs are in coordinator/runs."""
    root = tmp_path_factory.mktemp("networks")
    with contextlib.ExitStack() as stack:
        try:
            networks = stack.enter_context(namespaces(MEMBERS))
        except pytest.skip.Exception:  # with its reason; loopback is everywhere
            networks = None
        inside = {name: networks.inside(name) for name in ("coordinator", *MEMBERS)} if networks else {}
        made = Consortium(root, n=400, seed=SEED, host=COORDINATOR if networks else "127.0.0.1", inside=inside)
        write_jobs(root / "coordinator")
        made.start_all()
        stack.callback(made.stop)
        command = [*inside.get("coordinator", ()), sys.executable, "-c", ALL_VERBS, *JOBS]
        done = subprocess.run(command, cwd=root / "coordinator", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        if networks:  # no party has a way to another one
            reach = [*inside["credit"], "ip", "route", "get", networks.address("market")]
            assert "unreachable" in subprocess.run(reach, capture_output=True, text=True).stderr
    return made


def adopt(origin: Consortium, homes: Mapping[str, Path]) -> None:
    for name, home in homes.items():
        shutil.copytree(origin.root / name / "home" / "aligned", home / "aligned")


@pytest.fixture(scope="module")
def embedded(consortium: Consortium, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same jobs in one process, on that cohort."""
    root = tmp_path_factory.mktemp("embedded")
    adopt(consortium, {name: root / "home" / name for name in MEMBERS})
    write_jobs(root)
    with Federation.local(
        {name: consortium.root / name / "block.csv" for name in MEMBERS},
        key="firm",
        columns=consortium.example.columns.select([one for each in COLUMNS.values() for one in each]),
        organisations={name: f"{name} Ltd" for name in MEMBERS},
        allow=ALLOW,
        seed=SEED,
        home=root / "home",
        runs=root / "runs",
    ) as here:
        for name in JOBS:
            here.run(JobFile.from_toml(root / f"{name}.toml").method(), name=name)
        yield root


def rows(home: Path, job: str) -> list[tuple[str, str, str, str, str, int]]:
    found = Transcript(Database(home / "party.db", read_only=True), create=False).structure(job)
    return [row for row in found if row[1] in ASKED]


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_results_equal_the_embedded_ones(consortium: Consortium, embedded: Path, job: str) -> None:
    far, here = RunFolder.open(consortium.root / "coordinator" / "runs" / job), RunFolder.open(embedded / "runs" / job)
    assert far.job["state"] == here.job["state"] == "done"
    assert _without_seconds(far.read_json("result.json")) == _without_seconds(here.read_json("result.json"))
    assert far.read_json("costs.json")["person_total"] == here.read_json("costs.json")["person_total"]
    if job == "synthesis":
        tables = [pd.read_csv(one.path / "synthetic.csv") for one in (far, here)]
        pd.testing.assert_frame_equal(*tables)
        assert len(tables[0]) == 50
    if job == "regression":
        assert np.isfinite(list(far.read_json("result.json")["params"].values())).all()


def _without_seconds(plain: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in json.loads(json.dumps(plain)).items() if "seconds" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_transcripts_match_the_plan_byte_for_byte_in_structure(
    consortium: Consortium, embedded: Path, job: str
) -> None:
    far, here = RunFolder.open(consortium.root / "coordinator" / "runs" / job), RunFolder.open(embedded / "runs" / job)
    assert far.plan().fingerprint == here.plan().fingerprint
    for party in MEMBERS:
        crossed = rows(consortium.root / party / "home", far.job["job"])
        assert crossed == rows(embedded / "home" / party, here.job["job"]), party
        planned = Counter({one.step: one.counts[party] for one in far.plan().stages if party in one.counts})
        asked = Counter(step for _, kind, _, step, _, _ in crossed if kind == "ask")
        released = Counter(step for _, kind, _, step, _, _ in crossed if kind == "release")
        assert asked == released
        assert not asked - _by_step(far, party), "nothing beyond the plan"
        assert set(asked) == set(planned)


def _by_step(run: RunFolder, party: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in run.plan().stages:
        found[one.step] += one.counts.get(party, 0)
    return found
