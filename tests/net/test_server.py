"""What a server does with requests that come, come twice, or are not ours."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import zmq

from tests.waiting import wait_until
from transferqueue.errors import CannotListen, InvalidInput, RowsGone, ServiceUnreachable
from transferqueue.net import calls, pending
from transferqueue.net.async_channel import AsyncChannel
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.door import CUT
from transferqueue.net.keys import ServiceKeys
from transferqueue.net.server import Reply, Request, Server
from transferqueue.net.sync_channel import SyncChannelPool
from transferqueue.wire.format import Message, decode_message, encode_message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Counter:
    """A small service: counts, parks, fails."""

    def __init__(self, endpoints: list[str], keys: ServiceKeys | None = None) -> None:
        self.count = 0
        self.parked: list[Request] = []
        self.cancelled: list[tuple[bytes, int]] = []
        self.server = Server(
            endpoints=endpoints,
            keys=keys,
            handlers={
                "echo": lambda request: Reply(body=request.body, frames=request.frames),
                "count": self._count,
                "park": self._park,
                "release": self._release,
                "fail": self._fail,
                "break": lambda request: Reply(body={"x": request.body["missing"]}),
            },
            mutating=frozenset({"count"}),
            on_cancel=self.cancelled.append,
        )
        self._thread = threading.Thread(target=self.server.run, args=(lambda now_s: 0.05,))
        self._thread.start()

    def _count(self, request: Request) -> Reply:
        self.count += int(request.body.get("by", 1))
        return Reply(body={"count": self.count})

    def _park(self, request: Request) -> None:
        self.parked.append(request)

    def _release(self, request: Request) -> Reply:
        for parked in self.parked:
            self.server.reply(parked, Reply(body={}))
        return Reply(body={})

    def _fail(self, request: Request) -> Reply:
        raise RowsGone(1, 3, [7])

    def close(self) -> None:
        self.server.stop()
        self._thread.join()
        self.server.close()


@contextmanager
def running(endpoints: list[str], keys: ServiceKeys | None = None) -> Iterator[Counter]:
    counter = Counter(endpoints, keys)
    try:
        yield counter
    finally:
        counter.close()


@pytest.fixture
def ipc(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s.sock"


@pytest.fixture
def pool() -> Iterator[SyncChannelPool]:
    pool = SyncChannelPool()
    yield pool
    pool.close()


def ask(pool: SyncChannelPool, *asked: Call, timeout_s: float = 10.0) -> list[calls.Outcome]:
    exchange = pool.exchange(list(asked), timeout_s=timeout_s)
    try:
        exchange.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("suspended")


def test_frames_come_back_as_they_went(ipc: str, pool: SyncChannelPool) -> None:
    payload = os.urandom(3 << 20)
    with running([ipc]):
        (answer,) = ask(pool, Call(endpoint=ipc, op="echo", body={"a": 1}, frames=[payload, b""]))
        assert isinstance(answer, Message)
        assert answer.body == {"a": 1}
        assert [bytes(frame) for frame in answer.frames] == [payload, b""]


def test_an_error_is_the_same_class_here(ipc: str, pool: SyncChannelPool) -> None:
    with running([ipc]):
        with pytest.raises(RowsGone, match="1 of 3"):
            raise_first(ask(pool, Call(endpoint=ipc, op="fail")))
        with pytest.raises(InvalidInput, match="no operation 'fial'"):
            raise_first(ask(pool, Call(endpoint=ipc, op="fial")))


def test_a_handler_that_breaks_answers_and_the_server_goes_on(
    ipc: str, pool: SyncChannelPool
) -> None:
    with running([ipc]):
        with pytest.raises(InvalidInput, match="missing"):
            raise_first(ask(pool, Call(endpoint=ipc, op="break")))
        raise_first(ask(pool, Call(endpoint=ipc, op="echo")))


def test_one_failed_peer_does_not_hide_the_others_answer(ipc: str, pool: SyncChannelPool) -> None:
    with running([ipc]):
        bad, good = ask(
            pool, Call(endpoint=ipc, op="fail"), Call(endpoint=ipc, op="echo", body={"b": 2})
        )
    assert isinstance(bad, RowsGone)
    assert isinstance(good, Message)
    assert good.body == {"b": 2}


def test_nobody_there_is_unreachable_within_the_deadline(
    tmp_path: Path, pool: SyncChannelPool
) -> None:
    start_s = time.monotonic()
    with pytest.raises(ServiceUnreachable, match="no answer to echo"):
        raise_first(ask(pool, Call(endpoint=f"ipc://{tmp_path}/none", op="echo"), timeout_s=0.3))
    assert time.monotonic() - start_s < 2.0


def test_a_mutation_sent_twice_is_carried_out_once_and_answered_twice(ipc: str) -> None:
    with running([ipc]) as counter, zmq.Context() as context:
        with context.socket(zmq.DEALER) as socket:
            socket.connect(ipc)
            request = encode_message(Message(op="count", request_id=5))
            socket.send_multipart(request)
            socket.send_multipart(request)
            answers = [decode_message(socket.recv_multipart()) for _ in range(2)]
        assert [answer.body for answer in answers] == [{"count": 1}, {"count": 1}]
        assert counter.count == 1


def test_a_question_after_a_request_is_told_its_state(ipc: str) -> None:
    with (
        running([ipc]) as counter,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        socket.connect(ipc)

        def resume(request_id: int) -> Message:
            socket.send_multipart(encode_message(Message(op="resume", request_id=request_id)))
            return decode_message(socket.recv_multipart())

        assert resume(9).body == {"state": "unknown"}
        socket.send_multipart(encode_message(Message(op="park", request_id=9)))
        wait_until(lambda: counter.parked)
        assert resume(9).body == {"state": "working"}


def test_a_lost_request_is_sent_again_and_stored_once(
    tmp_path: Path, pool: SyncChannelPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server takes the request and dies without an answer; the next one gets it."""
    monkeypatch.setattr(pending, "FIRST_ASK_S", 0.1)
    endpoint = f"ipc://{tmp_path}/s.sock"
    context = zmq.Context()
    deaf = context.socket(zmq.ROUTER)
    deaf.bind(endpoint)
    outcome: list[calls.Outcome] = []
    asking = threading.Thread(
        target=lambda: outcome.extend(ask(pool, Call(endpoint=endpoint, op="count")))
    )
    asking.start()
    assert deaf.poll(5000)
    deaf.close(linger=0)
    context.destroy(linger=0)
    with running([endpoint]) as counter:
        asking.join()
        assert isinstance(outcome[0], Message)
        assert outcome[0].body == {"count": 1}
        assert counter.count == 1


