"""Inner products of two institutions' integer columns under lattice encryption (BFV), with no third member.

One member encrypts its columns, the other multiplies with its own in the clear; both end with additive shares of
A'B modulo 2^bits. A ciphertext holds r rows of c columns, r c = N: the value of row i and column j is the coefficient
of x^(ic + j). The other's column is sum_i b_i x^(-ic), so that coefficient j of the product is sum_i a_ij b_i: no
rotations, and no keys for them. As a polynomial in y = x^c the column has degree r, and c_1 is c such polynomials.

Keys, encryption, decryption, encryptions of zero and the change of modulus are Microsoft SEAL's, through
`tenseal.sealapi`. What is ours is public arithmetic (number-theoretic transforms and exact matrix products modulo the
primes of q), and the mask and the flooding noise that the multiplier adds. `bfv.claim.md` has the proof, and says what
a member learns that breaks the protocol.
"""

from __future__ import annotations

import functools
import math
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numba
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from colonnade.errors import ModulusTooSmall, SecureError
from colonnade.privacy.randomness import Randomness, SimulatedRandomness

DEGREE = 8192
PRIMES = (
    (1125899905351681, 1125899905744897, 1125899906629633, 1125899906826241),
    (8796091957249, 8796092399617, 8796092661761, 8796092792833, 8796092858369),
)
"""The moduli of a product, the smallest that is enough: largest primes of 50 or 43 bits that are 1 modulo 2 N. q is the
product of all but the last, which SEAL keeps for keys. All together have 200 or 215 of the at most 218 bits that the
Homomorphic Encryption Standard (2018) allows at this degree for 128-bit security with ternary secrets. Few large primes
are faster than many small ones."""
MOST_COLUMNS = 2048
"""Of the multiplier: each costs 200 kB of sums for each group of the encrypter's columns."""
MOST_BITS = 59
"""SEAL takes plaintext moduli below 2^60."""
ERROR = 22
"""A fresh symmetric encryption of a is q/t a + e with |e| <= 21 (SEAL's centred binomial) and rounding of 1/2."""
ZERO_ERROR = 1 << 20
"""Bounds the error of an encryption of zero under the public key, 21 (2 N + 1), and the rounding of the mask."""
STATISTICAL_BITS = 44
"""The flooding of one product is within 2^-44 of hiding its error: 2^-40 for a job of up to 16 products."""
_HALF, _DIGIT, _DEPTH = 25, 17, 2048
"""A matrix product in float64 is exact if its terms have 25 + 17 bits and there are at most 2^11 of them."""

_TOGETHER = 64
"""Ciphertexts in memory at a time."""

Limbs = NDArray[np.uint64]
Signed = NDArray[np.int64]
"""Residues below 2^50, for arithmetic: signed integers and floats convert into each other in one instruction."""


# --- the public shape ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Columns `start` to `start + width` of the encrypter, in ciphertexts of `packed` columns, a power of two."""

    start: int
    width: int
    packed: int

    @property
    def rows(self) -> int:
        """Of one ciphertext."""
        return DEGREE // self.packed


