"""Rows brought into their order by the device that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

MAX_INDEX = 4 << 20
"""Units of ragged rows that are brought into order at once: an index of 32 MiB."""


class RowOrder:
    """Which units of a memory the rows of a column are, one row after the other.

    ``plain`` are the numbers that the device is to have before `gather`; a few bytes a row, so that
    nothing of the size of a column is made on the host or crosses its bus.
    """

    def __init__(self, first_units: np.ndarray, lengths: np.ndarray | None) -> None:
        """``first_units``: int64[rows]. ``lengths``: int64[rows], units; ``None``: one each."""
        self._lengths = lengths
        if lengths is None:
            self.num_units = len(first_units)
            self.plain = np.ascontiguousarray(first_units)
            return
        self._ends = np.cumsum(lengths)
        self.num_units = int(self._ends[-1]) if len(lengths) else 0
        self.plain = np.array([first_units - (self._ends - lengths), lengths])

    def gather(
        self, out: torch.Tensor, laid: torch.Tensor, plain: torch.Tensor, unit_bytes: int
    ) -> None:
        """Fill ``out``, uint8[bytes], from ``laid``, uint8[bytes], of whole units, on the stream of
        torch's that is current. ``plain``: `plain`, on the device. Waits for nothing."""
        import torch

        wide = next(size for size in (8, 4, 2, 1) if unit_bytes % size == 0)
        dtype = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[wide]
        source = laid.view(dtype).view(-1, unit_bytes // wide)
        target = out.view(dtype).view(-1, unit_bytes // wide)
        for low, high, index in self._indices(plain):
            torch.index_select(source, 0, index, out=target[low:high])

    def _indices(self, plain: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
        """From which unit to which of the column, and where each of them is."""
        import torch

        if self._lengths is None:
            yield 0, self.num_units, plain
            return
        shifts, lengths = plain.view(2, -1)
        for first, last in self._groups():
            low = int(self._ends[first] - self._lengths[first])
            high = int(self._ends[last - 1])
            # With its size told, torch does not ask the device for it.
            index = torch.repeat_interleave(
                shifts[first:last], lengths[first:last], output_size=high - low
            )
            yield low, high, index.add_(torch.arange(low, high, device=plain.device))

    def _groups(self) -> Iterator[tuple[int, int]]:
        """Rows of `MAX_INDEX` units together, but for single ones that are longer."""
        first = 0
        while first < len(self._ends):
            before = int(self._ends[first] - self._lengths[first])  # type: ignore[index]
            last = int(np.searchsorted(self._ends, before + MAX_INDEX, "right"))
            last = max(last, first + 1)
            yield first, last
            first = last
