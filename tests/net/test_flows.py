"""Flows over real sockets, on both channels."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

from transferqueue.errors import RowsGone, ServiceUnreachable, TransferUnfinished
from transferqueue.net import pending
from transferqueue.net.async_channel import AsyncChannel
from transferqueue.net.calls import Call, Channel, Flow
from transferqueue.net.server import Reply, Request, Server
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transferqueue.wire.format import Message


class Chunks:
    """A server that answers ``read`` of a number with as many bytes, or as its test says."""

    def __init__(self, endpoint: str) -> None:
        self.cancelled: list[tuple[bytes, int]] = []
        self.most_under_way = 0
        self.refuse_from: int | None = None
        self.silent_from: int | None = None
        self.lose: set[int] = set()
        self.num_served = 0
        self.server = Server(
            endpoints=[endpoint],
            keys=None,
            handlers={"read": self._read},
            mutating=frozenset(),
            on_cancel=self.cancelled.append,
        )
        self._thread = threading.Thread(target=self.server.run, args=(lambda now_s: 0.05,))
        self._thread.start()

    def _read(self, request: Request) -> Reply | None:
        number = request.body["number"]
        if self.refuse_from is not None and number >= self.refuse_from:
            raise RowsGone(1, 1, [number])
        if self.silent_from is not None and number >= self.silent_from:
            return None
        if number in self.lose:
            self.lose.discard(number)
            self.server._answers.abandon(*request.key)  # as if it had never come
            return None
        self.num_served += 1
        return Reply(body={}, frames=[bytes(100_000 + number)])

    def close(self) -> None:
        self.server.stop()
        self._thread.join()
        self.server.close()


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s.sock"


@pytest.fixture
def chunks(endpoint: str) -> Iterator[Chunks]:
    chunks = Chunks(endpoint)
    yield chunks
    chunks.close()


class Taker:
    """Counts the bytes of each answer."""

    def __init__(self, endpoint: str, count: int) -> None:
        self.sizes: dict[int, int] = {}
        self.flow = Flow(
            endpoint=endpoint,
            op="read",
            calls=(
                Call(endpoint=endpoint, op="read", body={"number": number})
                for number in range(count)
            ),
            num_calls=count,
            window=4,
            take=self._take,
        )

    def _take(self, call: Call, message: Message) -> None:
        number = call.body["number"]
        assert number not in self.sizes
        self.sizes[number] = sum(len(frame) for frame in message.frames)


def carry_out(face: str, taker: Taker, timeout_s: float = 10.0) -> None:
    if face == "sync":
        pool = SyncChannelPool()
        try:
            run_blocking(pool.flow([taker.flow], timeout_s=timeout_s))
        finally:
            pool.close()
    else:
        asyncio.run(_carry_out_on_a_loop(taker, timeout_s))


async def _carry_out_on_a_loop(taker: Taker, timeout_s: float) -> None:
    channel: Channel = AsyncChannel()
    try:
        await channel.flow([taker.flow], timeout_s=timeout_s)
    finally:
        await channel.close()  # type: ignore[attr-defined]


FACES = pytest.mark.parametrize("face", ["sync", "async"])


@FACES
def test_every_chunk_is_taken_once(face: str, chunks: Chunks, endpoint: str) -> None:
    taker = Taker(endpoint, 50)
    carry_out(face, taker)
    assert taker.sizes == {number: 100_000 + number for number in range(50)}
    assert not chunks.cancelled


@FACES
def test_a_chunk_that_was_lost_is_asked_for_again(
    face: str, chunks: Chunks, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "FIRST_ASK_S", 0.1)
    chunks.lose = {3, 17}
    taker = Taker(endpoint, 20)
    carry_out(face, taker)
    assert sorted(taker.sizes) == list(range(20))


@FACES
def test_a_refusal_ends_the_flow_and_cancels_what_is_under_way(
    face: str, chunks: Chunks, endpoint: str
) -> None:
    chunks.refuse_from = 5
    with pytest.raises(RowsGone):
        carry_out(face, Taker(endpoint, 1000))
    assert chunks.num_served < 20


@FACES
def test_a_flow_ends_at_its_deadline_and_says_how_far_it_was(
    face: str, chunks: Chunks, endpoint: str
) -> None:
    chunks.silent_from = 5
    start_s = time.monotonic()
    with pytest.raises(TransferUnfinished, match="5 of 9 chunks"):
        carry_out(face, Taker(endpoint, 9), timeout_s=0.3)
    assert time.monotonic() - start_s < 3
    deadline_s = time.monotonic() + 5
    while len(chunks.cancelled) < 4:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@FACES
def test_a_flow_to_nobody_is_unreachable(face: str, tmp_path: Path) -> None:
    with pytest.raises(ServiceUnreachable):
        carry_out(face, Taker(f"ipc://{tmp_path}/none", 9), timeout_s=0.2)


async def test_a_flow_leaves_the_loop_to_other_tasks(chunks: Chunks, endpoint: str) -> None:
    channel = AsyncChannel()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await channel.flow([Taker(endpoint, 300).flow], timeout_s=10)
    ticking.cancel()
    assert ticks > 20
    await channel.close()


async def test_a_cancelled_flow_cancels_what_is_under_way(chunks: Chunks, endpoint: str) -> None:
    chunks.silent_from = 0
    channel = AsyncChannel()
    flowing = asyncio.create_task(channel.flow([Taker(endpoint, 9).flow], timeout_s=10))
    await asyncio.sleep(0.1)
    flowing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flowing
    for _ in range(500):
        if len(chunks.cancelled) == 4:
            break
        await asyncio.sleep(0.01)
    assert len(chunks.cancelled) == 4
    await channel.close()
