"""A run folder: everything about one job in one place.

job.json       format, job id, method, options, federation, version; state: running, done or failed
plan.json, plan.txt      what was going to happen       transcript.db   what crossed the coordinator's border
costs.json     what it cost, composed over all parties  result.json, view.json, report.html, ...   the result
heads.json     the heads of all members' ledgers, signed
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import colonnade
from colonnade.durable import Head, check_name, json_object, private_folder, tighten, whole_file
from colonnade.errors import RunError
from colonnade.federation.plan import Plan, of_first_format

FORMAT = 2
"""Of a run folder. The first stated none: its plan had phases in place of stages, and its result no view."""


class RunFolder:
    """One job on the coordinator's disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls, parent: Path, plan: Plan, *, federation: str | None, seed: int | None, name: str | None = None
    ) -> RunFolder:
        """A new folder `parent/METHOD-TIME-RANDOM`, or `parent/name`."""
        job = f"{plan.method.lower()}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
        folder = cls(parent / check_name(job if name is None else name, "a run", error=RunError))
        if folder.path.exists() and not folder._never_begun():
            raise RunError(f"{folder.path} exists already; choose another name or resume it.")
        private_folder(folder.path)
        folder.write_json("plan.json", plan.to_dict())
        folder.write("plan.txt", plan.text() + "\n")
        folder.write_json(  # last: a folder with a job.json is whole
            "job.json",
            {
                "format": FORMAT,
                "job": job,
                "method": plan.method,
                "options": dict(plan.options),
                "federation": federation,
                "version": colonnade.__version__,
                "entropy": secrets.token_hex(16) if seed is None else None,
                "seed": seed,
                "state": "running",
                "started": time.time(),
            },
        )
        return folder

    def _never_begun(self) -> bool:
        """Whether this is all that a coordinator left which was killed before it proposed anything."""
        before = {"plan.json", "plan.txt", "plan.json.partial", "plan.txt.partial", "job.json.partial"}
        return self.path.is_dir() and all(file.name in before for file in self.path.iterdir())

    @classmethod
    def open(cls, path: Path, *, older: bool = False) -> RunFolder:
        """A folder that a run of this version has written. `older` is for those who only read what it has cost: its
        plan, its costs and the heads of ledgers are read from every format."""
        folder = cls(path)
        if not (path / "job.json").is_file():
            raise RunError(f"{path} is not a run folder (it has no job.json); name the folder that a run printed.")
        if folder.format != FORMAT and not older:
            raise RunError(
                f"{path} is a run folder of Colonnade {folder.job.get('version', 'of an unknown version')} in another"
                f" format ({folder.format}, here {FORMAT}): read the report.html that it has, resume it with that"
                " version, or move it away and start a new run."
            )
        tighten(path)
        return folder

    @property
    def format(self) -> int:
        return int(self.job.get("format", 1))

    @property
    def job(self) -> dict[str, Any]:
        return self.read_json("job.json")

    def heads(self) -> dict[str, Head]:
        """The newest head of each party's ledger that this run knows: at its end, or that its reservation left."""
        proposed = {party: Head(**head) for party, head in self.job.get("heads", {}).items()}
        if not (self.path / "costs.json").is_file():
            return proposed
        stated = self.read_json("costs.json").get("heads", {})
        return proposed | {party: Head(**heads["ledger"]) for party, heads in stated.items()}

    def plan(self) -> Plan:
        plain = self.read_json("plan.json")
        return Plan.from_dict(plain if self.format == FORMAT else of_first_format(plain))

    def update(self, **fields: Any) -> None:
        self.write_json("job.json", {**self.job, **fields})

    def read_json(self, name: str) -> dict[str, Any]:
        return json_object(self.path / name, cure="start a new run")

    def write_json(self, name: str, plain: Mapping[str, Any]) -> Path:
        return self.write(name, _laid_out(plain) + "\n")

    def write(self, name: str, text: str) -> Path:
        """Whole or not at all."""
        path = self.path / name
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
        return path


_written = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _laid_out(value: Any, margin: str = "\n") -> str:
    """JSON for people and programs: an entry to a line, and on one line what holds nothing but numbers and texts, such
    as a row of a matrix. (`indent` would put every number on a line of its own, and takes several times as long.)"""
    entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    kinds = set(map(type, entries))  # few, of many entries
    if margin != "\n" and not any(issubclass(kind, Mapping | list | tuple) for kind in kinds):
        return _written(value)
    inner = margin + "  "
    lines = [_laid_out(entry, inner) for entry in entries]
    if isinstance(value, Mapping):
        names = (_written(str(name)) for name in value)
        lines = [f"{name}: {line}" for name, line in zip(names, lines, strict=True)]
    first, last = "{}" if isinstance(value, Mapping) else "[]"
    return f"{first}{inner}{f',{inner}'.join(lines)}{margin}{last}" if lines else first + last


def newest_heads(runs: Path) -> dict[str, Head]:
    """The last head of its ledger that each party handed out, over all runs that were proposed."""
    newest: dict[str, tuple[float, Head]] = {}
    for path in runs.glob("*/job.json"):
        run = RunFolder(path.parent)
        when = float(run.job.get("finished", run.job.get("proposed", 0.0)))
        for party, head in run.heads().items():
            if head.rows and when > newest.get(party, (0.0, head))[0]:  # none where the job still waits
                newest[party] = (when, head)
    return {party: head for party, (_, head) in newest.items()}
