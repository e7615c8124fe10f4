"""The methods of Colonnade: the one table from a name to its class. The class says everything else."""

from __future__ import annotations

from colonnade.federation.catalogue import CATALOGUE as CATALOGUE

METHODS = {
    "align": "colonnade.alignment.align:Align",
    "describe": "colonnade.statistics.describe:Describe",
    "synthesize": "colonnade.synthesis.method:Synthesize",
    "vertimrf": "colonnade.papers.vertimrf.method:VertiMRF",
    "regress": "colonnade.models.linear.regress:Regress",
    "select": "colonnade.models.sparse.select:Select",
    "complete": "colonnade.completion.method:Complete",
    "pca": "colonnade.models.pca:PCA",
    "classify": "colonnade.models.classify:Classify",
    "moments": "colonnade.statistics.moments:Moments",
    "tables": "colonnade.statistics.tables:Tables",
    "polynomial-sum": "colonnade.statistics.polynomial:PolynomialSum",
    "presence-total": "colonnade.statistics.secure_sum:PresenceTotal",
    "blind-rsa": "colonnade.papers.blind_rsa:BlindRSA",
    "vcds": "colonnade.papers.vcds.method:VCDS",
    "evcds": "colonnade.papers.vcds.method:EVCDS",
    "ievcds": "colonnade.papers.vcds.method:IEVCDS",
    "vfem": "colonnade.papers.vfem.method:VFEM",
    "fedpsg": "colonnade.papers.fedpsg.method:FedPSG",
    "vfl-glm-vs": "colonnade.papers.vfl_glm_vs.method:VFLGLMVS",
    "sqm-logistic": "colonnade.papers.sqm.logistic:SQMLogistic",
}

CATALOGUE.enter(METHODS, optional=("colonnade.papers",))
