"""Networks that are split between parties: what each applies to its own columns, what travels, and who may read it."""

from colonnade.completion.split import networks
