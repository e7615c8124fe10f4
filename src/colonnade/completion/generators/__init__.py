"""Local generators: one party's table, or columns of it, learned and drawn again, if wished given known columns.

`generator(name)` makes one: "copula" (quick, no training), "tabddpm" (diffusion) or "tvae" (variational
autoencoder). All work on the matrix of a `Layout`. **None is private**: what is drawn from a generator that was fitted
without noise may show records of its training table, and so does the fitted model.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal, get_args

from colonnade.papers.fedpsg.generators.protocol import Generator as Generator
from colonnade.papers.fedpsg.generators.protocol import Progress as Progress
from colonnade.errors import BadArguments, RunError

Name = Literal["copula", "tabddpm", "tvae"]

_WHERE = {"copula": "GaussianCopula", "tabddpm": "TabDDPM", "tvae": "TVAE"}


def generator(name: Name, **options: Any) -> Generator:
    """A generator by name, not yet fitted; `options` are its own (`steps`, say)."""
    if name not in _WHERE:
        raise BadArguments(f"generator must be one of {', '.join(get_args(Name))}, not {name!r}.")
    try:
        module = importlib.import_module(f"colonnade.completion.generators.{name}")
    except ModuleNotFoundError as error:
        raise RunError(f"the generator {name!r} needs jax and optax; install colonnade[completion].") from error
    made: Generator = getattr(module, _WHERE[name])(**options)
    return made
