"""What the rounds of VFEM show: attacks that factorise all rounds' messages succeed on "plain", not on "masked".

In every round a party's linear predictor is X_k beta_k, with one beta_k a round. All of them together are a matrix of
rank p_k: its column space is the party's block, and its row space, over rounds, the span of its coefficients. So
whoever sees the predictors knows, after p_k rounds, every column of the block up to a linear map, and can test whether
a suspected column is in it. Sums over whoever has a record do not end this: the row spaces of patterns {b, c} and
{b, d} meet in that of b, and with it the sums are split again. "masked" therefore sums fixed groups
(`papers/vfem/block.py`).

The attacker here is the response holder, who sees more than the coordinator: everything that was sealed to it. The
coordinator's view is everything that the transport carried.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Reply, Request
from colonnade.federation.party import Party
from colonnade.papers.vfem.block import chosen_groups, used_blocks
from colonnade.papers.vfem.method import VFEM
from colonnade.papers.vfem.steps import PREDICTOR
from support.vfem_blocks import simulated

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
N = 400
OTHERS = "bcde"
WIDTH = {"b": 2, "c": 1, "d": 2, "e": 1}
DATA = simulated(N, (1, *WIDTH.values()), (1.0, 0.75, 0.75, 0.75, 0.75), seed=2)


class Watched:
    """A transport that notes every byte string it carries."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.carried = inner, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def exchange(self, party: str, data: bytes, *, timeout: float) -> bytes:
        answer: bytes = self.inner.exchange(party, data, timeout=timeout)
        self.carried += [data, answer]
        return answer


class Views:
    """What the response holder and the coordinator saw in one fit, and what the attack is after."""

    def __init__(self, path: Path, masking: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mail: list[dict[str, NDArray[Any]]] = []
        received = Party.received

        def noted(me: Party, tag: str) -> dict[str, Any]:
            got = received(me, tag)
            if me.name == "a" and tag == PREDICTOR:
                self.mail.append(got)
            return got

        monkeypatch.setattr(Party, "received", noted)
        federation: Federation = DATA.federation(path)
        watched = federation.transport = Watched(federation.transport)
        method = VFEM(response="y", masking=masking, init="mean", tolerance=1e-6)  # type: ignore[arg-type]
        self.result = method.fit(federation)
        self.carried = watched.carried
        self.rows = {name: watched.inner[name].rows for name in "abcde"}
        self.present = np.column_stack([watched.inner[name].present for name in OTHERS])
        federation.close()

    @property
    def used(self) -> Mask:
        """(record, other party): whose block is in a sum."""
        groups = chosen_groups(self.present, range(4), list(WIDTH.values()))
        return used_blocks(self.present, groups)

    def messages(self, name: str) -> Array:
        """(entry, round): what came from one party, as numbers."""
        return np.column_stack([_signed(got[name]) for got in self.mail])

    def sums(self, masks: Mask) -> Array:
        """(record, round): all predictors of a record added, as the holder does."""
        total = np.zeros((N, len(self.mail)), dtype=self.mail[0]["b"].dtype)
        for place, name in enumerate(OTHERS):
            total[masks[:, place]] += np.column_stack([got[name][:-3] for got in self.mail])
        return _signed(total)

    def block(self, name: str) -> Array:
        """The party's columns in cohort order, 0 where it has no record."""
        values = np.zeros((N, WIDTH[name]))
        values[self.rows[name]] = DATA.blocks[name].drop(columns="id").to_numpy()
        return values

    def predictor(self, name: str) -> Array:
        """The party's predictor at the end, up to a constant."""
        columns = DATA.blocks[name].columns.drop("id")
        return self.block(name) @ np.asarray(self.result.params[columns])


def _signed(words: NDArray[Any]) -> Array:
    return words.view(np.int64).astype(np.float64) if words.dtype == np.uint64 else np.asarray(words)


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Views]:
    made = {}
    for kind in ("plain", "masked"):
        with pytest.MonkeyPatch.context() as patch:
            made[kind] = Views(tmp_path_factory.mktemp(kind), kind, patch)
    return made


