"""What clients see when processes of the service are killed under them: nothing lost, nothing
twice, nothing torn."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import zmq

import transferqueue as tq
from tests.e2e import generations
from tests.e2e.client_programs import program
from tests.waiting import wait_until
from transferqueue.errors import NotReady, ServiceUnreachable
from transferqueue.net.calls import RESUME, UNKNOWN
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayWriter
from transferqueue.wire.format import ERROR_OP, Message, decode_message, encode_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

MIB = 1 << 20


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=64 * MIB) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address) as client:
        yield client


def kill(service: tq.Service, *names: str) -> None:
    """Kill processes at once, and wait until each has a successor."""
    before = {name: service.pids[name] for name in names}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(service.pids[n] != p for n, p in before.items()), timeout_s=20)


def kill_again_and_again(service: tq.Service, names: tuple[str, ...], times: int) -> None:
    """Each time when its successor has served somebody."""
    for _ in range(times):
        kill(service, *names)
        with tq.connect(service.address) as client:
            client.status()


class Crew:
    """Threads that work until they are stopped; their failures are the test's."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self.stopping = threading.Event()

    def add(self, work: Callable[[Crew], None]) -> None:
        def run() -> None:
            try:
                work(self)
            except BaseException as error:
                self._failures.append(error)
                raise

        self._threads.append(threading.Thread(target=run))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in self._threads:
                thread.join(60)
        assert not self._failures, self._failures
        assert not any(thread.is_alive() for thread in self._threads)


