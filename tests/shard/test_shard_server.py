"""One shard over real sockets, spoken to message by message."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zmq

from tests.shard_settings import shard_settings
from tests.waiting import wait_until
from transferqueue.errors import RowsGone, StorageFull, TransferExpired, TransferQueueError
from transferqueue.net.calls import CANCEL, RESUME
from transferqueue.shard import deadlines, gets, puts
from transferqueue.shard.server import ShardServer
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.chunks import CHUNK_BYTES, STREAM_FROM_BYTES
from transferqueue.wire.format import (
    ERROR_OP,
    Message,
    decode_error,
    decode_message,
    encode_message,
)
from transferqueue.wire.get import GetAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BUDGET = 64 << 20


class Peer:
    """Sends what it is told to, and reads what comes back."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.sndhwm = self.socket.rcvhwm = 0
        self.socket.connect(endpoint)
        self._ids = itertools.count(1)

    def send(
        self, op: str, body: dict[str, Any], frames: Sequence[Any] = (), request_id: int = 0
    ) -> int:
        request_id = request_id or next(self._ids)
        message = Message(op=op, request_id=request_id, body=body, frames=frames)
        self.socket.send_multipart(encode_message(message))
        return request_id

    def receive(self, timeout_s: float = 5.0) -> Message:
        assert self.socket.poll(int(timeout_s * 1000)), "no answer"
        return decode_message(self.socket.recv_multipart())

    def ask(self, op: str, body: dict[str, Any], frames: Sequence[Any] = ()) -> Message:
        request_id = self.send(op, body, frames)
        answer = self.receive()
        while answer.op == RESUME and answer.request_id != request_id:
            answer = self.receive()  # an earlier one is being worked on
        assert answer.request_id == request_id
        if answer.op == ERROR_OP:
            raise decode_error(answer.body)
        return answer

    def status(self) -> dict[str, Any]:
        return self.ask(ops.STATUS, {}).body

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[ShardServer]:
    server = ShardServer(shard_settings(tmp_path, BUDGET))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    server.stop()
    thread.join()
    server.close()


@pytest.fixture
def peer(shard: ShardServer) -> Iterator[Peer]:
    peer = Peer(shard.endpoints[0])
    yield peer
    peer.close()


def put_body(num_rows: int, row_bytes: int, **more: Any) -> dict[str, Any]:
    column = ["x", ["uint8", [row_bytes], None, "tensor"], None, num_rows * row_bytes]
    return {
        "partition": "p",
        "num_rows": num_rows,
        "uids": None,
        "columns": [column],
        "tags": {},
        "overwrite": False,
        "payload": None,
        "writer": None,
        "commit": False,
        "timeout_s": 5.0,
        **more,
    }


def get_body(uids: np.ndarray, arrays: ArrayWriter, **more: Any) -> dict[str, Any]:
    return {
        "partition": "p",
        "uids": arrays.add(uids),
        "fields": ["x"],
        "optional": [],
        "reader": None,
        "timeout_s": 5.0,
        **more,
    }


