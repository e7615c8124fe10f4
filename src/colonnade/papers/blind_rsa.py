"""Blind-RSA alignment: the protocol that the FedPSG paper names (De Cristofaro and Tsudik, 2010), for two roles.

The *signer* P makes an RSA key (N, e, d) for this job. With H a hash onto the numbers modulo N:

    matcher -> signer   H(x) r^e        for each of its keys x, r uniform and invertible: uniform to the signer
    signer -> matcher   H(x) r^(ed) ... = H(x)^d r, and in a random order H'(H(y)^d) for each of its own keys y
    matcher             divides by r and compares H'(H(x)^d) with the signer's tags

A tag cannot be computed without d, so the matcher cannot try keys offline; it can sign no further key once the job is
over (one-more-RSA assumption). It costs the signer an RSA signature for each of both sides' keys: some hundred times
the time of the elliptic curve (`alignment.align`), whose lists, numbering and claim it shares. It is here for
comparison with the paper.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric import rsa
from numpy.typing import NDArray

from colonnade.alignment.align import RELAYED, Aligning, AlignmentMethod, disclosure
from colonnade.alignment.lists import Route, Routes, Terms, collect_places, listed_keys, only
from colonnade.errors import BadArguments, SecureError
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.method import method_class
from colonnade.federation.party import Party
from colonnade.federation.roster import Roster
from colonnade.federation.stage import Stage, stage
from colonnade.federation.step import Release, step
from colonnade.privacy.cost import Free
from colonnade.privacy.randomness import Randomness

BITS = 3072
"""About the strength of P-256 (NIST SP 800-57)."""
EXPONENT = 65537
TAG_BYTES = 32

Numbers = NDArray[np.uint8]
"""Rows of bytes, each a big-endian number below the modulus."""


# --- the method ---------------------------------------------------------------------------------------------------


@method_class
class BlindRSA(AlignmentMethod):
    """Line two parties' records up by blind signatures, or one party's records with each other's.

    Returns
    -------
    `fit(federation)` gives an `Aligned`, as `Align` does.

    Example
    -------
    >>> from colonnade.papers import BlindRSA
    >>> BlindRSA.as_printed(capacity={"a": 900, "b": 500}).epsilon is None
    True
    """

    name: ClassVar[str] = "blind-rsa"

    @classmethod
    def as_printed(cls, **changes: Any) -> Self:
        """As the FedPSG paper has it: two parties align by their IDs as they are, and nothing is counted with noise.

        It says no more than that: it is silent about who is the matcher, the length of keys (3072 bits here), the hash
        (SHAKE-256), and about hiding how many records a party has. State each party's number of records as its capacity
        to hide nothing, as the protocol that it cites does.
        """
        return cls(**{"normalise": (), "epsilon": None, **changes})

    def procedure(self, facts: PublicFacts, roster: Roster) -> Signing:
        return Signing(self, facts, roster)


# --- the coordinator's procedure ----------------------------------------------------------------------------------


class Signing(Aligning):
    """Offer keys, blind, sign, unblind. Tags of two signers cannot be compared, so a union has two parties."""

    def exchange_stages(self) -> tuple[Stage, ...]:
        check_star(self.routes)
        matcher = self.routes.matcher
        signers = {party: [self.arguments] for party in self.routes.parties if party != matcher}
        own = {matcher: [self.arguments]}
        list_bytes = BITS // 8 * max(self.method.capacity.values())
        public: dict[str, Any] = {"facts": self.facts, "roster": self.roster}
        return (
            stage("offer", offer_key, signers, discloses="sealed RSA moduli", recipients=own, **public),
            stage(
                "blind",
                blind_keys,
                own,
                discloses="sealed lists of blinded keys",
                audience="the other parties",
                recipients=signers,
                reply_bytes=list_bytes * len(signers),
                **public,
            ),
            stage(
                "sign",
                sign_blinded,
                signers,
                discloses="sealed signatures, and tags of this party's keys",
                audience=matcher,
                recipients=own,
                reply_bytes=list_bytes,
                **public,
            ),
            stage("unblind", unblind_signed, own, discloses="nothing", **public),
        )

    def run_exchange(self, job: Job) -> None:
        for exchanged in self.exchange:
            job.ask(exchanged)


def check_star(chosen: Routes) -> None:
    if chosen.rounds > 1 or chosen.matcher not in chosen.parties:
        raise BadArguments(
            "Blind-RSA compares one party's records with each other's: align a union of more than two parties, or with"
            " a matcher without data, with Align."
        )


# --- the parties' steps: the matcher is the client of the paper's protocol, every other party a signer ----------------


def _pair(chosen: Routes, signer: str) -> tuple[Route, Route]:
    """The routes of the matcher's list through a signer, and of the signer's list."""
    own = next(route for route in chosen.of(chosen.matcher) if route.hops == (signer,))
    return own, chosen.of(signer)[0]


@step(cost=Free("a modulus made for this job"))
def offer_key(me: Party, *, terms: Terms) -> Release:
    """A signer makes a key for this job."""
    check_star(terms.routes(me.roster))
    signer = Signer.generate()
    me.keep("signer", signer.to_list())
    me.send(terms.matcher, f"modulus {terms.digest}", signer.modulus.to_bytes(width(signer.modulus), "big"))
    return Release(None, "sealed: an RSA modulus made for this job")


@step(cost=disclosure)
def blind_keys(me: Party, *, terms: Terms) -> Release:
    """The matcher blinds its keys for each signer; dummies are random numbers."""
    chosen = terms.routes(me.roster)
    forms, places = listed_keys(me, terms, tell=chosen.tell)
    for signer, raw in me.received(f"modulus {terms.digest}").items():
        modulus = check_modulus(raw)
        sent = [draw_unit(modulus, me.randomness) for _ in range(terms.capacity[me.name])]
        blinded, factors = blind(forms, modulus, domain=me.job, randomness=me.randomness)
        for place, number in zip(places.tolist(), blinded, strict=True):
            sent[place] = number
        me.keep(f"factors for {signer}", [raw, to_rows(factors, modulus), to_rows(blinded, modulus)])
        me.send(signer, f"blinded {terms.digest}", to_rows(sent, modulus))
    return Release(None, "sealed: this party's keys, blinded, among dummies")


@step(cost=disclosure)
def sign_blinded(me: Party, *, terms: Terms) -> Release:
    """A signer signs the matcher's list and sends the tags of its own keys, among dummies, in a random order."""
    chosen = terms.routes(me.roster)
    signer = Signer.from_list(me.recall("signer"))
    blinded = from_rows(
        only(me, f"blinded {terms.digest}", terms.matcher), signer.modulus, count=terms.capacity[terms.matcher]
    )
    forms, places = listed_keys(me, terms, tell=chosen.tell)
    tags = np.frombuffer(me.randomness.bytes(TAG_BYTES * terms.capacity[me.name]), dtype=np.uint8).copy()
    tags = tags.reshape(-1, TAG_BYTES)
    tags[places] = np.frombuffer(b"".join(own_tags(forms, signer, domain=me.job)), dtype=np.uint8).reshape(
        -1, TAG_BYTES
    )
    me.send(
        terms.matcher, f"signed {terms.digest}", to_rows([signer.sign(number) for number in blinded], signer.modulus)
    )
    me.send(terms.matcher, f"tags {_pair(chosen, me.name)[1].number} {terms.digest}", tags)
    return Release(None, "sealed: blind signatures, and tags of this party's keys")


