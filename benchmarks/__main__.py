"""Runs one benchmark or study by its name: `python -m benchmarks NAME`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def names() -> list[str]:
    """A script `some_name.py` is the benchmark `some-name`."""
    return sorted(path.stem.replace("_", "-") for path in HERE.glob("[a-z]*.py") if not path.stem.endswith("common"))


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in names():
        print("usage: make bench NAME=... (or make study NAME=...; QUICK=1 for a short run). NAME is one of:")
        print("\n".join(f"  {name}" for name in names()))
        return 0 if arguments == ["--list"] else 2
    runpy.run_path(str(HERE / f"{arguments[0].replace('-', '_')}.py"), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
