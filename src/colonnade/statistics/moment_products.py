"""A holder's share of all Gram matrices: products of its shares, summed over the records of each pattern.

Shares come in chunks of the cohort, kept at the holder until the opening; one chunk is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import UnsafeRequest
from colonnade.federation.party import Party
from colonnade.secure.bgw import Product, cross, gram
from colonnade.secure.field import Residues
from colonnade.secure.seeded import Shape, Share
from colonnade.statistics.dealing import messages, shares_of
from colonnade.statistics.moment_layout import Layout, Tile


def masks_of(me: Party, known: Layout, *, keep: bool) -> NDArray[np.uint8] | None:
    """Which party has which record (party, record), where that is known; eight records in a byte."""
    if known.presence != "known":
        return None
    packed = messages(me, f"{known.tag}: mask", known.parties, keep=keep)
    bits = np.array([np.asarray(packed[party], dtype=np.uint8) for party in known.parties])
    if bits.shape != (len(known.parties), -(-known.facts.n // 8)):
        raise UnsafeRequest("a member sent a mask of another length than the layout says; nothing is opened.")
    return bits


def products_of(me: Party, known: Layout, number: int, *, keep: bool) -> dict[Tile, Product]:
    """This holder's share of every tile of one opening, summed over chunks and blocks of records."""
    products = {tile: known.zero(tile) for tile in known.rounds[number]}
    masks, layers = masks_of(me, known, keep=keep), len(known.field.primes)
    for chunk, (start, stop) in enumerate(known.chunks):
        rows = messages(me, known.rows_tag(chunk), known.parties, layers=layers, keep=keep)
        shapes: dict[str, tuple[int, ...]] = {party: (stop - start, known.width(party)) for party in known.parties}
        shares = shares_of(me, rows, known.field, shapes)
        for block in range(Shape((stop - start,)).blocks):
            _add_block(known, products, shares, block, None if masks is None else masks[:, start // 8 :])
    return products


def _add_block(
    known: Layout,
    products: dict[Tile, Product],
    shares: Mapping[str, Share],
    block: int,
    masks: NDArray[np.uint8] | None,
) -> None:
    """Add one block of records to every tile; `masks` begin with the records of the shares."""
    columns = _columns(known, shares, block)
    rows = next(iter(shares.values())).shape.rows(block)
    present = None
    if masks is not None:
        bits = np.unpackbits(masks[:, rows.start // 8 : -(-rows.stop // 8)], axis=1, count=rows.stop - rows.start)
        present = bits.astype(bool)
    for pattern, mask in enumerate(known.masks):
        tiles = [tile for tile in products if tile.pattern == pattern]
        if not tiles:
            continue
        here = columns
        if present is not None:
            match = _matches(present, known.candidates if known.pooled else [mask])
            if not match.any():
                continue
            here = columns[:, match][:, :, known.shown(mask)]
        for tile in tiles:
            products[tile] += _tile_product(known, here, tile)


def _matches(masks: NDArray[np.bool_], wanted: Sequence[tuple[bool, ...]]) -> NDArray[np.bool_]:
    """Which records have one of these patterns."""
    match = np.zeros(masks.shape[1], dtype=bool)
    for mask in wanted:
        match |= np.all(masks == np.array(mask)[:, None], axis=0)
    return match


def _tile_product(known: Layout, columns: Residues, tile: Tile) -> Product:
    left = columns[:, :, slice(*tile.rows)]
    if tile.diagonal:
        return gram(known.field, left)
    return cross(known.field, left, columns[:, :, slice(*tile.columns)])


def _columns(known: Layout, shares: Mapping[str, Share], block: int) -> Residues:
    """The holder's shares of one block of records: the constant (public, so its own share) and all parties' columns."""
    parts = [shares[party].block(block) for party in known.parties]
    if known.constant and known.presence != "secret":
        one = known.field.encode(np.array([[known.gamma]]))
        parts.insert(0, np.broadcast_to(one, (len(one), parts[0].shape[1], 1)))
    return np.concatenate(parts, axis=2)
