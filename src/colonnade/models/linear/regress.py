"""`Regress`: regression over parties that each lack whole blocks of records, with standard errors.

The parties compute their pattern moments once, on secret shares; these are sufficient for a Gaussian with any
covariance, so the coordinator finds the maximum of the observed-data likelihood, and its curvature, without asking
again (`statistics/gaussian_em.py`). Valid if records are missing at random. With epsilon the releases carry noise
(`models/linear/private.py`). Logistic and Poisson regression take rounds on shares (`models/glm/`). The claims are in
`regress.claim.md`, `private.claim.md` and `models/glm/glm.claim.md`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.method import Method, Procedure, method_class
from colonnade.federation.options import (
    ColumnNames,
    Delta,
    Gamma,
    Option,
    OptionalEpsilon,
    Response,
    Verification,
    Verify,
)
from colonnade.federation.roster import Roster
from colonnade.models.glm.fit import WEIGHED, GeneralizedFit
from colonnade.models.glm.private_fit import COMPLETE_ONLY, PrivateGeneralizedFit
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
from colonnade.models.linear.formula import COMPLETE, FormulaDesign, FormulaFit, parsed
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
EXACT_DEFAULT = {"missing": ("combined",), "epsilon": (None,), "family": ("gaussian",)}
"""Where clusters and weights have a meaning."""
MomentGamma = Annotated[
    Gamma, Option("The scale of quantisation; coefficients are exact up to about 1/gamma.", least=1, most=2**26)
]


@method_class
class Regress(Method[Regression]):
    """Explain one column by the others from incomplete records, with standard errors.

    Without epsilon the moments are exact: every party must allow "exact-moments". Either way it must allow "presence"
    (the response holder sees the mask; without epsilon the share holders do too, with epsilon the other parties see
    that of the response holder). With epsilon, gamma is at most 2^14. Logistic and Poisson regression need
    "exact-scores" in place of "exact-moments". With epsilon they need neither: they use complete records, and
    nobody is told the mask.

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

    response: RegressionResponse = ""
    columns: Covariates = None
    formula: Annotated[
        str | None,
        Option(
            "Instead of response and columns: 'sbp ~ age + bmi * smoker + C(region)', in formulaic's words, with I()"
            " for polynomials. Products are computed on shares where their columns are several parties', and are fitted"
            " on complete records, by least squares.",
        ),
    ] = None
    family: Annotated[
        Family,
        Option(
            "Of the response: a binary column is binomial (logistic regression; its second category is the event), a"
            " count poisson (log link). Both by score equations over complete records, weighed for what is missing"
            " (with epsilon not weighed).",
        ),
    ] = "gaussian"
    offset: Annotated[
        str | None,
        Option(
            "A column that is added to the linear predictor with the coefficient 1: the logarithm of an exposure, say.",
            form="NAME",
            reads="named",
            only={"family": ("binomial", "poisson")},
        ),
    ] = None
    missing: Annotated[
        Missing,
        Option(
            "combined and em use every record with the response: em by the likelihood of a Gaussian, combined by that"
            " and by weights that undo selection, with errors from groups of records. The others are baselines to"
            " compare with: complete-case, mean (imputation) and single (the response holder's columns alone). Logistic"
            " and Poisson regression take combined (weights) or complete-case (none).",
            only={"epsilon": (None,)},
        ),
    ] = "combined"
    clusters: Annotated[
        str | None,
        Option(
            "A column whose values are clusters, households say: standard errors come from groups of whole clusters."
            " Its holder tells the share holders and the response holder which group a record is in, and must allow"
            " 'cluster-groups'.",
            form="NAME",
            reads="named",
            only=EXACT_DEFAULT,
        ),
    ] = None
    weights: Annotated[
        str | None,
        Option(
            "A column of the response holder by which records count: survey or inverse-probability weights.",
            form="NAME",
            reads="named",
            only=EXACT_DEFAULT,
        ),
    ] = None
    epsilon: OptionalEpsilon = None
    delta: Delta = 1e-6
    clip_quantile: Annotated[
        float,
        Option(
            "With epsilon: the quantile of the length of a party's rows at which they are clipped; a larger one is"
            " taken where their released distributions say that clipping would cost more than noise.",
            least=0.5,
            most=0.9999,
        ),
    ] = 0.98
    gamma: MomentGamma = 2**20
    minimum_joint: Annotated[
        int, Option("Records that each pair of parties must have together, for each of their features.", least=2)
    ] = 10
    verify: Verify = True

    @classmethod
    def from_formula(
        cls,
        formula: str,
        *,
        family: Family = "gaussian",
        offset: str | None = None,
        epsilon: float | None = None,
        delta: float = 1e-6,
        missing: Missing = "combined",
        clip_quantile: float = 0.98,
        gamma: int = 2**20,
        minimum_joint: int = 10,
        clusters: str | None = None,
        weights: str | None = None,
        verify: Verification = True,
    ) -> Regress:
        """`Regress.from_formula("sbp ~ age + bmi * smoker + C(region)")`; each column's party is found by itself.

        Parameters
        ----------
        formula : response and terms, in formulaic's words.
        family, offset, epsilon, delta, missing, clip_quantile, gamma, minimum_joint, clusters, weights, verify : as in
            `Regress`. With products of columns the family is gaussian, and there are neither clusters nor weights.

        Returns
        -------
        The method; `fit(federation)` runs it.
        """
        return cls(
            formula=formula,
            family=family,
            offset=offset,
            epsilon=epsilon,
            delta=delta,
            missing=missing,
            clip_quantile=clip_quantile,
            gamma=gamma,
            minimum_joint=minimum_joint,
            clusters=clusters,
            weights=weights,
            verify=verify,
        )

    def check(self) -> None:
        check_budget(self.epsilon, self.delta)
        if self.family != "gaussian" and self.missing not in ("combined", "complete-case"):
            raise BadArguments(
                f"family={self.family!r} has no missing={self.missing!r}; leave it out, or take 'complete-case'."
            )
        if self.formula is None:
            if not self.response:
                raise BadArguments("Regress needs a response, or a formula such as 'y ~ a + b'; give one of them.")
            return
        formula = parsed(self.formula)
        if self.columns is not None or self.response not in ("", formula.response):
            raise BadArguments(
                f"the formula {self.formula!r} names response and covariates; leave the other options out."
            )
        if formula.products and self.family != "gaussian":
            raise BadArguments(
                f"products are fitted by least squares, not with family={self.family!r}; leave it out, or have the"
                " products' holder add them to its table as columns."
            )
        if formula.products and (self.clusters is not None or self.weights is not None):
            raise BadArguments("a formula with products has neither clusters= nor weights=; leave them out.")
        if formula.products and self.missing not in ("combined", "complete-case"):
            raise BadArguments(
                f"products are fitted on complete records, not with missing={self.missing!r}; leave it out."
            )
        object.__setattr__(self, "response", formula.response)

    def reads(self) -> tuple[str, ...] | None:
        """With a formula, the columns that it names."""
        if self.formula is None:
            return super().reads()
        formula = parsed(self.formula)
        named = (self.offset, self.clusters, self.weights)
        return (*formula.columns, formula.response, *(name for name in named if name is not None))

    def missing_data(self) -> str:
        if self.formula is not None and parsed(self.formula).products:
            return COMPLETE
        if self.missing not in ("em", "combined"):
            return BASELINES[self.missing]
        if self.family != "gaussian":
            return WEIGHED if self.epsilon is None else COMPLETE_ONLY
        used = "Every record with the response is used, with the blocks that it has"
        if self.epsilon is not None:
            return f"{used}: right if whether a block is missing depends on the response holder's columns only."
        if self.missing == "combined":
            return (
                f"{used}, by EM and by presence weights: right if whether a block is missing depends on the response"
                " holder's columns only."
            )
        return f"{used}, by EM: right if records are missing at random and the columns are jointly Gaussian."

    def procedure(self, facts: PublicFacts, roster: Roster) -> Procedure[Regression]:
        columns = self.columns
        if self.formula is not None:
            formula = parsed(self.formula)
            design = FormulaDesign.of(formula, facts)
            if formula.products:
                return FormulaFit(
                    facts,
                    roster,
                    design=design,
                    epsilon=self.epsilon,
                    delta=self.delta,
                    gamma=self.gamma,
                    verify=self.verify,
                )
            columns = formula.columns
        aside = (self.clusters, self.weights)
        names = regression_columns(facts, self.response, columns, offset=self.offset, aside=aside)
        if self.family != "gaussian" and self.epsilon is not None:
            return PrivateGeneralizedFit(
                facts,
                roster,
                family=self.family,
                names=names,
                offset=self.offset,
                epsilon=self.epsilon,
                delta=self.delta,
                verify=self.verify,
            )
        if self.family != "gaussian":
            return GeneralizedFit(
                facts,
                roster,
                family=self.family,
                names=names,
                offset=self.offset,
                weighting="presence" if self.missing == "combined" else "equal",
                gamma=self.gamma,
                verify=self.verify,
            )
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
                verify=self.verify,
            )
        others = {facts.owner(name) for name in names} - {facts.owner(self.response)}
        by_blocks = not cell_patterns(facts, names)
        if self.missing == "combined" and by_blocks and 1 <= len(others) <= MAXIMUM_OTHERS:
            return CombinedFit(
                facts,
                roster,
                names=names,
                gamma=self.gamma,
                minimum_joint=self.minimum_joint,
                verify=self.verify,
                clusters=self.clusters,
                weights=self.weights,
            )
        if self.clusters is not None or self.weights is not None:
            raise BadArguments(
                f"clusters= and weights= need 1 to {MAXIMUM_OTHERS} parties besides the response holder, and no column"
                " with if_empty = 'mask'; leave them out, or name other columns."
            )
        estimator = partial(estimate, minimum_joint=self.minimum_joint, missing=self.missing)
        return MomentFit(facts, roster, names=names, gamma=self.gamma, estimator=estimator, verify=self.verify)

    @classmethod
    def attacks(cls) -> tuple[Attack, ...]:
        from colonnade.models.glm.attacks import logistic_attacks, poisson_attacks
        from colonnade.models.linear.attacks import regress_attacks

        return (*regress_attacks(), *logistic_attacks(), *poisson_attacks())
