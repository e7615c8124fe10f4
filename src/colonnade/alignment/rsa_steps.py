"""The steps of Blind-RSA alignment. The matcher is the client of the paper's protocol, every other party a signer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from colonnade.alignment import blind_rsa as rsa
from colonnade.alignment.listing import collect_places, listed_keys, only, terms
from colonnade.alignment.protocol import disclosure, relayed
from colonnade.alignment.routes import Route, Routes, routes
from colonnade.errors import BadArguments
from colonnade.federation.facts import PublicFacts
from colonnade.federation.job import Job
from colonnade.federation.party import Party
from colonnade.federation.plan import Phase, phase
from colonnade.federation.roster import Roster
from colonnade.federation.step import Public, Release, step
from colonnade.privacy.cost import Cost, Free


def rsa_phases(arguments: Mapping[str, Any], chosen: Routes, facts: PublicFacts, roster: Roster) -> list[Phase]:
    """Offer keys, blind, sign, unblind. Tags of two signers cannot be compared, so a union has two parties."""
    check_star(chosen)
    signers = [party for party in chosen.parties if party != chosen.matcher]
    here: dict[str, Any] = {"facts": facts, "roster": roster}
    list_bytes = rsa.BITS // 8 * max(arguments["capacity"].values())
    return [
        phase("offer", offer_key, {party: [arguments] for party in signers}, discloses="sealed RSA moduli", **here),
        phase(
            "blind",
            blind_keys,
            {chosen.matcher: [arguments]},
            discloses="sealed lists of blinded keys",
            audience="the other parties",
            reply_bytes=list_bytes * len(signers),
            **here,
        ),
        phase(
            "sign",
            sign_blinded,
            {party: [arguments] for party in signers},
            discloses="sealed signatures, and tags of this party's keys",
            audience=chosen.matcher,
            reply_bytes=list_bytes,
            **here,
        ),
        phase("unblind", unblind_signed, {chosen.matcher: [arguments]}, discloses="nothing", **here),
    ]


def exchange_signatures(job: Job, arguments: Mapping[str, Any]) -> None:
    """The coordinator's part: the four rounds in their order."""
    for one in (offer_key, blind_keys, sign_blinded, unblind_signed):
        job.ask(one, **arguments)


def check_star(chosen: Routes) -> None:
    if chosen.rounds > 1 or chosen.matcher not in chosen.parties:
        raise BadArguments(
            "Blind-RSA compares one party's records with each other's: align a union of more than two parties, or with"
            " a matcher without data, by protocol='ecdh'."
        )


def _pair(chosen: Routes, signer: str) -> tuple[Route, Route]:
    """The routes of the matcher's list through a signer, and of the signer's list."""
    own = next(route for route in chosen.of(chosen.matcher) if route.hops == (signer,))
    return own, chosen.of(signer)[0]


@step(cost=lambda public, **_: Free("a modulus made for this job"))
def offer_key(me: Party, *, include: str, matcher: str, capacity: dict[str, int], normalise: list[str]) -> Release:
    """A signer makes a key for this job."""
    check_star(routes(me.roster, include=include, matcher=matcher))
    signer = rsa.Signer.generate()
    me.keep("signer", signer.to_list())
    tag = terms(include, matcher, capacity, normalise)
    me.send(matcher, f"modulus {tag}", signer.modulus.to_bytes(rsa.width(signer.modulus), "big"))
    return Release(None, "sealed: an RSA modulus made for this job")


def _blinding_cost(public: Public, *, include: str, matcher: str, **rest: Any) -> Cost:
    return disclosure(public, include=include, matcher=matcher, **rest)


@step(cost=_blinding_cost)
def blind_keys(me: Party, *, include: str, matcher: str, capacity: dict[str, int], normalise: list[str]) -> Release:
    """The matcher blinds its keys for each signer; dummies are random numbers."""
    chosen = routes(me.roster, include=include, matcher=matcher)
    forms, places = listed_keys(me, chosen, size=capacity[me.name], normalise=normalise)
    tag = terms(include, matcher, capacity, normalise)
    for signer, raw in me.received(f"modulus {tag}").items():
        modulus = rsa.check_modulus(raw)
        sent = [rsa.draw_unit(modulus, me.randomness) for _ in range(capacity[me.name])]
        blinded, factors = rsa.blind(forms, modulus, domain=me.job, randomness=me.randomness)
        for at, number in zip(places.tolist(), blinded, strict=True):
            sent[at] = number
        me.keep(f"factors for {signer}", [raw, rsa.to_rows(factors, modulus), rsa.to_rows(blinded, modulus)])
        me.send(signer, f"blinded {tag}", rsa.to_rows(sent, modulus))
    return Release(None, "sealed: this party's keys, blinded, among dummies")


@step(cost=_blinding_cost)
def sign_blinded(me: Party, *, include: str, matcher: str, capacity: dict[str, int], normalise: list[str]) -> Release:
    """A signer signs the matcher's list and sends the tags of its own keys, among dummies, in a random order."""
    chosen = routes(me.roster, include=include, matcher=matcher)
    signer = rsa.Signer.from_list(me.recall("signer"))
    tag = terms(include, matcher, capacity, normalise)
    blinded = rsa.from_rows(only(me, f"blinded {tag}", matcher), signer.modulus, count=capacity[matcher])
    forms, places = listed_keys(me, chosen, size=capacity[me.name], normalise=normalise)
    tags = np.frombuffer(me.randomness.bytes(rsa.TAG_BYTES * capacity[me.name]), dtype=np.uint8).copy()
    tags = tags.reshape(-1, rsa.TAG_BYTES)
    tags[places] = np.frombuffer(b"".join(rsa.own_tags(forms, signer, domain=me.job)), dtype=np.uint8).reshape(
        -1, rsa.TAG_BYTES
    )
    me.send(matcher, f"signed {tag}", rsa.to_rows([signer.sign(number) for number in blinded], signer.modulus))
    me.send(matcher, f"tags {_pair(chosen, me.name)[1].number} {tag}", tags)
    return Release(None, "sealed: blind signatures, and tags of this party's keys")


@step(cost=relayed)
def unblind_signed(me: Party, *, include: str, matcher: str, capacity: dict[str, int], normalise: list[str]) -> Release:
    """The matcher unblinds its own tags and puts them where `number` looks for them."""
    chosen = routes(me.roster, include=include, matcher=matcher)
    collect_places(me)
    tag = terms(include, matcher, capacity, normalise)
    places = me.recall("places")
    for signer, rows in me.received(f"signed {tag}").items():
        raw, factor_rows, blinded_rows = me.recall(f"factors for {signer}")
        modulus = rsa.check_modulus(raw)
        signed = rsa.from_rows(rows, modulus, count=capacity[me.name])
        factors, blinded = (rsa.from_rows(one, modulus, count=len(places)) for one in (factor_rows, blinded_rows))
        mine = rsa.unblind([signed[at] for at in places.tolist()], blinded, factors, modulus, domain=me.job)
        tags = np.zeros((capacity[me.name], rsa.TAG_BYTES), dtype=np.uint8)
        tags[places] = np.frombuffer(b"".join(mine), dtype=np.uint8).reshape(-1, rsa.TAG_BYTES)
        own, other = _pair(chosen, signer)
        # `number` takes tags from the last hop of each route: the signer for the matcher's list, the matcher for its.
        me.keep(f"tags {own.number} {tag}", tags)
        me.keep(f"tags {other.number} {tag}", only(me, f"tags {other.number} {tag}", signer))
    return Release(None, "nothing: the tags stay here")
