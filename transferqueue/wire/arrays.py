"""Numpy arrays beside a body: the body holds ``[frame, dtype, shape]`` where the array belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import Malformed
from transferqueue.wire.format import Array, Buffer, pack_array, unpack_array

if TYPE_CHECKING:
    from collections.abc import Sequence


class ArrayWriter:
    """Collects the payload frames of a message while its body is made."""

    def __init__(self) -> None:
        self.frames: list[Buffer] = []

    def add(self, array: Array) -> list[Any]:
        """What to put into the body for ``array``. Its memory is not copied."""
        desc, frame = pack_array(array)
        self.frames.append(frame)
        return [len(self.frames) - 1, *desc]

    def add_optional(self, array: Array | None) -> list[Any] | None:
        return None if array is None else self.add(array)

    def add_bytes(self, payload: Array) -> int:
        """Payload bytes, uint8[n]; the body holds the number of the frame."""
        self.frames.append(payload.data)
        return len(self.frames) - 1


class ArrayReader:
    """Reads what `ArrayWriter` wrote. Raises `Malformed` for a reference that does not fit."""

    def __init__(self, frames: Sequence[Buffer]) -> None:
        self._frames = frames

    def get(self, reference: object) -> Array:
        """The array; a view of its frame."""
        if not isinstance(reference, list | tuple) or len(reference) != 3:
            raise Malformed("an array beside a body is referred to by [frame, dtype, shape]")
        return unpack_array(reference[1:], self._frame(reference[0]))

    def get_optional(self, reference: object) -> Array | None:
        return None if reference is None else self.get(reference)

    def int64s(self, reference: object) -> Array:
        """A one-dimensional int64 array, such as uids."""
        array = self.get(reference)
        if array.ndim != 1 or array.dtype != np.int64:
            raise Malformed(f"expected int64[n], got {array.dtype}{list(array.shape)}")
        return array

    def get_bytes(self, frame: object) -> Array:
        """Payload bytes, uint8[n]."""
        return np.frombuffer(self._frame(frame), dtype=np.uint8)

    def _frame(self, number: object) -> Buffer:
        if type(number) is not int or not 0 <= number < len(self._frames):
            raise Malformed(f"no frame {number!r:.40}")
        return self._frames[number]
