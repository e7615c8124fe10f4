"""A real PostgreSQL server for the tests: in a temporary folder, on a socket of its own, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _binary(name: str) -> str:
    found = shutil.which(name) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None
    )
    if found is None:
        pytest.skip(f"no PostgreSQL server here: {name} is neither on PATH nor in /usr/lib/postgresql")
    return found


def _as_somebody() -> tuple[list[str], str | None]:
    """PostgreSQL refuses to run as root: the command that takes another user's place, and that user."""
    if os.getuid() != 0:
        return [], None
    for user in ("postgres", "nobody"):
        try:
            pwd.getpwnam(user)
        except KeyError:
            continue
        return ["runuser", "-u", user, "--"], user
    pytest.skip("no PostgreSQL server here: it does not run as root, and there is no user postgres or nobody")


@contextmanager
def server() -> Iterator[str]:
    """A server whose user "owner" has the password "not-for-logs"; gives a connection string without a password."""
    initdb, postgres = _binary("initdb"), _binary("pg_ctl")
    prefix, user = _as_somebody()
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        data, secret = folder / "data", folder / "password"
        secret.write_text("not-for-logs")
        secret.chmod(0o644)
        made = [initdb, "-D", str(data), "-U", "owner", "-A", "scram-sha-256", "--pwfile", str(secret), "-E", "UTF8"]
        quiet = {"check": True, "capture_output": True, "cwd": "/"}
        subprocess.run([*prefix, *made, "--no-sync", "--locale=C"], **quiet)
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
        control = [*prefix, postgres, "-D", str(data)]
        # Without a log file pg_ctl's server would inherit the pipe, and the call would wait for its end.
        subprocess.run([*control, "-w", "-l", str(folder / "log"), "-o", options, "start"], **quiet)
        try:
            yield f"host={folder} user=owner dbname=postgres"
        finally:
            subprocess.run([*control, "-w", "-m", "immediate", "stop"], **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
