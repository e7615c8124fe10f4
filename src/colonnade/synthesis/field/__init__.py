"""Synthetic tables from a Markov random field: tables on secret shares, inference, sampling."""