@dataclass(frozen=True, kw_only=True)
class CrossProduct:
    """The public shape of A'B modulo 2^bits: `left` columns are encrypted and `right` columns, of size at most `bound`,
    multiply them, over `records` rows."""

    records: int
    left: int
    right: int
    bound: int
    bits: int

    def __post_init__(self) -> None:
        if min(self.records, self.left, self.right, self.bound) < 1 or not 2 <= self.bits <= MOST_BITS:
            raise ModulusTooSmall(
                f"a product needs records, columns and a modulus from 2^2 to 2^{MOST_BITS}, not 2^{self.bits}: take a"
                " smaller gamma, or share holders."
            )
        if self.right > MOST_COLUMNS:
            raise SecureError(
                f"a pair multiplies at most {MOST_COLUMNS} columns of one party, counted for each pattern of presence"
                " and of empty cells; choose fewer columns, or share holders."
            )
        if not self._primes:
            raise ModulusTooSmall(
                f"encrypted sums of {self.bits} bits and {self.flood_bits} bits of flooding do not fit into q: take a"
                " smaller gamma, or share holders."
            )

    @cached_property
    def _primes(self) -> tuple[int, ...]:
        needed = self.flood_bits + self.bits + 2
        return next((primes for primes in PRIMES if _log2(math.prod(primes[:-1])) >= needed), ())

    @property
    def primes(self) -> tuple[int, ...]:
        """Of q."""
        return self._primes[:-1]

    @property
    def special(self) -> int:
        """The prime of the keys."""
        return self._primes[-1]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Columns in powers of two: padded to the next one, or the largest one and then the rest, whichever makes fewer
        ciphertexts. Each group returns `right` of them, of which one costs about two."""

        def packed(start: int) -> tuple[Group, ...]:
            rest = min(self.left - start, DEGREE)
            padded = 1 << (rest - 1).bit_length()
            options = [(Group(start, rest, padded), *(packed(start + rest) if start + rest < self.left else ()))]
            if padded > rest:
                options.append((Group(start, padded // 2, padded // 2), *packed(start + padded // 2)))
            return min(
                options, key=lambda groups: sum(-(-self.records // group.rows) + 2 * self.right for group in groups)
            )

        return packed(0)

    @property
    def error(self) -> int:
        """Bounds every coefficient of the error of a product before it is flooded: |sum e_i b_i| and the rest."""
        return ERROR * self.records * self.bound + ZERO_ERROR

    @cached_property
    def flood_bits(self) -> int:
        """The flooding is uniform over so many bits: its distance from itself moved by the error is at most
        error / 2^bits a coefficient, 2^-44 for all that are returned."""
        returned = sum(group.packed for group in self.groups) * self.right
        return (self.error * returned).bit_length() + STATISTICAL_BITS

    def ciphertexts(self, rows: int) -> int:
        """That hold so many rows of the encrypter."""
        return sum(-(-rows // group.rows) for group in self.groups)

    @property
    def returned_bytes(self) -> int:
        return sum(8 * self.shown * (DEGREE + group.packed) for group in self.groups) * self.right

    @property
    def shown(self) -> int:
        """Primes of the modulus at which a product is returned: what the last one held is noise."""
        return len(self.primes) - 1


def _log2(number: int) -> int:
    return number.bit_length() - 1


CIPHERTEXT_BYTES = 180_000
"""A ciphertext as it travels, with a seed in place of c_1 (177 kB measured)."""
_MOST_BYTES = 8 * 2 * len(PRIMES[-1]) * DEGREE + 1024
"""Of a public key: two polynomials modulo all primes."""


# --- SEAL, and how it writes --------------------------------------------------------------------------------


@functools.cache
def _seal() -> Any:
    try:
        from tenseal import sealapi
    except ImportError as error:
        raise SecureError('committee = "pair" needs tenseal; install colonnade[pair].') from error
    return sealapi


def ready() -> None:
    """Raise, if what encrypts is not installed here. Better asked before a job than in it."""
    _seal()


class _Memory:
    """A file that is never on a disk: sealapi reads and writes by path only."""

    def __init__(self) -> None:
        self._file = os.memfd_create("colonnade")
        self.path = f"/proc/self/fd/{self._file}"

    def write(self, data: bytes) -> str:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, data, 0)
        return self.path

    def saved(self, value: Any) -> bytes:
        os.ftruncate(self._file, 0)
        value.save(self.path)
        return os.pread(self._file, os.fstat(self._file).st_size, 0)

    def __del__(self) -> None:
        os.close(self._file)


_HEADER = struct.Struct("<HBBBBHQ")
_MAGIC = 0xA15E
_BEFORE = 32 + 1 + 5 * 8
"""Of a ciphertext: parms_id, whether in NTT form, size, degree, primes, scale, correction factor."""


class _Context:
    """SEAL with our constants and one plaintext modulus 2^bits."""

    def __init__(self, bits: int, primes: tuple[int, ...]) -> None:
        seal = _seal()
        parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
        parameters.set_poly_modulus_degree(DEGREE)
        parameters.set_coeff_modulus([seal.Modulus(prime) for prime in primes])
        parameters.set_plain_modulus(1 << bits)
        self.seal, self.modulus = seal, 1 << bits
        self.context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
        if not self.context.parameters_set():
            raise SecureError(f"SEAL refuses the parameters: {self.context.parameters_error_message()}.")
        self.evaluator = seal.Evaluator(self.context)
        self.memory = _Memory()
        self.full = list(self.context.first_parms_id())
        self.shown = list(self.context.first_context_data().next_context_data().parms_id())
        written = _HEADER.unpack(self.memory.saved(seal.Plaintext("1"))[: _HEADER.size])
        self._version = written[2:4]

    def _wrapped(self, body: bytes, values: Limbs) -> bytes:
        """As SEAL writes without compression: a header, fields, and an array with a header of its own."""
        data = values.tobytes()
        array = _HEADER.pack(_MAGIC, 16, *self._version, 0, 0, 24 + len(data)) + struct.pack("<Q", values.size) + data
        return _HEADER.pack(_MAGIC, 16, *self._version, 0, 0, 16 + len(body) + len(array)) + body + array

    def plaintext(self, coefficients: Limbs) -> Any:
        plain = self.seal.Plaintext()
        body = bytes(32) + struct.pack("<Qd", coefficients.size, 1.0)
        plain.load(self.context, self.memory.write(self._wrapped(body, coefficients)))
        return plain

    def ciphertext(self, limbs: Limbs, level: Sequence[int]) -> Any:
        """From limbs (2, primes, N), which SEAL checks against its parameters."""
        body = struct.pack("<4Q?QQQdQ", *level, False, 2, DEGREE, limbs.shape[1], 1.0, 1)
        return self.loaded(self.seal.Ciphertext(), self._wrapped(body, limbs), level)

    def loaded(self, value: Any, data: bytes, level: Sequence[int]) -> Any:
        """A stranger's ciphertext or key: of the stated level, in the form that the scheme has."""
        sized = isinstance(data, bytes) and _HEADER.size <= len(data) <= _MOST_BYTES
        if not sized or _HEADER.unpack(data[: _HEADER.size])[-1] != len(data):
            raise SecureError("a ciphertext or key has another size than it states; nothing is computed from it.")
        try:
            value.load(self.context, self.memory.write(data))
        except (ValueError, RuntimeError, TypeError) as error:
            raise SecureError(f"these bytes are not what a pair sends ({error}); install the same version.") from None
        if list(value.parms_id()) != list(level):
            raise SecureError("a ciphertext or key has other parameters than ours; install the same version.")
        return value

    def limbs(self, ciphertext: Any) -> Limbs:
        """(2, primes, N)."""
        if ciphertext.size() != 2 or ciphertext.is_ntt_form():
            raise SecureError("a ciphertext has another form than the protocol's; nothing is computed from it.")
        primes = int(ciphertext.coeff_modulus_size())
        size = _BEFORE + 24 + 8 * 2 * primes * DEGREE
        data = self.memory.saved(ciphertext)
        body = data[_HEADER.size :]
        if data[5]:
            body = pa.decompress(body, decompressed_size=size, codec="zstd", asbytes=True)
        return np.frombuffer(body, dtype=np.uint64, offset=_BEFORE + 24).reshape(2, primes, DEGREE)


