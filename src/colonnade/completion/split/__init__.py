"""Networks that are split between parties: what each applies to its own columns, what travels, and who may read it."""
