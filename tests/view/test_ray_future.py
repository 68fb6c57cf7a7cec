"""Batches still on their way: what is moved, and that it is right.

Ray is played by a store that counts the rows it hands out; the last test has the real one.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from transferqueue.view import BatchData, DataProto, DataProtoFuture, ray_future

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


class Ref:
    def __init__(self, value: Any) -> None:
        self.value = value


class FakeRay:
    """Runs tasks at once. ``moved`` is what ``get`` gave out: rows with columns, in order."""

    ObjectRef = Ref

    def __init__(self) -> None:
        self.moved: list[int] = []
        self.tasks = 0

    def get(self, refs: list[Ref]) -> list[Any]:
        values = [ref.value for ref in refs]
        for value in values:
            if isinstance(value, TensorDict) or (
                isinstance(value, DataProto)
                and (value.non_tensor_batch or len(value._tensor_names()))
            ):
                self.moved.append(len(value))
        return values

    def remote(self, *, num_cpus: int) -> Callable[[Any], Any]:
        assert num_cpus == 0
        return lambda function: Task(self, function)


class Task:
    def __init__(self, ray: FakeRay, function: Callable[..., Any]) -> None:
        self.ray, self.function = ray, function

    def remote(self, *args: Any) -> Ref:
        self.ray.tasks += 1
        return Ref(self.function(*(arg.value if isinstance(arg, Ref) else arg for arg in args)))


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeRay:
    fake = FakeRay()
    if "real" not in request.node.name:
        monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
        ray_future._remote.cache_clear()
    return fake


@pytest.fixture(autouse=True)
def _forget_tasks() -> Any:
    yield
    ray_future._remote.cache_clear()


def part(start: int, stop: int, **meta: Any) -> DataProto:
    return DataProto.from_dict(
        {"x": torch.arange(start, stop)}, {"o": np.arange(start, stop)}, meta
    )


def rows_of(data: DataProto) -> list[int]:
    assert data.batch["x"].tolist() == data.non_tensor_batch["o"].tolist()
    rows: list[int] = data.batch["x"].tolist()
    return rows


def refs_of(*sizes: int, **meta: Any) -> list[Ref]:
    bounds = np.cumsum([0, *sizes])
    return [Ref(part(a, b, **meta)) for a, b in itertools.pairwise(bounds)]


def test_refs_join_to_a_future_without_fetching(ray: FakeRay) -> None:
    refs = refs_of(2, 2)
    assert BatchData(refs).is_concatable()
    future = BatchData(refs).concat()
    assert isinstance(future, DataProtoFuture)
    assert future.futures == refs
    assert not ray.moved
    assert rows_of(future.get()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "sizes", [(4,), (2, 2), (1, 3), (1, 1, 1, 1), (0, 4), (3, 0, 1), (5, 3), (8,)]
)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_chunk_moves_its_own_rows_only(ray: FakeRay, sizes: tuple[int, ...], parts: int) -> None:
    chunks = DataProtoFuture.concat(refs_of(*sizes)).chunk(parts)
    assert not ray.moved
    size = sum(sizes) // parts
    for number, chunk in enumerate(chunks):
        ray.moved.clear()
        assert rows_of(chunk.get()) == list(range(number * size, (number + 1) * size))
        assert sum(ray.moved) == size


def test_whole_parts_are_not_cut(ray: FakeRay) -> None:
    chunks = DataProtoFuture.concat(refs_of(2, 2)).chunk(2)
    assert ray.tasks == 2
    assert [rows_of(chunk.get()) for chunk in chunks] == [[0, 1], [2, 3]]
    assert ray.tasks == 2


def test_chunks_of_chunks(ray: FakeRay) -> None:
    chunks = DataProtoFuture.concat(refs_of(3, 5)).chunk(2)
    assert [rows_of(one.get()) for chunk in chunks for one in chunk.chunk(2)] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    assert ray.tasks < 8
    (only,) = chunks[1].chunk(4)[2].chunk(1)
    assert rows_of(only.get()) == [6]


def test_a_chunk_has_everyones_meta_info() -> None:
    refs = [Ref(part(0, 2, metrics={"loss": 1}, a=1)), Ref(part(2, 4, metrics={"loss": 2}))]
    for chunk in DataProtoFuture.concat(refs).chunk(2):
        assert chunk.get().meta_info == {"a": 1, "metrics": {"loss": [1, 2]}}
    assert DataProtoFuture.concat(refs).get().meta_info == {"a": 1, "metrics": {"loss": [1, 2]}}


def test_rows_that_do_not_divide_are_an_assertion() -> None:
    with pytest.raises(AssertionError, match="3 does not divide by 2"):
        DataProtoFuture.concat(refs_of(3)).chunk(2)[0].get()
    padded = {"_verl_auto_padding": True}
    chunks = DataProtoFuture.concat(refs_of(3, 2, **padded)).chunk(2)
    assert [rows_of(chunk.get()) for chunk in chunks] == [[0, 1, 2], [3, 4]]


def test_no_rows_are_no_rows() -> None:
    chunks = DataProtoFuture.concat(refs_of(0, 0)).chunk(2)
    assert [rows_of(chunk.get()) for chunk in chunks] == [[], []]


def test_a_dispatch_function_comes_last() -> None:
    future = DataProtoFuture(DataProto.concat, refs_of(2, 2), lambda data: data[1:3])
    assert rows_of(future.get()) == [1, 2]
    first, second = future.chunk(2)
    assert rows_of(first.get()) == [1]
    assert rows_of(second.get()) == [3]


def test_bare_tensordicts_are_joined_and_cut(ray: FakeRay) -> None:
    refs = [Ref(TensorDict({"x": torch.arange(a, a + 2)}, [2])) for a in (0, 2)]
    future = DataProtoFuture.concat(refs)
    assert future.get()["x"].tolist() == [0, 1, 2, 3]
    ray.moved.clear()
    assert future.chunk(4)[2].get()["x"].tolist() == [2]
    assert ray.moved == [1]


def test_other_results_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="int"):
        DataProtoFuture.concat([Ref(3)]).get()


@pytest.mark.parametrize("parts", [0, -1])
def test_there_is_at_least_one_chunk(parts: int) -> None:
    with pytest.raises(ValueError, match="chunks"):
        DataProtoFuture.concat(refs_of(2)).chunk(parts)


def test_nothing_is_a_ref_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray")
    assert not ray_future.is_object_ref(Ref(1))
    assert not BatchData([Ref(1)]).is_concatable()


SCRIPT = """
    import ray, torch
    from transferqueue.view import BatchData, DataProto
    ray.init(num_cpus=1, include_dashboard=False, logging_level="error")
    refs = [ray.put(DataProto.from_dict({"x": torch.arange(a, a + 3)})) for a in (0, 3)]
    future = BatchData(refs).concat()
    assert future.get().batch["x"].tolist() == [0, 1, 2, 3, 4, 5]
    chunks = BatchData(future).chunk(3)
    assert [chunk.get().batch["x"].tolist() for chunk in chunks] == [[0, 1], [2, 3], [4, 5]]

    @ray.remote(num_cpus=1)
    def worker(chunk):
        batch = chunk.get()
        batch.batch["x"] += 10
        return batch

    done = BatchData([worker.remote(chunk) for chunk in chunks]).concat().get()
    assert done.batch["x"].tolist() == [10, 11, 12, 13, 14, 15]
    got = ray.get(refs[0])
    got.batch["x"].zero_()
    assert ray.get(refs[0]).batch["x"].tolist() == [0, 1, 2]
    ray.shutdown()
"""


@pytest.mark.slow
def test_with_real_ray_itself() -> None:
    code = textwrap.dedent(SCRIPT)
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
