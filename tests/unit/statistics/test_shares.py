"""Noise in parts: what is opened of it is one fresh sharing of degree 2t, and t holders cannot tell how it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from colonnade.privacy.randomness import Randomness, SimulatedRandomness
from colonnade.secure.field import Field, Residues
from colonnade.secure.openings import consistent
from colonnade.secure.shamir import interpolate
from colonnade.statistics.shares import blinds_of, deal_noise, joined_noise, unblinded

FIELD = Field((2097143,))
ENTRIES = 4000


@dataclass
class Member:
    """As much of a party as dealing needs."""

    name: str
    roster: Any
    randomness: Randomness = field(default_factory=lambda: SimulatedRandomness(7))
    sent: dict[tuple[str, str], Residues] = field(default_factory=dict)

    def send(self, holder: str, tag: str, shares: Residues) -> None:
        self.sent[holder, tag] = shares


def dealt_in_parts(threshold: int, holders: int) -> tuple[list[Member], list[Residues], list[list[Residues]]]:
    names = tuple(f"holder{number}" for number in range(holders))
    roster = SimpleNamespace(committee=names, threshold=threshold)
    dealer = Member("dealer", roster)
    deal_noise(dealer, "noise", FIELD, np.arange(ENTRIES) - 1000, parts=True)  # type: ignore[arg-type]
    members = [Member(name, roster) for name in names]
    noise = [dealer.sent[name, "noise"] for name in names]
    blinds = [[dealer.sent[name, tag] for tag in blinds_of(roster, "noise")] for name in names]
    return members, noise, blinds


@pytest.mark.parametrize(("threshold", "holders"), [(1, 3), (1, 4), (2, 5), (2, 6)])
def test_the_parts_make_a_sharing_of_the_noise(threshold: int, holders: int) -> None:
    members, noise, blinds = dealt_in_parts(threshold, holders)
    joined = {
        place: joined_noise(member, FIELD, noise[place], blinds[place])  # type: ignore[arg-type]
        for place, member in enumerate(members)
    }
    assert np.array_equal(FIELD.decode(interpolate(FIELD, joined, degree=2 * threshold)), np.arange(ENTRIES) - 1000)
    assert consistent(FIELD, joined, degree=2 * threshold)
    if holders > 2 * threshold:
        assert not consistent(FIELD, dict(list(joined.items())[: 2 * threshold + 1]), degree=2 * threshold - 1)
    # What others check of holder j: of degree t, with its share of the noise at j.
    for prover in range(1, holders + 1):
        checked = {}
        for place, member in enumerate(members):
            checked[place] = noise[place]
            for degree, blind in enumerate(blinds[place], start=1):
                part = unblinded(member, FIELD, blind)  # type: ignore[arg-type]
                checked[place] = FIELD.add(checked[place], FIELD.scale(part, prover**degree))
        assert consistent(FIELD, checked, degree=threshold)
        assert np.array_equal(interpolate(FIELD, checked, degree=threshold, point=prover), joined[prover - 1])


def test_a_holder_cannot_tell_the_leading_coefficient() -> None:
    """With t = 1 the noise is n + c1 x + c2 x^2. A holder at j knows h(j) and k(j), so, with the noise, all of it but a
    uniform multiple of x (x - j). If k were 0 at 0, c2 would be k(j) / j."""
    members, noise, blinds = dealt_in_parts(1, 3)
    p = FIELD.primes[0]
    joined = [
        joined_noise(member, FIELD, noise[place], blinds[place])[0].astype(np.int64)  # type: ignore[arg-type]
        for place, member in enumerate(members)
    ]
    half = pow(2, -1, p)
    leading = (joined[0] - 2 * joined[1] + joined[2]) * half % p  # second difference over 2
    for place, member in enumerate(members):
        known = unblinded(member, FIELD, blinds[place][0])[0].astype(np.int64)  # type: ignore[arg-type]
        guessed = known * pow(place + 1, -1, p) % p
        assert np.mean(guessed == leading) < 0.01
        # uniform, whatever the holder subtracts: 16 cells, level 1e-6
        cells = np.bincount((leading - guessed) % p * 16 // p, minlength=16)
        assert ((cells - ENTRIES / 16) ** 2 / (ENTRIES / 16)).sum() < chi2.isf(1e-6, 15)