# --- the attacks ------------------------------------------------------------------------------------------


def rank_and_space(messages: Array, tolerance: float = 1e-9) -> tuple[int, Array]:
    """A singular value decomposition of everything that one party ever sent: the space of its columns."""
    centred = messages - messages.mean(axis=0)
    left, values, _ = np.linalg.svd(centred / np.linalg.norm(centred), full_matrices=False)
    rank = int(np.sum(values > tolerance))
    return rank, left[:, :rank]


def explained(column: Array, space: Array) -> float:
    """How much of a suspected column lies in a space; 1 is all of it."""
    centred = column - column.mean()
    return float(np.sum((space.T @ centred) ** 2) / np.sum(centred**2))


def row_space(rows: Array) -> Array:
    _, values, right = np.linalg.svd(rows / np.linalg.norm(rows), full_matrices=False)
    return right[values > 1e-10]


def told_apart(sums: Array, masks: Mask, place: int) -> tuple[int, Array]:
    """Split sums: what all patterns with the party have in common, over rounds, against what those without it span.

    The dimension of the former, and the party's share of the sum in the last round at its records.
    """
    with_it: list[Array] = []
    without: list[Array] = [np.zeros((0, sums.shape[1]))]
    for pattern in np.unique(masks, axis=0):
        rows = sums[(masks == pattern).all(axis=1)]
        if pattern.any() and len(rows) >= 8:
            (with_it if pattern[place] else without).append(row_space(rows))
    common = with_it[0]
    for other in with_it[1:]:
        left, cosines, _ = np.linalg.svd(common @ other.T)
        common = left.T[: len(cosines)][cosines > 1 - 1e-6] @ common
    rest = np.vstack(without)
    rest = row_space(rest) if len(rest) else rest
    basis = np.vstack([common, rest])
    parts = np.linalg.lstsq(basis.T, sums[masks[:, place]].T, rcond=1e-13)[0]
    return len(common), np.asarray((parts[: len(common)].T @ common)[:, -1])


def likeness(one: Array, two: Array) -> float:
    return float(np.corrcoef(one, two)[0, 1] ** 2)


@pytest.mark.parametrize("name", OTHERS)
def test_plain_shows_the_block_of_every_party(views: dict[str, Views], name: str) -> None:
    seen = views["plain"]
    rank, space = rank_and_space(seen.messages(name)[:-3])
    assert rank == WIDTH[name]
    for column in seen.block(name)[seen.present[:, OTHERS.index(name)]].T:
        assert explained(column, space) > 1 - 1e-6


@pytest.mark.parametrize("name", OTHERS)
def test_masked_shows_noise_of_full_rank(views: dict[str, Views], name: str) -> None:
    """With T rounds of independent uniform words a fixed column is explained like a random one: in mean T / m, for m
    entries. A Beta(T/2, (m-T)/2) variable; five standard deviations above its mean have probability below 1e-6. All
    entries are noise, those of mean, variance and likelihood too: none repeats, and their size is that of the words."""
    seen = views["masked"]
    messages = seen.messages(name)
    entries, rounds = messages.shape[0] - 3, messages.shape[1]
    rank, space = rank_and_space(messages[:-3])
    assert rank == rounds
    limit = rounds / entries + 5 * np.sqrt(2 * rounds / entries**2) + 0.02
    assert limit < 0.6
    for column in seen.block(name)[seen.used[:, OTHERS.index(name)]].T:
        assert explained(column, space) < limit
    assert np.abs(messages[-3:]).mean(axis=1).min() > 2.0**60
    assert len(np.unique(messages[-3:])) == 3 * rounds


def test_nothing_is_sent_of_a_record_that_the_group_does_not_share(views: dict[str, Views]) -> None:
    """In particular of no record that one other party has alone: it is not in any message."""
    seen = views["masked"]
    lone = seen.present.sum(axis=1) == 1
    assert lone.any()
    assert not seen.used[lone].any()
    for place, name in enumerate(OTHERS):
        assert {len(got[name]) for got in seen.mail} == {int(seen.used[:, place].sum()) + 3}
        assert seen.present[:, place].sum() > seen.used[:, place].sum()
    assert "left out as if missing" in seen.result.summary().replace("\n", " ").replace("  ", " ")


