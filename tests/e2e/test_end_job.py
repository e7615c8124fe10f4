"""An operator ends a job: in the console, after ticking that this is meant, and on the command line."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.statistics.describe import Describe
from support.operators import Operated, Visitor, served


def test_in_the_console_and_on_the_command_line(tmp_path: Path) -> None:
    operated = Operated(tmp_path, n=200)
    try:
        operated.begin(Describe(epsilon=1.0), "begun")
        operated.ask(Describe(epsilon=1.0), "waits")
        jobs = {job.state: job.name for job in operated.service.jobs()}
        spent = operated.parties["credit"].ledger.costs()
        with served(operated.service) as (console, _):
            visitor = Visitor(console)
            page = visitor.page(f"requests/{jobs['approved']}")
            assert "End this job" in page
            assert 'name="sure"' in page

            def end(**fields: str) -> int:
                stated = urlencode({"form": visitor.form_token(), "job": jobs["approved"], **fields})
                return visitor.send("POST", f"{console.base}end", stated, Origin=console.origin)[0].status

            assert end() == 404  # nothing was ticked
            assert operated.service.job(jobs["approved"]).state == "approved"
            assert end(sure="yes") == 303
            assert "ended by the operator" in visitor.page(f"requests/{jobs['approved']}")
            assert "End this job" not in visitor.page(f"requests/{jobs['approved']}")
        command = ["party", "end", str(operated.file), jobs["waiting"]]
        assert CliRunner().invoke(app, command, input="n\n").exit_code == 1
        assert operated.service.job(jobs["waiting"]).state == "waiting"
        assert CliRunner().invoke(app, [*command, "--yes"]).exit_code == 0
        assert operated.service.job(jobs["waiting"]).state == "ended"
        again = CliRunner().invoke(app, [*command, "--yes"])
        assert again.exit_code != 0
        assert "not under way" in again.output
        assert operated.parties["credit"].ledger.costs() == spent
    finally:
        operated.close()
