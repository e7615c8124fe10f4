"""The page of an alignment."""

from __future__ import annotations

from colonnade.evaluation import report_alignment


def test_an_alignment_is_told_with_noisy_counts() -> None:
    result = {
        "n": 1500,
        "include": "union",
        "matcher": "holder",
        "parties": ["a", "b"],
        "patterns": [{"parties": ["a", "b"], "count": 812.4}],
        "noise_sd": 1.2,
    }
    page = report_alignment.answer(result) + report_alignment.details(result)
    assert "every record that anybody has" in page
    assert "a + b" in page
    assert "812" in page
    assert "holder compared blinded tags" in page
    assert "not asked for" in report_alignment.answer(result | {"patterns": []})
