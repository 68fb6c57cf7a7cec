"""Whatever is done to a view is what is done to an eager batch of the same data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import transferqueue.view as protocol
from tests.view.lazy_fakes import FakeClient, eager, example_columns, frozen, jagged, objects
from transferqueue.view.dataproto import DataProto
from transferqueue.view.lazy_dataproto import LazyDataProto

if TYPE_CHECKING:
    from tensordict import TensorDict

Step = Callable[[DataProto], Any]
"""One operation; a batch, or batches, come back."""

TENSORS = ["ids", "mask", "log_probs", "score", "tokens", "weights"]
ARRAYS = ["uid", "extra", "name", "index"]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[DataProto, LazyDataProto]:
    """An eager batch and a view: some columns stored in one or two places, some fetched already,
    some edited since, some local."""
    num_rows = draw(st.integers(0, 6))
    names = draw(st.lists(st.sampled_from(TENSORS + ARRAYS), min_size=1, max_size=6, unique=True))
    if not set(names) & set(TENSORS):
        names.append("ids")
    columns = {name: example_columns(num_rows)[name] for name in names}
    meta = draw(st.sampled_from([{}, {"step": 1}, {"metrics": {"loss": 1.0}}]))
    homes = {name: draw(st.sampled_from(["first", "second", "local"])) for name in names}
    client = FakeClient()
    view: Any = None
    for home in ("first", "second"):
        mine = {name: columns[name] for name in names if homes[name] == home}
        if mine:
            handle = client.put(mine, meta_info=meta if view is None else {})
            reads = draw(st.lists(st.sampled_from(sorted(mine)), max_size=2))
            part = client.view(handle, reads)
            view = part if view is None else view.union(part)
    local = {
        name: value
        for name, value in example_columns(num_rows).items()
        if homes.get(name) == "local"
    }
    if view is None:
        view = LazyDataProto.from_single_dict(local, dict(meta))
    elif local:
        view = view.union(DataProto.from_single_dict(local))
    twin = eager({name: example_columns(num_rows)[name] for name in view._all_columns()}, meta)
    for name in draw(st.lists(st.sampled_from(names), max_size=2)):
        touch(name)(view)
    for name in draw(st.lists(st.sampled_from(names), max_size=2)):
        for batch in (twin, view):
            edit(name)(batch)
    return twin, view


def touch(name: str) -> Step:
    def step(batch: DataProto) -> DataProto:
        if name in batch.non_tensor_batch:
            batch.non_tensor_batch[name]
        elif batch.batch is not None and name in batch.batch.keys():  # noqa: SIM118
            batch.batch[name]
        return batch

    return step


def edit(name: str) -> Step:
    def step(batch: DataProto) -> DataProto:
        if name in batch.non_tensor_batch:
            batch.non_tensor_batch[name][:1] = batch.non_tensor_batch[name][-1:]
        elif batch.batch is not None and name in batch.batch.keys():  # noqa: SIM118
            column = batch.batch[name]
            cells = column.values() if column.is_nested else column
            cells[:1] = cells[-1:].clone()
        return batch

    return step


def assign(name: str) -> Step:
    def step(batch: DataProto) -> DataProto:
        if name in ARRAYS:
            batch.non_tensor_batch[name] = objects(*range(len(batch)))
        elif batch.batch is not None:
            batch.batch[name] = torch.arange(len(batch)) * 7
        return batch

    return step


def union_with_new(kind: str) -> Step:
    def step(batch: DataProto) -> DataProto:
        rows = len(batch)
        columns = {"fresh": torch.arange(rows), "fresh_uid": objects(*range(rows))}
        other: DataProto = eager(columns, {"more": 1})
        if kind == "view" and isinstance(batch, LazyDataProto):
            client = FakeClient(service_id="another")
            other = client.view(client.put(columns, meta_info={"more": 1}))
        return batch.union(other)

    return step


def union_with_part(kind: str) -> Step:
    """With columns of its own, taken before, after a rename, or changed in one."""

    def step(batch: DataProto) -> DataProto:
        names = [] if batch.batch is None else list(batch.batch.keys())[:1]
        part = batch.select(batch_keys=names, deepcopy=kind == "edited")
        if kind == "edited" and names:
            edit(names[0])(part)
        if kind == "renamed" and names:
            part.rename(names[0], "other_name")
        return batch.union(part)

    return step


def concat_with(kind: str) -> Step:
    def step(batch: DataProto) -> DataProto:
        half = batch[: len(batch) // 2]
        if kind == "touched" and batch.batch is not None:
            half = batch[::2]
            for name in list(half.batch.keys())[:1]:
                half.batch[name]
        if kind == "edited":
            # Of rows that are copied: a slice of what is not here has no memory to share.
            half = batch[list(range(len(batch) // 2))]
            for name in ("ids", "score", "tokens"):
                edit(name)(half)
        if kind == "eager" and isinstance(half, LazyDataProto):
            half = half.materialize()
        if kind == "fewer":
            half = half.select(batch_keys=[])
        return DataProto.concat([batch, half, batch[-1:]])

    return step


def pop(names: list[str]) -> Step:
    def step(batch: DataProto) -> list[DataProto]:
        tensors = [name for name in names if name not in ARRAYS]
        popped = batch.pop(
            batch_keys=tensors, non_tensor_batch_keys=[n for n in names if n in ARRAYS]
        )
        return [popped, batch]

    return step


def method(name: str, *args: Any, **kwargs: Any) -> Step:
    def step(batch: DataProto) -> Any:
        result = getattr(batch, name)(*args, **kwargs)
        return batch if result is None else result

    return step


def function(name: str, *args: Any) -> Step:
    def step(batch: DataProto) -> Any:
        result = getattr(protocol, name)(batch, *args)
        return result[0] if isinstance(result, tuple) else result

    return step


def tensordict_step(function: Callable[[TensorDict], Any]) -> Step:
    """Something done to ``batch`` alone, put back into the batch."""

    def step(batch: DataProto) -> DataProto:
        if batch.batch is not None:
            batch.batch = function(batch.batch)
        return batch

    return step


def items_stacked(batch: DataProto) -> DataProto:
    dense = batch.select(
        batch_keys=[n for n in batch._tensor_names() if n in ("ids", "mask", "log_probs", "score")]
    )
    return protocol.collate_fn(list(dense))


def minibatches(batch: DataProto) -> list[DataProto]:
    size = next((n for n in (3, 2, 1) if len(batch) % n == 0), 1)
    return list(batch.make_iterator(size, 1, seed=3))


def rows() -> st.SearchStrategy[Any]:
    numbers = st.lists(st.integers(-7, 6), max_size=7)
    return st.one_of(
        numbers,
        numbers.map(lambda n: np.array(n, dtype=np.int64)),
        numbers.map(lambda n: torch.tensor(n, dtype=torch.int64)),
        st.lists(st.booleans(), min_size=4, max_size=6),
    )


NAME = st.sampled_from([*TENSORS, *ARRAYS, "fresh", "nowhere"])
NAMES = st.one_of(st.none(), st.lists(NAME, max_size=3))
BOUND = st.one_of(st.none(), st.integers(-7, 7))

STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(method, st.just("select_idxs"), rows()),
    st.builds(method, st.just("reorder"), rows()),
    st.builds(method, st.just("__getitem__"), rows()),
    st.builds(method, st.just("slice"), BOUND, BOUND, st.sampled_from([None, 1, 2, -1])),
    st.builds(method, st.just("repeat"), st.sampled_from([0, 1, 2, 3]), st.booleans()),
    st.builds(method, st.just("sample_level_repeat"), st.lists(st.integers(0, 2), max_size=6)),
    st.builds(method, st.just("chunk"), st.sampled_from([1, 2, 3, 5])),
    st.builds(method, st.just("split"), st.sampled_from([1, 2, 4])),
    st.builds(
        method, st.just("padding"), st.sampled_from([0, 1, 3]), st.sampled_from(["", "first"])
    ),
    st.builds(method, st.just("select"), NAMES, NAMES, st.none(), st.booleans()),
    st.builds(method, st.just("rename"), NAME, st.sampled_from(["fresh", "new", "ids"])),
    st.builds(method, st.just("to"), st.just("cpu")),
    st.builds(method, st.just("unfold_column_chunks"), st.just(2), st.just(["ids", "log_probs"])),
    st.builds(method, st.just("__copy__")),
    st.builds(function, st.just("pad_dataproto_to_divisor"), st.sampled_from([2, 4, 7])),
    st.builds(function, st.just("unpad_dataproto"), st.sampled_from([0, 1, 2])),
    st.builds(pop, st.lists(NAME, max_size=2)),
    st.builds(touch, NAME),
    st.builds(edit, NAME),
    st.builds(assign, st.sampled_from(["ids", "uid", "fresh", "index"])),
    st.builds(union_with_new, st.sampled_from(["eager", "view"])),
    st.builds(union_with_part, st.sampled_from(["same", "edited", "renamed"])),
    st.builds(concat_with, st.sampled_from(["plain", "touched", "edited", "eager", "fewer"])),
    st.just(items_stacked),
    st.just(minibatches),
    st.sampled_from(
        [
            tensordict_step(lambda batch: batch.contiguous()),
            tensordict_step(lambda batch: batch.clone()),
            tensordict_step(lambda batch: batch.to("cpu")),
            tensordict_step(lambda batch: batch.exclude("ids")),
            tensordict_step(lambda batch: batch.set("set", torch.arange(batch.batch_size[0]))),
        ]
    ),
)


def outcome(step: Step, batch: DataProto) -> Any:
    try:
        return step(batch)
    except Exception as error:  # noqa: BLE001
        return error


@settings(max_examples=400, deadline=None)
@given(pair=pairs(), steps=st.lists(STEPS, min_size=1, max_size=5), data=st.data())
def test_a_view_does_what_an_eager_batch_does(
    pair: tuple[DataProto, LazyDataProto], steps: list[Step], data: st.DataObject
) -> None:
    twin, view = pair
    for step in steps:
        expected, found = outcome(step, twin), outcome(step, view)
        if isinstance(expected, Exception):
            assert type(found) is type(expected), (expected, found)
        elif isinstance(expected, list):
            assert len(found) == len(expected), (expected, found)
            assert all(type(one) is LazyDataProto for one in found), found
            if not expected:
                break
            number = data.draw(st.integers(0, len(expected) - 1))
            twin, view = expected[number], found[number]
        else:
            assert not isinstance(found, Exception), found
            if step is items_stacked:
                view = found
                twin = expected
                break
            assert type(found) is LazyDataProto
            twin, view = expected, found
        assert len(view) == len(twin)
        assert view._tensor_names() == twin._tensor_names()
        assert view._array_names() == twin._array_names()
    assert frozen(view) == frozen(twin)


def test_jagged_columns_that_shared_offsets_meet_in_arithmetic() -> None:
    client = FakeClient()
    tokens = jagged(torch.ones(2), torch.ones(3), torch.ones(1))
    weights = jagged(torch.ones(2), torch.ones(3) * 2, torch.ones(1))
    view = client.view(client.put({"tokens": tokens, "weights": weights}))
    assert (view.batch["tokens"] * view.batch["weights"]).values().sum() == 9
    part = view[[2, 1]]
    assert (part.batch["tokens"] * part.batch["weights"]).values().sum() == 7
