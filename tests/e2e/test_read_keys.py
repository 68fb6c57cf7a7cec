"""Keys that only read, over real TCP, encrypted and not."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue import errors
from transferqueue.client import session
from transferqueue.client.windows import ClientWindows, Move
from transferqueue.errors import ConfigError, NotAllowed
from transferqueue.net import sync_channel
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.keys import ClientKeys
from transferqueue.net.sockets import connect_dealer
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.get import GetAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = 3 << 20


@pytest.fixture(params=[True, False], ids=["encrypted", "plain"])
def service(request: pytest.FixtureRequest) -> Iterator[tq.Service]:
    with tq.serve(
        budget_bytes=64 << 20,
        host="127.0.0.1",
        encrypt=request.param,
        read_keys={"dashboard": None, "eval": ["val"], "typo": ["trian"]},
    ) as service:
        yield service


@pytest.fixture
def handles(service: tq.Service) -> dict[str, tq.BatchHandle]:
    with tq.connect(service.address, keys=service.client_keys) as client:
        made = {}
        for partition in ("train", "val"):
            columns = {"x": torch.arange(4.0), "wide": torch.ones(4, LARGE // 16)}
            made[partition] = client.put(columns, partition=partition, tags={"n": 1})
            client.wait(made[partition])
        return made


def reading(service: tq.Service, name: str) -> tq.Client:
    return tq.connect(service.address, keys=service.read_keys(name), transport="tcp")


def test_a_reader_gets_tickets_that_only_read(
    service: tq.Service, handles: dict[str, tq.BatchHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def write_instead(self: ClientWindows, shard: Any, move: Move, *rest: Any) -> bool:
        end = self._end(move)
        with pytest.raises(errors.TransportFailed, match="window is closed"):
            end.write(move.window.ticket, 0, memoryview(bytes(64)), timeout_s=5.0)
        refused.append(move.slot)
        return carry_out(self, shard, move, *rest)

    carry_out = ClientWindows.carry_out
    monkeypatch.setattr(ClientWindows, "carry_out", write_instead)
    monkeypatch.setattr(session, "boot_id", lambda: "another host's")
    with tq.connect(service.address, keys=service.read_keys("eval"), transport="sockets") as reader:
        got = reader.get(handles["val"])
        assert bool((got["wide"] == 1).all())
        with pytest.raises(NotAllowed):
            reader.get(handles["train"])
        with pytest.raises(NotAllowed):
            reader.put({"wide": torch.zeros(4, LARGE // 16)}, partition="val")
    assert refused == [0]


def test_a_reader_gets_whatever_there_is(
    service: tq.Service, handles: dict[str, tq.BatchHandle]
) -> None:
    with reading(service, "dashboard") as client:
        for handle in handles.values():
            assert client.get(handle)["wide"].sum() == LARGE // 4  # in chunks
            assert len(client.wait(handle, fields=["x"])) == 4
        assert len(client.select("train", where=tq.tag("n") == 1)) == 4
        assert set(client.status()["partitions"]) == {"train", "val"}
        assert client.held()


def test_a_reader_changes_nothing(service: tq.Service, handles: dict[str, tq.BatchHandle]) -> None:
    handle = handles["train"]
    with reading(service, "dashboard") as client:
        attempts: list[Any] = [
            lambda: client.put({"x": torch.zeros(1)}),
            lambda: client.put({"y": torch.zeros(4)}, handle=handle),
            lambda: client.put({"y": torch.zeros(4, LARGE)}, handle=handle),
            lambda: client.clear(handle),
            lambda: client.claim(task="t", partition="train", fields=["x"], n=1),
            lambda: client.update_tags(handle, {"n": 2}),
            lambda: client.create_partition("mine"),
            lambda: client.drop_partition("train"),
            lambda: client.advance_policy(3),
        ]
        for attempt in attempts:
            with pytest.raises(NotAllowed, match="'dashboard'"):
                attempt()
        assert client.get(handle)["x"].tolist() == [0, 1, 2, 3]
        (shard,) = client.status()["shards"]
        assert shard["rows"] == 8
        assert shard["puts_under_way"] == 0


def test_a_reader_of_one_partition_sees_no_other(
    service: tq.Service, handles: dict[str, tq.BatchHandle]
) -> None:
    with reading(service, "eval") as client:
        assert client.get(handles["val"])["wide"].sum() == LARGE // 4
        for attempt in (
            lambda: client.get(handles["train"]),
            lambda: client.wait(handles["train"], fields=["x"]),
            lambda: client.select("train"),
            client.status,
            client.held,
            client.waits,
            lambda: client.describe("train"),
            lambda: client.describe(uids=handles["train"].uids.tolist()),
        ):
            with pytest.raises(NotAllowed, match="'eval'"):
                attempt()


def test_a_reader_of_one_partition_is_told_no_name_of_another(
    service: tq.Service, handles: dict[str, tq.BatchHandle]
) -> None:
    del handles
    for name, hint in (("typo", ""), ("dashboard", "did you mean 'train'")):
        with reading(service, name) as client:
            with pytest.raises(errors.NotReady, match="nobody has put anything") as told:
                client.select("trian", min_rows=1, timeout_s=0.1)
            assert hint in str(told.value)
            assert ("train" in str(told.value)) == bool(hint)
            with pytest.raises(errors.TransferQueueError) as told:
                client.describe("trian")
            assert ("train" in str(told.value)) == bool(hint)


@pytest.mark.parametrize("name", ["eval", "dashboard"])
def test_what_is_held_for_one_key_is_neither_read_nor_let_go_with_another(
    service: tq.Service, handles: dict[str, tq.BatchHandle], name: str
) -> None:
    endpoint = _shard_endpoint(service)
    answer = _ask(endpoint, service.client_keys, ops.GET, *_get_body(handles["train"]))
    lease_id = answer.body["lease_id"]
    chunk = {"lease_id": lease_id, "chunk": 0}
    with pytest.raises(tq.errors.TransferExpired):
        _ask(endpoint, service.read_keys(name), ops.READ, chunk)
    done = _ask(endpoint, service.read_keys(name), ops.READ_DONE, {"lease_id": lease_id})
    assert done.body["held"] is False
    assert _ask(endpoint, service.client_keys, ops.READ, chunk).frames


def test_a_reader_is_lent_no_memory_whoever_it_says_it_is(
    service: tq.Service, handles: dict[str, tq.BatchHandle]
) -> None:
    key, endpoint = service.read_keys("dashboard"), _shard_endpoint(service)
    (told,) = _ask(service.address, key, ops.HELLO, {"timeout_s": 5.0}).body["shards"]
    assert told["arena"] is None
    body, frames = _get_body(handles["train"])
    with tq.connect(service.address, keys=service.client_keys) as client:
        assert client.links()[0]["way"] == "shm"
        body["reader"] = client._ops._memory.process_for(0)
        for keys, is_mapped in ((service.client_keys, True), (key, False)):
            answer = _ask(endpoint, keys, ops.GET, body, frames)
            got = GetAnswer.read(answer.body, ArrayReader(answer.frames))
            assert (got.columns["wide"].mapped is not None) == is_mapped


def test_a_reader_ends_nobodys_lease_whatever_its_request_says(
    service: tq.Service, handles: dict[str, tq.BatchHandle]
) -> None:
    key, endpoint = service.read_keys("dashboard"), _shard_endpoint(service)
    body, frames = _get_body(handles["train"])
    with tq.connect(service.address, keys=service.client_keys) as client:
        held = client.get(handles["train"])
        lease_ids = np.arange(64, dtype=np.int64).tobytes()
        ended = {"reader": client._ops._memory.process, "lease_ids": lease_ids}
        for keys, num_leases in ((key, 1), (service.client_keys, 0)):
            answer = _ask(endpoint, keys, ops.GET, {**body, ops.ENDED: ended}, frames)
            _ask(endpoint, keys, ops.READ_DONE, {"lease_id": answer.body["lease_id"]})
            assert client.status()["shards"][0]["leases"] == num_leases
        del held


def test_no_answer_holds_what_a_connection_could_be_taken_over_with(
    service: tq.Service, handles: dict[str, tq.BatchHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routing ids: of those who hold chunks, of those who wait, and of those whose put waits."""
    routing_ids: list[bytes] = []

    def connect(*args: Any) -> Any:
        socket = connect_dealer(*args)
        routing_ids.append(socket.routing_id)
        return socket

    monkeypatch.setattr(sync_channel, "connect_dealer", connect)
    _ask(_shard_endpoint(service), service.client_keys, ops.GET, *_get_body(handles["val"]))
    with tq.connect(service.address, keys=service.client_keys, transport="tcp") as client:
        client.create_partition("full", max_rows=1)
        client.put({"x": torch.zeros(1)}, partition="full")
        waiting = (
            lambda: client.put({"x": torch.zeros(1)}, partition="full", timeout_s=2),
            lambda: client.wait(handles["val"], fields=["later"], timeout_s=2),
        )
        with reading(service, "dashboard") as reader, ThreadPoolExecutor() as threads:
            ended = [threads.submit(ask) for ask in waiting]
            wait_until(lambda: len(reader.waits()["waits"]) == 2, 5)
            seen = repr([reader.waits(), reader.status(), reader.held(), reader.describe("val")])
            assert all(isinstance(e.exception(), errors.TransferQueueError) for e in ended)
    assert len(routing_ids) >= 4
    for routing_id in routing_ids:
        assert routing_id.hex() not in seen
        assert repr(routing_id) not in seen


