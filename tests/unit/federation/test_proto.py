"""The committed protobuf code is what the compiler makes of proto/colonnade.proto."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "src" / "colonnade" / "federation" / "transports" / "generated"


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    """In a process of its own: the compiler and TenSEAL bring one library in two versions, and together they abort."""
    options = [f"-I{ROOT / 'proto'}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, "colonnade.proto"], check=True)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made
    assert made == {name: (GENERATED / name).read_text() for name in made}