def _context(product: CrossProduct) -> _Context:
    """One for each thread: members of an embedded federation work at the same time, and its file is its own."""
    return _own_context(product.bits, (*product.primes, product.special), threading.get_ident())


@functools.lru_cache(maxsize=8)
def _own_context(bits: int, primes: tuple[int, ...], thread: int) -> _Context:
    return _Context(bits, primes)


# --- the member that encrypts -------------------------------------------------------------------------------


class Encrypter:
    """A fresh key for one product, and what it encrypts and decrypts. `to_bytes` holds the secret: it stays here."""

    def __init__(self, product: CrossProduct, secret: bytes | None = None) -> None:
        _self_test()
        self.product, self._context = product, _context(product)
        context = self._context.context
        if secret is None:
            generator = self._context.seal.KeyGenerator(context)
            self._secret = generator.secret_key()
        else:
            level = context.key_parms_id()
            self._secret = self._context.loaded(self._context.seal.SecretKey(), secret, level)
            generator = self._context.seal.KeyGenerator(context, self._secret)
        self._generator = generator
        self._encryptor = self._context.seal.Encryptor(context, self._secret)

    def to_bytes(self) -> bytes:
        return self._context.memory.saved(self._secret)

    def public(self) -> bytes:
        """A public key, under which the multiplier encrypts zeros."""
        key = self._context.seal.PublicKey()
        self._generator.create_public_key(key)
        return self._context.memory.saved(key)

    def encrypt(self, rows: NDArray[np.integer[Any]]) -> list[bytes]:
        """Ciphertexts of some rows, group after group; rows are padded with zeros."""
        ciphertexts = []
        for group in self.product.groups:
            for block in _blocks(rows[:, group.start : group.start + group.width], group.rows):
                packed = np.zeros((group.rows, group.packed), dtype=np.int64)
                packed[: len(block), : group.width] = block
                coefficients = packed.reshape(-1).view(np.uint64) & np.uint64(self._context.modulus - 1)
                encrypted = self._encryptor.encrypt_symmetric(self._context.plaintext(coefficients))
                ciphertexts.append(self._context.memory.saved(encrypted))
        return ciphertexts

    def decrypt(self, returned: Mapping[str, Any]) -> NDArray[np.uint64]:
        """This member's share of A'B, (left, right), from what `Multiplier.finish` returns."""
        product = self.product
        share = np.zeros((product.left, product.right), dtype=np.uint64)
        decryptor, plain = self._context.seal.Decryptor(self._context.context, self._secret), None
        for number, group in enumerate(product.groups):
            parts = [returned.get(f"{part} {number}") for part in ("c0", "c1")]
            shapes = [(product.right, product.shown, group.packed), (product.right, product.shown, DEGREE)]
            for part, shape in zip(parts, shapes, strict=True):
                if not isinstance(part, np.ndarray) or part.dtype != np.uint64 or part.shape != shape:
                    raise SecureError("a product came back in another shape than the layout says; nothing is read.")
            for column, (first, second) in enumerate(zip(*parts, strict=True)):
                limbs = np.zeros((2, product.shown, DEGREE), dtype=np.uint64)
                limbs[0, :, : group.packed], limbs[1] = first, second
                plain = self._context.seal.Plaintext()
                decryptor.decrypt(self._context.ciphertext(limbs, self._context.shown), plain)
                # Coefficients beyond the last that is not 0 are not there.
                read = [plain.data(place) for place in range(min(group.width, plain.coeff_count()))]
                share[group.start : group.start + len(read), column] = read
        return share


