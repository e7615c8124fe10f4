"""What may be said of a regression's intervals: signs that its assumptions fail, each with its threshold.

The Gaussian fit and the presence-weighted moments rest on different assumptions. The intervals of their combination
cover where either holds, and where the weights are good enough to tell; these checks notice where they are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from colonnade.formatting import number
from colonnade.models.linear.propensity import CAP, RARE, UNLIKELY
from colonnade.models.linear.result import NOT_VALID
from colonnade.models.linear.robust import REJECTED
from colonnade.statistics.gaussian_em import Vector

UNLIKELY_SHARE = 0.10
"""Of the records: beyond it, the weighted records say too little of those that lack a block."""
CAPPED_SHARE = 0.01
DRAWN = 0.5
"""How far the weighted moments may have been drawn towards the Gaussian fit's."""
LEFT = 2.0
"""Standard errors of the weighted estimate that the combination may be away from it, in any coefficient."""

UNSTEADY = 0.3
"""`robust.excess_error` beyond which a few records decide the errors too: where the two estimates also differ, neither
is known well enough."""


@dataclass(frozen=True)
class Finding:
    """One sentence, and whether intervals are not valid because of it."""

    text: str
    serious: bool


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What is known of presence and of the two estimates: what the checks look at."""

    records: int
    capped: int
    unlikely: int
    drawn: float
    pvalue: float
    share: float
    """Of the weighted estimate in the combination."""
    difference: float
    """The largest difference between the two estimates, in standard errors of the weighted one."""
    left: float
    """The same between the combination and the weighted one."""
    rare: tuple[str, ...] = ()
    """Covariates' levels with few records."""
    tested: bool = True
    excess: float = 0.0
    """`robust.excess_error` of the Gaussian fit; 0 where groups are clusters, which have another reason for it."""

    def findings(self) -> tuple[Finding, ...]:
        out = []
        if not self.tested:
            out.append(Finding("there are too few groups of records for so many coefficients", True))
        if self.unlikely > UNLIKELY_SHARE * self.records:
            out.append(
                Finding(
                    f"{self.unlikely / self.records:.0%} of the records are of a kind that hardly ever has some block"
                    f" (a chance below {UNLIKELY:.0%}), so what they lack is extrapolated",
                    True,
                )
            )
        if self.capped > CAPPED_SHARE * self.records:
            out.append(Finding(f"{self.capped / self.records:.1%} of the records have a weight beyond {CAP:g}", True))
        if self.drawn > DRAWN:
            out.append(Finding("the presence-weighted moments are too noisy to check the Gaussian fit", True))
        if self.tested and self.left > LEFT:
            out.append(
                Finding(
                    f"the Gaussian fit and the presence-weighted estimate differ by {self.difference:.1f} standard"
                    f" errors in a coefficient, and only {self.share:.0%} of the latter could be used",
                    True,
                )
            )
        if self.tested and self.excess > UNSTEADY and self.pvalue < REJECTED:
            out.append(
                Finding(
                    "the Gaussian fit and the presence-weighted estimate differ (Hausman's test: p ="
                    f" {self.pvalue:.2g}), and columns have such tails that few records decide (errors by groups are"
                    f" {np.expm1(self.excess):.0%} larger than by normal theory); logarithms of amounts may help",
                    True,
                )
            )
        if self.rare:
            shown = ", ".join(self.rare[:3]) + (" and others" if len(self.rare) > 3 else "")
            out.append(
                Finding(f"fewer than {RARE:.0%} of the records have {shown}, whose own interval is unreliable", False)
            )
        return tuple(out)


def verdict(selection: Selection) -> str:
    """The first line of a summary."""
    serious = [finding.text for finding in selection.findings() if finding.serious]
    minor = [finding.text for finding in selection.findings() if not finding.serious]
    if serious:
        return f"{NOT_VALID}: {'; '.join(serious)}."
    checked = (
        f"Valid if presence depends on nothing but the response holder's columns; checked with presence weights on"
        f" {number(selection.records)} records."
    )
    return checked if not minor else f"{checked} But {'; '.join(minor)}."


def largest_difference(first: Vector, second: Vector, errors: Vector) -> float:
    """|second - first| in standard errors, over the slopes."""
    return float(np.max(np.abs(second - first)[1:] / np.maximum(errors[1:], 1e-300), initial=0.0))
