"""The methods of Colonnade: the one table from a name to its class. The class says everything else."""

from __future__ import annotations

from colonnade.federation.catalogue import CATALOGUE as CATALOGUE

METHODS = {
    "align": "colonnade.alignment.protocol:Align",
    "describe": "colonnade.statistics.describe:Describe",
    "copula-sqm": "colonnade.synthesis.copula.sqm:CopulaSQM",
    "vertimrf": "colonnade.synthesis.mrf.vertimrf:VertiMRF",
    "vfem": "colonnade.models.vfem:VFEM",
    "sparse-glm": "colonnade.models.sparse_glm:SparseGLM",
    "fedpsg": "colonnade.completion.fedpsg:FedPSG",
    "pca": "colonnade.models.pca:SQMPCA",
    "classify": "colonnade.models.logistic:SQMLogistic",
    "moments": "colonnade.statistics.moments:PatternMoments",
    "contingency": "colonnade.statistics.contingency:Contingency",
    "polynomial": "colonnade.statistics.polynomial:PolynomialSum",
    "presence-total": "colonnade.statistics.secure_sum:PresenceTotal",
    "vcds": "colonnade.synthesis.copula.vcds:VCDS",
    "evcds": "colonnade.synthesis.copula.evcds:EVCDS",
    "ievcds": "colonnade.synthesis.copula.ievcds:IEVCDS",
}

CATALOGUE.enter(METHODS)