@step(cost=RELAYED)
def unblind_signed(me: Party, *, terms: Terms) -> Release:
    """The matcher unblinds its own tags and puts them where `number` looks for them."""
    chosen = terms.routes(me.roster)
    collect_places(me)
    places = me.recall("places")
    for signer, rows in me.received(f"signed {terms.digest}").items():
        raw, factor_rows, blinded_rows = me.recall(f"factors for {signer}")
        modulus = check_modulus(raw)
        signed = from_rows(rows, modulus, count=terms.capacity[me.name])
        factors, blinded = (from_rows(part, modulus, count=len(places)) for part in (factor_rows, blinded_rows))
        unblinded = unblind([signed[place] for place in places.tolist()], blinded, factors, modulus, domain=me.job)
        tags = np.zeros((terms.capacity[me.name], TAG_BYTES), dtype=np.uint8)
        tags[places] = np.frombuffer(b"".join(unblinded), dtype=np.uint8).reshape(-1, TAG_BYTES)
        own, other = _pair(chosen, signer)
        # `number` takes tags from the last hop of each route: the signer for the matcher's list, the matcher for its.
        me.keep(f"tags {own.number} {terms.digest}", tags)
        me.keep(f"tags {other.number} {terms.digest}", only(me, f"tags {other.number} {terms.digest}", signer))
    return Release(None, "nothing: the tags stay here")


