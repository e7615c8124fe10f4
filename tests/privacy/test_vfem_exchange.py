"""What the rounds of VFEM show: an attack that factorises all rounds' messages succeeds on "plain", not on "masked".

In every round a party's linear predictor is X_k beta_k, with one beta_k a round. All of them together are a matrix of
rank p_k (and one for the constant): its column space is the party's block. So whoever sees the predictors knows, after
p_k rounds, every column of the block up to a linear map, and can test whether a suspected column is in it. The attacker
here is the response holder, who sees more than the coordinator: everything that was sealed to it. The coordinator's
view is everything that the transport carried.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colonnade.federation.coordinator import Federation
from colonnade.federation.messages import Reply, Request
from colonnade.federation.party import Party
from colonnade.models.vfem import VFEM
from colonnade.models.vfem_exchange import PREDICTOR
from support.vfem_blocks import simulated

Array = NDArray[np.float64]
N = 300
DATA = simulated(N, (1, 3, 2, 2), (1.0, 1.0, 1.0, 1.0), seed=2)


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
    """What the response holder and the coordinator saw in one fit."""

    def __init__(self, path: Path, exchange: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mail: list[dict[str, Any]] = []
        received = Party.received

        def noted(me: Party, tag: str) -> dict[str, Any]:
            got = received(me, tag)
            if me.name == "a" and tag == PREDICTOR:
                self.mail.append(got)
            return got

        monkeypatch.setattr(Party, "received", noted)
        self.federation: Federation = DATA.federation(path)
        watched = self.federation.transport = Watched(self.federation.transport)
        method = VFEM(cross_party="independent", exchange=exchange, tolerance=1e-6)  # type: ignore[arg-type]
        self.result = method.fit(self.federation, response="y")
        self.carried = watched.carried
        # The attacker knows the order of the cohort: it holds one of its columns.
        self.rows = watched.inner["a"].rows
        self.federation.close()

    def party(self, name: str) -> Array:
        """(record, round): what came from one party, as numbers."""
        columns = [np.asarray(got[name]["predictor"])[:-1] for got in self.mail]
        signed = [one.view(np.int64).astype(np.float64) if one.dtype == np.uint64 else one for one in columns]
        return np.column_stack(signed)

    def block(self, name: str) -> Array:
        """The party's columns in cohort order: what the attack is after."""
        frame = DATA.blocks[name].drop(columns="id")
        values = np.zeros((N, frame.shape[1]))
        values[self.federation_rows(name)] = frame.to_numpy()
        return values

    def federation_rows(self, name: str) -> NDArray[np.int64]:
        order = DATA.blocks["a"]["id"].to_numpy()
        place = dict(zip(order, self.rows, strict=True))
        return np.array([place[key] for key in DATA.blocks[name]["id"]])


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Views]:
    made = {}
    for kind in ("plain", "masked"):
        with pytest.MonkeyPatch.context() as patch:
            made[kind] = Views(tmp_path_factory.mktemp(kind), kind, patch)
    return made


def rank_and_space(messages: Array, tolerance: float = 1e-9) -> tuple[int, Array]:
    """The attack: a singular value decomposition of everything that one party ever sent."""
    centred = messages - messages.mean(axis=0)
    left, values, _ = np.linalg.svd(centred / np.linalg.norm(centred), full_matrices=False)
    rank = int(np.sum(values > tolerance))
    return rank, left[:, :rank]


def explained(column: Array, space: Array) -> float:
    """How much of a suspected column lies in a space; 1 is all of it."""
    centred = column - column.mean()
    return float(np.sum((space.T @ centred) ** 2) / np.sum(centred**2))


@pytest.mark.parametrize(("name", "width"), [("b", 3), ("c", 2), ("d", 2)])
def test_plain_shows_the_block_of_every_party(views: dict[str, Views], name: str, width: int) -> None:
    seen = views["plain"]
    rank, space = rank_and_space(seen.party(name))
    assert rank == width
    for column in seen.block(name).T:
        assert explained(column, space) > 1 - 1e-6


@pytest.mark.parametrize("name", ["b", "c", "d"])
def test_masked_shows_noise_of_full_rank(views: dict[str, Views], name: str) -> None:
    """With T rounds of independent uniform words a fixed column is explained like a random one: in mean T / n. A Beta
    (T/2, (n-T)/2) variable; five standard deviations above its mean have probability below 1e-6."""
    seen = views["masked"]
    messages = seen.party(name)
    rounds = messages.shape[1]
    rank, space = rank_and_space(messages)
    assert rank == rounds
    limit = rounds / N + 5 * np.sqrt(2 * rounds / N**2) + 0.02
    assert limit < 0.6
    for column in seen.block(name).T:
        assert explained(column, space) < limit


def test_sums_tell_parties_together_and_none_apart(views: dict[str, Views]) -> None:
    """The sum over parties has the rank of all blocks together: its space has every column of the three parties, and no
    smaller space belongs to one of them. The same sums come from any other split of the total."""
    seen = views["masked"]
    total = np.sum(
        [np.column_stack([g[k]["predictor"][:-1] for g in seen.mail]) for k in "bcd"], axis=0, dtype=np.uint64
    )
    rank, space = rank_and_space(total.view(np.int64).astype(np.float64), 1e-12)
    assert rank == 3 + 2 + 2
    for name in "bcd":
        assert all(explained(column, space) > 1 - 1e-6 for column in seen.block(name).T)
    # One party's predictor of the last round is not the sum, nor near it.
    b = seen.block("b") @ np.asarray(seen.result.params[[f"b{at}" for at in (1, 2, 3)]])
    last = total.view(np.int64)[:, -1].astype(np.float64)
    assert np.corrcoef(b, last)[0, 1] ** 2 < 0.9


def test_the_two_exchanges_give_the_same_estimates(views: dict[str, Views]) -> None:
    np.testing.assert_allclose(views["plain"].result.params, views["masked"].result.params, rtol=1e-9, atol=1e-9)


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
    assert sealed > 6 * len(views[kind].mail) - 12


def test_what_masked_does_not_hide(tmp_path: Path) -> None:
    """The limit of the claim: of a record that only one party has besides the response holder, the sum is that party's
    predictor. The holder's view of such records alone has the party's rank."""
    sparse = simulated(N, (1, 2, 2), (1.0, 0.5, 0.5), seed=7)
    mail: list[NDArray[np.uint64]] = []
    received = Party.received

    def noted(me: Party, tag: str) -> dict[str, Any]:
        got = received(me, tag)
        if me.name == "a" and tag == PREDICTOR:
            mail.append(np.asarray(got["b"]["predictor"])[:-1])
        return got

    with pytest.MonkeyPatch.context() as patch, sparse.federation(tmp_path) as opened:
        patch.setattr(Party, "received", noted)
        VFEM(cross_party="independent", tolerance=1e-4).fit(opened, response="y")
        present = {name: opened.transport[name].present for name in "bc"}  # type: ignore[attr-defined]
    messages = np.column_stack(mail).view(np.int64).astype(np.float64)
    both = present["c"][present["b"]]
    assert 0 < both.sum() < len(both)
    alone, together = messages[~both][:, 1:], messages[both][:, 1:]
    assert rank_and_space(alone)[0] == 2
    assert rank_and_space(together)[0] == together.shape[1]
