"""The default regression without noise: the Gaussian fit and presence-weighted moments, combined, with group errors.

The coordinator opens exact pattern moments and fits the Gaussian (`estimate.py`), opens the weighted moments and solves
their normal equations (`augmented.py`), sends the public forms of a record's influence on both, and opens the products
of the groups' influences (`weighted.py`). `robust.py` combines the two by the covariance that these give, and
`validity.py` says what may be concluded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import Procedure
from colonnade.federation.options import Verification
from colonnade.federation.roster import Roster
from colonnade.models.linear.augmented import AugmentedRegression, augmented_regression
from colonnade.models.linear.estimate import MomentFit, Observed, check_joint_records, complete_cases, estimate
from colonnade.models.linear.gaussian import Coefficients, regression
from colonnade.models.linear.propensity import RARE, Pair
from colonnade.models.linear.result import NORMAL_THEORY, Regression, missing_information
from colonnade.models.linear.robust import GROUPS, Combination, Difference, combined, influence_forms, no_smaller
from colonnade.models.linear.validity import Selection, largest_difference, verdict
from colonnade.models.linear.weighted import WeightedComputation, WeightedMoments, weighted_layout
from colonnade.models.matrix import columns_of
from colonnade.statistics.gaussian_em import GaussianFit, Matrix, Vector

VERIFIED_COST = (
    "Verified: moments by pattern, presence-weighted moments and products of group influences; about 1.5 times the CPU"
    " time without. verify=False leaves it out."
)
UNTESTED = Difference(0.0, 1.0, 0)
SMALLEST_GROUP = 10
"""Records of the cohort in a group, or there are fewer groups."""


class CombinedFit(Procedure[Regression]):
    """`names` are the covariates, then the response."""

    def __init__(
        self,
        facts: PublicFacts,
        roster: Roster,
        *,
        names: tuple[str, ...],
        gamma: int,
        minimum_joint: int,
        verify: Verification = False,
        clusters: str | None = None,
        weights: str | None = None,
    ) -> None:
        alone = clusters is None and weights is None  # which EM has not
        roster.require_committee(pair=False, instead='missing="em"' if alone else "")
        self.minimum_joint, self.gamma, self.response = minimum_joint, gamma, names[-1]
        self.first = MomentFit(facts, roster, names=names, gamma=gamma, estimator=estimate, verify=verify)
        groups = GROUPS if clusters is not None else max(2, min(GROUPS, facts.n // SMALLEST_GROUP))
        self.layout = weighted_layout(
            facts, roster, names, gamma, groups, clusters=clusters, weights=weights, verify=verify
        )
        self.weighted = WeightedComputation(self.layout, "client")
        self.stages = (*self.first.stages, *self.weighted.stages)
        self.notes = (
            *(note for note in self.first.notes if not note.startswith("Only records of")),
            *([VERIFIED_COST] if verify else []),
            f"Only records of {self.layout.response_party!r}, which holds {self.response!r}, are used:"
            f" {len(self.layout.masks)} candidate patterns. {self.layout.response_party!r} is told who has which"
            " record, and weighs them.",
            f"Standard errors come from {self._groups(groups)}; no moment of a group is opened.",
        )

    @property
    def few(self) -> bool:
        """Whether there are so few records that the likelihood's errors are the least."""
        return self.layout.groups < GROUPS and self.layout.clusters is None and self.layout.weights is None

    def _groups(self, count: int) -> str:
        if self.layout.clusters is None:
            least = ", and no smaller than by the likelihood" if self.few else ""
            return f"{count} groups of consecutive records{least}"
        return f"{count} groups of whole clusters by {self.layout.clusters!r}"

    def run(self, job: Job) -> Regression:
        moments = self.first.moments.run(job)
        check_joint_records(moments, self.minimum_joint)
        columns = columns_of(job.facts, moments.features)
        observed = Observed.of(moments, response=self.response, columns=columns, gamma=self.gamma)
        fit = observed.fitted()
        gaussian = regression(observed.data, fit, observed.target)
        released = self.weighted.weighted(job)
        bridge = Bridge(self.weighted, observed)
        augmented = augmented_regression(
            observed.data,
            fit,
            observed.target,
            bridge.blocks,
            bridge.grams(released, observed.data.n),
            bridge.own(released, observed.data.n),
        )
        forms = bridge.forms(fit, augmented, released)
        width = len(observed.features)
        groups, n = released.groups, observed.data.n
        correction = groups / (groups - 1) * n / (n - width)
        covariance = correction * self.weighted.covariance(job, *forms)[: 2 * width, : 2 * width]
        result = self.result(observed, fit, gaussian, augmented, covariance, released)
        return result.with_costs(job.plan)

    def result(
        self,
        observed: Observed,
        fit: GaussianFit,
        gaussian: Coefficients,
        augmented: AugmentedRegression,
        covariance: Matrix,
        released: WeightedMoments,
    ) -> Regression:
        """Two estimates of one regression as one, in the columns' own units; both stand beside it."""
        width, groups = len(observed.features), released.groups
        tested = groups > 2 * width
        weighted_cov = covariance[width:, width:]
        of_combined = gaussian
        if self.layout.weights is not None:
            # The Gaussian fit counts every record once, so it estimates something else.
            tested = groups > width
            joined = Combination(augmented.params, weighted_cov, 1.0, UNTESTED)
            n = observed.data.n
            of_combined = replace(
                gaussian,
                sigma2=n / (n - width) * augmented.residual,
                rsquared=1.0 - augmented.residual / augmented.total,
            )
        elif tested:
            joined = combined(gaussian.params, augmented.params, covariance, groups, gaussian.cov)
        else:
            joined = Combination(gaussian.params, covariance[:width, :width], 0.0, UNTESTED)
        errors = np.sqrt(np.diag(weighted_cov))
        selection = Selection(
            records=round(observed.data.n),
            capped=released.capped,
            unlikely=released.unlikely,
            drawn=augmented.drawn,
            pvalue=joined.test.pvalue,
            share=joined.share,
            difference=largest_difference(gaussian.params, augmented.params, errors),
            left=largest_difference(joined.params, augmented.params, errors),
            rare=rare_levels(observed, fit),
            tested=tested,
            excess=joined.excess if self.layout.clusters is None else 0.0,
        )
        of_features = {
            "combined": replace(of_combined, params=joined.params, cov=joined.cov),
            "Gaussian": replace(gaussian, cov=covariance[:width, :width]),
            "weighted": replace(gaussian, params=augmented.params, cov=weighted_cov),
        }
        in_units = {name: observed.regression(fit, own) for name, own in of_features.items()}
        in_units["combined"] = observed.regression(
            with_coefficients(fit, joined.params, observed.target), of_features["combined"]
        )
        likelihood = observed.regression(fit, gaussian)
        beside = pd.DataFrame(
            {
                column: series
                for name in ("Gaussian", "weighted")
                for column, series in ((name, in_units[name].params), (f"{name} std err", in_units[name].bse))
            }
            | {NORMAL_THEORY: likelihood.bse}
            | complete_cases(observed)
        )
        remark = (
            f"The estimate has {joined.share:.0%} of the presence-weighted one and {1 - joined.share:.0%} of the"
            f" Gaussian one, on average over the coefficients, by how far they differ (Hausman's test: p ="
            f" {selection.pvalue:.3g}; largest difference {selection.difference:.1f} standard errors). Both are in"
            " `beside`."
        )
        if self.layout.weights is not None:
            remark = (
                f"Records count by {self.layout.weights!r}; the estimate is the presence-weighted one, since the"
                " Gaussian fit, in `beside`, counts every record once."
            )
        cov = in_units["combined"].cov
        if self.few:
            raised = no_smaller(cov.to_numpy(), likelihood.cov.to_numpy())
            cov = pd.DataFrame(raised, index=cov.index, columns=cov.columns)
        return replace(
            in_units["combined"],
            cov=cov,
            model="full covariance, weighted",
            method="presence weights" if self.layout.weights is not None else "Gaussian fit + presence weights",
            weighted_by=self.layout.weights,
            fmi=missing_information(likelihood),
            covariance=f"{groups} groups of {'records' if self.layout.clusters is None else 'clusters'}",
            df_groups=groups - 1,
            verdict=verdict(selection),
            beside=beside,
            basis=f"{self._groups(groups)}, with n / (n - p - 1) and Student's t; valid if whether a"
            " block is missing depends on nothing but the response holder's columns, whatever the law of the columns,"
            " or if records are missing at random and the columns are jointly Gaussian.",
            remarks=(remark,),
        )


