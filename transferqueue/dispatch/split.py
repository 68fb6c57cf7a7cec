"""How a handle is split over the ranks of a group. Pure.

Splitting is uneven where it must be: 10 rows on 4 ranks are 3, 3, 2, 2. Padding rows are virtual:
they stand at the end of a part so that all ranks see as many rows, are fetched with the row that
they repeat, and nothing of them is stored or given back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from transferqueue.coordinator.samplers.length_balanced import balance
from transferqueue.errors import InvalidInput, RowCountMismatch
from transferqueue.handle import BatchHandle
from transferqueue.handle_rows import Rows
from transferqueue.rows import checked_count, even_chunks
from transferqueue.view.lazy_dataproto import LazyDataProto
from transferqueue.wire.format import Buffer, pack_plain, unpack_plain

if TYPE_CHECKING:
    from collections.abc import Sequence


class Padding(Enum):
    """What is done when rows do not divide by the ranks."""

    NONE = "none"
    """Parts differ by a row; with fewer rows than ranks some ranks get none."""
    ONE_ROW = "one row"
    """Parts differ by a row, and one that would have none has a virtual row: most models cannot
    run on no rows, and a rank that does not run leaves the others waiting in a collective."""
    EQUAL = "equal"
    """Every part is as long as the longest, filled up with virtual rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTokens:
    """A batch to be split so that every rank gets about the same number of tokens."""

    batch: BatchHandle | LazyDataProto
    lengths: np.ndarray  # [rows], tokens of each row

    def __post_init__(self) -> None:
        if not isinstance(self.batch, BatchHandle | LazyDataProto):
            raise InvalidInput(
                f"by_tokens takes a handle or a lazy view, got a {type(self.batch).__name__}; of a "
                f"future give what its get() returns"
            )
        if np.ndim(self.lengths) != 1 or len(self.lengths) != len(self.batch):
            raise RowCountMismatch("lengths of by_tokens", len(self.batch), np.size(self.lengths))
        if len(self.lengths) and not _are_counts(self.lengths):
            raise InvalidInput(
                f"lengths of by_tokens are numbers from 0 on, one a row, got {self.lengths!r:.80}"
            )

    def rows_of_parts(self, num_parts: int) -> list[np.ndarray]:
        """Which rows each part has, without padding: row numbers, rising."""
        return _balanced_rows(self.lengths, num_parts)


def _are_counts(lengths: np.ndarray) -> bool:
    if lengths.dtype.kind not in "biuf":
        return False
    return bool((np.isfinite(lengths) & (lengths >= 0)).all())


