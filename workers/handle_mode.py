"""`Dispatch.HANDLE` on the controller's side: find the handle, split it, join the answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from transferqueue.dispatch import HandlePart, Padding, SplitCall, StageReply
from transferqueue.dispatch.join import with_replies
from transferqueue.dispatch.split_call import HANDLE_KINDS
from transferqueue.errors import InvalidInput
from workers.calls import CallSite, Dispatched, RankCall
from workers.futures import Answers, CallFuture, HandleFuture
from workers.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.handle import BatchHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Calls that write the newest fields of a handle, oldest first."""

    calls: tuple[Answers, ...] = ()
    timeout_s: float = 0.0

    def over(self, handle: BatchHandle) -> BatchHandle:
        """The handle with those fields. Waits; raises what a rank of the calls raised."""
        for answers in self.calls:
            replies = [StageReply.of(reply) for reply in answers.values(self.timeout_s)]
            handle = with_replies(handle, replies)
        return handle


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPart(Pending):
    """A part of a handle whose newest fields are still being written."""

    part: HandlePart
    history: History

    def resolve(self) -> HandlePart:
        """The part with those fields."""
        return replace(self.part, handle=self.history.over(self.part.handle))


def dispatch_handle(
    site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any], *, padding: Padding
) -> Dispatched:
    """Parts of the one handle among the arguments for each rank, everything else as it is."""
    place = _place_of_handle(site, args, kwargs)
    given = args[place] if isinstance(place, int) else kwargs[place]
    history = History()
    if isinstance(given, HandleFuture):
        history = History(calls=given.history, timeout_s=given.timeout_s)
        given = given.batch
    elif isinstance(given, CallFuture):  # its samples are known when they are made
        given = given.get()
        if not isinstance(given, HANDLE_KINDS):
            raise _no_handle(site, [given])
    split = SplitCall.of(
        given, site.placement.num_parts, padding=padding, writes=site.declaration.writes
    )
    rest = tuple(value for position, value in enumerate(args) if position != place)
    named = {name: value for name, value in kwargs.items() if name != place}
    ranks = zip(site.placement.part_of_rank, site.placement.collects, strict=True)
    parts = [split.parts[part].stored_by(collects=collects) for part, collects in ranks]
    return Dispatched(
        calls=[
            RankCall(args=rest, kwargs=named, place=place, part=_pending(part, history))
            for part in parts
        ],
        collect=_Join(
            split=split,
            history=history,
            storing=site.placement.answering_ranks,
            rank_zero_only=site.rank_zero_only,
        ),
        handle=None if split.as_new else split.handle,
        split=split,
        history=history.calls,
    )


def _pending(part: HandlePart, history: History) -> HandlePart | PendingPart:
    return PendingPart(part=part, history=history) if history.calls else part


@dataclass(frozen=True, slots=True, kw_only=True)
class _Join:
    """Makes the answer of a call from what its ranks answered."""

    split: SplitCall
    history: History
    storing: list[int]
    rank_zero_only: bool

    def __call__(self, replies: Sequence[StageReply | bytes]) -> Any:
        handle = self.history.over(self.split.handle)
        answer = self.split.answer(replies, storing=self.storing, handle=handle)
        return answer[0] if self.rank_zero_only and isinstance(answer, list) else answer


def _place_of_handle(site: CallSite, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | str:
    """Position or name of the argument that is split."""
    kinds = (*HANDLE_KINDS, HandleFuture)
    places: list[int | str] = [n for n, value in enumerate(args) if isinstance(value, kinds)]
    places += [name for name, value in kwargs.items() if isinstance(value, kinds)]
    if not places:
        named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        places = [place for place, value in named if isinstance(value, CallFuture)][:1]
    if len(places) == 1:
        return places[0]
    if not places:
        raise _no_handle(site, [*args, *kwargs.values()])
    raise InvalidInput(
        f"{site.method} got {len(places)} handles; it takes one: union() them, or concat()"
    )


def _no_handle(site: CallSite, values: Sequence[Any]) -> InvalidInput:
    got = [type(value).__name__ for value in values]
    return InvalidInput(
        f"{site.method} is dispatched by HANDLE and takes a handle, got {got}; put a batch "
        f"first: handle = client.put(batch)"
    )
