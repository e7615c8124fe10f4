"""The methods of Colonnade: the one table from a name to its class. The class says everything else."""

from __future__ import annotations

from colonnade.federation.catalogue import CATALOGUE as CATALOGUE

METHODS = {
    "align": "colonnade.alignment.protocol:Align",
    "describe": "colonnade.statistics.describe:Describe",
    "copula-sqm": "colonnade.synthesis.copula.procedure:CopulaSQM",
    "vertimrf": "colonnade.papers.vertimrf.method:VertiMRF",
    "vfem": "colonnade.models.linear.regress:VFEM",
    "sparse-glm": "colonnade.models.sparse.select:SparseGLM",
    "fedpsg": "colonnade.completion.method:FedPSG",
    "pca": "colonnade.models.pca:SQMPCA",
    "classify": "colonnade.models.classify:SQMLogistic",
    "moments": "colonnade.statistics.moments:Moments",
    "contingency": "colonnade.statistics.contingency:Contingency",
    "polynomial": "colonnade.statistics.polynomial:PolynomialSum",
    "presence-total": "colonnade.statistics.secure_sum:PresenceTotal",
    "vcds": "colonnade.papers.vcds.method:VCDS",
    "evcds": "colonnade.papers.vcds.method:EVCDS",
    "ievcds": "colonnade.papers.vcds.method:IEVCDS",
}

CATALOGUE.enter(METHODS, optional=("colonnade.papers",))
