"""The methods of Colonnade: the one table from a name to its class. The class says everything else."""

from __future__ import annotations

from colonnade.federation.catalogue import CATALOGUE as CATALOGUE

METHODS = {
    "align": "colonnade.alignment.method:Align",
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

WITHOUT_BOUND = {
    "presence": "which pseudonymous records each party has, to the share holders or the other parties",
    "alignment": "which records are shared, under pseudonyms, to the party that matches (align)",
    "exact-moments": "exact counts, sums and products of columns, to the coordinator (regress, select, moments)",
    "exact-scores": "exact sums over records at each round's coefficients, to the coordinator (regress --family)",
    "exact-marginals": "exact counts of each column's cells, to the coordinator (complete)",
    "exact-tables": "exact counts of the cells of tables, to the coordinator (tables)",
    "exact-polynomial": "exact sums over records, to the coordinator (polynomial-sum, regress with products)",
    "exact-presence-total": "how many records the parties have in all, to the coordinator (presence-total)",
    "record-count": "how many records every party has, to the coordinator (select in rounds)",
    "loss": "the mean loss in each round, to the coordinator (select in rounds)",
    "gradients": "exact sums over records in each round, to the coordinator (select in rounds)",
    "coefficients": "fitted coefficients, to the coordinator (select in rounds)",
    "response-residuals": "response less fitted mean by record, to the parties with covariates (select in rounds)",
    "total-predictor": "the sum of all linear predictors by record, to the response's holder (select in rounds)",
    "split-training": "hidden vectors and gradients by record, to the parties of the training (complete)",
    "linear-predictors": "sums of the other parties' predictions by record, to the completed party (complete)",
    "completion-quality": "errors of completed entries over hidden records, to the coordinator (complete)",
}
"""{name: what it shows to whom}: the releases without a privacy bound of Colonnade's own methods, with default options.
A person who owns all tables may allow all of them."""
