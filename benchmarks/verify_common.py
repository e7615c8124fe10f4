"""Every message of a verification in one process, so that one number of any of them can be changed.

`Committee` does what share holders do: rows are dealt, a Gram matrix is computed with noise, a product is dealt again,
and each holder proves both. `planted` changes one number of one kind of message, and says whether that was found.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from colonnade.privacy.randomness import SimulatedRandomness
from colonnade.secure import bgw, claims
from colonnade.secure.extension import Extension
from colonnade.secure.field import PRIMES, Field, Residues
from colonnade.secure.proof import Layout, Query, Verdict, answer, prove, verdict
from colonnade.secure.shamir import share_residues
from colonnade.secure.sizes import Sizes
from colonnade.statistics.norms import Norm

N, W, GAMMA = 6, 2, 1 << 10
"""Records and columns of a committee's rows; numbers are up to GAMMA."""


def seed(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Committee:
    """Every message of a job is an attribute, so that a test can change it before what follows is computed."""

    def __init__(self, holders: int, threshold: int, *, field: Field, width: int, number: int = 0) -> None:
        self.holders, self.threshold, self.extension = range(holders), threshold, Extension(field)
        self.layout = Layout(2 * N, width)
        self.randomness = SimulatedRandomness(number, f"{holders} {threshold} {field.primes}")
        generator = np.random.default_rng(number)
        self.values = generator.integers(-1, 2, size=(N, W))
        self.rows = self.deal(field.encode(self.values))
        noise = generator.integers(-1, 2, size=W * (W + 1) // 2)
        sharing = {"holders": holders, "threshold": threshold, "randomness": self.randomness}
        self.noise = bgw.blinded_noise(field, noise, **sharing)
        masks = [
            self.deal(field.uniform((self.layout.masks(holders), 3), self.randomness)) for _ in range(threshold + 1)
        ]
        self.masks = [field.sum(np.stack(shares, axis=1)) for shares in zip(*masks, strict=True)]
        self.multiply()

    def deal(self, secret: Residues) -> list[Residues]:
        return share_residues(
            self.extension.field,
            secret,
            holders=len(self.holders),
            threshold=self.threshold,
            randomness=self.randomness,
        )

    def multiply(self) -> None:
        """Each holder opens its share of the Gram matrix, and deals again its product of two columns."""
        field = self.extension.field
        self.opened = [
            bgw.open_product(
                bgw.gram(field, self.rows[j]).upper(),
                noise={"tax": bgw.noise_term(field, self.noise[j], holder=j)},
                parties=["tax"],
            )
            for j in self.holders
        ]
        self.dealt = [self.deal(field.mul(self.rows[j][..., 0], self.rows[j][..., 1])) for j in self.holders]

    def challenge(self, number: int) -> None:
        draw = lambda label, *shape: self.extension.uniform(shape, seed=seed(number), label=label)  # noqa: E731
        self.u, self.chi, self.coefficients = draw("u", W), draw("chi", N), draw("claims", 2)
        self.query = Query(self.extension, self.layout, self.extension.point(seed=seed(number), label="r"))

    def factors(self, holder: int) -> tuple[list[Residues], list[Residues]]:
        rows = self.rows[holder]
        pairs = [
            claims.gram_factors(self.extension, rows, self.u),
            claims.product_factors(self.extension, rows[..., 0], rows[..., 1], self.chi),
        ]
        return claims.combined(self.extension, pairs, self.coefficients)

    def prove(self) -> None:
        self.proofs = [self.proof_of(j) for j in self.holders]
        self.stated = [self.deal(self.combination_of(j)[:, None]) for j in self.holders]

    def combination_of(self, holder: int) -> Residues:
        """Of a holder's share of the result, as it deals it beside its proof."""
        return self.extension.combine(self.opened[holder], claims.gram_weights(self.extension, self.u))

    def proof_of(self, holder: int) -> list[Residues]:
        factors = self.factors(holder)
        return self.deal(prove(self.extension, self.layout, *factors, masks=self.masks[holder], prover=holder))

    def sides(self, holder: int) -> tuple[Residues, Residues]:
        """This holder's shares of the right side of every prover's claim: noise of others, and what it dealt itself."""
        extension, field = self.extension, self.extension.field
        weights = claims.gram_weights(extension, self.u)
        others, own = [], []
        for j in self.holders:
            term = bgw.noise_term(field, self.noise[holder], holder=j)
            others.append(extension.neg(extension.combine(term, weights)))
            stated = extension.scale(self.stated[j][holder], self.coefficients[:, 0])
            again = extension.combine(self.dealt[j][holder], self.chi)[:, None]
            own.append(extension.add(stated, extension.scale(again, self.coefficients[:, 1]))[:, 0])
        return extension.scale(np.stack(others, axis=1), self.coefficients[:, 0]), np.stack(own, axis=1)

    def answer(self) -> None:
        self.answers = {i: self.answer_of(i) for i in self.holders}

    def answer_of(self, holder: int) -> Residues:
        others, own = self.sides(holder)
        proofs = np.stack([self.proofs[j][holder] for j in self.holders], axis=1)
        factors = self.factors(holder)
        return answer(self.query, *factors, masks=self.masks[holder], proofs=proofs, others=others, own=own)

    def verdict(self) -> Verdict:
        places = [j + 1 for j in self.holders]
        return verdict(self.extension, self.layout, self.answers, places=places, threshold=self.threshold)

    def run(self, number: int) -> Verdict:
        self.challenge(number)
        self.prove()
        self.answer()
        return self.verdict()


class Sums(Committee):
    """Sums by group are dealt again (`influences`), and proven through sums that a first challenge has combined."""

    GROUPS = 3

    def multiply(self) -> None:
        """Each holder's product of its two columns, summed by group."""
        self.influences = [self.deal(self.by_group(j)) for j in self.holders]

    def by_group(self, holder: int) -> Residues:
        field, rows = self.extension.field, self.rows[holder]
        product = field.mul(rows[..., 0], rows[..., 1])
        return field.sum(product.reshape(len(product), self.GROUPS, -1), axis=1)

    def begin(self, number: int) -> None:
        """The first challenge, and the sums of all groups by its weights, which each holder deals."""
        self.psi = self.extension.uniform((self.GROUPS,), seed=seed(number), label="groups")
        self.sums = [self.deal(self.sum_of(j)[:, None]) for j in self.holders]

    def sum_of(self, holder: int) -> Residues:
        return self.extension.combine(self.by_group(holder), self.psi)

    def challenge(self, number: int) -> None:
        self.layout = Layout(N, 3)
        self.rho = self.extension.uniform((2,), seed=seed(number), label="rho")
        self.query = Query(self.extension, self.layout, self.extension.point(seed=seed(number), label="r"))

    def factors(self, holder: int) -> tuple[list[Residues], list[Residues]]:
        """e psi_g x y, whose sum is e times the sum that was dealt."""
        weights = self.extension.scale(np.repeat(self.psi, N // self.GROUPS, axis=1), self.rho[:, 0])
        claim = claims.product_factors(self.extension, self.rows[holder][..., 0], self.rows[holder][..., 1], weights)
        return [claim.left], [claim.right]

    def sides(self, holder: int) -> tuple[Residues, Residues]:
        """And rho times (what was dealt of the groups, combined, minus that sum), which is 0."""
        extension, own = self.extension, []
        for j in self.holders:
            dealt = self.sums[j][holder][:, 0]
            linked = extension.sub(extension.combine(self.influences[j][holder], self.psi), dealt)
            own.append(extension.add(extension.mul(dealt, self.rho[:, 0]), extension.mul(linked, self.rho[:, 1])))
        return extension.zeros((len(own),)), np.stack(own, axis=1)

    def prove(self) -> None:
        self.proofs = [self.proof_of(j) for j in self.holders]

    def run(self, number: int) -> Verdict:
        self.begin(number)
        return super().run(number + 1)


class Dealer(Committee):
    """A data party proves its indicators: the secret is at 0, and it deals its masks itself."""

    def __init__(self, number: int) -> None:
        self.holders, self.threshold, self.extension = range(3), 1, Extension(Field(PRIMES[:1]))
        self.randomness, self.layout = SimulatedRandomness(number, "dealer"), Layout.balanced(N, square=True)
        self.values = np.eye(W, dtype=np.int64)[np.random.default_rng(number).integers(W, size=N)]
        draw = lambda label, size: self.extension.uniform((size,), seed=seed(number), label=label)  # noqa: E731
        self.vectors = draw("u", W), draw("psi", N)
        self.query = Query(self.extension, self.layout, self.extension.point(seed=seed(number), label="r"))

    def verdict(self) -> Verdict:
        extension, field = self.extension, self.extension.field
        rows = field.encode(self.values)
        masks = field.uniform((self.layout.masks(1), 3), self.randomness)
        factors = claims.one_hot_factors(extension, rows, *self.vectors)
        proofs = self.deal(prove(extension, self.layout, *factors, masks=masks))
        dealt = zip(self.deal(rows), self.deal(masks), proofs, strict=True)
        answers = {
            holder: answer(
                self.query,
                *claims.one_hot_factors(extension, own, *self.vectors),
                masks=mask,
                proofs=proof[:, None],
                own=claims.one_hot_value(extension, own, *self.vectors)[:, None],
            )
            for holder, (own, mask, proof) in enumerate(dealt)
        }
        return verdict(extension, self.layout, answers, places=[0], threshold=self.threshold)


class Numbers(Committee):
    """A data party proves that its rows of numbers are within their norm."""

    def __init__(self, number: int) -> None:
        self.holders, self.threshold, self.extension = range(3), 1, Extension(Field(PRIMES[:3]))
        self.randomness, self.seed = SimulatedRandomness(number, "numbers"), seed(number)
        self.norm = Norm(N, 0, W, GAMMA, W * GAMMA**2)
        self.sizes = Sizes(self.extension.field, N, self.norm.largest)
        self.layout = Layout.balanced(N * (W + 1) + self.sizes.bits, square=True)
        self.values = np.random.default_rng(number).integers(-GAMMA, GAMMA + 1, size=(N, W))
        self.columns = self.extension.field.encode(np.column_stack([self.values, self.norm.roots(self.values)]))

    def claim(self, columns: Residues, bits: Residues) -> tuple[Residues, Residues]:
        """The vector of the claim, and its right side."""
        psi, bit_weights = (
            self.extension.uniform((size,), seed=self.seed, label=label)
            for label, size in (("psi", N), ("bits", self.sizes.bits))
        )
        factors, value = self.norm.claim(self.extension, columns, psi)
        also = claims.square_factors(self.extension, bits, bit_weights).left
        value = self.extension.add(value, self.extension.combine(bits, self.extension.mul(bit_weights, bit_weights)))
        return np.concatenate([factors.left, also], axis=1), value

    def verdict(self) -> Verdict:
        extension, sizes, public = self.extension, self.sizes, {"seed": self.seed, "label": "rows"}
        field, drawn = extension.field, sizes.draw(self.randomness)
        beside = field.encode(drawn)
        masks = field.uniform((self.layout.masks(1), 3), self.randomness)
        vector, _ = self.claim(self.columns, beside[:, : sizes.bits])
        proofs = self.deal(prove(extension, self.layout, vector, vector, masks=masks))
        letter = list(sizes.letter(sizes.sums([self.columns], **public), drawn, **public))
        query = Query(extension, self.layout, extension.point(seed=self.seed, label="r"))
        answers, small = {}, {}
        dealt = zip(self.deal(self.columns), self.deal(beside), self.deal(masks), proofs, strict=True)
        for holder, (columns, own_beside, mask, proof) in enumerate(dealt):
            own, value = self.claim(columns, own_beside[:, : sizes.bits])
            answers[holder] = answer(query, own, own, masks=mask, proofs=proof[:, None], own=value[:, None])
            small[holder] = sizes.answer(sizes.sums([columns], **public), own_beside, letter, **public)
        shown = verdict(extension, self.layout, answers, places=[0], threshold=self.threshold)
        _, false = sizes.false(small, threshold=self.threshold)
        return shown._replace(refuted=(0,)) if false else shown


# --- planted lies ------------------------------------------------------------------------------------------------

KINDS = {
    "rows": "a holder's share of a party's rows",
    "noise": "a holder's share of a member's noise",
    "opened": "a holder's share of the result",
    "stated": "the combination of that share which a holder deals",
    "dealt again": "a product that a holder deals again",
    "influence": "a sum by group that a holder deals again",
    "sum": "a sum that a holder deals for its proof",
    "masks": "a holder's share of the masks",
    "proof": "a share of a proof",
    "answer": "an answer",
    "indicator": "an entry of a party's indicators",
    "number": "a row of numbers, a thousand times its norm",
    "residue": "an entry of a row of numbers, modulo one prime",
}
"""What is changed, and what it is."""


def alter(committee: Committee, array: Residues, generator: np.random.Generator) -> None:
    """Add a random number other than 0 to one residue."""
    place = tuple(int(generator.integers(size)) for size in array.shape)
    p = committee.extension.field.primes[place[0]]
    array[place] = (array[place] + generator.integers(1, p)) % p


def planted(kind: str, honest: Committee, generator: np.random.Generator) -> tuple[Verdict, int]:
    """What the holders conclude of one change by one holder, and which; `honest` has run, and stays as it is.

    What a holder computes from what it was dealt, it computes from the changed number."""
    job = copy(honest)
    holder, other = (int(k) for k in generator.choice(3, size=2, replace=False))
    if kind == "indicator":
        dealer = Dealer(int(generator.integers(1 << 30)))
        place = generator.integers(N), generator.integers(W)
        dealer.values[place] += int(generator.integers(2, 1 << 20)) * int(generator.choice([-1, 1]))
        return dealer.verdict(), 0
    if kind in ("influence", "sum"):
        number = int(generator.integers(1 << 30))
        sums = Sums(3, 1, field=Field(PRIMES[:1]), width=3, number=number)
        if kind == "influence":
            secret = sums.by_group(holder)
            alter(sums, secret, generator)
            sums.influences[holder] = sums.deal(secret)
        sums.begin(number)
        if kind == "sum":
            secret = sums.sum_of(holder)[:, None]
            alter(sums, secret, generator)
            sums.sums[holder] = sums.deal(secret)
        return Committee.run(sums, number + 1), holder
    if kind in ("number", "residue"):
        numbers = Numbers(int(generator.integers(1 << 30)))
        if kind == "residue":
            alter(numbers, numbers.columns[..., :W], generator)
        else:
            numbers.values[generator.integers(N)] = 1000 * GAMMA * generator.choice([-1, 1], size=W)
            numbers.columns = numbers.extension.field.encode(
                np.column_stack([numbers.values, numbers.norm.roots(numbers.values)])
            )
        return numbers.verdict(), 0
    if kind == "answer":
        job.answers = {i: array.copy() for i, array in job.answers.items()}
        alter(job, job.answers[holder], generator)
        return job.verdict(), holder
    if kind == "proof":
        job.proofs = [[array.copy() for array in shares] for shares in job.proofs]
        alter(job, job.proofs[holder][other], generator)
        job.answers = job.answers | {other: job.answer_of(other)}
        return job.verdict(), holder
    if kind == "opened":
        job.opened = [array.copy() for array in job.opened]
        alter(job, job.opened[holder], generator)
        job.stated = [
            job.deal(job.combination_of(j)[:, None]) if j == holder else dealt for j, dealt in enumerate(job.stated)
        ]
    elif kind == "stated":
        combination = job.combination_of(holder)[:, None]
        alter(job, combination, generator)
        job.stated = [job.deal(combination) if j == holder else dealt for j, dealt in enumerate(job.stated)]
    elif kind == "dealt again":
        secret = job.extension.field.mul(job.rows[holder][..., 0], job.rows[holder][..., 1])
        alter(job, secret, generator)
        job.dealt = [job.deal(secret) if j == holder else shares for j, shares in enumerate(job.dealt)]
    else:
        setattr(job, kind, [array.copy() for array in getattr(job, kind)])
        alter(job, getattr(job, kind)[holder], generator)
        job.multiply()
        job.proofs = [job.proof_of(j) if j == holder else shares for j, shares in enumerate(job.proofs)]
        job.stated = [
            job.deal(job.combination_of(j)[:, None]) if j == holder else dealt for j, dealt in enumerate(job.stated)
        ]
    job.answer()
    return job.verdict(), holder
