"""The Gaussian copula of `synthesize`: scores, moments, and what the coordinator makes of them."""