def test_giving_up_cancels_at_the_server(ipc: str, pool: SyncChannelPool) -> None:
    with running([ipc]) as counter:
        with pytest.raises(ServiceUnreachable):
            raise_first(ask(pool, Call(endpoint=ipc, op="park"), timeout_s=0.2))
        wait_until(lambda: counter.cancelled)
        assert counter.cancelled == [counter.parked[0].key]


def test_calls_of_several_threads_do_not_wait_for_each_other(
    ipc: str, pool: SyncChannelPool
) -> None:
    with running([ipc]) as counter:
        parked = threading.Thread(target=lambda: ask(pool, Call(endpoint=ipc, op="park")))
        parked.start()
        wait_until(lambda: counter.parked)
        raise_first(ask(pool, Call(endpoint=ipc, op="release"), timeout_s=5))
        parked.join()


async def test_the_async_channel_answers_many_calls_at_once(ipc: str) -> None:
    import asyncio

    with running([ipc]) as counter:
        channel = AsyncChannel()

        async def echo(i: int) -> object:
            outcomes = await channel.exchange(
                [Call(endpoint=ipc, op="echo", body={"i": i})], timeout_s=10
            )
            return raise_first(outcomes)[0].body["i"]

        waiting = asyncio.create_task(
            channel.exchange([Call(endpoint=ipc, op="park")], timeout_s=10)
        )
        assert await asyncio.gather(*(echo(i) for i in range(50))) == list(range(50))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for _ in range(500):
            if counter.cancelled:
                break
            await asyncio.sleep(0.01)
        assert counter.cancelled
        await channel.close()


async def test_the_async_channel_gives_up_at_the_deadline(tmp_path: Path) -> None:
    channel = AsyncChannel()
    with pytest.raises(ServiceUnreachable):
        raise_first(
            await channel.exchange(
                [Call(endpoint=f"ipc://{tmp_path}/none", op="echo")], timeout_s=0.2
            )
        )
    await channel.close()


async def test_a_lost_request_is_sent_again_by_the_async_channel_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setattr(pending, "FIRST_ASK_S", 0.1)
    endpoint = f"ipc://{tmp_path}/s.sock"
    context = zmq.Context()
    deaf = context.socket(zmq.ROUTER)
    deaf.bind(endpoint)
    channel = AsyncChannel()
    asking = asyncio.create_task(
        channel.exchange([Call(endpoint=endpoint, op="count")], timeout_s=10)
    )
    while not deaf.poll(0):
        await asyncio.sleep(0.01)
    context.destroy(linger=0)
    with running([endpoint]) as counter:
        (answer,) = raise_first(await asking)
        assert answer.body == {"count": 1}
        assert counter.count == 1
    await channel.close()


STRAY = {
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": os.urandom(1 << 20),
    "a cut frame": b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03",
}


@pytest.mark.parametrize("encrypted", [True, False])
@pytest.mark.parametrize("name", STRAY)
def test_stray_bytes_on_the_port_do_not_stop_the_next_client(name: str, *, encrypted: bool) -> None:
    keys = ServiceKeys.generate(encrypted=encrypted)
    with running(["tcp://127.0.0.1:0"], keys) as counter:
        endpoint = counter.server.endpoints[0]
        port = int(endpoint.rsplit(":", 1)[1])
        stray = socket.create_connection(("127.0.0.1", port), timeout=1)
        # Refused, or not listened to any more, while it is still talking.
        with contextlib.suppress(OSError), stray:
            stray.sendall(STRAY[name])
        pool = SyncChannelPool(keys.for_clients())
        raise_first(ask(pool, Call(endpoint=endpoint, op="echo")))
        pool.close()
        wait_until(lambda: counter.server.refusals.total() == 1)
        assert counter.server.num_keys_refused == 0