def with_coefficients(fit: GaussianFit, params: Vector, target: int) -> GaussianFit:
    """The fitted law of the covariates, and the response given them by these coefficients: for predictions."""
    others = np.delete(np.arange(len(fit.mu)), target)
    mu, sigma = fit.mu.copy(), fit.sigma.copy()
    within, own = sigma[np.ix_(others, others)], sigma[others, target]
    residual = sigma[target, target] - own @ np.linalg.solve(within, own)
    mu[target] = params[0] + params[1:] @ mu[others]
    sigma[others, target] = sigma[target, others] = within @ params[1:]
    sigma[target, target] = params[1:] @ within @ params[1:] + residual
    return replace(fit, mu=mu, sigma=sigma)


def rare_levels(observed: Observed, fit: GaussianFit) -> tuple[str, ...]:
    """Indicators of categories, and columns of two, with a share below `RARE` of the fitted records."""
    rare = []
    for place, feature in enumerate(observed.features):
        column = observed.columns[feature.column]
        if place == observed.target or not (feature.category is not None or column.kind == "binary"):
            continue
        share = fit.mu[place] if feature.category is not None else (fit.mu[place] + 1) / 2
        if min(share, 1 - share) < RARE:
            rare.append(feature.name)
    return tuple(rare)


class Bridge:
    """Between the layout's features and those that vary, which the estimates are of."""

    def __init__(self, computation: WeightedComputation, observed: Observed) -> None:
        self.layout, self.observed = computation.layout, observed
        names = [feature.name for feature in observed.features]
        self.varies = np.array([feature.name in names for feature in self.layout.features])
        owners = np.array([feature.party for feature in observed.features])
        self.used = [number for number, party in enumerate(self.layout.others) if (owners == party).any()]
        self.blocks = [np.flatnonzero(owners == self.layout.others[number]) for number in self.used]
        self.pairs: dict[Pair, Pair] = {
            (a, b): (self.used[a], self.used[b]) for a in range(len(self.used)) for b in range(a, len(self.used))
        }
        """{pair of used blocks: the same pair in the layout}"""

    def _kept(self, parties: list[str]) -> NDArray[np.intp]:
        """Of (1, these parties' features), those that vary."""
        varies = [
            keep
            for party in parties
            for keep, feature in zip(self.varies, self.layout.features, strict=True)
            if feature.party == party
        ]
        return np.flatnonzero([True, *varies])

    def _pair_kept(self, pair: Pair) -> NDArray[np.intp]:
        others = [self.layout.others[block] for block in dict.fromkeys(pair)]
        return self._kept([self.layout.response_party, *others])

    def grams(self, released: WeightedMoments, n: float) -> dict[Pair, Matrix]:
        """Weights add up to n."""
        out = {}
        for pair, stated in self.pairs.items():
            kept, gram = self._pair_kept(stated), released.grams[stated]
            out[pair] = gram[np.ix_(kept, kept)] * (n / gram[0, 0])
        return out

    def own(self, released: WeightedMoments, n: float) -> Matrix | None:
        """The products within the response holder by the records' own weights, which add up to n."""
        if released.own is None:
            return None
        kept = self._kept([self.layout.response_party])
        return np.asarray(released.own[np.ix_(kept, kept)] * (n / released.own[0, 0]))

    def forms(
        self, fit: GaussianFit, augmented: AugmentedRegression, released: WeightedMoments
    ) -> tuple[dict[tuple[bool, ...], NDArray[np.float64]], dict[Pair, NDArray[np.float64]], NDArray[np.float64]]:
        """Of all features: the Gaussian coefficients' influences first, then those of the weighted moments."""
        layout, observed = self.layout, self.observed
        width, outputs = len(observed.features), layout.outputs
        patterns = {}
        gaussian = influence_forms(observed.data, fit, observed.target)
        for (mask, _), first, second in zip(observed.patterns, gaussian, augmented.patterns, strict=True):
            parties = [party for party, has in zip(layout.parties, mask, strict=True) if has]
            kept = self._kept(parties)
            size = 1 + sum(len(layout.own_features(party)) for party in parties)
            full = np.zeros((outputs, size, size))
            full[:width, kept[:, None], kept] = first
            full[width : 2 * width, kept[:, None], kept] = second
            patterns[mask] = full
        pairs = {pair: np.zeros((outputs, *released.grams[pair].shape)) for pair in layout.pairs}
        for pair, stated in self.pairs.items():
            kept = self._pair_kept(stated)
            scale = observed.data.n / released.grams[stated][0, 0]
            pairs[stated][width : 2 * width, kept[:, None], kept] = augmented.pairs[pair] * scale
        own = np.zeros((outputs, layout.own_width, layout.own_width))
        if released.own is not None:
            kept = self._kept([layout.response_party])
            own[width : 2 * width, kept[:, None], kept] = augmented.own * (observed.data.n / released.own[0, 0])
        return patterns, pairs, own