def test_only_the_services_own_processes_are_shards(service: tq.Service) -> None:
    body = {"slot": 0, "incarnation": "x", "endpoints": [], "facts": {}, "limited": []}
    coordinator = service.address
    with pytest.raises(NotAllowed, match="own processes"):
        _ask(coordinator, service.client_keys, ops.REGISTER, body)
    with tq.connect(service.address, keys=service.client_keys) as client:
        client.put({"x": torch.zeros(1)})


def test_key_files_are_this_users_alone_and_can_be_connected_with(service: tq.Service) -> None:
    path = service.read_key_files["eval"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ClientKeys.load(path) == service.read_keys("eval")


def test_a_bad_name_or_list_of_partitions_is_refused_before_anything_starts() -> None:
    for read_keys, words in (({"a/b": None}, "letters"), ({"a": "val"}, "a list of partitions")):
        with pytest.raises(ConfigError, match=words):
            tq.serve(read_keys=read_keys)


def _shard_endpoint(service: tq.Service) -> str:
    hello = _ask(service.address, service.client_keys, ops.HELLO, {"timeout_s": 5.0})
    (shard,) = hello.body["shards"]
    return next(name for name in shard["endpoints"] if name.startswith("tcp://"))


def _get_body(handle: tq.BatchHandle) -> tuple[dict[str, Any], Any]:
    arrays = ArrayWriter()
    body = {
        "partition": handle.partition,
        "uids": arrays.add(handle.uids),
        "fields": ["wide"],
        "optional": [],
        "reader": None,
        "timeout_s": 10.0,
    }
    return body, arrays.frames


def _ask(endpoint: str, keys: ClientKeys, op: str, body: dict[str, Any], frames: Any = ()) -> Any:
    pool = SyncChannelPool(keys)
    call = Call(endpoint=endpoint, op=op, body=body, frames=frames)
    try:
        return raise_first(run_blocking(pool.exchange([call], timeout_s=10)))[0]
    finally:
        pool.close()