def test_messages_that_are_not_ours_are_counted(ipc: str, pool: SyncChannelPool) -> None:
    with running([ipc]) as counter, zmq.Context() as context:
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect(ipc)
            for frames in ([b"hello"], [b""], [b"TQ\x02\x00rest"], [b"TQ\x01\x00" + b"\xdd" * 9]):
                dealer.send_multipart(frames)
            raise_first(ask(pool, Call(endpoint=ipc, op="echo")))
            wait_until(lambda: sum(counter.server.refusals.values()) == 4)
        assert counter.server.refusals["VersionMismatch"] == 1


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_tcp_peer_without_the_key_gets_nothing(*, encrypted: bool) -> None:
    keys = ServiceKeys.generate(encrypted=encrypted)
    others = ServiceKeys.generate(encrypted=encrypted)
    impostor = replace(others, server_public=keys.server_public)
    half = replace(keys.for_clients(), client_secret=others.for_clients().client_secret)
    other_way = replace(keys, encrypted=not encrypted)
    with running(["tcp://127.0.0.1:0"], keys) as counter:
        endpoint = counter.server.endpoints[0]
        wrong_keys = [None, *(k.for_clients() for k in (others, impostor, other_way))]
        if not encrypted:  # CURVE clients prove that their pair is one before they are asked
            wrong_keys.append(half)
        for wrong in wrong_keys:
            num_before = num_turned_away(counter.server)
            pool = SyncChannelPool(wrong)
            with pytest.raises(ServiceUnreachable):
                raise_first(ask(pool, Call(endpoint=endpoint, op="count"), timeout_s=0.5))
            pool.close()
            wait_until(lambda: num_turned_away(counter.server) > num_before)  # noqa: B023
        right = SyncChannelPool(keys.for_clients())
        raise_first(ask(right, Call(endpoint=endpoint, op="echo")))
        right.close()
        assert counter.count == 0
        assert counter.server.num_keys_refused >= 1
        assert set(counter.server.refusals) <= {CUT}


def num_turned_away(server: Server) -> int:
    """A client that is to encrypt where the server does not, or the other way round, sees that for
    itself: often it hangs up first."""
    return server.num_keys_refused + server.refusals[CUT]


def test_a_client_with_the_key_of_an_earlier_start_is_counted_as_one_without_the_key() -> None:
    keys, earlier = ServiceKeys.generate(), ServiceKeys.generate()
    with running(["tcp://127.0.0.1:0"], keys) as counter:
        pool = SyncChannelPool(earlier.for_clients())
        with pytest.raises(ServiceUnreachable):
            raise_first(
                ask(pool, Call(endpoint=counter.server.endpoints[0], op="count"), timeout_s=0.5)
            )
        pool.close()
        wait_until(lambda: counter.server.num_keys_refused >= 1)


def test_an_http_client_is_not_served() -> None:
    keys = ServiceKeys.generate()
    with running(["tcp://127.0.0.1:0"], keys) as counter:
        port = int(counter.server.endpoints[0].rsplit(":", 1)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.request("GET", "/")
            connection.getresponse()
        connection.close()


def test_many_clients_at_once_are_all_served(ipc: str) -> None:
    with running([ipc]), zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, 2048)
        sockets = [context.socket(zmq.DEALER) for _ in range(512)]
        for i, dealer in enumerate(sockets):
            dealer.connect(ipc)
            dealer.send_multipart(encode_message(Message(op="echo", request_id=i + 1)))
        for i, dealer in enumerate(sockets):
            assert dealer.poll(10_000)
            assert decode_message(dealer.recv_multipart()).request_id == i + 1
            dealer.close(linger=0)


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("tcp://203.0.113.5:0", "Cannot assign requested address"),
        ("tcp://nowhere.invalid:0", "host="),
        ("ipc:///no/such/folder/socket", "No such file or directory"),
    ],
)
def test_where_it_cannot_listen_is_said(endpoint: str, why: str) -> None:
    keys = ServiceKeys.generate()
    with pytest.raises(CannotListen, match=why) as caught:
        Server(endpoints=[endpoint], keys=keys, handlers={}, mutating=frozenset(), on_cancel=print)
    assert caught.value.args[0] == endpoint


def test_a_port_that_is_taken_is_named() -> None:
    keys = ServiceKeys.generate()
    with running(["tcp://127.0.0.1:0"], keys) as counter:
        (taken,) = counter.server.endpoints
        with pytest.raises(CannotListen, match="Address already in use"):
            Counter([taken], ServiceKeys.generate())
