"""An alignment from end to end: open the parties of a local federation unaligned, check their keys, run `Align`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from colonnade.alignment.align import Aligned, AlignmentMethod
from colonnade.alignment.keys import check_rules, normal_forms
from colonnade.alignment.method import Align
from colonnade.data.block import Block
from colonnade.data.column import Columns
from colonnade.errors import SchemaError
from colonnade.federation.config import Spec, capacity_of
from colonnade.federation.coordinator import Federation
from colonnade.federation.job import Progress
from colonnade.federation.run_folder import RunFolder


def prepare(spec: Spec, *, normalise: Sequence[str] = (), capacity: Mapping[str, int] | None = None) -> dict[str, int]:
    """Check every party's keys before anything runs, and state its capacity.

    A capacity that is not declared is the party's number of records rounded up to two digits, which becomes public.
    The operator of a local federation has all blocks; at a party of its own this check is the party's, in its step.
    """
    rules, declared = check_rules(normalise), dict(capacity or {})
    columns = spec.columns if isinstance(spec.columns, Columns) else Columns.from_toml(spec.columns)
    unknown = sorted(set(declared) - set(spec.blocks))
    if unknown:
        raise SchemaError(f"no party is called {', '.join(unknown)}; the parties are {', '.join(spec.blocks)}.")
    sizes: dict[str, int] = {}
    for party, source in spec.blocks.items():
        block = Block.open(party, source, key=spec.key, columns=columns, ignore=spec.ignore)
        records = len(normal_forms(block.keys, rules, where=f"party {party!r}"))
        sizes[party] = declared.get(party, capacity_of(records))
        if records > sizes[party]:
            raise SchemaError(f"party {party!r} has {records} records and a capacity of {sizes[party]}; declare more.")
    return sizes


def align(
    spec: Spec,
    *,
    runs: str | Path | None = None,
    origin: str | None = None,
    name: str | None = None,
    capacity: Mapping[str, int] | None = None,
    normalise: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    method: type[AlignmentMethod] = Align,
    **options: Any,
) -> tuple[Aligned, RunFolder]:
    """Align the parties of `spec`; `options` are those of `method`. A federation that is opened at this home is aligned
    from then on."""
    if spec.home is None:
        raise SchemaError("an alignment is stored at the parties; give the federation a home.")
    sizes = prepare(spec, normalise=normalise, capacity=capacity)
    chosen = method(**{"include": spec.include, **options, "capacity": sizes, "normalise": tuple(normalise)})
    with Federation.from_spec(spec, runs=runs, origin=origin, aligned=False) as federation:
        result, run = federation.run(chosen, name=name, progress=progress)
    return result, run
