"""The design's words, and only these: a test greps for their synonyms in documentation and code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAID = {
    "party": r"\b(silos?|participants?|data (owners?|holders?|sites?)|(passive|guest) part(y|ies))\b",
    "coordinator": r"\b(aggregators?|orchestrators?|(central|trusted|aggregation) servers?|master node)\b",
    "response holder": r"\b(label (holders?|owners?|part(y|ies)))\b",
    "block": r"\b(data (silo|shard|partition)s?|vertical partitions?)\b",
    "alignment": r"\b(entity resolution|record linkage|private set intersection|PSI)\b",
    "missing at random, missing block": r"\b(nonresponse|non-response)\b",
    "cost, budget": r"\bprivacy (loss )?budgets? (spend|tracker)\b",
}
"""Our word -> its synonyms, anywhere in docs and source."""
GLOSSED = ("src/colonnade/alignment/method.py", "docs/alignment.md", "README.md")
"""Where `align` is explained, each of the field's names for it may stand once, so that its readers find it."""
GLOSS = re.compile(r"\b(record linkage|private set intersection|PSI)\b")
CLIENT = re.compile(r"\b[Cc]lients?\b(?! view|$)")
SERVER = re.compile(r"\b[Ss]ervers?\b(?! view|$)")
NEITHER_PARTY_NOR_COORDINATOR = re.compile(
    r"src/colonnade/(console|federation/(transports|doctor)|data/cluster|data/(sources|postgresql))|docs/(console|sources|decisions|known-issues|faults)"
)
"""Where a client or a server is one of TLS, HTTP, Dask or PostgreSQL, or a decision quotes another project."""
SPOKEN_OF = re.compile(
    r"paper's|the paper|protocol|'client' or 'server'|[\"'|`](client|server)|PostgreSQL|Dask|HTTP|gRPC|TLS|view|console"
)

TEXTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src").rglob("*.py")),
    *sorted((ROOT / "src").rglob("*.md")),
]


def offenders(text: str, where: str) -> list[str]:
    found = []
    if where in GLOSSED:
        for name in dict.fromkeys(GLOSS.findall(text)):
            text = re.sub(rf"\b{name}\b", "alignment", text, count=1)
    for number, line in enumerate(text.splitlines(), start=1):
        for ours, theirs in SAID.items():
            if hit := re.search(theirs, line):
                found.append(f"{where}:{number} says {hit[0]!r}; say {ours}")
        if NEITHER_PARTY_NOR_COORDINATOR.search(where) or SPOKEN_OF.search(line):
            continue
        for pattern, ours in ((CLIENT, "party"), (SERVER, "coordinator or response holder")):
            if hit := pattern.search(line):
                found.append(f"{where}:{number} says {hit[0]!r}; say {ours}")
    return found


def test_no_synonym_of_the_designs_words() -> None:
    found = [one for path in TEXTS for one in offenders(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "each silo sends",
        "The aggregator sums",
        "ask every client for it",
        "the server owns it",
        "the label holder",
        "PSI first",
    ],
)
def test_the_test_sees_a_synonym(line: str) -> None:
    assert offenders(line, "docs/some.md")


@pytest.mark.parametrize(
    "line", ["in the client view", "the paper's server holds y", 'view="server"', "each party sends"]
)
def test_words_that_are_right_pass(line: str) -> None:
    assert not offenders(line, "docs/some.md")


@pytest.mark.parametrize("where", GLOSSED)
def test_the_fields_names_of_an_alignment_stand_once_where_it_is_explained(where: str) -> None:
    text = (ROOT / where).read_text(encoding="utf-8")
    assert {"private set intersection", "record linkage"} <= set(GLOSS.findall(text))
    assert not offenders(text, where)
    assert offenders(f"{text}\nrecord linkage", where), "a second time is one too many"
    assert offenders("private set intersection", "docs/some.md")
