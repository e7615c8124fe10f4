"""What the share holders prove of one round of scores, exact or noisy: that every product which was dealt again is one,
and that what is opened are the sums of these, as one inner product.

With psi_r for the records, all random over K:

- *a product of two factors*, cosines and sines as complex numbers: the sum over the entries of psi_r c_k z_k, with one
  c_k for a cosine and one, s_k, for a sine, is that of psi_r re_a (c re_b + s im_b) + psi_r im_a (s re_b - c im_b);
- *residuals and weights*: psi_r (e_0 r + e_1 W) is psi_r times products of the joint factor with e_1 slope - e_0 mean,
  and a multiple of the weighted response, which is shared and no product;
- *columns*, W x: psi_r (W x) u is (x u) psi_r W; and what is opened, X' W X and X' r, is (x u) (W x u + t r) in all.

In the round of errors r takes the place of W, and what is opened is (r x u) (r x u + g s). Noisy scores (`private.py`)
open X' r, which is (x u) r; noisy information (`private_fit.py`) X' W X, and beside it the sum of what stands in the
place of r, no product, with the weight t; noisy variation the same with r^2 for W, alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from colonnade.federation.party import Party
from colonnade.models.glm.weights import PROJECTED
from colonnade.secure.claims import Factors, cross_weights, gram_weights
from colonnade.secure.extension import DEGREE, Extension
from colonnade.secure.field import Residues

if TYPE_CHECKING:
    from colonnade.models.glm.private_fit import NoisyInformation
    from colonnade.models.glm.scores import ScoreLayout


class ScoreProof:
    """The random values of a challenge, and what a holder makes of them and its shares."""

    def __init__(self, layout: ScoreLayout, extension: Extension, seed: bytes) -> None:
        self.layout, self.extension, self.seed = layout, extension, seed

    def _uniform(self, label: str, *shape: int) -> Residues:
        return self.extension.uniform(shape, seed=self.seed, label=label)

    @cached_property
    def columns(self) -> Residues:
        """u."""
        return self._uniform("columns", self.layout.width)

    @cached_property
    def others(self) -> Residues:
        """t, or s for each column of presence scores."""
        return self._uniform("other sums", PROJECTED if self.layout.errors else 1)

    @cached_property
    def _residuals(self) -> Residues:
        """e."""
        return self._uniform("residuals", 2)

    def _factor(self, level: int, pair: int) -> Residues:
        """c and s, of a product of two factors."""
        return self._uniform(f"factor {level} {pair}", self.layout.factor_width)

    def _records(self, chunk: int) -> Residues:
        start, stop = self.layout.chunks[chunk]
        return self._uniform(f"records of chunk {chunk}", stop - start)

    def opening_weights(self) -> Residues:
        other = cross_weights(self.extension, self.columns, self.others)
        return np.concatenate([gram_weights(self.extension, self.columns), other], axis=1)

    # --- the two vectors ----------------------------------------------------------------------------------

    def factors(self, me: Party) -> Iterator[Factors]:
        layout = self.layout
        for chunk in range(len(layout.chunks)):
            psi = self._records(chunk)
            factors = layout.held_factors(me, chunk)
            for level, (pairs, odd) in enumerate(layout.tree, start=1):
                for pair in range(pairs):
                    turned = self._turned(factors[2 * pair + 1], self._factor(level, pair))
                    yield self._weighted(psi, factors[2 * pair], turned)
                products = layout.held_products(me, chunk, level)
                factors = [products[:, place] for place in range(pairs)] + factors[len(factors) - odd :]
            yield self._weighted(psi, factors[0], self._last(layout.held_last(me, chunk)))
            yield from self._sums(me, chunk, psi)

    def _weighted(self, psi: Residues, factor: Residues, right: Residues) -> Factors:
        """Of psi_r f_k g_k."""
        left = self.extension.field.mul(psi[:, :, None], factor[..., None])
        return Factors(left.reshape(len(left), -1, DEGREE), right.reshape(len(right), -1, DEGREE))

    def _turned(self, factor: Residues, weights: Residues) -> Residues:
        """c re + s im, and s re - c im; of exponentials c times them."""
        field = self.extension.field
        if not self.layout.complex_factors:
            return field.mul(factor[..., None], weights[:, None])
        half = factor.shape[2] // 2
        re, im = (np.ascontiguousarray(part)[..., None] for part in (factor[:, :, :half], factor[:, :, half:]))
        c, s = weights[:, None, :half], weights[:, None, half:]
        first = field.add(field.mul(re, c), field.mul(im, s))
        second = field.sub(field.mul(re, s), field.mul(im, c))
        return np.concatenate([first, second], axis=2)

    def _last(self, last: Residues) -> Residues:
        """e_1 slope - e_0 mean, of the response holder's factors."""
        field = self.extension.field
        total = self.extension.zeros((last.shape[1], self.layout.factor_width))
        for kind, (sign, mine, theirs) in enumerate(self.layout.residuals):
            part = field.mul(np.ascontiguousarray(last[:, :, theirs])[..., None], self._residuals[:, None, None, kind])
            total[:, :, mine] = field.add(total[:, :, mine], part if sign > 0 else field.neg(part))
        return total

    def _sums(self, me: Party, chunk: int, psi: Residues) -> Iterator[Factors]:
        layout, extension, field = self.layout, self.extension, self.extension.field
        residuals = layout.held_products(me, chunk, layout.levels - 1)
        weighted = extension.project(layout.held_products(me, chunk, layout.levels), self.columns)
        columns = extension.project(layout.held_columns(me, chunk), self.columns)
        by_weight = field.mul(psi, residuals[:, -1, :, None])
        if layout.errors:
            scores = extension.project(layout.held_last(me, chunk)[:, :, -PROJECTED:], self.others)
            yield Factors(weighted, field.add(weighted, scores))
            yield Factors(columns, by_weight)
        else:
            yield Factors(columns, field.add(field.add(weighted, self._score(residuals[:, 0])), by_weight))

    def _score(self, residual: Residues) -> Residues:
        """t r, whose product with x u is opened beside X' W X."""
        return self.extension.field.mul(self.others, residual[..., None])

    # --- the right side -----------------------------------------------------------------------------------

    def sums(self, me: Party) -> Residues:
        """psi_r e_0 times the weighted response."""
        extension, layout, total = self.extension, self.layout, self.extension.zeros()
        for chunk in range(len(layout.chunks)):
            response = layout.held_response(me, chunk)
            if response is None:
                return total
            total = extension.add(total, extension.combine(response, self._records(chunk)))
        return extension.mul(extension.field.scale(total, layout.response_factor), self._residuals[:, 0])

    def dealt_again(self, me: Party) -> Residues:
        """The same combination of what each holder has dealt again: (primes, holders, 3)."""
        layout, extension, field = self.layout, self.extension, self.extension.field
        total = extension.zeros((len(me.roster.committee),))
        for chunk in range(len(layout.chunks)):
            psi = self._records(chunk)
            for level in range(1, layout.levels + 1):
                for holder, dealt in enumerate(layout.dealt_products(me, chunk, level)):
                    if level == len(layout.tree) + 2:
                        projected = extension.project(dealt, self.columns)
                    elif level == len(layout.tree) + 1:
                        kinds = range(dealt.shape[1])
                        each = (field.mul(dealt[:, k, :, None], self._residuals[:, k : k + 1]) for k in kinds)
                        projected = field.sum(np.stack(list(each), axis=1))
                    else:
                        each = (extension.project(dealt[:, q], self._factor(level, q)) for q in range(dealt.shape[1]))
                        projected = field.sum(np.stack(list(each), axis=1))
                    total[:, holder] = extension.add(total[:, holder], extension.inner(projected, psi))
        return total


