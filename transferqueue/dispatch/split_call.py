"""One dispatched call on the controller's side: a handle in, parts out, one answer back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.dispatch.join import StageReply, join, made_by
from transferqueue.dispatch.split import (
    ByTokens,
    HandlePart,
    Padding,
    rows_of_parts,
    split_handle,
)
from transferqueue.errors import DuplicateRows
from transferqueue.handle import BatchHandle
from transferqueue.view.lazy_dataproto import LazyDataProto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.view.lazy_connection import Connection

HANDLE_KINDS = (BatchHandle, ByTokens, LazyDataProto)
"""What can be given where a handle is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCall:
    """What a call must remember until its ranks have answered."""

    handle: BatchHandle
    parts: tuple[HandlePart, ...]
    """One for each data-parallel rank; ``stores`` is for the caller to set."""
    kind: type[LazyDataProto] | None = None
    """Of the view that was given in place of a handle: the answer is one too."""
    connection: Connection | None = None
    """That view's."""
    beside: tuple[BatchHandle, ...] = ()
    """Of a view the other samples that its rows stand for."""
    as_new: bool = False
    """Whether the ranks store what the method returns as new samples."""
    order: np.ndarray | None = None  # int64[rows]
    """Of such new samples, which come part by part: where each row's is. ``None``: in order."""

    @classmethod
    def of(
        cls,
        batch: BatchHandle | ByTokens | LazyDataProto,
        num_parts: int,
        *,
        padding: Padding = Padding.ONE_ROW,
        writes: Sequence[str] = (),
    ) -> SplitCall:
        """Split. Columns that were assigned to a view are stored first: they are part of the
        batch, so ranks must find them.

        What a method writes for a view whose rows repeat, as responses to repeated prompts, becomes
        new samples, and the answer is a view of both. A handle is of one set of samples, so that
        is ``DuplicateRows``; as it is where rows of one sample differ in a column of the view.
        """
        given = batch.batch if isinstance(batch, ByTokens) else batch
        view = given if isinstance(given, LazyDataProto) else None
        handle = _handle_of(given)
        beside = () if view is None else tuple(view.beside)
        repeats = bool(writes) and handle.has_duplicates
        if repeats and view is None:
            raise _repeated(handle)
        rows = replace(batch, batch=handle) if isinstance(batch, ByTokens) else handle
        parts = split_handle(rows, num_parts, padding=padding, beside=beside)
        return cls(
            handle=handle,
            parts=tuple(replace(part, as_new=repeats) for part in parts),
            kind=None if view is None else type(view),
            connection=None if view is None else view.connection,
            beside=beside,
            as_new=repeats,
            order=_order(rows, num_parts) if repeats and isinstance(rows, ByTokens) else None,
        )

    def answer(
        self,
        replies: Sequence[StageReply | bytes],
        *,
        storing: Sequence[int],
        handle: BatchHandle | None = None,
    ) -> Any:
        """`join` of the replies, by rank; a view if one was given. ``handle``: the handle with
        what earlier calls have stored meanwhile."""
        base = self.handle if handle is None else handle
        heard = [StageReply.of(reply) for reply in replies]
        for rank, part in zip(storing, self.parts, strict=True):
            heard[rank] = _as_rows(heard, rank, part)
        answer = join(base, heard, storing=storing)
        if self.kind is None or not isinstance(answer, BatchHandle):
            return answer
        if not any(heard[rank].is_batch for rank in storing):  # the ranks gave rows of their own
            return self._view(answer)
        made = made_by(heard, storing=storing)
        if made is not None and self.order is not None:
            made = made[self.order]
        return self._view(answer, *self.beside, *(() if made is None else (made,)))

    @property
    def given(self) -> BatchHandle | LazyDataProto:
        """What was given, as it was then: a view may be changed by its owner."""
        return self.handle if self.kind is None else self._view(self.handle, *self.beside)

    def _view(self, handle: BatchHandle, *beside: BatchHandle) -> LazyDataProto:
        assert self.kind is not None
        assert self.connection is not None
        whole = self.kind.over(handle, self.connection)
        for other in beside:
            whole.union(self.kind.over(other, self.connection))
        return whole


def _handle_of(given: BatchHandle | LazyDataProto) -> BatchHandle:
    """The rows; of a view, once what was assigned to it is stored."""
    if isinstance(given, BatchHandle):
        return given
    return given.push() if given.local_fields else given.handle


def _order(batch: ByTokens, num_parts: int) -> np.ndarray:
    """Where each row is when the parts follow one another."""
    numbers = np.arange(len(batch.lengths))
    return np.argsort(np.concatenate([numbers[part] for part in rows_of_parts(batch, num_parts)]))


def _as_rows(heard: Sequence[StageReply], rank: int, part: HandlePart) -> StageReply:
    """Where other ranks gave some of their rows, one that gave its batch back gave all of its."""
    reply = heard[rank]
    gave_rows = any(isinstance(one.value, BatchHandle) for one in heard)
    if not gave_rows or not reply.is_batch or reply.fields or reply.made is not None:
        return reply
    return replace(reply, value=part.own, is_batch=False)


def _repeated(handle: BatchHandle) -> DuplicateRows:
    distinct, counts = np.unique(handle.uids, return_counts=True)
    error = DuplicateRows(len(handle), len(distinct), distinct[counts > 1].tolist())
    error.add_note(
        "Give the method a view, client.view(handle): what it returns for repeated rows becomes "
        "new samples then. Or let it put them, self.client.put(…), and return their handle."
    )
    return error
