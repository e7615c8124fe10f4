"""The copula paper's own algorithms: VCDS, EVCDS and IEVCDS."""
