"""The normal form of a record key: what two parties compare.

An integer is compared by its decimal text, so 7 and "7" are equal, and "007" is another key. Text is always brought
to Unicode's form NFC, because two encodings of one letter look the same, and blanks at its ends are gone since it was
read (`data.keys`). Everything else is **declared**, the same for all parties, in the plan that each of them approves:

- `case`: upper and lower case count as equal (Unicode case folding);
- `spaces`: runs of spaces count as one;
- `accents`: é counts as e (marks that Unicode can separate from their letter are dropped);
- `dates`: a date counts as its ISO form 1999-12-31, written so, with slashes or dots in that order, as 19991231, or
  with the day first (31.12.1999, 31/12/1999, 31-12-1999). A date with the month first is another key.

Each part of a composite key (`data.keys`) is brought to its normal form by itself. Records whose keys become equal
are refused, with their number.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from colonnade.data.keys import SEPARATOR
from colonnade.errors import BadArguments, KeyProblem

Rule = Literal["case", "spaces", "accents", "dates"]
RULES: tuple[Rule, ...] = get_args(Rule)
_YEAR_FIRST = re.compile(r"\s*(\d{4})([-/.]?)(\d{2})\2(\d{2})\s*")
_DAY_FIRST = re.compile(r"\s*(\d{1,2})([-/.])(\d{1,2})\2(\d{4})\s*")


def check_rules(rules: Sequence[str]) -> tuple[Rule, ...]:
    """The declared rules in their fixed order, each once."""
    unknown = sorted(set(rules) - set(RULES))
    if unknown:
        raise BadArguments(f"no normalisation is called {', '.join(unknown)}; choose from {', '.join(RULES)}.")
    return tuple(rule for rule in RULES if rule in rules)


def normal_form(key: int | str, rules: Sequence[str]) -> bytes:
    """The bytes that stand for a key: two records are the same if and only if these are equal."""
    text = str(key)
    if not rules and text.isascii():
        return text.encode()  # NFC leaves it as it is
    return SEPARATOR.join(_part(part, rules) for part in text.split(SEPARATOR)).encode()


def _part(text: str, rules: Sequence[str]) -> str:
    if "accents" in rules:
        text = "".join(sign for sign in unicodedata.normalize("NFKD", text) if not unicodedata.combining(sign))
    if "case" in rules:
        text = text.casefold()
    if "spaces" in rules:
        text = " ".join(text.split())
    if "dates" in rules:
        text = _as_date(text)
    return unicodedata.normalize("NFC", text)


def _as_date(text: str) -> str:
    """The ISO form of a date, or the text itself where it is none: 31.2.1999 stays as it is."""
    if match := _YEAR_FIRST.fullmatch(text):
        year, month, day = match[1], match[3], match[4]
    elif match := _DAY_FIRST.fullmatch(text):
        year, month, day = match[4], match[3], match[1]
    else:
        return text
    try:
        return datetime.date(int(year), int(month), int(day)).isoformat()
    except ValueError:
        return text


def normal_forms(keys: NDArray[Any], rules: Sequence[str], *, where: str) -> list[bytes]:
    """The normal form of each key; keys that become empty or equal are refused with their number, never by name."""
    forms = [normal_form(key, rules) for key in keys.tolist()]
    empty = sum(not form.strip(SEPARATOR.encode()) for form in forms)
    if empty:
        raise KeyProblem(f"{where}: {empty} key(s) are empty in their normal form; fill them in or drop the records.")
    repeated = len(forms) - len(set(forms))
    if repeated:
        declared = ", ".join(rules) or "no rules"
        raise KeyProblem(
            f"{where}: {repeated} record(s) repeat the key of an earlier one in normal form ({declared}); keep one "
            "record for each key, or declare fewer rules."
        )
    return forms