# --- the arithmetic -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signer:
    """An RSA private key, with what the Chinese remainder theorem needs."""

    p: int
    q: int

    @classmethod
    def generate(cls, bits: int = BITS) -> Signer:
        numbers = rsa.generate_private_key(public_exponent=EXPONENT, key_size=bits).private_numbers()
        return cls(numbers.p, numbers.q)

    @property
    def modulus(self) -> int:
        return self.p * self.q

    def sign(self, number: int) -> int:
        """number^d modulo p q: a power modulo each prime, joined by Garner's formula."""
        d_p, d_q, inverse = self._exponents
        mod_p, mod_q = pow(number, d_p, self.p), pow(number, d_q, self.q)
        return mod_q + self.q * ((mod_p - mod_q) * inverse % self.p)

    @cached_property
    def _exponents(self) -> tuple[int, int, int]:
        return pow(EXPONENT, -1, self.p - 1), pow(EXPONENT, -1, self.q - 1), pow(self.q, -1, self.p)

    def to_list(self) -> list[bytes]:
        return [
            self.p.to_bytes(-(-self.p.bit_length() // 8), "big"),
            self.q.to_bytes(-(-self.q.bit_length() // 8), "big"),
        ]

    @classmethod
    def from_list(cls, primes: Sequence[bytes]) -> Signer:
        return cls(*(int.from_bytes(prime, "big") for prime in primes))


def check_modulus(raw: object, *, least_bits: int = BITS) -> int:
    """A signer's modulus as it arrived."""
    modulus = int.from_bytes(raw, "big") if isinstance(raw, bytes) else 0
    if modulus % 2 == 0 or modulus.bit_length() < least_bits:
        raise SecureError(f"an RSA modulus must be odd and have {least_bits} bits; align with the same version.")
    return modulus


def full_domain_hash(key: bytes, modulus: int, *, domain: str) -> int:
    """Uniform modulo N up to 2^-128: SHAKE-256 with 128 bits more than N has."""
    wide = hashlib.shake_256(_bound(domain, b"number", key)).digest((modulus.bit_length() + 7) // 8 + 16)
    return int.from_bytes(wide, "big") % modulus


def tag(signature: int, modulus: int, *, domain: str) -> bytes:
    return hashlib.sha256(_bound(domain, b"tag", signature.to_bytes(width(modulus), "big"))).digest()


def _bound(domain: str, kind: bytes, rest: bytes) -> bytes:
    return hashlib.sha256(b"colonnade blind rsa v1" + domain.encode()).digest() + kind + b":" + rest


def width(modulus: int) -> int:
    return (modulus.bit_length() + 7) // 8


def blind(keys: Sequence[bytes], modulus: int, *, domain: str, randomness: Randomness) -> tuple[list[int], list[int]]:
    """H(x) r^e and r for each key."""
    factors = [draw_unit(modulus, randomness) for _ in keys]
    blinded = [
        full_domain_hash(key, modulus, domain=domain) * pow(factor, EXPONENT, modulus) % modulus
        for key, factor in zip(keys, factors, strict=True)
    ]
    return blinded, factors


def draw_unit(modulus: int, randomness: Randomness) -> int:
    """Uniform among the invertible numbers modulo N, by rejection."""
    size = width(modulus)
    excess = 8 * size - modulus.bit_length()
    while True:
        drawn = int.from_bytes(randomness.bytes(size), "big") >> excess
        if 0 < drawn < modulus and math.gcd(drawn, modulus) == 1:
            return drawn


def unblind(
    signed: Sequence[int], blinded: Sequence[int], factors: Sequence[int], modulus: int, *, domain: str
) -> list[bytes]:
    """The tags of one's own keys. A signature that does not verify is refused."""
    if any(pow(signature, EXPONENT, modulus) != sent for signature, sent in zip(signed, blinded, strict=True)):
        raise SecureError("a blind signature does not verify; align with the same version at every party.")
    return [
        tag(signature * pow(factor, -1, modulus) % modulus, modulus, domain=domain)
        for signature, factor in zip(signed, factors, strict=True)
    ]


def own_tags(keys: Sequence[bytes], signer: Signer, *, domain: str) -> list[bytes]:
    """The signer's tags of its own keys."""
    modulus = signer.modulus
    return [tag(signer.sign(full_domain_hash(key, modulus, domain=domain)), modulus, domain=domain) for key in keys]


def to_rows(numbers: Sequence[int], modulus: int) -> Numbers:
    size = width(modulus)
    raw = b"".join(number.to_bytes(size, "big") for number in numbers)
    return np.frombuffer(raw, dtype=np.uint8).reshape(len(numbers), size)


def from_rows(rows: object, modulus: int, *, count: int) -> list[int]:
    """Numbers as they arrived, each below the modulus."""
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape != (count, width(modulus)):
        raise SecureError("a list of numbers has another form than agreed; align with the same version.")
    numbers = [int.from_bytes(row.tobytes(), "big") for row in rows]
    if any(number >= modulus for number in numbers):
        raise SecureError("a number is not below its modulus; align with the same version at every party.")
    return numbers
