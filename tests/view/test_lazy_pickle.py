"""A pickle of a view is its handle and what is nowhere else."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
import torch

from tests.view.lazy_fakes import FakeClient, example_columns, frozen, jagged, objects
from transferqueue.view import lazy_connection
from transferqueue.view.dataproto import DataProto
from transferqueue.view.lazy_dataproto import LazyDataProto

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 512


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClient]:
    client = FakeClient()
    monkeypatch.setattr(lazy_connection._process_clients, "get", lambda *_: client)
    return client


@pytest.fixture
def view(client: FakeClient) -> LazyDataProto:
    columns = {"ids": torch.arange(ROWS * 64).reshape(ROWS, 64), "uid": objects(*range(ROWS))}
    return client.view(client.put(columns, meta_info={"step": 3}), reads=["ids", "uid"])


def sent(view: LazyDataProto) -> LazyDataProto:
    copy: LazyDataProto = pickle.loads(pickle.dumps(view))
    return copy


def test_a_pickle_is_as_small_as_a_handle_also_of_columns_that_were_touched(
    client: FakeClient, view: LazyDataProto
) -> None:
    for _ in range(2):
        assert len(pickle.dumps(view)) < 1024
        assert len(pickle.dumps(view.reorder(list(range(ROWS))) or view.chunk(4)[1])) < 1024
        view.prefetch()


def test_a_row_taken_by_its_number_is_sent_alone(view: LazyDataProto) -> None:
    row = view[3]
    sent_bytes = pickle.dumps(row)
    assert len(sent_bytes) < 4096
    assert pickle.loads(sent_bytes).batch["ids"].tolist() == list(range(192, 256))


def test_what_arrives_is_a_view_that_fetches_for_itself(
    client: FakeClient, view: LazyDataProto
) -> None:
    arrived = sent(view[10:20].rename("ids", "input_ids"))
    assert type(arrived) is LazyDataProto
    assert arrived.meta_info == {"step": 3}
    assert client.gets == []
    assert arrived.batch["input_ids"][0, 0] == 640
    assert arrived.non_tensor_batch["uid"][0] == 10
    assert client.gets == [(10, ["ids", "uid"])]
    assert arrived.handle.uids.tolist() == view.handle.uids[10:20].tolist()


def test_local_columns_travel_and_stay_local(client: FakeClient, view: LazyDataProto) -> None:
    view.batch["values"] = torch.arange(ROWS)
    view.non_tensor_batch["note"] = objects(*range(ROWS))
    arrived = sent(view[:3])
    assert arrived.local_fields == ["values", "note"]
    assert arrived.batch["values"].tolist() == [0, 1, 2]
    assert arrived.push().fields.keys() >= {"values", "note"}


def test_a_slice_does_not_carry_its_neighbours(view: LazyDataProto) -> None:
    view.batch["big"] = torch.zeros(ROWS, 4096)
    assert len(pickle.dumps(view[5:6])) < 4096 * 4 + 2048


def test_an_edited_tensor_travels_and_an_unedited_one_does_not(
    client: FakeClient, view: LazyDataProto
) -> None:
    view.prefetch()
    view[:4].batch["ids"].zero_()
    arrived = sent(view[2:6])
    assert arrived.batch["ids"][:, 1].tolist() == [0, 0, 257, 321]
    assert client.gets == [(ROWS, ["ids", "uid"])]
    assert sent(arrived.select_idxs([0])).batch["ids"].sum() == 0
    assert arrived.local_fields == []


def test_jagged_columns_that_share_offsets_still_do(client: FakeClient) -> None:
    tokens = jagged(torch.ones(2), torch.ones(3))
    view = client.view(client.put({"x": torch.zeros(2)}))
    view.batch["tokens"], view.batch["weights"] = tokens, tokens * 2
    arrived = sent(view)
    assert (arrived.batch["tokens"] * arrived.batch["weights"]).values().sum() == 10


def test_a_join_of_several_sources_travels(client: FakeClient) -> None:
    parts = [client.view(client.put(example_columns(), partition=name)) for name in ("a", "b")]
    parts[0].batch["ids"].zero_()
    parts[1].batch["mask"] = torch.ones(6, 4, dtype=torch.bool)
    whole = DataProto.concat(parts)[[11, 0, 6, 1]]
    gets = len(client.gets)
    arrived = sent(whole)
    assert len(client.gets) == gets
    assert frozen(arrived.materialize()) == frozen(whole.materialize())


def test_a_view_without_tensors_rows_or_columns_travels(client: FakeClient) -> None:
    view = client.view(client.put({"uid": objects("a", "b"), "x": torch.zeros(2)}))
    assert sent(view.select(batch_keys=[])).non_tensor_batch["uid"].tolist() == ["a", "b"]
    assert len(sent(view[:0])) == 0
    assert sent(view[:0]).batch["x"].shape == (0,)
    assert sent(client.view(view.handle.select(["uid"]))).batch is None
    assert len(sent(client.view(view.handle.select([])))) == 2


def test_a_device_that_is_not_there_becomes_the_cpu(
    client: FakeClient, view: LazyDataProto
) -> None:
    assert sent(view.to("cpu")).batch.device == torch.device("cpu")


def test_no_client_and_no_key_is_in_a_pickle(view: LazyDataProto) -> None:
    assert b"FakeClient" not in pickle.dumps(view)


def test_a_slice_of_no_rows_with_a_step_travels(client: FakeClient, view: LazyDataProto) -> None:
    view.batch["values"] = torch.arange(float(ROWS))
    assert sent(view.slice(3, 3, 2)).batch["values"].shape == (0,)
