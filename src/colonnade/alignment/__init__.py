"""Private alignment of record keys: the parties agree on a cohort, and nobody sees a key that it does not hold.

In order of dependence: `square_root` and `group` (the group), `raising` (batches and worker processes), `keys`
(normal form of a key), `routes` (who raises whose list), `numbering` (from tags to rows), `listing` (a party's list),
`protocol` (the method and its steps), `blind_rsa` and `rsa_steps` (the FedPSG paper's protocol), `session` (an
alignment of a local federation).
"""
