"""What the options of a completion may be: alone, and together with the public facts. Every refusal says the cure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, get_args

from colonnade.completion.layout import COHORT_ROW, GENERATED
from colonnade.data.column import Column
from colonnade.errors import BadArguments, BadPrivacyParameter, SchemaError
from colonnade.federation.facts import PublicFacts
from colonnade.privacy.accounting import check_delta, check_epsilon
from colonnade.secure import ckks

if TYPE_CHECKING:
    from colonnade.completion.method import FedPSG

GANS = ("gain", "vgain", "cgain")
LINEAR = ("copula-mean", "copula-draw", "mice")

MOST_DROPOUT = 0.99
"""Dropout is drawn from bytes: beyond this none of 256 would be left."""


def whole(name: str, value: Any, least: int) -> int:
    """A whole number, numpy's too."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise BadArguments(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def between(name: str, value: Any, least: float, most: float, *, closed: bool = False) -> float:
    """A number above `least` (or at it, if `closed`) and below `most`."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not (least <= number if closed else least < number) or not number < most:
        raise BadArguments(f"{name} must be a number between {least:g} and {most:g}, not {value!r}.")
    return number


def checked(method: FedPSG, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given in another form than they are kept in; an option that cannot be is refused."""
    for name, kind in kinds.items():
        if getattr(method, name) not in get_args(kind):
            listed = ", ".join(map(repr, get_args(kind)))
            raise BadArguments(f"{name} must be one of {listed}, not {getattr(method, name)!r}.")
    kept: dict[str, Any] = {"complete": _parties(method.complete)}
    for name, least in (("n_correlated", 0), ("seed", 0)):
        kept[name] = whole(name, getattr(method, name), least)
    for name in ("iterations", "local", "batch", "hidden", "cut", "generator_steps", "patience", "epochs"):
        kept[name] = whole(name, getattr(method, name), 1)
    for name in ("rate", "validation"):
        kept[name] = between(name, getattr(method, name), 0, 1)
    if method.dropout is not None:
        kept["dropout"] = between("dropout", method.dropout, 0, MOST_DROPOUT, closed=True)
    kept["clip"] = between("clip", method.clip, 0, math.inf)
    if method.label is not None and (not isinstance(method.label, str) or not method.label):
        raise BadArguments(f"label names one column, not {method.label!r}.")
    if method.imputer == "cgain" and method.label is None:
        raise BadArguments("imputer='cgain' conditions on a label; name its column with label=.")
    check_delta(method.delta)
    if method.epsilon is not None:
        _check_private(method)
    return kept


def _parties(given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, str):
        raise BadArguments(f"complete is a list of parties; write complete=({given!r},).")
    if not isinstance(given, (tuple, list)) or not all(isinstance(party, str) for party in given):
        raise BadArguments(f"complete is a list of parties' names, not {given!r}.")
    if not given:
        raise BadArguments("complete names no party; leave it out to complete all that lack records.")
    return tuple(dict.fromkeys(given))


def _check_private(method: FedPSG) -> None:
    check_epsilon(method.epsilon)  # type: ignore[arg-type]
    if check_delta(method.delta) == 0:
        raise BadPrivacyParameter("Skellam noise has no pure bound; choose a delta above 0, below 1/n.")
    trained = method.imputer in ("regression", *GANS)
    if not trained or method.n_correlated or (method.label and method.imputer != "cgain"):
        raise BadArguments(
            "epsilon is for imputer='regression', 'gain', 'vgain' or 'cgain' with n_correlated=0, and a label for"
            " 'cgain' only: no other part of a completion is trained privately here."
        )


def _single(column: Column) -> bool:
    return column.kind == "categorical" and len(column.categories or ()) < 2


def check_facts(method: FedPSG, facts: PublicFacts) -> None:
    """What can be refused before any data is touched."""
    if method.protect == "ckks":
        ckks.ready()  # the coordinator adds ciphertexts
    if method.label is not None and facts.column(method.label).categories is None:
        raise BadArguments(f"label must be a column with categories, and {method.label!r} has none.")
    columns = {name: column for party in facts.columns.values() for name, column in party.items()}
    flags = {f"{name}{GENERATED}" for name in columns}
    taken = [name for name in columns if name == COHORT_ROW or name in flags]
    if taken:
        raise SchemaError(
            f"a completed table has a column {taken[0]!r} of its own; rename the party's, or leave it out of its block."
        )
    empty = [name for name, column in columns.items() if column.missing]
    if method.imputer in LINEAR and empty:
        raise SchemaError(
            f"imputer={method.imputer!r} rests on joint moments, which cannot use columns that may have empty cells"
            f" ({', '.join(empty)}); choose imputer='regression', a GAN or 'mean'."
        )
    fixed = [party for party, own in facts.columns.items() if all(_single(one) for one in own.values())]
    if method.imputer == "mice" and fixed:
        raise SchemaError(
            f"no column of {fixed[0]!r} can vary: each has one category, and imputer='mice' has nothing to solve for;"
            " leave that party out, or choose another imputer."
        )
    if method.epsilon is None:
        return
    most = method.epochs * (facts.n // method.batch)
    if facts.n < method.batch or most < method.local:
        raise BadArguments(
            f"{method.epochs} epochs of at most {facts.n} records in batches of {method.batch} are {most} iterations,"
            f" and a round of private training has local={method.local}; choose a smaller batch= or local=, or more"
            " epochs."
        )
