"""VertiMRF: a Markov random field from local fields, and from sketches or perturbed reports of all records."""
