"""The committed protobuf code is what the compiler makes of proto/colonnade.proto."""

from __future__ import annotations

from pathlib import Path

import pytest

protoc = pytest.importorskip("grpc_tools.protoc")

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "src" / "colonnade" / "federation" / "transports" / "generated"


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    options = [f"-I{ROOT / 'proto'}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main(["protoc", *options, "colonnade.proto"]) == 0
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made
    assert made == {name: (GENERATED / name).read_text() for name in made}