def small_put(peer: Peer, content: bytes, **more: Any) -> np.ndarray:
    """Two rows at once; returns their uids."""
    body = put_body(2, len(content) // 2, payload=0, commit=True, **more)
    made = peer.ask(ops.PUT, body, [content]).body
    return np.arange(made["first_uid"], made["first_uid"] + 2)


def get(peer: Peer, uids: np.ndarray) -> GetAnswer:
    arrays = ArrayWriter()
    answer = peer.ask(ops.GET, get_body(uids, arrays), arrays.frames)
    return GetAnswer.read(answer.body, ArrayReader(answer.frames))


def large_put(peer: Peer, content: np.ndarray, num_rows: int = 4) -> np.ndarray:
    """Chunk by chunk; returns the uids."""
    put_id = peer.ask(ops.PUT, put_body(num_rows, len(content) // num_rows)).body["put_id"]
    for chunk in range(-(-len(content) // CHUNK_BYTES)):
        block = content[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
        peer.ask(ops.WRITE, {"put_id": put_id, "chunk": chunk}, [block.data])
    made = peer.ask(ops.COMMIT, {"put_id": put_id}).body
    return np.arange(made["first_uid"], made["first_uid"] + num_rows)


def random_bytes(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8)


# -- puts in chunks -------------------------------------------------------------------------------


def test_chunks_come_in_any_order_and_twice_and_are_seen_when_all_are_there(peer: Peer) -> None:
    content = random_bytes(3 * CHUNK_BYTES + 1000)
    put_id = peer.ask(ops.PUT, put_body(1, len(content))).body["put_id"]
    for chunk in (3, 1, 0, 1):
        block = content[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
        half = len(block) // 2
        frames = [block[:half].data, block[half:].data]
        peer.ask(ops.WRITE, {"put_id": put_id, "chunk": chunk}, frames)
    with pytest.raises(TransferQueueError, match="1 of 4 chunks of the put have not come"):
        peer.ask(ops.COMMIT, {"put_id": put_id})
    assert peer.status()["rows"] == 0
    block = content[2 * CHUNK_BYTES : 3 * CHUNK_BYTES]
    peer.ask(ops.WRITE, {"put_id": put_id, "chunk": 2}, [block.data])
    uid = peer.ask(ops.COMMIT, {"put_id": put_id}).body["first_uid"]
    assert read_all(peer, get(peer, np.array([uid]))) == content.tobytes()


def read_all(peer: Peer, answer: GetAnswer) -> bytes:
    """The bytes of an answer that is fetched in chunks."""
    column = answer.columns["x"]
    num_bytes = column.num_bytes(1 if column.present is None else len(column.present))
    got = []
    for chunk in range(-(-num_bytes // CHUNK_BYTES)):
        body = {"lease_id": answer.lease_id, "chunk": chunk}
        got += map(bytes, peer.ask(ops.READ, body).frames)
    assert peer.ask(ops.READ_DONE, {"lease_id": answer.lease_id}).body == {"held": True}
    return b"".join(got)


@pytest.mark.parametrize(
    "wrong",
    [
        {"chunk": 2},
        {"chunk": -1},
        {"chunk": None},
        {"put_id": 99},
        {"frames": [bytes(7)]},
        {"frames": []},
        {"frames": [bytes(CHUNK_BYTES), b"x"]},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_wrong_chunk_is_refused_and_the_put_goes_on(peer: Peer, wrong: dict[str, Any]) -> None:
    content = random_bytes(2 * CHUNK_BYTES)
    put_id = peer.ask(ops.PUT, put_body(1, len(content))).body["put_id"]
    body = {"put_id": put_id, "chunk": 0} | {k: v for k, v in wrong.items() if k != "frames"}
    frames = wrong.get("frames", [bytes(CHUNK_BYTES)])
    with pytest.raises(TransferQueueError):
        peer.ask(ops.WRITE, body, frames)
    for chunk in range(2):
        block = content[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
        peer.ask(ops.WRITE, {"put_id": put_id, "chunk": chunk}, [block.data])
    peer.ask(ops.COMMIT, {"put_id": put_id})


def test_what_comes_after_an_abort_is_refused(peer: Peer) -> None:
    put_id = peer.ask(ops.PUT, put_body(1, CHUNK_BYTES)).body["put_id"]
    peer.ask(ops.ABORT, {"put_id": put_id})
    assert peer.status()["used_bytes"] == 0
    with pytest.raises(TransferExpired):
        peer.ask(ops.WRITE, {"put_id": put_id, "chunk": 0}, [bytes(CHUNK_BYTES)])
    with pytest.raises(TransferExpired):
        peer.ask(ops.COMMIT, {"put_id": put_id})
    peer.ask(ops.ABORT, {"put_id": put_id})


def test_a_put_whose_chunks_stop_coming_gives_its_space_back(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "SILENCE_S", 0.8)
    put_id = peer.ask(ops.PUT, put_body(1, 2 * CHUNK_BYTES, timeout_s=100.0)).body["put_id"]
    for _ in range(3):
        time.sleep(0.3)
        peer.ask(ops.WRITE, {"put_id": put_id, "chunk": 0}, [bytes(CHUNK_BYTES)])
    wait_until(lambda: peer.status()["used_bytes"] == 0)
    with pytest.raises(TransferExpired):
        peer.ask(ops.COMMIT, {"put_id": put_id})


def test_a_put_that_is_through_waits_for_its_commit_until_its_own_deadline(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "SILENCE_S", 0.1)
    monkeypatch.setattr(puts, "COMMIT_GRACE_S", 0.1)
    put_id = peer.ask(ops.PUT, put_body(1, CHUNK_BYTES, timeout_s=1.2)).body["put_id"]
    peer.ask(ops.WRITE, {"put_id": put_id, "chunk": 0}, [bytes(CHUNK_BYTES)])
    time.sleep(0.3)
    assert peer.status()["puts_under_way"] == 1
    wait_until(lambda: peer.status()["used_bytes"] == 0)


# -- gets in chunks -------------------------------------------------------------------------------


def test_a_few_bytes_come_with_the_answer_and_more_in_chunks(peer: Peer) -> None:
    few = get(peer, small_put(peer, bytes(range(200))))
    assert few.lease_id is None
    assert few.payload[few.columns["x"].sent].tolist() == list(range(200))
    content = random_bytes(STREAM_FROM_BYTES + 4)
    many = get(peer, large_put(peer, content))
    assert many.lease_id is not None
    assert len(many.payload) == 0
    assert many.columns["x"].sent is None
    peer.ask(ops.READ_DONE, {"lease_id": many.lease_id})


def test_a_chunk_can_be_asked_for_again_until_the_reader_is_done(peer: Peer) -> None:
    content = random_bytes(4 * CHUNK_BYTES)
    answer = get(peer, large_put(peer, content))
    body = {"lease_id": answer.lease_id, "chunk": 2}
    for _ in range(3):
        got = peer.ask(ops.READ, body).frames
        assert b"".join(map(bytes, got)) == content[2 * CHUNK_BYTES : 3 * CHUNK_BYTES].tobytes()
    assert peer.ask(ops.READ_DONE, {"lease_id": answer.lease_id}).body["held"]
    with pytest.raises(TransferExpired):
        peer.ask(ops.READ, body)
    assert not peer.ask(ops.READ_DONE, {"lease_id": answer.lease_id}).body["held"]


def test_rows_cleared_in_the_middle_are_read_to_the_end_and_then_their_space_is_free(
    peer: Peer,
) -> None:
    content = random_bytes(4 * CHUNK_BYTES)
    uids = large_put(peer, content)
    answer = get(peer, uids)
    arrays = ArrayWriter()
    peer.ask(ops.CLEAR, {"partition": "p", "uids": arrays.add(uids)}, arrays.frames)
    with pytest.raises(RowsGone):
        get(peer, uids)
    large_put(peer, random_bytes(8 * CHUNK_BYTES))
    got = []
    for chunk in range(4):
        got += peer.ask(ops.READ, {"lease_id": answer.lease_id, "chunk": chunk}).frames
    assert b"".join(map(bytes, got)) == content.tobytes()
    assert peer.status()["held_bytes"] == 4 * CHUNK_BYTES
    peer.ask(ops.READ_DONE, {"lease_id": answer.lease_id})
    assert peer.status()["used_bytes"] == 8 * CHUNK_BYTES


def test_a_reader_that_falls_silent_holds_nothing_and_learns_that_it_did_not(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "SILENCE_S", 0.3)
    answer = get(peer, large_put(peer, random_bytes(2 * CHUNK_BYTES)))
    peer.ask(ops.READ, {"lease_id": answer.lease_id, "chunk": 0})
    wait_until(lambda: peer.status()["leases"] == 0)
    assert peer.ask(ops.READ_DONE, {"lease_id": answer.lease_id}).body == {"held": False}


def test_an_answer_that_was_lost_and_asked_for_again_holds_its_rows_once(peer: Peer) -> None:
    uids = large_put(peer, random_bytes(2 * CHUNK_BYTES))
    arrays = ArrayWriter()
    body = get_body(uids, arrays)
    for _ in range(3):
        peer.send(ops.GET, body, arrays.frames, request_id=777)
        answer = peer.receive()
    assert peer.status()["leases"] == 1
    peer.ask(ops.READ_DONE, {"lease_id": answer.body["lease_id"]})
    assert peer.status()["leases"] == 0


def test_stalled_readers_of_scattered_rows_do_not_fill_the_memory(
    shard: ShardServer, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard._gets._credit, "_limit_bytes", 4 << 20)
    content = random_bytes(32 * CHUNK_BYTES)
    uids = large_put(peer, content, num_rows=1 << 15)
    shuffled = uids[np.random.default_rng(0).permutation(len(uids))]
    readers = [Peer(shard.endpoints[0]) for _ in range(6)]
    held = [get(reader, shuffled) for reader in readers]
    for reader, answer in zip(readers, held, strict=True):
        for chunk in range(32):
            reader.send(ops.READ, {"lease_id": answer.lease_id, "chunk": chunk})
    time.sleep(0.5)
    # What has left the shard lies in the sockets of the readers, who take nothing.
    assert peer.status()["bytes_unsent"] <= (4 + len(readers)) << 20
    order = np.argsort(shuffled)
    for reader in readers:
        got = {}
        while len(got) < 32:
            answer = reader.receive()
            if answer.op != RESUME:  # a word that one that waits for credit is not forgotten
                got[answer.request_id] = b"".join(map(bytes, answer.frames))
        rows = np.frombuffer(b"".join(got[i] for i in sorted(got)), np.uint8)
        assert (rows.reshape(len(uids), -1)[order].reshape(-1) == content).all()
        reader.close()
    wait_until(lambda: peer.status()["bytes_unsent"] == 0)


# -- answers that nobody hears --------------------------------------------------------------------


def test_rows_of_a_put_that_was_given_up_before_its_answer_came_are_not_there(
    peer: Peer,
) -> None:
    request_id = peer.send(ops.PUT, put_body(2, 8, payload=0, commit=True), [bytes(16)])
    peer.send(CANCEL, {}, request_id=request_id)
    assert peer.receive().op == "ok"
    wait_until(lambda: peer.status()["used_bytes"] == 0)
    assert peer.status()["rows"] == 0


def test_rows_of_a_commit_that_was_given_up_are_not_there_either(peer: Peer) -> None:
    put_id = peer.ask(ops.PUT, put_body(1, CHUNK_BYTES)).body["put_id"]
    peer.ask(ops.WRITE, {"put_id": put_id, "chunk": 0}, [bytes(CHUNK_BYTES)])
    request_id = peer.send(ops.COMMIT, {"put_id": put_id})
    peer.send(CANCEL, {}, request_id=request_id)
    peer.receive()
    wait_until(lambda: peer.status()["rows"] == 0)


def test_what_an_answer_lent_that_nobody_heard_is_taken_back(peer: Peer) -> None:
    uids = large_put(peer, random_bytes(2 * CHUNK_BYTES))
    arrays = ArrayWriter()
    getting = peer.send(ops.GET, get_body(uids, arrays), arrays.frames)
    putting = peer.send(ops.PUT, put_body(1, CHUNK_BYTES, timeout_s=1000.0))
    for request_id in (getting, putting):
        peer.receive()
        peer.send(CANCEL, {}, request_id=request_id)
    wait_until(lambda: peer.status()["leases"] == 0)
    assert peer.status()["puts_under_way"] == 0


def test_a_put_that_is_sent_again_is_stored_once(peer: Peer) -> None:
    body = put_body(2, 8, payload=0, commit=True)
    for _ in range(3):
        peer.send(ops.PUT, body, [bytes(16)], request_id=55)
    peer.send(RESUME, {}, request_id=55)
    answers = [peer.receive() for _ in range(4)]
    assert len({answer.body["first_uid"] for answer in answers}) == 1
    assert peer.status()["rows"] == 2


# -- puts that wait -------------------------------------------------------------------------------


def test_a_failure_of_a_put_that_waited_is_answered_to_it_and_not_to_who_made_room(
    shard: ShardServer, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = large_put(peer, random_bytes(60 * CHUNK_BYTES))
    waiting = peer.send(
        ops.PUT, put_body(2, 4 * CHUNK_BYTES, payload=0, commit=True), [bytes(8 * CHUNK_BYTES)]
    )
    wait_until(lambda: shard._puts.num_waiting == 1)

    def fail(*_: Any) -> None:
        raise OSError("no such luck")

    monkeypatch.setattr(shard._backend, "write", fail)
    arrays = ArrayWriter()
    body = {"partition": "p", "uids": arrays.add(uids)}
    clearing = peer.send(ops.CLEAR, body, arrays.frames)
    answers = {answer.request_id: answer for answer in (peer.receive(), peer.receive())}
    assert answers[clearing].body == {"num_rows": 4}
    assert "no such luck" in str(decode_error(answers[waiting].body))
    assert peer.status()["used_bytes"] == 0
    assert peer.status()["puts_waiting"] == 0


def test_a_put_waits_no_longer_than_it_said_whatever_it_said(peer: Peer) -> None:
    large_put(peer, random_bytes(60 * CHUNK_BYTES))
    full = put_body(1, 8 * CHUNK_BYTES)
    for timeout_s in (0, 0.1, -5):
        with pytest.raises(StorageFull):
            peer.ask(ops.PUT, full | {"timeout_s": timeout_s})
    for timeout_s in (float("nan"), "1", None, True):
        with pytest.raises(TransferQueueError):
            peer.ask(ops.PUT, full | {"timeout_s": timeout_s})
    peer.send(ops.PUT, full | {"timeout_s": float("inf")})
    wait_until(lambda: peer.status()["puts_waiting"] == 1)


def test_a_column_without_bytes_is_put_and_got(peer: Peer) -> None:
    made = peer.ask(ops.PUT, put_body(3, 0, payload=0, commit=True), [b""]).body
    answer = get(peer, np.arange(made["first_uid"], made["first_uid"] + 3))
    assert answer.columns["x"].num_bytes(3) == 0
    assert answer.lease_id is None


def test_mapping_is_left_to_those_who_can(peer: Peer) -> None:
    """A heap cannot be mapped: a reader that could map gets its bytes all the same."""
    uids = small_put(peer, bytes(2 * gets.MAP_FROM_BYTES))
    arrays = ArrayWriter()
    body = get_body(uids, arrays, reader={"pid": 1})
    answer = peer.ask(ops.GET, body, arrays.frames)
    assert answer.body["lease_id"] is None
    assert len(answer.frames) == 1
