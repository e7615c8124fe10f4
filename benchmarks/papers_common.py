"""Every algorithm, table and figure of the five papers: where it is here, which study shows it, and what it shows.

`state` is what the study's page shows today, not what the code could do: *shown* (the paper's item, at its settings or
stated ones, shape agrees), *partly* (fewer draws, cells or rivals than the paper, or another variant), *contradicts*
(our figures say otherwise), *absent*. `says` gives the reason or the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["shown", "partly", "contradicts", "absent"]


@dataclass(frozen=True)
class Item:
    """One thing that a paper prints."""

    paper: str
    name: str
    where: str
    study: str | None
    state: State
    says: str


COPULA, MRF, VFEM, SQM, FEDPSG = "copula", "VertiMRF", "VFEM", "SQM", "FedPSG-CAG"

ITEMS = (
    Item(COPULA, "ranks by randomised response", "papers/vcds/ranks.py", "ranks", "shown", "moments of both noises"),
    Item(
        COPULA,
        "Algorithm 1, VCDS",
        "papers/vcds",
        "copula-complete",
        "partly",
        "the pages run smooth marginals; `VCDS.as_printed` has the printed Bernstein ones, which are much worse on"
        " public bounds",
    ),
    Item(
        COPULA,
        "Algorithms 2 and 3, EVCDS and IEVCDS",
        "papers/vcds",
        "copula-missing",
        "partly",
        "studied with fresh draws and conditional imputation; as printed only by the presets",
    ),
    Item(COPULA, "Algorithm 4, VFL-GLM-VS", "papers/vfl_glm_vs", "sparse-selection", "shown", "three penalties"),
    Item(
        COPULA,
        "Tables 1 to 3",
        "papers/vcds",
        "copula-complete",
        "partly",
        "2 draws a cell (100 in the paper); logistic at epsilon 3 and VertiGAN at 3 are not there",
    ),
    Item(
        COPULA,
        "Tables 4 to 7",
        "papers/vcds",
        "copula-missing",
        "partly",
        "1 or 2 draws; N = 3,000, CC-EVCDS and Impute-EVCDS are not there",
    ),
    Item(COPULA, "Table 9", "papers/vcds", "copula-sme", "partly", "its firms are not public; simulated ones, 2 draws"),
    Item(
        COPULA,
        "epsilon per record",
        "papers/vcds",
        "copula-complete",
        "contradicts",
        "a record loses 88 and more at the printed epsilon 1 (N = 1,000): ranks are released for each party's columns",
    ),
    Item(
        MRF, "six phases, FM and FO", "papers/vertimrf", "mrf-tvd", "shown", "FM has no proven bound; the plan says so"
    ),
    Item(
        MRF,
        "Figure 3",
        "papers/vertimrf",
        "mrf-tvd",
        "partly",
        "Adult, Bank and ACS; FM and FO one run each, no epsilon 0.4 and 1.6; NLTCS and BR2000 are not to be had",
    ),
    Item(MRF, "Figure 4, SVM", "synthesis/field", "mrf-svm", "partly", "one fold of five; without FM, FO and VertiGAN"),
    Item(MRF, "Figure 5, number of parties", "synthesis/field", "mrf-tvd", "partly", "2, 4 and 15 parties, ours only"),
    Item(MRF, "Figure 6, split of the budget", "papers/vertimrf", None, "absent", "coded, not run yet"),
    Item(
        MRF,
        "Figures 7 to 9, ablations",
        "papers/vertimrf",
        "mrf-ablation",
        "partly",
        "epsilon 0.8, one run; FO with consistency .1559, without .1536: against Figure 9, within a run's noise",
    ),
    Item(MRF, "Table 2, cost", "papers/vertimrf", "mrf-cost", "partly", "t = 8,000 and VertiGAN's bytes are not there"),
    Item(VFEM, "Algorithm 1, rounds", "papers/vfem", "vfem-coverage", "shown", "both starts, against a pooled EM"),
    Item(
        VFEM,
        "Algorithm 2, variance by sketches",
        "papers/vfem",
        "vfem-coverage",
        "partly",
        "the observed information directly; SEM itself is not coded",
    ),
    Item(
        VFEM,
        "Tables 2 and 3",
        "models/linear",
        "vfem-sme",
        "shown",
        "its firms are not public; 40 draws of simulated ones in its layout and in ours: complete cases cover 94 %, its"
        " model 30 % as blocks are correlated, the full covariance 92 % with one coefficient at 25 % (the default of"
        " `Regress` at least 82 % of each, study `intervals`)",
    ),
    Item(
        VFEM,
        "Figure 3, independence of blocks",
        "models/linear/diagnostics.py",
        "vfem-sme",
        "shown",
        "`Regression.independence()`, by the result itself (canonical correlations, Bartlett's test of every two"
        " parties); on simulated firms, whose blocks are correlated, it rejects all ten pairs",
    ),
    Item(
        VFEM,
        "Figure 4, 50 partitions",
        "models/linear",
        "vfem-prediction",
        "contradicts",
        "5 to 10 draws; mean imputation beats complete cases (.665 and .786), the reverse of the paper",
    ),
    Item(
        VFEM,
        "intervals under its model",
        "papers/vfem",
        "vfem-sme",
        "contradicts",
        "columns of different parties taken as uncorrelated: 29 % of its intervals cover on correlated firms",
    ),
    Item(
        VFEM, "Supplement E", "models/linear", "vfem-coverage", "partly", "the supplement is not to be had; own designs"
    ),
    Item(
        SQM, "Algorithms 1 to 3", "statistics/polynomial.py", "sqm", "shown", "exact against numpy, noise as declared"
    ),
    Item(
        SQM,
        "sensitivity of a Gram matrix",
        "statistics/moments.py",
        "sqm",
        "contradicts",
        "the printed gamma^2 c^2 + n is too small for stochastic rounding; parties clip after rounding here",
    ),
    Item(SQM, "Figure 1, PCA", "models/pca.py", "sqm-pca", "partly", "k = 5 only, and gamma at one epsilon"),
    Item(
        SQM,
        "Figure 2, logistic regression",
        "papers/sqm",
        "sqm-logistic",
        "partly",
        "epsilon 1 only; minibatches in its ball of radius 1, which caps them at .667 on CA whatever epsilon is; no"
        " sweep of gamma",
    ),
    Item(
        SQM,
        "Figure 3, what gamma costs",
        "papers/sqm",
        "sqm-gamma",
        "shown",
        "the printed overhead falls with gamma; ours is none at any gamma, as parties clip after rounding. Noise is"
        " that of Gaussian noise by the same accountant (Renyi), 1.26 times that by a tighter one; 65,536 is refused",
    ),
    Item(FEDPSG, "columns drawn first, VF-GAIN and its kin", "papers/fedpsg", "fedpsg-imputers", "shown", "three GANs"),
    Item(FEDPSG, "alignment by blind RSA", "papers/blind_rsa.py", "align", "shown", "and its cost"),
    Item(
        FEDPSG,
        "Table 1, imputers",
        "papers/fedpsg",
        "fedpsg-imputers",
        "partly",
        "three of four data sets; VF-MissForest is scored on hard classes, which costs it up to .07",
    ),
    Item(FEDPSG, "Table 2, federated or local", "papers/fedpsg", "fedpsg-federated", "partly", "50 % missing only"),
    Item(
        FEDPSG,
        "Figure 4, number of drawn columns",
        "papers/fedpsg",
        "fedpsg-columns",
        "contradicts",
        "five drawn columns are worse than none, 1.17 to 1.38 times; the paper has them better",
    ),
    Item(
        FEDPSG,
        "Tables 3 and 4, generators",
        "papers/fedpsg",
        "fedpsg-generators",
        "partly",
        "50 %, two splits; CTGAN, TableGAN and CTAB-GAN are not there (licence, or no kept package), nor News",
    ),
    Item(
        FEDPSG,
        "downstream classifiers",
        "papers/fedpsg",
        "fedpsg-downstream",
        "contradicts",
        "completed records did not help beyond chance in any of nine cases",
    ),
)