class NoisyScoreProof(ScoreProof):
    """X' r is opened, and the factors carry the response."""

    def opening_weights(self) -> Residues:
        return self.columns

    def _sums(self, me: Party, chunk: int, psi: Residues) -> Iterator[Factors]:
        layout, extension = self.layout, self.extension
        (residual,) = np.moveaxis(layout.held_products(me, chunk, layout.levels), 1, 0)
        yield Factors(extension.project(layout.held_columns(me, chunk), self.columns), extension.embed(residual))


class VariationProof(ScoreProof):
    """X' W X is opened, and the factors carry all of W."""

    def opening_weights(self) -> Residues:
        return gram_weights(self.extension, self.columns)

    def _score(self, residual: Residues) -> Residues:
        return self.extension.zeros(residual.shape[1:])


class InformationProof(VariationProof):
    """X' W X is opened, and `counted` times the sum of the records' presence, which was dealt again before W."""

    layout: NoisyInformation

    def opening_weights(self) -> Residues:
        return np.concatenate([super().opening_weights(), self.others], axis=1)

    def sums(self, me: Party) -> Residues:
        layout, field, total = self.layout, self.extension.field, self.extension.field.zeros(())
        for chunk in range(len(layout.chunks)):
            present = layout.held_products(me, chunk, layout.levels - 1)[:, 0]
            total = field.add(total, field.sum(present))
        return field.mul(field.scale(total, layout.counted)[:, None], self.others[:, 0])
