"""One face over everything that a dispatcher splits and joins.

Which kinds there are is known here and nowhere else: a dispatcher never asks for a type.
"""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from transferqueue.errors import NothingToConcat
from transferqueue.handle import BatchHandle
from transferqueue.rows import checked_count
from transferqueue.view.dataproto import DataProto
from transferqueue.view.ray_future import DataProtoFuture, is_object_ref
from transferqueue.view.tensordicts import chunk_tensordict, concat_tensordicts

_CHUNKABLE = (DataProto, DataProtoFuture, TensorDictBase, BatchHandle)
_CONCATABLE = (DataProto, TensorDictBase, BatchHandle)


class BatchData:
    """A batch to be split, or a list of batches to be joined.

    ``BatchData(x).chunk(n)`` and ``BatchData([x, y]).concat()`` give plain batches of the kind
    that went in; a list of Ray object refs joins to a ``DataProtoFuture``.
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def is_chunkable(self) -> bool:
        """Whether ``chunk`` knows this kind."""
        return isinstance(self._data, _CHUNKABLE)

    def is_concatable(self) -> bool:
        """Whether this is a list or tuple, not empty, whose first element ``concat`` knows."""
        if not isinstance(self._data, list | tuple) or not self._data:
            return False
        return isinstance(self._data[0], _CONCATABLE) or is_object_ref(self._data[0])

    def chunk(self, chunks: int) -> Any:
        """``chunks`` parts. Rows that do not divide are an ``AssertionError``, except in handles,
        which split unevenly: 10 rows by 4 are 3, 3, 2, 2."""
        count = checked_count(chunks, "chunks", low=1)
        if not self.is_chunkable():
            raise TypeError(f"cannot chunk a {type(self._data).__name__}")
        if isinstance(self._data, TensorDictBase):
            return chunk_tensordict(self._data, count)
        return self._data.chunk(count)

    def concat(self) -> Any:
        """All parts as one. ``NothingToConcat`` (``ValueError``) for an empty list."""
        if not self._data:
            raise NothingToConcat
        if not self.is_concatable():
            raise TypeError(f"cannot concat a {type(self._data).__name__} of {self._data!r:.80}")
        first = self._data[0]
        if is_object_ref(first):
            return DataProtoFuture.concat(list(self._data))
        if isinstance(first, TensorDictBase):
            return concat_tensordicts(self._data)
        return type(first).concat(self._data)
