"""The map from the papers to this repository names files and pages that exist, and is the one that is written down."""

from __future__ import annotations

import pytest
from benchmarks.papers import PAGE, written
from benchmarks.papers_common import ITEMS, Item
from benchmarks.provenance_common import REPOSITORY, RESULTS


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: f"{item.paper}: {item.name}")
def test_an_item_has_its_file_and_its_page(item: Item) -> None:
    assert (REPOSITORY / "src" / "colonnade" / item.where).exists()
    assert (item.study is None) == (item.state == "absent")
    if item.study:
        assert (RESULTS / f"{item.study}.md").is_file()
        assert (REPOSITORY / "benchmarks" / f"{item.study.replace('-', '_')}.py").is_file()
    assert item.says


def test_the_page_is_that_of_the_list() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "run `make study NAME=papers`"
