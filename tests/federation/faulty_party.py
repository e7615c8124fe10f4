"""A party process that is killed after its reply is durable and before it is sent, the first time. For kill tests."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from colonnade.federation.party import Party
from colonnade.federation.transports import processes as serve

if __name__ == "__main__":
    original = Party._commit

    def commit_then_die(self: Party, *arguments: object) -> bytes:
        reply = original(self, *arguments)  # type: ignore[arg-type]
        mark = self.home / "died-once"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    Party._commit = commit_then_die  # type: ignore[method-assign,assignment]
    serve.main(Path(sys.argv[1]))
