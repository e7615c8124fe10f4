"""The FedPSG-CAG paper: correlated columns drawn by local generators, the rest by vertical GANs."""
