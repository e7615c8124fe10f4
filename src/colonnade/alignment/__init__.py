"""Private alignment of record keys: the parties agree on a cohort, and no party sees a key that it does not hold.

In order of dependence: `group` (the curve, and what is on it), `exponentiation` (batches and worker processes),
`keys` (normal form of a key), `lists` (who raises whose list, what is in it, from tags to rows), `align` (the method,
its result and its steps), `session` (an alignment of a local federation).
"""