def _blocks(rows: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


# --- the member that multiplies -----------------------------------------------------------------------------


class Multiplier:
    """Sums of products of ciphertexts with columns in the clear. `state` is what is kept from chunk to chunk."""

    def __init__(self, product: CrossProduct, state: Mapping[str, Limbs] | None = None) -> None:
        _self_test()
        self.product, self._context = product, _context(product)
        self.state: dict[str, Limbs] = {name: limbs.copy() for name, limbs in (state or {}).items()}
        for number, group in enumerate(product.groups) if state is None else ():
            self.state[f"c0 {number}"] = np.zeros((len(product.primes), group.packed, product.right), dtype=np.uint64)
            shape = (len(product.primes), group.rows, group.packed, product.right)
            self.state[f"c1 {number}"] = np.zeros(shape, dtype=np.uint64)
            """In the transformed domain of y."""

    def add(self, rows: NDArray[np.integer[Any]], ciphertexts: Sequence[Any]) -> None:
        """One chunk: the multiplier's rows, and the other's ciphertexts of the same records."""
        if len(ciphertexts) != self.product.ciphertexts(len(rows)):
            raise SecureError("another number of ciphertexts came than the layout says; nothing is computed.")
        if rows.size and max(int(rows.max()), -int(rows.min())) > self.product.bound:
            raise ModulusTooSmall("a row passes its declared size; nothing is computed.")
        arrived = iter(ciphertexts)
        for number, group in enumerate(self.product.groups):
            blocks = list(_blocks(rows, group.rows))
            for start in range(0, len(blocks), _TOGETHER):
                part = blocks[start : start + _TOGETHER]
                self._add(number, group, part, [next(arrived) for _ in part])

    def _add(self, number: int, group: Group, blocks: Sequence[NDArray[Any]], ciphertexts: Sequence[Any]) -> None:
        product = self.product
        r, c, many, columns = group.rows, group.packed, len(blocks), product.right
        limbs = np.empty((2, len(product.primes), many, r, c), dtype=np.uint64)
        for place, data in enumerate(ciphertexts):
            loaded = self._context.loaded(self._context.seal.Ciphertext(), data, self._context.full)
            limbs[:, :, place] = self._context.limbs(loaded).reshape(2, len(product.primes), r, c)
        own = np.zeros((many, r, columns), dtype=np.int64)
        for place, block in enumerate(blocks):
            own[place, : len(block)] = block
        # sum_i b_i y^(-i) = b_0 - sum_i b_i y^(r - i), because y^r = x^N = -1.
        reversed_rows = np.concatenate([own[:, :1], -own[:, :0:-1]], axis=1).transpose(1, 0, 2)
        inner = [digit.astype(np.float64) for digit in _signed_digits(own.reshape(1, many * r, columns))]
        for layer, prime in enumerate(product.primes):
            tables = _tables(prime, r)
            second = np.ascontiguousarray(limbs[1, layer].transpose(1, 0, 2)).reshape(r, many * c)
            _forward(second.view(np.int64), *tables.forward, prime)
            column = (reversed_rows % prime).reshape(r, many * columns)
            _forward(column, *tables.forward, prime)
            digits = [((column >> _DIGIT * digit) & ((1 << _DIGIT) - 1)).astype(np.float64) for digit in range(3)]
            _add_products(
                self.state[f"c1 {number}"][layer],
                second.reshape(r, many, c),
                [digit.reshape(r, many, columns) for digit in digits],
                prime,
            )
            # Coefficients 0 to c - 1 of c_0 times the column are inner products over i: no transform is needed.
            first = limbs[0, layer].reshape(1, many * r, c)
            for start in range(0, many * r, _DEPTH):
                part = slice(start, start + _DEPTH)
                used = [digit[:, part] for digit in inner]
                _add_products(self.state[f"c0 {number}"][layer][None], first[:, part], used, prime)

    def finish(self, public: Any, randomness: Randomness) -> tuple[dict[str, Limbs], NDArray[np.uint64]]:
        """(What goes to the encrypter, this member's share of A'B): an encryption of zero, a uniform mask and flooding
        are added to every product before its modulus is changed."""
        product, context = self.product, self._context
        key = context.loaded(context.seal.PublicKey(), public, context.context.key_parms_id())
        encryptor = context.seal.Encryptor(context.context, key)
        share = np.zeros((product.left, product.right), dtype=np.uint64)
        returned: dict[str, Limbs] = {}
        for number, group in enumerate(product.groups):
            r, c = group.rows, group.packed
            second = self.state[f"c1 {number}"].copy().reshape(len(product.primes), r, c * product.right)
            for layer, prime in enumerate(product.primes):
                _inverse(second[layer].view(np.int64), *_tables(prime, r).inverse, prime)
            second = second.reshape(len(product.primes), DEGREE, product.right)
            first = self.state[f"c0 {number}"]
            shown = np.empty((product.right, 2, product.shown, DEGREE), dtype=np.uint64)
            for column in range(product.right):
                mask = randomness.words(c) & np.uint64(context.modulus - 1)
                flood = _uniform_residues(randomness, product.flood_bits, c, product.primes)
                zero = encrypted_zero(context, encryptor)
                context.evaluator.add_plain_inplace(zero, context.plaintext(mask))
                limbs = context.limbs(zero).copy()
                limbs[0, :, :c] += first[:, :, column] + np.stack(flood)
                limbs[1] += second[:, :, column]
                limbs %= np.array(product.primes, dtype=np.uint64)[:, None]
                ciphertext = context.ciphertext(limbs, context.full)
                context.evaluator.mod_switch_to_next_inplace(ciphertext)
                shown[column] = context.limbs(ciphertext)
                taken = slice(group.start, group.start + group.width)
                share[taken, column] = -mask[: group.width] & np.uint64(context.modulus - 1)
            returned[f"c0 {number}"] = shown[:, 0, :, :c].copy()
            returned[f"c1 {number}"] = shown[:, 1].copy()
        return returned, share


def encrypted_zero(context: _Context, encryptor: Any) -> Any:
    """Under the other member's public key: without it, c_1 of the product divided by c_1 of what was sent is the
    multiplier's column."""
    zero = context.seal.Ciphertext()
    encryptor.encrypt_zero(zero)
    return zero


def _uniform_residues(randomness: Randomness, bits: int, count: int, primes: Sequence[int]) -> list[Limbs]:
    """Integers that are uniform in [-2^(bits - 1), 2^(bits - 1)), modulo each prime."""
    words = randomness.words(count * -(-bits // 32)) & np.uint64(0xFFFFFFFF)
    words = words.reshape(-1, count)
    words[-1] &= np.uint64((1 << ((bits - 1) % 32 + 1)) - 1)
    residues = []
    for prime in primes:
        total = np.full(count, -(1 << (bits - 1)) % prime, dtype=np.uint64)
        for place, word in enumerate(words):
            _fold(total.view(np.int64), word.astype(np.float64), pow(2, 32 * place, prime), prime)
        residues.append(total)
    return residues


# --- arithmetic modulo primes below 2^50 --------------------------------------------------------------------


def _signed_digits(values: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Digits to the base 2^17, of size at most 2^16, the last one aside: as many as the values need."""
    digits = []
    while True:
        digit = ((values + (1 << (_DIGIT - 1))) & ((1 << _DIGIT) - 1)) - (1 << (_DIGIT - 1))
        digits.append(digit)
        values = (values - digit) >> _DIGIT
        if not values.any():
            return digits


def _add_products(total: Limbs, left: Limbs, digits: Sequence[NDArray[np.float64]], prime: int) -> None:
    """total += left' @ sum_j 2^(17 j) digits_j modulo the prime, for a stack of matrices: exact in float64."""
    for half, bits in enumerate((left & np.uint64((1 << _HALF) - 1), left >> np.uint64(_HALF))):
        factor = bits.astype(np.float64).transpose(0, 2, 1)
        for place, digit in enumerate(digits):
            weight = pow(2, _HALF * half + _DIGIT * place, prime)
            _fold(total.view(np.int64).reshape(-1), np.matmul(factor, digit).reshape(-1), weight, prime)


@numba.njit(cache=True, inline="always")
def _times(a: Any, b: Any, ratio: Any, p: Any) -> Any:
    """a b mod p, for a, b < p < 2^50 and ratio = b / p: the quotient in float64 is off by at most one, and the
    remainder is exact modulo 2^64. Signs are shifted into masks, so that a loop needs no branches."""
    remainder = a * b - np.int64(np.float64(a) * ratio) * p
    remainder += p & (remainder >> 63)
    remainder -= p
    return remainder + (p & (remainder >> 63))


@numba.njit(cache=True, inline="always")
def _plus(a: Any, b: Any, p: Any) -> Any:
    """a + b mod p, for a, b < p."""
    remainder = a + b - p
    return remainder + (p & (remainder >> 63))


@numba.njit(cache=True)
def _fold(total: Any, product: Any, weight: Any, p: Any) -> None:
    """total += weight * product, for whole numbers below 2^53 in float64."""
    ratio, inverse = np.float64(weight) / np.float64(p), 1.0 / np.float64(p)
    for i in range(total.size):
        residue = np.int64(product[i]) - np.int64(product[i] * inverse) * p
        residue += p & (residue >> 63)
        total[i] = _plus(total[i], _times(residue, weight, ratio, p), p)


@numba.njit(cache=True)
def _forward(values: Any, roots: Any, ratios: Any, p: Any) -> None:
    """The negacyclic transform of each column of (r, width), in place, in bit-reversed order (Cooley and Tukey)."""
    r, width = values.shape
    for left in range(0, width, 256):
        right = min(left + 256, width)
        groups, half = 1, r // 2
        while half >= 1:
            for k in range(groups):
                root, ratio = roots[groups + k], ratios[groups + k]
                for row in range(2 * k * half, 2 * k * half + half):
                    upper, lower = values[row], values[row + half]
                    for j in range(left, right):
                        u, v = upper[j], _times(lower[j], root, ratio, p)
                        upper[j] = _plus(u, v, p)
                        lower[j] = _plus(u, p - v, p)
            groups, half = 2 * groups, half // 2


@numba.njit(cache=True)
def _inverse(values: Any, roots: Any, ratios: Any, p: Any) -> None:
    """Its inverse (Gentleman and Sande); the first root is 1 / r."""
    r, width = values.shape
    for left in range(0, width, 256):
        right = min(left + 256, width)
        groups, half = r // 2, 1
        while groups >= 1:
            for k in range(groups):
                root, ratio = roots[groups + k], ratios[groups + k]
                for row in range(2 * k * half, 2 * k * half + half):
                    upper, lower = values[row], values[row + half]
                    for j in range(left, right):
                        u, v = upper[j], lower[j]
                        upper[j] = _plus(u, v, p)
                        lower[j] = _times(_plus(u, p - v, p), root, ratio, p)
            groups, half = groups // 2, 2 * half
        for row in range(r):
            for j in range(left, right):
                values[row, j] = _times(values[row, j], roots[0], ratios[0], p)


@dataclass(frozen=True)
class _Tables:
    """Roots with their quotients by p, in the order in which a transform takes them."""

    forward: tuple[Signed, NDArray[np.float64]]
    inverse: tuple[Signed, NDArray[np.float64]]


@functools.cache
def _tables(prime: int, r: int) -> _Tables:
    """Of size r: powers of psi, a root of -1 of order 2 r, at bit-reversed places."""
    base = next(g for g in range(2, 1000) if pow(g, (prime - 1) // 2, prime) == prime - 1)
    psi, bits = pow(base, (prime - 1) // (2 * r), prime), _log2(r)
    places = [int(format(place, f"0{bits}b")[::-1], 2) if bits else 0 for place in range(r)]
    forward = np.array([pow(psi, place, prime) for place in places], dtype=np.int64)
    inverse = np.array([pow(psi, -place, prime) for place in places], dtype=np.int64)
    inverse[0] = pow(r, -1, prime)
    return _Tables((forward, forward / np.float64(prime)), (inverse, inverse / np.float64(prime)))


# --- at first use -------------------------------------------------------------------------------------------

_TESTED = False


def _self_test() -> None:
    """That SEAL writes and reads as we do, by one small product: its layout is not part of its interface."""
    global _TESTED
    if _TESTED:
        return
    _TESTED = True  # so that the classes below can be made
    try:
        rows = np.arange(-6, 6).reshape(6, 2), np.arange(3, -15, -1).reshape(6, 3)
        product = CrossProduct(records=6, left=2, right=3, bound=20, bits=20)
        encrypter, multiplier = Encrypter(product), Multiplier(product)
        multiplier.add(rows[1], encrypter.encrypt(rows[0]))
        returned, share = multiplier.finish(encrypter.public(), SimulatedRandomness(0))
        total = (encrypter.decrypt(returned) + share) & np.uint64((1 << 20) - 1)
        if not np.array_equal(total, (rows[0].T @ rows[1]).astype(np.int64).view(np.uint64) & np.uint64((1 << 20) - 1)):
            raise SecureError("this build of tenseal computes another product than ours; install the pinned version.")
    except BaseException:
        _TESTED = False
        raise
