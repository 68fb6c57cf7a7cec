"""Copies of rows that have bytes in a store which is away, or has lost them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.replication.pair import BUDGET, Pair
from tests.replication.two_shards import SLOT, Guard, Put, heap, state_of
from transferqueue.backends.away import AwayBackend
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.heap import HeapBackend
from transferqueue.backends.several import Member, SeveralBackends
from transferqueue.errors import BytesDamaged, RowsLost, ServiceFailed
from transferqueue.net.server import Request
from transferqueue.replication.changes import Kind
from transferqueue.replication.copy_log import Phase
from transferqueue.replication.fetching import Patience, ThereNow
from transferqueue.replication.guard_link import MOST_NO_ROOM_S, STORE_AWAY
from transferqueue.replication.keeper import AWAY
from transferqueue.replication.mirror import Mirror, Taken
from transferqueue.shard.backend_choice import BackendChoice
from transferqueue.shard.store import Store
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.replication.keeper import Keeper

A, B, C = b"a" * 5000, b"b" * 5000, b"c" * 5000


class Breaking(HeapBackend):
    """``gone``: what is in the bytes that it does not have any more. ``is_away``: none can be
    read."""

    def __init__(self, budget_bytes: int) -> None:
        super().__init__(budget_bytes)
        self.gone: tuple[bytes, ...] = ()
        self.is_away = False

    def readable(self, address: int, nbytes: int) -> memoryview:
        found = super().readable(address, nbytes)
        self._break(bytes(found))
        return found

    def read_ranges(self, addresses: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        found = super().read_ranges(addresses, nbytes)
        self._break(found.tobytes())
        return found

    def _break(self, found: bytes) -> None:
        if self.is_away:
            raise ServiceFailed("store", "did not answer in 1.0 s")
        if any(gone in found for gone in self.gone):
            raise BytesDamaged("store", 0, "the store does not have them any more")


def breaking() -> tuple[Breaking, SeveralBackends]:
    store = Breaking(BUDGET)
    return store, SeveralBackends([Member(name="store", backend=store, budget_bytes=BUDGET)])


def several_puts(pair: Pair) -> list[int]:
    for cell in (A, B, C):
        pair.put(cell)
    pair.exchange()  # it is on record that there is no copy: they are made
    return list(pair.uids)


def test_a_copy_goes_without_what_a_store_has_lost_and_knows_of_which_rows() -> None:
    store, backend = breaking()
    pair = Pair(home_backend=backend)
    first, second, third = several_puts(pair)
    pair.home.link.lost_sight()
    store.gone = (b"b",)
    pair.pass_time(MOST_NO_ROOM_S)
    pair.settle()
    mirrored = {"p": {first: {"x": A}, second: {}, third: {"x": C}}}
    assert pair.mirrored() == mirrored, "the next slab has come, although they were to go together"
    mirror = pair.guard.keeper.kept[SLOT].mirror
    (lost,) = mirror.lost.each()
    assert (lost.partition, lost.field, lost.uids.tolist()) == ("p", "x", [second])
    assert mirror.lost.are_of("p", ["x"])
    assert not mirror.lost.are_of("p", ["y"])
    assert not mirror.lost.are_of("q", ["x"])


def test_a_row_that_a_copy_lacks_is_whole_when_it_is_written_again() -> None:
    store, backend = breaking()
    pair = Pair(home_backend=backend)
    _, second, _ = several_puts(pair)
    pair.home.link.lost_sight()
    store.gone = (b"b",)
    pair.pass_time(MOST_NO_ROOM_S)
    pair.settle()
    pair.put(b"new", uids=(second,))
    pair.exchange()
    assert pair.mirrored() == pair.model.state
    assert not list(pair.guard.keeper.kept[SLOT].mirror.lost.each())


def test_there_is_no_copy_while_a_store_does_not_answer_and_all_of_it_when_it_does() -> None:
    store, backend = breaking()
    pair = Pair(home_backend=backend)
    several_puts(pair)
    pair.home.link.lost_sight()
    store.is_away = True
    pair.pass_time(MOST_NO_ROOM_S)
    pair.exchange()
    for _ in range(3):
        pair.pass_time(MOST_NO_ROOM_S)
        pair.exchange()
        assert pair.mirrored() is None
        assert pair.home.link.report()["phase"] == STORE_AWAY
        pair.put(A)
        assert not pair.home.waiting, "changes go on, on one copy"
    store.is_away = False
    pair.pass_time(MOST_NO_ROOM_S)
    pair.settle()
    assert pair.mirrored() == pair.model.state
    assert pair.home.link.report()["phase"] == Phase.IN_STEP


@pytest.mark.parametrize("is_away", [True, False])
def test_a_change_whose_bytes_cannot_be_read_is_made_without_the_guard(*, is_away: bool) -> None:
    store, backend = breaking()
    pair = Pair(home_backend=backend)
    several_puts(pair)
    pair.settle()
    store.is_away, store.gone = is_away, () if is_away else (b"new",)
    pair.put(b"new")
    pair.exchange()
    assert len(pair.uids) == 4
    assert not pair.home.waiting
    store.is_away, store.gone = False, ()
    pair.put(b"after it")
    for _ in range(2):
        pair.pass_time(MOST_NO_ROOM_S)
        pair.exchange()
    assert pair.mirrored() == pair.model.state


def fetched(keeper: Keeper, mirror: Mirror, *, gives_up: bool = False) -> Iterator[str]:
    """The kinds of what a home hears that takes its rows back, one after the other."""
    at = 0
    while True:
        body = {"slot": SLOT, "generation": keeper.kept[SLOT].generation, "epoch": 1, "at": at}
        answer = handled(keeper, {**body, "gives_up": gives_up})
        yield answer["kind"]
        if answer["kind"] == AWAY:
            continue
        first = answer["blocks"]
        frames = answer["frames"]
        assert mirror.take(
            Taken(
                kind=Kind(answer["kind"]),
                body=answer["step"],
                frames=frames,
                blocks=[] if first is None else frames[first:],
            )
        )
        if answer["kind"] == Kind.COPIED:
            return
        at += 1


def handled(keeper: Keeper, body: dict[str, Any]) -> dict[str, Any]:
    request = Request(
        peer=b"home", request_id=1, op=ops.FETCH_COPY, body=body, frames=[], received_s=0.0
    )
    reply = keeper.handlers[ops.FETCH_COPY](request)
    assert reply is not None
    return {**reply.body, "frames": list(reply.frames)}


def guard_with(cells: tuple[bytes, ...]) -> tuple[Breaking, Pair]:
    """A complete mirror, on a backend to be broken."""
    pair = Pair()
    store, backend = breaking()
    pair.guard = Guard(BUDGET, 0, backend=backend)
    pair.settle()
    for cell in cells:  # each is a slab of its own there
        pair.put(cell)
    pair.exchange()
    return store, pair


def taker() -> tuple[SeveralBackends, Mirror]:
    backend = heap(BUDGET)
    return backend, Mirror(Store(slot=SLOT, space=backend), backend, backend)


def test_a_home_gets_all_of_its_rows_when_the_store_of_its_guard_answers_again() -> None:
    store, pair = guard_with((A, B, C))
    backend, mirror = taker()
    store.is_away = True
    kinds = []
    for kind in fetched(pair.guard.keeper, mirror):
        kinds.append(kind)
        if kinds.count(AWAY) == 3:
            store.is_away = False
    assert AWAY in kinds
    assert state_of(mirror.store, backend) == pair.model.state
    assert mirror.lost.drop_rows() == 0


def test_a_home_has_lost_what_the_store_of_its_guard_has_lost_and_nothing_else() -> None:
    store, pair = guard_with((A, B, C))
    first, second, third = pair.uids
    backend, mirror = taker()
    store.gone = (b"b",)
    assert AWAY not in list(fetched(pair.guard.keeper, mirror))
    assert mirror.lost.drop_rows() == 1
    assert state_of(mirror.store, backend) == {"p": {first: {"x": A}, third: {"x": C}}}
    with pytest.raises(RowsLost, match="1 of 1"):
        mirror.store.find("p", np.array([second]), ["x"], [])


def test_a_home_that_gives_up_loses_only_what_lies_in_that_store() -> None:
    store, pair = guard_with(())
    members = [
        Member(name="heap", backend=HeapBackend(BUDGET), budget_bytes=BUDGET),
        Member(name="store", backend=store, budget_bytes=BUDGET),
    ]
    choice = BackendChoice(["heap", "store"], default=0)
    choice.declare({"p": {"x": "store"}})
    pair.guard = Guard(BUDGET, 0, backend=SeveralBackends(members), choice=choice)
    for number, cells in enumerate(({"y": (A, B)}, {"x": (C,), "y": (C,)}, {"y": (C,)})):
        pair.change(Put(number=number, partition="p", uids=None, cells=cells))
    pair.settle()
    backend, mirror = taker()
    store.is_away = True
    assert AWAY not in list(fetched(pair.guard.keeper, mirror, gives_up=True))
    assert mirror.lost.drop_rows() == 1
    del pair.model.rows["p"][pair.uids[2]]
    assert state_of(mirror.store, backend) == pair.model.state


def test_what_has_no_place_because_a_store_is_away_here_goes_to_the_default_one() -> None:
    def fail() -> HeapBackend:
        raise ServiceFailed("store", "is not there")

    config = BackendConfig(service_id="svc", slot=SLOT, budget_bytes=BUDGET, epoch=1)
    away = AwayBackend("store", config, fail)
    away.at_once(10)
    members = [
        Member(name="heap", backend=HeapBackend(BUDGET), budget_bytes=BUDGET),
        Member(name="store", backend=away, budget_bytes=BUDGET),
    ]
    sizes, numbers = [100, 200], np.array([0, 1])
    several = SeveralBackends(members)
    with pytest.raises(ServiceFailed, match="was not there"):
        several.reserve_in(sizes, numbers)
    found = ThereNow(several).reserve_in(sizes, numbers)
    assert found is not None
    several.write(int(found[1]), memoryview(b"x" * 200))
    assert members[0].backend.used_bytes >= 300
    alone = SeveralBackends(members[1:])
    assert ThereNow(alone).reserve(sizes) is None


def test_patience_begins_once_and_ends() -> None:
    patience = Patience(10.0)
    assert not patience.is_over(1e9)
    assert patience.begin(100.0)
    assert not patience.begin(105.0)
    assert not patience.is_over(109.0)
    assert patience.is_over(110.0)
