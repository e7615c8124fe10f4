"""What a run folder holds, as Python values again: `load(folder)`.

A synthesizer can draw again, as many rows as you like, and a regression has its tests and frames. Of any other result
there are its numbers, by the names that result.json has, and what it showed. Nothing is unpickled: numbers, text and
arrays are all that is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from colonnade.data.column import Columns
from colonnade.errors import RunError
from colonnade.evaluation.report import view_of
from colonnade.federation.method import Result
from colonnade.federation.run_folder import RunFolder
from colonnade.models.linear.inference import Inference
from colonnade.models.linear.result import Regression
from colonnade.synthesis.copula.model import GaussianCopula
from colonnade.synthesis.copula.uncertainty import CopulaNoise
from colonnade.synthesis.field.evidence import FieldEvidence
from colonnade.synthesis.field.sample import FieldSampler
from colonnade.synthesis.field.uncertainty import FieldNoise
from colonnade.synthesis.restrictions import Constraints, Restricted, RestrictedDraws
from colonnade.synthesis.table import Redrawn, Sampler, SavedEvidence, SyntheticTable
from colonnade.view.blocks import View


class SavedResult(Result):
    """The numbers of a finished run, by name: `saved.params`, `saved.values["params"]`. A table of numbers by name is a
    Series, a list of rows a DataFrame."""

    def __init__(self, run: RunFolder) -> None:
        stated = run.read_json("result.json")
        self.kind = str(stated.pop("kind"))  # type: ignore[misc]
        self.run, self.values = run, stated

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.__dict__.get("values", {}):
            listed = ", ".join(self.__dict__.get("values", {}))
            raise AttributeError(f"this saved result has no {name!r}; it has {listed}.")
        return _as_pandas(self.values[name], name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.values]

    def to_dict(self) -> dict[str, Any]:
        return dict(self.values)

    def view(self) -> View:
        return view_of(self.run)


class SavedRegression(Inference, SavedResult):
    """A saved regression: coefficients, tests and frames as the result of `fit` has them. Rows are encoded by the
    declared columns, which are not saved, so `predict` is left to that result."""

    def __init__(self, run: RunFolder) -> None:
        super().__init__(run)
        names = list(self.values["params"])
        self.params = pd.Series(self.values["params"], name="coef", dtype=np.float64)
        self.cov = pd.DataFrame(self.values["cov_params"], index=names, columns=names)
        self.nobs, self.df_groups = self.values["nobs"], self.values["df_groups"]

    def summary(self) -> str:
        """As it was when the run ended."""
        return (self.run.path / "summary.txt").read_text(encoding="utf-8").removesuffix("\n")

    def glance(self) -> pd.DataFrame:
        """One row of facts about the fit, in broom's columns."""
        return Regression.glance(self).astype(float)  # type: ignore[arg-type]


def _as_pandas(value: Any, name: str) -> Any:
    if isinstance(value, dict) and value:
        if all(isinstance(item, int | float) for item in value.values()):
            return pd.Series(value, name=name)
        if all(isinstance(item, list) for item in value.values()):
            return pd.DataFrame.from_dict(value, orient="index")
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return pd.DataFrame(value)
    return value


def load(folder: str | Path) -> SyntheticTable | SavedRegression | SavedResult:
    """The result of a finished run.

    Parameters
    ----------
    folder : the run folder.

    Returns
    -------
    A `SyntheticTable` of a synthesizer, whose `sample(n, where=...)` draws, with the error bars that it had; a
    `SavedRegression` with `conf_int`, `wald_test`, `tidy` and `summary`; a `SavedResult` of any other method.

    Example
    -------
    >>> table, run = federation.run(co.Synthesize(epsilon=3.0, columns=("capital", "roa")))
    >>> co.load(run.path).sample(5).shape
    (5, 2)
    """
    run = RunFolder.open(Path(folder))
    if run.job["state"] != "done":
        raise RunError(f"{folder} is not finished; resume it with `colonnade resume`.")
    if (run.path / "model.npz").is_file():
        return _table(run)
    stated = run.read_json("result.json")
    # Run folders of earlier versions do not say whose law an estimate over its error has.
    return SavedRegression(run) if stated["kind"] == "regression" and "df_groups" in stated else SavedResult(run)


def _table(run: RunFolder) -> SyntheticTable:
    stated = run.read_json("result.json")
    columns = Columns.from_dict({"columns": stated["columns"]})
    model, redrawn, evidence = _model(run, columns)
    facts = run.job["options"].get("constraints")
    if facts:
        constraints = Constraints.of(facts, columns)
        model = Restricted(model, constraints)
        redrawn = None if redrawn is None else RestrictedDraws(redrawn, constraints)
    view = view_of(run)
    return SyntheticTable(
        method=stated["method"],
        cohort=stated["cohort"],
        model=model,
        redrawn=redrawn,
        evidence=evidence,
        rows=stated["rows"],
        seed=stated["seed"],
        cost=stated["cost"],
        simulated=stated["simulated"],
        file_format="csv" if stated["file"].endswith(".csv") else "parquet",
        released=tuple(stated["released"]),
        notes=tuple(stated["notes"]),
        details=stated["details"],
        because=stated.get("because", ""),
        warnings=view.warnings,
    )


def _model(run: RunFolder, columns: Columns) -> tuple[Sampler, Redrawn | None, SavedEvidence | None]:
    """What draws the rows; and what error bars rest on, if the folder has it."""
    arrays, known = _arrays(run.path / "model.npz"), _arrays(run.path / "evidence.npz")
    if "correlation" in arrays:
        copula = GaussianCopula.from_arrays(columns, arrays)
        return copula, CopulaNoise.from_arrays(copula, known) if known else None, None
    if "order" not in arrays:
        raise RunError(f"{run.path} has a model of an older version or another method; its table is in the folder.")
    field = FieldSampler.from_arrays(columns, arrays)
    if not known:
        return field, None, None
    return field, FieldNoise.from_arrays(field, known), FieldEvidence.from_arrays(known)


def _arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
