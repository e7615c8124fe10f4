"""The operators of a party: who may decide, each with a password of their own; and the notice that something waits.

`operators.json` in the party's folder has a name and an Argon2id hash for each. Without the file the person who holds
the party's folder is its one operator, as on the terminal. Who can write that folder can change all of this: passwords
keep operators apart, not the machine's administrator out.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from colonnade.durable import check_name, private_file, whole_file
from colonnade.errors import BadArguments, NotApproved, StorageError

SHORTEST = 12
"""Characters of a password."""
MEMORY_KB, PASSES, LANES = 64 * 1024, 3, 4
"""RFC 9106's second recommendation: about a tenth of a second of one core."""
_ABSENT = "$argon2id$v=19$m=65536,t=3,p=4$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
"""Checked for a name that is unknown, so that it takes as long as for one that is known."""


@dataclass(frozen=True)
class Operators:
    """Those of the party whose folder is `home`."""

    home: Path

    @property
    def path(self) -> Path:
        return self.home / "operators.json"

    def _hashes(self) -> dict[str, str]:
        if not self.path.is_file():
            return {}
        try:
            hashes = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{self.path} cannot be read ({error}); restore it, or add the operators anew."
            ) from error
        return {str(name): str(stored) for name, stored in hashes.items()}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._hashes())

    def add(self, name: str, password: str) -> None:
        """A new operator, or a new password of one."""
        check_name(name, "an operator", error=BadArguments)
        if len(password) < SHORTEST:
            raise BadArguments(f"a password has at least {SHORTEST} characters; three or four random words do.")
        hashing = Argon2id(salt=os.urandom(16), length=32, iterations=PASSES, lanes=LANES, memory_cost=MEMORY_KB)
        self._write({**self._hashes(), name: hashing.derive_phc_encoded(password.encode())})

    def remove(self, name: str) -> None:
        hashes = self._hashes()
        if name not in hashes:
            raise BadArguments(f"there is no operator {name!r}; there are {', '.join(hashes) or 'none'}.")
        del hashes[name]
        self._write(hashes)

    def _write(self, hashes: dict[str, str]) -> None:
        with whole_file(self.path) as partial:
            private_file(partial).write_text(json.dumps(hashes, indent=2) + "\n", encoding="utf-8")

    def signed_in(self, name: str, password: str) -> str:
        """The operator's name, or `NotApproved` in the same words and time whichever was wrong."""
        stored = self._hashes().get(name)
        try:
            Argon2id.verify_phc_encoded(password.encode(), stored or _ABSENT)
        except (InvalidKey, ValueError):
            stored = None
        if stored is None:
            raise NotApproved("this name and this password do not belong together.")
        return name


def send_notice(command: Sequence[str], text: str, *, said: Callable[[str], None] = lambda line: None) -> None:
    """Run the configured command, without a shell, with the text as its input. What waits does not wait for it."""

    def run() -> None:
        try:
            done = subprocess.run(
                list(command), input=f"{text}\n".encode(), capture_output=True, timeout=60, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            said(f"the notice could not be sent ({error}); check `notice` in party.toml")
        else:
            if done.returncode:
                said(f"the notice's command ended with {done.returncode}; check `notice` in party.toml")

    if command:
        threading.Thread(target=run, name="colonnade notice", daemon=True).start()
