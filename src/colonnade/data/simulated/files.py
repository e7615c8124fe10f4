"""A simulated consortium as files: one CSV a party, columns.toml, federation.toml."""

from __future__ import annotations

from pathlib import Path

from colonnade.data.simulated.example import Example
from colonnade.errors import SourceError


def write_example(example: Example, folder: str | Path, *, allow: tuple[str, ...] = ("alignment", "presence")) -> Path:
    """Write the parties' blocks and what they declare, and return the path of the federation.toml.

    `allow` are the releases without a bound that all parties accept.

        write_example(five_institutions(2000), "firms")  # firms/federation.toml
    """
    where = Path(folder)
    if (where / "federation.toml").exists():
        raise SourceError(f"{where / 'federation.toml'} exists already; name a new folder.")
    where.mkdir(parents=True, exist_ok=True)
    named = ", ".join(f'"{name}"' for name in allow)
    lines = [f'key = "{example.key}"', 'columns = "columns.toml"', f"allow = [{named}]"]
    for party, frame in example.blocks.items():
        frame.to_csv(where / f"{party}.csv", index=False)
        lines += ["", f"[parties.{party}]", f'source = "{party}.csv"']
        lines += [f'organisation = "{example.organisations[party]}"'] if party in example.organisations else []
    (where / "columns.toml").write_text(example.columns.to_toml(), encoding="utf-8")
    path = where / "federation.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