class Producer:
    """Puts rows that each have a number of their own, of all three ways to a shard."""

    def __init__(self, address: str, first: int, *, transport: str = "auto") -> None:
        self._address = address
        self._next = first
        self._transport = transport
        self.num_puts = 0
        self.handles: list[tq.BatchHandle] = []
        self.numbers: list[int] = []

    def __call__(self, crew: Crew) -> None:
        with tq.connect(self._address, transport=self._transport) as client:
            while not crew.stopping.is_set():
                self.num_puts += 1
                rows = [1, 5, 3][self.num_puts % 3]
                width = [4, 20_000, 400_000][self.num_puts % 3]
                numbers = torch.arange(self._next, self._next + rows)
                self._next += rows
                handle = client.put(
                    {"number": numbers, "pad": numbers[:, None].expand(rows, width // rows)},
                    partition="p",
                    tags={"number": numbers.numpy()},
                )
                self.handles.append(handle)
                self.numbers += numbers.tolist()
                if sum(map(len, self.handles)) > 60:  # an old one goes, as in training
                    gone = self.handles.pop(0)
                    client.clear(gone)
                    del self.numbers[: len(gone)]


def rows_of(client: tq.Client, partition: str = "p") -> Counter[int]:
    handle = client.select(partition, fields=["number", "pad"])
    if not len(handle):
        return Counter()
    columns = client.get_columns(handle, fields=["number"])
    return Counter(columns["number"].tolist())


@pytest.mark.parametrize("transport", ["auto", "ipc"])
@pytest.mark.parametrize(
    "names", [("shard-0",), ("coordinator",), ("shard-0", "shard-1", "coordinator")], ids=len
)
def test_kills_during_puts_lose_no_put_and_store_none_twice(
    service: tq.Service, client: tq.Client, names: tuple[str, ...], transport: str
) -> None:
    crew = Crew()
    producers = [Producer(service.address, first, transport=transport) for first in (0, 1_000_000)]
    for producer in producers:
        crew.add(producer)
    with crew.at_work():
        wait_until(lambda: all(len(p.handles) > 3 for p in producers), timeout_s=20)
        kill_again_and_again(service, names, 3)
        seen = [p.num_puts for p in producers]
        wait_until(
            lambda: all(p.num_puts > n + 5 for p, n in zip(producers, seen, strict=True)),
            timeout_s=20,
        )
    expected = Counter(n for producer in producers for n in producer.numbers)
    for producer in producers:
        for handle in producer.handles:
            client.wait(handle, fields=["pad"])
            got = client.get_columns(handle)
            assert bool((got["pad"] == got["number"][:, None]).all()), "torn"
    wait_until(lambda: rows_of(client) == expected, timeout_s=10)
    tags = client.select("p", where=tq.tag("number") >= 1_000_000)
    assert len(tags) == sum(n >= 1_000_000 for n in expected)


def test_kills_during_gets_are_not_noticed(service: tq.Service, client: tq.Client) -> None:
    handles = [
        client.put({"x": torch.full((4, 100_000), float(n)), "y": torch.full((4,), float(n))})
        for n in range(6)
    ]
    counts = Counter[str]()

    def read(transport: str) -> Callable[[Crew], None]:
        def work(crew: Crew) -> None:
            with tq.connect(service.address, transport=transport) as reader:
                held: list[Any] = []
                while not crew.stopping.is_set():
                    n = counts[transport] % 6
                    got = reader.get(handles[n])
                    assert got["x"].unique().tolist() == [float(n)]
                    assert got["y"].unique().tolist() == [float(n)]
                    held = [*held[-3:], (n, got)]
                    assert all(h["x"].mean() == m for m, h in held)
                    counts[transport] += 1

        return work

    crew = Crew()
    for transport in ("shm", "ipc"):
        crew.add(read(transport))
    with crew.at_work():
        for _ in range(3):
            kill_again_and_again(service, ("shard-0", "shard-1"), 1)
            seen = dict(counts)
            wait_until(lambda seen=seen: all(counts[t] > n for t, n in seen.items()), 20)
    assert set(counts) == {"shm", "ipc"}


class Consumer:
    """Claims samples and acks them; some it gives back."""

    def __init__(self, address: str, task: str) -> None:
        self._address = address
        self._task = task
        self.acked: list[int] = []

    def __call__(self, crew: Crew) -> None:
        with tq.connect(self._address) as client:
            turn = 0
            while not crew.stopping.is_set():
                turn += 1
                try:
                    # Nobody may hear of a claim that is granted at the very end of its deadline,
                    # with the coordinator killed then: its samples come again with the lease.
                    claim = client.claim(
                        task=self._task,
                        partition="p",
                        fields=["number"],
                        n=4,
                        timeout_s=0.5,
                        lease_s=5,
                    )
                except (NotReady, ServiceUnreachable):
                    continue
                numbers = client.get_columns(claim.handle, fields=["number"])["number"].tolist()
                if turn % 5 == 0:
                    claim.give_back()
                else:
                    claim.ack()
                    self.acked += numbers


@pytest.mark.parametrize(
    "names", [("coordinator",), ("shard-1",), ("shard-0", "shard-1", "coordinator")], ids=len
)
def test_kills_during_claims_ack_every_sample_exactly_once(
    service: tq.Service, client: tq.Client, names: tuple[str, ...]
) -> None:
    num_samples = 1200
    client.create_partition("p", tasks=["a", "b"], retention="consumed")
    crew = Crew()
    consumers = [Consumer(service.address, task) for task in ("a", "a", "b", "b")]

    def produce(crew: Crew) -> None:
        with tq.connect(service.address) as producer:
            for first in range(0, num_samples, 4):
                numbers = np.arange(first, first + 4)
                producer.put({"number": numbers}, partition="p", tags={"n": numbers})
                if crew.stopping.wait(0.002):
                    return

    for worker in (produce, *consumers):
        crew.add(worker)
    with crew.at_work():
        kill_again_and_again(service, names, 3)
        wait_until(
            lambda: sum(len(consumer.acked) for consumer in consumers) >= 2 * num_samples,
            timeout_s=60,
        )
    for task in ("a", "b"):
        acked = Counter(n for c in consumers if c._task == task for n in c.acked)
        assert acked == Counter(range(num_samples))
    wait_until(lambda: not any(s["rows"] for s in client.status()["shards"]), timeout_s=10)


def test_claims_that_wait_get_what_comes_after_the_coordinator_is_back(
    service: tq.Service, client: tq.Client
) -> None:
    got: list[int] = []

    def claim(crew: Crew) -> None:
        with tq.connect(service.address) as waiting:
            claim = waiting.claim(task="t", partition="p", fields=["number"], n=3, timeout_s=20)
            got.extend(claim.get()["number"].tolist())
            claim.ack()

    crew = Crew()
    crew.add(claim)
    with crew.at_work():
        wait_until(lambda: client.status()["parked"] == 1)
        kill(service, "coordinator")
        client.put({"number": torch.arange(3)}, partition="p")
        wait_until(lambda: len(got) == 3, timeout_s=10)


def test_puts_and_gets_go_on_while_there_is_no_coordinator(service: tq.Service) -> None:
    with tq.connect(service.address, timeout_s=5) as client:
        os.kill(service.pids["coordinator"], signal.SIGSTOP)
        try:
            handle = client.put({"x": torch.ones(4, 100_000)}, partition="p", tags={"v": 1})
            assert client.get(handle)["x"].sum() == 400_000
        finally:
            os.kill(service.pids["coordinator"], signal.SIGCONT)
        assert len(client.wait(handle, fields=["x"])) == 4


def test_a_put_that_was_writing_when_its_shard_was_killed_goes_on(
    service: tq.Service, client: tq.Client
) -> None:
    with program("write_half", service, 16) as writer:
        assert writer.said() == {"writing": True}
        kill(service, "shard-0", "shard-1")
        client.put({"x": torch.zeros(30, 1 << 18)}, partition="other")
        writer.go_on()
        wait_until(
            lambda: client.status()["partitions"].get("half", {}).get("fields", {}).get("x") == 16,
            timeout_s=15,
        )
        half = client.select("half")
        assert client.get(half)["x"].unique().tolist() == [1.0]
        assert len(half) == 16


def test_a_writer_that_dies_with_its_shard_leaves_nothing(
    service: tq.Service, client: tq.Client
) -> None:
    with program("write_half", service, 16) as writer:
        writer.said()
        wait_until(lambda: sum(s["puts_under_way"] for s in client.status()["shards"]) == 1)
        pids = [service.pids[name] for name in ("shard-0", "shard-1")]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        writer.kill()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not set(pids) & set(service.pids.values()), timeout_s=20)
        wait_until(lambda: not any(s["used_bytes"] for s in client.status()["shards"]))


def test_space_under_a_reader_from_before_a_restart_is_not_given_out(
    service: tq.Service, client: tq.Client
) -> None:
    handles = [client.put({"x": torch.full((8, 1 << 18), float(n))}) for n in range(2)]
    held = [client.get(handle)["x"] for handle in handles]
    kill(service, "shard-0", "shard-1")
    client.clear(partition="default")
    assert sum(s["held_bytes"] for s in client.status()["shards"]) == 16 * MIB
    with pytest.raises(tq.errors.StorageFull):
        client.put({"y": torch.zeros(120, 1 << 18)}, timeout_s=0.3)
    kill(service, "shard-0", "shard-1")
    assert [h.unique().tolist() for h in held] == [[0.0], [1.0]]
    del held
    wait_until(lambda: not any(s["used_bytes"] for s in client.status()["shards"]))
    client.put({"y": torch.zeros(120, 1 << 18)})


def test_a_lease_that_ended_while_its_shard_was_away_is_given_back(service: tq.Service) -> None:
    with tq.connect(service.address) as client:
        handle = client.put({"x": torch.ones(16, 1 << 18)})
        held = client.get(handle)["x"]
        client.clear(handle)
        name = f"shard-{int(handle.uids[0]) >> 48}"
        os.kill(service.pids[name], signal.SIGSTOP)
        del held
        time.sleep(0.05)  # its end is on the way to a shard that will never read it
        kill(service, name)
        wait_until(lambda: not any(s["used_bytes"] for s in client.status()["shards"]), 10)


def test_no_reader_ever_sees_another_generation_over_restarts(service: tq.Service) -> None:
    counts: list[dict[str, int]] = []

    def churn(seed: int, transport: str) -> Callable[[Crew], None]:
        def work(crew: Crew) -> None:
            with tq.connect(service.address, transport=transport) as client:
                doing = generations.Churn(client, seed, put_timeout_s=3.0)
                while not crew.stopping.is_set():
                    doing.step()
                doing.close()
                counts.append(doing.counts)

        return work

    generations.num_mixed(generations.rows(np.arange(2)))
    crew = Crew()
    for seed, transport in enumerate(["shm", "shm", "ipc"]):
        crew.add(churn(seed + 1, transport))
    with crew.at_work():
        for names in [("shard-0",), ("shard-1",), ("shard-0", "shard-1"), ("shard-0",)]:
            time.sleep(0.7)
            kill_again_and_again(service, names, 1)
        time.sleep(0.7)
    assert [count["mixed"] for count in counts] == [0, 0, 0], counts
    assert sum(count["got"] for count in counts) > 50, counts
    with tq.connect(service.address) as client:
        client.clear(partition=generations.PARTITION)
        # A put in chunks that was given up while its shard was away ends 10 s after its deadline.
        wait_until(lambda: not any(s["used_bytes"] for s in client.status()["shards"]), 20)


def test_a_restart_loop_ends_where_it_began(service: tq.Service, client: tq.Client) -> None:
    handle = client.put({"x": torch.arange(8.0)}, tags={"v": 3})
    for _ in range(8):
        kill(service, "shard-0", "shard-1", "coordinator")  # often before it has served anybody
    assert client.get(handle)["x"].tolist() == list(range(8))
    assert len(client.select(where=tq.tag("v") == 3)) == 8
    assert service.num_restarts >= 24
    assert service.failures == {}


# -- requests that come again ---------------------------------------------------------------------


class Dealer:
    """A client whose connection keeps its name, speaking message by message."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.routing_id = b"\x01" + os.urandom(15)
        self._socket.reconnect_ivl = 20
        self._socket.connect(endpoint)

    def send(self, op: str, request_id: int, body: dict[str, Any], frames: Any = ()) -> Message:
        message = Message(op=op, request_id=request_id, body=body, frames=frames)
        self._socket.send_multipart(encode_message(message))
        assert self._socket.poll(15_000), "no answer"
        return decode_message(self._socket.recv_multipart())

    def close(self) -> None:
        self._context.destroy(linger=0)


@contextmanager
def dealer(service: tq.Service, name: str) -> Iterator[Dealer]:
    dealer = Dealer(f"ipc://{service.key_file.with_name(f'{name}.sock')}")
    try:
        yield dealer
    finally:
        dealer.close()


def put_body(arrays: ArrayWriter, *, commit: bool) -> dict[str, Any]:
    return {
        "partition": "p",
        "num_rows": 3,
        "uids": None,
        "columns": [["x", ["uint8", [5], None, "tensor"], None, 15]],
        "tags": {},
        "overwrite": False,
        "payload": arrays.add_bytes(np.arange(15, dtype=np.uint8)),
        "writer": None,
        "commit": commit,
        "timeout_s": 5.0,
    }


def test_a_put_whose_answer_was_lost_with_its_shard_is_stored_once(
    service: tq.Service, client: tq.Client
) -> None:
    arrays = ArrayWriter()
    body = put_body(arrays, commit=True)
    with dealer(service, "shard-0") as peer:
        first = peer.send(ops.PUT, 7, body, arrays.frames)
        for _ in range(2):
            kill(service, "shard-0")
            again = peer.send(ops.PUT, 7, body, arrays.frames)
            assert again.body == first.body
            assert peer.send(RESUME, 7, {}).body == first.body
        assert peer.send(RESUME, 8, {}).body == {"state": UNKNOWN}
    assert len(client.wait(client.select("p", min_rows=3))) == 3


def test_a_commit_whose_answer_was_lost_with_its_shard_is_answered_again(
    service: tq.Service, client: tq.Client
) -> None:
    arrays = ArrayWriter()
    body = put_body(arrays, commit=False)
    with dealer(service, "shard-0") as peer:
        put_id = peer.send(ops.PUT, 1, body, arrays.frames).body["put_id"]
        kill(service, "shard-0")
        assert peer.send(ops.PUT, 1, body, arrays.frames).body == {"put_id": put_id}
        first = peer.send(ops.COMMIT, 2, {"put_id": put_id})
        assert first.body["num_rows"] == 3
        kill(service, "shard-0")
        assert peer.send(ops.COMMIT, 2, {"put_id": put_id}).body == first.body
        assert peer.send(ops.COMMIT, 3, {"put_id": put_id}).op == ERROR_OP
    assert len(client.select("p", min_rows=3)) == 3


def test_a_claim_whose_answer_was_lost_with_the_coordinator_is_given_once(
    service: tq.Service, client: tq.Client
) -> None:
    client.put({"x": torch.ones(8)}, partition="p")
    body = {
        "partition": "p",
        "task": "t",
        "client": "somebody",
        "fields": ["x"],
        "n": 4,
        "uids": None,
        "sampler": None,
        "where": None,
        "timeout_s": 5.0,
        "lease_s": 60.0,
        "allow_partial": False,
    }
    with dealer(service, "coordinator") as peer:
        first = peer.send(ops.CLAIM, 1, body)
        kill(service, "coordinator")
        again = peer.send(ops.CLAIM, 1, body)
        told = dict(first.body)
        del told[ops.SHARDS_EPOCH]  # which is of the coordinator that said it
        assert again.body == told
        assert [bytes(f) for f in again.frames] == [bytes(f) for f in first.frames]
        ack = {"claim_id": first.body["claim_id"], "drop": None}
        assert peer.send(ops.ACK, 2, ack).op != ERROR_OP
        kill(service, "coordinator")
        assert peer.send(ops.ACK, 2, ack).op != ERROR_OP, "the same request: the same answer"
        assert peer.send(ops.ACK, 3, ack).op == ERROR_OP, "another one acks it twice"
    counts = client.status()["partitions"]["p"]["tasks"]["t"]
    assert (counts["acked"], counts["free"]) == (4, 4)
