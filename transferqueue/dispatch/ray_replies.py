"""Answers of ranks that are still Ray object refs, and the handle that they will make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from transferqueue.dispatch.join import StageReply, with_replies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.dispatch.split_call import SplitCall
    from transferqueue.handle import BatchHandle
    from transferqueue.view.lazy_dataproto import LazyDataProto


@dataclass(frozen=True, slots=True)
class RayReplies:
    """One call's answers, by rank. Any process of the cluster can wait for them."""

    refs: Sequence[Any]

    def get(self) -> list[StageReply]:
        """Waits; raises what a rank raised, as Ray gives it."""
        return [StageReply.of(reply) for reply in ray.get(list(self.refs))]

    def over(self, handle: BatchHandle) -> BatchHandle:
        """The handle with what the call has stored."""
        return with_replies(handle, self.get())


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHandleFuture:
    """The answer of a call that nobody has waited for. Its rows are known, so that it can be
    dispatched again: the ranks wait for its fields."""

    split: SplitCall
    storing: list[int]
    before: tuple[RayReplies, ...]
    """Calls whose fields the handle waited for itself."""
    replies: RayReplies
    rank_zero: bool = False
    """Whether one rank alone answers."""

    @property
    def batch(self) -> BatchHandle | LazyDataProto:
        """The rows, with the fields they had before the call: what it was given."""
        return self.split.given

    @property
    def history(self) -> tuple[RayReplies, ...]:
        """The calls to wait for, oldest first."""
        return (*self.before, self.replies)

    def get(self) -> Any:
        """The handle with the new fields, or the values of the ranks. Waits."""
        handle = self.split.handle
        for earlier in self.before:
            handle = earlier.over(handle)
        answer = self.split.answer(self.replies.get(), storing=self.storing, handle=handle)
        return answer[0] if self.rank_zero and isinstance(answer, list) else answer
