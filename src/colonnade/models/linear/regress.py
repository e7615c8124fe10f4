"""`Regress`: linear regression over parties that each lack whole blocks of records, with standard errors.

The parties compute their pattern moments once, on secret shares; these are sufficient for a Gaussian with any
covariance, so the coordinator finds the maximum of the observed-data likelihood, and its curvature, without asking
again (`statistics/gaussian_em.py`). Valid if records are missing at random. With epsilon the releases carry noise
(`models/linear/private.py`). The claims are in `regress.claim.md` and `private.claim.md`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from colonnade.federation.facts import PublicFacts
from colonnade.federation.method import Method, Procedure, method_class
from colonnade.federation.options import ColumnNames, Delta, Gamma, Option, OptionalEpsilon, Response
from colonnade.federation.roster import Roster
from colonnade.models.linear.combined import CombinedFit
from colonnade.models.linear.estimate import (
    BASELINES,
    Family,
    Missing,
    MomentFit,
    cell_patterns,
    estimate,
    regression_columns,
)
from colonnade.models.linear.private import PrivateFit
from colonnade.models.linear.result import Regression
from colonnade.models.linear.weighted import MAXIMUM_OTHERS
from colonnade.statistics.joint import check_budget

if TYPE_CHECKING:
    from colonnade.audit.attack import Attack

RegressionResponse = Annotated[
    Response,
    Option(
        "The column to explain. The records of its holder are the ones used, but those in which it is empty.",
        short="-r",
        reads="named",
    ),
]
Covariates = Annotated[
    ColumnNames,
    Option(
        "The covariates, with commas between; all other columns by default. A categorical one becomes an indicator for"
        " each category but the first; binary and ordinal ones are their codes 0, 1, ... May be repeated.",
        form="NAMES",
        reads="named or all",
    ),
]
MomentGamma = Annotated[
    Gamma, Option("The scale of quantisation; coefficients are exact up to about 1/gamma.", least=1, most=2**26)
]


@method_class
class Regress(Method[Regression]):
    """Explain one column by the others from incomplete records, with standard errors.

    Without epsilon the moments are exact: every party must allow "exact-moments". Either way it must allow "presence"
    (the share holders, and with epsilon the response holder, see the mask). With epsilon, gamma is at most 2^14.

    Returns
    -------
    `fit(federation)` gives a `Regression` as in statsmodels: `params`, `bse`, `pvalues`, `conf_int()`, `summary()`.

    Example
    -------
    >>> columns = ("capital", "investors", "changes", "profit_growth")
    >>> fit = co.Regress(response="profit_growth", columns=columns).fit(federation)
    >>> bool(fit.params["investors"] > 0)
    True
    """

    name: ClassVar[str] = "regress"

    response: RegressionResponse
    columns: Covariates = None
    family: Annotated[
        Family,
        Option(
            "binomial: a binary response, in log-odds by the normal discriminant model, right where covariates are"
            " Gaussian within both classes.",
            only={"missing": ("em", "combined"), "epsilon": (None,)},
        ),
    ] = "gaussian"
    missing: Annotated[
        Missing,
        Option(
            "combined and em use every record with the response: em by the likelihood of a Gaussian, combined by that"
            " and by weights that undo selection, with errors from groups of records. The others are baselines to"
            " compare with: complete-case, mean (imputation) and single (the response holder's columns alone).",
            only={"epsilon": (None,)},
        ),
    ] = "combined"
    epsilon: OptionalEpsilon = None
    delta: Delta = 1e-6
    clip_quantile: Annotated[
        float,
        Option(
            "With epsilon: the quantile of the length of a party's rows at which they are clipped.",
            least=0.5,
            most=0.9999,
        ),
    ] = 0.98
    gamma: MomentGamma = 2**20
    minimum_joint: Annotated[
        int, Option("Records that each pair of parties must have together, for each of their features.", least=2)
    ] = 10

    def check(self) -> None:
        check_budget(self.epsilon, self.delta)

    def missing_data(self) -> str:
        if self.missing not in ("em", "combined"):
            return BASELINES[self.missing]
        used = "Every record with the response is used, with the blocks that it has"
        if self.epsilon is not None:
            return f"{used}: right if whether a block is missing depends on the response holder's columns only."
        if self.missing == "combined" and self.family == "gaussian":
            return (
                f"{used}, by EM and by presence weights: right if whether a block is missing depends on the response"
                " holder's columns only."
            )
        return f"{used}, by EM: right if records are missing at random and the columns are jointly Gaussian."

    def procedure(self, facts: PublicFacts, roster: Roster) -> Procedure[Regression]:
        names = regression_columns(facts, self.response, self.columns, binary=self.family == "binomial")
        if self.epsilon is not None:
            return PrivateFit(
                facts,
                roster,
                names=names,
                epsilon=self.epsilon,
                delta=self.delta,
                gamma=self.gamma,
                quantile=self.clip_quantile,
                minimum_joint=self.minimum_joint,
            )
        others = {facts.owner(name) for name in names} - {facts.owner(self.response)}
        by_blocks = self.family == "gaussian" and not cell_patterns(facts, names)
        if self.missing == "combined" and by_blocks and 1 <= len(others) <= MAXIMUM_OTHERS:
            return CombinedFit(facts, roster, names=names, gamma=self.gamma, minimum_joint=self.minimum_joint)
        estimator = partial(estimate, minimum_joint=self.minimum_joint, family=self.family, missing=self.missing)
        return MomentFit(facts, roster, names=names, gamma=self.gamma, estimator=estimator)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.models.linear.attacks import regress_attacks

        return regress_attacks()
