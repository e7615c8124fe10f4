"""A results page says by which commit it was made, and whether the code behind it is the present one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import benchmarks.papers_common  # noqa: F401  (its code counts)
import pytest
from benchmarks import provenance_common as provenance

CITED = re.compile(r"\bcommit ([0-9a-f]{7,40})\b([^.;]*)")


def commits(text: str) -> list[tuple[str, str]]:
    """The commits that a page's origin names, each with the rest of its sentence."""
    return CITED.findall(" ".join(line for line in text.splitlines() if line.startswith("Written by")))


@pytest.mark.parametrize("page", provenance.pages(), ids=lambda page: page.stem)
def test_a_page_names_a_commit_of_this_history_or_says_that_it_is_not(page: Path) -> None:
    for commit, rest in commits(page.read_text(encoding="utf-8")):
        assert provenance.known_commit(commit) or "not in this repository's history" in rest


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="pages are written by Python 3.11; syntax trees differ by version"
)
@pytest.mark.parametrize("page", provenance.pages(), ids=lambda page: page.stem)
def test_a_page_says_whether_its_code_has_changed(page: Path) -> None:
    lines = provenance.STANDING.findall(page.read_text(encoding="utf-8"))
    assert lines == [provenance.standing(page.stem)], "run `make pages` and commit the pages"


def test_comments_and_docstrings_do_not_make_a_page_stale(tmp_path: Path) -> None:
    plain, explained, other = (tmp_path / name for name in ("plain.py", "explained.py", "other.py"))
    plain.write_text("def double(x):\n    return 2 * x\n")
    explained.write_text('"""Twice."""\n\ndef double(x):\n    """Twice x."""\n    return 2 * x  # by addition\n')
    other.write_text("def double(x):\n    return 3 * x\n")
    assert provenance.program_hash(plain) == provenance.program_hash(explained)
    assert provenance.program_hash(plain) != provenance.program_hash(other)


def test_a_changed_or_removed_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "REPOSITORY", tmp_path)
    monkeypatch.setattr(provenance, "CODE", tmp_path)
    (tmp_path / "kernel.py").write_text("x = 1\n")
    record = tmp_path / "study.json"
    record.write_text(json.dumps({"kernel.py": provenance.program_hash(tmp_path / "kernel.py")}))
    assert provenance.standing("study") == "*Code: the present one.*"
    provenance.program_hash.cache_clear()
    (tmp_path / "kernel.py").write_text("x = 2\n")
    assert provenance.standing("study") == "*Code: 1 of 1 files changed since this page was written: kernel.py.*"
    (tmp_path / "kernel.py").unlink()
    assert "changed" in provenance.standing("study")
    many = {f"src/colonnade/{folder}/{part}.py": "0" * 12 for folder in ("secure", "view") for part in "abcd"}
    record.write_text(json.dumps(many))
    assert provenance.standing("study").endswith("written: secure/ 4, view/ 4.*")
    assert "older" in provenance.standing("another")


def test_the_code_of_a_run_is_what_it_has_loaded() -> None:
    files = provenance.loaded_code()
    assert "benchmarks/papers_common.py" in files
    assert "benchmarks/provenance_common.py" not in files
    assert provenance.changed_files(files) == []
    assert provenance.changed_files({**files, "benchmarks/papers_common.py": "0" * 12})


def test_data_count_by_their_bytes_where_they_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "REPOSITORY", tmp_path / "repository")
    monkeypatch.setattr(provenance, "used_data", {tmp_path / "table.parquet"})
    (tmp_path / "repository").mkdir()
    (tmp_path / "table.parquet").write_bytes(b"one")
    files = provenance.loaded_code()
    assert list(files) == ["../table.parquet"]
    provenance.program_hash.cache_clear()
    (tmp_path / "table.parquet").write_bytes(b"two")
    assert provenance.changed_files(files) == ["../table.parquet"]
    (tmp_path / "table.parquet").unlink()
    assert provenance.changed_files(files) == []
