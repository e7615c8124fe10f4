"""Computing on values that no member may see: mathematics, no network.

In order of dependence:

- `field`: the public primes, and exact arithmetic modulo several of them, through BLAS;
- `shamir`: secret sharing among holders;
- `seeded`: sharings of large arrays, of which most holders get a seed;
- `bgw`: products of shares, degree reduction, and opening with noise;
- `pads`: masked sums, for totals without share holders;
- `ckks`: sums of encrypted floats, for an adder who can read nothing;
- `sealed`: identities, sealed messages from party to party, pair keys.

`claim.md` says what each promises, what any t holders learn, and what is not claimed.
"""
