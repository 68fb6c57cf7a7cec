"""Views over a running service, here, on an event loop and in another process."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.view.lazy_fakes import eager, example_columns, frozen
from transferqueue.errors import DuplicateRows, FieldExists, RowsGone, WrongService
from transferqueue.view.lazy_connection import close_process_clients

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=16 << 20) as service:
        yield service


@pytest.fixture(params=["shm", "ipc"])
def client(service: tq.Service, request: pytest.FixtureRequest) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=10, transport=request.param) as client:
        yield client
        client.clear(partition="train")
    close_process_clients()


def put_in_two_shards(client: tq.Client) -> tq.BatchHandle:
    """Rows that lie on both shards, in an order of their own."""
    parts = [client.put(example_columns(), partition="train") for _ in range(2)]
    both = tq.BatchHandle.concat(parts)
    return both[np.random.default_rng(0).permutation(12)]


def test_a_view_is_the_batch_that_was_put(client: tq.Client) -> None:
    handle = client.put(example_columns(), partition="train", meta_info={"step": 3})
    view = client.view(handle)
    assert client.stats() == {} or not any(f["got_bytes"] for f in client.stats().values())
    assert frozen(view.materialize()) == frozen(eager(example_columns(), {"step": 3}))


def test_no_byte_moves_until_a_column_is_read_and_then_only_its_rows(client: tq.Client) -> None:
    view = client.view(put_in_two_shards(client))
    before = client.wire_bytes()
    tail = tq.DataProto.concat(view.repeat(2).chunk(3))[-6:].rename("ids", "input_ids")
    assert client.wire_bytes() == before
    rows = tail.batch["input_ids"]
    assert rows.shape == (6, 4)
    got = {name: field["got_rows"] for name, field in client.stats().items() if field["got_rows"]}
    assert got == {"ids": 6}


def test_an_edit_in_place_stays_with_its_view(client: tq.Client) -> None:
    big = {"x": torch.ones(64, 4096)}
    handle = client.put(big, partition="train")
    view = client.view(handle)
    view.batch["x"].zero_()
    assert view[3:5].batch["x"].sum() == 0
    assert client.view(handle).batch["x"].sum() == 64 * 4096


def test_push_stores_new_fields_and_refuses_what_cannot_be(client: tq.Client) -> None:
    view = client.view(put_in_two_shards(client))
    view.batch["values"] = torch.arange(12.0)
    handle = view.push()
    assert client.get(handle, fields=["values"])["values"].tolist() == list(range(12))
    view.batch["values"] = torch.zeros(12)
    with pytest.raises(FieldExists):
        view.push()
    assert client.get(view.push(overwrite=True), fields=["values"])["values"].sum() == 0
    repeated = view.repeat(2)
    repeated.batch["more"] = torch.arange(24)
    with pytest.raises(DuplicateRows):
        repeated.push()


def test_cleared_rows_say_so(client: tq.Client) -> None:
    view = client.view(put_in_two_shards(client))
    view.batch["ids"]
    client.clear(view.handle[:3])
    assert view.batch["ids"].shape == (12, 4)
    with pytest.raises(RowsGone, match="rows were cleared"):
        view.batch["mask"]


def test_a_handle_of_another_service_is_refused(client: tq.Client) -> None:
    other = tq.BatchHandle(service_id="another", partition="train", uids=[1])
    with pytest.raises(WrongService):
        client.view(other)


def test_a_batch_of_no_rows_has_its_columns(client: tq.Client) -> None:
    view = client.view(client.put(example_columns(), partition="train"))
    empty = view[:0]
    expected = eager(example_columns())[:0]
    assert empty.batch["ids"].shape == (0, 4)
    assert frozen(empty.materialize().select(["ids", "mask"])) == frozen(
        expected.select(["ids", "mask"])
    )


async def test_columns_are_awaited_on_an_event_loop(service: tq.Service) -> None:
    async with await tq.connect_async(service.address) as client:
        handle = await client.put(example_columns(), partition="train")
        view = client.view(handle, reads=["ids", "mask"])
        assert await view.fetch(["score", "uid"]) is view
        await asyncio.gather(*(part.fetch(["tokens"]) for part in view.chunk(3)))
        assert view.batch["score"][0] == 0
        view.batch["values"] = torch.arange(6)
        stored = await view.store()
        assert (await client.get(stored, fields=["values"]))["values"].sum() == 15
        assert view.report()["requests"] == 4
        await client.clear(handle)


async def test_a_touch_that_was_not_awaited_works_all_the_same(service: tq.Service) -> None:
    async with await tq.connect_async(service.address) as client:
        view = client.view(await client.put(example_columns(), partition="train"))
        assert view.batch["ids"].shape == (6, 4)
        await client.clear(view.handle)
    close_process_clients()


async def test_a_view_of_a_blocking_client_can_be_awaited_too(client: tq.Client) -> None:
    view = client.view(client.put(example_columns(), partition="train"))
    await view.fetch(["ids"])
    view.batch["values"] = torch.arange(6)
    await view.store()
    assert view.local_fields == []


WORKER = """
import pickle, sys, torch
torch.set_num_threads(1)
view = pickle.load(open(sys.argv[1], "rb"))
view.batch["values"] = view.batch["ids"].sum(-1) + view.batch["bias"]
view.push(["values"])
pickle.dump(view.select(["values"]), open(sys.argv[1], "wb"))
"""


def test_a_worker_in_another_process_gets_and_puts_for_itself(
    client: tq.Client, tmp_path: Path
) -> None:
    view = client.view(put_in_two_shards(client))
    view.batch["bias"] = torch.arange(12)
    chunks = view.chunk(2)
    file = tmp_path / "view"
    file.write_bytes(pickle.dumps(chunks[1]))
    subprocess.run([sys.executable, "-c", WORKER, file], check=True, cwd=ROOT, timeout=60)
    returned = pickle.loads(file.read_bytes())
    expected = chunks[1].batch["ids"].sum(-1) + torch.arange(6, 12)
    assert returned.batch["values"].tolist() == expected.tolist()
    assert returned.handle.uids.tolist() == view.handle.uids[6:].tolist()
    assert "values" not in view.batch


def test_views_that_came_by_pickle_share_one_client_a_service(client: tq.Client) -> None:
    view = client.view(client.put(example_columns(), partition="train"))
    copies = [pickle.loads(pickle.dumps(view)) for _ in range(2)]
    connections = [copy._samples[0].connection.client() for copy in copies]
    assert connections[0] is connections[1]
    assert connections[0] is not client
    close_process_clients()
    assert copies[0].batch["ids"].shape == (6, 4)


def test_a_view_whose_address_is_not_here_looks_where_the_process_is_configured(
    client: tq.Client, service: tq.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = client.view(client.put(example_columns(), partition="train"))
    connection = view._samples[0].connection
    elsewhere = {"address": "ipc:///elsewhere.sock", "timeout_s": 5.0}
    monkeypatch.setattr(connection, "_way", elsewhere)
    copy = pickle.loads(pickle.dumps(view))
    monkeypatch.setenv("TRANSFERQUEUE_ADDRESS", service.address)
    assert copy.batch["ids"].shape == (6, 4)


def test_values_that_another_view_fetched_are_taken_where_none_is_here(client: tq.Client) -> None:
    handle = put_in_two_shards(client)
    here, there = client.view(handle), client.view(handle)
    there.batch["ids"][:] = 7
    there.settle(here.fetched(["ids", "uid"]))
    assert there.batch["ids"].unique().tolist() == [7], "it was here already"
    assert there.non_tensor_batch["uid"].tolist() == here.non_tensor_batch["uid"].tolist()
    assert there.report()["requests"] == 1, "the uids came from the other view"
    assert there.connection.service_id == client.service_id