def by_tokens(batch: BatchHandle | LazyDataProto, lengths: Any) -> ByTokens:
    """``batch`` as an argument that is split by token count instead of by row count.

    ``lengths``: tokens of each row, ``[rows]``: a list, array or tensor, such as the ``length``
    tags that a claim gives. ``RowCountMismatch`` when they are not as many.
    """
    return ByTokens(batch=batch, lengths=np.asarray(lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlePart:
    """What one rank gets of a handle."""

    handle: BatchHandle
    """The rows to look at, padding rows last."""
    num_padding: int = 0
    stores: bool = True
    """Whether this rank puts what the method returns: one rank of those that share a part."""
    beside: tuple[BatchHandle, ...] = ()
    """Row by row other samples, whose columns belong to the batch too: the prompts, repeated, of
    responses."""
    as_new: bool = False
    """Whether what the method returns becomes new samples: the rows of the batch repeat."""

    @property
    def own(self) -> BatchHandle:
        """Without the padding rows."""
        if not self.num_padding:
            return self.handle
        return self.handle[: len(self.handle) - self.num_padding]

    def stored_by(self, *, collects: bool) -> HandlePart:
        """The part for a rank that collects, and so stores, or for one that does not."""
        return self if self.stores == collects else replace(self, stores=collects)

    def to_plain(self) -> list[Any]:
        """Plain values, for a wire."""
        plain: list[Any] = [self.num_padding, self.stores, self.as_new]
        for one in (self.handle, *self.beside):
            plain += [_heads.encoded(one), one.rows.coded]
        return plain

    @classmethod
    def of_plain(cls, plain: Sequence[Any]) -> HandlePart:
        """Inverse of `to_plain`. Raises `Malformed`."""
        num_padding, stores, as_new, head, coded, *more = plain
        beside = zip(more[::2], more[1::2], strict=True) if more else ()
        return cls(
            handle=_decoded_head(head).with_rows(_decoded_rows(coded)),
            num_padding=num_padding,
            stores=stores,
            beside=tuple(_decoded_head(h).with_rows(_decoded_rows(c)) for h, c in beside),
            as_new=as_new,
        )

    def to_bytes(self) -> bytes:
        """For a wire; a fraction of what a pickle takes."""
        return pack_plain(self.to_plain())

    @classmethod
    def from_bytes(cls, data: Buffer) -> HandlePart:
        """Inverse of `to_bytes`. Raises `Malformed`."""
        return cls.of_plain(unpack_plain(data))

    def __reduce__(self) -> tuple[Any, ...]:
        return HandlePart.from_bytes, (self.to_bytes(),)


class _Heads:
    """Encoded handles without rows, of those that were encoded last.

    All parts of a call have one head, and calls of a stage mostly have that of the call before: of
    a handle of 20 fields it took two thirds of what a part took to encode and to decode.
    """

    SIZE: Final = 16

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[BatchHandle, bytes]] = {}

    def encoded(self, handle: BatchHandle) -> bytes:
        """An entry keeps its handle, so that no other head can come to have its identity."""
        key = handle.head.identity
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self.SIZE:
                self._known = {}  # another thread may be looking at the old one
            head = handle[:0]
            found = self._known[key] = head, head.to_bytes()
        return found[1]


_heads = _Heads()
_decoded_head = lru_cache(maxsize=16)(BatchHandle.from_bytes)
_decoded_rows = lru_cache(maxsize=4)(Rows.of_bytes)
"""All calls of a step mostly have the same rows."""


def split_handle(
    batch: BatchHandle | ByTokens,
    num_parts: int,
    *,
    padding: Padding = Padding.ONE_ROW,
    beside: Sequence[BatchHandle] = (),
) -> list[HandlePart]:
    """``num_parts`` parts that hold every row once. ``beside``: handles of as many rows, which are
    split alike.

    By rows they are runs of the handle; by tokens a part's rows keep the order that they have in
    the handle. A handle without rows gives parts without rows, also where padding is asked for.
    """
    handle = batch.batch if isinstance(batch, ByTokens) else batch
    assert isinstance(handle, BatchHandle), "of a view its handle is split"
    whole, count = handle.rows, checked_count(num_parts, "num_parts", low=1)
    if isinstance(batch, ByTokens):
        runs = _runs(whole, batch.rows_of_parts(count), padding)
    else:
        runs = whole.kept(
            (count, padding), lambda: _runs(whole, even_chunks(len(whole.uids), count), padding)
        )
    return [
        HandlePart(
            handle=handle.with_rows(run.rows),
            num_padding=run.num_padding,
            beside=tuple([other[run.chosen] for other in beside]),
        )
        for run in runs
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The rows of one part, whatever fields a handle has of them."""

    chosen: slice | np.ndarray
    """Of the whole, padding last."""
    rows: Rows
    num_padding: int


def _runs(whole: Rows, parts: Sequence[slice | np.ndarray], padding: Padding) -> list[_Run]:
    numbers = np.arange(len(whole.uids))
    longest = max(len(numbers[part]) for part in parts)
    shortest = {Padding.NONE: 0, Padding.ONE_ROW: 1, Padding.EQUAL: longest}[padding]
    filled = [_filled_up(part, shortest, numbers) for part in parts]
    return [
        _Run(chosen=chosen, rows=Rows(whole.uids[chosen]), num_padding=num)
        for chosen, num in filled
    ]


def _balanced_rows(lengths: np.ndarray, num_parts: int) -> list[np.ndarray]:
    """Row numbers of each part, rising."""
    if not len(lengths):
        return [np.empty(0, dtype=np.int64)] * num_parts
    # `balance` deals equal counts; rows of no tokens make the count divide and are left out again.
    missing = -len(lengths) % num_parts
    dealt = balance(np.concatenate([lengths, np.zeros(missing)]), num_parts)
    return [np.sort(part[part < len(lengths)]) for part in dealt]


def _filled_up(
    part: slice | np.ndarray, min_rows: int, numbers: np.ndarray
) -> tuple[slice | np.ndarray, int]:
    """``(rows, how many of them are padding)``. Padding repeats the part's own first row, which is
    fetched anyway; a part without rows repeats the first of all."""
    own = numbers[part]
    missing = min_rows - len(own) if len(numbers) else 0
    if missing <= 0:
        return part, 0
    first = own[0] if len(own) else 0
    return np.concatenate([own, np.full(missing, first, dtype=np.intp)]), missing
