"""The choices that `VFEM` offers, checked, and the words in which a summary names them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from colonnade.errors import BadArguments

if TYPE_CHECKING:
    from colonnade.models.vfem import VFEM

Family = Literal["gaussian", "binomial"]
CrossParty = Literal["full", "independent"]
Missing = Literal["em", "complete-case", "mean", "single"]
StepKind = Literal["gradient", "exact"]
BASELINES = {
    "complete-case": "only records that every party has, biased unless records are missing completely at random",
    "mean": "missing blocks stand at their mean, which biases the estimates",
    "single": "only the response holder's columns, which omits what the others know",
}


def check_choices(method: VFEM) -> None:
    """Refuse a word that is none of an option's."""
    choices = {
        "family": ("gaussian", "binomial"),
        "cross_party": ("full", "independent"),
        "missing": ("em", "complete-case", "mean", "single"),
        "step": ("gradient", "exact"),
        "exchange": ("masked", "plain"),
        "information": ("secure", "sketch"),
        "init": ("complete-case", "mean"),
    }
    for option, allowed in choices.items():
        value = getattr(method, option)
        if value not in allowed:
            raise BadArguments(f"{option} must be one of {', '.join(map(repr, allowed))}, not {value!r}.")
    if method.family == "binomial" and (method.cross_party, method.missing) != ("full", "em"):
        raise BadArguments("family='binomial' is offered with cross_party='full' and missing='em' only.")
    if isinstance(method.iterations, bool) or not isinstance(method.iterations, int) or method.iterations < 10:
        raise BadArguments(f"iterations must be a whole number of at least 10, not {method.iterations!r}.")
    if not (isinstance(method.tolerance, (int, float)) and 0 < method.tolerance < math.inf):
        raise BadArguments(f"tolerance must be a positive number, not {method.tolerance!r}.")


def described(method: VFEM) -> dict[str, Any]:
    """How the summary names the model, and what it assumes: fields of `VFEMResult`."""
    if method.missing != "em":
        return {
            "model": f"missing={method.missing}",
            "method": "Least squares",
            "covariance": "nonrobust",
            "basis": "of least squares on a table without gaps, as if it had been observed so.",
            "remarks": (f"missing={method.missing!r} is a baseline for comparison: {BASELINES[method.missing]}.",),
        }
    if method.family == "binomial":
        remark = (
            "Coefficients are log-odds by the normal discriminant model: right where the covariates are Gaussian with"
            " the same covariance in both classes, and not consistent for a logistic regression otherwise."
        )
        basis = "observed information, by the delta method; valid if records are missing at random."
        return {"model": "family=binomial", "method": "Discriminant MLE, MAR", "basis": basis, "remarks": (remark,)}
    if method.cross_party == "full":
        return {}
    remark = (
        "The model takes columns of different parties as uncorrelated. Where they are not, the estimates are biased and"
        " the intervals cover too little: compare with cross_party='full'."
    )
    return {"model": "cross_party=independent", "method": f"EM, step={method.step}", "remarks": (remark,)}
