"""GF(p^3) and the proof of an inner product in Python integers: slow, and built otherwise than what it checks.

An element is a tuple of three integers; a polynomial over K is a list of coefficients, found by interpolation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

Element = tuple[int, int, int]
ZERO: Element = (0, 0, 0)
ONE: Element = (1, 0, 0)


@dataclass(frozen=True)
class Cubic:
    """GF(p)[X] / (X^3 - X - c)."""

    p: int
    c: int

    def add(self, a: Element, b: Element) -> Element:
        return (a[0] + b[0]) % self.p, (a[1] + b[1]) % self.p, (a[2] + b[2]) % self.p

    def neg(self, a: Element) -> Element:
        return -a[0] % self.p, -a[1] % self.p, -a[2] % self.p

    def sub(self, a: Element, b: Element) -> Element:
        return self.add(a, self.neg(b))

    def mul(self, a: Element, b: Element) -> Element:
        product = [0] * 5
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                product[i + j] += x * y
        for k in (4, 3):  # X^k = X^(k - 2) + c X^(k - 3)
            product[k - 2] += product[k]
            product[k - 3] += self.c * product[k]
        return product[0] % self.p, product[1] % self.p, product[2] % self.p

    def power(self, a: Element, exponent: int) -> Element:
        out = ONE
        while exponent:
            if exponent & 1:
                out = self.mul(out, a)
            a, exponent = self.mul(a, a), exponent >> 1
        return out

    def inverse(self, a: Element) -> Element:
        return self.power(a, self.p**3 - 2)

    def sum(self, elements: Sequence[Element]) -> Element:
        return reduce(self.add, elements, ZERO)

    def inner(self, a: Sequence[Element], b: Sequence[Element]) -> Element:
        return self.sum([self.mul(x, y) for x, y in zip(a, b, strict=True)])

    # --- polynomials over K ---------------------------------------------------------------------------------

    def times(self, f: Sequence[Element], g: Sequence[Element]) -> list[Element]:
        out = [ZERO] * (len(f) + len(g) - 1)
        for i, x in enumerate(f):
            for j, y in enumerate(g):
                out[i + j] = self.add(out[i + j], self.mul(x, y))
        return out

    def evaluate(self, f: Sequence[Element], x: Element) -> Element:
        return reduce(lambda total, coefficient: self.add(self.mul(total, x), coefficient), reversed(f), ZERO)

    def interpolate(self, points: Sequence[int], values: Sequence[Element]) -> list[Element]:
        """The coefficients of the polynomial of degree below the number of points, in GF(p), with these values."""
        out = [ZERO] * len(points)
        for i, (x, value) in enumerate(zip(points, values, strict=True)):
            basis, denominator = [ONE], 1
            for j, other in enumerate(points):
                if j != i:
                    basis = self.times(basis, [(-other % self.p, 0, 0), ONE])
                    denominator = denominator * (x - other) % self.p
            factor = self.mul(value, (pow(denominator, -1, self.p), 0, 0))
            out = [
                self.add(total, self.mul(factor, coefficient)) for total, coefficient in zip(out, basis, strict=True)
            ]
        return out

    # --- the proof ------------------------------------------------------------------------------------------

    def rows(self, vector: Sequence[Element], masks: Sequence[Element], width: int) -> list[list[Element]]:
        """The coefficients of the polynomials through a mask at 0 and each row of the vector at 1, ..., width."""
        padded = [*vector, *[ZERO] * (-len(vector) % width)]
        lines = [padded[start : start + width] for start in range(0, len(padded), width)]
        nodes = range(width + 1)
        return [self.interpolate(nodes, [mask, *line]) for mask, line in zip(masks, lines, strict=True)]

    def proof(
        self,
        a: Sequence[Element],
        b: Sequence[Element],
        masks: Sequence[Element],
        claim_mask: Element,
        width: int,
    ) -> list[Element]:
        """The coefficients of P = sum_i f_i g_i - l."""
        count = -(-len(a) // width)
        pairs = zip(self.rows(a, masks[:count], width), self.rows(b, masks[count : 2 * count], width), strict=True)
        products = [self.times(f, g) for f, g in pairs]
        line = self.interpolate(range(width + 1), [claim_mask, self.inner(a, b), *[ZERO] * (width - 1)])
        out = [self.sum(coefficients) for coefficients in zip(*products, strict=True)]
        return [self.sub(x, line[k] if k < len(line) else ZERO) for k, x in enumerate(out)]


def roots(p: int, c: int) -> int:
    """How many roots X^3 - X - c has modulo p: the degree of its greatest common divisor with X^p - X."""
    cubic = Cubic(p, c)
    x = cubic.power((0, 1, 0), p)
    first, second = [-c % p, p - 1, 0, 1], list(cubic.sub(x, (0, 1, 0)))
    while any(second):
        while not second[-1]:
            second.pop()
        while len(first) >= len(second):
            factor = first[-1] * pow(second[-1], -1, p) % p
            for i, coefficient in enumerate(second):
                place = len(first) - len(second) + i
                first[place] = (first[place] - factor * coefficient) % p
            first.pop()
        first, second = second, first or [0]
    return len(first) - 1
