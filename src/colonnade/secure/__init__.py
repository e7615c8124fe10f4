"""Computing on values that no member may see: mathematics, no network.

In order of dependence:

- `field`: the public primes, and exact arithmetic modulo several of them, through BLAS;
- `shamir`: secret sharing among holders;
- `seeded`: sharings of large arrays, of which most holders get a seed;
- `bgw`: products of shares, degree reduction, and opening with noise;
- `extension`: the field of p^3 elements over each prime, from which challenges are drawn;
- `openings`: whether opened values lie on a polynomial of their degree, and who lied;
- `claims`: Gram matrices, tables, products and one-hot rows as inner products to be proven;
- `proof`: a proof on shares, in zero knowledge, that an inner product is right;
- `pads`: masked sums, for totals without share holders;
- `ckks`: sums of encrypted floats, for an adder who can read nothing;
- `bfv`: products of two members' columns under encryption, for two institutions alone (`bfv.claim.md`);
- `sealed`: identities, sealed messages from party to party, pair keys.

`claim.md` says what each promises, what any t holders learn, and what is not claimed.
"""