@pytest.mark.parametrize("name", OTHERS)
def test_sums_over_whoever_has_a_record_would_be_split_again(views: dict[str, Views], name: str) -> None:
    """Why there are groups. These sums hide each predictor in any one round; all rounds together do not."""
    seen, place = views["plain"], OTHERS.index(name)
    size, found = told_apart(seen.sums(seen.present), seen.present, place)
    assert size == WIDTH[name]
    assert likeness(found, seen.predictor(name)[seen.present[:, place]]) > 1 - 1e-6


@pytest.mark.parametrize("name", OTHERS)
def test_sums_over_groups_are_not(views: dict[str, Views], name: str) -> None:
    """The same attack finds the space of a whole group, and its sum in place of the party's predictor: as near to the
    latter as the sum is, which is nearest where the partner's predictor is small (d)."""
    seen, place = views["masked"], OTHERS.index(name)
    groups = chosen_groups(seen.present, range(4), list(WIDTH.values()))
    group = next(one for one in groups if place in one)
    assert len(groups) == len(group) == 2
    size, found = told_apart(seen.sums(seen.used), seen.used, place)
    assert size == sum(WIDTH[OTHERS[one]] for one in group)
    here = seen.used[:, place]
    together = sum(seen.predictor(OTHERS[one]) for one in group)
    assert likeness(found, np.asarray(together)[here]) > 1 - 1e-6
    assert likeness(found, seen.predictor(name)[here]) < (0.98 if name == "d" else 0.95)


@pytest.mark.parametrize("kind", ["plain", "masked"])
def test_the_coordinator_carries_no_number_of_a_record(views: dict[str, Views], kind: str) -> None:
    """No array with an entry a record leaves a party unsealed, in either direction."""
    arrays = 0

    def walk(value: Any) -> Iterator[NDArray[Any]]:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, dict):
            for one in value.values():
                yield from walk(one)
        elif isinstance(value, list):
            for one in value:
                yield from walk(one)

    sealed = 0
    for data in views[kind].carried[::2]:
        request = Request.decode(data)
        arrays += sum(1 for one in walk(dict(request.arguments)) if one.size >= N / 2)
        sealed += len(request.mail)
    for data in views[kind].carried[1::2]:
        arrays += sum(1 for one in walk(Reply.decode(data).value) if one.size >= N / 2)
    assert arrays == 0
    assert sealed > 8 * len(views[kind].mail) - 16


# --- groups ------------------------------------------------------------------------------------------------


def test_groups_keep_the_most_cells() -> None:
    """Against all ways to form groups, by brute force; no party is ever by itself."""
    rng = np.random.default_rng(5)
    for others in (2, 3, 4, 5):
        masks = rng.random((60, others + 1)) < rng.uniform(0.3, 0.9, size=others + 1)
        widths = [int(one) for one in rng.integers(1, 4, size=others + 1)]
        places = range(1, others + 1)
        found = chosen_groups(masks, places, widths)
        assert sorted(itertools.chain(*found)) == list(places)
        assert min(map(len, found)) >= 2

        def cells(labels: tuple[int, ...], masks: Mask = masks, widths: list[int] = widths) -> int:
            groups = [[at + 1 for at, one in enumerate(labels) if one == label] for label in set(labels)]
            if min(map(len, groups)) < 2:
                return -1
            return sum(int(masks[:, group].all(axis=1).sum()) * sum(widths[at] for at in group) for group in groups)

        best = max(cells(labels) for labels in itertools.product(range(others), repeat=others))
        kept = used_blocks(masks, found)
        assert sum(int(kept[:, at].sum()) * widths[at] for at in places) == best
        np.testing.assert_array_equal(kept[:, 0], masks[:, 0])
    assert chosen_groups(np.ones((3, 12), dtype=bool), range(12), [1] * 12) == (tuple(range(12)),)
