"""Synthetic tables from a Gaussian copula: CopulaSQM, and the copula paper's VCDS, EVCDS and IEVCDS."""
