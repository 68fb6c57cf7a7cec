"""Batches that are still on their way as Ray objects. Ray is imported when one is used."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tensordict import TensorDict, TensorDictBase

from transferqueue.rows import checked_count
from transferqueue.view import columns
from transferqueue.view.dataproto import DataProto
from transferqueue.view.meta_info import concatenated
from transferqueue.view.tensordicts import concat_tensordicts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(eq=False)
class DataProtoFuture:
    """The outputs of one call on a worker group, not fetched yet.

    It can only be handed on: chunked for the next group, and resolved by each worker with
    ``get()``. Ours: a chunk's ``get`` moves the rows of that chunk only. Sizes and ``meta_info``
    of the parts come first (from tasks that run where the parts are), then whole parts that the
    chunk covers and cut pieces of those it shares, again cut where they are. Chunking a chunk
    works.
    """

    collect_fn: Callable[[Any], Any]
    """Not called: parts are joined by their own kind, as in verl. Kept for its callers."""
    futures: list[Any]
    """Ray object refs, each of a ``DataProto`` or a ``TensorDict``, in rank order."""
    dispatch_fn: Callable[[Any], Any] | None = None
    """Applied last, to what ``get`` would return without it."""
    chunk_path: tuple[tuple[int, int], ...] = ()
    """``(index, chunks)`` of every ``chunk`` since ``concat``, outermost first."""
    outlines: list[Any] = field(default_factory=list)
    """Refs of the parts' outlines, made once by ``chunk`` and shared by all its chunks."""

    @staticmethod
    def concat(data: list[Any]) -> DataProtoFuture:
        """All rows of the refs' batches, in order."""
        return DataProtoFuture(collect_fn=DataProto.concat, futures=list(data))

    def chunk(self, chunks: int) -> list[DataProtoFuture]:
        """``chunks`` futures of equal parts. Whether it divides shows when one is resolved."""
        count = checked_count(chunks, "chunks", low=1)
        outlines = self.outlines or [_remote(_outline).remote(ref) for ref in self.futures]
        return [
            replace(self, chunk_path=(*self.chunk_path, (part, count)), outlines=outlines)
            for part in range(count)
        ]

    def get(self) -> Any:
        """The batch, fetched here. Raises what the workers raised, as Ray gives it."""
        result = self._chunk() if self.chunk_path else self._all()
        return result if self.dispatch_fn is None else self.dispatch_fn(result)

    def _all(self) -> Any:
        return _joined(_ray().get(self.futures))

    def _chunk(self) -> Any:
        outlines = _ray().get(self.outlines)
        start, stop = _range_of(outlines, self.chunk_path)
        refs, first = [], 0
        for ref, outline in zip(self.futures, outlines, strict=True):
            low, high = max(start, first), min(stop, first + len(outline))
            if low < high:
                refs.append(_piece(ref, low - first, high - first, len(outline)))
            first += len(outline)
        pieces = _ray().get(refs or [_remote(_cut).remote(self.futures[0], 0, 0)])
        result = _joined(pieces)
        if isinstance(result, DataProto):
            result.meta_info = concatenated(outline.meta_info for outline in outlines)
        return result


def _range_of(outlines: Sequence[DataProto], path: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Rows ``[start, stop)`` of a chunk of a chunk of ..., as ``DataProto.chunk`` cuts them."""
    whole = DataProto.concat(outlines)
    start, stop = 0, len(whole)
    for index, count in path:
        parts = whole[: stop - start].chunk(count)
        start += sum(len(part) for part in parts[:index])
        stop = start + len(parts[index])
    return start, stop


def _outline(batch: Any) -> DataProto:
    """Only the number of rows and the ``meta_info``. Runs where the batch is."""
    rows = len(batch)
    meta_info = batch.meta_info if isinstance(batch, DataProto) else {}
    return DataProto(batch=TensorDict({}, batch_size=[rows]), meta_info=meta_info)


def _cut(batch: Any, start: int, stop: int) -> Any:
    """Runs where the batch is."""
    if isinstance(batch, DataProto):
        return batch[start:stop]
    return columns.slice_rows(batch, slice(start, stop, 1))


def _piece(ref: Any, start: int, stop: int, num_rows: int) -> Any:
    if (start, stop) == (0, num_rows):
        return ref
    return _remote(_cut).remote(ref, start, stop)


def _joined(batches: list[Any]) -> Any:
    for batch in batches:
        if not isinstance(batch, DataProto | TensorDictBase):
            raise TypeError(
                f"a DataProtoFuture resolves to DataProtos or TensorDicts, got "
                f"{type(batch).__name__}"
            )
    if isinstance(batches[0], DataProto):
        return DataProto.concat(batches)
    return concat_tensordicts(batches)


def is_object_ref(value: object) -> bool:
    """Whether this is a Ray object ref. Without Ray imported there are none."""
    ray = sys.modules.get("ray")
    return ray is not None and isinstance(value, ray.ObjectRef)


def _ray() -> Any:
    import ray

    return ray


@functools.cache
def _remote(function: Callable[..., Any]) -> Any:
    # No CPU is claimed: the tasks only cut, and must run beside workers that hold all CPUs.
    return _ray().remote(num_cpus=0)(function)
