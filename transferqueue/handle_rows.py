"""The rows of a handle, with what has been worked out of them.

A step gives one list of samples from stage to stage, each time with more fields. What depends on
the samples alone, how they are written as bytes and how they are split over ranks, is worked out
at the first stage and found at the others: all handles of these very rows share one object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from transferqueue.uids import decode_uids, encode_uids

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from transferqueue.uids import Uids

Found = TypeVar("Found")


class Rows:
    """Samples in an order. Never changed; threads that work the same out at once find the same."""

    __slots__ = ("_are_distinct", "_coded", "_kept", "uids")

    def __init__(self, uids: Uids, coded: bytes | None = None) -> None:
        """``uids``: valid ones, int64 ``[rows]``; not copied, and read-only from here on.
        ``coded``: what `encode_uids` makes of them, if it is known."""
        uids.flags.writeable = False
        self.uids = uids
        self._coded = coded
        self._are_distinct: bool | None = None
        self._kept: dict[Hashable, Any] = {}

    @classmethod
    def of_bytes(cls, coded: bytes) -> Rows:
        """Inverse of `coded`. Raises `Malformed`."""
        return cls(decode_uids(coded), coded)

    @property
    def coded(self) -> bytes:
        """The uids as bytes."""
        if self._coded is None:
            self._coded = encode_uids(self.uids)
        return self._coded

    @property
    def are_distinct(self) -> bool:
        """Whether no sample is in it twice."""
        if self._are_distinct is None:
            self._are_distinct = _are_distinct(self.uids)
        return self._are_distinct

    def kept(self, key: Hashable, work_out: Callable[[], Found]) -> Found:
        """What ``work_out`` gives, from the first time that this key was asked for. It lives as
        long as the rows, so there must be few keys, and it must not be changed."""
        if key not in self._kept:
            self._kept[key] = work_out()
        found: Found = self._kept[key]
        return found


def _are_distinct(uids: Uids) -> bool:
    if (uids[1:] > uids[:-1]).all():  # as they were put: a tenth of the time
        return True
    return len(np.unique(uids)) == len(uids)


def why_not_same_rows(left: Uids, right: Uids) -> str:
    """Why handles of as many rows are not of the same ones."""
    if np.array_equal(np.sort(left), np.sort(right)):
        return "union: the same samples in another order; reorder() one of them first"
    common = len(np.intersect1d(left, right))
    return f"union: other samples ({common} of {len(left)} are in both); use concat for more rows"
