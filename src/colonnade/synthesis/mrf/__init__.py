"""Synthetic tables from a Markov random field: VertiMRF and its encoders `sqm`, `fm` and `fo`."""
