"""Networks that are split between parties: what each applies to its own columns, what travels, and who may read it."""

from colonnade.completion import networks as networks  # says what to install where jax is missing
