"""A view moves names and row numbers; a column comes when somebody reads it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tests.view.lazy_fakes import FakeClient, eager, example_columns, frozen, objects
from transferqueue.errors import (
    BatchInconsistent,
    ColumnConflict,
    ColumnsDiffer,
    DuplicateRows,
    FieldExists,
    FieldSpecMismatch,
    InvalidInput,
    MetaTooLarge,
    RowCountMismatch,
    UnknownColumn,
)
from transferqueue.view import (
    BatchData,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    unpad_dataproto,
)
from transferqueue.view.dataproto import DataProto
from transferqueue.view.lazy_dataproto import LazyDataProto

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def view(client: FakeClient) -> LazyDataProto:
    return client.view(client.put(example_columns(), meta_info={"step": 3}))


def test_copies_and_rows_of_an_assigned_batch_keep_each_column_under_its_name(
    view: LazyDataProto,
) -> None:
    """The columns of an ordinary TensorDict are wrapped anew by each operation: what one
    remembers of a wrapper must not be taken for that of another at the same address."""
    names = [f"c{number}" for number in range(12)]
    for _ in range(20):
        tensors = {name: torch.full((6,), number) for number, name in enumerate(names)}
        view.batch = TensorDict(tensors, batch_size=[6])
        view.non_tensor_batch = {f"a{name}": np.full(6, n) for n, name in enumerate(names)}
        made = [copy.deepcopy(view), view.select(deepcopy=True), view[[0, 2]], view[1:3]]
        made += [*view.chunk(2), view.repeat(2), DataProto.concat([view, view])]
        for batch in made:
            assert [int(batch.batch[name][0]) for name in names] == [*range(12)]
            assert [int(batch.non_tensor_batch[f"a{name}"][0]) for name in names] == [*range(12)]


@pytest.mark.parametrize("column", [[1] * 6, torch.arange(6), "abcdef", np.arange(5)], ids=type)
def test_an_assigned_column_that_is_no_array_of_the_rows_is_refused_by_every_row_operation(
    view: LazyDataProto, column: Any
) -> None:
    view.non_tensor_batch["acc"] = column
    for operation in (
        lambda: view[:2],
        lambda: view[[0, 1]],
        lambda: view.chunk(2),
        lambda: view.repeat(2),
        lambda: view.padding(1),
        lambda: DataProto.concat([view, view]),
    ):
        with pytest.raises(BatchInconsistent, match=r"non_tensor_batch\['acc'\]"):
            operation()
    assert view.non_tensor_batch["acc"] is column


def test_making_a_view_asks_the_service_for_nothing(
    client: FakeClient, view: LazyDataProto
) -> None:
    assert isinstance(view, DataProto)
    assert len(view) == 6
    assert view.meta_info == {"step": 3}
    assert list(view.batch.keys()) == ["ids", "mask", "log_probs", "score", "tokens", "weights"]
    assert list(view.non_tensor_batch) == ["uid", "extra", "name", "index"]
    assert "ids: (6, 4) (torch.int64), not fetched" in repr(view)
    assert "tokens: (6, ragged) (torch.int64), not fetched" in repr(view)
    assert client.gets == []


ON_ROWS_AND_NAMES: dict[str, Callable[[LazyDataProto], Any]] = {
    "chunk": lambda view: view.chunk(3),
    "split": lambda view: view.split(4),
    "slice": lambda view: view.slice(1, 5, 2),
    "select_idxs": lambda view: view.select_idxs([4, 4, -1]),
    "mask": lambda view: view[torch.tensor([True, False] * 3)],
    "slice by []": lambda view: view[2:],
    "reorder": lambda view: view.reorder(torch.tensor([5, 4, 3, 2, 1, 0])),
    "repeat": lambda view: view.repeat(3),
    "repeat in turn": lambda view: view.repeat(2, interleave=False),
    "sample_level_repeat": lambda view: view.sample_level_repeat([0, 1, 2, 3, 0, 1]),
    "concat": lambda view: DataProto.concat([view, view[:2], view.repeat(2)]),
    "union": lambda view: view.select(["ids"], []).union(view.select(["mask"], ["uid"])),
    "union of one field": lambda view: view.union(copy.deepcopy(view)),
    "select": lambda view: view.select(["ids"], ["uid"], ["step"]),
    "select deepcopy": lambda view: view.select(["ids"], deepcopy=True),
    "pop": lambda view: view.pop(["ids"], ["uid"]),
    "rename": lambda view: view.rename(["ids", "uid"], ["input_ids", "prompt"]),
    "padding": lambda view: view.padding(2),
    "pad": lambda view: pad_dataproto_to_divisor(view, 4)[0],
    "unpad": lambda view: unpad_dataproto(view, 1),
    "to": lambda view: view.to("cpu"),
    "copy": copy.copy,
    "row": lambda view: view[0],
    "BatchData": lambda view: BatchData(BatchData(view).chunk(2)).concat(),
    "make_iterator": lambda view: list(view.make_iterator(2, 2, seed=1)),
    "handle": lambda view: view.handle,
    "info": lambda view: view.get_data_info(),
}


@pytest.mark.parametrize("operation", ON_ROWS_AND_NAMES.values(), ids=ON_ROWS_AND_NAMES.keys())
def test_an_operation_on_rows_or_names_moves_no_byte(
    operation: Callable[[LazyDataProto], Any], client: FakeClient, view: LazyDataProto
) -> None:
    result = operation(view)
    for batch in result if isinstance(result, list) else [result]:
        if isinstance(batch, DataProto):
            assert type(batch) is LazyDataProto
            batch.chunk(len(batch))
    assert client.gets == []


def test_a_touched_column_comes_alone_and_once(client: FakeClient, view: LazyDataProto) -> None:
    assert view.batch["ids"] is view.batch["ids"]
    assert view.select(["ids"]).batch["ids"] is view.batch["ids"]
    assert client.gets == [(6, ["ids"])]


def test_declared_columns_come_together_at_the_first_touch_of_one(client: FakeClient) -> None:
    view = client.view(client.put(example_columns()), reads=["ids", "tokens", "uid"])
    assert client.gets == []
    assert view.non_tensor_batch["uid"][0] == "prompt-0"
    assert [(rows, sorted(names)) for rows, names in client.gets] == [(6, ["ids", "tokens", "uid"])]
    view.batch["ids"], view.batch["tokens"]
    assert len(client.gets) == 1


def test_declared_columns_of_a_chunk_come_together_and_only_its_rows(client: FakeClient) -> None:
    view = client.view(client.put(example_columns()), reads=["ids", "uid"])
    second = view.chunk(3)[1].repeat(2)
    assert second.batch["ids"][:, 0].tolist() == [8, 8, 12, 12]
    assert client.gets == [(4, ["ids", "uid"])]


def test_a_read_that_the_handle_does_not_have_is_refused_at_once(client: FakeClient) -> None:
    handle = client.put(example_columns())
    with pytest.raises(UnknownColumn, match="did you mean 'ids'"):
        client.view(handle, reads=["idss"])


def test_prefetch_brings_what_is_named_in_one_request(
    client: FakeClient, view: LazyDataProto
) -> None:
    assert view.prefetch(["mask", "name"]) is view
    view.batch["mask"], view.non_tensor_batch["name"]
    assert client.gets == [(6, ["mask", "name"])]
    view.prefetch()
    assert len(client.gets) == 2
    with pytest.raises(UnknownColumn):
        view.prefetch(["nothing"])


def test_all_columns_at_once_are_one_request(client: FakeClient, view: LazyDataProto) -> None:
    assert frozen(view.materialize()) == frozen(eager(example_columns(), {"step": 3}))
    assert len(client.gets) == 1
    assert view.materialize() == view
    assert len(client.gets) == 1


def test_materialize_gives_an_eager_batch_of_the_columns_named(
    client: FakeClient, view: LazyDataProto
) -> None:
    batch = view.materialize(["ids", "uid"])
    assert type(batch) is DataProto
    assert frozen(batch) == frozen(eager(example_columns(), {"step": 3}).select(["ids"], ["uid"]))
    assert batch.batch["ids"] is view.batch["ids"]
    assert client.gets == [(6, ["ids", "uid"])]


def test_reading_after_an_edit_in_place_sees_the_edit(
    client: FakeClient, view: LazyDataProto
) -> None:
    view.batch["ids"][0] = -1
    view.non_tensor_batch["uid"][0] = "edited"
    view.reorder([1, 0])
    part = DataProto.concat([view, view]).repeat(2).select(["ids"])[2:]
    assert part.batch["ids"][0].tolist() == [-1] * 4
    assert part.non_tensor_batch["uid"][0] == "edited"
    assert view.rename("ids", "input_ids").batch["input_ids"][1].tolist() == [-1] * 4
    assert client.fields_got == ["ids", "uid"]


def test_an_edit_of_a_slice_shows_in_the_batch_and_one_of_chosen_rows_does_not(
    view: LazyDataProto,
) -> None:
    view.batch["ids"], view.non_tensor_batch["index"]
    view[:3].batch["ids"][0] = -1
    view[:3].non_tensor_batch["index"][0] = -1
    view[[1, 2]].batch["ids"][0] = -2
    assert view.batch["ids"][0, 0] == view.non_tensor_batch["index"][0] == -1
    assert view.batch["ids"][1, 0] == 4


def test_an_edit_in_one_view_shows_in_no_other(client: FakeClient) -> None:
    handle = client.put(example_columns())
    one, other = client.view(handle), client.view(handle)
    one.batch["ids"].zero_()
    assert other.batch["ids"].sum() > 0


def test_one_field_under_two_names_is_fetched_once_and_edited_apart(
    client: FakeClient, view: LazyDataProto
) -> None:
    view = view[:3].rename("ids", "other").union(view[:3])
    view.prefetch(["other", "ids"])
    view.batch["ids"].zero_()
    assert view.batch["other"].sum() > 0
    assert client.gets == [(3, ["ids"])]


def test_drop_lets_go_of_what_was_fetched_and_of_nothing_else(
    client: FakeClient, view: LazyDataProto
) -> None:
    view.batch["ids"][0] = -1
    view.batch["values"] = torch.ones(6)
    view.drop()
    assert view.batch["ids"][0, 1] == 1
    assert view.batch["values"].sum() == 6
    assert client.fields_got == ["ids", "ids"]


# ---- local columns


def test_what_is_assigned_is_local_until_it_is_pushed(
    client: FakeClient, view: LazyDataProto
) -> None:
    view.batch["values"] = torch.arange(6.0)
    view.non_tensor_batch["note"] = objects(*"abcdef")
    assert view.local_fields == ["values", "note"]
    assert "values" not in view.handle
    handle = view.push()
    assert view.local_fields == []
    assert handle == view.handle
    assert set(handle.fields) == {*example_columns(), "values", "note"}
    assert client.puts[-1] == ["values", "note"]
    again = client.view(handle.select(["values", "note"]))
    assert again.batch["values"].tolist() == [0, 1, 2, 3, 4, 5]
    assert again.non_tensor_batch["note"].tolist() == list("abcdef")
    assert "ids" not in client.fields_got


def test_push_writes_what_is_named(client: FakeClient, view: LazyDataProto) -> None:
    view.batch["a"], view.batch["b"] = torch.arange(6), torch.arange(6)
    view.push("a")
    assert view.local_fields == ["b"]
    with pytest.raises(UnknownColumn):
        view.push(["c"])
    assert client.puts[-1] == ["a"]


def test_push_without_local_columns_writes_nothing(client: FakeClient, view: LazyDataProto) -> None:
    view.batch["ids"].zero_()
    assert view.push() == view.handle
    assert len(client.puts) == 1


def test_a_field_that_is_stored_is_written_again_only_if_told_to(
    client: FakeClient, view: LazyDataProto
) -> None:
    view.batch["ids"] = torch.zeros(6, 4, dtype=torch.int64)
    with pytest.raises(FieldExists, match="overwrite=True"):
        view.push()
    assert view.local_fields == ["ids"]
    view.push(overwrite=True)
    assert client.view(view.handle).batch["ids"].sum() == 0


def test_an_edited_column_is_written_when_it_is_named(
    client: FakeClient, view: LazyDataProto
) -> None:
    view.batch["ids"].zero_()
    handle = view.push(["ids"], overwrite=True)
    assert client.view(handle).batch["ids"].sum() == 0


def test_rows_that_are_one_sample_are_stored_once_where_they_agree(
    client: FakeClient, view: LazyDataProto
) -> None:
    view.batch["values"] = torch.arange(6)
    view.non_tensor_batch["group"] = objects(*[[k] for k in range(6)])
    for number, repeated in enumerate((view.repeat(2), pad_dataproto_to_divisor(view, 4)[0])):
        handle = repeated.rename(["values", "group"], [f"v{number}", f"g{number}"]).push()
        stored = client.view(handle[:6])
        assert torch.equal(client.view(handle).batch[f"v{number}"], repeated.batch[f"v{number}"])
        assert sorted(stored.non_tensor_batch[f"g{number}"].tolist())[0] == [0]
        assert len(client.puts) == 2 + number


def test_rows_that_are_one_sample_and_differ_are_not_stored(
    client: FakeClient, view: LazyDataProto
) -> None:
    for repeated in (view.repeat(2), pad_dataproto_to_divisor(view, 4)[0]):
        repeated.batch["values"] = torch.arange(len(repeated))
        with pytest.raises(DuplicateRows, match=r"column 'values' differs .* of 6 samples"):
            repeated.push()
    padded, pad_size = pad_dataproto_to_divisor(view, 4)
    padded.batch["values"] = torch.arange(8)
    unpad_dataproto(padded, pad_size).push()
    assert len(client.puts) == 2


def test_local_columns_go_through_every_operation_beside_remote_ones(
    client: FakeClient, view: LazyDataProto
) -> None:
    view.batch["values"] = torch.arange(6)
    view = DataProto.concat(view.repeat(2).select_idxs([11, 3, 3, 0]).chunk(2))
    view.rename("values", "v").pop(["score"])
    assert view.batch["v"].tolist() == [5, 1, 1, 0]
    assert client.gets == []
    assert view.batch["ids"][:, 0].tolist() == [20, 4, 4, 0]


def test_a_view_of_no_columns_has_the_rows_of_its_handle(client: FakeClient) -> None:
    view = client.view(client.put(example_columns()).select([]))
    assert len(view) == 6
    assert [len(part) for part in view.chunk(3)] == [2, 2, 2]
    view.union(eager({"values": torch.arange(6)}))
    assert list(view.push().fields) == ["values"]


# ---- several sources


def test_after_repeat_and_union_columns_come_from_two_sets_of_samples(client: FakeClient) -> None:
    prompts = client.view(client.put({"prompt": objects("a", "b"), "length": torch.tensor([1, 2])}))
    batch = prompts.repeat(2)
    rollouts = client.put({"responses": torch.arange(8).reshape(4, 2)}, partition="rollouts")
    batch.union(client.view(rollouts))
    assert client.gets == []
    assert batch.non_tensor_batch["prompt"].tolist() == ["a", "a", "b", "b"]
    assert batch[[3, 0]].batch["responses"].tolist() == [[6, 7], [0, 1]]
    assert [list(handle.fields) for handle in batch.handles] == [
        ["length", "prompt"],
        ["responses"],
    ]
    batch.batch["values"] = torch.arange(4)
    assert batch.handle.partition == "rollouts"
    assert batch.push().partition == "rollouts"
    assert list(client.view(batch.handle).batch["values"]) == [0, 1, 2, 3]


def test_columns_of_all_sources_come_in_one_request_each(client: FakeClient) -> None:
    view = client.view(client.put({"a": torch.arange(4), "b": torch.arange(4)}))
    other = client.view(client.put({"c": torch.arange(4), "d": torch.arange(4)}))
    view.union(other).prefetch()
    assert client.gets == [(4, ["a", "b"]), (4, ["c", "d"])]


def test_two_views_of_the_same_samples_unite_to_one_request_and_one_handle(
    client: FakeClient,
) -> None:
    handle = client.put({"a": torch.arange(4), "b": torch.arange(4)})
    view = client.view(handle.select(["a"])).union(client.view(handle.select(["b"])))
    assert list(view.handle.fields) == ["a", "b"]
    view.prefetch()
    assert client.gets == [(4, ["a", "b"])]


def test_union_knows_one_stored_field_without_a_look(client: FakeClient) -> None:
    handle = client.put(example_columns())
    client.view(handle).union(client.view(handle).rename("ids", "other"))
    assert client.gets == []


def test_union_compares_what_may_differ(client: FakeClient, view: LazyDataProto) -> None:
    changed = example_columns()["ids"]
    changed[2] = 0
    other = client.view(client.put({"ids": changed}))
    with pytest.raises(ColumnConflict, match="1 of 6 rows differ, the first is row 2"):
        view.union(other)
    assert client.gets == [(6, ["ids"]), (6, ["ids"])]
    edited = view.select(["ids"], deepcopy=True)
    edited.batch["ids"][2] = 0
    with pytest.raises(ColumnConflict):
        view.union(edited)


def test_union_of_other_row_counts_names_the_repeat_that_was_forgotten(
    client: FakeClient, view: LazyDataProto
) -> None:
    with pytest.raises(RowCountMismatch, match=r"repeat\(2\) the first one before"):
        view.union(client.view(client.put({"x": torch.arange(12)})))
    assert client.gets == []


def test_a_union_that_fails_changes_neither_side(client: FakeClient, view: LazyDataProto) -> None:
    other = client.view(client.put({"fresh": torch.arange(6), "ids": torch.zeros(6, 4)}))
    with pytest.raises(FieldSpecMismatch):
        view.union(other)
    assert "fresh" not in view.batch
    assert list(other.batch.keys()) == ["fresh", "ids"]
    assert len(view.handles) == 1


def test_concat_of_chunks_is_the_handle_that_was_cut(
    client: FakeClient, view: LazyDataProto
) -> None:
    whole = DataProto.concat(view.chunk(3))
    assert whole.handle == view.handle
    whole.prefetch(["ids", "uid"])
    assert client.gets == [(6, ["ids", "uid"])]


def test_concat_fetches_what_no_part_had_and_keeps_what_was_edited(
    client: FakeClient, view: LazyDataProto
) -> None:
    parts = view.chunk(3)
    parts[1].batch["ids"].zero_()
    whole = DataProto.concat(parts)
    parts[1].batch["ids"].fill_(7)
    assert client.gets == [(2, ["ids"])]
    assert whole[[0, 2, 5]].batch["ids"][:, 1].tolist() == [1, 0, 21]
    assert whole.batch["ids"][:, 1].tolist() == [1, 5, 0, 0, 17, 21]
    assert sum(rows for rows, _ in client.gets) <= 2 + 2 + 4


def test_concat_of_a_local_and_a_remote_column(client: FakeClient, view: LazyDataProto) -> None:
    local = eager(example_columns(), {"step": 3})
    whole = DataProto.concat([view, local])
    assert type(whole) is LazyDataProto
    assert client.gets == []
    assert frozen(whole.materialize()) == frozen(DataProto.concat([local, local]))


def test_concat_over_partitions_has_no_handle(client: FakeClient) -> None:
    train = client.view(client.put({"x": torch.arange(2)}, partition="train"))
    val = client.view(client.put({"x": torch.arange(3)}, partition="val"))
    whole = DataProto.concat([train, val])
    assert whole[[4, 0]].batch["x"].tolist() == [2, 0]
    with pytest.raises(InvalidInput, match="has no handle"):
        _ = whole.handle


def test_concat_refuses_what_an_eager_one_refuses_before_anything_moves(
    client: FakeClient,
) -> None:
    short = client.view(client.put({"x": torch.zeros(2, 5)}))
    long = client.view(client.put({"x": torch.zeros(2, 7)}))
    ragged = client.view(client.put({"x": example_columns()["weights"]}))
    with pytest.raises(FieldSpecMismatch, match="pad them to one length"):
        DataProto.concat([short, long])
    with pytest.raises(FieldSpecMismatch, match="ragged"):
        DataProto.concat([short, ragged])
    with pytest.raises(ColumnsDiffer):
        DataProto.concat([short, copy.copy(short).rename("x", "y")])
    assert client.gets == []


def test_concat_promotes_dtypes_as_an_eager_one_does(client: FakeClient) -> None:
    parts = [
        client.view(client.put({"x": torch.arange(2).to(d)})) for d in (torch.int64, torch.float32)
    ]
    assert DataProto.concat(parts).batch["x"].tolist() == [0.0, 1.0, 0.0, 1.0]


# ---- what has no handle, and what is refused


def test_rows_of_another_shape_are_no_samples(client: FakeClient, view: LazyDataProto) -> None:
    folded = fold_batch_dim(view.select(["ids", "mask"], ["index"]), 3)
    assert type(folded) is LazyDataProto
    assert folded.batch["ids"].shape == (3, 2, 4)
    assert len(client.gets) == 1
    with pytest.raises(InvalidInput, match="new samples"):
        folded.push()


def test_a_batch_of_other_rows_that_is_assigned_has_no_handle(view: LazyDataProto) -> None:
    view = view.select(["ids"], [])
    view.batch = view.batch[:2]
    with pytest.raises(InvalidInput, match="a batch of 2 rows was assigned to a view of 6"):
        view.push()


def test_an_array_of_another_length_is_found(view: LazyDataProto) -> None:
    view.non_tensor_batch["bad"] = np.zeros(5)
    with pytest.raises(BatchInconsistent, match=r"'bad'.* has 5 rows"):
        view.check_consistency()
    view.non_tensor_batch.pop("bad")
    view.check_consistency()


def test_meta_info_goes_with_the_handle_or_is_refused_by_name(view: LazyDataProto) -> None:
    view.meta_info["temperature"] = 0.5
    assert view.handle.meta_info == {"step": 3, "temperature": 0.5}
    view.meta_info["images"] = torch.zeros(100_000)
    with pytest.raises(MetaTooLarge, match="images"):
        _ = view.handle


def test_each_part_has_a_meta_info_of_its_own(view: LazyDataProto) -> None:
    first, second = view.chunk(2)
    first.meta_info["step"] = 9
    assert second.meta_info == view.meta_info == {"step": 3}


def test_uneven_chunks_are_refused_as_of_an_eager_batch(view: LazyDataProto) -> None:
    with pytest.raises(AssertionError, match="pad_dataproto_to_divisor"):
        view.chunk(4)


def test_a_failed_fetch_leaves_the_view_as_it_was(client: FakeClient, view: LazyDataProto) -> None:
    cells, client._cells = client._cells, {}
    with pytest.raises(LookupError, match="missing"):
        view.batch["ids"]
    client._cells = cells
    assert view.batch["ids"][1, 0] == 4


# ---- rows, and counters


def test_a_loop_over_rows_asks_for_each_column_once(
    client: FakeClient, view: LazyDataProto
) -> None:
    seen = [(row.non_tensor_batch["uid"], int(row.batch["ids"][0])) for row in view]
    assert seen == [(f"prompt-{row}", row * 4) for row in range(6)]
    assert view[-1].batch["tokens"].tolist() == [10, 11, 12]
    assert client.gets == [(6, ["uid"]), (6, ["ids"]), (6, ["tokens"])]


def test_minibatches_ask_for_their_own_rows(client: FakeClient) -> None:
    view = client.view(client.put(example_columns()), reads=["ids", "mask"])
    for batch in view.make_iterator(3, 2, seed=5):
        assert batch.batch["ids"].shape == (3, 4)
    assert client.gets == [(3, ["ids", "mask"])] * 4


def test_the_report_says_what_was_fetched_and_never_looked_at(client: FakeClient) -> None:
    view = client.view(client.put(example_columns()), reads=["ids", "mask"])
    for part in view.chunk(2):
        part.batch["ids"]
    view.batch["score"]
    report = view.report()
    assert report["requests"] == 3
    assert report["fetched"] == {
        "ids": {"rows": 6, "bytes": 192},
        "mask": {"rows": 6, "bytes": 24},
        "score": {"rows": 6, "bytes": 24},
    }
    assert report["untouched"] == {"mask": 24}
    assert report["undeclared"] == ["score"]
    assert report["fetched_bytes"] == 240
    assert report["untouched_bytes"] == 24
    view.chunk(2)[0].batch["mask"]
    assert view.report()["untouched"] == {}


def test_print_size_counts_what_is_here(
    client: FakeClient, view: LazyDataProto, capsys: pytest.CaptureFixture[str]
) -> None:
    view.print_size()
    assert "tensordict: 0.0 GB" in capsys.readouterr().out
    assert client.gets == []


def test_a_file_holds_the_columns_themselves(view: LazyDataProto, tmp_path: Any) -> None:
    view.save_to_disk(tmp_path / "batch")
    loaded = DataProto.load_from_disk(tmp_path / "batch")
    assert type(loaded) is DataProto
    assert frozen(loaded) == frozen(eager(example_columns(), {"step": 3}))


def test_a_view_made_of_data_is_all_local() -> None:
    view = LazyDataProto.from_dict({"x": torch.arange(3)}, {"y": [1, 2, 3]})
    assert type(view) is LazyDataProto
    assert view.local_fields == ["x", "y"]
    batch = TensorDict({"x": torch.arange(3)}, batch_size=[3])
    view = LazyDataProto(batch)
    assert view.batch is batch
    view.rename("x", "z").batch["w"] = torch.zeros(3)
    assert view[[2]].batch["z"].tolist() == [2]
