"""One dispatched call on the controller's side: a handle in, parts out, one answer back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.dispatch.join import StageReply, join
from transferqueue.dispatch.opening import view_like
from transferqueue.dispatch.split import ByTokens, HandlePart, Padding, split_handle
from transferqueue.errors import UID_SAMPLE, DuplicateRows
from transferqueue.handle import BatchHandle
from transferqueue.view.lazy_dataproto import LazyDataProto

if TYPE_CHECKING:
    from collections.abc import Sequence

HANDLE_KINDS = (BatchHandle, ByTokens, LazyDataProto)
"""What can be given where a handle is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCall:
    """What a call must remember until its ranks have answered."""

    handle: BatchHandle
    parts: tuple[HandlePart, ...]
    """One for each data-parallel rank; ``stores`` is for the caller to set."""
    view: LazyDataProto | None = None
    """The view that was given in place of a handle: the answer is one too."""

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

        ``DuplicateRows`` where a method that writes would store a row twice.
        """
        view = batch if isinstance(batch, LazyDataProto) else None
        if isinstance(batch, LazyDataProto):
            batch = batch.push() if batch.local_fields else batch.handle
        handle = batch.handle if isinstance(batch, ByTokens) else batch
        if writes and handle.has_duplicates:
            raise _repeated(handle)
        parts = split_handle(batch, num_parts, padding=padding)
        return cls(handle=handle, parts=tuple(parts), view=view)

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
        answer = join(base, [StageReply.of(reply) for reply in replies], storing=storing)
        if self.view is not None and isinstance(answer, BatchHandle):
            return view_like(self.view, answer)
        return answer


def _repeated(handle: BatchHandle) -> DuplicateRows:
    distinct, counts = np.unique(handle.uids, return_counts=True)
    return DuplicateRows(len(handle), len(distinct), distinct[counts > 1][:UID_SAMPLE].tolist())
