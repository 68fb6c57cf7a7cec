"""`Dispatch.HANDLE` end to end: ranks as threads, a real service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.workers.stage_workers import Critic, Plain
from transferqueue.errors import (
    DuplicateRows,
    FieldExists,
    FieldsMissing,
    InvalidInput,
    UndeclaredWrite,
    UnknownField,
    WriteMissing,
    WrongRowCount,
)
from transferqueue.view import DataProto
from transferqueue.view.lazy_dataproto import LazyDataProto
from workers import (
    Dispatch,
    HandleFuture,
    LocalWorkerGroup,
    Mesh,
    Worker,
    WorkerFailed,
    by_tokens,
    register,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=64 << 20) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=20) as client:
        yield client


@pytest.fixture
def group(service: tq.Service) -> Iterator[LocalWorkerGroup]:
    with LocalWorkerGroup(Critic, 4, service=service) as group:
        yield group


def put_ids(client: tq.Client, num_rows: int, **more: Any) -> tq.BatchHandle:
    ids = torch.arange(num_rows * 2).reshape(num_rows, 2)
    return client.put({"ids": ids, **more}, partition="train", meta_info={"temperature": 0.5})


def fields_of(client: tq.Client, handle: tq.BatchHandle, name: str) -> torch.Tensor:
    return torch.as_tensor(client.get_columns(handle, fields=[name])[name])


@pytest.mark.parametrize("num_rows", [1, 2, 8, 10, 13])
def test_the_answer_is_the_handle_with_the_written_field(
    client: tq.Client, group: LocalWorkerGroup, num_rows: int
) -> None:
    before = put_ids(client, num_rows)
    after = group.compute_values(before)
    assert after.uids.tolist() == before.uids.tolist()
    assert list(after.fields) == ["ids", "values"]
    assert list(before.fields) == ["ids"]
    assert torch.equal(
        fields_of(client, after, "values"), fields_of(client, before, "ids").float() * 2
    )


def test_metrics_come_back_from_every_rank(client: tq.Client, group: LocalWorkerGroup) -> None:
    after = group.compute_values(put_ids(client, 5))
    assert after.meta_info == {"temperature": 0.5, "metrics": {"rank": [0, 1, 2, 3]}}
    assert [metrics["rows"] for metrics in group.update(after)] == [2, 1, 1, 1]
    assert group.as_verl_does(after).meta_info["metrics"] == {"rows": [2, 1, 1, 1]}


def test_no_rows_are_a_batch_too(client: tq.Client, group: LocalWorkerGroup) -> None:
    after = group.compute_values(put_ids(client, 3)[:0])
    assert len(after) == 0
    assert after.fields["values"].dtype == "float32"


def test_a_handle_by_keyword_and_other_arguments(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    after = group.compute_values(data=put_ids(client, 4), shift=1.0)
    assert fields_of(client, after, "values")[0].tolist() == [1.0, 3.0]
    after = group.compute_values(put_ids(client, 4), 2.0)
    assert fields_of(client, after, "values")[0].tolist() == [2.0, 4.0]


def test_optional_reads_come_where_they_are(client: tq.Client, group: LocalWorkerGroup) -> None:
    handle = put_ids(client, 4, mask=torch.tensor([[0.0], [1.0], [0.0], [1.0]]))
    values = fields_of(client, group.compute_values(handle), "values")
    assert values.tolist() == [[0, 0], [4, 6], [0, 0], [12, 14]]


def test_replicas_see_the_same_rows_and_one_of_them_stores(
    service: tq.Service, client: tq.Client
) -> None:
    with LocalWorkerGroup(Critic, mesh=Mesh.of(dp=2, tp=2), service=service) as group:
        after = group.compute_values(put_ids(client, 5))
        assert after.meta_info["metrics"]["rank"] == [0, 1, 2, 3]
        assert [one["rows"] for one in group.update(after)] == [3, 3, 2, 2]
        written = group.report().of_method("compute_values")["values"].written_bytes
        assert written == 5 * 2 * 4
        assert group.report().of_method("compute_values")["ids"].read_bytes == 2 * 5 * 2 * 8


def test_by_tokens_every_row_is_written_once(client: tq.Client, group: LocalWorkerGroup) -> None:
    handle = put_ids(client, 9)
    after = group.compute_values(by_tokens(handle, [100, 1, 1, 1, 1, 1, 1, 1, 100]))
    assert after.uids.tolist() == handle.uids.tolist()
    assert torch.equal(
        fields_of(client, after, "values"), fields_of(client, handle, "ids").float() * 2
    )


@pytest.mark.parametrize("fat", [False, True])
def test_a_view_is_split_by_tokens_too_and_its_rows_stay_in_order(
    service: tq.Service, client: tq.Client, *, fat: bool
) -> None:
    """Also where they repeat, and what is written becomes new samples, part by part."""
    lengths = [1, 100, 1, 1, 100, 1, 1, 1, 1, 50]
    view = client.view(put_ids(client, 5)).repeat(2)
    with LocalWorkerGroup(Critic, 3, service=service, fat=fat) as group:
        for batch, weights in ((view, lengths), (view[::2], lengths[::2])):
            after = batch.union(group.compute_values(by_tokens(batch, weights)))
            assert torch.equal(after.batch["values"], batch.batch["ids"].float() * 2)


def test_padding_rows_are_counted_to_the_method_and_stored_nowhere(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    handle = put_ids(client, 5)
    after = group.compute_padded(handle)
    assert after.meta_info["metrics"] == {"rows": [2, 2, 2, 2], "padding": [0, 1, 1, 1]}
    assert len(after) == 5
    assert "num_padding_rows" not in after.meta_info
    assert torch.equal(fields_of(client, after, "padded"), fields_of(client, handle, "ids").float())


def test_more_ranks_than_rows_with_padding(client: tq.Client, group: LocalWorkerGroup) -> None:
    handle = put_ids(client, 1)
    after = group.compute_padded(handle)
    assert after.meta_info["metrics"] == {"rows": [1, 1, 1, 1], "padding": [0, 1, 1, 1]}
    assert fields_of(client, after, "padded").tolist() == [[0.0, 1.0]]


def test_edits_in_place_stay_with_the_worker(client: tq.Client, group: LocalWorkerGroup) -> None:
    handle = put_ids(client, 4)
    after = group.edit_in_place(handle)
    assert fields_of(client, after, "edited").tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert fields_of(client, handle, "ids").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_declared_reads_come_in_one_request(service: tq.Service, client: tq.Client) -> None:
    handle = put_ids(client, 4, mask=torch.ones(4, 1))

    class Reader(Worker):
        @register(Dispatch.HANDLE, reads=["ids", "mask"])
        def read(self, data: LazyDataProto) -> int:
            assert data.report()["requests"] == 1
            _ = data.batch["ids"], data.batch["mask"]
            return int(data.report()["requests"])

    with LocalWorkerGroup(Reader, 2, service=service) as group:
        assert group.read(handle) == [1, 1]


def test_undeclared_reads_work_and_are_counted(client: tq.Client, group: LocalWorkerGroup) -> None:
    assert sum(group.touch_undeclared(put_ids(client, 4))) == sum(range(8))
    report = group.report()
    assert [(row.method, row.field) for row in report.undeclared] == [("touch_undeclared", "ids")]
    assert report.undeclared[0].counts.undeclared_bytes == 4 * 2 * 8


def test_what_is_fetched_and_not_looked_at_is_reported(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    group.fetch_in_vain(put_ids(client, 4, mask=torch.ones(4, 1)))
    (row,) = group.report().over_fetched
    assert (row.role, row.method, row.field) == ("Critic", "fetch_in_vain", "mask")
    assert row.counts.untouched_bytes == row.counts.read_bytes == 4 * 4


def test_object_columns_are_counted_by_what_they_took_on_the_wire(
    service: tq.Service, client: tq.Client
) -> None:
    prompts = [{"text": "x" * 1000}] * 4

    class Reader(Worker):
        @register(Dispatch.HANDLE, reads=["prompt"])
        def read(self, data: DataProto) -> int:
            return len(data)

    with LocalWorkerGroup(Reader, 2, service=service) as group:
        group.read(client.put({"prompt": prompts}))
        assert group.report().of_method("read")["prompt"].untouched_bytes > 4000


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("undeclared", UndeclaredWrite, "Critic.write_wrongly on rank 2 returned .*'worse'"),
        ("missing", WriteMissing, "Critic.write_wrongly on rank 2 returned no 'bad'"),
        ("rows", WrongRowCount, "on rank 2 was given 2 rows and returned 3 of 'bad'"),
    ],
)
def test_a_rank_that_writes_what_it_must_not_stores_nothing(
    client: tq.Client, group: LocalWorkerGroup, how: str, error: type[Exception], message: str
) -> None:
    handle = put_ids(client, 8)
    with pytest.raises(error, match=message):
        group.write_wrongly(handle, how, on_rank=2)
    with pytest.raises(FieldsMissing, match=r"'bad' \(2 of 8 rows\)"):
        client.get_columns(handle, fields=["bad"])
    group.compute_values(handle)


def test_a_value_that_no_handle_carries_is_refused_before_anything_is_stored(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    handle = put_ids(client, 1)
    with pytest.raises(WorkerFailed, match="metrics") as error:
        group.write_wrongly(handle, "meta")
    assert isinstance(error.value.cause, InvalidInput)
    with pytest.raises(FieldsMissing):
        client.get_columns(handle, fields=["bad"])


def test_a_read_that_is_nowhere_fails_before_the_method_starts(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    with pytest.raises(WorkerFailed, match="read_what_is_not_there failed on rank 0") as error:
        group.read_what_is_not_there(put_ids(client, 4))
    assert isinstance(error.value.cause, FieldsMissing)
    with pytest.raises(WorkerFailed) as error:
        group.read_what_is_not_there(put_ids(client, 4)[:0])
    assert isinstance(error.value.cause, UnknownField)


def test_a_field_written_since_the_handle_was_made_is_found(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    handle = put_ids(client, 4)
    group.compute_values(handle)
    assert sum(one["rows"] for one in group.update(handle)) == 4


def test_writing_twice_is_an_error(client: tq.Client, group: LocalWorkerGroup) -> None:
    handle = put_ids(client, 4)
    group.compute_values(handle)
    with pytest.raises(WorkerFailed) as error:
        group.compute_values(handle)
    assert isinstance(error.value.cause, FieldExists)


def test_a_call_that_failed_on_a_rank_can_be_made_again(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    handle = put_ids(client, 8)
    with pytest.raises(WorkerFailed, match="no luck"):
        group.write_again(handle, fails=True)
    after = group.write_again(handle, fails=False)
    assert torch.equal(fields_of(client, after, "again"), fields_of(client, handle, "ids") + 1)


def test_a_repeated_row_cannot_be_written(client: tq.Client, group: LocalWorkerGroup) -> None:
    repeated = put_ids(client, 2).repeat(2)
    with pytest.raises(DuplicateRows):
        group.compute_values(repeated)
    assert len(group.touch_undeclared(repeated)) == 4


def test_a_future_handle_is_dispatched_before_it_is_ready(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    handle = put_ids(client, 5)
    first = group.write_slowly(handle)
    second = group.write_after(first)
    assert isinstance(first, HandleFuture)
    assert len(second) == 5
    assert second.handle.uids.tolist() == handle.uids.tolist()
    after = second.get()
    assert list(after.fields) == ["ids", "slow", "slower"]
    assert torch.equal(
        fields_of(client, after, "slower"), fields_of(client, handle, "ids").float() + 1
    )
    assert list(first.get().fields) == ["ids", "slow"]


def test_the_failure_of_a_call_is_the_failure_of_those_that_wait_for_it(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    first = group.write_slowly(put_ids(client, 4), fails=True)
    second = group.write_after(first)
    for future in (first, second):
        with pytest.raises(WorkerFailed, match=r"Critic.write_slowly failed on rank 1.*no luck"):
            future.get()
    group.compute_values(put_ids(client, 4))


def test_coroutine_methods_take_handles(client: tq.Client, group: LocalWorkerGroup) -> None:
    after = group.compute_later(put_ids(client, 4))
    assert fields_of(client, after, "later").shape == (4, 2)


def test_rank_zero_may_take_all_rows(client: tq.Client, group: LocalWorkerGroup) -> None:
    assert group.total(put_ids(client, 4)) == sum(range(8))


def test_handles_of_new_samples_come_back_joined(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    made = group.generate(put_ids(client, 5))
    assert (made.partition, len(made)) == ("generated", 10)
    assert fields_of(client, made, "response")[:, 0].tolist() == [
        1, 1, 3, 3, 5, 5, 7, 7, 9, 9
    ]  # fmt: skip


def test_a_lazy_view_goes_in_and_comes_out(client: tq.Client, group: LocalWorkerGroup) -> None:
    batch = client.view(put_ids(client, 5))
    batch.batch["mask"] = torch.full((5, 1), 3.0)
    values = group.compute_values(batch)
    assert isinstance(values, LazyDataProto)
    assert values.batch["values"][1].tolist() == [12.0, 18.0]
    batch = batch.union(values.select(batch_keys=["values"]))
    assert sum(one["rows"] for one in group.update(batch)) == 5


def test_a_shipped_batch_is_refused_with_what_to_do(group: LocalWorkerGroup) -> None:
    with pytest.raises(InvalidInput, match="put a batch first"):
        group.compute_values(DataProto.from_single_dict({"ids": torch.ones(4, 2)}))


def test_one_flag_ships_the_columns_instead_with_equal_numbers(
    service: tq.Service, client: tq.Client
) -> None:
    handle = put_ids(client, 10)
    columns = client.get_columns(handle)
    with (
        LocalWorkerGroup(Critic, 4, service=service) as by_handle,
        LocalWorkerGroup(Critic, 4, fat=True) as fat,
    ):
        batch = DataProto.from_single_dict(columns)
        shipped = fat.compute_values(batch)
        stored = by_handle.compute_values(handle)
        assert torch.equal(shipped.batch["values"], fields_of(client, stored, "values"))
        assert shipped.meta_info["metrics"] == stored.meta_info["metrics"]
        batch = batch.union(shipped.select(meta_info_keys=[]))
        assert fat.update(batch) == by_handle.update(stored)
        by_field = (
            fat.report().of_method("compute_values"),
            by_handle.report().of_method("compute_values"),
        )
        for field in ("ids", "values"):  # side by side: the same numbers, wherever both move it
            assert by_field[0][field] == by_field[1][field]


def test_a_report_of_shipped_batches_counts_what_ranks_got_and_gave(
    service: tq.Service, client: tq.Client
) -> None:
    columns = {"ids": torch.ones(10, 2, dtype=torch.int64), "unread": torch.zeros(10, 8)}
    view = client.view(client.put(columns))
    with LocalWorkerGroup(Critic, 4, service=service, fat=True) as fat:
        batch = view.union(fat.compute_values(view).select(meta_info_keys=[]))
        fat.update(batch)
        report = fat.report()
        with pytest.raises(InvalidInput, match=r"give it client.view\(handle\)"):
            fat.update(view.handle)
    values = report.of_method("compute_values")
    assert {name: one.read_bytes for name, one in values.items()} == {
        "ids": 10 * 2 * 8, "unread": 10 * 8 * 4, "values": 0
    }  # fmt: skip
    assert {name: one.written_bytes for name, one in values.items()} == {
        "ids": 0, "unread": 0, "values": 10 * 2 * 4
    }  # fmt: skip
    assert {row.field for row in report.over_fetched} == {"unread"}
    assert report.total("update").read_bytes == 10 * (2 * 8 + 8 * 4 + 2 * 4)
    assert report.controller_bytes == report.read_bytes + report.written_bytes
    text = str(report)
    assert "shipped 1.0 KiB, 640 B of it to methods that do not declare them" in text
    assert "Critic.update" in text


def test_methods_that_are_shipped_batches_by_their_mode_are_counted_too() -> None:
    with LocalWorkerGroup(Plain, 2) as group:
        group.double(DataProto.from_single_dict({"x": torch.arange(6)}))
        counts = group.report().of_method("double")["x"]
        assert (counts.read_bytes, counts.written_bytes) == (48, 48)


def test_the_controller_sees_no_column(client: tq.Client, group: LocalWorkerGroup) -> None:
    rows = 64
    handle = client.put({"ids": torch.zeros(rows, 4096, dtype=torch.int64)})
    group.compute_values(handle)
    report = group.report()
    assert report.read_bytes == rows * 4096 * 8
    assert report.controller_bytes < 4096


def test_ragged_and_object_columns_are_written_as_they_are(
    service: tq.Service, client: tq.Client
) -> None:
    class Writer(Worker):
        @register(Dispatch.HANDLE.padded(), reads=["ids"], writes=["ragged", "objects"])
        def write(self, data: DataProto) -> dict[str, Any]:
            rows = [torch.full((1 + int(row[0]) % 3,), float(row[0])) for row in data.batch["ids"]]
            return {
                "ragged": torch.nested.nested_tensor(rows, layout=torch.jagged),
                "objects": [{"id": int(row[0]), "t": (1, None)} for row in data.batch["ids"]],
            }

    with LocalWorkerGroup(Writer, 4, service=service) as group:
        after = group.write(put_ids(client, 5))
        columns = client.get_columns(after, fields=["ragged", "objects"])
        assert [len(row) for row in columns["ragged"].unbind()] == [1, 3, 2, 1, 3]
        assert columns["objects"].tolist() == [{"id": 2 * i, "t": (1, None)} for i in range(5)]
        assert isinstance(columns["objects"], np.ndarray)


def test_metrics_come_back_by_rank_as_the_readme_says(
    client: tq.Client, group: LocalWorkerGroup
) -> None:
    view = client.view(put_ids(client, 5))
    after = group.compute_values(view)
    assert after.meta_info["metrics"] == {"rank": [0, 1, 2, 3]}
    rows = [one["rows"] for one in group.update(after)]
    assert rows == [2, 1, 1, 1]
    assert group.as_verl_does(view).meta_info["metrics"] == {"rows": rows}
    assert group.touch_undeclared(view)
    assert "undeclared" in str(group.report())
    assert client.put({"x": torch.ones(1)}).partition == "default"
