"""Declared columns that one rank fetches and sends to the others that share its part.

On the host of a shard every rank maps the same memory and nothing is to be gained. On another host
each of eight tensor-parallel ranks would fetch the same bytes over the network; with this one of
them does, and the others get them over the links between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from transferqueue.errors import ConfigError, RemoteError, TransferQueueError
from transferqueue.view import jagged

Columns = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """A tensor column but for its bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    """Of the packed values, where the column is ragged."""
    offsets: torch.Tensor | None = None  # int64 [rows + 1]
    ragged_dim: int = 0

    @classmethod
    def of(cls, column: torch.Tensor) -> tuple[_Layout, torch.Tensor]:
        """The layout and the bytes, uint8 [n]."""
        offsets, ragged_dim, cells = None, 0, column
        if jagged.is_jagged(column):
            packed = jagged.packed(column)
            offsets, ragged_dim = packed.offsets(), jagged.ragged_dim(packed)
            cells = packed.values()
        layout = cls(
            dtype=cells.dtype, shape=tuple(cells.shape), offsets=offsets, ragged_dim=ragged_dim
        )
        # As bytes, because Gloo does not know every dtype.
        return layout, cells.contiguous().reshape(-1).view(torch.uint8)

    def empty(self) -> torch.Tensor:
        """Bytes to be filled."""
        cells = torch.empty(self.shape, dtype=self.dtype)
        return cells.reshape(-1).view(torch.uint8)

    def column(self, cells: torch.Tensor) -> torch.Tensor:
        values = cells.view(self.dtype).reshape(self.shape)
        if self.offsets is None:
            return values
        column: torch.Tensor = jagged.build(values, self.offsets, self.ragged_dim)
        return column


class SharedReads:
    """The ranks of one process group, which all get the same part, call by call."""

    def __init__(self, group: Any) -> None:
        """``group``: a ``torch.distributed`` group of exactly those ranks, over Gloo: columns
        come to the host's memory. ``ConfigError`` for another backend."""
        backend = str(dist.get_backend(group))
        if "gloo" not in backend:
            raise ConfigError(
                f"shared reads go over Gloo, the group has {backend}; make one with "
                f"torch.distributed.new_group(ranks, backend='gloo')"
            )
        self._group = group
        self._leader = dist.get_global_rank(group, 0)

    @property
    def leads(self) -> bool:
        """Whether this is the rank that fetches."""
        return dist.get_rank() == self._leader

    def fetch(self, fetch: Callable[[], Columns]) -> Columns:
        """What ``fetch`` gives on the leading rank, on every rank; or what it raised there.

        A collective: every rank of the group must call it.
        """
        if self.leads:
            return self._send(fetch)
        return self._receive()

    def stay_out(self, error: BaseException) -> None:
        """This rank has failed before it could `fetch`: the others, which do, are not to wait for
        it."""
        if not self.leads:
            with contextlib.suppress(TransferQueueError):
                self._receive()
            return
        if not isinstance(error, TransferQueueError):
            why = f"{error} (on the rank that fetches for this one)"
            error = RemoteError(type(error).__name__, why)
        self._tell([error])

    def _send(self, fetch: Callable[[], Columns]) -> Columns:
        try:
            columns = fetch()
        except BaseException as error:
            self.stay_out(error)
            raise
        tensors = {n: _Layout.of(c) for n, c in columns.items() if isinstance(c, torch.Tensor)}
        self._tell([{n: tensors[n][0] if n in tensors else c for n, c in columns.items()}])
        for _, cells in tensors.values():
            self._broadcast(cells)
        return columns

    def _receive(self) -> Columns:
        (told,) = self._tell([None])
        if isinstance(told, TransferQueueError):
            raise told
        return {
            name: self._received(value) if isinstance(value, _Layout) else value
            for name, value in told.items()
        }

    def _received(self, layout: _Layout) -> torch.Tensor:
        cells = layout.empty()
        self._broadcast(cells)
        return layout.column(cells)

    def _tell(self, message: list[Any]) -> list[Any]:
        dist.broadcast_object_list(message, src=self._leader, group=self._group)
        return message

    def _broadcast(self, cells: torch.Tensor) -> None:
        if cells.numel():
            dist.broadcast(cells, src=self._leader, group=self._group)
