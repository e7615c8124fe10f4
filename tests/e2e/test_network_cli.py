"""Three institutions and a coordinator, each with its own folder, keys and process, over mutual TLS on loopback.

Everything goes through the command line, as docs/network.md tells it. Oracle: the embedded federation on these files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from colonnade.console.operator import OperatorService
from colonnade.errors import PartyLost
from colonnade.federation.config import CoordinatorFile
from colonnade.federation.coordinator import Federation
from colonnade.federation.run_folder import RunFolder
from colonnade.models.linear.regress import Regress
from support.consortium import ALLOW, COLUMNS, MEMBERS, Consortium, says
from support.operators import Visitor, served


@pytest.fixture
def consortium(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Consortium]:
    made = Consortium(tmp_path, approve=getattr(request, "param", "auto"))
    made.start_all()
    yield made
    made.stop()


@pytest.mark.slow
def test_align_describe_and_regress_across_institutions(consortium: Consortium) -> None:
    firms = set().union(*(set(consortium.example.blocks[name]["firm"]) for name in MEMBERS))
    said = consortium.run("align", "--quiet")
    result = RunFolder.open(Path(said.strip().splitlines()[-1]).parent).read_json("result.json")
    assert result["n"] == len(firms)
    for name in MEMBERS:  # no key of another party reached anybody's folder
        others = firms - set(consortium.example.blocks[name]["firm"])
        content = b"".join(path.read_bytes() for path in (consortium.root / name / "home").rglob("*") if path.is_file())
        assert not any(key.encode() in content for key in list(others)[:50])

    said = consortium.run("describe", "--epsilon", "5", "--quiet")
    run = RunFolder.open(Path(said.strip().splitlines()[-1]).parent)
    described = run.read_json("result.json")
    assert described["n"] == len(firms)
    heads = run.read_json("heads.json")  # signed by keys that the members' certificates hold
    assert all(len(signature) == 128 for signature in heads["countersigned"].values())
    assert set(heads["countersigned"]) == {head["party"] for head in heads["heads"]}

    said = consortium.run("regress", "--response", "profit_growth", "--missing", "em", "--quiet")
    fitted = RunFolder.open(Path(said.strip().splitlines()[-1]).parent).read_json("result.json")
    blocks = {name: consortium.example.blocks[name][["firm", *COLUMNS[name]]] for name in MEMBERS}
    columns = consortium.example.columns.select([one for each in COLUMNS.values() for one in each])
    with Federation.local(blocks, key="firm", columns=columns, allow=ALLOW[1:]) as here:
        oracle = Regress(response="profit_growth", missing="em").fit(here)
    # Rounding to 2^-20 is random, so the two agree to about that.
    pd.testing.assert_series_equal(pd.Series(fitted["params"]), oracle.params, check_names=False, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("consortium", ["ask"], indirect=True)
def test_an_operator_decides(consortium: Consortium) -> None:
    waiting = consortium.run("align", "--quiet", "--name", "first", code=5)
    assert "waits for the operators of credit, commerce, market" in waiting
    for name in MEMBERS:
        listed = says("party", "requests", "party.toml", cwd=consortium.root / name)
        job = listed.splitlines()[0]
        assert job.startswith("align-")
        assert "alignment" in listed
        assert "Asked by University." in listed
        assert f"job {job} waits for a decision" in (consortium.root / name / "serve.txt").read_text()
        if name == "market":  # the same decision through its web console, beside the process that serves
            with served(OperatorService(consortium.root / name / "party.toml")) as (console, _):
                assert Visitor(console).decide(job, "approve")[0] == 303
        else:
            says("party", "approve", "party.toml", job, cwd=consortium.root / name)
        assert "No job is waiting" in says("party", "requests", "party.toml", cwd=consortium.root / name)
    again = says("party", "approve", "party.toml", job, cwd=consortium.root / "credit", code=5)
    assert "no job" in again
    run = consortium.root / "coordinator" / "runs" / "first"
    says("resume", run, "--quiet", cwd=consortium.root / "coordinator")
    assert RunFolder.open(run).job["state"] == "done"

    consortium.run("describe", "--epsilon", "1", "--quiet", "--name", "second", code=5)
    listed = says("party", "requests", "party.toml", cwd=consortium.root / "market")
    says("party", "deny", "party.toml", listed.splitlines()[0], cwd=consortium.root / "market")
    denied = says(
        "resume", consortium.root / "coordinator" / "runs" / "second", cwd=consortium.root / "coordinator", code=5
    )
    assert "not-approved" in denied


@pytest.mark.slow
def test_a_missing_member_is_named(tmp_path: Path) -> None:
    made = Consortium(tmp_path, approve="auto")
    made.start("credit")
    try:
        file = made.root / "coordinator" / "coordinator.toml"
        started = time.monotonic()
        with pytest.raises(PartyLost, match="'commerce' is not connected"):
            Federation.serve(CoordinatorFile.from_toml(file), patience=4.0)
        assert time.monotonic() - started < 60
    finally:
        made.stop()
